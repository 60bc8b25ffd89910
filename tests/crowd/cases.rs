// SPDX-License-Identifier: GPL-2.0-or-later
//! The cases: whose the others' steps are, and where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::mark;
use jobfence::cgroup::membership::Membership;
use jobfence::config::Config;
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller, LOOKS, LOOKS_WHERE_WATCHED, Launch, Reaped};
use jobfence::job::{Id, JobKey};
use jobfence::record::roll::EntryKind;
use jobfence::record::tracked::{self, Tracked, TrackedRecords};
use jobfence::record::{Record, Records};
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::Owner;
use nix::sys::wait::WaitStatus;

use crate::common;
use crate::stand_in::StandIn;
use crate::trace::{self, Missing, Watch};

const UID: u32 = 61_001;
const JOB: u32 = 1;
const MANY: usize = 1_000;

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
    /// Slurm's own directories of all jobs, and of what kind they are, where it has any.
    slurms: Vec<(&'static str, PathBuf)>,
    owners: Vec<Child>,
    _temp: tempfile::TempDir,
    _base: common::Base,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        Self::with(test, None)
    }

    /// Slurm has directories of its own for each step, in hierarchies of this version.
    fn with(test: &str, slurms: Option<Version>) -> Option<Self> {
        let name = format!("jobfence-test-{}-{test}", std::process::id());
        let base = common::Base::alone(&name);
        let temp = tempfile::tempdir().unwrap();
        let stand_in = StandIn::or_skip(temp.path())?;
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
        let mut found = Vec::new();
        for hierarchy in host.layout.hierarchies.iter().filter(|hierarchy| Some(hierarchy.version) == slurms) {
            let (v1, v2) = (format!("slurm_{name}"), format!("{name}_slurmstepd.scope"));
            match hierarchy.version {
                Version::V2 => found.push(("v2", hierarchy.mount.join(v2))),
                Version::V1 => {
                    let kinds = ["freezer", "cpuacct"].into_iter().filter(|controller| hierarchy.has(controller));
                    found.extend(kinds.map(|controller| (controller, hierarchy.mount.join(&v1))));
                }
            }
        }
        if slurms.is_some() && found.is_empty() {
            common::skip("no hierarchy of that version in which Slurm has directories");
            return None;
        }
        found.iter().for_each(|(_, top)| fs::create_dir_all(top).unwrap());
        Some(Self {
            config,
            host,
            arguments,
            stand_in,
            daemons,
            slurms: found,
            owners: Vec::new(),
            _temp: temp,
            _base: base,
        })
    }

    fn among_daemons(&self, command: &mut Command) {
        let Some(procs) = self.daemons.as_ref().map(|dir| dir.join("cgroup.procs")) else { return };
        // SAFETY: between fork and exec it opens and writes a file; nobody else in the test holds a lock that it needs.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    /// A process that lives for long.
    fn owner(&mut self) -> Owner {
        let mut command = Command::new("/bin/sleep");
        self.among_daemons(command.arg("10000").stdin(Stdio::null()));
        let child = command.spawn().unwrap();
        let owner = Owner::from_pid(&self.host.proc, child.id().cast_signed()).unwrap().unwrap();
        self.owners.push(child);
        owner
    }

    /// Steps with these numbers, each with an owner of its own that lives.
    fn crowd(&mut self, whose: Whose, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let owner = self.owner();
            assert!(self.claim(owner, whose.levels(number)));
            self.mark(owner, whose.levels(number));
        }
    }

    fn die(&mut self, owner: Owner) {
        let is_its = |child: &&mut Child| child.id().cast_signed() == owner.pid;
        let child = self.owners.iter_mut().find(is_its).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// As a step daemon does in Slurm's own directories.
    fn mark(&self, owner: Owner, levels: Vec<String>) {
        let record = self.record(owner, levels);
        for (kind, top) in &self.slurms {
            let names = if *kind == "v2" { record.levels.get(1..).unwrap() } else { &record.levels[..] };
            let step = names.iter().fold(top.clone(), |path, name| path.join(name));
            fs::create_dir_all(&step).unwrap();
            self.records().note(&[record.header().entry(EntryKind::Theirs, step.to_str().unwrap().to_owned())]);
            for marked in [step.as_path(), step.parent().unwrap()] {
                mark::set(&Dir::open(marked).unwrap(), &record.to_string()).unwrap();
            }
        }
    }

    /// The janitor at a launch.
    fn launch(&self, whose: Option<&JobKey>) -> Reaped {
        let here = Membership::read(&self.host.proc, std::process::id().cast_signed()).unwrap();
        let who = JanitorCaller::Launch(Launch { daemon: &here, key: whose, all: false });
        janitor::reap(&self.host, &self.config, ALL, who, common::soon()).unwrap()
    }

    fn record(&self, owner: Owner, levels: Vec<String>) -> Record {
        let (boot_id, pid_namespace) = (self.host.boot_id.clone(), self.host.pid_namespace.clone());
        Record { boot_id, pid_namespace, owner, base: self.host.base.clone(), levels, shared: None }
    }

    fn claim(&self, owner: Owner, levels: Vec<String>) -> bool {
        // There is nothing of ours where Slurm tracks a step in all hierarchies that are used; some of them are enough here.
        if !self.slurms.is_empty() {
            return true;
        }
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
        let mut words = vec![format!("uid={UID}"), format!("job={JOB}")];
        words.extend(self.slurms.iter().map(|(kind, top)| format!("theirs={kind}:{}", top.display())));
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
        // Built for tests, Rust's library asks of each descriptor that it closes whether it is one.
        for point in traced.points.iter().filter(|point| point.number != libc::SYS_fcntl) {
            *calls.of_phase.entry(point.phase).or_default() += 1;
            calls.text.push(point.text.clone());
        }
        calls
    }

    /// The least of some: how often it is tried to remove what the kernel has not let go of is chance.
    fn fewest(&self) -> Calls {
        (0..ROUNDS).map(|_| self.step()).min_by_key(|calls| (calls.sum(), calls.took)).unwrap()
    }
}

