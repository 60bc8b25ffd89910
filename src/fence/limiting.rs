// SPDX-License-Identifier: GPL-2.0-or-later
//! Which limit is written into which file of which directory: one table, by which limits are set, and shown before they are.

use std::time::{Duration, Instant};

use super::own::is_inhabited;
use crate::bytes::mebibytes;
use crate::cgroup::cpuset;
use crate::cgroup::devices::{self, Devices};
use crate::cgroup::huge_pages;
use crate::cgroup::io::{self, IoRules};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::{self, CpuQuota, SwapLimit};
use crate::config::{Config, Limit, NUMBERS, Number, Percent, TaskCpus, joined};
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::job::Cpus;
use crate::policy::{Level, Limits, Plan};
use crate::scheduler::Scheduler;
use crate::sys::dir::Dir;

/// A limit that could not be set, and why.
pub type LimitError = (Limit, Error);

/// One value for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// In the directory that is limited.
    pub file: String,
    /// As it is written.
    pub value: String,
}

impl FileWrite {
    fn number(file: &str, value: u64) -> Self {
        Self { file: file.to_owned(), value: value.to_string() }
    }
}

/// How one kind of limit comes from the configuration into the kernel.
#[derive(Debug, Clone, Copy)]
pub struct LimitRule {
    /// What it limits.
    pub limit: Limit,
    /// Whose files they are.
    pub controller: &'static str,
    /// The keys of jobfence.conf(5) that it comes from.
    pub keys: &'static [&'static str],
    /// Whether the configuration limits it at any level.
    pub(super) wanted: fn(Limit, &Config) -> bool,
    /// Gets its own limit, since all numbers share one function.
    writes: fn(Limit, &Limits, Version) -> Result<Vec<FileWrite>>,
    /// Writes it and reads it back.
    set: fn(&Self, &Dir, Version, &Limits) -> Result<()>,
    /// The levels at which it is set in the scheduler's own directories; in ours it is set at all.
    overlay: &'static [Level],
}

impl LimitRule {
    /// What is written; nothing where these limits have none of its kind.
    pub fn writes(&self, limits: &Limits, version: Version) -> Result<Vec<FileWrite>> {
        (self.writes)(self.limit, limits, version)
    }
}

const EVERYWHERE: &[Level] = &[Level::User, Level::Job, Level::Step, Level::Task];
/// Not where a daemon of the scheduler's is, which memory limits could kill.
const INSIDE: &[Level] = &[Level::Step, Level::Task];

/// Every kind of limit, in the order in which they are set.
pub static RULES: &[LimitRule] = {
    const ALL: usize = BEFORE_NUMBERS.len() + OF_NUMBERS.len() + AFTER_NUMBERS.len();
    &joined::<LimitRule, ALL>([BEFORE_NUMBERS, &OF_NUMBERS, AFTER_NUMBERS])
};

/// The rules of [`NUMBERS`].
const OF_NUMBERS: [LimitRule; NUMBERS.len()] = {
    let mut rules = [BEFORE_NUMBERS[0]; NUMBERS.len()];
    let mut at = 0;
    while at < rules.len() {
        let (limit, number) = &NUMBERS[at];
        rules[at] = LimitRule {
            limit: *limit,
            controller: number.controller,
            keys: &number.keys,
            wanted: |limit, config| {
                let levels = [&config.numbers, &config.numbers_per_user, &config.numbers_per_task];
                levels.iter().any(|numbers| numbers.get(limit).is_some())
            },
            writes: number_writes,
            set: set_plainly,
            overlay: if number.spares_daemons { INSIDE } else { EVERYWHERE },
        };
        at += 1;
    }
    rules
};

