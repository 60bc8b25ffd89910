// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts CPUs to the CPU time in each period. A quota that the kernel would refuse is an error.

use crate::cgroup::limits::{CpuQuota, MIN_QUOTA_US};
use crate::config::{Config, Percent};
use crate::error::Error;
use crate::job::Cpus;

/// The quota of so many CPUs that were granted.
pub(super) fn quota(config: &Config, cpus: Cpus) -> Result<CpuQuota, Error> {
    quota_of(config, config.cpu_quota_percent, cpus)
}

/// The quota of so many CPUs, at this percentage.
pub(super) fn quota_of(config: &Config, percent: Percent, cpus: Cpus) -> Result<CpuQuota, Error> {
    let period_us = config.cpu_quota_period.micros();
    // Thousandths of a CPU times microseconds: divided by 1000 at the end, so that small quotas keep their digits.
    let quota_us = percent.of(cpus.thousandths().saturating_mul(u64::from(period_us))) / 1000;
    if quota_us < MIN_QUOTA_US {
        return Err(Error::new(format!(
            "{} at {percent} (CPUQuotaPercent): {quota_us} us in a period of {period_us} us, and the kernel's least is \
             {MIN_QUOTA_US} us",
            cpus.in_words()
        ))
        .hint("set a longer CPUQuotaPeriod"));
    }
    Ok(CpuQuota { quota_us, period_us: u64::from(period_us) })
}

/// The quota of so many CPUs that a user has asked for.
pub(super) fn requested_quota(config: &Config, cpus: Cpus) -> Result<CpuQuota, Error> {
    let period_us = u64::from(config.cpu_quota_period.micros());
    let quota_us = cpus.thousandths().saturating_mul(period_us) / 1000;
    if quota_us < MIN_QUOTA_US {
        let least = Cpus::from_thousandths((MIN_QUOTA_US * 1000).div_ceil(period_us));
        return Err(Error::new(format!(
            "{}, as asked for: {quota_us} us in each period of {period_us} us, and the kernel's least is {MIN_QUOTA_US} us",
            cpus.in_words()
        ))
        .hint(format!("ask for at least --cpu-limit={least}")));
    }
    Ok(CpuQuota { quota_us, period_us })
}
