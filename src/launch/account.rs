// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a step's usage to the usage log, at the step's end and while its directories exist.

use std::time::SystemTime;

use crate::config::Config;
use crate::facts::Fact;
use crate::fence::Fence;
use crate::figures::{LimitedTo, Usage};
use crate::record::loan::{self, LoanLine};
use crate::report::account::{Account, Ending};
use crate::report::usage_log::UsageLog;

/// A step's limits according to the kernel, for its line in the usage log. Empty if there is no such log.
pub fn limited_to(fence: &Fence, config: &Config) -> LimitedTo {
    match config.usage_log {
        Some(_) => fence.limited_to(),
        None => LimitedTo::default(),
    }
}

/// A step's line of the usage log, if there is such a log; `usage` is the step's. Make it before the fence is closed, and write it when
/// that has succeeded: for a step that remains, the janitor writes the line when it removes it.
pub fn account(fence: &Fence, config: &Config, usage: &Usage, ending: &Ending<'_>) -> Option<String> {
    config.usage_log.as_ref()?;
    let mut facts = ending.facts.clone();
    if facts.node == Fact::Unknown {
        facts.node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).into();
    }
    let job = fence.job_usage();
    let loan = config.memory_pool.and_then(|_| fence.loan());
    let of_loan = |which| loan::line(loan.as_deref()?, which);
    let lent = of_loan(LoanLine::Most).and_then(|most| most.parse().ok());
    let ended_for_owners = of_loan(LoanLine::AfterEnd);
    let ending = Ending { facts: &facts, ..*ending };
    let (key, ended) = (fence.key(), SystemTime::now());
    Some(Account { key, ended, usage, job: &job, lent, ended_for_owners, ending }.line())
}

/// Adds that line to the usage log. A failure is no error of the step.
pub fn write_down(config: &Config, line: Option<&str>) {
    if let Some((usage_log, line)) = UsageLog::from_config(config).zip(line) {
        usage_log.add(line);
    }
}
