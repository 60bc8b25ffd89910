// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence pbs-config`: converts the configuration of OpenPBS's cgroup hook to a jobfence.conf.

mod convert;
mod devices;
mod json;
mod schema;
mod site;
mod switch;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jobfence::config::OWN_FILE;
use jobfence::printable::printable;
use jobfence::schedulers::pbs::tasks;
use jobfence::sys::dir::Dir;

use crate::command::Failure;
use crate::schedulers::pbs::mom::{self, ForMom, MomSays};
use convert::Converted;
use json::JsonText;
use site::{SiteConfig, SiteNote};

#[derive(Args)]
pub struct PbsConfigOptions {
    /// The hook's configuration, usually pbs_cgroups.CF
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The width of lines, in characters, as in the pages and the shipped jobfence.conf.
const WIDTH: usize = 100;

/// Prints the jobfence.conf on stdout, and on stderr what differs from the hook. If the file has mistakes, only these are printed.
pub fn pbs_config(options: &PbsConfigOptions) -> Result<ExitCode, Failure> {
    let file = options.file.display().to_string();
    let text = fs::read_to_string(&options.file).map_err(|error| format!("read {file}: {error}"))?;
    match converted(&file, &text) {
        Ok((printed, notes)) => {
            print!("{printed}");
            for line in notes.iter().map(in_words).chain(of_this_host(&printed)) {
                eprintln!("jobfence: {line}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            for error in errors {
                eprintln!("jobfence: {error}");
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What else changes on this host, if a MoM runs here and its directory can be read.
fn of_this_host(printed: &str) -> Vec<String> {
    let Ok(proc) = Dir::open("/proc") else { return Vec::new() };
    let conf = ForMom {
        file: None,
        by_default: None,
        sections: printed.lines().filter(|line| line.starts_with('[')).collect(),
        has_gpus: printed.contains("\nGPUDevice="),
    };
    let all = tasks::homes(&proc).into_iter().flat_map(|home| mom::lines(&home.join("mom_priv"), &conf));
    // Facts are left out: that the hook is missing is expected before the change.
    all.filter_map(|said| if let MomSays::Hint(what) = said { Some(format!("on this host: {what}")) } else { None })
        .collect()
}

/// The jobfence.conf and the notes about it; or the mistakes in the file.
fn converted(file: &str, text: &str) -> Result<(String, Vec<SiteNote>), Vec<String>> {
    let site = SiteConfig::parse(JsonText { file, text })?;
    let converted = convert::convert(&site);
    let printed = printed(file, &converted);
    // If jobfence's own reader refuses the result, the conversion is wrong, not the file.
    match jobfence::config::parse("the result", printed.as_bytes()) {
        Ok(_) => Ok((printed, converted.notes)),
        Err(errors) => {
            let ours = errors.iter().map(|error| format!("a mistake in jobfence, please report it: {error}"));
            Err(ours.collect())
        }
    }
}

fn in_words(note: &SiteNote) -> String {
    match &note.place {
        Some(place) => format!("{place}: {}: {}", note.key, note.text),
        None => format!("{} (pbs_cgroups' default): {}", note.key, note.text),
    }
}

fn printed(file: &str, converted: &Converted) -> String {
    let mut out = String::new();
    comment(&mut out, "# ", &format!("Made by 'jobfence pbs-config' from {file}."));
    comment(&mut out, "# ", &format!("Copy it to each node as {OWN_FILE}, and run 'jobfence check' there."));
    if !converted.notes.is_empty() {
        out.push_str("#\n# What is done otherwise than by pbs_cgroups:\n");
    }
    for note in &converted.notes {
        comment(&mut out, "# - ", &format!("{}: {}", note.key, note.text));
    }
    out.push('\n');
    for (key, value) in &converted.general {
        let _ = writeln!(out, "{key}={value}");
    }
    for (header, lines) in &converted.sections {
        let _ = writeln!(out, "\n{header}");
        for (key, value) in lines {
            let _ = writeln!(out, "{key}={value}");
        }
    }
    out
}

/// Breaks a text into lines of a comment. A newline in a name from the site does not end the comment.
fn comment(out: &mut String, begin: &str, text: &str) {
    let mut line = begin.to_owned();
    let is_empty = |line: &str| line.chars().all(|c| "#- ".contains(c));
    let text = printable(text, '?');
    for word in text.split(' ') {
        if !is_empty(&line) && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = format!("#{}", " ".repeat(begin.len() - 1));
        }
        if !is_empty(&line) {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::schema::{SUBSYSTEMS, TOP, keys_of};
    use super::*;

    /// A file with the members `top` at its top, and `members` in one subsystem.
    fn file(top: &str, subsystem: &str, members: &str) -> String {
        let top = if top.is_empty() { String::new() } else { format!("{top}, ") };
        format!("{{{top}\"cgroup\": {{\"{subsystem}\": {{{members}}}}}}}")
    }

    fn of(text: &str) -> (String, Vec<String>) {
        let (printed, notes) = converted("F", text).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
        let lines = printed.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        (lines.collect::<Vec<_>>().join(" "), notes.iter().map(in_words).collect())
    }

    /// For each key, a value that has an effect, and the line or (a text with ": ") the note that comes of it.
    const EFFECTS: &[(&str, &str, &str, &str)] = &[
        (TOP, "enabled", "false", "Mode=off"),
        (TOP, "exclude_hosts", "[\"login*\", \"n1\"]", "[Host=login*,n1] Mode=observe"),
        (TOP, "exclude_vntypes", "[\"no_cgroups\"]", "[VnodeType=no_cgroups] Mode=observe"),
        (TOP, "include_hosts", "[\"n1\"]", "[Host=n1] Mode=enforce"),
        (TOP, "run_only_on_hosts", "[\"n1\", \"n2\"]", "[Host=n1,n2] Mode=enforce"),
        (TOP, "cgroup_prefix", "\"site\"", "cgroup_prefix: CgroupBase names"),
        (TOP, "cgroup_lock_file", "\"/x\"", "cgroup_lock_file: jobfence needs none."),
        (TOP, "discover_gpus", "true", "GPUDevice=/dev/nvidia%d"),
        (TOP, "nvidia-smi", "\"/usr/bin/nvidia-smi\"", "nvidia-smi: jobfence runs no program."),
        (TOP, "periodic_resc_update", "true", "periodic_resc_update: This is about what pbs_cgroups tells PBS"),
        (TOP, "vnode_per_numa_node", "true", "vnode_per_numa_node: It needs jobs that are pinned"),
        (TOP, "online_offlined_nodes", "true", "online_offlined_nodes: This is about what"),
        (TOP, "online_nodes_min_delay", "30", "online_nodes_min_delay: This is about what"),
        (TOP, "use_hyperthreads", "true", "use_hyperthreads: A CPU of jobfence is a hardware thread."),
        (TOP, "ncpus_are_cores", "true", "ncpus_are_cores: A CPU of jobfence is a hardware thread."),
        (TOP, "kill_timeout", "\"25.2\"", "CleanupTimeout=26"),
        (TOP, "server_timeout", "15", "server_timeout: This is about what"),
        (TOP, "job_setup_timeout", "30", "job_setup_timeout: jobfence needs none."),
        (TOP, "placement_type", "\"load_packed\"", "placement_type: It needs jobs that are pinned"),
        (TOP, "propagate_vntype_to_server", "true", "propagate_vntype_to_server: This is about what"),
        (TOP, "manage_rlimit_as", "true", "manage_rlimit_as: Set AddressSpace=pvmem in jobfence.CF"),
        ("cpu", "enabled", "true", "ConstrainCPUQuota=yes CPUPolicy=weight"),
        ("cpu", "cfs_period_us", "50000", "CPUQuotaPeriod=50000us"),
        ("cpu", "cfs_quota_fudge_factor", "1.125", "CPUQuotaPercent=112.5"),
        ("cpu", "enforce_per_period_quota", "true", "CPUPolicy=both"),
        ("cpu", "zero_cpus_shares_fraction", "0.01", "cpu.zero_cpus_shares_fraction: A job without CPUs has"),
        ("cpu", "zero_cpus_quota_fraction", "0.35", "ZeroCPUs=0.35"),
        ("cpuset", "enabled", "true", "ConstrainCPUQuota=yes CPUPolicy=quota"),
        ("cpuset", "exclude_cpus", "[0, \"4-7\"]", "cpuset.exclude_cpus: No CPU is kept free of jobs"),
        ("cpuset", "mem_fences", "true", "cpuset.mem_fences: It needs jobs that are pinned"),
        ("cpuset", "mem_hardwall", "true", "cpuset.mem_hardwall: It needs jobs that are pinned"),
        ("cpuset", "memory_spread_page", "true", "cpuset.memory_spread_page: It needs jobs that are pinned"),
        ("cpuset", "allow_zero_cpus", "false", "cpuset.allow_zero_cpus: A job with ncpus=0 is not refused."),
        ("devices", "enabled", "true", "ConstrainDevices=closed"),
        ("devices", "allow", "[\"c 195:* rw\", [\"fuse\", \"rwm\"]]", "DeviceAllow=\"char-nvidia rw,/dev/fuse\""),
        ("memory", "enabled", "true", "ConstrainRAMSpace=yes"),
        ("memory", "soft_limit", "true", "memory.soft_limit: The memory that a job asks for stays"),
        ("memory", "default", "\"2gb\"", "DefaultRAMSpace=2G"),
        ("memory", "enforce_default", "false", "DefaultRAMSpace=unlimited"),
        (
            "memory",
            "exclhost_ignore_default",
            "true",
            "memory.exclhost_ignore_default: jobfence.conf does not know of such jobs. Set ExclhostMemory=host",
        ),
        ("memory", "reserve_percent", "5", "memory.reserve_percent: jobfence limits each job, and not all"),
        ("memory", "reserve_amount", "\"1GB\"", "memory.reserve_amount: jobfence limits each job, and not all"),
        ("memory", "vnode_hidden_mb", "1", "memory.vnode_hidden_mb: This is about what"),
        ("memory", "swappiness", "1", "memory.swappiness: cgroup v2 has no swappiness."),
        ("memsw", "enabled", "true", "ConstrainSwapSpace=yes"),
        ("memsw", "default", "\"1GB\"", "memsw.default: A job without vmem has"),
        ("memsw", "enforce_default", "false", "memsw.enforce_default: A job without vmem may not take"),
        ("memsw", "exclhost_ignore_default", "true", "memsw.exclhost_ignore_default: jobfence does not know"),
        ("memsw", "reserve_percent", "5", "memsw.reserve_percent: jobfence limits each job"),
        ("memsw", "reserve_amount", "\"64MB\"", "memsw.reserve_amount: jobfence limits each job"),
        ("memsw", "vnode_hidden_mb", "1", "memsw.vnode_hidden_mb: This is about what"),
        ("memsw", "manage_cgswap", "true", "memsw.manage_cgswap: This is about what"),
        ("hugetlb", "enabled", "true", "ConstrainHugePages=yes"),
        ("hugetlb", "default", "\"1GB\"", "hugetlb.default: The hpmem of a job is its limit"),
        ("hugetlb", "enforce_default", "false", "hugetlb.enforce_default: The hpmem of a job is its limit"),
        ("hugetlb", "enforce_defaults", "true", "hugetlb.enforce_defaults: pbs_cgroups never reads this key."),
        ("hugetlb", "exclhost_ignore_default", "true", "hugetlb.exclhost_ignore_default: jobfence does not know"),
        ("hugetlb", "reserve_percent", "5", "hugetlb.reserve_percent: jobfence limits each job"),
        ("hugetlb", "reserve_amount", "\"1GB\"", "hugetlb.reserve_amount: jobfence limits each job"),
        ("hugetlb", "vnode_hidden_mb", "1", "hugetlb.vnode_hidden_mb: This is about what"),
    ];

    /// The subsystem that must be enabled for a key of the top to have an effect.
    fn subsystem_of(name: &str) -> &'static str {
        match name {
            "discover_gpus" | "nvidia-smi" => "devices",
            "manage_rlimit_as" => "memsw",
            _ => "cpuset",
        }
    }

    #[test]
    fn each_key_does_something_or_is_spoken_of() {
        let mut seen = BTreeSet::new();
        for &(section, name, value, expected) in EFFECTS {
            let member = format!("\"{name}\": {value}");
            let text = match section {
                TOP => file(&member, subsystem_of(name), "\"enabled\": true"),
                _ if name == "enabled" => file("", section, &member),
                _ => file("", section, &format!("\"enabled\": true, {member}")),
            };
            let (lines, notes) = of(&text);
            let is_note = expected.contains(": ");
            let found =
                if is_note { notes.iter().any(|note| note.contains(expected)) } else { lines.contains(expected) };
            assert!(found, "{text}: {expected} is neither in {lines} nor in {notes:#?}");
            // A note has the place in the file.
            assert!(
                !is_note || notes.iter().any(|note| note.starts_with("F:1:") && note.contains(expected)),
                "{notes:#?}"
            );
            seen.insert((section, name));
        }
        let all = [TOP]
            .into_iter()
            .chain(SUBSYSTEMS)
            .flat_map(|section| keys_of(section).map(move |(name, _)| (section, name)));
        let of_each =
            ["enabled", "exclude_hosts", "exclude_vntypes", "include_hosts", "run_only_on_hosts", "mount_path"];
        let unseen: Vec<_> =
            all.filter(|(section, name)| !seen.contains(&(*section, *name)) && !of_each.contains(name)).collect();
        assert!(unseen.is_empty(), "{unseen:?}");
        for (section, said) in [("blkio", "IOMax"), ("pids", "MaxProcesses"), ("freezer", "no key"), ("rdma", "no key")]
        {
            let notes = of(&file("", section, "\"enabled\": true")).1;
            assert!(notes.iter().any(|note| note.contains(said)), "{section}: {notes:?}");
        }
        let notes = of(&file("", "memory", "\"mount_path\": \"/x\"")).1;
        assert!(notes.iter().any(|note| note.contains("memory.mount_path: jobfence finds")), "{notes:?}");
    }

    #[test]
    fn the_page_has_each_key() {
        let page = include_str!("../../../../docs/install/pbs-config.md");
        for section in [TOP].into_iter().chain(SUBSYSTEMS) {
            // A section without keys of its own has no part of the page.
            let title = if section == TOP { "Keys of the top" } else { section };
            let part = page.split("\n## ").find(|part| part.starts_with(&format!("{title}\n"))).unwrap_or(page);
            let of_each = page.split("\n## ").find(|part| part.starts_with("Values that differ")).unwrap();
            for (name, _) in keys_of(section).filter(|(name, _)| *name != "mount_path") {
                let quoted = format!("`{name}`");
                assert!(part.contains(&quoted) || of_each.contains(&quoted), "{section} {name}");
            }
        }
    }

    /// The values of the file that OpenPBS ships.
    #[test]
    fn what_is_shipped_limits_memory_and_cpus() {
        let text = r#"{"cgroup_prefix": "pbs_jobs", "exclude_hosts": [], "exclude_vntypes": ["no_cgroups"],
            "run_only_on_hosts": [], "periodic_resc_update": true, "vnode_per_numa_node": false,
            "online_offlined_nodes": true, "use_hyperthreads": false, "ncpus_are_cores": false, "discover_gpus": true,
            "manage_rlimit_as": true, "cgroup": {
                "cpuacct": {"enabled": true, "exclude_hosts": [], "exclude_vntypes": []},
                "cpuset": {"enabled": true, "exclude_cpus": [], "mem_fences": false, "mem_hardwall": false},
                "devices": {"enabled": false, "allow": ["b *:* rwm", "c *:* rwm"]},
                "memory": {"enabled": true, "soft_limit": false, "enforce_default": true, "default": "256MB",
                           "exclhost_ignore_default": false, "reserve_percent": 0, "reserve_amount": "1GB"},
                "memsw": {"enabled": false, "default": "0B", "reserve_amount": "64MB", "manage_cgswap": false},
                "hugetlb": {"enabled": false, "default": "0B", "reserve_amount": "0B"}}}"#;
        let (lines, notes) = of(text);
        assert_eq!(
            lines,
            "Mode=enforce ConstrainCPUQuota=yes CPUPolicy=quota ConstrainRAMSpace=yes DefaultRAMSpace=256M \
             ConstrainSwapSpace=no CleanupTimeout=10 [VnodeType=no_cgroups] Mode=observe"
        );
        let keys: Vec<&str> = notes.iter().map(|note| note.split(": ").nth(1).unwrap()).collect();
        let expected = [
            "exclude_vntypes",
            "cpuset.enabled",
            "memory.reserve_amount",
            "periodic_resc_update",
            "online_offlined_nodes",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn what_differs_by_host_becomes_sections() {
        for (text, expected) in [
            (
                r#"{"enabled": "vntype in: gpu*,fat"}"#.to_owned(),
                "Mode=observe ConstrainCPUQuota=no CPUPolicy=quota ConstrainRAMSpace=no ConstrainSwapSpace=no CleanupTimeout=10 \
                 [VnodeType=gpu*,fat] Mode=enforce",
            ),
            (
                file(
                    r#""run_only_on_hosts": ["n1"], "exclude_vntypes": ["x y"]"#,
                    "memory",
                    r#""enabled": "host not in: n2""#,
                ),
                "Mode=observe ConstrainCPUQuota=no CPUPolicy=quota ConstrainRAMSpace=yes DefaultRAMSpace=1M \
                 ConstrainSwapSpace=no CleanupTimeout=10 [Host=n1] Mode=enforce [VnodeType=\"x y\"] Mode=observe \
                 [Host=n2] ConstrainRAMSpace=no",
            ),
            // Two switches set the same keys, for the same hosts.
            (
                file("", "cpu", r#""enabled": "vntype in: a", "enforce_per_period_quota": "vntype in: a""#),
                "Mode=enforce ConstrainCPUQuota=no CPUPolicy=quota CPUQuotaPeriod=100000us CPUQuotaPercent=103 ZeroCPUs=0.2 \
                 ConstrainRAMSpace=no ConstrainSwapSpace=no CleanupTimeout=10 [VnodeType=a] ConstrainCPUQuota=yes CPUPolicy=both",
            ),
        ] {
            assert_eq!(of(&text).0, expected, "{text}");
        }
        for (text, said) in [
            (
                file("", "cpu", r#""enabled": "vntype in: a", "enforce_per_period_quota": "host in: b""#),
                "have different exceptions",
            ),
            (
                r#"{"enabled": "vntype in: a", "run_only_on_hosts": ["b"]}"#.to_owned(),
                "run_only_on_hosts: This list is left out",
            ),
            (r#"{"exclude_hosts": ["n[12]"]}"#.to_owned(), "No section of jobfence.conf can name these: n[12]"),
        ] {
            let notes = of(&text).1;
            assert!(notes.iter().any(|note| note.contains(said)), "{text}: {notes:?}");
        }
        // With Mode=off, exceptions do not matter.
        let off = r#"{"enabled": false, "exclude_vntypes": ["no_cgroups"], "exclude_hosts": ["n1"]}"#;
        assert!(of(off).0.starts_with("Mode=off ") && !of(off).0.contains("observe"), "{}", of(off).0);
        // The hook's pattern * matches a host without a vnode type, too.
        assert!(of(r#"{"exclude_vntypes": ["*"]}"#).0.ends_with("[Host=*] Mode=observe"));
    }

    /// Files of the shapes that sites have published, with the result and a note of each.
    #[test]
    fn files_of_the_shapes_that_sites_publish_are_converted() {
        let devices = |allow: &str| {
            file("\"discover_gpus\": true", "devices", &format!("\"enabled\": true, \"allow\": [{allow}]"))
        };
        // Every device, as on the GPU servers of an AI site and of a grid.
        let all = devices("\"b *:* rwm\", \"c *:* rwm\"");
        // Classes of devices by number, and one NVIDIA device by name, as a cloud's script writes them into the hook's file.
        let cloud = devices(
            "\"b *:* rwm\",\"c 10:* rwm\",\"c 4:* rwm\",\"c 5:* rwm\",\"c 1:* rwm\",\"c 7:* rwm\",[\"nvidia-uvm\", \"rwm\"]",
        );
        // Devices by name, for containers, among them those that every job has.
        let names = devices(
            "\"b *:* rwm\",[\"net/tun\",\"rwm\"],[\"tty\",\"rwm\"],[\"ptmx\",\"rwm\"],[\"null\",\"rwm\"],[\"zero\",\"rwm\"],\
             [\"full\",\"rwm\"],[\"random\",\"rwm\"],[\"urandom\",\"rwm\"],[\"cpu/0/cpuid\",\"rwm\",\"*\"],\
             [\"nvidia-modeset\",\"rwm\"],[\"nvidia-uvm\",\"rwm\"],[\"nvidia-uvm-tools\",\"rwm\"],[\"nvidiactl\",\"rwm\"]",
        );
        // A key of a hook that a site has changed.
        let changed = r#"{"exclude_hosts": ["a", "b1"], "no_limit_hosts": ["c-1"], "cgroup": {"memory": {"enabled": true, "default": "256MB"}}}"#;
        for (text, wanted, said) in [
            (all.as_str(), "ConstrainDevices=no GPUDevice=/dev/nvidia%d ", "allows every device of its kind"),
            (
                &cloud,
                "ConstrainDevices=closed DeviceAllow=\"char-misc,char-tty,char-/dev/tty,char-mem,char-vcs,/dev/nvidia-uvm,\
                 /dev/nvidiactl\" GPUDevice=/dev/nvidia%d ",
                "hosts that have these: /dev/nvidia-uvm, /dev/nvidiactl.",
            ),
            (
                &names,
                "DeviceAllow=\"/dev/net/tun,/dev/cpu/0/cpuid,/dev/nvidia-modeset,/dev/nvidia-uvm,/dev/nvidia-uvm-tools,\
                 /dev/nvidiactl\" GPUDevice=/dev/nvidia%d ",
                "allows minor numbers *, and /dev/cpu/0/cpuid alone is written",
            ),
            (changed, "[Host=a,b1] Mode=observe ", "no_limit_hosts: The pbs_cgroups of OpenPBS does not know this key"),
        ] {
            let (lines, notes) = of(text);
            assert!((lines.clone() + " ").contains(wanted), "{text}: {lines}");
            assert!(notes.iter().any(|note| note.contains(said)), "{text}: {notes:?}");
            assert!(!notes.iter().any(|note| note.contains("does not know its name")), "{text}: {notes:?}");
        }
    }

    #[test]
    fn devices_are_named_by_path_or_driver() {
        let of_entries =
            |entries: &str| of(&file("", "devices", &format!("\"enabled\": true, \"allow\": [{entries}]")));
        for (entries, expected) in [
            ("\"c 1:3 rwm\", \"c 136:* rw\"", "ConstrainDevices=closed "),
            ("\"c 10:* rwm\", \"c 5:1 rw\"", "DeviceAllow=\"char-misc,/dev/console rw\""),
            (
                "[\"nvidiactl\", \"rwm\"], [\"infiniband/rdma_cm\", \"rw\"]",
                "DeviceAllow=\"/dev/nvidiactl,/dev/infiniband/rdma_cm rw\"",
            ),
            // Each GPU needs the control device. A list published for a cloud has nvidia-uvm alone.
            ("[\"nvidia-uvm\", \"rwm\"]", "DeviceAllow=\"/dev/nvidia-uvm,/dev/nvidiactl\" GPUDevice=/dev/nvidia%d "),
            // Every device is allowed, and the job's environment still names its GPUs.
            ("\"c *:* rwm\"", "ConstrainDevices=no GPUDevice=/dev/nvidia%d "),
            ("\"a *:* rwm\"", "ConstrainDevices=no GPUDevice=/dev/nvidia%d "),
        ] {
            let lines = of_entries(entries).0 + " ";
            assert!(lines.contains(expected), "{entries}: {lines}");
            assert_eq!(lines.contains("DeviceAllow"), expected.contains("DeviceAllow"), "{lines}");
        }
        for (entries, said) in [
            ("\"b *:* rwm\"", "needs no disk"),
            ("\"c *:* m\"", "does not let a job read and write all devices"),
            ("\"c 511:* rwm\"", "does not know its name"),
            ("\"b 8:* rwm\"", "does not know its name"),
            ("\"c 5 rwm\"", "is no line of devices.allow"),
            ("[\"tty0\", \"rwm\", \"*\"]", "and /dev/tty0 alone is written"),
            ("[\"../etc\", \"rwm\"]", "names no device below /dev"),
            ("[\"fuse\", \"rx\"]", "none of r, w and m"),
            ("[\"fuse\", \"rw\"]", "passes over a device that a host does not have"),
        ] {
            let notes = of_entries(entries).1;
            assert!(notes.iter().any(|note| note.contains(said)), "{entries}: {notes:?}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_places() {
        let text = "{\"enabled\": 1,\n \"exclude_hosts\": \"n1\",\n \"kill_timeout\": -1,\n \"cgroup\": {\"memory\": {\"default\": \"1QB\",\n  \
                    \"default\": \"1MB\", \"enabled\": \"vnode in: a\"}, \"cpu\": []}}";
        assert_eq!(
            converted("F", text).unwrap_err(),
            [
                "F:1:13: found 1, expected enabled to be true, false, or a text such as \"vntype in: NAMES\", \"vntype not in: \
                 NAMES\", \"host in: NAMES\" or \"host not in: NAMES\"",
                "F:2:19: found \"n1\", expected exclude_hosts to be a list of texts, as [\"n1\", \"n2\"]",
                "F:3:18: found -1, expected kill_timeout to be a number from 0 to 86400",
                "F:4:35: found \"1QB\", expected memory.default to be an amount of memory, as \"256MB\"",
                "F:5:32: found \"vnode in: a\", expected memory.enabled to be true, false, or a text such as \"vntype in: NAMES\", \
                 \"vntype not in: NAMES\", \"host in: NAMES\" or \"host not in: NAMES\"",
                "F:5:55: found [], expected cpu to be an object, as {\"enabled\": true}",
            ]
        );
        for (text, said) in [
            ("[]", "F:1:1: found [], expected the whole file to be an object"),
            ("{\"cgroup\": 1}", "F:1:12: found 1, expected cgroup to be an object"),
            ("{\"enabled\": True}", "F:1:13: found \"True}\", expected JSON"),
            ("{\"enabled\": true, \"enabled\": true}", "F:1:19: found \"enabled\", expected enabled only once"),
        ] {
            let errors = converted("F", text).unwrap_err();
            assert!(errors.len() == 1 && errors[0].starts_with(said), "{errors:?}");
        }
        let notes = of("{\"exlude_hosts\": [], \"cgroup\": {\"memroy\": {}, \"cpu\": {\"shares\": 1}}}").1;
        assert_eq!(
            notes[0],
            "F:1:2: exlude_hosts: The pbs_cgroups of OpenPBS does not know this key, and ignores it. Did you mean exclude_hosts?"
        );
        assert!(notes[1].contains("memroy: ") && notes[1].ends_with("Did you mean memory?"), "{notes:?}");
        assert!(notes[2].contains("cpu.shares: "), "{notes:?}");
    }

    #[test]
    fn comments_have_short_lines_whatever_the_file_is_called() {
        let (printed, _) = converted("/a\nb", &file("", "cpuset", "\"enabled\": true")).unwrap();
        assert!(printed.lines().all(|line| line.chars().count() <= WIDTH), "{printed}");
        assert!(printed.starts_with("# Made by 'jobfence pbs-config' from /a?b.\n# Copy it"), "{printed}");
        assert!(printed.contains("\n# - cpuset.enabled: A job is not pinned"), "{printed}");
    }
}
