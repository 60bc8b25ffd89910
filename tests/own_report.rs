// SPDX-License-Identifier: GPL-2.0-or-later
//! `UserReports=yes`: a user reads the reports of the own jobs from a log that only root can open, and nothing else, whatever users do.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

mod common;

use common::Held as Site;

/// Users that have no jobs in other tests.
fn user() -> u32 {
    common::uids()
}
fn stranger() -> u32 {
    common::uids() + 1
}

/// Asks as the command does, and prints each line of the answer.
const ASK: &str = "
import json, socket, sys
hold = socket.socket(socket.AF_UNIX)
hold.connect(sys.argv[1])
# One that refuses does not read.
try:
    hold.sendall(sys.argv[2].encode() + b'\\n')
    hold.shutdown(socket.SHUT_WR)
except OSError:
    pass
try:
    for line in hold.makefile():
        print(line, end='')
except OSError:
    pass
";

/// Holds connections on which nothing is asked, and others on which the answer is not read; then connects again and again.
const HOSTILE: &str = "
import socket, sys
held = []
for number in range(40):
    hold = socket.socket(socket.AF_UNIX)
    hold.connect(sys.argv[1])
    if number % 2:
        try:
            hold.sendall(b'{\"schema\":\"jobfence-own-1\",\"number\":\"\"}\\n')
        except OSError:
            pass
    held.append(hold)
print('held', flush=True)
while True:
    hold = socket.socket(socket.AF_UNIX)
    try:
        hold.connect(sys.argv[1])
    except OSError:
        pass
    hold.close()
";

const WANTED: &str = "UserReports=yes";

fn site(test: &str) -> Option<Site> {
    let mut site = Site::new("own-report", test, &[])?;
    site.settings.push(WANTED.to_owned());
    Some(site)
}

