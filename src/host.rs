// SPDX-License-Identifier: GPL-2.0-or-later
//! This host as a fence needs to know it: which hierarchies to use, and below which directory.

use std::path::Path;

use nix::errno::Errno;

use crate::cgroup::cpuset;
use crate::cgroup::kernel::LoadedScheduler;
use crate::cgroup::layout::{Hierarchy, Kind, Layout, V1_IO, Version};
use crate::config::Config;
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::job::Name;
use crate::sys::dir::Dir;

/// Our directory where systemd does not rule.
const PLAIN_BASE: &str = "jobfence";
/// Our directory under systemd: the delegated scope that jobfence.service makes at boot.
pub const SYSTEMD_BASE: &str = "jobfence.slice/jobfence.scope";

/// What was found, and what will be used of it.
#[derive(Debug)]
pub struct Host {
    /// Every hierarchy below `CgroupMountpoint`.
    pub layout: Layout,
    /// Whether systemd is the service manager: sd_booted(3).
    pub systemd: bool,
    /// Our directory in each hierarchy, relative to its root.
    pub base: String,
    /// The id of this boot.
    pub boot_id: String,
    /// The pid namespace of this process, as `/proc/self/ns/pid` names it.
    pub pid_namespace: String,
    /// Who schedules in the kernel's place, if anybody does.
    pub scheduler: Option<LoadedScheduler>,
    /// Opened while `/proc` is the host's: Slurm's `contain_spank` runs callbacks where it may be another.
    pub proc: Dir,
}

impl Host {
    /// Reads the host.
    pub fn read(config: &Config) -> Result<Self> {
        let proc = Dir::open("/proc")?;
        let layout = Layout::read(&proc, &config.cgroup_mountpoint)?;
        Self::with(layout, proc, config)
    }

    /// The same; where no cgroups can be seen, without them, and why. Processes can be looked after all the same.
    pub fn read_what_there_is(config: &Config) -> Result<(Self, Option<Error>)> {
        match Self::read(config) {
            Ok(host) => Ok((host, None)),
            Err(error) => {
                let host = Self::with(Layout { hierarchies: Vec::new() }, Dir::open("/proc")?, config)?;
                Ok((host, Some(error)))
            }
        }
    }

    /// Whether any cgroups can be seen.
    pub fn has_cgroups(&self) -> bool {
        !self.layout.hierarchies.is_empty()
    }

    fn with(layout: Layout, proc: Dir, config: &Config) -> Result<Self> {
        let systemd = is_systemd();
        let default = if systemd { SYSTEMD_BASE } else { PLAIN_BASE };
        let base = config.cgroup_base.clone().unwrap_or_else(|| default.to_owned());
        let boot_id = proc.read_value("sys/kernel/random/boot_id")?.trim().to_owned();
        let pid_namespace = nix::fcntl::readlinkat(&proc, "self/ns/pid")
            .map_err(|errno| Error::os("read", "/proc/self/ns/pid", errno))?
            .to_string_lossy()
            .into_owned();
        // Where /sys is not mounted nothing is known of it.
        let scheduler = Dir::open("/sys").ok().and_then(|sys| LoadedScheduler::find(&sys));
        Ok(Self { layout, systemd, base, boot_id, pid_namespace, scheduler, proc })
    }

    /// Whether this process has another pid namespace than the host's first, whose number is the kernel's
    /// `PROC_PID_INIT_INO`.
    pub fn is_in_container(&self) -> bool {
        self.pid_namespace != "pid:[4026531836]"
    }

    /// Where several slurmd share this host, each has its own branch of the tree, named as the node that slurmd says
    /// (`SLURMD_NODENAME`); it is the host's own name where there is only one. In a container both names are the container's.
    pub fn node_level(&self, node: Option<String>) -> Result<Option<Name>> {
        let Some(node) = node else { return Ok(None) };
        let hostname = nix::unistd::gethostname().unwrap_or_default();
        let hostname = hostname.to_string_lossy();
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let alone = short(&hostname) == short(&node) && !self.is_in_container();
        if alone { Ok(None) } else { Name::new(node).map(Some) }
    }

