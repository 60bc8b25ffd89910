// SPDX-License-Identifier: GPL-2.0-or-later
//! What follows from a job's idle time: a sentence when it is too long, and what the site wants when it is as long again.
//!
//! Only time that was looked at counts. So a clock that is set, a node that sleeps and a pause of `jobfence hold` bring nothing nearer, and
//! at the first look after them nothing is done.

use std::time::Duration;

use jobfence::config::IdleAction;
use serde_json::{Value, json};

/// The time from SIGTERM to SIGKILL, in seconds. It is the default of Slurm's KillWait.
const PATIENCE: f64 = 30.0;

/// What is known of a job's idle time at a look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IdleLook {
    /// How long the job is idle, in seconds. `None`: it is not idle, or that is not known.
    pub idle: Option<f64>,
    /// How long the whole job is idle, in seconds: one of several GPUs may work.
    pub all_idle: Option<f64>,
    /// The seconds since the last look, or as many as looks are usually apart, if that is less.
    pub passed: f64,
    /// Whether the last look was no longer ago than usual.
    pub is_next: bool,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleStep {
    /// Tell the job's user.
    Tell,
    /// Signal the job, or cancel it.
    Act(IdleAction),
    /// Kill the processes that have not ended.
    Kill,
}

/// What was done in this idle time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IdleDecision {
    /// What the job's user was told would be done. `None`: the user was told nothing.
    announced: Option<IdleAction>,
    /// The seconds since the user was told.
    since_told: f64,
    /// Whether telling the user failed. Then it is tried again, and nothing is done to the job before.
    is_unheard: bool,
    is_done: bool,
    /// Whether the job was left alone when the time was over, since it may work elsewhere.
    is_spared: bool,
    /// The seconds since the job's processes got SIGTERM. The rest of them is killed later.
    since_ended: Option<f64>,
}

impl IdleDecision {
    /// Takes a look, and decides.
    pub fn look(&mut self, look: IdleLook, after: Duration, action: IdleAction) -> Option<IdleStep> {
        let after = after.as_secs_f64();
        if let Some(since) = &mut self.since_ended {
            // A cancelled job has had its time, whatever it does now.
            *since += look.passed;
            if *since < PATIENCE {
                return None;
            }
            self.since_ended = None;
            return Some(IdleStep::Kill);
        }
        if look.idle.is_none_or(|idle| idle < after) {
            *self = Self::default();
            return None;
        }
        if self.announced != Some(action) {
            *self = Self { announced: Some(action), ..Self::default() };
            return Some(IdleStep::Tell);
        }
        self.since_told += look.passed;
        if self.is_unheard && self.since_told >= after {
            (self.is_unheard, self.since_told) = (false, 0.0);
            return Some(IdleStep::Tell);
        }
        let is_due = self.since_told >= after && look.all_idle.is_some_and(|idle| idle >= after);
        if action == IdleAction::Warn || self.is_done || !is_due || !look.is_next {
            return None;
        }
        self.is_done = true;
        Some(IdleStep::Act(action))
    }

    /// Notes that the user could not be told.
    pub fn not_heard(&mut self) {
        self.is_unheard = true;
    }

