// SPDX-License-Identifier: GPL-2.0-or-later
//! Removes `RunDir`, with all kinds of records.

use std::path::Path;

use nix::errno::Errno;

use super::files::{checked, checked_run_dir, unlink};
use super::steps::{CARDS, CORES, GPUS, LIMITS, MEMORY_LOCKS, NEW, PRIVATE, RESIZES, Records, memory_lock};
use super::{counters, job, roll, tracked};
use crate::error::Result;
use crate::sys::dir::Dir;

impl Records {
    /// Removes `RunDir`, with all that is in it when no step is recorded. `Ok(false)`: there is more in it.
    ///
    /// `kept` are directories in which schedulers' entry points keep answers.
    pub fn remove(path: &Path, kept: &[&str]) -> Result<bool> {
        let (parent, name) = match (path.parent().map(Dir::open), path.file_name()) {
            (Some(Ok(parent)), Some(name)) if parent.child(name).is_ok() => (parent, name),
            _ => return Ok(true),
        };
        let dir = checked_run_dir(parent.child(name)?)?;
        let of_jobs = [job::DIRECTORY, tracked::DIRECTORY, roll::DIRECTORY, counters::DIRECTORY];
        for records in of_jobs.into_iter().chain([NEW, tracked::WATCHER, tracked::ONLY]).chain(kept.iter().copied()) {
            if let Ok(records) = dir.child(records).and_then(checked) {
                records.list(false)?.iter().try_for_each(|record| unlink(&records, record))?;
            }
            dir.remove(records)?;
        }
        // The last one is of earlier releases.
        for name in [LIMITS, RESIZES, GPUS, CORES, CARDS, PRIVATE, "whole"] {
            dir.remove(name)?;
        }
        for number in 0..MEMORY_LOCKS {
            dir.remove(&memory_lock(number))?;
        }
        match parent.remove(name) {
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOTEMPTY | Errno::EEXIST)) => Ok(false),
            removed => removed.map(|_| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn locks_are_removed_with_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let records = Records::open(&run).unwrap();
        for lock in
            [Records::lock_limits, Records::lock_resizes, Records::lock_gpus, Records::lock_cores, Records::lock_cards]
        {
            drop(lock(&records, Instant::now() + Duration::from_secs(300)).unwrap());
        }
        for inode in [0, 31, 32, u64::MAX] {
            drop(records.lock_memory(inode, Instant::now() + Duration::from_secs(300)).unwrap());
        }
        drop(tracked::OnlyLock::take(&run).unwrap().unwrap());
        crate::record::make_directory(&run, "kept").unwrap().replace_file("answer", b"").unwrap();
        assert!(!Records::remove(&run, &[]).unwrap());
        assert!(Records::remove(&run, &["kept"]).unwrap());
        assert!(!run.exists());
    }
}
