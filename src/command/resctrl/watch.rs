// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` does with the groups of jobs between its other work. Without a setting, no process is looked at.
//!
//! The record of a job comes before its group, and goes after it. So the next `hold` knows each group, wherever an earlier one was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::config::{Config, Loaded};
use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;

use super::files::JobCache;
use super::group;
use super::plan::WantedShares;
use super::search::{self, BoundedJob};
use super::tasks::{self, JobThreads};
use super::tree::{self, ResctrlFeatures, ResctrlTree, group_name, number_of};
use super::used::CacheUse;
use crate::kept::{self, KeptJob};
use crate::table::printable;

/// When to look for new jobs after a step has begun: its directories and its processes come a moment later.
const SEARCHES: [Duration; 6] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(8),
];

/// How often it is looked while a job has a group, or should have one: a process may come into a job from elsewhere, as by ssh.
const WHILE_BOUND: Duration = Duration::from_secs(10);

/// After a search, so many times as long as it took is for other work, and at least this long.
const REST: u32 = 4;
const LEAST_REST: Duration = Duration::from_millis(5);

/// For so long a group of ours without a record and without a process stays: another `hold` may have just made it.
const UNKNOWN_STAYS: Duration = Duration::from_secs(30);

/// The jobs with shares of cache and memory bandwidth.
#[derive(Default)]
pub struct ResctrlWatch {
    /// Whether some job is to be bounded.
    is_wanted: bool,
    /// By their directories.
    jobs: BTreeMap<PathBuf, JobCache>,
    has_taken_over: bool,
    searches: Vec<Instant>,
    searched: Option<Instant>,
    may_search: Option<Instant>,
    /// Since when groups of ours have neither a record nor a process, by their names.
    unknown: BTreeMap<String, Instant>,
    /// Where the next look at the jobs begins, if the last one did not come to all.
    begin: Option<Bound<PathBuf>>,
    /// Why jobs are not as configured, by their directories.
    failed: BTreeMap<PathBuf, String>,
    /// What was said, while it is so.
    said: BTreeSet<String>,
}

/// Whether some job is to be bounded.
fn is_on(loaded: &Loaded) -> bool {
    loaded.one_by_one().any(|candidate| !WantedShares::from_config(&candidate.config).is_none())
}

/// All jobs, beginning there.
fn in_turn<'a, T>(jobs: &'a BTreeMap<PathBuf, T>, begin: Option<&Bound<PathBuf>>) -> Vec<(&'a PathBuf, &'a T)> {
    let begin = begin.map_or(Bound::Unbounded, |begin| begin.as_ref().map(PathBuf::as_path));
    let end = match begin {
        Bound::Included(path) => Bound::Excluded(path),
        Bound::Excluded(path) => Bound::Included(path),
        Bound::Unbounded => return jobs.iter().collect(),
    };
    jobs.range::<Path, _>((begin, Bound::Unbounded)).chain(jobs.range::<Path, _>((Bound::Unbounded, end))).collect()
}

/// What makes a reason the same as before: it may go on with how many groups there are now.
fn beginning(reason: &str) -> &str {
    reason.split_once(": ").map_or(reason, |(beginning, _)| beginning)
}

impl ResctrlWatch {
    /// The configuration was read. Looks for jobs once, also for those of which nobody told. If the file has mistakes, what it said before
    /// stays.
    pub fn tend(&mut self, loaded: Option<&Loaded>) {
        if let Some(loaded) = loaded {
            self.is_wanted = is_on(loaded);
        }
        if self.is_wanted || !self.has_taken_over || !self.jobs.is_empty() || !self.unknown.is_empty() {
            self.searches.push(Instant::now());
        }
    }

    /// A step begins. Returns whether that matters.
    pub fn ring(&mut self) -> bool {
        if self.is_wanted {
            let begin = Instant::now();
            self.searches = SEARCHES.iter().map(|wait| begin + *wait).collect();
        }
        self.is_wanted
    }

