// SPDX-License-Identifier: GPL-2.0-or-later
//! The text of `IOMax`: rates for targets.

use std::fmt;
use std::path::PathBuf;

use crate::bytes;
use crate::cgroup::disk::Device;
use crate::sys::as_user::AsUser;

/// One of the four rates, in the words of `io.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// `rbps`: bytes read in a second.
    ReadBytes,
    /// `wbps`: bytes written in a second.
    WriteBytes,
    /// `riops`: reads in a second.
    Reads,
    /// `wiops`: writes in a second.
    Writes,
}

impl Rate {
    /// All of them, in the order of `io.max`.
    pub const ALL: [Self; 4] = [Self::ReadBytes, Self::WriteBytes, Self::Reads, Self::Writes];

    /// The rate of this name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rate| rate.name().eq_ignore_ascii_case(name))
    }

    /// As in `io.max`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadBytes => "rbps",
            Self::WriteBytes => "wbps",
            Self::Reads => "riops",
            Self::Writes => "wiops",
        }
    }

    pub(super) const fn v1_file(self) -> &'static str {
        match self {
            Self::ReadBytes => "blkio.throttle.read_bps_device",
            Self::WriteBytes => "blkio.throttle.write_bps_device",
            Self::Reads => "blkio.throttle.read_iops_device",
            Self::Writes => "blkio.throttle.write_iops_device",
        }
    }

    /// Whether its value is in bytes, and not in operations.
    pub const fn counts_bytes(self) -> bool {
        matches!(self, Self::ReadBytes | Self::WriteBytes)
    }

    /// What its value must be; completes "expected ...".
    pub const fn expects(self) -> &'static str {
        if self.counts_bytes() {
            "a whole number of bytes in a second, or with the unit K, M, G or T (powers of 1024), from 1 to less than \
             16777216T"
        } else {
            "a whole number of operations in a second, from 1 to 4294967294"
        }
    }

    /// Reads a value. Zero is refused, as by the kernel, and the largest numbers of 64 and of 32 bits, which mean "no limit" in the
    /// kernel.
    pub fn parse(self, text: &str) -> Result<u64, Malformed> {
        let malformed = || Malformed { found: text.to_owned(), expected: self.expects() };
        let (value, most) = if self.counts_bytes() {
            (bytes::parse(text, Some(1)).ok(), u64::MAX - 1)
        } else {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            (text.parse().ok().filter(|_| digits), u64::from(u32::MAX) - 1)
        };
        value.filter(|value| (1..=most).contains(value)).ok_or_else(malformed)
    }

    /// The reverse of [`Rate::parse`].
    fn text(self, value: u64) -> String {
        if self.counts_bytes() { bytes::text(value) } else { value.to_string() }
    }
}

/// Rates of reading and writing; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoRates {
    /// Bytes read in a second, 1 to 2^64 - 2.
    pub rbps: Option<u64>,
    /// Bytes written in a second, 1 to 2^64 - 2.
    pub wbps: Option<u64>,
    /// Reads in a second, 1 to 2^32 - 2.
    pub riops: Option<u64>,
    /// Writes in a second, 1 to 2^32 - 2.
    pub wiops: Option<u64>,
}

impl IoRates {
    /// The value of one rate.
    pub const fn get(&self, rate: Rate) -> Option<u64> {
        match rate {
            Rate::ReadBytes => self.rbps,
            Rate::WriteBytes => self.wbps,
            Rate::Reads => self.riops,
            Rate::Writes => self.wiops,
        }
    }

    pub(super) fn slot(&mut self, rate: Rate) -> &mut Option<u64> {
        match rate {
            Rate::ReadBytes => &mut self.rbps,
            Rate::WriteBytes => &mut self.wbps,
            Rate::Reads => &mut self.riops,
            Rate::Writes => &mut self.wiops,
        }
    }

