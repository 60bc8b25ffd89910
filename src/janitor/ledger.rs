// SPDX-License-Identifier: GPL-2.0-or-later
//! The usage log's lines about dead steps that a janitor has removed: one for each step, in however many places it was.
//!
//! A step may have directories of jobfence's and of its scheduler's, the latter one in each hierarchy of cgroup v1. Their counters are
//! added up here, and the line is written when the janitor has examined all of them.

use std::time::SystemTime;

use crate::cgroup::usage::Used;
use crate::config::Config;
use crate::facts::Facts;
use crate::figures::GrantedTo;
use crate::host::Host;
use crate::job::JobKey;
use crate::record::holder::Holder;
use crate::record::job::JobRecords;
use crate::record::{Owner, Record};
use crate::report::account::{Account, End, Ending, since_boot};
use crate::report::usage_log::UsageLog;
use crate::scheduler::Schedulers;

/// The lines to be written; see above.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ledger(Vec<DeadStep>);

/// A step that was found dead, with its usage so far.
#[derive(Debug, PartialEq, Eq)]
pub struct DeadStep {
    key: JobKey,
    opener: Owner,
    run: u32,
    holder: String,
    facts: Facts,
    granted: GrantedTo,
    used: Used,
}

impl DeadStep {
    /// An entry from a record and the usage of its directories. `None`: the record names no step.
    pub fn recorded(record: &Record, schedulers: Schedulers, used: Used) -> Option<Self> {
        let (key, shared, noted) = (record.key()?, record.shared.as_deref(), record.noted());
        // A process that holds a fence alone is a step daemon, or runs one command.
        let of_daemon = || schedulers.iter().find(|scheduler| scheduler.names_jobs_so(&key.job));
        let holder = match (shared, of_daemon()) {
            (Some(shared), _) => shared.holder.to_string(),
            (None, Some(scheduler)) => holder_of(scheduler.name()),
            (None, None) => Holder::Process(record.owner).to_string(),
        };
        Some(Self {
            key,
            opener: record.opener(),
            run: shared.map_or(0, |shared| shared.run),
            holder,
            facts: noted.facts(),
            granted: noted.granted,
            used,
        })
    }

    /// An entry from a scheduler's directories.
    pub fn from_scheduler(name: &str, (key, opener, used): (JobKey, Owner, Used)) -> Self {
        let (facts, granted) = (Facts::default(), GrantedTo::default());
        Self { key, opener, run: 0, holder: holder_of(name), facts, granted, used }
    }

    fn line(&self) -> String {
        let Self { key, opener, run, holder, facts, granted, used } = self;
        let Used { step, job, limits } = used;
        let ending = Ending {
            holder,
            run: *run,
            facts,
            granted: *granted,
            limits: *limits,
            started: since_boot(opener.start),
            exit: None,
            tasks: &[],
            sentences: &[],
            end: End::Reaped,
        };
        Account { key, ended: SystemTime::now(), usage: step, job, lent: None, ended_for_owners: None, ending }.line()
    }
}

fn holder_of(scheduler: &str) -> String {
    format!("scheduler {scheduler}")
}

impl Ledger {
    /// Adds what was found in one place of a step.
    pub fn add(&mut self, found: DeadStep) {
        match self.0.iter_mut().find(|step| (&step.key, step.opener) == (&found.key, found.opener)) {
            Some(step) => step.used.or(&found.used),
            None => self.0.push(found),
        }
    }

    /// Writes the lines, if there is a usage log.
    pub fn write(&mut self, host: &Host, config: &Config) {
        let found = std::mem::take(&mut self.0);
        let Some(usage_log) = UsageLog::from_config(config) else { return };
        for mut step in found {
            step.facts = facts(&step, host, config);
            usage_log.add(&step.line());
        }
    }
}

/// What is known about a step's job, including the job's own record and this host's name.
fn facts(step: &DeadStep, host: &Host, config: &Config) -> Facts {
    let mut facts = step.facts.clone();
    let records = JobRecords::existing(&config.run_dir).ok().flatten();
    let record = records.and_then(|records| records.read(&step.key.on_node(), host).ok().flatten());
    if let Some(record) = record.filter(|record| record.uid == step.key.uid && facts.partition.known().is_none()) {
        record.add_to(&mut facts);
    }
    let node = step.key.node.as_ref().map(ToString::to_string);
    facts.node = node.or_else(|| nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok())).into();
    facts
}
