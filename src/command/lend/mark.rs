// SPDX-License-Identifier: GPL-2.0-or-later
//! The mark of a borrower's processes: when the node has no memory left, the kernel kills one of them, and none of a job that has only what
//! it reserved. And the end of a scavenger, whose processes are chosen alike.
//!
//! The mark is `/proc/PID/oom_score_adj` (proc_pid_oom_score_adj(5)). It says itself that it is one, so nothing has to be remembered of a
//! process. New processes inherit it. root's write also sets the least value to which the user may lower it (`__set_oom_adj` in
//! fs/proc/base.c). All goes through the directory of the process: the next process with its number is not reached by that.

use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::cgroup::membership::Membership;
use jobfence::cgroup::walk;
use jobfence::error::{Error, Result};
use jobfence::host::Host;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{pidfd_open, send};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// A process with this counts as if it had nearly all memory beside its own (`oom_badness` in mm/oom_kill.c, in thousandths). One less than
/// the most: who has the most has chosen it, and keeps it.
const MARK: i32 = 999;

/// What almost every process has.
const PLAIN: i32 = 0;

/// The most processes that one look changes, and the longest that it searches for them: a job has 4000 directories at most.
const MOST: usize = 500;
const PATIENCE: Duration = Duration::from_millis(50);

/// How often it is looked for processes that were forked while others were killed.
const ROUNDS: usize = 5;

/// The most threads of which it is asked where they are, if the first one does not say.
const MOST_THREADS: usize = 32;

/// The least time between two looks at all processes.
const AGAIN: Duration = Duration::from_millis(200);

/// The marks are gone when a look finds none so long after the last was taken away: a process may begin meanwhile.
const SETTLED: Duration = Duration::from_secs(1);

/// What a process gets that is to be marked. `None`: it stays as it is. Who has less than nothing is spared by root, such as a scheduler's
/// daemon.
fn marked(now: i32) -> Option<i32> {
    (PLAIN..MARK).contains(&now).then_some(MARK)
}

/// What a process gets whose mark is taken away. `None`: it has none.
fn unmarked(now: i32) -> Option<i32> {
    (now == MARK).then_some(PLAIN)
}

/// Where processes and their cgroups are seen.
#[derive(Debug, Clone, Copy)]
pub struct ProcessView<'a> {
    pub proc: &'a Dir,
    /// The one with the memory controller.
    pub hierarchy: &'a Hierarchy,
}

impl<'a> ProcessView<'a> {
    /// `None`: this host has no memory controller now.
    pub fn from_host(host: &'a Host, version: Version) -> Option<Self> {
        let hierarchy = host.layout.with_controller("memory").filter(|hierarchy| hierarchy.version == version)?;
        Some(Self { proc: &host.proc, hierarchy })
    }
}

/// How far the processes of one job have their mark, or are without it.
#[derive(Debug, Default)]
pub struct Marks {
    /// The last process that was looked at, by its number; 0: the next look begins anew.
    after: i32,
    /// Whether nothing was to be done since that began.
    is_clean: bool,
    /// When it began.
    begun: Option<Instant>,
    /// When something was changed last.
    changed: Option<Instant>,
    /// When it is worth to look again.
    pub next: Option<Instant>,
    /// The last error that was reported.
    said: Option<String>,
}

impl Marks {
    /// Whether it is time for a look.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// A failure that stays is reported once.
    pub fn tell(&mut self, why: Option<String>) {
        if let Some(why) = why.as_ref().filter(|why| self.said.as_ref() != Some(*why)) {
            log::error!("{why}");
        }
        self.said = why;
    }

