// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs send and receive. `jobfence hold` attaches two programs to the directory above all users' directories, one for each
//! direction. They count by the job's directory, whose number every packet's socket knows, and hold back what a job sends too fast.
//!
//! So no job needs a program, and none is there too late for a job's first packet. A launch only writes the bound of its job into the
//! programs' table, where it holds before the job's first process starts. Programs and tables live as long as the directory, also while
//! no `hold` runs.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::sys::bpf::map::BpfMap;
use crate::sys::bpf::{ProgramKind, attached, ours};
use crate::sys::dir::Dir;

/// `BPF_PROG_TYPE_CGROUP_SKB` and `BPF_CGROUP_INET_EGRESS`: what sockets send, before it is queued for a device.
pub const EGRESS: ProgramKind =
    ProgramKind { kind: 8, expected: 1, attach: 1, name: "jobfence_net_e", words: "network program" };

/// The same, and `BPF_CGROUP_INET_INGRESS`: what arrives for sockets.
pub const INGRESS: ProgramKind =
    ProgramKind { kind: 8, expected: 0, attach: 0, name: "jobfence_net_i", words: "network program" };

/// The name of the table of bounds: by the number of a job's directory how many bytes a second may leave, and when the next packet may,
/// in nanoseconds of `CLOCK_MONOTONIC`.
pub const BOUNDS: &str = "jobfence_bounds";

/// The key of [`BOUNDS`].
pub type BoundKey = u64;
/// The value of [`BOUNDS`].
pub type BoundValue = [u64; 2];

/// Bounds what the job with this directory sends, in bytes a second, and reads that back.
pub fn bound(job: &Dir, rate: u64) -> Result<()> {
    let branch = job.child("../..")?;
    let key = job.stat()?.st_ino;
    match table(&branch).and_then(|table| table.map_or(Ok(false), |table| put(&table, key, rate))) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new("no program holds back what jobs send (NetworkMax), at").at(job.path()).hint(
            "'jobfence hold' (jobfence.service) attaches it: does it run with this configuration, and what does it say?",
        )),
        Err(errno) => Err(Error::new("cannot bound the network of").at(job.path()).errno(errno).value(rate)),
    }
}

fn put(table: &BpfMap, key: BoundKey, rate: u64) -> Result<bool, Errno> {
    // A job's next step leaves it as it is: what the job has sent too fast still counts.
    for value in [None, Some([rate, 0])] {
        if let Some(value) = value {
            table.set::<BoundKey, BoundValue>(key, value)?;
        }
        if table.get::<BoundKey, BoundValue>(key)?.is_some_and(|[is, _]| is == rate) {
            return Ok(true);
        }
    }
    Err(Errno::ENOENT)
}

/// The table of the programs at a directory. `None`: there is no program of jobfence's.
fn table(branch: &Dir) -> Result<Option<BpfMap>, Errno> {
    let ids = match attached(&EGRESS, branch.as_fd()) {
        Ok(attached) => attached.ids,
        // A kernel without such programs.
        Err(Errno::EINVAL | Errno::ENOSYS) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    for program in ours(&EGRESS, &ids).map_err(|(errno, _)| errno)? {
        for id in program.maps()? {
            let map = BpfMap::by_id(id)?;
            if map.is::<BoundKey, BoundValue>(BOUNDS) {
                return Ok(Some(map));
            }
        }
    }
    Ok(None)
}
