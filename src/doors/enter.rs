// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for a program that becomes the scheduler's own. This process enters a fence that it made, and the program makes the
//! job's directories in it. And the end of such a fence, when its holder has ended.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::config::{Config, LoadError, Loaded};
use crate::doors::life::{Which, go_on, here, records, resumed, the_one};
use crate::error::Result;
use crate::facts::Facts;
use crate::host::Host;
use crate::launch::refuse::bear;
use crate::launch::{self, Answer, begin};
use crate::record::holder::Holder;
use crate::requests::UserRequests;
use crate::sys::process::ProcessHandle;

/// The longest single wait.
const WHILE: Duration = Duration::from_secs(3600);
/// The same if another condition must be checked.
const SOON: Duration = Duration::from_secs(1);

/// Puts this process into a directory of this name below the step's.
pub fn enter(loaded: Result<Loaded, LoadError>, which: &Which, leaf: &str) -> Answer<()> {
    let resolve = |loaded: &Loaded| {
        let host = Host::read(&loaded.config)?;
        let record = the_one(&loaded.config, which)?;
        let facts = here(Facts { uid: record.uid().into(), ..Facts::default() });
        Ok((begin::resolve(loaded, &facts)?, (host, record)))
    };
    launch::answer(loaded, resolve, |resolved, (host, record)| {
        let mut fence = go_on(&host, &resolved.config, &record)?;
        let errors = fence.attach_in(&host, Pid::this().as_raw(), leaf)?;
        bear(fence.key(), &resolved.config, &UserRequests::default(), errors)
    })
}

/// Waits without limit for the processes that hold these fences to end, or until `enough` returns true, which is called repeatedly. Other
/// kinds of holders are not waited for. Returns whether the processes have ended.
pub fn wait_for_holders(config: &Config, which: &Which, enough: Option<fn() -> bool>) -> Result<bool> {
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
pub fn has_branch(config: &Config, which: &Which, name: &str) -> Result<Option<bool>> {
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
