// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the container of a job's process belongs: beside the directory of the step's processes. The kernel says where this process is.

use jobfence::error::{Error, Result};

/// The directory of a step's containers.
const BRANCH: &str = "docker";

/// The directory for the containers of this process, from the root of cgroup v2. `None`: this process is in no job. An error: there can be
/// none.
pub fn of_this_process() -> Result<Option<String>> {
    const FILE: &str = "/proc/self/cgroup";
    let text = std::fs::read_to_string(FILE).map_err(|error| Error::new(format!("read {FILE}: {error}")))?;
    of(&text)
}

fn of(text: &str) -> Result<Option<String>> {
    // What begins with `..` is outside of this process's cgroup namespace, and cannot be named to others.
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| !path.starts_with("/.."));
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let is_v1 =
        |line: &str| !line.starts_with("0::") && line.splitn(3, ':').nth(2).is_some_and(|path| step_of(path).is_some());
    if text.lines().any(is_v1) {
        // Docker would make directories in each hierarchy of v1, also where the job has none.
        return Err(Error::new("containers can be in jobs only on cgroup v2"));
    }
    if let Some((step, below)) = unified.and_then(step_of) {
        if below.is_empty() {
            return Err(Error::new("the job's processes are in its cgroup itself, so there is no room for another")
                .hint("your administrator can set Delegate=containers in jobfence.conf"));
        }
        return Ok(Some(format!("{step}/{BRANCH}")));
    }
    let is_schedulers = |path: &str| {
        let names: Vec<&str> = path.split('/').collect();
        names.windows(2).any(|pair| matches!(pair, [job, step] if job.starts_with("job_") && step.starts_with("step_")))
    };
    if paths().any(is_schedulers) {
        return Err(Error::new(
            "the scheduler itself has the job's processes in cgroups, and would leave a container there",
        ));
    }
    Ok(None)
}

/// The outermost directory of a step on this path, and what is below that.
pub fn step_of(path: &str) -> Option<(&str, &str)> {
    if !path.starts_with('/') || path.starts_with("/..") {
        return None;
    }
    let mut ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
    ends.push(path.len());
    ends.into_iter().find_map(|end| {
        let (step, below) = path.split_at_checked(end)?;
        let mut names = step.rsplit('/');
        let is_step =
            ["step_", "job_", "uid_"].iter().all(|begin| names.next().is_some_and(|name| name.starts_with(begin)));
        is_step.then_some((step, below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_beside_the_processes_that_ask() {
        let step = "/jobfence.slice/jobfence.scope/uid_1001/job_12/step_0";
        let of = |text: &str| of(text).map_err(|error| error.to_string());
        for below in ["user", "task_3/a/b", "htcondor/x", "user/uid_1/job_2/step_3/user"] {
            assert_eq!(of(&format!("1:cpu:/\n0::{step}/{below}\n")), Ok(Some(format!("{step}/docker"))), "{below}");
        }
        for (text, why) in [
            (format!("0::{step}\n"), "Delegate=containers"),
            (format!("4:memory:{step}/user\n0::/\n"), "only on cgroup v2"),
            (format!("4:memory:{step}\n0::{step}/user\n"), "only on cgroup v2"),
            ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n".to_owned(), "the scheduler itself"),
        ] {
            assert!(of(&text).is_err_and(|error| error.contains(why)), "{text}");
        }
        for other in ["", "0::/\n", "0::/user.slice/x\n", "0::/../uid_1/job_2/step_3/user\n", "0::/uid_1/job_2\n"] {
            assert_eq!(of(other), Ok(None), "{other}");
        }
    }
}
