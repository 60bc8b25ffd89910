// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts the keys of OpenPBS's hook to those of jobfence.conf, and notes those without a counterpart.

use jobfence::bytes;
use jobfence::hostlist::HostList;

use super::devices;
use super::schema::TOP;
use super::site::{SiteConfig, SiteNote};
use super::switch::{Exception, Meant, Switch};

/// Keys with their values, in the order of printing.
type KeyValues = Vec<(&'static str, String)>;

/// A jobfence.conf, with notes on what differs from the hook.
#[derive(Debug, Default)]
pub struct Converted {
    pub general: KeyValues,
    /// The sections, each with its header.
    pub sections: Vec<(String, KeyValues)>,
    pub notes: Vec<SiteNote>,
}

/// The least `DefaultRAMSpace`, in bytes.
const LEAST_MEMORY: u64 = 1 << 20;

/// The note on keys about things that jobfence does not do.
const OF_THE_HOOK: &str =
    "This is about what pbs_cgroups tells PBS, and no limit of a job. jobfence.conf has no key for it.";

/// Converts a site's whole configuration.
pub fn convert(site: &SiteConfig) -> Converted {
    let mut converted = Converted { notes: site.unknown.clone(), ..Converted::default() };
    let mut convert = Converter { site, out: &mut converted };
    convert.mode();
    convert.cpu();
    convert.cores();
    convert.memory();
    convert.swap();
    convert.huge_pages();
    convert.devices();
    convert.end_of_jobs();
    convert.unmanaged();
    convert.of_the_hook();
    converted
}

struct Converter<'a> {
    site: &'a SiteConfig,
    out: &'a mut Converted,
}

const fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// A number with at most `decimals` decimals.
fn decimal(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl Converter<'_> {
    fn note(&mut self, section: &'static str, name: &'static str, text: &str) {
        let note = self.site.note(section, name, text);
        self.out.notes.push(note);
    }

    /// Notes a switch that is true on any host.
    fn note_if(&mut self, section: &'static str, name: &'static str, default: bool, text: &str) {
        if self.site.switch(section, name, default).is_ever(true) {
            self.note(section, name, text);
        }
    }

    fn set(&mut self, key: &'static str, value: impl Into<String>) {
        self.out.general.push((key, value.into()));
    }

    /// On which hosts a section of the hook holds. A list that sections cannot express is noted.
    fn enabled(&mut self, section: &'static str) -> Switch {
        let (switch, left_out) = self.site.enabled(section);
        if let Some(list) = left_out {
            self.note(
                section,
                list,
                "This list is left out: a section of jobfence.conf has one condition, and other keys here already \
                 enable some hosts. Write the sections by hand.",
            );
        }
        switch
    }

    /// Writes the lines of a switch: the general ones, then those of each exception.
    fn emit(
        &mut self,
        (section, name): (&'static str, &'static str),
        switch: &Switch,
        lines: impl Fn(bool) -> KeyValues,
    ) {
        self.out.general.extend(lines(switch.general));
        for exception in &switch.exceptions {
            let value = lines(exception.value);
            self.section((section, name), exception, value);
        }
    }

    fn section(&mut self, (section, name): (&'static str, &'static str), exception: &Exception, lines: KeyValues) {
        let Some(header) = header(exception) else {
            let names = exception.patterns.join(", ");
            let text = format!(
                "No section of jobfence.conf can name these: {names}. Patterns have * and ? only. Write the section by hand."
            );
            return self.note(section, name, &text);
        };
        match self.out.sections.last_mut().filter(|(last, _)| *last == header) {
            Some((_, last)) => last.extend(lines),
            None => self.out.sections.push((header, lines)),
        }
    }

    fn mode(&mut self) {
        let enabled = self.enabled(TOP);
        if !enabled.is_ever(true) {
            return self.set("Mode", "off");
        }
        let mode = |value| vec![("Mode", if value { "enforce" } else { "observe" }.to_owned())];
        self.emit((TOP, "enabled"), &enabled, mode);
        if enabled.is_ever(false) {
            let lists = ["run_only_on_hosts", "exclude_hosts", "exclude_vntypes"];
            let name = lists.into_iter().find(|name| !self.site.names(TOP, name).is_empty()).unwrap_or("enabled");
            self.note(
                TOP,
                name,
                "Where pbs_cgroups is disabled, a job still has a fence, which measures and limits nothing \
                 (Mode=observe). Mode=off cannot stand in a section.",
            );
        }
    }

    /// The quota and the weight of CPU time, which stand for the controllers cpu and cpuset.
    fn cpu(&mut self) {
        let switches =
            [self.enabled("cpu"), self.enabled("cpuset"), self.site.switch("cpu", "enforce_per_period_quota", false)];
        let lines = |[cpu, cpuset, enforce]: [bool; 3]| {
            let policy = match (cpu, cpuset, enforce) {
                (true, false, false) => "weight",
                (true, ..) => "both",
                (false, ..) => "quota",
            };
            vec![("ConstrainCPUQuota", yes_no(cpu || cpuset).to_owned()), ("CPUPolicy", policy.to_owned())]
        };
        let together = together(&switches);
        self.out.general.extend(lines(switches.each_ref().map(|switch| switch.general)));
        for (exception, values) in &together {
            self.section(("cpu", "enabled"), exception, lines(*values));
        }
        if together.is_empty() && switches.iter().any(|switch| !switch.exceptions.is_empty()) {
            self.note(
                "cpu",
                "enabled",
                "cpu, cpuset and enforce_per_period_quota have different exceptions, which are left out. Write the \
                 sections for ConstrainCPUQuota and CPUPolicy by hand.",
            );
        }
        let [cpu, cpuset, _] = switches;
        if !cpu.is_ever(true) {
            return;
        }
        let period = self.site.number("cpu", "cfs_period_us", 100_000.0);
        self.set("CPUQuotaPeriod", format!("{period:.0}us"));
        // A job on its own cores cannot use what the factor adds.
        if !cpuset.is_ever(true) {
            let factor = self.site.number("cpu", "cfs_quota_fudge_factor", 1.03);
            self.set("CPUQuotaPercent", decimal(factor * 100.0, 2));
        }
        let zero = self.site.number("cpu", "zero_cpus_quota_fraction", 0.2);
        self.set("ZeroCPUs", decimal(zero.max(0.001), 3));
        if self.site.has("cpu", "zero_cpus_shares_fraction") {
            let text = "A job without CPUs has the weight of ZeroCPUs, and at least a tenth of a CPU's.";
            self.note("cpu", "zero_cpus_shares_fraction", text);
        }
    }

    fn cores(&mut self) {
        if !self.site.enabled("cpuset").0.is_ever(true) {
            return;
        }
        self.note(
            "cpuset",
            "enabled",
            "A job is not pinned to cores, since jobfence chooses none. Instead a quota limits its CPU time to as \
             many CPUs as it was granted (ConstrainCPUQuota). A job with ncpus=0 has ZeroCPUs, and not all CPUs.",
        );
        let no_cores = "It needs jobs that are pinned to cores: see cpuset.enabled.";
        if !self.site.names("cpuset", "exclude_cpus").is_empty() {
            let text = "No CPU is kept free of jobs: see cpuset.enabled. Give the vnode fewer ncpus.";
            self.note("cpuset", "exclude_cpus", text);
        }
        for name in ["mem_fences", "mem_hardwall", "memory_spread_page"] {
            if self.site.has("cpuset", name) {
                self.note_if("cpuset", name, false, no_cores);
            }
        }
        if self.site.switch("cpuset", "allow_zero_cpus", true).is_ever(false) {
            let text = "A job with ncpus=0 is not refused. Let PBS do that: set server resources_min.ncpus = 1.";
            self.note("cpuset", "allow_zero_cpus", text);
        }
        self.note_if(TOP, "vnode_per_numa_node", false, no_cores);
        if self.site.has(TOP, "placement_type") {
            self.note(TOP, "placement_type", no_cores);
        }
        for name in ["use_hyperthreads", "ncpus_are_cores"] {
            let text = "A CPU of jobfence is a hardware thread. If ncpus counts cores, and a job may use both threads of \
                        a core, set CPUQuotaPercent=200.";
            self.note_if(TOP, name, false, text);
        }
    }

    fn memory(&mut self) {
        let enabled = self.enabled("memory");
        self.emit(("memory", "enabled"), &enabled, |value| vec![("ConstrainRAMSpace", yes_no(value).to_owned())]);
        if !enabled.is_ever(true) {
            return;
        }
        let asked = self.site.size("memory", "default");
        let default = bytes::text(asked.next_multiple_of(1 << 10).max(LEAST_MEMORY));
        let enforced = self.site.switch("memory", "enforce_default", true);
        self.emit(("memory", "enforce_default"), &enforced, |value| {
            vec![("DefaultRAMSpace", if value { default.clone() } else { "unlimited".to_owned() })]
        });
        if asked < LEAST_MEMORY && enforced.is_ever(true) {
            let text = "pbs_cgroups gives nothing to a job that asks for no memory, and so kills it. jobfence gives it the \
                        least that it can: 1 MiB. Set a DefaultRAMSpace.";
            self.note("memory", "default", text);
        }
        let text = "jobfence.conf does not know of such jobs. Set ExclhostMemory=host in jobfence.CF, the configuration of \
                    the hook.";
        self.note_if("memory", "exclhost_ignore_default", false, text);
        self.reserve("memory");
        self.note_if(
            "memory",
            "soft_limit",
            false,
            "The memory that a job asks for stays a hard limit. MemoryHighPercent=90 reclaims memory before it.",
        );
        if self.site.has("memory", "swappiness") {
            let text = "cgroup v2 has no swappiness. A job does not swap at all while AllowedSwapSpace is 0.";
            self.note("memory", "swappiness", text);
        }
    }

    fn exclusive_hosts(&mut self, section: &'static str) {
        let text =
            "jobfence does not know whether a job has the host for itself, so the default holds for such a job, too.";
        self.note_if(section, "exclhost_ignore_default", false, text);
    }

    fn reserve(&mut self, section: &'static str) {
        let text = "jobfence limits each job, and not all jobs together. Give the vnode less memory in \
                    resources_available, so that PBS leaves the rest to the system.";
        if self.site.number(section, "reserve_percent", 0.0) > 0.0 {
            self.note(section, "reserve_percent", text);
        }
        if self.site.size(section, "reserve_amount") > 0 {
            self.note(section, "reserve_amount", text);
        }
        if self.site.has(section, "vnode_hidden_mb") {
            self.note(section, "vnode_hidden_mb", OF_THE_HOOK);
        }
    }

    fn swap(&mut self) {
        let enabled = self.enabled("memsw");
        self.emit(("memsw", "enabled"), &enabled, |value| vec![("ConstrainSwapSpace", yes_no(value).to_owned())]);
        if !enabled.is_ever(true) {
            return;
        }
        self.set("AllowedSwapSpace", "0");
        self.note(
            "memsw",
            "enabled",
            "A job may swap as much as PBS grants it of vmem above mem. A job without vmem may not swap: \
             AllowedSwapSpace gives such a job swap in percent of its memory.",
        );
        if self.site.size("memsw", "default") > 0 && self.site.switch("memsw", "enforce_default", true).is_ever(true) {
            let text = "A job without vmem has no amount of swap by default: see memsw.enabled.";
            self.note("memsw", "default", text);
        }
        if self.site.switch("memsw", "enforce_default", true).is_ever(false) {
            self.note(
                "memsw",
                "enforce_default",
                "A job without vmem may not take all of the swap: see memsw.enabled.",
            );
        }
        self.exclusive_hosts("memsw");
        self.reserve("memsw");
        self.note_if("memsw", "manage_cgswap", false, OF_THE_HOOK);
        let text = "Set AddressSpace=pvmem in jobfence.CF, the configuration of the hook. Otherwise MoM's limit of a process \
                    (RLIMIT_AS) stays: the less of pvmem and vmem.";
        self.note_if(TOP, "manage_rlimit_as", true, text);
    }

    fn huge_pages(&mut self) {
        let enabled = self.enabled("hugetlb");
        if !enabled.is_ever(true) {
            return;
        }
        self.emit(("hugetlb", "enabled"), &enabled, |value| vec![("ConstrainHugePages", yes_no(value).to_owned())]);
        let text = "The hpmem of a job is its limit, and a job without hpmem has no huge pages. Let PBS know of another default: \
                    qmgr -c 'set server default_chunk.hpmem = SIZE'.";
        if self.site.size("hugetlb", "default") > 0 {
            self.note("hugetlb", "default", text);
        }
        if self.site.switch("hugetlb", "enforce_default", true).is_ever(false) {
            self.note("hugetlb", "enforce_default", text);
        }
        if self.site.has("hugetlb", "enforce_defaults") {
            self.note("hugetlb", "enforce_defaults", "pbs_cgroups never reads this key. It means enforce_default.");
        }
        self.exclusive_hosts("hugetlb");
        self.reserve("hugetlb");
    }

    fn devices(&mut self) {
        let enabled = self.enabled("devices");
        if !enabled.is_ever(true) {
            return;
        }
        let allowed = devices::allowed(self.site.devices());
        if let Some(all) = allowed.everything {
            let text = format!(
                "The entry {all:?} allows every device of its kind, so pbs_cgroups keeps no device from a job. \
                 ConstrainDevices stays no. With ConstrainDevices=yes a job can open no other job's GPU."
            );
            self.note("devices", "allow", &text);
            self.set("ConstrainDevices", "no");
        } else {
            self.emit(("devices", "enabled"), &enabled, |value| {
                vec![("ConstrainDevices", if value { "closed" } else { "no" }.to_owned())]
            });
            if !allowed.rules.is_empty() {
                self.set("DeviceAllow", format!("\"{}\"", allowed.rules.join(",")));
            }
        }
        for text in &allowed.notes {
            self.note("devices", "allow", text);
        }
        let discovers = self.site.switch(TOP, "discover_gpus", true);
        if discovers.is_ever(true) {
            self.emit((TOP, "discover_gpus"), &discovers, |value| {
                vec![("GPUDevice", if value { "/dev/nvidia%d" } else { "none" }.to_owned())]
            });
            let text = "A job has as many of the GPUs of GPUDevice as PBS grants it of ngpus. jobfence does not tell PBS how \
                        many there are: set resources_available.ngpus of each node. If DeviceAllow has char-nvidia, name \
                        /dev/nvidiactl and /dev/nvidia-uvm in its place.";
            self.note(TOP, "discover_gpus", text);
        }
        if self.site.has(TOP, "nvidia-smi") {
            self.note(TOP, "nvidia-smi", "jobfence runs no program.");
        }
    }

    fn end_of_jobs(&mut self) {
        let seconds = self.site.number(TOP, "kill_timeout", 10.0);
        let timeout = seconds.ceil().clamp(1.0, 600.0);
        self.set("CleanupTimeout", format!("{timeout:.0}"));
        if (timeout - seconds).abs() > f64::EPSILON {
            self.note(TOP, "kill_timeout", "CleanupTimeout is a whole number of seconds from 1 to 600.");
        }
    }

    /// Controllers in which the hook makes cgroups and sets no limit, and where they are mounted.
    fn unmanaged(&mut self) {
        let nothing = "pbs_cgroups limits nothing by it, and jobfence needs no key for it.";
        for (section, text) in [
            ("blkio", "pbs_cgroups limits nothing by it. jobfence can: see IOMax and IOWeight."),
            ("pids", "pbs_cgroups limits nothing by it. jobfence can: MaxProcesses=4096 stops a fork bomb."),
            ("freezer", nothing),
            ("net_cls", nothing),
            ("net_prio", nothing),
            ("perf_event", nothing),
            ("rdma", nothing),
        ] {
            if self.site.enabled(section).0.is_ever(true) {
                self.note(section, "enabled", text);
            }
        }
        for section in super::schema::SUBSYSTEMS {
            if self.site.text(section, "mount_path").is_some_and(|path| !path.is_empty()) {
                let text = "jobfence finds the hierarchies itself. It uses those below CgroupMountpoint.";
                self.note(section, "mount_path", text);
            }
        }
    }

    fn of_the_hook(&mut self) {
        if self.site.text(TOP, "cgroup_prefix").is_some_and(|prefix| prefix != "pbs_jobs") {
            let text =
                "CgroupBase names the directory of all fences. Its default is right on hosts with systemd and without.";
            self.note(TOP, "cgroup_prefix", text);
        }
        for name in ["periodic_resc_update", "online_offlined_nodes"] {
            self.note_if(TOP, name, false, OF_THE_HOOK);
        }
        for name in ["online_nodes_min_delay", "server_timeout", "propagate_vntype_to_server"] {
            if self.site.has(TOP, name) {
                self.note(TOP, name, OF_THE_HOOK);
            }
        }
        for name in ["cgroup_lock_file", "job_setup_timeout"] {
            if self.site.has(TOP, name) {
                self.note(TOP, name, "jobfence needs none.");
            }
        }
    }
}

