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

/// How many directories are at most between those of users and jobfence's own: that of scavengers, and that of one of several nodes.
const BRANCHES: usize = 2;

/// How often programs may be replaced while one bound is written.
const TRIES: usize = 5;

/// Bounds what the job with this directory sends, in bytes a second, and reads that back.
pub fn bound(job: &Dir, rate: u64) -> Result<()> {
    let failed = |errno| Error::new("cannot bound the network of").at(job.path()).errno(errno).value(rate);
    let key: BoundKey = job.stat()?.st_ino;
    let Some((base, mut programs)) = programs(job)? else {
        return Err(Error::new("no program holds back what jobs send (NetworkMax), above").at(job.path()).hint(
            "'jobfence hold' (jobfence.service) attaches it: see whether that runs with this configuration, and what its log says",
        ));
    };
    for _ in 0..TRIES {
        for table in tables(&programs).map_err(failed)? {
            set(&table, key, rate).map_err(failed)?;
        }
        // `jobfence hold` may have replaced a program meanwhile, and with it the table.
        let now = at(&base).map_err(failed)?;
        if now.iter().map(|program| program.id).eq(programs.iter().map(|program| program.id)) {
            return Ok(());
        }
        programs = now;
    }
    Err(failed(Errno::EAGAIN))
}

/// Takes away a bound of the job, if it has one.
pub fn unbind(job: &Dir) -> Result<()> {
    let failed = |errno| Error::new("cannot lift the bound of the network of").at(job.path()).errno(errno);
    let key: BoundKey = job.stat()?.st_ino;
    let Some((_, programs)) = programs(job)? else { return Ok(()) };
    for table in tables(&programs).map_err(failed)? {
        if table.get::<_, BoundValue>(key).map_err(failed)?.is_some() {
            set(&table, key, 0).map_err(failed)?;
        }
    }
    Ok(())
}

/// A job's next step leaves the same bound as it is: what the job has sent too fast still counts.
fn set(table: &BpfMap, key: BoundKey, rate: u64) -> Result<(), Errno> {
    let is = || table.get::<_, BoundValue>(key).map(|value| value.is_some_and(|[is, _]| is == rate));
    if is()? {
        return Ok(());
    }
    table.set::<_, BoundValue>(key, [rate, 0])?;
    if is()? { Ok(()) } else { Err(Errno::ENOENT) }
}

/// The directory above a job's with programs of jobfence's, and these.
fn programs(job: &Dir) -> Result<Option<(Dir, Vec<BpfProgram>)>> {
    let mut dir = job.child("..")?.child("..")?;
    for _ in 0..=BRANCHES {
        let found = at(&dir).map_err(|errno| Error::os("ask for the network programs above", job.path(), errno))?;
        if !found.is_empty() {
            return Ok(Some((dir, found)));
        }
        dir = dir.child("..")?;
    }
    Ok(None)
}

fn at(dir: &Dir) -> Result<Vec<BpfProgram>, Errno> {
    let ids = match attached(&EGRESS, dir.as_fd()) {
        Ok(attached) => attached.ids,
        // A kernel without such programs, or a directory that is no cgroup.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EBADF) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    ours(&EGRESS, &ids).map_err(|(errno, _)| errno)
}

/// The tables of bounds of all these programs. One without a table that is written here would hold nothing back.
fn tables(programs: &[BpfProgram]) -> Result<Vec<BpfMap>, Errno> {
    let mut tables = Vec::new();
    for program in programs {
        let before = tables.len();
        for id in program.maps()? {
            let map = BpfMap::by_id(id)?;
            if map.name == BOUNDS && map.has::<BoundKey, BoundValue>() {
                tables.push(map);
            }
        }
        if tables.len() == before {
            return Err(Errno::EBADF);
        }
    }
    Ok(tables)
}
