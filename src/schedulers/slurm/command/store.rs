// SPDX-License-Identifier: GPL-2.0-or-later
//! `StoreUsage=admincomment`: `jobfence hold` writes the usage of Slurm jobs into their records in Slurm's database.
//!
//! The usage comes from the usage log, and each node adds its own part to that of the others. If two nodes write at the same moment, one
//! part is lost: so a node of several looks again later. The controller accepts no comment for an ended job, so slurmdbd is asked and
//! told. All nodes of a cluster ask the same slurmdbd: so each asks rarely, and about many jobs at once.

mod database;
mod gpus;
mod known;
pub mod period;
mod record;
pub mod summary;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jobfence::config::{Config, Loaded, StoreUsage};
use jobfence::report::usage_log::UsageLog;
use jobfence::sys::program::Silence;

use crate::part::Chore;
use crate::report::accounting::StoredJob;
use crate::schedulers::slurm::job::run_until;
use crate::schedulers::slurm::name::SlurmName;
use database::{Comment, Found, PATIENCE};
use gpus::LoggedGpus;
use known::{KnownJob, KnownJobs};
use summary::Summary;

/// How many jobs one call is about.
const AT_ONCE: usize = 100;

/// If this many jobs wait, calls are made at once. A job of many nodes takes the most calls, four: it gets its turn, is asked about, told,
/// and looked at again. So there is at most a call for ten jobs.
const MANY: usize = 40;

/// How many `ReapInterval`s fewer jobs wait for others.
const ROUNDS: u32 = 20;

/// How old slurmdbd's answer may be when it is overwritten: another node may have written meanwhile.
const FRESH: Duration = Duration::from_secs(5);

/// After that, each node that had read before this one wrote has written, too.
const SETTLED: Duration = FRESH.saturating_add(PATIENCE);

/// How long all calls together may keep the janitor from its work.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(20);

/// How often a job is tried again, each time after twice the time: with 60 seconds, for two weeks.
const TRIES: u32 = 10;

/// The longest comment: 1,000 nodes need about 30 KiB.
const LONGEST: usize = 60_000;

/// If a job has this many nodes, the nodes take turns.
const SEVERAL: u64 = 4;

/// What has been read so far, and what of it is stored.
#[derive(Debug, Default)]
pub struct Store {
    /// `None`: not begun.
    known: Option<KnownJobs>,
    /// When slurmdbd is asked next about fewer jobs than [`MANY`], and when about any.
    next_few: Option<Instant>,
    next: Option<Instant>,
    /// How many jobs the next call is about; 0 for the most. Fewer, if an answer came late.
    at_once: usize,
    /// Whether Slurm's commands here are known to support it.
    can_store: bool,
    /// The last reported error: each is reported once.
    said: Option<String>,
    /// What was said once of all jobs.
    said_lack: BTreeSet<&'static str>,
}

impl Chore for Store {
    /// Reads new lines, and stores what is not stored yet.
    fn once(&mut self, config: &Config, _: Option<&Loaded>) {
        let (Some(usage_log), StoreUsage::AdminComment) = (UsageLog::from_config(config), config.store_usage) else {
            *self = Self::default();
            return;
        };
        let patience = config.reap_interval.unwrap_or(Duration::from_secs(60)) * ROUNDS;
        match self.look(&usage_log, patience, config.sample_interval) {
            Ok(()) => self.said = None,
            Err(error) if self.said.as_ref() == Some(&error) => {}
            Err(error) => {
                log::error!("cannot store with Slurm what jobs have used: {error}");
                self.said = Some(error);
            }
        }
    }
}

