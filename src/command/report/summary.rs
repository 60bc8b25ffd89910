// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence report --by`: what all jobs used of what they reserved, by account, user, partition, QOS or node.
//!
//! The log is read once. Memory depends on how many groups and open runs there are, which are bounded, and not on how long the log is.

mod data;
mod gpus;
mod habits;
mod line;
mod merged;
mod names;
mod page;
mod runs;
mod since;
mod source;
mod summed;
mod tally;
mod text;
mod words;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use jobfence::error::Error;
use jobfence::report::account::utc;
use jobfence::report::usage_log::UsageLog;

use super::accounting::{AccountingPart, StoredJobs};
use super::log;
use super::output::{put, refused};
use crate::command::Failure;
use crate::configured::Configured;
use crate::node_logs::{GPUS, USAGE};
use crate::own_report::ReadableLogs;
use crate::table;
pub use data::SCHEMA;
use gpus::WaitingGpus;
pub use habits::Habits;
use line::Read;
use merged::MergedLogs;
pub use names::{NameId, Names};
use runs::JoinedRuns;
pub use runs::{By, GpuHours, JoinedRun, RunOnNode};
use since::Since;
use source::FoundLogs;
use summed::{Prices, SummedUp};
pub use tally::Tally;

/// The most files that are named because they could not be read.
const NAMED: usize = 5;

// Each option excludes a job by itself: clap does not ask for a required option that something else excludes.
#[derive(Args)]
pub struct SummaryOptions {
    /// Sum up what all jobs used of what they reserved, for each account, user, partition, QOS or node
    ///
    /// The summary has hours of CPUs, memory and GPUs, what was wasted, jobs that failed or ran out of memory, a trend by week, and the
    /// advice that would have mattered most. A user sees the own jobs, and root all.
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["job", "all", "mail"])]
    pub by: Option<By>,
    /// Count jobs that ended since then, such as 6months, 4weeks, 30days or 2026-01-31 [default: all; --stored needs it]
    #[arg(long, value_name = "WHEN", conflicts_with = "job", requires = "by", value_parser = since::since)]
    since: Option<Since>,
    /// Read all usage logs below this directory, and not that of this node
    ///
    /// Logs may be plain, or packed by gzip or zstd, and their names do not matter. Symbolic links are not followed. A job that ran on
    /// several nodes is one job.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["job", "stored"], requires = "by")]
    logs: Option<PathBuf>,
    /// Print a line of comma-separated values for each account, user and so on
    #[arg(long, requires = "by", conflicts_with_all = ["job", "json", "html"])]
    csv: bool,
    /// The price of an hour of one CPU, to say what jobs have cost
    #[arg(long, value_name = "PRICE", conflicts_with = "job", requires = "by", value_parser = price)]
    price_cpu_hour: Option<f64>,
    /// The price of an hour of one GPU
    #[arg(long, value_name = "PRICE", conflicts_with = "job", requires = "by", value_parser = price)]
    price_gpu_hour: Option<f64>,
    /// The currency of the prices, such as EUR
    #[arg(long, value_name = "CURRENCY", conflicts_with = "job", requires = "by")]
    currency: Option<String>,
}

fn price(text: &str) -> Result<f64, String> {
    let price: Option<f64> = text.parse().ok().filter(|price| (0.0..=1e9).contains(price));
    price.ok_or_else(|| "write an amount of money, such as 0.02".to_owned())
}

/// How the summary is shown.
pub struct Output<'a> {
    pub json: bool,
    pub html: Option<&'a std::path::Path>,
}

/// Prints the summary.
pub fn summary(
    options: &SummaryOptions,
    by: By,
    configured: &Configured,
    stored: Option<&'static dyn AccountingPart>,
    output: &Output<'_>,
) -> Result<ExitCode, Failure> {
    if let Some(accounting) = stored {
        return of_accounting(options, by, accounting, output);
    }
    let own = nix::unistd::getuid();
    let uid = (!own.is_root()).then(|| u64::from(own.as_raw()));
    let found = match &options.logs {
        Some(directory) => FoundLogs::below(directory)?,
        None => {
            let config = configured.load()?.config;
            let usage_log = UsageLog::from_config(&config).ok_or(
                "this node keeps no usage log: set UsageLog in jobfence.conf, or name a directory with logs by --logs",
            )?;
            let files = ReadableLogs::from_config(&config, usage_log, None)
                .and_then(|logs| Ok((logs.open(USAGE)?, logs.open(GPUS))));
            let (files, of_gpus) = files.map_err(|error| refused(&config, &error))?;
            FoundLogs::from_files(files, of_gpus)
        }
    };
    let (summary, errors) = read(found, by, options, uid);
    for error in errors.iter().take(NAMED) {
        ::log::error!("{error}");
    }
    if errors.len() > NAMED {
        ::log::error!("{} more files or directories could not be read", errors.len() - NAMED);
    }
    if let Some(passed_over) = &summary.passed_over {
        eprintln!("jobfence: {passed_over}");
    }
    if summary.tally.total.jobs == 0 {
        eprintln!("jobfence: the usage logs have no job in this time that you may see");
        return Ok(ExitCode::FAILURE);
    }
    show(&summary, options, output)?;
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The summary of what the scheduler has stored. If a part of the time could not be asked for, the command fails.
fn of_accounting(
    options: &SummaryOptions,
    by: By,
    accounting: &'static dyn AccountingPart,
    output: &Output<'_>,
) -> Result<ExitCode, Failure> {
    let name = accounting.name();
    let since = options.since.ok_or_else(|| {
        format!(
            "say by --since from when on jobs count, such as --since 30days: {name} can reach back for years, and all of them are asked \
             for"
        )
    })?;
    let is_of_all = nix::unistd::getuid().is_root();
    let since = since.seconds(SystemTime::now());
    let StoredJobs { names, tally, habits, records, missing } = accounting.jobs_since(by, since, is_of_all)?;
    missing.iter().for_each(|missing| ::log::error!("{missing}"));
    if tally.total.jobs == 0 {
        let none = match missing.is_empty() {
            true => "has no job that ended in this time and that you may see",
            false => {
                "has said nothing about a part of this time, and has no job that ended in the rest and that you may see"
            }
        };
        eprintln!("jobfence: {name} {none}");
        return Ok(ExitCode::FAILURE);
    }
    let summary = SummedUp {
        by,
        since: Some(utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since))),
        names,
        prices: prices(options),
        is_of_all,
        accounting: Some(accounting),
        files: 0,
        lines: records,
        again: 0,
        early: 0,
        late: 0,
        passed_over: (!missing.is_empty()).then(|| missing.join("; ")),
        tally,
        habits,
    };
    show(&summary, options, output)?;
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn prices(options: &SummaryOptions) -> Prices {
    Prices {
        cpu: options.price_cpu_hour,
        gpu: options.price_gpu_hour,
        currency: options.currency.as_deref().map(table::printable),
    }
}

