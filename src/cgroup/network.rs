// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs send and receive. `jobfence hold` attaches two programs to its own directory above all users' directories, one for each
//! direction. They count by the job's directory, whose number every packet's socket knows, and hold back what a job sends too fast.
//!
//! So no job needs a program, and none is there too late for a job's first packet. A launch only writes the bound of its job into the
//! programs' table, where it holds before the job's first process starts. Programs and tables live as long as the directory, also while
//! no `hold` runs.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::sys::bpf::map::BpfMap;
use crate::sys::bpf::{BpfProgram, ProgramKind, attached, ours};
use crate::sys::dir::Dir;

/// `BPF_PROG_TYPE_CGROUP_SKB` and `BPF_CGROUP_INET_EGRESS`: what sockets send, before it is queued for a device.
pub const EGRESS: ProgramKind =
    ProgramKind { kind: 8, expected: 1, attach: 1, name: "jobfence_net_e", words: "network program" };

/// The same, and `BPF_CGROUP_INET_INGRESS`: what arrives for sockets.
pub const INGRESS: ProgramKind =
    ProgramKind { kind: 8, expected: 0, attach: 0, name: "jobfence_net_i", words: "network program" };

/// The name of the table of bounds: by the number of a job's directory how many bytes a second may leave (0: any), and when the next packet
/// may, in nanoseconds of `CLOCK_MONOTONIC`.
pub const BOUNDS: &str = "jobfence_bounds";

/// The key of [`BOUNDS`].
pub type BoundKey = u64;
/// The value of [`BOUNDS`].
pub type BoundValue = [u64; 2];

/// jobfence's own directory as seen from a job's: below it may be that of scavengers, and that of one of several nodes.
const ABOVE: [&str; 3] = ["../..", "../../..", "../../../.."];

/// How often programs may be replaced while one bound is written.
const TRIES: usize = 5;

/// Bounds what the job with this directory sends, in bytes a second, and reads that back. 0 lifts a bound.
pub fn bound(job: &Dir, rate: u64) -> Result<()> {
    let key = job.stat()?.st_ino;
    for above in ABOVE {
        let done = put(&job.child(above)?, key, rate);
        match done {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // Who may not ask has attached nothing, so there is no bound to lift.
            Err(Errno::EPERM) if rate == 0 => return Ok(()),
            Err(errno) => {
                return Err(Error::new("cannot bound the network of").at(job.path()).errno(errno).value(rate));
            }
        }
    }
    if rate == 0 {
        return Ok(());
    }
    Err(Error::new("no program holds back what jobs send (NetworkMax), at").at(job.path()).hint(
        "'jobfence hold' (jobfence.service) attaches it: does it run with this configuration, and what does it say?",
    ))
}

/// Writes the bound to the tables of all programs of jobfence's at a directory. Returns whether there are any.
fn put(base: &Dir, key: BoundKey, rate: u64) -> Result<bool, Errno> {
    let mut written = Vec::new();
    for _ in 0..TRIES {
        let ids = match attached(&EGRESS, base.as_fd()) {
            Ok(attached) => attached.ids,
            // A kernel without such programs, or a directory above all cgroups.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EBADF) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        let programs = ours(&EGRESS, &ids).map_err(|(errno, _)| errno)?;
        if programs.is_empty() {
            return Ok(false);
        }
        // `jobfence hold` may have replaced a program while its table was written, and with it the table.
        if ids == written {
            return Ok(true);
        }
        for program in programs {
            put_one(&program, key, rate)?;
        }
        written = ids;
    }
    Err(Errno::EAGAIN)
}

fn put_one(program: &BpfProgram, key: BoundKey, rate: u64) -> Result<(), Errno> {
    for id in program.maps()? {
        let table = BpfMap::by_id(id)?;
        if !table.is::<BoundKey, BoundValue>(BOUNDS) {
            continue;
        }
        // A job's next step leaves it as it is: what the job has sent too fast still counts.
        for value in [None, Some([rate, 0])] {
            if let Some(value) = value {
                table.set::<BoundKey, BoundValue>(key, value)?;
            }
            if table.get::<BoundKey, BoundValue>(key)?.map_or(0, |[is, _]| is) == rate {
                return Ok(());
            }
        }
    }
    Err(Errno::ENOENT)
}
