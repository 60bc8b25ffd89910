// SPDX-License-Identifier: GPL-2.0-or-later
//! Which placement a job will get in each hierarchy, according to Slurm's configuration: for `jobfence check`.
//!
//! A step's placement is decided by where its processes are (`cgroup::membership`), not here; this module predicts it and says why.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::cgroup::layout::{Hierarchy, Version};
use crate::schedulers::slurm::conf::{self, Lines};
use crate::schedulers::slurm::plugstack::{self, PlugstackLookup};

/// A key of slurm.conf or cgroup.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlurmSetting {
    key: &'static str,
    value: String,
    /// `None`: the key is absent, and this is Slurm's default.
    at: Option<(PathBuf, usize)>,
}

impl SlurmSetting {
    fn has(&self, word: &str) -> bool {
        self.value.split(',').any(|item| item.trim().eq_ignore_ascii_case(word))
    }

    fn is_yes(&self) -> bool {
        is_yes(&self.value)
    }
}

/// The last line with a key counts, as in Slurm.
fn setting(lines: &Lines, key: &'static str, default: &str) -> SlurmSetting {
    match lines.last(key) {
        Some(found) => SlurmSetting { key, value: found.value.clone(), at: Some((found.file.clone(), found.line)) },
        None => SlurmSetting { key, value: default.to_owned(), at: None },
    }
}

fn is_yes(value: &str) -> bool {
    ["yes", "true", "up", "1"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

impl fmt::Display for SlurmSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some((file, line)) => write!(f, "{}={} ({}:{line})", self.key, self.value, file.display()),
            None => write!(f, "{}={} (Slurm's default)", self.key, self.value),
        }
    }
}

/// The cgroup settings of Slurm.
pub struct Slurm {
    file: PathBuf,
    proctrack: SlurmSetting,
    task: SlurmSetting,
    accounting: SlurmSetting,
    ram: SlurmSetting,
    swap: SlurmSetting,
    devices: SlurmSetting,
    /// Whether task/cgroup constrains anything.
    constrains: bool,
    cgroups: SlurmSetting,
    plugstack: SlurmSetting,
    plugin_dir: SlurmSetting,
    prolog: SlurmSetting,
    storage: SlurmSetting,
}

/// A placement and its reason.
pub enum ByConfig {
    /// In jobfence's directories.
    Own(String),
    /// In Slurm's directories.
    Overlay(String),
}

impl Slurm {
    /// Reads this host's configuration. `None`: there is none. `ours`: jobfence.conf, beside which slurm.conf may be.
    pub fn read(ours: Option<&Path>) -> Option<Self> {
        conf::find(ours).map(|file| Self::from_file(&file))
    }

    /// Reads this slurm.conf and the cgroup.conf beside it.
    pub fn from_file(file: &Path) -> Self {
        let slurm = Lines::read(file);
        let cgroup = Lines::read(&file.with_file_name("cgroup.conf"));
        Self {
            file: file.to_owned(),
            proctrack: setting(&slurm, "ProctrackType", "proctrack/cgroup"),
            task: setting(&slurm, "TaskPlugin", "task/none"),
            accounting: setting(&slurm, "JobAcctGatherType", "jobacct_gather/none"),
            ram: setting(&cgroup, "ConstrainRAMSpace", "no"),
            swap: setting(&cgroup, "ConstrainSwapSpace", "no"),
            devices: setting(&cgroup, "ConstrainDevices", "no"),
            constrains: ["Cores", "Devices", "RAMSpace", "SwapSpace"]
                .iter()
                .any(|what| cgroup.last(&format!("Constrain{what}")).is_some_and(|found| is_yes(&found.value))),
            cgroups: setting(&cgroup, "CgroupPlugin", "autodetect"),
            prolog: setting(&slurm, "Prolog", ""),
            storage: setting(&slurm, "AccountingStorageType", ""),
            plugstack: setting(&slurm, "PlugStackConfig", &file.with_file_name("plugstack.conf").to_string_lossy()),
            plugin_dir: setting(&slurm, "PluginDir", ""),
        }
    }

    /// The file that lists the plugins that Slurm loads.
    pub fn plugstack(&self) -> &Path {
        Path::new(&self.plugstack.value)
    }

    /// Where Slurm looks for a plugin without a path: directories separated by colons. `None`: its built-in directory.
    pub fn plugin_dir(&self) -> Option<&str> {
        self.plugin_dir.at.as_ref().map(|_| self.plugin_dir.value.as_str())
    }

    /// Whether Slurm's directory of a step has one for each task: proctrack/cgroup alone makes one for all tasks.
    pub fn has_task_directories(&self) -> bool {
        self.has_task_cgroup() && self.constrains || self.accounting.has("jobacct_gather/cgroup")
    }

