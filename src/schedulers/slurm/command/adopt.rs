// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence adopt`: puts a process that Slurm did not start into its user's job.

use std::process::ExitCode;

use clap::Args;
use clap::builder::RangedI64ValueParser;
use jobfence::job::Id;
use jobfence::launch::Answer;
use jobfence::schedulers::slurm::adopt::{self, AdoptRequest, Pam};
use nix::unistd::getppid;

use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::job_name;

#[derive(Args)]
pub struct AdoptOptions {
    /// The process [default: the one that runs pam_exec(8), if that is the caller]
    #[arg(long, value_name = "PID", value_parser = RangedI64ValueParser::<i32>::new().range(1..))]
    pid: Option<i32>,
    /// The job, as the batch system writes it [default: the user's job whose extern step began last on this node]
    #[arg(long, value_name = "JOBID", value_parser = |text: &str| Id::new(text))]
    job: Option<Id>,
    #[command(flatten)]
    configured: Configured,
}

/// Fails unless the process is fenced, so that PAM can deny the session. In a session, prints only why it is denied.
pub fn adopt(options: &AdoptOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence adopt'")?;
    let pam = Pam::from_environment(std::env::vars_os(), getppid().as_raw());
    let is_session = pam.is_some();
    let loaded = options.configured.load();
    let job = match (&loaded, &options.job) {
        (Ok(loaded), Some(job)) => Some(job_name::resolve(job, job_name::recorded(&loaded.config.run_dir))?),
        (_, job) => job.clone(),
    };
    let request = AdoptRequest { pid: options.pid, job, pam, ..AdoptRequest::default() };
    match adopt::answer(loaded, &request) {
        Answer::Off | Answer::Fenced(_) if is_session => {}
        Answer::Fenced(outcome) => println!("{outcome}"),
        Answer::Off => println!("Mode=off: nothing is fenced here"),
        Answer::Unfenced { why, by, .. } => eprintln!("jobfence: {}", adopt::goes_on_without(&why, by)),
        Answer::Refused(why) => return Err(why.to_string().into()),
    }
    Ok(ExitCode::SUCCESS)
}
