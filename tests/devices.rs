// SPDX-License-Identifier: GPL-2.0-or-later
//! Devices on this host's real cgroups, as root: v1's list, and cgroup2's program beside foreign programs.

use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jobfence::cgroup::devices::{self, Devices, GpuDevice};
use jobfence::cgroup::layout::{Layout, Version};
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, DeniedDevices, Limit, SwapSpace};
use jobfence::facts::Gpus;
use jobfence::fence::Fence;
use jobfence::host::Host;
use jobfence::job::{Grant, Id, JobKey};
use jobfence::policy;
use jobfence::sys::dir::Dir;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

mod common;
use common::skip;

/// These tests count this process's descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Directories of this test in one hierarchy, one in the other, and device nodes.
struct Site {
    version: Version,
    dirs: Vec<PathBuf>,
    nodes: tempfile::TempDir,
    base: common::Base,
    /// The last to be dropped.
    _alone: MutexGuard<'static, ()>,
}

impl Site {
    /// `None`: this host has no such hierarchy.
    fn new(test: &str, version: Version) -> Option<Self> {
        let alone = alone();
        let layout = Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap();
        let hierarchy = match version {
            Version::V1 => layout.with_controller(devices::CONTROLLER).filter(|found| found.version == Version::V1),
            Version::V2 => layout.unified(),
        };
        let Some(hierarchy) = hierarchy else {
            skip("this host has no such hierarchy");
            return None;
        };
        let base = common::Base::new(&format!("jobfence-devices-{}-{test}", std::process::id()));
        let nodes = tempfile::tempdir().unwrap();
        // Devices that open without any hardware: the kernel's log, the control of loop devices.
        for (name, major, minor) in [("kmsg", 1, 11), ("loop-control", 10, 237), ("null", 1, 3), ("full", 1, 7)] {
            mknod(&nodes.path().join(name), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor))
                .unwrap();
        }
        let outer = hierarchy.mount.join(&base.name).join("outer");
        let dirs = vec![outer.join("inner"), outer];
        fs::create_dir_all(&dirs[0]).unwrap();
        Some(Self { version, dirs, nodes, base, _alone: alone })
    }

    fn dir(&self) -> Dir {
        Dir::open(&self.dirs[0]).unwrap()
    }

    fn outer(&self) -> Dir {
        Dir::open(&self.dirs[1]).unwrap()
    }

    /// Rules, in which `@` stands for the nodes' directory.
    fn allowing(&self, rules: &str) -> Devices {
        self.and_gpus(rules, None)
    }

    fn and_gpus(&self, rules: &str, gpu: Option<GpuDevice>) -> Devices {
        Devices::new(devices::parse(&rules.replace('@', &self.path())).unwrap(), gpu)
    }

    fn constrain(&self, rules: &str) -> Result<(), String> {
        devices::constrain(&self.dir(), self.version, &self.allowing(rules)).map_err(|error| error.to_string())
    }

    fn path(&self) -> String {
        self.nodes.path().display().to_string()
    }

    /// The output of a shell in the directory that runs this; empty if it succeeds.
    fn tries(&self, script: &str) -> String {
        let procs = self.dirs[0].join("cgroup.procs");
        let script = format!("echo $$ >'{}' && cd '{}' && {{ {script}; }}", procs.display(), self.path());
        said(&Command::new("sh").args(["-c", &script]).env("LC_ALL", "C").output().unwrap())
    }

    fn expect(&self, allowed: &[&str], denied: &[&str]) {
        for script in allowed {
            assert_eq!(self.tries(script), "", "{script}");
        }
        for script in denied {
            let said = self.tries(script);
            assert!(said.contains("Operation not permitted"), "{script}: {said:?}");
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for dir in &self.dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const READ_LOG: &str = ": <kmsg";
const READ_LOOP: &str = ": <loop-control";
const READ_NULL: &str = ": <null";

/// In either version: allowed accesses work, all others fail with EPERM, separately for each kind, and the rules can be repeated.
fn what_is_allowed_works(site: &Site) {
    site.expect(&[READ_LOG, READ_LOOP, READ_NULL], &[]);
    for _ in 0..2 {
        site.constrain("@/kmsg r").unwrap();
        site.expect(
            &[READ_LOG, READ_NULL, ": >null", ": <>full", ": </dev/urandom", "mknod n c 1 3 && rm n", ": <>/dev/ptmx"],
            &[READ_LOOP, ": >kmsg", ": <>kmsg", "mknod x c 1 11", "mknod x b 7 0"],
        );
    }
    let error = site.constrain("@/kmsg r,@/gone").unwrap_err();
    assert!(error.contains("/gone: ") && error.contains("does not exist"), "{error}");
    // The last rules count: more, and less.
    site.constrain("char-mem rm,@/loop-control").unwrap();
    site.expect(&[READ_LOG, READ_LOOP, "mknod x c 1 11 && rm x"], &[": >kmsg", "mknod x b 7 0"]);
    site.constrain("@/loop-control w").unwrap();
    site.expect(&[READ_NULL], &[READ_LOG, READ_LOOP]);
}

#[test]
fn a_v1_list() {
    let Some(site) = Site::new("v1", Version::V1) else { return };
    what_is_allowed_works(&site);
    let list = fs::read_to_string(site.dirs[0].join("devices.list")).unwrap();
    assert!(list.contains("c 10:237 w\n") && list.contains("c 136:* rw\n") && !list.contains('b'), "{list}");
    // With children the list cannot be changed, but entries that are there already are no error.
    fs::create_dir(site.dirs[0].join("task_0")).unwrap();
    site.constrain("@/loop-control w").unwrap();
    let error = site.constrain("@/kmsg").unwrap_err();
    fs::remove_dir(site.dirs[0].join("task_0")).unwrap();
    assert!(error.contains("devices.deny") && error.contains("children"), "{error}");
}

#[test]
fn a_v1_list_below_another() {
    let Some(site) = Site::new("v1-below", Version::V1) else { return };
    // The inner list is created with its directory. The kernel releases it a moment after the directory is removed.
    fs::remove_dir(&site.dirs[0]).unwrap();
    let deadline = common::soon();
    while fs::write(site.dirs[1].join("devices.deny"), "a").is_err() {
        assert!(Instant::now() < deadline, "{:?} still has children", site.dirs[1]);
    }
    for rule in ["c 1:3 rwm", "c 1:11 r"] {
        fs::write(site.dirs[1].join("devices.allow"), rule).unwrap();
    }
    fs::create_dir(&site.dirs[0]).unwrap();
    // A usual device that the outer list lacks is no error; a requested one is.
    site.constrain("@/kmsg r").unwrap();
    site.expect(&[READ_LOG, READ_NULL], &[READ_LOOP, ": <full"]);
    let error = site.constrain("@/loop-control r").unwrap_err();
    assert!(error.contains("c 10:237 r") && error.contains("cgroup above"), "{error}");
}

#[test]
fn a_program_of_cgroup2() {
    let Some(site) = Site::new("v2", Version::V2) else { return };
    let before = descriptors();
    what_is_allowed_works(&site);
    // The earlier program of jobfence is gone, and only the attachment holds the present one.
    assert_eq!(bpf::attached(&site.dir()), (vec!["jobfence_dev".to_owned()], bpf::ALLOW_MULTI));
    assert_eq!(descriptors(), before);
    let ids = bpf::ids(&site.dir());
    site.constrain("@/loop-control w").unwrap();
    assert_eq!(bpf::ids(&site.dir()), ids, "the same again is left as it is");
    devices::still_counts(&site.dir()).unwrap();
    // It applies to the directories below, too.
    devices::constrain(&site.outer(), Version::V2, &site.allowing("@/kmsg")).unwrap();
    site.expect(&[READ_NULL], &[READ_LOG, ": >loop-control"]);
}

#[test]
fn a_gpu_of_others_within_an_allowed_class() {
    let Some(site) = Site::new("gpu", Version::V2) else { return };
    for (name, node) in [("gpu0", "kmsg"), ("gpu1", "null")] {
        fs::rename(site.nodes.path().join(node), site.nodes.path().join(name)).unwrap();
    }
    let gpu = GpuDevice::parse(&format!("{}/gpu%d", site.path())).unwrap();
    let mut devices = site.and_gpus("char-mem rw", Some(gpu));
    devices.give_gpus(&Gpus::Devices(vec![(0, format!("{}/gpu1", site.path()))]));
    devices::constrain(&site.dir(), Version::V2, &devices).unwrap();
    site.expect(&[": <>gpu1", ": <full"], &[": <gpu0"]);
}

/// In either version: only other jobs' GPUs are denied, and devices that are no GPUs are not affected.
fn gpus_of_others_are_denied_alone(site: &Site) {
    for (name, node) in [("gpu0", "kmsg"), ("gpu1", "full")] {
        fs::rename(site.nodes.path().join(node), site.nodes.path().join(name)).unwrap();
    }
    let gpu = GpuDevice::parse(&format!("{}/gpu%d", site.path())).unwrap();
    let mut devices = Devices::but_gpus(Vec::new(), Some(gpu.clone()));
    devices.give_gpus(&Gpus::Devices(vec![(0, format!("{}/gpu1", site.path()))]));
    for _ in 0..2 {
        devices::constrain(&site.dir(), site.version, &devices).unwrap();
        site.expect(
            &[": <>gpu1", READ_LOOP, READ_NULL, "mknod b b 7 0 && rm b"],
            &[": <gpu0", ": >gpu0", "mknod x c 1 11"],
        );
    }
    // A job without GPUs, and one for which they are not certain.
    for gpus in [Gpus::None, Gpus::Unknown("why".to_owned())] {
        let mut none = Devices::but_gpus(Vec::new(), Some(gpu.clone()));
        none.give_gpus(&gpus);
        devices::constrain(&site.dir(), site.version, &none).unwrap();
        site.expect(&[READ_LOOP, READ_NULL], &[": <gpu0", ": <gpu1"]);
    }
    for name in ["gpu0", "gpu1"] {
        fs::remove_file(site.nodes.path().join(name)).unwrap();
    }
}

#[test]
fn gpus_of_others_on_v1() {
    let Some(site) = Site::new("open-v1", Version::V1) else { return };
    gpus_of_others_are_denied_alone(&site);
}

#[test]
fn gpus_of_others_on_cgroup2() {
    let Some(site) = Site::new("open-v2", Version::V2) else { return };
    gpus_of_others_are_denied_alone(&site);
}

#[test]
fn programs_of_others_stay() {
    let Some(site) = Site::new("others", Version::V2) else { return };
    let foreign = bpf::load("foreign");
    bpf::attach(&foreign, &site.dir(), bpf::ALLOW_MULTI);
    bpf::attach(&foreign, &site.outer(), bpf::ALLOW_MULTI);
    let before = descriptors();
    site.constrain("@/kmsg").unwrap();
    site.constrain("@/kmsg r").unwrap();
    let (mut names, flags) = bpf::attached(&site.dir());
    names.sort();
    assert_eq!((names, flags), (vec!["foreign".to_owned(), "jobfence_dev".to_owned()], bpf::ALLOW_MULTI));
    assert_eq!(bpf::attached(&site.outer()).0, ["foreign"]);
    assert_eq!(descriptors(), before);
    site.expect(&[READ_LOG], &[READ_LOOP]);
}

/// As Slurm attaches its own: exclusively to a task's directory, and overridable from below to a job's and a step's.
#[test]
fn a_program_that_admits_no_other_is_neither_replaced_nor_overridden() {
    let Some(site) = Site::new("exclusive", Version::V2) else { return };
    let foreign = bpf::load("Slurm_Cgroup_v2");
    for (flags, above) in [(0, true), (bpf::ALLOW_OVERRIDE, true), (0, false), (bpf::ALLOW_OVERRIDE, false)] {
        let theirs = if above { site.outer() } else { site.dir() };
        bpf::attach(&foreign, &theirs, flags);
        let error = site.constrain("@/kmsg").unwrap_err();
        let place = theirs.path().display().to_string();
        assert!(error.contains("Slurm_Cgroup_v2 (id ") && error.contains("ConstrainDevices=no"), "{error}");
        assert!(error.contains(&format!("is attached to {place} ")), "{error}");
        // Not even for a moment.
        assert!(!error.contains("ours would lift"), "{error}");
        assert_eq!(bpf::attached(&theirs), (vec!["Slurm_Cgroup_v2".to_owned()], flags));
        site.expect(&[READ_LOG, READ_LOOP], &[]);
        bpf::detach(&foreign, &theirs);
    }
    // A program that comes after jobfence's, and would be ignored because of it.
    site.constrain("@/kmsg").unwrap();
    devices::still_counts(&site.dir()).unwrap();
    bpf::attach(&foreign, &site.outer(), bpf::ALLOW_OVERRIDE);
    let before = descriptors();
    let error = devices::still_counts(&site.dir()).unwrap_err().to_string();
    assert!(error.contains("ours would lift") && error.contains("Slurm_Cgroup_v2"), "{error}");
    assert_eq!(bpf::attached(&site.dir()).0, Vec::<String>::new());
    assert_eq!(descriptors(), before);
    devices::still_counts(&site.dir()).unwrap();
}

#[test]
fn a_command_in_a_fence_has_only_what_is_allowed() {
    let Some(site) = Site::new("run", Version::V2) else { return };
    let run = tempfile::tempdir().unwrap();
    let unified = site.dirs[0].ancestors().find(|dir| !dir.join("cgroup.type").exists()).unwrap().to_owned();
    // All hierarchies of the host, and cgroup2 alone.
    for options in [vec![], vec![format!("CgroupMountpoint={}", unified.display())]] {
        let mut command = common::command("run", &site.base, run.path());
        command.args(["-o", "ConstrainCPUQuota=no", "-o", "ConstrainRAMSpace=no", "-o", "ConstrainSwapSpace=no"]);
        for option in options.iter().map(String::as_str).chain(["ConstrainDevices=closed"]) {
            command.arg("-o").arg(option);
        }
        command.arg("-o").arg(format!("DeviceAllow={}/kmsg r", site.path()));
        let script = format!("cd {} && : <kmsg && : <null && echo so far && : <loop-control", site.path());
        let said = said(&command.args(["--", "sh", "-c", &script]).env("LC_ALL", "C").output().unwrap());
        assert!(said.starts_with("so far\n") && said.contains("Operation not permitted"), "{options:?}: {said}");
    }
    let mut command = common::command("run", &site.base, run.path());
    command.args(["-o", "ConstrainDevices=closed", "-o", "DeviceAllow=/dev/of-nobody", "--", "echo", "ran"]);
    let said = said(&command.output().unwrap());
    assert!(said.contains("/dev/of-nobody") && !said.contains("ran\n"), "{said}");
}

#[test]
fn check_says_beforehand_what_cannot_be() {
    let _alone = alone();
    let temp = tempfile::tempdir().unwrap();
    let base = common::Base::new(&format!("jobfence-devices-{}-check", std::process::id()));
    let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
    let config = temp.path().join("jobfence.conf");
    write("slurm.conf", "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/cgroup\n");
    write("plugstack.conf", &format!("required {}\n", common::shared_object().display()));
    let check = |theirs: &str, ours: &str| {
        write("cgroup.conf", theirs);
        write("jobfence.conf", ours);
        let mut check = common::command("check", &base, temp.path());
        check.arg("--config").arg(&config).env("SLURM_CONF", temp.path().join("slurm.conf"));
        let output = check.output().unwrap();
        (output.status.success(), said(&output))
    };
    let theirs = "ConstrainDevices=yes\n";
    let refused = "Slurm denies devices itself, by ConstrainDevices=yes (";
    for ours in ["ConstrainDevices=yes\n", "[Partition=gpu]\nConstrainDevices=yes\n"] {
        let (success, said) = check(theirs, ours);
        assert!(!success && said.contains(refused), "{said}");
    }
    for ours in ["ConstrainDevices=no\n", "ConstrainDevices=yes OnError=fail,devices:warn\n"] {
        let (_, said) = check(theirs, ours);
        assert_eq!(said.contains(refused), ours.contains("warn"), "{said}");
        assert!(!said.contains("NO job would be fenced here as configured\n"), "{said}");
    }
    let (success, said) = check("", "ConstrainDevices=closed DeviceAllow=/dev/of-nobody\n");
    assert!(!success && said.contains("/dev/of-nobody"), "{said}");
    let (success, said) = check("", "ConstrainDevices=closed DeviceAllow=/dev/null\n");
    assert!(success, "{said}");
    // Which device is which GPU, and the source.
    let gpu = temp.path().join("gpu");
    for number in [0, 1] {
        std::os::unix::fs::symlink("/dev/zero", temp.path().join(format!("gpu{number}"))).unwrap();
    }
    write("gres.conf", &format!("Name=gpu File={}[1,0]\n", gpu.display()));
    let gpu = gpu.display();
    let certain = |by: &str, first: u32, second: u32| {
        format!("gpus           certain, by {by}: GPU 0 is {gpu}{first}, GPU 1 is {gpu}{second}\n")
    };
    for (device, what) in [
        (format!("{gpu}%d"), certain("gres.conf and slurm.conf", 1, 0)),
        (format!("\"{gpu}[0,1]\""), certain("GPUDevice", 0, 1)),
        ("/dev/other%d".to_owned(), format!("it is not certain which devices Slurm's GPUs are: {gpu}1 is a GPU")),
    ] {
        let (_, said) = check("", &format!("ConstrainDevices=yes GPUDevice={device}\n"));
        assert!(said.contains(&what) && said.contains("slurm.conf has no Prolog=, so nobody tells"), "{said}");
        let (_, said) = check("", &format!("GPUDevice={device}\n"));
        assert!(!said.contains("\ngpus "), "GPUs that nobody is denied: {said}");
    }
    for (ours, what) in
        [("", "set GPUDevice"), ("DeviceAllow=/dev/null GPUDevice=/dev/nvidia%d", "ConstrainDevices=closed")]
    {
        let (success, said) = check("", &format!("ConstrainDevices=yes {ours}\n"));
        assert!(!success && said.contains(what), "{said}");
    }
}

/// A step in directories like Slurm's, fenced there.
fn in_slurms_own(site: &Site, mount: &Path, step: &Path) -> (Fence, Host, Child) {
    let config = Config {
        cgroup_mountpoint: mount.to_owned(),
        cgroup_base: Some(site.base.name.clone()),
        run_dir: site.nodes.path().join("run"),
        constrain_cpu_quota: false,
        constrain_ram_space: false,
        constrain_swap_space: SwapSpace::No,
        constrain_devices: DeniedDevices::AllElse,
        device_allow: devices::parse(&format!("{}/kmsg r", site.path())).unwrap(),
        ..Config::default()
    };
    let host = Host::read(&config).unwrap();
    let daemon = Membership::read(&host.proc, std::process::id().cast_signed()).unwrap();
    let key = JobKey { node: None, uid: 65_534, job: Id::new("1").unwrap(), step: Id::new("0").unwrap() };
    let mut fence = common::open(&host, &config, &key, Some(&daemon)).unwrap();
    assert_eq!(fence.limit(&policy::plan(&config, &Grant::default()).0), vec![]);
    fs::create_dir_all(step.join("task_0")).unwrap();
    let script = format!("cd {} && read line && : <kmsg && echo so far && : <loop-control", site.path());
    let mut child = Command::new("sh");
    let child = child.args(["-c", &script]).env("LC_ALL", "C").stdin(Stdio::piped());
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fs::write(step.join("task_0/cgroup.procs"), child.id().to_string()).unwrap();
    (fence, host, child)
}

/// Lets the child go on, and removes the directories as Slurm does, from the task's upwards.
fn ended(mut child: Child, fence: &mut Fence, step: &Path, levels: usize) -> String {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    fence.close(common::soon()).unwrap();
    for dir in step.join("task_0").ancestors().take(levels) {
        fs::remove_dir(dir).unwrap();
    }
    said(&output)
}

#[test]
fn in_slurms_own_directories_of_cgroup2() {
    let Some(site) = Site::new("overlay", Version::V2) else { return };
    let outer = &site.dirs[1];
    let mount = outer.ancestors().find(|dir| !dir.join("cgroup.type").exists()).unwrap();
    let job = outer.with_file_name("x_slurmstepd.scope").join("job_1");
    let step = job.join("step_0/user");
    let (mut fence, host, child) = in_slurms_own(&site, mount, &step);
    let pid = child.id().cast_signed();
    assert_eq!(fence.attach(&host, pid, Some(0)).unwrap(), vec![]);
    assert_eq!(bpf::attached(&Dir::open(&step).unwrap()).0, ["jobfence_dev"]);
    assert_eq!(bpf::attached(&Dir::open(&job).unwrap()).0, Vec::<String>::new());
    // Slurm's program, which would be ignored because of jobfence's.
    let theirs = bpf::load("Slurm_Cgroup_v2");
    bpf::attach(&theirs, &Dir::open(&job).unwrap(), bpf::ALLOW_OVERRIDE);
    let errors = fence.attach(&host, pid, Some(0)).unwrap();
    let limits: Vec<Limit> = errors.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits, [Limit::Devices], "{errors:?}");
    assert!(errors[0].1.to_string().contains("ours would lift"), "{errors:?}");
    assert_eq!(bpf::attached(&Dir::open(&step).unwrap()).0, Vec::<String>::new());
    // And without it, by another step's daemon that does the same again.
    bpf::detach(&theirs, &Dir::open(&job).unwrap());
    devices::constrain(&Dir::open(&step).unwrap(), Version::V2, &site.allowing("@/kmsg r")).unwrap();
    let said = ended(child, &mut fence, &step, 5);
    assert!(said.starts_with("so far\n") && said.contains("Operation not permitted"), "{said}");
}

#[test]
fn in_slurms_own_directories_of_v1() {
    let Some(site) = Site::new("overlay-v1", Version::V1) else { return };
    let mount = site.dirs[1].ancestors().nth(site.base.name.split('/').count() + 1).unwrap();
    let step = mount.join(format!("slurm_{}/uid_65534/job_1/step_0", site.base.name.replace('/', "-")));
    let (mut fence, host, child) = in_slurms_own(&site, mount.parent().unwrap(), &step);
    let errors = fence.attach(&host, child.id().cast_signed(), Some(0)).unwrap();
    let limits: Vec<Limit> = errors.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits, [Limit::Devices], "{errors:?}");
    assert!(errors[0].1.to_string().contains("Slurm itself denies devices"), "{errors:?}");
    assert_eq!(fs::read_to_string(step.join("devices.list")).unwrap(), "a *:* rwm\n");
    assert_eq!(ended(child, &mut fence, &step, 5), "so far\n");
}

