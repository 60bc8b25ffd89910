// SPDX-License-Identifier: GPL-2.0-or-later
//! The job that `jobfence setup` tries under HTCondor.

use crate::check::daemon::SchedulerDaemon;
use crate::setup::sleeping_job::{JobState, SleepingJob, as_user, ask_as};

/// Its commands find HTCondor by this daemon.
pub struct SleepingSlotJob(pub SchedulerDaemon);

impl SleepingJob for SleepingSlotJob {
    fn submit(&self, user: &str) -> Result<String, String> {
        let host = self.0.ask(&["condor_config_val", "FULL_HOSTNAME"])?;
        let requirements = format!("requirements = TARGET.Machine =?= \"{}\"", host.trim());
        let lines = ["executable = /bin/sleep", "arguments = 60", "transfer_executable = false", "request_memory = 50"];
        let lines = [&lines[..], &[requirements.as_str(), "queue"]].concat();
        let script = r#"printf '%s\n' "$@" | "$0" -terse -"#;
        let words = self.0.script("condor_submit", script, &lines).ok_or("there is no condor_submit")?;
        let said = self.0.ask(&as_user(user, &words))?;
        said.split_whitespace().next().map(str::to_owned).ok_or_else(|| "condor_submit has said no id".to_owned())
    }

    fn state(&self, id: &str) -> JobState {
        let said = self.0.ask(&["condor_q", id, "-af", "JobStatus", "HoldReason"]).unwrap_or_default();
        state_of(&said)
    }

    fn delete(&self, user: &str, id: &str) {
        let _ = ask_as(&self.0, user, &["condor_rm", id]);
    }
}

/// The state from the `JobStatus` and the `HoldReason` that condor_q prints.
fn state_of(said: &str) -> JobState {
    match said.trim().split_once(' ').unwrap_or((said.trim(), "")) {
        ("2", _) => JobState::Runs,
        ("5", why) => JobState::Stuck(why.to_owned()),
        _ => JobState::Waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_on_hold_says_why() {
        assert!(matches!(state_of("1 undefined\n"), JobState::Waits));
        assert!(matches!(state_of("2 undefined\n"), JobState::Runs));
        assert!(matches!(state_of("5 cannot be fenced: x\n"), JobState::Stuck(why) if why == "cannot be fenced: x"));
        assert!(matches!(state_of(""), JobState::Waits));
    }
}
