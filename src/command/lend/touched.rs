// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job has reserved and not touched for a while.

use std::time::{Duration, Instant};

/// A job's largest use counts for so long, and at most twice as long. A younger job may be about to use all that it has reserved, and one at
/// which nobody has looked for so long may have used it.
const WINDOW: Duration = Duration::from_secs(300);

/// The largest use of one job in this window and the one before, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Touched {
    begun: Instant,
    looked: Instant,
    now: u64,
    /// `None`: this is its first window.
    before: Option<u64>,
}

impl Touched {
    /// Of a job that is seen for the first time.
    pub fn new(at: Instant) -> Self {
        Self { begun: at, looked: at, now: 0, before: None }
    }

    /// It uses so much. `speed`: how many times faster than a clock these windows pass.
    pub fn see(&mut self, at: Instant, used: u64, speed: f64) {
        let has_passed = |since| at.saturating_duration_since(since).mul_f64(speed) >= WINDOW;
        if has_passed(self.looked) {
            *self = Self::new(at);
        } else if has_passed(self.begun) {
            (self.begun, self.before, self.now) = (at, Some(self.now), 0);
        }
        self.looked = at;
        self.now = self.now.max(used);
    }

    /// Lets a window pass.
    #[cfg(test)]
    pub fn pass(&mut self) {
        self.begun = self.begun.checked_sub(WINDOW).expect("a host that has run for so long");
    }

    /// What it has not touched of so many bytes.
    pub fn untouched(&self, granted: u64) -> u64 {
        self.before.map_or(0, |before| granted.saturating_sub(before.max(self.now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_use_of_a_while_counts_and_a_young_job_has_touched_all() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut job = Touched::new(begin);
        job.see(at(10), 40, 1.0);
        assert_eq!(job.untouched(100), 0, "it is young");
        job.see(at(299), 20, 1.0);
        assert_eq!(job.untouched(100), 0);
        job.see(at(300), 20, 1.0);
        assert_eq!(job.untouched(100), 60);
        job.see(at(590), 25, 1.0);
        job.see(at(599), 30, 1.0);
        assert_eq!(job.untouched(100), 60, "that was not long ago");
        job.see(at(600), 10, 1.0);
        assert_eq!(job.untouched(100), 70);
        job.see(at(601), 120, 1.0);
        assert_eq!(job.untouched(100), 0, "at once");
        for seconds in [700, 900, 1199, 1498] {
            job.see(at(seconds), 10, 1.0);
        }
        assert_eq!(job.untouched(100), 90);
        job.see(at(1798), 10, 1.0);
        assert_eq!(job.untouched(100), 0, "nobody has looked");
        let mut fast = Touched::new(begin);
        fast.see(at(1), 40, 1.0);
        fast.see(at(5), 40, 60.0);
        assert_eq!(fast.untouched(100), 60);
    }
}
