// SPDX-License-Identifier: GPL-2.0-or-later
//! Small files of a user's in a directory that the user names: written and read with the user's rights, see [`AsUser`](super::as_user).
//!
//! A path of the user's may lead through `/proc/self/fd` to a directory that this process has open, and so past others that the
//! user may not enter. So the kernel is told to follow no such link, which it can since Linux 5.6: openat2(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::error::{Error, Result};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

/// A directory of jobfence's in one that a user named. It belongs to that user, and no other can write there.
#[derive(Debug)]
pub struct UsersDir {
    above: OwnedFd,
    dir: OwnedFd,
    name: String,
    path: PathBuf,
    uid: u32,
}

impl UsersDir {
    /// Makes it, and returns whether it is new.
    pub fn make(above: &Path, name: &str) -> Result<bool> {
        match mkdirat(&open_without_magic(above)?, name, Mode::S_IRWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(Error::os("make the directory", above.join(name), errno)),
        }
    }

    /// Opens it. `None`: there is none.
    pub fn open(above: &Path, name: &str, uid: u32) -> Result<Option<Self>> {
        let path = above.join(name);
        let above = open_without_magic(above)?;
        let dir = match openat(&above, name, DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Error::os("open the directory", &path, errno)),
        };
        let stat = stat(&dir, &path)?;
        if stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
            return Err(Error::new("this directory is not the user's alone").at(&path));
        }
        Ok(Some(Self { above, dir, name: name.to_owned(), path, uid }))
    }

    /// The text of a file; `None` if there is none. More than `most` bytes are an error, and so is anything but a file of the user's.
    pub fn read(&self, name: &str, most: usize) -> Result<Option<String>> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let path = self.path.join(name);
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Error::os("open", path, errno)),
        };
        let stat = stat(&file, &path)?;
        if stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() || stat.st_uid != self.uid {
            return Err(Error::new("no file of the user's").at(path));
        }
        let mut text = vec![0; most.saturating_add(1)];
        let read = nix::unistd::read(&file, &mut text).map_err(|errno| Error::os("read", &path, errno))?;
        text.truncate(read);
        match String::from_utf8(text) {
            Ok(text) if read <= most => Ok(Some(text)),
            _ => Err(Error::new("no text, or too long").at(path)),
        }
    }

    /// Replaces a file as a whole.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        let new = format!("{name}.{}", std::process::id());
        let new = new.as_str();
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = openat(&self.dir, new, flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .map_err(|errno| Error::os("make", &path, errno))?;
        let written = match nix::unistd::write(&file, text.as_bytes()) {
            Ok(length) if length == text.len() => renameat(&self.dir, new, &self.dir, name),
            Ok(_) => Err(Errno::ENOSPC),
            Err(errno) => Err(errno),
        };
        written.map_err(|errno| {
            let _ = unlinkat(&self.dir, new, UnlinkatFlags::NoRemoveDir);
            Error::os("write", path, errno)
        })
    }

    /// Removes what [`mark`] has made.
    pub fn unmark(&self, name: &str) {
        let _ = unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir);
    }

    /// Removes it with its files, as long as `goes_on`, which is asked before each file, returns `true`. A directory in it stays, and
    /// so it stays, too. Returns whether the end was reached.
    pub fn remove(self, mut goes_on: impl FnMut(&CStr) -> bool) -> bool {
        let Ok(mut entries) = nix::dir::Dir::openat(&self.dir, ".", DIRECTORY, Mode::empty()) else { return false };
        for entry in entries.iter() {
            let Ok(entry) = entry else { return false };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            if !goes_on(entry.file_name()) {
                return false;
            }
            let _ = unlinkat(&self.dir, entry.file_name(), UnlinkatFlags::NoRemoveDir);
        }
        let _ = unlinkat(&self.above, self.name.as_str(), UnlinkatFlags::RemoveDir);
        true
    }
}

/// Makes an empty file in an existing directory of jobfence's.
pub fn mark(above: &Path, dir: &str, name: &str) -> Result<()> {
    let path = above.join(dir);
    let dir = open_without_magic(&path)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    match openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(Error::os("make", path.join(name), errno)),
    }
}

