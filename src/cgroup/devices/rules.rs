// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads `DeviceAllow`, in the syntax of systemd.resource-control(5). No I/O.

use std::fmt;
use std::path::PathBuf;

/// Character or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// `c` in devices.list.
    Char,
    /// `b` in devices.list.
    Block,
}

/// What may be done with a device, as the kernel's bits (`BPF_DEVCG_ACC_*`, include/uapi/linux/bpf.h). At least one bit is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access(u8);

const LETTERS: [(char, u8); 3] = [('r', 2), ('w', 4), ('m', 1)];

impl Access {
    /// Reading, writing, and making a node of it (mknod(2)).
    pub const ALL: Self = Self(7);
    /// Reading and writing.
    pub const READ_WRITE: Self = Self(6);

    /// `r`, `w` and `m` in any order, each at most once, at least one of them.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bits = 0;
        for letter in text.chars() {
            let (_, bit) = LETTERS.iter().find(|(known, _)| *known == letter)?;
            if bits & bit != 0 {
                return None;
            }
            bits |= bit;
        }
        (bits != 0).then_some(Self(bits))
    }

    /// As the kernel has them: 1 mknod, 2 read, 4 write.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// What both allow, if that is anything.
    pub const fn and(self, other: Self) -> Option<Self> {
        let both = self.0 & other.0;
        if both == 0 { None } else { Some(Self(both)) }
    }

    /// What either allows.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LETTERS.iter().filter(|(_, bit)| self.0 & bit != 0).try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

/// Which devices a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The device at this path when a step begins; symbolic links, as udev makes them, are followed.
    Path(PathBuf),
    /// Every device of a driver: its name in `/proc/devices`, or its major number.
    Class(DeviceKind, String),
}

/// One rule of `DeviceAllow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRule {
    /// Which devices.
    pub target: Target,
    /// What may be done with them.
    pub access: Access,
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Path(path) => write!(f, "{}", path.display())?,
            Target::Class(DeviceKind::Char, name) => write!(f, "char-{name}")?,
            Target::Class(DeviceKind::Block, name) => write!(f, "block-{name}")?,
        }
        if self.access == Access::ALL { Ok(()) } else { write!(f, " {}", self.access) }
    }
}

/// More rules than this are a mistake: each is a few instructions of a program that the kernel runs at every open of a device.
pub const MOST_RULES: usize = 128;

/// The kernel's own bounds: `PATH_MAX` with its NUL, and the length of a driver's name (`char_device_struct`, fs/char_dev.c).
const LONGEST_PATH: usize = 4095;
const LONGEST_NAME: usize = 63;

/// The largest major number: 12 bits (`MINORBITS`, include/linux/kdev_t.h).
pub(super) const LARGEST_MAJOR: u32 = (1 << 12) - 1;
/// The largest minor number: 20 bits.
pub(super) const LARGEST_MINOR: u32 = (1 << 20) - 1;

/// Reads `DeviceAllow`: rules separated by commas, each a device and optionally, after a blank, its access (`rwm` by default). The
/// error completes "it is refused, since ...".
pub fn parse(text: &str) -> Result<Vec<DeviceRule>, &'static str> {
    let mut rules = Vec::new();
    for part in text.split(',') {
        if rules.len() == MOST_RULES {
            return Err("there are more than 128 rules");
        }
        rules.push(rule(part)?);
    }
    Ok(rules)
}

/// The rules as [`parse`] reads them.
pub fn text(rules: &[DeviceRule]) -> String {
    rules.iter().map(DeviceRule::to_string).collect::<Vec<_>>().join(",")
}

fn rule(part: &str) -> Result<DeviceRule, &'static str> {
    let mut words = part.split([' ', '\t']).filter(|word| !word.is_empty());
    let Some(device) = words.next() else { return Err("a rule is empty") };
    let access = match words.next() {
        Some(access) => Access::parse(access).ok_or("an access is not of r, w and m, each at most once")?,
        None => Access::ALL,
    };
    if words.next().is_some() {
        return Err("a rule has more than a device and its access; the next rule begins after a comma");
    }
    let class = |kind, name: &str| class(name).map(|name| Target::Class(kind, name));
    let target = match (device.strip_prefix("char-"), device.strip_prefix("block-")) {
        (Some(name), _) => class(DeviceKind::Char, name)?,
        (_, Some(name)) => class(DeviceKind::Block, name)?,
        (None, None) => Target::Path(path(device)?),
    };
    Ok(DeviceRule { target, access })
}

