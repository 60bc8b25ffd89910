// SPDX-License-Identifier: GPL-2.0-or-later
//! Each scheduler's part of the command, in that scheduler's folder: a row for each.

use crate::part::SchedulersPart;

#[path = "../schedulers/gridengine/command/mod.rs"]
pub mod gridengine;
#[path = "../schedulers/htcondor/command/mod.rs"]
pub mod htcondor;
#[path = "../schedulers/pbs/command/mod.rs"]
pub mod pbs;
#[path = "../schedulers/slurm/command/mod.rs"]
pub mod slurm;

/// All of them, in the order of their lines in `jobfence check`.
pub static ALL: &[&dyn SchedulersPart] =
    &[&slurm::SlurmPart, &gridengine::GridEnginePart, &pbs::PbsPart, &htcondor::HtCondorPart];
