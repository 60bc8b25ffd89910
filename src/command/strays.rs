// SPDX-License-Identifier: GPL-2.0-or-later
//! `Strays`: users' processes that are in no fence, on a node where the scheduler alone gives access.
//!
//! A process can be placed in doubt: then nothing is done to it, and `jobfence strays` says why. `search` finds the processes and judges
//! each, by `accounts` (whose it is, and what the site wants of that user), `lineage` (what a scheduler's daemon has to do with it) and
//! `namespaces`. `containers` has those that a daemon started, which are only reported. `adopt` and `ending` do what the site wants, `watch`
//! is when `jobfence hold` does it, and `list` is the dry run.

mod accounts;
mod adopt;
mod containers;
mod ending;
mod figures;
mod lineage;
mod list;
mod namespaces;
mod search;
mod status;
mod watch;

pub use accounts::StrayAccounts;
pub use figures::StraysFigures;
pub use list::{SCHEMA, StraysOptions, strays};
pub use search::{FoundStrays, Stray, StraysSearch, adopting, doubt};
pub use watch::StraysWatch;
