// SPDX-License-Identifier: GPL-2.0-or-later
//! Has the kernel of v2 tell that processes of a cgroup have waited for so long (psi.rst, "Monitoring for pressure thresholds"). Nothing
//! wakes up until they wait. Then the kernel tells at most once in each window.

use std::os::fd::OwnedFd;
use std::time::Duration;

use jobfence::sys::dir::Dir;
use nix::fcntl::OFlag;

/// Whose waiting counts: that of at least one process, or that of all at once.
#[derive(Debug, Clone, Copy)]
pub enum Waits {
    Some,
    All,
}

/// Opens a file that becomes ready for `POLLPRI` when the directory's processes have waited for `of` long enough: for the first of the two
/// times within the second one. `None`: the kernel does not tell (Linux without pressure, or `psi=0`; before 5.13, it does not tell that
/// all wait for the CPU).
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
