// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's systemd units, found by their names.

use crate::error::Error;
use crate::fence::branches::{child, children};
use crate::sys::dir::Dir;

/// Slurm's scope is in no deeper slice (`CgroupSlice`).
pub const SLICES: u32 = 4;

/// Slurm's scopes in a hierarchy, and its service, which holds no job directories but only processes that its daemons started.
pub fn find_units(dir: &Dir, is_wanted: fn(&str) -> bool, deeper: u32, units: &mut Vec<Dir>, unseen: &mut Vec<Error>) {
    // A user can make directories below user.slice.
    let is_slice = |name: &str| name.ends_with(".slice") && name != "user.slice";
    for name in children(dir, |name| is_wanted(name) || is_slice(name), unseen) {
        let Some(child) = child(dir, &name, unseen) else { continue };
        if is_wanted(&name) {
            units.push(child);
        } else if deeper > 0 {
            find_units(&child, is_wanted, deeper - 1, units, unseen);
        }
    }
}
