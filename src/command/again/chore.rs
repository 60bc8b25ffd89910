// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` does at each of its looks for `OnOutOfMemory`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jobfence::config::{Config, Loaded, Mode};
use jobfence::doors::life;
use jobfence::facts::{Fact, Facts};
use jobfence::report::usage_log::UsageLog;

use super::AgainPart;
use super::files::{AgainState, WaitingRun};
use super::killed::KilledRun;
use super::steps::{AfterLook, follow};
use crate::followed::{self, LogPlace};
use crate::logged::LoggedStep;
use crate::part::Chore;

/// How long all calls together may keep the janitor from its work.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(20);

/// How long the calls for one job may take together. What is late is done at the next look.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most runs that wait at once. What comes then is not requeued.
const MOST: usize = 10_000;

/// The place in a log that was not there yet: what comes is read from its beginning. No file has this number.
const NO_LOG: LogPlace = (0, 0);

/// The key.
const KEY: &str = "OnOutOfMemory";

/// Requeues jobs of one scheduler.
pub struct AgainChore {
    part: &'static dyn AgainPart,
    /// `None`: not begun.
    state: Option<AgainState>,
    /// What is in the file.
    written: String,
    /// The last error that was reported.
    said: Option<String>,
}

impl AgainChore {
    pub fn new(part: &'static dyn AgainPart) -> Self {
        Self { part, state: None, written: String::new(), said: None }
    }

    fn look(&mut self, usage_log: &UsageLog<'_>, config: &Config, loaded: Option<&Loaded>) -> Result<(), String> {
        let (is_wanted, begins) = (is_wanted(config, loaded), self.state.is_none());
        let mut state = self.state.take().unwrap_or_else(|| AgainState::load(usage_log));
        if begins {
            self.written = state.json().to_string();
        }
        let read = if is_wanted { self.read_on(&mut state, usage_log) } else { Ok(()) };
        if !is_wanted {
            // What comes while nothing is wanted is not looked at later.
            (state.place, state.parts) = Default::default();
        }
        let deadline = Instant::now() + PATIENCE_TOGETHER;
        let mut left = std::mem::take(&mut state.waiting);
        let mut done = BTreeSet::new();
        for at in 0..left.len() {
            let Some(mut one) = left.get(at).cloned().filter(|_| Instant::now() < deadline) else { break };
            let written = &mut self.written;
            let keep = &mut |one: &WaitingRun| {
                let mut all = left.clone();
                all.iter_mut().skip(at).take(1).for_each(|place| place.clone_from(one));
                state.waiting = all;
                state.save(usage_log, written)
            };
            let of_job = config_of(&one.run, config, loaded);
            let until = deadline.min(Instant::now() + PATIENCE);
            if follow(&mut one, self.part, &of_job, seconds_now(), keep, until) == AfterLook::Done {
                done.insert(at);
            }
            left.iter_mut().skip(at).take(1).for_each(|place| place.clone_from(&one));
        }
        let mut at = 0..;
        left.retain(|_| at.next().is_some_and(|at| !done.contains(&at)));
        state.waiting = left;
        let saved = state.save(usage_log, &mut self.written);
        self.state = Some(state);
        read.and(saved)
    }

    /// Reads new lines. At first only what comes from then on: what was before, users know already.
    fn read_on(&self, state: &mut AgainState, usage_log: &UsageLog<'_>) -> Result<(), String> {
        state.place = match state.place {
            None => {
                state.place = Some(followed::end(usage_log)?.unwrap_or(NO_LOG));
                return Ok(());
            }
            Some(NO_LOG) => None,
            Some(place) if followed::is_there(usage_log, place)? => Some(place),
            // The file is gone, with all that was not read of it.
            Some(_) => followed::end(usage_log)?,
        };
        let (parts, waiting, holder) = (&mut state.parts, &mut state.waiting, self.part.holder());
        let read = followed::read_on(usage_log, &mut state.place, &mut |line| {
            let Ok(line) = serde_json::from_str(line).map(LoggedStep::new) else { return };
            if let Some(run) = parts.add(line, holder).filter(|_| waiting.len() < MOST) {
                waiting.push(WaitingRun { run, begun: None, tries: 0 });
            }
        });
        state.place = state.place.or(Some(NO_LOG));
        read
    }
}

impl Chore for AgainChore {
    fn once(&mut self, config: &Config, loaded: Option<&Loaded>) {
        let Some(usage_log) = UsageLog::from_config(config).filter(|_| config.mode != Mode::Off) else {
            (self.state, self.said) = (None, None);
            return;
        };
        match self.look(&usage_log, config, loaded) {
            Ok(()) => self.said = None,
            Err(error) if self.said.as_ref() == Some(&error) => {}
            Err(error) => {
                log::error!("cannot see which jobs failed at their memory limits, so none is requeued: {error}");
                self.said = Some(error);
            }
        }
    }
}

