// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories of one step in the hierarchy of one controller: the job's first, and the step's last.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::cgroup::layout::Version;
use jobfence::fence::living::{LivingStep, StepPlace};
use jobfence::sys::dir::Dir;

/// Each with its number: another directory may get the name.
#[derive(Debug)]
pub struct Directories {
    pub version: Version,
    numbered: Vec<(PathBuf, u64)>,
}

impl Directories {
    /// Where the controller is. `None`: in no hierarchy that can be seen.
    pub fn with_controller(step: &LivingStep<'_>, controller: &str) -> Option<Self> {
        Self::of_place(step.places.iter().find(|place| place.hierarchy.has(controller))?)
    }

    /// On v2, which alone has the pressure of cgroups, also where v1 has the controllers.
    pub fn with_pressure(step: &LivingStep<'_>) -> Option<Self> {
        Self::of_place(step.places.iter().find(|place| place.hierarchy.version == Version::V2)?)
    }

    fn of_place(place: &StepPlace<'_>) -> Option<Self> {
        let numbered = |path: &PathBuf| Some((path.clone(), number(path)?));
        let all = [Some(&place.job), place.around.as_ref(), Some(&place.step)];
        let numbered: Vec<_> = all.into_iter().flatten().filter_map(numbered).collect();
        (!numbered.is_empty()).then_some(Self { version: place.hierarchy.version, numbered })
    }

    /// The step's own directory.
    pub fn of_step(&self) -> Option<&(PathBuf, u64)> {
        self.numbered.last()
    }

    /// Opens them. `None`: the step has ended.
    pub fn open(&self) -> Option<Vec<Dir>> {
        let is_there = |(path, inode): &(PathBuf, u64)| number(path) == Some(*inode);
        let opened = || self.numbered.iter().filter_map(|(path, _)| Dir::open(path).ok()).collect();
        self.numbered.iter().all(is_there).then(opened)
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}
