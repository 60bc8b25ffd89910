// SPDX-License-Identifier: GPL-2.0-or-later
//! The end: nothing is left of the step, or a sentence says what is.

use std::time::Instant;

use crate::error::Error;
use crate::fence::Fence;

/// Ends what is left in the fence, and removes it. Why something remains for the janitor, if so.
///
/// `again` is asked after each error whether the door has mended what it comes from.
pub fn close(fence: &mut Fence, deadline: Instant, mut again: impl FnMut(&Error) -> bool) -> Option<String> {
    loop {
        match fence.close(deadline) {
            Ok(()) => return None,
            Err(error) if again(&error) => {}
            Err(error) => return Some(format!("{}: cannot remove the step's directories yet: {error}", fence.key())),
        }
    }
}
