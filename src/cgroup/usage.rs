// SPDX-License-Identifier: GPL-2.0-or-later
//! What a directory's processes have used.
//!
//! A figure that this kernel does not keep is `None`, never zero. Sources: cgroup-v2.rst ("Core Interface Files"),
//! cgroup-v1/memory.rst, cgroup-v1/cpuacct.rst, sched-bwc.rst.

use std::time::Duration;

use super::layout::{Hierarchy, Version};
use crate::sys::dir::Dir;

/// Counters of one step since its directory was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, user and system together.
    pub cpu: Option<Duration>,
    /// Time during which the quota held back processes that could have run.
    pub throttled: Option<Duration>,
    /// The most memory in use at once, in bytes; `memory.peak` exists since Linux 5.19.
    pub memory_peak: Option<u64>,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// How often no process could be started, for the limit of their number.
    pub forks_refused: Option<u64>,
    /// Bytes read from disks, and written to them; what goes through one disk to another (LVM, loop) counts at each.
    pub io: Option<IoBytes>,
}

/// Bytes moved between memory and disks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Usage {
    /// Reads what this hierarchy knows, where nothing before it knew.
    pub fn add(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        self.forks_refused = self.forks_refused.or_else(|| forks_refused(hierarchy, dir));
        self.io = self.io.or_else(|| io_bytes(hierarchy, dir));
        match hierarchy.version {
            Version::V2 => {
                // cpu.stat has usage_usec in every cgroup2 directory, with or without the cpu controller.
                let stat = read(dir, "cpu.stat");
                self.cpu = self.cpu.or_else(|| used_in(&stat));
                self.throttled = self.throttled.or_else(|| keyed(&stat, "throttled_usec").map(Duration::from_micros));
                self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.peak")));
                self.oom_kills = self.oom_kills.or_else(|| oom_kills(hierarchy, dir));
            }
            Version::V1 => {
                self.cpu = self.cpu.or(cpu(hierarchy, dir));
                if hierarchy.has("cpu") {
                    let throttled = keyed(&read(dir, "cpu.stat"), "throttled_time");
                    self.throttled = self.throttled.or_else(|| throttled.map(Duration::from_nanos));
                }
                if hierarchy.has("memory") {
                    self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.max_usage_in_bytes")));
                    self.oom_kills = self.oom_kills.or_else(|| oom_kills(hierarchy, dir));
                }
            }
        }
    }

    /// Takes what another one knows and this one does not.
    pub fn or(&mut self, other: Self) {
        self.cpu = self.cpu.or(other.cpu);
        self.throttled = self.throttled.or(other.throttled);
        self.memory_peak = self.memory_peak.or(other.memory_peak);
        self.oom_kills = self.oom_kills.or(other.oom_kills);
        self.forks_refused = self.forks_refused.or(other.forks_refused);
        self.io = self.io.or(other.io);
    }
}

/// CPU time of all processes that were ever here and below, also in directories that are gone.
pub fn cpu(hierarchy: &Hierarchy, dir: &Dir) -> Option<Duration> {
    match hierarchy.version {
        Version::V2 => used_in(&read(dir, "cpu.stat")),
        Version::V1 => number(&read(dir, "cpuacct.usage")).map(Duration::from_nanos),
    }
}

fn used_in(stat: &str) -> Option<Duration> {
    keyed(stat, "usage_usec").map(Duration::from_micros)
}

/// Processes of this directory that were killed for want of memory, at its own limit or an outer one.
pub fn oom_kills(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    match hierarchy.version {
        Version::V2 => keyed(&read(dir, "memory.events"), "oom_kill"),
        // Since Linux 4.13; each directory counts its own processes, and Slurm has one for each task below the step's.
        Version::V1 => {
            let own = keyed(&read(dir, "memory.oom_control"), "oom_kill")?;
            let below = dir.list(true).unwrap_or_default();
            let of_child = |name: &String| keyed(&read(&dir.child(name).ok()?, "memory.oom_control"), "oom_kill");
            Some(below.iter().filter_map(of_child).fold(own, u64::saturating_add))
        }
    }
}

/// How often a process of this directory could not start another one, since there were as many as its own `pids.max` or an
/// outer one allows.
///
/// v1, and v2 before Linux 6.11, count where the process is: there may be a directory for each task below the step's. Since then
/// v2 counts at the limit that was reached, and above it again (`pids_event`, kernel/cgroup/pids.c); that kernel has
/// `pids.events.local`, too.
pub fn forks_refused(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    if !hierarchy.has("pids") {
        return None;
    }
    let at = |dir: &Dir| keyed(&read(dir, "pids.events"), "max");
    let own = at(dir)?;
    let below = dir.list(true).unwrap_or_default();
    let below = below.iter().filter_map(|name| at(&dir.child(name).ok()?)).fold(0, u64::saturating_add);
    Some(if dir.has("pids.events.local") { own.max(below) } else { own.saturating_add(below) })
}

