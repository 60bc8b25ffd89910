// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes as `/proc` shows them, and signals that reach only the process that was meant: a pid is used again, so before a signal is
//! sent the process behind its pidfd is checked once more (proc_pid_stat(5), pidfd_open(2)).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use procfs::FromRead;
use procfs::process::{Stat, StatFlags};

use crate::error::{Error, Result};
use crate::sorted;
use crate::sys::child;
use crate::sys::dir::Dir;

/// A process that cannot be mistaken for another: a pid is used again, its start time is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The process.
    pub pid: i32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat` (proc_pid_stat(5)).
    pub start: u64,
}

impl Owner {
    /// This process.
    pub fn this(proc: &Dir) -> Result<Self> {
        let pid = Pid::this().as_raw();
        Self::from_pid(proc, pid)?.ok_or_else(|| {
            Error::new("this process cannot be seen in")
                .at(proc.path())
                .value(pid)
                .hint("what is mounted there must be the proc file system of this pid namespace")
        })
    }

    /// A process, unless it has ended.
    pub fn from_pid(proc: &Dir, pid: i32) -> Result<Option<Self>> {
        Ok(start_of(proc, pid)?.map(|start| Self { pid, start }))
    }

    /// Whether no process has its pid, which is certain and cheap to find out. `false` is no sign that it lives: another process may
    /// have got the pid.
    pub fn is_gone(self) -> bool {
        kill(Pid::from_raw(self.pid), None) == Err(Errno::ESRCH)
    }

    /// Whether it still runs. A zombie does not: it will do nothing more.
    pub fn is_alive(self, proc: &Dir) -> Result<bool> {
        Ok(start_of(proc, self.pid)? == Some(self.start))
    }
}

/// Whether a process has ended, or is exiting in the kernel: then `cgroup.procs` takes its pid and does not move it
/// (kernel/cgroup/cgroup.c, `cgroup_migrate_add_task`), and it will not run again. `false` if that cannot be seen.
pub fn is_ending(proc: &Dir, pid: i32) -> bool {
    stat(proc, pid).is_ok_and(|stat| {
        stat.is_none_or(|stat| {
            has_ended(&stat) || StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_EXITING)
        })
    })
}

/// Whether a process's first thread has ended, or the process is gone.
pub fn is_dead(proc: &Dir, pid: i32) -> bool {
    stat(proc, pid).is_ok_and(|stat| stat.is_none_or(|stat| matches!(stat.state, 'Z' | 'X')))
}

/// The most threads of a process that are looked at.
const MOST_THREADS: usize = 1000;

/// The states of a process's threads, as in proc_pid_stat(5), but of [`MOST_THREADS`] at most. Empty: it is gone.
pub fn states(proc: &Dir, pid: i32) -> Vec<char> {
    let tasks = proc.child(&format!("{pid}/task")).and_then(|tasks| tasks.list(true)).unwrap_or_default();
    let of = |thread: &String| {
        let text = proc.read_value(&format!("{pid}/task/{thread}/stat")).ok()?;
        // The name can have parentheses, too.
        text.rsplit_once(')')?.1.trim_start().chars().next()
    };
    tasks.iter().take(MOST_THREADS).filter_map(of).collect()
}

fn start_of(proc: &Dir, pid: i32) -> Result<Option<u64>> {
    Ok(stat(proc, pid)?.filter(|stat| !has_ended(stat)).map(|stat| stat.starttime))
}

/// Whether a process is a zombie. It is not if only its first thread is, while others run.
fn has_ended(stat: &Stat) -> bool {
    (stat.state == 'Z' || stat.state == 'X') && stat.num_threads <= 1
}

/// `None`: there is no such process.
fn stat(proc: &Dir, pid: i32) -> Result<Option<Stat>> {
    // Only the parser is used: procfs's own handle of a process also looks which kernel this is.
    let text = match proc.read_value(&format!("{pid}/stat")) {
        Ok(text) => text,
        Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ESRCH)) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Not knowing is not the same as dead: the janitor must not act on it.
    let unknown = |error: &dyn std::fmt::Display| Error::new(format!("read the state of process {pid}: {error}"));
    if !is_stat(&text) {
        return Err(unknown(&"not a line of the kernel's"));
    }
    Stat::from_read(text.as_bytes()).map(Some).map_err(|error| unknown(&error))
}

/// Whether it begins with `PID (NAME) STATE`: procfs 0.18 panics at some texts that do not.
fn is_stat(text: &str) -> bool {
    let name = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let state = text.rsplit_once(')').and_then(|(_, rest)| rest.strip_prefix(' '));
    name.len() < text.len()
        && name.starts_with(" (")
        && state.is_some_and(|state| state.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Whether only its first thread has ended: then `cgroup.kill` does not end it (see `cgroup::kill`).
pub fn is_leaderless(proc: &Dir, pid: i32) -> bool {
    matches!(stat(proc, pid), Ok(Some(stat)) if stat.state == 'Z' && stat.num_threads > 1)
}

/// A process, and its relations to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The process itself.
    pub id: Owner,
    /// The process that started it, or has inherited it.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
}

impl Process {
    fn from_stat(stat: &Stat) -> Self {
        let id = Owner { pid: stat.pid, start: stat.starttime };
        Self { id, parent: stat.ppid, group: stat.pgrp, session: stat.session }
    }
}

/// Every process that has not ended, except kernel threads.
pub fn all(proc: &Dir) -> Result<Vec<Process>> {
    let pids = proc.list(true)?.into_iter().filter_map(|name| name.parse::<i32>().ok());
    let mut found = Vec::new();
    for pid in pids {
        let Some(stat) = stat(proc, pid)? else { continue };
        let is_kernels = StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD);
        if !has_ended(&stat) && !is_kernels {
            found.push(Process::from_stat(&stat));
        }
    }
    Ok(found)
}

/// One process, unless it has ended.
pub fn of(proc: &Dir, pid: i32) -> Result<Option<Process>> {
    Ok(stat(proc, pid)?.filter(|stat| !has_ended(stat)).map(|stat| Process::from_stat(&stat)))
}

/// Whether `test` holds for a process above this one: its parent, and on from there until `test` has decided or init is reached. `true`
/// if a process cannot be seen, or if the chain is longer than `LONGEST`.
pub fn any_above(proc: &Dir, process: &Process, test: impl Fn(i32) -> Option<bool>) -> bool {
    const LONGEST: usize = 256;
    let mut above = process.parent;
    for _ in 0..LONGEST {
        if above <= 1 {
            return false;
        }
        if let Some(decided) = test(above) {
            return decided;
        }
        match of(proc, above) {
            Ok(Some(found)) => above = found.parent,
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// The session that belongs to a living process and those that it has started: its own, or one that a process which has ended began for
/// it, as slurmd does for a step daemon. While the process lives, no other session has this number.
pub fn session_of(proc: &Dir, id: Owner) -> Option<i32> {
    let found = of(proc, id.pid).ok().flatten().filter(|found| found.id == id)?;
    let leads = found.session == id.pid || matches!(of(proc, found.session), Ok(None));
    (leads && found.session > 1).then_some(found.session)
}

/// How long the host has run, as start times are counted; `None` if that cannot be read.
pub fn now(proc: &Dir) -> Option<u64> {
    let uptime = proc.read_value("uptime").ok()?;
    let (seconds, hundredths) = uptime.split_whitespace().next()?.split_once('.')?;
    // Clock ticks are hundredths of a second for user space on every machine (USER_HZ).
    seconds.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths.get(..2)?.parse().ok()?)
}

/// Puts another one first each time: if there is no time for all, one that takes long does not come first for ever.
pub fn in_turn<T>(all: &mut [T], proc: &Dir) {
    if all.len() > 1 {
        let first = usize::try_from(now(proc).unwrap_or(0)).ok().and_then(|now| now.checked_rem(all.len()));
        all.rotate_left(first.unwrap_or(0));
    }
}

/// The command's name in `/proc/PID/comm`; `None` if the process is gone.
pub fn name(proc: &Dir, pid: i32) -> Option<String> {
    proc.read_value(&format!("{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// The name of the file that a process runs (`/proc/PID/exe`), which a link to that file does not change. `None`: the kernel does not say.
pub fn program(proc: &Dir, pid: i32) -> Option<String> {
    let path = readlinkat(proc, format!("{pid}/exe").as_str()).ok()?.into_string().ok()?;
    let name = path.rsplit('/').next().unwrap_or_default();
    // The kernel adds this if the file was replaced meanwhile.
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Whether a process is a container's: it has a pid of its own in a PID namespace below that of this `/proc` (`NSpid` of
/// proc_pid_status(5), from Linux 4.1 on).
pub fn is_contained(proc: &Dir, pid: i32) -> bool {
    let status = proc.read(&format!("{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_whitespace().count() > 1)
}

/// The real user id of a process in `/proc/PID/status`, which a set-user-ID program does not change. `None`: it is gone.
pub fn uid(proc: &Dir, pid: i32) -> Option<u32> {
    let status = proc.read(&format!("{pid}/status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

/// How long to wait for a process's environment.
const PATIENCE: Duration = Duration::from_millis(100);

/// A variable of the environment with which a process has begun its program, unless the process has overwritten it. `None` also if the
/// process is gone, or if this process may not look at it. An error may pass, above all a slow read: the kernel makes the reader wait
/// while the process maps memory, for ever if a file system does not answer, or if the process wants it so.
///
/// For programs of one thread: a child reads, and can be left waiting. After the deadline no process is looked at.
pub fn environment(proc: &Dir, pid: i32, name: &str, deadline: Instant) -> Result<Option<String>> {
    if Instant::now() >= deadline {
        return Err(Error::new("there was no time left to look at every process; the rest is looked at again later"));
    }
    let waits = || {
        Error::new("the environment of a process cannot be read:")
            .value(format!("pid {pid}"))
            .hint("it waits inside the kernel, usually for a file system; it is looked at again later")
    };
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|(reader, _)| !has_been_reaped(*reader, Instant::now()));
    if left.iter().any(|(_, at)| *at == pid) {
        return Err(waits());
    }
    let answer = || {
        let never = [Errno::ENOENT, Errno::ESRCH, Errno::EACCES, Errno::EPERM];
        let text = match proc.read(&format!("{pid}/environ")) {
            Err(error) if error.kernel_errno().is_some_and(|errno| !never.contains(&errno)) => return Vec::new(),
            read => read.unwrap_or_default(),
        };
        let value = text.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
        // A pipe takes this much at once.
        let value = value.filter(|value| value.len() < 4096).unwrap_or_default();
        format!("{READ}{value}").into_bytes()
    };
    let failed = |errno| Error::os("start a reader of", proc.path().join(format!("{pid}/environ")), errno);
    let (child, reader) = child::ask(answer).map_err(failed)?;
    let mut said = [0u8; 4096];
    // What can be read is read at once, so the deadline does not matter here.
    let waited = poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout(Instant::now() + PATIENCE));
    let length = if matches!(waited, Ok(1..)) {
        nix::unistd::read(&reader, &mut said).unwrap_or(0)
    } else {
        // This ends a reader that waits. One that has answered ends by itself, and a host program may have waited for it already.
        let _ = kill(child, Signal::SIGKILL);
        0
    };
    if !has_been_reaped(child, Instant::now() + PATIENCE) {
        left.push((child, pid));
    }
    let said = String::from_utf8_lossy(said.get(..length).unwrap_or_default()).into_owned();
    match said.strip_prefix(READ) {
        Some(value) => Ok(Some(value.to_owned()).filter(|value| !value.is_empty())),
        None => Err(waits()),
    }
}

/// Readers that have been killed and are not gone, each with the process that it looks at: before Linux 5.3 some wait inside the kernel
/// whatever signal they get. One for each such process is enough.
static LEFT: Mutex<Vec<(Pid, i32)>> = Mutex::new(Vec::new());

/// Whether a child has ended by the deadline, or a host program has waited for it already.
fn has_been_reaped(child: Pid, deadline: Instant) -> bool {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) if Instant::now() >= deadline => return false,
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => drop(poll(&mut [], PollTimeout::from(1u8))),
            _ => return true,
        }
    }
}

/// Stands before a reader's answer, which may be empty.
const READ: char = '=';

/// A handle of a process that is certainly the one that was meant.
#[derive(Debug)]
pub struct ProcessHandle {
    id: Owner,
    /// `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
}

