// SPDX-License-Identifier: GPL-2.0-or-later
//! Replaces a file as a whole in any directory: a reader sees either the old file or the new one.
//!
//! Root may be told to write into a directory that another user can write to. That user can replace any directory on the path by a link at
//! any time. So the path is followed by handles, and only those links are followed that only root can make.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Component, Path};

use jobfence::error::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};

/// As the kernel's MAXSYMLINKS.
const MAX_LINKS: u32 = 40;

const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The longest file that is read: no configuration is longer.
const LONGEST: u64 = 1 << 20;

/// Who may do what with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Ownership {
    /// That of a new file of root's.
    pub fn root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0 }
    }
}

/// Replaces the file by this text; a link is replaced, and not followed. `mode` is independent of the umask.
pub fn replace(path: &Path, text: &[u8], mode: Option<u32>) -> Result<()> {
    write(path, text, mode, None)
}

/// The same, with this owner, and such that the file outlives a crash of the machine.
pub fn replace_durably(path: &Path, text: &[u8], ownership: Ownership) -> Result<()> {
    write(path, text, Some(ownership.mode), Some(ownership))?;
    sync_directory(path)
}

/// A file of the administrator's, by the handle of its directory. `None`: there is none, or not even its directory.
pub fn read(path: &Path) -> Result<Option<(Vec<u8>, Ownership)>> {
    let name = path.file_name().ok_or_else(|| Error::new("this is no name of a file:").at(path))?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = directory_of(path)
        .and_then(|dir| openat(&dir, name, flags, Mode::empty()).map_err(|errno| Error::os("open", path, errno)));
    let file = match opened {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(None),
        opened => File::from(opened?),
    };
    let stat = fstat(&file).map_err(|errno| Error::os("look at", path, errno))?;
    if kind(stat.st_mode) != SFlag::S_IFREG || stat.st_size.cast_unsigned() > LONGEST {
        return Err(Error::new("this is no regular file of at most 1 MiB:").at(path));
    }
    let mut text = Vec::new();
    file.take(LONGEST)
        .read_to_end(&mut text)
        .map_err(|error| Error::os("read", path, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    Ok(Some((text, Ownership { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid })))
}

/// Makes an empty directory of root's in one that exists. One that exists already is an error.
pub fn make_directory(path: &Path, mode: u32) -> Result<()> {
    let (dir, name) = (directory_of(path)?, path.file_name().unwrap_or_default());
    let failed = |errno| Error::os("make the directory", path, errno);
    let mode = Mode::from_bits_truncate(mode);
    mkdirat(&dir, name, mode).map_err(failed)?;
    // Whatever the umask is.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(&dir, name, flags, Mode::empty()).map_err(failed)?;
    fchmod(&made, mode).map_err(failed)?;
    sync_directory(path)
}

/// Removes a file, or an empty directory, and what a replacement that was killed has left. It need not be there.
pub fn discard(path: &Path, flag: UnlinkatFlags) -> Result<()> {
    let dir = match directory_of(path) {
        Err(error) if error.is_gone() => return Ok(()),
        dir => dir?,
    };
    discard_new(path);
    match unlinkat(&dir, path.file_name().unwrap_or_default(), flag) {
        Err(errno) if errno != Errno::ENOENT => Err(Error::os("remove", path, errno)),
        _ => sync_directory(path),
    }
}

/// Removes what a replacement that was killed has left.
pub fn discard_new(path: &Path) {
    let name = path.file_name().unwrap_or_default();
    if let Ok(dir) = directory_of(path) {
        let _ = unlinkat(&dir, new_name(name).as_os_str(), UnlinkatFlags::NoRemoveDir);
    }
}

/// Has the disk know which files are in the file's directory.
fn sync_directory(path: &Path) -> Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let failed = |errno| Error::os("write the directory of", path, errno);
    let dir = openat(&directory_of(path)?, ".", flags, Mode::empty()).map_err(failed)?;
    fsync(&dir).map_err(failed)
}

/// Programs that read the directory do not take this name for a file of theirs: node_exporter requires .prom at the end, and Slurm's
/// `include plugstack.conf.d/*` does not match it.
fn new_name(name: &OsStr) -> OsString {
    OsString::from(format!(".{}.new", name.display()))
}

fn write(path: &Path, text: &[u8], mode: Option<u32>, durable: Option<Ownership>) -> Result<()> {
    let name = path.file_name().ok_or_else(|| Error::new("this is no name of a file:").at(path))?;
    let dir = directory_of(path)?;
    let failed = |what: &'static str| move |errno| Error::os(what, path, errno);
    match fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) if ![SFlag::S_IFREG, SFlag::S_IFLNK].contains(&kind(found.st_mode)) => {
            return Err(Error::new("this is no file that can be replaced:").at(path));
        }
        Err(errno) if errno != Errno::ENOENT => return Err(failed("look for")(errno)),
        _ => {}
    }
    let new = new_name(name);
    match unlinkat(&dir, new.as_os_str(), UnlinkatFlags::NoRemoveDir) {
        Err(errno) if errno != Errno::ENOENT => return Err(failed("write")(errno)),
        _ => {}
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let at_first = Mode::from_bits_truncate(if mode.is_some() { 0o600 } else { 0o666 });
    let mut file = File::from(openat(&dir, new.as_os_str(), flags, at_first).map_err(failed("write"))?);
    let written = file
        .write_all(text)
        // Before the mode: a change of the owner takes set-user-ID away.
        .and_then(|()| durable.map_or(Ok(()), |to| fchown(&file, Some(to.uid), Some(to.gid))))
        .and_then(|()| mode.map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode))))
        .and_then(|()| durable.map_or(Ok(()), |_| file.sync_all()));
    let written = written.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)));
    written.and_then(|()| renameat(&dir, new.as_os_str(), &dir, name)).map_err(|errno| {
        let _ = unlinkat(&dir, new.as_os_str(), UnlinkatFlags::NoRemoveDir);
        failed("write")(errno)
    })
}

