// SPDX-License-Identifier: GPL-2.0-or-later
//! The usage log: the logged usage of programs against their own count; each line is whole in any case; and the cost of a line.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

mod common;

const PYTHON: &str = "/usr/bin/python3";
const MIB: f64 = 1048576.0;

/// Each program prints its usage by its own count, as JSON. This one also has what the kernel counts for its cgroups.
const CPU: &str = r#"
import json, os, resource, time
def of_cgroups():
    places = dict(line.rstrip().split(":", 2)[1:] for line in open("/proc/self/cgroup"))
    for line in open("/proc/self/mountinfo"):
        place, kind, options = line.split()[4], *line.split(" - ")[1].split()[::2]
        if kind == "cgroup2":
            stat = dict(line.split() for line in open(f"{place}{places['']}/cpu.stat"))
            yield {"cpu_user_seconds": int(stat["user_usec"]) / 1e6, "cpu_system_seconds": int(stat["system_usec"]) / 1e6}
        if kind == "cgroup" and "cpuacct" in options.split(","):
            path = place + next(path for names, path in places.items() if "cpuacct" in names.split(","))
            user, system = (int(open(f"{path}/cpuacct.usage_{name}").read()) / 1e9 for name in ("user", "sys"))
            yield {"cpu_user_seconds": user, "cpu_system_seconds": system}
zero, sink = os.open("/dev/zero", os.O_RDONLY), bytearray(1 << 20)
while resource.getrusage(resource.RUSAGE_SELF).ru_utime < 1.5: sum(range(1000))
while resource.getrusage(resource.RUSAGE_SELF).ru_stime < 1: os.readv(zero, [sink])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_user_seconds": used.ru_utime, "cpu_system_seconds": used.ru_stime,
                  "cpu_seconds": used.ru_utime + used.ru_stime, "cgroups": list(of_cgroups())}))
"#;

const MEMORY: &str = r#"
import json, re
held = bytes([1]) * (300 << 20)
rollup = open("/proc/self/smaps_rollup").read()
anonymous = int(re.search(r"Anonymous: +(\d+)", rollup)[1]) << 10
print(json.dumps({"memory_peak_bytes": anonymous}))
"#;

/// Bytes that pass the page cache and bytes that do not; and once more, from the cache.
const IO: &str = r#"
import json, mmap, os, sys
path, piece = sys.argv[1], mmap.mmap(-1, 1 << 20)
piece.write(b"x" * (1 << 20))
direct = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
os.unlink(path)
for at in range(64): os.pwrite(direct, piece, at << 20)
for at in range(32): os.preadv(direct, [piece], at << 20)
cached = os.open(f"/proc/self/fd/{direct}", os.O_RDWR)
for at in range(16): os.pwrite(cached, piece, at << 20)
os.fdatasync(cached)
os.posix_fadvise(cached, 0, 0, os.POSIX_FADV_DONTNEED)
for again in range(3):
    for at in range(48): os.pread(cached, 1 << 20, at << 20)
own = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(json.dumps({"read_bytes": int(own["read_bytes"]), "written_bytes": int(own["write_bytes"]),
                  "number": list(divmod(os.fstat(direct).st_dev, 256))}))
"#;

/// Processes that come and go faster than any sampling, each with some 5 ms of CPU time.
const MANY: &str = r#"
import json, os, resource, time
def spin():
    while time.process_time() < 0.005: pass
for batch in range(200):
    children = []
    for one in range(10):
        pid = os.fork()
        if pid == 0:
            spin()
            os._exit(0)
        children.append(pid)
    for pid in children: os.waitpid(pid, 0)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"cpu_seconds": sum(one.ru_utime + one.ru_stime for one in used), "forks": 2000}))
"#;

/// Exactly this many processes at once.
const ASLEEP: &str = r#"
import os, time
children = []
for one in range(40):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    children.append(pid)
for pid in children: os.kill(pid, 9)
for pid in children: os.waitpid(pid, 0)
"#;

/// What it, its child and its child's child move without any disk. Nobody below it waits for the last process, whose parent is gone.
const MOVED: &str = r#"
import json, os
def move(megabytes):
    zero, null, piece = os.open("/dev/zero", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY), bytearray(1 << 20)
    for one in range(megabytes):
        os.readv(zero, [piece])
        os.write(null, piece[:1 << 19])
