// SPDX-License-Identifier: GPL-2.0-or-later
//! The text of the crate, for tests that read it.

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file below `src`: its path from there, and its text.
pub fn sources() -> Vec<(PathBuf, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut left = vec![top.clone()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.strip_prefix(&top).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 50, "not many files below {}", top.display());
    found
}
