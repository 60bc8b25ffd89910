// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds every step that has directories on this node now, jobfence's or a scheduler's, for display. Nothing is written.
//!
//! Steps are found by the names of their directories, which every user can read. Root also reads the records and jobfence's marks. The
//! cost is proportional to the number of steps: each directory is opened once, and none stays open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::branches::{self, OwnStep, children, found_or_noted};
use super::names::IDLE;
use crate::cgroup::layout::Hierarchy;
use crate::cgroup::usage::{self, Depth};
use crate::cgroup::{limits, mark, now, walk};
use crate::error::{Error, Result};
use crate::figures::{LimitedTo, Usage};
use crate::host::Host;
use crate::job::{Id, job_dir};
use crate::log;
use crate::policy::Level;
use crate::record::noted::Allocated;
use crate::record::resized::Resized;
use crate::record::{Record, Records};
use crate::scheduler::{PresentJob, Schedulers};
use crate::sys::dir::Dir;

/// How long the processes of one step are looked for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Which steps are wanted.
#[derive(Debug, Clone, Default)]
pub struct WantedSteps {
    /// The steps of this user alone.
    pub uid: Option<u32>,
    /// The steps of this job alone.
    pub job: Option<Id>,
    /// That job's other name, which a scheduler may give its directory.
    pub other_name: Option<String>,
}

/// The records of steps, by the names of their directories. Only root can read them.
#[derive(Debug, Default)]
pub struct Recorded(BTreeMap<Vec<String>, Record>);

impl Recorded {
    /// Reads the records that can be parsed. Makes no directory if there is none.
    pub fn read(run_dir: &Path, wanted: &WantedSteps, unseen: &mut Vec<Error>) -> Self {
        let mut all = BTreeMap::new();
        if !nix::unistd::geteuid().is_root() || !run_dir.is_dir() {
            return Self(all);
        }
        let job = wanted.job.as_ref().map(job_dir);
        let Some(records) = found_or_noted(Records::open(run_dir), unseen) else { return Self(all) };
        for levels in found_or_noted(records.list(), unseen).unwrap_or_default() {
            let is_step = levels.last().is_some_and(|name| name.starts_with("step_"));
            let is_wanted = job.as_ref().is_none_or(|job| levels.iter().rev().nth(1) == Some(job));
            if is_step && is_wanted {
                let record = found_or_noted(records.read(&levels), unseen).flatten();
                all.extend(record.map(|record| (levels, record)));
            }
        }
        Self(all)
    }

    /// `base`, and every other base directory of the recorded steps, each once with its branches.
    fn bases<'a>(&'a self, base: &'a str) -> BTreeSet<&'a str> {
        let of_record = |record: &'a Record| {
            let above = record.base.strip_suffix(IDLE).and_then(|above| above.strip_suffix('/'));
            above.unwrap_or(&record.base)
        };
        self.0.values().map(of_record).chain([base]).collect()
    }
}

/// One step that has directories.
#[derive(Debug)]
pub struct LivingStep<'a> {
    /// The node's name, if the scheduler has several daemons on this host; `None`: it has one.
    pub node: Option<String>,
    /// The job's user, if known.
    pub uid: Option<u32>,
    /// The job's id, or the name of its directory.
    pub job: String,
    /// The step's id, or the name of its directory.
    pub step: String,
    /// The number behind its name: above 1 if other steps had the name at the same time.
    pub again: u32,
    /// Its record, if this process may read it.
    pub record: Option<Record>,
    /// Its directories, once for each hierarchy.
    pub places: Vec<StepPlace<'a>>,
}