fn descriptors() -> Vec<String> {
    let open = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // Except for that of this listing.
        fs::read_link(format!("/proc/self/fd/{name}")).ok().map(|to| format!("{name} {}", to.display()))
    };
    let mut open: Vec<String> = fs::read_dir("/proc/self/fd").unwrap().filter_map(open).collect();
    open.retain(|entry| !entry.contains("/proc/"));
    open.sort();
    open
}

/// What another program does with device programs: bpf(2) again, from include/uapi/linux/bpf.h.
mod bpf {
    use super::*;

    pub const ALLOW_OVERRIDE: u32 = 1;
    pub const ALLOW_MULTI: u32 = 2;

    const CGROUP_DEVICE: (u32, u32) = (15, 6);

    /// The union of all arguments, as words of four bytes.
    fn call(command: i32, words: &mut [u32; 40]) -> i32 {
        // SAFETY: the argument is as long as is said; what it points to lives in the callers.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), size_of_val(words)) };
        assert!(done >= 0, "bpf({command}): {}", std::io::Error::last_os_error());
        i32::try_from(done).unwrap()
    }

    fn put(words: &mut [u32; 40], at: usize, address: u64) {
        words[at] = address as u32;
        words[at + 1] = (address >> 32) as u32;
    }

    fn raw(fd: &impl AsRawFd) -> u32 {
        fd.as_raw_fd().cast_unsigned()
    }

