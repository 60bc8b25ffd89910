// SPDX-License-Identifier: GPL-2.0-or-later
//! The values a key can have: numbers with units, words, paths and names, none of them ever rounded or clamped silently.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::bytes;
use crate::cgroup::limits::MOST_PROCESSES;
use crate::job::Cpus;

/// Why a value was refused; what was expected instead is in the table of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It does not have the form of such a value.
    Form,
    /// It is well written, but too small or too large.
    Range,
    /// It does not fit in 64 bits.
    Overflow,
    /// A part of it is wrong, and how.
    Because(&'static str),
}

impl From<bytes::SizeError> for Wrong {
    fn from(refused: bytes::SizeError) -> Self {
        match refused {
            bytes::SizeError::Form => Self::Form,
            bytes::SizeError::Overflow => Self::Overflow,
        }
    }
}

impl Wrong {
    /// What the description of the expected value does not say already.
    pub(crate) fn detail(self) -> Cow<'static, str> {
        match self {
            Wrong::Form => "".into(),
            Wrong::Range => "; it is out of range".into(),
            Wrong::Overflow => "; it does not fit in 64 bits".into(),
            Wrong::Because(why) => format!("; {why}").into(),
        }
    }
}

/// A percentage in exact hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u32);

impl Percent {
    /// 0 %.
    pub const ZERO: Self = Self(0);
    /// 100 %.
    pub const HUNDRED: Self = Self(10_000);

    /// `9850` is 98.5 %.
    pub const fn from_hundredths(hundredths: u32) -> Self {
        Self(hundredths)
    }

    /// The reverse.
    pub const fn hundredths(self) -> u32 {
        self.0
    }

    /// This share of `whole`, rounded down, at most `u64::MAX`.
    pub fn of(self, whole: u64) -> u64 {
        u64::try_from(u128::from(whole) * u128::from(self.0) / 10_000).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part.is_multiple_of(10) => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

/// The period of a CPU quota, 1 ms to 1 s: the kernel accepts no other (sched-bwc.rst; `cpu.max` in cgroup-v2.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(u32);

impl Period {
    /// The kernel's own default, 100 ms.
    pub const DEFAULT: Self = Self(100_000);

    /// `None` outside 1000 to 1000000 microseconds.
    pub fn from_micros(micros: u32) -> Option<Self> {
        (1_000..=1_000_000).contains(&micros).then_some(Self(micros))
    }

    /// In microseconds, as in `cpu.cfs_period_us` and `cpu.max`.
    pub const fn micros(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1_000) { write!(f, "{}ms", self.0 / 1_000) } else { write!(f, "{}us", self.0) }
    }
}

/// A share among siblings, as `io.weight` has it (cgroup-v2.rst).
pub(super) fn weight(text: &str) -> Result<u64, Wrong> {
    number(text).and_then(|weight| if (1..=10_000).contains(&weight) { Ok(weight) } else { Err(Wrong::Range) })
}

/// A uid from `range`.
pub(super) fn uid(text: &str, range: RangeInclusive<u32>) -> Result<u32, Wrong> {
    let uid = number(text)?;
    u32::try_from(uid).ok().filter(|uid| range.contains(uid)).ok_or(Wrong::Range)
}

/// A whole number of seconds from `range`.
pub(super) fn seconds(text: &str, range: RangeInclusive<u64>) -> Result<Duration, Wrong> {
    let seconds = number(text)?;
    if range.contains(&seconds) { Ok(Duration::from_secs(seconds)) } else { Err(Wrong::Range) }
}

/// The units of longer times, the longest first, in seconds.
const TIMES: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];

