// SPDX-License-Identifier: GPL-2.0-or-later
//! The shepherd as a child: it starts in its fence, gets the signals that execd sends to us, and is waited for.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::spool::SpoolUser;
use jobfence::doors::run::{Waited, waited};
use jobfence::error::{Error, Result};
use jobfence::report::account::Exit;
use jobfence::schedulers::gridengine::SHEPHERD;
use jobfence::sys::child::PlacedChild;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::readlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, execv, getppid, setpgid};

/// What execd sends to a shepherd (`sge_kill`), and what an administrator may.
const PASSED_ON: [Signal; 12] = [
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGALRM,
];

/// The file with the number of the signal that SIGTTIN stands for.
const SIGNAL: &str = "signal";
/// The file by which execd finds its shepherd again.
pub const PID: &str = "pid";
/// The file that the shepherd writes when it has started the job.
const JOB_PID: &str = "job_pid";

/// How long at least, and how long at most, until these files are looked at again.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(200);

/// By proc(5), as if it had less memory by half of the job's limit. The shepherd of an interactive job has more than 20 MiB, and each process of
/// the job may have less.
const SPARED: &str = "-500";

/// A shepherd that runs.
pub struct ShepherdProcess {
    pid: Pid,
    signals: SignalFd,
    spool: SpoolWatch,
    /// What is not yet handed on.
    waiting: Vec<ShepherdEvent>,
}

/// What comes next of a shepherd.
pub enum ShepherdEvent {
    /// It has written its number.
    HasPid,
    /// It has started the job.
    JobBegins,
    /// Somebody wants it to have this signal.
    Signal(Signal),
    /// It is dead.
    Ended(Exit),
}

/// The shepherd that execd itself would start: it lies beside execd. To be asked at once: when execd ends, our parent is another.
pub fn program() -> Result<CString> {
    let execd = PathBuf::from(format!("/proc/{}/exe", getppid()));
    let found = readlink(&execd).map_err(|errno| Error::os("find execd", &execd, errno))?;
    let path = PathBuf::from(found).with_file_name(SHEPHERD);
    if !path.is_file() {
        return Err(Error::new("there is no shepherd beside the program that has started us:").at(&path));
    }
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::new("a NUL in a path").at(&path))
}

/// The shepherd in the place of this process.
pub fn become_shepherd(program: &CString, name: &OsStr, user: SpoolUser) -> Result<Infallible> {
    exec(program, name, user)
}

/// As execd starts it: in the background.
fn exec(path: &CString, name: &OsStr, user: SpoolUser) -> Result<Infallible> {
    user.act()?;
    // SAFETY: the default action is no code of ours. What is ignored would be so in the job, too.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let name = CString::new(name.as_bytes()).map_err(|_| Error::new("a NUL in a name"))?;
    execv(path, &[name, c"-bg".to_owned()])
        .map_err(|errno| Error::os("run", path.to_string_lossy().into_owned(), errno))
}

/// Whether a job that stands still is to go on for this signal. At `s_rt` and `s_cpu` execd only warns it (`sge_kill` of
/// `execd_signal_queue.c`), and the warning waits.
pub fn wakes(signal: Signal) -> bool {
    ![Signal::SIGUSR1, Signal::SIGUSR2].contains(&signal)
}

/// Whether this signal asks for the job to be stopped.
pub fn is_stop(dir: &Dir, signal: Signal) -> bool {
    let number = || dir.read(SIGNAL).ok()?.trim().parse::<i32>().ok();
    signal == Signal::SIGTTIN && number() == Some(Signal::SIGSTOP as i32)
}

/// What comes of the shepherd's files. They are looked at again and again: the kernel would tell by inotify, but all of root's
/// processes on a host together have 128 instances of that, and each job has a process of ours.
struct SpoolWatch {
    directory: PathBuf,
    since: Instant,
    has_pid: bool,
    is_begun: bool,
}

impl SpoolWatch {
    fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), since: Instant::now(), has_pid: false, is_begun: false }
    }

    /// When to look the next time; never when there is nothing more to come. A prolog can take long: what comes after it is seen
    /// late by a small part of the time that it took.
    fn next(&self) -> PollTimeout {
        if self.has_pid && self.is_begun {
            return PollTimeout::NONE;
        }
        let pause = (self.since.elapsed() / 20).clamp(SOONEST, LATEST);
        PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO)
    }

    /// In the order in which it has happened. A file that is empty is not yet written. The job's user can write to some of the
    /// files there, but not to these.
    fn read(&mut self) -> Vec<ShepherdEvent> {
        let is_written =
            |name: &str| std::fs::symlink_metadata(self.directory.join(name)).is_ok_and(|found| found.len() > 0);
        let mut found = Vec::new();
        if !self.has_pid && is_written(PID) {
            found.push(ShepherdEvent::HasPid);
        }
        if !self.is_begun && is_written(JOB_PID) {
            found.push(ShepherdEvent::JobBegins);
        }
        self.has_pid |= found.iter().any(|event| matches!(event, ShepherdEvent::HasPid));
        self.is_begun |= found.iter().any(|event| matches!(event, ShepherdEvent::JobBegins));
        found
    }
}

