// SPDX-License-Identifier: GPL-2.0-or-later
//! Which runs of batch jobs failed after a kill at the job's memory limit, or were ended for owners, from the lines of the usage log. Whether
//! the scheduler has ended any other run that failed, it alone knows.
//!
//! The batch script decides: a job whose script succeeds has not failed, whatever was killed in it. The kill may be of one of the script's
//! own processes, or of one in another step of the job on this node that has failed before the script ended. The lines of both come in any
//! order, since a step daemon writes its own when it has tidied up. No line says when a process was killed, so a script that survives a kill
//! and fails later for another reason is taken for one that fails by it.
//!
//! A run that was ended for owners of memory is found by its script's line alone: `jobfence hold` ends all processes of a job. Its mark on the
//! job's directory, which only root can write, is in the line.

use std::collections::BTreeMap;

use jobfence::policy::Level;
use jobfence::record::loan::REQUEUED;
use jobfence::report::account::{Exit, REAPED, SCHEMA};
use serde_json::{Value, json};

use crate::logged::LoggedStep;
use crate::moment::seconds_of;
use crate::table::printable;

/// The step of a batch script.
const BATCH: &str = "batch";
/// The step without tasks: no work of the job runs in it.
const EXTERN: &str = "extern";

/// How long after a script's end lines of its other steps are expected, in seconds.
const LATE: u64 = 600;
/// How long after the script a step may end and still be the reason why the script failed, in seconds: srun returns before the step daemon
/// has tidied up. A step that the end of the script ends takes longer: it has `KillWait`, 30 seconds by default.
const BEHIND: u64 = 10;
/// How long a kill is remembered while its job runs on, in seconds.
const REMEMBERED: u64 = 30 * 86_400;
/// The most jobs that are remembered. If there are more, all are forgotten.
const MOST: usize = 10_000;
/// The most killed steps of a job that are remembered.
const MOST_STEPS: usize = 100;
/// A member that is added to the script's line, if the step that made the script fail had less memory than the job.
const SMALLER: &str = "killed_step_is_smaller";

/// A run of a batch job that failed after a process of the job was killed at the job's memory limit, or that was ended for owners.
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
    /// When the script ended, likewise.
    pub ended: u64,
    /// How often the scheduler had restarted the job, as it said at the first look. The number tells this run from later ones.
    pub restarts: Option<u32>,
    /// Why it has ended.
    pub end: RunEnd,
}

/// Why a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// A process was killed at the job's memory limit.
    Memory,
    /// `jobfence hold` has ended it for owners of memory, and has told its user that it is requeued.
    Owners,
    /// Its script failed. Whether the scheduler has ended it is not known yet.
    Unknown,
    /// The scheduler has ended it at its time limit.
    TimeLimit,
    /// The scheduler has ended it for another job.
    Preemption,
}

/// The ends that no line of the log tells, as what is kept has them.
const ENDS: [(&str, RunEnd); 3] =
    [("unknown", RunEnd::Unknown), ("time limit", RunEnd::TimeLimit), ("preemption", RunEnd::Preemption)];

impl RunEnd {
    /// The word for an end that no line of the log tells.
    pub fn word(self) -> Option<&'static str> {
        ENDS.iter().find(|(_, end)| *end == self).map(|(word, _)| *word)
    }

    /// The reverse of `word`.
    pub fn from_word(word: &str) -> Option<Self> {
        ENDS.iter().find(|(of, _)| *of == word).map(|(_, end)| *end)
    }

    /// Whether the scheduler has ended it, or may have.
    pub fn is_of_scheduler(self) -> bool {
        self.word().is_some()
    }
}

