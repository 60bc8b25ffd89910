// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs of this node that may be lent memory, between the other work of `jobfence hold`. Without `MemoryPool` nothing is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{memory_files, memory_limit, whole_pages};
use jobfence::config::{Config, Loaded, Mode, Percent};
use jobfence::fence::living::{LivingStep, Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::record::job::JobRecords;
use jobfence::schedulers::ALL;
use nix::poll::PollFlags;

use super::borrower::{Borrower, LookedAt};
use super::claim;
use super::directory::JobDirectory;
use super::files::JobLent;
use super::node;
use super::notice::{SHORTEST, after_a_look};
use super::policy::{JobMemory, JobShare, NodeMemory};
use crate::armed::Speakers;
use crate::job_keys;
use crate::kept;

/// When to look for new jobs after a step has begun: it makes its directories and limits a moment later, and its program may then need
/// more at once.
const SEARCHES: [Duration; 6] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(8),
];

/// While something is lent, it is looked so often whether a job is new.
const WHILE_LENT: Duration = Duration::from_secs(10);

/// After a search or a look at all, so many times as long as that took is for other work, and at least this long.
const REST: u32 = 4;
const LEAST_REST: Duration = Duration::from_millis(5);

/// The most jobs that are lent anything, and of which the kernel tells.
const MOST: usize = 2000;
const MOST_NOTICED: usize = 400;

/// Which sections matter.
const KEYS: [&str; 2] = ["ElasticRAMPercent", "Mode"];

/// All jobs that may be lent memory.
#[derive(Default)]
pub struct LendWatch {
    /// By their directories.
    jobs: BTreeMap<PathBuf, Borrower>,
    /// What the other jobs of this node may use together. `None`: one has no limit, or not all are seen.
    reserved: Option<u64>,
    host: Option<Host>,
    has_taken_over: bool,
    searches: Vec<Instant>,
    searched: Option<Instant>,
    /// Until when there is no other search, and no other look.
    may_search: Option<Instant>,
    rested: Option<Instant>,
    speakers: Speakers,
    /// The last error that was reported.
    said: Option<String>,
}

impl LendWatch {
    /// A step begins.
    pub fn ring(&mut self) {
        let begin = Instant::now();
        self.searches = SEARCHES.iter().map(|wait| begin + *wait).collect();
    }

    /// Looks for jobs once, also for those of which nobody told.
    pub fn search_soon(&mut self) {
        self.searches.push(Instant::now());
    }

    /// The time until something is to be done. `None`: nothing is.
    pub fn wait(&self, config: &Config) -> Option<Duration> {
        let now = Instant::now();
        let searches = self.searches.iter().copied().filter(|_| self.is_on(config));
        let searches = searches.map(|due| self.may_search.map_or(due, |may| due.max(may)));
        let looks = self.jobs.values().filter_map(|job| job.next);
        let looks = looks.map(|due| self.rested.map_or(due, |rested| due.max(rested)));
        let busy = self.speakers.are_busy().then_some(SHORTEST);
        searches.chain(looks).map(|due| due.saturating_duration_since(now)).chain(busy).min()
    }

    /// What becomes ready when the kernel tells.
    pub fn events(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.jobs.values().filter_map(|job| Some(job.heard()?.event()))
    }

    /// The kernel has told, by these of the `events`.
    pub fn hear(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let heard = self.jobs.values_mut().filter(|job| job.heard().is_some());
        heard.zip(ready).filter(|(_, is_ready)| **is_ready).for_each(|(job, _)| job.hear(now));
    }

    fn is_on(&self, config: &Config) -> bool {
        is_on(config) || !self.jobs.is_empty()
    }

