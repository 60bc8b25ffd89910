// SPDX-License-Identifier: GPL-2.0-or-later
//! A fence as every entry point opens it.

use jobfence::cgroup::membership::Membership;
use jobfence::config::Config;
use jobfence::error::Result;
use jobfence::fence::{Fence, Opening};
use jobfence::host::Host;
use jobfence::janitor;
use jobfence::job::JobKey;
use jobfence::schedulers::ALL;

/// For a step with this daemon, if it has one.
pub fn open(host: &Host, config: &Config, key: &JobKey, daemon: Option<&Membership>) -> Result<Fence> {
    Fence::open(&Opening { daemon, ..janitor::opening(host, config, ALL, key) })
}
