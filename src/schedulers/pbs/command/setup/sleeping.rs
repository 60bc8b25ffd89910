// SPDX-License-Identifier: GPL-2.0-or-later
//! The job that `jobfence setup` tries under OpenPBS.

use std::path::PathBuf;

use crate::check::daemon::SchedulerDaemon;
use crate::schedulers::pbs::node;
use crate::setup::sleeping_job::{JobState, SleepingJob, ask_as};

/// Its commands find OpenPBS by this daemon.
pub struct SleepingChunkJob {
    pub daemon: SchedulerDaemon,
    pub config: Option<PathBuf>,
}

impl SleepingJob for SleepingChunkJob {
    fn config(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    fn submit(&self, user: &str) -> Result<String, String> {
        let node = node::node().map_err(|error| error.to_string())?;
        let select = format!("select=1:ncpus=1:mem=100mb:host={node}");
        let quiet = ["-N", "jobfence-setup", "-o", "/dev/null", "-e", "/dev/null", "-l", &select];
        let argv = [&["qsub"], &quiet[..], &["--", "/bin/sleep", "60"]].concat();
        ask_as(&self.daemon, user, &argv)
    }

    fn state(&self, id: &str) -> JobState {
        state_of(&self.daemon.ask(&["qstat", "-fw", id]).unwrap_or_default())
    }

    fn delete(&self, user: &str, id: &str) {
        let _ = ask_as(&self.daemon, user, &["qdel", id]);
    }
}

/// The state from the attributes that `qstat -f` prints.
fn state_of(said: &str) -> JobState {
    let value = |key: &str| said.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(" = "));
    match value("job_state") {
        Some("R") => JobState::Runs,
        Some("H") => JobState::Stuck(value("comment").unwrap_or("it is held").to_owned()),
        _ => JobState::Waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qstat_says_what_becomes_of_a_job() {
        let of = |state: &str| {
            state_of(&format!(
                "Job Id: 17.node1\n    Job_Name = jobfence-setup\n    job_state = {state}\n    comment = x y\n"
            ))
        };
        assert!(matches!(of("Q"), JobState::Waits));
        assert!(matches!(of("R"), JobState::Runs));
        assert!(matches!(of("H"), JobState::Stuck(why) if why == "x y"));
        assert!(matches!(state_of(""), JobState::Waits));
    }
}
