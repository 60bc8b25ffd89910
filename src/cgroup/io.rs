// SPDX-License-Identifier: GPL-2.0-or-later
//! How fast a directory's processes may read and write.
//!
//! v2 has `io.max` (cgroup-v2.rst, "IO Interface Files"), v1 a file for each rate (`blkio.throttle.*`, cgroup-v1/blkio-controller.rst).
//! They differ in what they throttle:
//!
//! - v2 throttles all that is below a directory together. v1 throttles each directory by itself, whatever is set above it
//!   (`throtl_pd_init` in block/blk-throttle.c: all groups are children of the disk's root).
//! - v2 also throttles what a process has written to the page cache, if the memory controller is on in the same directory and the file
//!   system takes part (ext2, ext4, btrfs, xfs, f2fs; cgroup-v2.rst, "Writeback"). v1 throttles only what a process itself sends to the
//!   disk: reads, `O_DIRECT`, and what it waits for (`fsync`, `O_SYNC`; measured on Linux 6.18 with ext4). Later writeback by the
//!   kernel is charged to no process.

use nix::errno::Errno;

use super::disk::{Device, Disks};
use super::kernel;
use super::layout::{V1_IO, Version};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

mod read_back;
mod rules;
mod weight;

use read_back::seen;
pub use rules::{IoRates, IoRule, IoRules, Malformed, Rate};
pub use weight::{DEFAULT_WEIGHT, least_weight, set_weight, weight, weight_writes, weights_work};

/// The rates for one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimit {
    /// A whole disk.
    pub disk: Device,
    /// For all targets on the disk together: the lowest of each rate.
    pub rates: IoRates,
}

/// The limits of the disks that the targets are on, each disk once. Targets that cannot be throttled are taken out of the rules, and
/// come back as errors.
pub fn limits_of(rules: &mut IoRules, disks: &Disks) -> (Vec<DiskLimit>, Vec<Error>) {
    let mut limits = Vec::new();
    let mut errors = Vec::new();
    let find = |rule: &IoRule| match &rule.by {
        Some(user) => user.look(|| disks.of(&rule.target)),
        None => disks.of(&rule.target),
    };
    rules.0.retain(|rule| match find(rule) {
        Ok(disk) => {
            limits = both(&limits, &[DiskLimit { disk, rates: rule.rates }]);
            true
        }
        Err(error) => {
            errors.push(error);
            false
        }
    });
    (limits, errors)
}

/// All limits of both lists; if both limit a rate of a disk, the lower one.
pub fn both(these: &[DiskLimit], those: &[DiskLimit]) -> Vec<DiskLimit> {
    let mut limits = these.to_vec();
    for theirs in those {
        match limits.iter_mut().find(|limit| limit.disk == theirs.disk) {
            Some(limit) => limit.rates = limit.rates.at_most(theirs.rates),
            None => limits.push(*theirs),
        }
    }
    limits
}

/// What [`set_max`] writes in an empty directory: files and values.
pub fn writes(limit: DiskLimit, version: Version) -> Vec<(&'static str, String)> {
    let DiskLimit { disk, rates } = limit;
    match version {
        Version::V2 => vec![(IO_MAX, rates.line(disk))],
        Version::V1 => {
            let line = |rate: Rate| Some((rate.v1_file(), format!("{disk} {}", rates.get(rate)?)));
            Rate::ALL.into_iter().filter_map(line).collect()
        }
    }
}

/// Limits the rates for a disk, and reads them back. Earlier limits of this disk that are not in `limit` are removed.
pub fn set_max(dir: &Dir, version: Version, limit: DiskLimit) -> Result<()> {
    let DiskLimit { disk, rates } = limit;
    match version {
        Version::V2 => {
            let text = dir.write_and_read(IO_MAX, &rates.line(disk)).map_err(|error| explain(dir, IO_MAX, error))?;
            seen(dir, IO_MAX, &rates.line(disk), &IoRates::in_lines(&text, disk).line(disk))
        }
        Version::V1 => {
            for rate in Rate::ALL {
                let file = rate.v1_file();
                let before = value_for(&dir.read(file).map_err(|error| explain(dir, file, error))?, disk);
                let want = rates.get(rate);
                if before == want {
                    continue;
                }
                // 0 removes the line (`tg_set_conf`).
                let line = format!("{disk} {}", want.unwrap_or(0));
                let text = dir.write_and_read(file, &line).map_err(|error| explain(dir, file, error))?;
                let shown = value_for(&text, disk).unwrap_or(0);
                seen(dir, file, &line, &format!("{disk} {shown}"))?;
            }
            Ok(())
        }
    }
}

