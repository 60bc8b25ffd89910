// SPDX-License-Identifier: GPL-2.0-or-later
//! Where Slurm's own cgroup plugins keep a step's processes, by the names of directories.
//!
//! v2: `JOB/step_S/user/task_N` holds the processes, and `JOB/step_S/slurm` the step daemon. v1: `JOB/step_S[/task_N]`; the step daemon is
//! outside in the cpu hierarchy, and in the step's directory in the memory hierarchy.
//!
//! A path is never built from ids, but taken from the kernel: Debian puts the node's name into it, and Slurm 26.05 names jobs by SLUID.

use super::row::SLURM;
use super::units::{SLICES, find_units};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::error::Error;
use crate::fence::branches::{child, children};
use crate::job::JobKey;
use crate::policy::Level;
use crate::scheduler::{Placement, PresentJob, StepDirs};
use crate::sys::dir::Dir;

/// Below a job's directory on v1.
static ON_V1: StepDirs = StepDirs { steps: "step_", processes: None, tasks: "task_", whole: "step_batch" };

/// On v2 a step daemon is below its step, too.
static ON_V2: StepDirs = StepDirs { processes: Some("user"), ..ON_V1 };

const SCOPE: &str = "slurmstepd.scope";

fn dirs(version: Version) -> &'static StepDirs {
    match version {
        Version::V1 => &ON_V1,
        Version::V2 => &ON_V2,
    }
}

/// The directories that Slurm's own plugins made for the process in this hierarchy. `None`: it is in none.
pub fn of(member: &Membership, hierarchy: &Hierarchy) -> Option<Placement> {
    of_path(member.path_in(hierarchy)?, hierarchy)
}

/// Whether a path is inside the directories that Slurm's own cgroup plugins made for a job, and where.
///
/// v2: `…/[NODE_]slurmstepd.scope/JOB/step_S/…`. Excluded is systemd's user.slice, where a user can make directories, and so are the leaves
/// `system` and `slurmd` of the scope: step daemons are in `system` if Slurm does not track processes by cgroup, or in `slurmd` if systemd
/// did not start slurmd. v1, only at the top of a hierarchy: `/slurm[_NODE]/uid_U/job_J[/step_S…]`. Source: src/plugins/cgroup/ of Slurm
/// 22.05 to 26.05.
fn of_path(path: &str, hierarchy: &Hierarchy) -> Option<Placement> {
    // A fast exit: most paths do not match, and each launch asks for each hierarchy.
    let always = match hierarchy.version {
        Version::V1 => "/slurm",
        Version::V2 => SCOPE,
    };
    if !path.contains(always) {
        return None;
    }
    let below = format!("/{}", hierarchy.below_mount(path)?);
    // The kernel writes no such path; in one, a job could have an empty name.
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
            (is_top(top) && user.starts_with("uid_")).then_some(2)?
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
    let job = path.get(..offset + end_of_job)?.to_owned();
    let step = step.and_then(|(_, end)| path.get(..offset + end)).map(str::to_owned);
    Some(in_dirs(path, hierarchy, job, step))
}

fn in_dirs(path: &str, hierarchy: &Hierarchy, job: String, step: Option<String>) -> Placement {
    let is_leaf = step.as_ref().is_some_and(|step| path.strip_prefix(step.as_str()) == Some("/slurm"));
    let (is_daemons, is_tasks) = match hierarchy.version {
        // In the freezer Slurm tracks the processes; in other hierarchies the daemon may be in the step's directory.
        Version::V1 => (true, step.is_some() && hierarchy.has("freezer")),
        // A slurmd that runs inside a job has its daemons among the tasks.
        Version::V2 => (step.is_none() || is_leaf, step.is_some() && !is_leaf),
    };
    let dirs = dirs(hierarchy.version);
    let mut placement = Placement { scheduler: &SLURM, job, step, task: None, is_daemons, is_tasks, dirs };
    // Slurm's proctrack/cgroup without task/cgroup makes one directory for all of a step's tasks.
    let is_alone = !path.ends_with("/task_special") && placement.processes().is_some_and(|all| all != path);
    placement.task = is_alone.then(|| path.to_owned());
    placement
}

