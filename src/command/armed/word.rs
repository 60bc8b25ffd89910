// SPDX-License-Identifier: GPL-2.0-or-later
//! The process that speaks to a step's user and signals the step's processes.
//!
//! It is a child of `jobfence hold`, which does not wait for it. It takes the user's rights first, and has no others then: so whatever the
//! user has made of stderr is opened and written as the user could, and a signal reaches no process of another user. Opening may hang on a
//! dead file system, so a second child writes, and the first sends the signal after a moment at the latest. An alarm ends both,
//! and `hold` if the user stops them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::cgroup::walk;
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{self, Owner, Process, pidfd_open, send};
use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, SysconfVar, Uid, getppid, setgroups, setresgid, setresuid, sysconf};

/// After so many seconds each of the processes is ended by its alarm.
pub const SECONDS: u32 = 10;

/// How long the signal waits for the sentence.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most processes whose stderr is tried.
const MOST_TRIED: usize = 3;

/// The most handles of processes at once.
const MOST_HANDLES: usize = 512;

/// What is to be done.
#[derive(Debug)]
pub struct Announcement {
    /// The user, never root.
    pub uid: u32,
    /// The step's directory, with all below it, and its number: another step may get the name.
    pub directory: PathBuf,
    pub inode: u64,
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
    let hold = Pid::this();
    child::start(|| say(word, hold))
}

fn say(word: &Announcement, hold: Pid) -> i32 {
    nix::unistd::alarm::set(SECONDS);
    leave_holds();
    let Ok(proc) = Dir::open("/proc") else { return NO_PROCESS };
    let found = processes(&proc, word);
    let first = firsts(&found);
    let Some(one) = first.first() else { return NO_PROCESS };
    if !become_user(&proc, one.id.pid, word.uid) || !is_bound_to(hold) {
        return NO_RIGHTS;
    }
    let this = Pid::this();
    let teller = child::start(|| {
        nix::unistd::alarm::set(SECONDS);
        let tried = first.iter().take(MOST_TRIED);
        i32::from(!is_bound_to(this) || !tried.into_iter().any(|one| write(&proc, one.id.pid, &word.sentence)))
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

/// What `hold` has, and a process with a user's rights must not have: its descriptors, and that the kernel spares it when memory is short.
fn leave_holds() {
    child::close_descriptors();
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
}

/// The user may stop this process, but not trace it, and it ends with its parent. To be called with the user's rights, since the kernel
/// forgets the second at a change of them (prctl(2)). `false`: the parent has ended already.
fn is_bound_to(parent: Pid) -> bool {
    let is_bound = prctl::set_dumpable(false).is_ok() && prctl::set_pdeathsig(Signal::SIGKILL).is_ok();
    is_bound && getppid() == parent
}

/// The user's processes in the step.
fn processes(proc: &Dir, word: &Announcement) -> Vec<Process> {
    let is_users = |pid: &i32| process::uid(proc, *pid) == Some(word.uid);
    pids(word).into_iter().filter(is_users).filter_map(|pid| process::of(proc, pid).ok().flatten()).collect()
}

/// All processes in the step. What was found counts, also if not all was seen.
fn pids(word: &Announcement) -> BTreeSet<i32> {
    let soon = Instant::now() + Duration::from_secs(2);
    let mut pids = BTreeSet::new();
    let Ok(dir) = Dir::open(&word.directory) else { return pids };
    if dir.stat().is_ok_and(|stat| stat.st_ino == word.inode) {
        let _ = walk::visit(&dir, soon, &mut |dir| {
            pids.extend(dir.read("cgroup.procs")?.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            Ok(true)
        });
    }
    pids
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
    let meant = meant(&processes(proc, word), word.to_first_alone);
    meant.chunks(handles_at_once()).map(|some| signal_some(proc, word, signal, some)).sum()
}

/// Each process costs a descriptor. Most are left for the walk through the step's directories.
fn handles_at_once() -> usize {
    let most = sysconf(SysconfVar::OPEN_MAX).ok().flatten().and_then(|most| usize::try_from(most).ok());
    most.map_or(MOST_HANDLES, |most| (most / 4).clamp(1, MOST_HANDLES))
}

fn signal_some(proc: &Dir, word: &Announcement, signal: Signal, some: &[Process]) -> usize {
    // The handles first: what is then found of a process is certainly of the one that gets the signal.
    let handles: Vec<_> = some
        .iter()
        .filter_map(|process| Some((process.id, pidfd_open(Pid::from_raw(process.id.pid)).ok().flatten()?)))
        .collect();
    let members = pids(word);
    let is_still = |id: Owner| {
        members.contains(&id.pid) && process::uid(proc, id.pid) == Some(word.uid) && id.is_alive(proc).unwrap_or(false)
    };
    let sent = |(id, handle): (Owner, Option<OwnedFd>)| {
        is_still(id) && send(Pid::from_raw(id.pid), handle.as_ref(), signal).is_ok()
    };
    handles.into_iter().map(sent).filter(|is_sent| *is_sent).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    fn process(pid: i32, parent: i32, group: i32) -> Process {
        Process { id: Owner { pid, start: u64::from(pid.unsigned_abs()) }, parent, group, session: group }
    }

    fn numbers(all: &[Process]) -> Vec<i32> {
        all.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn the_groups_of_tasks_get_the_signal_or_the_batch_shell_alone() {
        // Two tasks, each with a child; the child of one has a group of its own.
        let all = [process(30, 20, 20), process(20, 1, 20), process(21, 1, 21), process(31, 21, 31)];
        assert_eq!(numbers(&firsts(&all)), [20, 21]);
        assert_eq!(numbers(&meant(&all, false)), [30, 20, 21]);
        assert_eq!(numbers(&meant(&all, true)), [20]);
        assert!(meant(&[], false).is_empty() && meant(&[], true).is_empty());
    }

    #[test]
    fn a_step_with_more_processes_than_descriptors_gets_its_signal() {
        let temp = tempfile::tempdir().unwrap();
        let sleep = || Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
        let mut all: Vec<_> = (0..40).map(|_| sleep()).collect();
        let procs: String = all.iter().map(|child| format!("{}\n", child.id())).collect();
        std::fs::write(temp.path().join("cgroup.procs"), procs).unwrap();
        let word = Announcement {
            uid: nix::unistd::getuid().as_raw(),
            directory: temp.path().to_path_buf(),
            inode: std::fs::metadata(temp.path()).unwrap().ino(),
            sentence: String::new(),
            signal: None,
            to_first_alone: false,
        };
        // A directory of the same name, with another number.
        let other =
            Announcement { inode: word.inode + 1, directory: word.directory.clone(), sentence: String::new(), ..word };
        assert!(pids(&other).is_empty());
        let child = child::start(|| {
            child::close_descriptors();
            let most = libc::rlimit { rlim_cur: 32, rlim_max: 32 };
            // SAFETY: the call reads the two numbers.
            let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most) } == 0;
            let Ok(proc) = Dir::open("/proc") else { return 1 };
            i32::from(!limited || signal_all(&proc, &word, Signal::SIGTERM) != 40)
        });
        let done = waitpid(child.unwrap(), None).unwrap();
        for child in &mut all {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(matches!(done, WaitStatus::Exited(_, 0)), "{done:?}");
    }
}
