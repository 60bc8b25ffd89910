// SPDX-License-Identifier: GPL-2.0-or-later
//! Many processes that only wait to be ended.

use std::os::fd::OwnedFd;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pause, pipe, read, write};

use crate::Failure;

/// While it is kept, nobody has to wait for a child that has ended: they and their children are gone at once.
pub struct NobodyWaits(SigHandler);

impl NobodyWaits {
    pub fn begin() -> Result<Self, Failure> {
        nix::sys::prctl::set_child_subreaper(true)?;
        // SAFETY: no handler is installed; the kernel reaps.
        Ok(Self(unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?))
    }
}

impl Drop for NobodyWaits {
    fn drop(&mut self) {
        // SAFETY: what was there before: the default, since this program installs no handler.
        let _ = unsafe { signal(Signal::SIGCHLD, self.0) };
    }
}

/// A process that has not begun yet.
pub struct Leader {
    pub pid: Pid,
    go: OwnedFd,
    ready: OwnedFd,
}

impl Leader {
    /// Once it may, it has so many processes, itself among them, each of which waits for ever. With `None` it makes processes
    /// until it cannot, and goes on trying: a fork bomb.
    pub fn start(count: Option<usize>) -> Result<Self, Failure> {
        let (word, go) = pipe()?;
        let (ready, says) = pipe()?;
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, go, ready }),
            ForkResult::Child => {
                drop((go, ready));
                let _ = read(&word, &mut [0]);
                lead(count, &says)
            }
        }
    }

    /// Returns when all are there.
    pub fn begin(self) -> Result<Pid, Failure> {
        write(&self.go, b"g")?;
        if read(&self.ready, &mut [0])? == 0 {
            return Err("the processes could not be started".into());
        }
        Ok(self.pid)
    }
}

fn lead(count: Option<usize>, says: &OwnedFd) -> ! {
    let mut made = 1;
    while count.is_none_or(|count| made < count) {
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { .. }) => made += 1,
            Ok(ForkResult::Child) => wait_for_ever(),
            Err(_) if count.is_none() => {
                let _ = write(says, b"r");
            }
            // SAFETY: ends the child without running what belongs to its parent.
            Err(_) => unsafe { libc::_exit(1) },
        }
    }
    let _ = write(says, b"r");
    wait_for_ever()
}

fn wait_for_ever() -> ! {
    loop {
        pause();
    }
}

/// Processes beside a step. They are ended when this is dropped.
pub struct Others(Vec<Pid>);

impl Others {
    pub fn start(count: usize) -> Result<Self, Failure> {
        let mut others = Self(Vec::new());
        for _ in 0..count {
            // SAFETY: this process has one thread, so the child may do anything.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => others.0.push(child),
                ForkResult::Child => wait_for_ever(),
            }
        }
        Ok(others)
    }

    pub fn pids(&self) -> &[Pid] {
        &self.0
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = nix::sys::signal::kill(*pid, Signal::SIGKILL);
        }
        for pid in &self.0 {
            let _ = waitpid(*pid, None);
        }
    }
}
