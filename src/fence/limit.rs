// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes the planned limits to the directories of the user, the job, the step and its tasks, and reads them back.

use std::time::Instant;

use super::fenced::{Fence, LOCK_TIMEOUT, OpenDir, Tree, not_made};
use super::limiting::{self, Cores, LEAST_WEIGHT, LimitError, Placing, Stays};
use super::overlay::Overlay;
use super::own::{self, Own, Untouched};
use crate::cgroup::disk::Disks;
use crate::cgroup::handing_down::{self, enable};
use crate::cgroup::io;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits;
use crate::cgroup::mark;
use crate::cgroup::network;
use crate::config::Limit;
use crate::error::{Error, Result};
use crate::log;
use crate::policy::{Level, Limits, Plan};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;

/// Limits that several steps write to the same directories.
const UNDER_LOCK: [Limit; 5] = [Limit::Cpu, Limit::Burst, Limit::Weight, Limit::Processes, Limit::IoWeight];

/// Limits that take memory from running processes if they are lower than what is in use: not done while other steps run.
const AMOUNTS: [Limit; 3] = [Limit::Ram, Limit::Swap, Limit::MemoryHigh];

impl Fence {
    /// Writes the limits of the user, the job and then the step, and reads them back. Returns those that could not be set. Scheduler
    /// directories that are not known yet are limited once they are.
    pub fn limit(&mut self, plan: &Plan) -> Vec<LimitError> {
        let mut plan = plan.clone();
        // Disks are looked up here, since a task may be attached from where other file systems are mounted.
        let mut errors = match plan.names_disks().then(|| Dir::open("/proc").and_then(|proc| Disks::read(&proc))) {
            None => Vec::new(),
            Some(Ok(disks)) => plan.find_disks(|rules| io::limits_of(rules, &disks)),
            Some(Err(error)) => vec![(Limit::Io, error)],
        };
        if self.limits.lowest_io {
            plan.job.io_weight = Some(LEAST_WEIGHT);
        }
        let plan = &plan;
        for (controller, error) in &self.limits.missing {
            errors.extend(limiting::none_of(plan, |theirs| theirs == *controller, error));
        }
        if let Some(error) = &self.limits.quota_ignored
            && limiting::has_any(plan, Limit::Cpu)
        {
            errors.push((Limit::Cpu, error.clone()));
        }
        self.limits.plan = Some(plan.clone());
        for tree in &self.trees {
            self.limit_tree(tree, plan, &mut errors);
        }
        errors.extend(self.limit_network(plan.job.network).err().map(|error| (Limit::Network, error)));
        for tree in &mut self.trees {
            if let Tree::Own(own) = tree {
                own.untouched = Untouched::default();
            }
        }
        // Scheduler directories that were known earlier (Slurm 26.05) were enabled before tasks were planned.
        if self.has_own_tasks() {
            self.count_in_overlays();
        }
        self.note_devices(&errors);
        errors
    }

    /// Bounds what the job sends. `None` lifts a bound, if the administrator changes the job.
    fn limit_network(&self, rate: Option<u64>) -> Result<()> {
        if rate.is_none() && !self.limits.is_change {
            return Ok(());
        }
        match (self.trees.iter().find(|tree| tree.hierarchy().version == Version::V2), rate) {
            (None | Some(Tree::Overlay(_)), None) => Ok(()),
            (None, _) => Err(Error::new("the network of a job is bounded only where there is cgroup2 (NetworkMax)")),
            (Some(Tree::Overlay(_)), _) => Err(no_network()),
            (Some(tree), rate) => network::bound(&*tree.job()?, rate.unwrap_or(0)),
        }
    }

