// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives a job that runs more or less than it was granted: new limits in the directories of the job, its steps and their tasks, whichever
//! process has made them.
//!
//! A step that had all of its job has all of it afterwards. A step that had less keeps that, unless it is more than the job has now. All
//! other limits stay. For commands alone: taking memory back waits, so no daemon of a scheduler may call this.

use std::path::Path;

use super::limiting::{self, LimitError, Placing, limits_at};
use super::living::{LivingStep, StepPlace};
use super::shrink;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota, SwapLimit, memory_limit};
use crate::config::{Limit, TaskCpus};
use crate::error::Result;
use crate::job::Cpus;
use crate::policy::{Level, Limits, Plan};
use crate::sys::dir::Dir;

/// So many levels below a step a scheduler has limited directories of its own.
const DEEPEST_BRANCH: usize = 3;

/// What a job, or a step, has from now on.
#[derive(Debug, Clone, Copy)]
pub struct NewLimits<'a> {
    /// The limits of a job that was granted the new amounts.
    pub plan: &'a Plan,
    /// Whether its CPU time is changed.
    pub cpus: bool,
    /// Whether its memory is changed.
    pub memory: bool,
    /// Whether the job's own directory is changed; otherwise only the given steps are.
    pub whole_job: bool,
    /// What a task is limited to.
    pub task_cpus: TaskCpus,
    /// CPUs for a scheduler's daemons in its own directories, on top of the grant.
    pub headroom: Cpus,
}

/// A step's directory and what is known of it.
struct Step<'a> {
    place: &'a StepPlace<'a>,
    dir: Dir,
}

/// The directories of one job in one hierarchy.
struct Group<'a> {
    hierarchy: &'a Hierarchy,
    place: Placing,
    job: Dir,
    user: Option<Dir>,
    steps: Vec<Step<'a>>,
}

/// Writes the new limits and reads them back. An error: memory is in use, and nothing was changed. Otherwise returns what could not be set.
pub fn resize(steps: &[LivingStep<'_>], new: &NewLimits<'_>) -> Result<Vec<LimitError>> {
    let groups = groups(steps, new)?;
    if new.memory {
        // Before all else, since only this can be refused.
        groups.iter().try_for_each(|group| group.shrink(new))?;
    }
    let mut errors = Vec::new();
    for group in &groups {
        if new.memory && group.hierarchy.has("memory") {
            group.set_memory(new, &mut errors);
        }
        if new.cpus && group.hierarchy.has("cpu") {
            errors.extend(group.set_cpus(new, &mut Vec::new()).err().map(|error| (Limit::Cpu, error)));
            group.weigh(new, &mut errors);
        }
    }
    Ok(errors)
}

/// Brings the plan that is recorded of a step up to its directories.
pub fn renew(plan: &mut Plan, step: &LivingStep<'_>, new: &NewLimits<'_>, step_before: Option<CpuQuota>) {
    for place in &step.places {
        let version = place.hierarchy.version;
        let (Ok(job), Ok(dir)) = (Dir::open(&place.job), Dir::open(&place.step)) else { continue };
        // The job's directory has headroom there.
        let is_plain = !place.is_overlay || version == Version::V1;
        for (level, dir) in [(&mut plan.job, Some(&job).filter(|_| is_plain)), (&mut plan.step, Some(&dir))] {
            let Some(dir) = dir else { continue };
            if new.cpus && place.hierarchy.has("cpu") {
                level.cpu = limits::cpu_quota(dir, version).ok().flatten();
                level.weight = level.weight.and(new.plan.job.weight);
            }
            if new.memory && place.hierarchy.has("memory") {
                level.ram = memory_limit(dir, limits::memory_files(version).0).ok().flatten();
                let swap = new.plan.job.swap.zip(level.ram);
                level.swap = level.swap.and(swap).map(|(swap, ram)| SwapLimit { ram, ..swap });
                level.high = level.high.and(new.plan.job.high);
                level.low = level.low.and(new.plan.job.low);
                level.min = level.min.and(new.plan.job.min);
            }
        }
    }
    if new.cpus
        && let (TaskCpus::Granted, Some(before), Some(after)) = (new.task_cpus, step_before, plan.step.cpu)
    {
        plan.task.cpu = plan.task.cpu.map(|task| task.in_proportion(before, after));
    }
}

/// The CPU time of a step, where it is limited.
pub fn cpus_of(step: &LivingStep<'_>) -> Option<CpuQuota> {
    let of_place = |place: &StepPlace<'_>| {
        limits::cpu_quota(&Dir::open(&place.step).ok()?, place.hierarchy.version).ok().flatten()
    };
    step.places.iter().filter(|place| place.hierarchy.has("cpu")).find_map(of_place)
}