/// The rules before those.
const BEFORE_NUMBERS: &[LimitRule] = &[
    LimitRule {
        limit: Limit::Cpu,
        controller: "cpu",
        keys: &[
            "ConstrainCPUQuota",
            "CPUPolicy",
            "CPUQuotaPercent",
            "CPUQuotaPeriod",
            "MaxCPUsPerUser",
            "MaxCPUsPerTask",
        ],
        wanted: |_, config| {
            config.constrain_cpu_quota && config.cpu_policy.limits()
                || config.max_cpus_per_user.is_some()
                || config.max_cpus_per_task != TaskCpus::Unlimited
        },
        writes: |_, limits, version| {
            let Some(quota) = limits.cpu else { return Ok(Vec::new()) };
            let mut writes = match version {
                Version::V2 => {
                    vec![FileWrite {
                        file: "cpu.max".to_owned(),
                        value: format!("{} {}", quota.quota_us, quota.period_us),
                    }]
                }
                Version::V1 => vec![
                    FileWrite::number("cpu.cfs_period_us", quota.period_us),
                    FileWrite::number("cpu.cfs_quota_us", quota.quota_us),
                ],
            };
            // Where the site gives more, that limit says it.
            let slack =
                limits.burst.is_none().then(|| FileWrite::number(limits::burst_file(version), quota.slack_us()));
            writes.extend(slack);
            Ok(writes)
        },
        set: |_, dir, version, limits| limits.cpu.map_or(Ok(()), |quota| limits::set_cpu_quota(dir, version, quota)),
        overlay: EVERYWHERE,
    },
    LimitRule {
        limit: Limit::Burst,
        controller: "cpu",
        keys: &["CPUBurst"],
        // It is of a quota.
        wanted: |_, _| false,
        writes: |_, limits, version| {
            let burst = limits.burst.zip(limits.cpu).map(|(burst, quota)| burst_us(burst, quota));
            Ok(burst.map(|micros| FileWrite::number(limits::burst_file(version), micros)).into_iter().collect())
        },
        // Of the quota that is there, which may be lower than planned.
        set: |_, dir, version, limits| {
            let Some(burst) = limits.burst else { return Ok(()) };
            match limits::cpu_quota(dir, version)? {
                Some(quota) => limits::set_cpu_burst(dir, version, burst_us(burst, quota)),
                None => Ok(()),
            }
        },
        overlay: EVERYWHERE,
    },
    LimitRule {
        limit: Limit::Weight,
        controller: "cpu",
        keys: &["CPUPolicy", "Scavenger"],
        wanted: |_, config| config.cpu_policy.weighs() || config.scavenger,
        writes: |_, limits, version| {
            let write = |weight| FileWrite::number(limits::weight_file(version), limits::weight_value(version, weight));
            Ok(limits.weight.map(write).into_iter().collect())
        },
        set: |_, dir, version, limits| match limits.weight {
            Some(weight) => {
                let value = limits::weight_value(version, weight);
                limits::set_number(dir, "cpu", limits::weight_file(version), value)
            }
            None => Ok(()),
        },
        // A step's siblings are the daemons' directories.
        overlay: &[Level::User, Level::Job],
    },
];

