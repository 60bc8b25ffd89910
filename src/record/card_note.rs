// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobfence.service notes of a job for its card, as it is on the job's directory: a line that says of when its figures are, and the
//! lines of the card (`report::card::noted`).
//!
//! The first line is `1`, the seconds from this host's boot until then, and the same time as people read it. A later release may write lines that
//! this one skips. If their meaning changes, the number does, and then nothing is said.

use std::time::Duration;

/// The number of this form.
const VERSION: &str = "1";

/// A sample more or less is no delay, and an answer of a GPU's driver may take as long as this.
const SLOWEST: Duration = Duration::from_secs(20);

/// The note, as long as an attribute can be read: what is too long loses its last lines. `since_boot`, `clock`: of when its oldest figure
/// is.
pub fn note(since_boot: Duration, clock: &str, lines: &str) -> String {
    let mut note = format!("{VERSION} {} {clock}", since_boot.as_secs());
    for line in lines.lines() {
        if note.len() + 1 + line.len() > crate::cgroup::mark::LONGEST {
            break;
        }
        note.push('\n');
        note.push_str(line);
    }
    note
}

/// The lines of a note at this time. If they are more than three samples old, they say of when they are.
pub fn lines(note: &str, since_boot: Duration, interval: Duration) -> Option<String> {
    let (head, lines) = note.split_once('\n')?;
    let (written, clock) = head.strip_prefix(VERSION)?.strip_prefix(' ')?.split_once(' ')?;
    let age = since_boot.saturating_sub(Duration::from_secs(written.parse().ok()?));
    let is_old = age > interval.max(SLOWEST).saturating_mul(3);
    let as_of = if is_old { format!("\nas of\t\t{clock}: nothing newer is known") } else { String::new() };
    Some(format!("{lines}{as_of}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::mark::LONGEST;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_note_says_its_age_when_it_is_old() {
        let text = note(MINUTE * 100, "2026-11-30 14:05", "GPUs\t44\tx\n\t\ty");
        assert_eq!(text, "1 6000 2026-11-30 14:05\nGPUs\t44\tx\n\t\ty");
        let after = |minutes| lines(&text, MINUTE * minutes, MINUTE);
        assert_eq!(after(103).as_deref(), Some("GPUs\t44\tx\n\t\ty"));
        let old = "GPUs\t44\tx\n\t\ty\nas of\t\t2026-11-30 14:05: nothing newer is known";
        assert_eq!(after(104).as_deref(), Some(old));
        // A short interval is no delay; a clock that goes backwards is none, either.
        assert_eq!(lines(&text, MINUTE * 101, Duration::from_secs(1)), after(103));
        assert_eq!(after(1), after(103));
    }

    #[test]
    fn what_another_release_has_noted_is_not_guessed_at() {
        for text in
            ["", "GPUs\t44\tx\n", "2 6000 x\nGPUs\t44\tx", "1 x y\nGPUs\t44\tx", "1 6000\nGPUs\t44\tx", "1 6000 x"]
        {
            assert_eq!(lines(text, MINUTE, MINUTE), None, "{text}");
        }
    }

    #[test]
    fn what_is_too_long_to_be_read_loses_whole_lines() {
        let line = "x".repeat(999);
        let all = [line.as_str(); 5].join("\n");
        let text = note(MINUTE, "t", &all);
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), [line.as_str(); 4]);
        assert!(text.len() <= LONGEST && note(MINUTE, "t", &"é".repeat(LONGEST)).lines().count() == 1);
    }
}
