// SPDX-License-Identifier: GPL-2.0-or-later
//! What the usage log of this host has about jobs, and what of it is stored: also across a restart, in a file beside the log.
//!
//! The file is in the log's directory, where only root can write, and not below RunDir: it has to outlive a reboot, as the log does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use jobfence::report::account::{REAPED, SCHEMA};
use jobfence::report::usage_log::UsageLog;
use jobfence::schedulers::slurm::HOLDER;
use nix::unistd::{getegid, geteuid};
use serde_json::{Value, json};

use super::record::RunRecord;
use crate::followed;
use crate::logged::LoggedStep;
use crate::moment::seconds_of;
use crate::report::accounting::NodePart;
use crate::whole::{self, Ownership};

/// The version of the file's format. Another one is not read: then the whole log is.
const VERSION: u64 = 1;

/// The longest file that is read.
const LONGEST: u64 = 64 << 20;

/// The most jobs that are remembered. Then the oldest are forgotten.
const MOST_JOBS: usize = 50_000;

/// How many stretches of a job are kept apart.
const MOST_STRETCHES: usize = 64;

/// How long a job that is done is remembered after its last step, in seconds: a late step is added to the others.
const REMEMBERED: u64 = 3600;

/// How old a job can be that is still stored, in seconds before the newest one.
const TOO_OLD: u64 = 30 * 86_400;

/// Steps of a job that ran at the same time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stretch {
    /// In seconds since 1970.
    pub began: u64,
    pub ended: u64,
    pub part: NodePart,
}

/// What a node knows about a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownJob {
    /// In order. Those of two runs are never one.
    pub stretches: Vec<Stretch>,
    /// The end of its last step, in seconds since 1970.
    pub ended: u64,
    /// Whose it is, if its lines say so.
    pub uid: Option<u64>,
    /// Whether the job itself has ended here, as far as its steps tell.
    pub is_over: bool,
    /// Whether nothing is to be done until another step comes.
    pub is_done: bool,
    /// When it comes next. `None`: that is still to be chosen.
    pub due: Option<Instant>,
    /// When it was written.
    pub written: Option<Instant>,
    /// How often it could not be stored yet.
    pub tries: u32,
    /// Whether its turn among many nodes was chosen.
    pub has_turn: bool,
}

impl KnownJob {
    /// What the run with this record used here. `None`: it had no step here.
    pub fn part(&self, record: &RunRecord) -> Option<NodePart> {
        let mut of_run = self.stretches.iter().filter(|stretch| record.has(stretch.began)).map(|stretch| &stretch.part);
        let first = of_run.next()?.clone();
        Some(of_run.fold(first, |mut all, part| {
            all.add(part);
            all
        }))
    }

    fn add(&mut self, mut new: Stretch) {
        // All that overlap with it become one.
        self.stretches.retain(|old| {
            let overlap = old.began < new.ended && new.began < old.ended;
            if overlap {
                new.began = new.began.min(old.began);
                new.ended = new.ended.max(old.ended);
                new.part.add(&old.part);
            }
            !overlap
        });
        let at = self.stretches.partition_point(|old| old.began <= new.began);
        self.stretches.insert(at, new);
        if self.stretches.len() > MOST_STRETCHES {
            // Two runs are further apart than two steps.
            let gap = |pair: &[Stretch]| match pair {
                [one, other] => other.began.saturating_sub(one.ended),
                _ => u64::MAX,
            };
            let narrowest = self.stretches.windows(2).enumerate().min_by_key(|(_, pair)| gap(pair)).map(|(at, _)| at);
            if let Some(at) = narrowest {
                let second = self.stretches.remove(at + 1);
                if let Some(first) = self.stretches.get_mut(at) {
                    first.ended = first.ended.max(second.ended);
                    first.part.add(&second.part);
                }
            }
        }
    }
}

/// What has been read so far, and what of it is stored.
#[derive(Debug, Default)]
pub struct KnownJobs {
    /// The file that is being read, and the offset in it.
    read: Option<(u64, u64)>,
    /// The jobs by number and node: several slurmd of a host share a log.
    pub jobs: BTreeMap<(u32, String), KnownJob>,
    /// Whether the file is older than this.
    pub is_changed: bool,
}

impl KnownJobs {
    /// What was known before a restart. Nothing, if that cannot be read: then the whole log is read again.
    pub fn load(usage_log: &UsageLog<'_>) -> Self {
        let mut text = String::new();
        let read = File::open(place(usage_log)).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        let known = read.ok().and_then(|_| Self::from_json(&serde_json::from_str(&text).ok()?));
        known.unwrap_or_default()
    }