/// One step's directories in one hierarchy.
#[derive(Debug)]
pub struct StepPlace<'a> {
    /// The hierarchy.
    pub hierarchy: &'a Hierarchy,
    /// Whether they are the scheduler's.
    pub is_overlay: bool,
    /// The directory of all the user's jobs, if there is one.
    user: Option<PathBuf>,
    /// The job's directory.
    pub job: PathBuf,
    /// The step's directory, if its processes are in one below it.
    pub around: Option<PathBuf>,
    /// The directory of the step's processes.
    pub step: PathBuf,
    /// The prefix of the names of tasks' directories.
    tasks: &'static str,
}

/// What one step uses now, and its limits.
#[derive(Debug, Clone, Default)]
pub struct CurrentUse {
    /// What it has used since its directories were made.
    pub usage: Usage,
    /// Memory in use, in bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// What the step and its job may have.
    pub limits: LimitedTo,
    /// What its job may have.
    pub limits_of_job: LimitedTo,
}

/// One task's directories.
#[derive(Debug)]
pub struct LivingTask {
    /// The name of its directory without the common prefix: a number.
    pub name: String,
    /// What it uses now.
    pub current: CurrentUse,
}

/// A process of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepProcess {
    /// The process.
    pub pid: i32,
    /// Its task, if that has a directory.
    pub task: Option<String>,
}

/// Returns every wanted step that has directories now, ordered by job and step, and the errors that may hide more.
pub fn find<'a>(
    host: &'a Host,
    schedulers: Schedulers,
    recorded: &Recorded,
    wanted: &WantedSteps,
) -> (Vec<LivingStep<'a>>, Vec<Error>) {
    let mut search = LivingSearch { recorded, wanted, steps: BTreeMap::new(), unseen: Vec::new() };
    for hierarchy in &host.layout.hierarchies {
        let Some(root) = found_or_noted(hierarchy.open(), &mut search.unseen) else { continue };
        for base in recorded.bases(&host.base) {
            search.in_base(hierarchy, &root, base);
        }
        for scheduler in schedulers {
            let mut unseen = Vec::new();
            let each = &mut |job: PresentJob| search.in_theirs(host, hierarchy, &job);
            scheduler.each_present(hierarchy, &root, each, &mut unseen);
            search.unseen.append(&mut unseen);
        }
    }
    let mut steps: Vec<_> = search.steps.into_values().flatten().collect();
    for step in &mut steps {
        step.know(recorded);
    }
    (steps, search.unseen)
}

struct LivingSearch<'a, 'w> {
    recorded: &'w Recorded,
    wanted: &'w WantedSteps,
    /// The order is by job, by step, and by the number behind the step's name.
    steps: BTreeMap<(JobOrder, JobOrder, u32), Vec<LivingStep<'a>>>,
    unseen: Vec<Error>,
}

/// Sorts numbers by their size, and before all other names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct JobOrder(u64, String);

impl JobOrder {
    fn from_name(name: &str) -> Self {
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        Self(name.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX), name.to_owned())
    }
}

/// The uid in the name of a user's directory.
fn uid_of(name: &str) -> Option<u32> {
    name.strip_prefix("uid_")?.parse().ok()
}

