// SPDX-License-Identifier: GPL-2.0-or-later
//! From what was granted, and what the site says about it, to the numbers that are written. No I/O.

use std::fmt;

use crate::cgroup::limits::{CpuQuota, MIN_QUOTA_US, SwapLimit};
use crate::config::{Config, Limit};
use crate::error::Error;
use crate::job::{Cpus, Grant};
use crate::report::mebibytes;

/// What one directory is limited to. `None`: not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU time.
    pub cpu: Option<CpuQuota>,
    /// RAM, in bytes.
    pub ram: Option<u64>,
    /// Swap.
    pub swap: Option<SwapLimit>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// The limits of a step and of the job around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The job's directory: all its steps together.
    pub job: Limits,
    /// The step's directory; never above the job's.
    pub step: Limits,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.map(|quota| format!("{} CPUs", quota.cpus()));
        let ram = self.ram.map(|bytes| format!("{} of memory", mebibytes(bytes)));
        let swap = self.swap.map(|limit| format!("{} of swap", mebibytes(limit.swap)));
        let processes = self.processes.map(|count| format!("{count} processes"));
        let all: Vec<String> = [cpu, ram, swap, processes].into_iter().flatten().collect();
        f.write_str(&if all.is_empty() { "nothing".to_owned() } else { all.join(", ") })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job to {}; the step to {}", self.job, self.step)
    }
}

/// Computes the limits. What cannot be computed comes back beside what can, so that `OnError` decides limit by limit.
pub fn plan(config: &Config, grant: &Grant) -> (Plan, Vec<(Limit, Error)>) {
    let mut plan = Plan::default();
    let mut errors = Vec::new();
    if config.constrain_cpu_quota {
        let step_cpus = match (grant.step_cpus, grant.job_cpus) {
            (Some(step), Some(job)) => Some(step.min(job)),
            (step, _) => step,
        };
        for (cpus, limits) in [(grant.job_cpus, &mut plan.job), (step_cpus, &mut plan.step)] {
            match cpus.map(|cpus| quota(config, cpus)).transpose() {
                Ok(quota) => limits.cpu = quota,
                Err(error) => errors.push((Limit::Cpu, error)),
            }
        }
    }
    let step_memory = match (grant.step_memory, grant.job_memory) {
        (Some(step), Some(job)) => Some(step.min(job)),
        (step, job) => step.or(job),
    };
    for (memory, limits) in [(grant.job_memory, &mut plan.job), (step_memory, &mut plan.step)] {
        let Some(memory) = memory else { continue };
        let ram = config.allowed_ram_space.of(memory).max(config.min_ram_space);
        limits.ram = config.constrain_ram_space.then_some(ram);
        limits.swap =
            config.constrain_swap_space.then(|| SwapLimit { swap: config.allowed_swap_space.of(memory), ram });
    }
    for limits in [&mut plan.job, &mut plan.step] {
        limits.processes = config.max_processes;
    }
    (plan, errors)
}

