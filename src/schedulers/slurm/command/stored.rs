// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's accounting, for the report: what each job was granted, and what it used if `StoreUsage` has stored it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobfence::hostlist::HostList;
use jobfence::report::account::utc;

use super::store;
use super::store::period::{AccountedJob, AskedPeriod, DAY, MissingPeriod, sacct};
use crate::command::Failure;
use crate::report::accounting::{AccountingPart, NodePart, StoredJob, StoredJobs};
use crate::report::summary::{By, GpuHours, Habits, JoinedRun, NameId, Names, RunOnNode, Tally};

/// The most nodes of a job whose figures are kept by node.
const MOST_NODES: usize = 1 << 15;

/// Sentences for readers of the figures.
const NOTES: [&str; 3] = [
    "What a job used is known if StoreUsage was on where it ran, and each of its nodes has stored its part.",
    "Out of memory is a job whose state in Slurm is OUT_OF_MEMORY, and failed is one whose state is not COMPLETED.",
    "Slurm's accounting does not say whether a limit held memory down: there is no advice on memory.",
];

/// What slurmdbd has, by sacct.
pub struct SlurmAccounting;

impl AccountingPart for SlurmAccounting {
    fn name(&self) -> &'static str {
        "Slurm's accounting"
    }

    fn doubt(&self) -> Option<String> {
        store::can_store().err()
    }

    fn job(&self, job: &str) -> Option<StoredJob> {
        store::stored(job)
    }

    fn command(&self, job: &str) -> String {
        format!("sacct --jobs {job} --format AdminComment")
    }

    fn jobs_since(&self, by: By, since: u64, is_of_all: bool) -> Result<StoredJobs, Failure> {
        read(by, since, is_of_all)
    }

    fn notes(&self) -> &'static [&'static str] {
        &NOTES
    }
}

/// Asks Slurm's accounting about the jobs that ended since then.
fn read(by: By, since: u64, is_of_all: bool) -> Result<StoredJobs, Failure> {
    let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().saturating_add(1);
    let mut counting = Counting::new(by, since);
    let progress =
        Progress { days: (until.saturating_sub(since)).div_ceil(DAY), is_shown: std::io::stderr().is_terminal() };
    let mut asked = AskedPeriod {
        sacct: &mut |piece, mark| sacct(piece, mark, is_of_all),
        rest: &mut |took, left| {
            progress.say(left);
            std::thread::sleep(took);
        },
    };
    let missing = asked.each(since..until, &mut |jobs| counting.add(jobs));
    progress.end();
    let missed: u64 = missing.iter().map(|missing| missing.period.end - missing.period.start).sum();
    if missed >= until.saturating_sub(since)
        && let Some(MissingPeriod { why, .. }) = missing.first()
    {
        return Err(format!(
            "cannot ask Slurm's accounting: see that sacct is in the PATH, and that slurmdbd runs: sacct: {why}"
        )
        .into());
    }
    Ok(counting.end(missing))
}

/// Tells a person who waits how far it is.
struct Progress {
    days: u64,
    is_shown: bool,
}

impl Progress {
    fn say(&self, left: &Range<u64>) {
        if self.is_shown {
            let done = self.days.saturating_sub((left.end - left.start).div_ceil(DAY));
            let _ = write!(std::io::stderr(), "\rjobfence: sacct has answered for {done} of {} days", self.days);
        }
    }

