// SPDX-License-Identifier: GPL-2.0-or-later
//! `Delegate`: a directory of cgroup2 whose division is its user's affair.
//!
//! The kernel's rules are in `Documentation/admin-guide/cgroup-v2.rst`, "Delegation". The user gets the directory and three of its files,
//! as from systemd (`Delegate=`), and no file that limits. All limits are written to the directories above, which stay root's. So the
//! user can move a process only within the directory: the kernel also wants the right to write to `cgroup.procs` of the directory that
//! has both places in it.

use nix::fcntl::AtFlags;
use nix::unistd::{Uid, fchownat};

use crate::cgroup::handing_down::enable;
use crate::cgroup::layout::{Hierarchy, Layout, Version};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The controllers that a user can limit with. They are on above the directory.
pub const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// What becomes the user's: enough to make directories, to put processes into them and to turn on controllers there.
const FILES: [&str; 3] = ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"];

/// How many directories a user can make in it, and how deep. The kernel keeps memory for each, and jobfence removes them at the end.
const MOST: [(&str, &str); 2] = [("cgroup.max.descendants", "10000"), ("cgroup.max.depth", "128")];

/// What keeps the host from delegating. `None`: nothing.
pub fn obstacle(layout: &Layout) -> Option<Error> {
    let is_v2 =
        |controller: &&str| layout.with_controller(controller).is_some_and(|found| found.version == Version::V2);
    let lacking = CONTROLLERS.iter().find(|controller| !is_v2(controller))?;
    let error =
        format!("a job can divide its cgroup only on cgroup v2, which has no {lacking} controller on this node");
    Some(Error::new(error).hint("with --delegate=no the job can run here"))
}

/// Gives the directory `given`, in a step's directory, to the step's user.
pub(super) fn give(step: &Dir, given: &Dir, hierarchy: &Hierarchy, uid: u32) -> Result<()> {
    enable(step, hierarchy, &CONTROLLERS, false)?;
    MOST.into_iter().try_for_each(|(file, most)| given.write(file, most))?;
    let uid = Some(Uid::from_raw(uid));
    let failed = |errno| Error::os("give to the step's user", given.path(), errno);
    for file in FILES.into_iter().chain(["."]) {
        // The directory is root's until the end: nothing in it is the user's yet, and a link is not followed.
        fchownat(given, file, uid, None, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}
