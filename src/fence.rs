// SPDX-License-Identifier: GPL-2.0-or-later
//! The one life cycle of a fence: open, limit, attach, settle, observe, close; a file for each.
//!
//! It knows no scheduler but as somebody who has directories and words of its own. Every operation may be repeated, and the last step
//! out takes the job's and the user's directories along; nothing is locked for that: making a directory starts again when a parent
//! has vanished, and removing one that is in use fails without harm.

use std::ops::Deref;
use std::time::Duration;

use crate::cgroup::layout::Hierarchy;
use crate::config::Limit;
use crate::error::{Error, Result};
use crate::job::JobKey;
use crate::record::{Owner, Records};
use crate::scheduler::Schedulers;
use crate::sys::dir::Dir;

mod attach;
mod close;
pub mod explain;
mod limit;
pub mod limiting;
mod marks;
mod observe;
pub mod open;
mod overlay;
pub mod own;
pub mod present;
mod settle;

use limit::Wanted;
pub use observe::MemoryLevel;
pub use open::{Freed, Opening, controllers};
use overlay::Overlay;
use own::Own;
pub use own::{marked_by_another, open_existing, remove_if_empty, unrecorded};

/// Below our own directory: the branch of those who run only when nobody else wants to.
const IDLE: &str = "idle";

/// How long another step may keep us from setting limits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a launch may be held up by what others left.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(200);

/// A fenced step.
#[derive(Debug)]
pub struct Fence {
    key: JobKey,
    /// In the order in which processes are attached.
    trees: Vec<Tree>,
    ours: Ours,
    claim: Claim,
    limits: Wanted,
    around: Around,
    /// Whether the scheduler's directories in hierarchies that are not used have been looked at.
    are_others_marked: bool,
    closed: bool,
}

/// How the step's directories of ours are called, where it has some.
#[derive(Debug)]
struct Ours {
    /// Below the root of every hierarchy.
    path: String,
    levels: Vec<String>,
    /// The directory below which they are, in names.
    base_levels: usize,
}

/// By which others know whose the step is.
#[derive(Debug)]
struct Claim {
    records: Records,
    /// Whether there is a record of ours.
    is_recorded: bool,
    /// The text of that record, with which directories are marked.
    mark: String,
    owner: Owner,
}

/// Whose directories the step's processes may be in beside ours.
#[derive(Debug, Clone, Copy)]
struct Around {
    schedulers: Schedulers,
    /// Whether one of them is the step's, so that limits are set in its directories.
    has_daemon: bool,
}

/// One step in one hierarchy: the two placements.
#[derive(Debug)]
enum Tree {
    /// In directories of ours.
    Own(Own),
    /// In directories that the scheduler made for it.
    Overlay(Overlay),
}

impl Tree {
    fn hierarchy(&self) -> &Hierarchy {
        match self {
            Self::Own(own) => &own.hierarchy,
            Self::Overlay(overlay) => &overlay.hierarchy,
        }
    }

    /// The directory that holds the step's processes.
    fn step(&self) -> Result<OpenDir<'_>> {
        match self {
            Self::Own(own) => own.step().map(OpenDir::Kept).ok_or_else(|| not_made("step", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.step().map(OpenDir::Opened),
        }
    }

    fn job(&self) -> Result<OpenDir<'_>> {
        match self {
            Self::Own(own) => own.job().map(OpenDir::Kept).ok_or_else(|| not_made("job", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.job().map(OpenDir::Opened),
        }
    }

    /// The directory of all the user's jobs. `None`: the scheduler has none, on cgroup2.
    fn user(&self) -> Option<Result<OpenDir<'_>>> {
        match self {
            Self::Own(own) => Some(own.user().map(OpenDir::Kept).ok_or_else(|| not_made("user", &own.hierarchy))),
            Self::Overlay(overlay) => Some(overlay.user()?.map(OpenDir::Opened)),
        }
    }

    fn own(&self) -> Option<&Own> {
        match self {
            Self::Own(own) => Some(own),
            Self::Overlay(_) => None,
        }
    }
}

fn not_made(what: &'static str, hierarchy: &Hierarchy) -> Error {
    Error::new(format!("the {what} has no directory in")).at(&hierarchy.mount)
}

/// A directory that is kept open, or that was opened for a moment.
enum OpenDir<'a> {
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

/// A limit that could not be set, and why.
pub type LimitError = (Limit, Error);

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

/// The path below a hierarchy's root as processes see it where another cgroup than the root is mounted (containers).
fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}