    /// Looks at the processes in a job's directory and below, and gives them the mark or takes it away (`is_wanted`). Returns whether for some
    /// time no process has needed that.
    pub fn look(&mut self, seen: ProcessView<'_>, job: &Dir, is_wanted: bool) -> Result<bool> {
        let now = Instant::now();
        if self.after == 0 {
            (self.is_clean, self.begun) = (true, Some(now));
        }
        self.next = Some(now + AGAIN);
        let place = JobPlace::new(seen, job)?;
        let (pids, mut failed) = processes(job, now + PATIENCE);
        let rest = pids.get(pids.partition_point(|pid| *pid <= self.after)..).unwrap_or_default();
        for pid in rest.iter().take(MOST) {
            match place.change(*pid, is_wanted) {
                Ok(false) => {}
                Ok(true) => (self.is_clean, self.changed) = (false, Some(now)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.after = rest.get(MOST..).filter(|more| !more.is_empty()).and(rest.get(MOST - 1)).copied().unwrap_or(0);
        self.is_clean &= failed.is_none();
        let is_calm = self.changed.zip(self.begun).is_none_or(|(changed, begun)| changed + SETTLED <= begun);
        failed.map_or(Ok(self.after == 0 && self.is_clean && is_calm), Err)
    }
}

/// Kills the processes in a job's directory and below that root has not started. Those of a scheduler's daemon end by themselves when their
/// job has ended, and tell the scheduler so. Nobody waits for their end.
pub fn kill_all(seen: ProcessView<'_>, job: &Dir) -> Result<()> {
    let place = JobPlace::new(seen, job)?;
    let mut killed = Vec::new();
    let mut failed = None;
    // What was forked while others were killed is there at the next round.
    for _ in 0..ROUNDS {
        let (pids, why) = processes(job, Instant::now() + PATIENCE);
        let new: Vec<i32> = pids.into_iter().filter(|pid| killed.binary_search(pid).is_err()).collect();
        failed = why;
        if new.is_empty() {
            break;
        }
        for pid in &new {
            failed = place.kill(*pid).err().or(failed);
        }
        killed.extend(new);
        killed.sort_unstable();
    }
    failed.map_or(Ok(()), Err)
}

/// All processes in a directory and below, sorted, and why there may be more.
fn processes(job: &Dir, deadline: Instant) -> (Vec<i32>, Option<Error>) {
    let mut found = Vec::new();
    let done = walk::visit(job, deadline, &mut |dir| {
        let text = match dir.read("cgroup.procs") {
            // A threaded directory, which a user can make, does not show processes; the one above it does.
            Err(error) if error.kernel_errno() == Some(Errno::EOPNOTSUPP) => return Ok(true),
            read => read?,
        };
        // 0: a process that is not seen from here.
        found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
        Ok(true)
    });
    found.sort_unstable();
    found.dedup();
    (found, done.err())
}

/// The directory of a job, as the kernel shows it for a process.
struct JobPlace<'a> {
    seen: ProcessView<'a>,
    path: String,
}

impl<'a> JobPlace<'a> {
    fn new(seen: ProcessView<'a>, job: &Dir) -> Result<Self> {
        match job.path().strip_prefix(&seen.hierarchy.mount) {
            Ok(below) if !below.as_os_str().is_empty() => {
                Ok(Self { seen, path: seen.hierarchy.in_proc(&format!("/{}", below.display())) })
            }
            _ => Err(Error::new("the job's directory is not below what is mounted at")
                .at(&seen.hierarchy.mount)
                .value(job.path().display())),
        }
    }

    /// Whether a process's mark was changed. One that has ended needs none.
    fn change(&self, pid: i32, is_wanted: bool) -> Result<bool> {
        let done = self.seen.proc.child(&pid.to_string()).and_then(|process| self.change_one(&process, is_wanted));
        match done {
            Err(error) if has_ended(&error) => Ok(false),
            done => done,
        }
    }

    /// Kills one process. The handle comes first: so what is seen of the process is seen of the one that is killed, or of a later one that
    /// is not.
    fn kill(&self, pid: i32) -> Result<()> {
        let Some(Some(handle)) = pidfd_open(Pid::from_raw(pid))? else { return Ok(()) };
        let is_theirs =
            self.seen.proc.child(&pid.to_string()).and_then(|process| Ok(!is_roots(&process)? && self.has(&process)?));
        match is_theirs {
            Err(error) if has_ended(&error) => Ok(()),
            Ok(true) => send(Pid::from_raw(pid), Some(&handle), Signal::SIGKILL),
            is_theirs => is_theirs.map(drop),
        }
    }

    fn change_one(&self, process: &Dir, is_wanted: bool) -> Result<bool> {
        let text = process.read_value(ADJUSTMENT)?;
        let unknown = || Error::new("not a number in").at(process.path().join(ADJUSTMENT)).value(&text);
        let now = text.trim().parse().map_err(|_| unknown())?;
        let Some(value) = (if is_wanted { marked(now) } else { unmarked(now) }) else { return Ok(false) };
        if is_wanted && is_roots(process)? || !self.has(process)? {
            return Ok(false);
        }
        process.write(ADJUSTMENT, &value.to_string()).map(|()| true)
    }

    /// Whether the process is in the directory, or below.
    fn has(&self, process: &Dir) -> Result<bool> {
        if self.is_in(process)? {
            return Ok(true);
        }
        // Where the first thread has ended, v1 shows the root for it.
        let threads = process.child("task")?;
        Ok(threads.list(true)?.iter().take(MOST_THREADS).any(|thread| {
            let is_in = threads.child(thread).and_then(|thread| self.is_in(&thread));
            is_in.unwrap_or(false)
        }))
    }

    fn is_in(&self, process: &Dir) -> Result<bool> {
        let membership = Membership::parse(&process.read_table("cgroup")?);
        let rest = membership.path_in(self.seen.hierarchy).and_then(|path| path.strip_prefix(&self.path));
        Ok(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

const ADJUSTMENT: &str = "oom_score_adj";

fn has_ended(error: &Error) -> bool {
    error.is_gone() || error.kernel_errno() == Some(Errno::ESRCH)
}

/// Whether root has started it: a scheduler's daemon, which may act as another user for now.
fn is_roots(process: &Dir) -> Result<bool> {
    let status = process.read_table("status")?;
    let real = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
    Ok(real == Some("0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn a_mark_is_seen_in_the_value_alone() {
        for (own, with, without) in [(0, 999, 0), (300, 999, 0), (998, 999, 0), (999, 999, 0)] {
            assert_eq!(marked(own).unwrap_or(own), with);
            assert_eq!(marked(with), None, "it is not marked twice");
            assert_eq!(unmarked(with), Some(without));
        }
        for spared in [-1000, -999, -500, -1, 1000] {
            assert_eq!((marked(spared), unmarked(spared)), (None, None));
        }
        assert_eq!([0, 1, 998].map(unmarked), [None; 3]);
    }

    /// A job with a step, and a `/proc` beside it, whose files only hold what is written.
    struct FakeJob {
        temp: tempfile::TempDir,
        hierarchy: Hierarchy,
    }

    impl FakeJob {
        fn new(version: Version) -> Self {
            let temp = tempfile::tempdir().unwrap();
            fs::create_dir_all(temp.path().join("memory/jobs/job_7/step_0")).unwrap();
            fs::create_dir(temp.path().join("proc")).unwrap();
            let hierarchy = Hierarchy {
                version,
                mount: temp.path().join("memory"),
                root: "/".into(),
                controllers: vec!["memory".into()],
                name: None,
            };
            let fake = Self { temp, hierarchy };
            fake.lists("jobs/job_7", &[]);
            fake
        }

        fn lists(&self, place: &str, pids: &[i32]) {
            let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            fs::write(self.hierarchy.mount.join(place).join("cgroup.procs"), text).unwrap();
        }

        fn process(&self, pid: i32, value: i32, uid: u32, cgroup: &str) {
            let place = self.at(pid);
            fs::create_dir_all(place.join("task")).unwrap();
            let write = |name: &str, text: String| fs::write(place.join(name), text).unwrap();
            write("oom_score_adj", format!("{value}\n"));
            write("status", format!("Name:\tx\nUid:\t{uid}\t7\t7\t7\n"));
            write("cgroup", self.line(cgroup));
        }

        fn line(&self, cgroup: &str) -> String {
            if self.hierarchy.version == Version::V2 {
                format!("0::{cgroup}\n")
            } else {
                format!("5:memory:{cgroup}\n")
            }
        }

        fn at(&self, pid: i32) -> PathBuf {
            self.temp.path().join(format!("proc/{pid}"))
        }

        fn value(&self, pid: i32) -> i32 {
            let text = fs::read_to_string(self.at(pid).join("oom_score_adj")).unwrap();
            // A file keeps what is behind a shorter text.
            if text.starts_with('0') { 0 } else { text.trim().parse().unwrap() }
        }

        fn look(&self, marks: &mut Marks, is_wanted: bool) -> Result<bool> {
            let proc = Dir::open(self.temp.path().join("proc")).unwrap();
            let job = Dir::open(self.hierarchy.mount.join("jobs/job_7")).unwrap();
            marks.look(ProcessView { proc: &proc, hierarchy: &self.hierarchy }, &job, is_wanted)
        }
    }

    const JOB: &str = "/jobs/job_7";

    fn later(marks: &mut Marks) {
        marks.changed = marks.changed.and_then(|changed| changed.checked_sub(SETTLED));
    }

    #[test]
    fn the_jobs_processes_have_the_mark_and_nobody_else() {
        let fake = FakeJob::new(Version::V1);
        fake.process(11, 0, 7, JOB);
        fake.process(12, 300, 7, "/jobs/job_7/step_0/task_0");
        // A scheduler's daemons, one that root spares, and one that has left since the list was read.
        fake.process(13, 0, 0, JOB);
        fake.process(14, -500, 7, JOB);
        fake.process(15, 0, 7, "/jobs/job_77");
        fake.process(16, 1000, 7, JOB);
        fake.lists("jobs/job_7", &[11, 13, 14]);
        fake.lists("jobs/job_7/step_0", &[12, 15, 16, 0]);
        let values = || [11, 12, 13, 14, 15, 16].map(|pid| fake.value(pid));
        let mut marks = Marks::default();
        assert!(!fake.look(&mut marks, true).unwrap());
        assert_eq!(values(), [999, 999, 0, -500, 0, 1000]);
        later(&mut marks);
        assert!(fake.look(&mut marks, true).unwrap(), "nothing was to be done");
        fake.process(15, 999, 7, "/jobs/job_77");
        assert!(!fake.look(&mut marks, false).unwrap());
        assert_eq!(values(), [0, 0, 0, -500, 999, 1000]);
        assert!(!fake.look(&mut marks, false).unwrap(), "one may just begin with a mark");
        later(&mut marks);
        assert!(fake.look(&mut marks, false).unwrap());
    }

    #[test]
    fn a_process_that_ends_meanwhile_keeps_no_other_from_its_mark() {
        let fake = FakeJob::new(Version::V2);
        fake.lists("jobs/job_7", &[1, 2, 3, 4]);
        fake.process(4, 0, 7, JOB);
        // One is gone, and of the others only a part is left.
        fs::create_dir(fake.at(2)).unwrap();
        fake.process(3, 0, 7, JOB);
        fs::remove_file(fake.at(3).join("cgroup")).unwrap();
        let mut marks = Marks::default();
        assert!(!fake.look(&mut marks, true).unwrap());
        assert_eq!((fake.value(3), fake.value(4)), (0, 999));
        later(&mut marks);
        assert!(fake.look(&mut marks, true).unwrap());
        // What cannot be read is an error, and the others go on.
        fs::write(fake.at(3).join("oom_score_adj"), "?").unwrap();
        let failed = fake.look(&mut marks, false).unwrap_err().to_string();
        assert!(failed.contains("/3/oom_score_adj"), "{failed}");
        assert_eq!(fake.value(4), 0);
        later(&mut marks);
        fake.look(&mut marks, false).unwrap_err();
        fs::remove_dir_all(fake.at(3)).unwrap();
        assert!(fake.look(&mut marks, false).unwrap());
    }

    #[test]
    fn where_the_first_thread_has_ended_another_says_where_the_process_is() {
        let fake = FakeJob::new(Version::V1);
        fake.lists("jobs/job_7", &[5, 6]);
        for (pid, thread) in [(5, JOB), (6, "/elsewhere")] {
            fake.process(pid, 0, 7, "/");
            let place = fake.at(pid).join(format!("task/{}", pid + 100));
            fs::create_dir(&place).unwrap();
            fs::write(place.join("cgroup"), fake.line(thread)).unwrap();
        }
        fake.look(&mut Marks::default(), true).unwrap();
        assert_eq!((fake.value(5), fake.value(6)), (999, 0));
    }

    #[test]
    fn of_many_processes_each_look_changes_some_and_none_is_left_out() {
        let fake = FakeJob::new(Version::V2);
        let most = i32::try_from(MOST).unwrap();
        let all: Vec<i32> = (1..=2 * most + 1).collect();
        all.iter().for_each(|pid| fake.process(*pid, 0, 7, JOB));
        fake.lists("jobs/job_7", &all);
        let count = || all.iter().filter(|pid| fake.value(**pid) == MARK).count();
        let mut marks = Marks::default();
        let seen = [(); 3].map(|()| {
            assert!(!fake.look(&mut marks, true).unwrap());
            count()
        });
        assert_eq!(seen, [MOST, 2 * MOST, 2 * MOST + 1]);
        later(&mut marks);
        let done = [(); 3].map(|()| fake.look(&mut marks, true).unwrap());
        assert_eq!(done, [false, false, true], "not before all were looked at");
    }

    #[test]
    fn the_root_is_no_job_and_a_directory_elsewhere_has_no_processes() {
        let fake = FakeJob::new(Version::V1);
        let proc = Dir::open("/proc").unwrap();
        let seen = ProcessView { proc: &proc, hierarchy: &fake.hierarchy };
        for place in [fake.hierarchy.mount.as_path(), fake.temp.path()] {
            assert!(Marks::default().look(seen, &Dir::open(place).unwrap(), true).is_err());
        }
    }
}
