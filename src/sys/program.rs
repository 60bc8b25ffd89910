// SPDX-License-Identifier: GPL-2.0-or-later
//! The only way in which a program is run for its output. The output is read while the program runs, up to a deadline and a length;
//! then the program and what it has started are killed. The program gets no descriptor of this process, and only the named variables of
//! the environment.
//!
//! Only for jobfence's commands: in a scheduler's process no program is started.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Gid, Pid, Uid, setegid, seteuid, setgroups, setresgid, setresuid};

use super::child::leave_descriptors;

/// How much of its answer is read, in bytes.
const LONGEST: usize = 16 << 20;
/// How much of its stderr is kept, in bytes.
const COMPLAINTS: usize = 64 << 10;
/// How often to check whether a program has ended whose output another process keeps open.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a killed program has to end. One that waits inside the kernel does not end.
const MOMENT: Duration = Duration::from_secs(1);

/// The user and the group who own nothing (`nobody` and `nogroup`).
const NOBODY: u32 = 65_534;

/// What each program gets of this environment. See also `acting_for`.
const KEPT: &[&str] = &["PATH", "LD_LIBRARY_PATH"];

/// A program to run for its output.
pub struct AskedProgram {
    command: Command,
    /// Whether it and what it starts have a process group of their own, which is killed with it.
    is_group: bool,
}

/// What a program that was told something has printed, however it ended.
#[derive(Debug)]
pub struct Printed {
    /// Its output.
    pub said: String,
    /// Why it failed, if it did.
    pub complaint: Option<String>,
    /// What it has written to stderr, also if it did not fail.
    pub stderr: String,
}

/// Why a program has not answered. The answer is not known then.
#[derive(Debug)]
pub enum Silence {
    /// It cannot be started, or its output cannot be read.
    Start(io::Error),
    /// It did not end in time.
    Late,
    /// It prints more than is read.
    Long,
    /// It has failed, with this text on stderr.
    Failed(String),
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::Late => f.write_str("it does not answer"),
            Self::Long => write!(f, "it says more than {} MiB", LONGEST >> 20),
            Self::Failed(complaint) => f.write_str(complaint),
        }
    }
}

