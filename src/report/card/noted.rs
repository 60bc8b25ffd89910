// SPDX-License-Identifier: GPL-2.0-or-later
//! What only jobfence.service knows of a job, and has noted on the job's directory for its card: rows, and remarks.
//!
//! A line is a label, a share in percent, and a text, with tabs between them. Without a label it is a remark, which says that what was
//! granted was not used.

use super::figures::Figures;

impl<'a> Figures<'a> {
    /// The rows: label, share and text.
    pub(super) fn noted_rows(&self) -> impl Iterator<Item = (&'a str, Option<u64>, &'a str)> {
        parsed(self.noted).filter(|(label, ..)| !label.is_empty())
    }

    pub(super) fn noted_remarks(&self) -> impl Iterator<Item = &'a str> {
        parsed(self.noted).filter(|(label, ..)| label.is_empty()).map(|(.., text)| text)
    }
}

fn parsed(noted: &str) -> impl Iterator<Item = (&str, Option<u64>, &str)> {
    noted.lines().filter_map(|line| {
        let mut parts = line.splitn(3, '\t');
        Some((parts.next()?, parts.next()?.parse().ok(), parts.next()?))
    })
}
