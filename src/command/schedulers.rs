// SPDX-License-Identifier: GPL-2.0-or-later
//! The table of the schedulers' parts of the command, each in its scheduler's folder.

use crate::part::SchedulersPart;

#[path = "../schedulers/gridengine/command/mod.rs"]
pub mod gridengine;
#[path = "../schedulers/htcondor/command/mod.rs"]
pub mod htcondor;
#[path = "../schedulers/pbs/command/mod.rs"]
pub mod pbs;
#[path = "../schedulers/slurm/command/mod.rs"]
pub mod slurm;

/// All parts, in the order of their lines in `jobfence check`.
pub static ALL: &[&dyn SchedulersPart] =
    &[&slurm::SlurmPart, &gridengine::GridEnginePart, &pbs::PbsPart, &htcondor::HtCondorPart];
