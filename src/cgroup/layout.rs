// SPDX-License-Identifier: GPL-2.0-or-later
//! Which cgroup hierarchies this host has mounted, and where.
//!
//! A host is *unified* (cgroup v2 alone), *legacy* (v1 alone) or *hybrid* (the controllers on v1 beside a cgroup2 mount
//! that has none or few). Source: cgroups(7), the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/cgroups.rst.

use std::fmt;
use std::path::{Path, PathBuf};

use nix::fcntl::readlinkat;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, fstatfs};

use crate::error::{Error, Result};
use crate::sorted;
use crate::sys::dir::Dir;

/// What v1 calls the controller of devices. cgroup2 has no such controller: there it is a program (`cgroup::devices`).
pub const DEVICES: &str = "devices";

/// What v1 calls the controller `io`.
pub const V1_IO: &str = "blkio";

/// Where cgroups are mounted, if nobody says otherwise: systemd, HTCondor and most programs look only there.
pub const MOUNTPOINT: &str = "/sys/fs/cgroup";

/// The two kernel interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each set of controllers.
    V1,
    /// The unified hierarchy.
    V2,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Which interface it has.
    pub version: Version,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The cgroup that is at the mount point: `/`, or another one in a container.
    pub root: String,
    /// Its controllers, in the kernel's names (`cpu`, `memory`, …), sorted; none for v1 with `name=…`. cgroup2 has `devices` if no v1
    /// hierarchy has it, although nothing switches it on there: it is a program (`cgroup::devices`).
    pub controllers: Vec<String>,
    /// The name of a v1 hierarchy without controllers, such as `systemd`.
    pub name: Option<String>,
}

impl Hierarchy {
    /// Opens the mount point, and checks that it is a cgroup file system of this version.
    pub fn open(&self) -> Result<Dir> {
        open_mount(&self.mount, self.version)
    }

    /// Opens an existing directory at `path` below the mount point, and checks that it is in a cgroup file system of this version.
    /// Cgroups have no symbolic links.
    pub fn open_below(&self, path: &str) -> Result<Dir> {
        let dir = Dir::open(self.mount.join(path))?;
        if is_of(&dir, self.version)? {
            return Ok(dir);
        }
        Err(Error::new("the directory is not one of a cgroup file system:").at(dir.path()))
    }

    /// The part below the mount point of a path as `/proc/PID/cgroup` shows it; `None` if it is not below what is mounted there.
    pub fn below_mount<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.root.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
    }

    /// The reverse: what is at `path` below the mount point (with a leading `/`), as `/proc/PID/cgroup` shows it. They differ where a cgroup
    /// other than the root is mounted (containers).
    pub fn in_proc(&self, path: &str) -> String {
        format!("{}{path}", self.root.trim_end_matches('/'))
    }

    /// Opens the directory that `/proc/PID/cgroup` shows by this path.
    pub fn dir_of(&self, path: &str) -> Result<Dir> {
        let not_below = || Error::new("the cgroup is not below what is mounted at").at(&self.mount).value(path);
        let inside = self.below_mount(path).ok_or_else(not_below)?;
        inside.split('/').filter(|name| !name.is_empty()).try_fold(self.open()?, |dir, name| dir.child(name))
    }

    /// Whether this hierarchy has the controller. v1 calls `io` by the name `blkio`.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|has| has == controller || controller == "io" && has == V1_IO)
    }

    /// Whether `cgroup.subtree_control` hands the controller down in this hierarchy.
    pub fn hands_down(&self, controller: &str) -> bool {
        self.version == Version::V2 && controller != DEVICES && self.has(controller)
    }
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let controllers: Vec<&str> = self.controllers.iter().map(String::as_str).collect();
        let version = if self.version == Version::V1 { "v1" } else { "v2" };
        write!(f, "{version} {}", self.mount.display())?;
        match (&self.name, controllers.is_empty()) {
            (Some(name), _) => write!(f, " (name={name})"),
            (None, true) => write!(f, " (no controllers)"),
            (None, false) => write!(f, " ({})", controllers.join(",")),
        }
    }
}

