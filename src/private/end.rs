// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a job's own directories: with the last of its steps on the node.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::renameat;

use super::holders;
use super::places::{GONE, LOCK_TIMEOUT, PrivateNote, TMPFS, existing_in_run_dir, forget_all, name_of_job};
use super::removal::{Emptied, empty};
use super::space;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::record::Records;
use crate::sys::dir::Dir;
use crate::sys::mount;

/// Removes the directories of a job if it has no other step than this process's, until the deadline. To be called when that step's record is
/// gone. The janitor removes what is left.
pub fn end(host: &Host, run_dir: &Path, parents: &[String], records: &Records, deadline: Instant) -> Result<()> {
    let Some(all) = existing_in_run_dir(run_dir)? else { return Ok(()) };
    let lock = || records.lock_private(deadline.max(Instant::now() + LOCK_TIMEOUT));
    let gone = {
        let _lock = lock()?;
        holders::take_out(host, &all, parents)?;
        if holders::has_step(host, records, Some(&all), parents, None)? {
            return Ok(());
        }
        set_aside(&all, &name_of_job(parents))?
    };
    if let Some(gone) = gone {
        finish(&all, &gone, deadline)?;
    }
    drop(all);
    let _lock = lock()?;
    forget_all(run_dir).map(drop)
}

/// Gives a job's directories a name under which no job looks for them. To be called with the lock. `None`: there are none.
pub(super) fn set_aside(all: &Dir, name: &str) -> Result<Option<String>> {
    let jobs = match all.child(name) {
        Err(error) if error.is_gone() => return Ok(None),
        jobs => jobs?,
    };
    let gone = new_name();
    // On disk first: its place is known by the note, which is here.
    if let Some(disk) = PrivateNote::read_any(&jobs)?.and_then(|note| note.disk) {
        rename_disk(&disk, &gone)?;
    }
    rename(all, name, &gone)?;
    Ok(Some(gone))
}

/// A new name for what no job uses any more.
pub(super) fn new_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{GONE}{}.{}", now.as_nanos(), std::process::id())
}

fn rename_disk(disk: &Path, gone: &str) -> Result<()> {
    let (Some(parent), Some(name)) = (disk.parent(), disk.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    match Dir::open(parent) {
        Ok(parent) => rename(&parent, name, gone),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn rename(within: &Dir, name: &str, gone: &str) -> Result<()> {
    match renameat(within, name, within, gone) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::os("rename", within.path().join(name), errno)),
    }
}

/// Removes what was set aside. Returns whether all of it is gone.
pub(super) fn finish(all: &Dir, gone: &str, deadline: Instant) -> Result<bool> {
    let jobs = match all.child(gone) {
        Err(error) if error.is_gone() => return Ok(true),
        jobs => jobs?,
    };
    if let Some(parent) = PrivateNote::read_any(&jobs)?.and_then(|note| note.disk?.parent().map(Path::to_path_buf)) {
        match Dir::open(&parent) {
            Ok(parent) if !finish_disk(&parent, gone, deadline)? => return Ok(false),
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
    }
    if let Ok(tmpfs) = jobs.child(TMPFS)
        && tmpfs.stat()?.st_dev != jobs.stat()?.st_dev
    {
        // A process that still sees it, in whatever namespace, keeps no memory by it.
        if empty(&tmpfs, deadline)? == Emptied::Partly {
            return Ok(false);
        }
        mount::detach(&tmpfs).map_err(|errno| Error::os("unmount", tmpfs.path(), errno))?;
    }
    if empty(&jobs, deadline)? == Emptied::Partly {
        return Ok(false);
    }
    all.remove(gone)?;
    Ok(true)
}

/// The same on disk.
pub(super) fn finish_disk(all: &Dir, gone: &str, deadline: Instant) -> Result<bool> {
    let jobs = match all.child(gone) {
        Err(error) if error.is_gone() => return Ok(true),
        jobs => jobs?,
    };
    if empty(&jobs, deadline)? == Emptied::Partly {
        return Ok(false);
    }
    // Before the last name goes, by which it is found.
    space::forget(&jobs, all)?;
    all.remove(gone)?;
    Ok(true)
}
