// SPDX-License-Identifier: GPL-2.0-or-later
//! Describes the host: cgroup hierarchies, the directories that jobs will be in, what protects their memory, which disks they use.

use std::path::{Path, PathBuf};

use jobfence::bytes::mebibytes;
use jobfence::cgroup::devices::{GpuDevice, gpus_of_node};
use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::io::{self, IoRules};
use jobfence::cgroup::layout::{self, Hierarchy, LayoutKind, Version};
use jobfence::cgroup::protection;
use jobfence::config::{Candidate, Config, DeniedDevices, Loaded, Percent, SwapSpace};
use jobfence::fence;
use jobfence::host::Host;
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};
use jobfence::schedulers::slurm::prolog::gpus::{self, GpuSources};
use jobfence::sys::dir::Dir;
use jobfence::sys::systemd::is_delegated;

use super::rows::Rows;
use crate::lend;
use crate::schedulers::slurm::dirs;
use crate::schedulers::slurm::node;

/// Says the sections; with `keys` the whole configuration as a file.
pub fn sections(rows: &mut Rows, loaded: &Loaded, slurm: Option<&Slurm>, keys: bool) {
    if keys {
        rows.keys = loaded.config.to_string();
    }
    for (header, settings) in loaded.sections() {
        if keys {
            rows.keys += &format!("{header}\n");
            settings.iter().for_each(|setting| rows.keys += &format!("{setting}\n"));
        } else {
            let keys: Vec<&str> = settings.iter().map(|setting| setting.key().name).collect();
            rows.fact("section", format!("{header} {}", keys.join(", ")));
        }
    }
    if loaded.asked().job && slurm.is_some_and(|slurm| !slurm.has_prolog()) {
        rows.remark(
            "sections",
            "slurm.conf has no Prolog=, so jobfence knows no job's QOS and account, nor the partition \
             of a job without a batch step: the strictest sections that the job could have hold; see 'jobfence \
             prolog' in jobfence(8)",
        );
    }
}

/// Which directories would be jobfence's.
#[derive(Default)]
pub struct OwnDirs {
    pub any: bool,
    /// Whether something is limited in them.
    pub limits: bool,
}

/// Prints the layout and the placement.
pub fn host(rows: &mut Rows, host: &Host, config: &Config, slurm: Option<&Slurm>, node: Option<&str>) -> OwnDirs {
    let kind = match host.layout.kind() {
        LayoutKind::Unified => "unified: cgroup v2 alone",
        LayoutKind::Hybrid => "hybrid: limits on cgroup v1, killing and counting on cgroup v2",
        LayoutKind::Legacy => "legacy: cgroup v1 alone",
    };
    rows.fact("layout", kind);
    rows.fact("systemd", if host.systemd { "is the service manager" } else { "is not running here" });
    if let Some(scheduler) = &host.scheduler {
        rows.fact("scheduler", scheduler);
    }
    let controllers = fence::controllers(config);
    let used = host.hierarchies(&controllers).unwrap_or_default();
    match slurm {
        Some(slurm) => {
            rows.fact("slurm.conf", slurm.file().display());
            match node {
                Some(node) if node == node::host() => {}
                Some(node) => rows.fact("node", node),
                None => rows.remark(
                    "node",
                    "unknown: no line NodeName= has a name of this host alone; --node says which one it is",
                ),
            }
        }
        None => rows
            .remark("slurm.conf", "was not found (SLURM_CONF can name it): assuming that Slurm uses no cgroups itself"),
    }
    let mut own = OwnDirs::default();
    for hierarchy in &host.layout.hierarchies {
        let mark = if used.contains(&hierarchy) { "used" } else { "-" };
        rows.fact("hierarchy", format!("{hierarchy}: {mark}"));
        if !used.contains(&hierarchy) {
            continue;
        }
        match slurm.map(|slurm| slurm.placement(hierarchy)) {
            Some(ByConfig::Overlay(because)) => {
                rows.fact("placement", format!("overlay, in Slurm's own directories: {because}"));
                overlay(rows, host, config, slurm, hierarchy);
                if lend::is_on(config) && hierarchy.has("memory") {
                    rows.remark(
                        "memory",
                        "MemoryPool: no memory is lent, since the memory of jobs is limited in Slurm's directories",
                    );
                }
                if !slurm.is_some_and(|slurm| slurm.makes_ours_first(hierarchy)) {
                    continue;
                }
                // Used until Slurm makes its own.
                own.any = true;
            }
            other => {
                let because = match other {
                    Some(ByConfig::Own(because)) => format!(": {because}"),
                    _ => String::new(),
                };
                rows.fact("placement", format!("own, below {}{because}", host.base));
                own.any = true;
                own.limits |= controllers.iter().any(|controller| hierarchy.has(controller));
                protected(rows, host, config, hierarchy, &hierarchy.mount.join(&host.base).to_string_lossy());
            }
        }
        delegation(rows, host, hierarchy);
    }
    own
}

