// SPDX-License-Identifier: GPL-2.0-or-later
//! Limits of one directory: which rules of the table apply, and what must be read before they are written.

use std::time::{Duration, Instant};

use super::own::{Untouched, is_inhabited};
use super::rules::{LimitRule, RULES};
use crate::bytes::mebibytes;
use crate::cgroup::cpuset;
use crate::cgroup::devices;
use crate::cgroup::io;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota, SwapLimit};
use crate::cgroup::mark;
use crate::config::Limit;
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::job::Cpus;
use crate::log;
use crate::policy::{Level, Limits, Plan};
use crate::scheduler::Scheduler;
use crate::sys::dir::Dir;

/// A limit that could not be set, and why.
pub type LimitError = (Limit, Error);

/// How the scheduler's own cpuset of a step compares with jobfence's.
#[derive(Debug, PartialEq, Eq)]
pub enum Cores {
    /// The scheduler has set none, or one with all CPUs.
    Unlimited,
    /// Both have the same CPUs.
    Same,
    /// It has other CPUs: the scheduler numbers cores differently.
    Other(CpuList),
}

/// Compares a step's cpuset in the scheduler's directories with `ours`; `all` is the directory that holds every job's.
pub fn compare_cores(step: &Dir, all: &Dir, version: Version, ours: &CpuList) -> Result<Cores> {
    match cpuset::cpus(step)? {
        Some(theirs) if theirs == *ours => Ok(Cores::Same),
        Some(theirs) if theirs != cpuset::effective(all, version)? => Ok(Cores::Other(theirs)),
        _ => Ok(Cores::Unlimited),
    }
}

/// Whose the directories are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placing {
    /// jobfence's.
    Own,
    /// The scheduler's. On cgroup2 its daemons are in the job's directory, too.
    Overlay {
        /// CPUs for its daemons, on top of the grant.
        headroom: Cpus,
        /// How many of these daemons there are.
        daemons: u64,
        /// The job's quota, as the batch step was given it.
        batch: Option<CpuQuota>,
    },
}

/// Processes and threads that a step daemon of the scheduler may have in the job's directory, on top of the job's own.
const PROCESSES_OF_A_DAEMON: u64 = 64;

/// A scavenger's weight where it has no branch of its own: for CPU time in the scheduler's directories, and for I/O.
pub(super) const LEAST_WEIGHT: u64 = *crate::policy::WEIGHTS.start();

/// The limits of a directory of this level in this place.
pub fn limits_at(plan: &Plan, level: Level, place: Placing, version: Version) -> Limits {
    let mut limits = plan.of(level).clone();
    if version == Version::V1 {
        // v1 throttles each directory by itself: the limits of outer levels must be written where the processes are.
        limits.disks = match level {
            Level::User | Level::Job => Vec::new(),
            Level::Step => io::both(&io::both(&plan.user.disks, &plan.job.disks), &limits.disks),
            Level::Task => io::both(&limits_at(plan, Level::Step, place, version).disks, &limits.disks),
        };
    }
    if let Placing::Overlay { headroom, daemons, batch } = place {
        if level == Level::Job && version == Version::V2 {
            limits.cpu = limits.cpu.map(|quota| quota.and(headroom));
            let more = PROCESSES_OF_A_DAEMON.saturating_mul(daemons);
            let count = limits.numbers.get(Limit::Processes);
            limits.numbers.set(Limit::Processes, count.map(|count| count.saturating_add(more)));
        }
        if level == Level::Step {
            limits.cpu = limits.cpu.map(|quota| batch.map_or(quota, |batch| quota.at_most(batch)));
        }
        if level == Level::Job && plan.scavenger {
            limits.weight = Some(LEAST_WEIGHT);
        }
    }
    limits
}

/// The rules that apply to this level in this place and hierarchy.
pub fn rules(hierarchy: &Hierarchy, level: Level, place: Placing) -> impl Iterator<Item = &'static LimitRule> {
    RULES.iter().filter(move |rule| is_here(rule, hierarchy, level, place))
}

