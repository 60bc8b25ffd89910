// SPDX-License-Identifier: GPL-2.0-or-later
//! Moves a process into the step, and checks that it is there.

use nix::errno::Errno;

use super::delegation;
use super::fenced::{Fence, Tree};
use super::limiting::{self, LimitError};
use super::names::{DELEGATED, own_task};
use super::own::Own;
use crate::cgroup::affinity::Affinity;
use crate::cgroup::base;
use crate::cgroup::devices;
use crate::cgroup::layout::Version;
use crate::cgroup::membership::Membership;
use crate::config::{Delegation, Limit};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::log;
use crate::policy::Plan;
use crate::scheduler;
use crate::sys::process::{self, Owner};

impl Fence {
    /// Moves a process into the step: one write to `cgroup.procs` in each hierarchy, then a check that it is there.
    ///
    /// A process that the scheduler tracks by cgroup stays in the scheduler's directory, since moving it would break the scheduler's
    /// signals and accounting. jobfence then limits that directory. Returns the limits that could not be set. `task` is the process's
    /// number within the step; `None` if the scheduler did not start it as a task.
    pub fn attach(&mut self, host: &Host, pid: i32, task: Option<u32>) -> Result<Vec<LimitError>> {
        self.put(host, (pid, None), task, None)
    }

    /// As `attach`, for one certain process. The kernel takes only a pid, which another process may get at the last moment: that
    /// process is put back.
    pub fn attach_this(&mut self, host: &Host, id: Owner, task: Option<u32>) -> Result<Vec<LimitError>> {
        let put = self.put(host, (id.pid, Some(id)), task, None);
        if id.is_alive(&host.proc)? {
            return put;
        }
        Err(put_back_stranger(host, self.key().uid, id))
    }

    /// As `attach`, into the directory `leaf` below the step's, so that the process can make other directories beside it.
    pub fn attach_in(&mut self, host: &Host, pid: i32, leaf: &str) -> Result<Vec<LimitError>> {
        self.put(host, (pid, None), None, Some(leaf))
    }

    fn put(
        &mut self,
        host: &Host,
        (pid, id): (i32, Option<Owner>),
        task: Option<u32>,
        leaf: Option<&str>,
    ) -> Result<Vec<LimitError>> {
        // All tasks of a step are in the same directories: if the first task showed that these are jobfence's, the next need no look.
        let is_settled = self.are_others_marked && self.around.has_daemon && !self.has_overlay();
        let mut errors = if is_settled { Vec::new() } else { self.find_theirs(host, pid, task)? };
        let plan = self.limits.plan_of_task(task);
        self.attach_own(host, (pid, id), (plan.zip(task), leaf), &mut errors)?;
        self.check_cores();
        self.note_devices(&errors);
        Ok(errors)
    }

