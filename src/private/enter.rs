// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts this process, which has one thread and root's rights, where the job's own directories are in the place of the host's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat, stat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::chdir;

use super::dirs::{NOT_DIRECTLY, PrivateDirs};
use super::ipc::{self, QUEUES, QUEUES_MAGIC};
use super::places::check_place;
use super::processes::{self, PROC};
use crate::config::is_shared;
use crate::error::{Error, Result};
use crate::log;
use crate::sys::dir::Dir;
use crate::sys::mount;

/// A handle that opens nothing: no device, no FIFO.
const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// How many names a pattern of `PrivateTmpShare` can show: each takes a handle and a mount.
const MAX_MATCHES: usize = 64;

/// What of the host's stays visible.
struct SharedPath {
    path: PathBuf,
    handle: OwnedFd,
}

impl PrivateDirs {
    /// Enters a mount namespace of this process's own. `more` are paths of the host's that the scheduler has made for the job's user, and
    /// that stay visible with those that the site shares.
    ///
    /// After an error, this process sees the host's directories.
    pub fn enter(&self, more: &[PathBuf]) -> Result<()> {
        let here = std::env::current_dir().map(|path| (stat(".").ok().map(id_of), path));
        mount::leave_hosts()?;
        let (pairs, hides_others) = (self.pairs(), self.note.hides_others);
        // A place may be a link, and the kernel says where the working directory is without links.
        let mut canonical: Vec<(&Path, PathBuf)> =
            pairs.iter().filter_map(|(path, _)| Some((*path, path.canonicalize().ok()?))).collect();
        if hides_others {
            canonical.push((Path::new(PROC), PROC.into()));
        }
        let shares = self.shares(&pairs, more)?;
        let mut done: Vec<&Path> = Vec::new();
        let mut all = || -> Result<()> {
            let mut places = Vec::new();
            // All are opened before the first is covered. Two paths may be one directory: /var/tmp is a link to /tmp on some hosts.
            for (path, from) in &pairs {
                let (from, place) = (handle(from)?, handle(path)?);
                check_place(path)?;
                let is = identity(&place, path)?;
                if !places.iter().any(|(_, _, _, other)| *other == is) {
                    places.push((*path, from, place, is));
                }
            }
            for (path, from, place, _) in &places {
                mount::bind(from, place, flags(place) | flags(from))
                    .map_err(|errno| Error::os("put the job's own directory in the place of", path, errno))?;
                done.push(path);
            }
            ipc::show_queues()?;
            if hides_others { processes::hide() } else { Ok(()) }
        };
        let entered = all();
        if entered.is_err() {
            for top in done.into_iter().rev().filter_map(|path| handle(path).ok()) {
                let _ = mount::detach(&top);
            }
            return entered;
        }
        for share in shares {
            // Nothing that the job sees of its neighbours depends on it.
            if let Err(error) = share.show() {
                log::warn!("the job does not see what PrivateTmpShare shares: {error}");
            }
        }
        // The working directory is still the host's, which may be visible no longer.
        let wanted = match &here {
            Ok((id, here)) => canonical.iter().find(|(_, place)| here.starts_with(place)).map(|(path, _)| {
                let is_same = id.is_some() && stat(here).ok().map(id_of) == *id;
                if is_same { here.as_path() } else { path }
            }),
            // It was removed, and nobody knows where it was.
            Err(_) => Some(Path::new("/")),
        };
        let Some(wanted) = wanted else { return Ok(()) };
        if let Err(errno) = chdir(wanted) {
            // All is covered by now, so no error may say that this process sees the host's.
            let error = Error::os("change the working directory to", wanted, errno);
            chdir("/").map_err(|_| error)?;
        }
        Ok(())
    }

    /// The working directory that the user had, if it is in one of the job's own directories. To be called as the user.
    pub fn go_back_to(&self, wanted: &Path) {
        let is_in =
            |path: &Path| wanted.starts_with(path) || path.canonicalize().is_ok_and(|path| wanted.starts_with(path));
        if self.pairs().iter().any(|(path, _)| is_in(path)) {
            let _ = chdir(wanted);
        }
    }

    /// The first of the paths in whose place this process already sees another directory than the process `other` does.
    pub fn replaced_by_another(&self, other: i32) -> Option<PathBuf> {
        let is_another = |path: &Path| {
            let theirs = PathBuf::from(format!("/proc/{other}/root{}", path.display()));
            stat(path).ok().map(id_of) != stat(&theirs).ok().map(id_of)
        };
        self.pairs().into_iter().map(|(path, _)| path).find(|path| is_another(path)).map(Path::to_path_buf)
    }

