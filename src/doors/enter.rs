// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a fence whose holder has ended: what a process that outlives the holder waits for, and sees then.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::doors::life::resumed;
use crate::doors::recorded::{WantedFences, records};
use crate::error::Result;
use crate::host::Host;
use crate::record::holder::Holder;
use crate::sys::process::ProcessHandle;

/// The longest single wait.
const WHILE: Duration = Duration::from_secs(3600);
/// The same if another condition must be checked.
const SOON: Duration = Duration::from_secs(1);

/// Waits without limit for the processes that hold these fences to end, or until `enough` returns true, which is called repeatedly. Other
/// kinds of holders are not waited for. Returns whether the processes have ended.
pub fn wait_for_holders(config: &Config, which: &WantedFences, enough: Option<fn() -> bool>) -> Result<bool> {
    let host = Host::read(config)?;
    for record in records(config, which)? {
        let Some(Holder::Process(owner)) = record.shared.as_ref().map(|shared| &shared.holder) else { continue };
        if let Some(handle) = ProcessHandle::open(&host.proc, *owner)? {
            let pause = if enough.is_some() { SOON } else { WHILE };
            while !handle.has_ended_by(&host.proc, Instant::now() + pause) {
                if enough.is_some_and(|enough| enough()) {
                    return Ok(handle.has_ended_by(&host.proc, Instant::now()));
                }
            }
        }
    }
    Ok(true)
}

/// Whether directories with controllers exist below the one of this name in a step's directory, on cgroup v2. `None`: there is no such
/// fence.
pub fn has_branch(config: &Config, which: &WantedFences, name: &str) -> Result<Option<bool>> {
    let host = Host::read(config)?;
    let (Some(unified), found) = (host.layout.unified(), records(config, which)?) else { return Ok(None) };
    let root = unified.open()?;
    for record in &found {
        if let Some(path) = resumed(&host, config, record)?.path()
            && let Ok(branch) = root.child(path.trim_start_matches('/'))?.child(name)
            && !branch.read_value("cgroup.subtree_control")?.trim().is_empty()
        {
            return Ok(Some(true));
        }
    }
    Ok((!found.is_empty()).then_some(false))
}
