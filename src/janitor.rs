// SPDX-License-Identifier: GPL-2.0-or-later
//! Removes what dead owners left. It acts only on a complete record of an owner that is certainly dead.
//!
//! A record is a file in `RunDir`. The same text is a mark on the directories (`cgroup::mark`), for the case that the file is lost, and for
//! the scheduler's own directories. The processes of a step without a fence have a record of their own (`record::tracked`).

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::Result;
use crate::fence;
use crate::host::Host;
use crate::job::{JobOnNode, Name, job_dir};
use crate::log;
use crate::private;
use crate::record::job::JobRecords;
use crate::record::roll::{Entry, EntryKind, Roll, State};
use crate::record::tracked::{self, Others, TrackedRecords};
use crate::record::{Header, Record, Records};
use crate::scheduler::Schedulers;
use crate::sorted;
use crate::sys::process;

mod holders;
mod launch;
mod ledger;
mod one;
mod reaped;
mod theirs;
pub use holders::{AskUnit, Holders, ask_systemd, invocation_of};
pub use launch::{LOOKS, LOOKS_WHERE_WATCHED, Launch};
pub use ledger::Ledger;
pub use one::{opening, reap_one};
use reaped::PATIENCE_EACH;
pub use reaped::{PATIENCE, PATIENCE_AT_LAUNCH, PATIENCE_WITH_MANY, ReapOutcome, Reaped};
use theirs::{Theirs, is_wanted};

/// Who runs the janitor, and how much it may do.
#[derive(Debug, Clone, Copy)]
pub enum JanitorCaller<'a> {
    /// A step daemon that begins: its user waits. It examines a few entries, and everything only if that has not been done since boot.
    Launch(Launch<'a>),
    /// slurmd, which examines everything that cannot delay it.
    Daemon,
    /// A jobfence command, which examines everything, and asks systemd about its units by this function.
    Command(AskUnit),
}

impl JanitorCaller<'_> {
    /// A jobfence command.
    pub fn command() -> Self {
        Self::Command(ask_systemd)
    }

    fn holders(self, schedulers: Schedulers) -> Holders {
        let units = match self {
            Self::Command(ask) => Some(ask),
            Self::Launch(_) | Self::Daemon => None,
        };
        Holders { schedulers, units, leaves_to_closers: true }
    }
}

/// How long each search for processes outside all fences may take, even if all other time is used up: a step that does not die must not
/// hide them for ever.
const PATIENCE_TO_LOOK: Duration = Duration::from_secs(1);

