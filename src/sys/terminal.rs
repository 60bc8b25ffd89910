// SPDX-License-Identifier: GPL-2.0-or-later
//! The terminal of this process's session.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
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
        terminal.is_ours().then_some(terminal)
    }

    fn is_ours(&self) -> bool {
        // SAFETY: an open descriptor.
        unsafe { libc::tcgetpgrp(self.file.as_raw_fd()) == self.group.as_raw() }
    }

    /// Takes it back for the group. Without it, who has started this process could not read from the terminal.
    pub fn take_back(&self) {
        let (mut before, mut background) = (SigSet::empty(), SigSet::empty());
        // The kernel stops a process in the background that does this, unless the signal is blocked.
        background.add(Signal::SIGTTOU);
        if !self.is_ours() && pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&background), Some(&mut before)).is_ok() {
            // SAFETY: an open descriptor, and a number.
            unsafe { libc::tcsetpgrp(self.file.as_raw_fd(), self.group.as_raw()) };
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        }
    }
}