    /// Writes it down, if it has changed.
    pub fn save(&mut self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        if self.is_changed {
            let text = self.json().to_string();
            let ours = Ownership { mode: 0o600, uid: geteuid().as_raw(), gid: getegid().as_raw() };
            whole::replace_durably(&place(usage_log), text.as_bytes(), ours)
                .map_err(|error| format!("what is stored is asked again after a restart: {error}"))?;
            self.is_changed = false;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let stretch = |one: &Stretch| json!([one.began, one.ended, one.part.entry()]);
        let job = |((id, node), job): (&(u32, String), &KnownJob)| {
            let stretches: Vec<Value> = job.stretches.iter().map(stretch).collect();
            json!([id, node, job.ended, job.is_over, job.is_done, stretches, job.uid])
        };
        json!({"version": VERSION, "read": self.read, "jobs": self.jobs.iter().map(job).collect::<Vec<_>>()})
    }

    fn from_json(json: &Value) -> Option<Self> {
        let stretch = |one: &Value| {
            let number = |at| one.get(at)?.as_u64();
            Some(Stretch { began: number(0)?, ended: number(1)?, part: NodePart::from_entry(one.get(2)?) })
        };
        let job = |one: &Value| {
            let key = (u32::try_from(one.get(0)?.as_u64()?).ok()?, one.get(1)?.as_str()?.to_owned());
            let known = KnownJob {
                ended: one.get(2)?.as_u64()?,
                is_over: one.get(3)?.as_bool()?,
                is_done: one.get(4)?.as_bool()?,
                stretches: one.get(5)?.as_array()?.iter().map(stretch).collect::<Option<_>>()?,
                // Earlier releases wrote none.
                uid: one.get(6).and_then(Value::as_u64),
                ..KnownJob::default()
            };
            Some((key, known))
        };
        if json.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let read = json.get("read")?;
        let jobs = json.get("jobs")?.as_array()?.iter().map(job).collect::<Option<_>>()?;
        Some(Self { read: Some((read.get(0)?.as_u64()?, read.get(1)?.as_u64()?)), jobs, is_changed: false })
    }

    /// Reads new lines.
    pub fn read_on(&mut self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        if let Some(read) = self.read
            && !followed::is_there(usage_log, read)?
        {
            // The file is gone. What was read of the others is unknown, so all comes again, and is compared with what is stored.
            *self = Self::default();
        }
        let before = self.read;
        let mut place = before;
        let read = followed::read_on(usage_log, &mut place, &mut |line| self.add(line));
        self.is_changed |= before != place;
        self.read = place;
        read?;
        self.forget();
        Ok(())
    }

    /// Adds a step to its job. A line that is not understood is not jobfence's.
    pub(super) fn add(&mut self, line: &str) {
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
        let is_reaped = step.end.as_deref() == Some(REAPED);
        // The janitor knows only the host's name. By default Slurm names the node by that, up to the first dot.
        if is_reaped {
            node = node.split('.').next().unwrap_or_default();
        }
        let wall = step.wall_seconds.unwrap_or_default();
        // Whole seconds are as exact as the controller's own.
        let began = ended.saturating_sub(wall.as_secs() + u64::from(wall.subsec_nanos() > 0));
        let job = self.jobs.entry((id, node.to_owned())).or_default();
        // Job numbers start again at some point: an old job is unrelated to a new one.
        if began > job.ended + 7 * 86_400 {
            *job = KnownJob::default();
        }
        let cpus = step.cpus_granted.or(step.cpus_limit);
        let part = NodePart {
            cpus: cpus.map(|cpus| cpus.thousandths().div_ceil(1000)),
            memory: step.memory_granted_bytes.or(step.memory_limit_bytes),
            memory_peak: step.job_memory_peak_bytes.max(step.usage.memory_peak),
            // The extern step's own processes only wait.
            cpu_seconds: match (step.usage.cpu, step.step.as_deref()) {
                (None, Some("extern")) => Some(0.0),
                (cpu, _) => cpu.map(|cpu| cpu.as_secs_f64()),
            },
            ..NodePart::default()
        };
        // The janitor may come when the job's next run has begun, and says nothing of the step's end.
        job.add(Stretch { began, ended: if is_reaped { began } else { ended }, part });
        job.ended = job.ended.max(ended);
        job.uid = step.uid.or(job.uid);
        // Steps by numbers end while their job runs on.
        job.is_over |= is_reaped || step.step.as_ref().is_none_or(|step| step.parse::<u32>().is_err());
        (job.is_done, job.due, job.tries) = (false, None, 0);
    }

    /// Forgets what is stored once no late step is expected, and what is too old or too much.
    fn forget(&mut self) {
        // A clock that was wrong must not make all other jobs old.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let newest = self.jobs.values().map(|job| job.ended).filter(|ended| *ended <= now).max().unwrap_or_default();
        let before = self.jobs.len();
        self.jobs.retain(|_, job| job.ended + if job.is_done { REMEMBERED } else { TOO_OLD } > newest);
        if self.jobs.len() > MOST_JOBS {
            let mut ends: Vec<u64> = self.jobs.values().map(|job| job.ended).collect();
            ends.sort_unstable();
            let from = ends.len().checked_sub(MOST_JOBS).and_then(|at| ends.get(at)).copied().unwrap_or_default();
            log::warn!("more than {MOST_JOBS} jobs wait to be stored with Slurm: the oldest are not stored any more");
            self.jobs.retain(|_, job| job.ended >= from);
        }
        self.is_changed |= self.jobs.len() != before;
    }
}

/// The file, beside the log.
fn place(usage_log: &UsageLog<'_>) -> PathBuf {
    let name = usage_log.path().file_name().unwrap_or_default();
    usage_log.path().with_file_name(Path::new(&format!(".{}.stored", name.display())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jobfence::config::Config;

    use super::*;

    fn line(job: u32) -> String {
        format!(
            "{{\"schema\":\"{SCHEMA}\",\"holder\":\"{HOLDER}\",\"job\":\"{job}\",\"node\":\"n1\",\"step\":\"batch\",\"uid\":1000,\
             \"ended\":\"2026-11-25T03:00:10Z\",\"wall_seconds\":9.5,\"cpu_seconds\":1.5,\"cpus_limit\":2}}\n"
        )
    }

    #[test]
    fn what_is_known_outlives_a_restart_and_the_log_goes_on_in_another_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("usage.jsonl");
        let config = Config { usage_log: Some(path.clone()), ..Config::default() };
        let usage_log = UsageLog::from_config(&config).unwrap();
        let ids = |known: &KnownJobs| known.jobs.keys().map(|(id, _)| *id).collect::<Vec<_>>();
        fs::write(&path, line(1) + &line(2) + "{\"half").unwrap();
        let mut known = KnownJobs::load(&usage_log);
        known.read_on(&usage_log).unwrap();
        assert_eq!(ids(&known), [1, 2]);
        known.jobs.get_mut(&(1, "n1".to_owned())).unwrap().is_done = true;
        known.save(&usage_log).unwrap();

        let mut again = KnownJobs::load(&usage_log);
        assert_eq!((&again.jobs, again.read), (&known.jobs, known.read));
        again.read_on(&usage_log).unwrap();
        assert!(again.jobs == known.jobs && !again.is_changed);
        // The log is set aside, and the next file has another line.
        fs::write(&path, line(1) + &line(2) + &line(3)).unwrap();
        fs::rename(&path, temp.path().join("usage.jsonl-20261125T030011Z")).unwrap();
        fs::write(&path, line(4)).unwrap();
        again.read_on(&usage_log).unwrap();
        assert_eq!(ids(&again), [1, 2, 3, 4]);
        assert!(again.jobs[&(1, "n1".to_owned())].is_done && again.is_changed);
        again.save(&usage_log).unwrap();
        assert!(!again.is_changed);
        // If the file that was read is gone, or what is known cannot be read, all of the log comes again.
        fs::rename(&path, temp.path().join("elsewhere")).unwrap();
        fs::write(&path, line(6)).unwrap();
        again.read_on(&usage_log).unwrap();
        assert_eq!(ids(&again), [1, 2, 3, 6]);
        assert!(!again.jobs[&(1, "n1".to_owned())].is_done);
        for text in ["", "{\"version\":2,\"read\":[1,2],\"jobs\":[]}", "{\"version\":1,\"read\":[1,2],\"jobs\":[[1]]}"]
        {
            fs::write(place(&usage_log), text).unwrap();
            assert_eq!(KnownJobs::load(&usage_log).read, None, "{text}");
        }
    }

    #[test]
    fn what_is_stored_is_forgotten_and_what_is_not_stays_longer() {
        let mut known = KnownJobs::default();
        let ended = 100 * 86_400;
        for (id, ago, is_done) in [(1, 0, true), (2, 3600, true), (3, 3600, false), (4, 30 * 86_400, false)] {
            known.jobs.insert((id, String::new()), KnownJob { ended: ended - ago, is_done, ..KnownJob::default() });
        }
        known.forget();
        assert_eq!(known.jobs.keys().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
        // One that ended by a clock that was wrong makes no other old.
        known.jobs.insert((5, String::new()), KnownJob { ended: u64::from(u32::MAX), ..KnownJob::default() });
        known.forget();
        assert_eq!(known.jobs.keys().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn a_line_that_is_no_text_or_too_long_is_passed_over() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("usage.jsonl");
        let config = Config { usage_log: Some(path.clone()), ..Config::default() };
        let usage_log = UsageLog::from_config(&config).unwrap();
        let long = "x".repeat(3 << 20) + "\n";
        let all = [line(1).as_bytes(), b"{\"job\":\"\xff\xfe\n", long.as_bytes(), line(2).as_bytes()].concat();
        fs::write(&path, &all).unwrap();
        let mut known = KnownJobs::default();
        known.read_on(&usage_log).unwrap();
        assert_eq!(known.jobs.keys().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(known.read.map(|(_, at)| at), Some(all.len() as u64));
    }
}
