// SPDX-License-Identifier: GPL-2.0-or-later
//! What is left when its owner died midway, or lost its record: all of it is removed, and nothing of others.
//!
//! Owners that die are this same test program, run again with `JOBFENCE_TEST_ROLE` set. The janitor examines the whole host, so only one
//! test at a time, of all test programs, has leftovers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::cgroup::kill::{Members, kill_all, signal_all};
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::membership::Membership;
use jobfence::cgroup::{mark, walk};
use jobfence::config::{Config, SwapSpace};
use jobfence::fence::own::{self, Own, Untouched};
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller, Launch, Reaped};
use jobfence::job::{Id, JobKey, JobOnNode, Name};
use jobfence::record::job::JobRecords;
use jobfence::record::tracked::{Others, Tracked, TrackedRecords, Tracker, VARIABLE, mark as mark_of};
use jobfence::record::{Record, Records};
use jobfence::schedulers::ALL;
use jobfence::schedulers::slurm::daemon_children;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{self, Owner};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

mod common;
use common::soon;

fn user() -> u32 {
    common::uids()
}
/// Another user, whose processes must not be affected.
fn stranger() -> u32 {
    common::uids() + 1
}

struct Site {
    config: Config,
    /// The same in other tests of other runs.
    name: String,
    _run: tempfile::TempDir,
    _base: Option<common::Base>,
}

impl Site {
    fn new(test: &str) -> Self {
        let run = tempfile::tempdir().unwrap();
        let name = format!("jobfence-test-{}-{test}", std::process::id());
        let base = common::Base::alone(&name);
        let config =
            Config { cgroup_base: Some(base.name.clone()), run_dir: run.path().join("run"), ..Config::default() };
        let name = format!("jft{}", std::process::id());
        Self { config, name, _run: run, _base: Some(base) }
    }

    fn host(&self) -> Host {
        Host::read(&self.config).unwrap()
    }

    fn reap(&self, who: JanitorCaller<'_>) -> Reaped {
        janitor::reap(&self.host(), &self.config, ALL, who, soon()).unwrap()
    }

    fn role(&self, role: &str) -> Owning {
        // A session of its own, as slurmd gives each step daemon.
        let mut child = Command::new("setsid")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env("JOBFENCE_TEST_ROLE", role)
            .env(common::UIDS, user().to_string())
            .env("JOBFENCE_TEST_BASE", self.config.cgroup_base.as_deref().unwrap())
            .env("JOBFENCE_TEST_RUN", &self.config.run_dir)
            .env("JOBFENCE_TEST_NAME", &self.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The harness prints something first.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pids = lines.find_map(|line| line.unwrap().split_once("pids: ").map(|(_, pids)| pids.to_owned())).unwrap();
        Owning { child, pids: pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect() }
    }

    /// jobfence's directories and records that exist, and directories named like Slurm's own.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for hierarchy in &self.host().layout.hierarchies {
            walk(&hierarchy.mount.join(self.config.cgroup_base.as_deref().unwrap()), &mut left);
            walk(&hierarchy.mount.join(format!("{}.slice/n_slurmstepd.scope", self.name)), &mut left);
            walk(&hierarchy.mount.join(format!("slurm_{}", self.name)), &mut left);
        }
        walk_files(&self.config.run_dir, &mut left);
        left.retain(|path| {
            let of_hold = ["hold", "hold.lock/early_move", "hold.only/lock"];
            !path.ends_with("roll/list") && !of_hold.iter().any(|name| path.ends_with(name))
        });
        left
    }

    /// Removes directories like Slurm's, which are empty and unused now.
    fn remove_tops(&self) {
        for hierarchy in &self.host().layout.hierarchies {
            for top in [
                format!("{0}.slice/n_slurmstepd.scope", self.name),
                format!("{}.slice", self.name),
                format!("slurm_{}", self.name),
            ] {
                let _ = fs::remove_dir(hierarchy.mount.join(top));
            }
        }
    }
}

/// A process that owns a step, and the step's processes.
struct Owning {
    child: Child,
    pids: Vec<i32>,
}

impl Owning {
    fn die(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn all_live(&self) -> bool {
        self.pids.iter().all(|pid| lives(*pid))
    }

    fn none_lives(&self) -> bool {
        !self.pids.iter().any(|pid| lives(*pid))
    }
}

impl Drop for Owning {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in &self.pids {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
    }
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), found);
            found.push(entry.path());
        }
    }
}

fn walk_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => walk_files(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

/// The kernel shows a new process's name some moments before its arguments.
fn until_titled(pid: i32, title: &str) {
    let deadline = soon();
    while !fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().starts_with(title) {
        assert!(Instant::now() < deadline, "{title}");
    }
}

fn lives(pid: i32) -> bool {
    Owner::from_pid(&Dir::open("/proc").unwrap(), pid).unwrap().is_some()
}

fn launch(daemon: &Membership) -> JanitorCaller<'_> {
    JanitorCaller::Launch(Launch { daemon, key: None, all: false })
}

fn key() -> JobKey {
    JobKey { node: None, uid: user(), job: Id::new("1").unwrap(), step: Id::new("0").unwrap() }
}

