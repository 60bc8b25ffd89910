// SPDX-License-Identifier: GPL-2.0-or-later
//! /proc/PID/stat, in which a process's name is whatever its user wants.

use jobfence::sys::dir::Dir;
use jobfence::sys::process::{Owner, is_ending};

use super::files;

pub const WORDS: &[&str] = &[") ", " (", ") S 1 ", ") Z 1 ", "(a b)", " 18446744073709551615", " -1", "\n"];

/// What follows the name in a line of the kernel's, up to the start time: field 22.
const FIELDS: &str = "1 2 3 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 1 0";
const REST: &str = "3133440 390 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";

pub fn run(data: &[u8]) {
    let of = |content: &[u8]| {
        files::put("proc/7/stat", content);
        let proc = Dir::open(files::directory().join("proc")).expect("it was made");
        let owner = Owner::from_pid(&proc, 7);
        // Who has certainly started and not ended is alive; who cannot be understood is not dead.
        match &owner {
            Ok(Some(owner)) => assert_eq!(owner.is_alive(&proc), Ok(true)),
            Ok(None) => assert!(is_ending(&proc, 7)),
            Err(_) => assert!(!is_ending(&proc, 7)),
        }
        owner
    };
    if let Ok(Some(owner)) = of(data) {
        let text = String::from_utf8_lossy(data);
        let (_, fields) = text.rsplit_once(')').expect("a name");
        // One blank is before each field. A tab is a part of one.
        assert_eq!(fields.trim_end().split(' ').nth(20).and_then(|start| start.parse().ok()), Some(owner.start));
    }
    // The kernel's own line with this name, of which it takes 15 bytes and writes neither newline nor NUL.
    let name: Vec<u8> = data.iter().copied().filter(|byte| !b"\n\0".contains(byte)).take(15).collect();
    let line = |state: char| {
        let (before, after) = (b"7 (".as_slice(), format!(") {state} {FIELDS} 6516549 {REST}\n").into_bytes());
        [before, &name, &after].concat()
    };
    assert_eq!(of(&line('S')), Ok(Some(Owner { pid: 7, start: 6_516_549 })));
    assert_eq!(of(&line('Z')), Ok(None));
}