    /// The line that gives the plugin these arguments, as FILE:LINE. `None`: that is not certain.
    pub fn line_with(&self, arguments: &[&[u8]]) -> Option<String> {
        let PlugstackLookup::Line(line) = plugstack::find(self.plugstack()) else { return None };
        let is_it = arguments.iter().copied().eq(line.arguments.iter().map(String::as_bytes));
        is_it.then(|| line.place())
    }

    /// Whether Slurm calls a program before each job. Whether that program calls jobfence cannot be seen.
    pub fn has_prolog(&self) -> bool {
        !self.prolog.value.is_empty()
    }

    /// Whether accounts and QOS are in Slurm's database: accounting_storage/slurmdbd. Newer releases omit the prefix.
    pub fn has_database(&self) -> bool {
        self.storage.value.to_ascii_lowercase().ends_with("slurmdbd")
    }

    /// The file that was read.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether Slurm limits the memory of a job as a whole.
    pub fn limits_memory(&self) -> bool {
        self.has_task_cgroup() && self.ram.is_yes()
    }

    /// The settings that allow a job swap where Slurm limits memory, as text for people. `None`: Slurm does not limit it.
    pub fn swap_in_words(&self) -> Option<String> {
        let limited = self.has_task_cgroup() && (self.ram.is_yes() || self.swap.is_yes());
        limited.then(|| format!("{}, beside {}", self.swap, self.ram))
    }

    /// The line that makes Slurm deny devices itself, if there is one: on cgroup2 by programs that admit no others beside them, on v1 by
    /// lists of its own.
    pub fn constrains_devices(&self) -> Option<String> {
        (self.has_task_cgroup() && self.devices.is_yes()).then(|| self.devices.to_string())
    }

    fn has_task_cgroup(&self) -> bool {
        // Slurm accepts both spellings.
        self.task.has("task/cgroup") || self.task.has("cgroup")
    }

    /// Whether jobfence makes directories of its own at first in any case: only where Slurm tracks processes by cgroup v2 is a step daemon
    /// already in Slurm's directory.
    pub fn makes_ours_first(&self, hierarchy: &Hierarchy) -> bool {
        !(hierarchy.version == Version::V2 && self.proctrack.has("proctrack/cgroup"))
    }

    /// Where the processes of a job will be in this hierarchy.
    pub fn placement(&self, hierarchy: &Hierarchy) -> ByConfig {
        if self.cgroups.has("disabled") || self.cgroups.has("cgroup/disabled") {
            return ByConfig::Own(self.cgroups.to_string());
        }
        let proctrack = self.proctrack.has("proctrack/cgroup");
        let task = self.has_task_cgroup();
        let accounting = self.accounting.has("jobacct_gather/cgroup");
        let because = match hierarchy.version {
            // A single hierarchy: any of these plugins puts the step there as a whole.
            Version::V2 if hierarchy.has("cpu") || hierarchy.has("memory") => [
                proctrack.then(|| self.proctrack.to_string()),
                (task && self.constrains).then(|| self.task.to_string()),
                accounting.then(|| self.accounting.to_string()),
                None,
            ],
            // Beside v1, Slurm does not use this hierarchy.
            Version::V2 => return ByConfig::Own("Slurm's cgroup plugins use cgroup v1 on such a host".to_owned()),
            // Several controllers may be mounted together: any of them puts the processes there.
            Version::V1 => {
                let has = |controller: &str| hierarchy.has(controller);
                let limited = [&self.ram, &self.swap].into_iter().find(|constrain| constrain.is_yes());
                let limited = limited.filter(|_| task && has("memory"));
                [
                    limited.map(|constrain| format!("{} with {constrain}", self.task)),
                    (accounting && (has("memory") || has("cpuacct"))).then(|| self.accounting.to_string()),
                    self.constrains_devices().filter(|_| has("devices")),
                    (proctrack && has("freezer")).then(|| self.proctrack.to_string()),
                ]
            }
        };
        match because.into_iter().flatten().next() {
            Some(because) => ByConfig::Overlay(because),
            None => ByConfig::Own(match hierarchy.version {
                Version::V2 => format!("{}, {}, {}", self.proctrack, self.task, self.accounting),
                Version::V1 => format!("none of {}, {}, {} uses it", self.proctrack, self.task, self.accounting),
            }),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn hierarchy(version: Version, controllers: &[&str]) -> Hierarchy {
        let controllers: Vec<String> = controllers.iter().map(|name| (*name).to_owned()).collect();
        Hierarchy { version, mount: "/x".into(), root: "/".into(), controllers, name: None }
    }

    fn placements(slurm: &str, cgroup: &str) -> [Option<String>; 5] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        std::fs::write(&file, slurm).unwrap();
        std::fs::write(dir.path().join("cgroup.conf"), cgroup).unwrap();
        std::fs::write(dir.path().join("more.conf"), "TaskPlugin=task/cgroup,task/affinity\n").unwrap();
        let slurm = Slurm::from_file(&file);
        let shorten = |text: String| text.replace(&format!("{}/", dir.path().display()), "");
        [
            hierarchy(Version::V2, &["cpu", "memory"]),
            hierarchy(Version::V2, &[]),
            hierarchy(Version::V1, &["cpu", "cpuacct"]),
            hierarchy(Version::V1, &["memory"]),
            hierarchy(Version::V1, &["freezer"]),
        ]
        .map(|hierarchy| match slurm.placement(&hierarchy) {
            ByConfig::Own(_) => None,
            ByConfig::Overlay(because) => Some(shorten(because)),
        })
    }

    #[test]
    fn who_denies_devices() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        let devices = hierarchy(Version::V1, &["devices"]);
        for (task, constrain, expected) in [
            ("task/cgroup", "Yes", true),
            ("affinity,cgroup", "1", true),
            ("task/cgroup", "no", false),
            ("task/affinity", "yes", false),
        ] {
            std::fs::write(&file, format!("TaskPlugin={task}\n")).unwrap();
            std::fs::write(dir.path().join("cgroup.conf"), format!("\nConstrainDevices={constrain}\n")).unwrap();
            let slurm = Slurm::from_file(&file);
            let line = format!("ConstrainDevices={constrain} ({}/cgroup.conf:2)", dir.path().display());
            assert_eq!(slurm.constrains_devices(), expected.then_some(line), "{task}");
            assert_eq!(matches!(slurm.placement(&devices), ByConfig::Overlay(_)), expected, "{task}");
        }
    }

