// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence resize`: a job that runs gets more or less than it was granted, and its later steps have the same.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

mod common;

const USER: &str = "65534";
const MIB: u64 = 1 << 20;

struct Site {
    run: tempfile::TempDir,
    base: common::Base,
    more: Vec<String>,
}

/// What a directory is limited to: thousandths of CPUs, and MiB.
type Limits = (Option<u64>, Option<u64>);

impl Site {
    fn new(test: &str, more: &[&str]) -> Option<Self> {
        let base = common::Base::if_root("resize", test)?;
        let more = more.iter().flat_map(|key| ["-o".to_owned(), (*key).to_owned()]).collect();
        Some(Self { run: tempfile::tempdir().unwrap(), base, more })
    }

    fn jobfence(&self, words: &[&str]) -> Output {
        let [subcommand, rest @ ..] = words else { panic!("no subcommand") };
        common::command(subcommand, &self.base, self.run.path()).args(rest).args(&self.more).output().unwrap()
    }

    /// A command that succeeds, and says nothing that goes wrong.
    fn done(&self, words: &[&str]) -> String {
        let output = self.jobfence(words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command that fails with a sentence.
    fn refused(&self, words: &[&str], expected: &str) {
        let output = self.jobfence(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(expected), "{words:?}: {output:?}");
    }

    /// Opens a step of job 5, and puts a process into it.
    fn step(&self, step: &str, cpus: &str, memory: &str) -> Process {
        self.done(&["open", "--job", "5", "--step", step, "--user", USER, "--cpus", cpus, "--mem", memory]);
        let process = Process::new();
        self.done(&["attach", "--job", "5", "--step", step, "--task", "0", &process.0.id().to_string()]);
        process
    }

    fn close(&self) {
        self.done(&["close", "--job", "5"]);
    }
}

/// A process of the job's user that takes memory, writes a file and gives memory back at a word.
struct Process(Child);

const PROGRAM: &str = "
import sys
held = []
for line in sys.stdin:
    word, amount = line.split()
    if word == 'hold': held.append(b'x' * (int(amount) << 20))
    elif word == 'free': held.clear()
    elif word == 'cache':
        with open(sys.argv[1], 'wb') as file:
            for _ in range(int(amount)): file.write(b'x' * (1 << 20))
    print('done', flush=True)
";

impl Process {
    fn new() -> Self {
        Self::with_file("/dev/null")
    }

    fn with_file(file: &str) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, file]).uid(65_534).gid(65_534).current_dir("/");
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn does(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "done\n", "{what}");
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The limits of its task, its step and its job.
    fn limits(&self) -> [Limits; 3] {
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).unwrap();
        [0, 1, 2].map(|above| (cpus(&cgroup, above), memory(&cgroup, above)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory so many levels above that of a process in the hierarchy of a controller, and whether it is v1's.
fn dir(cgroup: &str, controller: &str, above: usize) -> (String, bool) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts: Vec<Vec<&str>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
    let v1 = mounts.iter().find(|words| words[2] == "cgroup" && words[3].split(',').any(|option| option == controller));
    let (mount, prefix) = match v1 {
        Some(words) => (words[1], format!(":{controller}:")),
        None => (mounts.iter().find(|words| words[2] == "cgroup2").unwrap()[1], "0::".to_owned()),
    };
    let line = cgroup.lines().find(|line| line.contains(&prefix)).unwrap();
    let mut path = line.splitn(3, ':').nth(2).unwrap();
    for _ in 0..above {
        path = path.rsplit_once('/').unwrap().0;
    }
    (format!("{mount}{path}"), v1.is_some())
}

fn cpus(cgroup: &str, above: usize) -> Option<u64> {
    let (dir, is_v1) = dir(cgroup, "cpu", above);
    let read = |file: &str| fs::read_to_string(format!("{dir}/{file}")).unwrap().trim().to_owned();
    let text =
        if is_v1 { format!("{} {}", read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")) } else { read("cpu.max") };
    let (quota, period) = text.split_once(' ').unwrap();
    Some(quota.parse::<u64>().ok()? * 1000 / period.parse::<u64>().unwrap())
}

fn memory(cgroup: &str, above: usize) -> Option<u64> {
    let (dir, is_v1) = dir(cgroup, "memory", above);
    let file = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
    let text = fs::read_to_string(format!("{dir}/{file}")).unwrap();
    text.trim().parse::<u64>().ok().map(|bytes| bytes / MIB).filter(|mib| *mib < 1 << 40)
}

#[test]
fn a_job_gets_more_and_less_and_its_later_steps_have_the_same() {
    let Some(site) = Site::new("both", &["MaxCPUsPerTask=granted", "MaxRAMPerTask=1G"]) else { return };
    let [first, second] = ["0", "1"].map(|step| site.step(step, "1", "64M"));
    let was = (Some(1000), Some(64));
    assert_eq!(first.limits()[1..], [was, was]);
    let mut later = Vec::new();
    for (cpus, memory, expected) in [
        ("2", "128M", (Some(2000), Some(128))),
        ("0.5", "48M", (Some(500), Some(48))),
        ("4", "256M", (Some(4000), Some(256))),
    ] {
        site.done(&["resize", "5", "--cpus", cpus, "--memory", memory]);
        // It has what was granted, which is no longer what the job has.
        later.push(site.step(&format!("{}", later.len() + 2), "1", "64M"));
        for process in [&first, &second].into_iter().chain(&later) {
            let [(of_task, _), step, job] = process.limits();
            assert_eq!((step, job), (expected, expected), "{cpus} {memory}");
            let is_new = later.iter().any(|new| new.0.id() == process.0.id());
            assert!(is_new || of_task == expected.0, "{of_task:?} of {expected:?}");
        }
    }
    // What is not named stays, and a step alone has no more than its job.
    site.done(&["resize", "5", "--step", "1", "--cpus", "3"]);
    site.done(&["resize", "5", "--step", "0", "--memory", "1G"]);
    assert!(site.done(&["show", "5"]).contains("resized"));
    assert_eq!(second.limits()[1..], [(Some(3000), Some(256)), (Some(4000), Some(256))]);
    assert_eq!(first.limits()[1..], [(Some(4000), Some(256)), (Some(4000), Some(256))]);
    // Processes that resume the fence know the limits, too.
    let another = Process::new();
    site.done(&["attach", "--job", "5", "--step", "0", "--task", "1", &another.0.id().to_string()]);
    assert_eq!(another.limits()[0].0, Some(4000));
    site.close();
}

#[test]
fn memory_in_use_is_not_taken_and_page_cache_is() {
    let Some(site) = Site::new("in_use", &["ConstrainSwapSpace=no"]) else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("cache");
    fs::write(&file, "").unwrap();
    nix::unistd::chown(&file, Some(65_534.into()), None).unwrap();
    for above in dir.path().ancestors() {
        if fs::File::open(above).is_err() {
            return common::skip("the user cannot reach the directory");
        }
    }
    site.done(&["open", "--job", "5", "--user", USER, "--cpus", "1", "--mem", "256M"]);
    let mut process = Process::with_file("/dev/null");
    site.done(&["attach", "--job", "5", &process.0.id().to_string()]);
    process.does("hold 100");
    let was = (Some(1000), Some(256));
    site.refused(&["resize", "5", "--cpus", "2", "--memory", "64M"], "MiB of memory are in use");
    let cgroup = |process: &Process| fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    let now = |process: &Process| [0, 1].map(|above| (cpus(&cgroup(process), above), memory(&cgroup(process), above)));
    assert_eq!(now(&process), [was, was]);
    assert!(process.is_alive());
    assert!(!site.done(&["show", "5"]).contains("resized"));
    site.done(&["resize", "5", "--memory", "160M"]);
    process.does("free 0");
    // Only reclaim makes room for the limit.
    let mut writer = Process::with_file(file.to_str().unwrap());
    site.done(&["attach", "--job", "5", &writer.0.id().to_string()]);
    writer.does("cache 100");
    let in_use = || {
        let (dir, is_v1) = self::dir(&cgroup(&writer), "memory", 0);
        let file = if is_v1 { "memory.usage_in_bytes" } else { "memory.current" };
        fs::read_to_string(format!("{dir}/{file}")).unwrap().trim().parse::<u64>().unwrap() / MIB
    };
    if in_use() < 64 {
        common::skip("what is written stays in no page cache here");
        return site.close();
    }
    site.done(&["resize", "5", "--memory", "64M"]);
    assert_eq!(now(&writer), [(Some(1000), Some(64)); 2]);
    assert!(in_use() <= 64 && writer.is_alive() && process.is_alive());
    site.close();
}

#[test]
fn what_cannot_be_changed_is_said() {
    let Some(site) = Site::new("said", &["ConstrainRAMSpace=no", "ConstrainSwapSpace=no"]) else { return };
    site.refused(&["resize", "5", "--cpus", "2"], "no fence of job 5");
    let process = site.step("0", "1", "64M");
    site.refused(&["resize", "5", "--memory", "128M"], "jobfence.conf does not limit the memory of this job");
    site.refused(&["resize", "5", "--step", "1", "--cpus", "2"], "no fence of job 5");
    let output = site.jobfence(&["resize", "5"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(process.limits()[1].0, Some(1000));
    site.close();
}

#[test]
fn no_limit_is_set_for_the_first_time() {
    let Some(site) = Site::new("first", &["ConstrainSwapSpace=no", "MaxCPUsPerUser=2"]) else { return };
    site.done(&["open", "--job", "5", "--user", USER, "--cpus", "1"]);
    site.refused(&["resize", "5", "--memory", "128M"], "the job has no limit of memory that could be changed");
    site.refused(&["resize", "5", "--cpus", "3"], "no more than 2 CPUs (MaxCPUsPerUser)");
    site.close();
}

#[test]
fn a_second_change_waits_for_the_first() {
    let Some(site) = Site::new("two", &["ConstrainSwapSpace=no"]) else { return };
    let process = site.step("0", "1", "64M");
    let records = jobfence::record::Records::open(&site.run.path().join("run")).unwrap();
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    let job = std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir(&cgroup, "memory", 1).0).unwrap());
    let now = std::time::Instant::now;
    let mut memory = 64;
    // Another resize has the one, and 'jobfence hold' that lends memory the other.
    for is_of_hold in [false, true] {
        let take = || if is_of_hold { records.lock_memory(job, now()) } else { records.lock_resizes(now()) };
        for command in [&["resize", "5", "--memory"][..], &["limit", "--job", "5", "--cpus", "1", "--mem"]] {
            let (lock, wanted) = (take().unwrap(), memory + 64);
            let mut second = common::command(command[0], &site.base, site.run.path());
            let second = second.args(&command[1..]).arg(format!("{wanted}M")).args(&site.more);
            let mut second = second.stdout(Stdio::null()).spawn().unwrap();
            let ends = now() + std::time::Duration::from_secs(2);
            while now() < ends {
                assert!(second.try_wait().unwrap().is_none() && process.limits()[1].1 == Some(memory), "{command:?}");
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            drop(lock);
            assert!(second.wait().unwrap().success());
            assert_eq!(process.limits()[1].1, Some(wanted), "{command:?}");
            memory = wanted;
        }
    }
    site.close();
}

/// The job ends and begins again between the first look of the command and its first write: the name is the same, the directories are others.
#[test]
fn a_job_that_begins_again_meanwhile_keeps_its_limits() {
    use std::path::Path;

    use jobfence::cgroup::mark;
    use jobfence::sys::dir::Dir;

    let Some(site) = Site::new("again", &["ConstrainSwapSpace=no"]) else { return };
    site.done(&["open", "--job", "5", "--user", USER, "--cpus", "1", "--mem", "64M"]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounts = mounts.filter(|words| words[2].starts_with("cgroup"));
    let of_job = |words: Vec<&str>| Path::new(words[1]).join(&site.base.name).join(format!("uid_{USER}/job_5"));
    let mut jobs: Vec<_> = mounts.map(of_job).filter(|job| job.exists()).collect();
    jobs.sort();
    jobs.dedup();
    let note = |job: &Path| mark::resized(&Dir::open(job).unwrap()).unwrap();
    assert!(!jobs.is_empty() && jobs.iter().all(|job| note(job).is_none()));

    let records = jobfence::record::Records::open(&site.run.path().join("run")).unwrap();
    let later = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let lock = records.lock_limits(later).unwrap();
    let mut command = common::command("resize", &site.base, site.run.path());
    let command = command.args(["5", "--cpus", "2"]).args(&site.more).stderr(Stdio::piped()).spawn().unwrap();
    // The quota comes after the note, and waits for the lock.
    common::until("the note", || jobs.iter().all(|job| note(job).is_some()));
    for job in &jobs {
        let names = || fs::read_dir(job).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_dir());
        let steps: Vec<_> = names().map(|entry| entry.path()).collect();
        let all = || steps.iter().chain([job]);
        all().for_each(|dir| fs::remove_dir(dir).unwrap());
        all().rev().for_each(|dir| fs::create_dir(dir).unwrap());
    }
    drop(lock);
    let output = command.wait_with_output().unwrap();
    // Or, on a busy machine, it has not waited for so long.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for job in &jobs {
        assert_eq!(note(job), None, "{}", job.display());
        let names = [("cpu.max", "max"), ("cpu.cfs_quota_us", "-1"), ("memory.max", "max")];
        for (file, unlimited) in names.map(|(file, unlimited)| (job.join(file), unlimited)) {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            assert_eq!(text.split_whitespace().next(), Some(unlimited), "{}", file.display());
        }
    }
    site.close();
}

#[test]
fn what_limit_sets_later_steps_have() {
    let Some(site) = Site::new("limit", &["ConstrainSwapSpace=no"]) else { return };
    let _first = site.step("0", "1", "64M");
    site.done(&["resize", "5", "--cpus", "4", "--memory", "256M"]);
    assert!(site.done(&["show", "5"]).contains("resized"));
    site.done(&["limit", "--job", "5", "--cpus", "2", "--mem", "128M"]);
    assert!(!site.done(&["show", "5"]).contains("resized"));
    let later = site.step("1", "1", "64M");
    // Its job has no more CPUs than it, and it has no directory of a task for memory.
    assert_eq!((later.limits()[1].0, later.limits()[0].1), (Some(1000), Some(64)));
    site.close();
}

/// HTCondor's starter is in the step beside the job, whose directories are below one of the step's.
#[test]
fn what_the_scheduler_runs_beside_the_job_keeps_its_room() {
    use jobfence::config;
    use jobfence::doors::life::{self, Room};
    use jobfence::doors::opening::{Granted, HeldBy, OpenRequest};
    use jobfence::doors::recorded::WantedFences;
    use jobfence::job::{Cpus, Id};
    use jobfence::launch::Answer;

    let keys = ["StarterMemory=64M", "ConstrainSwapSpace=no"];
    let Some(site) = Site::new("room", &keys) else { return };
    let run = site.run.path().join("run");
    let arguments = [format!("CgroupBase={}", site.base.name), format!("RunDir={}", run.display())];
    let words: Vec<&[u8]> = arguments.iter().map(String::as_bytes).chain(keys.map(str::as_bytes)).collect();
    let loaded = config::load(&words).unwrap();
    let [job, step] = ["12.0", "slot1_1"].map(|id| Id::new(id).unwrap());
    let granted =
        Granted { cpus: Some(Cpus::whole(1)), memory: Some(100 << 20), is_of_step: true, ..Granted::default() };
    let request = OpenRequest {
        uid: 65_534,
        job,
        step,
        run: 1,
        granted,
        holder: HeldBy::Manual,
        ask_unit: None,
        starts_processes: false,
    };
    let room = Room { more: 1 << 20, branches: vec!["htcondor".to_owned()] };
    let Answer::Fenced(live) = life::open_live(Ok(loaded.clone()), &request, Some(&room)) else { panic!("no fence") };
    let process = Process::new();
    site.done(&["attach", "--job", "12.0", &process.0.id().to_string()]);
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    let (path, is_v1) = dir(&cgroup, "memory", 0);
    let file = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
    // As HTCondor makes one.
    let own = format!("{path}/htcondor/own");
    if !is_v1 {
        fs::write(format!("{path}/htcondor/cgroup.subtree_control"), "+memory").unwrap();
    }
    fs::create_dir(&own).unwrap();
    fs::write(format!("{own}/{file}"), "100M").unwrap();
    let limits = || {
        ["", "/htcondor", "/htcondor/own"].map(|below| {
            let text = fs::read_to_string(format!("{path}{below}/{file}")).unwrap();
            text.trim().parse::<u64>().unwrap() / MIB
        })
    };
    assert_eq!(limits(), [165, 100, 100]);
    for (cpus, memory, expected) in [("2", "150M", [215, 150, 150]), ("0.5", "80M", [145, 80, 80])] {
        site.done(&["resize", "12.0", "--cpus", cpus, "--memory", memory]);
        assert_eq!(limits(), expected);
        // The job may have other slots.
        let thousandths = cpus.parse::<f64>().unwrap() * 1000.0;
        assert_eq!((self::cpus(&cgroup, 0), self::cpus(&cgroup, 1)), (Some(thousandths as u64), None));
    }
    // A step that is granted by itself is not the whole job.
    let other = OpenRequest { step: Id::new("slot1_2").unwrap(), ..request.clone() };
    let Answer::Fenced(second) = life::open_live(Ok(loaded.clone()), &other, Some(&room)) else { panic!("no fence") };
    site.refused(&["resize", "12.0", "--memory", "90M"], "name one of them with --step");
    site.done(&["resize", "12.0", "--step", "slot1_1", "--memory", "90M"]);
    assert_eq!(limits(), [155, 90, 90]);
    drop(second);
    let which = WantedFences { job: other.job, step: Some(other.step), run: Some(1) };
    life::close(&loaded.config, &which).unwrap();
    fs::remove_dir(&own).unwrap();
    drop(live);
    let which = WantedFences { job: request.job, step: Some(request.step), run: Some(1) };
    life::close(&loaded.config, &which).unwrap();
}
