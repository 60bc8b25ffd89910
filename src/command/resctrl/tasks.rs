// SPDX-License-Identifier: GPL-2.0-or-later
//! The threads of a job, and those of its group. A child is in the group of its parent. So all that has begun in the group stays there, and
//! only what was there before, or comes into the job from elsewhere, is moved.
//!
//! The file `tasks` takes one thread at a time: Linux before 6.7 takes no list. A thread that ends meanwhile is no error.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::walk;
use jobfence::error::Result;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

const TASKS: &str = "tasks";

/// So often the job is looked through until a pass finds nothing to move. One that starts processes faster than that is looked at again.
const MOST_PASSES: u32 = 8;

/// A user may have made any number of cgroups.
const PATIENCE: Duration = Duration::from_millis(500);

/// The threads below these directories of a job.
pub fn of_job(directories: &[Dir], version: Version) -> Result<BTreeSet<i32>> {
    let file = match version {
        Version::V1 => TASKS,
        Version::V2 => "cgroup.threads",
    };
    let (mut all, deadline) = (BTreeSet::new(), Instant::now() + PATIENCE);
    for top in directories {
        walk::visit(top, deadline, &mut |dir| {
            all.extend(threads(&dir.read(file)?));
            Ok(true)
        })?;
    }
    Ok(all)
}

/// The threads in a file. Those of another pid namespace have no number here: they are 0, and to write that would move the writer.
fn threads(text: &str) -> impl Iterator<Item = i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|tid| *tid > 0)
}

fn of_group(group: &Dir) -> Result<BTreeSet<i32>> {
    Ok(threads(&group.read(TASKS)?).collect())
}

/// Moves each thread of the job into its group. Returns whether the last pass has found none to move.
pub fn gather(group: &Dir, job: &mut dyn FnMut() -> Result<BTreeSet<i32>>) -> Result<bool> {
    for _ in 0..MOST_PASSES {
        let inside = of_group(group)?;
        let missing: Vec<i32> = job()?.difference(&inside).copied().collect();
        let mut has_moved = false;
        for thread in missing {
            has_moved |= is_moved(group, thread)?;
        }
        if !has_moved {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives back to the default group what is in the job's group and not in the job: what was moved out of the job, and a thread that has
/// got the number of one that ended while it was moved. Each is seen there twice, with a look at the job after each time.
pub fn give_back(root: &Dir, group: &Dir, job: &mut dyn FnMut() -> Result<BTreeSet<i32>>) -> Result<()> {
    let strangers: BTreeSet<i32> = of_group(group)?.difference(&job()?).copied().collect();
    if strangers.is_empty() {
        return Ok(());
    }
    let again = of_group(group)?;
    let job = job()?;
    for thread in strangers.intersection(&again).filter(|thread| !job.contains(thread)) {
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
        let dir = || [Dir::open(temp.path()).unwrap()];
        assert_eq!(of_job(&dir(), Version::V1).unwrap(), [7, 8, 9, 10].into());
        assert_eq!(of_job(&dir(), Version::V2).unwrap(), [1].into());
    }

    #[test]
    fn a_job_that_goes_on_starting_processes_ends_the_passes() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("tasks", "")]);
        let group = Dir::open(temp.path()).unwrap();
        let mut passes = 0;
        let is_settled = gather(&group, &mut || {
            passes += 1;
            Ok([1_000_000 + passes].into())
        });
        assert!(!is_settled.unwrap());
        assert_eq!(passes, MOST_PASSES as i32);
    }
}