/// The exceptions of three switches with the value of each switch. Empty if two switches have exceptions for different hosts.
fn together(switches: &[Switch; 3]) -> Vec<(Exception, [bool; 3])> {
    let mut with = switches.iter().filter(|switch| !switch.exceptions.is_empty());
    let Some(first) = with.next() else { return Vec::new() };
    if with.any(|other| other.hosts() != first.hosts()) {
        return Vec::new();
    }
    let values = |at: usize| {
        switches.each_ref().map(|switch| switch.exceptions.get(at).map_or(switch.general, |exception| exception.value))
    };
    first.exceptions.iter().enumerate().map(|(at, exception)| (exception.clone(), values(at))).collect()
}

/// The header of an exception's section. `None`: no header can name its patterns.
fn header(exception: &Exception) -> Option<String> {
    // The hook's pattern * also matches a host without a vnode type.
    if exception.patterns.iter().any(|pattern| pattern == "*") {
        return Some("[Host=*]".to_owned());
    }
    let list = exception.patterns.join(",");
    let is_pattern = list.contains(['*', '?']);
    let sound = |pattern: &String| {
        pattern.trim() == pattern && !pattern.contains(|c: char| c.is_control() || "[]\",".contains(c))
    };
    if !exception.patterns.iter().all(sound) {
        return None;
    }
    match exception.by {
        Meant::Host if !is_pattern && HostList::parse(&list).is_none() => None,
        Meant::Host => Some(quoted("Host", &list)),
        Meant::VnodeType => Some(quoted("VnodeType", &list)),
    }
}

fn quoted(kind: &str, list: &str) -> String {
    if list.contains([' ', '\t', '#']) { format!("[{kind}=\"{list}\"]") } else { format!("[{kind}={list}]") }
}
