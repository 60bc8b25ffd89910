// SPDX-License-Identifier: GPL-2.0-or-later
//! Which schedulers there are: a row for each.

use pbs::PBS;
use slurm::SLURM;

use crate::report::card::{NEUTRAL, Words};
use crate::scheduler::{Scheduler, Schedulers, WithoutCgroups};

pub mod gridengine;
pub mod htcondor;
pub mod pbs;
pub mod slurm;

/// All of them.
pub static ALL: Schedulers = &[&SLURM, &PBS];

/// The directories in `RunDir` in which entry points keep schedulers' answers.
pub const KEPT: [&str; 2] = [gridengine::KEPT, htcondor::KEPT];

/// The directory of a job's step, beside that of the daemon that a scheduler started for this step. `None`: it is not a daemon's.
pub fn jobs_step(directory: &str) -> Option<String> {
    gridengine::of_shepherd(directory)
}

/// How the users of the scheduler of this name ask for things.
pub fn words_of(scheduler: &str) -> &'static Words {
    match scheduler {
        name if name == Scheduler::name(&SLURM) => &slurm::card::WORDS,
        name if name == WithoutCgroups::name(&PBS) => &pbs::card::WORDS,
        _ => &NEUTRAL,
    }
}
