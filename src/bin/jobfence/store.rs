// SPDX-License-Identifier: GPL-2.0-or-later
//! `StoreUsage=admincomment`: what jobs of Slurm's have used is put into their records in Slurm's database, by `jobfence hold`.
//!
//! It is read from the usage log, and each node adds its own part. Two nodes may write at the same moment, and then one part is lost:
//! so each looks again the next time, until its part was seen twice. The controller takes no comment of a job that has ended, so
//! slurmdbd is asked and told.

pub mod summary;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use jobfence::config::{Config, StoreUsage};
use jobfence::report::account::SCHEMA;
use jobfence::report::usage_log::UsageLog;
use jobfence::scheduler::slurm::HOLDER;

use crate::moment::seconds_of;
use crate::slurm_job::{CommandFailure, run_until};
use summary::{NodePart, Summary};

/// So many jobs are written each time; the others have to wait.
const EACH_TIME: usize = 50;

/// How long one command of Slurm's may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long all of them together may keep the janitor from its work.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(20);

/// So often slurmdbd may not know a job: it hears of a new one within moments.
const MISSES: u8 = 30;

/// No comment is longer: 1,000 nodes have about 30 KiB.
const LONGEST: usize = 60_000;

/// What a node knows of a job.
#[derive(Debug, Default)]
struct StoredJob {
    part: NodePart,
    /// From the first step's beginning to the last one's end, in seconds since 1970.
    began: Option<u64>,
    ended: u64,
    /// So often it was seen that this is stored.
    seen: u8,
    /// So often slurmdbd did not know the job.
    misses: u8,
    /// Nothing more is to be tried.
    is_given_up: bool,
}

impl StoredJob {
    fn is_done(&self) -> bool {
        self.seen >= 2 || self.is_given_up
    }
}

/// What was read so far, and what of it is stored.
#[derive(Debug, Default)]
pub struct Store {
    /// The file that is read, and how far.
    read: Option<(u64, u64)>,
    /// By number and node: several slurmd of a host share a log.
    jobs: BTreeMap<(u32, String), StoredJob>,
    /// Whether Slurm's commands here have been found to be able to.
    can_store: bool,
    /// What went wrong is said once.
    said: Option<String>,
}

impl Store {
    /// Reads what has come since, and stores what is not stored yet.
    pub fn look(&mut self, config: &Config) {
        let (Some(usage_log), StoreUsage::AdminComment) = (UsageLog::of(config), config.store_usage) else {
            *self = Self::default();
            return;
        };
        let done = self.read_on(&usage_log).and_then(|()| self.write(Instant::now() + PATIENCE_TOGETHER));
        match done {
            Ok(()) => self.said = None,
            Err(error) if self.said.as_ref() == Some(&error) => {}
            Err(error) => {
                log::error!("what jobs have used cannot be stored with Slurm: {error}");
                self.said = Some(error);
            }
        }
    }

    fn read_on(&mut self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        let files = usage_log.files().map_err(|error| error.to_string())?;
        let before = self.read;
        let inode = |path: &std::path::PathBuf| fs::metadata(path).map(|found| found.ino()).ok();
        // All of it at first; then the file that was read before, and what is newer.
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
                    // It is still being written, or was cut short.
                    Ok(_) if !line.ends_with('\n') => break,
                    Ok(length) => at += u64::try_from(length).unwrap_or_default(),
                }
                self.add(&line);
            }
            self.read = Some((ino, at));
        }
        Ok(())
    }

    /// Adds a step to its job. What is not understood is none of ours.
    fn add(&mut self, line: &str) {
        let Ok(step) = serde_json::from_str::<serde_json::Value>(line) else { return };
        let text = |name: &str| step.get(name).and_then(serde_json::Value::as_str);
        let number = |name: &str| step.get(name).and_then(serde_json::Value::as_u64);
        let decimal = |name: &str| step.get(name).and_then(serde_json::Value::as_f64);
        let is_ours = text("schema") == Some(SCHEMA) && text("holder") == Some(HOLDER);
        let (Some(id), Some(ended)) = (text("job").and_then(|id| id.parse().ok()), text("ended").and_then(seconds_of))
        else {
            return;
        };
        if !is_ours {
            return;
        }
        let node = text("node").unwrap_or_default();
        // The janitor knows the host's name alone. By default Slurm calls the node so, up to the first dot.
        let node =
            if text("end") == Some("reaped") { node.split('.').next().unwrap_or_default() } else { node }.to_owned();
        let wall = decimal("wall_seconds").unwrap_or_default();
        // Whole seconds are as exact as the controller's own.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a job's seconds fit")]
        let began = ended.saturating_sub(wall.max(0.0).ceil() as u64);
        let job = self.jobs.entry((id, node)).or_default();
        // Numbers begin again some day: an old job has nothing to do with a new one.
        if began > job.ended + 7 * 86_400 {
            *job = StoredJob::default();
        }
        job.part.cpu_seconds += decimal("cpu_seconds").unwrap_or_default();
        let most = |one: Option<u64>, other: Option<u64>| one.max(other);
        job.part.memory_peak =
            [number("job_memory_peak_bytes"), number("memory_peak_bytes")].into_iter().fold(job.part.memory_peak, most);
        job.part.memory = job.part.memory.max(number("memory_granted_bytes").or_else(|| number("memory_limit_bytes")));
        let cpus = decimal("cpus_granted").or_else(|| decimal("cpus_limit"));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 65536 CPUs")]
        let cpus = cpus.map(|cpus| cpus.ceil() as u64);
        job.part.cpus = job.part.cpus.max(cpus);
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
        let mut left = EACH_TIME;
        for ((id, node), job) in self.jobs.iter_mut().filter(|(_, job)| !job.is_done()) {
            if left == 0 || Instant::now() >= deadline {
                break;
            }
            left -= 1;
            let Some(Stored { name, comment: before }) = stored(*id)? else {
                job.misses += 1;
                job.is_given_up = job.misses > MISSES;
                continue;
            };
            let Some(mut summary) = Summary::of_comment(&before) else {
                log::info!("job {id}: its AdminComment has another text, which stays");
                job.is_given_up = true;
                continue;
            };
            let elapsed = job.ended.saturating_sub(job.began.unwrap_or(job.ended));
            if !summary.put(node, &job.part, elapsed) {
                job.seen += 1;
                continue;
            }
            let comment = summary.comment()?;
            if comment.len() > LONGEST {
                log::info!("job {id}: what its nodes have used is too long for an AdminComment");
                job.is_given_up = true;
                continue;
            }
            job.seen = 0;
            store(&name, &comment)?;
        }
        // What is stored is of no more use once the log has forgotten it, too.
        let newest = self.jobs.values().map(|job| job.ended).max().unwrap_or_default();
        self.jobs.retain(|_, job| job.ended + 30 * 86_400 > newest);
        Ok(())
    }
}

