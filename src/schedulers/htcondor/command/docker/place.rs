// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a container belongs: beside the starter that wants it, in the fence of its job.
//!
//! The kernel tells, by the cgroups of this process and of its ancestors. This program is not root, so it cannot read records.

use jobfence::schedulers::htcondor::{CONTAINERS_BRANCH, STARTERS_LEAF};

/// Between the starter and this process there may be sudo(8), which may have a session of its own, outside the fence.
const GENERATIONS: usize = 4;

/// The directory for this job's containers, from the root of cgroup v2. `None`: this process belongs to no fence.
pub fn containers_place() -> Option<String> {
    let mut pid = std::process::id();
    for _ in 0..=GENERATIONS {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if let Some(step) = step_of(&text) {
            return Some(format!("{step}/{CONTAINERS_BRANCH}"));
        }
        pid = parent_of(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).filter(|parent| *parent > 1)?;
    }
    None
}

/// The directory of the step whose starter is in this cgroup.
fn step_of(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let step = path.strip_suffix(STARTERS_LEAF)?.strip_suffix('/')?;
    let mut names = step.rsplit('/');
    let is_step =
        ["step_", "job_", "uid_"].iter().all(|begin| names.next().is_some_and(|name| name.starts_with(begin)));
    (is_step && path.starts_with('/') && !path.starts_with("/../")).then_some(step)
}

/// The fourth word of `/proc/PID/stat`. The second one is a name in brackets, which may contain blanks and brackets.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_known_by_the_place_of_its_starter() {
        let step = "/jobfence.slice/jobfence.scope/uid_1001/job_12.0/step_slot1_1";
        assert_eq!(step_of(&format!("1:name=x:/y\n0::{step}/starter\n")), Some(step));
        for other in [
            format!("{step}/htcondor/x"),
            step.to_owned(),
            format!("/..{step}/starter"),
            "/system.slice/condor.service/leaf".to_owned(),
            "/uid_1/job_2/starter".to_owned(),
            "/a/job_1/step_2/starter".to_owned(),
            "starter".to_owned(),
        ] {
            assert_eq!(step_of(&format!("0::{other}\n")), None, "{other}");
        }
        assert_eq!(step_of("4:memory:/uid_1/job_1/step_1/starter\n"), None);
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_of("12 (a) S 1 (b) c) S 77 12 12"), Some(77));
        assert_eq!(parent_of(""), None);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(parent_of(&stat), Some(std::os::unix::process::parent_id()));
    }
}