impl ShepherdProcess {
    /// Starts it; `attach` puts it into its fence before it runs anything.
    pub fn start(
        program: &CString,
        name: &OsStr,
        user: SpoolUser,
        attach: impl FnOnce(Pid) -> Result<()>,
    ) -> Result<Self> {
        let os = |op: &'static str| move |errno| Error::new(op).errno(errno);
        // As execd looks for it, with ps(1).
        let comm = CString::new(SHEPHERD).map_err(|_| Error::new("a NUL in a name"))?;
        prctl::set_name(&comm).map_err(os("set the name of this process"))?;
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        let mut wanted = SigSet::empty();
        PASSED_ON.iter().chain([&Signal::SIGCHLD]).for_each(|signal| wanted.add(*signal));
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&wanted), Some(&mut before)).map_err(os("block signals"))?;
        let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(os("watch for signals"))?;
        let spool = SpoolWatch::new(Path::new("."));
        let child = PlacedChild::start(attach, || {
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).map_err(os("unblock signals"))?;
            exec(program, name, user)
        })?;
        if let Some(why) = child.failure() {
            let _ = waitpid(child.pid, None);
            return Err(why);
        }
        Ok(Self { pid: child.pid, signals, spool, waiting: Vec::new() })
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for what comes next.
    pub fn next(&mut self) -> Result<ShepherdEvent> {
        loop {
            if let Some(event) = self.waiting.pop() {
                return Ok(event);
            }
            match poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], self.spool.next()) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::new("wait for the shepherd").errno(errno)),
            }
            self.spool.read().into_iter().for_each(|event| self.waiting.insert(0, event));
            self.read_signals();
            // Once it has been waited for, its number can be that of another process.
            if self.waiting.iter().any(|event| matches!(event, ShepherdEvent::Ended(_))) {
                self.waiting.retain(|event| !matches!(event, ShepherdEvent::JobBegins));
            }
        }
    }

    fn read_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
            else {
                continue;
            };
            if signal != Signal::SIGCHLD {
                self.waiting.insert(0, ShepherdEvent::Signal(signal));
            }
        }
        if let Ok(Waited::Ended(how)) = waited(self.pid, WaitPidFlag::empty()) {
            self.waiting.insert(0, ShepherdEvent::Ended(how));
        }
    }

    /// Has the kernel kill others first, if the job is out of memory. The job was born before, and what the shepherd starts later is still
    /// killed if it is large.
    pub fn spare(&self) -> Result<()> {
        // It is not waited for yet, so the number is its own.
        let path = PathBuf::from(format!("/proc/{}/oom_score_adj", self.pid));
        std::fs::write(&path, SPARED).map_err(|error| Error::new(format!("write {SPARED}: {error}")).at(&path))
    }

    /// Sends it a signal.
    pub fn pass_on(&self, signal: Signal) {
        // When it has been waited for, its number can be another's.
        if !self.waiting.iter().any(|event| matches!(event, ShepherdEvent::Ended(_))) {
            let _ = kill(self.pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_wakes_no_job() {
        let asleep = PASSED_ON.into_iter().filter(|signal| !wakes(*signal)).collect::<Vec<_>>();
        assert_eq!(asleep, [Signal::SIGUSR1, Signal::SIGUSR2]);
    }

    #[test]
    fn the_spool_is_looked_at_until_the_job_has_begun() {
        let top = tempfile::tempdir().unwrap();
        let mut spool = SpoolWatch::new(top.path());
        let mut seen_after = |names: &[&str]| {
            names.iter().for_each(|name| std::fs::write(top.path().join(name), "1").unwrap());
            let events = spool.read();
            let is = |wanted: fn(&ShepherdEvent) -> bool| events.iter().filter(|event| wanted(event)).count();
            let (has_pid, begins) = (
                is(|event| matches!(event, ShepherdEvent::HasPid)),
                is(|event| matches!(event, ShepherdEvent::JobBegins)),
            );
            (has_pid, begins, spool.next() != PollTimeout::NONE)
        };
        std::fs::write(top.path().join(PID), "").unwrap();
        let found = [
            seen_after(&["trace"]),
            seen_after(&[PID, PID]),
            seen_after(&["trace", JOB_PID]),
            seen_after(&["trace", "error", "exit_status", PID, JOB_PID]),
        ];
        assert_eq!(found, [(0, 0, true), (1, 0, true), (0, 1, false), (0, 0, false)]);
    }
}
