// SPDX-License-Identifier: GPL-2.0-or-later
//! What a function of the header answers: a number, and beside it a sentence.

use crate::config::{LoadError, Loaded};
use crate::error::Error;
use crate::launch::Answer;

/// What a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum AbiCode {
    /// `JOBFENCE_OK`.
    Ok = 0,
    /// `JOBFENCE_OFF`.
    Off = 1,
    /// `JOBFENCE_UNFENCED`.
    Unfenced = 2,
    /// `JOBFENCE_USAGE`.
    Usage = -1,
    /// `JOBFENCE_REFUSED`.
    Refused = -2,
    /// `JOBFENCE_NO_FENCE`.
    NoFence = -3,
    /// `JOBFENCE_SYSTEM`.
    System = -4,
    /// `JOBFENCE_INTERNAL`.
    Internal = -5,
}

/// Why a call has not done what it is for.
#[derive(Debug)]
pub(super) struct NotDone(pub AbiCode, pub String);

pub(super) type Done<T = ()> = Result<T, NotDone>;

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        Self(AbiCode::System, error.to_string())
    }
}

/// A mistake of the program that calls.
pub(super) fn usage(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Usage, text.into())
}

pub(super) fn refused(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Refused, text.into())
}

/// The configuration, where a fence is there already: what is fenced is also ended with Mode=off.
pub(super) fn usable(loaded: &Result<Loaded, LoadError>) -> Done<&Loaded> {
    loaded.as_ref().map_err(|errors| refused(errors.to_string()))
}

pub(super) fn answered<T>(answer: Answer<T>) -> Done<T> {
    match answer {
        Answer::Fenced(value) => Ok(value),
        Answer::Off => Err(NotDone(AbiCode::Off, "Mode=off: nothing is fenced".to_owned())),
        Answer::Unfenced { by, why, .. } => {
            Err(NotDone(AbiCode::Unfenced, format!("the job goes on without a fence ({by}): {why}")))
        }
        Answer::Refused(why) => Err(refused(why.to_string())),
    }
}