    /// As `limit`, for a change by the administrator: the job may then get more than before, or less than it uses.
    pub fn change(&mut self, plan: &Plan) -> Vec<LimitError> {
        self.limits.is_change = true;
        let mut errors = self.limit(plan);
        self.limits.is_change = false;
        // On v1 a fence has directories only in the hierarchies of the limits that it was opened with.
        let lacks = |controller: &str| !self.trees.iter().any(|tree| tree.hierarchy().has(controller));
        let why = Error::new("the fence has no directory there, since it was opened without such a limit")
            .hint("close it, and open it with the limit");
        errors.extend(limiting::none_of(plan, lacks, &why));
        errors
    }

    /// Waits until nobody else changes limits of running jobs. Keeps `jobfence hold`, which may lend memory to the fence's job, from
    /// changing the job's limit meanwhile.
    pub fn lock_changes(&self, deadline: Instant) -> Result<(Lock, Option<Lock>)> {
        let records = &self.claim.records;
        let resizes = records.lock_resizes(deadline)?;
        let Some(tree) = self.trees.iter().find(|tree| tree.hierarchy().has("memory")) else {
            return Ok((resizes, None));
        };
        Ok((resizes, Some(records.lock_memory(tree.job()?.stat()?.st_ino, deadline)?)))
    }

    /// Withdraws what `jobfence resize` has noted of the job: other limits are its limits now.
    pub fn forget_resized(&self) -> Result<()> {
        self.trees.iter().try_for_each(|tree| mark::remove_resized(&*tree.job()?))
    }

    /// Writes the limits of one hierarchy, if the step's directory is known there.
    pub(super) fn limit_tree(&self, tree: &Tree, plan: &Plan, errors: &mut Vec<LimitError>) {
        if matches!(tree, Tree::Overlay(overlay) if !overlay.is_located()) {
            return;
        }
        let Some(mut levels) = self.open_levels(tree, plan, errors) else { return };
        errors.extend(limiting::not_together(plan, &levels.hierarchy));
        if let Tree::Overlay(overlay) = tree {
            errors.extend(limiting::no_devices(plan, &levels.hierarchy, overlay.scheduler));
            // On v1 none of the scheduler's daemons is in the job's directory of the cpu hierarchy.
            let batch = if levels.hierarchy.version == Version::V2 { overlay.batch_quota() } else { None };
            levels.place = Placing::Overlay { headroom: self.limits.headroom, daemons: 0, batch };
        }
        self.limit_under_lock(tree, &mut levels, errors);
        self.limit_class(tree, plan, &levels.hierarchy, errors);
        levels.limit_amounts(errors);
        let is_cores_ours = || self.are_ours(tree, plan);
        for level in [Level::User, Level::Job, Level::Step] {
            let is_done = |limit| UNDER_LOCK.contains(&limit) || AMOUNTS.contains(&limit);
            levels.set(level, |limit| !is_done(limit) && (limit != Limit::Cores || is_cores_ours()), errors);
        }
    }

