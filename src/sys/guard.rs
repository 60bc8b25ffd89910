// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps what goes wrong in jobfence from unwinding into the host program, or ending it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::log;

/// Runs a callback; `None` if it panicked, which has been logged then.
///
/// Rust ends the whole process when a panic would leave an `extern "C"` function: the scheduler's daemon, with every job
/// it looks after.
pub fn guard<T>(callback: &'static str, body: impl FnOnce() -> T) -> Option<T> {
    set_hook();
    // The next callback looks again at what a half-done one leaves behind, and takes it for a failure.
    let result = catch_unwind(AssertUnwindSafe(body));
    if result.is_err() {
        log::error!("{callback} did not finish");
    }
    result.ok()
}

/// The default hook writes to stderr, which may be the user's file.
fn set_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| log::error!("internal error: {info}; please report it")));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_inside() {
        assert_eq!(guard("test", || 1), Some(1));
        assert_eq!(guard::<()>("test", || panic!("on purpose")), None);
    }
}
