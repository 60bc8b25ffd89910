// SPDX-License-Identifier: GPL-2.0-or-later
//! What is to be in the `schemata` of a job's group, and why something cannot be.

use std::collections::BTreeMap;

use jobfence::config::{Config, Mode, Percent};

use super::arithmetic::BandwidthSteps;
use super::schemata::Schemata;
use super::tree::ResctrlFeatures;

/// What a group has of bandwidth at first if it is counted in MiB a second (`MBA_MAX_MBPS`).
const UNBOUNDED_MEBIBYTES: u64 = u32::MAX as u64;

/// What the site wants of a job. All of something is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedShares {
    /// `CacheShare`.
    pub cache: Option<Percent>,
    /// `MemoryBandwidthPercent`.
    pub bandwidth: Option<Percent>,
}

impl WantedShares {
    /// What the keys say.
    pub fn from_config(config: &Config) -> Self {
        let bound =
            |share: Option<Percent>| share.filter(|share| *share < Percent::HUNDRED && config.mode == Mode::Enforce);
        Self { cache: bound(config.cache_share), bandwidth: bound(config.memory_bandwidth) }
    }

    /// Whether nothing is to be bounded.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Each key that bounds something, with its share alone.
    pub fn one_by_one(self) -> impl Iterator<Item = (&'static str, Self)> {
        let cache = Self { bandwidth: None, ..self };
        let bandwidth = Self { cache: None, ..self };
        [("CacheShare", cache), ("MemoryBandwidthPercent", bandwidth)].into_iter().filter(|(_, share)| !share.is_none())
    }

    /// As the configuration says the first.
    pub fn cache_setting(self) -> Option<String> {
        Some(format!("CacheShare={}", self.cache?))
    }

    /// As the configuration says the second.
    pub fn bandwidth_setting(self) -> Option<String> {
        Some(format!("MemoryBandwidthPercent={}", self.bandwidth?))
    }
}

/// What a group has now, and what others have.
#[derive(Debug, Default)]
pub struct PresentGroups {
    pub own: Schemata,
    pub others: Vec<Schemata>,
    /// The ways of each cache that nobody else is given.
    pub exclusive: BTreeMap<u32, u64>,
}

/// Why this CPU bounds nothing of it, whatever groups there are.
pub fn no_cache(features: &ResctrlFeatures) -> Option<&'static str> {
    features.cache.is_none().then_some("the CPU does not divide its L3 cache (no L3 in resctrl's info)")
}

/// The same, for bandwidth.
pub fn no_bandwidth(features: &ResctrlFeatures, is_in_mebibytes: bool) -> Option<&'static str> {
    match features.bandwidth {
        None => Some("the CPU does not bound memory bandwidth (no MB in resctrl's info)"),
        Some(_) if is_in_mebibytes => Some(IN_MEBIBYTES),
        Some(_) => None,
    }
}

const IN_MEBIBYTES: &str =
    "resctrl is mounted with mba_MBps, so that bandwidth is counted in MiB a second and not in percent";

/// Why a number of bandwidth is no percentage. A new group has all: 100 if it is one. AMD's CPUs count in eighths of a GB a second, and do
/// not say how many the memory has.
pub fn no_percentage(most: u64) -> Option<String> {
    match most {
        0..=BandwidthSteps::MOST => None,
        UNBOUNDED_MEBIBYTES => Some(IN_MEBIBYTES.to_owned()),
        _ => {
            Some(format!("this CPU counts memory bandwidth in amounts and not in percent (a group begins with {most})"))
        }
    }
}

/// The ways of each L3 cache.
pub fn cache(features: &ResctrlFeatures, present: &PresentGroups, share: Percent) -> Result<Schemata, String> {
    let ways = features.cache.ok_or_else(|| no_cache(features).unwrap_or_default())?;
    let mut planned = Schemata::default();
    let first = features.resources.first().copied().unwrap_or_default();
    for domain in present.own.masks(first).into_keys() {
        let exclusive = present.exclusive.get(&domain).copied().unwrap_or_default();
        let of_other = |other: &Schemata| {
            features
                .resources
                .iter()
                .filter_map(|name| other.masks(name).get(&domain).copied())
                .fold(0, |all, one| all | one)
        };
        let others: Vec<u64> = present.others.iter().map(of_other).collect();
        let mask = ways.choose(ways.of(share), exclusive, &others).ok_or_else(|| {
            format!(
                "exclusive groups and locked regions leave fewer than {} ways in a row of L3 cache {domain}",
                ways.least
            )
        })?;
        // Code and data have the same.
        features.resources.iter().for_each(|name| planned.set(name, domain, format!("{mask:x}")));
    }
    if planned.is_empty() { Err("the group has no L3 cache".to_owned()) } else { Ok(planned) }
}

