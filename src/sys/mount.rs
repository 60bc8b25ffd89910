// SPDX-License-Identifier: GPL-2.0-or-later
//! Mounts and the mount namespace of this process. No other code mounts.
//!
//! A place is named by a handle and never by its path: between a look at a path and its use, a user could put a link there.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::dir::Dir;
use crate::error::{Error, Result};

/// Gives this process a mount namespace of its own. What the host mounts later appears in it, and nothing that is mounted in it appears
/// on the host. Other threads of the process would stay where they are, so it must have one.
pub fn leave_hosts() -> Result<()> {
    // SAFETY: a flag.
    Errno::result(unsafe { libc::unshare(libc::CLONE_NEWNS) })
        .map_err(|errno| Error::new("make a mount namespace").errno(errno))?;
    change(c"/", libc::MS_SLAVE | libc::MS_REC).map_err(|errno| Error::os("keep mounts from the host at", "/", errno))
}

/// Shows a file or directory (`from`) in the place of another of the same kind, with these flags of mount(2) in addition.
pub fn bind(from: &impl AsFd, onto: &impl AsFd, flags: libc::c_ulong) -> nix::Result<()> {
    let (from, onto) = (by_handle(from), by_handle(onto));
    call(Some(&from), &onto, None, libc::MS_BIND, None)?;
    Ok(()).and_then(|()| if flags == 0 { Ok(()) } else { change_top(&onto, flags) })
}

/// The handle of what lies below the new mount names the same place, so the path is looked up again from it.
fn change_top(onto: &CStr, flags: libc::c_ulong) -> nix::Result<()> {
    let below = Path::new(onto.to_str().map_err(|_| Errno::EINVAL)?);
    let path = std::fs::read_link(below).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let top = open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    change(&by_handle(&top), libc::MS_REMOUNT | libc::MS_BIND | flags)
}

/// Mounts a new tmpfs on this directory of root's.
pub fn tmpfs(onto: &Dir, options: &CStr) -> Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    call(Some(c"tmpfs"), &by_handle(onto), Some(c"tmpfs"), flags, Some(options))
        .map_err(|errno| Error::os("mount a tmpfs on", onto.path(), errno).value(options.to_string_lossy()))
}

/// Mounts on this place the POSIX message queues of this process's IPC namespace, with the flags that systemd's mount has
/// (units/dev-mqueue.mount).
pub fn queues(onto: &impl AsFd) -> nix::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    call(Some(c"mqueue"), &by_handle(onto), Some(c"mqueue"), flags, None)
}

/// Keeps mounts below this mount from all other namespaces.
pub fn keep_private(mounted: &Dir) -> Result<()> {
    change(&by_handle(mounted), libc::MS_PRIVATE)
        .map_err(|errno| Error::os("keep mounts from other namespaces at", mounted.path(), errno))
}

