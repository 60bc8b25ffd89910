// SPDX-License-Identifier: GPL-2.0-or-later
//! The limits that no job on this node can get, whatever it is granted, as far as the configuration tells. They are reported when the
//! configuration is loaded (the start of slurmd, `jobfence check`), before a job is refused for them.

use std::path::Path;

use crate::cgroup::kernel::LoadedScheduler;
use crate::cgroup::layout::LayoutKind;
use crate::config::{Config, DeniedDevices, Limit, Loaded, Mode};
use crate::error::Error;
use crate::fence::{LimitError, limiting};
use crate::host::Host;
use crate::job::{Cpus, Grant};
use crate::policy;
use crate::schedulers::slurm::SLURM;
use crate::schedulers::slurm::cores::Topology;
use crate::schedulers::slurm::plugins::{ByConfig, Slurm};

/// All such limits, of the configuration for all jobs and of its sections. Empty if nothing is enforced.
pub fn on_node(host: &Host, loaded: &Loaded, slurm: Option<&Slurm>) -> Vec<LimitError> {
    let mut all = Vec::new();
    for config in loaded.one_by_one().map(|one| one.config).filter(|config| config.mode == Mode::Enforce) {
        for found in of_config(host, &config, slurm, loaded.file.as_deref(), None) {
            if !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all
}

/// Such limits for the jobs of this configuration. `file` is jobfence.conf, beside which slurm.conf may be; `node` is this node's name, if
/// known.
pub fn of_config(
    host: &Host,
    config: &Config,
    slurm: Option<&Slurm>,
    file: Option<&Path>,
    node: Option<&str>,
) -> Vec<LimitError> {
    let (memory, cpus) = (Some(64 << 20), Some(Cpus::whole(1)));
    let grant = Grant::whole(cpus, memory);
    let (plan, _) = policy::plan(config, &grant);
    let mut all = Vec::new();
    let ignored = host.scheduler.as_ref().and_then(LoadedScheduler::ignores_quota);
    all.extend(ignored.filter(|_| limiting::has_any(&plan, Limit::Cpu)).map(|error| (Limit::Cpu, error)));
    // On hybrid hosts nothing is limited in cgroup2, and v1 has a directory for each user.
    let unified = host.layout.unified().filter(|_| host.layout.kind() == LayoutKind::Unified);
    let is_slurms = |slurm: &Slurm| unified.is_some_and(|h| matches!(slurm.placement(h), ByConfig::Overlay(_)));
    if let Some(unified) = unified.filter(|_| slurm.is_some_and(is_slurms)) {
        all.extend(limiting::none_for_the_user(&plan, unified, &SLURM));
    }
    if config.constrain_cores {
        all.extend(Topology::from_machine(file, node).err().map(|error| (Limit::Cores, error)));
    }
    if let Some(line) =
        slurm.and_then(Slurm::constrains_devices).filter(|_| config.constrain_devices != DeniedDevices::None)
    {
        let error =
            Error::new(format!("Slurm denies devices itself, by {line}, and admits no other rules beside its own"));
        all.push((Limit::Devices, error.hint("set ConstrainDevices=no either in cgroup.conf or in jobfence.conf")));
    }
    all
}
