// SPDX-License-Identifier: GPL-2.0-or-later
//! Adds up what runs used: for each group, for each week, and for all.
//!
//! A figure of a run counts only if both the reserved and the used amount are known. Otherwise the run counts as unknown.

use std::collections::{BTreeMap, HashMap};

use super::names::NameId;
use super::runs::{By, GpuHours, JoinedRun, RunOnNode};

/// The most weeks. A log with more weeks has wrong times.
const WEEKS: usize = 1040;

/// Sums over runs. Hours are of CPUs, GiB and GPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    pub jobs: u64,
    pub cpu_reserved: f64,
    pub cpu_used: f64,
    /// What was reserved and not used. A run that used more than it reserved makes up for no other run.
    pub cpu_wasted: f64,
    pub cpu_unknown: u64,
    /// What was reserved by runs whose use is not known.
    pub cpu_unmeasured: f64,
    pub memory_reserved: f64,
    pub memory_used: f64,
    pub memory_unknown: u64,
    pub gpu_reserved: f64,
    pub gpu_unknown: u64,
    /// The hours in which GPUs were busy, of `gpu_measured`: the hours in which their use is known.
    pub gpu_used: f64,
    pub gpu_measured: f64,
    /// Runs that may have held GPUs whose use is not known.
    pub gpu_use_unknown: u64,
    /// What system calls have read and written, in bytes.
    pub files_read: u64,
    pub files_written: u64,
    pub files_unknown: u64,
    pub out_of_memory: u64,
    pub out_of_memory_unknown: u64,
    pub failed: u64,
    pub exit_unknown: u64,
    pub periods: u64,
    pub throttled_periods: u64,
}

const HOUR: f64 = 3600.0 * 1e6;
const GIB: f64 = 1_073_741_824.0;

/// The sums of one run: over its nodes, or for one of them.
fn sums_of<'a>(
    parts: impl Iterator<Item = &'a RunOnNode> + Clone,
    is_success: Option<bool>,
    gpu_hours: Option<GpuHours>,
) -> Sums {
    let all = |of: fn(&RunOnNode) -> Option<(f64, f64)>| {
        parts.clone().map(of).try_fold((0.0, 0.0), |sum, part| {
            let (reserved, used) = part?;
            Some((sum.0 + reserved, sum.1 + used))
        })
    };
    let hours = |part: &RunOnNode| part.wall().map(|wall| wall as f64 / HOUR);
    let cpu = all(|part| {
        let hours = part.wall()? as f64 / HOUR;
        Some((part.cpus()? as f64 / 1000.0 * hours, part.cpu? as f64 / HOUR))
    });
    let granted: Option<f64> = parts.clone().map(|part| Some(part.cpus()? as f64 / 1000.0 * hours(part)?)).sum();
    let memory = all(|part| {
        let hours = part.wall()? as f64 / HOUR;
        Some((part.memory()? as f64 / GIB * hours, part.memory_peak? as f64 / GIB * hours))
    });
    let gpu: Option<f64> = parts.clone().map(|part| Some(part.gpus_granted? as f64 * hours(part)?)).sum();
    let of_gpus = match gpu {
        // A run that had no GPU used none.
        Some(reserved) if reserved <= 0.0 => Some((0.0, 0.0)),
        reserved => reserved.zip(gpu_hours).map(|(reserved, hours)| {
            let measured = hours.measured.min(reserved);
            (measured, hours.used.min(measured))
        }),
    };
    let moved = parts.clone().map(|part| part.moved).try_fold((0_u64, 0_u64), |sum, moved| {
        let (read, written) = moved?;
        Some((sum.0.saturating_add(read), sum.1.saturating_add(written)))
    });
    let kills = parts.clone().filter_map(|part| part.oom_kills).reduce(u64::saturating_add);
    let sum = |of: fn(&RunOnNode) -> Option<u64>| parts.clone().filter_map(of).fold(0, u64::saturating_add);
    Sums {
        jobs: 1,
        cpu_reserved: cpu.map_or(0.0, |(reserved, _)| reserved),
        cpu_used: cpu.map_or(0.0, |(_, used)| used),
        cpu_wasted: cpu.map_or(0.0, |(reserved, used)| (reserved - used).max(0.0)),
        cpu_unknown: u64::from(cpu.is_none()),
        cpu_unmeasured: granted.filter(|_| cpu.is_none()).unwrap_or(0.0),
        memory_reserved: memory.map_or(0.0, |(reserved, _)| reserved),
        memory_used: memory.map_or(0.0, |(_, used)| used),
        memory_unknown: u64::from(memory.is_none()),
        gpu_reserved: gpu.unwrap_or(0.0),
        gpu_unknown: u64::from(gpu.is_none()),
        gpu_used: of_gpus.map_or(0.0, |(_, used)| used),
        gpu_measured: of_gpus.map_or(0.0, |(measured, _)| measured),
        gpu_use_unknown: u64::from(of_gpus.is_none()),
        files_read: moved.map_or(0, |(read, _)| read),
        files_written: moved.map_or(0, |(_, written)| written),
        files_unknown: u64::from(moved.is_none()),
        out_of_memory: u64::from(kills.is_some_and(|kills| kills > 0)),
        out_of_memory_unknown: u64::from(kills.is_none()),
        failed: u64::from(is_success == Some(false)),
        exit_unknown: u64::from(is_success.is_none()),
        periods: sum(|part| part.periods.filter(|_| part.throttled_periods.is_some())),
        throttled_periods: sum(|part| part.throttled_periods.filter(|_| part.periods.is_some())),
    }
}