/// The memory limits of a scheduler's own, by which the job's memory is not jobfence's to change.
pub fn limited_by_others<'a>(steps: &'a [LivingStep<'_>]) -> Option<&'a Path> {
    let is_limited = |place: &&StepPlace<'_>| {
        place.is_overlay
            && place.hierarchy.has("memory")
            && Dir::open(&place.job)
                .and_then(|job| limiting::limits_memory_itself(&job, place.hierarchy.version))
                .unwrap_or(true)
    };
    steps.iter().flat_map(|step| &step.places).find(is_limited).map(|place| place.job.as_path())
}

fn groups<'a>(steps: &'a [LivingStep<'_>], new: &NewLimits<'_>) -> Result<Vec<Group<'a>>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for place in steps.iter().flat_map(|step| &step.places) {
        // A step that ends meanwhile needs no limit.
        let dir = match Dir::open(&place.step) {
            Err(error) if error.is_gone() => continue,
            dir => dir?,
        };
        let step = Step { place, dir };
        match groups.iter_mut().find(|group| group.job.path() == place.job) {
            Some(group) => group.steps.push(step),
            None => groups.push(Group {
                hierarchy: place.hierarchy,
                place: match place.is_overlay {
                    true => Placing::Overlay { headroom: new.headroom, daemons: 0, batch: None },
                    false => Placing::Own,
                },
                job: Dir::open(&place.job)?,
                user: place.dir(Level::User).map(Dir::open).transpose()?,
                steps: vec![step],
            }),
        }
    }
    Ok(groups)
}