/// The rules behind those.
const AFTER_NUMBERS: &[LimitRule] = &[
    LimitRule {
        limit: Limit::Io,
        controller: "io",
        keys: &["IOMax", "IOMaxPerUser", "IOMaxPerTask"],
        wanted: |_, config| io_rules(config).iter().any(|rules| !rules.is_empty()),
        writes: |_, limits, version| {
            let all = limits.disks.iter().flat_map(|limit| io::writes(*limit, version));
            Ok(all.map(|(file, value)| FileWrite { file: file.to_owned(), value }).collect())
        },
        set: |_, dir, version, limits| limits.disks.iter().try_for_each(|limit| io::set_max(dir, version, *limit)),
        overlay: EVERYWHERE,
    },
    LimitRule {
        limit: Limit::IoWeight,
        controller: "io",
        keys: &["IOWeight", "Scavenger"],
        wanted: |_, config| config.io_weight.is_some(),
        writes: |_, limits, version| {
            let all = limits.io_weight.into_iter().flat_map(|weight| io::weight_writes(weight, version));
            Ok(all.map(|(file, value)| FileWrite { file: file.to_owned(), value }).collect())
        },
        set: |_, dir, version, limits| limits.io_weight.map_or(Ok(()), |weight| io::set_weight(dir, version, weight)),
        // A step's siblings are the daemons' directories.
        overlay: &[Level::User, Level::Job],
    },
    LimitRule {
        limit: Limit::Ram,
        controller: "memory",
        keys: &["ConstrainRAMSpace", "AllowedRAMSpace", "MinRAMSpace", "MaxRAMPerUser", "MaxRAMPerTask"],
        wanted: |_, config| {
            config.constrain_ram_space
                || config.max_ram_per_user.is_some()
                || config.max_ram_per_task.is_some()
                // cgroup2 throttles what the page cache writes only where memory is counted, too (cgroup-v2.rst, "Writeback").
                || io_rules(config).iter().any(|rules| rules.limits_writes())
        },
        writes: |_, limits, version| {
            let (file, _) = limits::memory_files(version);
            Ok(limits.ram.map(|bytes| FileWrite::number(file, limits::whole_pages(bytes))).into_iter().collect())
        },
        set: |_, dir, version, limits| limits.ram.map_or(Ok(()), |bytes| limits::set_ram(dir, version, bytes)),
        // On v1 Slurm has a directory for each user. Its daemons are below it, but where Slurm limits them itself they count
        // for their steps already, and the kernel spares them (oom_score_adj).
        overlay: &[Level::User, Level::Step, Level::Task],
    },
    LimitRule {
        limit: Limit::Swap,
        controller: "memory",
        keys: &["ConstrainSwapSpace", "AllowedSwapSpace"],
        wanted: |_, config| config.constrain_swap_space.limits(),
        writes: |_, limits, version| {
            let (_, file) = limits::memory_files(version);
            let value = |limit: SwapLimit| match version {
                Version::V2 => limits::whole_pages(limit.swap),
                Version::V1 => limits::whole_pages(limit.ram.saturating_add(limit.swap)),
            };
            Ok(limits.swap.map(|limit| FileWrite::number(file, value(limit))).into_iter().collect())
        },
        set: |_, dir, version, limits| match limits.swap {
            Some(swap) => set_swap(dir, version, swap),
            None => Ok(()),
        },
        overlay: INSIDE,
    },
    LimitRule {
        limit: Limit::MemoryHigh,
        controller: "memory",
        keys: &["MemoryHighPercent"],
        wanted: |_, config| config.memory_high.is_some(),
        writes: |_, limits, version| {
            let file = limits::high_file(version);
            Ok(limits.high.map(|bytes| FileWrite::number(file, limits::whole_pages(bytes))).into_iter().collect())
        },
        set: |_, dir, version, limits| limits.high.map_or(Ok(()), |bytes| limits::set_high(dir, version, bytes)),
        overlay: INSIDE,
    },
    LimitRule {
        limit: Limit::MemoryProtection,
        controller: "memory",
        keys: &["MemoryLowPercent", "MemoryMinPercent"],
        wanted: |_, config| config.memory_low > Percent::ZERO || config.memory_min > Percent::ZERO,
        writes: |_, limits, version| {
            let protected = [("memory.low", limits.low), ("memory.min", limits.min)];
            let writes: Vec<FileWrite> = protected
                .into_iter()
                .filter_map(|(file, bytes)| Some(FileWrite::number(file, limits::whole_pages(bytes?))))
                .collect();
            match version {
                Version::V1 if !writes.is_empty() => Err(Error::new("cgroup v1 protects no memory from reclaim")
                    .hint("set MemoryLowPercent=0 and MemoryMinPercent=0, or OnError=fail,memlow:warn")),
                Version::V1 | Version::V2 => Ok(writes),
            }
        },
        set: set_plainly,
        overlay: INSIDE,
    },
    LimitRule {
        limit: Limit::OomGroup,
        controller: "memory",
        keys: &["OOMKillStep"],
        wanted: |_, config| config.oom_kill_step,
        writes: |_, limits, version| match version {
            _ if !limits.oom_group => Ok(Vec::new()),
            Version::V2 => Ok(vec![FileWrite::number("memory.oom.group", 1)]),
            Version::V1 => Err(Error::new("cgroup v1 kills single processes, never a whole step, for want of memory")
                .hint("set OOMKillStep=no, or OnError=fail,oomgroup:warn")),
        },
        set: set_plainly,
        overlay: INSIDE,
    },
    LimitRule {
        limit: Limit::Cores,
        controller: "cpuset",
        keys: &["ConstrainCores"],
        wanted: |_, config| config.constrain_cores,
        writes: |_, limits, _| {
            let write = |cpus: &CpuList| FileWrite { file: cpuset::CPUS.to_owned(), value: cpus.to_string() };
            Ok(limits.cores.as_ref().map(write).into_iter().collect())
        },
        set: |_, dir, version, limits| match &limits.cores {
            Some(cpus) => cpuset::set_cpus(dir, version, cpus),
            None => Ok(()),
        },
        // The job's holds the step daemons, and Slurm writes it anew with each step.
        overlay: &[Level::Step],
    },
    LimitRule {
        limit: Limit::HugePages,
        controller: "hugetlb",
        keys: &["MaxHugePages", "MaxHugePagesPerUser", "MaxHugePagesPerTask"],
        wanted: |_, config| {
            let levels = [&config.max_huge_pages, &config.max_huge_pages_per_user, &config.max_huge_pages_per_task];
            levels.iter().any(|pages| !pages.is_empty())
        },
        writes: |_, limits, version| {
            let write = |write: huge_pages::HugePageWrite| FileWrite::number(&write.file, write.bytes);
            Ok(limits.huge_pages.writes(version).into_iter().map(write).collect())
        },
        set: |_, dir, version, limits| huge_pages::set(dir, version, &limits.huge_pages),
        // No daemon uses any.
        overlay: EVERYWHERE,
    },
    LimitRule {
        limit: Limit::Devices,
        controller: devices::CONTROLLER,
        keys: &["ConstrainDevices", "DeviceAllow", "GPUDevice"],
        wanted: |_, config| config.constrain_devices,
        writes: |_, limits, version| {
            let rules = limits.devices.iter().flat_map(Devices::rules);
            let write = |file: &str, value: String| FileWrite { file: file.to_owned(), value };
            Ok(match version {
                _ if limits.devices.is_none() => Vec::new(),
                Version::V1 => [write("devices.deny", "a".to_owned())]
                    .into_iter()
                    .chain(rules.map(|rule| write("devices.allow", rule)))
                    .collect(),
                // In no file: attached to the directory.
                Version::V2 => vec![write("BPF_CGROUP_DEVICE", rules.collect::<Vec<_>>().join(", "))],
            })
        },
        set: |_, dir, version, limits| match &limits.devices {
            Some(devices) => devices::constrain(dir, version, devices),
            None => Ok(()),
        },
        overlay: &[Level::Step],
    },
];