impl Sums {
    pub fn add(&mut self, more: &Self) {
        self.jobs += more.jobs;
        self.cpu_reserved += more.cpu_reserved;
        self.cpu_used += more.cpu_used;
        self.cpu_wasted += more.cpu_wasted;
        self.cpu_unknown += more.cpu_unknown;
        self.cpu_unmeasured += more.cpu_unmeasured;
        self.memory_reserved += more.memory_reserved;
        self.memory_used += more.memory_used;
        self.memory_unknown += more.memory_unknown;
        self.gpu_reserved += more.gpu_reserved;
        self.gpu_unknown += more.gpu_unknown;
        self.gpu_used += more.gpu_used;
        self.gpu_measured += more.gpu_measured;
        self.gpu_use_unknown += more.gpu_use_unknown;
        self.files_read = self.files_read.saturating_add(more.files_read);
        self.files_written = self.files_written.saturating_add(more.files_written);
        self.files_unknown += more.files_unknown;
        self.out_of_memory += more.out_of_memory;
        self.out_of_memory_unknown += more.out_of_memory_unknown;
        self.failed += more.failed;
        self.exit_unknown += more.exit_unknown;
        self.periods = self.periods.saturating_add(more.periods);
        self.throttled_periods = self.throttled_periods.saturating_add(more.throttled_periods);
    }

    /// The amount. `None`: it is known of no job.
    fn known(&self, amount: f64, unknown: u64) -> Option<f64> {
        (unknown < self.jobs).then_some(amount)
    }

    pub fn cpu_reserved(&self) -> Option<f64> {
        self.known(self.cpu_reserved, self.cpu_unknown)
    }

    pub fn cpu_used(&self) -> Option<f64> {
        self.known(self.cpu_used, self.cpu_unknown)
    }

    pub fn cpu_wasted(&self) -> Option<f64> {
        self.known(self.cpu_wasted, self.cpu_unknown)
    }

    /// How much of the CPU time was used, in percent.
    pub fn cpu_share(&self) -> Option<f64> {
        share(self.cpu_used()?, self.cpu_reserved()?)
    }

    pub fn memory_reserved(&self) -> Option<f64> {
        self.known(self.memory_reserved, self.memory_unknown)
    }

    pub fn memory_used(&self) -> Option<f64> {
        self.known(self.memory_used, self.memory_unknown)
    }

    pub fn memory_share(&self) -> Option<f64> {
        share(self.memory_used()?, self.memory_reserved()?)
    }

