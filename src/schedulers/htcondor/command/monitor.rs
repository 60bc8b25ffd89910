// SPDX-License-Identifier: GPL-2.0-or-later
//! The present usage of jobs in HTCondor's slots, as a resource monitor prints it: STARTD_CRON of HTCondor with METRICS. The startd keeps
//! each job's highest value, and the starter passes it on into the job's ad (`publishStartdUpdates`, the same in 23.9 and 25.13).
//!
//! The startd runs the monitor as HTCondor's own user, which cannot read root's records. So it reads the directories alone. The usage is
//! for people, and decides nothing.

use std::path::Path;
use std::time::Duration;

use jobfence::cgroup;
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::layout::{Hierarchy, Layout, MOUNTPOINT};
use jobfence::cgroup::usage::Depth;
use jobfence::config::{Mode, OnError};
use jobfence::error::Result;
use jobfence::fence::IDLE;
use jobfence::figures::Usage;
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::schedulers::htcondor::{LOCAL, STARTERS_LEAF, quoted};
use jobfence::sys::dir::Dir;
use nix::unistd::geteuid;

use crate::command::Failure;
use crate::configured::Configured;
use crate::host::grantable::{Grantable, Reserve};
use crate::host::memory::pressure;

/// The attribute that START of a site asks for.
pub const HEALTHY: &str = "JobfenceHealthy";

/// Whether HTCondor has the whole of cgroup v2 here; it has none of it otherwise.
pub fn has_unified() -> bool {
    Path::new(MOUNTPOINT).join("cgroup.procs").exists()
}

/// The one hierarchy of cgroup v2, if HTCondor has it.
pub fn unified() -> Option<Hierarchy> {
    let layout = Layout::read(&Dir::open("/proc").ok()?, Path::new(MOUNTPOINT)).ok()?;
    layout.unified().cloned()
}

/// Why this host can fence no job at all. `Ok`: no reason is known. `None`: not known, because only root can read the configuration.
pub fn health(configured: &Configured) -> Option<Result<(), String>> {
    let is_borne = |mode, general| mode == Mode::Off || general == OnError::Warn;
    let loaded = match configured.load() {
        Err(errors) if is_borne(errors.mode, errors.on_error.within(errors.mode).general()) => return Some(Ok(())),
        Err(errors) if !geteuid().is_root() && errors.to_string().contains("EACCES") => return None,
        Err(errors) => return Some(Err(errors.to_string())),
        Ok(loaded) => loaded,
    };
    let config = loaded.strictest();
    if is_borne(config.mode, config.on_error.within(config.mode).general()) {
        return Some(Ok(()));
    }
    if !has_unified() {
        return Some(Err("HTCondor takes its jobs out of the fence where cgroup v1 is mounted".to_owned()));
    }
    Some(Host::read(&config).and_then(|host| base(&host)).map_err(|error| error.to_string()))
}

/// Checks jobfence's own directory, if systemd makes it.
fn base(host: &Host) -> Result<()> {
    match host.layout.unified().filter(|_| host.systemd) {
        Some(unified) => cgroup::base::open_delegated(&host.base, unified).map(drop),
        None => Ok(()),
    }
}

/// The lines that tell the startd the host's health.
pub fn health_lines(health: &Option<Result<(), String>>) -> Vec<String> {
    match health {
        None => Vec::new(),
        Some(Ok(())) => vec![format!("{HEALTHY} = true"), "JobfenceFault = \"\"".to_owned()],
        Some(Err(why)) => vec![format!("{HEALTHY} = false"), format!("JobfenceFault = {}", quoted(why))],
    }
}

/// A slot in which a job runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotUse {
    /// The slot's name on this host.
    pub slot: String,
    /// The job's own and shared memory now, in bytes, as HTCondor 25 counts it. Page cache is left out: the kernel takes it back, and users
    /// would request memory for it the next time. The startd keeps the highest value.
    pub memory: Option<u64>,
    /// The job's page cache now, in bytes.
    pub cache: Option<u64>,
    /// CPU time that the step has used.
    pub cpu: Option<Duration>,
}

/// The slots of this host in which jobs run. A slot that cannot be read is left out.
pub fn slots(host: &Host) -> Vec<SlotUse> {
    let mut found = Vec::new();
    let Some(unified) = host.layout.unified().filter(|unified| unified.version == Version::V2) else { return found };
    let base = unified.open().and_then(|root| root.child(&host.base));
    let Ok(base) = base else { return found };
    let idle = base.child(IDLE).ok();
    let users = children(&base, "uid_").into_iter().chain(idle.iter().flat_map(|idle| children(idle, "uid_")));
    let jobs = users.flat_map(|user| children(&user, "job_"));
    for step in jobs.flat_map(|job| children(&job, "step_")) {
        let Some(slot) = slot_of(&step).filter(|_| step.has(STARTERS_LEAF)) else { continue };
        let usage = Usage::read(unified, &step, Depth::Card);
        let shared = usage.memory_shared.unwrap_or_default();
        let memory = usage.memory_anonymous.map(|anonymous| anonymous.saturating_add(shared));
        found.push(SlotUse { slot, memory, cache: usage.memory_file, cpu: usage.cpu });
    }
    found
}

