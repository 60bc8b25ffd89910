// SPDX-License-Identifier: GPL-2.0-or-later
//! How much of the last minute a step was throttled: the periods in which it ran out of its quota, at the levels that have one.
//!
//! On v2 the kernel tells when all processes of a directory wait for CPU time, which they do when they are throttled (the comment of
//! kernel/sched/psi.c on `FULL`). So a step that is not throttled wakes nothing up. They also wait when others have the CPU; then there is
//! one look. v1 has nothing like it; where v2 is mounted beside it, the step's directory there tells. Of a job that is throttled, each step
//! waits, so the kernel tells by the step's own directory alone: whoever removes a directory waits for each file that tells of it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use jobfence::cgroup::limits::cpu_quota;
use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;

use super::crossing::{StepLook, UseLevel};
use super::directories::{Directories, Unseen};
use super::pace::{self, MINUTE};
use super::stall::{self, Waits};

/// How much of the window must be lost before the kernel tells. A step that loses less is not held back.
const WAITED: Duration = Duration::from_millis(20);
const WINDOW: Duration = Duration::from_secs(2);

/// The directories of a step that may have a quota.
#[derive(Debug)]
pub struct StepThrottling {
    pub directories: Directories,
    /// The throttled periods of each directory.
    minutes: Vec<Minute>,
    /// The directories by which the kernel tells of the step's own.
    waiting: Option<Directories>,
    /// The file by which the kernel tells.
    pub trigger: Option<OwnedFd>,
}

impl StepThrottling {
    /// The throttling of a step. `None`: no hierarchy here shows its CPU time.
    pub fn from_step(step: &LivingStep<'_>) -> Option<Self> {
        let directories = Directories::with_watched(step, Watched::Throttled)?;
        let waiting = Directories::with_pressure(step);
        Some(Self { directories, minutes: Vec::new(), waiting, trigger: None })
    }

    /// Looks once; with `may_be_told` the kernel is asked to tell.
    pub fn look(&mut self, share: Percent, may_be_told: bool) -> Result<StepLook, Unseen> {
        let dirs = self.directories.open()?;
        if self.trigger.is_none() && may_be_told {
            let waiting = self.waiting.as_ref().and_then(|waiting| waiting.open_step().ok());
            self.trigger = waiting.and_then(|dir| stall::trigger(&dir, "cpu", Waits::All, (WAITED, WINDOW)));
        }
        self.minutes.resize_with(dirs.len(), Minute::default);
        let now = Instant::now();
        let (mut levels, mut was_throttled) = (Vec::new(), false);
        for (dir, minute) in dirs.iter().zip(&mut self.minutes) {
            let Some(quota) = cpu_quota(dir, self.directories.version).ok().flatten() else { continue };
            let Some(throttled) = throttled(dir) else { continue };
            let share = minute.look(now, throttled, Duration::from_micros(quota.period_us));
            was_throttled |= share > 0;
            levels.push(UseLevel::from_hundredths(share));
        }
        let pause = pace::of_throttling(&levels, share);
        Ok(StepLook { levels, is_told: self.trigger.is_some() && !was_throttled, pause })
    }
}

/// The periods in which a directory ran out of its quota.
fn throttled(dir: &Dir) -> Option<u64> {
    let text = dir.read_table("cpu.stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

/// The throttled periods of a directory at the looks of the last minute, and at the last one before it.
#[derive(Debug, Default)]
struct Minute {
    seen: VecDeque<(Instant, u64)>,
}

impl Minute {
    /// The share of the last minute in which the directory was throttled, in hundredths of a percent.
    fn look(&mut self, now: Instant, throttled: u64, period: Duration) -> u64 {
        self.seen.push_back((now, throttled));
        let Some(begin) = now.checked_sub(MINUTE) else { return 0 };
        while self.seen.get(1).is_some_and(|(at, _)| *at <= begin) {
            self.seen.pop_front();
        }
        let more = throttled.saturating_sub(self.before(begin));
        let lost = period.as_micros().saturating_mul(more.into()).saturating_mul(10_000);
        u64::try_from(lost / MINUTE.as_micros()).unwrap_or(u64::MAX).min(10_000)
    }

    /// How many throttled periods there were at the minute's begin. Between two looks they count as evenly spread.
    fn before(&self, begin: Instant) -> u64 {
        let Some(&(first, count)) = self.seen.front() else { return 0 };
        let Some(&(second, later)) = self.seen.get(1).filter(|_| first < begin) else { return count };
        let (whole, part) = (second.duration_since(first).as_micros(), begin.duration_since(first).as_micros());
        let more = u128::from(later.saturating_sub(count)) * part / whole.max(1);
        count.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_millis(100);

    /// The shares at these seconds. `looks`: each second, with all throttled periods until then.
    fn shares(looks: &[(u64, u64)]) -> Vec<u64> {
        // This moment is well after the machine's start.
        let (mut minute, begin) = (Minute::default(), Instant::now() + MINUTE);
        looks.iter().map(|(at, count)| minute.look(begin + Duration::from_secs(*at), *count, PERIOD)).collect()
    }

    #[test]
    fn a_minute_has_six_hundred_periods() {
        assert_eq!(shares(&[(0, 7), (6, 67), (12, 127), (72, 127), (80, 127)]), [0, 1_000, 2_000, 0, 0]);
        // Half of what came in the eight seconds around the minute's begin counts.
        assert_eq!(shares(&[(0, 0), (8, 80), (64, 80)]), [0, 1_333, 666]);
        assert_eq!(shares(&[(0, 0), (60, 600), (61, 610), (62, 5)]), [0, 10_000, 10_000, 0]);
        // Nobody looked for an hour, so nobody knows when the periods were throttled.
        assert_eq!(shares(&[(0, 0), (3_600, 600), (3_601, 610)]), [0, 166, 333]);
    }

    proptest! {
        #[test]
        fn no_share_is_more_than_was_throttled(steps in prop::collection::vec((1_u64..30, 0_u64..400), 1..60)) {
            let (mut at, mut count, mut looks) = (0, 0, Vec::new());
            for (wait, throttled) in steps {
                (at, count) = (at + wait, count + throttled.min(10 * wait));
                looks.push((at, count));
            }
            let first = looks.first().map_or(0, |(_, count)| *count);
            for (share, (at, count)) in shares(&looks).into_iter().zip(&looks) {
                let recent = looks.iter().rev().find(|(then, _)| then + 60 <= *at).map_or(first, |(_, count)| *count);
                prop_assert!(share <= 10_000 && share * 600 <= (count - recent) * 10_000, "{share} of {looks:?}");
            }
        }
    }
}