    pub fn gpu_reserved(&self) -> Option<f64> {
        self.known(self.gpu_reserved, self.gpu_unknown)
    }

    /// The hours in which GPUs were busy, and the hours in which their use is known. `None`: there are none.
    pub fn gpu_use(&self) -> Option<(f64, f64)> {
        (self.gpu_measured > 0.0).then_some((self.gpu_used, self.gpu_measured))
    }

    /// How much of the known time GPUs were busy, in percent.
    pub fn gpu_share(&self) -> Option<f64> {
        self.gpu_use().and_then(|(used, measured)| share(used, measured))
    }

    /// The known hours in which GPUs were held and not busy.
    pub fn gpu_wasted(&self) -> Option<f64> {
        self.gpu_use().map(|(used, measured)| measured - used)
    }

    /// What system calls have read and written, in bytes.
    pub fn files(&self) -> Option<(u64, u64)> {
        (self.files_unknown < self.jobs).then_some((self.files_read, self.files_written))
    }

    /// Jobs that had a process killed for lack of memory.
    pub fn out_of_memory(&self) -> Option<u64> {
        (self.out_of_memory_unknown < self.jobs).then_some(self.out_of_memory)
    }

    pub fn failed(&self) -> Option<u64> {
        (self.exit_unknown < self.jobs).then_some(self.failed)
    }

    /// The share of the quota's periods in which it held processes back, in percent.
    pub fn throttled_share(&self) -> Option<f64> {
        share(self.throttled_periods as f64, self.periods as f64)
    }
}

/// A share in percent. `None`: the whole is nothing.
pub fn share(part: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| 100.0 * part / of)
}

/// The sums of a summary.
pub struct Tally {
    by: By,
    since: u64,
    pub groups: HashMap<NameId, Sums>,
    pub total: Sums,
    /// The sums of each week, by its number since 1970-01-05, a Monday. A run counts for the week in which it ended.
    pub weeks: BTreeMap<u64, Sums>,
    /// The end of the run that ended first, and the end of the one that ended last, in microseconds.
    pub first: Option<u64>,
    pub last: Option<u64>,
}

impl Tally {
    /// `since`: runs that ended earlier do not count, in microseconds.
    pub fn new(by: By, since: u64) -> Self {
        Self {
            by,
            since,
            groups: HashMap::new(),
            total: Sums::default(),
            weeks: BTreeMap::new(),
            first: None,
            last: None,
        }
    }

    /// Makes it unknown which GPUs the runs held.
    pub fn forget_gpus(&mut self) {
        let all = self.groups.values_mut().chain(self.weeks.values_mut()).chain([&mut self.total]);
        all.for_each(|sums| (sums.gpu_unknown, sums.gpu_use_unknown) = (sums.jobs, sums.jobs));
    }

    /// Adds a run, and returns whether it counts.
    pub fn add(&mut self, run: &JoinedRun) -> bool {
        self.add_split(run, &run.parts)
    }

    /// Adds a run whose figures by node are less complete than those of the run. Returns whether it counts.
    pub fn add_split(&mut self, run: &JoinedRun, by_node: &[RunOnNode]) -> bool {
        let ended = run.ended();
        if ended < self.since {
            return false;
        }
        self.first = self.first.into_iter().chain([ended]).min();
        self.last = self.last.max(Some(ended));
        let sums = sums_of(run.parts.iter(), run.is_success(), run.gpu_hours);
        if self.by == By::Node {
            for part in by_node {
                // A run's GPU-hours are known for all of its nodes together. So they count for a node only if there is one.
                let gpu_hours = run.gpu_hours.filter(|_| by_node.len() == 1);
                let of_part = sums_of(std::iter::once(part), run.is_success(), gpu_hours);
                self.groups.entry(part.node).or_default().add(&of_part);
            }
        } else {
            self.groups.entry(run.key).or_default().add(&sums);
        }
        let week = (ended / 1_000_000 / 86_400).saturating_sub(4) / 7;
        if self.weeks.len() < WEEKS || self.weeks.contains_key(&week) {
            self.weeks.entry(week).or_default().add(&sums);
        }
        self.total.add(&sums);
        true
    }
}

