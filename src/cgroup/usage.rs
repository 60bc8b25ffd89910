// SPDX-License-Identifier: GPL-2.0-or-later
//! What a directory's processes have used.
//!
//! Sources: cgroup-v2.rst ("Core Interface Files"),
//! cgroup-v1/memory.rst, cgroup-v1/cpuacct.rst, sched-bwc.rst.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use super::layout::{Hierarchy, Version};
use super::{limits, walk};
use crate::figures::{DiskIo, LimitedTo, Usage};
use crate::sorted;
use crate::sys::dir::Dir;

/// How much of the usage is read: each has what is in those before it. Looking must cost little where a step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// CPU time.
    Cpu,
    /// Peak memory, as for the job of each step's line.
    Job,
    /// What a card shows. On v1 a directory does not count the kills and failed forks below it.
    Card,
    /// Each figure.
    All,
}

impl Usage {
    /// Adds from this hierarchy the figures that are not known yet.
    pub fn add(&mut self, hierarchy: &Hierarchy, dir: &Dir, depth: Depth) {
        self.or(&Self::read(hierarchy, dir, depth));
    }

    /// Reads the figures that this hierarchy has.
    #[inline(never)]
    pub fn read(hierarchy: &Hierarchy, dir: &Dir, depth: Depth) -> Self {
        let (is_v2, is_all) = (hierarchy.version == Version::V2, depth == Depth::All);
        let mut found = Self::default();
        if depth >= Depth::Card && hierarchy.has("io") {
            found = disk_io(hierarchy, dir).map(Self::from_disks).unwrap_or_default();
        }
        if is_v2 {
            // cpu.stat has the times in every cgroup2 directory, with or without the cpu controller.
            let stat = read(dir, "cpu.stat");
            let time = |key| keyed(&stat, key).map(Duration::from_micros);
            (found.cpu, found.cpu_user, found.cpu_system) =
                (time("usage_usec"), time("user_usec"), time("system_usec"));
            (found.periods, found.throttled_periods) = (keyed(&stat, "nr_periods"), keyed(&stat, "nr_throttled"));
            found.throttled = time("throttled_usec");
        } else {
            let time = |file| number_in(dir, file).map(Duration::from_nanos);
            if hierarchy.has("cpuacct") {
                found.cpu = time("cpuacct.usage");
                if is_all {
                    (found.cpu_user, found.cpu_system) = (time("cpuacct.usage_user"), time("cpuacct.usage_sys"));
                }
            }
            if depth >= Depth::Card && hierarchy.has("cpu") {
                let stat = read(dir, "cpu.stat");
                (found.periods, found.throttled_periods) = (keyed(&stat, "nr_periods"), keyed(&stat, "nr_throttled"));
                found.throttled = keyed(&stat, "throttled_time").map(Duration::from_nanos);
            }
        }
        if depth >= Depth::Job && hierarchy.has("memory") {
            found.add_memory(hierarchy, dir, depth);
        }
        if depth >= Depth::Card && hierarchy.has("pids") {
            found.processes_peak = number_in(dir, "pids.peak");
        }
        if is_all {
            found.forks_refused = forks_refused(hierarchy, dir);
        }
        if depth >= Depth::Card && is_v2 {
            (found.memory_pressure_some, found.memory_pressure_full) = pressure(dir, "memory.pressure");
            (found.io_pressure_some, found.io_pressure_full) = pressure(dir, "io.pressure");
            if is_all {
                (found.cpu_pressure_some, found.cpu_pressure_full) = pressure(dir, "cpu.pressure");
            }
        }
        found
    }

