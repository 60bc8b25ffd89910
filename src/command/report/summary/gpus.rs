// SPDX-License-Identifier: GPL-2.0-or-later
//! How busy the GPUs of runs were, by the log that `jobfence hold` writes beside the usage log.
//!
//! Its line about a job comes before the job's last one, and waits here until the run is whole. A line names no node, so it is only used
//! if all lines of a run together have as many GPUs as the run was granted, and each of them was measured. Otherwise it is unknown.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

use super::runs::JoinedRun;
use crate::gpu::JobGpus;
use crate::kept::KeptJob;

/// The most lines that wait. Then those of the half that was looked at first are forgotten, and what their runs used is unknown.
const MOST: usize = 1 << 16;

/// How far the times of a line and of its run may be apart, in microseconds: both may be cut to the second.
const APART: u64 = 2_000_000;

/// What a line says of the GPUs of a job on a node. Times are in microseconds since 1970.
#[derive(Debug)]
struct UsedGpus {
    started: u64,
    looked: u64,
    count: u64,
    /// As if so many had been busy all the time. `None`: of one of them it is not known.
    busy: Option<f64>,
    /// Of the whole line.
    hash: u64,
}

/// The lines that wait for their runs.
#[derive(Default)]
pub struct WaitingGpus {
    /// By [`JoinedRun::job`].
    of: HashMap<u64, Vec<UsedGpus>>,
    count: usize,
    hasher: RandomState,
}

impl WaitingGpus {
    /// `hasher`: that of the runs.
    pub fn new(hasher: RandomState) -> Self {
        Self { hasher, ..Self::default() }
    }

    /// Adds a line. `uid`: only those of this user. Returns whether it is one about GPUs.
    pub fn add(&mut self, line: &[u8], uid: Option<u64>) -> bool {
        let Some(gpus) = read(line) else { return false };
        let its = gpus.uid.map(u64::from);
        if uid.is_some() && its != uid {
            return true;
        }
        let shares = gpus.gpus.iter().map(|gpu| gpu.percent().map(|percent| percent / 100.0));
        let used = UsedGpus {
            started: micros(gpus.started),
            looked: micros(gpus.looked),
            count: gpus.gpus.len() as u64,
            busy: shares.sum(),
            hash: self.hasher.hash_one(line),
        };
        let waiting = self.of.entry(self.hasher.hash_one((its, gpus.job.as_str()))).or_default();
        // The log may have been copied.
        if waiting.iter().all(|known| known.hash != used.hash) {
            waiting.push(used);
            self.count += 1;
        }
        if self.count > MOST {
            self.forget();
        }
        true
    }

    fn forget(&mut self) {
        let mut all: Vec<u64> = self.of.values().flatten().map(|used| used.looked).collect();
        let half = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable(half);
        let median = *median;
        self.of.retain(|_, waiting| {
            waiting.retain(|used| used.looked > median);
            !waiting.is_empty()
        });
        self.count = self.of.values().map(Vec::len).sum();
    }

    /// The GPU-hours that a whole run has used, whose lines wait no longer. `None`: not known.
    pub fn used_by(&mut self, run: &JoinedRun) -> Option<f64> {
        let granted = run.parts.iter().map(|part| part.gpus_granted).sum::<Option<u64>>();
        let (began, ended) = (run.began(), run.ended());
        let mut found: (u64, Option<f64>) = (0, Some(0.0));
        if let Some(waiting) = self.of.get_mut(&run.job) {
            let is_its = |used: &UsedGpus| {
                used.started <= ended.saturating_add(APART) && used.looked.saturating_add(APART) >= began
            };
            for used in waiting.extract_if(.., |used| is_its(used)) {
                self.count = self.count.saturating_sub(1);
                found = (found.0.saturating_add(used.count), found.1.zip(used.busy).map(|(sum, more)| sum + more));
            }
            if waiting.is_empty() {
                self.of.remove(&run.job);
            }
        }
        let (count, busy) = found;
        let hours = run.wall()? as f64 / 3.6e9;
        busy.filter(|_| Some(count) == granted).map(|busy| busy * hours)
    }
}

/// What a line says, if it is one about GPUs.
fn read(line: &[u8]) -> Option<JobGpus> {
    let value: Value = serde_json::from_slice(line).ok()?;
    JobGpus::of_json(&value)
}