impl Store {
    fn look(&mut self, usage_log: &UsageLog<'_>, patience: Duration, interval: Option<Duration>) -> Result<(), String> {
        let now = Instant::now();
        // After a power failure all nodes of a cluster begin at once.
        let next = *self.next.get_or_insert_with(|| now + part_of(patience, random()));
        let mut known = self.known.take().unwrap_or_else(|| KnownJobs::load(usage_log));
        let done = known.read_on(usage_log).and_then(|()| {
            for job in known.jobs.values_mut().filter(|job| !job.is_done && job.due.is_none()) {
                // The nodes of a job that has ended do not ask all at once either.
                let wait = if job.is_over { part_of(patience / 2, random()) } else { patience };
                job.due = Some(now + wait);
            }
            if !self.can_store && known.jobs.values().any(|job| !job.is_done) {
                can_store()?;
                self.can_store = true;
            }
            let gpus = |found: &Found| {
                let with_gpus = found.jobs.iter().filter(|(_, record)| record.gpus > 0);
                LoggedGpus::read(usage_log, interval, with_gpus.map(|(id, _)| *id))
            };
            if next > now { Ok(()) } else { self.store(&mut known, patience, now + PATIENCE_TOGETHER, &gpus) }
        });
        if done.is_err() {
            // slurmdbd may have too much to do, or begin again.
            self.next = Some(now + part_of(patience, 0.5 + random() / 2.0));
        }
        let saved = known.save(usage_log);
        self.known = Some(known);
        done.and(saved)
    }

    fn store(
        &mut self,
        known: &mut KnownJobs,
        patience: Duration,
        deadline: Instant,
        gpus: &dyn Fn(&Found) -> LoggedGpus,
    ) -> Result<(), String> {
        let mut refused = Ok(());
        while Instant::now() < deadline {
            let now = Instant::now();
            let ids = waiting(known, now, if self.at_once == 0 { AT_ONCE } else { self.at_once });
            if ids.is_empty() || ids.len() < MANY && self.next_few.is_some_and(|next| next > now) {
                break;
            }
            self.next_few = Some(now + patience);
            let mut found = Found::default();
            let mut is_late = false;
            let asked = found.ask(&ids, &mut |ids| {
                let said = if is_late { Err(Silence::Late) } else { database::sacct(ids) };
                is_late |= matches!(said, Err(Silence::Late));
                said
            });
            if is_late {
                // One of these may be of a large array: the others are not to wait for it.
                self.at_once = (ids.len() / 2).max(1);
                put_back(known, &ids, patience, now);
            }
            asked?;
            found.gpus = gpus(&found);
            let (stored, some_refused) = self.bring(known, &ids, &mut found, patience, &mut |comments| {
                // Else a later look asks again, about fewer.
                if now.elapsed() > FRESH {
                    (BTreeSet::new(), Err(format!("sacct took more than {} s", FRESH.as_secs())))
                } else {
                    database::store(comments, &|| now.elapsed() <= FRESH, &mut database::sacctmgr)
                }
            });
            self.at_once = if now.elapsed() > FRESH { (ids.len() / 2).max(1) } else { AT_ONCE };
            known.is_changed = true;
            refused = refused.and(some_refused);
            if stored == 0 && refused.is_err() {
                break;
            }
        }
        refused
    }

