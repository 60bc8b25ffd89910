// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's report, for people and as JSON. docs/usage.md and jobfence(8) list the members.

use std::time::Duration;

use jobfence::bytes::mebibytes;
use jobfence::job::Id;
use serde_json::{Value, json};

use super::runs::{JobRun, ended};
use super::total::{FACTS, Total, cache_share, cpus_of, decimal, efficiency, exit, name_and_user, said};
use crate::energy;
use crate::gpu::{self, JobGpus};
use crate::living::{LivingRow, rows_in_lines, user_name};
use crate::logged::LoggedStep;
use crate::table::{self, Column, NONE, clock, lines, mib, numbers, printable, texts, time};

/// The name of the printed object's format. A program that reads it checks it first.
pub const SCHEMA: &str = "jobfence-report-1";

/// The first columns for each step; if the page is too narrow for all, the others follow in a second table.
const OF_CPU: [Column; 7] = [
    numbers("WALL"),
    numbers("CPU-TIME"),
    numbers("CPUS"),
    numbers("EFF%"),
    numbers("THROTTLED"),
    texts("EXIT"),
    texts("END"),
];
const OF_MEMORY: [Column; 6] = [
    numbers("PEAK/MiB"),
    numbers("MAX/MiB"),
    numbers("CACHE%"),
    numbers("PROCS"),
    numbers("READ/MiB"),
    numbers("WRITTEN/MiB"),
];

/// A row for each step.
fn of_steps(steps: &[LoggedStep], width: usize) -> Vec<String> {
    let rows = |parts: &[fn(&LoggedStep) -> Vec<String>]| -> Vec<Vec<String>> {
        let name = |step: &LoggedStep| table::cut(&printable(step.step.as_deref().unwrap_or(NONE)), 16);
        let row = |step| std::iter::once(name(step)).chain(parts.iter().flat_map(|part| part(step))).collect();
        steps.iter().map(row).collect()
    };
    let columns = |of: &[Column]| [&[texts("STEP")], of].concat();
    let whole = columns(&[OF_CPU.as_slice(), &OF_MEMORY].concat());
    let whole = lines(&whole, &rows(&[cpu_cells, memory_cells]), None);
    if whole.iter().all(|line| line.chars().count() <= width) {
        return whole;
    }
    let mut parts = lines(&columns(&OF_CPU), &rows(&[cpu_cells]), Some(width));
    parts.push(String::new());
    parts.extend(lines(&columns(&OF_MEMORY), &rows(&[memory_cells]), Some(width)));
    parts
}

fn cpu_cells(step: &LoggedStep) -> Vec<String> {
    vec![
        time(step.wall_seconds),
        time(step.usage.cpu),
        cpus_of(step).map_or_else(|| NONE.to_owned(), |cpus| cpus.to_string()),
        in_percent(efficiency(step)),
        time(step.usage.throttled),
        exit(step),
        printable(step.end.as_deref().unwrap_or(NONE)),
    ]
}

fn memory_cells(step: &LoggedStep) -> Vec<String> {
    vec![
        mib(step.usage.memory_peak),
        mib(step.memory_limit_bytes),
        in_percent(cache_share(step)),
        table::number(step.usage.processes_peak),
        mib(step.usage.read),
        mib(step.usage.written),
    ]
}

fn in_percent(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.1}"))
}

/// The reports of these runs, and the live fences. `of_log`: how many runs the log has.
pub fn in_words(runs: &[JobRun], of_log: usize, living: &[LivingRow], width: usize, is_mail: bool) -> String {
    let mut pieces: Vec<String> = Vec::new();
    if !living.is_empty() {
        let whose = if living.len() == 1 {
            "1 fence of the job lives".to_owned()
        } else {
            format!("{} fences of the job live", living.len())
        };
        let mut all = vec![format!("The job runs here: {whose} now.")];
        all.extend(rows_in_lines(living, width));
        pieces.push(all.join("\n") + "\n");
    }
    for run in runs {
        let other = of_log.saturating_sub(runs.len());
        // Two schedds of HTCondor can each have a job of the same number.
        let note = match (other, run.is_beside_another) {
            (0, _) => None,
            (1, false) => Some("The log has an earlier run of this id, too: --all shows both.".to_owned()),
            (1, true) => Some("The log has another run of this id at the same time: --all shows both.".to_owned()),
            (_, false) => Some(format!("The log has {other} earlier runs of this id, too: --all shows them.")),
            (_, true) => {
                Some(format!("The log has {other} more runs of this id, some at the same time: --all shows them."))
            }
        };
        let head = if is_mail { mail_head(run) } else { head(run) };
        let mut all = head;
        all.push(String::new());
        all.extend(of_steps(&run.steps, width));
        let sentences: Vec<&str> = run.steps.iter().flat_map(|step| &step.sentences).map(String::as_str).collect();
        if !sentences.is_empty() {
            all.push(String::new());
            all.extend(sentences.iter().flat_map(|sentence| wrapped(&printable(sentence), width)));
        }
        if let Some(note) = note {
            all.extend([String::new(), note]);
        }
        pieces.push(all.join("\n") + "\n");
    }
    pieces.join("\n")
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!(" ({share:.1} %)"))
}

