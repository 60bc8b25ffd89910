// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts a stray into the fence of its user's job that began last on this node: as sessions of ssh are, where the scheduler has such a way,
//! and otherwise into a fence that was opened for the scheduler.

use jobfence::config::Config;
use jobfence::doors::life;
use jobfence::error::{Error, Result};
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::record::{Owner, Record, Records};
use jobfence::schedulers::jobs_step;

use crate::schedulers;

/// The user's newest job here.
pub fn newest_job(host: &Host, config: &Config, uid: u32) -> Result<Option<Id>> {
    for part in schedulers::ALL {
        if let Some(job) = part.newest_job(host, config, uid)? {
            return Ok(Some(job));
        }
    }
    Ok(opened(host, config, uid)?.and_then(|record| record.job()))
}

/// Puts the process there, and says where that is.
pub fn adopt(host: &Host, config: &Config, (id, uid): (Owner, u32)) -> Result<String> {
    for part in schedulers::ALL {
        if part.newest_job(host, config, uid)?.is_some()
            && let Some(said) = part.adopt(host, config, id)?
        {
            return Ok(said);
        }
    }
    let none = || Error::new("its user has no job on this node that it can go into");
    let record = opened(host, config, uid)?.ok_or_else(none)?;
    let mut fence = life::go_on(host, config, &record)?;
    match fence.attach_this(host, id, None)?.into_iter().next() {
        None => Ok(format!("process {} is in {} now", id.pid, fence.key())),
        Some((_, error)) => Err(error),
    }
}

/// The record of the fence of this user's that was opened last. Those of the schedulers' daemons themselves are none.
fn opened(host: &Host, config: &Config, uid: u32) -> Result<Option<Record>> {
    let records = match Records::open(&config.run_dir) {
        Err(error) if error.is_gone() => return Ok(None),
        records => records?,
    };
    let mut found = Vec::new();
    for levels in records.list()? {
        let is_a_jobs = levels.last().is_some_and(|step| step.starts_with("step_") && jobs_step(step).is_none());
        if !is_a_jobs || !levels.contains(&format!("uid_{uid}")) {
            continue;
        }
        let record = records.read(&levels)?.filter(|record| {
            record.uid() == Some(uid) && record.boot_id == host.boot_id && record.pid_namespace == host.pid_namespace
        });
        found.extend(record.and_then(|record| Some((record.shared.as_ref()?.opener.start, record))));
    }
    Ok(found.into_iter().max_by_key(|(start, _)| *start).map(|(_, record)| record))
}
