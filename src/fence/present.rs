// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the directories that a job has on this node now, jobfence's and the scheduler's, for display. Nothing is written.
//!
//! Directories are found by their names. Root also finds, by the records and jobfence's marks, those below another base and those that
//! the scheduler did not name by the job's number. Other users must give that name.

use std::path::{Path, PathBuf};

use super::names::IDLE;
use super::own::{child, children, found_or_noted};
use crate::cgroup::layout::Hierarchy;
use crate::cgroup::mark;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, job_dir};
use crate::policy::Level;
use crate::record::{Record, Records};
use crate::scheduler::{Scheduler, Schedulers, StepDirs};
use crate::sorted;
use crate::sys::dir::Dir;

/// The job to find.
#[derive(Debug, Clone)]
pub struct WantedJob {
    /// Its user.
    pub uid: u32,
    /// Its id.
    pub job: Id,
    /// Its other name, which a scheduler may give its directory.
    pub other_name: Option<String>,
}

/// One step's directories in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentStep {
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// Whether they are the scheduler's.
    pub is_overlay: bool,
    /// The step's name in the scheduler: batch, 0.
    pub name: String,
    /// `None` where users have none.
    user: Option<PathBuf>,
    job: PathBuf,
    /// The directory of the user's processes.
    step: Option<PathBuf>,
    tasks: Vec<PathBuf>,
}

impl PresentStep {
    /// Keeps only the directories of its job and its user.
    pub fn forget_step(&mut self) {
        self.step = None;
        self.tasks.clear();
    }

    /// Its directory of a level; for tasks that of the first.
    pub fn dir(&self, level: Level) -> Option<&Path> {
        match level {
            Level::User => self.user.as_deref(),
            Level::Job => Some(&self.job),
            Level::Step => self.step.as_deref(),
            Level::Task => self.tasks.first().map(PathBuf::as_path),
        }
    }
}

/// Returns every step of the job that has directories, and the errors that may hide more.
pub fn find(host: &Host, schedulers: Schedulers, run_dir: &Path, wanted: &WantedJob) -> (Vec<PresentStep>, Vec<Error>) {
    let mut found = StepSearch { wanted, steps: Vec::new(), unseen: Vec::new() };
    let mut bases = vec![(host.base.clone(), None)];
    if nix::unistd::geteuid().is_root() {
        let recorded = recorded(run_dir, wanted).map_err(|error| found.unseen.push(error)).unwrap_or_default();
        bases.extend(recorded.into_iter().map(|record| (record.base.clone(), Some(record))));
    }
    for hierarchy in &host.layout.hierarchies {
        let Some(root) = found_or_noted(hierarchy.open(), &mut found.unseen) else { continue };
        for (base, record) in &bases {
            found.in_base(hierarchy, &root, base, record.as_ref());
        }
        for scheduler in schedulers {
            found.in_theirs(hierarchy, &root, *scheduler);
        }
    }
    sorted::sort_by(&mut found.steps, |a, b| (&a.mount, &a.step).cmp(&(&b.mount, &b.step)));
    found.steps.dedup();
    (found.steps, found.unseen)
}

/// The job's records of this user.
fn recorded(run_dir: &Path, wanted: &WantedJob) -> Result<Vec<Record>> {
    // `Records::open` would make a directory that is missing.
    if !run_dir.is_dir() {
        return Ok(Vec::new());
    }
    let records = Records::open(run_dir)?;
    let mut found = Vec::new();
    for levels in records.list()? {
        let is_its = levels.iter().any(|name| *name == job_dir(&wanted.job));
        found.extend(if is_its { records.read(&levels)? } else { None });
    }
    found.retain(|record| record.uid() == Some(wanted.uid));
    Ok(found)
}

struct StepSearch<'a> {
    wanted: &'a WantedJob,
    steps: Vec<PresentStep>,
    unseen: Vec<Error>,
}

