// SPDX-License-Identifier: GPL-2.0-or-later
//! Sessions that are put into a job's extern step: the library, the command, and PAM itself with a directory of its own, in both ways: the
//! shared object as a module, and pam_exec(8) with the command.
//!
//! The extern step's daemon is this test program, or the process that a record names.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{LayoutKind, Version};
use jobfence::config::Config;
use jobfence::doors::take_back::{TakenBack, fetch_back};
use jobfence::error::Result;
use jobfence::fence::{self, Fence};
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy;
use jobfence::private::PrivateDirs;
use jobfence::record::{Owner, Records};
use jobfence::schedulers::slurm::adopt::{AdoptRequest, Adoption, Pam, adopt};
use jobfence::sys::dir::Dir;

mod common;

/// The uids of `nobody`, `games` and `bin` on Debian.
const NOBODY: u32 = 65_534;
const GAMES: u32 = 5;
const BIN: u32 = 2;

/// What the module and pam_exec return for any failure.
const PAM_SESSION_ERR: u32 = 14;
const PAM_SYSTEM_ERR: u32 = 4;
const PAM_SILENT: u32 = 0x8000;

struct Door {
    line: String,
    /// PAM's answer when a session is denied.
    refusal: u32,
}

struct Site {
    config: Config,
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Self {
        let run = tempfile::tempdir().unwrap();
        let base = common::Base::new(&format!("jobfence-adopt-{}-{test}", std::process::id()));
        let (cgroup_base, run_dir) = (Some(base.name.clone()), run.path().join("run"));
        Self { config: Config { cgroup_base, run_dir, ..Config::default() }, run, base }
    }

    fn host(&self) -> Host {
        Host::read(&self.config).unwrap()
    }

    fn step(&self, uid: u32, job: &str, step: &str) -> Step {
        let key = JobKey { node: None, uid, job: Id::new(job).unwrap(), step: Id::new(step).unwrap() };
        let mut fence = common::open(&self.host(), &self.config, &key, None).unwrap();
        let (cpus, memory) = (Some(Cpus::whole(1)), Some(100 << 20));
        let grant = Grant::whole(cpus, memory);
        assert!(fence.limit(&policy::plan(&self.config, &grant).0).is_empty());
        Step { path: fence.path().unwrap(), fence }
    }

    /// Gives the step to another owner.
    fn give(&self, step: &Step, owner: Owner) {
        let levels: Vec<String> = step.path.split('/').map(str::to_owned).collect();
        let levels = &levels[levels.len() - 3..];
        let records = Records::open(&self.config.run_dir).unwrap();
        let mut record = records.read(levels).unwrap().unwrap();
        record.owner = owner;
        records.forget(levels).unwrap();
        assert!(records.claim(&record).unwrap());
    }

    fn adopt(&self, request: &AdoptRequest) -> Result<Adoption> {
        adopt(&self.host(), &self.config, request)
    }

    fn adopt_pid(&self, pid: i32) -> Result<Adoption> {
        self.adopt(&AdoptRequest { pid: Some(pid), ..AdoptRequest::default() })
    }

    fn words(&self) -> Vec<String> {
        let run_dir = self.config.run_dir.display();
        ["adopt", "-o", &format!("CgroupBase={}", self.base.name), "-o", &format!("RunDir={run_dir}")]
            .map(str::to_owned)
            .to_vec()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(self.words()).args(args).env_remove("PAM_TYPE").stdin(Stdio::null());
        command
    }

    /// The PAM lines that call jobfence, with more settings: the module's, and that of pam_exec(8) with the command.
    fn doors(&self, more: &[&str]) -> [Door; 2] {
        let base = format!("CgroupBase={}", self.base.name);
        let run_dir = format!("RunDir={}", self.config.run_dir.display());
        let settings = [&[base.as_str(), &run_dir], more].concat();
        let program = env!("CARGO_BIN_EXE_jobfence");
        let options: String = settings.iter().map(|setting| format!(" -o {setting}")).collect();
        [
            Door {
                line: format!("session required {} {}\n", common::shared_object().display(), settings.join(" ")),
                refusal: PAM_SESSION_ERR,
            },
            Door {
                line: format!("session required pam_exec.so quiet stdout {program} adopt{options}\n"),
                refusal: PAM_SYSTEM_ERR,
            },
        ]
    }

    /// A session as sshd opens it, for a service with this stack.
    fn session(&self, user: &str, stack: &str, assignments: &[&str]) -> Session {
        self.session_with(user, stack, 0, assignments)
    }

    fn session_with(&self, user: &str, stack: &str, flags: u32, assignments: &[&str]) -> Session {
        self.session_by(&[], user, stack, flags, assignments)
    }

