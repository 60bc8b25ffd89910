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

/// What Slurm's own cgroup plugins made for a job in one hierarchy, by its paths as `/proc/PID/cgroup` shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmsOwn {
    /// The job's directory.
    pub job: String,
    /// The step's directory, where the path led that far: on v1 a step daemon itself sits in the job's.
    pub step: Option<String>,
}

/// Whether a path is inside what Slurm's own cgroup plugins made for a job, and where that is.
///
/// v2: `…/[NODE_]slurmstepd.scope/JOB/step_S/…`, but not its `system` leaf, where the step daemons sit when Slurm does not
/// track processes by cgroup. v1: `/slurm[_NODE]/uid_U/job_J[/step_S…]`. Source: src/plugins/cgroup/ of Slurm 22.05 to
/// 26.05.
pub fn slurms_own(path: &str) -> Option<SlurmsOwn> {
    let starts: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
    // The components, and where each ends.
    let component = |index: usize| {
        let start = starts.get(index)? + 1;
        let end = starts.get(index + 1).copied().unwrap_or(path.len());
        path.get(start..end).filter(|name| !name.is_empty()).map(|name| (name, end))
    };
    (0..starts.len()).find_map(|index| {
        let (top, _) = component(index)?;
        let (next, _) = component(index + 1)?;
        let job = if top == "slurmstepd.scope" || top.ends_with("_slurmstepd.scope") {
            if next == "system" {
                return None;
            }
            index + 1
        } else if (top == "slurm" || top.starts_with("slurm_")) && next.starts_with("uid_") {
            index + 2
        } else {
            return None;
        };
        let end_of_job = component(job).map_or(path.len(), |(_, end)| end);
        let step = component(job + 1).filter(|(name, _)| name.starts_with("step_"));
        Some(SlurmsOwn {
            job: path.get(..end_of_job)?.to_owned(),
            step: step.and_then(|(_, end)| path.get(..end)).map(str::to_owned),
        })
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
        for (path, job, step) in [
            (
                "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
                "/system.slice/slurmstepd.scope/job_1",
                "/step_0",
            ),
            (
                "/system.slice/node1_slurmstepd.scope/s2YNM7YN3THN00/step_batch/slurm",
                "/system.slice/node1_slurmstepd.scope/s2YNM7YN3THN00",
                "/step_batch",
            ),
            ("/slurm/uid_0/job_5/step_0", "/slurm/uid_0/job_5", "/step_0"),
            ("/slurm_node1/uid_0/job_5/step_0/task_1", "/slurm_node1/uid_0/job_5", "/step_0"),
            ("/slurm_node1/uid_0/job_5", "/slurm_node1/uid_0/job_5", ""),
            ("/slurm_node1/uid_0", "/slurm_node1/uid_0", ""),
        ] {
            let step = (!step.is_empty()).then(|| format!("{job}{step}"));
            assert_eq!(slurms_own(path), Some(SlurmsOwn { job: job.to_owned(), step }), "{path}");
        }
        for other in [
            "/",
            "",
            "/system.slice/slurmd.service",
            "/system.slice/node1_slurmstepd.scope",
            "/system.slice/node1_slurmstepd.scope/system",
            "/jobfence.slice/jobfence.scope/uid_1/job_2/step_0",
            "/jobfence/slurm_x/job_2",
        ] {
            assert_eq!(slurms_own(other), None, "{other}");
        }
    }
}
