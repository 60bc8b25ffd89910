// SPDX-License-Identifier: GPL-2.0-or-later
//! Ends every process of a step, and waits for that without sleeping.
//!
//! cgroup2 has `cgroup.kill` since Linux 5.14, which no fork can outrun. Without it: freeze, signal each process by a pidfd that was
//! opened before its membership was seen (so that a reused pid cannot be hit), thaw, wait for the pidfds, and begin again until no
//! process is left. A frozen v1 task dies only after the thaw, so every way out thaws. Ending few processes takes less time than
//! freezing them, so that is tried first.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, Whence, lseek, read, write};

use super::layout::Version;
use super::walk;
use crate::error::{Error, Result};
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::process::{is_dead, is_leaderless, pidfd_open, send, send_by_pidfd};

/// The directories of one step in which its processes can be seen and stopped.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    /// The step's directory in cgroup2, where that is mounted.
    pub unified: Option<&'a Dir>,
    /// The step's directory in v1's freezer, where that is used.
    pub freezer: Option<&'a Dir>,
    /// Any directory of the step; all have the same members.
    pub any: &'a Dir,
}

/// How long killed processes have to end before they are killed again, with those that have come since.
const AGAIN: Duration = Duration::from_millis(500);

/// How long the end of a step usually takes at most. Processes that are left then are looked at.
const MOMENT: Duration = Duration::from_millis(20);

/// This many processes can be looked at one by one without loss of time.
const FEW: usize = 64;

/// The first rounds do not freeze. The second one usually finds no process, or those that were forked during the first.
const UNFROZEN: usize = 2;

/// Kills all processes below and waits until they are gone. Fails if one still lives at the deadline.
pub fn kill_all(members: Members<'_>, deadline: Instant) -> Result<()> {
    while let Some(dir) = members.unified {
        match dir.write("cgroup.kill", "1") {
            Ok(()) => {}
            Err(error) if error.is_gone() && !dir.has("cgroup.procs") => return Ok(()),
            // A kernel before 5.14, or a threaded cgroup: the long way.
            Err(_) => break,
        }
        if is_empty_while_they_die(dir, deadline)? {
            return Ok(());
        }
        // The kernel sends this signal to the first thread of each process. If that has ended while others run, the signal is lost
        // (`complete_signal`, kernel/signal.c). The processes that are left get another by a handle, which any thread takes.
        let frozen = Frozen::try_from(members, deadline);
        let _ = Round::of_all(dir, deadline);
        drop(frozen);
        // A process that is moved in while others still die (`jobfence adopt`) has missed the signal: once more.
        if is_empty_by(dir, deadline.min(Instant::now() + AGAIN))? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let pids = dir.read("cgroup.procs").unwrap_or_default();
            return Err(Error::new("processes do not die:")
                .at(dir.path())
                .value(some_of(&pids.split_whitespace().collect::<Vec<_>>()))
                .hint("they wait inside the kernel, usually for a file system; they are removed at a later launch"));
        }
    }
    if are_few_and_ended(members.any, deadline) {
        return Ok(());
    }
    loop {
        let frozen = Frozen::try_from(members, deadline);
        let (round, all_seen) = Round::of_all(members.any, deadline);
        drop(frozen);
        if let Some(error) = round.refused {
            return Err(error.at(members.any.path()));
        }
        if round.victims.is_empty() {
            return all_seen;
        }
        // Processes that could not be seen are looked for again when these have made room.
        for victim in &round.victims {
            if !victim.wait(deadline) {
                return Err(Error::new("a process does not die:")
                    .at(members.any.path())
                    .value(format!("pid {}", victim.pid))
                    .hint("it waits inside the kernel, usually for a file system; it is removed at a later launch"));
            }
        }
    }
}

/// Ends the processes of a directory without freezing them, if they are few and no directory is below. Returns whether no process is
/// left. If it returns `false`, the caller has to freeze: some processes fork as fast as they are ended, and on v1 a frozen process
/// dies only when it is thawed.
fn are_few_and_ended(dir: &Dir, deadline: Instant) -> bool {
    for _ in 0..UNFROZEN {
        let Some(found) = pids(dir).ok().filter(|found| found.len() <= FEW && walk::has_none_below(dir)) else {
            return false;
        };
        if found.is_empty() {
            return true;
        }
        let mut victims = Vec::new();
        for pid in found {
            match pidfd_open(pid) {
                Ok(None) => {}
                Ok(Some(Some(pidfd))) => victims.push(Victim { pid, pidfd: Some(pidfd) }),
                // Without a handle, only the pid of a frozen process surely does not pass to another process.
                Ok(Some(None)) | Err(_) => return false,
            }
        }
        let Ok(still) = pids(dir) else { return false };
        victims.retain(|victim| still.binary_search(&victim.pid).is_ok());
        let moment = deadline.min(Instant::now() + MOMENT);
        if !victims.iter().all(Victim::kill_by_handle) || !victims.iter().all(|victim| victim.wait(moment)) {
            return false;
        }
    }
    false
}

