// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's report as one self-contained HTML page: no script, no network, no other file.
//!
//! Every text is made printable and passes through maud, which escapes it: a user may have chosen it.

mod advice;
mod chart;
mod headline;
mod more;
mod parts;
mod steps;
mod stored;

use jobfence::bytes::binary;
use jobfence::report::card::duration as in_words;
use maud::{Markup, html};

use super::runs::JobRun;
use super::total::{FACTS, Total, name_and_user, said};
use crate::energy;
use crate::gpu::JobGpus;
use crate::local_time::local_span;
use crate::logged::LoggedStep;
use crate::series::Series;
use crate::table::printable;
use advice::Judged;
use chart::StepCourses;
use headline::Headline;
use more::{DiskNames, FoldedPart};
use parts::{Bar, UNKNOWN, bars, bytes, of};
pub(super) use parts::{Cell, page, table};
pub use stored::of_stored;

/// The page of these runs of a job. `of_log`: how many runs the log has. `site_text`: what the site tells all users.
pub fn of_runs(job: &str, runs: &[JobRun], of_log: usize, series: &[Series], site_text: Option<&str>) -> String {
    let job = printable(job);
    let body = html! {
        @for run in runs { (of_run(&job, run, runs.len() > 1, series)) }
        @if of_log > runs.len() {
            p.note { "The log has " (of_log - runs.len()) " more of this job's runs. The option --all shows them." }
        }
        @if let Some(line) = site_text { p.site { (with_links(&printable(line))) } }
    };
    page(&format!("Job {job}"), &body)
}

fn of_run(job: &str, run: &JobRun, is_one_of_several: bool, series: &[Series]) -> Markup {
    let total = Total::from_run(run);
    let judged = advice::of(run, &total);
    let Judged { advice, reserve, .. } = &judged;
    let sentences: Vec<String> = run.steps.iter().flat_map(|step| &step.sentences).map(|one| printable(one)).collect();
    let ordered = steps::in_order(run);
    let courses: Vec<_> = ordered.iter().map(|step| StepCourses::from_step(step, series)).collect();
    let names = DiskNames::from_node(said(run, |line| line.node.as_ref()));
    let folded = [
        ("memory at the end", more::memory(&ordered)),
        ("time spent waiting", more::waits(&ordered)),
        ("disks", more::disks(&ordered, &names)),
    ];
    let zero: Vec<&str> =
        folded.iter().filter(|(_, part)| matches!(part, FoldedPart::Zero)).map(|(what, _)| *what).collect();
    let unknown = unknown(&total, &folded[0].1, run.gpus.as_ref());
    html! {
        article {
            (header(job, run, &total, is_one_of_several, &Headline::from_run(run, &total, &judged)))
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
                    dl.advice { @for (option, reason) in advice { div { dt { code { (printable(option)) } } dd { (printable(reason)) } } } }
                    p.note { (reserve) }
                }
            }
            @if let Some(charts) = chart::large(&courses) { section { h2 { "Over time" } (charts) } }
            section {
                h2 { "Steps" }
                (steps::steps(&ordered, &courses))
            }
            @if let Some(gpus) = &run.gpus { section { h2 { "GPUs" } (more::gpus(gpus)) } }
            @if let Some(tasks) = steps::tasks(&ordered) { (tasks) }
            @for part in folded.iter().filter_map(|(_, part)| part.markup()) { (part) }
            section {
                h2 { "Not known here" }
                ul { @for what in &unknown { li { (what) } } }
            }
            @if !zero.is_empty() {
                p.note { "Left out, since all that is known of it is zero: " (zero.join(", ")) ". "
                    code { "jobfence report " (job) " --json" } " has all figures." }
            }
        }
    }
}

