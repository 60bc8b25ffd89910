// SPDX-License-Identifier: GPL-2.0-or-later
//! What every door hands over: whose step this is, and what the scheduler granted it.

use std::fmt;

use crate::cpu_list::CpuList;
use crate::error::{Error, Result};

/// A name that is safe as one component of a path: `[A-Za-z0-9_.+-]`, 1 to 64 characters, not beginning with a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Takes the name if it is safe.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let safe = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(safe) {
            return Err(Error::new("not a name for a cgroup directory").value(name));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of one step on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKey {
    /// Where several daemons of the scheduler share this host: which of them.
    pub node: Option<Name>,
    /// The user the job belongs to.
    pub uid: u32,
    /// The scheduler's name of the job; under Slurm a number.
    pub job: Name,
    /// The scheduler's name of the step: `batch`, `extern`, `interactive`, or a number.
    pub step: Name,
}

impl JobKey {
    /// The directories above the step, outermost first.
    pub fn parents(&self) -> Vec<String> {
        let mut levels = Vec::with_capacity(3);
        levels.extend(self.node.as_ref().map(Name::to_string));
        levels.push(format!("uid_{}", self.uid));
        levels.push(format!("job_{}", self.job));
        levels
    }

    /// The step's directory; `again` counts from 1, and is above 1 when the plain name belongs to somebody alive.
    pub fn step_dir(&self, again: u32) -> String {
        if again <= 1 { format!("step_{}", self.step) } else { format!("step_{}.{again}", self.step) }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} step {}", self.job, self.step)
    }
}

/// CPU time as a number of CPUs, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u64);

impl Cpus {
    /// Whole CPUs (hardware threads).
    pub fn whole(count: u32) -> Self {
        Self(u64::from(count) * 1000)
    }

    /// Thousandths of a CPU.
    pub fn from_thousandths(thousandths: u64) -> Self {
        Self(thousandths)
    }

    /// Thousandths of a CPU.
    pub fn thousandths(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1000, self.0 % 1000);
        if part == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{part:03}").trim_end_matches('0'))
    }
}

/// What the scheduler granted on this node. `None`: it does not manage this, or has not said yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Hardware threads of the whole job.
    pub job_cpus: Option<Cpus>,
    /// Hardware threads of this step.
    pub step_cpus: Option<Cpus>,
    /// Hardware threads of each task, if they share the step's equally.
    pub task_cpus: Option<Cpus>,
    /// Memory of the whole job, in bytes.
    pub job_memory: Option<u64>,
    /// Memory of this step, in bytes.
    pub step_memory: Option<u64>,
    /// The whole job's cores, by the scheduler's own numbers; empty where it does not say which.
    pub job_cores: CpuList,
    /// This step's.
    pub step_cores: CpuList,
    /// Whether the scheduler has allocated nothing, and was told to start it all the same: nothing is limited to a grant then.
    pub unallocated: bool,
}

impl Grant {
    /// Of a job whose only step, and only task, has all of it; of which cores is not said.
    pub fn whole(cpus: Option<Cpus>, memory: Option<u64>) -> Self {
        Self {
            job_cpus: cpus,
            step_cpus: cpus,
            task_cpus: cpus,
            job_memory: memory,
            step_memory: memory,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_tree_are_refused() {
        for bad in ["", ".", "..", ".x", "a/b", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in ["5", "batch", "1234.server-1", "0+1", "n_1"] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn cpus_are_written_as_people_write_them() {
        assert_eq!(Cpus::whole(4).to_string(), "4");
        assert_eq!(Cpus::from_thousandths(500).to_string(), "0.5");
        assert_eq!(Cpus::from_thousandths(1001).to_string(), "1.001");
    }
}
