// SPDX-License-Identifier: GPL-2.0-or-later
//! What this node can bound, and what a share would be here: for whoever asks before a job runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jobfence::sys::dir::Dir;

use super::plan::{self, WantedShares};
use super::tree::{ResctrlFeatures, ResctrlTree, number_of, schemata_of, why_none};
use super::used;

/// The node's resctrl.
#[derive(Debug, Default)]
pub struct NodeResctrl {
    place: PathBuf,
    features: ResctrlFeatures,
    is_in_mebibytes: bool,
    /// The numbers of its L3 caches, as far as they are bounded.
    caches: BTreeSet<u32>,
    /// What the default group has of memory bandwidth.
    bandwidth: Option<u64>,
    /// What the CPU counts of each group (`mon_features`).
    counters: String,
    /// How many groups jobs have, and how many others.
    of_jobs: usize,
    of_others: usize,
}

impl NodeResctrl {
    /// Reads it; an error is a sentence about why there is none.
    pub fn read(proc: &Dir) -> Result<Self, String> {
        let tree = ResctrlTree::find(proc).map_err(|error| error.to_string())?.ok_or_else(|| why_none(proc))?;
        let read = || -> jobfence::error::Result<Self> {
            let features = tree.features()?;
            let all = schemata_of(&tree.root)?;
            let of_bandwidth = all.numbers("MB");
            let groups = tree.groups()?;
            let of_jobs = groups.iter().filter(|name| number_of(name).is_some()).count();
            let caches = features.resources.iter().flat_map(|name| all.masks(name).into_keys());
            Ok(Self {
                caches: caches.chain(of_bandwidth.keys().copied()).collect(),
                place: tree.root.path().to_path_buf(),
                is_in_mebibytes: tree.is_in_mebibytes,
                counters: tree.counters()?,
                bandwidth: of_bandwidth.into_values().max(),
                of_others: groups.len() - of_jobs,
                of_jobs,
                features,
            })
        };
        read().map_err(|error| error.to_string())
    }

    /// What can be bounded, and how many groups there are.
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        if let Some(ways) = self.features.cache {
            let apart = if self.features.resources.len() > 1 { ", code and data apart (cdp)" } else { "" };
            parts.push(format!(
                "L3 caches of {} ways, of which a group has at least {}{apart}",
                ways.count(),
                ways.least
            ));
        }
        if let Some(steps) = self.features.bandwidth {
            parts.push(format!("memory bandwidth in steps of {} from {}", steps.step, steps.least));
        }
        if parts.is_empty() {
            parts.push("neither L3 caches nor memory bandwidth can be bounded".to_owned());
        }
        let numbers: Vec<String> = self.caches.iter().map(u32::to_string).collect();
        if !numbers.is_empty() {
            parts.push(format!("the caches are {}", numbers.join(", ")));
        }
        if let Some(most) = self.features.groups {
            let free = most.saturating_sub((1 + self.of_jobs + self.of_others) as u64);
            let (jobs, others) = (self.of_jobs, self.of_others);
            parts.push(format!(
                "of {most} groups, {jobs} are jobs', {others} others', one is for all else, {free} are free"
            ));
        }
        format!("{}: {}", self.place.display(), parts.join("; "))
    }

    /// What of [`used::COUNTERS`] the CPU has, or why nothing is counted.
    pub fn counted(&self) -> Result<String, &'static str> {
        let mut all = used::COUNTERS.to_vec();
        all.retain(|counter| self.counters.lines().any(|line| line.trim() == *counter));
        if all.is_empty() { Err("the CPU counts none of it (no L3_MON in resctrl's info)") } else { Ok(all.join(", ")) }
    }

    /// What a job would have by each setting, or why it would not be bounded.
    pub fn shares(&self, wanted: WantedShares) -> Vec<(String, Result<String, String>)> {
        let cache = wanted.cache_setting().zip(wanted.cache).map(|(setting, share)| {
            let ways = self.features.cache.ok_or_else(|| plan::no_cache(&self.features).unwrap_or_default().to_owned());
            (setting, ways.map(|ways| format!("{} of {} ways of each L3 cache", ways.of(share), ways.count())))
        });
        let bandwidth = wanted.bandwidth_setting().zip(wanted.bandwidth).map(|(setting, share)| {
            let why = plan::no_bandwidth(&self.features, self.is_in_mebibytes).map(str::to_owned);
            let why = why.or_else(|| plan::no_percentage(self.bandwidth?));
            let step = self.features.bandwidth.filter(|_| why.is_none());
            let words = step.map(|steps| format!("{}% of the memory bandwidth", steps.of(share)));
            (setting, words.ok_or_else(|| why.unwrap_or_default()))
        });
        cache.into_iter().chain(bandwidth).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::{BandwidthSteps, CacheWays};
    use super::*;
    use jobfence::config::Percent;

    fn node() -> NodeResctrl {
        NodeResctrl {
            place: PathBuf::from("/sys/fs/resctrl"),
            features: ResctrlFeatures {
                cache: Some(CacheWays { all: 0x7ff, least: 1, of_devices: 0x600 }),
                resources: vec!["L3CODE", "L3DATA"],
                bandwidth: Some(BandwidthSteps { least: 10, step: 10 }),
                groups: Some(8),
            },
            caches: [0, 1].into(),
            bandwidth: Some(100),
            of_jobs: 3,
            of_others: 1,
            ..NodeResctrl::default()
        }
    }

    fn said(node: &NodeResctrl) -> Vec<String> {
        let share = |hundredths| Some(Percent::from_hundredths(hundredths));
        let all = node.shares(WantedShares { cache: share(2500), bandwidth: share(4100) });
        all.into_iter()
            .map(|(setting, what)| format!("{setting}: {}", what.unwrap_or_else(|why| format!("NOT: {why}"))))
            .collect()
    }

    #[test]
    fn a_node_and_its_shares_are_said() {
        let words = node().in_words();
        for part in
            ["L3 caches of 11 ways", "(cdp)", "steps of 10 from 10", "the caches are 0, 1", "3 are jobs'", "3 are free"]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!(
            said(&node()),
            [
                "CacheShare=25%: 3 of 11 ways of each L3 cache",
                "MemoryBandwidthPercent=41%: 50% of the memory bandwidth"
            ]
        );
        let amd = NodeResctrl { bandwidth: Some(2048), ..node() };
        assert!(said(&amd)[1].contains("NOT: this CPU counts memory bandwidth in amounts"), "{:?}", said(&amd));
        let mebibytes = NodeResctrl { is_in_mebibytes: true, ..node() };
        assert!(said(&mebibytes)[1].contains("mba_MBps"));
        let none = NodeResctrl { features: ResctrlFeatures::default(), ..node() };
        assert!(
            none.in_words().contains("neither")
                && said(&none).iter().all(|said| said.contains("NOT: the CPU does not"))
        );
    }
}
