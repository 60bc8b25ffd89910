// SPDX-License-Identifier: GPL-2.0-or-later
//! One table of all limits: the file, the function and the levels of each. It is used to set limits and to show them beforehand.

use nix::errno::Errno;

use crate::cgroup::cpuset;
use crate::cgroup::devices::{self, Devices};
use crate::cgroup::huge_pages;
use crate::cgroup::io::{self, IoRules};
use crate::cgroup::layout::Version;
use crate::cgroup::limits::{self, CpuQuota, SwapLimit};
use crate::config::{Config, DeniedDevices, GrantedHugePages, Limit, NUMBERS, Number, Percent, TaskCpus, joined};
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::policy::{Level, Limits};
use crate::sys::dir::Dir;

/// One value for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// The file's name in the limited directory.
    pub file: String,
    /// As it is written.
    pub value: String,
}

impl FileWrite {
    fn number(file: &str, value: u64) -> Self {
        Self { file: file.to_owned(), value: value.to_string() }
    }
}

/// How one kind of limit gets from the configuration into the kernel.
#[derive(Debug, Clone, Copy)]
pub struct LimitRule {
    /// What it limits.
    pub limit: Limit,
    /// The controller that the files belong to.
    pub controller: &'static str,
    /// The keys of jobfence.conf(5) that it comes from.
    pub keys: &'static [&'static str],
    /// Whether the configuration limits it at any level.
    pub(super) wanted: fn(Limit, &Config) -> bool,
    /// What is written. It gets the rule's own limit, since all numbers share one function.
    writes: fn(Limit, &Limits, Version) -> Result<Vec<FileWrite>>,
    /// Writes it and reads it back.
    pub(super) set: fn(&Self, &Dir, Version, &Limits) -> Result<()>,
    /// The levels at which it is set in the scheduler's own directories; in jobfence's it is set at every level.
    pub(super) overlay: &'static [Level],
}

impl LimitRule {
    /// What is written; nothing if `limits` has none of this kind.
    pub fn writes(&self, limits: &Limits, version: Version) -> Result<Vec<FileWrite>> {
        (self.writes)(self.limit, limits, version)
    }
}

const EVERYWHERE: &[Level] = &[Level::User, Level::Job, Level::Step, Level::Task];
/// Levels without a daemon of the scheduler's, which memory limits could kill.
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

/// The rules before those of [`NUMBERS`].
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
            // If the site configures a burst, its own rule writes this file.
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
        // A burst needs a quota, whose rule asks for the controller.
        wanted: |_, _| false,
        writes: |_, limits, version| {
            let burst = limits.burst.zip(limits.cpu).map(|(burst, quota)| burst_us(burst, quota));
            Ok(burst.map(|micros| FileWrite::number(limits::burst_file(version), micros)).into_iter().collect())
        },
        // A part of the quota in the kernel, which may be lower than planned.
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
        // Not the step: its siblings are the daemons' directories.
        overlay: &[Level::User, Level::Job],
    },
];

