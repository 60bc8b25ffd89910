// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence check` says about login limits.

use jobfence::config::{Config, LoginLimits, Mode};
use jobfence::host::Host;

use super::slices;
use super::watch::obstacle;
use crate::strays::{StrayAccounts, StraysSearch, adopting};

/// Whether users are limited on this node, and where. `None`: the site does not want that.
pub fn here(config: &Config) -> Option<String> {
    if config.login_limits == LoginLimits::No {
        return None;
    }
    let found = || -> jobfence::error::Result<String> {
        let (host, _) = Host::read_what_there_is(config)?;
        let adopting = adopting(config);
        let accounts = StrayAccounts::new(&adopting, None);
        let found = StraysSearch::new(&host, (&adopting, None), &accounts).find()?;
        Ok(match obstacle(config, found.has_nodes_daemon) {
            Some(why) => format!("no user is limited, since {why}"),
            None if config.mode == Mode::Observe => {
                "jobfence.service counts what users use, and limits nobody".to_owned()
            }
            None if host.systemd => {
                let limited = "jobfence.service limits each user in systemd's slice of that user";
                match slices::count_outside(&found.all) {
                    0 => limited.to_owned(),
                    count => format!("{limited}; {count} processes of users are in no slice, and are not limited"),
                }
            }
            None => "'jobfence hold' limits each user in a fence of our own".to_owned(),
        })
    };
    Some(found().unwrap_or_else(|error| format!("it is not known whether users are limited: {error}")))
}