/// The step of memory bandwidth, for each L3 cache.
pub fn bandwidth(features: &ResctrlFeatures, own: &Schemata, share: Percent) -> Result<Schemata, String> {
    let steps = features.bandwidth.ok_or_else(|| no_bandwidth(features, false).unwrap_or_default())?;
    let now = own.numbers("MB");
    if let Some(why) = now.values().copied().max().and_then(no_percentage) {
        return Err(why);
    }
    let mut planned = Schemata::default();
    now.into_keys().for_each(|domain| planned.set("MB", domain, steps.of(share).to_string()));
    if planned.is_empty() { Err("the group has no memory bandwidth".to_owned()) } else { Ok(planned) }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::CacheWays;
    use super::*;

    fn intel() -> ResctrlFeatures {
        ResctrlFeatures {
            cache: Some(CacheWays { all: 0x7ff, least: 1, of_devices: 0x600 }),
            resources: vec!["L3"],
            bandwidth: Some(BandwidthSteps { least: 10, step: 10 }),
            groups: Some(16),
        }
    }

    fn share(hundredths: u32) -> Percent {
        Percent::from_hundredths(hundredths)
    }

    #[test]
    fn each_cache_has_its_own_mask() {
        let present = PresentGroups {
            own: Schemata::parse("L3:0=7ff;1=7ff\nMB:0=100;1=100\n"),
            others: vec![Schemata::parse("L3:0=00f;1=7ff\n")],
            exclusive: [(1, 0xf)].into(),
        };
        assert_eq!(cache(&intel(), &present, share(2500)).unwrap().to_string(), "L3:0=70;1=70\n");
        let crowded = PresentGroups { exclusive: [(1, 0x7ff)].into(), ..present };
        let why = cache(&intel(), &crowded, share(2500)).unwrap_err();
        assert!(why.contains("L3 cache 1"), "{why}");
        assert_eq!(bandwidth(&intel(), &crowded.own, share(2500)).unwrap().to_string(), "MB:0=30;1=30\n");
    }

    #[test]
    fn code_and_data_have_the_same_ways_and_those_of_both_count() {
        let features = ResctrlFeatures { resources: vec!["L3CODE", "L3DATA"], ..intel() };
        let present = PresentGroups {
            own: Schemata::parse("L3CODE:0=7ff\nL3DATA:0=7ff\n"),
            others: vec![Schemata::parse("L3CODE:0=7\nL3DATA:0=38\n")],
            exclusive: BTreeMap::new(),
        };
        assert_eq!(cache(&features, &present, share(2500)).unwrap().to_string(), "L3CODE:0=1c0\nL3DATA:0=1c0\n");
    }

    #[test]
    fn bandwidth_that_is_no_percentage_is_refused() {
        let amd = ResctrlFeatures { bandwidth: Some(BandwidthSteps { least: 0, step: 1 }), ..intel() };
        let why = bandwidth(&amd, &Schemata::parse("MB:0=2048;1=2048\n"), share(5000)).unwrap_err();
        assert!(why.contains("in amounts") && why.contains("2048"), "{why}");
        let why = bandwidth(&intel(), &Schemata::parse("MB:0=4294967295\n"), share(5000)).unwrap_err();
        assert!(why.contains("mba_MBps"), "{why}");
        assert_eq!(no_bandwidth(&intel(), true), Some(IN_MEBIBYTES));
        let none = ResctrlFeatures::default();
        assert!(bandwidth(&none, &Schemata::default(), share(5000)).unwrap_err().contains("no MB"));
        assert!(cache(&none, &PresentGroups::default(), share(5000)).unwrap_err().contains("no L3"));
    }

    #[test]
    fn all_of_it_is_no_bound_and_nothing_is_bounded_unless_limits_are_written() {
        let mut config = Config { cache_share: Some(share(10_000)), memory_bandwidth: None, ..Config::default() };
        assert!(WantedShares::from_config(&config).is_none());
        config.cache_share = Some(share(2500));
        let wanted = WantedShares::from_config(&config);
        assert_eq!((wanted.cache_setting().unwrap(), wanted.bandwidth_setting()), ("CacheShare=25%".to_owned(), None));
        config.mode = Mode::Observe;
        assert!(WantedShares::from_config(&config).is_none());
    }
}
