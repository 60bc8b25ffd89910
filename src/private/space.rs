// SPDX-License-Identifier: GPL-2.0-or-later
//! How much space a job has in its own directories on disk: a project quota of ext4 or xfs. A tmpfs has a size of its own.
//!
//! The project's number is chosen by the quota file itself: the first of ours that has neither a limit nor a file. The kernel lets the
//! owner of a file change its project, so this holds for programs that write too much, and not for a user who wants to get past it.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// Where our numbers begin: far above what sites number by hand.
const FIRST: u32 = 0x6a66_0000;
/// How many there are.
const COUNT: u32 = 0x1_0000;
/// `FS_XFLAG_PROJINHERIT`: what is made in the directory belongs to its project.
const INHERIT: u32 = 0x200;
/// `PRJQUOTA`.
const OF_PROJECTS: u32 = 2;
/// `Q_GETQUOTA` and `Q_SETQUOTA` of linux/quota.h.
const GET: u32 = 0x80_0007;
const SET: u32 = 0x80_0008;
/// `QIF_BLIMITS`: the limits of space are valid.
const LIMITS_OF_SPACE: u32 = 1;
/// In which the kernel counts space.
const BLOCK: u64 = 1024;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProjectAttributes {
    flags: u32,
    extent: u32,
    extents: u32,
    project: u32,
    cow_extent: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk` of linux/quota.h.
#[repr(C)]
#[derive(Default)]
struct ProjectQuota {
    hard: u64,
    soft: u64,
    space: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    inodes: u64,
    time: u64,
    inodes_time: u64,
    valid: u32,
}

/// Limits what will be in this empty directory.
pub(super) fn limit(dir: &Dir, bytes: u64) -> Result<()> {
    let refused = |errno| {
        Error::os("PrivateTmpSpace cannot be held on disk:", dir.path(), errno).hint(
            "mount the file system of PrivateTmpBase with project quotas (ext4 and xfs have them: option prjquota), or set \
             PrivateTmpBase=none, so that jobs' own directories are in a tmpfs of this size, or PrivateTmpSpace=unlimited",
        )
    };
    let file = opened(dir).map_err(refused)?;
    // A job's earlier attempt may have chosen one.
    let project = match project_of(&file).map_err(refused)? {
        0 => free_project(dir, &file).map_err(refused)?,
        project => project,
    };
    let quota = ProjectQuota { hard: bytes.div_ceil(BLOCK), valid: LIMITS_OF_SPACE, ..ProjectQuota::default() };
    change(dir, &file, project, quota).map_err(refused)?;
    // A limit that was not seen in the kernel was not set.
    let (seen, of) = (read(dir, &file, project).map_err(refused)?, project_of(&file).map_err(refused)?);
    if (seen.hard, of) == (bytes.div_ceil(BLOCK), project) { Ok(()) } else { Err(refused(Errno::EOPNOTSUPP)) }
}

/// Takes the limit back when the directory is empty, so that its number is free. None of other programs.
pub(super) fn forget(dir: &Dir) {
    let Ok(file) = opened(dir) else { return };
    if let Ok(project) = project_of(&file)
        && (FIRST..FIRST + COUNT).contains(&project)
    {
        let _ = change(dir, &file, project, ProjectQuota { valid: LIMITS_OF_SPACE, ..ProjectQuota::default() });
    }
}

/// Whether nothing more can be written there. Not known counts as no.
pub(super) fn is_full(path: &Path) -> bool {
    statvfs(path).is_ok_and(|vfs| {
        vfs.blocks() > 0 && vfs.blocks_available() == 0 || vfs.files() > 0 && vfs.files_available() == 0
    })
}

fn opened(dir: &Dir) -> nix::Result<OwnedFd> {
    openat(dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

fn attributes(file: &OwnedFd) -> nix::Result<ProjectAttributes> {
    let mut attributes = ProjectAttributes::default();
    // SAFETY: an open file, and a place of the size that the request is declared with.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) })?;
    Ok(attributes)
}

fn project_of(file: &OwnedFd) -> nix::Result<u32> {
    attributes(file).map(|attributes| attributes.project)
}

/// Gives the directory the first project that nothing else has.
fn free_project(dir: &Dir, file: &OwnedFd) -> nix::Result<u32> {
    for project in FIRST..FIRST + COUNT {
        let quota = read(dir, file, project)?;
        if (quota.hard, quota.soft, quota.space, quota.inodes) != (0, 0, 0, 0) {
            continue;
        }
        let wanted = ProjectAttributes { project, ..attributes(file)? };
        let wanted = ProjectAttributes { flags: wanted.flags | INHERIT, ..wanted };
        // SAFETY: an open file, and attributes of the size that the request is declared with.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const wanted) })?;
        return Ok(project);
    }
    Err(Errno::ENOSPC)
}

fn read(dir: &Dir, file: &OwnedFd, project: u32) -> nix::Result<ProjectQuota> {
    let mut quota = ProjectQuota::default();
    match control(dir, file, GET, project, &mut quota) {
        // xfs, which has none for a number that was never used.
        Err(Errno::ENOENT) => Ok(ProjectQuota::default()),
        done => done.map(|()| quota),
    }
}

fn change(dir: &Dir, file: &OwnedFd, project: u32, mut quota: ProjectQuota) -> nix::Result<()> {
    control(dir, file, SET, project, &mut quota)
}

/// By the file's own handle, or before Linux 5.14 by the device.
fn control(dir: &Dir, file: &OwnedFd, command: u32, project: u32, quota: &mut ProjectQuota) -> nix::Result<()> {
    let command = (command << 8) | OF_PROJECTS;
    let quota: *mut ProjectQuota = quota;
    // SAFETY: an open file, a command, a number, and a place of the size that both commands are declared with.
    match Errno::result(unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, project, quota) }) {
        Err(Errno::ENOSYS) => {}
        done => return done.map(drop),
    }
    let device = device(dir).ok_or(Errno::ENODEV)?;
    // SAFETY: a command, a NUL-terminated path, a number, and the same place.
    Errno::result(unsafe { libc::syscall(libc::SYS_quotactl, command, device.as_ptr(), project, quota) }).map(drop)
}

/// The path of the device on which a directory is.
fn device(dir: &Dir) -> Option<CString> {
    let of = dir.stat().ok()?.st_dev;
    let link = std::fs::read_link(format!("/sys/dev/block/{}:{}", libc::major(of), libc::minor(of))).ok()?;
    CString::new(format!("/dev/{}", link.file_name()?.to_str()?)).ok()
}

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820_u32 as libc::Ioctl;
