// SPDX-License-Identifier: GPL-2.0-or-later
//! Everything specific to Slurm: its plugin interface, its configuration, and its names of directories and cores.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, JobKey};
use crate::policy::Level;
use crate::scheduler::{IsWanted, LeftBehind, Placement, PresentJob, Scheduler, Titled};
use crate::sys::dir::Dir;
use crate::sys::process::Owner;

pub mod adopt;
pub mod card;
pub mod conf;
pub mod cores;
pub mod daemon_children;
pub mod daemons;
pub mod gres;
pub mod leftovers;
pub mod pam;
pub mod placement;
pub mod plugins;
pub mod plugstack;
pub mod prolog;
mod row;
pub mod spank;
pub mod unenforceable;
pub mod units;

pub use row::{SLURM, SlurmScheduler};

/// The holder of the fence of a Slurm step, as the usage log names it.
pub const HOLDER: &str = "scheduler Slurm";

impl Scheduler for SlurmScheduler {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn names_jobs_so(&self, job: &Id) -> bool {
        job.as_str().parse::<u32>().is_ok()
    }

    fn placement(&self, member: &Membership, hierarchy: &Hierarchy) -> Option<Placement> {
        placement::of(member, hierarchy)
    }

    fn is_step_of(&self, placement: &Placement, key: &JobKey, version: Version) -> bool {
        placement::is_named(placement, key, version)
    }

    fn would_make(&self, version: Version, key: &JobKey, level: Level) -> Option<String> {
        placement::would_make(version, key, level)
    }

    fn each_present(
        &self,
        hierarchy: &Hierarchy,
        root: &Dir,
        each: &mut dyn FnMut(PresentJob),
        unseen: &mut Vec<Error>,
    ) {
        placement::each_present(hierarchy, root, each, unseen);
    }

    fn is_daemon(&self, proc: &Dir, pid: i32) -> bool {
        daemons::is_step_daemon(proc, pid)
    }

    fn daemons(&self, proc: &Dir) -> Result<Vec<Titled>> {
        daemons::all(proc)
    }

    fn serves(&self, proc: &Dir, job: &str, step: &str) -> Result<bool> {
        Ok(daemons::is_among(&daemons::all(proc)?, job, step, |_| false))
    }

    fn left(&self, host: &Host, near: Option<&Membership>, is_wanted: IsWanted<'_>) -> LeftBehind {
        leftovers::find(host, near, is_wanted)
    }

    fn left_at(&self, host: &Host, path: &Path, is_wanted: IsWanted<'_>, found: &mut LeftBehind) {
        leftovers::find_at(host, path, is_wanted, found);
    }

    fn end_beside_daemons(
        &self,
        host: &Host,
        of_living: &BTreeSet<Owner>,
        unseen: &mut Vec<Error>,
        deadline: Instant,
    ) -> Result<usize> {
        daemon_children::sweep(host, of_living, unseen, deadline)
    }

    fn node_daemon(&self) -> &'static str {
        "slurmd"
    }

    fn without_devices(&self) -> &'static str {
        "ConstrainDevices=no either in cgroup.conf"
    }

    fn without_cgroups(&self) -> &'static str {
        "ProctrackType=proctrack/linuxproc, no task/cgroup"
    }
}
