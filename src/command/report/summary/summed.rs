// SPDX-License-Identifier: GPL-2.0-or-later
//! What the log has said, and what an hour costs.

use super::super::accounting::AccountingPart;
use super::habits::Habits;
use super::names::Names;
use super::runs::By;
use super::tally::Tally;

/// What the log has said.
pub struct SummedUp {
    pub by: By,
    /// The beginning of the time. `None`: all lines count.
    pub since: Option<String>,
    pub names: Names,
    pub tally: Tally,
    pub habits: Habits,
    pub prices: Prices,
    pub is_of_all: bool,
    /// The scheduler's accounting that the figures are from. `None`: they are from usage logs.
    pub accounting: Option<&'static dyn AccountingPart>,
    /// How many files were read.
    pub files: u64,
    pub lines: u64,
    /// Lines that were read twice.
    pub again: u64,
    /// Runs that may have been counted as two.
    pub early: u64,
    /// Lines that came so late that their jobs may have been counted already.
    pub late: u64,
    /// What was passed over, in words.
    pub passed_over: Option<String>,
}

/// What an hour costs.
#[derive(Debug, Clone, Default)]
pub struct Prices {
    pub cpu: Option<f64>,
    pub gpu: Option<f64>,
    pub currency: Option<String>,
}
