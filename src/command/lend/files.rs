// SPDX-License-Identifier: GPL-2.0-or-later
//! What is lent, in one file for each job that is lent anything or has a limit that is not certain, beside the series of its steps.
//!
//! The file is written before a limit is raised, and after one was lowered: so no limit is above what a file says, wherever
//! `jobfence hold` ends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use jobfence::bytes::mebibytes;
use jobfence::error::Result;
use jobfence::fence::resize::Loan;
use serde_json::{Value, json};

use crate::kept::{self, KeptId, KeptJob, number, text};

/// The name of the objects' format.
pub const SCHEMA: &str = "jobfence-lent-1";

/// What one job on this node is lent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobLent {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// The directory with the job's limit, and its number.
    pub directory: String,
    pub inode: u64,
    /// Its own limit, in bytes.
    pub grant: u64,
    /// The most that its limit is now.
    pub limit: u64,
    /// The most that it was.
    pub peak: u64,
    /// What v1's limit of memory and swap is above that of memory. `None`: v2, or there is none.
    pub swap: Option<u64>,
    /// What `jobfence resize` has given the job, as far as its own limit says that. `None`: nothing.
    pub resized: Option<u64>,
    /// Whether processes of its may have the mark (`mark`).
    pub marked: bool,
}

impl JobLent {
    /// What is lent, in bytes.
    pub fn lent(&self) -> u64 {
        self.limit.saturating_sub(self.grant)
    }

    /// For `jobfence show`.
    pub fn in_words(&self) -> String {
        let peak = mebibytes(self.peak.saturating_sub(self.grant));
        format!("{} beyond its limit of {} (MemoryPool); at most {peak}", mebibytes(self.lent()), mebibytes(self.grant))
    }
}

impl KeptJob for JobLent {
    const ENDING: &'static str = ".lent";
    const SCHEMA: &'static str = SCHEMA;

    fn job(&self) -> (Option<&str>, Option<u32>, &str) {
        (self.node.as_deref(), self.uid, &self.job)
    }

    fn members(&self) -> Value {
        json!({
            "directory": self.directory,
            "inode": self.inode,
            "grant": self.grant,
            "limit": self.limit,
            "peak": self.peak,
            "swap": self.swap,
            "resized": self.resized,
            "marked": self.marked,
        })
    }

    fn from_members(KeptId { node, uid, job }: KeptId, value: &Value) -> Option<Self> {
        Some(Self {
            node,
            uid,
            job,
            directory: text(value, "directory")?,
            inode: number(value, "inode")?,
            grant: number(value, "grant")?,
            limit: number(value, "limit")?,
            peak: number(value, "peak")?,
            swap: number(value, "swap"),
            resized: number(value, "resized"),
            marked: value.get("marked").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

/// What jobs are lent now, by their directories.
pub fn loans(run_dir: &Path) -> Result<BTreeMap<PathBuf, Loan>> {
    let all = kept::all_without_gap::<JobLent>(run_dir)?;
    let lent = all.into_iter().filter(|one| one.lent() > 0);
    let loan =
        |one: JobLent| (PathBuf::from(one.directory), Loan { inode: one.inode, grant: one.grant, limit: one.limit });
    Ok(lent.map(loan).collect())
}

/// Its lines in the format of the metrics file. `None`: nothing can be lent.
pub fn page(run_dir: &Path, is_on: bool) -> Option<String> {
    let all = kept::all_living::<JobLent>(run_dir).unwrap_or_default();
    (is_on || !all.is_empty()).then(|| page_of(&all))
}

fn page_of(all: &[JobLent]) -> String {
    let mut page = String::new();
    let lent = all.iter().fold(0_u64, |sum, one| sum.saturating_add(one.lent()));
    let jobs = all.iter().filter(|one| one.lent() > 0).count() as u64;
    for (name, help, value) in [
        ("jobfence_memory_lent_bytes", "Memory that jobs are lent beyond their limits.", lent),
        ("jobfence_memory_lent_jobs", "Jobs that are lent memory.", jobs),
    ] {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_the_same() {
        let lent = JobLent {
            node: Some("n1".into()),
            uid: Some(7),
            job: "7\"<".into(),
            directory: "/sys/fs/cgroup/j".into(),
            inode: 9,
            grant: 800 << 20,
            limit: 900 << 20,
            peak: 1000 << 20,
            swap: Some(700 << 20),
            resized: Some(800 << 20),
            marked: true,
        };
        assert_eq!(JobLent::from_json(&lent.state()), Some(lent.clone()));
        assert_eq!(JobLent::from_json(&json!({"schema": "jobfence-lent-2"})), None);
        assert_eq!(lent.in_words(), "100.0 MiB beyond its limit of 800.0 MiB (MemoryPool); at most 200.0 MiB");
        let page = page_of(&[lent.clone(), lent]);
        assert!(page.contains("\njobfence_memory_lent_bytes 209715200\n"), "{page}");
        assert!(page.contains("\njobfence_memory_lent_jobs 2\n"), "{page}");
    }
}
