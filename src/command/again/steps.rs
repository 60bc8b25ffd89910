// SPDX-License-Identifier: GPL-2.0-or-later
//! One killed run after the other: what is done at its scheduler, and what is said of it.
//!
//! The job is requeued and held, asks for more, and is let go. One that was ended, by the scheduler or for owners, is only requeued. Each of these is done only
//! after a look that says that it is still to be done, and what was decided is kept before the first, with the scheduler's own count of
//! restarts. So whenever `jobfence hold` ends, the next one goes on from there. The count grows with each requeue, so no kill leads to two.

use std::time::{Duration, Instant};

use jobfence::config::{Config, Mode};

use super::files::{Refusals, WaitingRun};
use super::key::AgainKey;
use super::killed::said_limit;
use super::{AgainPart, AgainTrouble, AskedMemory, JobNow, KilledRun, MemoryUnit, NextRun, RunEnd, size};
use crate::idle::speed;
use crate::living::user_name;
use crate::table::printable;

/// How long after its end a run is still requeued, in seconds. Later, its user has done something else.
const PATIENCE: u64 = 3600;

/// How many attempts a run gets before a requeue. Then it is given up. A job that jobfence may have held is never given up: after this many
/// attempts it gets one each hour.
const TRIES: u64 = 20;

/// How many refusals of more memory, one after the other, it takes until the job is cancelled.
const REFUSALS: u64 = 3;

/// The least time between two of them, in seconds: what an administrator changes for a moment cancels no job.
const BETWEEN: u64 = 90;

/// An hour, in seconds.
const HOUR: u64 = 3600;

/// What becomes of a run after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLook {
    /// It is looked at again.
    Later,
    /// Nothing is left to do.
    Done,
}

/// Does for a run what can be done now. `config`: as it holds for the job. `keep` writes down what is known of it.
pub fn follow(
    waiting: &mut WaitingRun,
    part: &dyn AgainPart,
    config: &Config,
    now: u64,
    keep: &mut dyn FnMut(&WaitingRun) -> Result<(), String>,
    deadline: Instant,
) -> AfterLook {
    let before = waiting.refused;
    let between = Duration::from_secs(BETWEEN).div_f64(speed());
    if before.count > 0 && Duration::from_secs(now.abs_diff(before.last)) < between {
        return AfterLook::Later;
    }
    let after = go_on(waiting, part, config, now, keep, deadline);
    // Any other outcome than a refusal begins the count anew.
    if waiting.refused == before {
        waiting.refused = Refusals::default();
    }
    after
}

