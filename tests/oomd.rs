// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes that systemd-oomd has killed: their user reads by which program they died. A stand-in does to a real directory of cgroup v2
//! what `oomd_cgroup_kill` does (src/oom/oomd-util.c): it notes, kills, and notes how many it has killed. A case in a guest has the real
//! one.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

/// How its sentence names it.
const SAID: &str = "systemd-oomd (or oomd) killed processes of it";

/// The directory of a process on cgroup v2.
fn directory_of(pid: i32) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(path))
}

fn note(dir: &Path, name: &str, number: usize) {
    let (path, name) = (CString::new(dir.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let value = number.to_string();
    // SAFETY: NUL-terminated texts, and a value with its length.
    let done = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(done, 0, "{}: {}", dir.display(), std::io::Error::last_os_error());
}

/// The processes in a directory and in those directly below it.
fn members(dir: &Path) -> Vec<i32> {
    let below = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let all = below.chain([dir.to_owned()]).map(|dir| fs::read_to_string(dir.join("cgroup.procs")).unwrap());
    all.flat_map(|text| text.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// What systemd-oomd does, before release 251 without the first note.
fn act(dir: &Path, is_old: bool) {
    if !is_old {
        note(dir, "user.oomd_ooms", 1);
    }
    let killed = members(dir);
    killed.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap());
    note(dir, "user.oomd_kill", killed.len());
}

/// Where it acts, seen from the step's directory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    Step,
    Below,
    Job,
    Nowhere,
}

/// Runs a command that is killed, and that may itself say how it ends. Returns what the user reads, and the usage log.
fn killed(base: &common::Base, act_at: Where, is_old: bool, script: &str) -> (String, String) {
    let run = tempfile::tempdir().unwrap();
    let log = run.path().join("usage.json");
    let mut command = common::command("run", base, run.path());
    command.arg("-o").arg(format!("UsageLog={}", log.display())).args(["--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let pid: i32 = line.trim().parse().unwrap();
    let step = directory_of(pid).unwrap();
    let below = step.join("below");
    match act_at {
        Where::Step => act(&step, is_old),
        Where::Job => act(step.parent().unwrap(), is_old),
        Where::Below => {
            fs::create_dir(&below).unwrap();
            fs::write(below.join("cgroup.procs"), pid.to_string()).unwrap();
            act(&below, is_old);
        }
        Where::Nowhere => kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap(),
    }
    let mut said = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    (said, fs::read_to_string(log).unwrap())
}

#[test]
fn who_was_killed_by_it_is_told_so_and_nobody_else() {
    let Some(base) = common::Base::if_root("oomd", "killed") else { return };
    if !common::has_cgroup2() {
        return common::skip("needs cgroup v2");
    }
    for (act_at, is_old) in
        [(Where::Step, false), (Where::Below, false), (Where::Job, false), (Where::Step, true), (Where::Nowhere, false)]
    {
        let (said, log) = killed(&base, act_at, is_old, "echo $$; exec sleep 1000");
        let is_named = act_at != Where::Nowhere;
        assert_eq!(said.matches(SAID).count(), usize::from(is_named), "{act_at:?} {is_old}: {said}");
        assert_eq!(log.matches(SAID).count(), usize::from(is_named), "{act_at:?} {is_old}: {log}");
    }
    // A part of the step alone, and a shell that waits for it and ends by that.
    let script = "sleep 1000 & echo $!; wait $!; exit $?";
    let (said, _) = killed(&base, Where::Below, false, script);
    assert!(said.contains(SAID), "{said}");
}

/// A fence that another process closes: nothing says how its processes ended.
#[test]
fn a_closed_fence_says_it_too() {
    let Some(base) = common::Base::if_root("oomd", "closed") else { return };
    if !common::has_cgroup2() {
        return common::skip("needs cgroup v2");
    }
    let run = tempfile::tempdir().unwrap();
    let jobfence = |words: &[&str]| common::command(words[0], &base, run.path()).args(&words[1..]).output().unwrap();
    let opened = jobfence(&["open", "--job", "7", "--user", "65534"]);
    assert!(opened.status.success(), "{opened:?}");
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id().to_string();
    let attached = jobfence(&["attach", "--job", "7", "--any-user", &pid]);
    assert!(attached.status.success(), "{attached:?}");
    act(&directory_of(child.id().try_into().unwrap()).unwrap(), false);
    child.wait().unwrap();
    let closed = jobfence(&["close", "--job", "7"]);
    let said = String::from_utf8_lossy(&closed.stdout).into_owned() + &String::from_utf8_lossy(&closed.stderr);
    assert!(said.contains(SAID), "{said}");
}

#[test]
fn a_job_that_ends_well_pays_no_call_for_it() {
    let Some(base) = common::Base::if_root("oomd", "calls") else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return common::skip("needs strace");
    }
    let looks = |script: &str| {
        let run = tempfile::tempdir().unwrap();
        let trace = run.path().join("trace");
        let jobfence = common::command("run", &base, run.path());
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=getxattr,fgetxattr,lgetxattr,listxattr,flistxattr", "-o"]).arg(&trace);
        strace.arg(jobfence.get_program()).args(jobfence.get_args()).args(["--", "sh", "-c", script]).output().unwrap();
        fs::read_to_string(&trace).unwrap().matches("oomd").count()
    };
    assert_eq!([looks("exit 0"), looks("exit 1"), looks("kill -TERM $$")], [0; 3]);
    // A kernel without cgroup v2 has no place to look at.
    assert_eq!(looks("kill -KILL $$") > 0, common::has_cgroup2());
}
