// SPDX-License-Identifier: GPL-2.0-or-later
//! slurm.conf, and cgroup.conf, which is read in the same way: what is asked of it, and files that include themselves.

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::schedulers::slurm::conf::{Lines, threads_per_core};
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};

use super::files;

pub const WORDS: &[&str] = &[
    "NodeName=n[1-4] CPUs=8 ThreadsPerCore=2\n",
    "NodeName=DEFAULT ",
    "ProctrackType=proctrack/cgroup\n",
    "TaskPlugin=task/affinity,task/cgroup\n",
    "JobAcctGatherType=jobacct_gather/cgroup\n",
    "ConstrainRAMSpace=yes\n",
    "PlugStackConfig=",
    "Include slurm.conf\n",
    "include cgroup.conf # \\\n",
    "\\\n",
    "\"",
    "#",
    " = ",
];

pub fn run(data: &[u8]) {
    let data = within(data);
    let file = files::put("slurm/slurm.conf", &data);
    files::put("slurm/cgroup.conf", &data);
    let lines = Lines::read(&file);
    for key in ["ProctrackType", "NodeName", ""] {
        let Some(found) = lines.last(key) else { continue };
        assert!(found.key.eq_ignore_ascii_case(key) && found.line >= 1);
        assert!(!found.value.contains('\n'), "{found:?}");
    }
    for node in ["n1", "n999", "DEFAULT", ""] {
        let Some((threads, place)) = threads_per_core(&lines, node) else { continue };
        assert!(place.starts_with("NodeName="), "{threads} {place}");
    }
    let slurm = Slurm::from_file(&file);
    for (version, controllers) in [(Version::V2, &["cpu"][..]), (Version::V1, &["memory"]), (Version::V1, &["devices"])]
    {
        let hierarchy = Hierarchy {
            version,
            mount: "/sys/fs/cgroup".into(),
            root: "/".to_owned(),
            controllers: controllers.iter().map(|controller| (*controller).to_owned()).collect(),
            name: None,
        };
        let (ByConfig::Own(because) | ByConfig::Overlay(because)) = slurm.placement(&hierarchy);
        assert!(!because.is_empty());
        let _ = (slurm.makes_ours_first(&hierarchy), slurm.has_prolog(), slurm.limits_memory());
        let _ = slurm.constrains_devices();
    }
}

/// No file of this machine's is named: without a slash there are those beside it.
pub fn within(data: &[u8]) -> Vec<u8> {
    data.iter().map(|&byte| if byte == b'/' { b'_' } else { byte }).collect()
}
