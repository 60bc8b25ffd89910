// SPDX-License-Identifier: GPL-2.0-or-later
//! How much space a job has in its own directories. A tmpfs has a size of its own. On disk it is the limit of a project, which each job
//! has for itself, where the file system has such quotas. Otherwise it is refused.
//!
//! The project is noted nowhere but in the job's directory on disk. So it is found after a crash and after a boot, too.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};
use crate::sys::dir::Dir;
use crate::sys::quota::{self, FileAttributes, NODUMP, PROJINHERIT, ProjectQuota, RTINHERIT};

/// The projects of jobs are from 2^30 up to 2^31. The kubelet begins at 2^20, systemd at 2^31, and sites with 1.
const OURS: u32 = 1 << 30;
/// How many of the lowest are tried. They are used again and again: xfs takes a block for each thirty neighbours that were ever used, and
/// never frees it.
const LOW: u32 = 512;
/// Two processes seldom begin with the same one of so many.
const SPREAD: u32 = 16;
/// How many are tried anywhere in the range, if a user has given files to all of the lowest.
const TRIES: usize = 16;
/// In KiB: the largest block of a file system. A limit is a whole number of blocks.
const BLOCK: u64 = 64;
/// Where a site names its projects: projid(5).
const NAMED: &str = "/etc/projid";
/// Says of a directory that handed its project down before [`let_in`].
const HANDED_DOWN: u32 = NODUMP;

/// Refuses to limit space below a directory on disk if nothing would hold the limit.
pub(super) fn check(dir: &Dir) -> Result<()> {
    if !quota::is_enforced(dir).map_err(failed(dir))? {
        return Err(Error::new("PrivateTmpSpace cannot be held on disk without project quotas:")
            .at(dir.path())
            .hint("mount that file system with prjquota, or set PrivateTmpBase=none, or PrivateTmpSpace=unlimited"));
    }
    let flags = quota::attributes(dir).map_err(failed(dir))?.flags;
    let obstacles = [
        // A file has one project. In such a directory, jobs would leave that which bounds it.
        (
            PROJINHERIT,
            "PrivateTmpSpace cannot be held in a project of the site's own:",
            "take that directory out of it with chattr -P",
        ),
        // Its blocks have a limit of their own.
        (
            RTINHERIT,
            "PrivateTmpSpace cannot be held on the realtime device of xfs:",
            "take that directory off it with xfs_io -c 'chattr -t'",
        ),
    ];
    match obstacles.into_iter().find(|(flag, ..)| flags & flag != 0) {
        Some((_, why, hint)) => Err(Error::new(why).at(dir.path()).hint(hint)),
        None => Ok(()),
    }
}

/// Limits the space of a new and empty directory of a job's.
pub(super) fn limit(dir: &Dir, bytes: u64) -> Result<()> {
    let named = named(NAMED)?;
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let ids = numbers(nanos).filter(|id| !named.contains(&id.to_string()));
    claim(dir, ids, bytes / 1024 / BLOCK * BLOCK).map_err(|errno| match errno {
        // An xfs without projid32bit, and `fileattr_set_prepare` of the kernel.
        Errno::EINVAL => {
            Error::new("PrivateTmpSpace cannot be held, since the kernel takes no project of ten digits for")
                .at(dir.path())
                .hint(
                    "an old xfs needs projid32bit (xfs_admin -p), and no root of a user namespace can do it. Or set \
                 PrivateTmpBase=none, or PrivateTmpSpace=unlimited",
                )
        }
        errno => failed(dir)(errno).hint("repquota -P shows which projects have limits there"),
    })
}

/// The numbers that are tried, in their order. Each has ten digits.
fn numbers(nanos: u32) -> impl Iterator<Item = u32> {
    let low = OURS + nanos / 1024 % SPREAD;
    (low..low + LOW).chain((OURS | nanos..).take(TRIES))
}

/// What the site has named. No such file is nothing.
fn named(path: &str) -> Result<String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Error::os("read", path, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))),
    }
}

/// Takes the limit away from a directory of a job's that is empty now and will be removed. `all` is the directory above.
pub(super) fn forget(dir: &Dir, all: &Dir) -> Result<()> {
    forget_project(dir, all).map_err(failed(dir))
}

fn forget_project(dir: &impl Projects, all: &impl Projects) -> nix::Result<()> {
    // Not in each file system.
    let Ok(found) = dir.attributes() else { return Ok(()) };
    let project = found.project;
    // What a directory has from the one above it is the site's.
    if project & !(OURS - 1) != OURS || all.attributes().is_ok_and(|above| above.project == project) {
        return Ok(());
    }
    // It is perhaps another job's: the process died before it had seen that no one else has it.
    if found.flags & (PROJINHERIT | HANDED_DOWN) == 0 {
        return Ok(());
    }
    match dir.limit(project, 0) {
        Err(errno) if !quota::is_off(errno) => Err(errno),
        _ => Ok(()),
    }
}

