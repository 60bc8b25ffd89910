// SPDX-License-Identifier: GPL-2.0-or-later
//! The card of a batch step in the shared object, called as by slurmstepd. Its text for a real job is tested in `suite/card.py`.

mod common;
mod stand_in;

use stand_in::StandIn;

/// `SLURM_BATCH_SCRIPT`.
const BATCH: &str = "step=4294967291";

/// What the user is told by a step whose task cannot fork, so that there is something to report.
fn card(step: &str, environment: &[(&str, &str)]) -> Option<String> {
    let base = common::Base::new(&format!("jobfence-test-{}-card", std::process::id()));
    let temp = tempfile::tempdir().unwrap();
    let stand_in = StandIn::or_skip(temp.path())?;
    let mut arguments = stand_in::arguments(temp.path(), &base, "# all defaults\n");
    arguments.extend(["MaxProcesses=1", "UsageCard=always"].map(str::to_owned));
    let words = [step.to_owned(), "straggler".to_owned()];
    let mut command = stand_in.command(&words, &arguments);
    command.env("LC_ALL", "C").envs(environment.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let behind =
        said.split_once("\ntold: jobfence: job 1 on ").or_else(|| said.split_once("\ntold: jobfence: job 1: "));
    Some(behind.map(|(_, card)| card.split("\ninfo: ").next().unwrap_or_default().to_owned()).unwrap_or_default())
}

/// Slurm writes the job's times only into the environment of a task's own process.
#[test]
fn the_task_says_what_the_time_limit_is() {
    let times =
        [("SLURM_JOB_START_TIME", "1700000000"), ("SLURM_JOB_END_TIME", "1700000600"), ("SLURMD_NODENAME", "n1")];
    let Some(said) = card(BATCH, &times) else { return };
    assert!(said.contains(" of 10 min 0 s\n"), "{said}");
    assert!(said.contains("could not start because of the limit of 1 at once."), "{said}");
    // A year means no limit, and an invalid time is ignored.
    for end in ["1731536000", "1699999999", "x", ""] {
        let times = [times[0], ("SLURM_JOB_END_TIME", end), times[2]];
        let said = card(BATCH, &times).unwrap();
        assert!(!said.contains("  time "), "{end:?}: {said}");
    }
    assert_eq!(card("step=0", &times).as_deref(), Some(""));
}
