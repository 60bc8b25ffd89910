// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a step: nothing is left of it, or a sentence says what is.

use std::time::Instant;

use crate::error::Error;
use crate::fence::Fence;

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
