// SPDX-License-Identifier: GPL-2.0-or-later
//! Stands for a step daemon.

use std::io;
use std::os::fd::OwnedFd;

use jobfence::job::JobKey;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe, read, write};

use crate::Failure;
use crate::floor::Floor;
use crate::launch;
use crate::place::{Place, soon};

/// By what it makes and removes what a step needs.
#[derive(Clone, Copy)]
pub enum By {
    /// As the product does.
    Fences,
    /// With the same directories and files, and nothing else.
    BareCalls,
}

/// A process that opens fences when it is told to, and closes them when it is told again.
pub struct Daemon {
    pid: Pid,
    tells: OwnedFd,
    done: OwnedFd,
}

impl Daemon {
    pub fn start(place: &Place, keys: Vec<JobKey>, by: By) -> Result<Self, Failure> {
        let (word, tells) = pipe()?;
        let (done, says) = pipe()?;
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, tells, done }),
            ForkResult::Child => {
                drop((tells, done));
                let status = match live(place, &keys, by, &word, &says) {
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

fn live(place: &Place, keys: &[JobKey], by: By, word: &OwnedFd, says: &OwnedFd) -> Result<(), Failure> {
    match by {
        By::Fences => two_parts(
            || keys.iter().map(|key| launch::begin(place, key)).collect::<Result<Vec<_>, _>>(),
            |fences| Ok(fences.iter_mut().try_for_each(|fence| fence.close(soon()))?),
            (word, says),
        ),
        By::BareCalls => {
            let floors = keys.iter().map(|key| Floor::of(place, key)).collect::<Result<Vec<_>, _>>()?;
            two_parts(
                || Ok(floors.iter().try_for_each(Floor::set_up)?),
                |()| Ok(floors.iter().try_for_each(Floor::remove)?),
                (word, says),
            )
        }
    }
}

fn two_parts<T>(
    begin: impl FnOnce() -> Result<T, Failure>,
    end: impl FnOnce(&mut T) -> Result<(), Failure>,
    (word, says): (&OwnedFd, &OwnedFd),
) -> Result<(), Failure> {
    heard(word)?;
    let mut begun = begin()?;
    write(says, b"d")?;
    heard(word)?;
    end(&mut begun)?;
    write(says, b"d")?;
    Ok(())
}

fn heard(from: &OwnedFd) -> Result<(), Failure> {
    match read(from, &mut [0])? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}
