// SPDX-License-Identifier: GPL-2.0-or-later
//! How each function that Slurm calls is run, and what it answers.

use std::ffi::c_int;

use super::log;
use crate::sys::guard::guard;

/// What Slurm is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// 0
    Good,
    /// -1
    Bad,
}

/// `None`: the callback did not finish, which has been logged.
pub(super) fn callback(name: &'static str, body: impl FnOnce() -> Verdict) -> Option<Verdict> {
    log::install();
    guard(name, body)
}

/// The code for it.
pub(super) fn answer(verdict: Verdict) -> c_int {
    match verdict {
        Verdict::Good => 0,
        Verdict::Bad => -1,
    }
}
