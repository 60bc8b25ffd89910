// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler's own directories of a step, if the scheduler tracks processes by cgroup. jobfence makes nothing in them and moves no
//! process out of them; the scheduler removes them. The scheduler's module says where they are (`scheduler::Placement`).

use std::time::{Duration, Instant};

use super::branches;
use super::limiting;
use super::own::{self, Own};
use crate::cgroup::handing_down::enable;
use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota};
use crate::cgroup::mark;
use crate::cgroup::membership::Membership;
use crate::cgroup::usage::{self, Depth};
use crate::cgroup::walk;
use crate::error::{Error, Result};
use crate::figures::Usage;
use crate::host::Host;
use crate::job::JobKey;
use crate::record::Record;
use crate::scheduler::{Placement, Scheduler, StepDirs};
use crate::sys::dir::Dir;
use crate::sys::process::{self, Owner};

/// One step in one hierarchy that the scheduler uses.
///
/// Directories are opened when they are needed and not kept. With `contain_spank`, the process that attaches a task shares the daemon's
/// memory but not its descriptors: a descriptor that it opened would be another file in the daemon.
#[derive(Debug)]
pub struct Overlay {
    /// The hierarchy.
    pub hierarchy: Hierarchy,
    /// Whose directories they are.
    pub scheduler: &'static dyn Scheduler,
    /// A directory that was opened before the first task, and how many levels it is below the mount point.
    anchor: (Dir, usize),
    /// Where the step is; `None` until a process of it has been seen.
    place: Option<Box<Location>>,
    /// Whether its directory has jobfence's mark.
    is_marked: bool,
    /// jobfence's directories that this has replaced, all but the anchor.
    ///
    /// They stay open to the end, when the step daemon closes them. If a process that shares the daemon's memory but not its
    /// descriptors closed them, they would leak in the daemon.
    _replaced: Vec<Dir>,
    /// The usage when it could last be read: the scheduler may remove its directories before it reports the end.
    seen: Box<LastSeen>,
}

/// What was used.
#[derive(Debug, Default)]
struct LastSeen {
    /// What the step used.
    step: Usage,
    /// What the whole job used: CPU time and memory.
    job: Usage,
}

#[derive(Debug)]
struct Location {
    job: String,
    step: String,
    dirs: &'static StepDirs,
    /// Whether it is certain that the directories are this step's.
    is_ours: bool,
}

impl Location {
    /// `None`: the placement names no step.
    fn from_placement(found: &Placement, is_ours: bool) -> Option<Self> {
        found.step.as_ref().map(|step| Self { job: found.job.clone(), step: step.clone(), dirs: found.dirs, is_ours })
    }
}

impl Overlay {
    /// `anchor` is a directory in the hierarchy, `levels` below its mount point.
    pub fn new(hierarchy: Hierarchy, anchor: Dir, levels: usize, scheduler: &'static dyn Scheduler) -> Self {
        Self {
            hierarchy,
            scheduler,
            anchor: (anchor, levels),
            place: None,
            is_marked: false,
            _replaced: Vec::new(),
            seen: Box::default(),
        }
    }

    /// Replaces jobfence's directories. The outermost is `levels` below the mount point. `None`: none could be made.
    pub fn instead_of(own: &mut Own, levels: usize, scheduler: &'static dyn Scheduler) -> Option<Self> {
        let mut dirs = std::mem::take(&mut own.dirs).into_iter();
        let anchor = dirs.next()?;
        Some(Self { _replaced: dirs.collect(), ..Self::new(own.hierarchy.clone(), anchor, levels, scheduler) })
    }

