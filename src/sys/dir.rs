// SPDX-License-Identifier: GPL-2.0-or-later
//! Handles of directories, and the few things done relative to them.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat, mkdirat};
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::error::{Error, Result};

/// In bytes; no kernel file needs more. The longest is `cgroup.procs`, which [`Dir::read`] reads in whole: four million pids of seven
/// digits each, the most that the kernel gives (`PID_MAX_LIMIT`).
const MAX_READ: usize = 32 << 20;

/// Bytes for a value. A launch reads some thirty values, and each buffer is filled with zeros first, so a large one costs.
const VALUE: usize = 512;

/// Bytes for some lines: memory.stat of cgroup2 has some 2 KiB.
const TABLE: usize = 4096;

/// Whether a new directory has once had the right mode, so that the umask is harmless.
static IS_UMASK_HARMLESS: AtomicBool = AtomicBool::new(false);

/// An open directory (`O_PATH`) and the path it had, which is only for messages.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

impl Dir {
    /// Opens a directory by its absolute path: a mount point, `/proc`, the directory of records.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // The last component may be a link that an administrator made (/sys/fs/cgroup/cpu on systemd's v1 hosts).
        let fd = open(path, DIRECTORY.difference(OFlag::O_NOFOLLOW), Mode::empty())
            .map_err(|errno| Error::os("open the directory", path, errno))?;
        Ok(Self { fd, path: path.to_path_buf() })
    }

    /// Where this directory was when it was opened; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same directory with another path in its messages.
    #[must_use]
    pub fn named(mut self, path: PathBuf) -> Self {
        self.path = path;
        self
    }

    /// Opens a directory in this one.
    pub fn child<N: AsRef<OsStr> + ?Sized>(&self, name: &N) -> Result<Self> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let fd = openat(&self.fd, name, DIRECTORY, Mode::empty())
            .map_err(|errno| Error::os("open the directory", &path, errno))?;
        Ok(Self { fd, path })
    }

    /// Makes a directory in this one, and opens it; an existing one is an error (`EEXIST`).
    ///
    /// Its mode is that of the kernel's own cgroup directories, whatever the umask of the host program is: users read their limits
    /// there.
    pub fn make(&self, name: &str) -> Result<Self> {
        const MODE: Mode = Mode::from_bits_truncate(0o755);
        mkdirat(&self.fd, name, MODE).map_err(|errno| Error::os("make the directory", self.path.join(name), errno))?;
        let dir = self.child(name)?;
        // The umask is checked once, since a process keeps it: Slurm's step daemons make a dozen directories.
        if IS_UMASK_HARMLESS.load(Ordering::Relaxed) {
            return Ok(dir);
        }
        if dir.stat()?.st_mode & 0o777 == MODE.bits() {
            IS_UMASK_HARMLESS.store(true, Ordering::Relaxed);
        } else {
            fchmodat(&self.fd, name, MODE, FchmodatFlags::FollowSymlink)
                .map_err(|errno| Error::os("change the mode of", &dir.path, errno))?;
        }
        Ok(dir)
    }

    /// Makes a directory in this one unless it exists, and opens it.
    pub fn ensure(&self, name: &str) -> Result<Self> {
        self.ensure_new(name).map(|(dir, _)| dir)
    }

    /// As `ensure`, and says whether it made the directory.
    pub fn ensure_new(&self, name: &str) -> Result<(Self, bool)> {
        match self.make(name) {
            Ok(dir) => Ok((dir, true)),
            Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => Ok((self.child(name)?, false)),
            Err(error) => Err(error),
        }
    }

    /// Removes an empty directory in this one. `Ok(false)`: there is none.
    pub fn remove<N: AsRef<OsStr> + ?Sized>(&self, name: &N) -> Result<bool> {
        let name = name.as_ref();
        match unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            // A cgroup that is being removed gives ENODEV.
            Err(Errno::ENOENT | Errno::ENODEV) => Ok(false),
            Err(errno) => Err(Error::os("remove the directory", self.path.join(name), errno)),
        }
    }

    /// Opens a file in this directory. Never creates one: a missing control file means a missing controller.
    pub fn open_file(&self, name: &str, flags: OFlag) -> Result<OwnedFd> {
        openat(&self.fd, name, flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())
            .map_err(|errno| Error::os("open", self.path.join(name), errno))
    }

    /// Reads a whole file.
    pub fn read(&self, name: &str) -> Result<String> {
        Ok(text_of(&self.read_bytes(name)?))
    }

    /// As `read`, for a file that need not be text.
    pub fn read_bytes(&self, name: &str) -> Result<Vec<u8>> {
        let fd = self.open_file(name, OFlag::O_RDONLY)?;
        let mut text = Vec::with_capacity(512);
        let mut chunk = [0u8; 8192];
        loop {
            match nix::unistd::read(&fd, &mut chunk) {
                Ok(0) => break,
                Ok(n) => text.extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(Error::os("read", self.path.join(name), errno)),
            }
            if text.len() > MAX_READ {
                return Err(Error::new("read: unreasonably long file").at(self.path.join(name)));
            }
        }
        Ok(text)
    }

    /// Reads a file of a few words, which the kernel gives in one piece. A longer file is read in whole all the same.
    pub fn read_value(&self, name: &str) -> Result<String> {
        self.read_in_pieces_of::<VALUE>(name)
    }

    /// As `read_value`, for some lines that the kernel writes as one record, such as `memory.stat`.
    pub fn read_table(&self, name: &str) -> Result<String> {
        self.read_in_pieces_of::<TABLE>(name)
    }

    fn read_in_pieces_of<const BYTES: usize>(&self, name: &str) -> Result<String> {
        let fd = self.open_file(name, OFlag::O_RDONLY)?;
        match self.piece::<BYTES>(&fd, name)? {
            Some(text) => Ok(text),
            None => self.read(name),
        }
    }

    /// Writes a value and reads back, through the same descriptor, what the kernel made of it.
    pub fn write_and_read(&self, name: &str, value: &str) -> Result<String> {
        let fd = self.open_file(name, OFlag::O_RDWR).map_err(|error| error.value(value))?;
        self.put(&fd, name, value.as_bytes()).map_err(|error| error.value(value))?;
        match self.piece::<VALUE>(&fd, name)? {
            Some(text) => Ok(text),
            None => self.read(name),
        }
    }

    /// The beginning of a file; `None` if that is not all of it.
    fn piece<const BYTES: usize>(&self, fd: &OwnedFd, name: &str) -> Result<Option<String>> {
        let mut text = [0u8; BYTES];
        loop {
            match pread(fd, &mut text, 0) {
                Ok(n) if n == text.len() => return Ok(None),
                Ok(n) => return Ok(Some(text_of(text.get(..n).unwrap_or_default()))),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::os("read", self.path.join(name), errno)),
            }
        }
    }

    fn put(&self, fd: &OwnedFd, name: &str, value: &[u8]) -> Result<()> {
        match nix::unistd::write(fd, value) {
            Ok(n) if n == value.len() => Ok(()),
            Ok(_) => Err(Error::new("write: the kernel took only a part").at(self.path.join(name))),
            Err(errno) => Err(Error::os("write", self.path.join(name), errno)),
        }
    }

    /// Reads a whole file; `None` where this kernel or this hierarchy has no such file.
    pub fn read_if_there(&self, name: &str) -> Result<Option<String>> {
        match self.read_value(name) {
            Ok(text) => Ok(Some(text)),
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a value into a control file with one `write`, as the kernel wants it.
    pub fn write(&self, name: &str, value: &str) -> Result<()> {
        let fd = self.open_file(name, OFlag::O_WRONLY).map_err(|error| error.value(value))?;
        self.put(&fd, name, value.as_bytes()).map_err(|error| error.value(value))
    }

    /// Makes a file, or replaces it as a whole: a reader finds the old text or the new one. All users may read it.
    pub fn replace_file(&self, name: &str, text: &[u8]) -> Result<()> {
        let new = format!(".{name}.jobfence");
        let at = |errno| Error::os("write", self.path.join(name), errno);
        // A file of this name was left by a dead process.
        let _ = unlinkat(&self.fd, new.as_str(), UnlinkatFlags::NoRemoveDir);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = openat(&self.fd, new.as_str(), flags, Mode::from_bits_truncate(0o644)).map_err(at)?;
        let done = self.put(&file, name, text);
        let done = done.and_then(|()| renameat(&self.fd, new.as_str(), &self.fd, name).map_err(at));
        if done.is_err() {
            let _ = unlinkat(&self.fd, new.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        done
    }

    /// Removes a file in this directory. No error if there is none.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(Error::os("remove", self.path.join(name), errno)),
        }
    }

    /// Whether a file or directory of this name exists.
    pub fn has(&self, name: &str) -> bool {
        fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// What the kernel says of the directory itself.
    pub fn stat(&self) -> Result<FileStat> {
        fstat(&self.fd).map_err(|errno| Error::os("stat", &self.path, errno))
    }

    /// Names of the directories (`directories`) or other files in this directory, unordered. Those that are no UTF-8 are left out:
    /// neither jobfence nor a scheduler nor the kernel makes such names.
    pub fn list(&self, directories: bool) -> Result<Vec<String>> {
        Ok(self.names(directories)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// As `list`, with all names.
    pub fn names(&self, directories: bool) -> Result<Vec<OsString>> {
        let fd = openat(&self.fd, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| Error::os("list", &self.path, errno))?;
        let mut entries = nix::dir::Dir::from_fd(fd).map_err(|errno| Error::os("list", &self.path, errno))?;
        let mut names = Vec::new();
        for entry in entries.iter() {
            let entry = entry.map_err(|errno| Error::os("list", &self.path, errno))?;
            if (entry.file_type() == Some(nix::dir::Type::Directory)) == directories
                && !matches!(entry.file_name().to_bytes(), b"." | b"..")
            {
                names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
            }
        }
        Ok(names)
    }

    /// This directory as a path that stays right whatever is renamed, for a library that takes only paths.
    ///
    /// Valid while the handle lives, in the process (and under the `/proc`) in which it was opened.
    pub fn handle_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

/// Replaces what is no UTF-8, as a process's name can be. Mostly there is none, and checking for it costs less.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_the_room_for_it_is_read_in_whole() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        for length in [VALUE - 1, VALUE, VALUE + 1, TABLE - 1, TABLE, TABLE + 1, 3 * TABLE] {
            let text = "7".repeat(length);
            std::fs::write(temp.path().join("file"), &text).unwrap();
            assert_eq!(dir.read_value("file").unwrap(), text);
            assert_eq!(dir.read_table("file").unwrap(), text);
        }
    }

    #[test]
    fn never_creates_a_file_and_says_which_was_missing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let error = dir.write("memory.max", "1").unwrap_err();
        assert_eq!(error.kernel_errno(), Some(Errno::ENOENT));
        assert!(error.to_string().contains("memory.max (value \"1\")"), "{error}");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_the_place_of_a_child_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", temp.path().join("uid_0")).unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let errno = dir.ensure("uid_0").unwrap_err().kernel_errno();
        assert!(matches!(errno, Some(Errno::ENOTDIR | Errno::ELOOP)), "{errno:?}");
    }

    #[test]
    fn removing_twice_is_no_error() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        dir.ensure("a").unwrap();
        assert!(dir.remove("a").unwrap());
        assert!(!dir.remove("a").unwrap());
    }
}
