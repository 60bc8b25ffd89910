// SPDX-License-Identifier: GPL-2.0-or-later
//! The local time of this host, in words: as its clock shows it to people, with the offset from UTC.

use std::ffi::CStr;

use crate::moment::seconds_of;
use crate::table::printable;

/// A time as the host's zone has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalTime {
    /// As `2026-11-25`.
    pub date: String,
    /// As `04:23:22`.
    pub clock: String,
    /// As `UTC+01:00`, with the zone's name if it has one: `CET, UTC+01:00`.
    pub zone: String,
    /// Whether that is UTC itself.
    pub is_utc: bool,
}

impl LocalTime {
    /// Reads a time in the usage log's format. `None`: it is none, or the C library does not tell.
    pub fn from_moment(moment: &str) -> Option<Self> {
        let seconds = libc::time_t::try_from(seconds_of(moment)?).ok()?;
        // SAFETY: all zeros are a value of each member: numbers, and a null pointer.
        let mut found: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid for the call, and nothing else writes to them or to the environment, which it reads.
        if unsafe { libc::localtime_r(&raw const seconds, &raw mut found) }.is_null() {
            return None;
        }
        // SAFETY: it is null, or a text of the C library's that stays until another zone is set, which nothing does.
        let name = (!found.tm_zone.is_null()).then(|| unsafe { CStr::from_ptr(found.tm_zone) }.to_string_lossy());
        Some(Self::new(&found, &name.unwrap_or_default()))
    }

    fn new(found: &libc::tm, name: &str) -> Self {
        let minutes = found.tm_gmtoff / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        let offset = format!("UTC{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60);
        // Zones without a name have their offset as one.
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic()) && name != "UTC";
        Self {
            date: format!("{:04}-{:02}-{:02}", i64::from(found.tm_year) + 1900, found.tm_mon + 1, found.tm_mday),
            clock: format!("{:02}:{:02}:{:02}", found.tm_hour, found.tm_min, found.tm_sec),
            zone: if is_name { format!("{}, {offset}", printable(name)) } else { offset },
            // Without a zone of its name, the C library takes UTC under that name.
            is_utc: minutes == 0,
        }
    }
}

/// Two times as one text, such as `2026-11-25 04:23:22 to 05:23:22 (CET, UTC+01:00)`. `None`: the zone is UTC, or is not known.
pub fn local_span(from: &str, to: &str) -> Option<String> {
    span(&LocalTime::from_moment(from)?, &LocalTime::from_moment(to)?)
}

fn span(from: &LocalTime, to: &LocalTime) -> Option<String> {
    if from.is_utc && to.is_utc {
        return None;
    }
    // The clocks may have been changed meanwhile.
    let zone = if from.zone == to.zone { String::new() } else { format!(" ({})", from.zone) };
    let date = if from.date == to.date { String::new() } else { format!("{} ", to.date) };
    Some(format!("{} {}{zone} to {date}{} ({})", from.date, from.clock, to.clock, to.zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i32, hour: i32, offset: i64, name: &str) -> LocalTime {
        // SAFETY: all zeros are a value of each member.
        let mut found: libc::tm = unsafe { std::mem::zeroed() };
        (found.tm_year, found.tm_mon, found.tm_mday, found.tm_hour, found.tm_gmtoff) = (126, 9, day, hour, offset);
        LocalTime::new(&found, name)
    }

    #[test]
    fn a_local_time_has_its_offset_from_utc() {
        let (summer, winter) = (at(24, 23, 7200, "CEST"), at(25, 4, 3600, "CET"));
        assert_eq!(span(&winter, &winter).unwrap(), "2026-10-25 04:00:00 to 04:00:00 (CET, UTC+01:00)");
        assert_eq!(
            span(&summer, &winter).unwrap(),
            "2026-10-24 23:00:00 (CEST, UTC+02:00) to 2026-10-25 04:00:00 (CET, UTC+01:00)"
        );
        assert_eq!(at(1, 0, -12_600, "-0330").zone, "UTC-03:30");
        assert_eq!(span(&at(1, 0, 0, "UTC"), &at(1, 1, 0, "UTC")), None);
        // A country at this offset has local time all the same, and its clocks may change.
        assert_eq!(at(1, 0, 0, "GMT").zone, "GMT, UTC+00:00");
    }

    #[test]
    fn the_host_tells_its_own_or_nothing() {
        let here = LocalTime::from_moment("2025-11-25T03:31:01Z").unwrap();
        // No zone has an offset of seconds.
        assert!(here.clock.ends_with(":01") && here.zone.contains("UTC"), "{here:?}");
        assert_eq!((LocalTime::from_moment("yesterday"), local_span("", "")), (None, None));
    }
}
