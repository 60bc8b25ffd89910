// SPDX-License-Identifier: GPL-2.0-or-later
//! Which runs of batch jobs failed after a kill at the job's memory limit, from the lines of the usage log.
//!
//! The batch script decides: a job whose script succeeds has not failed, whatever was killed in it. The kill may be of one of the script's
//! own processes, or of one in another step of the job on this node. The lines of both come in any order, since a step daemon writes its own
//! when it has tidied up.

use std::collections::BTreeMap;

use jobfence::policy::Level;
use jobfence::report::account::{Exit, REAPED, SCHEMA};
use serde_json::{Value, json};

use crate::logged::LoggedStep;
use crate::moment::seconds_of;

/// The step of a batch script.
const BATCH: &str = "batch";
/// The step without tasks: what it has is no work of the job's.
const EXTERN: &str = "extern";

/// How long after a script's end lines of its other steps are expected, in seconds.
const LATE: u64 = 600;
/// How long a kill is remembered whose job runs on, in seconds.
const REMEMBERED: u64 = 30 * 86_400;
/// The most jobs of which something is remembered. Then all that is oldest is forgotten.
const MOST: usize = 10_000;

/// A run of a batch job that failed after a process of the job was killed at the job's memory limit.
#[derive(Debug, Clone)]
pub struct KilledRun {
    /// The line of its batch script.
    pub line: LoggedStep,
    /// The scheduler's number of the job.
    pub job: String,
    /// Its user.
    pub uid: u32,
    /// When its script began, in seconds since 1970.
    pub began: u64,
    /// When it ended, likewise.
    pub ended: u64,
    /// How often the scheduler had restarted the job, once that was asked: from then on, this tells its runs apart.
    pub restarts: Option<u32>,
}

impl KilledRun {
    /// From the line of its batch script. `None`: another release has written it.
    pub fn of(line: LoggedStep) -> Option<Self> {
        Some(Self {
            job: line.job.clone()?,
            uid: u32::try_from(line.uid?).ok()?,
            began: began(&line)?,
            restarts: None,
            ended: seconds_of(line.ended.as_deref()?)?,
            line,
        })
    }

    /// What it was granted on this node, in bytes.
    pub fn granted(&self) -> Option<u64> {
        self.line.memory_granted_bytes
    }

    /// How many CPUs it had on this node, at least one.
    pub fn cpus(&self) -> u64 {
        self.line.cpus_granted.map_or(1, |cpus| cpus.thousandths().div_ceil(1000).max(1))
    }
}

/// A run of which one line is known.
#[derive(Debug, Clone)]
enum PartOfRun {
    /// A process of another step was killed. When that step ended.
    Kill(u64),
    /// The script has failed, and no kill is known yet.
    Script(Box<LoggedStep>),
}

/// What is known of runs of which not all is known, by node and job.
#[derive(Debug, Default)]
pub struct PartsOfRuns(BTreeMap<(String, String), PartOfRun>);

impl PartsOfRuns {
    /// Adds a line of this holder's.
    pub fn add(&mut self, line: LoggedStep, holder: &str) -> Option<KilledRun> {
        let is_ours = line.schema.as_deref() == Some(SCHEMA)
            && line.holder.as_deref() == Some(holder)
            && line.end.as_deref() != Some(REAPED);
        let (step, job) = (line.step.clone()?, line.job.clone()?);
        let ended = seconds_of(line.ended.as_deref()?).filter(|_| is_ours)?;
        self.forget(ended);
        let key = (line.node.clone().unwrap_or_default(), job);
        let was_killed = line.sentences.iter().any(|sentence| is_at_limit_of_job(sentence));
        if step == BATCH {
            let kill = match self.0.remove(&key) {
                Some(PartOfRun::Kill(ended)) => Some(ended),
                _ => None,
            };
            // A kill from before is of another run.
            let was_killed = was_killed || kill.is_some_and(|ended| ended >= began(&line).unwrap_or(u64::MAX));
            if line.exit.is_none_or(Exit::is_success) {
                return None;
            }
            if was_killed {
                return KilledRun::of(line);
            }
            self.0.insert(key, PartOfRun::Script(Box::new(line)));
        } else if was_killed && step != EXTERN {
            match self.0.remove(&key) {
                Some(PartOfRun::Script(script)) if began(&script) <= began(&line) => return KilledRun::of(*script),
                _ => {}
            }
            self.0.insert(key, PartOfRun::Kill(ended));
        }
        None
    }

