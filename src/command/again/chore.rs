// SPDX-License-Identifier: GPL-2.0-or-later
//! The side of `jobfence hold` that has a child look for what `OnOutOfMemory`, `OnTimeLimit`, `OnPreempt` and `ScavengerEnd` are to do.
//! Nothing here waits.
//!
//! At most one child runs. One that takes too long is killed, with the commands in its process group.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::config::{Config, Loaded, Mode};
use jobfence::report::usage_log::UsageLog;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::decided;
use super::files::AgainState;
use super::key::AgainKey;
use super::looking::WORD;
use crate::configured::Configured;
use crate::schedulers;
use crate::table::printable;

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to see whether it has ended.
const PAUSE: Duration = Duration::from_secs(1);

/// The most bytes that are kept of what a look says.
const LONGEST: usize = 4096;

/// The program, by a name that stays right when its file is replaced.
const THIS: &str = "/proc/self/exe";

/// Has a child look for each scheduler that can requeue.
#[derive(Default)]
pub struct AgainWatch {
    /// The logs at which a look was made. What a look began there is finished, even if the configuration names another log now.
    logs: BTreeSet<PathBuf>,
    /// Logs that were not there while the key was set: a job's line is the first in them.
    empty: BTreeSet<PathBuf>,
    /// The looks to come, by their arguments.
    next: VecDeque<Vec<OsString>>,
    running: Option<RunningLook>,
    /// The last error that was logged.
    said: Option<String>,
}

struct RunningLook {
    child: Child,
    stdout: Option<ChildStdout>,
    heard: Vec<u8>,
    until: Instant,
    is_killed: bool,
}

impl AgainWatch {
    /// Begins a look, unless one is under way.
    pub fn begin(&mut self, configured: &Configured, config: &Config, loaded: Option<&Loaded>) {
        self.hear();
        if self.running.is_none() && self.next.is_empty() {
            self.next = self.looks(configured, config, loaded);
        }
        self.hear();
    }

    /// The arguments of each look that is to be made now.
    fn looks(&mut self, configured: &Configured, config: &Config, loaded: Option<&Loaded>) -> VecDeque<Vec<OsString>> {
        let is_set = AgainKey::ALL.iter().any(|key| key.is_set(config, loaded));
        let is_on = config.mode != Mode::Off && config.reap_interval.is_some() && is_set;
        let now = config.usage_log.as_deref();
        self.logs.extend(now.map(Path::to_owned));
        let mut looks = VecDeque::new();
        for part in schedulers::ALL.iter().filter_map(|part| part.again()) {
            for log in &self.logs {
                let is_wanted = is_on && now == Some(log);
                let of_log = Config { usage_log: Some(log.clone()), ..config.clone() };
                let Some(usage_log) = UsageLog::from_config(&of_log) else { continue };
                let is_known = AgainState::is_there(&usage_log, part.kept());
                if !part.reads_log() {
                    if is_known || decided::is_there(&usage_log, part.kept()) {
                        looks.push_back(arguments(part.holder(), log, Some("--begun-only"), configured));
                    }
                    continue;
                }
                if is_known || !is_wanted {
                    self.empty.remove(log);
                } else if !log.parent().is_some_and(Path::is_dir) {
                    // The log's directory is made with its first line. Before that, nothing can be written beside the log.
                    self.empty.insert(log.clone());
                    continue;
                }
                let how = match (is_wanted, self.empty.contains(log)) {
                    (false, _) if is_known => Some("--begun-only"),
                    (false, _) => continue,
                    (true, true) => Some("--from-start"),
                    (true, false) => None,
                };
                looks.push_back(arguments(part.holder(), log, how, configured));
            }
        }
        looks
    }

    /// How long until the look is to be heard. `None`: no look is under way.
    pub fn wait(&self) -> Option<Duration> {
        self.running.as_ref().map(|_| PAUSE)
    }

    /// Hears a look that is under way, and begins the next one if it has ended.
    pub fn hear(&mut self) {
        loop {
            if let Some(running) = &mut self.running {
                let Some(said) = running.end() else { return };
                self.running = None;
                self.say(said);
            }
            let Some(arguments) = self.next.pop_front() else { return };
            match RunningLook::start(Command::new(THIS).arg0("jobfence").args(&arguments), PATIENCE) {
                Ok(running) => self.running = Some(running),
                Err(error) => self.say(Some(format!("start {THIS}: {error}"))),
            }
        }
    }

