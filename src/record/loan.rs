// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` notes of the memory that a job is lent, as it is on the job's directory, for the end of the job's steps.
//!
//! The first line is `1`. A later release may write more lines. If their meaning changes, the number does, and then nothing is said.

/// The number of this form.
const VERSION: &str = "1";

/// How the card's row begins: with its label. No other row begins so.
pub const LABEL: &str = "lent\t";

/// A job that was ended ends by that, as the note and the usage log have it.
pub const KILLED: &str = "kill";
/// A job that was ended is requeued.
pub const REQUEUED: &str = "requeue";

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
    /// What becomes of it then: [`KILLED`] or [`REQUEUED`].
    AfterEnd = 5,
}

/// The note. `ended`: why the job was ended, and whether it is requeued.
pub fn note(most: u64, row: &str, of_hold: &str, ended: Option<(&str, bool)>) -> String {
    let after = |is_requeued| if is_requeued { REQUEUED } else { KILLED };
    let ended = ended.map(|(why, is_requeued)| format!("\n{why}\n{}", after(is_requeued))).unwrap_or_default();
    format!("{VERSION}\n{most}\n{row}\n{of_hold}{ended}")
}

/// A line of a note. `None`: the note does not have it, or is another release's.
#[inline(never)]
pub fn line(note: &str, which: LoanLine) -> Option<&str> {
    let mut lines = note.split('\n');
    (lines.next()? == VERSION).then_some(())?;
    lines.nth(which as usize - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use LoanLine::{AfterEnd, Most, OfHold, Row, WhyEnded};

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let all =
            |note: &str| [Most, Row, OfHold, WhyEnded, AfterEnd].map(|which| line(note, which).map(str::to_owned));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(all(&note(5, "lent\t\tx", "6 7", None)), [some("5"), some("lent\t\tx"), some("6 7"), None, None]);
        let ended = note(5, "lent\t\tx", "6", Some(("the node ran short", false)));
        assert_eq!(all(&ended), [some("5"), some("lent\t\tx"), some("6"), some("the node ran short"), some("kill")]);
        // An earlier release has not written what becomes of it.
        assert_eq!(line("1\n5\nlent\t\tx\n6\nwhy", AfterEnd), None);
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
