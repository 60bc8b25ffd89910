// SPDX-License-Identifier: GPL-2.0-or-later
//! What the other modules ask of a scheduler: where it keeps a step's processes, what its dead step daemons left behind, and its terms.
//!
//! Modules below this one do not know which schedulers exist: the caller passes a list. `schedulers` holds the full list, one row for each.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::cgroup::usage::Used;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, JobKey};
use crate::policy::Level;
use crate::sys::dir::Dir;
use crate::sys::process::Owner;

/// The schedulers that may have directories or daemons on this host.
pub type Schedulers = &'static [&'static dyn Scheduler];

/// One scheduler. A scheduler without cgroups of its own implements the smaller `WithoutCgroups`.
pub trait Scheduler: Sync {
    /// The name in messages.
    fn name(&self) -> &'static str;

    /// Where the scheduler keeps a process in this hierarchy. `None`: not in a directory that the scheduler made for a job.
    fn placement(&self, member: &Membership, hierarchy: &Hierarchy) -> Option<Placement>;

    /// Whether such directories belong to this step, as far as their names tell.
    fn is_step_of(&self, placement: &Placement, key: &JobKey, version: Version) -> bool;

    /// The directory that the scheduler would make for a step that does not exist, as text for people: relative to the mount point, with
    /// `*` for what is not known. `None`: the scheduler makes none at this level.
    fn would_make(&self, version: Version, key: &JobKey, level: Level) -> Option<String>;

    /// The directories of all jobs that exist now in a hierarchy with this root. `each` receives one at a time: there may be more of them
    /// than descriptors that this process may open. Reasons why more may exist are added to `unseen`.
    fn each_present(
        &self,
        hierarchy: &Hierarchy,
        root: &Dir,
        each: &mut dyn FnMut(PresentJob),
        unseen: &mut Vec<Error>,
    );

    /// Whether this process is one of the scheduler's step daemons.
    fn is_daemon(&self, proc: &Dir, pid: i32) -> bool;

    /// The scheduler's live step daemons on this host, each with the title that it set for itself.
    fn daemons(&self, proc: &Dir) -> Result<Vec<Titled>>;

    /// Whether a step daemon of exactly this step is alive.
    fn serves(&self, proc: &Dir, job: &str, step: &str) -> Result<bool>;

    /// Finds the scheduler's own directories that bear jobfence's mark: those of the same daemons as the process at `near`, or all.
    fn left(&self, host: &Host, near: Option<&Membership>, is_wanted: IsWanted<'_>) -> LeftBehind;

    /// The same for the step directory that has, or had, this path: the directory itself, or what is around it if it is gone.
    fn left_at(&self, host: &Host, path: &Path, is_wanted: IsWanted<'_>, found: &mut LeftBehind);

    /// Ends what dead step daemons left beside live ones, outside every step's directory, and returns the number of processes. Processes
    /// `of_living` are spared: they are known to belong to another step. Reasons why not all could be examined are added to `unseen`.
    fn end_beside_daemons(
        &self,
        host: &Host,
        of_living: &BTreeSet<Owner>,
        unseen: &mut Vec<Error>,
        deadline: Instant,
    ) -> Result<usize>;

    /// Whether the scheduler's step daemons give jobs names of this form.
    fn names_jobs_so(&self, _job: &Id) -> bool {
        false
    }

    /// Whether this run of a job is still its, where it holds fences. This is asked in a process of the scheduler's, too: no program is started for it, and nobody is waited for.
    fn runs(&self, _job: &Id, _run: u32, _age: Age<'_>) -> Runs {
        Runs::Unknown
    }

    /// The daemon that starts step daemons on a node.
    fn node_daemon(&self) -> &'static str;

    /// Which setting, and in which file, keeps the scheduler from denying devices itself.
    fn without_devices(&self) -> &'static str;

    /// Which setting keeps the scheduler from having cgroups itself.
    fn without_cgroups(&self) -> &'static str;
}

/// A scheduler that has neither directories for jobs nor step daemons. The rest of `Scheduler` follows from these two methods.
pub trait WithoutCgroups: Sync {
    /// As messages call it.
    fn name(&self) -> &'static str;

    /// As in `Scheduler`.
    fn runs(&self, job: &Id, run: u32, age: Age<'_>) -> Runs;
}

impl<T: WithoutCgroups> Scheduler for T {
    fn name(&self) -> &'static str {
        WithoutCgroups::name(self)
    }

    fn runs(&self, job: &Id, run: u32, age: Age<'_>) -> Runs {
        WithoutCgroups::runs(self, job, run, age)
    }

    fn placement(&self, _: &Membership, _: &Hierarchy) -> Option<Placement> {
        None
    }

    fn is_step_of(&self, _: &Placement, _: &JobKey, _: Version) -> bool {
        false
    }

    fn would_make(&self, _: Version, _: &JobKey, _: Level) -> Option<String> {
        None
    }

    fn each_present(&self, _: &Hierarchy, _: &Dir, _: &mut dyn FnMut(PresentJob), _: &mut Vec<Error>) {}

    fn is_daemon(&self, _: &Dir, _: i32) -> bool {
        false
    }

    fn daemons(&self, _: &Dir) -> Result<Vec<Titled>> {
        Ok(Vec::new())
    }

    fn serves(&self, _: &Dir, _: &str, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn left(&self, _: &Host, _: Option<&Membership>, _: IsWanted<'_>) -> LeftBehind {
        LeftBehind::default()
    }

    fn left_at(&self, _: &Host, _: &Path, _: IsWanted<'_>, _: &mut LeftBehind) {}

    fn end_beside_daemons(&self, _: &Host, _: &BTreeSet<Owner>, _: &mut Vec<Error>, _: Instant) -> Result<usize> {
        Ok(0)
    }

    // These words are for messages about the scheduler's own directories; it has none.

    fn node_daemon(&self) -> &'static str {
        ""
    }

    fn without_devices(&self) -> &'static str {
        ""
    }

    fn without_cgroups(&self) -> &'static str {
        ""
    }
}

/// How long ago a fence was last changed; nothing where it is to be made now. Longer than anybody waits where that was a while ago and nothing is
/// in it: should a process come yet, it is made again.
pub type Age<'a> = &'a dyn Fn() -> Duration;

/// What a holder says about a job, or what others say about the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The job has not ended.
    Yes,
    /// The job has ended, or is not known.
    No,
    /// There was no answer, or not a clear one.
    Unknown,
}

