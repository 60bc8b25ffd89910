// SPDX-License-Identifier: GPL-2.0-or-later
//! Stands for a step daemon.

use std::io;
use std::os::fd::OwnedFd;

use jobfence::job::JobKey;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe, read, write};

use crate::Failure;
use crate::launch;
use crate::place::{Place, soon};

/// A process that opens fences when it is told to, and closes them when it is told again.
pub struct Daemon {
    pid: Pid,
    tells: OwnedFd,
    done: OwnedFd,
}

impl Daemon {
    pub fn start(place: &Place, keys: Vec<JobKey>) -> Result<Self, Failure> {
        let (word, tells) = pipe()?;
        let (done, says) = pipe()?;
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, tells, done }),
            ForkResult::Child => {
                drop((tells, done));
                let status = match live(place, &keys, &word, &says) {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("{error}");
                        1
                    }
                };
                // SAFETY: ends the child without running what belongs to its parent.
                unsafe { libc::_exit(status) }
            }
        }
    }

    pub fn tell(&self) -> Result<(), Failure> {
        write(&self.tells, b"t")?;
        Ok(())
    }

    pub fn wait(&self) -> Result<(), Failure> {
        heard(&self.done)
    }

    pub fn end(daemons: Vec<Self>) -> Result<(), Failure> {
        for daemon in daemons {
            match waitpid(daemon.pid, None)? {
                WaitStatus::Exited(_, 0) => {}
                other => return Err(format!("a step daemon ended: {other:?}").into()),
            }
        }
        Ok(())
    }
}

fn live(place: &Place, keys: &[JobKey], word: &OwnedFd, says: &OwnedFd) -> Result<(), Failure> {
    heard(word)?;
    let fences = keys.iter().map(|key| launch::begin(place, key)).collect::<Result<Vec<_>, _>>()?;
    write(says, b"d")?;
    heard(word)?;
    for mut fence in fences {
        fence.close(soon())?;
    }
    write(says, b"d")?;
    Ok(())
}

fn heard(from: &OwnedFd) -> Result<(), Failure> {
    match read(from, &mut [0])? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}
