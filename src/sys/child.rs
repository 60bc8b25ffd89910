// SPDX-License-Identifier: GPL-2.0-or-later
//! Children of this process. No other code forks.
//!
//! Only for programs of one thread. A child has a copy of the calling thread alone, so it would wait for ever for a lock that another
//! thread held. With one thread, the child may do before its exec what any process may.

use std::convert::Infallible;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, SysconfVar, getppid, pipe2, read, setsid, sysconf, write};

use super::dir::Dir;
use crate::error::{Error, Result};

/// Forks. `None` in the child, which must end with `end_after`.
fn fork() -> nix::Result<Option<Pid>> {
    // SAFETY: the C library makes its memory usable in the child, and the child never returns to the code of its parent.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(None),
        ForkResult::Parent { child } => Ok(Some(child)),
    }
}

/// Ends the process with the status that `what` returns, or with 1 at a panic, which must not go on in a copy of the parent.
fn end_after(what: impl FnOnce() -> i32) -> ! {
    struct AtPanic;
    impl Drop for AtPanic {
        fn drop(&mut self) {
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(1) }
        }
    }
    let _at_panic = AtPanic;
    let status = what();
    // SAFETY: as above.
    unsafe { libc::_exit(status) }
}

/// Starts a child that ends with the status that `what` returns.
pub fn start(what: impl FnOnce() -> i32) -> nix::Result<Pid> {
    match fork()? {
        None => end_after(what),
        Some(child) => Ok(child),
    }
}

/// Bytes of the stack on which a sibling runs until its exec.
const SIBLINGS_STACK: usize = 256 << 10;

/// Starts a process that ends with the status that `what` returns. Its parent is the parent of this process, from its first moment on. So
/// whoever looks for the children of this process never finds it.
pub fn start_sibling(what: impl FnOnce() -> i32) -> nix::Result<Pid> {
    let mut what = Some(what);
    let run: Box<dyn FnMut() -> isize + '_> = Box::new(|| match what.take() {
        Some(what) => end_after(what),
        None => 1,
    });
    let mut stack = vec![0; SIBLINGS_STACK];
    // SAFETY: without CLONE_VM the process has a copy of all memory, with this stack, and never returns to the code of its parent.
    unsafe { clone(run, &mut stack, CloneFlags::CLONE_PARENT, None) }
}

/// Starts a child, and returns it with a pipe that gets its answer. An answer of up to 4096 bytes arrives at once, and whole.
pub fn ask(answer: impl FnOnce() -> Vec<u8>) -> nix::Result<(Pid, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let child = start(|| {
        let _ = write(&writer, &answer());
        0
    })?;
    Ok((child, reader))
}

/// Starts a process in a session of its own. The init process becomes its parent, so this process need not wait for it.
pub fn start_orphan(what: impl FnOnce()) -> Result<()> {
    let os = |op: &'static str| move |errno| Error::new(op).errno(errno);
    let of_orphan = || {
        what();
        0
    };
    let between = || {
        let _ = setsid();
        i32::from(start(of_orphan).is_err())
    };
    let child = start(between).map_err(os("fork"))?;
    wait(child).map_err(os("wait for the parent of a process without one"))
}

/// From now on, the kernel keeps each child that has ended until this process waits for it. With SIGCHLD inherited as ignored it would reap
/// the child, no SIGCHLD would arrive, and the child's number could be a stranger's.
pub fn keep_until_waited() -> nix::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program.
    unsafe { sigaction(Signal::SIGCHLD, &default) }.map(drop)
}

/// Waits for the end of a child.
pub fn wait(child: Pid) -> nix::Result<()> {
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// To be called in a child, before its exec: the program then gets no descriptors but the first three. If the open descriptors cannot be
/// listed, the error is returned, and the program gets none below 1024 all the same.
pub fn leave_descriptors() -> nix::Result<()> {
    let open = Dir::open("/proc/self/fd").and_then(|dir| dir.list(false));
    let done = open.as_ref().map(drop).map_err(|_| Errno::EBADF);
    let numbers = open.map_or_else(
        |_| (0..1024).collect::<Vec<i32>>(),
        |open| open.iter().filter_map(|fd| fd.parse().ok()).collect(),
    );
    for fd in numbers.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: fcntl takes a number, whether or not it is a descriptor, and closes nothing now.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    done
}

/// To be called in a child that becomes no program: closes all descriptors but the first three, also those that are closed at an exec.
pub fn close_descriptors() {
    close_from(3);
}

/// As [`close_descriptors`], and stdout and stderr as well.
pub fn close_all_but_stdin() {
    close_from(1);
}

fn close_from(first: i32) {
    // SAFETY: close_range takes two numbers and no flags. The child uses no descriptor of its parent's after this.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return;
    }
    // Before Linux 5.9, or a filter forbids it.
    let most = sysconf(SysconfVar::OPEN_MAX).ok().flatten().and_then(|most| i32::try_from(most).ok());
    for fd in first..most.unwrap_or(1024).min(1 << 20) {
        // SAFETY: close takes a number, whether or not it is a descriptor. As above, nothing of the child uses it.
        unsafe { libc::close(fd) };
    }
}