fn is_here(rule: &LimitRule, hierarchy: &Hierarchy, level: Level, place: Placing) -> bool {
    hierarchy.has(rule.controller)
        && (place == Placing::Own || rule.overlay.contains(&level) && !is_theirs_alone(rule.limit, hierarchy))
}

/// Sets the limits that `which` selects, and reads them back.
pub fn set(
    dir: &Dir,
    hierarchy: &Hierarchy,
    level: Level,
    place: Placing,
    limits: &Limits,
    which: impl Fn(Limit) -> bool,
    errors: &mut Vec<LimitError>,
) {
    // `which` is asked first: it mostly picks one rule of many.
    for rule in RULES.iter().filter(|rule| which(rule.limit) && is_here(rule, hierarchy, level, place)) {
        errors.extend((rule.set)(rule, dir, hierarchy.version, limits).err().map(|error| (rule.limit, error)));
    }
}

/// Limits the CPU time of the job and of the step. The step's quota is never above the job's, which v1 would refuse; the job's may be
/// lower than planned if an earlier step was given less. A job's quota with headroom in it does not show this, since that headroom may
/// have been different: the batch step's quota does. With `is_change` the job may get more than it has.
pub fn cpu(
    job: &Dir,
    step: &Dir,
    version: Version,
    plan: &Plan,
    (place, is_change, untouched): (Placing, bool, Untouched),
) -> Result<()> {
    // Without a limit the controller may be off, and cgroup2 then has no file to read.
    if plan.job.cpu.is_none() && plan.step.cpu.is_none() {
        return Ok(());
    }
    let mut is_resized = false;
    let of_job = match limits_at(plan, Level::Job, place, version).cpu {
        Some(quota) if is_change => change_cpu(job, version, quota).map(Some),
        Some(quota) if untouched.job && limits::set_first_cpu_quota(job, version, quota).is_ok() => Ok(Some(quota)),
        Some(quota) => lower_unless_resized(job, version, quota, &mut is_resized).map(Some),
        None => limits::cpu_quota(job, version),
    };
    let above = match (place, &of_job) {
        (Placing::Own, Ok(quota)) => *quota,
        (Placing::Overlay { .. }, Ok(quota)) if version == Version::V1 => *quota,
        (Placing::Overlay { headroom, .. }, Ok(Some(quota))) if is_resized => Some(quota.without(headroom)),
        _ => plan.job.cpu,
    };
    let of_step = match limits_at(plan, Level::Step, place, version).cpu {
        Some(quota) => {
            let has_all = is_resized && plan.step.cpu == plan.job.cpu;
            let quota = above.map_or(quota, |above| if has_all { above } else { quota.at_most(above) });
            if untouched.step {
                limits::set_first_cpu_quota(step, version, quota)
            } else {
                limits::set_cpu_quota(step, version, quota)
            }
        }
        None => Ok(()),
    };
    // The step is limited even if the job cannot be: OnError may let the job run.
    of_job.and(of_step)
}

/// Limits a job's CPU time to at most `want`, unless it has another quota by `jobfence resize`: that stays, also a higher one.
fn lower_unless_resized(job: &Dir, version: Version, want: CpuQuota, is_resized: &mut bool) -> Result<CpuQuota> {
    let both = limits::in_its_period(job, version, want)?;
    if let (want, Some(now)) = both
        && now != want
        && mark::is_resized(job, "cpus=")
    {
        *is_resized = true;
        return Ok(now);
    }
    limits::lower_cpu_quota_from(job, version, both)
}

/// Sets the CPU quota of all of a user's jobs, or of a job that the administrator changes: it may be raised. Returns the quota that is
/// set.
pub fn change_cpu(dir: &Dir, version: Version, quota: CpuQuota) -> Result<CpuQuota> {
    match limits::in_its_period(dir, version, quota)? {
        (quota, Some(now)) if now == quota => Ok(quota),
        (quota, Some(now)) if !now.is_above(quota) => limits::set_cpu_quota(dir, version, quota).map(|()| quota),
        _ => limits::lower_cpu_quota(dir, version, quota),
    }
}