    #[test]
    fn controllers_that_are_mounted_together_are_where_any_of_them_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        let (none, accounting) = ("ProctrackType=proctrack/pgid\n", "JobAcctGatherType=jobacct_gather/cgroup\n");
        let task = "TaskPlugin=task/cgroup\n";
        for (slurm, cgroup, uses) in [
            (format!("{none}{task}"), "ConstrainRAMSpace=yes\n", "memory"),
            (format!("{none}{task}"), "ConstrainDevices=yes\n", "devices"),
            (format!("{none}{accounting}"), "", "cpuacct"),
            (format!("{none}{accounting}"), "", "memory"),
            ("ProctrackType=proctrack/cgroup\n".to_owned(), "", "freezer"),
        ] {
            std::fs::write(&file, slurm).unwrap();
            std::fs::write(dir.path().join("cgroup.conf"), cgroup).unwrap();
            let slurm = Slurm::from_file(&file);
            for other in ["cpuacct", "memory", "devices", "freezer", "pids"] {
                let together = hierarchy(Version::V1, &[other, uses]);
                assert!(matches!(slurm.placement(&together), ByConfig::Overlay(_)), "{uses} with {other}");
            }
            assert!(matches!(slurm.placement(&hierarchy(Version::V1, &["cpu", "pids"])), ByConfig::Own(_)), "{uses}");
        }
    }

    #[test]
    fn each_plugin_has_its_hierarchies() {
        let own =
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/affinity\nJobAcctGatherType=jobacct_gather/linux\n";
        assert_eq!(placements(own, "ConstrainRAMSpace=yes\n"), [None, None, None, None, None]);

        let default = Some("ProctrackType=proctrack/cgroup (Slurm's default)".to_owned());
        assert_eq!(placements("# nothing\n", ""), [default.clone(), None, None, None, default]);

        let accounting = "proctracktype=proctrack/linuxproc\njobacctgathertype = jobacct_gather/cgroup # so\n";
        let because = Some("JobAcctGatherType=jobacct_gather/cgroup (slurm.conf:2)".to_owned());
        assert_eq!(placements(accounting, ""), [because.clone(), None, because.clone(), because, None]);

        let quoted = "ProctrackType=proctrack/linuxproc\n# none: \\\nJobAcctGatherType = \"jobacct_gather/cgroup\"\nTaskPlugin=task/none\n";
        let because = Some("JobAcctGatherType=jobacct_gather/cgroup (slurm.conf:3)".to_owned());
        assert_eq!(placements(quoted, ""), [because.clone(), None, because.clone(), because, None]);

        let going_on = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/affinity,\\\ntask/cgroup\n";
        let because = Some("TaskPlugin=task/affinity,task/cgroup (slurm.conf:2)".to_owned());
        assert_eq!(placements(going_on, "ConstrainDevices=yes\n"), [because, None, None, None, None]);
        // task/cgroup makes directories only for what it constrains.
        assert_eq!(placements(going_on, ""), [None, None, None, None, None]);

        let included = "ProctrackType=proctrack/linuxproc\nInclude more.conf\n";
        let because = "TaskPlugin=task/cgroup,task/affinity (more.conf:1)".to_owned();
        assert_eq!(placements(included, "ConstrainCores=yes\n"), [Some(because.clone()), None, None, None, None]);
        let memory = format!("{because} with ConstrainSwapSpace=yes (cgroup.conf:2)");
        assert_eq!(placements(included, "\nConstrainSwapSpace=yes\n"), [Some(because), None, None, Some(memory), None]);
    }
}
