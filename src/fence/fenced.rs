// SPDX-License-Identifier: GPL-2.0-or-later
//! A fenced step: its directories in each hierarchy, its record and mark, and the state of its limits.

use std::ops::Deref;
use std::time::Duration;

use super::overlay::Overlay;
use super::own::Own;
use crate::cgroup::layout::Hierarchy;
use crate::error::{Error, Result};
use crate::job::{Cpus, JobKey};
use crate::policy::Plan;
use crate::record::{Owner, Record, Records};
use crate::scheduler::Schedulers;
use crate::sys::dir::Dir;

/// How long to wait for another step that is setting limits.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A fenced step.
#[derive(Debug)]
pub struct Fence {
    pub(super) key: JobKey,
    /// In the order in which processes are attached.
    pub(super) trees: Vec<Tree>,
    pub(super) ours: OwnPath,
    pub(super) claim: Claim,
    pub(super) limits: WantedLimits,
    pub(super) around: Around,
    /// Whether the scheduler's directories are marked also in the hierarchies that the fence does not use.
    pub(super) are_others_marked: bool,
    pub(super) closed: bool,
    /// Whether another process closed it.
    pub(super) by_another: bool,
}

/// The names of the step's directories in jobfence's own tree, if it has any there.
#[derive(Debug)]
pub(super) struct OwnPath {
    /// Below the root of every hierarchy.
    pub(super) path: String,
    pub(super) levels: Vec<String>,
    /// How many names the path of their base directory has.
    pub(super) base_levels: usize,
}

/// Tells other processes whose the step is.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) records: Records,
    /// Whether this fence has a record.
    pub(super) is_recorded: bool,
    /// The text of the directories' mark, which is taken from that record.
    pub(super) mark: String,
    /// What the job was granted, as noted on the step's directories; `None` if it is not noted.
    pub(super) allocated: Option<String>,
    pub(super) owner: Owner,
    /// The whole record, if other processes may resume the fence.
    pub(super) shared: Option<Box<Record>>,
}

/// The schedulers in whose directories the step's processes may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    pub(super) schedulers: Schedulers,
    /// Whether the step has a daemon of one of them, so that limits are set in its directories.
    pub(super) has_daemon: bool,
}

/// One step's directories in one hierarchy.
#[derive(Debug)]
pub(super) enum Tree {
    /// jobfence's directories.
    Own(Own),
    /// Directories that the scheduler made for the step.
    Overlay(Overlay),
}

impl Tree {
    pub(super) fn hierarchy(&self) -> &Hierarchy {
        match self {
            Self::Own(own) => &own.hierarchy,
            Self::Overlay(overlay) => &overlay.hierarchy,
        }
    }

    /// The directory that holds the step's processes.
    pub(super) fn step(&self) -> Result<OpenDir<'_>> {
        match self {
            Self::Own(own) => own.step().map(OpenDir::Kept).ok_or_else(|| not_made("step", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.step().map(OpenDir::Opened),
        }
    }

    pub(super) fn job(&self) -> Result<OpenDir<'_>> {
        match self {
            Self::Own(own) => own.job().map(OpenDir::Kept).ok_or_else(|| not_made("job", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.job().map(OpenDir::Opened),
        }
    }

    /// The directory of all the user's jobs. `None`: the scheduler has none, as on cgroup2.
    pub(super) fn user(&self) -> Option<Result<OpenDir<'_>>> {
        match self {
            Self::Own(own) => Some(own.user().map(OpenDir::Kept).ok_or_else(|| not_made("user", &own.hierarchy))),
            Self::Overlay(overlay) => Some(overlay.user()?.map(OpenDir::Opened)),
        }
    }

    pub(super) fn own(&self) -> Option<&Own> {
        match self {
            Self::Own(own) => Some(own),
            Self::Overlay(_) => None,
        }
    }
}

pub(super) fn not_made(what: &'static str, hierarchy: &Hierarchy) -> Error {
    Error::new(format!("the {what} has no directory in")).at(&hierarchy.mount)
}

/// A directory that is kept open, or that was opened for a moment.
pub(super) enum OpenDir<'a> {
    Kept(&'a Dir),
    Opened(Dir),
}

impl Deref for OpenDir<'_> {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        match self {
            Self::Kept(dir) => dir,
            Self::Opened(dir) => dir,
        }
    }
}

