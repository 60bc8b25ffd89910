// SPDX-License-Identifier: GPL-2.0-or-later
//! The child of `jobfence hold` that looks once for what `OnOutOfMemory`, `OnTimeLimit`, `OnPreempt` and `ScavengerEnd` are to do: `jobfence
//! again-look`. It is no command for people, so the command line's definition does not have it.
//!
//! It waits for the scheduler's commands, for the users' name service and for users who stop what acts for them, and `hold` does not. It is
//! root's, and the commands that act for a user are in its process group. When `hold` ends, it ends that group, and so itself.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use jobfence::config::{Config, Loaded};
use jobfence::doors::{life, user};
use jobfence::facts::{Fact, Facts};
use jobfence::report::usage_log::UsageLog;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{Pid, getpgrp, getpid, getppid, setpgid};

use super::decided;
use super::files::{AgainState, Refusals, WaitingRun};
use super::key::AgainKey;
use super::killed::KilledRun;
use super::steps::{AfterLook, follow};
use super::{AgainPart, LoggedFacts};
use crate::configured::Configured;
use crate::followed::{self, LogPlace};
use crate::logged::LoggedStep;
use crate::part::SchedulersPart;
use crate::table::printable;
use crate::{journal, schedulers};

/// The word after the program's name.
pub const WORD: &str = "again-look";

/// How long all calls together may take. It is less than the time that `hold` gives a look.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(40);

/// How long the calls for one job may take together. The next look does what is left.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most runs that wait at once. Runs beyond that are not requeued.
const MOST: usize = 10_000;

/// The place of a log that does not exist yet: its first lines will be read. No file has this number.
const NO_LOG: LogPlace = (0, 0);

/// Whether this process is to look.
pub fn is_asked_for() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// The arguments that `hold` gives.
#[derive(Parser)]
struct LookWords {
    /// The process that has started this one.
    hold: i32,
    /// The holder of the scheduler's fences.
    holder: String,
    /// The usage log.
    log: PathBuf,
    /// Finish only what was begun.
    #[arg(long)]
    begun_only: bool,
    /// Read the log from its beginning: the key was set before the log existed.
    #[arg(long)]
    from_start: bool,
    #[command(flatten)]
    configured: Configured,
}

/// What this look is to do.
enum LookWish<'a> {
    /// All that the configuration asks for.
    Keys(&'a Loaded),
    /// Finish what was begun. Other runs wait, since the configuration cannot be read now.
    Unknown,
    /// Finish what was begun, and forget other runs.
    Nothing,
}

/// Looks once. What fails is one line of its stdout.
pub fn look() -> ExitCode {
    journal::use_if_started_so();
    let Ok(words) = LookWords::try_parse_from(std::env::args_os().skip(1)) else { return ExitCode::FAILURE };
    if !ends_with(Pid::from_raw(words.hold)) {
        return ExitCode::FAILURE;
    }
    let _ = std::env::set_current_dir("/");
    // systemd spares jobfence.service when memory is short. A child inherits that, and needs it not.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let is_its = |part: &&&dyn SchedulersPart| part.again().is_some_and(|again| again.holder() == words.holder);
    let Some(part) = schedulers::ALL.iter().find(is_its) else { return ExitCode::FAILURE };
    let loaded = words.configured.load().ok();
    let config = loaded.as_ref().map_or_else(Config::default, |loaded| loaded.config.clone());
    let config = Config { usage_log: Some(words.log), ..config };
    let Some(usage_log) = UsageLog::from_config(&config) else { return ExitCode::FAILURE };
    let wish = match &loaded {
        _ if words.begun_only => LookWish::Nothing,
        Some(loaded) => LookWish::Keys(loaded),
        None => LookWish::Unknown,
    };
    if let Err(error) = once(*part, &usage_log, &wish, words.from_start) {
        println!("{}", error.replace('\n', " "));
    }
    ExitCode::SUCCESS
}

/// Ends this process group when `hold` ends. `false`: `hold` has ended already.
fn ends_with(hold: Pid) -> bool {
    if getpgrp() != getpid() && setpgid(Pid::from_raw(0), Pid::from_raw(0)).is_err() {
        return false;
    }
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    // SAFETY: the handler makes one system call, and nothing else.
    let is_set = unsafe { signal(Signal::SIGTERM, SigHandler::Handler(end_group)) }.is_ok();
    is_set && term.thread_unblock().is_ok() && set_pdeathsig(Signal::SIGTERM).is_ok() && getppid() == hold
}

/// Ends this process and those that act for users: the kernel does not tell these that their parent has ended.
extern "C" fn end_group(_: libc::c_int) {
    // SAFETY: kill(2) may be called in a handler; 0 is this process's own group, which this process leads.
    unsafe { libc::kill(0, libc::SIGKILL) };
}

/// Reads on in the log, and does what can be done now.
fn once(
    part: &dyn SchedulersPart,
    usage_log: &UsageLog<'_>,
    wish: &LookWish<'_>,
    from_start: bool,
) -> Result<(), String> {
    let Some(again) = part.again() else { return Ok(()) };
    let known = |loaded: &Loaded| part.logged_facts(loaded.file.as_deref());
    look_with(again, &known, usage_log, wish, from_start)
}

