// SPDX-License-Identifier: GPL-2.0-or-later
//! A cursor on one line of text that always knows where it is.

use std::fmt;

/// Where a text came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// A file, by its name.
    File(&'a str),
    /// An argument of the plugin or an option of the command, by its name in messages: `plugstack.conf argument 1`.
    Argument(&'a str),
}

/// A character's place: line and column are counted from 1, columns in characters, as editors do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position<'a> {
    pub source: Source<'a>,
    pub line: usize,
    pub column: usize,
}

impl Position<'_> {
    /// The place as seen from within the same source.
    pub fn nearby(&self) -> String {
        match self.source {
            Source::File(_) => format!("on line {}", self.line),
            Source::Argument(name) => format!("in {name}"),
        }
    }
}

impl fmt::Display for Position<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::File(name) => write!(f, "{name}:{}:{}", self.line, self.column),
            Source::Argument(name) => write!(f, "{name}, column {}", self.column),
        }
    }
}

/// A piece of the text and where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    pub at: Position<'a>,
}

/// What is left of a line.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    rest: &'a str,
    at: Position<'a>,
}

impl<'a> Cursor<'a> {
    pub fn new(rest: &'a str, at: Position<'a>) -> Self {
        Self { rest, at }
    }

    pub fn position(&self) -> Position<'a> {
        self.at
    }

    pub fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Steps over `wanted` if it is next.
    pub fn eat(&mut self, wanted: char) -> bool {
        self.rest.strip_prefix(wanted).map(|rest| self.advance(rest)).is_some()
    }

    /// Steps over the longest run of characters that `belongs` accepts; it may be empty.
    pub fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> Token<'a> {
        let (before, at) = (self.rest, self.at);
        self.advance(before.trim_start_matches(belongs));
        Token { text: before.strip_suffix(self.rest).unwrap_or(before), at }
    }

    fn advance(&mut self, rest: &'a str) {
        let taken = self.rest.strip_suffix(rest).unwrap_or_default();
        self.at.column += taken.chars().count();
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let mut cursor = Cursor::new("äö=x", Position { source: Source::File("f"), line: 7, column: 1 });
        assert_eq!(cursor.take_while(|c| c != '=').text, "äö");
        assert!(!cursor.eat('x'));
        assert!(cursor.eat('='));
        assert_eq!(cursor.position().to_string(), "f:7:4");
        assert_eq!(cursor.take_while(|c| c == 'y').text, "");
        assert_eq!(cursor.take_while(|c| c == 'x').text, "x");
        assert_eq!(cursor.peek(), None);
    }
}