fn head(run: &JobRun) -> Vec<String> {
    let total = Total::from_run(run);
    let (job, user) = name_and_user(run);
    let mut lines = vec![format!("job {job} of {user}")];
    let mut line = |head: &str, text: String| lines.push(format!("  {head:<9} {text}"));
    let facts = FACTS.iter().filter_map(|(text, name)| Some(format!("{name} {}", printable(said(run, *text)?))));
    let facts: Vec<String> = facts.collect();
    if let Some(node) = said(run, |line| line.node.as_ref()) {
        line("node", printable(node));
    }
    if !facts.is_empty() {
        line("of", facts.join(", "));
    }
    let wall = total.wall.map_or_else(String::new, |wall| format!(", {}", clock(wall)));
    line("time", format!("{} to {}{wall}", printable(run.began()), printable(run.ended())));
    let granted = total.cpu_granted().map(|granted| format!(" of {}", time(Some(granted))));
    let cpus = total.cpus_in_words().map_or_else(String::new, |cpus| format!(", {cpus}"));
    let cpu = time(total.usage.cpu);
    line("CPU time", format!("{cpu}{}{}{cpus}", granted.unwrap_or_default(), percent(total.cpu_efficiency())));
    if let Some(throttled) = total.usage.throttled.filter(|throttled| !throttled.is_zero()) {
        line("throttled", time(Some(throttled)));
    }
    let limit = total.memory_limit.map(|limit| format!(" of {}", mebibytes(limit))).unwrap_or_default();
    let peak = total.usage.memory_peak.map_or_else(|| NONE.to_owned(), mebibytes);
    line("memory", format!("{peak}{limit}{} at the most", percent(total.memory_share())));
    if let Some(most) = most_lent(run) {
        line("lent", format!("{} beyond its limit at the most (MemoryPool)", mebibytes(most)));
    }
    if let Some(kills) = total.usage.oom_kills.filter(|kills| *kills > 0) {
        line("killed", format!("{kills} for lack of memory"));
    }
    if let Some(gpus) = &run.gpus {
        let [busy, memory] = gpu::of_all(gpus);
        line("GPUs", busy);
        line("", memory);
        gpus.held_idle().into_iter().for_each(|idle| line("", idle));
    }
    if let Some(energy) = run.energy {
        line("energy", energy.in_words(total.usage.cpu));
    }
    if let Some(carbon) = run.carbon_grams {
        line("carbon", energy::grams(carbon));
    }
    if let (Some(read), Some(written)) = (total.usage.read, total.usage.written) {
        let unwritten = total.usage.memory_unwritten.map(|bytes| format!(", {} yet to be written", mebibytes(bytes)));
        line(
            "I/O",
            format!("read {}, written {}{}", mebibytes(read), mebibytes(written), unwritten.unwrap_or_default()),
        );
    }
    if let (Some(read), Some(written)) = (total.usage.rchar, total.usage.wchar) {
        let (read, written) = (mebibytes(read), mebibytes(written));
        line("all files", format!("read {read}, written {written}: disks, network, cache, pipes"));
    }
    lines
}

/// The most bytes that the job was lent beyond its memory limit, if any.
fn most_lent(run: &JobRun) -> Option<u64> {
    run.steps.iter().filter_map(|step| step.job_memory_lent_peak_bytes).max().filter(|most| *most > 0)
}

