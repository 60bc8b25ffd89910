// SPDX-License-Identifier: GPL-2.0-or-later
//! Parses bytes into assignments `Key=Value` and headers `[Kind=Value]`, each with its place. It does not know which keys and kinds
//! there are.

use std::cell::Cell;

use super::error::ConfigError;
use super::lexer::{Cursor, Position, Source, Token};

/// In bytes; longer lines are refused before they are looked at.
pub(super) const MAX_LINE: usize = 4096;

/// One `Key=Value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assignment<'a> {
    pub key: Token<'a>,
    pub value: Token<'a>,
}

/// One item of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Assignment(Assignment<'a>),
    /// What is between the brackets of a line that begins a section.
    Header(Assignment<'a>),
    /// A header that cannot be understood: the lines after it belong to no known section. Its error comes next.
    WrongHeader,
}

/// The items of a file in order, with its mistakes at the places where they were made.
pub(super) fn file<'a>(name: &'a str, text: &'a [u8]) -> impl Iterator<Item = Result<Item<'a>, ConfigError>> {
    let source = Source::File(name);
    let wide = wide_text(source, text);
    // In UTF-16 every second byte would be a mistake of its own.
    let text = if wide.is_some() { &[] } else { text };
    let lines = text.split(|&byte| byte == b'\n').enumerate().flat_map(move |(index, line)| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        LineParser::new(Position { source, line: index + 1, column: 1 }, line)
    });
    wide.map(Err).into_iter().chain(lines)
}

/// The mistake in a file of UTF-16, by the mark at its beginning.
fn wide_text(source: Source<'_>, text: &[u8]) -> Option<ConfigError> {
    let start = Position { source, line: 1, column: 1 };
    let expected = "text in UTF-8; convert the file with iconv -f UTF-16 -t UTF-8";
    (text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff"))
        .then(|| ConfigError::new(start, "a byte order mark of UTF-16", expected))
}

/// The assignment in one argument; `name` says which.
pub(super) fn argument<'a>(name: &'a str, text: &'a [u8]) -> impl Iterator<Item = Result<Item<'a>, ConfigError>> {
    LineParser::new(Position { source: Source::Argument(name), line: 1, column: 1 }, text)
}

/// What is left of one line. It gives no more than one error, since what follows an error could only be guessed.
struct LineParser<'a> {
    cursor: Cursor<'a>,
    refused: Option<ConfigError>,
    /// Whether nothing of it has been taken yet.
    begins: bool,
}

impl<'a> LineParser<'a> {
    fn new(start: Position<'a>, bytes: &'a [u8]) -> Self {
        match readable(start, bytes) {
            Ok(text) => Self { cursor: Cursor::new(text, start), refused: None, begins: true },
            Err(error) => Self { cursor: Cursor::new("", start), refused: Some(error), begins: true },
        }
    }

    /// Which characters end a value. In arguments none does: Slurm has split them, so blanks and `#` that are left were meant.
    fn ends_value(&self) -> fn(char) -> bool {
        match self.cursor.position().source {
            Source::File(_) => |c| is_blank(c) || c == '#',
            Source::Argument(_) => |_| false,
        }
    }