    /// Adds this host's parts to what slurmdbd has about these jobs. Returns how many were written, and the first reason why one was not.
    fn bring(
        &mut self,
        known: &mut KnownJobs,
        ids: &[u32],
        found: &mut Found,
        patience: Duration,
        store: &mut impl FnMut(&[Comment]) -> (BTreeSet<u32>, Result<(), String>),
    ) -> (usize, Result<(), String>) {
        let now = Instant::now();
        let mut comments = Vec::new();
        for id in ids {
            let mut new = None;
            let ours = known.jobs.range_mut((*id, String::new())..).take_while(|((of, _), _)| of == id);
            for ((_, node), job) in ours.filter(|(_, job)| !job.is_done) {
                match job.step(*id, node, found, patience, now) {
                    Ok(Some(summary)) => {
                        if let Some(lack) = summary.lack()
                            && self.said_lack.insert(lack)
                        {
                            log::info!(
                                "job {id}: jobstats is shown nothing of jobs like it, since their summary lacks {lack}"
                            );
                        }
                        new = Some(summary);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        log::info!("{why}");
                        job.is_done = true;
                    }
                }
            }
            if let (Some(summary), Some(record)) = (new, found.jobs.get(id)) {
                match summary.comment() {
                    Ok(text) if text.len() <= LONGEST => {
                        comments.push(Comment { id: *id, name: record.name.clone(), text })
                    }
                    Ok(_) => {
                        log::info!("job {id}: what its nodes have used is too long for an AdminComment");
                        give_up(known, *id);
                    }
                    Err(error) => log::error!("job {id}: {error}"),
                }
            }
        }
        // What other nodes write, too, comes first: it is the more likely to be still as it was read.
        comments.sort_by_key(|comment| found.jobs.get(&comment.id).is_none_or(|record| record.nodes == 1));
        let (stored, refused) = if comments.is_empty() { (BTreeSet::new(), Ok(())) } else { store(&comments) };
        for comment in &comments {
            let is_alone = found.jobs.get(&comment.id).is_some_and(|record| record.nodes == 1);
            let ours = known.jobs.range_mut((comment.id, String::new())..).take_while(|((of, _), _)| *of == comment.id);
            for (_, job) in ours.filter(|(_, job)| !job.is_done && job.due.is_none()) {
                if !stored.contains(&comment.id) {
                    job.later(patience, now);
                } else if is_alone {
                    job.is_done = true;
                } else {
                    job.written = Some(now);
                    job.due = Some(now + patience.max(SETTLED));
                }
            }
        }
        (stored.len(), refused)
    }
}

/// The jobs whose turn it is, at most as many as one call is about; the newest first.
fn waiting(known: &KnownJobs, now: Instant, most: usize) -> Vec<u32> {
    let is_due = |job: &KnownJob| !job.is_done && job.due.is_some_and(|due| due <= now);
    let mut ids: Vec<(u32, u64, u32)> =
        known.jobs.iter().filter(|(_, job)| is_due(job)).map(|((id, _), job)| (job.tries, job.ended, *id)).collect();
    // What was refused comes behind the others.
    ids.sort_unstable_by_key(|(tries, ended, id)| (*tries, u64::MAX - ended, *id));
    let mut seen = BTreeSet::new();
    ids.into_iter().map(|(.., id)| id).filter(|id| seen.insert(*id)).take(most).collect()
}

/// Has these wait behind the others.
fn put_back(known: &mut KnownJobs, ids: &[u32], patience: Duration, now: Instant) {
    known.is_changed = true;
    for ((id, _), job) in known.jobs.iter_mut().filter(|(_, job)| !job.is_done) {
        if ids.contains(id) {
            job.later(patience, now);
        }
    }
}

fn give_up(known: &mut KnownJobs, id: u32) {
    for (_, job) in known.jobs.range_mut((id, String::new())..).take_while(|((of, _), _)| *of == id) {
        job.is_done = true;
    }
}

