// SPDX-License-Identifier: GPL-2.0-or-later
//! Mounts and the mount namespace of this process. No other code mounts.
//!
//! A place is named by a handle and never by its path: between a look at a path and its use, a user could put a link there.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd};
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
