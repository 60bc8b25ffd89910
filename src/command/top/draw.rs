// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws what `jobfence top` shows into the cells of a screen.

use std::time::SystemTime;

use jobfence::report::account::utc;
use jobfence::report::card::several;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::columns::{Cells, cells};
use super::fit::{PartOfLine, in_lines, wide};
use super::jobs::{SORT_KEYS, granted};
use super::list::TopList;
use crate::table::NONE;

/// How the screen is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    pub has_colours: bool,
    pub is_utf8: bool,
}

/// Draws the whole screen.
pub fn draw(list: &mut TopList, screen: &mut Buffer, manner: Manner, now: SystemTime) {
    let Rect { width, height, .. } = screen.area;
    let (width, height) = (usize::from(width), usize::from(height));
    let mut pen = Pen { screen, manner };
    list.sort();
    if let Some(pager) = &mut list.pager {
        let place = height.saturating_sub(2);
        let (lines, first, all) = pager.lines(width, place);
        let title = in_lines(vec![(0, pager.title.clone())], width, 1);
        pen.line(0, title.first().map_or("", String::as_str), Modifier::BOLD);
        lines.iter().enumerate().for_each(|(at, line)| pen.line(1 + at, line, Modifier::empty()));
        let foot = vec![(0, range(first, lines.len(), all)), (2, "PgUp, PgDn".to_owned()), (1, "q back".to_owned())];
        pen.last(in_lines(foot, width, 1), 1, height);
        return;
    }
    let head = in_lines(head(list), width, (height / 8).clamp(1, 3));
    // The clock stands in the last line of the head, if there is room.
    let head = with_clock(head, width, now);
    head.iter().enumerate().for_each(|(at, line)| pen.line(at, line, Modifier::empty()));
    let lines = list.lines();
    let place = height.saturating_sub(head.len() + 2);
    let (shown, cursor) = list.shown(&lines, place);
    let (heads, rows) = cells(list, &lines, width, manner.is_utf8);
    if head.len() + 1 < height {
        pen.cells(head.len(), &heads, Modifier::BOLD);
    }
    for (at, row) in shown.clone().zip(rows.get(shown.clone()).unwrap_or_default()) {
        let is_chosen = at == cursor;
        pen.cells(
            head.len() + 1 + at - shown.start,
            row,
            if is_chosen { Modifier::REVERSED } else { Modifier::empty() },
        );
    }
    let jobs: Vec<usize> = lines.iter().map(|line| line.job).collect();
    // Only jobs are counted, and not the lines of steps between them.
    let of = |until: usize| jobs.iter().take(until).collect::<std::collections::BTreeSet<_>>().len();
    let first = of(shown.start + 1).saturating_sub(1);
    let foot = foot(list, &range(first, of(shown.end).saturating_sub(first), of(jobs.len())));
    pen.last(in_lines(foot, width, 1), head.len(), height);
    if lines.is_empty() && place > 0 {
        let nothing = match (list.has_looked, list.jobs.is_empty()) {
            (false, _) => "looking ...",
            (true, true) => "no job that you may see runs on this node",
            (true, false) => "no job is found",
        };
        pen.line(head.len() + 1, nothing, Modifier::empty());
    }
}