/// Lets directories of other projects be moved into this one, after the kernel has refused it. Returns whether that was the reason. The
/// directory stays in its project.
pub(super) fn let_in(dir: &Dir) -> bool {
    let Ok(mut found) = quota::attributes(dir) else { return false };
    if found.flags & PROJINHERIT == 0 {
        return false;
    }
    found.flags = found.flags & !PROJINHERIT | HANDED_DOWN;
    quota::set_attributes(dir, found).is_ok()
}

/// Whether nothing more can be written there. Not known counts as no.
///
/// A project is full for a program before its last byte is used: ext4 and xfs take pages, larger pieces, or blocks for several files at
/// once. At 16 MiB, up to 184 KiB were left.
pub(super) fn is_full(path: &Path) -> bool {
    statvfs(path).is_ok_and(|vfs| {
        let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(vfs.fragment_size());
        bytes(vfs.blocks_available()) < (bytes(vfs.blocks()) / 64).min(256 << 10)
            || vfs.files() > 0 && vfs.files_available() == 0
    })
}

fn failed(dir: &Dir) -> impl Fn(Errno) -> Error {
    move |errno| Error::os("limit the space of", dir.path(), errno)
}

/// What is asked of the kernel for a directory.
trait Projects {
    fn attributes(&self) -> nix::Result<FileAttributes>;
    fn look(&self, project: u32) -> nix::Result<ProjectQuota>;
    fn limit(&self, project: u32, kib: u64) -> nix::Result<()>;
    /// Puts the directory into a project, and what will be made in it if it hands it down. 0: into none.
    fn put_into(&self, project: u32, hands_down: bool) -> nix::Result<()>;
}

impl Projects for Dir {
    fn attributes(&self) -> nix::Result<FileAttributes> {
        quota::attributes(self)
    }

    fn look(&self, project: u32) -> nix::Result<ProjectQuota> {
        quota::look(self, project)
    }

    fn limit(&self, project: u32, kib: u64) -> nix::Result<()> {
        quota::limit(self, project, kib)
    }

    fn put_into(&self, project: u32, hands_down: bool) -> nix::Result<()> {
        let mut wanted = quota::attributes(self)?;
        wanted.flags = wanted.flags & !(PROJINHERIT | HANDED_DOWN) | if hands_down { PROJINHERIT } else { 0 };
        wanted.project = project;
        quota::set_attributes(self, wanted)
    }
}

