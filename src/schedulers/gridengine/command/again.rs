// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that failed at its memory limit, for `OnOutOfMemory`: `qalter`, in the name of the job's user.
//!
//! qmaster forgets a job that has ended. So the program that stands for the shepherd puts the job back, before execd knows of its end
//! (`shepherd::again`), and has its user hold it before that. Here, what was begun is finished: the job asks for more, and is let go.
//!
//! qmaster goes by the real ids of a command, and takes root for a manager, who may change each job. So each command bears the user's name.

mod more;
mod qmaster;
mod queued;

use std::time::Instant;

pub use more::{MoreMemory, QmasterSays, next, refuses};
pub use qmaster::Qmaster;
pub use queued::{QmasterJob, amount, has_job};

use crate::again::{AgainPart, AgainTrouble, AskedMemory, JobNow, KilledRun};
use queued::with_amounts;

/// Grid Engine, for `OnOutOfMemory`.
pub struct GridEngineAgain;

/// The last part of the name of the file in which is kept what was begun.
pub const KEPT: &str = "again-gridengine";

/// The name in a job's context that says how often the job was put back.
pub const CONTEXT: &str = "JOBFENCE_AGAIN";

/// The members of a run's line that say what the next run asks for, as `qalter -l` takes it, and when this run began by qmaster's clock.
pub const ASKS_FOR: &str = "asks_for";
pub const BEGAN: &str = "qmaster_began";

/// How long a run that has ended here may be one that still runs for qmaster, in seconds. Later, it is said that the job may be held.
const SOON: u64 = 600;

impl AgainPart for GridEngineAgain {
    fn holder(&self) -> &'static str {
        "Grid Engine"
    }

    fn kept(&self) -> &'static str {
        KEPT
    }

    fn reads_log(&self) -> bool {
        false
    }

    fn look(&self, run: &KilledRun, deadline: Instant) -> Result<JobNow, String> {
        let Some(job) = Qmaster::find(deadline)?.job(&run.job)? else {
            return Ok(JobNow::Other("Grid Engine does not know it any more".to_owned()));
        };
        now(&job, run, seconds_now())
    }

    fn requeue(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
        Err(AgainTrouble::Refused("Grid Engine knows no job that has ended".to_owned()))
    }

    fn ask_for(&self, run: &KilledRun, _: AskedMemory, deadline: Instant) -> Result<(), AgainTrouble> {
        let unknown = AgainTrouble::Unknown;
        let qmaster = Qmaster::find(deadline).map_err(unknown)?;
        let amounts = amounts(run).ok_or_else(|| unknown("what it is to ask for is not understood".to_owned()))?;
        let waiting = || {
            let job = qmaster.job(&run.job).map_err(unknown)?;
            job.filter(|job| job.began.is_none()).ok_or_else(|| unknown("it does not wait".to_owned()))
        };
        let job = waiting()?;
        if has_all(&job, &amounts) {
            return Ok(());
        }
        // With -w e, qmaster refuses what no host can give.
        let list = with_amounts(&job.requests, &amounts);
        qmaster.tell(run.uid, &["qalter", "-w", "e", "-l", &list, &run.job])?;
        // The job is let go only if qmaster itself says that it asks for that.
        if has_all(&waiting()?, &amounts) { Ok(()) } else { Err(unknown("qalter has not changed it".to_owned())) }
    }

    fn let_go(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        let qmaster = Qmaster::find(deadline).map_err(AgainTrouble::Unknown)?;
        qmaster.tell(run.uid, &["qalter", "-w", "n", "-h", "U", &run.job]).map(drop)
    }

    fn cancel(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        let qmaster = Qmaster::find(deadline).map_err(AgainTrouble::Unknown)?;
        qmaster.tell(run.uid, &["qdel", &run.job]).map(drop)
    }
}

/// What follows from what qmaster knows.
fn now(job: &QmasterJob, run: &KilledRun, now: u64) -> Result<JobNow, String> {
    let restarts = run.restarts.unwrap_or_default();
    if Some(job.owner.as_str()) != run.line.user.as_deref() {
        return Ok(JobNow::Other("Grid Engine says that it is another user's".to_owned()));
    }
    let Some(began) = job.began else {
        // Another hold than ours stays: its user has put the job back, or has changed its context.
        let is_ours = restarts_of(job) == Some(restarts.saturating_add(1));
        return Ok(if is_ours { JobNow::Held { asked: None } } else { JobNow::Next });
    };
    if run.line.json.get(BEGAN).and_then(serde_json::Value::as_u64) != Some(began) {
        return Ok(JobNow::Next);
    }
    // execd tells qmaster of the end. As long as it does not run, nothing is known.
    if run.ended.saturating_add(SOON) < now {
        return Err("Grid Engine takes its last run for one that has not ended".to_owned());
    }
    Ok(JobNow::Ending { restarts })
}