/// Names as many pids as a line of a log can have.
fn some_of(pids: &[&str]) -> String {
    const MOST: usize = 10;
    match pids.split_at_checked(MOST) {
        Some((first, rest)) if !rest.is_empty() => format!("pids {} and {} more", first.join(" "), rest.len()),
        _ => format!("pids {}", pids.join(" ")),
    }
}

/// Sends the signal to all processes below, and does not wait. Fails if not all could be looked at.
pub fn signal_all(members: Members<'_>, deadline: Instant) -> Result<()> {
    if let Some(dir) = members.unified {
        // `cgroup.kill` alone is not enough: see `kill_all`.
        let _ = dir.write("cgroup.kill", "1");
    }
    let frozen = Frozen::try_from(members, deadline);
    let (round, all_seen) = Round::of_all(members.any, deadline);
    drop(frozen);
    round.refused.map_or(all_seen, |error| Err(error.at(members.any.path())))
}

/// Ends the processes below that a kill by `cgroup.kill` alone would miss; does not wait for their end. If there is any, all are ended:
/// others fork meanwhile, and lose their first threads a moment later.
pub fn kill_leaderless(proc: &Dir, dir: &Dir, deadline: Instant) -> Result<()> {
    let (mut round, mut all_seen) = Round::kill_wanted(dir, deadline, |pid| is_leaderless(proc, pid.as_raw()));
    if !round.victims.is_empty() {
        let frozen = Frozen::try_from(Members { unified: Some(dir), freezer: None, any: dir }, deadline);
        // A process that has not stopped by then is seen all the same, but perhaps not a child of it.
        let _ = set_frozen(dir, Version::V2, true, deadline);
        (round, all_seen) = Round::of_all(dir, deadline);
        drop(frozen);
    }
    round.refused.map_or(all_seen, Err)
}

/// Waits until no process is left below a cgroup2 directory, and returns whether that is so. It waits for a moment, and for another one
/// as long as many processes are left and become fewer: thousands need more time, and freezing them would keep them from dying.
///
/// The whole wait has an end: a user's processes can live on without their first threads, and end one by one.
fn is_empty_while_they_die(dir: &Dir, deadline: Instant) -> Result<bool> {
    let deadline = deadline.min(Instant::now() + AGAIN);
    let mut before = usize::MAX;
    loop {
        let moment = deadline.min(Instant::now() + MOMENT);
        if is_empty_by(dir, moment)? {
            return Ok(true);
        }
        let Some(left) = members(dir, moment + MOMENT).filter(|_| Instant::now() < deadline) else { return Ok(false) };
        if !become_fewer(&mut before, left) {
            return Ok(false);
        }
    }
}

/// Whether many are left, and fewer than before.
fn become_fewer(before: &mut usize, left: usize) -> bool {
    FEW < left && left < std::mem::replace(before, left)
}

/// How many processes are below; `None` where not all could be counted by the deadline.
fn members(top: &Dir, deadline: Instant) -> Option<usize> {
    let mut count = 0;
    let all_seen = walk::visit(top, deadline, &mut |dir| {
        count += dir.read("cgroup.procs")?.lines().count();
        Ok(true)
    });
    all_seen.is_ok().then_some(count)
}

/// Waits until no process is left below a cgroup2 directory, and returns whether that is so by the deadline. A directory that is gone
/// is empty.
fn is_empty_by(dir: &Dir, deadline: Instant) -> Result<bool> {
    let events = match dir.open_file("cgroup.events", OFlag::O_RDONLY) {
        Ok(fd) => fd,
        Err(error) if error.is_gone() => return Ok(true),
        Err(error) => return Err(error),
    };
    let mut text = [0u8; 256];
    loop {
        let _ = lseek(&events, 0, Whence::SeekSet);
        match read(&events, &mut text) {
            Ok(n) if !String::from_utf8_lossy(text.get(..n).unwrap_or_default()).contains("populated 1") => {
                return Ok(true);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ENODEV) => return Ok(true),
            Err(errno) => return Err(Error::os("read", dir.path().join("cgroup.events"), errno)),
        }
        let Some(timeout) = remaining(deadline) else { return Ok(false) };
        let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout);
    }
}

