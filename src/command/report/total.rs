// SPDX-License-Identifier: GPL-2.0-or-later
//! The totals over all steps of a run, for the text report and for the page.

use std::time::Duration;

use jobfence::figures::Usage;
use jobfence::job::Cpus;
use jobfence::report::account::{Exit, UsageLine};

use super::runs::JobRun;
use crate::living::user_name;
use crate::logged::LoggedStep;
use crate::table::{NONE, printable};

/// What the steps of a run used together. `None`: no step says it.
pub struct Total {
    pub wall: Option<Duration>,
    /// The CPUs that the job could use: those of the step that could use most.
    pub cpus: Option<Cpus>,
    /// The CPUs that it was granted; a quota may be lower.
    pub cpus_granted: Option<Cpus>,
    pub memory_limit: Option<u64>,
    /// Its peak of memory is the job's, and `memory_unwritten` is known if a step left something to be written.
    pub usage: Usage,
}

impl Total {
    pub fn from_run(run: &JobRun) -> Self {
        let steps = || run.steps.iter();
        let mut usage = Usage::sum(&mut steps().map(|step| &step.usage), Usage::with);
        let of_job = steps().filter_map(|step| step.job_memory_peak_bytes).max().filter(|_| !run.is_beside_another);
        usage.memory_peak = usage.memory_peak.max(of_job);
        let unwritten = steps().filter_map(|step| step.usage.memory_unwritten).reduce(u64::saturating_add);
        usage.memory_unwritten = unwritten.filter(|bytes| *bytes > 0);
        Self {
            wall: run.wall(),
            // If the scheduler had already removed a step's directory, its limit is not known.
            cpus: steps().filter_map(cpus_of).max(),
            cpus_granted: steps().filter_map(granted_to).max(),
            memory_limit: steps().filter_map(|step| step.memory_limit_bytes).max(),
            usage,
        }
    }

    /// How many CPUs it could use, and how many were granted if that differs.
    pub fn cpus_in_words(&self) -> Option<String> {
        let cpus = self.cpus?;
        Some(match self.cpus_granted.filter(|granted| *granted > cpus) {
            Some(granted) => format!("{cpus} of {}", granted.in_words()),
            None => cpus.in_words(),
        })
    }

    /// The CPU time that it could have used.
    pub fn cpu_granted(&self) -> Option<Duration> {
        time_of(self.wall?, self.cpus?)
    }

    pub fn cpu_efficiency(&self) -> Option<f64> {
        Some(100.0 * self.usage.cpu?.as_secs_f64() / self.cpu_granted()?.as_secs_f64())
    }

    pub fn memory_share(&self) -> Option<f64> {
        let limit = self.memory_limit.filter(|limit| *limit > 0)?;
        Some(100.0 * self.usage.memory_peak? as f64 / limit as f64)
    }
}

/// A number of CPUs as JSON has it.
pub fn decimal(cpus: Cpus) -> f64 {
    cpus.thousandths() as f64 / 1000.0
}

/// The CPU time that so many CPUs have. `None`: none.
fn time_of(wall: Duration, cpus: Cpus) -> Option<Duration> {
    Duration::try_from_secs_f64(wall.as_secs_f64() * decimal(cpus)).ok().filter(|time| !time.is_zero())
}

/// The CPUs that a step could use: the lower one of grant and quota.
pub fn cpus_of(step: &LoggedStep) -> Option<Cpus> {
    granted_to(step).into_iter().chain(step.cpus_limit).min()
}

fn granted_to(step: &LoggedStep) -> Option<Cpus> {
    step.cpus_granted.filter(|cpus| *cpus > Cpus::ZERO)
}

/// The CPU time in percent of what it could have used.
pub fn efficiency(step: &LoggedStep) -> Option<f64> {
    Some(100.0 * step.usage.cpu?.as_secs_f64() / time_of(step.wall_seconds?, cpus_of(step)?)?.as_secs_f64())
}

/// How much of the memory at the end was page cache, in percent.
pub fn cache_share(step: &LoggedStep) -> Option<f64> {
    let usage = &step.usage;
    let cache = usage.memory_file?;
    let others = [usage.memory_anonymous, usage.memory_shared, usage.memory_kernel, usage.memory_huge_pages]
        .into_iter()
        .flatten();
    let all = others.fold(cache, u64::saturating_add);
    (all > 0).then(|| 100.0 * cache as f64 / all as f64)
}

pub fn exit(step: &LoggedStep) -> String {
    match step.exit {
        Some(Exit::Status(status)) => status.to_string(),
        Some(Exit::Signal(signal)) => format!("signal {signal}"),
        None => NONE.to_owned(),
    }
}

/// A text of a line.
pub type LineText = fn(&UsageLine) -> Option<&String>;

/// The names of a job for people, beside its id.
pub const FACTS: &[(LineText, &str)] = &[
    (|line| line.partition.as_ref(), "partition"),
    (|line| line.account.as_ref(), "account"),
    (|line| line.qos.as_ref(), "QOS"),
    (|line| line.project.as_ref(), "project"),
    (|line| line.global_job.as_ref(), "GlobalJobId"),
];

/// The text from the first step that has it; it should be equal in all.
pub fn said(run: &JobRun, text: LineText) -> Option<&str> {
    run.steps.iter().find_map(|step| text(step)).filter(|text| !text.is_empty()).map(String::as_str)
}

pub fn name_and_user(run: &JobRun) -> (String, String) {
    let uid = run.steps.iter().find_map(|step| step.uid);
    let number = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
    let known = || uid.and_then(|uid| u32::try_from(uid).ok()).map(user_name);
    let user =
        said(run, |line| line.user.as_ref()).map(printable).or_else(known).unwrap_or_else(|| "unknown".to_owned());
    (printable(said(run, |line| line.job.as_ref()).unwrap_or(NONE)), format!("{user} (uid {number})"))
}