impl Group<'_> {
    fn version(&self) -> Version {
        self.hierarchy.version
    }

    fn set(&self, dir: &Dir, level: Level, limits: &Limits, which: Limit, errors: &mut Vec<LimitError>) {
        limiting::set(dir, self.hierarchy, level, self.place, limits, |limit| limit == which, errors);
    }

    /// The job's quota without what is on top of the grant.
    fn cpus_of_job(&self) -> Result<Option<CpuQuota>> {
        let quota = limits::cpu_quota(&self.job, self.version())?;
        Ok(quota.map(|quota| match self.place {
            Placing::Overlay { headroom, .. } if self.version() == Version::V2 => quota.without(headroom),
            _ => quota,
        }))
    }

    fn set_cpus(&self, new: &NewLimits<'_>, errors: &mut Vec<LimitError>) -> Result<()> {
        let version = self.version();
        let Some(want) = new.plan.job.cpu else { return Ok(()) };
        let of_job = self.cpus_of_job()?;
        let before: Vec<Option<CpuQuota>> =
            self.steps.iter().map(|step| limits::cpu_quota(&step.dir, version)).collect::<Result<_>>()?;
        // Where the scheduler grants to each step by itself, the job's directory has no limit.
        let is_limited = of_job.is_some() || before.iter().all(Option::is_none);
        let tasks: Vec<Vec<(Dir, CpuQuota)>> = self.steps.iter().map(|step| step.limited_tasks(version)).collect();
        let burst = |dir: &Dir, level, errors: &mut Vec<LimitError>| {
            self.set(dir, level, new.plan.of(level), Limit::Burst, errors);
        };
        if new.whole_job && is_limited {
            let with_headroom = limits_at(new.plan, Level::Job, self.place, version).cpu.unwrap_or(want);
            limiting::change_cpu(&self.job, version, with_headroom)?;
            burst(&self.job, Level::Job, errors);
        }
        for ((step, before), tasks) in self.steps.iter().zip(before).zip(tasks) {
            let want = new_cpus(new.whole_job, of_job, before, want);
            limiting::change_cpu(&step.dir, version, want)?;
            burst(&step.dir, Level::Step, errors);
            for (task, quota) in tasks {
                let want = match (new.task_cpus, before) {
                    (TaskCpus::Granted, Some(before)) => quota.in_proportion(before, want),
                    (TaskCpus::Count(_), _) => new.plan.task.cpu.unwrap_or(quota),
                    _ => quota,
                };
                limiting::change_cpu(
                    &task,
                    version,
                    want.at_most(limits::cpu_quota(&step.dir, version)?.unwrap_or(want)),
                )?;
            }
        }
        Ok(())
    }

    fn weigh(&self, new: &NewLimits<'_>, errors: &mut Vec<LimitError>) {
        if new.whole_job {
            let of_job = limits_at(new.plan, Level::Job, self.place, self.version());
            self.set(&self.job, Level::Job, &of_job, Limit::Weight, errors);
        }
        for step in &self.steps {
            self.set(&step.dir, Level::Step, &new.plan.step, Limit::Weight, errors);
        }
        if let (Placing::Own, Some(user), true) = (self.place, &self.user, new.plan.weighs) {
            errors.extend(limiting::weigh_user(user, self.version()).err().map(|error| (Limit::Weight, error)));
        }
    }

    /// The memory limits of the job and of each step; `None` is none.
    fn memory(&self) -> (Option<u64>, Vec<Option<u64>>) {
        let ram = |dir: &Dir| memory_limit(dir, limits::memory_files(self.version()).0).ok().flatten();
        (ram(&self.job), self.steps.iter().map(|step| ram(&step.dir)).collect())
    }

    /// Whether the job's own directory is to be limited.
    fn limits_memory_of_job(&self, new: &NewLimits<'_>) -> bool {
        let (of_job, steps) = self.memory();
        new.whole_job && self.place == Placing::Own && (of_job.is_some() || steps.iter().all(Option::is_none))
    }

    /// What each step is to have: see [`new_memory`].
    fn memory_wanted(&self, new: &NewLimits<'_>, ram: u64) -> Vec<u64> {
        let (of_job, steps) = self.memory();
        let all = of_job.or_else(|| steps.iter().copied().flatten().max());
        let each = self.steps.iter().zip(&steps);
        each.map(|(step, before)| new_memory(new.whole_job, (of_job, all), *before, step.room(self.version()), ram))
            .collect()
    }

    /// Brings what is in use below the new limits.
    fn shrink(&self, new: &NewLimits<'_>) -> Result<()> {
        let version = self.version();
        let Some(ram) = new.plan.job.ram.filter(|_| self.hierarchy.has("memory")) else { return Ok(()) };
        if self.limits_memory_of_job(new) {
            return shrink::shrink(&self.job, version, ram);
        }
        let wanted = self.memory_wanted(new, ram);
        self.steps.iter().zip(wanted).try_for_each(|(step, wanted)| {
            // What the scheduler runs beside the job does not count for the job.
            let branches = step.branches(version, ram);
            branches.iter().try_for_each(|(branch, ram)| shrink::shrink(branch, version, *ram))?;
            shrink::shrink(&step.dir, version, wanted)
        })
    }

    fn set_memory(&self, new: &NewLimits<'_>, errors: &mut Vec<LimitError>) {
        let Some(ram) = new.plan.job.ram else { return };
        let (of_job, before) = self.memory();
        let wanted = self.memory_wanted(new, ram);
        if self.limits_memory_of_job(new) {
            self.set_amounts(&self.job, Level::Job, &self.amounts(&self.job, new, ram, of_job.is_none()), errors);
        }
        for ((step, before), wanted) in self.steps.iter().zip(before).zip(wanted) {
            if before == Some(limits::whole_pages(wanted)) {
                continue;
            }
            // Looked at before the step's own limit is another.
            let branches = step.branches(self.version(), ram);
            let amounts = self.amounts(&step.dir, new, wanted, before.is_none());
            self.set_amounts(&step.dir, Level::Step, &amounts, errors);
            for (branch, ram) in branches {
                self.set_amounts(&branch, Level::Task, &self.amounts(&branch, new, ram, false), errors);
            }
        }
    }

    fn set_amounts(&self, dir: &Dir, level: Level, limits: &Limits, errors: &mut Vec<LimitError>) {
        for which in [Limit::Ram, Limit::Swap, Limit::MemoryHigh, Limit::MemoryProtection] {
            self.set(dir, level, limits, which, errors);
        }
    }

    /// The memory limits of a directory: of each kind that it has, or all if it has none yet.
    fn amounts(&self, dir: &Dir, new: &NewLimits<'_>, ram: u64, is_first: bool) -> Limits {
        let (version, plan) = (self.version(), &new.plan.job);
        let is_set = |file: &str| is_first || memory_limit(dir, file).is_ok_and(|limit| limit.is_some());
        let is_protected = |file: &str| {
            version == Version::V2
                && (is_first || memory_limit(dir, file).is_ok_and(|limit| limit.is_some_and(|bytes| bytes > 0)))
        };
        Limits {
            ram: Some(ram),
            swap: plan.swap.filter(|_| is_set(limits::memory_files(version).1)).map(|swap| SwapLimit { ram, ..swap }),
            high: plan.high.filter(|_| is_set(limits::high_file(version))),
            low: plan.low.filter(|_| is_protected("memory.low")),
            min: plan.min.filter(|_| is_protected("memory.min")),
            ..Limits::default()
        }
    }
}

