// SPDX-License-Identifier: GPL-2.0-or-later
//! The process that speaks to a step's user and signals the step's processes.
//!
//! It is a child of `jobfence hold`, which does not wait for it. It takes the user's rights first, and has no others then: so whatever the
//! user has made of stderr is opened and written as the user could, and a signal reaches no process of another user. Opening may hang on a
//! dead file system, so a second child writes, and the first sends the signal after a moment at the latest. An alarm ends both.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::cgroup::walk;
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{self, Process, pidfd_open, send};
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid};

/// After so many seconds each of the processes is ended by its alarm.
const SECONDS: u32 = 10;

/// How long the signal waits for the sentence.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most processes whose stderr is tried.
const MOST_TRIED: usize = 3;

/// What is to be done.
#[derive(Debug)]
pub struct Announcement {
    /// The user, never root.
    pub uid: u32,
    /// The step's directory, with all below it.
    pub directory: PathBuf,
    pub sentence: String,
    pub signal: Option<Signal>,
    /// Whether only the first process of the step gets the signal, and not its process group.
    pub to_first_alone: bool,
}

/// What the process returns, beside 0.
const NO_PROCESS: i32 = 3;
const NO_RIGHTS: i32 = 4;
const NOT_HEARD: i32 = 5;
const NOT_SENT: i32 = 6;

/// What its status means, for the log. `None`: all was done.
pub fn failure(status: WaitStatus) -> Option<&'static str> {
    match status {
        WaitStatus::Exited(_, 0) => None,
        WaitStatus::Exited(_, NO_PROCESS) => Some("the step has no process of its user's"),
        WaitStatus::Exited(_, NO_RIGHTS) => Some("the rights of the user cannot be taken"),
        WaitStatus::Exited(_, NOT_HEARD) => Some("the sentence cannot be written to the step's stderr"),
        WaitStatus::Exited(_, NOT_SENT) => Some("the signal cannot be sent"),
        _ => Some("the process that does it did not come to its end"),
    }
}

/// Starts the process. Only in a program of one thread.
pub fn start(word: &Announcement) -> nix::Result<Pid> {
    child::start(|| say(word))
}

fn say(word: &Announcement) -> i32 {
    nix::unistd::alarm::set(SECONDS);
    let Ok(proc) = Dir::open("/proc") else { return NO_PROCESS };
    let found = processes(&proc, word);
    let first = firsts(&found);
    let Some(one) = first.first() else { return NO_PROCESS };
    if !become_user(&proc, one.id.pid, word.uid) {
        return NO_RIGHTS;
    }
    let teller = child::start(|| {
        nix::unistd::alarm::set(SECONDS);
        let tried = first.iter().take(MOST_TRIED);
        i32::from(!tried.into_iter().any(|process| write(&proc, process.id.pid, &word.sentence)))
    });
    // `None`: it has not ended.
    let is_heard = |flag| match teller.and_then(|teller| waitpid(teller, flag)) {
        Ok(WaitStatus::StillAlive) => None,
        ended => Some(matches!(ended, Ok(WaitStatus::Exited(_, 0)))),
    };
    let mut heard = None;
    if let Some(signal) = word.signal {
        let until = Instant::now() + PATIENCE;
        while heard.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            heard = is_heard(Some(WaitPidFlag::WNOHANG));
        }
        if signal_all(&proc, word, signal) == 0 {
            return NOT_SENT;
        }
    }
    if heard.or_else(|| is_heard(None)) == Some(true) { 0 } else { NOT_HEARD }
}

