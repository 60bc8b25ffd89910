// SPDX-License-Identifier: GPL-2.0-or-later
//! A text that `jobfence top` shows in the place of its list: help, or all of one job.

use jobfence::job::Id;

use super::fit::wrapped;

/// A text of lines, of which a screen shows some.
pub struct Pager {
    pub title: String,
    pub text: String,
    /// The job that it is about, which is looked at again.
    pub job: Option<Id>,
    /// The first line on the screen.
    first: usize,
    /// As last shown.
    place: usize,
}

impl Pager {
    pub fn new(title: String, text: String, job: Option<Id>) -> Self {
        Self { title, text, job, first: 0, place: 0 }
    }

    /// Scrolls by so many lines.
    pub fn scroll(&mut self, lines: isize) {
        self.first = self.first.saturating_add_signed(lines);
    }

    /// The lines of a screen.
    pub fn page(&self) -> isize {
        self.place.max(1).cast_signed()
    }

    /// The lines that are shown in so much place, how many are above them, and how many there are. A line that is too long goes on below.
    pub fn lines(&mut self, width: usize, place: usize) -> (Vec<String>, usize, usize) {
        let lines: Vec<String> = self.text.lines().flat_map(|line| wrapped(line, width)).collect();
        self.place = place;
        self.first = self.first.min(lines.len().saturating_sub(place));
        let all = lines.len();
        (lines.into_iter().skip(self.first).take(place).collect(), self.first, all)
    }
}