/// Which job it is, when it ran, and whether all is well with it.
fn header(job: &str, run: &JobRun, total: &Total, is_one_of_several: bool, headline: &Headline) -> Markup {
    let (_, user) = name_and_user(run);
    let facts = FACTS.iter().filter_map(|(text, name)| Some(format!("{name} {}", printable(said(run, *text)?))));
    let node = said(run, |line| line.node.as_ref()).map_or_else(|| UNKNOWN.to_owned(), printable);
    let local = local_span(run.began(), run.ended());
    let utc = format!("{} to {}", printable(run.began()), printable(run.ended()));
    let wall = total.wall.map_or_else(String::new, |wall| format!(", {}", in_words(wall)));
    html! {
        header {
            h1 {
                "Job " (job)
                @if let Some(name) = job_name(run) { " " span.name { (name) } }
                @if is_one_of_several { span.run { " from " (printable(run.began())) } }
            }
            (headline.markup())
            p.facts { (user) " on node " (node) @for fact in facts { ", " (fact) } }
            @if let Some(local) = &local {
                p.facts { (local) (wall) }
                p.note { "In UTC: " (utc) ". The local time is that of the host where this page was made." }
            } @else {
                p.facts { (utc) (wall) }
            }
        }
    }
}

/// The text with its addresses as links. It is the administrator's, and no user's.
fn with_links(text: &str) -> Markup {
    let is_address = |word: &str| word.starts_with("https://") || word.starts_with("http://");
    html! {
        @for (at, word) in text.split(' ').enumerate() {
            @if at > 0 { " " }
            @let inner = word.trim_start_matches(['(', '<']);
            @let address = inner.trim_end_matches(['.', ',', ';', ':', ')', '>']);
            @if is_address(address) {
                (word.get(..word.len() - inner.len()).unwrap_or_default())
                a href=(address) rel="noreferrer" { (address) }
                (inner.get(address.len()..).unwrap_or_default())
            } @else { (word) }
        }
    }
}

/// The name that the job's user gave it, if the log has one.
fn job_name(run: &JobRun) -> Option<String> {
    let name = |step: &LoggedStep| {
        let name = step.json.get("job_name")?.as_str().filter(|name| !name.is_empty())?;
        Some(printable(name))
    };
    // Another step can have a name of its own.
    let of_script = run.steps.iter().find(|step| step.step.as_deref() == Some("batch"));
    of_script.and_then(name).or_else(|| run.steps.iter().find_map(name))
}

fn rows(run: &JobRun, total: &Total) -> Vec<Bar> {
    let usage = &total.usage;
    let happened = |count: Option<u64>| count.is_some_and(|count| count > 0);
    let bar = |name, share, text| Bar { name, share, text, is_bad: false };
    let cpus = total.cpus_in_words().map_or_else(String::new, |cpus| format!(", {cpus}"));
    let text = match usage.cpu {
        Some(cpu) => of(in_words(cpu), total.cpu_granted().map(in_words)) + &cpus,
        None => UNKNOWN.to_owned(),
    };
    let mut all = vec![bar("CPU time", total.cpu_efficiency(), text)];
    let text = match usage.memory_peak {
        Some(peak) => of(binary(peak), total.memory_limit.map(binary)) + " at the most",
        None => UNKNOWN.to_owned(),
    };
    all.push(Bar { is_bad: happened(usage.oom_kills), ..bar("Memory", total.memory_share(), text) });
    let limit = run.steps.iter().filter_map(|step| step.processes_limit).max();
    let peak = usage.processes_peak;
    let share = peak.zip(limit.filter(|limit| *limit > 0)).map(|(peak, limit)| 100.0 * peak as f64 / limit as f64);
    let text = match peak {
        Some(peak) => of(peak.to_string(), limit.map(|limit| limit.to_string())) + " at the most, threads counted",
        None => UNKNOWN.to_owned(),
    };
    all.push(Bar { is_bad: happened(usage.forks_refused), ..bar("Processes", share, text) });
    match (usage.read, usage.written) {
        (None, None) => all.push(bar("Disks", None, UNKNOWN.to_owned())),
        (Some(0), Some(0)) => {}
        (read, written) => {
            all.push(bar("Disks", None, format!("{} read, {} written", bytes(read), bytes(written))));
        }
    }
    if let Some((read, written)) = usage.moved_beside_disks() {
        let text = format!("{} read, {} written: disks, network, cache and pipes", binary(read), binary(written));
        all.push(bar("All files", None, text));
    }
    if let Some(throttled) = usage.throttled.filter(|throttled| !throttled.is_zero()) {
        let periods = usage.throttled_periods.zip(usage.periods.filter(|periods| *periods > 0));
        let text = format!("{} by the CPU quota; the bar is the share of its periods", in_words(throttled));
        all.push(bar("Held back", periods.map(|(held, all)| 100.0 * held as f64 / all as f64), text));
    }
    let energy = run.energy.map(|energy| energy.in_words(usage.cpu));
    let carbon =
        run.carbon_grams.map(|carbon| energy::grams(carbon) + if run.gpus.is_some() { " with its GPUs" } else { "" });
    let known: Vec<String> = energy.into_iter().chain(carbon).collect();
    if !known.is_empty() {
        all.push(bar("Energy", None, known.join("; ")));
    }
    all
}

