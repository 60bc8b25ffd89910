// SPDX-License-Identifier: GPL-2.0-or-later
//! Takes memory back from a directory's processes before its limit is lowered: in bounded time, and without a kill.
//!
//! The kernel lowers `memory.max` at once. It then reclaims, and kills where that is not enough (`memory_max_write`, mm/memcontrol.c). So
//! on cgroup2 `memory.high` goes first, which reclaims and slows down, but kills nothing. v1 refuses a limit below what is in use
//! (`mem_cgroup_resize_max`). Both writes return only after the reclaim, so a child writes, which is killed when its time is over: a signal
//! ends either.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use crate::bytes::mebibytes;
use crate::cgroup::layout::Version;
use crate::cgroup::limits::{high_file, memory_files, memory_in_use, memory_limit, whole_pages};
use crate::error::{Error, Result};
use crate::log;
use crate::sys::child;
use crate::sys::dir::Dir;

/// How long the kernel may look for memory to take back.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked whether it has done so.
const LOOK: u8 = 20;

/// Part of the new limit that is taken back beyond it: the kernel counts in batches, and a job goes on meanwhile.
const BEYOND: u64 = 32;

/// Lowers the memory limit of a directory to `want` if the processes use no more, or what is above can be taken back. Otherwise nothing is
/// changed, and the error says what is in use. Nothing is done if the limit is not lowered.
pub fn shrink(dir: &Dir, version: Version, want: u64) -> Result<()> {
    let want = whole_pages(want);
    let file = memory_files(version).0;
    let is_lower = memory_limit(dir, file)?.is_none_or(|now| now > want);
    let in_use = || memory_in_use(dir, version).unwrap_or(0);
    if !is_lower || in_use() <= want {
        return Ok(());
    }
    let refused = || {
        Error::new(format!(
            "{} of memory are in use and cannot be taken back, so the limit stays above",
            mebibytes(in_use())
        ))
        .value(mebibytes(want))
        .at(dir.path())
        .hint("give the job at least that much, or end processes of it first")
    };
    if certainly_stays(dir, version) > want {
        return Err(refused());
    }
    // A signal from the terminal must not leave the job slowed down.
    let mut blocked = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| blocked.add(signal));
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let deadline = Instant::now() + PATIENCE;
    let done = match version {
        Version::V1 => write_in_time(dir, file, want, deadline),
        Version::V2 => shrink_slowly(dir, file, want, deadline),
    };
    if let Some(before) = before {
        let _ = before.thread_set_mask();
    }
    match done {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused()),
        Err(error) if matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::EINTR)) => Err(refused()),
        Err(error) => Err(error),
    }
}

/// As described above, for cgroup2. `Ok(false)`: too much stays in use.
fn shrink_slowly(dir: &Dir, file: &str, want: u64, deadline: Instant) -> Result<bool> {
    let high = high_file(Version::V2);
    let before = dir.read_value(high)?;
    let is_below = || memory_in_use(dir, Version::V2).is_some_and(|bytes| bytes <= want);
    let mut done = write_in_time(dir, high, want.saturating_sub(want / BEYOND), deadline).map(|_| ());
    while done.is_ok() && !is_below() && Instant::now() < deadline {
        let _ = poll(&mut [], PollTimeout::from(LOOK));
    }
    let fits = done.is_ok() && is_below();
    if fits {
        done = write_in_time(dir, file, want, deadline.max(Instant::now() + PATIENCE)).map(|_| ());
    }
    // A higher value takes nothing back, so this returns at once.
    if let Err(error) = dir.write(high, before.trim()) {
        log::error!("the job may be slowed down above {} of memory: {error}", mebibytes(want));
        return Err(error);
    }
    done.map(|()| fits)
}

/// Writes a number. `Ok(false)`: the kernel was still at it at the deadline, and has been told to stop.
fn write_in_time(dir: &Dir, file: &str, value: u64, deadline: Instant) -> Result<bool> {
    let os = |op: &'static str| move |errno| Error::os(op, dir.path().join(file), errno);
    let write = || {
        dir.write(file, &value.to_string()).map_or_else(|error| error.kernel_errno().map_or(1, |e| e as i32), |()| 0)
    };
    let child = child::start(write).map_err(os("start a process that writes"))?;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(true),
            Ok(WaitStatus::Exited(_, status)) => return Err(os("write")(Errno::from_raw(status)).value(value)),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) if Instant::now() < deadline => {}
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => break,
            Ok(_) => return Ok(false),
            Err(errno) => return Err(os("wait for a process that writes")(errno)),
        }
        let _ = poll(&mut [], PollTimeout::from(LOOK));
    }
    // A kill ends the kernel's loop; if the child waits for a disk, it ends later, and init takes it.
    let _ = kill(child, Signal::SIGKILL);
    let soon = Instant::now() + Duration::from_secs(1);
    while Instant::now() < soon && matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
        let _ = poll(&mut [], PollTimeout::from(LOOK));
    }
    Ok(false)
}

/// Bytes that the kernel certainly cannot take back: what no file has, if there is no swap for it.
fn certainly_stays(dir: &Dir, version: Version) -> u64 {
    let Ok(text) = dir.read_table("memory.stat") else { return 0 };
    let names = match version {
        Version::V1 => ["total_rss", "total_shmem"],
        Version::V2 => ["anon", "shmem"],
    };
    if may_swap() {
        return 0;
    }
    let number = |name: &str| {
        let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok();
        text.lines().find_map(of_line).unwrap_or(0)
    };
    names.into_iter().map(number).fold(0, u64::saturating_add)
}

/// Whether this host has any swap left.
fn may_swap() -> bool {
    let free = |text: &str| {
        text.lines().find_map(|line| line.strip_prefix("SwapFree:")?.split_whitespace().next()?.parse::<u64>().ok())
    };
    Dir::open("/proc")
        .and_then(|proc| proc.read("meminfo"))
        .ok()
        .and_then(|text| free(&text))
        .is_none_or(|free| free > 0)
}