/// Whether a path is where Slurm keeps only a step's daemon on v2.
pub fn is_daemons_alone(placement: &Placement, version: Version) -> bool {
    version == Version::V2 && placement.step.is_some() && placement.is_daemons
}

/// Whether Slurm's directories are this step's. A component of a heterogeneous job adds its number (`step_0+1`).
///
/// On v1 the path must name user and job: Slurm 22.05 gives the directories below a step to the user, who could move the task into those of
/// another of the user's jobs. On v2 only root can move it, and the job's name may be other than its number (SLUID).
pub fn is_named(found: &Placement, key: &JobKey, version: Version) -> bool {
    let job = match version {
        Version::V1 => found.job.ends_with(&format!("/uid_{}/job_{}", key.uid, key.job)),
        Version::V2 => {
            let number = found.job.rsplit_once('/').and_then(|(_, job)| job.strip_prefix("job_"));
            number.is_none_or(|number| number == key.job.as_str())
        }
    };
    let step = |path: &String| {
        let name = path.rsplit_once('/').and_then(|(_, name)| name.strip_prefix(key.step_dir(1).as_str()));
        name.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    };
    job && found.step.as_ref().is_none_or(step)
}

/// The directories of a step that does not exist. On some hosts Slurm's names contain more: the node's name, the job's SLUID.
pub fn would_make(version: Version, key: &JobKey, level: Level) -> Option<String> {
    let top = match version {
        Version::V1 => format!("/slurm*/uid_{}", key.uid),
        Version::V2 if level == Level::User => return None,
        Version::V2 => format!("/system.slice/*{SCOPE}"),
    };
    let job = format!("{top}/job_{}", key.job);
    let step = || {
        let step = format!("{job}/{}", key.step_dir(1));
        dirs(version).processes.map_or_else(|| step.clone(), |below| format!("{step}/{below}"))
    };
    Some(match level {
        Level::User => top,
        Level::Job => job,
        Level::Step => step(),
        Level::Task => format!("{}/task_0", step()),
    })
}

/// The directories of all jobs that exist. v2: `SCOPE/JOB`; v1: `slurm[_NODE]/uid_U/job_J`.
pub fn each_present(hierarchy: &Hierarchy, root: &Dir, each: &mut dyn FnMut(PresentJob), unseen: &mut Vec<Error>) {
    let dirs = dirs(hierarchy.version);
    match hierarchy.version {
        Version::V1 => {
            for name in children(root, is_top, unseen) {
                let Some(top) = child(root, &name, unseen) else { continue };
                for name in children(&top, |name| name.starts_with("uid_"), unseen) {
                    let Some(user) = child(&top, &name, unseen) else { continue };
                    for name in children(&user, |name| name.starts_with("job_"), unseen) {
                        let Some(job) = child(&user, &name, unseen) else { continue };
                        each(PresentJob { user: Some(user.path().to_path_buf()), job, dirs });
                    }
                }
            }
        }
        Version::V2 => {
            let mut scopes = Vec::new();
            find_units(root, is_scope, SLICES, &mut scopes, unseen);
            for scope in scopes {
                // The daemons' directories, and that of jobfence's check, have no steps.
                for name in children(&scope, |name| name != "system" && name != "slurmd", unseen) {
                    let Some(job) = child(&scope, &name, unseen) else { continue };
                    each(PresentJob { user: None, job, dirs });
                }
            }
        }
    }
}

/// Whether this is the name of the scope of Slurm's step daemons.
pub fn is_scope(name: &str) -> bool {
    name == SCOPE || name.strip_suffix(SCOPE).is_some_and(|node| node.ends_with('_'))
}