    fn end(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// What a job used.
#[derive(Default)]
struct Parts {
    /// What is known of the job as a whole.
    whole: Vec<RunOnNode>,
    /// What is known of each node, if the summary is by node.
    by_node: Vec<RunOnNode>,
}

/// Counts jobs as they come.
struct Counting {
    by: By,
    names: Names,
    tally: Tally,
    habits: Habits,
    hasher: RandomState,
    /// The records of resized jobs, until the last record of each was read.
    resized: HashMap<String, Parts>,
    records: u64,
}

impl Counting {
    fn new(by: By, since: u64) -> Self {
        Self {
            by,
            names: Names::default(),
            tally: Tally::new(by, since.saturating_mul(1_000_000)),
            habits: Habits::new(),
            hasher: RandomState::new(),
            resized: HashMap::new(),
            records: 0,
        }
    }

    fn add(&mut self, mut jobs: Vec<AccountedJob>) {
        // The records of one job are in the order of their ends.
        jobs.sort_by_key(|job| job.ended);
        for mut job in jobs {
            self.records += 1;
            if job.is_resized {
                job.summary = None;
                let mut parts = self.resized.remove(&job.id).unwrap_or_default();
                self.put(&job, &mut parts);
                self.resized.insert(job.id, parts);
                continue;
            }
            let mut parts = self.resized.remove(&job.id).unwrap_or_default();
            if !parts.whole.is_empty() {
                // What is stored is about the whole run, and the job's grant has changed within it.
                job.summary = None;
            }
            self.put(&job, &mut parts);
            let run = self.run(&job, parts.whole);
            if self.tally.add_split(&run, &parts.by_node) {
                self.habits.add(&run);
            }
        }
    }

    fn put(&mut self, job: &AccountedJob, parts: &mut Parts) {
        parts.whole.extend(self.parts(job, false));
        if self.by == By::Node {
            parts.by_node.extend(self.parts(job, true));
        }
    }

    fn run(&mut self, job: &AccountedJob, parts: Vec<RunOnNode>) -> JoinedRun {
        let mut name = |text: &str| self.names.of(Some(text));
        let (user, account, partition, qos) =
            (name(&job.user), name(&job.account), name(&job.partition), name(&job.qos));
        let key = match self.by {
            By::User => user,
            By::Account => account,
            By::Partition => partition,
            By::Qos => qos,
            By::Node => NameId::default(),
        };
        let alike = self.hasher.hash_one((job.uid, &job.name));
        let job_name = Some(&*job.name).filter(|name| !name.is_empty());
        let mut run = JoinedRun::from_record(key, user, alike, job_name, partition, parts, job.is_success);
        run.gpu_hours = gpu_hours(job);
        run
    }

    /// What the job used on each node. If that is not known, one part stands for all nodes; with `is_by_node`, each node then has a part
    /// without figures.
    fn parts(&mut self, job: &AccountedJob, is_by_node: bool) -> Vec<RunOnNode> {
        let kills = u64::from(job.is_out_of_memory);
        let part = |node: NameId, cpus: Option<u64>, memory: Option<u64>, used: &NodePart| {
            let ended = job.ended.saturating_mul(1_000_000);
            let mut part = RunOnNode::from_record(node, ended, job.elapsed.saturating_mul(1_000_000));
            part.cpus_granted = cpus.map(|cpus| cpus.saturating_mul(1000));
            part.memory_granted = memory;
            part.cpu = used.cpu_seconds.filter(|seconds| *seconds >= 0.0).map(|seconds| (seconds * 1e6) as u64);
            part.memory_peak = used.memory_peak;
            part.oom_kills = Some(kills);
            part
        };
        let known: Vec<(&str, NodePart)> = job.summary.iter().flat_map(|summary| summary.nodes()).collect();
        // If a node has not stored its part, the use of the job is not known.
        let known = if known.len() as u64 == job.nodes { known } else { Vec::new() };
        let mut parts: Vec<RunOnNode> = match &known[..] {
            [(node, used)] => {
                vec![part(self.names.of(Some(node)), job.cpus.or(used.cpus), job.memory.or(used.memory), used)]
            }
            // Slurm's accounting says what is reserved. The grants that the nodes were told must add up to that.
            several
                if !several.is_empty()
                    && several.iter().map(|(_, used)| used.cpus).sum::<Option<u64>>() == job.cpus =>
            {
                several
                    .iter()
                    .map(|(node, used)| part(self.names.of(Some(node)), used.cpus, used.memory, used))
                    .collect()
            }
            _ => Vec::new(),
        };
        if parts.is_empty() {
            let nodes = match job.nodes {
                1 => vec![job.node_list.clone()],
                _ if is_by_node => {
                    HostList::parse(&job.node_list).and_then(|list| list.names(MOST_NODES)).unwrap_or_default()
                }
                _ => Vec::new(),
            };
            let all = known.iter().fold(None, |sum: Option<NodePart>, (_, used)| {
                let sum = sum.map_or_else(
                    || used.clone(),
                    |sum| NodePart {
                        cpu_seconds: sum.cpu_seconds.zip(used.cpu_seconds).map(|(one, other)| one + other),
                        memory_peak: sum
                            .memory_peak
                            .zip(used.memory_peak)
                            .map(|(one, other)| one.saturating_add(other)),
                        ..NodePart::default()
                    },
                );
                Some(sum)
            });
            let all = all.unwrap_or_default();
            parts = match &nodes[..] {
                [] => vec![part(NameId::default(), job.cpus, job.memory, &all)],
                [only] => vec![part(self.names.of(Some(only)), job.cpus, job.memory, &all)],
                // The grant of each node is not known.
                several => several
                    .iter()
                    .map(|node| part(self.names.of(Some(node)), None, None, &NodePart::default()))
                    .collect(),
            };
        }
        // The GPUs are known only for the job as a whole. So the first part has them.
        for (at, part) in parts.iter_mut().enumerate() {
            let is_split = is_by_node && job.nodes > 1;
            part.gpus_granted = match job.gpus {
                Some(gpus) if !is_split => Some(if at == 0 { gpus } else { 0 }),
                Some(_) => None,
                None => Some(0),
            };
        }
        parts
    }

    fn end(mut self, missing: Vec<MissingPeriod>) -> StoredJobs {
        // A cluster that does not count GPUs names none in any record. Then their number is unknown, and not 0.
        if self.tally.total.gpu_reserved == 0.0 && self.tally.total.gpu_unknown == 0 {
            self.tally.forget_gpus();
        }
        let moment = |seconds: u64| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        let missing = missing.into_iter().map(|MissingPeriod { period, why }| {
            format!("jobs that ended from {} to {} are missing: sacct: {why}", moment(period.start), moment(period.end))
        });
        StoredJobs {
            names: self.names,
            tally: self.tally,
            habits: self.habits,
            records: self.records,
            missing: missing.collect(),
        }
    }
}

/// What a job's GPUs did, if each of its nodes has stored it. The nodes do not store how long they looked: that counts as the whole time.
fn gpu_hours(job: &AccountedJob) -> Option<GpuHours> {
    let parts: Vec<(&str, NodePart)> = job.summary.iter().flat_map(|summary| summary.nodes()).collect();
    let percent: Vec<f64> =
        parts.iter().flat_map(|(_, part)| part.gpus.values().map(|gpu| gpu.percent.clamp(0.0, 100.0))).collect();
    let is_whole = parts.len() as u64 == job.nodes && job.gpus == Some(percent.len() as u64);
    let hours = job.elapsed as f64 / 3600.0;
    let measured = percent.len() as f64 * hours;
    is_whole.then(|| GpuHours { used: percent.iter().sum::<f64>() / 100.0 * hours, measured })
}

#[cfg(test)]
mod tests {
    use super::super::store::summary::Summary;
    use super::*;
    use crate::report::accounting::GpuPart;

    /// A job of alice's of an hour with 4 CPUs on this many nodes. `used`: the seconds of CPU time on each node that is known.
    fn job(id: &str, nodes: u64, used: &[f64]) -> AccountedJob {
        let summary = (!used.is_empty()).then(|| {
            let mut summary = Summary::from_comment("").unwrap();
            for (at, seconds) in used.iter().enumerate() {
                let part = NodePart {
                    cpus: Some(4 / nodes),
                    memory: Some(1 << 30),
                    memory_peak: Some(1 << 29),
                    cpu_seconds: Some(*seconds),
                    ..NodePart::default()
                };
                summary.put(&format!("n{}", at + 1), &part, 3600);
            }
            summary
        });
        AccountedJob {
            id: id.to_owned(),
            ended: 1_780_000_000,
            elapsed: 3600,
            is_resized: false,
            is_success: true,
            is_out_of_memory: false,
            nodes,
            node_list: if nodes == 1 { "n1".to_owned() } else { format!("n[1-{nodes}]") },
            cpus: Some(4),
            memory: Some(nodes << 30),
            gpus: None,
            uid: Some(7),
            user: "alice".to_owned(),
            account: "physics".to_owned(),
            partition: "short".to_owned(),
            qos: "normal".to_owned(),
            name: "solve".to_owned(),
            summary,
        }
    }

    fn counted(by: By, jobs: Vec<AccountedJob>) -> StoredJobs {
        let mut counting = Counting::new(by, 0);
        counting.add(jobs);
        counting.end(Vec::new())
    }

    #[test]
    fn a_job_without_a_summary_is_without_figures_and_never_used_nothing() {
        let all = counted(By::Account, vec![job("1", 1, &[7200.0]), job("2", 1, &[]), job("3", 2, &[10.0])]);
        let total = &all.tally.total;
        assert_eq!((total.jobs, total.cpu_unknown, total.memory_unknown), (3, 2, 2));
        assert_eq!((total.cpu_reserved, total.cpu_used, total.cpu_unmeasured), (4.0, 2.0, 8.0));
        assert_eq!((total.memory_reserved, total.memory_used), (1.0, 0.5));
        assert_eq!(total.gpu_reserved(), None, "no record names a GPU: they may not be counted");
    }

    #[test]
    fn several_nodes_are_one_job_and_each_node_has_its_part() {
        let all = counted(By::Node, vec![job("1", 2, &[3600.0, 1800.0])]);
        let of = |node: &str| {
            let found = all.tally.groups.iter().find(|(name, _)| all.names.text(**name) == Some(node));
            found.map(|(_, sums)| (sums.jobs, sums.cpu_reserved, sums.cpu_used)).unwrap()
        };
        assert_eq!((of("n1"), of("n2")), ((1, 2.0, 1.0), (1, 2.0, 0.5)));
        assert_eq!((all.tally.total.jobs, all.tally.total.cpu_reserved), (1, 4.0));
        // Without a summary of the job, nothing says what is reserved on which node.
        let none = counted(By::Node, vec![job("1", 2, &[])]);
        assert_eq!((none.tally.groups.len(), none.tally.total.cpu_unknown), (2, 1));
        let all_weeks: f64 = none.tally.weeks.values().map(|sums| sums.cpu_unmeasured).sum();
        assert_eq!((none.tally.total.cpu_unmeasured, all_weeks), (4.0, 4.0), "the job's reservation is known");
        let odd = AccountedJob { cpus: Some(6), ..job("1", 2, &[3600.0, 1800.0]) };
        for by in [By::User, By::Node] {
            let odd = counted(by, vec![odd.clone()]).tally.total;
            assert_eq!((odd.cpu_reserved, odd.cpu_used), (6.0, 1.5), "what sacct says counts");
        }
    }

    #[test]
    fn a_job_that_became_larger_is_one_and_what_it_used_of_which_grant_is_unknown() {
        let first = AccountedJob { is_resized: true, cpus: Some(1), ..job("1", 1, &[]) };
        let last = AccountedJob { ended: 1_780_003_600, ..job("1", 1, &[9.0]) };
        let total = counted(By::User, vec![last, first]).tally.total;
        assert_eq!((total.jobs, total.cpu_unknown, total.cpu_unmeasured), (1, 1, 5.0));
    }

    #[test]
    fn gpus_and_kills_are_those_of_the_records() {
        let with =
            AccountedJob { gpus: Some(2), is_out_of_memory: true, is_success: false, ..job("1", 2, &[1.0, 1.0]) };
        let total = counted(By::User, vec![with, job("2", 1, &[1.0])]).tally.total;
        assert_eq!((total.gpu_reserved(), total.gpu_unknown), (Some(2.0), 0));
        assert_eq!((total.out_of_memory(), total.failed()), (Some(1), Some(1)));
        assert_eq!((total.gpu_use(), total.gpu_use_unknown), (None, 1));
    }

    #[test]
    fn gpus_were_busy_as_the_nodes_have_said_of_each() {
        let with = |gpus, percent: &[f64]| {
            let gpu = |percent: f64| GpuPart { percent, memory_peak: 1, memory: 2 };
            let gpus_of = percent.iter().map(|percent| gpu(*percent));
            let part = NodePart { gpus: (0..).zip(gpus_of).collect(), ..NodePart::default() };
            let mut summary = Summary::from_comment("").unwrap();
            summary.put("n1", &part, 3600);
            AccountedJob { gpus, summary: Some(summary), ..job("1", 1, &[]) }
        };
        let used = |job: AccountedJob| counted(By::User, vec![job]).tally.total.gpu_use();
        assert_eq!(used(with(Some(2), &[50.0, 25.0])), Some((0.75, 2.0)));
        // One of two nodes has no figures, or has stored nothing.
        assert_eq!(used(with(Some(2), &[50.0])), None);
        assert_eq!(used(AccountedJob { nodes: 2, ..with(Some(2), &[50.0, 25.0]) }), None);
    }
}
