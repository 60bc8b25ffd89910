// SPDX-License-Identifier: GPL-2.0-or-later
//! What the user of a job in the usage log can request next time: the card's advice, from the figures of all steps.

use std::time::Duration;

use jobfence::cgroup::usage::Usage;
use jobfence::job::Cpus;
use jobfence::report::account::Exit;
use jobfence::report::card::{Advice, Figures, NEUTRAL, several};
use jobfence::schedulers::words_of;
use serde_json::Value;

use super::super::log::LoggedStep;
use super::super::runs::{JobRun, ended};
use super::super::total::{Total, duration, said};

/// How the job ended: as its script did, or else as its last step.
pub fn exit_of(run: &JobRun) -> Option<Exit> {
    let exit = |step: &LoggedStep| {
        let number = |member: &str| i32::try_from(step.0.get(member).and_then(Value::as_i64)?).ok();
        number("exit_status").map(Exit::Status).or_else(|| number("exit_signal").map(Exit::Signal))
    };
    let script = run.steps.iter().find(|step| step.text("step") == Some("batch"));
    match script {
        Some(script) => exit(script),
        None => run.steps.iter().filter(|step| exit(step).is_some()).max_by_key(|step| ended(step)).and_then(exit),
    }
}

fn thousandths(cpus: f64) -> Cpus {
    Cpus::from_thousandths((cpus * 1000.0) as u64)
}

/// The options with their reasons, and a remark about them.
pub fn of(run: &JobRun, total: &Total) -> (Vec<(String, String)>, &'static str) {
    let sum = |member: &str| run.steps.iter().filter_map(|step| step.whole(member)).reduce(u64::saturating_add);
    let most = |member: &str| run.steps.iter().filter_map(|step| step.whole(member)).max();
    // Unknown if one step's line does not have it.
    let each = |member: &str| run.steps.iter().map(|step| step.whole(member)).sum::<Option<u64>>();
    let seconds = |seconds: Option<f64>| seconds.and_then(duration);
    let usage = Usage {
        cpu: seconds(total.cpu),
        periods: sum("periods"),
        throttled_periods: sum("throttled_periods"),
        throttled: seconds(total.throttled),
        memory_peak: total.memory_peak,
        swap_peak: each("swap_peak_bytes"),
        memory_high_events: sum("memory_high_events"),
        memory_max_events: sum("memory_max_events"),
        oom_kills: total.oom_kills,
        forks_refused: sum("forks_refused"),
        ..Usage::default()
    };
    let words = said(run, "holder").and_then(|holder| holder.strip_prefix("scheduler ")).map_or(&NEUTRAL, words_of);
    let figures = Figures {
        job: "",
        node: None,
        is_array_task: false,
        exit: exit_of(run),
        wall: total.wall,
        time_limit: None,
        cpus: total.cpus_granted.or(total.cpus).map(thousandths),
        cpus_limit: total.cpus.map(thousandths),
        memory: most("memory_granted_bytes"),
        memory_limit: total.memory_limit,
        is_without_swap: false,
        processes: None,
        has_daemons: false,
        disks: &[],
        usage: &usage,
        tasks: None,
        nodes: Some(1),
        others: None,
        has_gpus: false,
        sentences: &[],
        is_utf8: false,
        words,
    };
    let Advice { memory, cpus, time } = figures.advice();
    let memory = memory.map(|(bytes, reason)| ((words.memory)(bytes), reason));
    let cpus = cpus.map(|(count, reason)| (format!("{} ({})", several(count, "CPU", "CPUs"), words.all_cpus), reason));
    let time = time.zip(words.time).map(|((time, reason), word)| (word(time), reason));
    let all: Vec<_> = [memory, cpus, time].into_iter().flatten().collect();
    let is_short = total.wall.is_none_or(|wall| wall < Duration::from_secs(60));
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
    (all, why)
}