impl ProcessHandle {
    /// `None`: it has ended.
    pub fn open(proc: &Dir, id: Owner) -> Result<Option<Self>> {
        if id.pid <= 1 || id.pid == Pid::this().as_raw() {
            return Err(Error::new("not a process to send a signal to:").value(id.pid));
        }
        let Some(pidfd) = pidfd_open(Pid::from_raw(id.pid))? else { return Ok(None) };
        // Checked after the handle is opened: a process that lives now is the one that the handle stands for.
        Ok(id.is_alive(proc)?.then_some(Self { id, pidfd }))
    }

    /// Sends a signal. No error if the process is gone already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send(Pid::from_raw(self.id.pid), self.pidfd.as_ref(), signal)
    }

    /// Waits until the deadline, and returns whether the process has ended.
    pub fn has_ended_by(&self, proc: &Dir, deadline: Instant) -> bool {
        loop {
            match self.id.is_alive(proc) {
                Ok(false) => return true,
                _ if Instant::now() >= deadline => return false,
                _ => {}
            }
            match &self.pidfd {
                Some(fd) => {
                    let _ = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout(deadline));
                }
                None => {
                    let _ = poll(&mut [], PollTimeout::from(1u8));
                }
            }
        }
    }
}

/// At most this many handles are open at once, to leave the host program its descriptors.
const AT_ONCE: usize = 256;
/// How long a killed process has to end in any case.
const MOMENT: Duration = Duration::from_millis(20);

