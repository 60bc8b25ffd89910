// SPDX-License-Identifier: GPL-2.0-or-later
//! The least that can be done: the same directories and the same files with bare system calls, and no questions asked.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::Failure;
use crate::place::Place;
use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::fence;
use jobfence::policy::Limits;

/// Everything is known beforehand, so that only system calls are measured.
pub struct Floor {
    trees: Vec<Tree>,
}

struct Tree {
    base: CString,
    /// Below the base, from the top down.
    directories: Vec<CString>,
    files: Vec<(CString, String)>,
}

impl Floor {
    /// What the product makes and writes in this place.
    pub fn of(place: &Place) -> Result<Self, Failure> {
        let wanted = fence::controllers(&place.config);
        let hierarchies = place.host.hierarchies(&wanted)?;
        let trees = hierarchies.into_iter().map(|hierarchy| Tree::of(place, hierarchy, &wanted));
        Ok(Self { trees: trees.collect::<Result<_, _>>()? })
    }

    /// Makes the tree, writes each file once and reads it back once.
    pub fn set_up(&self) -> io::Result<()> {
        for tree in &self.trees {
            let base = Descriptor::open(libc::AT_FDCWD, &tree.base, libc::O_PATH | libc::O_DIRECTORY)?;
            for directory in &tree.directories {
                // SAFETY: an open descriptor and a NUL-terminated path.
                check(unsafe { libc::mkdirat(base.0, directory.as_ptr(), 0o755) }.into())?;
            }
            for (file, value) in &tree.files {
                let file = Descriptor::open(base.0, file, libc::O_RDWR)?;
                file.write(value)?;
                file.read(&mut [0; 256])?;
            }
        }
        Ok(())
    }

    /// Removes what [`Floor::set_up`] has made.
    pub fn remove(&self) -> io::Result<()> {
        self.directories().iter().rev().try_for_each(std::fs::remove_dir)
    }

    /// Every directory that is made.
    pub fn directories(&self) -> Vec<PathBuf> {
        let path = |name: &CString| PathBuf::from(OsString::from_vec(name.as_bytes().to_vec()));
        let below = |tree: &Tree| tree.directories.iter().map(|name| path(&tree.base).join(path(name))).collect();
        self.trees.iter().flat_map::<Vec<PathBuf>, _>(below).collect()
    }

    /// How many files are written.
    pub fn files(&self) -> usize {
        self.trees.iter().map(|tree| tree.files.len()).sum()
    }

    /// What the kernel shows in each of the files: the same after both kinds of set-up, or they are not comparable.
    pub fn state(&self) -> io::Result<Vec<String>> {
        let mut state = Vec::new();
        for tree in &self.trees {
            let base = Descriptor::open(libc::AT_FDCWD, &tree.base, libc::O_PATH | libc::O_DIRECTORY)?;
            for (file, _) in &tree.files {
                let mut text = [0; 256];
                let length = Descriptor::open(base.0, file, libc::O_RDONLY)?.read(&mut text)?;
                let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
                state.push(format!("{}: {}", file.to_string_lossy(), text.trim()));
            }
        }
        Ok(state)
    }
}

impl Tree {
    fn of(place: &Place, hierarchy: &Hierarchy, wanted: &[&str]) -> Result<Self, Failure> {
        let base = hierarchy.mount.join(&place.host.base);
        let mut levels = place.key.parents();
        levels.push(place.key.step_dir(1));
        let paths: Vec<String> = (1..=levels.len()).filter_map(|depth| Some(levels.get(..depth)?.join("/"))).collect();
        let mut files = Vec::new();
        let controllers: Vec<&&str> = wanted.iter().filter(|controller| hierarchy.has(controller)).collect();
        if hierarchy.version == Version::V2 && !controllers.is_empty() {
            let enable = controllers.iter().map(|controller| format!("+{controller}")).collect::<Vec<_>>().join(" ");
            for parent in paths.iter().rev().skip(1).rev() {
                files.push((format!("{parent}/cgroup.subtree_control"), enable.clone()));
            }
        }
        let plan = place.plan();
        for (path, limits) in paths.iter().rev().take(2).rev().zip([&plan.job, &plan.step]) {
            for (name, value) in written(hierarchy, limits) {
                // Swap is limited only where the kernel counts it, and old kernels have no slack.
                if base.join(name).exists() {
                    files.push((format!("{path}/{name}"), value));
                }
            }
        }
        let files = files.into_iter().map(|(file, value)| Ok((CString::new(file)?, value)));
        Ok(Self {
            base: CString::new(base.into_os_string().into_vec())?,
            directories: paths.into_iter().map(CString::new).collect::<Result<_, _>>()?,
            files: files.collect::<Result<_, Failure>>()?,
        })
    }
}

/// The files of one directory and their values, in the order in which the kernel takes them.
fn written(hierarchy: &Hierarchy, limits: &Limits) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    let cpu = limits.cpu.filter(|_| hierarchy.has("cpu"));
    let ram = limits.ram.filter(|_| hierarchy.has("memory"));
    let swap = limits.swap.filter(|_| hierarchy.has("memory"));
    match hierarchy.version {
        Version::V1 => {
            // The period stays as the kernel has it in a new directory.
            files.extend(cpu.map(|cpu| ("cpu.cfs_quota_us", cpu.quota_us.to_string())));
            files.extend(cpu.map(|cpu| ("cpu.cfs_burst_us", cpu.slack_us().to_string())));
            files.extend(ram.map(|ram| ("memory.limit_in_bytes", ram.to_string())));
            files.extend(swap.map(|both| ("memory.memsw.limit_in_bytes", (both.ram + both.swap).to_string())));
        }
        Version::V2 => {
            files.extend(cpu.map(|cpu| ("cpu.max", format!("{} {}", cpu.quota_us, cpu.period_us))));
            files.extend(cpu.map(|cpu| ("cpu.max.burst", cpu.slack_us().to_string())));
            files.extend(ram.map(|ram| ("memory.max", ram.to_string())));
            files.extend(swap.map(|swap| ("memory.swap.max", swap.swap.to_string())));
        }
    }
    files
}

/// Closed when dropped; nothing else.
struct Descriptor(libc::c_int);

impl Descriptor {
    fn open(directory: libc::c_int, path: &CString, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: a descriptor that is open (or AT_FDCWD), and a NUL-terminated path.
        let fd = unsafe { libc::openat(directory, path.as_ptr(), flags | libc::O_CLOEXEC) };
        check(fd.into()).map(|_| Self(fd))
    }

    fn write(&self, value: &str) -> io::Result<()> {
        // SAFETY: an open descriptor, and a buffer of this length.
        check(unsafe { libc::write(self.0, value.as_ptr().cast(), value.len()) } as i64).map(|_| ())
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: an open descriptor, and a buffer of this length.
        check(unsafe { libc::pread(self.0, buffer.as_mut_ptr().cast(), buffer.len(), 0) } as i64)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, which nobody uses any more.
        unsafe { libc::close(self.0) };
    }
}

fn check(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
