// SPDX-License-Identifier: GPL-2.0-or-later
//! How busy the GPUs of runs were, by the log that `jobfence hold` writes beside the usage log.
//!
//! Its line about a job comes before the job's last one, and waits here until the run is whole. Most lines name no node, so whose a line is
//! is known by the user, the id and the time, which lies within that of the run. Hours that were not observed are not measured, and nothing
//! is concluded about them from those that were.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use usage_lines::gpus::GpuLine;

use super::runs::{GpuHours, JoinedRun};

/// The most lines that wait. Then those of the half that was looked at first are forgotten, and what their runs used is unknown.
const MOST: usize = 1 << 14;

/// How far the times of a line and of its run may be apart, in microseconds: both may be cut to the second.
const APART: u64 = 2_000_000;

/// What a line says of the GPUs of a job on a node. Times are in microseconds.
#[derive(Debug)]
struct UsedGpus {
    /// When the job began, since 1970.
    started: u64,
    looked: u64,
    /// How long the use of its GPUs is known, summed over the GPUs.
    observed: u64,
    busy: u64,
    /// How many GPUs the line has. If there are more than the job was granted, it is the highest number, so that the line counts for no
    /// run.
    count: u64,
    which: u64,
    /// A hash of the whole line, by which a copy is known.
    hash: u64,
}

/// The lines about one job. Nearly every job has one line, and that needs no allocation.
#[derive(Debug)]
struct JobLines {
    first: UsedGpus,
    more: Vec<UsedGpus>,
}

impl JobLines {
    fn iter(&self) -> impl Iterator<Item = &UsedGpus> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Puts these lines together. `None`: there is none.
    fn from_lines(lines: impl IntoIterator<Item = UsedGpus>) -> Option<Self> {
        let mut lines = lines.into_iter();
        Some(Self { first: lines.next()?, more: lines.collect() })
    }

    fn into_iter(self) -> impl Iterator<Item = UsedGpus> {
        std::iter::once(self.first).chain(self.more)
    }
}

/// The lines that wait for their runs.
#[derive(Default)]
pub struct WaitingGpus {
    /// The lines of each job, by [`JoinedRun::job`].
    of: HashMap<u64, JobLines>,
    count: usize,
    hasher: RandomState,
}

impl WaitingGpus {
    /// `hasher`: the one by which the runs have their [`JoinedRun::job`].
    pub fn new(hasher: RandomState) -> Self {
        Self { hasher, ..Self::default() }
    }

    /// Adds a line. `text`: the line as it was read. `uid`: lines of other users are left out.
    pub fn add(&mut self, line: &GpuLine<'_>, text: &[u8], uid: Option<u64>) {
        if uid.is_some() && line.uid != uid {
            return;
        }
        let is_too_many = line.granted.is_some_and(|granted| line.count > granted);
        let used = UsedGpus {
            started: line.started,
            looked: line.looked,
            observed: line.observed,
            busy: line.busy,
            count: if is_too_many { u64::MAX } else { line.count },
            which: line.which,
            hash: self.hasher.hash_one(text),
        };
        let job = self.hasher.hash_one((line.uid, &*line.job));
        match self.of.get_mut(&job) {
            // A log may have been copied, so the same line may come twice.
            Some(waiting) if waiting.iter().any(|known| known.hash == used.hash) => return,
            Some(waiting) => {
                if waiting.more.len() < 4 {
                    waiting.more.reserve_exact(1);
                }
                waiting.more.push(used);
            }
            None => {
                self.of.insert(job, JobLines { first: used, more: Vec::new() });
            }
        }
        self.count += 1;
        if self.count > MOST {
            self.forget();
        }
    }

    fn forget(&mut self) {
        let mut all: Vec<u64> = self.of.values().flat_map(JobLines::iter).map(|used| used.looked).collect();
        let half = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable(half);
        let median = *median;
        let is_left = |used: &UsedGpus| used.looked > median;
        self.of.retain(|_, lines| {
            lines.more.retain(is_left);
            if !is_left(&lines.first) {
                match lines.more.pop() {
                    Some(other) => lines.first = other,
                    None => return false,
                }
            }
            true
        });
        self.count = self.of.values().map(|lines| lines.iter().count()).sum();
    }

