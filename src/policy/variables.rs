// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of the variables that tell each scheduler's jobs about their fences.

use std::ffi::CStr;

/// The step's directory.
pub const CGROUP: &CStr = c"JOBFENCE_CGROUP";
/// The limit of CPU time, as a number of CPUs.
pub const CPUS: &CStr = c"JOBFENCE_CPUS";
/// The memory limit, in bytes.
pub const MEMORY: &CStr = c"JOBFENCE_MEMORY_BYTES";
/// The limit of processes and threads.
pub const PROCESSES: &CStr = c"JOBFENCE_MAX_PROCESSES";