/// A job as slurmdbd knows it.
struct Stored {
    /// Its name for sacctmgr: the number of an array's last job is the number of the whole array, too.
    name: String,
    comment: String,
}

/// What slurmdbd has of a job. `None`: it does not know the job yet.
fn stored(id: u32) -> Result<Option<Stored>, String> {
    let id = id.to_string();
    // The comment is the last: it can have any text.
    let fields = "--format=JobIDRaw,JobID,AdminComment";
    let arguments = ["--noheader", "--parsable2", "--allocations", "--jobs", &id, fields];
    let said = asked("sacct", &arguments)?;
    let found = said.lines().find_map(|line| line.strip_prefix(&id)?.strip_prefix('|')?.split_once('|'));
    Ok(found.map(|(name, comment)| Stored { name: name.to_owned(), comment: comment.trim().to_owned() }))
}

/// Why the commands of Slurm's that are here cannot store anything.
pub fn can_store() -> Result<(), String> {
    check_release(&asked("sacctmgr", &["--version"])?)
}

/// What 'sacctmgr --version' says, `slurm 24.11.5`, or `slurm-wlm` of Debian: up to 22.05 it makes every comment lower case (`_set_rec` in
/// src/sacctmgr/job_functions.c), and such a summary cannot be read again.
fn check_release(said: &str) -> Result<(), String> {
    let mut numbers = said.split_whitespace().next_back().unwrap_or_default().split(['.', '-']);
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (number(), number()) {
        (Some(year), Some(month)) if (year, month) >= (23, 2) => Ok(()),
        _ => Err(format!("StoreUsage=admincomment needs Slurm 23.02 or later, and this is {}", said.trim())),
    }
}

/// What the database has of a job, by its number, or as `12_3` of an array. `None`: nothing of ours.
pub fn summary_of(job: &str) -> Option<Summary> {
    let is_number = !job.is_empty() && job.chars().all(|c| c.is_ascii_digit() || "_+".contains(c));
    let arguments = ["--noheader", "--parsable2", "--allocations", "--jobs", job, "--format=AdminComment"];
    let said = is_number.then(|| asked("sacct", &arguments))?;
    let said = said.inspect_err(|error| log::debug!("Slurm's accounting says nothing: {error}")).ok()?;
    Summary::of_comment(said.lines().next()?.trim()).filter(|summary| summary.nodes().next().is_some())
}

fn store(name: &str, comment: &str) -> Result<(), String> {
    let (job, set) = (format!("jobid={name}"), format!("AdminComment={comment}"));
    asked("sacctmgr", &["--immediate", "modify", "job", "where", &job, "set", &set]).map(drop)
}

fn asked(program: &str, arguments: &[&str]) -> Result<String, String> {
    run_until(program, arguments, Instant::now() + PATIENCE).map_err(|error| match error {
        CommandFailure::Answer(error) | CommandFailure::Start(error) => format!("{program}: {error}"),
    })
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
