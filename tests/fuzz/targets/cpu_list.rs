// SPDX-License-Identifier: GPL-2.0-or-later
//! Lists of CPUs, as `0-3,8`: each line is one.

use std::collections::BTreeSet;

use jobfence::cpu_list::CpuList;

use super::text;

pub const WORDS: &[&str] = &["0-3", ",", "-", "8", "0-65535", "65535", "0-4294967295", "1-0"];

/// What takes longer than reading it is done with smaller ones.
const LARGE: usize = 1_000;

pub fn run(data: &[u8]) {
    let text = text(data);
    let mut last = CpuList::default();
    for line in text.split('\n').take(16) {
        let Some(list) = CpuList::parse(line) else { continue };
        assert!(list.len() <= 65_536 && list.last().is_none_or(|last| last < 65_536));
        if list.len() > LARGE {
            continue;
        }
        assert_eq!(list, model(line), "{line:?}");
        assert_eq!(CpuList::parse(&list.to_string()).as_ref(), Some(&list));
        let (and, both, without) = (list.and(&last), list.in_both(&last), list.without(&last));
        assert_eq!(and.len() + both.len(), list.len() + last.len());
        assert!(both.is_within(&list) && both.is_within(&last) && list.is_within(&and));
        assert_eq!(without.and(&both), list);
        last = list;
    }
}

/// One number after the other.
fn model(line: &str) -> CpuList {
    let mut numbers = BTreeSet::new();
    for item in line.trim().split(',').filter(|item| !item.is_empty()) {
        let mut ends = item.split('-').map(|end| end.parse::<u32>().expect("a number"));
        let first = ends.next().expect("one");
        numbers.extend(first..=ends.next().unwrap_or(first));
    }
    numbers.into_iter().collect()
}