impl AskedProgram {
    /// It gets `kept` of the environment, beside what each program gets; a name that ends with `_` means all that begin so.
    pub fn new(program: impl AsRef<OsStr>, arguments: &[impl AsRef<OsStr>], kept: &[&str]) -> Self {
        let is_kept = |name: &OsStr| {
            let name = name.to_string_lossy();
            let fits = |kept: &&str| name == **kept || kept.ends_with('_') && name.starts_with(*kept);
            KEPT.iter().chain(kept).any(fits)
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
        Self { command, is_group: true }
    }

    /// Adds all of this process's environment but these variables.
    #[must_use]
    pub fn with_all_but(mut self, names: &[&str]) -> Self {
        self.command.envs(std::env::vars_os().filter(|(name, _)| !names.iter().any(|left| name == left)));
        self
    }

    /// Adds these variables to its environment.
    #[must_use]
    pub fn with(mut self, variables: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.command.envs(variables);
        self
    }

    /// Has it act for this user and group, and for no other group: what it asks of a server, the user has asked. Its real user is root, so
    /// that the user can neither trace it nor read its memory. The user can end it, and stop it.
    ///
    /// To the kernel such a program is privileged (`AT_SECURE`): it gets no LD_LIBRARY_PATH, and the end of this process does not end it. So
    /// it stays in the process group of its caller, and who ends the caller is to end that group.
    #[must_use]
    pub fn acting_for(mut self, uid: u32, gid: u32) -> Self {
        let become_user = move || {
            setgroups(&[])?;
            setegid(Gid::from_raw(gid))?;
            Ok(seteuid(Uid::from_raw(uid))?)
        };
        // SAFETY: commands have one thread, so the child may do what it likes until its exec.
        unsafe { self.command.pre_exec(become_user) };
        self.is_group = false;
        self
    }

    /// Has it bear this user's and this group's names, and no other group's: for a command whose server goes by the real ids. Its effective
    /// ids are those of nobody: so the user can neither trace it nor read its memory, and it has no rights of root's. The user can end it, and
    /// stop it. What is said of [`Self::acting_for`] holds for the rest.
    #[must_use]
    pub fn named_after(mut self, uid: u32, gid: u32) -> Self {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let (no_uid, no_gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let take_names = move || {
            setgroups(&[])?;
            setresgid(gid, no_gid, no_gid)?;
            Ok(setresuid(uid, no_uid, no_uid)?)
        };
        // SAFETY: commands have one thread, so the child may do what it likes until its exec.
        unsafe { self.command.pre_exec(take_names) };
        self.is_group = false;
        self
    }

    /// Runs it, and returns what it prints by the deadline.
    pub fn ask(self, deadline: Instant) -> Result<String, Silence> {
        let heard = self.run(Stdio::null(), deadline)?;
        heard.complaint.map_or(Ok(heard.said), |complaint| Err(Silence::Failed(complaint)))
    }

    /// Runs it with this text as its input. What it prints counts also if it fails: it may have done a part.
    pub fn tell(self, text: &str, deadline: Instant) -> Result<Printed, Silence> {
        // A file, and no pipe: nobody has to write while its output is read.
        let mut input = File::from(memfd_create("input", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
        input.write_all(text.as_bytes())?;
        input.rewind()?;
        self.run(input.into(), deadline)
    }

    fn run(mut self, input: Stdio, deadline: Instant) -> Result<Printed, Silence> {
        let command = self.command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.is_group {
            command.process_group(0);
        }
        let leave = || {
            // A program is asked all the same.
            let _ = leave_descriptors();
            // This process may be killed before it can kill the program. An exec that makes it privileged undoes this.
            let _ = set_pdeathsig(Signal::SIGKILL);
            Ok(())
        };
        // SAFETY: commands have one thread, so the child may do what it likes until its exec.
        unsafe { command.pre_exec(leave) };
        let mut child = RunningProgram { child: command.spawn()?, is_group: self.is_group };
        let (mut said, mut complaints) = (Vec::new(), Vec::new());
        child.read(&mut said, &mut complaints, deadline)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stderr = text(&complaints).trim().to_owned();
        let complaint = match child.end(deadline)? {
            WaitStatus::Exited(_, 0) => None,
            WaitStatus::Signaled(_, signal, _) => Some(format!("{signal} has ended it")),
            _ => Some(stderr.clone()),
        };
        Ok(Printed { said: text(&said), complaint, stderr })
    }
}

/// A running program. When dropped, it is killed, with what it has started in its process group, if it has one.
struct RunningProgram {
    child: Child,
    is_group: bool,
}

impl RunningProgram {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// How it has ended, if it has. It stays a zombie, so that no other process gets its pid.
    fn status(&self) -> Result<Option<WaitStatus>, Silence> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.pid()), flags) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(None),
            Ok(status) => Ok(Some(status)),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// Reads until both pipes are closed, or the program has ended and nothing more is in them.
    fn read(&mut self, said: &mut Vec<u8>, complaints: &mut Vec<u8>, deadline: Instant) -> Result<(), Silence> {
        let (mut out, mut err) = (self.child.stdout.take(), self.child.stderr.take());
        out.as_ref().map(|pipe| no_waiting(pipe.as_fd())).transpose()?;
        err.as_ref().map(|pipe| no_waiting(pipe.as_fd())).transpose()?;
        loop {
            // Checked before the pipes are read: then they have all that it has written.
            let has_ended = self.status()?.is_some();
            let more = read_some(&mut out, said)?;
            let more = read_some(&mut err, complaints)? || more;
            if said.len() > LONGEST {
                return Err(Silence::Long);
            }
            complaints.truncate(COMPLAINTS);
            if out.is_none() && err.is_none() || has_ended && !more {
                return Ok(());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Err(Silence::Late) };
            if !more {
                let pipes = [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)];
                let mut both: Vec<PollFd<'_>> =
                    pipes.into_iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)).collect();
                let _ = poll(&mut both, PollTimeout::try_from(left.min(PAUSE)).unwrap_or(PollTimeout::ZERO));
            }
        }
    }

    fn end(&self, deadline: Instant) -> Result<WaitStatus, Silence> {
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(Silence::Late);
            }
            let _ = poll(&mut [], PollTimeout::from(2u8));
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Its pid, and its group's number, are its own until it has been waited for.
        let _ = if self.is_group { killpg(self.pid(), Signal::SIGKILL) } else { kill(self.pid(), Signal::SIGKILL) };
        let deadline = Instant::now() + MOMENT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
    }
}

