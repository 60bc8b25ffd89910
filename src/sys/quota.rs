// SPDX-License-Identifier: GPL-2.0-or-later
//! Quotas of projects: how much space all files with one project id may take in a file system (ext4, xfs).
//!
//! A directory with the flag [`PROJINHERIT`] hands its project id down to what is made in it. The structures are those of
//! include/uapi/linux/quota.h, dqblk_xfs.h and fs.h. fs/quota/quota.c answers for each kind of file system alike.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, major, minor};

use super::dir::Dir;

/// `FS_XFLAG_PROJINHERIT`.
pub const PROJINHERIT: u32 = 0x200;
/// `FS_XFLAG_RTINHERIT`: what is made in it is on the realtime device of xfs.
pub const RTINHERIT: u32 = 0x100;
/// `FS_XFLAG_NODUMP`: for dump(8).
pub const NODUMP: u32 = 0x80;

/// The attributes of a file, of which only those of projects are used: `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FileAttributes {
    /// `fsx_xflags`.
    pub flags: u32,
    extent_size: u32,
    extents: u32,
    /// The project id. 0: none.
    pub project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// What a project uses and may use: `struct if_dqblk`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectQuota {
    /// In KiB. 0: no limit, here and below.
    pub hard_limit: u64,
    /// In KiB: what may be passed for some days.
    pub soft_limit: u64,
    /// In bytes.
    pub space: u64,
    /// How many files it may have.
    pub hard_limit_of_files: u64,
    /// How many it may have for some days.
    pub soft_limit_of_files: u64,
    /// How many files and directories it has.
    pub files: u64,
    times: [u64; 2],
    valid: u32,
}

const GET_ATTRIBUTES: libc::Ioctl = libc::_IOR::<FileAttributes>(b'X' as u32, 31);
const SET_ATTRIBUTES: libc::Ioctl = libc::_IOW::<FileAttributes>(b'X' as u32, 32);
const Q_GETQUOTA: u32 = 0x0080_0007;
const Q_SETQUOTA: u32 = 0x0080_0008;
const Q_XGETQSTATV: u32 = 0x5808;
/// The kind of quotas in the lowest byte of a command.
const PRJQUOTA: u32 = 2;
/// `QIF_BLIMITS`: the limits of space are to be set.
const LIMITS_OF_SPACE: u32 = 1;
/// `FS_QUOTA_PDQ_ENFD`.
const IS_ENFORCED: u8 = 1 << 5;

