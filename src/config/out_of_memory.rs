// SPDX-License-Identifier: GPL-2.0-or-later
//! The value of `OnOutOfMemory`: what becomes of a batch job that was killed at its memory limit. Those of `OnTimeLimit` and `OnPreempt`: what
//! becomes of one that its scheduler has ended.

use std::fmt;

use super::units::{self, Percent, Wrong, percent};

/// Such a job is requeued, with more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAgain {
    /// How much memory it asks for then, of what it asked for before.
    pub share: Percent,
    /// The most restarts of a job, whoever has restarted it.
    pub most: u32,
}

/// What a value must be.
pub(super) const EXPECTS: &str = "kill, or requeue: and a percentage from 101 to 1000, a comma and a number of restarts from 1 to 9, \
                                  as requeue:150%,2";

/// The same of `OnTimeLimit` and `OnPreempt`.
pub(super) const RESTARTS_EXPECTS: &str =
    "kill, or requeue, a comma and a number of restarts from 1 to 99, as requeue,5";

/// The word for nothing more than the kill.
const KILL: &str = "kill";
const REQUEUE: &str = "requeue:";

/// Reads a value. `None`: kill.
#[inline(never)]
pub(super) fn read(text: &str) -> Result<Option<RunAgain>, Wrong> {
    let text = text.to_ascii_lowercase();
    if text == KILL {
        return Ok(None);
    }
    let (share, most) = text.strip_prefix(REQUEUE).and_then(|rest| rest.split_once(',')).ok_or(Wrong::Form)?;
    let &[most @ b'0'..=b'9'] = most.as_bytes() else { return Err(Wrong::Form) };
    match u32::from(most - b'0') {
        0 => Err(Wrong::Range),
        most => Ok(Some(RunAgain { share: percent(share, 101..=1000)?, most })),
    }
}

/// The reverse of [`read`].
pub(super) fn text(value: Option<RunAgain>) -> String {
    value.map_or_else(|| KILL.to_owned(), |again| again.to_string())
}

/// Reads the most restarts of a job whose next run has what it had before. 0: kill.
#[inline(never)]
pub(super) fn restarts(text: &str) -> Result<u32, Wrong> {
    if text.eq_ignore_ascii_case(KILL) {
        return Ok(0);
    }
    let (word, most) = text.split_once(',').ok_or(Wrong::Form)?;
    if word.eq_ignore_ascii_case(REQUEUE.trim_end_matches(':')) { units::uid(most, 1..=99) } else { Err(Wrong::Form) }
}

/// The reverse of [`restarts`].
pub(super) fn restarts_text(most: u32) -> String {
    if most == 0 { KILL.to_owned() } else { format!("requeue,{most}") }
}

/// As [`read`] reads it.
impl fmt::Display for RunAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{REQUEUE}{},{}", self.share, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_often_a_job_runs_again_that_asks_for_no_more() {
        for (value, most, same) in
            [("kill", 0, "kill"), ("KILL", 0, "kill"), ("requeue,1", 1, "requeue,1"), ("Requeue,99", 99, "requeue,99")]
        {
            assert_eq!(restarts(value), Ok(most));
            assert_eq!(restarts_text(most), same);
        }
        for value in ["", "requeue", "requeue,", "requeue, 2", "requeue:150%,2", "requeue,x", "requeue,-1", "kill,2"] {
            assert_eq!(restarts(value), Err(Wrong::Form), "{value}");
        }
        for value in ["requeue,0", "requeue,100"] {
            assert_eq!(restarts(value), Err(Wrong::Range), "{value}");
        }
    }

    #[test]
    fn values_as_people_write_them() {
        for (value, same) in [
            ("kill", "kill"),
            ("Kill", "kill"),
            ("requeue:150%,2", "requeue:150%,2"),
            ("Requeue:150,9", "requeue:150%,9"),
            ("requeue:112.5%,1", "requeue:112.5%,1"),
            ("requeue:1000,1", "requeue:1000%,1"),
        ] {
            assert_eq!(read(value).map(text), Ok(same.to_owned()));
        }
        for value in ["", "requeue", "requeue:", "requeue:150%", "requeue:150%,", "requeue:150%, 2", "requeue:150%,10"]
        {
            assert_eq!(read(value), Err(Wrong::Form), "{value}");
        }
        for value in ["none", "kill,2", "150%,2", "requeue:x,2", "requeue:150%,x", "requeue:150%,-1", "requeue=150%,2"]
        {
            assert_eq!(read(value), Err(Wrong::Form), "{value}");
        }
        // A job with as much memory as before would be killed again.
        for value in ["requeue:100%,2", "requeue:50%,2", "requeue:1001%,2", "requeue:150%,0"] {
            assert_eq!(read(value), Err(Wrong::Range), "{value}");
        }
    }
}