    /// The same, started by a command that gets the rest of the command line.
    fn session_by(&self, by: &[&str], user: &str, stack: &str, flags: u32, assignments: &[&str]) -> Session {
        let directory = self.run.path().join("pam.d");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("test"), stack).unwrap();
        let words = [by, &["/usr/bin/python3", "-S", "tests/common/pam_session.py"]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args([directory.to_str().unwrap(), "test", user, &flags.to_string()])
            .args(assignments)
            // The program's own environment must not count: su's comes from its caller.
            .envs([("PAM_TYPE", "close_session"), ("PAM_USER", "root")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let opened = lines.next().unwrap().unwrap();
        Session { child, lines, opened }
    }
}

/// Removed when the test ends, in any case.
struct Step {
    fence: Fence,
    path: String,
}

impl Step {
    fn close(&mut self) {
        self.fence.close(common::soon()).unwrap();
    }

    /// Whether the kernel shows the process in this step in every hierarchy that is used.
    fn has(&self, site: &Site, pid: i32) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let host = site.host();
        let used = host.hierarchies(&fence::controllers(&site.config)).unwrap().len();
        let inside = cgroups.lines().filter(|line| line.ends_with(&format!(":{}", self.path))).count();
        assert!(inside == 0 || inside == used, "{cgroups}");
        inside == used
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let _ = self.fence.close(common::soon());
    }
}

struct Session {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    /// PAM's answer when the session was opened.
    opened: String,
}

impl Session {
    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// PAM's answer when the session was closed.
    fn close(mut self) -> String {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let closed = self.lines.next().unwrap().unwrap();
        assert!(self.child.wait().unwrap().success());
        closed
    }
}

/// Killed when the test ends.
struct Sleeper(Child);

impl Sleeper {
    fn of(uid: u32) -> Self {
        Self(Command::new("sleep").arg("1000").uid(uid).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn owner(&self) -> Owner {
        Owner::from_pid(&Host::read(&Config::default()).unwrap().proc, self.pid()).unwrap().unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A v1 cgroup in which a process cannot even die.
struct Freezer(PathBuf);

impl Freezer {
    /// `None`: that hierarchy is not mounted.
    fn new() -> Option<Self> {
        let host = Host::read(&Config::default()).unwrap();
        let mount = &host.layout.with_controller("freezer")?.mount;
        let dir = mount.join(format!("jobfence-adopt-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Some(Self(dir))
    }

    fn freeze(&self, pid: i32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let deadline = common::soon();
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn pam(kind: &str, user: &str) -> Option<Pam> {
    let caller = std::process::id().cast_signed();
    Some(Pam { kind: kind.to_owned(), user: user.to_owned(), caller })
}

#[test]
fn a_users_process_is_moved_and_dies_with_the_step() {
    let site = Site::new("life");
    let (mut step, _batch) = (site.step(NOBODY, "1", "extern"), site.step(NOBODY, "1", "batch"));
    let mut session = Sleeper::of(NOBODY);
    let (pid, path) = (session.pid(), step.path.clone());
    let adopted = Adoption::Adopted { pid, key: step.fence.key().clone(), path: path.clone() };
    assert_eq!(site.adopt_pid(pid), Ok(adopted));
    assert!(step.has(&site, pid));
    assert_eq!(site.adopt_pid(pid), Ok(Adoption::Inside { pid, path }));
    assert!(step.has(&site, pid));
    step.close();
    assert_eq!(session.0.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn the_last_job_with_a_live_extern_step_has_it() {
    let site = Site::new("which");
    let daemon = Sleeper::of(0);
    let old = site.step(NOBODY, "9", "extern");
    let new = site.step(NOBODY, "3", "extern");
    let _batch = site.step(NOBODY, "11", "batch");
    let _run = site.step(NOBODY, "run-12", "0");
    let _others = site.step(GAMES, "13", "extern");
    let dead = site.step(NOBODY, "14", "extern");
    // Its daemon is younger than this process, which owns the others.
    site.give(&new, daemon.owner());
    site.give(&dead, Owner { start: u64::MAX, ..daemon.owner() });

    let first = Sleeper::of(NOBODY);
    site.adopt_pid(first.pid()).unwrap();
    assert!(new.has(&site, first.pid()));
    // Another job is named.
    let second = Sleeper::of(NOBODY);
    site.adopt(&AdoptRequest { pid: Some(second.pid()), job: Some(Id::new("9").unwrap()), ..AdoptRequest::default() })
        .unwrap();
    assert!(old.has(&site, second.pid()));
    // Without its daemon, the other step is the last.
    drop(daemon);
    let third = Sleeper::of(NOBODY);
    site.adopt_pid(third.pid()).unwrap();
    assert!(old.has(&site, third.pid()));
}

#[test]
fn a_job_of_another_scheduler_has_an_extern_step_too() {
    let site = Site::new("others");
    let config = site.run.path().join("conf");
    let base = &site.base.name;
    fs::write(&config, format!("CgroupBase={base}\nRunDir={}\n", site.config.run_dir.display())).unwrap();
    let jobfence = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(words.split(' ')).arg("--config").arg(&config);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    };
    for (job, step) in [("7.server", "extern"), ("12[3].server", "extern"), ("12[3].server", "1")] {
        jobfence(&format!("open --job {job} --step {step} --user nobody"));
    }
    let adopted = |job: Option<&str>| {
        let session = Sleeper::of(NOBODY);
        let job = job.map(|job| Id::new(job).unwrap());
        match site.adopt(&AdoptRequest { pid: Some(session.pid()), job, ..AdoptRequest::default() }).unwrap() {
            Adoption::Adopted { path, .. } => path,
            other => panic!("{other:?}"),
        }
    };
    assert!(adopted(Some("7.server")).ends_with("/job_7.server/step_extern"));
    assert!(adopted(None).ends_with("/job_12+5B3+5D.server/step_extern"));
    for job in ["7.server", "12[3].server"] {
        jobfence(&format!("close --job {job}"));
    }
}

#[test]
fn a_job_that_is_just_going_leaves_the_session_to_another() {
    let site = Site::new("going");
    let other = site.step(NOBODY, "1", "extern");
    let mut going = site.step(NOBODY, "2", "extern");
    // A record without directories, as just before the end of a step.
    let levels = ["uid_65534", "job_2", "step_extern"].map(str::to_owned);
    let records = Records::open(&site.config.run_dir).unwrap();
    let record = records.read(&levels).unwrap().unwrap();
    going.close();
    assert!(records.claim(&record).unwrap());
    let session = Sleeper::of(NOBODY);
    site.adopt_pid(session.pid()).unwrap();
    assert!(other.has(&site, session.pid()));
    // Alone, it is no step to enter.
    let only = AdoptRequest { pid: Some(session.pid()), job: Some(Id::new("2").unwrap()), ..AdoptRequest::default() };
    let apart = Sleeper::of(NOBODY);
    let error = site.adopt(&AdoptRequest { pid: Some(apart.pid()), ..only }).unwrap_err().to_string();
    assert!(error.contains("has no directory in any hierarchy"), "{error}");
    records.forget(&levels).unwrap();
}

/// Each could be a step that is just beginning.
#[test]
fn several_that_never_begin_are_waited_for_together() {
    let site = Site::new("patience");
    let other = site.step(NOBODY, "1", "extern");
    let records = Records::open(&site.config.run_dir).unwrap();
    let mut left = Vec::new();
    for job in ["2", "3", "4", "5", "6"] {
        let mut step = site.step(NOBODY, job, "extern");
        let levels = ["uid_65534".to_owned(), format!("job_{job}"), "step_extern".to_owned()];
        let record = records.read(&levels).unwrap().unwrap();
        step.close();
        assert!(records.claim(&record).unwrap());
        left.push(levels);
    }
    let session = Sleeper::of(NOBODY);
    // One second for each would be five.
    let together = common::is_once_within(Duration::from_secs(3), || drop(site.adopt_pid(session.pid()).unwrap()));
    assert!(other.has(&site, session.pid()));
    for levels in left {
        records.forget(&levels).unwrap();
    }
    assert!(together, "they are waited for one after the other");
}

#[test]
fn who_cannot_be_read_about_hinders_no_other_user() {
    let site = Site::new("unread");
    let daemon = Sleeper::of(0);
    let theirs = site.step(GAMES, "1", "extern");
    site.give(&theirs, daemon.owner());
    // What the kernel shows, except for the daemon.
    let session = Sleeper::of(NOBODY);
    let proc = tempfile::tempdir().unwrap();
    let file = |pid: i32, name: &str| proc.path().join(pid.to_string()).join(name);
    for pid in [session.pid(), daemon.pid()] {
        fs::create_dir(proc.path().join(pid.to_string())).unwrap();
        for name in ["status", "stat", "cgroup"] {
            fs::copy(format!("/proc/{pid}/{name}"), file(pid, name)).unwrap();
        }
    }
    fs::write(file(daemon.pid(), "stat"), "no line of the kernel's\n").unwrap();
    let host = Host { proc: Dir::open(proc.path()).unwrap(), ..site.host() };
    let request = AdoptRequest { pid: Some(session.pid()), ..AdoptRequest::default() };
    let refused = || adopt(&host, &site.config, &request).unwrap_err().to_string();
    assert!(refused().contains("has no job with an extern step"), "{}", refused());
    // If it is the user's own step, it is the reason.
    let own = site.step(NOBODY, "2", "extern");
    site.give(&own, daemon.owner());
    assert!(refused().contains("stat"), "{}", refused());
}

#[test]
fn a_step_that_is_just_beginning_is_waited_for() {
    let site = Site::new("beginning");
    let _other = site.step(NOBODY, "1", "extern");
    let mut step = site.step(NOBODY, "2", "extern");
    let levels = ["uid_65534", "job_2", "step_extern"].map(str::to_owned);
    let records = Records::open(&site.config.run_dir).unwrap();
    let record = records.read(&levels).unwrap().unwrap();
    step.close();
    assert!(records.claim(&record).unwrap());
    let host = site.host();
    let used = host.hierarchies(&fence::controllers(&site.config)).unwrap();
    let dirs: Vec<_> = used.iter().map(|h| h.mount.join(step.path.trim_start_matches('/'))).collect();
    let later = dirs.clone();
    let daemon = std::thread::spawn(move || {
        for dir in later {
            // Much less than the second for which it waits, since a busy machine makes each of them longer.
            std::thread::sleep(Duration::from_millis(20));
            fs::create_dir_all(dir).unwrap();
        }
    });
    let session = Sleeper::of(NOBODY);
    let adopted = site.adopt_pid(session.pid());
    daemon.join().unwrap();
    let is_there = step.has(&site, session.pid());
    drop(session);
    for dir in dirs {
        while dir.exists() && fs::remove_dir(&dir).is_err() {}
        fs::remove_dir(dir.parent().unwrap()).unwrap();
    }
    records.forget(&levels).unwrap();
    assert!(is_there, "{adopted:?}");
}

#[test]
fn nobody_gets_what_is_not_his() {
    let site = Site::new("refused");
    let step = site.step(NOBODY, "1", "extern");
    let refused = |request: &AdoptRequest, why: &str| {
        let error = site.adopt(request).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let (stranger, roots) = (Sleeper::of(GAMES), Sleeper::of(0));
    let of = |sleeper: &Sleeper| AdoptRequest { pid: Some(sleeper.pid()), ..AdoptRequest::default() };
    refused(&of(&stranger), "user games (uid 5) has no job with an extern step on this node");
    refused(
        &AdoptRequest { job: Some(Id::new("1").unwrap()), ..of(&stranger) },
        "job 1 belongs to uid 65534, not to uid 5",
    );
    refused(&AdoptRequest { job: Some(Id::new("2").unwrap()), ..of(&stranger) }, "has no job 2 with an extern step");
    refused(
        &AdoptRequest { pam: pam("open_session", "nobody"), ..of(&stranger) },
        "belongs to uid 5, and PAM's session to",
    );
    refused(&of(&roots), "is root's");
    // Only PAM's caller becomes the user's, no other root process.
    refused(&AdoptRequest { pam: pam("open_session", "nobody"), ..of(&roots) }, "belongs to uid 0");
    refused(&AdoptRequest { pam: pam("auth", "nobody"), ..of(&roots) }, "can do nothing in this PAM stack");
    refused(
        &AdoptRequest { pam: pam("open_session", "nonesuch"), ..of(&roots) },
        "a user that this node does not know",
    );
    refused(&AdoptRequest { pid: Some(1), ..AdoptRequest::default() }, "not a process that could be adopted");
    refused(&AdoptRequest::default(), "no process is named");
    for sleeper in [&stranger, &roots] {
        assert!(!step.has(&site, sleeper.pid()));
    }
    let mut gone = Sleeper::of(NOBODY);
    gone.0.kill().unwrap();
    // A zombie: not waited for yet, but there is nothing to move.
    while fs::read_to_string(format!("/proc/{}/stat", gone.pid())).unwrap().split(' ').nth(2) != Some("Z") {}
    refused(&of(&gone), "there is no process");
    gone.0.wait().unwrap();
    refused(&of(&gone), "there is no process");
    let root = AdoptRequest { pam: pam("open_session", "root"), ..AdoptRequest::default() };
    assert_eq!(site.adopt(&root), Ok(Adoption::Nothing));
}

#[test]
fn a_thread_is_no_process() {
    let site = Site::new("thread");
    let script = "import os, threading, time\nos.setuid(65534)\n\
                  t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start()\n\
                  print(t.native_id, flush=True); time.sleep(60)";
    let mut child = Command::new("/usr/bin/python3").args(["-S", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let error = site.adopt_pid(line.trim().parse().unwrap()).unwrap_err().to_string();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(error.contains(&format!("is a thread of process {}", child.id())), "{error}");
}

#[test]
fn what_cannot_be_moved_everywhere_is_put_back() {
    let site = Site::new("half");
    let _step = site.step(NOBODY, "1", "extern");
    let session = Sleeper::of(NOBODY);
    let cgroup = || fs::read_to_string(format!("/proc/{}/cgroup", session.pid())).unwrap();
    let before = cgroup();
    let mut host = site.host();
    let memory = host.layout.with_controller("memory").unwrap().mount.clone();
    let is_alone = host.hierarchies(&["cpu", "memory"]).unwrap().len() == 1;
    // It will be found in another place than it should be, and cannot be moved back from there.
    host.layout.hierarchies.iter_mut().find(|h| h.mount == memory).unwrap().root = "/elsewhere".to_owned();
    let request = AdoptRequest { pid: Some(session.pid()), ..AdoptRequest::default() };
    let error = adopt(&host, &site.config, &request).unwrap_err().to_string();
    assert!(error.contains("but the kernel shows it elsewhere"), "{error}");
    assert!(error.contains(&format!("cannot be put back, so it remains in {}", memory.display())), "{error}");
    let differ: Vec<_> = cgroup().lines().zip(before.lines()).filter(|(a, b)| a != b).map(|_| ()).collect();
    assert_eq!(differ.len(), 1, "{}", cgroup());
    if is_alone {
        return common::skip("one hierarchy has all controllers, and there is no other to be half in");
    }
    // And it must not stay there.
    let error = site.adopt_pid(session.pid()).unwrap_err().to_string();
    assert!(error.contains("in a step in another hierarchy, but not in"), "{error}");
}

#[test]
fn what_slurm_holds_itself_stays_there() {
    let site = Site::new("slurms");
    let step = site.step(NOBODY, "1", "extern");
    let (held, partly) = (Sleeper::of(NOBODY), Sleeper::of(NOBODY));
    let host = site.host();
    let used = host.hierarchies(&fence::controllers(&site.config)).unwrap();
    let id = std::process::id();
    let place = |version| match version {
        Version::V1 => format!("/slurm_jobfence-adopt-{id}/uid_65534/job_1/step_extern"),
        Version::V2 => format!("/jobfence-adopt-{id}_slurmstepd.scope/job_1/step_extern/user"),
    };
    let leaves: Vec<_> =
        used.iter().map(|h| PathBuf::from(format!("{}{}", h.mount.display(), place(h.version)))).collect();
    for (leaf, is_last) in leaves.iter().zip((1..=leaves.len()).map(|number| number == leaves.len())) {
        fs::create_dir_all(leaf).unwrap();
        fs::write(leaf.join("cgroup.procs"), held.pid().to_string()).unwrap();
        if is_last {
            fs::write(leaf.join("cgroup.procs"), partly.pid().to_string()).unwrap();
        }
    }
    let outcomes = [&held, &partly].map(|session| site.adopt_pid(session.pid()));
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", partly.pid())).unwrap();
    drop((held, partly));
    for leaf in &leaves {
        for dir in leaf.ancestors().take(4) {
            while fs::remove_dir(dir).is_err() {}
        }
    }
    let (first, last) = (place(used[0].version), place(used[used.len() - 1].version));
    assert!(matches!(&outcomes[0], Ok(Adoption::Slurms { path, .. }) if *path == first), "{outcomes:?}");
    assert_eq!(cgroups.lines().filter(|line| line.ends_with(&last)).count(), 1, "{cgroups}");
    // Where Slurm does not hold it, nothing does.
    assert_eq!(cgroups.lines().filter(|line| line.ends_with(&step.path)).count(), used.len() - 1, "{cgroups}");
    assert!(outcomes[1].is_ok(), "{outcomes:?}");
}

/// A member that does not die at once delays the fence's owner, and a session may come meanwhile.
#[test]
fn who_comes_while_others_die_is_killed_too() {
    let Some(freezer) = Freezer::new() else {
        return common::skip("no freezer of cgroup v1, by which a member could be kept from dying");
    };
    let site = Site::new("late");
    let mut step = site.step(NOBODY, "1", "extern");
    let (mut first, mut late) = (Sleeper::of(NOBODY), Sleeper::of(NOBODY));
    site.adopt_pid(first.pid()).unwrap();
    freezer.freeze(first.pid());
    let closing = std::thread::spawn(move || {
        let start = Instant::now();
        step.close();
        start.elapsed()
    });
    // The first process has its signal and cannot die of it: in "SigPnd" or "ShdPnd" the ninth bit from the end.
    let file = format!("/proc/{}/status", first.pid());
    common::until("the first one is killed", || {
        let status = fs::read_to_string(&file).unwrap();
        status.lines().any(|line| line.contains("Pnd:") && line.ends_with("100"))
    });
    site.adopt_pid(late.pid()).unwrap();
    freezer.thaw();
    let took = closing.join().unwrap();
    assert_eq!(first.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(late.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(took < common::PATIENCE / 2, "{took:?}");
}

#[test]
fn the_command_says_what_it_did_and_what_it_did_not() {
    let site = Site::new("command");
    let session = Sleeper::of(NOBODY);
    let pid = session.pid().to_string();
    let none = site.command(&["--pid", &pid]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    let said = "jobfence: user nobody (uid 65534) has no job with an extern step on this node; ";
    assert!(err(&none).starts_with(said), "{}", err(&none));
    // By hand, OnError does not soften a failure.
    let warn = site.command(&["--pid", &pid, "-o", "OnError=warn"]).output().unwrap();
    assert_eq!(warn.status.code(), Some(1), "{}", err(&warn));
    let off = site.command(&["--pid", &pid, "-o", "Mode=off"]).output().unwrap();
    assert_eq!((off.status.code(), out(&off).as_str()), (Some(0), "Mode=off: nothing is fenced here\n"));

    let step = site.step(NOBODY, "7", "extern");
    let done = site.command(&["--pid", &pid, "--job", "7"]).output().unwrap();
    let said = format!("process {pid} is in job 7 step extern now: {}\n", step.path);
    assert_eq!((done.status.code(), out(&done)), (Some(0), said), "{}", err(&done));
    let again = site.command(&["--pid", &pid]).output().unwrap();
    let said = format!("process {pid} is fenced already, in {}\n", step.path);
    assert_eq!((again.status.code(), out(&again)), (Some(0), said), "{}", err(&again));

    let whom = site.command(&[]).output().unwrap();
    assert_eq!((whom.status.code(), err(&whom).as_str()), (Some(1), "jobfence: no process is named: use --pid PID\n"));
    let fools = site.command(&["--pid", "0"]).output().unwrap();
    assert_eq!(fools.status.code(), Some(2));
    // The program may be where only root can reach it.
    let unprivileged = "import os, sys; os.setresuid(5, 5, 5); os.execve(3, sys.argv[1:], {})";
    let nobody = Command::new("sh")
        .args(["-c", "exec /usr/bin/python3 -S -c \"$0\" \"$@\" 3<\"$1\"", unprivileged])
        .args([env!("CARGO_BIN_EXE_jobfence"), "adopt", "--pid", &pid])
        .output()
        .unwrap();
    assert_eq!((nobody.status.code(), err(&nobody).as_str()), (Some(1), "jobfence: 'jobfence adopt' needs root\n"));
}

const GRANTED: &str = r#"{"answer": 0, "said": []}"#;

#[test]
fn pam_puts_the_session_into_the_users_job() {
    let site = Site::new("pam");
    for door in site.doors(&[]) {
        let mut step = site.step(NOBODY, "1", "extern");
        let session = site.session("nobody", &door.line, &[]);
        assert_eq!(session.opened, GRANTED);
        assert!(step.has(&site, session.pid()));
        assert_eq!(session.close(), GRANTED);
        // A session that is still open when the job ends.
        let mut session = site.session("nobody", &door.line, &[]);
        assert!(step.has(&site, session.pid()));
        step.close();
        assert_eq!(session.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

/// The own directories of nobody's job 1.
struct Private {
    host: Host,
    config: Config,
    parents: [String; 2],
}

impl Private {
    fn make(site: &Site, hide_processes: bool) -> Self {
        let config = Config { private_tmp: vec!["/var/tmp".into()], hide_processes, ..site.config.clone() };
        let parents = [format!("uid_{NOBODY}"), "job_1".to_owned()];
        let host = Host::read(&config).unwrap();
        Records::open(&config.run_dir).unwrap();
        let own = [parents[0].clone(), parents[1].clone(), "step_extern".to_owned()];
        PrivateDirs::make(&host, &config, &parents, &own).unwrap();
        Self { host, config, parents }
    }

    fn end(&self) {
        let records = Records::open(&self.config.run_dir).unwrap();
        let deadline = Instant::now() + common::PATIENCE;
        jobfence::private::end(&self.host, &self.config.run_dir, &self.parents, &records, deadline).unwrap();
    }
}

/// The module runs in the session's own process, and pam_exec's command does not.
#[test]
fn pam_puts_the_session_into_the_jobs_own_directories() {
    let site = Site::new("private");
    let [module, _] = site.doors(&[]);
    let mut step = site.step(NOBODY, "1", "extern");
    let private = Private::make(&site, false);
    let session = site.session("nobody", &module.line, &[]);
    assert_eq!(session.opened, GRANTED);
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", session.pid())).unwrap();
    assert!(mounts.lines().any(|line| line.contains("/var+tmp /var/tmp ")), "{mounts}");
    assert_eq!(session.close(), GRANTED);
    step.close();
    private.end();
    let left = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!left.contains(site.config.run_dir.to_str().unwrap()), "{left}");
}

#[test]
fn pam_hides_others_processes_from_the_session_of_a_job_with_hidden_ones() {
    if let Some(why) = jobfence::private::processes::fault() {
        return common::skip(&why.to_string());
    }
    let site = Site::new("hidden");
    let [module, _] = site.doors(&[]);
    let nobody = NOBODY.to_string();
    for hide_processes in [true, false] {
        let mut step = site.step(NOBODY, "1", "extern");
        let private = Private::make(&site, hide_processes);
        let session = site.session("nobody", &module.line, &[]);
        assert_eq!(session.opened, GRANTED);
        // What the session's user sees: of root's process, and of a process of its own.
        let pid = session.pid().to_string();
        let sees = |who: &str| {
            let mut look = Command::new("nsenter");
            look.args(["--target", &pid, "--mount", "--setuid", &nobody, "--setgid", &nobody]);
            look.args(["ls", "-d", &format!("/proc/{who}")]).output().unwrap().status.success()
        };
        assert!(sees("self"));
        assert_eq!(sees(&std::process::id().to_string()), !hide_processes);
        assert_eq!(session.close(), GRANTED);
        step.close();
        private.end();
    }
}

#[test]
fn pam_denies_a_session_without_a_job_and_says_why() {
    let site = Site::new("deny");
    let step = site.step(GAMES, "1", "extern");
    for door in site.doors(&[]) {
        let session = site.session("nobody", &door.line, &[]);
        let said = "jobfence: you have no job with an extern step on this node; ";
        let said = format!(r#"{{"answer": {}, "said": ["{said}"#, door.refusal);
        assert!(session.opened.starts_with(&said), "{}", session.opened);
        assert!(!step.has(&site, session.pid()));
        session.close();
    }
    // pam_exec ignores the flag.
    let [module, _] = site.doors(&[]);
    let session = site.session_with("nobody", &module.line, PAM_SILENT, &[]);
    assert_eq!(session.opened, format!(r#"{{"answer": {}, "said": []}}"#, module.refusal));
    session.close();
    for (setting, by) in [("OnError=warn", "(OnError=warn)"), ("Mode=observe", "(Mode=observe)")] {
        for door in site.doors(&[setting]) {
            let warned = site.session("nobody", &door.line, &[]);
            let said =
                format!(r#"{{"answer": 0, "said": ["jobfence: this session is not fenced {by}: you have no job"#);
            assert!(warned.opened.starts_with(&said), "{}", warned.opened);
            warned.close();
        }
    }
    for door in site.doors(&["Mode=off"]) {
        let off = site.session("nobody", &door.line, &[]);
        assert_eq!(off.opened, GRANTED);
        off.close();
    }
    for (door, place) in site.doors(&["Nonsense=1"]).iter().zip(["PAM argument 3", "-o Nonsense=1"]) {
        let broken = site.session("nobody", &door.line, &[]);
        let said = format!(r#"{{"answer": {}, "said": ["jobfence: {place}, column 1: "#, door.refusal);
        assert!(broken.opened.starts_with(&said), "{}", broken.opened);
        broken.close();
    }
}

#[test]
fn nobody_talks_his_way_out_by_pams_environment() {
    let site = Site::new("forged");
    let (step, theirs) = (site.step(NOBODY, "1", "extern"), site.step(GAMES, "2", "extern"));
    for forged in [["PAM_USER=root", "PAM_TYPE=close_session"], ["PAM_USER=games", "PAM_TYPE=open_session"]] {
        for door in site.doors(&[]) {
            let session = site.session("nobody", &door.line, &forged);
            assert_eq!(session.opened, GRANTED);
            assert!(step.has(&site, session.pid()) && !theirs.has(&site, session.pid()), "{forged:?}");
            session.close();
        }
    }
}

/// If pam_env lets users set PAM's environment, as in Debian 12's sshd, pam_exec passes it to root's program.
#[test]
fn no_linker_of_roots_obeys_the_user() {
    let site = Site::new("preload");
    let step = site.step(BIN, "1", "extern");
    let file = site.run.path().join("environment");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(site.run.path(), readable).unwrap();
    fs::write(&file, "LD_PRELOAD DEFAULT=/nonexistent/evil.so\n").unwrap();
    // Relative to the user's home for pam_env; that of `bin` exists everywhere.
    let above = "../".repeat(8);
    let user_env =
        format!("session required pam_env.so readenv=0 user_readenv=1 user_envfile={above}{}\n", file.display());
    let [module, exec] = site.doors(&[]).map(|door| door.line);
    let old = site.session("bin", &format!("{user_env}{exec}"), &[]);
    assert!(old.opened.contains("evil.so' from LD_PRELOAD"), "this shows nothing: {}", old.opened);
    old.close();
    // Before pam_env it is no better: pam_exec runs it again when the session is closed.
    let closed = site.session("bin", &format!("{exec}{user_env}"), &[]).close();
    assert!(closed.contains("evil.so' from LD_PRELOAD"), "this shows nothing: {closed}");
    for stack in [format!("{module}{user_env}"), format!("{user_env}{module}")] {
        let session = site.session("bin", &stack, &[]);
        assert_eq!(session.opened, GRANTED, "{stack}");
        assert!(step.has(&site, session.pid()));
        assert_eq!(session.close(), GRANTED, "{stack}");
    }
}

#[test]
fn root_and_whom_the_administrator_excepts_are_let_alone() {
    let site = Site::new("excepted");
    let step = site.step(NOBODY, "1", "extern");
    // The line of the man page.
    let page = fs::read_to_string(Path::new("docs/man/jobfence.8")).unwrap().replace('\\', "");
    let line = page.lines().find(|line| line.contains("pam_succeed_if.so")).unwrap();
    for door in site.doors(&[]) {
        let root = site.session("root", &door.line, &[]);
        assert_eq!(root.opened, GRANTED);
        assert!(!step.has(&site, root.pid()));
        root.close();
        // Some module must have succeeded; in sshd's stack several have.
        let before = format!("session required pam_permit.so\n{line}\n");
        for (group, fenced) in [("nogroup", false), ("games", true)] {
            let before = before.replace("ingroup admins", &format!("ingroup {group}"));
            let session = site.session("nobody", &format!("{before}{}", door.line), &[]);
            assert_eq!(session.opened, GRANTED, "{line}");
            assert_eq!(step.has(&site, session.pid()), fenced, "{group}");
            session.close();
        }
    }
}

#[test]
fn check_says_what_pam_lacks_and_fails_no_more_for_it() {
    let site = Site::new("check");
    let pam = site.run.path().join("pam.d");
    fs::create_dir(&pam).unwrap();
    let slurm_conf = site.run.path().join("slurm.conf");
    fs::write(&slurm_conf, "ProctrackType=proctrack/linuxproc\n").unwrap();
    let so = common::shared_object();
    fs::write(site.run.path().join("plugstack.conf"), format!("required {} OnError=warn\n", so.display())).unwrap();
    let check = || {
        let mut words = site.words();
        words[0] = "check".to_owned();
        let mut check = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        check.args(words).arg("--pam-directory").arg(&pam).env("SLURM_CONF", &slurm_conf).output().unwrap()
    };
    fs::write(pam.join("sshd"), "account required pam_slurm_adopt.so\n").unwrap();
    let missing = check();
    assert_eq!(missing.status.code(), Some(0), "{}", err(&missing));
    // The line of plugstack.conf.
    let line = format!("session required {} OnError=warn", so.display());
    let said = out(&missing);
    let hint = said.lines().find(|line| line.starts_with("pam ")).unwrap();
    assert!(hint.contains("ssh sessions are NOT fenced"), "{hint}");
    assert!(hint.contains(&format!("no session line of {} calls jobfence", pam.join("sshd").display())), "{hint}");
    assert!(hint.ends_with(&format!("add as its last line: {line}")), "{hint}");
    // If Slurm holds every process itself, nothing is missing; on other layouts it never does.
    if site.host().layout.kind() == LayoutKind::Unified {
        fs::write(&slurm_conf, "ProctrackType=proctrack/cgroup\n").unwrap();
        let overlay = check();
        assert!(out(&overlay).contains("overlay") && !out(&overlay).contains("pam "), "{}", out(&overlay));
        fs::write(&slurm_conf, "ProctrackType=proctrack/linuxproc\n").unwrap();
    }
    // The reported line is what check wants.
    fs::write(pam.join("sshd"), format!("account required pam_slurm_adopt.so\n{line}\n")).unwrap();
    let fine = check();
    assert_eq!(fine.status.code(), Some(0));
    assert!(!out(&fine).contains("pam "), "{}", out(&fine));
    // The line that was reported before is dangerous, whatever holds the processes.
    let [_, exec] = site.doors(&[]);
    fs::write(pam.join("sshd"), format!("session required pam_env.so user_readenv=1\n{}", exec.line)).unwrap();
    for proctrack in ["linuxproc", "cgroup"] {
        fs::write(&slurm_conf, format!("ProctrackType=proctrack/{proctrack}\n")).unwrap();
        let hole = out(&check());
        let said = format!("pam            ANY USER CAN BECOME ROOT: {}:2 runs", pam.join("sshd").display());
        assert!(hole.lines().any(|hole| hole.starts_with(&said) && hole.ends_with(&line)), "{hole}");
    }
}

/// What pam_systemd does to sessions, with a directory named like logind's.
struct Logind {
    /// One in each hierarchy that is used.
    dirs: Vec<PathBuf>,
    path: String,
}

impl Logind {
    fn new(site: &Site) -> Self {
        let host = site.host();
        let path = format!("{}-out/user.slice", site.base.name);
        let used = host.hierarchies(&fence::controllers(&site.config)).unwrap();
        let dirs: Vec<_> = used.iter().map(|hierarchy| hierarchy.mount.join(&path)).collect();
        dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        Self { dirs, path: format!("/{path}") }
    }

    /// The command that moves a process there.
    fn moves(&self, pid: &str) -> String {
        self.dirs.iter().map(|dir| format!("echo {pid} >{}/cgroup.procs; ", dir.display())).collect()
    }

    /// The PAM line that moves the session.
    fn line(&self, site: &Site) -> String {
        let script = site.run.path().join("pam_systemd");
        fs::write(&script, self.moves("$PPID")).unwrap();
        format!("session required pam_exec.so /bin/sh {}\n", script.display())
    }

    fn has(&self, pid: i32) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        cgroups.lines().any(|line| line.ends_with(&format!(":{}", self.path)))
    }
}

impl Drop for Logind {
    fn drop(&mut self) {
        remove(&self.dirs, 2);
    }
}

/// A scheduler's directories, in each hierarchy that is used.
struct Leaves(Vec<PathBuf>);

impl Drop for Leaves {
    fn drop(&mut self) {
        remove(&self.0, 4);
    }
}

/// Removes these directories, and so many above each, as soon as they hold no process.
fn remove(leaves: &[PathBuf], depth: usize) {
    let deadline = common::soon();
    for leaf in leaves {
        while fs::remove_dir(leaf).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        leaf.ancestors().take(depth).skip(1).for_each(|above| _ = fs::remove_dir(above));
    }
}

impl Step {
    /// A shell that enters the step and then runs the rest.
    fn shell(&self, site: &Site, then: &str) -> [String; 3] {
        let host = site.host();
        let used = host.hierarchies(&fence::controllers(&site.config)).unwrap();
        let mounts = used.iter().map(|hierarchy| hierarchy.mount.display().to_string());
        let moves: String = mounts.map(|mount| format!("echo $$ >{mount}{}/cgroup.procs; ", self.path)).collect();
        ["/bin/sh".to_owned(), "-c".to_owned(), format!("{moves}{then}")]
    }
}

/// A stack with the module behind the line that moves the session, and optionally before it.
fn stack(site: &Site, logind: &Logind, word: &str, is_before: bool) -> String {
    let [module, _] = site.doors(&[]);
    let line = format!("{}{word}\n", module.line.trim_end());
    format!("{}{}{line}", if is_before { line.as_str() } else { "" }, logind.line(site))
}

/// How a process in a step starts the program that opens a session: by becoming it, or as its child.
const BECOMES: &str = "exec \"$0\" \"$@\"";
const WAITS: &str = "\"$0\" \"$@\" <&0; true";

#[test]
fn a_session_from_within_a_job_is_put_back_into_it() {
    let site = Site::new("back");
    let logind = Logind::new(&site);
    let step = site.step(NOBODY, "1", "0");
    // The session's user does not matter, and has no job of its own.
    for (user, word, is_before, how) in [
        ("nobody", " stay", true, BECOMES),
        ("games", " stay", true, BECOMES),
        ("games", "", true, BECOMES),
        ("nobody", " stay", false, WAITS),
        ("games", "", false, WAITS),
    ] {
        let by = step.shell(&site, how);
        let by: Vec<&str> = by.iter().map(String::as_str).collect();
        let mut session = site.session_by(&by, user, &stack(&site, &logind, word, is_before), 0, &[]);
        assert_eq!(session.opened, GRANTED, "{user}{word} {how}");
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", session.pid())).unwrap();
        let pid = if how == WAITS { children.trim().parse().unwrap() } else { session.pid() };
        assert!(
            step.has(&site, pid),
            "{user}{word} {how}: {}",
            fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
        );
        session.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(session.lines.next().unwrap().unwrap(), GRANTED);
        assert!(session.child.wait().unwrap().success(), "{user}{word} {how}");
    }
}

/// pam_slurm_adopt has put the session there.
#[test]
fn a_session_in_slurms_own_cgroup_is_put_back_into_it() {
    let site = Site::new("overlay");
    let logind = Logind::new(&site);
    let host = site.host();
    let used = host.hierarchies(&fence::controllers(&site.config)).unwrap();
    // A later run of the tests recognises this run's leftovers by the pid, a word of its own.
    let top = format!("jobfence-overlay-{}-step", std::process::id());
    let place = |version| match version {
        Version::V1 => format!("/slurm_{top}/uid_65534/job_1/step_extern"),
        Version::V2 => format!("/{top}_slurmstepd.scope/job_1/step_extern/user"),
    };
    let leaves =
        Leaves(used.iter().map(|h| PathBuf::from(format!("{}{}", h.mount.display(), place(h.version)))).collect());
    leaves.0.iter().for_each(|leaf| fs::create_dir_all(leaf).unwrap());
    let moves: String = leaves.0.iter().map(|leaf| format!("echo $$ >{}/cgroup.procs; ", leaf.display())).collect();
    let by = ["/bin/sh", "-c", &format!("{moves}{BECOMES}")];
    for word in ["", " stay"] {
        let session = site.session_by(&by, "nobody", &stack(&site, &logind, word, true), 0, &[]);
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", session.pid())).unwrap();
        let is_inside = used.iter().any(|h| cgroups.lines().any(|line| line.ends_with(&place(h.version))));
        let is_out = logind.has(session.pid());
        let opened = session.opened.clone();
        session.close();
        assert_eq!((opened.as_str(), is_inside, is_out), (GRANTED, true, false), "{cgroups}");
    }
}

#[test]
fn a_session_that_comes_from_no_job_is_where_pam_puts_it() {
    let site = Site::new("elsewhere");
    let logind = Logind::new(&site);
    let step = site.step(NOBODY, "1", "extern");
    let stays = site.session("nobody", &stack(&site, &logind, " stay", true), &[]);
    assert_eq!(stays.opened, GRANTED);
    assert!(logind.has(stays.pid()) && !step.has(&site, stays.pid()));
    stays.close();
    // Without the word it is an ssh session, whose user has a job.
    let ssh = site.session("nobody", &stack(&site, &logind, "", true), &[]);
    assert_eq!(ssh.opened, GRANTED);
    assert!(step.has(&site, ssh.pid()));
    ssh.close();
    // Root's own session, also from within a job, and with any configuration.
    let by = step.shell(&site, BECOMES);
    let by: Vec<&str> = by.iter().map(String::as_str).collect();
    let broken = stack(&site, &logind, " Nonsense=1 stay", true);
    let root = site.session_by(&by, "root", &broken, 0, &[]);
    assert_eq!(root.opened, GRANTED);
    assert!(logind.has(root.pid()));
    root.close();
    let denied = site.session("nobody", &broken, &[]);
    assert!(denied.opened.contains("jobfence: PAM argument 3, column 1: "), "{}", denied.opened);
    denied.close();
}

/// The real user of atd, and that of su, is not root.
#[test]
fn a_daemon_with_roots_rights_and_another_real_user_opens_sessions() {
    let site = Site::new("effective");
    let step = site.step(NOBODY, "1", "extern");
    let [module, _] = site.doors(&[]);
    let becomes = "import os, sys; os.setresuid(1, 0, 0); os.execv(sys.argv[1], sys.argv[1:])";
    let by = ["/usr/bin/python3", "-S", "-c", becomes];
    let session = site.session_by(&by, "nobody", &module.line, 0, &[]);
    assert_eq!(session.opened, GRANTED);
    assert!(step.has(&site, session.pid()));
    session.close();
}

/// No job could hold the processes of such a session.
#[test]
fn a_session_whose_job_has_ended_meanwhile_is_denied() {
    let site = Site::new("ended");
    let logind = Logind::new(&site);
    let mut step = site.step(NOBODY, "1", "0");
    let (out, go) = (site.run.path().join("out"), site.run.path().join("go"));
    let wait = site.run.path().join("wait");
    fs::write(&wait, format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", out.display(), go.display())).unwrap();
    let [module, _] = site.doors(&[]);
    let line = format!("{} stay\n", module.line.trim_end());
    let waits = format!("session required pam_exec.so /bin/sh {}\n", wait.display());
    let by = step.shell(&site, BECOMES);
    let by: Vec<&str> = by.iter().map(String::as_str).collect();
    let session = std::thread::scope(|scope| {
        scope.spawn(|| {
            common::until("the session is outside", || out.exists());
            step.close();
            fs::write(&go, "").unwrap();
        });
        site.session_by(&by, "nobody", &format!("{line}{}{waits}{line}", logind.line(&site)), 0, &[])
    });
    assert!(session.opened.starts_with(&format!(r#"{{"answer": {PAM_SESSION_ERR}, "said": ["#)), "{}", session.opened);
    session.close();
}

#[test]
fn what_a_job_has_started_in_user_slice_is_fetched_back() {
    let site = Site::new("fetch");
    let logind = Logind::new(&site);
    let step = site.step(NOBODY, "1", "0");
    // Each prints the pid of a process that is outside; the shell in the step waits for it, or is gone.
    let outside = |words: &str, then: &str| {
        // Processes that an administrator moved elsewhere are in no directory of logind.
        let moves = if words.contains(&BIN.to_string()) {
            logind.moves("$$").replace("/user.slice", "")
        } else {
            logind.moves("$$")
        };
        let begin = format!("{moves}exec setpriv {words} --clear-groups sh -c 'echo $$; exec sleep 1000'");
        let [shell, option, script] = step.shell(&site, &format!("sh -c \"$0\" & {then}"));
        let mut shell = Command::new(shell)
            .args([option, script, begin])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Sleeper(shell), line.trim().parse::<i32>().unwrap())
    };
    let [users, games, bins] = [NOBODY, GAMES, BIN].map(|uid| format!("--reuid={uid}"));
    let (_shell, elsewhere) = outside(&bins, "wait");
    let all = [outside(&users, "wait"), outside(&games, "wait"), outside("--reuid=0", "wait"), outside(&users, "exit")];
    let [(_, own), (_, anothers), (_, roots), (mut gone, orphan)] = all;
    gone.0.wait().unwrap();
    let mut unrelated = Sleeper::of(NOBODY);
    for dir in &logind.dirs {
        fs::write(dir.join("cgroup.procs"), unrelated.pid().to_string()).unwrap();
    }
    let fetched = fetch_back(&site.host(), &site.config);
    let place = |pid: i32| (step.has(&site, pid), logind.has(pid));
    let places = [own, anothers, roots, orphan, unrelated.pid()].map(place);
    let is_let_alone = !step.has(&site, elsewhere);
    unrelated.0.kill().unwrap();
    unrelated.0.wait().unwrap();
    for pid in [own, anothers, roots, orphan, elsewhere] {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
    let fetched = fetched.unwrap();
    assert!(is_let_alone, "{fetched:?}");
    let (inside, out) = ((true, false), (false, true));
    assert_eq!(places, [inside, inside, out, out, out], "{fetched:?}");
    let expected = [own, anothers].map(|pid| Ok(TakenBack { pid, path: step.path.clone() }));
    assert!(expected.iter().all(|one| fetched.contains(one)), "{fetched:?}");
}

/// The pid of a process that a session is to be made of can be reused at the last moment.
#[test]
fn who_gets_the_number_of_a_session_is_put_back() {
    if Command::new("strace").arg("-V").output().is_err() {
        return common::skip("strace is not here");
    }
    let site = Site::new("stranger");
    let step = site.step(NOBODY, "1", "extern");
    let adopt = |pid: i32| site.command(&["--pid", &pid.to_string()]);
    let first = Sleeper::of(NOBODY);
    let files = common::opened_until_its_move(&adopt(first.pid()));
    let mut sleeper = Sleeper::of(NOBODY);
    let pid = sleeper.pid();
    let cgroup = || fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let before = cgroup();
    let adopting = common::Stopped::behind(&adopt(pid), files);
    sleeper.0.kill().unwrap();
    sleeper.0.wait().unwrap();
    let _stranger = common::start_under(pid, GAMES).expect("the number is free");
    let (status, said) = adopting.go_on();
    assert_eq!(cgroup(), before, "{said}");
    assert!(said.contains("has ended while it was put in"), "{said}");
    assert_eq!(status.code(), Some(1));
    drop(step);
}