/// Reads the rates for a disk.
pub fn max(dir: &Dir, version: Version, disk: Device) -> Result<IoRates> {
    match version {
        Version::V2 => {
            let text = dir.read(IO_MAX).map_err(|error| explain(dir, IO_MAX, error))?;
            Ok(IoRates::in_lines(&text, disk))
        }
        Version::V1 => {
            let mut rates = IoRates::default();
            for rate in Rate::ALL {
                let file = rate.v1_file();
                let text = dir.read(file).map_err(|error| explain(dir, file, error))?;
                *rates.slot(rate) = value_for(&text, disk);
            }
            Ok(rates)
        }
    }
}

/// The value in a v1 file's line `MAJOR:MINOR VALUE`.
fn value_for(text: &str, disk: Device) -> Option<u64> {
    let prefix = format!("{disk} ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).and_then(|value| value.trim().parse().ok())
}

const IO_MAX: &str = "io.max";

/// Explains a missing file or a refused device.
fn explain(dir: &Dir, file: &str, error: Error) -> Error {
    match error.kernel_errno() {
        Some(Errno::ENOENT) => kernel::missing(dir, file, if file == IO_MAX { "io" } else { V1_IO }),
        Some(Errno::ENODEV) => error.hint("the kernel has no such disk, or it is a partition"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const SDA: Device = Device { major: 8, minor: 0 };

    /// A directory with these files.
    pub(super) fn fixture(files: &[(&str, &str)]) -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(temp.path().join(name).parent().unwrap()).unwrap();
            fs::write(temp.path().join(name), text).unwrap();
        }
        let dir = Dir::open(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn targets_on_one_disk_come_together() {
        let (sys, dir) = fixture(&[("devices/sda/dev", "8:0\n"), ("devices/sda/sda1/partition", "1\n")]);
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        symlink("../../devices/sda", sys.path().join("dev/block/8:0")).unwrap();
        symlink("../../devices/sda/sda1", sys.path().join("dev/block/8:1")).unwrap();
        let disks = Disks::new(
            "1 0 8:0 / / rw - ext4 a rw\n2 1 8:1 / /part rw - ext4 b rw\n3 1 0:9 / /shm rw - tmpfs t rw\n",
            dir,
        );
        let rules = |text| IoRules::parse(text).unwrap();
        let mut named = rules("/ rbps=10 wbps=5; /part rbps=3 riops=1; /shm rbps=1");
        let (limits, errors) = limits_of(&mut named, &disks);
        assert_eq!(named, rules("/ rbps=10 wbps=5; /part rbps=3 riops=1"));
        let rates = IoRates { rbps: Some(3), wbps: Some(5), riops: Some(1), wiops: None };
        assert_eq!(limits, [DiskLimit { disk: SDA, rates }]);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("kept in memory"), "{}", errors[0]);
    }

    #[test]
    fn what_the_kernel_shows_is_compared() {
        let rates = IoRates { rbps: Some(1024), wiops: Some(7), ..IoRates::default() };
        let limit = DiskLimit { disk: SDA, rates };
        let (temp, dir) = fixture(&[("io.max", "")]);
        set_max(&dir, Version::V2, limit).unwrap();
        let written = fs::read_to_string(temp.path().join("io.max")).unwrap();
        assert_eq!(written, "8:0 rbps=1024 wbps=max riops=max wiops=7");
        assert_eq!(max(&dir, Version::V2, SDA).unwrap(), rates);
        assert_eq!(max(&dir, Version::V2, Device { major: 8, minor: 16 }).unwrap(), IoRates::default());

        let text = "8:16 rbps=1 wbps=max riops=max wiops=max\n8:0 rbps=max wbps=5 riops=max wiops=9 idle=3\n";
        let parsed = IoRates::in_lines(text, SDA);
        assert_eq!(parsed, IoRates { wbps: Some(5), wiops: Some(9), ..IoRates::default() });

        // A fixture's file shows what was written, so the comparison is called directly.
        let error = seen(&dir, "io.max", "8:0 rbps=1", "8:0 rbps=max").unwrap_err().to_string();
        assert!(error.contains("the kernel shows another") && error.contains("wanted 8:0 rbps=1, found"), "{error}");
        let missing = fixture(&[]).1;
        let error = set_max(&missing, Version::V2, limit).unwrap_err().to_string();
        assert!(error.contains("the io controller is not available"), "{error}");
        let (_temp, without) = fixture(&[("io.stat", "")]);
        let error = set_max(&without, Version::V2, limit).unwrap_err().to_string();
        assert!(error.contains("built without CONFIG_BLK_DEV_THROTTLING"), "{error}");
        let error = set_max(&missing, Version::V1, limit).unwrap_err().to_string();
        assert!(error.contains("the blkio controller is not available"), "{error}");
    }
}