impl KnownJob {
    /// Looks at what slurmdbd has of the job. Returns what is to be written; then nothing is due until that is done. An error says why the
    /// job is not stored.
    fn step(
        &mut self,
        id: u32,
        node: &str,
        found: &mut Found,
        patience: Duration,
        now: Instant,
    ) -> Result<Option<Summary>, String> {
        if found.too_long.contains(&id) {
            return Err(format!(
                "job {id}: cannot store what its nodes have used: sacct says too much about the job and its array"
            ));
        }
        let Some(record) = found.jobs.get_mut(&id) else {
            self.later(patience, now);
            return Ok(None);
        };
        // slurmdbd does not know the newest run yet, and this is the one before.
        if self.stretches.last().is_some_and(|last| record.is_over_at(last.began)) {
            self.later(patience, now);
            return Ok(None);
        }
        // sacctmgr would write what is of this run into the record of the next one, as soon as there is that.
        if record.is_requeued {
            self.later(patience, now);
            return Ok(None);
        }
        // It does not know yet that the newest run has begun.
        if record.started.is_none() && self.stretches.last().is_some_and(|last| last.began >= record.submitted) {
            self.later(patience, now);
            return Ok(None);
        }
        // Only the newest run of a job can be stored for.
        let Some(mut part) = self.part(record) else {
            self.is_done = true;
            return Ok(None);
        };
        let Some(ended) = record.ended else {
            self.later(patience, now);
            return Ok(None);
        };
        if record.gpus > 0 {
            let of_gpus = found.gpus.of_run(id, node, self, record);
            let wait = found.gpus.wait.map_or(Duration::ZERO, |wait| left(ended.max(self.ended), wait));
            if of_gpus.is_none() && !wait.is_zero() {
                self.due = Some(now + wait);
                return Ok(None);
            }
            part.gpus = of_gpus.unwrap_or_default();
        }
        let summary = Summary::from_comment(&record.comment)
            .ok_or_else(|| format!("job {id}: its AdminComment has another text, which stays"))?;
        let mut summary = summary.of_run(record.submitted, record.gpus);
        if !summary.put(node, &part, ended.saturating_sub(record.started.unwrap_or(ended))) {
            match self.written.map(|written| written + SETTLED) {
                // Another node that had read before can still overwrite it.
                Some(settled) if settled > now => self.due = Some(settled),
                _ => self.is_done = true,
            }
            return Ok(None);
        }
        if record.nodes > SEVERAL && !self.has_turn {
            // The more nodes, the later: two of them rarely write at the same moment.
            self.has_turn = true;
            let nodes = f64::from(u32::try_from(record.nodes).unwrap_or(u32::MAX));
            self.due = Some(now + part_of(patience, random() * (nodes / 100.0).min(24.0)));
            return Ok(None);
        }
        self.due = None;
        // Another node of this host may come next.
        record.comment = summary.comment().unwrap_or_default();
        Ok(Some(summary))
    }

    /// Not now: the job runs on, slurmdbd does not know it yet, or sacctmgr refused it.
    fn later(&mut self, patience: Duration, now: Instant) {
        self.due = Some(now + patience * 2u32.saturating_pow(self.tries));
        self.tries += 1;
        self.is_done = self.tries > TRIES;
    }
}

/// What is left of this time after a moment, in seconds since 1970.
fn left(since: u64, time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Duration::from_secs(since) + time).saturating_sub(now)
}

/// A number from 0 to 1.
fn random() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

fn part_of(time: Duration, part: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * part).unwrap_or(time)
}

/// Why Slurm's commands here cannot store anything.
pub fn can_store() -> Result<(), String> {
    let said = run_until("sacctmgr", &["--version"], Instant::now() + PATIENCE);
    check_release(&said.map_err(|silence| format!("sacctmgr: {silence}"))?)
}

/// Checks the output of 'sacctmgr --version', `slurm 24.11.5`, or `slurm-wlm` on Debian. Until 22.05 it makes every comment lower case
/// (`_set_rec` in src/sacctmgr/job_functions.c), and such a summary cannot be decoded.
fn check_release(said: &str) -> Result<(), String> {
    let mut numbers = said.split_whitespace().next_back().unwrap_or_default().split(['.', '-']);
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (number(), number()) {
        (Some(year), Some(month)) if (year, month) >= (23, 2) => Ok(()),
        _ => Err(format!("StoreUsage=admincomment needs Slurm 23.02 or later, and this is {}", said.trim())),
    }
}

/// What the database has about the newest run of a job of Slurm. `None`: nothing of jobfence's.
pub fn stored(job: &str) -> Option<StoredJob> {
    let is_slurms = SlurmName::parse(job).is_some_and(|name| name.step.is_none());
    let said = is_slurms.then(|| database::comment_of(job))?;
    let (submitted, comment) =
        said.inspect_err(|error| log::debug!("Slurm's accounting says nothing: sacct: {error}")).ok()??;
    let summary = Summary::from_comment(&comment).filter(|summary| summary.is_of_run(submitted))?;
    Some(summary.stored()).filter(|stored| !stored.nodes.is_empty())
}

