// SPDX-License-Identifier: GPL-2.0-or-later
//! The process that lowers a job's limit. The kernel takes back what is above a new limit while the writer waits, and on v1 it may wait for
//! a file system that hangs. So a child of `jobfence hold` writes. Until that has ended, what the job has is what its record says.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::sys::child;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};

use super::directory::{JobDirectory, Lower};

/// After so many seconds an alarm ends it. The kernel's loops end at a signal; only a wait for a file system does not.
const SECONDS: u32 = 10;

/// So much later it is said that it hangs.
const LATE: Duration = Duration::from_secs(15);

/// A process that lowers a limit.
#[derive(Debug)]
pub struct Lowering {
    child: Pid,
    begun: Instant,
    is_said: bool,
}

impl Lowering {
    /// Starts it. Only in a program of one thread.
    pub fn start(directory: &JobDirectory, run_dir: &Path, lower: Lower) -> nix::Result<Self> {
        let hold = Pid::this();
        let child = child::start(|| {
            nix::unistd::alarm::set(SECONDS);
            child::close_descriptors();
            // It ends with its parent, which alone knows what is lent.
            let is_bound = prctl::set_pdeathsig(Signal::SIGKILL).is_ok() && getppid() == hold;
            // Its own lock: that of its parent would be let go of by either.
            match directory.lock(run_dir) {
                Ok(Some(_lock)) if is_bound => i32::from(directory.lower(lower).is_err()),
                _ => 2,
            }
        })?;
        Ok(Self { child, begun: Instant::now(), is_said: false })
    }

    /// Whether it has ended. Only then it is certain that it changes nothing more.
    pub fn has_ended(&self) -> bool {
        match waitpid(self.child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => false,
            Ok(_) | Err(_) => true,
        }
    }

    /// Whether it hangs, the first time that this is so. It is killed then, which it may not hear.
    pub fn hangs_now(&mut self) -> bool {
        let hangs = !self.is_said && self.begun.elapsed() >= LATE;
        if hangs {
            self.is_said = true;
            // Its alarm may have been taken by nobody: a child that was stopped.
            let _ = kill(self.child, Signal::SIGKILL);
        }
        hangs
    }

    /// How soon it is worth a look.
    pub fn pause(&self) -> Duration {
        if self.is_said { Duration::from_secs(5) } else { super::notice::SHORTEST }
    }

    /// Ends it.
    #[cfg(test)]
    pub fn kill(&self) {
        let _ = kill(self.child, Signal::SIGKILL);
        let _ = waitpid(self.child, None);
    }
}
