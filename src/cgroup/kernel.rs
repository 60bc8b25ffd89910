// SPDX-License-Identifier: GPL-2.0-or-later
//! Differences between kernels that matter for limits: files that older kernels lack, and loaded schedulers that may ignore a CPU
//! quota.
//!
//! Features are always detected by looking for them. Release numbers only explain what was not found, since distributions add newer
//! features to older kernels (RHEL 8 calls itself 4.18).

use std::fmt;

use nix::errno::Errno;

use super::layout::Version;
use crate::error::Error;
use crate::sys::dir::Dir;

/// The number of a kernel's release: `(6, 12)` of `6.12.107+deb13-amd64`.
pub type Release = (u32, u32);

/// The running release; `None` if its name has another form.
pub fn release() -> Option<Release> {
    parse_release(nix::sys::utsname::uname().ok()?.release().to_str()?)
}

fn parse_release(text: &str) -> Option<Release> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A file of a controller that not every kernel has.
struct ControlFile {
    name: &'static str,
    /// The release in which Linux got it.
    since: Release,
    /// The option that the kernel must be built with.
    built_with: Option<&'static str>,
    /// What to set in jobfence.conf if it is missing.
    remedy: &'static str,
}

const fn file(name: &'static str, since: Release, remedy: &'static str) -> ControlFile {
    ControlFile { name, since, built_with: None, remedy }
}

impl ControlFile {
    const fn built_with(self, option: &'static str) -> Self {
        Self { built_with: Some(option), ..self }
    }
}

const NO_QUOTA: &str = "set CPUPolicy=weight, or OnError=fail,cpu:warn";
const NO_BURST: &str = "set CPUBurst=0, or OnError=fail,burst:warn";
const NO_IO: &str = "leave IOMax out, or set OnError=fail,io:warn";

/// The releases are from the history of kernel/sched/core.c, mm/memcontrol.c, block/blk-throttle.c and blk-iocost.c.
const FILES: &[ControlFile] = &[
    file("cpu.max", (4, 15), NO_QUOTA).built_with("CONFIG_CFS_BANDWIDTH"),
    file("cpu.cfs_quota_us", (3, 2), NO_QUOTA).built_with("CONFIG_CFS_BANDWIDTH"),
    file("cpu.cfs_period_us", (3, 2), NO_QUOTA).built_with("CONFIG_CFS_BANDWIDTH"),
    file("cpu.max.burst", (5, 14), NO_BURST).built_with("CONFIG_CFS_BANDWIDTH"),
    file("cpu.cfs_burst_us", (5, 14), NO_BURST).built_with("CONFIG_CFS_BANDWIDTH"),
    file("cpu.idle", (5, 15), "set Scavenger=no, or OnError=fail,weight:warn"),
    file("memory.oom.group", (4, 19), "set OOMKillStep=no, or OnError=fail,oomgroup:warn"),
    file("memory.min", (4, 18), "set MemoryMinPercent=0, or OnError=fail,memlow:warn"),
    file("io.max", (4, 5), NO_IO).built_with("CONFIG_BLK_DEV_THROTTLING"),
    file("blkio.throttle.read_bps_device", (2, 6), NO_IO).built_with("CONFIG_BLK_DEV_THROTTLING"),
    file("io.weight", (5, 4), "leave IOWeight out, or set OnError=fail,ioweight:warn")
        .built_with("CONFIG_BLK_CGROUP_IOCOST"),
];

/// A file that every directory with this controller has, on v2 and on v1; controllers that are not here have none.
const WITNESSES: &[(&str, &str, &str)] = &[
    ("cpu", "cpu.weight", "cpu.shares"),
    ("cpuset", "cpuset.cpus", "cpuset.cpus"),
    ("io", "io.stat", "blkio.reset_stats"),
    ("blkio", "io.stat", "blkio.reset_stats"),
    ("memory", "memory.current", "memory.usage_in_bytes"),
    ("pids", "pids.current", "pids.current"),
];

