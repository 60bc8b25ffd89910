// SPDX-License-Identifier: GPL-2.0-or-later
//! Removes what dead owners left. It acts on a complete record of an owner that is certainly dead, and on nothing else.
//!
//! A record is a file in `RunDir`; the same text stands on the directories as a mark (`cgroup::mark`), for when the file is lost and
//! for the scheduler's own directories. The processes of a step without a fence have a record of their own (`record::tracked`).

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::fence::{self, Freed, Opening};
use crate::host::Host;
use crate::job::{JobKey, Name};
use crate::record::job::{JobId, JobRecords};
use crate::record::roll::{Entry, Kind, Roll, State};
use crate::record::tracked::{self, Others, TrackedRecords};
use crate::record::{Header, Record, Records};
use crate::scheduler::{Found, LeftStep, Scheduler, Schedulers};
use crate::sys::process;

mod holders;
mod launch;
pub use holders::{AskUnit, Holders, ask_systemd, invocation_of};
pub use launch::{LOOKS, LOOKS_WHERE_WATCHED, Launch};

/// What became of one recorded step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its owner lives.
    Alive,
    /// Its owner was dead; nothing is left now.
    Removed,
    /// There was no record any more: its owner, or another janitor, has removed it.
    Gone,
    /// Another janitor is at work.
    Busy,
}

/// Who has the janitor come, and how much of him.
#[derive(Debug, Clone, Copy)]
pub enum Who<'a> {
    /// A step daemon that begins: its user waits. It looks at some, and at everything only where nobody has since the boot.
    Launch(Launch<'a>),
    /// slurmd, which looks at everything that cannot hold it up.
    Daemon,
    /// A command of ours, which looks at everything, and asks systemd about its units in this way.
    Command(AskUnit),
}

impl Who<'_> {
    /// A command of ours.
    pub fn command() -> Self {
        Self::Command(ask_systemd)
    }

    fn holders(self, schedulers: Schedulers) -> Holders {
        let units = match self {
            Self::Command(ask) => Some(ask),
            Self::Launch(_) | Self::Daemon => None,
        };
        Holders { schedulers, units }
    }
}

/// How long whoever is not in a hurry gives all of it to end.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a launch may be held up by what others left.
pub const PATIENCE_AT_LAUNCH: Duration = Duration::from_millis(200);

/// What a janitor did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// What was removed: steps by their directories.
    pub removed: Vec<String>,
    /// Steps whose owner is alive.
    pub alive: usize,
    /// Steps at which another janitor is at work.
    pub busy: usize,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

