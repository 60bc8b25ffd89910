// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's row in the table of schedulers. Its answers are in the parent module.

/// Slurm as a `Scheduler`.
#[derive(Debug)]
pub struct SlurmScheduler;

/// The row itself.
pub static SLURM: SlurmScheduler = SlurmScheduler;
