// SPDX-License-Identifier: GPL-2.0-or-later
//! What the kernel of v2 tells of: that processes of a cgroup have waited for so long (psi.rst, "Monitoring for pressure thresholds"). Until
//! they wait, nothing wakes up. After they do, the kernel tells once in each window at most.

use std::os::fd::OwnedFd;
use std::time::Duration;

use jobfence::sys::dir::Dir;
use nix::fcntl::OFlag;

/// Which waiting: of at least one process, or of all at once.
#[derive(Debug, Clone, Copy)]
pub enum Waits {
    Some,
    All,
}

/// A file that becomes ready to be polled for `POLLPRI` when processes of the directory have waited for `of` so long in a window. `None`: the
/// kernel does not tell (Linux without pressure, or `psi=0`; before 5.13, of the CPU alone not that all wait).
pub fn trigger(dir: &Dir, of: &str, waits: Waits, (waited, window): (Duration, Duration)) -> Option<OwnedFd> {
    let file = dir.open_file(&format!("{of}.pressure"), OFlag::O_RDWR | OFlag::O_NONBLOCK);
    let word = match waits {
        Waits::Some => "some",
        Waits::All => "full",
    };
    let text = format!("{word} {} {}\0", waited.as_micros(), window.as_micros());
    let asked = file.and_then(|file| {
        let written = nix::unistd::write(&file, text.as_bytes());
        written.map(|_| file).map_err(|errno| jobfence::error::Error::os("write", dir.path().join(of), errno))
    });
    asked.inspect_err(|error| log::debug!("the kernel does not tell of waiting for {of}: {error}")).ok()
}
