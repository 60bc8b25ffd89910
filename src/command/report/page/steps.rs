// SPDX-License-Identifier: GPL-2.0-or-later
//! The steps of a job in one table, with a small curve each, and its tasks.

use std::cmp::Ordering;

use jobfence::bytes::binary;
use jobfence::report::account::{Exit, REAPED};
use jobfence::report::card::duration as in_words;
use maud::{Markup, html};

use super::super::runs::JobRun;
use super::super::total::{cpus_of, efficiency};
use super::chart::{self, StepCourses};
use super::parts::{Cell, UNKNOWN, bytes, folded, of, step_name, table, time};
use crate::logged::LoggedStep;

/// The steps that Slurm makes itself, in the order in which sacct lists them, before all others.
const FIRST: [&str; 3] = ["batch", "interactive", "extern"];

/// The steps in the order in which readers look for them.
pub fn in_order(run: &JobRun) -> Vec<&LoggedStep> {
    let place = |step: &LoggedStep| {
        let name = step.step.as_deref().unwrap_or_default();
        FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len())
    };
    let mut all: Vec<&LoggedStep> = run.steps.iter().collect();
    all.sort_by(|one, other| {
        let names = || natural(one.step.as_deref().unwrap_or_default(), other.step.as_deref().unwrap_or_default());
        place(one).cmp(&place(other)).then_with(names)
    });
    all
}

/// Compares names as people do: numbers in them by their values.
fn natural(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    loop {
        let (digits, others) = (digits_of(left), digits_of(right));
        if !digits.is_empty() && !others.is_empty() {
            let value = |digits: &str| digits.trim_start_matches('0').to_owned();
            let (value, its) = (value(digits), value(others));
            let by_value = value.len().cmp(&its.len()).then_with(|| value.cmp(&its));
            if by_value != Ordering::Equal {
                return by_value;
            }
            (left, right) = (left.strip_prefix(digits).unwrap_or(left), right.strip_prefix(others).unwrap_or(right));
            continue;
        }
        let (mut these, mut those) = (left.chars(), right.chars());
        match (these.next(), those.next()) {
            // Names that differ in leading zeros alone are not equal.
            (None, None) => return one.cmp(other),
            (first, second) if first != second => return first.cmp(&second),
            _ => (left, right) = (these.as_str(), those.as_str()),
        }
    }
}

