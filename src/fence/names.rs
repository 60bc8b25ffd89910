// SPDX-License-Identifier: GPL-2.0-or-later
//! How directories of ours are called.

use crate::cgroup::layout::Hierarchy;

/// Below our own directory: the branch of those who run only when nobody else wants to.
pub const IDLE: &str = "idle";

/// The directory of a task, by its number in the step.
pub(super) fn own_task(number: u32) -> String {
    format!("task_{number}")
}

/// The path below a hierarchy's root as processes see it where another cgroup than the root is mounted (containers).
pub(super) fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}
