// SPDX-License-Identifier: GPL-2.0-or-later
//! How the name that people use for a job matches the job's longer id.

/// How a text matches an id.
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

/// Matches `12` with the id `12.3`, which is one part of job 12.
pub fn of_parts(text: &str, id: &str) -> Option<JobMatch> {
    let (number, part) = id.split_once('.')?;
    (text == number && is_number(number) && is_number(part)).then_some(JobMatch::Whole)
}
