// SPDX-License-Identifier: GPL-2.0-or-later
//! The schedulers: a module for each.

use pbs::PBS;
use slurm::SLURM;

use crate::report::card::{NEUTRAL, Words};
use crate::scheduler::{Scheduler, Schedulers, WithoutCgroups};

pub mod gridengine;
pub mod htcondor;
pub mod pbs;
pub mod slurm;

/// The schedulers that can say whether a job runs.
pub static ALL: Schedulers = &[&SLURM, &PBS];

/// The directories in `RunDir` where entry points keep schedulers' answers.
pub const KEPT: [&str; 2] = [gridengine::KEPT, htcondor::KEPT];

/// The directory of a job's step, from that of the scheduler's daemon for the step. `None`: `directory` is not a daemon's.
pub fn jobs_step(directory: &str) -> Option<String> {
    gridengine::of_shepherd(directory)
}

/// The words with which users of the scheduler of this name ask for resources.
pub fn words_of(scheduler: &str) -> &'static Words {
    match scheduler {
        name if name == Scheduler::name(&SLURM) => &slurm::card::WORDS,
        name if name == WithoutCgroups::name(&PBS) => &pbs::card::WORDS,
        _ => &NEUTRAL,
    }
}
