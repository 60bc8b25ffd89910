// SPDX-License-Identifier: GPL-2.0-or-later
//! Directories as a command has seen them first: each by its path and its number, since a job that ends and begins again gets another
//! directory with the same path.
//!
//! None stays open: there may be more than a process may have descriptors. An open handle leads to no other directory, so what is opened
//! and compared stays right for the reads and writes by that handle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::living::LivingStep;
use crate::cgroup::mark;
use crate::error::{Error, Result};
use crate::record::resized::Resized;
use crate::sys::dir::Dir;

/// One directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDir {
    path: PathBuf,
    /// Its number. While this directory is there, no other one of the hierarchy has it; the kernel gives out numbers in a circle.
    inode: u64,
}

impl SeenDir {
    /// The one that is open.
    pub fn from_dir(dir: &Dir) -> Result<Self> {
        Ok(Self { path: dir.path().to_path_buf(), inode: dir.stat()?.st_ino })
    }

    /// The one that has this path now. `None`: there is none.
    pub fn find(path: &Path) -> Result<Option<Self>> {
        match Dir::open(path) {
            Err(error) if error.is_gone() => Ok(None),
            dir => Self::from_dir(&dir?).map(Some),
        }
    }

    /// One of the directories in this one. `None`: it is gone.
    pub fn child(dir: &Dir, name: &str) -> Result<Option<Self>> {
        match dir.child(name) {
            Err(error) if error.is_gone() => Ok(None),
            child => Self::from_dir(&child?).map(Some),
        }
    }

    /// Where it was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Opens it. If another one has its path, it is gone (`Error::is_gone`).
    pub fn open(&self) -> Result<Dir> {
        let dir = Dir::open(&self.path)?;
        if dir.stat()?.st_ino == self.inode {
            Ok(dir)
        } else {
            Err(Error::os("open the directory", &self.path, Errno::ENOENT))
        }
    }

    /// Whether it is gone as a cgroup, or is about to be.
    pub fn is_gone(&self) -> bool {
        match self.open() {
            Ok(dir) => !dir.has("cgroup.procs"),
            Err(error) => error.is_gone(),
        }
    }

    /// What was done with it. `None`: that failed because it is gone, and what ends meanwhile needs no limit.
    pub fn unless_gone<T>(&self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(_) if self.is_gone() => Ok(None),
            done => done.map(Some),
        }
    }
}

/// The directories of a job's steps.
#[derive(Debug, Default)]
pub struct SeenDirs(BTreeMap<PathBuf, SeenDir>);

impl SeenDirs {
    /// Sees the directories of steps, as far as they are not known yet.
    pub fn see(&mut self, steps: &[LivingStep<'_>]) -> Result<()> {
        for place in steps.iter().flat_map(|step| &step.places) {
            for path in [Some(&place.job), place.around.as_ref(), Some(&place.step)].into_iter().flatten() {
                if !self.0.contains_key(path)
                    && let Some(seen) = SeenDir::find(path)?
                {
                    self.0.insert(path.clone(), seen);
                }
            }
        }
        Ok(())
    }

    /// Of steps that were found later, keeps those of the same run of the job, and sees their directories.
    pub fn see_late(&mut self, late: &mut Vec<LivingStep<'_>>) -> Result<()> {
        late.retain(|step| !step.places.iter().any(|place| self.get(&place.job).is_some_and(SeenDir::is_gone)));
        self.see(late)
    }

    /// The directory that had this path. `None`: there was none.
    pub fn get(&self, path: &Path) -> Option<&SeenDir> {
        self.0.get(path)
    }

    /// Opens it. `None`: it is gone.
    pub fn open(&self, path: &Path) -> Result<Option<Dir>> {
        let Some(seen) = self.get(path) else { return Ok(None) };
        seen.unless_gone(seen.open())
    }

    /// The numbers of the jobs' directories where these steps have their memory.
    pub fn with_memory<'a>(&'a self, steps: &'a [LivingStep<'_>]) -> impl Iterator<Item = u64> + 'a {
        let places = steps.iter().flat_map(|step| &step.places).filter(|place| place.hierarchy.has("memory"));
        places.filter_map(move |place| Some(self.get(&place.job)?.inode))
    }

    /// Whether a job's directory of these steps is still there.
    pub fn have_a_job(&self, steps: &[LivingStep<'_>]) -> bool {
        let places = steps.iter().flat_map(|step| &step.places);
        places.filter_map(|place| self.get(&place.job)).any(|job| !job.is_gone())
    }

    /// Notes on the jobs' directories that they have something else than their grant, in place of what was noted before. `None`: the
    /// grant holds.
    pub fn note_resized(&self, steps: &[LivingStep<'_>], resized: Option<&Resized>) -> Result<()> {
        for place in steps.iter().flat_map(|step| &step.places) {
            let Some(seen) = self.get(&place.job) else { continue };
            let noted = seen.open().and_then(|job| match resized {
                Some(resized) => mark::set_resized(&job, &resized.to_string()),
                None => mark::remove_resized(&job),
            });
            seen.unless_gone(noted)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_with_the_path_is_not_the_one_that_was_seen() {
        let temp = tempfile::tempdir().unwrap();
        let [job, away] = ["job_5", "away"].map(|name| temp.path().join(name));
        let make = || {
            std::fs::create_dir(&job).unwrap();
            std::fs::write(job.join("cgroup.procs"), "").unwrap();
        };
        make();
        let seen = SeenDir::find(&job).unwrap().unwrap();
        assert!(seen.open().is_ok() && !seen.is_gone());
        assert_eq!(SeenDir::child(&Dir::open(temp.path()).unwrap(), "job_5").unwrap(), Some(seen.clone()));
        // It stays, so that no other gets its number.
        std::fs::rename(&job, &away).unwrap();
        assert!(seen.open().unwrap_err().is_gone() && seen.is_gone());
        make();
        assert!(seen.open().unwrap_err().is_gone() && seen.is_gone());
        let error = || Error::new("x");
        assert_eq!(seen.unless_gone(Err::<(), _>(error())).unwrap(), None);
        let other = SeenDir::find(&job).unwrap().unwrap();
        assert!(other.unless_gone(Err::<(), _>(error())).is_err());
        std::fs::remove_file(job.join("cgroup.procs")).unwrap();
        assert!(other.is_gone(), "its files go first");
        assert_eq!(SeenDir::find(&temp.path().join("none")).unwrap(), None);
    }
}