/// The time left as a timeout of poll; `None` when there is none.
fn remaining(deadline: Instant) -> Option<PollTimeout> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    // Rounded up, so that the last wait does not spin.
    PollTimeout::try_from(left.min(Duration::from_secs(60)) + Duration::from_millis(1)).ok()
}

/// A frozen step; thawed when this is dropped, on every path.
struct Frozen<'a> {
    members: Members<'a>,
    /// The file that freezes and thaws it, opened early: there may be no descriptor left later.
    switch: Option<OwnedFd>,
    deadline: Instant,
}

impl<'a> Frozen<'a> {
    /// Best effort: without freezing, a fork may outrun one round, and the next round finds the child.
    fn try_from(members: Members<'a>, deadline: Instant) -> Self {
        let (dir, file, on) = match members {
            Members { freezer: Some(dir), .. } => (Some(dir), "freezer.state", "FROZEN"),
            Members { unified, .. } => (unified, "cgroup.freeze", "1"),
        };
        let switch = dir.and_then(|dir| dir.open_file(file, OFlag::O_WRONLY).ok());
        if let Some(switch) = &switch {
            let _ = write(switch, on.as_bytes());
        }
        Self { members, switch, deadline }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Some(switch) = &self.switch {
            let _ = write(switch, if self.members.freezer.is_some() { b"THAWED".as_slice() } else { b"0" });
        }
        // On v1 a frozen process does not die, and a user may have frozen a directory below by that directory's own switch.
        if let Some(dir) = self.members.freezer {
            thaw(dir, self.deadline);
        }
    }
}

/// Freezes or thaws a directory of cgroup2 or of v1's freezer and all below it, and waits until that is done.
pub fn set_frozen(dir: &Dir, version: Version, is_frozen: bool, deadline: Instant) -> Result<()> {
    let (file, value) = match (version, is_frozen) {
        (Version::V2, true) => ("cgroup.freeze", "1"),
        (Version::V2, false) => ("cgroup.freeze", "0"),
        (Version::V1, true) => ("freezer.state", "FROZEN"),
        (Version::V1, false) => {
            thaw(dir, deadline);
            ("freezer.state", "THAWED")
        }
    };
    dir.write(file, value)?;
    let mut pause = Duration::from_micros(100);
    loop {
        let is_done = match version {
            Version::V2 => dir.read("cgroup.events")?.lines().any(|line| line == format!("frozen {value}")),
            Version::V1 => dir.read(file)?.trim() == value,
        };
        if is_done {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(if is_frozen { "not all processes have stopped in" } else { "it stays frozen:" })
                .at(dir.path())
                .hint(if is_frozen {
                    "one of them waits in the kernel; they stop when it can"
                } else {
                    "see what is around it"
                }));
        }
        // Not for events: v1 has none. Most processes stop at once.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Thaws a v1 directory and all below it, the outer ones first.
pub fn thaw(freezer: &Dir, deadline: Instant) {
    let _ = walk::visit(freezer, deadline, &mut |dir| dir.write("freezer.state", "THAWED").map(|()| true));
}

/// A process that was a member after its pidfd was opened.
struct Victim {
    pid: Pid,
    /// `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
}

impl Victim {
    /// Kills it. A process that is gone already is no error.
    fn kill(&self) -> Result<()> {
        send(self.pid, self.pidfd.as_ref(), Signal::SIGKILL)
    }

    /// Kills it by its handle, never by its pid. Returns whether it got the signal, or has gone.
    fn kill_by_handle(&self) -> bool {
        self.pidfd
            .as_ref()
            .is_some_and(|pidfd| matches!(send_by_pidfd(pidfd, Signal::SIGKILL), Ok(()) | Err(Errno::ESRCH)))
    }

    /// Waits for its end, and returns whether it has ended by the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        loop {
            let Some(timeout) = remaining(deadline) else { return false };
            match &self.pidfd {
                Some(fd) => match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
                    Ok(0) | Err(_) => {}
                    Ok(_) => return true,
                },
                // Without a pidfd no event tells of the end.
                None => {
                    // A zombie can still be signalled, but it has left the cgroup.
                    if Dir::open("/proc").is_ok_and(|proc| is_dead(&proc, self.pid.as_raw())) {
                        return true;
                    }
                    let _ = poll(&mut [], PollTimeout::from(1u8));
                }
            }
        }
    }
}

/// At most this many handles are open at once, to leave the host program its descriptors.
const AT_ONCE: usize = 256;

