// SPDX-License-Identifier: GPL-2.0-or-later
//! Which keys can differ from job to job, and which of two values of such a key is stricter.

use super::keys::{self, Key};
use super::limits::LIMITS;
use super::values::{Config, CpuPolicy, Mode, OnError, OnErrors, TaskCpus};
use crate::cgroup::io::least_weight;

/// Takes the other configuration's value if it is stricter.
type Stricter = fn(&mut Config, &Config);

/// The keys that may stand in sections, and what holds of each if it is not known which section does.
///
/// For limits the lowest of the computed numbers counts (`policy`). These values decide everything else, and err on the side of
/// limiting.
static PER_JOB: &[(&str, Stricter)] = &[
    ("Mode", |config, other| {
        if matches!((config.mode, other.mode), (Mode::Off, _) | (Mode::Observe, Mode::Enforce)) {
            config.mode = other.mode;
        }
    }),
    ("OnError", |config, other| config.on_error = stricter(config.on_error, other.on_error)),
    ("ConstrainCPUQuota", |config, other| config.constrain_cpu_quota |= other.constrain_cpu_quota),
    ("CPUQuotaPercent", |config, other| least(&mut config.cpu_quota_percent, other.cpu_quota_percent)),
    ("ZeroCPUs", |config, other| least(&mut config.zero_cpus, other.zero_cpus)),
    // By each candidate something else is granted: the door takes the least of that.
    ("SlotCPUs", |_, _| {}),
    ("CPUQuotaPeriod", |_, _| {}),
    ("CPUBurst", |config, other| least(&mut config.cpu_burst, other.cpu_burst)),
    ("CPUPolicy", |config, other| {
        if config.cpu_policy != other.cpu_policy {
            config.cpu_policy = CpuPolicy::Both;
        }
    }),
    ("Scavenger", |config, other| config.scavenger |= other.scavenger),
    ("MaxCPUsPerUser", |config, other| least_limit(&mut config.max_cpus_per_user, other.max_cpus_per_user)),
    ("MaxCPUsPerTask", |config, other| match (config.max_cpus_per_task, other.max_cpus_per_task) {
        (TaskCpus::Count(one), TaskCpus::Count(other)) => config.max_cpus_per_task = TaskCpus::Count(one.min(other)),
        (TaskCpus::Unlimited, other) => config.max_cpus_per_task = other,
        _ => {}
    }),
    ("ConstrainCores", |config, other| config.constrain_cores |= other.constrain_cores),
    ("HeadroomCPUs", |config, other| least(&mut config.headroom_cpus, other.headroom_cpus)),
    // This is no limit, and others do not see it.
    ("UsageCard", |_, _| {}),
    // This is no limit: a program is told nothing unless the site has certainly asked for it.
    ("ThreadHints", |config, other| config.thread_hints &= other.thread_hints),
    ("ConstrainRAMSpace", |config, other| config.constrain_ram_space |= other.constrain_ram_space),
    ("AllowedRAMSpace", |config, other| least(&mut config.allowed_ram_space, other.allowed_ram_space)),
    ("DefaultRAMSpace", |config, other| least_limit(&mut config.default_ram_space, other.default_ram_space)),
    ("StarterMemory", |config, other| least(&mut config.starter_memory, other.starter_memory)),
    ("MinRAMSpace", |config, other| least(&mut config.min_ram_space, other.min_ram_space)),
    ("ConstrainSwapSpace", |config, other| {
        config.constrain_swap_space = config.constrain_swap_space.max(other.constrain_swap_space);
    }),
    ("AllowedSwapSpace", |config, other| least(&mut config.allowed_swap_space, other.allowed_swap_space)),
    ("MaxRAMPerUser", |config, other| least_limit(&mut config.max_ram_per_user, other.max_ram_per_user)),
    ("MaxRAMPerTask", |config, other| least_limit(&mut config.max_ram_per_task, other.max_ram_per_task)),
    ("MemoryHighPercent", |config, other| least_limit(&mut config.memory_high, other.memory_high)),
    ("MemoryLowPercent", |config, other| least(&mut config.memory_low, other.memory_low)),
    ("MemoryMinPercent", |config, other| least(&mut config.memory_min, other.memory_min)),
    ("OOMKillStep", |config, other| config.oom_kill_step |= other.oom_kill_step),
    ("ConstrainHugePages", |config, other| {
        config.constrain_huge_pages = config.constrain_huge_pages.max(other.constrain_huge_pages);
    }),
    ("MaxHugePages", |config, other| config.max_huge_pages = config.max_huge_pages.at_most(&other.max_huge_pages)),
    ("MaxHugePagesPerUser", |config, other| {
        config.max_huge_pages_per_user = config.max_huge_pages_per_user.at_most(&other.max_huge_pages_per_user);
    }),
    ("MaxHugePagesPerTask", |config, other| {
        config.max_huge_pages_per_task = config.max_huge_pages_per_task.at_most(&other.max_huge_pages_per_task);
    }),
    ("IOMax", |config, other| config.io_max = config.io_max.clone().at_most(&other.io_max)),
    ("IOMaxPerUser", |config, other| {
        config.io_max_per_user = config.io_max_per_user.clone().at_most(&other.io_max_per_user);
    }),
    ("IOMaxPerTask", |config, other| {
        config.io_max_per_task = config.io_max_per_task.clone().at_most(&other.io_max_per_task);
    }),
    ("IOWeight", |config, other| config.io_weight = least_weight(config.io_weight, other.io_weight)),
    ("ConstrainDevices", |config, other| {
        config.constrain_devices = config.constrain_devices.max(other.constrain_devices);
    }),
    // A device is allowed only if every candidate allows it, which no value of these keys can say.
    ("DeviceAllow", |_, _| {}),
    ("GPUDevice", |_, _| {}),
];

