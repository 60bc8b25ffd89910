// SPDX-License-Identifier: GPL-2.0-or-later
//! Where HTCondor knows a starter by its cgroup. With `CGROUP_ALL_DAEMONS`, from 24.8 on, the startd or the schedd makes one for each starter,
//! and kills what is in there, to end a starter that hangs, and again when one has ended (`ProcFamilyDirectCgroupV2::kill_family`).
//!
//! The starter has left that cgroup for the fence. So a process stays there in its place: when that is killed, the watcher ends the fence, and
//! with it the starter. The watcher itself goes to where the daemon is, or it would be killed before it has closed the fence.

use std::ffi::{CStr, CString};
use std::process::ExitCode;

use jobfence::sys::dir::Dir;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, execve, fork, getpid, getppid, pause};

/// The first word of its command line.
const STAND_IN: &CStr = c"jobfence-stand-in";
/// Where the one hierarchy is mounted.
pub const UNIFIED: &str = "/sys/fs/cgroup";

/// The cgroup of the daemon that has started this process, if this one has another.
pub fn daemons_cgroup() -> Option<Dir> {
    let of = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::/").map(str::to_owned))
    };
    let (ours, daemons) = (of("self")?, of(&getppid().to_string())?);
    if ours == daemons {
        return None;
    }
    let opened = Dir::open(UNIFIED).and_then(|root| root.child(daemons.as_str()));
    opened.inspect_err(|error| log::warn!("the cgroup of HTCondor's daemon is not found: {error}")).ok()
}

/// In the child that becomes the watcher, before its exec: leaves a process where this one is, and goes to the daemon.
pub fn leave_stand_in(daemons: &Dir, program: &CStr) {
    let parent = getpid();
    // SAFETY: this process has one thread, so the child may do what it likes until its exec.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let signal = Signal::SIGKILL as libc::c_ulong;
            // SAFETY: this takes two numbers.
            let dies_with_its_parent = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } == 0;
            if dies_with_its_parent && getppid() == parent {
                let _ = execve(program, &[STAND_IN], &[] as &[CString]);
            }
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { .. }) => {}
        Err(errno) => log::warn!("HTCondor cannot end the starter if that hangs: fork: {}", errno.desc()),
    }
    if let Err(error) = daemons.write("cgroup.procs", &parent.to_string()) {
        log::warn!("the process that waits for the end of the job stays in the starter's cgroup: {error}");
    }
}

/// As that process. `None`: this is none.
pub fn stand_in() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    (words.next()?.to_str() == STAND_IN.to_str().ok() && words.next().is_none()).then_some(())?;
    loop {
        pause();
    }
}

/// What has become of that process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandIn {
    /// There is none, or it could not be started.
    Missing,
    Living,
    /// By HTCondor, or by an administrator.
    Killed,
}

/// Asked by the watcher, whose only child it is. That it was killed is said once.
pub fn look() -> StandIn {
    match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => StandIn::Living,
        Ok(WaitStatus::Signaled(..)) => StandIn::Killed,
        _ => StandIn::Missing,
    }
}
