// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories that a job has on this node now, ours and the scheduler's, for people who ask. Nothing here is written.
//!
//! They are found by their names. What these do not say, root knows from the records and from our marks: who has another base, or
//! a directory that Slurm has named by the job's SLUID (26.05). Anybody else has to name the SLUID.

use std::path::{Path, PathBuf};

use super::IDLE;
use super::own::{child, children, there};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::mark;
use crate::cgroup::membership::is_scope;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::policy::Level;
use crate::record::{Record, Records};
use crate::scheduler::slurm::leftovers::{SLICES, find_units};
use crate::sys::dir::Dir;

/// Which job.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Whose it is.
    pub uid: u32,
    /// Its number.
    pub job: u32,
    /// Its other name.
    pub sluid: Option<String>,
}

/// One step's directories in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// Whether they are the scheduler's.
    pub is_overlay: bool,
    /// As the scheduler calls it: batch, 0.
    pub name: String,
    /// `None` where users have none.
    user: Option<PathBuf>,
    job: PathBuf,
    /// That of the user's processes.
    step: Option<PathBuf>,
    tasks: Vec<PathBuf>,
}

impl Step {
    /// Leaves its job's and its user's.
    pub fn forget_step(&mut self) {
        self.step = None;
        self.tasks.clear();
    }

    /// Its directory of a level; of the first task.
    pub fn dir(&self, level: Level) -> Option<&Path> {
        match level {
            Level::User => self.user.as_deref(),
            Level::Job => Some(&self.job),
            Level::Step => self.step.as_deref(),
            Level::Task => self.tasks.first().map(PathBuf::as_path),
        }
    }
}

/// Every step of the job that has directories, and why there may be more.
pub fn find(host: &Host, run_dir: &Path, wanted: &Wanted) -> (Vec<Step>, Vec<Error>) {
    let mut found = Found { wanted, steps: Vec::new(), unseen: Vec::new() };
    let mut bases = vec![(host.base.clone(), None)];
    if nix::unistd::geteuid().is_root() {
        let recorded = recorded(run_dir, wanted).map_err(|error| found.unseen.push(error)).unwrap_or_default();
        bases.extend(recorded.into_iter().map(|record| (record.base.clone(), Some(record))));
    }
    for hierarchy in &host.layout.hierarchies {
        let Some(root) = there(hierarchy.open(), &mut found.unseen) else { continue };
        for (base, record) in &bases {
            found.in_base(hierarchy, &root, base, record.as_ref());
        }
        match hierarchy.version {
            Version::V1 => found.in_v1(hierarchy, &root),
            Version::V2 => {
                let mut scopes = Vec::new();
                find_units(&root, is_scope, SLICES, &mut scopes, &mut found.unseen);
                for scope in scopes {
                    found.in_scope(hierarchy, &scope);
                }
            }
        }
    }
    found.steps.sort_by(|a, b| (&a.mount, &a.step).cmp(&(&b.mount, &b.step)));
    found.steps.dedup();
    (found.steps, found.unseen)
}

/// The job's records, as far as they can be understood.
fn recorded(run_dir: &Path, wanted: &Wanted) -> Result<Vec<Record>> {
    // Opening would make a directory that is not there.
    if !run_dir.is_dir() {
        return Ok(Vec::new());
    }
    let records = Records::open(run_dir)?;
    let mut found = Vec::new();
    for levels in records.list()? {
        let is_its = levels.iter().any(|name| *name == format!("job_{}", wanted.job));
        found.extend(if is_its { records.read(&levels)? } else { None });
    }
    found.retain(|record| record.uid() == Some(wanted.uid));
    Ok(found)
}

struct Found<'a> {
    wanted: &'a Wanted,
    steps: Vec<Step>,
    unseen: Vec<Error>,
}

