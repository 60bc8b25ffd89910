// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for Slurm alone. It is compiled into the command, not into the library.

pub mod adopt;
pub mod arguments;
pub mod dirs;
pub mod disable;
pub mod enable;
pub mod job;
pub mod line;
pub mod load;
pub mod name;
pub mod node;
pub mod pam;
pub mod prolog;
pub mod store;