const ROUNDS: usize = 8;

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
        for (_, top) in &self.slurms {
            remove_below(top);
            let _ = fs::remove_dir(top);
        }
        if let Some(daemons) = &self.daemons {
            let deadline = common::soon();
            while fs::remove_dir(daemons).is_err() && daemons.exists() && Instant::now() < deadline {}
            let _ = daemons.parent().map(fs::remove_dir);
        }
    }
}

fn remove_below(dir: &Path) {
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

/// What a launch looks at in its turn, all callbacks together, however many steps there are.
const MORE: usize = 18;

fn costs_the_same(mut site: Site, whose: Whose) {
    let alone = site.fewest();
    // With the first one the directories are there that all of a job or a user have in common.
    site.crowd(whose, 0..1);
    let mut there = 1;
    let beside = site.fewest();
    println!("{whose:?}: alone: {:?} = {}, {:?}", alone.of_phase, alone.sum(), alone.took);
    println!("{whose:?}: beside 1: {:?} = {}, {:?}", beside.of_phase, beside.sum(), beside.took);
    let few = [alone, beside].into_iter().min_by_key(Calls::sum).unwrap();
    for count in counts() {
        site.crowd(whose, there..count);
        there = count;
        let many = site.fewest();
        println!("{whose:?}: beside {there}: {:?} = {}, {:?}", many.of_phase, many.sum(), many.took);
        let most = few.sum() + MORE;
        assert!(many.sum() <= most, "{} instead of {}:\n{}", many.sum(), few.sum(), more(&many, &few));
    }
}

/// As many as a node may have.
fn counts() -> Vec<usize> {
    let counts = std::env::var("JOBFENCE_CROWD").unwrap_or_else(|_| MANY.to_string());
    counts.split(' ').map(|count| count.parse().unwrap()).collect()
}

#[test]
fn a_step_costs_the_same_beside_a_thousand_of_others() {
    let Some(site) = Site::new("others") else { return };
    costs_the_same(site, Whose::Others);
}

#[test]
fn a_step_costs_the_same_beside_a_thousand_of_its_user() {
    let Some(site) = Site::new("users") else { return };
    costs_the_same(site, Whose::Users);
}

#[test]
fn a_step_costs_the_same_beside_a_thousand_of_its_job() {
    let Some(site) = Site::new("jobs") else { return };
    costs_the_same(site, Whose::Jobs);
}

/// Slurm's own directories are the others', too.
#[test]
fn a_step_in_slurms_own_directories_costs_the_same_beside_a_thousand() {
    for (version, name) in [(Version::V2, "v2"), (Version::V1, "v1")] {
        let Some(site) = Site::with(name, Some(version)) else { continue };
        costs_the_same(site, Whose::Others);
    }
}

/// A record that was there before the roll was, of an earlier release or before `RunDir` was deleted, is in it after the first launch.
#[test]
fn where_nobody_has_looked_yet_a_launch_looks_at_everything() {
    let Some(mut site) = Site::new("all") else { return };
    site.crowd(Whose::Others, 0..3 * LOOKS);
    let dead = site.owner();
    assert!(site.claim(dead, Whose::Others.levels(900)));
    site.die(dead);
    let roll = site.config.run_dir.join("roll/list");
    assert!(!roll.exists());
    let reaped = site.launch(None);
    assert_eq!((reaped.removed, reaped.alive, reaped.failed), (vec![path(Whose::Others, 900)], 3 * LOOKS, vec![]));
    let text = fs::read_to_string(&roll).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("+ ")).count(), 3 * LOOKS, "{text}");
    // From now on not.
    assert!((LOOKS..=LOOKS + 1).contains(&site.launch(None).alive));
}

