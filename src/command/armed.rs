// SPDX-License-Identifier: GPL-2.0-or-later
//! `SignalAt`: a word in time. When what a job uses comes near a share of its limit, or it waits or is throttled for a share of time, its
//! user reads a sentence at once, and its tasks may get a signal.
//!
//! `crossing` decides when something is said, `pace` when to look again, both from numbers alone. `memory`, `processes`, `throttling` and
//! `pressure` read a step's directories, and have the kernel tell where it does; `source` is any of them. `step` is one condition of one
//! step, `sentence` what its user reads, `watch` what `jobfence hold` does with all between its other work, `speakers` keeps the children
//! that speak within bounds, and `word` is one of them, which speaks and signals with the user's rights. A step is found by the note on its
//! directory, which only root can write. Nothing of it runs in a scheduler's daemon.

mod crossing;
mod descriptors;
mod directories;
mod memory;
mod pace;
mod pressure;
mod processes;
mod sentence;
mod source;
mod speakers;
mod stall;
mod step;
mod throttling;
mod watch;
mod word;

use jobfence::config::{SignalAt, ToldAt};
use jobfence::host::Host;

pub use crossing::UseLevel;
pub use memory::{cached, new_event, threshold};
pub use pace::of_memory;
pub use watch::ArmedWatch;

/// The conditions of a value that this node cannot see, and why.
pub fn unseen(signal_at: &SignalAt, host: &Host) -> Option<(Vec<ToldAt>, &'static str)> {
    let unseen: Vec<_> = signal_at.conditions().filter(|condition| condition.watched.is_pressure()).collect();
    let why = host.layout.no_pressure(&host.proc).filter(|_| !unseen.is_empty())?;
    Some((unseen, why))
}