    fn add_memory(&mut self, hierarchy: &Hierarchy, dir: &Dir, depth: Depth) {
        let (is_v2, is_all) = (hierarchy.version == Version::V2, depth == Depth::All);
        self.memory_peak = number_in(dir, memory_peak_file(hierarchy.version));
        if depth < Depth::Card {
            return;
        }
        self.add_memory_parts(hierarchy.version, dir);
        if is_v2 {
            self.swap_peak = number_in(dir, "memory.swap.peak");
            let events = read(dir, "memory.events");
            self.memory_high_events = keyed(&events, "high");
            self.memory_max_events = keyed(&events, "max");
            self.oom_kills = keyed(&events, "oom_kill");
            if is_all {
                // If there never was any swap in use, none is now.
                let swap = self.swap_peak.filter(|peak| *peak == 0);
                self.memory_swap = swap.or_else(|| number_in(dir, "memory.swap.current"));
            }
        } else if is_all {
            self.memory_max_events = number_in(dir, "memory.failcnt");
            self.oom_kills = oom_kills(hierarchy, dir);
            self.memory_kernel = number_in(dir, "memory.kmem.usage_in_bytes");
        }
    }

    /// What the memory in use consists of, as far as `memory.stat` has it.
    fn add_memory_parts(&mut self, version: Version, dir: &Dir) {
        // v1's totals include what is below, as v2's figures do.
        let keys = match version {
            Version::V2 => ["anon", "file", "shmem", "kernel", "", "file_dirty", "file_writeback", "hugetlb"],
            Version::V1 => {
                ["total_rss", "total_cache", "total_shmem", "", "total_swap", "total_dirty", "total_writeback", ""]
            }
        };
        let [anonymous, file, shared, kernel, swap, dirty, leaving, huge_pages] =
            each_keyed(&table(dir, "memory.stat"), keys);
        self.memory_anonymous = anonymous;
        self.memory_file = file.map(|file| file.saturating_sub(shared.unwrap_or(0)));
        self.memory_unwritten = dirty.zip(leaving).map(|(dirty, leaving)| dirty.saturating_add(leaving));
        (self.memory_shared, self.memory_kernel) = (shared, kernel);
        (self.memory_huge_pages, self.memory_swap) = (huge_pages, swap);
    }
}

/// The usage and the limits of a step, for a process that has not made its directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// What the step has used.
    pub step: Usage,
    /// What its whole job has used: CPU time and memory.
    pub job: Usage,
    /// What the step may have.
    pub limits: LimitedTo,
}

impl Used {
    /// Reads from this hierarchy the figures that are not known yet.
    pub fn add(&mut self, hierarchy: &Hierarchy, step: &Dir, job: &Dir) {
        self.step.add(hierarchy, step, Depth::All);
        self.job.add(hierarchy, job, Depth::Job);
        self.limits.lower(hierarchy, step);
    }

    /// Takes from `other` the figures that are not known here.
    pub fn or(&mut self, other: &Self) {
        self.step.or(&other.step);
        self.job.or(&other.job);
        self.limits = self.limits.least(other.limits);
    }
}

impl LimitedTo {
    /// Lowers the limits to those of this directory.
    pub fn lower(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        let version = hierarchy.version;
        let mut here = Self::default();
        if hierarchy.has("cpu") {
            here.cpus = limits::cpu_quota(dir, version).ok().flatten().map(limits::CpuQuota::cpus);
        }
        if hierarchy.has("memory") {
            here.memory = limits::memory_limit(dir, limits::memory_files(version).0).ok().flatten();
        }
        if hierarchy.has("pids") {
            here.processes = limits::processes(dir).ok().flatten();
        }
        *self = self.least(here);
    }
}

/// The file with the most memory in use at once.
pub fn memory_peak_file(version: Version) -> &'static str {
    match version {
        Version::V2 => "memory.peak",
        Version::V1 => "memory.max_usage_in_bytes",
    }
}

/// How long some and all processes have waited, from lines such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12`, with the total in
/// microseconds.
fn pressure(dir: &Dir, file: &str) -> (Option<Duration>, Option<Duration>) {
    let text = read(dir, file);
    let of = |kind| {
        let line = text.split('\n').find_map(|line| line.strip_prefix(kind))?;
        // The total is the last word.
        let total = line.rsplit(' ').find_map(|word| word.strip_prefix("total="));
        total.and_then(number).map(Duration::from_micros)
    };
    (of("some "), of("full "))
}