/// Processes that are stopped until they are killed.
#[derive(Default)]
struct Stopped {
    all: BTreeSet<Owner>,
    /// Handles of as many as there is room for.
    handles: Vec<ProcessHandle>,
}

/// Ends processes while some may be starting others: all that are found are stopped, until no new one is found, and then they are
/// killed; this repeats until none is found. Returns how many have ended. A stopped process is killed whatever goes wrong.
pub fn end_all(proc: &Dir, mut find: impl FnMut() -> Result<Vec<Owner>>, deadline: Instant) -> Result<usize> {
    let mut ended = BTreeSet::new();
    loop {
        let mut stopped = Stopped::default();
        let mut failed = stopped.stop_all(proc, &mut find, deadline).err();
        failed = failed.or(stopped.kill_all(proc).err());
        let until = deadline.max(Instant::now() + MOMENT);
        let left = stopped.handles.iter().find(|handle| !handle.has_ended_by(proc, until)).map(|handle| handle.id.pid);
        let found_any = !stopped.all.is_empty();
        // Processes without a handle die meanwhile, and may be found once more.
        ended.extend(stopped.all);
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(pid) = left {
            return Err(Error::new("a process does not die:")
                .value(format!("pid {pid}"))
                .hint("it waits inside the kernel, usually for a file system; it is looked for again later"));
        }
        if !found_any {
            return Ok(ended.len());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                "there are more processes than can be ended in time; the rest is looked for again later",
            ));
        }
    }
}

