// SPDX-License-Identifier: GPL-2.0-or-later
//! Other users' processes stay out of a job's sight (`HideProcesses`).
//!
//! The mount namespace of each of the job's processes has a proc of its own, in which a process sees only those that it may trace:
//! filesystems/proc in the kernel's documentation. The host's mount of proc is left as it is.

use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

use crate::cgroup::layout;
use crate::config::{Config, Mode};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;
use crate::sys::mount;

/// Where proc is mounted.
pub(super) const PROC: &str = "/proc";

/// What proc always has on a host.
const FLAGS: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// Whether jobs with this configuration do not see the processes of others.
pub fn is_wanted(config: &Config) -> bool {
    config.hide_processes && config.mode == Mode::Enforce
}

/// Why each job would be refused for it on this host, as far as that is seen without a job. Nothing changes by the look.
pub fn fault() -> Option<Error> {
    if geteuid().is_root() {
        return Dir::open(PROC).and_then(|hosts| make(&hosts)).err();
    }
    // A user may not even ask.
    mount::prepare_proc().err().filter(|errno| *errno != Errno::EPERM).map(unprepared)
}

fn failed(errno: Errno) -> Error {
    Error::os("mount a proc of the job's own (HideProcesses) on", PROC, errno)
}

/// The error of a call by which an older kernel shows itself.
fn unprepared(errno: Errno) -> Error {
    match errno {
        Errno::ENOSYS | Errno::EINVAL => failed(errno).hint(
            "it needs Linux 5.8: before, all mounts of proc have the same options. Set HideProcesses=no in jobfence.conf, and mount \
             the host's /proc with hidepid=2",
        ),
        _ => failed(errno),
    }
}

/// Covers proc in this mount namespace, which is not the host's. What the host has mounted below it stays visible.
///
/// After an error, this process sees the host's.
pub(super) fn hide() -> Result<()> {
    let hosts = Dir::open(PROC)?;
    let mounts = hosts.read("self/mountinfo")?;
    let new = make(&hosts)?;
    mount::put(&new, &hosts, c"").map_err(failed)?;
    let mut shown: Vec<String> = Vec::new();
    for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)?.strip_prefix("/proc/")) {
        let point = layout::unescape(point);
        // It came with what is mounted above it.
        if shown.iter().any(|above| Path::new(&point).starts_with(above)) {
            continue;
        }
        match mount::copy_tree(&hosts, &new, &point) {
            // The host has unmounted it meanwhile.
            Ok(()) | Err(Errno::ENOENT) => shown.push(point),
            Err(errno) => {
                let _ = mount::detach(&new);
                return Err(Error::os("show (HideProcesses)", Path::new(PROC).join(point), errno));
            }
        }
    }
    Ok(())
}

/// A proc of the job's own, which is in no namespace yet.
fn make(hosts: &Dir) -> Result<OwnedFd> {
    let prepared = mount::prepare_proc().map_err(unprepared)?;
    let flags = fstatvfs(hosts).map_err(failed)?.flags().bits();
    let new = mount::make_prepared(&prepared, FLAGS | flags).map_err(failed)?;
    // The kernel may take the option and give the mount that all have.
    if fstat(&new).map_err(failed)?.st_dev == hosts.stat()?.st_dev {
        return Err(unprepared(Errno::EINVAL));
    }
    Ok(new)
}
