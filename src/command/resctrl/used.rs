// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job has in the caches, and what it has moved from and to memory, by the counters of its group
//! (`mon_data`, Documentation/filesystems/resctrl.rst).

use jobfence::bytes::binary;
use jobfence::error::Result;
use jobfence::sys::dir::Dir;
use serde_json::{Value, json};

use crate::kept::number;

/// How the directories of L3 caches begin. Those of parts of a cache are below them, and counted there, too.
const OF_A_CACHE: &str = "mon_L3_";

/// The counters of a cache.
pub const COUNTERS: [&str; 3] = ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"];

/// Bytes that the kernel has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountedBytes {
    /// All of the job's, also by earlier groups.
    pub all: u64,
    /// What the present group's counters said last.
    counter: u64,
}

/// What a job uses of caches and memory bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Bytes in the L3 caches at the last look. `None`: the CPU does not count that, or not now.
    pub occupancy: Option<u64>,
    /// The most of them at any look.
    pub occupancy_peak: Option<u64>,
    /// Bytes between the L3 caches and memory.
    pub memory: Option<CountedBytes>,
    /// Those of them that are memory of the cache's own node.
    pub local: Option<CountedBytes>,
}

impl CacheUse {
    /// Takes what the counters of the job's group now say.
    pub fn take(&mut self, group: &Dir) -> Result<()> {
        let [occupancy, memory, local] = match group.child("mon_data") {
            Ok(data) => read(&data)?,
            // The CPU counts nothing.
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        };
        self.occupancy = occupancy;
        self.occupancy_peak = self.occupancy_peak.max(occupancy);
        for (known, now) in [(&mut self.memory, memory), (&mut self.local, local)] {
            let Some(now) = now else { continue };
            let known = known.get_or_insert_default();
            // It is less than before when a cache's last CPU has gone, and its counter with it.
            known.all = known.all.saturating_add(now.saturating_sub(known.counter));
            known.counter = now;
        }
        Ok(())
    }

    /// The job has a new group, whose counters begin at 0.
    pub fn has_new_group(&mut self) {
        self.occupancy = None;
        [&mut self.memory, &mut self.local].into_iter().flatten().for_each(|known| known.counter = 0);
    }

    /// For people who look at the job now.
    pub fn in_words(&self) -> Option<String> {
        let cache = self.occupancy.map(|now| format!("{} in L3 caches now", binary(now)));
        joined([cache, self.of_memory()])
    }

    /// For a card.
    pub fn for_a_card(&self) -> Option<String> {
        let cache = self.occupancy_peak.map(|peak| format!("up to {} in L3 caches", binary(peak)));
        joined([cache, self.of_memory()])
    }

    fn of_memory(&self) -> Option<String> {
        let local = self.local.map(|local| format!(", {} of it on its own node", binary(local.all)));
        Some(format!("{} from and to memory{}", binary(self.memory?.all), local.unwrap_or_default()))
    }

    /// The members that whoever looks at the job is told.
    pub fn add_to(&self, object: &mut Value) {
        object["occupancy_bytes"] = self.occupancy.into();
        object["occupancy_peak_bytes"] = self.occupancy_peak.into();
        object["memory_traffic_bytes"] = self.memory.map(|memory| memory.all).into();
        object["memory_traffic_local_bytes"] = self.local.map(|local| local.all).into();
    }

    /// What the next `jobfence hold` needs beside them.
    pub fn counters(&self) -> Value {
        let of = |known: Option<CountedBytes>| known.map(|known| known.counter);
        json!({ "memory": of(self.memory), "local": of(self.local) })
    }

    /// Reads both. What is not there is not known.
    pub fn from_members(value: &Value, counters: Option<&Value>) -> Self {
        let counted = |member: &str, counter: &str| {
            Some(CountedBytes { all: number(value, member)?, counter: number(counters?, counter)? })
        };
        Self {
            occupancy: number(value, "occupancy_bytes"),
            occupancy_peak: number(value, "occupancy_peak_bytes"),
            memory: counted("memory_traffic_bytes", "memory"),
            local: counted("memory_traffic_local_bytes", "local"),
        }
    }
}

