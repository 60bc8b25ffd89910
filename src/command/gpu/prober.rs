// SPDX-License-Identifier: GPL-2.0-or-later
//! The side of `jobfence hold` that starts the probe, asks it and hears its answers. Nothing here waits.
//!
//! A probe that does not answer in time is killed, and another one is started later. A probe that waits in the driver survives the signal.
//! Until it has ended, no other is started. So there is at most one.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::answer::{ProbeAnswer, ProbeQuestion};
use super::probe::WORD;
use crate::table::printable;

/// How long a probe may take for an answer: the driver may have to be loaded, or eight GPUs to wake up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long after a failure the next probe is started: twice as long after each further one, up to the last.
const PAUSES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(3600)];

/// The longest answer, in bytes.
const LONGEST: usize = 16 << 20;

/// The program, by a name that stays right when its file is replaced.
const THIS: &str = "/proc/self/exe";

/// See the beginning of this file.
pub struct Prober {
    /// The program and its arguments.
    program: Vec<String>,
    patience: Duration,
    running: Option<Running>,
    /// A killed probe that has not ended yet.
    stuck: Option<Child>,
    /// The time before which no probe is started.
    not_before: Option<Instant>,
    pause: Duration,
    /// The last error that was logged.
    said: Option<String>,
}

struct Running {
    child: Child,
    questions: ChildStdin,
    answers: ChildStdout,
    heard: Vec<u8>,
    /// When the probe was asked. `None`: it has answered.
    asked: Option<Instant>,
}

impl Running {
    fn has_ended(&mut self) -> bool {
        self.asked.is_none() && matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Default for Prober {
    fn default() -> Self {
        Self {
            program: [THIS, WORD].map(str::to_owned).into(),
            patience: PATIENCE,
            running: None,
            stuck: None,
            not_before: None,
            pause: PAUSES[0],
            said: None,
        }
    }
}

impl Prober {
    /// Asks, and returns whether an answer will come. If an earlier question has no answer yet, that one goes on.
    pub fn ask(&mut self, question: &ProbeQuestion) -> bool {
        self.look();
        // If its library became useless, the probe has ended after its answer.
        if self.running.as_mut().is_some_and(|running| running.has_ended()) {
            self.running = None;
        }
        if self.running.is_none() && !self.start() {
            return false;
        }
        let Some(running) = self.running.as_mut().filter(|running| running.asked.is_none()) else { return false };
        let line = format!("{}\n", question.json());
        // A pipe takes 64 KiB at once, and the probe has read all earlier questions.
        match running.questions.write(line.as_bytes()) {
            Ok(written) if written == line.len() => {
                running.asked = Some(Instant::now());
                true
            }
            Ok(_) => self.fail("the question is too long for a pipe"),
            Err(error) => self.fail(&format!("it has ended: {error}")),
        }
    }

    /// The descriptor that becomes readable with an answer.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().filter(|running| running.asked.is_some()).map(|running| running.answers.as_fd())
    }

    /// How long the probe may still take. `None`: it was not asked.
    pub fn patience(&self) -> Option<Duration> {
        let asked = self.running.as_ref()?.asked?;
        Some((asked + self.patience).saturating_duration_since(Instant::now()))
    }

    /// The answer, if it has arrived.
    pub fn hear(&mut self) -> Option<ProbeAnswer> {
        let patience = self.patience()?;
        let running = self.running.as_mut()?;
        let mut piece = [0; 1 << 16];
        let why = loop {
            match running.answers.read(&mut piece) {
                Ok(0) => break "it has ended without an answer".to_owned(),
                Ok(read) => running.heard.extend(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && patience.is_zero() => {
                    break format!("it has not answered for {} s", self.patience.as_secs_f64());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => break format!("cannot read its answer: {error}"),
            }
            if running.heard.last() == Some(&b'\n') {
                let answer = serde_json::from_slice(&running.heard).ok().as_ref().and_then(ProbeAnswer::from_json);
                running.heard.clear();
                running.asked = None;
                let Some(answer) = answer else { break "its answer is not understood".to_owned() };
                self.heard(&answer);
                return Some(answer);
            }
            if running.heard.len() > LONGEST {
                break "its answer has no end".to_owned();
            }
        };
        self.fail(&why);
        None
    }

    /// Ends an idle probe: it keeps the GPUs' devices open, so an administrator could not reset them.
    pub fn rest(&mut self) {
        self.look();
        if self.running.as_ref().is_some_and(|running| running.asked.is_none()) {
            self.stop();
        }
    }

    fn heard(&mut self, answer: &ProbeAnswer) {
        self.pause = PAUSES[0];
        // A message is logged once, and again if another one came in between.
        let trouble = (!answer.trouble.is_empty()).then(|| answer.trouble.join("; "));
        if let Some(trouble) = &trouble
            && self.said.as_ref() != Some(trouble)
        {
            log::warn!("figures of GPUs are missing: {}", printable(trouble));
        }
        self.said = trouble;
    }

    /// Gives up on the probe.
    fn fail(&mut self, why: &str) -> bool {
        self.stop();
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSES[1]);
        if self.said.as_deref() != Some(why) {
            log::error!(
                "no figures of GPUs: the process that asks their drivers was given up, {why}; 'nvidia-smi' and 'dmesg' may say what is \
                 wrong with a GPU"
            );
        }
        self.said = Some(why.to_owned());
        false
    }

    fn start(&mut self) -> bool {
        if self.stuck.is_some() || self.not_before.is_some_and(|moment| Instant::now() < moment) {
            return false;
        }
        let Some((program, arguments)) = self.program.split_first() else { return false };
        let started = Command::new(program)
            .arg0("jobfence")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return self.fail(&format!("it cannot be started: {error}")),
        };
        if let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) {
            let blocks_not = |fd: BorrowedFd<'_>| fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok();
            if blocks_not(questions.as_fd()) && blocks_not(answers.as_fd()) {
                self.running = Some(Running { child, questions, answers, heard: Vec::new(), asked: None });
                return true;
            }
        }
        self.stuck = Some(child);
        self.fail("its pipes cannot be set")
    }