/// Why a directory lacks a control file: the controller is not there at all, or this kernel's has no such file.
pub fn missing(dir: &Dir, file: &str, controller: &str) -> Error {
    let error = Error::os("open", dir.path().join(file), Errno::ENOENT);
    let witnesses = WITNESSES.iter().find(|(name, ..)| *name == controller);
    let version = witnesses.and_then(|(_, v2, v1)| {
        let found = if dir.has(v2) { Some(Version::V2) } else { None };
        found.or_else(|| dir.has(v1).then_some(Version::V1))
    });
    if version.is_none() {
        return error.hint(format!("the {controller} controller is not available here: see 'jobfence check'"));
    }
    error.hint(why_no_file(file, controller, release()))
}

fn why_no_file(file: &str, controller: &str, release: Option<Release>) -> String {
    let kernel = release.map_or("this kernel".to_owned(), |(major, minor)| format!("this kernel ({major}.{minor})"));
    let Some(known) = FILES.iter().find(|known| known.name == file) else {
        return format!("the {controller} controller is here, but {kernel} has no such file");
    };
    let remedy = known.remedy;
    match known.built_with {
        Some(option) if release.is_none_or(|release| release >= known.since) => {
            format!("{kernel} has no such file: it was built without {option}; {remedy}")
        }
        _ => {
            let (major, minor) = known.since;
            format!("{kernel} has no such file, which came with Linux {major}.{minor}; {remedy}")
        }
    }
}

/// A scheduler that a program has loaded into the kernel in place of its own (sched_ext, Linux 6.12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedScheduler {
    /// What it calls itself.
    pub name: String,
    /// Whether it schedules all processes, and not only those that have asked for it (`SCHED_EXT`), as any process may.
    pub everybody: bool,
}

impl LoadedScheduler {
    /// The directory of sched_ext's attributes.
    pub const ATTRIBUTES: &str = "/sys/kernel/sched_ext";

    /// Reads this directory ([`ATTRIBUTES`](Self::ATTRIBUTES)); `None` if the kernel's own scheduler is at work.
    ///
    /// Source: Documentation/scheduler/sched-ext.rst, and the attributes in kernel/sched/ext.c.
    pub fn find(dir: &Dir) -> Option<Self> {
        // "disabling" lasts a moment. So does "enabling" as of Linux 6.12, but it ends with the scheduler loaded.
        if matches!(dir.read_value("state").ok()?.trim(), "disabled" | "disabling") {
            return None;
        }
        let name = dir.read_value("root/ops").unwrap_or_default();
        // If the file cannot be read, assume the worse.
        let everybody = dir.read_value("switch_all").map_or(true, |text| text.trim() != "0");
        Some(Self { name: name.trim().to_owned(), everybody })
    }

    /// Why a CPU quota may not hold. Only the kernel's fair scheduler throttles. Since Linux 6.17 the kernel tells the loaded one of
    /// quotas (`ops.cgroup_set_bandwidth`), but nothing shows whether that one acts on them. `None`: the quota holds for all processes
    /// that do not ask for the loaded scheduler.
    pub fn ignores_quota(&self) -> Option<Error> {
        self.everybody.then(|| self.error(release()))
    }

    fn error(&self, release: Option<Release>) -> Error {
        let error = Error::new(format!("Linux does not keep the CPU quota now: {self}"));
        if release.is_some_and(|release| release < TELLS_QUOTAS) {
            return error.hint(
                "before Linux 6.17 the kernel tells no such scheduler of quotas: end it (systemctl stop scx.service, \
                 or its loader), or let jobs run without the quota (OnError=fail,cpu:warn)",
            );
        }
        error.hint(
            "only the scheduler itself knows whether it keeps quotas: if it does, OnError=fail,cpu:warn lets jobs \
             run; otherwise end it (systemctl stop scx.service, or its loader)",
        )
    }
}

/// Linux 6.17: "sched_ext: Add support for cgroup bandwidth control interface" (ddceadce63d9).
const TELLS_QUOTAS: Release = (6, 17);

