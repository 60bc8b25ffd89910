// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of a step without a fence, as `record`; and the mark that is looked for in the environment of users' processes.

use jobfence::record::tracked::{Tracked, mark, marked};

use super::text;

pub const WORDS: &[&str] = &[
    "jobfence-record 1 tracked\n",
    "boot_id=",
    "pid_namespace=",
    "owner_pid=",
    "owner_start=",
    "path=uid_1/job_5/step_0\n",
    "uid=",
    "uid=0\n",
    "seen=7:9,8:10\n",
    "b/7/9",
    "end\n",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    // Whoever it names is named by the same text.
    if let Some(owner) = marked(&text, "b") {
        assert_eq!(marked(&mark("b", owner), "b"), Some(owner));
        assert_eq!(marked(&text, "bb"), None);
    }
    let Ok(tracked) = Tracked::parse(&text) else { return };
    assert!(tracked.uid != 0 && tracked.owner.pid > 0 && tracked.seen.iter().all(|one| one.pid > 1));
    let written = tracked.to_string();
    assert_eq!(Tracked::parse(&written).as_ref(), Ok(&tracked), "{written:?}");
    let short = written.len() < 4096;
    for length in (0..written.len()).filter(|length| short && written.is_char_boundary(*length)) {
        assert!(Tracked::parse(&written[..length]).is_err(), "cut after {length} bytes: {written:?}");
    }
}
