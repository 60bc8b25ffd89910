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
    // A user may not even ask.
    mount::prepare_proc().err().filter(|errno| *errno != Errno::EPERM).map(failed)
}

fn failed(errno: Errno) -> Error {
    let error = Error::os("mount a proc of the job's own (HideProcesses) on", PROC, errno);
    match errno {
        Errno::ENOSYS | Errno::EINVAL => error.hint(
            "it needs Linux 5.8: before, all mounts of proc have the same options. Set HideProcesses=no in jobfence.conf, and mount \
             the host's /proc with hidepid=2",
        ),
        _ => error,
    }
}

/// Covers proc in this mount namespace, which is not the host's. What the host has mounted below it stays visible.
///
/// After an error, this process sees the host's.
pub(super) fn hide() -> Result<()> {
    let hosts = Dir::open(PROC)?;
    let mounts = hosts.read("self/mountinfo")?;
    let new = cover(&hosts).map_err(failed)?;
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

fn cover(hosts: &Dir) -> nix::Result<OwnedFd> {
    let new = mount::make_prepared(&mount::prepare_proc()?, FLAGS | fstatvfs(hosts)?.flags().bits())?;
    // The kernel may take the option and give the mount that all have.
    if fstat(&new)?.st_dev == fstat(hosts)?.st_dev {
        return Err(Errno::EINVAL);
    }
    mount::put(&new, hosts, c"")?;
    Ok(new)
}