    /// Ends what a dead daemon of the same step has left in the same directory (a requeued job). To be called before the directory is
    /// marked. A process that is older than the present daemon (`owner`) is none of its tasks.
    pub fn end_earlier_run(&self, host: &Host, owner: Owner, deadline: Instant) -> Result<()> {
        let Some(place) = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked) else { return Ok(()) };
        let Some(mark) = mark::get(&self.open(Some(&place.step))?)? else { return Ok(()) };
        if !Record::parse(&mark).is_ok_and(|record| record.is_left_behind(host).unwrap_or(false)) {
            return Ok(());
        }
        let step = self.step()?;
        if self.hierarchy.version == Version::V2 {
            // A dead daemon or janitor may have left it frozen.
            let _ = step.write("cgroup.freeze", "0");
        } else if self.hierarchy.has("freezer") {
            kill::thaw(&step, deadline);
        }
        let find = || {
            let mut older = Vec::new();
            for pid in own::pids_below(&step, deadline)? {
                older.extend(
                    process::of(&host.proc, pid)?.map(|process| process.id).filter(|id| id.start < owner.start),
                );
            }
            Ok(older)
        };
        process::end_all(&host.proc, find, deadline).map(drop)
    }

    /// Marks the step's directory, once it is certainly known (on v2 not the one for the user's processes in it), and the job's. A
    /// scheduler sometimes leaves the job's behind: in the freezer (Slurm 22.05), or if its daemon is killed between removing the two.
    pub fn mark(&mut self, text: &str, allocated: Option<&str>) {
        let Some(place) = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked) else { return };
        self.is_marked = [&place.step, &place.job]
            .into_iter()
            .all(|path| self.open(Some(path)).is_ok_and(|dir| own::put_mark(&dir, text)));
        if let Some(allocated) = allocated {
            self.note_allocated(allocated);
        }
    }

    /// Notes on the step's directory what its job was granted, if that directory is marked.
    pub fn note_allocated(&self, text: &str) {
        if let Some(place) = self.place.as_ref().filter(|_| self.is_marked)
            && let Ok(step) = self.open(Some(&place.step))
        {
            own::put_allocated(&step, text);
        }
    }

    /// The path of the step's directory, if it is still to be marked.
    pub fn unmarked(&self) -> Option<String> {
        let place = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked)?;
        Some(self.hierarchy.mount.join(self.hierarchy.below_mount(&place.step)?).to_str()?.to_owned())
    }

    /// Whether the step's directory is known.
    pub fn is_located(&self) -> bool {
        self.place.is_some()
    }

    /// Stores where a process of the step was seen, unless the place is known. Fails if the directory is not certainly the step's own.
    /// `false`: the placement names no step.
    pub fn locate(&mut self, key: &JobKey, found: &Placement) -> Result<bool> {
        if !self.place.as_ref().is_some_and(|place| place.is_ours) {
            check_name(&self.hierarchy, key, found)?;
            check_owner(&self.hierarchy, &self.anchor.0, self.anchor.1, found)?;
            self.place = Location::from_placement(found, true).map(Box::new);
        }
        Ok(self.is_located())
    }

    /// As `locate`, without checks: for a process that only reads.
    pub fn look_at(&mut self, found: &Placement) {
        if self.place.is_none() {
            self.place = Location::from_placement(found, false).map(Box::new);
        }
    }

    /// Whether a process with this path is one of the step's.
    pub fn holds(&self, path: &str) -> bool {
        let rest = |step: &str| path.strip_prefix(step).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.place.as_ref().is_some_and(|place| rest(&place.step))
    }

    /// The quota that the batch step was given: the job's own, without headroom.
    pub fn batch_quota(&self) -> Option<CpuQuota> {
        let dirs = self.place.as_ref()?.dirs;
        let batch = in_step(dirs.whole, dirs);
        limits::cpu_quota(&self.job().ok()?.child(&batch).ok()?, self.hierarchy.version).ok().flatten()
    }

    /// How many of the scheduler's daemons may live in the job's directory.
    pub fn daemons(&self, job: &Dir) -> u64 {
        self.place.as_ref().map_or(1, |place| limiting::daemons(job, place.dirs.steps))
    }

    /// The CPU time of the scheduler's living daemons, which the job's directory has counted.
    pub fn daemons_cpu(&self, job: &Dir) -> Duration {
        let Some((dirs, theirs)) = self.place.as_ref().and_then(|place| Some((place.dirs, place.dirs.processes?)))
        else {
            return Duration::ZERO;
        };
        let below = |dir: &Dir, which: &dyn Fn(&str) -> bool| branches::children(dir, which, &mut Vec::new());
        let mut sum = Duration::ZERO;
        for step in below(job, &|name| name.starts_with(dirs.steps)) {
            let Ok(step) = job.child(&step) else { continue };
            for daemon in below(&step, &|name| name != theirs) {
                sum += step.child(&daemon).ok().and_then(|dir| usage::cpu(&self.hierarchy, &dir)).unwrap_or_default();
            }
        }
        sum
    }

    /// The job's path, as `/proc/PID/cgroup` shows it.
    pub fn job_path(&self) -> Option<&str> {
        self.place.as_ref().map(|place| place.job.as_str())
    }

    /// The path of the directory that holds the user's processes of the step, and none of the scheduler's.
    pub fn path(&self) -> Option<String> {
        self.place.as_ref().map(|place| in_step(&place.step, place.dirs))
    }

    /// Opens the job's directory.
    pub fn job(&self) -> Result<Dir> {
        self.open(self.job_path())
    }

    /// Opens the directory of all the user's jobs; there is none on cgroup2.
    pub fn user(&self) -> Option<Result<Dir>> {
        if self.hierarchy.version == Version::V2 {
            return None;
        }
        Some(self.open(self.job_path().and_then(|job| job.rsplit_once('/')).map(|(user, _)| user)))
    }

    /// Opens the directory above the job's: of all jobs, or on v1 of the user.
    pub fn above_jobs(&self) -> Result<Dir> {
        self.open(self.job_path().map(|job| job.rsplit_once('/').map_or("/", |(above, _)| above)))
    }

    /// Opens the task's directory that a process with this membership is in.
    pub fn task(&self, member: &Membership) -> Result<Dir> {
        let none = || {
            let name = self.scheduler.name();
            Error::new(format!("{name} makes no directory for each task, so none can be limited alone, in"))
                .at(&self.hierarchy.mount)
                .value(member.path_in(&self.hierarchy).unwrap_or("nowhere"))
        };
        let task = self.scheduler.placement(member, &self.hierarchy).and_then(|found| found.task);
        self.open(Some(&task.ok_or_else(none)?))
    }

    /// Opens the directory that holds the user's processes of the step.
    pub fn step(&self) -> Result<Dir> {
        self.open(self.path().as_deref())
    }

    /// Enables the controllers on the way down to the step, and with `for_tasks` for its tasks' directories, where the scheduler did
    /// not. None of these directories holds a process, and the scheduler can still remove them.
    pub fn enable(&self, wanted: &[&'static str], step: &Dir, for_tasks: bool) -> Result<()> {
        let Some(place) = &self.place else { return Ok(()) };
        if self.hierarchy.version == Version::V1 {
            return Ok(());
        }
        let has_all = |given: &str| {
            let given: Vec<&str> = given.split_whitespace().collect();
            wanted.iter().filter(|c| self.hierarchy.hands_down(c)).all(|c| given.contains(c))
        };
        if !has_all(&step.read_value("cgroup.controllers")?) {
            let scope = place.job.rsplit_once('/').map_or("/", |(scope, _)| scope);
            for path in [scope, &place.job, &place.step] {
                enable(&self.open(Some(path))?, &self.hierarchy, wanted, false)?;
            }
        }
        if for_tasks { enable(step, &self.hierarchy, wanted, false) } else { Ok(()) }
    }

    /// Keeps what the step has used so far, as far as it can still be read.
    pub fn take_usage(&mut self) {
        if let Ok(step) = self.step() {
            self.seen.step = Usage::read(&self.hierarchy, &step, Depth::All);
        }
        if let Ok(job) = self.job() {
            self.seen.job = Usage::read(&self.hierarchy, &job, Depth::Job);
        }
    }

    /// What the step has used, as last read.
    pub fn usage(&self) -> &Usage {
        &self.seen.step
    }

    /// The same for the whole job: CPU time and memory.
    pub fn job_usage(&self) -> &Usage {
        &self.seen.job
    }

    /// The name of the directory that the scheduler makes for a task, by its number in the step.
    pub fn task_name(&self, number: u32) -> Option<String> {
        self.place.as_ref().map(|place| format!("{}{number}", place.dirs.tasks))
    }

    /// Ends the processes that the scheduler's own kill would miss, before that kill. Slurm has used `cgroup.kill` since 25.05, and
    /// waits for the processes that this misses until it gives up the node.
    pub fn end_leaderless(&self, host: &Host, deadline: Instant) -> Result<()> {
        match self.place.as_ref().filter(|place| place.is_ours && self.hierarchy.version == Version::V2) {
            Some(_) => kill::kill_leaderless(&host.proc, &self.step()?, deadline),
            None => Ok(()),
        }
    }

    /// Kills the processes that are left after the scheduler is done with the step: with proctrack/linuxproc it does not find those
    /// with a session of their own. The scheduler removes the directories.
    pub fn end(&self, deadline: Instant) -> Result<()> {
        if !self.place.as_ref().is_some_and(|place| place.is_ours) {
            return Ok(());
        }
        let Ok(step) = self.step() else { return Ok(()) };
        let unified = (self.hierarchy.version == Version::V2).then_some(&step);
        kill::kill_all(Members { unified, freezer: None, any: &step }, deadline)?;
        // A scheduler does not remove directories that users have made in those of their tasks (Slurm 22.05 gives the latter to users),
        // and then cannot remove its own. On v1 it has tried before this.
        if let Some(place) = self.place.as_ref().filter(|_| self.hierarchy.version == Version::V2) {
            let mut unseen = Vec::new();
            for name in branches::children(&step, |_| true, &mut unseen) {
                if name.starts_with(place.dirs.tasks) {
                    if let Some(dir) = branches::child(&step, &name, &mut unseen) {
                        walk::clear(&dir, deadline)?;
                    }
                } else {
                    walk::remove(&step, &name, deadline)?;
                }
            }
            return unseen.pop().map_or(Ok(()), Err);
        }
        Ok(())
    }

    fn open(&self, path: Option<&str>) -> Result<Dir> {
        let unknown = || {
            let name = self.scheduler.name();
            Error::new(format!("{name}'s directory of the step is not known in")).at(&self.hierarchy.mount)
        };
        open_below(&self.hierarchy, &self.anchor.0, self.anchor.1, path.ok_or_else(unknown)?)
    }
}

