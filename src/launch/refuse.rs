// SPDX-License-Identifier: GPL-2.0-or-later
//! Why a step or task is not fenced, whether it runs all the same, and what its user can do about it.

use std::fmt;

use crate::config::{Config, Limit, OnError, OnErrors};
use crate::error::Error;
use crate::fence::LimitError;
use crate::job::JobKey;
use crate::log;
use crate::requests::UserRequests;

/// Why a step or a task is not fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFenced {
    /// The general `OnError` decides.
    General(Error),
    /// A limit without which it may not run, whatever the general `OnError` says.
    Limit {
        /// Which limit. `None`: there are no directories to limit, or the job cannot be isolated.
        limit: Option<Limit>,
        /// Why it could not be set.
        error: Error,
        /// The user's options that may be the cause.
        asked: Option<Box<str>>,
    },
    /// The user's request is not understood.
    Asked(Error),
}

const NOT_YOURS: &str = "Only your administrator can fix that";
const OTHERWISE: &str = "If that is refused too, only your administrator can fix it";

impl NotFenced {
    /// The error for missing directories. If the user requested something that needs controllers which the site's own settings (`ours`) do
    /// not need, those in `more` may be the cause: then the general `OnError` does not apply, so that no request gets a user out of the
    /// fence.
    pub fn from_open_error(error: Error, requests: &UserRequests, more: &[&str], ours: &[&str]) -> Self {
        if more.iter().all(|controller| ours.contains(controller)) {
            Self::General(error)
        } else {
            Self::Limit { limit: None, error, asked: Some(requests.options().into()) }
        }
    }

    /// Whether the step or task runs without a fence.
    pub fn is_bearable(&self, general: OnError) -> bool {
        matches!(self, Self::General(_)) && general == OnError::Warn
    }

    /// The message with what the job's user can do about it, or that only the administrator can help.
    pub fn for_user(&self) -> String {
        match self {
            Self::General(_) | Self::Limit { asked: None, .. } => {
                let text = self.to_string();
                let end = if text.ends_with('?') { "" } else { "." };
                format!("{text}{end} {NOT_YOURS}")
            }
            Self::Limit { asked: Some(options), .. } => format!("{self}. Try it without {options}. {OTHERWISE}"),
            // The error ends with an example.
            Self::Asked(_) => self.to_string(),
        }
    }
}

impl From<Error> for NotFenced {
    fn from(error: Error) -> Self {
        Self::General(error)
    }
}

impl fmt::Display for NotFenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(error) | Self::Limit { error, .. } | Self::Asked(error) => error.fmt(f),
        }
    }
}

/// Handles limits that could not be set: a failure, unless `OnError` lets the step run without them, which is then logged.
pub fn bear(key: &JobKey, config: &Config, requests: &UserRequests, errors: Vec<LimitError>) -> Result<(), NotFenced> {
    for (limit, error) in errors {
        if config.on_error.for_limit(limit) == OnError::Fail {
            let asked = requests.asks_for(limit).then(|| requests.options().into());
            return Err(NotFenced::Limit { limit: Some(limit), error, asked });
        }
        let by = OnErrors::softened_by(config.mode);
        log::error!("{key} runs without its {limit} limit ({by}): {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Id;

    #[test]
    fn nobody_gets_rid_of_a_fence_by_asking_for_a_controller_that_is_not_there() {
        let why = |more: &[&str]| {
            NotFenced::from_open_error(Error::new("x"), &UserRequests::default(), more, &["cpu", "memory"])
        };
        assert!(why(&["memory"]).is_bearable(OnError::Warn) && why(&[]).is_bearable(OnError::Warn));
        assert!(!why(&["memory", "io"]).is_bearable(OnError::Warn));
    }

    #[test]
    fn a_user_is_sent_to_the_administrator_only_where_nobody_else_can_help() {
        let mut asked = UserRequests::default();
        asked.step.pids_max = Some(5);
        let config = Config::default();
        let key = JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("0").unwrap() };
        let sentence = |requests: &UserRequests, limit| {
            bear(&key, &config, requests, vec![(limit, Error::new("x"))]).map_err(|why| why.for_user()).unwrap_err()
        };
        assert_eq!(sentence(&asked, Limit::Cpu), "x. Only your administrator can fix that");
        assert_eq!(
            sentence(&asked, Limit::Processes),
            "x. Try it without --pids-max. If that is refused too, only your administrator can fix it"
        );
        assert_eq!(NotFenced::Asked(Error::new("x; for example y")).for_user(), "x; for example y");
        assert_eq!(
            NotFenced::General(Error::new("x")).for_user(),
            sentence(&UserRequests::default(), Limit::Processes)
        );
    }
}