/// A time from a minute to a week.
pub(super) fn idle_time(text: &str) -> Result<Duration, Wrong> {
    let lower = text.to_ascii_lowercase();
    let with_unit = TIMES.iter().find_map(|(unit, seconds)| Some((lower.strip_suffix(*unit)?, *seconds)));
    let (digits, unit) = with_unit.unwrap_or((&lower, 1));
    let seconds = number(digits)?.checked_mul(unit).filter(|seconds| (60..=7 * DAY).contains(seconds));
    seconds.map(Duration::from_secs).ok_or(Wrong::Range)
}

/// As [`idle_time`] reads it, in the longest unit that fits.
pub(super) fn idle_time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    let fits = TIMES.iter().find(|(_, unit)| seconds.is_multiple_of(*unit));
    fits.map_or_else(|| seconds.to_string(), |(name, unit)| format!("{}{name}", seconds / unit))
}

/// A day in seconds.
pub(super) const DAY: u64 = 86_400;

/// A whole number of days from `range`.
pub(super) fn days(text: &str, range: RangeInclusive<u64>) -> Result<Duration, Wrong> {
    let days = number(text)?;
    if range.contains(&days) { Ok(Duration::from_secs(days * DAY)) } else { Err(Wrong::Range) }
}

/// A percentage from `range`, with up to two decimals and perhaps a `%`.
pub(crate) fn percent(text: &str, range: RangeInclusive<u64>) -> Result<Percent, Wrong> {
    let text = text.strip_suffix('%').unwrap_or(text);
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let (whole, part) = match decimals.len() {
        1 => (number(whole)?, number(decimals)? * 10),
        2 => (number(whole)?, number(decimals)?),
        _ => return Err(Wrong::Form),
    };
    let hundredths = whole.checked_mul(100).and_then(|whole| whole.checked_add(part)).ok_or(Wrong::Overflow)?;
    if whole < *range.start() || hundredths > range.end().saturating_mul(100) {
        return Err(Wrong::Range);
    }
    u32::try_from(hundredths).map(Percent).map_err(|_| Wrong::Range)
}

/// A period: microseconds unless a unit follows, as the kernel counts.
pub(super) fn period(text: &str) -> Result<Period, Wrong> {
    let (count, unit) = with_unit(text)?;
    let micros = match unit.as_str() {
        "" | "us" => Some(count),
        "ms" => count.checked_mul(1_000),
        "s" => count.checked_mul(1_000_000),
        _ => return Err(Wrong::Form),
    };
    u32::try_from(micros.ok_or(Wrong::Overflow)?).ok().and_then(Period::from_micros).ok_or(Wrong::Range)
}

/// A number of processes up to the kernel's maximum (`PID_MAX_LIMIT`, include/linux/threads.h).
pub(crate) fn processes(text: &str) -> Result<u64, Wrong> {
    let count = number(text)?;
    if (1..=MOST_PROCESSES).contains(&count) { Ok(count) } else { Err(Wrong::Range) }
}

/// The word for no limit.
pub(super) const UNLIMITED: &str = "unlimited";

/// A value, or no limit.
pub(super) fn or_unlimited<T>(text: &str, read: impl Fn(&str) -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
    if text.eq_ignore_ascii_case(UNLIMITED) { Ok(None) } else { read(text).map(Some) }
}

/// The reverse of [`or_unlimited`].
pub(super) fn text_or_unlimited(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| UNLIMITED.to_owned(), |value| value.to_string())
}

/// The word for nothing.
pub(super) const NONE: &str = "none";

/// A value, or nothing.
pub(crate) fn none_or<T>(text: &str, read: impl Fn(&str) -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
    if text.eq_ignore_ascii_case(NONE) { Ok(None) } else { read(text).map(Some) }
}

/// The reverse of [`none_or`].
pub(crate) fn text_or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A number of CPUs up to 1024, with up to three decimals.
pub(crate) fn cpus(text: &str) -> Result<Cpus, Wrong> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.is_empty() || decimals.len() > 3 {
        return Err(Wrong::Form);
    }
    let part = number(&format!("{decimals:0<3}"))?;
    let thousandths =
        number(whole)?.checked_mul(1000).and_then(|whole| whole.checked_add(part)).ok_or(Wrong::Overflow)?;
    if thousandths > 1_024_000 { Err(Wrong::Range) } else { Ok(Cpus::from_thousandths(thousandths)) }
}