fn go_on(
    waiting: &mut WaitingRun,
    part: &dyn AgainPart,
    config: &Config,
    now: u64,
    keep: &mut dyn FnMut(&WaitingRun) -> Result<(), String>,
    deadline: Instant,
) -> AfterLook {
    // The line names the user. So no name service is asked, which may hang.
    let user = waiting.run.line.user.clone().unwrap_or_else(|| user_name(waiting.run.uid));
    let job = format!("job {} of {}", printable(&waiting.run.job), printable(&user));
    let is_late = waiting.run.ended.saturating_add(PATIENCE) < now;
    if waiting.begun.is_none() && !is_wanted(&waiting.run, config) {
        return AfterLook::Done;
    }
    if waiting.begun.is_some() && waiting.tries == next_hour(waiting, now) {
        return AfterLook::Later;
    }
    let found = match part.look(&waiting.run, deadline) {
        Ok(found) => found,
        // A job that jobfence may have held is not given up: nobody else would release it.
        Err(why) if waiting.begun.is_some() => return again_later(waiting, now, &job, &why),
        Err(why) if is_late || waiting.tries >= TRIES => {
            waiting.run.say_not_requeued(&job, &why);
            return AfterLook::Done;
        }
        Err(why) => {
            log::debug!("{job} is looked at later: {why}");
            waiting.tries += 1;
            return AfterLook::Later;
        }
    };
    // The number of restarts at the first look tells this run from later ones.
    if let JobNow::Ending { restarts } | JobNow::Failed { restarts, .. } | JobNow::Ended { restarts, .. } = found {
        waiting.run.restarts.get_or_insert(restarts);
    }
    if let JobNow::Ended { end, .. } = found {
        waiting.run.end = end;
    }
    let run = waiting.run.clone();
    let as_today = |why: &str| {
        run.say_not_requeued(&job, why);
        AfterLook::Done
    };
    match (&found, waiting.begun) {
        // It failed by itself, was cancelled, or was requeued by somebody else: no key is for that.
        (JobNow::Other(_) | JobNow::Held { .. } | JobNow::Next, None) if run.end == RunEnd::Unknown => AfterLook::Done,
        (JobNow::Other(why), _) => as_today(why),
        (JobNow::Ending { .. } | JobNow::Failed { .. } | JobNow::Ended { .. }, begun) if is_late => {
            let done = || as_today("it has ended more than an hour ago");
            unless_on_its_way(waiting, begun.is_some(), done)
        }
        (JobNow::Ending { .. }, _) => AfterLook::Later,
        // An earlier look wanted a requeue, but the job was not requeued. The configuration of now decides.
        (JobNow::Failed { .. } | JobNow::Ended { .. }, begun) => {
            let wanted = wanted(&found, &waiting.run, config);
            let next = match wanted {
                Some(Ok(next)) if config.mode == Mode::Enforce => next,
                wanted => {
                    let done = || match wanted {
                        None => AfterLook::Done,
                        Some(Err(why)) => as_today(&why),
                        Some(Ok(next)) => as_today(&format!("Mode=observe. Otherwise it would ask for {next}")),
                    };
                    return unless_on_its_way(waiting, begun.is_some(), done);
                }
            };
            if begun != Some(next) {
                let before = waiting.clone();
                (waiting.begun, waiting.tries) = (Some(next), 0);
                if let Err(why) = keep(waiting) {
                    *waiting = before;
                    waiting.tries += 1;
                    return if waiting.tries < TRIES { AfterLook::Later } else { as_today(&why) };
                }
            }
            requeue(waiting, part, (&job, now), deadline)
        }
        (JobNow::Held { asked }, Some(NextRun::More(_))) => {
            ask_and_let_go(waiting, part, *asked, (&job, now), deadline)
        }
        (JobNow::Held { .. }, _) => as_today("it was requeued and is held, and not by this node"),
        (JobNow::Next, Some(NextRun::Same)) => requeued(waiting, &job),
        (JobNow::Next, Some(NextRun::More(more))) => {
            log::info!("{job} failed at its memory limit and was requeued; it was to ask for {more}");
            AfterLook::Done
        }
        (JobNow::Next, None) => as_today("another run of it has begun, or waits, and not by this node"),
    }
}

/// Whether its job is to run again.
fn is_wanted(run: &KilledRun, config: &Config) -> bool {
    match run.end {
        RunEnd::Memory => config.on_out_of_memory.is_some(),
        RunEnd::Owners => config.scavenger_end,
        RunEnd::Unknown => config.on_time_limit > 0 || config.on_preempt > 0,
        RunEnd::TimeLimit => config.on_time_limit > 0,
        RunEnd::Preemption => config.on_preempt > 0,
    }
}

/// Whether a job that was ended so runs again as it was: it has not been restarted too often. The error says why not.
fn as_it_was(restarts: u32, run: &KilledRun, config: &Config) -> Result<NextRun, String> {
    let (key, most) = match run.end {
        RunEnd::TimeLimit => (AgainKey::OnTimeLimit, config.on_time_limit),
        RunEnd::Preemption => (AgainKey::OnPreempt, config.on_preempt),
        // Each such end is the site's doing, so no number of restarts is too many.
        RunEnd::Owners | RunEnd::Memory | RunEnd::Unknown => return Ok(NextRun::Same),
    };
    if restarts >= most {
        let key = key.name();
        return Err(format!("it was restarted {restarts} times already, and {key}=requeue,{most} allows no more"));
    }
    Ok(NextRun::Same)
}