fn stricter(one: OnErrors, other: OnErrors) -> OnErrors {
    let fail = |one, other| if [one, other].contains(&OnError::Fail) { OnError::Fail } else { OnError::Warn };
    let general = OnErrors::all(fail(one.general(), other.general()));
    let add = |all: OnErrors, limit| all.with(limit, fail(one.for_limit(limit), other.for_limit(limit)));
    LIMITS.iter().fold(general, |all, &(_, limit)| add(all, limit))
}

fn least<T: Ord>(value: &mut T, other: T) {
    if other < *value {
        *value = other;
    }
}

/// `None` is no limit.
fn least_limit<T: Ord>(value: &mut Option<T>, other: Option<T>) {
    if other.is_some() && (value.is_none() || other < *value) {
        *value = other;
    }
}

/// Whether a key may stand in a section.
pub(super) fn is_per_job(key: &Key) -> bool {
    PER_JOB.iter().any(|(name, _)| *name == key.name) || key.is_number()
}

/// Takes the values that are stricter in `other`; returns their keys.
pub(super) fn take_stricter(config: &mut Config, other: &Config) -> Vec<&'static str> {
    let mut taken = Vec::new();
    for key in keys::KEYS {
        let before = key.get(config);
        match PER_JOB.iter().find(|(name, _)| *name == key.name) {
            Some((_, stricter)) => stricter(config, other),
            None => key.lower_number(config, other),
        }
        if key.get(config) != before {
            taken.push(key.name);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::keys::KEYS;
    use super::super::limits::{Limit, LimitNumbers};
    use super::super::load::written;
    use super::super::resolve::{Candidate, Loaded};
    use super::super::samples::{any_config, load_file};
    use super::super::units::Percent;
    use super::super::values::SwapSpace;
    use super::*;
    use crate::facts::Facts;
    use crate::job::Cpus;

    const OF_THE_NODE: [&str; 17] = [
        "CgroupMountpoint",
        "CgroupBase",
        "RunDir",
        "CleanupTimeout",
        "ReapInterval",
        "ReapSchedulerLeftovers",
        "EarlyMoves",
        "TrustAccount",
        "UsageLog",
        "UsageLogSize",
        "UsageLogAge",
        "StoreUsage",
        "SampleInterval",
        "MetricsFile",
        "CPUsPerSlot",
        "SlotMemory",
        "SlotGPUs",
    ];

    /// For every key it must be decided whether it can differ from job to job.
    #[test]
    fn every_key_is_for_jobs_or_for_the_node() {
        for key in KEYS {
            assert_ne!(is_per_job(key), OF_THE_NODE.contains(&key.name), "{}", key.name);
        }
        assert!(PER_JOB.iter().all(|(name, _)| KEYS.iter().any(|key| key.name == *name)));
        let names: BTreeSet<_> = PER_JOB.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), PER_JOB.len(), "one of them is there twice");
    }

    #[test]
    fn strictness_is_decided_for_every_kind_of_key() {
        let text = "Mode=observe OnError=warn,ram:fail ConstrainCPUQuota=no CPUQuotaPercent=200 HeadroomCPUs=4\n\
                    ConstrainRAMSpace=no AllowedRAMSpace=200 MinRAMSpace=1G ConstrainSwapSpace=no AllowedSwapSpace=90\n\
                    [QOS=x]\nMode=enforce OnError=warn,swap:fail ConstrainCPUQuota=yes CPUQuotaPercent=100 HeadroomCPUs=2\n\
                    ConstrainRAMSpace=yes AllowedRAMSpace=100 MinRAMSpace=64M ConstrainSwapSpace=yes AllowedSwapSpace=10\n\
                    MaxProcesses=10\n";
        // Whichever of the two is the section: the strict one wins.
        let (general, section) = text.split_once("[QOS=x]\n").unwrap();
        for text in [text.to_owned(), format!("{section}[QOS=x]\n{general}MaxProcesses=unlimited\n")] {
            let config = load_file(&[], Some((&text, 0o644))).unwrap().for_job(&Facts::default()).unwrap().config;
            let expected = Config {
                mode: Mode::Enforce,
                on_error: OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail).with(Limit::Swap, OnError::Fail),
                headroom_cpus: Cpus::whole(2),
                min_ram_space: 64 << 20,
                constrain_swap_space: SwapSpace::Yes,
                allowed_swap_space: Percent::from_hundredths(1000),
                numbers: LimitNumbers::of(Limit::Processes, 10),
                ..Config::default()
            };
            assert_eq!(config, expected, "{text}");
        }
    }

    proptest! {
        /// Whichever candidate is the truth, what holds is no more generous.
        #[test]
        fn the_strictest_is_no_more_generous_than_any(one in any_config(), other in any_config()) {
            let of_jobs = |config: &Config| {
                let node = OF_THE_NODE.map(str::to_lowercase);
                // Keys of a user as a whole may not stand in sections by QOS.
                let is_users = |key: &str| key.ends_with("peruser");
                let lines: Vec<String> = config.to_string().lines().map(str::to_owned).collect();
                let for_jobs = lines.into_iter().filter(|line| {
                    let key = line.split('=').next().unwrap_or_default().to_lowercase();
                    !(node.contains(&key) || is_users(&key) || key == "mode" && config.mode == Mode::Off)
                });
                for_jobs.map(|line| line + "\n").collect::<String>()
            };
            let text = format!("{}[QOS=x]\n{}", of_jobs(&one), of_jobs(&other));
            let written = written("f", text.as_bytes()).unwrap();
            let resolved = Loaded::new(None, written, Vec::new()).for_job(&Facts::default()).unwrap();
            let strict = &resolved.config;
            prop_assert_eq!(resolved.candidates.len(), 2);
            for Candidate { config, .. } in &resolved.candidates {
                prop_assert!(strict.cpu_quota_percent <= config.cpu_quota_percent);
                prop_assert!(strict.min_ram_space <= config.min_ram_space);
                prop_assert!(strict.allowed_ram_space <= config.allowed_ram_space);
                prop_assert!(strict.allowed_swap_space <= config.allowed_swap_space);
                prop_assert!(strict.headroom_cpus <= config.headroom_cpus);
                prop_assert!(strict.constrain_ram_space >= config.constrain_ram_space);
                prop_assert!(strict.constrain_swap_space >= config.constrain_swap_space);
                prop_assert!(strict.constrain_cpu_quota >= config.constrain_cpu_quota);
                let processes = |config: &Config| config.numbers.get(Limit::Processes).unwrap_or(u64::MAX);
                prop_assert!(processes(strict) <= processes(config));
                prop_assert!(strict.mode == Mode::Enforce || config.mode != Mode::Enforce);
                for limit in [Limit::Cpu, Limit::Ram, Limit::Swap, Limit::Processes] {
                    let fails = |config: &Config| config.on_error.for_limit(limit) == OnError::Fail;
                    prop_assert!(fails(strict) || !fails(config));
                }
            }
        }
    }
}
