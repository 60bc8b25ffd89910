// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs a program under ptrace, and does something to it at one of its system calls: the call fails, or the process dies.
//!
//! Only the program itself is traced, not what it forks. Once the fault has been met it runs on untraced.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null_mut;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::{c_int, c_long, c_uint, user_regs_struct};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls;

/// The call that does not exist, by which the stand-in says in which phase it is: `MARK` in slurmstepd.c.
const MARK: u64 = 0x6a_6f62;

/// The only phase of a program that makes no marks.
pub const SINCE: u64 = 5;

/// More than this is a hang, on a machine of whatever speed.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What is done at a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It is not made, and answers this.
    Fail(Errno),
    /// The process is killed when it asks for it.
    DieBefore,
    /// The process is killed when it has been made.
    DieAfter,
}

/// Where, in which call, and what.
#[derive(Debug, Clone)]
pub struct Fault {
    pub at: Point,
    pub act: Act,
}

impl Fault {
    /// One that it has in each run.
    pub fn number(&self) -> u64 {
        let Point { phase, text, nth, .. } = &self.at;
        let text = format!("{phase} {} {nth} {:?}", same(text), self.act);
        // FNV-1a.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// One system call of an undisturbed run.
#[derive(Debug, Clone)]
pub struct Point {
    pub phase: u64,
    pub number: c_long,
    /// Its name and what it is about.
    pub text: String,
    /// How many of the same phase and about the same came before it. A number in the phase would say little, since it is chance how
    /// often it is tried to remove a directory that the kernel has not let go of yet.
    pub nth: usize,
}

/// A call in whichever run, and whether for the first time or again: its phase, its number, and what it is about.
pub type Call = (u64, c_long, String);

impl Point {
    pub fn call(&self) -> Call {
        (self.phase, self.number, same(&self.text))
    }

    /// As it is in other hierarchies, and for the first time or again: its phase, its number, and the last name of what it is about.
    pub fn kind(&self) -> Call {
        let (phase, number, about) = self.call();
        (phase, number, about.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// Whether it is the same call of another run.
    pub fn is(&self, other: &Self) -> bool {
        let place = |point: &Self| (point.phase, point.number, point.nth);
        place(self) == place(other) && same(&self.text) == same(&other.text)
    }
}

/// What a call is about, without what differs from run to run.
fn same(text: &str) -> String {
    let is_ours = |word: &str| word.starts_with(".tmp") || word.contains("jobfence-test-");
    let words = text.split('/').map(|word| if is_ours(word) { "" } else { word });
    words.collect::<Vec<_>>().join("/").chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Which calls are counted.
#[derive(Debug, Clone, Copy)]
pub enum Watch<'a> {
    /// Those between the stand-in's marks.
    Marks,
    /// All since this file was opened, for programs that make no marks.
    Since(&'a str),
}

/// What came of it.
pub struct Traced {
    pub pid: Pid,
    pub status: WaitStatus,
    /// The calls, up to the fault if there was one.
    pub points: Vec<Point>,
    /// The call came, and was the expected one.
    pub met: bool,
    /// It had to be ended.
    pub hung: bool,
}

/// What of the kernel is missing all the time, whatever else fails.
#[derive(Debug, Clone, Copy)]
pub struct Missing<'a>(pub &'a [&'a str]);

/// Runs the program to its end.
pub fn run(command: &mut Command, watch: Watch<'_>, missing: Missing<'_>, fault: Option<&Fault>) -> Traced {
    let trace_me = || {
        // SAFETY: asks for nothing but to be traced by the parent.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(trace_me) };
    // Waited for below, and not by the handle.
    #[allow(clippy::zombie_processes)]
    let pid = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
    let watchdog = watch_over(pid);
    let tracee = Tracee { pid };
    let mut traced = tracee.follow(watch, missing, fault);
    traced.hung = watchdog.join().unwrap();
    traced
}

/// Kills the process if it does not end in time, and says whether that was so.
fn watch_over(pid: Pid) -> JoinHandle<bool> {
    // SAFETY: pidfd_open takes a pid and no flags, and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    assert!(fd >= 0, "pidfd_open: {}", Errno::last());
    // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(c_int::try_from(fd).unwrap()) };
    std::thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap();
            if poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout) == Ok(1) {
                return false;
            }
        }
        // SAFETY: a descriptor that we own, a signal number, no siginfo and no flags.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, null_mut::<u8>(), 0) };
        true
    })
}

/// A process that stops at each of its system calls.
struct Tracee {
    pid: Pid,
}

impl Tracee {
    fn follow(&self, watch: Watch<'_>, missing: Missing<'_>, fault: Option<&Fault>) -> Traced {
        let ended = |status, points, met| Traced { pid: self.pid, status, points, met, hung: false };
        match self.wait() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            status => return ended(status, Vec::new(), false),
        }
        self.set_options();
        let mut points: Vec<Point> = Vec::new();
        let mut phase = 0;
        let mut before: BTreeMap<(u64, String), usize> = BTreeMap::new();
        let (mut in_call, mut pending) = (false, None);
        let mut met = false;
        let mut signal = 0;
        loop {
            self.go_on(libc::PTRACE_SYSCALL, signal);
            signal = 0;
            match self.wait() {
                WaitStatus::PtraceSyscall(_) => {}
                WaitStatus::Stopped(_, other) => {
                    signal = other as c_int;
                    continue;
                }
                status => return ended(status, points, met),
            }
            in_call = !in_call;
            // Whoever is killed may be gone.
            let Ok(mut registers) = self.registers() else { continue };
            if !in_call {
                match pending.take() {
                    None => continue,
                    Some(Act::Fail(errno)) => {
                        registers.rax = i64::from(-(errno as c_int)).cast_unsigned();
                        self.set_registers(&registers);
                    }
                    Some(Act::DieBefore | Act::DieAfter) => self.kill(),
                }
                // What is missing is missing again.
                if met && missing.0.is_empty() {
                    self.go_on(libc::PTRACE_DETACH, 0);
                    return ended(self.wait(), points, met);
                }
                continue;
            }
            let number = registers.orig_rax.cast_signed();
            if registers.orig_rax == MARK {
                phase = registers.rdi;
                continue;
            }
            if let (Watch::Since(file), 0, libc::SYS_openat) = (watch, phase, number) {
                phase = if self.string(registers.rsi) == file { SINCE } else { 0 };
            }
            if number == libc::SYS_openat && missing.0.contains(&self.string(registers.rsi).as_str()) {
                pending = Some(Act::Fail(Errno::ENOENT));
                self.skip(&mut registers);
                continue;
            }
            // The log is the stand-in's own.
            let is_log = number == libc::SYS_write && registers.rdi == 2;
            if phase == 0 || is_log || !calls::counts(number) {
                continue;
            }
            if met || fault.is_some_and(|fault| (fault.at.phase, fault.at.number) != (phase, number)) {
                continue;
            }
            let text = self.describe(&registers);
            let about = same(&text);
            let nth = before.entry((phase, about.clone())).or_default();
            *nth += 1;
            let Some(fault) = fault else {
                points.push(Point { phase, number, text, nth: *nth - 1 });
                continue;
            };
            if *nth - 1 != fault.at.nth || about != same(&fault.at.text) {
                continue;
            }
            met = true;
            match fault.act {
                Act::DieBefore => self.kill(),
                Act::DieAfter => pending = Some(fault.act),
                Act::Fail(_) => {
                    pending = Some(fault.act);
                    // It lets go of the file whatever it answers.
                    if number != libc::SYS_close {
                        self.skip(&mut registers);
                    }
                }
            }
        }
    }

    fn wait(&self) -> WaitStatus {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Err(Errno::EINTR) => {}
                status => return status.unwrap(),
            }
        }
    }

