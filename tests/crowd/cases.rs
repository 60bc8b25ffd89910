// SPDX-License-Identifier: GPL-2.0-or-later
//! The cases: who the others are.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobfence::config::Config;
use jobfence::host::Host;
use jobfence::process::Owner;
use jobfence::record::{Record, Records};
use jobfence::tracking;
use nix::sys::wait::WaitStatus;

use crate::common;
use crate::stand_in::StandIn;
use crate::trace::{self, Missing, Watch};

const UID: u32 = 61_001;
const JOB: u32 = 1;
const MANY: usize = 1_000;

/// They share two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Whose the other steps are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Others,
    Users,
    Jobs,
}

impl Whose {
    fn levels(self, number: usize) -> Vec<String> {
        let (uid, job, step) = match self {
            Self::Others => (70_000 + number, 1_000 + number, 0),
            Self::Users => (UID as usize, 1_000 + number, 0),
            Self::Jobs => (UID as usize, JOB as usize, 1 + number),
        };
        vec![format!("uid_{uid}"), format!("job_{job}"), format!("step_{step}")]
    }
}

struct Site {
    config: Config,
    host: Host,
    arguments: Vec<String>,
    stand_in: StandIn,
    /// Where systemd would have slurmd and its daemons, where there is a cgroup2.
    daemons: Option<PathBuf>,
    owners: Vec<Child>,
    _temp: tempfile::TempDir,
    _base: common::Base,
    _alone: MutexGuard<'static, ()>,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("jobfence-test-{}-{test}", std::process::id());
        let base = common::Base::new(&name);
        let temp = tempfile::tempdir().unwrap();
        let stand_in = StandIn::compile(temp.path()).map_err(|why| common::skip(&why)).ok()?;
        let run_dir = temp.path().join("run");
        let configuration = temp.path().join("jobfence.conf");
        let lines = [
            format!("CgroupBase={}", base.name),
            format!("RunDir={}", run_dir.display()),
            "MaxProcesses=40".to_owned(),
        ];
        fs::write(&configuration, lines.join("\n") + "\n").unwrap();
        let config = Config { cgroup_base: Some(base.name.clone()), run_dir, ..Config::default() };
        let host = Host::read(&config).unwrap();
        let daemons = host.layout.unified().map(|unified| unified.mount.join(format!("{name}.slice/slurmd.service")));
        daemons.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let arguments = vec![format!("config={}", configuration.display())];
        let owners = Vec::new();
        Some(Self { config, host, arguments, stand_in, daemons, owners, _temp: temp, _base: base, _alone: alone })
    }

    fn among_daemons(&self, command: &mut Command) {
        let Some(procs) = self.daemons.as_ref().map(|dir| dir.join("cgroup.procs")) else { return };
        // SAFETY: between fork and exec it opens and writes a file; nobody else in the test holds a lock that it needs.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    /// So many steps, each with an owner of its own that lives.
    fn crowd(&mut self, whose: Whose, count: usize) {
        for number in 0..count {
            let mut command = Command::new("/bin/sleep");
            self.among_daemons(command.arg("10000").stdin(Stdio::null()));
            let child = command.spawn().unwrap();
            let owner = Owner::of(&self.host.proc, child.id().cast_signed()).unwrap().unwrap();
            self.owners.push(child);
            assert!(self.claim(owner, whose.levels(number)));
        }
    }

    fn record(&self, owner: Owner, levels: Vec<String>) -> Record {
        let (boot_id, pid_namespace) = (self.host.boot_id.clone(), self.host.pid_namespace.clone());
        Record { boot_id, pid_namespace, owner, base: self.host.base.clone(), levels }
    }

    fn claim(&self, owner: Owner, levels: Vec<String>) -> bool {
        let path = levels.join("/");
        let claimed = self.records().claim(&self.record(owner, levels)).unwrap();
        for hierarchy in self.host.hierarchies(&["cpu", "memory", "pids"]).unwrap() {
            fs::create_dir_all(hierarchy.mount.join(&self.host.base).join(&path)).unwrap();
        }
        claimed
    }

    fn records(&self) -> Records {
        Records::open(&self.config.run_dir).unwrap()
    }

    /// The calls of one step, by the callbacks in which they are made.
    fn step(&self) -> Calls {
        let mut log = tempfile::tempfile().unwrap();
        let words = [format!("uid={UID}"), format!("job={JOB}")];
        let mut command = self.stand_in.command(&words, &self.arguments);
        self.among_daemons(&mut command);
        command.stdout(Stdio::null()).stderr(log.try_clone().unwrap());
        let began = Instant::now();
        let traced = trace::run(&mut command, Watch::Marks, Missing(&[]), None);
        let took = began.elapsed();
        let mut said = String::new();
        log.rewind().unwrap();
        log.read_to_string(&mut said).unwrap();
        assert_eq!(traced.status, WaitStatus::Exited(traced.pid, 0), "{said}");
        assert!(!said.contains("error: ") && !said.contains("WITHOUT"), "{said}");
        let mut calls = Calls { of_phase: BTreeMap::new(), text: Vec::new(), took };
        for point in &traced.points {
            *calls.of_phase.entry(point.phase).or_default() += 1;
            calls.text.push(point.text.clone());
        }
        calls
    }

    /// The least of some: how often it is tried to remove what the kernel has not let go of is chance.
    fn fewest(&self) -> Calls {
        (0..ROUNDS).map(|_| self.step()).min_by_key(Calls::sum).unwrap()
    }
}

