// SPDX-License-Identifier: GPL-2.0-or-later
//! Which schedulers there are: a row for each.

use super::Schedulers;
use super::pbs::PBS;
use super::slurm::SLURM;

/// All of them.
pub static ALL: Schedulers = &[&SLURM, &PBS];
