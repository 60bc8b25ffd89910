// SPDX-License-Identifier: GPL-2.0-or-later
//! /proc/PID/mountinfo: what is found of hierarchies, written as the kernel writes it, is found again.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use jobfence::cgroup::layout::{Layout, Version, options};

use super::text;

pub const WORDS: &[&str] = &[
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n",
    "36 31 0:33 / /sys/fs/cgroup/devices rw,relatime shared:9 - cgroup cgroup rw,devices\n",
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n",
    "/docker/0a1b",
    " - ",
    "cgroup2",
    ",cpu,cpuacct",
    ",name=systemd",
    "\\040",
    "\\777",
    "\\134",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    let below = Path::new("/sys/fs/cgroup");
    let layout = Layout::parse(&text, below);
    assert!(layout.hierarchies.len() <= text.lines().count());
    let mut written = String::new();
    let mut mounts = BTreeSet::new();
    for hierarchy in &layout.hierarchies {
        assert!(hierarchy.mount.starts_with(below), "{hierarchy}");
        assert!(mounts.insert(&hierarchy.mount), "twice: {hierarchy}");
        let (kind, mut said) = match hierarchy.version {
            Version::V1 => ("cgroup", "rw".to_owned()),
            Version::V2 => {
                assert!(hierarchy.controllers.is_empty() && hierarchy.name.is_none());
                ("cgroup2", "rw,nsdelegate".to_owned())
            }
        };
        hierarchy.controllers.iter().for_each(|controller| said.push_str(&format!(",{controller}")));
        hierarchy.name.iter().for_each(|name| said.push_str(&format!(",name={name}")));
        let (root, mount) = (escaped(&hierarchy.root), escaped(&hierarchy.mount.to_string_lossy()));
        // Something behind the options, which a line's end cannot take a part of.
        writeln!(written, "1 2 0:3 {root} {mount} rw shared:1 - {kind} {kind} {said} .").unwrap();
        // Of the mount that counts; the last one at a place hides the others.
        let options = options(&text, &hierarchy.mount);
        assert!(!options.is_empty());
        assert!(hierarchy.controllers.iter().all(|controller| options.contains(&controller.as_str())), "{hierarchy}");
    }
    assert_eq!(Layout::parse(&written, below), layout, "{written}");
    assert_eq!(layout.kind(), Layout::parse(&written, below).kind());
}

/// As the kernel does it (`seq_path`, `mangle`).
fn escaped(path: &str) -> String {
    let escape = |c| match c {
        ' ' => "\\040".to_owned(),
        '\t' => "\\011".to_owned(),
        '\n' => "\\012".to_owned(),
        '\\' => "\\134".to_owned(),
        c => String::from(c),
    };
    path.chars().map(escape).collect()
}