/// Whether the key is set for any job.
pub fn is_wanted(config: &Config, loaded: Option<&Loaded>) -> bool {
    let in_sections = || loaded.into_iter().flat_map(Loaded::sections).flat_map(|(_, settings)| settings);
    config.on_out_of_memory.is_some() || in_sections().any(|setting| setting.key().name == KEY)
}

/// The configuration that holds for a job. If that is not certain, nothing is done.
fn config_of(run: &KilledRun, config: &Config, loaded: Option<&Loaded>) -> Config {
    let known = |text: &Option<String>| Fact::from(text.clone());
    let line = &run.line;
    let facts = Facts {
        uid: Some(run.uid).into(),
        user: known(&line.user),
        partition: known(&line.partition),
        account: known(&line.account),
        qos: known(&line.qos),
        project: known(&line.project),
        node: known(&line.node),
        ..Facts::default()
    };
    let resolved = loaded.map(|loaded| life::resolve(loaded, facts));
    match resolved {
        Some(Ok(resolved)) => resolved.config,
        Some(Err(_)) => Config { on_out_of_memory: None, ..config.clone() },
        None => config.clone(),
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::path::PathBuf;

    use jobfence::config::{Percent, RunAgain};
    use jobfence::report::account::{SCHEMA, utc};
    use serde_json::json;

    use super::*;
    use crate::again::{AgainTrouble, AskedMemory, JobNow};

    thread_local! {
        static LOOKED_AT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes down at which jobs it has looked, and has nothing to do for any.
    struct Noting;

    impl AgainPart for Noting {
        fn holder(&self) -> &'static str {
            "h"
        }

        fn look(&self, run: &KilledRun, _: Instant) -> Result<JobNow, String> {
            LOOKED_AT.with_borrow_mut(|jobs| jobs.push(run.job.clone()));
            Ok(JobNow::Next)
        }

        fn requeue(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }

        fn ask_for(&self, _: &KilledRun, _: AskedMemory, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }

        fn let_go(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }

        fn cancel(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }
    }

    struct Site {
        log: PathBuf,
        config: Config,
        _temp: tempfile::TempDir,
    }

    impl Site {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let log = temp.path().join("log/usage.jsonl");
            fs::create_dir(log.parent().unwrap()).unwrap();
            let again = RunAgain { share: Percent::from_hundredths(15_000), most: 2 };
            let config = Config { usage_log: Some(log.clone()), on_out_of_memory: Some(again), ..Config::default() };
            Self { log, config, _temp: temp }
        }

        fn killed(&self, job: u32) {
            let sentence = "job 5 step batch: a process was killed: the job reached its memory limit.";
            let line = json!({
                "schema": SCHEMA, "holder": "h", "node": "n", "job": job.to_string(), "uid": 0, "step": "batch", "started_unix_seconds": 1.0,
                "end": "closed", "ended": utc(SystemTime::now()), "exit_status": 137, "sentences": [sentence],
            });
            let before = fs::read_to_string(&self.log).unwrap_or_default();
            fs::write(&self.log, format!("{before}{line}\n")).unwrap();
        }
    }

    /// The jobs that are looked at now.
    fn looked_at(chore: &mut AgainChore, config: &Config) -> Vec<String> {
        chore.once(config, None);
        LOOKED_AT.take()
    }

    #[test]
    fn each_kill_is_looked_at_once_from_when_the_key_is_set() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("the log is root's");
        }
        let site = Site::new();
        let off = Config { on_out_of_memory: None, ..site.config.clone() };
        let mut chore = AgainChore::new(&Noting);
        assert!(looked_at(&mut chore, &site.config).is_empty());
        // The log begins with the first job.
        site.killed(1);
        assert_eq!(looked_at(&mut chore, &site.config), ["1"]);
        assert!(looked_at(&mut chore, &site.config).is_empty());
        site.killed(2);
        // Another process.
        chore = AgainChore::new(&Noting);
        assert_eq!(looked_at(&mut chore, &site.config), ["2"]);
        assert!(looked_at(&mut AgainChore::new(&Noting), &site.config).is_empty());
        // What comes while the key is off is not made up for, by this process or the next.
        assert!(looked_at(&mut chore, &off).is_empty());
        site.killed(3);
        assert!(looked_at(&mut chore, &off).is_empty());
        assert!(looked_at(&mut AgainChore::new(&Noting), &site.config).is_empty());
        chore = AgainChore::new(&Noting);
        site.killed(4);
        assert_eq!(looked_at(&mut chore, &site.config), ["4"]);
    }
}
