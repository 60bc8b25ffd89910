// SPDX-License-Identifier: GPL-2.0-or-later
//! Makes foreign text safe to show: on a terminal, in a log, in a file that people open.
//!
//! A user chooses names of jobs, processes and directories. Control characters in them would be commands to a terminal, and end lines of a
//! log. Unicode has invisible characters that reverse or hide the text behind them.

/// Whether a character shows nothing but itself.
pub fn is_printable(c: char) -> bool {
    let directs = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e0fff}'
    );
    !c.is_control() && !directs
}

/// The text in one line, with `instead` for each character that is not printable.
pub fn printable(text: &str, instead: char) -> String {
    // A fast path: other text is rare, and each line of a log passes here.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    text.chars().map(|c| if is_printable(c) { c } else { instead }).collect()
}

/// The same for several lines.
pub fn printable_lines(text: &str, instead: char) -> String {
    text.chars().map(|c| if is_printable(c) || c == '\n' { c } else { instead }).collect()
}
