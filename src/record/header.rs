// SPDX-License-Identifier: GPL-2.0-or-later
//! The first lines of a record, which every release can read.

use super::lines::field;
use super::roll::{Entry, EntryKind};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::sys::process::Owner;

/// First line of a record. Another number is another release's: its first lines (see [`Header`]) mean the same, but the rest is not
/// read.
pub(super) const VERSION: &str = "jobfence-record 1";
/// First line of the record of a fence that several processes share.
pub(super) const SHARED: &str = "jobfence-record 2";
pub(super) const VERSIONS: &str = "jobfence-record ";

/// The first lines of a record, which are the same in every release, as is the last: a node is upgraded, or goes back, while steps of
/// the other release live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The first line, as `jobfence-record 1`.
    pub version: String,
    /// The boot in which it was written.
    pub boot_id: String,
    /// The owner's pid namespace.
    pub pid_namespace: String,
    /// The process that owns what the record names.
    pub owner: Owner,
}

impl Header {
    /// Reads the beginning of a complete record of any release.
    pub fn parse(text: &str) -> Result<Self> {
        Self::split(text).map(|(header, _)| header)
    }

    /// Whether its owner is certainly dead.
    pub fn is_dead(&self, host: &Host) -> Result<bool> {
        if self.boot_id != host.boot_id {
            return Ok(true);
        }
        // A pid of another namespace (a slurmd in a container) says nothing here: the record is that namespace's janitor's.
        Ok(self.pid_namespace == host.pid_namespace && !self.owner.is_alive(&host.proc)?)
    }

    /// Whether several processes share the fence, so that it does not end with its owner.
    pub fn is_shared(&self) -> bool {
        self.version == SHARED
    }

    /// A line of the roll for something that its owner has.
    pub fn entry(&self, kind: EntryKind, name: String) -> Entry {
        Entry { owner: self.owner, pid_namespace: self.pid_namespace.clone(), kind, name }
    }

    /// The header, and the lines between it and the last line.
    pub(crate) fn split(text: &str) -> Result<(Self, std::str::Lines<'_>)> {
        let bad = || Error::new("not a complete record");
        let mut lines = text.lines();
        let version = lines.next().filter(|line| line.starts_with(VERSIONS)).ok_or_else(bad)?.to_owned();
        if lines.next_back() != Some("end") {
            return Err(bad());
        }
        let boot_id = field(&mut lines, "boot_id").ok_or_else(bad)?;
        let pid_namespace = field(&mut lines, "pid_namespace").ok_or_else(bad)?;
        let pid = field(&mut lines, "owner_pid").and_then(|pid| pid.parse().ok()).filter(|&pid| pid > 0);
        let start = field(&mut lines, "owner_start").and_then(|start| start.parse().ok());
        let owner = Owner { pid: pid.ok_or_else(bad)?, start: start.ok_or_else(bad)? };
        Ok((Self { version, boot_id, pid_namespace, owner }, lines))
    }
}