pub(super) fn path(text: &str) -> Result<PathBuf, &'static str> {
    if !text.starts_with('/') {
        return Err("a device is neither an absolute path nor char-NAME nor block-NAME");
    }
    if text.len() > LONGEST_PATH || text.contains(|c: char| c.is_control() || c == '"') {
        return Err("a path is too long, or has double quotes or control characters");
    }
    if text.split('/').any(|part| part == "..") {
        return Err("a path has \"..\" in it");
    }
    if text.contains(['*', '?', '[']) {
        return Err("patterns are not understood: list each device, or char-NAME for all of a driver");
    }
    Ok(PathBuf::from(text))
}

fn class(name: &str) -> Result<String, &'static str> {
    if name.contains(['*', '?', '[']) {
        return Err("patterns are not understood: name one driver of /proc/devices");
    }
    let sound = |b: u8| b.is_ascii_graphic() && b != b'"';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(sound) {
        return Err("a name behind char- or block- cannot be one of /proc/devices");
    }
    if name.bytes().all(|b| b.is_ascii_digit()) && !name.parse().is_ok_and(|major: u32| major <= LARGEST_MAJOR) {
        return Err("a major number is above 4095");
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_rule(path: &str, access: &str) -> DeviceRule {
        DeviceRule { target: Target::Path(path.into()), access: Access::parse(access).unwrap() }
    }

    fn class_rule(kind: DeviceKind, name: &str, access: &str) -> DeviceRule {
        DeviceRule { target: Target::Class(kind, name.into()), access: Access::parse(access).unwrap() }
    }

    #[test]
    fn what_systemd_would_understand() {
        let rules = parse("/dev/nvidia0 rw,  char-pts\twr,block-loop r, /dev/fuse,char-cpu/msr r,char-195").unwrap();
        let expected = [
            path_rule("/dev/nvidia0", "rw"),
            class_rule(DeviceKind::Char, "pts", "rw"),
            class_rule(DeviceKind::Block, "loop", "r"),
            path_rule("/dev/fuse", "rwm"),
            class_rule(DeviceKind::Char, "cpu/msr", "r"),
            class_rule(DeviceKind::Char, "195", "rwm"),
        ];
        assert_eq!(rules, expected);
        assert_eq!(text(&rules), "/dev/nvidia0 rw,char-pts rw,block-loop r,/dev/fuse,char-cpu/msr r,char-195");
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "empty"),
            ("/dev/null,", "empty"),
            ("/dev/null,,/dev/zero", "empty"),
            ("/dev/null rx", "access"),
            ("/dev/null rr", "access"),
            ("/dev/null RW", "access"),
            ("/dev/null r w", "comma"),
            ("dev/null", "absolute"),
            ("null", "absolute"),
            ("Char-pts", "absolute"),
            ("/dev/../etc/passwd", ".."),
            ("/dev/sd*", "patterns"),
            ("/dev/sd[ab]", "patterns"),
            ("char-*", "patterns"),
            ("char-tty?", "patterns"),
            ("char-", "cannot be one"),
            ("block- r", "cannot be one"),
            ("char-4096", "4095"),
            ("char-99999999999999999999", "4095"),
            ("/dev/a\u{7}", "control"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        assert!(parse(&vec!["/dev/null"; MOST_RULES].join(",")).is_ok());
        assert!(parse(&vec!["/dev/null"; MOST_RULES + 1].join(",")).unwrap_err().contains("128"));
        assert!(parse(&format!("/{}", "x".repeat(LONGEST_PATH))).unwrap_err().contains("too long"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_is_read_is_written_the_same(text in "(char-|block-|/dev/|)[a-z0-9*%,\" rwm/.é-]{0,40}") {
            if let Ok(rules) = parse(&text) {
                let again = super::text(&rules);
                proptest::prop_assert_eq!(parse(&again).unwrap(), rules);
            }
        }
    }
}
