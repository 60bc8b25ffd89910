// SPDX-License-Identifier: GPL-2.0-or-later
//! Which system calls one of our doings makes, as strace sees them.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::place::Place;

/// How often each system call was made.
pub struct Calls(BTreeMap<String, usize>);

/// In the traced process: tells strace where the doing begins and ends.
pub fn between_marks<T>(doing: impl FnOnce() -> T) -> T {
    mark("begin");
    let done = doing();
    mark("end");
    done
}

const POLL_OF_NOTHING: &str = "poll of nothing";

/// Writing to no file at all is seen by strace, and by nobody else.
fn mark(word: &str) {
    // SAFETY: a buffer of this length; the descriptor is none.
    unsafe { libc::write(-1, word.as_ptr().cast(), word.len()) };
}

/// Runs `--once WHAT` under strace; `None` where there is no strace, or it may not trace.
pub fn calls(place: &Place, what: &str) -> Option<Calls> {
    let file = tempfile::NamedTempFile::new().ok()?;
    let status = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(file.path())
        .arg(std::env::current_exe().ok()?)
        .args(["--once", what])
        .args(place.options())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return None;
    }
    Some(Calls::between_marks(&std::fs::read_to_string(file.path()).ok()?))
}

impl Calls {
    /// Lines are `PID NAME(ARGUMENTS) = RESULT`. Only the process that made the marks counts, not its children.
    fn between_marks(text: &str) -> Self {
        let mut calls = BTreeMap::new();
        let mut marked = None;
        for line in text.lines() {
            let Some((pid, call)) = line.split_once(' ') else { continue };
            match call.trim_start() {
                call if call.starts_with("write(-1, \"begin\"") => marked = Some(pid),
                call if call.starts_with("write(-1, \"end\"") => marked = None,
                call if marked == Some(pid) && !call.starts_with(['<', '+', '-']) => {
                    let (name, arguments) = call.split_once('(').unwrap_or((call, ""));
                    // A poll of nothing is a sleep.
                    let of_nothing = matches!(name, "poll" | "ppoll") && arguments.split(", ").nth(1) == Some("0");
                    let name = if of_nothing { POLL_OF_NOTHING } else { name };
                    *calls.entry(name.to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        Self(calls)
    }

    /// All of them.
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }

    /// Those that do nothing but let time pass.
    pub fn sleeps(&self) -> usize {
        [POLL_OF_NOTHING, "nanosleep", "clock_nanosleep", "select", "pselect6", "pause"]
            .iter()
            .filter_map(|name| self.0.get(*name))
            .sum()
    }
}

/// The most frequent first.
impl std::fmt::Display for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut calls: Vec<_> = self.0.iter().collect();
        calls.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let shown: Vec<_> = calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&shown.join(", "))
    }
}
