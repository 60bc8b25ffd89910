// SPDX-License-Identifier: GPL-2.0-or-later
//! One killed run after the other: what is done at its scheduler, and what is said of it.
//!
//! The job is requeued and held, asks for more, and is let go. Each of these is done only after a look that says that it is still to be done,
//! and what was decided is kept before the first, with the scheduler's own count of restarts. So whenever `jobfence hold` ends, the next one
//! goes on from there. The count grows with each requeue, so no kill leads to two.

use std::time::Instant;

use jobfence::config::{Config, Mode};

use super::files::WaitingRun;
use super::{AgainPart, AgainTrouble, JobNow, size};
use crate::living::user_name;
use crate::table::printable;

/// How long after its end a run is looked at, in seconds: later, its user has done something else.
const PATIENCE: u64 = 3600;

/// How long after that a job that may be held by us is looked at, in seconds. A controller that is down for longer forgets such jobs.
const PATIENCE_WITH_HELD: u64 = 7 * 86_400;

/// How often something is tried before a job is requeued, or that is refused at a job that is held.
const TRIES: u64 = 20;

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
    let job = format!("job {} of {}", printable(&waiting.run.job), user_name(waiting.run.uid));
    let as_today = |why: &str| {
        log::warn!("{job} failed at its memory limit, and is not requeued: {}", printable(why));
        AfterLook::Done
    };
    let is_late = waiting.run.ended.saturating_add(PATIENCE) < now;
    if waiting.begun.is_none() && config.on_out_of_memory.is_none() {
        return AfterLook::Done;
    }
    let found = match part.look(&waiting.run, deadline) {
        Ok(found) => found,
        // One that may be held is not given up.
        Err(why) if waiting.begun.is_some() => return unknown(waiting, now, &job, &why),
        Err(why) if is_late || waiting.tries >= TRIES => return as_today(&why),
        Err(why) => {
            log::debug!("{job} failed at its memory limit, and is looked at later: {why}");
            waiting.tries += 1;
            return AfterLook::Later;
        }
    };
    match (found, waiting.begun) {
        (JobNow::Other(why), _) => as_today(&why),
        (JobNow::Ending | JobNow::Failed { .. }, _) if is_late => as_today("it has ended more than an hour ago"),
        (JobNow::Ending, _) => AfterLook::Later,
        (JobNow::Failed { restarts, asked, bounds }, None) => {
            let Some(again) = config.on_out_of_memory else { return AfterLook::Done };
            match size::next(again, restarts, asked, &bounds) {
                Err(why) => as_today(&why),
                Ok(more) if config.mode != Mode::Enforce => {
                    as_today(&format!("Mode=observe. Otherwise it would ask for {more}"))
                }
                Ok(more) => {
                    (waiting.begun, waiting.run.restarts) = (Some(more), Some(restarts));
                    if let Err(why) = keep(waiting) {
                        (waiting.begun, waiting.run.restarts) = (None, None);
                        waiting.tries += 1;
                        return if waiting.tries < TRIES { AfterLook::Later } else { as_today(&why) };
                    }
                    requeue(waiting, part, (&job, now), deadline)
                }
            }
        }
        (JobNow::Failed { .. }, Some(_)) => requeue(waiting, part, (&job, now), deadline),
        (JobNow::Held, Some(_)) => ask_and_let_go(waiting, part, (&job, now), deadline),
        (JobNow::Held, None) => as_today("it was requeued and is held, and not by this node"),
        (JobNow::Next, begun) => {
            if let Some(more) = begun {
                log::info!("{job} failed at its memory limit and was requeued; it was to ask for {more}");
            }
            AfterLook::Done
        }
    }
}

