// SPDX-License-Identifier: GPL-2.0-or-later
//! What a scheduler's accounting has of jobs: what it knows itself, and what nodes have stored there (`StoreUsage`). The scheduler's part of
//! the command reads it, and the report shows it.

use std::collections::BTreeMap;

use super::summary::{By, Habits, Names, Tally};
use crate::command::Failure;

/// A scheduler's accounting.
pub trait AccountingPart: Sync {
    /// Its name for people, at the beginning of a sentence.
    fn name(&self) -> &'static str;

    /// Why nothing can be stored there from this host.
    fn doubt(&self) -> Option<String>;

    /// What nodes have stored there of a job's newest run. `None`: nothing that is known here.
    fn job(&self, job: &str) -> Option<StoredJob>;

    /// The command that shows what a job's record has there.
    fn command(&self, job: &str) -> String;

    /// What it has of the jobs that ended since then, in seconds since 1970. `is_of_all`: not only of the reader's own.
    fn jobs_since(&self, by: By, since: u64, is_of_all: bool) -> Result<StoredJobs, Failure>;

    /// Sentences for readers of these figures.
    fn notes(&self) -> &'static [&'static str];
}

/// What a job used on all nodes that have stored it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredJob {
    /// Its run time, in seconds.
    pub seconds: u64,
    /// Each node's part, by the node's name.
    pub nodes: Vec<(String, NodePart)>,
}

/// What a job used on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodePart {
    /// CPUs that it was granted.
    pub cpus: Option<u64>,
    /// Memory that it was granted, in bytes.
    pub memory: Option<u64>,
    /// The most memory in use at once, in bytes.
    pub memory_peak: Option<u64>,
    /// CPU time in seconds.
    pub cpu_seconds: Option<f64>,
    /// Its GPUs by their numbers. Empty: not all of them are known.
    pub gpus: BTreeMap<u32, GpuPart>,
}

/// What a job used of one GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuPart {
    /// How busy it was, in percent.
    pub percent: f64,
    /// The most memory in use at once, in bytes.
    pub memory_peak: u64,
    /// All of its memory, in bytes.
    pub memory: u64,
}

/// What is known of all jobs of a time.
pub struct StoredJobs {
    pub names: Names,
    pub tally: Tally,
    pub habits: Habits,
    /// How many records were read.
    pub records: u64,
    /// What is missing, in words.
    pub missing: Vec<String>,
}
