// SPDX-License-Identifier: GPL-2.0-or-later
//! The value of `OnOutOfMemory`: what becomes of a batch job that was killed at its memory limit.

use std::fmt;

use super::units::{Percent, Wrong, percent};

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
