// SPDX-License-Identifier: GPL-2.0-or-later
//! The janitor at a launch: it examines a few entries of the roll (`record::roll`), in turn, so that the cost of a launch does not grow
//! with the number of live steps.
//!
//! The first half of those are the same job's, the next quarter the same user's, if there are any. Whether an owner is gone is tested by
//! its pid alone, one system call. For one of them in turn, and for all if they are few, the start time is compared, too, since a pid may
//! be reused. If anything of a dead owner is found, all other entries are examined.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::holders::Holders;
use super::one::reap_one;
use super::reaped::{PATIENCE_EACH, ReapOutcome, Reaped};
use super::theirs::{Theirs, is_wanted};
use crate::cgroup::membership::Membership;
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::job::JobKey;
use crate::log;
use crate::record::Records;
use crate::record::job::JobRecords;
use crate::record::roll::{Entry, EntryKind, Roll, Turn};
use crate::record::tracked::{self, TrackedRecords};
use crate::scheduler::{self, LeftBehind, Schedulers};
use crate::sys::process::Owner;

/// How many owners a launch checks, if it need not go on.
pub const LOOKS: usize = 12;

/// The same if `jobfence hold` checks them every minute.
pub const LOOKS_WHERE_WATCHED: usize = 4;

/// The step that begins.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Where its daemon is.
    pub daemon: &'a Membership,
    /// The step. `None`: it has nothing to do with other steps.
    pub key: Option<&'a JobKey>,
    /// Whether to examine all entries, since something could not be removed before.
    pub all: bool,
}

/// What examining the roll needs.
struct Work<'a> {
    host: &'a Host,
    config: &'a Config,
    schedulers: Schedulers,
    records: &'a Records,
    deadline: Instant,
    reaped: Reaped,
    /// Whether `jobfence hold` runs.
    is_watched: bool,
}

impl Launch<'_> {
    /// Examines the entries whose turn it is, and removes what dead owners left.
    pub(super) fn take_turn(
        self,
        (host, config, schedulers): (&Host, &Config, Schedulers),
        records: &Records,
        mut roll: Roll,
        deadline: Instant,
    ) -> Result<Reaped> {
        let is_watched = tracked::is_watched_in(records.dir());
        let looks = if is_watched { LOOKS_WHERE_WATCHED } else { LOOKS };
        let turn = roll.turn(&host.pid_namespace, looks, &self.of_job(host, schedulers), &self.of_user());
        let mut work = Work { host, config, schedulers, records, deadline, reaped: Reaped::default(), is_watched };
        work.look_at(&mut roll, turn);
        if self.all || !work.reaped.removed.is_empty() || !work.reaped.failed.is_empty() {
            // If that fails, later launches examine the others.
            if !roll.is_whole()
                && let Ok(Some(whole)) = records.roll(&host.boot_id)
            {
                roll = whole;
            }
            let entries = roll.all().into_iter().filter(|(_, entry)| entry.pid_namespace == host.pid_namespace);
            work.look_at(&mut roll, Turn { entries: entries.collect(), closely: BTreeSet::new() });
        }
        roll.tidy(records.dir());
        Ok(work.reaped)
    }

    /// Text in the lines of the job's other steps.
    fn of_job(&self, host: &Host, schedulers: Schedulers) -> Vec<String> {
        let Some(key) = self.key else { return Vec::new() };
        let mut words = vec![format!(" {},", key.parents().join(","))];
        for hierarchy in &host.layout.hierarchies {
            let found = scheduler::placement(schedulers, self.daemon, hierarchy);
            let below = found.as_ref().and_then(|found| hierarchy.below_mount(&found.job));
            words.extend(below.map(|below| format!(" {}/", hierarchy.mount.join(below).display())));
        }
        words
    }

    /// Text in the lines of the user's steps.
    fn of_user(&self) -> Vec<String> {
        let Some(key) = self.key else { return Vec::new() };
        let mut parents = key.parents();
        parents.pop();
        let above = parents.join(",");
        vec![format!(" {above},"), format!("/uid_{}/", key.uid)]
    }
}

