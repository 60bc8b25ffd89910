// SPDX-License-Identifier: GPL-2.0-or-later
//! The site's own JSV: qmaster has only one `jsv_url`. It runs as under qmaster, and is asked before jobfence's, since its changes count.
//! Its lines are handed on as they are.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use jobfence::printable::printable;
use jobfence::sys::child::leave_descriptors;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// More bytes than a line of the protocol has.
const LONGEST: usize = 1 << 20;
/// How long the other JSV has to end. qmaster gives jobfence's JSV five seconds.
const END: Duration = Duration::from_secs(2);
/// The time between two looks whether it has ended, in milliseconds.
const PAUSE: u8 = 10;

/// What the other JSV has decided.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// The job may be submitted, if jobfence's JSV agrees.
    Accepted,
    /// The job is rejected by this line, which ends the verification.
    Rejected(Vec<u8>),
}

/// The other JSV. It is started at the first job.
pub struct OtherJsv {
    argv: Vec<OsString>,
    /// The longest time that it may be silent.
    patience: Duration,
    running: Option<RunningJsv>,
}

impl OtherJsv {
    /// The JSV that the command `argv` starts.
    pub fn new(argv: Vec<OsString>, patience: Duration) -> Self {
        Self { argv, patience, running: None }
    }

    /// Asks about a job with these lines of qmaster's, and hands on each line of the answer but the last.
    ///
    /// If the other JSV fails, the job is rejected for now, since none may get past the site's rules. The next job starts a new process.
    pub fn ask(&mut self, job: &[Vec<u8>], mut hand_on: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Decision> {
        match self.conversation(job, &mut hand_on) {
            Ok(decision) => Ok(decision),
            Err(Trouble::OfOurs(error)) => Err(error),
            Err(Trouble::OfTheirs(why)) => {
                self.running = None;
                let name = self.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let why: String = printable(&why, ' ').chars().take(1000).collect();
                let said = format!("RESULT STATE REJECT_WAIT jobfence: the site's JSV {name} {why}. Try again later.");
                Ok(Decision::Rejected(said.into_bytes()))
            }
        }
    }

    fn conversation(
        &mut self,
        job: &[Vec<u8>],
        hand_on: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Decision, Trouble> {
        let written = self.written();
        // As qmaster does: a program that was changed is started anew.
        if self.running.as_ref().is_some_and(|running| running.written != written) {
            self.end();
        }
        let running = match &mut self.running {
            Some(running) => running,
            none => none.insert(RunningJsv::start(&self.argv, written)?),
        };
        // As in qmaster, the time counts from the last line.
        let mut deadline = Instant::now() + self.patience;
        let mut say = |line: &[u8], deadline: &mut Instant| {
            *deadline = Instant::now() + self.patience;
            hand_on(line).map_err(Trouble::OfOurs)
        };
        running.pending.extend_from_slice(b"START\n");
        let mut wants_environment = false;
        loop {
            let line = running.line(deadline)?;
            match line.as_slice() {
                b"STARTED" => break,
                b"SEND ENV" => wants_environment = true,
                line if line.starts_with(b"RESULT ") => {
                    return Err(Trouble::OfTheirs("decides before it was told of the job".to_owned()));
                }
                other => say(other, &mut deadline)?,
            }
        }
        for line in job.iter().filter(|line| wants_environment || !line.starts_with(b"ENV ")) {
            running.pending.extend_from_slice(line);
            running.pending.push(b'\n');
        }
        running.pending.extend_from_slice(b"BEGIN\n");
        loop {
            let line = running.line(deadline)?;
            if !line.starts_with(b"RESULT ") {
                say(&line, &mut deadline)?;
                continue;
            }
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            return match words.as_slice() {
                [_, b"STATE", b"ACCEPT" | b"CORRECT", ..] => Ok(Decision::Accepted),
                _ => Ok(Decision::Rejected(line)),
            };
        }
    }

    /// When its program was last changed. `None` for a name that is looked up in PATH.
    fn written(&self) -> Option<SystemTime> {
        std::fs::metadata(self.argv.first()?).ok()?.modified().ok()
    }

    /// Ends it with QUIT, as qmaster does.
    pub fn end(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.pending.extend_from_slice(b"QUIT\n");
        let deadline = Instant::now() + END;
        while Instant::now() < deadline && matches!(running.child.try_wait(), Ok(None)) {
            // Its output is no longer needed, but must not block it.
            running.said.clear();
            if running.pump(deadline.min(Instant::now() + Duration::from_millis(PAUSE.into()))).is_err() {
                let _ = poll(&mut [], PollTimeout::from(PAUSE));
            }
        }
    }
}

impl Drop for OtherJsv {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why there is no decision.
enum Trouble {
    /// The other JSV failed.
    OfTheirs(String),
    /// The answer cannot be written to qmaster.
    OfOurs(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::OfTheirs(format!("cannot be asked: {error}"))
    }
}

/// A process of the other JSV. When this is dropped, its process group is killed.
struct RunningJsv {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Its stderr. `None`: it has closed it.
    complaints: Option<ChildStderr>,
    /// Bytes that are not yet written to it.
    pending: Vec<u8>,
    /// Bytes that were read from it, and not yet used.
    said: Vec<u8>,
    /// When its program was last changed.
    written: Option<SystemTime>,
}

impl RunningJsv {
    fn start(argv: &[OsString], written: Option<SystemTime>) -> Result<Self, Trouble> {
        let [program, arguments @ ..] = argv else { return Err(Trouble::OfTheirs("has no name".to_owned())) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let prepare = || {
            let _ = leave_descriptors();
            set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)
        };
        // SAFETY: commands have one thread, so the child may run any code until its exec.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(|error| Trouble::OfTheirs(format!("cannot be started: {error}")))?;
        let (Some(input), Some(output), Some(complaints)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Trouble::OfTheirs("cannot be started".to_owned()));
        };
        for pipe in [input.as_fd(), output.as_fd(), complaints.as_fd()] {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
        }
        let complaints = Some(complaints);
        Ok(Self { child, input, output, complaints, pending: Vec::new(), said: Vec::new(), written })
    }

    /// Its next line that is not empty. qmaster ignores empty lines, too.
    fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, Trouble> {
        loop {
            if let Some(end) = self.said.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.said.drain(..=end).collect();
                line.pop();
                // qmaster splits a line at runs of blanks, and skips those before the first word (`jsv_split_commandline`).
                let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
                let line = words.join(&b' ');
                if line.is_empty() {
                    continue;
                }
                return Ok(line);
            }
            if self.said.len() > LONGEST {
                return Err(Trouble::OfTheirs("says more than a line".to_owned()));
            }
            if Instant::now() >= deadline {
                return Err(Trouble::OfTheirs("does not answer".to_owned()));
            }
            self.pump(deadline)?;
        }
    }

    /// Waits until a pipe is ready, then writes and reads. Output on stderr is an error: qmaster denies a job for it, too.
    fn pump(&mut self, deadline: Instant) -> Result<(), Trouble> {
        let left = deadline.saturating_duration_since(Instant::now());
        let reads = [Some(self.output.as_fd()), self.complaints.as_ref().map(AsFd::as_fd)].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = reads.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if !self.pending.is_empty() {
            fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLOUT));
        }
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        let mut complaint = Vec::new();
        if let Some(pipe) = &mut self.complaints
            && !read(pipe, &mut complaint)?
        {
            self.complaints = None;
        }
        if !complaint.is_empty() {
            let text = String::from_utf8_lossy(&complaint);
            return Err(Trouble::OfTheirs(format!("complains: {}", text.trim().lines().last().unwrap_or_default())));
        }
        if !self.pending.is_empty() {
            match self.input.write(&self.pending) {
                Ok(length) => drop(self.pending.drain(..length)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if read(&mut self.output, &mut self.said)? {
            return Ok(());
        }
        Err(Trouble::OfTheirs("has ended".to_owned()))
    }
}

impl Drop for RunningJsv {
    fn drop(&mut self) {
        // Until the child has been waited for, its number is that of its process group.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            let _ = poll(&mut [], PollTimeout::from(PAUSE));
        }
    }
}

/// Reads what is there. `false`: all writers have closed the pipe.
fn read(pipe: &mut (impl Read + AsFd), into: &mut Vec<u8>) -> io::Result<bool> {
    let mut some = [0; 4096];
    match pipe.read(&mut some) {
        Ok(0) => Ok(false),
        Ok(length) => {
            into.extend_from_slice(some.get(..length).unwrap_or_default());
            Ok(true)
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    /// A JSV as a shell script that runs `started` before it answers STARTED, and `answer` for each job.
    fn script(path: &Path, started: &str, answer: &str) -> Vec<OsString> {
        let text = format!(
            "#!/bin/sh\nwhile read -r line; do\n    case $line in\n    START) {started} echo STARTED;;\n    \
             BEGIN) {answer};;\n    QUIT) exit 0;;\n    *) echo \"LOG INFO $line\";;\n    esac\ndone\n"
        );
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        vec![path.as_os_str().to_owned()]
    }

    fn ask(jsv: &mut OtherJsv, lines: &[&str]) -> (String, String) {
        let lines: Vec<Vec<u8>> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        let mut said = Vec::new();
        let decision = jsv.ask(&lines, |line| {
            said.extend_from_slice(line);
            said.push(b'\n');
            Ok(())
        });
        let decision = match decision.unwrap() {
            Decision::Accepted => "accepted".to_owned(),
            Decision::Rejected(line) => String::from_utf8(line).unwrap(),
        };
        (String::from_utf8(said).unwrap(), decision)
    }

    #[test]
    fn what_another_jsv_says_is_handed_on() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("theirs");
        let lines = ["PARAM l_hard a=1", "ENV ADD A b"];
        let mut jsv = OtherJsv::new(script(&path, "", "echo PARAM p -5; echo RESULT STATE CORRECT"), LONG);
        // The same process is asked about the next job, too. It gets the variables only if it asks for them.
        for _ in 0..2 {
            let said = "LOG INFO PARAM l_hard a=1\nPARAM p -5\n".to_owned();
            assert_eq!(ask(&mut jsv, &lines), (said, "accepted".to_owned()));
        }
        let argv = script(&path, "echo SEND ENV;", "echo RESULT STATE REJECT_WAIT not now");
        std::fs::File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let (said, decision) = ask(&mut jsv, &lines);
        assert_eq!(said, "LOG INFO PARAM l_hard a=1\nLOG INFO ENV ADD A b\n", "it was changed, and started anew");
        assert_eq!(decision, "RESULT STATE REJECT_WAIT not now");
        // More than fits into both pipes at once.
        let long =
            vec!["PARAM x yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"; 5000];
        assert_eq!(ask(&mut OtherJsv::new(argv, LONG), &long).0.lines().count(), 5000);
    }

    #[test]
    fn nobody_waits_for_another_jsv_for_ever() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("theirs");
        let rejected = |answer: &str, patience| {
            let mut jsv = OtherJsv::new(script(&path, "", answer), patience);
            ask(&mut jsv, &[]).1
        };
        let name = format!("RESULT STATE REJECT_WAIT jobfence: the site's JSV {}", path.display());
        let later = "Try again later.";
        assert_eq!(rejected("exec sleep 900", Duration::from_secs(1)), format!("{name} does not answer. {later}"));
        assert_eq!(rejected("exit 0", LONG), format!("{name} has ended. {later}"));
        // qmaster would take this as ACCEPT, and must not get it before jobfence's JSV has noted its requests.
        assert_eq!(rejected("echo '  RESULT  STATE   ACCEPT '", LONG), "accepted");
        let mut early = OtherJsv::new(script(&path, "echo RESULT STATE ACCEPT;", "exit 0"), LONG);
        let (said, answer) = ask(&mut early, &[]);
        assert_eq!(
            (said.as_str(), answer.contains(" decides before it was told of the job. ")),
            ("", true),
            "{answer}"
        );
        assert_eq!(rejected("echo no >&2; sleep 900", LONG), format!("{name} complains: no. {later}"));
        let mut missing = OtherJsv::new(vec!["/none".into()], LONG);
        assert!(ask(&mut missing, &[]).1.contains("/none cannot be started: No such file"));
    }

    #[test]
    fn who_speaks_is_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let slow = "for n in 1 2 3 4 5 6; do sleep 1.2; echo LOG INFO $n; done; echo RESULT STATE ACCEPT";
        let argv = script(&temp.path().join("theirs"), "", slow);
        let (said, decision) = ask(&mut OtherJsv::new(argv, Duration::from_secs(6)), &[]);
        assert_eq!((said.lines().count(), decision.as_str()), (6, "accepted"));
    }

    #[test]
    fn it_ends_with_ours() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("theirs");
        let argv =
            script(&path, "", &format!("echo $$ >{}; echo RESULT STATE ACCEPT", temp.path().join("pid").display()));
        let mut jsv = OtherJsv::new(argv, LONG);
        assert_eq!(ask(&mut jsv, &[]).1, "accepted");
        let pid = std::fs::read_to_string(temp.path().join("pid")).unwrap();
        let is_there = || Path::new("/proc").join(pid.trim()).exists();
        assert!(is_there());
        drop(jsv);
        assert!(!is_there());
    }
}
