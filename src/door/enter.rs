// SPDX-License-Identifier: GPL-2.0-or-later
//! The door of a program that becomes the scheduler's own: this process itself goes into a fence that it has made, and what it becomes makes
//! the job's directories there. And the end of such a fence, when its holder has ended.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::config::{Config, LoadError, Loaded};
use crate::door::life::{Which, go_on, here, records, resumed, the_one};
use crate::error::Result;
use crate::facts::Facts;
use crate::host::Host;
use crate::launch::refuse::bear;
use crate::launch::{self, Answer, begin};
use crate::record::holder::Holder;
use crate::requests::UserRequests;
use crate::sys::process::ProcessHandle;

/// How long is waited at once.
const WHILE: Duration = Duration::from_secs(3600);
/// The same where there is something else to look at.
const SOON: Duration = Duration::from_secs(1);

/// Puts this process into a directory of this name, in that of the step.
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

/// Waits for the end of the processes that hold these fences, without limit, or until it is `enough`, which is asked again and again. Of other
/// holders nothing is waited for. Returns whether they have ended.
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

/// Whether somebody has made directories below the one of this name in that of a step, on cgroup v2, and has handed controllers down to them.
/// `None`: there is no such fence.
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
