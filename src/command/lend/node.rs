// SPDX-License-Identifier: GPL-2.0-or-later
//! What the node has to lend.

use jobfence::config::{Config, MemoryShare};
use jobfence::error::Result;
use jobfence::host::Host;

use super::policy::NodeMemory;
use crate::host::memory::MemoryOfNode;
use crate::host::way::WayToOurs;

/// Reads it. `reserved`: what those jobs may use that are lent nothing. `untouched`: what of it and of others' grants may be lent all the
/// same. `lends_more`: whether that is all.
pub fn read(
    host: &Host,
    config: &Config,
    pool: Option<MemoryShare>,
    (reserved, untouched, lends_more): (u64, u64, bool),
) -> Result<NodeMemory> {
    let way =
        host.layout.with_controller("memory").map(|hierarchy| WayToOurs::find(hierarchy, &host.base)).transpose()?;
    let memory = MemoryOfNode::read(&host.proc, way.as_ref())?;
    let whole = memory.whole;
    let reserve = config.memory_pool_reserve.map_or(0, |reserve| reserve.of(whole));
    let pool = pool.map_or(0, |pool| pool.of(whole));
    let MemoryOfNode { system, free, .. } = memory;
    Ok(NodeMemory { whole, reserve, system, pool, reserved, untouched, free, lends_more })
}
