// SPDX-License-Identifier: GPL-2.0-or-later
//! `StoreUsage=admincomment`: `jobfence hold` writes the usage of Slurm jobs into their records in Slurm's database.
//!
//! The usage comes from the usage log, and each node adds its own part. If two nodes write at the same moment, one part is lost: so each
//! node checks again later, until it has seen its part twice. The controller accepts no comment for an ended job, so slurmdbd is asked and
//! told.

pub mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use jobfence::config::{Config, StoreUsage};
use jobfence::report::account::{REAPED, SCHEMA};
use jobfence::report::usage_log::UsageLog;
use jobfence::schedulers::slurm::HOLDER;
use jobfence::sys::program::Silence;

use crate::logged::LoggedStep;
use crate::moment::seconds_of;
use crate::part::Chore;
use crate::schedulers::slurm::job::run_until;
use crate::schedulers::slurm::name::SlurmName;
use summary::{NodePart, Summary};

/// How many jobs sacct is asked about at once.
const AT_ONCE: usize = 100;

/// How old slurmdbd's answer may be when it is overwritten: another node may have written meanwhile.
const FRESH: Duration = Duration::from_secs(5);

/// How long one Slurm command may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long all of them together may keep the janitor from its work.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(20);

/// How often slurmdbd may not know a job: it learns of a new one within moments.
const MISSES: u8 = 30;

/// The longest comment: 1,000 nodes need about 30 KiB.
const LONGEST: usize = 60_000;

/// What a node knows about a job.
#[derive(Debug, Default)]
struct StoredJob {
    part: NodePart,
    /// From the first step's beginning to the last one's end, in seconds since 1970.
    began: Option<u64>,
    ended: u64,
    /// How often the part was seen to be stored, each time so late that no node can still overwrite what was seen.
    seen: u8,
    /// When it was last written or seen.
    looked: Option<Instant>,
    /// How often sacctmgr refused it. Such a job comes behind the others.
    refused: u32,
    /// How often slurmdbd did not know the job.
    misses: u8,
    /// Whether nothing more is to be tried.
    is_given_up: bool,
}

impl StoredJob {
    fn is_done(&self) -> bool {
        self.seen >= 2 || self.is_given_up
    }
}

/// What has been read so far, and what of it is stored.
#[derive(Debug, Default)]
pub struct Store {
    /// The file that is being read, and the offset in it.
    read: Option<(u64, u64)>,
    /// By number and node: several slurmd of a host share a log.
    jobs: BTreeMap<(u32, String), StoredJob>,
    /// Whether Slurm's commands here are known to support it.
    can_store: bool,
    /// The last reported error: each is reported once.
    said: Option<String>,
}