/// The user's processes in the step.
fn processes(proc: &Dir, word: &Announcement) -> Vec<Process> {
    let soon = Instant::now() + Duration::from_secs(2);
    let mut pids = Vec::new();
    // What was found counts, also if not all was seen.
    let _ = Dir::open(&word.directory).and_then(|dir| {
        walk::visit(&dir, soon, &mut |dir| {
            pids.extend(dir.read("cgroup.procs")?.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            Ok(true)
        })
    });
    let is_users = |pid: &i32| process::uid(proc, *pid) == Some(word.uid);
    pids.into_iter().filter(is_users).filter_map(|pid| process::of(proc, pid).ok().flatten()).collect()
}

/// Those that no other process of the step has started: the tasks, or the batch shell. The oldest comes first.
fn firsts(all: &[Process]) -> Vec<Process> {
    let pids: BTreeSet<i32> = all.iter().map(|process| process.id.pid).collect();
    let mut first: Vec<_> = all.iter().copied().filter(|process| !pids.contains(&process.parent)).collect();
    first.sort_by_key(|process| (process.id.start, process.id.pid));
    first
}

/// Those that get the signal: the process groups of the tasks, as Slurm signals them (killpg in slurmstepd), or the batch shell.
fn meant(all: &[Process], to_first_alone: bool) -> Vec<Process> {
    let first = firsts(all);
    if to_first_alone {
        return first.first().copied().into_iter().collect();
    }
    let groups: BTreeSet<i32> = first.iter().map(|process| process.group).collect();
    all.iter().copied().filter(|process| groups.contains(&process.group)).collect()
}

/// Takes the user's rights, and those of the groups that this process of the user has.
fn become_user(proc: &Dir, pid: i32, uid: u32) -> bool {
    let status = proc.read(&format!("{pid}/status")).unwrap_or_default();
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let (uids, gids, groups) = (numbers("Uid:"), numbers("Gid:"), numbers("Groups:"));
    let (Some(true), Some(gid)) = (uids.first().map(|found| *found == uid && uid != 0), gids.first()) else {
        return false;
    };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(*gid));
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    // The last of these takes all capabilities: capabilities(7), "Effect of user ID changes on capabilities".
    setgroups(&groups).is_ok() && setresgid(gid, gid, gid).is_ok() && setresuid(uid, uid, uid).is_ok()
}

/// Writes the line where the process writes its errors, at the end of a file. A pipe that is full takes nothing.
fn write(proc: &Dir, pid: i32, sentence: &str) -> bool {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let line = format!("{sentence}\n");
    let path = proc.path().join(format!("{pid}/fd/2"));
    let opened = nix::fcntl::open(&path, flags, nix::sys::stat::Mode::empty());
    opened.is_ok_and(|fd| nix::unistd::write(&fd, line.as_bytes()) == Ok(line.len()))
}

/// Returns how many processes have got the signal.
fn signal_all(proc: &Dir, word: &Announcement, signal: Signal) -> usize {
    let mut handles = Vec::new();
    for process in meant(&processes(proc, word), word.to_first_alone) {
        // The handle first: what is then found of the process is certainly of the one that gets the signal.
        if let Ok(Some(handle)) = pidfd_open(Pid::from_raw(process.id.pid)) {
            handles.push((process.id, handle));
        }
    }
    let still: BTreeSet<_> = processes(proc, word).iter().map(|process| process.id).collect();
    let sent = |(id, handle): (process::Owner, Option<std::os::fd::OwnedFd>)| {
        still.contains(&id) && send(Pid::from_raw(id.pid), handle.as_ref(), signal).is_ok()
    };
    handles.into_iter().map(sent).filter(|is_sent| *is_sent).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobfence::sys::process::Owner;

    fn process(pid: i32, parent: i32, group: i32) -> Process {
        Process { id: Owner { pid, start: u64::from(pid.unsigned_abs()) }, parent, group, session: group }
    }

    fn pids(all: &[Process]) -> Vec<i32> {
        all.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn the_groups_of_tasks_get_the_signal_or_the_batch_shell_alone() {
        // Two tasks, each with a child; the child of one has a group of its own.
        let all = [process(30, 20, 20), process(20, 1, 20), process(21, 1, 21), process(31, 21, 31)];
        assert_eq!(pids(&firsts(&all)), [20, 21]);
        assert_eq!(pids(&meant(&all, false)), [30, 20, 21]);
        assert_eq!(pids(&meant(&all, true)), [20]);
        assert!(meant(&[], false).is_empty() && meant(&[], true).is_empty());
    }
}