/// The limits that a step is to have, and how far they are set.
#[derive(Debug)]
pub(super) struct WantedLimits {
    pub(super) controllers: Vec<&'static str>,
    /// Controllers that limit nothing and only count what is used.
    pub(super) counted: Vec<&'static str>,
    /// Controllers that limits need and that are not available, each with the reason.
    pub(super) missing: Vec<(&'static str, Error)>,
    /// Why a CPU quota would not hold, although the kernel shows it.
    pub(super) quota_ignored: Option<Error>,
    /// Whether the step gets the least I/O weight: a scavenger does where I/O weights have an effect.
    pub(super) lowest_io: bool,
    /// CPUs for the scheduler's daemons, on top of the grant, in its own directories.
    pub(super) headroom: Cpus,
    /// The limits to set; kept for directories that are known only when a task is in them.
    pub(super) plan: Option<Plan>,
    /// Whether the cpuset that the scheduler set has been checked.
    pub(super) are_cores_checked: bool,
    /// Whether swap in the scheduler's directories has been decided on.
    pub(super) is_swap_decided: bool,
    /// Whether limiting the step's devices has failed.
    pub(super) without_devices: bool,
    /// Whether the administrator changes the job's limits, which may then also be raised.
    pub(super) is_change: bool,
}

impl WantedLimits {
    /// No limits. It is for a fence that is known only by its directories.
    pub(super) fn nothing() -> Self {
        Self {
            controllers: Vec::new(),
            counted: Vec::new(),
            missing: Vec::new(),
            quota_ignored: None,
            lowest_io: false,
            headroom: Cpus::whole(0),
            plan: None,
            are_cores_checked: false,
            is_swap_decided: false,
            without_devices: false,
            is_change: false,
        }
    }

    /// The plan, if `task` is a task and the plan limits tasks.
    pub(super) fn plan_of_task(&self, task: Option<u32>) -> Option<&Plan> {
        self.plan.as_ref().filter(|plan| task.is_some() && !plan.task.is_empty())
    }
}

impl Fence {
    /// The process that owns it.
    pub fn owner(&self) -> Owner {
        self.claim.owner
    }

    /// The directories by which the step's record is named, outermost first.
    pub fn levels(&self) -> &[String] {
        &self.ours.levels
    }

    /// Whose step this is.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The path of the directory that holds the step's processes, as `/proc/PID/cgroup` shows it if the hierarchy's root is mounted:
    /// jobfence's if there is one, else the scheduler's. `None`: it is not known before a task is in it.
    pub fn path(&self) -> Option<String> {
        if self.trees.iter().any(|tree| tree.own().is_some()) {
            return Some(self.ours.path.clone());
        }
        self.trees.iter().find_map(|tree| match tree {
            Tree::Own(_) => None,
            Tree::Overlay(overlay) => overlay.path(),
        })
    }

    /// In words, where the step is in each hierarchy; for the log.
    pub fn placement(&self) -> String {
        let place = |tree: &Tree| {
            let hierarchy = tree.hierarchy();
            match tree {
                Tree::Own(_) => format!("own in {hierarchy}"),
                Tree::Overlay(overlay) => match overlay.path() {
                    Some(path) => format!("overlay in {hierarchy}: {path}"),
                    None => format!("overlay in {hierarchy}"),
                },
            }
        };
        self.trees.iter().map(place).collect::<Vec<_>>().join("; ")
    }

    /// Whether the step is in the scheduler's directories in any hierarchy.
    pub fn has_overlay(&self) -> bool {
        self.trees.iter().any(|tree| tree.own().is_none())
    }
}
