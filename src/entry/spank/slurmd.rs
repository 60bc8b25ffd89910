// SPDX-License-Identifier: GPL-2.0-or-later
//! In slurmd, when it starts: say early what is wrong with the configuration, and remove what dead step daemons left.
//!
//! Nothing here can keep slurmd from starting.

use crate::config;
use crate::host::Host;
use crate::janitor;

/// Once for each start of slurmd; a second entry in plugstack.conf has nothing left to do.
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
    let reaped = match Host::read(&config).and_then(|host| janitor::reap(&host, &config)) {
        Ok(reaped) => reaped,
        Err(error) => {
            log::error!("cannot look for what dead step daemons left: {error}");
            return;
        }
    };
    for step in &reaped.removed {
        log::info!("removed {step}, which a dead step daemon left");
    }
    for failure in &reaped.failed {
        log::error!("cannot remove what a dead step daemon left: {failure}");
    }
}