fn digits_of(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// A column that says something: not all of its values are zero, and not all unknown.
fn is_used(steps: &[&LoggedStep], of: fn(&LoggedStep) -> Option<u64>) -> bool {
    steps.iter().any(|step| of(step).is_some_and(|value| value > 0))
}

fn limit_of(step: &LoggedStep) -> Option<u64> {
    step.memory_limit_bytes.filter(|limit| *limit > 0)
}

/// What all of them have, if it is the same.
fn same<T: Copy + PartialEq>(steps: &[&LoggedStep], of: impl Fn(&LoggedStep) -> Option<T>) -> Option<T> {
    let first = steps.first().and_then(|step| of(step));
    first.filter(|_| steps.iter().all(|step| of(step) == first))
}

/// The table of the steps, which are in this order.
pub fn steps(steps: &[&LoggedStep], courses: &[Option<StepCourses<'_>>]) -> Markup {
    type BytesColumn = (&'static str, fn(&LoggedStep) -> Option<u64>);
    const DISKS: [BytesColumn; 2] = [("Read", |step| step.usage.read), ("Written", |step| step.usage.written)];
    const ALL_FILES: [BytesColumn; 2] =
        [("Read of all files", |step| step.usage.rchar), ("Written to all files", |step| step.usage.wchar)];
    let mut moved: Vec<BytesColumn> = DISKS.into_iter().filter(|(_, of)| is_used(steps, *of)).collect();
    // As in the head: only where disks have seen little of it.
    if steps.iter().any(|step| step.usage.moved_beside_disks().is_some()) {
        moved.extend(ALL_FILES);
    }
    let mut heads = vec!["Step", "Ended", "Time", "CPU time", "Peak of memory", "Processes"];
    heads.extend(moved.iter().map(|(head, _)| *head));
    // What is the same in each row is said once.
    let cpus = same(steps, cpus_of);
    let memory = same(steps, limit_of);
    let granted = [cpus.map(|cpus| cpus.in_words()), memory.map(binary)].into_iter().flatten().collect::<Vec<_>>();
    let granted = if granted.is_empty() { "what it was granted".to_owned() } else { granted.join(" and ") };
    let has_curves = chart::are_many(courses);
    let row = |(step, courses): (&&LoggedStep, &Option<StepCourses<'_>>)| {
        let usage = &step.usage;
        let (limit, peak) = (limit_of(step), usage.memory_peak);
        let courses = courses.as_ref().filter(|_| has_curves);
        let of_cpus = cpus_of(step).filter(|_| cpus.is_none());
        let of_cpus = of_cpus.map_or_else(String::new, |cpus| format!(", {}", cpus.in_words()));
        let kills = usage.oom_kills.filter(|kills| *kills > 0);
        let ended = how(step.exit, step.end.as_deref());
        let ended = ended + &kills.map_or_else(String::new, |kills| format!("; {kills} killed for lack of memory"));
        let has_failed = kills.is_some() || step.exit.is_some_and(|exit| !exit.is_success());
        let mut cells = vec![
            Cell::text(step_name(step)),
            Cell::text(ended).bad_if(has_failed),
            Cell::number(step.wall_seconds.map(in_words)),
            Cell::with_bar(time(usage.cpu) + &of_cpus, efficiency(step))
                .with_drawing(courses.and_then(chart::small_cpus)),
            Cell::with_bar(
                of(bytes(peak), limit.filter(|_| memory.is_none()).map(binary)),
                peak.zip(limit).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64),
            )
            .with_drawing(courses.and_then(chart::small_memory))
            .bad_if(kills.is_some()),
            Cell::number(usage.processes_peak.map(|peak| peak.to_string())),
        ];
        cells.extend(moved.iter().map(|(_, of)| Cell::number(of(step).map(binary))));
        cells
    };
    html! {
        (table(&format!("What each step has used of {granted}"), &heads, steps.iter().zip(courses).map(row)))
        @if has_curves {
            p.note { "A curve is over the time of its step, up to what the step could use (the dashed line). It is red where the "
                "limit was reached, and a red line through it is a kill." }
        }
    }
}

/// How a step or task ended.
fn how(exit: Option<Exit>, end: Option<&str>) -> String {
    let how = match exit {
        Some(Exit::Status(status)) => format!("exit status {status}"),
        Some(Exit::Signal(signal)) => format!("signal {signal}"),
        None => UNKNOWN.to_owned(),
    };
    match end {
        Some(REAPED) => format!("{how}; the janitor found it"),
        _ => how,
    }
}

/// The table of all tasks, if there are any.
pub fn tasks(steps: &[&LoggedStep]) -> Option<Markup> {
    let all: Vec<_> = steps.iter().flat_map(|step| step.tasks.iter().map(move |task| (step, task))).collect();
    let heads = ["Task", "Ended", "CPU time", "Peak of memory", "Processes", "Read", "Written"];
    let rows = all.iter().map(|(step, task)| {
        let usage = &task.usage;
        vec![
            Cell::text(format!("{}, task {}", step_name(step), task.number)),
            Cell::text(how(task.exit, None)).bad_if(task.exit.is_some_and(|exit| !exit.is_success())),
            Cell::number(usage.cpu.map(in_words)),
            Cell::number(usage.memory_peak.map(binary)),
            Cell::number(usage.processes_peak.map(|peak| peak.to_string())),
            Cell::number(usage.read.map(binary)),
            Cell::number(usage.written.map(binary)),
        ]
    });
    let known = || all.iter().filter_map(|(_, task)| task.usage.cpu);
    let between = known().min().zip(known().max()).filter(|_| all.len() > 1);
    let between =
        between.map(|(least, most)| format!(", between {} and {} of CPU time", in_words(least), in_words(most)));
    let in_short = format!("{}{}", all.len(), between.unwrap_or_default());
    let body = || table("What each task with a cgroup of its own has used", &heads, rows);
    (!all.is_empty()).then(|| folded("Tasks", &in_short, &body()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::runs::runs_of;
    use super::*;

    #[test]
    fn steps_are_in_the_order_of_their_numbers() {
        let order = |names: &[&str]| {
            let steps = names.iter().map(|name| LoggedStep::new(json!({"step": name}))).collect();
            in_order(&runs_of(steps).remove(0)).iter().map(|step| step_name(step)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(&["0", "10", "extern", "2", "11", "batch", "1", "3"]), "batch extern 0 1 2 3 10 11");
        assert_eq!(order(&["node10.2", "interactive", "node9.10", "node9.9"]), "interactive node9.9 node9.10 node10.2");
        // More digits than a number has, and zeros before it.
        let long = "9".repeat(40);
        assert_eq!(order(&[&long, "07", "7", "8", ""]), format!(" 07 7 8 {long}"));
    }
}
