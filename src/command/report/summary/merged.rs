// SPDX-License-Identifier: GPL-2.0-or-later
//! The lines of all files in the order in which their steps ended: a job on several nodes has its lines in several files.
//!
//! A file is open from the time of its first line until all of it was read. So if files follow one another, as the files of one node do,
//! only one of them is open.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::time::SystemTime;
use std::vec::IntoIter;

use jobfence::error::Error;
use jobfence::report::account::utc;
use usage_lines::lines::{LogLines, Next};

use super::line::{EndText, moment_of};
use super::source::LogSource;

/// How many bytes all files together may read ahead, and how many each may at least and at most.
const AHEAD: usize = 8 << 20;
const PIECES: [usize; 2] = [1 << 13, 1 << 17];

/// The files, each with its next line.
pub struct MergedLogs {
    /// The files that are not open yet, the one with the earliest first line first.
    waiting: std::iter::Peekable<IntoIter<LogSource>>,
    open: Vec<OpenLog>,
    /// The open files by the end of the step of their next line: places in `open`.
    order: BinaryHeap<Reverse<(EndText, usize)>>,
    /// The file whose line was handed out last.
    last: Option<usize>,
    piece: usize,
    now: EndText,
    /// How many files were opened.
    pub files: u64,
    pub counts: PassedOver,
    pub errors: Vec<Error>,
}

/// Lines that are no lines of jobfence's.
#[derive(Debug, Default)]
pub struct PassedOver {
    /// Lines without an end.
    pub half: u64,
    /// Lines longer than any of jobfence's.
    pub too_long: u64,
}

struct OpenLog {
    path: PathBuf,
    lines: LogLines,
    /// When the step of the next line ended. If a line does not say so, or says a time in the future, it keeps the place behind the line
    /// before it.
    moment: EndText,
}

impl MergedLogs {
    /// Takes files in the order of their first lines.
    pub fn new(sources: Vec<LogSource>) -> Self {
        let piece = (AHEAD / sources.len().max(1)).clamp(PIECES[0], PIECES[1]);
        Self {
            waiting: sources.into_iter().peekable(),
            open: Vec::new(),
            order: BinaryHeap::new(),
            last: None,
            piece,
            now: utc(SystemTime::now()).as_bytes().try_into().unwrap_or([b'9'; 20]),
            files: 0,
            counts: PassedOver::default(),
            errors: Vec::new(),
        }
    }

    /// The next line.
    pub fn next(&mut self) -> Option<&[u8]> {
        if let Some(last) = self.last.take() {
            self.go_on(last);
        }
        loop {
            let front = self.order.peek().map(|Reverse((moment, _))| *moment);
            match self.waiting.next_if(|source| front.is_none_or(|front| source.first <= front)) {
                Some(source) => self.open(source),
                None => break,
            }
        }
        let Reverse((_, at)) = self.order.pop()?;
        self.last = Some(at);
        self.open.get(at).map(|log| log.lines.line())
    }

    fn open(&mut self, source: LogSource) {
        let (path, moment) = (source.path.clone(), source.first);
        match source.lines(self.piece) {
            Ok(lines) => {
                self.files += 1;
                self.open.push(OpenLog { path, lines, moment });
                self.go_on(self.open.len() - 1);
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// Reads the next line of a file, or closes it.
    fn go_on(&mut self, at: usize) {
        let Some(log) = self.open.get_mut(at) else { return };
        loop {
            match log.lines.read() {
                Ok(Some(Next::Whole)) => {
                    log.moment = moment_of(log.lines.line()).filter(|moment| *moment <= self.now).unwrap_or(log.moment);
                    self.order.push(Reverse((log.moment, at)));
                    return;
                }
                Ok(Some(Next::Half)) => self.counts.half += 1,
                Ok(Some(Next::TooLong)) => self.counts.too_long += 1,
                Ok(None) => break,
                Err(error) => {
                    let what = format!("cannot read a usage log to its end: {error}");
                    self.errors.push(Error::new(what).at(&log.path));
                    break;
                }
            }
        }
        log.lines.close();
    }
}