#[cfg(test)]
mod tests {
    use jobfence::report::account::{REAPED, SCHEMA};
    use jobfence::schedulers::slurm::HOLDER;

    use super::record::RunRecord;
    use super::*;
    use crate::report::accounting::NodePart;

    const PATIENT: Duration = Duration::from_secs(20);

    fn line(job: u32, node: &str, step: &str, ended: &str, cpu: f64) -> String {
        format!(
            "{{\"schema\":\"{SCHEMA}\",\"holder\":\"{HOLDER}\",\"job\":\"{job}\",\"node\":\"{node}\",\"step\":\"{step}\",\
             \"ended\":\"1970-01-01T{ended}Z\",\"wall_seconds\":9.5,\"cpu_seconds\":{cpu},\"cpus_limit\":1.5,\
             \"memory_limit_bytes\":100,\"memory_peak_bytes\":40,\"job_memory_peak_bytes\":null}}"
        )
    }

    /// A store whose jobs are all due.
    fn known(lines: &[String]) -> KnownJobs {
        let mut known = KnownJobs::default();
        lines.iter().for_each(|line| known.add(line));
        known.jobs.values_mut().for_each(|job| job.due = Some(Instant::now()));
        known
    }

    fn bring(
        known: &mut KnownJobs,
        ids: &[u32],
        said: &str,
        refuse: &[u32],
    ) -> (Vec<(String, String)>, Result<(), String>) {
        let mut found = Found::default();
        found.add(ids, said);
        found.too_long.extend(ids.iter().filter(|id| **id == 99));
        let mut told = Vec::new();
        let (_, refused) = Store::default().bring(known, ids, &mut found, PATIENT, &mut |comments| {
            told.extend(comments.iter().map(|one| (one.name.clone(), one.text.clone())));
            let stored = comments.iter().map(|one| one.id).filter(|id| !refuse.contains(id)).collect();
            (stored, if refuse.is_empty() { Ok(()) } else { Err("refused".to_owned()) })
        });
        (told, refused)
    }

    #[test]
    fn releases_that_spoil_a_comment_are_refused() {
        for good in ["slurm 23.02.0\n", "slurm 24.11.5", "slurm-wlm 24.11.5", "slurm 26.05.0-0rc1"] {
            assert_eq!(check_release(good), Ok(()), "{good}");
        }
        for bad in ["slurm 22.05.8", "slurm 20.11.9", "", "sacctmgr"] {
            assert!(check_release(bad).unwrap_err().contains("needs Slurm 23.02"), "{bad}");
        }
    }

    #[test]
    fn runs_of_a_requeued_job_are_never_added_up() {
        let two = [line(7, "n1", "batch", "00:01:00", 70_000.0), line(7, "n1", "batch", "00:10:00", 5.0)];
        let second = "7|7|61|500|610|COMPLETED|1||\n7|7|40|45|60|REQUEUED|1||\n";
        let mut both = known(&two);
        let (told, _) = bring(&mut both, &[7], second, &[]);
        let summary = Summary::from_comment(&told[0].1).unwrap();
        let part = NodePart {
            cpus: Some(2),
            memory: Some(100),
            memory_peak: Some(40),
            cpu_seconds: Some(5.0),
            ..NodePart::default()
        };
        assert_eq!((summary.nodes().collect::<Vec<_>>(), summary.seconds()), (vec![("n1", part)], 110));
        assert!(both.jobs[&(7, "n1".to_owned())].is_done);
        // Only the first run is known here. The second one has not ended yet, or has ended elsewhere.
        for said in [second, "7|7|61|Unknown|Unknown|PENDING|1||\n7|7|40|45|60|REQUEUED|1||\n"] {
            let mut first = known(&two[..1]);
            assert!(bring(&mut first, &[7], said, &[]).0.is_empty(), "{said}");
            assert!(first.jobs[&(7, "n1".to_owned())].is_done);
        }
        // slurmdbd does not know the second one yet.
        let mut early = known(&two);
        assert!(bring(&mut early, &[7], "7|7|40|45|60|REQUEUED|1||\n", &[]).0.is_empty());
        assert!(!early.jobs[&(7, "n1".to_owned())].is_done);
        // Nor when the first one is all that this host knows: what is written may reach the record of the second one.
        let mut first = known(&two[..1]);
        assert!(bring(&mut first, &[7], "7|7|40|45|60|REQUEUED|1||\n", &[]).0.is_empty());
        assert!(!first.jobs[&(7, "n1".to_owned())].is_done);
        // What was stored of the first run does not stay.
        let earlier = told[0].1.clone();
        let third = format!("7|7|611|700|900|COMPLETED|1||{earlier}\n7|7|61|500|610|REQUEUED|1||{earlier}\n");
        let mut late = known(&[line(7, "n2", "batch", "00:12:00", 1.0)]);
        let (told, _) = bring(&mut late, &[7], &third, &[]);
        let nodes = Summary::from_comment(&told[0].1).unwrap();
        assert_eq!(nodes.nodes().map(|(node, _)| node).collect::<Vec<_>>(), ["n2"]);
    }