    /// `is_first`: it is the first on its line.
    fn assignment(&mut self, is_first: bool) -> Result<Assignment<'a>, ConfigError> {
        let ends_value = self.ends_value();
        let key = self.cursor.take_while(|c| c != '=' && !is_blank(c) && !ends_value(c));
        if key.text.is_empty() {
            return Err(self.unexpected("a key before it"));
        }
        self.cursor.take_while(is_blank);
        if !self.cursor.eat('=') {
            let expected = match key.text.contains(':') {
                true => "\"=\" and a value after the key, and no colon",
                false if is_first => "\"=\" and a value after the key",
                false => "\"=\" and a value after the key; a value with a blank in it needs double quotes",
            };
            return Err(self.unexpected(expected));
        }
        self.cursor.take_while(is_blank);
        if self.cursor.peek() == Some('"') {
            return Ok(Assignment { key, value: self.quoted()? });
        }
        let value = self.cursor.take_while(|c| !ends_value(c));
        if value.text.is_empty() { Err(self.unexpected("a value after \"=\"")) } else { Ok(Assignment { key, value }) }
    }

    fn quoted(&mut self) -> Result<Token<'a>, ConfigError> {
        let quoted = self.between_quotes()?;
        if self.cursor.peek().is_some_and(|c| !self.ends_value()(c)) {
            return Err(self.unexpected("a blank or the end of the line after the closing double quote"));
        }
        Ok(quoted)
    }

    fn between_quotes(&mut self) -> Result<Token<'a>, ConfigError> {
        let start = self.cursor.clone();
        self.cursor.eat('"');
        let inside = self.cursor.take_while(|c| c != '"');
        if !self.cursor.eat('"') {
            self.cursor = start;
            return Err(self.unexpected("a closing double quote on the same line"));
        }
        Ok(Token { text: inside.text, at: start.position() })
    }

    /// Reads `[Kind=Values]` with nothing behind it. Values without quotes may have brackets of their own, as names of nodes do.
    fn header(&mut self) -> Result<Assignment<'a>, ConfigError> {
        self.cursor.eat('[');
        self.cursor.take_while(is_blank);
        let key = self.cursor.take_while(|c| !is_blank(c) && !"=]#".contains(c));
        if key.text.is_empty() {
            return Err(self.unexpected("what the section is about, as in [Partition=gpu]"));
        }
        self.cursor.take_while(is_blank);
        if !self.cursor.eat('=') {
            return Err(self.unexpected("\"=\" and one or more names, as in [Partition=gpu]"));
        }
        self.cursor.take_while(is_blank);
        let value = if self.cursor.peek() == Some('"') {
            self.between_quotes()?
        } else {
            let depth = Cell::new(0usize);
            self.cursor.take_while(|c| {
                match c {
                    '[' => depth.set(depth.get() + 1),
                    ']' if depth.get() == 0 => return false,
                    ']' => depth.set(depth.get() - 1),
                    _ => {}
                }
                !is_blank(c) && c != '#'
            })
        };
        if value.text.is_empty() {
            return Err(self.unexpected("one or more names, as in [Partition=gpu]"));
        }
        self.cursor.take_while(is_blank);
        if !self.cursor.eat(']') {
            return Err(self.unexpected("\"]\"; a list has no blanks, unless it stands in double quotes"));
        }
        self.cursor.take_while(is_blank);
        if self.cursor.peek().is_none_or(|c| c == '#') {
            self.cursor.take_while(|_| true);
            return Ok(Assignment { key, value });
        }
        Err(self.unexpected("the end of the line: a section's keys stand on the lines below it"))
    }

    /// The error for unexpected text at the cursor.
    fn unexpected(&self, expected: &str) -> ConfigError {
        let found = self.cursor.clone().take_while(|_| true);
        if found.text.is_empty() || found.text.starts_with('#') && self.ends_value()('#') {
            return ConfigError::new(found.at, "the end of the line", expected);
        }
        ConfigError::text(found.at, found.text, expected)
    }
}

impl<'a> Iterator for LineParser<'a> {
    type Item = Result<Item<'a>, ConfigError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        self.cursor.take_while(is_blank);
        if self.cursor.peek().is_none_or(self.ends_value()) {
            return None;
        }
        let begins = std::mem::replace(&mut self.begins, false);
        if begins && self.cursor.peek() == Some('[') && matches!(self.cursor.position().source, Source::File(_)) {
            let header = self.header();
            return Some(header.map(Item::Header).or_else(|error| {
                self.refused = Some(error);
                self.cursor.take_while(|_| true);
                Ok(Item::WrongHeader)
            }));
        }
        let result = self.assignment(begins);
        if result.is_err() {
            self.cursor.take_while(|_| true);
        }
        Some(result.map(Item::Assignment))
    }
}

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

