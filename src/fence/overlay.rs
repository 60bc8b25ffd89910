// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler's own directories of a step, where it tracks the processes by cgroup: nothing is made in them, nobody is moved
//! out of them, and the scheduler removes them. Where they are it says itself (`scheduler::Placement`).

use std::time::{Duration, Instant};

use super::limiting;
use super::own::{self, Own};
use crate::cgroup::handing_down::enable;
use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota};
use crate::cgroup::mark;
use crate::cgroup::membership::Membership;
use crate::cgroup::usage::{self, Usage};
use crate::cgroup::walk;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::JobKey;
use crate::record::Record;
use crate::scheduler::{Placement, Scheduler, StepDirs};
use crate::sys::dir::Dir;
use crate::sys::process::{self, Owner};

/// One step in one hierarchy that the scheduler uses.
///
/// Directories are opened when they are needed and not kept: with `contain_spank` a task is attached in a process that shares
/// our memory and not our descriptors, so one opened there would be another file's here.
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
    /// Whether its directory bears our mark.
    is_marked: bool,
    /// The directories of ours that this has replaced, all but the anchor.
    ///
    /// They stay open to the end, when the step daemon closes them: closed by a process that shares its memory and not its
    /// descriptors, they would be open in the daemon, which no longer knew of them.
    _replaced: Vec<Dir>,
    /// What was used when it could last be seen: the scheduler may remove its directories before the end is told.
    seen: Box<LastSeen>,
}

/// What was used.
#[derive(Debug, Default)]
struct LastSeen {
    /// By the step.
    step: Usage,
    /// By the whole job: CPU time and memory.
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
    /// `None`: it leads to no step.
    fn of(found: &Placement, is_ours: bool) -> Option<Self> {
        found.step.as_ref().map(|step| Self { job: found.job.clone(), step: step.clone(), dirs: found.dirs, is_ours })
    }
}

impl Overlay {
    /// `anchor` is a directory in the hierarchy, so many levels below its mount point.
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

    /// In the place of directories of ours; the outermost is so many levels below the mount point. `None` where none could be
    /// made.
    pub fn instead_of(own: &mut Own, levels: usize, scheduler: &'static dyn Scheduler) -> Option<Self> {
        let mut dirs = std::mem::take(&mut own.dirs).into_iter();
        let anchor = dirs.next()?;
        Some(Self { _replaced: dirs.collect(), ..Self::new(own.hierarchy.clone(), anchor, levels, scheduler) })
    }

    /// Before it is marked: ends what a dead daemon of the same step has left in the same directory (a job that was requeued). Whoever is
    /// older than the daemon that it has now (`owner`) is none of its tasks.
    pub fn end_earlier_run(&self, host: &Host, owner: Owner, deadline: Instant) -> Result<()> {
        let Some(place) = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked) else { return Ok(()) };
        let Some(mark) = mark::get(&self.open(Some(&place.step))?)? else { return Ok(()) };
        if !Record::parse(&mark).is_ok_and(|record| record.is_left_behind(host).unwrap_or(false)) {
            return Ok(());
        }
        let step = self.step()?;
        if self.hierarchy.version == Version::V2 {
            // As its daemon, or a janitor that died, may have left it.
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

    /// Marks the step's directory, once it is certainly known: its own, and on v2 not that of the user's processes in it. And its job's,
    /// which a scheduler leaves now and then (Slurm 22.05's freezer), and if its daemon is killed between the two.
    pub fn mark(&mut self, text: &str, allocated: Option<&str>) {
        let Some(place) = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked) else { return };
        self.is_marked = [&place.step, &place.job]
            .into_iter()
            .all(|path| self.open(Some(path)).is_ok_and(|dir| own::put_mark(&dir, text)));
        if let Some(allocated) = allocated {
            self.note_allocated(allocated);
        }
    }

    /// Notes down in the step's directory what its job was granted, if that directory is marked.
    pub fn note_allocated(&self, text: &str) {
        if let Some(place) = self.place.as_ref().filter(|_| self.is_marked)
            && let Ok(step) = self.open(Some(&place.step))
        {
            own::put_allocated(&step, text);
        }
    }

    /// The path of the step's directory, if that is to be marked and has not been.
    pub fn unmarked(&self) -> Option<String> {
        let place = self.place.as_ref().filter(|place| place.is_ours && !self.is_marked)?;
        Some(self.hierarchy.mount.join(self.hierarchy.below_mount(&place.step)?).to_str()?.to_owned())
    }

    /// Whether the step's directory is known.
    pub fn is_located(&self) -> bool {
        self.place.is_some()
    }

