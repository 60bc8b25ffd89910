// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence report`: what a finished job used, from the usage log of this node, or what all jobs used, from the logs of many nodes.

pub mod accounting;
mod log;
mod output;
mod page;
mod runs;
mod stored;
pub mod summary;
mod text;
mod total;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jobfence::config::{Config, LoadError};
use jobfence::error::Error;
use jobfence::job::Id;
use jobfence::report::card;
use jobfence::report::usage_log::UsageLog;

use crate::command::Failure;
use crate::configured::Configured;
use crate::gpu;
use crate::job_name;
use crate::living::{LivingRow, LivingView, job_id};
use crate::node_logs::{GPUS, SERIES};
use crate::own_report::ReadableLogs;
use crate::schedulers;
use crate::series::{self, Series};
use crate::table::{self, printable};
use accounting::AccountingPart;
use log::{LoggedSteps, jobs_with, read};
use output::{put, refused};
use runs::{JobRun, runs_of};
pub use summary::SCHEMA as SUMMARY_SCHEMA;
use summary::{Output, SummaryOptions};
pub use text::SCHEMA;

/// The width of a mail.
const MAIL: usize = 76;

#[derive(Args)]
pub struct ReportOptions {
    /// The job, as its batch system writes it
    #[arg(value_name = "JOB", value_parser = job_id, required_unless_present = "by")]
    job: Option<Id>,
    /// Report each run of this id that the log has [default: the newest]
    #[arg(long)]
    all: bool,
    /// Print the body of a mail, in the words of seff(1), in lines of at most 76 characters
    ///
    /// The log is the node's own, so the mail can be sent where the job ran, by an epilog.
    #[arg(long, conflicts_with = "json")]
    mail: bool,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    /// Write one page of HTML, with everything that it needs; '-' is stdout
    ///
    /// The page says what was used of what was granted, what to ask for next time, and the figures of each step, task and disk.
    /// It has no script, and loads nothing. With --stored it has the nodes that Slurm's accounting knows.
    ///
    /// A file that is there is replaced as a whole. If FILE is a symbolic link, the link is replaced, and not what it leads to.
    /// Root follows no symbolic link of another user on the way to FILE.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mail", "json"])]
    html: Option<PathBuf>,
    /// Report what Slurm's accounting has of the job on all nodes, a row for each
    ///
    /// The nodes put it there with StoreUsage=admincomment in jobfence.conf(5).
    /// This works on each host where sacct(1) does, also on a login node, and for a user's own jobs.
    /// Where the host has no usage log, or the user may not read it, the report of a job is this one.
    ///
    /// With --by, the summary is of all jobs that Slurm's accounting has. sacct is asked for a day at a time, with pauses, and --since
    /// says from when on. What a job reserved is known of each, and what it used if the nodes have put it there.
    #[arg(long, conflicts_with = "all")]
    stored: bool,
    #[command(flatten)]
    summary: SummaryOptions,
    #[command(flatten)]
    configured: Configured,
}

/// The error if no scheduler has an accounting where nodes store anything.
const NO_ACCOUNTING: &str = "no scheduler has an accounting where jobfence stores what jobs used";

/// The accounting where nodes store what jobs used.
pub fn find_accounting() -> Option<&'static dyn AccountingPart> {
    schedulers::ALL.iter().find_map(|part| part.accounting())
}

/// Prints the report.
pub fn report(options: &ReportOptions) -> Result<ExitCode, Failure> {
    let output = Output { json: options.json, html: options.html.as_deref() };
    match (&options.job, options.summary.by) {
        (_, Some(by)) => {
            let stored = options.stored.then(|| find_accounting().ok_or(NO_ACCOUNTING)).transpose()?;
            summary::summary(&options.summary, by, &options.configured, stored, &output)
        }
        (Some(job), None) => of_job(options, job),
        (None, None) => Err("name a job, or sum up all jobs with --by".into()),
    }
}