/// Whether this is the name of the directory of all jobs in a v1 hierarchy.
pub fn is_top(name: &str) -> bool {
    name == "slurm" || name.starts_with("slurm_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Id;
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

    fn v2() -> Hierarchy {
        Hierarchy { version: Version::V2, ..v1(&[], None) }
    }

    #[test]
    fn tells_slurms_own_places_from_others() {
        let v2 = v2();
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
            let expected = (job.to_owned(), (!step.is_empty()).then(|| format!("{job}{step}")));
            let found = of_path(&format!("{job}{step}{rest}"), &hierarchy).map(|found| (found.job, found.step));
            assert_eq!(found, Some(expected), "{job}{step}{rest}");
        }
        for (hierarchy, other) in [
            (&v2, "/"),
            (&v2, "/system.slice/slurmd.service"),
            (&v2, scope),
            (&v2, &format!("{scope}/system")),
            (&v2, &format!("{scope}/slurmd")),
            (&v2, "/jobfence.slice/jobfence.scope/uid_1/job_2/step_0"),
            // A user can make this one.
            (&v2, "/user.slice/user-1.slice/user@1.service/x_slurmstepd.scope/job_1/step_0/user"),
            (&v2, "/slurm/uid_0/job_5/step_0"),
            (&v2, "/system.slice/slurmstepd.scope//step_0"),
            (&v1(&["cpu"], None), "/slurm/uid_0/"),
            (&v1(&["cpu"], None), "/jobfence/slurm_x/job_2"),
            (&v1(&["cpu"], None), "/jobfence/slurm_x/uid_1/job_2/step_0"),
            (&v1(&["cpu"], None), "/system.slice/slurmstepd.scope/job_1/step_0"),
        ] {
            assert!(of_path(other, hierarchy).is_none(), "{other}");
        }
    }

    #[test]
    fn daemons_are_told_from_tasks() {
        let job = "/system.slice/slurmstepd.scope/job_1/step_0";
        let sides = |path: &str, hierarchy: &Hierarchy| {
            let found = of_path(path, hierarchy).unwrap();
            (found.is_daemons, found.is_tasks, found.task.is_some())
        };
        assert_eq!(sides(&format!("{job}/slurm"), &v2()), (true, false, true));
        assert_eq!(sides(&format!("{job}/user"), &v2()), (false, true, false));
        assert_eq!(sides(&format!("{job}/user/task_0"), &v2()), (false, true, true));
        assert_eq!(sides(&format!("{job}/user/task_special"), &v2()), (false, true, false));
        let job = "/slurm/uid_0/job_5";
        assert_eq!(sides(job, &v1(&["freezer"], None)), (true, false, false));
        assert_eq!(sides(&format!("{job}/step_0"), &v1(&["freezer"], None)), (true, true, false));
        assert_eq!(sides(&format!("{job}/step_0/task_0"), &v1(&["memory"], None)), (true, false, true));
    }

    #[test]
    fn slurms_step_is_known_by_its_name() {
        let key = JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("1").unwrap() };
        let is_ours = |version, job: &str, step: &str| {
            let step = (!step.is_empty()).then(|| format!("{job}/{step}"));
            is_named(&in_dirs(job, &v2(), job.to_owned(), step), &key, version)
        };
        for step in ["", "step_1", "step_1+2"] {
            assert!(is_ours(Version::V1, "/slurm/uid_1/job_5", step), "{step}");
            assert!(is_ours(Version::V2, "/x.scope/job_5", step), "{step}");
            assert!(is_ours(Version::V2, "/x.scope/s2YNM7YN3THN00", step), "{step}");
            assert!(!is_ours(Version::V1, "/slurm/uid_1/job_55", step), "{step}");
            assert!(!is_ours(Version::V1, "/slurm/uid_11/job_5", step), "{step}");
            assert!(!is_ours(Version::V2, "/x.scope/job_55", step), "{step}");
        }
        for step in ["step_10", "step_batch"] {
            assert!(!is_ours(Version::V1, "/slurm/uid_1/job_5", step), "{step}");
            assert!(!is_ours(Version::V2, "/x.scope/job_5", step), "{step}");
            assert!(!is_ours(Version::V2, "/x.scope/s2YNM7YN3THN00", step), "{step}");
        }
    }
}
