// SPDX-License-Identifier: GPL-2.0-or-later
//! Tables, amounts and names for people: in 80 columns, and without characters that a terminal would take for commands.

use std::io::IsTerminal;
use std::time::Duration;

use jobfence::bytes::mebibytes;

/// The width of a page if no terminal says otherwise.
pub const PAGE: usize = 80;

/// Shown for a figure that is not known, or a limit that is not set.
pub const NONE: &str = "-";

/// A column: its head, and whether it has texts, which are left-aligned.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub head: &'static str,
    pub is_text: bool,
}

/// A column of texts.
pub const fn texts(head: &'static str) -> Column {
    Column { head, is_text: true }
}

/// A column of numbers.
pub const fn numbers(head: &'static str) -> Column {
    Column { head, is_text: false }
}

/// The terminal's width; a page's if the output is no terminal.
pub fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return PAGE;
    }
    crossterm::terminal::window_size().map_or(PAGE, |size| usize::from(size.columns)).max(40)
}

/// Whether colours are to be on stdout: on a terminal alone, and not where NO_COLOR says otherwise (https://no-color.org).
pub fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The lines of a table, without newlines. If it is wider than the page, the remaining columns follow below, with the first one repeated.
/// `None`: any width.
pub fn lines(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain(columns.get(at).map(|column| column.head.len())).max().unwrap_or(0)
        })
        .collect();
    let mut all = Vec::new();
    let mut from = 1;
    loop {
        let mut taken = widths.first().copied().unwrap_or(0);
        let mut to = from;
        while let Some(next) = widths.get(to) {
            taken += 1 + next;
            if to > from && width.is_some_and(|width| taken > width) {
                break;
            }
            to += 1;
        }
        let shown: Vec<usize> = std::iter::once(0).chain(from..to).collect();
        let heads: Vec<String> = columns.iter().map(|column| column.head.to_owned()).collect();
        for row in std::iter::once(&heads).chain(rows) {
            let cells = shown.iter().map(|at| {
                let cell = row.get(*at).map(String::as_str).unwrap_or_default();
                let wide = widths.get(*at).copied().unwrap_or(0);
                let is_text = columns.get(*at).is_some_and(|column| column.is_text);
                if is_text { format!("{cell:<wide$}") } else { format!("{cell:>wide$}") }
            });
            all.push(cells.collect::<Vec<_>>().join(" ").trim_end().to_owned());
        }
        from = to;
        if from >= columns.len() {
            return all;
        }
        all.push(String::new());
    }
}

/// A name that a user may have chosen, made printable.
pub fn printable(text: &str) -> String {
    jobfence::printable::printable(text, '?')
}

/// At most this many characters.
pub fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// An amount in MiB, for a column with that unit in its head.
pub fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| NONE.to_owned(), |bytes| mebibytes(bytes).trim_end_matches(" MiB").to_owned())
}

/// A number, if it is known.
pub fn number(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A time: `5.0s`, `1:05`, `2:00:00`, `3-04:00:00`.
pub fn time(time: Option<Duration>) -> String {
    let Some(time) = time else { return NONE.to_owned() };
    if time.as_secs() < 60 {
        return format!("{:.1}s", time.as_secs_f64());
    }
    clock(time)
}

/// The same in whole seconds.
pub fn clock(time: Duration) -> String {
    let (days, hours) = (time.as_secs() / 86_400, time.as_secs() / 3600 % 24);
    let (minutes, seconds) = (time.as_secs() / 60 % 60, time.as_secs() % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_goes_on_below() {
        let columns = [texts("STEP"), numbers("CPU"), numbers("MEMORY"), texts("END")];
        let rows = vec![vec!["batch".into(), "1.5".into(), "12".into(), "closed".into()]];
        assert_eq!(lines(&columns, &rows, Some(80)), ["STEP  CPU MEMORY END", "batch 1.5     12 closed"]);
        let split = lines(&columns, &rows, Some(16));
        assert_eq!(split, ["STEP  CPU MEMORY", "batch 1.5     12", "", "STEP  END", "batch closed"]);
        assert_eq!(lines(&columns, &rows, Some(1)).len(), 8);
        assert_eq!(lines(&columns, &rows, None), lines(&columns, &rows, Some(80)));
    }

    #[test]
    fn names_have_no_commands_for_a_terminal() {
        let hostile = "a\u{1b}[2J\u{9b}31m\r\n\u{202e}b\u{2066}\u{200b}é\u{7f}";
        assert_eq!(printable(hostile), "a?[2J?31m????b??é?".replacen("????b", "???b", 1));
    }

    #[test]
    fn times_are_short() {
        let of = |seconds| time(Some(Duration::from_secs(seconds)));
        assert_eq!([5, 65, 7200, 270_000].map(of), ["5.0s", "1:05", "2:00:00", "3-03:00:00"]);
        assert_eq!((time(None), mib(Some(200 << 20)), mib(None)), ("-".into(), "200.0".into(), "-".into()));
    }
}
