// SPDX-License-Identifier: GPL-2.0-or-later
//! A wait is for an event. Its end is only for what never comes, so the machine may be as slow as it likes.

use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(300);

/// By when anything has happened.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until it is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How often what a busy machine can only make longer is tried.
const TRIES: usize = 20;

/// Whether it takes less than this once, for what waits for longer than that each time if it waits at all.
pub fn is_once_within(most: Duration, mut what: impl FnMut()) -> bool {
    (0..TRIES).any(|_| {
        let begun = Instant::now();
        what();
        begun.elapsed() < most
    })
}
