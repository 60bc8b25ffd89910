// SPDX-License-Identifier: GPL-2.0-or-later
//! How each function that Slurm calls is run, and what it answers.

use std::ffi::c_int;

use super::log;
use crate::sys::guard::guard;

/// What Slurm is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReturnCode {
    /// 0
    Good,
    /// -1
    Bad,
}

/// `None`: the callback did not finish, which has been logged.
pub(super) fn callback(name: &'static str, body: impl FnOnce() -> ReturnCode) -> Option<ReturnCode> {
    log::install();
    guard(name, body)
}

/// The code for it.
pub(super) fn answer(verdict: ReturnCode) -> c_int {
    match verdict {
        ReturnCode::Good => 0,
        ReturnCode::Bad => -1,
    }
}
