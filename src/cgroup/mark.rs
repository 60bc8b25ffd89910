// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence's mark on a directory: an extended attribute that says whose the directory is, as long as that exists. Only root can write
//! it (xattr(7), "Trusted extended attributes"). Both versions of cgroup file systems keep it in memory (fs/kernfs/inode.c).

use std::ffi::CStr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::layout::{Hierarchy, Version};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

const NAME: &CStr = c"trusted.jobfence";

/// What the directory's job was granted, see `record::noted`. It goes with the directory, so it need not be removed.
const ALLOCATED: &CStr = c"trusted.jobfence.allocated";

/// What jobfence.service knows of the directory's job for its card, see `record::card_note`. It goes with the directory, too.
const CARD: &CStr = c"trusted.jobfence.card";

/// What the directory's job was granted, and has now by `jobfence resize`, see `record::resized`. It goes with the directory, too.
const RESIZED: &CStr = c"trusted.jobfence.resized";

/// What jobfence.service has lent the directory's job, and whether it has ended the job for that, see `record::loan`. It goes with the
/// directory, too.
const LENT: &CStr = c"trusted.jobfence.lent";

/// The most that is read of a mark, in bytes.
pub const LONGEST: usize = 4096;

/// `O_PATH` handles give no access to attributes.
const OPEN: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// Marks a directory, in place of an earlier mark.
pub fn set(dir: &Dir, text: &str) -> Result<()> {
    set_named(dir, NAME, text)
}

/// Notes what the directory's job was granted.
pub fn set_allocated(dir: &Dir, text: &str) -> Result<()> {
    set_named(dir, ALLOCATED, text)
}

/// Notes what the card of the directory's job is to say. The place is the job's directory in each hierarchy that [`bears_cards`].
pub fn set_card(dir: &Dir, text: &str) -> Result<()> {
    set_named(dir, CARD, text)
}

/// Notes on the job's directory that its limits are no longer those of the grant.
pub fn set_resized(dir: &Dir, text: &str) -> Result<()> {
    set_named(dir, RESIZED, text)
}

/// Notes what the directory's job is lent. The place is the job's directory in the hierarchy with the memory controller.
pub fn set_lent(dir: &Dir, text: &str) -> Result<()> {
    set_named(dir, LENT, text)
}

/// Withdraws what the card is to say, if there is any.
pub fn remove_card(dir: &Dir) -> Result<()> {
    remove_named(dir, CARD)
}

/// Withdraws what is noted of other limits than those of the grant, if there is any.
pub fn remove_resized(dir: &Dir) -> Result<()> {
    remove_named(dir, RESIZED)
}

fn remove_named(dir: &Dir, name: &CStr) -> Result<()> {
    let fd = dir.open_file(".", OPEN)?;
    // SAFETY: the name is NUL-terminated.
    let done = unsafe { libc::fremovexattr(fd.as_raw_fd(), name.as_ptr()) };
    match Errno::result(done) {
        Ok(_) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => Err(Error::os("remove a mark of the directory", dir.path(), errno)),
    }
}

/// Whether notes for cards are in this hierarchy. Each fence is in one of these.
pub fn bears_cards(hierarchy: &Hierarchy) -> bool {
    hierarchy.version == Version::V2 || hierarchy.has("cpuacct")
}

fn set_named(dir: &Dir, name: &CStr, text: &str) -> Result<()> {
    let fd = dir.open_file(".", OPEN)?;
    // SAFETY: the name is NUL-terminated, and the kernel reads as many bytes of the text as it has.
    let done = unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), text.as_ptr().cast(), text.len(), 0) };
    Errno::result(done).map(drop).map_err(|errno| Error::os("mark the directory", dir.path(), errno))
}

/// The mark of a directory. `None`: it has none, or is gone, or marks cannot be seen here (containers, where trusted attributes are not
/// shown).
pub fn get(dir: &Dir) -> Result<Option<String>> {
    get_named(dir, NAME)
}

/// What is noted of the job's grant; `None` as in [`get`].
pub fn allocated(dir: &Dir) -> Result<Option<String>> {
    get_named(dir, ALLOCATED)
}

/// What the card of the directory's job is to say; `None` as in [`get`].
pub fn card(dir: &Dir) -> Result<Option<String>> {
    get_named(dir, CARD)
}

/// What is noted of other limits than those of the grant; `None` as in [`get`].
pub fn resized(dir: &Dir) -> Result<Option<String>> {
    get_named(dir, RESIZED)
}

/// What is noted of what the job is lent; `None` as in [`get`].
pub fn lent(dir: &Dir) -> Result<Option<String>> {
    get_named(dir, LENT)
}

/// Whether systemd-oomd (or oomd) has killed the processes in this directory and below it.
///
/// It adds to the first attribute before it kills, and to the second when it has killed. Before release 251 it had the second alone
/// (`oomd_cgroup_kill`, src/oom/oomd-util.c). Facebook's oomd has the same two. They are of the kind that a directory's owner may write:
/// only who divides a cgroup of its own can forge them. Before Linux 5.7 no cgroup has such attributes.
pub fn is_killed_by_oomd(dir: &Dir) -> bool {
    [c"user.oomd_ooms", c"user.oomd_kill"].into_iter().any(|name| matches!(get_named(dir, name), Ok(Some(_))))
}

/// Whether there is such a note, of `what` (`cpus=` or `memory=`).
pub fn is_resized(dir: &Dir, what: &str) -> bool {
    resized(dir).is_ok_and(|text| text.is_some_and(|text| text.lines().any(|line| line.starts_with(what))))
}

fn get_named(dir: &Dir, name: &CStr) -> Result<Option<String>> {
    let fd = match dir.open_file(".", OPEN) {
        Err(error) if error.is_gone() => return Ok(None),
        fd => fd?,
    };
    let mut text = vec![0u8; LONGEST];
    // SAFETY: the name is NUL-terminated, and the kernel writes at most the length given into the buffer.
    let length = unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    match Errno::result(length) {
        Ok(length) => {
            text.truncate(usize::try_from(length).unwrap_or(0));
            Ok(Some(String::from_utf8_lossy(&text).into_owned()))
        }
        Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::ENOENT | Errno::ENODEV) => Ok(None),
        Err(errno) => Err(Error::os("read the mark of the directory", dir.path(), errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_found_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root can mark a directory");
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        assert_eq!(get(&dir).unwrap(), None);
        match set(&dir, "a\nb\n") {
            Err(error) if error.kernel_errno() == Some(Errno::EOPNOTSUPP) => {
                return crate::skip::skip("no extended attributes on the file system of temporary files");
            }
            done => done.unwrap(),
        }
        set(&dir, "c\n").unwrap();
        assert_eq!(get(&dir).unwrap().as_deref(), Some("c\n"));
        let longest = "x".repeat(LONGEST / 2);
        remove_card(&dir).unwrap();
        set_card(&dir, &longest).unwrap();
        assert_eq!(card(&dir).unwrap(), Some(longest));
        remove_card(&dir).unwrap();
        assert_eq!((card(&dir).unwrap(), get(&dir).unwrap().as_deref()), (None, Some("c\n")));
    }
}
