// SPDX-License-Identifier: GPL-2.0-or-later
//! When a step is looked at again: the closer it is to a share, the sooner. Numbers alone.

use std::time::{Duration, Instant};

use jobfence::config::Percent;

use super::crossing::UseLevel;

/// The shortest time between two looks at a step's memory.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// The shortest time between two looks at anything else. All steps that are due within it are looked at together.
pub const COARSE: Duration = Duration::from_secs(1);

/// The longest time between two looks if the kernel does not tell: for memory, and for a step with few processes.
const LONGEST: Duration = Duration::from_secs(1);
const FEW_PROCESSES: Duration = Duration::from_secs(4);

/// How many bytes more a step may have after a second. Programs that fill memory on all cores of a node are seldom faster.
const GROWTH: u64 = 4 << 30;

/// The time that `cpu:throttled` is a share of.
pub const MINUTE: Duration = Duration::from_secs(60);

/// Whether every level is below half of the share.
fn is_far(levels: &[UseLevel], share: Percent) -> bool {
    levels.iter().all(|level| level.used < share.of(level.limit) / 2)
}

/// How long a step's memory need not be looked at.
pub fn of_memory(levels: &[UseLevel], share: Percent) -> Duration {
    let Some(left) = levels.iter().map(|level| level.left(share)).min() else { return LONGEST };
    let reached = Duration::from_millis(left.saturating_mul(1000) / GROWTH);
    if is_far(levels, share) { LONGEST } else { reached.clamp(SHORTEST, LONGEST) }
}

/// How long a step's processes need not be counted. A step that starts them faster reaches the limit before its user is told.
pub fn of_processes(levels: &[UseLevel], share: Percent) -> Duration {
    if is_far(levels, share) { FEW_PROCESSES } else { COARSE }
}

/// How long a step's throttling need not be read: in a second, its share of a minute grows by a sixtieth at most. The levels are in
/// hundredths of a percent.
pub fn of_throttling(levels: &[UseLevel], share: Percent) -> Duration {
    let left = levels.iter().map(|level| level.left(share)).min().unwrap_or_else(|| share.of(10_000));
    (MINUTE * u32::try_from(left).unwrap_or(u32::MAX).min(10_000) / 10_000).max(COARSE)
}

/// The next moment at which anything but memory is looked at. All steps share these moments: whole seconds since `begin`. `pause`: how long
/// the step may wait.
pub fn together(begin: Instant, now: Instant, pause: Duration) -> Instant {
    let seconds = (now.saturating_duration_since(begin) + pause.max(COARSE)).as_secs();
    begin + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARE: Percent = Percent::from_hundredths(9_000);

    fn at(used: u64) -> [UseLevel; 1] {
        [UseLevel { used, limit: 1000 }]
    }

    #[test]
    fn who_is_near_is_looked_at_more_often() {
        let gib = |used: u64, limit: u64| of_memory(&[UseLevel { used: used << 30, limit: limit << 30 }], SHARE);
        assert_eq!([gib(0, 1), gib(89, 200), gib(180, 200), gib(200, 200)], [LONGEST, LONGEST, SHORTEST, SHORTEST]);
        assert_eq!(gib(178, 200), Duration::from_millis(500));
        let far = (of_memory(&[], SHARE), of_memory(&at(450), SHARE), of_memory(&at(449), SHARE));
        assert_eq!(far, (LONGEST, SHORTEST, LONGEST));
        assert_eq!([0, 449, 450, 1000].map(|used| of_processes(&at(used), SHARE).as_secs()), [4, 4, 1, 1]);
        assert_eq!(of_processes(&[], SHARE), FEW_PROCESSES);
    }

    #[test]
    fn no_share_of_a_minute_is_reached_before_it_is_read() {
        let of = |used, share| of_throttling(&[UseLevel { used, limit: 10_000 }], Percent::from_hundredths(share));
        assert_eq!(
            [of(0, 2_000), of(1_000, 2_000), of(1_990, 2_000), of(9_000, 2_000)].map(|at| at.as_secs()),
            [12, 6, 1, 1]
        );
        assert_eq!(of_throttling(&[], Percent::from_hundredths(2_000)), Duration::from_secs(12));
    }

    proptest! {
        #[test]
        fn steps_that_are_due_in_the_same_second_are_one_wake_up(gone in 0_u64..100_000, pauses in prop::collection::vec(0_u64..20_000, 1..50)) {
            let begin = Instant::now();
            let now = begin + Duration::from_millis(gone);
            let due: Vec<_> = pauses.iter().map(|pause| (*pause, together(begin, now, Duration::from_millis(*pause)))).collect();
            for (pause, due) in &due {
                let wait = due.saturating_duration_since(now);
                prop_assert!(*due > now && wait <= Duration::from_millis(*pause).max(COARSE));
                prop_assert_eq!(due.duration_since(begin).subsec_nanos(), 0);
            }
        }
    }
}
