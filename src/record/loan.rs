// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` notes of the memory that a job is lent, as it is on the job's directory, for the end of the job's steps.
//!
//! The first line is `1`. A later release may write more lines. If their meaning changes, the number does, and then nothing is said.

/// The number of this form.
const VERSION: &str = "1";

/// How the card's row begins: with its label. No other row begins so.
pub const LABEL: &str = "lent\t";

/// A line of a note, by its number.
#[derive(Debug, Clone, Copy)]
pub enum LoanLine {
    /// The most bytes that the job was lent beyond its limit at once.
    Most = 1,
    /// The card's row (`report::card::noted`).
    Row = 2,
    /// What only `hold` reads.
    OfHold = 3,
    /// Why the job was ended (`report::ended_by_hold`), if it was.
    WhyEnded = 4,
}

/// The note.
pub fn note(most: u64, row: &str, of_hold: &str, why_ended: Option<&str>) -> String {
    let why_ended = why_ended.map(|why| format!("\n{why}")).unwrap_or_default();
    format!("{VERSION}\n{most}\n{row}\n{of_hold}{why_ended}")
}

/// A line of a note. `None`: the note does not have it, or is another release's.
pub fn line(note: &str, which: LoanLine) -> Option<&str> {
    let mut lines = note.split('\n');
    (lines.next()? == VERSION).then_some(())?;
    lines.nth(which as usize - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use LoanLine::{Most, OfHold, Row, WhyEnded};

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let all = |note: &str| [Most, Row, OfHold, WhyEnded].map(|which| line(note, which).map(str::to_owned));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(all(&note(5, "lent\t\tx", "6 7", None)), [some("5"), some("lent\t\tx"), some("6 7"), None]);
        let ended = note(5, "lent\t\tx", "6", Some("the node ran short"));
        assert_eq!(all(&ended), [some("5"), some("lent\t\tx"), some("6"), some("the node ran short")]);
        // A later release writes more.
        assert_eq!(all(&format!("{ended}\nmore")), all(&ended));
    }

    #[test]
    fn what_another_release_has_noted_is_not_guessed_at() {
        for other in ["", "1", "2\n5\nlent\t\tx\n6\ny", "15\nlent\t\tx\ny", "x"] {
            assert_eq!((line(other, Most), line(other, Row), line(other, WhyEnded)), (None, None, None), "{other}");
        }
    }
}
