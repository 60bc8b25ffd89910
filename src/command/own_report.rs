// SPDX-License-Identifier: GPL-2.0-or-later
//! `UserReports=yes`: users read the lines of their own jobs in the logs of this node, which only root can open.
//!
//! A user's `jobfence report` asks at a socket (`asking`), at which `jobfence hold` listens (`listener`). It reads nothing there, and starts
//! a process for each user who asks. That process (`teller`) has from the kernel who asks, and writes that user's lines. The report itself is
//! made by the user's own process, with the user's rights.

mod asking;
mod listener;
mod logs;
mod teller;

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

pub use listener::OwnReports;
pub use logs::ReadableLogs;
pub use teller::{is_asked_for, tell};

/// The socket, in the directory beside `RunDir` that users can enter. What it is called there is the same in all releases.
const SOCKET: &str = "reports";

/// The name of the format of questions and answers.
pub const SCHEMA: &str = "jobfence-own-1";

/// The last line of an answer: without it, the answer was cut short.
const END: &str = ".";

/// Before the reason why there is no answer.
const REFUSED: char = '!';

/// The user at the other end of a socket, at the moment of connect(2) or listen(2): unix(7). No process can say another one.
fn peer(socket: BorrowedFd<'_>) -> nix::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes into `peer`, which has as many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    Errno::result(done).map(|_| peer)
}
