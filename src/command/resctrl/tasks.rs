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

/// So long one look at all jobs takes, and as long again what is moved then: users may have made any number of cgroups and threads.
pub const PATIENCE: Duration = Duration::from_millis(250);

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

/// A group, and the job whose threads are to be in it.
pub struct JobThreads<'a> {
    /// The default group.
    pub root: &'a Dir,
    pub group: &'a Dir,
    /// The job's threads, as its directories have them.
    pub all: &'a mut dyn FnMut() -> SeenThreads,
    /// Whether a thread is the job's, by its own word. `None`: that cannot be said.
    pub has: &'a dyn Fn(i32) -> Option<bool>,
    /// When nothing more is looked at. Then there is `PATIENCE` for what is seen.
    pub deadline: Instant,
}

impl JobThreads<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline + PATIENCE
    }

    /// Moves each thread of the job into its group. Returns whether the last pass has found none to move. If some are not seen, the others
    /// are moved all the same. What is not the job's afterwards is given back at once: it has the number of a thread that has ended.
    pub fn gather(&mut self) -> Result<bool> {
        for _ in 0..MOST_PASSES {
            let inside = of_group(self.group)?;
            let seen = (self.all)();
            let (mut has_moved, mut strangers, mut done) = (false, BTreeSet::new(), Ok(()));
            for thread in seen.all.difference(&inside) {
                if self.is_late() {
                    break;
                }
                match is_moved(self.group, *thread) {
                    Ok(false) => continue,
                    Ok(true) => has_moved = true,
                    Err(error) => {
                        done = Err(error);
                        break;
                    }
                }
                if (self.has)(*thread) == Some(false) {
                    strangers.insert(*thread);
                }
            }
            done.and(self.release(&strangers))?;
            match seen.unseen {
                Some(error) => return Err(error),
                None if Instant::now() >= self.deadline => return Ok(false),
                None if !has_moved => return Ok(true),
                None => {}
            }
        }
        Ok(false)
    }

    /// Gives back to the default group what is in the job's group and by its own word not in the job, as what was moved out of the job.
    pub fn give_back(&mut self) -> Result<()> {
        let (inside, seen) = (of_group(self.group)?, (self.all)());
        let others = inside.difference(&seen.all).copied().take_while(|_| !self.is_late());
        let strangers = others.filter(|thread| (self.has)(*thread) == Some(false)).collect();
        self.release(&strangers)
    }

    /// Only what is in the group still: a number may have become that of a thread in another group.
    fn release(&self, strangers: &BTreeSet<i32>) -> Result<()> {
        if strangers.is_empty() {
            return Ok(());
        }
        of_group(self.group)?.intersection(strangers).try_for_each(|thread| is_moved(self.root, *thread).map(drop))
    }
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

    type All<'a> = &'a mut dyn FnMut() -> SeenThreads;

    /// Files for a default group, which has none of the threads, and for a group.
    fn groups(inside: &str) -> (tempfile::TempDir, Dir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("g/tasks", inside), ("tasks", "")]);
        let root = Dir::open(temp.path()).unwrap();
        let group = root.child("g").unwrap();
        (temp, root, group)
    }

    fn threads_of<'a>(
        (root, group): (&'a Dir, &'a Dir),
        all: All<'a>,
        has: &'a dyn Fn(i32) -> Option<bool>,
    ) -> JobThreads<'a> {
        JobThreads { root, group, all, has, deadline: Instant::now() + Duration::from_secs(600) }
    }

    #[test]
    fn what_is_seen_is_moved_and_what_is_the_jobs_is_not_given_back_while_more_is_unseen() {
        let (temp, root, group) = groups("");
        let mut partly = || SeenThreads { all: [77].into(), unseen: Some(Error::new("more")) };
        let has = |thread| (thread < 80).then_some(thread < 79);
        let mut threads = threads_of((&root, &group), &mut partly, &has);
        assert!(threads.gather().is_err());
        assert_eq!(group.read("tasks").unwrap(), "77");
        // Of 78 that is known, and of 80 not.
        files(temp.path(), &[("g/tasks", "77\n78\n80\n")]);
        threads.give_back().unwrap();
        assert_eq!(root.read("tasks").unwrap(), "");
        files(temp.path(), &[("g/tasks", "77\n78\n79\n80\n")]);
        threads.give_back().unwrap();
        assert_eq!(root.read("tasks").unwrap(), "79");
    }

    #[test]
    fn a_thread_that_has_the_number_of_one_of_the_job_is_given_back_at_once() {
        let (_temp, root, group) = groups("");
        let mut partly = || SeenThreads { all: [77].into(), unseen: Some(Error::new("more")) };
        assert!(threads_of((&root, &group), &mut partly, &|_| Some(false)).gather().is_err());
        assert_eq!((group.read("tasks").unwrap(), root.read("tasks").unwrap()), ("77".to_owned(), "77".to_owned()));
        // It is in a group of its own, in which the job's thread is not.
        let (_temp, root, group) = groups("5\n");
        threads_of((&root, &group), &mut partly, &|_| Some(false)).release(&[77].into()).unwrap();
        assert_eq!(root.read("tasks").unwrap(), "");
    }

    #[test]
    fn a_job_that_goes_on_starting_processes_ends_the_passes() {
        let (_temp, root, group) = groups("");
        let mut passes = 0;
        let mut all = || {
            passes += 1;
            SeenThreads { all: [1_000_000 + passes].into(), unseen: None }
        };
        assert!(!threads_of((&root, &group), &mut all, &|_| Some(true)).gather().unwrap());
        assert_eq!(passes, MOST_PASSES as i32);
    }

    #[test]
    fn when_the_time_is_over_what_is_seen_is_moved_and_then_nothing() {
        let (_temp, root, group) = groups("");
        let mut passes = 0;
        let mut all = || {
            passes += 1;
            SeenThreads { all: [77].into(), unseen: None }
        };
        let mut threads = threads_of((&root, &group), &mut all, &|_| Some(true));
        threads.deadline = Instant::now().checked_sub(PATIENCE).unwrap();
        assert!(!threads.gather().unwrap());
        assert_eq!(group.read("tasks").unwrap(), "");
        threads.deadline += PATIENCE + Duration::from_secs(600);
        assert!(threads.gather().unwrap());
        assert_eq!(group.read("tasks").unwrap(), "77");
        assert_eq!(passes, 3);
    }
}
