// SPDX-License-Identifier: GPL-2.0-or-later
//! The job that `jobfence setup` tries under Grid Engine.

use crate::check::daemon::SchedulerDaemon;
use crate::setup::sleeping_job::{JobState, SleepingJob, ask_as};

/// Its commands find Grid Engine by this daemon, whose host bears this name.
pub struct SleepingQueueJob(pub SchedulerDaemon, pub String);

impl SleepingJob for SleepingQueueJob {
    fn submit(&self, user: &str) -> Result<String, String> {
        let place = format!("hostname={}", self.1);
        let quiet = ["-terse", "-b", "y", "-N", "jobfence-setup", "-o", "/dev/null", "-e", "/dev/null"];
        let argv = [&["qsub"], &quiet[..], &["-l", &place, "/bin/sleep", "60"]].concat();
        ask_as(&self.0, user, &argv)
    }

    fn state(&self, id: &str) -> JobState {
        state_of(&self.0.ask(&["qstat", "-u", "*"]).unwrap_or_default(), id)
    }

    fn delete(&self, user: &str, id: &str) {
        let _ = ask_as(&self.0, user, &["qdel", id]);
    }
}

/// The state from the rows of qstat. Their first column is the id, and the fifth one is the state.
fn state_of(rows: &str, id: &str) -> JobState {
    let rows = rows.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row.first() == Some(&id));
    match row.and_then(|row| row.get(4).copied()).unwrap_or_default() {
        state if state.contains('E') => JobState::Stuck(format!("it is in the state {state}: qstat -j {id} says why")),
        state if state.contains('r') => JobState::Runs,
        _ => JobState::Waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qstat_says_what_becomes_of_a_job() {
        let of = |state: &str| {
            let head = "job-ID  prior   name       user         state submit/start at     queue                          slots ja-task-ID\n---\n";
            let row =
                format!("      7 0.55500 jobfence-s alice        {state}     11/28/2026 19:09:46 all.q@node1    1\n");
            state_of(&format!("{head}{row}"), "7")
        };
        assert!(matches!(of("qw"), JobState::Waits));
        assert!(matches!(of("r "), JobState::Runs));
        assert!(matches!(of("Eqw"), JobState::Stuck(_)));
        assert!(matches!(state_of("", "7"), JobState::Waits));
    }
}
