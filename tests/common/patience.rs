// SPDX-License-Identifier: GPL-2.0-or-later
//! Waits are for events. The deadline is only for events that never come, so the machine may be arbitrarily slow.

use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(300);

/// The deadline by which anything has happened.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until this is true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How often something that a busy machine can only prolong is tried.
const TRIES: usize = 20;

/// Whether one of several attempts takes less than this, for an action that always takes longer if it waits at all.
pub fn is_once_within(most: Duration, mut what: impl FnMut()) -> bool {
    (0..TRIES).any(|_| {
        let begun = Instant::now();
        what();
        begun.elapsed() < most
    })
}