    /// Opens the directories to limit, and enables their controllers.
    fn open_levels<'a>(&'a self, tree: &'a Tree, plan: &'a Plan, errors: &mut Vec<LimitError>) -> Option<Levels<'a>> {
        let mut hierarchy = tree.hierarchy().clone();
        let none = |hierarchy: &Hierarchy, error| limiting::none_of(plan, |theirs| hierarchy.has(theirs), &error);
        let (job, step) = match tree.job().and_then(|job| Ok((job, tree.step()?))) {
            Ok(dirs) => dirs,
            Err(error) => {
                errors.extend(none(&hierarchy, error));
                return None;
            }
        };
        self.count_tasks(tree, plan, &step);
        for (controller, error) in self.enable(tree, plan, &step) {
            errors.extend(limiting::none_of(plan, |theirs| theirs == controller && hierarchy.has(theirs), &error));
            hierarchy.controllers.retain(|has| has != controller);
        }
        let user = match tree.user().transpose() {
            Ok(user) => user,
            Err(error) => {
                errors.extend(none(&hierarchy, error));
                return None;
            }
        };
        if let (None, Tree::Overlay(overlay)) = (&user, tree) {
            errors.extend(limiting::none_for_the_user(plan, &hierarchy, overlay.scheduler));
        }
        let is_change = self.limits.is_change;
        let untouched = tree.own().map_or_else(Untouched::default, |own| own.untouched);
        Some(Levels { hierarchy, plan, user, job, step, place: Placing::Own, is_change, untouched })
    }

    /// Sets the limits that another step could be writing now. Only these take the lock: the kernel may need long to lower a memory
    /// limit, and no step must wait for that.
    fn limit_under_lock(&self, tree: &Tree, levels: &mut Levels<'_>, errors: &mut Vec<LimitError>) {
        let is_planned = |limit: &Limit| limiting::is_planned(levels.plan, *limit, &levels.hierarchy);
        if !UNDER_LOCK.iter().any(is_planned) {
            return;
        }
        let _lock = match self.claim.records.lock_limits(Instant::now() + LOCK_TIMEOUT) {
            Ok(lock) => lock,
            Err(error) => {
                let planned = UNDER_LOCK.into_iter().filter(is_planned);
                return errors.extend(planned.map(|limit| (limit, error.clone())));
            }
        };
        if let (Placing::Overlay { daemons, .. }, Tree::Overlay(overlay), true) =
            (&mut levels.place, tree, levels.hierarchy.has("pids"))
        {
            *daemons = overlay.daemons(&levels.job);
        }
        if levels.hierarchy.has("cpu") {
            levels.limit_cpu(errors);
        }
        for level in [Level::User, Level::Job, Level::Step] {
            levels.set(level, |limit| limit != Limit::Cpu && UNDER_LOCK.contains(&limit), errors);
        }
        levels.weigh_user(errors);
    }

    /// Limits the branch of scavengers.
    fn limit_class(&self, tree: &Tree, plan: &Plan, hierarchy: &Hierarchy, errors: &mut Vec<LimitError>) {
        let Tree::Own(own) = tree else { return };
        let top = || own.dirs.first().ok_or_else(|| not_made("class", hierarchy));
        if plan.scavenger && hierarchy.has("cpu") {
            errors.extend(top().and_then(limiting::make_idle).err().map(|error| (Limit::Weight, error)));
        }
        if self.limits.lowest_io && hierarchy.has("io") {
            let set = top().and_then(|top| io::set_weight(top, hierarchy.version, LEAST_WEIGHT));
            errors.extend(set.err().map(|error| (Limit::IoWeight, error)));
        }
    }

    /// Whether jobfence limits the step's CPUs: not if the scheduler does.
    fn are_ours(&self, tree: &Tree, plan: &Plan) -> bool {
        let (Tree::Overlay(overlay), Some(ours)) = (tree, &plan.step.cores) else { return true };
        let version = overlay.hierarchy.version;
        let dirs = overlay.step().and_then(|step| Ok((step, overlay.above_jobs()?)));
        match dirs.and_then(|(step, all)| limiting::compare_cores(&step, &all, version, ours)) {
            Ok(Cores::Same) => false,
            Ok(Cores::Other(theirs)) => {
                log::warn!(
                    "{}: {} limits the step to the CPUs {theirs}, and these stay; by jobfence's own map of cores \
                     they would be {ours}: please report that, with the output of lscpu -e",
                    self.key,
                    overlay.scheduler.name()
                );
                false
            }
            // If the cpuset cannot be read, writing it gives the error.
            Ok(Cores::Unlimited) | Err(_) => true,
        }
    }

    /// Checks the step's CPUs again, once, after the scheduler has written its cpuset: on cgroup2 Slurm does so after the step's
    /// beginning. On v1 Slurm's directory does not exist before that.
    pub(super) fn check_cores(&mut self) {
        if std::mem::replace(&mut self.limits.are_cores_checked, true) {
            return;
        }
        let Some(plan) = &self.limits.plan else { return };
        for tree in self.trees.iter().filter(|tree| tree.hierarchy().version == Version::V2) {
            if limiting::is_planned(plan, Limit::Cores, tree.hierarchy()) {
                self.are_ours(tree, plan);
            }
        }
    }

    /// Enables the controllers for the step and for its tasks' directories. Returns those that cannot be enabled.
    fn enable(&self, tree: &Tree, plan: &Plan, step: &Dir) -> Vec<(&'static str, Error)> {
        as_far_as_can_be(&self.limits.controllers, |wanted| match tree {
            Tree::Overlay(overlay) => overlay.enable(wanted, step, !plan.task.is_empty()),
            Tree::Own(own) if !plan.task.is_empty() => handing_down::enable(step, &own.hierarchy, wanted, false),
            Tree::Own(_) => Ok(()),
        })
    }

    /// Enables counting of each task's use in jobfence's directories. A failure does not fail the job.
    fn count_tasks(&self, tree: &Tree, plan: &Plan, step: &Dir) {
        let Tree::Own(own) = tree else { return };
        let counted = self.limits.counted.iter().filter(|_| !plan.task.is_empty());
        for controller in counted.filter(|controller| own.hierarchy.hands_down(controller)) {
            if let Err(error) = handing_down::enable(step, &own.hierarchy, &[controller], false) {
                log::debug!("{}: nothing is counted by {controller} for each task: {error}", self.key);
            }
        }
    }

    /// Lowers `memory.high` of the step once more. On cgroup2 Slurm makes the step's directory before its task/cgroup writes memory
    /// limits into it, `memory.high` among them (`task_g_pre_setuid`, after `slurm_spank_init_post_opt`). Later Slurm writes there only
    /// if a running job's memory is changed (Slurm 26.05), without telling jobfence.
    pub(super) fn reclaim_again(&self, overlay: &Overlay, plan: &Plan, errors: &mut Vec<LimitError>) {
        let hierarchy = &overlay.hierarchy;
        let Some(high) = plan.step.high.filter(|_| hierarchy.has("memory")) else { return };
        let step = match overlay.step() {
            Ok(step) => step,
            Err(error) => return errors.push((Limit::MemoryHigh, error)),
        };
        let limits = Limits { high: Some(high), ..Limits::default() };
        let limits = limiting::within_theirs(&step, hierarchy.version, &limits);
        let place = Placing::Overlay { headroom: self.limits.headroom, daemons: 0, batch: None };
        limiting::set(&step, hierarchy, Level::Step, place, &limits, |limit| limit == Limit::MemoryHigh, errors);
    }

    /// Limits swap in the scheduler's directories if the configuration leaves swap to schedulers that limit memory, and this one does
    /// not. This is decided once, when a task is there or the extern step is complete: only then has Slurm's task/cgroup written the
    /// memory limits of the job and the step (`task_g_pre_setuid`; on v1 it makes the directories no sooner).
    pub(super) fn limit_swap(&mut self, errors: &mut Vec<LimitError>) {
        let Some(plan) = self.limits.plan.as_ref().filter(|plan| !self.limits.is_swap_decided && plan.step.swap_yields)
        else {
            return;
        };
        let limits = Limits { swap: plan.step.swap, ..Limits::default() };
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let hierarchy = &overlay.hierarchy;
            if !hierarchy.has("memory") || !overlay.is_located() {
                continue;
            }
            self.limits.is_swap_decided = true;
            let theirs = overlay.job().and_then(|job| limiting::limits_memory_itself(&job, hierarchy.version));
            let step = match theirs {
                Ok(true) => continue,
                Ok(false) => overlay.step(),
                Err(error) => Err(error),
            };
            match step {
                Ok(step) => {
                    let limits = limiting::within_theirs(&step, hierarchy.version, &limits);
                    let place = Placing::Overlay { headroom: self.limits.headroom, daemons: 0, batch: None };
                    limiting::set(&step, hierarchy, Level::Step, place, &limits, |limit| limit == Limit::Swap, errors);
                }
                Err(error) => errors.push((Limit::Swap, error)),
            }
        }
    }

    /// Limits one task, which may have no more than its step.
    pub(super) fn limit_task(&self, tree: &Tree, task: &Dir, plan: &Plan, errors: &mut Vec<LimitError>) {
        let hierarchy = tree.hierarchy();
        let place = match tree {
            Tree::Own(_) => Placing::Own,
            Tree::Overlay(_) => Placing::Overlay { headroom: self.limits.headroom, daemons: 0, batch: None },
        };
        let mut limits = limiting::limits_at(plan, Level::Task, place, hierarchy.version);
        if let Some(quota) = limits.cpu.filter(|_| hierarchy.has("cpu")) {
            let of_step = tree.step().and_then(|step| limits::cpu_quota(&step, hierarchy.version)).ok().flatten();
            limits.cpu = Some(of_step.map_or(quota, |of_step| quota.at_most(of_step)));
        }
        limiting::set(task, hierarchy, Level::Task, place, &limits, |_| true, errors);
    }

    /// Makes these directories below the step's, and limits the memory of all that another program puts there.
    pub fn limit_branches(&self, names: &[String], limits: &Limits) -> Vec<LimitError> {
        if limits.is_empty() {
            return Vec::new();
        }
        let mut errors = Vec::new();
        for tree in &self.trees {
            let hierarchy = tree.hierarchy();
            let Some(step) = tree.own().and_then(Own::step).filter(|_| hierarchy.has("memory")) else { continue };
            if let Err(error) = enable(step, hierarchy, &["memory"], false) {
                errors.push((Limit::Ram, error));
                continue;
            }
            // On v2 the step's own limit is one of swap alone, and the job gets no more of that here.
            let swap = limits.swap.filter(|_| hierarchy.version == Version::V1);
            let limits = Limits { swap, ..limits.clone() };
            for name in names {
                match step.ensure(name) {
                    Ok(dir) => {
                        limiting::set(&dir, hierarchy, Level::Task, Placing::Own, &limits, |_| true, &mut errors)
                    }
                    Err(error) => errors.push((Limit::Ram, error)),
                }
            }
        }
        errors
    }

    pub(super) fn note_devices(&mut self, errors: &[LimitError]) {
        self.limits.without_devices |= errors.iter().any(|(limit, _)| *limit == Limit::Devices);
    }
}

