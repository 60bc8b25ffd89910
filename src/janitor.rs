// SPDX-License-Identifier: GPL-2.0-or-later
//! Removes what dead owners left. It acts on a complete record of an owner that is certainly dead, and on nothing else.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::fence;
use crate::host::Host;
use crate::job::Name;
use crate::record::job::{JobId, JobRecords};
use crate::record::{Header, Records};

/// What became of one recorded step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its owner lives.
    Alive,
    /// Its owner was dead, or there was no record any more; nothing is left now.
    Removed,
    /// Another janitor is at work.
    Busy,
}

/// How long whoever is not in a hurry gives all of it to end.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a launch may be held up by what others left.
pub const PATIENCE_AT_LAUNCH: Duration = Duration::from_millis(200);

/// What a janitor did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Steps that were removed, by their directories.
    pub removed: Vec<String>,
    /// Steps whose owner is alive.
    pub alive: usize,
    /// Steps at which another janitor is at work.
    pub busy: usize,
    /// Steps that could not be removed, and why.
    pub failed: Vec<String>,
}

impl Reaped {
    fn count(&mut self, levels: &[String], outcome: Result<Outcome>) {
        let name = levels.join("/");
        match outcome {
            Ok(Outcome::Alive) => self.alive += 1,
            Ok(Outcome::Removed) => self.removed.push(name),
            Ok(Outcome::Busy) => self.busy += 1,
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }

    /// Says in the log what was done; nothing if nothing was.
    pub fn log(&self) {
        for step in &self.removed {
            log::info!("removed {step}, which a dead step daemon left");
        }
        for failure in &self.failed {
            log::error!("cannot remove what a dead step daemon left: {failure}");
        }
    }
}

/// How long a step holds up the others; what does not go by then is looked at again when all have been killed.
const PATIENCE_EACH: Duration = Duration::from_millis(20);

/// Looks at every record and removes the steps of dead owners, until the deadline. Whatever the deadline, each of them is
/// killed: a process that does not die must not keep those of other steps alive.
pub fn reap(host: &Host, config: &Config, deadline: Instant) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    let mut reaped = Reaped::default();
    let mut again = Vec::new();
    for levels in records.list()? {
        let soon = deadline.min(Instant::now() + PATIENCE_EACH);
        match reap_one(host, &records, &levels, soon) {
            Err(_) => again.push(levels),
            Ok(outcome) => reaped.count(&levels, Ok(outcome)),
        }
    }
    for levels in again {
        reaped.count(&levels, reap_one(host, &records, &levels, deadline));
    }
    let of_jobs = JobRecords::existing(&config.run_dir);
    if let Err(error) = of_jobs.and_then(|records| records.map_or(Ok(()), |records| records.reap(host))) {
        reaped.failed.push(error.to_string());
    }
    Ok(reaped)
}

/// Removes those steps of a job whose owner is dead, until the deadline.
pub fn reap_job(host: &Host, config: &Config, id: &JobId, deadline: Instant) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    let mut reaped = Reaped::default();
    let job = format!("job_{}", id.job);
    let is_its = |levels: &[String]| {
        let above: Vec<&str> = levels.iter().rev().skip(1).map(String::as_str).collect();
        above.first() == Some(&job.as_str()) && above.get(2).copied() == id.node.as_ref().map(Name::as_str)
    };
    for levels in records.list()?.into_iter().filter(|levels| is_its(levels)) {
        reaped.count(&levels, reap_one(host, &records, &levels, deadline));
    }
    Ok(reaped)
}

/// Looks at one record and removes its step if the owner is dead.
pub fn reap_one(host: &Host, records: &Records, levels: &[String], deadline: Instant) -> Result<Outcome> {
    // Whatever release made it; only what a dead one left in this boot must be understood.
    let is_dead = |header: &Header| {
        if header.boot_id != host.boot_id {
            return Ok(true);
        }
        // A pid of another namespace (a slurmd in a container) says nothing here: it is its own janitor's.
        Ok::<_, Error>(header.pid_namespace == host.pid_namespace && !header.owner.is_alive(&host.proc)?)
    };
    match records.header(levels)? {
        None => return Ok(Outcome::Removed),
        Some(header) if !is_dead(&header)? => return Ok(Outcome::Alive),
        Some(_) => {}
    }
    let Some(_lock) = records.lock_janitor()? else { return Ok(Outcome::Busy) };
    // Once more under the lock: the record of a dead owner is removed only by a janitor, so this one is still the same.
    let Some(header) = records.header(levels)? else { return Ok(Outcome::Removed) };
    if !is_dead(&header)? {
        return Ok(Outcome::Alive);
    }
    if header.boot_id == host.boot_id {
        let Some(record) = records.read(levels)? else { return Ok(Outcome::Removed) };
        fence::open_existing(host, &record.base, levels)?.remove(host, deadline)?;
    }
    records.forget(levels)?;
    Ok(Outcome::Removed)
}
