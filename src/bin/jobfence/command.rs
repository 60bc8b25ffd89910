// SPDX-License-Identifier: GPL-2.0-or-later
//! What every subcommand may need: how it fails, and what it asks of its process.

use std::io;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

/// Runs a command that must not take for ever: it is killed at the deadline, and has said nothing then. It may say 64 KiB.
pub fn output_until(command: &mut Command, deadline: Instant) -> io::Result<Option<Output>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().map(Some)
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
