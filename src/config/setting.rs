// SPDX-License-Identifier: GPL-2.0-or-later
//! One key with its value, and where that was set.

use std::fmt;

use super::keys::{Config, Key};

/// One key with a value, and where that was set.
#[derive(Debug, Clone)]
pub struct Setting {
    pub(super) key: &'static Key,
    pub(super) value: String,
    pub(super) origin: Origin,
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        (self.key.name, &self.value, &self.origin) == (other.key.name, &other.value, &other.origin)
    }
}

impl Setting {
    /// Sets it in a configuration.
    pub(super) fn apply(&self, config: &mut Config) {
        // A sound value has been read once before; a setter that refuses it now changes nothing.
        let _ = self.key.set(config, &self.value);
    }

    /// The key.
    pub fn key(&self) -> &'static Key {
        self.key
    }

    /// Its value as it is written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Where it is written.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// As it stands in a file.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() || self.value.contains([' ', '\t', '#']) {
            return write!(f, "{}=\"{}\"", self.key.name, self.value);
        }
        write!(f, "{}={}", self.key.name, self.value)
    }
}

/// Where a key was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere.
    Default,
    /// A line of the file.
    File {
        /// The file's name.
        name: String,
        /// Counted from 1.
        line: usize,
        /// The section in which it stands, as `[Partition=gpu]`.
        section: Option<String>,
    },
    /// An argument of the plugin or an option of the command, by its name in messages.
    Argument(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line, section: None } => write!(f, "{name}:{line}"),
            Self::File { name, line, section: Some(section) } => write!(f, "{name}:{line} {section}"),
            Self::Argument(name) => f.write_str(name),
        }
    }
}
