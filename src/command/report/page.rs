// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's report as one self-contained HTML page: no script, no network, no other file.
//!
//! Every text is made printable and passes through maud, which escapes it: a user may have chosen it.

mod advice;
mod chart;

use jobfence::bytes::binary;
use jobfence::report::account::Exit;
use jobfence::report::card::{duration as in_words, several};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::log::LoggedStep;
use super::runs::JobRun;
use super::total::{FACTS, Total, cpus_in_words, cpus_of, duration, efficiency, name_and_user, said};
use crate::schedulers::slurm::store::summary::Summary;
use crate::series::Series;
use crate::table::printable;

const STYLE: &str = include_str!("page/style.css");

/// The page must not load or run anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const UNKNOWN: &str = "unknown";

/// The page of these runs of a job. `of_log`: how many runs the log has.
pub fn of_runs(job: &str, runs: &[JobRun], of_log: usize, series: &[Series]) -> String {
    let job = printable(job);
    let body = html! {
        @for run in runs { (of_run(&job, run, runs.len() > 1, series)) }
        @if of_log > runs.len() {
            p.note { "The log has " (of_log - runs.len()) " more of this job's runs. The option --all shows them." }
        }
    };
    page(&format!("Job {job}"), &body)
}

/// The page of what Slurm's accounting has about a job.
pub fn of_summary(job: &str, summary: &Summary) -> String {
    let job = printable(job);
    let wall = summary.seconds();
    let parts: Vec<_> = summary.nodes().collect();
    let share = |used: Option<f64>, of: Option<f64>| Some(100.0 * used? / of.filter(|of| *of > 0.0)?);
    let cpus = parts.iter().map(|(_, part)| part.cpus).sum::<Option<u64>>();
    let used: f64 = parts.iter().map(|(_, part)| part.cpu_seconds).sum();
    let granted = cpus.map(|cpus| cpus as f64 * wall as f64);
    let fullest = parts.iter().filter_map(|(node, part)| Some((node, part.memory_peak?, part.memory)));
    let fullest = fullest.max_by_key(|(_, peak, _)| *peak);
    let body = html! {
        header {
            h1 { "Job " (job) }
            p.facts { "From Slurm's accounting. It ran for " (in_words(std::time::Duration::from_secs(wall))) " on "
                (several(parts.len() as u64, "node", "nodes")) "." }
        }
        section aria-labelledby="used" {
            h2 #used { "Used of what was granted" }
            (bars(&[
                Bar { name: "CPU time", share: share(Some(used), granted), text: of(seconds(Some(used)), granted.map(|granted| seconds(Some(granted)))) },
                Bar {
                    name: "Memory",
                    share: fullest.and_then(|(_, peak, most)| share(Some(peak as f64), most.map(|most| most as f64))),
                    text: fullest.map_or_else(|| UNKNOWN.to_owned(), |(node, peak, most)| {
                        format!("{} at the most, on {}", of(binary(peak), most.map(binary)), printable(node))
                    }),
                },
            ]))
        }
        section aria-labelledby="nodes" {
            h2 #nodes { "Nodes" }
            (table("What each node has said", &["Node", "CPU time", "CPUs", "Peak of memory", "Memory granted"], parts.iter().map(|(node, part)| vec![
                Cell::text(printable(node)),
                Cell::with_bar(seconds(Some(part.cpu_seconds)), share(Some(part.cpu_seconds), part.cpus.map(|cpus| cpus as f64 * wall as f64))),
                Cell::number(part.cpus.map(|cpus| cpus.to_string())),
                Cell::with_bar(bytes(part.memory_peak), share(part.memory_peak.map(|peak| peak as f64), part.memory.map(|most| most as f64))),
                Cell::number(part.memory.map(binary)),
            ])))
        }
        section aria-labelledby="unknown" {
            h2 #unknown { "Not known here" }
            p { "Slurm's accounting has one summary of a job. How the job ended, its steps, what went to disks and what "
                "GPUs did are not in it. The usage log of each node has its steps: run " code { "jobfence report " (job) } " there." }
        }
    };
    page(&format!("Job {job}"), &body)
}

fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) " - jobfence" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (body) }
                footer {
                    p { "jobfence " (jobfence::VERSION) ". The kernel has counted these figures in the job's cgroups. "
                        "1 KiB is 1024 bytes. A peak of memory includes page cache." }
                }
            }
        }
    };
    page.into_string()
}