fn of_job(options: &ReportOptions, job: &Id) -> Result<ExitCode, Failure> {
    // A login node may have no jobfence.conf, or one that is not meant for it.
    let config = options.configured.load();
    let usage_log = config.as_ref().ok().and_then(|loaded| UsageLog::from_config(&loaded.config));
    if options.stored || usage_log.is_none() {
        return of_accounting(options, job, config.err());
    }
    let config = config?.config;
    let usage_log = UsageLog::from_config(&config).ok_or("this node keeps no usage log")?;
    let own = nix::unistd::getuid();
    let asked = job;
    let logs = ReadableLogs::from_config(&config, usage_log, Some(asked.as_str()));
    let logged = logs.as_ref().map_err(Error::clone).and_then(|logs| read(logs, asked));
    let job = match (&logged, &logs) {
        (Ok(logged), Ok(logs)) if logged.lines.is_empty() => &resolved(options, asked, logs)?,
        _ => asked,
    };
    let logged = match &logs {
        Ok(logs) if job != asked => read(logs, job),
        _ => logged,
    };
    let living = LivingView::new(&options.configured, None, Some(job.clone())).map(|mut view| view.measured());
    let living: Vec<LivingRow> = living.map(|(rows, _)| rows).unwrap_or_default();
    let logged = logged.map_err(|error| refused(&config, &error));
    let (LoggedSteps { mut lines, skipped }, refusal) = match logged {
        Ok(logged) => (logged, None),
        // Live fences can still be shown.
        Err(error) if !living.is_empty() => (LoggedSteps::default(), Some(error)),
        Err(error) => return stored(options, asked).unwrap_or(Err(error)),
    };
    lines.retain(|line| own.is_root() || line.uid == Some(u64::from(own.as_raw())));
    let mut runs = runs_of(lines);
    let series = add_samples(&mut runs, job, logs.as_ref().ok(), &config);
    let of_log = runs.len();
    // The newest comes first.
    runs.reverse();
    if !options.all {
        runs.truncate(1);
    }
    if let Some(skipped) = skipped {
        eprintln!("jobfence: {skipped}");
    }
    if let Some(file) = &options.html {
        // The log has only ended steps: for a job that has just begun there is nothing to show, and no page.
        if !runs.is_empty() {
            let site_text = config.usage_card_text.as_deref().map(|text| card::site_text(text, job.as_str()));
            put(file, &page::of_runs(job.as_str(), &runs, of_log, &series, site_text.as_deref()))?;
        }
    } else if options.json {
        println!("{}", text::json(job, &runs, of_log, &living));
    } else {
        let width = if options.mail { MAIL } else { table::width() };
        print!("{}", text::in_words(&runs, of_log, &living, width, options.mail));
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    if runs.is_empty() && (living.is_empty() || options.html.is_some()) {
        let job = printable(job.as_str());
        eprintln!("jobfence: the usage log of this node has no step of job {job} that you may see");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The report without the log of this node. `unread`: why the configuration could not be read.
fn of_accounting(options: &ReportOptions, job: &Id, unread: Option<LoadError>) -> Result<ExitCode, Failure> {
    match (stored(options, job), options.stored, unread) {
        (Some(done), ..) => done,
        (None, true, _) => {
            let job = printable(job.as_str());
            let accounting = find_accounting().ok_or(NO_ACCOUNTING)?;
            let (name, command) = (accounting.name(), accounting.command(&job));
            Err(format!(
                "{name} has nothing of jobfence's about job {job}: nodes put it there with StoreUsage in jobfence.conf, and \
                 '{command}' shows it"
            )
            .into())
        }
        (None, false, Some(errors)) => Err(errors.to_string().into()),
        (None, false, None) => Err("this node keeps no usage log: set UsageLog in jobfence.conf, such as \
                        UsageLog=/var/log/jobfence/usage.jsonl; jobs that end from then on are in it"
            .into()),
    }
}

/// Adds to each run what its GPUs did and the energy that it used, as far as that is known. Returns the samples of the job's steps.
fn add_samples(runs: &mut [JobRun], job: &Id, logs: Option<&ReadableLogs<'_>>, config: &Config) -> Vec<Series> {
    let open = |log| logs.map_or_else(|| Ok(Vec::new()), |logs| logs.open(log));
    let gpus = open(GPUS).and_then(|files| gpu::ended(files, job.as_str())).unwrap_or_else(|error| {
        eprintln!("jobfence: cannot read what GPUs did: {error}");
        Vec::new()
    });
    runs.iter_mut().for_each(|run| run.add_gpus(&gpus, &config.run_dir));
    // 'jobfence hold' has not yet put away that of a step which has just ended. It does so before it removes the file.
    let kept = series::all_living(&config.run_dir).unwrap_or_default();
    let mut series = open(SERIES).and_then(|files| series::finished(files, job.as_str())).unwrap_or_else(|error| {
        eprintln!("jobfence: cannot read the samples: {error}");
        Vec::new()
    });
    series.extend(kept.into_iter().filter(|kept| kept.job == job.as_str()));
    runs.iter_mut().for_each(|run| run.add_energy(&series, config.carbon_intensity));
    series
}

/// The id of a job that is in the log under another name.
fn resolved(options: &ReportOptions, job: &Id, logs: &ReadableLogs<'_>) -> Result<Id, Failure> {
    let living = LivingView::new(&options.configured, None, None).map(|view| view.jobs()).unwrap_or_default();
    let number = job.as_str().split(['.', '[']).next().unwrap_or_default();
    let logged = jobs_with(logs, number).unwrap_or_default();
    job_name::resolve(job, living.into_iter().chain(logged))
}

/// The report from the scheduler's accounting, if that has anything about the job.
fn stored(options: &ReportOptions, job: &Id) -> Option<Result<ExitCode, Failure>> {
    let job = job.as_str();
    let accounting = find_accounting()?;
    let (name, stored) = (accounting.name(), accounting.job(job)?);
    if let Some(file) = &options.html {
        if let Err(failure) = put(file, &page::of_stored(job, name, &stored)) {
            return Some(Err(failure));
        }
    } else if options.json {
        println!("{}", stored::json(job, &stored));
    } else {
        print!("{}", stored::in_words(job, name, &stored, if options.mail { MAIL } else { table::width() }));
    }
    Some(Ok(ExitCode::SUCCESS))
}
