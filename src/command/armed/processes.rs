// SPDX-License-Identifier: GPL-2.0-or-later
//! The processes and threads of one step, at the levels that limit them. The kernel tells only of the limit itself (`pids.events`), and of
//! nothing before.

use jobfence::cgroup::limits::processes;
use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;

use super::crossing::{StepLook, UseLevel};
use super::directories::{Directories, Unseen};
use super::pace;

/// The directories of a step that limit its processes.
#[derive(Debug)]
pub struct StepProcesses {
    pub directories: Directories,
}

impl StepProcesses {
    /// The processes of a step. `None`: no hierarchy here counts them.
    pub fn from_step(step: &LivingStep<'_>) -> Option<Self> {
        Some(Self { directories: Directories::with_watched(step, Watched::Processes)? })
    }

    /// Looks once.
    pub fn look(&self, share: Percent) -> Result<StepLook, Unseen> {
        let levels: Vec<UseLevel> = self.directories.open()?.iter().filter_map(level).collect();
        let pause = pace::of_processes(&levels, share);
        Ok(StepLook { levels, is_told: false, pause })
    }
}

/// The level of a directory. `None`: it has no limit.
fn level(dir: &Dir) -> Option<UseLevel> {
    let limit = processes(dir).ok().flatten()?;
    Some(UseLevel { used: dir.read_value("pids.current").ok()?.trim().parse().ok()?, limit })
}
