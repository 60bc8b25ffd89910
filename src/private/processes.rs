// SPDX-License-Identifier: GPL-2.0-or-later
//! Other users' processes stay out of a job's sight (`HideProcesses`).
//!
//! The mount namespace of each of the job's processes has a proc of its own, in which a process sees only those that it may trace:
//! filesystems/proc in the kernel's documentation. The host's mount of proc is left as it is.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{fstat, major, minor, stat};
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
        return try_own(true).err();
    }
    // A user may not even ask.
    mount::prepare_proc(true).err().filter(|errno| *errno != Errno::EPERM).map(|errno| unprepared(true, errno))
}

/// Makes a proc of this process's PID namespace, and mounts it nowhere. It `hides` others for HideProcesses; otherwise PrivatePIDs wants it.
pub(super) fn try_own(hides: bool) -> Result<()> {
    Dir::open(PROC).and_then(|hosts| make(&hosts, hides)).map(drop)
}

fn failed(hides: bool) -> impl Fn(Errno) -> Error {
    let op = match hides {
        true => "mount a proc of the job's own (HideProcesses) on",
        false => "mount a proc of the job's own (PrivatePIDs) on",
    };
    move |errno| Error::os(op, PROC, errno)
}

/// The error of a call by which an older kernel shows itself.
fn unprepared(hides: bool, errno: Errno) -> Error {
    let error = failed(hides)(errno);
    match (errno, hides) {
        (Errno::ENOSYS | Errno::EINVAL, true) => error.hint(
            "it needs Linux 5.8: before, all mounts of proc have the same options. Set HideProcesses=no in jobfence.conf, and mount \
             the host's /proc with hidepid=2",
        ),
        (Errno::ENOSYS, false) => error.hint("it needs Linux 5.2. Set PrivatePIDs=no in jobfence.conf"),
        _ => error,
    }
}

/// Covers proc in this mount namespace, which is not the host's. What the host has mounted below it stays visible.
///
/// After an error, this process sees the host's.
pub(super) fn hide() -> Result<()> {
    show_own(true)
}

/// As [`hide`], with a proc of this process's PID namespace, which `hides` others or does not.
pub(super) fn show_own(hides: bool) -> Result<()> {
    let hosts = Dir::open(PROC)?;
    let mounts = hosts.read("self/mountinfo")?;
    let new = make(&hosts, hides)?;
    mount::put(&new, &hosts, c"").map_err(failed(hides))?;
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
                let op = if hides { "show (HideProcesses)" } else { "show (PrivatePIDs)" };
                return Err(Error::os(op, Path::new(PROC).join(point), errno));
            }
        }
    }
    Ok(())
}

/// Another place where this process sees a proc with the numbers of processes.
pub(super) fn elsewhere() -> Result<Option<PathBuf>> {
    let mounts = Dir::open(PROC)?.read("self/mountinfo")?;
    let place = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, layout::unescape(fields.next()?));
        let has_numbers = root
            .strip_prefix('/')
            .is_some_and(|root| root.is_empty() || root.starts_with(|first: char| first.is_ascii_digit()));
        // Others may cover it.
        let is_seen =
            || stat(point.as_str()).is_ok_and(|at| format!("{}:{}", major(at.st_dev), minor(at.st_dev)) == device);
        (filesystem.starts_with("proc ") && has_numbers && point != PROC && is_seen()).then(|| point.into())
    };
    Ok(mounts.lines().find_map(place))
}

/// A proc of the job's own, which is in no namespace yet.
fn make(hosts: &Dir, hides: bool) -> Result<OwnedFd> {
    let prepared = mount::prepare_proc(hides).map_err(|errno| unprepared(hides, errno))?;
    let flags = fstatvfs(hosts).map_err(failed(hides))?.flags().bits();
    let new = mount::make_prepared(&prepared, FLAGS | flags).map_err(failed(hides))?;
    // The kernel may take the option and give the mount that all have.
    if fstat(&new).map_err(failed(hides))?.st_dev == hosts.stat()?.st_dev {
        return Err(unprepared(hides, Errno::EINVAL));
    }
    Ok(new)
}