impl Found<'_> {
    /// Ours: `BASE[/idle][/NODE]/uid_U/job_J/step_S`.
    fn in_base(&mut self, hierarchy: &Hierarchy, root: &Dir, base: &str, record: Option<&Record>) {
        let Some(base) = down(root, base.split('/'), &mut self.unseen) else { return };
        let user = format!("uid_{}", self.wanted.uid);
        let mut tops = vec![base.path().to_path_buf()];
        match record {
            Some(record) => {
                let above = record.levels.len().saturating_sub(3);
                tops.extend(record.levels.iter().take(above).map(|node| base.path().join(node)));
            }
            None => {
                // Nodes, and scavengers.
                let others = children(&base, |name| !name.starts_with("uid_"), &mut self.unseen);
                tops.extend(others.iter().map(|name| base.path().join(name)));
                if let Some(idle) = down(&base, [IDLE].into_iter(), &mut self.unseen) {
                    let nodes = children(&idle, |name| !name.starts_with("uid_"), &mut self.unseen);
                    tops.extend(nodes.iter().map(|name| idle.path().join(name)));
                }
            }
        }
        for top in tops {
            let user = top.join(&user);
            let job = user.join(format!("job_{}", self.wanted.job));
            if let Some(job_dir) = there(Dir::open(&job), &mut self.unseen) {
                self.steps_of(hierarchy, Some(&user), &job_dir, false);
            }
        }
    }

    /// Slurm's on cgroup2: `SCOPE/JOB/step_S/user/task_N`.
    fn in_scope(&mut self, hierarchy: &Hierarchy, scope: &Dir) {
        for name in children(scope, |name| name != "system" && name != "slurmd", &mut self.unseen) {
            let Some(job) = child(scope, &name, &mut self.unseen) else { continue };
            let is_its = name == format!("job_{}", self.wanted.job) || self.wanted.sluid.as_ref() == Some(&name);
            if is_its || self.is_marked(&job) {
                self.steps_of(hierarchy, None, &job, true);
            }
        }
    }

    /// Slurm's on v1: `slurm[_NODE]/uid_U/job_J/step_S/task_N`.
    fn in_v1(&mut self, hierarchy: &Hierarchy, root: &Dir) {
        for name in children(root, |name| name == "slurm" || name.starts_with("slurm_"), &mut self.unseen) {
            let names = [name, format!("uid_{}", self.wanted.uid)];
            let Some(user) = down(root, names.iter().map(String::as_str), &mut self.unseen) else { continue };
            let job = format!("job_{}", self.wanted.job);
            if let Some(job) = down(&user, [job.as_str()].into_iter(), &mut self.unseen) {
                self.steps_of(hierarchy, Some(user.path()), &job, true);
            }
        }
    }

    /// Whether root has marked it as this job's.
    fn is_marked(&mut self, job: &Dir) -> bool {
        if !nix::unistd::geteuid().is_root() {
            return false;
        }
        let record = there(mark::get(job), &mut self.unseen).flatten().and_then(|text| Record::parse(&text).ok());
        record.is_some_and(|record| {
            record.uid() == Some(self.wanted.uid) && record.job() == Some(self.wanted.job.to_string().as_str())
        })
    }

    fn steps_of(&mut self, hierarchy: &Hierarchy, user: Option<&Path>, job: &Dir, is_overlay: bool) {
        for name in children(job, |name| name.starts_with("step_"), &mut self.unseen) {
            let Some(mut step) = child(job, &name, &mut self.unseen) else { continue };
            if is_overlay && hierarchy.version == Version::V2 {
                // Where the daemon alone is, the step's processes are elsewhere.
                let Some(users) = down(&step, ["user"].into_iter(), &mut self.unseen) else { continue };
                step = users;
            }
            let mut tasks = children(&step, |name| name.starts_with("task_"), &mut self.unseen);
            tasks.sort_by_key(|name| name.strip_prefix("task_").and_then(|number| number.parse::<u32>().ok()));
            let plain = name.strip_prefix("step_").unwrap_or(&name);
            self.steps.push(Step {
                mount: hierarchy.mount.clone(),
                is_overlay,
                // Ours has a number behind it where another had the name, and Slurm's one of a heterogeneous job.
                name: plain.split(['.', '+']).next().unwrap_or(plain).to_owned(),
                user: user.map(Path::to_path_buf),
                job: job.path().to_path_buf(),
                tasks: tasks.iter().map(|name| step.path().join(name)).collect(),
                step: Some(step.path().to_path_buf()),
            });
        }
    }
}