    fn raw_dir(dir: &Dir) -> u32 {
        use std::os::fd::AsFd;
        raw(&dir.as_fd())
    }

    /// A program that admits everything.
    pub fn load(name: &str) -> OwnedFd {
        // r0 = 1; exit
        let insns: [u64; 2] = [0x1_0000_00b7, 0x95];
        let license = *b"GPL\0";
        let mut words = [0; 40];
        (words[0], words[1]) = (CGROUP_DEVICE.0, 2);
        put(&mut words, 2, insns.as_ptr().expose_provenance() as u64);
        put(&mut words, 4, license.as_ptr().expose_provenance() as u64);
        for (at, part) in name.as_bytes().chunks(4).enumerate() {
            let mut four = [0; 4];
            four[..part.len()].copy_from_slice(part);
            words[12 + at] = u32::from_ne_bytes(four);
        }
        // SAFETY: a new descriptor, which nothing else owns.
        unsafe { OwnedFd::from_raw_fd(call(5, &mut words)) }
    }

    pub fn attach(program: &OwnedFd, dir: &Dir, flags: u32) {
        let mut words = [0; 40];
        words[..4].copy_from_slice(&[raw_dir(dir), raw(program), CGROUP_DEVICE.1, flags]);
        call(8, &mut words);
    }