const ROUNDS: usize = 12;

impl Drop for Site {
    fn drop(&mut self) {
        for owner in &mut self.owners {
            let _ = owner.kill();
        }
        for owner in &mut self.owners {
            let _ = owner.wait();
        }
        for hierarchy in &self.host.layout.hierarchies {
            remove_below(&hierarchy.mount.join(&self.host.base));
        }
        if let Some(daemons) = &self.daemons {
            let deadline = Instant::now() + Duration::from_secs(10);
            while fs::remove_dir(daemons).is_err() && daemons.exists() && Instant::now() < deadline {}
            let _ = daemons.parent().map(fs::remove_dir);
        }
    }
}

fn remove_below(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != "hold" {
            remove_below(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[derive(Debug)]
struct Calls {
    of_phase: BTreeMap<u64, usize>,
    text: Vec<String>,
    took: Duration,
}

impl Calls {
    fn sum(&self) -> usize {
        self.of_phase.values().sum()
    }
}

/// What is in the first and not in the second, for a message.
fn more(many: &Calls, few: &Calls) -> String {
    let count = |calls: &Calls| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for text in &calls.text {
            let about: String = text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
            *counts.entry(about).or_default() += 1;
        }
        counts
    };
    let few = count(few);
    let mut found: Vec<String> = Vec::new();
    for (text, count) in count(many) {
        let before = few.get(&text).copied().unwrap_or(0);
        if count > before {
            found.push(format!("{:5} {text}", count - before));
        }
    }
    found.join("\n")
}

#[test]
#[ignore = "prints what a step costs"]
fn table() {
    for whose in [Whose::Others, Whose::Users, Whose::Jobs] {
        let Some(mut site) = Site::new("table") else { return };
        let mut there = 0;
        let first = site.fewest();
        println!("{whose:?}: 0: {:?} = {}", first.of_phase, first.sum());
        for count in std::env::var("COUNTS").unwrap_or("10 100 1000".to_owned()).split(' ') {
            let count: usize = count.parse().unwrap();
            for number in there..count {
                let mut command = Command::new("/bin/sleep");
                site.among_daemons(command.arg("10000").stdin(Stdio::null()));
                let child = command.spawn().unwrap();
                let owner = Owner::of(&site.host.proc, child.id().cast_signed()).unwrap().unwrap();
                site.owners.push(child);
                assert!(site.claim(owner, whose.levels(number)));
            }
            there = count;
            let found = site.fewest();
            println!("{whose:?}: {count}: {:?} = {}, {:?}", found.of_phase, found.sum(), found.took);
            if std::env::var_os("MORE").is_some() {
                println!("{}", more(&found, &first));
            }
        }
    }
}