    /// The hierarchies in which every step gets a directory: those of the CPU and memory controllers, the one that counts
    /// CPU time, and the one through which processes are killed.
    ///
    /// `wanted` are the controllers that limits will be written to; one that is nowhere is left out, see `missing`.
    pub fn hierarchies(&self, wanted: &[&'static str]) -> Result<Vec<&Hierarchy>> {
        let mut used: Vec<&Hierarchy> = Vec::new();
        let mut add = |hierarchy| {
            if !used.contains(&hierarchy) {
                used.push(hierarchy);
            }
        };
        // cgroup2 first: attaching there makes a process killable, before it is limited elsewhere.
        match (self.layout.unified(), self.layout.kind()) {
            (Some(unified), _) => add(unified),
            (None, _) => {
                for controller in ["freezer", "cpuacct"] {
                    self.layout.with_controller(controller).into_iter().for_each(&mut add);
                }
            }
        }
        for controller in wanted {
            self.layout.with_controller(controller).into_iter().for_each(&mut add);
        }
        if used.is_empty() {
            return Err(Error::new(
                "no cgroup hierarchy can hold a job: neither cgroup2 nor the v1 freezer is mounted",
            ));
        }
        Ok(used)
    }

    /// Why limits of this controller cannot be set, if it is in no hierarchy.
    pub fn missing(&self, controller: &str) -> Option<Error> {
        if self.layout.with_controller(controller).is_some() {
            return None;
        }
        let error = Error::new(format!("the {controller} controller is in no cgroup hierarchy of this host"));
        Some(match self.layout.kind() {
            Kind::Unified => error.hint(format!(
                "it is missing from cgroup.controllers at the root: remove cgroup_disable={controller} from the kernel's \
                 command line, or switch the limit off in jobfence.conf"
            )),
            Kind::Hybrid | Kind::Legacy => {
                let name = if controller == "io" { V1_IO } else { controller };
                error.hint(format!("mount it (mount -t cgroup -o {name} …), or switch the limit off in jobfence.conf"))
            }
        })
    }

    /// The controllers of cgroup2 that are not handed down to our directory, with whose doing that is; none where the directory
    /// itself is missing.
    pub fn withheld(&self, wanted: &[&'static str]) -> Vec<(&'static str, Error)> {
        let Some(unified) = self.layout.unified() else { return Vec::new() };
        let base = unified.open().and_then(|root| self.base.split('/').try_fold(root, |dir, name| dir.child(name)));
        let Ok(base) = base else { return Vec::new() };
        let theirs = wanted.iter().filter(|controller| unified.has(controller));
        theirs
            .filter_map(|controller| Some((*controller, not_given(&base, unified, controller, self.systemd)?)))
            .collect()
    }

    /// Opens our directory in a hierarchy, making it where that is ours to do, with the controllers enabled for what is below.
    pub fn open_base(&self, hierarchy: &Hierarchy, wanted: &[&'static str]) -> Result<Dir> {
        let mut dir = hierarchy.open()?;
        // systemd owns cgroup2: only the directory that it delegated to us is ours (CGROUP_DELEGATION.md).
        let delegated = self.systemd && hierarchy.version == Version::V2;
        for name in self.base.split('/') {
            if !delegated {
                enable(&dir, hierarchy, wanted, false)?;
                let above = dir;
                dir = match above.child(name) {
                    // Only a first launch after boot finds none. Of two at once each sees to use_hierarchy before it makes
                    // anything below.
                    Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                        let dir = above.ensure(name)?;
                        count_children(&dir, hierarchy)?;
                        dir
                    }
                    other => other?,
                };
                fill(&above, &dir, hierarchy, true)?;
                continue;
            }
            dir = dir.child(name).map_err(|error| match error.kernel_errno() {
                Some(Errno::ENOENT) => error.hint(
                    "the delegated scope does not exist: 'systemctl enable --now jobfence.service' makes it \
                     (without an installation, 'jobfence hold')",
                ),
                _ => error,
            })?;
        }
        if delegated && is_delegated(&dir) == Some(false) {
            return Err(Error::new("systemd has not delegated the directory")
                .at(dir.path())
                .hint("jobfence.service makes one that is, if this is NAME.slice/NAME.scope: see CgroupBase"));
        }
        enable(&dir, hierarchy, wanted, false)?;
        Ok(dir)
    }
}

/// sd_booted(3).
pub fn is_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Why a cgroup2 directory does not have a controller that the root has: which directory above it does not hand it down, and
/// what to write where. `None` if the directory has it, or is gone.
pub fn not_given(dir: &Dir, hierarchy: &Hierarchy, controller: &str, systemd: bool) -> Option<Error> {
    let has = |text: &str| text.split_whitespace().any(|on| on == controller);
    let given = dir.read_value("cgroup.controllers").ok().filter(|given| !has(given))?;
    let below = dir.path().strip_prefix(&hierarchy.mount).ok()?;
    let mut above = hierarchy.mount.clone();
    let mut lacking = Vec::new();
    for name in below {
        let file = above.join("cgroup.subtree_control");
        if !std::fs::read_to_string(&file).is_ok_and(|on| has(&on)) {
            lacking.push((file, above.file_name().unwrap_or_default().to_string_lossy().into_owned()));
        }
        above.push(name);
    }
    let (stops_at, slice) = lacking.first()?;
    let stops_at = stops_at.display();
    let is_unit = |name: &&str| [".scope", ".service", ".slice"].iter().any(|kind| name.ends_with(kind));
    let unit = below.iter().rev().filter_map(|name| name.to_str()).find(is_unit).filter(|_| systemd);
    // Slurm's daemon makes its scope, and only where there is none.
    let again = match unit {
        Some(unit) if unit.ends_with("slurmstepd.scope") => {
            format!("when no job runs stop slurmd and {unit}, and start slurmd again")
        }
        _ => "stop jobfence.service when no job runs, and start it again".to_owned(),
    };
    let error = Error::new(format!("the cgroup does not have the {controller} controller:")).at(dir.path());
    Some(error.value(given.trim()).hint(match unit {
        Some(_) if UNKNOWN_TO_SYSTEMD.contains(&controller) => {
            let files: Vec<String> = lacking.iter().map(|(file, _)| file.display().to_string()).collect();
            format!(
                "systemd does not know it, and leaves it as it is: after each boot, before slurmd starts, for file in {}; do echo \
                 +{controller} >$file; done",
                files.join(" ")
            )
        }
        Some(unit) => format!(
            "{stops_at} lacks it: {unit} needs Delegate=yes (or Delegate= with {controller} in its list), and {slice} may not \
             have DisableControllers={controller} (systemctl show -p Delegate -p DelegateControllers -p DisableControllers \
             {unit} {slice}); then {again}"
        ),
        None => format!("{stops_at} lacks it: echo +{controller} >{stops_at}"),
    }))
}

/// Controllers of cgroup2 that systemd neither hands down nor takes away (`CGroupController`, src/basic/cgroup-util.h).
const UNKNOWN_TO_SYSTEMD: [&str; 3] = ["hugetlb", "rdma", "misc"];

/// Whether systemd says that a directory is delegated; `None` where it cannot say so (a file system without xattrs).
pub fn is_delegated(dir: &Dir) -> Option<bool> {
    let path = dir.handle_path();
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
    let mut unsupported = false;
    for name in [c"trusted.delegate", c"user.delegate"] {
        let mut value = [0u8; 8];
        // SAFETY: both names are NUL-terminated, and the kernel writes at most the length given into the buffer.
        let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        if n == 1 && value.first() == Some(&b'1') {
            return Some(true);
        }
        unsupported |= n < 0 && matches!(Errno::last(), Errno::EOPNOTSUPP | Errno::EPERM);
    }
    if unsupported { None } else { Some(false) }
}

/// Lets the children of a cgroup2 directory have these controllers. Nothing to do on v1.
///
/// One by one, only what is missing, memory before the others: while a process sits in the directory itself, enabling memory
/// is refused, but enabling a threaded controller (cpu, pids) would turn the directory into a `domain threaded` one, in
/// which nothing can be fenced any more. Then it is read what is really on.
///
/// A directory that was made a moment ago (`new`) has no process in it and no controller on, so all go on at once.
pub fn enable(dir: &Dir, hierarchy: &Hierarchy, wanted: &[&'static str], new: bool) -> Result<()> {
    const FILE: &str = "cgroup.subtree_control";
    let mut wanted: Vec<&str> = wanted.iter().copied().filter(|c| hierarchy.hands_down(c)).collect();
    wanted.sort_by_key(|controller| *controller != "memory");
    let is_on = |text: &str, controller: &str| text.split_whitespace().any(|on| on == controller);
    if wanted.is_empty() {
        return Ok(());
    }
    if new {
        let all: Vec<String> = wanted.iter().map(|controller| format!("+{controller}")).collect();
        match dir.write_and_read(FILE, &all.join(" ")) {
            Ok(on) if wanted.iter().all(|controller| is_on(&on, controller)) => return Ok(()),
            // One by one, to say which.
            _ => {}
        }
    }
    let on = dir.read_value(FILE)?;
    wanted.retain(|controller| !is_on(&on, controller));
    if wanted.is_empty() {
        return Ok(());
    }
    if dir.read_if_there("cgroup.type")?.is_some_and(|kind| kind.trim() != "domain") {
        return Err(Error::new("the cgroup is threaded, so no job can be fenced below it:")
            .at(dir.path())
            .hint("a process sat directly in it when a controller was enabled; remove the cgroup (restart its unit)"));
    }
    if !dir.read("cgroup.procs")?.is_empty() && dir.path() != hierarchy.mount {
        return Err(Error::new(
            "processes sit directly in the cgroup, so it cannot give controllers to those below it:",
        )
        .at(dir.path())
        .hint("only its sub-cgroups may have processes; if jobfence.service is just starting, try again"));
    }
    for controller in &wanted {
        dir.write(FILE, &format!("+{controller}")).map_err(|error| match error.kernel_errno() {
            Some(Errno::EBUSY) => {
                error.hint("a process sits directly in this cgroup; only its sub-cgroups may have some")
            }
            // Or the directory has just gone away, and the caller makes it again.
            Some(Errno::ENOENT) => not_given(dir, hierarchy, controller, is_systemd()).unwrap_or(error),
            _ => error,
        })?;
    }
    let on = dir.read_value(FILE)?;
    match wanted.iter().find(|controller| !is_on(&on, controller)) {
        None => Ok(()),
        Some(controller) => Err(Error::new(format!("the {controller} controller was enabled, but is not on in"))
            .at(dir.path().join(FILE))
            .value(on.trim())),
    }
}

/// Makes a v1 memory directory count what its children use, which kernels before 5.11 do only when told to.
fn count_children(dir: &Dir, hierarchy: &Hierarchy) -> Result<()> {
    const FILE: &str = "memory.use_hierarchy";
    if hierarchy.version == Version::V1
        && hierarchy.has("memory")
        && dir.read_if_there(FILE)?.is_some_and(|text| text.trim() == "0")
    {
        dir.write(FILE, "1")?;
    }
    Ok(())
}

/// Has a v1 cpuset directory have CPUs and memory nodes, without which no process can be put into it; `all`: no fewer than the one
/// around it. Nothing to do in other hierarchies.
pub fn fill(parent: &Dir, dir: &Dir, hierarchy: &Hierarchy, all: bool) -> Result<()> {
    if hierarchy.version == Version::V1 && hierarchy.has("cpuset") {
        return cpuset::inherit(parent, dir, all);
    }
    Ok(())
}

/// Hardware threads of the core that has most of them; `None` where the kernel does not say.
pub fn threads_per_core() -> Option<usize> {
    let cpus = Dir::open("/sys/devices/system/cpu").ok()?;
    let of_cpu = |name: &String| {
        let siblings =
            cpus.child(name).and_then(|cpu| cpu.child("topology")).and_then(|t| t.read("thread_siblings_list"));
        CpuList::parse(&siblings.ok()?).map(|siblings| siblings.len())
    };
    let is_cpu = |name: &String| name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok());
    cpus.list(true).ok()?.iter().filter(|name| is_cpu(name)).filter_map(of_cpu).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn hierarchy(mount: &Path, version: Version) -> Hierarchy {
        let controllers = ["cpu", "memory"].map(str::to_owned).into();
        Hierarchy { version, mount: mount.into(), root: "/".into(), controllers, name: None }
    }

    #[test]
    fn who_does_not_hand_a_controller_down_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let scope = temp.path().join("jobfence.slice/jobfence.scope");
        fs::create_dir_all(&scope).unwrap();
        fs::write(temp.path().join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        fs::write(temp.path().join("jobfence.slice/cgroup.subtree_control"), "cpu\n").unwrap();
        fs::write(scope.join("cgroup.controllers"), "cpu\n").unwrap();
        let hierarchy = hierarchy(temp.path(), Version::V2);
        let dir = Dir::open(&scope).unwrap();
        let mount = temp.path().display();

        let plain = not_given(&dir, &hierarchy, "memory", false).unwrap().to_string();
        assert!(plain.contains("does not have the memory controller") && plain.contains("(value \"cpu\")"), "{plain}");
        let line = format!("echo +memory >{mount}/jobfence.slice/cgroup.subtree_control");
        assert!(plain.contains(&line), "{plain}");
        let systemd = not_given(&dir, &hierarchy, "memory", true).unwrap().to_string();
        assert!(systemd.contains("jobfence.scope needs Delegate=yes"), "{systemd}");
        assert!(systemd.contains("DisableControllers=memory") && !systemd.contains("echo"), "{systemd}");
        let unknown = not_given(&dir, &hierarchy, "hugetlb", true).unwrap().to_string();
        let files = format!(
            "in {mount}/cgroup.subtree_control {mount}/jobfence.slice/cgroup.subtree_control; do echo +hugetlb"
        );
        assert!(unknown.contains(&files), "{unknown}");

        // The outermost is where it stops.
        fs::write(temp.path().join("cgroup.subtree_control"), "cpu\n").unwrap();
        let root = not_given(&dir, &hierarchy, "memory", false).unwrap().to_string();
        assert!(root.contains(&format!("echo +memory >{mount}/cgroup.subtree_control")), "{root}");

        assert!(not_given(&dir, &hierarchy, "cpu", false).is_none());
        fs::remove_dir_all(&scope).unwrap();
        assert!(not_given(&dir, &hierarchy, "memory", false).is_none(), "it is gone");
    }

    /// The kernel would not refuse a threaded controller there: it would turn the directory into one in which nothing can be
    /// fenced any more.
    #[test]
    fn nothing_is_enabled_beside_processes_or_in_a_threaded_cgroup() {
        let temp = tempfile::tempdir().unwrap();
        let scope = temp.path().join("jobfence");
        fs::create_dir(&scope).unwrap();
        let (hierarchy, dir) = (hierarchy(temp.path(), Version::V2), Dir::open(&scope).unwrap());
        let control = scope.join("cgroup.subtree_control");
        for (kind, procs, message) in [
            ("domain\n", "12\n", "processes sit directly in the cgroup"),
            ("domain threaded\n", "", "the cgroup is threaded"),
        ] {
            for (file, text) in [("cgroup.controllers", "cpu memory\n"), ("cgroup.type", kind), ("cgroup.procs", procs)]
            {
                fs::write(scope.join(file), text).unwrap();
            }
            fs::write(&control, "").unwrap();
            let error = enable(&dir, &hierarchy, &["cpu", "memory"], false).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert_eq!(fs::read_to_string(&control).unwrap(), "", "{kind} something was written");
        }
    }

    /// As before Linux 5.11, on a host where nobody has seen to it (without systemd).
    #[test]
    fn an_old_memory_directory_is_made_to_count_its_children() {
        let temp = tempfile::tempdir().unwrap();
        let (file, dir) = (temp.path().join("memory.use_hierarchy"), Dir::open(temp.path()).unwrap());
        count_children(&dir, &hierarchy(temp.path(), Version::V1)).unwrap();
        assert!(!file.exists(), "newer kernels have no such file");
        for (version, after) in [(Version::V2, "0\n"), (Version::V1, "1")] {
            fs::write(&file, "0\n").unwrap();
            count_children(&dir, &hierarchy(temp.path(), version)).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.starts_with(after.trim()), "{text}");
        }
    }
}
