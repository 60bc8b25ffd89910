// SPDX-License-Identifier: GPL-2.0-or-later
//! When a step's user is told that memory comes near its limit, and when to look again: numbers alone.

use std::time::{Duration, Instant};

use jobfence::config::Percent;

/// How far below the share memory must fall before the next crossing counts, in hundredths of a percent of the limit.
const HYSTERESIS: u32 = 500;

/// The least time between two sentences to one step, whatever its memory does.
const LEAST: Duration = Duration::from_secs(60);

/// The shortest time between two looks at a step.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// The longest, where the kernel does not say that memory has grown.
pub const LONGEST: Duration = Duration::from_secs(1);

/// So many bytes a step may have more after a second: programs that fill memory on all cores of a node are seldom faster.
const GROWTH: u64 = 4 << 30;

/// Memory at one look, and its limit: of the job, or of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Without page cache that the kernel can take back at once.
    pub used: u64,
    pub limit: u64,
}

impl MemoryUse {
    /// How much more it has until it reaches the share.
    fn left(self, share: Percent) -> u64 {
        share.of(self.limit).saturating_sub(self.used)
    }
}

/// Whether a step is above the share, and when it was last said.
#[derive(Debug, Clone, Default)]
pub struct Crossing {
    is_above: bool,
    said: Option<Instant>,
}

impl Crossing {
    /// The level that has just crossed the share, if that is to be said. Where two have, the one with less left.
    pub fn look(&mut self, levels: &[MemoryUse], share: Percent, now: Instant) -> Option<MemoryUse> {
        let crossed = levels.iter().copied().filter(|level| level.left(share) == 0);
        let Some(highest) = crossed.min_by_key(|level| level.limit.saturating_sub(level.used)) else {
            let below =
                Percent::from_hundredths(share.of(10_000).try_into().unwrap_or(u32::MAX).saturating_sub(HYSTERESIS));
            self.is_above &= levels.iter().any(|level| level.left(below) == 0);
            return None;
        };
        // Another crossing within the minute is said when the minute is over, if memory is still there.
        let may_say = self.said.is_none_or(|said| now.saturating_duration_since(said) >= LEAST);
        if self.is_above || !may_say {
            return None;
        }
        (self.is_above, self.said) = (true, Some(now));
        Some(highest)
    }
}

/// How long the step need not be looked at: the closer it is to the share, the shorter.
pub fn pause(levels: &[MemoryUse], share: Percent) -> Duration {
    let Some(left) = levels.iter().map(|level| level.left(share)).min() else { return LONGEST };
    let is_far = levels.iter().all(|level| level.used < share.of(level.limit) / 2);
    let reached = Duration::from_millis(left.saturating_mul(1000) / GROWTH);
    if is_far { LONGEST } else { reached.clamp(SHORTEST, LONGEST) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARE: Percent = Percent::from_hundredths(9_000);

    fn at(used: u64) -> [MemoryUse; 1] {
        [MemoryUse { used, limit: 1000 }]
    }

    /// The seconds at which it is said, if memory is so at each.
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
        // It has not fallen far enough.
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
        let (job, step) = (MemoryUse { used: 950, limit: 1000 }, MemoryUse { used: 99, limit: 100 });
        assert_eq!(Crossing::default().look(&[job, step], SHARE, Instant::now()), Some(step));
        assert_eq!(Crossing::default().look(&[], SHARE, Instant::now()), None);
        // A step far below its own limit is above as long as its job is.
        let mut crossing = Crossing::default();
        let (low, now) = (MemoryUse { used: 9, limit: 100 }, Instant::now());
        assert_eq!(crossing.look(&[job, low], SHARE, now), Some(job));
        assert_eq!(crossing.look(&[low, MemoryUse { used: 860, ..job }], SHARE, now), None);
        assert_eq!(crossing.look(&[low, job], SHARE, now + LEAST), None);
    }

    #[test]
    fn who_is_near_is_looked_at_more_often() {
        let gib = |used: u64, limit: u64| pause(&[MemoryUse { used: used << 30, limit: limit << 30 }], SHARE);
        assert_eq!([gib(0, 1), gib(89, 200), gib(180, 200), gib(200, 200)], [LONGEST, LONGEST, SHORTEST, SHORTEST]);
        assert_eq!(gib(178, 200), Duration::from_millis(500));
        assert_eq!((pause(&[], SHARE), pause(&at(450), SHARE), pause(&at(449), SHARE)), (LONGEST, SHORTEST, LONGEST));
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