/// A child that runs nothing before its parent has placed it, and then becomes a program.
#[derive(Debug)]
pub struct PlacedChild {
    /// The child. The caller waits for it.
    pub pid: Pid,
    failure: OwnedFd,
}

impl PlacedChild {
    /// Calls `place` with the child. If that fails, the child ends. Otherwise the child calls `become_program`.
    pub fn start(
        place: impl FnOnce(Pid) -> Result<()>,
        become_program: impl FnOnce() -> Result<Infallible>,
    ) -> Result<Self> {
        let os = |op: &'static str| move |errno| Error::new(op).errno(errno);
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(os("make a pipe"));
        let ((wait, go), (failure, fail)) = (pipe()?, pipe()?);
        let parent = Pid::this();
        let Some(pid) = fork().map_err(os("fork"))? else {
            end_after(|| {
                drop((go, failure));
                let error = match wait_for_place(&wait, parent).and_then(|()| become_program()) {
                    Ok(never) => match never {},
                    Err(error) => error,
                };
                let _ = write(&fail, error.to_string().as_bytes());
                127
            })
        };
        drop((wait, fail));
        if let Err(error) = place(pid) {
            // The child reads no byte, and ends when the pipe is closed.
            drop(go);
            let _ = waitpid(pid, None);
            return Err(error);
        }
        let _ = write(&go, b"!");
        Ok(Self { pid, failure })
    }

    /// Why the child has not become its program. Waits until it has, or has ended.
    pub fn failure(&self) -> Option<Error> {
        let mut why = [0u8; 1024];
        let length = read(&self.failure, &mut why).ok().filter(|length| *length > 0)?;
        Some(Error::new(String::from_utf8_lossy(why.get(..length)?).into_owned()))
    }
}

/// In the child: waits until the parent has placed it.
fn wait_for_place(wait: &OwnedFd, parent: Pid) -> Result<()> {
    let mut word = [0u8; 1];
    let length = read(wait, &mut word).map_err(|errno| Error::new("wait for the fence").errno(errno))?;
    // End of file: the parent could not place this process, or is gone.
    // The first process of a pid namespace sees no parent: 0.
    if length != 1 || ![parent, Pid::from_raw(0)].contains(&getppid()) {
        return Err(Error::new("the process that fences the job is gone"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::WaitStatus;

    use super::*;

    #[test]
    fn a_child_ends_also_at_a_panic() {
        let status = |what: fn() -> i32| {
            let child = start(what).unwrap();
            match waitpid(child, None).unwrap() {
                WaitStatus::Exited(_, status) => status,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(status(|| 7), 7);
        assert_eq!(status(|| std::panic::resume_unwind(Box::new(()))), 1);
    }

    #[test]
    fn a_child_runs_nothing_before_it_is_placed() {
        let shared = crate::sys::shared::SharedNumber::new().unwrap();
        let begin = || -> Result<Infallible> {
            shared.set(1);
            Err(Error::new("there is no program"))
        };
        assert_eq!(PlacedChild::start(|_| Err(Error::new("no")), begin).map(drop).unwrap_err().to_string(), "no");
        assert_eq!(shared.get(), 0);
        let child = PlacedChild::start(
            |_| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert_eq!(shared.get(), 0);
                Ok(())
            },
            begin,
        )
        .unwrap();
        assert_eq!(child.failure().unwrap().to_string(), "there is no program");
        assert_eq!((waitpid(child.pid, None), shared.get()), (Ok(WaitStatus::Exited(child.pid, 127)), 1));
    }
}
