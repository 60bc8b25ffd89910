// SPDX-License-Identifier: GPL-2.0-or-later
//! For how long a job has done almost nothing: less than 1 % of one CPU and 10 KiB of its disks in a second, over all of its time.
//!
//! The counters are those of the job's directory, so steps that begin and end between two looks count. They are counted from a base.
//! If a job exceeds in less than `IdleAfter` what it may use in that time, it works, and its idle time begins anew. The base moves on after
//! each such time: otherwise a job that was idle for days could work for an hour before anyone saw it. A job that has used ten times as much
//! since the last look works, too: its user may have come back.

use std::time::Duration;

use serde_json::{Value, json};

/// The most CPUs that an idle job uses.
const CPUS: f64 = 0.01;

/// The most bytes a second that an idle job reads and writes: a shell's history, or a log that goes on.
const BYTES: f64 = 10.0 * 1024.0;

/// How many times an idle job's most must be used since the last look to be work at once.
const AT_ONCE: f64 = 10.0;

/// What a look at a job has found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeenActivity {
    Counters {
        /// CPU time in seconds.
        cpu: f64,
        /// The bytes that were read and written. 0 where the kernel does not count them: then nothing is done to the job.
        bytes: u64,
        /// Whether the job works although the counters do not show it: a process waits for a disk or a file system, or a GPU computes.
        is_busy: bool,
    },
    /// It is not known whether the job works, or it cannot work: its processes are stopped or frozen.
    Nothing,
}

/// A job's activity so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Activity {
    /// The base of the counting: the CPU time and the bytes at that look, and how many seconds ago it was. `None`: nothing is known yet.
    base: Option<(f64, u64, f64)>,
    /// The CPU time and the bytes at the last look.
    last: Option<(f64, u64)>,
    /// How long the job has done nothing, in seconds.
    idle: f64,
}

impl Activity {
    /// How long the job has done almost nothing, in seconds. `None`: not known.
    pub fn idle(&self) -> Option<f64> {
        self.base.map(|_| self.idle)
    }

    /// Adds a look. `passed`: the seconds since the last one.
    pub fn look(&mut self, seen: SeenActivity, passed: f64, after: Duration) {
        let SeenActivity::Counters { cpu, bytes, is_busy } = seen else {
            *self = Self::default();
            return;
        };
        let last = self.last.replace((cpu, bytes));
        let new = Self { base: Some((cpu, bytes, 0.0)), idle: 0.0, last: self.last };
        let Some((cpu_before, bytes_before, ago)) = self.base else {
            *self = new;
            return;
        };
        let after = after.as_secs_f64();
        // Counters that have gone back belong to another directory.
        let is_same = cpu >= cpu_before && bytes >= bytes_before;
        let used = (cpu - cpu_before, bytes.saturating_sub(bytes_before) as f64);
        let is_back = last.is_some_and(|(cpu_last, bytes_last)| {
            let bytes = bytes.saturating_sub(bytes_last) as f64;
            cpu - cpu_last > AT_ONCE * CPUS * passed || bytes > AT_ONCE * BYTES * passed
        });
        if !is_same || is_busy || is_back || used.0 > CPUS * after || used.1 > BYTES * after {
            *self = new;
            return;
        }
        let ago = ago + passed;
        self.base = Some(if ago < after { (cpu_before, bytes_before, ago) } else { (cpu, bytes, 0.0) });
        self.idle += passed;
    }

    /// Begins to count here. So what the job does from now on is not added to what it did before.
    pub fn count_anew(&mut self, seen: SeenActivity) {
        if let (Some(base), SeenActivity::Counters { cpu, bytes, .. }) = (&mut self.base, seen) {
            *base = (cpu, bytes, 0.0);
        }
    }

    pub fn json(&self) -> Value {
        let base = self.base.map(|(cpu, bytes, ago)| json!([cpu, bytes, ago]));
        json!({"idle": self.idle, "base": base, "last": self.last.map(|(cpu, bytes)| json!([cpu, bytes]))})
    }

