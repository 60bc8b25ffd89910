// SPDX-License-Identifier: GPL-2.0-or-later
//! A single record: removes the step of a holder that is gone, and frees its name.

use std::time::Instant;

use super::holders::Holders;
use super::ledger::{DeadStep, Ledger};
use super::reaped::{PATIENCE_AT_LAUNCH, ReapOutcome};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fence::{self, Freed, Opening};
use crate::host::Host;
use crate::job::JobKey;
use crate::log;
use crate::record::counters::{Counters, Event};
use crate::record::{Header, Records};
use crate::scheduler::Schedulers;

/// The parameters of a new fence without a known daemon; this janitor frees its name.
pub fn opening<'a>(host: &'a Host, config: &'a Config, schedulers: Schedulers, key: &'a JobKey) -> Opening<'a> {
    Opening { host, config, schedulers, key, more: &[], daemon: None, free: free_name, holder: None, run: 1, gpus: &[] }
}

/// For a launch that wants this name.
fn free_name(opening: &Opening<'_>, records: &Records, levels: &[String]) -> Result<Freed> {
    let holders = Holders { schedulers: opening.schedulers, units: None, leaves_to_closers: false };
    let at = (opening.host, opening.config);
    let mut ledger = Ledger::default();
    let outcome = reap_one(at, records, levels, holders, (Instant::now() + PATIENCE_AT_LAUNCH, &mut ledger));
    ledger.write(opening.host, opening.config);
    outcome.map(|outcome| match outcome {
        ReapOutcome::Removed | ReapOutcome::Gone => Freed::Free,
        ReapOutcome::Alive | ReapOutcome::Busy => Freed::Taken,
    })
}

/// Examines one record, and removes its step if the owner is dead. The step's usage goes into the ledger.
pub fn reap_one(
    (host, config): (&Host, &Config),
    records: &Records,
    levels: &[String],
    holders: Holders,
    (deadline, ledger): (Instant, &mut Ledger),
) -> Result<ReapOutcome> {
    // The header is readable for every release. Only a record of a dead owner in this boot must be understood as a whole.
    match records.header(levels)? {
        None => return Ok(ReapOutcome::Gone),
        Some(header) if !holders.is_over(host, records, levels, &header)? => return Ok(ReapOutcome::Alive),
        Some(_) => {}
    }
    let Some(_lock) = records.lock_janitor()? else { return Ok(ReapOutcome::Busy) };
    // Checked again under the lock: only a janitor removes the record of a dead owner, so this one is still the same.
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
        let dead = config.usage_log.as_ref().and_then(|_| DeadStep::recorded(&record, holders.schedulers, left.used()));
        left.remove(host, deadline)?;
        if let Some(dead) = dead {
            ledger.add(dead);
        }
        if config.metrics_file.is_some() {
            Counters::count(&config.run_dir, Event::Reaped);
        }
    }
    forget(records, levels, &header)?;
    Ok(ReapOutcome::Removed)
}

fn forget(records: &Records, levels: &[String], header: &Header) -> Result<()> {
    if header.is_shared() { records.forget_shared(levels) } else { records.forget(levels) }
}
