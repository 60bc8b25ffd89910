// SPDX-License-Identifier: GPL-2.0-or-later
//! The log lines about processes that were put into their jobs.

use jobfence::error::Result;

/// Logs which processes were put into their jobs, and which were not. A failure that stays, or that several share, is logged once.
pub fn report<T>(fetched: Result<Vec<Result<T>>>, said: &mut Vec<String>, say: impl Fn(&T), complain: impl Fn(&str)) {
    let mut failed: Vec<String> = Vec::new();
    match fetched {
        Ok(all) => all.iter().for_each(|one| match one {
            Ok(done) => say(done),
            Err(error) => failed.extend(Some(error.to_string()).filter(|error| !failed.contains(error))),
        }),
        Err(error) => log::debug!("cannot look for processes that have left their jobs: {error}"),
    }
    failed.iter().filter(|error| !said.contains(error)).for_each(|error| complain(error));
    *said = failed;
}
