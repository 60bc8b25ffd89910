// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories of one step in the hierarchy of one controller: the job's first, and the step's last.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::cgroup::layout::Version;
use jobfence::config::Watched;
use jobfence::fence::living::{LivingStep, StepPlace};
use jobfence::sys::dir::Dir;

/// Each with its number: another directory may get the name.
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
    /// Those in which that is seen. `None`: in no hierarchy that can be seen.
    pub fn with_watched(step: &LivingStep<'_>, watched: Watched) -> Option<Self> {
        Self::of_place(place(step, watched)?)
    }

    /// On v2, which alone has the pressure of cgroups, also where v1 has the controllers.
    pub fn with_pressure(step: &LivingStep<'_>) -> Option<Self> {
        Self::of_place(place(step, Watched::CpuPressure)?)
    }

    /// `None`: the step's own directory is gone. No other takes its place.
    fn of_place(place: &StepPlace<'_>) -> Option<Self> {
        let above = [Some(&place.job), place.around.as_ref()].into_iter().flatten();
        let mut numbered: Vec<_> = above.filter_map(|path| numbered(path)).collect();
        numbered.push(numbered_step(place)?);
        Some(Self { version: place.hierarchy.version, numbered })
    }

    /// The step's own directory.
    pub fn of_step(&self) -> Option<&(PathBuf, u64)> {
        self.numbered.last()
    }

    /// Opens all of them, each in its place.
    pub fn open(&self) -> Result<Vec<Dir>, Unseen> {
        let is_there = |(path, inode): &(PathBuf, u64)| number(path) == Some(*inode);
        if !self.numbered.iter().all(is_there) {
            return Err(Unseen::Ended);
        }
        self.numbered.iter().map(|(path, _)| Dir::open(path).map_err(|_| Unseen::ThisTime)).collect()
    }

    /// Opens the step's own.
    pub fn open_step(&self) -> Result<Dir, Unseen> {
        self.open()?.pop().ok_or(Unseen::Ended)
    }
}

/// Where that is seen of a step.
fn place<'a, 'b>(step: &'a LivingStep<'b>, watched: Watched) -> Option<&'a StepPlace<'b>> {
    let controller = match watched {
        Watched::Memory => "memory",
        Watched::Processes => "pids",
        Watched::Throttled => "cpu",
        _ => return step.places.iter().find(|place| place.hierarchy.version == Version::V2),
    };
    step.places.iter().find(|place| place.hierarchy.has(controller))
}

/// The step's own directory there, and its number.
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
        // Another that cannot be opened, of the same number.
        let directories = Directories { numbered: vec![(step.clone(), number(&step).unwrap())], ..directories };
        assert_eq!(directories.open().unwrap_err(), Unseen::ThisTime);
    }
}
