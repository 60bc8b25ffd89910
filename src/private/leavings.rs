// SPDX-License-Identifier: GPL-2.0-or-later
//! What is left of jobs' own directories: of jobs whose step daemons have died, of an earlier boot, and where there was no time.

use std::path::Path;
use std::time::Instant;

use super::dirs::{DIRECTORY, LOCK_TIMEOUT, existing_in_run_dir, name_of_host};
use super::end::{GONE, finish, finish_disk, new_name, rename, set_aside};
use crate::error::Result;
use crate::record::Records;
use crate::sys::dir::Dir;
use crate::sys::mount;

/// Removes the directories of jobs of which no step is recorded, until the deadline. Returns the names of those that are gone, and what
/// stood in the way of others.
pub fn remove(run_dir: &Path, base: Option<&Path>, records: &Records, deadline: Instant) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    let in_run_dir = existing_in_run_dir(run_dir);
    let on_disk = match base.map(|base| Ok(Dir::open(base)?.child(&name_of_host(run_dir)?)?)) {
        Some(Err(error)) if crate::error::Error::is_gone(&error) => Ok(None),
        dir => dir.transpose(),
    };
    let mut note = |found: Result<Option<Dir>>| {
        found.unwrap_or_else(|error: crate::error::Error| {
            failed.push(error.to_string());
            None
        })
    };
    let (in_run_dir, on_disk) = (note(in_run_dir), note(on_disk));
    if in_run_dir.is_none() && on_disk.is_none() {
        return (removed, failed);
    }
    let mut done = |name: String, outcome: Result<bool>| match outcome {
        Ok(true) => removed.push(name),
        Ok(false) => {}
        Err(error) => failed.push(error.to_string()),
    };
    match all_set_aside(records, in_run_dir.as_ref(), on_disk.as_ref()) {
        Ok(names) => names.into_iter().for_each(|(name, gone)| {
            if let Some(all) = &in_run_dir {
                done(name.clone(), finish(all, &gone, deadline));
            }
            if let Some(all) = &on_disk {
                done(name, finish_disk(all, &gone, deadline));
            }
        }),
        Err(error) => done(String::new(), Err(error)),
    }
    (removed, failed)
}

/// The names of jobs, and what is now set aside.
fn all_set_aside(records: &Records, in_run_dir: Option<&Dir>, on_disk: Option<&Dir>) -> Result<Vec<(String, String)>> {
    let _lock = records.lock_private(Instant::now() + LOCK_TIMEOUT)?;
    let mut found = Vec::new();
    let parents = |name: &str| name.split(',').map(str::to_owned).collect::<Vec<_>>();
    for (all, is_disk) in [(in_run_dir, false), (on_disk, true)] {
        let Some(all) = all else { continue };
        for name in all.list(true)? {
            if name.starts_with(GONE) {
                found.push((name.clone(), name));
            } else if records.has_step_of(&parents(&name))? {
                // A living job's.
            } else if is_disk {
                // Of an earlier boot, in which `RunDir` named it.
                let gone = new_name();
                rename(all, &name, &gone)?;
                found.push((name, gone));
            } else if let Some(gone) = set_aside(all, &name)? {
                found.push((name, gone));
            }
        }
    }
    Ok(found)
}

/// Takes the directory of all jobs away from an empty `RunDir`, which is being removed. `Ok(false)`: a job has directories in it.
pub fn forget_all(run_dir: &Path) -> Result<bool> {
    let Some(all) = existing_in_run_dir(run_dir)? else { return Ok(true) };
    if !all.list(true)?.is_empty() {
        return Ok(false);
    }
    let parent = Dir::open(run_dir)?;
    if all.stat()?.st_dev != parent.stat()?.st_dev {
        mount::detach(&all).map_err(|errno| crate::error::Error::os("unmount", all.path(), errno))?;
    }
    drop(all);
    parent.remove(DIRECTORY).map(|_| true)
}
