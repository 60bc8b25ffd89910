// SPDX-License-Identifier: GPL-2.0-or-later
//! The CPUs on which a directory's processes run: the cpuset controller (cpuset(7), cgroup-v2.rst).
//!
//! v1 needs the CPUs and memory nodes of every directory filled before a process is put in, from the top down, each within its
//! parent's. On v2 an empty file means the parent's. Memory nodes are not limited, as in Slurm's task/cgroup (it gives each job those
//! of its top directory, task_cgroup_cpuset.c): a job that has used up its own node's memory may use another's.

use nix::errno::Errno;

use super::layout::Version;
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The file of the CPUs that a directory is limited to.
pub const CPUS: &str = "cpuset.cpus";
const MEMS: &str = "cpuset.mems";

/// Fills what v1 leaves empty in a new directory: with the parent's CPUs and memory nodes. `all`: also if it has fewer than the parent,
/// as after a CPU was offline for a while.
pub fn inherit(parent: &Dir, dir: &Dir, all: bool) -> Result<()> {
    for file in [CPUS, MEMS] {
        let theirs = read(dir, file)?;
        let given = read(parent, file)?;
        if theirs.is_empty() || (all && theirs != given) {
            let found = put(dir, file, &given)?;
            if found != given {
                return Err(differs(dir, file, &given, &found));
            }
        }
    }
    Ok(())
}

/// The CPUs that a directory is limited to; `None` where nothing has been written (v2).
pub fn cpus(dir: &Dir) -> Result<Option<CpuList>> {
    read(dir, CPUS).map(|cpus| Some(cpus).filter(|cpus| !cpus.is_empty()))
}

/// The CPUs that the processes in a directory may use: those of its own that all directories above it have, too.
pub fn effective(dir: &Dir, version: Version) -> Result<CpuList> {
    read(dir, effective_file(version))
}

/// Limits a directory to these CPUs.
pub fn set_cpus(dir: &Dir, version: Version, want: &CpuList) -> Result<()> {
    if want.is_empty() {
        return Err(Error::new("no CPUs to limit this to:").at(dir.path()));
    }
    let found = match put(dir, CPUS, want) {
        // v1: a directory below has other CPUs.
        Err(error) if version == Version::V1 && error.kernel_errno() == Some(Errno::EBUSY) => {
            shrink_below(dir, want, 0)?;
            put(dir, CPUS, want)?
        }
        Err(error) if version == Version::V1 && error.kernel_errno() == Some(Errno::EACCES) => {
            return Err(error.hint("the directory above it does not have all of these CPUs"));
        }
        other => other?,
    };
    if found != *want {
        return Err(differs(dir, CPUS, want, &found));
    }
    let found = effective(dir, version)?;
    if found == *want {
        return Ok(());
    }
    Err(differs(dir, effective_file(version), want, &found)
        .hint("a cgroup above it does not have all of these CPUs (AllowedCPUs= of a unit?), or one of them is offline"))
}

/// Takes the CPUs that are not in `want` from the directories below, innermost first: a step still has those that its job lost.
fn shrink_below(dir: &Dir, want: &CpuList, depth: u32) -> Result<()> {
    const DEEPEST: u32 = 32;
    for name in dir.list(true)? {
        // A step that is ending may have removed its directory.
        let Ok(child) = dir.child(&name) else { continue };
        let Ok(theirs) = read(&child, CPUS) else { continue };
        if theirs.is_within(want) {
            continue;
        }
        if depth < DEEPEST {
            shrink_below(&child, want, depth + 1)?;
        }
        let left = theirs.in_both(want);
        let left = if left.is_empty() { want } else { &left };
        if let Err(error) = put(&child, CPUS, left)
            && child.has("cgroup.procs")
        {
            return Err(error);
        }
    }
    Ok(())
}

fn effective_file(version: Version) -> &'static str {
    match version {
        Version::V2 => "cpuset.cpus.effective",
        Version::V1 => "cpuset.effective_cpus",
    }
}

fn read(dir: &Dir, file: &str) -> Result<CpuList> {
    match dir.read_if_there(file)? {
        Some(text) => parse(dir, file, &text),
        None => Err(missing(dir, file)),
    }
}

/// Writes `want`, and returns what the kernel shows then.
fn put(dir: &Dir, file: &str, want: &CpuList) -> Result<CpuList> {
    // cgroups-rs is not used: it would create a missing file, and reads nothing back.
    match dir.write_and_read(file, &want.to_string()) {
        Ok(text) => parse(dir, file, &text),
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Err(missing(dir, file).value(want)),
        Err(error) => Err(error),
    }
}

fn parse(dir: &Dir, file: &str, text: &str) -> Result<CpuList> {
    CpuList::parse(text).ok_or_else(|| Error::new("not a list of CPUs:").at(dir.path().join(file)).value(text.trim()))
}

fn differs(dir: &Dir, file: &str, want: &CpuList, found: &CpuList) -> Error {
    Error::new("the limit was written, but the kernel shows another:")
        .at(dir.path().join(file))
        .value(format!("wanted {want}, found {found}"))
}

fn missing(dir: &Dir, file: &str) -> Error {
    Error::os("open", dir.path().join(file), Errno::ENOENT)
        .hint("the cpuset controller is not available here: see 'jobfence check'")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn list(text: &str) -> CpuList {
        CpuList::parse(text).unwrap()
    }

    fn put_files(path: &Path, cpus: &str, effective: &str) -> Dir {
        fs::create_dir_all(path).unwrap();
        for (file, text) in [(CPUS, cpus), (MEMS, ""), ("cpuset.cpus.effective", effective)] {
            fs::write(path.join(file), format!("{text}\n")).unwrap();
        }
        Dir::open(path).unwrap()
    }

    #[test]
    fn what_is_granted_but_not_effective_was_not_set() {
        let temp = tempfile::tempdir().unwrap();
        let dir = put_files(temp.path(), "", "0-1");
        assert_eq!(cpus(&dir).unwrap(), None);
        set_cpus(&dir, Version::V2, &list("0-1")).unwrap();
        assert_eq!(cpus(&dir).unwrap(), Some(list("0-1")));
        let error = set_cpus(&dir, Version::V2, &list("1-2")).unwrap_err().to_string();
        assert!(error.contains("wanted 1-2, found 0-1") && error.contains("a cgroup above it"), "{error}");
        assert!(set_cpus(&dir, Version::V2, &list("")).is_err());
    }

    #[test]
    fn a_missing_file_is_a_missing_controller() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let error = set_cpus(&dir, Version::V2, &list("0")).unwrap_err().to_string();
        assert!(error.contains("the cpuset controller is not available here"), "{error}");
    }

    #[test]
    fn what_is_empty_is_filled_and_what_is_not_stays_unless_all_is_wanted() {
        let temp = tempfile::tempdir().unwrap();
        let parent = put_files(temp.path(), "0-3", "");
        fs::write(temp.path().join(MEMS), "0-1\n").unwrap();
        let child = put_files(&temp.path().join("job_1"), "", "");
        let mems = || fs::read_to_string(temp.path().join("job_1/cpuset.mems")).unwrap();
        inherit(&parent, &child, false).unwrap();
        assert_eq!((cpus(&child).unwrap(), mems().trim()), (Some(list("0-3")), "0-1"));
        fs::write(temp.path().join("job_1/cpuset.cpus"), "2\n").unwrap();
        inherit(&parent, &child, false).unwrap();
        assert_eq!(cpus(&child).unwrap(), Some(list("2")));
        inherit(&parent, &child, true).unwrap();
        assert_eq!(cpus(&child).unwrap(), Some(list("0-3")));
    }
}