/// Gives the directory a project that nobody uses, with a limit in KiB. `EBUSY`: each is used. `EIO`: the kernel has set another limit.
///
/// Other processes do the same at the same time, with other locks or none. So what counts is that the directory is the project's only file
/// when it is in it: of two that have taken the same project, at least the later one sees both, and leaves. Only then does the directory
/// hand the project down, which tells [`forget`] that it is the directory's own.
fn claim(dir: &impl Projects, mut ids: impl Iterator<Item = u32>, wanted: u64) -> nix::Result<()> {
    let is_unused = |id, files| {
        let quota = dir.look(id)?;
        let limits = quota.hard_limit | quota.soft_limit | quota.hard_limit_of_files | quota.soft_limit_of_files;
        Ok(limits == 0 && quota.files == files)
    };
    loop {
        let id = ids.next().ok_or(Errno::EBUSY)?;
        if !is_unused(id, 0)? {
            continue;
        }
        dir.put_into(id, false)?;
        if is_unused(id, 1)? {
            dir.put_into(id, true)?;
            dir.limit(id, wanted)?;
            return if dir.look(id)?.hard_limit == wanted { Ok(()) } else { Err(Errno::EIO) };
        }
        dir.put_into(0, false)?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// A file system with one directory that is asked about, and what else its projects have.
    #[derive(Default)]
    struct FakeKernel {
        quotas: RefCell<BTreeMap<u32, ProjectQuota>>,
        project: Cell<u32>,
        hands_down: Cell<bool>,
        /// The project that another process takes at the same time.
        contested: u32,
        /// It takes limits of twice as much.
        doubles: bool,
    }

    impl Projects for FakeKernel {
        fn attributes(&self) -> nix::Result<FileAttributes> {
            let mut found = FileAttributes::default();
            found.project = self.project.get();
            found.flags = if self.hands_down.get() { PROJINHERIT } else { 0 };
            Ok(found)
        }

        fn look(&self, project: u32) -> nix::Result<ProjectQuota> {
            Ok(self.quotas.borrow().get(&project).copied().unwrap_or_default())
        }

        fn limit(&self, project: u32, kib: u64) -> nix::Result<()> {
            self.quotas.borrow_mut().entry(project).or_default().hard_limit = if self.doubles { 2 * kib } else { kib };
            Ok(())
        }

        fn put_into(&self, project: u32, hands_down: bool) -> nix::Result<()> {
            assert!(!hands_down || project != self.contested, "it is another process's, too");
            self.hands_down.set(hands_down);
            let mut quotas = self.quotas.borrow_mut();
            let before = self.project.replace(project);
            if before == project {
                return Ok(());
            }
            quotas.entry(before).and_modify(|quota| quota.files -= 1);
            if project != 0 {
                quotas.entry(project).or_default().files += if project == self.contested { 2 } else { 1 };
            }
            Ok(())
        }
    }

    fn quota(change: impl FnOnce(&mut ProjectQuota)) -> ProjectQuota {
        let mut quota = ProjectQuota::default();
        change(&mut quota);
        quota
    }

    #[test]
    fn a_job_takes_a_project_that_no_one_uses() {
        let used = [
            (1, quota(|quota| quota.files = 3)),
            (2, quota(|quota| quota.hard_limit = 9)),
            (3, quota(|quota| quota.soft_limit_of_files = 9)),
        ];
        let kernel = FakeKernel { quotas: RefCell::new(used.into()), contested: 4, ..FakeKernel::default() };
        claim(&kernel, 1..9, 64).unwrap();
        assert_eq!((kernel.project.get(), kernel.hands_down.get()), (5, true));
        let quotas = kernel.quotas.borrow();
        assert!(used.iter().all(|(id, quota)| quotas[id] == *quota), "{quotas:?}");
        assert_eq!((quotas[&4].files, quotas[&4].hard_limit), (1, 0), "the other process's");
        assert_eq!((quotas[&5].files, quotas[&5].hard_limit), (1, 64));
        assert!(!quotas.contains_key(&6));
    }

    #[test]
    fn no_directory_stays_without_its_limit() {
        let kernel = FakeKernel { contested: 1, ..FakeKernel::default() };
        assert_eq!((claim(&kernel, 1..2, 64), kernel.project.get()), (Err(Errno::EBUSY), 0));
        let kernel = FakeKernel { doubles: true, ..FakeKernel::default() };
        assert_eq!(claim(&kernel, 1..2, 64), Err(Errno::EIO));
    }

    #[test]
    fn only_the_limit_of_a_jobs_own_project_is_taken_away() {
        let left_of = |id: u32, above, hands_down: bool| {
            let used = [(id, quota(|quota| quota.hard_limit = 64))];
            let (project, hands_down) = (id.into(), hands_down.into());
            let kernel = FakeKernel { quotas: RefCell::new(used.into()), project, hands_down, ..FakeKernel::default() };
            forget_project(&kernel, &FakeKernel { project: Cell::new(above), ..FakeKernel::default() }).unwrap();
            kernel.quotas.borrow()[&id].hard_limit
        };
        let left = |id, above| left_of(id, above, true);
        let (ours, last) = (OURS + 7, OURS + 999_999_999);
        assert_eq!([left(ours, 0), left(last, 5)], [0, 0]);
        assert_eq!([left(7, 0), left(OURS * 2, 0), left(ours, ours)], [64, 64, 64]);
        // A process died when two had taken the same one.
        assert_eq!(left_of(ours, 0, false), 64);
    }

    /// xfs never frees what it has noted of a project.
    #[test]
    fn jobs_use_few_projects_again_and_again() {
        for nanos in [0, 999_999_999] {
            let all: Vec<u32> = numbers(nanos).collect();
            assert!(all.iter().all(|id| (OURS..2 * OURS).contains(id)), "{all:?}");
            assert!(all[..LOW as usize].iter().all(|id| *id < OURS + LOW + SPREAD), "{all:?}");
            assert_eq!((all[LOW as usize], all.len()), (OURS | nanos, LOW as usize + TRIES));
        }
    }

    #[test]
    fn names_of_projects_that_cannot_be_read_are_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("projid");
        let read = || named(path.to_str().unwrap());
        assert_eq!(read().unwrap(), "");
        fs::write(&path, b"caf\xe9:1073741824\n").unwrap();
        assert!(read().unwrap().contains(":1073741824"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }

    /// The kernel knows the flag without quotas, too.
    #[test]
    fn other_projects_are_let_in_once() {
        let temp = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        assert!(!let_in(&dir));
        let Ok(mut found) = quota::attributes(&dir) else {
            return crate::skip::skip("this file system has no such flags");
        };
        found.flags |= PROJINHERIT;
        if quota::set_attributes(&dir, found).is_err() {
            return crate::skip::skip("this file system has no projects");
        }
        assert!(let_in(&dir) && !let_in(&dir));
        assert_eq!(quota::attributes(&dir).unwrap().flags & (PROJINHERIT | HANDED_DOWN), HANDED_DOWN);
    }

    #[test]
    fn what_has_no_room_for_a_page_is_full() {
        let temp = tempfile::tempdir().unwrap();
        let place = Dir::open(temp.path()).unwrap();
        if crate::sys::mount::tmpfs(&place, c"mode=0700,size=16m").is_err() {
            return crate::skip::skip("needs root");
        }
        let full = [0, 12 << 20, (16 << 20) - (128 << 10), 16 << 20].map(|bytes| {
            fs::write(temp.path().join("file"), vec![0; bytes]).unwrap();
            is_full(temp.path())
        });
        crate::sys::mount::detach(&Dir::open(temp.path()).unwrap()).unwrap();
        assert_eq!(full, [false, false, true, true]);
    }
}
