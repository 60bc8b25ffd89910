// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs use of GPUs, by a stand-in for NVIDIA's library (tests/gpu/nvml.c): the probe with each of its errors, and `jobfence hold` with
//! a call that never returns.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

mod common;

/// A GPU that does all that NVML asks for.
const ONE: &str = "count 1\npercent 0 50\nmemory 0 1000\ntotal 0 4000\nenergy 0 7000\nslowed 0 32\naccounting 0 0\n";

/// The functions of the library that the probe calls for one GPU, and the member of the answer that is unknown without each.
const FUNCTIONS: [(&str, &str); 9] = [
    ("nvmlDeviceGetUUID", "uuid"),
    ("nvmlDeviceGetMigMode", "is_divided"),
    ("nvmlDeviceGetTotalEnergyConsumption", "energy"),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", "slowed"),
    ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ("nvmlDeviceGetAccountingMode", "accounted"),
    ("nvmlDeviceGetAccountingPids", "accounted"),
    ("nvmlDeviceGetSamples", ""),
    ("nvmlDeviceGetMemoryInfo_v2", ""),
];

/// Where the stand-in and what it says are.
struct Driver(tempfile::TempDir);

impl Driver {
    fn or_skip() -> Option<Self> {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        let Ok(output) = compiler.arg(temp.path().join("nvml.so")).arg("tests/gpu/nvml.c").output() else {
            common::skip("no C compiler");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self(temp))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A reader sees the old text or the new one.
    fn says(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("says")).unwrap();
    }

    fn has_called(&self) -> String {
        fs::read_to_string(self.path("called")).unwrap_or_default()
    }

    fn driven(&self, command: &mut Command) {
        command.env("JOBFENCE_TEST_NVML", self.path("nvml.so"));
        command.env("JOBFENCE_TEST_NVML_SAYS", self.path("says"));
        command.env("JOBFENCE_TEST_NVML_CALLED", self.path("called"));
    }

