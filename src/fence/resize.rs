// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives a job that runs more or less than it was granted: new limits in the directories of the job, its steps and their tasks, whichever
//! process has made them. Only limits that are there are changed.
//!
//! A step that had all of its job has all of it afterwards. A step that had less keeps that, unless it is more than the job has now. All
//! other limits stay. For commands alone: taking memory back waits, so no daemon of a scheduler may call this.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::amounts::{self, Change, ram_of};
use super::below::limited_branches;
use super::limiting::{self, LimitError, Placing, limits_at};
use super::living::{LivingStep, StepPlace};
use super::seen::{SeenDir, SeenDirs};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota, SwapLimit, memory_limit};
use crate::config::{Limit, TaskCpus};
use crate::error::{Error, Result};
use crate::job::Cpus;
use crate::policy::{Level, Plan};
use crate::record::Records;
use crate::sys::dir::Dir;

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

/// What a job had in one hierarchy before it was resized.
#[derive(Debug, Clone, Copy, Default)]
struct Had {
    /// The job's quota, without what is on top of the grant.
    cpu: Option<CpuQuota>,
    weight: Option<u64>,
    ram: Option<u64>,
    /// The memory of the job, or of its largest step.
    all_ram: Option<u64>,
    /// Whether anything has a limit of CPU time.
    is_cpu_limited: bool,
}

/// What jobs had before they were resized, by their directories. A step that begins meanwhile is compared with this.
#[derive(Debug, Default)]
pub struct Before {
    /// The directories from the first look to the last write.
    pub dirs: SeenDirs,
    jobs: BTreeMap<PathBuf, Had>,
    /// What jobs are lent, by their directories.
    pub lent: BTreeMap<PathBuf, Loan>,
}

/// Memory that `jobfence hold` has lent a job, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Loan {
    /// The number of the job's directory.
    pub inode: u64,
    /// The limit that the job has for itself.
    pub grant: u64,
    /// The highest limit that it may have with what it is lent.
    pub limit: u64,
}

/// The directories of one job in one hierarchy.
struct Group<'a> {
    hierarchy: &'a Hierarchy,
    place: Placing,
    job: SeenDir,
    user: Option<PathBuf>,
    steps: Vec<(&'a StepPlace<'a>, SeenDir)>,
    had: Had,
}

/// Looks at what the job has, before the first change. An error: nothing is there that could be changed.
pub fn look(steps: &[LivingStep<'_>], new: &NewLimits<'_>, before: &mut Before) -> Result<()> {
    let groups = groups(steps, new, before)?;
    let has = |is_limited: fn(&Had) -> bool, controller: &str| {
        groups.iter().any(|group| group.hierarchy.has(controller) && is_limited(&group.had))
    };
    let none = |what: &str| {
        Error::new(format!("the job has no limit of {what} that could be changed"))
            .hint("a limit can be changed only if jobfence set one when the job began")
    };
    if new.memory && !has(|had| had.all_ram.is_some(), "memory") {
        return Err(none("memory"));
    }
    if new.cpus && !has(|had| had.is_cpu_limited || had.weight.is_some(), "cpu") {
        return Err(none("CPU time"));
    }
    let of_step = |group: &&Group<'_>| {
        let is_limited = new.memory && group.had.ram.is_none() && group.had.all_ram.is_some()
            || new.cpus && group.had.cpu.is_none() && group.had.is_cpu_limited;
        new.whole_job && group.place == Placing::Own && group.steps.len() > 1 && is_limited
    };
    match groups.iter().find(of_step) {
        Some(group) => Err(Error::new("the scheduler grants to each step of the job by itself:")
            .at(group.job.path())
            .hint("name one of them with --step")),
        None => Ok(()),
    }
}