fn of_run(job: &str, run: &JobRun, is_one_of_several: bool, series: &[Series]) -> Markup {
    let total = Total::of(run);
    let (_, user) = name_and_user(run);
    let facts = FACTS.iter().filter_map(|(member, name)| Some(format!("{name} {}", printable(said(run, member)?))));
    let node = said(run, "node").map_or_else(|| UNKNOWN.to_owned(), printable);
    let (verdict, class) = verdict(run, &total);
    let (advice, reserve) = advice::of(run, &total);
    let sentences: Vec<String> = run.steps.iter().flat_map(LoggedStep::sentences).map(printable).collect();
    let unknown = unknown(run, &total);
    html! {
        article {
            header {
                h1 { "Job " (job) @if is_one_of_several { span.run { " from " (printable(run.began())) } } }
                p class={ "verdict " (class) } { (verdict) }
                p.facts { (user) " on node " (node) @for fact in facts { ", " (fact) } }
                p.facts { (printable(run.began())) " to " (printable(run.ended()))
                    @if let Some(wall) = total.wall { ", " (in_words(wall)) } }
            }
            @if !sentences.is_empty() {
                section.happened aria-label="What happened" {
                    @for sentence in &sentences { p { (sentence) } }
                }
            }
            section {
                h2 { "Used of what was granted" }
                (bars(&rows(run, &total)))
            }
            section {
                h2 { "What to ask for next time" }
                @if advice.is_empty() {
                    p { (reserve) }
                } @else {
                    dl.advice { @for (option, reason) in &advice { div { dt { code { (printable(option)) } } dd { (printable(reason)) } } } }
                    p.note { (reserve) }
                }
            }
            section {
                h2 { "Steps" }
                (steps(run))
            }
            @if let Some(tasks) = tasks(run) { section { h2 { "Tasks" } (tasks) } }
            @if let Some(charts) = chart::of(run, series) { section { h2 { "Over time" } (charts) } }
            section {
                h2 { "Memory at the end" }
                (memory(run))
            }
            @if let Some(waits) = waits(run) { section { h2 { "Time spent waiting" } (waits) } }
            @if let Some(disks) = disks(run) { section { h2 { "Disks" } (disks) } }
            section {
                h2 { "Not known here" }
                ul { @for what in &unknown { li { (what) } } }
            }
        }
    }
}

/// How it ended, and the class for its colour.
fn verdict(run: &JobRun, total: &Total) -> (String, &'static str) {
    let kills = total.oom_kills.unwrap_or(0);
    let how = match advice::exit_of(run) {
        _ if kills > 0 => {
            return (format!("{} killed for lack of memory", several(kills, "process was", "processes were")), "bad");
        }
        Some(exit) => exit,
        None => return ("Ended. How is not known.".to_owned(), "open"),
    };
    match how {
        Exit::Status(0) => ("Completed".to_owned(), "good"),
        Exit::Status(status) => (format!("Failed with exit status {status}"), "bad"),
        Exit::Signal(signal) => (format!("Ended by signal {signal}"), "bad"),
    }
}

/// The usage of one resource.
struct Bar {
    name: &'static str,
    /// In percent. `None`: the total is not known.
    share: Option<f64>,
    text: String,
}

fn rows(run: &JobRun, total: &Total) -> Vec<Bar> {
    let most = |member: &str| run.steps.iter().filter_map(|step| step.whole(member)).max();
    let granted = total.cpu_granted();
    let cpus = total.cpus_in_words().map_or_else(String::new, |cpus| format!(", {cpus}"));
    let mut all = vec![
        Bar {
            name: "CPU time",
            share: total.cpu_efficiency(),
            text: match total.cpu {
                Some(cpu) => of(seconds(Some(cpu)), granted.map(|granted| seconds(Some(granted)))) + &cpus,
                None => UNKNOWN.to_owned(),
            },
        },
        Bar {
            name: "Memory",
            share: total.memory_share(),
            text: match total.memory_peak {
                Some(peak) => of(binary(peak), total.memory_limit.map(binary)) + " at the most",
                None => UNKNOWN.to_owned(),
            },
        },
    ];
    let (peak, limit) = (most("processes_peak"), most("processes_limit"));
    let share = peak.zip(limit.filter(|limit| *limit > 0)).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64);
    let text = match peak {
        Some(peak) => of(peak.to_string(), limit.map(|limit| limit.to_string())) + " at the most, threads counted",
        None => UNKNOWN.to_owned(),
    };
    all.push(Bar { name: "Processes", share, text });
    let text = match (total.read, total.written) {
        (None, None) => UNKNOWN.to_owned(),
        (read, written) => format!("{} read, {} written", bytes(read), bytes(written)),
    };
    all.push(Bar { name: "Disks", share: None, text });
    if let Some(throttled) = total.throttled.filter(|throttled| *throttled > 0.0) {
        let sum = |member: &str| run.steps.iter().filter_map(|step| step.whole(member)).reduce(u64::saturating_add);
        let periods = sum("throttled_periods").zip(sum("periods").filter(|periods| *periods > 0));
        all.push(Bar {
            name: "Held back",
            share: periods.map(|(held, all)| 100.0 * held as f64 / all as f64),
            text: format!("{} by the CPU quota; the bar is the share of its periods", seconds(Some(throttled))),
        });
    }
    all
}