/// Sets a user's weight to the sum of the jobs' weights, since the kernel weighs users against each other. Each job's directory has its
/// weight, so no count is kept.
pub fn weigh_user(user: &Dir, version: Version) -> Result<()> {
    let mut sum = 0u64;
    for job in user.list(true)? {
        // A job that is ending may have removed its directory.
        let weight = user.child(&job).and_then(|job| limits::cpu_weight(&job, version));
        sum = sum.saturating_add(weight.unwrap_or(0));
    }
    let sum = sum.clamp(*crate::policy::WEIGHTS.start(), *crate::policy::WEIGHTS.end());
    limits::set_number(user, "cpu", limits::weight_file(version), limits::weight_value(version, sum))
}

/// Lets all processes below a directory of jobfence's run only on CPU time that no others want.
pub fn make_idle(top: &Dir) -> Result<()> {
    if top.read_if_there(limits::CPU_IDLE)?.is_some_and(|text| text.trim() == "1") {
        return Ok(());
    }
    limits::set_number(top, "cpu", limits::CPU_IDLE, 1)
}

/// Why the memory limits of a job, or of a user, stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// They are right, or an earlier step has set higher ones and lowering them could kill its processes.
    Unchanged,
    /// They are this many bytes by `jobfence resize`.
    Resized(u64),
}

/// Whether memory limits stay as they are. `None`: they are set.
pub fn stays_in_memory(job: &Dir, version: Version, limits: &Limits) -> Option<Stays> {
    let ram = limits.ram?;
    let (file, swap_file) = limits::memory_files(version);
    let current = limits::memory_limit(job, file).ok()??;
    let is_limited = |file| limits::memory_limit(job, file).is_ok_and(|limit| limit.is_some());
    let is_high = |want| limits::memory_limit(job, limits::high_file(version)) == Ok(Some(limits::whole_pages(want)));
    let right = current == limits::whole_pages(ram)
        && (limits.swap.is_none() || is_limited(swap_file))
        && limits.high.is_none_or(is_high);
    if right {
        return Some(Stays::Unchanged);
    }
    if current != limits::whole_pages(ram) && mark::is_resized(job, "memory=") {
        return Some(Stays::Resized(current));
    }
    (current > ram && others_live(job)).then_some(Stays::Unchanged)
}

/// Gives a step that has all the memory of its job what the job has by `jobfence resize`.
pub fn follow_job(step: &mut Limits, job: &Dir, version: Version, of_job: &Limits, ram: u64) {
    if step.ram == of_job.ram {
        step.ram = Some(ram);
        step.swap = step.swap.map(|swap| SwapLimit { ram, ..swap });
        let now = limits::memory_limit(job, limits::high_file(version)).ok().flatten();
        let is_jobs = step.high == of_job.high;
        step.high = step.high.map(|high| now.map_or(high, |now| if is_jobs { now } else { high.min(now) }));
    }
}

/// Whether a user's memory limit is not set for now: it is new in jobfence.conf, and would kill processes that began without it.
pub fn is_exceeded(user: &Dir, version: Version, limits: &Limits) -> bool {
    let Some(ram) = limits.ram else { return false };
    let is_new = limits::memory_limit(user, limits::memory_files(version).0) == Ok(None);
    let exceeded = is_new && limits::memory_in_use(user, version).is_some_and(|used| used > ram) && others_live(user);
    if exceeded {
        log::warn!(
            "{}: the user's jobs use more memory than the new limit of {}; it is set when they use less",
            user.path().display(),
            mebibytes(ram)
        );
    }
    exceeded
}

/// Whether the directories below have processes. The step that is being made has none yet. (The extern step is there from the job's
/// beginning to its end, and mostly has none.)
fn others_live(dir: &Dir) -> bool {
    let lives = |name: &String| {
        dir.child(name).is_ok_and(|child| is_inhabited(&child, Instant::now() + Duration::from_secs(1)))
    };
    dir.list(true).is_ok_and(|names| names.iter().any(lives))
}

