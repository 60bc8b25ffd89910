// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence fences every batch job of a shared compute node in its own cgroup.
//!
//! The way of a job through the house: a door ([`entry`]) reads what the scheduler granted, [`policy`] makes limits of it,
//! [`host`] and [`cgroup::place`] say where they go, [`fence`] is the one life cycle, [`record`] and [`janitor`] see that
//! nothing is left behind, and [`report`] says what was used and why something was killed.

pub mod as_user;
pub mod bytes;
pub mod cgroup;
pub mod config;
pub mod cpu_list;
pub mod entry;
pub mod error;
pub mod facts;
pub mod fence;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod glibc;
pub mod gres;
pub mod host;
pub mod hostlist;
pub mod impossible;
pub mod janitor;
pub mod job;
pub mod lock;
pub mod nvidia;
pub mod plugstack;
pub mod policy;
pub mod process;
pub mod record;
pub mod report;
pub mod requests;
pub mod slurm_conf;
pub mod slurm_placement;
pub mod topology;
pub mod tracking;

#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;
