// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence's own directory in each hierarchy, with every fence below it, and what v1 needs in a directory before a process can be in
//! it.

use nix::errno::Errno;

use super::cpuset;
use super::handing_down::enable;
use super::layout::{Hierarchy, Version};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;
use crate::sys::systemd::is_delegated;

/// Opens jobfence's own directory in a hierarchy, at `base` below the root, with the controllers enabled for what is below. Makes it,
/// unless systemd makes it.
pub fn open(base: &str, systemd: bool, hierarchy: &Hierarchy, wanted: &[&'static str]) -> Result<Dir> {
    made(base, systemd, hierarchy, wanted).map_err(|error| match error.kernel_errno() {
        Some(Errno::EROFS) => error.hint(READ_ONLY),
        _ => error,
    })
}

/// The hint for a container that was not given cgroups of its own.
const READ_ONLY: &str = "the cgroup file system is mounted read-only here: if this is a container, start it with one that it may write \
                         (such as docker run --privileged --cgroupns=private), or run jobfence on the host";

fn made(base: &str, systemd: bool, hierarchy: &Hierarchy, wanted: &[&'static str]) -> Result<Dir> {
    // systemd owns cgroup2: jobfence may change only the directory that was delegated to it (CGROUP_DELEGATION.md).
    if systemd && hierarchy.version == Version::V2 {
        let dir = open_delegated(base, hierarchy)?;
        enable(&dir, hierarchy, wanted, false)?;
        return Ok(dir);
    }
    // On v1 nothing is handed down, and a directory of any controller but cpuset is ready as it was made.
    if hierarchy.version == Version::V1
        && !hierarchy.has("cpuset")
        && let Ok(dir) = hierarchy.open_below(base)
    {
        return Ok(dir);
    }
    let mut dir = hierarchy.open()?;
    for name in base.split('/') {
        enable(&dir, hierarchy, wanted, false)?;
        let above = dir;
        dir = match above.child(name) {
            // Only a first launch after boot finds none. If two come at once, each sets use_hierarchy before it makes anything below.
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                let dir = above.ensure(name)?;
                count_children(&dir, hierarchy)?;
                dir
            }
            other => other?,
        };
        fill(&above, &dir, hierarchy, true)?;
    }
    enable(&dir, hierarchy, wanted, false)?;
    Ok(dir)
}

/// Opens jobfence's own directory on a host where systemd makes it.
pub fn open_delegated(base: &str, hierarchy: &Hierarchy) -> Result<Dir> {
    let dir = hierarchy.open_below(base).map_err(|error| match error.kernel_errno() {
        Some(Errno::ENOENT) => error.hint(
            "the delegated scope does not exist: 'systemctl enable --now jobfence.service' makes it \
             (without an installation, 'jobfence hold')",
        ),
        _ => error,
    })?;
    if is_delegated(&dir) == Some(false) {
        return Err(Error::new("systemd has not delegated the directory")
            .at(dir.path())
            .hint("jobfence.service makes one that is, if this is NAME.slice/NAME.scope: see CgroupBase"));
    }
    Ok(dir)
}

/// Makes a v1 memory directory count what its children use, which kernels before 5.11 do only when told to.
fn count_children(dir: &Dir, hierarchy: &Hierarchy) -> Result<()> {
    const FILE: &str = "memory.use_hierarchy";
    if hierarchy.version == Version::V1
        && hierarchy.has("memory")
        && dir.read_if_there(FILE)?.is_some_and(|text| text.trim() == "0")
    {
        dir.write(FILE, "1")?;
    }
    Ok(())
}

/// Gives a v1 cpuset directory CPUs and memory nodes, without which it can hold no process; with `all`, all of its parent's. Does
/// nothing in other hierarchies.
pub fn fill(parent: &Dir, dir: &Dir, hierarchy: &Hierarchy, all: bool) -> Result<()> {
    if hierarchy.version == Version::V1 && hierarchy.has("cpuset") {
        return cpuset::inherit(parent, dir, all);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn hierarchy(mount: &Path, version: Version) -> Hierarchy {
        let controllers = ["cpu", "memory"].map(str::to_owned).into();
        Hierarchy { version, mount: mount.into(), root: "/".into(), controllers, name: None }
    }

    /// As before Linux 5.11 on a host without systemd, which would set it.
    #[test]
    fn an_old_memory_directory_is_made_to_count_its_children() {
        let temp = tempfile::tempdir().unwrap();
        let (file, dir) = (temp.path().join("memory.use_hierarchy"), Dir::open(temp.path()).unwrap());
        count_children(&dir, &hierarchy(temp.path(), Version::V1)).unwrap();
        assert!(!file.exists(), "newer kernels have no such file");
        for (version, after) in [(Version::V2, "0\n"), (Version::V1, "1")] {
            fs::write(&file, "0\n").unwrap();
            count_children(&dir, &hierarchy(temp.path(), version)).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.starts_with(after.trim()), "{text}");
        }
    }
}
