// SPDX-License-Identifier: GPL-2.0-or-later
//! The file system resctrl (Documentation/filesystems/resctrl.rst; fs/resctrl/rdtgroup.c): what the CPU can bound, and its groups.
//!
//! A group is a directory. The kernel makes its files with it, and gives its processes back to the default group when the directory is
//! removed, with the files in it. Only root can write there. Nothing is mounted here: the options of the mount are the site's choice, and
//! hold for all that use it.

use jobfence::cgroup::layout::unescape;
use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

use super::arithmetic::{BandwidthSteps, CacheWays};
use super::schemata::{Schemata, exclusive};

/// Where it is usually mounted.
const USUAL: &str = "/sys/fs/resctrl";

/// Names another directory, for a build for tests.
const TREE_OF_TESTS: &str = "JOBFENCE_TEST_RESCTRL";

/// Directories of the top that are no groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// How the names of our groups begin; the number of the job's directory follows.
const OURS: &str = "jobfence-";

/// The file system.
#[derive(Debug)]
pub struct ResctrlTree {
    /// Its top, which is the default group.
    pub root: Dir,
    /// Whether bandwidth is counted in MiB a second (`mba_MBps`), and not in percent.
    pub is_in_mebibytes: bool,
}

/// What the CPU can bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResctrlFeatures {
    /// The ways of each L3 cache, if they can be divided.
    pub cache: Option<CacheWays>,
    /// The names of that: two if code and data have masks of their own (`cdp`).
    pub resources: Vec<&'static str>,
    /// The steps of memory bandwidth, if it can be bounded.
    pub bandwidth: Option<BandwidthSteps>,
    /// How many groups there can be, with the default group.
    pub groups: Option<u64>,
}

/// The name of a job's group.
pub fn group_name(inode: u64) -> String {
    format!("{OURS}{inode}")
}

/// The number in the name of a group of ours.
pub fn number_of(group: &str) -> Option<u64> {
    let digits = group.strip_prefix(OURS)?;
    digits.parse().ok().filter(|number| group_name(*number) == group)
}

impl ResctrlTree {
    /// Finds where it is mounted. `None`: nowhere.
    pub fn find(proc: &Dir) -> Result<Option<Self>> {
        if let Some(place) = cfg!(debug_assertions).then(|| std::env::var_os(TREE_OF_TESTS)).flatten() {
            return Ok(Some(Self { root: Dir::open(std::path::PathBuf::from(place))?, is_in_mebibytes: false }));
        }
        let mounts = proc.read("self/mountinfo")?;
        let Some((place, is_in_mebibytes)) = mounts.lines().rev().find_map(of_mount) else { return Ok(None) };
        Ok(Some(Self { root: Dir::open(place)?, is_in_mebibytes }))
    }

    /// What the CPU can bound.
    pub fn features(&self) -> Result<ResctrlFeatures> {
        let info = self.root.child("info")?;
        let mut found = ResctrlFeatures::default();
        let (mut whole, mut halves) = (None, Vec::new());
        for name in info.list(true)? {
            let dir = info.child(&name)?;
            let groups = dir.read_if_there("num_closids")?.and_then(|text| text.trim().parse::<u64>().ok());
            // The fewest of all resources count (`closid_init`).
            found.groups = groups.into_iter().chain(found.groups).min();
            match name.as_str() {
                "L3" => whole = Some(ways_of(&dir)?),
                "L3CODE" => halves.push(("L3CODE", ways_of(&dir)?)),
                "L3DATA" => halves.push(("L3DATA", ways_of(&dir)?)),
                "MB" => found.bandwidth = Some(steps_of(&dir)?),
                _ => {}
            }
        }
        found.resources = if whole.is_some() { vec!["L3"] } else { halves.iter().map(|(name, _)| *name).collect() };
        found.cache = whole.or(halves.first().map(|(_, ways)| *ways));
        Ok(found)
    }

