// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step has used is written down, at its end and while its directories are there.

use std::time::SystemTime;

use crate::cgroup::usage::Usage;
use crate::config::Config;
use crate::facts::{Fact, Facts};
use crate::fence::Fence;
use crate::report::account::{Account, End, Exit, GrantedTo, LimitedTo, Task};
use crate::report::usage_log::UsageLog;

/// What only a door knows of a step at its end.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// Who or what held the fence, as a record says it.
    pub holder: &'a str,
    /// Which run of the step.
    pub run: u32,
    /// What is known of its job.
    pub facts: &'a Facts,
    /// What it was granted.
    pub granted: GrantedTo,
    /// What it was limited to.
    pub limits: LimitedTo,
    /// When its fence was made.
    pub started: Option<SystemTime>,
    /// How it ended, where the door was told.
    pub exit: Option<Exit>,
    /// Its tasks that had directories.
    pub tasks: &'a [Task],
    /// At which limits it was stopped.
    pub sentences: &'a [String],
    /// Who ends it.
    pub end: End,
}

/// To what a step is limited, as the kernel has it, for its line in the usage log; nothing if there is no such log.
pub fn limited_to(fence: &Fence, config: &Config) -> LimitedTo {
    match config.usage_log {
        Some(_) => LimitedTo { cpus: fence.cpus(), memory: fence.memory(), processes: fence.processes() },
        None => LimitedTo::default(),
    }
}

/// The line of the usage log about a step, if there is such a log; `usage` is what it has used. It is made before the fence is closed,
/// and written when that has succeeded: of what remains, the janitor writes when it is gone.
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

/// Adds that line to the usage log. What goes wrong there is no error of the step's.
pub fn write_down(config: &Config, line: Option<&str>) {
    if let Some((usage_log, line)) = UsageLog::of(config).zip(line) {
        usage_log.add(line);
    }
}
