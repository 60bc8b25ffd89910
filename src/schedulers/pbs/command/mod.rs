// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for OpenPBS alone. It is compiled into the command, not into the library.

pub mod config;
pub mod mom;
pub mod node;