    fn set_options(&self) {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        // SAFETY: a stopped tracee of this thread, and a number.
        let failed = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, self.pid.as_raw(), null_mut::<u8>(), options) };
        assert_eq!(failed, 0, "PTRACE_SETOPTIONS: {}", Errno::last());
    }

    /// It may have been killed meanwhile, which the next wait says.
    fn go_on(&self, request: c_uint, signal: c_int) {
        // SAFETY: a tracee of this thread, and a number.
        unsafe { libc::ptrace(request, self.pid.as_raw(), null_mut::<u8>(), signal) };
    }

    fn kill(&self) {
        let _ = nix::sys::signal::kill(self.pid, Signal::SIGKILL);
    }

    fn registers(&self) -> Result<user_regs_struct, Errno> {
        // SAFETY: a struct of numbers.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: a stopped tracee of this thread, and room for its registers.
        let failed = unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, self.pid.as_raw(), null_mut::<u8>(), (&raw mut registers).cast::<u8>())
        };
        Errno::result(failed).map(|_| registers)
    }

    fn set_registers(&self, registers: &user_regs_struct) {
        let registers = (&raw const *registers).cast::<u8>();
        // SAFETY: a stopped tracee of this thread, and its registers.
        unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid.as_raw(), null_mut::<u8>(), registers) };
    }

    /// The kernel makes no call of this number, and leaves the answer to us.
    fn skip(&self, registers: &mut user_regs_struct) {
        registers.orig_rax = u64::MAX;
        self.set_registers(registers);
    }

    /// A string in its memory; the page after it may not be there.
    fn string(&self, address: u64) -> String {
        let mut text = [0u8; 256];
        let base = usize::try_from(address).unwrap_or(0);
        let length = text.len().min(4096 - base % 4096);
        let there = [RemoteIoVec { base, len: length }, RemoteIoVec { base: base + length, len: text.len() - length }];
        let read = process_vm_readv(self.pid, &mut [io::IoSliceMut::new(&mut text)], &there).unwrap_or(0);
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(read).min(read);
        String::from_utf8_lossy(text.get(..end).unwrap_or_default()).into_owned()
    }

    fn file(&self, descriptor: u64) -> String {
        let link = format!("/proc/{}/fd/{}", self.pid, descriptor.cast_signed());
        std::fs::read_link(link).map_or_else(|_| "…".to_owned(), |path| path.display().to_string())
    }

    fn describe(&self, registers: &user_regs_struct) -> String {
        let number = registers.orig_rax.cast_signed();
        let name = calls::find(number).map_or("?", |call| call.name);
        let below = |dir: u64, path: u64| match self.string(path) {
            path if path.starts_with('/') => path,
            path => format!("{}/{path}", self.file(dir)),
        };
        let about = match number {
            libc::SYS_openat | libc::SYS_mkdirat | libc::SYS_unlinkat | libc::SYS_newfstatat | libc::SYS_readlinkat => {
                below(registers.rdi, registers.rsi)
            }
            libc::SYS_linkat | libc::SYS_renameat => below(registers.rdx, registers.r10),
            libc::SYS_write => {
                let length = usize::try_from(registers.rdx).unwrap_or(0);
                let text: String = self.string(registers.rsi).chars().take(length.min(40)).collect();
                format!("{}, {text:?}", self.file(registers.rdi))
            }
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_getdents64
            | libc::SYS_fstat
            | libc::SYS_fstatfs
            | libc::SYS_lseek
            | libc::SYS_flock
            | libc::SYS_fcntl
            | libc::SYS_fgetxattr
            | libc::SYS_fsetxattr
            | libc::SYS_close => self.file(registers.rdi),
            _ => String::new(),
        };
        format!("{name}({about})")
    }
}