/// What the scheduler's own cpuset of a step is beside what ours would be.
#[derive(Debug, PartialEq, Eq)]
pub enum Cores {
    /// It has none, or none that is narrower than all.
    Unlimited,
    /// The same.
    Same,
    /// Others: it counts otherwise than we do.
    Other(CpuList),
}

/// Compares a step's cpuset in the scheduler's directories; `all` is the one that holds every job's.
pub fn compare_cores(step: &Dir, all: &Dir, version: Version, ours: &CpuList) -> Result<Cores> {
    match cpuset::cpus(step)? {
        Some(theirs) if theirs == *ours => Ok(Cores::Same),
        Some(theirs) if theirs != cpuset::effective(all, version)? => Ok(Cores::Other(theirs)),
        _ => Ok(Cores::Unlimited),
    }
}

/// What may be saved of a quota for later: what the site and the user say, and never less than the slack that every quota has.
fn burst_us(burst: Percent, quota: CpuQuota) -> u64 {
    burst.of(quota.quota_us).max(quota.slack_us())
}

fn set_plainly(rule: &LimitRule, dir: &Dir, version: Version, limits: &Limits) -> Result<()> {
    let set = |write: FileWrite| limits::set_text(dir, rule.controller, &write.file, &write.value);
    rule.writes(limits, version)?.into_iter().try_for_each(set)
}

fn number_writes(limit: Limit, limits: &Limits, version: Version) -> Result<Vec<FileWrite>> {
    let Some((number, value)) = Number::of(limit).zip(limits.numbers.get(limit)) else { return Ok(Vec::new()) };
    let file = (number.file)(version).ok_or_else(|| {
        Error::new(format!("this version of cgroup has no limit of {limit}"))
            .hint(format!("take its keys out of jobfence.conf, or set OnError=fail,{}:warn", limit.word()))
    })?;
    Ok(vec![FileWrite::number(file, (number.in_kernel)(value))])
}

fn io_rules(config: &Config) -> [&IoRules; 3] {
    [&config.io_max, &config.io_max_per_user, &config.io_max_per_task]
}