    /// Finds where the scheduler has put the process, and limits it there. Returns the limits that could not be set.
    fn find_theirs(&mut self, host: &Host, pid: i32, task: Option<u32>) -> Result<Vec<LimitError>> {
        let before = Membership::read(&host.proc, pid)?;
        if !self.around.has_daemon {
            self.refuse_a_schedulers(&before)?;
        }
        let mut errors = self.settle(&before)?;
        self.end_earlier_run(host);
        self.mark_located();
        self.mark_others(host, &before);
        self.are_others_marked = true;
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let place = before.path_in(&overlay.hierarchy).unwrap_or("nowhere");
            if !overlay.holds(place) {
                let name = overlay.scheduler.name();
                return Err(Error::new(format!("process {pid} is not where {name} tracks its step in"))
                    .at(&overlay.hierarchy.mount)
                    .value(place)
                    .hint(format!(
                        "expected below {}",
                        overlay.path().unwrap_or_else(|| format!("a step of {name}'s"))
                    )));
            }
            errors.extend(self.lost_devices(tree).map(|error| (Limit::Devices, error)));
            if let Some(plan) = &self.limits.plan {
                self.reclaim_again(overlay, plan, &mut errors);
            }
            if let Some(error) = self.undivided() {
                return Err(error);
            }
            let Some(plan) = self.limits.plan_of_task(task) else { continue };
            match overlay.task(&before) {
                Ok(dir) => self.limit_task(tree, &dir, plan, &mut errors),
                Err(error) => errors.extend(limiting::none_of(
                    &Plan { task: plan.task.clone(), ..Plan::default() },
                    |theirs| overlay.hierarchy.has(theirs),
                    &error,
                )),
            }
        }
        Ok(errors)
    }

    /// The error if the scheduler has since attached a program to its own directories with which jobfence's device limits do not hold.
    fn lost_devices(&self, tree: &Tree) -> Option<Error> {
        let hierarchy = tree.hierarchy();
        let is_ours = hierarchy.version == Version::V2 && hierarchy.has(devices::CONTROLLER);
        self.limits.plan.as_ref().filter(|plan| is_ours && plan.step.devices.is_some())?;
        tree.step().and_then(|step| devices::still_counts(&step)).err()
    }

    fn attach_own(
        &self,
        host: &Host,
        (pid, id): (i32, Option<Owner>),
        (task, leaf): (Option<(&Plan, u32)>, Option<&str>),
        errors: &mut Vec<LimitError>,
    ) -> Result<()> {
        let limited = task.map(|(_, number)| own_task(number)).or_else(|| leaf.map(str::to_owned));
        let name = |tree: &Tree| limited.clone().or_else(|| self.is_divided(tree).then(|| DELEGATED.to_owned()));
        let mut bound = None;
        for tree in &self.trees {
            let Some(step) = tree.own().and_then(Own::step) else { continue };
            // The directory is not kept open: with contain_spank this process shares the step daemon's memory but not its descriptors.
            let dir = name(tree).map(|name| step.ensure(&name)).transpose()?;
            let given = dir.as_ref().filter(|_| leaf.is_none() && self.is_users(tree));
            if let Some(given) = given {
                delegation::prepare(step, tree.job().as_deref().ok(), given, tree.hierarchy())?;
            }
            if let (Some(dir), Some((plan, _))) = (&dir, task) {
                base::fill(step, dir, tree.hierarchy(), false)?;
                self.limit_task(tree, dir, plan, errors);
            }
            if tree.hierarchy().has("cpuset") {
                bound = bound.or_else(|| Affinity::from_pid(pid));
            }
            if id.is_some_and(|id| !id.is_alive(&host.proc).unwrap_or(true)) {
                return Err(Error::new("the process has ended:").value(pid));
            }
            let moved = match given {
                Some(given) => delegation::enter(given, pid),
                None => dir.as_ref().unwrap_or(step).write("cgroup.procs", &pid.to_string()),
            };
            moved.map_err(|error| match error.kernel_errno() {
                Some(Errno::EOPNOTSUPP) => error.hint("the cgroup, or one above it, is threaded"),
                _ => error,
            })?;
            given.map_or(Ok(()), |given| delegation::give(given, self.key().uid))?;
        }
        if let Some(bound) = bound
            && Affinity::from_pid(pid).is_some_and(|now| now != bound)
            && let Err(errno) = bound.set(pid)
        {
            // For example, none of those CPUs is in the step's cpuset. The process is fenced all the same.
            let error = Error::new(format!("cannot bind process {pid} again to the CPUs that it was bound to"));
            log::warn!("{}", error.errno(errno));
        }
        if self.trees.iter().all(|tree| tree.own().is_none()) {
            return Ok(());
        }
        let after = Membership::read(&host.proc, pid)?;
        for tree in &self.trees {
            let Some(own) = tree.own() else { continue };
            let mut expected = own.hierarchy.in_proc(&self.ours.path);
            if let Some(name) = name(tree) {
                expected = format!("{expected}/{name}");
            }
            let found = after.path_in(&own.hierarchy);
            let is_late = found.and_then(|found| found.strip_prefix(&expected)).is_some_and(delegation::is_late);
            if found != Some(expected.as_str()) && !(is_late && self.is_users(tree)) {
                return Err(Error::new(format!("process {pid} was attached, but the kernel shows it elsewhere in"))
                    .at(&own.hierarchy.mount)
                    .value(after.path_in(&own.hierarchy).unwrap_or("nowhere")));
            }
        }
        Ok(())
    }

    /// Whether the step's processes live in a directory below the step's, beside which there can be others.
    fn is_divided(&self, tree: &Tree) -> bool {
        let is_planned = self.limits.plan.as_ref().is_some_and(|plan| plan.delegate != Delegation::No);
        is_planned && tree.hierarchy().version == Version::V2
    }

    /// Whether that directory is their user's. Beside any other, the daemon turns on what it needs.
    fn is_users(&self, tree: &Tree) -> bool {
        let is_planned = self.limits.plan.as_ref().is_some_and(|plan| plan.delegate == Delegation::Yes);
        is_planned && tree.hierarchy().version == Version::V2
    }

    /// Why the step's user cannot divide the step's cgroup, as the plan wants it: a scheduler that finds the processes by its own
    /// directories would lose them.
    pub fn undivided(&self) -> Option<Error> {
        // A daemon that makes containers leaves the processes where they are.
        let overlay = self.trees.iter().find(|tree| tree.own().is_none() && self.is_users(tree))?;
        let error = Error::new(
            "the scheduler itself has the job's processes in cgroups, and would lose them if the job divided these, in",
        );
        Some(error.at(&overlay.hierarchy().mount).hint(delegation::HINT))
    }

    /// Returns an error if a scheduler tracks a process with this membership in one of the fence's hierarchies.
    fn refuse_a_schedulers(&self, membership: &Membership) -> Result<()> {
        for hierarchy in self.trees.iter().map(Tree::hierarchy) {
            if let Some(found) = scheduler::placement(self.around.schedulers, membership, hierarchy) {
                let name = found.scheduler.name();
                return Err(Error::new(format!("{name}'s own cgroup plugin tracks this process in"))
                    .at(&hierarchy.mount)
                    .value(membership.path_in(hierarchy).unwrap_or("nowhere"))
                    .hint("it is not taken out of there: run this outside of a job"));
            }
        }
        Ok(())
    }
}

