// SPDX-License-Identifier: GPL-2.0-or-later
//! Which devices the processes of a directory may open, and make nodes of.
//!
//! Opening a device that is not allowed fails with EPERM, as does making it by mknod(2). An open descriptor stays usable, since the
//! kernel checks nothing later (`devcgroup_check_permission`, security/device_cgroup.c). v1 has a list in the directory
//! (cgroup-v1/devices.rst), cgroup2 a program that is attached to it (cgroup-v2.rst, "Device controller").

mod bpf;
mod gpu;
mod rules;
mod set;
mod v1;

use std::fmt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc::dev_t;
use nix::sys::stat::{Mode, SFlag, fstat, major, minor};

pub use self::gpu::GpuDevice;
pub use self::rules::{Access, DeviceKind, DeviceRule, MOST_RULES, Target, parse, text};
pub use self::set::Numbers;
use self::set::{EVERYBODYS, Set};
pub use super::layout::DEVICES as CONTROLLER;
use super::layout::Version;
use crate::error::{Error, Result};
use crate::facts::Gpus;
use crate::sys::dir::Dir;
use crate::sys::nvidia;

/// The devices that a job may use, as configured: those that every one of the lists allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices(Vec<List>);

/// One list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct List {
    /// Whether only GPUs are denied, and all else is allowed.
    is_open: bool,
    /// `DeviceAllow`.
    allow: Vec<DeviceRule>,
    /// The job's GPUs. All other devices that match `GPUDevice` are denied, even if a rule allows them.
    gpus: Option<GivenGpus>,
}

/// The GPUs that a job is given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GivenGpus {
    /// `GPUDevice`.
    device: GpuDevice,
    /// The GPUs' numbers in their devices' names.
    numbers: Vec<u32>,
    /// Why the job gets none of the GPUs that Slurm has given it.
    why_none: Option<String>,
}

impl Devices {
    /// What `DeviceAllow` and `GPUDevice` say, for a job that has no GPU.
    pub fn new(allow: Vec<DeviceRule>, gpu: Option<GpuDevice>) -> Self {
        let none = |device| GivenGpus { device, numbers: Vec::new(), why_none: None };
        Self(vec![List { is_open: false, allow, gpus: gpu.map(none) }])
    }

    /// All devices but other jobs' GPUs, for a job that has no GPU.
    pub fn but_gpus(allow: Vec<DeviceRule>, gpu: Option<GpuDevice>) -> Self {
        let Self(mut lists) = Self::new(allow, gpu);
        lists.iter_mut().for_each(|list| list.is_open = true);
        Self(lists)
    }

    /// Whether devices that no rule allows are denied.
    pub fn are_listed(&self) -> bool {
        self.0.iter().any(|list| !list.is_open)
    }

    /// Gives the job these GPUs; none if it is not certain which devices they are.
    pub fn give_gpus(&mut self, gpus: &Gpus) {
        for given in self.0.iter_mut().filter_map(|list| list.gpus.as_mut()) {
            (given.numbers, given.why_none) = match given.device.numbers_of(gpus) {
                Ok(numbers) => (numbers, None),
                Err(why) => (Vec::new(), Some(why)),
            };
        }
    }

    /// Why the job gets none of the GPUs that Slurm has given it.
    pub fn why_no_gpus(&self) -> Option<&str> {
        self.0.iter().filter_map(|list| list.gpus.as_ref()).find_map(|given| given.why_none.as_deref())
    }

    /// What both allow.
    #[must_use]
    pub fn at_most(mut self, other: Self) -> Self {
        for list in other.0 {
            if !self.0.contains(&list) {
                self.0.push(list);
            }
        }
        self
    }

    /// Each rule in words, for display; the devices that every job may use are given by their numbers.
    pub fn rules(&self) -> Vec<String> {
        let everybodys = EVERYBODYS.iter().map(|(numbers, access)| format!("{numbers} {access}"));
        let everybodys = everybodys.filter(|_| self.are_listed());
        everybodys.chain(Some(self.to_string()).filter(|ours| !ours.is_empty())).collect()
    }
}

