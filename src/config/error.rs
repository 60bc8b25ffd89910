// SPDX-License-Identifier: GPL-2.0-or-later
//! The errors that the administrator reads when the configuration is refused.

use std::fmt;

/// The most errors that are reported of one configuration, so that a file of another kind does not fill the log.
pub(super) const MAX_ERRORS: usize = 20;

/// Longer offending text is cut after this many characters.
const MAX_FOUND: usize = 60;

/// One mistake: where it is, what was found there, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    place: String,
    found: String,
    expected: String,
}

impl ConfigError {
    /// A mistake in words; `found` completes "found ...", `expected` completes "expected ...".
    pub(super) fn new(place: impl fmt::Display, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { place: place.to_string(), found: found.into(), expected: expected.into() }
    }

    /// A mistake in a text, which is quoted and cut, so that it cannot harm a terminal or fill the log.
    pub(super) fn text(place: impl fmt::Display, found: &str, expected: impl Into<String>) -> Self {
        let mut shown: String = found.chars().take(MAX_FOUND).collect();
        if shown.len() < found.len() {
            shown.push_str("...");
        }
        let expected = expected.into();
        // Editors do not show it.
        let hint = if found.contains('\r') {
            "; \"\\r\" is a carriage return: the file has the line ends of another system, convert it with dos2unix (or mac2unix)"
        } else {
            ""
        };
        Self::new(place, format!("{shown:?}"), expected + hint)
    }

    /// Where it is: `FILE:LINE:COLUMN`, `ARGUMENT, column COLUMN`, or a file.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, expected {}", self.place, self.found, self.expected)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offending_text_is_escaped_and_cut() {
        let error = ConfigError::text("f:1:1", "a\u{1b}[2J\u{202e}\"", "b");
        assert_eq!(error.to_string(), r#"f:1:1: found "a\u{1b}[2J\u{202e}\"", expected b"#);
        let error = ConfigError::text("f:1:1", &"ä".repeat(61), "b");
        assert_eq!(error.to_string(), format!("f:1:1: found \"{}...\", expected b", "ä".repeat(60)));
    }
}