/// What [`size`] reads.
pub(crate) const SIZE: &str = "a whole number of MiB, or with the unit K, M, G or T, from 1M to less than 16777216T";
/// The same, or no limit.
pub(super) const SIZE_OR_UNLIMITED: &str = "a whole number of MiB, or with the unit K, M, G or T, from 1M to less than 16777216T, or \
                                 unlimited";

/// Memory: MiB unless a unit follows, as in cgroup.conf(5) and for srun's --mem.
pub(crate) fn size(text: &str) -> Result<u64, Wrong> {
    let bytes = bytes::parse(text, Some(1 << 20))?;
    if bytes < 1 << 20 { Err(Wrong::Range) } else { Ok(bytes) }
}

/// What Slurm's own parser takes for yes and no (`s_p_handle_boolean`).
const BOOLEANS: [(&str, &str); 6] =
    [("up", "yes"), ("true", "yes"), ("1", "yes"), ("down", "no"), ("false", "no"), ("0", "no")];

/// One of `words`, whatever its case; if these are yes and no, also as Slurm writes them.
pub(super) fn keyword<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Wrong> {
    let same = BOOLEANS.iter().find(|(boolean, _)| boolean.eq_ignore_ascii_case(text));
    let text = same.map_or(text, |(_, word)| word);
    words.iter().find(|(keyword, _)| keyword.eq_ignore_ascii_case(text)).map(|&(_, value)| value).ok_or(Wrong::Form)
}

/// The reverse of [`keyword`].
pub(super) fn keyword_of<T: PartialEq>(value: T, words: &[(&'static str, T)]) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(keyword, _)| keyword)
}

/// A path that is the same for every process, can be logged, and can be written in the file again.
pub(super) fn path(text: &str) -> Result<PathBuf, Wrong> {
    let sound = text.starts_with('/') && !text.contains(|c: char| c.is_control() || c == '"');
    if sound && text.split('/').all(|part| part != "..") { Ok(PathBuf::from(text)) } else { Err(Wrong::Form) }
}

/// The most bytes of the site's text on a card.
const LONGEST_CARD_TEXT: usize = 200;

/// The site's text on a card, with `%j` for the job and `%%` for a percent sign.
pub(super) fn card_text(text: &str) -> Result<String, Wrong> {
    let is_plain = text.chars().all(|c| matches!(c, ' '..='~') && c != '"') && !text.trim().is_empty();
    if !is_plain || text.split("%%").flat_map(|part| part.split("%j")).any(|part| part.contains('%')) {
        return Err(Wrong::Form);
    }
    if text.len() <= LONGEST_CARD_TEXT { Ok(text.to_owned()) } else { Err(Wrong::Range) }
}

/// A relative path of one to four plain names.
pub(super) fn base(text: &str) -> Result<String, Wrong> {
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    let sound = |name: &str| !name.is_empty() && !name.starts_with('.') && plain(name);
    if !text.split('/').all(sound) {
        return Err(Wrong::Form);
    }
    // A file name longer than 255 bytes (NAME_MAX) could never be made.
    let fits = text.split('/').count() <= 4 && text.split('/').all(|name| name.len() <= 255);
    if fits { Ok(text.to_owned()) } else { Err(Wrong::Range) }
}

/// Digits and the unit behind them, in lower case.
fn with_unit(text: &str) -> Result<(u64, String), Wrong> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    Ok((number(text.strip_suffix(unit).unwrap_or(text))?, unit.to_ascii_lowercase()))
}

/// Digits only: neither the sign nor the blanks that other parsers allow.
fn number(text: &str) -> Result<u64, Wrong> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Wrong::Form);
    }
    text.parse().map_err(|_| Wrong::Overflow)
}