    /// Whether the user was told in this idle time.
    pub fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// What was done to the job, as the end of a sentence about it. A failed attempt was not done.
    pub fn done(&self) -> Option<&'static str> {
        match self.announced.filter(|_| self.is_done && !self.is_spared)? {
            IdleAction::Warn => None,
            IdleAction::Signal => Some("its processes have got SIGTERM for that"),
            IdleAction::Cancel => Some("it is cancelled for that"),
        }
    }

    /// Leaves the job alone for the rest of this idle time.
    pub fn spare(&mut self) {
        self.is_spared = true;
    }

    /// Notes that nothing could be done. The next attempt comes after the same time.
    pub fn put_off(&mut self) {
        (self.is_done, self.since_told) = (false, 0.0);
    }

    /// Notes that the job's processes have got SIGTERM. The ones that are left are killed later.
    pub fn kill_later(&mut self) {
        self.since_ended = Some(0.0);
    }

    pub fn json(&self) -> Value {
        json!({
            "announced": self.announced.map(|action| action as u8),
            "since_told": self.since_told,
            "is_unheard": self.is_unheard,
            "is_done": self.is_done,
            "is_spared": self.is_spared,
            "since_ended": self.since_ended,
        })
    }

    /// Reads what `json` wrote. If it is something else, nothing was said yet.
    pub fn from_json(value: &Value) -> Self {
        let announced = value.get("announced").and_then(Value::as_u64);
        let all = [IdleAction::Warn, IdleAction::Signal, IdleAction::Cancel];
        Self {
            announced: all.into_iter().find(|action| announced == Some(u64::from(*action as u8))),
            is_unheard: value.get("is_unheard").and_then(Value::as_bool).unwrap_or(false),
            since_told: value.get("since_told").and_then(Value::as_f64).unwrap_or(0.0),
            is_done: value.get("is_done").and_then(Value::as_bool).unwrap_or(false),
            is_spared: value.get("is_spared").and_then(Value::as_bool).unwrap_or(false),
            since_ended: value.get("since_ended").and_then(Value::as_f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use IdleAction::{Cancel, Signal, Warn};

    const AFTER: Duration = Duration::from_secs(60);

    fn look(idle: f64) -> IdleLook {
        IdleLook { idle: Some(idle), all_idle: Some(idle), passed: 20.0, is_next: true }
    }

    const BUSY: IdleLook = IdleLook { idle: None, all_idle: None, passed: 20.0, is_next: true };

    fn steps(action: IdleAction, looks: &[IdleLook]) -> Vec<Option<IdleStep>> {
        let mut decision = IdleDecision::default();
        looks.iter().map(|look| decision.look(*look, AFTER, action)).collect()
    }

    fn idle_for(looks: u8) -> Vec<IdleLook> {
        (1..=looks).map(|at| look(20.0 * f64::from(at))).collect()
    }

    #[test]
    fn it_is_said_once_and_done_once_after_as_long_again() {
        let at = |action| -> Vec<(usize, IdleStep)> {
            let steps = steps(action, &idle_for(20)).into_iter().enumerate();
            steps.filter_map(|(at, step)| Some((20 * (at + 1), step?))).collect()
        };
        assert_eq!(at(Warn), [(60, IdleStep::Tell)]);
        for action in [Signal, Cancel] {
            assert_eq!(at(action), [(60, IdleStep::Tell), (120, IdleStep::Act(action))]);
        }
    }

    #[test]
    fn a_job_that_works_again_is_spared_and_told_again() {
        let mut looks = idle_for(5);
        looks.push(BUSY);
        looks.extend(idle_for(5));
        let found: Vec<_> = steps(Cancel, &looks).into_iter().flatten().collect();
        assert_eq!(found, [IdleStep::Tell, IdleStep::Tell]);
        // The idle time is short again, and no look has seen the job work.
        let mut looks = idle_for(5);
        looks.extend(idle_for(5));
        assert_eq!(steps(Cancel, &looks).into_iter().flatten().count(), 2);
    }

    #[test]
    fn nothing_is_done_right_after_a_pause_or_while_a_part_works() {
        let long = look(7200.0);
        let pause = IdleLook { is_next: false, ..long };
        let working = IdleLook { all_idle: Some(0.0), ..long };
        let unknown = IdleLook { all_idle: None, ..long };
        for other in [pause, working, unknown] {
            let mut looks = vec![long; 3];
            looks.extend([other, other, long]);
            let steps = steps(Cancel, &looks);
            assert_eq!(steps[0], Some(IdleStep::Tell));
            assert_eq!(steps[1..5], [None; 4], "{other:?}");
            assert_eq!(steps[5], Some(IdleStep::Act(Cancel)), "{other:?}");
        }
        // Time without a look does not count, however long the job has been idle.
        let slept = IdleLook { passed: 0.0, ..long };
        assert_eq!(steps(Cancel, &[long, slept, slept, slept, slept])[1..], [None; 4]);
    }

    #[test]
    fn nothing_is_done_before_the_user_was_told() {
        let mut decision = IdleDecision::default();
        let long = look(7200.0);
        let mut found = Vec::new();
        for at in 1..12 {
            if let Some(step) = decision.look(long, AFTER, Cancel) {
                if at < 5 {
                    decision.not_heard();
                }
                found.push((at, step));
            }
        }
        assert_eq!(
            found[..],
            [(1, IdleStep::Tell), (4, IdleStep::Tell), (7, IdleStep::Tell), (10, IdleStep::Act(Cancel))]
        );
    }

    #[test]
    fn nobody_is_cancelled_who_was_told_of_less() {
        let mut decision = IdleDecision::default();
        let long = look(7200.0);
        let mut step = |action| decision.look(long, AFTER, action);
        assert_eq!([Warn, Warn, Warn, Warn, Warn].map(&mut step)[1..], [None; 4]);
        assert_eq!(
            [Cancel, Cancel, Cancel, Cancel, Cancel].map(&mut step),
            [Some(IdleStep::Tell), None, None, Some(IdleStep::Act(Cancel)), None]
        );
    }

    #[test]
    fn what_failed_is_tried_again_later_and_what_is_left_is_killed() {
        let mut decision = IdleDecision::default();
        let long = look(7200.0);
        let until =
            |decision: &mut IdleDecision, look| (1..20).find_map(|at| Some((at, decision.look(look, AFTER, Cancel)?)));
        until(&mut decision, long);
        assert_eq!(until(&mut decision, long), Some((3, IdleStep::Act(Cancel))));
        decision.put_off();
        assert_eq!(until(&mut decision, long), Some((3, IdleStep::Act(Cancel))));
        let mut spared = decision;
        assert!(spared.done().is_some());
        spared.spare();
        assert_eq!((spared.done(), IdleDecision::from_json(&spared.json())), (None, spared));
        decision.kill_later();
        let kept = IdleDecision::from_json(&decision.json());
        assert_eq!(kept, decision);
        // A cancelled job is not spared, even if it works while it ends.
        assert_eq!(until(&mut decision, BUSY), Some((2, IdleStep::Kill)));
        assert_eq!(IdleDecision::from_json(&Value::Null), IdleDecision::default());
    }
}
