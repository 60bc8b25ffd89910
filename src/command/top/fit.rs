// SPDX-License-Identifier: GPL-2.0-or-later
//! Fits texts into the columns of a terminal. What does not fit is left out as a whole, or goes on in the next line.

use ratatui_core::text::Span;

/// How many columns of a terminal a text takes. East Asian characters take two.
pub fn wide(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text in at most `most` columns. A mark stands for what is left out.
pub fn shortened(text: &str, most: usize, is_utf8: bool) -> String {
    if wide(text) <= most {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if wide(&kept) >= most {
            kept.pop();
            break;
        }
    }
    kept.push(if is_utf8 { '…' } else { '~' });
    kept
}

/// The text in lines of `width` columns. It is broken between words that are short enough.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for c in text.chars() {
        let Some(line) = lines.last_mut() else { break };
        line.push(c);
        // A line has at least one character, however narrow the screen is.
        if wide(line) > width && line.chars().nth(1).is_some() {
            let word = line.rfind(' ').map(|space| space + 1).filter(|begin| *begin > line.len() / 2);
            let next = line.split_off(word.unwrap_or(line.len() - c.len_utf8()));
            line.truncate(line.trim_end().len());
            lines.push(next);
        }
    }
    lines
}

/// A part of a line, and its rank: the part with the largest rank is left out first.
pub type PartOfLine = (u8, String);

/// The parts in at most `most` lines, with two spaces between parts. Empty parts do not count.
pub fn in_lines(mut parts: Vec<PartOfLine>, width: usize, most: usize) -> Vec<String> {
    parts.retain(|(_, text)| !text.is_empty());
    loop {
        let mut lines: Vec<String> = Vec::new();
        for (_, text) in &parts {
            match lines.last_mut().filter(|line| wide(line) + 2 + wide(text) <= width) {
                Some(line) => *line = format!("{line}  {text}"),
                None => lines.push(text.clone()),
            }
        }
        if lines.len() <= most && lines.iter().all(|line| wide(line) <= width) {
            return lines;
        }
        let last = parts.iter().enumerate().max_by_key(|(_, (rank, _))| *rank).map(|(at, _)| at);
        match last {
            Some(at) => drop(parts.remove(at)),
            None => return Vec::new(),
        }
    }
}

/// The columns of these widths that fit side by side, with a space between two. The first column always does. Columns of one rank are kept
/// or left out together.
pub fn columns(widths: &[(u8, usize)], width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..widths.len()).collect();
    let of = |at: usize| widths.get(at).copied().unwrap_or_default();
    while kept.len() > 1 && kept.iter().map(|at| of(*at).1 + 1).sum::<usize>() > width + 1 {
        let last = kept.iter().skip(1).map(|at| of(*at).0).max();
        kept.retain(|at| *at == 0 || Some(of(*at).0) != last);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_marked_or_goes_on() {
        assert_eq!([shortened("4711", 4, true), shortened("47110", 4, true)], ["4711", "471…"]);
        assert_eq!([shortened("計算計算", 4, false), shortened("ab", 1, false)], ["計~", "~"]);
        assert_eq!(wrapped("abcde", 2), ["ab", "cd", "e"]);
        assert_eq!(wrapped("of all that is", 9), ["of all", "that is"]);
        assert_eq!(wrapped("a longest-word", 9), ["a longest", "-word"]);
        assert_eq!((wrapped("", 5), wrapped("計算", 1)), (vec![String::new()], vec!["計".to_owned(), "算".to_owned()]));
    }

    #[test]
    fn parts_and_columns_are_left_out_as_a_whole() {
        let parts = || vec![(0, "node".to_owned()), (2, "load 1.00".into()), (3, String::new()), (1, "2 jobs".into())];
        assert_eq!(in_lines(parts(), 23, 1), ["node  load 1.00  2 jobs"]);
        assert_eq!(in_lines(parts(), 22, 1), ["node  2 jobs"]);
        assert_eq!(in_lines(parts(), 22, 2), ["node  load 1.00", "2 jobs"]);
        assert_eq!(in_lines(parts(), 3, 9), Vec::<String>::new());
        let widths = [(0, 5), (2, 4), (1, 4), (2, 4), (3, 4)];
        assert_eq!(columns(&widths, 25), [0, 1, 2, 3, 4]);
        assert_eq!([columns(&widths, 24), columns(&widths, 20)], [[0, 1, 2, 3]; 2]);
        assert_eq!([columns(&widths, 19), columns(&widths, 10)], [[0, 2]; 2]);
        assert_eq!([columns(&widths, 9), columns(&widths, 1)], [[0]; 2]);
    }
}