#[cfg(test)]
mod tests {
    use super::super::{KEYS, parse};
    use super::*;
    use crate::cgroup::io::IoRules;
    use crate::requests::{REQUESTS, Requests};
    use Wrong::{Form, Overflow, Range};

    #[test]
    fn times_of_idleness() {
        let seconds = |text: &str| idle_time(text).map(|time| time.as_secs());
        for (text, is) in [
            ("60", Ok(60)),
            ("90s", Ok(90)),
            ("30m", Ok(1800)),
            ("2H", Ok(7200)),
            ("168h", Ok(604_800)),
            ("59", Err(Range)),
            ("0m", Err(Range)),
            ("169h", Err(Range)),
            ("99999999999999999999h", Err(Overflow)),
            ("9999999999999999999h", Err(Range)),
            ("1.5h", Err(Form)),
            ("h", Err(Form)),
            ("1d", Err(Form)),
        ] {
            assert_eq!(seconds(text), is, "{text}");
        }
        assert_eq!(
            [60, 61, 3600, 5400].map(|seconds| idle_time_text(Duration::from_secs(seconds))),
            ["1m", "61s", "1h", "90m"]
        );
    }

    #[test]
    fn percentages() {
        for (text, value) in [
            ("1", Ok(Percent(100))),
            ("98.5", Ok(Percent(9850))),
            ("98.05%", Ok(Percent(9805))),
            ("1000.00", Ok(Percent(100_000))),
            ("1000.01", Err(Range)),
            ("0.99", Err(Range)),
            ("42949673", Err(Range)),
            ("18446744073709551615", Err(Overflow)),
            ("18446744073709551616", Err(Overflow)),
        ] {
            assert_eq!(percent(text, 1..=1000), value, "{text}");
        }
        for text in ["", "%", ".", ".5", "5.", "5.125", "+5", "-1", "5%%", "5 ", "1e2", "٣", "5.é"] {
            assert_eq!(percent(text, 1..=1000), Err(Form), "{text}");
        }
        assert_eq!(percent("0", 0..=10000), Ok(Percent::ZERO));
    }

    #[test]
    fn percent_of_is_exact_and_saturates() {
        assert_eq!(Percent(9850).of(1000), 985);
        assert_eq!(Percent(1).of(9_999), 0);
        assert_eq!(Percent::HUNDRED.of(u64::MAX), u64::MAX);
        assert_eq!(Percent(u32::MAX).of(u64::MAX), u64::MAX);
        assert_eq!([Percent(9850), Percent(9805), Percent(0)].map(|p| p.to_string()), ["98.5%", "98.05%", "0%"]);
    }