    /// The time until something is to be done. `None`: nothing is.
    pub fn wait(&self) -> Option<Duration> {
        let regular = self.searched.filter(|_| !self.jobs.is_empty()).map(|searched| searched + WHILE_BOUND);
        let due = self.searches.iter().copied().chain(regular).min()?;
        let due = self.may_search.map_or(due, |may| due.max(may));
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Does what is due.
    pub fn look(&mut self, config: &Config, loaded: Option<&Loaded>) {
        let now = Instant::now();
        if self.wait().is_none_or(|wait| !wait.is_zero()) {
            return;
        }
        self.searches.retain(|due| *due > now);
        let mut why = BTreeSet::new();
        if let Err(error) = self.search(config, loaded, &mut why) {
            why.insert(format!("the shares of cache and memory bandwidth are not as configured: {error}"));
        }
        why.extend(self.failed.values().cloned());
        let failed = why.iter().map(|reason| (reason.as_str(), reason));
        let refused = self.jobs.values().flat_map(|job| &job.refused).map(|reason| (beginning(reason), reason));
        let why: BTreeMap<&str, &String> = failed.chain(refused).collect();
        why.iter().filter(|(what, _)| !self.said.contains(**what)).for_each(|(_, new)| log::warn!("{new}"));
        self.said = why.into_keys().map(str::to_owned).collect();
        self.searched = Some(Instant::now());
        self.may_search = Some(Instant::now() + (now.elapsed() * REST).max(LEAST_REST));
    }

    fn search(&mut self, config: &Config, loaded: Option<&Loaded>, why: &mut BTreeSet<String>) -> Result<()> {
        if !self.has_taken_over {
            let known = kept::all_living::<JobCache>(&config.run_dir)?;
            self.jobs = known.into_iter().map(|job| (PathBuf::from(&job.directory), job)).collect();
            self.has_taken_over = true;
        }
        let proc = Dir::open("/proc")?;
        let tree = ResctrlTree::find(&proc)?;
        // First those that have ended: others may need their groups.
        let ended = self.jobs.iter().filter(|(_, job)| kept::is_over(&job.directory, job.inode));
        for path in ended.map(|(path, _)| path.clone()).collect::<Vec<_>>() {
            if let Err(error) = self.release(&config.run_dir, tree.as_ref(), &path) {
                why.insert(format!("the group of a job that has ended stays: {error}"));
            }
        }
        if let Some(Err(error)) = tree.as_ref().map(|tree| self.remove_unknown(tree)) {
            why.insert(format!("a group of resctrl that no job has stays: {error}"));
        }
        if !self.is_wanted && self.jobs.is_empty() {
            self.failed.clear();
            return Ok(());
        }
        let (present, unseen) = search::jobs(config, loaded)?;
        if let Some(error) = &unseen {
            why.insert(format!("not all jobs are seen, and shares of cache may not hold: {error}"));
        }
        // A launch makes its directories one after another. A job that was seen before all were there is known by another one now.
        let is_present =
            |known: &JobCache| present.values().any(|job| known.job() == (job.node.as_deref(), job.uid, &*job.job));
        let before = self.jobs.iter().filter(|(path, known)| !present.contains_key(*path) && is_present(known));
        for path in before.map(|(path, _)| path.clone()).collect::<Vec<_>>() {
            self.release(&config.run_dir, tree.as_ref(), &path)?;
        }
        let features = tree.as_ref().map(ResctrlTree::features).transpose()?;
        self.failed.retain(|path, _| present.contains_key(path));
        let deadline = Instant::now() + tasks::PATIENCE;
        for (nth, (path, job)) in in_turn(&present, self.begin.take().as_ref()).into_iter().enumerate() {
            let done = match tree.as_ref().zip(features.as_ref()) {
                Some(found) => self.tend_job(config, found, (path, job), (&proc, unseen.is_none(), deadline)),
                None => self.note(&config.run_dir, (path, job), tree::why_none(&proc)),
            };
            let is_late = Instant::now() >= deadline;
            if is_late {
                // One that had not all of the time is the first one then. A job that takes all of it does so once in a round.
                self.begin = Some(if nth > 0 { Bound::Included(path.clone()) } else { Bound::Excluded(path.clone()) });
                if present.len() > 1 {
                    self.searches.push(Instant::now());
                }
            }
            if is_late && nth > 0 {
                break;
            }
            // Another job can have its group all the same.
            match done {
                Err(error) if !error.is_gone() => {
                    let text = tree.as_ref().map_or_else(|| error.to_string(), |tree| tree.explained(error.clone()));
                    let job = printable(&job.job);
                    let text = format!("job {job}: its shares of cache and memory bandwidth: {text}");
                    self.failed.insert(path.clone(), text);
                }
                _ => drop(self.failed.remove(path)),
            }
            if is_late {
                break;
            }
        }
        Ok(())
    }

    /// Makes the job's group, or what is new of it, and moves the job's processes there.
    fn tend_job(
        &mut self,
        config: &Config,
        (tree, features): (&ResctrlTree, &ResctrlFeatures),
        (path, present): (&Path, &BoundedJob),
        (proc, is_whole, deadline): (&Dir, bool, Instant),
    ) -> Result<()> {
        let run_dir = &config.run_dir;
        let known = self.jobs.get(path);
        let used = known.map(|job| job.used);
        let wanted = present.wanted.or(known.map(|job| job.wanted)).unwrap_or_default();
        if wanted.is_none() || known.is_some_and(|job| job.wanted != wanted) {
            // With a new group the kernel's defaults hold again.
            self.release(run_dir, Some(tree), path)?;
        }
        if wanted.is_none() {
            return Ok(());
        }
        let name = group_name(present.inode);
        let job = self.known(run_dir, (path, present), wanted)?;
        if job.schemata.is_empty() || !tree.root.has(&name) {
            let before = job.clone();
            // What it used before the change of its setting is its, too, also if the new group cannot be made at this look.
            job.used = used.unwrap_or_default();
            job.used.has_new_group();
            group::apply(tree, features, job)?;
            if *job != before {
                kept::write(run_dir, job)?;
                log::debug!("job {}: {}", printable(&job.job), job.in_words());
            }
        }
        if job.schemata.is_empty() {
            return Ok(());
        }
        let group = tree.root.child(&name)?;
        let mut used = job.used;
        if config.sample_interval.is_none() {
            used = CacheUse::default();
        } else if let Err(error) = used.take(&group) {
            log::debug!("job {}: what it uses of caches: {error}", printable(&job.job));
        }
        if std::mem::replace(&mut job.used, used) != used {
            kept::write(run_dir, job)?;
        }
        let mut all = || match search::open(&present.places) {
            Ok(places) => tasks::of_job(&places, present.hierarchy.version, deadline),
            Err(error) => tasks::SeenThreads { unseen: Some(error), ..Default::default() },
        };
        let has = |thread| present.has(proc, thread);
        let mut threads = JobThreads { root: &tree.root, group: &group, all: &mut all, has: &has, deadline };
        let mut done = threads.gather();
        if is_whole {
            done = threads.give_back().and(done);
        }
        if !done? {
            self.searches.push(Instant::now() + Duration::from_secs(1));
        }
        Ok(())
    }

    /// What is known of the job. What is new is noted down before anything is made.
    fn known(
        &mut self,
        run_dir: &Path,
        (path, present): (&Path, &BoundedJob),
        wanted: WantedShares,
    ) -> Result<&mut JobCache> {
        if !self.jobs.contains_key(path) {
            let job = JobCache {
                node: present.node.clone(),
                uid: present.uid,
                job: present.job.clone(),
                directory: path.display().to_string(),
                inode: present.inode,
                wanted,
                ..JobCache::default()
            };
            kept::write(run_dir, &job)?;
            self.jobs.insert(path.to_path_buf(), job);
        }
        self.jobs.get_mut(path).ok_or_else(|| Error::new("the job is not known any more"))
    }

    /// There is no resctrl here.
    fn note(&mut self, run_dir: &Path, (path, present): (&Path, &BoundedJob), why: String) -> Result<()> {
        let wanted = present.wanted.unwrap_or_default();
        if wanted.is_none() {
            return self.release(run_dir, None, path);
        }
        let why = format!("CacheShare and MemoryBandwidthPercent bound nothing: {why}");
        let job = self.known(run_dir, (path, present), wanted)?;
        if job.refused != [why.as_str()] || job.wanted != wanted || !job.schemata.is_empty() {
            (job.refused, job.wanted, job.schemata) = (vec![why], wanted, Default::default());
            kept::write(run_dir, job)?;
        }
        Ok(())
    }

    /// The job has ended, or is to be bounded no more: its group goes, and then its record.
    fn release(&mut self, run_dir: &Path, tree: Option<&ResctrlTree>, path: &Path) -> Result<()> {
        let Some(job) = self.jobs.get(path) else { return Ok(()) };
        tree.map_or(Ok(()), |tree| tree.remove(job.inode))?;
        kept::remove(run_dir, job);
        self.jobs.remove(path);
        Ok(())
    }

    /// Removes groups of ours of which no record tells, once no process has been in them for a while: another `hold`, with another
    /// `RunDir`, may have made them.
    fn remove_unknown(&mut self, tree: &ResctrlTree) -> Result<()> {
        let ours: BTreeSet<u64> = self.jobs.values().map(|job| job.inode).collect();
        let before = std::mem::take(&mut self.unknown);
        for name in tree.groups()? {
            let Some(inode) = number_of(&name).filter(|inode| !ours.contains(inode)) else { continue };
            let is_empty = match tree.root.child(&name).and_then(|group| group.read("tasks")) {
                Ok(tasks) => tasks.trim().is_empty(),
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            };
            let since = before.get(&name).copied().filter(|_| is_empty).unwrap_or_else(Instant::now);
            if is_empty && since.elapsed() >= UNKNOWN_STAYS {
                tree.remove(inode)?;
            } else {
                self.unknown.insert(name, since);
            }
        }
        Ok(())
    }
}

/// For `jobfence reap`: removes the groups of jobs that have ended. Returns the names of those jobs.
pub fn reap(config: &Config) -> Result<Vec<String>> {
    let known = kept::all_living::<JobCache>(&config.run_dir)?;
    let mut ended = Vec::new();
    let tree = ResctrlTree::find(&Dir::open("/proc")?)?;
    for job in known.iter().filter(|job| kept::is_over(&job.directory, job.inode)) {
        tree.as_ref().map_or(Ok(()), |tree| tree.remove(job.inode))?;
        kept::remove(&config.run_dir, job);
        ended.push(job.job.clone());
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_goes_on_from_the_last_and_comes_to_all() {
        let jobs: BTreeMap<PathBuf, ()> = ["a", "b", "c"].map(|name| (name.into(), ())).into();
        let of = |begin: Option<Bound<&str>>| {
            let begin = begin.map(|begin| begin.map(PathBuf::from));
            let order = in_turn(&jobs, begin.as_ref());
            order.iter().map(|(path, ())| path.to_str().unwrap()).collect::<String>()
        };
        assert_eq!(of(None), "abc");
        assert_eq!(of(Some(Bound::Included("b"))), "bca");
        assert_eq!(of(Some(Bound::Excluded("b"))), "cab");
        assert_eq!(of(Some(Bound::Excluded("c"))), "abc");
        // It has ended since.
        assert_eq!(of(Some(Bound::Included("bb"))), "cab");
    }

    #[test]
    fn a_job_without_a_group_is_said_once_however_many_groups_there_are() {
        let of =
            |job: &str, ours: u32| format!("job {job} has no group of resctrl: the CPU has 4 groups: {ours} are jobs'");
        assert_eq!(beginning(&of("7", 1)), beginning(&of("7", 2)));
        assert_ne!(beginning(&of("7", 1)), beginning(&of("8", 1)));
    }
}
