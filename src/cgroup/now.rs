// SPDX-License-Identifier: GPL-2.0-or-later
//! What a directory's processes use at this moment, and their limits. Few files are read, since a command looks at a thousand
//! directories.
//!
//! Each function returns `None` if this hierarchy, or this kernel, does not say.

use super::layout::{Hierarchy, Version};
use crate::sys::dir::Dir;

/// Processes and threads, here and below.
pub fn processes(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    hierarchy.has("pids").then(|| number(dir, "pids.current")).flatten()
}

/// Whether all processes are frozen.
pub fn is_frozen(hierarchy: &Hierarchy, dir: &Dir) -> Option<bool> {
    match hierarchy.version {
        Version::V2 => {
            let events = dir.read_value("cgroup.events").ok()?;
            events.lines().find_map(|line| line.strip_prefix("frozen ")).map(|value| value.trim() == "1")
        }
        Version::V1 if hierarchy.has("freezer") => {
            dir.read_value("freezer.state").ok().map(|state| state.trim() == "FROZEN")
        }
        Version::V1 => None,
    }
}

/// The share of the last ten seconds in which at least one process waited for `of` (psi.rst), in percent.
pub fn pressure(hierarchy: &Hierarchy, dir: &Dir, of: &str) -> Option<f64> {
    if hierarchy.version == Version::V1 {
        return None;
    }
    let text = dir.read_value(&format!("{of}.pressure")).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|part| part.strip_prefix("avg10=")?.parse().ok())
}

/// The files of limits, by controller; a file that a hierarchy lacks is skipped.
const LIMITS: [(&str, &[&str]); 7] = [
    ("cpu", &["cpu.max", "cpu.max.burst", "cpu.weight", "cpu.idle"]),
    ("cpu", &["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.shares"]),
    ("memory", &["memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max"]),
    ("memory", &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"]),
    ("pids", &["pids.max"]),
    ("cpuset", &["cpuset.cpus", "cpuset.mems"]),
    (
        "io",
        &[
            "io.max",
            "io.weight",
            "blkio.throttle.read_bps_device",
            "blkio.throttle.write_bps_device",
            "blkio.throttle.read_iops_device",
            "blkio.throttle.write_iops_device",
        ],
    ),
];

/// Each limit that is set in a directory: the file, and what the kernel has there.
pub fn limits(hierarchy: &Hierarchy, dir: &Dir) -> Vec<(&'static str, String)> {
    let files =
        LIMITS.iter().filter(|(controller, _)| hierarchy.has(controller)).flat_map(|(_, files)| files.iter().copied());
    let set = |file: &'static str| {
        let text = dir.read_if_there(file).ok()??;
        let value = text.trim_end().replace('\n', "; ");
        is_set(file, &value).then_some((file, value))
    };
    files.filter_map(set).collect()
}

/// Whether the value differs from that of a new directory.
fn is_set(file: &str, value: &str) -> bool {
    // v1 shows "unlimited" as the largest number of whole pages, which is above any machine's memory and below 2^63.
    const UNLIMITED_V1: u64 = 0x7fff_ffff_ffff_0000;
    let of_new = match file {
        "cpu.weight" => value == "100",
        "cpu.shares" => value == "1024",
        "io.weight" => value == "default 100",
        "cpu.cfs_period_us" => false,
        "cpu.max" => value.starts_with("max"),
        _ => ["", "0", "-1", "max"].contains(&value),
    };
    !of_new && value.parse::<u64>().map_or(true, |number| !file.ends_with("_in_bytes") || number < UNLIMITED_V1)
}

fn number(dir: &Dir, file: &str) -> Option<u64> {
    dir.read_value(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_limited_is_no_limit() {
        let temp = tempfile::tempdir().unwrap();
        let files = [
            ("cpu.max", "50000 100000\n"),
            ("cpu.weight", "100\n"),
            ("cpu.max.burst", "0\n"),
            ("memory.max", "max\n"),
            ("memory.high", "4096\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("io.max", "8:0 rbps=1 wbps=max\n8:16 rbps=2\n"),
            ("cpu.pressure", "some avg10=1.50 avg60=1.00 avg300=0.00 total=12\n"),
            ("cgroup.events", "populated 1\nfrozen 1\n"),
        ];
        for (name, text) in files {
            std::fs::write(temp.path().join(name), text).unwrap();
        }
        let controllers = ["cpu", "memory", "io"].map(str::to_owned);
        let hierarchy = Hierarchy {
            version: Version::V2,
            mount: temp.path().into(),
            root: "/".into(),
            controllers: controllers.to_vec(),
            name: None,
        };
        let dir = Dir::open(temp.path()).unwrap();
        let expected =
            [("cpu.max", "50000 100000"), ("memory.high", "4096"), ("io.max", "8:0 rbps=1 wbps=max; 8:16 rbps=2")];
        assert_eq!(limits(&hierarchy, &dir), expected.map(|(file, value)| (file, value.to_owned())));
        assert_eq!((pressure(&hierarchy, &dir, "cpu"), pressure(&hierarchy, &dir, "io")), (Some(1.5), None));
        assert_eq!((is_frozen(&hierarchy, &dir), processes(&hierarchy, &dir)), (Some(true), None));
    }
}
