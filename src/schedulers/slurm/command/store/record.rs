// SPDX-License-Identifier: GPL-2.0-or-later
//! What slurmdbd has of one run of a job.

/// How far the clocks of hosts may be apart, in seconds.
const APART: u64 = 5;

/// The newest record of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRecord {
    /// Its name for sacctmgr: the number of an array's last job is also that of the whole array.
    pub name: String,
    /// In seconds since 1970, as are the others.
    pub submitted: u64,
    pub started: Option<u64>,
    pub ended: Option<u64>,
    /// When the run before ended, if there was one.
    pub before: Option<u64>,
    /// Whether another run follows it. slurmdbd may not know that one yet.
    pub is_requeued: bool,
    pub nodes: u64,
    pub gpus: u64,
    pub comment: String,
}

impl RunRecord {
    /// Whether what began on a node at this moment belongs to the run. Clocks of hosts differ, so the middle of the time between the runs
    /// is the border.
    pub fn has(&self, began: u64) -> bool {
        match (self.before, self.started) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(before), Some(started)) => began >= before.midpoint(started.max(before)),
        }
    }

    /// Whether what a node knows from one moment to another belongs to the run.
    pub fn has_lasted(&self, began: u64, until: u64) -> bool {
        let is_late = self.started.is_none_or(|started| until + APART >= started);
        self.has(began) && is_late && !self.is_over_at(began)
    }

    /// Whether the run had ended when this began.
    pub fn is_over_at(&self, began: u64) -> bool {
        self.ended.is_some_and(|ended| began > ended + APART)
    }
}