fn look_with(
    part: &dyn AgainPart,
    known: &dyn Fn(&Loaded) -> LoggedFacts,
    usage_log: &UsageLog<'_>,
    wish: &LookWish<'_>,
    from_start: bool,
) -> Result<(), String> {
    let mut state = AgainState::load(usage_log, part.kept())?;
    let taken = if part.reads_log() { Ok(()) } else { decided::take_over(usage_log, &mut state) };
    state.place = state.place.or(from_start.then_some(NO_LOG));
    let read = match wish {
        LookWish::Keys(loaded) => {
            let any_end = AgainKey::OF_SCHEDULER.iter().any(|key| key.is_set(&loaded.config, Some(loaded)));
            read_on(part, &mut state, usage_log, any_end)
        }
        LookWish::Unknown => Ok(()),
        LookWish::Nothing => {
            // Lines that come while the key is off are never looked at. So the place in the log is forgotten.
            (state.place, state.parts) = Default::default();
            state.waiting.retain(|one| one.begun.is_some());
            if state.waiting.is_empty() {
                return taken.and(state.remove(usage_log));
            }
            Ok(())
        }
    };
    let keys = match wish {
        LookWish::Keys(loaded) => Some((*loaded, known(loaded))),
        LookWish::Unknown | LookWish::Nothing => None,
    };
    let deadline = Instant::now() + PATIENCE_TOGETHER;
    let (mut slow, mut is_marked) = (BTreeSet::new(), false);
    for _ in 0..state.waiting.len() {
        if Instant::now() >= deadline {
            break;
        }
        // Each run has its turn, wherever the last look had to stop.
        state.waiting.rotate_left(1);
        let Some(mut one) = state.waiting.pop() else { break };
        // A user can stop the commands that act for this user. Then the user's other runs wait, so that runs of other users do not.
        if slow.contains(&one.run.uid) || keys.is_none() && one.begun.is_none() {
            state.waiting.push(one);
            continue;
        }
        state.waiting.push(one.clone());
        // The file is written before the run is handled. If the look is killed at this run, the next look begins with the one after it.
        if !std::mem::replace(&mut is_marked, true) && state.waiting.len() > 1 {
            state.save(usage_log)?;
        }
        let of_job = keys.as_ref().map_or_else(Config::default, |(loaded, known)| config_of(&one.run, loaded, known));
        let until = deadline.min(Instant::now() + PATIENCE);
        let mut keep = |one: &WaitingRun| {
            state.waiting.pop();
            state.waiting.push(one.clone());
            state.save(usage_log)
        };
        let after = follow(&mut one, part, &of_job, seconds_now(), &mut keep, until);
        if Instant::now() >= until {
            slow.insert(one.run.uid);
        }
        state.waiting.pop();
        if after == AfterLook::Later {
            state.waiting.push(one);
        }
    }
    let saved = match wish {
        LookWish::Nothing if state.waiting.is_empty() => state.remove(usage_log),
        _ => state.save(usage_log),
    };
    read.and(taken).and(saved)
}

/// Reads new lines. The first look reads none: users know already what was there before the key was set.
/// `any_end`: runs that failed are wanted, too, if their lines do not say why.
fn read_on(
    part: &dyn AgainPart,
    state: &mut AgainState,
    usage_log: &UsageLog<'_>,
    any_end: bool,
) -> Result<(), String> {
    state.place = match state.place {
        None => {
            state.place = Some(followed::end(usage_log)?.unwrap_or(NO_LOG));
            return Ok(());
        }
        Some(NO_LOG) => None,
        Some(place) if followed::is_there(usage_log, place)? => Some(place),
        // The file that was read is gone, with its unread lines.
        Some(_) => followed::end(usage_log)?,
    };
    let (parts, waiting, holder) = (&mut state.parts, &mut state.waiting, part.holder());
    let read = followed::read_on(usage_log, &mut state.place, &mut |line| {
        let Ok(line) = serde_json::from_str(line).map(LoggedStep::new) else { return };
        let Some(run) = parts.add(line, holder, any_end) else { return };
        if waiting.len() < MOST {
            waiting.push(WaitingRun { run, begun: None, tries: 0, refused: Refusals::default() });
        } else {
            run.say_not_requeued(&format!("job {}", printable(&run.job)), &format!("{MOST} others wait"));
        }
    });
    state.place = state.place.or(Some(NO_LOG));
    read
}

/// The configuration for a job. If the job's sections are not certain, these keys are off for it.
fn config_of(run: &KilledRun, loaded: &Loaded, known: &LoggedFacts) -> Config {
    let said = |text: &Option<String>| Fact::from(text.clone());
    let line = &run.line;
    let mut facts = known(Facts {
        uid: Some(run.uid).into(),
        user: said(&line.user),
        partition: said(&line.partition),
        account: said(&line.account),
        qos: said(&line.qos),
        project: said(&line.project),
        node: said(&line.node),
        ..Facts::default()
    });
    user::know(&mut facts, &loaded.asked());
    match life::resolve(loaded, facts) {
        Ok(resolved) => resolved.config,
        Err(_) => Config {
            on_out_of_memory: None,
            on_time_limit: 0,
            on_preempt: 0,
            scavenger_end: false,
            ..loaded.config.clone()
        },
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
