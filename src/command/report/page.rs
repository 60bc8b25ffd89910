// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's report as one self-contained HTML page: no script, no network, no other file.
//!
//! Every text is made printable and passes through maud, which escapes it: a user may have chosen it.

mod advice;
mod chart;

use std::time::Duration;

use jobfence::bytes::binary;
use jobfence::figures::DiskIo;
use jobfence::report::account::{Exit, REAPED};
use jobfence::report::card::{duration as in_words, several};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::runs::JobRun;
use super::total::{FACTS, Total, cpus_of, efficiency, name_and_user, said};
use crate::gpu::JobGpus;
use crate::logged::LoggedStep;
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
    let used = parts.iter().map(|(_, part)| part.cpu_seconds).sum::<Option<f64>>();
    let granted = cpus.map(|cpus| cpus as f64 * wall as f64);
    let fullest = parts.iter().filter_map(|(node, part)| Some((node, part.memory_peak?, part.memory)));
    let fullest = fullest.max_by_key(|(_, peak, _)| *peak);
    let body = html! {
        header {
            h1 { "Job " (job) }
            p.facts { "From Slurm's accounting. It ran for " (in_words(Duration::from_secs(wall))) " on "
                (several(parts.len() as u64, "node", "nodes")) "." }
        }
        section aria-labelledby="used" {
            h2 #used { "Used of what was granted" }
            (bars(&[
                Bar { name: "CPU time", share: share(used, granted), text: used.map_or_else(|| UNKNOWN.to_owned(), |used| of(seconds(used), granted.map(seconds))) },
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
                Cell::with_bar(part.cpu_seconds.map_or_else(|| UNKNOWN.to_owned(), seconds), share(part.cpu_seconds, part.cpus.map(|cpus| cpus as f64 * wall as f64))),
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

pub(super) fn page(title: &str, body: &Markup) -> String {
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
    let total = Total::from_run(run);
    let (_, user) = name_and_user(run);
    let facts = FACTS.iter().filter_map(|(text, name)| Some(format!("{name} {}", printable(said(run, *text)?))));
    let node = said(run, |line| line.node.as_ref()).map_or_else(|| UNKNOWN.to_owned(), printable);
    let (verdict, class) = verdict(run, &total);
    let (advice, reserve) = advice::of(run, &total);
    let sentences: Vec<String> = run.steps.iter().flat_map(|step| &step.sentences).map(|one| printable(one)).collect();
    let unknown = unknown(&total, run.gpus.as_ref());
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
            @if let Some(gpus) = &run.gpus { section { h2 { "GPUs" } (of_gpus(gpus)) } }
            section {
                h2 { "Not known here" }
                ul { @for what in &unknown { li { (what) } } }
            }
        }
    }
}

/// How it ended, and the class for its colour.
fn verdict(run: &JobRun, total: &Total) -> (String, &'static str) {
    let kills = total.usage.oom_kills.unwrap_or(0);
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
    let usage = &total.usage;
    let cpus = total.cpus_in_words().map_or_else(String::new, |cpus| format!(", {cpus}"));
    let mut all = vec![
        Bar {
            name: "CPU time",
            share: total.cpu_efficiency(),
            text: match usage.cpu {
                Some(cpu) => of(in_words(cpu), total.cpu_granted().map(in_words)) + &cpus,
                None => UNKNOWN.to_owned(),
            },
        },
        Bar {
            name: "Memory",
            share: total.memory_share(),
            text: match usage.memory_peak {
                Some(peak) => of(binary(peak), total.memory_limit.map(binary)) + " at the most",
                None => UNKNOWN.to_owned(),
            },
        },
    ];
    let limit = run.steps.iter().filter_map(|step| step.processes_limit).max();
    let peak = usage.processes_peak;
    let share = peak.zip(limit.filter(|limit| *limit > 0)).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64);
    let text = match peak {
        Some(peak) => of(peak.to_string(), limit.map(|limit| limit.to_string())) + " at the most, threads counted",
        None => UNKNOWN.to_owned(),
    };
    all.push(Bar { name: "Processes", share, text });
    let text = match (usage.read, usage.written) {
        (None, None) => UNKNOWN.to_owned(),
        (read, written) => format!("{} read, {} written", bytes(read), bytes(written)),
    };
    all.push(Bar { name: "Disks", share: None, text });
    if let Some(throttled) = usage.throttled.filter(|throttled| !throttled.is_zero()) {
        let periods = usage.throttled_periods.zip(usage.periods.filter(|periods| *periods > 0));
        all.push(Bar {
            name: "Held back",
            share: periods.map(|(held, all)| 100.0 * held as f64 / all as f64),
            text: format!("{} by the CPU quota; the bar is the share of its periods", in_words(throttled)),
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

pub(super) fn bar(share: Option<f64>) -> Markup {
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
pub(super) struct Cell {
    text: String,
    is_number: bool,
    share: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: String) -> Self {
        Self { text, is_number: false, share: None }
    }

    pub(super) fn number(text: Option<String>) -> Self {
        Self { text: text.unwrap_or_else(|| UNKNOWN.to_owned()), is_number: true, share: None }
    }

    pub(super) fn with_bar(text: String, share: Option<f64>) -> Self {
        Self { text, is_number: true, share }
    }
}

/// On a narrow page each cell is a line with the name of its column; the roles then still mark it as a table.
pub(super) fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Markup {
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
    Cell::text(printable(step.step.as_deref().unwrap_or(UNKNOWN)))
}

fn steps(run: &JobRun) -> Markup {
    let heads = ["Step", "Ended", "Time", "CPU time", "Peak of memory", "Processes", "Read", "Written"];
    table(
        "What each step has used of what it was granted",
        &heads,
        run.steps.iter().map(|step| {
            let usage = &step.usage;
            let limit = step.memory_limit_bytes.filter(|limit| *limit > 0);
            let peak = usage.memory_peak;
            let cpus = cpus_of(step).map_or_else(String::new, |cpus| format!(", {}", cpus.in_words()));
            vec![
                name(step),
                Cell::text(how(step.exit, step.end.as_deref())),
                Cell::number(step.wall_seconds.map(in_words)),
                Cell::with_bar(time(usage.cpu) + &cpus, efficiency(step)),
                Cell::with_bar(
                    of(bytes(peak), limit.map(binary)),
                    peak.zip(limit).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64),
                ),
                Cell::number(usage.processes_peak.map(|peak| peak.to_string())),
                Cell::number(usage.read.map(binary)),
                Cell::number(usage.written.map(binary)),
            ]
        }),
    )
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

fn tasks(run: &JobRun) -> Option<Markup> {
    let all: Vec<_> = run.steps.iter().flat_map(|step| step.tasks.iter().map(move |task| (step, task))).collect();
    let heads = ["Task", "Ended", "CPU time", "Peak of memory", "Processes", "Read", "Written"];
    let rows = all.iter().map(|(step, task)| {
        let usage = &task.usage;
        vec![
            Cell::text(format!("{}, task {}", name(step).text, task.number)),
            Cell::text(how(task.exit, None)),
            Cell { text: time(usage.cpu), is_number: true, share: None },
            Cell::number(usage.memory_peak.map(binary)),
            Cell::number(usage.processes_peak.map(|peak| peak.to_string())),
            Cell::number(usage.read.map(binary)),
            Cell::number(usage.written.map(binary)),
        ]
    });
    let known = || all.iter().filter_map(|(_, task)| task.usage.cpu);
    let (least, most) = (known().min().unwrap_or_default(), known().max().unwrap_or_default());
    (!all.is_empty()).then(|| html! {
        (table("What each task with a cgroup of its own has used", &heads, rows))
        @if all.len() > 1 { p.note { "The tasks had between " (in_words(least)) " and " (in_words(most)) " of CPU time." } }
    })
}

fn memory(run: &JobRun) -> Markup {
    let heads = ["Step", "Programs", "Page cache", "Shared", "Kernel", "Swap"];
    table(
        "What the memory of each step consisted of when it ended",
        &heads,
        run.steps.iter().map(|step| {
            let of = &step.usage;
            let parts = [of.memory_anonymous, of.memory_file, of.memory_shared, of.memory_kernel, of.memory_swap];
            std::iter::once(name(step)).chain(parts.map(|part| Cell::number(part.map(binary)))).collect()
        }),
    )
}

fn waits(run: &JobRun) -> Option<Markup> {
    let times = |step: &LoggedStep| {
        let of = &step.usage;
        [of.throttled, of.cpu_pressure_some, of.memory_pressure_some, of.io_pressure_some]
    };
    let waited = |step: &LoggedStep| times(step).into_iter().flatten().any(|time| !time.is_zero());
    let heads = ["Step", "For the quota", "For a CPU", "For memory", "For disks"];
    run.steps.iter().any(waited).then(|| {
        table(
            "How long at least one process of each step has waited",
            &heads,
            run.steps.iter().map(|step| {
                let times = times(step).map(|time| Cell::number(time.map(in_words)));
                std::iter::once(name(step)).chain(times).collect()
            }),
        )
    })
}

fn disks(run: &JobRun) -> Option<Markup> {
    let all = run.steps.iter().flat_map(|step| step.usage.disks.iter().flatten().map(move |disk| (step, disk)));
    let heads = ["Step and disk", "Read", "Written", "Reads", "Writes"];
    let rows: Vec<_> = all
        .map(|(step, DiskIo { disk: (major, minor), read, written, reads, writes })| {
            vec![
                Cell::text(format!("{}, disk {major}:{minor}", name(step).text)),
                Cell::number(Some(binary(*read))),
                Cell::number(Some(binary(*written))),
                Cell::number(Some(reads.to_string())),
                Cell::number(Some(writes.to_string())),
            ]
        })
        .collect();
    (!rows.is_empty()).then(|| table("What went between memory and each disk", &heads, rows))
}

fn of_gpus(gpus: &JobGpus) -> Markup {
    let heads = ["GPU", "Busy", "By", "Memory at the most", "Energy in Wh", "Slowed"];
    let rows = gpus.gpus.iter().map(|gpu| {
        let share = gpu.percent();
        let by = share.map_or(String::new(), |_| gpu.source_in_words().to_owned());
        let total = gpu.memory_total.map(binary);
        let energy = gpu.energy.map(|joules| format!("{:.1}", joules / 3600.0));
        let busy = share.map_or_else(|| UNKNOWN.to_owned(), |share| percent(Some(share)));
        vec![
            Cell::text(gpu.name()),
            Cell::with_bar(busy, share),
            Cell::text(by),
            Cell::number(Some(of(bytes(gpu.memory_peak), total))),
            Cell::number(energy),
            Cell::number(gpu.slowed.map(seconds)),
        ]
    });
    table("What the job's GPUs did", &heads, rows)
}

fn unknown(total: &Total, gpus: Option<&JobGpus>) -> Vec<String> {
    let usage = &total.usage;
    let figures = [
        (usage.cpu.is_none(), "The CPU time."),
        (usage.memory_peak.is_none(), "The peak of memory."),
        (usage.processes_peak.is_none(), "The peak of processes."),
        (usage.read.is_none(), "What went to disks."),
        (usage.cpu_pressure_some.is_none(), "How long processes waited (pressure)."),
    ];
    let mut all: Vec<String> = figures.iter().filter(|(is_so, _)| *is_so).map(|(_, what)| (*what).to_owned()).collect();
    all.push("What the job did on other nodes, if it had any: each node has a log of its own.".to_owned());
    match gpus {
        None => all.push("What GPUs did.".to_owned()),
        Some(gpus) if gpus.percent().is_none() => {
            all.push("What all GPUs did: other jobs used one, too, or its driver does not tell.".to_owned());
        }
        Some(_) => {}
    }
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

fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| UNKNOWN.to_owned(), in_words)
}

fn seconds(seconds: f64) -> String {
    time(Duration::try_from_secs_f64(seconds).ok())
}

fn percent(share: Option<f64>) -> String {
    share
        .map_or_else(String::new, |share| if share > 999.0 { "over 999 %".to_owned() } else { format!("{share:.1} %") })
}
