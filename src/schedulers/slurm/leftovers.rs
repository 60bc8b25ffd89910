// SPDX-License-Identifier: GPL-2.0-or-later
//! What a dead step left in the scheduler's own directories. Slurm's step daemon removes them; if it was killed, they stay.
//!
//! Each Slurm step that was limited bears jobfence's mark (`cgroup::mark`), which serves as a record: it disappears with the directory, and
//! a later directory of the same name does not have it. If Slurm reuses a directory that was left (a requeued job), the new step daemon is
//! in it, or has the step in its process title, or writes a mark of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::mark;
use crate::cgroup::membership::Membership;
use crate::cgroup::usage::Used;
use crate::cgroup::walk;
use crate::error::{Error, Result};
use crate::fence::branches::{child, children, found_or_noted};
use crate::fence::own::{self, is_in_use, is_inhabited};
use crate::host::Host;
use crate::job::JobKey;
use crate::record::{Owner, Record};
use crate::scheduler::{IsWanted, LeftBehind, LeftShell, LeftStep, Titled};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::process;

use super::daemons::{self, is_step_daemon};
use super::placement::{self, is_scope, is_top};
use super::units::{SLICES, find_units};

/// A step's directory of Slurm's with jobfence's mark.
#[derive(Debug)]
pub struct Marked {
    /// The record that the mark contains.
    pub record: Record,
    hierarchy: Hierarchy,
    /// Slurm locks this directory while it makes or removes directories.
    root: Dir,
    /// The directories from that of all jobs (v2) or users (v1) down to the job's parent.
    above: Vec<(Dir, String)>,
    job: Dir,
    name: String,
}

/// An empty job directory of Slurm's whose last step was marked and is gone; or a user's directory, which `Marked::remove` marks.
#[derive(Debug)]
pub struct Shell {
    record: Record,
    root: Dir,
    /// The directories from the outermost to this one.
    dirs: Vec<(Dir, String)>,
}

/// How long processes have to exit before their directory is checked again for a new owner.
const ROUND: Duration = Duration::from_millis(50);
const LONGEST_ROUND: Duration = Duration::from_secs(2);

/// Slurm holds its lock only for moments, except while it waits for the end of a step (`_wait_cgroup_empty`, a second).
const LOCK_PATIENCE: Duration = Duration::from_millis(20);

/// Finds the marked directories that are wanted: those of the same Slurm as the step daemon `near`, or all. A mark that is not understood
/// comes from another release, and its directory stays.
pub fn find(host: &Host, near: Option<&Membership>, is_wanted: IsWanted<'_>) -> LeftBehind {
    let mut found = LeftBehind::default();
    let is_v1 = |hierarchy: &&Hierarchy| hierarchy.version == Version::V1;
    let v1 = host.layout.hierarchies.iter().filter(is_v1);
    // In some v1 hierarchies the daemon is in its job's directory; in others Slurm makes one only for the tasks.
    if near.is_none_or(|daemon| v1.clone().any(|hierarchy| placement::of(daemon, hierarchy).is_some())) {
        for hierarchy in v1 {
            if let Some(root) = found_or_noted(hierarchy.open(), &mut found.unseen) {
                find_in_v1(hierarchy, &root, None, is_wanted, &mut found);
            }
        }
    }
    let Some(unified) = host.layout.unified() else { return found };
    let Some(root) = found_or_noted(unified.open(), &mut found.unseen) else { return found };
    let mut scopes = Vec::new();
    match near {
        Some(daemon) => {
            let scope = scope_of(daemon, unified).map(|scope| root.child(scope));
            scopes.extend(scope.and_then(|scope| found_or_noted(scope, &mut found.unseen)));
        }
        None => find_units(&root, is_scope, SLICES, &mut scopes, &mut found.unseen),
    }
    for scope in scopes {
        find_in_scope(unified, &scope, None, is_wanted, &mut found);
    }
    found
}

