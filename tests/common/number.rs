// SPDX-License-Identifier: GPL-2.0-or-later
//! Another process under the pid of an ended one, in the moment before a command moves that one.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::patience::until;

/// Killed when the test ends.
pub struct Stranger(pub Pid);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(self.0, None);
    }
}

/// Starts a program under this pid, and waits until it runs as this user. `None`: the kernel does not allow choosing a pid (clone3(2),
/// `set_tid`).
pub fn start_under(pid: i32, uid: u32) -> Option<Stranger> {
    #[repr(C)]
    #[derive(Default)]
    struct CloneArguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
    }
    let number = pid;
    let exit_signal = u64::try_from(libc::SIGCHLD).unwrap();
    let arguments =
        CloneArguments { exit_signal, set_tid: (&raw const number) as u64, set_tid_size: 1, ..Default::default() };
    let words = [c"/bin/sleep".as_ptr(), c"300".as_ptr(), std::ptr::null()];
    // SAFETY: as fork(2); the child calls nothing but system calls before its exec, with what was made before.
    let started = unsafe {
        let started = libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>());
        if started == 0 {
            libc::syscall(libc::SYS_setuid, uid);
            libc::execv(words[0], words.as_ptr());
            libc::_exit(1);
        }
        i32::try_from(started).ok().filter(|started| *started > 0)?
    };
    let stranger = Stranger(Pid::from_raw(started));
    until("the stranger runs", || {
        fs::read(format!("/proc/{started}/cmdline")).is_ok_and(|it| it == b"/bin/sleep\x00300\0")
    });
    Some(stranger)
}

/// The command under strace(1), which prints on stderr what the command opens.
fn traced(command: &Command, more: &[&str]) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-qq", "-e", "trace=openat"]).args(more).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    traced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    traced
}

/// How many files the command opens until it can write into the first `cgroup.procs`.
pub fn opened_until_its_move(command: &Command) -> usize {
    opened_until(command, |line| line.contains("\"cgroup.procs\"") && line.contains("O_WRONLY"))
}

/// How many files the command opens, up to the first of which strace prints such a line.
pub fn opened_until(command: &Command, is_it: impl Fn(&str) -> bool) -> usize {
    let done = traced(command, &[]).output().unwrap();
    let trace = String::from_utf8_lossy(&done.stderr);
    trace.lines().position(is_it).unwrap_or_else(|| panic!("{trace}")) + 1
}

/// A stopped command.
pub struct Stopped {
    strace: Child,
    trace: BufReader<ChildStderr>,
    said: String,
    command: Option<Pid>,
}

impl Stopped {
    /// Starts the command, and waits until it has opened so many files.
    pub fn behind(command: &Command, files: usize) -> Self {
        let at = format!("inject=openat:signal=SIGSTOP:when={files}");
        let mut strace = traced(command, &["-e", &at]).spawn().unwrap();
        let mut trace = BufReader::new(strace.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("--- stopped by SIGSTOP ---") {
            assert_ne!(trace.read_line(&mut said).unwrap(), 0, "the command has ended: {said}");
        }
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", strace.id())).unwrap();
        let command = Some(Pid::from_raw(children.trim().parse().unwrap()));
        Self { strace, trace, said, command }
    }

    /// Continues the command; returns how it ends and its stderr.
    pub fn go_on(mut self) -> (ExitStatus, String) {
        kill(self.command.take().unwrap(), Signal::SIGCONT).unwrap();
        self.trace.read_to_string(&mut self.said).unwrap();
        (self.strace.wait().unwrap(), std::mem::take(&mut self.said))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A stopped process outlives strace.
        if let Some(command) = self.command {
            let _ = kill(command, Signal::SIGKILL);
        }
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}
