// SPDX-License-Identifier: GPL-2.0-or-later
//! What the rest of the house asks a scheduler: where it keeps the processes of a step, what its dead daemons have left, and its words.
//!
//! Nobody below this knows which schedulers there are: whoever needs them is handed a list. `all` has that list, one row for each.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::cgroup::used::Used;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, JobKey};
use crate::policy::Level;
use crate::sys::dir::Dir;
use crate::sys::process::Owner;

pub mod all;
pub mod gridengine;
pub mod htcondor;
pub mod pbs;
pub mod slurm;

/// Those that may have directories or daemons on this host.
pub type Schedulers = &'static [&'static dyn Scheduler];

/// One scheduler. One that has no cgroups of its own says less: `WithoutCgroups`.
pub trait Scheduler: Sync {
    /// As messages call it.
    fn name(&self) -> &'static str;

    /// Where it keeps a process in this hierarchy. `None`: in no directory that it has made for a job.
    fn placement(&self, member: &Membership, hierarchy: &Hierarchy) -> Option<Placement>;

    /// Whether such directories are this step's, as far as their names tell.
    fn is_step_of(&self, placement: &Placement, key: &JobKey, version: Version) -> bool;

    /// The directory that it would make for a step that does not exist, for people: seen from the mount point, with a `*` for what is not
    /// known. `None` where it has none of this level.
    fn would_make(&self, version: Version, key: &JobKey, level: Level) -> Option<String>;

    /// The directories of a job that are there now, in a hierarchy with this root. `is_its` is asked about a job's directory that does
    /// not bear the job's number; `whose` is the user, and that number. Why there may be more is added to `unseen`.
    fn present(
        &self,
        hierarchy: &Hierarchy,
        root: &Dir,
        whose: (u32, &str),
        is_its: &mut dyn FnMut(&str, &Dir) -> bool,
        unseen: &mut Vec<Error>,
    ) -> Vec<PresentJob>;

    /// The directories of every job that are there now. `each` is handed one at a time, since there may be more than this process may have
    /// descriptors.
    fn each_present(
        &self,
        hierarchy: &Hierarchy,
        root: &Dir,
        each: &mut dyn FnMut(PresentJob),
        unseen: &mut Vec<Error>,
    );

    /// Whether this process is one of its step daemons.
    fn is_daemon(&self, proc: &Dir, pid: i32) -> bool;

    /// Its step daemons on this host that live, each with the title that it has given itself.
    fn daemons(&self, proc: &Dir) -> Result<Vec<Titled>>;

    /// Whether a step daemon of this very step lives.
    fn serves(&self, proc: &Dir, job: &str, step: &str) -> Result<bool>;

