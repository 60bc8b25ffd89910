// SPDX-License-Identifier: GPL-2.0-or-later
//! The card of a batch step in the shared object, called as by slurmstepd. Its text for a real job is tested in `suite/card.py`.

mod common;
mod stand_in;

use std::sync::atomic::{AtomicU32, Ordering};

use stand_in::StandIn;

/// `SLURM_BATCH_SCRIPT`.
const BATCH: &str = "step=4294967291";

/// What the user is told by a step whose task cannot fork, so that there is something to report.
fn card(step: &str, environment: &[(&str, &str)]) -> Option<String> {
    static CARDS: AtomicU32 = AtomicU32::new(0);
    let number = CARDS.fetch_add(1, Ordering::Relaxed);
    let base = common::Base::new(&format!("jobfence-test-{}-card-{number}", std::process::id()));
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
    let titles = [" on ", " (", ": "].map(|behind| format!("\ntold: jobfence: job 1{behind}"));
    let behind = titles.iter().find_map(|title| said.split_once(title));
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

/// It is the user's text, so none of it may stop a step.
#[test]
fn a_jobs_name_is_on_its_card_and_stops_no_step() {
    let long = "n".repeat(2000);
    for (name, shown) in [("solve \u{1b}[1m", "solve ?[1m) on n1 "), (&long, "n1 ")] {
        let Some(said) = card(BATCH, &[("SLURM_JOB_NAME", name), ("SLURMD_NODENAME", "n1")]) else { return };
        assert!(said.starts_with(shown), "{said}");
    }
}