fn stat(fd: impl AsFd, path: &Path) -> Result<FileStat> {
    fstat(fd).map_err(|errno| Error::os("stat", path, errno))
}

fn open_without_magic(path: &Path) -> Result<OwnedFd> {
    let failed = |errno| Error::os("open the directory", path, errno);
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::EINVAL))?;
    if !path.is_absolute() {
        return Err(failed(Errno::EINVAL));
    }
    // SAFETY: plain numbers, for which 0 stands for nothing (openat2(2)).
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).unsigned_abs().into();
    how.resolve = libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the kernel reads a NUL-terminated string and a structure of this size.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size_of::<libc::open_how>())
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just opened this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(failed(Errno::last())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn me() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    fn made(above: &Path) -> UsersDir {
        assert!(UsersDir::make(above, ".x").unwrap());
        UsersDir::open(above, ".x", me()).unwrap().unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_goes() {
        let temp = tempfile::tempdir().unwrap();
        assert!(UsersDir::open(temp.path(), ".x", me()).unwrap().is_none());
        let dir = made(temp.path());
        assert!(!UsersDir::make(temp.path(), ".x").unwrap());
        assert_eq!(dir.read("n1", 9).unwrap(), None);
        dir.write("n1", "one").unwrap();
        dir.write("n1", "two").unwrap();
        assert_eq!(dir.read("n1", 3).unwrap().as_deref(), Some("two"));
        assert!(dir.read("n1", 2).is_err());
        assert!(dir.remove(|_| true));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_mark_is_there_until_it_is_taken_back() {
        let temp = tempfile::tempdir().unwrap();
        assert!(mark(temp.path(), ".x", "n2+0").is_err());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        let dir = made(temp.path());
        mark(temp.path(), ".x", "n2+0").unwrap();
        mark(temp.path(), ".x", "n2+0").unwrap();
        mark(temp.path(), ".x", "n2+1").unwrap();
        dir.unmark("n2+0");
        let mut seen = Vec::new();
        assert!(!dir.remove(|name| {
            seen.push(name.to_owned());
            false
        }));
        assert_eq!(seen, [c"n2+1".to_owned()]);
        assert!(temp.path().join(".x/n2+1").exists());
    }

    #[test]
    fn what_a_user_plants_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("secret"), "secret").unwrap();
        symlink(temp.path(), temp.path().join(".link")).unwrap();
        assert!(UsersDir::open(temp.path(), ".link", me()).is_err());
        fs::create_dir(temp.path().join(".open")).unwrap();
        fs::set_permissions(temp.path().join(".open"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(UsersDir::open(temp.path(), ".open", me()).is_err());
        let dir = made(temp.path());
        assert!(UsersDir::open(temp.path(), ".x", me() + 1).is_err());
        let inside = temp.path().join(".x");
        symlink("../secret", inside.join("link")).unwrap();
        nix::unistd::mkfifo(&inside.join("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(inside.join("dir")).unwrap();
        for name in ["link", "fifo", "dir"] {
            assert!(dir.read(name, 99).is_err(), "{name}");
        }
        dir.write("link", "mine").unwrap();
        assert!(dir.write("dir", "mine").is_err());
        assert_eq!(fs::read_to_string(temp.path().join("secret")).unwrap(), "secret");
        // Nothing is left of the failed write, and a directory stays.
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 3);
        assert!(dir.remove(|_| true));
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
    }

    #[test]
    fn no_descriptor_of_ours_is_a_way() {
        let temp = tempfile::tempdir().unwrap();
        let open = fs::File::open(temp.path()).unwrap();
        let magic = format!("/proc/self/fd/{}", open.as_raw_fd());
        symlink(&magic, temp.path().join("link")).unwrap();
        for path in [Path::new(&magic), &temp.path().join("link"), Path::new("."), Path::new("")] {
            assert!(UsersDir::make(path, ".x").is_err() && UsersDir::open(path, ".x", me()).is_err(), "{path:?}");
        }
        assert!(!temp.path().join(".x").exists());
    }
}