    fn stop(&mut self) {
        let Some(Running { child, .. }) = self.running.take() else { return };
        let child = self.stuck.insert(child);
        let _ = child.kill();
        self.look();
    }

    /// Forgets a killed probe that has ended.
    fn look(&mut self) {
        if self.stuck.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            self.stuck = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"trouble":[],"nvidia":[],"drm":[],"clients":[]}"#;

    /// Takes this script for the probe.
    fn prober(script: &str) -> Prober {
        let program = ["/bin/sh", "-c", script].map(str::to_owned).into();
        Prober { program, patience: Duration::from_millis(200), ..Prober::default() }
    }

    /// Waits for the outcome of a question: an answer, or that the probe is given up.
    fn outcome(prober: &mut Prober) -> Option<ProbeAnswer> {
        while prober.patience().is_some() {
            if let Some(answer) = prober.hear() {
                return Some(answer);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    #[test]
    fn one_probe_answers_again_and_again() {
        let mut prober = prober(&format!("while read line; do echo '{ANSWER}'; done"));
        prober.patience = Duration::from_secs(60);
        assert!(prober.fd().is_none() && prober.hear().is_none());
        assert!(prober.ask(&ProbeQuestion::default()));
        assert!(!prober.ask(&ProbeQuestion::default()), "it was asked");
        assert_eq!(outcome(&mut prober), Some(ProbeAnswer::default()));
        let pid = prober.running.as_ref().unwrap().child.id();
        assert!(prober.ask(&ProbeQuestion::default()));
        assert_eq!(outcome(&mut prober), Some(ProbeAnswer::default()));
        assert_eq!(prober.running.as_ref().unwrap().child.id(), pid);
        prober.rest();
        assert!(prober.running.is_none());
    }

    #[test]
    fn one_that_has_ended_after_its_answer_is_no_failure() {
        let mut prober = prober(&format!("read line; echo '{ANSWER}'"));
        prober.patience = Duration::from_secs(60);
        for _ in 0..2 {
            assert!(prober.ask(&ProbeQuestion::default()));
            assert_eq!(outcome(&mut prober), Some(ProbeAnswer::default()));
            // The end of the probe is seen at once, or at the next question.
            while !prober.running.as_mut().unwrap().has_ended() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn one_that_does_not_answer_is_given_up_and_nobody_waits_for_it() {
        let mut prober = prober("exec sleep 1000");
        let begun = Instant::now();
        assert!(prober.ask(&ProbeQuestion::default()));
        assert_eq!(prober.hear(), None);
        assert!(begun.elapsed() < prober.patience, "asking waits for nothing");
        assert_eq!(outcome(&mut prober), None);
        assert!(prober.running.is_none() && prober.said.as_ref().unwrap().contains("not answered"));
        assert_eq!(prober.pause, PAUSES[0] * 2);
        // It is too early for another probe.
        assert!(!prober.ask(&ProbeQuestion::default()));
        // While the killed probe lives, no other is started, even if it is time.
        prober.not_before = None;
        prober.stuck = Some(Command::new("sleep").arg("1000").spawn().unwrap());
        assert!(!prober.ask(&ProbeQuestion::default()) && prober.running.is_none());
        prober.stuck.as_mut().unwrap().kill().unwrap();
        prober.stuck.as_mut().unwrap().wait().unwrap();
        assert!(prober.ask(&ProbeQuestion::default()));
        prober.stop();
    }

    #[test]
    fn an_answer_that_is_none_is_the_probes_end() {
        for script in ["exit 3", "echo nonsense; exec sleep 1000", "read line; echo '{}'; exec sleep 1000"] {
            let mut prober = prober(script);
            prober.patience = Duration::from_secs(60);
            if prober.ask(&ProbeQuestion::default()) {
                assert_eq!(outcome(&mut prober), None, "{script}");
            }
            assert!(prober.running.is_none() && prober.not_before.is_some(), "{script}");
        }
    }
}
