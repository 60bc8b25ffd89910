// SPDX-License-Identifier: GPL-2.0-or-later
//! How long a step's directories outlive its last process.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::Duration;

use jobfence::fence::Fence;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe, read};

use crate::Failure;
use crate::place::{Place, soon};
use crate::trace::between_marks;

/// How the last process of a step ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, before the fence is closed; measured from its own last moment.
    Exited,
    /// It is still there, and closing the fence kills it; measured from the call.
    Straggler,
}

/// How long a process is in its step before that is closed: the kernel tells of the last exit at once, but not within 10 ms
/// of telling something else about the same cgroup (CGROUP_FILE_NOTIFY_MIN_INTV), as that its first process has come.
pub const LIFE: Duration = Duration::from_millis(25);

/// A fenced step with one process, ready to be closed.
pub struct Step {
    fence: Fence,
    member: Member,
    end: End,
}

impl Step {
    /// Sets up the step and puts a process into it.
    pub fn start(place: &Place, end: End) -> Result<Self, Failure> {
        let (mut fence, _) = place.set_up()?;
        let member = Member::start()?;
        fence.attach(&place.host, member.pid.as_raw(), None)?;
        std::thread::sleep(LIFE);
        Ok(Self { fence, member, end })
    }

    /// Lets the process end in its way and closes the fence: how long the directories were there in vain.
    pub fn close(mut self) -> Result<Duration, Failure> {
        let start = match self.end {
            End::Exited => self.member.exit()?,
            End::Straggler => now(),
        };
        between_marks(|| self.fence.close(soon()))?;
        let gone = now();
        if self.end == End::Straggler {
            self.member.was_killed()?;
        }
        Ok(gone.saturating_sub(start))
    }
}

/// A child that does nothing until it is told to exit.
pub struct Member {
    pid: Pid,
    /// Closing it is the word.
    stay: Option<OwnedFd>,
    /// Where the child notes its last moment.
    page: Page,
    waited: bool,
}

impl Member {
    /// Starts it.
    pub fn start() -> Result<Self, Failure> {
        let page = Page::new()?;
        let (word, stay) = pipe()?;
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, stay: Some(stay), page, waited: false }),
            ForkResult::Child => {
                drop(stay);
                let _ = read(&word, &mut [0]);
                page.note(now());
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Waits for it as a step daemon does; returns its last moment.
    fn exit(&mut self) -> Result<Duration, Failure> {
        drop(self.stay.take());
        self.waited = true;
        waitpid(self.pid, None)?;
        Ok(self.page.noted())
    }

    /// As the kernel knows it.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits until it has been killed.
    pub fn was_killed(&mut self) -> Result<(), Failure> {
        self.waited = true;
        match waitpid(self.pid, None)? {
            WaitStatus::Signaled(_, Signal::SIGKILL, _) => Ok(()),
            other => Err(format!("the straggler was not killed: {other:?}").into()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.waited {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

/// Memory that a child shares with us: one duration.
struct Page(NonNull<Duration>);

impl Page {
    const LENGTH: usize = size_of::<Duration>();

    fn new() -> nix::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at a place of the kernel's choice overlaps nothing.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), Self::LENGTH, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        NonNull::new(page.cast()).map(Self).ok_or(Errno::EFAULT)
    }

    fn note(&self, moment: Duration) {
        // SAFETY: our own mapping, page-aligned; the parent does not look at it before our end.
        unsafe { self.0.write_volatile(moment) };
    }

    fn noted(&self) -> Duration {
        // SAFETY: as above; the child that wrote it has ended, and zeros are a duration too.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::LENGTH) };
    }
}

/// A clock that parent and child share; an `Instant` cannot be handed over.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that exists, and a valid place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
