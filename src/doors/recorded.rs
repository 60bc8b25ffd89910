// SPDX-License-Identifier: GPL-2.0-or-later
//! The fences of a job that are recorded on this node: which of them a command is about.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::job::Id;
use crate::launch::NotFenced;
use crate::record::{Record, Records};
use crate::sorted;

/// The fences that a command is about.
#[derive(Debug, Clone)]
pub struct WantedFences {
    /// The job.
    pub job: Id,
    /// The step. `None`: all.
    pub step: Option<Id>,
    /// The run. `None`: all.
    pub run: Option<u32>,
}

/// Selects each of these fences alone, by its step and run.
pub fn each(config: &Config, which: &WantedFences) -> Result<Vec<WantedFences>> {
    let one = |record: &Record| {
        let shared = record.shared.as_deref()?;
        Some(WantedFences { job: which.job.clone(), step: Some(shared.step.clone()), run: Some(shared.run) })
    };
    Ok(records(config, which)?.iter().filter_map(one).collect())
}

/// Whether any of these fences exists.
pub fn exist(config: &Config, which: &WantedFences) -> Result<bool> {
    Ok(!records(config, which)?.is_empty())
}

/// Whether these `count` fences are all that the job has.
pub fn are_all(config: &Config, which: &WantedFences, count: usize) -> Result<bool> {
    Ok(which.step.is_none()
        && (which.run.is_none() || count == Records::open(&config.run_dir)?.of_job(&which.job)?.len()))
}

/// The user of the job that has these fences.
pub fn uid_of(config: &Config, which: &WantedFences) -> Result<Option<u32>> {
    Ok(records(config, which)?.first().and_then(Record::uid))
}

/// Their records, by step and run.
pub(super) fn records(config: &Config, which: &WantedFences) -> Result<Vec<Record>> {
    let mut found = Records::open(&config.run_dir)?.of_job(&which.job)?;
    found.retain(|record| {
        record.shared.as_ref().is_some_and(|shared| {
            which.step.as_ref().is_none_or(|step| *step == shared.step) && which.run.is_none_or(|run| run == shared.run)
        })
    });
    sorted::sort_by(&mut found, |a, b| {
        let [a, b] = [a, b].map(|record| record.shared.as_ref().map(|shared| (&shared.step, shared.run)));
        a.cmp(&b)
    });
    Ok(found)
}

/// The error where there is none.
pub(super) fn none(which: &WantedFences) -> Error {
    let step = which.step.as_ref().map(|step| format!(" step {step}")).unwrap_or_default();
    let run = which.run.map(|run| format!(" run {run}")).unwrap_or_default();
    Error::new(format!("there is no fence of job {}{step}{run}", which.job)).hint(
        "'jobfence open' makes one. A fence is gone once it was closed, its holder has ended, or the machine has \
         booted",
    )
}

/// The only matching fence; an error if there is not exactly one.
pub(super) fn the_one(config: &Config, which: &WantedFences) -> Result<Record, NotFenced> {
    let mut found = records(config, which)?;
    match (found.pop(), found.len()) {
        (Some(record), 0) => Ok(record),
        (None, _) => Err(none(which).into()),
        (Some(last), _) => {
            found.push(last);
            let shared = found.iter().filter_map(|record| record.shared.as_deref());
            let all: Vec<String> = shared.map(|shared| format!("step {} run {}", shared.step, shared.run)).collect();
            Err(Error::new("the job has more than one fence:")
                .value(all.join(", "))
                .hint("name one with --step and --run")
                .into())
        }
    }
}
