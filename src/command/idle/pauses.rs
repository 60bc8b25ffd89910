// SPDX-License-Identifier: GPL-2.0-or-later
//! Time in which a job could not work, or in which nobody looked. It makes no job idle.

use std::time::Duration;

use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::sys::process;

/// The variable by which tests let long waits pass faster, in a program that was built for tests. A release does not have it.
const SPEED_OF_TESTS: &str = "JOBFENCE_TEST_IDLE_SPEED";

/// How many times faster than a clock idle time passes, and the wait between two tries at a scheduler that refuses.
pub fn speed() -> f64 {
    if !cfg!(debug_assertions) {
        return 1.0;
    }
    std::env::var(SPEED_OF_TESTS).ok().and_then(|speed| speed.parse().ok()).unwrap_or(1.0)
}

/// The seconds between two looks that count, and whether the looks were no further apart than usual. Nothing is known about a pause of this
/// program, a clock that was set, or a node that slept.
pub fn time_between(before: f64, at: f64, interval: Duration) -> (f64, bool) {
    let most = 2.0 * interval.as_secs_f64();
    let passed = at - before;
    match before {
        0.0 => (0.0, false),
        _ => (passed.clamp(0.0, most), passed > 0.0 && passed <= most),
    }
}

/// Whether all of the user's processes in these steps are stopped or frozen, and whether a thread in them waits for a disk or a file system.
/// `None`: that cannot be seen.
pub fn states(steps: &[&LivingStep<'_>], host: &Host) -> Option<(bool, bool)> {
    let (mut stopped, mut others, mut waits) = (false, false, false);
    for step in steps {
        if step.is_frozen() {
            stopped = true;
            continue;
        }
        for process in step.processes().ok()? {
            let states = process::states(&host.proc, process.pid);
            waits |= states.contains(&'D');
            // The scheduler's daemons run even while a job is suspended.
            if step.uid.is_some() && process::uid(&host.proc, process.pid) != step.uid {
                continue;
            }
            let runs = |state: &char| !matches!(state, 'T' | 't' | 'Z' | 'X');
            stopped |= states.iter().any(|state| matches!(state, 'T' | 't'));
            others |= states.iter().any(runs);
        }
    }
    Some((stopped && !others, waits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_was_looked_at_counts() {
        let interval = Duration::from_secs(10);
        let between = |before: f64, at: f64| time_between(before, at, interval);
        assert_eq!(between(100.0, 110.0), (10.0, true));
        // The looks are the first one, one after a pause or with a clock that was set, and one with a clock that was set back.
        assert_eq!(between(0.0, 110.0), (0.0, false));
        assert_eq!(between(100.0, 4000.0), (20.0, false));
        assert_eq!(between(4000.0, 110.0), (0.0, false));
    }
}
