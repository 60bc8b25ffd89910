// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for HTCondor alone. It is compiled into the command, not into the library.

pub mod check;
pub mod docker;
pub mod job;
pub mod monitor;
pub mod starter;
