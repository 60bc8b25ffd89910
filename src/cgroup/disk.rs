// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the disk that a path is on: the kernel throttles whole disks, and knows them by number.
//!
//! A path is followed through the list of mounts, and only file systems of this node are asked about it: a dead NFS server, or a FUSE
//! program that does not answer, would block the step daemon for ever. So a network file system, and a mount on one, is found without
//! asking it.
//!
//! What counts is the disk to which a file system sends its requests (`blk_throtl_bio`, block/blk-throttle.c, is called for each
//! queue). For a partition this is the whole disk, since the kernel refuses limits for partitions (`blkg_conf_open_bdev`,
//! block/blk-cgroup.c). device-mapper (LVM, crypt), md and loop are disks of their own: limits for the disks below them do not reach
//! all that goes through them.

use std::ffi::OsString;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::readlink;
use nix::sys::stat::{SFlag, lstat, major, minor};

use super::layout::unescape;
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// The most links that are followed. The kernel follows as many in one path (`MAXSYMLINKS`, include/linux/namei.h).
const MAX_LINKS: usize = 40;

/// A block device by its number, as `io.max` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The driver's number.
    pub major: u64,
    /// The device's among those of its driver.
    pub minor: u64,
}

impl Device {
    /// Reads `MAJOR:MINOR`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What the paths of this process lead to: its mounts, and the kernel's devices.
#[derive(Debug)]
pub struct Disks {
    mounts: Vec<Mount>,
    sys: Dir,
}

/// One line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug)]
struct Mount {
    id: u64,
    parent: u64,
    device: Device,
    point: PathBuf,
    fs: String,
    source: String,
}

impl Disks {
    /// Reads the mounts of this process.
    pub fn read(proc: &Dir) -> Result<Self> {
        Ok(Self::new(&proc.read("self/mountinfo")?, Dir::open("/sys")?))
    }

    /// `sys` is what is usually mounted at `/sys`. Malformed lines of the mounts are skipped.
    pub fn new(mountinfo: &str, sys: Dir) -> Self {
        Self { mounts: mountinfo.lines().filter_map(parse_mount).collect(), sys }
    }

    /// The whole disk of a device node, or the one that holds the file or directory.
    pub fn of(&self, target: &Path) -> Result<Device> {
        let (path, mount) = self.locate(target)?;
        if let Some(device) = block_device(target, &path, mount)? {
            return self.whole(device);
        }
        if mount.device.major != 0 {
            return self.whole(mount.device);
        }
        if mount.fs == "btrfs" {
            return self.of_btrfs(target, mount);
        }
        Err(mount.refuse(target))
    }

    /// A disk's name, such as `sda`; its number if the kernel does not tell the name.
    pub fn name(&self, disk: Device) -> String {
        let uevent = self.sys.read_value(&format!("dev/block/{disk}/uevent")).unwrap_or_default();
        let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        name.map_or_else(|| disk.to_string(), str::to_owned)
    }

