// SPDX-License-Identifier: GPL-2.0-or-later
//! Directories of a test's own, with somebody in them and somebody beside them, whom nothing that fails may touch.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Layout, Version};
use jobfence::cgroup::mark;
use jobfence::record::tracked;
use jobfence::sys::dir::Dir;
use jobfence::sys::lock::Lock;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{Base, uids};
use crate::stand_in::StandIn;

/// Files that limits are in. A hierarchy has those of its controllers.
const LIMITS: [&str; 12] = [
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.shares",
    "cpu.max",
    "cpu.weight",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max",
    "memory.swap.max",
    "memory.high",
    "pids.max",
    "cpuset.cpus",
];

/// Which is frozen, and how.
const STATES: [&str; 2] = ["freezer.state", "cgroup.freeze"];

/// Of a site.
pub struct Settings<'a> {
    pub name: &'a str,
    pub on_error: &'a str,
    /// Whose the bystander is: this user, and this job.
    pub bystander: (u32, u32),
    /// Whether Slurm has directories of its own for each step, and of which version.
    pub slurms: Option<Version>,
}

/// The hierarchies in which Slurm 22.05 has directories of its own on v1.
const SLURMS_ON_V1: [&str; 4] = ["freezer", "memory", "cpuset", "cpuacct"];

/// Those of all jobs, for the stand-in: what kind each is, and where.
pub fn slurms_own(version: Version, layout: &Layout, name: &str) -> Vec<(&'static str, PathBuf)> {
    let hierarchies = layout.hierarchies.iter().filter(|hierarchy| hierarchy.version == version);
    let mut found = Vec::new();
    for hierarchy in hierarchies {
        if version == Version::V2 {
            found.push(("v2", hierarchy.mount.join(format!("{name}_slurmstepd.scope"))));
        }
        let kinds = SLURMS_ON_V1.iter().filter(|controller| version == Version::V1 && hierarchy.has(controller));
        found.extend(kinds.map(|controller| (*controller, hierarchy.mount.join(format!("slurm_{name}")))));
    }
    found
}

/// The job of the steps that are disturbed.
pub const JOB: u32 = 1;

/// Its user, and the next one is another.
pub fn uid() -> u32 {
    uids()
}

/// Directories, a configuration, and bystanders.
pub struct Site<'a> {
    stand_in: &'a StandIn,
    pub layout: Layout,
    /// As the kernel names them in /proc/PID/cgroup.
    names: Vec<String>,
    bystander: Bystander,
    /// In no fence.
    outside: Child,
    outside_is: String,
    undisturbed: Vec<String>,
    pub configuration: PathBuf,
    temp: tempfile::TempDir,
    pub base: Base,
    slurms: Vec<(&'static str, PathBuf)>,
    /// As `jobfence hold` has it.
    _watched: Option<Lock>,
}

/// A step that lives all the while.
struct Bystander {
    daemon: Child,
    straggler: i32,
    _said: BufReader<std::process::ChildStdout>,
}

