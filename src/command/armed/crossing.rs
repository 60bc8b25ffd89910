// SPDX-License-Identifier: GPL-2.0-or-later
//! When a step's user is told that something comes near its limit: numbers alone.

use std::time::{Duration, Instant};

use jobfence::config::Percent;

/// How far a step must fall below the share before the next crossing counts, in hundredths of a percent of the limit. For a small share it
/// is half of the share.
const HYSTERESIS: u32 = 500;

/// The least time between two sentences of one condition to one step.
const LEAST: Duration = Duration::from_secs(60);

/// What is in use at one look, and the limit of the job or of the step. For a share of time, both are in hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UseLevel {
    /// What is in use. Memory is without page cache that the kernel can take back at once.
    pub used: u64,
    pub limit: u64,
}

impl UseLevel {
    /// A share of time, in hundredths of a percent.
    pub fn from_hundredths(hundredths: u64) -> Self {
        Self { used: hundredths, limit: 10_000 }
    }

    /// How much more can be in use before the share is reached.
    pub fn left(self, share: Percent) -> u64 {
        share.of(self.limit).saturating_sub(self.used)
    }
}

/// The result of a look at a step.
#[derive(Debug)]
pub struct StepLook {
    /// The levels with a limit.
    pub levels: Vec<UseLevel>,
    /// Whether the kernel will tell when to look again.
    pub is_told: bool,
    /// If the kernel does not tell, how long to wait before the next look.
    pub pause: Duration,
}

/// Whether a step is above the share, and when its user was last told.
#[derive(Debug, Clone, Default)]
pub struct Crossing {
    is_above: bool,
    said: Option<Instant>,
}

impl Crossing {
    /// The level that has just crossed the share, if its user is to be told. If two levels have, it is the one with less left.
    pub fn look(&mut self, levels: &[UseLevel], share: Percent, now: Instant) -> Option<UseLevel> {
        let crossed = levels.iter().copied().filter(|level| level.left(share) == 0);
        let Some(highest) = crossed.min_by_key(|level| level.limit.saturating_sub(level.used)) else {
            let below = enough_below(share);
            self.is_above &= levels.iter().any(|level| level.left(below) == 0);
            return None;
        };
        // A crossing within the minute is told when the minute is over, if the step is still above.
        let may_say = self.said.is_none_or(|said| now.saturating_duration_since(said) >= LEAST);
        if self.is_above || !may_say {
            return None;
        }
        (self.is_above, self.said) = (true, Some(now));
        Some(highest)
    }
}

/// The share below which a step must fall before the next crossing counts.
fn enough_below(share: Percent) -> Percent {
    let share = u32::try_from(share.of(10_000)).unwrap_or(u32::MAX);
    Percent::from_hundredths(share.saturating_sub(HYSTERESIS).max(share / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARE: Percent = Percent::from_hundredths(9_000);

    fn at(used: u64) -> [UseLevel; 1] {
        [UseLevel { used, limit: 1000 }]
    }

    /// The seconds at which the user is told, if this much memory is in use at each second.
    fn said(used: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let (mut crossing, begin) = (Crossing::default(), Instant::now());
        let each = (0..).zip(used);
        let look =
            |(second, used)| crossing.look(&at(used), SHARE, begin + Duration::from_secs(second)).map(|_| second);
        each.filter_map(look).collect()
    }

    #[test]
    fn it_is_said_once_for_each_crossing() {
        assert_eq!(said([0, 899, 900, 950, 1000, 900]), [2]);
        let long = |used| std::iter::repeat_n(used, 100);
        assert_eq!(said(long(950).chain(long(849)).chain(long(900))), [0, 200]);
        // The step has not fallen far enough.
        assert_eq!(said(long(950).chain(long(850)).chain(long(900))), [0]);
    }

    #[test]
    fn a_step_in_a_circle_is_told_once_a_minute() {
        let circle = (0..600).map(|second| if second % 2 == 0 { 950 } else { 0 });
        assert_eq!(said(circle), (0..10).map(|minute| 60 * minute).collect::<Vec<_>>());
        let again_and_above = [950, 0].into_iter().chain(std::iter::repeat_n(950, 200));
        assert_eq!(said(again_and_above), [0, 60], "a crossing within the minute is said late, and not never");
    }

    #[test]
    fn the_level_that_is_nearest_to_its_limit_is_named() {
        let (job, step) = (UseLevel { used: 950, limit: 1000 }, UseLevel { used: 99, limit: 100 });
        assert_eq!(Crossing::default().look(&[job, step], SHARE, Instant::now()), Some(step));
        assert_eq!(Crossing::default().look(&[], SHARE, Instant::now()), None);
        // A step that is far below its own limit is above the share while its job is.
        let mut crossing = Crossing::default();
        let (low, now) = (UseLevel { used: 9, limit: 100 }, Instant::now());
        assert_eq!(crossing.look(&[job, low], SHARE, now), Some(job));
        assert_eq!(crossing.look(&[low, UseLevel { used: 860, ..job }], SHARE, now), None);
        assert_eq!(crossing.look(&[low, job], SHARE, now + LEAST), None);
    }

    #[test]
    fn a_small_share_can_be_crossed_again() {
        let below = |share| enough_below(Percent::from_hundredths(share)).of(10_000);
        assert_eq!([9_000, 1_000, 500, 100].map(below), [8_500, 500, 250, 50]);
        let (mut crossing, begin, share) = (Crossing::default(), Instant::now(), Percent::from_hundredths(500));
        let mut look = |second, used| {
            crossing.look(&[UseLevel::from_hundredths(used)], share, begin + Duration::from_secs(second)).is_some()
        };
        assert_eq!(
            [look(0, 600), look(100, 300), look(200, 600), look(300, 0), look(400, 500)],
            [true, false, false, false, true]
        );
    }

    proptest! {
        #[test]
        fn no_course_of_memory_makes_it_say_more(used in prop::collection::vec(0_u64..1001, 0..500)) {
            let said = said(used.clone());
            prop_assert!(said.windows(2).all(|two| two[1] - two[0] >= 60));
            prop_assert!(said.iter().all(|at| used[usize::try_from(*at).unwrap()] >= 900));
            prop_assert_eq!(said.is_empty(), used.iter().all(|used| *used < 900));
        }
    }
}
