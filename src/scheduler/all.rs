// SPDX-License-Identifier: GPL-2.0-or-later
//! Which schedulers there are: a row for each.

use super::Schedulers;
use super::pbs::{self, PBS};
use super::slurm::{self, SLURM};
use super::{Scheduler, WithoutCgroups};
use super::{gridengine, htcondor};
use crate::report::card::{NEUTRAL, Words};

/// All of them.
pub static ALL: Schedulers = &[&SLURM, &PBS];

/// The directories in `RunDir` in which entry points keep schedulers' answers.
pub const KEPT: [&str; 2] = [gridengine::KEPT, htcondor::KEPT];

/// How the users of the scheduler of this name ask for things.
pub fn words_of(scheduler: &str) -> &'static Words {
    match scheduler {
        name if name == Scheduler::name(&SLURM) => &slurm::card::WORDS,
        name if name == WithoutCgroups::name(&PBS) => &pbs::card::WORDS,
        _ => &NEUTRAL,
    }
}
