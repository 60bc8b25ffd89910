// SPDX-License-Identifier: GPL-2.0-or-later
//! A process comes into its fence.

use crate::config::Config;
use crate::fence::Fence;
use crate::host::Host;
use crate::launch::refuse::{NotFenced, bear};
use crate::log;
use crate::requests::UserRequests;
use crate::sys::process::Owner;

/// A process that is to be in the fence, before it runs anything of the user's.
#[derive(Debug, Clone, Copy)]
pub struct Joining {
    /// Its number.
    pub pid: i32,
    /// Which it is, where it does not wait for this and its number can become another's.
    pub id: Option<Owner>,
    /// Its number as a task within the step; `None` for one that the scheduler has not started as a task.
    pub task: Option<u32>,
    /// Whether it is the first of its step: where the step is may be known only now, and the log says it once.
    pub is_first: bool,
}

/// Puts a process into its fence. Limits that can be set only now and cannot are borne or not, by `OnError`.
pub fn attach(
    fence: &mut Fence,
    host: &Host,
    config: &Config,
    requests: &UserRequests,
    joining: Joining,
) -> Result<(), NotFenced> {
    let errors = match joining.id {
        Some(id) => fence.attach_this(host, id, joining.task)?,
        None => fence.attach(host, joining.pid, joining.task)?,
    };
    if joining.is_first && fence.has_overlay() {
        log::info!("{}: {}", fence.key(), fence.placement());
    }
    bear(fence.key(), config, requests, errors)
}