    /// An error that stays is reported once.
    fn say(&mut self, said: Option<String>) {
        if let Some(error) = said.as_ref().filter(|_| said != self.said) {
            log::error!("cannot have jobs run again: {}", printable(error));
        }
        self.said = said;
    }
}

impl RunningLook {
    fn start(command: &mut Command, patience: Duration) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let stdout = child.stdout.take();
        let running = Self { child, stdout, heard: Vec::new(), until: Instant::now() + patience, is_killed: false };
        if let Some(stdout) = &running.stdout {
            fcntl(stdout.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(running)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// What the look said, or why it failed, if it has ended.
    fn end(&mut self) -> Option<Option<String>> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let has_ended = !matches!(waitid(Id::Pid(self.pid()), flags), Ok(WaitStatus::StillAlive));
        self.read();
        if !has_ended {
            if Instant::now() >= self.until && !self.is_killed {
                self.is_killed = true;
                self.kill();
            }
            return None;
        }
        // The commands that act for a user get no signal when the look ends. So the whole group is killed: its number is the look's pid,
        // which is safe until somebody has waited for the look.
        self.kill();
        let status = self.child.wait();
        Some(match status {
            _ if self.is_killed => Some(format!("a look was given up after {} s", PATIENCE.as_secs())),
            Ok(status) if status.success() => {
                let said = String::from_utf8_lossy(&self.heard).trim().to_owned();
                Some(said).filter(|said| !said.is_empty())
            }
            Ok(status) => Some(format!("the process that looks has ended: {status}")),
            Err(error) => Some(format!("the process that looks is gone: {error}")),
        })
    }

    fn read(&mut self) {
        let Some(stdout) = &mut self.stdout else { return };
        let mut piece = [0; LONGEST];
        loop {
            match stdout.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    self.heard.extend(piece.get(..read).unwrap_or_default());
                    self.heard.truncate(LONGEST);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn kill(&self) {
        let _ = killpg(self.pid(), Signal::SIGKILL);
    }
}

impl Drop for RunningLook {
    fn drop(&mut self) {
        // If nobody has waited for the look, its pid is still the number of its group.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// The arguments of a look.
fn arguments(holder: &str, log: &Path, how: Option<&str>, configured: &Configured) -> Vec<OsString> {
    let hold = std::process::id().to_string();
    let mut arguments: Vec<OsString> = vec![WORD.into()];
    arguments.extend(how.map(OsString::from));
    if let Some(file) = &configured.config {
        arguments.push([OsStr::new("--config="), file.as_os_str()].into_iter().collect());
    }
    arguments.extend(configured.overrides.iter().flat_map(|text| ["-o".into(), text.clone()]));
    arguments.extend(["--".into(), hold.into(), holder.into(), log.into()]);
    arguments
}

/// What keeps the schedulers here from having jobs run again by this key. `None`: none of them can.
pub fn doubts_here(key: AgainKey, loaded: &Loaded) -> Option<Vec<String>> {
    let every = loaded.config.reap_interval.unwrap_or_default();
    let parts = schedulers::ALL.iter().filter(|part| part.again().is_some_and(|again| key.is_for(again)));
    let here = parts.filter_map(|part| part.again_here(loaded.file.as_deref(), every));
    here.reduce(|mut all, of_part| {
        all.extend(of_part);
        all
    })
}

#[cfg(test)]
mod tests {
    use jobfence::config::{Percent, RunAgain};

    use super::*;

    fn sh(script: &str, patience: Duration) -> RunningLook {
        RunningLook::start(Command::new("/bin/sh").args(["-c", script]), patience).unwrap()
    }

    /// Waits for the end, and returns what the look said.
    fn end(running: &mut RunningLook) -> Option<String> {
        let began = Instant::now();
        loop {
            if let Some(said) = running.end() {
                return said;
            }
            assert!(began.elapsed() < Duration::from_secs(300));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_look_that_takes_too_long_ends_with_all_that_it_has_started() {
        let long = Duration::from_secs(600);
        assert_eq!(end(&mut sh("exit 0", long)), None);
        assert_eq!(end(&mut sh("echo cannot read", long)).as_deref(), Some("cannot read"));
        assert!(end(&mut sh("exit 3", long)).unwrap().contains("exit status: 3"));
        // A process that the look has started keeps the look's output open for as long as it lives.
        let is_over = |running: &mut RunningLook| {
            let stdout = running.stdout.as_mut().unwrap();
            let began = Instant::now();
            while stdout.read(&mut [0; 64]).is_err() {
                assert!(began.elapsed() < Duration::from_secs(300));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for (script, patience) in [("sleep 900 & exit 0", long), ("sleep 900 & wait", Duration::from_millis(50))] {
            let mut running = sh(script, patience);
            let said = end(&mut running);
            assert_eq!(said.is_some(), patience != long, "{said:?}");
            is_over(&mut running);
        }
    }

    #[test]
    fn each_key_has_a_look_made_where_lines_of_the_log_tell_of_it() {
        let requeues = Config { scavenger_end: true, ..Config::default() };
        let are_set = |config: &Config| AgainKey::ALL.map(|key| key.is_set(config, None));
        assert_eq!(are_set(&requeues), [false, false, false, true]);
        assert_eq!(are_set(&Config { on_time_limit: 1, ..Config::default() }), [false, true, false, false]);
        assert_eq!(are_set(&Config { on_preempt: 1, ..Config::default() }), [false, false, true, false]);
        assert_eq!(are_set(&Config::default()), [false; 4]);
        let can = |key: AgainKey| {
            let parts = schedulers::ALL.iter().filter_map(|part| part.again());
            parts.filter(|part| key.is_for(*part)).map(|part| part.holder()).collect::<Vec<_>>()
        };
        let (of_memory, of_owners) = (can(AgainKey::OnOutOfMemory), can(AgainKey::ScavengerEnd));
        assert!(of_memory.len() == 2 && of_owners.len() == 1 && of_memory.contains(&of_owners[0]), "{of_owners:?}");
        assert_eq!(AgainKey::OF_SCHEDULER.map(can), [of_owners.clone(), of_owners]);
        let temp = tempfile::tempdir().unwrap();
        let requeues = Config { usage_log: Some(temp.path().join("log")), ..requeues };
        let configured = Configured { config: None, overrides: Vec::new() };
        assert_eq!(AgainWatch::default().looks(&configured, &requeues, None).len(), 1);
    }

    #[test]
    fn what_was_begun_beside_another_log_is_looked_at_too() {
        let temp = tempfile::tempdir().unwrap();
        let log = |name: &str| Some(temp.path().join(name));
        let missing = Config { usage_log: Some(temp.path().join("new/log")), ..Config::default() };
        let on = Config {
            on_out_of_memory: Some(RunAgain { share: Percent::from_hundredths(15_000), most: 2 }),
            usage_log: log("one"),
            ..Config::default()
        };
        let configured = Configured { config: None, overrides: Vec::new() };
        let mut watch = AgainWatch::default();
        let mut looks = |config: &Config| -> Vec<(bool, PathBuf)> {
            let looks = watch.looks(&configured, config, None).into_iter();
            looks.map(|one| (one.contains(&"--begun-only".into()), one.last().unwrap().into())).collect()
        };
        let (one, two) = (log("one").unwrap(), log("two").unwrap());
        let missing = Config { on_out_of_memory: on.on_out_of_memory, ..missing };
        assert_eq!(looks(&missing), []);
        std::fs::create_dir(temp.path().join("new")).unwrap();
        assert_eq!(looks(&missing), [(false, temp.path().join("new/log"))]);
        assert_eq!(looks(&on), [(false, one.clone())]);
        let changed = Config { usage_log: log("two"), ..on.clone() };
        assert_eq!(looks(&changed), [(false, two.clone())]);
        std::fs::write(temp.path().join(".one.again"), "").unwrap();
        assert_eq!(looks(&changed), [(true, one.clone()), (false, two)]);
        for off in [
            Config { mode: Mode::Off, ..on.clone() },
            Config { reap_interval: None, ..on.clone() },
            Config { on_out_of_memory: None, ..on.clone() },
            Config { usage_log: None, ..on },
        ] {
            assert_eq!(looks(&off), [(true, one.clone())]);
        }
        // A job's end has written down what is begun, where the scheduler forgets jobs.
        std::fs::remove_file(temp.path().join(".one.again")).unwrap();
        assert_eq!(looks(&missing), [(false, temp.path().join("new/log"))]);
        let new = temp.path().join(".one.again-gridengine.new");
        std::fs::create_dir(&new).unwrap();
        assert_eq!(looks(&missing), [(false, temp.path().join("new/log"))]);
        std::fs::write(new.join("7"), "").unwrap();
        let both = looks(&missing);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both.contains(&(true, one)), "{both:?}");
    }
}
