// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a process is now, and whether that is the scheduler's own place, which we must not take it out of.
//!
//! The scheduler's path is never built from ids: Debian puts the node's name into it, and Slurm 26.05 names jobs by SLUID.
//! The kernel is asked instead.

use super::dir::Dir;
use super::layout::{Hierarchy, Version};
use crate::error::Result;

/// The cgroups of one process, one for each hierarchy: `/proc/PID/cgroup` (cgroups(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Empty for cgroup2.
    controllers: String,
    path: String,
}

impl Membership {
    /// Of a process, through a handle of `/proc`.
    pub fn read(proc: &Dir, pid: i32) -> Result<Self> {
        Ok(Self::parse(&proc.read(&format!("{pid}/cgroup"))?))
    }

    /// Lines `ID:CONTROLLERS:PATH`; others are skipped.
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some(Entry { controllers: controllers.to_owned(), path: path.to_owned() })
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// The path in this hierarchy, seen from the hierarchy's root.
    pub fn path_in(&self, hierarchy: &Hierarchy) -> Option<&str> {
        let matches = |entry: &&Entry| match hierarchy.version {
            Version::V2 => entry.controllers.is_empty(),
            Version::V1 => {
                entry.controllers.split(',').any(|item| match (&hierarchy.name, item.strip_prefix("name=")) {
                    (Some(ours), Some(name)) => ours == name,
                    (_, None) => hierarchy.has(item),
                    (None, Some(_)) => false,
                })
            }
        };
        self.0.iter().find(matches).map(|entry| entry.path.as_str())
    }
}

/// Whether a path is inside what Slurm's own cgroup plugins made for a job.
///
/// v2: `…/[NODE_]slurmstepd.scope/JOB/step_S/…`, but not its `system` leaf, where the step daemons sit when Slurm does not
/// track processes by cgroup. v1: `/slurm[_NODE]/uid_U/…`. Source: src/plugins/cgroup/ of Slurm 22.05 to 26.05.
pub fn is_slurms_own(path: &str) -> bool {
    let components: Vec<&str> = path.split('/').filter(|c| !c.is_empty()).collect();
    components.windows(2).any(|pair| match pair {
        [scope, next] if *scope == "slurmstepd.scope" || scope.ends_with("_slurmstepd.scope") => *next != "system",
        [top, next] if *top == "slurm" || top.starts_with("slurm_") => next.starts_with("uid_"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn v1(controllers: &[&str], name: Option<&str>) -> Hierarchy {
        Hierarchy {
            version: Version::V1,
            mount: PathBuf::from("/x"),
            root: "/".into(),
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            name: name.map(str::to_owned),
        }
    }

    #[test]
    fn finds_the_path_in_each_hierarchy() {
        let text = "9:name=systemd:/s\n4:memory:/m:with:colons\n1:cpu,cpuacct:/c\n0::/u\nnonsense\n";
        let membership = Membership::parse(text);
        assert_eq!(membership.path_in(&v1(&["memory"], None)), Some("/m:with:colons"));
        assert_eq!(membership.path_in(&v1(&["cpuacct", "cpu"], None)), Some("/c"));
        assert_eq!(membership.path_in(&v1(&[], Some("systemd"))), Some("/s"));
        assert_eq!(membership.path_in(&v1(&["pids"], None)), None);
        assert_eq!(membership.path_in(&Hierarchy { version: Version::V2, ..v1(&[], None) }), Some("/u"));
    }

    #[test]
    fn tells_slurms_own_places_from_others() {
        for own in [
            "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
            "/system.slice/node1_slurmstepd.scope/s2YNM7YN3THN00/step_batch/slurm",
            "/slurm/uid_0/job_5/step_0",
            "/slurm_node1/uid_0/job_5",
        ] {
            assert!(is_slurms_own(own), "{own}");
        }
        for other in [
            "/",
            "/system.slice/slurmd.service",
            "/system.slice/node1_slurmstepd.scope/system",
            "/jobfence.slice/jobfence.scope/uid_1/job_2/step_0",
            "/jobfence/slurm_x/job_2",
        ] {
            assert!(!is_slurms_own(other), "{other}");
        }
    }
}
