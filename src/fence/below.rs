// SPDX-License-Identifier: GPL-2.0-or-later
//! Directories below a step's that its scheduler has made and limited: there a scheduler puts the job beside its own processes.

use std::path::PathBuf;

use super::amounts::ram_of;
use super::living::StepPlace;
use super::seen::SeenDir;
use crate::cgroup::layout::Version;
use crate::error::Result;
use crate::sys::dir::Dir;

/// So many levels below a step a scheduler has limited directories of its own.
const DEEPEST_BRANCH: usize = 4;

/// Root's directories below the step's whose memory is limited, each with its limit: the scheduler puts the job there. The outer ones come
/// first.
pub fn limited_branches(place: &StepPlace<'_>, step: &SeenDir, version: Version) -> Result<Vec<(SeenDir, u64)>> {
    let mut found = Vec::new();
    let Some(dir) = step.unless_gone(step.open())? else { return Ok(found) };
    add_branches(&dir, version, DEEPEST_BRANCH, &mut found)?;
    let tasks: Vec<PathBuf> = place.task_names(&dir).iter().map(|name| dir.path().join(name)).collect();
    found.retain(|(branch, _)| !tasks.iter().any(|task| branch.path().starts_with(task)));
    Ok(found)
}

fn add_branches(dir: &Dir, version: Version, levels: usize, found: &mut Vec<(SeenDir, u64)>) -> Result<()> {
    let names = match dir.list(true) {
        Err(_) if !dir.has("cgroup.procs") => return Ok(()),
        names => names?,
    };
    // One of each level is open at a time.
    for name in names {
        let Some(seen) = SeenDir::child(dir, &name)? else { continue };
        let Some(child) = seen.unless_gone(seen.open())? else { continue };
        // A user may make any number of them.
        if seen.unless_gone(child.stat())?.is_none_or(|stat| stat.st_uid != 0) {
            continue;
        }
        found.extend(ram_of(&seen, version)?.map(|limit| (seen, limit)));
        if levels > 1 {
            add_branches(&child, version, levels - 1, found)?;
        }
    }
    Ok(())
}