/// The kind of host, by its mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutKind {
    /// cgroup v2 alone.
    Unified,
    /// Controllers on v1, and cgroup v2 mounted beside them.
    Hybrid,
    /// cgroup v1 alone.
    Legacy,
}

/// The hierarchies below one mount point directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// In the order of their mounts.
    pub hierarchies: Vec<Hierarchy>,
}

impl Layout {
    /// Reads this process's mounts at or below `mountpoint` (`CgroupMountpoint`, usually `/sys/fs/cgroup`).
    pub fn read(proc: &Dir, mountpoint: &Path) -> Result<Self> {
        if let Some(hierarchies) = plain(proc, mountpoint) {
            return Ok(Self { hierarchies });
        }
        Self::read_mounts(proc, mountpoint)
    }

    fn read_mounts(proc: &Dir, mountpoint: &Path) -> Result<Self> {
        let text = proc.read("self/mountinfo")?;
        let mut layout = Self::parse(&text, mountpoint);
        if layout.hierarchies.is_empty() {
            return Err(Error::new("no cgroup file system is mounted at or below")
                .at(mountpoint)
                .hint("mount one there, or set CgroupMountpoint in jobfence.conf"));
        }
        let on_v1 = layout.with_controller(DEVICES).is_some();
        for hierarchy in layout.hierarchies.iter_mut().filter(|h| h.version == Version::V2) {
            // Read by its path: what is mounted there is checked when the hierarchy is opened for use.
            let controllers = proc.read_value(&hierarchy.mount.join("cgroup.controllers").to_string_lossy())?;
            let devices = Some(DEVICES).filter(|_| !on_v1);
            hierarchy.controllers = sorted::list(controllers.split_whitespace().chain(devices).map(str::to_owned));
        }
        Ok(layout)
    }

    /// Takes the cgroup mounts out of a `/proc/PID/mountinfo` (proc_pid_mountinfo(5)); malformed lines are skipped.
    pub fn parse(mountinfo: &str, below: &Path) -> Self {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for line in mountinfo.lines() {
            let Some(found) = parse_mount(line) else { continue };
            if !found.mount.starts_with(below) {
                continue;
            }
            // A later mount on the same directory hides the earlier one; a second mount elsewhere of the same
            // hierarchy (bind mounts of containers) is not wanted.
            hierarchies.retain(|h| h.mount != found.mount);
            let known = hierarchies
                .iter()
                .any(|h| h.version == found.version && h.controllers == found.controllers && h.name == found.name);
            if !known {
                hierarchies.push(found);
            }
        }
        Self { hierarchies }
    }

    /// Unified, hybrid or legacy.
    pub fn kind(&self) -> LayoutKind {
        let v1 = self.hierarchies.iter().any(|h| h.version == Version::V1 && !h.controllers.is_empty());
        match (self.unified().is_some(), v1) {
            (true, false) => LayoutKind::Unified,
            (true, true) => LayoutKind::Hybrid,
            (false, _) => LayoutKind::Legacy,
        }
    }

    /// The cgroup2 hierarchy, with or without controllers.
    pub fn unified(&self) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.version == Version::V2)
    }

    /// Why no cgroup has pressure. `None`: the kernel measures it. Many distributions build it in, and leave it off.
    pub fn no_pressure(&self, proc: &Dir) -> Option<&'static str> {
        if self.unified().is_none() {
            return Some("cgroup v1 has no pressure");
        }
        proc.read("pressure/memory").is_err().then_some("this kernel measures no pressure: boot it with psi=1")
    }

    /// The hierarchy that has the controller.
    pub fn with_controller(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.has(controller))
    }
}

fn open_mount(mount: &Path, version: Version) -> Result<Dir> {
    let dir = Dir::open(mount)?;
    if !is_of(&dir, version)? {
        return Err(Error::new("the mount point is not a cgroup file system:").at(mount));
    }
    Ok(dir)
}