    #[test]
    fn periods() {
        for (text, value) in [
            ("1000", Ok(Period(1_000))),
            ("1500US", Ok(Period(1_500))),
            ("100ms", Ok(Period(100_000))),
            ("1s", Ok(Period(1_000_000))),
            ("999", Err(Range)),
            ("1000001", Err(Range)),
            ("4294968296", Err(Range)),
            ("18446744073709552s", Err(Overflow)),
            ("1.5ms", Err(Form)),
            ("ms", Err(Form)),
            ("1 s", Err(Form)),
            ("1m", Err(Form)),
        ] {
            assert_eq!(period(text), value, "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, value) in [
            ("30", Ok(30 << 20)),
            ("1024K", Ok(1 << 20)),
            ("2gB", Ok(2 << 30)),
            ("16777215T", Ok(16777215 << 40)),
            ("1023K", Err(Range)),
            ("0", Err(Range)),
            ("16777216T", Err(Overflow)),
            ("30B", Err(Form)),
            ("1.5G", Err(Form)),
            ("", Err(Form)),
        ] {
            assert_eq!(size(text), value, "{text}");
        }
    }

    type Read = Box<dyn Fn(&str) -> Option<u64>>;

    /// Every place in which an amount of bytes can stand, with a function that reads it.
    fn places() -> Vec<(String, Read)> {
        let mut places: Vec<(String, Read)> = Vec::new();
        for key in KEYS {
            let forms = match key.expects {
                IoRules::EXPECTS => &["/a rbps=@", "\"/a wbps=@\""][..],
                pages if pages.starts_with("for each size of pages") => &["1K:@"],
                size if size.contains("unit K") => &["@"],
                _ => continue,
            };
            for form in forms {
                let line = format!("{}={form}", key.name);
                let with = line.clone();
                let read = move |text: &str| {
                    let config = parse("f", with.replace('@', text).as_bytes()).ok()?;
                    let printed = key.get(&config)?;
                    bytes::parse(printed.rsplit(['=', ':']).next()?, Some(1)).ok()
                };
                places.push((line, Box::new(read)));
            }
        }
        for request in REQUESTS {
            let before = match request.name {
                "mem-high" => "",
                "io-max" => "/a rbps=",
                _ => continue,
            };
            let read = move |text: &str| {
                let mut requests = Requests::default();
                request.read("", format!("{before}{text}").as_bytes(), &mut requests).ok()?;
                requests.mem_high.or_else(|| requests.io_max.iter().next()?.rates.rbps)
            };
            places.push((format!("--{}={before}@", request.name), Box::new(read)));
        }
        // `jobfence run` and `jobfence explain`.
        places.push(("--mem=@".to_owned(), Box::new(crate::config::parse_size)));
        places
    }

    /// So no key can read `200MB` in another way than the others, or not at all.
    #[test]
    fn the_same_text_is_the_same_number_in_every_key_and_option() {
        let spelled = |count: &str, letter: char| {
            let small = letter.to_ascii_lowercase();
            let endings = ["", "B", "b", "iB", "IB", "ib"].map(|ending| format!("{count}{letter}{ending}"));
            endings.into_iter().chain(["", "B", "b", "iB", "ib"].map(|ending| format!("{count}{small}{ending}")))
        };
        let wrong = ["200P", "200MBs", "200 M", "1.5G", "0x1M", "200B", "200MiBs", "200BM", "-200M", "+200M", "M"];
        for (place, read) in places() {
            for (count, letter, power) in [("204800", 'K', 10), ("200", 'M', 20), ("7", 'G', 30), ("3", 'T', 40)] {
                for text in spelled(count, letter) {
                    assert_eq!(read(&text), count.parse::<u64>().ok().map(|count| count << power), "{place}: {text}");
                }
            }
            for text in wrong {
                assert_eq!(read(text), None, "{place}: {text}");
            }
            // Memory is counted in MiB, as in slurm.conf, and what goes through a disk in bytes, as in io.max.
            let plain = if place.contains("bps=") { 0 } else { 20 };
            assert_eq!(read("1048576"), Some(1_048_576 << plain), "{place}");
        }
        assert!(places().len() > 15, "the keys of amounts of bytes say that they are");
    }

    #[test]
    fn paths_and_names() {
        assert_eq!(path("/a b"), Ok(PathBuf::from("/a b")));
        for text in ["", "a", "./a", "/a/../b", "/a\n", "/a\"b"] {
            assert_eq!(path(text), Err(Form), "{text:?}");
        }
        for text in ["jobfence", "jobfence.slice/jobfence.scope", "a/b/c/d", "a.."] {
            assert_eq!(base(text).as_deref(), Ok(text));
        }
        for text in ["", "/a", "a/", "a//b", ".", ".a", "a/..", "a b", "ä"] {
            assert_eq!(base(text), Err(Form), "{text:?}");
        }
        assert_eq!(base("a/b/c/d/e"), Err(Range));
        assert_eq!(base(&"a".repeat(256)), Err(Range));
    }
}
