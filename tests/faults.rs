// SPDX-License-Identifier: GPL-2.0-or-later
//! Whatever fails, and whoever dies: a task runs in all of its fence, or it does not run and somebody is told, or (OnError=warn)
//! the log says what is missing; and when the janitor has been there, nothing is left and nobody else has been touched.
//!
//! A step goes through all callbacks of the shared object in a stand-in for slurmstepd (`tests/stand_in`), under ptrace. Some
//! undisturbed runs say which system calls it makes in `init_post_opt`, `task_post_fork`, `task_exit` and `exit`, cgroups-rs's and
//! the C library's among them. Then there is one run for each of these calls in which that call fails, and for each call that
//! others can see one in which the daemon is killed before it and one after it. What the task finds in /proc/self/cgroup and in
//! the kernel's files is compared with what an undisturbed one finds. In each step a process stays behind, for `exit` or the janitor
//! to end. 'jobfence reap' is treated the same on what a killed daemon has left with a process in it, also where the kernel has no
//! `cgroup.kill`. All that once more where Slurm has directories of its own for each step, of v1 and of v2: there the calls in these
//! fail, and directories may stay whose daemon was killed before it could mark them. Beside all that a step of another job, another user
//! or the same job lives, and a process in no fence.
//!
//! Of the calls of a kind (the same in other hierarchies, or again) the first fails, in one of its ways, which take turns. At the first
//! and the last of a kind that others can see there is a death. With `JOBFENCE_FAULTS=all` every call fails in all of its ways, and is
//! the last one. With `JOBFENCE_FAULTS=3/100` there is the third of a hundred parts of what `all` has beyond that. An answer that no
//! kernel gives, such as that a directory is not there which is, is in none of them (`lies` in `faults/calls.rs`).
//!
//! Not covered: two failures at once; memory that cannot be had, by which Rust ends the process; calls in the task's own process;
//! limits in Slurm's own directories of v2, where the host has its controllers in v1; `jobfence hold`.

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
