// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a step's usage to the usage log, at the step's end and while its directories exist.

use std::time::SystemTime;

use crate::config::Config;
use crate::facts::{Fact, Facts};
use crate::fence::Fence;
use crate::figures::{LimitedTo, Usage};
use crate::report::account::{Account, End, Exit, GrantedTo, Task};
use crate::report::usage_log::UsageLog;

/// What only the entry point knows about a step at its end.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// The holder of the fence, as in a record.
    pub holder: &'a str,
    /// The run of the step.
    pub run: u32,
    /// What is known about its job.
    pub facts: &'a Facts,
    /// What it was granted.
    pub granted: GrantedTo,
    /// Its limits.
    pub limits: LimitedTo,
    /// When its fence was made.
    pub started: Option<SystemTime>,
    /// How it ended, if the entry point was told.
    pub exit: Option<Exit>,
    /// Its tasks that had directories.
    pub tasks: &'a [Task],
    /// The limits at which it was stopped.
    pub sentences: &'a [String],
    /// How it came to its end.
    pub end: End,
}

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
    let account = Account {
        key: fence.key(),
        run: ending.run,
        holder: ending.holder,
        facts: &facts,
        granted: ending.granted,
        limits: ending.limits,
        started: ending.started,
        ended: SystemTime::now(),
        end: ending.end,
        exit: ending.exit,
        usage,
        job: &job,
        tasks: ending.tasks,
        sentences: ending.sentences,
    };
    Some(account.line())
}

/// Adds that line to the usage log. A failure is no error of the step.
pub fn write_down(config: &Config, line: Option<&str>) {
    if let Some((usage_log, line)) = UsageLog::of(config).zip(line) {
        usage_log.add(line);
    }
}