impl KilledRun {
    /// Reads the line of a batch script. `None`: another release has written it.
    pub fn from_line(line: LoggedStep) -> Option<Self> {
        Some(Self {
            job: line.job.clone()?,
            uid: u32::try_from(line.uid?).ok()?,
            began: began(&line)?,
            restarts: None,
            end: if is_ended_for_owners(&line) { RunEnd::Owners } else { RunEnd::Memory },
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
        cpus_of(&self.line)
    }

    /// Says that nothing more is done for it.
    pub fn say_not_requeued(&self, job: &str, why: &str) {
        let why = printable(why);
        match self.end {
            RunEnd::Memory => log::warn!("{job} failed at its memory limit, and is not requeued: {why}"),
            RunEnd::Owners => log::warn!("{job} was ended for owners of memory, and is not requeued: {why}"),
            RunEnd::Unknown => log::warn!("{job} failed, and whether it is to be requeued is not known: {why}"),
            RunEnd::TimeLimit => log::warn!("{job} has reached its time limit, and is not requeued: {why}"),
            RunEnd::Preemption => log::warn!("{job} was preempted, and is not requeued: {why}"),
        }
    }

    /// Whether the killed step had less memory than the job, but as much for each CPU. Then more memory for each CPU raises the step's
    /// limit, and more memory on each node does not.
    pub fn is_killed_step_smaller(&self) -> bool {
        self.line.json.get(SMALLER).is_some()
    }
}

/// A step other than the script that failed after one of its processes was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KillOfStep {
    began: u64,
    ended: u64,
    /// Whether the limit of the job killed it, and not that of the step.
    is_at_job: bool,
    /// The memory that the step was granted on this node, in bytes.
    granted: Option<u64>,
    cpus: u64,
}

impl KillOfStep {
    fn from_line(line: &LoggedStep) -> Option<Self> {
        let is_at_job = line.sentences.iter().any(|sentence| is_at(Level::Job, sentence));
        let (granted, cpus) = (line.memory_granted_bytes, cpus_of(line));
        Some(Self { began: began(line)?, ended: seconds_of(line.ended.as_deref()?)?, is_at_job, granted, cpus })
    }

    /// The run, if this step made its script fail, and if more memory for the job raises the limit.
    fn has_ended(&self, script: &LoggedStep) -> Option<KilledRun> {
        let ended = seconds_of(script.ended.as_deref()?)?;
        if began(script)? > self.ended || began(script)? > self.began || self.ended > ended.saturating_add(BEHIND) {
            return None;
        }
        let mut script = script.clone();
        if !self.is_at_job && script.memory_granted_bytes? != self.granted? {
            let (all, of_step) = (u128::from(script.memory_granted_bytes?), u128::from(self.granted?));
            if all * u128::from(self.cpus) != of_step * u128::from(cpus_of(&script)) {
                return None;
            }
            script.json.as_object_mut()?.insert(SMALLER.to_owned(), true.into());
        }
        KilledRun::from_line(script)
    }
}

/// A run whose other line is still missing.
#[derive(Debug, Clone)]
enum PartOfRun {
    /// Processes of these steps were killed. The script's line is missing.
    Kills(Vec<KillOfStep>),
    /// The script has failed. No line with a kill was read yet.
    Script(Box<LoggedStep>),
}

/// The runs that have a line missing, by node and job.
#[derive(Debug, Default)]
pub struct PartsOfRuns(BTreeMap<(String, String), PartOfRun>);

impl PartsOfRuns {
    /// Adds a line of this holder's. `any_end`: a run that failed is wanted, too, if nothing here says why.
    pub fn add(&mut self, line: LoggedStep, holder: &str, any_end: bool) -> Option<KilledRun> {
        let is_ours = line.schema.as_deref() == Some(SCHEMA)
            && line.holder.as_deref() == Some(holder)
            && line.end.as_deref() != Some(REAPED);
        let (step, job) = (line.step.clone()?, line.job.clone()?);
        let ended = seconds_of(line.ended.as_deref()?).filter(|_| is_ours)?;
        self.forget(ended);
        let key = (line.node.clone().unwrap_or_default(), job);
        let was_killed = line.sentences.iter().any(|sentence| is_at_limit_of_job(sentence, &line));
        if step == BATCH {
            let kills = match self.0.remove(&key) {
                Some(PartOfRun::Kills(kills)) => kills,
                _ => Vec::new(),
            };
            // A job that was ended and is not to run again has not failed at its limit, whatever was killed in it before.
            let for_owners = is_ended_for_owners(&line);
            if line.exit.is_none_or(Exit::is_success) || line.job_ended_for_owners.is_some() && !for_owners {
                return None;
            }
            if was_killed || for_owners {
                return KilledRun::from_line(line);
            }
            let run = kills.iter().find_map(|kill| kill.has_ended(&line));
            if run.is_some() {
                return run;
            }
            let other = any_end.then(|| KilledRun::from_line(line.clone())).flatten();
            self.0.insert(key, PartOfRun::Script(Box::new(line)));
            return other.map(|run| KilledRun { end: RunEnd::Unknown, ..run });
        }
        // Some lines do not say how the step ended. A step that is said to have succeeded is no reason for a failure.
        if !was_killed || step == EXTERN || line.exit.is_some_and(Exit::is_success) {
            return None;
        }
        let kill = KillOfStep::from_line(&line)?;
        match self.0.get_mut(&key) {
            Some(PartOfRun::Script(script)) => {
                if let Some(run) = kill.has_ended(script) {
                    self.0.remove(&key);
                    return Some(run);
                }
                let script_ended = script.ended.as_deref().and_then(seconds_of).unwrap_or_default();
                // The kill was in the next run.
                if kill.began > script_ended {
                    self.0.insert(key, PartOfRun::Kills(vec![kill]));
                }
            }
            Some(PartOfRun::Kills(kills)) => {
                kills.truncate(MOST_STEPS);
                kills.insert(0, kill);
            }
            None => drop(self.0.insert(key, PartOfRun::Kills(vec![kill]))),
        }
        None
    }