/// One signal to all processes, some at a time. While they are frozen no new ones come: those without a signal could otherwise fork as
/// fast as the others die.
#[derive(Default)]
struct Round {
    /// Some of the processes that got it, to wait for; empty only if none was found.
    victims: Vec<Victim>,
    /// The first error in sending it. A process that may not be killed does not spare the others.
    refused: Option<Error>,
}

impl Round {
    fn of_all(top: &Dir, deadline: Instant) -> (Self, Result<()>) {
        Self::kill_wanted(top, deadline, |_| true)
    }

    /// Kills the wanted processes in a directory and all below it. Fails if not all could be looked at: an unseen process may live.
    fn kill_wanted(top: &Dir, deadline: Instant, is_wanted: impl Fn(Pid) -> bool) -> (Self, Result<()>) {
        let mut round = Self::default();
        let all_seen = walk::visit(top, deadline, &mut |dir| {
            round.kill_in(dir, deadline, &is_wanted)?;
            Ok(true)
        });
        (round, all_seen)
    }

    fn kill_in(&mut self, dir: &Dir, deadline: Instant, is_wanted: &impl Fn(Pid) -> bool) -> Result<()> {
        let mut rest = pids(dir)?.into_iter().peekable();
        let mut failed = None;
        while rest.peek().is_some() {
            let mut opened = Vec::new();
            while opened.len() + self.victims.len() < AT_ONCE
                && let Some(&pid) = rest.peek()
            {
                match pidfd_open(pid) {
                    Ok(pidfd) => opened.extend(pidfd.map(|pidfd| Victim { pid, pidfd })),
                    // These handles may hold the last free descriptors: use them first.
                    Err(_) if !opened.is_empty() => break,
                    Err(_) if self.victims.len() > 1 => {
                        self.victims.truncate(1);
                        continue;
                    }
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
                rest.next();
            }
            if !opened.is_empty() {
                let still = pids(dir)?;
                self.kill(
                    opened
                        .into_iter()
                        .filter(|victim| still.binary_search(&victim.pid).is_ok() && is_wanted(victim.pid)),
                );
            }
            if rest.peek().is_some() && Instant::now() >= deadline {
                return Err(Error::new("there are more processes than can be ended in time in").at(dir.path()));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn kill(&mut self, victims: impl Iterator<Item = Victim>) {
        for victim in victims {
            if let Err(error) = victim.kill() {
                self.refused.get_or_insert(error);
            }
            // The rest of the room is for the processes that come next.
            if self.victims.len() < AT_ONCE / 2 {
                self.victims.push(victim);
            }
        }
    }
}

/// The pids in `cgroup.procs`, sorted, without those that must not be signalled from here: this process, init, and 0, which stands for
/// a process in a pid namespace that is not seen from here.
fn pids(dir: &Dir) -> Result<Vec<Pid>> {
    let text = match dir.read("cgroup.procs") {
        Ok(text) => text,
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let pids = text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    let mut pids: Vec<Pid> = pids.filter(|&pid| pid > 1).map(Pid::from_raw).filter(|&pid| pid != Pid::this()).collect();
    sorted::sort(&mut pids);
    pids.dedup();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Killing again would not help, and would be repeated without end.
    #[test]
    fn where_it_cannot_be_seen_whether_processes_live_nobody_waits() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("cgroup.kill"), "").unwrap();
        std::fs::create_dir(temp.path().join("cgroup.events")).unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(300);
        let error = kill_all(Members { unified: Some(&dir), freezer: None, any: &dir }, deadline).unwrap_err();
        assert_eq!(error.kernel_errno(), Some(Errno::EISDIR), "{error}");
        assert!(Instant::now() < deadline, "waited: {error}");
    }

    #[test]
    fn many_are_left_to_die_while_they_become_fewer() {
        let looks = |counts: &[usize]| {
            let mut before = usize::MAX;
            counts.iter().take_while(|left| become_fewer(&mut before, **left)).count()
        };
        assert_eq!(looks(&[400, 300, 299, FEW + 1, FEW]), 4, "few are looked at one by one");
        assert_eq!(looks(&[400, 300, 300, 299]), 2, "some do not die");
        assert_eq!(looks(&[FEW, 1]), 0);
    }

    #[test]
    fn no_more_pids_are_named_than_a_line_can_have() {
        assert_eq!(some_of(&["7"; 10]), "pids 7 7 7 7 7 7 7 7 7 7");
        assert_eq!(some_of(&["7"; 12]), "pids 7 7 7 7 7 7 7 7 7 7 and 2 more");
    }
}
