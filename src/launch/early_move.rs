// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence hold` waits for a kernel lock early, so that a launch does not have to.
//!
//! Before the kernel moves a process into a cgroup, it takes a lock of all cgroups. After a quiet time that waits for a grace period of
//! RCU, some milliseconds; for some milliseconds more the kernel does not wait again (`cgroup_threadgroup_rwsem`, since Linux 6.0). So when
//! the directories of a step exist, `jobfence hold` is told that a task will come. It takes the lock without effect: it moves itself to its
//! own cgroup. Meanwhile the scheduler prepares the task, which is then moved at once.
//!
//! Preparing a task takes a few milliseconds, and a grace period is longer. So `hold` makes the kernel hurry during the write
//! (`/sys/kernel/rcu_expedited`): less than a millisecond, in which each busy CPU is interrupted once.
//!
//! An empty datagram tells `hold`, and there is no answer to wait for. If `hold` does not run, the launch itself waits for the kernel.
//! One that is not empty only says that a step with `SignalAt` has begun.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::uio::pwrite;
use nix::unistd::{Pid, UnlinkatFlags, unlinkat};

use crate::cgroup::layout::Hierarchy;
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::record::tracked::WATCHER;
use crate::sys::dir::Dir;

/// Only root can reach it.
const SOCKET: &str = "early_move";

/// How often the lock is taken. A task comes 4 ms after the request (Linux 6.18, Slurm 22.05), or later on a slow machine. The lock is fast
/// for 8 ms after it was taken.
const TIMES: u32 = 6;
/// The time between two of them.
const PAUSE: Duration = Duration::from_millis(4);

/// Where the kernel's settings for grace periods are (`Documentation/admin-guide/kernel-parameters.txt`: `rcupdate.rcu_expedited`).
const KERNEL: &str = "/sys/kernel";
/// Whether the kernel ends grace periods as soon as it can.
const EXPEDITED: &str = "rcu_expedited";
/// Whether it never does so: an administrator's choice for quiet CPUs, which takes precedence.
const NORMAL: &str = "rcu_normal";

/// Tells `hold` that a process will be moved soon.
pub fn ask(run_dir: &Path) {
    tell(run_dir, &[]);
}

/// Tells `hold` that a step wants to know when something comes near its limit (`SignalAt`).
pub fn tell_of_armed(run_dir: &Path) {
    tell(run_dir, b"!");
}

#[inline(never)]
fn tell(run_dir: &Path, what: &[u8]) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(what, run_dir.join(WATCHER).join(SOCKET));
    }
}

/// What launches have said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Launches {
    /// A step begins.
    pub any: bool,
    /// A step with `SignalAt` has begun.
    pub armed: bool,
}

/// The end at which `hold` is told.
#[derive(Debug)]
pub struct EarlyMoves {
    run_dir: PathBuf,
    socket: UnixDatagram,
    /// Its directory in `RunDir`.
    directory: Dir,
    /// The cgroup of this process.
    cgroup: Dir,
}

impl EarlyMoves {
    /// Listens in this `RunDir` from now on.
    pub fn expect(host: &Host, run_dir: &Path) -> Result<Self> {
        Self::with(cgroup_of_this(host)?, run_dir)
    }

