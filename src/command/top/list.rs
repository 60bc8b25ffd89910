// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence top` shows now, and what each key changes in it. Nothing here reads the node or writes to the terminal.

use std::collections::BTreeSet;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use jobfence::job::Id;

use super::jobs::{JobIdentity, ListedJob, SORT_KEYS, SortColumn, jobs_of, sort};
use super::node::NodeNow;
use super::pager::Pager;
use crate::living::LivingRow;
use crate::table::printable;

/// The most characters of a filter.
const LONGEST_FILTER: usize = 64;

/// What a key asks of the program.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    /// Go on.
    None,
    Quit,
    /// Write the whole screen again.
    Redraw,
    /// Show all of this job.
    Show(Id),
}

/// A line of the list by places: the job's, and the step's if the line is one of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedLine {
    pub job: usize,
    pub step: Option<usize>,
}

/// What a line is found by after the next look: its job, and the directories of its step.
type LineIdentity = (JobIdentity, Option<String>);

/// The list and all that the keys have changed in it.
pub struct TopList {
    pub node: NodeNow,
    /// All jobs in the order of the screen.
    pub jobs: Vec<ListedJob>,
    /// How many errors may have hidden jobs.
    pub unseen: usize,
    /// Whether the jobs were looked at once.
    pub has_looked: bool,
    pub sorted_by: SortColumn,
    pub is_reversed: bool,
    pub filter: String,
    /// Whether the filter is being typed.
    pub is_asking: bool,
    unfolded: BTreeSet<JobIdentity>,
    /// The line of the cursor. `None`: the first line, whichever job that is.
    chosen: Option<LineIdentity>,
    /// The place of the cursor, which is kept when its job has ended.
    cursor: usize,
    /// How many lines are above the first visible one.
    scrolled: usize,
    /// How many lines of the list the screen has shown last.
    place: usize,
    pub pager: Option<Pager>,
}

impl TopList {
    pub fn new(sorted_by: SortColumn) -> Self {
        Self {
            node: NodeNow::default(),
            jobs: Vec::new(),
            unseen: 0,
            has_looked: false,
            sorted_by,
            is_reversed: false,
            filter: String::new(),
            is_asking: false,
            unfolded: BTreeSet::new(),
            chosen: None,
            cursor: 0,
            scrolled: 0,
            place: 0,
            pager: None,
        }
    }

    /// Takes the result of a look.
    pub fn take(&mut self, node: NodeNow, rows: Vec<LivingRow>, unseen: usize) {
        (self.node, self.jobs, self.unseen, self.has_looked) = (node, jobs_of(rows), unseen, true);
        self.unfolded.retain(|identity| self.jobs.iter().any(|job| job.identity == *identity));
    }

    /// Sorts the jobs. Equal ones are in the order of their ids.
    pub fn sort(&mut self) {
        self.jobs.sort_by_key(|job| job.number);
        let (by, is_reversed) = (self.sorted_by, self.is_reversed);
        sort(&mut self.jobs, by, is_reversed, |job| (job.amounts.clone(), job.user().to_owned()));
    }

    /// The lines of all jobs that the filter finds.
    pub fn lines(&self) -> Vec<ListedLine> {
        let mut lines = Vec::new();
        for (at, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.is_found(&self.filter)) {
            lines.push(ListedLine { job: at, step: None });
            if self.is_unfolded(job) {
                lines.extend((0..job.steps.len()).map(|step| ListedLine { job: at, step: Some(step) }));
            }
        }
        lines
    }

    pub fn is_unfolded(&self, job: &ListedJob) -> bool {
        self.unfolded.contains(&job.identity)
    }

    /// The range of these lines that fits into `place` lines of the screen, and the line with the cursor.
    pub fn shown(&mut self, lines: &[ListedLine], place: usize) -> (std::ops::Range<usize>, usize) {
        self.place = place;
        self.cursor = self.cursor_in(lines);
        let last = lines.len().saturating_sub(place);
        self.scrolled = self.scrolled.min(last).min(self.cursor);
        if self.cursor >= self.scrolled + place {
            self.scrolled = (self.cursor + 1).saturating_sub(place);
        }
        (self.scrolled..(self.scrolled + place).min(lines.len()), self.cursor)
    }

    fn cursor_in(&self, lines: &[ListedLine]) -> usize {
        let Some((job, step)) = &self.chosen else { return 0 };
        let is_of_job = |line: &ListedLine| self.jobs.get(line.job).is_some_and(|one| one.identity == *job);
        let is_it = |line: &ListedLine| is_of_job(line) && self.step_of(*line) == step.as_deref();
        let found = lines.iter().position(is_it).or_else(|| lines.iter().position(is_of_job));
        found.unwrap_or(self.cursor).min(lines.len().saturating_sub(1))
    }

    /// The directories of the line's step.
    fn step_of(&self, line: ListedLine) -> Option<&str> {
        self.jobs.get(line.job)?.steps.get(line.step?).map(|step| step.name.as_str())
    }

    fn identity(&self, line: ListedLine) -> Option<LineIdentity> {
        Some((self.jobs.get(line.job)?.identity.clone(), self.step_of(line).map(str::to_owned)))
    }

