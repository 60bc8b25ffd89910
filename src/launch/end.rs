// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a step: nothing is left of it, or a sentence says what is.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::Error;
use crate::fence::Fence;
use crate::host::Host;
use crate::log;
use crate::private;
use crate::record::Records;

/// Ends the processes in the fence and removes it. Returns a sentence if something remains for the janitor.
///
/// `again` is called after each error, and returns whether the entry point has removed its cause.
pub fn close(fence: &mut Fence, deadline: Instant, mut again: impl FnMut(&Error) -> bool) -> Option<String> {
    loop {
        match fence.close(deadline) {
            Ok(()) => return None,
            Err(error) if again(&error) => {}
            Err(error) => return Some(format!("{}: cannot remove the step's directories yet: {error}", fence.key())),
        }
    }
}

/// How long the end of a step may be busy with the job's own directories. What is left is the janitor's.
const PATIENCE_TO_REMOVE: Duration = Duration::from_secs(2);

/// Removes the job's own directories behind its last step, whose fence is closed.
pub fn remove_private(host: &Host, config: &Config, fence: &Fence, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + PATIENCE_TO_REMOVE);
    let records = Records::open(&config.run_dir);
    let done =
        records.and_then(|records| private::end(host, &config.run_dir, &fence.key().parents(), &records, deadline));
    if let Err(error) = done {
        log::error!("{}: cannot remove the job's own directories yet: {error}", fence.key());
    }
}
