// SPDX-License-Identifier: GPL-2.0-or-later
//! Looks at files with a user's rights. What a user names is not looked up with root's rights, since the answer alone would tell what
//! is in directories that the user cannot enter.
//!
//! Only this thread's rights change, and only those over files: credentials(7), setfsuid(2). Root's capabilities over files go with the
//! first of these calls and come back with the last (capabilities(7), "Effect of user ID changes on capabilities").
//!
//! If another thread of this process changes its user meanwhile, the C library makes each thread do the same, by a signal (nptl(7)),
//! and the kernel then takes that user for files, too. So the signal is blocked until root's rights are back, and the other thread
//! waits for it.

use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::{Gid, geteuid};

use crate::error::{Error, Result};

#[cfg(target_pointer_width = "64")]
const SETGROUPS: libc::c_long = libc::SYS_setgroups;
#[cfg(target_pointer_width = "32")]
const SETGROUPS: libc::c_long = libc::SYS_setgroups32;

/// That signal: `SIGSETXID` of glibc, `SIGSYNCCALL` of musl. Neither library has a public name for it.
const SETXID: u32 = if cfg!(target_env = "musl") { 34 } else { 33 };

/// A user as the kernel knows one when a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsUser {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

impl AsUser {
    /// `groups` may be empty: then the user has no group but `gid`.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { uid, gid, groups: groups.into() }
    }

    /// Runs `what` with the user's rights if this process has root's, and then never with others.
    pub fn look<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<T> {
        // Taken before the process's user is checked, and dropped after all else.
        let _held = Held::new();
        if !geteuid().is_root() {
            return what();
        }
        let failed = || Error::new("cannot look with the rights of").value(format!("uid {}", self.uid));
        let before = groups().map_err(|errno| failed().errno(errno))?;
        // Dropped on every path, also if the next lines fail halfway.
        let _back = Back { groups: before, gid: set_gid(self.gid) };
        if !set_groups(&self.groups) || set_gid(self.gid) != self.gid {
            return Err(failed());
        }
        set_uid(self.uid);
        if set_uid(self.uid) != self.uid {
            return Err(failed());
        }
        what()
    }
}

/// Blocks the signal in this thread.
struct Held(u64);

impl Held {
    fn new() -> Self {
        Self(set_mask(libc::SIG_BLOCK, 1 << (SETXID - 1)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        set_mask(libc::SIG_SETMASK, self.0);
    }
}

/// The system call itself, since the C library's function leaves that signal out. Returns the earlier mask.
fn set_mask(how: libc::c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads and writes as many bytes as it is told; it is this thread's mask.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<u64>()) };
    before
}

/// Gives root's rights back.
struct Back {
    groups: Vec<u32>,
    gid: u32,
}

impl Drop for Back {
    fn drop(&mut self) {
        set_uid(0);
        set_gid(self.gid);
        set_groups(&self.groups);
    }
}

/// Returns the earlier user id.
fn set_uid(uid: u32) -> u32 {
    // SAFETY: a number; it changes what this thread may do with files, and nothing of the process's memory.
    let before = unsafe { libc::setfsuid(uid) };
    u32::from_ne_bytes(before.to_ne_bytes())
}

fn set_gid(gid: u32) -> u32 {
    // SAFETY: as in set_uid.
    let before = unsafe { libc::setfsgid(gid) };
    u32::from_ne_bytes(before.to_ne_bytes())
}

/// Makes one system call; nix's function makes four before it.
fn groups() -> nix::Result<Vec<u32>> {
    let mut groups = vec![0; 32];
    // SAFETY: there is room for 32 numbers.
    let count = unsafe { libc::getgroups(32, groups.as_mut_ptr()) };
    match Errno::result(count).map(usize::try_from) {
        Ok(Ok(count)) => {
            groups.truncate(count);
            Ok(groups)
        }
        // There are more than 32.
        Err(Errno::EINVAL) => Ok(nix::unistd::getgroups()?.into_iter().map(Gid::as_raw).collect()),
        Err(errno) => Err(errno),
        Ok(Err(_)) => Err(Errno::EOVERFLOW),
    }
}

/// The system call itself, since the C library's function changes every thread.
fn set_groups(groups: &[u32]) -> bool {
    // SAFETY: the kernel reads as many numbers as are there.
    unsafe { libc::syscall(SETGROUPS, groups.len(), groups.as_ptr()) == 0 }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cgroup::disk::Disks;
    use crate::sys::dir::Dir;

    #[test]
    fn all_groups_come_back() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root has rights to give up");
        }
        let before = groups().unwrap();
        for count in [0, 1, 32, 33, 100] {
            let many: Vec<u32> = (1..=count).collect();
            assert!(set_groups(&many));
            let inside = AsUser::new(1001, 1001, &[7]).look(|| Ok(groups().unwrap())).unwrap();
            assert_eq!(inside, [7]);
            assert_eq!(groups().unwrap(), many);
        }
        assert!(set_groups(&before));
    }

    /// As in a program whose other threads change their user with the C library.
    #[test]
    fn another_thread_that_changes_its_user_waits() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root has rights to give up");
        }
        // The test changes the user of the whole process, so it forks one.
        let child = crate::sys::child::start(|| {
            let (begin, begins) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                begins.recv().unwrap();
                nix::unistd::seteuid(nix::unistd::Uid::from_raw(1002)).is_ok()
            });
            // With a number that is no user's, the call only returns the present one.
            let inside = AsUser::new(1001, 1001, &[]).look(|| {
                begin.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(300));
                Ok([set_uid(u32::MAX), geteuid().as_raw()])
            });
            let is_changed = other.join().unwrap();
            let found = (inside.ok(), is_changed, set_uid(u32::MAX), geteuid().as_raw());
            i32::from(!matches!(found, (Some([1001, 0]), true, 1002, 1002)))
        });
        let child = child.unwrap();
        let ended = nix::sys::wait::waitpid(child, None).unwrap();
        assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
    }

    #[test]
    fn what_a_user_cannot_enter_tells_him_nothing() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root has rights to give up");
        }
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (closed, shared) = (temp.path().join("closed"), temp.path().join("shared"));
        for (dir, mode) in [(&closed, 0o700), (&shared, 0o750)] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("there"), "").unwrap();
            std::os::unix::fs::symlink("/to/a/secret", dir.join("link")).unwrap();
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::chown(&shared, None, Some(4242)).unwrap();
        let disks = Disks::read(&Dir::open("/proc").unwrap()).unwrap();
        let answers = |user: &AsUser, dir: &std::path::Path| {
            let of = |name: &str| user.look(|| disks.of(&dir.join(name))).unwrap_err().to_string();
            [of("there"), of("not there"), of("link")]
        };
        let (user, member) = (AsUser::new(1001, 1001, &[]), AsUser::new(1001, 1001, &[7, 4242]));
        for (user, dir) in [(&user, &closed), (&user, &shared), (&member, &closed)] {
            for answer in answers(user, dir) {
                assert!(answer.contains("Permission denied") && !answer.contains("secret"), "{answer}");
            }
        }
        // The user's group gives access. Afterwards this is root again, with root's own groups.
        assert!(member.look(|| Ok(fs::metadata(shared.join("there")).is_ok())).unwrap());
        assert!(fs::metadata(closed.join("there")).is_ok());
        fs::write(closed.join("new"), "").unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(closed.join("new")).unwrap()), 0);
        // Root's rights come back after a panic, too.
        let panicked = std::panic::catch_unwind(|| user.look::<()>(|| panic!("on purpose")));
        assert!(panicked.is_err() && fs::metadata(closed.join("there")).is_ok());
    }
}