/// Whether the kernel holds limits of projects in this file system. False also where it only counts.
pub fn is_enforced(within: &Dir) -> nix::Result<bool> {
    // `struct fs_quota_statv`, of 160 bytes. The first byte is the version that is asked for, and the third and fourth are the flags.
    let mut state = [0_u64; 32];
    state[0] = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
    match call(within, Q_XGETQSTATV, 0, state.as_mut_ptr().cast()) {
        Ok(()) => {
            let flags = state[0].to_ne_bytes();
            Ok((flags[2] | flags[3]) & IS_ENFORCED != 0)
        }
        Err(errno) if is_off(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether this error says that there are no quotas: switched off, not in this kind of file system, or in none with a block device.
pub fn is_off(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSYS | Errno::ESRCH | Errno::EINVAL | Errno::ENODEV)
}

/// What a project uses, and its limits.
pub fn look(within: &Dir, project: u32) -> nix::Result<ProjectQuota> {
    let mut quota = ProjectQuota::default();
    match call(within, Q_GETQUOTA, project, (&raw mut quota).cast()) {
        // xfs notes nothing about a project that has never had a file.
        Ok(()) | Err(Errno::ENOENT) => Ok(quota),
        Err(errno) => Err(errno),
    }
}

/// Limits a project's space to so many KiB. 0: takes the limit away.
pub fn limit(within: &Dir, project: u32, hard_limit: u64) -> nix::Result<()> {
    let mut quota = ProjectQuota { hard_limit, valid: LIMITS_OF_SPACE, ..ProjectQuota::default() };
    call(within, Q_SETQUOTA, project, (&raw mut quota).cast())
}

/// The attributes of a directory.
pub fn attributes(of: &Dir) -> nix::Result<FileAttributes> {
    let mut found = FileAttributes::default();
    ask(of, GET_ATTRIBUTES, &mut found)?;
    Ok(found)
}

/// Changes them. The kernel lets the owner of a file do this, and root (`vfs_fileattr_set`).
pub fn set_attributes(of: &Dir, mut wanted: FileAttributes) -> nix::Result<()> {
    ask(of, SET_ATTRIBUTES, &mut wanted)
}

#[inline(never)]
fn ask(of: &Dir, request: libc::Ioctl, attributes: &mut FileAttributes) -> nix::Result<()> {
    let open = openat(of, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    // SAFETY: an open file, and a structure of the size with which both requests are declared.
    Errno::result(unsafe { libc::ioctl(open.as_raw_fd(), request, &raw mut *attributes) }).map(drop)
}

/// `quotactl_fd`(2) of Linux 5.14, or before that quotactl(2).
///
/// `about` points to what the command takes: 256 bytes, or a [`ProjectQuota`].
#[inline(never)]
fn call(within: &Dir, command: u32, project: u32, about: *mut libc::c_char) -> nix::Result<()> {
    match call_by_handle(within, command, project, about) {
        Err(Errno::ENOSYS) => call_by_device(within, command, project, about),
        done => done,
    }
}

fn call_by_handle(within: &Dir, command: u32, project: u32, about: *mut libc::c_char) -> nix::Result<()> {
    let (handle, command) = (within.as_fd().as_raw_fd(), (command << 8) | PRJQUOTA);
    // SAFETY: an open descriptor, and a place of the size that the command takes, of this module's functions.
    Errno::result(unsafe { libc::syscall(libc::SYS_quotactl_fd, handle, command, project as usize, about) }).map(drop)
}

/// The older call wants the path of the block device.
fn call_by_device(within: &Dir, command: u32, project: u32, about: *mut libc::c_char) -> nix::Result<()> {
    let (device, command) = (device(within)?, (command << 8) | PRJQUOTA);
    // SAFETY: a NUL-terminated path, and as above.
    Errno::result(unsafe { libc::quotactl(command.cast_signed(), device.as_ptr(), project.cast_signed(), about) })
        .map(drop)
}

/// The block device below a file system, as the kernel names it in `/dev`.
fn device(within: &Dir) -> nix::Result<std::ffi::CString> {
    let device = within.stat().map_err(|_| Errno::ENODEV)?.st_dev;
    let about = format!("/sys/dev/block/{}:{}/uevent", major(device), minor(device));
    let about = std::fs::read_to_string(about).map_err(|_| Errno::ENODEV)?;
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME=")).ok_or(Errno::ENODEV)?;
    std::ffi::CString::new(format!("/dev/{name}")).map_err(|_| Errno::ENODEV)
}

const _: () = assert!(size_of::<FileAttributes>() == 28 && size_of::<ProjectQuota>() == 72);

/// Does the work in a file system with quotas of projects. `None`: this kernel, or this user, mounts none.
#[cfg(test)]
pub(crate) fn with_quotas<T>(work: impl FnOnce(&std::path::Path) -> T) -> Option<T> {
    use std::process::Command;

    let temp = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, place) = (temp.path().join("image"), temp.path().join("place"));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    std::fs::create_dir(&place).unwrap();
    let is_done = |program, words: &[&str]| {
        Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
    };
    let (image, mounted) = (image.to_str().unwrap(), place.to_str().unwrap());
    if !is_done("mkfs.ext4", &["-q", "-O", "quota,project", "-E", "quotatype=prjquota", image])
        || !is_done("mount", &["-o", "loop,prjquota", image, mounted])
    {
        return None;
    }
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&place)));
    assert!(is_done("umount", &["--lazy", mounted]));
    Some(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On kernels that have both calls.
    #[test]
    #[ignore = "needs a kernel with quotas of projects, as in the guests"]
    fn the_older_call_says_and_does_the_same() {
        let calls = [call_by_handle, call_by_device];
        let seen = with_quotas(|place| {
            let dir = Dir::open(place).unwrap();
            assert_eq!(is_enforced(&dir), Ok(true));
            [0, 1].map(|n| {
                let mut state = [0_u64; 32];
                state[0] = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
                calls[n](&dir, Q_XGETQSTATV, 0, state.as_mut_ptr().cast()).unwrap();
                let mut wanted =
                    ProjectQuota { hard_limit: 64 << n, valid: LIMITS_OF_SPACE, ..ProjectQuota::default() };
                calls[n](&dir, Q_SETQUOTA, 7, (&raw mut wanted).cast()).unwrap();
                let mut found = ProjectQuota::default();
                calls[1 - n](&dir, Q_GETQUOTA, 7, (&raw mut found).cast()).unwrap();
                (state[0], found.hard_limit)
            })
        });
        let Some([by_handle, by_device]) = seen else {
            return crate::skip::skip("this kernel, or this user, mounts no ext4 with quotas of projects");
        };
        assert_eq!((by_handle.0, by_handle.1, by_device.1), (by_device.0, 64, 128));
    }
}