    /// Follows links as the kernel does, and returns where they lead and what is mounted there. A file system that is not this node's
    /// own is not asked.
    fn locate(&self, target: &Path) -> Result<(PathBuf, &Mount)> {
        let not_absolute = || Error::new("not an absolute path:").at(target);
        let mut rest: Vec<OsString> = names(target);
        let root = self.root().ok_or_else(|| Error::new("no root is mounted for").at(target))?;
        let mut trail = vec![(PathBuf::from("/"), root)];
        let mut links = 0;
        loop {
            let (at, mount) = trail.last().map(|(at, mount)| (at.clone(), *mount)).ok_or_else(not_absolute)?;
            let Some(name) = rest.pop() else {
                return if mount.is_local() || mount.device.major != 0 {
                    Ok((at, mount))
                } else {
                    Err(mount.refuse(target))
                };
            };
            if name == ".." {
                trail.truncate(trail.len().saturating_sub(1).max(1));
                continue;
            }
            let next = at.join(name);
            if self.mounts.iter().any(|other| other.parent == mount.id && other.point.starts_with(&next)) {
                // A mount point, or a directory on the way to one: mountinfo shows no links.
                let mount = self.topmost(mount, &next);
                trail.push((next, mount));
                continue;
            }
            if !mount.is_local() {
                // The mount's device is the answer, if it has one. Links below it that lead elsewhere are not followed.
                return if mount.device.major != 0 { Ok((at, mount)) } else { Err(mount.refuse(target)) };
            }
            match readlink(&next) {
                Ok(link) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Error::os("follow", target, Errno::ELOOP));
                    }
                    let link = PathBuf::from(link);
                    if link.is_absolute() {
                        trail.truncate(1);
                    }
                    rest.extend(names(&link));
                }
                // No link.
                Err(Errno::EINVAL) => trail.push((next, mount)),
                Err(errno) => return Err(Error::os("find", &next, errno)),
            }
        }
    }

    fn root(&self) -> Option<&Mount> {
        let is_outermost =
            |mount: &&Mount| !self.mounts.iter().any(|other| other.id == mount.parent && other.id != mount.id);
        let root = self.mounts.iter().filter(|mount| mount.point == Path::new("/")).find(is_outermost)?;
        Some(self.topmost(root, Path::new("/")))
    }

    /// What is visible at `point`, which is in `mount`: a later mount hides an earlier one, whose child it is.
    fn topmost<'a>(&'a self, mut mount: &'a Mount, point: &Path) -> &'a Mount {
        let above =
            |below: &Mount| self.mounts.iter().rfind(|m| m.parent == below.id && m.id != below.id && m.point == point);
        // Each mount at most once, whatever the text says.
        for _ in 0..self.mounts.len() {
            match above(mount) {
                Some(over) => mount = over,
                None => break,
            }
        }
        mount
    }

    /// A partition's disk, or the device itself.
    fn whole(&self, device: Device) -> Result<Device> {
        let place = format!("dev/block/{device}");
        if !self.sys.has(&format!("{place}/partition")) {
            if !self.sys.has(&place) {
                return Err(
                    Error::new(format!("the kernel has no block device {device}:")).at(self.sys.path().join(place))
                );
            }
            return Ok(device);
        }
        // The link leads to the partition's directory, which is in the disk's.
        let file = format!("{place}/../dev");
        let text = self.sys.read_value(&file)?;
        Device::parse(&text)
            .ok_or_else(|| Error::new("not a device's number:").at(self.sys.path().join(file)).value(text.trim()))
    }

    /// A btrfs has no device number of its own, and may be spread over several disks.
    fn of_btrfs(&self, target: &Path, mount: &Mount) -> Result<Device> {
        let unknown = |why: &str| {
            Error::new(format!("{} is on btrfs ({}), {why}", target.display(), mount.source))
                .hint("name the disk itself, as IOMax=/dev/sda")
        };
        let (path, devices) = self.locate(Path::new(&mount.source))?;
        let device = block_device(target, &path, devices)?.ok_or_else(|| unknown("whose source is no disk"))?;
        let name = self.name(device);
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let all = self.sys.child("fs/btrfs")?;
        let devices_of = |uuid: &String| all.child(uuid).and_then(|fs| fs.child("devices")).and_then(|d| d.list(false));
        let spread =
            all.list(true)?.iter().filter_map(|uuid| devices_of(uuid).ok()).find(|names| names.contains(&name));
        match spread {
            Some(names) if names.len() > 1 => Err(unknown("which is spread over several disks")),
            _ => self.whole(device),
        }
    }
}

impl Mount {
    /// Whether this kernel alone can answer questions about a path on this file system.
    fn is_local(&self) -> bool {
        const OWN: [&str; 8] = ["btrfs", "zfs", "overlay", "tmpfs", "ramfs", "rootfs", "devtmpfs", "sysfs"];
        (self.device.major != 0 && !self.fs.starts_with("fuse")) || OWN.contains(&self.fs.as_str())
    }

    /// The error that says why the kernel cannot throttle this file system.
    fn refuse(&self, target: &Path) -> Error {
        const NETWORK: [&str; 16] = [
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "lustre",
            "gpfs",
            "beegfs",
            "ceph",
            "afs",
            "9p",
            "virtiofs",
            "orangefs",
            "pvfs2",
            "panfs",
            "wekafs",
            "glusterfs",
        ];
        let kind = self.fs.as_str();
        let (why, hint) = match kind {
            _ if NETWORK.contains(&kind) => (
                "a network file system, whose traffic passes no disk of this node: the kernel cannot throttle it here",
                "throttle it at its server, or take it out of IOMax",
            ),
            "tmpfs" | "ramfs" | "rootfs" | "devtmpfs" => (
                "kept in memory, and nothing of it passes a disk: there is nothing to throttle",
                "what a job writes there counts as its memory; take it out of IOMax",
            ),
            "zfs" => (
                "ZFS, which reads and writes in threads of its own: the kernel cannot tell for which job",
                "take it out of IOMax",
            ),
            "overlay" => ("an overlay of other file systems", "name the one that is written to, its upper layer"),
            "autofs" => ("mounted when it is used, and is not now", "name the disk itself, as IOMax=/dev/sda"),
            _ if kind.starts_with("fuse") => (
                "served by a program (FUSE) and not from a disk: the kernel cannot throttle it",
                "name the disk that the program uses, or take it out of IOMax",
            ),
            _ => ("a file system without a disk that the kernel knows of", "name the disk itself, as IOMax=/dev/sda"),
        };
        let place = format!("{} is on {} ({kind} of {})", target.display(), self.point.display(), self.source);
        Error::new(format!("{place}, which is {why}")).hint(hint)
    }
}

