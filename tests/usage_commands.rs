// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence ls`, `show`, `top` and `report`, with real fences: what they say about a live fence and about an ended one, and to which user.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use jobfence::config::Config;
use jobfence::host::Host;
use serde_json::Value;

mod common;

/// Users that have no jobs in other tests.
fn user() -> u32 {
    common::uids()
}
fn stranger() -> u32 {
    common::uids() + 1
}
/// The user of a job in Slurm's directories: every test that looks for its own user's jobs would find those.
fn of_slurm() -> u32 {
    common::uids() + 2
}
/// A user without jobs.
fn idler() -> u32 {
    common::uids() + 3
}

struct Site {
    temp: tempfile::TempDir,
    base: common::Base,
    /// Processes in fences; killed when dropped.
    children: Vec<Child>,
    /// Directories like Slurm's; removed when dropped.
    slurms: Vec<PathBuf>,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("usage", test)?;
        let temp = tempfile::tempdir().unwrap();
        // Users run the command, too.
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by a process that has ended: a child of another test must not have the file open for writing (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_jobfence")).arg(temp.path().join("jobfence")).status();
        assert!(copied.unwrap().success());
        Some(Self { temp, base, children: Vec::new(), slurms: Vec::new() })
    }

    fn log(&self) -> PathBuf {
        self.temp.path().join("log/usage.jsonl")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.temp.path().join("jobfence"));
        let run_dir = self.temp.path().join("run");
        command.args(args).arg("-o").arg(format!("CgroupBase={}", self.base.name));
        command.arg("-o").arg(format!("RunDir={}", run_dir.display()));
        command.arg("-o").arg(format!("UsageLog={}", self.log().display())).stdin(Stdio::null());
        command
    }

    fn done(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The output of a command that must succeed.
    fn out(&self, args: &[&str]) -> String {
        let done = self.done(args);
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.out(args)).unwrap()
    }

    fn as_user(&self, uid: u32, args: &[&str]) -> Output {
        self.command(args).uid(uid).gid(uid).output().unwrap()
    }

    fn open(&self, job: &str, uid: u32, more: &[&str]) {
        let uid = uid.to_string();
        self.out(&[&["open", "--job", job, "--user", &uid], more].concat());
    }

    /// A Python program that is in a fence from its beginning.
    fn run(&mut self, job: &str, step: &str, program: &str) -> u32 {
        let begun = format!("import sys\nsys.stdin.readline()\n{program}");
        let mut command = Command::new("python3");
        command.args(["-c", &begun]).uid(user()).gid(user()).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id().to_string();
        self.out(&["attach", "--job", job, "--step", step, &pid]);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut ready = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        self.children.push(child);
        self.children.last().unwrap().id()
    }

    fn close(&self, job: &str) {
        self.out(&["close", "--job", job]);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        // The fences are removed before the directory in which they are.
        for job in ["7", "8", "9", "10", HOSTILE] {
            let _ = self.done(&["close", "--job", job]);
        }
        for dir in self.slurms.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// A program that holds 50 MiB and then uses all the CPU time that it can get.
const BUSY: &str = "b = bytearray(50 << 20)\nprint(flush=True)\nwhile True: pass";

/// An id that contains commands for a terminal.
const HOSTILE: &str = "7\u{1b}[2J\u{1b}]0;x\u{7}\n\u{202e}x";

/// CPU time of a process, in seconds.
fn cpu_of(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn number(value: &Value, member: &str) -> f64 {
    value[member].as_f64().unwrap_or_else(|| panic!("{member} in {value}"))
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// No control characters except newlines.
fn assert_printable(text: &str) {
    let is_wrong = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!text.contains(is_wrong), "{text:?}");
}

/// Each member of an object, and of those in it. The steps of a report are lines of the log, which has its own table.
fn members(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.push(name.clone());
                if name != "steps" {
                    members(value, found);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| members(value, found)),
        _ => {}
    }
}

#[test]
fn a_report_has_what_was_used() {
    let Some(mut site) = Site::new("report") else { return };
    let begun = Instant::now();
    site.open("7", user(), &["--cpus", "0.5", "--mem", "200M"]);
    site.open("7", user(), &["--step", "1", "--cpus", "0.5", "--mem", "100M"]);
    let pid = site.run("7", "0", BUSY);
    std::thread::sleep(Duration::from_millis(1500));
    common::until("half a second of CPU time", || cpu_of(pid) > 0.5);
    // It must not use anything while it is examined.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::Signal::SIGSTOP).unwrap();
    common::until("it stands still", || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T "));
    let before = cpu_of(pid);
    // While it is alive, the report says so.
    let living = site.out(&["report", "7"]);
    assert!(living.contains("The job runs here: 2 fences of the job live now.\n"), "{living}");
    site.close("7");
    let report = site.json(&["report", "7", "--json"]);
    assert_eq!((&report["schema"], &report["runs_in_log"]), (&"jobfence-report-1".into(), &1.into()));
    let run = &report["runs"][0];
    let used = number(run, "cpu_seconds");
    assert!((before - 0.2..before + 0.5).contains(&used), "{used} after {before}");
    let peak = number(run, "memory_peak_bytes");
    assert!((50e6..80e6).contains(&peak), "{peak}");
    assert_eq!(number(run, "memory_limit_bytes"), 200.0 * 1024.0 * 1024.0);
    let wall = number(run, "wall_seconds");
    assert!((1.0..begun.elapsed().as_secs_f64() + 1.0).contains(&wall), "{wall}");
    let efficiency = number(run, "cpu_efficiency_percent");
    assert!((efficiency - 100.0 * used / (wall * 0.5)).abs() < 0.1, "{efficiency}");
    assert_eq!(run["steps"].as_array().map(Vec::len), Some(2));
    assert_eq!(run["uid"], user());

    let text = site.out(&["report", "7"]);
    assert!(text.starts_with(&format!("job 7 of {0} (uid {0})\n", user())), "{text}");
    assert!(text.contains(" 0.5 CPUs\n") && text.contains(" of 200.0 MiB ("), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let row = text.lines().find(|line| line.starts_with("0 ")).unwrap();
    assert!(row.trim_end().ends_with("closed") && row.contains(" 0.5 "), "{text}");
    let mail = site.out(&["report", "7", "--mail"]);
    for label in ["Job ID: 7\n", "\nCPU Utilized: 00:00:", "\nMemory Utilized: 5", "% of 200.0 MiB\n"] {
        assert!(mail.contains(label), "{label} in {mail}");
    }
    assert!(mail.lines().all(|line| line.chars().count() <= 76), "{mail}");
}

#[test]
fn a_report_is_of_one_run() {
    let Some(site) = Site::new("runs") else { return };
    for run in ["1", "2"] {
        site.open("8", user(), &["--run", run, "--cpus", run]);
        site.close("8");
    }
    let of = |args: &[&str]| {
        let report = site.json(args);
        let runs = report["runs"].as_array().unwrap();
        (report["runs_in_log"].clone(), runs.iter().map(|run| number(run, "cpus_limit")).collect::<Vec<_>>())
    };
    assert_eq!(of(&["report", "8", "--json"]), (2.into(), vec![2.0]));
    assert_eq!(of(&["report", "8", "--json", "--all"]), (2.into(), vec![2.0, 1.0]));
    let text = site.out(&["report", "8"]);
    assert!(text.contains("The log has an earlier run of this id, too"), "{text}");
    assert_eq!(site.out(&["report", "8", "--all"]).matches("job 8 of").count(), 2);
}

#[test]
fn what_is_no_line_of_the_log_is_passed_over() {
    let Some(site) = Site::new("garbage") else { return };
    site.open("9", user(), &[]);
    site.close("9");
    let whole = fs::read(site.log()).unwrap();
    let half = &whole[..whole.len() / 2];
    let garbage = [b"\x00\xff\x1b[2J nothing\n[]\n{\"schema\":1}\n".as_slice(), &whole, half].concat();
    fs::write(site.log(), garbage).unwrap();
    let done = site.done(&["report", "9"]);
    assert!(done.status.success(), "{done:?}");
    let expected =
        "jobfence: passed over in the usage log: 1 line without an end, 3 lines that jobfence has not written\n";
    assert_eq!(err(&done), expected);
    // It becomes a file from an earlier day.
    let old = site.log().with_file_name("usage.jsonl-20260101T000000Z");
    fs::rename(site.log(), old).unwrap();
    assert!(site.out(&["report", "9"]).contains("job 9 of"));
    let none = site.done(&["report", "10"]);
    assert!(
        none.status.code() == Some(1) && err(&none).contains("has no step of job 10 that you may see\n"),
        "{none:?}"
    );
}

#[test]
fn without_a_log_the_key_is_named() {
    let temp = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    let done = command.args(["report", "7", "--config"]).arg(temp.path()).output().unwrap();
    assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0));
    assert!(err(&done).contains("set UsageLog in jobfence.conf"), "{done:?}");
}

#[test]
fn what_lives_is_listed_and_shown() {
    let Some(mut site) = Site::new("living") else { return };
    let begun = Instant::now();
    site.open("7", user(), &["--cpus", "0.5", "--mem", "200M", "-o", "MaxProcesses=40"]);
    site.open("8", stranger(), &["--step", "batch"]);
    let pid = site.run("7", "0", BUSY);
    std::thread::sleep(Duration::from_millis(1000));
    // A busy machine may give it less than its half CPU, and now and then nothing.
    let is_busy = |all: &Value| {
        let fences = all["fences"].as_array().unwrap();
        fences
            .iter()
            .any(|one| one["path"].as_str().unwrap().contains(&site.base.name) && number(one, "cpus_now") >= 0.05)
    };
    for args in [["ls", "--json"], ["top", "--json"]] {
        let mut all = Value::Null;
        common::until("it is busy", || {
            all = site.json(&args);
            is_busy(&all)
        });
        assert_eq!(all["schema"], "jobfence-living-1");
        // Other tests can have directories like Slurm's, which root sees.
        let is_ours = |one: &&Value| one["path"].as_str().unwrap().contains(&site.base.name);
        let fences: Vec<&Value> = all["fences"].as_array().unwrap().iter().filter(is_ours).collect();
        let [one, other] = &fences[..] else { panic!("{all}") };
        assert_eq!((&one["job"], &one["step"], &one["run"]), (&"7".into(), &"0".into(), &1.into()));
        assert_eq!((&one["uid"], &one["placement"], &one["holder"]), (&user().into(), &"own".into(), &"manual".into()));
        let path = format!("/{}/uid_{}/job_7/step_0", site.base.name, user());
        assert!(one["path"].as_str().unwrap().ends_with(&path), "{one}");
        assert!(number(one, "cpus_now") < 0.75, "{one}");
        assert!((50e6..80e6).contains(&number(one, "memory_now_bytes")), "{one}");
        let limits = ["cpus_limit", "memory_limit_bytes", "processes_limit", "processes_now"];
        assert_eq!(limits.map(|member| number(one, member)), [0.5, f64::from(200 << 20), 40.0, 1.0]);
        let uptime = number(one, "uptime_seconds");
        assert!((1.0..begun.elapsed().as_secs_f64() + 1.0).contains(&uptime), "{uptime}");
        assert_eq!((&other["job"], &other["step"]), (&"8".into(), &"batch".into()));
        assert!(number(other, "cpus_now") < 0.01 && other["memory_limit_bytes"].is_null(), "{other}");
    }
    let name = user().to_string();
    let text = site.out(&["ls", "--user", &name]) + &site.out(&["ls", "--user", &stranger().to_string()]);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..8], ["JOB", "STEP", "USER", "UPTIME", "CPU", "CPUS", "MEM/MiB", "PEAK/MiB"]);
    assert_eq!((rows[1][0], rows[1][5], rows[1][8], rows[1][9]), ("7", "0.5", "200.0", "1"));
    assert_eq!((rows.len(), &rows[3][..2]), (4, &["8", "batch"][..]));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(site.json(&["ls", "--json", "--job", "8"])["fences"].as_array().unwrap().len(), 1);
    let of_user = site.json(&["ls", "--json", "--user", &name]);
    assert_eq!(of_user["fences"][0]["job"], "7");

    // No terminal: one sorted table, and the end.
    site.open("10", user(), &["--mem", "10M"]);
    let order = |column: &str| {
        let text = site.out(&["top", "--user", &name, "--sort", column]);
        text.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        ["cpu", "memory", "job", "time"].map(order),
        [["7", "10"]; 4].map(|jobs| jobs.map(str::to_owned).to_vec())
    );
    let by_cpu = site.out(&["top", "--user", &name]);
    site.close("10");
    assert!(!by_cpu.contains('\u{1b}'), "{by_cpu:?}");

    let shown = site.json(&["show", "7", "--json"]);
    let [step] = &shown["fences"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&step["processes"][0]["pid"], &step["processes"][0]["name"]), (&pid.into(), &"python3".into()));
    assert!(number(step, "cpu_user_seconds") > 0.1 && number(step, "memory_anonymous_bytes") > 50e6, "{step}");
    let limits = step["limits"].as_array().unwrap();
    let is_processes =
        |limit: &Value| limit["file"].as_str().unwrap().ends_with("/step_0/pids.max") && limit["value"] == "40";
    assert!(limits.iter().any(is_processes), "{limits:?}");
    let text = site.out(&["show", "7"]);
    assert!(text.contains(" of 0.5 CPUs now") && text.contains(" of 200.0 MiB now"), "{text}");
    assert!(text.contains(&format!("{pid} -    {} python3\n", user())), "{text}");
    let none = site.done(&["show", "9"]);
    assert!(
        none.status.code() == Some(1) && err(&none).contains("no fence of job 9 that you may see lives"),
        "{none:?}"
    );

    // Every member is in the man page.
    let page = fs::read_to_string("docs/man/jobfence.8").unwrap().replace('\\', "");
    let mut all = Vec::new();
    members(&shown, &mut all);
    members(&site.json(&["ls", "--json"]), &mut all);
    site.close("8");
    members(&site.json(&["report", "8", "--json"]), &mut all);
    all.sort();
    all.dedup();
    let described =
        |name: &str| name.replacen("memory_pressure", "cpu_pressure", 1).replacen("io_pressure", "cpu_pressure", 1);
    let unknown: Vec<&String> = all.iter().filter(|name| !page.contains(&described(name))).collect();
    assert!(unknown.is_empty(), "not in jobfence(8): {unknown:?}");
}