    /// What the CPU counts of each group, in lines.
    pub fn counters(&self) -> Result<String> {
        match self.root.child("info")?.child("L3_MON") {
            Ok(dir) => Ok(dir.read_if_there("mon_features")?.unwrap_or_default()),
            Err(error) if error.is_gone() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// The ways of each cache that an exclusive group has, or that are locked.
    pub fn exclusive(&self, resources: &[&str]) -> Result<std::collections::BTreeMap<u32, u64>> {
        let mut all = std::collections::BTreeMap::new();
        for resource in resources {
            // Linux 4.19 made the file.
            let usage = self.root.child("info")?.child(resource)?.read_if_there("bit_usage")?;
            for (domain, ways) in exclusive(&usage.unwrap_or_default()) {
                *all.entry(domain).or_default() |= ways;
            }
        }
        Ok(all)
    }

    /// The names of all groups but the default group.
    pub fn groups(&self) -> Result<Vec<String>> {
        let names = self.root.list(true)?;
        Ok(names.into_iter().filter(|name| !NO_GROUPS.contains(&name.as_str())).collect())
    }

    /// What each group but this one may use. One that is removed meanwhile is left out.
    pub fn others(&self, own: &str) -> Result<Vec<Schemata>> {
        let mut all = Vec::new();
        for name in self.groups()?.iter().filter(|name| *name != own) {
            match self.root.child(name).and_then(|group| schemata_of(&group)) {
                Ok(schemata) => all.push(schemata),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// An error with what the kernel says of its cause (`info/last_cmd_status`, since Linux 4.16).
    pub fn explained(&self, error: Error) -> String {
        let said = self.root.child("info").and_then(|info| info.read("last_cmd_status")).unwrap_or_default();
        match said.trim() {
            "" | "ok" => error.to_string(),
            said => format!("{error}; the kernel says: {}", said.replace('\n', ", ")),
        }
    }

    /// Removes a group of ours. The kernel gives its processes back to the default group.
    pub fn remove(&self, inode: u64) -> Result<()> {
        self.root.remove(&group_name(inode)).map(drop)
    }
}

/// What a group may use.
pub fn schemata_of(group: &Dir) -> Result<Schemata> {
    Ok(Schemata::parse(&group.read("schemata")?))
}

/// Why it is mounted nowhere. The kernel knows the file system only on a CPU that has something of it (`resctrl_init`).
pub fn why_none(proc: &Dir) -> String {
    let known = proc.read("filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().last() == Some("resctrl")) {
        format!("resctrl is not mounted; to do that: mount -t resctrl resctrl {USUAL}, and a line in /etc/fstab")
    } else {
        "this CPU cannot bound cache or memory bandwidth, or this kernel does not support it (no resctrl in /proc/filesystems)"
            .to_owned()
    }
}

/// The place of a mount of resctrl, as a line of mountinfo has it, and whether it counts in MiB a second.
fn of_mount(line: &str) -> Option<(String, bool)> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut fs = fs.split(' ');
    let mut mount = mount.split(' ').skip(3);
    // A bind mount may show one group alone.
    let is_top = fs.next()? == "resctrl" && mount.next()? == "/";
    let options = fs.nth(1).unwrap_or_default();
    is_top.then(|| Some((unescape(mount.next()?), options.split(',').any(|option| option == "mba_MBps"))))?
}

fn number(dir: &Dir, name: &str, radix: u32) -> Result<u64> {
    let text = dir.read_value(name)?;
    u64::from_str_radix(text.trim().trim_start_matches("0x"), radix)
        .map_err(|_| Error::new("not a number in").at(dir.path().join(name)).value(text.trim()))
}

/// As `number`, for a file that an earlier kernel does not have.
fn number_or_zero(dir: &Dir, name: &str, radix: u32) -> Result<u64> {
    number(dir, name, radix)
        .or_else(|error| if error.kernel_errno() == Some(Errno::ENOENT) { Ok(0) } else { Err(error) })
}

fn ways_of(dir: &Dir) -> Result<CacheWays> {
    Ok(CacheWays {
        all: number(dir, "cbm_mask", 16)?,
        least: u32::try_from(number(dir, "min_cbm_bits", 10)?).unwrap_or(u32::MAX).max(1),
        of_devices: number_or_zero(dir, "shareable_bits", 16)?,
    })
}

fn steps_of(dir: &Dir) -> Result<BandwidthSteps> {
    Ok(BandwidthSteps { least: number(dir, "min_bandwidth", 10)?, step: number(dir, "bandwidth_gran", 10)?.max(1) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Makes files with these texts below a directory.
    pub fn files(top: &Path, all: &[(&str, &str)]) {
        for (name, text) in all {
            let file = top.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    pub fn tree(all: &[(&str, &str)]) -> (tempfile::TempDir, ResctrlTree) {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("info")).unwrap();
        files(temp.path(), all);
        let root = Dir::open(temp.path()).unwrap();
        (temp, ResctrlTree { root, is_in_mebibytes: false })
    }

    pub const INTEL: [(&str, &str); 7] = [
        ("info/L3/cbm_mask", "7ff\n"),
        ("info/L3/min_cbm_bits", "1\n"),
        ("info/L3/shareable_bits", "600\n"),
        ("info/L3/num_closids", "16\n"),
        ("info/MB/min_bandwidth", "10\n"),
        ("info/MB/bandwidth_gran", "10\n"),
        ("info/MB/num_closids", "8\n"),
    ];

    #[test]
    fn what_a_cpu_can_bound_is_read() {
        let (_temp, intel) = tree(&INTEL);
        let features = intel.features().unwrap();
        assert_eq!(features.cache, Some(CacheWays { all: 0x7ff, least: 1, of_devices: 0x600 }));
        assert_eq!((features.resources, features.groups), (vec!["L3"], Some(8)));
        assert_eq!(features.bandwidth, Some(BandwidthSteps { least: 10, step: 10 }));
        // Code and data apart, four groups, a kernel without shareable bits, and no bandwidth.
        let (_temp, cdp) = tree(&[
            ("info/L3CODE/cbm_mask", "fffff\n"),
            ("info/L3CODE/min_cbm_bits", "2\n"),
            ("info/L3CODE/num_closids", "4\n"),
            ("info/L3DATA/cbm_mask", "fffff\n"),
            ("info/L3DATA/min_cbm_bits", "2\n"),
            ("info/L3DATA/num_closids", "4\n"),
            ("info/L3CODE/bit_usage", "0=EESSSSSSSSSSSSSSSSSS\n"),
            ("info/L3DATA/bit_usage", "0=SSSSSSSSSSSSSSSSSSSE;1=SSSSSSSSSSSSSSSSSSSS\n"),
        ]);
        let features = cdp.features().unwrap();
        assert_eq!(features.cache, Some(CacheWays { all: 0xf_ffff, least: 2, of_devices: 0 }));
        let mut resources = features.resources.clone();
        resources.sort_unstable();
        assert_eq!((resources, features.bandwidth, features.groups), (vec!["L3CODE", "L3DATA"], None, Some(4)));
        assert_eq!(cdp.exclusive(&features.resources).unwrap(), [(0, 0xc_0001), (1, 0)].into());
        // Bandwidth alone, and AMD's cache, of which a group may have no way at all.
        let (_temp, bandwidth) = tree(&INTEL[4..]);
        assert_eq!(bandwidth.features().unwrap().cache, None);
        let (_temp, amd) = tree(&[("info/L3/cbm_mask", "ffff\n"), ("info/L3/min_cbm_bits", "0\n")]);
        assert_eq!(amd.features().unwrap().cache, Some(CacheWays { all: 0xffff, least: 1, of_devices: 0 }));
        assert_eq!(tree(&[]).1.features().unwrap(), ResctrlFeatures::default());
    }

    #[test]
    fn only_names_of_ours_are_ours() {
        assert_eq!(number_of(&group_name(4711)), Some(4711));
        for other in ["jobfence-", "jobfence-x", "jobfence-07", "jobfence-1 ", "xjobfence-1", "p0", "jobfence-+1"] {
            assert_eq!(number_of(other), None, "{other}");
        }
        let (_temp, tree) = tree(&[("p0/tasks", ""), ("jobfence-7/tasks", ""), ("mon_groups/m/tasks", "")]);
        let mut groups = tree.groups().unwrap();
        groups.sort_unstable();
        assert_eq!(groups, ["jobfence-7", "p0"]);
    }

    #[test]
    fn the_mount_is_found_with_its_options() {
        let line = "36 25 0:44 / /sys/fs/resctrl rw,relatime shared:20 - resctrl resctrl rw,cdp,mba_MBps";
        assert_eq!(of_mount(line), Some(("/sys/fs/resctrl".to_owned(), true)));
        assert_eq!(of_mount(&line.replace(",mba_MBps", "")), Some(("/sys/fs/resctrl".to_owned(), false)));
        assert_eq!(of_mount(&line.replace("resctrl resctrl", "fuse.resctrl resctrl")), None);
        assert_eq!(of_mount(&line.replace("0:44 /", "0:44 /p0")), None);
    }

    #[test]
    fn what_the_kernel_says_of_an_error_is_told() {
        let (_temp, tree) = tree(&[("info/last_cmd_status", "mask f7 has non-consecutive 1-bits\n")]);
        let told = tree.explained(Error::new("cannot"));
        assert_eq!(told, "cannot; the kernel says: mask f7 has non-consecutive 1-bits");
        files(tree.root.path(), &[("info/last_cmd_status", "ok\n")]);
        assert_eq!(tree.explained(Error::new("cannot")), "cannot");
    }
}