/// How often a job was put back. `None`: never, or its user has written something else.
pub fn restarts_of(job: &QmasterJob) -> Option<u32> {
    job.context.get(CONTEXT)?.parse().ok()
}

/// What the next run asks for.
fn amounts(run: &KilledRun) -> Option<Vec<(String, u64)>> {
    let text = run.line.json.get(ASKS_FOR)?.as_str()?;
    let one = |word: &str| {
        let (name, amount) = word.split_once('=')?;
        Some((name.to_owned(), jobfence::schedulers::gridengine::amount::bytes(amount)??))
    };
    text.split(',').map(one).collect()
}

/// Whether a job asks for so much. More is its user's own wish.
fn has_all(job: &QmasterJob, amounts: &[(String, u64)]) -> bool {
    let asks = |name: &str| job.requests.iter().find(|(of, ..)| of == name).map(|(.., amount)| *amount);
    // An amount is far below 2^52.
    #[allow(clippy::cast_precision_loss, reason = "see above")]
    amounts.iter().all(|(name, bytes)| asks(name).is_some_and(|amount| amount >= *bytes as f64))
}

fn seconds_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::queued::tests::RUNS;
    use super::*;
    use crate::logged::LoggedStep;

    const ENDED: u64 = 1_764_039_610;

    fn run() -> KilledRun {
        let line = json!({
            "job": "1", "uid": 1000, "user": "alice", "started_unix_seconds": 1.0, "ended": "2025-11-25T03:00:10Z",
            ASKS_FOR: "h_vmem=150M,h_rss=2G", BEGAN: 1_796_059_098_u64,
        });
        KilledRun { restarts: Some(0), ..KilledRun::from_line(LoggedStep::new(line)).unwrap() }
    }

    #[test]
    fn only_a_job_that_waits_with_our_word_is_let_go() {
        let of = |changes: &[(&str, &str)], seconds| {
            let text = changes.iter().fold(RUNS.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
            now(&queued::parse(&text).unwrap().unwrap(), &run(), ENDED + seconds)
        };
        let waits = ("<JAT_status>128", "<JAT_status>0");
        let word = |count: u32| {
            (
                "<VA_variable>A</VA_variable>\n<VA_value>1<",
                &*format!("<VA_variable>{CONTEXT}</VA_variable>\n<VA_value>{count}<").leak(),
            )
        };
        assert_eq!(of(&[waits, word(1)], 0), Ok(JobNow::Held { asked: None }));
        // Its user has put it back and holds it, or an earlier run of it was put back.
        assert_eq!(of(&[waits], 0), Ok(JobNow::Next));
        assert_eq!(of(&[waits, word(2)], 0), Ok(JobNow::Next));
        assert_eq!(of(&[word(1)], 0), Ok(JobNow::Ending { restarts: 0 }));
        assert_eq!(of(&[word(1)], SOON), Ok(JobNow::Ending { restarts: 0 }));
        assert!(of(&[word(1)], SOON + 1).is_err(), "it may be held for as long as execd does not run");
        assert_eq!(of(&[word(1), ("1796059098", "1796059099")], 0), Ok(JobNow::Next));
        let JobNow::Other(why) = of(&[waits, word(1), (">alice<", ">bob<")], 0).unwrap() else { panic!() };
        assert!(why.contains("another user's"), "{why}");
    }

    #[test]
    fn what_is_asked_for_already_is_left_alone() {
        let amounts = amounts(&run()).unwrap();
        assert_eq!(amounts, [("h_vmem".to_owned(), 150 << 20), ("h_rss".to_owned(), 2 << 30)]);
        let job = |of: &[(&str, f64)]| QmasterJob {
            requests: of.iter().map(|(name, amount)| ((*name).to_owned(), String::new(), *amount)).collect(),
            ..QmasterJob::default()
        };
        let (enough, all) = (f64::from(150 << 20), f64::from(1_u32 << 31));
        assert!(has_all(&job(&[("h_rss", all), ("h_vmem", enough)]), &amounts));
        assert!(has_all(&job(&[("h_rss", all), ("h_vmem", enough * 2.0)]), &amounts));
        assert!(!has_all(&job(&[("h_rss", all), ("h_vmem", enough - 1.0)]), &amounts));
        assert!(!has_all(&job(&[("h_vmem", enough)]), &amounts));
    }
}
