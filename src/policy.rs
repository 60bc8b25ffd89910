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
        let all: Vec<String> = [cpu, ram, swap].into_iter().flatten().collect();
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
