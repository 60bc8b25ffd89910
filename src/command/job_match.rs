// SPDX-License-Identifier: GPL-2.0-or-later
//! What the name of a job that people use means for the longer id of a job.

/// What a text means for an id, if it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobMatch {
    /// The job with this id.
    It,
    /// A job of several parts; this id is one of them.
    Whole,
}

/// Whether a text is a number.
pub fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `12.3`, one part of a job: all of them as `12`.
pub fn of_parts(text: &str, id: &str) -> Option<JobMatch> {
    let (number, part) = id.split_once('.')?;
    (text == number && is_number(number) && is_number(part)).then_some(JobMatch::Whole)
}
