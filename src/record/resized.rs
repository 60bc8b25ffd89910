// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job was granted and has now, after `jobfence resize`: an extended attribute of the job's directories, so that it goes with them.
//!
//! One line each: `at`, in seconds since 1970; and `cpus` in thousandths and `memory` in bytes, each as `BEFORE/NOW`, where it was changed.
//! `BEFORE` is what the job had before the first change, or `-` if that is not known.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::job::Cpus;

/// An amount before the first change, and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Before; `None`: not known, or not limited.
    pub before: Option<u64>,
    /// Now.
    pub now: u64,
}

/// See the beginning of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resized {
    /// When it was last changed, in seconds since 1970.
    pub at: u64,
    /// CPUs, in thousandths.
    pub cpus: Option<Changed>,
    /// Memory, in bytes.
    pub memory: Option<Changed>,
}

impl Resized {
    /// Reads what `Display` writes. What cannot be read counts as not changed.
    pub fn parse(text: &str) -> Self {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let changed = |key: &str| {
            let (before, now) = value(key)?.split_once('/')?;
            Some(Changed { before: before.parse().ok(), now: now.parse().ok()? })
        };
        Self {
            at: value("at").and_then(|at| at.parse().ok()).unwrap_or(0),
            cpus: changed("cpus"),
            memory: changed("memory"),
        }
    }

    /// This change after an earlier one: what the job had before the first stays known.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        let both = |new: Option<Changed>, old: Option<Changed>| match (new, old) {
            (Some(new), Some(old)) => Some(Changed { before: old.before, ..new }),
            (new, old) => new.or(old),
        };
        Self { at: self.at, cpus: both(self.cpus, earlier.cpus), memory: both(self.memory, earlier.memory) }
    }

    /// As [`Self::after`], if there is an earlier one.
    #[must_use]
    pub fn after_any(self, earlier: Option<&Self>) -> Self {
        match earlier {
            Some(earlier) => self.after(earlier),
            None => self,
        }
    }

    /// When it was last changed.
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.at)
    }

    /// The change of CPUs, as numbers of CPUs.
    pub fn cpus(&self) -> Option<(Option<Cpus>, Cpus)> {
        self.cpus.map(|changed| (changed.before.map(Cpus::from_thousandths), Cpus::from_thousandths(changed.now)))
    }
}

impl fmt::Display for Resized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at={}", self.at)?;
        for (key, changed) in [("cpus", self.cpus), ("memory", self.memory)] {
            if let Some(Changed { before, now }) = changed {
                let before = before.map_or_else(|| "-".to_owned(), |before| before.to_string());
                writeln!(f, "{key}={before}/{now}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_first_amount_stays() {
        let first = Resized { at: 7, cpus: Some(Changed { before: Some(1000), now: 2000 }), memory: None };
        let second = Resized {
            at: 9,
            cpus: Some(Changed { before: Some(2000), now: 500 }),
            memory: Some(Changed { before: None, now: 1 << 30 }),
        };
        let both = second.clone().after(&first);
        assert_eq!(both.to_string(), "at=9\ncpus=1000/500\nmemory=-/1073741824\n");
        for one in [first.clone(), second.clone(), both.clone(), Resized::default()] {
            assert_eq!(Resized::parse(&one.to_string()), one);
        }
        let third = Resized { at: 10, ..Resized::default() };
        assert_eq!(third.after(&both), Resized { at: 10, ..both });
        assert_eq!(Resized::parse("at=x\ncpus=1\nmemory=1/x\n"), Resized::default());
    }
}
