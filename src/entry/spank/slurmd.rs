// SPDX-License-Identifier: GPL-2.0-or-later
//! In slurmd, when it starts: say early what is wrong with the configuration, and remove what dead step daemons left.
//!
//! Nothing here can keep slurmd from starting.

use std::time::Instant;

use crate::config;
use crate::host::Host;
use crate::janitor;
use crate::topology::Topology;

/// Once for each start of slurmd and each entry in plugstack.conf: what has been removed is not there a second time.
pub fn start(arguments: &[&[u8]]) {
    let config = match config::load(arguments) {
        Ok(loaded) => loaded.config,
        Err(errors) => {
            log::error!("jobs on this node will not be fenced as configured: {errors}");
            return;
        }
    };
    if config.mode == config::Mode::Off {
        return;
    }
    if config.constrain_cores
        && let Err(error) = Topology::of_node(None)
    {
        log::error!("jobs on this node cannot be limited to their cores (ConstrainCores=yes): {error}");
    }
    let deadline = Instant::now() + janitor::PATIENCE;
    match Host::read(&config).and_then(|host| janitor::reap(&host, &config, deadline)) {
        Ok(reaped) => reaped.log(),
        Err(error) => log::error!("cannot look for what dead step daemons left: {error}"),
    }
}