impl Site {
    /// The output of a command that must succeed for a user.
    fn out_of(&self, uid: u32, args: &[&str]) -> String {
        let done = self.as_user(uid, args);
        assert!(done.status.success(), "{args:?} of {uid}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// A job that has ended.
    fn job(&self, job: &str, uid: u32) {
        self.out(&["open", "--job", job, "--user", &uid.to_string(), "--mem", "100M", "--cpus", "1"]);
        self.out(&["close", "--job", job]);
    }

    fn hold(&mut self) {
        let hold = self.command(&["hold", "-o", "ReapInterval=1", "-o", "SampleInterval=1"]);
        self.start_hold(hold);
        let socket = self.socket();
        common::until("it listens", || {
            // Its mode is set last.
            fs::metadata(&socket).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o666)
        });
    }

    fn socket(&self) -> PathBuf {
        self.path("run-series/reports")
    }

    fn python(&self, uid: u32, program: &str, question: &str) -> Command {
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(self.socket()).arg(question).uid(uid).gid(uid).current_dir("/");
        command
    }

    /// The lines of an answer to this question.
    fn answer(&self, uid: u32, question: &str) -> Vec<String> {
        let done = self.python(uid, ASK, question).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn users_have_the_reports_of_their_own_jobs() {
    let Some(mut site) = site("own") else { return };
    // The id of a job forges what tells whose a line is.
    let forged = format!("7\",\"uid\":{},\"x\":\"", user());
    for (job, uid) in [("7", user()), ("77", user()), ("8", stranger()), (&forged, stranger())] {
        site.job(job, uid);
    }
    site.settings.retain(|setting| setting != WANTED);
    let refused = site.as_user(user(), &["report", "7"]);
    site.settings.push(WANTED.to_owned());
    assert!(
        err(&refused).contains("only root can read the usage log") && err(&refused).contains("set UserReports=yes")
    );
    let refused = site.as_user(user(), &["report", "7"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    assert!(err(&refused).contains("run-series/reports") && err(&refused).contains("jobfence.service"), "{refused:?}");

    site.hold();
    // What root reads of the job, in each form.
    for form in [&[][..], &["--json"], &["--mail"], &["--html", "-"]] {
        let args = [&["report", "7"], form].concat();
        assert_eq!(site.out_of(user(), &args), site.out(&args), "{args:?}");
    }
    // Of another user's job no more than of none.
    let none = |uid, job: &str| {
        let refused = site.as_user(uid, &["report", job]);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{refused:?}");
        err(&refused).replace(job, "JOB")
    };
    assert_eq!(none(stranger(), "7"), none(stranger(), "12345"));
    assert_eq!(none(user(), "8"), none(user(), "12345"));
    // A user without jobs has none.
    assert_eq!(none(common::uids() + 3, "7"), none(stranger(), "7"));
    let of_all = |uid| {
        let all: Value = serde_json::from_str(&site.out_of(uid, &["report", "--by", "user", "--json"])).unwrap();
        (all["groups"].as_array().unwrap().len(), all["total"]["jobs"].clone())
    };
    assert_eq!((of_all(user()), of_all(stranger())), ((1, 2.into()), (1, 2.into())));
    // Not even without the command.
    let all = |uid| site.answer(uid, r#"{"schema":"jobfence-own-1","number":""}"#);
    for uid in [user(), stranger()] {
        common::until("its turn", || all(uid).len() > 1);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let lines = all(uid);
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (4, Some(".")), "{lines:?}");
        for line in &lines[1..3] {
            let line: Value = serde_json::from_str(line.strip_prefix('0').unwrap()).unwrap();
            assert_eq!(line["uid"], uid, "{line}");
        }
    }
    // Root has the log itself. A program that root was tricked into running does not get it there.
    assert!(site.answer(0, r#"{"schema":"jobfence-own-1","number":""}"#)[0].starts_with('!'));
}

#[test]
fn users_have_the_gpu_hours_of_their_own_jobs() {
    let Some(mut site) = site("gpus") else { return };
    // jobfence makes the log. Each job had a GPU for an hour, which was busy for half of it.
    site.job("7", user());
    let (began, ended) = ("2026-06-01T00:00:00Z", "2026-06-01T01:00:00Z");
    let lines = |job: &str, uid: u32| {
        let usage = json!({
            "schema": "jobfence-usage-1", "ended": ended, "started": began, "wall_seconds": 3600.0, "job": job, "step": "batch",
            "uid": uid, "gpus_granted": 1,
        });
        let gpu = json!({"device": "/dev/nvidia0", "observed_seconds": 3600.0, "busy_seconds": 1800.0});
        let gpus = json!({
            "schema": "jobfence-gpus-1", "job": job, "uid": uid, "started": began, "looked": ended, "gpus": [gpu],
        });
        [usage, gpus].map(|line| format!("{line}\n"))
    };
    let [own, others] = [lines("7", user()), lines("8", stranger())];
    let of_gpus = site.path("log/usage.jsonl.gpus");
    fs::write(site.path("log/usage.jsonl"), own[0].clone() + &others[0]).unwrap();
    fs::write(&of_gpus, own[1].clone() + &others[1]).unwrap();
    site.hold();
    let args = ["report", "--by", "user", "--json"];
    let hours = |text: &str| {
        let all: Value = serde_json::from_str(text).unwrap();
        ["reserved", "measured", "used"].map(|what| all["total"][format!("gpu_hours_{what}")].as_f64())
    };
    assert_eq!(hours(&site.out_of(user(), &args)), [Some(1.0), Some(1.0), Some(0.5)]);
    assert_eq!(hours(&site.out(&args)), [Some(2.0), Some(2.0), Some(1.0)]);
    // A log that cannot be opened is said, and what can be read is reported.
    fs::remove_file(&of_gpus).unwrap();
    std::os::unix::fs::symlink("usage.jsonl.gpus", &of_gpus).unwrap();
    let done = site.command(&args).output().unwrap();
    assert_eq!((done.status.code(), err(&done).contains("usage.jsonl.gpus")), (Some(1), true), "{done:?}");
    assert_eq!(hours(&String::from_utf8(done.stdout).unwrap()), [Some(2.0), None, None]);
}

#[test]
fn hostile_users_hold_nobody_up() {
    let Some(mut site) = site("hostile") else { return };
    site.job("7", user());
    // An answer that fills more than a socket.
    let log = site.path("log/usage.jsonl");
    let line = fs::read_to_string(&log).unwrap();
    let strangers = line.replace(&format!("\"uid\":{}", user()), &format!("\"uid\":{}", stranger()));
    assert_ne!(line, strangers);
    fs::write(&log, line + &strangers.repeat(2000)).unwrap();
    site.hold();
    assert!(fs::symlink_metadata(site.socket()).unwrap().file_type().is_socket());
    // Nobody can take its place, or see what else is there.
    let denied = site.python(stranger(), "import os, sys\nos.unlink(sys.argv[1])", "").output().unwrap();
    assert!(err(&denied).contains("PermissionError"), "{denied:?}");
    let denied =
        site.python(stranger(), "import os, sys\nos.listdir(os.path.dirname(sys.argv[1]))", "").output().unwrap();
    assert!(err(&denied).contains("PermissionError"), "{denied:?}");

    let mut hostile =
        site.python(stranger(), HOSTILE, "").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hostile.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    site.children.push(hostile);
    // The other user has an answer, and hold has its time for the node: it samples.
    assert!(site.out_of(user(), &["report", "7"]).starts_with("job 7 "));
    site.out(&["open", "--job", "9", "--user", &user().to_string()]);
    let job =
        Command::new("sleep").arg("1000").uid(user()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    site.out(&["attach", "--job", "9", &job.id().to_string()]);
    site.children.push(job);
    common::until("a sample", || {
        let shown: Value = serde_json::from_str(&site.out(&["show", "9", "--json"])).unwrap();
        shown["fences"][0]["series"]["at_seconds"].as_array().is_some_and(|at| at.len() > 1)
    });
    assert!(site.out_of(user(), &["report", "7"]).starts_with("job 7 "));
    let pid = site.hold.as_ref().unwrap().id();
    let tellers = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert!(tellers.split_whitespace().count() <= 2, "more than one answer to one user: {tellers}");
    // What is no question has no answer, and ends nothing.
    site.children[0].kill().unwrap();
    site.children[0].wait().unwrap();
    common::until("an answer to no question", || {
        let answer = site.answer(user(), &"x".repeat(100_000));
        answer.iter().any(|line| line.contains("another release"))
    });
    common::until("an answer", || site.as_user(user(), &["report", "7"]).status.success());
    // It goes with hold, and comes again.
    let mut hold = site.hold.take().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(hold.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(hold.wait().unwrap().success());
    assert!(!site.socket().exists());
    site.hold();
    site.hold.take().unwrap().kill().unwrap();
    site.hold();
    common::until("an answer", || site.as_user(user(), &["report", "7"]).status.success());
    site.children.iter_mut().for_each(|child| {
        let _ = child.kill();
        let _ = child.wait();
    });
    site.out(&["close", "--job", "9"]);
}
