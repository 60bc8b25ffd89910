// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step costs beside others: the system calls of its callbacks, counted alone and beside a thousand live steps.
//!
//! The step goes through the callbacks in the stand-in for slurmstepd, under ptrace. Processes that own records and directories play the
//! other steps. All of them are where systemd has slurmd, so that they share that directory, too.

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