impl Chore for Store {
    /// Reads new lines, and stores what is not stored yet.
    fn once(&mut self, config: &Config) {
        let (Some(usage_log), StoreUsage::AdminComment) = (UsageLog::from_config(config), config.store_usage) else {
            *self = Self::default();
            return;
        };
        let done = self.read_on(&usage_log).and_then(|()| self.write(Instant::now() + PATIENCE_TOGETHER));
        match done {
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
    fn read_on(&mut self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        let files = usage_log.files().map_err(|error| error.to_string())?;
        let before = self.read;
        let inode = |path: &std::path::PathBuf| fs::metadata(path).map(|found| found.ino()).ok();
        // At first all files; later the one that was read last, and newer ones.
        let from = before.and_then(|(ino, _)| files.iter().position(|path| inode(path) == Some(ino)));
        for path in files.iter().skip(from.unwrap_or(0)) {
            let Ok(mut file) = File::open(path) else { continue };
            let Ok(ino) = file.metadata().map(|found| found.ino()) else { continue };
            let mut at = before.filter(|(read, _)| *read == ino).map_or(0, |(_, at)| at);
            file.seek(SeekFrom::Start(at)).map_err(|error| format!("{}: {error}", path.display()))?;
            let mut lines = BufReader::new(file);
            let mut line = String::new();
            loop {
                line.clear();
                match lines.read_line(&mut line) {
                    Ok(0) | Err(_) => break,
                    // The line is still being written, or was cut short.
                    Ok(_) if !line.ends_with('\n') => break,
                    Ok(length) => at += u64::try_from(length).unwrap_or_default(),
                }
                self.add(&line);
            }
            self.read = Some((ino, at));
        }
        Ok(())
    }

    /// Adds a step to its job. A line that is not understood is not jobfence's.
    fn add(&mut self, line: &str) {
        let Ok(step) = serde_json::from_str(line).map(LoggedStep::new) else { return };
        let is_ours = step.schema.as_deref() == Some(SCHEMA) && step.holder.as_deref() == Some(HOLDER);
        let (Some(Ok(id)), Some(ended)) =
            (step.job.as_ref().map(|id| id.parse()), step.ended.as_deref().and_then(seconds_of))
        else {
            return;
        };
        if !is_ours {
            return;
        }
        let mut node = step.node.as_deref().unwrap_or_default();
        // The janitor knows only the host's name. By default Slurm names the node by that, up to the first dot.
        if step.end.as_deref() == Some(REAPED) {
            node = node.split('.').next().unwrap_or_default();
        }
        let wall = step.wall_seconds.unwrap_or_default();
        // Whole seconds are as exact as the controller's own.
        let began = ended.saturating_sub(wall.as_secs() + u64::from(wall.subsec_nanos() > 0));
        let job = self.jobs.entry((id, node.to_owned())).or_default();
        // Job numbers start again at some point: an old job is unrelated to a new one.
        if began > job.ended + 7 * 86_400 {
            *job = StoredJob::default();
        }
        let part = &mut job.part;
        part.cpu_seconds += step.usage.cpu.unwrap_or_default().as_secs_f64();
        part.memory_peak = part.memory_peak.max(step.job_memory_peak_bytes).max(step.usage.memory_peak);
        part.memory = part.memory.max(step.memory_granted_bytes.or(step.memory_limit_bytes));
        let cpus = step.cpus_granted.or(step.cpus_limit);
        part.cpus = part.cpus.max(cpus.map(|cpus| cpus.thousandths().div_ceil(1000)));
        job.began = Some(job.began.map_or(began, |before| before.min(began)));
        job.ended = job.ended.max(ended);
        job.seen = 0;
    }

    fn write(&mut self, deadline: Instant) -> Result<(), String> {
        if self.jobs.values().all(StoredJob::is_done) {
            return Ok(());
        }
        if !self.can_store {
            can_store()?;
            self.can_store = true;
        }
        let mut ids: Vec<(u32, u32)> = Vec::new();
        for ((id, _), job) in self.jobs.iter().filter(|(_, job)| !job.is_done()) {
            match ids.last_mut() {
                Some((refused, last)) if last == id => *refused = job.refused.max(*refused),
                _ => ids.push((job.refused, *id)),
            }
        }
        ids.sort_unstable();
        let ids: Vec<u32> = ids.into_iter().map(|(_, id)| id).collect();
        let (mut left, mut refused) = (ids.as_slice(), Ok(()));
        while !left.is_empty() && Instant::now() < deadline {
            let (some, _) = left.split_at(left.len().min(AT_ONCE));
            let (asked, mut found) = (Instant::now(), Found::default());
            found.ask(some, &mut |ids| sacct(ids))?;
            let mut done = 0;
            while let Some(id) = some.get(done)
                && (done == 0 || asked.elapsed() < FRESH)
            {
                done += 1;
                let ours = self.jobs.range_mut((*id, String::new())..).take_while(|((of, _), _)| of == id);
                for ((_, node), job) in ours.filter(|(_, job)| !job.is_done()) {
                    if let Err(error) = job.bring(*id, node, &mut found, &mut store) {
                        job.refused += 1;
                        refused = refused.and(Err(error));
                    }
                }
            }
            left = left.get(done..).unwrap_or_default();
        }
        // What is stored is not needed any more once the log has dropped it, too.
        let newest = self.jobs.values().map(|job| job.ended).max().unwrap_or_default();
        self.jobs.retain(|_, job| job.ended + 30 * 86_400 > newest);
        refused
    }
}

impl StoredJob {
    /// Adds the node's part to what slurmdbd has about the job, or notices that it is there already.
    fn bring(
        &mut self,
        id: u32,
        node: &str,
        found: &mut Found,
        store: &mut impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        if found.too_long.contains(&id) {
            log::warn!(
                "job {id}: cannot store what its nodes have used: sacct says too much about the job and its array"
            );
            self.is_given_up = true;
            return Ok(());
        }
        let Some(Stored { name, comment }) = found.jobs.get_mut(&id) else {
            self.misses += 1;
            self.is_given_up = self.misses > MISSES;
            return Ok(());
        };
        let Some(mut summary) = Summary::of_comment(comment) else {
            log::info!("job {id}: its AdminComment has another text, which stays");
            self.is_given_up = true;
            return Ok(());
        };
        let elapsed = self.ended.saturating_sub(self.began.unwrap_or(self.ended));
        if !summary.put(node, &self.part, elapsed) {
            // By then, any node that read before this one wrote has written, too.
            if self.looked.is_none_or(|looked| looked.elapsed() > 2 * FRESH) {
                self.seen += 1;
                self.looked = Some(Instant::now());
            }
            return Ok(());
        }
        let new = summary.comment()?;
        if new.len() > LONGEST {
            log::info!("job {id}: what its nodes have used is too long for an AdminComment");
            self.is_given_up = true;
            return Ok(());
        }
        self.seen = 0;
        store(name, &new)?;
        (self.looked, self.refused) = (Some(Instant::now()), 0);
        // Another node of this host may come next.
        *comment = new;
        Ok(())
    }
}

/// A job in slurmdbd.
struct Stored {
    /// Its name for sacctmgr: the number of an array's last job is also that of the whole array.
    name: String,
    comment: String,
}

/// What slurmdbd has about some jobs. A job in neither field is not known to it yet.
#[derive(Default)]
struct Found {
    jobs: BTreeMap<u32, Stored>,
    /// Jobs with a longer answer than is read: the number of an array's last job is also that of the whole array.
    too_long: BTreeSet<u32>,
}

impl Found {
    /// Asks about all in one call; in halves if the answer is too long.
    fn ask(&mut self, ids: &[u32], sacct: &mut impl FnMut(&[u32]) -> Result<String, Silence>) -> Result<(), String> {
        match sacct(ids) {
            Ok(said) => self.add(ids, &said),
            Err(Silence::Long) => match ids {
                [id] => drop(self.too_long.insert(*id)),
                _ => {
                    let (one, other) = ids.split_at(ids.len() / 2);
                    self.ask(one, sacct)?;
                    self.ask(other, sacct)?;
                }
            },
            Err(silence) => return Err(format!("sacct: {silence}")),
        }
        Ok(())
    }

    fn add(&mut self, ids: &[u32], said: &str) {
        for line in said.lines() {
            let Some((id, (name, comment))) =
                line.split_once('|').and_then(|(id, rest)| Some((id, rest.split_once('|')?)))
            else {
                continue;
            };
            if let Some(id) = id.parse().ok().filter(|id| ids.contains(id)) {
                let stored = || Stored { name: name.to_owned(), comment: comment.trim().to_owned() };
                self.jobs.entry(id).or_insert_with(stored);
            }
        }
    }
}

fn sacct(ids: &[u32]) -> Result<String, Silence> {
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    // The comment comes last: it can contain any text.
    let fields = "--format=JobIDRaw,JobID,AdminComment";
    let words = ["--noheader", "--parsable2", "--allocations", "--jobs", &ids, fields];
    run_until("sacct", &words, Instant::now() + PATIENCE)
}

/// Why Slurm's commands here cannot store anything.
pub fn can_store() -> Result<(), String> {
    check_release(&asked("sacctmgr", &["--version"])?)
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

/// What the database has about a job of Slurm. `None`: nothing of jobfence's.
pub fn summary_of(job: &str) -> Option<Summary> {
    let is_slurms = SlurmName::parse(job).is_some_and(|name| name.step.is_none());
    let arguments = ["--noheader", "--parsable2", "--allocations", "--jobs", job, "--format=AdminComment"];
    let said = is_slurms.then(|| asked("sacct", &arguments))?;
    let said = said.inspect_err(|error| log::debug!("Slurm's accounting says nothing: {error}")).ok()?;
    Summary::of_comment(said.lines().next()?.trim()).filter(|summary| summary.nodes().next().is_some())
}

fn store(name: &str, comment: &str) -> Result<(), String> {
    let (job, set) = (format!("jobid={name}"), format!("AdminComment={comment}"));
    asked("sacctmgr", &["--immediate", "modify", "job", "where", &job, "set", &set]).map(drop)
}

fn asked(program: &str, arguments: &[&str]) -> Result<String, String> {
    run_until(program, arguments, Instant::now() + PATIENCE).map_err(|silence| format!("{program}: {silence}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn one_job_of_which_too_much_is_said_does_not_keep_the_others() {
        let (mut found, mut calls) = (Found::default(), 0);
        let mut sacct = |ids: &[u32]| {
            calls += 1;
            let line = |id: &u32| format!("{id}|5_{id}|of {id}\n1{id}|7_1|another's\n{id}|5_9|not this\n");
            if ids.contains(&5) { Err(Silence::Long) } else { Ok(ids.iter().map(line).collect()) }
        };
        found.ask(&(1..=8).collect::<Vec<_>>(), &mut sacct).unwrap();
        assert_eq!(calls, 7);
        assert_eq!(found.too_long, BTreeSet::from([5]));
        let names: Vec<String> = found.jobs.values().map(|job| format!("{} {}", job.name, job.comment)).collect();
        assert_eq!(names, [1, 2, 3, 4, 6, 7, 8].map(|id| format!("5_{id} of {id}")));
        assert!(Found::default().ask(&[1, 2], &mut |_| Err(Silence::Late)).is_err());
    }

    #[test]
    fn what_is_refused_of_one_job_or_too_long_is_of_this_one_alone() {
        let mut found = Found::default();
        found.add(&[1, 2, 3], "1|1|\n2|2|by a site\n3|3|\n");
        found.too_long.insert(4);
        let mut jobs = [1, 2, 3, 4, 5].map(|id| (id, StoredJob::default()));
        let mut stored = Vec::new();
        let mut store = |name: &str, comment: &str| match name {
            "3" => Err("refused".to_owned()),
            _ => {
                stored.push(format!("{name} {}", comment.get(..4).unwrap_or_default()));
                Ok(())
            }
        };
        let results = jobs.each_mut().map(|(id, job)| job.bring(*id, "n1", &mut found, &mut store).is_ok());
        assert_eq!(results, [true, true, false, true, true]);
        let given_up = jobs.each_ref().map(|(_, job)| job.is_given_up);
        assert_eq!(given_up, [false, true, false, true, false]);
        assert_eq!(jobs[4].1.misses, 1);
        // It is there, but another node could still overwrite it.
        jobs[0].1.bring(1, "n1", &mut found, &mut store).unwrap();
        assert_eq!(jobs[0].1.seen, 0);
        // Another node's part is added, and overwrites nothing.
        StoredJob::default().bring(1, "n2", &mut found, &mut store).unwrap();
        assert_eq!(Summary::of_comment(&found.jobs[&1].comment).unwrap().nodes().count(), 2);
        assert_eq!(stored, ["1 JS1:", "1 JS1:"]);
    }

    #[test]
    fn steps_of_a_job_are_added_up() {
        let mut store = Store::default();
        let line = |job: &str, holder: &str, cpu: f64, peak: u64| {
            format!(
                "{{\"schema\":\"{SCHEMA}\",\"holder\":\"{holder}\",\"job\":\"{job}\",\"node\":\"n1\",\
                 \"ended\":\"2026-11-25T03:00:10Z\",\"wall_seconds\":9.5,\"cpu_seconds\":{cpu},\"cpus_limit\":1.5,\
                 \"memory_limit_bytes\":100,\"memory_peak_bytes\":{peak},\"job_memory_peak_bytes\":null}}"
            )
        };
        for text in [
            line("7", HOLDER, 1.5, 40),
            line("7", HOLDER, 2.0, 30),
            line("8", "manual", 2.0, 30),
            line("x", HOLDER, 2.0, 30),
            // As the janitor writes it.
            line("7", HOLDER, 0.5, 20).replace("\"n1\"", "\"n1.cluster\",\"end\":\"reaped\""),
            "{\"schema\":".to_owned(),
        ] {
            store.add(&text);
        }
        assert_eq!(store.jobs.keys().cloned().collect::<Vec<_>>(), [(7, "n1".to_owned())]);
        let job = store.jobs.values().next().unwrap();
        let part = NodePart { cpus: Some(2), memory: Some(100), memory_peak: Some(40), cpu_seconds: 4.0 };
        assert_eq!((&job.part, job.ended - job.began.unwrap()), (&part, 10));
    }
}
