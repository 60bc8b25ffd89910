// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories above those of users, and the directories of jobs below them.

use std::collections::BTreeSet;

use jobfence::cgroup::base;
use jobfence::error::{Error, Result};
use jobfence::fence::branches::{child, children, found_or_noted};
use jobfence::host::Host;
use jobfence::sys::dir::Dir;

use super::program::JobLevel;

/// How users' and jobs' directories begin.
const USER: &str = "uid_";
const JOB: &str = "job_";

/// How many directories are between this one and those of users at most.
const BRANCHES: u32 = 2;

/// The number of the directory at the root of all cgroups.
const ROOT: u64 = 1;

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

/// jobfence's own directory in cgroup2, which is made if it is not there, and at which level jobs are.
pub fn find(host: &Host) -> Result<(Dir, JobLevel)> {
    let Some(hierarchy) = host.layout.unified().filter(|_| obstacle(host).is_none()) else {
        return Err(obstacle(host).unwrap_or_else(|| Error::new("there is no cgroup2 here")));
    };
    Ok((base::open(&host.base, host.systemd, hierarchy, &[])?, level(&host.base)))
}

/// The same, if the directory is there.
pub fn existing(host: &Host) -> Result<Option<Dir>> {
    let Some(hierarchy) = host.layout.unified() else { return Ok(None) };
    match hierarchy.open_below(&host.base) {
        Ok(top) => Ok(Some(top)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Users' directories are in this one, and jobs' in theirs.
fn level(base: &str) -> JobLevel {
    let names = base.split('/').filter(|name| !name.is_empty());
    JobLevel(i32::try_from(names.count()).unwrap_or(i32::MAX - 8) + 2)
}

/// The numbers of all jobs' directories: below users' in this directory and in its branches. `None`: some may be missing.
pub fn jobs(top: &Dir) -> Option<BTreeSet<u64>> {
    let (mut jobs, mut unseen) = (BTreeSet::new(), Vec::new());
    // Scavengers, and nodes that share this host, also among scavengers.
    below(top, BRANCHES, &mut jobs, &mut unseen);
    unseen.is_empty().then_some(jobs)
}

fn below(dir: &Dir, deeper: u32, jobs: &mut BTreeSet<u64>, unseen: &mut Vec<Error>) {
    for name in children(dir, |_| true, unseen) {
        let is_user = name.starts_with(USER);
        if !is_user && deeper == 0 {
            continue;
        }
        let Some(inner) = child(dir, &name, unseen) else { continue };
        if !is_user {
            below(&inner, deeper - 1, jobs, unseen);
            continue;
        }
        for job in children(&inner, |name| name.starts_with(JOB), unseen) {
            jobs.extend(
                child(&inner, &job, unseen).and_then(|job| found_or_noted(job.stat(), unseen)).map(|stat| stat.st_ino),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_jobs_of_all_branches_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let theirs = ["uid_1/job_a", "idle/uid_1/job_b", "idle/n1/uid_2/job_c", "n2/uid_1/job_d"];
        for path in theirs.iter().chain(&["uid_1/job_a/step_0", "hold", "x/y", "x/y/z/uid_3/job_e"]) {
            fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        fs::write(temp.path().join("uid_1/job_not"), "").unwrap();
        let numbers = theirs.map(|path| fs::metadata(temp.path().join(path)).unwrap().ino());
        assert_eq!(jobs(&Dir::open(temp.path()).unwrap()), Some(numbers.into()));
        assert_eq!(level("jobfence.slice/jobfence.scope"), JobLevel(4));
    }
}
