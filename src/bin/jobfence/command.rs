// SPDX-License-Identifier: GPL-2.0-or-later
//! What every subcommand may need: how it fails, and what it asks of its process.

use jobfence::launch::Answer;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Anything that ends a subcommand with one line on stderr and status 1.
pub type Failure = Box<dyn std::error::Error>;

/// What needs root says so before it fails halfway.
pub fn require_root(what: &str) -> Result<(), Failure> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(format!("{what} needs root").into()) }
}

/// What slurmd or systemd has started is not ended by a reader that went away (a logger that has died).
pub fn ignore_sigpipe() {
    // SAFETY: ignoring a signal is no code of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
}

/// Whether there is a fence; an error is for the job's user.
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
