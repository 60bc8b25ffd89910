// SPDX-License-Identifier: GPL-2.0-or-later
//! What the node has to lend.

use jobfence::config::{Config, MemoryShare};
use jobfence::error::Result;
use jobfence::host::Host;

use super::policy::NodeMemory;
use crate::host::memory::MemoryOfNode;
use crate::host::way::WayToOurs;

/// Reads it. `reserved`: what those jobs may use that are lent nothing; `None`: one may use all, so that nothing more is lent.
pub fn read(host: &Host, config: &Config, pool: Option<MemoryShare>, reserved: Option<u64>) -> Result<NodeMemory> {
    let way =
        host.layout.with_controller("memory").map(|hierarchy| WayToOurs::find(hierarchy, &host.base)).transpose()?;
    let memory = MemoryOfNode::read(&host.proc, way.as_ref())?;
    let whole = memory.whole;
    let reserve = config.memory_pool_reserve.map_or(0, |reserve| reserve.of(whole));
    let pool = pool.filter(|_| reserved.is_some()).map_or(0, |pool| pool.of(whole));
    Ok(NodeMemory { whole, reserve, system: memory.system, pool, reserved: reserved.unwrap_or(0) })
}
