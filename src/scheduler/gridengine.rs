// SPDX-License-Identifier: GPL-2.0-or-later
//! Grid Engine: Son of Grid Engine 8.1.9, and its relatives as far as they keep its files.
//!
//! execd starts a program for each job and for each slave task of a parallel one, as root: `shepherd_cmd` of sge_conf(5). What it says of
//! the job lies in the directory in which that program starts: `spool` reads it. `jobfence` is that program, under the name that execd
//! gives it, and starts the shepherd itself.

pub mod card;
pub mod spool;

/// What the first word of a shepherd's command line begins with; execd adds the number of the job.
pub const SHEPHERD: &str = "sge_shepherd";
