// SPDX-License-Identifier: GPL-2.0-or-later
//! What a fenced step is: its directories in each hierarchy, by whom it is known, and what of its limits is done.

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

/// How long another step may keep us from setting limits.
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
    /// Whether the scheduler's directories in hierarchies that are not used have been looked at.
    pub(super) are_others_marked: bool,
    pub(super) closed: bool,
    /// Whether another process had done so.
    pub(super) by_another: bool,
}

/// How the step's directories of ours are called, where it has some.
#[derive(Debug)]
pub(super) struct OwnPath {
    /// Below the root of every hierarchy.
    pub(super) path: String,
    pub(super) levels: Vec<String>,
    /// The directory below which they are, in names.
    pub(super) base_levels: usize,
}

/// By which others know whose the step is.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) records: Records,
    /// Whether there is a record of ours.
    pub(super) is_recorded: bool,
    /// The text of that record, with which directories are marked.
    pub(super) mark: String,
    /// What its directories say that the job was granted, if anybody is to read it.
    pub(super) allocated: Option<String>,
    pub(super) owner: Owner,
    /// The whole record, where other processes go on with the fence.
    pub(super) shared: Option<Box<Record>>,
}

/// Whose directories the step's processes may be in beside ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    pub(super) schedulers: Schedulers,
    /// Whether one of them is the step's, so that limits are set in its directories.
    pub(super) has_daemon: bool,
}

/// One step in one hierarchy: the two placements.
#[derive(Debug)]
pub(super) enum Tree {
    /// In directories of ours.
    Own(Own),
    /// In directories that the scheduler made for it.
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

    /// The directory of all the user's jobs. `None`: the scheduler has none, on cgroup2.
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

/// What a step is to be limited in, and what of it is done.
#[derive(Debug)]
pub(super) struct WantedLimits {
    pub(super) controllers: Vec<&'static str>,
    /// Controllers by which nothing is limited, and which count what is used.
    pub(super) counted: Vec<&'static str>,
    /// Controllers that limits were to be written to, and that are nowhere.
    pub(super) missing: Vec<(&'static str, Error)>,
    /// Why a CPU quota would not hold, whatever the kernel shows.
    pub(super) quota_ignored: Option<Error>,
    /// Whether it gets the least I/O weight, as a scavenger does where weights have an effect.
    pub(super) lowest_io: bool,
    /// For the scheduler's daemons, in its own directories.
    pub(super) headroom: Cpus,
    /// What was to be limited; for directories that are known only when a task is in them.
    pub(super) plan: Option<Plan>,
    /// Whether the CPUs that the scheduler gave were looked at.
    pub(super) are_cores_checked: bool,
    /// Whether it was looked whose affair swap is in the scheduler's directories.
    pub(super) is_swap_decided: bool,
    /// Whether the devices that the step may use were to be limited, and could not be.
    pub(super) without_devices: bool,
    /// Whether the administrator changes what the job has: then it may have more than before, too.
    pub(super) is_change: bool,
}

impl WantedLimits {
    /// Nothing that needs a plan; for a fence of which only the directories are known.
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

    /// What is planned, if it has limits of each task, and this is one.
    pub(super) fn plan_of_task(&self, task: Option<u32>) -> Option<&Plan> {
        self.plan.as_ref().filter(|plan| task.is_some() && !plan.task.is_empty())
    }
}

impl Fence {
    /// The process that owns it.
    pub fn owner(&self) -> Owner {
        self.claim.owner
    }

    /// Whose step this is.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The path of the directory that holds the step's processes, as `/proc/PID/cgroup` shows it where the hierarchy's root is
    /// mounted: ours, where one is; otherwise the scheduler's. `None`: it is not known before a task is in it.
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

    /// Whether any hierarchy is the scheduler's.
    pub fn has_overlay(&self) -> bool {
        self.trees.iter().any(|tree| tree.own().is_none())
    }
}