    fn with(cgroup: Dir, run_dir: &Path) -> Result<Self> {
        let directory = Dir::open(run_dir)?.ensure(WATCHER)?;
        if let Ok(kernel) = Dir::open(KERNEL) {
            Hurry::end_anothers(&kernel, &directory);
        }
        // The socket of a killed `hold`. If two run, the last one is told.
        let _ = unlinkat(&directory, SOCKET, UnlinkatFlags::NoRemoveDir);
        let at = directory.handle_path().join(SOCKET);
        let failed = |error: std::io::Error| Error::new(format!("cannot be told of moves: {error}")).at(run_dir);
        let socket = UnixDatagram::bind(at).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { run_dir: run_dir.to_path_buf(), socket, directory, cgroup })
    }

    /// Whether launches with this `RunDir` reach it.
    pub fn is_in(&self, run_dir: &Path) -> bool {
        self.run_dir == run_dir
    }

    /// Readable when it is told.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the lock for all requests so far, and again while tasks may come: moves this process to its own cgroup. Returns what was said.
    pub fn make(&self) -> (Launches, Result<()>) {
        let mut launches = Launches::default();
        while let Ok(length) = self.socket.recv(&mut [0]) {
            launches.any |= length == 0;
            launches.armed |= length > 0;
        }
        (launches, if launches.any { self.take_lock_for_a_while() } else { Ok(()) })
    }

    fn take_lock_for_a_while(&self) -> Result<()> {
        let hurry = Dir::open(KERNEL).ok().and_then(|kernel| Hurry::new(kernel, &self.directory));
        self.take_lock(hurry.as_ref())?;
        for _ in 1..TIMES {
            std::thread::sleep(PAUSE);
            self.take_lock(hurry.as_ref())?;
        }
        Ok(())
    }

    fn take_lock(&self, hurry: Option<&Hurry<'_>>) -> Result<()> {
        let _hurried = hurry.and_then(Hurry::begin);
        self.cgroup.write("cgroup.procs", "0")
    }
}

impl Drop for EarlyMoves {
    fn drop(&mut self) {
        let _ = unlinkat(&self.directory, SOCKET, UnlinkatFlags::NoRemoveDir);
    }
}

/// Makes the kernel hurry, several times in a row. One note serves for all of them, since a new file costs more than the rest.
struct Hurry<'a> {
    kernel: Dir,
    /// Where the note is, so that the next `hold` can undo the setting of a killed one.
    noted_in: &'a Dir,
    /// The file says `1` while the kernel hurries, otherwise `0`.
    note: OwnedFd,
}

impl<'a> Hurry<'a> {
    /// `None`: the setting is already in use, or forbidden.
    fn new(kernel: Dir, noted_in: &'a Dir) -> Option<Self> {
        if !is_allowed(&kernel) {
            return None;
        }
        noted_in.replace_file(EXPEDITED, b"0\n").ok()?;
        let note = noted_in.open_file(EXPEDITED, OFlag::O_WRONLY).ok()?;
        Some(Self { kernel, noted_in, note })
    }

    /// While the returned value exists, the kernel ends grace periods at once. `None`: an administrator has changed the setting meanwhile.
    fn begin(&self) -> Option<Hurried<'_, 'a>> {
        if !is_allowed(&self.kernel) || pwrite(&self.note, b"1\n", 0) != Ok(2) {
            return None;
        }
        // If the kernel refuses, this is dropped, and the note says `0` again.
        let hurried = Hurried(self);
        self.kernel.write(EXPEDITED, "1").ok().map(|()| hurried)
    }

    /// Undoes the setting of a killed `hold`. If the note says that it undid that itself, the kernel's setting is an administrator's, and
    /// stays.
    fn end_anothers(kernel: &Dir, noted_in: &Dir) {
        if is_begun(noted_in) && kernel.write(EXPEDITED, "0").is_err() {
            return;
        }
        let _ = unlinkat(noted_in, EXPEDITED, UnlinkatFlags::NoRemoveDir);
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        Self::end_anothers(&self.kernel, self.noted_in);
    }
}

struct Hurried<'h, 'a>(&'h Hurry<'a>);

impl Drop for Hurried<'_, '_> {
    fn drop(&mut self) {
        if self.0.kernel.write(EXPEDITED, "0").is_ok() {
            let _ = pwrite(&self.0.note, b"0\n", 0);
        }
    }
}

fn is_allowed(kernel: &Dir) -> bool {
    [EXPEDITED, NORMAL].into_iter().all(|name| kernel.read_value(name).is_ok_and(|text| text.trim() == "0"))
}

fn is_begun(noted_in: &Dir) -> bool {
    noted_in.read_value(EXPEDITED).is_ok_and(|text| text.trim() == "1")
}

