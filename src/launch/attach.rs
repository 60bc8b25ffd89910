// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts a process into its fence.

use crate::config::Config;
use crate::fence::Fence;
use crate::host::Host;
use crate::launch::refuse::{NotFenced, bear};
use crate::log;
use crate::requests::UserRequests;
use crate::sys::process::Owner;

/// A process to be fenced before it runs anything of the user's.
#[derive(Debug, Clone, Copy)]
pub struct Joining {
    /// Its pid.
    pub pid: i32,
    /// Its identity, if it does not wait for this and its pid could be reused.
    pub id: Option<Owner>,
    /// Its number as a task within the step. `None`: the scheduler did not start it as a task.
    pub task: Option<u32>,
    /// Whether it is the first of its step: the step's place may be known only now, and is logged once.
    pub is_first: bool,
}

/// Puts a process into its fence. `OnError` decides whether limits that can be set only now may fail.
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
