// SPDX-License-Identifier: GPL-2.0-or-later
//! In slurmd, when it starts: reports early what is wrong with the configuration, and removes what dead step daemons left.
//!
//! Nothing here can keep slurmd from starting.

use std::time::Instant;

use crate::config;
use crate::host::Host;
use crate::janitor;
use crate::log;
use crate::schedulers::ALL;
use crate::schedulers::slurm::plugins::Slurm;
use crate::schedulers::slurm::spank::arguments;
use crate::schedulers::slurm::unenforceable;

/// Called once for each start of slurmd and each entry in plugstack.conf. A second call finds nothing more to remove.
pub fn start(arguments: &[&[u8]]) {
    let loaded = match arguments::load(arguments) {
        Ok(loaded) => loaded,
        Err(errors) => {
            log::error!("jobs on this node will not be fenced as configured: {errors}");
            return;
        }
    };
    let config = &loaded.config;
    if config.mode == config::Mode::Off {
        return;
    }
    let host = match Host::read_what_there_is(config) {
        Ok((host, no_cgroups)) => {
            if let Some(error) = no_cgroups {
                log::error!("no job on this node can be fenced: {error}");
            }
            host
        }
        Err(error) => return log::error!("no job on this node can be fenced: {error}"),
    };
    for (limit, error) in unenforceable::on_node(&host, &loaded, Slurm::read(loaded.file.as_deref()).as_ref()) {
        log::error!("jobs on this node cannot have their {limit} limit as configured: {error}");
    }
    match janitor::reap(&host, config, ALL, janitor::JanitorCaller::Daemon, Instant::now() + janitor::PATIENCE) {
        Ok(reaped) => reaped.log(),
        Err(error) => log::error!("cannot look for what dead step daemons left: {error}"),
    }
}