impl Reaped {
    fn count(&mut self, levels: &[String], outcome: Result<Outcome>) {
        let name = levels.join("/");
        match outcome {
            Ok(Outcome::Alive) => self.alive += 1,
            Ok(Outcome::Removed) => self.removed.push(name),
            Ok(Outcome::Gone) => {}
            Ok(Outcome::Busy) => self.busy += 1,
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }

    fn count_tracked(&mut self, tracked: &tracked::Tracked, outcome: Result<tracked::Outcome>) {
        match outcome {
            Ok(tracked::Outcome::Alive) => self.alive += 1,
            Ok(tracked::Outcome::Watched(0) | tracked::Outcome::Ended(0)) => {}
            Ok(tracked::Outcome::Watched(count) | tracked::Outcome::Ended(count)) => {
                self.removed.push(format!("{} ({count} processes without a fence)", tracked.name()));
            }
            Err(error) => self.failed.push(format!("{}: {error}", tracked.name())),
        }
    }

    /// Takes down why not everything could be looked at: the first reason, which is mostly that of the others, too.
    fn note_unseen(&mut self, unseen: &[Error]) {
        self.failed.extend(unseen.first().map(|first| format!("not everything could be looked at: {first}")));
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

/// How much longer at most, where so many are left that each can only be killed.
pub const PATIENCE_WITH_MANY: Duration = Duration::from_millis(800);

/// How long a step holds up the others; what does not go by then is looked at again when all have been killed.
const PATIENCE_EACH: Duration = Duration::from_millis(20);

/// How long is looked for processes outside of all fences, each time, when all the other time has been used: a step that does not die must
/// not hide them for ever.
const PATIENCE_TO_LOOK: Duration = Duration::from_secs(1);

/// Removes the steps of dead owners, until the deadline. Whatever the deadline, each of them that is looked at is killed: a process that does not
/// die must not keep those of other steps alive.
pub fn reap(host: &Host, config: &Config, schedulers: Schedulers, who: Who<'_>, deadline: Instant) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    if let Who::Launch(launch) = who {
        match records.roll(&host.boot_id) {
            Ok(Some(roll)) if roll.state() == State::Whole => {
                return launch.take_turn((host, config, schedulers), &records, roll, deadline);
            }
            Ok(_) => {}
            Err(error) => log::debug!("looking at everything: {error}"),
        }
    }
    let mut reaped = Reaped::default();
    // Before anything is looked at: who begins meanwhile adds his line.
    let roll = Roll::begin(records.dir(), &host.boot_id);
    let all_claimed = restore(host, schedulers, &records, &mut reaped);
    let mut living = reap_records(host, (&records, who.holders(schedulers)), records.list()?, &mut reaped, deadline);
    let near = match who {
        Who::Launch(launch) => Some(launch.daemon),
        Who::Daemon | Who::Command(_) => None,
    };
    for scheduler in schedulers {
        let found = scheduler.left(host, near, &|mark| is_wanted(host, mark));
        living.extend(found.others.iter().filter_map(|(mark, path)| {
            let header = Header::parse(mark).ok().filter(|header| header.boot_id == host.boot_id)?;
            Some(header.entry(Kind::Theirs, path.to_str()?.to_owned()))
        }));
        end_schedulers(host, config, &records, who, (*scheduler, found), &mut reaped, deadline);
    }
    let mut note = |done: Result<Vec<Entry>>| match done {
        Ok(entries) => living.extend(entries),
        Err(error) => reaped.failed.push(error.to_string()),
    };
    let of_jobs = JobRecords::existing(&config.run_dir);
    note(of_jobs.and_then(|records| records.map_or(Ok(Vec::new()), |records| records.reap(host))));
    let to_look = || match who {
        Who::Command(_) => deadline.max(Instant::now() + PATIENCE_TO_LOOK),
        Who::Launch(_) | Who::Daemon => deadline,
    };
    match reap_tracked(host, config, schedulers, who, &mut reaped, to_look()) {
        Ok(entries) => living.extend(entries),
        Err(error) => reaped.failed.push(error.to_string()),
    }
    match roll {
        // Otherwise it is looked again next time.
        Ok(roll) if host.has_cgroups() && all_claimed => roll.complete(records.dir(), &living),
        Ok(_) => {}
        Err(error) => log::debug!("each launch looks at everything: {error}"),
    }
    if matches!(who, Who::Command(_)) {
        let mut unseen = Vec::new();
        // Without knowing whom others have, nobody is taken for a dead one's.
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
    Ok(reaped)
}

/// Looks at each of these records. Those of owners that live, or that may, are returned for the roll.
fn reap_records(
    host: &Host,
    (records, holders): (&Records, Holders),
    all: Vec<Vec<String>>,
    reaped: &mut Reaped,
    deadline: Instant,
) -> Vec<Entry> {
    let mut again = Vec::new();
    let mut left = Vec::new();
    let mut count = |levels: Vec<String>, outcome: Result<Outcome>| {
        if !matches!(outcome, Ok(Outcome::Removed | Outcome::Gone)) {
            let header = records.header(&levels).ok().flatten();
            left.extend(header.map(|header| header.entry(Kind::Step, levels.join(","))));
        }
        reaped.count(&levels, outcome);
    };
    for levels in all {
        let soon = deadline.min(Instant::now() + PATIENCE_EACH);
        match reap_one(host, records, &levels, holders, soon) {
            Err(_) => again.push(levels),
            outcome => count(levels, outcome),
        }
    }
    for levels in again {
        let outcome = reap_one(host, records, &levels, holders, deadline);
        count(levels, outcome);
    }
    left
}

/// Writes records again that have been lost, from the marks of the directories. What bears none and is empty is removed.
/// Whether each that has a mark has a record now.
fn restore(host: &Host, schedulers: Schedulers, records: &Records, reaped: &mut Reaped) -> bool {
    let mut unseen = Vec::new();
    let lost = fence::unrecorded(host, records, &mut unseen);
    let mut all_claimed = unseen.is_empty();
    reaped.note_unseen(&unseen);
    for found in lost {
        let done = match &found.record {
            // Of a container, which keeps its own.
            Some(record) if record.pid_namespace != host.pid_namespace || record.boot_id != host.boot_id => Ok(()),
            // A living owner's, too: others look for it ('jobfence adopt').
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

/// Whether a step daemon of the step that a record names lives.
fn is_served(host: &Host, schedulers: Schedulers, record: &Record) -> Result<bool> {
    let (Some(job), Some(step)) = (record.job(), record.step()) else { return Ok(true) };
    for scheduler in schedulers {
        if scheduler.serves(&host.proc, job.as_str(), step.as_str())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Ends what is in the scheduler's own directories of dead steps, and removes them.
fn end_schedulers(
    host: &Host,
    config: &Config,
    records: &Records,
    who: Who<'_>,
    (scheduler, found): (&dyn Scheduler, Found),
    reaped: &mut Reaped,
    deadline: Instant,
) {
    let is_launch = matches!(who, Who::Launch(_));
    let Found { marked: found, shells, unseen, others: _ } = found;
    reaped.note_unseen(&unseen);
    // After the marks were read, and once for all of them.
    let daemons = if found.is_empty() { Ok(Vec::new()) } else { scheduler.daemons(&host.proc) };
    let daemons = match daemons {
        Ok(daemons) => daemons,
        Err(error) => return reaped.failed.push(error.to_string()),
    };
    let found: Vec<Box<dyn LeftStep>> = found.into_iter().filter(|marked| !marked.is_alive(host, &daemons)).collect();
    if found.is_empty() && shells.is_empty() {
        return;
    }
    // The right to them: two janitors would only be in each other's way.
    let _lock = match records.lock_janitor() {
        Ok(Some(lock)) => lock,
        Ok(None) => return,
        Err(error) => return reaped.failed.push(error.to_string()),
    };
    // Each is ended, whatever the time is, before anybody is waited for.
    let mut again = Vec::new();
    for marked in found {
        if is_launch && Instant::now() >= deadline + PATIENCE_WITH_MANY {
            reaped.failed.push(format!("{}: there was no time left for it", marked.path()));
            continue;
        }
        match marked.end(host, deadline.min(Instant::now() + PATIENCE_EACH)) {
            Ok(was_inhabited) => again.push((marked, was_inhabited, false)),
            Err(_) => again.push((marked, true, true)),
        }
    }
    for (marked, was_inhabited, is_inhabited) in again {
        // A launch has been held up for long enough; it is tried again at the end of the step.
        if is_launch && Instant::now() >= deadline {
            reaped.failed.push(format!("{}: there was no time left for it", marked.path()));
            continue;
        }
        let ended = if is_inhabited { marked.end(host, deadline) } else { Ok(was_inhabited) };
        let removes = config.reap_scheduler_leftovers;
        let done =
            ended.and_then(|was_inhabited| if removes { marked.remove(host, deadline) } else { Ok(was_inhabited) });
        match done {
            Ok(true) if removes => reaped.removed.push(marked.path()),
            Ok(true) => reaped.removed.push(format!("the processes in {}", marked.path())),
            Ok(false) => {}
            Err(error) => reaped.failed.push(format!("{}: {error}", marked.path())),
        }
    }
    for shell in shells.iter().filter(|_| config.reap_scheduler_leftovers) {
        if is_launch && Instant::now() >= deadline {
            // Nobody is in them.
            reaped.failed.push(format!("{}: there was no time left for it and the like", shell.path()));
            break;
        }
        match shell.remove(deadline) {
            Ok(true) => reaped.removed.push(shell.path()),
            Ok(false) => {}
            Err(error) => reaped.failed.push(format!("{}: {error}", shell.path())),
        }
    }
}

/// Looks after the steps that run without a fence. Those that there still are are returned for the roll.
fn reap_tracked(
    host: &Host,
    config: &Config,
    schedulers: Schedulers,
    who: Who<'_>,
    reaped: &mut Reaped,
    deadline: Instant,
) -> Result<Vec<Entry>> {
    let Some(records) = TrackedRecords::existing(&config.run_dir)? else { return Ok(Vec::new()) };
    reaped.failed.extend(records.tidy().err().map(|error| error.to_string()));
    let mut all = records.list()?;
    // Each would be a look at every process, and `jobfence hold` looks better.
    if matches!(who, Who::Launch(_)) && tracked::is_watched(&config.run_dir) {
        return Ok(all.iter().map(tracked::Tracked::entry).collect());
    }
    process::in_turn(&mut all, &host.proc);
    // Who belongs to a living one is taken down first, and is nobody else's then.
    all.sort_by_cached_key(|tracked| !tracked.owner.is_alive(&host.proc).unwrap_or(true));
    for tracked in &all {
        if matches!(who, Who::Launch(_)) && Instant::now() >= deadline {
            break;
        }
        let living = match who {
            Who::Command(_) => Some(tracked::of_living(host, &config.run_dir)?),
            Who::Launch(_) | Who::Daemon => None,
        };
        let others = living.as_ref().map(|living| Others { living, schedulers });
        reaped.count_tracked(tracked, tracked::look_after(host, &config.run_dir, &records, tracked, others, deadline));
    }
    Ok(all.iter().map(tracked::Tracked::entry).collect())
}

/// Removes those steps of a job whose owner is dead, until the deadline.
pub fn reap_job(host: &Host, config: &Config, id: &JobId, deadline: Instant) -> Result<Reaped> {
    let records = Records::open(&config.run_dir)?;
    let mut reaped = Reaped::default();
    // This is called in a scheduler's prolog and epilog, and those are of processes' fences.
    let holders = Holders { schedulers: &[], units: None };
    let job = format!("job_{}", id.job);
    let is_its = |levels: &[String]| {
        let above: Vec<&str> = levels.iter().rev().skip(1).map(String::as_str).collect();
        above.first() == Some(&job.as_str()) && above.get(2).copied() == id.node.as_ref().map(Name::as_str)
    };
    for levels in records.list()?.into_iter().filter(|levels| is_its(levels)) {
        reaped.count(&levels, reap_one(host, &records, &levels, holders, deadline));
    }
    Ok(reaped)
}

/// Whether who left a mark with this text is certainly dead.
fn is_wanted(host: &Host, mark: &str) -> Result<Option<bool>> {
    Record::parse(mark).ok().map(|record| record.is_left_behind(host)).transpose()
}

/// What a fence is made of, where this janitor frees its name, and no daemon is known.
pub fn opening<'a>(host: &'a Host, config: &'a Config, schedulers: Schedulers, key: &'a JobKey) -> Opening<'a> {
    Opening { host, config, schedulers, key, more: &[], daemon: None, free: free_name, holder: None, run: 1 }
}

/// For a launch that wants this name.
fn free_name(opening: &Opening<'_>, records: &Records, levels: &[String]) -> Result<Freed> {
    let holders = Holders { schedulers: opening.schedulers, units: None };
    reap_one(opening.host, records, levels, holders, Instant::now() + PATIENCE_AT_LAUNCH).map(|outcome| match outcome {
        Outcome::Removed | Outcome::Gone => Freed::Free,
        Outcome::Alive | Outcome::Busy => Freed::Taken,
    })
}

/// Looks at one record and removes its step if the owner is dead.
pub fn reap_one(
    host: &Host,
    records: &Records,
    levels: &[String],
    holders: Holders,
    deadline: Instant,
) -> Result<Outcome> {
    // Whatever release made it; only what a dead one left in this boot must be understood.
    match records.header(levels)? {
        None => return Ok(Outcome::Gone),
        Some(header) if !holders.is_over(host, records, levels, &header)? => return Ok(Outcome::Alive),
        Some(_) => {}
    }
    let Some(_lock) = records.lock_janitor()? else { return Ok(Outcome::Busy) };
    // Once more under the lock: the record of a dead owner is removed only by a janitor, so this one is still the same.
    let Some(header) = records.header(levels)? else { return Ok(Outcome::Gone) };
    if !holders.is_over(host, records, levels, &header)? {
        return Ok(Outcome::Alive);
    }
    if header.boot_id == host.boot_id {
        if !host.has_cgroups() {
            return Err(Error::new("no cgroups can be seen, and so not whether anything is left"));
        }
        let Some(record) = records.read(levels)? else { return Ok(Outcome::Gone) };
        if let Some(owner) = fence::marked_by_another(host, &record)? {
            log::debug!("{}: made anew by process {}, with a record elsewhere", levels.join("/"), owner.pid);
            records.forget(levels)?;
            return Ok(Outcome::Removed);
        }
        fence::open_existing(host, &record.base, levels)?.remove(host, deadline)?;
    }
    records.forget(levels)?;
    Ok(Outcome::Removed)
}
