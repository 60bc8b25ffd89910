// SPDX-License-Identifier: GPL-2.0-or-later
//! The least that can be done: the same directories and the same files with bare system calls, and no questions asked.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::Failure;
use crate::place::Place;
use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::fence;
use jobfence::job::JobKey;
use jobfence::policy::Limits;

/// Everything is known beforehand, so that only system calls are measured.
pub struct Floor {
    trees: Vec<Tree>,
}

struct Tree {
    base: CString,
    /// Below the base, from the top down.
    directories: Vec<CString>,
    /// The same, from the root of all.
    whole: Vec<CString>,
    /// The step's `cgroup.procs`.
    procs: CString,
    /// Its `cgroup.kill`, on cgroup2.
    kill: Option<CString>,
    /// Its files that say what was used.
    usage: Vec<CString>,
    files: Vec<(CString, String)>,
}

impl Floor {
    /// What the product makes and writes in this place, for this step.
    pub fn of(place: &Place, key: &JobKey) -> Result<Self, Failure> {
        let wanted = fence::controllers(&place.config);
        let hierarchies = place.host.hierarchies(&wanted)?;
        let trees = hierarchies.into_iter().map(|hierarchy| Tree::of(place, key, hierarchy, &wanted));
        Ok(Self { trees: trees.collect::<Result<_, _>>()? })
    }

    /// Makes the tree, writes each file once and reads it back once.
    pub fn set_up(&self) -> io::Result<()> {
        for tree in &self.trees {
            let base = Descriptor::open(libc::AT_FDCWD, &tree.base, libc::O_PATH | libc::O_DIRECTORY)?;
            for directory in &tree.directories {
                // SAFETY: an open descriptor and a NUL-terminated path.
                check_but(&[libc::EEXIST], unsafe { libc::mkdirat(base.0, directory.as_ptr(), 0o755) })?;
            }
            for (file, value) in &tree.files {
                let file = Descriptor::open(base.0, file, libc::O_RDWR)?;
                file.write(value)?;
                file.read(&mut [0; 256])?;
            }
        }
        Ok(())
    }

    /// Moves a process into the step.
    pub fn attach(&self, pid: i32) -> io::Result<()> {
        let pid = pid.to_string();
        self.trees
            .iter()
            .try_for_each(|tree| Descriptor::open(libc::AT_FDCWD, &tree.procs, libc::O_WRONLY)?.write(&pid))
    }

    /// Reads what the step has used, from each file from which the product does.
    pub fn read_usage(&self) {
        for file in self.trees.iter().flat_map(|tree| &tree.usage) {
            if let Ok(file) = Descriptor::open(libc::AT_FDCWD, file, libc::O_RDONLY) {
                let _ = std::hint::black_box(file.read(&mut [0; 4096]));
            }
        }
    }

    /// Kills the step's process.
    pub fn kill(&self, pid: i32) -> io::Result<()> {
        match self.trees.iter().find_map(|tree| tree.kill.as_ref()) {
            Some(kill) => Descriptor::open(libc::AT_FDCWD, kill, libc::O_WRONLY)?.write("1"),
            // SAFETY: it touches no memory.
            None => check(unsafe { libc::kill(pid, libc::SIGKILL) }.into()).map(|_| ()),
        }
    }

    /// Removes what [`Floor::set_up`] has made.
    pub fn remove(&self) -> io::Result<()> {
        for tree in &self.trees {
            for directory in tree.whole.iter().rev() {
                // SAFETY: a NUL-terminated path.
                check_but(&[libc::EBUSY, libc::ENOTEMPTY, libc::ENOENT], unsafe { libc::rmdir(directory.as_ptr()) })?;
            }
        }
        Ok(())
    }

    /// Every directory that is made.
    pub fn directories(&self) -> Vec<PathBuf> {
        let path = |name: &CString| PathBuf::from(OsString::from_vec(name.as_bytes().to_vec()));
        self.trees.iter().flat_map(|tree| &tree.whole).map(path).collect()
    }

    /// How many files are written.
    pub fn files(&self) -> usize {
        self.trees.iter().map(|tree| tree.files.len()).sum()
    }

    /// What the kernel shows in each of the files: the same after both kinds of set-up, or they are not comparable.
    pub fn state(&self) -> io::Result<Vec<String>> {
        let mut state = Vec::new();
        for tree in &self.trees {
            let base = Descriptor::open(libc::AT_FDCWD, &tree.base, libc::O_PATH | libc::O_DIRECTORY)?;
            for (file, _) in &tree.files {
                let mut text = [0; 256];
                let length = Descriptor::open(base.0, file, libc::O_RDONLY)?.read(&mut text)?;
                let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
                state.push(format!("{}: {}", file.to_string_lossy(), text.trim()));
            }
        }
        Ok(state)
    }
}

