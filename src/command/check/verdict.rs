// SPDX-License-Identifier: GPL-2.0-or-later
//! The faults that a job would meet, and whether it would be fenced all the same.

use std::fmt;
use std::path::Path;

use jobfence::cgroup::layout::LayoutKind;
use jobfence::config::{Candidate, ConfigError, Limit, LoadError, Loaded, Mode, OnError};
use jobfence::error::Error;
use jobfence::fence::rules;
use jobfence::host::Host;

use super::rows::{GREEN, RED, YELLOW};
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
    /// The place from which the check is run.
    Here,
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
            Cause::RunDir | Cause::Step | Cause::Here => true,
        }
    }

    /// The name of its row, and what it says.
    pub fn row(&self, given: &PluginArguments) -> (String, String) {
        let (what, keys): (_, &[&str]) = match self.cause {
            Cause::Limit(limit) => (limit.to_string(), rules::keys_of(limit)),
            Cause::RunDir => ("records".to_owned(), &["RunDir"]),
            Cause::Step | Cause::Here => ("trial".to_owned(), &[]),
        };
        let mut line = self.error.to_string();
        let settings = given.settings(self.candidate, keys);
        if !settings.is_empty() {
            line.push_str(&format!("; by {}", settings.join(", ")));
        }
        if !self.is_fatal() {
            line.push_str("; OnError lets jobs run without it");
        }
        (what, line)
    }

    /// The jobs that are affected, as `job with [Partition=gpu]`.
    fn jobs(&self) -> String {
        match self.candidate.sections.as_slice() {
            [] => "job".to_owned(),
            sections => format!("job with {}", sections.join(" ")),
        }
    }
}

/// What a check says in the end: the first word of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictWord {
    /// A job would be fenced.
    Ok,
    /// A job would be observed.
    Observe,
    /// Mode=off.
    Off,
    /// A job would run without a fence or without a limit, or not at all.
    Unfenced,
    /// Jobs are only to be observed, and a job would not be.
    Unobserved,
    /// This cannot be seen, or not now.
    Unknown,
}

impl VerdictWord {
    /// Whether jobs are as they are configured to be.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::Observe | Self::Off)
    }

    /// The colour of the sentence on a terminal. The sentence says the same without it.
    pub fn colour(self) -> u8 {
        match self {
            Self::Ok | Self::Observe | Self::Off => GREEN,
            Self::Unfenced | Self::Unobserved => RED,
            Self::Unknown => YELLOW,
        }
    }
}

impl fmt::Display for VerdictWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Observe => "observe",
            Self::Off => "off",
            Self::Unfenced => "unfenced",
            Self::Unobserved => "unobserved",
            Self::Unknown => "unknown",
        })
    }
}

/// The end of a check.
pub struct Judgement {
    pub word: VerdictWord,
    /// For people: the whole sentence.
    pub text: String,
    /// What equal nodes have in common, for the line of a node on which all is well.
    like: Option<String>,
    /// What keeps jobs from being fenced until the installation is finished. `jobfence check` succeeds all the same.
    not_yet: Option<String>,
    /// The mistakes of the configuration; nothing else was looked at then.
    pub mistakes: Vec<ConfigError>,
}

impl Judgement {
    pub fn new(word: VerdictWord, text: impl Into<String>) -> Self {
        Self { word, text: text.into(), like: None, not_yet: None, mistakes: Vec::new() }
    }

    /// The configuration cannot be read.
    pub fn wrong(errors: &LoadError, is_unseen: bool) -> Self {
        let mistakes = errors.errors().to_vec();
        let word = match errors.mode {
            _ if is_unseen => VerdictWord::Unknown,
            Mode::Enforce => VerdictWord::Unfenced,
            Mode::Observe | Mode::Off => VerdictWord::Unobserved,
        };
        let text = mistakes.first().map(ToString::to_string).unwrap_or_default();
        Self { mistakes, ..Self::new(word, text) }
    }

    /// For programs: the whole sentence.
    pub fn whole(&self) -> &str {
        self.not_yet.as_deref().filter(|_| self.word.is_good()).unwrap_or(&self.text)
    }

