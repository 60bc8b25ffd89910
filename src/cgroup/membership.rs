// SPDX-License-Identifier: GPL-2.0-or-later
//! The cgroups that a process is in now, as the kernel shows them.

use std::ops::Range;

use crate::cgroup::layout::{Hierarchy, Layout, Version};
use crate::error::Result;
use crate::sys::dir::Dir;

/// The cgroups of one process, one for each hierarchy: `/proc/PID/cgroup` (cgroups(7)).
///
/// Each launch asks for each hierarchy more than once, so each line is parsed once, byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    text: String,
    lines: Vec<MembershipLine>,
}

/// Where in the text the fields of a line are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MembershipLine {
    /// Empty for cgroup2.
    controllers: Range<usize>,
    path: Range<usize>,
}

impl Membership {
    /// Reads the cgroups of a process, through a handle of `/proc`.
    pub fn read(proc: &Dir, pid: i32) -> Result<Self> {
        Ok(Self::from_text(proc.read_table(&format!("{pid}/cgroup"))?))
    }

    /// Parses lines `ID:CONTROLLERS:PATH`; others are skipped.
    pub fn parse(text: &str) -> Self {
        Self::from_text(text.to_owned())
    }

    fn from_text(text: String) -> Self {
        let mut lines = Vec::new();
        let (mut first, mut second) = (None, None);
        for (at, byte) in text.bytes().chain([b'\n']).enumerate() {
            match (byte, first, second) {
                (b'\n', Some(first), Some(second)) => {
                    lines.push(MembershipLine { controllers: first + 1..second, path: second + 1..at });
                }
                (b':', None, _) => first = Some(at),
                (b':', _, None) => second = Some(at),
                _ => {}
            }
            if byte == b'\n' {
                (first, second) = (None, None);
            }
        }
        Self { text, lines }
    }

    /// The path in cgroup2, seen from the root of that.
    pub fn in_unified(&self) -> Option<&str> {
        let line = self.lines.iter().find(|line| line.controllers.is_empty())?;
        self.text.get(line.path.clone())
    }

    /// The path in this hierarchy, seen from the hierarchy's root.
    pub fn path_in(&self, hierarchy: &Hierarchy) -> Option<&str> {
        let Hierarchy { version, controllers, name, .. } = hierarchy;
        if *version == Version::V2 {
            return self.in_unified();
        }
        let is_it = |line: &&MembershipLine| {
            let items = self.text.get(line.controllers.clone()).unwrap_or_default();
            // Split only if it can be one of several.
            let has = |item: &str| items == item || items.len() > item.len() && items.split(',').any(|one| one == item);
            match name {
                Some(name) => items.split(',').any(|one| one.strip_prefix("name=") == Some(name)),
                None => controllers.iter().any(|controller| has(controller)),
            }
        };
        self.text.get(self.lines.iter().find(is_it)?.path.clone())
    }

    /// Moves a process to these cgroups, in each hierarchy in which it is elsewhere now. Returns where it remains, and why.
    pub fn restore(&self, layout: &Layout, proc: &Dir, pid: i32) -> Vec<String> {
        let Ok(now) = Self::read(proc, pid) else { return Vec::new() };
        let mut remains = Vec::new();
        for hierarchy in &layout.hierarchies {
            let (Some(from), Some(to)) = (now.path_in(hierarchy), self.path_in(hierarchy)) else { continue };
            if from == to {
                continue;
            }
            if let Err(why) = hierarchy.dir_of(to).and_then(|dir| dir.write("cgroup.procs", &pid.to_string())) {
                remains.push(format!("{}{from} ({why})", hierarchy.mount.display()));
            }
        }
        remains
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
        let text =
            "9:name=systemd:/s\n4:memory:/m:with:colons\n1:cpu,cpuacct:/c\r\n0::/u\nnonsense\n1:half\n7:freezer:/f";
        let membership = Membership::parse(text);
        assert_eq!(membership.path_in(&v1(&["memory"], None)), Some("/m:with:colons"));
        assert_eq!(membership.path_in(&v1(&["cpuacct", "cpu"], None)), Some("/c\r"), "a name may end so");
        assert_eq!(membership.path_in(&v1(&["freezer"], None)), Some("/f"));
        assert_eq!(membership.path_in(&v1(&["system"], None)), None);
        assert_eq!(membership.path_in(&v1(&[], Some("sys"))), None);
        assert_eq!(membership.path_in(&v1(&[], Some("systemd"))), Some("/s"));
        assert_eq!(membership.path_in(&v1(&["pids"], None)), None);
        assert_eq!(membership.path_in(&Hierarchy { version: Version::V2, ..v1(&[], None) }), Some("/u"));
        assert_eq!(membership.in_unified(), Some("/u"));
    }
}