/// Prints the summary, or writes it to a file, in the wanted form.
fn show(summary: &SummedUp, options: &SummaryOptions, output: &Output<'_>) -> Result<(), Failure> {
    let mut out = BufWriter::new(std::io::stdout());
    if let Some(file) = output.html {
        put(file, &page::page(summary))?;
    } else if output.json {
        data::json(summary, &mut out)?;
    } else if options.csv {
        data::csv(summary, &mut out)?;
    } else {
        out.write_all(text::in_words(summary, table::width()).as_bytes())?;
    }
    out.flush()?;
    Ok(())
}

/// A time in microseconds since 1970.
fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Reads the files. `uid`: only the lines of this user.
fn read(found: FoundLogs, by: By, options: &SummaryOptions, uid: Option<u64>) -> (SummedUp, Vec<Error>) {
    let since = options.since.map(|since| since.seconds(SystemTime::now()));
    let moment = |seconds: u64| utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
    let since_micros = since.unwrap_or(0).saturating_mul(1_000_000);
    // A step may have ended long before its job. So lines from before `since` can belong to a run that counts.
    let earliest = since.map(|since| moment(since.saturating_sub(runs::LONGEST / 1_000_000))).unwrap_or_default();
    let mut names = Names::default();
    let mut tally = Tally::new(by, since_micros);
    let mut habits = Habits::new();
    let mut open = JoinedRuns::new();
    let mut gpus = WaitingGpus::new(open.hasher());
    let mut count = |run: &mut runs::JoinedRun, gpus: &mut WaitingGpus| {
        run.gpu_hours = gpus.used_by(run);
        if tally.add(run) {
            habits.add(run);
        }
    };
    let FoundLogs { sources, mut errors, others } = found;
    let (mut lines, mut foreign, mut newer, mut late, mut wrong_clock) = (0, 0, 0, 0, 0);
    let now = micros(SystemTime::now());
    // The lines come in the order of their ends, unless a file is not in order: all lines up to this time were read.
    let mut sure = 0_u64;
    let mut logs = MergedLogs::new(sources);
    while let Some(text) = logs.next() {
        match line::read(text, &earliest) {
            Read::Line(line) => {
                if uid.is_some() && line.uid != uid {
                    continue;
                }
                if !line.is_dated_right(now) {
                    wrong_clock += 1;
                    continue;
                }
                lines += 1;
                late += u64::from(line.ended.saturating_add(runs::SLACK) < sure);
                sure = sure.max(line.ended);
                for mut run in open.add(&line, sure, &mut names, by) {
                    count(&mut run, &mut gpus);
                }
            }
            Read::Gpus(line) => gpus.add(&line, text, uid),
            Read::Earlier => {}
            Read::Newer => newer += 1,
            Read::Foreign => foreign += 1,
        }
    }
    let (files, half, too_long) = (logs.files, logs.counts.half, logs.counts.too_long);
    errors.append(&mut logs.errors);
    for mut run in open.end() {
        count(&mut run, &mut gpus);
    }
    let passed_over = log::passed_over(&[
        (half, "without an end"),
        (foreign + too_long, "that jobfence has not written"),
        (newer, "of another release"),
        (open.again, "that were there twice"),
        (wrong_clock, "that a wrong clock has dated"),
    ]);
    let no_logs = (others > 0).then(|| format!("{others} files that are no usage logs"));
    let passed_over = match (passed_over, no_logs) {
        (Some(lines), Some(files)) => Some(format!("{lines}, {files}")),
        (None, Some(files)) => Some(format!("passed over: {files}")),
        (lines, None) => lines,
    };
    let summary = SummedUp {
        by,
        since: since.map(moment),
        names,
        prices: prices(options),
        is_of_all: uid.is_none(),
        accounting: None,
        files,
        lines,
        again: open.again,
        early: open.early,
        late,
        passed_over,
        tally,
        habits,
    };
    (summary, errors)
}
