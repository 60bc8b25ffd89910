// SPDX-License-Identifier: GPL-2.0-or-later
//! How directories of ours are called.

use crate::cgroup::layout::Hierarchy;

/// Below our own directory: the branch of those who run only when nobody else wants to.
pub(super) const IDLE: &str = "idle";

/// The path below a hierarchy's root as processes see it where another cgroup than the root is mounted (containers).
pub(super) fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}
