// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step daemon starts as the step's user beside its tasks: TaskEpilog= and `srun --task-epilog`. Slurm calls no plugin for these.
//!
//! They run where the daemon is, in no fence. Slurm ends those that stay in their process group; jobfence ends those that left it, at the
//! end of the step. On cgroup2 with Slurm's own directories the daemon's directory holds only this step; elsewhere all step daemons of the
//! node share one (`slurmd.service`, or the leaf `system` of Slurm's scope).

use std::collections::BTreeSet;
use std::time::Instant;

use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::fence::branches;
use crate::host::Host;
use crate::record::tracked;
use crate::sys::dir::Dir;
use crate::sys::process::{self, Owner, Process};

use super::daemons::is_step_daemon;
use super::placement::{self, is_scope};
use super::row::SLURM;
use super::units;

/// A directory that holds only Slurm's daemons and processes that they started.
#[derive(Debug)]
struct DaemonsDir {
    dir: Dir,
    /// Whether other steps' daemons are there, too.
    is_shared: bool,
}

impl DaemonsDir {
    fn from_membership(host: &Host, daemon: &Membership) -> Option<Self> {
        Self::find(host, daemon, |hierarchy, path| match (placement::of(daemon, hierarchy), hierarchy.version) {
            (None, _) => is_of_daemons(path).then_some(true),
            (Some(_), Version::V1) => Some(true),
            (Some(found), Version::V2) => placement::is_daemons_alone(&found, Version::V2).then_some(false),
        })
    }

    /// A directory of Slurm's without any of the step's tasks: on v2 the daemon's leaf, on v1 the job's directory where Slurm tracks
    /// processes (the freezer).
    fn without_tasks(host: &Host, daemon: &Membership) -> Option<Self> {
        Self::find(host, daemon, |hierarchy, _| {
            let found = placement::of(daemon, hierarchy)?;
            match hierarchy.version {
                Version::V1 => found.step.is_none().then_some(true),
                Version::V2 => placement::is_daemons_alone(&found, Version::V2).then_some(false),
            }
        })
    }

    fn find(host: &Host, daemon: &Membership, is_shared: impl Fn(&Hierarchy, &str) -> Option<bool>) -> Option<Self> {
        host.layout.hierarchies.iter().find_map(|hierarchy| {
            let path = daemon.path_in(hierarchy)?;
            let is_shared = is_shared(hierarchy, path)?;
            let below = hierarchy.below_mount(path)?;
            let dir = hierarchy.open().and_then(|root| root.child(below)).ok()?;
            Some(Self { dir, is_shared })
        })
    }

    fn pids(&self) -> Result<Vec<i32>> {
        pids(&self.dir)
    }
}