    /// What the GPUs of a whole run did. The run's lines are taken out. `None`: not known.
    pub fn used_by(&mut self, run: &JoinedRun) -> Option<GpuHours> {
        let waiting = self.of.remove(&run.job)?;
        let (began, ended) = (run.began(), run.ended());
        // A line of another run can overlap this run, for example one of another cluster. Such a line begins before the run or ends after
        // it.
        let is_its =
            |used: &UsedGpus| used.started.saturating_add(APART) >= began && used.looked <= ended.saturating_add(APART);
        let (its, others): (Vec<UsedGpus>, Vec<UsedGpus>) = waiting.into_iter().partition(is_its);
        self.count = self.count.saturating_sub(its.len());
        if let Some(others) = JobLines::from_lines(others) {
            self.of.insert(run.job, others);
        }
        let granted = run.parts.iter().map(|part| part.gpus_granted).sum::<Option<u64>>()?;
        let held = granted as f64 * run.wall()? as f64 / HOUR;
        // If the lines have more GPUs than the run, some are another run's, and nothing tells which.
        if its.is_empty() || count_of(&its) > granted {
            return None;
        }
        let sum = |of: fn(&UsedGpus) -> u64| its.iter().map(of).fold(0, u64::saturating_add) as f64 / HOUR;
        let measured = sum(|used| used.observed).min(held);
        (measured > 0.0).then(|| GpuHours { used: sum(|used| used.busy).min(measured), measured })
    }
}

/// An hour in microseconds.
const HOUR: f64 = 3.6e9;

