// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence report --by`, with logs as they lie at a site: packed, of many nodes, with lines of others, and millions of lines long.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

#[path = "common/skip.rs"]
mod skip;

/// The most memory that a summary may have for its data, in bytes.
const MOST: u64 = 64 << 20;

/// A line of the batch step of a job that had two CPUs and 4 GiB for an hour, and used half of both.
fn line(node: &str, job: u64, more: &Value) -> String {
    let begin = 1_780_000_000 + job * 10;
    let moment = |seconds: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        jobfence::report::account::utc(time)
    };
    let mut line = json!({
        "schema": "jobfence-usage-1", "ended": moment(begin + 3600), "started": moment(begin),
        "started_unix_seconds": begin, "ended_unix_seconds": begin + 3600, "wall_seconds": 3600.0, "node": node,
        "job": job.to_string(), "step": "batch", "run": 0, "uid": 1001, "user": "alice", "account": "physics",
        "partition": "short", "qos": "normal", "exit_status": 0, "exit_signal": null, "cpus_granted": 2,
        "memory_granted_bytes": 4_u64 << 30, "cpu_seconds": 3600.0, "memory_peak_bytes": 2_u64 << 30, "oom_kills": 0,
        "swap_peak_bytes": 0, "memory_high_events": 0, "memory_max_events": 0,
    });
    for (name, value) in more.as_object().unwrap() {
        line[name] = value.clone();
    }
    format!("{line}\n")
}

fn report(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    command.args(["report", "--logs"]).arg(directory).args(args).stdin(Stdio::null()).output().unwrap()
}

/// The output of a command that must succeed.
fn out(directory: &Path, args: &[&str]) -> String {
    let done = report(directory, args);
    assert!(done.status.success(), "{args:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn object(directory: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&out(directory, args)).unwrap()
}

fn packed(text: &str) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap()
}