fn pids(dir: &Dir) -> Result<Vec<i32>> {
    Ok(dir.read("cgroup.procs")?.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether a path is Slurm's service or scope under systemd, where no other processes can be.
pub fn is_of_daemons(path: &str) -> bool {
    let mut names = path.split('/').skip(1);
    // A user can make directories below user.slice.
    names.clone().next() != Some("user.slice") && names.any(is_unit)
}

fn is_unit(name: &str) -> bool {
    name == "slurmd.service" || is_scope(name)
}

/// The step that this process is the daemon of.
#[derive(Clone, Copy)]
pub struct DaemonsStep<'a> {
    /// The host.
    pub host: &'a Host,
    /// This process.
    pub owner: Owner,
    /// The job's user.
    pub uid: u32,
    /// Returns the daemons of all recorded steps, with their users.
    pub known: &'a dyn Fn() -> Result<Vec<(Owner, u32)>>,
    /// Returns the pids of step daemons, so that these need not be examined. (If such a pid was reused by a process that a daemon left
    /// here, that process is missed; `jobfence hold` finds it.)
    pub daemons: &'a dyn Fn() -> BTreeSet<i32>,
}

impl DaemonsStep<'_> {
    /// At the end of the step, ends what the step left in the daemon's directory. If other steps' daemons share the directory, ends what is
    /// certainly this step's and, with this user's last step, the user's processes that are younger than the daemon. Returns the number of
    /// ended processes. `None`: the directory is not Slurm's own.
    pub fn end(&self, daemon: &Membership, deadline: Instant) -> Result<Option<usize>> {
        if self.uid == 0 {
            return Ok(Some(0));
        }
        DaemonsDir::from_membership(self.host, daemon).map(|place| self.end_in(&place, 0, deadline)).transpose()
    }

    /// Called when all tasks and their TaskEpilogs have ended. On v1 Slurm removes its directories before the end of the step, and fails if
    /// a process is in them. On v2 Slurm 26.05 waits for a process beside the daemon before any other callback, does not kill it, and
    /// drains the node (`cgroup_p_step_get_pids`, `proctrack_p_wait`). Only processes that began `since` (clock ticks since boot) are
    /// ended: those that another plugin started for the step are older than its tasks, and may run until the step's end.
    pub fn end_after_tasks(&self, daemon: &Membership, since: u64, deadline: Instant) -> Result<usize> {
        match DaemonsDir::without_tasks(self.host, daemon).filter(|_| self.uid != 0) {
            Some(place) => self.end_in(&place, since, deadline),
            None => Ok(0),
        }
    }

    fn end_in(&self, place: &DaemonsDir, since: u64, deadline: Instant) -> Result<usize> {
        let proc = &self.host.proc;
        let daemons = if place.is_shared { (self.daemons)() } else { BTreeSet::new() };
        let find = || {
            let mut of_user = Vec::new();
            let is_daemon = |pid: &i32| *pid <= 1 || *pid == self.owner.pid || daemons.contains(pid);
            for pid in place.pids()?.into_iter().filter(|pid| !is_daemon(pid)) {
                // At the end, in an unshared directory: also processes that changed their user (newuidmap).
                let all = !place.is_shared && since == 0;
                let is_its = |uid: u32| if all { uid != 0 } else { uid == self.uid };
                if process::uid(proc, pid).is_some_and(is_its) {
                    of_user.extend(process::of(proc, pid)?.filter(|process| process.id.start >= since));
                }
            }
            if of_user.is_empty() {
                return Ok(Vec::new());
            }
            if place.is_shared {
                let session = process::session_of(proc, self.owner);
                // Ask after the processes were seen: a daemon of any other step had its record before. If a record cannot be read, this
                // step is not known to be the last; what is certainly this step's is ended all the same.
                let all = self.is_last(place).unwrap_or(false);
                of_user.retain(|process| {
                    process.parent == self.owner.pid
                        || session == Some(process.session)
                        // The site's Prolog may have started older processes for the job.
                        || all && process.id.start >= self.owner.start && !self.has_root_above(place, process)
                });
            }
            // A process moved meanwhile to a step that has just begun is no longer here.
            let still = place.pids()?;
            Ok(of_user.iter().map(|process| process.id).filter(|id| still.contains(&id.pid)).collect())
        };
        process::end_all(proc, find, deadline)
    }

    /// Whether a root process in the same directory is an ancestor: another step's daemon, slurmd itself (which starts programs as a user
    /// before the job begins: `--get-user-env`, sbcast), or a script of the site.
    fn has_root_above(&self, place: &DaemonsDir, process: &Process) -> bool {
        let here = place.pids().unwrap_or_default();
        process::any_above(&self.host.proc, process, |above| {
            if above == self.owner.pid || !here.contains(&above) {
                return Some(false);
            }
            (process::uid(&self.host.proc, above) == Some(0)).then_some(true)
        })
    }

    /// Whether this user has no other step on the node: neither a recorded one nor a daemon whose step is unknown.
    fn is_last(&self, place: &DaemonsDir) -> Result<bool> {
        let (proc, known) = (&self.host.proc, (self.known)()?);
        for (other, theirs) in &known {
            if *theirs == self.uid && *other != self.owner && other.is_alive(proc)? {
                return Ok(false);
            }
        }
        for pid in place.pids()?.into_iter().filter(|pid| is_step_daemon(proc, *pid)) {
            let Some(daemon) = Owner::from_pid(proc, pid)? else { continue };
            // `slurmstepd infinity`, which keeps the scope alive, has no step.
            let has_step = || proc.read(&format!("{pid}/cmdline")).is_ok_and(|line| line.contains('['));
            if daemon != self.owner && !known.iter().any(|(other, _)| *other == daemon) && has_step() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Ends what dead step daemons left in Slurm's own directories, found by the mark in the environment. Only for jobfence's own commands, see
/// `record::tracked`. Processes `of_living` are spared: they are known to belong to another step. Returns the number of ended processes.
/// Reasons why not all directories could be examined are added to `unseen`.
pub fn sweep(host: &Host, of_living: &BTreeSet<Owner>, unseen: &mut Vec<Error>, deadline: Instant) -> Result<usize> {
    let find = || {
        let mut found = Vec::new();
        // Only the last round's reasons count.
        unseen.clear();
        let mut pids = in_places(host, unseen);
        process::in_turn(&mut pids, &host.proc);
        for pid in pids.into_iter().filter(|pid| *pid > 1) {
            if process::uid(&host.proc, pid).is_none_or(|uid| uid == 0) {
                continue;
            }
            let Some(process) = process::of(&host.proc, pid)? else { continue };
            // A job that is submitted from a job inherits its environment: a process that has a daemon belongs to that daemon.
            if tracked::is_of(host, of_living, &process)
                || tracked::has_daemon(host, &[&SLURM], &process)
                || tracked::is_fenced(host, pid)
            {
                continue;
            }
            let mark =
                branches::found_or_noted(process::environment(&host.proc, pid, tracked::VARIABLE, deadline), unseen)
                    .flatten();
            let owner = mark.and_then(|mark| tracked::marked(&mark, &host.boot_id));
            if let Some(owner) = owner
                && !owner.is_alive(&host.proc)?
                && !tracked::is_in_a_step(host, &[&SLURM], pid)
            {
                found.push(process.id);
            }
        }
        Ok(found)
    };
    process::end_all(&host.proc, find, deadline)
}

/// The processes in directories that hold Slurm's daemons and no step's tasks.
fn in_places(host: &Host, unseen: &mut Vec<Error>) -> Vec<i32> {
    let mut found = Vec::new();
    for hierarchy in host.layout.hierarchies.iter().filter(|h| h.version == Version::V2 || h.name.is_some()) {
        let mut units = Vec::new();
        if let Some(root) = branches::found_or_noted(hierarchy.open(), unseen) {
            units::find_units(&root, is_unit, units::SLICES, &mut units, unseen);
        }
        for unit in units {
            add_pids(&unit, DEEPEST, &mut found, unseen);
        }
    }
    found
}

/// Below Slurm's unit: the job's directory, the step's, and the daemon's own.
const DEEPEST: u32 = 3;

fn add_pids(dir: &Dir, deeper: u32, found: &mut Vec<i32>, unseen: &mut Vec<Error>) {
    found.extend(branches::found_or_noted(pids(dir), unseen).unwrap_or_default());
    if deeper == 0 {
        return;
    }
    for name in branches::children(dir, |name| name != "user" && !name.starts_with("task_"), unseen) {
        if let Some(dir) = branches::child(dir, &name, unseen) {
            add_pids(&dir, deeper - 1, found, unseen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slurms_own_places_are_its_daemons() {
        for path in [
            "/system.slice/slurmd.service",
            "/system.slice/slurmd.service/slurmd",
            "/system.slice/n1_slurmstepd.scope/system",
            "/slurm.slice/slurmstepd.scope/job_5/step_0/slurm",
        ] {
            assert!(is_of_daemons(path), "{path}");
        }
        for path in [
            "/",
            "/system.slice/sshd.service",
            "/user.slice/user-1.slice/user@1.service/slurmd.service",
            "/jobfence.slice/jobfence.scope/uid_1/job_2/step_0",
            "/slurm_n1/uid_1",
            "",
        ] {
            assert!(!is_of_daemons(path), "{path}");
        }
    }
}
