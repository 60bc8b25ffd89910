// SPDX-License-Identifier: GPL-2.0-or-later
//! The shepherd as a child process: it starts in the job's fence, and gets the signals that execd sends to this process.

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

/// The signals that execd sends to a shepherd (`sge_kill`), and those that an administrator may send.
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

/// The file with the number of the signal for the job that SIGTTIN announces.
const SIGNAL: &str = "signal";
/// The file by which execd finds its shepherd again.
pub const PID: &str = "pid";
/// The file that the shepherd writes once it has started the job.
const JOB_PID: &str = "job_pid";

/// The shortest and the longest time between two looks at these files.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(200);

/// The shepherd's oom_score_adj: it counts as if it had less memory by half of the job's limit (proc(5)). The shepherd of an interactive
/// job has more than 20 MiB, and each process of the job may have less.
const SPARED: &str = "-500";

/// A running shepherd.
pub struct ShepherdProcess {
    pid: Pid,
    signals: SignalFd,
    spool: SpoolWatch,
    /// Events that are not yet returned, the oldest last.
    waiting: Vec<ShepherdEvent>,
}

/// An event of a shepherd.
pub enum ShepherdEvent {
    /// It has written its number.
    HasPid,
    /// It has started the job.
    JobBegins,
    /// This process got this signal for it.
    Signal(Signal),
    /// It has ended.
    Ended(Exit),
}

/// The shepherd that execd itself would start: the one beside execd's program. Call this first: after execd ends, the parent is another.
pub fn program() -> Result<CString> {
    let execd = PathBuf::from(format!("/proc/{}/exe", getppid()));
    let found = readlink(&execd).map_err(|errno| Error::os("find execd", &execd, errno))?;
    let path = PathBuf::from(found).with_file_name(SHEPHERD);
    if !path.is_file() {
        return Err(Error::new("there is no shepherd beside the program that has started us:").at(&path));
    }
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::new("a NUL in a path").at(&path))
}

/// Replaces this process by the shepherd.
pub fn become_shepherd(program: &CString, name: &OsStr, user: SpoolUser) -> Result<Infallible> {
    exec(program, name, user)
}

/// Executes the shepherd as execd does: in the background.
fn exec(path: &CString, name: &OsStr, user: SpoolUser) -> Result<Infallible> {
    user.act()?;
    // SAFETY: the default action runs no code of this program. If it stayed ignored, the job would inherit that.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let name = CString::new(name.as_bytes()).map_err(|_| Error::new("a NUL in a name"))?;
    execv(path, &[name, c"-bg".to_owned()])
        .map_err(|errno| Error::os("run", path.to_string_lossy().into_owned(), errno))
}

/// Whether this signal thaws a frozen job. At `s_rt` and `s_cpu` execd only sends a warning (`sge_kill` of `execd_signal_queue.c`), which
/// waits until the job goes on.
pub fn wakes(signal: Signal) -> bool {
    ![Signal::SIGUSR1, Signal::SIGUSR2].contains(&signal)
}

/// Whether this signal asks the shepherd to stop the job.
pub fn is_stop(dir: &Dir, signal: Signal) -> bool {
    let number = || dir.read(SIGNAL).ok()?.trim().parse::<i32>().ok();
    signal == Signal::SIGTTIN && number() == Some(Signal::SIGSTOP as i32)
}

/// Whether this signal asks the shepherd to kill the job: for qmaster, or at a limit that execd itself watches (`sge_kill` of
/// `execd_signal_queue.c`).
pub fn is_end(signal: Signal) -> bool {
    signal == Signal::SIGTSTP
}

/// Once the shepherd has been waited for, its number can be another process's: then nothing moves it any more.
fn forget_begin_of_ended(waiting: &mut Vec<ShepherdEvent>) {
    if waiting.iter().any(|event| matches!(event, ShepherdEvent::Ended(_))) {
        waiting.retain(|event| !matches!(event, ShepherdEvent::JobBegins));
    }
}

/// Watches for the shepherd's files by polling: inotify allows 128 instances for all of root's processes on a host together, and
/// each job has a process of jobfence.
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

    /// The time until the next look; none once both files are there. It grows with the time that has passed, as a prolog can take
    /// long: so a file is seen late by a small part of that time.
    fn next(&self) -> PollTimeout {
        if self.has_pid && self.is_begun {
            return PollTimeout::NONE;
        }
        let pause = (self.since.elapsed() / 20).clamp(SOONEST, LATEST);
        PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO)
    }

    /// New events, in their order. An empty file is not yet written. The job's user can write to some files of the spool, but not to
    /// these.
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
    /// Starts the shepherd. `attach` puts it into its fence before it executes anything, and `enter` is called in its own process then.
    pub fn start(
        program: &CString,
        name: &OsStr,
        user: SpoolUser,
        attach: impl FnOnce(Pid) -> Result<()>,
        enter: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let os = |op: &'static str| move |errno| Error::new(op).errno(errno);
        // execd looks for this name with ps(1).
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
            enter()?;
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).map_err(os("unblock signals"))?;
            exec(program, name, user)
        })?;
        if let Some(why) = child.failure() {
            let _ = waitpid(child.pid, None);
            return Err(why);
        }
        Ok(Self { pid: child.pid, signals, spool, waiting: Vec::new() })
    }

    /// The shepherd's process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the next event.
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
            forget_begin_of_ended(&mut self.waiting);
        }
    }

    /// Whether execd has asked for the job's end, after the last event that was returned: that was the shepherd's end.
    pub fn was_told_to_end(mut self) -> bool {
        self.take_signals();
        self.waiting.iter().any(|event| matches!(event, ShepherdEvent::Signal(signal) if is_end(*signal)))
    }

    fn read_signals(&mut self) {
        self.take_signals();
        if let Ok(Waited::Ended(how)) = waited(self.pid, WaitPidFlag::empty()) {
            self.waiting.insert(0, ShepherdEvent::Ended(how));
        }
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
            else {
                continue;
            };
            if signal != Signal::SIGCHLD {
                self.waiting.insert(0, ShepherdEvent::Signal(signal));
            }
        }
    }

    /// Has the kernel kill other processes first if the job is out of memory. The job has started, and does not inherit this. A later child
    /// of the shepherd does, but is still killed if it is large.
    pub fn spare(&self) -> Result<()> {
        // The shepherd is not waited for yet, so the number is still its own.
        let path = PathBuf::from(format!("/proc/{}/oom_score_adj", self.pid));
        std::fs::write(&path, SPARED).map_err(|error| Error::new(format!("write {SPARED}: {error}")).at(&path))
    }

    /// Sends the shepherd a signal.
    pub fn pass_on(&self, signal: Signal) {
        // After the shepherd has been waited for, its number can be another process's.
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
    fn one_signal_says_that_execd_ends_the_job() {
        assert_eq!(PASSED_ON.into_iter().filter(|signal| is_end(*signal)).collect::<Vec<_>>(), [Signal::SIGTSTP]);
    }

    #[test]
    fn a_shepherd_that_has_ended_is_not_moved() {
        let left = |mut waiting: Vec<ShepherdEvent>| {
            forget_begin_of_ended(&mut waiting);
            waiting.iter().filter(|event| matches!(event, ShepherdEvent::JobBegins)).count()
        };
        assert_eq!(left(vec![ShepherdEvent::HasPid, ShepherdEvent::JobBegins]), 1);
        assert_eq!(left(vec![ShepherdEvent::Ended(Exit::Status(0)), ShepherdEvent::JobBegins]), 0);
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
