// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a container belongs: beside the starter that wants it, in the fence of its job.
//!
//! The cgroups of this process and of its ancestors tell the place. This program is not root, so it cannot read records.

use jobfence::cgroup::membership::Membership;
use jobfence::schedulers::htcondor::{CONTAINERS_BRANCH, STARTERS_LEAF};
use jobfence::sys::dir::Dir;
use jobfence::sys::process;

use crate::docker::place::step_of;

/// How many ancestors are looked at: between the starter and this process there may be sudo(8), with a session of its own outside the
/// fence.
const GENERATIONS: usize = 4;

/// The directory for this job's containers, from the root of cgroup v2. `None`: no starter in a fence has started this process.
pub fn containers_place() -> Option<String> {
    let proc = Dir::open("/proc").ok()?;
    let mut pid = nix::unistd::getpid().as_raw();
    for _ in 0..=GENERATIONS {
        let place = Membership::read(&proc, pid).ok();
        if let Some((step, below)) = place.as_ref().and_then(|place| step_of(place.in_unified()?)) {
            // A process of the job has a starter above it, too.
            return is_starters(below).then(|| format!("{step}/{CONTAINERS_BRANCH}"));
        }
        pid = process::of(&proc, pid).ok()??.parent;
        if pid <= 1 {
            break;
        }
    }
    None
}

/// Whether this cgroup below a step's is its starter's.
fn is_starters(below: &str) -> bool {
    below.strip_prefix('/') == Some(STARTERS_LEAF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_known_by_the_place_of_its_starter() {
        let step = "/jobfence.slice/jobfence.scope/uid_1001/job_12.0/step_slot1_1";
        let found = |path: &str| step_of(path).is_some_and(|(found, below)| found == step && is_starters(below));
        assert!(found(&format!("{step}/starter")));
        for other in [
            format!("{step}/htcondor/x"),
            step.to_owned(),
            format!("/..{step}/starter"),
            "/system.slice/condor.service/leaf".to_owned(),
            "/uid_1/job_2/starter".to_owned(),
            "/a/job_1/step_2/starter".to_owned(),
            "starter".to_owned(),
        ] {
            assert!(!found(&other), "{other}");
        }
    }
}
