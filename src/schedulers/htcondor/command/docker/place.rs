// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a container belongs: beside the starter that wants it, in the fence of its job.
//!
//! The cgroups of this process and of its ancestors tell the place. This program is not root, so it cannot read records.

use jobfence::cgroup::membership::Membership;
use jobfence::schedulers::htcondor::{CONTAINERS_BRANCH, STARTERS_LEAF};
use jobfence::sys::dir::Dir;
use jobfence::sys::process;

/// How many ancestors are looked at: between the starter and this process there may be sudo(8), with a session of its own outside the
/// fence.
const GENERATIONS: usize = 4;

/// The directory for this job's containers, from the root of cgroup v2. `None`: this process belongs to no fence.
pub fn containers_place() -> Option<String> {
    let proc = Dir::open("/proc").ok()?;
    let mut pid = nix::unistd::getpid().as_raw();
    for _ in 0..=GENERATIONS {
        let place = Membership::read(&proc, pid).ok();
        if let Some(step) = place.as_ref().and_then(|place| step_of(place.in_unified()?)) {
            return Some(format!("{step}/{CONTAINERS_BRANCH}"));
        }
        pid = process::of(&proc, pid).ok()??.parent;
        if pid <= 1 {
            break;
        }
    }
    None
}

/// The directory of the step whose starter is in this cgroup.
fn step_of(path: &str) -> Option<&str> {
    let step = path.strip_suffix(STARTERS_LEAF)?.strip_suffix('/')?;
    let mut names = step.rsplit('/');
    let is_step =
        ["step_", "job_", "uid_"].iter().all(|begin| names.next().is_some_and(|name| name.starts_with(begin)));
    (is_step && path.starts_with('/') && !path.starts_with("/../")).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_known_by_the_place_of_its_starter() {
        let step = "/jobfence.slice/jobfence.scope/uid_1001/job_12.0/step_slot1_1";
        assert_eq!(step_of(&format!("{step}/starter")), Some(step));
        for other in [
            format!("{step}/htcondor/x"),
            step.to_owned(),
            format!("/..{step}/starter"),
            "/system.slice/condor.service/leaf".to_owned(),
            "/uid_1/job_2/starter".to_owned(),
            "/a/job_1/step_2/starter".to_owned(),
            "starter".to_owned(),
        ] {
            assert_eq!(step_of(&other), None, "{other}");
        }
    }
}