fn unknown(total: &Total, memory: &FoldedPart, gpus: Option<&JobGpus>) -> Vec<String> {
    let usage = &total.usage;
    let figures = [
        (usage.cpu.is_none(), "The CPU time."),
        (usage.memory_peak.is_none(), "The peak of memory."),
        (matches!(memory, FoldedPart::Unknown), "What the memory consisted of at the end."),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::runs::runs_of;
    use super::*;

    #[test]
    fn names_of_users_and_the_sites_line_are_text() {
        let step = LoggedStep::new(json!({
            "job": "7", "step": "0", "started": "2026-11-25T03:00:00Z", "ended": "2026-11-25T04:00:00Z",
            "job_name": "<i>\u{202e}solve", "read_bytes": 0, "written_bytes": 0, "disks": [], "memory_anonymous_bytes": 0,
            "rchar_bytes": 12_u64 << 30, "wchar_bytes": 3_u64 << 30,
        }));
        let unnamed = LoggedStep::new(json!({"job": "7", "step": "0", "ended": "2026-11-25T04:00:00Z"}));
        let site = "Help: https://hpc.example/?a=\"b <b>us</b>\u{1b}";
        let page = of_runs("7", &runs_of(vec![step]), 1, &[], Some(site));
        for part in [
            "<span class=\"name\">&lt;i&gt;?solve</span>",
            "Help: <a href=\"https://hpc.example/?a=&quot;b\" rel=\"noreferrer\">https://hpc.example/?a=&quot;b</a> &lt;b&gt;us&lt;/b&gt;?",
            "Left out, since all that is known of it is zero: memory at the end, disks.",
            "CPU time</dt><dd><span class=\"share\"></span><span class=\"of\">unknown</span>",
            "data-label=\"Read of all files\"><span class=\"\">12.0 GiB</span>",
            "All files</dt><dd><span class=\"share\"></span><span class=\"of\">12.0 GiB read, 3.0 GiB written: disks, network, cache and pipes<",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        // A step can begin in the same second as the script, and have a name of its own.
        let named = |step: &str, ended: &str, name: &str| {
            let times =
                json!({"job": "7", "step": step, "started": "2026-11-25T03:00:00Z", "ended": ended, "job_name": name});
            LoggedStep::new(times)
        };
        let both = vec![named("0", "2026-11-25T03:30:00Z", "part"), named("batch", "2026-11-25T04:00:00Z", "whole")];
        let page = of_runs("7", &runs_of(both), 1, &[], Some("See (https://hpc.example/7)."));
        assert!(page.contains("<span class=\"name\">whole</span>"), "{page}");
        assert!(
            page.contains("See (<a href=\"https://hpc.example/7\" rel=\"noreferrer\">https://hpc.example/7</a>)."),
            "{page}"
        );
        let unsaid = of_runs("7", &runs_of(vec![unnamed]), 1, &[], None);
        assert!(!unsaid.contains("class=\"site\"") && !unsaid.contains("class=\"name\""), "{unsaid}");
    }
}
