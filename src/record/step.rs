// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of one step: which process has made which directories.

use std::fmt;

use super::header::{Header, SHARED, VERSION};
use super::lines::field;
use super::noted::Noted;
use super::roll::{Entry, EntryKind};
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, JobKey, Name};
use crate::sys::process::Owner;

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `/proc/sys/kernel/random/boot_id`: what another boot left has no processes and no directories.
    pub boot_id: String,
    /// The pid namespace in which the owner's pid means something, as `/proc/self/ns/pid` names it.
    pub pid_namespace: String,
    /// The process that made the directories and will remove them.
    pub owner: Owner,
    /// jobfence's own directory in each hierarchy, with the others below it.
    pub base: String,
    /// The directories below it, outermost first; the last is the step's.
    pub levels: Vec<String>,
    /// What other processes need to resume the fence; `None`: only the owner, which has opened it, uses it.
    pub shared: Option<Box<Shared>>,
}

impl Record {
    /// Its first lines.
    pub fn header(&self) -> Header {
        let (boot_id, pid_namespace) = (self.boot_id.clone(), self.pid_namespace.clone());
        Header { version: self.version().to_owned(), boot_id, pid_namespace, owner: self.owner }
    }

    fn version(&self) -> &'static str {
        if self.shared.is_some() { SHARED } else { VERSION }
    }

    /// The mark of the directories. It has less than the record, since there is little room, and it is never changed.
    pub fn mark(&self) -> String {
        let mut mark = self.clone();
        if let Some(shared) = &mut mark.shared {
            shared.plan = None;
            shared.gpus = Vec::new();
        }
        mark.to_string()
    }

    /// Whether it was written in this boot and this pid namespace: a pid of another one means nothing here.
    pub fn is_here(&self, host: &Host) -> bool {
        self.boot_id == host.boot_id && self.pid_namespace == host.pid_namespace
    }

    /// Whether the same process has made both.
    pub fn is_by_same(&self, other: &Self) -> bool {
        let opener = |record: &Self| record.shared.as_ref().map(|shared| shared.opener);
        (self.owner, opener(self)) == (other.owner, opener(other))
    }

    /// What is noted of its job for the usage log.
    pub fn noted(&self) -> Noted {
        let left = self.shared.as_ref().and_then(|shared| shared.plan.as_ref());
        left.map(|left| left.noted.clone()).unwrap_or_default()
    }

    /// The process that has made it, which need not be its owner.
    pub fn opener(&self) -> Owner {
        self.shared.as_ref().map_or(self.owner, |shared| shared.opener)
    }

    /// Whether both are the same record, and not another fence's of the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = match (&self.shared, &other.shared) {
            (Some(ours), Some(theirs)) => ours.is_same(theirs),
            (None, None) => true,
            _ => false,
        };
        same && (self.owner, &self.boot_id, &self.levels) == (other.owner, &other.boot_id, &other.levels)
    }

    /// Its line in the roll.
    pub fn entry(&self) -> Entry {
        self.header().entry(EntryKind::Step, file_name(&self.levels))
    }

    /// The job's user.
    pub fn uid(&self) -> Option<u32> {
        self.levels.iter().rev().nth(2)?.strip_prefix("uid_")?.parse().ok()
    }

    /// The step's key.
    pub fn key(&self) -> Option<JobKey> {
        let node = self.levels.len().checked_sub(4).and_then(|at| self.levels.get(at));
        let node = node.map(Name::new).transpose().ok()?;
        Some(JobKey { node, uid: self.uid()?, job: self.job()?, step: self.step()? })
    }

    /// The scheduler's name of the job.
    pub fn job(&self) -> Option<Id> {
        if let Some(shared) = &self.shared {
            return Some(shared.job.clone());
        }
        Id::from_name(self.levels.iter().rev().nth(1)?.strip_prefix("job_")?)
    }

    /// The scheduler's name of the step.
    pub fn step(&self) -> Option<Id> {
        if let Some(shared) = &self.shared {
            return Some(shared.step.clone());
        }
        let step = self.levels.last()?.strip_prefix("step_")?;
        Id::from_steps_name(step.split_once('.').map_or(step, |(step, _)| step))
    }

    /// Whether the owner that left this as a mark is certainly dead. No other boot can have left one: a mark that names another is a
    /// container's.
    pub fn is_left_behind(&self, host: &Host) -> Result<bool> {
        Ok(self.boot_id == host.boot_id && self.header().is_dead(host)?)
    }

    /// Reads a record. An incomplete one is an error, never a guess.
    pub fn parse(text: &str) -> Result<Self> {
        let (Header { version, boot_id, pid_namespace, owner }, mut lines) = Header::split(text)?;
        if version != VERSION && version != SHARED {
            return Err(Error::new("a record of another release").value(version).hint(format!(
                "the process that made it ({}) has ended, and only that release knows what it made: run its 'jobfence \
                 reap', or end what is in the directories of this name, and remove them and the record",
                owner.pid
            )));
        }
        let bad = || Error::new("not a complete record");
        let base = field(&mut lines, "base").filter(|base| is_relative(base)).ok_or_else(bad)?;
        let path = field(&mut lines, "path").filter(|path| is_relative(path)).ok_or_else(bad)?;
        let levels: Vec<String> = path.split('/').map(str::to_owned).collect();
        if !text.ends_with('\n') {
            return Err(bad());
        }
        let shared = match version == SHARED {
            true => Some(Box::new(Shared::parse(lines).ok_or_else(bad)?)),
            false if lines.next().is_some() => return Err(bad()),
            false => None,
        };
        if levels.len() < 3 || levels.len() > 4 || !levels.last().is_some_and(|step| step.starts_with("step_")) {
            return Err(bad());
        }
        Ok(Self { boot_id, pid_namespace, owner, base, levels, shared })
    }
}

/// One or more plain names: nothing that could lead out of the tree.
fn is_relative(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
    path.split('/').all(|name| !name.is_empty() && !name.starts_with('.') && name.chars().all(plain))
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nboot_id={}\npid_namespace={}", self.version(), self.boot_id, self.pid_namespace)?;
        writeln!(f, "owner_pid={}\nowner_start={}", self.owner.pid, self.owner.start)?;
        writeln!(f, "base={}\npath={}", self.base, self.levels.join("/"))?;
        if let Some(shared) = &self.shared {
            write!(f, "{shared}")?;
        }
        f.write_str("end\n")
    }
}

/// `uid_1001,job_5,step_0`: no name has a comma.
pub(super) fn file_name(levels: &[String]) -> String {
    levels.join(",")
}
