// SPDX-License-Identifier: GPL-2.0-or-later
//! Times in the format of the usage log.

/// The seconds since 1970 of `2026-11-25T03:31:01Z`.
pub fn seconds_of(moment: &str) -> Option<u64> {
    if moment.len() != 20 || !moment.ends_with('Z') {
        return None;
    }
    let number = |from: usize, to: usize| moment.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // The days from year 0 to 1970.
    let days = days.checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use jobfence::report::account::utc;

    use super::*;

    #[test]
    fn a_moment_is_that_of_the_calendar() {
        for (moment, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T00:00:00Z", Some(951_782_400)),
            ("2025-11-25T03:31:01Z", Some(1_764_041_461)),
            ("2025-13-25T03:31:01Z", None),
            ("nothing of a moment", None),
            ("", None),
        ] {
            assert_eq!(seconds_of(moment), seconds, "{moment}");
        }
    }

    #[test]
    fn a_moment_is_read_as_it_was_written() {
        for at in [0, 951_782_399, 951_782_400, 1_764_041_461, 4_107_542_400, 253_402_300_799] {
            assert_eq!(seconds_of(&utc(UNIX_EPOCH + Duration::from_secs(at))), Some(at));
        }
        for wrong in ["", "2026-11-25", "2026-13-25T00:00:00Z", "2026-11-25T00:00:00+1", "x026-11-25T00:00:00Z"] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
    }
}
