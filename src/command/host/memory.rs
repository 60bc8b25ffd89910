// SPDX-License-Identifier: GPL-2.0-or-later
//! How much memory a node has, and how much of it the system needs.

use jobfence::cgroup::layout::Version;
use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;

use super::way::WayToOurs;

/// The result is a multiple of this. The use of an idle system varies by less, so the next call gives the same result.
pub const UNIT: u64 = 256 << 20;

/// The least that the system is left. Its use after a boot says little about what it needs beside jobs.
const LEAST: u64 = 512 << 20;
/// The part of a large node that the system is left at least: its kernel needs more for pages, caches and the network.
const LEAST_PART: u64 = 100;

/// Bytes of this node.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryOfNode {
    /// The memory that the system and the jobs share.
    pub whole: u64,
    /// The place that has this memory, in words.
    pub place: String,
    /// The part of it that the system needs.
    pub system: u64,
    /// The reason for that part, in words.
    pub why: String,
    /// The memory that fences hold now. `None`: our directory is not there.
    pub fences: Option<u64>,
    /// The memory that nobody uses now, on this node or in a cgroup on the way to ours, wherever that is least. Caches count as unused.
    pub free: u64,
    /// Swap of the node.
    pub swap: u64,
}

/// The memory of one place, and the part of it that the system needs.
struct Bound {
    whole: u64,
    place: String,
    system: u64,
    why: String,
}

impl Bound {
    /// `used`: what is in use there now, without fences. `lives`: whether the system's own processes are there, and not only jobs.
    fn new(whole: u64, place: String, used: u64, lives: bool) -> Self {
        let least = if lives { LEAST.max(whole / LEAST_PART) } else { 0 };
        let why = match (lives, used < least) {
            (true, true) => "are left to the system, which uses less now",
            (true, false) => "are in use outside of fences (caches are not counted)",
            (false, _) => "are in use beside fences in that cgroup",
        };
        Self { whole, place, system: used.max(least), why: why.to_owned() }
    }

    fn left(&self) -> u64 {
        self.whole.saturating_sub(self.system)
    }
}

impl MemoryOfNode {
    /// The memory of the node, or of a cgroup on the way to ours: the place that leaves least for jobs.
    pub fn read(proc: &Dir, way: Option<&WayToOurs>) -> Result<Self> {
        let text = proc.read("meminfo")?;
        let total = of_meminfo(&text, "MemTotal")?;
        let available = of_meminfo(&text, "MemAvailable")?.saturating_add(arc(proc));
        let used = total.saturating_sub(available);
        let mut free = available;
        let fences = way.and_then(|way| held(way.ours()?, way.version));
        let without_fences = |held: u64| held.saturating_sub(fences.unwrap_or(0));
        // Huge pages are taken from the node for good, whoever uses them. If they count as a job's memory, the job has them from what
        // nobody else could have.
        let huge = way.and_then(|way| of_stat(way.ours()?, &["hugetlb"])).unwrap_or(0);
        let mut least = Bound::new(total, "on this node".to_owned(), without_fences(used.saturating_add(huge)), true);
        let dirs = way.iter().flat_map(|way| way.dirs.iter().map(|dir| (way.version, dir)));
        for (depth, (version, dir)) in dirs.enumerate() {
            let Some(limit) = limit(dir, version).filter(|limit| *limit < total) else { continue };
            let place = format!("in {}, whose limit that is", dir.path().display());
            // The root of a container's mount has the container's own processes.
            let held = held(dir, version).unwrap_or(0);
            free = free.min(limit.saturating_sub(held));
            let bound = Bound::new(limit, place, without_fences(held), depth == 0);
            if bound.left() < least.left() {
                least = bound;
            }
        }
        let Bound { whole, place, system, why } = least;
        Ok(Self { whole, place, system, why, fences, free, swap: of_meminfo(&text, "SwapTotal").unwrap_or(0) })
    }
}

/// A line of `/proc/meminfo`, in bytes (proc_meminfo(5)).
pub fn of_meminfo(text: &str, name: &str) -> Result<u64> {
    let of_line =
        |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok();
    let kb: Option<u64> = text.lines().find_map(of_line);
    kb.and_then(|kb| kb.checked_mul(1024)).ok_or_else(|| Error::new(format!("/proc/meminfo has no {name}")))
}

/// The memory that ZFS's cache gives back when memory is short: what it has above its least size. The kernel counts it as used
/// (`/proc/spl/kstat/zfs/arcstats`: lines of a name, a type and a value).
fn arc(proc: &Dir) -> u64 {
    let Ok(Some(text)) = proc.read_if_there("spl/kstat/zfs/arcstats") else { return 0 };
    let of_line = |line: &str, wanted: &str| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| *name == wanted)?;
        words.nth(1)?.parse::<u64>().ok()
    };
    let value = |wanted| text.lines().find_map(|line| of_line(line, wanted));
    value("size").zip(value("c_min")).map_or(0, |(size, least)| size.saturating_sub(least))
}

