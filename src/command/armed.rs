// SPDX-License-Identifier: GPL-2.0-or-later
//! `SignalAt`: a word in time. When the memory of a job comes near its limit, its user reads a sentence at once, and its tasks may get a
//! signal.
//!
//! `crossing` decides when something is said and when to look again, `memory` reads a step's directories and has the kernel of v1 tell of a
//! threshold, `watch` is what `jobfence hold` does between its other work, `speakers` keeps the children that speak within bounds, and `word` is
//! one of them, which speaks and signals with the user's rights. A step is found by the note on its directory, which only root can write. Nothing of it runs in a scheduler's daemon.

mod crossing;
mod memory;
mod speakers;
mod watch;
mod word;

pub use watch::ArmedWatch;
