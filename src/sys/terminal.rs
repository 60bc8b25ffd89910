// SPDX-License-Identifier: GPL-2.0-or-later
//! The terminal of this process's session.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, pthread_sigmask};
use nix::unistd::{Pid, getpgrp};

/// The controlling terminal, while this process's group is in its foreground.
///
/// In a PID namespace of its own, a command has no number for this group. So a shell that gives the terminal to a group of its own cannot
/// give it back.
#[derive(Debug)]
pub struct Terminal {
    file: File,
    group: Pid,
}

impl Terminal {
    /// `None`: there is none, or others are in its foreground.
    pub fn from_own() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let terminal = Self { file, group: getpgrp() };
        (terminal.foreground() == terminal.group).then_some(terminal)
    }

    fn foreground(&self) -> Pid {
        // SAFETY: an open descriptor.
        Pid::from_raw(unsafe { libc::tcgetpgrp(self.file.as_raw_fd()) })
    }

    /// Takes it back for the group, if the group in its foreground has no member any more. Without it, who has started this process could
    /// not read from the terminal. If others have the foreground, such as a shell that goes on, they keep it.
    pub fn take_back(&self) {
        let (mut before, mut background) = (SigSet::empty(), SigSet::empty());
        // The kernel stops a process in the background that does this, unless the signal is blocked.
        background.add(Signal::SIGTTOU);
        let is_lost = killpg(self.foreground(), None) == Err(Errno::ESRCH);
        if is_lost && pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&background), Some(&mut before)).is_ok() {
            // SAFETY: an open descriptor, and a number.
            unsafe { libc::tcsetpgrp(self.file.as_raw_fd(), self.group.as_raw()) };
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        }
    }
}
