// SPDX-License-Identifier: GPL-2.0-or-later
//! The child of `jobfence hold` that looks once for what `OnOutOfMemory` is to do: `jobfence again-look`. It is no command for people, so
//! the command line's definition does not have it.
//!
//! It waits for the scheduler's commands, for the users' name service and for users who stop what acts for them, and `hold` does not. It is
//! root's, and the commands that act for a user are in its process group. When `hold` ends, it ends that group, and so itself.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use jobfence::config::{Config, Loaded};
use jobfence::doors::{life, user};
use jobfence::facts::{Fact, Facts};
use jobfence::report::usage_log::UsageLog;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{Pid, getpgrp, getpid, getppid, setpgid};

use super::AgainPart;
use super::files::{AgainState, WaitingRun};
use super::killed::KilledRun;
use super::steps::{AfterLook, follow};
use crate::configured::Configured;
use crate::followed::{self, LogPlace};
use crate::logged::LoggedStep;
use crate::part::SchedulersPart;
use crate::table::printable;
use crate::{journal, schedulers};

/// The word after the program's name.
pub const WORD: &str = "again-look";

/// How long all calls together may take: less than `hold` lets a look take.
const PATIENCE_TOGETHER: Duration = Duration::from_secs(40);

/// How long the calls for one job may take together. What is late is done at the next look.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most runs that wait at once. What comes then is not requeued.
const MOST: usize = 10_000;

/// The place in a log that was not there yet: what comes is read from its beginning. No file has this number.
const NO_LOG: LogPlace = (0, 0);

/// Whether this process is to look.
pub fn is_asked_for() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// What `hold` says.
#[derive(Parser)]
struct LookWords {
    /// The process that has started this one.
    hold: i32,
    /// The holder of the scheduler's fences.
    holder: String,
    /// The usage log.
    log: PathBuf,
    /// Only what was begun is finished.
    #[arg(long)]
    begun_only: bool,
    #[command(flatten)]
    configured: Configured,
}

/// What is wanted of this look.
enum Wish<'a> {
    /// What the configuration says.
    Keys(&'a Loaded),
    /// Only what was begun is finished, and the rest waits: the configuration cannot be read now.
    Unknown,
    /// Only what was begun is finished, and the rest is forgotten.
    Nothing,
}

/// Looks once. What fails is one line of its stdout.
pub fn look() -> ExitCode {
    journal::use_if_started_so();
    let Ok(words) = LookWords::try_parse_from(std::env::args_os().skip(1)) else { return ExitCode::FAILURE };
    if !ends_with(Pid::from_raw(words.hold)) {
        return ExitCode::FAILURE;
    }
    let _ = std::env::set_current_dir("/");
    // jobfence.service is spared when memory is short, and what it starts would be, too.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let is_its = |part: &&&dyn SchedulersPart| part.again().is_some_and(|again| again.holder() == words.holder);
    let Some(part) = schedulers::ALL.iter().find(is_its) else { return ExitCode::FAILURE };
    let loaded = words.configured.load().ok();
    let config = loaded.as_ref().map_or_else(Config::default, |loaded| loaded.config.clone());
    let config = Config { usage_log: Some(words.log), ..config };
    let Some(usage_log) = UsageLog::from_config(&config) else { return ExitCode::FAILURE };
    let wish = match &loaded {
        _ if words.begun_only => Wish::Nothing,
        Some(loaded) => Wish::Keys(loaded),
        None => Wish::Unknown,
    };
    if let Err(error) = once(*part, &usage_log, &wish) {
        println!("{}", error.replace('\n', " "));
    }
    ExitCode::SUCCESS
}

/// Has this process group end when `hold` does. `false`: it has ended.
fn ends_with(hold: Pid) -> bool {
    if getpgrp() != getpid() && setpgid(Pid::from_raw(0), Pid::from_raw(0)).is_err() {
        return false;
    }
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    // SAFETY: the handler makes one system call, and nothing else.
    let is_set = unsafe { signal(Signal::SIGTERM, SigHandler::Handler(end_group)) }.is_ok();
    is_set && term.thread_unblock().is_ok() && set_pdeathsig(Signal::SIGTERM).is_ok() && getppid() == hold
}

/// Ends this process and those that act for users: the kernel does not tell these that their parent has ended.
extern "C" fn end_group(_: libc::c_int) {
    // SAFETY: kill(2) may be called in a handler; 0 is this process's own group, of which it is the first.
    unsafe { libc::kill(0, libc::SIGKILL) };
}

/// Reads on in the log, and does what can be done now.
fn once(part: &dyn SchedulersPart, usage_log: &UsageLog<'_>, wish: &Wish<'_>) -> Result<(), String> {
    let Some(again) = part.again() else { return Ok(()) };
    let known = |loaded: &Loaded| part.logged_facts(loaded.file.as_deref());
    look_with(again, &known, usage_log, wish)
}