    /// For programs and for one line: the word, and why.
    pub fn short(&self) -> (VerdictWord, &str) {
        match (&self.not_yet, &self.like) {
            (Some(why), _) if self.word == VerdictWord::Observe => (VerdictWord::Unobserved, why),
            (Some(why), _) if self.word.is_good() => (VerdictWord::Unfenced, why),
            (_, Some(like)) if self.word.is_good() => (self.word, like),
            _ => (self.word, &self.text),
        }
    }
}

/// Whether a job would be fenced, and if not, why.
#[derive(Default)]
pub struct Verdict {
    /// The reason, as a whole sentence: the first one that is certain to unfence jobs, or else the first one.
    no: Option<(VerdictWord, String)>,
    not_yet: Option<String>,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.no.is_none()
    }

    /// No job would be fenced.
    pub fn no(&mut self, why: String) {
        self.found(VerdictWord::Unfenced, why);
    }

    /// Whether a job would be fenced is not known.
    pub fn unknown(&mut self, why: String) {
        self.found(VerdictWord::Unknown, why);
    }

    /// No job is fenced until the administrator goes on with the installation.
    pub fn not_yet(&mut self, why: String) {
        self.not_yet.get_or_insert(why);
    }

    fn found(&mut self, word: VerdictWord, why: String) {
        match &self.no {
            Some((VerdictWord::Unfenced, _)) => {}
            Some(_) if word != VerdictWord::Unfenced => {}
            _ => self.no = Some((word, why)),
        }
    }

    pub fn add(&mut self, fault: &Fault<'_>) {
        if !fault.is_fatal() {
            return;
        }
        let config = &fault.candidate.config;
        let (jobs, error) = (fault.jobs(), &fault.error);
        if fault.cause == Cause::Here {
            return self.unknown(format!("NO {jobs} is known to be fenced here: {error}"));
        }
        match (config.mode, config.on_error.general()) {
            (Mode::Observe, _) => self.found(
                VerdictWord::Unobserved,
                format!("NO {jobs} would be observed here; jobs run as if there were no jobfence: {error}"),
            ),
            (_, OnError::Warn) => self.no(format!(
                "NO {jobs} would be fenced here as configured; with OnError=warn jobs run without: {error}"
            )),
            (_, OnError::Fail) => self.no(format!("NO {jobs} would be fenced here as configured: {error}")),
        }
    }

    /// The end. `enforces`: whether any job is to be limited. `fine`: what to say if nothing was found.
    pub fn judge(self, enforces: bool, fine: impl FnOnce() -> Judgement) -> Judgement {
        let Some((word, why)) = self.no else { return Judgement { not_yet: self.not_yet, ..fine() } };
        Judgement::new(if word == VerdictWord::Unfenced && !enforces { VerdictWord::Unobserved } else { word }, why)
    }
}

/// The end of a check without root that has found no fault.
pub fn without_root() -> Judgement {
    let text = "only root can see whether a job would be fenced here; no obstacle was found so far: run 'jobfence check' as root";
    Judgement::new(VerdictWord::Unknown, text)
}

/// The end of a check that has found no fault. `enforces`: whether any job is to be limited. `own`: whether any directory of jobs is
/// jobfence's.
pub fn good(host: &Host, loaded: &Loaded, enforces: bool, own: bool, places: &SlurmDirs) -> Judgement {
    let word = if enforces { VerdictWord::Ok } else { VerdictWord::Observe };
    let done = if loaded.config.mode == Mode::Enforce { "fenced" } else { "observed" };
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
    let layout = match host.layout.kind() {
        LayoutKind::Unified => "cgroup v2",
        LayoutKind::Hybrid => "cgroup v1 and v2",
        LayoutKind::Legacy => "cgroup v1",
    };
    let file = loaded.file.as_ref().map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
    let directories = if own { "jobfence" } else { "Slurm" };
    let like = format!("jobfence {}, {file}, {layout}, in directories of {directories}", jobfence::VERSION);
    Judgement { like: Some(like), ..Judgement::new(word, format!("a job would be {done} here, {whose}{unless}")) }
}