impl<'a> Site<'a> {
    pub fn new(stand_in: &'a StandIn, settings: &Settings<'_>) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let base = Base::within(&format!("jobfence-test-{}-{}", std::process::id(), settings.name));
        let configuration = temp.path().join("jobfence.conf");
        let lines = [
            format!("CgroupBase={}", base.name),
            format!("RunDir={}", temp.path().join("run").display()),
            format!("OnError={}", settings.on_error),
            // Something at each level.
            "MaxProcesses=40".to_owned(),
            "MaxRAMPerUser=600M".to_owned(),
            "MaxCPUsPerTask=0.5".to_owned(),
        ];
        fs::write(&configuration, lines.join("\n") + "\n").unwrap();
        let layout = Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap();
        let names = layout.hierarchies.iter().map(kernels_name).collect();
        let slurms = settings.slurms.map_or_else(Vec::new, |version| slurms_own(version, &layout, &base.name));
        let mut outside = Command::new("sleep").arg("1000").spawn().unwrap();
        let outside_is = life(outside.id().cast_signed()).expect("it was started just now");
        let (uid, job) = settings.bystander;
        let mut words =
            vec!["step=7".to_owned(), format!("uid={uid}"), format!("job={job}"), "straggler".into(), "hold".into()];
        words.extend(slurms.iter().map(theirs));
        let argument = format!("config={}", configuration.display());
        let mut daemon = stand_in.command(&words, &[argument]);
        daemon.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut daemon = daemon.spawn().unwrap();
        let mut said = BufReader::new(daemon.stdout.take().unwrap());
        let mut straggler = None;
        loop {
            let mut line = String::new();
            if said.read_line(&mut line).unwrap() == 0 {
                let _ = outside.kill();
                panic!("the bystander has ended");
            }
            if let Some(pid) = line.trim().strip_prefix("ran ") {
                straggler = pid.parse().ok();
            }
            if line == "holds\n" {
                break;
            }
        }
        let bystander = Bystander { daemon, straggler: straggler.unwrap(), _said: said };
        // Who escapes without a fence is known by his environment, which 'jobfence hold' reads: as if it ran.
        let warns = settings.on_error == "warn";
        let watched = warns.then(|| tracked::watch(&temp.path().join("run")).unwrap().unwrap());
        let mut site = Self {
            stand_in,
            _watched: watched,
            layout,
            names,
            bystander,
            outside,
            outside_is,
            undisturbed: Vec::new(),
            configuration,
            temp,
            base,
            slurms,
        };
        site.undisturbed = site.bystanders();
        assert!(site.undisturbed.iter().any(|line| line.contains("step_7")), "{:?}", site.undisturbed);
        site
    }

    /// A step that leaves a process, to be started with more words.
    pub fn step(&self, more: &[&str]) -> Command {
        let mut words = vec![format!("uid={}", uid()), format!("job={JOB}"), "straggler".to_owned()];
        for (hierarchy, name) in self.layout.hierarchies.iter().zip(&self.names) {
            let files = LIMITS.iter().filter(|file| {
                let controller = file.split('.').next().unwrap_or_default();
                hierarchy.has(controller) && is_of(hierarchy.version, file)
            });
            words.extend(files.map(|file| format!("read={name}:{file}")));
            words.push(format!("read={name}@{}", hierarchy.mount.display()));
        }
        words.extend(self.slurms.iter().map(theirs));
        words.extend(more.iter().map(|word| (*word).to_owned()));
        self.stand_in.command(&words, &[format!("config={}", self.configuration.display())])
    }

    /// The janitor.
    pub fn reap(&self) -> Command {
        let mut reap = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        reap.arg("reap").arg("--config").arg(&self.configuration).stdin(Stdio::null());
        reap
    }

    /// What there is of steps: directories and records. Not what belongs to the bystander.
    pub fn left(&self) -> Vec<PathBuf> {
        let theirs = |path: &PathBuf| path.components().any(|name| name.as_os_str() == "step_7");
        let (kept, mut left): (Vec<_>, Vec<_>) = self.left_of_all().into_iter().partition(theirs);
        left.retain(|path| !kept.iter().any(|kept| kept.starts_with(path)));
        let mut records = Vec::new();
        walk_files(&self.temp.path().join("run"), &mut records);
        left.extend(
            records
                .into_iter()
                .filter(|path| !path.to_string_lossy().ends_with(",step_7") && !path.ends_with("roll/list")),
        );
        left
    }

    /// What can be seen of those who have nothing to do with it.
    fn bystanders(&self) -> Vec<String> {
        let mut seen = Vec::new();
        for pid in [self.bystander.daemon.id().cast_signed(), self.bystander.straggler] {
            seen.push(life(pid).unwrap_or_else(|| format!("{pid} is dead")));
        }
        for hierarchy in &self.layout.hierarchies {
            let mut dirs = Vec::new();
            for top in self.tops().filter(|top| top.starts_with(&hierarchy.mount)) {
                walk(&top, &mut dirs);
            }
            let steps: Vec<PathBuf> = dirs.iter().filter(|dir| dir.ends_with("step_7")).cloned().collect();
            // It, what is in it, and what is around it.
            let mut theirs: Vec<&PathBuf> =
                dirs.iter().filter(|dir| steps.iter().any(|step| is_one_line(step, dir))).collect();
            theirs.sort();
            for dir in theirs {
                for file in LIMITS.iter().chain(&STATES) {
                    if let Ok(text) = fs::read_to_string(dir.join(file)) {
                        seen.push(format!("{}/{file} {}", dir.display(), text.trim()));
                    }
                }
            }
        }
        seen
    }

    /// What has happened to those who have nothing to do with it; nothing, if all is well.
    pub fn harm(&self) -> Option<String> {
        let now = self.bystanders();
        let changed: Vec<&String> = now.iter().filter(|line| !self.undisturbed.contains(line)).collect();
        if now.len() != self.undisturbed.len() || !changed.is_empty() {
            return Some(format!("the bystander: {changed:?}, {} instead of {}", now.len(), self.undisturbed.len()));
        }
        let outside = life(self.outside.id().cast_signed());
        (outside.as_ref() != Some(&self.outside_is)).then(|| format!("who is in no fence: {outside:?}"))
    }

    /// What a run that went wrong has left does not make the next one wrong.
    pub fn scrub(&self) {
        // What is within comes first.
        for path in self.left() {
            for pid in fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
            }
            let deadline = Instant::now() + Duration::from_secs(1);
            let gone = |path: &Path| fs::remove_dir(path).is_ok() || fs::remove_file(path).is_ok();
            while !gone(&path) && path.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The bystander's step ends, and its directories with it; says what was wrong with that.
    pub fn finish(mut self) -> Option<String> {
        drop(self.bystander.daemon.stdin.take());
        let status = self.bystander.daemon.wait().unwrap();
        let left: Vec<PathBuf> = self.left_of_all();
        (!status.success() || !left.is_empty()).then(|| format!("the bystander's end: {status}, and {left:?} are left"))
    }

    fn left_of_all(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        self.tops().for_each(|top| walk(&top, &mut left));
        // These belong to no step: that of 'jobfence hold', and the one for Slurm's daemons without a job.
        left.retain(|path| !path.ends_with("hold") && !path.ends_with("system"));
        left
    }

    /// Below which all steps are.
    fn tops(&self) -> impl Iterator<Item = PathBuf> {
        let ours = self.layout.hierarchies.iter().map(|hierarchy| hierarchy.mount.join(&self.base.name));
        ours.chain(self.slurms.iter().map(|(_, top)| top.clone()))
    }

    /// Whether it is a directory of Slurm's of which nobody can know whose it is: of a step that has not been marked, or around one.
    pub fn is_unmarked(&self, dir: &Path) -> bool {
        let mut within = Vec::new();
        walk(dir, &mut within);
        let is_marked = |dir: &Path| Dir::open(dir).is_ok_and(|dir| mark::get(&dir).is_ok_and(|mark| mark.is_some()));
        // That of its job may bear another step's.
        let is_of_step = |dir: &&Path| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step_"));
        self.slurms.iter().any(|(_, top)| dir.starts_with(top))
            && !dir.ancestors().chain(within.iter().map(PathBuf::as_path)).filter(is_of_step).any(is_marked)
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        let _ = self.outside.kill();
        let _ = self.outside.wait();
        if matches!(self.bystander.daemon.try_wait(), Ok(None)) {
            let _ = self.bystander.daemon.kill();
            let _ = kill(Pid::from_raw(self.bystander.straggler), Signal::SIGKILL);
            let _ = self.bystander.daemon.wait();
            // A test that failed leaves less behind so.
            let _ = self.reap().stdout(Stdio::null()).status();
        }
        for (_, top) in &self.slurms {
            let _ = fs::remove_dir(top.join("system"));
            let _ = fs::remove_dir(top);
        }
    }
}

