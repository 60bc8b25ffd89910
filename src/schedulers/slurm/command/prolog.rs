// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence prolog` and `jobfence epilog`: for slurm.conf's Prolog= and Epilog=.
//!
//! A prolog that fails drains its node. So errors are only logged, and the exit status is 0: without a record the job's steps know less,
//! and are limited more strictly.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jobfence::config::Mode;
use jobfence::host::Host;
use jobfence::schedulers::slurm::prolog;
use log::Level;

use crate::command::{Failure, ignore_sigpipe, require_root};
use crate::configured::Configured;
use crate::syslog;

/// How long leftovers of a dead step daemon may delay the end of a job: less than any PrologEpilogTimeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// Records what slurmd says about a job.
pub fn prolog(configured: &Configured) -> ExitCode {
    ignore_sigpipe();
    tell(write(configured), "nothing is known of this job, so the strictest of all sections that it could have holds")
}

/// Removes the record.
pub fn epilog(configured: &Configured) -> ExitCode {
    ignore_sigpipe();
    tell(clean(configured), "what is left of the job is removed when another one begins")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn write(configured: &Configured) -> Result<(), Failure> {
    require_root("'jobfence prolog'")?;
    let config = configured.load()?.config;
    if config.mode != Mode::Off {
        prolog::prolog(&Host::read(&config)?, &config, &variable)?;
    }
    Ok(())
}

fn clean(configured: &Configured) -> Result<(), Failure> {
    require_root("'jobfence epilog'")?;
    let config = configured.load()?.config;
    let reaped = prolog::epilog(&Host::read(&config)?, &config, Instant::now() + PATIENCE, &variable)?;
    match reaped.failed.first() {
        Some(failed) => Err(failed.clone().into()),
        None => Ok(()),
    }
}

fn tell(done: Result<(), Failure>, so: &str) -> ExitCode {
    if let Err(error) = done {
        let sentence = format!("{error}; {so}");
        // Not by a macro, which panics if the write fails (a log on a full disk).
        let _ = writeln!(io::stderr(), "jobfence: {sentence}");
        // slurmd discards the output of a prolog that succeeds.
        syslog::say(Level::Error, &sentence);
    }
    ExitCode::SUCCESS
}
