// SPDX-License-Identifier: GPL-2.0-or-later
//! Locks on directories, which one process has at a time: flock(2). Locks on one byte of a directory, which tell that a process lives:
//! fcntl(2). A lock that one process has as long as it lives.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, OFlag, fcntl, openat};
use nix::poll::ppoll;
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The time that most locks are held.
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
/// Long enough that many waiting processes leave the processors to the one that works.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A lock. Released when dropped, or when this process dies.
///
/// It is not nix's own, which panics if unlocking fails; closing the descriptor releases it then.
#[derive(Debug)]
#[must_use]
pub struct Lock(OwnedFd);

impl Lock {
    /// Takes the lock. `None`: another process has it.
    pub fn try_on(dir: &Dir, name: &str) -> Result<Option<Self>> {
        Self::try_to(dir, name, libc::LOCK_EX)
    }

    /// Whether another process has it. Several can ask at once.
    pub fn is_held(dir: &Dir, name: &str) -> Result<bool> {
        Ok(Self::try_to(dir, name, libc::LOCK_SH)?.is_none())
    }

    fn try_to(dir: &Dir, name: &str, operation: libc::c_int) -> Result<Option<Self>> {
        let fd = dir.open_file(name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        // SAFETY: flock takes a descriptor that is open and two flags.
        match Errno::result(unsafe { libc::flock(fd.as_raw_fd(), operation | libc::LOCK_NB) }) {
            Ok(_) => Ok(Some(Self(fd))),
            Err(Errno::EWOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::os("lock", dir.path().join(name), errno)),
        }
    }

    /// Waits for a lock that is held for moments, by trying again: flock(2) has no deadline.
    pub fn on(dir: &Dir, name: &str, deadline: Instant) -> Result<Self> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Some(lock) = Self::try_on(dir, name)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                return Err(Error::new("another process has been at work for too long; its lock is on")
                    .at(dir.path().join(name))
                    .passing());
            }
            let _ = ppoll(&mut [], Some(pause.into()), None);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Releases the lock at once, even if a process that was forked meanwhile has a copy of the descriptor.
        // SAFETY: as above.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// A lock on one byte of a directory, beyond whatever is in there. Several processes can have it. The kernel releases it when the process
/// ends, however that is.
#[derive(Debug)]
#[must_use]
pub struct ByteLock(#[expect(dead_code, reason = "the kernel's lock is the descriptor's")] OwnedFd);

impl ByteLock {
    /// Takes the lock.
    pub fn on(dir: &Dir, byte: u32) -> Result<Self> {
        let fd = opened(dir)?;
        fcntl(&fd, FcntlArg::F_OFD_SETLK(&lock_at(byte, libc::F_RDLCK)))
            .map_err(|errno| Error::os("lock", dir.path(), errno).value(format!("at byte {byte}")))?;
        Ok(Self(fd))
    }

    /// Whether a process has it. `false` if that cannot be seen.
    pub fn is_held(dir: &Dir, byte: u32) -> bool {
        let mut lock = lock_at(byte, libc::F_WRLCK);
        let is_asked = opened(dir).is_ok_and(|fd| fcntl(&fd, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok());
        is_asked && i32::from(lock.l_type) != libc::F_UNLCK
    }
}

fn opened(dir: &Dir) -> Result<OwnedFd> {
    dir.open_file(".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}

fn lock_at(byte: u32, kind: libc::c_int) -> libc::flock {
    // Each of these numbers is small.
    let short = |number: libc::c_int| libc::c_short::try_from(number).unwrap_or_default();
    libc::flock {
        l_type: short(kind),
        l_whence: short(libc::SEEK_SET),
        l_start: libc::off_t::from(byte),
        l_len: 1,
        l_pid: 0,
    }
}

/// A lock of this process alone on a file that it makes: fcntl(2). A child does not inherit it, so it ends with this process and not with
/// what that has started. Nothing else in this process may open the file: the kernel lets go of the lock when any descriptor of it is
/// closed.
#[derive(Debug)]
#[must_use]
pub struct ProcessLock(OwnedFd);

impl ProcessLock {
    /// Takes the lock. `Ok(Err(…))`: the process with this number has it, or 0 if that is not seen from here.
    pub fn try_on(dir: &Dir, name: &str) -> Result<std::result::Result<Self, i32>> {
        let failed = |errno| Error::os("lock", dir.path().join(name), errno);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(dir, name, flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
        let mut lock = lock_at(0, libc::F_WRLCK);
        match fcntl(&fd, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => Ok(Ok(Self(fd))),
            Err(Errno::EACCES | Errno::EAGAIN) => {
                let asked = fcntl(&fd, FcntlArg::F_GETLK(&mut lock));
                Ok(Err(if asked.is_ok() { lock.l_pid.max(0) } else { 0 }))
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Whether the file with this name is still the one that is locked. It is not opened: see above.
    pub fn is_on(&self, dir: &Dir, name: &str) -> Result<bool> {
        let failed = |errno| Error::os("stat", dir.path().join(name), errno);
        let ours = fstat(&self.0).map_err(failed)?;
        match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }
}
