// SPDX-License-Identifier: GPL-2.0-or-later
//! A directory of this thread's, for what is only read from files.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

thread_local! {
    static DIRECTORY: TempDir = {
        // In memory, where that is possible: an input is many small files.
        let memory = Path::new("/dev/shm");
        tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).expect("a directory for files")
    };
}

/// Where they are.
pub fn directory() -> PathBuf {
    DIRECTORY.with(|directory| directory.path().to_owned())
}

/// Puts a file there, with the directories above it.
pub fn put(name: &str, content: &[u8]) -> PathBuf {
    let file = directory().join(name);
    if !file.parent().is_some_and(Path::is_dir) {
        fs::create_dir_all(file.parent().expect("a directory above")).expect("directories");
    }
    fs::write(&file, content).expect("a file");
    file
}