    /// The lower value of each rate.
    #[must_use]
    pub fn at_most(mut self, other: Self) -> Self {
        for rate in Rate::ALL {
            if let Some(most) = other.get(rate) {
                let slot = self.slot(rate);
                *slot = Some(slot.map_or(most, |own| own.min(most)));
            }
        }
        self
    }

    /// Whether it limits writing.
    pub const fn limits_writes(&self) -> bool {
        self.wbps.is_some() || self.wiops.is_some()
    }

    /// A line of `io.max` that sets every rate.
    pub(super) fn line(&self, device: Device) -> String {
        let mut line = device.to_string();
        for rate in Rate::ALL {
            let value = self.get(rate).map_or_else(|| MAX.to_owned(), |value| value.to_string());
            line.push_str(&format!(" {}={value}", rate.name()));
        }
        line
    }

    /// The rates that `io.max` has for this device; without a line there is no limit.
    pub(super) fn in_lines(text: &str, device: Device) -> Self {
        let mut rates = Self::default();
        let words = text.lines().find_map(|line| line.strip_prefix(&format!("{device} ")));
        for (name, value) in words.unwrap_or_default().split_whitespace().filter_map(|word| word.split_once('=')) {
            if let (Some(rate), Ok(value)) = (Rate::named(name), value.parse()) {
                *rates.slot(rate) = Some(value);
            }
        }
        rates
    }
}

impl fmt::Display for IoRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = Rate::ALL.into_iter().filter_map(|rate| Some((rate, self.get(rate)?)));
        for (index, (rate, value)) in rates.enumerate() {
            write!(f, "{}{}={}", if index == 0 { "" } else { " " }, rate.name(), rate.text(value))?;
        }
        Ok(())
    }
}

const MAX: &str = "max";

/// The rates for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoRule {
    /// A disk, or any path on a file system that is on one.
    pub target: PathBuf,
    /// At least one is set.
    pub rates: IoRates,
    /// The user with whose rights the target is looked up; `None`: root, since the site has named it.
    pub(super) by: Option<AsUser>,
}

impl fmt::Display for IoRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target.display(), self.rates)
    }
}

/// A value of `IOMax`: the rates for some targets, as `/scratch rbps=200M wiops=1000; /dev/sdb wbps=1M`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoRules(pub(super) Vec<IoRule>);

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The wrong piece, as written.
    pub found: String,
    /// What was expected in its place.
    pub expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may be a user's: no more than a line of it is shown.
        let found: String = self.found.chars().take(60).collect();
        write!(f, "found {found:?}, expected {}", self.expected)
    }
}

impl std::error::Error for Malformed {}

impl IoRules {
    /// What a value must be; completes "expected ...".
    pub const EXPECTS: &'static str = "none, or a disk or an absolute path, and behind it at least one of rbps=, wbps=, \
                                       riops= and wiops=, as /scratch rbps=200M wiops=1000; more of these after a semicolon";

    /// Reads a value, also a user's. A blank or a comma stands between a target and its rates. A target with blanks, commas, semicolons
    /// or double quotes can only be named by another path.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let refuse = |found: &str, expected| Err(Malformed { found: found.to_owned(), expected });
        if text.len() > 2 * MAX_TEXT {
            return refuse(text, TOO_LONG);
        }
        let mut rules = Self::default();
        if text.trim().eq_ignore_ascii_case(NONE) {
            return Ok(rules);
        }
        for part in text.split(';') {
            let mut words = part.split([' ', '\t', ',']).filter(|word| !word.is_empty());
            let target = words.next().filter(|word| is_target(word));
            let Some(target) = target.map(PathBuf::from) else { return refuse(part.trim(), Self::EXPECTS) };
            if rules.0.iter().any(|rule| rule.target == target) {
                return refuse(part.trim(), "each target only once");
            }
            let mut rates = IoRates::default();
            for word in words {
                let named = word.split_once('=').and_then(|(name, value)| Some((Rate::named(name)?, value)));
                let Some((rate, value)) = named else { return refuse(word, "rbps=, wbps=, riops= or wiops=") };
                let slot = rates.slot(rate);
                if slot.is_some() {
                    return refuse(word, "each rate only once for a target");
                }
                *slot = Some(rate.parse(value)?);
            }
            if rates == IoRates::default() {
                return refuse(part.trim(), "at least one of rbps=, wbps=, riops= and wiops= behind the target");
            }
            rules.0.push(IoRule { target, rates, by: None });
            if rules.0.len() > MAX_RULES {
                return refuse(part.trim(), "at most 16 targets");
            }
        }
        if rules.to_string().len() > MAX_TEXT { refuse(text, TOO_LONG) } else { Ok(rules) }
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules, one for each target.
    pub fn iter(&self) -> impl Iterator<Item = &IoRule> {
        self.0.iter()
    }

