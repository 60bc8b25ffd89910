// SPDX-License-Identifier: GPL-2.0-or-later
//! Keys for observing jobs, and what would not work. Jobs are fenced all the same, so this is not part of the verdict.

use std::path::Path;

use jobfence::config::{Config, StoreUsage};
use jobfence::report::usage_log::UsageLog;

use super::rows::Rows;
use crate::schedulers::slurm::store;

/// Prints it for each of these keys.
pub fn say(rows: &mut Rows, config: &Config) {
    let of = |key: &str, what: Option<String>| what.map(|what| format!("{key}: {what}"));
    let lines = [
        of("UsageLog", UsageLog::from_config(config).and_then(|log| no_log(&log))),
        of("MetricsFile", config.metrics_file.as_deref().and_then(no_metrics)),
        of("StoreUsage", not_stored(config)),
        of("SampleInterval", no_series(config)),
    ];
    for line in lines.into_iter().flatten() {
        rows.remark("usage", line);
    }
}

/// Why no line can be written.
fn no_log(log: &UsageLog<'_>) -> Option<String> {
    if let Err(error) = log.files() {
        return Some(error.to_string());
    }
    // The last directory is made with the first line, but none above it.
    let above = log.path().parent().and_then(Path::parent)?;
    (!above.is_dir()).then(|| format!("no line is written, since there is no directory {}", above.display()))
}

/// Why the figures would not be read.
fn no_metrics(file: &Path) -> Option<String> {
    if file.extension().is_none_or(|extension| extension != "prom") {
        return Some(format!("{} does not end in .prom, and node_exporter reads no other files", file.display()));
    }
    let directory = file.parent().filter(|directory| !directory.is_dir())?;
    Some(format!("no figures are written, since there is no directory {}", directory.display()))
}

/// Why nothing gets into Slurm's database.
fn not_stored(config: &Config) -> Option<String> {
    match (config.store_usage, &config.usage_log) {
        (StoreUsage::None, _) => None,
        (StoreUsage::AdminComment, None) => Some("nothing is stored without UsageLog".to_owned()),
        (StoreUsage::AdminComment, Some(_)) => store::can_store().err(),
    }
}

/// What would be lost.
fn no_series(config: &Config) -> Option<String> {
    let is_lost = config.sample_interval.is_some() && config.usage_log.is_none();
    is_lost.then(|| "without UsageLog, the samples of a step go when it ends".to_owned())
}
