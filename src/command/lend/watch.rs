// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs of this node that may be lent memory, between the other work of `jobfence hold`. Without `MemoryPool` nothing is looked at.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{high_file, memory_files, memory_limit, whole_pages};
use jobfence::config::{Config, Loaded, Mode, Percent};
use jobfence::fence::living::LivingStep;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::record::job::JobRecords;
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;

use super::borrower::Borrower;
use super::directory::{JobDirectory, LookFailure, resized};
use super::files::JobLent;
use super::lowering::Lowering;
use super::mark::ProcessView;
use super::node;
use super::notice::after_a_look;
use super::policy::{JobMemory, NodeMemory};
use super::reserved::{FoundLimit, Reserved};
use crate::idle::speed;
use crate::job_keys;
use crate::kept;
use crate::schedulers;
use crate::table::printable;

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

/// While something is lent, or cannot be, it is looked so often whether a job is new.
const WHILE_LENT: Duration = Duration::from_secs(10);

/// While the site lends what is reserved and untouched, it is looked so often what that is; and while a scavenger has some, how much is free.
const WHILE_UNUSED: Duration = Duration::from_secs(30);
const WHILE_SCAVENGED: Duration = Duration::from_millis(500);

/// After something could not be read.
const AGAIN: Duration = Duration::from_secs(1);

/// For so long a reason why nothing is lent stands before it is said: a job that begins has no limit for a moment.
const STANDS: Duration = Duration::from_secs(3);

/// After a search or a look at all, so many times as long as that took is for other work, and at least this long.
const REST: u32 = 4;
const LEAST_REST: Duration = Duration::from_millis(5);

/// The most jobs that are lent anything, those of which the kernel tells (`armed::descriptors` leaves so many descriptors), and the most
/// processes that lower limits at once.
const MOST: usize = 2000;
const MOST_TOLD: usize = 100;
const MOST_LOWERING: usize = 8;

/// For so long in one look processes are marked that are not urgent.
const MARKING: Duration = Duration::from_millis(20);

/// Which sections matter.
const KEYS: [&str; 4] = ["ElasticRAMPercent", "Mode", "Scavenger", "ScavengerEnd"];

/// What a job may be lent.
#[derive(Debug, Clone, Copy)]
struct Entitled {
    /// How far its limit may grow.
    most: Percent,
    /// Whether it may be lent what others have reserved and not touched.
    is_scavenger: bool,
    /// Whether it is requeued if it is ended for that.
    is_requeued: bool,
}

impl Entitled {
    const NOTHING: Self = Self { most: Percent::HUNDRED, is_scavenger: false, is_requeued: false };
}