/// Makes of the facts in a job's line what is certain of them.
pub type LoggedFacts = Box<dyn Fn(Facts) -> Facts>;

fn look_with(
    part: &dyn AgainPart,
    known: &dyn Fn(&Loaded) -> LoggedFacts,
    usage_log: &UsageLog<'_>,
    wish: &Wish<'_>,
) -> Result<(), String> {
    let mut state = AgainState::load(usage_log)?;
    let read = match wish {
        Wish::Keys(_) => read_on(part, &mut state, usage_log),
        Wish::Unknown => Ok(()),
        Wish::Nothing => {
            // What comes while nothing is wanted is not looked at later.
            (state.place, state.parts) = Default::default();
            state.waiting.retain(|one| one.begun.is_some());
            if state.waiting.is_empty() {
                return AgainState::remove(usage_log);
            }
            Ok(())
        }
    };
    let keys = match wish {
        Wish::Keys(loaded) => Some((*loaded, known(loaded))),
        Wish::Unknown | Wish::Nothing => None,
    };
    let deadline = Instant::now() + PATIENCE_TOGETHER;
    let (mut slow, mut is_marked) = (BTreeSet::new(), false);
    for _ in 0..state.waiting.len() {
        if Instant::now() >= deadline {
            break;
        }
        // One after the other has its turn, at whichever a look ends.
        state.waiting.rotate_left(1);
        let Some(mut one) = state.waiting.pop() else { break };
        // One user's jobs, whose commands that user stops, are not all in the way of those of others.
        if slow.contains(&one.run.uid) || keys.is_none() && one.begun.is_none() {
            state.waiting.push(one);
            continue;
        }
        state.waiting.push(one.clone());
        // If this look is killed at it, the next one begins behind it.
        if !std::mem::replace(&mut is_marked, true) && state.waiting.len() > 1 {
            state.save(usage_log)?;
        }
        let of_job = keys.as_ref().map_or_else(Config::default, |(loaded, known)| config_of(&one.run, loaded, known));
        let until = deadline.min(Instant::now() + PATIENCE);
        let mut keep = |one: &WaitingRun| {
            state.waiting.pop();
            state.waiting.push(one.clone());
            state.save(usage_log)
        };
        let after = follow(&mut one, part, &of_job, seconds_now(), &mut keep, until);
        if Instant::now() >= until {
            slow.insert(one.run.uid);
        }
        state.waiting.pop();
        if after == AfterLook::Later {
            state.waiting.push(one);
        }
    }
    let saved = state.save(usage_log);
    read.and(saved)
}

/// Reads new lines. At first only what comes from then on: what was before, users know already.
fn read_on(part: &dyn AgainPart, state: &mut AgainState, usage_log: &UsageLog<'_>) -> Result<(), String> {
    state.place = match state.place {
        None => {
            state.place = Some(followed::end(usage_log)?.unwrap_or(NO_LOG));
            return Ok(());
        }
        Some(NO_LOG) => None,
        Some(place) if followed::is_there(usage_log, place)? => Some(place),
        // The file is gone, with all that was not read of it.
        Some(_) => followed::end(usage_log)?,
    };
    let (parts, waiting, holder) = (&mut state.parts, &mut state.waiting, part.holder());
    let read = followed::read_on(usage_log, &mut state.place, &mut |line| {
        let Ok(line) = serde_json::from_str(line).map(LoggedStep::new) else { return };
        let Some(run) = parts.add(line, holder) else { return };
        if waiting.len() < MOST {
            waiting.push(WaitingRun { run, begun: None, tries: 0 });
        } else {
            let (job, why) = (format!("job {}", printable(&run.job)), format!("{MOST} others wait"));
            log::warn!("{job} failed at its memory limit, and is not requeued: {why}");
        }
    });
    state.place = state.place.or(Some(NO_LOG));
    read
}

