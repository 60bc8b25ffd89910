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

use super::space;
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
    let mut is_let_in = false;
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
            // It is of another project.
            Err(Errno::EXDEV) if !is_let_in && space::let_in(root) => is_let_in = true,
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
    // Only these kinds of files are opened: opening a FIFO or a device has effects.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::sys::quota;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(300)
    }

    fn emptied(path: &Path) {
        assert_eq!(empty(&Dir::open(path).unwrap(), soon()), Ok(Emptied::Whole));
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    }

    /// A tree deeper than a path can be long, and than there are descriptors.
    fn deep(within: &Path, levels: usize) {
        let mut dir = Dir::open(within).unwrap();
        for _ in 0..levels {
            dir = dir.ensure("a-name-of-some-length").unwrap();
        }
        dir.replace_file("file", b"x").unwrap();
    }

    #[test]
    fn a_tree_has_no_depth_at_which_it_stays() {
        let temp = tempfile::tempdir().unwrap();
        deep(temp.path(), 5000);
        fs::create_dir(temp.path().join("0")).unwrap();
        fs::write(temp.path().join("0/file"), "").unwrap();
        emptied(temp.path());
    }

    #[test]
    fn names_of_all_kinds_go_and_what_they_point_to_stays() {
        let (temp, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(kept.path().join("file"), "kept").unwrap();
        let dir = temp.path().join("tmp");
        fs::create_dir_all(dir.join("closed/in")).unwrap();
        symlink(kept.path(), dir.join("link")).unwrap();
        symlink(kept.path(), temp.path().join("link")).unwrap();
        fs::hard_link(kept.path().join("file"), dir.join("hard")).unwrap();
        for name in ["-rf", "a\nb", "..c", "\\", "*"] {
            fs::write(dir.join(name), "").unwrap();
        }
        nix::unistd::mkfifo(&dir.join("fifo"), Mode::S_IRWXU).unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap());
        fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        emptied(temp.path());
        assert_eq!(fs::read_to_string(kept.path().join("file")).unwrap(), "kept");
    }

    #[test]
    fn attributes_keep_nothing() {
        let temp = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = temp.path().join("tmp/appended/to");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        for (flag, path) in [("+i", dir.join("file")), ("+a", dir.clone()), ("+i", dir.parent().unwrap().into())] {
            if !Command::new("chattr").arg(flag).arg(&path).status().is_ok_and(|status| status.success()) {
                let _ = Command::new("chattr").args(["-R", "-ia"]).arg(temp.path()).status();
                return crate::skip::skip("this file system, or this user, has no immutable files");
            }
        }
        assert!(fs::remove_dir_all(&dir).is_err(), "the attributes are there");
        emptied(temp.path());
    }

    #[test]
    #[ignore = "needs a kernel with quotas of projects, as in the guests"]
    fn what_is_of_another_project_goes() {
        let done = quota::with_quotas(|place| {
            fs::create_dir_all(place.join("job/tmp/a/b/c")).unwrap();
            fs::write(place.join("job/tmp/a/b/c/file"), "x").unwrap();
            for (name, project) in [("job", 1 << 30), ("job/tmp/a", 7), ("job/tmp/a/b", 8)] {
                let dir = Dir::open(place.join(name)).unwrap();
                let mut wanted = quota::attributes(&dir).unwrap();
                (wanted.project, wanted.flags) = (project, wanted.flags | quota::PROJINHERIT);
                quota::set_attributes(&dir, wanted).unwrap();
            }
            let refused = fs::rename(place.join("job/tmp/a"), place.join("job/0")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV));
            emptied(&place.join("job"));
            assert_eq!(quota::attributes(&Dir::open(place.join("job")).unwrap()).unwrap().project, 1 << 30);
        });
        if done.is_none() {
            crate::skip::skip("this kernel, or this user, mounts no ext4 with quotas of projects");
        }
    }

    #[test]
    fn what_is_mounted_stays_and_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let (kept, place) = (tempfile::tempdir().unwrap(), temp.path().join("tmp/x/y"));
        fs::create_dir_all(&place).unwrap();
        fs::write(temp.path().join("tmp/file"), "").unwrap();
        fs::write(kept.path().join("file"), "kept").unwrap();
        let of_kept = Dir::open(kept.path()).unwrap();
        if crate::sys::mount::bind(&of_kept, &Dir::open(&place).unwrap(), 0).is_err() {
            return crate::skip::skip("needs root");
        }
        let error = empty(&Dir::open(temp.path()).unwrap(), soon()).unwrap_err();
        crate::sys::mount::detach(&Dir::open(temp.path().join("0/y")).or_else(|_| Dir::open(&place)).unwrap()).unwrap();
        assert!(error.kernel_errno() == Some(Errno::EBUSY), "{error}");
        assert!(error.to_string().contains("unmount what is mounted in it"), "{error}");
        assert!(kept.path().join("file").exists() && !temp.path().join("tmp/file").exists());
        emptied(temp.path());
    }

    #[test]
    fn there_is_an_end_at_the_deadline() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("tmp");
        fs::create_dir(&dir).unwrap();
        (0..1000).for_each(|n| fs::write(dir.join(n.to_string()), "").unwrap());
        let root = Dir::open(temp.path()).unwrap();
        assert_eq!(empty(&root, Instant::now()), Ok(Emptied::Partly));
        let left = fs::read_dir(&dir).unwrap().count();
        assert!((1..1000).contains(&left), "{left} of 1000");
        emptied(temp.path());
    }

    /// A process of the user's that has outlived its fence has handles of directories in the tree. It puts links to what must stay in the
    /// place of directories, and directories in the place of links, moves directories into each other, and makes new ones.
    #[test]
    fn a_race_against_links_and_renames_removes_nothing_else() {
        let (temp, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(kept.path().join("dir")).unwrap();
        fs::write(kept.path().join("dir/file"), "kept").unwrap();
        let dir = temp.path().join("tmp");
        fs::create_dir(&dir).unwrap();
        let ends = AtomicBool::new(false);
        let handle = Dir::open(&dir).unwrap();
        let at = |path: &str| handle.handle_path().join(path);
        let hostile = |mut seed: u64| {
            let mut next = move |below: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % below
            };
            while !ends.load(Ordering::Relaxed) {
                let (one, other) = (format!("d{}", next(8)), format!("d{}", next(8)));
                let _ = match next(6) {
                    0 => fs::create_dir_all(at(&one).join("x/y")),
                    1 => symlink(kept.path(), at(&one)),
                    2 => fs::rename(at(&one), at(&other)),
                    3 => fs::rename(at(&one), at(&other).join("x")),
                    4 => fs::remove_file(at(&one)).and_then(|()| fs::create_dir_all(at(&one).join("z"))),
                    _ => symlink("..", at(&one).join("x").join("up")),
                };
            }
        };
        std::thread::scope(|scope| {
            for seed in 1..3 {
                let hostile = &hostile;
                scope.spawn(move || hostile(seed));
            }
            let root = Dir::open(temp.path()).unwrap();
            for _ in 0..300 {
                let _ = empty(&root, Instant::now() + Duration::from_millis(10));
                // The tree may be gone, with all that is done to it.
                let _ = fs::create_dir(temp.path().join("tmp"));
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_to_string(kept.path().join("dir/file")).unwrap(), "kept");
        emptied(temp.path());
    }
}
