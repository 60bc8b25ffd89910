// SPDX-License-Identifier: GPL-2.0-or-later
//! A directory's share of a disk that is busy.

use nix::errno::Errno;

use super::read_back::seen;
use crate::cgroup::layout::Version;
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The weight if none is set: 100 (`CGROUP_WEIGHT_DFL`, include/linux/cgroup.h).
pub const DEFAULT_WEIGHT: u64 = 100;

/// The lower of two weights, of CPU time or of I/O. If only one is set, the other counts as the kernel's default.
pub fn least_weight(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(DEFAULT_WEIGHT).min(other.unwrap_or(DEFAULT_WEIGHT))),
    }
}

/// Sets the directory's share of a busy disk among its siblings, 1 to 10000, and reads it back.
///
/// On v2 both files are written, if both exist: one is blk-iocost's (Linux 5.4 and later), the other BFQ's. A disk uses at most one of
/// them. v1 has BFQ's, and before Linux 5.0 that of CFQ.
pub fn set_weight(dir: &Dir, version: Version, weight: u64) -> Result<()> {
    let mut is_set = false;
    for (file, value) in weight_writes(weight, version) {
        match dir.write_and_read(file, &value) {
            Ok(text) => {
                let number = |text: &str| text.trim_start_matches("default ").trim().to_owned();
                seen(dir, file, &number(&value), &number(text.lines().next().unwrap_or_default()))?;
                is_set = true;
            }
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    if is_set {
        return Ok(());
    }
    Err(Error::new("this kernel has no weights of I/O, so none can be set in").at(dir.path()).hint(match version {
        Version::V2 => {
            "the scheduler bfq brings io.bfq.weight (modprobe bfq, and echo bfq >/sys/block/DISK/queue/scheduler), a kernel with \
             CONFIG_BLK_CGROUP_IOCOST io.weight; or take IOWeight out"
        }
        Version::V1 => {
            "the scheduler bfq brings blkio.bfq.weight (modprobe bfq, and echo bfq >/sys/block/DISK/queue/scheduler); or take \
             IOWeight out"
        }
    }))
}

/// What [`set_weight`] writes, if the kernel has the file.
pub fn weight_writes(weight: u64, version: Version) -> [(&'static str, String); 2] {
    match version {
        Version::V2 => [("io.weight", format!("default {weight}")), ("io.bfq.weight", bfq_weight(weight).to_string())],
        Version::V1 => [
            ("blkio.bfq.weight", bfq_weight(weight).to_string()),
            ("blkio.weight", weight.saturating_mul(5).clamp(10, 1000).to_string()),
        ],
    }
}

/// Reads what [`set_weight`] has set, on the scale of `io.weight`; `None` where the kernel has no weights.
pub fn weight(dir: &Dir, version: Version) -> Option<u64> {
    let read = |file: &str| {
        let text = dir.read_if_there(file).ok()??;
        text.lines().next()?.trim_start_matches("default ").trim().parse::<u64>().ok()
    };
    let of_bfq = |weight: u64| weight + weight.saturating_sub(DEFAULT_WEIGHT).saturating_mul(10);
    match version {
        Version::V2 => read("io.weight").or_else(|| read("io.bfq.weight").map(of_bfq)),
        Version::V1 => read("blkio.bfq.weight").map(of_bfq).or_else(|| read("blkio.weight").map(|weight| weight / 5)),
    }
}

/// BFQ's weights end at 1000 (`BFQ_MAX_WEIGHT`, block/bfq-iosched.h), and their default is 100, too: weights above it are compressed.
fn bfq_weight(weight: u64) -> u64 {
    if weight <= DEFAULT_WEIGHT { weight.max(1) } else { (DEFAULT_WEIGHT + (weight - DEFAULT_WEIGHT) / 11).min(1000) }
}

/// Whether any disk shares its time by weight now: its scheduler is bfq, or (v2) blk-iocost is on for it (`io.cost.qos` in the
/// root, cgroup-v2.rst).
pub fn weights_work(sys: &Dir, root: Option<&Dir>) -> bool {
    let has_bfq = |disk: &String| {
        let scheduler = sys.read_value(&format!("block/{disk}/queue/scheduler"));
        scheduler.is_ok_and(|text| text.contains("[bfq]"))
    };
    // The entries are links.
    let disks = sys.child("block").and_then(|block| block.list(false)).unwrap_or_default();
    let qos = root.and_then(|root| root.read_value("io.cost.qos").ok()).unwrap_or_default();
    disks.iter().any(has_bfq) || qos.split_whitespace().any(|word| word == "enable=1")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cgroup::io::tests::fixture;

    #[test]
    fn weights_go_to_whatever_the_kernel_has() {
        let read = |temp: &tempfile::TempDir, file: &str| fs::read_to_string(temp.path().join(file)).unwrap();
        let (temp, dir) = fixture(&[("io.weight", ""), ("io.bfq.weight", "")]);
        set_weight(&dir, Version::V2, 10_000).unwrap();
        assert_eq!([read(&temp, "io.weight"), read(&temp, "io.bfq.weight")], ["default 10000", "1000"]);
        let (temp, dir) = fixture(&[("blkio.weight", "")]);
        set_weight(&dir, Version::V1, 50).unwrap();
        assert_eq!(read(&temp, "blkio.weight"), "250");
        for version in [Version::V1, Version::V2] {
            let error = set_weight(&fixture(&[]).1, version, 50).unwrap_err().to_string();
            assert!(error.contains("bfq") && error.contains("IOWeight"), "{error}");
        }
        assert_eq!([1, 100, 101, 111, 9999, 10_000].map(bfq_weight), [1, 100, 100, 101, 999, 1000]);
    }

    #[test]
    fn whether_weights_work_is_looked_for() {
        let (temp, sys) = fixture(&[("devices/sda/queue/scheduler", "mq-deadline [none] bfq\n")]);
        fs::create_dir(temp.path().join("block")).unwrap();
        symlink("../devices/sda", temp.path().join("block/sda")).unwrap();
        assert!(!weights_work(&sys, None));
        let root = |enable| fixture(&[("io.cost.qos", &format!("8:0 enable={enable} ctrl=auto\n"))]);
        assert_eq!([0, 1].map(|on| weights_work(&sys, Some(&root(on).1))), [false, true]);
        fs::write(temp.path().join("devices/sda/queue/scheduler"), "mq-deadline none [bfq]\n").unwrap();
        assert!(weights_work(&sys, None));
    }
}
