// SPDX-License-Identifier: GPL-2.0-or-later
//! The check for health checks of nodes, such as NHC: one line in bounded time.
//!
//! A child does the work. It can wait for ever in the kernel, for a file of a dead server; then the line says that nothing is known, and
//! that is no failure: it must not take a node out of service.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jobfence::sys::child;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout};

use super::document;
use super::rows::{Form, Rows};
use super::verdict::{Judgement, VerdictWord};

/// How long the work may then take to remove its directories. By default the whole is less than the 5 seconds for which NHC waits.
const TO_END: Duration = Duration::from_secs(1);

/// Prints the line of what `judge` finds within so many seconds, and fails only if jobs are not as they are configured to be.
pub fn check(within: u32, judge: impl FnOnce(&mut Rows) -> Judgement) -> ExitCode {
    let longest = Duration::from_secs(within.into());
    let deadline = Instant::now() + longest;
    let asked = child::ask(|| {
        // NHC may end this process.
        let _ = set_pdeathsig(Signal::SIGTERM);
        // A child that stays must not keep the reader of this process's output waiting.
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            let _ = dup2_stdout(&null);
            let _ = dup2_stderr(&null);
        }
        let mut rows = Rows::new(Form::Health);
        // One asks twice.
        rows.patience = longest / 3;
        let judged = judge(&mut rows);
        let fails = judged.short().0 == VerdictWord::Unfenced;
        format!("{}{}", u8::from(fails), document::line(&judged)).into_bytes()
    });
    let said = match asked {
        Err(errno) => Err(format!("no process can be started: {errno}")),
        Ok((pid, pipe)) => {
            let said = read(pipe, deadline)
                .and_then(|said| said.ok_or_else(|| format!("the check was not done after {within} seconds")));
            end(pid);
            said
        }
    };
    let (fails, line) = match said.as_deref().map(|text| text.split_at_checked(1)) {
        Ok(Some((fails, line))) => (fails == "1", line.to_owned()),
        Ok(None) => (false, format!("{}: the check ended before it was done", VerdictWord::Unknown)),
        Err(why) => (false, format!("{}: {why}", VerdictWord::Unknown)),
    };
    println!("{line}");
    if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// All that is written into the pipe; `None`: it was still open at the deadline.
fn read(pipe: OwnedFd, deadline: Instant) -> Result<Option<String>, String> {
    let mut pipe = File::from(pipe);
    let mut said = Vec::new();
    let mut some = [0; 4096];
    loop {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Ok(None) };
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(format!("the check cannot be read: {errno}")),
        }
        match pipe.read(&mut some) {
            Ok(0) => return Ok(Some(String::from_utf8_lossy(&said).into_owned())),
            Ok(length) => said.extend_from_slice(some.get(..length).unwrap_or_default()),
            Err(error) => return Err(format!("the check cannot be read: {error}")),
        }
    }
}

/// Ends the child. Its trial removes its directories first.
fn end(pid: Pid) {
    for (signal, patience) in [(Signal::SIGTERM, TO_END), (Signal::SIGKILL, Duration::ZERO)] {
        if kill(pid, signal).is_err() {
            return;
        }
        let until = Instant::now() + patience;
        loop {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) if Instant::now() < until => {
                    let _ = poll(&mut [], PollTimeout::from(2u8));
                }
                Ok(WaitStatus::StillAlive) => break,
                _ => return,
            }
        }
    }
}
