// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests of what a look does.

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

/// A scheduler that notes which jobs were looked at. Unless a test says what it finds, nothing is to be done for any job.
struct Noting;

impl AgainPart for Noting {
    fn holder(&self) -> &'static str {
        "h"
    }

    fn look(&self, run: &KilledRun, until: Instant) -> Result<JobNow, String> {
        // A job for which nothing could be done comes after the others in the next look.
        LOOKED_AT.with_borrow_mut(|jobs| {
            if jobs.last() != Some(&run.job) {
                jobs.push(run.job.clone());
            }
        });
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
    /// Whether the log is made only after the first look.
    is_new: bool,
}

impl Site {
    /// A site whose configuration has the key, and these sections below it.
    fn new(sections: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log/usage.jsonl");
        fs::create_dir(log.parent().unwrap()).unwrap();
        let loaded = load(temp.path(), &format!("OnOutOfMemory=requeue:150%,2\n{sections}"));
        Self { log, loaded, temp, is_new: false }
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
    fn looks(&self, wish: &LookWish<'_>) -> Vec<String> {
        let config = Config { usage_log: Some(self.log.clone()), ..Config::default() };
        let known = |_: &Loaded| Box::new(|facts: Facts| facts) as LoggedFacts;
        look_with(&Noting, &known, &UsageLog::from_config(&config).unwrap(), wish, self.is_new).unwrap();
        LOOKED_AT.take()
    }

    fn wanted(&self) -> Vec<String> {
        self.looks(&LookWish::Keys(&self.loaded))
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
    // The log's first line is that of the first job.
    site.killed(1);
    assert_eq!(site.wanted(), ["1"]);
    assert!(site.wanted().is_empty());
    site.killed(2);
    assert_eq!(site.wanted(), ["2"]);
    // The configuration has a mistake for a while.
    site.killed(3);
    assert!(site.looks(&LookWish::Unknown).is_empty());
    assert_eq!(site.wanted(), ["3"]);
    // Lines that come while the key is off are not looked at later.
    assert!(site.looks(&LookWish::Nothing).is_empty() && !site.file().exists());
    site.killed(4);
    assert!(site.looks(&LookWish::Nothing).is_empty());
    assert!(site.wanted().is_empty());
    site.killed(5);
    assert_eq!(site.wanted(), ["5"]);
}

/// The directory of the log is made with its first line.
#[test]
fn the_first_line_of_a_new_log_counts() {
    if !is_root() {
        return crate::skip::skip("the log is root's");
    }
    for is_new in [false, true] {
        let site = Site { is_new, ..Site::new("") };
        site.killed(1);
        assert_eq!(site.wanted().len(), usize::from(is_new));
        assert!(site.wanted().is_empty());
        site.killed(2);
        assert_eq!(site.wanted(), ["2"]);
    }
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
    FINDS.set(Some(JobNow::Held { asked: None }));
    for _ in 0..3 {
        assert_eq!(
            (site.looks(&LookWish::Unknown), site.looks(&LookWish::Nothing)),
            (vec!["1".into()], vec!["1".into()])
        );
    }
    // Somebody else has released the job.
    FINDS.set(Some(JobNow::Next));
    assert_eq!(site.looks(&LookWish::Nothing), ["1"]);
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
    FINDS.set(Some(JobNow::Ending { restarts: 0 }));
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
    // The user stops what acts for this user. So this look gives the user's other jobs no turn.
    TAKES.set(true);
    let before = Instant::now();
    assert_eq!(site.wanted(), ["1", "4"]);
    assert!(before.elapsed() < PATIENCE_TOGETHER);
    TAKES.set(false);
    FINDS.set(None);
}

/// A line that does not say why its script failed.
#[test]
fn a_script_that_failed_is_looked_at_where_a_section_has_the_key() {
    if !is_root() {
        return crate::skip::skip("the log is root's");
    }
    for (section, expected) in [
        ("[User=root]\nOnTimeLimit=requeue,2", vec!["1"]),
        ("[User=root]\nOnPreempt=requeue,2", vec!["1"]),
        ("[User=daemon]\nOnTimeLimit=requeue,2", vec![]),
        ("", vec![]),
    ] {
        let site = Site::new(section);
        site.wanted();
        site.killed_of(1, json!({"sentences": [], "exit_status": 143, "user": "root"}));
        assert_eq!(site.wanted(), expected, "{section}");
    }
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
            KilledRun::from_line(LoggedStep::new(line)).unwrap()
        };
        let claims = |is_checked| {
            Box::new(move |facts: Facts| {
                let facts = facts.of_no_project_vnode_or_pe();
                Facts { account: facts.account.if_checked(is_checked), ..facts }
            }) as LoggedFacts
        };
        [(json!({"account": "a"}), false), (json!({"account": "a"}), true)]
            .map(|(line, is_checked)| config_of(&run(line), &loaded, &claims(is_checked)).on_out_of_memory.is_some())
    };
    assert_eq!(set("", "Group=root"), [true, true]);
    assert_eq!(set("", "Group=daemon"), [false, false]);
    assert_eq!(set("", "User=root"), [true, true]);
    // The user may have written the account.
    assert_eq!(set("", "Account=a"), [false, true]);
    assert_eq!(set("TrustAccount=yes", "Account=a"), [true, true]);
}
