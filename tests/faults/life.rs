// SPDX-License-Identifier: GPL-2.0-or-later
//! The commands of a life, `jobfence open` to `close`, each killed at each of its calls that others can see. Whatever that was, `close`
//! leaves nothing, and nobody has died who was not put in.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::wait::WaitStatus;

use super::site::{JOB, Settings, Site, uid};
use super::table::{Outcome, Table, Verdict};
use super::trace::{self, Fault, Point, Watch};
use super::{GONE_BY, NOTHING, deaths, in_parallel, is_slice, name, ready, recorded};
use crate::common;

/// The commands, and what comes before each.
const LIFE: [(&str, &[&str]); 7] = [
    ("open", &[]),
    ("attach", &["open"]),
    ("limit", &["open", "attach"]),
    ("usage", &["open", "attach"]),
    ("freeze", &["open", "attach"]),
    ("thaw", &["open", "attach", "freeze"]),
    ("close", &["open", "attach"]),
];

/// A process of the job's user, which begins outside of all fences.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").uid(uid()).gid(uid()).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn is_within(&self, site: &Site<'_>) -> bool {
        std::fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).unwrap_or_default().contains(&site.base.name)
    }

    fn dies(&mut self) -> bool {
        let deadline = std::time::Instant::now() + GONE_BY;
        while self.is_alive() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        !self.is_alive()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(site: &Site<'_>, word: &str, sleeper: &Sleeper) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    // The bystander's is the same number.
    command.arg(word).args(["--job", &format!("{JOB}[1]")]).arg("--config").arg(&site.configuration);
    match word {
        "open" => command.args(["--user", &uid().to_string(), "--cpus", "0.5", "--mem", "64M"]),
        "attach" => command.arg(sleeper.0.id().to_string()),
        "limit" => command.args(["--cpus", "0.25", "--mem", "32M"]),
        _ => &mut command,
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn output(site: &Site<'_>, word: &str, sleeper: &Sleeper) -> Output {
    command(site, word, sleeper).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

fn before(site: &Site<'_>, words: &[&str], sleeper: &Sleeper) {
    for word in words {
        let done = output(site, word, sleeper);
        assert!(done.status.success(), "{word}: {done:?}");
    }
}

/// One undisturbed command, and its end.
fn undisturbed(site: &Site<'_>, word: &str, earlier: &[&str]) -> Vec<Point> {
    let mut sleeper = Sleeper::start();
    before(site, earlier, &sleeper);
    let configuration = site.configuration.to_str().unwrap();
    let traced = trace::run(&mut command(site, word, &sleeper), Watch::Since(configuration), NOTHING, None);
    assert_eq!(traced.status, WaitStatus::Exited(traced.pid, 0), "{word}");
    ends_well(site, &mut sleeper).unwrap();
    traced.points
}

/// It is closed, and nothing is left. Says whether there was something to close.
fn ends_well(site: &Site<'_>, sleeper: &mut Sleeper) -> Result<bool, String> {
    let was_within = sleeper.is_within(site);
    let closed = output(site, "close", sleeper);
    if !closed.status.success() {
        return Err(format!("it cannot be closed: {closed:?}"));
    }
    if was_within != sleeper.dies_if(was_within) {
        return Err(format!("the process was {}in, and is not ended like that", if was_within { "" } else { "not " }));
    }
    match site.left() {
        left if !left.is_empty() => Err(format!("{left:?} are left after {closed:?}")),
        _ => site.harm().map_or(Ok(was_within), Err),
    }
}

impl Sleeper {
    /// Whether it has ended, for which it has time if it is to.
    fn dies_if(&mut self, is_to: bool) -> bool {
        if is_to { self.dies() } else { !self.is_alive() }
    }
}

fn judge(site: &Site<'_>, word: &str, earlier: &[&str], fault: &Fault) -> Result<Verdict, String> {
    let mut sleeper = Sleeper::start();
    before(site, earlier, &sleeper);
    let configuration = site.configuration.to_str().unwrap();
    let traced = trace::run(&mut command(site, word, &sleeper), Watch::Since(configuration), NOTHING, Some(fault));
    let failed = |what: String| Err(format!("{word}: {}: {what}", name(fault)));
    match traced.status {
        _ if traced.hung => return failed("hangs".to_owned()),
        WaitStatus::Exited(_, 0) if !traced.met => {}
        WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGKILL, _) if traced.met => {}
        status => return failed(format!("{status:?}")),
    }
    if word != "close" && !sleeper.is_alive() {
        return failed("the process was ended".to_owned());
    }
    if word == "open" {
        // Either it can be opened, or there is one to be closed first.
        let again = output(site, word, &sleeper);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        if !again.status.success() && !said.contains("close it first") {
            return failed(format!("it cannot be opened: {again:?}"));
        }
    }
    let left = !site.left().is_empty();
    match ends_well(site, &mut sleeper) {
        Ok(_) => Ok(Verdict { outcome: Outcome::Died, left, missed: !traced.met }),
        Err(why) => failed(why),
    }
}

/// The bystander is another job of the user's.
#[test]
fn a_life_of_which_any_command_dies_ends_well() {
    let Some((_temp, stand_in)) = ready() else { return };
    let _others = common::beside_others();
    let settings = Settings { name: "life", on_error: "fail", bystander: (uid(), JOB), slurms: None };
    let table = Mutex::new(Table::default());
    for (word, earlier) in LIFE {
        let points = recorded(&stand_in, &settings, |site| undisturbed(site, word, earlier));
        table.lock().unwrap().points(trace::SINCE, word, points.len());
        let faults = deaths(&points);
        assert!(!faults.is_empty() || word == "usage" || is_slice(), "{word} changes nothing");
        let done = |fault: &Fault, verdict| {
            table.lock().unwrap_or_else(PoisonError::into_inner).add(fault, word, verdict);
        };
        in_parallel(&stand_in, &settings, &faults, |site, fault| judge(site, word, earlier, fault), done);
    }
    table.into_inner().unwrap().conclude();
}
