// SPDX-License-Identifier: GPL-2.0-or-later
//! A fence's life in commands, each a process of its own: `jobfence open`, `attach`, `limit`, `usage`, `freeze`, `thaw`, `close`.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

/// An array's member, whose id is no valid directory name.
const JOB: &str = "12[3].host";
const USER: &str = "65534";

struct Site {
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("life", test)?;
        Some(Self { run: tempfile::tempdir().unwrap(), base })
    }

    fn jobfence(&self, words: &[&str]) -> Output {
        let [subcommand, rest @ ..] = words else { panic!("no subcommand") };
        common::command(subcommand, &self.base, self.run.path()).args(rest).output().unwrap()
    }

    fn open(&self, more: &[&str]) -> Output {
        self.jobfence(&[&["open", "--job", JOB, "--user", USER], more].concat())
    }

    /// A command that succeeds, and prints only what is asked for.
    fn done(&self, words: &[&str]) -> String {
        let output = self.jobfence(words);
        assert!(output.status.success() && err(&output).is_empty(), "{words:?}: {output:?}");
        out(&output)
    }

    /// A command that fails with a sentence.
    fn refused(&self, words: &[&str], expected: &str) {
        let output = self.jobfence(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(err(&output).starts_with("jobfence: ") && err(&output).contains(expected), "{words:?}: {output:?}");
    }

    /// A command that succeeds, and prints this.
    fn done_with_words(&self, words: &[&str], expected: &str) {
        let output = self.jobfence(words);
        assert!(output.status.success() && err(&output).contains(expected), "{words:?}: {output:?}");
    }

    fn records(&self) -> Vec<PathBuf> {
        let run = self.run.path().join("run");
        fs::read_dir(run).into_iter().flatten().flatten().map(|e| e.path()).filter(|path| is_record(path)).collect()
    }

    /// Whether no directory of this base, in any hierarchy, has a step below it.
    fn is_clean(&self) -> bool {
        let has_steps = |mount: &Path| {
            fs::read_dir(mount.join(&self.base.name))
                .into_iter()
                .flatten()
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().starts_with("uid_"))
        };
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let cgroups = mounts.lines().filter(|line| line.split(' ').nth(2).is_some_and(|t| t.starts_with("cgroup")));
        self.records().is_empty() && !cgroups.filter_map(|line| line.split(' ').nth(1)).any(|m| has_steps(Path::new(m)))
    }
}