    /// Forgets what nothing more is expected of.
    fn forget(&mut self, now: u64) {
        self.0.retain(|_, part| match part {
            PartOfRun::Kill(ended) => ended.saturating_add(REMEMBERED) > now,
            PartOfRun::Script(line) => {
                line.ended.as_deref().and_then(seconds_of).is_some_and(|ended| ended.saturating_add(LATE) > now)
            }
        });
        if self.0.len() >= MOST {
            self.0.clear();
        }
    }

    pub fn json(&self) -> Value {
        let part = |((node, job), part): (&(String, String), &PartOfRun)| match part {
            PartOfRun::Kill(ended) => json!([node, job, ended]),
            PartOfRun::Script(line) => json!([node, job, line.json]),
        };
        self.0.iter().map(part).collect()
    }

    /// What `json` wrote. What is not understood is not known.
    pub fn of_json(value: &Value) -> Self {
        let part = |one: &Value| {
            let text = |at: usize| Some(one.get(at)?.as_str()?.to_owned());
            let part = match one.get(2)? {
                Value::Object(_) => PartOfRun::Script(Box::new(LoggedStep::new(one.get(2)?.clone()))),
                ended => PartOfRun::Kill(ended.as_u64()?),
            };
            Some(((text(0)?, text(1)?), part))
        };
        Self(value.as_array().into_iter().flatten().filter_map(part).collect())
    }
}

/// When a step began, in seconds since 1970.
fn began(line: &LoggedStep) -> Option<u64> {
    line.started_unix_seconds.map(|began| began.as_secs())
}

/// Whether `report::out_of_memory` has said this of a limit that more memory for the job raises. The name of a process has at most 15
/// characters, so none can say it.
fn is_at_limit_of_job(sentence: &str) -> bool {
    [Level::Job, Level::Step].iter().any(|level| sentence.contains(&format!(": the {level} reached its memory limit")))
}

#[cfg(test)]
mod tests {
    use jobfence::cgroup::events::OomKill;
    use jobfence::fence::MemoryLevel;
    use jobfence::job::{Id, JobKey};
    use jobfence::report::out_of_memory;

    use super::*;

    const KILLED: &str =
        "job 5 step batch: process 7 (x) was killed: the job reached its memory limit of 1.0 MiB. Ask for more.";

