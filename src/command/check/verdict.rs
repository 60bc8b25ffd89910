// SPDX-License-Identifier: GPL-2.0-or-later
//! The faults that a job would meet, and whether it would be fenced all the same.

use std::path::Path;

use jobfence::config::{Candidate, Limit, Mode, OnError};
use jobfence::error::Error;
use jobfence::fence::rules;
use jobfence::host::Host;

use crate::schedulers::slurm::arguments::PluginArguments;
use crate::schedulers::slurm::dirs::SlurmDirs;

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// One limit.
    Limit(Limit),
    /// The directory of records.
    RunDir,
    /// The step as a whole.
    Step,
}

/// A fault that a job would meet.
pub struct Fault<'a> {
    pub candidate: &'a Candidate,
    pub cause: Cause,
    pub error: Error,
}

impl Fault<'_> {
    /// Whether a job runs without what was configured. If OnError lets jobs run without one limit, that is as configured.
    pub fn is_fatal(&self) -> bool {
        let on_error = &self.candidate.config.on_error;
        match self.cause {
            Cause::Limit(limit) => on_error.general() == OnError::Warn || on_error.for_limit(limit) == OnError::Fail,
            Cause::RunDir | Cause::Step => true,
        }
    }

    pub fn line(&self, given: &PluginArguments) -> String {
        let (what, keys): (_, &[&str]) = match self.cause {
            Cause::Limit(limit) => (limit.to_string(), rules::keys_of(limit)),
            Cause::RunDir => ("records".to_owned(), &["RunDir"]),
            Cause::Step => ("trial".to_owned(), &[]),
        };
        let mut line = format!("{what:<14} {}", self.error);
        let settings = given.settings(self.candidate, keys);
        if !settings.is_empty() {
            line.push_str(&format!("; by {}", settings.join(", ")));
        }
        if !self.is_fatal() {
            line.push_str("; OnError lets jobs run without it");
        }
        line
    }

    /// The jobs that are affected, as `job with [Partition=gpu]`.
    fn jobs(&self) -> String {
        match self.candidate.sections.as_slice() {
            [] => "job".to_owned(),
            sections => format!("job with {}", sections.join(" ")),
        }
    }
}

/// Whether a job would be fenced, and if not, why.
#[derive(Default)]
pub struct Verdict {
    /// The first reason, as a whole sentence.
    no: Option<String>,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.no.is_none()
    }

    pub fn no(&mut self, why: String) {
        self.no.get_or_insert(why);
    }

    pub fn add(&mut self, fault: &Fault<'_>) {
        if !fault.is_fatal() {
            return;
        }
        let config = &fault.candidate.config;
        let (jobs, error) = (fault.jobs(), &fault.error);
        self.no(match (config.mode, config.on_error.general()) {
            (Mode::Observe, _) => {
                format!("NO {jobs} would be observed here; jobs run as if there were no jobfence: {error}")
            }
            (_, OnError::Warn) => {
                format!("NO {jobs} would be fenced here as configured; with OnError=warn jobs run without: {error}")
            }
            (_, OnError::Fail) => format!("NO {jobs} would be fenced here as configured: {error}"),
        });
    }

    pub fn without_root(self) -> bool {
        match self.no {
            Some(why) => println!("verdict        {why}"),
            None => println!(
                "verdict        only root can see whether a job would be fenced here; no obstacle was found so far: \
                 run 'jobfence check' as root"
            ),
        }
        false
    }

    pub fn say(self, host: &Host, mode: Mode, own: bool, places: &SlurmDirs) -> bool {
        if let Some(why) = &self.no {
            println!("verdict        {why}");
            return false;
        }
        let word = match mode {
            Mode::Enforce => "fenced",
            Mode::Observe | Mode::Off => "observed",
        };
        let whose = match own {
            true => {
                format!(
                    "in {}/uid_UID/job_JOB/step_STEP of each hierarchy with placement own",
                    Path::new(&host.base).display()
                )
            }
            false => "in Slurm's own directories".to_owned(),
        };
        let unless = match places.are_unknown() {
            true => "; run this again when slurmd has made its scope, to see whether it has the controllers",
            false => "",
        };
        println!("verdict        a job would be {word} here, {whose}{unless}");
        true
    }
}