/// Also at the lines of a long roll that a launch does not read at first.
#[test]
fn who_finds_something_in_a_long_roll_looks_at_all_of_it() {
    let Some(mut site) = Site::new("long") else { return };
    site.launch(None);
    let (unread, found) = (900, 901);
    site.crowd(Whose::Others, 0..200);
    let middle = site.owner();
    assert!(site.claim(middle, Whose::Others.levels(unread)));
    site.crowd(Whose::Others, 200..400);
    let last = site.owner();
    assert!(site.claim(last, Whose::Others.levels(found)));
    // It reads all, as one of 64 does, and goes on with the second dozen.
    assert_eq!(site.launch(None).removed, Vec::<String>::new());
    [middle, last].into_iter().for_each(|owner| site.die(owner));
    let of_job = key(70_000 + u32::try_from(found).unwrap(), 1_000 + u32::try_from(found).unwrap());
    let mut removed = site.launch(Some(&of_job)).removed;
    removed.sort_unstable();
    assert_eq!(removed, [path(Whose::Others, unread), path(Whose::Others, found)]);
}

fn path(whose: Whose, number: usize) -> String {
    whose.levels(number).join("/")
}

fn key(uid: u32, job: u32) -> JobKey {
    JobKey { node: None, uid, job: Id::new(job.to_string()).unwrap(), step: Id::new("0").unwrap() }
}

/// A host without systemd has such a record of each step that has ended, until `jobfence hold` looks.
#[test]
fn a_watched_launch_does_not_look_at_what_dead_steps_have_noted_down() {
    let Some(mut site) = Site::new("noted") else { return };
    let _lock = tracked::watch(&site.config.run_dir).unwrap().unwrap();
    site.launch(None);
    let alone = site.fewest();
    let records = TrackedRecords::open(&site.config.run_dir).unwrap();
    for number in 0..2 * LOOKS {
        let owner = site.owner();
        let (boot_id, pid_namespace) = (site.host.boot_id.clone(), site.host.pid_namespace.clone());
        let (levels, seen) = (Whose::Others.levels(number), BTreeSet::new());
        let mut dead = Tracked { boot_id, pid_namespace, owner, levels, uid: UID, seen };
        records.write(&mut dead, Instant::now() + Duration::from_secs(1)).unwrap();
        site.die(owner);
    }
    let beside = site.fewest();
    let most = alone.sum() + 3 * LOOKS_WHERE_WATCHED;
    assert!(beside.sum() <= most, "{} instead of {}:\n{}", beside.sum(), alone.sum(), more(&beside, &alone));
    let noted = records.list().unwrap();
    assert!(noted.len() >= 2 * LOOKS, "they are hold's to remove");
    // When it has done so, no line stays behind.
    let lines = || {
        let text = fs::read_to_string(site.config.run_dir.join("roll/list")).unwrap();
        text.lines().filter(|line| line.starts_with("+ ") && line.contains(" tracked ")).count()
    };
    (0..noted.len()).for_each(|_| drop(site.launch(None)));
    assert_eq!(lines(), noted.len(), "each has its line for as long as it is there");
    noted.iter().for_each(|dead| records.forget(dead).unwrap());
    (0..noted.len()).for_each(|_| drop(site.launch(None)));
    assert_eq!(lines(), 0);
}