#[test]
fn a_user_sees_only_its_own() {
    let Some(site) = Site::new("users") else { return };
    let begun = Instant::now();
    site.open("7", user(), &["--cpus", "1"]);
    site.open("8", stranger(), &["--cpus", "2"]);
    site.open("9", user(), &["--cpus", "1"]);
    site.close("9");
    let fences = |args: &[&str]| {
        let done = site.as_user(user(), args);
        assert!(done.status.success(), "{done:?}");
        let all: Value = serde_json::from_slice(&done.stdout).unwrap();
        let all = all["fences"].as_array().unwrap();
        all.iter().map(|one| (one["job"].clone(), one["uid"].clone())).collect::<Vec<_>>()
    };
    let own = vec![(Value::from("7"), Value::from(user()))];
    assert_eq!(fences(&["ls", "--json"]), own);
    assert_eq!(fences(&["top", "--json"]), own);
    assert_eq!(fences(&["show", "7", "--json"]), own);
    assert_eq!(fences(&["ls", "--json", "--job", "8"]), []);
    let uptime = |output: Output| {
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        number(&all["fences"][0], "uptime_seconds")
    };
    // The user cannot read the record, but still learns when the fence was made.
    std::thread::sleep(Duration::from_millis(1500));
    let (by_root, by_user) =
        (uptime(site.done(&["show", "7", "--json"])), uptime(site.as_user(user(), &["show", "7", "--json"])));
    let most = begun.elapsed().as_secs_f64();
    for uptime in [by_root, by_user] {
        assert!((1.4..most + 0.1).contains(&uptime), "{by_root} and {by_user}, after {most}");
    }
    for args in [&["show", "8"][..], &["ls", "--user", "root"], &["top", "--user", "0"], &["report", "9"]] {
        let refused = site.as_user(user(), args);
        assert!(refused.status.code() == Some(1) && refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
    let others = site.as_user(user(), &["ls", "--user", "root"]);
    assert_eq!(err(&others), "jobfence: only root can look at the fences of other users\n");
    let report = site.as_user(user(), &["report", "9"]);
    let expected =
        format!("jobfence: only root can read the usage log ({}): ask your administrator", site.log().display());
    assert!(err(&report).starts_with(&expected), "{report:?}");
    // The user sees live fences all the same.
    let report = site.as_user(user(), &["report", "7"]);
    assert!(String::from_utf8_lossy(&report.stdout).contains("1 fence of the job lives now"), "{report:?}");
    assert_eq!(report.status.code(), Some(1));
}

#[test]
fn names_do_nothing_to_a_terminal() {
    let Some(mut site) = Site::new("hostile") else { return };
    site.open(HOSTILE, user(), &["--step", "\u{1b}c\u{9b}2J"]);
    let rename = "open('/proc/self/comm', 'w').write('\\x1b[2J\\nevil')\nprint(flush=True)\nwhile True: pass";
    let pid = site.run(HOSTILE, "\u{1b}c\u{9b}2J", rename);
    for args in [&["ls"][..], &["top"], &["show", HOSTILE], &["report", HOSTILE]] {
        let done = site.done(args);
        let said = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
        assert_printable(&said);
        assert!(said.contains("7?[2J?"), "{args:?}: {said}");
    }
    let shown = site.out(&["show", HOSTILE]);
    assert!(shown.contains(&format!("{pid} -    {} ?[2J?evil\n", user())), "{shown}");
    let shown = site.json(&["show", HOSTILE, "--json"]);
    assert_eq!(shown["fences"][0]["job"], HOSTILE);
    assert_eq!(shown["fences"][0]["processes"][0]["name"], "\u{1b}[2J\nevil");
    site.close(HOSTILE);
    assert_printable(&site.out(&["report", HOSTILE]));
    assert_eq!(site.json(&["report", HOSTILE, "--json"])["job"], HOSTILE);
    let none = site.done(&["show", "\u{1b}[2J"]);
    assert_printable(&err(&none));
}

#[test]
fn a_step_in_slurms_directories_is_one_row() {
    let Some(mut site) = Site::new("slurms") else { return };
    let config = Config { cgroup_base: Some(site.base.name.clone()), ..Config::default() };
    let host = Host::read(&config).unwrap();
    let on_v1 =
        host.layout.hierarchies.iter().filter(|one| one.has("freezer") || one.has("memory") || one.has("cpuacct"));
    let on_v1: Vec<_> = on_v1.filter(|one| one.version == jobfence::cgroup::layout::Version::V1).collect();
    if on_v1.is_empty() {
        return common::skip("no v1 hierarchy in which Slurm has directories");
    }
    // Every test program on this machine would find a job 77.
    let job = &of_slurm().to_string();
    for hierarchy in on_v1 {
        let mut dir = hierarchy.mount.join(format!("slurm_{}", site.base.name.rsplit('/').next().unwrap()));
        site.slurms.push(dir.clone());
        for name in [&format!("uid_{job}"), &format!("job_{job}"), "step_0+1", "task_3"] {
            dir.push(name);
            site.slurms.push(dir.clone());
        }
        fs::create_dir_all(&dir).unwrap();
    }
    for all in [
        site.json(&["ls", "--json", "--job", job]),
        serde_json::from_slice(&site.as_user(of_slurm(), &["ls", "--json"]).stdout).unwrap(),
    ] {
        let [one] = &all["fences"].as_array().unwrap()[..] else { panic!("{all}") };
        let whose = (&one["job"], &one["step"], &one["uid"], &one["placement"]);
        assert_eq!(whose, (&job.as_str().into(), &"0".into(), &of_slurm().into(), &"overlay".into()));
        assert_eq!(one["cpu_seconds"], 0.0);
    }
    let shown = site.json(&["show", job, "--json"]);
    assert_eq!(shown["fences"][0]["tasks"][0]["task"], "3");
    assert!(
        serde_json::from_slice::<Value>(&site.as_user(stranger(), &["ls", "--json"]).stdout).unwrap()["fences"]
            == serde_json::json!([])
    );
}

/// A terminal of 80 columns and 12 lines, and what a program has drawn on it.
struct Terminal {
    ours: fs::File,
    child: Child,
    cells: Vec<Vec<char>>,
    /// Lines that have left it at the top.
    above: Vec<String>,
    at: (usize, usize),
    /// Received bytes that do not form a whole terminal command yet.
    rest: String,
    commands: Vec<String>,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: 12, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both numbers are written, the size is read, and neither a name nor settings are asked for.
        let done = unsafe { libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(done, 0);
        // SAFETY: openpty has opened them, and nothing else owns them.
        let (ours, theirs) = unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        // Otherwise the child would have both ends, and its terminal would never go away.
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        // SAFETY: both are system calls that may follow fork.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.env("TERM", "xterm").spawn().unwrap();
        // The command keeps its own descriptors of the terminal.
        drop(command);
        let cells = vec![vec![' '; 80]; 12];
        Self { ours, child, cells, above: Vec::new(), at: (0, 0), rest: String::new(), commands: Vec::new() }
    }

    /// Makes it so many columns wide.
    fn resize(&mut self, columns: u16) {
        let size = libc::winsize { ws_row: 12, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the size is read.
        assert_eq!(unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    fn type_keys(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Processes what has arrived.
    fn update(&mut self) {
        use std::os::fd::AsFd;
        let mut fds = [nix::poll::PollFd::new(self.ours.as_fd(), nix::poll::PollFlags::POLLIN)];
        if nix::poll::poll(&mut fds, 100u8).unwrap() == 0 {
            return;
        }
        let mut piece = [0; 65_536];
        let read = self.ours.read(&mut piece).unwrap_or(0);
        self.rest.push_str(&String::from_utf8_lossy(&piece[..read]));
        let text = std::mem::take(&mut self.rest);
        let mut left = text.as_str();
        while let Some(c) = left.chars().next() {
            if c != '\u{1b}' {
                left = &left[c.len_utf8()..];
                match c {
                    '\r' => self.at.1 = 0,
                    '\n' if self.at.0 + 1 == self.cells.len() => {
                        let line: String = self.cells.remove(0).iter().collect();
                        self.above.push(line.trim_end().to_owned());
                        self.cells.push(vec![' '; 80]);
                    }
                    '\n' => self.at.0 += 1,
                    c => {
                        if let Some(cell) = self.cells.get_mut(self.at.0).and_then(|line| line.get_mut(self.at.1)) {
                            *cell = c;
                        }
                        self.at.1 += 1;
                    }
                }
                continue;
            }
            let behind = left.strip_prefix("\u{1b}[");
            let end = behind.and_then(|behind| behind.find(|c: char| c.is_ascii_alphabetic()));
            let (Some(behind), Some(end)) = (behind, end) else {
                self.rest = left.to_owned();
                return;
            };
            let (arguments, kind) = (&behind[..end], &behind[end..=end]);
            self.commands.push(format!("{arguments}{kind}"));
            match kind {
                "H" => {
                    let (line, column) = arguments.split_once(';').unwrap_or(("1", "1"));
                    self.at = (line.parse::<usize>().unwrap() - 1, column.parse::<usize>().unwrap() - 1);
                }
                "K" => self.cells[self.at.0].iter_mut().skip(self.at.1).for_each(|cell| *cell = ' '),
                "J" if arguments == "2" => self.cells.iter_mut().flatten().for_each(|cell| *cell = ' '),
                _ => {}
            }
            left = &behind[end + 1..];
        }
    }

    fn lines(&self) -> Vec<String> {
        self.cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    /// Waits for a screen that fulfils this.
    fn wait_for(&mut self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = common::soon();
        loop {
            self.update();
            let lines = self.lines();
            if is_so(&lines) {
                return lines;
            }
            assert!(Instant::now() < deadline, "{what}: {}", lines.join("\n"));
        }
    }

    fn ends(&mut self) -> Option<i32> {
        let deadline = common::soon();
        while Instant::now() < deadline {
            self.update();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.update();
                return status.code();
            }
        }
        let _ = self.child.kill();
        panic!("it goes on: {}", self.lines().join("\n"));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The jobs on a screen of 'jobfence top', from its first line on.
fn jobs(lines: &[String]) -> String {
    let is_job = |line: &&String| line.starts_with("+ ") || line.starts_with("- ");
    let rows = lines.iter().filter(is_job).filter_map(|line| line.split_whitespace().nth(1));
    rows.collect::<Vec<_>>().join(" ")
}

/// Jobs 7, which uses CPU time, and 8, which uses memory, and one whose name has commands for a terminal.
fn site_with_jobs(test: &str) -> Option<(Site, Terminal)> {
    let mut site = Site::new(test)?;
    site.open("7", user(), &["--cpus", "0.5"]);
    site.open("8", user(), &[]);
    site.open(HOSTILE, user(), &[]);
    site.run("7", "0", "print(flush=True)\nwhile True: pass");
    site.run(
        "8",
        "0",
        "b = bytearray(90 << 20)\nprint(flush=True)\nsys.stdin.readline()\nimport time\ntime.sleep(1000)",
    );
    let terminal = Terminal::start(site.command(&["top", "--interval", "0.3", "--user", &user().to_string()]));
    Some((site, terminal))
}

#[test]
fn top_is_sorted_by_keys() {
    let Some((site, mut terminal)) = site_with_jobs("top") else { return };
    let is_there = |lines: &[String]| lines[1].starts_with("  JOB ") && jobs(lines).contains('8');
    let screen = terminal.wait_for("the busiest first", |lines| is_there(lines) && jobs(lines).starts_with("7 "));
    assert!(screen[0].contains("  load ") && screen[0].contains("  3 jobs  granted "), "{screen:#?}");
    assert!(screen[11].starts_with("1 to 3 of 3  by CPU  ") && screen[11].ends_with("q quit"), "{screen:#?}");
    assert!(screen.iter().any(|line| line.starts_with("+ 7?[2J?")), "{screen:#?}");
    // In place, and on a screen of its own.
    assert!(terminal.commands.iter().any(|command| command == "?1049h"));
    let is_by = |lines: &[String], what: &str| lines[11].contains(&format!("  by {what}  "));
    terminal.type_keys("m");
    terminal.wait_for("by memory", |lines| jobs(lines).starts_with("8 ") && is_by(lines, "memory"));
    terminal.type_keys("r");
    terminal.wait_for("the other way", |lines| jobs(lines).ends_with(" 8") && is_by(lines, "memory, reversed"));
    terminal.type_keys("j");
    terminal.wait_for("by job", |lines| jobs(lines).ends_with(" 8") && is_by(lines, "job"));
    // The figures are the present ones.
    terminal.type_keys("c");
    site.close("7");
    terminal.wait_for("without the job that has ended", |lines| {
        !jobs(lines).starts_with("7 ") && lines[0].contains("  2 jobs  ")
    });
    // No cell was written with what a name says to a terminal.
    assert!(!terminal.commands.iter().any(|command| command == "2J"), "{:?}", terminal.commands);
    terminal.resize(40);
    terminal.wait_for("a narrow screen", |lines| {
        is_by(lines, "CPU") && jobs(lines).contains('8') && lines.iter().all(|line| line.chars().count() <= 40)
    });
    terminal.type_keys("q");
    assert_eq!(terminal.ends(), Some(0));
    for command in ["?1049l", "?25h"] {
        assert!(terminal.commands.iter().any(|given| given == command), "{command} in {:?}", terminal.commands);
    }
}

#[test]
fn top_shows_steps_and_all_of_a_job() {
    let Some((site, mut terminal)) = site_with_jobs("keys") else { return };
    terminal.wait_for("the jobs", |lines| jobs(lines).starts_with("7 ") && jobs(lines).contains('8'));
    terminal.type_keys("j/7?");
    terminal
        .wait_for("a filter", |lines| lines[11].starts_with("/7?_  1 to 1 of 1  ") && jobs(lines).starts_with("7?"));
    terminal.type_keys("\r");
    terminal.wait_for("the filter kept", |lines| lines[11].starts_with("1 to 1 of 1  /7?  by job  "));
    terminal.type_keys("\u{1b}");
    terminal.wait_for("all jobs", |lines| lines[11].starts_with("1 to 3 of 3  by job  "));
    terminal.type_keys("\u{1b}[F ");
    terminal.wait_for("the steps of the last", |lines| lines.iter().any(|line| line.starts_with("    0 ")));
    terminal.type_keys("\u{1b}[B\r");
    let screen = terminal.wait_for("all of it", |lines| lines[0] == "jobfence show 8" && lines[11].contains("q back"));
    assert!(screen.iter().any(|line| line.starts_with("job 8 step ")), "{screen:#?}");
    site.close("8");
    terminal.wait_for("its end", |lines| lines[1].contains("does not run here any more"));
    assert!(terminal.lines()[2].ends_with("jobfence report 8"), "{:#?}", terminal.lines());
    terminal.type_keys("q");
    terminal.wait_for("the others", |lines| lines[11].starts_with("1 to 2 of 2  by job  "));
    terminal.type_keys("?");
    terminal.wait_for("the keys", |lines| lines[0] == "Help" && lines.iter().any(|line| line.starts_with("Enter ")));
    // One step back at a time.
    terminal.type_keys("\u{1b}");
    terminal.wait_for("the list", |lines| lines[11].starts_with("1 to 2 of 2  by job  "));
    terminal.type_keys("\u{1b}");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn check_has_its_verdict_first_and_colours_on_a_terminal_alone() {
    let Some(site) = Site::new("verdict") else { return };
    for (unwanted, has_colours) in [("", true), ("1", false)] {
        let mut command = site.command(&["check"]);
        command.env("NO_COLOR", unwanted);
        let mut terminal = Terminal::start(command);
        assert!(terminal.ends().is_some());
        let lines = [terminal.above.clone(), terminal.lines()].concat();
        assert!(lines[0].starts_with("verdict        "), "{lines:#?}");
        let coloured = terminal.commands.iter().any(|command| command.starts_with("1;38;5;"));
        assert_eq!(coloured, has_colours, "{:?}", terminal.commands);
    }
    let printed = String::from_utf8(site.done(&["check"]).stdout).unwrap();
    assert!(printed.starts_with("verdict        ") && !printed.contains('\u{1b}'), "{printed:?}");
}

#[test]
fn top_puts_the_terminal_right_when_a_signal_ends_it() {
    let Some(site) = Site::new("signal") else { return };
    for (signal, keys) in [(Some(nix::sys::signal::Signal::SIGTERM), ""), (None, "\u{3}"), (None, "\u{1b}")] {
        let mut terminal = Terminal::start(site.command(&["top", "--user", &idler().to_string()]));
        terminal.wait_for("the first screen", |lines| lines[0].contains("  0 jobs  "));
        match signal {
            Some(signal) => {
                let pid = nix::unistd::Pid::from_raw(terminal.child.id().cast_signed());
                nix::sys::signal::kill(pid, signal).unwrap();
            }
            None => terminal.type_keys(keys),
        }
        assert_eq!(terminal.ends(), Some(0));
        assert!(terminal.commands.iter().any(|command| command == "?1049l"), "{:?}", terminal.commands);
    }
}

#[test]
fn top_ends_with_its_terminal() {
    let Some(site) = Site::new("gone") else { return };
    // Whether the kernel signals its session, or it has another session.
    for wrapper in [None, Some("setsid")] {
        let mut command = site.command(&["top", "--interval", "3600", "--user", &idler().to_string()]);
        if let Some(wrapper) = wrapper {
            let mut wrapped = Command::new(wrapper);
            wrapped.arg("--wait").arg(command.get_program()).args(command.get_args());
            command = wrapped;
        }
        let mut terminal = Terminal::start(command);
        terminal.wait_for("the first screen", |lines| lines[0].contains("  0 jobs  "));
        let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        drop(std::mem::replace(&mut terminal.ours, null));
        let deadline = common::soon();
        while terminal.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "top goes on without its terminal ({wrapper:?})");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn shells_complete_what_there_is() {
    let of = |shell: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_jobfence")).args(["completions", shell]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    for shell in ["zsh", "fish"] {
        let text = of(shell);
        assert!(
            ["report", "show", "--mail", "interval"].iter().all(|name| text.contains(name.trim_start_matches('-'))),
            "{shell}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = of(shell);
        for hidden in ["inside", "pam-directory"] {
            assert!(!text.contains(hidden), "{shell} offers --{hidden}, which is in no page");
        }
    }
    // Files are offered where a value is a file: for 'top' that is --config, but not the job of 'show'.
    let zsh = of("zsh");
    assert!(zsh.contains(":FILE:_files") && zsh.contains(":USER:_users"), "{zsh}");
    assert!(!zsh.contains(":CPUS:_") && !zsh.contains("writes it:_"), "{zsh}");
    let ask = format!(
        "{}\nasked() {{ COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _jobfence \"$1\" \"${{@: -1}}\" \"${{@: -2:1}}\"; \
         echo \"${{COMPREPLY[*]}}\"; }}\nasked jobfence re; asked jobfence report --m; asked jobfence top --sort me",
        of("bash")
    );
    let done = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "reap resize report\n--mail\nmemory\n", "{done:?}");
    // At a terminal bash offers file names where it knows nothing else, but here only for possible files.
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("completions"), of("bash")).unwrap();
    fs::write(temp.path().join("7.file"), "").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]).current_dir(temp.path()).env("PS1", "").env("INPUTRC", "/dev/null");
    let mut terminal = Terminal::start(bash);
    terminal.type_keys(". ./completions; jobfence() { echo \"<$*>\"; }; echo rea''dy\n");
    terminal.wait_for("bash", |lines| lines.iter().any(|line| line == "ready"));
    for (typed, asked) in [
        ("show 7", "<show 7>"),
        ("report --html 7", "<report --html 7.file>"),
        ("ls --user 7", "<ls --user 7>"),
        ("run -- ./7", "<run -- ./7.file>"),
    ] {
        terminal.type_keys(&format!("jobfence {typed}\t\n"));
        terminal.wait_for(asked, |lines| lines.iter().any(|line| line.trim() == asked));
    }
    terminal.type_keys("exit\n");
    terminal.child.wait().unwrap();
    let wrong = Command::new(env!("CARGO_BIN_EXE_jobfence")).args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