fn is_of(dir: &Dir, version: Version) -> Result<bool> {
    let magic: FsType = match version {
        Version::V1 => CGROUP_SUPER_MAGIC,
        Version::V2 => CGROUP2_SUPER_MAGIC,
    };
    let found = fstatfs(dir).map_err(|errno| Error::os("statfs", dir.path(), errno))?;
    Ok(found.filesystem_type() == magic)
}

/// The hierarchies of a usual host, found without the list of mounts: with a home directory mounted for each user, the kernel takes
/// longer to write that list than for all else at a launch. `None`: read the list.
///
/// This process must see paths from the hierarchies' own roots, so it must be in the first cgroup namespace, whose number is the
/// kernel's `PROC_CGROUP_INIT_INO`.
fn plain(proc: &Dir, mountpoint: &Path) -> Option<Vec<Hierarchy>> {
    let namespace = readlinkat(proc, "self/ns/cgroup").ok()?;
    if namespace != "cgroup:[4026531835]" {
        return None;
    }
    let dir = Dir::open(mountpoint).ok()?;
    if is_of(&dir, Version::V2).ok()? { Some(vec![plainly_unified(&dir, mountpoint)?]) } else { plainly_v1(proc, &dir) }
}

/// A host with cgroup2 alone. The root cgroup itself must be mounted there (only the root has no `cgroup.type`) and have every wanted
/// controller, so that no v1 hierarchy has one of them.
fn plainly_unified(dir: &Dir, mountpoint: &Path) -> Option<Hierarchy> {
    const WANTED: [&str; 2] = ["cpu", "memory"];
    let unified = at_root(dir, mountpoint.to_owned(), true)?;
    WANTED.iter().all(|wanted| unified.has(wanted)).then_some(unified)
}

/// A host with v1, and with cgroup2 if it is mounted at all, each hierarchy where systemd and cgroupfs-mount(8) mount it: named after
/// its controllers, and cgroup2 `unified`. `/proc/self/cgroup` has a line for each that is mounted anywhere. The root cgroup itself
/// must be mounted there (only the root has a `release_agent`); that it is v1 is checked when it is opened.
fn plainly_v1(proc: &Dir, below: &Dir) -> Option<Vec<Hierarchy>> {
    let mountpoint = below.path();
    let text = proc.read_table("self/cgroup").ok()?;
    let mut found = Vec::new();
    let mut has_unified = false;
    // The last line is of the first mount.
    for line in text.lines().rev() {
        let wanted = line.split(':').nth(1)?;
        if wanted.is_empty() {
            has_unified = true;
            continue;
        }
        let name = wanted.strip_prefix("name=");
        let place = name.unwrap_or(wanted);
        if !below.has(&format!("{place}/release_agent")) {
            return None;
        }
        let controllers = sorted::list(wanted.split(',').filter(|_| name.is_none()).map(str::to_owned));
        let name = name.map(str::to_owned);
        let mount = mountpoint.join(place);
        found.push(Hierarchy { version: Version::V1, mount, root: "/".to_owned(), controllers, name });
    }
    let on_v1 = found.iter().any(|hierarchy| hierarchy.has(DEVICES));
    if has_unified {
        let mount = mountpoint.join("unified");
        let dir = open_mount(&mount, Version::V2).ok()?;
        found.insert(0, at_root(&dir, mount, !on_v1)?);
    }
    // Without a controller on v1, the host is no usual one.
    found.iter().any(|h| h.version == Version::V1 && !h.controllers.is_empty()).then_some(found)
}

/// The cgroup2 hierarchy, if this is its root.
fn at_root(dir: &Dir, mount: PathBuf, has_devices: bool) -> Option<Hierarchy> {
    if dir.has("cgroup.type") {
        return None;
    }
    let controllers = dir.read_value("cgroup.controllers").ok()?;
    let devices = Some(DEVICES).filter(|_| has_devices);
    let controllers = sorted::list(controllers.split_whitespace().chain(devices).map(str::to_owned));
    Some(Hierarchy { version: Version::V2, mount, root: "/".to_owned(), controllers, name: None })
}

