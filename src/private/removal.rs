// SPDX-License-Identifier: GPL-2.0-or-later
//! Empties a directory of root's in which users had directories, whatever they have put there.
//!
//! Only names are removed, each in a directory that is open, so no link is followed. A directory that is not empty is first moved up, into
//! the directory of root's, and opened there, where no user can exchange it for another. So the tree has one level at any time, and needs
//! one handle however deep it was. What is mounted on can neither be moved nor removed: the kernel says `EBUSY`, and it stays.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use nix::dir::{Dir as Entries, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// How many names are removed between two looks at the clock.
const AT_ONCE: usize = 64;
/// Attributes of a file that keep its name from being removed: `FS_IMMUTABLE_FL` and `FS_APPEND_FL` of linux/fs.h.
const KEPT: libc::c_long = 0x10 | 0x20;

/// What became of a directory's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emptied {
    /// Nothing is left.
    Whole,
    /// There was no more time.
    Partly,
}

/// Removes all that is in a directory of root's into which no user can get, until the deadline.
pub(super) fn empty(root: &Dir, deadline: Instant) -> Result<Emptied> {
    let mut next = 0_u64;
    loop {
        let before = next;
        let mut failed = None;
        let mut is_empty = true;
        for name in [root.names(true)?, root.names(false)?].concat() {
            is_empty = false;
            let name = std::ffi::CString::new(std::os::unix::ffi::OsStringExt::into_vec(name)).unwrap_or_default();
            match remove_one(root, &name, &mut next, deadline) {
                Ok(Emptied::Whole) => {}
                Ok(Emptied::Partly) => return Ok(Emptied::Partly),
                Err(errno) => failed = Some((name, errno)),
            }
        }
        match failed {
            _ if is_empty => return Ok(Emptied::Whole),
            // What was moved up meanwhile is tried before anything is given up.
            Some((name, errno)) if next == before => {
                return Err(Error::os("remove", root.path().join(name.to_string_lossy().as_ref()), errno)
                    .hint("unmount what is mounted in it"));
            }
            _ if Instant::now() >= deadline => return Ok(Emptied::Partly),
            _ => {}
        }
    }
}

/// Removes a name in `root`, with what is in it.
fn remove_one(root: &Dir, name: &CStr, next: &mut u64, deadline: Instant) -> nix::Result<Emptied> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(root, name, flags, Mode::empty()) {
        Ok(dir) => {
            if empty_into(root, dir, next, deadline)? == Emptied::Partly {
                return Ok(Emptied::Partly);
            }
            unlink(root, name, UnlinkatFlags::RemoveDir)?;
        }
        Err(Errno::ENOENT) => {}
        Err(Errno::ENOTDIR | Errno::ELOOP | Errno::ENXIO) => unlink(root, name, UnlinkatFlags::NoRemoveDir)?,
        Err(errno) => return Err(errno),
    }
    Ok(Emptied::Whole)
}

/// Removes what is in a directory. Those of its directories that are not empty go into `root`.
fn empty_into(root: &Dir, dir: OwnedFd, next: &mut u64, deadline: Instant) -> nix::Result<Emptied> {
    let handle = dir.try_clone().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EMFILE)))?;
    let mut entries = Entries::from_fd(dir)?;
    loop {
        let (mut count, mut failed) = (0_usize, None);
        // A name that is removed while names are read may hide another from the reader, so it is done again until there is none.
        for entry in entries.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            count += 1;
            if count % AT_ONCE == 0 && Instant::now() >= deadline {
                return Ok(Emptied::Partly);
            }
            if let Err(errno) = take_away(root, &handle, name, entry.file_type(), next) {
                failed = Some(errno);
            }
        }
        match failed {
            Some(errno) => return Err(errno),
            None if count == 0 => return Ok(Emptied::Whole),
            None if Instant::now() >= deadline => return Ok(Emptied::Partly),
            None => {}
        }
    }
}

/// Removes one name of a user's directory, or moves it up.
fn take_away(root: &Dir, from: &OwnedFd, name: &CStr, kind: Option<Type>, next: &mut u64) -> nix::Result<()> {
    if kind != Some(Type::Directory) {
        match unlink(from, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => {}
            done => return done,
        }
    }
    match unlink(from, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
        Err(Errno::ENOTDIR) => return unlink(from, name, UnlinkatFlags::NoRemoveDir),
        done => return done,
    }
    loop {
        let new = format!("{next}");
        match with_flags_gone(from, name, || renameat(from, name, root, new.as_str())) {
            Ok(()) => {
                *next += 1;
                return Ok(());
            }
            // An earlier look stopped here.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR | Errno::EISDIR) => *next += 1,
            Err(Errno::ENOENT) => return Ok(()),
            failed => return failed,
        }
    }
}

fn unlink(from: &impl std::os::fd::AsFd, name: &CStr, flags: UnlinkatFlags) -> nix::Result<()> {
    match with_flags_gone(from, name, || unlinkat(from, name, flags)) {
        Err(Errno::ENOENT) => Ok(()),
        done => done,
    }
}

/// Does it again without the attributes that keep a file, if these may be the cause: of the file, and of the directory in which it is.
fn with_flags_gone(
    from: &impl std::os::fd::AsFd,
    name: &CStr,
    mut what: impl FnMut() -> nix::Result<()>,
) -> nix::Result<()> {
    match what() {
        Err(Errno::EPERM | Errno::EACCES) => {}
        done => return done,
    }
    clear_flags(from, c".");
    // Of no other kind of file: opening a FIFO or a device has effects.
    let kind = fstatat(from, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| SFlag::from_bits_truncate(stat.st_mode));
    if kind.is_ok_and(|kind| matches!(kind & SFlag::S_IFMT, SFlag::S_IFREG | SFlag::S_IFDIR)) {
        clear_flags(from, name);
    }
    what()
}

fn clear_flags(from: &impl std::os::fd::AsFd, name: &CStr) {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let Ok(file) = openat(from, name, flags, Mode::empty()) else { return };
    let mut attributes: libc::c_long = 0;
    // SAFETY: an open file, and a place for the attributes, of the size that both requests are declared with.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut attributes) == 0 && attributes & KEPT != 0 {
            attributes &= !KEPT;
            libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const attributes);
        }
    }
}
