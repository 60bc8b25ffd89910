// SPDX-License-Identifier: GPL-2.0-or-later
//! The words of Grid Engine in which a job's card advises its user.

use std::time::Duration;

use crate::report::card::{NEUTRAL, Words};

/// The words of qsub. Only the request of time is the same at all sites: each has its own for slots and memory.
pub static WORDS: Words =
    Words { time: Some(|time| format!("-l h_rt={}", time_text(time))), ..Words { time: None, ..NEUTRAL } };

/// A time specifier of sge_types(1).
fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The time that such a text means. `None`: not a time, or no limit.
pub fn time(text: &str) -> Option<Duration> {
    let parts = text.split(':').map(|part| if part.is_empty() { Some(0) } else { part.parse().ok() });
    let parts: Vec<u64> = parts.collect::<Option<_>>()?;
    let seconds = match parts.as_slice() {
        [seconds] => Some(*seconds),
        [hours, minutes, seconds] => {
            let of_hours = hours.checked_mul(3600)?;
            of_hours.checked_add(minutes.checked_mul(60)?)?.checked_add(*seconds)
        }
        _ => None,
    };
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_qsub_reads_them() {
        assert_eq!([59, 90_061].map(|seconds| time_text(Duration::from_secs(seconds))), ["00:00:59", "25:01:01"]);
        for (text, seconds) in [("60", 60), ("0:1:30", 90), ("25:01:01", 90_061), ("1::", 3600)] {
            assert_eq!(time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["INFINITY", "", "0", "1:2", "-1", "1:x:1", "99999999999999999:0:0"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
