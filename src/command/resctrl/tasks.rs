// SPDX-License-Identifier: GPL-2.0-or-later
//! The threads of a job, and those of its group. A child is in the group of its parent. So all that has begun in the group stays there, and
//! only what was there before, or comes into the job from elsewhere, is moved.
//!
//! The file `tasks` takes one thread at a time: Linux before 6.7 takes no list. A thread that ends meanwhile is no error.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::walk;
use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

const TASKS: &str = "tasks";

/// So often the job is looked through until a pass finds nothing to move. One that starts processes faster than that is looked at again.
const MOST_PASSES: u32 = 8;

/// So long all looks at one job take together: its user may have made any number of cgroups.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// The threads of a job.
#[derive(Debug, Default)]
pub struct SeenThreads {
    pub all: BTreeSet<i32>,
    /// Why there may be more.
    pub unseen: Option<Error>,
}

/// The threads below these directories of a job.
pub fn of_job(directories: &[Dir], version: Version, deadline: Instant) -> SeenThreads {
    let file = match version {
        Version::V1 => TASKS,
        Version::V2 => "cgroup.threads",
    };
    let mut seen = SeenThreads::default();
    for top in directories {
        let done = walk::visit(top, deadline, &mut |dir| match dir.read(file) {
            Ok(text) => {
                seen.all.extend(threads(&text));
                Ok(true)
            }
            // A user can make such a cgroup (`domain invalid`). No process can be in it.
            Err(error) if error.kernel_errno() == Some(Errno::EOPNOTSUPP) => Ok(true),
            Err(error) => Err(error),
        });
        seen.unseen = done.err().or(seen.unseen);
    }
    seen
}

/// The threads in a file. Those of another pid namespace have no number here: they are 0, and to write that would move the writer.
fn threads(text: &str) -> impl Iterator<Item = i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|tid| *tid > 0)
}

fn of_group(group: &Dir) -> Result<BTreeSet<i32>> {
    Ok(threads(&group.read(TASKS)?).collect())
}

/// Moves each thread of the job into its group. Returns whether the last pass has found none to move. If some are not seen, the others are
/// moved all the same.
pub fn gather(group: &Dir, job: &mut dyn FnMut() -> SeenThreads) -> Result<bool> {
    for _ in 0..MOST_PASSES {
        let inside = of_group(group)?;
        let seen = job();
        let mut has_moved = false;
        for thread in seen.all.difference(&inside) {
            has_moved |= is_moved(group, *thread)?;
        }
        match seen.unseen {
            Some(error) => return Err(error),
            None if !has_moved => return Ok(true),
            None => {}
        }
    }
    Ok(false)
}

/// Gives back to the default group what is in the job's group and not in the job: what was moved out of the job, and a thread that has
/// got the number of one that ended while it was moved. Each is seen there twice, with a look at the job after each time. If not all of
/// the job is seen, nothing is given back.
pub fn give_back(root: &Dir, group: &Dir, job: &mut dyn FnMut() -> SeenThreads) -> Result<()> {
    let (inside, seen) = (of_group(group)?, job());
    let strangers: BTreeSet<i32> = inside.difference(&seen.all).copied().collect();
    if strangers.is_empty() || seen.unseen.is_some() {
        return Ok(());
    }
    let (again, seen) = (of_group(group)?, job());
    if seen.unseen.is_some() {
        return Ok(());
    }
    for thread in strangers.intersection(&again).filter(|thread| !seen.all.contains(thread)) {
        is_moved(root, *thread)?;
    }
    Ok(())
}

/// Moves a thread. `false`: it has ended.
fn is_moved(group: &Dir, thread: i32) -> Result<bool> {
    match group.write(TASKS, &thread.to_string()) {
        Ok(()) => Ok(true),
        Err(error) if error.kernel_errno() == Some(Errno::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::files;
    use super::*;

    #[test]
    fn each_thread_below_the_job_is_found_and_none_of_another_namespace() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("tasks", "7\n0\n"), ("step_0/tasks", "8\n9\n"), ("step_0/task_1/tasks", "0\n10\n")]);
        files(temp.path(), &[("cgroup.threads", "1\n"), ("step_0/cgroup.threads", "")]);
        let of = |version| {
            let seen = of_job(&[Dir::open(temp.path()).unwrap()], version, Instant::now() + PATIENCE);
            (seen.all, seen.unseen.is_some())
        };
        assert_eq!(of(Version::V1), ([7, 8, 9, 10].into(), false));
        // What cannot be read keeps nothing from being seen.
        assert_eq!(of(Version::V2), ([1].into(), false));
        std::fs::create_dir(temp.path().join("step_0/task_1/cgroup.threads")).unwrap();
        assert_eq!(of(Version::V2), ([1].into(), true));
    }

    #[test]
    fn what_is_seen_is_moved_and_while_more_is_unseen_nothing_is_given_back() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("g/tasks", ""), ("tasks", "")]);
        let root = Dir::open(temp.path()).unwrap();
        let group = root.child("g").unwrap();
        let mut partly = || SeenThreads { all: [77].into(), unseen: Some(Error::new("more")) };
        assert!(gather(&group, &mut partly).is_err());
        assert_eq!(group.read("tasks").unwrap(), "77");
        files(temp.path(), &[("g/tasks", "77\n78\n")]);
        give_back(&root, &group, &mut partly).unwrap();
        assert_eq!(root.read("tasks").unwrap(), "");
        give_back(&root, &group, &mut || SeenThreads { all: [77].into(), unseen: None }).unwrap();
        assert_eq!(root.read("tasks").unwrap(), "78");
    }

    #[test]
    fn a_job_that_goes_on_starting_processes_ends_the_passes() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("tasks", "")]);
        let group = Dir::open(temp.path()).unwrap();
        let mut passes = 0;
        let is_settled = gather(&group, &mut || {
            passes += 1;
            SeenThreads { all: [1_000_000 + passes].into(), unseen: None }
        });
        assert!(!is_settled.unwrap());
        assert_eq!(passes, MOST_PASSES as i32);
    }
}