    /// Does what is due.
    pub fn look(&mut self, config: &Config, loaded: Option<&Loaded>) {
        self.take_over(config);
        if !self.is_on(config) {
            self.searches.clear();
            return;
        }
        self.speakers.look();
        let now = Instant::now();
        let is_due = |due: &Instant| *due <= now;
        let may_search = self.may_search.is_none_or(|may| may <= now);
        let is_late = self.searched.is_none_or(|searched| searched + WHILE_LENT <= now);
        let is_lent = self.jobs.values().any(|job| job.lent.lent() > 0);
        if may_search && self.searches.iter().any(is_due) || is_lent && is_late {
            self.searches.retain(|due| !is_due(due));
            self.search(config, loaded);
            self.searched = Some(Instant::now());
            self.may_search = Some(Instant::now() + (now.elapsed() * REST).max(LEAST_REST));
        }
        if self.rested.is_none_or(|rested| rested <= now)
            && self.jobs.values().any(|job| job.next.is_some_and(|next| next <= now))
        {
            let begun = Instant::now();
            let done = self.divide(config);
            self.rested = Some(Instant::now() + (begun.elapsed() * REST).max(LEAST_REST));
            if let Err(error) = &done
                && self.said.as_ref() != Some(error)
            {
                log::error!("no memory is lent: {error}");
            }
            self.said = done.err();
        }
    }

    /// What an earlier process has lent.
    fn take_over(&mut self, config: &Config) {
        if std::mem::replace(&mut self.has_taken_over, true) {
            return;
        }
        self.search_soon();
        for lent in kept::all_living::<JobLent>(&config.run_dir).unwrap_or_default() {
            let path = PathBuf::from(&lent.directory);
            let is_v2 = path.join(memory_files(Version::V2).0).exists();
            let version = if is_v2 { Version::V2 } else { Version::V1 };
            let directory = JobDirectory { version, path: path.clone(), inode: lent.inode };
            match (lent.uid, directory.open()) {
                (Some(uid), Some(_)) => {
                    self.jobs.insert(path, Borrower { is_found: true, ..Borrower::new(lent, directory, uid) });
                }
                _ => kept::remove(&config.run_dir, &lent),
            }
        }
    }

