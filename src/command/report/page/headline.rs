// SPDX-License-Identifier: GPL-2.0-or-later
//! The first line of the page: whether all is well with a job, in a word, a sign and a colour, and why.

use jobfence::report::account::Exit;
use jobfence::report::card::{duration as in_words, several};
use maud::{Markup, html};

use super::super::runs::JobRun;
use super::super::total::Total;
use super::advice::{Judged, exit_of};

/// The judgement of a job.
#[derive(Debug, PartialEq, Eq)]
pub struct Headline {
    /// The colour's name in the style.
    class: &'static str,
    sign: &'static str,
    word: &'static str,
    text: String,
}

const HOW_IS_UNKNOWN: &str = "how the job ended is not known";

impl Headline {
    /// The headline of a job that ended in an unknown way. `more`: what else can be said.
    pub fn open(more: &str) -> Self {
        Self { class: "open", sign: "?", word: "Ended", text: format!("{HOW_IS_UNKNOWN}.{more}") }
    }

    pub fn from_run(run: &JobRun, total: &Total, judged: &Judged) -> Self {
        let exit = exit_of(run);
        let counted = |count: Option<u64>| count.filter(|count| *count > 0);
        let after = total.wall.map(|wall| format!(" after {}", in_words(wall))).unwrap_or_default();
        let how = match exit {
            Some(Exit::Status(0)) => "the job completed".to_owned(),
            Some(Exit::Status(status)) => format!("the job failed with exit status {status}"),
            Some(Exit::Signal(signal)) => format!("the job was ended by signal {signal}"),
            None => HOW_IS_UNKNOWN.to_owned(),
        };
        let bad = |word, text| Self { class: "bad", sign: "✕", word, text };
        if let Some(kills) = counted(total.usage.oom_kills) {
            let kills = several(kills, "process was", "processes were");
            return bad("Killed", format!("{kills} killed for lack of memory; {how}{after}."));
        }
        let failed = match exit {
            Some(Exit::Status(0)) | None => None,
            Some(Exit::Status(_)) => Some("Failed"),
            Some(Exit::Signal(_)) => Some("Stopped"),
        };
        if let Some(word) = failed {
            return bad(word, format!("{how}{after}."));
        }
        if let Some(refused) = counted(total.usage.forks_refused) {
            let refused = several(refused, "process or thread", "processes or threads");
            return bad("Refused", format!("{refused} could not start because of the limit; {how}{after}."));
        }
        if exit.is_none() {
            return Self::open("");
        }
        let used = used(total.cpu_efficiency(), total.memory_share());
        let text = format!("{how}{after}.{used}");
        if judged.is_wasteful {
            Self { class: "waste", sign: "!", word: "Wasteful", text }
        } else if total.wall.is_none() {
            Self { class: "good", sign: "✓", word: "Completed", text }
        } else if judged.is_short || used.is_empty() {
            Self { class: "good", sign: "✓", word: "Completed", text: format!("{}.{used}", after.trim_start()) }
        } else {
            Self { class: "good", sign: "✓", word: "Fine", text }
        }
    }

    pub fn markup(&self) -> Markup {
        html! { p class={ "verdict " (self.class) } { strong { span aria-hidden="true" { (self.sign) " " } (self.word) } ": " (self.text) } }
    }
}

/// A sentence about the shares of the grant, in percent, as far as they are known.
pub fn used(cpu: Option<f64>, memory: Option<f64>) -> String {
    let shares = [(cpu, "CPU time"), (memory, "memory")].into_iter();
    let shares = shares.filter_map(|(share, of)| Some(format!("{:.0} % of its {of}", share?)));
    let shares: Vec<String> = shares.collect();
    if shares.is_empty() { String::new() } else { format!(" It used {}.", shares.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::runs::runs_of;
    use super::super::advice;
    use super::*;
    use crate::logged::LoggedStep;

    /// The word and the text for a job of an hour with 4 CPUs and 4 GiB, with these members changed.
    fn verdict(changes: &Value) -> (&'static str, String) {
        let mut line = json!({
            "job": "7", "step": "batch", "started": "2026-11-25T03:00:00Z", "ended": "2026-11-25T04:00:00Z",
            "started_unix_seconds": 0, "ended_unix_seconds": 3600, "wall_seconds": 3600, "exit_status": 0,
            "cpus_granted": 4, "cpus_limit": 4, "cpu_seconds": 12_000, "memory_granted_bytes": 4_u64 << 30,
            "memory_limit_bytes": 4_u64 << 30, "memory_peak_bytes": 3_u64 << 30, "oom_kills": 0, "forks_refused": 0,
        });
        for (member, value) in changes.as_object().unwrap() {
            line[member] = value.clone();
        }
        let run = runs_of(vec![LoggedStep::new(line)]).remove(0);
        let total = Total::from_run(&run);
        let found = Headline::from_run(&run, &total, &advice::of(&run, &total));
        (found.word, found.text)
    }

    #[test]
    fn a_job_is_judged_in_a_word() {
        let fine = "the job completed after 1 h 0 min. It used 83 % of its CPU time and 75 % of its memory.";
        assert_eq!(verdict(&json!({})), ("Fine", fine.to_owned()));
        let idle = verdict(&json!({"cpu_seconds": 1000}));
        assert_eq!(idle.0, "Wasteful");
        assert!(idle.1.contains("It used 7 % of its CPU time"), "{idle:?}");
        let killed = verdict(&json!({"oom_kills": 2, "exit_status": null, "exit_signal": 9}));
        let text = "2 processes were killed for lack of memory; the job was ended by signal 9 after 1 h 0 min.";
        assert_eq!(killed, ("Killed", text.to_owned()));
        // A script that does not check how its programs end.
        assert!(verdict(&json!({"oom_kills": 1})).1.ends_with("lack of memory; the job completed after 1 h 0 min."));
        assert_eq!(verdict(&json!({"exit_status": 3})).0, "Failed");
        assert_eq!(verdict(&json!({"exit_status": null, "exit_signal": 15})).0, "Stopped");
        assert_eq!(verdict(&json!({"forks_refused": 1})).0, "Refused");
        let text = "how the job ended is not known.";
        assert_eq!(verdict(&json!({"exit_status": null})), ("Ended", text.to_owned()));
        // A few seconds are no reason for advice, and an unknown figure is not 0.
        let short = json!({"ended_unix_seconds": 9, "wall_seconds": 9, "cpu_seconds": 1, "memory_peak_bytes": null});
        assert_eq!(verdict(&short), ("Completed", "after 9 s. It used 3 % of its CPU time.".to_owned()));
        // The clock was set back meanwhile.
        let backwards = json!({"ended": "2026-11-25T02:00:00Z", "ended_unix_seconds": -5, "wall_seconds": null});
        let (word, text) = verdict(&backwards);
        assert!(word == "Completed" && text.starts_with("the job completed."), "{word}: {text}");
    }
}