/// How often a process of this directory, or below it, could not start another one for this directory's own `pids.max`, where the kernel counts
/// there (Linux 6.11): otherwise none.
pub fn forks_refused_here(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    if hierarchy.has("pids") { keyed(&read(dir, "pids.events"), "max") } else { None }
}

/// What the processes here and below have read and written (`io.stat` in cgroup-v2.rst; cgroup-v1/blkio-controller.rst).
fn io_bytes(hierarchy: &Hierarchy, dir: &Dir) -> Option<IoBytes> {
    if !hierarchy.has("io") {
        return None;
    }
    let mut bytes = IoBytes::default();
    match hierarchy.version {
        Version::V2 => {
            for word in dir.read("io.stat").ok()?.split_whitespace() {
                match word.split_once('=') {
                    Some(("rbytes", read)) => bytes.read = bytes.read.saturating_add(number(read)?),
                    Some(("wbytes", written)) => bytes.written = bytes.written.saturating_add(number(written)?),
                    _ => {}
                }
            }
        }
        Version::V1 => {
            for line in dir.read("blkio.throttle.io_service_bytes_recursive").ok()?.lines() {
                let mut words = line.split_whitespace().skip(1);
                match (words.next(), words.next()) {
                    (Some("Read"), Some(read)) => bytes.read = bytes.read.saturating_add(number(read)?),
                    (Some("Write"), Some(written)) => bytes.written = bytes.written.saturating_add(number(written)?),
                    _ => {}
                }
            }
        }
    }
    Some(bytes)
}

/// A file that cannot be read gives no figures; the step ended all the same.
fn read(dir: &Dir, file: &str) -> String {
    dir.read(file).unwrap_or_default()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The value of a line `KEY VALUE`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().filter_map(|line| line.split_once(' ')).find(|(k, _)| *k == key).and_then(|(_, v)| number(v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn reads_what_is_there_and_makes_up_nothing() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("cpu.stat"), "usage_usec 1500\nuser_usec 1\nthrottled_usec 20\n").unwrap();
        std::fs::write(temp.path().join("memory.events"), "low 0\noom 2\noom_kill 1\n").unwrap();
        let hierarchy = Hierarchy {
            version: Version::V2,
            mount: temp.path().into(),
            root: "/".into(),
            controllers: BTreeSet::new(),
            name: None,
        };
        let mut usage = Usage::default();
        usage.add(&hierarchy, &Dir::open(temp.path()).unwrap());
        assert_eq!(
            usage,
            Usage {
                cpu: Some(Duration::from_micros(1500)),
                throttled: Some(Duration::from_micros(20)),
                memory_peak: None,
                oom_kills: Some(1),
                forks_refused: None,
                io: None,
            }
        );
    }

    #[test]
    fn bytes_of_all_disks() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(
            temp.path().join("io.stat"),
            "8:0 rbytes=1000 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n254:0 rbytes=1 wbytes=3\n",
        )
        .unwrap();
        let text = "8:0 Read 5\n8:0 Write 6\n8:0 Total 11\n7:0 Read 1\nTotal 12\n";
        std::fs::write(temp.path().join("blkio.throttle.io_service_bytes_recursive"), text).unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let bytes = |version, name: &str| {
            let controllers = BTreeSet::from([name.to_owned()]);
            let mount = temp.path().into();
            io_bytes(&Hierarchy { version, mount, root: "/".into(), controllers, name: None }, &dir)
        };
        assert_eq!(bytes(Version::V2, "io"), Some(IoBytes { read: 1001, written: 23 }));
        assert_eq!(bytes(Version::V1, "blkio"), Some(IoBytes { read: 6, written: 6 }));
        assert_eq!(bytes(Version::V1, "cpu"), None);
    }

    #[test]
    fn a_fork_that_a_tasks_limit_refused_counts_once() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("task_0")).unwrap();
        let events = |own: &str, of_task: &str| {
            for (name, text) in [("", own), ("task_0", of_task)] {
                std::fs::write(temp.path().join(name).join("pids.events"), format!("max {text}\n")).unwrap();
            }
            let hierarchy = Hierarchy {
                version: Version::V2,
                mount: temp.path().into(),
                root: "/".into(),
                controllers: BTreeSet::from(["pids".to_owned()]),
                name: None,
            };
            forks_refused(&hierarchy, &Dir::open(temp.path()).unwrap())
        };
        // Where the process is.
        assert_eq!(events("1", "3"), Some(4));
        // At the limit and above it.
        std::fs::write(temp.path().join("pids.events.local"), "max 0\n").unwrap();
        assert_eq!(events("3", "3"), Some(3));
        assert_eq!(events("4", "3"), Some(4));
        // Mounted with pids_localevents.
        assert_eq!(events("0", "3"), Some(3));
    }
}
