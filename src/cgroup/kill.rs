// SPDX-License-Identifier: GPL-2.0-or-later
//! Ending every process of a step, and waiting for that without sleeping.
//!
//! cgroup2 has `cgroup.kill` since Linux 5.14, which cannot be outrun by a fork. Without it: freeze, signal each process by a
//! pidfd whose membership was seen after the pidfd was opened (so that a pid used again cannot be hit), thaw, wait for the
//! pidfds, and begin again until nobody is left. A frozen v1 task dies only after the thaw, so thawing is on every way out.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill as signal};
use nix::unistd::{Pid, Whence, lseek, read};
use procfs::ProcError;
use procfs::process::Process;

use super::dir::Dir;
use crate::error::{Error, Result};

/// The directories of one step in which its processes can be seen and stopped.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    /// The step's directory in cgroup2, where that is mounted.
    pub unified: Option<&'a Dir>,
    /// The step's directory in v1's freezer, where that is used.
    pub freezer: Option<&'a Dir>,
    /// Any directory of the step; all have the same members.
    pub any: &'a Dir,
}

/// How long the processes that were killed have to go before they are killed again, with those that have come since.
const AGAIN: Duration = Duration::from_millis(500);

/// Kills everything below and waits until it is gone. An error when something still lives at the deadline.
pub fn kill_all(members: Members<'_>, deadline: Instant) -> Result<()> {
    while let Some(dir) = members.unified {
        match dir.write("cgroup.kill", "1") {
            Ok(()) => {}
            Err(error) if is_gone(&error) && !dir.has("cgroup.procs") => return Ok(()),
            // A kernel before 5.14, or a threaded cgroup: the long way.
            Err(_) => break,
        }
        // Who is moved in while others still die (`jobfence adopt`) has outlived the signal: once more.
        match wait_until_empty(dir, deadline.min(Instant::now() + AGAIN)) {
            Err(_) if Instant::now() < deadline => {}
            ended => return ended,
        }
    }
    loop {
        let frozen = Frozen::try_from(members);
        let victims = open_members(members.any)?;
        let mut killed = Ok(());
        for victim in &victims {
            killed = killed.and(victim.kill());
        }
        drop(frozen);
        if victims.is_empty() {
            return Ok(());
        }
        // Who was not told to end is not waited for.
        killed.map_err(|error| error.at(members.any.path()))?;
        for victim in &victims {
            if !victim.wait(deadline) {
                return Err(Error::new("a process does not die:")
                    .at(members.any.path())
                    .value(format!("pid {}", victim.pid))
                    .hint("it waits inside the kernel, usually for a file system; it is removed at a later launch"));
            }
        }
    }
}

/// Waits until nobody is left below a cgroup2 directory. A directory that is gone is empty.
pub fn wait_until_empty(dir: &Dir, deadline: Instant) -> Result<()> {
    let events = match dir.open_file("cgroup.events", OFlag::O_RDONLY) {
        Ok(fd) => fd,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut text = [0u8; 256];
    loop {
        let _ = lseek(&events, 0, Whence::SeekSet);
        match read(&events, &mut text) {
            Ok(n) if !String::from_utf8_lossy(text.get(..n).unwrap_or_default()).contains("populated 1") => {
                return Ok(());
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ENODEV) => return Ok(()),
            Err(errno) => return Err(Error::os("read", dir.path().join("cgroup.events"), errno)),
        }
        let Some(timeout) = remaining(deadline) else {
            let pids = dir.read("cgroup.procs").unwrap_or_default();
            return Err(Error::new("processes do not die:")
                .at(dir.path())
                .value(format!("pids {}", pids.split_whitespace().collect::<Vec<_>>().join(" ")))
                .hint("they wait inside the kernel, usually for a file system; they are removed at a later launch"));
        };
        let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout);
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ENODEV))
}

/// The time left as a timeout of poll; `None` when there is none.
fn remaining(deadline: Instant) -> Option<PollTimeout> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    // Rounded up, so that the last wait does not spin.
    PollTimeout::try_from(left.min(Duration::from_secs(60)) + Duration::from_millis(1)).ok()
}

/// A frozen step; thawed when this is dropped, on every path.
struct Frozen<'a>(Members<'a>);