/// The scope that contains a process, relative to the mount point.
fn scope_of<'a>(member: &'a Membership, unified: &Hierarchy) -> Option<&'a str> {
    let path = unified.below_mount(member.path_in(unified)?)?;
    let mut end = 0;
    for name in path.split('/') {
        end += name.len();
        if is_scope(name) {
            return path.get(..end);
        }
        end += 1;
    }
    None
}

/// The same for the step directory that has, or had, this path: the directory itself, or what is around it if it is gone.
pub fn find_at(host: &Host, path: &Path, is_wanted: IsWanted<'_>, found: &mut LeftBehind) {
    let around = host.layout.hierarchies.iter().filter_map(|hierarchy| {
        let below = path.strip_prefix(&hierarchy.mount).ok()?.to_str()?;
        Some((hierarchy, below.split('/').collect::<Vec<_>>()))
    });
    let Some((hierarchy, names)) = around.min_by_key(|(_, names)| names.len()) else { return };
    let Some(root) = found_or_noted(hierarchy.open(), &mut found.unseen) else { return };
    match (hierarchy.version, names.as_slice()) {
        (Version::V1, [top, user, job, step]) => {
            find_in_v1(hierarchy, &root, Some([top, user, job, step]), is_wanted, found);
        }
        (Version::V2, [above @ .., job, step]) if above.last().is_some_and(|name| is_scope(name)) => {
            if let Some(scope) = child(&root, &above.join("/"), &mut found.unseen) {
                find_in_scope(hierarchy, &scope, Some([job, step]), is_wanted, found);
            }
        }
        _ => {}
    }
}

/// The subdirectories with wanted names, or only the given one, which may not exist.
fn those(dir: &Dir, only: Option<&str>, is_wanted: impl Fn(&str) -> bool, unseen: &mut Vec<Error>) -> Vec<String> {
    match only {
        Some(only) => Some(only).filter(|name| is_wanted(name)).map(str::to_owned).into_iter().collect(),
        None => children(dir, is_wanted, unseen),
    }
}

fn again(dir: &Dir) -> Result<Dir> {
    Ok(dir.child(".")?.named(dir.path().to_path_buf()))
}

fn find_in_scope(
    hierarchy: &Hierarchy,
    scope: &Dir,
    only: Option<[&str; 2]>,
    is_wanted: IsWanted<'_>,
    found: &mut LeftBehind,
) {
    // The daemons' own directories, while they have no job.
    let is_job = |name: &str| name != "system" && name != "slurmd";
    for job_name in those(scope, only.map(|[job, _]| job), is_job, &mut found.unseen) {
        let Some(job) = child(scope, &job_name, &mut found.unseen) else { continue };
        let steps = children(&job, |name| name.starts_with("step_"), &mut found.unseen);
        if steps.is_empty() {
            let dirs = || Ok(vec![(again(scope)?, job_name.clone())]);
            add_shell(found, &job, is_wanted, || Ok((again(scope)?, dirs()?)));
        }
        for name in steps.into_iter().filter(|name| only.is_none_or(|[_, step]| name == step)) {
            let Some(step) = child(&job, &name, &mut found.unseen) else { continue };
            add(found, &step, is_wanted, |record| {
                let above = vec![(again(scope)?, job_name.clone())];
                let (hierarchy, root, job) = (hierarchy.clone(), again(scope)?, again(&job)?);
                Ok(Marked { record, hierarchy, root, above, job, name })
            });
        }
    }
}