impl Tree {
    fn of(place: &Place, key: &JobKey, hierarchy: &Hierarchy, wanted: &[&str]) -> Result<Self, Failure> {
        let base = hierarchy.mount.join(&place.host.base);
        let mut levels = key.parents();
        levels.push(key.step_dir(1));
        let paths: Vec<String> = (1..=levels.len()).filter_map(|depth| Some(levels.get(..depth)?.join("/"))).collect();
        let mut files = Vec::new();
        let controllers: Vec<&&str> = wanted.iter().filter(|controller| hierarchy.has(controller)).collect();
        if hierarchy.version == Version::V2 && !controllers.is_empty() {
            let enable = controllers.iter().map(|controller| format!("+{controller}")).collect::<Vec<_>>().join(" ");
            for parent in paths.iter().rev().skip(1).rev() {
                files.push((format!("{parent}/cgroup.subtree_control"), enable.clone()));
            }
        }
        let plan = place.plan();
        for (path, limits) in paths.iter().rev().take(2).rev().zip([&plan.job, &plan.step]) {
            for (name, value) in written(hierarchy, limits) {
                // Swap is limited only where the kernel counts it, and old kernels have no slack.
                if base.join(name).exists() {
                    files.push((format!("{path}/{name}"), value));
                }
            }
        }
        let files = files.into_iter().map(|(file, value)| Ok((CString::new(file)?, value)));
        let path = |path: PathBuf| CString::new(path.into_os_string().into_vec());
        let step = |file: &str| path(base.join(paths.last().map_or("", String::as_str)).join(file));
        // A kernel before 5.14 has no cgroup.kill, and no cgroup has all the others.
        let has_kill = hierarchy.version == Version::V2 && base.join("cgroup.kill").exists();
        let usage = USAGE.iter().filter(|file| base.join(file).exists());
        Ok(Self {
            base: path(base.clone())?,
            whole: paths.iter().map(|name| path(base.join(name))).collect::<Result<_, _>>()?,
            procs: step("cgroup.procs")?,
            kill: has_kill.then(|| step("cgroup.kill")).transpose()?,
            usage: usage.map(|file| step(file)).collect::<Result<_, _>>()?,
            directories: paths.into_iter().map(CString::new).collect::<Result<_, _>>()?,
            files: files.collect::<Result<_, Failure>>()?,
        })
    }
}

/// What `Usage::add` reads of a step, on either version.
const USAGE: [&str; 20] = [
    "cpu.stat",
    "cpu.pressure",
    "memory.pressure",
    "io.pressure",
    "memory.peak",
    "memory.swap.peak",
    "memory.events",
    "memory.stat",
    "pids.events",
    "pids.peak",
    "io.stat",
    "cpuacct.usage",
    "cpuacct.usage_user",
    "cpuacct.usage_sys",
    "memory.max_usage_in_bytes",
    "memory.failcnt",
    "memory.oom_control",
    "memory.kmem.usage_in_bytes",
    "blkio.throttle.io_service_bytes_recursive",
    "blkio.throttle.io_serviced_recursive",
];

/// The files of one directory and their values, in the order in which the kernel takes them.
fn written(hierarchy: &Hierarchy, limits: &Limits) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    let cpu = limits.cpu.filter(|_| hierarchy.has("cpu"));
    let ram = limits.ram.filter(|_| hierarchy.has("memory"));
    let swap = limits.swap.filter(|_| hierarchy.has("memory"));
    match hierarchy.version {
        Version::V1 => {
            // The period stays as the kernel has it in a new directory.
            files.extend(cpu.map(|cpu| ("cpu.cfs_quota_us", cpu.quota_us.to_string())));
            files.extend(cpu.map(|cpu| ("cpu.cfs_burst_us", cpu.slack_us().to_string())));
            files.extend(ram.map(|ram| ("memory.limit_in_bytes", ram.to_string())));
            files.extend(swap.map(|both| ("memory.memsw.limit_in_bytes", (both.ram + both.swap).to_string())));
        }
        Version::V2 => {
            files.extend(cpu.map(|cpu| ("cpu.max", format!("{} {}", cpu.quota_us, cpu.period_us))));
            files.extend(cpu.map(|cpu| ("cpu.max.burst", cpu.slack_us().to_string())));
            files.extend(ram.map(|ram| ("memory.max", ram.to_string())));
            files.extend(swap.map(|swap| ("memory.swap.max", swap.swap.to_string())));
        }
    }
    files
}

/// Closed when dropped; nothing else.
struct Descriptor(libc::c_int);

impl Descriptor {
    fn open(directory: libc::c_int, path: &CString, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: a descriptor that is open (or AT_FDCWD), and a NUL-terminated path.
        let fd = unsafe { libc::openat(directory, path.as_ptr(), flags | libc::O_CLOEXEC) };
        check(fd.into()).map(|_| Self(fd))
    }

    fn write(&self, value: &str) -> io::Result<()> {
        // SAFETY: an open descriptor, and a buffer of this length.
        check(unsafe { libc::write(self.0, value.as_ptr().cast(), value.len()) } as i64).map(|_| ())
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: an open descriptor, and a buffer of this length.
        check(unsafe { libc::pread(self.0, buffer.as_mut_ptr().cast(), buffer.len(), 0) } as i64)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, which nobody uses any more.
        unsafe { libc::close(self.0) };
    }
}

/// With those errors that say that another step is there, or has just gone with what both had.
fn check_but(known: &[i32], result: libc::c_int) -> io::Result<()> {
    match check(result.into()) {
        Err(error) if error.raw_os_error().is_some_and(|errno| known.contains(&errno)) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn check(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
