// SPDX-License-Identifier: GPL-2.0-or-later
//! Ends strays, by handles: a signal reaches the process that was judged, or none.

use std::time::Instant;

use jobfence::config::StraysAction;
use jobfence::error::Result;
use jobfence::host::Host;
use jobfence::sys::process::{self, ProcessHandle};
use nix::sys::signal::Signal;

use super::search::{Stray, StraysSearch};

/// Sends SIGTERM to one that is still what it was. Returns whether it was sent.
pub fn ask_to_end(host: &Host, search: &StraysSearch<'_>, stray: &Stray) -> Result<bool> {
    let Some(handle) = ProcessHandle::open(&host.proc, stray.id)? else { return Ok(false) };
    // What is found now is true of the handle's process.
    if !search.is_still(stray, StraysAction::Kill) {
        return Ok(false);
    }
    handle.signal(Signal::SIGTERM)?;
    Ok(true)
}

/// Kills all strays of a user's. They are stopped first, until no new one is found: some may start others as fast as they die.
pub fn kill(host: &Host, search: &StraysSearch<'_>, uid: u32, deadline: Instant) -> Result<usize> {
    let of_user = || {
        let found = search.find()?;
        let all = if found.doubt.is_none() { found.all } else { Vec::new() };
        Ok(all
            .into_iter()
            .filter(|stray| stray.uid == uid && stray.action() == Some(StraysAction::Kill))
            .map(|stray| stray.id)
            .collect())
    };
    process::end_all(&host.proc, of_user, deadline)
}
