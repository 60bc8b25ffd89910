// SPDX-License-Identifier: GPL-2.0-or-later
//! How fast a directory's processes may read and write, and their share of a disk that is busy.
//!
//! v2 has `io.max` (cgroup-v2.rst, "IO Interface Files"), v1 a file for each rate (`blkio.throttle.*`,
//! cgroup-v1/blkio-controller.rst). They differ in what they hold:
//!
//! - v2 throttles all that is below a directory together. v1 throttles each directory by itself, whatever is set above it
//!   (`throtl_pd_init` in block/blk-throttle.c: all groups are children of the disk's root).
//! - v2 throttles what a process has written to the page cache, too, where the memory controller is on in the same directory,
//!   and the file system takes part (ext2, ext4, btrfs, xfs, f2fs; cgroup-v2.rst, "Writeback"). v1 throttles only what a process
//!   itself sends to the disk: reads, `O_DIRECT`, and what it waits for (`fsync`, `O_SYNC`; measured on Linux 6.18 with ext4). What
//!   the kernel writes out later is in nobody's name.

use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

use super::disk::{Device, Disks};
use super::kernel;
use super::layout::{V1_IO, Version};
use crate::bytes;
use crate::error::{Error, Result};
use crate::sys::as_user::AsUser;
use crate::sys::dir::Dir;

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

    const fn v1_file(self) -> &'static str {
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

    /// Reads a value. The largest numbers of 64 and of 32 bits are the kernel's own for "no limit", and it refuses zero.
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

/// How fast; `None` where a rate is not limited.
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
    /// One of them.
    pub const fn get(&self, rate: Rate) -> Option<u64> {
        match rate {
            Rate::ReadBytes => self.rbps,
            Rate::WriteBytes => self.wbps,
            Rate::Reads => self.riops,
            Rate::Writes => self.wiops,
        }
    }

    fn slot(&mut self, rate: Rate) -> &mut Option<u64> {
        match rate {
            Rate::ReadBytes => &mut self.rbps,
            Rate::WriteBytes => &mut self.wbps,
            Rate::Reads => &mut self.riops,
            Rate::Writes => &mut self.wiops,
        }
    }

    /// Each the lower of both.
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

    /// As a line of `io.max`, which leaves no rate as it was.
    fn line(&self, device: Device) -> String {
        let mut line = device.to_string();
        for rate in Rate::ALL {
            let value = self.get(rate).map_or_else(|| MAX.to_owned(), |value| value.to_string());
            line.push_str(&format!(" {}={value}", rate.name()));
        }
        line
    }

    /// What `io.max` has of this device; no line means no limit.
    fn in_lines(text: &str, device: Device) -> Self {
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
    /// With whose rights the target is looked up; `None`: root's, as the site has named it.
    by: Option<AsUser>,
}

impl fmt::Display for IoRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target.display(), self.rates)
    }
}

/// A value of `IOMax`: the rates for some targets, as `/scratch rbps=200M wiops=1000; /dev/sdb wbps=1M`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoRules(Vec<IoRule>);

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The piece that is wrong, as it stands there.
    pub found: String,
    /// What was expected in its place.
    pub expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a user's: no more of it than a line.
        let found: String = self.found.chars().take(60).collect();
        write!(f, "found {found:?}, expected {}", self.expected)
    }
}

impl std::error::Error for Malformed {}

impl IoRules {
    /// What a value must be; completes "expected ...".
    pub const EXPECTS: &'static str = "none, or a disk or an absolute path, and behind it at least one of rbps=, wbps=, \
                                       riops= and wiops=, as /scratch rbps=200M wiops=1000; more of these after a semicolon";

    /// Reads a value, a user's, too. Between a target and its rates stands a blank or a comma; a target with blanks, commas,
    /// semicolons or double quotes can only be named by another path.
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

    /// One for each target.
    pub fn iter(&self) -> impl Iterator<Item = &IoRule> {
        self.0.iter()
    }