/// Removes the steps of dead owners, until the deadline. Each of them that is examined is killed even after the deadline: a process that
/// does not die must not keep those of other steps alive.
pub fn reap(
    host: &Host,
    config: &Config,
    schedulers: Schedulers,
    who: JanitorCaller<'_>,
    deadline: Instant,
) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    if let JanitorCaller::Launch(launch) = who {
        match records.roll_for_turn(&host.boot_id) {
            Ok(Some(roll)) if roll.state() == State::Whole => {
                let mut reaped = launch.take_turn((host, config, schedulers), &records, roll, deadline)?;
                reaped.ledger.write(host, config);
                return Ok(reaped);
            }
            Ok(_) => {}
            Err(error) => log::debug!("looking at everything: {error}"),
        }
    }
    let mut reaped = Reaped::default();
    // Before anything is examined: a step that begins meanwhile adds its line.
    let roll = Roll::begin(records.dir(), &host.boot_id);
    let all_claimed = restore(host, schedulers, &records, &mut reaped);
    let mut all = records.list()?;
    // Backwards by name: step_shepherd before step_job. A shepherd that outlives its job would tell the scheduler how the job ended, and
    // the job's next run would take that for its own end.
    sorted::sort_by(&mut all, |one, other| other.cmp(one));
    let mut living = reap_records((host, config), (&records, who.holders(schedulers)), all, &mut reaped, deadline);
    let near = match who {
        JanitorCaller::Launch(launch) => Some(launch.daemon),
        JanitorCaller::Daemon | JanitorCaller::Command(_) => None,
    };
    let is_launch = matches!(who, JanitorCaller::Launch(_));
    let theirs = Theirs { host, config, records: &records, is_launch, deadline };
    for scheduler in schedulers {
        let found = scheduler.left(host, near, &|mark| is_wanted(host, mark));
        living.extend(found.others.iter().filter_map(|(mark, path)| {
            let header = Header::parse(mark).ok().filter(|header| header.boot_id == host.boot_id)?;
            Some(header.entry(EntryKind::Theirs, path.to_str()?.to_owned()))
        }));
        theirs.end((*scheduler, found), &mut reaped);
    }
    let mut note = |done: Result<Vec<Entry>>| match done {
        Ok(entries) => living.extend(entries),
        Err(error) => reaped.failed.push(error.to_string()),
    };
    let of_jobs = JobRecords::existing(&config.run_dir);
    note(of_jobs.and_then(|records| records.map_or(Ok(Vec::new()), |records| records.reap(host))));
    let to_look = || match who {
        JanitorCaller::Command(_) => deadline.max(Instant::now() + PATIENCE_TO_LOOK),
        JanitorCaller::Launch(_) | JanitorCaller::Daemon => deadline,
    };
    match reap_tracked(host, config, schedulers, who, &mut reaped, to_look()) {
        Ok(entries) => living.extend(entries),
        Err(error) => reaped.failed.push(error.to_string()),
    }
    if matches!(who, JanitorCaller::Command(_)) || private::is_wanted(config) && !is_launch {
        let (removed, failed) = private::leavings::remove(host, config, &records, deadline);
        reaped.removed.extend(removed.into_iter().map(|name| format!("{name}'s own directories")));
        reaped.failed.extend(failed);
    }
    match roll {
        // Otherwise everything is examined again next time.
        Ok(roll) if host.has_cgroups() && all_claimed => roll.complete(records.dir(), &living),
        Ok(_) => {}
        Err(error) => log::debug!("each launch looks at everything: {error}"),
    }
    if matches!(who, JanitorCaller::Command(_)) {
        let mut unseen = Vec::new();
        // If the living steps' daemons are not known, no process is taken for a dead one's.
        for scheduler in schedulers {
            let mut unseen_here = Vec::new();
            let swept = tracked::of_living(host, &config.run_dir)
                .and_then(|of_living| scheduler.end_beside_daemons(host, &of_living, &mut unseen_here, to_look()));
            unseen.append(&mut unseen_here);
            match swept {
                Ok(0) => {}
                Ok(count) => reaped.removed.push(format!("{count} processes beside {}'s daemons", scheduler.name())),
                Err(error) => reaped.failed.push(error.to_string()),
            }
        }
        reaped.note_unseen(&unseen);
    }
    reaped.ledger.write(host, config);
    Ok(reaped)
}

/// Examines each of these records. Those of owners that are, or may be, alive are returned for the roll.
fn reap_records(
    at: (&Host, &Config),
    (records, holders): (&Records, Holders),
    all: Vec<Vec<String>>,
    reaped: &mut Reaped,
    deadline: Instant,
) -> Vec<Entry> {
    let mut again = Vec::new();
    let mut left = Vec::new();
    let mut ledger = std::mem::take(&mut reaped.ledger);
    let mut count = |levels: Vec<String>, outcome: Result<ReapOutcome>| {
        if !matches!(outcome, Ok(ReapOutcome::Removed | ReapOutcome::Gone)) {
            let header = records.header(&levels).ok().flatten();
            left.extend(header.map(|header| header.entry(EntryKind::Step, levels.join(","))));
        }
        reaped.count(&levels, outcome);
    };
    for levels in all {
        let soon = deadline.min(Instant::now() + PATIENCE_EACH);
        match reap_one(at, records, &levels, holders, (soon, &mut ledger)) {
            Err(_) => again.push(levels),
            outcome => count(levels, outcome),
        }
    }
    for levels in again {
        let outcome = reap_one(at, records, &levels, holders, (deadline, &mut ledger));
        count(levels, outcome);
    }
    reaped.ledger = ledger;
    left
}

