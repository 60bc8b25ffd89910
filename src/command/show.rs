// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence show`: all that the kernel says about a job that runs here, step by step.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::cgroup::usage::Depth;
use jobfence::fence::living::{LivingStep, LivingTask};
use jobfence::job::{Cpus, Id};
use jobfence::report::account::utc;
use jobfence::report::card::is_utf8;
use jobfence::report::json::{Object, array};
use jobfence::sys::process;

use crate::command::Failure;
use crate::configured::Configured;
use crate::course::{AT_LIMIT, Course, KILLED};
use crate::gpu;
use crate::living::{
    LivingRow, LivingView, MEASURED, described, document, job_id, now, say_none, user_name, version, warn_of,
};
use crate::resize::in_words_of;
use crate::series::{self, Series};
use crate::table::{self, NONE, clock, mib, number, numbers, printable, texts, time};

/// The most processes of a step that are printed.
const MOST_PROCESSES: usize = 200;

/// The width of what is drawn over time, in characters: beside it there is room for amounts of a terabyte.
const SPARKS: usize = 24;

#[derive(Args)]
pub struct ShowOptions {
    /// The job, as its batch system writes it
    #[arg(value_name = "JOB", value_parser = job_id)]
    job: Id,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

/// A process with its name.
struct NamedProcess {
    pid: i32,
    task: Option<String>,
    uid: Option<u32>,
    name: Option<String>,
}

/// Prints the job.
pub fn show(options: &ShowOptions) -> Result<ExitCode, Failure> {
    let view = LivingView::new(&options.configured, None, Some(options.job.clone()))?;
    let (steps, unseen) = view.steps();
    warn_of(&unseen);
    if steps.is_empty() {
        if options.json {
            println!("{}", document(std::iter::empty()));
        }
        say_none(view.job());
        eprintln!("jobfence: for a job that has ended: 'jobfence report {}'", printable(options.job.as_str()));
        return Ok(ExitCode::FAILURE);
    }
    if options.json {
        println!("{}", document(look(&steps, &view).map(|step| step.json())));
    } else {
        print!("{}", in_words(&steps, &view));
    }
    Ok(ExitCode::SUCCESS)
}

/// All that the kernel says about these steps of the view, in words.
pub fn in_words(steps: &[LivingStep<'_>], view: &LivingView) -> String {
    let texts: Vec<String> = look(steps, view).map(|step| step.in_words()).collect();
    texts.join("\n")
}

/// Looks at each, after a time long enough to measure CPU time.
fn look<'a>(steps: &'a [LivingStep<'a>], view: &LivingView) -> impl Iterator<Item = SeenStep<'a>> {
    let before: Vec<Option<Duration>> = steps.iter().map(LivingStep::cpu_time).collect();
    std::thread::sleep(MEASURED);
    steps.iter().zip(before).map(|(step, before)| SeenStep::look(step, before, view))
}

/// A step at one time.
struct SeenStep<'a> {
    step: &'a LivingStep<'a>,
    row: LivingRow,
    is_frozen: bool,
    tasks: Vec<LivingTask>,
    processes: Vec<NamedProcess>,
    /// What was sampled of it.
    series: Option<Series>,
}

/// The resources that processes wait for, as in the kernel's files and as printed.
const WAITED_FOR: [(&str, &str); 3] = [("cpu", "CPU"), ("memory", "memory"), ("io", "disks")];

impl<'a> SeenStep<'a> {
    fn look(step: &'a LivingStep<'a>, before: Option<Duration>, view: &LivingView) -> Self {
        let proc = &view.host.proc;
        let current = step.current(Depth::All);
        let spent = before.zip(current.usage.cpu).map(|(before, now)| now.saturating_sub(before));
        let cpus_now = spent.map(|spent| spent.as_secs_f64() / MEASURED.as_secs_f64());
        let named = |pid, task| NamedProcess {
            pid,
            task,
            uid: process::uid(proc, pid),
            name: proc.read_value(&format!("{pid}/comm")).ok().map(|name| name.trim_end_matches('\n').to_owned()),
        };
        let processes = step.processes().unwrap_or_default().into_iter();
        let mut row = described(step);
        view.add_gpus(&mut row);
        let started = row.started.map(utc).unwrap_or_default();
        let series = series::living(&view.run_dir, row.uid, &row.name)
            // A user may see another start time than root.
            .filter(|series| row.run.is_none_or(|run| series.is_of(&row.job, &row.step, run.into(), &started)));
        Self {
            step,
            series,
            row: LivingRow { current, cpus_now, user: step.uid.map_or_else(|| NONE.to_owned(), user_name), ..row },
            is_frozen: step.is_frozen(),
            tasks: step.tasks(),
            processes: processes.map(|process| named(process.pid, process.task)).collect(),
        }
    }

    fn json(&self) -> String {
        let mut object = Object::new();
        self.row.identity(&mut object);
        object.usage(&self.row.current.usage).add("is_frozen", self.is_frozen);
        for (file, _) in WAITED_FOR {
            object.number(&format!("{file}_pressure_some_percent"), self.step.pressure(file));
        }
        let limit = |(level, path, value): (&str, std::path::PathBuf, String)| {
            Object::new().text("level", Some(level)).text("file", path.to_str()).text("value", Some(&value)).end()
        };
        let task = |task: &LivingTask| {
            let mut object = Object::new();
            object.text("task", Some(&task.name));
            now(&mut object, &task.current);
            object.usage(&task.current.usage).end()
        };
        let process = |process: &NamedProcess| {
            Object::new()
                .add("pid", process.pid)
                .text("task", process.task.as_deref())
                .number("uid", process.uid)
                .text("name", process.name.as_deref())
                .end()
        };
        object
            .add("limits", array(self.step.limits().into_iter().map(limit)))
            .add("tasks", array(self.tasks.iter().map(task)))
            .add("processes", array(self.processes.iter().map(process)))
            .number("series", self.series.as_ref().map(Series::json))
            .end()
    }

    fn in_words(&self) -> String {
        let row = &self.row;
        let uid = row.uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
        let run = row.run.map(|run| format!(" run {run}")).unwrap_or_default();
        let mut lines =
            vec![format!("job {} step {}{run} of {} (uid {uid})", printable(&row.job), printable(&row.step), row.user)];
        let mut line = |head: &str, text: String| lines.push(format!("  {head:<10} {text}"));
        let since = row.started.map_or_else(String::new, |started| format!(", since {}", utc(started)));
        let frozen = if self.is_frozen { "; frozen" } else { "" };
        line("running", format!("{}{since}{frozen}", row.uptime.map_or_else(|| NONE.to_owned(), clock)));
        if let Some(holder) = &row.holder {
            line("held by", printable(holder));
        }
        for place in &self.step.places {
            let whose = if place.is_overlay { "the scheduler's" } else { "own" };
            line(
                "where",
                format!("{} ({}, {whose})", printable(&place.step.to_string_lossy()), version(place.hierarchy.version)),
            );
        }
        self.amounts(&mut line);
        if let Some(lent) = self.row.lent.as_ref().filter(|lent| lent.lent() > 0) {
            line("lent", format!("the job {}", lent.in_words()));
        }
        if let Some(cache) = &self.row.cache {
            line("cache", format!("the job: {}", cache.in_words()));
            cache.used.in_words().into_iter().for_each(|used| line("", used));
        }
        let allocated = self.step.allocated();
        if let Some(asked) = allocated.elastic_ram {
            line("lent", format!("up to {asked} of the job's limit at most (--elastic-ram)"));
        }
        if let Some(signal_at) = allocated.signal_at {
            line("told", format!("at {signal_at}"));
        }
        if let Some(resized) = self.step.resized() {
            line("resized", in_words_of(&resized));
        }
        let done = self.row.idle.as_ref().and_then(|idle| idle.decision.done());
        let then = done.map_or_else(String::new, |done| format!("; {done}"));
        if let Some(idle) = self.row.idle() {
            let idle = clock(Duration::try_from_secs_f64(idle).unwrap_or_default());
            line("idle", format!("the job has used almost no CPU time for {idle}{then}"));
        } else if done.is_some() {
            // It works at its end.
            line("idle", format!("the job had used almost no CPU time{then}"));
        }
        if let Some(done) = self.row.gpus.as_ref().and_then(|gpus| gpus.decision.done()) {
            line("idle", format!("the job's GPUs had done nothing; {done}"));
        }
        self.row.gpus.iter().flat_map(gpu::in_words).for_each(|(head, text)| line(head, text));
        if let Some(energy) = self.series.as_ref().and_then(|series| series.energy) {
            line("energy", energy.in_words(self.row.current.usage.cpu));
        }
        if let Some(network) = &self.row.network {
            line("network", format!("the job: {}", printable(&network.in_words())));
        }
        self.over_time(&mut line);
        for (level, path, value) in self.step.limits() {
            // The directories are printed above.
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            line("limit", format!("{level:<4} {file} = {}", printable(&value)));
        }
        if !self.tasks.is_empty() {
            lines.push(String::new());
            lines.extend(table::lines(&TASK_COLUMNS, &self.tasks.iter().map(task_cells).collect::<Vec<_>>(), None));
        }
        if !self.processes.is_empty() {
            lines.push(String::new());
            let cells: Vec<_> = self.processes.iter().take(MOST_PROCESSES).map(NamedProcess::cells).collect();
            lines.extend(table::lines(&PROCESS_COLUMNS, &cells, None));
            if let Some(more) = self.processes.len().checked_sub(MOST_PROCESSES).filter(|more| *more > 0) {
                lines.push(format!("and {more} more"));
            }
        }
        lines.join("\n") + "\n"
    }

    fn over_time(&self, line: &mut dyn FnMut(&str, String)) {
        let Some(series) = &self.series else { return };
        let limits = &self.row.current.limits;
        over_time(series, limits.cpus, limits.memory, is_utf8(|name| std::env::var(name).ok()), line);
    }

    fn amounts(&self, line: &mut dyn FnMut(&str, String)) {
        let current = &self.row.current;
        let usage = &current.usage;
        let of = |limit: Option<String>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| NONE.to_owned(), mebibytes);
        let cpus = self.row.cpus_now.map_or_else(|| NONE.to_owned(), |cpus| format!("{cpus:.2}"));
        let of_cpus = current.limits.cpus.map_or_else(|| " CPUs".to_owned(), |cpus| format!(" of {}", cpus.in_words()));
        line(
            "CPU",
            format!(
                "{cpus}{of_cpus} now; {} used (user {}, system {})",
                time(usage.cpu),
                time(usage.cpu_user),
                time(usage.cpu_system)
            ),
        );
        if let Some(throttled) = usage.throttled.filter(|throttled| !throttled.is_zero()) {
            let periods = usage.throttled_periods.zip(usage.periods);
            let periods = periods.map(|(some, all)| format!(" in {some} of {all} periods")).unwrap_or_default();
            line("throttled", format!("{}{periods}", time(Some(throttled))));
        }
        line(
            "memory",
            format!(
                "{}{} now; peak {}",
                bytes(current.memory),
                of(current.limits.memory.map(mebibytes)),
                bytes(current.usage.memory_peak)
            ),
        );
        line(
            "consists",
            format!(
                "programs {}, files {}, shared {}, kernel {}{}, swap {}",
                bytes(usage.memory_anonymous),
                bytes(usage.memory_file),
                bytes(usage.memory_shared),
                bytes(usage.memory_kernel),
                usage.memory_huge_pages.map(|huge| format!(", huge pages {}", mebibytes(huge))).unwrap_or_default(),
                bytes(usage.memory_swap)
            ),
        );
        let happened = [
            (usage.memory_max_events, "times at the limit of memory"),
            (usage.memory_high_events, "times above memory.high"),
            (usage.oom_kills, "processes killed for lack of memory"),
            (usage.forks_refused, "processes refused"),
        ];
        let happened =
            happened.iter().filter_map(|(count, what)| Some(format!("{} {what}", count.filter(|n| *n > 0)?)));
        let happened: Vec<String> = happened.collect();
        if !happened.is_empty() {
            line("events", happened.join(", "));
        }
        let processes_limit = of(current.limits.processes.map(|limit| limit.to_string()));
        let peak = usage.processes_peak.map(|peak| format!("; peak {peak}")).unwrap_or_default();
        line("processes", format!("{}{processes_limit} now{peak}", number(current.processes)));
        if let Some((read, written)) = usage.read.zip(usage.written) {
            line("I/O", format!("read {}, written {}", mebibytes(read), mebibytes(written)));
        }
        let waits = [usage.cpu_pressure_some, usage.memory_pressure_some, usage.io_pressure_some];
        for ((file, name), waited) in WAITED_FOR.into_iter().zip(waits) {
            if waited.is_none() {
                continue;
            }
            let lately = self.step.pressure(file).map(|percent| format!("; {percent:.1} % of the last 10 s"));
            line("waited", format!("for {name} {}{}", time(waited), lately.unwrap_or_default()));
        }
    }
}

/// The drawings, each up to its limit, or else up to its highest value.
fn over_time(
    series: &Series,
    cpus: Option<Cpus>,
    memory: Option<u64>,
    is_utf8: bool,
    line: &mut dyn FnMut(&str, String),
) {
    let mut head = "over time";
    let mut marks = String::new();
    let mut add = |name: &str, course: &Course, most: fn(f64) -> String, unit: &str| {
        if let Some(highest) = course.most() {
            let drawn = course.in_characters(SPARKS, is_utf8);
            let of = course.limit.map_or_else(String::new, |limit| format!(" of {}", most(limit)));
            line(head, format!("{name:<6} {drawn} at most {}{of}{unit}", most(highest)));
            marks.push_str(&drawn);
            head = "";
        }
    };
    let mib = |bytes: f64| table::mib(Some(bytes as u64));
    add("CPUs", &Course::cpus(series, None, cpus), |cpus| format!("{cpus:.2}"), "");
    add("memory", &Course::memory(series, None, memory), mib, " MiB");
    add("disks", &Course::disks(series), mib, " MiB/s");
    let meanings = [(AT_LIMIT, "at the limit"), (KILLED, "processes killed")];
    let meanings = meanings.iter().filter(|(mark, _)| marks.contains(*mark));
    let meanings: Vec<String> = meanings.map(|(mark, what)| format!("{mark} {what}")).collect();
    if !meanings.is_empty() {
        line("", format!("{:<6} {}", "", meanings.join(", ")));
    }
}

const TASK_COLUMNS: [table::Column; 8] = [
    texts("TASK"),
    numbers("CPU-TIME"),
    numbers("CPUS"),
    numbers("MEM/MiB"),
    numbers("PEAK/MiB"),
    numbers("MAX/MiB"),
    numbers("PROCS"),
    numbers("OOM"),
];

fn task_cells(task: &LivingTask) -> Vec<String> {
    vec![
        printable(&task.name),
        time(task.current.usage.cpu),
        number(task.current.limits.cpus),
        mib(task.current.memory),
        mib(task.current.usage.memory_peak),
        mib(task.current.limits.memory),
        number(task.current.processes),
        number(task.current.usage.oom_kills),
    ]
}

const PROCESS_COLUMNS: [table::Column; 4] = [numbers("PID"), texts("TASK"), texts("USER"), texts("COMMAND")];

impl NamedProcess {
    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            self.task.as_deref().map_or_else(|| NONE.to_owned(), printable),
            self.uid.map_or_else(|| NONE.to_owned(), user_name),
            self.name.as_deref().map_or_else(|| NONE.to_owned(), printable),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Point;

