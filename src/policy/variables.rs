// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of the variables that each scheduler's jobs read of their fences.

use std::ffi::CStr;

/// The step's directory.
pub const CGROUP: &CStr = c"JOBFENCE_CGROUP";
/// CPU time, as a number of CPUs.
pub const CPUS: &CStr = c"JOBFENCE_CPUS";
/// Memory.
pub const MEMORY: &CStr = c"JOBFENCE_MEMORY_BYTES";
/// Processes and threads.
pub const PROCESSES: &CStr = c"JOBFENCE_MAX_PROCESSES";