impl<'a> LivingSearch<'a, '_> {
    /// Adds jobfence's steps.
    fn in_base(&mut self, hierarchy: &'a Hierarchy, root: &Dir, base: &str) {
        let (wanted, job) = (self.wanted, self.wanted.job.as_ref().map(job_dir));
        let is_wanted = |name: &str| match uid_of(name) {
            Some(uid) => wanted.uid.is_none_or(|wanted| wanted == uid),
            None => name.starts_with("job_") && job.as_ref().is_none_or(|wanted| wanted == name),
        };
        let mut unseen = Vec::new();
        branches::each_step(root, base, &is_wanted, &mut unseen, &mut |step, _| self.add_own(hierarchy, step));
        self.unseen.append(&mut unseen);
    }

    fn add_own(&mut self, hierarchy: &'a Hierarchy, own: &OwnStep<'_>) {
        let [node @ .., user, job, step] = own.levels else { return };
        let plain = job.strip_prefix("job_").unwrap_or(job);
        let job = Id::of_a_name(plain).map_or_else(|| plain.to_owned(), |id| id.as_str().to_owned());
        let place = StepPlace {
            hierarchy,
            is_overlay: false,
            user: own.job.path().parent().map(Path::to_path_buf),
            job: own.job.path().to_path_buf(),
            around: None,
            step: own.job.path().join(step),
            tasks: "task_",
        };
        let plain = step.strip_prefix("step_").unwrap_or(step);
        let (plain, again) = plain.split_once('.').unwrap_or((plain, "1"));
        let step = Id::of_a_steps_name(plain).map_or_else(|| plain.to_owned(), |id| id.as_str().to_owned());
        self.add(node.first().copied(), uid_of(user), job, step, again.parse().unwrap_or(1), place);
    }

    /// Adds the steps of a scheduler's job.
    fn in_theirs(&mut self, host: &Host, hierarchy: &'a Hierarchy, theirs: &PresentJob) {
        let name = theirs.job.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Only root can read a mark.
        let marked = if nix::unistd::geteuid().is_root() {
            found_or_noted(mark::get(&theirs.job), &mut self.unseen).flatten()
        } else {
            None
        };
        let marked = marked.and_then(|text| Record::parse(&text).ok());
        let job = marked.as_ref().and_then(Record::job).map(|id| id.as_str().to_owned());
        let job = job.unwrap_or_else(|| match &self.wanted.job {
            Some(job) if self.wanted.other_name.as_ref() == Some(&name) => job.as_str().to_owned(),
            _ => name.strip_prefix("job_").unwrap_or(&name).to_owned(),
        });
        if self.wanted.job.as_ref().is_some_and(|wanted| wanted.as_str() != job) {
            return;
        }
        let dirs = theirs.dirs;
        let mut steps = Vec::new();
        for name in children(&theirs.job, |name| name.starts_with(dirs.steps), &mut self.unseen) {
            let around = theirs.job.path().join(&name);
            let step = dirs.processes.map(|below| around.join(below));
            if step.as_ref().is_some_and(|step| !step.is_dir()) {
                // A directory with only the daemon in it does not hold the step's processes.
                continue;
            }
            // If a job has several components, the name ends in `+` and the component's number.
            let plain = name.strip_prefix(dirs.steps).unwrap_or(&name);
            let plain = plain.split('+').next().unwrap_or(plain).to_owned();
            let place = StepPlace {
                hierarchy,
                is_overlay: true,
                user: theirs.user.clone(),
                job: theirs.job.path().to_path_buf(),
                around: step.as_ref().map(|_| around.clone()),
                step: step.unwrap_or(around),
                tasks: dirs.tasks,
            };
            steps.push((plain, place));
        }
        let named = theirs.user.as_ref().and_then(|user| uid_of(user.file_name()?.to_str()?));
        let recorded = || self.recorded.0.values().find(|record| record.job().is_some_and(|id| id.as_str() == job));
        let uid = named.or_else(|| marked.as_ref().and_then(Record::uid)).or_else(|| recorded().and_then(Record::uid));
        let uid = uid.or_else(|| user_of(host, steps.iter().map(|(_, place)| place)));
        if self.wanted.uid.is_some() && self.wanted.uid != uid {
            return;
        }
        for (step, place) in steps {
            self.add(None, uid, job.clone(), step, 1, place);
        }
    }

    fn add(
        &mut self,
        node: Option<&str>,
        uid: Option<u32>,
        job: String,
        step: String,
        again: u32,
        place: StepPlace<'a>,
    ) {
        let all = self.steps.entry((JobOrder::from_name(&job), JobOrder::from_name(&step), again)).or_default();
        // The scheduler's directories and jobfence's in other hierarchies belong to the same step.
        let is_same = |step: &&mut LivingStep<'_>| {
            let is_overlay = place.is_overlay || step.places.iter().all(|place| place.is_overlay);
            (step.uid == uid || step.uid.is_none() || uid.is_none()) && (step.node.as_deref() == node || is_overlay)
        };
        match all.iter_mut().find(is_same) {
            Some(known) => {
                known.uid = known.uid.or(uid);
                known.node = known.node.take().or_else(|| node.map(str::to_owned));
                known.places.push(place);
            }
            None => {
                let node = node.map(str::to_owned);
                all.push(LivingStep { node, uid, job, step, again, record: None, places: vec![place] });
            }
        }
    }
}

