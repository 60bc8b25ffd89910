// SPDX-License-Identifier: GPL-2.0-or-later
//! `MemoryPool`: a job that needs more memory than its limit is lent what no job has reserved, and gives it back.
//!
//! `policy` decides who has how much, from numbers alone; `node` says what there is. `directory` reads and writes the limits of one job,
//! `lowering` is the process that lowers them, `notice` has the kernel tell that it needs more, and `files` keeps what is lent across a
//! restart. `mark` has the kernel kill a borrower first when the node runs short. `borrower` is one job with all that, `reserved` what all
//! the other jobs may use, `touched` what of that they have not used for a while, `loan_note` what a job's user reads of it at the end, and
//! `watch` what `jobfence hold` does with all jobs between its other work. Nothing of it runs in a scheduler's daemon. It ends no job but a
//! scavenger that uses what owners need.

mod borrower;
mod directory;
mod files;
mod loan_note;
mod lowering;
mod mark;
mod node;
mod notice;
mod policy;
mod reserved;
mod touched;
mod watch;

pub use files::{JobLent, SCHEMA, loans, page};
pub use watch::{LendWatch, is_on, lends_unused};
