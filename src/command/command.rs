// SPDX-License-Identifier: GPL-2.0-or-later
//! What every subcommand may need: its error type, and requirements of its process.

use jobfence::launch::Answer;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Anything that ends a subcommand with one line on stderr and status 1.
pub type Failure = Box<dyn std::error::Error>;

/// Fails early if a subcommand that needs root runs without.
pub fn require_root(what: &str) -> Result<(), Failure> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(format!("{what} needs root").into()) }
}

/// A program started by slurmd or systemd must not end when its reader is gone (a dead logger).
pub fn ignore_sigpipe() {
    // SAFETY: ignoring a signal runs no code of this program.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
}

/// The fence, if there is one. An error is for the job's user.
pub fn fenced<T>(answer: Answer<T>) -> Result<Option<T>, String> {
    match answer {
        Answer::Fenced(value) => Ok(Some(value)),
        Answer::Off => Ok(None),
        Answer::Unfenced { by, why, .. } => {
            log::warn!("a job goes on WITHOUT a fence ({by}): {why}");
            Ok(None)
        }
        Answer::Refused(why) => Err(why.for_user()),
    }
}