/// In any hierarchy, since the lock is the same for all.
fn cgroup_of_this(host: &Host) -> Result<Dir> {
    let here = Membership::read(&host.proc, Pid::this().as_raw())?;
    let place = |hierarchy: &Hierarchy| hierarchy.below_mount(here.path_in(hierarchy)?).map(str::to_owned);
    let found = host.layout.hierarchies.iter().find_map(|hierarchy| Some((hierarchy, place(hierarchy)?)));
    let (hierarchy, below) = found.ok_or_else(|| Error::new("this process is in no cgroup that can be seen"))?;
    let root = hierarchy.open()?;
    if below.is_empty() { Ok(root) } else { root.child(&below) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn whoever_is_asked_takes_the_lock() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path();
        let socket = run_dir.join(WATCHER).join(SOCKET);
        // There is no receiver yet.
        ask(run_dir);
        let expect = || EarlyMoves::with(Dir::open(run_dir).unwrap(), run_dir).unwrap();
        drop(expect());
        assert!(!socket.exists(), "it is removed at the end");
        std::fs::write(run_dir.join("cgroup.procs"), "").unwrap();
        std::mem::forget(expect());
        let moves = expect();
        assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket() && moves.is_in(run_dir));
        let written = || std::fs::read_to_string(run_dir.join("cgroup.procs")).unwrap();
        moves.make().1.unwrap();
        assert_eq!(written(), "", "nobody has asked");
        ask(run_dir);
        ask(run_dir);
        moves.make().1.unwrap();
        assert_eq!(written(), "0");
        std::fs::write(run_dir.join("cgroup.procs"), "").unwrap();
        moves.make().1.unwrap();
        assert_eq!(written(), "", "it was for both");
        tell_of_armed(run_dir);
        let said = [moves.make().0, moves.make().0];
        assert_eq!(said.map(|said| (said.any, said.armed)), [(false, true), (false, false)]);
        assert_eq!(written(), "", "no task comes of it");
    }

    #[test]
    fn the_kernel_is_hurried_while_the_lock_is_taken_and_a_note_outlives_who_is_killed() {
        let temp = tempfile::tempdir().unwrap();
        let notes = temp.path().join("notes");
        std::fs::create_dir(&notes).unwrap();
        let (noted_in, kernel) = (Dir::open(&notes).unwrap(), || Dir::open(temp.path()).unwrap());
        let say = |name: &str, text: &str| std::fs::write(temp.path().join(name), text).unwrap();
        let hurries = || std::fs::read_to_string(temp.path().join(EXPEDITED)).unwrap().trim() == "1";
        assert!(Hurry::new(kernel(), &noted_in).is_none(), "a kernel without these files");
        [EXPEDITED, NORMAL].into_iter().for_each(|name| say(name, "0\n"));
        let hurry = Hurry::new(kernel(), &noted_in).unwrap();
        assert!(noted_in.has(EXPEDITED) && !hurries());
        let hurried = hurry.begin().unwrap();
        assert!(hurries());
        drop(hurried);
        assert!(!hurries() && noted_in.has(EXPEDITED));
        say(NORMAL, "1\n");
        assert!(hurry.begin().is_none() && !hurries(), "an administrator wants quiet CPUs");
        say(NORMAL, "0\n");
        drop(hurry.begin().unwrap());
        std::mem::forget(hurry);
        say(EXPEDITED, "1\n");
        Hurry::end_anothers(&kernel(), &noted_in);
        assert!(
            hurries() && !noted_in.has(EXPEDITED),
            "one was killed between two times, and then an administrator wanted it"
        );
        say(EXPEDITED, "0\n");
        let hurry = Hurry::new(kernel(), &noted_in).unwrap();
        std::mem::forget(hurry.begin().unwrap());
        std::mem::forget(hurry);
        assert!(hurries() && noted_in.has(EXPEDITED));
        Hurry::end_anothers(&kernel(), &noted_in);
        assert!(!hurries() && !noted_in.has(EXPEDITED));
        say(EXPEDITED, "1\n");
        Hurry::end_anothers(&kernel(), &noted_in);
        assert!(hurries(), "an administrator's");
        assert!(Hurry::new(kernel(), &noted_in).is_none() && !noted_in.has(EXPEDITED));
    }
}