/// The configuration that holds for a job. If that is not certain, nothing is done.
fn config_of(run: &KilledRun, loaded: &Loaded, known: &LoggedFacts) -> Config {
    let said = |text: &Option<String>| Fact::from(text.clone());
    let line = &run.line;
    let mut facts = known(Facts {
        uid: Some(run.uid).into(),
        user: said(&line.user),
        partition: said(&line.partition),
        account: said(&line.account),
        qos: said(&line.qos),
        project: said(&line.project),
        node: said(&line.node),
        ..Facts::default()
    });
    user::know(&mut facts, &loaded.asked());
    match life::resolve(loaded, facts) {
        Ok(resolved) => resolved.config,
        Err(_) => Config { on_out_of_memory: None, ..loaded.config.clone() },
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use jobfence::report::account::{SCHEMA, utc};
    use serde_json::{Value, json};

    use super::*;
    use crate::again::{AgainTrouble, AskedMemory, JobNow, MemoryBounds, MemoryUnit};

    thread_local! {
        static LOOKED_AT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static FINDS: RefCell<Option<JobNow>> = const { RefCell::new(None) };
        static TAKES: RefCell<bool> = const { RefCell::new(false) };
    }

    /// Notes down at which jobs it has looked. Without something to find, it has nothing to do for any.
    struct Noting;

    impl AgainPart for Noting {
        fn holder(&self) -> &'static str {
            "h"
        }

        fn look(&self, run: &KilledRun, until: Instant) -> Result<JobNow, String> {
            LOOKED_AT.with_borrow_mut(|jobs| jobs.push(run.job.clone()));
            if TAKES.with_borrow(|takes| *takes) {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Err("it is late".to_owned());
            }
            Ok(FINDS.with_borrow(Clone::clone).unwrap_or(JobNow::Next))
        }

        fn requeue(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            Err(AgainTrouble::Unknown("it does not answer".to_owned()))
        }

        fn ask_for(&self, _: &KilledRun, _: AskedMemory, _: Instant) -> Result<(), AgainTrouble> {
            Err(AgainTrouble::Unknown("it does not answer".to_owned()))
        }

        fn let_go(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }

        fn cancel(&self, _: &KilledRun, _: Instant) -> Result<(), AgainTrouble> {
            unreachable!()
        }
    }

    struct Site {
        log: PathBuf,
        loaded: Loaded,
        temp: tempfile::TempDir,
    }

    impl Site {
        /// With this behind the key.
        fn new(sections: &str) -> Self {
            let temp = tempfile::tempdir().unwrap();
            let log = temp.path().join("log/usage.jsonl");
            fs::create_dir(log.parent().unwrap()).unwrap();
            let loaded = load(temp.path(), &format!("OnOutOfMemory=requeue:150%,2\n{sections}"));
            Self { log, loaded, temp }
        }

        fn killed(&self, job: u32) {
            self.killed_of(job, json!({}));
        }

        fn killed_of(&self, job: u32, more: Value) {
            let sentence = "job 5 step batch: a process was killed: the job reached its memory limit.";
            let mut line = json!({
                "schema": SCHEMA, "holder": "h", "node": "n", "job": job.to_string(), "uid": 0, "step": "batch", "started_unix_seconds": 1.0,
                "end": "closed", "ended": utc(SystemTime::now()), "exit_status": 137, "sentences": [sentence],
            });
            line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let before = fs::read_to_string(&self.log).unwrap_or_default();
            fs::write(&self.log, format!("{before}{line}\n")).unwrap();
        }

        /// The jobs that are looked at now.
        fn looks(&self, wish: &Wish<'_>) -> Vec<String> {
            let config = Config { usage_log: Some(self.log.clone()), ..Config::default() };
            let known = |_: &Loaded| Box::new(|facts: Facts| facts) as LoggedFacts;
            look_with(&Noting, &known, &UsageLog::from_config(&config).unwrap(), wish).unwrap();
            LOOKED_AT.take()
        }

        fn wanted(&self) -> Vec<String> {
            self.looks(&Wish::Keys(&self.loaded))
        }

        fn file(&self) -> PathBuf {
            self.log.with_file_name(".usage.jsonl.again")
        }
    }

    fn load(dir: &std::path::Path, text: &str) -> Loaded {
        let file = dir.join("jobfence.conf");
        fs::write(&file, text).unwrap();
        Configured { config: Some(file), overrides: Vec::new() }.load().unwrap()
    }

    fn failed() -> JobNow {
        let asked = AskedMemory { unit: MemoryUnit::Node, mib: 100 };
        let bounds = MemoryBounds { node: Some(1000), ..MemoryBounds::default() };
        JobNow::Failed { restarts: 0, asked, bounds }
    }

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn each_kill_is_looked_at_once_from_when_the_key_is_set() {
        if !is_root() {
            return crate::skip::skip("the log is root's");
        }
        let site = Site::new("");
        assert!(site.wanted().is_empty());
        // The log begins with the first job.
        site.killed(1);
        assert_eq!(site.wanted(), ["1"]);
        assert!(site.wanted().is_empty());
        site.killed(2);
        assert_eq!(site.wanted(), ["2"]);
        // The configuration has a mistake for a while.
        site.killed(3);
        assert!(site.looks(&Wish::Unknown).is_empty());
        assert_eq!(site.wanted(), ["3"]);
        // What comes while the key is off is not made up for.
        assert!(site.looks(&Wish::Nothing).is_empty() && !site.file().exists());
        site.killed(4);
        assert!(site.looks(&Wish::Nothing).is_empty());
        assert!(site.wanted().is_empty());
        site.killed(5);
        assert_eq!(site.wanted(), ["5"]);
    }

    #[test]
    fn what_was_begun_is_finished_whatever_the_configuration_says() {
        if !is_root() {
            return crate::skip::skip("the log is root's");
        }
        let site = Site::new("");
        site.wanted();
        FINDS.set(Some(failed()));
        site.killed(1);
        assert_eq!(site.wanted(), ["1"]);
        FINDS.set(Some(JobNow::Held));
        for _ in 0..3 {
            assert_eq!((site.looks(&Wish::Unknown), site.looks(&Wish::Nothing)), (vec!["1".into()], vec!["1".into()]));
        }
        // Another has let it go.
        FINDS.set(Some(JobNow::Next));
        assert_eq!(site.looks(&Wish::Nothing), ["1"]);
        assert!(!site.file().exists());
        FINDS.set(None);
    }

    #[test]
    fn a_file_that_is_not_understood_is_set_aside() {
        if !is_root() {
            return crate::skip::skip("the log is root's");
        }
        let site = Site::new("");
        site.wanted();
        site.killed(1);
        site.wanted();
        let good = fs::read_to_string(site.file()).unwrap();
        let other_form = good.replace("\"version\":1", "\"version\":2");
        assert_ne!(good, other_form);
        let other_run = good.replace("\"waiting\":[]", "\"waiting\":[{}]");
        assert_ne!(good, other_run);
        let texts = [other_form.into_bytes(), other_run.into_bytes(), b"{".to_vec(), vec![0xff], vec![b' '; 65 << 20]];
        for (at, bad) in texts.iter().enumerate() {
            fs::write(site.file(), bad).unwrap();
            site.wanted();
            let all = fs::read_dir(site.log.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
            let aside: Vec<PathBuf> = all.filter(|file| file.to_str().unwrap().contains(".again.")).collect();
            assert_eq!(aside.len(), at + 1);
            assert!(aside.iter().any(|file| fs::read(file).unwrap() == *bad), "{at}");
        }
    }

    /// Each has its turn, and one user's jobs do not keep others from theirs.
    #[test]
    fn a_look_goes_on_where_the_last_one_stopped() {
        if !is_root() {
            return crate::skip::skip("the log is root's");
        }
        let site = Site::new("");
        site.wanted();
        FINDS.set(Some(JobNow::Ending));
        for job in 1..=3 {
            site.killed(job);
        }
        site.killed_of(4, json!({"uid": 1}));
        assert_eq!(site.wanted(), ["1", "2", "3", "4"]);
        let order = |state: &str| -> Vec<String> {
            let json: Value = serde_json::from_str(state).unwrap();
            json["waiting"].as_array().unwrap().iter().map(|one| one["line"]["job"].as_str().unwrap().into()).collect()
        };
        let text = fs::read_to_string(site.file()).unwrap();
        assert_eq!(order(&text), ["1", "2", "3", "4"]);
        assert!(!text.contains("sentences"), "entries are small");
        // Its user stops what acts for it: the others of this user have no turn in this look.
        TAKES.set(true);
        let before = Instant::now();
        assert_eq!(site.wanted(), ["1", "4"]);
        assert!(before.elapsed() < PATIENCE_TOGETHER);
        TAKES.set(false);
        FINDS.set(None);
    }

    #[test]
    fn a_section_holds_for_whom_it_names() {
        if !is_root() {
            return crate::skip::skip("the log is root's");
        }
        let set = |key: &str, section: &str| {
            let site = Site::new("");
            let loaded = load(site.temp.path(), &format!("{key}\n[{section}]\nOnOutOfMemory=requeue:150%,2\n"));
            let run = |more: Value| {
                let mut line = json!({"job": "1", "uid": 0, "user": "root", "started_unix_seconds": 1.0, "ended": "2026-11-25T03:00:10Z"});
                line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                KilledRun::of(LoggedStep::new(line)).unwrap()
            };
            let claims = |is_checked| {
                Box::new(move |facts: Facts| Facts {
                    account: facts.account.if_checked(is_checked),
                    ..facts.of_no_project_vnode_or_pe()
                }) as LoggedFacts
            };
            [(json!({"account": "a"}), false), (json!({"account": "a"}), true)].map(|(line, is_checked)| {
                config_of(&run(line), &loaded, &claims(is_checked)).on_out_of_memory.is_some()
            })
        };
        assert_eq!(set("", "Group=root"), [true, true]);
        assert_eq!(set("", "Group=daemon"), [false, false]);
        assert_eq!(set("", "User=root"), [true, true]);
        // A user may have written it.
        assert_eq!(set("", "Account=a"), [false, true]);
        assert_eq!(set("TrustAccount=yes", "Account=a"), [true, true]);
    }
}
