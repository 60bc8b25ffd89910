// SPDX-License-Identifier: GPL-2.0-or-later
//! What a directory's processes have used.
//!
//! A figure that this kernel does not keep is `None`, never zero. Sources: cgroup-v2.rst ("Core Interface Files"),
//! cgroup-v1/memory.rst, cgroup-v1/cpuacct.rst, sched-bwc.rst.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use super::layout::{Hierarchy, Version};
use super::walk;
use crate::sorted;
use crate::sys::dir::Dir;

/// Counters of one step since its directory was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, user and system together.
    pub cpu: Option<Duration>,
    /// CPU time in the programs themselves.
    pub cpu_user: Option<Duration>,
    /// CPU time in the kernel on their behalf.
    pub cpu_system: Option<Duration>,
    /// Periods of the quota in which a process could have run.
    pub periods: Option<u64>,
    /// Periods of these in which the quota was used up.
    pub throttled_periods: Option<u64>,
    /// Time during which the quota held back processes that could have run.
    pub throttled: Option<Duration>,
    /// The most memory in use at once, in bytes; `memory.peak` exists since Linux 5.19.
    pub memory_peak: Option<u64>,
    /// The most swap in use at once, in bytes; since Linux 6.5, and not on v1.
    pub swap_peak: Option<u64>,
    /// What the memory that is in use now consists of.
    pub memory: MemoryParts,
    /// How often memory was reclaimed for `memory.high`.
    pub memory_high_events: Option<u64>,
    /// How often the limit of memory was reached. Page cache alone can reach it, too.
    pub memory_max_events: Option<u64>,
    /// Processes that the kernel OOM-killed.
    pub oom_kills: Option<u64>,
    /// The most processes and threads at once; `pids.peak` exists since Linux 6.1, and only on v2.
    pub processes_peak: Option<u64>,
    /// How often the limit of processes kept a process from being started.
    pub forks_refused: Option<u64>,
    /// What was read from disks and written to them, disk by disk; what goes through one disk to another (LVM, loop) counts at each.
    pub io: Option<Vec<DiskIo>>,
    /// How long processes have waited for CPU time (psi.rst; cgroup2 only).
    pub cpu_pressure: Pressure,
    /// How long they have waited for memory.
    pub memory_pressure: Pressure,
    /// How long they have waited for disks.
    pub io_pressure: Pressure,
}

/// Memory in use, by kind, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryParts {
    /// Memory that programs have allocated: heap, stack and the like.
    pub anonymous: Option<u64>,
    /// Page cache of files, without [`shared`](Self::shared): the kernel takes it back when memory is short.
    pub file: Option<u64>,
    /// Changed page cache that is not yet on a disk or server: `disk_io` counts it when the kernel writes it, if ever.
    pub unwritten: Option<u64>,
    /// Shared memory and files in tmpfs.
    pub shared: Option<u64>,
    /// The kernel's own memory for these processes; since Linux 5.18 on v2.
    pub kernel: Option<u64>,
    /// Huge pages, where they count as memory (the mount option `memory_hugetlb_accounting` of cgroup2, since Linux 6.6; the figure
    /// since 6.14).
    pub huge: Option<u64>,
    /// Swap.
    pub swap: Option<u64>,
}

/// How long processes have waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// The time in which at least one of them has.
    pub some: Option<Duration>,
    /// The time in which all of them have that could have run.
    pub full: Option<Duration>,
}

