// SPDX-License-Identifier: GPL-2.0-or-later
//! The program of each target: its name says which.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../tests/fuzz/targets/mod.rs"]
mod targets;

fuzz_target!(|data: &[u8]| {
    let target = targets::TARGETS.iter().find(|target| target.name == env!("CARGO_BIN_NAME"));
    (target.expect("a target of this name").run)(data);
});