fn quota(config: &Config, cpus: Cpus) -> Result<CpuQuota, Error> {
    let period_us = config.cpu_quota_period.micros();
    // Thousandths of a CPU times microseconds: divided by 1000 at the end, so that small quotas keep their digits.
    let quota_us = config.cpu_quota_percent.of(cpus.thousandths().saturating_mul(u64::from(period_us))) / 1000;
    if quota_us < MIN_QUOTA_US {
        return Err(Error::new(format!(
            "{cpus} CPUs at CPUQuotaPercent {} are {quota_us} us in a period of {period_us} us, and the kernel's least is \
             {MIN_QUOTA_US} us",
            config.cpu_quota_percent
        ))
        .hint("set a longer CPUQuotaPeriod"));
    }
    Ok(CpuQuota { quota_us, period_us: u64::from(period_us) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Percent;

    const MIB: u64 = 1 << 20;

    fn granted(cpus: u32, mib: u64) -> Grant {
        let (cpus, memory) = (Some(Cpus::whole(cpus)), Some(mib * MIB));
        Grant { job_cpus: cpus, step_cpus: cpus, job_memory: memory, step_memory: memory }
    }

    fn percent(text: &str) -> Percent {
        crate::config::parse("test", format!("AllowedRAMSpace={text}\n").as_bytes()).unwrap().allowed_ram_space
    }

    #[test]
    fn the_defaults_are_what_was_granted_without_swap() {
        let (plan, errors) = plan(&Config::default(), &granted(3, 200));
        assert!(errors.is_empty());
        let limits = Limits {
            cpu: Some(CpuQuota { quota_us: 300_000, period_us: 100_000 }),
            ram: Some(200 * MIB),
            swap: Some(SwapLimit { swap: 0, ram: 200 * MIB }),
            processes: None,
        };
        assert_eq!(plan, Plan { job: limits.clone(), step: limits });
    }

    #[test]
    fn percentages_and_the_least_amount() {
        let config = Config {
            cpu_quota_percent: percent("12.5"),
            allowed_ram_space: percent("150"),
            allowed_swap_space: percent("10"),
            ..Config::default()
        };
        let limits = plan(&config, &granted(2, 200)).0.step;
        assert_eq!(limits.cpu.unwrap().quota_us, 25_000);
        assert_eq!(limits.ram, Some(300 * MIB));
        assert_eq!(limits.swap, Some(SwapLimit { swap: 20 * MIB, ram: 300 * MIB }));
        assert_eq!(plan(&config, &granted(2, 10)).0.step.ram, Some(config.min_ram_space));
    }

    #[test]
    fn what_is_not_managed_or_switched_off_is_not_limited() {
        let unmanaged = Grant { job_memory: None, step_memory: None, ..granted(1, 1) };
        let limits = plan(&Config::default(), &unmanaged).0.job;
        assert_eq!((limits.ram, limits.swap, limits.cpu.is_some()), (None, None, true));
        let off = Config {
            constrain_cpu_quota: false,
            constrain_ram_space: false,
            constrain_swap_space: false,
            ..Config::default()
        };
        assert_eq!(plan(&off, &granted(1, 100)).0, Plan::default());
    }

    #[test]
    fn a_quota_below_the_kernels_least_is_an_error_of_that_limit_alone() {
        let config = Config { cpu_quota_percent: percent("1"), ..Config::default() };
        let half = Cpus::from_thousandths(500);
        let grant = Grant { job_cpus: Some(half), step_cpus: Some(half), ..granted(1, 100) };
        let (plan, errors) = plan(&config, &grant);
        assert_eq!(errors.iter().map(|(limit, _)| *limit).collect::<Vec<_>>(), [Limit::Cpu, Limit::Cpu]);
        assert!(errors[0].1.to_string().contains("500 us in a period of 100000 us"), "{}", errors[0].1);
        assert_eq!((plan.step.cpu, plan.step.ram), (None, Some(100 * MIB)));
    }

    proptest! {
        /// Whatever is granted: never more than the site's percentage of it, and a step never more than its job.
        #[test]
        fn nothing_exceeds_the_grant(
            job in 1u64..10_000_000, step in 1u64..10_000_000,
            job_memory in 1u64..1 << 50, step_memory in 1u64..1 << 50,
            hundredths in 100u64..=100_000,
        ) {
            let share = percent(&format!("{}.{:02}", hundredths / 100, hundredths % 100));
            let config = Config {
                cpu_quota_percent: share, allowed_ram_space: share, min_ram_space: 0, ..Config::default()
            };
            let cpus = |thousandths| Some(Cpus::from_thousandths(thousandths));
            let grant = Grant {
                job_cpus: cpus(job), step_cpus: cpus(step),
                job_memory: Some(job_memory), step_memory: Some(step_memory),
            };
            let plan = plan(&config, &grant).0;
            if let (Some(whole), Some(part)) = (plan.job.cpu, plan.step.cpu) {
                prop_assert!(part.quota_us <= whole.quota_us);
                prop_assert!(u128::from(whole.quota_us) * 10_000_000 <= u128::from(job * hundredths) * 100_000);
            }
            let (whole, part) = (plan.job.ram.unwrap(), plan.step.ram.unwrap());
            prop_assert!(part <= whole);
            prop_assert!(u128::from(whole) * 10_000 <= u128::from(job_memory) * u128::from(hundredths));
        }
    }
}