/// Returns the error for a process of `uid` that ended while it was moved. If another process has got its pid, that one is moved to its
/// parent's cgroups: nothing else shows where it began.
///
/// A process whose parent may only have inherited it (init, or another user's process) stays in the fence: moving it could be a way out
/// of one.
pub fn put_back_stranger(host: &Host, uid: u32, instead_of: Owner) -> Error {
    let ended = Error::new("the process has ended while it was put in:").value(instead_of.pid);
    match stranger_remains(host, uid, instead_of) {
        Some(remains) => ended.hint(remains),
        None => ended,
    }
}

/// Puts such a process back. Says what it remains in, and why; `None`: nothing.
fn stranger_remains(host: &Host, uid: u32, instead_of: Owner) -> Option<String> {
    let stranger = process::of(&host.proc, instead_of.pid).ok().flatten().filter(|found| found.id != instead_of)?;
    let (theirs, parents) = (process::uid(&host.proc, stranger.id.pid)?, process::uid(&host.proc, stranger.parent));
    let is_its = stranger.parent > 1 && (parents == Some(theirs) || theirs != uid && parents == Some(0));
    let remains = match Membership::read(&host.proc, stranger.parent) {
        Ok(place) if is_its => place.restore(&host.layout, &host.proc, stranger.id.pid),
        _ => vec!["the fence".to_owned()],
    };
    let why = format!(
        "process {} of uid {theirs} has got its number, and remains in {}",
        stranger.id.pid,
        remains.join(", ")
    );
    (!remains.is_empty()).then_some(why).inspect(|why| log::error!("{why}"))
}