    fn line(step: &str, (began, ended): (u64, u64), status: Option<i32>, sentence: &str) -> LoggedStep {
        let utc =
            |seconds| jobfence::report::account::utc(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        LoggedStep::new(json!({
            "schema": SCHEMA, "holder": "h", "node": "n1", "job": "5", "uid": 7, "step": step, "end": "closed",
            "started_unix_seconds": began as f64, "ended": utc(ended), "exit_status": status, "sentences": [sentence],
        }))
    }

    fn found(lines: &[LoggedStep]) -> Vec<u64> {
        let mut parts = PartsOfRuns::default();
        let mut runs = Vec::new();
        for line in lines {
            runs.extend(parts.add(line.clone(), "h").map(|run| run.began));
            // As after a restart of `jobfence hold`.
            parts = PartsOfRuns::of_json(&parts.json());
        }
        runs
    }

    #[test]
    fn the_script_decides_and_any_step_may_have_been_killed() {
        let script = |status, sentence| line("batch", (1000, 1100), status, sentence);
        let step = |sentence| line("0", (1010, 1090), Some(1), sentence);
        assert_eq!(found(&[script(Some(137), KILLED)]), [1000]);
        // The lines come in any order.
        assert_eq!(found(&[step(KILLED), script(Some(1), "")]), [1000]);
        assert_eq!(found(&[script(Some(1), ""), step(KILLED)]), [1000]);
        assert_eq!(found(&[step(KILLED), script(Some(1), KILLED), step(KILLED)]), [1000]);
        for lines in [
            // The script went on, and succeeded.
            vec![script(Some(0), KILLED)],
            vec![step(KILLED), script(Some(0), "")],
            vec![script(Some(0), ""), step(KILLED)],
            // How it ended is not known.
            vec![script(None, KILLED)],
            // It failed for another reason.
            vec![script(Some(1), "")],
            vec![step(""), script(Some(1), "")],
            // Who is adopted is not the job.
            vec![line("extern", (1000, 1100), None, KILLED), script(Some(1), "")],
            // The kill was in the run before, or comes in the next one.
            vec![line("0", (900, 950), Some(1), KILLED), script(Some(1), "")],
            vec![script(Some(1), ""), line("0", (900, 1150), Some(1), KILLED)],
            vec![script(Some(1), ""), line("0", (1900, 1950), Some(1), KILLED)],
        ] {
            assert!(found(&lines).is_empty(), "{lines:?}");
        }
    }

    #[test]
    fn only_whole_lines_of_the_holder_count() {
        let with = |member: &str, value: Value| {
            let mut json = line("batch", (1000, 1100), Some(137), KILLED).json;
            json[member] = value;
            found(&[LoggedStep::new(json)]).len()
        };
        assert_eq!(with("user", "u".into()), 1);
        for (member, value) in [
            ("schema", "jobfence-usage-2".into()),
            ("holder", "manual".into()),
            ("end", REAPED.into()),
            ("started_unix_seconds", Value::Null),
            ("uid", Value::Null),
            ("ended", "x".into()),
        ] {
            assert_eq!(with(member, value), 0, "{member}");
        }
    }

    #[test]
    fn only_the_limits_that_more_memory_raises_count() {
        let key = JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("batch").unwrap() };
        let kill = |at: Option<&str>, full: Option<&str>| OomKill {
            limit_at: at.map(str::to_owned),
            full: full.map(str::to_owned),
            task_in: String::new(),
            name: "reached its mem".into(),
            pid: 7,
            cached: None,
            huge: None,
        };
        let said = |kill: &OomKill, whose| {
            let level = MemoryLevel { path: "/j".into(), whose, limit: Some(1 << 20), peak: Some(1 << 20) };
            out_of_memory(&key, Some(kill), &[level], Some("--mem"))
        };
        let of = |kill: &OomKill, whose| is_at_limit_of_job(&said(kill, whose));
        let here = kill(Some("/j"), None);
        assert!(of(&here, Level::Job) && of(&here, Level::Step));
        assert!(!of(&here, Level::User) && !of(&here, Level::Task), "all jobs of the user, or one task");
        for other in [kill(None, None), kill(None, Some("1")), kill(Some("/j/task_0"), None), kill(Some("/j/x"), None)]
        {
            assert!(!of(&other, Level::Job) || other.limit_at.is_none() && of(&other, Level::Job), "{other:?}");
            assert!(!of(&other, Level::Step), "{}", said(&other, Level::Step));
        }
    }

    #[test]
    fn what_nothing_is_expected_of_is_forgotten() {
        let mut parts = PartsOfRuns::default();
        let script = line("batch", (1000, 1100), Some(1), "");
        parts.add(script, "h");
        assert_eq!(parts.0.len(), 1);
        parts.add(line("batch", (1000, 1100 + LATE), Some(0), ""), "h");
        assert_eq!(parts.0.len(), 0);
    }
}