/// Prints what is different if the limits are in Slurm's own directories.
fn overlay(rows: &mut Rows, host: &Host, config: &Config, slurm: Option<&Slurm>, hierarchy: &Hierarchy) {
    if hierarchy.has("memory") && config.constrain_ram_space && !slurm.is_some_and(Slurm::limits_memory) {
        rows.more(
            "memory is limited for each step, and not for a job as a whole: let Slurm do it \
             (TaskPlugin=task/cgroup, ConstrainRAMSpace=yes in cgroup.conf)",
        );
    }
    let swap = slurm.and_then(Slurm::swap_in_words).filter(|_| hierarchy.has("memory"));
    if let (Some(theirs), SwapSpace::Auto) = (swap, config.constrain_swap_space) {
        rows.more(format!("swap is as Slurm says, since it limits memory itself: {theirs}"));
    }
    for scope in dirs::scopes(hierarchy) {
        protected(rows, host, config, hierarchy, &scope.path().to_string_lossy());
    }
}

/// Prints whether jobfence's directory exists and is delegated.
fn delegation(rows: &mut Rows, host: &Host, hierarchy: &Hierarchy) {
    let base = || {
        hierarchy.open().and_then(|mut dir| {
            for name in host.base.split('/') {
                dir = dir.child(name)?;
            }
            Ok(dir)
        })
    };
    match base() {
        Ok(base) if hierarchy.version == Version::V2 && host.systemd => rows.fact(
            "delegation",
            format!(
                "{} {}",
                base.path().display(),
                match is_delegated(&base) {
                    Some(true) => "is delegated to us by systemd",
                    Some(false) => "is NOT delegated by systemd",
                    None => "exists (whether it is delegated cannot be read here)",
                }
            ),
        ),
        Ok(base) => rows.fact("delegation", format!("{} exists", base.path().display())),
        Err(error) if hierarchy.version == Version::V2 && host.systemd => rows.fact("delegation", error),
        Err(_) => rows.fact("delegation", format!("{}/{} will be made", hierarchy.mount.display(), host.base)),
    }
}

/// Prints which disks would be throttled, and what the kernel does not enforce. A target on no disk is a fault of its limit.
pub fn io(rows: &mut Rows, host: &Host, config: &Config) {
    let rules = [&config.io_max, &config.io_max_per_user, &config.io_max_per_task];
    let all = rules.into_iter().fold(IoRules::default(), |all, rules| all.at_most(rules));
    let Some(hierarchy) = host.layout.with_controller("io") else { return };
    let root = || hierarchy.open().ok().filter(|_| hierarchy.version == Version::V2);
    if config.io_weight.is_some() && !Dir::open("/sys").is_ok_and(|sys| io::weights_work(&sys, root().as_ref())) {
        rows.remark(
            "i/o",
            "IOWeight changes nothing now: no disk has the scheduler bfq (/sys/block/DISK/queue/scheduler) or, on \
             cgroup2, blk-iocost (io.cost.qos)",
        );
    }
    if all.is_empty() {
        return;
    }
    let Ok(disks) = Disks::read(&host.proc) else { return };
    for rule in all.iter() {
        if let Ok(disk) = disks.of(&rule.target) {
            rows.fact("i/o", format!("{} is on {} ({disk})", rule.target.display(), disks.name(disk)));
        }
    }
    if hierarchy.version == Version::V1 {
        rows.remark(
            "i/o",
            "cgroup v1 throttles each step by itself, and not all of a job or user together; it \
             throttles reading, and direct or synchronous writing, and not what the kernel writes out later from the \
             page cache. cgroup2 does all of this",
        );
    }
}