/// What the next run of a job is to have that was found so. `None`: there is to be none. The error says why there is none.
fn wanted(found: &JobNow, run: &KilledRun, config: &Config) -> Option<Result<NextRun, String>> {
    match found {
        JobNow::Ended { restarts, barred, .. } => is_wanted(run, config).then(|| match barred {
            Some(why) => Err((*why).to_owned()),
            None => as_it_was(*restarts, run, config),
        }),
        JobNow::Failed { restarts, asked, bounds } => config.on_out_of_memory.map(|again| {
            let more = size::next(again, *restarts, *asked, killed_at(run, *asked), bounds);
            more.and_then(|more| raises(more, run, config)).map(NextRun::More)
        }),
        _ => None,
    }
}

/// A job that asks for what it had before is in its queue again.
fn requeued(waiting: &WaitingRun, job: &str) -> AfterLook {
    let restart = waiting.run.restarts.unwrap_or_default().saturating_add(1);
    match waiting.run.end {
        RunEnd::TimeLimit => log::warn!("{job} has reached its time limit, and is requeued (restart {restart})"),
        RunEnd::Preemption => log::warn!("{job} was preempted, and is requeued (restart {restart})"),
        RunEnd::Owners | RunEnd::Memory | RunEnd::Unknown => {
            log::warn!("{job} was ended for owners of memory, and is requeued (restart {restart})");
        }
    }
    AfterLook::Done
}

/// The limit at which a run was killed, in MiB as it was asked for: more than that, if it was lent some. Its script's line says that limit, if
/// a process of the script was killed. Otherwise it was not above the peak.
fn killed_at(run: &KilledRun, asked: AskedMemory) -> u64 {
    let known = run.line.sentences.iter().filter_map(|sentence| said_limit(sentence)).max();
    let peak = run.line.job_memory_peak_bytes;
    match (known.into_iter().chain(peak).min(), run.line.memory_limit_bytes) {
        // The kernel counts some pages at a time, so the peak is a little lower than the limit at which it has killed.
        (Some(at), Some(limit)) if limit > 0 && at > limit => {
            let mib = (u128::from(asked.mib) * u128::from(at)).div_ceil(u128::from(limit));
            u64::try_from(mib).unwrap_or(u64::MAX)
        }
        _ => asked.mib,
    }
}

/// What the next run asks for, if that raises the limit. The error says why it does not.
fn raises(more: AskedMemory, run: &KilledRun, config: &Config) -> Result<AskedMemory, String> {
    let cpus = match more.unit {
        MemoryUnit::Node | MemoryUnit::Host => 1,
        MemoryUnit::Cpu => run.cpus(),
    };
    let memory = more.mib.saturating_mul(cpus).saturating_mul(1 << 20);
    let limit = config.allowed_ram_space.of(memory).max(config.min_ram_space);
    match run.line.memory_limit_bytes {
        Some(before) if limit <= before => Err(format!("its limit would be no higher with {more} (MinRAMSpace)")),
        _ => Ok(more),
    }
}

/// The scheduler may carry out an earlier requeue late. So if one was begun, the job is looked at a few more times, although it is not to
/// run again: a job that turns out to be held is then released.
fn unless_on_its_way(waiting: &mut WaitingRun, was_begun: bool, done: impl FnOnce() -> AfterLook) -> AfterLook {
    if !was_begun || waiting.tries >= TRIES {
        return done();
    }
    waiting.tries += 1;
    AfterLook::Later
}

fn requeue(waiting: &mut WaitingRun, part: &dyn AgainPart, (job, now): (&str, u64), deadline: Instant) -> AfterLook {
    match part.requeue(&waiting.run, deadline) {
        Ok(()) if waiting.begun == Some(NextRun::Same) => requeued(waiting, job),
        Ok(()) => ask_and_let_go(waiting, part, None, (job, now), deadline),
        Err(AgainTrouble::Refused(why)) => match part.look(&waiting.run, deadline) {
            // The scheduler has carried out an earlier command late.
            Ok(JobNow::Held { asked }) => ask_and_let_go(waiting, part, asked, (job, now), deadline),
            Ok(JobNow::Failed { .. } | JobNow::Ended { .. } | JobNow::Other(_)) => {
                waiting.run.say_not_requeued(job, &why);
                AfterLook::Done
            }
            _ => again_later(waiting, now, job, &why),
        },
        Err(AgainTrouble::Unknown(why)) => again_later(waiting, now, job, &why),
    }
}

