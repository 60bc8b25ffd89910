// SPDX-License-Identifier: GPL-2.0-or-later
//! `OnOutOfMemory`: a batch job that failed after a kill at its memory limit is requeued with more memory. `ScavengerEnd`: a batch job that
//! was ended for owners of memory is requeued as it was. `OnTimeLimit` and `OnPreempt`: so is one that its scheduler has ended.
//!
//! `killed` finds such runs among the lines of the usage log, `size` says what the next run asks for, `steps` does one thing after the other
//! at the job's scheduler, and `files` keeps what was begun. `looking` is a child of `jobfence hold` that does it, and `chore` what `hold`
//! calls. A scheduler's daemon does none of it. `decided` is for schedulers that forget a job with its end.

mod chore;
pub mod decided;
mod files;
mod key;
mod killed;
pub mod looking;
pub mod size;
mod steps;

use std::time::Instant;

use jobfence::facts::Facts;
use jobfence::fence::living::LivingStep;

pub use chore::{AgainWatch, doubts_here};
pub use files::{Refusals, WaitingRun};
pub use key::AgainKey;
pub use killed::{KilledRun, RunEnd, is_at_limit};
pub use size::{AskedMemory, MemoryBounds, MemoryUnit, NextRun};

/// Makes of the facts in a job's line what is certain of them.
pub type LoggedFacts = Box<dyn Fn(Facts) -> Facts>;

/// A scheduler that lets a job that has ended run again with more memory. All that changes a job is done in the name of its user: so the
/// scheduler refuses what that user could not ask for.
pub trait AgainPart {
    /// The holder of this scheduler's fences, as lines of the usage log have it.
    fn holder(&self) -> &'static str;

    /// The last part of the name of the file in which is kept what was begun.
    fn kept(&self) -> &'static str {
        "again"
    }

    /// Whether a look finds the runs in the usage log. Otherwise a program that sees a job's end puts the job back into its queue, where it is
    /// held, and has written that down before: see [`decided`].
    fn reads_log(&self) -> bool {
        true
    }

    /// Whether this step is the script of a job that this can have run again, if its scheduler lets it.
    fn has_script(&self, _step: &LivingStep<'_>) -> bool {
        false
    }

    /// What the scheduler knows of the job now. The error says why it cannot be asked now.
    fn look(&self, run: &KilledRun, deadline: Instant) -> Result<JobNow, String>;

    /// Puts the job back into its queue. There it is held, unless its next run has what it had before.
    fn requeue(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble>;

    /// Has a job in the queue ask for so much memory.
    fn ask_for(&self, run: &KilledRun, memory: AskedMemory, deadline: Instant) -> Result<(), AgainTrouble>;

    /// Lets a job that is held start.
    fn let_go(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble>;

    /// Cancels a job that is held, and would start with what was too little for it.
    fn cancel(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble>;
}

/// A job at its scheduler, seen from a run of it that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobNow {
    /// The scheduler does not know yet that the run has ended. `restarts`: how often the job was restarted before.
    Ending { restarts: u32 },
    /// The run has failed, and the job may be requeued. `restarts`: likewise.
    Failed { restarts: u32, asked: AskedMemory, bounds: MemoryBounds },
    /// A run has ended for a reason for which its job is requeued as it is. `restarts`: likewise. `barred`: why its user or the
    /// site lets it not run again, if so.
    Ended { restarts: u32, end: RunEnd, barred: Option<&'static str> },
    /// The next run waits, and is held since it was requeued. `asked`: what it asks for, if that is understood.
    Held { asked: Option<AskedMemory> },
    /// The next run is not held, or has begun.
    Next,
    /// Nothing is to be done, and why.
    Other(String),
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgainTrouble {
    /// The scheduler has refused it, and will refuse it again.
    Refused(String),
    /// It is not known whether it was done, or it may be done later.
    Unknown(String),
}
