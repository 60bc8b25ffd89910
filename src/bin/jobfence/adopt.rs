// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence adopt`: puts a session's process into its user's job, for pam_exec(8).

use std::process::ExitCode;

use clap::Args;
use clap::builder::RangedI64ValueParser;
use jobfence::config::{Mode, OnError, OnErrors};
use jobfence::entry::adopt::{self, Pam, Request};
use jobfence::host::Host;

use crate::{Configured, Failure, require_root};

#[derive(Args)]
pub struct Options {
    /// The process [default, where pam_exec(8) is the caller: the one that opens the session]
    #[arg(long, value_name = "PID", value_parser = RangedI64ValueParser::<i32>::new().range(1..))]
    pid: Option<i32>,
    /// The job, by its number [default: the user's job on this node that began last]
    #[arg(long, value_name = "JOBID")]
    job: Option<u32>,
    #[command(flatten)]
    configured: Configured,
}

/// Fails unless the process is fenced, so that PAM can deny the session. A session says nothing but why it is denied.
pub fn adopt(options: &Options) -> Result<ExitCode, Failure> {
    require_root("'jobfence adopt'")?;
    let pam = Pam::from_environment(std::env::vars_os());
    let is_session = pam.is_some();
    let request = Request { pid: options.pid, job: options.job, pam };
    let (mode, on_error, result) = match options.configured.load() {
        Ok(loaded) if loaded.config.mode == Mode::Off => (Mode::Off, loaded.config.on_error, Ok(None)),
        Ok(loaded) => {
            let config = loaded.config;
            let adopted = Host::read(&config).and_then(|host| adopt::adopt(&host, &config, &request));
            (config.mode, config.on_error, adopted.map(Some).map_err(|error| error.to_string()))
        }
        Err(errors) if errors.mode == Mode::Off => (Mode::Off, errors.on_error, Ok(None)),
        Err(errors) => (errors.mode, errors.on_error, Err(errors.to_string())),
    };
    match result {
        Ok(_) if is_session => {}
        Ok(Some(outcome)) => println!("{outcome}"),
        Ok(None) => println!("Mode=off: nothing is fenced here"),
        // As a step that cannot be fenced, which runs without.
        Err(error) if is_session && on_error.within(mode).general() == OnError::Warn => {
            eprintln!("jobfence: {error}; this session is not fenced ({})", OnErrors::softened_by(mode));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}
