// SPDX-License-Identifier: GPL-2.0-or-later
//! What a function of the header returns: a code, and a sentence with it.

use crate::config::{Config, LoadError, Loaded};
use crate::error::Error;
use crate::launch::{Answer, NotFenced};

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

/// Why a call did not succeed.
#[derive(Debug)]
pub(super) struct NotDone(pub AbiCode, pub String);

pub(super) type Done<T = ()> = Result<T, NotDone>;

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        Self(AbiCode::System, error.to_string())
    }
}

/// A mistake of the calling program.
pub(super) fn usage(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Usage, text.into())
}

pub(super) fn refused(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Refused, text.into())
}

/// The same for a fence that is there already: a mistake that was made meanwhile does not keep it, and what it has used is told. That there
/// is none, only a configuration without mistakes says: the line with the mistake may be the one that names the directory of records.
pub(super) fn known(loaded: &Result<Loaded, LoadError>) -> Done<&Config> {
    match loaded {
        Ok(loaded) => Ok(&loaded.config),
        Err(errors) => errors.sound().ok_or_else(|| refused(errors.to_string())),
    }
}

/// The configuration, where a job is to have what it says: what is fenced is also ended with Mode=off.
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
        Answer::Refused(why) => {
            // A refusal by the kernel may pass by itself; one by the configuration or about a request does not.
            let is_passing = matches!(&why, NotFenced::General(error) if error.is_passing());
            Err(NotDone(if is_passing { AbiCode::System } else { AbiCode::Refused }, why.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_would_be_refused_again() {
        let code = |why: NotFenced| answered::<()>(Answer::Refused(why)).unwrap_err().0;
        let full = Error::new("write the record").errno(Errno::ENOSPC);
        assert_eq!(code(NotFenced::General(full.clone())), AbiCode::System);
        assert_eq!(code(NotFenced::General(Error::new("its lock is on").passing())), AbiCode::System);
        assert_eq!(code(NotFenced::General(Error::new("a mistake"))), AbiCode::Refused);
        assert_eq!(code(NotFenced::Limit { limit: None, error: full.clone(), asked: None }), AbiCode::Refused);
        assert_eq!(code(NotFenced::Asked(full)), AbiCode::Refused);
    }
}