    /// Takes down where a process of the step was seen, unless that is known; an error where that is not certainly the step's
    /// own. `false`: it leads to no step.
    pub fn locate(&mut self, key: &JobKey, found: &Placement) -> Result<bool> {
        if !self.place.as_ref().is_some_and(|place| place.is_ours) {
            check_name(&self.hierarchy, key, found)?;
            check_owner(&self.hierarchy, &self.anchor.0, self.anchor.1, found)?;
            self.place = Location::of(found, true).map(Box::new);
        }
        Ok(self.is_located())
    }

    /// As `locate`, unchecked: for who only looks.
    pub fn look_at(&mut self, found: &Placement) {
        if self.place.is_none() {
            self.place = Location::of(found, false).map(Box::new);
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

    /// The CPU time of those that live, which the job's directory has counted.
    pub fn daemons_cpu(&self, job: &Dir) -> Duration {
        let Some((dirs, theirs)) = self.place.as_ref().and_then(|place| Some((place.dirs, place.dirs.processes?)))
        else {
            return Duration::ZERO;
        };
        let below = |dir: &Dir, which: &dyn Fn(&str) -> bool| own::children(dir, which, &mut Vec::new());
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

    /// Opens the directory in which every job has its own: of all jobs, or on v1 of the user's.
    pub fn above_jobs(&self) -> Result<Dir> {
        self.open(self.job_path().map(|job| job.rsplit_once('/').map_or("/", |(above, _)| above)))
    }

    /// Opens a task's directory, in which a process of it is.
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

    /// Has the controllers enabled on the way down to the step, and perhaps for its tasks' directories, where the scheduler did not.
    /// None of these directories holds a process, and its rmdir does not mind.
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
            let mut usage = Usage::default();
            usage.add(&self.hierarchy, &step);
            self.seen.step = usage;
        }
        if let Ok(job) = self.job() {
            let mut usage = Usage::default();
            usage.add_of_job(&self.hierarchy, &job);
            self.seen.job = usage;
        }
    }

    /// What the step has used, when it could last be read.
    pub fn usage(&self) -> &Usage {
        &self.seen.step
    }

    /// The same of the whole job: CPU time and memory.
    pub fn job_usage(&self) -> &Usage {
        &self.seen.job
    }

    /// The name of the directory that the scheduler makes for a task, by its number in the step.
    pub fn task_name(&self, number: u32) -> Option<String> {
        self.place.as_ref().map(|place| format!("{}{number}", place.dirs.tasks))
    }

    /// Before the scheduler kills whoever is left of the step: Slurm does so by `cgroup.kill` since 25.05, and waits for those that it does not
    /// end until it gives up the node.
    pub fn end_leaderless(&self, host: &Host, deadline: Instant) -> Result<()> {
        match self.place.as_ref().filter(|place| place.is_ours && self.hierarchy.version == Version::V2) {
            Some(_) => kill::kill_leaderless(&host.proc, &self.step()?, deadline),
            None => Ok(()),
        }
    }

    /// Kills whoever is left, when the scheduler has done with the step: with proctrack/linuxproc it does not find those that
    /// have a session of their own. The directories are its to remove.
    pub fn end(&self, deadline: Instant) -> Result<()> {
        if !self.place.as_ref().is_some_and(|place| place.is_ours) {
            return Ok(());
        }
        let Ok(step) = self.step() else { return Ok(()) };
        let unified = (self.hierarchy.version == Version::V2).then_some(&step);
        kill::kill_all(Members { unified, freezer: None, any: &step }, deadline)?;
        // What users have made in theirs (Slurm 22.05 gives those of tasks to them) the scheduler does not remove, and so none of its own. On v1
        // it has tried before this.
        if let Some(place) = self.place.as_ref().filter(|_| self.hierarchy.version == Version::V2) {
            let mut unseen = Vec::new();
            for name in own::children(&step, |_| true, &mut unseen) {
                if name.starts_with(place.dirs.tasks) {
                    if let Some(dir) = own::child(&step, &name, &mut unseen) {
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

/// The directory of the processes in a step's.
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

/// Refuses to take a step daemon's place for its step's where it has inherited it from another step, within which its scheduler
/// was started.
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

/// Refuses directories that are not root's: somebody could have made them like the scheduler's, where he may make some, and have the
/// task moved there. (Slurm 22.05 gives those of steps and tasks to the user on v1, and on v2 those of tasks.)
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

/// Opens a directory by its path as `/proc/PID/cgroup` shows it, from one that is so many levels below the mount point.
fn open_below(hierarchy: &Hierarchy, anchor: &Dir, levels: usize, path: &str) -> Result<Dir> {
    let not_below = || Error::new("the cgroup is not below what is mounted at").at(&hierarchy.mount).value(path);
    let below = hierarchy.below_mount(path).ok_or_else(not_below)?;
    let dir = anchor.child(&format!("{}{below}", "../".repeat(levels)))?;
    Ok(dir.named(hierarchy.mount.join(below)))
}
