// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a process is now, as the kernel says.

use crate::cgroup::layout::{Hierarchy, Version};
use crate::error::Result;
use crate::sys::dir::Dir;

/// The cgroups of one process, one for each hierarchy: `/proc/PID/cgroup` (cgroups(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership(Vec<MembershipLine>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct MembershipLine {
    /// Empty for cgroup2.
    controllers: String,
    path: String,
}

impl Membership {
    /// Of a process, through a handle of `/proc`.
    pub fn read(proc: &Dir, pid: i32) -> Result<Self> {
        Ok(Self::parse(&proc.read_value(&format!("{pid}/cgroup"))?))
    }

    /// Lines `ID:CONTROLLERS:PATH`; others are skipped.
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some(MembershipLine { controllers: controllers.to_owned(), path: path.to_owned() })
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// The path in this hierarchy, seen from the hierarchy's root.
    pub fn path_in(&self, hierarchy: &Hierarchy) -> Option<&str> {
        let matches = |entry: &&MembershipLine| match hierarchy.version {
            Version::V2 => entry.controllers.is_empty(),
            Version::V1 => {
                entry.controllers.split(',').any(|item| match (&hierarchy.name, item.strip_prefix("name=")) {
                    (Some(ours), Some(name)) => ours == name,
                    (_, None) => hierarchy.has(item),
                    (None, Some(_)) => false,
                })
            }
        };
        self.0.iter().find(matches).map(|entry| entry.path.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn v1(controllers: &[&str], name: Option<&str>) -> Hierarchy {
        Hierarchy {
            version: Version::V1,
            mount: PathBuf::from("/x"),
            root: "/".into(),
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            name: name.map(str::to_owned),
        }
    }

    #[test]
    fn finds_the_path_in_each_hierarchy() {
        let text = "9:name=systemd:/s\n4:memory:/m:with:colons\n1:cpu,cpuacct:/c\n0::/u\nnonsense\n";
        let membership = Membership::parse(text);
        assert_eq!(membership.path_in(&v1(&["memory"], None)), Some("/m:with:colons"));
        assert_eq!(membership.path_in(&v1(&["cpuacct", "cpu"], None)), Some("/c"));
        assert_eq!(membership.path_in(&v1(&[], Some("systemd"))), Some("/s"));
        assert_eq!(membership.path_in(&v1(&["pids"], None)), None);
        assert_eq!(membership.path_in(&Hierarchy { version: Version::V2, ..v1(&[], None) }), Some("/u"));
    }
}
