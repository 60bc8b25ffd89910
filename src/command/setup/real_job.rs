// SPDX-License-Identifier: GPL-2.0-or-later
//! Waits for the fence of a job that sleeps, and then deletes the job.

use std::time::{Duration, Instant};

use jobfence::config::Mode;
use nix::unistd::{Uid, User};

use super::plan::JobTried;
use super::sleeping_job::{JobState, SleepingJob};
use crate::configured::Configured;
use crate::living::LivingView;

/// How often to look.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a job may run before its fence is seen: HTCondor says that a job runs before it has started anything.
const GRACE: Duration = Duration::from_secs(30);
/// How long a deleted job may take to end.
const END: Duration = Duration::from_secs(30);

/// Submits the job, and waits for its fence until the deadline.
pub fn try_one(job: &dyn SleepingJob, deadline: Instant) -> JobTried {
    let configured = Configured { config: job.config(), overrides: Vec::new() };
    if configured.load().is_ok_and(|loaded| loaded.config.mode == Mode::Off) {
        return JobTried::NotRun("Mode=off".to_owned());
    }
    // Most schedulers run no job as root.
    let Some(user) = login() else {
        return JobTried::NotRun(
            "no user has logged in, as whom one could be submitted: submit one by hand".to_owned(),
        );
    };
    let id = match job.submit(&user) {
        Ok(id) => id,
        Err(why) => return JobTried::NotRun(format!("{user} cannot submit one: {}", why.replace('\n', "; "))),
    };
    let tried = wait(job, &id, &configured, deadline);
    job.delete(&user, &id);
    // Nothing else would end the fence soon, if jobfence is taken out of the scheduler next.
    let late = Instant::now() + END;
    while fence(&configured, &id).is_some() && Instant::now() < late {
        std::thread::sleep(PAUSE);
    }
    tried
}

fn wait(job: &dyn SleepingJob, id: &str, configured: &Configured, deadline: Instant) -> JobTried {
    let mut since = None;
    loop {
        // The state is asked first: if the job begins in between, its fence is found.
        let state = job.state(id);
        if let Some(path) = fence(configured, id) {
            return JobTried::Fenced(format!("job {id} ran in {path}"));
        }
        match state {
            JobState::Stuck(why) => return JobTried::Unfenced(format!("job {id} does not run: {why}")),
            JobState::Runs if since.get_or_insert_with(Instant::now).elapsed() > GRACE => {
                return JobTried::Unfenced(format!("job {id} ran without a fence: see the log of the node's daemon"));
            }
            JobState::Runs | JobState::Waits => {}
        }
        if Instant::now() + PAUSE > deadline {
            return JobTried::NotRun(format!("job {id} did not begin in time, and was deleted"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The directory of a job's fence.
fn fence(configured: &Configured, id: &str) -> Option<String> {
    let mut view = LivingView::new(configured, None, None).ok()?;
    view.rows().0.into_iter().find(|row| row.job == id)?.path
}

/// The user who has logged in, as the kernel notes it. With sudo(8), it is the user and not root.
fn login() -> Option<String> {
    let uid = std::fs::read_to_string("/proc/self/loginuid").ok()?.trim().parse::<u32>().ok()?;
    let uid = Some(uid).filter(|uid| ![0, u32::MAX].contains(uid))?;
    Some(User::from_uid(Uid::from_raw(uid)).ok()??.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SleepingStub(fn() -> JobState);

    impl SleepingJob for SleepingStub {
        fn submit(&self, _: &str) -> Result<String, String> {
            Ok("jobfence-none.1".to_owned())
        }

        fn state(&self, _: &str) -> JobState {
            self.0()
        }

        fn delete(&self, _: &str, _: &str) {}
    }

    #[test]
    fn a_job_without_a_fence_is_not_tried() {
        struct OffStub(std::path::PathBuf);
        impl SleepingJob for OffStub {
            fn submit(&self, _: &str) -> Result<String, String> {
                panic!("it is submitted")
            }

            fn state(&self, _: &str) -> JobState {
                JobState::Waits
            }

            fn delete(&self, _: &str, _: &str) {}

            fn config(&self) -> Option<std::path::PathBuf> {
                Some(self.0.clone())
            }
        }
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("jobfence.conf");
        std::fs::write(&file, "Mode=off\n").unwrap();
        assert!(matches!(try_one(&OffStub(file), Instant::now()), JobTried::NotRun(why) if why == "Mode=off"));
    }

    #[test]
    fn a_job_that_does_not_begin_says_nothing_about_jobfence() {
        let configured = Configured { config: None, overrides: Vec::new() };
        let of = |state| wait(&SleepingStub(state), "jobfence-none.1", &configured, Instant::now() + 2 * PAUSE);
        assert!(matches!(of(|| JobState::Waits), JobTried::NotRun(why) if why.contains("did not begin in time")));
        assert!(matches!(of(|| JobState::Runs), JobTried::NotRun(_)));
        assert!(
            matches!(of(|| JobState::Stuck("held".to_owned())), JobTried::Unfenced(why) if why.ends_with(": held"))
        );
    }
}