/// The controllers of these rules, in their order, but memory right behind CPU time.
pub(super) fn controllers(which: impl Fn(&LimitRule) -> bool) -> Vec<&'static str> {
    let mut all = Vec::new();
    for rule in RULES.iter().filter(|rule| which(rule)) {
        if all.contains(&rule.controller) {
            continue;
        }
        let is_memory = rule.controller == "memory";
        let at = if is_memory { usize::from(all.first() == Some(&"cpu")) } else { all.len() };
        all.insert(at, rule.controller);
    }
    all
}

/// Whose the directories are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Ours.
    Own,
    /// The scheduler's; on cgroup2 its daemons live in the job's, too.
    Overlay {
        /// CPUs for its daemons, on top of the grant.
        headroom: Cpus,
        /// How many of them there are.
        daemons: u64,
        /// What the batch step was told that the job has.
        batch: Option<CpuQuota>,
    },
}

/// Processes and threads that a step daemon of the scheduler may have in the job's directory, on top of the job's own.
const PROCESSES_OF_A_DAEMON: u64 = 64;

/// The weight of a scavenger where it cannot have a class of its own: of CPU time beside its step daemon, and of I/O.
pub(super) const LEAST_WEIGHT: u64 = *crate::policy::WEIGHTS.start();

/// What a directory is limited to in this place.
pub fn limits_at(plan: &Plan, level: Level, place: Whose, version: Version) -> Limits {
    let mut limits = plan.of(level).clone();
    if version == Version::V1 {
        // There each directory is throttled by itself: what holds further out must be said where the processes are.
        limits.disks = match level {
            Level::User | Level::Job => Vec::new(),
            Level::Step => io::both(&io::both(&plan.user.disks, &plan.job.disks), &limits.disks),
            Level::Task => io::both(&limits_at(plan, Level::Step, place, version).disks, &limits.disks),
        };
    }
    if let Whose::Overlay { headroom, daemons, batch } = place {
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

/// The rules by which this level is limited in this place, in a hierarchy.
pub fn rules(hierarchy: &Hierarchy, level: Level, place: Whose) -> impl Iterator<Item = &'static LimitRule> {
    let here = move |rule: &&LimitRule| {
        place == Whose::Own || rule.overlay.contains(&level) && !is_theirs_alone(rule.limit, hierarchy)
    };
    RULES.iter().filter(|rule| hierarchy.has(rule.controller)).filter(here)
}

/// Sets those of these limits for which `which` stands, and reads them back.
pub fn set(
    dir: &Dir,
    hierarchy: &Hierarchy,
    level: Level,
    place: Whose,
    limits: &Limits,
    which: impl Fn(Limit) -> bool,
    errors: &mut Vec<LimitError>,
) {
    for rule in rules(hierarchy, level, place).filter(|rule| which(rule.limit)) {
        errors.extend((rule.set)(rule, dir, hierarchy.version, limits).err().map(|error| (rule.limit, error)));
    }
}

/// Limits the CPU time of the job and of the step. The step's quota is never above the job's, which may be lower than planned
/// when an earlier step was told less; v1 would refuse it. With headroom in it the job's own quota does not tell (it may have
/// been another headroom): the batch step's does. With `is_change` the job may get more than it has.
pub fn cpu(job: &Dir, step: &Dir, version: Version, plan: &Plan, (place, is_change): (Whose, bool)) -> Result<()> {
    // Not limited, the controller may well be off: in cgroup2 there is no file to read then.
    if plan.job.cpu.is_none() && plan.step.cpu.is_none() {
        return Ok(());
    }
    let of_job = match limits_at(plan, Level::Job, place, version).cpu {
        Some(quota) if is_change => change_cpu(job, version, quota).map(Some),
        Some(quota) => limits::lower_cpu_quota(job, version, quota).map(Some),
        None => limits::cpu_quota(job, version),
    };
    let above = match (place, &of_job) {
        (Whose::Own, Ok(quota)) => *quota,
        (Whose::Overlay { .. }, Ok(quota)) if version == Version::V1 => *quota,
        _ => plan.job.cpu,
    };
    let of_step = match limits_at(plan, Level::Step, place, version).cpu {
        Some(quota) => limits::set_cpu_quota(step, version, above.map_or(quota, |above| quota.at_most(above))),
        None => Ok(()),
    };
    // Where OnError lets a job run all the same, its own limit alone is missing.
    of_job.and(of_step)
}

/// Limits the CPU time of all of a user's jobs, or of a job that the administrator changes: it may be raised again. Returns what it is.
pub fn change_cpu(dir: &Dir, version: Version, quota: CpuQuota) -> Result<CpuQuota> {
    match limits::in_its_period(dir, version, quota)? {
        (quota, Some(now)) if now == quota => Ok(quota),
        (quota, Some(now)) if !now.is_above(quota) => limits::set_cpu_quota(dir, version, quota).map(|()| quota),
        _ => limits::lower_cpu_quota(dir, version, quota),
    }
}

/// Gives a user the sum of what his jobs weigh, since the kernel compares him with other users. What a job weighs is in its own
/// directory, so nobody needs to count.
pub fn weigh_user(user: &Dir, version: Version) -> Result<()> {
    let mut sum = 0u64;
    for job in user.list(true)? {
        // One that is ending takes its directory away meanwhile.
        let weight = user.child(&job).and_then(|job| limits::cpu_weight(&job, version));
        sum = sum.saturating_add(weight.unwrap_or(0));
    }
    let sum = sum.clamp(*crate::policy::WEIGHTS.start(), *crate::policy::WEIGHTS.end());
    limits::set_number(user, "cpu", limits::weight_file(version), limits::weight_value(version, sum))
}

/// Has everything below a directory of ours run only when nobody else wants to.
pub fn make_idle(top: &Dir) -> Result<()> {
    if top.read_if_there(limits::CPU_IDLE)?.is_some_and(|text| text.trim() == "1") {
        return Ok(());
    }
    limits::set_number(top, "cpu", limits::CPU_IDLE, 1)
}

/// Whether a job's memory limits are left alone: they are what they should be, or an earlier step has set higher ones and
/// processes still run in them, and lowering them could kill one.
pub fn stays_in_memory(job: &Dir, version: Version, limits: &Limits) -> bool {
    let Some(ram) = limits.ram else { return false };
    let (file, swap_file) = limits::memory_files(version);
    let Ok(Some(current)) = limits::memory_limit(job, file) else { return false };
    let is_limited = |file| limits::memory_limit(job, file).is_ok_and(|limit| limit.is_some());
    let is_high = |want| limits::memory_limit(job, limits::high_file(version)) == Ok(Some(limits::whole_pages(want)));
    let right = current == limits::whole_pages(ram)
        && (limits.swap.is_none() || is_limited(swap_file))
        && limits.high.is_none_or(is_high);
    right || current > ram && others_live(job)
}

/// Whether a user's memory limit is left out for now: it has just come into jobfence.conf, and would kill who began without it.
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

/// Whether processes are in directories below: the step that is being made has none yet. (The extern step is there from the job's
/// beginning to its end, and mostly has none.)
fn others_live(dir: &Dir) -> bool {
    let lives = |name: &String| {
        dir.child(name).is_ok_and(|child| is_inhabited(&child, Instant::now() + Duration::from_secs(1)))
    };
    dir.list(true).is_ok_and(|names| names.iter().any(lives))
}

/// Limits swap, if this kernel counts it.
fn set_swap(dir: &Dir, version: Version, swap: SwapLimit) -> Result<()> {
    // By us a moment ago, or by the scheduler. v2 limits swap by itself.
    let is_limited = version == Version::V2 || limits::memory_limit(dir, limits::memory_files(version).0)?.is_some();
    if limits::set_swap(dir, version, swap, is_limited)? || !has_swap() {
        return Ok(());
    }
    Err(Error::new("this host has swap, but its kernel does not count swap by cgroup, so none can be limited in")
        .at(dir.path())
        .hint("boot with swapaccount=1, or set ConstrainSwapSpace=no"))
}

/// Whether the scheduler limits this job's memory: in its own directory of a job it is the only one that does.
pub fn limits_memory_itself(job: &Dir, version: Version) -> Result<bool> {
    limits::memory_limit(job, limits::memory_files(version).0).map(|limit| limit.is_some())
}

/// What is left of these limits of memory where the scheduler has set its own; a lower `memory.high` of its own stays.
pub fn within_theirs(dir: &Dir, version: Version, limits: &Limits) -> Limits {
    let (file, swap_file) = limits::memory_files(version);
    let theirs = |file| limits::memory_limit(dir, file).ok().flatten();
    let ram = theirs(file);
    let swap = limits.swap.filter(|_| theirs(swap_file).is_none());
    Limits {
        ram: limits.ram.filter(|_| ram.is_none()),
        // v1 limits the sum, which cannot be below the limit of RAM that is there.
        swap: swap.map(|swap| SwapLimit { ram: ram.unwrap_or(swap.ram), ..swap }),
        high: limits.high.filter(|want| theirs(limits::high_file(version)).is_none_or(|theirs| theirs > *want)),
        ..limits.clone()
    }
}

/// The keys that a limit comes from.
pub fn keys_of(limit: Limit) -> &'static [&'static str] {
    RULES.iter().find(|rule| rule.limit == limit).map_or(&[], |rule| rule.keys)
}

