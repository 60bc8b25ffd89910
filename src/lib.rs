// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence fences every batch job of a shared compute node in its own cgroup.
//!
//! The way of a job through the modules: an entry point ([`doors`], [`schedulers`]) reads what the scheduler granted, [`policy`] computes
//! limits, [`host`] and [`cgroup::membership`] say where they apply, [`fence`] is the life cycle, [`record`] and [`janitor`] ensure that
//! nothing is left behind, and [`report`] says what was used and why a process was killed.

/// The version, and the commit of a release, as `jobfence --version` says it.
pub const VERSION: &str = env!("JOBFENCE_VERSION");
/// For which machines and C library it was built, as `x86_64-unknown-linux-gnu, glibc 2.28 or later`.
pub const BUILT_FOR: &str = env!("JOBFENCE_BUILT_FOR");

pub mod bytes;
pub mod cgroup;
pub mod config;
pub mod cpu_list;
pub mod doors;
pub mod error;
pub mod facts;
pub mod fence;
pub mod figures;
pub mod host;
pub mod hostlist;
pub mod janitor;
pub mod job;
pub mod launch;
pub mod log;
pub mod policy;
pub mod printable;
pub mod private;
pub mod record;
pub mod report;
pub mod requests;
pub mod scheduler;
pub mod schedulers;
pub mod sorted;
pub mod sys;

#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;