    /// What the probe answers to a question, asked so many times.
    fn answers(&self, question: &Value, times: usize) -> Vec<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        self.driven(command.arg("gpu-probe").stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut probe = command.spawn().unwrap();
        let mut questions = probe.stdin.take().unwrap();
        // It may have ended after its first answer.
        let _ = questions.write_all(format!("{question}\n").repeat(times).as_bytes());
        drop(questions);
        let output = probe.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn question(minors: &[u32], accounting: bool) -> Value {
    json!({"nvidia": minors, "began": [], "nvidia_all": false, "accounting": accounting, "drm": [], "pids": []})
}

#[test]
fn the_probe_says_what_the_driver_says() {
    let Some(driver) = Driver::or_skip() else { return };
    driver.says(&format!("{ONE}count 3\npercent 2 7\nprocess 0 10 100\nprocess 0 11 200\n"));
    let [first, second] = &driver.answers(&question(&[0], false), 2)[..] else { panic!() };
    let expected = json!({
        "minor": 0, "uuid": "GPU-0", "percent": 50.0, "most_percent": 50.0, "memory": 1000, "memory_total": 4000, "energy": 7000,
        "slowed": 32, "is_divided": false, "processes": [[10, 100], [11, 200]], "accounted": null,
    });
    assert_eq!((&first["nvidia"], &first["trouble"]), (&json!([expected]), &json!([])));
    assert_eq!(second, first);
    let calls = driver.has_called();
    assert_eq!(calls.matches("nvmlInit_v2\n").count(), 1);
    assert!(!calls.contains("SetAccountingMode"), "nobody has asked for that");
    // A GPU that says little, which is no trouble; and a number that no GPU has.
    let answers = driver.answers(&question(&[2, 9], true), 1);
    assert_eq!(answers[0]["nvidia"][0]["percent"], 7.0);
    for unknown in ["memory", "energy", "slowed", "accounted"] {
        assert_eq!(answers[0]["nvidia"][0][unknown], Value::Null, "{unknown}");
    }
    assert_eq!((answers[0]["nvidia"].as_array().unwrap().len(), &answers[0]["trouble"]), (1, &json!([])));
    // Asked for nothing of NVIDIA's, it opens no library.
    fs::remove_file(driver.path("called")).unwrap();
    assert_eq!(driver.answers(&question(&[], false), 1)[0]["nvidia"], json!([]));
    assert_eq!(driver.has_called(), "");
}

#[test]
fn each_error_of_each_function_leaves_the_rest() {
    let Some(driver) = Driver::or_skip() else { return };
    let with_accounting = ONE.replace("accounting 0 0", "accounting 0 1");
    driver.says(&with_accounting);
    let whole = driver.answers(&question(&[0], false), 1).remove(0)["nvidia"][0].clone();
    assert!(whole.as_object().unwrap().values().all(|value| !value.is_null()), "{whole}");
    for (function, member) in FUNCTIONS {
        for code in [2, 3, 4, 10, 13, 15, 16, 999] {
            driver.says(&format!("{with_accounting}{function} {code}\n"));
            let answer = driver.answers(&question(&[0], false), 1).remove(0);
            let gpu = &answer["nvidia"][0];
            for (name, value) in whole.as_object().unwrap() {
                // Without a member, the function has a predecessor.
                let is_lost = name == member;
                let is_allowed = function == "nvmlDeviceGetMemoryInfo_v2" && name.starts_with("memory");
                if !is_lost && !is_allowed {
                    assert_eq!(&gpu[name], value, "{function} {code}: {answer}");
                }
            }
            let is_supported = ![3, 13].contains(&code);
            let is_said = answer["trouble"].to_string().contains(&format!("{function}: "));
            if !member.is_empty() {
                assert_eq!(is_said, is_supported, "{function} {code}: {answer}");
                assert!(
                    gpu[member].is_null() != (member == "is_divided" && !is_supported),
                    "{function} {code}: {answer}"
                );
            }
        }
    }
    // A GPU that has fallen off the bus does not hide the others.
    for function in ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCount_v2"] {
        driver.says(&format!("{ONE}{function} 15\n"));
        let answer = driver.answers(&question(&[0], false), 2).remove(1);
        assert!(answer["trouble"].to_string().contains("the GPU is lost (15)"), "{answer}");
    }
    // After a reload of the driver the library is of no use, and neither is the probe: it ends.
    for function in ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"] {
        driver.says(&format!("{ONE}{function} 18\n"));
        let answers = driver.answers(&question(&[0], false), 2);
        assert_eq!(answers.len(), 1, "{function}");
        assert!(answers[0]["trouble"].to_string().contains("different releases (18)"), "{answers:?}");
    }
    fs::remove_file(driver.path("nvml.so")).unwrap();
    let answers = driver.answers(&question(&[0], false), 2);
    assert!(answers.len() == 1 && answers[0]["trouble"][0].as_str().unwrap().starts_with("open "), "{answers:?}");
}

#[test]
fn accounting_is_switched_on_if_the_site_wants_that() {
    let Some(driver) = Driver::or_skip() else { return };
    driver.says(ONE);
    assert_eq!(driver.answers(&question(&[0], false), 1)[0]["nvidia"][0]["accounted"], Value::Null);
    let records: String = (1..=100).map(|pid| format!("record 0 {pid} 1700000000000000 100 5 50 0\n")).collect();
    driver.says(&format!("{ONE}{records}"));
    let answer = driver.answers(&question(&[0], true), 1).remove(0);
    assert!(driver.has_called().contains("nvmlDeviceSetAccountingMode"));
    let accounted = answer["nvidia"][0]["accounted"].as_array().unwrap();
    assert_eq!((accounted.len(), &accounted[99]), (100, &json!([100, 1_700_000_000_000_000_u64, 100, 5, 50, false])));
    driver.says(&format!("{ONE}nvmlDeviceSetAccountingMode 4\n"));
    let answer = driver.answers(&question(&[0], true), 1).remove(0);
    assert!(answer["trouble"].to_string().contains("nvmlDeviceSetAccountingMode: no permission (4)"), "{answer}");
    assert_eq!(answer["nvidia"][0]["percent"], 50.0);
}

