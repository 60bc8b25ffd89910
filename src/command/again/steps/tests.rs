// SPDX-License-Identifier: GPL-2.0-or-later

use std::cell::{Cell, RefCell};

use jobfence::config::{Percent, RunAgain};
use serde_json::json;

use super::*;
use crate::again::MemoryBounds;
use crate::again::files::AgainState;
use crate::logged::LoggedStep;

const ENDED: u64 = 1_764_039_610;

/// A command that fails, how it fails, and whether the scheduler carries it out all the same.
type Trouble = (&'static str, fn(String) -> AgainTrouble, bool);

/// A job at a scheduler as Slurm is.
struct Fake {
    /// Whether the last run has failed. Otherwise the job is in the queue, and held if `is_held`.
    has_failed: Cell<bool>,
    is_held: Cell<bool>,
    is_cancelled: Cell<bool>,
    restarts: Cell<u32>,
    mib: Cell<u64>,
    most: Option<u64>,
    /// What has ended a run of which no line says it. `None`: it failed by itself.
    ended_by: Option<RunEnd>,
    /// Whether its user lets it run once.
    is_forbidden: bool,
    trouble: Option<Trouble>,
    /// How many calls `jobfence hold` still makes before it dies, and whether the scheduler carries out the last one.
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
            ended_by: Some(RunEnd::TimeLimit),
            is_forbidden: false,
            trouble: None,
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
        match self.trouble {
            Some((of, trouble, is_done)) if of == name => {
                self.calls.borrow_mut().push(name);
                if is_done {
                    effect();
                }
                return Err(trouble("no".to_owned()));
            }
            _ => {}
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
        // Until the number of restarts is noted, any failed run is taken for the killed one.
        let not_noted = if self.is_held.get() { 1 } else { self.restarts.get() };
        Ok(if self.is_cancelled.get() {
            JobNow::Other("it is cancelled".to_owned())
        } else if self.restarts.get() == run.restarts.unwrap_or(not_noted) {
            let asked = AskedMemory { unit: MemoryUnit::Node, mib: self.mib.get() };
            let bounds = MemoryBounds { per_node: self.most, ..MemoryBounds::default() };
            let restarts = self.restarts.get();
            let ending = JobNow::Ending { restarts };
            match (self.has_failed.get(), run.end) {
                (false, _) => ending,
                (true, RunEnd::Memory) => JobNow::Failed { restarts, asked, bounds },
                (true, RunEnd::Owners) => JobNow::Ended { restarts, end: RunEnd::Owners, barred: None },
                (true, _) => match self.ended_by {
                    Some(end) => JobNow::Ended { restarts, end, barred: self.is_forbidden.then_some("no") },
                    None => JobNow::Other("Slurm says that it is FAILED".to_owned()),
                },
            }
        } else if self.is_held.get() && Some(self.restarts.get()) == run.restarts.map(|count| count + 1) {
            JobNow::Held { asked: Some(AskedMemory { unit: MemoryUnit::Node, mib: self.mib.get() }) }
        } else {
            JobNow::Next
        })
    }

    fn requeue(&self, run: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
        if !self.has_failed.get() {
            return Err(AgainTrouble::Refused("it is pending".to_owned()));
        }
        self.call("requeue", || {
            self.has_failed.set(false);
            self.is_held.set(run.end == RunEnd::Memory);
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
    let run = KilledRun::from_line(LoggedStep::new(line)).unwrap();
    WaitingRun { run, begun: None, tries: 0, refused: Refusals::default() }
}

/// A run that was ended for owners of memory.
fn ended() -> WaitingRun {
    let mut json = waiting().run.line.json.clone();
    json["job_ended_for_owners"] = "requeue".into();
    WaitingRun { run: KilledRun::from_line(LoggedStep::new(json)).unwrap(), ..waiting() }
}

/// A run whose script failed, and no line says why.
fn failed() -> WaitingRun {
    WaitingRun { run: KilledRun { end: RunEnd::Unknown, ..waiting().run }, ..waiting() }
}

fn requeues() -> Config {
    Config { scavenger_end: true, ..Config::default() }
}

fn config() -> Config {
    let again = RunAgain { share: Percent::from_hundredths(15_000), most: 2 };
    Config { on_out_of_memory: Some(again), ..Config::default() }
}

/// Looks until nothing is left to do, or this often, at the times at which a refusal may follow another one. If `jobfence hold` dies, the
/// next look knows only what this one has kept.
fn looks(fake: &Fake, config: &Config, now: u64) -> AfterLook {
    looks_at(waiting(), fake, config, now)
}

fn looks_at(mut kept: WaitingRun, fake: &Fake, config: &Config, now: u64) -> AfterLook {
    for now in (0..5).map(|look| now + look * BETWEEN) {
        let mut one = kept.clone();
        let mut keep = |one: &WaitingRun| {
            if fake.left.get() == 0 {
                return Err("dead".to_owned());
            }
            let mut state = AgainState::default();
            state.waiting.push(one.clone());
            kept = AgainState::from_json(&state.json()).unwrap().waiting.remove(0);
            Ok(())
        };
        let after = follow(&mut one, fake, config, now, &mut keep, Instant::now());
        if fake.left.get() == 0 {
            // `jobfence hold` died there, and another one begins.
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

/// Wherever `jobfence hold` dies, no job is requeued twice, none stays held, and none begins with as little memory as before.
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

/// It asks for nothing, and is never held: wherever `jobfence hold` dies, it is requeued once. No number of restarts is too many.
#[test]
fn a_run_that_was_ended_for_owners_is_requeued_as_it_was() {
    for restarts in [0, 1, 1000] {
        let fake = Fake { restarts: restarts.into(), ..Fake::new() };
        assert_eq!(looks_at(ended(), &fake, &requeues(), ENDED), AfterLook::Done);
        assert_eq!(*fake.calls.borrow(), ["requeue"]);
        assert_eq!((fake.mib.get(), fake.restarts.get(), fake.is_held.get()), (100, restarts + 1, false));
    }
    for calls in 1..=4 {
        for is_done_at_last in [false, true] {
            let fake = Fake { left: calls.into(), is_done_at_last, ..Fake::new() };
            assert_eq!(looks_at(ended(), &fake, &requeues(), ENDED), AfterLook::Done, "{calls}");
            assert_eq!((fake.restarts.get(), fake.is_held.get()), (2, false), "{calls} {is_done_at_last}");
        }
    }
    let untouched = |one: WaitingRun, fake: &Fake, config: &Config, now| {
        looks_at(one, fake, config, now);
        assert_eq!((fake.calls.borrow().len(), fake.restarts.get()), (0, 1));
    };
    // Each key is for its own runs.
    untouched(ended(), &Fake::new(), &config(), ENDED);
    untouched(waiting(), &Fake::new(), &requeues(), ENDED);
    untouched(ended(), &Fake::new(), &Config { mode: Mode::Observe, ..requeues() }, ENDED);
    untouched(ended(), &Fake { is_cancelled: true.into(), ..Fake::new() }, &requeues(), ENDED);
    untouched(ended(), &Fake::new(), &requeues(), ENDED + PATIENCE + 1);
    // Its user has requeued it, and holds it.
    let other = Fake { restarts: 2.into(), is_held: true.into(), has_failed: false.into(), ..Fake::new() };
    looks_at(WaitingRun { begun: Some(NextRun::Same), ..ended() }, &other, &requeues(), ENDED);
    assert!(other.calls.borrow().is_empty() && other.is_held.get());
}

/// It is requeued once for each end, as often as its key says. Wherever `jobfence hold` dies, nothing is done twice.
#[test]
fn a_run_that_the_scheduler_has_ended_is_requeued_as_it_was() {
    let by = |end| Fake { ended_by: Some(end), ..Fake::new() };
    let of_time = || Config { on_time_limit: 2, ..Config::default() };
    let of_others = || Config { on_preempt: 2, ..Config::default() };
    for (end, config) in [(RunEnd::TimeLimit, of_time()), (RunEnd::Preemption, of_others())] {
        let fake = by(end);
        assert_eq!(looks_at(failed(), &fake, &config, ENDED), AfterLook::Done);
        assert_eq!(*fake.calls.borrow(), ["requeue"]);
        assert_eq!((fake.mib.get(), fake.restarts.get(), fake.is_held.get()), (100, 2, false));
        for calls in 1..=4 {
            for is_done_at_last in [false, true] {
                let fake = Fake { left: calls.into(), is_done_at_last, ..by(end) };
                assert_eq!(looks_at(failed(), &fake, &config, ENDED), AfterLook::Done, "{calls}");
                assert_eq!((fake.restarts.get(), fake.is_held.get()), (2, false), "{calls} {is_done_at_last}");
            }
        }
    }
    let untouched = |fake: Fake, config: &Config, one: WaitingRun| {
        let (restarts, now) = (fake.restarts.get(), ENDED);
        looks_at(one, &fake, config, now);
        assert_eq!((fake.calls.borrow().len(), fake.restarts.get()), (0, restarts));
    };
    let both = || Config { on_preempt: 2, ..of_time() };
    // Each key is for its own ends, and is the bound for them.
    untouched(by(RunEnd::TimeLimit), &of_others(), failed());
    untouched(by(RunEnd::Preemption), &of_time(), failed());
    untouched(by(RunEnd::TimeLimit), &config(), failed());
    untouched(Fake { restarts: 2.into(), ..by(RunEnd::TimeLimit) }, &Config { on_preempt: 9, ..both() }, failed());
    untouched(Fake { restarts: 2.into(), ..by(RunEnd::Preemption) }, &Config { on_time_limit: 9, ..both() }, failed());
    untouched(by(RunEnd::TimeLimit), &both(), waiting());
    untouched(by(RunEnd::TimeLimit), &both(), ended());
    // It failed by itself, its user forbids it, or has cancelled it or requeued it.
    untouched(Fake { ended_by: None, ..Fake::new() }, &both(), failed());
    untouched(Fake { is_forbidden: true, ..Fake::new() }, &both(), failed());
    untouched(Fake { is_cancelled: true.into(), ..Fake::new() }, &both(), failed());
    let again = KilledRun { restarts: Some(0), ..failed().run };
    untouched(Fake::new(), &both(), WaitingRun { run: again, ..failed() });
    untouched(Fake::new(), &Config { mode: Mode::Observe, ..both() }, failed());
    untouched(Fake::new(), &Config::default(), failed());
}

/// What a release before this one has kept has no such member, and what a later one keeps may have another word.
#[test]
fn why_a_run_has_ended_is_kept() {
    for end in [RunEnd::Unknown, RunEnd::TimeLimit, RunEnd::Preemption] {
        let one = WaitingRun { run: KilledRun { end, ..failed().run }, ..failed() };
        assert_eq!(WaitingRun::from_json(&one.json()).unwrap().run.end, end);
    }
    for (one, end) in [(waiting(), RunEnd::Memory), (ended(), RunEnd::Owners)] {
        let mut json = one.json();
        assert_eq!(WaitingRun::from_json(&json).unwrap().run.end, end);
        json.as_object_mut().unwrap().remove("end");
        assert_eq!(WaitingRun::from_json(&json).unwrap().run.end, end);
        json["end"] = "a later word".into();
        assert!(WaitingRun::from_json(&json).is_none());
    }
}

/// Nothing of it is held, so it is given up as one for which nothing was begun.
#[test]
fn a_run_that_was_ended_for_owners_is_tried_so_often() {
    let fake = Fake { trouble: Some(("requeue", AgainTrouble::Unknown, false)), ..Fake::new() };
    let mut one = ended();
    let mut look = || follow(&mut one, &fake, &requeues(), ENDED, &mut |_| Ok(()), Instant::now());
    assert_eq!((0..=TRIES).map(|_| look()).filter(|after| *after == AfterLook::Done).count(), 1);
    let refused = Fake { trouble: Some(("requeue", AgainTrouble::Refused, false)), ..Fake::new() };
    assert_eq!(looks_at(ended(), &refused, &requeues(), ENDED), AfterLook::Done);
    assert_eq!(*refused.calls.borrow(), ["requeue"]);
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
    // The run still ends, or it failed long ago.
    untouched(&Fake { has_failed: false.into(), ..Fake::new() }, &config(), ENDED);
    untouched(&Fake::new(), &config(), ENDED + PATIENCE + 1);
    let refused = Fake { trouble: Some(("requeue", AgainTrouble::Refused, false)), ..Fake::new() };
    assert_eq!(looks(&refused, &config(), ENDED), AfterLook::Done);
    assert_eq!((refused.restarts.get(), refused.mib.get()), (1, 100));
    // Somebody else has requeued it.
    let other = Fake { restarts: 2.into(), is_held: true.into(), ..Fake::new() };
    looks(&other, &config(), ENDED);
    assert!(other.calls.borrow().is_empty() && other.is_held.get());
}

#[test]
fn a_job_that_may_not_ask_for_more_does_not_run_in_vain() {
    let fake = Fake { trouble: Some(("ask", AgainTrouble::Refused, false)), ..Fake::new() };
    assert_eq!(looks(&fake, &config(), ENDED), AfterLook::Done);
    assert_eq!(*fake.calls.borrow(), ["requeue", "ask", "ask", "ask", "cancel"]);
}

/// A controller that is busy and an administrator who errs for a moment cancel no job.
#[test]
fn only_refusals_one_after_the_other_count_and_they_take_minutes() {
    let refuses: Option<Trouble> = Some(("ask", AgainTrouble::Refused, false));
    let is_busy: Option<Trouble> = Some(("ask", AgainTrouble::Unknown, false));
    let (mut one, mut now, mut fake) = (waiting(), ENDED, Fake { trouble: is_busy, ..Fake::new() });
    let mut look = |fake: &Fake, seconds: u64| {
        now += seconds;
        let after = follow(&mut one, fake, &config(), now, &mut |_| Ok(()), Instant::now());
        // As the next look reads it.
        one = WaitingRun::from_json(&one.json()).unwrap();
        (after, one.refused.count)
    };
    assert_eq!([look(&fake, 0), look(&fake, 0)], [(AfterLook::Later, 0); 2]);
    fake.trouble = refuses;
    assert_eq!(look(&fake, 0), (AfterLook::Later, 1));
    let asked = fake.calls.borrow().len();
    assert_eq!([look(&fake, 1), look(&fake, BETWEEN - 2)], [(AfterLook::Later, 1); 2]);
    assert_eq!(fake.calls.borrow().len(), asked, "it was asked too soon");
    assert_eq!(look(&fake, 1), (AfterLook::Later, 2));
    fake.trouble = is_busy;
    assert_eq!(look(&fake, BETWEEN), (AfterLook::Later, 0));
    fake.trouble = refuses;
    assert_eq!(look(&fake, 0), (AfterLook::Later, 1));
    assert_eq!(look(&fake, BETWEEN), (AfterLook::Later, 2));
    assert!(!fake.is_cancelled.get());
    assert_eq!(look(&fake, BETWEEN).0, AfterLook::Done);
    assert!(fake.is_cancelled.get());
}

#[test]
fn what_was_written_without_refusals_is_read() {
    let one = WaitingRun { refused: Refusals { count: 2, last: ENDED }, ..waiting() };
    let mut json = one.json();
    assert_eq!(WaitingRun::from_json(&json).unwrap().refused, one.refused);
    json.as_object_mut().unwrap().remove("refused");
    assert_eq!(WaitingRun::from_json(&json).unwrap().refused, Refusals::default());
}

/// Slurm changes the memory, and then says that the partition is down.
#[test]
fn what_is_done_though_it_is_refused_counts_as_done() {
    for trouble in [AgainTrouble::Refused, AgainTrouble::Unknown] {
        let fake = Fake { trouble: Some(("ask", trouble, true)), ..Fake::new() };
        assert_eq!(looks(&fake, &config(), ENDED), AfterLook::Done);
        assert_eq!(*fake.calls.borrow(), ["requeue", "ask", "let go"]);
        assert_eq!((fake.mib.get(), fake.is_held.get()), (150, false));
    }
}

/// The controller is busy, or its index is not there yet.
#[test]
fn a_job_is_never_cancelled_for_what_is_no_refusal() {
    let fake = Fake { trouble: Some(("ask", AgainTrouble::Unknown, false)), ..Fake::new() };
    let mut one = waiting();
    for hour in 0..100 {
        let now = ENDED + hour * HOUR;
        assert_eq!(follow(&mut one, &fake, &config(), now, &mut |_| Ok(()), Instant::now()), AfterLook::Later);
    }
    assert!(fake.is_held.get() && !fake.is_cancelled.get());
}

/// The user releases the job between the look and the refusal.
#[test]
fn a_job_that_runs_is_not_cancelled() {
    let fake = Fake { trouble: Some(("ask", AgainTrouble::Refused, false)), ..Fake::new() };
    let mut one = waiting();
    let mut look = |at| follow(&mut one, &fake, &config(), ENDED + at * BETWEEN, &mut |_| Ok(()), Instant::now());
    assert_eq!((look(0), look(1)), (AfterLook::Later, AfterLook::Later));
    fake.is_held.set(false);
    assert_eq!(look(2), AfterLook::Done);
    assert!(!fake.is_cancelled.get());
}

/// The controller is away for longer than a run may wait for its requeue. Nothing was begun for the run.
#[test]
fn a_job_that_may_be_held_is_never_given_up() {
    let fake = Fake { left: 2.into(), is_done_at_last: true, ..Fake::new() };
    let mut one = WaitingRun { tries: TRIES - 1, ..waiting() };
    let mut look = |now, left| {
        fake.left.set(left);
        let after = follow(&mut one, &fake, &config(), now, &mut |_| Ok(()), Instant::now());
        (after, fake.left.get() != left)
    };
    assert_eq!(look(ENDED, 2), (AfterLook::Later, true));
    assert!(fake.is_held.get());
    // Attempts before the requeue do not count. After it, the attempts become hourly.
    let asked = |now, look: &mut dyn FnMut(u64, u32) -> (AfterLook, bool)| {
        (0..100)
            .filter(|_| {
                let (after, has_asked) = look(now, 1);
                assert_eq!(after, AfterLook::Later);
                has_asked
            })
            .count()
    };
    assert_eq!(asked(ENDED, &mut look), usize::try_from(TRIES).unwrap());
    for hour in [1, 2, 3, 24 * 365] {
        assert_eq!(asked(ENDED + hour * HOUR, &mut look), 1, "{hour}");
    }
    assert_eq!(look(ENDED + 24 * 366 * HOUR, u32::MAX).0, AfterLook::Done);
    assert_eq!((fake.mib.get(), fake.restarts.get(), fake.is_held.get()), (150, 2, false));
}

/// A requeue was begun and has changed nothing. It is not repeated if the configuration does not ask for it now, or the run is too old. The
/// job is watched for a while, in case the requeue is late.
#[test]
fn what_holds_now_decides_on_a_job_that_has_only_failed() {
    let begun = || {
        let begun = Some(NextRun::More(AskedMemory { unit: MemoryUnit::Node, mib: 150 }));
        WaitingRun { run: KilledRun { restarts: Some(1), ..waiting().run }, begun, ..waiting() }
    };
    for (config, now) in [
        (Config::default(), ENDED),
        (Config { mode: Mode::Observe, ..config() }, ENDED),
        (config(), ENDED + PATIENCE + 1),
    ] {
        for is_late in [false, true] {
            let (fake, mut one) = (Fake::new(), begun());
            let mut look = || follow(&mut one, &fake, &config, now, &mut |_| Ok(()), Instant::now());
            assert_eq!(look(), AfterLook::Later);
            if is_late {
                fake.has_failed.set(false);
                fake.is_held.set(true);
                fake.restarts.set(2);
                assert_eq!(look(), AfterLook::Done);
                assert_eq!((fake.mib.get(), fake.is_held.get()), (150, false));
            } else {
                assert!((0..TRIES).any(|_| look() == AfterLook::Done));
                assert!(fake.calls.borrow().is_empty());
            }
        }
    }
}

/// The user requeues a run that still ends. The next run that fails is not taken for it.
#[test]
fn the_first_look_tells_the_run_from_the_next_ones() {
    let (fake, mut one) = (Fake { has_failed: false.into(), restarts: 0.into(), ..Fake::new() }, waiting());
    let mut look = || follow(&mut one, &fake, &config(), ENDED, &mut |_| Ok(()), Instant::now());
    assert_eq!(look(), AfterLook::Later);
    fake.restarts.set(1);
    fake.has_failed.set(true);
    assert_eq!(look(), AfterLook::Done);
    assert!(fake.calls.borrow().is_empty());
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

#[test]
fn a_job_is_not_requeued_for_the_same_limit() {
    let of = |limit: u64, mib, unit| {
        let mut json = waiting().run.line.json.clone();
        (json["memory_limit_bytes"], json["cpus_granted"]) = ((limit << 20).into(), 4.into());
        let run = KilledRun::from_line(LoggedStep::new(json)).unwrap();
        raises(AskedMemory { unit, mib }, &run, &Config { min_ram_space: 30 << 20, ..config() }).is_ok()
    };
    assert!(of(20, 15, MemoryUnit::Node) && of(30, 31, MemoryUnit::Node) && of(30, 8, MemoryUnit::Cpu));
    assert!(!of(30, 15, MemoryUnit::Node) && !of(30, 30, MemoryUnit::Node) && !of(30, 7, MemoryUnit::Cpu));
}

#[test]
fn what_a_run_was_lent_was_too_little() {
    let of = |limit: Option<u64>, peak: Option<u64>| {
        let mut json = waiting().run.line.json.clone();
        (json["memory_limit_bytes"], json["job_memory_peak_bytes"]) = (json!(limit), json!(peak));
        let run = KilledRun::from_line(LoggedStep::new(json)).unwrap();
        killed_at(&run, AskedMemory { unit: MemoryUnit::Cpu, mib: 40 })
    };
    const MIB: u64 = 1 << 20;
    assert_eq!([of(None, None), of(None, Some(9)), of(Some(0), Some(9))], [40; 3]);
    let limit = Some(80 * MIB);
    assert_eq!([of(limit, Some(79 * MIB)), of(limit, Some(80 * MIB)), of(limit, None)], [40; 3]);
    assert_eq!([of(limit, Some(120 * MIB)), of(limit, Some(120 * MIB - 9000))], [60; 2]);
    assert_eq!(of(Some(1), Some(u64::MAX)), u64::MAX);
}

#[test]
fn a_run_that_was_lent_much_before_was_killed_at_what_the_sentence_says() {
    const MIB: u64 = 1 << 20;
    let mut json = waiting().run.line.json.clone();
    (json["memory_limit_bytes"], json["job_memory_peak_bytes"]) = (json!(40 * MIB), json!(60 * MIB));
    let of = |sentences: &[&str]| {
        let mut json = json.clone();
        json["sentences"] = json!(sentences);
        killed_at(
            &KilledRun::from_line(LoggedStep::new(json)).unwrap(),
            AskedMemory { unit: MemoryUnit::Node, mib: 40 },
        )
    };
    let at = |mib: u64| {
        format!("job 5 step batch: process 7 (x) was killed: the job reached its memory limit of {mib}.0 MiB. Ask.")
    };
    assert_eq!((of(&[&at(40)]), of(&[&at(50)]), of(&[&at(40), &at(60)]), of(&[])), (40, 50, 60, 60));
}
