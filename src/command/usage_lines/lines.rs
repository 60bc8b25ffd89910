// SPDX-License-Identifier: GPL-2.0-or-later
//! The lines of one file of a usage log, plain or packed by gzip or zstd.
//!
//! A line is handed out where it was read to, and not copied.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek};
use std::ops::Range;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The longest line that jobfence writes, in bytes, with its end.
const LONGEST: usize = 1 << 20;

/// The most memory that a frame of zstd may demand, in bytes. zstd itself uses no more, unless --long or --ultra is given.
const WINDOW: u64 = 8 << 20;

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole line, which [`LogLines::line`] returns.
    Whole,
    /// A line without an end: the last one of the file.
    Half,
    /// A line longer than any of jobfence's. Its rest is passed over.
    TooLong,
}

/// The lines of a file.
pub struct LogLines {
    /// `None`: closed.
    file: Option<Box<dyn Read>>,
    /// The bytes that were read last.
    buffer: Vec<u8>,
    /// Where in `buffer` the current line is, without its end.
    line: Range<usize>,
    /// Where in `buffer` the bytes are that are not looked at yet.
    ahead: Range<usize>,
    /// Whether the rest of a line is still to be passed over.
    is_within: bool,
}

impl LogLines {
    /// Prepares to read the file. `piece`: how many bytes are read at once.
    pub fn new(mut file: File, piece: usize) -> io::Result<Self> {
        let mut magic = [0; 4];
        let mut length = 0;
        while let Some(rest) = magic.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match file.read(rest)? {
                0 => break,
                read => length += read,
            }
        }
        file.rewind()?;
        let file: Box<dyn Read> = match magic {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(piece, file))),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Zstd::new(BufReader::with_capacity(piece, file))?),
            _ => Box::new(file),
        };
        Ok(Self::from_reader(file, piece))
    }

    fn from_reader(file: Box<dyn Read>, piece: usize) -> Self {
        Self { file: Some(file), buffer: vec![0; piece], line: 0..0, ahead: 0..0, is_within: false }
    }

    /// Reads the next line. `None`: there is none.
    pub fn read(&mut self) -> io::Result<Option<Next>> {
        self.line = 0..0;
        while std::mem::take(&mut self.is_within) {
            match self.end_from(self.ahead.start) {
                Some(end) => self.ahead.start = end + 1,
                None => {
                    self.ahead = 0..0;
                    self.is_within = self.read_on()?;
                }
            }
        }
        let mut looked_at = self.ahead.start;
        loop {
            let end = self.end_from(looked_at);
            let length = end.unwrap_or(self.ahead.end) - self.ahead.start;
            if length >= LONGEST {
                // The next call passes over the rest of the line.
                self.ahead.start += LONGEST;
                self.is_within = true;
                return Ok(Some(Next::TooLong));
            }
            if let Some(end) = end {
                self.line = self.ahead.start..end;
                self.ahead.start = end + 1;
                return Ok(Some(Next::Whole));
            }
            if !self.read_on()? {
                self.ahead = 0..0;
                return Ok((length > 0).then_some(Next::Half));
            }
            looked_at = self.ahead.start + length;
        }
    }

    /// The place of the first end of a line at or behind `from`.
    fn end_from(&self, from: usize) -> Option<usize> {
        Some(from + memchr::memchr(b'\n', self.buffer.get(from..self.ahead.end)?)?)
    }

    /// Reads more bytes behind `ahead`, and may move `ahead` to another place. Returns whether there were more.
    fn read_on(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        self.buffer.copy_within(self.ahead.clone(), 0);
        self.ahead = 0..self.ahead.len();
        if self.ahead.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            let Some(room) = self.buffer.get_mut(self.ahead.end..) else { return Ok(false) };
            match file.read(room) {
                Ok(read) => {
                    self.ahead.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The line that was read, without its end.
    pub fn line(&self) -> &[u8] {
        self.buffer.get(self.line.clone()).unwrap_or_default()
    }

    /// Gives back the file and its memory.
    pub fn close(&mut self) {
        *self = Self { file: None, buffer: Vec::new(), line: 0..0, ahead: 0..0, is_within: false };
    }
}

/// All frames of a file, one after another.
struct Zstd {
    /// `None`: the file has ended.
    frame: Option<StreamingDecoder<BufReader<File>, FrameDecoder>>,
}

impl Zstd {
    fn new(file: BufReader<File>) -> io::Result<Self> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        let frame = StreamingDecoder::new_with_decoder(file, decoder).map_err(io::Error::other)?;
        Ok(Self { frame: Some(frame) })
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else { return Ok(0) };
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some((mut file, decoder)) = self.frame.take().map(StreamingDecoder::into_parts) else { return Ok(0) };
            if file.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let next = StreamingDecoder::new_with_decoder(file, decoder).map_err(io::Error::other)?;
            self.frame = Some(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives at most this many bytes at once, and is interrupted before each read.
    struct Slow<'a>(&'a [u8], usize, bool);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.2 = !self.2;
            if self.2 {
                return Err(ErrorKind::Interrupted.into());
            }
            let length = buffer.len().min(self.1);
            self.0.read(buffer.get_mut(..length).unwrap_or_default())
        }
    }

    /// All that is read in pieces of this size: a whole line as its text, any other as its length.
    fn all(text: &[u8], at_once: usize, piece: usize) -> Vec<String> {
        let text: &'static [u8] = text.to_vec().leak();
        let mut lines = LogLines::from_reader(Box::new(Slow(text, at_once, false)), piece);
        let mut found = Vec::new();
        while let Some(next) = lines.read().unwrap() {
            found.push(match next {
                Next::Whole => String::from_utf8(lines.line().to_vec()).unwrap(),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(lines.read().unwrap(), None);
        found
    }

    #[test]
    fn lines_are_whole_however_they_are_read() {
        let text = b"one\n\nthree and more\nfour\nhalf";
        for at_once in 1..32 {
            for piece in 1..32 {
                assert_eq!(
                    all(text, at_once, piece),
                    ["one", "", "three and more", "four", "Half"],
                    "{at_once} {piece}"
                );
            }
        }
        assert_eq!(all(b"", 9, 9), Vec::<String>::new());
        assert_eq!(all(b"one\n", 9, 9), ["one"]);
    }

    #[test]
    fn a_line_that_is_too_long_hides_none_behind_it() {
        let longest = "x".repeat(LONGEST - 1);
        for (more, expected) in [("", longest.as_str()), ("x", "TooLong"), ("xx", "TooLong")] {
            let text = format!("a\n{longest}{more}\nb\n");
            for piece in [1 << 13, LONGEST, 3 << 20] {
                assert_eq!(all(text.as_bytes(), 1 << 16, piece), ["a", expected, "b"], "{} {piece}", more.len());
            }
        }
        // A line that is too long has no end, or its end is the last byte of a piece.
        let endless = "y".repeat(3 * LONGEST + 5);
        assert_eq!(all(endless.as_bytes(), 1 << 16, 1 << 13), ["TooLong"]);
        assert_eq!(all(format!("{endless}\nb").as_bytes(), 1 << 16, 1 << 13), ["TooLong", "Half"]);
    }
}