    /// Reads what `json` wrote. If it is something else, nothing is known.
    pub fn from_json(value: &Value) -> Self {
        let base = value
            .get("base")
            .and_then(|base| Some((base.get(0)?.as_f64()?, base.get(1)?.as_u64()?, base.get(2)?.as_f64()?)));
        let last = value.get("last").and_then(|last| Some((last.get(0)?.as_f64()?, last.get(1)?.as_u64()?)));
        Self { base, last, idle: value.get("idle").and_then(Value::as_f64).unwrap_or(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(1000);

    fn counters(cpu: f64, bytes: u64) -> SeenActivity {
        SeenActivity::Counters { cpu, bytes, is_busy: false }
    }

    /// The idle time after each of these looks. A hundred seconds pass between two looks.
    fn idle(looks: impl IntoIterator<Item = SeenActivity>) -> Vec<Option<f64>> {
        let mut activity = Activity::default();
        let look = |seen| {
            activity.look(seen, 100.0, AFTER);
            activity.idle()
        };
        looks.into_iter().map(look).collect()
    }

    #[test]
    fn a_job_that_sleeps_is_idle_and_one_that_works_is_not() {
        assert_eq!(idle([counters(5.0, 7); 3]), [Some(0.0), Some(100.0), Some(200.0)]);
        // A use of 1 % of a CPU all the time is idleness, and a little more is work.
        let at = |share: f64| idle((0..=30).map(|look| counters(f64::from(look) * share, 0))).pop().flatten();
        assert_eq!(at(0.9), Some(3000.0));
        assert!(at(1.2).unwrap() < 1000.0, "{:?}", at(1.2));
        assert_eq!(at(100.0), Some(0.0));
    }

    #[test]
    fn a_job_that_was_idle_for_days_works_as_soon_as_any_other() {
        let asleep = std::iter::repeat_n(counters(0.0, 0), 1000);
        let mut all = idle(asleep.chain([counters(1.0, 0), counters(12.0, 0)]));
        assert_eq!((all.pop(), all.pop()), (Some(Some(0.0)), Some(Some(100_000.0))));
    }

    #[test]
    fn a_user_who_comes_back_works_at_once() {
        // A day allows much more than a thousand seconds.
        let day = Duration::from_secs(86_400);
        let idle_after = |cpu: f64, bytes: u64| {
            let mut activity = Activity::default();
            for seen in [counters(0.0, 0), counters(0.5, 0), counters(cpu, bytes)] {
                activity.look(seen, 100.0, day);
            }
            activity.idle()
        };
        assert_eq!((idle_after(9.0, 0), idle_after(11.0, 0)), (Some(200.0), Some(0.0)));
        assert_eq!((idle_after(1.0, 9 << 20), idle_after(1.0, 10 << 20)), (Some(200.0), Some(0.0)));
    }

    #[test]
    fn disks_are_work_and_so_is_waiting_for_them() {
        let read = |bytes: u64| idle([counters(0.0, 0), counters(0.0, 0), counters(0.0, bytes)]).pop().flatten();
        assert_eq!((read(5 << 20), read(50 << 20)), (Some(200.0), Some(0.0)));
        let waits = SeenActivity::Counters { cpu: 0.0, bytes: 0, is_busy: true };
        assert_eq!(idle([counters(0.0, 0), counters(0.0, 0), waits])[2], Some(0.0));
    }

    #[test]
    fn what_is_not_known_and_what_cannot_work_is_not_idle() {
        let all = idle([counters(5.0, 0), counters(5.0, 0), SeenActivity::Nothing, counters(5.0, 0), counters(5.0, 0)]);
        assert_eq!(all, [Some(0.0), Some(100.0), None, Some(0.0), Some(100.0)]);
        // The counters are another directory's of the same name.
        assert_eq!(idle([counters(5.0, 0), counters(5.0, 0), counters(1.0, 0)])[2], Some(0.0));
        assert_eq!(idle([counters(5.0, 9), counters(5.0, 9), counters(5.0, 3)])[2], Some(0.0));
    }

    #[test]
    fn what_was_allowed_before_the_sentence_is_not_added_to_what_is_done_after_it() {
        let mut activity = Activity::default();
        activity.look(counters(0.0, 0), 100.0, AFTER);
        activity.look(counters(8.0, 0), 100.0, AFTER);
        let mut other = activity;
        activity.count_anew(counters(8.0, 0));
        activity.look(counters(12.0, 0), 100.0, AFTER);
        other.look(counters(12.0, 0), 100.0, AFTER);
        assert_eq!((activity.idle(), other.idle()), (Some(200.0), Some(0.0)));
        assert_eq!(Activity::from_json(&activity.json()), activity);
        assert_eq!(Activity::from_json(&json!({})), Activity::default());
    }
}