impl Stopped {
    /// Stops all processes that are found, until no new one is: running ones could start others as fast as the rest dies.
    fn stop_all(&mut self, proc: &Dir, find: &mut impl FnMut() -> Result<Vec<Owner>>, deadline: Instant) -> Result<()> {
        loop {
            let mut is_more = false;
            for id in find()? {
                if self.all.contains(&id) {
                    continue;
                }
                let Some(handle) = ProcessHandle::open(proc, id)? else { continue };
                let done = handle.signal(Signal::SIGSTOP);
                self.all.insert(id);
                if self.handles.len() < AT_ONCE {
                    self.handles.push(handle);
                }
                done?;
                is_more = true;
            }
            if !is_more || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// A process that cannot be killed is continued; the others die all the same.
    fn kill_all(&self, proc: &Dir) -> Result<()> {
        let kill = |handle: &ProcessHandle| {
            handle.signal(Signal::SIGKILL).inspect_err(|_| drop(handle.signal(Signal::SIGCONT)))
        };
        let mut done = Ok(());
        for handle in &self.handles {
            done = done.and(kill(handle));
        }
        let held = sorted::set(self.handles.iter().map(|handle| handle.id));
        for id in self.all.iter().filter(|id| !held.contains(id)) {
            done = done.and(ProcessHandle::open(proc, *id).and_then(|handle| handle.as_ref().map_or(Ok(()), kill)));
        }
        done
    }
}

/// The time left as a timeout of poll, rounded up so that the last wait does not spin.
fn timeout(deadline: Instant) -> PollTimeout {
    let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(60));
    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO)
}

/// Sends a signal through a pidfd.
pub fn send_by_pidfd(pidfd: &OwnedFd, signal: Signal) -> nix::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    let (fd, number) = (pidfd.as_raw_fd(), signal as libc::c_int);
    // SAFETY: pidfd_send_signal takes a descriptor that is open, a signal number, no siginfo and no flags.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, no_info, 0) };
    Errno::result(sent).map(drop)
}

/// Sends a signal through a pidfd, if there is one. No error if the process is gone already.
pub fn send(pid: Pid, pidfd: Option<&OwnedFd>, signal: Signal) -> Result<()> {
    let sent = match pidfd.map(|pidfd| send_by_pidfd(pidfd, signal)) {
        // A filter may allow one of the two calls and not the other.
        None | Some(Err(Errno::ENOSYS)) => kill(pid, signal),
        Some(sent) => sent,
    };
    match sent {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(Error::new("send a signal to").value(format!("pid {pid}")).errno(errno)),
    }
}