/// One line: `36 35 0:31 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu`.
fn parse_mount(line: &str) -> Option<Hierarchy> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut fs = fs.split(' ');
    let version = match fs.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let mut mount = mount.split(' ').skip(3);
    let root = unescape(mount.next()?);
    let mount = PathBuf::from(unescape(mount.next()?));
    let options = fs.nth(1)?;
    let mut controllers = Vec::new();
    let mut name = None;
    if version == Version::V1 {
        for option in options.split(',') {
            if let Some(value) = option.strip_prefix("name=") {
                name = Some(value.to_owned());
            } else if !V1_MOUNT_FLAGS.contains(&option) && !option.contains('=') {
                controllers.push(option.to_owned());
            }
        }
    }
    Some(Hierarchy { version, mount, root, controllers: sorted::list(controllers), name })
}

/// The options of the hierarchy that is mounted there, as `/proc/PID/mountinfo` has them behind the source: controllers,
/// `nsdelegate`, `favordynmods` and the like.
pub fn options<'a>(mountinfo: &'a str, mount: &Path) -> Vec<&'a str> {
    let is_it = |line: &&str| parse_mount(line).is_some_and(|hierarchy| hierarchy.mount == mount);
    // The last one hides the others.
    let line = mountinfo.lines().rfind(is_it);
    let options = line.and_then(|line| line.split_once(" - ")?.1.split(' ').nth(2));
    options.map(|options| options.split(',').collect()).unwrap_or_default()
}