/// Why what a job sends is not bounded in a scheduler's directories.
pub(super) fn no_network() -> Error {
    Error::new("jobs in cgroups of the scheduler's own have no NetworkMax")
        .hint("jobfence sees only what is sent below its own directory")
}

/// The directories to limit in one hierarchy, and their limits.
struct Levels<'a> {
    hierarchy: Hierarchy,
    plan: &'a Plan,
    /// `None` where the scheduler has none.
    user: Option<OpenDir<'a>>,
    job: OpenDir<'a>,
    step: OpenDir<'a>,
    place: Placing,
    /// See [`Fence::change`].
    is_change: bool,
    untouched: Untouched,
}

impl Levels<'_> {
    fn dir(&self, level: Level) -> Option<&Dir> {
        match level {
            Level::User => self.user.as_deref(),
            Level::Job => Some(&*self.job),
            Level::Step => Some(&*self.step),
            Level::Task => None,
        }
    }

    fn set(&self, level: Level, which: impl Fn(Limit) -> bool, errors: &mut Vec<LimitError>) {
        let Some(dir) = self.dir(level) else { return };
        let limits = limiting::limits_at(self.plan, level, self.place, self.hierarchy.version);
        limiting::set(dir, &self.hierarchy, level, self.place, &limits, which, errors);
    }

    /// As `untouched`, but now: another step may have limited the job since its directory was made.
    fn untouched_now(&self) -> Untouched {
        Untouched { job: self.untouched.job && own::has_one_step(&self.job), ..self.untouched }
    }

    fn limit_cpu(&self, errors: &mut Vec<LimitError>) {
        let version = self.hierarchy.version;
        let of_user = self.user.as_ref().zip(self.plan.user.cpu);
        let limited = of_user.map_or(Ok(()), |(user, quota)| limiting::change_cpu(user, version, quota).map(drop));
        // All limits are tried: if OnError lets the job run, only the failed one is missing.
        let all = [
            limited,
            limiting::cpu(
                &self.job,
                &self.step,
                version,
                self.plan,
                (self.place, self.is_change, self.untouched_now()),
            ),
        ];
        errors.extend(all.into_iter().filter_map(Result::err).map(|error| (Limit::Cpu, error)));
    }

    fn weigh_user(&self, errors: &mut Vec<LimitError>) {
        let Some(user) = &self.user else { return };
        if self.plan.weighs && self.hierarchy.has("cpu") {
            let weighed = limiting::weigh_user(user, self.hierarchy.version);
            errors.extend(weighed.err().map(|error| (Limit::Weight, error)));
        }
        if self.plan.job.io_weight.is_some() && self.hierarchy.has("io") {
            let weighed = limiting::weigh_io_of_user(user, self.hierarchy.version);
            // An error that the job's own directory already gave is not repeated.
            let known = errors.iter().any(|(limit, _)| *limit == Limit::IoWeight);
            errors.extend(weighed.err().filter(|_| !known).map(|error| (Limit::IoWeight, error)));
        }
    }

    fn limit_amounts(&self, errors: &mut Vec<LimitError>) {
        let (plan, version) = (self.plan, self.hierarchy.version);
        let mut resized = None;
        for level in [Level::User, Level::Job, Level::Step] {
            let (Some(dir), true) = (self.dir(level), self.hierarchy.has("memory")) else { continue };
            let limits = plan.of(level);
            let is_new = level == Level::Job && (self.is_change || self.untouched_now().job);
            if level != Level::Step
                && !is_new
                && let Some(stays) = limiting::stays_in_memory(dir, version, limits)
            {
                if let Stays::Resized(ram) = stays {
                    resized = Some(ram);
                }
                continue;
            }
            if level == Level::User && limiting::is_exceeded(dir, version, limits) {
                continue;
            }
            let mut limits = limiting::limits_at(plan, level, self.place, version);
            if let (Level::Step, Some(ram)) = (level, resized) {
                limiting::follow_job(&mut limits, &self.job, version, &plan.job, ram);
            }
            // Schedulers do not limit users.
            if self.place != Placing::Own && level != Level::User {
                limits = limiting::within_theirs(dir, version, &limits);
                // `limit_swap` decides on swap, after the scheduler has set its limits.
                limits.swap = limits.swap.filter(|_| !limits.swap_yields);
            }
            limiting::set(dir, &self.hierarchy, level, self.place, &limits, |limit| AMOUNTS.contains(&limit), errors);
        }
    }
}

/// Enables all controllers at once or, if that fails, each by itself: an unavailable one must not cost the limits of the others.
/// Returns the unavailable ones.
fn as_far_as_can_be(
    wanted: &[&'static str],
    enable: impl Fn(&[&'static str]) -> Result<()>,
) -> Vec<(&'static str, Error)> {
    if enable(wanted).is_ok() {
        return Vec::new();
    }
    wanted.iter().filter_map(|controller| Some((*controller, enable(&[*controller]).err()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_is_not_to_be_had_takes_no_other_limits_with_it() {
        let enable = |wanted: &[&'static str]| match wanted.contains(&"io") {
            true => Err(Error::new("the cgroup does not have the io controller")),
            false => Ok(()),
        };
        let lacking = |wanted: &[&'static str]| {
            as_far_as_can_be(wanted, enable).into_iter().map(|(controller, _)| controller).collect::<Vec<_>>()
        };
        assert_eq!(lacking(&["cpu", "io", "memory"]), ["io"]);
        assert_eq!(lacking(&["cpu", "memory"]), Vec::<&str>::new());
    }
}
