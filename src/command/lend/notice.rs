// SPDX-License-Identifier: GPL-2.0-or-later
//! How the kernel tells that a job needs more memory, and when to look if it does not.
//!
//! On v1 it tells of a threshold, which counts page cache: too early and never too late. On v2 it tells that it has slowed the job above
//! `memory.high` (`memory.events`, which is notified at each change).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::memory_in_use;
use jobfence::config::Percent;
use jobfence::sys::dir::Dir;
use nix::fcntl::OFlag;
use nix::poll::PollFlags;
use nix::sys::uio::pread;

use super::policy::{JobMemory, JobShare};
use crate::armed::{self, UseLevel};

/// The shortest time between two looks at a job that nobody has told of.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// How often it is looked whether a job that could be lent no more uses less, or there is more to lend.
const SCARCE: Duration = Duration::from_millis(500);
/// How often it is looked whether a job still uses what it is lent.
const CALM: Duration = Duration::from_secs(5);

/// What the kernel tells by.
#[derive(Debug)]
pub struct Notice {
    fd: OwnedFd,
    version: Version,
    /// Of which use v1 tells, in bytes.
    at: u64,
}

impl Notice {
    /// Readable, or out of the ordinary on v2, when the kernel has told.
    pub fn event(&self) -> (BorrowedFd<'_>, PollFlags) {
        let of = if self.version == Version::V1 { PollFlags::POLLIN } else { PollFlags::POLLPRI };
        (self.fd.as_fd(), of)
    }

    /// Takes what the kernel has told: it tells of what comes after this.
    pub fn hear(&self) {
        let mut text = [0; 256];
        let _ = match self.version {
            Version::V1 => nix::unistd::read(&self.fd, &mut text),
            Version::V2 => pread(&self.fd, &mut text, 0),
        };
    }
}

/// When a job is looked at next, after a look; `None`: when the kernel tells. `now`: what it has by then.
pub fn after_a_look(
    notice: &mut Option<Notice>,
    (dir, version): (&Dir, Version),
    (now, share): (&JobMemory, &JobShare),
    may_be_told: bool,
) -> Option<Duration> {
    let trigger = now.limit.saturating_sub(now.piece());
    let is_calm = now.lent() == 0 || now.is_ahead && now.lent() <= now.piece();
    let calm = (!is_calm).then_some(CALM);
    if share.is_claimed || now.limit > share.limit {
        return Some(SHORTEST);
    }
    if now.lent() >= now.most() {
        *notice = None;
        return Some(calm.unwrap_or(CALM));
    }
    if now.needs_more() {
        // There is nothing more to lend.
        *notice = None;
        return Some(SCARCE);
    }
    let is_told = may_be_told
        && match version {
            Version::V1 => tells_of(notice, dir, trigger),
            Version::V2 => share.soft.is_some() && tells_of_slowing(notice, dir),
        };
    if is_told {
        return calm;
    }
    *notice = None;
    let pace = armed::of_memory(&[UseLevel { used: now.used, limit: trigger }], Percent::HUNDRED);
    Some(calm.map_or(pace, |calm| calm.min(pace)))
}

/// Has v1's kernel tell of so many bytes. It may have come to that meanwhile: then nothing tells of it.
fn tells_of(notice: &mut Option<Notice>, dir: &Dir, at: u64) -> bool {
    if notice.as_ref().is_none_or(|notice| notice.at != at) {
        // Closing the earlier one takes its threshold back.
        *notice = None;
        let Some(fd) = armed::new_event().filter(|fd| armed::threshold(dir, fd, at)) else { return false };
        *notice = Some(Notice { fd, version: Version::V1, at });
    }
    memory_in_use(dir, Version::V1).is_some_and(|used| used < at)
}

fn tells_of_slowing(notice: &mut Option<Notice>, dir: &Dir) -> bool {
    if notice.is_none() {
        let opened = dir.open_file("memory.events", OFlag::O_RDONLY);
        *notice = opened.ok().map(|fd| Notice { fd, version: Version::V2, at: 0 });
        // Before it is read, it counts as changed.
        notice.iter().for_each(Notice::hear);
    }
    notice.is_some()
}