    /// Whether any target's writing is limited.
    pub fn limits_writes(&self) -> bool {
        self.0.iter().any(|rule| rule.rates.limits_writes())
    }

    /// Has the targets looked up with this user's rights.
    pub fn asked_by(&mut self, user: &AsUser) {
        self.0.iter_mut().for_each(|rule| rule.by = Some(user.clone()));
    }

    /// A rate that is below its minimum, and its value.
    pub fn any_below(&self, least: fn(Rate) -> u64) -> Option<(Rate, u64)> {
        let rates =
            self.0.iter().flat_map(|rule| Rate::ALL.into_iter().filter_map(|rate| Some((rate, rule.rates.get(rate)?))));
        rates.into_iter().find(|(rate, value)| *value < least(*rate))
    }

    /// All limits of both; for each rate of a target the lower one. [`limits_of`](super::limits_of) merges targets on one disk, so
    /// `other` can raise nothing.
    #[must_use]
    pub fn at_most(mut self, other: &Self) -> Self {
        for theirs in &other.0 {
            match self.0.iter_mut().find(|rule| rule.target == theirs.target) {
                Some(rule) => {
                    rule.rates = rule.rates.at_most(theirs.rates);
                    // A target that the site has named is looked up as root, whatever the user may see.
                    rule.by = rule.by.take().filter(|_| theirs.by.is_some());
                }
                None => self.0.push(theirs.clone()),
            }
        }
        self
    }
}

/// In the form that [`IoRules::parse`] reads.
impl fmt::Display for IoRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (index, rule) in self.0.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

const NONE: &str = "none";

/// The most rules and bytes of a value: it must fit in a line of the configuration.
const MAX_RULES: usize = 16;
const MAX_TEXT: usize = 2048;
const TOO_LONG: &str = "at most 2048 bytes";