/// All jobs that may be lent memory.
#[derive(Default)]
pub struct LendWatch {
    /// By their directories.
    jobs: BTreeMap<PathBuf, Borrower>,
    /// What the other jobs of this node may use together.
    reserved: Reserved,
    host: Option<Host>,
    has_taken_over: bool,
    /// When it is tried again to take over.
    take_over: Option<Instant>,
    searches: Vec<Instant>,
    searched: Option<Instant>,
    /// Until when there is no other search, and no other look.
    may_search: Option<Instant>,
    rested: Option<Instant>,
    /// Processes that lower the limits of jobs that have ended.
    ended: Vec<Lowering>,
    /// Why nothing more is lent, since when, and whether that was said.
    why_no_more: Option<(String, Instant, bool)>,
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
        if !self.has_taken_over {
            return self.take_over.map(|due| due.saturating_duration_since(now));
        }
        let searches = self.searches.iter().copied().filter(|_| self.is_on(config));
        let searches = searches.map(|due| self.may_search.map_or(due, |may| due.max(may)));
        let looks = self.jobs.values().filter_map(|job| job.next);
        let looks = looks.map(|due| self.rested.map_or(due, |rested| due.max(rested)));
        searches.chain(looks).map(|due| due.saturating_duration_since(now)).min()
    }

    /// What becomes readable when the kernel tells.
    pub fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
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
        self.ended.retain(|lowering| !lowering.has_ended());
        let now = Instant::now();
        if !self.has_taken_over && self.take_over.is_none_or(|due| due <= now) {
            let why = self.take_over(&config.run_dir).err();
            self.has_taken_over = why.is_none();
            self.take_over = why.is_some().then_some(now + AGAIN);
            self.say(why.map(|why| format!("what was lent before is not known: {why}")));
        }
        // Nothing is taken for a job's own limit before it is known what is lent.
        if !self.has_taken_over || !self.is_on(config) {
            self.searches.clear();
            return;
        }
        let is_due = |due: &Instant| *due <= now;
        let may_search = self.may_search.is_none_or(|may| may <= now);
        let is_late = self.searched.is_none_or(|searched| searched + WHILE_LENT <= now);
        let is_lent = self.jobs.values().any(Borrower::has_loan);
        if may_search && (self.searches.iter().any(is_due) || is_lent && is_late) {
            self.searches.retain(|due| !is_due(due));
            let failed = self.search(config, loaded).err();
            self.reserved.is_unsure |= failed.is_some();
            self.reserved.why_no_more = failed.or(self.reserved.why_no_more.take());
            if self.reserved.why_no_more.is_some() && self.searches.is_empty() {
                self.searches.push(now + if self.reserved.is_unsure { AGAIN } else { WHILE_LENT });
            }
            if lends_unused(config) && self.searches.is_empty() {
                self.searches.push(now + WHILE_UNUSED.div_f64(speed()));
            }
            self.searched = Some(Instant::now());
            self.may_search = Some(Instant::now() + (now.elapsed() * REST).max(LEAST_REST));
        }
        if self.rested.is_none_or(|rested| rested <= now)
            && self.jobs.values().any(|job| job.next.is_some_and(|next| next <= now))
        {
            let begun = Instant::now();
            let why = self.divide(config);
            self.rested = Some(Instant::now() + (begun.elapsed() * REST).max(LEAST_REST));
            self.say(why);
        }
    }

    /// Why nothing more is lent is said once, if it stands.
    fn say(&mut self, why: Option<String>) {
        let before = self.why_no_more.take();
        self.why_no_more = why.map(|why| match before {
            Some((said, since, is_said)) if said == why => (why, since, is_said),
            _ => (why, Instant::now(), false),
        });
        if let Some((why, since, is_said)) = &mut self.why_no_more
            && !*is_said
            && since.elapsed() >= STANDS
        {
            log::warn!("no more memory is lent, and what is lent stays: {why}");
            *is_said = true;
        }
    }

    /// What an earlier process has lent: all of it or nothing.
    fn take_over(&mut self, run_dir: &Path) -> Result<(), String> {
        let (mut found, mut gone) = (BTreeMap::new(), Vec::new());
        for lent in kept::all_without_gap::<JobLent>(run_dir).map_err(|error| error.to_string())? {
            let path = PathBuf::from(&lent.directory);
            let is_v2 = path.join(memory_files(Version::V2).0).exists();
            let version = if is_v2 { Version::V2 } else { Version::V1 };
            let directory = JobDirectory { version, path: path.clone(), inode: lent.inode };
            match (lent.uid, directory.open()) {
                (_, Err(LookFailure::Failed(error))) => return Err(error.to_string()),
                (Some(uid), Ok(_)) => {
                    found.insert(path, Borrower::found(lent, directory, uid));
                }
                _ => gone.push(lent),
            }
        }
        gone.iter().for_each(|lent| kept::remove(run_dir, lent));
        self.jobs = found;
        self.search_soon();
        Ok(())
    }

    /// Looks for the jobs of this node: for those that may be lent memory, and for what the others have reserved.
    fn search(&mut self, config: &Config, loaded: Option<&Loaded>) -> Result<(), String> {
        let (host, _) = Host::read_what_there_is(config).map_err(|error| error.to_string())?;
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut unseen);
        let (steps, more) = find(&host, ALL, &recorded, &WantedSteps::default());
        let noted = JobRecords::existing(&config.run_dir).ok().flatten();
        let (mut found, mut others) = (BTreeSet::new(), BTreeMap::new());
        let mut planned: BTreeMap<PathBuf, u64> = BTreeMap::new();
        let (asked, scripts) = (asked(config, &steps), scripts(config, &steps));
        let mut why = unseen.iter().chain(&more).next().map(ToString::to_string);
        for step in &steps {
            let (directory, is_theirs) = match JobDirectory::of_step(step) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    why.get_or_insert_with(|| error.to_string());
                    continue;
                }
            };
            let of_step = step.record.as_ref().and_then(|record| record.shared.as_ref()?.plan.as_ref()?.plan.job.ram);
            if let Some(bytes) = of_step.map(whole_pages) {
                let most = planned.entry(directory.path.clone()).or_default();
                *most = bytes.max(*most);
            }
            let mut entitled =
                if is_theirs { Entitled::NOTHING } else { entitled((config, loaded), (noted.as_ref(), &host), step) };
            entitled.most = asked.get(&directory.path).map_or(entitled.most, |asked| entitled.most.min(*asked));
            entitled.is_requeued &= scripts.contains(&directory.path);
            if self.is_borrower(&config.run_dir, step, &directory, entitled) {
                found.insert(directory.path);
                continue;
            }
            let Entry::Vacant(place) = others.entry(directory.path.clone()) else { continue };
            let limit = match directory.open().and_then(|dir| self.limit_of(config, &directory, &dir)) {
                Ok(Some(bytes)) => FoundLimit::Bytes(bytes),
                Ok(None) => FoundLimit::Unlimited,
                Err(LookFailure::Gone) => continue,
                Err(LookFailure::Failed(error)) => FoundLimit::Unknown(error.to_string()),
            };
            place.insert((format!("job {}", printable(&step.job)), limit));
        }
        let is_whole = why.is_none();
        others.retain(|path, _| !found.contains(path));
        self.reserved.found(others, why);
        // A job of which no step is seen any more is looked at until its directory is gone.
        self.jobs.retain(|path, job| found.contains(path) || job.has_loan() || !is_whole);
        for (path, job) in &mut self.jobs {
            self.reserved.is_a_borrowers(path);
            job.plan(planned.get(path).copied());
            // What is new may have reserved what is lent.
            job.next = Some(Instant::now());
        }
        drop(steps);
        self.host = Some(host);
        Ok(())
    }

    /// The limit of a job that is lent nothing. If the site lends what such jobs have not touched, what it uses is noted.
    fn limit_of(
        &mut self,
        config: &Config,
        directory: &JobDirectory,
        dir: &Dir,
    ) -> std::result::Result<Option<u64>, LookFailure> {
        if !lends_unused(config) {
            return Ok(directory.limits(dir)?.0);
        }
        let seen = directory.look(dir)?;
        self.reserved.see(&directory.path, directory.inode, seen.used, speed());
        Ok(seen.limit)
    }

    /// Whether the step's job may be lent memory, or is lent some.
    fn is_borrower(
        &mut self,
        run_dir: &Path,
        step: &LivingStep<'_>,
        directory: &JobDirectory,
        Entitled { most, is_scavenger, is_requeued }: Entitled,
    ) -> bool {
        if let Some(known) = self.jobs.get_mut(&directory.path) {
            if known.directory == *directory {
                (known.most, known.is_scavenger, known.is_requeued) = (most, is_scavenger, is_requeued);
                return most > Percent::HUNDRED || known.has_loan();
            }
            // Another job has got the name.
            self.forget(run_dir, &directory.path);
        }
        let Some(uid) = step.uid.filter(|uid| *uid != 0 && most > Percent::HUNDRED) else { return false };
        let Some(dir) = directory.open().ok().filter(|_| self.jobs.len() < MOST) else { return false };
        // Where the kernel slows a job before its limit, a higher limit would not help it.
        let is_slowed = directory.version == Version::V2
            && !memory_limit(&dir, high_file(directory.version)).is_ok_and(|high| high.is_none());
        let Ok((Some(limit), swap)) = directory.limits(&dir) else { return false };
        if is_slowed {
            return false;
        }
        let lent = JobLent {
            node: step.node.clone(),
            uid: step.uid,
            job: step.job.clone(),
            directory: directory.path.display().to_string(),
            inode: directory.inode,
            grant: limit,
            limit,
            peak: limit,
            swap,
            resized: resized(&dir),
            marked: false,
        };
        let mut job = Borrower::new(lent, directory.clone(), uid);
        (job.most, job.is_scavenger, job.is_requeued) = (most, is_scavenger, is_requeued);
        self.jobs.insert(directory.path.clone(), job);
        true
    }

    /// A job has ended.
    fn forget(&mut self, run_dir: &Path, path: &Path) {
        if let Some(job) = self.jobs.remove(path) {
            kept::remove(run_dir, &job.lent);
            self.ended.extend(job.into_lowering());
        }
    }

    /// Looks at the jobs that are due, and gives each its share. Returns why nothing more is lent.
    fn divide(&mut self, config: &Config) -> Option<String> {
        let (run_dir, now) = (config.run_dir.as_path(), Instant::now());
        let (mut gone, mut looked) = (Vec::new(), BTreeSet::new());
        let mut has_given = false;
        for (path, job) in &mut self.jobs {
            has_given |= job.has_lowered();
            if job.next.is_some_and(|next| next <= now + LEAST_REST) && !job.is_lowering() {
                job.next = None;
                match job.look(run_dir) {
                    Ok(true) => drop(looked.insert(path.clone())),
                    Ok(false) => {}
                    Err(_) => gone.push(path.clone()),
                }
            }
        }
        gone.iter().for_each(|path| self.forget(run_dir, path));
        let memories: Vec<JobMemory> = self.jobs.values().map(Borrower::known).collect();
        let unseen =
            self.jobs.values().find(|job| job.is_unseen).map(|job| format!("{} cannot be looked at", job.name()));
        let (limits, why) = match self.node(config, unseen.is_none()) {
            Ok(node) => {
                if lends_unused(config) {
                    self.end(node.job_to_end(&memories), &node);
                }
                (node.divide(&memories), self.reserved.why_no_more.clone().or(unseen))
            }
            Err(why) => (memories.iter().map(|job| job.limit).collect(), Some(why)),
        };
        let mut lowering = self.ended.len() + self.jobs.values().filter(|job| job.is_lowering()).count();
        let mut with_notice = self.jobs.values().filter(|job| job.notice.is_some()).count();
        let begun = Instant::now();
        for ((path, job), limit) in self.jobs.iter_mut().zip(limits) {
            if !looked.contains(path) && job.known().limit == limit {
                // Another has just given back what this one may need.
                if has_given && job.known().needs_more() {
                    job.next = Some(now);
                }
                continue;
            }
            let seen = self.host.as_ref().and_then(|host| ProcessView::from_host(host, job.directory.version));
            job.mark(run_dir, seen, begun.elapsed() > MARKING);
            job.apply(run_dir, limit, lowering < MOST_LOWERING);
            lowering += usize::from(job.is_lowering());
            if job.next.is_none() {
                with_notice -= usize::from(job.notice.is_some());
                let known = job.known();
                let pause = after_a_look(&mut job.notice, &job.directory, &known, with_notice < MOST_TOLD);
                with_notice += usize::from(job.notice.is_some());
                let most = (known.is_scavenger && known.lent() > 0).then_some(WHILE_SCAVENGED);
                let pause = pause.into_iter().chain(most).min();
                job.next = pause.map(|pause| Instant::now() + pause);
            }
            job.next = job.next.into_iter().chain(job.mark_again.take()).chain(job.lives_on()).min();
        }
        why
    }

    fn node(&self, config: &Config, are_seen: bool) -> Result<NodeMemory, String> {
        let host = self.host.as_ref().ok_or("the jobs of this node have not been seen")?;
        let pool = config.memory_pool.filter(|_| is_on(config));
        let lends_more = are_seen && self.reserved.why_no_more.is_none();
        let of_borrowers = self.jobs.values().filter(|job| !job.is_scavenger);
        let untouched = of_borrowers
            .fold(self.reserved.untouched(), |sum, job| sum.saturating_add(job.touched.untouched(job.lent.grant)));
        let untouched = if lends_unused(config) { config.memory_pool_unused.of(untouched) } else { 0 };
        node::read(host, config, pool, (self.reserved.sum(), untouched, lends_more)).map_err(|error| error.to_string())
    }

    /// Ends this job, unless the memory of another one that was ended may soon be free. What of that one lives is ended then.
    fn end(&mut self, at: Option<usize>, node: &NodeMemory) {
        let ending = self.jobs.values().position(Borrower::is_ending);
        let Some(host) = self.host.as_ref() else { return };
        if let Some(job) = ending.or(at).and_then(|at| self.jobs.values_mut().nth(at)) {
            job.end(ProcessView::from_host(host, job.directory.version), node);
        }
    }
}