    /// Finds its own directories that bear our mark: of the same daemons as the one that is at `near`, or all there are.
    fn left(&self, host: &Host, near: Option<&Membership>, is_wanted: IsWanted<'_>) -> LeftBehind;

    /// The same where a step's directory has this path, or had it: itself, and what is around it if it is gone.
    fn left_at(&self, host: &Host, path: &Path, is_wanted: IsWanted<'_>, found: &mut LeftBehind);

    /// Ends what dead step daemons have left beside those that live, in no step's directory, and returns how many processes that were.
    /// Nobody `of_living`, who are known to be another step's. Why not all could be looked at is added to `unseen`.
    fn end_beside_daemons(
        &self,
        host: &Host,
        of_living: &BTreeSet<Owner>,
        unseen: &mut Vec<Error>,
        deadline: Instant,
    ) -> Result<usize>;

    /// Whether its step daemons give a job such a name.
    fn names_jobs_so(&self, _job: &Id) -> bool {
        false
    }

    /// Whether this run of a job is still its, where it holds fences. This is asked in a process of the scheduler's, too: no program is started for it, and nobody is waited for.
    fn runs(&self, _job: &Id, _run: u32, _age: Age<'_>) -> Runs {
        Runs::Unknown
    }

    /// What starts its step daemons on a node.
    fn node_daemon(&self) -> &'static str;

    /// Which setting, and where, keeps it from denying devices itself.
    fn without_devices(&self) -> &'static str;

    /// Which setting keeps it from having cgroups itself.
    fn without_cgroups(&self) -> &'static str;
}

/// A scheduler without directories of its own for jobs, and without daemons for steps. This is all that it has to say: the rest of
/// `Scheduler` follows.
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

    fn present(
        &self,
        _: &Hierarchy,
        _: &Dir,
        _: (u32, &str),
        _: &mut dyn FnMut(&str, &Dir) -> bool,
        _: &mut Vec<Error>,
    ) -> Vec<PresentJob> {
        Vec::new()
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

    // These words are for messages about directories of its own, which it has not.

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

/// What a holder says of a job, or somebody else of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// It has not ended.
    Yes,
    /// It has ended, or is not known.
    No,
    /// There was no answer, or not a clear one.
    Unknown,
}

/// A process, and its title.
pub type Titled = (Owner, String);

/// Whether what bears a mark with this text is wanted. `None`: the text is not understood, and what bears it stays.
pub type IsWanted<'a> = &'a dyn Fn(&str) -> Result<Option<bool>>;

/// Where a scheduler keeps a process in one hierarchy, by paths as `/proc/PID/cgroup` shows them.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Whose directories they are.
    pub scheduler: &'static dyn Scheduler,
    /// The job's directory.
    pub job: String,
    /// The step's directory, where the process is below one: some schedulers keep a step daemon itself in the job's.
    pub step: Option<String>,
    /// The directory of the process's task, if that has one of its own.
    pub task: Option<String>,
    /// Whether a step daemon may be there.
    pub is_daemons: bool,
    /// Whether a step's tasks are there, and no daemon.
    pub is_tasks: bool,
    /// What is in a step's directory.
    pub dirs: &'static StepDirs,
}

/// The scheduler's own names of directories below a job's.
#[derive(Debug, PartialEq, Eq)]
pub struct StepDirs {
    /// With which the name of each step begins.
    pub steps: &'static str,
    /// Which of a step's holds its processes; `None`: its own.
    pub processes: Option<&'static str>,
    /// With which the name of each task's begins.
    pub tasks: &'static str,
    /// Which step was told what the whole job has.
    pub whole: &'static str,
}

/// A job's directory that is there.
#[derive(Debug)]
pub struct PresentJob {
    /// That of all the user's jobs, if there is one.
    pub user: Option<PathBuf>,
    /// The job's.
    pub job: Dir,
    /// What is in it.
    pub dirs: &'static StepDirs,
}

/// What dead daemons have left in directories of the scheduler's, and what could not be looked at.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Those that are not wanted: their marks, and where they are.
    pub others: Vec<(String, PathBuf)>,
    /// Steps' directories that are wanted.
    pub marked: Vec<Box<dyn LeftStep>>,
    /// Empty ones around steps that are gone.
    pub shells: Vec<Box<dyn LeftShell>>,
    /// Why there may be more.
    pub unseen: Vec<Error>,
}

/// A step's directory with our mark.
pub trait LeftStep {
    /// For people.
    fn path(&self) -> String;

    /// Whose it was, and what it has used until now. `None`: that cannot be seen.
    fn used(&self) -> Option<(JobKey, Owner, Used)>;

    /// Whether one of these step daemons, who were there when the mark had been read, may be at work in there.
    fn is_alive(&self, host: &Host, daemons: &[Titled]) -> bool;

    /// Ends what is in there and says whether there was anybody; an error where somebody stays. `Ok(false)` also where it is somebody's
    /// that lives.
    fn end(&self, host: &Host, deadline: Instant) -> Result<bool>;

    /// Removes it. `Ok(false)`: it is somebody's that lives, or is gone.
    fn remove(&self, host: &Host, deadline: Instant) -> Result<bool>;
}

/// A job's or a user's directory with nothing in it.
pub trait LeftShell {
    /// For people.
    fn path(&self) -> String;

    /// Removes it. `Ok(false)`: somebody is in it again, or it is gone.
    fn remove(&self, deadline: Instant) -> Result<bool>;
}

// By the name: what is in there is in every table of functions otherwise, with all that it consists of.
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
    /// The directory that holds the step's processes, and none of the scheduler's.
    pub fn processes(&self) -> Option<String> {
        let step = self.step.as_ref()?;
        Some(self.dirs.processes.map_or_else(|| step.clone(), |below| format!("{step}/{below}")))
    }
}