/// CPU time of all processes that were ever in this directory and below it, removed directories included.
pub fn cpu(hierarchy: &Hierarchy, dir: &Dir) -> Option<Duration> {
    Usage::read(hierarchy, dir, Depth::Cpu).cpu
}

/// How many processes of this directory were OOM-killed, at its own limit or an outer one.
pub fn oom_kills(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    match hierarchy.version {
        Version::V2 => keyed(&read(dir, "memory.events"), "oom_kill"),
        // Since Linux 4.13; each directory counts its own processes, and Slurm has one for each task below the step's.
        Version::V1 => {
            let own = keyed(&read(dir, "memory.oom_control"), "oom_kill")?;
            let below = below(dir);
            let of_child = |name: &String| keyed(&read(&dir.child(name).ok()?, "memory.oom_control"), "oom_kill");
            Some(below.iter().filter_map(of_child).fold(own, u64::saturating_add))
        }
    }
}

/// How often `pids.max` of this directory or an outer one kept a process of this directory from starting another.
///
/// v1, and v2 before Linux 6.11, count where the process is: there may be a directory for each task below the step's. Later v2 counts
/// at the limit that was reached, and in the directories above it (`pids_event`, kernel/cgroup/pids.c); such a kernel also has
/// `pids.events.local`.
pub fn forks_refused(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    if !hierarchy.has("pids") {
        return None;
    }
    let at = |dir: &Dir| keyed(&read(dir, "pids.events"), "max");
    let own = at(dir)?;
    let below = below(dir);
    let below = below.iter().filter_map(|name| at(&dir.child(name).ok()?)).fold(0, u64::saturating_add);
    Some(if dir.has("pids.events.local") { own.max(below) } else { own.saturating_add(below) })
}

/// How often this directory's own `pids.max` kept a process in it or below from starting another, if the kernel counts there (Linux
/// 6.11); otherwise none.
pub fn forks_refused_here(hierarchy: &Hierarchy, dir: &Dir) -> Option<u64> {
    if hierarchy.has("pids") { keyed(&read(dir, "pids.events"), "max") } else { None }
}

/// What the processes here and below have read and written (`io.stat` in cgroup-v2.rst; cgroup-v1/blkio-controller.rst), in the order
/// of the disks' numbers. A disk without traffic is left out.
fn disk_io(hierarchy: &Hierarchy, dir: &Dir) -> Option<Vec<DiskIo>> {
    let mut disks: Vec<DiskIo> = Vec::new();
    let mut note = |disk: &str, set: &dyn Fn(&mut DiskIo)| {
        let number = disk.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some(number) = number else { return };
        let known = disks.iter().position(|one| one.disk == number).unwrap_or(disks.len());
        if known == disks.len() {
            disks.push(DiskIo { disk: number, ..DiskIo::default() });
        }
        disks.get_mut(known).into_iter().for_each(set);
    };
    match hierarchy.version {
        Version::V2 => {
            let text = dir.read_table("io.stat").ok()?;
            let mut disk = "";
            for word in text.split_whitespace() {
                let Some((key, value)) = word.split_once('=') else {
                    // The kernel may write a disk without figures, and no newline after it.
                    disk = word;
                    continue;
                };
                let Some(value) = number(value) else { continue };
                match key {
                    "rbytes" => note(disk, &|one| one.read = value),
                    "wbytes" => note(disk, &|one| one.written = value),
                    "rios" => note(disk, &|one| one.reads = value),
                    "wios" => note(disk, &|one| one.writes = value),
                    _ => {}
                }
            }
        }
        Version::V1 => {
            let bytes = dir.read_table(BYTES_OF_V1).ok()?;
            if !bytes.contains(':') {
                return counts_disks(hierarchy).then(Vec::new);
            }
            let counts = table(dir, "blkio.throttle.io_serviced_recursive");
            for (text, is_bytes) in [(&bytes, true), (&counts, false)] {
                for line in text.lines() {
                    let mut words = line.split_whitespace();
                    let (Some(disk), Some(kind), Some(value)) = (words.next(), words.next(), words.next()) else {
                        continue;
                    };
                    let Some(value) = number(value) else { continue };
                    match (kind, is_bytes) {
                        ("Read", true) => note(disk, &|one| one.read = value),
                        ("Write", true) => note(disk, &|one| one.written = value),
                        ("Read", false) => note(disk, &|one| one.reads = value),
                        ("Write", false) => note(disk, &|one| one.writes = value),
                        _ => {}
                    }
                }
            }
        }
    }
    let is_used = |one: &DiskIo| (one.read, one.written, one.reads, one.writes) != (0, 0, 0, 0);
    disks.retain(is_used);
    sorted::sort_by_key(&mut disks, |one| one.disk);
    Some(disks)
}