/// A directory below; `None` where there is none.
fn down<'a>(dir: &Dir, names: impl Iterator<Item = &'a str>, unseen: &mut Vec<Error>) -> Option<Dir> {
    let mut found: Option<Dir> = None;
    for name in names {
        found = Some(child(found.as_ref().unwrap_or(dir), name, unseen)?);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(version: Version, dirs: &[&str], wanted: &Wanted) -> Vec<Step> {
        let temp = tempfile::tempdir().unwrap();
        for dir in dirs {
            std::fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        let root = Dir::open(temp.path()).unwrap();
        let hierarchy = Hierarchy {
            version,
            mount: temp.path().to_path_buf(),
            root: "/".into(),
            controllers: std::collections::BTreeSet::new(),
            name: None,
        };
        let mut found = Found { wanted, steps: Vec::new(), unseen: Vec::new() };
        found.in_base(&hierarchy, &root, "jobfence.slice/jobfence.scope", None);
        match version {
            Version::V1 => found.in_v1(&hierarchy, &root),
            Version::V2 => {
                let scope = root.child("system.slice").and_then(|slice| slice.child("n1_slurmstepd.scope"));
                scope.iter().for_each(|scope| found.in_scope(&hierarchy, scope));
            }
        }
        assert!(found.unseen.is_empty(), "{:?}", found.unseen);
        let relative = |path: PathBuf| path.strip_prefix(temp.path()).unwrap().to_path_buf();
        let mut steps = found.steps;
        for step in &mut steps {
            step.mount = PathBuf::new();
            step.user = step.user.take().map(relative);
            step.job = relative(std::mem::take(&mut step.job));
            step.step = step.step.take().map(relative);
            step.tasks = std::mem::take(&mut step.tasks).into_iter().map(relative).collect();
        }
        steps
    }

    #[test]
    fn ours_are_found_in_every_branch() {
        let base = "jobfence.slice/jobfence.scope";
        let wanted = Wanted { uid: 6, job: 5, sluid: None };
        for branch in [base.to_owned(), format!("{base}/idle"), format!("{base}/n1"), format!("{base}/idle/n1")] {
            let job = format!("{branch}/uid_6/job_5");
            let dirs = [
                format!("{job}/step_batch.2/task_10"),
                format!("{job}/step_batch.2/task_9"),
                format!("{branch}/uid_6/job_55/step_0"),
                format!("{branch}/uid_7/job_5/step_0"),
                format!("{base}/hold"),
            ];
            let steps = found_in(Version::V2, &dirs.each_ref().map(String::as_str), &wanted);
            let [step] = &steps[..] else { panic!("{branch}: {steps:?}") };
            assert_eq!((step.name.as_str(), step.is_overlay), ("batch", false));
            let path = |text: &str| PathBuf::from(format!("{branch}/{text}"));
            let expected = ["uid_6", "uid_6/job_5", "uid_6/job_5/step_batch.2", "uid_6/job_5/step_batch.2/task_9"];
            let levels = [Level::User, Level::Job, Level::Step, Level::Task];
            assert_eq!(levels.map(|level| step.dir(level).unwrap().to_path_buf()), expected.map(path));
        }
    }

    #[test]
    fn slurms_are_found_by_number_or_sluid() {
        let scope = "system.slice/n1_slurmstepd.scope";
        let dirs = [
            format!("{scope}/job_5/step_0/user/task_0"),
            format!("{scope}/s2YNM7YN3THN00/step_extern/user"),
            format!("{scope}/s2YNM7YN3THN00/step_1/slurm"),
            format!("{scope}/job_55/step_0/user/task_0"),
            format!("{scope}/system"),
        ];
        let dirs = dirs.each_ref().map(String::as_str);
        let names = |sluid: Option<&str>| {
            let wanted = Wanted { uid: 6, job: 5, sluid: sluid.map(str::to_owned) };
            let mut steps: Vec<String> = found_in(Version::V2, &dirs, &wanted)
                .iter()
                .map(|step| step.dir(Level::Step).unwrap().display().to_string().replace(&format!("{scope}/"), ""))
                .collect();
            steps.sort();
            steps
        };
        assert_eq!(names(None), ["job_5/step_0/user"]);
        assert_eq!(names(Some("s2YNM7YN3THN00")), ["job_5/step_0/user", "s2YNM7YN3THN00/step_extern/user"]);
        let v1 = ["slurm_n1/uid_6/job_5/step_batch/task_0", "slurm/uid_7/job_5/step_0", "slurmy/uid_6/job_5/step_3"];
        let steps = found_in(Version::V1, &v1, &Wanted { uid: 6, job: 5, sluid: None });
        let [step] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(step.dir(Level::User), Some(Path::new("slurm_n1/uid_6")));
        assert_eq!(step.dir(Level::Task), Some(Path::new("slurm_n1/uid_6/job_5/step_batch/task_0")));
    }
}
