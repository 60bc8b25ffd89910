// SPDX-License-Identifier: GPL-2.0-or-later
//! The process of a session that is about to be moved. All that is read about it or done to it concerns the same process, even if its pid
//! is reused meanwhile.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::record::Owner;
use crate::sys::dir::Dir;
use crate::sys::process;

/// A process, safe against the reuse of its pid.
pub(crate) struct Adoptee {
    /// Its pid and start time.
    pub(crate) this: Owner,
    /// `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    /// Its real user.
    pub(crate) uid: u32,
    /// Whether it has root's rights: sshd, atd and su differ in their real users.
    is_privileged: bool,
}

impl Adoptee {
    pub(crate) fn open(proc: &Dir, pid: i32) -> Result<Self> {
        // Pid 1 is the parent of a process whose caller has died.
        if pid <= 1 {
            return Err(Error::new("not a process that could be adopted:").value(format!("pid {pid}")));
        }
        let gone = || Error::new(format!("there is no process {pid}"));
        let status = |key, place| match proc.read(&format!("{pid}/status")) {
            Ok(status) => number_after(&status, key, place),
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ESRCH)) => Err(gone()),
            Err(error) => Err(error),
        };
        let leader = status("Tgid:", 0)?;
        if i64::from(leader) != i64::from(pid) {
            return Err(
                Error::new(format!("{pid} is a thread of process {leader}")).hint("give the process's own number")
            );
        }
        // The handle first, so that all that is read concerns the handle's process.
        let pidfd = process::pidfd_open(Pid::from_raw(pid))?.ok_or_else(gone)?;
        let this = Owner::from_pid(proc, pid)?.ok_or_else(gone)?;
        let (uid, effective) = (status("Uid:", 0)?, status("Uid:", 1)?);
        let process = Self { this, pidfd, uid, is_privileged: effective == 0 };
        if process.is_alive(proc) { Ok(process) } else { Err(gone()) }
    }

    /// Whether it runs, and its pid is its own.
    pub(crate) fn is_alive(&self, proc: &Dir) -> bool {
        let ended = self.pidfd.as_ref().is_some_and(|pidfd| {
            poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|n| n > 0)
        });
        !ended && self.this.is_alive(proc).unwrap_or(false)
    }

    /// The user of the process. A root process counts as root's, unless it is PAM's caller (sshd), which becomes the user's.
    pub(crate) fn user(&self, becomes: Option<u32>, caller: Option<i32>) -> Result<u32> {
        let pid = self.this.pid;
        match becomes {
            None if self.uid == 0 => Err(Error::new(format!("process {pid} is root's, and belongs to no job"))),
            None => Ok(self.uid),
            Some(user) if self.uid == user || (self.is_privileged && caller == Some(pid)) => Ok(user),
            Some(user) => {
                Err(Error::new(format!("process {pid} belongs to uid {}, and PAM's session to uid {user}", self.uid)))
            }
        }
    }
}

fn number_after(status: &str, key: &str, place: usize) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().nth(place)?.parse().ok());
    number.ok_or_else(|| Error::new(format!("a process's status has no number after {key}")))
}
