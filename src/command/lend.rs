// SPDX-License-Identifier: GPL-2.0-or-later
//! `MemoryPool`: a job that needs more memory than its limit is lent what no job has reserved, and gives it back.
//!
//! `policy` decides who has how much, from numbers alone; `node` says what there is. `directory` reads and writes the limits of one job,
//! `notice` has the kernel tell that it needs more, and `files` keeps what is lent across a restart. `borrower` is one job with all that,
//! `watch` what `jobfence hold` does with all jobs between its other work, and `claim` what becomes of a job that uses what others have
//! reserved meanwhile. Nothing of it runs in a scheduler's daemon.

mod borrower;
mod claim;
mod directory;
mod files;
mod node;
mod notice;
mod policy;
mod watch;

pub use files::{JobLent, SCHEMA, page};
pub use watch::{LendWatch, is_on};