fn is_target(text: &str) -> bool {
    text.starts_with('/') && !text.contains(|c: char| c.is_control() || c == '"') && text.split('/').all(|p| p != "..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(text: &str) -> IoRules {
        IoRules::parse(text).unwrap()
    }

    #[test]
    fn a_value_is_read_and_printed_as_it_was_meant() {
        for (text, printed) in [
            ("/scratch rbps=200M wiops=1000", "/scratch rbps=200M wiops=1000"),
            ("/scratch,RBPS=204800k;/dev/sdb\twbps=1", "/scratch rbps=200M; /dev/sdb wbps=1"),
            (" /a  ,wiops=4294967294,riops=1 ", "/a riops=1 wiops=4294967294"),
            ("/a rbps=18446744073709551614", "/a rbps=18446744073709551614"),
            ("/a rbps=1025 wbps=16777215T", "/a rbps=1025 wbps=16777215T"),
            ("None", "none"),
        ] {
            assert_eq!(rules(text).to_string(), printed);
            assert_eq!(rules(printed), rules(text));
        }
        assert!(rules("none").is_empty());
        assert_eq!([rules("/a rbps=1").limits_writes(), rules("/a rbps=1; /b wiops=1").limits_writes()], [false, true]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = format!("/{} rbps=1", "x".repeat(2048));
        for (text, found, expected) in [
            ("", "", IoRules::EXPECTS),
            ("scratch rbps=1", "scratch rbps=1", IoRules::EXPECTS),
            ("/a/../b rbps=1", "/a/../b rbps=1", IoRules::EXPECTS),
            ("/a\u{7} rbps=1", "/a\u{7} rbps=1", IoRules::EXPECTS),
            ("/a rbps=1;", "", IoRules::EXPECTS),
            ("/a", "/a", "at least one of rbps=, wbps=, riops= and wiops= behind the target"),
            ("/a rbps", "rbps", "rbps=, wbps=, riops= or wiops="),
            ("/a rps=1", "rps=1", "rbps=, wbps=, riops= or wiops="),
            ("/a rbps=1 rbps=2", "rbps=2", "each rate only once for a target"),
            ("/a rbps=1;/a/ rbps=2", "/a/ rbps=2", "each target only once"),
            (&long, &long, TOO_LONG),
        ] {
            let malformed = Malformed { found: found.to_owned(), expected };
            assert_eq!(IoRules::parse(text), Err(malformed), "{text:?}");
        }
        let many = |count: usize| (0..count).map(|n| format!("/{n} rbps=1")).collect::<Vec<_>>().join(";");
        assert!(IoRules::parse(&many(16)).is_ok());
        assert_eq!(IoRules::parse(&many(17)).unwrap_err().expected, "at most 16 targets");
        for value in ["", "0", "-1", "+1", "1.5M", "M", "1MBs", "1 M", "18446744073709551615", "16777216T", "٣"] {
            assert_eq!(Rate::WriteBytes.parse(value).unwrap_err().found, value);
        }
        for value in ["0", "1K", "4294967295", ""] {
            assert!(Rate::Reads.parse(value).is_err(), "{value}");
        }
        let shown = IoRules::parse(&"x".repeat(100)).unwrap_err().to_string();
        assert!(shown.starts_with(&format!("found \"{}\", expected none", "x".repeat(60))), "{shown}");
    }

    #[test]
    fn another_value_only_lowers() {
        let site = rules("/a rbps=100 wbps=50; /b riops=7");
        let user = rules("/a rbps=1000 wbps=20 wiops=3; /c wiops=9");
        assert_eq!(site.clone().at_most(&user), rules("/a rbps=100 wbps=20 wiops=3; /b riops=7; /c wiops=9"));
        assert_eq!(site.clone().at_most(&IoRules::default()), site);
        assert_eq!(IoRules::default().at_most(&site), site);
    }

    #[test]
    fn a_users_target_is_looked_up_as_the_user_and_the_sites_own_is_not() {
        let user = AsUser::new(1001, 1001, &[]);
        let mut asked = IoRules::parse("/a wbps=1M; /b rbps=1M").unwrap();
        asked.asked_by(&user);
        let site = IoRules::parse("/a rbps=2M").unwrap();
        let by = |rules: IoRules| rules.iter().map(|rule| rule.by.clone()).collect::<Vec<_>>();
        assert_eq!(by(site.clone().at_most(&asked)), [None, Some(user.clone())]);
        assert_eq!(by(asked.clone().at_most(&site)), [None, Some(user.clone())]);
        assert_eq!(by(asked.clone().at_most(&asked)), [Some(user.clone()), Some(user)]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\PC{0,9}|(/[a/.]{0,3}[ ,](rbps|wiops|x)=[0-9]{0,22}[KMé]?[ ;,]{0,2}){0,4})") {
            if let Ok(rules) = IoRules::parse(&text) {
                prop_assert_eq!(IoRules::parse(&rules.to_string()), Ok(rules));
            }
        }

        #[test]
        fn a_rate_printed_is_read_as_the_same(value in 1..u64::MAX) {
            prop_assert_eq!(Rate::ReadBytes.parse(&Rate::ReadBytes.text(value)), Ok(value));
        }
    }
}