/// Restores lost records from the marks of the directories. Empty directories without a mark are removed. Returns whether each directory
/// with a mark has a record now.
fn restore(host: &Host, schedulers: Schedulers, records: &Records, reaped: &mut Reaped) -> bool {
    let mut unseen = Vec::new();
    let lost = fence::unrecorded(host, records, &mut unseen);
    let mut all_claimed = unseen.is_empty();
    reaped.note_unseen(&unseen);
    for found in lost {
        let done = match &found.record {
            // A container's; it keeps its own records.
            Some(record) if record.pid_namespace != host.pid_namespace || record.boot_id != host.boot_id => Ok(()),
            // A living owner's record, too: 'jobfence adopt' looks for it.
            Some(record) => records.claim(record).map(drop),
            None => fence::remove_if_empty(host, &found, |record| is_served(host, schedulers, record)),
        };
        if let Err(error) = done {
            all_claimed &= found.record.is_none();
            reaped.failed.push(format!("{}: {error}", found.levels.join("/")));
        }
    }
    all_claimed
}

/// Whether the step that a record names has a live step daemon.
fn is_served(host: &Host, schedulers: Schedulers, record: &Record) -> Result<bool> {
    let (Some(job), Some(step)) = (record.job(), record.step()) else { return Ok(true) };
    for scheduler in schedulers {
        if scheduler.serves(&host.proc, job.as_str(), step.as_str())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Examines the steps that run without a fence. Those that still exist are returned for the roll.
fn reap_tracked(
    host: &Host,
    config: &Config,
    schedulers: Schedulers,
    who: JanitorCaller<'_>,
    reaped: &mut Reaped,
    deadline: Instant,
) -> Result<Vec<Entry>> {
    let Some(records) = TrackedRecords::existing(&config.run_dir)? else { return Ok(Vec::new()) };
    reaped.failed.extend(records.tidy().err().map(|error| error.to_string()));
    let mut all = records.list()?;
    // Each would need a look at every process; `jobfence hold` does this better.
    if matches!(who, JanitorCaller::Launch(_)) && tracked::is_watched(&config.run_dir) {
        return Ok(all.iter().map(tracked::Tracked::entry).collect());
    }
    process::in_turn(&mut all, &host.proc);
    // The processes of living steps are recorded first, so that they are not taken for another step's.
    let lives = |tracked: &tracked::Tracked| tracked.owner.is_alive(&host.proc).unwrap_or(true);
    let (mut all, dead): (Vec<_>, Vec<_>) = all.into_iter().partition(lives);
    all.extend(dead);
    for tracked in &all {
        if matches!(who, JanitorCaller::Launch(_)) && Instant::now() >= deadline {
            break;
        }
        let living = match who {
            JanitorCaller::Command(_) => Some(tracked::of_living(host, &config.run_dir)?),
            JanitorCaller::Launch(_) | JanitorCaller::Daemon => None,
        };
        let others = living.as_ref().map(|living| Others { living, schedulers });
        reaped.count_tracked(tracked, tracked::look_after(host, &config.run_dir, &records, tracked, others, deadline));
    }
    Ok(all.iter().map(tracked::Tracked::entry).collect())
}

/// Removes those steps of a job whose owner is dead, until the deadline.
pub fn reap_job(host: &Host, config: &Config, id: &JobOnNode, deadline: Instant) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    let mut reaped = Reaped::default();
    // Called in a scheduler's prolog and epilog: the fences there are held by processes.
    let holders = Holders { schedulers: &[], units: None, leaves_to_closers: true };
    let job = job_dir(&id.job);
    let is_its = |levels: &[String]| {
        let above: Vec<&str> = levels.iter().rev().skip(1).map(String::as_str).collect();
        above.first() == Some(&job.as_str()) && above.get(2).copied() == id.node.as_ref().map(Name::as_str)
    };
    for levels in records.list()?.into_iter().filter(|levels| is_its(levels)) {
        let mut ledger = std::mem::take(&mut reaped.ledger);
        let outcome = reap_one((host, config), &records, &levels, holders, (deadline, &mut ledger));
        reaped.ledger = ledger;
        reaped.count(&levels, outcome);
    }
    reaped.ledger.write(host, config);
    Ok(reaped)
}
