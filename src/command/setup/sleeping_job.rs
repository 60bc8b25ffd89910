// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that sleeps, of a scheduler whose commands do not wait for one.

use std::path::PathBuf;

use crate::check::daemon::SchedulerDaemon;

/// What a scheduler says of a job.
pub enum JobState {
    Waits,
    Runs,
    /// It will not run, and why.
    Stuck(String),
}

/// The job, and how it is handled.
pub trait SleepingJob {
    /// Submits it as this user. Returns its id, by which jobfence knows it, too.
    fn submit(&self, user: &str) -> Result<String, String>;
    fn state(&self, id: &str) -> JobState;
    fn delete(&self, user: &str, id: &str);
    /// The configuration that the scheduler names for it, if it names one.
    fn config(&self) -> Option<PathBuf> {
        None
    }
}

/// Asks a program of the daemon's scheduler as a user.
pub fn ask_as(daemon: &SchedulerDaemon, user: &str, argv: &[&str]) -> Result<String, String> {
    let program = argv.first().copied().unwrap_or_default();
    let words = daemon.words(argv).ok_or_else(|| format!("there is no {program}"))?;
    Ok(daemon.ask(&as_user(user, &words))?.trim().to_owned())
}

/// The words that run these as a user, where the user can be.
pub fn as_user<'a>(user: &'a str, words: &'a [String]) -> Vec<&'a str> {
    let before = ["runuser", "-u", user, "--", "sh", "-c", r#"cd / && exec "$0" "$@""#];
    before.into_iter().chain(words.iter().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_as_the_user() {
        let words = ["qsub".to_owned(), "a b".to_owned()];
        assert_eq!(as_user("alice", &words)[..4], ["runuser", "-u", "alice", "--"]);
        assert_eq!(as_user("alice", &words)[7..], ["qsub", "a b"]);
    }
}