/// The path of the processes' directory in a step's.
fn in_step(step: &str, dirs: &StepDirs) -> String {
    dirs.processes.map_or_else(|| step.to_owned(), |below| format!("{step}/{below}"))
}

/// Refuses directories that the scheduler has made for another step.
pub fn check_name(hierarchy: &Hierarchy, key: &JobKey, found: &Placement) -> Result<()> {
    if found.scheduler.is_step_of(found, key, hierarchy.version) {
        return Ok(());
    }
    let theirs = found.step.as_ref().unwrap_or(&found.job);
    Err(Error::new("the process is in another step's cgroup in").at(&hierarchy.mount).value(theirs))
}

/// Refuses a step daemon that is in another step's directory. It inherits that directory if its scheduler was started within that step.
pub fn check_daemon(hierarchy: &Hierarchy, key: &JobKey, daemon: &Membership, found: &Placement) -> Result<()> {
    let place = daemon.path_in(hierarchy).unwrap_or_default();
    if found.scheduler.is_step_of(found, key, hierarchy.version) && found.is_daemons {
        return Ok(());
    }
    let started = found.scheduler.node_daemon();
    Err(Error::new("the step daemon is in another step's cgroup in")
        .at(&hierarchy.mount)
        .value(place)
        .hint(format!("its {started} was started within a job: start it outside of one")))
}