/// What went between memory and one disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskIo {
    /// Its number, major and minor.
    pub disk: (u32, u32),
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Operations of reading.
    pub reads: u64,
    /// Operations of writing.
    pub writes: u64,
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
    /// Bytes of all disks together.
    pub fn io_bytes(&self) -> Option<IoBytes> {
        let add = |sum: IoBytes, one: &DiskIo| IoBytes {
            read: sum.read.saturating_add(one.read),
            written: sum.written.saturating_add(one.written),
        };
        self.io.as_ref().map(|disks| disks.iter().fold(IoBytes::default(), add))
    }

    /// Reads from this hierarchy the figures that are not known yet.
    pub fn add(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        self.add_cpu_and_memory(hierarchy, dir);
        if hierarchy.version == Version::V1 && hierarchy.has("memory") && self.oom_kills.is_none() {
            self.oom_kills = oom_kills(hierarchy, dir);
        }
        let parts = MemoryParts::read(hierarchy, dir, self.swap_peak);
        self.memory.or(parts);
        if self.forks_refused.is_none() {
            self.forks_refused = forks_refused(hierarchy, dir);
        }
        if self.processes_peak.is_none() && hierarchy.has("pids") {
            self.processes_peak = number(&read(dir, "pids.peak"));
        }
        if self.io.is_none() {
            self.io = disk_io(hierarchy, dir);
        }
        if hierarchy.version == Version::V2 {
            self.cpu_pressure.or(Pressure::read(dir, "cpu.pressure"));
            self.memory_pressure.or(Pressure::read(dir, "memory.pressure"));
            self.io_pressure.or(Pressure::read(dir, "io.pressure"));
        }
    }

    /// As `add`, but only CPU time and peak memory, for a whole job: it is read for each step's line, which must cost little.
    pub fn add_of_job(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        let micros = |text: &str| keyed(text, "usage_usec").map(Duration::from_micros);
        match hierarchy.version {
            Version::V2 => {
                self.cpu = self.cpu.or_else(|| micros(&read(dir, "cpu.stat")));
                if hierarchy.has("memory") {
                    self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.peak")));
                }
            }
            Version::V1 => {
                if hierarchy.has("cpuacct") {
                    self.cpu = self.cpu.or_else(|| number(&read(dir, "cpuacct.usage")).map(Duration::from_nanos));
                }
                if hierarchy.has("memory") {
                    self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.max_usage_in_bytes")));
                }
            }
        }
    }

    /// As [`add`](Self::add), but only what a card shows, since it is read while a step ends. On v1 a directory does not count the
    /// kills and failed forks below it.
    pub fn add_for_a_card(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        if hierarchy.version == Version::V2 {
            self.add_cpu_and_memory(hierarchy, dir);
        } else {
            if hierarchy.has("cpuacct") {
                self.cpu = self.cpu.or_else(|| number(&read(dir, "cpuacct.usage")).map(Duration::from_nanos));
            }
            if hierarchy.has("cpu") {
                let stat = read(dir, "cpu.stat");
                self.periods = self.periods.or_else(|| keyed(&stat, "nr_periods"));
                self.throttled_periods = self.throttled_periods.or_else(|| keyed(&stat, "nr_throttled"));
                self.throttled = self.throttled.or_else(|| keyed(&stat, "throttled_time").map(Duration::from_nanos));
            }
            if hierarchy.has("memory") {
                self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.max_usage_in_bytes")));
            }
        }
        if hierarchy.has("memory") {
            let parts = MemoryParts::of_stat(hierarchy.version, dir);
            self.memory.or(parts);
        }
        if self.processes_peak.is_none() && hierarchy.has("pids") {
            self.processes_peak = number(&read(dir, "pids.peak"));
        }
        if self.io.is_none() {
            self.io = disk_io(hierarchy, dir);
        }
        if hierarchy.version == Version::V2 {
            self.memory_pressure.or(Pressure::read(dir, "memory.pressure"));
            self.io_pressure.or(Pressure::read(dir, "io.pressure"));
        }
    }

    fn add_cpu_and_memory(&mut self, hierarchy: &Hierarchy, dir: &Dir) {
        match hierarchy.version {
            Version::V2 => {
                // cpu.stat has these three in every cgroup2 directory, with or without the cpu controller.
                let stat = read(dir, "cpu.stat");
                let time = |key| keyed(&stat, key).map(Duration::from_micros);
                self.cpu = self.cpu.or_else(|| time("usage_usec"));
                self.cpu_user = self.cpu_user.or_else(|| time("user_usec"));
                self.cpu_system = self.cpu_system.or_else(|| time("system_usec"));
                self.periods = self.periods.or_else(|| keyed(&stat, "nr_periods"));
                self.throttled_periods = self.throttled_periods.or_else(|| keyed(&stat, "nr_throttled"));
                self.throttled = self.throttled.or_else(|| time("throttled_usec"));
                if hierarchy.has("memory") {
                    self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.peak")));
                    self.swap_peak = self.swap_peak.or_else(|| number(&read(dir, "memory.swap.peak")));
                    let events = read(dir, "memory.events");
                    self.memory_high_events = self.memory_high_events.or_else(|| keyed(&events, "high"));
                    self.memory_max_events = self.memory_max_events.or_else(|| keyed(&events, "max"));
                    self.oom_kills = self.oom_kills.or_else(|| keyed(&events, "oom_kill"));
                }
            }
            Version::V1 => {
                if hierarchy.has("cpuacct") {
                    let time = |file| number(&read(dir, file)).map(Duration::from_nanos);
                    self.cpu = self.cpu.or_else(|| time("cpuacct.usage"));
                    self.cpu_user = self.cpu_user.or_else(|| time("cpuacct.usage_user"));
                    self.cpu_system = self.cpu_system.or_else(|| time("cpuacct.usage_sys"));
                }
                if hierarchy.has("cpu") {
                    let stat = read(dir, "cpu.stat");
                    self.periods = self.periods.or_else(|| keyed(&stat, "nr_periods"));
                    self.throttled_periods = self.throttled_periods.or_else(|| keyed(&stat, "nr_throttled"));
                    let throttled = keyed(&stat, "throttled_time");
                    self.throttled = self.throttled.or_else(|| throttled.map(Duration::from_nanos));
                }
                if hierarchy.has("memory") {
                    self.memory_peak = self.memory_peak.or_else(|| number(&read(dir, "memory.max_usage_in_bytes")));
                    self.memory_max_events = self.memory_max_events.or_else(|| number(&read(dir, "memory.failcnt")));
                }
            }
        }
    }

    /// Takes from `other` the figures that are not known here.
    pub fn or(&mut self, other: &Self) {
        let Self { cpu, cpu_user, cpu_system, periods, throttled_periods, throttled, .. } = *other;
        self.cpu = self.cpu.or(cpu);
        self.cpu_user = self.cpu_user.or(cpu_user);
        self.cpu_system = self.cpu_system.or(cpu_system);
        self.periods = self.periods.or(periods);
        self.throttled_periods = self.throttled_periods.or(throttled_periods);
        self.throttled = self.throttled.or(throttled);
        let Self { memory_peak, swap_peak, memory, memory_high_events, memory_max_events, oom_kills, .. } = *other;
        self.memory_peak = self.memory_peak.or(memory_peak);
        self.swap_peak = self.swap_peak.or(swap_peak);
        self.memory.or(memory);
        self.memory_high_events = self.memory_high_events.or(memory_high_events);
        self.memory_max_events = self.memory_max_events.or(memory_max_events);
        self.oom_kills = self.oom_kills.or(oom_kills);
        let Self { processes_peak, forks_refused, cpu_pressure, memory_pressure, io_pressure, .. } = *other;
        self.processes_peak = self.processes_peak.or(processes_peak);
        self.forks_refused = self.forks_refused.or(forks_refused);
        if self.io.is_none() {
            self.io.clone_from(&other.io);
        }
        self.cpu_pressure.or(cpu_pressure);
        self.memory_pressure.or(memory_pressure);
        self.io_pressure.or(io_pressure);
    }
}