fn is_record(path: &Path) -> bool {
    path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uid_"))
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process of the job's user.
struct Started(Child);

impl Started {
    fn new(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).uid(65_534).gid(65_534).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    fn sleeper() -> Self {
        Self::new("/bin/sleep", &["300"])
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn cgroup(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid())).unwrap_or_default()
    }

    fn signal_that_ended_it(&mut self) -> Option<i32> {
        let deadline = common::soon();
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.signal();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A number member of the output.
fn number(json: &str, name: &str) -> Option<f64> {
    let rest = json.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()?.parse().ok()
}

#[test]
fn six_processes_share_a_life() {
    let Some(site) = Site::new("six") else { return };
    let opened = site.open(&["--cpus", "0.5", "--mem", "64M", "--pids-max", "20"]);
    // The user's requests are logged, as everywhere.
    assert!(opened.status.success() && err(&opened).contains("the user asked for"), "{opened:?}");
    let path = out(&opened).trim().to_owned();
    assert!(path.ends_with("/uid_65534/job_12+5B3+5D.host/step_0"), "{path}");

    let mut sleeper = Started::sleeper();
    site.done(&["attach", "--job", JOB, &sleeper.pid()]);
    assert!(sleeper.cgroup().contains(&path), "{}", sleeper.cgroup());
    let usage = site.done(&["usage", "--job", JOB, "--json"]);
    assert!(
        usage.starts_with("{\"schema\":1,\"fences\":[{\"job\":\"12[3].host\",\"step\":\"0\",\"run\":1,"),
        "{usage}"
    );
    let limits = ["cpus_limit", "memory_limit_bytes", "processes_limit"].map(|name| number(&usage, name));
    assert_eq!(limits, [Some(0.5), Some(f64::from(64 << 20)), Some(20.0)], "{usage}");
    assert!(usage.contains("\"holder\":\"manual\"") && number(&usage, "cpu_seconds").is_some(), "{usage}");

    // First more, then less.
    for (cpus, memory) in [("2", 128), ("0.25", 32)] {
        site.done(&["limit", "--job", JOB, "--cpus", cpus, "--mem", &format!("{memory}M"), "-o", "MaxProcesses=9"]);
        let usage = site.done(&["usage", "--job", JOB, "--json"]);
        let limits = ["cpus_limit", "memory_limit_bytes", "processes_limit"].map(|name| number(&usage, name));
        assert_eq!(limits, [cpus.parse().ok(), Some(f64::from(memory << 20)), Some(9.0)], "{usage}");
    }

    // A frozen process does not even die of a signal that it handles.
    let mut shell = Started::new("/bin/sh", &["-c", "read go; exit 7"]);
    site.done(&["attach", "--job", JOB, "--step", "0", &shell.pid()]);
    site.done(&["freeze", "--job", JOB]);
    drop(shell.0.stdin.take());
    std::thread::sleep(Duration::from_millis(100));
    assert!(shell.0.try_wait().unwrap().is_none(), "it was not frozen");
    site.done(&["thaw", "--job", JOB]);
    assert_eq!(shell.0.wait().unwrap().code(), Some(7));

    let closed = site.done(&["close", "--job", JOB, "--verbose"]);
    assert!(closed.starts_with("job 12[3].host step 0 ended: cpu "), "{closed}");
    assert_eq!(sleeper.signal_that_ended_it(), Some(libc::SIGKILL));
    assert!(site.is_clean(), "{:?}", site.records());
}

#[test]
fn each_end_has_a_clear_answer() {
    let Some(site) = Site::new("end") else { return };
    let sleeper = Started::sleeper();
    let nothing = format!("jobfence: there is no fence of job {JOB}: nothing to close\n");
    site.refused(&["attach", "--job", JOB, &sleeper.pid()], &format!("there is no fence of job {JOB};"));
    assert!(site.open(&[]).status.success());
    site.refused(&["open", "--job", JOB, "--user", USER], "this run of the step has a fence already");
    assert!(site.open(&["--run", "2"]).status.success(), "another run has one of its own");
    site.refused(&["attach", "--job", JOB, &sleeper.pid()], "name one with --step and --run");
    site.done(&["close", "--job", JOB, "--run", "2"]);
    site.done(&["close", "--job", JOB]);
    let again = site.jobfence(&["close", "--job", JOB]);
    assert!(again.status.success() && err(&again) == nothing, "{again:?}");
    // Where no cgroup is, there is no fence either.
    const NO_CGROUPS: &str = "CgroupMountpoint=/nonexistent";
    let nowhere = site.jobfence(&["close", "-o", NO_CGROUPS, "--job", JOB]);
    assert!(nowhere.status.success() && err(&nowhere) == nothing, "{nowhere:?}");
    site.refused(&["usage", "-o", NO_CGROUPS, "--job", JOB], "there is no fence of");
    site.refused(&["freeze", "-o", NO_CGROUPS, "--job", JOB], "there is no fence of");
    for words in [
        ["attach", "--job", JOB, &sleeper.pid()].as_slice(),
        &["limit", "--job", JOB, "--cpus", "1"],
        &["freeze", "--job", JOB],
        &["thaw", "--job", JOB],
        &["usage", "--job", JOB],
    ] {
        site.refused(words, "there is no fence of");
    }
    assert!(site.is_clean());
}

/// Docker's daemon can make a cgroup only beside that of the step's processes, on cgroup2.
#[test]
fn processes_leave_room_for_containers_on_cgroup2() {
    let Some(site) = Site::new("containers") else { return };
    let opened = site.open(&["--mem", "64M", "-o", "Delegate=containers"]);
    assert!(opened.status.success(), "{opened:?}");
    let path = out(&opened).trim().to_owned();
    let sleeper = Started::sleeper();
    site.done(&["attach", "--job", JOB, &sleeper.pid()]);
    let cgroup = sleeper.cgroup();
    for line in cgroup.lines().filter(|line| line.contains(&path)) {
        assert_eq!(line.ends_with(&format!("{path}/user")), line.starts_with("0::"), "{cgroup}");
    }
    for top in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let owner = fs::metadata(format!("{top}{path}/user")).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
        assert_eq!(owner.unwrap_or(0), 0, "the directory is root's");
    }
    assert!(cgroup.contains(&path), "{cgroup}");
    site.done(&["close", "--job", JOB]);
    assert!(site.is_clean());
}

/// The janitor would not remove it: a fence with a manual holder lives until the next boot.
#[test]
fn a_fence_that_cannot_be_limited_is_taken_back() {
    let Some(site) = Site::new("unlimited") else { return };
    let no_disk = site.open(&["-o", "IOMax=/nowhere rbps=1M"]);
    assert_eq!(no_disk.status.code(), Some(1), "{no_disk:?}");
    assert!(err(&no_disk).contains("/nowhere"), "{no_disk:?}");
    let (is_clean, closed) = (site.is_clean(), site.jobfence(&["close", "--job", JOB]));
    assert!(is_clean && err(&closed).contains("nothing to close"), "{closed:?}");
}

#[test]
fn a_limit_for_which_there_is_no_directory_is_an_error() {
    let Some(site) = Site::new("lacks") else { return };
    site.open(&["--cpus", "1", "--mem", "64M"]);
    let limited = site.jobfence(&["limit", "--job", JOB, "--cpus", "1", "--mem", "64M", "-o", "MaxProcesses=9"]);
    let has_limit = number(&site.done(&["usage", "--job", JOB, "--json"]), "processes_limit") == Some(9.0);
    // On v2 a directory can get each controller at any time.
    assert_eq!(limited.status.success(), has_limit, "{limited:?}");
    assert!(has_limit || err(&limited).contains("opened without such a limit"), "{limited:?}");
    site.done(&["close", "--job", JOB]);
}

#[test]
fn two_who_open_at_once_have_one_fence() {
    let Some(site) = Site::new("twice") else { return };
    let start = || {
        let mut command = common::command("open", &site.base, site.run.path());
        command.args(["--job", JOB, "--user", USER]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for _ in 0..5 {
        let both = [start(), start()].map(|child| child.wait_with_output().unwrap());
        let opened = both.iter().filter(|output| output.status.success()).count();
        assert_eq!(opened, 1, "{both:?}");
        assert!(both.iter().any(|output| err(output).contains("has a fence already")), "{both:?}");
        assert_eq!(site.records().len(), 1);
        site.done(&["close", "--job", JOB]);
        assert!(site.is_clean());
    }
}

#[test]
fn a_fence_of_another_boot_is_only_a_record() {
    let Some(site) = Site::new("boot") else { return };
    assert!(site.open(&[]).status.success());
    let record = site.records().pop().unwrap();
    let ours = fs::read_to_string(&record).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    site.done(&["close", "--job", JOB]);
    // What a boot leaves: the file, if RunDir is on a disk, and no directory.
    let put = || fs::write(&record, ours.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")).unwrap();
    let put = || {
        put();
        fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    put();
    let sleeper = Started::sleeper();
    site.refused(&["attach", "--job", JOB, &sleeper.pid()], "the machine has booted since");
    let closed = site.jobfence(&["close", "--job", JOB]);
    assert!(closed.status.success() && err(&closed).contains("the machine has booted since"), "{closed:?}");
    assert!(site.is_clean());
    // Nor does it block the name for a job that runs again.
    put();
    assert!(site.open(&[]).status.success());
    site.done(&["close", "--job", JOB]);
    assert!(site.is_clean());
}

#[test]
fn only_the_holders_end_ends_it() {
    let Some(site) = Site::new("holder") else { return };
    let mut holder = Started::sleeper();
    let mut sleeper = Started::sleeper();
    let reaped = || site.jobfence(&["reap"]);
    site.refused(&["open", "--job", JOB, "--user", USER, "--holder", "pid:2147483646"], "no such process to hold");
    assert!(site.open(&["--holder", &format!("pid:{}", holder.pid())]).status.success());
    site.done(&["attach", "--job", JOB, &sleeper.pid()]);
    assert!(out(&reaped()).contains("0 removed, 1 alive"), "{:?}", reaped());
    assert!(sleeper.0.try_wait().unwrap().is_none());
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    assert!(out(&reaped()).contains("1 removed, 0 alive"));
    assert_eq!(sleeper.signal_that_ended_it(), Some(libc::SIGKILL));
    assert!(site.is_clean());

    let mut sleeper = Started::sleeper();
    assert!(site.open(&["--holder", "manual"]).status.success());
    site.done(&["attach", "--job", JOB, &sleeper.pid()]);
    assert!(out(&reaped()).contains("0 removed, 1 alive"));
    assert!(sleeper.0.try_wait().unwrap().is_none());
    site.done(&["close", "--job", JOB]);
    assert_eq!(sleeper.signal_that_ended_it(), Some(libc::SIGKILL));
    site.refused(&["open", "--job", JOB, "--user", USER, "--holder", "scheduler:Slurm"], "Slurm does not say");
    site.refused(&["open", "--job", JOB, "--user", USER, "--holder", "scheduler:No"], "No is no scheduler here");
    let refused = site.open(&["--holder", "nobody"]);
    assert!(
        refused.status.code() == Some(2)
            && err(&refused).contains("expected pid:NUMBER, unit:NAME, scheduler:NAME or manual")
    );
}

#[test]
fn nobody_elses_process_is_put_in() {
    let Some(site) = Site::new("others") else { return };
    assert!(site.open(&[]).status.success());
    let us = std::process::id().to_string();
    site.refused(&["attach", "--job", JOB, &us], "is not of the job's user: (value \"uid 0, not 65534\")");
    for pid in ["0", "1"] {
        site.refused(&["attach", "--job", JOB, pid], "cannot be put into a job's fence");
    }
    site.refused(&["attach", "--job", JOB, "2147483646"], "there is no such process");
    let mut roots = Command::new("/bin/sleep").arg("300").spawn().unwrap();
    let pid = roots.id().to_string();
    site.refused(&["attach", "--job", JOB, &pid], "--any-user");
    site.done(&["attach", "--job", JOB, "--any-user", &pid]);
    site.done(&["close", "--job", JOB]);
    assert_eq!(roots.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(site.is_clean());
}

#[test]
fn whoever_closes_it_says_who_was_killed_and_who_could_not_fork() {
    let Some(site) = Site::new("killed") else { return };
    assert!(site.open(&["--mem", "40M", "--pids-max", "3"]).status.success());
    let hog = "import os, sys
sys.stdin.readline()
refused = False
for _ in range(9):
    try:
        if os.fork() == 0: os.read(0, 1)
    except OSError: refused = True
print('refused', refused, flush=True)
bytearray(80 << 20)";
    let mut hog = Started::new("/usr/bin/python3", &["-S", "-c", hog]);
    site.done(&["attach", "--job", JOB, &hog.pid()]);
    std::io::Write::write_all(hog.0.stdin.as_mut().unwrap(), b"go\n").unwrap();
    assert_eq!(hog.signal_that_ended_it(), Some(libc::SIGKILL));
    let closed = site.jobfence(&["close", "--job", JOB]);
    assert!(closed.status.success(), "{closed:?}");
    let said = err(&closed);
    assert!(said.contains("(python3) was killed") && said.contains("memory limit of 40.0 MiB"), "{said}");
    assert!(said.contains("7 processes or threads were refused"), "{said}");
    assert!(said.contains("ask for more with --pids-max"), "its user has set the limit: {said}");
    assert!(site.is_clean());
}

#[test]
fn who_could_raise_the_limit_is_said_by_every_process() {
    let Some(site) = Site::new("asked") else { return };
    assert!(site.open(&["--pids-max", "2"]).status.success());
    let mut forks = Started::new("/bin/sh", &["-c", "read go; while :; do (:) & (:) & (:) & wait; done 2>/dev/null"]);
    site.done(&["attach", "--job", JOB, &forks.pid()]);
    std::io::Write::write_all(forks.0.stdin.as_mut().unwrap(), b"go\n").unwrap();
    let (asked, sites) = ("ask for more with --pids-max", "ask your administrator (MaxProcesses)");
    let says = |expected: &str| {
        let deadline = common::soon();
        let said = || err(&site.jobfence(&["usage", "--job", JOB]));
        while !said().contains(expected) {
            assert!(Instant::now() < deadline, "no {expected:?} in {:?}", said());
        }
    };
    says(asked);
    // The last command's number counts, or the site's if both are equal.
    for (words, expected) in [
        (["-o", "MaxProcesses=2"].as_slice(), sites),
        (&["--pids-max", "2"], asked),
        (&["--pids-max", "2", "-o", "MaxProcesses=2"], sites),
    ] {
        let done = site.jobfence(&[&["limit", "--job", JOB], words].concat());
        assert!(done.status.success(), "{done:?}");
        says(expected);
    }
    site.done_with_words(&["close", "--job", JOB], sites);
    forks.0.wait().unwrap();
    assert!(site.is_clean());
}

/// The kernel's process limit of a process's own cgroup, by its lines in `/proc/PID/cgroup`.
fn processes_limit(cgroup: &str) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount_of = |is_wanted: &dyn Fn(&[&str]) -> bool| {
        let mut all = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        all.find(|words| is_wanted(words)).map(|words| words[1].to_owned())
    };
    let v1 = mount_of(&|words| words[2] == "cgroup" && words[3].split(',').any(|option| option == "pids"));
    let (mount, line) = match v1 {
        Some(mount) => (mount, cgroup.lines().find(|line| line.contains(":pids:")).unwrap()),
        None => {
            (mount_of(&|words| words[2] == "cgroup2").unwrap(), cgroup.lines().find(|l| l.starts_with("0::")).unwrap())
        }
    };
    let path = line.splitn(3, ':').nth(2).unwrap();
    fs::read_to_string(format!("{mount}{path}/pids.max")).unwrap().trim().to_owned()
}

#[test]
fn a_users_section_holds_also_when_limits_change() {
    let Some(site) = Site::new("sections") else { return };
    let conf = site.run.path().join("sections.conf");
    fs::write(&conf, "MaxProcesses=50\n[User=nobody]\nMaxProcesses=40\n[User=daemon]\nMaxProcesses=4\n").unwrap();
    let config = ["--config", conf.to_str().unwrap()];
    let limit_of = || number(&site.done(&["usage", "--job", JOB, "--json"]), "processes_limit");
    assert!(site.open(&config).status.success());
    assert_eq!(limit_of(), Some(40.0));
    site.done(&[&["limit", "--job", JOB, "--cpus", "1"], config.as_slice()].concat());
    assert_eq!(limit_of(), Some(40.0));
    site.done(&["close", "--job", JOB]);
}

#[test]
fn sections_of_queue_project_vnode_type_and_host_are_chosen() {
    let Some(site) = Site::new("facts") else { return };
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let conf = site.run.path().join("facts.conf");
    let text = format!(
        "MaxProcesses=50\n[Queue=big]\nMaxProcesses=60\n[VnodeType=gpu*]\nMaxProcesses=70\n[Project=p]\nMaxProcesses=80\n\
         [Host=no-{host}]\nMaxProcesses=4\n[Host={host}]\nMaxProcessesPerTask=9\n"
    );
    fs::write(&conf, text).unwrap();
    let config = ["--config", conf.to_str().unwrap()];
    let limit_of = || number(&site.done(&["usage", "--job", JOB, "--json"]), "processes_limit");
    let known = ["--queue", "small", "--project", "", "--vnode-type", ""];
    assert!(site.open(&[config.as_slice(), known.as_slice()].concat()).status.success());
    assert_eq!(limit_of(), Some(50.0));
    site.done(&[&["limit", "--job", JOB, "--cpus", "0", "-o", "ZeroCPUs=0.3"], config.as_slice()].concat());
    assert_eq!(number(&site.done(&["usage", "--job", JOB, "--json"]), "cpus_limit"), Some(0.3));
    for (more, expected) in [
        (["--queue", "big", "--project", "", "--vnode-type", "thin"].as_slice(), 60.0),
        (&["--partition", "big", "--project", "", "--vnode-type", "thin,gpu2"], 70.0),
        (&["--queue", "big", "--project", "p", "--vnode-type", "gpu"], 80.0),
        (&["--queue", "big", "--project", "p"], 80.0),
        // Unknown facts make nothing more generous.
        (&["--queue", "big", "--vnode-type", ""], 60.0),
        (&[], 50.0),
    ] {
        site.done(&[&["limit", "--job", JOB], config.as_slice(), more].concat());
        assert_eq!(limit_of(), Some(expected), "{more:?}");
    }
    let mut task = Started::sleeper();
    site.done(&[&["attach", "--job", JOB, "--task", "0", &task.pid()], config.as_slice()].concat());
    assert_eq!(processes_limit(&task.cgroup()), "9");
    site.done(&["close", "--job", JOB]);
    assert_eq!(task.signal_that_ended_it(), Some(libc::SIGKILL));
}

/// On v1 each controller has its own hierarchy: one job may have directories of the user in a hierarchy where another job has none.
#[test]
fn jobs_of_a_user_may_need_different_controllers() {
    let Some(site) = Site::new("controllers") else { return };
    let conf = site.run.path().join("controllers.conf");
    let log = site.run.path().join("usage.jsonl");
    for more in [String::new(), format!("UsageLog={}\n", log.display())] {
        fs::write(&conf, format!("{more}[Queue=small]\nMaxProcesses=100\n")).unwrap();
        let config = ["--config", conf.to_str().unwrap()];
        let of = |words: &[&str], job: &str, more: &[&str]| {
            let [command, rest @ ..] = words else { panic!("no command") };
            site.done(&[&[*command, "--job", job], config.as_slice(), rest, more].concat())
        };
        // One comes before the other, and one after it.
        let jobs = [("1", "small"), ("2", "large"), ("3", "small")];
        for (job, queue) in jobs {
            let words = ["open", "--user", USER, "--queue", queue, "--project", "", "--vnode-type", "", "--mem", "64M"];
            assert!(of(&words, job, &[]).contains("/uid_65534/job_"));
        }
        for (job, queue) in jobs {
            let mut sleeper = Started::sleeper();
            of(&["attach"], job, &[&sleeper.pid()]);
            of(
                &["open", "--user", USER, "--step", "1", "--queue", "large"],
                job,
                &["--project", "", "--vnode-type", ""],
            );
            of(
                &["limit", "--step", "0", "--mem", "32M", "--queue", queue],
                job,
                &["--project", "", "--vnode-type", ""],
            );
            let usage = of(&["usage", "--step", "0", "--json"], job, &[]);
            let limits = ["memory_limit_bytes", "processes_limit"].map(|name| number(&usage, name));
            assert_eq!(limits, [Some(f64::from(32 << 20)), (queue == "small").then_some(100.0)], "{usage}");
            of(&["freeze"], job, &[]);
            of(&["thaw"], job, &[]);
            assert!(of(&["close", "--verbose"], job, &[]).contains("step 0 ended: cpu "));
            assert_eq!(sleeper.signal_that_ended_it(), Some(libc::SIGKILL));
        }
        assert!(site.is_clean(), "{:?}", site.records());
    }
}

#[test]
fn tasks_have_limits_of_their_own() {
    let Some(site) = Site::new("tasks") else { return };
    let per_task = ["-o", "MaxProcessesPerTask=5"];
    assert!(site.open(&per_task).status.success());
    let tasks = [Started::sleeper(), Started::sleeper()];
    for (number, task) in tasks.iter().enumerate() {
        let number = number.to_string();
        let words = ["attach", "--job", JOB, "--task", &number, &task.pid()];
        site.done(&words);
        let cgroup = task.cgroup();
        assert!(cgroup.contains(&format!("/step_0/task_{number}")), "{cgroup}");
        assert_eq!(processes_limit(&cgroup), "5");
    }
    site.done(&["close", "--job", JOB]);
    assert!(site.is_clean());
}

#[test]
fn with_mode_off_nothing_is_fenced_and_nothing_fails() {
    let Some(site) = Site::new("off") else { return };
    let opened = site.open(&["-o", "Mode=off"]);
    assert!(opened.status.success() && err(&opened).contains("Mode=off: nothing is fenced"), "{opened:?}");
    let sleeper = Started::sleeper();
    let attached = site.jobfence(&["attach", "--job", JOB, "-o", "Mode=off", &sleeper.pid()]);
    assert!(attached.status.success(), "{attached:?}");
    assert!(!sleeper.cgroup().contains(&site.base.name) && site.is_clean());
    kill(Pid::from_raw(sleeper.0.id().cast_signed()), Signal::SIGTERM).unwrap();
}

#[test]
fn gpus_are_chosen_and_said_and_go_with_the_fence() {
    let Some(site) = Site::new("gpus") else { return };
    for number in 0..2 {
        std::os::unix::fs::symlink("/dev/zero", site.run.path().join(format!("nvidia{number}"))).unwrap();
    }
    let gpus = format!("GPUDevice={}/nvidia%d", site.run.path().display());
    let open = |job: &str, count: &str| {
        site.jobfence(&[
            "open",
            "--job",
            job,
            "--user",
            USER,
            "-o",
            &gpus,
            "--mem",
            "64M",
            "--mem-swap",
            "96M",
            "--gpus",
            count,
        ])
    };
    let said = |job: &str| site.done(&["usage", "--job", job, "--json"]);
    let list = |numbers: &[u32]| {
        let paths: Vec<String> =
            numbers.iter().map(|number| format!("\"{}/nvidia{number}\"", site.run.path().display())).collect();
        format!("\"gpus\":[{}],", paths.join(","))
    };
    assert!(open("1", "2").status.success());
    assert!(said("1").contains(&list(&[0, 1])), "{}", said("1"));
    let refused = open("2", "1");
    assert!(err(&refused).contains("too few GPUs are free for this job"), "{refused:?}");
    // The first of them stays; what is not given again stays, too.
    site.done(&["limit", "--job", "1", "-o", &gpus, "--gpus", "1"]);
    site.done(&["limit", "--job", "1", "-o", &gpus, "--mem", "48M"]);
    assert!(said("1").contains(&list(&[0])), "{}", said("1"));
    assert!(open("2", "1").status.success());
    assert!(said("2").contains(&list(&[1])), "{}", said("2"));
    site.done(&["close", "--job", "1"]);
    assert!(open("3", "1").status.success());
    assert!(said("3").contains(&list(&[0])), "{}", said("3"));
    site.refused(
        &["open", "--job", "4", "--user", USER, "-o", "GPUDevice=/dev/none%d", "--gpus", "1"],
        "here by GPUDevice=/dev/none%d 0; in use: ",
    );
    // Without GPUDevice there is nothing to choose from, and nothing is reported.
    site.done(&["open", "--job", "4", "--user", USER, "--gpus", "1"]);
    assert!(said("4").contains("\"gpus\":[],"), "{}", said("4"));
    for job in ["2", "3", "4"] {
        site.done(&["close", "--job", job]);
    }
    assert!(site.is_clean());
}

#[test]
fn a_job_keeps_its_cpus_whatever_others_do() {
    let Some(site) = Site::new("cores") else { return };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        common::skip("needs two CPUs");
        return;
    }
    let site_of = ["-o", "ConstrainCores=yes"];
    let open = |job: &str, step: &str| {
        let words = ["open", "--job", job, "--step", step, "--user", USER, "--cpus", "1", "--mem", "64M"];
        let opened = site.jobfence(&[words.as_slice(), &site_of].concat());
        assert!(opened.status.success(), "{opened:?}");
        let sleeper = Started::sleeper();
        site.done(&[["attach", "--job", job, "--step", step, &sleeper.pid()].as_slice(), &site_of].concat());
        sleeper
    };
    let cpus = |process: &Started| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    };
    let first = open("1", "0");
    let before = cpus(&first);
    assert!(before.parse::<u32>().is_ok(), "{before}");
    // What is not given keeps its last value.
    site.done(&[["limit", "--job", "1", "--mem", "48M"].as_slice(), &site_of].concat());
    assert_eq!(cpus(&first), before);
    let other = open("2", "0");
    assert_ne!(cpus(&other), before);
    // A later step chooses nothing, and waits for nobody who chooses.
    let lock = fs::File::open(site.run.path().join("run/cores.lock")).unwrap();
    let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let later = open("1", "1");
    assert_eq!(cpus(&later), before);
    drop(held);
    for job in ["1", "2"] {
        site.done(&["close", "--job", job]);
    }
    assert!(site.is_clean(), "{:?}", site.records());
}

/// As a resize of OpenPBS beside the launch of a task.
#[test]
fn a_step_has_no_cpu_that_its_job_has_given_back_meanwhile() {
    let Some(site) = Site::new("returned") else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    if all < 2 || Command::new("strace").arg("-V").output().is_err() {
        return common::skip("needs two CPUs and strace");
    }
    let open = |job: &str, step: &str, cpus: usize| {
        let mut command = common::command("open", &site.base, site.run.path());
        command.args(["--job", job, "--step", step, "--user", USER, "-o", "ConstrainCores=yes"]);
        command.args(["--cpus", &cpus.to_string()]);
        command
    };
    let cpus = |job: &str, step: &str| {
        let sleeper = Started::sleeper();
        let attach = ["attach", "--job", job, "--step", step, "-o", "ConstrainCores=yes", &sleeper.pid()];
        site.done(&attach);
        let status = fs::read_to_string(format!("/proc/{}/status", sleeper.pid())).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        jobfence::cpu_list::CpuList::parse(list.trim()).unwrap()
    };
    assert!(open("1", "0", all).status().unwrap().success());
    // It has read which CPUs the job has.
    let files = common::opened_until(&open("1", "9", all), |line| line.contains("/topology/"));
    site.done(&["close", "--job", "1", "--step", "9"]);
    let opening = common::Stopped::behind(&open("1", "1", all), files);
    site.done(&["limit", "--job", "1", "--step", "0", "--cpus", "1", "-o", "ConstrainCores=yes"]);
    assert!(open("2", "0", all - 1).status().unwrap().success());
    let (status, said) = opening.go_on();
    assert!(status.success(), "{said}");
    let (left, others) = (cpus("1", "1"), cpus("2", "0"));
    assert!(left.len() == 1 && left.in_both(&others).is_empty(), "{left} and {others}");
    assert_eq!(cpus("1", "0").to_string(), left.to_string());
    for job in ["1", "2"] {
        site.done(&["close", "--job", job]);
    }
    assert!(site.is_clean(), "{:?}", site.records());
}

#[test]
fn who_gets_the_number_of_a_process_that_is_put_in_is_put_back() {
    let Some(site) = Site::new("stranger") else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return common::skip("strace is not here");
    }
    assert!(site.open(&[]).status.success());
    let attach = |pid: &str| {
        let mut command = common::command("attach", &site.base, site.run.path());
        command.args(["--job", JOB, pid]);
        command
    };
    let first = Started::sleeper();
    let files = common::opened_until_its_move(&attach(&first.pid()));
    // The command has checked for the last time, and is about to move. The other hierarchies are checked again.
    let start_meanwhile = |uid: u32| {
        let mut sleeper = Started::sleeper();
        let before = sleeper.cgroup();
        let attaching = common::Stopped::behind(&attach(&sleeper.pid()), files);
        let pid = i32::try_from(sleeper.0.id()).unwrap();
        sleeper.0.kill().unwrap();
        sleeper.0.wait().unwrap();
        let stranger = common::start_under(pid, uid).expect("the number is free");
        let (status, said) = attaching.go_on();
        let now = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(said.contains("has ended while it was put in"), "{said}");
        assert_eq!(status.code(), Some(1));
        (stranger, now == before, said)
    };
    let (stranger, is_back, said) = start_meanwhile(61_002);
    // A process of the job's user with another user's parent: that could be a way out.
    let (_own, is_own_back, own_said) = start_meanwhile(USER.parse().unwrap());
    site.done(&["close", "--job", JOB]);
    let ended = nix::sys::wait::waitpid(stranger.0, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).unwrap();
    assert!(is_back, "{said}");
    assert_eq!(ended, nix::sys::wait::WaitStatus::StillAlive);
    assert!(!is_own_back, "{own_said}");
}

/// HTCondor's starter makes the job's directories below one of the step's.
#[test]
fn a_job_has_no_part_of_the_room_beside_it() {
    use jobfence::config;
    use jobfence::doors::life::{self, Room};
    use jobfence::doors::opening::{Granted, HeldBy, OpenRequest};
    use jobfence::doors::recorded::WantedFences;
    use jobfence::job::Id;
    use jobfence::launch::Answer;

    let Some(site) = Site::new("room") else { return };
    let run = site.run.path().join("run");
    let arguments = [format!("CgroupBase={}", site.base.name), format!("RunDir={}", run.display())];
    let room = "StarterMemory=64M MemoryHighPercent=50 ConstrainSwapSpace=no";
    let words: Vec<&[u8]> = arguments.iter().map(String::as_bytes).chain(room.split(' ').map(str::as_bytes)).collect();
    let loaded = config::load(&words).unwrap();
    let [job, step] = ["12.0", "slot1_1"].map(|id| Id::new(id).unwrap());
    let granted = Granted { memory: Some(100 << 20), is_of_step: true, ..Granted::default() };
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
    let room = Room { more: 1 << 20, branches: vec!["htcondor".to_owned(), "docker".to_owned()] };
    let Answer::Fenced(live) = life::open_live(Ok(loaded.clone()), &request, Some(&room)) else { panic!("no fence") };
    let which = WantedFences { job: request.job.clone(), step: Some(request.step.clone()), run: Some(1) };
    let [seen] = <[_; 1]>::try_from(life::usage(&loaded.config, &which).unwrap()).unwrap();
    assert_eq!((seen.limits.memory, live.seen().limits.memory), (Some(165 << 20), Some(165 << 20)));
    assert_eq!((live.seen().path, live.seen().key), (seen.path.clone(), seen.key));
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let places = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(|mount| format!("{mount}{}", seen.path.clone().unwrap()));
    let limit = |step: &str, branch: &str| {
        let read = |file: &str| fs::read_to_string(format!("{step}/{branch}/{file}")).ok();
        read("memory.max").or_else(|| read("memory.limit_in_bytes")).map(|text| text.trim().to_owned())
    };
    let (mut found, mut high) = (Vec::new(), Vec::new());
    for step in places {
        found.extend(["htcondor", "docker"].iter().filter_map(|branch| limit(&step, branch)));
        high.extend(fs::read_to_string(format!("{step}/htcondor/memory.high")).ok());
    }
    assert_eq!(found, [(100 << 20).to_string(), (100 << 20).to_string()]);
    assert!(high.iter().all(|text| text.trim() == (50 << 20).to_string()), "{high:?}");
    life::close(&loaded.config, &which).unwrap();
    assert!(site.is_clean());
}

/// cgroup v1 limits the sum of RAM and swap, and refuses a sum below the limit of RAM.
#[test]
fn a_limit_of_swap_stands_beside_the_room_for_the_scheduler() {
    use jobfence::config;
    use jobfence::doors::life::{self, Room};
    use jobfence::doors::opening::{Granted, HeldBy, OpenRequest};
    use jobfence::doors::recorded::WantedFences;
    use jobfence::job::Id;
    use jobfence::launch::Answer;

    let Some(site) = Site::new("room-swap") else { return };
    let arguments = [
        format!("CgroupBase={}", site.base.name),
        format!("RunDir={}", site.run.path().join("run").display()),
        "StarterMemory=64M".to_owned(),
        "ConstrainSwapSpace=yes".to_owned(),
        "AllowedSwapSpace=50".to_owned(),
    ];
    let words: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
    let loaded = config::load(&words).unwrap();
    let [job, step] = ["12.0", "slot1_1"].map(|id| Id::new(id).unwrap());
    let granted = Granted { memory: Some(100 << 20), is_of_step: true, ..Granted::default() };
    let holder = HeldBy::Manual;
    let request =
        OpenRequest { uid: 65_534, job, step, run: 1, granted, holder, ask_unit: None, starts_processes: false };
    let room = Room { more: 1 << 20, branches: vec!["htcondor".to_owned()] };
    let live = match life::open_live(Ok(loaded.clone()), &request, Some(&room)) {
        Answer::Fenced(live) => live,
        Answer::Refused(why) if why.to_string().contains("memory.memsw") && why.to_string().contains("ENOENT") => {
            return common::skip("this kernel counts no swap");
        }
        other => panic!("{other:?}"),
    };
    let path = live.seen().path.unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let read = |branch: &str, file: &str| {
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        places.filter_map(|mount| fs::read_to_string(format!("{mount}{path}/{branch}{file}")).ok()).next()
    };
    let mib = |branch, file| read(branch, file).map(|text| text.trim().parse::<u64>().unwrap() >> 20);
    match read("", "memory.swap.max") {
        Some(_) => assert_eq!(mib("", "memory.swap.max"), Some(50)),
        None => {
            assert_eq!(
                (mib("", "memory.limit_in_bytes"), mib("", "memory.memsw.limit_in_bytes")),
                (Some(165), Some(215))
            );
            let of_job = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(|file| mib("htcondor/", file));
            assert_eq!(of_job, [Some(100), Some(150)]);
        }
    }
    let which = WantedFences { job: request.job.clone(), step: Some(request.step.clone()), run: Some(1) };
    life::close(&loaded.config, &which).unwrap();
    assert!(site.is_clean());
}