fn no_waiting(pipe: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Reads what is there, and returns whether there was something. Closes the pipe at its end.
fn read_some(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(open) = pipe else { return Ok(false) };
    let mut some = [0; 16 << 10];
    match open.read(&mut some) {
        Ok(0) => *pipe = None,
        Ok(length) => {
            into.extend_from_slice(some.get(..length).unwrap_or_default());
            return Ok(true);
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
        Err(error) => return Err(error),
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const NONE: &[&str] = &[];

    fn sh(script: &str, patience: Duration) -> Result<String, Silence> {
        AskedProgram::new("/bin/sh", &["-c", script], NONE).ask(Instant::now() + patience)
    }

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn an_answer_is_longer_than_a_pipe() {
        assert_eq!(sh("head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero", LONG).unwrap().len(), 3_000_000);
        assert!(matches!(sh("exec cat /dev/zero", LONG), Err(Silence::Long)));
    }

    #[test]
    fn it_has_the_environment_that_it_is_given() {
        // cargo sets both.
        let (one, other) = ("CARGO_PKG_NAME", "CARGO_MANIFEST_DIR");
        let asked = || AskedProgram::new("/usr/bin/env", NONE, NONE);
        let has = |program: AskedProgram, name: &str| program.ask(Instant::now() + LONG).unwrap().contains(name);
        assert!(!has(asked(), one) && has(asked().with_all_but(&[other]), one));
        assert!(!has(asked().with_all_but(&[other]), other));
    }

    #[test]
    fn a_failure_is_none_of_its_answers() {
        assert_eq!(sh("echo x; echo no such job >&2; exit 1", LONG).unwrap_err().to_string(), "no such job");
        assert_eq!(sh("kill -9 $$", LONG).unwrap_err().to_string(), "SIGKILL has ended it");
        assert!(matches!(AskedProgram::new("/none", NONE, NONE).ask(Instant::now() + LONG), Err(Silence::Start(_))));
    }

    #[test]
    fn it_reads_what_it_is_given_and_what_it_did_before_it_failed_counts() {
        let cat = |script: &str| AskedProgram::new("/bin/sh", &["-c", script], NONE);
        let long = "x".repeat(3_000_000);
        let heard = cat("cat; echo one line is wrong >&2; exit 1").tell(&long, Instant::now() + LONG).unwrap();
        assert_eq!((heard.said == long, heard.complaint.as_deref()), (true, Some("one line is wrong")));
        assert_eq!(cat("true").tell(&long, Instant::now() + LONG).unwrap().complaint, None);
        let heard = cat("echo half of it is lost >&2").tell("", Instant::now() + LONG).unwrap();
        assert_eq!((heard.complaint, &*heard.stderr), (None, "half of it is lost"));
    }

    #[test]
    fn it_is_killed_with_what_it_has_started() {
        let temp = tempfile::tempdir().unwrap();
        let pid = temp.path().join("pid");
        let began = Instant::now();
        let script = format!("sleep 900 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
        let mut patience = Duration::from_millis(200);
        while !pid.exists() {
            assert!(matches!(sh(&script, patience), Err(Silence::Late)));
            patience *= 2;
        }
        let started = Pid::from_raw(std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap());
        let status = || std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        // The process that inherits it may not wait for it.
        while !status().is_empty() && !status().contains(") Z ") {
            assert!(began.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_keeps_its_output_keeps_nobody_waiting() {
        let began = Instant::now();
        assert_eq!(sh("sleep 900 & echo x", LONG).unwrap(), "x\n");
        assert!(began.elapsed() < LONG);
        assert!(matches!(sh("exec >&- 2>&-; sleep 900", Duration::from_millis(100)), Err(Silence::Late)));
    }

    #[test]
    fn it_has_an_environment_of_its_own() {
        let said = AskedProgram::new("/usr/bin/env", NONE, &["CARGO_MANIFEST_"]).with([("A", "b".to_owned())]);
        let said = said.ask(Instant::now() + LONG).unwrap();
        let mut names: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.retain(|name| !KEPT.contains(name));
        assert!(names.contains(&"A") && names.contains(&"CARGO_MANIFEST_DIR"), "{names:?}");
        assert!(names.iter().all(|name| *name == "A" || name.starts_with("CARGO_MANIFEST_")), "{names:?}");
    }

    #[test]
    fn it_has_no_descriptor_of_this_process() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is that of the file.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_there = || Command::new("test").args(["-e", &place]).status().unwrap().success();
        assert!(is_there());
        assert!(matches!(
            AskedProgram::new("test", &["-e", &place], NONE).ask(Instant::now() + LONG),
            Err(Silence::Failed(_))
        ));
    }
}
