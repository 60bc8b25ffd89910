// SPDX-License-Identifier: GPL-2.0-or-later
//! A step's own System V shared memory, semaphores and message queues (`PrivateIPC`).
//!
//! They are in an IPC namespace: ipc_namespaces(7). The kernel removes them with the namespace, so a killed job leaves none on the host. A new
//! namespace begins with the kernel's own bounds, and not with those that the site has set: these are copied.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::errno::Errno;

use crate::config::{Config, Mode};
use crate::error::{Error, Result};

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
    let _ = namespace().map(|own| OWN.set(own));
    let mut done = Ok(());
    for (name, wanted) in BOUNDS.into_iter().zip(before) {
        // A kernel may lack some of them.
        let Some(wanted) = wanted.filter(|wanted| bound(name).as_ref() != Some(wanted)) else { continue };
        let path = place(name);
        let written = fs::write(&path, &wanted).map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            Error::os("keep the site's bound (PrivateIPC) in", &path, errno).value(wanted.trim_end())
        });
        // There is no way back: the others are kept all the same.
        done = done.and(written);
    }
    done
}

/// The step's processes are dead: what they have left in shared memory goes now. Else it would stay as long as this process does, or as a
/// user's handle of the namespace. In another thread, which is in the host's namespace, it does nothing.
pub fn discard_memory() {
    if OWN.get().is_some_and(|own| namespace().as_ref() == Some(own)) {
        // sysctl/kernel: with it, the kernel destroys each segment that nobody has attached and whose maker is dead.
        let _ = fs::write(place("kernel/shm_rmid_forced"), "1");
    }
}

/// That of this thread.
fn namespace() -> Option<PathBuf> {
    fs::read_link("/proc/thread-self/ns/ipc").ok()
}

fn place(name: &str) -> String {
    format!("/proc/sys/{name}")
}

fn bound(name: &str) -> Option<String> {
    fs::read_to_string(place(name)).ok()
}