/// In the words of Slurm's seff, which many sites mail.
fn mail_head(run: &JobRun) -> Vec<String> {
    let total = Total::from_run(run);
    let (job, user) = name_and_user(run);
    let last = run.steps.iter().find(|step| step.step.as_deref() == Some("batch"));
    let last = last.or_else(|| run.steps.iter().max_by_key(|step| ended(step)));
    let clock_of = |seconds: Option<Duration>| {
        let whole = seconds.unwrap_or_default().as_secs();
        let (days, hours) = (whole / 86_400, whole / 3600 % 24);
        let days = if days > 0 { format!("{days}-") } else { String::new() };
        format!("{days}{hours:02}:{:02}:{:02}", whole / 60 % 60, whole % 60)
    };
    let mut lines = vec![format!("Job ID: {job}"), format!("User: {user}")];
    lines.extend(said(run, |line| line.node.as_ref()).map(|node| format!("Node: {}", printable(node))));
    if let Some(last) = last {
        lines.push(format!("Exit of step {}: {}", printable(last.step.as_deref().unwrap_or(NONE)), exit(last)));
    }
    lines.extend(
        total.cpus_in_words().map(|cpus| format!("CPUs: {}", cpus.trim_end_matches(" CPUs").trim_end_matches(" CPU"))),
    );
    lines.push(format!("CPU Utilized: {}", clock_of(total.usage.cpu)));
    if let (Some(share), granted) = (total.cpu_efficiency(), total.cpu_granted()) {
        lines.push(format!("CPU Efficiency: {share:.2}% of {} core-walltime", clock_of(granted)));
    }
    lines.push(format!("Job Wall-clock time: {}", clock_of(total.wall)));
    if let Some(gpus) = &run.gpus {
        let [busy, memory] = gpu::of_all(gpus);
        lines.extend([format!("GPUs: {busy}"), format!("GPU Memory Utilized: {memory}")]);
    }
    lines.push(format!("Memory Utilized: {}", total.usage.memory_peak.map_or_else(|| NONE.to_owned(), mebibytes)));
    if let (Some(share), Some(limit)) = (total.memory_share(), total.memory_limit) {
        lines.push(format!("Memory Efficiency: {share:.2}% of {}", mebibytes(limit)));
    }
    lines
}

/// Wraps a sentence into lines.
fn wrapped(sentence: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + part.chars().count() <= width => {
                line.push(' ');
                line.push_str(part);
            }
            Some(_) => lines.push(format!("    {part}")),
            None => lines.push(part.to_owned()),
        }
    }
    lines
}