/// Prints how huge pages affect the memory of jobs, if there are any and they are counted.
pub fn huge_pages(rows: &mut Rows, host: &Host) {
    let Some(hierarchy) = host.layout.with_controller("memory") else { return };
    let pool = host.proc.read("meminfo").unwrap_or_default();
    let pool =
        pool.lines().find_map(|line| line.strip_prefix("Hugetlb:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let mounts = host.proc.read("self/mountinfo").unwrap_or_default();
    let count = layout::options(&mounts, &hierarchy.mount).contains(&"memory_hugetlb_accounting");
    if let Some(kib) = pool.filter(|kib: &u64| *kib > 0 && count) {
        rows.remark(
            "huge pages",
            format!(
                "{} of the node; what a job uses of them counts in its memory limit (memory_hugetlb_accounting), and \
             a process that finds no room for one there waits for ever: see MaxHugePages",
                mebibytes(kib.saturating_mul(1024))
            ),
        );
    }
}

/// Prints whether the protection of jobs' memory works below this directory, and if not, what to set: jobfence does not write above its own
/// directory or Slurm's.
fn protected(rows: &mut Rows, host: &Host, config: &Config, hierarchy: &Hierarchy, top: &str) {
    let wanted = [("memory.low", "MemoryLow", config.memory_low), ("memory.min", "MemoryMin", config.memory_min)];
    if hierarchy.version == Version::V1 || !hierarchy.has("memory") {
        return;
    }
    let mounts = host.proc.read("self/mountinfo").unwrap_or_default();
    let recursive = layout::options(&mounts, &hierarchy.mount).contains(&"memory_recursiveprot");
    let mount = hierarchy.mount.to_string_lossy();
    let below = top.strip_prefix(&*mount).unwrap_or(top);
    for (file, property, _) in wanted.into_iter().filter(|(.., percent)| *percent > Percent::ZERO) {
        match hierarchy.open().and_then(|root| protection::gap(&root, below, file, recursive)) {
            Ok(None) => {
                rows.fact("protection", format!("{file} of jobs has an effect: what is above them is protected, too"))
            }
            Ok(Some(path)) => {
                let remedy = match path.rsplit('/').next() {
                    Some(unit) if host.systemd => format!("systemctl set-property {unit} {property}=SIZE"),
                    _ => format!("echo SIZE >{mount}/{path}/{file}"),
                };
                rows.remark(
                    "protection",
                    format!(
                        "{file} of jobs has NO effect: {path} is not protected itself; protect it by as \
                     much as all jobs together are to have: {remedy}"
                    ),
                );
            }
            Err(error) => rows.fact("protection", format!("{file}: {error}")),
        }
    }
}

/// Prints which device is which GPU, if jobs are denied other jobs' GPUs: the source, and whether it is certain.
pub fn gpus(
    rows: &mut Rows,
    host: &Host,
    candidates: &[Candidate],
    slurm: Option<&Slurm>,
    slurm_conf: Option<PathBuf>,
    node: &str,
) {
    let denies = |candidate: &&Candidate| candidate.config.constrain_devices != DeniedDevices::None;
    let mut known: Vec<&GpuDevice> = Vec::new();
    for device in candidates.iter().filter(denies).filter_map(|candidate| candidate.config.gpu_device.as_ref()) {
        if !known.contains(&device) {
            known.push(device);
        }
    }
    if known.is_empty() {
        return;
    }
    let Some(slurm) = slurm else {
        for device in known {
            match gpus_of_node(device) {
                Ok(paths) if paths.is_empty() => rows.remark("gpus", format!("no device here is called {device}")),
                Ok(paths) => rows.fact("gpus", format!("by GPUDevice, in this order: {}", paths.join(", "))),
                Err(error) => rows.fact("gpus", error),
            }
        }
        return;
    };
    if !slurm.has_prolog() {
        rows.remark(
            "gpus",
            "slurm.conf has no Prolog=, so jobfence does not learn which GPUs a job has: no job can \
             use any; see 'jobfence prolog' in jobfence(8)",
        );
    }
    let sources = GpuSources { slurm_conf, proc: &host.proc, root: Path::new("/") };
    for device in known {
        match of_slurm(device, node, &sources) {
            Ok((by, paths)) => {
                let each = paths.iter().enumerate().map(|(position, path)| format!("GPU {position} is {path}"));
                rows.fact("gpus", format!("certain, by {by}: {}", each.collect::<Vec<_>>().join(", ")));
            }
            Err(why) => rows.remark(
                "gpus",
                format!(
                    "it is not certain which devices Slurm's GPUs are: {why}; have GPUDevice list their \
                 numbers in Slurm's order"
                ),
            ),
        }
    }
}

/// The source, and the device of each of Slurm's GPUs.
fn of_slurm(device: &GpuDevice, node: &str, sources: &GpuSources<'_>) -> Result<(&'static str, Vec<String>), String> {
    if let Some(paths) = device.in_order() {
        return Ok(("GPUDevice", paths.iter().map(|path| path.display().to_string()).collect()));
    }
    let paths = gpus::of_node(node, sources)?;
    paths.iter().try_for_each(|path| device.number_of(path).map(drop))?;
    Ok(("gres.conf and slurm.conf", paths))
}

/// Prints whether Slurm's cores can be mapped to the machine's, if jobs get cores of their own.
pub fn cores(rows: &mut Rows, loaded: &Loaded, node: Option<&str>) {
    if loaded.config.constrain_cores
        && let Ok(topology) = Topology::from_machine(loaded.file.as_deref(), node)
    {
        rows.fact(
            "cores",
            format!(
                "it is certain which of the machine's cores are Slurm's {} cores, each with {} hardware \
             threads",
                topology.cores(),
                topology.threads_per_core()
            ),
        );
    }
}
