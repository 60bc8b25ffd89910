// SPDX-License-Identifier: GPL-2.0-or-later
//! What dead steps left in a scheduler's own directories.

use std::time::Instant;

use super::ledger::DeadStep;
use super::reaped::{PATIENCE_EACH, PATIENCE_WITH_MANY, Reaped};
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::record::{Record, Records};
use crate::scheduler::{LeftBehind, LeftShell, LeftStep, Scheduler};

/// Whether the owner that left a mark with this text is certainly dead.
pub fn is_wanted(host: &Host, mark: &str) -> Result<Option<bool>> {
    Record::parse(mark).ok().map(|record| record.is_left_behind(host)).transpose()
}

/// How leftovers are ended and removed.
#[derive(Debug, Clone, Copy)]
pub struct Theirs<'a> {
    /// Where.
    pub host: &'a Host,
    /// Says whether directories are removed, too.
    pub config: &'a Config,
    /// Has the lock: two janitors would only hinder each other.
    pub records: &'a Records,
    /// Whether a step waits: at the deadline it has been delayed long enough, and the end of the step tries again.
    pub is_launch: bool,
    /// How long to wait.
    pub deadline: Instant,
}

/// A step whose processes have all been signalled.
struct KilledStep {
    step: Box<dyn LeftStep>,
    /// Its usage, if that is to be logged.
    dead: Option<DeadStep>,
    was_inhabited: bool,
    /// Whether some may not have ended yet.
    is_inhabited: bool,
}

impl Theirs<'_> {
    /// Ends what was found of a scheduler's dead steps, and removes it.
    pub fn end(&self, (scheduler, found): (&dyn Scheduler, LeftBehind), reaped: &mut Reaped) {
        let LeftBehind { marked, shells, unseen, others: _ } = found;
        reaped.note_unseen(&unseen);
        if let Err(error) = self.end_unless_alive(scheduler, marked, &shells, reaped) {
            reaped.failed.push(error.to_string());
        }
    }

    fn end_unless_alive(
        &self,
        scheduler: &dyn Scheduler,
        mut steps: Vec<Box<dyn LeftStep>>,
        shells: &[Box<dyn LeftShell>],
        reaped: &mut Reaped,
    ) -> Result<()> {
        // After the marks were read, and once for all of them.
        let daemons = if steps.is_empty() { Vec::new() } else { scheduler.daemons(&self.host.proc)? };
        steps.retain(|step| !step.is_alive(self.host, &daemons));
        if steps.is_empty() && shells.is_empty() {
            return Ok(());
        }
        let Some(_lock) = self.records.lock_janitor()? else { return Ok(()) };
        for ended in self.end_each(scheduler, steps, reaped) {
            self.remove(ended, reaped);
        }
        if self.config.reap_scheduler_leftovers {
            self.remove_shells(shells, reaped);
        }
        Ok(())
    }

    /// Ends each step, regardless of the time, before waiting for any.
    fn end_each(
        &self,
        scheduler: &dyn Scheduler,
        steps: Vec<Box<dyn LeftStep>>,
        reaped: &mut Reaped,
    ) -> Vec<KilledStep> {
        let mut all = Vec::new();
        for step in steps {
            if self.is_launch && Instant::now() >= self.deadline + PATIENCE_WITH_MANY {
                reaped.failed.push(format!("{}: there was no time left for it", step.path()));
                continue;
            }
            let used = self.config.usage_log.as_ref().and_then(|_| step.used());
            let dead = used.map(|used| DeadStep::from_scheduler(scheduler.name(), used));
            let done = step.end(self.host, self.deadline.min(Instant::now() + PATIENCE_EACH));
            let (was_inhabited, is_inhabited) = done.map_or((true, true), |was_inhabited| (was_inhabited, false));
            all.push(KilledStep { step, dead, was_inhabited, is_inhabited });
        }
        all
    }

    fn remove(&self, ended: KilledStep, reaped: &mut Reaped) {
        let KilledStep { step, dead, was_inhabited, is_inhabited } = ended;
        if self.is_late() {
            return reaped.failed.push(format!("{}: there was no time left for it", step.path()));
        }
        let ended = if is_inhabited { step.end(self.host, self.deadline) } else { Ok(was_inhabited) };
        let removes = self.config.reap_scheduler_leftovers;
        let done = ended
            .and_then(|was_inhabited| if removes { step.remove(self.host, self.deadline) } else { Ok(was_inhabited) });
        if done == Ok(true)
            && let Some(dead) = dead
        {
            reaped.ledger.add(dead);
        }
        match done {
            Ok(true) if removes => reaped.removed.push(step.path()),
            Ok(true) => reaped.removed.push(format!("the processes in {}", step.path())),
            Ok(false) => {}
            Err(error) => reaped.failed.push(format!("{}: {error}", step.path())),
        }
    }

    fn remove_shells(&self, shells: &[Box<dyn LeftShell>], reaped: &mut Reaped) {
        for shell in shells {
            if self.is_late() {
                // They hold no processes.
                return reaped
                    .failed
                    .push(format!("{}: there was no time left for it and others like it", shell.path()));
            }
            match shell.remove(self.deadline) {
                Ok(true) => reaped.removed.push(shell.path()),
                Ok(false) => {}
                Err(error) => reaped.failed.push(format!("{}: {error}", shell.path())),
            }
        }
    }

    fn is_late(&self) -> bool {
        self.is_launch && Instant::now() >= self.deadline
    }
}
