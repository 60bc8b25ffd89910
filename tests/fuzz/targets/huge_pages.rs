// SPDX-License-Identifier: GPL-2.0-or-later
//! `MaxHugePages`: each line is a value.

use std::collections::BTreeSet;

use jobfence::cgroup::huge_pages::HugePages;
use jobfence::cgroup::layout::Version;

use super::text;

pub const WORDS: &[&str] = &["2M:4G", ",1G:0", "64K:", "1024G:16777215T", "2MB:1", "*:0", "unlimited"];

pub fn run(data: &[u8]) {
    let mut last = HugePages::default();
    for line in text(data).split('\n').take(64) {
        let Some(pages) = HugePages::parse(line) else { continue };
        let written = pages.to_string();
        assert_eq!(HugePages::parse(&written).as_ref(), Some(&pages), "{written:?}");
        for version in [Version::V1, Version::V2] {
            let writes = pages.writes(version);
            let files: BTreeSet<&str> = writes.iter().map(|write| write.file.as_str()).collect();
            assert_eq!(files.len(), writes.len(), "a file twice: {line:?}");
            let lower = pages.at_most(&last).writes(version);
            for write in writes.iter().chain(&last.writes(version)) {
                assert!(lower.iter().any(|low| low.file == write.file && low.bytes <= write.bytes), "{line:?}");
            }
        }
        last = pages;
    }
}
