// SPDX-License-Identifier: GPL-2.0-or-later
//! The totals over all steps of a run, for the text report and for the page.

use std::time::Duration;

use serde_json::Value;

use super::log::LoggedStep;
use super::runs::JobRun;
use crate::living::user_name;
use crate::table::{NONE, printable};

/// What the steps of a run used together. `None`: no step says it.
pub struct Total {
    pub wall: Option<Duration>,
    pub cpu: Option<f64>,
    pub throttled: Option<f64>,
    /// The CPUs that the job could use: those of the step that could use most.
    pub cpus: Option<f64>,
    /// The CPUs that it was granted; a quota may be lower.
    pub cpus_granted: Option<f64>,
    pub memory_limit: Option<u64>,
    pub memory_peak: Option<u64>,
    pub read: Option<u64>,
    pub written: Option<u64>,
    /// File data that was not yet written to disk when a step ended.
    pub unwritten: Option<u64>,
    pub oom_kills: Option<u64>,
}

impl Total {
    pub fn of(run: &JobRun) -> Self {
        let sum = |member: &str| {
            let all = run.steps.iter().filter_map(|step| step.whole(member));
            all.reduce(u64::saturating_add)
        };
        let seconds = |member: &str| run.steps.iter().filter_map(|step| step.number(member)).reduce(|a, b| a + b);
        let of_job = |step: &LoggedStep| step.whole("job_memory_peak_bytes").filter(|_| !run.is_beside_another);
        let peaks = run.steps.iter().flat_map(|step| [step.whole("memory_peak_bytes"), of_job(step)]);
        Self {
            wall: run.wall(),
            cpu: seconds("cpu_seconds"),
            throttled: seconds("throttled_seconds"),
            // If the scheduler had already removed a step's directory, its limit is not known.
            cpus: run.steps.iter().filter_map(cpus_of).reduce(f64::max),
            cpus_granted: run.steps.iter().filter_map(granted_to).reduce(f64::max),
            memory_limit: run.steps.iter().filter_map(|step| step.whole("memory_limit_bytes")).max(),
            memory_peak: peaks.flatten().max(),
            read: sum("read_bytes"),
            written: sum("written_bytes"),
            unwritten: sum("memory_unwritten_bytes").filter(|bytes| *bytes > 0),
            oom_kills: sum("oom_kills"),
        }
    }

    /// How many CPUs it could use, and how many were granted if that differs.
    pub fn cpus_in_words(&self) -> Option<String> {
        let cpus = self.cpus?;
        Some(match self.cpus_granted.filter(|granted| *granted > cpus) {
            Some(granted) => format!("{cpus} of {}", cpus_in_words(granted)),
            None => cpus_in_words(cpus),
        })
    }

    /// The CPU time that it could have used.
    pub fn cpu_granted(&self) -> Option<f64> {
        Some(self.wall?.as_secs_f64() * self.cpus?).filter(|granted| *granted > 0.0)
    }

    pub fn cpu_efficiency(&self) -> Option<f64> {
        Some(100.0 * self.cpu? / self.cpu_granted()?)
    }

    pub fn memory_share(&self) -> Option<f64> {
        let limit = self.memory_limit.filter(|limit| *limit > 0)?;
        Some(100.0 * self.memory_peak? as f64 / limit as f64)
    }
}

/// As [`jobfence::job::Cpus::in_words`].
pub fn cpus_in_words(cpus: f64) -> String {
    format!("{cpus} {}", if cpus == 1.0 { "CPU" } else { "CPUs" })
}

/// The CPUs that a step could use: the lower one of grant and quota.
pub fn cpus_of(step: &LoggedStep) -> Option<f64> {
    granted_to(step).into_iter().chain(step.number("cpus_limit")).reduce(f64::min)
}

fn granted_to(step: &LoggedStep) -> Option<f64> {
    step.number("cpus_granted").filter(|cpus| *cpus > 0.0)
}

/// The CPU time in percent of what it could have used.
pub fn efficiency(step: &LoggedStep) -> Option<f64> {
    let granted = step.number("wall_seconds")? * cpus_of(step)?;
    (granted > 0.0).then_some(100.0 * step.number("cpu_seconds")? / granted)
}

/// How much of the memory at the end was page cache, in percent.
pub fn cache_share(step: &LoggedStep) -> Option<f64> {
    let cache = step.whole("memory_file_bytes")?;
    let others = ["memory_anonymous_bytes", "memory_shared_bytes", "memory_kernel_bytes", "memory_huge_pages_bytes"];
    let others = others.iter().filter_map(|member| step.whole(member)).fold(0, u64::saturating_add);
    let all = cache.saturating_add(others);
    (all > 0).then(|| 100.0 * cache as f64 / all as f64)
}

pub fn exit(step: &LoggedStep) -> String {
    match (step.0.get("exit_status").and_then(Value::as_i64), step.whole("exit_signal")) {
        (Some(status), _) => status.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => NONE.to_owned(),
    }
}

/// Members of a line by which a job is known, beside its id, and their names for people.
pub const FACTS: &[(&str, &str)] = &[
    ("partition", "partition"),
    ("account", "account"),
    ("qos", "QOS"),
    ("project", "project"),
    ("global_job", "GlobalJobId"),
];

/// The text from the first step that has it; it should be equal in all.
pub fn said<'a>(run: &'a JobRun, member: &str) -> Option<&'a str> {
    run.steps.iter().find_map(|step| step.text(member)).filter(|text| !text.is_empty())
}

pub fn name_and_user(run: &JobRun) -> (String, String) {
    let uid = run.steps.iter().find_map(LoggedStep::uid);
    let number = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
    let known = || uid.and_then(|uid| u32::try_from(uid).ok()).map(user_name);
    let user = said(run, "user").map(printable).or_else(known).unwrap_or_else(|| "unknown".to_owned());
    (printable(said(run, "job").unwrap_or(NONE)), format!("{user} (uid {number})"))
}

/// A number of seconds, if it is valid.
pub fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}
