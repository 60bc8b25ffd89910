// SPDX-License-Identifier: GPL-2.0-or-later
//! Keys for observing jobs, and what would not work. Jobs are fenced all the same, so this is not part of the verdict.

use std::path::Path;
use std::time::Duration;

use jobfence::config::{Config, Loaded, Mode, Percent, SignalAt, StoreUsage, StraysAction};
use jobfence::host::Host;
use jobfence::record::tracked;
use jobfence::report::usage_log::UsageLog;

use super::rows::Rows;
use crate::again::{self, AgainKey};
use crate::{armed, lend, login, report, strays};

/// Prints it for each of these keys.
pub fn say(rows: &mut Rows, loaded: &Loaded, host: &Host) {
    let config = &loaded.config;
    let of = |key: &str, what: Option<String>| what.map(|what| format!("{key}: {what}"));
    let lines = [
        of("UsageLog", UsageLog::from_config(config).and_then(|log| no_log(&log))),
        of("MetricsFile", config.metrics_file.as_deref().and_then(no_metrics)),
        of("StoreUsage", not_stored(config)),
        of("SampleInterval", no_series(config)),
        of("IdleAfter", not_seen(loaded, "IdleAfter", config.idle_after)),
        of("SignalAt", nobody_tells(loaded)),
        of("SignalAt", no_pressure(loaded, host)),
        of("GPUIdleAfter", not_seen(loaded, "GPUIdleAfter", config.gpu_idle_after)),
        of("MemoryPool", nothing_is_lent(loaded)),
        of("MemoryPoolUnused", nothing_unused_is_lent(loaded)),
    ];
    let of_key =
        |key: AgainKey| not_requeued(key, loaded).into_iter().filter_map(move |what| of(key.name(), Some(what)));
    let requeues = AgainKey::ALL.into_iter().flat_map(of_key);
    for line in lines.into_iter().flatten().chain(requeues) {
        rows.remark("usage", line);
    }
    if config.strays > StraysAction::Report
        && let Some(why) = strays::doubt(config, Some(loaded))
    {
        rows.remark("strays", format!("Strays: processes in no fence are only reported, since {why}"));
    }
    if let Some(what) = login::here(config) {
        rows.remark("login", format!("LoginLimits: {what}"));
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

/// Why nothing gets into the scheduler's accounting.
fn not_stored(config: &Config) -> Option<String> {
    match (config.store_usage, &config.usage_log) {
        (StoreUsage::None, _) => None,
        (StoreUsage::AdminComment, None) => Some("nothing is stored without UsageLog".to_owned()),
        (StoreUsage::AdminComment, Some(_)) => report::find_accounting()?.doubt(),
    }
}

/// Why no job would be found idle.
fn not_seen(loaded: &Loaded, key: &str, of_all: Option<Duration>) -> Option<String> {
    let mut in_sections = loaded.sections().flat_map(|(_, settings)| settings);
    let is_asked = of_all.is_some() || in_sections.any(|setting| setting.key().name == key);
    let is_lost = is_asked && loaded.config.sample_interval.is_none();
    is_lost.then(|| "no job is seen to be idle without SampleInterval".to_owned())
}

/// Why no job would be told that something comes near its limit.
fn nobody_tells(loaded: &Loaded) -> Option<String> {
    let mut in_sections = loaded.sections().flat_map(|(_, settings)| settings);
    let is_asked = loaded.config.signal_at.is_some() || in_sections.any(|setting| setting.key().name == "SignalAt");
    let is_lost = is_asked && !tracked::is_watched(&loaded.config.run_dir);
    is_lost.then(|| "no job is told, since 'jobfence hold' (jobfence.service) does not run".to_owned())
}

/// Why no job would be lent memory.
fn nothing_is_lent(loaded: &Loaded) -> Option<String> {
    let config = &loaded.config;
    let mut in_sections = loaded.sections().flat_map(|(_, settings)| settings);
    let is_elastic =
        config.elastic_ram > Percent::HUNDRED || in_sections.any(|setting| setting.key().name == "ElasticRAMPercent");
    let lack = [
        (!is_elastic, "since no job's limit may grow without ElasticRAMPercent"),
        (config.mode != Mode::Enforce, "without Mode=enforce"),
        (!tracked::is_watched(&config.run_dir), "since 'jobfence hold' (jobfence.service) does not run"),
    ];
    let (_, why) = lack.into_iter().find(|(is_lost, _)| *is_lost && config.memory_pool.is_some())?;
    Some(format!("no memory is lent {why}"))
}

/// Why nothing would be lent of what jobs have reserved and not touched.
fn nothing_unused_is_lent(loaded: &Loaded) -> Option<String> {
    let config = &loaded.config;
    let mut in_sections = loaded.sections().flat_map(|(_, settings)| settings);
    let is_scavenged = config.scavenger || in_sections.any(|setting| setting.key().name == "Scavenger");
    let lack = [
        (config.memory_pool.is_none(), "without MemoryPool"),
        (
            config.memory_pool_reserve.is_none(),
            "with MemoryPoolReserve=none: no job would be ended when the node runs short",
        ),
        (!is_scavenged, "since no section has Scavenger=yes"),
    ];
    let (_, why) = lack.into_iter().find(|(is_lost, _)| *is_lost && config.memory_pool_unused > Percent::ZERO)?;
    Some(format!("nothing that jobs have reserved is lent (MemoryPoolUnused) {why}"))
}

/// Why no job, or not each, would be requeued by this key.
fn not_requeued(key: AgainKey, loaded: &Loaded) -> Vec<String> {
    let config = &loaded.config;
    if !key.is_set(config, Some(loaded)) {
        return Vec::new();
    }
    let doubts = again::doubts_here(key, loaded);
    let lack = [
        (
            key == AgainKey::ScavengerEnd && !lend::lends_unused(config),
            "since nothing is lent that jobs have reserved (MemoryPoolUnused)",
        ),
        (doubts.is_none(), "since no scheduler here lets jobfence have a job run again"),
        (config.mode != Mode::Enforce, "without Mode=enforce"),
        (config.usage_log.is_none(), "without UsageLog"),
        (config.reap_interval.is_none(), "with ReapInterval=never"),
        (!tracked::is_watched(&config.run_dir), "since 'jobfence hold' (jobfence.service) does not run"),
    ];
    match lack.into_iter().find(|(is_lost, _)| *is_lost) {
        Some((_, why)) => vec![format!("no job is requeued {why}")],
        None => doubts.unwrap_or_default(),
    }
}

/// Why no job would be told that it waits.
fn no_pressure(loaded: &Loaded, host: &Host) -> Option<String> {
    let in_sections = loaded.sections().flat_map(|(_, settings)| settings);
    let of_sections = in_sections.filter(|setting| setting.key().name == "SignalAt");
    let of_sections = of_sections.filter_map(|setting| SignalAt::parse(setting.value()));
    let mut all = loaded.config.signal_at.into_iter().chain(of_sections);
    let (_, why) = all.find_map(|signal_at| armed::unseen(&signal_at, host))?;
    Some(format!("no job is told of pressure: {why}"))
}

/// What would be lost.
fn no_series(config: &Config) -> Option<String> {
    let is_lost = config.sample_interval.is_some() && config.usage_log.is_none();
    is_lost.then(|| "without UsageLog, the samples of a step go when it ends".to_owned())
}