const BYTES_OF_V1: &str = "blkio.throttle.io_service_bytes_recursive";

/// Whether v1 counts disk I/O at all. Since Linux 6.10 it does so for a disk only once a limit was set for it somewhere
/// (`blk_throtl_init`, called by `tg_set_conf`): before, the root has no figures.
fn counts_disks(hierarchy: &Hierarchy) -> bool {
    // A step's end must cost little, and this is three system calls: a page has the figures of thirty disks.
    let mut page = [0u8; 4096];
    let read = File::open(hierarchy.mount.join(BYTES_OF_V1)).and_then(|mut file| file.read(&mut page));
    let text = String::from_utf8_lossy(page.get(..read.unwrap_or(0)).unwrap_or_default());
    text.lines().any(|line| line.contains(':') && line.split_whitespace().nth(2).is_some_and(|value| value != "0"))
}

/// The directories below. Mostly there are none, which saves the eight system calls of a list.
fn below(dir: &Dir) -> Vec<String> {
    if walk::has_none_below(dir) { Vec::new() } else { dir.list(true).unwrap_or_default() }
}

/// A file that cannot be read gives no figures; the step ended all the same.
fn read(dir: &Dir, file: &str) -> String {
    dir.read_value(file).unwrap_or_default()
}

/// As `read`, for a long file.
fn table(dir: &Dir, file: &str) -> String {
    dir.read_table(file).unwrap_or_default()
}

/// The number that is all of a file. Not inlined, since there are many.
#[inline(never)]
fn number_in(dir: &Dir, file: &str) -> Option<u64> {
    number(&read(dir, file))
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The values of the lines `KEY VALUE` with these keys. The kernel writes no empty key. The file has dozens of lines, so it is read in
/// one pass.
fn each_keyed<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut values = [None; N];
    for (key, value) in text.split('\n').filter_map(|line| line.split_once(' ')) {
        if let Some(at) = keys.iter().position(|wanted| *wanted == key)
            && let Some(found) = values.get_mut(at)
        {
            *found = number(value);
        }
    }
    values
}

