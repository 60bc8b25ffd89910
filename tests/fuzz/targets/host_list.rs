// SPDX-License-Identifier: GPL-2.0-or-later
//! Lists of nodes: the first line is one, the others are nodes that are looked for in it.

use jobfence::hostlist::HostList;

use super::text;

pub const WORDS: &[&str] =
    &["n[01-16]", "n[0-999999999]", "[1,2-3]", "login1", ",", "rack[1-2]n[8-11]x", "\nn01", "\nn1111"];

/// Lists of more names are not written out.
const SMALL: usize = 300;

pub fn run(data: &[u8]) {
    let text = text(data);
    let mut lines = text.split('\n');
    let written = lines.next().unwrap_or_default();
    let Some(list) = HostList::parse(written) else { return };
    // The order of names with three brackets is Slurm's secret.
    let is_ordered = !has_three_brackets(written);
    for node in lines.take(8) {
        let (is_in, is_placed) = (list.contains(node), list.position(node).is_some());
        assert!(is_in == is_placed || is_in && !is_ordered, "{node:?} in {written:?}");
    }
    if !is_ordered {
        return;
    }
    // Each name of a list is at its place, or at that of an equal one before it.
    let Some(names) = names(written) else { return };
    for (place, name) in names.iter().enumerate() {
        let first = names.iter().position(|other| other == name).unwrap_or(place);
        assert_eq!(list.position(name), Some(first as u64), "{name:?} in {written:?}");
    }
    assert!(names.len() > 4 || !list.contains("nobody-is-called-so"));
}

fn has_three_brackets(list: &str) -> bool {
    let mut depth = 0;
    let names = list.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    names.into_iter().any(|name| name.matches('[').count() > 2)
}

/// The list written out, the last bracket fastest; `None`: too many.
fn names(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ',' && depth == 0
        });
        let (item, more) = rest.split_at(end.unwrap_or(rest.len()));
        rest = more.strip_prefix(',').unwrap_or(more);
        let mut names = vec![String::new()];
        for part in item.split_inclusive(['[', ']']) {
            let values = match part.strip_suffix(']') {
                Some(ranges) => numbers(ranges)?,
                None => vec![part.trim_end_matches('[').to_owned()],
            };
            if names.len() * values.len() > SMALL {
                return None;
            }
            names = names.iter().flat_map(|name| values.iter().map(move |value| format!("{name}{value}"))).collect();
        }
        all.extend(names);
        if all.len() > SMALL {
            return None;
        }
    }
    Some(all)
}

fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last - first + all.len() > SMALL {
            return None;
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Some(all)
}
