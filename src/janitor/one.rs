// SPDX-License-Identifier: GPL-2.0-or-later
//! One record: the step of a holder that has gone is removed, and its name is free.

use std::time::{Instant, SystemTime};

use super::holders::Holders;
use super::reaped::{PATIENCE_AT_LAUNCH, ReapOutcome};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::fence::{self, Freed, Leftovers, Opening};
use crate::host::Host;
use crate::job::JobKey;
use crate::record::counters::{Counters, Event};
use crate::record::{Header, Record, Records};
use crate::report::account::{Account, End, LimitedTo, since_boot};
use crate::report::usage_log::UsageLog;
use crate::scheduler::Schedulers;

/// What a fence is made of, where this janitor frees its name, and no daemon is known.
pub fn opening<'a>(host: &'a Host, config: &'a Config, schedulers: Schedulers, key: &'a JobKey) -> Opening<'a> {
    Opening { host, config, schedulers, key, more: &[], daemon: None, free: free_name, holder: None, run: 1 }
}

/// For a launch that wants this name.
fn free_name(opening: &Opening<'_>, records: &Records, levels: &[String]) -> Result<Freed> {
    let holders = Holders { schedulers: opening.schedulers, units: None };
    let at = (opening.host, opening.config);
    reap_one(at, records, levels, holders, Instant::now() + PATIENCE_AT_LAUNCH).map(|outcome| match outcome {
        ReapOutcome::Removed | ReapOutcome::Gone => Freed::Free,
        ReapOutcome::Alive | ReapOutcome::Busy => Freed::Taken,
    })
}

/// Looks at one record and removes its step if the owner is dead.
pub fn reap_one(
    (host, config): (&Host, &Config),
    records: &Records,
    levels: &[String],
    holders: Holders,
    deadline: Instant,
) -> Result<ReapOutcome> {
    // Whatever release made it; only what a dead one left in this boot must be understood.
    match records.header(levels)? {
        None => return Ok(ReapOutcome::Gone),
        Some(header) if !holders.is_over(host, records, levels, &header)? => return Ok(ReapOutcome::Alive),
        Some(_) => {}
    }
    let Some(_lock) = records.lock_janitor()? else { return Ok(ReapOutcome::Busy) };
    // Once more under the lock: the record of a dead owner is removed only by a janitor, so this one is still the same.
    let Some(header) = records.header(levels)? else { return Ok(ReapOutcome::Gone) };
    if !holders.is_over(host, records, levels, &header)? {
        return Ok(ReapOutcome::Alive);
    }
    if header.boot_id == host.boot_id {
        if !host.has_cgroups() {
            return Err(Error::new("no cgroups can be seen, so it is not known whether anything is left"));
        }
        let Some(record) = records.read(levels)? else { return Ok(ReapOutcome::Gone) };
        if let Some(owner) = fence::marked_by_another(host, &record)? {
            log::debug!("{}: made anew by process {}, with a record elsewhere", levels.join("/"), owner.pid);
            forget(records, levels, &header)?;
            return Ok(ReapOutcome::Removed);
        }
        let left = fence::open_existing(host, &record.base, levels)?;
        let line = config.usage_log.as_ref().and_then(|_| account(&record, &left));
        left.remove(host, deadline)?;
        if let Some((usage_log, line)) = UsageLog::of(config).zip(line) {
            usage_log.add(&line);
        }
        if config.metrics_file.is_some() {
            Counters::count(&config.run_dir, Event::Reaped);
        }
    }
    forget(records, levels, &header)?;
    Ok(ReapOutcome::Removed)
}

/// The line of the usage log about what a dead holder left: what the step has used until now.
fn account(record: &Record, left: &Leftovers) -> Option<String> {
    let shared = record.shared.as_deref();
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let (usage, job) = left.usage();
    let (cpus, memory, processes) = left.limits();
    let account = Account {
        key: &record.key()?,
        run: shared.map_or(0, |shared| shared.run),
        holder: &shared.map_or_else(|| format!("pid:{}", record.owner.pid), |shared| shared.holder.to_string()),
        facts: &Facts { node: node.into(), ..Facts::default() },
        limits: LimitedTo { cpus, memory, processes },
        started: since_boot(shared.map_or(record.owner, |shared| shared.opener).start),
        ended: SystemTime::now(),
        end: End::Reaped,
        exit: None,
        usage: &usage,
        job: &job,
        tasks: &[],
        sentences: &[],
    };
    Some(account.line())
}

fn forget(records: &Records, levels: &[String], header: &Header) -> Result<()> {
    if header.is_shared() { records.forget_shared(levels) } else { records.forget(levels) }
}
