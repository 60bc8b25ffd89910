// SPDX-License-Identifier: GPL-2.0-or-later
//! Files that are records: each has its name when it is complete, in directories that nobody but root can open.

use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// Opens `RunDir`, making its last component when it is missing, and refuses one that others can open.
pub fn open_run_dir(path: &Path) -> Result<Dir> {
    let dir = match Dir::open(path) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
            let name = path.file_name().and_then(|name| name.to_str());
            let (Some(parent), Some(name)) = (path.parent(), name) else { return Err(error) };
            let parent = Dir::open(parent)?;
            match mkdirat(&parent, name, Mode::from_bits_truncate(0o700)) {
                Ok(()) | Err(Errno::EEXIST) => parent.child(name)?,
                Err(errno) => return Err(Error::os("make the directory", path, errno)),
            }
        }
        other => other?,
    };
    checked_run_dir(dir)
}

/// Refuses one that others can open.
pub(super) fn checked_run_dir(dir: Dir) -> Result<Dir> {
    let stat = dir.stat()?;
    // Not even readable: who can open it could take the locks on it, and hold up every job.
    if stat.st_uid != nix::unistd::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(Error::new("RunDir must belong to root and have mode 0700:")
            .at(dir.path())
            .hint("set RunDir in jobfence.conf to a directory that jobfence alone has, such as /run/jobfence: a missing one is made"));
    }
    Ok(dir)
}

/// Makes a file that is complete when it gets its name. `Ok(false)`: somebody else has the name.
pub(super) fn link_new(dir: &Dir, name: &str, text: &str) -> Result<bool> {
    let failed = |errno| Error::os("write the record", dir.path().join(name), errno);
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    let file = openat(dir, ".", flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
    match nix::unistd::write(&file, text.as_bytes()) {
        Ok(n) if n == text.len() => {}
        Ok(_) => return Err(failed(Errno::ENOSPC)),
        Err(errno) => return Err(failed(errno)),
    }
    let linked = match linkat(&file, "", dir, name, AtFlags::AT_EMPTY_PATH) {
        // Without CAP_DAC_READ_SEARCH (containers) the kernel does not give an empty path a name.
        Err(Errno::ENOENT) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, path.as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW)
        }
        linked => linked,
    };
    match linked {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

/// The text of a record; `None` when there is none, and for no other reason.
pub(super) fn read(dir: &Dir, name: &str) -> Result<Option<String>> {
    match dir.read(name) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a record. No error when there is none.
pub(super) fn unlink(dir: &Dir, name: &str) -> Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::os("remove the record", dir.path().join(name), errno)),
    }
}

/// Opens a directory of records in `RunDir`, making what is missing.
pub fn make_directory(run_dir: &Path, name: &str) -> Result<Dir> {
    let within = open_run_dir(run_dir)?;
    match mkdirat(&within, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) | Err(Errno::EEXIST) => checked(within.child(name)?),
        Err(errno) => Err(Error::os("make the directory", run_dir.join(name), errno)),
    }
}

/// As `make_directory`, but makes nothing there.
pub(super) fn directory(run_dir: &Path, name: &str) -> Result<Option<Dir>> {
    match Dir::open(run_dir).and_then(|dir| checked_run_dir(dir)?.child(name)) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Ok(None),
        dir => checked(dir?).map(Some),
    }
}

/// Refuses one that others could write to.
pub(super) fn checked(dir: Dir) -> Result<Dir> {
    if !is_ours(&dir.stat()?, SFlag::S_IFDIR) {
        return Err(Error::new("records must be in a directory of root's with mode 0700:")
            .at(dir.path())
            .hint("remove it"));
    }
    Ok(dir)
}

/// Whether it is of this kind, belongs to us, and nobody else can do anything with it.
pub(super) fn is_ours(stat: &FileStat, kind: SFlag) -> bool {
    let mode = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    mode == kind && stat.st_uid == nix::unistd::geteuid().as_raw() && stat.st_mode & 0o077 == 0
}
