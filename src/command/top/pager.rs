// SPDX-License-Identifier: GPL-2.0-or-later
//! A text that `jobfence top` shows in the place of its list: help, or all of one job.

use jobfence::job::Id;

use super::fit::wrapped;

/// A text that may be longer than the screen.
pub struct Pager {
    pub title: String,
    pub text: String,
    /// The job that the text is about. It is looked at again and again.
    pub job: Option<Id>,
    /// The first line on the screen.
    first: usize,
    /// How many lines the screen has shown last.
    place: usize,
}

impl Pager {
    pub fn new(title: String, text: String, job: Option<Id>) -> Self {
        Self { title, text, job, first: 0, place: 0 }
    }

    /// Scrolls down by this many lines.
    pub fn scroll(&mut self, lines: isize) {
        self.first = self.first.saturating_add_signed(lines);
    }

    /// How many lines a screen has.
    pub fn page(&self) -> isize {
        self.place.max(1).cast_signed()
    }

    /// The lines that are shown in `place` lines of the screen, how many are above them, and how many there are. A line that is too long is
    /// broken.
    pub fn lines(&mut self, width: usize, place: usize) -> (Vec<String>, usize, usize) {
        let lines: Vec<String> = self.text.lines().flat_map(|line| wrapped(line, width)).collect();
        self.place = place;
        self.first = self.first.min(lines.len().saturating_sub(place));
        let all = lines.len();
        (lines.into_iter().skip(self.first).take(place).collect(), self.first, all)
    }
}
