// SPDX-License-Identifier: GPL-2.0-or-later
//! Devices in the kernel's numbers, and sets of them.

use std::fmt;
use std::path::PathBuf;

use super::rules::{Access, DeviceKind};
use crate::sorted;

/// Devices as the kernel knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbers {
    /// Character or block.
    pub kind: DeviceKind,
    /// 0 to 4095.
    pub major: u32,
    /// 0 to 1048575; `None`: all of the major number.
    pub minor: Option<u32>,
}

/// As devices.list shows it: `c 1:3`.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == DeviceKind::Char { 'c' } else { 'b' };
        match self.minor {
            Some(minor) => write!(f, "{kind} {}:{minor}", self.major),
            None => write!(f, "{kind} {}:*", self.major),
        }
    }
}

impl Numbers {
    pub(super) const fn char(major: u32, minor: Option<u32>) -> Self {
        Self { kind: DeviceKind::Char, major, minor }
    }

    /// Whether the other is among these.
    pub fn has(self, other: Self) -> bool {
        let minor = self.minor.is_none() || self.minor == other.minor;
        self.kind == other.kind && self.major == other.major && minor
    }
}

/// The devices that every job may use, as systemd allows them under `DevicePolicy=closed` (`bpf_devices_allow_list_static`,
/// src/core/bpf-devices.c): null, zero, full, random, urandom, tty, ptmx, and all pseudo terminals, of which no node may be made.
/// Slurm's own list of allowed devices, as it was until 18.08 (cgroup_allowed_devices_file.conf), had null, zero, urandom and the
/// pseudo terminals of these, and beside them block devices and CPU registers, which no job needs.
///
/// The kernel keeps these numbers for good (admin-guide/devices.txt), so it does not matter what is in /dev.
pub(super) const EVERYBODYS: [(Numbers, Access); 8] = [
    (Numbers::char(1, Some(3)), Access::ALL),
    (Numbers::char(1, Some(5)), Access::ALL),
    (Numbers::char(1, Some(7)), Access::ALL),
    (Numbers::char(1, Some(8)), Access::ALL),
    (Numbers::char(1, Some(9)), Access::ALL),
    (Numbers::char(5, Some(0)), Access::ALL),
    (Numbers::char(5, Some(2)), Access::ALL),
    (Numbers::char(136, None), Access::READ_WRITE),
];

pub(super) fn is_everybodys(numbers: Numbers) -> bool {
    EVERYBODYS.iter().any(|(known, _)| *known == numbers)
}

/// What a directory's processes may use, in the kernel's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set {
    /// Whether all that is not denied is allowed; then nothing is in `allow`.
    pub is_open: bool,
    /// Each device once, sorted, with every access that a rule allows.
    pub allow: Vec<(Numbers, Access)>,
    /// Single devices that are denied; if the set is not open, only those of an allowed class.
    pub deny: Vec<Numbers>,
}

impl Set {
    /// `allow` and what every job may use, without what is denied.
    pub fn new(allow: Vec<(Numbers, Access)>, deny: &[Numbers]) -> Self {
        let mut merged: Vec<(Numbers, Access)> = Vec::new();
        for (numbers, access) in EVERYBODYS.into_iter().chain(allow) {
            if deny.contains(&numbers) {
                continue;
            }
            match merged.iter_mut().find(|(known, _)| *known == numbers) {
                Some((_, known)) => *known = known.or(access),
                None => merged.push((numbers, access)),
            }
        }
        sorted::sort_by_key(&mut merged, |(numbers, _)| *numbers);
        let is_allowed = |denied: &&Numbers| merged.iter().any(|(numbers, _)| numbers.has(**denied));
        let deny = deny.iter().filter(is_allowed).copied().collect();
        Self { is_open: false, allow: merged, deny }
    }

    /// All but these.
    pub fn but(mut deny: Vec<Numbers>) -> Self {
        sorted::sort(&mut deny);
        deny.dedup();
        Self { is_open: true, allow: Vec::new(), deny }
    }

    /// What both allow.
    pub fn and(&self, other: &Self) -> Self {
        let denied = || self.deny.iter().chain(&other.deny).copied().collect::<Vec<_>>();
        let closed = match (self.is_open, other.is_open) {
            (true, true) => return Self::but(denied()),
            (true, false) => Some(other),
            (false, true) => Some(self),
            (false, false) => None,
        };
        if let Some(closed) = closed {
            return Self::new(closed.allow.clone(), &denied());
        }
        let mut allow = Vec::new();
        for (ours, access) in &self.allow {
            for (theirs, their_access) in &other.allow {
                // The narrower of the two, if they have any device in common.
                let both = if ours.has(*theirs) { Some(theirs) } else { theirs.has(*ours).then_some(ours) };
                allow.extend(both.copied().zip(access.and(*their_access)));
            }
        }
        Self::new(allow, &denied())
    }
}

/// A program, not jobfence's, that decides alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForeignProgram {
    /// The directory to which it is attached.
    pub dir: PathBuf,
    /// In words: its name and id.
    pub program: String,
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is attached to {} and admits none beside it; if that is Slurm's, set ConstrainDevices=no in either cgroup.conf or \
             jobfence.conf",
            self.program,
            self.dir.display()
        )
    }
}