/// The user of the processes in these directories: the first that is not root, since root may have processes in any.
fn user_of<'p>(host: &Host, places: impl Iterator<Item = &'p StepPlace<'p>>) -> Option<u32> {
    let mut found = None;
    for place in places {
        for process in place.processes().ok().unwrap_or_default() {
            match crate::sys::process::uid(&host.proc, process.pid) {
                Some(uid) if uid != 0 => return Some(uid),
                uid => found = found.or(uid),
            }
        }
    }
    found
}

impl LivingStep<'_> {
    /// Adds what its record says.
    fn know(&mut self, recorded: &Recorded) {
        let ours = self.places.iter().find(|place| !place.is_overlay);
        let levels = match ours {
            Some(place) => {
                let depth = if self.node.is_some() { 4 } else { 3 };
                let names: Vec<_> = place.step.iter().collect();
                let last = names.get(names.len().saturating_sub(depth)..).unwrap_or_default();
                last.iter().map(|name| name.to_string_lossy().into_owned()).collect()
            }
            None => {
                let names = (Id::new(self.job.clone()).ok(), self.uid);
                let (Some(job), Some(uid)) = names else { return };
                vec![format!("uid_{uid}"), job_dir(&job), format!("step_{}", self.step)]
            }
        };
        let Some(record) = recorded.0.get(&levels) else { return };
        if let Some(key) = record.key() {
            (self.job, self.step) = (key.job.as_str().to_owned(), key.step.as_str().to_owned());
        }
        self.record = Some(record.clone());
    }

    /// The path of its directory below the root of its hierarchies.
    pub fn path(&self) -> Option<String> {
        let place = self.places.iter().find(|place| !place.is_overlay).or(self.places.first())?;
        let below = place.step.strip_prefix(&place.hierarchy.mount).ok()?;
        Some(place.hierarchy.in_proc(&format!("/{}", below.display())))
    }

    /// When its directories were made, if they show it.
    pub fn made(&self) -> Option<SystemTime> {
        let of_place = |place: &StepPlace<'_>| {
            let stat = Dir::open(&place.step).and_then(|dir| dir.stat()).ok()?;
            // A directory with a mark has times of its own (fs/kernfs/inode.c). Without a mark, its times are when the kernel last
            // loaded its inode.
            let times = [
                (stat.st_atime, stat.st_atime_nsec),
                (stat.st_mtime, stat.st_mtime_nsec),
                (stat.st_ctime, stat.st_ctime_nsec),
            ];
            let (seconds, nanoseconds) = times.into_iter().min()?;
            Some(UNIX_EPOCH + Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?))
        };
        self.places.iter().filter_map(of_place).min()
    }

    /// Its CPU time alone.
    pub fn cpu_time(&self) -> Option<Duration> {
        let of_place = |place: &StepPlace<'_>| usage::cpu(place.hierarchy, &Dir::open(&place.step).ok()?);
        self.places.iter().find_map(of_place)
    }

    /// The CPU time of its job, with that of ended steps.
    pub fn cpu_time_of_job(&self) -> Option<Duration> {
        let of_place = |place: &StepPlace<'_>| usage::cpu(place.hierarchy, &Dir::open(&place.job).ok()?);
        self.places.iter().find_map(of_place)
    }

    /// Notes what its job's card is to say, in place of what was noted before. `None`: nothing.
    pub fn note_for_a_card(&self, note: Option<&str>) -> Result<()> {
        let mut places = self.places.iter().filter(|place| mark::bears_cards(place.hierarchy));
        places.try_for_each(|place| {
            let job = Dir::open(&place.job)?;
            note.map_or_else(|| mark::remove_card(&job), |note| mark::set_card(&job, note))
        })
    }

    /// What it uses now, what it has used, and its limits.
    pub fn current(&self, depth: Depth) -> CurrentUse {
        let mut current = CurrentUse::default();
        for place in &self.places {
            if let Ok(dir) = Dir::open(&place.step) {
                current.add(place.hierarchy, &dir, depth);
            }
            if let Some(Ok(around)) = place.around.as_ref().map(Dir::open) {
                current.limits.lower(place.hierarchy, &around);
            }
            if let Ok(job) = Dir::open(&place.job) {
                current.limits_of_job.lower(place.hierarchy, &job);
            }
        }
        current.limits = current.limits.least(current.limits_of_job);
        if current.processes.is_none() {
            let count = self.places.first().and_then(|place| place.processes().ok()).map(|all| all.len());
            current.processes = count.and_then(|count| u64::try_from(count).ok());
        }
        current
    }

    /// The same of its whole job, with what ended steps have used.
    pub fn of_job(&self) -> CurrentUse {
        let mut current = CurrentUse::default();
        for place in &self.places {
            if let Ok(dir) = Dir::open(&place.job) {
                current.add(place.hierarchy, &dir, Depth::All);
            }
        }
        current
    }

    /// What its job was granted, as the step's directories or its record say.
    pub fn allocated(&self) -> Allocated {
        let of_place = |place: &StepPlace<'_>| {
            let dir = Dir::open(place.around.as_ref().unwrap_or(&place.step)).ok()?;
            mark::allocated(&dir).ok().flatten()
        };
        let said = self.places.iter().find_map(of_place).map(|text| Allocated::parse(&text)).unwrap_or_default();
        let noted = self.record.as_ref().map(Record::noted).unwrap_or_default();
        said.or(&Allocated { noted, ..Allocated::default() })
    }

    /// Changes what its directories say of that. `open`: `None` for one that is gone.
    pub fn renew_allocated(
        &self,
        open: impl Fn(&Path) -> Result<Option<Dir>>,
        change: impl Fn(&mut Allocated),
    ) -> Result<()> {
        for place in &self.places {
            let Some(dir) = open(place.around.as_ref().unwrap_or(&place.step))? else { continue };
            if let Some(text) = mark::allocated(&dir)? {
                let mut allocated = Allocated::parse(&text);
                change(&mut allocated);
                mark::set_allocated(&dir, &allocated.to_string())?;
            }
        }
        Ok(())
    }

    /// What its job has instead of its grant; `None`: the grant holds.
    pub fn resized(&self) -> Option<Resized> {
        let of_place = |place: &StepPlace<'_>| mark::resized(&Dir::open(&place.job).ok()?).ok()?;
        self.places.iter().find_map(of_place).map(|text| Resized::parse(&text))
    }

    /// Whether each of its directories is one of the other's: it is the same step, found again.
    pub fn is_within(&self, other: &Self) -> bool {
        self.places.iter().all(|place| other.places.iter().any(|other| other.step == place.step))
    }

    /// Whether all of its processes are frozen.
    pub fn is_frozen(&self) -> bool {
        let of_place = |place: &StepPlace<'_>| now::is_frozen(place.hierarchy, &Dir::open(&place.step).ok()?);
        self.places.iter().filter_map(of_place).any(|is_frozen| is_frozen)
    }

    /// The percentage of the last ten seconds in which one of its processes waited for `of`: `cpu`, `memory` or `io`.
    pub fn pressure(&self, of: &str) -> Option<f64> {
        let of_place = |place: &StepPlace<'_>| now::pressure(place.hierarchy, &Dir::open(&place.step).ok()?, of);
        self.places.iter().find_map(of_place)
    }

    /// The limits that the kernel has for its job and for the step: level, file, and value.
    pub fn limits(&self) -> Vec<(&'static str, PathBuf, String)> {
        let mut all = Vec::new();
        for place in &self.places {
            let levels = [("job", Some(&place.job)), ("step", place.around.as_ref()), ("step", Some(&place.step))];
            for (level, path) in levels {
                let Some(path) = path else { continue };
                let Ok(dir) = Dir::open(path) else { continue };
                let found = now::limits(place.hierarchy, &dir).into_iter();
                all.extend(found.map(|(file, value)| (level, path.join(file), value)));
            }
        }
        all
    }

    /// Its tasks that have directories, in the order of their numbers.
    pub fn tasks(&self) -> Vec<LivingTask> {
        let mut tasks: BTreeMap<JobOrder, LivingTask> = BTreeMap::new();
        for place in &self.places {
            let Ok(step) = Dir::open(&place.step) else { continue };
            for name in children(&step, |name| name.starts_with(place.tasks), &mut Vec::new()) {
                let Ok(dir) = step.child(&name) else { continue };
                let name = name.strip_prefix(place.tasks).unwrap_or(&name).to_owned();
                let new = LivingTask { name: name.clone(), current: CurrentUse::default() };
                let task = tasks.entry(JobOrder::from_name(&name)).or_insert(new);
                task.current.add(place.hierarchy, &dir, Depth::All);
            }
        }
        tasks.into_values().collect()
    }

    /// Its processes, ordered by pid. Tasks are as in the first hierarchy that has tasks.
    pub fn processes(&self) -> Result<Vec<StepProcess>> {
        let mut all: BTreeMap<i32, StepProcess> = BTreeMap::new();
        let mut failed = None;
        for place in &self.places {
            match place.processes() {
                Ok(found) => {
                    for process in found {
                        let known = all.entry(process.pid).or_insert_with(|| process.clone());
                        known.task = known.task.take().or(process.task);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all.into_values().collect()),
        }
    }
}

impl StepPlace<'_> {
    /// Its directory of a level; for tasks that of the first.
    pub fn dir(&self, level: Level) -> Option<PathBuf> {
        match level {
            Level::User => self.user.clone(),
            Level::Job => Some(self.job.clone()),
            Level::Step => Some(self.step.clone()),
            Level::Task => {
                let is_task = |name: &str| name.starts_with(self.tasks);
                let names = children(&Dir::open(&self.step).ok()?, is_task, &mut Vec::new());
                let first = names
                    .into_iter()
                    .min_by_key(|name| JobOrder::from_name(name.strip_prefix(self.tasks).unwrap_or(name)));
                first.map(|name| self.step.join(name))
            }
        }
    }

    /// The names of its tasks' directories, in its own.
    pub(super) fn task_names(&self, step: &Dir) -> Vec<String> {
        children(step, |name| name.starts_with(self.tasks), &mut Vec::new())
    }

    fn processes(&self) -> Result<Vec<StepProcess>> {
        let step = Dir::open(&self.step)?;
        let mut found = Vec::new();
        let add = |dir: &Dir, task: Option<&str>, found: &mut Vec<StepProcess>| -> Result<()> {
            let text = dir.read("cgroup.procs")?;
            let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(pids.map(|pid| StepProcess { pid, task: task.map(str::to_owned) }));
            Ok(())
        };
        match add(&step, None, &mut found) {
            // A threaded directory, which a user can make, does not show processes.
            Err(error) if error.is_gone() || error.kernel_errno() == Some(nix::errno::Errno::EOPNOTSUPP) => {}
            other => other?,
        }
        for name in step.list(true)? {
            let Ok(below) = step.child(&name) else { continue };
            let task = name.strip_prefix(self.tasks);
            // Directories that a user has made in a task's belong to the task, too.
            let done = walk::visit(&below, Instant::now() + PATIENCE, &mut |dir| {
                add(dir, task, &mut found)?;
                Ok(true)
            });
            if let Err(error) = done {
                log::debug!("not all processes below {} are seen: {error}", self.step.display());
            }
        }
        Ok(found)
    }
}

