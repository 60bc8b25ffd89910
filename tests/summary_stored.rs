// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence report --by ... --stored`, with a stand-in for sacct that answers as the real one does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Answers about the first piece with two jobs that ended in it, as sacct 22.05 writes them, and notes down how it was called. From the
/// `$FAILS`th call on it fails as sacct does where slurmdbd does not answer.
const SACCT: &str = r#"#!/bin/sh
here=${0%/*}
echo "$@" >>"$here/calls"
calls=$(wc -l <"$here/calls")
if [ "$calls" -ge "$(cat "$here/fails")" ]; then
    echo "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: Connection refused" >&2
    echo "sacct: error: Problem talking to the database: Connection refused" >&2
    exit 1
fi
if [ -e "$here/loses" ]; then
    echo "sacct: error: slurmdbd: Getting response to message type: DBD_GET_JOBS_COND" >&2
    exit 0
fi
for word; do
    case $word in
        --delimiter=*) m=${word#*=} ;;
        --state=*) states=${word#*=} ;;
        --starttime=uts*) from=${word#*=uts} ;;
    esac
done
case ,$states, in *,RUNNING,* | *,PENDING,* | ,,) exit 1 ;; esac
[ "$calls" = 1 ] || exit 0
end=$((from + 3600))
row() { for field; do printf '%s%s' "$field" "$m"; done; echo; }
row 7 "$from" "$from" "$end" 3600 COMPLETED 1 n1 billing=2,cpu=2,mem=4G,node=1 1001 alice physics short normal "$(cat "$here/comment")" solve
row 8 "$from" "$from" "$end" 3600 "CANCELLED by 0" 1 n1 billing=4,cpu=4,mem=4G,node=1 1002 bob biology short normal "" "$(printf 'a\n9|b')"
[ ! -e "$here/marked" ] || row 9 "$from" "$from" "$end" 60 COMPLETED 1 n1 billing=1,cpu=1,mem=4G,node=1 1002 bob biology short normal "" "a${m}b"
"#;

fn site(fails_from: u32) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
    write("sacct", SACCT);
    write("fails", &fails_from.to_string());
    // What a node has stored of two CPUs for an hour: an hour of CPU time, 1 GiB of 4.
    write("comment", &comment());
    fs::set_permissions(temp.path().join("sacct"), fs::Permissions::from_mode(0o755)).unwrap();
    temp
}

/// In the format of jobstats.
fn comment() -> String {
    use base64::Engine;
    use std::io::Write;
    let text = r#"{"gpus":0,"jobfence":{"submitted":0},"nodes":{"n1":{"cpus":2,"total_memory":4294967296,"total_time":3600.0,"used_memory":1073741824}},"total_time":3600}"#;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).unwrap();
    format!("JS1:{}", base64::engine::general_purpose::STANDARD.encode(packer.finish().unwrap()))
}

fn report(site: &Path, args: &[&str]) -> Output {
    let path = format!("{}:{}", site.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    command.args(["report", "--stored"]).args(args).env("PATH", path).stdin(Stdio::null()).output().unwrap()
}

fn calls(site: &Path) -> Vec<String> {
    fs::read_to_string(site.join("calls")).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn all_jobs_are_summed_up_and_a_day_is_one_call() {
    let temp = site(1000);
    let done = report(temp.path(), &["--by", "account", "--since", "3days", "--json"]);
    assert!(done.status.success(), "{done:?}");
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let total = &all["total"];
    assert_eq!((&all["stored"], &all["files"], &total["jobs"]), (&true.into(), &0.into(), &2.into()));
    // bob's job has no figures: what it reserved is in no sum.
    for (member, value) in [
        ("cpu_hours_reserved", 2.0),
        ("cpu_hours_used", 1.0),
        ("cpu_hours_unmeasured", 4.0),
        ("memory_gib_hours_used", 1.0),
        ("jobs_cpu_unknown", 1.0),
        ("jobs_failed", 1.0),
    ] {
        assert_eq!(total[member].as_f64(), Some(value), "{member}: {total}");
    }
    let names: Vec<_> = all["groups"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["physics", "biology"]);
    // Three days, and the second in which it was asked.
    let calls = calls(temp.path());
    assert_eq!(calls.len(), 4, "{calls:#?}");
    let parts =
        ["--noheader", "--parsable", "--allocations", "--duplicates", "--local", "--starttime=uts", "--endtime=uts"];
    let states = "--state=COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,OUT_OF_MEMORY,REQUEUED,RESIZING,REVOKED";
    assert!(calls.iter().all(|call| call.contains(states)), "{calls:#?}");
    let marks: std::collections::BTreeSet<&str> =
        calls.iter().filter_map(|call| call.split(' ').find(|word| word.starts_with("--delimiter="))).collect();
    assert_eq!(marks.len(), calls.len(), "users can read the mark of a call that runs");
    assert!(calls.iter().all(|call| parts.iter().all(|part| call.contains(part))), "{calls:#?}");
    assert_eq!(calls[0].contains("--allusers"), nix::unistd::getuid().is_root());
}

#[test]
fn each_form_says_what_is_not_known() {
    for (form, words) in [
        (&[][..], "CPU-hours: unknown of 1 of 2 jobs."),
        (&["--html", "-"][..], "2 jobs from Slurm's accounting."),
        (&["--csv"][..], "physics,1,2.0,1.0,1.0,50.0,0,"),
    ] {
        let temp = site(1000);
        let done = report(temp.path(), &[&["--by", "account", "--since", "1day"], form].concat());
        assert!(done.status.success(), "{done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(text.replace("\n    ", " ").contains(words), "{form:?}: {text}");
        assert!(form.first() != Some(&"--html") || text.contains("state in Slurm is OUT_OF_MEMORY"), "{text}");
    }
}

#[test]
fn what_fails_is_named_and_is_a_failure() {
    // The second day fails, and all after it.
    let temp = site(2);
    let done = report(temp.path(), &["--by", "user", "--since", "30days", "--json"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert!(err.contains("are missing: sacct: ") && err.contains("Connection refused"), "{err}");
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(all["total"]["jobs"], 2, "what is known is there");
    assert!(all["passed_over"].as_str().unwrap().contains("jobs that ended from "), "{all}");
    assert_eq!(calls(temp.path()).len(), 4, "a database that is away is not asked on and on");
    // Nothing is known.
    let temp = site(1);
    let done = report(temp.path(), &["--by", "user", "--since", "30days"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0), "{err}");
    assert!(err.contains("cannot ask Slurm's accounting") && err.contains("slurmdbd runs"), "{err}");
    // slurmdbd's answer is lost, and sacct ends as if there were no jobs.
    let temp = site(1000);
    fs::write(temp.path().join("loses"), "").unwrap();
    let done = report(temp.path(), &["--by", "user", "--since", "1day"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && err.contains("Getting response"), "{err}");
    // A name shifts the records of the first day; of the others it is known that nothing ended.
    let temp = site(1000);
    fs::write(temp.path().join("marked"), "").unwrap();
    let done = report(temp.path(), &["--by", "user", "--since", "3days"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && err.contains("whole records"), "{err}");
    assert!(err.contains("a part of this time") && !err.contains("slurmdbd runs"), "{err}");
    // There is no sacct.
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    let done = command
        .args(["report", "--stored", "--by", "user", "--since", "1day"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && err.contains("sacct is in the PATH"), "{err}");
    // All years are not asked for by mistake.
    let done = report(temp.path(), &["--by", "user"]);
    assert!(
        done.status.code() == Some(1) && String::from_utf8_lossy(&done.stderr).contains("--since 30days"),
        "{done:?}"
    );
}
