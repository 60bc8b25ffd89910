// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs the functions that Slurm calls, and converts their results.

use std::ffi::c_int;

use super::log;
use crate::sys::guard::guard;

/// The result of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReturnCode {
    /// 0
    Good,
    /// -1
    Bad,
}

/// Runs a callback. `None`: it did not finish, which has been logged.
pub(super) fn callback(name: &'static str, body: impl FnOnce() -> ReturnCode) -> Option<ReturnCode> {
    log::install();
    guard(name, body)
}

/// The return code for Slurm.
pub(super) fn answer(verdict: ReturnCode) -> c_int {
    match verdict {
        ReturnCode::Good => 0,
        ReturnCode::Bad => -1,
    }
}