fn joined(parts: [Option<String>; 2]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The sum of all caches of each of [`COUNTERS`]. `None`: one of them has no number, but a word such as `Unavailable` or `Error`.
fn read(data: &Dir) -> Result<[Option<u64>; 3]> {
    let mut sums: [Option<u64>; 3] = [None; 3];
    let caches: Vec<String> = data.list(true)?.into_iter().filter(|name| name.starts_with(OF_A_CACHE)).collect();
    for (nth, name) in caches.iter().enumerate() {
        let cache = data.child(name)?;
        for (sum, counter) in sums.iter_mut().zip(COUNTERS) {
            let before = if nth == 0 { Some(0) } else { *sum };
            let now = cache.read_if_there(counter)?.and_then(|text| text.trim().parse::<u64>().ok());
            *sum = before.zip(now).map(|(before, now)| before.saturating_add(now));
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::files;
    use super::*;

    fn taken(mut used: CacheUse, all: &[(&str, &str)]) -> CacheUse {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), all);
        used.take(&Dir::open(temp.path()).unwrap()).unwrap();
        used
    }

    const FIRST: [(&str, &str); 7] = [
        ("mon_data/mon_L3_00/llc_occupancy", "1048576\n"),
        ("mon_data/mon_L3_00/mbm_total_bytes", "1073741824\n"),
        ("mon_data/mon_L3_00/mbm_local_bytes", "1073741824\n"),
        ("mon_data/mon_L3_01/llc_occupancy", "2097152\n"),
        ("mon_data/mon_L3_01/mbm_total_bytes", "1073741824\n"),
        ("mon_data/mon_L3_01/mbm_local_bytes", "0\n"),
        ("mon_data/mon_PERF_PKG_00/llc_occupancy", "7\n"),
    ];

    #[test]
    fn all_caches_count_and_what_is_no_number_counts_for_nothing() {
        let used = taken(CacheUse::default(), &FIRST);
        assert_eq!(
            (used.occupancy, used.memory.unwrap().all, used.local.unwrap().all),
            (Some(3 << 20), 2 << 30, 1 << 30)
        );
        assert_eq!(
            used.in_words().unwrap(),
            "3.0 MiB in L3 caches now; 2.0 GiB from and to memory, 1.0 GiB of it on its own node"
        );
        for word in ["Unavailable\n", "Error\n", "Unassigned\n", ""] {
            let mut files = FIRST;
            (files[0].1, files[1].1, files[2].1) = (word, word, "1073741825\n");
            let later = taken(used, &files);
            assert_eq!(
                (later.occupancy, later.occupancy_peak, later.memory),
                (None, Some(3 << 20), used.memory),
                "{word}"
            );
            assert_eq!(later.local.unwrap().all, (1 << 30) + 1);
            assert!(later.for_a_card().unwrap().starts_with("up to 3.0 MiB in L3 caches; 2.0 GiB from"));
        }
        // A CPU without counters.
        let none = taken(CacheUse::default(), &[("schemata", "")]);
        assert_eq!((none, none.in_words(), none.for_a_card()), (CacheUse::default(), None, None));
        assert_eq!(taken(CacheUse::default(), &[("mon_data/x/llc_occupancy", "1\n")]), CacheUse::default());
    }

    #[test]
    fn a_new_group_goes_on_where_the_last_one_ended() {
        let mut used = taken(CacheUse::default(), &FIRST);
        used.has_new_group();
        let used = taken(used, &FIRST);
        assert_eq!((used.memory.unwrap().all, used.local.unwrap().all), (4 << 30, 2 << 30));
        // The counter of a cache is gone, and then there again.
        let less = taken(used, &FIRST[..3]);
        assert_eq!(less.memory.unwrap().all, 4 << 30);
        assert_eq!(taken(less, &FIRST).memory.unwrap().all, 5 << 30);
    }
}
