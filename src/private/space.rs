// SPDX-License-Identifier: GPL-2.0-or-later
//! How much space a job has in its own directories. A tmpfs has a size of its own. On disk nothing holds a limit yet, so it is refused.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// Refuses to limit what will be in this directory on disk.
pub(super) fn limit(dir: &Dir) -> Result<()> {
    Err(Error::new("PrivateTmpSpace cannot be held on disk:").at(dir.path()).hint(
        "set PrivateTmpBase=none, so that jobs' own directories are in a tmpfs of this size, or PrivateTmpSpace=unlimited",
    ))
}

/// Whether nothing more can be written there. Not known counts as no.
pub(super) fn is_full(path: &Path) -> bool {
    statvfs(path).is_ok_and(|vfs| {
        vfs.blocks() > 0 && vfs.blocks_available() == 0 || vfs.files() > 0 && vfs.files_available() == 0
    })
}
