// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step has used and its limits, as its directories show them, for a process that has not made these.

use super::layout::Hierarchy;
use super::limits;
use super::usage::Usage;
use crate::job::Cpus;
use crate::sys::dir::Dir;

/// The usage and the limits of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// What the step has used.
    pub step: Usage,
    /// What its whole job has used: CPU time and memory.
    pub job: Usage,
    /// The CPU time that the step may have; `None`: not limited.
    pub cpus: Option<Cpus>,
    /// The memory that the step may have, in bytes.
    pub memory: Option<u64>,
    /// The processes and threads that the step may have.
    pub processes: Option<u64>,
}

impl Used {
    /// Reads from this hierarchy the figures that are not known yet.
    pub fn add(&mut self, hierarchy: &Hierarchy, step: &Dir, job: &Dir) {
        self.step.add(hierarchy, step);
        self.job.add_of_job(hierarchy, job);
        let version = hierarchy.version;
        if self.cpus.is_none() && hierarchy.has("cpu") {
            self.cpus = limits::cpu_quota(step, version).ok().flatten().map(limits::CpuQuota::cpus);
        }
        if self.memory.is_none() && hierarchy.has("memory") {
            self.memory = limits::memory_limit(step, limits::memory_files(version).0).ok().flatten();
        }
        if self.processes.is_none() && hierarchy.has("pids") {
            self.processes = limits::processes(step).ok().flatten();
        }
    }

    /// Takes from `other` the figures that are not known here.
    pub fn or(&mut self, other: &Self) {
        self.step.or(&other.step);
        self.job.or(&other.job);
        self.cpus = self.cpus.or(other.cpus);
        self.memory = self.memory.or(other.memory);
        self.processes = self.processes.or(other.processes);
    }
}
