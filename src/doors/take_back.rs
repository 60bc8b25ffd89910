// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts processes that pam_systemd moved out of a job back into it: a session that begins within the job (su, or the sshd that Grid Engine
//! starts for qrsh), and processes that `jobfence hold` finds later.
//!
//! Only the kernel says where a process came from: by the process's own cgroups before pam_systemd, which PAM kept, or by the cgroups of
//! its ancestors.

use std::fmt;

use super::adoptee::Adoptee;
use crate::cgroup::layout::Hierarchy;
use crate::cgroup::membership::Membership;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fence;
use crate::host::Host;
use crate::record::Owner;
use crate::scheduler;
use crate::schedulers::{ALL, jobs_step};
use crate::sys::dir::Dir;
use crate::sys::process;

/// A process that is in its job again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBack {
    /// The process.
    pub pid: i32,
    /// Its directory.
    pub path: String,
}

impl fmt::Display for TakenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} is back in its job, in {}", self.pid, self.path)
    }
}

/// Puts a session back into the job that it came from, if it came from one.
pub(crate) fn session(
    host: &Host,
    config: &Config,
    process: &Adoptee,
    (began, now): (Option<&Membership>, &Membership),
) -> Result<Option<TakenBack>> {
    let places = Places::new(host, config)?;
    let from = match began.filter(|began| places.holds(began)) {
        Some(began) => Some(began.clone()),
        None if places.holds(now) => None,
        None => places.of_an_ancestor(process.this)?,
    };
    from.map(|from| places.put_back(process, (now, &from))).transpose()
}

/// Puts back users' processes that a job started and pam_systemd moved out to user.slice.
///
/// Each descends from a live process within the job. For any other process only its user knows where it came from.
pub fn fetch_back(host: &Host, config: &Config) -> Result<Vec<Result<TakenBack>>> {
    let places = Places::new(host, config)?;
    let mut done = Vec::new();
    // In the order of pids, parents mostly come first. Their new children are born where the parents are then.
    for found in process::all(&host.proc)? {
        let one = || {
            let now = Membership::read(&host.proc, found.id.pid)?;
            if !places.is_a_login(&now) || places.holds(&now) {
                return Ok(None);
            }
            let Some(from) = places.of_an_ancestor(found.id)? else { return Ok(None) };
            let process = Adoptee::open(&host.proc, found.id.pid)?;
            // What root does in a session of its own, it may do anywhere.
            if process.this != found.id || process.uid == 0 {
                return Ok(None);
            }
            places.put_back(&process, (&now, &from)).map(Some)
        };
        match one() {
            Ok(None) => {}
            Err(_) if !found.id.is_alive(&host.proc).unwrap_or(true) => {}
            Ok(Some(outcome)) => done.push(Ok(outcome)),
            Err(error) => done.push(Err(error)),
        }
    }
    Ok(done)
}