/// In the form of `DeviceAllow`, with the job's GPUs and without the devices that every job may use. `&` separates several lists, which
/// all hold.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &List| {
            if let (true, Some(given)) = (list.is_open, &list.gpus) {
                let path = |number: &u32| given.device.path(*number).display().to_string();
                let ours = given.numbers.iter().map(path).collect::<Vec<_>>().join(",");
                let but = if ours.is_empty() { ours } else { format!(" other than {ours}") };
                return format!("all but the GPUs {}{but}", given.device);
            }
            let rules =
                |given: &GivenGpus| given.numbers.iter().map(|number| gpu_rule(&given.device, *number)).collect();
            let gpus: Vec<DeviceRule> = list.gpus.as_ref().map(rules).unwrap_or_default();
            text(&list.allow.iter().cloned().chain(gpus).collect::<Vec<_>>())
        };
        f.write_str(&self.0.iter().map(list).collect::<Vec<_>>().join(" & "))
    }
}

/// A GPU is opened for reading and writing; no job needs to make nodes.
fn gpu_rule(gpu: &GpuDevice, number: u32) -> DeviceRule {
    DeviceRule { target: Target::Path(gpu.path(number)), access: Access::READ_WRITE }
}

impl Devices {
    /// Fails if a device that is allowed does not exist now.
    pub fn are_there(&self) -> Result<()> {
        self.look_up().map(drop)
    }

    /// Looks up the devices, each by a handle of what exists now.
    fn look_up(&self) -> Result<Set> {
        let mut sets = self.0.iter().map(List::look_up);
        let first = sets.next().unwrap_or_else(|| Ok(Set::new(Vec::new(), &[])))?;
        sets.try_fold(first, |all, set| Ok(all.and(&set?)))
    }
}

impl List {
    fn look_up(&self) -> Result<Set> {
        if self.is_open {
            return self.look_up_gpus();
        }
        let mut classes = None;
        let mut allow = Vec::new();
        for rule in &self.allow {
            match &rule.target {
                Target::Path(path) => allow.push((device_at(path)?, rule.access)),
                Target::Class(kind, name) => {
                    let text = match &classes {
                        Some(text) => text,
                        None => classes.insert(Dir::open("/proc")?.read(CONTROLLER)?),
                    };
                    let majors = majors(text, *kind, name);
                    if majors.is_empty() {
                        return Err(Error::new("no driver that is loaded has the name in /proc/devices:")
                            .value(rule)
                            .hint("load it before jobs start, or take it out of DeviceAllow"));
                    }
                    let all = |major| (Numbers { kind: *kind, major, minor: None }, rule.access);
                    allow.extend(majors.into_iter().map(all));
                }
            }
        }
        let mut deny = Vec::new();
        if let Some(GivenGpus { device, numbers, .. }) = &self.gpus {
            for number in numbers {
                allow.push((device_at(&device.path(*number))?, Access::READ_WRITE));
            }
            deny = others(device, numbers)?;
        }
        Ok(Set::new(allow, &deny))
    }
}

impl List {
    fn look_up_gpus(&self) -> Result<Set> {
        let (what, hint) = match &self.gpus {
            None => ("GPUDevice does not say which devices are GPUs", SET_GPU_DEVICE),
            Some(_) if !self.allow.is_empty() => ("DeviceAllow can allow nothing more", SET_CLOSED),
            Some(GivenGpus { device, numbers, .. }) => {
                // A missing GPU is an error here, and not first in the job.
                for number in numbers {
                    device_at(&device.path(*number))?;
                }
                return Ok(Set::but(others(device, numbers)?));
            }
        };
        Err(Error::new(format!("ConstrainDevices=yes denies the GPUs of other jobs, and {what}")).hint(hint))
    }
}

const SET_GPU_DEVICE: &str = "set GPUDevice, or ConstrainDevices=closed for a list of all that jobs may use";
const SET_CLOSED: &str = "set ConstrainDevices=closed for a list of all that jobs may use, or take DeviceAllow out";

/// The device at a path, through links; an error if it is none.
fn device_at(path: &Path) -> Result<Numbers> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| {
        let error = Error::os("find the device", path, errno);
        match errno {
            Errno::ENOENT => error.hint("it does not exist: load its driver before jobs start, or do not allow it"),
            _ => error,
        }
    })?;
    let stat = fstat(&fd).map_err(|errno| Error::os("stat", path, errno))?;
    numbers(stat.st_mode, stat.st_rdev).ok_or_else(|| Error::new("it is no device:").at(path))
}