/// The word for the stand-in.
fn theirs((kind, top): &(&'static str, PathBuf)) -> String {
    format!("theirs={kind}:{}", top.display())
}

/// Whether this version of cgroups has such a file; some are of both.
fn is_of(version: Version, file: &str) -> bool {
    let v1 = ["cfs", "shares", "in_bytes"].iter().any(|part| file.contains(part));
    let v2 = ["cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "memory.high"].contains(&file);
    if version == Version::V2 { !v1 } else { !v2 }
}

/// Whether one is the other, or is above it.
fn is_one_line(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The name of a hierarchy in /proc/PID/cgroup, whose controllers have an order of their own there.
fn kernels_name(hierarchy: &jobfence::cgroup::layout::Hierarchy) -> String {
    if hierarchy.version == Version::V2 {
        return "unified".to_owned();
    }
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    let names = text.lines().filter_map(|line| line.split(':').nth(1));
    let is_it = |name: &&str| {
        let mut of_line: Vec<&str> = name.split(',').collect();
        of_line.sort_unstable();
        match &hierarchy.name {
            Some(named) => *name == format!("name={named}"),
            None => of_line.iter().copied().eq(hierarchy.controllers.iter().map(String::as_str)),
        }
    };
    names.into_iter().find(is_it).unwrap_or("none").to_owned()
}

/// Who a process is and where; `None` if it does not live.
fn life(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name: the state, and much later the start time.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    let place = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    Some(format!("{pid} started {} is in {}", fields.get(19)?, place.trim().replace('\n', " ")))
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), found);
            found.push(entry.path());
        }
    }
}

fn walk_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => walk_files(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

/// What a step says, and who is left of it: the end of the pipe that all its processes have on their stdout.
pub struct Said {
    pipe: PipeReader,
    text: String,
}

impl Said {
    /// Directs a command's stdout here.
    pub fn of(command: &mut Command) -> Self {
        let (pipe, end) = std::io::pipe().unwrap();
        command.stdout(end);
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Self { pipe, text: String::new() }
    }

    /// What it has said up to now.
    pub fn text(&mut self) -> &str {
        self.take();
        &self.text
    }

    /// Whether the other end is closed.
    fn take(&mut self) -> bool {
        let mut bytes = [0u8; 16_384];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => return true,
                Ok(n) => self.text.push_str(&String::from_utf8_lossy(bytes.get(..n).unwrap_or_default())),
                Err(_) => return false,
            }
        }
    }

    /// Waits until it says this, and says whether it does in time.
    pub fn says(&mut self, word: &str, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.text().contains(word) {
            if Instant::now() >= deadline {
                return false;
            }
            let _ = poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], PollTimeout::from(50u8));
        }
        true
    }

    /// Waits until no process is left, for as long as that may take, and says whether that is so.
    pub fn is_over(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            if self.take() {
                return true;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap();
            let _ = poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    /// The process that the task has left.
    pub fn straggler(&mut self) -> Option<Pid> {
        let pid = self.text().lines().find_map(|line| line.strip_prefix("ran "))?.parse().ok()?;
        (pid > 1).then(|| Pid::from_raw(pid))
    }
}
