// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that sleeps, for a scheduler whose commands do not wait for a job.

use std::path::PathBuf;

use crate::check::daemon::SchedulerDaemon;

/// What a scheduler says of a job.
pub enum JobState {
    Waits,
    Runs,
    /// The job will not run, for this reason.
    Stuck(String),
}

/// A job, and how its scheduler handles it.
pub trait SleepingJob {
    /// Submits the job as this user. Returns the id that jobfence knows it by.
    fn submit(&self, user: &str) -> Result<String, String>;
    fn state(&self, id: &str) -> JobState;
    fn delete(&self, user: &str, id: &str);
    /// The configuration that the scheduler names for the job, if it names one.
    fn config(&self) -> Option<PathBuf> {
        None
    }
}

/// Runs a program of the daemon's scheduler as a user, and returns what it prints.
pub fn ask_as(daemon: &SchedulerDaemon, user: &str, argv: &[&str]) -> Result<String, String> {
    let program = argv.first().copied().unwrap_or_default();
    let words = daemon.words(argv).ok_or_else(|| format!("there is no {program}"))?;
    Ok(daemon.ask(&as_user(user, &words))?.trim().to_owned())
}

/// A command that runs these words as a user, in a directory that the user can enter.
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
