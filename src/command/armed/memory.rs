// SPDX-License-Identifier: GPL-2.0-or-later
//! The memory of one step, at the levels that limit it: the job's directory and the step's.
//!
//! On v1 the kernel tells of a threshold (`cgroup.event_control`, cgroup-v1/memory.rst, "Memory thresholds"). It counts page cache, so it
//! tells too early and never too late. v2 has nothing like it: `memory.high` would slow the job, and pressure begins only at the limit.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{memory_files, memory_in_use, memory_limit};
use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;
use nix::fcntl::OFlag;

use super::crossing::{StepLook, UseLevel};
use super::directories::{Directories, Unseen};
use super::pace;

/// The directories of a step that limit its memory.
#[derive(Debug)]
pub struct StepMemory {
    pub directories: Directories,
    notice: Option<ThresholdNotice>,
}

/// What the kernel tells of.
#[derive(Debug)]
struct ThresholdNotice {
    event: OwnedFd,
    /// The limits for which it does, and of which share.
    limits: Vec<u64>,
    share: Percent,
}

impl StepMemory {
    /// `None`: its memory is not in any hierarchy that can be seen.
    pub fn from_step(step: &LivingStep<'_>) -> Option<Self> {
        Some(Self { directories: Directories::with_watched(step, Watched::Memory)?, notice: None })
    }

    /// Looks once; with `may_be_told` the kernel is asked to tell.
    pub fn look(&mut self, share: Percent, may_be_told: bool) -> Result<StepLook, Unseen> {
        let version = self.directories.version;
        let (mut levels, mut limited, mut is_below) = (Vec::new(), Vec::new(), true);
        for dir in self.directories.open()? {
            let Some(limit) = memory_limit(&dir, memory_files(version).0).ok().flatten() else { continue };
            let Some(used) = memory_in_use(&dir, version) else { continue };
            is_below &= used < share.of(limit);
            // The rest of the file is read only if the amount could matter.
            let cached = if used < share.of(limit) / 2 { 0 } else { cached(&dir, version) };
            levels.push(UseLevel { used: used.saturating_sub(cached), limit });
            limited.push((dir, limit));
        }
        // Without a limit there is no threshold, and one may be set later.
        let may_be_told = version == Version::V1 && is_below && may_be_told && !limited.is_empty();
        let is_told = may_be_told && self.ask(share, &limited);
        let pause = pace::of_memory(&levels, share);
        Ok(StepLook { levels, is_told, pause })
    }

    /// Has the kernel tell when the share is crossed. It may have been crossed meanwhile: then nothing tells of it.
    fn ask(&mut self, share: Percent, limited: &[(Dir, u64)]) -> bool {
        let limits: Vec<u64> = limited.iter().map(|(_, limit)| *limit).collect();
        if self.notice.as_ref().is_none_or(|notice| (&notice.limits, notice.share) != (&limits, share)) {
            // Closing the earlier one takes its thresholds back.
            self.notice = None;
            let Some(event) = new_event() else { return false };
            if !limited.iter().all(|(dir, limit)| threshold(dir, &event, share.of(*limit))) {
                return false;
            }
            self.notice = Some(ThresholdNotice { event, limits, share });
        }
        let version = self.directories.version;
        limited.iter().all(|(dir, limit)| memory_in_use(dir, version).is_some_and(|used| used < share.of(*limit)))
    }

    /// Readable when the kernel tells.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.notice.as_ref().map(|notice| notice.event.as_fd())
    }

    /// Takes what the kernel has told.
    pub fn hear(&self) {
        if let Some(event) = self.event() {
            let _ = nix::unistd::read(event, &mut [0; 8]);
        }
    }
}

/// Page cache of files, all of which the kernel takes back before it kills. What is read again and again is active. Files in tmpfs are not
/// in these figures.
pub fn cached(dir: &Dir, version: Version) -> u64 {
    let before = if version == Version::V2 { "" } else { "total_" };
    let text = dir.read_table("memory.stat").unwrap_or_default();
    let bytes = |line: &str| {
        let (key, bytes) = line.split_once(' ')?;
        let key = key.strip_prefix(before)?;
        matches!(key, "inactive_file" | "active_file").then(|| bytes.trim().parse::<u64>().ok())?
    };
    text.lines().filter_map(bytes).sum()
}

/// What v1's kernel can tell by.
pub fn new_event() -> Option<OwnedFd> {
    // SAFETY: eventfd takes two numbers, and returns a new descriptor or -1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the kernel tell, by the event, when a directory's use crosses so many bytes in either direction.
pub fn threshold(dir: &Dir, event: &OwnedFd, bytes: u64) -> bool {
    let usage = dir.open_file("memory.usage_in_bytes", OFlag::O_RDONLY);
    let asked = usage.and_then(|usage| {
        dir.write("cgroup.event_control", &format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd()))
    });
    asked.inspect_err(|error| log::debug!("the kernel does not tell of memory: {error}")).is_ok()
}
