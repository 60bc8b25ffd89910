// SPDX-License-Identifier: GPL-2.0-or-later
//! Ends tasks that wait before their exec, so that their user reads why.

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys::dir::Dir;
use crate::sys::process::is_ending;

/// How many milliseconds they have to die of the first signal.
const PATIENCE: u32 = 20;

/// Ends tasks that wait before their exec. They are our caller's children and not waited for yet, so the pids are still their own.
///
/// When srun hears that a task died of SIGKILL or SIGTERM, it throws away what has not reached it of the step's output, and
/// with it the reason that the user should read. So they die of another signal, which nobody blocks or handles there and
/// which writes no core. If somebody does handle it: SIGKILL, some milliseconds later, since a process that was just being woken
/// for something else would die of that instead.
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
