// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts a stray into the fence of its user's newest job on this node. Where the scheduler has a way for sessions of ssh, it is that way.
//! Otherwise it is a fence that was opened for the scheduler.

use std::cmp::Reverse;

use jobfence::config::Config;
use jobfence::doors::life;
use jobfence::error::{Error, Result};
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::record::{Owner, Record, Records};
use jobfence::schedulers::jobs_step;

use crate::schedulers;

/// The user's newest job on this node.
pub fn newest_job(host: &Host, config: &Config, uid: u32) -> Result<Option<Id>> {
    for part in schedulers::ALL {
        if let Some(job) = part.newest_job(host, config, uid)? {
            return Ok(Some(job));
        }
    }
    Ok(opened(host, config, uid)?.first().and_then(Record::job))
}

/// Puts the process into the job, and says where it is.
pub fn adopt(host: &Host, config: &Config, (id, uid): (Owner, u32)) -> Result<String> {
    for part in schedulers::ALL {
        if part.newest_job(host, config, uid)?.is_some()
            && let Some(said) = part.adopt(host, config, id)?
        {
            return Ok(said);
        }
    }
    let none = || Error::new("its user has no job on this node that it can go into");
    let mut fence = Err(none());
    for record in opened(host, config, uid)? {
        fence = life::go_on(host, config, &record);
        if fence.is_ok() {
            break;
        }
        // The fence may be closing just now. So the next one is tried.
    }
    let mut fence = fence?;
    match fence.attach_this(host, id, None)?.into_iter().next() {
        None => Ok(format!("process {} is in {} now", id.pid, fence.key())),
        Some((_, error)) => Err(error),
    }
}

/// The records of this user's fences, the last opened one first. Fences of the schedulers' own daemons are left out.
fn opened(host: &Host, config: &Config, uid: u32) -> Result<Vec<Record>> {
    let Some(records) = Records::existing(&config.run_dir)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for levels in records.list()? {
        let is_a_jobs = levels.last().is_some_and(|step| step.starts_with("step_") && jobs_step(step).is_none());
        if !is_a_jobs || !levels.contains(&format!("uid_{uid}")) {
            continue;
        }
        let record = records.read(&levels)?.filter(|record| record.uid() == Some(uid) && record.is_here(host));
        found.extend(record.and_then(|record| Some((record.shared.as_ref()?.opener.start, record))));
    }
    found.sort_by_key(|(start, _)| Reverse(*start));
    Ok(found.into_iter().map(|(_, record)| record).collect())
}
