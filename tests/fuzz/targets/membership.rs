// SPDX-License-Identifier: GPL-2.0-or-later
//! /proc/PID/cgroup: where a process is, and whether that is Slurm's.

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::cgroup::membership::Membership;
use jobfence::scheduler::placement;
use jobfence::schedulers::ALL;

use super::text;

pub const WORDS: &[&str] = &[
    "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n",
    "0::/",
    "/user.slice/user-1000.slice",
    "/n1_slurmstepd.scope",
    "/job_7/step_batch",
    "4:memory:/slurm/uid_1000/job_5/step_0/task_0\n",
    "/slurm_n1",
    "1:name=systemd:/",
    "3:cpu,cpuacct:",
    "/docker/0a1b",
    "/../",
    "//",
    "::",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    let membership = Membership::parse(&text);
    for hierarchy in hierarchies() {
        let Some(path) = membership.path_in(&hierarchy) else {
            assert!(placement(ALL, &membership, &hierarchy).is_none());
            continue;
        };
        // The name of a directory can end with a carriage return.
        assert!(text.split('\n').any(|line| line.ends_with(&format!(":{path}"))), "{path:?}");
        let Some(own) = placement(ALL, &membership, &hierarchy) else { continue };
        // Directories above the process, whole names of them, and nothing that users make.
        for directory in [Some(&own.job), own.step.as_ref()].into_iter().flatten() {
            let rest = path.strip_prefix(directory.as_str()).expect("above");
            assert!(rest.is_empty() || rest.starts_with('/'), "{own:?} of {path:?}");
            assert!(!directory.ends_with('/') && !directory.is_empty(), "{own:?}");
        }
        let below = hierarchy.below_mount(path).expect("below what is mounted");
        assert!(hierarchy.version == Version::V1 || below.split('/').next() != Some("user.slice"), "{own:?}");
        if let Some(step) = &own.step {
            assert!(step.strip_prefix(&own.job).is_some_and(|step| step.starts_with("/step_")), "{own:?}");
        }
    }
}

fn hierarchies() -> [Hierarchy; 5] {
    let hierarchy = |version, root: &str, controllers: &[&str], name: Option<&str>| Hierarchy {
        version,
        mount: "/sys/fs/cgroup".into(),
        root: root.to_owned(),
        controllers: controllers.iter().map(|controller| (*controller).to_owned()).collect(),
        name: name.map(str::to_owned),
    };
    [
        hierarchy(Version::V2, "/", &["cpu", "memory"], None),
        hierarchy(Version::V2, "/docker/0a1b", &[], None),
        hierarchy(Version::V1, "/", &["memory"], None),
        hierarchy(Version::V1, "/docker/0a1b", &["cpu", "cpuacct"], None),
        hierarchy(Version::V1, "/", &[], Some("systemd")),
    ]
}
