// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories on the way from a hierarchy's root to ours. Each can have a limit.

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::error::Result;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

/// The way, with the outermost directory first.
pub struct WayToOurs {
    pub version: Version,
    pub dirs: Vec<Dir>,
    /// Whether the last directory is ours. Otherwise ours is not made yet.
    pub is_whole: bool,
}

impl WayToOurs {
    /// Opens the directories as far as they exist.
    pub fn find(hierarchy: &Hierarchy, base: &str) -> Result<Self> {
        let mut dirs = vec![hierarchy.open()?];
        for name in base.split('/') {
            match dirs.last().map(|above| above.child(name)) {
                Some(Err(error)) if error.kernel_errno() == Some(Errno::ENOENT) => {
                    return Ok(Self { version: hierarchy.version, dirs, is_whole: false });
                }
                Some(dir) => dirs.push(dir?),
                None => {}
            }
        }
        Ok(Self { version: hierarchy.version, dirs, is_whole: true })
    }

    /// Our own directory.
    pub fn ours(&self) -> Option<&Dir> {
        self.dirs.last().filter(|_| self.is_whole)
    }
}

#[cfg(test)]
pub mod samples {
    //! A made-up machine.

    use std::fs;
    use std::path::Path;

    use super::*;

    /// Writes these files with their contents below a directory, and opens the directory.
    pub fn files(top: &Path, files: &[(&str, &str)]) -> Dir {
        for (name, text) in files {
            let file = top.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Dir::open(top).unwrap()
    }

    /// Makes directories of these names, each in the one before. With `is_whole` the last one is ours.
    pub fn way(version: Version, top: &Path, names: &[&str], is_whole: bool) -> WayToOurs {
        let mut dirs = vec![Dir::open(top).unwrap()];
        for name in names {
            dirs.push(dirs.last().unwrap().ensure(name).unwrap());
        }
        WayToOurs { version, dirs, is_whole }
    }
}
