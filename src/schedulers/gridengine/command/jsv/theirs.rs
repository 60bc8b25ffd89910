// SPDX-License-Identifier: GPL-2.0-or-later
//! Another JSV, which a site had before ours: qmaster has one `jsv_url`. It runs as qmaster would run it, and is asked before ours, since
//! what it changes is what counts. What it says is handed on as it is.

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

/// No line of the protocol is longer.
const LONGEST: usize = 1 << 20;
/// How long one has that is told to end. qmaster gives ours five seconds.
const END: Duration = Duration::from_secs(2);
/// At a signal that nobody waits for, in milliseconds.
const PAUSE: u8 = 10;

/// What the other one has decided.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// The job may be submitted, if ours says so, too.
    Accepted,
    /// This line, which ends the verification.
    Rejected(Vec<u8>),
}

/// The other JSV, which is started when there is a first job.
pub struct OtherJsv {
    argv: Vec<OsString>,
    /// How long it may be silent.
    patience: Duration,
    running: Option<RunningJsv>,
}

impl OtherJsv {
    /// The one that this command starts.
    pub fn new(argv: Vec<OsString>, patience: Duration) -> Self {
        Self { argv, patience, running: None }
    }

    /// Asks about a job, of which qmaster has said these lines, and hands on each line of the answer but the last.
    ///
    /// What goes wrong rejects the job for the time being, and the next one meets a new process: a job that a site's own rules have not
    /// seen is not submitted.
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
        // qmaster starts a program anew that was changed.
        if self.running.as_ref().is_some_and(|running| running.written != written) {
            self.end();
        }
        let running = match &mut self.running {
            Some(running) => running,
            none => none.insert(RunningJsv::start(&self.argv, written)?),
        };
        // qmaster, too, counts from the last line that it has read.
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

    /// When its program was changed last. A name without a place is looked for in PATH, and not here.
    fn written(&self) -> Option<SystemTime> {
        std::fs::metadata(self.argv.first()?).ok()?.modified().ok()
    }

    /// Ends it, as qmaster does.
    pub fn end(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.pending.extend_from_slice(b"QUIT\n");
        let deadline = Instant::now() + END;
        while Instant::now() < deadline && matches!(running.child.try_wait(), Ok(None)) {
            // What it says now is for nobody.
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

/// Why there is no answer.
enum Trouble {
    /// The other JSV's.
    OfTheirs(String),
    /// qmaster does not hear us.
    OfOurs(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::OfTheirs(format!("cannot be asked: {error}"))
    }
}

/// A process of the other JSV. Dropped, it is killed with what it has started.
struct RunningJsv {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// `None`: it has closed them.
    complaints: Option<ChildStderr>,
    /// What it is still to be told.
    pending: Vec<u8>,
    /// What it has said, and nobody has taken.
    said: Vec<u8>,
    /// When its program was changed last.
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
        // SAFETY: commands have one thread, so the child may do what it likes until its exec.
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

    /// Its next line that is not empty. qmaster takes no notice of others.
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

    /// Writes and reads what can be, and waits until then. A complaint is an error: qmaster denies a job for it, too.
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
        // Its number is its group's until it has been waited for.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            let _ = poll(&mut [], PollTimeout::from(PAUSE));
        }
    }
}

/// Reads what is there. `false`: nobody writes any more.
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

    /// A JSV of the shell's that says `started` before it has started, and `answer` for a job.
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
        // It has the variables only if it asks for them, and is asked about the next job, too.
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
        // As qmaster would take it, which must not hear the end before ours has noted what counts.
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