    /// Moves the cursor down by this many lines.
    fn move_by(&mut self, by: isize) {
        let lines = self.lines();
        let to = self.cursor_in(&lines).saturating_add_signed(by).min(lines.len().saturating_sub(1));
        self.cursor = to;
        self.chosen = lines.get(to).filter(|_| to > 0).and_then(|line| self.identity(*line));
    }

    fn first_line(&mut self) {
        (self.chosen, self.cursor, self.scrolled) = (None, 0, 0);
    }

    /// The job of the cursor.
    fn job(&self) -> Option<&ListedJob> {
        let lines = self.lines();
        self.jobs.get(lines.get(self.cursor_in(&lines))?.job)
    }

    /// Shows the steps of the cursor's job, or hides them.
    fn fold(&mut self, is_unfolded: Option<bool>) {
        let Some((identity, steps)) = self.job().map(|job| (job.identity.clone(), job.steps.len())) else { return };
        let is_now = self.unfolded.remove(&identity);
        if is_unfolded.unwrap_or(!is_now) {
            self.unfolded.insert(identity);
            // The steps come into view, as far as there is room for them and their job.
            let end = self.cursor + 1 + steps;
            self.scrolled = self.scrolled.max(end.saturating_sub(self.place)).min(self.cursor);
        } else if self.chosen.is_some() {
            // The cursor may have been at a step that is hidden now.
            self.chosen = Some((identity, None));
        }
    }

    /// Shows the steps of all jobs. If all are shown, it hides them.
    fn fold_all(&mut self) {
        let all: BTreeSet<_> = self.jobs.iter().map(|job| job.identity.clone()).collect();
        self.unfolded = if self.unfolded == all { BTreeSet::new() } else { all };
    }

    /// Handles a key.
    pub fn key(&mut self, key: &KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c' | 'd') => return Wish::Quit,
                KeyCode::Char('l') => return Wish::Redraw,
                KeyCode::Char('u') if self.is_asking => self.filter.clear(),
                _ => {}
            }
            return Wish::None;
        }
        if self.pager.is_some() {
            self.key_of_pager(key.code);
            return Wish::None;
        }
        if self.is_asking && self.key_of_filter(key.code) {
            return Wish::None;
        }
        self.key_of_list(key.code)
    }

    fn key_of_pager(&mut self, code: KeyCode) {
        let Some(pager) = &mut self.pager else { return };
        match code {
            KeyCode::Down => pager.scroll(1),
            KeyCode::Up => pager.scroll(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => pager.scroll(pager.page()),
            KeyCode::PageUp => pager.scroll(-pager.page()),
            KeyCode::Home => pager.scroll(isize::MIN),
            KeyCode::End => pager.scroll(isize::MAX),
            KeyCode::Char('q' | 'Q' | '?') | KeyCode::Esc | KeyCode::Enter => self.pager = None,
            _ => {}
        }
    }

    /// Handles a key while the filter is typed. Returns whether the key was for the filter.
    fn key_of_filter(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char(letter) if self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push_str(&printable(&letter.to_string()));
            }
            KeyCode::Char(_) => {}
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_asking = false,
            KeyCode::Esc => {
                self.is_asking = false;
                self.filter.clear();
            }
            _ => return false,
        }
        true
    }

    fn key_of_list(&mut self, code: KeyCode) -> Wish {
        let page = self.place.max(1).cast_signed();
        match code {
            KeyCode::Char('q' | 'Q') => return Wish::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Wish::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.is_asking = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.pager = Some(help()),
            KeyCode::Char(' ') => self.fold(None),
            KeyCode::Right => self.fold(Some(true)),
            KeyCode::Left => self.fold(Some(false)),
            KeyCode::Char('*') => self.fold_all(),
            KeyCode::Enter => {
                return self.job().and_then(|job| Id::new(job.identity.2.as_str()).ok()).map_or(Wish::None, Wish::Show);
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.first_line();
            }
            KeyCode::Char(letter) => {
                if let Some((_, column, _)) = SORT_KEYS.iter().find(|(key, ..)| *key == letter) {
                    (self.sorted_by, self.is_reversed) = (*column, false);
                    self.first_line();
                }
            }
            KeyCode::Down => self.move_by(1),
            KeyCode::Up => self.move_by(-1),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::Home => self.first_line(),
            KeyCode::End => self.move_by(isize::MAX),
            _ => {}
        }
        Wish::None
    }
}

fn help() -> Pager {
    let text = "\
Up, Down, PgUp, PgDn, Home, End
             move through the list
Enter        show all that the kernel says of the job
Space        show the steps of the job, or hide them
Right, Left  show them; hide them
*            show the steps of all jobs, or hide them
/            show only jobs whose id, user, partition or node has the text
c, m, p, t, j, u
             sort by CPU, memory, processes, time, job or user
r            reverse the order
Ctrl-L       draw the screen again
Esc          go back, end the filter, or quit
q, Ctrl-C    quit

CPU% and MEM% are what a job uses now of what it was granted here.
\"-\" is what is not known, or a limit that is not set.";
    Pager::new("Help".to_owned(), text.to_owned(), None)
}