    #[test]
    fn what_is_drawn_reaches_to_the_limit() {
        let point = |at: u64, memory: u64, kills: u64| Point {
            at: at as f64,
            cpu_seconds: Some(at as f64 / 2.0),
            memory_bytes: Some(memory << 20),
            memory_max_events: Some(kills),
            oom_kills: Some(kills),
            read_bytes: Some(at << 20),
            written_bytes: Some(0),
            ..Point::default()
        };
        let drawn = |points: Vec<Point>, cpus, memory| {
            let (series, mut lines) = (Series { points, ..Series::default() }, Vec::new());
            over_time(&series, cpus, memory, true, &mut |head, text| lines.push(format!("{head:<10} {text}")));
            lines
        };
        let points = || vec![point(0, 100, 0), point(10, 310, 0), point(20, 250, 0)];
        assert_eq!(
            drawn(points(), Some(Cpus::whole(4)), Some(1000 << 20)),
            [
                "over time  CPUs   ▁▁ at most 0.50 of 4.00",
                "           memory ▁▃▂ at most 310.0 of 1000.0 MiB",
                "           disks  ██ at most 1.0 MiB/s",
            ]
        );
        // Without a limit, and with one that was reached.
        assert_eq!(drawn(points(), None, None)[1], "           memory ▃█▇ at most 310.0 MiB");
        let killed = drawn([points(), vec![point(30, 1000, 0), point(40, 1, 1)]].concat(), None, Some(1000 << 20));
        assert_eq!(killed[1], "           memory ▁▃▂!x at most 1000.0 of 1000.0 MiB");
        assert_eq!(killed[3], "                  ! at the limit, x processes killed");
        let most = 999_999 << 20;
        let widest = drawn((0..100).map(|at| point(at, 999_999, 0)).collect(), None, Some(most + 1));
        assert!(widest.iter().all(|line| line.chars().count() <= 78), "{widest:?}");
    }
}
