// SPDX-License-Identifier: GPL-2.0-or-later
//! How a card formats numbers, users' names and lines.

use std::time::Duration;

/// The longest line, in characters.
pub const WIDTH: usize = 80;

pub(super) fn shown(share: u64) -> String {
    if share > 999 { ">999 %".to_owned() } else { format!("{share} %") }
}

/// As `1 node` or `2 nodes`.
pub fn several(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Thousandths with a suitable number of decimals.
pub(super) fn decimal(thousandths: u64) -> String {
    let (whole, part) = (thousandths / 1000, thousandths % 1000);
    if whole == 0 { format!("0.{:02}", part / 10) } else { format!("{whole}.{}", part / 100) }
}

/// As `12 min 5 s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("0.{} s", time.subsec_millis() / 100),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Replaces all but printable ASCII, in text that a user may have written: each character has one meaning and one column on every terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

/// Shortens ASCII text.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.get(..most) {
        Some(head) if text.len() > most => format!("{head}..."),
        _ => text.to_owned(),
    }
}

/// The site's text (`UsageCardText`), with the job's id for `%j`.
pub fn site_text(text: &str, job: &str) -> String {
    text.split("%%").map(|part| part.replace("%j", job)).collect::<Vec<_>>().join("%")
}

/// The same in lines. They are broken only between words: an address stays whole.
pub(super) fn site_lines(text: &str, job: &str) -> Vec<String> {
    let text = site_text(text, job);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= WIDTH) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(format!("  {word}")),
        }
    }
    lines
}

/// Lines of at most [`WIDTH`], broken between words if possible. The first begins with `first`, all others with `rest`.
pub(super) fn wrapped(text: &str, first: &str, rest: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_new = true;
    for word in text.split_whitespace() {
        let mut word = word;
        loop {
            let used = line.chars().count() + usize::from(!is_new);
            if used + word.len() <= WIDTH {
                if !is_new {
                    line.push(' ');
                }
                line.push_str(word);
                is_new = false;
                break;
            }
            if is_new {
                // The word fits on no line as a whole. The text is ASCII.
                let room = WIDTH.saturating_sub(used).max(1);
                let (head, tail) = word.split_at_checked(room).unwrap_or((word, ""));
                line.push_str(head);
                word = tail;
            }
            lines.push(std::mem::replace(&mut line, rest.to_owned()));
            is_new = true;
        }
    }
    lines.push(line);
    lines
}