/// Whether the scheduler limits this job's memory: jobfence sets no memory limit in the scheduler's directory of a job.
pub fn limits_memory_itself(job: &Dir, version: Version) -> Result<bool> {
    limits::memory_limit(job, limits::memory_files(version).0).map(|limit| limit.is_some())
}

/// `limits` without the memory limits that the scheduler has set itself. `high` is left out only if the scheduler's `memory.high` is
/// not above it.
pub fn within_theirs(dir: &Dir, version: Version, limits: &Limits) -> Limits {
    let (file, swap_file) = limits::memory_files(version);
    let theirs = |file| limits::memory_limit(dir, file).ok().flatten();
    let ram = theirs(file);
    let swap = limits.swap.filter(|_| theirs(swap_file).is_none());
    Limits {
        ram: limits.ram.filter(|_| ram.is_none()),
        // v1 limits the sum of RAM and swap, which cannot be below the RAM limit that is set.
        swap: swap.map(|swap| SwapLimit { ram: ram.unwrap_or(swap.ram), ..swap }),
        high: limits.high.filter(|want| theirs(limits::high_file(version)).is_none_or(|theirs| theirs > *want)),
        ..limits.clone()
    }
}

/// How many of the scheduler's daemons may be in a job's directory: one for each step, whose name begins with `steps`.
pub fn daemons(job: &Dir, steps: &str) -> u64 {
    let steps = job.list(true).map_or(1, |names| names.iter().filter(|name| name.starts_with(steps)).count());
    u64::try_from(steps).unwrap_or(u64::MAX)
}

/// On v1 each directory has one list of devices. The scheduler makes directories in that hierarchy only to write one, and jobfence's
/// would lift what it denies.
fn is_theirs_alone(limit: Limit, hierarchy: &Hierarchy) -> bool {
    limit == Limit::Devices && hierarchy.version == Version::V1
}

/// The error that devices cannot be limited in the scheduler's directories of this hierarchy, if they are to be.
pub fn no_devices(plan: &Plan, hierarchy: &Hierarchy, scheduler: &dyn Scheduler) -> Option<LimitError> {
    let is_wanted = hierarchy.has(devices::CONTROLLER) && plan.step.devices.is_some();
    (is_wanted && is_theirs_alone(Limit::Devices, hierarchy)).then(|| {
        let name = scheduler.name();
        let error = Error::new(format!("{name} itself denies devices, by lists that ours would replace, in"));
        let hint = format!("set {} or in jobfence.conf", scheduler.without_devices());
        (Limit::Devices, error.at(&hierarchy.mount).hint(hint))
    })
}

/// Whether any level is to have this limit, in this hierarchy.
pub fn is_planned(plan: &Plan, limit: Limit, hierarchy: &Hierarchy) -> bool {
    let is_here = RULES.iter().any(|rule| rule.limit == limit && hierarchy.has(rule.controller));
    is_here && has_any(plan, limit)
}

/// Whether any level is to have this limit, wherever its controller is.
pub fn has_any(plan: &Plan, limit: Limit) -> bool {
    let rule = RULES.iter().find(|rule| rule.limit == limit);
    rule.is_some_and(|rule| ALL.iter().any(|level| writes_any(rule, plan.of(*level))))
}

const ALL: [Level; 4] = [Level::User, Level::Job, Level::Step, Level::Task];

/// As on cgroup2: a limit that v1 lacks counts as planned, too.
fn writes_any(rule: &LimitRule, limits: &Limits) -> bool {
    !rule.writes(limits, Version::V2).is_ok_and(|writes| writes.is_empty())
}

/// The errors that a user's own limits cannot be set: on cgroup2 the scheduler has no directory for each user.
pub fn none_for_the_user(plan: &Plan, hierarchy: &Hierarchy, scheduler: &dyn Scheduler) -> Vec<LimitError> {
    let error = || {
        let name = scheduler.name();
        Error::new(format!("{name} has no directory for all jobs of a user, so they cannot be limited together, in"))
            .at(&hierarchy.mount)
            .hint(format!(
                "take the PerUser keys out of jobfence.conf, or leave the cgroups to jobfence ({})",
                scheduler.without_cgroups()
            ))
    };
    // Before disks are looked up, only the I/O rules are known, not the disks.
    let throttles = |limit| limit == Limit::Io && !plan.user.io.is_empty();
    let is_planned = |rule: &&LimitRule| writes_any(rule, &plan.user) || throttles(rule.limit);
    let theirs = RULES.iter().filter(|rule| hierarchy.has(rule.controller)).filter(is_planned);
    theirs.map(|rule| (rule.limit, error())).collect()
}

