// SPDX-License-Identifier: GPL-2.0-or-later
//! `OnOutOfMemory`: a job that failed after a kill at its memory limit goes back into its queue, before execd knows of its end.
//!
//! First is written down what the next run is to ask for. Then the job's user holds the job, which still runs for qmaster. Then execd is told
//! that the run had too little (`noresources` of `reaper_execd.c`): so the job cannot begin with the old size. What is left is done by
//! `jobfence hold`. If anything fails before execd is told, the job ends as without the key.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jobfence::bytes::mebibytes;
use jobfence::config::{Config, Loaded, Mode, RunAgain};
use jobfence::doors::life;
use jobfence::record::tracked;
use jobfence::report::account::{Exit, utc};
use jobfence::report::usage_log::UsageLog;
use jobfence::schedulers::gridengine::spool::SpooledJob;
use serde_json::json;

use super::spool::Spool;
use crate::again::{AgainTrouble, KilledRun, NextRun, Refusals, WaitingRun, decided};
use crate::host::memory::of_meminfo;
use crate::logged::LoggedStep;
use crate::schedulers::gridengine::again::{
    ASKS_FOR, BEGAN, CONTEXT, KEPT, MoreMemory, Qmaster, QmasterJob, QmasterSays, amount, has_job, next, refuses,
    restarts_of,
};
use crate::table::printable;

/// How long all questions to qmaster may take together, at the end of a job that was killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take to let a job go again that execd could not be told of.
const TO_UNDO: Duration = Duration::from_secs(1);

/// How far the clocks of qmaster and of this host may differ, in seconds, with the time in which a job comes here and has its fence.
const CLOCKS: u64 = 60;

/// By this file, execd takes the run for one that had too little, and qmaster puts the job back. The file `usage` stays as it is.
const TOO_LITTLE: &str = "noresources";

/// Exit statuses by which a script itself has asked for something else (`RESCHEDULE_EXIT_STATUS`, `APPERROR_EXIT_STATUS` of shepherd.h).
const OF_SCRIPT: [Exit; 2] = [Exit::Status(99), Exit::Status(100)];

/// A run of a job that has ended here.
pub struct EndedRun<'a> {
    pub loaded: &'a Loaded,
    pub job: &'a SpooledJob,
    pub spool: &'a Spool,
    /// When it began.
    pub began: SystemTime,
    /// How the shepherd has ended.
    pub shepherd: Option<Exit>,
    /// How the job's script has ended. `None`: not known.
    pub exit: Option<Exit>,
    /// Whether execd has had the job killed, for its user or by a limit of its own.
    pub was_told_to_end: bool,
    /// Whether a process was killed at the memory limit of the job.
    pub was_killed: bool,
}