impl StepSearch<'_> {
    /// Adds jobfence's steps: `BASE[/idle][/NODE]/uid_U/job_J/step_S`.
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
                // The branches of nodes and of scavengers.
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
            let job = user.join(job_dir(&self.wanted.job));
            if let Some(job_dir) = found_or_noted(Dir::open(&job), &mut self.unseen) {
                self.steps_of(hierarchy, Some(&user), &job_dir, None);
            }
        }
    }

    /// Adds a scheduler's steps.
    fn in_theirs(&mut self, hierarchy: &Hierarchy, root: &Dir, scheduler: &dyn Scheduler) {
        let mut unseen = Vec::new();
        let WantedJob { uid, job, other_name } = self.wanted;
        let is_its = &mut |name: &str, dir: &Dir| other_name.as_deref() == Some(name) || self.is_marked(dir);
        let jobs = scheduler.present(hierarchy, root, (*uid, job.as_str()), is_its, &mut unseen);
        self.unseen.append(&mut unseen);
        for theirs in jobs {
            self.steps_of(hierarchy, theirs.user.as_deref(), &theirs.job, Some(theirs.dirs));
        }
    }

    /// Whether the directory has a mark of this job. Only root can read marks.
    fn is_marked(&mut self, job: &Dir) -> bool {
        if !nix::unistd::geteuid().is_root() {
            return false;
        }
        let record =
            found_or_noted(mark::get(job), &mut self.unseen).flatten().and_then(|text| Record::parse(&text).ok());
        record.is_some_and(|record| {
            record.uid() == Some(self.wanted.uid) && record.job().is_some_and(|job| job == self.wanted.job)
        })
    }

    fn steps_of(&mut self, hierarchy: &Hierarchy, user: Option<&Path>, job: &Dir, theirs: Option<&StepDirs>) {
        let (steps, tasks) = theirs.map_or(("step_", "task_"), |dirs| (dirs.steps, dirs.tasks));
        for name in children(job, |name| name.starts_with(steps), &mut self.unseen) {
            let Some(mut step) = child(job, &name, &mut self.unseen) else { continue };
            if let Some(below) = theirs.and_then(|dirs| dirs.processes) {
                // A directory with only the daemon in it does not hold the step's processes.
                let Some(processes) = child(&step, below, &mut self.unseen) else { continue };
                step = processes;
            }
            let mut numbered = children(&step, |name| name.starts_with(tasks), &mut self.unseen);
            sorted::sort_by_key(&mut numbered, |name| {
                name.strip_prefix(tasks).and_then(|number| number.parse::<u32>().ok())
            });
            let plain = name.strip_prefix(steps).unwrap_or(&name);
            // jobfence appends a number if another step had the name, and Slurm a heterogeneous job's component.
            let plain = plain.split(if theirs.is_some() { '+' } else { '.' }).next().unwrap_or(plain);
            let ours = Id::of_a_steps_name(plain).filter(|_| theirs.is_none());
            self.steps.push(PresentStep {
                mount: hierarchy.mount.clone(),
                is_overlay: theirs.is_some(),
                name: ours.map_or_else(|| plain.to_owned(), |id| id.as_str().to_owned()),
                user: user.map(Path::to_path_buf),
                job: job.path().to_path_buf(),
                tasks: numbered.iter().map(|name| step.path().join(name)).collect(),
                step: Some(step.path().to_path_buf()),
            });
        }
    }
}

/// Opens a directory below by these names; `None` if there is none.
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
    use crate::cgroup::layout::Version;
    use crate::schedulers::ALL;

    fn found_in(version: Version, dirs: &[&str], wanted: &WantedJob) -> Vec<PresentStep> {
        let temp = tempfile::tempdir().unwrap();
        for dir in dirs {
            std::fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        let root = Dir::open(temp.path()).unwrap();
        let hierarchy = Hierarchy {
            version,
            mount: temp.path().to_path_buf(),
            root: "/".into(),
            controllers: Vec::new(),
            name: None,
        };
        let mut found = StepSearch { wanted, steps: Vec::new(), unseen: Vec::new() };
        found.in_base(&hierarchy, &root, "jobfence.slice/jobfence.scope", None);
        for scheduler in ALL {
            found.in_theirs(&hierarchy, &root, *scheduler);
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
        let wanted = WantedJob { uid: 6, job: Id::new("5").unwrap(), other_name: None };
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
            let wanted = WantedJob { uid: 6, job: Id::new("5").unwrap(), other_name: sluid.map(str::to_owned) };
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
        let steps = found_in(Version::V1, &v1, &WantedJob { uid: 6, job: Id::new("5").unwrap(), other_name: None });
        let [step] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(step.dir(Level::User), Some(Path::new("slurm_n1/uid_6")));
        assert_eq!(step.dir(Level::Task), Some(Path::new("slurm_n1/uid_6/job_5/step_batch/task_0")));
    }
}