/// Rows with bars. The text beside a bar says the same.
fn bars(rows: &[Bar]) -> Markup {
    html! {
        dl.bars {
            @for row in rows {
                div {
                    dt { (row.name) }
                    dd { (bar(row.share)) span.share { (percent(row.share)) } span.of { (row.text) } }
                }
            }
        }
    }
}

fn bar(share: Option<f64>) -> Markup {
    let Some(share) = share else { return html! {} };
    let width = format!("{:.1}", share.clamp(0.0, 100.0));
    html! {
        svg.bar viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect.track width="100" height="10" {}
            rect.fill width=(width) height="10" {}
        }
    }
}

/// A cell of a table.
struct Cell {
    text: String,
    is_number: bool,
    share: Option<f64>,
}

impl Cell {
    fn text(text: String) -> Self {
        Self { text, is_number: false, share: None }
    }

    fn number(text: Option<String>) -> Self {
        Self { text: text.unwrap_or_else(|| UNKNOWN.to_owned()), is_number: true, share: None }
    }

    fn with_bar(text: String, share: Option<f64>) -> Self {
        Self { text, is_number: true, share }
    }
}

/// On a narrow page each cell is a line with the name of its column; the roles then still mark it as a table.
fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Markup {
    html! {
        table role="table" {
            caption { (caption) }
            thead role="rowgroup" { tr role="row" { @for head in heads { th role="columnheader" scope="col" { (head) } } } }
            tbody role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (at, (cell, head)) in row.iter().zip(heads).enumerate() {
                            @if at == 0 {
                                th role="rowheader" scope="row" { (cell.text) }
                            } @else {
                                td.number[cell.is_number].wide[cell.share.is_some()] role="cell" data-label=(head) {
                                    span { (cell.text) @if let Some(share) = cell.share { " (" (percent(Some(share))) ")" } }
                                    (bar(cell.share))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn name(step: &LoggedStep) -> Cell {
    Cell::text(printable(step.text("step").unwrap_or(UNKNOWN)))
}

fn steps(run: &JobRun) -> Markup {
    let heads = ["Step", "Ended", "Time", "CPU time", "Peak of memory", "Processes", "Read", "Written"];
    table(
        "What each step has used of what it was granted",
        &heads,
        run.steps.iter().map(|step| {
            let limit = step.whole("memory_limit_bytes").filter(|limit| *limit > 0);
            let peak = step.whole("memory_peak_bytes");
            let cpus = cpus_of(step).map_or_else(String::new, |cpus| format!(", {}", cpus_in_words(cpus)));
            vec![
                name(step),
                Cell::text(how(&step.0, step.text("end"))),
                Cell::number(step.number("wall_seconds").and_then(duration).map(in_words)),
                Cell::with_bar(seconds(step.number("cpu_seconds")) + &cpus, efficiency(step)),
                Cell::with_bar(
                    of(bytes(peak), limit.map(binary)),
                    peak.zip(limit).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64),
                ),
                Cell::number(step.whole("processes_peak").map(|peak| peak.to_string())),
                Cell::number(step.whole("read_bytes").map(binary)),
                Cell::number(step.whole("written_bytes").map(binary)),
            ]
        }),
    )
}

/// How a step or task ended.
fn how(line: &Value, end: Option<&str>) -> String {
    let how = match (line.get("exit_status").and_then(Value::as_i64), line.get("exit_signal").and_then(Value::as_i64)) {
        (Some(status), _) => format!("exit status {status}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => UNKNOWN.to_owned(),
    };
    match end {
        Some("reaped") => format!("{how}; the janitor found it"),
        _ => how,
    }
}

fn tasks(run: &JobRun) -> Option<Markup> {
    let of_step = |step: &LoggedStep| {
        let tasks = step.0.get("tasks").and_then(Value::as_array).cloned().unwrap_or_default();
        let step = name(step).text;
        tasks.into_iter().map(|task| (step.clone(), LoggedStep(task))).collect::<Vec<_>>()
    };
    let all: Vec<_> = run.steps.iter().flat_map(of_step).collect();
    let heads = ["Task", "Ended", "CPU time", "Peak of memory", "Processes", "Read", "Written"];
    let most = all.iter().filter_map(|(_, task)| task.number("cpu_seconds")).fold(0.0, f64::max);
    let rows = all.iter().map(|(step, task)| {
        let number = task.whole("task").map_or_else(|| UNKNOWN.to_owned(), |number| number.to_string());
        let cpu = task.number("cpu_seconds");
        vec![
            Cell::text(format!("{step}, task {number}")),
            Cell::text(how(&task.0, None)),
            Cell { text: seconds(cpu), is_number: true, share: None },
            Cell::number(task.whole("memory_peak_bytes").map(binary)),
            Cell::number(task.whole("processes_peak").map(|peak| peak.to_string())),
            Cell::number(task.whole("read_bytes").map(binary)),
            Cell::number(task.whole("written_bytes").map(binary)),
        ]
    });
    let least = all.iter().filter_map(|(_, task)| task.number("cpu_seconds")).fold(most, f64::min);
    (!all.is_empty()).then(|| html! {
        (table("What each task with a cgroup of its own has used", &heads, rows))
        @if all.len() > 1 { p.note { "The tasks had between " (seconds(Some(least))) " and " (seconds(Some(most))) " of CPU time." } }
    })
}

fn memory(run: &JobRun) -> Markup {
    let heads = ["Step", "Programs", "Page cache", "Shared", "Kernel", "Swap"];
    table(
        "What the memory of each step consisted of when it ended",
        &heads,
        run.steps.iter().map(|step| {
            let part = |what: &str| Cell::number(step.whole(&format!("memory_{what}_bytes")).map(binary));
            vec![name(step), part("anonymous"), part("file"), part("shared"), part("kernel"), part("swap")]
        }),
    )
}

fn waits(run: &JobRun) -> Option<Markup> {
    let members =
        ["throttled_seconds", "cpu_pressure_some_seconds", "memory_pressure_some_seconds", "io_pressure_some_seconds"];
    let waited = |step: &LoggedStep| members.iter().any(|member| step.number(member).is_some_and(|time| time > 0.0));
    let heads = ["Step", "For the quota", "For a CPU", "For memory", "For disks"];
    run.steps.iter().any(waited).then(|| {
        table(
            "How long at least one process of each step has waited",
            &heads,
            run.steps.iter().map(|step| {
                let times = members.map(|member| Cell::number(step.number(member).and_then(duration).map(in_words)));
                std::iter::once(name(step)).chain(times).collect()
            }),
        )
    })
}

fn disks(run: &JobRun) -> Option<Markup> {
    let of_step = |step: &LoggedStep| {
        let disks = step.0.get("disks").and_then(Value::as_array).cloned().unwrap_or_default();
        let step = name(step).text;
        disks.into_iter().map(|disk| (step.clone(), LoggedStep(disk))).collect::<Vec<_>>()
    };
    let all: Vec<_> = run.steps.iter().flat_map(of_step).collect();
    let heads = ["Step and disk", "Read", "Written", "Reads", "Writes"];
    let rows = all.iter().map(|(step, disk)| {
        let operations = |member: &str| Cell::number(disk.whole(member).map(|count| count.to_string()));
        vec![
            Cell::text(format!("{step}, disk {}", printable(disk.text("disk").unwrap_or(UNKNOWN)))),
            Cell::number(disk.whole("read_bytes").map(binary)),
            Cell::number(disk.whole("written_bytes").map(binary)),
            operations("read_operations"),
            operations("write_operations"),
        ]
    });
    (!all.is_empty()).then(|| table("What went between memory and each disk", &heads, rows))
}

fn unknown(run: &JobRun, total: &Total) -> Vec<String> {
    let nobody_says = |member: &str| run.steps.iter().all(|step| step.0.get(member).is_none_or(Value::is_null));
    let figures = [
        (total.cpu.is_none(), "The CPU time."),
        (total.memory_peak.is_none(), "The peak of memory."),
        (nobody_says("processes_peak"), "The peak of processes."),
        (total.read.is_none(), "What went to disks."),
        (nobody_says("cpu_pressure_some_seconds"), "How long processes waited (pressure)."),
    ];
    let mut all: Vec<String> = figures.iter().filter(|(is_so, _)| *is_so).map(|(_, what)| (*what).to_owned()).collect();
    all.push("What the job did on other nodes, if it had any: each node has a log of its own.".to_owned());
    all.push("What GPUs did.".to_owned());
    all
}

fn of(used: String, granted: Option<String>) -> String {
    match granted {
        Some(granted) => format!("{used} of {granted}"),
        None => used,
    }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), binary)
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.and_then(duration).map_or_else(|| UNKNOWN.to_owned(), in_words)
}

fn percent(share: Option<f64>) -> String {
    share
        .map_or_else(String::new, |share| if share > 999.0 { "over 999 %".to_owned() } else { format!("{share:.1} %") })
}
