// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories of one step in the hierarchy of one controller: the job's first, and the step's last.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::cgroup::layout::Version;
use jobfence::config::Watched;
use jobfence::fence::living::{LivingStep, StepPlace};
use jobfence::sys::dir::Dir;

/// The directories, each with its number: another directory may get the same name.
#[derive(Debug)]
pub struct Directories {
    pub version: Version,
    numbered: Vec<(PathBuf, u64)>,
}

/// Why a look does not see a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// The step has ended.
    Ended,
    /// This time something could not be opened. A part of its directories would give a false share.
    ThisTime,
}

impl Directories {
    /// The directories that show what is watched. `None`: no hierarchy here shows it.
    pub fn with_watched(step: &LivingStep<'_>, watched: Watched) -> Option<Self> {
        Self::from_place(place(step, watched)?)
    }

    /// The directories on v2. Only v2 has the pressure of cgroups, even if v1 has the controllers.
    pub fn with_pressure(step: &LivingStep<'_>) -> Option<Self> {
        Self::from_place(place(step, Watched::CpuPressure)?)
    }

    /// The directories of one place. `None`: the step's own directory is gone, and no other one takes its place.
    fn from_place(place: &StepPlace<'_>) -> Option<Self> {
        let above = [Some(&place.job), place.around.as_ref()].into_iter().flatten();
        let mut numbered: Vec<_> = above.filter_map(|path| numbered(path)).collect();
        numbered.push(numbered_step(place)?);
        Some(Self { version: place.hierarchy.version, numbered })
    }

    /// The step's own directory.
    pub fn of_step(&self) -> Option<&(PathBuf, u64)> {
        self.numbered.last()
    }

    /// Opens all directories. Each must still have its number.
    pub fn open(&self) -> Result<Vec<Dir>, Unseen> {
        let is_there = |(path, inode): &(PathBuf, u64)| number(path) == Some(*inode);
        if !self.numbered.iter().all(is_there) {
            return Err(Unseen::Ended);
        }
        self.numbered.iter().map(|(path, _)| Dir::open(path).map_err(|_| Unseen::ThisTime)).collect()
    }

    /// Opens the step's own directory.
    pub fn open_step(&self) -> Result<Dir, Unseen> {
        self.open()?.pop().ok_or(Unseen::Ended)
    }
}

/// The place of a step that shows what is watched.
fn place<'a, 'b>(step: &'a LivingStep<'b>, watched: Watched) -> Option<&'a StepPlace<'b>> {
    let controller = match watched {
        Watched::Memory => "memory",
        Watched::Processes => "pids",
        Watched::Throttled => "cpu",
        _ => return step.places.iter().find(|place| place.hierarchy.version == Version::V2),
    };
    step.places.iter().find(|place| place.hierarchy.has(controller))
}

/// The step's own directory there, with its number.
pub fn own_directory(step: &LivingStep<'_>, watched: Watched) -> Option<(PathBuf, u64)> {
    numbered_step(place(step, watched)?)
}

fn numbered_step(place: &StepPlace<'_>) -> Option<(PathBuf, u64)> {
    numbered(&place.step)
}

fn numbered(path: &Path) -> Option<(PathBuf, u64)> {
    Some((path.to_path_buf(), number(path)?))
}

fn number(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_seen_whole_or_not_at_all() {
        let temp = tempfile::tempdir().unwrap();
        let [job, step] = ["job", "job/step"].map(|name| temp.path().join(name));
        std::fs::create_dir_all(&step).unwrap();
        let numbered: Vec<_> = [&job, &step].into_iter().filter_map(|path| numbered(path)).collect();
        let directories = Directories { version: Version::V2, numbered };
        assert_eq!(directories.open().unwrap().len(), 2);
        assert_eq!(directories.open_step().unwrap().path(), step);
        std::fs::remove_dir(&step).unwrap();
        assert_eq!(directories.open().unwrap_err(), Unseen::Ended);
        std::fs::write(&step, "").unwrap();
        // A file in the directory's place, with the number that is known, cannot be opened as a directory.
        let directories = Directories { numbered: vec![(step.clone(), number(&step).unwrap())], ..directories };
        assert_eq!(directories.open().unwrap_err(), Unseen::ThisTime);
    }
}
