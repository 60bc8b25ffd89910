// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs of `jobfence top`, each with its steps, and their order.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use jobfence::figures::LimitedTo;
use jobfence::job::Cpus;

use crate::living::{LivingRow, gpu_cell};
use crate::table::printable;

/// What fences are sorted by. Large amounts come first, and names are in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortColumn {
    Cpu,
    Memory,
    Processes,
    Time,
    Job,
    User,
}

/// The columns, each with its key and its name on the screen.
pub const SORT_KEYS: [(char, SortColumn, &str); 6] = [
    ('c', SortColumn::Cpu, "CPU"),
    ('m', SortColumn::Memory, "memory"),
    ('p', SortColumn::Processes, "processes"),
    ('t', SortColumn::Time, "time"),
    ('j', SortColumn::Job, "job"),
    ('u', SortColumn::User, "user"),
];

/// What a job or a step uses now, and what it may use.
#[derive(Debug, Clone, Default)]
pub struct AmountsNow {
    pub cpus: Option<f64>,
    pub memory: Option<u64>,
    pub peak: Option<u64>,
    pub processes: Option<u64>,
    pub uptime: Option<Duration>,
    pub granted: LimitedTo,
}

impl AmountsNow {
    /// The amounts of one step.
    pub fn from_row(row: &LivingRow) -> Self {
        Self {
            cpus: row.cpus_now,
            memory: row.current.memory,
            peak: row.current.usage.memory_peak,
            processes: row.current.processes,
            uptime: row.uptime,
            granted: row.current.limits,
        }
    }

    /// The amounts of a job with these steps. A sum is unknown if one of its parts is.
    fn from_steps(steps: &[LivingRow]) -> Self {
        fn sum<T: std::iter::Sum>(steps: &[LivingRow], of: fn(&LivingRow) -> Option<T>) -> Option<T> {
            steps.iter().map(of).sum()
        }
        // The steps had their peaks at different times, so peaks have no sum.
        let (alone, granted) = match steps {
            [step] => (step.current.usage.memory_peak, step.current.limits),
            _ => (None, LimitedTo::default()),
        };
        let of_job = steps.first().map(|step| step.granted).unwrap_or_default();
        Self {
            cpus: sum(steps, |row| row.cpus_now),
            memory: sum(steps, |row| row.current.memory),
            peak: alone,
            processes: sum(steps, |row| row.current.processes),
            uptime: steps.iter().filter_map(|row| row.uptime).max(),
            granted: LimitedTo {
                cpus: of_job.cpus.or(granted.cpus),
                memory: of_job.memory.or(granted.memory),
                processes: of_job.processes.or(granted.processes),
            },
        }
    }

    /// The share of the granted CPU time that is used, in percent.
    pub fn cpu_percent(&self) -> Option<u64> {
        percent((self.cpus? * 1000.0).round() as u64, self.granted.cpus?.thousandths())
    }

    /// The share of the granted memory that is used, in percent.
    pub fn memory_percent(&self) -> Option<u64> {
        percent(self.memory?, self.granted.memory?)
    }
}

/// A percentage, rounded down, so that 100 means that all is used.
fn percent(used: u64, granted: u64) -> Option<u64> {
    let percent = (u128::from(used) * 100).checked_div(granted.into())?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

/// The node of the scheduler, the user and the id. No two jobs on a node have the same ones.
pub type JobIdentity = (Option<String>, Option<u32>, String);

/// A job with its steps.
pub struct ListedJob {
    /// Its place in the order of all ids.
    pub number: usize,
    pub identity: JobIdentity,
    pub amounts: AmountsNow,
    pub gpu: String,
    pub partition: Option<String>,
    /// Its steps in their order. There is at least one.
    pub steps: Vec<LivingRow>,
}

impl ListedJob {
    pub fn user(&self) -> &str {
        self.steps.first().map_or("", |step| &step.user)
    }

    /// Whether its id, user, partition or node contains this text. Upper and lower case are the same.
    pub fn is_found(&self, text: &str) -> bool {
        let (node, _, job) = &self.identity;
        let text = text.to_lowercase();
        let names = [Some(job.as_str()), Some(self.user()), self.partition.as_deref(), node.as_deref()];
        names.into_iter().flatten().any(|name| printable(name).to_lowercase().contains(&text))
    }
}

/// Puts steps of one job together. Jobs and steps keep their order.
pub fn jobs_of(rows: Vec<LivingRow>) -> Vec<ListedJob> {
    let mut jobs: Vec<(JobIdentity, Vec<LivingRow>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for row in rows {
        let identity = (row.node.clone(), row.uid, row.job.clone());
        let at = *places.entry(identity.clone()).or_insert(jobs.len());
        match jobs.get_mut(at) {
            Some((_, steps)) => steps.push(row),
            None => jobs.push((identity, vec![row])),
        }
    }
    let listed = |(number, (identity, steps)): (usize, (JobIdentity, Vec<LivingRow>))| ListedJob {
        number,
        identity,
        amounts: AmountsNow::from_steps(&steps),
        gpu: gpu_cell(steps.iter().find_map(|step| step.gpus.as_ref())),
        partition: steps.iter().find_map(|step| step.partition.clone()),
        steps,
    };
    jobs.into_iter().enumerate().map(listed).collect()
}

/// Sorts fences or jobs. Equal ones keep their order.
pub fn sort<T>(all: &mut Vec<T>, by: SortColumn, is_reversed: bool, of: impl Fn(&T) -> (AmountsNow, String)) {
    let mut keyed: Vec<_> = all.drain(..).map(|one| (of(&one), one)).collect();
    keyed.sort_by(|((one, user), _), ((other, others_user), _)| {
        let order = match by {
            SortColumn::Cpu => other.cpus.unwrap_or(-1.0).total_cmp(&one.cpus.unwrap_or(-1.0)),
            SortColumn::Memory => other.memory.cmp(&one.memory),
            SortColumn::Processes => other.processes.cmp(&one.processes),
            SortColumn::Time => other.uptime.cmp(&one.uptime),
            SortColumn::Job => Ordering::Equal,
            SortColumn::User => user.cmp(others_user),
        };
        if is_reversed { order.reverse() } else { order }
    });
    if is_reversed && by == SortColumn::Job {
        keyed.reverse();
    }
    all.extend(keyed.into_iter().map(|(_, one)| one));
}

/// The sum of the jobs' grants, and whether the grant of every job is known.
pub struct GrantedTogether {
    pub cpus: (Option<Cpus>, bool),
    pub memory: (Option<u64>, bool),
}

/// Sums the grants of all jobs.
pub fn granted(jobs: &[ListedJob]) -> GrantedTogether {
    let of = |amount: fn(&LimitedTo) -> Option<u64>| {
        let known: Vec<u64> = jobs.iter().filter_map(|job| amount(&job.amounts.granted)).collect();
        let is_all = known.len() == jobs.len();
        let sum = known.into_iter().reduce(u64::saturating_add);
        (if jobs.is_empty() { Some(0) } else { sum }, is_all)
    };
    let (cpus, are_all_cpus) = of(|granted| granted.cpus.map(Cpus::thousandths));
    GrantedTogether { cpus: (cpus.map(Cpus::from_thousandths), are_all_cpus), memory: of(|granted| granted.memory) }
}
