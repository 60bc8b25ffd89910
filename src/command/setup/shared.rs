// SPDX-License-Identifier: GPL-2.0-or-later
//! Directories that several nodes have in common: a file there is not this node's alone.

use std::path::Path;

use nix::sys::statfs::statfs;

/// File systems that several nodes can have mounted, by the magic numbers of statfs(2) and of their own sources: NFS, SMB, Ceph, AFS,
/// Lustre, GPFS, BeeGFS, and FUSE, by which many more are mounted.
const SHARED: [u32; 9] =
    [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x5346_414f, 0x0bd0_0bd0, 0x4750_4653, 0x1983_0326, 0x6573_5546];

/// Whether several nodes can have this directory, or the one in which it would be made.
pub fn is_shared(directory: &Path) -> bool {
    let found = directory.ancestors().find_map(|directory| statfs(directory).ok());
    // The kernel's numbers have 32 bits.
    found.is_some_and(|found| SHARED.contains(&(found.filesystem_type().0 as u32)))
}