/// The reports as one object.
pub fn json(job: &Id, runs: &[JobRun], of_log: usize, living: &[LivingRow]) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let run = |run: &JobRun| {
        let total = Total::from_run(run);
        let steps: Vec<&Value> = run.steps.iter().map(|step| &step.json).collect();
        let uid = run.steps.iter().find_map(|step| step.uid);
        json!({
            "started": run.began(),
            "ended": run.ended(),
            "wall_seconds": seconds(total.wall),
            "uid": uid,
            "user": said(run, |line| line.user.as_ref()).map(str::to_owned).or_else(|| Some(user_name(u32::try_from(uid?).ok()?))),
            "node": said(run, |line| line.node.as_ref()),
            "cpus_limit": total.cpus.map(decimal),
            "cpus_granted": total.cpus_granted.map(decimal),
            "cpu_seconds": seconds(total.usage.cpu),
            "cpu_efficiency_percent": total.cpu_efficiency(),
            "throttled_seconds": seconds(total.usage.throttled),
            "memory_peak_bytes": total.usage.memory_peak,
            "memory_limit_bytes": total.memory_limit,
            "memory_lent_peak_bytes": most_lent(run),
            "oom_kills": total.usage.oom_kills,
            "read_bytes": total.usage.read,
            "written_bytes": total.usage.written,
            "unwritten_bytes": total.usage.memory_unwritten,
            "rchar_bytes": total.usage.rchar,
            "wchar_bytes": total.usage.wchar,
            "gpus": run.gpus.as_ref().map(JobGpus::json),
            "energy_joules": run.energy.map(|energy| energy.joules),
            "energy_cpu_seconds": run.energy.map(|energy| energy.cpu_seconds),
            "carbon_grams": run.carbon_grams,
            "steps": steps,
        })
    };
    let living = living.iter().filter_map(|row| serde_json::from_str::<Value>(&row.json()).ok());
    json!({
        "schema": SCHEMA,
        "job": job.as_str(),
        "runs_in_log": of_log,
        "runs": runs.iter().map(run).collect::<Vec<_>>(),
        "living": living.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use jobfence::job::Cpus;

    use super::*;

    fn step(name: &str, cpu: f64, peak: u64, of_job: u64) -> LoggedStep {
        LoggedStep::new(json!({
            "job": "7", "step": name, "uid": 0, "user": "al\u{1b}ice", "started": "2024-02-28T23:59:00Z",
            "ended": "2024-03-01T00:01:00Z", "wall_seconds": 86_520, "cpu_seconds": cpu, "cpus_limit": 2,
            "memory_peak_bytes": peak, "job_memory_peak_bytes": of_job, "memory_limit_bytes": 400 << 20,
            "job_memory_lent_peak_bytes": of_job / 10,
            "memory_file_bytes": 30, "memory_anonymous_bytes": 60, "memory_kernel_bytes": 10,
            "exit_status": null, "exit_signal": 9, "end": "reaped", "sentences": ["a \u{202e}b"],
        }))
    }

    #[test]
    fn a_run_is_the_sum_of_its_steps() {
        let run = JobRun {
            gpus: None,
            energy: None,
            carbon_grams: None,
            is_beside_another: false,
            steps: vec![step("batch", 40_000.0, 100 << 20, 300 << 20), step("0", 46_520.0, 1, 200 << 20)],
        };
        let total = Total::from_run(&run);
        assert_eq!((total.usage.cpu, total.usage.memory_peak), (Some(Duration::from_secs(86_520)), Some(300 << 20)));
        assert_eq!(total.wall, Some(Duration::from_secs(86_520)));
        assert_eq!((total.cpu_efficiency(), total.memory_share()), (Some(50.0), Some(75.0)));
        let text = in_words(&[run], 3, &[], 80, false);
        for part in [
            "job 7 of al?ice (uid 0)\n",
            "CPU time  1-00:02:00 of 2-00:04:00 (50.0 %), 2 CPUs\n",
            "memory    300.0 MiB of 400.0 MiB (75.0 %) at the most\n",
            "lent      30.0 MiB beyond its limit at the most (MemoryPool)\n",
            "STEP        WALL CPU-TIME CPUS EFF% THROTTLED EXIT     END\nbatch 1-00:02:00 11:06:40    2 23.1         - signal 9 reaped\n",
            "STEP  PEAK/MiB MAX/MiB CACHE% PROCS READ/MiB WRITTEN/MiB\nbatch    100.0   400.0   30.0     -        -           -\n",
            "a ?b\n",
            "The log has 2 earlier runs of this id, too",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_quota_below_the_grant_and_times_to_the_fraction() {
        let step = |name: &str, began: f64, ended: f64, wall: f64| {
            LoggedStep::new(json!({
                "job": "7", "step": name, "started": "2024-03-01T00:01:00Z", "ended": "2024-03-01T00:01:02Z",
                "started_unix_seconds": began, "ended_unix_seconds": ended, "wall_seconds": wall, "cpu_seconds": 1.4,
                "cpus_granted": 2, "cpus_limit": 1, "memory_unwritten_bytes": 30 << 20, "read_bytes": 0, "written_bytes": 0,
                "rchar_bytes": 12_u64 << 30, "wchar_bytes": 3_u64 << 30,
            }))
        };
        let run = |steps| JobRun { is_beside_another: false, gpus: None, energy: None, carbon_grams: None, steps };
        let only = run(vec![step("0", 60.9, 62.9, 2.0)]);
        let total = Total::from_run(&only);
        // Like its only step.
        assert_eq!((total.cpu_efficiency(), efficiency(&only.steps[0])), (Some(70.0), Some(70.0)));
        assert_eq!((total.cpus, total.cpus_granted), (Some(Cpus::whole(1)), Some(Cpus::whole(2))));
        let text = in_words(std::slice::from_ref(&only), 1, &[], 80, false);
        for part in [
            "1.4s of 2.0s (70.0 %), 1 of 2 CPUs\n",
            "written 0.0 MiB, 30.0 MiB yet to be written\n",
            "  all files read 12288.0 MiB, written 3072.0 MiB: disks, network, cache, pipes\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(in_words(&[only], 1, &[], 80, true).contains("CPUs: 1 of 2\n"));
        let mut two = run(vec![step("0", 60.25, 61.5, 1.25), step("1", 61.5, 62.75, 1.25)]);
        assert_eq!(two.wall(), Some(Duration::from_millis(2500)));
        // The extern step never says what was read and written.
        two.steps
            .push(LoggedStep::new(json!({"job": "7", "step": "extern", "rchar_bytes": null, "wchar_bytes": null})));
        let usage = Total::from_run(&two).usage;
        assert_eq!((usage.rchar, usage.wchar), (Some(24 << 30), Some(6 << 30)));
        // As earlier releases write it.
        let old = |wall: f64| {
            let mut old = step("0", 0.0, 0.0, wall).json;
            old["started_unix_seconds"] = Value::Null;
            run(vec![LoggedStep::new(old)]).wall().map(|wall| wall.as_secs_f64())
        };
        assert_eq!([old(2.9), old(1.1), old(0.3)], [Some(2.9), Some(1.1), Some(2.0)]);
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let run = JobRun {
            gpus: None,
            energy: None,
            carbon_grams: None,
            is_beside_another: false,
            steps: vec![LoggedStep::new(json!({"job": "7", "step": "0", "ended": "2024-03-01T00:01:00Z"}))],
        };
        let all = json(&Id::new("7").unwrap(), std::slice::from_ref(&run), 1, &[]);
        assert_eq!(all["runs"][0]["cpu_seconds"], Value::Null);
        assert_eq!(all["runs"][0]["memory_peak_bytes"], Value::Null);
        assert_eq!(all["runs"][0]["memory_lent_peak_bytes"], Value::Null);
        assert!(!in_words(std::slice::from_ref(&run), 1, &[], 80, false).contains("lent"));
        assert!(in_words(&[run], 1, &[], 80, true).contains("Memory Utilized: -\n"));
    }
}