fn requeue(waiting: &mut WaitingRun, part: &dyn AgainPart, (job, now): (&str, u64), deadline: Instant) -> AfterLook {
    match part.requeue(&waiting.run, deadline) {
        Ok(()) => ask_and_let_go(waiting, part, (job, now), deadline),
        Err(AgainTrouble::Refused(why)) => match part.look(&waiting.run, deadline) {
            // An earlier command was late.
            Ok(JobNow::Held) => ask_and_let_go(waiting, part, (job, now), deadline),
            Ok(JobNow::Failed { .. } | JobNow::Other(_)) => {
                log::warn!("{job} failed at its memory limit, and is not requeued: {}", printable(&why));
                AfterLook::Done
            }
            _ => unknown(waiting, now, job, &why),
        },
        Err(AgainTrouble::Unknown(why)) => unknown(waiting, now, job, &why),
    }
}

fn ask_and_let_go(
    waiting: &mut WaitingRun,
    part: &dyn AgainPart,
    (job, now): (&str, u64),
    deadline: Instant,
) -> AfterLook {
    let Some(more) = waiting.begun else { return AfterLook::Done };
    match part.ask_for(&waiting.run, more, deadline) {
        Ok(()) => {}
        // It would be killed at the same limit again.
        Err(AgainTrouble::Refused(why)) => {
            let done = part.cancel(&waiting.run, deadline);
            log::warn!(
                "{job} failed at its memory limit and was requeued, and is cancelled, since it may not ask for {more}: {}",
                printable(&why)
            );
            return match done {
                Ok(()) => AfterLook::Done,
                Err(AgainTrouble::Refused(why)) => refused(waiting, job, &why),
                Err(AgainTrouble::Unknown(why)) => unknown(waiting, now, job, &why),
            };
        }
        Err(AgainTrouble::Unknown(why)) => return unknown(waiting, now, job, &why),
    }
    match part.let_go(&waiting.run, deadline) {
        Ok(()) => {
            let restart = waiting.run.restarts.unwrap_or_default().saturating_add(1);
            log::warn!("{job} failed at its memory limit and is requeued: it asks for {more} now (restart {restart})");
            AfterLook::Done
        }
        Err(AgainTrouble::Refused(why)) => refused(waiting, job, &why),
        Err(AgainTrouble::Unknown(why)) => unknown(waiting, now, job, &why),
    }
}

/// Something was refused at a job that may be held: it is tried again a few times.
fn refused(waiting: &mut WaitingRun, job: &str, why: &str) -> AfterLook {
    waiting.tries += 1;
    if waiting.tries < TRIES { again_later(job, why) } else { given_up(job, why) }
}

/// The scheduler has not answered: it is asked for as long as it may know the job.
fn unknown(waiting: &WaitingRun, now: u64, job: &str, why: &str) -> AfterLook {
    let is_given_up = waiting.run.ended.saturating_add(PATIENCE_WITH_HELD) < now;
    if is_given_up { given_up(job, why) } else { again_later(job, why) }
}

fn again_later(job: &str, why: &str) -> AfterLook {
    log::debug!("{job} failed at its memory limit, and what follows is tried again: {}", printable(why));
    AfterLook::Later
}

