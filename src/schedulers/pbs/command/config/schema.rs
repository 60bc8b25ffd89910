// SPDX-License-Identifier: GPL-2.0-or-later
//! The keys of OpenPBS's cgroup hook (pbs_cgroups.CF), and the form of each value.

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueForm {
    /// `true`, `false`, or a text that says for which hosts or vnode types it is true.
    Switch,
    /// Any text.
    Text,
    /// A list of texts.
    Names,
    /// An amount of memory.
    Size,
    /// A number from the first to the second, both included.
    Number(f64, f64),
    /// CPU numbers and ranges, as one text or a list.
    CpuNumbers,
    /// A list of lines for devices.allow, and of device names with their access.
    Devices,
}

/// The section of keys outside all subsystems.
pub const TOP: &str = "";

/// The subsystems that the hook knows, each a section of `cgroup`.
pub const SUBSYSTEMS: [&str; 15] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "memsw",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
    "systemd",
];

/// The keys that the top and each subsystem have.
const EVERYWHERE: [(&str, ValueForm); 5] = [
    ("enabled", ValueForm::Switch),
    ("exclude_hosts", ValueForm::Names),
    ("exclude_vntypes", ValueForm::Names),
    ("include_hosts", ValueForm::Names),
    ("run_only_on_hosts", ValueForm::Names),
];

/// The longest time that a key may have, in seconds.
const DAY: f64 = 86_400.0;

/// The keys of single sections.
const KEYS: &[(&str, &str, ValueForm)] = &[
    (TOP, "cgroup_prefix", ValueForm::Text),
    (TOP, "cgroup_lock_file", ValueForm::Text),
    (TOP, "discover_gpus", ValueForm::Switch),
    (TOP, "nvidia-smi", ValueForm::Text),
    (TOP, "periodic_resc_update", ValueForm::Switch),
    (TOP, "vnode_per_numa_node", ValueForm::Switch),
    (TOP, "online_offlined_nodes", ValueForm::Switch),
    (TOP, "online_nodes_min_delay", ValueForm::Number(0.0, DAY)),
    (TOP, "use_hyperthreads", ValueForm::Switch),
    (TOP, "ncpus_are_cores", ValueForm::Switch),
    (TOP, "kill_timeout", ValueForm::Number(0.0, DAY)),
    (TOP, "server_timeout", ValueForm::Number(0.0, DAY)),
    (TOP, "job_setup_timeout", ValueForm::Number(0.0, DAY)),
    (TOP, "placement_type", ValueForm::Text),
    (TOP, "propagate_vntype_to_server", ValueForm::Switch),
    (TOP, "manage_rlimit_as", ValueForm::Switch),
    ("cpu", "cfs_period_us", ValueForm::Number(1000.0, 1_000_000.0)),
    ("cpu", "cfs_quota_fudge_factor", ValueForm::Number(0.01, 10.0)),
    ("cpu", "enforce_per_period_quota", ValueForm::Switch),
    ("cpu", "zero_cpus_shares_fraction", ValueForm::Number(0.0, 1024.0)),
    ("cpu", "zero_cpus_quota_fraction", ValueForm::Number(0.001, 1024.0)),
    ("cpuset", "exclude_cpus", ValueForm::CpuNumbers),
    ("cpuset", "mem_fences", ValueForm::Switch),
    ("cpuset", "mem_hardwall", ValueForm::Switch),
    ("cpuset", "memory_spread_page", ValueForm::Switch),
    ("cpuset", "allow_zero_cpus", ValueForm::Switch),
    ("devices", "allow", ValueForm::Devices),
    ("memory", "soft_limit", ValueForm::Switch),
    ("memory", "default", ValueForm::Size),
    ("memory", "enforce_default", ValueForm::Switch),
    ("memory", "exclhost_ignore_default", ValueForm::Switch),
    ("memory", "reserve_percent", ValueForm::Number(0.0, 100.0)),
    ("memory", "reserve_amount", ValueForm::Size),
    ("memory", "vnode_hidden_mb", ValueForm::Number(0.0, 1e12)),
    ("memory", "swappiness", ValueForm::Number(0.0, 200.0)),
    ("memsw", "default", ValueForm::Size),
    ("memsw", "enforce_default", ValueForm::Switch),
    ("memsw", "exclhost_ignore_default", ValueForm::Switch),
    ("memsw", "reserve_percent", ValueForm::Number(0.0, 100.0)),
    ("memsw", "reserve_amount", ValueForm::Size),
    ("memsw", "vnode_hidden_mb", ValueForm::Number(0.0, 1e12)),
    ("memsw", "manage_cgswap", ValueForm::Switch),
    ("hugetlb", "default", ValueForm::Size),
    ("hugetlb", "enforce_default", ValueForm::Switch),
    // The hook's own defaults have this key, but the hook never reads it.
    ("hugetlb", "enforce_defaults", ValueForm::Switch),
    ("hugetlb", "exclhost_ignore_default", ValueForm::Switch),
    ("hugetlb", "reserve_percent", ValueForm::Number(0.0, 100.0)),
    ("hugetlb", "reserve_amount", ValueForm::Size),
    ("hugetlb", "vnode_hidden_mb", ValueForm::Number(0.0, 1e12)),
];

/// The keys of one section.
pub fn keys_of(section: &str) -> impl Iterator<Item = (&'static str, ValueForm)> {
    let own = KEYS.iter().filter(move |(of, ..)| *of == section).map(|(_, name, form)| (*name, *form));
    let mount = (section != TOP).then_some(("mount_path", ValueForm::Text));
    EVERYWHERE.into_iter().chain(mount).chain(own)
}
