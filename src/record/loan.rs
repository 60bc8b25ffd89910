// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` notes of the memory that a job is lent, as it is on the job's directory, for the end of the job's steps: a line of
//! numbers, the card's row (`report::card::noted`), and why the job was ended, if it was.
//!
//! The first line is `1`, the most bytes that the job was lent, and what only `hold` reads. A later release may write more behind that, and
//! more lines. If their meaning changes, the number does, and then nothing is said.

/// The number of this form.
const VERSION: &str = "1 ";

/// The label of the card's row.
pub const LABEL: &str = "lent";

/// The note: `numbers` begins with the most bytes that were lent.
pub fn note(numbers: &str, row: &str, why_ended: Option<&str>) -> String {
    let why_ended = why_ended.map(|why| format!("\n{why}")).unwrap_or_default();
    format!("{VERSION}{numbers}\n{row}{why_ended}")
}

/// The numbers of a note's first line.
pub fn numbers(note: &str) -> Option<&str> {
    note.lines().next()?.strip_prefix(VERSION)
}

/// The most bytes that the job was lent beyond its limit at once.
pub fn most(note: &str) -> Option<u64> {
    numbers(note)?.split(' ').next()?.parse().ok()
}

/// The card's row.
pub fn row(note: &str) -> Option<&str> {
    numbers(note).and_then(|_| note.lines().nth(1))
}

/// Why the job was ended, in a sentence. `None`: it was not.
pub fn why_ended(note: &str) -> Option<&str> {
    numbers(note).and_then(|_| note.lines().nth(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let lent = note("5 6", "lent\t\tx", None);
        assert_eq!(
            (numbers(&lent), most(&lent), row(&lent), why_ended(&lent)),
            (Some("5 6"), Some(5), Some("lent\t\tx"), None)
        );
        let ended = note("5", "lent\t\tx", Some("the node ran short"));
        assert_eq!((most(&ended), why_ended(&ended)), (Some(5), Some("the node ran short")));
        // A later release writes more.
        assert_eq!(why_ended(&format!("{ended}\nmore")), Some("the node ran short"));
    }

    #[test]
    fn what_another_release_has_noted_is_not_guessed_at() {
        for other in ["", "2 5\nlent\t\tx\ny", "15\nlent\t\tx\ny", "x"] {
            assert_eq!((most(other), row(other), why_ended(other)), (None, None, None), "{other}");
        }
    }
}
