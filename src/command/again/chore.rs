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
use crate::followed;
use crate::logged::LoggedStep;
use crate::part::Chore;

/// How long all calls together may keep the janitor from its work.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(20);

/// How long the calls for one job may take together. What is late is done at the next look.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most runs that wait at once. What comes then is not requeued.
const MOST: usize = 10_000;

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
        let saved = if is_wanted || !state.waiting.is_empty() || !done.is_empty() {
            state.save(usage_log, &mut self.written)
        } else {
            Ok(())
        };
        self.state = Some(state);
        read.and(saved)
    }

    /// Reads new lines. At first only what comes from then on: what was before, users know already.
    fn read_on(&self, state: &mut AgainState, usage_log: &UsageLog<'_>) -> Result<(), String> {
        let is_there = state.place.map(|place| followed::is_there(usage_log, place)).transpose()?;
        if is_there != Some(true) {
            // A log that begins now is read from its beginning.
            state.place = Some(followed::end(usage_log)?.unwrap_or_default());
            return Ok(());
        }
        let (parts, waiting, holder) = (&mut state.parts, &mut state.waiting, self.part.holder());
        followed::read_on(usage_log, &mut state.place, &mut |line| {
            let Ok(line) = serde_json::from_str(line).map(LoggedStep::new) else { return };
            if let Some(run) = parts.add(line, holder).filter(|_| waiting.len() < MOST) {
                waiting.push(WaitingRun { run, begun: None, tries: 0 });
            }
        })
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
