// SPDX-License-Identifier: GPL-2.0-or-later
//! The file that Slurm loads, as cargo has built it for the tests.

use std::path::PathBuf;

/// Beside the test programs: cargo builds the cdylib for them too.
pub fn shared_object() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = test.parent().unwrap().join("libjobfence.so");
    assert!(file.exists(), "{} is missing", file.display());
    file
}
