// SPDX-License-Identifier: GPL-2.0-or-later
//! What those jobs may use that are lent nothing.
//!
//! What is not known of a job says neither that it has ended nor that it reserves nothing. So what was known last counts on, and nothing more
//! is lent until it is known again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::touched::Touched;

/// What one job's limit is found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundLimit {
    Bytes(u64),
    /// It may use all.
    Unlimited,
    /// It is there, and cannot be read.
    Unknown(String),
}

/// All of them.
#[derive(Debug, Default)]
pub struct Reserved {
    /// What was last known of each, in bytes.
    known: BTreeMap<PathBuf, u64>,
    /// What each has touched of that, if it is looked at, with the number of its directory: another job may get the name.
    touched: BTreeMap<PathBuf, (u64, Touched)>,
    /// Why nothing more is lent.
    pub why_no_more: Option<String>,
    /// Whether that is because something was not seen, which may soon be.
    pub is_unsure: bool,
}

impl Reserved {
    /// In bytes.
    pub fn sum(&self) -> u64 {
        self.known.values().fold(0, |sum, limit| sum.saturating_add(*limit))
    }

    /// What they have not touched for a while, in bytes.
    pub fn untouched(&self) -> u64 {
        let known = self.known.iter().filter_map(|(path, limit)| Some(self.touched.get(path)?.1.untouched(*limit)));
        known.fold(0, u64::saturating_add)
    }

    /// A job uses so much now.
    pub fn see(&mut self, path: &Path, inode: u64, used: u64, speed: f64) {
        let now = Instant::now();
        let seen = self.touched.entry(path.to_owned()).or_insert_with(|| (inode, Touched::new(now)));
        if seen.0 != inode {
            *seen = (inode, Touched::new(now));
        }
        seen.1.see(now, used, speed);
    }

    /// What a search has found, with the job's name; `unseen`: why there may be more jobs.
    pub fn found(&mut self, found: BTreeMap<PathBuf, (String, FoundLimit)>, unseen: Option<String>) {
        let before = std::mem::take(&mut self.known);
        (self.why_no_more, self.is_unsure) = (None, false);
        if let Some(why) = unseen {
            self.known.clone_from(&before);
            (self.why_no_more, self.is_unsure) = (Some(format!("not all jobs are seen: {why}")), true);
        }
        for (path, (name, limit)) in found {
            let why = match limit {
                FoundLimit::Bytes(bytes) => {
                    self.known.insert(path, bytes);
                    continue;
                }
                FoundLimit::Unlimited => {
                    self.known.remove(&path);
                    format!("{name} has no memory limit, and may use all")
                }
                FoundLimit::Unknown(why) => {
                    self.known.extend(before.get(&path).map(|bytes| (path, *bytes)));
                    self.is_unsure = true;
                    format!("the memory limit of {name} is not known: {why}")
                }
            };
            self.why_no_more.get_or_insert(why);
        }
        self.touched.retain(|path, _| self.known.contains_key(path));
    }

    /// A job that may be lent memory counts as that.
    pub fn is_a_borrowers(&mut self, path: &PathBuf) {
        self.known.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(all: &[(&str, FoundLimit)]) -> BTreeMap<PathBuf, (String, FoundLimit)> {
        all.iter().map(|(path, limit)| (PathBuf::from(path), (format!("job {path}"), limit.clone()))).collect()
    }

    #[test]
    fn another_job_with_the_name_has_touched_all() {
        let mut reserved = Reserved::default();
        let path = Path::new("1");
        reserved.found(found(&[("1", FoundLimit::Bytes(100))]), None);
        let see = |reserved: &mut Reserved, inode| {
            reserved.see(path, inode, 10, 1.0);
            // As if five minutes had passed.
            if let Some((_, touched)) = reserved.touched.get_mut(path) {
                touched.pass();
            }
            reserved.see(path, inode, 10, 1.0);
        };
        see(&mut reserved, 5);
        assert_eq!(reserved.untouched(), 90);
        reserved.see(path, 6, 10, 1.0);
        assert_eq!(reserved.untouched(), 0);
        see(&mut reserved, 6);
        assert_eq!(reserved.untouched(), 90);
        reserved.found(BTreeMap::new(), None);
        assert_eq!(reserved.untouched(), 0);
    }

    fn state(reserved: &Reserved) -> (u64, bool, bool) {
        (reserved.sum(), reserved.why_no_more.is_some(), reserved.is_unsure)
    }

    #[test]
    fn what_is_not_known_counts_as_it_was_and_stops_lending() {
        let mut reserved = Reserved::default();
        let (one, two) = (FoundLimit::Bytes(10), FoundLimit::Bytes(20));
        reserved.found(found(&[("1", one.clone()), ("2", two.clone())]), None);
        assert_eq!(state(&reserved), (30, false, false));
        // One cannot be read.
        reserved.found(found(&[("1", one.clone()), ("2", FoundLimit::Unknown("EMFILE".into()))]), None);
        assert_eq!(state(&reserved), (30, true, true));
        assert_eq!(reserved.why_no_more.as_deref(), Some("the memory limit of job 2 is not known: EMFILE"));
        // Not all are seen.
        reserved.found(found(&[("1", FoundLimit::Bytes(11))]), Some("EIO".into()));
        assert_eq!(state(&reserved), (31, true, true));
        // One has no limit: the others are owners still.
        reserved.found(found(&[("2", two), ("3", FoundLimit::Unlimited)]), None);
        assert_eq!(state(&reserved), (20, true, false));
        // Both have ended.
        reserved.found(found(&[("1", one)]), None);
        assert_eq!(state(&reserved), (10, false, false));
    }
}