fn find_in_v1(
    hierarchy: &Hierarchy,
    root: &Dir,
    only: Option<[&str; 4]>,
    is_wanted: IsWanted<'_>,
    found: &mut LeftBehind,
) {
    for name in those(root, only.map(|[top, ..]| top), is_top, &mut found.unseen) {
        let Some(top) = child(root, &name, &mut found.unseen) else { continue };
        let only_user = only.map(|[_, user, ..]| user);
        for user_name in those(&top, only_user, |name| name.starts_with("uid_"), &mut found.unseen) {
            let Some(user) = child(&top, &user_name, &mut found.unseen) else { continue };
            let jobs = children(&user, |name| name.starts_with("job_"), &mut found.unseen);
            if jobs.is_empty() {
                add_shell(found, &user, is_wanted, || Ok((again(root)?, vec![(again(&top)?, user_name.clone())])));
            }
            for job_name in jobs.into_iter().filter(|name| only.is_none_or(|[_, _, job, _]| name == job)) {
                let Some(job) = child(&user, &job_name, &mut found.unseen) else { continue };
                let steps = children(&job, |name| name.starts_with("step_"), &mut found.unseen);
                if steps.is_empty() {
                    let dirs = || Ok(vec![(again(&top)?, user_name.clone()), (again(&user)?, job_name.clone())]);
                    add_shell(found, &job, is_wanted, || Ok((again(root)?, dirs()?)));
                }
                for name in steps.into_iter().filter(|name| only.is_none_or(|[.., step]| name == step)) {
                    let Some(step) = child(&job, &name, &mut found.unseen) else { continue };
                    add(found, &step, is_wanted, |record| {
                        let above = vec![(again(&top)?, user_name.clone()), (again(&user)?, job_name.clone())];
                        let (hierarchy, root, job) = (hierarchy.clone(), again(root)?, again(&job)?);
                        Ok(Marked { record, hierarchy, root, above, job, name })
                    });
                }
            }
        }
    }
}

/// A directory's mark, and whether `is_wanted` wants it.
fn marked(dir: &Dir, is_wanted: IsWanted<'_>, unseen: &mut Vec<Error>) -> Option<(String, bool)> {
    let text = found_or_noted(mark::get(dir), unseen)??;
    let is_wanted = found_or_noted(is_wanted(&text), unseen)??;
    Some((text, is_wanted))
}

fn add(found: &mut LeftBehind, step: &Dir, is_wanted: IsWanted<'_>, marked_as: impl FnOnce(Record) -> Result<Marked>) {
    match marked(step, is_wanted, &mut found.unseen) {
        Some((text, true)) => {
            let step = Record::parse(&text).and_then(marked_as);
            let step = found_or_noted(step, &mut found.unseen);
            found.marked.extend(step.map(|step| Box::new(step) as Box<dyn LeftStep>));
        }
        Some((text, false)) => found.others.push((text, step.path().to_owned())),
        None => {}
    }
}

fn add_shell(
    found: &mut LeftBehind,
    dir: &Dir,
    is_wanted: IsWanted<'_>,
    dirs: impl FnOnce() -> Result<(Dir, Vec<(Dir, String)>)>,
) {
    let Some((text, true)) = marked(dir, is_wanted, &mut found.unseen) else { return };
    let shell = Record::parse(&text).and_then(|record| dirs().map(|(root, dirs)| Shell { record, root, dirs }));
    let shell = found_or_noted(shell, &mut found.unseen);
    found.shells.extend(shell.map(|shell| Box::new(shell) as Box<dyn LeftShell>));
}

/// Whether one of these step daemons serves the record's step, in a place that may be the step's.
fn is_among(daemons: &[Titled], record: &Record, is_elsewhere: impl Fn(i32) -> bool) -> bool {
    let (Some(job), Some(step)) = (record.job(), record.step()) else { return true };
    daemons::is_among(daemons, job.as_str(), step.as_str(), is_elsewhere)
}

impl LeftShell for Shell {
    fn path(&self) -> String {
        let (above, name) = self.dirs.last().map_or((Path::new(""), ""), |(above, name)| (above.path(), name.as_str()));
        above.join(name).display().to_string()
    }

    fn remove(&self, deadline: Instant) -> Result<bool> {
        let Some((above, name)) = self.dirs.last() else { return Ok(false) };
        let _lock = Lock::on(&self.root, ".", deadline)?;
        // A later directory of the same name has no mark.
        let dir = match above.child(name) {
            Err(error) if error.is_gone() => return Ok(false),
            dir => dir?,
        };
        if mark::get(&dir)?.and_then(|text| Record::parse(&text).ok()).as_ref() != Some(&self.record) {
            return Ok(false);
        }
        match above.remove(name) {
            Err(error) if is_in_use(&error) => Ok(false),
            Ok(true) => remove_around(self.dirs.split_last().map_or(&[], |(_, around)| around)).map(|()| true),
            done => done,
        }
    }
}

