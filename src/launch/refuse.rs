// SPDX-License-Identifier: GPL-2.0-or-later
//! Why something is not fenced, whether it goes on all the same, and what its user can do about it.

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
    /// What `OnError` says in general decides.
    General(Error),
    /// A limit without which it may not run, whatever is said in general.
    Limit {
        /// Which; `None` where there are no directories to limit.
        limit: Option<Limit>,
        /// Why it is not there.
        error: Error,
        /// The options by which the job's user has asked for something for which it may be.
        asked: Option<Box<str>>,
    },
    /// What its user asked for is not understood.
    Asked(Error),
}

const NOT_YOURS: &str = "Only your administrator can fix that";
const OTHERWISE: &str = "If that is refused too, only your administrator can fix it";

impl NotFenced {
    /// Why there are no directories. Where the user has asked for what needs controllers that the site does not (`more` beside
    /// `ours`), those may be the reason: a user does not get rid of a fence by asking for something.
    pub fn of_open(error: Error, requests: &UserRequests, more: &[&str], ours: &[&str]) -> Self {
        if more.iter().all(|controller| ours.contains(controller)) {
            Self::General(error)
        } else {
            Self::Limit { limit: None, error, asked: Some(requests.options().into()) }
        }
    }

    /// Whether it goes on without a fence.
    pub fn is_bearable(&self, general: OnError) -> bool {
        matches!(self, Self::General(_)) && general == OnError::Warn
    }

    /// With what the job's user can do about it, or that only the administrator can do something.
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

/// Limits that could not be set: a failure unless `OnError` lets the step run without, which the log says then.
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
        let why =
            |more: &[&str]| NotFenced::of_open(Error::new("x"), &UserRequests::default(), more, &["cpu", "memory"]);
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
