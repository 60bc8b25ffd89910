// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps the idle time of a running job in a file beside the series of its steps, which the job's user can read.

use serde_json::{Value, json};

use super::activity::Activity;
use super::decision::IdleDecision;
use crate::kept::{KeptId, KeptJob, decimal, number, text};

/// The name of the objects' format.
pub const SCHEMA: &str = "jobfence-idle-1";

/// The idle time of a job on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobIdle {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// The job's directory and its number: another job's directory can have the same name.
    pub directory: String,
    pub inode: u64,
    /// When the job was last looked at, in seconds since 1970.
    pub looked: f64,
    /// How long the job may be idle, in seconds.
    pub after: u64,
    pub activity: Activity,
    /// The longest time in which the job used almost no CPU time, in seconds.
    pub longest: f64,
    pub decision: IdleDecision,
}

impl JobIdle {
    /// How long the job has used almost no CPU time, if the site allows less.
    pub fn idle(&self) -> Option<f64> {
        self.activity.idle().filter(|idle| *idle >= self.after as f64)
    }

    /// The longest time in which the job used almost no CPU time, if the site allows less.
    pub fn longest(&self) -> Option<f64> {
        Some(self.longest).filter(|longest| *longest >= self.after as f64)
    }
}

impl KeptJob for JobIdle {
    const ENDING: &'static str = ".idle";
    const SCHEMA: &'static str = SCHEMA;

    fn job(&self) -> (Option<&str>, Option<u32>, &str) {
        (self.node.as_deref(), self.uid, &self.job)
    }

    fn members(&self) -> Value {
        json!({
            "directory": self.directory,
            "inode": self.inode,
            "looked": self.looked,
            "after": self.after,
            "activity": self.activity.json(),
            "longest": self.longest,
            "decision": self.decision.json(),
        })
    }

    fn from_members(KeptId { node, uid, job }: KeptId, value: &Value) -> Option<Self> {
        Some(Self {
            node,
            uid,
            job,
            directory: text(value, "directory")?,
            inode: number(value, "inode")?,
            looked: decimal(value, "looked")?,
            after: number(value, "after")?,
            activity: Activity::from_json(value.get("activity")?),
            longest: decimal(value, "longest").unwrap_or(0.0),
            decision: IdleDecision::from_json(value.get("decision")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::{all_living, living, remove, write};

    #[test]
    fn what_is_kept_is_read_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path().join("run");
        let idle = JobIdle {
            node: Some("n1".into()),
            uid: Some(nix::unistd::getuid().as_raw()),
            job: "7\"<".into(),
            directory: "/sys/fs/cgroup/j".into(),
            inode: 9,
            looked: 1_800_000_100.5,
            after: 60,
            longest: 70.5,
            ..JobIdle::default()
        };
        let place = |job: &str| living::<JobIdle>(&run_dir, Some("n1"), idle.uid, job);
        assert_eq!(place("7\"<"), None);
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root's files are read");
        }
        write(&run_dir, &idle).unwrap();
        assert_eq!((place("7\"<"), place("7")), (Some(idle.clone()), None));
        assert_eq!(all_living::<JobIdle>(&run_dir).unwrap(), std::slice::from_ref(&idle));
        remove(&run_dir, &idle);
        assert_eq!(all_living::<JobIdle>(&run_dir).unwrap(), []);
        assert_eq!(JobIdle::from_json(&json!({"schema": "jobfence-idle-2"})), None);
    }
}
