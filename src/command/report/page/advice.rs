// SPDX-License-Identifier: GPL-2.0-or-later
//! What the user of a job in the usage log can request next time: the card's advice, from the figures of all steps.

use std::time::Duration;

use jobfence::figures::Usage;
use jobfence::report::account::Exit;
use jobfence::report::card::{Advice, Figures, NEUTRAL, several};
use jobfence::schedulers::words_of;

use super::super::runs::{JobRun, ended};
use super::super::total::{Total, said};

/// How the job ended: as its script did, or else as its last step.
pub fn exit_of(run: &JobRun) -> Option<Exit> {
    match run.steps.iter().find(|step| step.step.as_deref() == Some("batch")) {
        Some(script) => script.exit,
        None => run.steps.iter().filter(|step| step.exit.is_some()).max_by_key(|step| ended(step))?.exit,
    }
}

/// What the card would say about a job.
pub struct Judged {
    /// The options with their reasons.
    pub advice: Vec<(String, String)>,
    /// A remark about them, or why there are none.
    pub reserve: &'static str,
    pub is_wasteful: bool,
    /// Whether it was too short to say what it needs.
    pub is_short: bool,
}

/// Judges a job by the figures of all steps.
pub fn of(run: &JobRun, total: &Total) -> Judged {
    // Unknown if one step's line does not have it.
    let swap_peak = run.steps.iter().map(|step| step.usage.swap_peak).sum::<Option<u64>>();
    let usage = Usage { swap_peak, ..total.usage.clone() };
    let words = said(run, |line| line.holder.as_ref())
        .and_then(|holder| holder.strip_prefix("scheduler "))
        .map_or(&NEUTRAL, words_of);
    let figures = Figures {
        job: "",
        name: None,
        node: None,
        is_array_task: false,
        exit: exit_of(run),
        wall: total.wall,
        time_limit: None,
        cpus: total.cpus_granted.or(total.cpus),
        cpus_limit: total.cpus,
        memory: run.steps.iter().filter_map(|step| step.memory_granted_bytes).max(),
        memory_limit: total.memory_limit,
        is_without_swap: false,
        processes: None,
        has_daemons: false,
        disks: &[],
        usage: &usage,
        tasks: None,
        nodes: Some(1),
        others: None,
        sentences: &[],
        noted: "",
        is_utf8: false,
        words,
    };
    let Advice { memory, cpus, time } = figures.advice();
    let memory = memory.map(|(bytes, reason)| ((words.memory)(bytes), reason));
    let cpus = cpus.map(|(count, reason)| (format!("{} ({})", several(count, "CPU", "CPUs"), words.all_cpus), reason));
    let time = time.zip(words.time).map(|((time, reason), word)| (word(time), reason));
    let all: Vec<_> = [memory, cpus, time].into_iter().flatten().collect();
    let is_short = total.wall.is_some_and(|wall| wall < Duration::from_secs(60));
    let why = if !all.is_empty() {
        "This holds if the job ran on this node alone."
    } else if exit_of(run).is_none() {
        "No advice: how the job ended is not known."
    } else if exit_of(run).is_some_and(|exit| !exit.is_success()) {
        "No advice: a job that did not end well says little about what it needs."
    } else if is_short {
        "No advice: the job was too short."
    } else {
        "No advice: the job used what was granted to it, or the log does not say enough of it."
    };
    Judged { is_wasteful: figures.is_wasteful(), advice: all, reserve: why, is_short }
}