/// The limit of a directory. `None`: it has none. On v1 a missing limit is the largest number that the kernel has.
fn limit(dir: &Dir, version: Version) -> Option<u64> {
    let file = match version {
        Version::V2 => "memory.max",
        Version::V1 => "memory.limit_in_bytes",
    };
    dir.read_if_there(file).ok()??.trim().parse().ok()
}

/// The memory of a directory's processes that the kernel cannot take back: all but the page cache (cgroup-v2.rst, memory.stat;
/// cgroup-v1/memory.rst, section 5.2). tmpfs is not in these figures of the page cache, so it counts. `None`: the root of cgroup2 counts
/// nothing.
fn held(dir: &Dir, version: Version) -> Option<u64> {
    let (file, caches): (_, &[&str]) = match version {
        Version::V2 => ("memory.current", &["inactive_file", "active_file", "slab_reclaimable"]),
        Version::V1 => ("memory.usage_in_bytes", &["total_inactive_file", "total_active_file"]),
    };
    let used: u64 = dir.read_if_there(file).ok()??.trim().parse().ok()?;
    Some(used.saturating_sub(of_stat(dir, caches)?))
}

/// The sum of these lines of `memory.stat`.
fn of_stat(dir: &Dir, names: &[&str]) -> Option<u64> {
    let stat = dir.read("memory.stat").ok()?;
    let wanted = stat.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| names.contains(name));
    Some(wanted.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum())
}

