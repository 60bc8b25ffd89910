// SPDX-License-Identifier: GPL-2.0-or-later
//! What the jobs of HTCondor's slots use now, as a resource monitor says it: STARTD_CRON of HTCondor with METRICS. The startd keeps the highest
//! value of each job, and the starter hands it on into the job's ad (`publishStartdUpdates`, the same in 23.9 and 25.13).
//!
//! The startd runs it as HTCondor's own user, which reads no record of root's. So it looks at the directories alone, and what it says is for
//! people, and decides nothing.

use std::time::Duration;

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::usage::Usage;
use jobfence::fence::IDLE;
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::scheduler::htcondor::{LOCAL, STARTERS_LEAF};
use jobfence::sys::dir::Dir;

/// A slot in which a job runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotUse {
    /// Its name on this host.
    pub slot: String,
    /// The most memory that was in use at once since the job began, in bytes.
    pub memory_peak: Option<u64>,
    /// CPU time used since then.
    pub cpu: Option<Duration>,
}

/// Those of this host. What cannot be looked at is left out.
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
        let mut usage = Usage::default();
        usage.add(unified, &step);
        found.push(SlotUse { slot, memory_peak: usage.memory_peak, cpu: usage.cpu });
    }
    found
}

/// The lines of one ad, which the startd merges into that slot's.
pub fn lines(slot: &SlotUse) -> Vec<String> {
    // What HTCondor has no such name for is not said.
    let is_plain = slot.slot.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut lines = Vec::new();
    lines.extend(slot.memory_peak.map(|peak| format!("UptimeJobfenceMemoryPeakUsage = {}", peak >> 20)));
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

/// The name of a step's directory ends with a number where there was another one.
fn slot_of(step: &Dir) -> Option<String> {
    let name = step.path().file_name()?.to_str()?.strip_prefix("step_")?;
    let name = name.split('.').next()?;
    // A job of the local universe has no slot.
    Id::of_a_steps_name(name).map(|id| id.as_str().to_owned()).filter(|slot| slot != LOCAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ad_is_for_its_slot_alone() {
        let slot = SlotUse {
            slot: "slot1_3".to_owned(),
            memory_peak: Some((70 << 20) + 5),
            cpu: Some(Duration::from_millis(2345)),
        };
        let expected = [
            "SlotMergeConstraint = regexp(\"^slot1_3@\", Name)",
            "UptimeJobfenceMemoryPeakUsage = 70",
            "UptimeJobfenceCpuTimePeakUsage = 2.3",
            "- slot1_3",
        ];
        assert_eq!(lines(&slot), expected);
        assert!(lines(&SlotUse { slot: "a\" || true".to_owned(), ..slot.clone() }).is_empty());
        assert!(lines(&SlotUse { memory_peak: None, cpu: None, ..slot }).is_empty());
    }
}