    /// Forgets runs whose missing line is not expected any more.
    fn forget(&mut self, now: u64) {
        self.0.retain(|_, part| match part {
            PartOfRun::Kills(kills) => kills.iter().any(|kill| kill.ended.saturating_add(REMEMBERED) > now),
            PartOfRun::Script(line) => {
                line.ended.as_deref().and_then(seconds_of).is_some_and(|ended| ended.saturating_add(LATE) > now)
            }
        });
        if self.0.len() >= MOST {
            log::warn!(
                "OnOutOfMemory: more than {MOST} jobs were killed whose scripts go on, and none of them is requeued"
            );
            self.0.clear();
        }
    }

    pub fn json(&self) -> Value {
        let part = |((node, job), part): (&(String, String), &PartOfRun)| match part {
            PartOfRun::Kills(kills) => {
                let kill = |kill: &KillOfStep| json!([kill.began, kill.ended, kill.is_at_job, kill.granted, kill.cpus]);
                json!([node, job, kills.iter().map(kill).collect::<Vec<_>>()])
            }
            PartOfRun::Script(line) => json!([node, job, line.json]),
        };
        self.0.iter().map(part).collect()
    }

    /// Reads what `json` wrote. A run that is not understood is left out.
    pub fn from_json(value: &Value) -> Self {
        let part = |one: &Value| {
            let text = |at: usize| Some(one.get(at)?.as_str()?.to_owned());
            let part = match one.get(2)? {
                Value::Object(_) => PartOfRun::Script(Box::new(LoggedStep::new(one.get(2)?.clone()))),
                kills => {
                    let number = |one: &Value, at: usize| one.get(at)?.as_u64();
                    let kill = |one: &Value| {
                        let is_at_job = one.get(2)?.as_bool()?;
                        let (granted, cpus) = (number(one, 3), number(one, 4)?);
                        Some(KillOfStep { began: number(one, 0)?, ended: number(one, 1)?, is_at_job, granted, cpus })
                    };
                    PartOfRun::Kills(kills.as_array()?.iter().map(kill).collect::<Option<_>>()?)
                }
            };
            Some(((text(0)?, text(1)?), part))
        };
        Self(value.as_array().into_iter().flatten().filter_map(part).collect())
    }
}

fn is_ended_for_owners(line: &LoggedStep) -> bool {
    line.job_ended_for_owners.as_deref() == Some(REQUEUED)
}

/// When a step began, in seconds since 1970.
fn began(line: &LoggedStep) -> Option<u64> {
    line.started_unix_seconds.map(|began| began.as_secs())
}

/// How many CPUs a step had on its node, at least one.
fn cpus_of(line: &LoggedStep) -> u64 {
    line.cpus_granted.map_or(1, |cpus| cpus.thousandths().div_ceil(1000).max(1))
}

/// Whether `report::out_of_memory` has said this of a limit that more memory for the job raises.
fn is_at_limit_of_job(sentence: &str, line: &LoggedStep) -> bool {
    is_at_limit(sentence, line.usage.memory_peak.max(line.job_memory_peak_bytes), line.memory_limit_bytes)
}

/// The same, of a step whose job had this peak and this limit of memory in bytes, as far as that is known.
pub fn is_at_limit(sentence: &str, peak: Option<u64>, limit: Option<u64>) -> bool {
    let was_below = peak.zip(limit).is_some_and(|(peak, limit)| peak < limit);
    [Level::Job, Level::Step].into_iter().any(|level| is_at(level, sentence))
        && !(sentence.contains(UNKNOWN) && was_below)
}

/// Whether a sentence names the limit of such a level. The name of a process has at most 15 characters, so none can say it.
fn is_at(level: Level, sentence: &str) -> bool {
    sentence.contains(&format!(": the {level} reached its memory limit"))
}

/// The limit of a job or a step of which a sentence says that it was reached, in bytes. It is rounded down to a tenth of a MiB.
pub fn said_limit(sentence: &str) -> Option<u64> {
    let at = [Level::Job, Level::Step].into_iter().find(|level| is_at(*level, sentence))?;
    let (_, behind) = sentence.split_once(&format!(": the {at} reached its memory limit of "))?;
    let (whole, tenth) = behind.split_once(" MiB")?.0.split_once('.')?;
    let tenths = whole.parse::<u64>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
    Some(tenths.checked_mul(1 << 20)? / 10)
}

/// How a sentence begins without the kernel's log: the limit is a guess then, and the node itself may have run out of memory.
const UNKNOWN: &str = ": a process was killed: ";

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
            "memory_granted_bytes": 1000, "cpus_granted": 4,
        }))
    }

    fn found(lines: &[LoggedStep]) -> Vec<u64> {
        let mut parts = PartsOfRuns::default();
        let mut runs = Vec::new();
        for line in lines {
            runs.extend(parts.add(line.clone(), "h", false).map(|run| run.began));
            // As after a restart of `jobfence hold`.
            parts = PartsOfRuns::from_json(&parts.json());
        }
        runs
    }

    #[test]
    fn the_script_decides_and_any_step_may_have_been_killed() {
        let script = |status, sentence| line("batch", (1000, 1100), status, sentence);
        let step = |sentence| line("0", (1010, 1090), Some(1), sentence);
        assert_eq!(found(&[script(Some(137), KILLED)]), [1000]);
        let late = line("0", (1010, 1100 + BEHIND), Some(9), KILLED);
        assert_eq!(found(&[late.clone(), script(Some(1), "")]), [1000]);
        assert_eq!(found(&[script(Some(1), ""), late]), [1000]);
        // A kill of the run before takes nothing from that of this one.
        let before = line("0", (900, 950), Some(1), KILLED);
        assert_eq!(found(&[script(Some(1), ""), before, step(KILLED)]), [1000]);
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
            // The step succeeded all the same, or goes on behind the script's end.
            vec![line("0", (1010, 1090), Some(0), KILLED), script(Some(1), "")],
            vec![script(Some(1), ""), line("0", (1010, 1090), Some(0), KILLED)],
            vec![line("0", (1010, 1101 + BEHIND), Some(9), KILLED), script(Some(1), "")],
            vec![script(Some(1), ""), line("0", (1010, 1101 + BEHIND), Some(9), KILLED)],
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

    /// A kill at the memory limit is that key's alone, and so is an end for owners.
    #[test]
    fn any_other_script_that_failed_may_have_been_ended_by_the_scheduler() {
        let of = |lines: &[LoggedStep], any_end| -> Vec<RunEnd> {
            let mut parts = PartsOfRuns::default();
            lines.iter().filter_map(|line| parts.add(line.clone(), "h", any_end)).map(|run| run.end).collect()
        };
        let script = |status, sentence| line("batch", (1000, 1100), status, sentence);
        let step = || line("0", (1010, 1090), Some(1), KILLED);
        for status in [1, 15, 143] {
            assert_eq!(of(&[script(Some(status), "")], true), [RunEnd::Unknown]);
            assert_eq!(of(&[script(Some(status), "")], false), []);
        }
        assert_eq!(of(&[script(Some(0), "")], true), []);
        assert_eq!(of(&[script(None, "")], true), []);
        assert_eq!(of(&[line("0", (1010, 1090), Some(15), "")], true), []);
        assert_eq!(of(&[script(Some(137), KILLED)], true), [RunEnd::Memory]);
        assert_eq!(of(&[step(), script(Some(1), "")], true), [RunEnd::Memory]);
        // Which of both it is, the scheduler's state of the job says.
        assert_eq!(of(&[script(Some(1), ""), step()], true), [RunEnd::Unknown, RunEnd::Memory]);
        for (then, expected) in [("kill", None), ("requeue", Some(RunEnd::Owners))] {
            let mut json = script(Some(137), "").json;
            json["job_ended_for_owners"] = then.into();
            assert_eq!(of(&[LoggedStep::new(json)], true), Vec::from_iter(expected));
        }
    }

    #[test]
    fn a_script_that_was_ended_for_owners_is_found_by_the_mark_in_its_line() {
        let of = |step: &str, status: i32, then: Value| {
            let mut json = line(step, (1000, 1100), Some(status), "").json;
            json["job_ended_for_owners"] = then;
            let mut parts = PartsOfRuns::default();
            // Only the line is kept, so it alone must say this.
            let run = parts.add(LoggedStep::new(json), "h", false);
            run.map(|run| KilledRun::from_line(run.line).unwrap().end == RunEnd::Owners)
        };
        assert_eq!(of("batch", 137, "requeue".into()), Some(true));
        for (step, status, then) in [
            ("batch", 137, Value::Null),
            ("batch", 137, "kill".into()),
            ("batch", 0, "requeue".into()),
            ("0", 137, "requeue".into()),
        ] {
            assert_eq!(of(step, status, then.clone()), None, "{step} {status} {then}");
        }
        // It was killed at its limit before, too.
        let with = |then: Value| {
            let mut json = line("batch", (1000, 1100), Some(137), KILLED).json;
            json["job_ended_for_owners"] = then;
            found(&[line("0", (1000, 1090), Some(137), KILLED), LoggedStep::new(json)]).len()
        };
        assert_eq!([Value::Null, "kill".into(), "requeue".into()].map(with), [1, 0, 1]);
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
        let none = line("batch", (1, 2), None, "");
        let of = |kill: &OomKill, whose| is_at_limit_of_job(&said(kill, whose), &none);
        let here = kill(Some("/j"), None);
        assert!(of(&here, Level::Job) && of(&here, Level::Step));
        assert!(!of(&here, Level::User) && !of(&here, Level::Task), "all jobs of the user, or one task");
        for other in [kill(None, None), kill(None, Some("1")), kill(Some("/j/task_0"), None), kill(Some("/j/x"), None)]
        {
            assert!(!of(&other, Level::Job), "{}", said(&other, Level::Job));
            assert!(!of(&other, Level::Step), "{}", said(&other, Level::Step));
        }
    }

    #[test]
    fn a_sentence_says_the_limit_that_was_reached() {
        let key = JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("batch").unwrap() };
        let said = |whose, limit| {
            let level = MemoryLevel { path: "/j".into(), whose, limit, peak: Some(9 << 30) };
            said_limit(&out_of_memory(&key, None, &[level], None))
        };
        for whose in [Level::Job, Level::Step] {
            assert_eq!(
                [Some(60 << 20), Some(3 << 40), None].map(|limit| said(whose, limit)),
                [Some(60 << 20), Some(3 << 40), None]
            );
        }
        assert_eq!(said(Level::Job, Some((60 << 20) + (1 << 19))), Some((60 << 20) + (1 << 19)));
        assert_eq!((said(Level::User, Some(60 << 20)), said_limit(KILLED)), (None, Some(1 << 20)));
        for other in [
            "x: the job reached its memory limit of 1.",
            "x: the job reached its memory limit of 9999999999999999999.0 MiB",
        ] {
            assert_eq!(said_limit(other), None, "{other}");
        }
    }

    /// The node cannot read the kernel's log.
    #[test]
    fn a_guess_counts_only_where_the_limit_was_reached() {
        let of = |peak: Option<u64>, of_job: Option<u64>| {
            let level = MemoryLevel { path: "/j".into(), whose: Level::Job, limit: Some(1000), peak };
            let key = JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("batch").unwrap() };
            let mut json = line("batch", (1000, 1100), Some(137), &out_of_memory(&key, None, &[level], None)).json;
            json["memory_limit_bytes"] = 1000.into();
            (json["memory_peak_bytes"], json["job_memory_peak_bytes"]) = (peak.into(), of_job.into());
            found(&[LoggedStep::new(json)]).len()
        };
        assert_eq!([of(Some(1000), None), of(Some(900), Some(1000)), of(None, None)], [1, 1, 1]);
        assert_eq!([of(Some(999), None), of(Some(900), Some(999))], [0, 0]);
    }

    #[test]
    fn a_step_with_less_memory_of_its_own_is_not_the_job() {
        let killed_at = |level: &str, memory: u64, cpus: u64| {
            let sentence =
                format!("job 5 step 0: process 7 (x) was killed: the {level} reached its memory limit. Ask.");
            let mut json = line("0", (1010, 1090), Some(9), &sentence).json;
            (json["memory_granted_bytes"], json["cpus_granted"]) = (memory.into(), cpus.into());
            LoggedStep::new(json)
        };
        let of = |level, memory, cpus| {
            let script = line("batch", (1000, 1100), Some(1), "");
            let mut parts = PartsOfRuns::default();
            let run = parts.add(killed_at(level, memory, cpus), "h", false).or_else(|| parts.add(script, "h", false));
            // Only the line is kept, so it alone must say this.
            run.map(|run| KilledRun::from_line(run.line).unwrap().is_killed_step_smaller())
        };
        for (level, memory, cpus, expected) in [
            ("step", 1000, 4, Some(false)),
            ("step", 1000, 1, Some(false)),
            // The job asked by --mem-per-cpu.
            ("step", 250, 1, Some(true)),
            // The step asked by srun --mem.
            ("step", 50, 4, None),
            ("step", 50, 1, None),
            ("job", 50, 1, Some(false)),
        ] {
            assert_eq!(of(level, memory, cpus), expected, "{level} {memory} {cpus}");
        }
    }

    #[test]
    fn what_nothing_is_expected_of_is_forgotten() {
        let mut parts = PartsOfRuns::default();
        let script = line("batch", (1000, 1100), Some(1), "");
        parts.add(script, "h", false);
        assert_eq!(parts.0.len(), 1);
        parts.add(line("batch", (1000, 1100 + LATE), Some(0), ""), "h", false);
        assert_eq!(parts.0.len(), 0);
    }
}