/// A node with two GPUs, its `jobfence hold`, and jobs.
struct Site {
    base: common::Base,
    driver: Driver,
    children: Vec<Child>,
    hold: Option<Child>,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("gpus", test)?;
        let driver = Driver::or_skip()?;
        // Links stand for the devices.
        (0..2).for_each(|n| symlink("/dev/zero", driver.path(&format!("nvidia{n}"))).unwrap());
        driver.says(ONE);
        Some(Self { base, driver, children: Vec::new(), hold: None })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        let path = |name: &str| self.driver.path(name).display().to_string();
        for setting in [
            format!("CgroupBase={}", self.base.name),
            format!("RunDir={}", path("run")),
            format!("UsageLog={}", path("log/usage.jsonl")),
            format!("MetricsFile={}", path("metrics.prom")),
            format!("GPUDevice={}", path("nvidia%d")),
            "SampleInterval=1".to_owned(),
            "ReapInterval=1".to_owned(),
            "GPUIdleAfter=1m".to_owned(),
        ] {
            command.arg("-o").arg(setting);
        }
        let (word, rest) = args.split_first().unwrap();
        let mut all = Command::new(command.get_program());
        all.arg(word).args(rest).args(command.get_args()).stdin(Stdio::null());
        all
    }

    fn out(&self, args: &[&str]) -> String {
        let done = self.command(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn hold(&mut self) {
        self.hold_with(&[]);
    }

    fn hold_with(&mut self, more: &[&str]) {
        let said = fs::File::options().create(true).append(true).open(self.driver.path("said")).unwrap();
        let mut hold = self.command(&[&["hold"], more].concat());
        // Only idle time passes faster.
        hold.env("JOBFENCE_TEST_IDLE_SPEED", "20");
        self.driver.driven(&mut hold);
        self.hold = Some(hold.stdout(Stdio::null()).stderr(said).spawn().unwrap());
    }

    /// Tells it to end, and returns how long that took.
    fn end_hold(&mut self) -> Duration {
        let (mut hold, begun) = (self.hold.take().unwrap(), Instant::now());
        kill(Pid::from_raw(hold.id() as i32), Signal::SIGTERM).unwrap();
        let deadline = common::soon();
        while hold.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                hold.kill().unwrap();
                hold.wait().unwrap();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(hold.wait().unwrap().success());
        begun.elapsed()
    }

    /// The processes that it has started.
    fn probes(&self) -> Vec<i32> {
        let pid = self.hold.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn run(&mut self, job: &str, gpus: &str) {
        self.run_as(0, job, gpus);
    }

    fn run_as(&mut self, uid: u32, job: &str, gpus: &str) {
        self.out(&["open", "--job", job, "--user", &uid.to_string(), "--mem", "200M", "--gpus", gpus]);
        let mut command = Command::new("sleep");
        let child = command.arg("1000").uid(uid).gid(uid).stdout(Stdio::null()).spawn().unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        self.children.push(child);
    }

    fn shown(&self, job: &str) -> Value {
        let shown: Value = serde_json::from_str(&self.out(&["show", job, "--json"])).unwrap();
        shown["fences"][0].clone()
    }

    /// Waits until a job's figures are so.
    fn until(&self, job: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = common::soon();
        loop {
            let shown = self.shown(job);
            if is_so(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "{shown}; {}", self.said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.driver.path("said")).unwrap_or_default()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.children.iter_mut().chain(&mut self.hold) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let list: Value = serde_json::from_str(&self.out(&["ls", "--json"])).unwrap_or_default();
        for fence in list["fences"].as_array().into_iter().flatten() {
            let _ = self.command(&["close", "--job", fence["job"].as_str().unwrap_or_default()]).output();
        }
    }
}

fn points(shown: &Value) -> usize {
    shown["series"]["at_seconds"].as_array().map_or(0, Vec::len)
}

#[test]
fn what_a_job_uses_is_shown_while_it_runs_and_reported_when_it_has_ended() {
    let Some(mut site) = Site::new("whole") else { return };
    site.hold();
    site.run("7", "1");
    let shown = site.until("7", |shown| shown["gpus"]["utilization_percent"] == 50.0);
    let gpu = &shown["gpus"]["gpus"][0];
    assert_eq!((&gpu["gpu"], &gpu["uuid"], &gpu["is_shared"]), (&json!(0), &json!("GPU-0"), &json!(false)));
    assert_eq!((&gpu["memory_peak_bytes"], &gpu["memory_total_bytes"]), (&json!(1000), &json!(4000)));
    assert_eq!((&gpu["utilization_source"], &gpu["slowed_by"]), (&json!("samples"), &json!(["temperature"])));
    assert!(site.out(&["ls"]).contains("GPU%") && site.out(&["show", "7"]).contains("GPU        0 busy 50 % now"));
    // An earlier process's figures go on; a hundred processes that lived between two looks have records.
    let observed = gpu["observed_seconds"].as_f64().unwrap();
    site.end_hold();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let records: String = (1..=100).map(|pid| format!("record 0 {pid} {now} 100 3000 50 0\n")).collect();
    let said = ONE.replace("percent 0 50", "percent 0 0").replace("accounting 0 0", "accounting 0 1");
    site.driver.says(&format!("{said}energy 0 12000\n{records}"));
    site.hold();
    let shown = site.until("7", |shown| shown["gpus"]["gpus"][0]["utilization_source"] == "accounting");
    let gpu = &shown["gpus"]["gpus"][0];
    assert!(gpu["observed_seconds"].as_f64().unwrap() > observed, "{gpu}");
    assert_eq!(gpu["memory_peak_bytes"], 3000);
    site.until("7", |shown| shown["gpus"]["gpus"][0]["busy_seconds"] == 5.0);
    let metrics = fs::read_to_string(site.driver.path("metrics.prom")).unwrap();
    assert!(metrics.contains("jobfence_job_gpu_memory_total_bytes{account=\"\",jobid=\"7\""), "{metrics}");
    site.out(&["close", "--job", "7"]);
    let log = site.driver.path("log/usage.jsonl.gpus");
    let deadline = common::soon();
    while fs::read_to_string(&log).unwrap_or_default().is_empty() {
        assert!(Instant::now() < deadline, "no line; {}", site.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    let line: Value = serde_json::from_str(fs::read_to_string(&log).unwrap().trim()).unwrap();
    assert_eq!((&line["schema"], &line["job"]), (&json!("jobfence-gpus-1"), &json!("7")));
    assert_eq!((&line["gpus"][0]["energy_joules"], &line["state"]), (&json!(5.0), &Value::Null));
    let report: Value = serde_json::from_str(&site.out(&["report", "7", "--json"])).unwrap();
    assert_eq!(report["runs"][0]["gpus"]["gpus"][0]["busy_seconds"], 5.0);
    let text = site.out(&["report", "7"]);
    assert!(text.contains("  GPUs      1, busy "), "{text}");
    assert!(site.out(&["report", "7", "--html", "-"]).contains("What the job's GPUs did"));
    // Nobody has a GPU any more, so nothing keeps the devices open.
    let deadline = common::soon();
    while !site.probes().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", site.probes());
        std::thread::sleep(Duration::from_millis(50));
    }
    let files: Vec<_> = fs::read_dir(site.driver.path("run-series")).unwrap().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn a_job_whose_gpus_stay_idle_is_cancelled_and_one_that_computes_is_not() {
    let Some(mut site) = Site::new("idle") else { return };
    site.driver.says(&(ONE.replace("count 1", "count 2").replace("percent 0 50", "percent 0 0") + "percent 1 50\n"));
    for job in ["7", "8"] {
        site.run_as(common::uids(), job, "1");
    }
    site.hold_with(&["-o", "GPUIdleAction=cancel"]);
    // The first job has the first GPU.
    common::until("SIGTERM", || {
        site.said().contains("job 7 of") && site.said().contains("is cancelled, since its GPUs")
    });
    let ended = site.children[0].wait().unwrap();
    assert_eq!(ended.signal(), Some(Signal::SIGTERM as i32), "{}", site.said());
    assert!(site.said().contains("it is cancelled in 1:00 if that stays so"), "{}", site.said());
    common::until("what was done", || {
        site.out(&["show", "7"]).contains("the job's GPUs had done nothing; it is cancelled for that")
    });
    assert_eq!(site.children[1].try_wait().unwrap(), None);
    assert!(!site.said().contains("job 8 of"), "{}", site.said());
}

#[test]
fn a_call_that_never_returns_delays_nothing() {
    let Some(mut site) = Site::new("hang") else { return };
    site.driver.says(&format!("{ONE}nvmlDeviceGetUUID hang\n"));
    site.run("7", "1");
    site.hold();
    let deadline = common::soon();
    while !site.driver.has_called().contains("nvmlDeviceGetUUID") {
        assert!(Instant::now() < deadline, "the driver is not asked; {}", site.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    let probes = site.probes();
    // Samples go on as if nothing were, while the same probe waits.
    let before = points(&site.shown("7"));
    let shown = site.until("7", |shown| points(shown) >= before + 3);
    let at: Vec<f64> =
        shown["series"]["at_seconds"].as_array().unwrap().iter().map(|at| at.as_f64().unwrap()).collect();
    assert_eq!((site.probes(), probes.len()), (probes.clone(), 1));
    assert_eq!(shown["gpus"], Value::Null, "unknown is unknown");
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] < 10.0), "{at:?}");
    // It ends at once, too, and the probe with it.
    assert!(site.end_hold() < Duration::from_secs(10));
    let deadline = common::soon();
    let is_gone =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).map_or(true, |text| !text.contains("gpu-probe"));
    while !probes.iter().all(is_gone) {
        assert!(Instant::now() < deadline, "{probes:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_driver_that_comes_back_is_asked_again() {
    let Some(mut site) = Site::new("reload") else { return };
    site.driver.says(&format!("{ONE}nvmlInit_v2 18\n"));
    site.run("7", "1");
    site.hold();
    let deadline = common::soon();
    while !site.said().contains("different releases") {
        assert!(Instant::now() < deadline, "{}", site.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    site.driver.says(ONE);
    site.until("7", |shown| shown["gpus"]["utilization_percent"] == 50.0);
    assert_eq!(site.said().matches("different releases").count(), 1, "{}", site.said());
    // What is not known any more is not shown as if it were.
    site.driver.says(&format!("{ONE}nvmlInit_v2 18\nnvmlDeviceGetCount_v2 18\n"));
    let shown = site.until("7", |shown| shown["gpus"]["utilization_now_percent"].is_null());
    assert_eq!(shown["gpus"]["utilization_percent"], 50.0);
}

#[test]
fn without_a_gpu_nothing_is_started() {
    let Some(mut site) = Site::new("none") else { return };
    site.run("7", "0");
    site.hold();
    site.until("7", |shown| points(shown) >= 2);
    assert_eq!((site.probes(), site.driver.has_called().as_str()), (vec![], ""));
    let pid = site.hold.as_ref().unwrap().id();
    let maps = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("maps")).unwrap();
    assert!(!maps.contains("nvml") && !site.out(&["ls"]).contains("GPU%"));
}
