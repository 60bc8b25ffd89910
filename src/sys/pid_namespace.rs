// SPDX-License-Identifier: GPL-2.0-or-later
//! A PID namespace for children of this process, and the init process of it: pid_namespaces(7).
//!
//! The process that makes the namespace is not in it. The first child that it starts from then on is the init process, and the next is there,
//! too, as this process's own child: so this process sees how it ends, stops it and signals it as any other child.
//!
//! Only for programs of one thread.

use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, sigaction};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, chdir, dup2_stdin, pipe2, read, setsid, write};

use super::dir::Dir;
use super::{child, process};
use crate::error::{Error, Result};

/// Where a process's own namespace is.
const OWN: &str = "/proc/self/ns/pid";
/// What `ps` calls the init process.
const NAME: &std::ffi::CStr = c"jobfence-init";

/// A namespace with its init process. When it is dropped, all that is in it dies.
#[derive(Debug)]
pub struct PidNamespace {
    init: Pid,
    /// The namespace of this process.
    own: OwnedFd,
    /// Whether the init process was waited for.
    is_gone: bool,
}

fn failed(op: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| {
        let error = Error::new(op).errno(errno);
        match errno {
            Errno::ENOSPC | Errno::EUSERS => {
                error.hint(
                    "raise /proc/sys/user/max_pid_namespaces (there are at most 32 levels), or set PrivatePIDs=no in jobfence.conf",
                )
            }
            Errno::EPERM => error.hint("it needs CAP_SYS_ADMIN, which root in a container may lack"),
            Errno::EINVAL | Errno::ENOENT => {
                error.hint("this kernel may have no PID namespaces: set PrivatePIDs=no in jobfence.conf")
            }
            _ => error,
        }
    }
}

impl PidNamespace {
    /// The number there of the first child that this process starts after [`Self::begin`].
    pub const FIRST: Pid = Pid::from_raw(2);

    /// Makes a namespace. Each child that this process starts before [`Self::leave`] is in it.
    pub fn begin() -> Result<Self> {
        child::keep_until_waited().map_err(failed("wait for children (PrivatePIDs)"))?;
        let own = open(OWN, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(failed("open this process's PID namespace (PrivatePIDs)"))?;
        let (ready, tell) = pipe2(OFlag::O_CLOEXEC).map_err(failed("make a pipe (PrivatePIDs)"))?;
        unshare(CloneFlags::CLONE_NEWPID).map_err(failed("make a PID namespace (PrivatePIDs)"))?;
        let begun =
            child::start(|| be_init(&tell)).map_err(failed("start the init process of a PID namespace (PrivatePIDs)"));
        let init = begun.inspect_err(|_| {
            let _ = setns(&own, CloneFlags::CLONE_NEWPID);
        })?;
        let namespace = Self { init, own, is_gone: false };
        drop(tell);
        let mut word = [0u8; 1];
        match read(&ready, &mut word) {
            Ok(1) => Ok(namespace),
            _ => {
                // Nothing may be started in a namespace whose init process is dead.
                let _ = namespace.leave();
                Err(Error::new("the init process of a PID namespace did not begin (PrivatePIDs)"))
            }
        }
    }

    /// From now on, this process starts children in its own namespace again.
    pub fn leave(&self) -> Result<()> {
        setns(&self.own, CloneFlags::CLONE_NEWPID)
            .map_err(failed("start children in the own PID namespace again (PrivatePIDs)"))
    }

    /// Whether the init process has been killed, and so all that was in the namespace: it ends after them.
    pub fn is_ending(&self, proc: &Dir) -> bool {
        self.is_gone || process::is_ending(proc, self.init.as_raw())
    }

    /// The init process ends after all others in the namespace. So this waits for each child of this process.
    fn has_ended(&mut self) -> bool {
        while !self.is_gone {
            // SAFETY: no place for a status, and a flag. nix knows no end by a signal for real time.
            match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
                0 => break,
                child => self.is_gone = child < 0 || child == self.init.as_raw(),
            }
        }
        self.is_gone
    }

