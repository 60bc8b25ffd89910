// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of jobfence's directories.

use crate::cgroup::layout::Hierarchy;

/// The branch below jobfence's directory for jobs that run only on CPU time that no others want.
pub const IDLE: &str = "idle";

/// The directory of a task, by its number in the step.
pub(super) fn own_task(number: u32) -> String {
    format!("task_{number}")
}

/// A path below a hierarchy's mount point as processes see it if a cgroup other than the root is mounted there (containers).
pub(super) fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}