impl MemoryParts {
    fn read(hierarchy: &Hierarchy, dir: &Dir, swap_peak: Option<u64>) -> Self {
        if !hierarchy.has("memory") {
            return Self::default();
        }
        let parts = Self::of_stat(hierarchy.version, dir);
        match hierarchy.version {
            Version::V2 => {
                // If there never was any swap in use, none is now.
                let swap = swap_peak.filter(|peak| *peak == 0);
                Self { swap: swap.or_else(|| number(&read(dir, "memory.swap.current"))), ..parts }
            }
            Version::V1 => Self { kernel: number(&read(dir, "memory.kmem.usage_in_bytes")), ..parts },
        }
    }

    /// The parts that `memory.stat` has.
    fn of_stat(version: Version, dir: &Dir) -> Self {
        // v1's totals include what is below, as v2's figures do.
        let keys = match version {
            Version::V2 => ["anon", "file", "shmem", "kernel", "", "file_dirty", "file_writeback", "hugetlb"],
            Version::V1 => {
                ["total_rss", "total_cache", "total_shmem", "", "total_swap", "total_dirty", "total_writeback", ""]
            }
        };
        let [anonymous, file, shared, kernel, swap, dirty, leaving, huge] =
            each_keyed(&table(dir, "memory.stat"), keys);
        let file = file.map(|file| file.saturating_sub(shared.unwrap_or(0)));
        let unwritten = dirty.zip(leaving).map(|(dirty, leaving)| dirty.saturating_add(leaving));
        Self { anonymous, file, unwritten, shared, kernel, huge, swap }
    }