impl<'a> Frozen<'a> {
    /// Best effort: without freezing, a fork may outrun one round, and the next round finds the child.
    fn try_from(members: Members<'a>) -> Self {
        if let Some(dir) = members.freezer {
            let _ = dir.write("freezer.state", "FROZEN");
        } else if let Some(dir) = members.unified {
            let _ = dir.write("cgroup.freeze", "1");
        }
        Self(members)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Some(dir) = self.0.freezer {
            let _ = dir.write("freezer.state", "THAWED");
        } else if let Some(dir) = self.0.unified {
            let _ = dir.write("cgroup.freeze", "0");
        }
    }
}

/// A process that was a member after its pidfd was opened.
struct Victim {
    pid: Pid,
    /// `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
}

impl Victim {
    /// An error where the kernel says that we may not: somebody has taken root's rights from this thread.
    fn kill(&self) -> Result<()> {
        let killed = match &self.pidfd {
            Some(fd) => {
                let (fd, info) = (fd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
                // SAFETY: pidfd_send_signal takes a descriptor that we own, a signal number, no siginfo and no flags.
                let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, info, 0) };
                Errno::result(sent).map(drop)
            }
            None => signal(self.pid, Signal::SIGKILL),
        };
        match killed {
            Err(Errno::EPERM) => Err(Error::new(format!("kill process {} in", self.pid)).errno(Errno::EPERM)),
            // It ended meanwhile.
            _ => Ok(()),
        }
    }

    /// Whether the process has ended by the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        loop {
            let Some(timeout) = remaining(deadline) else { return false };
            match &self.pidfd {
                Some(fd) => match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
                    Ok(0) | Err(_) => {}
                    Ok(_) => return true,
                },
                // Without pidfds there is nothing to wait on but time itself.
                None => {
                    // A zombie can still be signalled, but it has left the cgroup.
                    let state =
                        Process::new(self.pid.as_raw()).and_then(|process| process.stat()).map(|stat| stat.state);
                    if matches!(state, Err(ProcError::NotFound(_)) | Ok('Z' | 'X')) {
                        return true;
                    }
                    let _ = poll(&mut [], PollTimeout::from(1u8));
                }
            }
        }
    }
}

/// Processes of the directory and of those below it; so many at once as to leave the host program its descriptors.
fn open_members(dir: &Dir) -> Result<Vec<Victim>> {
    const AT_ONCE: usize = 256;
    let mut victims = Vec::new();
    for name in dir.list(true).unwrap_or_default() {
        if let Ok(child) = dir.child(&name) {
            victims.extend(open_members(&child)?);
        }
    }
    let pids = pids(dir)?;
    for &pid in pids.iter().take(AT_ONCE.saturating_sub(victims.len())) {
        victims.extend(pidfd_open(pid)?.map(|pidfd| Victim { pid, pidfd }));
    }
    let still = self::pids(dir)?;
    victims.retain(|victim| !pids.contains(&victim.pid) || still.contains(&victim.pid));
    Ok(victims)
}

/// The pids in `cgroup.procs`, less those that nobody may signal from here: ourselves, init, and 0, which stands for a
/// process of a pid namespace that we do not see.
fn pids(dir: &Dir) -> Result<BTreeSet<Pid>> {
    let text = match dir.read("cgroup.procs") {
        Ok(text) => text,
        Err(error) if is_gone(&error) => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let pids = text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    Ok(pids.filter(|&pid| pid > 1).map(Pid::from_raw).filter(|&pid| pid != Pid::this()).collect())
}

/// A handle of a process. `None`: the process is gone. `Some(None)`: there are no pidfds here, by the kernel's age or a filter.
#[allow(clippy::option_option)]
pub(crate) fn pidfd_open(pid: Pid) -> Result<Option<Option<OwnedFd>>> {
    // SAFETY: pidfd_open takes a pid and no flags, and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        Ok(fd) if fd >= 0 => Ok(Some(Some(unsafe { OwnedFd::from_raw_fd(fd) }))),
        _ => match Errno::last() {
            Errno::ESRCH => Ok(None),
            Errno::ENOSYS | Errno::EPERM | Errno::EINVAL => Ok(Some(None)),
            errno => Err(Error::new(format!("open a handle of process {pid}")).errno(errno)),
        },
    }
}
