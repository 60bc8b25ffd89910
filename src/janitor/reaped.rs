// SPDX-License-Identifier: GPL-2.0-or-later
//! What a janitor has done, and how long it may take.

use std::time::Duration;

use super::ledger::Ledger;
use crate::error::{Error, Result};
use crate::log;
use crate::record::tracked;

/// The result for one recorded step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReapOutcome {
    /// Its owner is alive.
    Alive,
    /// Its owner was dead; nothing is left now.
    Removed,
    /// There was no record any more: its owner, or another janitor, removed it.
    Gone,
    /// Another janitor is at work.
    Busy,
}

/// The total time for a caller that is not in a hurry.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long leftovers of other steps may delay a launch.
pub const PATIENCE_AT_LAUNCH: Duration = Duration::from_millis(200);

/// The additional time if so many are left that each can only be killed.
pub const PATIENCE_WITH_MANY: Duration = Duration::from_millis(800);

/// How long a step may delay the others. One that is not gone by then is examined again when all have been killed.
pub(super) const PATIENCE_EACH: Duration = Duration::from_millis(20);

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
    /// What the removed steps used, until it is written to the log.
    pub ledger: Ledger,
}

impl Reaped {
    pub(super) fn count(&mut self, levels: &[String], outcome: Result<ReapOutcome>) {
        let name = levels.join("/");
        match outcome {
            Ok(ReapOutcome::Alive) => self.alive += 1,
            Ok(ReapOutcome::Removed) => self.removed.push(name),
            Ok(ReapOutcome::Gone) => {}
            Ok(ReapOutcome::Busy) => self.busy += 1,
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }

    pub(super) fn count_tracked(&mut self, tracked: &tracked::Tracked, outcome: Result<tracked::TrackedEnd>) {
        match outcome {
            Ok(tracked::TrackedEnd::Alive) => self.alive += 1,
            Ok(tracked::TrackedEnd::Watched(0) | tracked::TrackedEnd::Ended(0)) => {}
            Ok(tracked::TrackedEnd::Watched(count) | tracked::TrackedEnd::Ended(count)) => {
                self.removed.push(format!("{} ({count} processes without a fence)", tracked.name()));
            }
            Err(error) => self.failed.push(format!("{}: {error}", tracked.name())),
        }
    }

    /// Adds why not everything could be examined: the first reason, which is mostly that of the others, too.
    pub(super) fn note_unseen(&mut self, unseen: &[Error]) {
        self.failed.extend(unseen.first().map(|first| format!("not everything could be looked at: {first}")));
    }

    /// Logs what was done, if anything.
    pub fn log(&self) {
        for step in &self.removed {
            log::info!("removed {step}, which a dead step daemon left");
        }
        for failure in &self.failed {
            log::error!("cannot remove what a dead step daemon left: {failure}");
        }
    }
}