impl CurrentUse {
    fn add(&mut self, hierarchy: &Hierarchy, dir: &Dir, depth: Depth) {
        self.usage.add(hierarchy, dir, depth);
        if hierarchy.has("memory") {
            self.memory = self.memory.or_else(|| limits::memory_in_use(dir, hierarchy.version));
        }
        self.processes = self.processes.or_else(|| now::processes(hierarchy, dir));
        self.limits.lower(hierarchy, dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::layout::Version;
    use crate::config::Config;
    use crate::schedulers::ALL;

    /// What is found among these directories, as `JOB STEP again UID NODE places`.
    fn found(version: Version, dirs: &[&str], wanted: &WantedSteps) -> Vec<String> {
        let temp = tempfile::tempdir().unwrap();
        for dir in dirs {
            std::fs::create_dir_all(temp.path().join(dir)).unwrap();
            // As far as a cgroup that has no process.
            std::fs::write(temp.path().join(dir).join("cgroup.procs"), "").unwrap();
        }
        let root = Dir::open(temp.path()).unwrap();
        let hierarchy = Hierarchy {
            version,
            mount: temp.path().to_path_buf(),
            root: "/".into(),
            controllers: ["memory".to_owned()].into(),
            name: None,
        };
        let host = host();
        let recorded = Recorded::default();
        let mut search = LivingSearch { recorded: &recorded, wanted, steps: BTreeMap::new(), unseen: Vec::new() };
        search.in_base(&hierarchy, &root, "a.slice/base");
        for scheduler in ALL {
            let each = &mut |job: PresentJob| search.in_theirs(&host, &hierarchy, &job);
            scheduler.each_present(&hierarchy, &root, each, &mut Vec::new());
        }
        assert!(search.unseen.is_empty(), "{:?}", search.unseen);
        let one = |step: &LivingStep<'_>| {
            let uid = step.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
            let node = step.node.as_deref().unwrap_or("-");
            let places = step.places.iter().map(|place| if place.is_overlay { "overlay" } else { "own" });
            let places: Vec<_> = places.collect();
            format!("{} {} {} {uid} {node} {}", step.job, step.step, step.again, places.join("+"))
        };
        search.steps.values().flatten().map(one).collect()
    }

    fn host() -> Host {
        Host::read_what_there_is(&Config::default()).unwrap().0
    }

    fn all() -> WantedSteps {
        WantedSteps::default()
    }

    #[test]
    fn each_directory_of_a_step_is_known_by_its_level() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        let hierarchy = host().layout.hierarchies.remove(0);
        for name in ["task_10", "task_9", "other"] {
            std::fs::create_dir_all(path("uid_6/job_5/step_0").join(name)).unwrap();
        }
        let place = StepPlace {
            hierarchy: &hierarchy,
            is_overlay: false,
            user: Some(path("uid_6")),
            job: path("uid_6/job_5"),
            around: None,
            step: path("uid_6/job_5/step_0"),
            tasks: "task_",
        };
        let levels = [Level::User, Level::Job, Level::Step, Level::Task].map(|level| place.dir(level).unwrap());
        let expected = ["uid_6", "uid_6/job_5", "uid_6/job_5/step_0", "uid_6/job_5/step_0/task_9"];
        assert_eq!(levels, expected.map(path));
    }