impl EndedRun<'_> {
    /// Puts the job back if it is to run again with more. Returns the line for its output.
    pub fn put_back(&self) -> Option<String> {
        let has_failed = self.shepherd == Some(Exit::Status(0))
            && self.exit.is_some_and(|exit| !exit.is_success() && !OF_SCRIPT.contains(&exit));
        if !self.was_killed || !has_failed || self.was_told_to_end || self.job.slave_task.is_some() {
            return None;
        }
        // If the job's sections are not certain, the key is off for it.
        let config = life::resolve(self.loaded, self.job.facts.clone()).ok()?.config;
        let again = config.on_out_of_memory?;
        let job = format!("job {} of {}", self.job.job, printable(self.user()));
        match self.begin(again, &config) {
            Ok((more, restart)) => {
                let asks = more.amounts.iter().map(|(name, bytes)| format!("{name}={}", amount(*bytes)));
                let asks = asks.collect::<Vec<_>>().join(",");
                log::warn!("{job} failed at its memory limit and goes back into the queue: it is to ask for {asks}");
                Some(format!(
                    "jobfence: job {} goes back into the queue: its next run is to have {} of memory ({asks}, restart {restart})",
                    self.job.job,
                    mebibytes(more.all.mib << 20),
                ))
            }
            Err(why) => {
                log::warn!("{job} failed at its memory limit, and is not requeued: {}", printable(&why));
                None
            }
        }
    }

    fn user(&self) -> &str {
        self.job.facts.user.known().map_or("", String::as_str)
    }

    /// Has the job go back. Returns what its next run asks for, and the number of that restart.
    fn begin(&self, again: RunAgain, config: &Config) -> Result<(MoreMemory, u32), String> {
        if let Some(why) = self.job.no_second_run {
            return Err(why.to_owned());
        }
        let log = UsageLog::from_config(config).ok_or("there is no UsageLog, beside which that is kept")?;
        if config.reap_interval.is_none() || !tracked::is_watched(&config.run_dir) {
            return Err("'jobfence hold' (jobfence.service) does not run, or has ReapInterval=never".to_owned());
        }
        let qmaster = Qmaster::find(Instant::now() + PATIENCE)?;
        let number = self.job.job.as_str();
        let queued = qmaster.job(number)?.ok_or("Grid Engine does not know it any more")?;
        let restarts = restarts_of(&queued).unwrap_or_default();
        let more = self.more(again, restarts, (&qmaster, &queued), config)?;
        if config.mode != Mode::Enforce {
            return Err(format!("Mode=observe. Otherwise it would ask for {}", more.all));
        }
        let waiting = self.waiting(&queued, restarts, &more)?;
        decided::write(&log, KEPT, &waiting)?;
        let restart = restarts.saturating_add(1);
        match self.hold_and_tell(&qmaster, restart) {
            Ok(()) => Ok((more, restart)),
            Err(AgainTrouble::Refused(why)) => {
                decided::forget(&log, KEPT, &waiting);
                Err(why)
            }
            // It may be held, or be so soon. hold finds that, or that it is gone.
            Err(AgainTrouble::Unknown(why)) => Err(why),
        }
    }

    /// Expects that the run which qmaster has is this one. A host that was away (`reschedule_unknown`) or `qmod -f -rj` has the job run
    /// elsewhere while its first run still ends here.
    fn expect_this_run(&self, qmaster: &Qmaster, queued: &QmasterJob) -> Result<(), String> {
        expect_began(self.began, queued.began)?;
        let queue = self.job.facts.partition.known().cloned().unwrap_or_default();
        let instance = format!("{queue}@{}", self.job.host);
        // qstat -j does not name the host.
        let here = qmaster.ask(&["qstat", "-xml", "-s", "rs", "-u", "*", "-q", &instance])?;
        if !has_job(&here, self.job.job.as_str()) {
            return Err(format!("Grid Engine does not have it run in {instance} any more"));
        }
        Ok(())
    }

    /// What the next run asks for, if its user and qmaster allow one.
    fn more(
        &self,
        again: RunAgain,
        restarts: u32,
        (qmaster, queued): (&Qmaster, &QmasterJob),
        config: &Config,
    ) -> Result<MoreMemory, String> {
        if queued.owner != self.user() {
            return Err("Grid Engine says that it is another user's".to_owned());
        }
        if !queued.may_run_again {
            return Err("its user has not said that it may run again (qsub -r y)".to_owned());
        }
        if queued.is_reserved {
            return Err("it has an advance reservation".to_owned());
        }
        if queued.has_slot_range {
            return Err("it asks for a range of slots, and its next run may have another number of them".to_owned());
        }
        self.expect_this_run(qmaster, queued)?;
        let ask = |words: &[&str]| qmaster.ask(&[&["qconf"], words].concat());
        if let Some(why) = refuses(&ask(&["-sconf", "global"])?) {
            return Err(why);
        }
        let (host, queue) = (&self.job.host, self.job.facts.partition.known().cloned().unwrap_or_default());
        let givers = [ask(&["-se", host])?, ask(&["-se", "global"])?, ask(&["-sq", &format!("{queue}@{host}")])?];
        let complexes = ask(&["-sc"])?;
        let memory =
            std::fs::read_to_string("/proc/meminfo").map_err(|error| format!("read /proc/meminfo: {error}"))?;
        let memory = of_meminfo(&memory, "MemTotal").map_err(|error| error.to_string())?;
        let shares = self.job.shares(&config.slot_memory);
        let more = next(again, restarts, &shares, memory, &QmasterSays { complexes: &complexes, givers: &givers })?;
        let limit = |bytes| config.allowed_ram_space.of(bytes).max(config.min_ram_space);
        if self.job.memory(&config.slot_memory).is_none_or(|before| limit(more.all.mib << 20) <= limit(before)) {
            return Err(format!("its limit would be no higher with {} (MinRAMSpace)", more.all));
        }
        Ok(more)
    }

    /// What is written down.
    fn waiting(&self, queued: &QmasterJob, restarts: u32, more: &MoreMemory) -> Result<WaitingRun, String> {
        let asks = more.amounts.iter().map(|(name, bytes)| format!("{name}={}", amount(*bytes)));
        let line = json!({
            "job": self.job.job.as_str(),
            "uid": self.job.uid,
            "user": self.user(),
            "started_unix_seconds": self.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            "ended": utc(SystemTime::now()),
            ASKS_FOR: asks.collect::<Vec<_>>().join(","),
            BEGAN: queued.began.ok_or("Grid Engine says that it waits")?,
        });
        let run = KilledRun::from_line(LoggedStep::new(line)).ok_or("its line is not understood")?;
        let run = KilledRun { restarts: Some(restarts), ..run };
        Ok(WaitingRun { run, begun: Some(NextRun::More(more.all)), tries: 0, refused: Refusals::default() })
    }

    /// Has its user hold the job, and tells execd. After a refusal, nothing more comes of it.
    fn hold_and_tell(&self, qmaster: &Qmaster, restart: u32) -> Result<(), AgainTrouble> {
        let number = self.job.job.as_str();
        let words = ["qalter", "-h", "u", "-ac", &format!("{CONTEXT}={restart}"), number];
        let said = qmaster.tell(self.job.uid, &words)?;
        // If its user holds it already, it is not for jobfence to let it go.
        if !said.contains("modified hold of job") {
            let why = format!("its user holds it already, or qalter says something else: {said}");
            return Err(AgainTrouble::Refused(why));
        }
        self.spool.write(TOO_LITTLE, b"").map_err(|error| {
            let _ = qmaster.tell_by(self.job.uid, &["qalter", "-h", "U", number], Instant::now() + TO_UNDO);
            AgainTrouble::Refused(error.to_string())
        })
    }
}

/// Expects that a run that began here then is the one that began at this time of qmaster's.
fn expect_began(here: SystemTime, by_qmaster: Option<u64>) -> Result<(), String> {
    let by_qmaster = by_qmaster.ok_or("Grid Engine says that it waits")?;
    let here = here.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if by_qmaster.abs_diff(here) > CLOCKS {
        let why =
            "by its time in Grid Engine, this is another run of it, or the clocks of qmaster and of this host differ";
        return Err(why.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_run_in_qmaster_is_told_by_its_time() {
        let here = UNIX_EPOCH + Duration::from_millis(1_796_059_100_900);
        for (by_qmaster, is_this) in [
            (Some(1_796_059_098), true),
            (Some(1_796_059_100 - CLOCKS), true),
            (Some(1_796_059_100 + CLOCKS), true),
            (Some(1_796_059_099 - CLOCKS), false),
            (Some(1_796_059_101 + CLOCKS), false),
            (None, false),
        ] {
            assert_eq!(expect_began(here, by_qmaster).is_ok(), is_this, "{by_qmaster:?}");
        }
    }
}