    pub fn detach(program: &OwnedFd, dir: &Dir) {
        let mut words = [0; 40];
        words[..3].copy_from_slice(&[raw_dir(dir), raw(program), CGROUP_DEVICE.1]);
        call(9, &mut words);
    }

    fn query(dir: &Dir) -> (Vec<u32>, u32) {
        let mut ids = [0u32; 64];
        let mut words = [0; 40];
        words[..2].copy_from_slice(&[raw_dir(dir), CGROUP_DEVICE.1]);
        put(&mut words, 4, ids.as_mut_ptr().expose_provenance() as u64);
        words[6] = 64;
        call(16, &mut words);
        (ids[..words[6] as usize].to_vec(), words[3])
    }

    pub fn ids(dir: &Dir) -> Vec<u32> {
        query(dir).0
    }

    /// The names of the programs that are attached to the directory itself, and their flags.
    pub fn attached(dir: &Dir) -> (Vec<String>, u32) {
        let (ids, flags) = query(dir);
        let name = |id: u32| {
            let mut words = [0; 40];
            words[0] = id;
            // SAFETY: a new descriptor, which nothing else owns.
            let program = unsafe { OwnedFd::from_raw_fd(call(13, &mut words)) };
            let mut info = [0u8; 80];
            let mut words = [0; 40];
            words[..2].copy_from_slice(&[raw(&program), 80]);
            put(&mut words, 2, info.as_mut_ptr().expose_provenance() as u64);
            call(15, &mut words);
            info[64..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
        };
        (ids.into_iter().map(name).collect(), flags)
    }
}