/// What a step is limited to if its job, which had `of_job`, gets `want`.
fn new_cpus(whole_job: bool, of_job: Option<CpuQuota>, before: Option<CpuQuota>, want: CpuQuota) -> CpuQuota {
    match (whole_job, of_job, before) {
        (true, Some(of_job), Some(before)) if of_job.is_above(before) => before.at_most(want),
        (false, Some(of_job), _) => want.at_most(of_job),
        _ => want,
    }
}

/// The same for memory. `all`: what the job had, or its largest step. `room`: what a step has beyond its grant, for what the scheduler runs
/// in it.
fn new_memory(
    whole_job: bool,
    (of_job, all): (Option<u64>, Option<u64>),
    before: Option<u64>,
    room: u64,
    ram: u64,
) -> u64 {
    let want = ram.saturating_add(room);
    match (whole_job, all, before) {
        (true, Some(all), Some(before)) if before < all => before.min(want),
        (false, ..) => of_job.map_or(want, |of_job| want.min(of_job)),
        _ => want,
    }
}

impl Step<'_> {
    fn limited_tasks(&self, version: Version) -> Vec<(Dir, CpuQuota)> {
        let quota = |dir: Dir| limits::cpu_quota(&dir, version).ok().flatten().map(|quota| (dir, quota));
        self.place.task_dirs(&self.dir).into_iter().filter_map(quota).collect()
    }

    /// Root's directories below the step's whose memory is limited, and that are no task's, each with its limit: the scheduler puts the job
    /// there. The outer ones come first.
    fn limited_branches(&self, version: Version) -> Vec<(Dir, u64)> {
        let file = limits::memory_files(version).0;
        let is_roots = |dir: &Dir| dir.stat().is_ok_and(|stat| stat.st_uid == 0);
        let with_limit = |dir: Dir| memory_limit(&dir, file).ok().flatten().map(|limit| (dir, limit));
        let mut level: Vec<Dir> = self.place.other_dirs(&self.dir).into_iter().filter(is_roots).collect();
        let mut found = Vec::new();
        for _ in 0..DEEPEST_BRANCH {
            let names = |dir: &Dir| dir.list(true).unwrap_or_default();
            let below = |dir: &Dir| names(dir).iter().filter_map(|name| dir.child(name).ok()).collect::<Vec<_>>();
            let next = level.iter().flat_map(below).filter(is_roots).collect();
            found.extend(std::mem::replace(&mut level, next).into_iter().filter_map(with_limit));
        }
        found
    }

    /// What each of them is to have.
    fn branches(&self, version: Version, ram: u64) -> Vec<(Dir, u64)> {
        let all = self.limited_branches(version);
        let granted = all.iter().map(|(_, limit)| *limit).max();
        let new = |(dir, before)| (dir, new_memory(true, (None, granted), Some(before), 0, ram));
        all.into_iter().map(new).collect()
    }

    fn room(&self, version: Version) -> u64 {
        let all = memory_limit(&self.dir, limits::memory_files(version).0).ok().flatten();
        let granted = self.limited_branches(version).into_iter().map(|(_, limit)| limit).max();
        all.zip(granted).map_or(0, |(all, granted)| all.saturating_sub(granted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(number: u64) -> CpuQuota {
        CpuQuota { quota_us: number * 100_000, period_us: 100_000 }
    }

    #[test]
    fn a_step_has_all_of_its_job_or_no_more_than_it_had() {
        for (whole_job, of_job, before, want, expected) in [
            // All of it, up and down.
            (true, Some(2), Some(2), 4, 4),
            (true, Some(2), Some(2), 1, 1),
            // Less than its job.
            (true, Some(4), Some(2), 8, 2),
            (true, Some(4), Some(2), 1, 1),
            // Granted by itself, or not limited so far.
            (true, None, Some(2), 3, 3),
            (true, None, None, 3, 3),
            // The step alone has no more than its job.
            (false, Some(4), Some(2), 3, 3),
            (false, Some(4), Some(2), 9, 4),
            (false, None, Some(2), 9, 9),
        ] {
            let found = new_cpus(whole_job, of_job.map(cpus), before.map(cpus), cpus(want));
            assert_eq!(found, cpus(expected), "{whole_job} {of_job:?} {before:?} {want}");
            let found = new_memory(whole_job, (of_job, of_job), before, 0, want);
            assert_eq!(found, expected, "{whole_job} {of_job:?} {before:?} {want}");
        }
        // The largest step stands for a job without a limit.
        assert_eq!(new_memory(true, (None, Some(8)), Some(3), 0, 16), 3);
        assert_eq!(new_memory(true, (None, Some(8)), Some(8), 2, 16), 18);
    }
}