    #[test]
    fn a_job_that_runs_on_is_not_stored_and_asked_about_less_and_less() {
        let mut jobs = known(&[line(7, "n1", "0", "00:01:00", 1.0)]);
        let mut waits = Vec::new();
        for _ in 0..3 {
            let now = Instant::now();
            assert!(bring(&mut jobs, &[7], "7|7|1|2|Unknown|RUNNING|1||\n", &[]).0.is_empty());
            waits.push(jobs.jobs.values().next().unwrap().due.unwrap().duration_since(now).as_secs() / 20);
        }
        assert_eq!(waits, [1, 2, 4]);
        // Its end comes at once, whatever was before.
        jobs.add(&line(7, "n1", "batch", "00:02:00", 1.0));
        let job = jobs.jobs.values().next().unwrap();
        assert!(job.is_over && job.due.is_none() && job.tries == 0);
    }

    #[test]
    fn what_is_refused_of_one_job_or_too_long_is_of_this_one_alone() {
        let mut jobs = known(&[1, 2, 3, 99, 5].map(|id| line(id, "n1", "batch", "00:01:00", 1.0)));
        let of = |id: u32, comment: &str| format!("{id}|{id}|1|2|60|COMPLETED|1||{comment}\n");
        let said = of(1, "") + &of(2, "by a site") + &of(3, "");
        let (told, refused) = bring(&mut jobs, &[1, 2, 3, 99, 5], &said, &[3]);
        assert_eq!(told.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["1", "3"]);
        assert!(refused.is_err());
        let done: Vec<(bool, u32)> = jobs.jobs.values().map(|job| (job.is_done, job.tries)).collect();
        assert_eq!(done, [(true, 0), (true, 0), (false, 1), (false, 1), (true, 0)]);
    }

    #[test]
    fn nodes_add_their_parts_and_look_again() {
        let record = |comment: &str| format!("7|7|1|2|60|COMPLETED|2||{comment}\n");
        let mut first = known(&[line(7, "n1", "batch", "00:01:00", 1.0)]);
        let (told, _) = bring(&mut first, &[7], &record(""), &[]);
        let job = || (7, "n1".to_owned());
        assert!(!first.jobs[&job()].is_done && first.jobs[&job()].due.unwrap() > Instant::now());
        let mut second = known(&[line(7, "n2", "0", "00:01:00", 2.0)]);
        let (both, _) = bring(&mut second, &[7], &record(&told[0].1), &[]);
        assert_eq!(Summary::from_comment(&both[0].1).unwrap().nodes().count(), 2);
        // It is there, but another node could still overwrite it; and later no more.
        assert!(bring(&mut first, &[7], &record(&both[0].1), &[]).0.is_empty());
        assert!(!first.jobs[&job()].is_done);
        first.jobs.get_mut(&job()).unwrap().written = Instant::now().checked_sub(SETTLED);
        assert!(bring(&mut first, &[7], &record(&both[0].1), &[]).0.is_empty());
        assert!(first.jobs[&job()].is_done);
        // Many nodes take turns.
        let mut one_of_many = known(&[line(7, "n1", "batch", "00:01:00", 1.0)]);
        let many = record("").replace("|2||", "|500||");
        assert!(bring(&mut one_of_many, &[7], &many, &[]).0.is_empty());
        assert_eq!(bring(&mut one_of_many, &[7], &many, &[]).0.len(), 1);
    }

