// SPDX-License-Identifier: GPL-2.0-or-later
//! The beginning of a summary's time: a date, or how long ago it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobfence::report::account::utc;

use crate::moment::seconds_of;

/// The beginning, as a user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Seconds since 1970.
    At(u64),
    Days(u64),
    Months(u64),
}

const FORM: &str = "write a date, such as 2026-01-31, or how long ago, such as 6months, 4weeks or 30days";

/// Reads the value of the option.
pub fn since(text: &str) -> Result<Since, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = text.strip_suffix(unit).unwrap_or_default();
    if unit.starts_with('-') {
        return seconds_of(&format!("{text}T00:00:00Z")).map(Since::At).ok_or_else(|| FORM.to_owned());
    }
    let count: u64 = digits.parse().ok().filter(|count| (1..=10_000).contains(count)).ok_or(FORM)?;
    match unit {
        "d" | "day" | "days" => Ok(Since::Days(count)),
        "w" | "week" | "weeks" => Ok(Since::Days(count * 7)),
        "month" | "months" => Ok(Since::Months(count)),
        "y" | "year" | "years" => Ok(Since::Months(count * 12)),
        _ => Err(FORM.to_owned()),
    }
}

impl Since {
    /// The seconds since 1970. A time before 1970 counts as 1970.
    pub fn seconds(self, now: SystemTime) -> u64 {
        let today = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match self {
            Self::At(seconds) => seconds,
            Self::Days(days) => today.saturating_sub(days * 86_400),
            Self::Months(months) => earlier(today, months).unwrap_or(0),
        }
    }
}

/// The same time of day some months earlier. If that month is too short, it is the month's last day.
fn earlier(seconds: u64, months: u64) -> Option<u64> {
    let text = utc(UNIX_EPOCH + Duration::from_secs(seconds));
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let all = (year * 12 + month - 1).checked_sub(months)?;
    let begin = seconds_of(&format!("{:04}-{:02}-01T00:00:00Z", all / 12, all % 12 + 1))?;
    let next = seconds_of(&format!("{:04}-{:02}-01T00:00:00Z", (all + 1) / 12, (all + 1) % 12 + 1))?;
    let days = (next - begin) / 86_400;
    Some(begin + (day.min(days) - 1) * 86_400 + seconds % 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_those_of_the_calendar() {
        let of = |text: &str| {
            let now = UNIX_EPOCH + Duration::from_secs(seconds_of("2026-08-31T12:00:00Z").unwrap());
            since(text).map(|since| utc(UNIX_EPOCH + Duration::from_secs(since.seconds(now))))
        };
        for (text, expected) in [
            ("6months", "2026-02-28T12:00:00Z"),
            ("1month", "2026-07-31T12:00:00Z"),
            ("8months", "2025-12-31T12:00:00Z"),
            ("1year", "2025-08-31T12:00:00Z"),
            ("2w", "2026-08-17T12:00:00Z"),
            ("30days", "2026-08-01T12:00:00Z"),
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("10000months", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
        }
        for wrong in ["", "6", "months", "0days", "6m", "-1days", "2026-13-01", "2026-1-1", "99999days", "6 months"] {
            assert_eq!(of(wrong), Err(FORM.to_owned()), "{wrong}");
        }
    }
}