/// The places in which processes of jobs are.
pub(crate) struct Places<'a> {
    host: &'a Host,
    used: Vec<&'a Hierarchy>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(host: &'a Host, config: &Config) -> Result<Self> {
        Ok(Self { host, used: host.hierarchies(&fence::controllers(config))? })
    }

    fn holds_in(&self, hierarchy: &Hierarchy, place: &Membership) -> bool {
        place.path_in(hierarchy).is_some_and(|path| step_of(hierarchy, &self.host.base, path).is_some())
            || scheduler::placement(ALL, place, hierarchy).is_some()
    }

    pub(crate) fn holds(&self, place: &Membership) -> bool {
        self.used.iter().any(|hierarchy| self.holds_in(hierarchy, place))
    }

    /// Whether the process belongs to logind, in any hierarchy.
    fn is_a_login(&self, place: &Membership) -> bool {
        let has = |path: &str| path.split('/').any(|name| name == "user.slice");
        self.host.layout.hierarchies.iter().any(|hierarchy| place.path_in(hierarchy).is_some_and(has))
    }

    /// Where the nearest ancestor of this process is that is in a job.
    fn of_an_ancestor(&self, id: Owner) -> Result<Option<Membership>> {
        const LONGEST: usize = 4096;
        let proc = &self.host.proc;
        let mut below = process::of(proc, id.pid)?.filter(|found| found.id == id);
        for _ in 0..LONGEST {
            let Some(this) = below.filter(|this| this.parent > 1) else { return Ok(None) };
            let parent = process::of(proc, this.parent)?;
            let place = parent.and_then(|parent| Membership::read(proc, parent.id.pid).ok());
            // While a process names it as its parent, the pid is the parent's.
            below = process::of(proc, this.id.pid)?;
            if below != Some(this) {
                below = below.filter(|below| below.id == this.id);
                continue;
            }
            if let Some(place) = place.filter(|place| self.holds(place)) {
                return Ok(Some(place));
            }
            below = parent;
        }
        Err(Error::new("more processes than are believed stand between it and init:").value(id.pid))
    }

    /// Moves the process to the place `from`, in the hierarchies in which that is a job's.
    fn put_back(&self, process: &Adoptee, (now, from): (&Membership, &Membership)) -> Result<TakenBack> {
        let (host, pid) = (self.host, process.this.pid);
        let mut wanted = Vec::new();
        for hierarchy in self.used.iter().filter(|hierarchy| self.holds_in(hierarchy, from)) {
            let path = from.path_in(hierarchy).unwrap_or_default();
            let (dir, path) = of_the_job(hierarchy, path)?;
            if now.path_in(hierarchy) != Some(path.as_str()) {
                // The kernel accepts only a pid, so check as late as possible that it is still this process.
                if !process.is_alive(&host.proc) {
                    return Err(Error::new("the process has ended:").value(pid));
                }
                let moved = dir.write("cgroup.procs", &pid.to_string());
                if !process.is_alive(&host.proc) {
                    return Err(fence::put_back_stranger(host, process.uid, process.this));
                }
                moved?;
            }
            wanted.push((hierarchy, path));
        }
        let after = Membership::read(&host.proc, pid)?;
        for (hierarchy, path) in &wanted {
            if after.path_in(hierarchy) != Some(path.as_str()) {
                return Err(Error::new(format!("process {pid} was put back, but the kernel shows it elsewhere in"))
                    .at(&hierarchy.mount)
                    .value(after.path_in(hierarchy).unwrap_or("nowhere")));
            }
        }
        let path = wanted.pop().map(|(_, path)| path).unwrap_or_default();
        Ok(TakenBack { pid, path })
    }
}

/// A directory within a job. For the directory of a scheduler's daemon, that of the programs that the daemon runs: the daemon's own is spared
/// when the job runs out of memory and is killed.
fn of_the_job(hierarchy: &Hierarchy, path: &str) -> Result<(Dir, String)> {
    let job = path.rsplit_once('/').and_then(|(job, step)| Some(format!("{job}/{}", jobs_step(step)?)));
    if let Some(job) = job
        && let Ok(dir) = hierarchy.dir_of(&job)
    {
        return Ok((dir, job));
    }
    Ok((hierarchy.dir_of(path)?, path.to_owned()))
}

/// The path of jobfence's step that contains a process with this path.
pub(crate) fn step_of(hierarchy: &Hierarchy, base: &str, path: &str) -> Option<String> {
    let inside = path.strip_prefix(hierarchy.root.trim_end_matches('/'))?;
    let names: Vec<&str> = inside.strip_prefix('/')?.strip_prefix(base)?.strip_prefix('/')?.split('/').collect();
    let depth = names.iter().position(|name| name.starts_with("step_"))?;
    let step = names.get(..=depth).filter(|levels| (3..=5).contains(&levels.len()))?;
    Some(format!("/{base}/{}", step.join("/")))
}
