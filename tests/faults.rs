// SPDX-License-Identifier: GPL-2.0-or-later
//! Whatever fails, and whichever process dies: either a task runs in all of its fence, or it does not run and the failure is reported, or
//! (OnError=warn) the log says what is missing. After the janitor has run, nothing is left and no other process is affected.
//!
//! A step goes through all callbacks of the shared object in a stand-in for slurmstepd (`tests/stand_in`), under ptrace. Some undisturbed
//! runs show which system calls it makes in `init_post_opt`, `task_post_fork`, `task_exit` and `exit`, including those of cgroups-rs and
//! the C library. Then there is one run for each of these calls in which it fails. For each call with an outside effect there is one run in
//! which the daemon is killed before it and one after it. What the task finds in /proc/self/cgroup and in the kernel's files is compared
//! with an undisturbed task's. In each step a process stays behind, for `exit` or the janitor to end.
//!
//! 'jobfence reap' is treated in the same way on what a killed daemon left with a process in it, also on a kernel without `cgroup.kill`.
//! All of that is repeated where Slurm has directories of its own for each step, of v1 and of v2: there the calls in these fail, and
//! directories may stay if their daemon was killed before it could mark them. Beside all that, steps of another job, of another user and of
//! the same job are alive, and a process in no fence.
//!
//! Of the calls of one kind (repeated, or in other hierarchies) the first fails, in one of its ways, which take turns. At the first and the
//! last call of a kind with an outside effect the daemon is killed. With `JOBFENCE_FAULTS=all` every call fails in all of its ways, and is
//! the last one. With `JOBFENCE_FAULTS=3/100` only the third of a hundred parts of these additional runs is done. Answers that no kernel
//! gives, such as that an existing directory does not exist, are never used (`lies` in `faults/calls.rs`).
//!
//! Not covered: two failures at once; memory that cannot be allocated, after which Rust ends the process; calls in the task's own process;
//! limits in Slurm's own directories of v2 if the host has its controllers in v1; `jobfence hold`.

mod common;
mod stand_in;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "faults/cases.rs"]
mod cases;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[test]
fn faults_at_system_calls() {
    common::skip("a call is made to fail by the registers of x86_64");
}