/// A handle of a process. `None`: the process is gone. `Some(None)`: there are no pidfds here, since the kernel is too old or a filter
/// forbids them.
#[allow(clippy::option_option)]
pub fn pidfd_open(pid: Pid) -> Result<Option<Option<OwnedFd>>> {
    // SAFETY: pidfd_open takes a pid and no flags, and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(Some(Some(unsafe { OwnedFd::from_raw_fd(fd) }))),
        _ => match Errno::last() {
            Errno::ESRCH => Ok(None),
            Errno::ENOSYS | Errno::EPERM | Errno::EINVAL => Ok(Some(None)),
            errno => Err(Error::new(format!("open a handle of process {pid}")).errno(errno)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_with_a_number_of_its_own_is_a_containers() {
        let temp = tempfile::tempdir().unwrap();
        for (pid, line) in [("7", "NSpid:\t7\n"), ("8", "NSpid:\t8\t1\n"), ("9", "")] {
            std::fs::create_dir(temp.path().join(pid)).unwrap();
            std::fs::write(temp.path().join(pid).join("status"), format!("Name:\tx\n{line}Uid:\t0\t0\t0\t0\n"))
                .unwrap();
        }
        let proc = Dir::open(temp.path()).unwrap();
        assert_eq!([7, 8, 9, 10].map(|pid| is_contained(&proc, pid)), [false, true, false, false]);
    }

    #[test]
    fn a_proc_without_this_process_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = Owner::this(&Dir::open(temp.path()).unwrap()).unwrap_err().to_string();
        assert!(error.contains(&temp.path().display().to_string()) && error.contains("pid namespace"), "{error}");
    }

    #[test]
    fn a_pid_used_again_is_not_the_owner() {
        let proc = Dir::open("/proc").unwrap();
        let this = Owner::this(&proc).unwrap();
        assert!(this.is_alive(&proc).unwrap());
        assert!(!Owner { start: this.start + 1, ..this }.is_alive(&proc).unwrap());
        assert!(!Owner { pid: i32::MAX, start: 1 }.is_alive(&proc).unwrap());
    }

    #[test]
    fn a_signal_reaches_the_process_that_was_meant_and_no_other() {
        let proc = Dir::open("/proc").unwrap();
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let id = Owner::from_pid(&proc, i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        // The pid is right, and the process is another.
        assert!(ProcessHandle::open(&proc, Owner { start: id.start + 1, ..id }).unwrap().is_none());
        let handle = ProcessHandle::open(&proc, id).unwrap().unwrap();
        assert!(!handle.has_ended_by(&proc, Instant::now()));
        handle.signal(Signal::SIGKILL).unwrap();
        assert!(handle.has_ended_by(&proc, Instant::now() + Duration::from_secs(300)), "not even a zombie");
        assert!(ProcessHandle::open(&proc, id).unwrap().is_none(), "a zombie has ended");
        child.wait().unwrap();
        handle.signal(Signal::SIGKILL).unwrap();
        for nobody in [0, 1, -1, Pid::this().as_raw()] {
            assert!(ProcessHandle::open(&proc, Owner { pid: nobody, start: 0 }).is_err(), "{nobody}");
        }
    }

    #[test]
    fn a_line_that_is_not_the_kernels_is_no_process() {
        let temp = tempfile::tempdir().unwrap();
        let proc = Dir::open(temp.path()).unwrap();
        std::fs::create_dir(temp.path().join("7")).unwrap();
        for text in ["", ") Z 1 (", " ()", "7 (x)", "7 (x) ", "x (x) S 1", "7 (x) 1"] {
            std::fs::write(temp.path().join("7/stat"), text).unwrap();
            assert!(of(&proc, 7).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_a_process_is_to_others() {
        let proc = Dir::open("/proc").unwrap();
        let this = of(&proc, Pid::this().as_raw()).unwrap().unwrap();
        assert_eq!(this.parent, Pid::parent().as_raw());
        assert_eq!(this.group, nix::unistd::getpgrp().as_raw());
        assert_eq!(uid(&proc, this.id.pid), Some(nix::unistd::getuid().as_raw()));
        assert!((this.id.start..this.id.start + 360_000).contains(&now(&proc).unwrap()));
        let all = all(&proc).unwrap();
        assert!(all.contains(&this));
        assert!(!all.iter().any(|process| process.id.pid == 2 && name(&proc, 2).as_deref() == Some("kthreadd")));
    }
}