    /// The branch of scavengers is found with its base; a second time would count its figures twice.
    #[test]
    fn each_base_of_a_record_is_walked_once() {
        let record = |base: &str| {
            let levels = ["uid_6", "job_5", "step_0"].map(str::to_owned).to_vec();
            let owner = crate::record::Owner { pid: 1, start: 1 };
            let (boot_id, pid_namespace) = (String::new(), String::new());
            (
                vec![base.to_owned()],
                Record { boot_id, pid_namespace, owner, base: base.to_owned(), levels, shared: None },
            )
        };
        let bases = ["a/b", "a/b/idle", "c/idle", "d/myidle"];
        let recorded = Recorded(bases.into_iter().map(record).collect());
        assert_eq!(recorded.bases("a/b").into_iter().collect::<Vec<_>>(), ["a/b", "c", "d/myidle"]);
    }

    const OURS: [&str; 8] = [
        "a.slice/base/uid_6/job_10/step_0",
        "a.slice/base/uid_6/job_9/step_batch/task_0",
        "a.slice/base/uid_7/job_9/step_batch.2",
        "a.slice/base/n1/uid_6/job_9/step_batch",
        "a.slice/base/idle/uid_6/job_12+5B3+5D.host/step_a+2E2",
        "a.slice/base/idle/n1/uid_6/job_1/step_0",
        "a.slice/base/hold",
        "a.slice/base/uid_x/job_1/step_0",
    ];

