// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's own directories of a step, where its cgroup plugins track the processes: nothing is made in them, nobody is moved
//! out of them, and Slurm removes them.
//!
//! v2: `JOB/step_S/user/task_N` holds the processes, and `JOB/step_S/slurm` the step daemon; what is meant for the user's
//! processes is written to `user`. v1: `JOB/step_S[/task_N]`; in the cpu hierarchy the step daemon is not in it, in the memory
//! hierarchy Slurm puts it into the step's directory.

use std::time::Instant;

use crate::cgroup::dir::Dir;
use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota};
use crate::cgroup::place::SlurmsOwn;
use crate::cgroup::usage::Usage;
use crate::error::{Error, Result};
use crate::host;

/// One step in one hierarchy that Slurm uses.
///
/// Directories are opened when they are needed and not kept: with `contain_spank` a task is attached in a process that shares
/// our memory and not our descriptors, so one opened there would be another file's here.
#[derive(Debug)]
pub struct Overlay {
    /// The hierarchy.
    pub hierarchy: Hierarchy,
    /// A directory that was opened before the first task, and how many levels it is below the mount point.
    anchor: (Dir, usize),
    /// Where the step is; `None` until a process of it has been seen.
    place: Option<Place>,
    /// What was used when it could last be seen: Slurm may remove its directories before the exit callback.
    seen: Usage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    job: String,
    step: String,
}

impl Overlay {
    /// `anchor` is a directory in the hierarchy, so many levels below its mount point.
    pub fn new(hierarchy: Hierarchy, anchor: Dir, levels: usize) -> Self {
        Self { hierarchy, anchor: (anchor, levels), place: None, seen: Usage::default() }
    }

    /// Whether the step's directory is known.
    pub fn is_located(&self) -> bool {
        self.place.is_some()
    }

    /// As the free function, for this step.
    pub fn check_owner(&self, found: &SlurmsOwn) -> Result<()> {
        check_owner(&self.hierarchy, &self.anchor.0, self.anchor.1, found)
    }

    /// Takes down where a process of the step was seen, unless that is known. `false`: it leads to no step.
    pub fn locate(&mut self, found: &SlurmsOwn) -> bool {
        if self.place.is_none() {
            let place = |step: &String| Place { job: found.job.clone(), step: step.clone() };
            self.place = found.step.as_ref().map(place);
        }
        self.place.is_some()
    }

    /// Whether a process with this path is one of the step's.
    pub fn holds(&self, path: &str) -> bool {
        let rest = |step: &str| path.strip_prefix(step).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.place.as_ref().is_some_and(|place| rest(&place.step))
    }

    /// The quota that the batch step was given: the job's own, without headroom.
    pub fn batch_quota(&self) -> Option<CpuQuota> {
        let name = match self.hierarchy.version {
            Version::V2 => "step_batch/user",
            Version::V1 => "step_batch",
        };
        limits::cpu_quota(&self.job().ok()?.child(name).ok()?, self.hierarchy.version).ok().flatten()
    }

    /// The job's path, as `/proc/PID/cgroup` shows it.
    pub fn job_path(&self) -> Option<&str> {
        self.place.as_ref().map(|place| place.job.as_str())
    }

    /// The path of the directory that holds the user's processes of the step, and none of Slurm's.
    pub fn path(&self) -> Option<String> {
        let place = self.place.as_ref()?;
        Some(match self.hierarchy.version {
            Version::V2 => format!("{}/user", place.step),
            Version::V1 => place.step.clone(),
        })
    }

    /// Opens the job's directory.
    pub fn job(&self) -> Result<Dir> {
        self.open(self.job_path())
    }

    /// Opens the directory that holds the user's processes of the step.
    pub fn step(&self) -> Result<Dir> {
        self.open(self.path().as_deref())
    }

    /// Has the controllers enabled on the way down to the step, where Slurm did not. None of these directories holds a
    /// process, and its rmdir does not mind.
    pub fn enable(&self, wanted: &[&'static str], step: &Dir) -> Result<()> {
        // cpu.max, memory.max
        let is_on = |controller: &&str| step.has(&format!("{controller}.max"));
        let Some(place) = &self.place else { return Ok(()) };
        if self.hierarchy.version == Version::V1 || wanted.iter().filter(|c| self.hierarchy.has(c)).all(is_on) {
            return Ok(());
        }
        let scope = place.job.rsplit_once('/').map_or("/", |(scope, _)| scope);
        for path in [scope, &place.job, &place.step] {
            host::enable(&self.open(Some(path))?, &self.hierarchy, wanted, false)?;
        }
        Ok(())
    }

    /// Keeps what the step has used so far, as far as it can still be read.
    pub fn take_usage(&mut self) {
        if let Ok(step) = self.step() {
            let mut usage = Usage::default();
            usage.add(&self.hierarchy, &step);
            self.seen = usage;
        }
    }

    /// What the step has used, when it could last be read.
    pub fn usage(&self) -> Usage {
        self.seen
    }

    /// Kills whoever is left, when the scheduler has done with the step: with proctrack/linuxproc it does not find those that
    /// have a session of their own. The directories are its to remove.
    pub fn end(&self, deadline: Instant) -> Result<()> {
        let Ok(step) = self.step() else { return Ok(()) };
        let unified = (self.hierarchy.version == Version::V2).then_some(&step);
        kill::kill_all(Members { unified, freezer: None, any: &step }, deadline)
    }

    fn open(&self, path: Option<&str>) -> Result<Dir> {
        let unknown = || Error::new("Slurm's directory of the step is not known in").at(&self.hierarchy.mount);
        open_below(&self.hierarchy, &self.anchor.0, self.anchor.1, path.ok_or_else(unknown)?)
    }
}

/// Refuses directories that are not root's: somebody could have made them like Slurm's, where he may make some, and have the
/// task moved there. (Slurm 22.05 gives those of steps and tasks to the user on v1, and on v2 those of tasks.)
pub fn check_owner(hierarchy: &Hierarchy, anchor: &Dir, levels: usize, found: &SlurmsOwn) -> Result<()> {
    let step = found.step.as_deref().filter(|_| hierarchy.version == Version::V2);
    for path in std::iter::once(found.job.as_str()).chain(step) {
        let dir = open_below(hierarchy, anchor, levels, path)?;
        if dir.stat()?.st_uid != nix::unistd::geteuid().as_raw() {
            return Err(Error::new("the directory has a name as Slurm gives it, but is not root's:").at(dir.path()));
        }
    }
    Ok(())
}

/// Opens a directory by its path as `/proc/PID/cgroup` shows it, from one that is so many levels below the mount point.
fn open_below(hierarchy: &Hierarchy, anchor: &Dir, levels: usize, path: &str) -> Result<Dir> {
    let outside = || Error::new("the cgroup is not below what is mounted at").at(&hierarchy.mount).value(path);
    let below = hierarchy.below_mount(path).ok_or_else(outside)?;
    let dir = anchor.child(&format!("{}{below}", "../".repeat(levels)))?;
    Ok(dir.named(hierarchy.mount.join(below)))
}
