// SPDX-License-Identifier: GPL-2.0-or-later
//! A step that has directories on this node now, jobfence's or a scheduler's: what they show of it. `search` finds such steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::branches::children;
use crate::cgroup::layout::Hierarchy;
use crate::cgroup::usage::{self, Depth};
use crate::cgroup::{limits, mark, now, walk};
use crate::error::Result;
use crate::figures::{LimitedTo, Usage};
use crate::log;
use crate::policy::Level;
use crate::record::Record;
use crate::record::noted::Allocated;
use crate::record::resized::Resized;
use crate::sys::dir::Dir;

/// How long the processes of one step are looked for.
const PATIENCE: Duration = Duration::from_secs(2);

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
    pub(super) user: Option<PathBuf>,
    /// The job's directory.
    pub job: PathBuf,
    /// The step's directory, if its processes are in one below it.
    pub around: Option<PathBuf>,
    /// The directory of the step's processes.
    pub step: PathBuf,
    /// The prefix of the names of tasks' directories.
    pub(super) tasks: &'static str,
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

/// Sorts numbers by their size, and before all other names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobOrder(u64, String);

impl JobOrder {
    pub(super) fn from_name(name: &str) -> Self {
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        Self(name.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX), name.to_owned())
    }
}

impl LivingStep<'_> {
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

    pub(super) fn processes(&self) -> Result<Vec<StepProcess>> {
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