fn sleep() -> Command {
    let mut command = Command::new("/bin/sleep");
    command.arg("1000").uid(user()).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// What a step daemon does, until it is killed.
#[test]
#[allow(clippy::zombie_processes)] // nobody here outlives it to see them
fn role() {
    let Ok(role) = std::env::var("JOBFENCE_TEST_ROLE") else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let config = Config {
        cgroup_base: Some(variable("JOBFENCE_TEST_BASE")),
        run_dir: variable("JOBFENCE_TEST_RUN").into(),
        ..Config::default()
    };
    let host = Host::read(&config).unwrap();
    let pids = match role.as_str() {
        "own" => {
            let mut fence = common::open(&host, &config, &key(), None).unwrap();
            let child = sleep().spawn().unwrap();
            fence.attach(&host, child.id().cast_signed(), None).unwrap();
            std::mem::forget(fence);
            vec![child.id().cast_signed()]
        }
        "several" => {
            for step in ["2", "job", "0", "shepherd", "1"] {
                let key = JobKey { step: Id::new(step).unwrap(), ..key() };
                std::mem::forget(common::open(&host, &config, &key, None).unwrap());
            }
            vec![]
        }
        // Nothing is limited, so that as little as possible is in jobfence's directories.
        "overlay" => overlay(&host, &config, &variable("JOBFENCE_TEST_NAME"), false),
        "both" => overlay(&host, &config, &variable("JOBFENCE_TEST_NAME"), true),
        "tracked" => {
            let mut tracker = Tracker::begin(&host, &config.run_dir, &key()).unwrap();
            let owner = Owner::this(&host.proc).unwrap();
            // In the task's own session, its child; in another session, an orphan.
            let script = "sleep 1000 & echo $!; setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' & wait";
            let mut task = Command::new("/bin/sh");
            task.args(["-c", script]).env(VARIABLE, mark_of(&host.boot_id, owner)).uid(user()).process_group(0);
            let mut task = task.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
            tracker.add(Owner::from_pid(&host.proc, task.id().cast_signed()).unwrap().unwrap());
            let said = BufReader::new(task.stdout.take().unwrap()).lines().take(2);
            let said: Vec<i32> = said.map(|pid| pid.unwrap().parse().unwrap()).collect();
            std::mem::forget(tracker);
            [vec![task.id().cast_signed()], said].concat()
        }
        role => panic!("no such role: {role}"),
    };
    println!("pids: {}", pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    std::thread::sleep(Duration::from_secs(1000));
}

/// Makes Slurm's directories as its daemon does, goes where the daemon would be, and puts a task into them.
#[allow(clippy::zombie_processes)]
fn overlay(host: &Host, config: &Config, name: &str, has_quota: bool) -> Vec<i32> {
    let task = sleep().spawn().unwrap();
    let put = |dir: &Path, pid: u32| fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
    for hierarchy in &host.layout.hierarchies {
        let mount = &hierarchy.mount;
        if hierarchy.version == Version::V2 {
            let step = mount.join(format!("{name}.slice/n_slurmstepd.scope/job_1/step_0"));
            fs::create_dir_all(step.join("slurm")).unwrap();
            fs::create_dir_all(step.join("user/task_0")).unwrap();
            put(&step.join("slurm"), std::process::id());
            put(&step.join("user/task_0"), task.id());
        } else if hierarchy.has("freezer") || hierarchy.has("memory") {
            let step = mount.join(format!("slurm_{name}/uid_{}/job_1/step_0", user()));
            fs::create_dir_all(step.join("task_0")).unwrap();
            put(&step.join("task_0"), task.id());
        }
    }
    let daemon = Membership::read(&host.proc, std::process::id().cast_signed()).unwrap();
    let off = Config {
        constrain_cpu_quota: has_quota,
        constrain_ram_space: false,
        constrain_swap_space: SwapSpace::No,
        ..config.clone()
    };
    let mut fence = common::open(host, &off, &key(), Some(&daemon)).unwrap();
    let pid = task.id().cast_signed();
    assert_eq!(fence.attach(host, pid, None).unwrap(), vec![]);
    std::mem::forget(fence);
    vec![pid]
}

#[test]
fn a_lost_record_is_written_again_and_then_counts() {
    let site = Site::new("lost");
    let mut owner = site.role("own");
    let name = &format!("uid_{},job_1,step_0", user());
    let text = fs::read_to_string(site.config.run_dir.join(name)).unwrap();
    for who in [JanitorCaller::command(), JanitorCaller::Daemon] {
        fs::remove_dir_all(&site.config.run_dir).unwrap();
        let reaped = site.reap(who);
        assert_eq!((reaped.removed, reaped.alive, reaped.failed), (vec![], 1, vec![]));
        assert_eq!(fs::read_to_string(site.config.run_dir.join(name)).unwrap(), text);
    }
    assert!(owner.all_live());
    fs::remove_dir_all(&site.config.run_dir).unwrap();
    owner.die();
    assert!(owner.all_live(), "its processes outlive it");
    // The next launch finds all records lost, although a prolog has made their directory again.
    JobRecords::open(&site.config.run_dir).unwrap();
    let here = Membership::read(&site.host().proc, std::process::id().cast_signed()).unwrap();
    assert_eq!(site.reap(launch(&here)).removed, [format!("uid_{}/job_1/step_0", user())]);
    assert!(owner.none_lives());
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn the_steps_of_a_job_go_backwards_by_name_as_a_shepherd_before_its_job() {
    let site = Site::new("backwards");
    site.role("several").die();
    let removed = site.reap(JanitorCaller::command()).removed;
    let names = ["shepherd", "job", "2", "1", "0"];
    assert_eq!(removed, names.map(|step| format!("uid_{}/job_1/step_{step}", user())));
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn at_the_end_of_a_job_its_own_steps_go() {
    let site = Site::new("job");
    let mut owner = site.role("own");
    let reap = |job: u32, node: Option<&str>| {
        let id = JobOnNode { node: node.map(|node| Name::new(node).unwrap()), job: job.into() };
        janitor::reap_job(&site.host(), &site.config, &id, soon()).unwrap()
    };
    assert_eq!((reap(1, None).alive, owner.all_live()), (1, true));
    owner.die();
    assert_eq!((reap(11, None), reap(1, Some("n1"))), (Reaped::default(), Reaped::default()));
    assert!(owner.all_live(), "another job's, or another node's");
    assert_eq!(reap(1, None).removed, [format!("uid_{}/job_1/step_0", user())]);
    assert!(owner.none_lives());
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn where_no_cgroups_can_be_seen_their_records_stay_and_processes_are_looked_after() {
    let site = Site::new("blind");
    let mut fenced = site.role("own");
    let mut tracked = site.role("tracked");
    let config = Config { cgroup_mountpoint: "/nonexistent".into(), ..site.config.clone() };
    let reap = |who| {
        let (host, why) = Host::read_what_there_is(&config).unwrap();
        assert!(why.is_some() && !host.has_cgroups());
        janitor::reap(&host, &config, ALL, who, soon()).unwrap()
    };
    assert_eq!((reap(JanitorCaller::command()).alive, tracked.all_live()), (2, true));
    fenced.die();
    tracked.die();
    let reaped = reap(JanitorCaller::Daemon);
    assert_eq!(reaped.failed.len(), 1, "{reaped:?}");
    assert!(reaped.failed[0].contains("no cgroups can be seen"), "{reaped:?}");
    assert!(tracked.none_lives() && fenced.all_live(), "{reaped:?}");
    assert!(site.config.run_dir.join(format!("uid_{},job_1,step_0", user())).exists());
    assert_eq!(site.reap(JanitorCaller::command()).removed, [format!("uid_{}/job_1/step_0", user())]);
    assert_eq!((site.left(), fenced.none_lives()), (Vec::new(), true));
}

#[test]
fn what_nobody_knows_is_removed_when_it_is_empty_and_never_killed() {
    let site = Site::new("unknown");
    let host = site.host();
    let hierarchy = host.hierarchies(&[]).unwrap()[0];
    let base = hierarchy.mount.join(site.config.cgroup_base.as_deref().unwrap());
    // A step that no step daemon of this machine serves: there may be private Slurms.
    let of = |step: &str| base.join(format!("uid_{0}/job_{0}", user())).join(step);
    fs::create_dir_all(of("step_0/below")).unwrap();
    fs::create_dir_all(of("step_1")).unwrap();
    fs::create_dir_all(base.join(format!("n1/uid_{0}/job_{0}1/step_0", user()))).unwrap();
    let mut stranger = sleep().spawn().unwrap();
    fs::write(of("step_1").join("cgroup.procs"), stranger.id().to_string()).unwrap();
    // Another step's mark does not count.
    mark::set(&Dir::open(of("step_0")).unwrap(), "jobfence-record 1\n").unwrap();
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!((reaped.removed.len(), reaped.failed.len()), (0, 1), "{reaped:?}");
    assert!(reaped.failed[0].contains("neither a record nor a mark names its owner"), "{reaped:?}");
    assert_eq!(stranger.try_wait().unwrap(), None);
    assert_eq!(site.left().iter().filter(|path| path.to_string_lossy().contains("step_")).count(), 1);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    while fs::read_to_string(of("step_1").join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty()) {}
    assert_eq!(site.reap(JanitorCaller::command()).failed, Vec::<String>::new());
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_the_scheduler_left_of_a_dead_step_goes_and_a_living_ones_stays() {
    let mut site = Site::new("slurms");
    let mut owner = site.role("overlay");
    let all = site.left();
    assert!(all.iter().any(|path| path.ends_with("step_0")), "{all:?}");
    assert_eq!(site.reap(JanitorCaller::command()).removed, Vec::<String>::new());
    assert_eq!((site.left(), owner.all_live()), (all.clone(), true));
    owner.die();
    assert!(owner.all_live(), "its processes outlive it");

    // A new daemon of the same step may be about to use the directories.
    let temp = tempfile::tempdir().unwrap();
    let program = temp.path().join("slurmstepd");
    fs::copy("/bin/sleep", &program).unwrap();
    let served = |title: &str| {
        let child = Command::new(&program).arg0(title).arg("1000").spawn().unwrap();
        Owning { child, pids: Vec::new() }
    };
    for (title, serves) in [("slurmstepd: [1.0]", true), ("slurmstepd: [1.0+2]", true), ("slurmstepd: [1.01]", false)] {
        let mut daemon = served(title);
        let pid = daemon.child.id().cast_signed();
        until_titled(pid, title);
        if serves {
            site.reap(JanitorCaller::command());
            assert!(owner.all_live(), "{title}");
        } else {
            site.config.reap_scheduler_leftovers = false;
            site.reap(JanitorCaller::command());
            assert!(owner.none_lives(), "{title}");
            let slurms = site.left().iter().filter(|path| path.ends_with("step_0")).count();
            assert!(slurms > 0, "Slurm's own were to stay");
        }
        daemon.die();
    }
    site.config.reap_scheduler_leftovers = true;
    // All time is already used up, and an ordinary step is removed all the same.
    let host = site.host();
    let reaped = janitor::reap(&host, &site.config, ALL, JanitorCaller::Daemon, Instant::now()).unwrap();
    assert!(!reaped.removed.is_empty() && reaped.failed.is_empty(), "{reaped:?}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
    site.remove_tops();
}

#[test]
fn a_dead_step_has_one_line_in_the_usage_log_wherever_it_was() {
    let mut site = Site::new("ledger");
    let log = site._run.path().join("log/usage.jsonl");
    site.config.usage_log = Some(log.clone());
    for (count, role) in (1..).zip(["own", "overlay", "both"]) {
        let mut owner = site.role(role);
        site.reap(JanitorCaller::command());
        assert_eq!(fs::read_to_string(&log).unwrap_or_default().lines().count(), count - 1, "{role} lives");
        owner.die();
        site.reap(JanitorCaller::command());
        site.reap(JanitorCaller::command());
        assert!(owner.none_lives(), "{role}");
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!(text.lines().count(), count, "{role}: {text}");
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&line["job"], &line["step"], &line["uid"]), (&"1".into(), &"0".into(), &user().into()), "{line}");
        assert_eq!((&line["end"], &line["exit_status"]), (&"reaped".into(), &serde_json::Value::Null), "{line}");
        for member in ["cpu_seconds", "wall_seconds", "job_cpu_seconds", "cpu_pressure_some_seconds"] {
            assert!(line[member].is_number(), "{role}: {member} in {line}");
        }
    }
    site.remove_tops();
}

/// As if an administrator's login on the node was put into the dead step (pam_slurm_adopt). Frozen with it, the janitor would keep its
/// locks for ever.
#[test]
fn a_janitor_in_the_schedulers_directory_of_a_dead_step_leaves_that_alone() {
    let site = Site::new("within");
    let mut owner = site.role("overlay");
    let freezer = site.host().layout.hierarchies.iter().find(|hierarchy| hierarchy.has("freezer")).cloned();
    owner.die();
    if let Some(freezer) = freezer {
        let step = freezer.mount.join(format!("slurm_{}/uid_{}/job_1/step_0", site.name, user()));
        let base = common::Base { name: site.config.cgroup_base.clone().unwrap(), holder: None, lease: None };
        let reap = common::command("reap", &base, site.config.run_dir.parent().unwrap());
        let mut within = Command::new("/bin/sh");
        within.args(["-c", "echo $$ >$0/task_0/cgroup.procs; exec \"$@\""]).arg(&step).arg(reap.get_program());
        let mut within = within.args(reap.get_args()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = soon();
        while within.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                fs::write(step.join("freezer.state"), "THAWED").unwrap();
                panic!("it does not end");
            }
        }
        let said = std::io::read_to_string(within.stderr.take().unwrap()).unwrap();
        assert_eq!(within.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("this process is itself in the step that is to be removed"), "{said}");
    }
    assert_eq!(site.reap(JanitorCaller::command()).failed, Vec::<String>::new());
    assert_eq!((site.left(), owner.none_lives()), (Vec::new(), true));
    site.remove_tops();
}

#[test]
fn a_job_that_slurm_left_without_a_step_goes_when_it_is_nobodys() {
    let site = Site::new("shell");
    let mut owner = site.role("overlay");
    owner.die();
    for pid in &owner.pids {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    }
    // As far as Slurm removes them. Inner ones come first.
    for step in site.left().iter().filter(|path| path.components().any(|name| name.as_os_str() == "step_0")) {
        let deadline = soon();
        while fs::remove_dir(step).is_err() && step.exists() && Instant::now() < deadline {}
    }
    let jobs: Vec<PathBuf> = site.left().into_iter().filter(|path| path.ends_with("job_1")).collect();
    assert!(!jobs.is_empty(), "{:?}", site.left());
    let of = |job: &Path| mark::get(&Dir::open(job).unwrap()).unwrap().expect("the job has no mark");
    let dead: Vec<String> = jobs.iter().map(|job| of(job)).collect();
    // Another step has begun there since.
    let mut living = Record::parse(&dead[0]).unwrap();
    living.owner = Owner::this(&site.host().proc).unwrap();
    for job in &jobs {
        mark::set(&Dir::open(job).unwrap(), &living.to_string()).unwrap();
    }
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(reaped.failed, Vec::<String>::new());
    assert!(jobs.iter().all(|job| job.exists()), "{reaped:?}");
    // On v1 a daemon is in there before its step is.
    let mut daemon = Owning { child: sleep().spawn().unwrap(), pids: Vec::new() };
    for (job, dead) in jobs.iter().zip(&dead) {
        mark::set(&Dir::open(job).unwrap(), dead).unwrap();
        fs::write(job.join("cgroup.procs"), daemon.child.id().to_string()).unwrap();
    }
    assert_eq!(site.reap(JanitorCaller::command()), Reaped::default());
    assert!(jobs.iter().all(|job| job.exists()) && daemon.child.try_wait().unwrap().is_none());
    daemon.die();
    let reaped = site.reap(JanitorCaller::Daemon);
    assert_eq!((reaped.removed.len(), reaped.failed), (jobs.len(), Vec::new()));
    assert_eq!(site.left(), Vec::<PathBuf>::new());
    site.remove_tops();
}

#[test]
fn in_the_schedulers_directories_a_stranger_keeps_them() {
    let site = Site::new("stranger");
    let mut owner = site.role("overlay");
    let stranger = Command::new("/bin/sleep").arg("1000").uid(stranger()).spawn().unwrap();
    let mut stranger = Owning { child: stranger, pids: Vec::new() };
    // Where Slurm's daemon would be.
    let is_daemons = |path: &PathBuf| {
        path.ends_with("step_0/slurm") || path.ends_with("step_0") && path.to_string_lossy().contains("/slurm_")
    };
    for dir in site.left().iter().filter(|path| is_daemons(path)) {
        fs::write(dir.join("cgroup.procs"), stranger.child.id().to_string()).unwrap();
    }
    owner.die();
    site.reap(JanitorCaller::command());
    assert_eq!(stranger.child.try_wait().unwrap(), None);
    assert!(site.left().iter().any(|path| path.ends_with("step_0")));
    stranger.die();
    let empty = || site.reap(JanitorCaller::command()).failed.is_empty() && site.left().is_empty();
    let deadline = soon();
    while !empty() && Instant::now() < deadline {}
    assert_eq!((site.left(), owner.none_lives()), (Vec::new(), true));
    site.remove_tops();
}

#[test]
fn a_step_without_a_fence_is_tracked_and_ended_when_its_daemon_is_dead() {
    let site = Site::new("tracked");
    let mut owner = site.role("tracked");
    // The same user's, of no step; and another user's that bears the mark.
    let this = Owner::from_pid(&site.host().proc, owner.child.id().cast_signed()).unwrap().unwrap();
    let stolen = mark_of(&site.host().boot_id, this);
    let mut others = [
        sleep().spawn().unwrap(),
        Command::new("/bin/sleep").arg("1000").uid(stranger()).env(VARIABLE, stolen).spawn().unwrap(),
    ];
    assert_eq!(site.reap(JanitorCaller::command()).alive, 1);
    assert!(owner.all_live());
    owner.die();
    // A process that has left its ancestors is found because it was seen before, or by the mark.
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(reaped.failed, Vec::<String>::new());
    assert!(reaped.removed[0].starts_with(&format!("uid_{}/job_1/step_0 (", user())), "{reaped:?}");
    assert!(owner.none_lives(), "{:?}", owner.pids);
    for other in &mut others {
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn whom_a_record_of_another_boot_names_is_somebody_else() {
    let site = Site::new("boot");
    let mut owner = site.role("tracked");
    owner.die();
    let mut records = Vec::new();
    walk_files(&site.config.run_dir, &mut records);
    let text = fs::read_to_string(&records[0]).unwrap();
    let boot = site.host().boot_id;
    assert!(text.contains(&boot), "{text}");
    fs::write(&records[0], text.replace(&boot, "another-boot")).unwrap();
    // Their mark still names this boot, so a janitor that reads it finds them.
    assert_eq!(site.reap(JanitorCaller::Daemon), Reaped::default());
    assert!(owner.all_live());
    assert_eq!(site.left(), Vec::<PathBuf>::new());
    fs::write(&records[0], text).unwrap();
    site.reap(JanitorCaller::command());
    assert!(owner.none_lives());
}

/// A user that owns a directory makes others in it, on v1 with switches that the user owns.
#[test]
fn whatever_users_make_below_is_ended_and_removed() {
    let site = Site::new("below");
    for controller in ["freezer", "pids"] {
        let layout = site.host().layout;
        let Some(hierarchy) = layout.hierarchies.iter().find(|h| h.version == Version::V1 && h.has(controller)) else {
            common::skip("no such v1 hierarchy");
            continue;
        };
        let top = hierarchy.mount.join(format!("jobfence-test-{}-below", std::process::id()));
        fs::create_dir_all(top.join("stopped")).unwrap();
        let strange = top.join(OsStr::from_bytes(b"\xff\xfe"));
        fs::create_dir(&strange).unwrap();
        let mut deep = Dir::open(&top).unwrap();
        for _ in 0..20 {
            let name = "d".repeat(240);
            deep.make(&name).unwrap();
            deep = deep.child(&name).unwrap().named(top.clone());
        }
        let mut children: Vec<Child> = (0..3).map(|_| sleep().spawn().unwrap()).collect();
        let pids: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
        fs::write(top.join("stopped/cgroup.procs"), &pids[0]).unwrap();
        fs::write(strange.join("cgroup.procs"), &pids[1]).unwrap();
        deep.write("cgroup.procs", &pids[2]).unwrap();
        if controller == "freezer" {
            fs::write(top.join("stopped/freezer.state"), "FROZEN").unwrap();
        }
        let dir = Dir::open(&top).unwrap();
        let freezer = (controller == "freezer").then_some(&dir);
        assert!(own::is_inhabited(&dir, Instant::now()));
        kill_all(Members { unified: None, freezer, any: &dir }, soon()).unwrap();
        let left = own::pids_below(&dir, soon()).unwrap();
        // Otherwise they wait for it, and the test for them.
        if controller == "freezer" {
            fs::write(top.join("stopped/freezer.state"), "THAWED").unwrap();
        }
        for child in &mut children {
            let _ = child.kill();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        walk::clear(&dir, soon()).unwrap();
        fs::remove_dir(&top).unwrap();
        assert_eq!(left, Vec::<i32>::new());
    }
}

/// Stopping and continuing a process takes longer than ending it. A process that is already stopped can be ended in no other way.
#[test]
fn few_processes_are_stopped_only_if_they_do_not_die_otherwise() {
    let site = Site::new("few");
    let layout = site.host().layout;
    let Some(hierarchy) = layout.hierarchies.iter().find(|h| h.version == Version::V1 && h.has("freezer")) else {
        return common::skip("no freezer of v1");
    };
    let name = format!("jobfence-test-{}-few", std::process::id());
    let top = hierarchy.mount.join(&name);
    // Whether the switch of `freezer` was used: either the directory's own, or one without any effect.
    let end = |is_stopped: bool| {
        fs::create_dir(&top).unwrap();
        let unheeded = tempfile::tempdir().unwrap();
        fs::write(unheeded.path().join("freezer.state"), "").unwrap();
        let (dir, beside) = (Dir::open(&top).unwrap(), Dir::open(unheeded.path()).unwrap());
        let mut children: Vec<Child> = (0..3).map(|_| sleep().spawn().unwrap()).collect();
        for child in &children {
            dir.write("cgroup.procs", &child.id().to_string()).unwrap();
        }
        if is_stopped {
            dir.write("freezer.state", "FROZEN").unwrap();
        }
        let freezer = Some(if is_stopped { &dir } else { &beside });
        kill_all(Members { unified: None, freezer, any: &dir }, soon()).unwrap();
        let left = own::pids_below(&dir, soon()).unwrap();
        // Otherwise they wait for it, and the test for them.
        dir.write("freezer.state", "THAWED").unwrap();
        for child in &mut children {
            let _ = child.kill();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        walk::remove(&Dir::open(&hierarchy.mount).unwrap(), &name, soon()).unwrap();
        assert_eq!(left, Vec::<i32>::new());
        !beside.read("freezer.state").unwrap().is_empty()
    };
    // A busy processor may not get to them in time.
    assert!((0..20).any(|_| !end(false)), "they were stopped each time");
    end(true);
}

/// If attaching fails between two hierarchies, a process is only in one, and can be stopped there.
#[test]
fn who_is_stopped_in_the_freezer_alone_is_ended_with_the_step() {
    let site = Site::new("stopped");
    let layout = site.host().layout;
    let name = format!("jobfence-test-{}-stopped", std::process::id());
    let levels = ["uid_1", "job_1", "step_0"].map(str::to_owned);
    let mut trees = Vec::new();
    for controller in ["pids", "freezer"] {
        let Some(hierarchy) = layout.hierarchies.iter().find(|h| h.version == Version::V1 && h.has(controller)) else {
            return common::skip("no such v1 hierarchy");
        };
        fs::create_dir_all(hierarchy.mount.join(&name).join(levels.join("/"))).unwrap();
        let mut dirs = vec![Dir::open(hierarchy.mount.join(&name)).unwrap()];
        for level in &levels {
            dirs.push(dirs.last().unwrap().child(level).unwrap());
        }
        trees.push(Own { hierarchy: hierarchy.clone(), dirs, class: None, untouched: Untouched::default() });
    }
    let mut child = sleep().spawn().unwrap();
    let step = trees.last().and_then(Own::step).unwrap();
    step.write("cgroup.procs", &child.id().to_string()).unwrap();
    step.write("freezer.state", "FROZEN").unwrap();
    let removed = own::remove(&trees.iter().collect::<Vec<_>>(), &levels, soon());
    // Otherwise it waits for that, and the test for it.
    let _ = step.write("freezer.state", "THAWED");
    let _ = child.kill();
    child.wait().unwrap();
    for tree in &trees {
        walk::remove(&Dir::open(&tree.hierarchy.mount).unwrap(), &name, soon()).unwrap();
    }
    removed.unwrap();
}

/// A daemon of Slurm does not read the environment of processes.
#[test]
fn whom_hold_has_seen_is_known_without_his_mark() {
    let site = Site::new("seen");
    let mut owner = site.role("tracked");
    site.reap(JanitorCaller::command());
    owner.die();
    let reaped = site.reap(JanitorCaller::Daemon);
    assert_eq!(reaped.failed, Vec::<String>::new());
    assert!(owner.none_lives(), "{:?}", owner.pids);
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn who_starts_processes_faster_than_they_are_ended_is_ended() {
    let site = Site::new("storm");
    let host = site.host();
    let script = "trap '' TERM HUP INT; while :; do (sleep 1000 & setsid sleep 1000 &) ; done";
    // An unused uid, since all of its processes are ended.
    let user = 2_000_000_000 + std::process::id();
    let mut storm = Command::new("/bin/bash");
    storm.args(["-c", &format!("ulimit -u 400; {script}")]).uid(user).process_group(0);
    let mut storm = storm.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let find = || -> jobfence::error::Result<Vec<Owner>> {
        let all = process::all(&host.proc)?;
        let is_users = |process: &&process::Process| process::uid(&host.proc, process.id.pid) == Some(user);
        Ok(all.iter().filter(is_users).map(|process| process.id).collect())
    };
    common::until("the storm", || find().unwrap().len() >= 10);
    let ended = process::end_all(&host.proc, find, soon()).unwrap();
    assert!(ended > 1, "{ended}");
    assert_eq!(storm.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(find().unwrap(), Vec::new());
}

/// Processes that get no signal while the others are stopped could start more than die.
#[test]
fn however_many_are_in_a_cgroup_all_get_the_signal_at_once() {
    let site = Site::new("signal");
    let host = site.host();
    let Some(hierarchy) = host.layout.hierarchies.iter().find(|hierarchy| hierarchy.has("freezer")) else {
        return common::skip("no freezer");
    };
    let path = hierarchy.mount.join(&host.base).join("many");
    fs::create_dir_all(path.join("more")).unwrap();
    let mut children: Vec<Child> = (0..600).map(|_| sleep().spawn().unwrap()).collect();
    for (number, child) in children.iter().enumerate() {
        let dir = if number % 3 == 0 { path.join("more") } else { path.clone() };
        fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    let dir = Dir::open(&path).unwrap();
    signal_all(Members { unified: None, freezer: Some(&dir), any: &dir }, soon()).unwrap();
    let deadline = soon();
    let mut living = children.len();
    while living > 0 && Instant::now() < deadline {
        living = children.iter_mut().filter_map(|child| child.try_wait().unwrap().is_none().then_some(())).count();
    }
    children.iter_mut().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    assert_eq!(living, 0);
    walk::remove(&Dir::open(hierarchy.mount.join(&host.base)).unwrap(), "many", soon()).unwrap();
}

/// Many more than are held at once.
#[test]
fn however_many_there_are_all_are_ended_and_nobody_stays_stopped() {
    let site = Site::new("many");
    let host = site.host();
    let mut children: Vec<Child> = (0..600).map(|_| sleep().spawn().unwrap()).collect();
    let ids: Vec<Owner> =
        children.iter().map(|child| Owner::from_pid(&host.proc, child.id().cast_signed()).unwrap().unwrap()).collect();
    let mut looks = Vec::new();
    let living = || {
        let found: Vec<Owner> = ids.iter().copied().filter(|id| id.is_alive(&host.proc).unwrap()).collect();
        looks.push(found.len());
        Ok(found)
    };
    assert_eq!(process::end_all(&host.proc, living, soon()).unwrap(), 600);
    // None dies before all are stopped: the rest could start more.
    assert_eq!(looks.get(..2), Some([600, 600].as_slice()), "{looks:?}");
    for child in &mut children {
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
    // A process that was found is stopped while its children are looked for. If that fails, it is killed all the same.
    let mut child = sleep().spawn().unwrap();
    let id = Owner::from_pid(&host.proc, child.id().cast_signed()).unwrap().unwrap();
    let mut looks = 0;
    let find = || {
        looks += 1;
        if looks == 1 {
            return Ok(vec![id]);
        }
        let deadline = soon();
        while !fs::read_to_string(format!("/proc/{}/stat", id.pid)).unwrap().contains(") T ") {
            assert!(Instant::now() < deadline, "it runs on");
        }
        Err(jobfence::error::Error::new("no descriptors"))
    };
    assert!(process::end_all(&host.proc, find, soon()).is_err());
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
}

/// A directory named as systemd names slurmd's, with only the processes that this test starts.
struct Daemons(PathBuf);

impl Daemons {
    fn make(site: &Site) -> Option<Self> {
        let unified = site.host().layout.unified()?.mount.clone();
        let dir = unified.join(format!("{}.slice/slurmd.service", site.name));
        fs::create_dir_all(&dir).unwrap();
        Some(Self(dir))
    }

    fn start(&self, command: &mut Command) -> Owning {
        let child = command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        fs::write(self.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        Owning { child, pids: Vec::new() }
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        // Also after a failed test: the next test's janitor finds a process that stays.
        let deadline = soon();
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
            }
        }
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

#[test]
fn a_mark_that_was_inherited_is_no_reason_to_end_who_has_a_daemon_of_his_own() {
    let site = Site::new("inherited");
    let Some(daemons) = Daemons::make(&site) else {
        return common::skip("no cgroup2");
    };
    let mut dead = Command::new("/bin/true").spawn().unwrap();
    let owner = Owner { pid: dead.id().cast_signed(), start: 1 };
    dead.wait().unwrap();
    let mark = mark_of(&site.host().boot_id, owner);
    let temp = tempfile::tempdir().unwrap();
    // A step daemon with a task, and a user's process that calls itself one.
    let program = temp.path().join("slurmstepd");
    fs::copy("/bin/bash", &program).unwrap();
    let script = &"while ! grep -q slurmd.service /proc/self/cgroup; do :; done; setpriv --reuid USER --clear-groups sleep $0 & wait".replace("USER", &user().to_string());
    let mut with_daemon = daemons.start(Command::new(&program).args(["-c", script]).env(VARIABLE, &mark));
    let mut alone = daemons.start(Command::new("/bin/sleep").uid(user()).env(VARIABLE, &mark));
    let mut pretends = daemons.start(
        Command::new(&program)
            .args(["-c", "while ! grep -q slurmd.service /proc/self/cgroup; do :; done; sleep $0 & wait"])
            .uid(user())
            .env(VARIABLE, &mark),
    );
    let mut other = daemons.start(Command::new("/bin/sleep").uid(user()));
    // Like a job's own daemon whose script got the environment from somewhere: own placement leaves it where systemd has it.
    let host = site.host();
    let Some(v1) = host.layout.hierarchies.iter().find(|hierarchy| hierarchy.version == Version::V1) else {
        return common::skip("only cgroup2");
    };
    let mut fenced = daemons.start(Command::new("/bin/sleep").uid(user()).env(VARIABLE, &mark));
    let base = v1.mount.join(&host.base);
    fs::create_dir_all(&base).unwrap();
    fs::write(base.join("cgroup.procs"), fenced.child.id().to_string()).unwrap();
    let there = || fs::read_to_string(daemons.0.join("cgroup.procs")).unwrap();
    // A script's grep is there for a moment, too: only the five that stay are waited for.
    let is_sleep = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == b"sleep\x001000\0" || line == b"/bin/sleep\x001000\0"
    };
    let deadline = soon();
    while there().lines().filter(is_sleep).count() < 5 {
        assert!(Instant::now() < deadline, "not all have begun: {}", there());
    }
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(reaped.removed, ["3 processes beside Slurm's daemons"], "{reaped:?}");
    assert!(alone.child.try_wait().unwrap().is_some() && pretends.child.try_wait().unwrap().is_some());
    assert_eq!(there().lines().count(), 4);
    assert!(fenced.child.try_wait().unwrap().is_none());
    assert!(with_daemon.child.try_wait().unwrap().is_none() && other.child.try_wait().unwrap().is_none());
}

/// A script of a live step has read an ended step's variables from a file, and started a process that left its session.
#[test]
fn who_is_known_to_be_of_a_living_step_without_a_fence_is_no_dead_ones() {
    let site = Site::new("known");
    let Some(daemons) = Daemons::make(&site) else {
        return common::skip("no cgroup2");
    };
    let host = site.host();
    let mut dead = Command::new("/bin/true").spawn().unwrap();
    let dead_owner = Owner { pid: dead.id().cast_signed(), start: 1 };
    dead.wait().unwrap();
    let daemon = Command::new("setsid").args(["sleep", "1000"]).stdout(Stdio::null()).spawn().unwrap();
    let owner = Owner::from_pid(&host.proc, daemon.id().cast_signed()).unwrap().unwrap();
    let mut daemon = Owning { child: daemon, pids: Vec::new() };
    let deadline = soon();
    while process::session_of(&host.proc, owner) != Some(owner.pid) {
        assert!(Instant::now() < deadline, "it has no session of its own");
    }
    let mark = mark_of(&host.boot_id, dead_owner);
    let marked = || daemons.start(Command::new("/bin/sleep").uid(user()).env(VARIABLE, &mark));
    let (mut known, mut unknown) = (marked(), marked());
    for child in [&known, &unknown] {
        let pid = child.child.id().cast_signed();
        while process::environment(&host.proc, pid, VARIABLE, soon()).ok().flatten().as_deref() != Some(&mark) {
            assert!(Instant::now() < deadline, "it has not begun");
        }
    }
    let records = TrackedRecords::open(&site.config.run_dir).unwrap();
    let seen = Owner::from_pid(&host.proc, known.child.id().cast_signed()).unwrap().unwrap();
    for (owner, job, seen) in [(dead_owner, "job_1", None), (owner, "job_2", Some(seen))] {
        let mut tracked = Tracked {
            boot_id: host.boot_id.clone(),
            pid_namespace: host.pid_namespace.clone(),
            owner,
            levels: vec![format!("uid_{}", user()), job.to_owned(), "step_0".to_owned()],
            uid: user(),
            seen: seen.into_iter().collect(),
        };
        records.write(&mut tracked, soon()).unwrap();
    }
    // A process that it has started since it was seen, and that is now orphaned.
    let script = &"while ! grep -q slurmd.service /proc/self/cgroup; do :; done; sleep $0 & wait"
        .replace("USER", &user().to_string());
    let mut parent = daemons.start(Command::new("/bin/sh").args(["-c", script]).uid(stranger()).env(VARIABLE, &mark));
    let start = Owner::from_pid(&host.proc, parent.child.id().cast_signed()).unwrap().unwrap();
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", start.pid)).unwrap();
    let is_sleep = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x001000\0");
    while !children().split_whitespace().any(is_sleep) {
        assert!(Instant::now() < deadline, "it has started nobody");
    }
    let both = [seen, start, Owner::from_pid(&host.proc, unknown.child.id().cast_signed()).unwrap().unwrap()];
    assert_eq!(daemon_children::sweep(&host, &both.into(), &mut Vec::new(), soon()).unwrap(), 0);
    assert!(children().split_whitespace().any(is_sleep));
    parent.die();
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(
        reaped.removed[..1],
        [format!("uid_{}/job_1/step_0 (1 processes without a fence)", user())],
        "{reaped:?}"
    );
    assert!(unknown.child.try_wait().unwrap().is_some() && known.child.try_wait().unwrap().is_none());
    // The dead step's record is gone: only its mark would be left to say which step the process belongs to.
    assert_eq!(site.reap(JanitorCaller::command()).removed, Vec::<String>::new());
    assert!(known.child.try_wait().unwrap().is_none());
    daemon.die();
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(reaped.removed, [format!("uid_{}/job_2/step_0 (1 processes without a fence)", user())], "{reaped:?}");
    assert!(known.child.try_wait().unwrap().is_some());
}

/// A step without a fence, whose daemon is dead, and none of whose processes has been seen.
fn dead_step(host: &Host) -> Tracked {
    let mut dead = Command::new("/bin/true").spawn().unwrap();
    let owner = Owner { pid: dead.id().cast_signed(), start: 1 };
    dead.wait().unwrap();
    let levels = vec![format!("uid_{}", user()), "job_1".to_owned(), "step_0".to_owned()];
    let (boot_id, pid_namespace) = (host.boot_id.clone(), host.pid_namespace.clone());
    Tracked { boot_id, pid_namespace, owner, levels, uid: user(), seen: [].into() }
}

/// A process of this step that only its mark identifies.
fn marked_by(host: &Host, step: &Tracked) -> Owning {
    let mark = mark_of(&host.boot_id, step.owner);
    let child = sleep().uid(user()).env(VARIABLE, &mark).spawn().unwrap();
    let (pid, deadline) = (child.id().cast_signed(), soon());
    while process::environment(&host.proc, pid, VARIABLE, deadline).ok().flatten().as_ref() != Some(&mark) {
        assert!(Instant::now() < deadline, "it has not begun");
    }
    Owning { child, pids: Vec::new() }
}

/// Runs this where reading the environment of these processes blocks, as for one that waits for a file system.
fn where_unreadable<T: Send>(site: &Site, these: &[Owning], what: impl FnOnce() -> T + Send) -> T {
    let pipe = site.config.run_dir.parent().unwrap().join("pipe");
    mkfifo(&pipe, Mode::S_IRUSR).unwrap();
    let pids: Vec<u32> = these.iter().map(|one| one.child.id()).collect();
    let alone = || {
        // Only for this thread.
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let nothing: Option<&str> = None;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        for pid in pids {
            let environ = format!("/proc/{pid}/environ");
            mount(Some(&pipe), environ.as_str(), nothing, MsFlags::MS_BIND, nothing).unwrap();
        }
        what()
    };
    std::thread::scope(|scope| scope.spawn(alone).join().unwrap())
}

#[test]
fn a_step_is_not_forgotten_before_every_environment_was_read() {
    let site = Site::new("unseen");
    let host = site.host();
    let mut step = dead_step(&host);
    let mut children = [marked_by(&host, &step)];
    TrackedRecords::open(&site.config.run_dir).unwrap().write(&mut step, soon()).unwrap();
    let reaped = where_unreadable(&site, &children, || site.reap(JanitorCaller::command()));
    assert_eq!(reaped.removed, Vec::<String>::new());
    let expected = &format!("uid_{}/job_1/step_0: the environment of a process cannot be read:", user());
    assert!(reaped.failed.iter().any(|failure| failure.starts_with(expected)), "{:?}", reaped.failed);
    assert!(children[0].child.try_wait().unwrap().is_none());
    let reaped = site.reap(JanitorCaller::command());
    assert_eq!(reaped.removed, [format!("uid_{}/job_1/step_0 (1 processes without a fence)", user())], "{reaped:?}");
    assert!(children[0].child.try_wait().unwrap().is_some());
}

/// Each of them would take a tenth of a second.
#[test]
fn however_many_cannot_be_read_there_is_an_end_to_looking() {
    let site = Site::new("many");
    let host = site.host();
    let step = dead_step(&host);
    let children: Vec<Owning> = (0..60).map(|_| marked_by(&host, &step)).collect();
    let is_over = where_unreadable(&site, &children, || {
        common::is_once_within(Duration::from_secs(3), || {
            let deadline = Instant::now() + Duration::from_millis(300);
            let others = Others { living: &[].into(), schedulers: ALL };
            let why = step.end(&site.host(), Some(others), deadline).unwrap_err().to_string();
            assert!(why.starts_with("there was no time left to look at every process"), "{why}");
        })
    });
    assert!(is_over, "it looks at all of them");
}

/// Then it is not known which step is the user's last.
#[test]
fn with_a_record_that_cannot_be_read_goes_what_is_certainly_the_steps() {
    let site = Site::new("unread");
    let Some(daemons) = Daemons::make(&site) else {
        return common::skip("no cgroup2");
    };
    let host = site.host();
    let place = daemons.start(&mut Command::new("/bin/sleep"));
    let member = Membership::read(&host.proc, place.child.id().cast_signed()).unwrap();
    let mut child = daemons.start(Command::new("/bin/sleep").uid(user()));
    let script = &"while ! grep -q slurmd.service /proc/self/cgroup; do :; done; setpriv --reuid USER --clear-groups sleep $0 & wait".replace("USER", &user().to_string());
    let other = daemons.start(Command::new("/bin/sh").args(["-c", script]));
    let there = || fs::read_to_string(daemons.0.join("cgroup.procs")).unwrap();
    let is_his = |pid: &str| process::uid(&host.proc, pid.parse().unwrap()) == Some(user());
    let deadline = soon();
    while there().lines().filter(|pid| is_his(pid)).count() < 2 {
        assert!(Instant::now() < deadline, "not all have begun");
    }
    let owner = Owner::this(&host.proc).unwrap();
    let known = || Err(jobfence::error::Error::new("damaged"));
    let step = daemon_children::DaemonsStep { host: &host, owner, uid: user(), known: &known, daemons: &BTreeSet::new };
    assert_eq!(step.end(&member, soon()).unwrap(), Some(1));
    assert!(child.child.try_wait().unwrap().is_some());
    assert_eq!(there().lines().filter(|pid| is_his(pid)).count(), 1);
    drop(other);
}

/// Its owner removed it after it was listed.
#[test]
fn of_a_step_that_ends_meanwhile_nothing_is_said() {
    let site = Site::new("gone");
    let records = Records::open(&site.config.run_dir).unwrap();
    let levels = ["uid_1", "job_1", "step_0"].map(str::to_owned);
    assert_eq!(
        janitor::reap_one(
            (&site.host(), &site.config),
            &records,
            &levels,
            janitor::Holders { schedulers: ALL, units: None, leaves_to_closers: true },
            (soon(), &mut janitor::Ledger::default())
        ),
        Ok(janitor::ReapOutcome::Gone)
    );
}

#[test]
fn with_his_last_step_goes_what_a_user_has_beside_the_daemons_and_nothing_of_roots() {
    let site = Site::new("beside");
    let Some(daemons) = Daemons::make(&site) else {
        return common::skip("no cgroup2");
    };
    let host = site.host();
    // As the site's Prolog may start it, for all steps of the job.
    let mut older = daemons.start(Command::new("/bin/sleep").uid(user()));
    let begun = process::now(&host.proc).unwrap();
    while process::now(&host.proc).unwrap() <= begun {}
    let daemon = daemons.start(&mut Command::new("/bin/sleep"));
    let pid = daemon.child.id().cast_signed();
    let member = Membership::read(&host.proc, pid).unwrap();
    let owner = Owner::from_pid(&host.proc, pid).unwrap().unwrap();
    let mut his = daemons.start(Command::new("/bin/sleep").uid(user()));
    let mut strangers = daemons.start(Command::new("/bin/sleep").uid(stranger()));
    // Like slurmd's own `su user() -c …` for sbatch --get-user-env.
    let script = &"while ! grep -q slurmd.service /proc/self/cgroup; do :; done; setpriv --reuid USER --clear-groups sleep $0 & wait".replace("USER", &user().to_string());
    let mut of_slurmd = daemons.start(Command::new("/bin/sh").args(["-c", script]));
    let there = || fs::read_to_string(daemons.0.join("cgroup.procs")).unwrap();
    let is_his = |pid: &str| process::uid(&host.proc, pid.parse().unwrap()) == Some(user());
    let deadline = soon();
    while there().lines().filter(|pid| is_his(pid)).count() < 3 {
        assert!(Instant::now() < deadline, "slurmd has started no program as the user");
    }
    let end = |known: &[(Owner, u32)]| {
        let step = daemon_children::DaemonsStep {
            host: &host,
            owner,
            uid: user(),
            known: &|| Ok(known.to_vec()),
            daemons: &BTreeSet::new,
        };
        step.end(&member, soon()).unwrap()
    };
    // While another step of the user is alive, a process that is neither the daemon's child nor in its session could belong to that step.
    let another = Owner::this(&host.proc).unwrap();
    assert_eq!(end(&[(owner, user()), (another, user())]), Some(0));
    assert_eq!(his.child.try_wait().unwrap(), None);
    // A daemon whose step is not known.
    let temp = tempfile::tempdir().unwrap();
    let program = temp.path().join("slurmstepd");
    fs::copy("/bin/sleep", &program).unwrap();
    let unknown = daemons.start(Command::new(&program).arg0("slurmstepd: [7.0]"));
    until_titled(unknown.child.id().cast_signed(), "slurmstepd: [7.0]");
    assert_eq!(end(&[(owner, user()), (another, stranger())]), Some(0));
    let id = Owner::from_pid(&host.proc, unknown.child.id().cast_signed()).unwrap().unwrap();
    assert_eq!(end(&[(owner, user()), (another, stranger()), (id, stranger())]), Some(1));
    assert!(his.child.try_wait().unwrap().is_some());
    assert!(older.child.try_wait().unwrap().is_none());
    assert!(strangers.child.try_wait().unwrap().is_none() && of_slurmd.child.try_wait().unwrap().is_none());
    let left = there();
    assert_eq!(left.lines().count(), 6, "Prolog's, the daemon, a stranger's, two of slurmd's and the unknown daemon");
}

#[test]
fn jobfence_hold_reaps_on_an_idle_node() {
    let site = Site::new("hold");
    let mut owner = site.role("own");
    let base = common::Base { name: site.config.cgroup_base.clone().unwrap(), holder: None, lease: None };
    let mut hold = common::command("hold", &base, site.config.run_dir.parent().unwrap());
    let mut hold = hold.args(["-o", "ReapInterval=1"]).stderr(Stdio::piped()).spawn().unwrap();
    owner.die();
    let deadline = soon();
    while !site.left().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((site.left(), owner.none_lives()), (Vec::new(), true));
    kill(Pid::from_raw(hold.id().cast_signed()), Signal::SIGTERM).unwrap();
    let status = hold.wait().unwrap();
    assert!(status.success(), "{status}");
    let said = std::io::read_to_string(hold.stderr.take().unwrap()).unwrap();
    assert!(said.contains(&format!("removed uid_{}/job_1/step_0, which a dead step daemon left", user())), "{said}");
}

/// systemd takes death by SIGPIPE for a clean exit, and would not restart the service.
#[test]
fn jobfence_hold_goes_on_when_nobody_hears_what_it_says() {
    let site = Site::new("unheard");
    let mut owner = site.role("own");
    let base = common::Base { name: site.config.cgroup_base.clone().unwrap(), holder: None, lease: None };
    let mut hold = common::command("hold", &base, site.config.run_dir.parent().unwrap());
    let mut hold = hold.args(["-o", "ReapInterval=1"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(hold.stderr.take());
    owner.die();
    let mut is_gone = || {
        common::until("it is removed, or hold ends", || site.left().is_empty() || hold.try_wait().unwrap().is_some());
        assert_eq!((site.left(), hold.try_wait().unwrap()), (Vec::new(), None));
    };
    is_gone();
    // It reports a removal afterwards: so it has done that when it has removed another one.
    owner = site.role("own");
    owner.die();
    is_gone();
    kill(Pid::from_raw(hold.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(hold.wait().unwrap().success());
}
