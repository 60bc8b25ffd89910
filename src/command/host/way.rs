// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories from a hierarchy's root to ours, each of which can have a limit.

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::error::Result;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

/// The outermost first.
pub struct WayToOurs {
    pub version: Version,
    pub dirs: Vec<Dir>,
    /// Whether the last one is ours, which may not have been made yet.
    pub is_whole: bool,
}

impl WayToOurs {
    /// As far as it is there.
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

    /// Our own.
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

    /// Writes files of these contents below a directory, and opens it.
    pub fn files(top: &Path, files: &[(&str, &str)]) -> Dir {
        for (name, text) in files {
            let file = top.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Dir::open(top).unwrap()
    }

    /// The directories of these names, each in the one before; ours is the last one if `is_whole`.
    pub fn way(version: Version, top: &Path, names: &[&str], is_whole: bool) -> WayToOurs {
        let mut dirs = vec![Dir::open(top).unwrap()];
        for name in names {
            dirs.push(dirs.last().unwrap().ensure(name).unwrap());
        }
        WayToOurs { version, dirs, is_whole }
    }
}
