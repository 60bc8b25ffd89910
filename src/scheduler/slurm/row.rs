// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm in the table of schedulers. What it answers is beside its rooms, in the file around them.

/// Slurm, as the rest of the house knows it.
#[derive(Debug)]
pub struct SlurmScheduler;

/// Its row.
pub static SLURM: SlurmScheduler = SlurmScheduler;