    fn or(&mut self, other: Self) {
        self.anonymous = self.anonymous.or(other.anonymous);
        self.file = self.file.or(other.file);
        self.unwritten = self.unwritten.or(other.unwritten);
        self.shared = self.shared.or(other.shared);
        self.kernel = self.kernel.or(other.kernel);
        self.huge = self.huge.or(other.huge);
        self.swap = self.swap.or(other.swap);
    }
}

impl Pressure {
    /// Reads lines such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12`, with the total in microseconds.
    fn read(dir: &Dir, file: &str) -> Self {
        let text = read(dir, file);
        let of = |kind| {
            let line = text.split('\n').find_map(|line| line.strip_prefix(kind))?;
            // The total is the last word.
            let total = line.rsplit(' ').find_map(|word| word.strip_prefix("total="));
            total.and_then(number).map(Duration::from_micros)
        };
        Self { some: of("some "), full: of("full ") }
    }

    fn or(&mut self, other: Self) {
        self.some = self.some.or(other.some);
        self.full = self.full.or(other.full);
    }
}

/// CPU time of all processes that were ever in this directory and below it, removed directories included.
pub fn cpu(hierarchy: &Hierarchy, dir: &Dir) -> Option<Duration> {
    match hierarchy.version {
        Version::V2 => used_in(&read(dir, "cpu.stat")),
        Version::V1 => number(&read(dir, "cpuacct.usage")).map(Duration::from_nanos),
    }
}

fn used_in(stat: &str) -> Option<Duration> {
    keyed(stat, "usage_usec").map(Duration::from_micros)
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
    if !hierarchy.has("io") {
        return None;
    }
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
        let parts = MemoryParts::of_stat(Version::V1, &Dir::open(temp.path()).unwrap());
        assert_eq!((parts.anonymous, parts.file, parts.shared), (Some(100), Some(50), Some(20)));
        assert_eq!((parts.kernel, parts.swap, parts.unwritten), (None, Some(5), Some(9)));
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
        let mut usage = Usage::default();
        usage.add(&hierarchy, &Dir::open(temp.path()).unwrap());
        assert_eq!(
            usage,
            Usage {
                cpu: Some(Duration::from_micros(1500)),
                cpu_user: Some(Duration::from_micros(1)),
                throttled: Some(Duration::from_micros(20)),
                memory: MemoryParts {
                    anonymous: Some(100),
                    file: Some(50),
                    unwritten: Some(6),
                    huge: Some(8),
                    shared: Some(20),
                    ..MemoryParts::default()
                },
                memory_max_events: Some(3),
                oom_kills: Some(1),
                cpu_pressure: Pressure { some: Some(Duration::from_micros(12)), full: None },
                io_pressure: Pressure { some: Some(Duration::from_micros(5)), full: None },
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
            disk_io(&Hierarchy { version, mount, root: "/".into(), controllers, name: None }, &dir)
        };
        let disk = |disk, (read, written), (reads, writes)| DiskIo { disk, read, written, reads, writes };
        let on_v2 = vec![disk((8, 0), (1000, 20), (1, 2)), disk((254, 0), (1, 3), (0, 0))];
        assert_eq!(found(Version::V2, "io"), Some(on_v2.clone()));
        assert_eq!(found(Version::V1, "blkio"), Some(vec![disk((7, 0), (1, 0), (0, 0)), disk((8, 0), (5, 6), (2, 3))]));
        assert_eq!(found(Version::V1, "cpu"), None);
        let usage = Usage { io: Some(on_v2), ..Usage::default() };
        assert_eq!(usage.io_bytes(), Some(IoBytes { read: 1001, written: 23 }));
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
