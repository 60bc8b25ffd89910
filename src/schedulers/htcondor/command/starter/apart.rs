// SPDX-License-Identifier: GPL-2.0-or-later
//! Starts a process that HTCondor never takes for one of its starter's.
//!
//! HTCondor takes the processes that belong to a starter, and kills them with it. It knows them by a variable in their environment
//! (`_CONDOR_ANCESTOR_…`), and by their parent. It looks at all processes of the host whenever any starter begins, and what it has once
//! taken for a starter's stays the starter's (`ProcFamilyMonitor::snapshot` and `ParentTracker::check_process`, read in the sources of
//! 25.x). So a grandchild whose parent ends at once is not enough: if it is seen before its exec, it has the variable, and if it is seen
//! before its parent's end, it has the parent.
//!
//! So there are three processes. The first has an exec that leaves the environment behind. It starts the second, and ends. The second may
//! be taken for the starter's. It waits until the init process is its parent, and then starts the third as a sibling. The third has init as
//! its parent and no variable from its first moment on.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::sys::child::{self, leave_descriptors};
use jobfence::sys::dir::Dir;
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, execv, execve, getpid, getppid, setsid, write};

use super::family;

/// The first word of the command line of the first two processes. The third one's words follow it.
const APART: &CStr = c"jobfence-apart";
/// This program.
const THIS: &CStr = c"/proc/self/exe";
/// How long the starter waits for the third process to run its program, and the second for the end of the first.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the third process says when it runs its program.
const RUNS: &[u8] = b"!";

/// Starts this program with these words, this environment and no other, in a session of its own, and waits until it runs. It calls
/// [`say_that_it_runs`]. `daemons`: the cgroup of HTCondor's daemon, for a process that leaves a stand-in behind.
pub fn start(words: &[CString], environment: &[CString], daemons: Option<&Dir>) -> Result<()> {
    let io = |what: &'static str| move |error: io::Error| Error::new(format!("{what}: {error}"));
    let os = |what: &'static str| move |errno| Error::new(what).errno(errno);
    let null = null().map_err(io("open /dev/null"))?;
    let (mut ours, theirs) = UnixStream::pair().map_err(io("make a pair of sockets"))?;
    let all: Vec<&CStr> = [APART].into_iter().chain(words.iter().map(CString::as_c_str)).collect();
    let first = child::start(|| {
        let out = daemons.map_or(null.as_fd(), AsFd::as_fd);
        let _ = (dup2_stdin(&theirs), dup2_stdout(out), dup2_stderr(&null));
        let _ = leave_descriptors();
        let _ = execve(THIS, &all, environment);
        1
    });
    let first = first.map_err(os("fork"))?;
    drop(theirs);
    child::wait(first).map_err(os("wait for a child"))?;
    ours.set_read_timeout(Some(PATIENCE)).map_err(io("limit a wait"))?;
    ours.read_exact(&mut [0]).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::new("it has ended before it could begin"),
        io::ErrorKind::WouldBlock => Error::new("it has not begun in").value(format!("{} s", PATIENCE.as_secs())),
        _ => io("wait for its beginning")(error),
    })
}

/// Runs as the first process, and its children as the other two. `None`: this process is none of them.
pub fn apart() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    (words.next()? == OsStr::new(APART.to_str().ok()?)).then_some(())?;
    let words: Vec<CString> = words.filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    let _ = setsid();
    let first = getpid();
    let second = child::start(|| {
        if !becomes_inits(first) {
            return 1;
        }
        i32::from(child::start_sibling(|| third(&words)).is_err())
    });
    Some(if second.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// In the second process: waits until the first is its parent no more.
fn becomes_inits(first: Pid) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while getppid() == first {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn third(words: &[CString]) -> i32 {
    let Ok(null) = null() else { return 1 };
    // The kernel's link leads to what is open, wherever that is now. /dev/null is no directory.
    if let Ok(daemons) = Dir::open("/proc/self/fd/1") {
        family::leave_stand_in(&daemons, THIS, &null);
        let _ = dup2_stdout(&null);
    }
    let _ = execv(THIS, words);
    1
}

/// In the third process, when it runs its program: has the starter go on.
pub fn say_that_it_runs() {
    let _ = write(io::stdin(), RUNS);
    if let Ok(null) = null() {
        let _ = dup2_stdin(&null);
    }
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}