impl Work<'_> {
    /// A scheduler's process starts no program to ask about a unit.
    fn holders(&self) -> Holders {
        Holders { schedulers: self.schedulers, units: None, leaves_to_closers: true }
    }

    fn reap(&mut self, levels: &[String], deadline: Instant) -> Result<ReapOutcome> {
        let (at, holders) = ((self.host, self.config), self.holders());
        reap_one(at, self.records, levels, holders, (deadline, &mut self.reaped.ledger))
    }

    fn look_at(&mut self, roll: &mut Roll, turn: Turn) {
        let Turn { entries, closely } = turn;
        let mut living: BTreeSet<Owner> = BTreeSet::new();
        let mut dead: BTreeSet<Owner> = BTreeSet::new();
        for (_, Entry { owner, .. }) in &entries {
            if living.contains(owner) || dead.contains(owner) {
                continue;
            }
            // An owner that cannot be read counts as alive.
            let is_dead = match closely.contains(owner) {
                true => owner.is_alive(&self.host.proc) == Ok(false),
                false => owner.is_gone(),
            };
            if is_dead {
                dead.insert(*owner)
            } else {
                living.insert(*owner)
            };
        }
        self.reaped.alive += living.len();
        let mut again = Vec::new();
        let mut theirs: Vec<LeftBehind> = self.schedulers.iter().map(|_| LeftBehind::default()).collect();
        for (at, entry) in entries.into_iter().filter(|(_, entry)| dead.contains(&entry.owner)) {
            let done = match entry.kind {
                EntryKind::Step => {
                    let soon = self.deadline.min(Instant::now() + PATIENCE_EACH);
                    let levels = levels(&entry);
                    match self.reap(&levels, soon) {
                        Err(_) => {
                            again.push((at, entry));
                            false
                        }
                        outcome => self.is_done(&entry, &levels, outcome),
                    }
                }
                EntryKind::Theirs => self.find(&entry, &mut theirs),
                EntryKind::Job => self.forget_job(&entry.name),
                // Each would need a look at every process; `jobfence hold` does this better, and removes the entry.
                EntryKind::Tracked if self.is_watched => !tracked::is_noted_in(self.records.dir(), &entry.name),
                EntryKind::Tracked => self.look_after(&entry.name),
            };
            if done {
                roll.strike(at);
            }
        }
        for (at, entry) in again {
            let levels = levels(&entry);
            let outcome = self.reap(&levels, self.deadline);
            if self.is_done(&entry, &levels, outcome) {
                roll.strike(at);
            }
        }
        let Work { host, config, schedulers, records, deadline, ref mut reaped, .. } = *self;
        let ours = Theirs { host, config, records, is_launch: true, deadline };
        for theirs in schedulers.iter().copied().zip(theirs) {
            ours.end(theirs, reaped);
        }
    }

    /// Whether nothing is left of what a line names.
    fn is_done(&mut self, entry: &Entry, levels: &[String], outcome: Result<ReapOutcome>) -> bool {
        let done = match &outcome {
            Ok(ReapOutcome::Removed | ReapOutcome::Gone) => true,
            // Another owner has the name now.
            Ok(ReapOutcome::Alive) => {
                let header = self.records.header(levels);
                matches!(header, Ok(Some(header)) if header.owner != entry.owner)
            }
            Ok(ReapOutcome::Busy) | Err(_) => false,
        };
        if outcome != Ok(ReapOutcome::Alive) {
            self.reaped.count(levels, outcome);
        }
        done
    }

    /// Searches a directory of the scheduler for leftovers. Returns true if nothing was found; otherwise the next launch searches again.
    fn find(&mut self, entry: &Entry, theirs: &mut [LeftBehind]) -> bool {
        if !self.host.has_cgroups() {
            return false;
        }
        let count = |found: &[LeftBehind]| -> usize {
            found.iter().map(|found| found.marked.len() + found.shells.len() + found.unseen.len()).sum()
        };
        let before = count(theirs);
        for (scheduler, found) in self.schedulers.iter().zip(theirs.iter_mut()) {
            scheduler.left_at(self.host, Path::new(&entry.name), &|mark| is_wanted(self.host, mark), found);
        }
        count(theirs) == before
    }

    fn forget_job(&mut self, name: &str) -> bool {
        let forgotten = JobRecords::existing(&self.config.run_dir)
            .and_then(|records| records.map_or(Ok(None), |records| records.reap_one(name, self.host)));
        self.reaped.failed.extend(forgotten.as_ref().err().map(ToString::to_string));
        forgotten.is_ok()
    }

    fn look_after(&mut self, name: &str) -> bool {
        let run_dir = &self.config.run_dir;
        let looked = TrackedRecords::existing(run_dir).and_then(|records| {
            let Some(records) = records else { return Ok(None) };
            let Some(tracked) = records.read(name)? else { return Ok(None) };
            if Instant::now() >= self.deadline {
                return Ok(Some(None));
            }
            let outcome = tracked::look_after(self.host, run_dir, &records, &tracked, None, self.deadline);
            Ok(Some(Some((tracked, outcome))))
        });
        match looked {
            // It is gone.
            Ok(None) => true,
            Ok(Some(None)) => false,
            Ok(Some(Some((tracked, outcome)))) => {
                let is_over = matches!(outcome, Ok(tracked::TrackedEnd::Ended(_)));
                self.reaped.count_tracked(&tracked, outcome);
                is_over
            }
            Err(error) => {
                log::debug!("left alone: {error}");
                false
            }
        }
    }
}

fn levels(entry: &Entry) -> Vec<String> {
    entry.name.split(',').map(str::to_owned).collect()
}
