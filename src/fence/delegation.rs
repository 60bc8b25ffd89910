// SPDX-License-Identifier: GPL-2.0-or-later
//! `Delegate`: a directory of cgroup2 whose division is its user's affair.
//!
//! The kernel's rules are in `Documentation/admin-guide/cgroup-v2.rst`, "Delegation". The user gets the directory and three of its files,
//! as from systemd (`Delegate=`), and no file that limits. All limits are written to the directories above, which stay root's. So the
//! user can move a process only within the directory: the kernel also wants the right to write to `cgroup.procs` of the directory that
//! has both places in it. The owner of a process that is moved does not matter to the kernel, so no process of root's may be in there.

use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{Uid, fchownat};

use super::names::DELEGATED;
use crate::cgroup::handing_down::enable;
use crate::cgroup::layout::{Hierarchy, Layout, Version};
use crate::cgroup::walk;
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The controllers that a user can limit with. They are on above the directory.
pub const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// What helps a job that cannot have it.
pub const HINT: &str = "with --delegate=no, or with Delegate=no in jobfence.conf, the job can run here";

/// What becomes the user's: enough to make directories, to put processes into them and to turn on controllers there.
const FILES: [&str; 3] = ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"];

/// How many directories can be in it, how deep, and how many in its job's. The kernel has 65,535 memory cgroups for the whole machine
/// (`MEM_CGROUP_ID_MAX`), and jobfence removes them at the end.
const MOST: [(&str, &str); 2] = [("cgroup.max.descendants", "1000"), ("cgroup.max.depth", "128")];
const MOST_OF_JOB: (&str, &str) = ("cgroup.max.descendants", "4000");

/// Where a process goes that comes after the user has given controllers to the directory's children: it can hold none itself then.
const LATE: &str = "jobfence";

/// What keeps the host from delegating. `None`: nothing.
pub fn obstacle(layout: &Layout) -> Option<Error> {
    let is_v2 =
        |controller: &&str| layout.with_controller(controller).is_some_and(|found| found.version == Version::V2);
    let lacking = CONTROLLERS.iter().find(|controller| !is_v2(controller))?;
    let error =
        format!("a job can divide its cgroup only on cgroup v2, which has no {lacking} controller on this node");
    Some(Error::new(error).hint(HINT))
}

/// Makes the directory `given` one that a user may have.
pub(super) fn prepare(step: &Dir, job: Option<&Dir>, given: &Dir, hierarchy: &Hierarchy) -> Result<()> {
    enable(step, hierarchy, &CONTROLLERS, false)?;
    MOST.into_iter().try_for_each(|(file, most)| given.write(file, most))?;
    job.map_or(Ok(()), |job| job.write(MOST_OF_JOB.0, MOST_OF_JOB.1))
}

/// Moves a process there.
pub(super) fn enter(given: &Dir, pid: i32) -> Result<()> {
    match given.write("cgroup.procs", &pid.to_string()) {
        Err(error) if error.kernel_errno() == Some(Errno::EBUSY) => {
            given.ensure(LATE)?.write("cgroup.procs", &pid.to_string())
        }
        done => done,
    }
}

/// Whether a process with this path below the directory is one that came late.
pub(super) fn is_late(below: &str) -> bool {
    below.strip_prefix('/') == Some(LATE)
}

/// Gives it to the user, when the process is in there: before, the user could make it one that holds no process.
pub(super) fn give(given: &Dir, uid: u32) -> Result<()> {
    let uid = Some(Uid::from_raw(uid));
    let failed = |errno| Error::os("give to the step's user", given.path(), errno);
    for file in FILES.into_iter().chain(["."]) {
        // Each is the kernel's, which can neither be replaced nor be a link.
        fchownat(given, file, uid, None, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}

/// Takes the user's quotas of CPU time off what is below a step, so that killed processes end at once: before Linux 6.18 one that ends is
/// held back inside the kernel, too.
pub(super) fn lift_quotas(step: &Dir, deadline: Instant) {
    if step.has(DELEGATED) {
        let _ = walk::visit(step, deadline, &mut |below| {
            if below.path() != step.path() && below.has("cpu.max") {
                below.write("cpu.max", "max")?;
            }
            Ok(true)
        });
    }
}