/// Removes a file whose text begins with this; other files stay. Returns whether no file is there any more.
pub fn remove(path: &Path, begin: &str) -> Result<bool> {
    let Some(name) = path.file_name() else { return Ok(false) };
    let dir = match directory_of(path) {
        Err(error) if error.is_gone() => return Ok(true),
        dir => dir?,
    };
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(&dir, name, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(true),
        Err(_) => return Ok(false),
        Ok(file) => File::from(file),
    };
    let mut text = Vec::new();
    let is_ours = file.take(begin.len() as u64).read_to_end(&mut text).is_ok() && text == begin.as_bytes();
    if is_ours {
        unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir).map_err(|errno| Error::os("remove", path, errno))?;
    }
    Ok(is_ours)
}

/// The directory of a file. Later changes of the path do not affect the handle.
fn directory_of(path: &Path) -> Result<OwnedFd> {
    let failed = |errno| Error::os("find the directory of", path, errno);
    let above = path.parent().unwrap_or(Path::new(""));
    let from =
        |path: &Path| openat(nix::fcntl::AT_FDCWD, if path.is_absolute() { "/" } else { "." }, HANDLE, Mode::empty());
    let mut dir = from(path).map_err(failed)?;
    let mut rest: VecDeque<OsString> = names(above);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let next = openat(&dir, name.as_os_str(), HANDLE, Mode::empty()).map_err(failed)?;
        let stat = fstat(&next).map_err(failed)?;
        if kind(stat.st_mode) != SFlag::S_IFLNK {
            dir = next;
            continue;
        }
        if geteuid().is_root() && stat.st_uid != 0 {
            return Err(Error::new("root follows no link of another user on the way to")
                .at(path)
                .value(format!("{} of uid {}", name.display(), stat.st_uid))
                .hint("name the directory itself"));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(failed(Errno::ELOOP));
        }
        // The target of the link that was checked, whatever has its name now.
        let target = readlinkat(&next, "").map_err(failed)?;
        let target = Path::new(&target);
        if target.is_absolute() {
            dir = from(target).map_err(failed)?;
        }
        for name in names(target).into_iter().rev() {
            rest.push_front(name);
        }
    }
    Ok(dir)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let is_step = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|component| component.as_os_str().to_owned()).collect()
}

fn kind(mode: libc::mode_t) -> SFlag {
    SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("a/b", at("own")).unwrap();
        symlink(temp.path(), at("a/top")).unwrap();
        fs::write(at("kept"), "kept").unwrap();
        symlink("../../kept", at("a/b/link")).unwrap();
        for path in ["a/b/new", "own/new", "a/top/own/../b/./new", "a/b/link"] {
            replace(&at(path), path.as_bytes(), None).unwrap();
            assert_eq!(fs::read_to_string(at(path)).unwrap(), path);
        }
        replace(&at("a/b/new"), b"x", Some(0o640)).unwrap();
        assert_eq!(fs::metadata(at("a/b/new")).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_to_string(at("kept")).unwrap(), "kept");
        assert_eq!(fs::read_dir(at("a/b")).unwrap().count(), 2);
        symlink("a/b/new", at("to-new")).unwrap();
        for (path, begin, is_gone) in [
            ("a/b/new", "y", false),
            ("to-new", "x", false),
            ("a", "x", false),
            ("a/b/new", "x", true),
            ("a/b/new", "x", true),
            ("c/d", "", true),
        ] {
            assert_eq!(remove(&at(path), begin).unwrap(), is_gone, "{path}");
        }
        symlink("loop", at("loop")).unwrap();
        for path in ["loop/x", "nothing/x", "kept/x", "a", "a/b/.."] {
            let error = replace(&at(path), b"x", None).unwrap_err().to_string();
            assert!(error.contains(temp.path().to_str().unwrap()), "{error}");
        }
    }

    /// Above all for a directory that belongs to a job's user.
    #[test]
    fn root_follows_no_link_of_a_user() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root can make links of others");
        }
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("home/pages")).unwrap();
        fs::create_dir_all(at("secret/pages")).unwrap();
        for (target, link) in [("../secret", "home/link"), ("../../secret", "home/pages/last")] {
            symlink(target, at(link)).unwrap();
            lchown(at(link), Some(4242), Some(4242)).unwrap();
        }
        for path in ["home/link/x", "home/link/pages/x", "home/pages/last/x"] {
            let error = replace(&at(path), b"x", None).unwrap_err().to_string();
            assert!(error.contains("of uid 4242") && error.contains("name the directory itself"), "{error}");
        }
        assert_eq!(fs::read_dir(at("secret")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(at("secret/pages")).unwrap().count(), 0);
        replace(&at("home/pages/x"), b"x", None).unwrap();
    }
}