    /// Looks for the jobs of this node: for those that may be lent memory, and for what the others have reserved.
    fn search(&mut self, config: &Config, loaded: Option<&Loaded>) {
        let Ok((host, _)) = Host::read_what_there_is(config) else { return };
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut unseen);
        let (steps, more) = find(&host, ALL, &recorded, &WantedSteps::default());
        let noted = JobRecords::existing(&config.run_dir).ok().flatten();
        let (mut found, mut others) = (BTreeSet::new(), BTreeMap::new());
        for step in &steps {
            let Some((directory, is_theirs)) = JobDirectory::of_step(step) else { continue };
            let most =
                if is_theirs { Percent::HUNDRED } else { most_of((config, loaded), (noted.as_ref(), &host), step) };
            if self.is_borrower(step, &directory, most) {
                found.insert(directory.path);
            } else {
                let limit = directory.open().and_then(|dir| memory_limit(&dir, memory_files(directory.version).0).ok());
                others.insert(directory.path, limit.flatten());
            }
        }
        let is_whole = unseen.is_empty() && more.is_empty();
        others.retain(|path, _| !found.contains(path));
        self.reserved = others.values().try_fold(0_u64, |sum, limit| Some(sum.saturating_add((*limit)?)));
        self.reserved = self.reserved.filter(|_| is_whole);
        // A job of which no step is seen any more is looked at until its directory is gone.
        self.jobs.retain(|path, job| found.contains(path) || job.lent.lent() > 0 || !is_whole);
        drop(steps);
        self.host = Some(host);
        // What is new may have reserved what is lent.
        self.jobs.values_mut().for_each(|job| job.next = Some(Instant::now()));
    }

    /// Whether the step's job may be lent memory, or is lent some.
    fn is_borrower(&mut self, step: &LivingStep<'_>, directory: &JobDirectory, most: Percent) -> bool {
        let planned = step.record.as_ref().and_then(|record| record.shared.as_ref()?.plan.as_ref()?.plan.job.ram);
        let known = self.jobs.get_mut(&directory.path).filter(|known| known.directory == *directory);
        if let Some(known) = known {
            known.most = most;
            known.plan(planned.map(whole_pages));
            return most > Percent::HUNDRED || known.lent.lent() > 0;
        }
        let Some(uid) = step.uid.filter(|uid| *uid != 0 && most > Percent::HUNDRED) else { return false };
        let Some(dir) = directory.open().filter(|_| self.jobs.len() < MOST) else { return false };
        let Some(limit) = memory_limit(&dir, memory_files(directory.version).0).ok().flatten() else { return false };
        let lent = JobLent {
            node: step.node.clone(),
            uid: step.uid,
            job: step.job.clone(),
            directory: directory.path.display().to_string(),
            inode: directory.inode,
            grant: limit,
            limit,
            peak: limit,
            high: directory.soft(&dir),
        };
        let job = Borrower { most, planned: planned.map(whole_pages), ..Borrower::new(lent, directory.clone(), uid) };
        self.jobs.insert(directory.path.clone(), job);
        true
    }

    /// Looks at all jobs, and gives each its share.
    fn divide(&mut self, config: &Config) -> Result<(), String> {
        let run_dir = config.run_dir.as_path();
        let mut looked: Vec<(PathBuf, LookedAt)> = Vec::new();
        let mut ended = Vec::new();
        for (path, job) in &mut self.jobs {
            match job.look(run_dir) {
                Some(one) => looked.push((path.clone(), one)),
                None => ended.push(path.clone()),
            }
        }
        for path in ended {
            if let Some(job) = self.jobs.remove(&path) {
                kept::remove(run_dir, &job.lent);
            }
        }
        let memories: Vec<_> = looked.iter().map(|(_, one)| one.memory).collect();
        let (shares, failed) = match self.node(config) {
            Ok(node) => (node.divide(&memories), None),
            // Nothing is taken back that is in use.
            Err(error) => (Self::nothing_more(&memories), Some(error)),
        };
        let mut order: Vec<_> = looked.into_iter().zip(shares).collect();
        // What goes back, first.
        order.sort_by_key(|((_, one), share)| share.limit > one.memory.limit);
        let mut noticed = 0;
        for ((path, mut one), share) in order {
            let Some(job) = self.jobs.get_mut(&path) else { continue };
            let is_done = job.apply(run_dir, &mut one, &share);
            Self::claim(&mut self.speakers, config, job, &share, is_done);
            let at = (&one.dir, job.directory.version);
            let pause = after_a_look(&mut job.notice, at, (&one.memory, &share), noticed < MOST_NOTICED);
            noticed += usize::from(job.notice.is_some());
            job.next = pause.map(|pause| Instant::now() + pause);
        }
        failed.map_or(Ok(()), Err)
    }

    fn node(&self, config: &Config) -> Result<NodeMemory, String> {
        let host = self.host.as_ref().ok_or("the jobs of this node have not been seen")?;
        let pool = config.memory_pool.filter(|_| is_on(config));
        node::read(host, config, pool, self.reserved).map_err(|error| error.to_string())
    }

    /// Where it is not known what there is.
    fn nothing_more(jobs: &[JobMemory]) -> Vec<JobShare> {
        let stays = |job: &JobMemory| JobShare { limit: job.limit, is_claimed: false, soft: None };
        jobs.iter().map(stays).collect()
    }

    /// What others have reserved goes back, also if it is in use: its user reads a sentence, and a moment later its largest step ends.
    fn claim(speakers: &mut Speakers, config: &Config, job: &mut Borrower, share: &JobShare, is_done: bool) {
        if !share.is_claimed || is_done {
            job.claimed = None;
            return;
        }
        match job.claimed {
            None => {
                job.claimed = Some(Instant::now());
                let word = claim::word(job, share.limit);
                log::warn!("{} is to give back what others have reserved: {}", job.name(), word.sentence);
                speakers.add(word, job.name());
            }
            Some(since) if since.elapsed() >= claim::GRACE => claim::end(config, job),
            Some(_) => {}
        }
    }
}

/// Whether the site lends memory.
pub fn is_on(config: &Config) -> bool {
    config.memory_pool.is_some() && config.mode == Mode::Enforce
}

/// How far the limit of the step's job may grow.
fn most_of(
    (config, loaded): (&Config, Option<&Loaded>),
    known: (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> Percent {
    let of = |config: &Config| if is_on(config) { config.elastic_ram } else { Percent::HUNDRED };
    match job_keys::of_step(&KEYS, loaded, known, step) {
        None => of(config),
        Some(Ok(config)) => of(&config),
        Some(Err(_)) => Percent::HUNDRED,
    }
}