fn numbers(mode: u32, device: dev_t) -> Option<Numbers> {
    let kind = match SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFCHR => DeviceKind::Char,
        SFlag::S_IFBLK => DeviceKind::Block,
        _ => return None,
    };
    let major = u32::try_from(major(device)).ok().filter(|major| *major <= rules::LARGEST_MAJOR)?;
    let minor = u32::try_from(minor(device)).ok().filter(|minor| *minor <= rules::LARGEST_MINOR)?;
    Some(Numbers { kind, major, minor: Some(minor) })
}

/// The major numbers of a driver in the text of `/proc/devices` (proc_devices(5)); some drivers have several. A number as the name
/// stands for itself, listed or not.
fn majors(text: &str, kind: DeviceKind, name: &str) -> Vec<u32> {
    if let Ok(major) = name.parse() {
        return vec![major];
    }
    let heading = if kind == DeviceKind::Char { "Character devices:" } else { "Block devices:" };
    let lines = text.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    let majors = lines.filter_map(|line| {
        let (major, driver) = line.trim_start().split_once(' ')?;
        (driver == name).then(|| major.parse().ok()).flatten()
    });
    majors.filter(|major| *major <= rules::LARGEST_MAJOR).collect()
}

/// The names of the files in the directory of GPUs' devices.
fn beside_gpus(gpu: &GpuDevice) -> Result<Vec<String>> {
    /// More files than this in one directory are an error.
    const MOST: usize = 100_000;
    let dir = match Dir::open(gpu.directory()) {
        // A node without GPUs.
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
        dir => dir?,
    };
    let names = dir.list(false)?;
    if names.len() > MOST {
        return Err(Error::new("there are too many files to look for GPUs in").at(dir.path()));
    }
    Ok(names)
}

/// The devices of this node's GPUs, in the order in which jobs are to have them.
pub fn gpus_of_node(gpu: &GpuDevice) -> Result<Vec<String>> {
    let paths = gpu.numbers_among(&beside_gpus(gpu)?).into_iter().map(|number| gpu.path(number));
    Ok(paths.filter(|path| device_at(path).is_ok()).map(|path| path.to_string_lossy().into_owned()).collect())
}

/// The GPUs of this node that are not among the numbers.
fn others(gpu: &GpuDevice, ours: &[u32]) -> Result<Vec<Numbers>> {
    let names = beside_gpus(gpu)?;
    let mut others = Vec::new();
    for number in names.iter().filter_map(|name| gpu.number(name)).filter(|number| !ours.contains(number)) {
        // A file that is no device, or has just gone, cannot be used.
        others.extend(device_at(&gpu.path(number)));
    }
    if gpu.is_nvidias() {
        others.extend(not_yet_in_dev(ours)?);
    }
    Ok(others)
}

/// The other GPUs that NVIDIA's driver knows: a user can have their devices made in /dev later (nvidia-modprobe).
fn not_yet_in_dev(ours: &[u32]) -> Result<Vec<Numbers>> {
    let proc = Dir::open("/proc")?;
    let driver = nvidia::gpus(&proc).unwrap_or_default();
    if driver.is_empty() {
        return Ok(Vec::new());
    }
    let text = proc.read(CONTROLLER)?;
    let mut others = Vec::new();
    // The name depends on the driver's release.
    for name in ["nvidia", "nvidia-frontend"] {
        for major in majors(&text, DeviceKind::Char, name) {
            let theirs = driver.iter().filter(|gpu| !ours.contains(&gpu.minor));
            others.extend(theirs.map(|gpu| Numbers::char(major, Some(gpu.minor))));
        }
    }
    Ok(others)
}

/// Lets a directory's processes use these devices and no others, and checks that the kernel has it so. May be repeated.
///
/// On v1 the directory may have no children yet: only then does the kernel change the rule for all other devices.
pub fn constrain(dir: &Dir, version: Version, devices: &Devices) -> Result<()> {
    let set = devices.look_up()?;
    match version {
        Version::V1 => v1::constrain(dir, &set),
        Version::V2 => bpf::constrain(dir, &set),
    }
}