    /// Whether any target's writing is limited.
    pub fn limits_writes(&self) -> bool {
        self.0.iter().any(|rule| rule.rates.limits_writes())
    }

    /// Has the targets looked up with the rights of the user who has named them.
    pub fn asked_by(&mut self, user: &AsUser) {
        self.0.iter_mut().for_each(|rule| rule.by = Some(user.clone()));
    }

    /// A rate that is below its least, and what it is.
    pub fn any_below(&self, least: fn(Rate) -> u64) -> Option<(Rate, u64)> {
        let rates =
            self.0.iter().flat_map(|rule| Rate::ALL.into_iter().filter_map(|rate| Some((rate, rule.rates.get(rate)?))));
        rates.into_iter().find(|(rate, value)| *value < least(*rate))
    }

    /// All that either limits, and each rate of a target the lower of both. Two targets on one disk come together in
    /// [`limits_of`]: so nothing in `other` can raise anything.
    #[must_use]
    pub fn at_most(mut self, other: &Self) -> Self {
        for theirs in &other.0 {
            match self.0.iter_mut().find(|rule| rule.target == theirs.target) {
                Some(rule) => {
                    rule.rates = rule.rates.at_most(theirs.rates);
                    // What the site has named is found, whatever its user may see.
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

/// No value has more rules, nor more bytes: it must fit in a line of the configuration.
const MAX_RULES: usize = 16;
const MAX_TEXT: usize = 2048;
const TOO_LONG: &str = "at most 2048 bytes";

fn is_target(text: &str) -> bool {
    text.starts_with('/') && !text.contains(|c: char| c.is_control() || c == '"') && text.split('/').all(|p| p != "..")
}

/// The rates for one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimit {
    /// A whole disk.
    pub disk: Device,
    /// Of all targets on it together, each the lowest.
    pub rates: IoRates,
}

/// The disks that the targets are on, each once. What cannot be throttled is taken out of the rules, and comes back as errors.
pub fn limits_of(rules: &mut IoRules, disks: &Disks) -> (Vec<DiskLimit>, Vec<Error>) {
    let mut limits = Vec::new();
    let mut errors = Vec::new();
    let find = |rule: &IoRule| match &rule.by {
        Some(user) => user.look(|| disks.of(&rule.target)),
        None => disks.of(&rule.target),
    };
    rules.0.retain(|rule| match find(rule) {
        Ok(disk) => {
            limits = both(&limits, &[DiskLimit { disk, rates: rule.rates }]);
            true
        }
        Err(error) => {
            errors.push(error);
            false
        }
    });
    (limits, errors)
}

/// Of each disk all that either limits, and each rate the lower of both.
pub fn both(these: &[DiskLimit], those: &[DiskLimit]) -> Vec<DiskLimit> {
    let mut limits = these.to_vec();
    for theirs in those {
        match limits.iter_mut().find(|limit| limit.disk == theirs.disk) {
            Some(limit) => limit.rates = limit.rates.at_most(theirs.rates),
            None => limits.push(*theirs),
        }
    }
    limits
}

/// What [`set_max`] writes in an empty directory: files and values.
pub fn writes(limit: DiskLimit, version: Version) -> Vec<(&'static str, String)> {
    let DiskLimit { disk, rates } = limit;
    match version {
        Version::V2 => vec![(IO_MAX, rates.line(disk))],
        Version::V1 => {
            let line = |rate: Rate| Some((rate.v1_file(), format!("{disk} {}", rates.get(rate)?)));
            Rate::ALL.into_iter().filter_map(line).collect()
        }
    }
}

/// Limits the rates for a disk, and reads back. What was limited before for this disk and is not now is limited no more.
pub fn set_max(dir: &Dir, version: Version, limit: DiskLimit) -> Result<()> {
    let DiskLimit { disk, rates } = limit;
    match version {
        Version::V2 => {
            let text = dir.write_and_read(IO_MAX, &rates.line(disk)).map_err(|error| explain(dir, IO_MAX, error))?;
            seen(dir, IO_MAX, &rates.line(disk), &IoRates::in_lines(&text, disk).line(disk))
        }
        Version::V1 => {
            for rate in Rate::ALL {
                let file = rate.v1_file();
                let before = value_for(&dir.read(file).map_err(|error| explain(dir, file, error))?, disk);
                let want = rates.get(rate);
                if before == want {
                    continue;
                }
                // 0 takes the line out (`tg_set_conf`).
                let line = format!("{disk} {}", want.unwrap_or(0));
                let text = dir.write_and_read(file, &line).map_err(|error| explain(dir, file, error))?;
                let shown = value_for(&text, disk).unwrap_or(0);
                seen(dir, file, &line, &format!("{disk} {shown}"))?;
            }
            Ok(())
        }
    }
}

/// Reads the rates for a disk.
pub fn max(dir: &Dir, version: Version, disk: Device) -> Result<IoRates> {
    match version {
        Version::V2 => {
            let text = dir.read(IO_MAX).map_err(|error| explain(dir, IO_MAX, error))?;
            Ok(IoRates::in_lines(&text, disk))
        }
        Version::V1 => {
            let mut rates = IoRates::default();
            for rate in Rate::ALL {
                let file = rate.v1_file();
                let text = dir.read(file).map_err(|error| explain(dir, file, error))?;
                *rates.slot(rate) = value_for(&text, disk);
            }
            Ok(rates)
        }
    }
}

/// The value in a v1 file's line `MAJOR:MINOR VALUE`.
fn value_for(text: &str, disk: Device) -> Option<u64> {
    let prefix = format!("{disk} ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).and_then(|value| value.trim().parse().ok())
}

const IO_MAX: &str = "io.max";

/// A weight where nothing is said: 100 (`CGROUP_WEIGHT_DFL`, include/linux/cgroup.h).
pub const DEFAULT_WEIGHT: u64 = 100;

/// The lower of two weights, of CPU time or of I/O, where `None` is nothing said: that is no less than the kernel's own.
pub fn least_weight(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(DEFAULT_WEIGHT).min(other.unwrap_or(DEFAULT_WEIGHT))),
    }
}

/// Sets the directory's share of a busy disk among its siblings, 1 to 10000, and reads back.
///
/// Both of v2's files where both exist: one is blk-iocost's (Linux 5.4 and later), the other BFQ's, and a disk has at most one
/// of them at work. v1 has BFQ's, and before Linux 5.0 that of CFQ.
pub fn set_weight(dir: &Dir, version: Version, weight: u64) -> Result<()> {
    let mut is_set = false;
    for (file, value) in weight_writes(weight, version) {
        match dir.write_and_read(file, &value) {
            Ok(text) => {
                let number = |text: &str| text.trim_start_matches("default ").trim().to_owned();
                seen(dir, file, &number(&value), &number(text.lines().next().unwrap_or_default()))?;
                is_set = true;
            }
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    if is_set {
        return Ok(());
    }
    Err(Error::new("this kernel has no weights of I/O, so none can be set in").at(dir.path()).hint(match version {
        Version::V2 => {
            "the scheduler bfq brings io.bfq.weight (modprobe bfq, and echo bfq >/sys/block/DISK/queue/scheduler), a kernel with \
             CONFIG_BLK_CGROUP_IOCOST io.weight; or take IOWeight out"
        }
        Version::V1 => {
            "the scheduler bfq brings blkio.bfq.weight (modprobe bfq, and echo bfq >/sys/block/DISK/queue/scheduler); or take \
             IOWeight out"
        }
    }))
}

/// What [`set_weight`] writes, where the kernel has it.
pub fn weight_writes(weight: u64, version: Version) -> [(&'static str, String); 2] {
    match version {
        Version::V2 => [("io.weight", format!("default {weight}")), ("io.bfq.weight", bfq_weight(weight).to_string())],
        Version::V1 => [
            ("blkio.bfq.weight", bfq_weight(weight).to_string()),
            ("blkio.weight", weight.saturating_mul(5).clamp(10, 1000).to_string()),
        ],
    }
}

/// Reads what [`set_weight`] has set, on the scale of `io.weight`; `None` where the kernel has no weights.
pub fn weight(dir: &Dir, version: Version) -> Option<u64> {
    let read = |file: &str| {
        let text = dir.read_if_there(file).ok()??;
        text.lines().next()?.trim_start_matches("default ").trim().parse::<u64>().ok()
    };
    let of_bfq = |weight: u64| weight + weight.saturating_sub(DEFAULT_WEIGHT).saturating_mul(10);
    match version {
        Version::V2 => read("io.weight").or_else(|| read("io.bfq.weight").map(of_bfq)),
        Version::V1 => read("blkio.bfq.weight").map(of_bfq).or_else(|| read("blkio.weight").map(|weight| weight / 5)),
    }
}

/// BFQ's scale ends at 1000 (`BFQ_MAX_WEIGHT`, block/bfq-iosched.h) and has 100 in the same place: what is above is pressed
/// together.
fn bfq_weight(weight: u64) -> u64 {
    if weight <= DEFAULT_WEIGHT { weight.max(1) } else { (DEFAULT_WEIGHT + (weight - DEFAULT_WEIGHT) / 11).min(1000) }
}

/// Whether any disk shares its time by weight now: its scheduler is bfq, or (v2) blk-iocost is on for it (`io.cost.qos` in the
/// root, cgroup-v2.rst).
pub fn weights_work(sys: &Dir, root: Option<&Dir>) -> bool {
    let has_bfq = |disk: &String| {
        let scheduler = sys.read_value(&format!("block/{disk}/queue/scheduler"));
        scheduler.is_ok_and(|text| text.contains("[bfq]"))
    };
    // The entries are links.
    let disks = sys.child("block").and_then(|block| block.list(false)).unwrap_or_default();
    let qos = root.and_then(|root| root.read_value("io.cost.qos").ok()).unwrap_or_default();
    disks.iter().any(has_bfq) || qos.split_whitespace().any(|word| word == "enable=1")
}

fn seen(dir: &Dir, file: &str, want: &str, found: &str) -> Result<()> {
    if want == found {
        return Ok(());
    }
    Err(Error::new("the limit was written, but the kernel shows another:")
        .at(dir.path().join(file))
        .value(format!("wanted {want}, found {found}")))
}

/// Says what a file that does not exist, or a device that is refused, means.
fn explain(dir: &Dir, file: &str, error: Error) -> Error {
    match error.kernel_errno() {
        Some(Errno::ENOENT) => kernel::missing(dir, file, if file == IO_MAX { "io" } else { V1_IO }),
        Some(Errno::ENODEV) => error.hint("the kernel has no such disk, or it is a partition"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    const SDA: Device = Device { major: 8, minor: 0 };

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

    fn fixture(files: &[(&str, &str)]) -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(temp.path().join(name).parent().unwrap()).unwrap();
            fs::write(temp.path().join(name), text).unwrap();
        }
        let dir = Dir::open(temp.path()).unwrap();
        (temp, dir)
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

    #[test]
    fn targets_on_one_disk_come_together() {
        let (sys, dir) = fixture(&[("devices/sda/dev", "8:0\n"), ("devices/sda/sda1/partition", "1\n")]);
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        symlink("../../devices/sda", sys.path().join("dev/block/8:0")).unwrap();
        symlink("../../devices/sda/sda1", sys.path().join("dev/block/8:1")).unwrap();
        let disks = Disks::new(
            "1 0 8:0 / / rw - ext4 a rw\n2 1 8:1 / /part rw - ext4 b rw\n3 1 0:9 / /shm rw - tmpfs t rw\n",
            dir,
        );
        let mut named = rules("/ rbps=10 wbps=5; /part rbps=3 riops=1; /shm rbps=1");
        let (limits, errors) = limits_of(&mut named, &disks);
        assert_eq!(named, rules("/ rbps=10 wbps=5; /part rbps=3 riops=1"));
        let rates = IoRates { rbps: Some(3), wbps: Some(5), riops: Some(1), wiops: None };
        assert_eq!(limits, [DiskLimit { disk: SDA, rates }]);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("kept in memory"), "{}", errors[0]);
    }

    #[test]
    fn what_the_kernel_shows_is_compared() {
        let rates = IoRates { rbps: Some(1024), wiops: Some(7), ..IoRates::default() };
        let limit = DiskLimit { disk: SDA, rates };
        let (temp, dir) = fixture(&[("io.max", "")]);
        set_max(&dir, Version::V2, limit).unwrap();
        let written = fs::read_to_string(temp.path().join("io.max")).unwrap();
        assert_eq!(written, "8:0 rbps=1024 wbps=max riops=max wiops=7");
        assert_eq!(max(&dir, Version::V2, SDA).unwrap(), rates);
        assert_eq!(max(&dir, Version::V2, Device { major: 8, minor: 16 }).unwrap(), IoRates::default());

        let text = "8:16 rbps=1 wbps=max riops=max wiops=max\n8:0 rbps=max wbps=5 riops=max wiops=9 idle=3\n";
        let parsed = IoRates::in_lines(text, SDA);
        assert_eq!(parsed, IoRates { wbps: Some(5), wiops: Some(9), ..IoRates::default() });

        // A write that is not what is read: the kernel's file is not one of a fixture.
        let error = seen(&dir, "io.max", "8:0 rbps=1", "8:0 rbps=max").unwrap_err().to_string();
        assert!(error.contains("the kernel shows another") && error.contains("wanted 8:0 rbps=1, found"), "{error}");
        let missing = fixture(&[]).1;
        let error = set_max(&missing, Version::V2, limit).unwrap_err().to_string();
        assert!(error.contains("the io controller is not available"), "{error}");
        let (_temp, without) = fixture(&[("io.stat", "")]);
        let error = set_max(&without, Version::V2, limit).unwrap_err().to_string();
        assert!(error.contains("built without CONFIG_BLK_DEV_THROTTLING"), "{error}");
        let error = set_max(&missing, Version::V1, limit).unwrap_err().to_string();
        assert!(error.contains("the blkio controller is not available"), "{error}");
    }

    #[test]
    fn weights_go_to_whatever_the_kernel_has() {
        let read = |temp: &tempfile::TempDir, file: &str| fs::read_to_string(temp.path().join(file)).unwrap();
        let (temp, dir) = fixture(&[("io.weight", ""), ("io.bfq.weight", "")]);
        set_weight(&dir, Version::V2, 10_000).unwrap();
        assert_eq!([read(&temp, "io.weight"), read(&temp, "io.bfq.weight")], ["default 10000", "1000"]);
        let (temp, dir) = fixture(&[("blkio.weight", "")]);
        set_weight(&dir, Version::V1, 50).unwrap();
        assert_eq!(read(&temp, "blkio.weight"), "250");
        for version in [Version::V1, Version::V2] {
            let error = set_weight(&fixture(&[]).1, version, 50).unwrap_err().to_string();
            assert!(error.contains("bfq") && error.contains("IOWeight"), "{error}");
        }
        assert_eq!([1, 100, 101, 111, 9999, 10_000].map(bfq_weight), [1, 100, 100, 101, 999, 1000]);
    }

    #[test]
    fn whether_weights_work_is_looked_for() {
        let (temp, sys) = fixture(&[("devices/sda/queue/scheduler", "mq-deadline [none] bfq\n")]);
        fs::create_dir(temp.path().join("block")).unwrap();
        symlink("../devices/sda", temp.path().join("block/sda")).unwrap();
        assert!(!weights_work(&sys, None));
        let root = |enable| fixture(&[("io.cost.qos", &format!("8:0 enable={enable} ctrl=auto\n"))]);
        assert_eq!([0, 1].map(|on| weights_work(&sys, Some(&root(on).1))), [false, true]);
        fs::write(temp.path().join("devices/sda/queue/scheduler"), "mq-deadline none [bfq]\n").unwrap();
        assert!(weights_work(&sys, None));
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