/// Whether a line is one about GPUs.
pub fn is_gpu_line(line: &[u8]) -> bool {
    read(line).is_some()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a negative time is no time, and the rest is in range"
)]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::super::line::Line;
    use super::super::names::Names;
    use super::super::runs::{By, JoinedRuns, tests::line};
    use super::*;

    /// A line of user 7's job 5, from second to second, with GPUs that were so busy, in percent; below 0 of unknown use.
    fn gpus(started: f64, looked: f64, percent: &[f64]) -> Vec<u8> {
        let mut all = JobGpus { uid: Some(7), job: "5".to_owned(), started, looked, ..JobGpus::default() };
        for (number, percent) in percent.iter().enumerate() {
            let gpu = all.of(&format!("/dev/nvidia{number}"));
            (gpu.observed, gpu.busy) = if *percent < 0.0 { (0.0, 0.0) } else { (100.0, *percent) };
        }
        all.json().to_string().into_bytes()
    }

    /// What the runs of these lines of two nodes have used, each with two GPUs on each of its nodes.
    fn used(lines: &[&str], of_gpus: &[Vec<u8>]) -> Vec<Option<f64>> {
        let (mut names, mut runs, mut all) = (Names::default(), JoinedRuns::new(), Vec::new());
        let mut waiting = WaitingGpus::new(runs.hasher());
        assert!(of_gpus.iter().all(|line| waiting.add(line, None)));
        for text in lines {
            let line = Line { gpus_granted: Some(2), ..line(text) };
            all.extend(runs.add(&line, line.ended, &mut names, By::User));
        }
        all.extend(runs.end());
        all.iter().map(|run| waiting.used_by(run)).collect()
    }

    #[test]
    fn the_gpus_of_a_run_are_those_of_its_time_on_all_its_nodes() {
        let hour = "a/batch 0-3600";
        assert_eq!(used(&[hour], &[gpus(0.0, 3590.0, &[50.0, 25.0])]), [Some(0.75)]);
        // The job ran twice, and the number was used again.
        let (first, second) = (gpus(0.0, 3590.0, &[10.0, 0.0]), gpus(7200.0, 10_790.0, &[100.0, 100.0]));
        assert_eq!(used(&[hour, "a/batch 7200-10800"], &[first, second]), [Some(0.1), Some(2.0)]);
        // On two nodes.
        let two = [hour, "b/extern 0-3600"];
        let lines = [gpus(0.0, 3590.0, &[50.0, 50.0]), gpus(1.0, 3591.0, &[0.0, 50.0])];
        assert_eq!(used(&two, &lines), [Some(1.5)]);
    }

    #[test]
    fn what_is_not_known_of_each_gpu_is_unknown() {
        let hour = ["a/batch 0-3600"];
        let whole = gpus(0.0, 3590.0, &[50.0, 25.0]);
        // No line; one GPU of two; one of unknown use; and two nodes of which one has no line.
        assert_eq!(used(&hour, &[]), [None]);
        assert_eq!(used(&hour, &[gpus(0.0, 3590.0, &[50.0])]), [None]);
        assert_eq!(used(&hour, &[gpus(0.0, 3590.0, &[50.0, -1.0])]), [None]);
        assert_eq!(used(&["a/batch 0-3600", "b/extern 0-3600"], std::slice::from_ref(&whole)), [None]);
        // A copy counts once; another time is another run's.
        assert_eq!(used(&hour, &[whole.clone(), whole]), [Some(0.75)]);
        assert_eq!(used(&hour, &[gpus(4000.0, 5000.0, &[50.0, 25.0])]), [None]);
        assert_eq!(used(&["a/batch 7200-10800"], &[gpus(0.0, 3590.0, &[50.0, 25.0])]), [None]);
    }

    #[test]
    fn lines_of_others_and_too_many_do_not_wait() {
        let mut waiting = WaitingGpus::default();
        assert!(waiting.add(&gpus(0.0, 1.0, &[1.0]), Some(8)) && waiting.count == 0);
        assert!(waiting.add(&gpus(0.0, 1.0, &[1.0]), Some(7)) && waiting.count == 1);
        for foreign in ["", "{}", "nothing", "{\"schema\":\"jobfence-series-1\",\"job\":\"7\"}"] {
            assert!(!waiting.add(foreign.as_bytes(), None), "{foreign}");
        }
        for second in 0..2 * MOST {
            let used = UsedGpus { started: 0, looked: second as u64, count: 1, busy: None, hash: 0 };
            waiting.of.entry(second as u64).or_default().push(used);
            waiting.count += 1;
            if waiting.count > MOST {
                waiting.forget();
            }
        }
        assert!(waiting.count <= MOST && waiting.of.contains_key(&(2 * MOST as u64 - 1)), "{}", waiting.count);
    }
}