    #[test]
    fn a_job_with_gpus_waits_for_their_line_for_a_while() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let step = |ended: u64, wait: Option<Duration>| {
            let mut found = Found::default();
            found.add(&[7], &format!("7|7|1|2|{ended}|COMPLETED|1|gres/gpu=1|\n"));
            found.gpus.wait = wait;
            let mut jobs = known(&[line(7, "n1", "batch", "00:01:00", 1.0)]);
            let job = jobs.jobs.values_mut().next().unwrap();
            let stored = job.step(7, "n1", &mut found, PATIENT, Instant::now()).unwrap();
            assert_eq!((job.tries, job.is_done), (0, false));
            (stored.map(|summary| summary.lack()), job.due.is_some())
        };
        let wait = Some(Duration::from_secs(3600));
        let lacking = (Some(Some("the use of its GPUs")), false);
        assert_eq!(step(now, wait), (None, true));
        assert_eq!(step(now - 7200, wait), lacking);
        assert_eq!(step(now, None), lacking);
    }

    #[test]
    fn steps_of_a_job_are_added_up() {
        let jobs = known(&[
            line(7, "n1", "0", "03:00:05", 1.5),
            line(7, "n1", "batch", "03:00:10", 2.0),
            line(8, "n1", "0", "03:00:10", 2.0).replace(HOLDER, "manual"),
            line(9, "n1", "0", "03:00:10", 2.0).replace("\"9\"", "\"x\""),
            // As the janitor writes it.
            line(7, "n1.cluster", "1", "03:00:10", 0.5).replace("\"wall", &format!("\"end\":\"{REAPED}\",\"wall")),
            "{\"schema\":".to_owned(),
        ]);
        assert_eq!(jobs.jobs.keys().cloned().collect::<Vec<_>>(), [(7, "n1".to_owned())]);
        let job = jobs.jobs.values().next().unwrap();
        let part = NodePart {
            cpus: Some(2),
            memory: Some(100),
            memory_peak: Some(40),
            cpu_seconds: Some(4.0),
            ..NodePart::default()
        };
        assert_eq!(job.part(&RunRecord::default()), Some(part));
        // However many there are, what is kept of them is bounded.
        let many = known(
            &(0..300)
                .map(|at| line(7, "n1", "0", &format!("{:02}:{:02}:00", at / 60, at % 60), 1.0))
                .collect::<Vec<_>>(),
        );
        let job = many.jobs.values().next().unwrap();
        assert!(job.stretches.len() <= 64);
        assert_eq!(job.part(&RunRecord::default()).unwrap().cpu_seconds, Some(300.0));
    }

    #[test]
    fn the_newest_come_first_and_at_most_as_many_as_one_call_asks_about() {
        let lines: Vec<String> =
            (1..=300).map(|id| line(id, "n1", "batch", &format!("{:02}:{:02}:00", id / 60, id % 60), 1.0)).collect();
        let mut jobs = known(&lines);
        jobs.jobs.get_mut(&(300, "n1".to_owned())).unwrap().tries = 1;
        let now = Instant::now();
        let ids = waiting(&jobs, now, AT_ONCE);
        assert_eq!((ids.len(), ids.first(), ids.last()), (100, Some(&299), Some(&200)));
        // The database did not answer about these in time.
        put_back(&mut jobs, &ids, Duration::ZERO, now);
        let ids = waiting(&jobs, now, AT_ONCE / 2);
        assert_eq!((ids.len(), ids.first(), ids.last()), (50, Some(&199), Some(&150)));
    }
}