/// How many of the scheduler's daemons may live in a job's directory: one for each step, whose name begins so.
pub fn daemons(job: &Dir, steps: &str) -> u64 {
    let steps = job.list(true).map_or(1, |names| names.iter().filter(|name| name.starts_with(steps)).count());
    u64::try_from(steps).unwrap_or(u64::MAX)
}

/// v1 has one list of devices for each directory: where the scheduler has written one (it makes directories in this hierarchy
/// for nothing else), ours would lift what it denies.
fn is_theirs_alone(limit: Limit, hierarchy: &Hierarchy) -> bool {
    limit == Limit::Devices && hierarchy.version == Version::V1
}

/// That devices cannot be limited in the scheduler's directories of this hierarchy.
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

/// As cgroup2 has it: what v1 does not have is planned all the same.
fn writes_any(rule: &LimitRule, limits: &Limits) -> bool {
    !rule.writes(limits, Version::V2).is_ok_and(|writes| writes.is_empty())
}

/// That a user's own limits cannot be set in the scheduler's directories, which on cgroup2 has none of a user.
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
    // Which disks they are is not known yet when nothing has been looked for.
    let throttles = |limit| limit == Limit::Io && !plan.user.io.is_empty();
    let is_planned = |rule: &&LimitRule| writes_any(rule, &plan.user) || throttles(rule.limit);
    let theirs = RULES.iter().filter(|rule| hierarchy.has(rule.controller)).filter(is_planned);
    theirs.map(|rule| (rule.limit, error())).collect()
}