/// The line as text, if it is one: short, UTF-8 and without NUL, in comments too, since no editor writes anything else.
fn readable<'a>(start: Position<'a>, bytes: &'a [u8]) -> Result<&'a str, ConfigError> {
    if let Some(beginning) = bytes.get(..MAX_LINE).filter(|_| bytes.len() > MAX_LINE) {
        let beginning = String::from_utf8_lossy(beginning);
        return Err(ConfigError::text(start, &beginning, format!("a line of at most {MAX_LINE} bytes")));
    }
    let refuse = |before: usize, byte: u8, expected| {
        let at = Position { column: start.column + before, ..start };
        ConfigError::new(at, format!("the byte {byte:#04x}"), expected)
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (valid, rest) = bytes.split_at_checked(error.valid_up_to()).unwrap_or((bytes, &[]));
        let before = String::from_utf8_lossy(valid).chars().count();
        refuse(before, rest.first().copied().unwrap_or_default(), "text in UTF-8")
    })?;
    // Editors do not show it, and it would be taken for the beginning of a key.
    if text.starts_with('\u{feff}') {
        let expected = "text without it; save the file without it, or remove it with sed -i 's/^\\xEF\\xBB\\xBF//'";
        return Err(ConfigError::new(start, "a byte order mark (the bytes EF BB BF)", expected));
    }
    match text.chars().position(|c| c == '\0') {
        None => Ok(text),
        Some(before) => Err(refuse(before, 0, "text without NUL bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `key|value|place` of each assignment, in brackets of each header, or the error.
    fn shown<'a>(items: impl Iterator<Item = Result<Item<'a>, ConfigError>>) -> Vec<String> {
        let show = |a: Assignment<'_>| format!("{}|{}|{}", a.key.text, a.value.text, a.value.at);
        let show = |item| match item {
            Item::Assignment(assignment) => show(assignment),
            Item::Header(header) => format!("[{}]", show(header)),
            Item::WrongHeader => "[".to_owned(),
        };
        items.map(|item| item.map_or_else(|error| error.to_string(), show)).collect()
    }

    #[test]
    fn a_header_has_a_line_of_its_own() {
        let text = b"a=[1] b=2\n [ Partition = gpu,debug ] # c\n[Node=n[01-16],m[1]]\n[Group=\"domain users,a]#\"]\r\n";
        let expected = [
            "a|[1]|f:1:3",
            "b|2|f:1:9",
            "[Partition|gpu,debug|f:2:16]",
            "[Node|n[01-16],m[1]|f:3:7]",
            "[Group|domain users,a]#|f:4:8]",
        ];
        assert_eq!(shown(file("f", text)), expected);
        for (text, error) in [
            ("[", "1:2: found the end of the line, expected what the section is about, as in [Partition=gpu]"),
            ("[ ]", "1:3: found \"]\", expected what the section is about, as in [Partition=gpu]"),
            ("[gpu]", "1:5: found \"]\", expected \"=\" and one or more names, as in [Partition=gpu]"),
            ("[a=]", "1:4: found \"]\", expected one or more names, as in [Partition=gpu]"),
            (
                "[a=b",
                "1:5: found the end of the line, expected \"]\"; a list has no blanks, unless it stands in double quotes",
            ),
            ("[a=b, c]", "1:7: found \"c]\", expected \"]\"; a list has no blanks, unless it stands in double quotes"),
            (
                "[a=n[1]",
                "1:8: found the end of the line, expected \"]\"; a list has no blanks, unless it stands in double quotes",
            ),
            (
                "[a=b]c=1",
                "1:6: found \"c=1\", expected the end of the line: a section's keys stand on the lines below it",
            ),
            ("[a=\"b]", "1:4: found \"\\\"b]\", expected a closing double quote on the same line"),
        ] {
            let expected = ["[".to_owned(), format!("f:{error}"), "z|1|f:2:3".to_owned()];
            assert_eq!(shown(file("f", format!("{text}\nz=1\n").as_bytes())), expected, "{text}");
        }
        // plugstack.conf has no headers.
        assert_eq!(shown(argument("argument 1", b"[a=b]")), ["[a|b]|argument 1, column 4"]);
        // Nor is it a header behind anything else.
        assert_eq!(shown(file("f", b"a=1 [b=c]\n")), ["a|1|f:1:3", "[b|c]|f:1:8"]);
    }

    #[test]
    fn reads_what_slurm_would_read() {
        let text = b"\n# x=1\n a=1\tb = 2#c\r\nc=\"x # y\" d=\"\" #\ne=a=\"b\\\n\t\r\n";
        assert_eq!(
            shown(file("f", text)),
            ["a|1|f:3:4", "b|2|f:3:10", "c|x # y|f:4:3", "d||f:4:13", "e|a=\"b\\|f:5:3"]
        );
        assert_eq!(shown(file("f", b"")), [""; 0]);
    }

    #[test]
    fn an_argument_is_taken_as_slurm_split_it() {
        assert_eq!(shown(argument("argument 2", b"a=x #y\nz")), ["a|x #y\nz|argument 2, column 3"]);
        assert_eq!(shown(argument("argument 2", b"a=\"x\"")), ["a|x|argument 2, column 3"]);
        assert_eq!(
            shown(argument("argument 2", b"#")),
            ["argument 2, column 2: found the end of the line, expected \"=\" and a value after the key"]
        );
    }

    #[test]
    fn errors_have_a_place_and_cost_only_their_line() {
        for (text, error) in [
            ("\na b=1", r#"2:3: found "b=1", expected "=" and a value after the key"#),
            ("a # b", r#"1:3: found the end of the line, expected "=" and a value after the key"#),
            ("a: b", r#"1:4: found "b", expected "=" and a value after the key, and no colon"#),
            ("a:b", r#"1:4: found the end of the line, expected "=" and a value after the key, and no colon"#),
            ("a= \t", r#"1:5: found the end of the line, expected a value after "=""#),
            ("a=#1", r#"1:3: found the end of the line, expected a value after "=""#),
            ("\n\n =1 c=2", r#"3:2: found "=1 c=2", expected a key before it"#),
            ("a=\"b", r#"1:3: found "\"b", expected a closing double quote on the same line"#),
            ("a=\"b\"c", r#"1:6: found "c", expected a blank or the end of the line after the closing double quote"#),
            ("#ä\0", r#"1:3: found the byte 0x00, expected text without NUL bytes"#),
        ] {
            let expected = [format!("f:{error}"), format!("z|1|f:{}:3", text.split('\n').count() + 1)];
            assert_eq!(shown(file("f", format!("{text}\nz=1\n").as_bytes())), expected, "{text:?}");
        }
        let blank = "f:1:7: found the end of the line, expected \"=\" and a value after the key; a value with a blank in it needs \
                     double quotes";
        assert_eq!(shown(file("f", b"a=/b c\nz=1")), ["a|/b|f:1:3", blank, "z|1|f:2:3"]);
        assert_eq!(shown(file("f", b"a=\xc3\xa4\xff\n")), ["f:1:4: found the byte 0xff, expected text in UTF-8"]);
    }

    #[test]
    fn a_long_line_is_refused_as_a_whole() {
        let line = |length: usize| [b"\na=".to_vec(), vec![b'x'; length - 2], b"\r\n".to_vec()].concat();
        assert!(file("f", &line(4096)).all(|item| item.is_ok()));
        for length in [4097, 10_000_000] {
            let found = format!("f:2:1: found \"a={}...\", expected a line of at most 4096 bytes", "x".repeat(58));
            assert_eq!(shown(file("f", &line(length))), [found]);
        }
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        for text in ["a=1\nb=2", "a=1\nb=2\r", "a=1\nb=2\n"] {
            assert_eq!(shown(file("f", text.as_bytes())), ["a|1|f:1:3", "b|2|f:2:3"], "{text:?}");
        }
        assert!(shown(file("f", b"#")).is_empty());
    }

    #[test]
    fn a_byte_order_mark_is_named() {
        let remedy = "text without it; save the file without it, or remove it with sed -i 's/^\\xEF\\xBB\\xBF//'";
        let error = |line| format!("f:{line}:1: found a byte order mark (the bytes EF BB BF), expected {remedy}");
        assert_eq!(shown(file("f", "\u{feff}a=1\nb=2\n".as_bytes())), [error(1), "b|2|f:2:3".to_owned()]);
        assert_eq!(shown(file("f", "\u{feff}# a\r\n".as_bytes())), [error(1)]);
        // As in two files that were put together.
        assert_eq!(shown(file("f", "a=1\n\u{feff}b=2".as_bytes())), ["a|1|f:1:3".to_owned(), error(2)]);
        for text in [&b"\xff\xfea\0=\x001\0\n\0"[..], b"\xfe\xff\0a\0=\x001\0\n"] {
            let error = "f:1:1: found a byte order mark of UTF-16, expected text in UTF-8; convert the file with iconv -f \
                         UTF-16 -t UTF-8";
            assert_eq!(shown(file("f", text)), [error]);
        }
    }

    #[test]
    fn a_carriage_return_is_named() {
        let [error] = &shown(file("f", b"[a=b]\rc=1\r"))[1..] else { panic!("one error") };
        assert!(error.contains(r#"f:1:6: found "\rc=1", expected"#) && error.contains("carriage return"), "{error}");
        let [error] = &shown(argument("x", b"a\r"))[..] else { panic!("one error") };
        assert!(error.contains("x, column 3: found the end of the line"), "{error}");
    }
}