/// The lines of one ad, which the startd merges into the slot's ad.
pub fn lines(slot: &SlotUse) -> Vec<String> {
    // No slot of HTCondor's has another name, so such a name is left out.
    let is_plain = slot.slot.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut lines = Vec::new();
    let mib = |name, bytes: Option<u64>| bytes.map(|bytes| format!("UptimeJobfence{name}PeakUsage = {}", bytes >> 20));
    lines.extend(mib("Memory", slot.memory));
    lines.extend(mib("Cache", slot.cache));
    lines.extend(slot.cpu.map(|cpu| format!("UptimeJobfenceCpuTimePeakUsage = {:.1}", cpu.as_secs_f64())));
    if !is_plain || lines.is_empty() {
        return Vec::new();
    }
    lines.insert(0, format!("SlotMergeConstraint = regexp(\"^{}@\", Name)", slot.slot));
    lines.push(format!("- {}", slot.slot));
    lines
}

fn children(dir: &Dir, prefix: &str) -> Vec<Dir> {
    let names = dir.list(true).unwrap_or_default();
    names.iter().filter(|name| name.starts_with(prefix)).filter_map(|name| dir.child(name).ok()).collect()
}

/// The slot of a step's directory. The directory's name ends with a number if there was another of that name.
fn slot_of(step: &Dir) -> Option<String> {
    let name = step.path().file_name()?.to_str()?.strip_prefix("step_")?;
    let name = name.split('.').next()?;
    // A job of the local universe has no slot.
    Id::from_steps_name(name).map(|id| id.as_str().to_owned()).filter(|slot| slot != LOCAL)
}

/// The text that STARTD_CRON reads. Errors go to stderr, which the startd logs.
pub fn text(configured: &Configured, reserve: Option<Reserve>) -> String {
    let mut lines = health_lines(&health(configured));
    let found = || -> Result<_, Failure> {
        let config = configured.load()?.config;
        let host = Host::read_what_there_is(&config)?.0;
        let grantable = Grantable::read(&host, &config, reserve)?;
        Ok((attributes(&grantable), slots(&host)))
    };
    let (attributes, slots) = found().unwrap_or_else(|error| {
        eprintln!("jobfence: {error}");
        (Vec::new(), Vec::new())
    });
    lines.extend(attributes.iter().map(|(name, value)| format!("{name} = {value}")));
    lines.push("- host".to_owned());
    lines.extend(slots.iter().flat_map(self::lines));
    lines.join("\n") + "\n"
}

/// The attributes of jobfence(8), each with its value; memory in MiB, as HTCondor has it.
fn attributes(grantable: &Grantable) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("JobfenceCpus", grantable.cpus.count().to_string()),
        ("JobfenceMemory", (grantable.mem >> 20).to_string()),
        ("JobfenceReservedMemory", (grantable.memory.whole.saturating_sub(grantable.mem) >> 20).to_string()),
        ("JobfenceFreeMemory", (grantable.free() >> 20).to_string()),
    ];
    all.extend(pressure().map(|percent| ("JobfenceMemoryPressure", percent)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ad_is_for_its_slot_alone() {
        let slot = SlotUse {
            slot: "slot1_3".to_owned(),
            memory: Some((70 << 20) + 5),
            cache: Some(200 << 20),
            cpu: Some(Duration::from_millis(2345)),
        };
        let expected = [
            "SlotMergeConstraint = regexp(\"^slot1_3@\", Name)",
            "UptimeJobfenceMemoryPeakUsage = 70",
            "UptimeJobfenceCachePeakUsage = 200",
            "UptimeJobfenceCpuTimePeakUsage = 2.3",
            "- slot1_3",
        ];
        assert_eq!(lines(&slot), expected);
        assert!(lines(&SlotUse { slot: "a\" || true".to_owned(), ..slot.clone() }).is_empty());
        assert!(lines(&SlotUse { memory: None, cache: None, cpu: None, ..slot }).is_empty());
    }

    #[test]
    fn a_host_with_a_mistake_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let health_with = |text: &str, overrides: &[&str]| {
            std::fs::write(file.path(), text).unwrap();
            let overrides = overrides.iter().map(Into::into).collect();
            health(&Configured { config: Some(file.path().to_owned()), overrides })
        };
        let Some(Err(why)) = health_with("CPUQuotaPercnt=90\n", &[]) else { panic!("a misspelled key") };
        assert!(why.contains(":1:1: ") && why.contains("CPUQuotaPercnt"), "{why}");
        let said = health_lines(&Some(Err("a \"b\"\nc".to_owned())));
        assert_eq!(said, ["JobfenceHealthy = false", "JobfenceFault = \"a \\\"b\\\" c\""]);
        // Such a host runs its jobs without a fence.
        assert_eq!(health_with("CPUQuotaPercnt=90\n", &["OnError=warn"]), Some(Ok(())));
        assert_eq!(health_with("Mode=off\n", &[]), Some(Ok(())));
        assert_eq!(health_lines(&Some(Ok(()))).first().map(String::as_str), Some("JobfenceHealthy = true"));
        assert!(health_lines(&None).is_empty());
    }

    #[test]
    fn the_attributes_of_htcondor_are_in_mib() {
        let mut values = attributes(&crate::host::grantable::tests::grantable(crate::host::grantable::tests::GIB));
        values.retain(|(name, _)| *name != "JobfenceMemoryPressure");
        let texts: Vec<String> = values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let expected = [
            "JobfenceCpus = 4",
            "JobfenceMemory = 15360",
            "JobfenceReservedMemory = 1024",
            "JobfenceFreeMemory = 13312",
        ];
        assert_eq!(texts, expected);
    }
}