/// Writes the new memory limits and reads them back. An error: all are as before, or it says which is not.
pub fn change_memory(
    steps: &[LivingStep<'_>],
    new: &NewLimits<'_>,
    before: &mut Before,
    deadline: Instant,
) -> Result<()> {
    let mut changes = Vec::new();
    for group in groups(steps, new, before)?.iter().filter(|group| group.hierarchy.has("memory")) {
        // All are computed before the first is written.
        changes.append(&mut group.memory_changes(new)?);
    }
    amounts::change(&changes, deadline)
}

/// Writes the new limits of CPU time and reads them back. Returns what could not be set.
pub fn change_cpus(
    steps: &[LivingStep<'_>],
    new: &NewLimits<'_>,
    before: &mut Before,
    (records, deadline): (&Records, Instant),
) -> Result<Vec<LimitError>> {
    // A step that begins writes the same files.
    let _lock = records.lock_limits(deadline)?;
    let mut errors = Vec::new();
    for group in groups(steps, new, before)?.iter().filter(|group| group.hierarchy.has("cpu")) {
        group.set_cpus(new, &mut errors);
        group.weigh(new, &mut errors);
    }
    Ok(errors)
}

/// Brings the plan that is recorded of a step up to its directories.
pub fn renew(
    plan: &mut Plan,
    step: &LivingStep<'_>,
    (new, dirs): (&NewLimits<'_>, &SeenDirs),
    step_before: Option<CpuQuota>,
) -> Result<()> {
    for place in &step.places {
        let version = place.hierarchy.version;
        // The job's directory has headroom there.
        let is_plain = !place.is_overlay || version == Version::V1;
        let levels = [(&mut plan.job, Some(&place.job).filter(|_| is_plain)), (&mut plan.step, Some(&place.step))];
        for (level, path) in levels {
            let Some(seen) = path.and_then(|path| dirs.get(path)) else { continue };
            let Some(dir) = seen.unless_gone(seen.open())? else { continue };
            if new.cpus && place.hierarchy.has("cpu") {
                level.cpu = seen.unless_gone(limits::cpu_quota(&dir, version))?.unwrap_or(level.cpu);
                level.weight = level.weight.and(new.plan.job.weight);
            }
            if new.memory && place.hierarchy.has("memory") {
                let amount = |file: &str| seen.unless_gone(memory_limit(&dir, file)).map(Option::flatten);
                level.ram = amount(limits::memory_files(version).0)?.or(level.ram);
                level.swap = level.swap.zip(level.ram).map(|(swap, ram)| SwapLimit { ram, ..swap });
                for (planned, file) in [
                    (&mut level.high, limits::high_file(version)),
                    (&mut level.low, "memory.low"),
                    (&mut level.min, "memory.min"),
                ] {
                    if planned.is_some() && dir.has(file) {
                        *planned = amount(file)?;
                    }
                }
            }
        }
    }
    if new.cpus
        && let (TaskCpus::Granted, Some(before), Some(after)) = (new.task_cpus, step_before, plan.step.cpu)
    {
        plan.task.cpu = plan.task.cpu.map(|task| task.in_proportion(before, after));
    }
    Ok(())
}

/// The CPU time of a step, where it is limited.
pub fn cpus_of(step: &LivingStep<'_>, dirs: &SeenDirs) -> Option<CpuQuota> {
    let of_place = |place: &StepPlace<'_>| quota_of(dirs.get(&place.step)?, place.hierarchy.version).ok().flatten();
    step.places.iter().filter(|place| place.hierarchy.has("cpu")).find_map(of_place)
}

/// The memory limits of a scheduler's own, by which the job's memory is not jobfence's to change.
pub fn limited_by_others<'a>(steps: &'a [LivingStep<'_>], dirs: &SeenDirs) -> Result<Option<&'a Path>> {
    let places = steps.iter().flat_map(|step| &step.places);
    for place in places.filter(|place| place.is_overlay && place.hierarchy.has("memory")) {
        let Some(seen) = dirs.get(&place.job) else { continue };
        let looked = seen.open().and_then(|job| limiting::limits_memory_itself(&job, place.hierarchy.version));
        if seen.unless_gone(looked)? == Some(true) {
            return Ok(Some(&place.job));
        }
    }
    Ok(None)
}

fn groups<'a>(steps: &'a [LivingStep<'_>], new: &NewLimits<'_>, before: &mut Before) -> Result<Vec<Group<'a>>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for place in steps.iter().flat_map(|step| &step.places) {
        // What was gone at the first look stays so.
        let (Some(job), Some(step)) = (before.dirs.get(&place.job), before.dirs.get(&place.step)) else { continue };
        match groups.iter_mut().find(|group| group.job == *job) {
            Some(group) => group.steps.push((place, step.clone())),
            None => groups.push(Group {
                hierarchy: place.hierarchy,
                place: match place.is_overlay {
                    true => Placing::Overlay { headroom: new.headroom, daemons: 0, batch: None },
                    false => Placing::Own,
                },
                job: job.clone(),
                user: place.dir(Level::User),
                steps: vec![(place, step.clone())],
                had: Had::default(),
            }),
        }
    }
    for group in &mut groups {
        group.had = match before.jobs.get(group.job.path()) {
            Some(had) => *had,
            None => group.has_now(new, &before.lent)?,
        };
        before.jobs.insert(group.job.path().to_path_buf(), group.had);
    }
    Ok(groups)
}

impl Group<'_> {
    fn version(&self) -> Version {
        self.hierarchy.version
    }

    fn has_now(&self, new: &NewLimits<'_>, lent: &BTreeMap<PathBuf, Loan>) -> Result<Had> {
        let mut had = Had::default();
        if new.cpus && self.hierarchy.has("cpu") {
            let of_job = quota_of(&self.job, self.version())?;
            had.cpu = of_job.map(|quota| match self.place {
                Placing::Overlay { headroom, .. } if self.version() == Version::V2 => quota.without(headroom),
                _ => quota,
            });
            had.is_cpu_limited = of_job.is_some();
            for (_, step) in &self.steps {
                had.is_cpu_limited |= quota_of(step, self.version())?.is_some();
            }
            if new.plan.job.weight.is_some() {
                had.weight = self.weight_of(&self.job)?;
            }
        }
        if new.memory && self.hierarchy.has("memory") {
            let loan = lent.get(self.job.path()).filter(|loan| loan.inode == self.job.inode());
            // A higher limit is another's work since.
            let own = |ram: u64| loan.filter(|loan| ram <= loan.limit).map_or(ram, |loan| ram.min(loan.grant));
            had.ram = ram_of(&self.job, self.version())?.map(own);
            had.all_ram = had.ram;
            if had.ram.is_none() {
                for (_, step) in &self.steps {
                    had.all_ram = had.all_ram.max(ram_of(step, self.version())?);
                }
            }
        }
        Ok(had)
    }

    fn weight_of(&self, dir: &SeenDir) -> Result<Option<u64>> {
        dir.unless_gone(dir.open().and_then(|dir| limits::cpu_weight(&dir, self.version())))
    }

    /// Sets limits of one kind, unless the directory is gone.
    fn set(&self, seen: &SeenDir, level: Level, plan: &Plan, which: Limit, errors: &mut Vec<LimitError>) {
        let mut all = Vec::new();
        match seen.open() {
            Ok(dir) => {
                let limits = limits_at(plan, level, self.place, self.version());
                limiting::set(&dir, self.hierarchy, level, self.place, &limits, |limit| limit == which, &mut all);
            }
            Err(error) => all.push((which, error)),
        }
        if !seen.is_gone() {
            errors.append(&mut all);
        }
    }

    /// Sets the quota of one directory. `None`: it is gone, or this has failed.
    fn set_quota(&self, seen: &SeenDir, want: CpuQuota, errors: &mut Vec<LimitError>) -> Option<CpuQuota> {
        let done = seen.open().and_then(|dir| limiting::change_cpu(&dir, self.version(), want));
        seen.unless_gone(done).unwrap_or_else(|error| {
            errors.push((Limit::Cpu, error));
            None
        })
    }

    fn set_cpus(&self, new: &NewLimits<'_>, errors: &mut Vec<LimitError>) {
        let (Some(want), true) = (new.plan.job.cpu, self.had.is_cpu_limited) else { return };
        let mut steps = Vec::new();
        for (place, step) in &self.steps {
            // Read before the job's quota is lowered: on v1 what is below it goes down first.
            match quota_of(step, self.version()) {
                Ok(Some(before)) => steps.push((step, before, self.limited_tasks(place, step, errors))),
                Ok(None) => {}
                Err(error) => errors.push((Limit::Cpu, error)),
            }
        }
        if new.whole_job && self.had.cpu.is_some() {
            let with_headroom = limits_at(new.plan, Level::Job, self.place, self.version()).cpu.unwrap_or(want);
            if self.set_quota(&self.job, with_headroom, errors).is_none() {
                return;
            }
            self.set(&self.job, Level::Job, new.plan, Limit::Burst, errors);
        }
        for (step, before, tasks) in steps {
            let want = new_cpus(new.whole_job, self.had.cpu, before, want);
            let Some(now) = self.set_quota(step, want, errors) else { continue };
            self.set(step, Level::Step, new.plan, Limit::Burst, errors);
            for (task, quota) in tasks {
                let want = match new.task_cpus {
                    TaskCpus::Granted => quota.in_proportion(before, want),
                    TaskCpus::Count(_) => new.plan.task.cpu.unwrap_or(quota),
                    TaskCpus::Unlimited => quota,
                };
                self.set_quota(&task, want.at_most(now), errors);
            }
        }
    }

    fn limited_tasks(
        &self,
        place: &StepPlace<'_>,
        step: &SeenDir,
        errors: &mut Vec<LimitError>,
    ) -> Vec<(SeenDir, CpuQuota)> {
        let mut found = Vec::new();
        // A step that is gone has no tasks.
        let Ok(step) = step.open() else { return found };
        for name in place.task_names(&step) {
            let limited = SeenDir::child(&step, &name).and_then(|task| {
                let Some(task) = task else { return Ok(None) };
                Ok(quota_of(&task, self.version())?.map(|quota| (task, quota)))
            });
            match limited {
                Ok(limited) => found.extend(limited),
                Err(error) => errors.push((Limit::Cpu, error)),
            }
        }
        found
    }

    fn weigh(&self, new: &NewLimits<'_>, errors: &mut Vec<LimitError>) {
        let (Some(had), Some(_)) = (self.had.weight, new.plan.job.weight) else { return };
        for (_, step) in &self.steps {
            match self.weight_of(step) {
                // One that had less keeps that.
                Ok(weight) if weight == Some(had) || !new.whole_job && weight.is_some() => {
                    self.set(step, Level::Step, new.plan, Limit::Weight, errors);
                }
                Ok(_) => {}
                Err(error) => errors.push((Limit::Weight, error)),
            }
        }
        if new.whole_job {
            self.set(&self.job, Level::Job, new.plan, Limit::Weight, errors);
        }
        if let (Placing::Own, Some(user), true) = (self.place, &self.user, new.plan.weighs) {
            // Whichever directory this is by now, it weighs as much as what is in it.
            let done = Dir::open(user).and_then(|user| limiting::weigh_user(&user, self.version()));
            errors.extend(done.err().filter(|error| !error.is_gone()).map(|error| (Limit::Weight, error)));
        }
    }

    /// The job's memory limits, and those of its steps and of what the scheduler has limited below them.
    fn memory_changes(&self, new: &NewLimits<'_>) -> Result<Vec<Change>> {
        let (Some(ram), Some(_)) = (new.plan.job.ram, self.had.all_ram) else { return Ok(Vec::new()) };
        let (version, mut all) = (self.version(), Vec::new());
        if new.whole_job && self.had.ram.is_some() {
            all.extend(Change::from_seen(&self.job, version, ram)?);
        }
        for (place, step) in &self.steps {
            let Some(before) = ram_of(step, version)? else { continue };
            // Only a scheduler that grants to each step by itself has limits of its own below the step's.
            let is_by_itself = self.had.ram.is_none() && self.place == Placing::Own;
            let branches = if is_by_itself { limited_branches(place, step, version)? } else { Vec::new() };
            let granted = branches.iter().map(|(_, limit)| *limit).max();
            let room = granted.map_or(0, |granted| before.saturating_sub(granted));
            let want = new_memory(new.whole_job, (self.had.ram, self.had.all_ram), before, room, ram);
            all.extend(Change::from_seen(step, version, want)?);
            for (branch, before) in branches {
                let want = new_memory(true, (None, granted), before, 0, ram);
                all.extend(Change::from_seen(&branch, version, want)?);
            }
        }
        Ok(all)
    }
}

/// The quota of a directory. `None`: it has none, or is gone.
fn quota_of(seen: &SeenDir, version: Version) -> Result<Option<CpuQuota>> {
    seen.unless_gone(seen.open().and_then(|dir| limits::cpu_quota(&dir, version))).map(Option::flatten)
}

/// What a step is limited to if its job, which had `of_job`, gets `want`.
fn new_cpus(whole_job: bool, of_job: Option<CpuQuota>, before: CpuQuota, want: CpuQuota) -> CpuQuota {
    // Periods of another length round.
    let thousandths = |quota: CpuQuota| quota.cpus().thousandths();
    match (whole_job, of_job) {
        (true, Some(of_job)) if thousandths(of_job) > thousandths(before) + 1 => before.at_most(want),
        (false, Some(of_job)) => want.at_most(of_job),
        _ => want,
    }
}

/// The same for memory. `all`: what the job had, or its largest step. `room`: what a step has beyond its grant, for what the scheduler runs
/// in it.
fn new_memory(whole_job: bool, (of_job, all): (Option<u64>, Option<u64>), before: u64, room: u64, ram: u64) -> u64 {
    let want = ram.saturating_add(room);
    match (whole_job, all) {
        (true, Some(all)) if before < all => before.min(want),
        (false, _) => of_job.map_or(want, |of_job| want.min(of_job)),
        _ => want,
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
            // Granted by itself.
            (true, None, Some(2), 3, 3),
            // The step alone has no more than its job.
            (false, Some(4), Some(2), 3, 3),
            (false, Some(4), Some(2), 9, 4),
            (false, None, Some(2), 9, 9),
        ] {
            let before = before.unwrap_or_default();
            let found = new_cpus(whole_job, of_job.map(cpus), cpus(before), cpus(want));
            assert_eq!(found, cpus(expected), "{whole_job} {of_job:?} {before:?} {want}");
            let found = new_memory(whole_job, (of_job, of_job), before, 0, want);
            assert_eq!(found, expected, "{whole_job} {of_job:?} {before:?} {want}");
        }
        // The largest step stands for a job without a limit.
        assert_eq!(new_memory(true, (None, Some(8)), 3, 0, 16), 3);
        assert_eq!(new_memory(true, (None, Some(8)), 8, 2, 16), 18);
    }
}