    #[test]
    fn ours_are_found_by_their_names() {
        let expected = [
            "1 0 1 6 n1 own",
            "9 batch 1 6 - own",
            "9 batch 1 6 n1 own",
            "9 batch 2 7 - own",
            "10 0 1 6 - own",
            "12[3].host a.2 1 6 - own",
        ];
        assert_eq!(found(Version::V2, &OURS, &all()), expected);
        let of_user = WantedSteps { uid: Some(7), ..all() };
        assert_eq!(found(Version::V2, &OURS, &of_user), ["9 batch 2 7 - own"]);
        let of_job = WantedSteps { job: Some(Id::new("12[3].host").unwrap()), ..all() };
        assert_eq!(found(Version::V2, &OURS, &of_job), ["12[3].host a.2 1 6 - own"]);
    }

    #[test]
    fn slurms_are_found_by_its_own_names() {
        let on_v2 = [
            "system.slice/n1_slurmstepd.scope/job_5/step_0/user/task_0",
            "system.slice/n1_slurmstepd.scope/job_5/step_batch/user",
            // The daemon alone.
            "system.slice/n1_slurmstepd.scope/job_5/step_extern/slurm",
            "system.slice/n1_slurmstepd.scope/s2YNM7YN3THN00/step_1/user",
            "system.slice/n1_slurmstepd.scope/system",
            "a.slice/base/n1/uid_6/job_5/step_0",
            "user.slice/x_slurmstepd.scope/job_8/step_0/user",
        ];
        let expected = ["5 0 1 6 n1 own+overlay", "5 batch 1 ? - overlay", "s2YNM7YN3THN00 1 1 ? - overlay"];
        assert_eq!(found(Version::V2, &on_v2, &all()), expected);
        let on_v1 = ["slurm_n1/uid_6/job_5/step_0+1/task_0", "slurm/uid_7/job_5/step_0", "slurmy/uid_6/job_5/step_3"];
        assert_eq!(found(Version::V1, &on_v1, &all()), ["5 0 1 7 - overlay", "5 0 1 6 - overlay"]);
        let of_user = WantedSteps { uid: Some(6), ..all() };
        assert_eq!(found(Version::V1, &on_v1, &of_user), ["5 0 1 6 - overlay"]);
        let other_name = Some("s2YNM7YN3THN00".to_owned());
        let of_job = WantedSteps { job: Some(Id::new("5").unwrap()), other_name, ..all() };
        assert_eq!(
            found(Version::V2, &on_v2, &of_job),
            ["5 0 1 6 n1 own+overlay", "5 1 1 ? - overlay", "5 batch 1 ? - overlay"]
        );
    }
}