/// However many live, and where nobody else looks.
#[test]
fn what_a_dead_owner_left_goes_when_its_turn_has_come() {
    let Some(mut site) = Site::new("turn") else { return };
    site.launch(None);
    let count = 100;
    site.crowd(Whose::Others, 0..count / 2);
    let dead: Vec<Owner> = (0..2).map(|_| site.owner()).collect();
    assert!(site.claim(dead[0], Whose::Others.levels(900)));
    site.crowd(Whose::Others, count / 2..count);
    let launches = (count + 1).div_ceil(LOOKS);
    site.die(dead[0]);
    let removed: Vec<String> = (0..launches).flat_map(|_| site.launch(None).removed).collect();
    assert_eq!(removed, [path(Whose::Others, 900)]);
    // Where it was found there may be more: they go with it, in whichever turn they would have been.
    let more: Vec<Owner> = (0..30).map(|_| site.owner()).collect();
    for (number, owner) in more.iter().enumerate() {
        assert!(site.claim(*owner, Whose::Others.levels(900 + number)));
    }
    more.iter().for_each(|owner| site.die(*owner));
    let found: Vec<usize> = (0..=launches + 2).map(|_| site.launch(None).removed.len()).collect();
    assert_eq!(found.iter().filter(|found| **found > 0).collect::<Vec<_>>(), [&30], "{found:?}");
    // A number that was given again to somebody else is looked at closely, one each time.
    let Owner { pid, start } = dead[1];
    assert!(site.claim(Owner { pid, start: start + 1 }, Whose::Others.levels(901)));
    let removed: Vec<String> = (0..2 * count).flat_map(|_| site.launch(None).removed).collect();
    assert_eq!(removed, [path(Whose::Others, 901)]);
}

/// What has to do with this step: it would share the limits of the job, and of the user, with what is left.
#[test]
fn the_same_jobs_and_the_same_users_dead_steps_go_at_once() {
    let Some(mut site) = Site::new("first") else { return };
    site.launch(None);
    site.crowd(Whose::Others, 0..150);
    // As where 'jobfence hold' runs: there it is looked at fewer.
    let watched = tracked::watch(&site.config.run_dir).unwrap().expect("nobody has it");
    assert!((LOOKS_WHERE_WATCHED..=LOOKS_WHERE_WATCHED + 1).contains(&site.launch(None).alive));
    for (whose, levels) in [(Whose::Jobs, Whose::Jobs.levels(900)), (Whose::Users, Whose::Users.levels(900))] {
        let dead = site.owner();
        assert!(site.claim(dead, levels.clone()));
        site.die(dead);
        // Not those of another user, whose job has the same number.
        assert_eq!(site.launch(Some(&key(UID + 1, JOB))).removed, Vec::<String>::new());
        assert_eq!(site.launch(Some(&key(UID, JOB))).removed, [levels.join("/")], "{whose:?}");
    }
    drop(watched);
}

#[test]
fn where_somebody_else_looks_every_minute_a_launch_looks_at_fewer() {
    let Some(mut site) = Site::new("watched") else { return };
    site.launch(None);
    site.crowd(Whose::Others, 0..100);
    let alone = site.fewest();
    let watched = tracked::watch(&site.config.run_dir).unwrap().expect("nobody has it");
    let beside = site.fewest();
    drop(watched);
    assert!(beside.sum() + 6 <= alone.sum(), "{} and {}", beside.sum(), alone.sum());
}

/// In Slurm's own directories there is no record, but a mark.
#[test]
fn what_a_dead_daemon_left_in_slurms_own_directories_goes_when_its_turn_has_come() {
    for (version, name) in [(Version::V2, "theirs2"), (Version::V1, "theirs1")] {
        let Some(mut site) = Site::with(name, Some(version)) else { continue };
        site.launch(None);
        site.crowd(Whose::Others, 0..50);
        let dead = site.owner();
        site.mark(dead, Whose::Others.levels(900));
        site.die(dead);
        let removed: Vec<String> = (0..51_usize.div_ceil(LOOKS)).flat_map(|_| site.launch(None).removed).collect();
        assert_eq!(removed.len(), site.slurms.len(), "{removed:?}");
        assert!(removed.iter().all(|path| path.contains("job_1900")), "{removed:?}");
        let tops = site.slurms.iter().flat_map(|(_, top)| fs::read_dir(top).unwrap().flatten());
        assert_eq!(tops.filter(|dir| dir.file_name().to_string_lossy().contains("_70900")).count(), 0);
    }
}
