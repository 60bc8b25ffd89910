// SPDX-License-Identifier: GPL-2.0-or-later
//! The stand-in in the cgroup by which HTCondor knows a starter. With `CGROUP_ALL_DAEMONS`, from 24.8 on, the startd or the schedd makes a
//! cgroup for each starter. It kills the processes in there to end a starter that hangs, and again when a starter has ended
//! (`ProcFamilyDirectCgroupV2::kill_family`).
//!
//! The starter has left that cgroup for the fence, and the stand-in stays there. When the stand-in is killed, the watcher ends the fence,
//! and with it the starter. The watcher itself moves to the daemon's cgroup, or it would be killed before it has closed the fence.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::process::ExitCode;

use jobfence::cgroup::membership::Membership;
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, execve, getpid, getppid, pause};

use crate::schedulers::htcondor::monitor::unified;

/// The first word of the stand-in's command line.
const STAND_IN: &CStr = c"jobfence-stand-in";
/// The cgroup of the daemon that has started this process, if this process is in another.
pub fn daemons_cgroup() -> Option<Dir> {
    let proc = Dir::open("/proc").ok()?;
    let of = |pid: Pid| Membership::read(&proc, pid.as_raw()).ok();
    let (ours, daemons) = (of(getpid())?, of(getppid())?);
    let path = daemons.in_unified().filter(|path| ours.in_unified() != Some(path))?;
    let opened = unified()?.dir_of(path);
    opened.inspect_err(|error| log::warn!("the cgroup of HTCondor's daemon is not found: {error}")).ok()
}

/// In the child that becomes the watcher, before its exec: starts the stand-in, and moves this process to the daemon's cgroup.
pub fn leave_stand_in(daemons: &Dir, program: &CStr, null: &File) {
    let parent = getpid();
    let stand_in = child::start(|| {
        let dies_with_its_parent = set_pdeathsig(Signal::SIGKILL).is_ok();
        if dies_with_its_parent && getppid() == parent && dup2_stdin(null).is_ok() && dup2_stdout(null).is_ok() {
            let _ = execve(program, &[STAND_IN], &[] as &[CString]);
        }
        0
    });
    if let Err(errno) = stand_in {
        log::warn!("HTCondor cannot end the starter if that hangs: fork: {}", errno.desc());
    }
    if let Err(error) = daemons.write("cgroup.procs", &parent.to_string()) {
        log::warn!("the process that waits for the end of the job stays in the starter's cgroup: {error}");
    }
}

/// Runs as the stand-in. `None`: this process is not the stand-in.
pub fn stand_in() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    (words.next()?.to_str() == STAND_IN.to_str().ok() && words.next().is_none()).then_some(())?;
    loop {
        pause();
    }
}

/// The state of the stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandIn {
    /// There is none, or it could not be started.
    Missing,
    Living,
    /// HTCondor or an administrator has killed it.
    Killed,
}

/// Called by the watcher, whose only child is the stand-in. That it was killed is returned once.
pub fn look() -> StandIn {
    match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => StandIn::Living,
        Ok(WaitStatus::Signaled(..)) => StandIn::Killed,
        _ => StandIn::Missing,
    }
}
