// SPDX-License-Identifier: GPL-2.0-or-later
//! The first lines of a record, which every release understands.

use super::lines::field;
use super::roll::{Entry, EntryKind};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::sys::process::Owner;

/// First line of a record. With another number it is another release's: its first lines, see [`Header`], mean the same, and
/// what follows is not ours to understand.
pub(super) const VERSION: &str = "jobfence-record 1";
/// The same of a fence whose life several processes share.
pub(super) const SHARED: &str = "jobfence-record 2";
pub(super) const VERSIONS: &str = "jobfence-record ";

/// What the records of every release say in their first lines, and end with: a node is upgraded, or goes back, while steps of
/// the other release live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `jobfence-record 1`.
    pub version: String,
    /// See [`Record::boot_id`].
    pub boot_id: String,
    /// See [`Record::pid_namespace`].
    pub pid_namespace: String,
    /// See [`Record::owner`].
    pub owner: Owner,
}

impl Header {
    /// Understands the beginning of a complete record of whatever release.
    pub fn parse(text: &str) -> Result<Self> {
        Self::split(text).map(|(header, _)| header)
    }

    /// Whether who made it is certainly dead.
    pub fn is_dead(&self, host: &Host) -> Result<bool> {
        if self.boot_id != host.boot_id {
            return Ok(true);
        }
        // A pid of another namespace (a slurmd in a container) says nothing here: it is its own janitor's.
        Ok(self.pid_namespace == host.pid_namespace && !self.owner.is_alive(&host.proc)?)
    }

    /// Whether several processes share the fence, and the owner is not to be asked for all of them.
    pub fn is_shared(&self) -> bool {
        self.version == SHARED
    }

    /// What its owner has, as a line in the roll.
    pub fn entry(&self, kind: EntryKind, name: String) -> Entry {
        Entry { owner: self.owner, pid_namespace: self.pid_namespace.clone(), kind, name }
    }

    /// The header, and the lines between it and the last.
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
