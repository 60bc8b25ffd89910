// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence report`: what a job has used that has ended, from the usage log of this node.

mod log;
mod runs;
mod text;

use std::process::ExitCode;

use clap::Args;
use jobfence::config::Config;
use jobfence::job::Id;
use jobfence::report::usage_log::UsageLog;

use crate::command::Failure;
use crate::configured::Configured;
use crate::living::{LivingRow, LivingView, job_id};
use crate::table::{self, printable};
use log::{LoggedSteps, read};
use runs::runs_of;

/// A mail is as wide as that.
const MAIL: usize = 76;

#[derive(Args)]
pub struct ReportOptions {
    /// The job, as its batch system writes it
    #[arg(value_name = "JOB", value_parser = job_id)]
    job: Id,
    /// Each run that the log has of a job with this id [default: the newest]
    #[arg(long)]
    all: bool,
    /// Print the body of a mail
    #[arg(long, conflicts_with = "json")]
    mail: bool,
    /// Print JSON: see jobfence(8)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

/// Reports it.
pub fn report(options: &ReportOptions) -> Result<ExitCode, Failure> {
    let config = options.configured.load()?.config;
    let usage_log = UsageLog::of(&config).ok_or(
        "this node keeps no usage log: set UsageLog in jobfence.conf, such as UsageLog=/var/log/jobfence/usage.jsonl; \
         jobs that end from then on are in it",
    )?;
    let own = nix::unistd::getuid();
    let living = LivingView::new(&options.configured, None, Some(options.job.clone())).map(|mut view| view.measured());
    let living: Vec<LivingRow> = living.map(|(rows, _)| rows).unwrap_or_default();
    let logged = read(&usage_log, &options.job).map_err(|error| refused(&config, &error));
    let (LoggedSteps { mut lines, skipped }, refusal) = match logged {
        Ok(logged) => (logged, None),
        // What lives can be seen all the same.
        Err(error) if !living.is_empty() => (LoggedSteps::default(), Some(error)),
        Err(error) => return Err(error),
    };
    lines.retain(|line| own.is_root() || line.uid() == Some(u64::from(own.as_raw())));
    let mut runs = runs_of(lines);
    let of_log = runs.len();
    // The newest stands first.
    runs.reverse();
    if !options.all {
        runs.truncate(1);
    }
    if let Some(skipped) = skipped {
        eprintln!("jobfence: {skipped}");
    }
    if options.json {
        println!("{}", text::json(&options.job, &runs, of_log, &living));
    } else {
        let width = if options.mail { MAIL } else { table::width() };
        print!("{}", text::in_words(&runs, of_log, &living, width, options.mail));
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    if runs.is_empty() && living.is_empty() {
        let whose = if own.is_root() { "" } else { " of yours" };
        eprintln!("jobfence: the usage log of this node has no step{whose} of job {}", printable(options.job.as_str()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Why the log could not be read, for those who may not.
fn refused(config: &Config, error: &jobfence::error::Error) -> Failure {
    if nix::unistd::geteuid().is_root() {
        return error.to_string().into();
    }
    let path = config.usage_log.as_deref().unwrap_or_else(|| std::path::Path::new("")).display();
    format!(
        "only root can read the usage log ({path}): ask your administrator for the report. For a job that runs: \
         'jobfence show JOB'"
    )
    .into()
}
