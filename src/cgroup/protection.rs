// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether `memory.low` and `memory.min` of a job have an effect: no more than the directories above it are protected.
//!
//! A directory's protection counts within its parent's (cgroup-v2.rst, "memory.min"; `effective_protection` in mm/memcontrol.c, later
//! mm/page_counter.c). A directory without any voids that of all below it, unless the hierarchy is mounted with `memory_recursiveprot`
//! (Linux 5.7; systemd does so since 247): then it gets a share of its parent's.

use crate::error::Result;
use crate::sys::dir::Dir;

/// Checks the directories on the way from the root of cgroup2, which has no such limits, to the one at `below`, that included. Returns
/// the path of the first without protection (`file`: `memory.low` or `memory.min`); `None`: protection below that directory has an
/// effect.
///
/// `recursive`: the hierarchy is mounted with `memory_recursiveprot`.
pub fn gap(root: &Dir, below: &str, file: &str, recursive: bool) -> Result<Option<String>> {
    let mut above: Option<Dir> = None;
    let mut path = String::new();
    for name in below.split('/').filter(|name| !name.is_empty()) {
        let is_first = above.is_none();
        path += if is_first { "" } else { "/" };
        path += name;
        let dir = above.as_ref().unwrap_or(root).child(name)?;
        // Without the file memory is not counted here at all, and nothing is protected.
        let protects = dir.read_if_there(file)?.is_some_and(|text| text.trim() != "0");
        if !protects && (is_first || !recursive) {
            return Ok(Some(path));
        }
        above = Some(dir);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hierarchy in which `a.slice` and `a.slice/b.scope` have these values of `memory.low`.
    fn tree(slice: &str, scope: &str) -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a.slice/b.scope")).unwrap();
        for (path, text) in [("a.slice", slice), ("a.slice/b.scope", scope)] {
            std::fs::write(temp.path().join(path).join("memory.low"), format!("{text}\n")).unwrap();
        }
        let dir = Dir::open(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn the_first_directory_without_protection_is_named() {
        let cases = [
            ("0", "1048576", true, Some("a.slice")),
            ("0", "max", false, Some("a.slice")),
            ("max", "0", true, None),
            ("max", "0", false, Some("a.slice/b.scope")),
            ("max", "1048576", false, None),
        ];
        for (slice, scope, recursive, expected) in cases {
            let (_temp, root) = tree(slice, scope);
            let found = gap(&root, "a.slice/b.scope", "memory.low", recursive).unwrap();
            assert_eq!(found.as_deref(), expected, "{slice} {scope} {recursive}");
        }
    }

    #[test]
    fn where_memory_is_not_counted_nothing_is_protected() {
        let (_temp, root) = tree("max", "max");
        let found = gap(&root, "a.slice/b.scope", "memory.min", true).unwrap();
        assert_eq!(found, Some("a.slice".to_owned()));
    }

    #[test]
    fn a_directory_that_does_not_exist_is_an_error() {
        let (_temp, root) = tree("max", "max");
        assert!(gap(&root, "a.slice/c.scope", "memory.low", true).is_err());
    }
}