/// Refuses directories that do not belong to root: a user with a writable directory could imitate the scheduler's and have the task
/// moved there. (Slurm 22.05 gives the directories of steps and tasks to the user on v1, and on v2 those of tasks.)
pub fn check_owner(hierarchy: &Hierarchy, anchor: &Dir, levels: usize, found: &Placement) -> Result<()> {
    let step = found.step.as_deref().filter(|_| hierarchy.version == Version::V2);
    for path in std::iter::once(found.job.as_str()).chain(step) {
        let dir = open_below(hierarchy, anchor, levels, path)?;
        if dir.stat()?.st_uid != nix::unistd::geteuid().as_raw() {
            let name = found.scheduler.name();
            return Err(Error::new(format!(
                "the directory has a name that {name} gives, but does not belong to root:"
            ))
            .at(dir.path()));
        }
    }
    Ok(())
}

/// Opens a directory by its path as `/proc/PID/cgroup` shows it, from `anchor`, which is `levels` below the mount point.
fn open_below(hierarchy: &Hierarchy, anchor: &Dir, levels: usize, path: &str) -> Result<Dir> {
    let not_below = || Error::new("the cgroup is not below what is mounted at").at(&hierarchy.mount).value(path);
    let below = hierarchy.below_mount(path).ok_or_else(not_below)?;
    let dir = anchor.child(&format!("{}{below}", "../".repeat(levels)))?;
    Ok(dir.named(hierarchy.mount.join(below)))
}
