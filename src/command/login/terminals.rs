// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a sentence to the terminals of a user's processes.
//!
//! They are found by those processes, since newer systems keep no utmp. A child does the writing with the user's rights alone, and never
//! waits. `mesg n` is respected, as write(1) does for users: the sentence is no emergency, and a program that draws on the whole screen has
//! asked not to be disturbed. `jobfence login` says the same at any time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use jobfence::sys::process;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, User, setgid, setgroups, setuid, write};

use crate::table::printable;

/// How long all of a user's terminals may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many seconds the child has if this process ends before it.
const PATIENCE_OF_CHILD: u32 = 5;

/// The most terminals of one user.
const MOST: usize = 64;

/// The major numbers of pseudoterminals. Each has 256 of them, or the first has all (admin-guide/devices.txt).
const PTYS: std::ops::RangeInclusive<u32> = 136..=143;
/// The major number of consoles, and the highest minor number.
const CONSOLES: u32 = 4;
const MOST_CONSOLES: u32 = 63;

/// The terminals of this user's processes, by their numbers.
fn of_user(proc: &Dir, uid: u32) -> BTreeMap<(u32, u32), PathBuf> {
    let pids = proc.list(true).unwrap_or_default();
    let pids = pids.iter().filter_map(|name| name.parse::<i32>().ok());
    let terminal = |pid: i32| {
        let device = number(&proc.read_table(&format!("{pid}/stat")).ok()?)?;
        Some((device, path(device)?)).filter(|_| process::uid(proc, pid) == Some(uid))
    };
    pids.filter_map(terminal).take(1 << 16).collect()
}

/// The numbers of the terminal in `/proc/PID/stat`: proc_pid_stat(5), field 7. The name in parentheses may contain anything.
fn number(stat: &str) -> Option<(u32, u32)> {
    let (_, behind) = stat.rsplit_once(')')?;
    let number: i32 = behind.split_whitespace().nth(4)?.parse().ok()?;
    let number = number.cast_unsigned();
    (number != 0).then_some((number >> 8 & 0xff, number & 0xff | number >> 12 & 0xfff00))
}

fn path((major, minor): (u32, u32)) -> Option<PathBuf> {
    if PTYS.contains(&major) {
        return Some(format!("/dev/pts/{}", (major - PTYS.start()) * 256 + minor).into());
    }
    (major == CONSOLES && (1..=MOST_CONSOLES).contains(&minor)).then(|| format!("/dev/tty{minor}").into())
}

/// Writes to the user's terminals, and returns how many have taken it.
pub fn tell(proc: &Dir, uid: u32, lines: &[String]) -> Result<usize, String> {
    let terminals = of_user(proc, uid);
    if terminals.is_empty() {
        return Ok(0);
    }
    let gid = User::from_uid(uid.into()).ok().flatten().map_or(uid, |user| user.gid.as_raw());
    let text: String = lines.iter().map(|line| format!("\r\n{}", printable(line))).chain(["\r\n".into()]).collect();
    let deadline = Instant::now() + PATIENCE;
    let (child, pipe) = child::ask(|| {
        // The kernel forgets the signal when the child gives up root's rights (prctl(2)). The alarm stays.
        let _ = set_pdeathsig(Signal::SIGKILL);
        nix::unistd::alarm::set(PATIENCE_OF_CHILD);
        if become_user(uid, gid).is_err() {
            return Vec::new();
        }
        let reached = terminals.iter().take(MOST).filter(|(device, path)| write_to(**device, path, uid, &text).is_ok());
        vec![u8::try_from(reached.count()).unwrap_or(u8::MAX)]
    })
    .map_err(|errno| format!("no process can be started: {errno}"))?;
    let mut pipe = File::from(pipe);
    let mut said = [0];
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let is_said = matches!(poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout), Ok(1..));
    let heard = is_said && matches!(pipe.read(&mut said), Ok(1));
    end(child);
    if heard { Ok(said[0].into()) } else { Err("its terminals cannot be written to in time".to_owned()) }
}

/// Gives up root's rights for good, in the child.
fn become_user(uid: u32, gid: u32) -> nix::Result<()> {
    setgroups(&[Gid::from_raw(gid)])?;
    setgid(Gid::from_raw(gid))?;
    setuid(Uid::from_raw(uid))?;
    // A process that can take root's rights back has not given them up.
    if uid != 0 && setuid(Uid::from_raw(0)).is_ok() { Err(Errno::EPERM) } else { Ok(()) }
}

/// Writes once, if this is the user's terminal and takes messages.
fn write_to((major, minor): (u32, u32), path: &PathBuf, uid: u32, text: &str) -> nix::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let terminal = open(path, flags, Mode::empty())?;
    let found = fstat(&terminal)?;
    let mode = found.st_mode;
    let is_terminal = SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) == SFlag::S_IFCHR;
    let takes_messages = mode & Mode::S_IWGRP.bits() != 0;
    if !is_terminal || found.st_uid != uid || found.st_rdev != libc::makedev(major, minor) || !takes_messages {
        return Err(Errno::EACCES);
    }
    write(&terminal, text.as_bytes()).map(drop)
}

/// Ends the child, which may wait inside the kernel.
fn end(child: Pid) {
    let deadline = Instant::now() + Duration::from_secs(1);
    let _ = kill(child, Signal::SIGKILL);
    while matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
        && Instant::now() < deadline
    {
        let _ = poll(&mut [], PollTimeout::from(2u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_known_by_its_numbers() {
        let of = |tty: i64| number(&format!("7 (a) 1 2) S 1 7 7 {tty} 9 0"));
        assert_eq!(of(34_816 + 3), Some((136, 3)));
        assert_eq!(of(0), None);
        assert_eq!(of(i64::from(0x1234_8801_u32.cast_signed())), Some((136, 0x12301)));
        assert_eq!(number("7 (a"), None);
        let name = |device| path(device).map(|path| path.display().to_string());
        assert_eq!(name((136, 3)).as_deref(), Some("/dev/pts/3"));
        assert_eq!(name((137, 1)).as_deref(), Some("/dev/pts/257"));
        assert_eq!(name((136, 70_000)).as_deref(), Some("/dev/pts/70000"));
        assert_eq!(name((4, 1)).as_deref(), Some("/dev/tty1"));
        assert_eq!([name((4, 0)), name((4, 64)), name((5, 1)), name((1, 3))], [None, None, None, None]);
    }
}