/// Takes the topmost mount away from this place, whether or not it is in use.
pub fn detach(mounted: &impl AsFd) -> nix::Result<()> {
    // SAFETY: a NUL-terminated path and a flag.
    Errno::result(unsafe { libc::umount2(by_handle(mounted).as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// A proc that is not mounted yet, of this process's PID namespace. If it `hides`, a process sees there only those that it may trace. Nothing
/// of the host's changes.
///
/// Since Linux 5.8 each mount of proc has options of its own, and knows this value by its name. Before that all mounts share the options,
/// and the name is refused with `EINVAL`: fs/proc/root.c. Before 5.2 there is no such call: `ENOSYS`.
pub fn prepare_proc(hides: bool) -> nix::Result<OwnedFd> {
    // SAFETY: a NUL-terminated text, a flag, and what the kernel does not read.
    let context = unsafe { new_call(libc::SYS_fsopen, c"proc".as_ptr() as usize, FSOPEN_CLOEXEC, 0, 0, 0) };
    let context = owned(context)?;
    // The source is what programs read in the table of mounts.
    let options = [(c"hidepid", c"ptraceable"), (c"source", c"proc")];
    for (key, value) in options.into_iter().skip(usize::from(!hides)) {
        configure(&context, FSCONFIG_SET_STRING, key.as_ptr() as usize, value.as_ptr() as usize)?;
    }
    Ok(context)
}

/// Makes a mount of what was prepared, which is in no namespace yet. `flags` are those of statvfs(3).
pub fn make_prepared(context: &OwnedFd, flags: libc::c_ulong) -> nix::Result<OwnedFd> {
    configure(context, FSCONFIG_CMD_CREATE, 0, 0)?;
    // The attributes have the numbers of the flags (linux/mount.h).
    let attributes = flags & (libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC);
    // SAFETY: an open descriptor, and flags.
    owned(unsafe { new_call(libc::SYS_fsmount, raw(context), FSMOUNT_CLOEXEC, attributes as usize, 0, 0) })
}

/// Shows what is mounted at this path below one directory at the same path below another, with what is mounted below it and all flags.
pub fn copy_tree(from: &impl AsFd, onto: &impl AsFd, path: &str) -> nix::Result<()> {
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: an open descriptor, a NUL-terminated text, and flags.
    let tree = owned(unsafe { new_call(libc::SYS_open_tree, raw(from), path.as_ptr() as usize, COPY_TREE, 0, 0) })?;
    put(&tree, onto, &path)
}

/// Mounts it at this path below a directory. The path is not looked at if it is empty.
pub fn put(tree: &OwnedFd, within: &impl AsFd, path: &CStr) -> nix::Result<()> {
    let (from, onto) = (raw(tree), raw(within));
    // SAFETY: open descriptors, NUL-terminated texts, and flags.
    Errno::result(unsafe {
        new_call(libc::SYS_move_mount, from, c"".as_ptr() as usize, onto, path.as_ptr() as usize, MOVE_BY_HANDLES)
    })
    .map(drop)
}

// The numbers are from linux/mount.h and linux/fcntl.h.
const FSOPEN_CLOEXEC: usize = 1;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const FSMOUNT_CLOEXEC: usize = 1;
/// `MOVE_MOUNT_F_EMPTY_PATH` and `MOVE_MOUNT_T_EMPTY_PATH`.
const MOVE_BY_HANDLES: usize = 0x4 | 0x40;
/// `OPEN_TREE_CLONE`, `OPEN_TREE_CLOEXEC`, `AT_RECURSIVE`, and `AT_NO_AUTOMOUNT`: a look mounts nothing on the host.
const COPY_TREE: usize = 1 | libc::O_CLOEXEC as usize | 0x8000 | 0x800;

fn configure(context: &OwnedFd, command: usize, key: usize, value: usize) -> nix::Result<()> {
    // SAFETY: an open descriptor, and NUL-terminated texts where the command takes them.
    Errno::result(unsafe { new_call(libc::SYS_fsconfig, raw(context), command, key, value, 0) }).map(drop)
}

/// The calls by which a file system is mounted in steps. The C library of older systems has no functions for them.
///
/// # Safety
///
/// The words must be what the call takes.
unsafe fn new_call(call: libc::c_long, a: usize, b: usize, c: usize, d: usize, e: usize) -> libc::c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(call, a, b, c, d, e) }
}

fn raw(of: &impl AsFd) -> usize {
    of.as_fd().as_raw_fd().unsigned_abs() as usize
}

fn owned(made: libc::c_long) -> nix::Result<OwnedFd> {
    let fd = i32::try_from(Errno::result(made)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn by_handle(of: &impl AsFd) -> CString {
    CString::new(format!("/proc/self/fd/{}", of.as_fd().as_raw_fd())).unwrap_or_default()
}

fn change(onto: &CStr, flags: libc::c_ulong) -> nix::Result<()> {
    call(None, onto, None, flags, None)
}

fn call(
    from: Option<&CStr>,
    onto: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> nix::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: each is null, where mount(2) allows that, or a NUL-terminated text that outlives the call.
    Errno::result(unsafe { libc::mount(pointer(from), onto.as_ptr(), pointer(kind), flags, pointer(options).cast()) })
        .map(drop)
}