/// The number of a block device's node; `None` for files and directories.
fn block_device(target: &Path, path: &Path, mount: &Mount) -> Result<Option<Device>> {
    // A mount point is taken for a directory.
    if !mount.is_local() || path == mount.point {
        return Ok(None);
    }
    let stat = lstat(path).map_err(|errno| Error::os("find", path, errno))?;
    let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    match kind {
        SFlag::S_IFBLK => Ok(Some(Device { major: major(stat.st_rdev), minor: minor(stat.st_rdev) })),
        SFlag::S_IFCHR => Err(Error::new("a character device is no disk:").at(target)),
        _ => Ok(None),
    }
}

/// The names in a path, the last first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let (id, parent) = (mount.next()?.parse().ok()?, mount.next()?.parse().ok()?);
    let device = Device::parse(mount.next()?)?;
    let point = PathBuf::from(unescape(mount.nth(1)?));
    let mut fs = fs.split(' ');
    Some(Mount { id, parent, device, point, fs: fs.next()?.to_owned(), source: unescape(fs.next()?) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/sys` with the disk sda (8:0), its partition sda1 (8:1) and the device-mapper's dm-0 (253:0).
    fn sys() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        fs::create_dir_all(root.join("dev/block")).unwrap();
        for (device, place) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:16", "sdb"), ("253:0", "dm-0")] {
            let dir = root.join("devices").join(place);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("dev"), format!("{device}\n")).unwrap();
            let name = place.rsplit('/').next().unwrap();
            fs::write(dir.join("uevent"), format!("MAJOR=8\nDEVNAME={name}\n")).unwrap();
            symlink(format!("../../devices/{place}"), root.join("dev/block").join(device)).unwrap();
        }
        fs::write(root.join("devices/sda/sda1/partition"), "1\n").unwrap();
        temp
    }

    fn disks(mountinfo: &str) -> (Disks, tempfile::TempDir) {
        let sys = sys();
        (Disks::new(mountinfo, Dir::open(sys.path()).unwrap()), sys)
    }

    const MOUNTS: &str = "\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:5 / /nfs rw - nfs4 server:/export rw
22 20 253:0 / /scratch rw - xfs /dev/mapper/vg-scratch rw
23 21 8:16 / /nfs/local/disk rw - ext4 /dev/sdb rw
24 20 0:6 / /dead\\040one rw - lustre mgs@o2ib:/fs rw
25 20 0:7 / /shm rw - tmpfs tmpfs rw
26 20 0:8 / /home rw - autofs /etc/auto.home rw
27 22 0:9 / /scratch rw - overlay overlay rw
28 20 0:10 / /tank rw - zfs tank rw
29 20 0:11 / /gluster rw - fuse.glusterfs server:/vol rw
30 20 8:16 / /windows rw - fuseblk /dev/sdb rw
31 20 0:12 / /odd rw - strangefs strange rw
";

    fn found(target: &str) -> String {
        let (disks, _sys) = disks(MOUNTS);
        disks.of(Path::new(target)).map_or_else(|error| error.to_string(), |device| device.to_string())
    }

    #[test]
    fn the_whole_disk_is_found_by_the_mount() {
        assert_eq!(found("/"), "8:0");
        assert_eq!(found("/tmp"), "8:0");
        // Neither the directory on the network file system nor what is below FUSE is asked.
        assert_eq!(found("/nfs/local/disk"), "8:16");
        assert_eq!(found("/windows/nothing/of/this/exists"), "8:16");
        let (disks, _sys) =
            disks(&MOUNTS.lines().filter(|line| !line.contains("overlay")).collect::<Vec<_>>().join("\n"));
        assert_eq!(disks.of(Path::new("/scratch")).unwrap(), Device { major: 253, minor: 0 });
        assert_eq!(disks.name(Device { major: 8, minor: 1 }), "sda1");
        assert_eq!(disks.name(Device { major: 9, minor: 9 }), "9:9");
    }

    #[test]
    fn what_cannot_be_throttled_is_named_without_being_asked() {
        for (target, parts) in [
            ("/nfs/a", ["/nfs/a is on /nfs (nfs4 of server:/export)", "network file system", "at its server"]),
            ("/nfs/local", ["/nfs/local is on /nfs", "network file system", "no disk of this node"]),
            ("/dead one/x", ["lustre of mgs@o2ib:/fs", "network file system", "cannot throttle"]),
            ("/shm", ["tmpfs", "kept in memory", "counts as its memory"]),
            ("/home/alice", ["autofs", "mounted when it is used", "name the disk"]),
            ("/scratch", ["overlay", "other file systems", "upper layer"]),
            ("/tank", ["zfs", "threads of its own", "take it out"]),
            ("/gluster/x", ["fuse.glusterfs", "served by a program", "cannot throttle"]),
            ("/odd/x", ["strangefs", "without a disk", "name the disk"]),
        ] {
            let text = found(target);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn links_are_followed_on_this_nodes_file_systems() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        fs::create_dir(root.join("real")).unwrap();
        symlink(root.join("net/deep"), root.join("to-network")).unwrap();
        symlink("real/../other", root.join("relative")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let other = root.join("other");
        let at = root.display();
        let text = format!(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {at}/net rw - nfs server:/x rw\n\
             3 1 8:16 / {at}/other rw - ext4 /dev/sdb rw\n"
        );
        let (disks, _sys) = disks(&text);
        let of = |name: &str| disks.of(&root.join(name)).map_err(|error| error.to_string());
        assert_eq!(of("real").unwrap(), Device { major: 8, minor: 0 });
        // The mount is only in the text: the kernel has no such directory, so what is asked is the way there.
        fs::create_dir(&other).unwrap();
        assert_eq!(of("relative").unwrap(), Device { major: 8, minor: 16 });
        assert!(of("to-network").unwrap_err().contains("network file system"));
        assert!(of("loop").unwrap_err().contains("ELOOP"));
        assert!(of("missing").unwrap_err().contains("missing: No such file or directory"));
        assert!(disks.of(Path::new("/dev/null")).unwrap_err().to_string().contains("no disk: /dev/null"));
    }

    #[test]
    fn later_mounts_hide_earlier_ones() {
        let text = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:16 / /x/y rw - ext4 b rw\n3 1 253:0 / /x rw - xfs c rw\n";
        let (disks, _sys) = disks(text);
        // The mount at /x hides /x/y: the file system at /x is asked, and has no y.
        assert!(disks.of(Path::new("/x/y")).is_err());
        let over = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:16 / /x rw - ext4 b rw\n3 2 0:9 / /x rw - nfs c rw\n";
        let (disks, _sys2) = self::disks(over);
        assert!(disks.of(Path::new("/x")).unwrap_err().to_string().contains("network"));
    }

    #[test]
    fn a_btrfs_is_known_by_its_source() {
        let Ok(stat) = fs::metadata("/dev/loop0") else { return };
        let rdev = std::os::unix::fs::MetadataExt::rdev(&stat);
        let device = Device { major: major(rdev), minor: minor(rdev) };
        let mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 0:40 / /data rw - btrfs /dev/loop0 rw,subvol=/x\n";
        let (disks, sys) = disks(mounts);
        let dir = sys.path().join("devices/loop0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("uevent"), "DEVNAME=loop0\n").unwrap();
        symlink("../../devices/loop0", sys.path().join("dev/block").join(device.to_string())).unwrap();
        let devices = sys.path().join("fs/btrfs/uuid/devices");
        fs::create_dir_all(&devices).unwrap();
        symlink("/nowhere", devices.join("loop0")).unwrap();
        let data = || disks.locate(Path::new("/data")).and_then(|(_, mount)| disks.of_btrfs(Path::new("/data"), mount));
        assert_eq!(data().unwrap(), device);
        symlink("/nowhere", devices.join("sdb")).unwrap();
        assert!(data().unwrap_err().to_string().contains("spread over several disks"));
    }

    #[test]
    fn this_hosts_own_root_is_somewhere() {
        let disks = Disks::read(&Dir::open("/proc").unwrap()).unwrap();
        match disks.of(Path::new("/")) {
            Ok(disk) => assert!(!Path::new(&format!("/sys/dev/block/{disk}/partition")).exists()),
            Err(error) => assert!(error.to_string().contains(" is on "), "{error}"),
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(
            text in "([0-3] [0-3] [0-9]:[0-9] / /[ab]? rw - (nfs|ext4|btrfs) [a/]* rw\n|\\PC*\n){0,9}", path in "(/[ab.]{0,2}){0,4}"
        ) {
            let disks = Disks::new(&text, Dir::open("/sys").unwrap());
            let _ = disks.of(Path::new(&path));
        }
    }
}