/// Removes directories from the innermost to the outermost, up to one in which another step or job is alive.
fn remove_around(dirs: &[(Dir, String)]) -> Result<()> {
    for (above, name) in dirs.iter().rev() {
        if let Err(error) = above.remove(name) {
            return if is_in_use(&error) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

impl LeftStep for Marked {
    fn path(&self) -> String {
        self.job.path().join(&self.name).display().to_string()
    }

    fn is_alive(&self, host: &Host, daemons: &[Titled]) -> bool {
        is_among(daemons, &self.record, |daemon| self.is_elsewhere(host, daemon))
    }

    fn used(&self) -> Option<(JobKey, Owner, Used)> {
        let step = self.job.child(&self.name).ok()?;
        // Slurm's daemon is beside the step's processes.
        let processes = if self.hierarchy.version == Version::V2 { step.child("user").ok()? } else { step };
        let mut used = Used::default();
        used.add(&self.hierarchy, &processes, &self.job);
        Some((self.record.key()?, self.record.opener(), used))
    }

    /// Runs at least one round.
    fn end(&self, host: &Host, deadline: Instant) -> Result<bool> {
        let step = match self.job.child(&self.name) {
            Err(error) if error.is_gone() => return Ok(false),
            step => step?,
        };
        // This process must not be inside, for it would be frozen or killed, too: an administrator's login in the dead step
        // (pam_slurm_adopt).
        if self.is_within(&Membership::read(&host.proc, nix::unistd::getpid().as_raw())?) {
            return Err(Error::new("this process is itself in the step that is to be removed:").value(self.path()));
        }
        let mut was_inhabited = false;
        let mut patience = ROUND;
        // One round at a time: a new run of the step may begin here meanwhile, and must not be killed.
        while is_inhabited(&step, deadline) {
            was_inhabited = true;
            if !self.signal(host, &step, Instant::now() + patience)? {
                return Ok(false);
            }
            let round = deadline.min(Instant::now() + patience);
            while is_inhabited(&step, round) && Instant::now() < round {
                let _ = poll(&mut [], PollTimeout::from(1u8));
            }
            if Instant::now() >= deadline && is_inhabited(&step, deadline) {
                return Err(Error::new("processes do not die in").at(self.path()));
            }
            // With very many directories a short look never reaches the last one.
            patience = (patience * 2).min(LONGEST_ROUND);
        }
        Ok(was_inhabited)
    }

    fn remove(&self, host: &Host, deadline: Instant) -> Result<bool> {
        let step = match self.job.child(&self.name) {
            Err(error) if error.is_gone() => return Ok(false),
            step => step?,
        };
        // The lock that Slurm holds while it makes or removes a job's directories (`common_cgroup_lock` in its cgroup_common.c).
        let _lock = Lock::on(&self.root, ".", deadline)?;
        // Checked again, now that no step daemon of Slurm's can enter.
        if !self.is_free(host, &step)? {
            return Ok(false);
        }
        if is_inhabited(&step, deadline) {
            return Err(Error::new("processes have come into").at(self.path()));
        }
        // Mark the user's directory, so that the next run recognises it if this one stops midway. The job's directory is marked already.
        for (user, _) in self.above.iter().skip(1) {
            let _ = mark::set(user, &self.record.to_string());
        }
        walk::remove(&self.job, &self.name, deadline)?;
        remove_around(&self.above)?;
        Ok(true)
    }
}

impl Marked {
    /// Sends the signal. `Ok(false)`: the step has a daemon again.
    fn signal(&self, host: &Host, step: &Dir, deadline: Instant) -> Result<bool> {
        // While the lock is held, no step daemon of Slurm's makes a directory, and a daemon that already made one has its title. Slurm
        // waits for the lock without limit, so it is held only for the signals. Users can hold it, too: then a new daemon is still seen
        // some milliseconds before it has a task.
        let _lock = Lock::on(&self.root, ".", Instant::now() + LOCK_PATIENCE).ok();
        if !self.is_free(host, step)? {
            return Ok(false);
        }
        self.are_its(host, step)?;
        if self.hierarchy.version == Version::V1 {
            let freezer = self.hierarchy.has("freezer").then_some(step);
            // The next round finds processes that could not be examined in time.
            let _ = kill::signal_all(Members { unified: None, freezer, any: step }, deadline);
            return Ok(true);
        }
        if let Some(dir) = is_there(step.child("user"))? {
            let _ = kill::signal_all(Members { unified: Some(&dir), freezer: None, any: &dir }, deadline);
        }
        let Some(dir) = is_there(step.child("slurm"))? else { return Ok(true) };
        // What TaskEpilog= left beside the daemon is signalled process by process: cgroup.kill would hit a new daemon, too.
        let mut in_step = Vec::new();
        for pid in own::pids_below(&dir, deadline)?.into_iter().filter(|pid| *pid > 1) {
            in_step.extend(process::of(&host.proc, pid)?.map(|process| process.id));
        }
        if !in_step.is_empty() && !self.is_free(host, step)? {
            return Ok(false);
        }
        for id in in_step {
            if !is_step_daemon(&host.proc, id.pid)
                && let Some(handle) = process::ProcessHandle::open(&host.proc, id)?
            {
                handle.signal(Signal::SIGKILL)?;
            }
        }
        Ok(true)
    }

    /// Whether this is still what the dead step left: its mark is unchanged, and no daemon of the step is alive.
    fn is_free(&self, host: &Host, step: &Dir) -> Result<bool> {
        let mark = mark::get(step)?.and_then(|text| Record::parse(&text).ok());
        Ok(mark.as_ref() == Some(&self.record) && !self.is_alive(host, &daemons::all(&host.proc)?))
    }

    /// Whether a process is in the directory.
    fn is_within(&self, member: &Membership) -> bool {
        let path = member.path_in(&self.hierarchy).and_then(|path| self.hierarchy.below_mount(path));
        path.is_some_and(|below| self.hierarchy.mount.join(below).starts_with(self.job.path().join(&self.name)))
    }

    /// Whether a step daemon already has directories of its own other than these: Slurm 26.05 makes new ones for each run of a job.
    fn is_elsewhere(&self, host: &Host, daemon: i32) -> bool {
        let member = Membership::read(&host.proc, daemon).ok();
        let Some(found) = member.and_then(|member| placement::of(&member, &self.hierarchy)) else { return false };
        let is_ours = |path: &str, ours: &Path| {
            self.hierarchy.below_mount(path).is_some_and(|below| self.hierarchy.mount.join(below) == ours)
        };
        match &found.step {
            Some(step) => !is_ours(step, &self.job.path().join(&self.name)),
            None => !is_ours(&found.job, self.job.path()),
        }
    }

    /// Refuses if a process at the daemon's place is neither the step user's nor something that the dead daemon started as root (the extern
    /// step's `sleep`).
    fn are_its(&self, host: &Host, step: &Dir) -> Result<()> {
        let v2 = self.hierarchy.version == Version::V2;
        let dir = if v2 { step.child("slurm") } else { step.child(".") };
        let pids = match dir.and_then(|dir| dir.read("cgroup.procs")) {
            Err(error) if error.is_gone() => return Ok(()),
            pids => pids?,
        };
        let mut pids = pids.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let strangers = pids.find(|pid| {
            let uid = process::uid(&host.proc, *pid);
            !uid.is_none_or(|uid| Some(uid) == self.record.uid() || uid == 0) || is_step_daemon(&host.proc, *pid)
        });
        match strangers {
            None => Ok(()),
            Some(pid) => Err(Error::new("a process that belongs neither to the job's user nor to root keeps them:")
                .value(format!("pid {pid}"))
                .hint("end it if it belongs to no job")),
        }
    }
}

/// `None`: the directory is gone.
fn is_there(dir: Result<Dir>) -> Result<Option<Dir>> {
    match dir {
        Err(error) if error.is_gone() => Ok(None),
        dir => dir.map(Some),
    }
}
