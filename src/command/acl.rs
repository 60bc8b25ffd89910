// SPDX-License-Identifier: GPL-2.0-or-later
//! A root-owned file that one user can read, by a POSIX access control list (acl(5)). As its owner the user could change the file, and the
//! user's group may have other members.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

const NAME: &CStr = c"system.posix_acl_access";

/// The format of the attribute, as in the kernel's `linux/posix_acl_xattr.h`: the version, then tag, permissions and id of each entry.
const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const READ: u16 = 4;
const NO_ID: u32 = u32::MAX;

/// Allows only the file's owner and this user to read it.
pub fn let_read(file: &File, uid: u32) -> nix::Result<()> {
    let entries =
        [(USER_OBJ, READ, NO_ID), (USER, READ, uid), (GROUP_OBJ, 0, NO_ID), (MASK, READ, NO_ID), (OTHER, 0, NO_ID)];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    // SAFETY: the name is NUL-terminated, and the kernel reads as many bytes of the value as it has.
    let done = unsafe { libc::fsetxattr(file.as_raw_fd(), NAME.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(done).map(drop)
}