/// A process and its title.
pub type Titled = (Owner, String);

/// Whether the object that bears a mark with this text is wanted. `None`: the text is not understood, and the object stays.
pub type IsWanted<'a> = &'a dyn Fn(&str) -> Result<Option<bool>>;

/// Where a scheduler keeps a process in one hierarchy, by paths as `/proc/PID/cgroup` shows them.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The scheduler that owns the directories.
    pub scheduler: &'static dyn Scheduler,
    /// The job's directory.
    pub job: String,
    /// The step's directory, if the process is below one: some schedulers keep a step daemon itself in the job's directory.
    pub step: Option<String>,
    /// The directory of the process's task, if that has one of its own.
    pub task: Option<String>,
    /// Whether a step daemon may be there.
    pub is_daemons: bool,
    /// Whether a step's tasks are there, without a daemon.
    pub is_tasks: bool,
    /// The names in a step's directory.
    pub dirs: &'static StepDirs,
}

/// The scheduler's own names of directories below a job's.
#[derive(Debug, PartialEq, Eq)]
pub struct StepDirs {
    /// The prefix of every step's name.
    pub steps: &'static str,
    /// The subdirectory of a step that holds its processes. `None`: the step's directory itself.
    pub processes: Option<&'static str>,
    /// The prefix of every task's name.
    pub tasks: &'static str,
    /// The step that is told what the whole job has.
    pub whole: &'static str,
}

/// A job's directory that exists.
#[derive(Debug)]
pub struct PresentJob {
    /// The directory of all the user's jobs, if there is one.
    pub user: Option<PathBuf>,
    /// The job's directory.
    pub job: Dir,
    /// The names in it.
    pub dirs: &'static StepDirs,
}

/// What dead daemons left in the scheduler's directories, and what could not be examined.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Directories that are not wanted: their marks and paths.
    pub others: Vec<(String, PathBuf)>,
    /// The steps' directories that are wanted.
    pub marked: Vec<Box<dyn LeftStep>>,
    /// Empty directories around steps that are gone.
    pub shells: Vec<Box<dyn LeftShell>>,
    /// Reasons why there may be more.
    pub unseen: Vec<Error>,
}

/// A step's directory with jobfence's mark.
pub trait LeftStep {
    /// The path, for people.
    fn path(&self) -> String;

    /// The step's key, its owner, and what it has used so far. `None`: that cannot be read.
    fn used(&self) -> Option<(JobKey, Owner, Used)>;

    /// Whether one of these step daemons may be at work in the directory. The daemons were listed after the mark was read.
    fn is_alive(&self, host: &Host, daemons: &[Titled]) -> bool;

    /// Ends the processes in the directory and returns whether there were any; an error if one stays. Also `Ok(false)` if the directory
    /// belongs to a live step.
    fn end(&self, host: &Host, deadline: Instant) -> Result<bool>;

    /// Removes the directory. `Ok(false)`: it belongs to a live step, or is gone.
    fn remove(&self, host: &Host, deadline: Instant) -> Result<bool>;
}

/// An empty directory of a job or a user.
pub trait LeftShell {
    /// The path, for people.
    fn path(&self) -> String;

    /// Removes the directory. `Ok(false)`: it is in use again, or is gone.
    fn remove(&self, deadline: Instant) -> Result<bool>;
}

// Only the name: a derived Debug would print everything that the scheduler consists of.
impl fmt::Debug for dyn Scheduler + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for dyn LeftStep + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

impl fmt::Debug for dyn LeftShell + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// Where one of these schedulers keeps a process in a hierarchy.
pub fn placement(
    schedulers: &[&'static dyn Scheduler],
    member: &Membership,
    hierarchy: &Hierarchy,
) -> Option<Placement> {
    schedulers.iter().find_map(|scheduler| scheduler.placement(member, hierarchy))
}

impl Placement {
    /// The directory that holds the step's processes and no daemon of the scheduler.
    pub fn processes(&self) -> Option<String> {
        let step = self.step.as_ref()?;
        Some(self.dirs.processes.map_or_else(|| step.clone(), |below| format!("{step}/{below}")))
    }
}
