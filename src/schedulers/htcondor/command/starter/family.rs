// SPDX-License-Identifier: GPL-2.0-or-later
//! Where HTCondor knows a starter by its cgroup. With `CGROUP_ALL_DAEMONS`, from 24.8 on, the startd or the schedd makes one for each starter,
//! and kills what is in there, to end a starter that hangs, and again when one has ended (`ProcFamilyDirectCgroupV2::kill_family`).
//!
//! The starter has left that cgroup for the fence. So a process stays there in its place: when that is killed, the watcher ends the fence, and
//! with it the starter. The watcher itself goes to where the daemon is, or it would be killed before it has closed the fence.

use std::ffi::{CStr, CString};
use std::process::ExitCode;

use jobfence::cgroup::membership::Membership;
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, execve, getpid, getppid, pause};

use crate::schedulers::htcondor::monitor::unified;

/// The first word of its command line.
const STAND_IN: &CStr = c"jobfence-stand-in";
/// The cgroup of the daemon that has started this process, if this one has another.
pub fn daemons_cgroup() -> Option<Dir> {
    let proc = Dir::open("/proc").ok()?;
    let of = |pid: Pid| Membership::read(&proc, pid.as_raw()).ok();
    let (ours, daemons) = (of(getpid())?, of(getppid())?);
    let path = daemons.in_unified().filter(|path| ours.in_unified() != Some(path))?;
    let opened = unified()?.dir_of(path);
    opened.inspect_err(|error| log::warn!("the cgroup of HTCondor's daemon is not found: {error}")).ok()
}

/// In the child that becomes the watcher, before its exec: leaves a process where this one is, and goes to the daemon.
pub fn leave_stand_in(daemons: &Dir, program: &CStr) {
    let parent = getpid();
    let stand_in = child::start(|| {
        let dies_with_its_parent = set_pdeathsig(Signal::SIGKILL).is_ok();
        if dies_with_its_parent && getppid() == parent {
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