/// The error that cgroup v1 cannot throttle all of a user's jobs together, if that is asked for.
pub fn not_together(plan: &Plan, hierarchy: &Hierarchy) -> Option<LimitError> {
    let asked = hierarchy.version == Version::V1 && hierarchy.has("io") && !plan.user.io.is_empty();
    let error = || {
        Error::new(
            "cgroup v1 throttles each directory by itself, so all jobs of a user cannot be throttled together, in",
        )
        .at(&hierarchy.mount)
        .hint("take IOMaxPerUser out, or set OnError=fail,io:warn: each step alone is held to it then")
    };
    asked.then(|| (Limit::Io, error()))
}

/// Sets a user's I/O weight to the sum of the jobs' I/O weights, as [`weigh_user`] does for CPU time.
pub fn weigh_io_of_user(user: &Dir, version: Version) -> Result<()> {
    let jobs = user.list(true)?;
    // A job that is ending may have removed its directory.
    let of_job = |job: &String| io::weight(&user.child(job).ok()?, version);
    let sum = jobs.iter().filter_map(of_job).fold(0, u64::saturating_add);
    io::set_weight(user, version, sum.clamp(*crate::policy::WEIGHTS.start(), *crate::policy::WEIGHTS.end()))
}

/// The errors that no planned limit of these controllers can be set, all for one reason.
pub fn none_of(plan: &Plan, controllers: impl Fn(&str) -> bool, error: &Error) -> Vec<LimitError> {
    let planned = |rule: &&LimitRule| ALL.iter().any(|level| writes_any(rule, plan.of(*level)));
    let theirs = RULES.iter().filter(|rule| controllers(rule.controller)).filter(planned);
    theirs.map(|rule| (rule.limit, error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_its_quota_also_where_its_job_cannot_have_one() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["job", "step"].map(|name| {
            std::fs::create_dir(temp.path().join(name)).unwrap();
            Dir::open(temp.path().join(name)).unwrap()
        });
        std::fs::write(temp.path().join("step/cpu.max"), "max 100000").unwrap();
        let quota = CpuQuota { quota_us: 50_000, period_us: 100_000 };
        let limits = Limits { cpu: Some(quota), ..Limits::default() };
        let plan = Plan { job: limits.clone(), step: limits, ..Plan::default() };
        cpu(&dirs[0], &dirs[1], Version::V2, &plan, (Placing::Own, false, Untouched::default())).unwrap_err();
        assert_eq!(limits::cpu_quota(&dirs[1], Version::V2).unwrap(), Some(quota));
    }

    #[test]
    fn a_users_new_limit_of_memory_does_not_kill_who_began_without() {
        let temp = tempfile::tempdir().unwrap();
        let job = temp.path().join("job_1");
        std::fs::create_dir(&job).unwrap();
        let write = |file: &str, text: &str| std::fs::write(temp.path().join(file), text).unwrap();
        let exceeded = |limit: &str, used: &str, pids: &str| {
            write("memory.max", limit);
            write("memory.current", used);
            write("job_1/cgroup.procs", pids);
            let limits = Limits { ram: Some(1 << 20), ..Limits::default() };
            is_exceeded(&Dir::open(temp.path()).unwrap(), Version::V2, &limits)
        };
        assert!(exceeded("max\n", "1048577\n", "7\n"));
        assert!(!exceeded("max\n", "1048576\n", "7\n"));
        assert!(!exceeded("max\n", "1048577\n", ""));
        // Another rule holds for a user that already has a limit.
        assert!(!exceeded("2097152\n", "1048577\n", "7\n"));
    }
}