    /// Kills all that is in it, and does not wait.
    pub fn kill(&self) {
        if !self.is_gone {
            // It is not waited for yet, so the number is still its own.
            let _ = kill(self.init, Signal::SIGKILL);
        }
    }

    /// Kills all that is in it, and waits up to the deadline. No other child of this process may be wanted any more.
    pub fn end(&mut self, deadline: Instant) {
        self.kill();
        while !self.has_ended() && Instant::now() < deadline {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}

/// Whether this process is in such a namespace, by the `/proc` that it sees.
pub fn is_within(proc: &Dir) -> bool {
    process::name(proc, 1).is_some_and(|name| name.as_bytes() == NAME.to_bytes()) && process::uid(proc, 1) == Some(0)
}

/// The init process: the kernel gives it the orphans of its namespace, and reaps them for it. It has no descriptor, is in no terminal's
/// session, and no signal but SIGKILL and SIGSTOP of those outside ends or stops it.
fn be_init(tell: &OwnedFd) -> i32 {
    let is_ready = || -> nix::Result<()> {
        // It ends with this process, however that ends.
        set_pdeathsig(Signal::SIGKILL)?;
        setsid()?;
        let _ = set_name(NAME);
        chdir("/")?;
        // As SIGCHLD is ignored, the kernel keeps no zombie for it: wait(2). For the others Rust's library has handlers, and a signal with
        // one would reach it.
        let handlers = [
            (Signal::SIGCHLD, SigHandler::SigIgn),
            (Signal::SIGSEGV, SigHandler::SigDfl),
            (Signal::SIGBUS, SigHandler::SigDfl),
        ];
        for (signal, handler) in handlers {
            // SAFETY: no code of this program runs.
            unsafe { sigaction(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty())) }?;
        }
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        dup2_stdin(tell)?;
        child::close_all_but_stdin();
        // If its maker is dead by now, nobody reads the pipe.
        write(std::io::stdin(), b"!").map(drop)
    };
    if is_ready().is_err() {
        return 1;
    }
    // SAFETY: nothing of this process reads or writes any more.
    unsafe { libc::close(0) };
    loop {
        // SAFETY: waits for a signal, and nothing else.
        unsafe { libc::pause() };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::geteuid;

    use super::*;

    #[test]
    fn what_is_in_a_namespace_ends_with_it() {
        if !geteuid().is_root() {
            return crate::skip::skip("needs root");
        }
        // A test has several threads, so a child makes the namespace.
        let in_one = || {
            let proc = Dir::open("/proc").unwrap();
            let mut namespace = PidNamespace::begin().unwrap();
            let (first, said) = child::ask(|| format!("{}", Pid::this()).into_bytes()).unwrap();
            let second = child::start(|| {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
                0
            })
            .unwrap();
            namespace.leave().unwrap();
            let (outside, theirs) = child::ask(|| format!("{}", Pid::this()).into_bytes()).unwrap();
            let number = |pipe: &OwnedFd| {
                let mut text = [0u8; 20];
                let length = read(pipe, &mut text).unwrap();
                String::from_utf8_lossy(&text[..length]).parse::<i32>().unwrap()
            };
            assert_eq!((number(&said), number(&theirs)), (2, outside.as_raw()));
            assert!(!namespace.is_ending(&proc));
            waitpid(first, None).unwrap();
            waitpid(outside, None).unwrap();
            kill(namespace.init, Signal::SIGTERM).unwrap();
            assert!(!namespace.is_ending(&proc));
            kill(namespace.init, Signal::SIGKILL).unwrap();
            assert_eq!(waitpid(second, None), Ok(WaitStatus::Signaled(second, Signal::SIGKILL, false)));
            assert!(namespace.is_ending(&proc));
            namespace.end(Instant::now() + Duration::from_secs(300));
            assert!(namespace.is_ending(&proc) && namespace.has_ended());
            7
        };
        let child = child::start(in_one).unwrap();
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 7)));
    }
}
