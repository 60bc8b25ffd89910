// SPDX-License-Identifier: GPL-2.0-or-later
//! All that only Slurm needs: its plugin interface, its configuration, its names of directories and cores.

pub mod conf;
pub mod cores;
pub mod daemon_children;
pub mod gres;
pub mod leftovers;
pub mod plugins;
pub mod plugstack;
pub mod prolog;
pub mod spank;
pub mod unenforceable;
