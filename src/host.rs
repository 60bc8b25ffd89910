// SPDX-License-Identifier: GPL-2.0-or-later
//! What a fence needs to know about this host: which hierarchies to use, and below which directory.

use crate::cgroup::handing_down::not_given;
use crate::cgroup::kernel::LoadedScheduler;
use crate::cgroup::layout::{Hierarchy, Layout, LayoutKind, V1_IO};
use crate::config::Config;
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::job::Name;
use crate::sys::dir::Dir;
use crate::sys::systemd::is_systemd;

/// jobfence's directory without systemd.
const PLAIN_BASE: &str = "jobfence";
/// jobfence's directory under systemd: the delegated scope that jobfence.service makes at boot.
pub const SYSTEMD_BASE: &str = "jobfence.slice/jobfence.scope";

/// What was found on the host, and what of it is used.
#[derive(Debug)]
pub struct Host {
    /// Every hierarchy below `CgroupMountpoint`.
    pub layout: Layout,
    /// Whether systemd is the service manager: sd_booted(3).
    pub systemd: bool,
    /// jobfence's directory in each hierarchy, relative to its root.
    pub base: String,
    /// The id of this boot.
    pub boot_id: String,
    /// The pid namespace of this process, as `/proc/self/ns/pid` names it.
    pub pid_namespace: String,
    /// The scheduler that is loaded into the kernel, if any.
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

    /// The same; if no cgroups can be seen, without them, and the reason. Processes can still be tracked.
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
        // Kernels before 6.12 have no such directory; if /sys is not mounted, nothing is known.
        let scheduler = Dir::open(LoadedScheduler::ATTRIBUTES).ok().and_then(|dir| LoadedScheduler::find(&dir));
        Ok(Self { layout, systemd, base, boot_id, pid_namespace, scheduler, proc })
    }

    /// Whether this process is in another pid namespace than the host's first, whose number is the kernel's `PROC_PID_INIT_INO`.
    pub fn is_in_container(&self) -> bool {
        self.pid_namespace != "pid:[4026531836]"
    }

    /// If several slurmd share this host, each has its own branch of the tree, named after its node (`SLURMD_NODENAME`). A single slurmd's
    /// node has the host's own name. In a container both names are the container's.
    pub fn node_level(&self, node: Option<String>) -> Result<Option<Name>> {
        let Some(node) = node else { return Ok(None) };
        let hostname = nix::unistd::gethostname().unwrap_or_default();
        let hostname = hostname.to_string_lossy();
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let alone = short(&hostname) == short(&node) && !self.is_in_container();
        if alone { Ok(None) } else { Name::new(node).map(Some) }
    }

    /// The hierarchies in which every step gets a directory: those of the CPU and memory controllers, the one that counts CPU time, and the
    /// one through which processes are killed.
    ///
    /// `wanted` are the controllers that limits will be written to. One that is in no hierarchy is skipped, see `missing`.
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
        let name = if controller == "io" { V1_IO } else { controller };
        let is_off = self.proc.read("cgroups").is_ok_and(|text| is_switched_off(&text, name));
        let what = match self.layout.kind() {
            LayoutKind::Hybrid | LayoutKind::Legacy if !is_off => format!("mount it (mount -t cgroup -o {name} …)"),
            _ => format!(
                "the kernel does not offer it: remove cgroup_disable={name} from its command line, or add cgroup_enable={name} \
                 where the distribution has it off, and boot again"
            ),
        };
        Some(error.hint(format!("{what}; or switch the limit off in jobfence.conf")))
    }

    /// The cgroup2 controllers that are not handed down to jobfence's directory, each with the cause. Empty if the directory itself is
    /// missing.
    pub fn not_handed_down(&self, wanted: &[&'static str]) -> Vec<(&'static str, Error)> {
        let Some(unified) = self.layout.unified() else { return Vec::new() };
        let base = unified.open().and_then(|root| self.base.split('/').try_fold(root, |dir, name| dir.child(name)));
        let Ok(base) = base else { return Vec::new() };
        let theirs = wanted.iter().filter(|controller| unified.has(controller));
        theirs
            .filter_map(|controller| Some((*controller, not_given(&base, unified, controller, self.systemd)?)))
            .collect()
    }
}

/// Hardware threads of the core that has most of them. `None`: the kernel does not say.
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

/// Whether the kernel has a controller that is switched off: cgroups(7), `/proc/cgroups`.
fn is_switched_off(cgroups: &str, controller: &str) -> bool {
    cgroups.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(controller) && words.nth(2) == Some("0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_the_kernel_has_off_is_not_to_be_mounted() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t30\t1\nmemory\t0\t30\t0\npids\t0\t1\t1\n";
        let off = |name: &str| is_switched_off(text, name);
        assert_eq!(["cpu", "memory", "pids", "blkio"].map(off), [false, true, false, false]);
    }
}