/// Whether the site lends memory.
pub fn is_on(config: &Config) -> bool {
    config.memory_pool.is_some() && config.mode == Mode::Enforce
}

/// How far the users of jobs let their limits grow, by the jobs' directories: of what the steps of a job say, the least.
fn asked(config: &Config, steps: &[LivingStep<'_>]) -> BTreeMap<PathBuf, Percent> {
    let mut all: BTreeMap<PathBuf, Percent> = BTreeMap::new();
    for step in steps.iter().filter(|_| is_on(config)) {
        let place = step.places.iter().find(|place| place.hierarchy.has("memory"));
        let Some((place, asked)) = place.zip(step.allocated().elastic_ram) else { continue };
        all.entry(place.job.clone()).and_modify(|least| *least = asked.min(*least)).or_insert(asked);
    }
    all
}

/// The directories of the jobs whose scripts run on this node, and whose scheduler lets `jobfence hold` have such a job run again.
fn scripts(config: &Config, steps: &[LivingStep<'_>]) -> BTreeSet<PathBuf> {
    let can_look = config.usage_log.is_some() && config.reap_interval.is_some();
    let runs_again = |step: &&LivingStep<'_>| {
        schedulers::ALL.iter().filter_map(|part| part.again()).any(|again| again.has_script(step))
    };
    let of_scripts = steps.iter().filter(|_| can_look).filter(runs_again);
    of_scripts
        .filter_map(|step| step.places.iter().find(|place| place.hierarchy.has("memory")))
        .map(|place| place.job.clone())
        .collect()
}

/// Whether the site lends what jobs have reserved and not touched. Without a reserve, no scavenger would be ended in time.
pub fn lends_unused(config: &Config) -> bool {
    is_on(config) && config.memory_pool_unused > Percent::ZERO && config.memory_pool_reserve.is_some()
}

/// What the step's job may be lent.
fn entitled(
    (config, loaded): (&Config, Option<&Loaded>),
    known: (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> Entitled {
    let of = |config: &Config| Entitled {
        most: if is_on(config) { config.elastic_ram } else { Percent::HUNDRED },
        is_scavenger: lends_unused(config) && config.scavenger,
        is_requeued: config.scavenger_end,
    };
    match job_keys::of_step(&KEYS, loaded, known, step) {
        None => of(config),
        Some(Ok(config)) => of(&config),
        Some(Err(_)) => Entitled::NOTHING,
    }
}