def forked(what):
    pid = os.fork()
    if pid == 0:
        what()
        os._exit(0)
    return pid
def child():
    move(32)
    os.waitpid(forked(lambda: move(64)), 0)
def orphan():
    os.read(ready, 1)
    move(128)
    os.close(over)
move(16)
os.waitpid(forked(child), 0)
(ready, gone), (end, over) = os.pipe(), os.pipe()
os.waitpid(forked(lambda: forked(orphan)), 0)
os.write(gone, b"!")
os.close(over)
os.read(end, 1)
own = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(json.dumps({"rchar_bytes": int(own["rchar"]), "wchar_bytes": int(own["wchar"])}))
"#;

struct Site {
    top: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("usage", test)?;
        Some(Self { top: tempfile::tempdir().unwrap(), base })
    }

    fn log(&self) -> PathBuf {
        self.top.path().join("log/usage.jsonl")
    }

    fn command(&self, subcommand: &str, has_log: bool) -> Command {
        let mut command = common::command(subcommand, &self.base, self.top.path());
        if has_log {
            command.arg("-o").arg(format!("UsageLog={}", self.log().display()));
        }
        command
    }

    fn jobfence(&self, words: &[&str]) -> Output {
        let [subcommand, rest @ ..] = words else { panic!("no subcommand") };
        self.command(subcommand, true).args(rest).output().unwrap()
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.jobfence(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a program says about itself, and what its line in the log says.
    fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> (Value, Value) {
        let words = [&["run"], options, &["--", PYTHON, "-S", "-c", program], arguments].concat();
        let said = self.done(&words);
        let own = said.lines().next().map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
        (own, self.last())
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    fn last(&self) -> Value {
        self.lines().pop().expect("a line in the usage log")
    }
}

/// Whether a hierarchy of this host has one of these controllers for jobs.
fn has_controller(names: &[&str]) -> bool {
    let is_one = |name: &str| names.contains(&name);
    let unified = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut of_v1 = mounts.lines().filter_map(|line| line.split_once(" - cgroup ")?.1.split_whitespace().nth(1));
    unified.split_whitespace().any(is_one) || of_v1.any(|options| options.split(',').any(is_one))
}

/// Expects this member to be near the program's own figure, within this tolerance.
fn expect_near(line: &Value, own: &Value, member: &str, tolerance: f64) {
    let [found, wanted] = [line, own].map(|of| of[member].as_f64().unwrap_or_else(|| panic!("{member} in {of}")));
    println!("{member}: {found} in the log, {wanted} by its own count ({:+.2} %)", (found / wanted - 1.0) * 100.0);
    assert!((found / wanted - 1.0).abs() <= tolerance, "{member}: {found}, and should be {wanted}");
}

#[test]
fn cpu_time_is_what_the_program_counts() {
    let Some(site) = Site::new("cpu") else { return };
    let (own, line) = site.run(&[], CPU, &[]);
    expect_near(&line, &own, "cpu_seconds", 0.02);
    // The kernel splits the total by its ticks. For a process they are scaled to its exact time, for a cgroup of v1 they are not.
    expect_near(&line, &own, "cpu_user_seconds", 0.2);
    expect_near(&line, &own, "cpu_system_seconds", 0.2);
    // One of the program's cgroups has counted both, before the program's end.
    let both = ["cpu_user_seconds", "cpu_system_seconds"];
    let is_near = |of: &Value, member: &str| {
        let [found, wanted] = [&line, of].map(|of| of[member].as_f64().unwrap());
        (found / wanted - 1.0).abs() <= 0.03
    };
    let is_counted = |of: &&Value| both.iter().all(|member| is_near(of, member));
    assert!(own["cgroups"].as_array().unwrap().iter().find(is_counted).is_some(), "{line} {own}");
    assert_eq!((&line["exit_status"], &line["exit_signal"], &line["end"]), (&0.into(), &Value::Null, &"closed".into()));
    let job = line["job_cpu_seconds"].as_f64().unwrap();
    assert!((job - line["cpu_seconds"].as_f64().unwrap()).abs() < 0.01, "{line}");
    assert!(line["wall_seconds"].as_f64().unwrap() >= own["cpu_seconds"].as_f64().unwrap(), "{line}");
}

#[test]
fn a_quota_is_seen_in_the_periods() {
    let Some(site) = Site::new("quota") else { return };
    let (own, line) = site.run(&["--cpus", "0.5"], CPU, &[]);
    expect_near(&line, &own, "cpu_seconds", 0.02);
    let number = |member: &str| line[member].as_f64().unwrap_or_else(|| panic!("{member} in {line}"));
    // Since Linux 6.18 the kernel counts only a small part of it: see docs/usage.md.
    let waited = number("wall_seconds") - number("cpu_seconds");
    println!("throttled for {} of {waited} s", number("throttled_seconds"));
    assert!(number("throttled_periods") <= number("periods") && number("periods") > 20.0, "{line}");
    assert_eq!((&line["cpus_granted"], &line["cpus_limit"]), (&0.5.into(), &0.5.into()));
}

#[test]
fn memory_is_what_the_program_has_touched() {
    let Some(site) = Site::new("memory") else { return };
    let (own, line) = site.run(&["--mem", "400M"], MEMORY, &[]);
    // Without the cgroup's peak (v2 before Linux 5.19) it is unknown, and never 0.
    if line["memory_peak_bytes"].is_null() {
        return common::skip("this kernel keeps no peak");
    }
    expect_near(&line, &own, "memory_peak_bytes", 0.02);
    assert_eq!(line["memory_limit_bytes"].as_f64(), Some(400.0 * MIB), "{line}");
    assert_eq!(line["oom_kills"], 0, "{line}");
    // At the end none of it is left.
    assert!(line["memory_anonymous_bytes"].as_f64().unwrap() < 5.0 * MIB, "{line}");
}

#[test]
fn bytes_are_counted_where_they_go_to_a_disk() {
    let Some(site) = Site::new("io") else { return };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("usage-io");
    // Since Linux 6.10 v1 counts disk I/O once a limit has been set for it.
    let (own, line) = site.run(&["--io-max", "/ rbps=800G wbps=800G"], IO, &[file.to_str().unwrap()]);
    if line["read_bytes"].is_null() {
        assert!(!has_controller(&["io", "blkio"]), "{line}");
        return common::skip("no controller counts I/O here");
    }
    expect_near(&line, &own, "read_bytes", 0.02);
    expect_near(&line, &own, "written_bytes", 0.02);
    let disks = line["disks"].as_array().unwrap();
    assert!(!disks.is_empty(), "{line}");
    let sum: f64 = disks.iter().map(|disk| disk["read_bytes"].as_f64().unwrap()).sum();
    assert_eq!(Some(sum), line["read_bytes"].as_f64());
    // Operations of one MiB each, or less.
    assert!(line["read_operations"].as_f64().unwrap() >= 32.0, "{line}");
}

#[test]
fn bytes_of_system_calls_are_those_of_all_that_were_waited_for() {
    let Some(site) = Site::new("calls-of-children") else { return };
    let (own, line) = site.run(&[], MOVED, &[]);
    for (member, least) in [("rchar_bytes", 112.0 * MIB), ("wchar_bytes", 56.0 * MIB)] {
        let [own, found] = [&own, &line].map(|of| of[member].as_f64().unwrap_or_else(|| panic!("{member} in {of}")));
        println!("{member}: {found} in the log, {own} by its own count");
        // What the program moves after its count, and jobfence itself: far less than the least part of one process.
        assert!(
            own >= least && (own..own + 0.5 * MIB).contains(&found),
            "{member}: {found}, and {own} by its own count"
        );
    }
    // A fence that others open and close says nothing of it.
    site.done(&["open", "--job", "1", "--user", "65534"]);
    site.done(&["close", "--job", "1"]);
    let line = site.last();
    assert_eq!((&line["job"], &line["rchar_bytes"], &line["wchar_bytes"]), (&"1".into(), &Value::Null, &Value::Null));
}

#[test]
fn processes_of_5_ms_are_counted_all() {
    let Some(site) = Site::new("many") else { return };
    // On v1 processes are counted only if they are limited.
    let limit = &["--processes", "5000"];
    let (own, line) = site.run(limit, MANY, &[]);
    expect_near(&line, &own, "cpu_seconds", 0.02);
    assert!(!line["forks_refused"].is_null() || !has_controller(&["pids"]), "{line}");
    if !line["processes_peak"].is_null() {
        let peak = line["processes_peak"].as_f64().unwrap();
        assert!((2.0..=11.0).contains(&peak), "{line}");
        let (_, line) = site.run(limit, ASLEEP, &[]);
        assert_eq!(line["processes_peak"], 41, "{line}");
    }
}

#[test]
fn how_it_ended_and_what_stopped_it() {
    let Some(site) = Site::new("end") else { return };
    let run = |options: &[&str], script: &str| {
        site.jobfence(&[&["run"], options, &["--", "/bin/sh", "-c", script]].concat());
        site.last()
    };
    let line = run(&[], "exit 7");
    assert_eq!((&line["exit_status"], &line["exit_signal"]), (&7.into(), &Value::Null), "{line}");
    let line = run(&[], "kill -9 $$");
    assert_eq!((&line["exit_status"], &line["exit_signal"]), (&Value::Null, &9.into()), "{line}");
    // Cached files fill half of the limit, and are dropped when memory is needed. Python by itself needs some 10 MiB.
    let file = site.top.path().join("big");
    fs::write(&file, vec![1u8; 30 << 20]).unwrap();
    let eat = format!("cat {0} {0} >/dev/null; {PYTHON} -S -c 'b = bytes([1]) * (200 << 20)'", file.display());
    let line = run(&["--mem", "60M"], &eat);
    assert!(line["oom_kills"].as_u64() >= Some(1), "{line}");
    let sentences = line["sentences"].as_array().unwrap();
    assert_eq!(sentences.len(), 1, "{line}");
    let said = sentences[0].as_str().unwrap();
    assert!(said.contains("reached its memory limit of 60.0 MiB"), "{said}");
    if Path::new("/dev/kmsg").exists() && said.contains("(python3)") {
        assert!(said.contains(" % of it cached files)"), "{said}");
    }
    let line = run(&["--processes", "3"], "sleep 0.2 & sleep 0.2 & sleep 0.2 & sleep 0.2 & wait");
    assert!(line["forks_refused"].as_u64() >= Some(1) && line["processes_limit"] == 3, "{line}");
}

#[test]
fn what_is_known_of_a_job_outlives_each_process_of_its_life() {
    let Some(site) = Site::new("life") else { return };
    let facts = ["--partition", "queue one", "--account", "a", "--project", "p\"q", "--cpus", "1.5", "--mem", "300M"];
    // Longer than a line has it, with a character of two bytes at the end of what it has.
    let job_name = format!("a \"\n\u{1b}{}", "ä".repeat(200));
    let facts = [&facts[..], &["--job-name", &job_name, "--gpus", "0"]].concat();
    let open = |job: &str, more: &[&str]| {
        site.done(&[&["open", "--job", job, "--user", "65534"], more, facts.as_slice()].concat());
    };
    let spin = |job: &str| {
        let mut child = Command::new(PYTHON);
        // Only after it has been attached.
        child.args([
            "-S",
            "-c",
            "input()\nimport time\nwhile time.process_time() < 1: pass\nprint(flush=True)\ninput()",
        ]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        site.done(&["attach", "--job", job, "--any-user", &child.id().to_string()]);
        use std::io::{Read, Write};
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    };
    let expect = |line: &Value, end: &str, job: &str| {
        for (member, value) in [
            ("schema", Value::from("jobfence-usage-1")),
            ("job", job.into()),
            ("job_name", format!("a \"\n\u{1b}{}", "ä".repeat(97)).into()),
            ("end", end.into()),
            ("uid", 65534.into()),
            ("partition", "queue one".into()),
            ("account", "a".into()),
            ("project", "p\"q".into()),
            ("qos", Value::Null),
            ("cpus_granted", 1.5.into()),
            ("memory_granted_bytes", (300u64 << 20).into()),
            ("gpus_granted", 0.into()),
            ("memory_limit_bytes", (300u64 << 20).into()),
        ] {
            assert_eq!(line[member], value, "{member} in {line}");
        }
        assert!((0.98..1.2).contains(&line["cpu_seconds"].as_f64().unwrap()), "{line}");
    };
    open("1", &[]);
    let mut child = spin("1");
    site.done(&["close", "--job", "1"]);
    child.wait().unwrap();
    expect(&site.last(), "closed", "1");
    assert_eq!(site.last()["holder"], "manual");
    // A fence that is limited again keeps its earlier facts.
    open("2", &[]);
    let mut child = spin("2");
    site.done(&["limit", "--job", "2", "--mem", "300M", "--cpus", "1.5"]);
    site.done(&["close", "--job", "2"]);
    child.wait().unwrap();
    expect(&site.last(), "closed", "2");
    // Its holder dies, and the janitor finds what it left.
    let mut holder = Command::new("/bin/sleep").arg("300").spawn().unwrap();
    open("3", &["--holder", &format!("pid:{}", holder.id())]);
    let mut child = spin("3");
    holder.kill().unwrap();
    holder.wait().unwrap();
    site.done(&["reap"]);
    child.wait().unwrap();
    expect(&site.last(), "reaped", "3");
    assert_eq!(site.lines().len(), 3);
    // Without a log none of this is in the record: an older release understands it.
    let mut plain = site.command("open", false);
    assert!(plain.args(["--job", "4", "--user", "65534"]).args(&facts).status().unwrap().success());
    let is_record = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uid_"));
    let records = || fs::read_dir(site.top.path().join("run")).unwrap().flatten().map(|entry| entry.path());
    let text = fs::read_to_string(records().find(is_record).unwrap()).unwrap();
    assert!(text.contains("plan=1") && !text.contains("noted."), "{text}");
    assert!(site.command("close", false).args(["--job", "4"]).status().unwrap().success());
    assert_eq!(site.lines().len(), 3);
}

/// The page's table has each member, and no other.
#[test]
fn the_page_has_every_member() {
    let Some(site) = Site::new("page") else { return };
    let (_, line) = site.run(&[], "", &[]);
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/usage.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let members: BTreeSet<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    let more = ["task", "disk"];
    let unknown: Vec<_> = named.difference(&members).filter(|name| !more.contains(name)).collect();
    let missing: Vec<_> = members.difference(&named).collect();
    assert!(unknown.is_empty() && missing.is_empty(), "not there: {unknown:?}; not on the page: {missing:?}");
}

fn append(site: &Site, job: &str) -> Child {
    let mut command = site.command("run", true);
    command.args(["--", "/bin/echo", job]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The files beside the log, without the directory for its lock.
fn files_of_the_log(site: &Site) -> Vec<PathBuf> {
    let all = fs::read_dir(site.log().parent().unwrap()).unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.is_file()).collect()
}

/// All lines of the log, including files that were set aside; each is whole.
fn whole_lines(site: &Site) -> usize {
    let mut count = 0;
    for file in files_of_the_log(site) {
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
            assert_eq!(line["schema"], "jobfence-usage-1");
            count += 1;
        }
    }
    count
}

#[test]
fn eight_writers_at_once_lose_nothing() {
    let Some(site) = Site::new("writers") else { return };
    let rounds = 5;
    for _ in 0..rounds {
        let writers: Vec<Child> = (0..8).map(|number| append(&site, &number.to_string())).collect();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success());
        }
    }
    assert_eq!(whole_lines(&site), rounds * 8);
}

#[test]
fn several_that_close_a_fence_at_once_write_one_line() {
    let Some(site) = Site::new("closers") else { return };
    for round in 1..=5 {
        site.done(&["open", "--job", "9", "--user", "65534", "--mem", "50M"]);
        let close = || {
            let mut command = site.command("close", true);
            command.args(["--job", "9"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let closers: Vec<Child> = (0..4).map(|_| close()).collect();
        for mut closer in closers {
            assert!(closer.wait().unwrap().success());
        }
        assert_eq!(site.lines().len(), round);
    }
}

#[test]
fn a_writer_that_is_killed_leaves_whole_lines() {
    let Some(site) = Site::new("killed") else { return };
    // How long one takes, from its beginning to its end.
    let start = Instant::now();
    append(&site, "whole").wait().unwrap();
    let length = start.elapsed();
    let moments = 60;
    for moment in 0..moments {
        let mut writer = append(&site, "killed");
        std::thread::sleep(length * moment / moments * 3 / 2);
        let _ = kill(Pid::from_raw(writer.id().cast_signed()), Signal::SIGKILL);
        writer.wait().unwrap();
    }
    // A partial line is removed before the next one is written.
    assert!(append(&site, "last").wait().unwrap().success());
    site.done(&["reap"]);
    let count = whole_lines(&site);
    println!("{count} lines of {moments} writers");
    assert!((2..=moments as usize + 2).contains(&count), "{count} lines");
}

/// A file system of its own, which can be full.
struct Small(PathBuf);

impl Small {
    fn new(path: &Path) -> Self {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"]).arg(path).status().unwrap();
        assert!(done.success());
        Self(path.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_once_and_no_job_fails() {
    let Some(site) = Site::new("full") else { return };
    let small = Small::new(&site.top.path().join("log"));
    let fill = small.0.join("fill");
    let room = |bytes: usize| fs::write(&fill, vec![0u8; bytes]);
    assert!(append(&site, "whole").wait().unwrap().success());
    let _ = room(1 << 20);
    let said: Vec<String> = (0..3)
        .map(|_| {
            let output = site.jobfence(&["run", "--", "/bin/echo", "x"]);
            assert!(output.status.success() && output.stdout == b"x\n", "{output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        })
        .collect();
    assert_eq!(said.iter().filter(|said| said.contains("cannot write down")).count(), 1, "{said:?}");
    fs::remove_file(&fill).unwrap();
    assert!(append(&site, "whole").wait().unwrap().success());
    fs::rename(site.log(), site.top.path().join("kept")).unwrap_or_else(|_| {
        fs::copy(site.log(), site.top.path().join("kept")).unwrap();
    });
    let text = fs::read_to_string(site.top.path().join("kept")).unwrap();
    // Some lines may have fit into a partly used page.
    assert!(text.lines().count() >= 2, "{text}");
    text.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap()));
}

#[test]
fn the_files_stay_below_their_size() {
    let Some(site) = Site::new("rotation") else { return };
    let size = 1 << 20;
    for second in 0..12 {
        let mut run = site.command("run", true);
        let output = run.args(["-o", "UsageLogSize=1M", "--", "/bin/true"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        // As after a busy hour: the next line does not fit.
        let line = format!("{}\n", site.last());
        fs::write(site.log(), line.repeat((127 << 10) / line.len() + 1)).unwrap();
        let then = SystemTime::now() - Duration::from_secs(100 - second);
        let file = fs::File::options().write(true).open(site.log()).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(then)).unwrap();
    }
    whole_lines(&site);
    let files = files_of_the_log(&site);
    let sum: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(files.len() > 1 && sum <= size, "{sum} bytes in {files:?}");
    for file in files {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

/// How many system calls a command and its children make.
fn calls(site: &Site, has_log: bool, words: &[&str]) -> u64 {
    let [subcommand, rest @ ..] = words else { panic!("no subcommand") };
    let jobfence = site.command(subcommand, has_log);
    let trace = site.top.path().join("trace");
    let mut strace = Command::new("strace");
    // Without optimisation std checks each descriptor that it closes by fcntl(2), which a release does not.
    strace.args(["-f", "-c", "-e", "trace=!fcntl", "-U", "calls,name", "-o"]).arg(&trace).arg(jobfence.get_program());
    let output = strace.args(jobfence.get_args()).args(rest).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&trace).unwrap();
    let total = text.lines().find(|line| line.trim_end().ends_with(" total")).unwrap_or_else(|| panic!("{text}"));
    total.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_line_costs_few_system_calls() {
    let Some(site) = Site::new("calls") else { return };
    if !Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return common::skip("needs strace");
    }
    let launch = |has_log, job: &str| calls(&site, has_log, &["open", "--job", job, "--user", "65534", "--mem", "50M"]);
    let end = |has_log, job: &str| calls(&site, has_log, &["close", "--job", job]);
    // The first ones make what stays.
    launch(true, "0");
    end(true, "0");
    let without = (launch(false, "1"), end(false, "1"));
    let with = (launch(true, "2"), end(true, "2"));
    println!("a launch: {} system calls without the log, {} with it", without.0, with.0);
    println!("an end: {} system calls without the log, {} with it", without.1, with.1);
    assert!(with.0 <= without.0 + 15, "{} system calls to a launch, {} without the log", with.0, without.0);
    assert!(with.1 <= without.1 + 40, "{} system calls to an end, {} without the log", with.1, without.1);
    assert_eq!(site.lines().len(), 2);
}