/// Checks again that jobfence's program at a cgroup2 directory counts beside the programs that are attached above. If there is none of
/// jobfence's, as after an error, there is nothing to check.
///
/// A program that admits no other beside it is ignored if one is attached further down. If it was attached after jobfence's (Slurm's
/// `ConstrainDevices` does so between `slurm_spank_init` and the first task), jobfence's is detached, so that nothing which the other
/// denies is allowed, and an error is returned.
pub fn still_counts(dir: &Dir) -> Result<()> {
    bpf::still_counts(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC_DEVICES: &str = "\
Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
136 pts
195 nvidia-frontend
 65 sd

Block devices:
  7 loop
  8 sd
 65 sd
9999 huge
259 blkext
";

    #[test]
    fn classes_are_those_of_their_kind_with_all_their_numbers() {
        for (kind, name, expected) in [
            (DeviceKind::Block, "sd", &[8, 65][..]),
            (DeviceKind::Char, "sd", &[65]),
            (DeviceKind::Char, "tty", &[4]),
            (DeviceKind::Char, "/dev/vc/0", &[4]),
            (DeviceKind::Char, "loop", &[]),
            (DeviceKind::Block, "huge", &[]),
            (DeviceKind::Block, "253", &[253]),
            (DeviceKind::Char, "", &[]),
        ] {
            assert_eq!(majors(PROC_DEVICES, kind, name), expected, "{kind:?} {name}");
        }
        assert_eq!(majors("", DeviceKind::Char, "pts"), Vec::<u32>::new());
    }

    #[test]
    fn a_device_is_found_through_links_and_a_file_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert_eq!(device_at(&link).unwrap(), Numbers::char(1, Some(5)));
        std::fs::write(temp.path().join("file"), "").unwrap();
        let error = device_at(&temp.path().join("file")).unwrap_err().to_string();
        assert!(error.starts_with("it is no device: /"), "{error}");
        let error = device_at(&temp.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("gone: ") && error.contains("does not exist"), "{error}");
        let gone = Devices::new(parse("char-nobodys").unwrap(), None);
        let error = gone.look_up().unwrap_err().to_string();
        assert!(error.contains("char-nobodys") && error.contains("DeviceAllow"), "{error}");
    }

    #[test]
    fn the_same_device_is_one_rule_with_all_its_accesses() {
        let devices = Devices::new(parse("/dev/zero r,/dev/null w,char-mem r,char-1 w").unwrap(), None);
        let set = devices.look_up().unwrap();
        assert!(set.allow.contains(&(Numbers::char(1, Some(5)), Access::ALL)));
        assert!(set.allow.contains(&(Numbers::char(1, None), Access::READ_WRITE)));
        assert_eq!(set.allow.len(), EVERYBODYS.len() + 1);
        assert_eq!(devices.to_string(), "/dev/zero r,/dev/null w,char-mem r,char-1 w");
    }

    #[test]
    fn gpus_of_others_are_denied_whatever_allows_them() {
        let temp = tempfile::tempdir().unwrap();
        // Links stand for the devices: tests do without mknod.
        for (name, device) in
            [("gpu0", "/dev/zero"), ("gpu1", "/dev/full"), ("gpu2", "/dev/tty"), ("gpuctl", "/dev/null")]
        {
            std::os::unix::fs::symlink(device, temp.path().join(name)).unwrap();
        }
        std::fs::write(temp.path().join("gpu3"), "").unwrap();
        let gpu = GpuDevice::parse(&format!("{}/gpu%d", temp.path().display())).unwrap();
        let allow = parse(&format!("char-mem rw,{0}/gpu2 rw,{0}/gpuctl rw", temp.path().display())).unwrap();
        let mut devices = Devices::new(allow, Some(gpu.clone()));
        // The class allows two of them; the third is just not allowed.
        assert_eq!(devices.look_up().unwrap().deny.len(), 2);
        let of = |number: u32| (0, format!("{}/gpu{number}", temp.path().display()));
        devices.give_gpus(&Gpus::Devices(vec![of(1)]));
        let set = devices.look_up().unwrap();
        let (zero, full, tty) = (Numbers::char(1, Some(5)), Numbers::char(1, Some(7)), Numbers::char(5, Some(0)));
        let allows = |set: &set::Set, one| set.allow.iter().any(|(numbers, _)| *numbers == one);
        assert!(allows(&set, full) && !allows(&set, zero) && !allows(&set, tty));
        // The class allows this one; no rule allows the other any more.
        assert_eq!(set.deny, [zero]);
        assert!(devices.to_string().ends_with(&format!("gpuctl rw,{}/gpu1 rw", temp.path().display())), "{devices}");
        let path = |number: u32| of(number).1;
        // A file that is no device cannot be chosen.
        assert_eq!(gpus_of_node(&gpu).unwrap(), [path(0), path(1), path(2)]);
        let mut chosen = Devices::new(Vec::new(), Some(gpu.clone()));
        chosen.give_gpus(&Gpus::Chosen(vec![path(2)]));
        assert_eq!(chosen.to_string(), format!("{} rw", path(2)));
        assert!(allows(&chosen.look_up().unwrap(), tty));
        let mut missing = Devices::new(Vec::new(), Some(gpu));
        missing.give_gpus(&Gpus::Devices(vec![of(1), of(9)]));
        assert!(missing.look_up().unwrap_err().to_string().contains("gpu9"));
        // If it is not certain which GPUs, the job gets none.
        assert_eq!(devices.why_no_gpus(), None);
        devices.give_gpus(&Gpus::Positions(vec![1], "why".into()));
        assert_eq!((devices.look_up().unwrap().deny.len(), devices.why_no_gpus()), (2, Some("why")));
    }

    #[test]
    fn of_two_lists_both_must_allow() {
        let of = |text| Devices::new(parse(text).unwrap(), None);
        let both = of("char-10 rw,char-226,block-7 r").at_most(of("/dev/loop-control r,char-226,block-7 w,char-9"));
        assert_eq!(both.clone().at_most(of("char-9")).0.len(), 3);
        assert_eq!(both.clone().at_most(of("char-10 rw,char-226,block-7 r")), both);
        let set = both.look_up().unwrap();
        let others: Vec<String> = set
            .allow
            .iter()
            .filter(|(numbers, _)| !set::is_everybodys(*numbers))
            .map(|(numbers, access)| format!("{numbers} {access}"))
            .collect();
        assert_eq!(others, ["c 10:237 r", "c 226:* rwm"]);
        assert_eq!(set.allow.len(), EVERYBODYS.len() + 2);
        let text = "char-10 rw,char-226,block-7 r & /dev/loop-control r,char-226,block-7 w,char-9";
        assert_eq!(both.to_string(), text);
        assert!(both.rules().ends_with(&["c 136:* rw".to_owned(), text.to_owned()]));
    }

    #[test]
    fn an_open_list_takes_from_a_closed_one() {
        let temp = tempfile::tempdir().unwrap();
        for (name, device) in [("gpu0", "/dev/zero"), ("gpu1", "/dev/full")] {
            std::os::unix::fs::symlink(device, temp.path().join(name)).unwrap();
        }
        let path = temp.path().display();
        let gpu = || GpuDevice::parse(&format!("{path}/gpu%d"));
        let (zero, full) = (Numbers::char(1, Some(5)), Numbers::char(1, Some(7)));
        let mut open = Devices::but_gpus(Vec::new(), gpu());
        assert_eq!(open.look_up().unwrap(), Set::but(vec![full, zero]));
        assert_eq!(open.to_string(), format!("all but the GPUs {path}/gpu%d"));
        open.give_gpus(&Gpus::Devices(vec![(0, format!("{path}/gpu1"))]));
        assert_eq!(open.look_up().unwrap(), Set::but(vec![zero]));
        let words = format!("all but the GPUs {path}/gpu%d other than {path}/gpu1");
        assert_eq!((open.rules(), open.are_listed()), (vec![words], false));
        let closed = Devices::new(parse("char-mem rw").unwrap(), None);
        for both in [open.clone().at_most(closed.clone()), closed.at_most(open.clone())] {
            let set = both.look_up().unwrap();
            assert!(both.are_listed() && !set.is_open && set.deny == [zero], "{set:?}");
            assert!(set.allow.iter().all(|(numbers, _)| *numbers != zero), "{set:?}");
        }
        let other = Devices::but_gpus(Vec::new(), GpuDevice::parse(&format!("{path}/gpu[0-1]")));
        assert_eq!(open.at_most(other).look_up().unwrap(), Set::but(vec![zero, full]));
        for (devices, what) in [
            (Devices::but_gpus(Vec::new(), None), "set GPUDevice"),
            (Devices::but_gpus(parse("/dev/fuse").unwrap(), gpu()), "ConstrainDevices=closed"),
        ] {
            let error = devices.look_up().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn what_everybody_may_use_is_what_is_in_dev() {
        for (path, (numbers, _)) in ["null", "zero", "full", "random", "urandom", "tty", "ptmx"].iter().zip(EVERYBODYS)
        {
            let path = Path::new("/dev").join(path);
            // In a container ptmx is a link to another instance's.
            assert_eq!(device_at(&path).unwrap(), numbers, "{}", path.display());
        }
    }
}
