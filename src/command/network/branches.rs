// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories above those of users, and the directories of jobs below them.

use std::os::unix::fs::DirEntryExt;

use jobfence::cgroup::base;
use jobfence::error::{Error, Result};
use jobfence::fence::IDLE;
use jobfence::host::Host;
use jobfence::sys::dir::Dir;

use super::program::BranchLevels;

/// How users' and jobs' directories begin.
const USER: &str = "uid_";
const JOB: &str = "job_";

/// The number of the directory at the root of all cgroups.
const ROOT: u64 = 1;

/// A directory with those of users in it.
#[derive(Debug)]
pub struct NetworkBranch {
    pub dir: Dir,
    pub levels: BranchLevels,
}

/// Why nothing can be counted or bounded on this host.
pub fn obstacle(host: &Host) -> Option<Error> {
    let Some(hierarchy) = host.layout.unified() else {
        return Some(
            Error::new("there is no cgroup2 here").hint("it need not have controllers: mount it beside those of v1"),
        );
    };
    match hierarchy.open().and_then(|root| root.stat()) {
        Ok(stat) if stat.st_ino == ROOT => None,
        Ok(_) => Some(
            Error::new("this is not the root of all cgroups:")
                .at(&hierarchy.mount)
                .hint("in a container with a cgroup namespace of its own it is not known how deep jobs' cgroups are"),
        ),
        Err(error) => Some(error),
    }
}

/// jobfence's own directory in cgroup2, which is made if it is not there, and those of its branches. `idle`: also that of scavengers.
pub fn find(host: &Host, idle: bool) -> Result<Vec<NetworkBranch>> {
    let Some(hierarchy) = host.layout.unified().filter(|_| obstacle(host).is_none()) else {
        return Err(obstacle(host).unwrap_or_else(|| Error::new("there is no cgroup2 here")));
    };
    let top = base::open(&host.base, host.systemd, hierarchy, &[])?;
    if idle {
        top.ensure(IDLE)?;
    }
    all(&top, depth(&host.base) + 1)
}

/// The same, if the directory is there.
pub fn existing(host: &Host) -> Vec<NetworkBranch> {
    let Some(hierarchy) = host.layout.unified() else { return Vec::new() };
    let top = hierarchy.open_below(&host.base).ok();
    top.and_then(|top| all(&top, depth(&host.base) + 1).ok()).unwrap_or_default()
}

/// How many directories below the root of cgroup2 this one is.
fn depth(base: &str) -> i32 {
    let names = base.split('/').filter(|name| !name.is_empty());
    i32::try_from(names.count()).unwrap_or(i32::MAX - 8)
}

/// The directory with users at this level, and its branches.
fn all(top: &Dir, users: i32) -> Result<Vec<NetworkBranch>> {
    let mut others = Vec::new();
    let mut branches = Vec::new();
    for name in top.list(true)? {
        if name.starts_with(USER) {
            continue;
        }
        // It may be gone by now.
        let Ok(dir) = top.child(&name) else { continue };
        // Nodes that share this host, and scavengers. Others have no users in them, as that of `hold` itself.
        let has_users = |dir: &Dir| dir.list(true).is_ok_and(|names| names.iter().any(|name| name.starts_with(USER)));
        let is_idle = name == IDLE;
        if is_idle || has_users(&dir) {
            others.push(dir.stat()?.st_ino);
            branches.extend(all(&dir, users + 1)?);
        }
    }
    let dir = top.child(".")?.named(top.path().to_path_buf());
    branches.push(NetworkBranch { dir, levels: BranchLevels { jobs: users + 1, others } });
    Ok(branches)
}

/// The numbers of all jobs' directories, and whether none can be missing.
pub fn jobs(branches: &[NetworkBranch]) -> (Vec<u64>, bool) {
    let (mut jobs, mut is_complete) = (Vec::new(), true);
    for branch in branches {
        let mut unseen = Vec::new();
        for user in jobfence::fence::branches::children(&branch.dir, |name| name.starts_with(USER), &mut unseen) {
            let Some(user) = jobfence::fence::branches::child(&branch.dir, &user, &mut unseen) else { continue };
            match std::fs::read_dir(user.handle_path()) {
                Ok(entries) => jobs.extend(entries.filter_map(|entry| {
                    let entry = entry.ok()?;
                    entry.file_name().to_str()?.starts_with(JOB).then(|| entry.ino())
                })),
                Err(error) => is_complete &= error.kind() == std::io::ErrorKind::NotFound,
            }
        }
        is_complete &= unseen.is_empty();
    }
    (jobs, is_complete)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_branch_has_its_own_depth_and_the_jobs_are_found() {
        let temp = tempfile::tempdir().unwrap();
        for path in ["uid_1/job_a/step_0", "idle/uid_1/job_b", "idle/n1/uid_2/job_c", "n2/uid_1/job_d", "hold", "x/y"] {
            fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        fs::write(temp.path().join("uid_1/job_not"), "").unwrap();
        let branches = all(&Dir::open(temp.path()).unwrap(), 3).unwrap();
        let mut seen: Vec<_> = branches
            .iter()
            .map(|branch| {
                let name = branch.dir.path().strip_prefix(temp.path()).unwrap().display().to_string();
                (name, branch.levels.jobs, branch.levels.others.len())
            })
            .collect();
        seen.sort();
        let of = |name: &str, jobs, others| (name.to_owned(), jobs, others);
        assert_eq!(seen, [of("", 4, 2), of("idle", 5, 1), of("idle/n1", 6, 0), of("n2", 5, 0)]);
        let (found, is_complete) = jobs(&branches);
        // A file of such a name is none of a cgroup's.
        assert_eq!((found.len(), is_complete), (5, true));
        assert_eq!(depth("jobfence.slice/jobfence.scope"), 2);
    }
}