/// That cgroup v1 cannot throttle all of a user's jobs together.
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

/// Gives a user the sum of what his jobs weigh when a disk is busy, as [`weigh_user`] does for CPU time.
pub fn weigh_io_of_user(user: &Dir, version: Version) -> Result<()> {
    let jobs = user.list(true)?;
    // One that is ending takes its directory away meanwhile.
    let of_job = |job: &String| io::weight(&user.child(job).ok()?, version);
    let sum = jobs.iter().filter_map(of_job).fold(0, u64::saturating_add);
    io::set_weight(user, version, sum.clamp(*crate::policy::WEIGHTS.start(), *crate::policy::WEIGHTS.end()))
}

/// That nothing of what was planned for these controllers could be set, for one reason.
pub fn none_of(plan: &Plan, controllers: impl Fn(&str) -> bool, error: &Error) -> Vec<LimitError> {
    let planned = |rule: &&LimitRule| ALL.iter().any(|level| writes_any(rule, plan.of(*level)));
    let theirs = RULES.iter().filter(|rule| controllers(rule.controller)).filter(planned);
    theirs.map(|rule| (rule.limit, error.clone())).collect()
}

/// Whether any swap is in use: `/proc/swaps` has a line for each device, after its heading.
fn has_swap() -> bool {
    let swaps = Dir::open("/proc").and_then(|proc| proc.read("swaps"));
    // A file that cannot be read says nothing good: assume that there is swap to limit.
    swaps.map_or(true, |text| text.lines().count() > 1)
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
        cpu(&dirs[0], &dirs[1], Version::V2, &plan, (Whose::Own, false)).unwrap_err();
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
        // Who has one has another rule.
        assert!(!exceeded("2097152\n", "1048577\n", "7\n"));
    }
}
