// SPDX-License-Identifier: GPL-2.0-or-later
//! The shared object in a process that loads it repeatedly: nothing accumulates. slurmd never ends, and loads its plugins again whenever it
//! is reconfigured.

use std::fs;
use std::process::Command;

mod common;
mod stand_in;

use stand_in::StandIn;

/// A configuration, and what it needs.
struct Place {
    temp: tempfile::TempDir,
    stand_in: StandIn,
    arguments: Vec<String>,
    base: common::Base,
}

fn place(test: &str) -> Option<Place> {
    let base = common::Base::new(&format!("jobfence-test-{}-{test}", std::process::id()));
    let temp = tempfile::tempdir().unwrap();
    let stand_in = StandIn::or_skip(temp.path())?;
    let mut arguments = stand_in::arguments(temp.path(), &base, "# all defaults\n");
    arguments.push("MaxProcesses=40".to_owned());
    Some(Place { temp, stand_in, arguments, base })
}

/// What a process used after so many rounds.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    descriptors: u64,
    threads: u64,
    /// Mappings in its address space.
    mappings: u64,
    /// Allocated bytes.
    bytes: u64,
}

fn uses(text: &str) -> Vec<Use> {
    // after N descriptors N threads N mappings N bytes N
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
        Some(Use { descriptors: number(3)?, threads: number(5)?, mappings: number(7)?, bytes: number(9)? })
    };
    text.lines().filter_map(of_line).collect()
}

/// A round like slurmd's takes a fraction of a millisecond; one like slurmstepd's waits for the kernel. With `JOBFENCE_FAULTS=all`, as in
/// `make check-all`, there are this many of the latter.
const STARTS: u32 = 10_000;
const STEPS: u32 = 2_000;

/// How much one round's end may differ from another's: a longer name, a table that has just grown. One mapping in each round would be two
/// thousand in half of the fewest rounds.
const MAPPINGS: u64 = 8;
/// See [`MAPPINGS`]. A loss of 16 bytes in each round would be 32,000 bytes in half of the fewest rounds.
const BYTES: u64 = 16 << 10;

/// So many rounds in one process. In the first half of them the C library allocates what it keeps.
fn does_not_grow(test: &str, word: &str, rounds: u32, more: &[&str]) {
    let Some(mut place) = place(test) else { return };
    place.arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    let mut command = place.stand_in.command(&[format!("{word}={rounds}")], &place.arguments);
    // What each thread keeps of freed memory counts as used, and is more where a busy machine makes rounds differ.
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let end: String = log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{:?}: {end}", output.status);
    assert!(!log.contains("error: "), "{end}");
    let uses = uses(&String::from_utf8_lossy(&output.stdout));
    let (Some(first), Some(last), 10) = (uses.get(4), uses.last(), uses.len()) else { panic!("{uses:?}") };
    assert_eq!((last.descriptors, last.threads), (first.descriptors, first.threads), "{uses:?}");
    assert!(last.mappings <= first.mappings + MAPPINGS, "{uses:?}");
    assert!(last.bytes <= first.bytes + BYTES, "{uses:?}");
}

#[test]
fn many_starts_in_one_slurmd_leave_no_descriptor_thread_or_memory() {
    does_not_grow("starts", "starts", STARTS, &[]);
}

/// Without tasks, and without the memory controller, since these take the kernel longest; valgrind's steps have both.
#[test]
fn many_steps_in_one_process_leave_no_descriptor_thread_or_memory() {
    let is_whole = std::env::var("JOBFENCE_FAULTS").is_ok_and(|value| value == "all");
    let rounds = if is_whole { STARTS } else { STEPS };
    does_not_grow("steps", "steps", rounds, &["ConstrainRAMSpace=no", "ConstrainSwapSpace=no"]);
}

/// Memory errors and leaks: in a step with a task, and in slurmd.
#[test]
fn valgrind_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return common::skip("valgrind is not installed");
    }
    let Some(place) = place("valgrind") else { return };
    for words in [vec!["straggler".to_owned()], vec!["steps=2".to_owned()], vec!["starts=2".to_owned()]] {
        let mut valgrind = Command::new("valgrind");
        valgrind.args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect,possible",
        ]);
        valgrind.args(["--show-leak-kinds=definite,indirect,possible", "--keep-debuginfo=yes"]);
        let output = place.stand_in.command_below(valgrind, &words, &place.arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("== "), "{words:?}: {:?}\n{said}", output.status);
    }
    assert_eq!(
        fs::read_dir(place.temp.path().join("run")).unwrap().flatten().filter(|e| !e.path().is_dir()).count(),
        0
    );
    drop(place.base);
}