impl fmt::Display for LoadedScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.everybody { "all processes" } else { "the processes that ask for it (SCHED_EXT)" };
        write!(f, "the loaded scheduler {:?} (sched_ext) has {who}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert_eq!(parse_release("6.12.107+deb13-cloud-amd64"), Some((6, 12)));
        assert_eq!(parse_release("7.2-rc1"), Some((7, 2)));
        assert_eq!(parse_release("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        assert_eq!(parse_release("linux"), None);
        assert_eq!(parse_release(""), None);
        assert!(release().is_some());
    }

    #[test]
    fn a_missing_file_is_told_from_a_missing_controller() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let why = |file, controller| missing(&dir, file, controller).to_string();
        let none = why("cpu.max.burst", "cpu");
        assert!(none.contains("the cpu controller is not available here"), "{none}");
        for witness in ["cpu.shares", "memory.usage_in_bytes"] {
            std::fs::write(temp.path().join(witness), "").unwrap();
        }
        let burst = why("cpu.max.burst", "cpu");
        assert!(burst.contains("cpu.max.burst: No such file") && burst.contains("has no such file"), "{burst}");
        assert!(!burst.contains("controller is not available"), "{burst}");
        let other = why("memory.tides", "memory");
        assert!(other.contains("the memory controller is here, but this kernel"), "{other}");
        assert!(why("pids.max", "pids").contains("the pids controller is not available here"));
    }

    #[test]
    fn a_missing_file_is_explained_by_the_release() {
        let why = |file, release| why_no_file(file, "cpu", release);
        let old = why("cpu.idle", Some((5, 14)));
        assert_eq!(
            old,
            "this kernel (5.14) has no such file, which came with Linux 5.15; set Scavenger=no, or OnError=fail,weight:warn"
        );
        let without = why("cpu.max", Some((6, 1)));
        assert!(
            without.starts_with("this kernel (6.1) has no such file: it was built without CONFIG_CFS_BANDWIDTH; "),
            "{without}"
        );
        let older = why("cpu.max.burst", Some((4, 18)));
        assert!(older.contains("which came with Linux 5.14; set CPUBurst=0"), "{older}");
    }

    /// A directory with these attributes.
    fn sys(state: &str, all: &str, ops: Option<&str>) -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        std::fs::create_dir_all(dir.join("root")).unwrap();
        std::fs::write(dir.join("state"), format!("{state}\n")).unwrap();
        std::fs::write(dir.join("switch_all"), format!("{all}\n")).unwrap();
        if let Some(ops) = ops {
            std::fs::write(dir.join("root/ops"), format!("{ops}\n")).unwrap();
        }
        let dir = Dir::open(dir).unwrap();
        (temp, dir)
    }

    #[test]
    fn without_a_loaded_scheduler_the_quota_holds() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(LoadedScheduler::find(&Dir::open(temp.path()).unwrap()), None);
        for state in ["disabled", "disabling"] {
            assert_eq!(LoadedScheduler::find(&sys(state, "1", None).1), None, "{state}");
        }
    }

    #[test]
    fn a_loaded_scheduler_is_named_with_what_it_does_to_the_quota() {
        let found = LoadedScheduler::find(&sys("enabled", "1", Some("rusty_1.0\x1b[2J")).1).unwrap();
        assert!(found.everybody && found.ignores_quota().is_some());
        assert!(found.to_string().contains("rusty_1.0") && !found.to_string().contains('\x1b'), "{found}");
        let old = found.error(Some((6, 12))).to_string();
        assert!(old.contains("before Linux 6.17 the kernel tells no such scheduler of quotas"), "{old}");
        let new = found.error(Some((6, 17))).to_string();
        assert!(new.contains("only the scheduler itself knows whether it keeps quotas"), "{new}");
        let partial = LoadedScheduler::find(&sys("enabled", "0", Some("flash")).1).unwrap();
        assert_eq!(partial.ignores_quota(), None);
        assert!(partial.to_string().contains("SCHED_EXT"), "{partial}");
    }

    #[test]
    fn what_cannot_be_read_counts_for_the_worse() {
        let (temp, dir) = sys("enabling", "0", None);
        std::fs::remove_file(temp.path().join("switch_all")).unwrap();
        assert_eq!(LoadedScheduler::find(&dir).map(|found| found.everybody), Some(true));
    }
}
