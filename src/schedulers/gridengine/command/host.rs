// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence host --gridengine`: reports what jobs can have of this host, as a load sensor, and has qmaster grant that.

use jobfence::cgroup::devices::gpus_of_node;
use jobfence::config::Config;
use jobfence::host::Host;
use jobfence::sys::dir::Dir;
use nix::unistd::getppid;

use super::check::{self, EXECD};
use super::{qconf, sensor};
use crate::check::daemon::SchedulerDaemon;
use crate::command::Failure;
use crate::configured::Configured;
use crate::host::grantable::{Grantable, Reserve};
use crate::host::memory::pressure;

/// Runs as a load sensor until execd ends it.
pub fn sense(configured: &Configured, reserve: Option<Reserve>) -> Result<(), Failure> {
    if let Ok(loaded) = configured.load() {
        let execd = SchedulerDaemon::from_pid(&Dir::open("/proc")?, getppid().as_raw(), EXECD);
        check::to_do(&execd, &loaded).iter().for_each(|line| log::warn!("{line}"));
    }
    let read = || {
        let config = configured.load()?.config;
        Ok(complexes(&Grantable::read(&Host::read_what_there_is(&config)?.0, &config, reserve)?))
    };
    // execd passes its name of the host in HOST.
    let name = std::env::var("HOST").ok().filter(|name| !name.is_empty());
    let name = name.map_or_else(|| nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()), Ok)?;
    Ok(sensor::sense(&name, std::io::stdin().lock(), std::io::stdout().lock(), read)?)
}

/// What qmaster should grant of this host.
fn wanted(host: &Host, config: &Config, reserve: Option<Reserve>) -> Result<Vec<qconf::Wanted>, Failure> {
    let grantable = Grantable::read(host, config, reserve)?;
    let gpus = config.gpu_device.as_ref().filter(|_| !config.slot_gpus.is_empty());
    let gpus = gpus.map(gpus_of_node).transpose()?.map(|all| all.len());
    Ok(qconf::wanted(config, grantable.mem, grantable.cpus.count(), gpus))
}

/// A line for each complex that qmaster grants more of than this host has. `known` is the output of `qconf -se`.
pub fn too_much(config: &Config, known: &str) -> Result<Vec<String>, Failure> {
    let host = Host::read_what_there_is(config)?.0;
    Ok(qconf::too_much(&wanted(&host, config, None)?, known))
}

/// Has qmaster grant what jobs can have. Returns what was done.
pub fn applied(configured: &Configured, reserve: Option<Reserve>, name: Option<String>) -> Result<String, Failure> {
    let config = configured.load()?.config;
    let host = Host::read_what_there_is(&config)?.0;
    let name = name.map_or_else(|| nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()), Ok)?;
    let wanted = wanted(&host, &config, reserve)?;
    // If execd runs already, its environment names the cluster.
    let execd = SchedulerDaemon::find(&host.proc, EXECD).unwrap_or_else(|| SchedulerDaemon::absent(EXECD));
    let ask = |words: &[&str]| execd.ask(&[&["qconf"], words].concat());
    qconf::apply(&ask, &name, &wanted)
}

/// The complexes of jobfence(8), each with its value; memory in bytes.
fn complexes(grantable: &Grantable) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("jobfence_threads", grantable.cpus.count().to_string()),
        ("jobfence_mem", grantable.mem.to_string()),
        ("jobfence_vmem", grantable.vmem().to_string()),
        ("jobfence_free", grantable.free().to_string()),
    ];
    all.extend(pressure().map(|percent| ("jobfence_pressure", percent)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::grantable::tests::{GIB, grantable};

    #[test]
    fn the_complexes_of_grid_engine_are_in_bytes() {
        let mut values = complexes(&grantable(GIB));
        values.retain(|(name, _)| *name != "jobfence_pressure");
        let texts: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "jobfence_threads=4",
            "jobfence_mem=16106127360",
            "jobfence_vmem=17179869184",
            "jobfence_free=13958643712",
        ];
        assert_eq!(texts, expected);
    }
}
