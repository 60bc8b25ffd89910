// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step costs beside others: the system calls of its callbacks are counted, alone and beside a thousand steps that live.
//!
//! The step goes through the callbacks in the stand-in for slurmstepd, under ptrace. The others are played by processes that own records
//! and directories. The step and the others are where systemd has slurmd, so that they are beside each other there, too.

mod common;
mod stand_in;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "faults/calls.rs"]
#[allow(dead_code)]
mod calls;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "faults/trace.rs"]
#[allow(dead_code)]
mod trace;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "crowd/cases.rs"]
mod cases;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[test]
fn a_step_beside_a_thousand() {
    common::skip("calls are counted by the registers of x86_64");
}
