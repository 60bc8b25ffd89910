// SPDX-License-Identifier: GPL-2.0-or-later
//! What a record says beyond its first lines if several processes share a fence: `jobfence-record 2`.
//!
//! One line each, in this order: `holder`, `opener`, `job`, `step`, `run`, `controllers`, `log_from`, `overlay`; then `gpus`, if some
//! were chosen for the job; then `asked_processes`, if the job's user has asked for a number, and the lines of `record::noted`; then
//! `plan=none`, or the lines of `record::plan`. Only exactly what would be written is accepted.

use std::fmt;

use super::holder::Holder;
use super::job::is_device;
use super::lines::field;
use super::noted::Noted;
use super::plan;
use crate::cgroup::events::Sequence;
use crate::job::Id;
use crate::policy::Plan;
use crate::sys::process::Owner;

/// The shared part of a record: see the beginning of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// What holds the fence.
    pub holder: Holder,
    /// The process that has opened it, which tells it from another fence of the same name.
    pub opener: Owner,
    /// The job.
    pub job: Id,
    /// The step.
    pub step: Id,
    /// Which run of the job and the step it is, as the scheduler counts.
    pub run: u32,
    /// The controllers that its limits need.
    pub controllers: Vec<String>,
    /// Where in the kernel's log it begins, as earlier releases noted it; `None`: not noted.
    pub log_from: Option<Sequence>,
    /// Whether it may be limited in the scheduler's directories.
    pub overlay: bool,
    /// The devices of the GPUs that were chosen for the job, by their paths.
    pub gpus: Vec<String>,
    /// Its limits; `None`: its opening has not come to its end.
    pub plan: Option<HandedOver>,
}

/// What the process that opens a fence, or changes its limits, leaves to those that resume it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// The fence's limits.
    pub plan: Plan,
    /// How many processes the job's user has asked for, if the site allows more.
    pub asked_processes: Option<u64>,
    /// What is known of its job, for the usage log.
    pub noted: Noted,
}

impl HandedOver {
    fn parse(text: &str) -> Option<Self> {
        let (asked_processes, lines) = match text.strip_prefix(ASKED) {
            Some(rest) => {
                rest.split_once('\n').and_then(|(number, lines)| Some((Some(number.parse().ok()?), lines)))?
            }
            None => (None, text),
        };
        let (noted, lines) = Noted::parse(lines)?;
        Some(Self { plan: plan::parse(lines)?, asked_processes, noted })
    }
}

impl fmt::Display for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.asked_processes {
            writeln!(f, "{ASKED}{number}")?;
        }
        self.noted.fmt(f)?;
        f.write_str(&plan::lines(&self.plan))
    }
}

const NO_PLAN: &str = "plan=none\n";
/// Written only if there is such a number: a record without it is as before this line existed.
const ASKED: &str = "asked_processes=";
/// Likewise.
const GPUS: &str = "gpus=";

impl Shared {
    /// Reads the lines after those of every record.
    pub(super) fn parse(lines: std::str::Lines<'_>) -> Option<Self> {
        let all: String = lines.clone().flat_map(|line| [line, "\n"]).collect();
        let mut lines = lines;
        let mut shared = Self {
            holder: Holder::parse(&field(&mut lines, "holder")?)?,
            opener: match Holder::parse(&field(&mut lines, "opener")?)? {
                Holder::Process(opener) => opener,
                _ => return None,
            },
            job: Id::unescaped(&field(&mut lines, "job")?)?,
            step: Id::unescaped(&field(&mut lines, "step")?)?,
            run: field(&mut lines, "run")?.parse().ok()?,
            controllers: field(&mut lines, "controllers")?.split(',').map(str::to_owned).collect(),
            log_from: match field(&mut lines, "log_from")?.as_str() {
                "unknown" => None,
                number => Some(number.parse().ok()?),
            },
            overlay: field(&mut lines, "overlay")? == "yes",
            gpus: Vec::new(),
            plan: None,
        };
        let rest: String = lines.flat_map(|line| [line, "\n"]).collect();
        let mut rest = rest.as_str();
        if let Some((gpus, behind)) = rest.strip_prefix(GPUS).and_then(|found| found.split_once('\n')) {
            shared.gpus = gpus.split(',').map(str::to_owned).collect();
            rest = behind;
            if !shared.gpus.iter().all(|path| is_device(path)) {
                return None;
            }
        }
        shared.plan = if rest == NO_PLAN { None } else { Some(HandedOver::parse(rest)?) };
        (shared.to_string() == all).then_some(shared)
    }

    /// Whether both are of the same opening.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.opener, self.run, &self.job, &self.step) == (other.opener, other.run, &other.job, &other.step)
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "holder={}\nopener={}", self.holder, Holder::Process(self.opener))?;
        writeln!(f, "job={}\nstep={}\nrun={}", self.job.escaped(), self.step.escaped(), self.run)?;
        writeln!(f, "controllers={}", self.controllers.join(","))?;
        match self.log_from {
            Some(number) => writeln!(f, "log_from={number}")?,
            None => writeln!(f, "log_from=unknown")?,
        }
        writeln!(f, "overlay={}", if self.overlay { "yes" } else { "no" })?;
        if !self.gpus.is_empty() {
            writeln!(f, "{GPUS}{}", self.gpus.join(","))?;
        }
        match &self.plan {
            Some(handed_over) => handed_over.fmt(f),
            None => f.write_str(NO_PLAN),
        }
    }
}
