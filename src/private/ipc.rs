// SPDX-License-Identifier: GPL-2.0-or-later
//! A step's own System V shared memory, semaphores and message queues (`PrivateIPC`).
//!
//! They are in an IPC namespace: ipc_namespaces(7). The kernel removes them with the namespace, so a killed job leaves none on the host. A new
//! namespace begins with the kernel's own bounds, and not with those that the site has set: these are copied.
//!
//! POSIX message queues are in it, too. But a mount of mqueue shows as files those of the namespace in which it was made: mq_overview(7).
//! So each process has a mount of its own in the place of the host's.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::statfs::{FsType, fstatfs};

use crate::config::{Config, Mode};
use crate::error::{Error, Result};
use crate::sys::dir::Dir;
use crate::sys::mount;

/// The bounds that each namespace has for itself, below /proc/sys: sysctl/kernel and sysctl/fs in the kernel's documentation.
const BOUNDS: [&str; 13] = [
    "fs/mqueue/msg_default",
    "fs/mqueue/msg_max",
    "fs/mqueue/msgsize_default",
    "fs/mqueue/msgsize_max",
    "fs/mqueue/queues_max",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shm_rmid_forced",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
];

/// Where a host mounts mqueue.
pub(super) const QUEUES: &str = "/dev/mqueue";

/// The kernel's number of that file system (`MQUEUE_MAGIC`, ipc/mqueue.c).
pub(super) const QUEUES_MAGIC: FsType = FsType(0x1980_0202);

/// The namespace of its own in which a thread of this process is.
static OWN: OnceLock<PathBuf> = OnceLock::new();

/// Whether steps with this configuration have their own.
pub fn is_wanted(config: &Config) -> bool {
    config.private_ipc && config.mode == Mode::Enforce
}

/// Gives this thread, and all that it starts from now on, a namespace of its own with the bounds of the one before, if that is wanted.
pub fn enter(is_wanted: bool) -> Result<()> {
    if !is_wanted {
        return Ok(());
    }
    let before = BOUNDS.map(bound);
    // SAFETY: a flag.
    Errno::result(unsafe { libc::unshare(libc::CLONE_NEWIPC) })
        .map_err(|errno| Error::new("make an IPC namespace (PrivateIPC)").errno(errno))?;
    let mut done = namespace().map(|own| drop(OWN.set(own)));
    for (name, wanted) in BOUNDS.into_iter().zip(before) {
        // A kernel may lack some of them.
        let Some(wanted) = wanted.filter(|wanted| bound(name).as_ref() != Some(wanted)) else { continue };
        let path = place(name);
        let written = fs::write(&path, &wanted).map_err(|error| {
            Error::os("keep the site's bound (PrivateIPC) in", &path, errno_of(&error)).value(wanted.trim_end())
        });
        // There is no way back: the others are kept all the same.
        done = done.and(written);
    }
    done
}

/// The step's processes are dead: what they have left in shared memory goes now. Else it would stay as long as this process does, or as a
/// user's handle of the namespace. In another thread, which is in the host's namespace, it does nothing.
pub fn discard_memory() {
    if is_own() {
        // sysctl/kernel: with it, the kernel destroys each segment that nobody has attached and whose maker is dead.
        let _ = fs::write(place("kernel/shm_rmid_forced"), "1");
    }
}

/// For a process that sees nothing else of its own: gives it a mount namespace with its own queues in the place of the host's. It must have
/// one thread.
pub fn enter_mounts() -> Result<()> {
    if hosts_queues()?.is_none() {
        return Ok(());
    }
    mount::leave_hosts()?;
    show_queues()
}

/// Shows this process's own queues in the place of the host's, in a mount namespace that is not the host's.
#[inline(never)]
pub(super) fn show_queues() -> Result<()> {
    let Some(hosts) = hosts_queues()? else { return Ok(()) };
    match mount::queues(&hosts) {
        // They are there already: the kernel does not mount a file system over itself.
        Err(Errno::EBUSY) => Ok(()),
        mounted => mounted.map_err(|errno| Error::os("mount the step's own queues (PrivateIPC) on", QUEUES, errno)),
    }
}

/// Whether a thread like this one is in a namespace of its own, and so are the processes that it starts.
#[inline(never)]
pub fn is_own() -> bool {
    OWN.get().is_some_and(|own| namespace().is_ok_and(|this| this == *own))
}

/// The place where those of another namespace are to be covered. `None`: this process has no namespace of its own, or the host shows none.
#[inline(never)]
fn hosts_queues() -> Result<Option<Dir>> {
    // Not `is_own`, which does not tell another namespace from an unknown one.
    let Some(own) = OWN.get() else { return Ok(None) };
    if namespace()? != *own {
        return Ok(None);
    }
    let place = match Dir::open(QUEUES) {
        Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ENOTDIR)) => return Ok(None),
        place => place?,
    };
    let found = fstatfs(&place).map_err(|errno| Error::os("look at", QUEUES, errno))?;
    Ok((found.filesystem_type() == QUEUES_MAGIC).then_some(place))
}

/// That of this thread.
fn namespace() -> Result<PathBuf> {
    const THIS: &str = "/proc/thread-self/ns/ipc";
    fs::read_link(THIS).map_err(|error| Error::os("read (PrivateIPC)", THIS, errno_of(&error)))
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

fn place(name: &str) -> String {
    format!("/proc/sys/{name}")
}

fn bound(name: &str) -> Option<String> {
    fs::read_to_string(place(name)).ok()
}
