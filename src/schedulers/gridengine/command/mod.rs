// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for Grid Engine alone. It is compiled into the command, not into the library.

pub mod check;
pub mod jsv;
pub mod qconf;
pub mod sensor;
pub mod shepherd;
