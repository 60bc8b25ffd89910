// SPDX-License-Identifier: GPL-2.0-or-later
//! How v1's kernel tells that a job needs more memory, and when to look if none tells.
//!
//! v1 tells of a threshold, which counts page cache: too early and never too late. v2 tells of nothing before the limit but of slowing
//! (`memory.high`), and no owner is to be slowed: there a job is looked at, the sooner the closer it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::memory_in_use;
use jobfence::config::Percent;

use super::directory::JobDirectory;
use super::policy::JobMemory;
use crate::armed::{self, UseLevel};

/// The shortest time between two looks at a job that nobody has told of.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// How often it is looked whether a job that could be lent no more uses less, or there is more to lend.
pub const SCARCE: Duration = Duration::from_millis(500);
/// How often it is looked whether a job still uses what it is lent.
pub const CALM: Duration = Duration::from_secs(5);

/// What the kernel tells by.
#[derive(Debug)]
pub struct NeedNotice {
    fd: OwnedFd,
    /// Of which use it tells, in bytes.
    at: u64,
}

impl NeedNotice {
    /// Readable when the kernel has told.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes what the kernel has told: it tells of what comes after this.
    pub fn hear(&self) {
        let _ = nix::unistd::read(&self.fd, &mut [0; 8]);
    }
}

/// When a job is looked at next, after a look; `None`: when the kernel tells. `now`: what it has by then.
pub fn after_a_look(
    notice: &mut Option<NeedNotice>,
    directory: &JobDirectory,
    now: &JobMemory,
    may_be_told: bool,
) -> Option<Duration> {
    let trigger = now.limit.saturating_sub(now.margin());
    let calm = (now.lent() > 0).then_some(CALM);
    if now.lent() >= now.most() {
        *notice = None;
        return Some(CALM);
    }
    if now.needs_more() {
        // There is nothing more to lend.
        *notice = None;
        return Some(SCARCE);
    }
    let is_told = may_be_told && directory.version == Version::V1 && tells_of(notice, directory, trigger);
    if is_told {
        return calm;
    }
    *notice = None;
    let pace = armed::of_memory(&[UseLevel { used: now.used, limit: trigger }], Percent::HUNDRED);
    Some(calm.map_or(pace, |calm| calm.min(pace)))
}

/// Has v1's kernel tell of so many bytes. It may have come to that meanwhile: then nothing tells of it.
fn tells_of(notice: &mut Option<NeedNotice>, directory: &JobDirectory, at: u64) -> bool {
    let Ok(dir) = directory.open() else { return false };
    if notice.as_ref().is_none_or(|notice| notice.at != at) {
        // Closing the earlier one takes its threshold back.
        *notice = None;
        let Some(fd) = armed::new_event().filter(|fd| armed::threshold(&dir, fd, at)) else { return false };
        *notice = Some(NeedNotice { fd, at });
    }
    memory_in_use(&dir, Version::V1).is_some_and(|used| used < at)
}