/// The parts of the first line, which may go on below.
fn head(list: &TopList) -> Vec<PartOfLine> {
    let node = &list.node;
    let known = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    let together = granted(&list.jobs);
    let at_least = |is_all: bool| if is_all { "" } else { "at least " };
    let (cpus, are_all_cpus) = together.cpus;
    let (memory, is_all_memory) = together.memory;
    let granted_cpus = match cpus {
        Some(cpus) => format!("granted {}{cpus}", at_least(are_all_cpus)),
        None => format!("granted {NONE}"),
    };
    let granted_memory = match memory {
        Some(memory) => format!("granted {}{}", at_least(is_all_memory), gibibytes(memory)),
        None => format!("granted {NONE}"),
    };
    let all_cpus = node.cpus.map_or_else(|| NONE.to_owned() + " CPUs", |cpus| several(cpus as u64, "CPU", "CPUs"));
    let all_memory = known(node.memory.map(gibibytes));
    vec![
        (0, node.name.clone()),
        (4, format!("load {}", known(node.load.clone()))),
        (5, format!("memory {} of {all_memory} GiB", known(node.memory_used.map(gibibytes)))),
        (1, several(list.jobs.len() as u64, "job", "jobs")),
        (2, if list.unseen > 0 { "not all can be seen".to_owned() } else { String::new() }),
        (3, format!("{granted_cpus} of {all_cpus}")),
        (6, format!("{granted_memory} of {all_memory} GiB")),
    ]
}

/// Adds the time to the last line, if that has room for it.
fn with_clock(mut lines: Vec<String>, width: usize, now: SystemTime) -> Vec<String> {
    let clock = utc(now);
    let clock = format!("  {} UTC", clock.get(11..19).unwrap_or_default());
    lines.last_mut().filter(|line| wide(line) + wide(&clock) <= width).into_iter().for_each(|line| *line += &clock);
    lines
}

fn gibibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The last line: which lines are shown, and the keys.
fn foot(list: &TopList, range: &str) -> Vec<PartOfLine> {
    if list.is_asking {
        return vec![
            (0, format!("/{}_", list.filter)),
            (1, range.to_owned()),
            (2, "Enter keeps".to_owned()),
            (3, "Esc ends the filter".to_owned()),
        ];
    }
    let name = SORT_KEYS.iter().find(|(_, column, _)| *column == list.sorted_by).map_or("", |(.., name)| name);
    let keys: Vec<String> = SORT_KEYS.iter().map(|(key, _, name)| format!("{key} {name}")).collect();
    let reversed = if list.is_reversed { ", reversed" } else { "" };
    vec![
        (0, range.to_owned()),
        (1, if list.filter.is_empty() { String::new() } else { format!("/{}", list.filter) }),
        (2, format!("by {name}{reversed}")),
        (6, "Enter show".to_owned()),
        (7, "Space steps".to_owned()),
        (5, "/ filter".to_owned()),
        (8, format!("sort: {}", keys.join(", "))),
        (9, "r reverse".to_owned()),
        (3, "? help".to_owned()),
        (4, "q quit".to_owned()),
    ]
}

/// Which ones of all are shown, in words.
fn range(above: usize, shown: usize, all: usize) -> String {
    if shown == 0 {
        return format!("0 of {all}");
    }
    format!("{} to {} of {all}", above + 1, above + shown)
}

/// Writes to a screen.
struct Pen<'a> {
    screen: &'a mut Buffer,
    manner: Manner,
}

impl Pen<'_> {
    fn line(&mut self, at: usize, text: &str, modifier: Modifier) {
        self.cells(at, &vec![(0, text.to_owned(), None)], modifier);
    }

    /// Writes the last line of the screen, if it is not one of the head.
    fn last(&mut self, texts: Vec<String>, head: usize, height: usize) {
        if let Some(text) = texts.first().filter(|_| height > head) {
            self.line(height - 1, text, Modifier::empty());
        }
    }

    fn cells(&mut self, at: usize, cells: &Cells, modifier: Modifier) {
        let area = self.screen.area;
        let Some(y) = u16::try_from(at).ok().filter(|y| *y < area.height) else { return };
        self.screen.set_style(Rect { x: 0, y, width: area.width, height: 1 }, Style::new().add_modifier(modifier));
        for (x, text, colour) in cells {
            let Some(x) = u16::try_from(*x).ok().filter(|x| *x < area.width) else { continue };
            let colour = colour.filter(|_| self.manner.has_colours);
            let style = colour.map_or(Style::new(), |colour| Style::new().fg(colour));
            self.screen.set_stringn(x, y, text, usize::from(area.width - x), style);
        }
    }
}