fn given_up(job: &str, why: &str) -> AfterLook {
    log::error!("{job} failed at its memory limit, and may be held in the queue: {}", printable(why));
    AfterLook::Done
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use jobfence::config::{Percent, RunAgain};
    use serde_json::json;

    use super::*;
    use crate::again::files::AgainState;
    use crate::again::{AskedMemory, KilledRun, MemoryBounds, MemoryUnit};
    use crate::logged::LoggedStep;

    const ENDED: u64 = 1_764_039_610;

    /// A job at a scheduler as Slurm is.
    struct Fake {
        /// `None`: it is in the queue, and held if `is_held`.
        has_failed: Cell<bool>,
        is_held: Cell<bool>,
        is_cancelled: Cell<bool>,
        restarts: Cell<u32>,
        mib: Cell<u64>,
        most: Option<u64>,
        refuses: Option<&'static str>,
        /// How many calls are left until `jobfence hold` dies, and whether the last of them is done.
        left: Cell<u32>,
        is_done_at_last: bool,
        calls: RefCell<Vec<&'static str>>,
    }

    impl Fake {
        fn new() -> Self {
            Self {
                has_failed: true.into(),
                is_held: false.into(),
                is_cancelled: false.into(),
                restarts: 1.into(),
                mib: 100.into(),
                most: None,
                refuses: None,
                left: u32::MAX.into(),
                is_done_at_last: false,
                calls: RefCell::default(),
            }
        }

        fn call(&self, name: &'static str, effect: impl FnOnce()) -> Result<(), AgainTrouble> {
            let left = self.left.get();
            self.left.set(left.saturating_sub(1));
            let dies = left <= 1;
            if left == 0 || dies && !self.is_done_at_last {
                return Err(AgainTrouble::Unknown("dead".to_owned()));
            }
            if self.refuses == Some(name) {
                return Err(AgainTrouble::Refused("no".to_owned()));
            }
            self.calls.borrow_mut().push(name);
            effect();
            if dies { Err(AgainTrouble::Unknown("dead".to_owned())) } else { Ok(()) }
        }
    }

    impl AgainPart for Fake {
        fn holder(&self) -> &'static str {
            "h"
        }

        fn look(&self, run: &KilledRun, _: Instant) -> Result<JobNow, String> {
            let left = self.left.get();
            self.left.set(left.saturating_sub(1));
            if left <= 1 {
                return Err("dead".to_owned());
            }
            Ok(if self.is_cancelled.get() {
                JobNow::Other("it is cancelled".to_owned())
            } else if self.restarts.get() == run.restarts.unwrap_or(1) {
                let asked = AskedMemory { unit: MemoryUnit::Node, mib: self.mib.get() };
                let bounds = MemoryBounds { per_node: self.most, ..MemoryBounds::default() };
                let restarts = self.restarts.get();
                if self.has_failed.get() { JobNow::Failed { restarts, asked, bounds } } else { JobNow::Ending }
            } else if self.is_held.get() && Some(self.restarts.get()) == run.restarts.map(|count| count + 1) {
                JobNow::Held
            } else {
                JobNow::Next
            })
        }

        fn requeue(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            if !self.has_failed.get() {
                return Err(AgainTrouble::Refused("it is pending".to_owned()));
            }
            self.call("requeue", || {
                self.has_failed.set(false);
                self.is_held.set(true);
                self.restarts.set(self.restarts.get() + 1);
            })
        }

        fn ask_for(&self, _: &KilledRun, memory: AskedMemory, _: Instant) -> Result<(), AgainTrouble> {
            self.call("ask", || self.mib.set(memory.mib))
        }

        fn let_go(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            self.call("let go", || self.is_held.set(false))
        }

        fn cancel(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            self.call("cancel", || self.is_cancelled.set(true))
        }
    }

    fn waiting() -> WaitingRun {
        let line = json!({"job": "12", "uid": 0, "started_unix_seconds": 1.0, "ended": "2025-11-25T03:00:10Z"});
        WaitingRun { run: KilledRun::of(LoggedStep::new(line)).unwrap(), begun: None, tries: 0 }
    }

    fn config() -> Config {
        let again = RunAgain { share: Percent::from_hundredths(15_000), most: 2 };
        Config { on_out_of_memory: Some(again), ..Config::default() }
    }

    /// Looks until nothing is left to do, or so often. What a look has kept is all that the next one knows if `jobfence hold` dies.
    fn looks(fake: &Fake, config: &Config, now: u64) -> AfterLook {
        let mut kept = waiting();
        for _ in 0..5 {
            let mut one = kept.clone();
            let mut keep = |one: &WaitingRun| {
                if fake.left.get() == 0 {
                    return Err("dead".to_owned());
                }
                let state = AgainState { waiting: vec![one.clone()], ..AgainState::default() };
                kept = AgainState::of_json(&state.json()).unwrap().waiting.remove(0);
                Ok(())
            };
            let after = follow(&mut one, fake, config, now, &mut keep, Instant::now());
            if fake.left.get() == 0 {
                // It died there, and the next one begins.
                fake.left.set(u32::MAX);
                continue;
            }
            kept = one;
            if after == AfterLook::Done {
                return after;
            }
        }
        AfterLook::Later
    }

    #[test]
    fn the_job_is_requeued_asks_for_more_and_is_let_go() {
        let fake = Fake::new();
        assert_eq!(looks(&fake, &config(), ENDED), AfterLook::Done);
        assert_eq!(*fake.calls.borrow(), ["requeue", "ask", "let go"]);
        assert_eq!((fake.mib.get(), fake.restarts.get(), fake.is_held.get()), (150, 2, false));
    }

    /// Wherever it dies: never two requeues, no job stays held, and none begins with as little as before.
    #[test]
    fn whenever_hold_dies_the_next_one_goes_on() {
        for calls in 1..=8 {
            for is_done_at_last in [false, true] {
                let fake = Fake { left: calls.into(), is_done_at_last, ..Fake::new() };
                assert_eq!(looks(&fake, &config(), ENDED), AfterLook::Done, "{calls}");
                let requeues = fake.calls.borrow().iter().filter(|call| **call == "requeue").count();
                let ends = (requeues, fake.mib.get(), fake.restarts.get(), fake.is_held.get());
                assert_eq!(ends, (1, 150, 2, false), "{calls} {is_done_at_last}");
            }
        }
    }

    #[test]
    fn what_is_not_wanted_or_not_possible_is_left_as_it_is() {
        let untouched = |fake: &Fake, config: &Config, now| {
            looks(fake, config, now);
            assert_eq!((fake.calls.borrow().len(), fake.restarts.get(), fake.mib.get()), (0, 1, 100));
        };
        untouched(&Fake::new(), &Config::default(), ENDED);
        untouched(&Fake::new(), &Config { mode: Mode::Observe, ..config() }, ENDED);
        untouched(&Fake { most: Some(100), ..Fake::new() }, &config(), ENDED);
        untouched(&Fake { is_cancelled: true.into(), ..Fake::new() }, &config(), ENDED);
        // It still ends; it failed long ago.
        untouched(&Fake { has_failed: false.into(), ..Fake::new() }, &config(), ENDED);
        untouched(&Fake::new(), &config(), ENDED + PATIENCE + 1);
        untouched(&Fake { refuses: Some("requeue"), ..Fake::new() }, &config(), ENDED);
        // Another has requeued it.
        let other = Fake { restarts: 2.into(), is_held: true.into(), ..Fake::new() };
        looks(&other, &config(), ENDED);
        assert!(other.calls.borrow().is_empty() && other.is_held.get());
    }

    #[test]
    fn a_job_that_may_not_ask_for_more_does_not_run_in_vain() {
        let fake = Fake { refuses: Some("ask"), ..Fake::new() };
        assert_eq!(looks(&fake, &config(), ENDED), AfterLook::Done);
        assert_eq!(*fake.calls.borrow(), ["requeue", "cancel"]);
    }

    /// The controller is away for longer than a job is requeued that nothing was begun for.
    #[test]
    fn a_job_that_may_be_held_is_not_given_up() {
        let fake = Fake { left: 2.into(), is_done_at_last: true, ..Fake::new() };
        let mut one = waiting();
        let mut look = |now, left| {
            fake.left.set(left);
            follow(&mut one, &fake, &config(), now, &mut |_| Ok(()), Instant::now())
        };
        assert_eq!(look(ENDED, 2), AfterLook::Later);
        assert!(fake.is_held.get());
        for _ in 0..3 * TRIES {
            assert_eq!(look(ENDED + 10 * PATIENCE, 1), AfterLook::Later);
        }
        assert_eq!(look(ENDED + 10 * PATIENCE, u32::MAX), AfterLook::Done);
        assert_eq!((fake.mib.get(), fake.restarts.get(), fake.is_held.get()), (150, 2, false));
    }

    #[test]
    fn nothing_is_begun_that_cannot_be_kept() {
        let (fake, mut one) = (Fake::new(), waiting());
        for at in 1..=TRIES {
            let after = follow(&mut one, &fake, &config(), ENDED, &mut |_| Err("full".to_owned()), Instant::now());
            assert_eq!((after == AfterLook::Done, one.begun), (at == TRIES, None), "{at}");
        }
        assert!(fake.calls.borrow().is_empty());
    }
}
