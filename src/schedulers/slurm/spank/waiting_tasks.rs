// SPDX-License-Identifier: GPL-2.0-or-later
//! Ends tasks that wait before their exec, in a way that lets the user read why.

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys::dir::Dir;
use crate::sys::process::is_ending;

/// How many milliseconds the tasks have to die of the first signal.
const PATIENCE: u32 = 20;

/// Ends tasks that wait before their exec. They are the calling process's children and not yet waited for, so the pids are still theirs.
///
/// When srun hears that a task died of SIGKILL or SIGTERM, it discards the step's output that has not reached it, and with it the reason
/// that the user should read. So the tasks get another signal, which nothing blocks or handles there and which writes no core. In case it
/// is handled, SIGKILL follows some milliseconds later: not at once, since a process that was just being woken for something else would die
/// of that instead.
pub fn end(proc: Option<&Dir>, pids: &[i32]) {
    let send = |signal| {
        for pid in pids {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
    };
    send(Signal::SIGVTALRM);
    for _ in 0..PATIENCE {
        if proc.is_none_or(|proc| pids.iter().all(|pid| is_ending(proc, *pid))) {
            break;
        }
        let _ = poll(&mut [], PollTimeout::from(1u8));
    }
    send(Signal::SIGKILL);
}
