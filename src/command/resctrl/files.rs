// SPDX-License-Identifier: GPL-2.0-or-later
//! What cache and bandwidth a job has: kept for the next `jobfence hold`, and for whoever looks at the job.

use jobfence::config::Percent;
use serde_json::{Value, json};

use super::plan::WantedShares;
use super::schemata::Schemata;
use super::tree::group_name;
use super::used::CacheUse;
use crate::kept::{KeptId, KeptJob, decimal, number, text};

/// The name of the objects' format. A program that reads them checks it first.
pub const SCHEMA: &str = "jobfence-cache-1";

/// One job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobCache {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// Its directory, and the number of that, after which its group is named.
    pub directory: String,
    pub inode: u64,
    /// What the site wants.
    pub wanted: WantedShares,
    /// How many ways each L3 cache has.
    pub ways: u32,
    /// What the kernel says that its group has of what is wanted. Empty: it has no group.
    pub schemata: Schemata,
    /// What of it is not so, and why: sentences.
    pub refused: Vec<String>,
    /// What the job has used, if that is counted.
    pub used: CacheUse,
}

impl JobCache {
    /// The object without what is for `jobfence hold` alone.
    pub fn json(&self) -> Value {
        let percent = |share: Option<Percent>| share.map(|share| share.of(HUNDREDTHS) as f64 / 100.0);
        let mut object = self.object(json!({
            "group": (!self.schemata.is_empty()).then(|| group_name(self.inode)),
            "cache_share_percent": percent(self.wanted.cache),
            "memory_bandwidth_percent": percent(self.wanted.bandwidth),
            "cache_ways": (self.ways > 0).then_some(self.ways),
            "schemata": (!self.schemata.is_empty()).then(|| self.schemata.to_string()),
            "not_bounded": self.refused,
        }));
        self.used.add_to(&mut object);
        object
    }

    /// What the job has, in words.
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        let of_cache = ["L3", "L3CODE"].map(|name| self.schemata.masks(name));
        let ways = range(of_cache.iter().flat_map(|masks| masks.values()).map(|mask| u64::from(mask.count_ones())));
        if let Some((ways, setting)) = ways.zip(self.wanted.cache_setting()) {
            parts.push(format!("at most {ways} of {} ways of each L3 cache ({setting})", self.ways));
        }
        let bandwidth = range(self.schemata.numbers("MB").into_values());
        if let Some((bandwidth, setting)) = bandwidth.zip(self.wanted.bandwidth_setting()) {
            parts.push(format!("at most {bandwidth}% of the memory bandwidth ({setting})"));
        }
        parts.extend(self.refused.iter().cloned());
        if parts.is_empty() { "is to be bounded".to_owned() } else { parts.join("; ") }
    }
}

/// The numbers, if they are the same, or from the lowest to the highest.
fn range(numbers: impl Iterator<Item = u64>) -> Option<String> {
    let mut all: Vec<u64> = numbers.collect();
    all.sort_unstable();
    let (least, most) = (*all.first()?, *all.last()?);
    Some(if least == most { least.to_string() } else { format!("{least} to {most}") })
}

const HUNDREDTHS: u64 = 10_000;

impl KeptJob for JobCache {
    const ENDING: &'static str = ".cache";
    const SCHEMA: &'static str = SCHEMA;

    fn job(&self) -> (Option<&str>, Option<u32>, &str) {
        (self.node.as_deref(), self.uid, &self.job)
    }

    fn members(&self) -> Value {
        let mut state = self.json();
        state["state"] = json!({ "directory": self.directory, "inode": self.inode, "counters": self.used.counters() });
        state
    }

    fn from_members(KeptId { node, uid, job }: KeptId, value: &Value) -> Option<Self> {
        let state = value.get("state")?;
        let share = |member: &str| {
            let hundredths = (decimal(value, member)? * 100.0).round();
            (100.0..=10_000.0).contains(&hundredths).then(|| Percent::from_hundredths(hundredths as u32))
        };
        let refused = value.get("not_bounded")?.as_array()?;
        Some(Self {
            node,
            uid,
            job,
            directory: text(state, "directory")?,
            inode: number(state, "inode")?,
            wanted: WantedShares { cache: share("cache_share_percent"), bandwidth: share("memory_bandwidth_percent") },
            ways: number(value, "cache_ways").and_then(|ways| u32::try_from(ways).ok()).unwrap_or_default(),
            schemata: Schemata::parse(&text(value, "schemata").unwrap_or_default()),
            refused: refused.iter().filter_map(|why| Some(why.as_str()?.to_owned())).collect(),
            used: CacheUse::from_members(value, state.get("counters")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobCache {
        let share = |hundredths| Some(Percent::from_hundredths(hundredths));
        JobCache {
            node: Some("n1".into()),
            uid: Some(7),
            job: "7\"<".into(),
            directory: "/sys/fs/cgroup/j".into(),
            inode: 9,
            wanted: WantedShares { cache: share(2510), bandwidth: share(5000) },
            ways: 11,
            schemata: Schemata::parse("L3:0=7;1=70\nMB:0=50;1=50\n"),
            refused: Vec::new(),
            used: CacheUse::from_members(
                &json!({ "occupancy_bytes": 1, "occupancy_peak_bytes": 2, "memory_traffic_bytes": 9 }),
                Some(&json!({ "memory": 3 })),
            ),
        }
    }

    #[test]
    fn what_is_kept_is_read_the_same() {
        let refused = JobCache {
            schemata: Schemata::default(),
            ways: 0,
            refused: vec!["why".into()],
            wanted: WantedShares { bandwidth: None, ..job().wanted },
            used: CacheUse::default(),
            ..job()
        };
        for job in [job(), refused] {
            assert_eq!(JobCache::from_json(&job.state()), Some(job.clone()));
        }
        // Without the state, as for others, it is no file of ours.
        assert_eq!(JobCache::from_json(&job().json()), None);
        assert_eq!(job().json()["group"], "jobfence-9");
        assert_eq!(
            (&job().json()["memory_traffic_bytes"], &job().json()["memory_traffic_local_bytes"]),
            (&json!(9), &Value::Null)
        );
    }

    #[test]
    fn words_say_what_is_bounded_and_what_is_not() {
        let both = "at most 3 of 11 ways of each L3 cache (CacheShare=25.1%); at most 50% of the memory bandwidth \
                    (MemoryBandwidthPercent=50%)";
        assert_eq!(job().in_words(), both);
        let uneven = JobCache { schemata: Schemata::parse("L3CODE:0=7;1=f\nL3DATA:0=7;1=f\n"), ..job() };
        assert!(uneven.in_words().starts_with("at most 3 to 4 of 11 ways"), "{}", uneven.in_words());
        let refused = JobCache { schemata: Schemata::default(), refused: vec!["no more groups".into()], ..job() };
        assert_eq!(refused.in_words(), "no more groups");
    }
}