/// How many GPUs these lines are about. Equal GPUs at different times are the same ones. At the same time they are those of two nodes.
fn count_of(lines: &[UsedGpus]) -> u64 {
    let is_again = |at: usize, used: &UsedGpus| {
        let mut before = lines.iter().take(at).filter(|known| known.which == used.which).peekable();
        before.peek().is_some() && before.all(|known| known.started >= used.looked || used.started >= known.looked)
    };
    let counts = lines.iter().enumerate().filter(|(at, used)| !is_again(*at, used)).map(|(_, used)| used.count);
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::line::{Line, Read, read};
    use super::super::names::Names;
    use super::super::runs::{By, JoinedRuns, tests::line};
    use super::*;
    use crate::gpu::JobGpus;

    /// A line about job 5 of user 7 with one look a second. `percent`: how busy each GPU was; a negative number stands for an unknown use.
    fn gpus(started: f64, looked: f64, percent: &[f64]) -> JobGpus {
        let mut all = JobGpus { uid: Some(7), job: "5".to_owned(), started, looked, ..JobGpus::default() };
        for (number, percent) in percent.iter().enumerate() {
            let gpu = all.of(&format!("/dev/nvidia{number}"));
            let observed = looked - started;
            (gpu.observed, gpu.busy) = if *percent < 0.0 { (0.0, 0.0) } else { (observed, observed * percent / 100.0) };
        }
        all
    }

    fn add(waiting: &mut WaitingGpus, gpus: &JobGpus, uid: Option<u64>) {
        let text = gpus.json().to_string();
        let Read::Gpus(line) = read(text.as_bytes(), "") else { panic!("{text}") };
        waiting.add(&line, text.as_bytes(), uid);
    }

    /// The GPU-hours used and measured in each run of these lines. Every run has two GPUs on each of its nodes.
    fn used(lines: &[&str], of_gpus: &[JobGpus]) -> Vec<Option<(f64, f64)>> {
        let (mut names, mut runs, mut all) = (Names::default(), JoinedRuns::new(), Vec::new());
        let mut waiting = WaitingGpus::new(runs.hasher());
        of_gpus.iter().for_each(|gpus| add(&mut waiting, gpus, None));
        for text in lines {
            let line = Line { gpus_granted: Some(2), ..line(text) };
            all.extend(runs.add(&line, line.ended, &mut names, By::User));
        }
        all.extend(runs.end());
        all.iter().map(|run| waiting.used_by(run).map(|hours| (hours.used, hours.measured))).collect()
    }

    #[test]
    fn the_gpus_of_a_run_are_those_of_its_time_on_all_its_nodes() {
        let hour = "a/batch 0-3600";
        assert_eq!(used(&[hour], &[gpus(0.0, 3600.0, &[50.0, 25.0])]), [Some((0.75, 2.0))]);
        // The job ran twice: its number was used again.
        let (first, second) = (gpus(0.0, 3600.0, &[10.0, 0.0]), gpus(7200.0, 10_800.0, &[100.0, 100.0]));
        assert_eq!(used(&[hour, "a/batch 7200-10800"], &[first, second]), [Some((0.1, 2.0)), Some((2.0, 2.0))]);
        // Two nodes have devices of the same names.
        let two = [hour, "b/extern 0-3600"];
        let lines = [gpus(0.0, 3599.0, &[50.0, 50.0]), gpus(1.0, 3600.0, &[0.0, 50.0])];
        let [Some((busy, measured))] = used(&two, &lines)[..] else { panic!() };
        assert!((busy - 1.5).abs() < 0.001 && (measured - 4.0).abs() < 0.002, "{busy} {measured}");
        // Two lines have the same two GPUs at different times, as two runs of `jobfence hold` may leave them.
        let again = [gpus(0.0, 1800.0, &[50.0, 50.0]), gpus(1800.0, 3600.0, &[0.0, 0.0])];
        assert_eq!(used(&[hour], &again), [Some((0.5, 2.0))]);
    }

    #[test]
    fn hours_that_nobody_observed_are_not_measured() {
        let hour = ["a/batch 0-3600"];
        // Ten seconds of an hour say nothing about the rest of it.
        let ten = gpus(3590.0, 3600.0, &[100.0, 0.0]);
        assert_eq!(used(&hour, &[ten]), [Some((10.0 / 3600.0, 20.0 / 3600.0))]);
        // A line has one of two GPUs; a GPU has an unknown use; one of two nodes has no line.
        let whole = gpus(0.0, 3600.0, &[50.0, 25.0]);
        assert_eq!(used(&hour, &[gpus(0.0, 3600.0, &[50.0])]), [Some((0.5, 1.0))]);
        assert_eq!(used(&hour, &[gpus(0.0, 3600.0, &[50.0, -1.0])]), [Some((0.5, 1.0))]);
        assert_eq!(used(&hour, &[gpus(0.0, 3600.0, &[-1.0, -1.0])]), [None]);
        let two = ["a/batch 0-3600", "b/extern 0-3600"];
        assert_eq!(used(&two, std::slice::from_ref(&whole)), [Some((0.75, 2.0))]);
        // A copy counts once, and no more is measured than the run had.
        assert_eq!(used(&hour, &[whole.clone(), whole.clone()]), [Some((0.75, 2.0))]);
        let mut long = whole;
        long.of("/dev/nvidia0").observed = 7200.0;
        assert_eq!(used(&hour, &[long]), [Some((0.75, 2.0))]);
    }

    #[test]
    fn lines_that_may_be_anothers_are_nobodys() {
        let hour = ["a/batch 0-3600"];
        let whole = || gpus(0.0, 3600.0, &[50.0, 25.0]);
        assert_eq!(used(&hour, &[]), [None]);
        // The line is of another time, lasts longer than the run, or begins before it.
        for (started, looked) in [(4000.0, 5000.0), (0.0, 5000.0)] {
            assert_eq!(used(&hour, &[gpus(started, looked, &[50.0, 25.0])]), [None]);
        }
        assert_eq!(used(&["a/batch 1000-3600"], &[whole()]), [None]);
        // The line has more GPUs than the run: as many as another node could have, or one with another name.
        assert_eq!(used(&hour, &[whole(), gpus(1.0, 3600.0, &[50.0, 25.0])]), [None]);
        assert_eq!(used(&hour, &[gpus(0.0, 1800.0, &[50.0]), gpus(1800.0, 3600.0, &[1.0, 2.0])]), [None]);
        // The line has more GPUs than it says that the job was granted.
        assert_eq!(used(&hour, &[JobGpus { granted: Some(1), ..whole() }]), [None]);
    }

    #[test]
    fn lines_of_others_and_too_many_do_not_wait() {
        let mut waiting = WaitingGpus::default();
        add(&mut waiting, &gpus(0.0, 1.0, &[1.0]), Some(8));
        assert_eq!(waiting.count, 0);
        add(&mut waiting, &gpus(0.0, 1.0, &[1.0]), Some(7));
        assert_eq!(waiting.count, 1);
        for number in 0..2 * MOST as u64 {
            // Each job has four lines.
            let job = (number / 4).to_string();
            let line = GpuLine { job: job.as_str().into(), looked: number, ..GpuLine::default() };
            waiting.add(&line, &number.to_ne_bytes(), None);
            assert!(waiting.count <= MOST && waiting.of.len() <= MOST, "{}", waiting.count);
        }
        let lines: usize = waiting.of.values().map(|lines| lines.iter().count()).sum();
        let latest = waiting.hasher.hash_one((None::<u64>, (2 * MOST / 4 - 1).to_string().as_str()));
        assert!(lines == waiting.count && lines >= MOST / 2, "{lines}");
        assert_eq!(waiting.of[&latest].iter().count(), 4);
    }
}
