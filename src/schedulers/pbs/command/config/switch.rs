// SPDX-License-Identifier: GPL-2.0-or-later
//! Values that hold on some hosts only, such as `"vntype in: gpu*,fat"` and lists of excluded hosts, as sections that override each other.

/// What the patterns of an exception match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    /// The host's name.
    Host,
    /// The type of the host's vnode.
    VnodeType,
}

/// A value for hosts that match one of these patterns. It overrides earlier values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    pub by: Meant,
    pub patterns: Vec<String>,
    pub value: bool,
}

/// A value that may differ from host to host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    pub general: bool,
    /// If two exceptions match, the later one counts.
    pub exceptions: Vec<Exception>,
}

/// Completes "expected ...".
pub const SWITCH_EXPECTED: &str = "true, false, or a text such as \"vntype in: NAMES\", \"vntype not in: NAMES\", \
                                   \"host in: NAMES\" or \"host not in: NAMES\"";

impl Switch {
    /// The same value on all hosts.
    pub const fn always(general: bool) -> Self {
        Self { general, exceptions: Vec::new() }
    }

    /// Parses a text such as `vntype in: gpu*,fat`.
    pub fn parse(text: &str) -> Option<Self> {
        let (words, names) = text.trim().split_once(':')?;
        let (by, value) = match words.trim().to_lowercase().as_str() {
            "vntype in" => (Meant::VnodeType, true),
            "vntype not in" => (Meant::VnodeType, false),
            "host in" => (Meant::Host, true),
            "host not in" => (Meant::Host, false),
            _ => return None,
        };
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        Some(Self::always(!value).but(by, &names, value))
    }

    /// Adds an exception, unless it has no pattern.
    #[must_use]
    pub fn but(mut self, by: Meant, patterns: &[String], value: bool) -> Self {
        let patterns: Vec<String> = patterns.iter().filter(|name| !name.is_empty()).cloned().collect();
        if !patterns.is_empty() {
            self.exceptions.push(Exception { by, patterns, value });
        }
        self
    }

    /// Limits the switch to these hosts, if any. `None`: an exception already makes it true on some hosts.
    pub fn only_on(self, hosts: &[String]) -> Option<Self> {
        if hosts.is_empty() {
            return Some(self);
        }
        if self.exceptions.iter().any(|exception| exception.value) {
            return None;
        }
        let mut only = Self::always(false).but(Meant::Host, hosts, self.general);
        only.exceptions.extend(self.exceptions);
        Some(only)
    }

    /// Whether it has this value on any host.
    pub fn is_ever(&self, value: bool) -> bool {
        self.general == value || self.exceptions.iter().any(|exception| exception.value == value)
    }

    /// The patterns of each exception, to compare the exceptions of two switches.
    pub fn hosts(&self) -> Vec<(Meant, &[String])> {
        self.exceptions.iter().map(|exception| (exception.by, exception.patterns.as_slice())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn texts_are_read_as_the_hook_reads_them() {
        let exception = |by, patterns: &[&str], value| Exception { by, patterns: names(patterns), value };
        for (text, general, expected) in [
            ("vntype in: gpu*, fat", false, exception(Meant::VnodeType, &["gpu*", "fat"], true)),
            (" VNTYPE not in :a", true, exception(Meant::VnodeType, &["a"], false)),
            ("host in:n1", false, exception(Meant::Host, &["n1"], true)),
            ("Host Not In: n?,", true, exception(Meant::Host, &["n?"], false)),
        ] {
            assert_eq!(Switch::parse(text), Some(Switch { general, exceptions: vec![expected] }), "{text}");
        }
        assert_eq!(Switch::parse("vntype in:"), Some(Switch::always(false)));
        for wrong in ["true", "vntype", "vnode in: a", "vntypein: a", ""] {
            assert_eq!(Switch::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_some_hosts_and_exceptions_of_these() {
        let all = || Switch::always(true);
        assert_eq!(all().only_on(&[]), Some(all()));
        let excluded = all().but(Meant::VnodeType, &names(&["no"]), false).only_on(&names(&["n1"])).unwrap();
        assert!(!excluded.general);
        assert_eq!(excluded.exceptions.iter().map(|one| one.value).collect::<Vec<_>>(), [true, false]);
        let some = all().but(Meant::Host, &names(&["n2"]), true);
        assert_eq!(some.only_on(&names(&["n1"])), None);
    }
}
