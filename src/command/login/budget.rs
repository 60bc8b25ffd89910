// SPDX-License-Identifier: GPL-2.0-or-later
//! The policy of `LoginBudget`, as numbers alone: how much a user has used in the window, and when the user is limited.
//!
//! What a user has used is kept for parts of the window. A part counts only while all of it is in the window, so nobody is limited for less
//! than the budget. What is used while the limit holds does not count: the user has paid for it, and the budget is whole again afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// The shortest part of a window, in seconds, and the most parts that a window has.
const SHORTEST: f64 = 60.0;
const MOST_PARTS: f64 = 240.0;

/// What has changed with a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetStep {
    Begin,
    End,
}

/// What a user has used of a budget. All times are in seconds of one clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsedBudget {
    /// What was used in each part, by the part's beginning in whole seconds.
    parts: BTreeMap<u64, f64>,
    /// Since when the user is limited.
    since: Option<f64>,
}

impl UsedBudget {
    /// What counts against the budget now.
    pub fn used(&self) -> f64 {
        // `sum` is not used, since it returns -0 for nothing.
        self.parts.values().fold(0.0, |sum, used| sum + used)
    }

    pub fn is_limited(&self) -> bool {
        self.since.is_some()
    }

    /// When the limit ends, by the same clock.
    pub fn until(&self, window: Duration) -> Option<f64> {
        self.since.map(|since| since + window.as_secs_f64())
    }

    /// Adds what was used since the last look. `budget`: the CPU time that a user has in the window; `None`: there is no budget.
    pub fn look(&mut self, now: f64, used: f64, budget: Option<Duration>, window: Duration) -> Option<BudgetStep> {
        let window = window.as_secs_f64();
        let Some(budget) = budget else {
            let was_limited = self.is_limited();
            *self = Self::default();
            return was_limited.then_some(BudgetStep::End);
        };
        // A clock that was set back must not make the limit longer than the window.
        self.since = self.since.map(|since| since.min(now));
        if let Some(since) = self.since {
            self.parts.clear();
            if now - since < window {
                return None;
            }
            self.since = None;
            return Some(BudgetStep::End);
        }
        let length = SHORTEST.max(window / MOST_PARTS);
        let begin = |at: f64| ((at / length).floor() * length).max(0.0) as u64;
        *self.parts.entry(begin(now)).or_default() += used.max(0.0);
        // A clock that was set back leaves parts in the future. They are dropped, too.
        self.parts.retain(|at, _| *at as f64 > now - window && *at as f64 <= now);
        if self.used() < budget.as_secs_f64() {
            return None;
        }
        self.parts.clear();
        self.since = Some(now);
        Some(BudgetStep::Begin)
    }

    pub fn json(&self) -> Value {
        json!({"parts": self.parts.iter().collect::<Vec<_>>(), "since": self.since})
    }

    /// Reads what was kept. Values that are no numbers are left out.
    pub fn from_json(value: &Value) -> Self {
        let parts = value["parts"].as_array().into_iter().flatten();
        let part = |part: &Value| Some((part[0].as_u64()?, part[1].as_f64().filter(|used| *used >= 0.0)?));
        Self { parts: parts.filter_map(part).collect(), since: value["since"].as_f64() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_limit_begins_at_the_budget_and_ends_with_the_window() {
        let mut used = UsedBudget::default();
        let mut look = |now: f64, more: f64| used.look(now, more, Some(HOUR), 4 * HOUR);
        assert_eq!(look(0.0, 3599.0), None);
        assert_eq!(look(10.0, 1.0), Some(BudgetStep::Begin));
        // What is used while the limit holds does not count.
        assert_eq!(look(5000.0, 9999.0), None);
        assert_eq!(look(4.0 * 3600.0 + 9.0, 9999.0), None);
        assert_eq!(look(4.0 * 3600.0 + 10.0, 9999.0), Some(BudgetStep::End));
        assert_eq!(look(4.0 * 3600.0 + 20.0, 3599.0), None);
        assert_eq!(used.used(), 3599.0);
        // Old use leaves the window.
        assert_eq!(used.look(9.0 * 3600.0, 3599.0, Some(HOUR), 4 * HOUR), None);
    }

    #[test]
    fn a_budget_that_the_site_takes_away_limits_nobody() {
        let mut used = UsedBudget::default();
        assert_eq!(used.look(0.0, 3600.0, Some(HOUR), HOUR), Some(BudgetStep::Begin));
        assert_eq!(UsedBudget::from_json(&used.json()), used);
        assert_eq!(used.look(1.0, 0.0, None, HOUR), Some(BudgetStep::End));
        assert_eq!(used, UsedBudget::default());
        assert_eq!(used.look(2.0, f64::from(1 << 30), None, HOUR), None);
    }

    proptest! {
        /// If the clock only goes forward, a limit begins only if the budget was used within the window, and lasts one window.
        #[test]
        fn nobody_is_limited_below_the_budget(
            looks in prop::collection::vec((0.0..900.0, 0.0..900.0), 1..200),
            window in 60_u64..20_000,
            budget in 60_u64..4000,
        ) {
            let (mut used, mut all, mut now) = (UsedBudget::default(), Vec::<(f64, f64)>::new(), 0.0);
            let (budget, window) = (Duration::from_secs(budget), Duration::from_secs(window));
            let (mut began, mut from) = (None::<f64>, 0.0);
            for (passed, more) in looks {
                now += passed;
                all.push((now, more));
                match used.look(now, more, Some(budget), window) {
                    Some(BudgetStep::Begin) => {
                        prop_assert!(began.is_none());
                        let in_window = |at: &&(f64, f64)| at.0 > now - window.as_secs_f64() && at.0 > from;
                        let sum: f64 = all.iter().filter(in_window).map(|(_, more)| more).sum();
                        prop_assert!(sum >= budget.as_secs_f64() - 1e-6, "{sum}");
                        began = Some(now);
                    }
                    Some(BudgetStep::End) => {
                        prop_assert!(now - began.take().unwrap() >= window.as_secs_f64());
                        from = now;
                    }
                    None => prop_assert!(began.is_none_or(|began| now - began < window.as_secs_f64())),
                }
                prop_assert_eq!(began.is_some(), used.is_limited());
            }
        }

        /// Even if the clock jumps, every limit ends within one more window, and few parts are kept.
        #[test]
        fn a_clock_that_jumps_limits_nobody_for_ever(
            looks in prop::collection::vec((-1e6..1e6, 0.0..900.0), 1..100),
            window in 60_u64..600_000,
        ) {
            let window = Duration::from_secs(window);
            let (mut used, mut now) = (UsedBudget::default(), 0.0);
            for (passed, more) in looks {
                now += passed;
                let before = used.is_limited();
                let step = used.look(now, more, Some(HOUR), window);
                prop_assert!(step != Some(BudgetStep::Begin) || !before);
                prop_assert!(used.until(window).is_none_or(|until| until <= now + window.as_secs_f64()));
                prop_assert!(used.parts.len() <= 242, "{}", used.parts.len());
            }
            used.look(now + window.as_secs_f64(), 0.0, Some(HOUR), window);
            prop_assert!(!used.is_limited());
        }
    }
}
