// SPDX-License-Identifier: GPL-2.0-or-later
//! Which of two values of a key is stricter, if it is not known which of them holds for a job.

use super::limits::LIMITS;
use super::values::{CpuPolicy, LoginBudget, Mode, OnError, OnErrors, TaskCpus};
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::{IoRules, least_weight};

/// Limits err on the side of limiting; for limits that are numbers, the lowest of those that are computed counts (`policy`).
pub(super) fn least<T: Ord + Clone>(value: &mut T, other: &T) {
    if *other < *value {
        value.clone_from(other);
    }
}

pub(super) fn most<T: Ord + Clone>(value: &mut T, other: &T) {
    if *other > *value {
        value.clone_from(other);
    }
}

/// `None` is no limit.
pub(super) fn least_limit<T: Ord + Copy>(value: &mut Option<T>, other: &Option<T>) {
    if other.is_some() && (value.is_none() || *other < *value) {
        *value = *other;
    }
}

/// Nothing, unless each wants something: then the first one's.
pub(super) fn if_each<T: Copy>(value: &mut Option<T>, other: &Option<T>) {
    *value = value.filter(|_| other.is_some());
}

/// Less time and fewer CPUs, also if they are of two budgets.
pub(super) fn login_budget(budget: &mut Option<LoginBudget>, other: &Option<LoginBudget>) {
    *budget = match (*budget, *other) {
        (Some(one), Some(other)) => {
            Some(LoginBudget { time: one.time.min(other.time), cpus: one.cpus.min(other.cpus) })
        }
        (one, other) => one.or(other),
    };
}

/// The first one's stays.
pub(super) fn first<T>(_: &mut T, _: &T) {}

pub(super) fn mode(mode: &mut Mode, other: &Mode) {
    if matches!((*mode, *other), (Mode::Off, _) | (Mode::Observe, Mode::Enforce)) {
        *mode = *other;
    }
}

pub(super) fn cpu_policy(policy: &mut CpuPolicy, other: &CpuPolicy) {
    if policy != other {
        *policy = CpuPolicy::Both;
    }
}

pub(super) fn task_cpus(cpus: &mut TaskCpus, other: &TaskCpus) {
    match (*cpus, *other) {
        (TaskCpus::Count(one), TaskCpus::Count(other)) => *cpus = TaskCpus::Count(one.min(other)),
        (TaskCpus::Unlimited, other) => *cpus = other,
        _ => {}
    }
}

pub(super) fn huge_pages(pages: &mut HugePages, other: &HugePages) {
    *pages = pages.at_most(other);
}

pub(super) fn io_rules(rules: &mut IoRules, other: &IoRules) {
    *rules = std::mem::take(rules).at_most(other);
}

pub(super) fn io_weight(weight: &mut Option<u64>, other: &Option<u64>) {
    *weight = least_weight(*weight, *other);
}

pub(super) fn on_errors(value: &mut OnErrors, other: &OnErrors) {
    let fail = |one, other| if [one, other].contains(&OnError::Fail) { OnError::Fail } else { OnError::Warn };
    let general = OnErrors::all(fail(value.general(), other.general()));
    let add = |all: OnErrors, limit| all.with(limit, fail(value.for_limit(limit), other.for_limit(limit)));
    *value = LIMITS.iter().fold(general, |all, &(_, limit)| add(all, limit));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::keys::{Config, KEYS, any_config};
    use super::super::limits::{Limit, LimitNumbers};
    use super::super::load::written;
    use super::super::resolve::{Candidate, Loaded};
    use super::super::samples::load_file;
    use super::super::units::Percent;
    use super::super::values::SwapSpace;
    use super::*;
    use crate::facts::Facts;
    use crate::job::Cpus;

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
                numbers: LimitNumbers::with(Limit::Processes, 10),
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
                let node: Vec<String> =
                    KEYS.iter().filter(|key| !key.is_per_job()).map(|key| key.name.to_lowercase()).collect();
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