/// The part of the last minute in which some process of the node waited for memory, in percent (psi.rst). `None`: this kernel does not
/// measure it.
pub fn pressure() -> Option<String> {
    let text = std::fs::read_to_string("/proc/pressure/memory").ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let value = some.split_whitespace().find_map(|word| word.strip_prefix("avg60="))?;
    value.parse::<f64>().is_ok().then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::way::samples::{files, way};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A node with 16 GiB. 3 GiB of it are in use and no cache.
    const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:   13631488 kB\n\
                           Cached:         10000000 kB\nSwapCached:            0 kB\nSwapTotal:       2097152 kB\n";

    /// A host with 120 GiB of ARC. ZFS keeps 8 GiB of it.
    #[test]
    fn the_cache_of_zfs_is_free() {
        let meminfo = "MemTotal: 263848572 kB\nMemAvailable: 128901120 kB\n";
        let arcstats = "13 1 0x01 147 39984 3859 9\nname                            type data\nhits 4 5\nc 4 128849018880\n\
                        c_min 4 8589934592\nc_max 4 137438953472\nsize 4 128849018880\n";
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("spl/kstat/zfs")).unwrap();
        let system =
            |files_of: &[(&str, &str)]| MemoryOfNode::read(&files(proc.path(), files_of), None).unwrap().system;
        let (meminfo, arc) = (("meminfo", meminfo), "spl/kstat/zfs/arcstats");
        let counted = system(&[meminfo]);
        assert_eq!(counted - system(&[meminfo, (arc, arcstats)]), 112 << 30);
        for wrong in ["", "size 4\nc_min 4 1\n", "size 4 5\nc_min 4 8589934592\n", "size 4 99999999999\n"] {
            assert_eq!(system(&[meminfo, (arc, wrong)]), counted, "{wrong}");
        }
    }

    fn read(way: Option<&WayToOurs>) -> MemoryOfNode {
        let proc = tempfile::tempdir().unwrap();
        MemoryOfNode::read(&files(proc.path(), &[("meminfo", MEMINFO)]), way).unwrap()
    }

    #[test]
    fn without_fences_all_that_is_in_use_is_the_systems() {
        let node = read(None);
        assert_eq!((node.whole, node.system, node.swap), (16384 * MIB, 3072 * MIB, 2048 * MIB));
        assert_eq!((node.fences, node.place.as_str()), (None, "on this node"));
        assert!(node.why.contains("outside of fences"), "{}", node.why);
    }

    /// A running node under systemd: a job has 2 GiB of the 3 GiB in use, and 4 GiB of page cache beside them.
    #[test]
    fn what_fences_hold_is_not_the_systems() {
        let temp = tempfile::tempdir().unwrap();
        let current = (6 * 1024 * MIB).to_string();
        let stat = format!(
            "anon 2147483648\nfile 4294967296\ninactive_file {}\nactive_file {}\nslab_reclaimable {}\n",
            2048 * MIB,
            2000 * MIB,
            48 * MIB
        );
        files(
            temp.path(),
            &[
                ("a.slice/memory.max", "max\n"),
                ("a.slice/b.scope/memory.max", "max\n"),
                ("a.slice/b.scope/memory.current", &current),
                ("a.slice/b.scope/memory.stat", &stat),
            ],
        );
        let node = read(Some(&way(Version::V2, temp.path(), &["a.slice", "b.scope"], true)));
        assert_eq!((node.whole, node.system, node.fences), (16384 * MIB, 1024 * MIB, Some(2048 * MIB)));
        // The scope is not made yet, so nothing is known of fences.
        let node = read(Some(&way(Version::V2, temp.path(), &["a.slice"], false)));
        assert_eq!((node.system, node.fences), (3072 * MIB, None));
    }

    /// The pool of huge pages is 2 GiB of the 3 GiB in use. Jobs use half of the pool, and it counts as their memory.
    #[test]
    fn the_pool_of_huge_pages_stays_the_systems() {
        let temp = tempfile::tempdir().unwrap();
        let ours = |current: u64, stat: &str| {
            files(
                temp.path(),
                &[("a/memory.max", "max\n"), ("a/memory.current", &current.to_string()), ("a/memory.stat", stat)],
            );
            read(Some(&way(Version::V2, temp.path(), &["a"], true)))
        };
        let idle = ours(0, "anon 0\nhugetlb 0\n");
        let used = ours(1024 * MIB, "anon 0\nhugetlb 1073741824\n");
        assert_eq!((idle.system, used.system, used.fences), (3072 * MIB, 3072 * MIB, Some(1024 * MIB)));
        // Here huge pages do not count as memory.
        assert_eq!(ours(0, "anon 0\n").system, 3072 * MIB);
    }

    #[test]
    fn the_system_is_left_a_least_amount() {
        let least = |whole: u64, used: u64| Bound::new(whole, String::new(), used, true).system;
        assert_eq!(least(16384 * MIB, 100 * MIB), 512 * MIB);
        assert_eq!(least(16384 * MIB, 600 * MIB), 600 * MIB);
        assert_eq!(least(102_400 * MIB, 600 * MIB), 1024 * MIB);
        assert!(Bound::new(16384 * MIB, String::new(), 0, true).why.contains("uses less now"));
        assert_eq!(Bound::new(16384 * MIB, String::new(), 7, false).system, 7);
    }

    #[test]
    fn a_slice_with_a_limit_leaves_no_more_to_jobs() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path(), &[("a.slice/memory.max", &format!("{}\n", 8192 * MIB))]);
        let node = read(Some(&way(Version::V2, temp.path(), &["a.slice"], false)));
        assert_eq!((node.whole, node.system), (8192 * MIB, 0));
        assert!(node.place.contains("a.slice, whose limit that is"), "{}", node.place);
        // A limit above what the node leaves changes nothing.
        files(temp.path(), &[("a.slice/memory.max", &format!("{}\n", 16000 * MIB))]);
        assert_eq!(read(Some(&way(Version::V2, temp.path(), &["a.slice"], false))).whole, 16384 * MIB);
    }

    /// A container on v1 sees the host's `/proc/meminfo`. Its own processes are in the mount's root.
    #[test]
    fn a_container_has_what_its_root_has() {
        let temp = tempfile::tempdir().unwrap();
        let unlimited = "9223372036854771712\n";
        let (own, jobs) = ((1500 * MIB).to_string(), (500 * MIB).to_string());
        files(
            temp.path(),
            &[
                ("memory.limit_in_bytes", &(4096 * MIB).to_string()),
                ("memory.usage_in_bytes", &own),
                (
                    "memory.stat",
                    "cache 1\ninactive_file 3\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n",
                ),
                ("jobfence/memory.limit_in_bytes", unlimited),
                ("jobfence/memory.usage_in_bytes", &jobs),
                ("jobfence/memory.stat", "total_inactive_file 0\ntotal_active_file 0\n"),
            ],
        );
        let node = read(Some(&way(Version::V1, temp.path(), &["jobfence"], true)));
        assert_eq!((node.whole, node.system, node.fences), (4096 * MIB, 800 * MIB, Some(500 * MIB)));
    }

    #[test]
    fn a_figure_that_is_not_there_is_an_error() {
        let proc = tempfile::tempdir().unwrap();
        let error = MemoryOfNode::read(&files(proc.path(), &[("meminfo", "MemTotal: 5 kB\n")]), None).unwrap_err();
        assert!(error.to_string().contains("/proc/meminfo has no MemAvailable"), "{error}");
        for text in ["MemTotal 5 kB", "MemTotal: x kB", "MemTotalX: 5 kB", "MemTotal: 5", ""] {
            assert!(of_meminfo(text, "MemTotal").is_err(), "{text}");
        }
    }
}