/// The rules after those of [`NUMBERS`].
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
        // Not the step: its siblings are the daemons' directories.
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
                // cgroup2 throttles the page cache's writes only if memory is counted, too (cgroup-v2.rst, "Writeback").
                || io_rules(config).iter().any(|rules| rules.limits_writes())
        },
        writes: |_, limits, version| {
            let (file, _) = limits::memory_files(version);
            Ok(limits.ram.map(|bytes| FileWrite::number(file, limits::whole_pages(bytes))).into_iter().collect())
        },
        set: |_, dir, version, limits| limits.ram.map_or(Ok(()), |bytes| limits::set_ram(dir, version, bytes)),
        // On v1 Slurm has a directory for each user, with its daemons below it. This does no harm: where Slurm limits memory itself,
        // they already count for their steps, and the kernel spares them (oom_score_adj).
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
            Some(swap) => set_swap(dir, version, swap, limits.ram.is_some()),
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
            Version::V1 => {
                Err(Error::new("cgroup v1 kills single processes, never a whole step, when memory runs out")
                    .hint("set OOMKillStep=no, or OnError=fail,oomgroup:warn"))
            }
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
        // Not the job: its directory holds the step daemons, and Slurm writes its cpuset anew with each step.
        overlay: &[Level::Step],
    },
    LimitRule {
        limit: Limit::HugePages,
        controller: "hugetlb",
        keys: &["ConstrainHugePages", "MaxHugePages", "MaxHugePagesPerUser", "MaxHugePagesPerTask"],
        wanted: |_, config| {
            let levels = [&config.max_huge_pages, &config.max_huge_pages_per_user, &config.max_huge_pages_per_task];
            config.constrain_huge_pages != GrantedHugePages::NotCounted || levels.iter().any(|pages| !pages.is_empty())
        },
        writes: |_, limits, version| {
            let write = |write: huge_pages::HugePageWrite| FileWrite::number(&write.file, write.bytes);
            Ok(limits.huge_pages.spelled_out_here()?.writes(version).into_iter().map(write).collect())
        },
        set: |_, dir, version, limits| huge_pages::set(dir, version, &limits.huge_pages),
        // No daemon uses huge pages.
        overlay: EVERYWHERE,
    },
    LimitRule {
        limit: Limit::Devices,
        controller: devices::CONTROLLER,
        keys: &["ConstrainDevices", "DeviceAllow", "GPUDevice"],
        wanted: |_, config| config.constrain_devices != DeniedDevices::None,
        writes: |_, limits, version| {
            let rules = limits.devices.iter().flat_map(Devices::rules);
            let write = |file: &str, value: String| FileWrite { file: file.to_owned(), value };
            Ok(match version {
                _ if limits.devices.is_none() => Vec::new(),
                Version::V1 if !limits.devices.as_ref().is_some_and(Devices::are_listed) => {
                    rules.map(|rule| write("devices.allow", rule)).collect()
                }
                Version::V1 => [write("devices.deny", "a".to_owned())]
                    .into_iter()
                    .chain(rules.map(|rule| write("devices.allow", rule)))
                    .collect(),
                // Not a file: a program that is attached to the directory.
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

/// The keys that a limit comes from.
pub fn keys_of(limit: Limit) -> &'static [&'static str] {
    RULES.iter().find(|rule| rule.limit == limit).map_or(&[], |rule| rule.keys)
}

/// The controllers of these rules, in their order, except that memory comes right after CPU time.
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

/// How much of a quota may be saved for later, in microseconds: what the site and the user say, and never less than the slack of every
/// quota.
fn burst_us(burst: Percent, quota: CpuQuota) -> u64 {
    burst.of(quota.quota_us).max(quota.slack_us())
}

fn set_plainly(rule: &LimitRule, dir: &Dir, version: Version, limits: &Limits) -> Result<()> {
    let set = |write: FileWrite| limits::set_text(dir, rule.controller, &write.file, &write.value);
    rule.writes(limits, version)?.into_iter().try_for_each(set)
}

fn number_writes(limit: Limit, limits: &Limits, version: Version) -> Result<Vec<FileWrite>> {
    let Some((number, value)) = Number::for_limit(limit).zip(limits.numbers.get(limit)) else { return Ok(Vec::new()) };
    let file = (number.file)(version).ok_or_else(|| {
        Error::new(format!("this version of cgroup has no limit of {limit}"))
            .hint(format!("take its keys out of jobfence.conf, or set OnError=fail,{}:warn", limit.word()))
    })?;
    Ok(vec![FileWrite::number(file, (number.in_kernel)(value))])
}

fn io_rules(config: &Config) -> [&IoRules; 3] {
    [&config.io_max, &config.io_max_per_user, &config.io_max_per_task]
}

/// Limits swap, if this kernel counts it. `has_ram`: jobfence has just tried to limit RAM.
fn set_swap(dir: &Dir, version: Version, swap: SwapLimit, has_ram: bool) -> Result<()> {
    // The scheduler may have limited RAM instead. v2 limits swap by itself.
    let asked = || Ok(limits::memory_limit(dir, limits::memory_files(version).0)?.is_some());
    let is_limited = version == Version::V2 || has_ram || asked()?;
    let set = match limits::set_swap(dir, version, swap, is_limited) {
        // The limit of RAM may have failed.
        Err(error) if has_ram && error.kernel_errno() == Some(Errno::EINVAL) => {
            limits::set_swap(dir, version, swap, asked()?)
        }
        set => set,
    };
    if set? || !has_swap() {
        return Ok(());
    }
    Err(Error::new("this host has swap, but its kernel does not count swap by cgroup, so none can be limited in")
        .at(dir.path())
        .hint("boot with swapaccount=1, or set ConstrainSwapSpace=no"))
}

/// Whether the host has swap: `/proc/swaps` has a line for each device, after its heading.
fn has_swap() -> bool {
    Dir::open("/proc").map_or(true, |proc| has_swap_by(&proc))
}

/// As `has_swap`, by this `/proc`.
pub(super) fn has_swap_by(proc: &Dir) -> bool {
    let swaps = proc.read_value("swaps");
    // If the file cannot be read, assume that there is swap to limit.
    swaps.map_or(true, |text| text.lines().count() > 1)
}