    /// Opens what of the host's stays visible, before it is covered.
    fn shares(&self, pairs: &[(&Path, PathBuf)], more: &[PathBuf]) -> Result<Vec<SharedPath>> {
        let mut found = Vec::new();
        for share in self.shares.iter().chain(more) {
            let Some(parent) = share.parent() else { continue };
            if !pairs.iter().any(|(path, _)| share.starts_with(path)) {
                continue;
            }
            if !pairs.iter().any(|(path, _)| parent == *path) {
                return Err(Error::new(NOT_DIRECTLY).at(share));
            }
            let dir = Dir::open(parent)?;
            let name = share.file_name().unwrap_or_default().to_string_lossy();
            let is_pattern = name.contains(['*', '?']);
            let names = match is_pattern {
                true => [dir.list(true)?, dir.list(false)?].concat(),
                false => vec![name.into_owned()],
            };
            let (mut shown, mut left_out) = (0, 0_usize);
            for name in names.iter().filter(|name| is_shared(share, name)) {
                if is_pattern && shown == MAX_MATCHES {
                    left_out += 1;
                    continue;
                }
                match openat(&dir, name.as_str(), HANDLE | OFlag::O_NOFOLLOW, Mode::empty()) {
                    // Any user can make a name that matches.
                    Ok(handle) if is_pattern && !self.is_users(&handle) => left_out += 1,
                    Ok(handle) if more.contains(share) && !self.is_users(&handle) => {}
                    Ok(handle) => {
                        shown += 1;
                        found.push(SharedPath { path: parent.join(name), handle });
                    }
                    Err(Errno::ENOENT) => {}
                    Err(_) if is_pattern => left_out += 1,
                    Err(errno) => return Err(Error::os("open", parent.join(name), errno)),
                }
            }
            if left_out > 0 {
                log::info!(
                    "{left_out} of the names that PrivateTmpShare={} matches stay hidden: the job sees at most {MAX_MATCHES}, and \
                     only what belongs to root or to its user",
                    share.display()
                );
            }
        }
        Ok(found)
    }
}

/// Refuses a standard file of this process that leads to the host's directories, processes or queues. To be called in the job's namespace.
///
/// The scheduler has opened on the host what the user has named. A directory stays in the mount namespace in which it was opened, with
/// all that is above and below it.
pub fn check_standard_files() -> Result<()> {
    for fd in 0..=2 {
        // SAFETY: a standard file stays open; where there is none, the calls say EBADF.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(found) = fstat(file) else { continue };
        let is_hosts = || {
            let place = match fstatfs(file).map(|of| of.filesystem_type()) {
                Ok(PROC_SUPER_MAGIC) => PROC,
                Ok(QUEUES_MAGIC) => QUEUES,
                _ => return false,
            };
            stat(place).map_or(true, |here| here.st_dev != found.st_dev)
        };
        if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR || is_hosts() {
            return Err(Error::new("a directory, or a file of the host's /proc or /dev/mqueue, is open as the file descriptor")
                .value(fd)
                .hint("name another file, for example with --input: through this one, the job would see what is hidden from it"));
        }
    }
    Ok(())
}

impl PrivateDirs {
    /// Whether it belongs to the job's user, or to root.
    fn is_users(&self, handle: &OwnedFd) -> bool {
        fstat(handle).is_ok_and(|stat| stat.st_uid == 0 || Some(stat.st_uid) == self.uid())
    }

    /// The paths that are the job's own.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.note.on_disk.iter().chain(&self.note.in_tmpfs).map(PathBuf::as_path)
    }
}

impl SharedPath {
    /// Shows it in the job's own directory. The user may have put anything in its place, so nothing is followed.
    fn show(&self) -> Result<()> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(()) };
        let failed = |op| move |errno| Error::os(op, &self.path, errno);
        let is_directory = is_directory(&self.handle).map_err(failed("look at"))?;
        let within = Dir::open(parent)?;
        let made = match is_directory {
            true => mkdirat(&within, name, Mode::S_IRWXU),
            false => {
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
                openat(&within, name, flags, Mode::empty()).map(drop)
            }
        };
        if let Err(errno) = made
            && errno != Errno::EEXIST
        {
            return Err(failed("make a place for")(errno));
        }
        let place = openat(&within, name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty()).map_err(failed("open"))?;
        if self::is_directory(&place).map_err(failed("look at"))? != is_directory {
            return Err(Error::new("the job has put something else in the place of").at(&self.path));
        }
        mount::bind(&self.handle, &place, 0).map_err(failed("show"))
    }
}

/// A link is refused, since it names something else.
fn is_directory(handle: &OwnedFd) -> nix::Result<bool> {
    match SFlag::from_bits_truncate(fstat(handle)?.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFLNK => Err(Errno::ELOOP),
        kind => Ok(kind == SFlag::S_IFDIR),
    }
}

fn handle(path: &Path) -> Result<OwnedFd> {
    open(path, HANDLE | OFlag::O_DIRECTORY, Mode::empty()).map_err(|errno| {
        let error = Error::os("open the directory", path, errno);
        if errno == Errno::ENOENT {
            error.hint("make it, or take it out of PrivateTmp in jobfence.conf")
        } else {
            error
        }
    })
}

fn identity(place: &OwnedFd, path: &Path) -> Result<(libc::dev_t, libc::ino_t)> {
    let stat = fstat(place).map_err(|errno| Error::os("look at", path, errno))?;
    Ok(id_of(stat))
}

fn id_of(stat: FileStat) -> (libc::dev_t, libc::ino_t) {
    (stat.st_dev, stat.st_ino)
}

/// What mount(2) must be given so that no program gains rights by the other place.
fn flags(place: &impl AsFd) -> libc::c_ulong {
    let has = fstatvfs(place).map_or(0, |vfs| vfs.flags().bits());
    // The two calls have the same numbers for these.
    has & (libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC)
}
