// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a process is now, and whether that is the scheduler's own place, which we must not take it out of.
//!
//! The scheduler's path is never built from ids: Debian puts the node's name into it, and Slurm 26.05 names jobs by SLUID.
//! The kernel is asked instead.

use crate::cgroup::layout::{Hierarchy, Version};
use crate::error::Result;
use crate::sys::dir::Dir;

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

    /// What Slurm's own plugins have made for the process in this hierarchy, if it is in there.
    pub fn slurms_own(&self, hierarchy: &Hierarchy) -> Option<SlurmsOwn> {
        slurms_own(self.path_in(hierarchy)?, hierarchy)
    }

    /// Whether that is where Slurm's plugins put tasks, and not the step daemon and what it starts beside them.
    pub fn is_task_in(&self, hierarchy: &Hierarchy) -> bool {
        let (Some(path), Some(found)) = (self.path_in(hierarchy), self.slurms_own(hierarchy)) else { return false };
        match hierarchy.version {
            // By which Slurm tracks processes there; in others the daemon may be in the step's directory.
            Version::V1 => found.step.is_some() && hierarchy.has("freezer"),
            Version::V2 => found.step.is_some() && !found.is_leaf(path),
        }
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

impl SlurmsOwn {
    /// Whether a path is where Slurm keeps the daemon of the step on v2, and nobody else. (A slurmd within a job has its daemons among the tasks.)
    pub fn is_leaf(&self, path: &str) -> bool {
        self.step.as_ref().is_some_and(|step| path.strip_prefix(step.as_str()) == Some("/slurm"))
    }
}

/// Whether a path is inside what Slurm's own cgroup plugins made for a job, and where that is.
///
/// v2: `…/[NODE_]slurmstepd.scope/JOB/step_S/…`, but not where a user can make directories (below systemd's user.slice), nor the
/// leaves `system` and `slurmd` of the scope: there the step daemons sit when Slurm does not track processes by cgroup, in
/// `slurmd` if systemd has not started that. v1, at the top of a hierarchy only: `/slurm[_NODE]/uid_U/job_J[/step_S…]`.
/// Source: src/plugins/cgroup/ of Slurm 22.05 to 26.05.
fn slurms_own(path: &str, hierarchy: &Hierarchy) -> Option<SlurmsOwn> {
    let below = format!("/{}", hierarchy.below_mount(path)?);
    // The kernel writes no such path; in one a job could have no name.
    if below.contains("//") || below.len() > 1 && below.ends_with('/') {
        return None;
    }
    let offset = path.len().saturating_sub(below.len());
    let starts: Vec<usize> = below.match_indices('/').map(|(at, _)| at).collect();
    // The components, and where each ends.
    let component = |index: usize| {
        let start = starts.get(index)? + 1;
        let end = starts.get(index + 1).copied().unwrap_or(below.len());
        below.get(start..end).filter(|name| !name.is_empty()).map(|name| (name, end))
    };
    let job = match hierarchy.version {
        Version::V1 => {
            let (top, _) = component(0)?;
            let (user, _) = component(1)?;
            ((top == "slurm" || top.starts_with("slurm_")) && user.starts_with("uid_")).then_some(2)?
        }
        Version::V2 => {
            if component(0).is_some_and(|(top, _)| top == "user.slice") {
                return None;
            }
            let job = (0..starts.len()).find(|index| component(*index).is_some_and(|(name, _)| is_scope(name)))? + 1;
            // A job's processes are always in a step; other directories are the daemons' own (`system`, `slurmd`).
            component(job + 1).filter(|(name, _)| name.starts_with("step_")).map(|_| job)?
        }
    };
    let end_of_job = component(job).map_or(below.len(), |(_, end)| end);
    let step = component(job + 1).filter(|(name, _)| name.starts_with("step_"));
    Some(SlurmsOwn {
        job: path.get(..offset + end_of_job)?.to_owned(),
        step: step.and_then(|(_, end)| path.get(..offset + end)).map(str::to_owned),
    })
}

/// The scope in which Slurm's step daemons are, by its name.
pub fn is_scope(name: &str) -> bool {
    name == "slurmstepd.scope" || name.ends_with("_slurmstepd.scope")
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
        let v2 = Hierarchy { version: Version::V2, ..v1(&[], None) };
        let inside = |hierarchy: Hierarchy| Hierarchy { root: "/docker/ab".into(), ..hierarchy };
        let scope = "/system.slice/node1_slurmstepd.scope";
        for (hierarchy, job, step) in [
            (v2.clone(), "/system.slice/slurmstepd.scope/job_1", "/step_0|/user/task_0"),
            (v2.clone(), "/system.slice/node1_slurmstepd.scope/s2YNM7YN3THN00", "/step_batch|/slurm"),
            (inside(v2.clone()), "/docker/ab/system.slice/slurmstepd.scope/job_1", "/step_0|/user"),
            (v1(&["cpu"], None), "/slurm/uid_0/job_5", "/step_0|"),
            (v1(&["cpu"], None), "/slurm_node1/uid_0/job_5", "/step_0|/task_1"),
            (v1(&["cpu"], None), "/slurm_node1/uid_0/job_5", "|"),
            (v1(&["cpu"], None), "/slurm_node1/uid_0", "|"),
            (inside(v1(&["cpu"], None)), "/docker/ab/slurm/uid_0/job_5", "/step_0|"),
        ] {
            let (step, rest) = step.split_once('|').unwrap();
            let found = SlurmsOwn { job: job.to_owned(), step: (!step.is_empty()).then(|| format!("{job}{step}")) };
            assert_eq!(slurms_own(&format!("{job}{step}{rest}"), &hierarchy), Some(found), "{job}{step}{rest}");
        }
        for (hierarchy, other) in [
            (&v2, "/"),
            (&v2, "/system.slice/slurmd.service"),
            (&v2, scope),
            (&v2, &format!("{scope}/system")),
            (&v2, &format!("{scope}/slurmd")),
            (&v2, "/jobfence.slice/jobfence.scope/uid_1/job_2/step_0"),
            // A user can make these.
            (&v2, "/user.slice/user-1.slice/user@1.service/x_slurmstepd.scope/job_1/step_0/user"),
            (&v2, "/slurm/uid_0/job_5/step_0"),
            (&v2, "/system.slice/slurmstepd.scope//step_0"),
            (&v1(&["cpu"], None), "/slurm/uid_0/"),
            (&v1(&["cpu"], None), "/jobfence/slurm_x/job_2"),
            (&v1(&["cpu"], None), "/jobfence/slurm_x/uid_1/job_2/step_0"),
            (&v1(&["cpu"], None), "/system.slice/slurmstepd.scope/job_1/step_0"),
        ] {
            assert_eq!(slurms_own(other, hierarchy), None, "{other}");
        }
    }
}