/// Has a held job ask for more, and releases it. `asked`: what the job asks for now, if that is known.
fn ask_and_let_go(
    waiting: &mut WaitingRun,
    part: &dyn AgainPart,
    asked: Option<AskedMemory>,
    (job, now): (&str, u64),
    deadline: Instant,
) -> AfterLook {
    let Some(NextRun::More(more)) = waiting.begun else { return AfterLook::Later };
    if asked != Some(more)
        && let Err(trouble) = part.ask_for(&waiting.run, more, deadline)
    {
        let (why, is_refused) = match trouble {
            AgainTrouble::Refused(why) => (why, true),
            AgainTrouble::Unknown(why) => (why, false),
        };
        // The scheduler may have done it although it reported an error, and the user may have released the job since.
        match part.look(&waiting.run, deadline) {
            Ok(JobNow::Held { asked }) if asked == Some(more) => {}
            Ok(JobNow::Held { .. }) if is_refused => {
                waiting.refused = Refusals { count: waiting.refused.count.saturating_add(1), last: now };
                // The job would be killed at the same limit again.
                if waiting.refused.count >= REFUSALS {
                    return cancel(waiting, part, &why, (job, now), deadline);
                }
                log::debug!("{job} failed at its memory limit, and is asked for more again: {}", printable(&why));
                return AfterLook::Later;
            }
            _ => return again_later(waiting, now, job, &why),
        }
    }
    match part.let_go(&waiting.run, deadline) {
        Ok(()) => {
            let restart = waiting.run.restarts.unwrap_or_default().saturating_add(1);
            log::warn!("{job} failed at its memory limit and is requeued: it asks for {more} now (restart {restart})");
            AfterLook::Done
        }
        Err(AgainTrouble::Refused(why) | AgainTrouble::Unknown(why)) => again_later(waiting, now, job, &why),
    }
}

fn cancel(
    waiting: &mut WaitingRun,
    part: &dyn AgainPart,
    why: &str,
    (job, now): (&str, u64),
    deadline: Instant,
) -> AfterLook {
    let Some(NextRun::More(more)) = waiting.begun else { return AfterLook::Done };
    match part.cancel(&waiting.run, deadline) {
        Ok(()) => {
            log::warn!(
                "{job} failed at its memory limit and was requeued, and is cancelled, since it may not ask for {more}: {}",
                printable(why)
            );
            AfterLook::Done
        }
        Err(AgainTrouble::Refused(why) | AgainTrouble::Unknown(why)) => again_later(waiting, now, job, &why),
    }
}

/// The number of attempts that stands for "the next attempt is due in the hour after this one".
fn next_hour(waiting: &WaitingRun, now: u64) -> u64 {
    (TRIES + 1).saturating_add(now.saturating_sub(waiting.run.ended) / HOUR)
}

/// Counts a failed attempt. A job that jobfence does not hold is given up after some. One that it may hold is not, for as long as the scheduler
/// knows the job: attempts follow at each look, and later each hour, since nobody else would release it.
fn again_later(waiting: &mut WaitingRun, now: u64, job: &str, why: &str) -> AfterLook {
    if waiting.begun == Some(NextRun::Same) && waiting.tries >= TRIES {
        waiting.run.say_not_requeued(job, why);
        return AfterLook::Done;
    }
    let why = printable(why);
    waiting.tries = if waiting.tries < TRIES { waiting.tries + 1 } else { next_hour(waiting, now) };
    if waiting.tries == TRIES && waiting.begun != Some(NextRun::Same) {
        log::error!(
            "{job} failed at its memory limit, and may be held in the queue: {why}. It is tried again each hour"
        );
    } else {
        log::debug!("{job} is looked at again: {why}");
    }
    AfterLook::Later
}

#[cfg(test)]
mod tests;