/// Mount options of a v1 hierarchy that are not controllers (kernel/cgroup/cgroup-v1.c).
const V1_MOUNT_FLAGS: [&str; 9] =
    ["rw", "ro", "none", "seclabel", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods"];

/// mountinfo writes blank, tab, newline and backslash as three octal digits.
pub fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 1 0:22 / /sys rw - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,seclabel,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 master:3 - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
35 1 0:30 / /mnt/else rw - cgroup cgroup rw,memory
";

    fn parse(text: &str) -> Layout {
        Layout::parse(text, Path::new("/sys/fs/cgroup"))
    }

    #[test]
    fn hybrid() {
        let layout = parse(HYBRID);
        assert_eq!(layout.kind(), LayoutKind::Hybrid);
        assert_eq!(layout.hierarchies.len(), 4);
        assert_eq!(layout.with_controller("cpu"), layout.with_controller("cpuacct"));
        assert_eq!(layout.with_controller("memory").unwrap().mount, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(layout.with_controller("systemd"), None);
        assert_eq!(layout.with_controller("io"), None);
        let blkio = parse(&format!("{HYBRID}36 30 0:31 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"));
        assert_eq!(blkio.with_controller("io").unwrap().mount, Path::new("/sys/fs/cgroup/blkio"));
        assert_eq!(layout.with_controller("seclabel"), None);
    }

    #[test]
    fn a_path_outside_of_what_is_mounted_is_not_found_in_it() {
        let at = |root: &str| Hierarchy { root: root.into(), ..parse(HYBRID).hierarchies.remove(0) };
        assert_eq!(
            (at("/").in_proc("/a/b"), at("/docker/ab").in_proc("/c")),
            ("/a/b".to_owned(), "/docker/ab/c".to_owned())
        );
        assert_eq!(at("/").below_mount("/a/b"), Some("a/b"));
        assert_eq!(at("/docker/ab").below_mount("/docker/ab/c"), Some("c"));
        assert_eq!(at("/docker/ab").below_mount("/docker/ab"), Some(""));
        assert_eq!(at("/docker/ab").below_mount("/docker/abc/d"), None);
        assert_eq!(at("/docker/ab").below_mount("/a"), None);
    }

    #[test]
    fn a_plain_host_is_known_without_its_mounts_and_as_they_say() {
        let proc = Dir::open("/proc").unwrap();
        let mountpoint = Path::new("/sys/fs/cgroup");
        let Ok(mut by_mounts) = Layout::read_mounts(&proc, mountpoint) else { return };
        let place = |h: &Hierarchy| match (&h.name, h.version) {
            (Some(name), _) => name.clone(),
            (None, Version::V1) => h.controllers.join(","),
            (None, Version::V2) if by_mounts.hierarchies.len() == 1 => String::new(),
            (None, Version::V2) => "unified".to_owned(),
        };
        let is_usual = by_mounts.hierarchies.iter().all(|h| h.root == "/" && h.mount == mountpoint.join(place(h)));
        let found = plain(&proc, mountpoint);
        assert!(found.is_none() || is_usual, "{by_mounts:?}");
        // In a container, or beside a hierarchy that is mounted nowhere, the mounts are read.
        let is_first = readlinkat(&proc, "self/ns/cgroup").is_ok_and(|namespace| namespace == "cgroup:[4026531835]");
        let are_all_mounted = proc.read("self/cgroup").unwrap().lines().count() == by_mounts.hierarchies.len();
        let has_both = ["cpu", "memory"].iter().all(|wanted| by_mounts.with_controller(wanted).is_some());
        assert!(found.is_some() || !(is_usual && is_first && are_all_mounted && has_both), "{by_mounts:?}");
        let Some(mut found) = found else { return };
        let order = |hierarchy: &Hierarchy| hierarchy.mount.clone();
        found.sort_by_key(order);
        by_mounts.hierarchies.sort_by_key(order);
        assert_eq!(found, by_mounts.hierarchies);
    }

    #[test]
    fn what_is_not_mounted_where_it_usually_is_makes_a_host_unusual() {
        let host = tempfile::tempdir().unwrap();
        let at = |name: &str| host.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
        for name in ["self", "cpu,cpuacct", "systemd", "job"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        write("cpu,cpuacct/release_agent", "");
        write("systemd/release_agent", "");
        let [proc, below] = [Dir::open(host.path()).unwrap(), Dir::open(host.path()).unwrap()];
        let found = |text: &str| {
            write("self/cgroup", text);
            plainly_v1(&proc, &below).map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let place = host.path().display();
        let usual = found("2:cpu,cpuacct:/a\n1:name=systemd:/b:c\n").unwrap();
        assert_eq!(
            usual,
            [format!("v1 {place}/systemd (name=systemd)"), format!("v1 {place}/cpu,cpuacct (cpu,cpuacct)")]
        );
        assert_eq!(found("3:memory:/\n2:cpu,cpuacct:/\n"), None, "it is mounted elsewhere");
        assert_eq!(found("3:job:/\n2:cpu,cpuacct:/\n"), None, "there is a cgroup that is not the root");
        assert_eq!(found("2:cpu,cpuacct:/\n0::/\n"), None, "cgroup2 is mounted elsewhere");
        assert_eq!(found("1:name=systemd:/\n"), None, "no controller is on v1");
        assert_eq!(found("no list\n"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn unified_and_legacy() {
        assert_eq!(parse("31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n").kind(), LayoutKind::Unified);
        assert_eq!(parse("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n").kind(), LayoutKind::Legacy);
    }

    #[test]
    fn options_of_a_mount_are_those_of_the_last_one_there() {
        let text = format!("{HYBRID}40 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 x rw,nsdelegate,favordynmods\n");
        let unified = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(options(HYBRID, unified), ["rw", "nsdelegate"]);
        assert_eq!(options(&text, unified), ["rw", "nsdelegate", "favordynmods"]);
        assert_eq!(options(&text, Path::new("/sys")), Vec::<&str>::new());
    }

    #[test]
    fn a_mount_point_with_a_blank() {
        let layout = Layout::parse("1 2 0:3 /a\\040b /c\\134d rw - cgroup2 none rw\n", Path::new("/"));
        assert_eq!(layout.hierarchies[0].mount, Path::new("/c\\d"));
        assert_eq!(layout.hierarchies[0].root, "/a b");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*[ /\\\\0-9-]*(cgroup2?)?.*") {
            let _ = Layout::parse(&text, Path::new("/"));
            let _ = unescape(&text);
        }
    }
}