/// The value of a line `KEY VALUE`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.split('\n').find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).and_then(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_on_v1_is_that_with_what_is_below() {
        let temp = tempfile::tempdir().unwrap();
        let stat = "cache 1\nrss 2\nswap 3\ntotal_cache 70\ntotal_rss 100\ntotal_shmem 20\ntotal_swap 5\n\
                    total_dirty 8\ntotal_writeback 1\n";
        std::fs::write(temp.path().join("memory.stat"), stat).unwrap();
        let mut parts = Usage::default();
        parts.add_memory_parts(Version::V1, &Dir::open(temp.path()).unwrap());
        assert_eq!((parts.memory_anonymous, parts.memory_file, parts.memory_shared), (Some(100), Some(50), Some(20)));
        assert_eq!((parts.memory_kernel, parts.memory_swap, parts.memory_unwritten), (None, Some(5), Some(9)));
    }

    #[test]
    fn reads_what_is_there_and_makes_up_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let files = [
            ("cpu.stat", "usage_usec 1500\nuser_usec 1\nthrottled_usec 20\n"),
            ("memory.events", "low 0\nmax 3\noom 2\noom_kill 1\n"),
            ("memory.stat", "anon 100\nfile 70\nshmem 20\nfile_dirty 4\nfile_writeback 2\nhugetlb 8\n"),
            ("cpu.pressure", "some avg10=0.00 avg60=1.00 avg300=0.00 total=12\n"),
            ("io.pressure", "some avg10=0.00 total=5\nfull avg10=0.00 total=x\n"),
        ];
        for (name, text) in files {
            std::fs::write(temp.path().join(name), text).unwrap();
        }
        let hierarchy = Hierarchy {
            version: Version::V2,
            mount: temp.path().into(),
            root: "/".into(),
            controllers: vec!["memory".to_owned()],
            name: None,
        };
        let usage = Usage::read(&hierarchy, &Dir::open(temp.path()).unwrap(), Depth::All);
        assert_eq!(
            usage,
            Usage {
                cpu: Some(Duration::from_micros(1500)),
                cpu_user: Some(Duration::from_micros(1)),
                throttled: Some(Duration::from_micros(20)),
                memory_anonymous: Some(100),
                memory_file: Some(50),
                memory_unwritten: Some(6),
                memory_huge_pages: Some(8),
                memory_shared: Some(20),
                memory_max_events: Some(3),
                oom_kills: Some(1),
                cpu_pressure_some: Some(Duration::from_micros(12)),
                io_pressure_some: Some(Duration::from_micros(5)),
                ..Usage::default()
            }
        );
    }

    #[test]
    fn what_went_to_each_disk() {
        let temp = tempfile::tempdir().unwrap();
        // As Linux before 6.6 writes it: a disk without figures has no line of its own.
        let of_v2 = "7:0 8:0 rbytes=1000 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n254:0 rbytes=1 wbytes=3\n";
        let of_v1 = "8:0 Read 5\n8:0 Write 6\n8:0 Total 11\n7:0 Read 1\nTotal 12\n";
        let counts_of_v1 = "8:0 Read 2\n8:0 Write 3\n7:0 Read 0\n";
        for (name, text) in [
            ("io.stat", of_v2),
            ("blkio.throttle.io_service_bytes_recursive", of_v1),
            ("blkio.throttle.io_serviced_recursive", counts_of_v1),
        ] {
            std::fs::write(temp.path().join(name), text).unwrap();
        }
        let dir = Dir::open(temp.path()).unwrap();
        let found = |version, name: &str| {
            let controllers = vec![name.to_owned()];
            let mount = temp.path().into();
            let hierarchy = Hierarchy { version, mount, root: "/".into(), controllers, name: None };
            Usage::read(&hierarchy, &dir, Depth::Card)
        };
        let disk = |disk, (read, written), (reads, writes)| DiskIo { disk, read, written, reads, writes };
        let on_v2 = vec![disk((8, 0), (1000, 20), (1, 2)), disk((254, 0), (1, 3), (0, 0))];
        let usage = found(Version::V2, "io");
        assert_eq!((usage.disks, usage.read, usage.written), (Some(on_v2), Some(1001), Some(23)));
        let on_v1 = vec![disk((7, 0), (1, 0), (0, 0)), disk((8, 0), (5, 6), (2, 3))];
        assert_eq!(found(Version::V1, "blkio").disks, Some(on_v1));
        assert_eq!(found(Version::V1, "cpu"), Usage::default());
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
                controllers: vec!["pids".to_owned()],
                name: None,
            };
            forks_refused(&hierarchy, &Dir::open(temp.path()).unwrap())
        };
        // Counted where the process is.
        assert_eq!(events("1", "3"), Some(4));
        // Counted at the limit and above it.
        std::fs::write(temp.path().join("pids.events.local"), "max 0\n").unwrap();
        assert_eq!(events("3", "3"), Some(3));
        assert_eq!(events("4", "3"), Some(4));
        // Mounted with pids_localevents.
        assert_eq!(events("0", "3"), Some(3));
    }
}
