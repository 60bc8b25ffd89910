// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's counters of the energy that a node's processors and memory use.
//!
//! They are RAPL's, in /sys/class/powercap (Documentation/power/powercap/powercap.rst), of Intel and AMD. Where there are none, it is the
//! sockets' counters of the driver `amd_energy` in /sys/class/hwmon (Documentation/hwmon/amd_energy.rst of Linux 5.8 to 6.1). A power meter
//! by ACPI is not asked: an answer of it can take seconds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// More power than that is no power of one part of a node, in watts: its counter has begun anew.
const MOST_POWER: f64 = 1000.0;

/// A counter in microjoules, and the largest number that it can have.
type EnergyCounter = (u64, Option<u64>);

/// Each part of the node with its counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnergyCounters(BTreeMap<String, EnergyCounter>);

/// Finds what counts in a directory of the kernel's. `None`: it cannot be read.
type Finder = fn(&Path) -> Option<Vec<(String, EnergyCounter)>>;

impl EnergyCounters {
    /// Reads them below /sys/class. `None`: there are none, or one cannot be read.
    pub fn read(class: &Path) -> Option<Self> {
        let of = |directory: &str, find: Finder| {
            let mut all = BTreeMap::new();
            for entry in fs::read_dir(class.join(directory)).ok()?.flatten() {
                all.extend(find(&entry.path())?);
            }
            (!all.is_empty()).then_some(Self(all))
        };
        of("powercap", zone).or_else(|| of("hwmon", sockets))
    }

    /// The energy since an earlier reading, in joules. `None`: it is not known.
    pub fn since(&self, earlier: &Self, passed: Duration) -> Option<f64> {
        if !self.0.keys().eq(earlier.0.keys()) {
            return None;
        }
        let could_be = MOST_POWER * passed.as_secs_f64();
        let used = self.0.values().zip(earlier.0.values()).map(|((now, most), (before, _))| {
            // It may have been full more than once.
            if most.is_some_and(|most| could_be > most as f64 / 1e6) {
                return None;
            }
            let used = match now.checked_sub(*before) {
                Some(used) => used,
                // The counter was at its largest number, and went on from 0.
                None => most.as_ref()?.checked_sub(*before)?.checked_add(*now)?,
            };
            let joules = used as f64 / 1e6;
            (joules <= could_be).then_some(joules)
        });
        used.sum()
    }
}

/// A zone of RAPL. A processor's zone has all of it; memory is beside it. `psys` would have both again, and other firmware's numbers.
fn zone(path: &Path) -> Option<Vec<(String, EnergyCounter)>> {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // intel-rapl:0, and intel-rapl:0:1 in it. intel-rapl-mmio has the same processors again.
    let depth = file.strip_prefix("intel-rapl:").map(|numbers| numbers.split(':').count());
    let name = depth.and_then(|_| text(&path.join("name"))).unwrap_or_default();
    let is_counted = match depth {
        Some(1) => name.starts_with("package-"),
        Some(2) => name == "dram",
        _ => false,
    };
    if !is_counted {
        return Some(Vec::new());
    }
    let most = number(&path.join("max_energy_range_uj"));
    Some(vec![(file.to_owned(), (number(&path.join("energy_uj"))?, most))])
}

/// The sockets of a driver in hwmon.
fn sockets(path: &Path) -> Option<Vec<(String, EnergyCounter)>> {
    let mut all = Vec::new();
    if text(&path.join("name")).is_some_and(|name| name == "amd_energy") {
        for at in 1.. {
            let Some(label) = text(&path.join(format!("energy{at}_label"))) else { break };
            if label.starts_with("Esocket") {
                all.push((label, (number(&path.join(format!("energy{at}_input")))?, None)));
            }
        }
    }
    Some(all)
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(class: &Path, directory: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(class.join(directory)).unwrap();
        files.iter().for_each(|(name, text)| fs::write(class.join(directory).join(name), format!("{text}\n")).unwrap());
    }

    fn rapl(class: &Path, zone: &str, name: &str, energy: &str) {
        let zone = format!("powercap/{zone}");
        put(class, &zone, &[("name", name), ("energy_uj", energy), ("max_energy_range_uj", "262143328850")]);
    }

    #[test]
    fn each_part_counts_once() {
        let class = tempfile::tempdir().unwrap();
        let class = class.path();
        assert_eq!(EnergyCounters::read(class), None);
        put(class, "powercap/intel-rapl", &[("enabled", "1")]);
        rapl(class, "intel-rapl:0", "package-0", "262143000000");
        rapl(class, "intel-rapl:0:0", "core", "5");
        rapl(class, "intel-rapl:0:1", "dram", "1000000");
        rapl(class, "intel-rapl:1", "psys", "7");
        rapl(class, "intel-rapl:2", "package-1-die-0", "0");
        rapl(class, "intel-rapl-mmio:0", "package-0", "9");
        let before = EnergyCounters::read(class).unwrap();
        assert_eq!(before.0.keys().collect::<Vec<_>>(), ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:2"]);
        // The first counter goes on from 0.
        rapl(class, "intel-rapl:0", "package-0", "5671150");
        rapl(class, "intel-rapl:0:1", "dram", "3500000");
        let after = EnergyCounters::read(class).unwrap();
        let minute = Duration::from_secs(60);
        let used = after.since(&before, minute).unwrap();
        assert!((used - 8.5).abs() < 1e-9, "{used}");
        // No part of a node uses that much: the counter has begun anew.
        assert_eq!(before.since(&after, minute), None);
        assert_eq!(after.since(&before, Duration::from_secs(300)), None);
        // A part that was not there before, or is there no more.
        fs::remove_dir_all(class.join("powercap/intel-rapl:2")).unwrap();
        assert_eq!(EnergyCounters::read(class).unwrap().since(&after, minute), None);
        fs::remove_file(class.join("powercap/intel-rapl:0/energy_uj")).unwrap();
        assert_eq!(EnergyCounters::read(class), None);
    }

    #[test]
    fn sockets_of_the_driver_count_and_not_their_cores() {
        let class = tempfile::tempdir().unwrap();
        let class = class.path();
        put(class, "hwmon/hwmon0", &[("name", "nvme"), ("energy1_label", "Esocket9"), ("energy1_input", "1")]);
        let core = [("name", "amd_energy"), ("energy1_label", "Ecore000"), ("energy1_input", "1")];
        put(class, "hwmon/hwmon1", &core);
        put(class, "hwmon/hwmon1", &[("energy2_label", "Esocket0"), ("energy2_input", "2000000")]);
        let before = EnergyCounters::read(class).unwrap();
        put(class, "hwmon/hwmon1", &[("energy2_input", "4000000")]);
        let after = EnergyCounters::read(class).unwrap();
        assert_eq!(after.since(&before, Duration::from_secs(1)), Some(2.0));
        // It has no largest number that is known.
        assert_eq!(before.since(&after, Duration::from_secs(1)), None);
    }
}