/// As zstd(1) packs it. `None`: it is not there.
fn packed_by_zstd(text: &str) -> Option<Vec<u8>> {
    let mut zstd = Command::new("zstd").args(["-q", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    zstd.stdin.take()?.write_all(text.as_bytes()).ok()?;
    Some(zstd.wait_with_output().ok()?.stdout)
}

#[test]
fn logs_of_many_nodes_are_one_summary() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path();
    fs::create_dir_all(top.join("node1")).unwrap();
    fs::create_dir_all(top.join("node2/old")).unwrap();
    // Job 1 ran on both nodes; bob's job was killed.
    let bob = json!({"uid": 1002, "user": "bob\u{1b}[2J", "account": "=1+1", "oom_kills": 1, "exit_status": null, "exit_signal": 9});
    let of_two = line("node2", 1, &json!({"step": "extern"}));
    fs::write(top.join("node1/usage.jsonl"), line("node1", 1, &json!({})) + &line("node1", 3, &bob)).unwrap();
    // Two members of gzip, and two frames of zstd, as appending makes them.
    let old = [packed(&of_two), packed(&line("node2", 4, &json!({"cpu_seconds": null})))].concat();
    fs::write(top.join("node2/old/a.gz"), old).unwrap();
    let with_zstd = [line("node2", 5, &json!({})), line("node2", 6, &json!({}))].map(|text| packed_by_zstd(&text));
    let mut expected_jobs = 3;
    if let [Some(one), Some(other)] = with_zstd {
        fs::write(top.join("node2/b.zst"), [one, other].concat()).unwrap();
        expected_jobs += 2;
    } else {
        skip::skip("no zstd: logs that it has packed");
    }
    // What is no log is passed over; a link is not followed, and a pipe stops nothing.
    fs::write(top.join("node1/usage.jsonl.series"), "{\"schema\":\"jobfence-series-1\"}\n").unwrap();
    std::os::unix::fs::symlink(top.join("node1"), top.join("again")).unwrap();
    nix::unistd::mkfifo(&top.join("node1/pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    if !nix::unistd::getuid().is_root() {
        return skip::skip("no root, who sees all");
    }
    let all = object(top, &["--by", "account", "--json", "--price-cpu-hour", "0.5", "--currency", "EUR"]);
    assert_eq!((&all["schema"], &all["by"]), (&"jobfence-summary-1".into(), &"account".into()));
    let total = &all["total"];
    let of = |member: &str| total[member].as_f64().unwrap_or_else(|| panic!("{member} in {total}"));
    assert_eq!(of("jobs"), f64::from(expected_jobs));
    // Each node of a job reserves two CPU-hours, and uses one; of job 4 that is not known.
    let nodes = f64::from(expected_jobs);
    assert_eq!([of("cpu_hours_reserved"), of("cpu_hours_used"), of("cpu_hours_wasted")], [2.0 * nodes, nodes, nodes]);
    assert_eq!((of("jobs_cpu_unknown"), of("jobs_out_of_memory"), of("jobs_failed")), (1.0, 1.0, 1.0));
    assert_eq!((of("cost"), of("cost_wasted")), (nodes, 0.5 * nodes));
    assert!(total["gpu_hours_reserved"].is_null() && total["throttled_percent"].is_null(), "{total}");
    let by_node = object(top, &["--by", "node", "--json"]);
    let jobs: Vec<_> = by_node["groups"].as_array().unwrap().iter().map(|one| (&one["name"], &one["jobs"])).collect();
    assert!(jobs.contains(&(&"node1".into(), &2.into())), "{jobs:?}");
    assert_eq!(by_node["total"]["jobs"], expected_jobs);
    // Since a day: the day is that of the end, in UTC.
    let none = report(top, &["--by", "user", "--since", "2026-12-31"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0), "{none:?}");

    let text = out(top, &["--by", "user"]);
    assert!(text.contains("\nbob?[2J ") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}'));
    let csv = out(top, &["--by", "account", "--csv"]);
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert!(lines[0].starts_with("account,jobs,cpu_hours_reserved,cpu_hours_used,"), "{csv}");
    // A spreadsheet must not compute what a user has written, and what is not known is empty.
    assert!(
        lines.iter().any(|line| line.starts_with("\"'=1+1\",1,2.0,1.0,1.0,50.0,0,") && line.contains(",,")),
        "{csv}"
    );
    assert_eq!(lines.len(), 4, "{csv}");
    let page = out(top, &["--by", "user", "--html", "-"]);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{page}");
    assert!(page.contains("bob?[2J") && ["<script", "http:", "https:"].iter().all(|it| !page.contains(it)), "{page}");

    // Every member is in the man page.
    let manual = fs::read_to_string("docs/man/jobfence.8").unwrap().replace('\\', "");
    let mut found = Vec::new();
    members(&all, &mut found);
    let missing: Vec<&String> = found.iter().filter(|name| !manual.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in jobfence(8): {missing:?}");
}

/// Each node has a file of its own, and they cover the same time: more jobs than are kept open.
#[test]
fn a_file_for_each_node_is_as_one_file_of_all() {
    let temp = tempfile::tempdir().unwrap();
    if !nix::unistd::getuid().is_root() {
        return skip::skip("no root, who sees all");
    }
    let nodes = ["n1", "n2", "n3"].map(|node| (1..=30_000).map(|job| line(node, job, &json!({}))).collect::<Vec<_>>());
    let (apart, together) = (temp.path().join("apart"), temp.path().join("together"));
    fs::create_dir(&together).unwrap();
    fs::create_dir(&apart).unwrap();
    let all: String = (0..30_000).flat_map(|at| nodes.each_ref().map(|lines| lines[at].as_str())).collect();
    fs::write(together.join("usage.jsonl"), all).unwrap();
    for (at, lines) in nodes.iter().enumerate() {
        fs::write(apart.join(format!("{at}.jsonl")), lines.concat()).unwrap();
    }
    // A copy is known again.
    fs::copy(apart.join("0.jsonl"), apart.join("copy.jsonl")).unwrap();
    let of = |directory: &Path| object(directory, &["--by", "account", "--json"]);
    let (apart, together) = (of(&apart), of(&together));
    assert_eq!((&apart["total"], &apart["total"]["jobs"]), (&together["total"], &30_000.into()));
    assert_eq!(
        (&apart["files"], &apart["lines_again"], &together["lines_again"]),
        (&4.into(), &30_000.into(), &0.into())
    );
    assert_eq!((&apart["jobs_counted_early"], &apart["lines_late"]), (&0.into(), &0.into()));
}

/// What cannot be right spoils nothing else, and what is not known is not zero.
#[test]
fn wrong_clocks_late_lines_and_unknown_times_are_said() {
    let temp = tempfile::tempdir().unwrap();
    if !nix::unistd::getuid().is_root() {
        return skip::skip("no root, who sees all");
    }
    let ahead = json!({"ended": "2099-01-01T00:00:00Z", "ended_unix_seconds": 4_070_908_800_u64});
    let since_1970 = json!({"started": "1970-01-01T00:00:10Z", "started_unix_seconds": 10});
    let unknown = json!({"cpu_seconds": null});
    let of_extern = json!({"step": "extern", "cpu_seconds": 0.01});
    let lines = [
        line("n1", 1, &json!({})),
        line("n1", 2, &ahead),
        line("n1", 3, &since_1970),
        line("n1", 4, &unknown),
        line("n1", 4, &of_extern),
        line("n1", 2000, &json!({})),
        line("n1", 5, &json!({})),
    ];
    fs::write(temp.path().join("usage.jsonl"), lines.concat()).unwrap();
    let done = report(temp.path(), &["--by", "account", "--json"]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("2 lines that a wrong clock has dated"), "{said}");
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let total = &all["total"];
    assert_eq!(
        (&total["jobs"], &total["jobs_cpu_unknown"], &all["lines_late"]),
        (&4.into(), &1.into(), &1.into()),
        "{all}"
    );
    assert_eq!((&total["cpu_hours_reserved"], &total["cpu_hours_used"]), (&6.0.into(), &3.0.into()), "{total}");
}

fn members(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            found.push(name.clone());
            members(value, found);
        }),
        Value::Array(all) => all.iter().for_each(|value| members(value, found)),
        _ => {}
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    let temp = tempfile::tempdir().unwrap();
    let whole = line("n", 1, &json!({"uid": nix::unistd::getuid().as_raw()}));
    let garbage = [b"\x00\xff nothing\n".as_slice(), whole.as_bytes(), &whole.as_bytes()[..99]].concat();
    fs::write(temp.path().join("a"), garbage).unwrap();
    fs::write(temp.path().join("b"), &packed(&whole.repeat(99))[..60]).unwrap();
    fs::write(temp.path().join("c"), b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff").unwrap();
    let done = report(temp.path(), &["--by", "user", "--json"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(err.contains("1 line without an end, 1 line that jobfence has not written"), "{err}");
    assert!(err.contains(&format!("{}/c", temp.path().display())), "{err}");
    // The figures of what could be read are there.
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(all["total"]["jobs"], 1);
}

#[test]
fn users_see_their_own() {
    if !nix::unistd::getuid().is_root() {
        return skip::skip("no root, to be another user");
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let lines = line("n", 1, &json!({})) + &line("n", 2, &json!({"uid": 1002, "user": "bob"}));
    fs::write(temp.path().join("log"), lines).unwrap();
    let program = temp.path().join("jobfence");
    // Copied by a process that has ended: a child of another test must not have the file open for writing (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_jobfence")).arg(&program).status().unwrap().success());
    let mut command = Command::new(program);
    command.args(["report", "--by", "user", "--json", "--logs"]).arg(temp.path()).uid(1002).gid(1002).current_dir("/");
    let done = command.output().unwrap();
    let all: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!(all["groups"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!((&all["total"]["jobs"], &all["groups"][0]["name"]), (&1.into(), &"bob".into()));
    assert_eq!(object(temp.path(), &["--by", "user", "--json"])["total"]["jobs"], 2);
}

#[test]
fn a_job_and_a_summary_exclude_each_other() {
    let temp = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_jobfence")).arg("report").args(args).output().unwrap();
        assert_eq!((done.status.code(), done.stdout.len()), (Some(2), 0), "{args:?}: {done:?}");
    };
    for args in [
        &["7", "--by", "user"][..],
        &[],
        &["7", "--since", "6months"],
        &["7", "--csv"],
        &["7", "--price-cpu-hour", "1"],
        &["--by", "user", "--csv", "--json"],
        &["--by", "user", "--json", "--html", "-"],
        &["--by", "user", "--mail"],
        &["--by", "user", "--stored", "--logs", "/"],
        &["--by", "color"],
        &["--by", "user", "--since", "yesterday"],
        &["--by", "user", "--price-cpu-hour", "-1"],
    ] {
        refused(args);
    }
    let none = report(&temp.path().join("none"), &["--by", "user"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("--logs"), "{none:?}");
}

#[test]
fn a_long_log_takes_no_more_memory() {
    let temp = tempfile::tempdir().unwrap();
    let uid = nix::unistd::getuid().as_raw();
    // As tests/usage_log.py, but with more users, names and runs at once than are kept, and with a file and a log of GPUs for each node.
    let create = |name: String| std::io::BufWriter::new(fs::File::create(temp.path().join(name)).unwrap());
    let mut files: Vec<_> = (0..64).map(|node| [create(format!("{node}")), create(format!("{node}.gpus"))]).collect();
    // The longest line of others, which would take a hundred times its length if it were understood.
    let foreign = format!("[{}]\n", "[0],".repeat((1 << 18) - 9));
    files[0][0].write_all(foreign.as_bytes()).unwrap();
    files[0][1].write_all(foreign.replacen("[0],[0],[0],[0],[0],", "\"jobfence-gpus-1\",", 1).as_bytes()).unwrap();
    for job in 0..100_000_u64 {
        let (user, name) = (format!("user{job}"), format!("name{job}"));
        let more = json!({"step": "0", "user": user, "job_name": name, "uid": uid, "gpus_granted": 2});
        let [usage, gpus] = &mut files[job as usize % 64];
        usage.write_all(line(&format!("node{}", job % 5000), job, &more).as_bytes()).unwrap();
        gpus.write_all(of_gpus(job, uid.into()).as_bytes()).unwrap();
        if job % 2 == 0 {
            // Its run is nowhere.
            let nobodys = of_gpus(job, uid.into()).replacen("\"job\":\"", "\"job\":\"x", 1);
            gpus.write_all(nobodys.as_bytes()).unwrap();
        }
    }
    files.into_iter().flatten().for_each(|file| drop(file.into_inner().unwrap()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    command.args(["report", "--by", "user", "--json", "--logs"]).arg(temp.path());
    // SAFETY: setrlimit may follow fork.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: MOST, rlim_max: MOST };
            match libc::setrlimit(libc::RLIMIT_DATA, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&all["total"]["jobs"], &all["files"]), (&100_000.into(), &128.into()));
    // Of the jobs that were forgotten nothing is said.
    let measured = all["total"]["gpu_hours_measured"].as_f64().unwrap();
    assert!(measured > 1000.0 && measured <= 200_000.0, "{measured}");
}

#[test]
fn bytes_of_all_files_are_summed_up_where_they_are_known() {
    let temp = tempfile::tempdir().unwrap();
    let known = |job: u64, user: &str, gib: u64| {
        let bytes = json!({"user": user, "rchar_bytes": gib << 30, "wchar_bytes": 1_u64 << 30});
        // Those of the extern step and of Grid Engine's shepherd are never known, and their processes only wait.
        let of_step = |step| line("n1", job, &json!({"user": user, "step": step, "rchar_bytes": null}));
        line("n1", job, &bytes) + &of_step("extern") + &of_step("shepherd")
    };
    let unknown = line("n1", 3, &json!({"user": "bob"}));
    fs::write(temp.path().join("usage.jsonl"), known(1, "alice", 5) + &known(2, "alice", 2) + &unknown).unwrap();
    let all = object(temp.path(), &["--by", "user", "--json"]);
    let of =
        |sums: &Value| [&sums["rchar_bytes"], &sums["wchar_bytes"], &sums["jobs_rchar_unknown"]].map(Value::as_u64);
    assert_eq!(of(&all["total"]), [Some(7 << 30), Some(2 << 30), Some(1)], "{all}");
    let group = |name: &str| of(all["groups"].as_array().unwrap().iter().find(|group| group["name"] == name).unwrap());
    assert_eq!([group("alice"), group("bob")], [[Some(7 << 30), Some(2 << 30), Some(0)], [None, None, Some(1)]]);
    let text = out(temp.path(), &["--by", "user"]);
    assert!(text.contains("\n  all files read 7.0 GiB, written 2.0 GiB: disks, network, cache, pipes\n"), "{text}");
    let page = out(temp.path(), &["--by", "user", "--html", "-"]);
    assert!(page.contains("data-label=\"GiB of all files\"><span class=\"\">9.0</span>"), "{page}");
    // Where nothing is known of it, nothing stands of it.
    fs::write(temp.path().join("usage.jsonl"), &unknown).unwrap();
    assert!(!out(temp.path(), &["--by", "user"]).contains("all files"));
    assert!(!out(temp.path(), &["--by", "user", "--html", "-"]).contains("all files"));
}

/// The line of a job's two GPUs on a node, as `jobfence hold` writes it beside the usage log: busy for half of the time, and for none.
fn of_gpus(job: u64, uid: u64) -> String {
    let moment = |after: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_780_000_000 + job * 10 + after);
        jobfence::report::account::utc(time)
    };
    let gpu = |number: u64, busy: f64| {
        json!({
            "gpu": number, "device": format!("/dev/nvidia{number}"), "is_shared": false, "observed_seconds": 3600.0,
            "busy_seconds": busy, "utilization_source": "samples",
        })
    };
    let line = json!({
        "schema": "jobfence-gpus-1", "job": job.to_string(), "uid": uid, "node": null, "started": moment(0), "looked": moment(3600),
        "granted": 2, "gpus": [gpu(0, 1800.0), gpu(1, 0.0)],
    });
    format!("{line}\n")
}

#[test]
fn gpu_hours_are_used_as_the_log_beside_the_usage_log_says() {
    let temp = tempfile::tempdir().unwrap();
    if !nix::unistd::getuid().is_root() {
        return skip::skip("no root, who sees all");
    }
    let with_gpus = json!({"gpus_granted": 2});
    let of_bob = json!({"gpus_granted": 2, "uid": 1002, "user": "bob"});
    let without = json!({"gpus_granted": 0});
    // Of job 2 there is no line: it was not measured. Job 4 had no GPU, and another user's line about it is nobody's.
    let lines = [line("n1", 1, &with_gpus), line("n1", 2, &with_gpus), line("n1", 3, &of_bob), line("n1", 4, &without)];
    let node = temp.path().join("n1");
    fs::create_dir(&node).unwrap();
    fs::write(node.join("usage.jsonl"), lines.concat()).unwrap();
    fs::write(node.join("usage.jsonl.gpus"), [of_gpus(1, 1001), of_gpus(3, 1002), of_gpus(4, 1002)].concat()).unwrap();
    let args = ["--by", "user", "--price-cpu-hour", "1", "--price-gpu-hour", "10"];
    let done = report(temp.path(), &[&args[..], &["--json"]].concat());
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let of = |sums: &Value| {
        ["reserved", "measured", "used", "wasted"].map(|what| sums[format!("gpu_hours_{what}")].as_f64())
    };
    assert_eq!(of(&all["total"]), [Some(6.0), Some(4.0), Some(1.0), Some(3.0)], "{all}");
    let total = &all["total"];
    assert_eq!((&total["gpu_efficiency_percent"], &total["jobs_gpu_use_unknown"]), (&25.0.into(), &1.into()));
    // 4 of 8 CPU-hours, and 3 GPU-hours.
    assert_eq!(
        (&total["cost"], &total["cost_wasted"], &total["gpu_cost_wasted"]),
        (&68.0.into(), &4.0.into(), &30.0.into())
    );
    let bob = all["groups"].as_array().unwrap().iter().find(|group| group["name"] == "bob").unwrap();
    assert_eq!(of(bob), [Some(2.0), Some(2.0), Some(0.5), Some(1.5)], "{bob}");
    let text = out(temp.path(), &args);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let text = text.replace("\n            ", " ");
    let held = "\n  GPUs      held for 6.0 GPU-hours; used 1.0 of the 4.0 that were measured (25.0 %)\n";
    assert!(text.contains(held) && text.contains("What GPUs did in 2.0 GPU-hours: only how long"), "{text}");
    let cost = "\n  cost      68.00, of that 4.00 for wasted CPU-hours and 30.00 for wasted GPU-hours\n";
    assert!(text.contains(cost), "{text}");
    let page = out(temp.path(), &["--by", "user", "--html", "-"]);
    assert!(page.contains("of 4.0 GPU-hours measured; 6.0 were held") && page.contains("Used GPU-hours"), "{page}");
    // Nothing is said where nothing was measured.
    fs::remove_file(node.join("usage.jsonl.gpus")).unwrap();
    let all = object(temp.path(), &["--by", "user", "--json"]);
    assert_eq!(of(&all["total"]), [Some(6.0), None, None, None]);
    assert!(!out(temp.path(), &["--by", "user", "--html", "-"]).contains("Used GPU-hours"));
}
