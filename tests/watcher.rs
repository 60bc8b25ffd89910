// SPDX-License-Identifier: GPL-2.0-or-later
//! HTCondor looks at all processes of a host at any moment, and never takes the watcher of a job for one of the starter's.
//!
//! This process is the starter. It starts `jobfence-apart`, and looks at all processes that come of it as condor_procd does
//! (`ProcFamilyMonitor::snapshot`): at each of their system calls, while they stand still under ptrace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use libc::c_int;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// The program that the watcher becomes here: it waits for ever.
const WAITS: &str = "jobfence-stand-in";
/// Of a stop at a system call: `PTRACE_O_TRACESYSGOOD`.
const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

/// What condor_procd knows of the processes that it has seen: whether they are the starter's. It never changes its mind.
#[derive(Default)]
struct Procd {
    known: BTreeMap<i32, bool>,
}

impl Procd {
    /// Looks at these processes in whatever order, as often as anything new comes of it, and then takes the others for strangers.
    fn look(&mut self, pids: &BTreeSet<i32>) {
        let starter = getpid().as_raw();
        loop {
            let before = self.known.len();
            for pid in pids {
                if self.known.contains_key(pid) {
                    continue;
                }
                let parent = parent_of(*pid);
                let is_child = parent.is_some_and(|parent| parent == starter || self.known.get(&parent) == Some(&true));
                if is_child {
                    self.known.insert(*pid, true);
                }
            }
            if self.known.len() == before {
                break;
            }
        }
        for pid in pids.iter().filter(|pid| parent_of(**pid).is_some()) {
            self.known.entry(*pid).or_insert(false);
        }
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
}

fn go_on(pid: Pid, signal: c_int) {
    // SAFETY: the request uses no address. A tracee that is gone is an error, which its end tells, too.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid.as_raw(), null_mut::<u8>(), signal) };
}

/// Starts it, and follows all that comes of it until `WAITS` pauses. What procd knows then, and who waits. Nothing of it has the variable by
/// which procd knows a starter's processes, too: it begins without an environment.
fn followed() -> (Procd, Pid) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    command.arg0("jobfence-apart").arg(WAITS).env_clear().stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let trace_me = || {
        // SAFETY: asks for nothing but to be traced by the parent.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(trace_me) };
    // Waited for below, and not by the handle.
    #[allow(clippy::zombie_processes)]
    let first = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
    drop(command);
    assert_eq!(waitpid(first, None), Ok(WaitStatus::Stopped(first, Signal::SIGTRAP)));
    // SAFETY: options of a stopped tracee.
    let failed = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, first.as_raw(), null_mut::<u8>(), OPTIONS) };
    assert_eq!(failed, 0, "{}", io::Error::last_os_error());
    let (mut procd, mut alive) = (Procd::default(), BTreeSet::from([first.as_raw()]));
    go_on(first, 0);
    loop {
        let status = waitpid(None::<Pid>, Some(WaitPidFlag::__WALL)).expect("somebody waits in the end");
        let pid = status.pid().unwrap();
        if matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
            alive.remove(&pid.as_raw());
            continue;
        }
        let is_new = alive.insert(pid.as_raw());
        procd.look(&alive);
        let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        let is_pausing = call.split(' ').next() == Some(&libc::SYS_pause.to_string());
        if command_line(pid.as_raw()) == WAITS && is_pausing {
            assert_eq!(
                ours.set_nonblocking(true).and_then(|()| ours.read(&mut [0])).map_err(|error| error.kind()),
                Err(io::ErrorKind::WouldBlock)
            );
            return (procd, pid);
        }
        match status {
            // A new process begins with a stop.
            WaitStatus::Stopped(_, Signal::SIGSTOP) if is_new => go_on(pid, 0),
            WaitStatus::Stopped(_, signal) => go_on(pid, signal as c_int),
            _ => go_on(pid, 0),
        }
    }
}

#[test]
fn htcondor_never_takes_the_watcher_for_the_starters() {
    let (procd, waits) = followed();
    let known: Vec<bool> = procd.known.values().copied().collect();
    let _ = nix::sys::signal::kill(waits, Signal::SIGKILL);
    assert_eq!(procd.known.len(), 3, "the processes that come of it: {:?}", procd.known);
    assert!(known.iter().any(|is_starters| *is_starters), "the first is the starter's: {:?}", procd.known);
    assert_eq!(procd.known.get(&waits.as_raw()), Some(&false), "the watcher: {:?}", procd.known);
}