/// The date of the Monday with which a week begins, as `2026-06-01`.
pub fn monday(week: u64) -> String {
    let begin = std::time::UNIX_EPOCH + std::time::Duration::from_secs((week * 7 + 4) * 86_400);
    let mut text = jobfence::report::account::utc(begin);
    text.truncate(10);
    text
}

#[cfg(test)]
mod tests {
    use super::super::line::Line;
    use super::super::names::Names;
    use super::super::runs::{JoinedRuns, tests::line};
    use super::*;

    fn tally(by: By, lines: &[Line<'_>]) -> (Tally, Names) {
        let (mut names, mut runs, mut tally) = (Names::default(), JoinedRuns::new(), Tally::new(by, 0));
        let mut all = Vec::new();
        for line in lines {
            all.extend(runs.add(line, line.ended, &mut names, by));
        }
        all.extend(runs.end());
        all.iter().for_each(|run| assert!(tally.add(run)));
        (tally, names)
    }

    #[test]
    fn hours_are_those_of_all_nodes() {
        let hour = |text, cpu| Line {
            cpu: Some(cpu),
            memory_granted: Some(4 << 30),
            memory_peak: Some(1 << 30),
            gpus_granted: Some(1),
            ..line(text)
        };
        // The run has two CPUs on each of two nodes for an hour, and used more than that on one of them.
        let lines = [hour("a/batch 0-3600", 3_600_000_000), hour("b/extern 0-3600", 9_000_000_000)];
        let (tally, names) = super::tests::tally(By::Node, &lines);
        let total = &tally.total;
        assert_eq!((total.jobs, total.cpu_reserved, total.cpu_used, total.cpu_wasted), (1, 4.0, 3.5, 0.5));
        assert_eq!((total.memory_reserved, total.memory_used, total.gpu_reserved), (8.0, 2.0, 2.0));
        let of = |node: &str| tally.groups.iter().find(|(name, _)| names.text(**name) == Some(node)).unwrap().1;
        assert_eq!((of("a").jobs, of("a").cpu_wasted, of("b").jobs, of("b").cpu_wasted), (1, 1.0, 1, 0.0));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let unknown = Line { cpu: None, ..line("a/0 0-3600") };
        let known = Line { job: "6".into(), oom_kills: Some(1), is_success: Some(false), ..line("a/0 0-3600") };
        let (one, _) = tally(By::User, std::slice::from_ref(&unknown));
        let total = &one.total;
        assert_eq!((total.cpu_reserved(), total.cpu_wasted(), total.cpu_share()), (None, None, None));
        assert_eq!(
            (total.memory_used(), total.gpu_reserved(), total.failed(), total.out_of_memory()),
            (None, None, None, None)
        );
        assert_eq!(total.throttled_share(), None);
        let (both, _) = tally(By::User, &[unknown, known]);
        let total = &both.total;
        // The hours of the run that has no CPU time are left out of both amounts.
        assert_eq!((total.jobs, total.cpu_unknown, total.cpu_reserved()), (2, 1, Some(2.0)));
        assert_eq!((total.failed(), total.exit_unknown, total.out_of_memory()), (Some(1), 1, Some(1)));
    }

    #[test]
    fn a_week_begins_on_monday() {
        assert_eq!((monday(0), monday(2926)), ("1970-01-05".to_owned(), "2026-02-02".to_owned()));
        // The one run ends on a Sunday, and the other one on the Monday after it.
        let sunday = 1_770_595_199;
        let at = |second: u64| Line { ended: second * 1_000_000, began: Some(0), ..line("a/0 0-1") };
        let (tally, _) = tally(By::User, &[at(sunday), Line { job: "6".into(), ..at(sunday + 1) }]);
        let weeks: Vec<String> = tally.weeks.keys().map(|week| monday(*week)).collect();
        assert_eq!(weeks, ["2026-02-02", "2026-02-09"]);
    }
}
