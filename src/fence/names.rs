// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of jobfence's directories.

/// The branch below jobfence's directory for jobs that run only on CPU time that no others want.
pub const IDLE: &str = "idle";

/// The directory that a step's user may divide, or beside which a daemon puts containers. It holds the processes of the step.
pub(super) const DELEGATED: &str = "user";

/// The directory of a task, by its number in the step.
pub(super) fn own_task(number: u32) -> String {
    format!("task_{number}")
}
