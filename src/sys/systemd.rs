// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether systemd is the service manager, and what it says of a directory.

use std::path::Path;

use nix::errno::Errno;

use super::dir::Dir;

/// Whether systemd runs, as sd_booted(3) finds it.
pub fn is_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether systemd says that a directory is delegated; `None` where it cannot say so (a file system without xattrs).
pub fn is_delegated(dir: &Dir) -> Option<bool> {
    let path = dir.handle_path();
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
    let mut unsupported = false;
    for name in [c"trusted.delegate", c"user.delegate"] {
        let mut value = [0u8; 8];
        // SAFETY: both names are NUL-terminated, and the kernel writes at most the length given into the buffer.
        let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        if n == 1 && value.first() == Some(&b'1') {
            return Some(true);
        }
        unsupported |= n < 0 && matches!(Errno::last(), Errno::EOPNOTSUPP | Errno::EPERM);
    }
    if unsupported { None } else { Some(false) }
}
