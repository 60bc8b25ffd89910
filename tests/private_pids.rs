// SPDX-License-Identifier: GPL-2.0-or-later
//! `PrivatePIDs`: what two commands of one account can do to each other, how a command in a PID namespace of its own ends, stops and is
//! signalled, and that it does not run where it would be without.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

use common::until;

struct Site {
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("pids", test)?;
        let has_namespaces = Command::new("unshare").args(["--pid", "--mount", "--fork", "true"]).status();
        if !has_namespaces.is_ok_and(|status| status.success()) {
            common::skip("no PID namespace");
            return None;
        }
        Some(Self { base, run: tempfile::tempdir().unwrap() })
    }

    fn command(&self, subcommand: &str, keys: &str) -> Command {
        let mut command = common::command(subcommand, &self.base, self.run.path());
        command.args(keys.split_whitespace().flat_map(|key| ["-o", key]));
        command
    }

    fn run(&self, keys: &str, args: &[&str]) -> Output {
        self.command("run", keys).args(args).output().unwrap()
    }

    fn start(&self, keys: &str, args: &[&str]) -> Child {
        self.command("run", keys).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

const OWN: &str = "PrivatePIDs=yes";

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0u8; 1];
    let stdout = child.stdout.as_mut().unwrap();
    while stdout.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// The pids on the host of what has this word in its arguments, or this name. A zombie has neither.
fn hosts_pids(word: &str) -> Vec<i32> {
    let is_it = |pid: i32| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split('\0').any(|one| one == word)
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_it(*pid)).collect()
}

fn children(parent: u32) -> Vec<i32> {
    let is_its = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()) == Some(parent)
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(is_its).collect()
}

fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The init process of the namespace that this command has made.
fn init_of(command: &Child) -> i32 {
    let mut found = None;
    until("the init process", || {
        found = children(command.id()).into_iter().find(|pid| name(*pid) == "jobfence-init");
        found.is_some()
    });
    found.unwrap()
}

/// What a process can do to another one of its user, whose pid is named.
const NEIGHBOUR: &str = r#"
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
def can(does):
    try:
        return does() is not False
    except OSError:
        return False
def reads_memory():
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    own, at = ctypes.create_string_buffer(4), int(sys.argv[2], 16)
    here, there = Part(ctypes.addressof(own), 4), Part(at, 4)
    return libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 4
def traces():
    if libc.ptrace(16, pid, None, None) != 0:
        return False
    os.waitpid(pid, 0x40000000)
    return libc.ptrace(17, pid, None, None) == 0
tries = dict(
    signal=lambda: os.kill(pid, 0), handle=lambda: libc.syscall(434, pid, 0) >= 0, trace=traces, memory=reads_memory,
    arguments=lambda: open(f"/proc/{pid}/cmdline").read(), variables=lambda: open(f"/proc/{pid}/environ").read(),
    maps=lambda: open(f"/proc/{pid}/maps").read(), root=lambda: os.stat(f"/proc/{pid}/root/"), listed=lambda: str(pid) in os.listdir("/proc"))
print(*(f"{word}={can(does)}" for word, does in tries.items()))
"#;

#[test]
fn two_commands_of_one_account_cannot_reach_each_other() {
    let Some(site) = Site::new("two") else { return };
    // Where the kernel lets nobody trace a process that is no child, the control says so.
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may_trace = matches!(scope.trim(), "" | "0");
    for (key, is_own) in [("PrivatePIDs=no", false), (OWN, true)] {
        let word = format!("neighbour-{}-{is_own}", std::process::id());
        let script = "echo ready; read x; true";
        let mut other = site
            .command("run", key)
            .args(["--user", "65534", "--", "sh", "-c", script, &word])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(read_line(&mut other), "ready");
        let found: Vec<i32> = hosts_pids(&word).into_iter().filter(|pid| name(*pid) == "sh").collect();
        let [pid] = found[..] else { panic!("{found:?}") };
        let at = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let at = at.split_once('-').unwrap().0;
        let words = ["--user", "65534", "--", "python3", "-S", "-c", NEIGHBOUR, &pid.to_string(), at];
        let tried = site.run(key, &words);
        let said = out(&tried);
        let can = |word: &str| said.split_whitespace().any(|one| one == format!("{word}=True"));
        for word in ["signal", "handle", "arguments", "listed"] {
            assert_eq!(can(word), !is_own, "{word}: {said}{}", err(&tried));
        }
        for word in ["trace", "memory", "variables", "maps", "root"] {
            assert_eq!(can(word), !is_own && may_trace || !is_own && can(word) && word != "trace", "{word}: {said}");
        }
        assert_eq!(said.matches('=').count(), 9, "{said}{}", err(&tried));
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }
}

/// Its own processes alone are in /proc, what the host has mounted there stays, and nothing leads to the host's.
#[test]
fn a_command_sees_its_own_processes_alone() {
    let Some(site) = Site::new("sees") else { return };
    let look = "ls /proc | grep -x '[0-9]*' | sort -n | tr '\\n' ' '; echo; readlink /proc/self | grep -x '[0-9]*' >/dev/null && echo $$
        pwd; cat fs/file; ls /proc/1/root/ >/dev/null 2>&1 && echo root; ls -d $0 ${0#/proc/} 2>/dev/null; echo end";
    for keys in [OWN, "PrivatePIDs=yes HideProcesses=yes PrivateTmp=/dev/shm PrivateIPC=yes"] {
        let mut unshare = Command::new("unshare");
        let script = "mount -t tmpfs none /proc/fs && echo deep >/proc/fs/file && cd /proc && \"$@\"; ls -d /proc/$PPID >/dev/null && echo host";
        unshare.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_jobfence")]);
        unshare.args(site.command("run", keys).get_args()).args(["--user", "65534", "--"]);
        let done = unshare.args(["sh", "-c", look, &format!("/proc/{}", std::process::id())]).output().unwrap();
        let said = out(&done);
        let lines: Vec<&str> = said.lines().collect();
        let [pids, rest @ ..] = &lines[..] else { panic!("{said}{}", err(&done)) };
        let pids: Vec<i32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        // The init process is root's. The others are those of the line itself.
        assert!(pids.contains(&2) && pids.iter().all(|pid| *pid < 20), "{said}");
        assert_eq!(pids.contains(&1), keys == OWN, "{said}");
        assert_eq!(rest, ["2", "/proc", "deep", "end", "host"], "{keys}: {said}{}", err(&done));
    }
}

/// A container of a user's makes namespaces of its own and mounts a proc, if the system lets users do that.
#[test]
fn a_container_in_it_works_as_without() {
    let Some(site) = Site::new("nested") else { return };
    let container = |key: &str, script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", &format!("{script}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_jobfence")]);
        unshare.args(site.command("run", key).get_args()).args(["--user", "65534", "--"]);
        out(&unshare.args(["unshare", "-Urpf", "--mount-proc", "sh", "-c", "echo $$; ls -d /proc/1"]).output().unwrap())
    };
    let covered = "mount -t tmpfs none /proc/fs";
    let bare = "awk '$5 ~ /^.proc./ { print $5 }' /proc/self/mountinfo | sort -r | while read -r point; do umount -l \"$point\"; done";
    for script in ["true", bare, covered] {
        assert_eq!(container(OWN, script), container("PrivatePIDs=no", script), "{script}");
    }
    let uncover = "unshare -Urm umount /proc 2>/dev/null && echo uncovered; unshare -Urm umount -l /proc 2>/dev/null && echo uncovered; echo end";
    assert_eq!(out(&site.run(OWN, &["--user", "65534", "--", "sh", "-c", uncover])), "end\n");
    let traced =
        site.run(OWN, &["--user", "65534", "--", "strace", "-f", "-o", "/dev/null", "sh", "-c", "echo traced; exit 3"]);
    if !err(&traced).contains("cannot run strace") {
        assert_eq!((out(&traced).as_str(), traced.status.code()), ("traced\n", Some(3)), "{}", err(&traced));
    }
}

#[test]
fn it_ends_as_the_command_ends() {
    let Some(site) = Site::new("ends") else { return };
    for user in [&["--user", "65534"][..], &[]] {
        let sh = |script: &str| site.run(OWN, &[user, &["--", "sh", "-c", script]].concat());
        for status in [0, 1, 127, 255] {
            assert_eq!(sh(&format!("exit {status}")).status.code(), Some(status));
        }
        for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGSEGV, libc::SIGRTMIN() + 3] {
            assert_eq!(sh(&format!("kill -{signal} $$")).status.signal(), Some(signal));
        }
        // None of root's programs in it reaches its init process by a signal.
        let done = sh("kill -9 1; kill -TERM 1; sleep 0.1; echo lives");
        assert_eq!((out(&done).as_str(), done.status.code()), ("lives\n", Some(0)), "{}", err(&done));
    }
    let missing = site.run(OWN, &["--", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("cannot run /nonexistent: No such file or directory"), "{}", err(&missing));
}

#[test]
fn signals_and_stops_are_passed_on() {
    let Some(site) = Site::new("signals") else { return };
    for user in [&["--user", "65534"][..], &[]] {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGHUP] {
            // It ends by itself, too, if nobody passes the signal on.
            let script = format!(
                "trap 'echo told; exit 5' {}; echo ready; for try in $(seq 6000); do sleep 0.05; done",
                &signal.as_str()[3..]
            );
            let mut child = site.start(OWN, &[user, &["--", "sh", "-c", &script]].concat());
            assert_eq!(read_line(&mut child), "ready");
            kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
            let done = child.wait_with_output().unwrap();
            assert_eq!((out(&done).as_str(), done.status.code()), ("told\n", Some(5)), "{signal}: {}", err(&done));
        }
        let mut child = site.start(OWN, &[user, &["--", "sh", "-c", "echo ready; kill -STOP $$; echo on"]].concat());
        assert_eq!(read_line(&mut child), "ready");
        let pid = Pid::from_raw(child.id().cast_signed());
        until("both stop", || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T "));
        kill(pid, Signal::SIGCONT).unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!((out(&done).as_str(), done.status.code()), ("on\n", Some(0)), "{}", err(&done));
    }
}

/// The terminal is where it was, though a shell in it has given it to a group that is no more, and cannot give it back.
#[test]
fn a_shell_in_it_has_job_control_and_leaves_the_terminal() {
    let Some(site) = Site::new("terminal") else { return };
    let command = site.command("run", OWN);
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let inner = format!("{} {} --quiet -- bash --norc --noprofile -i", env!("CARGO_BIN_EXE_jobfence"), words.join(" "));
    // bash takes the terminal when it begins, and starts each command in a group of its own.
    let script = format!("PS1= {inner}; read -r line; echo \"read $line\"");
    let program = r#"
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
said, end = b"", time.time() + 300
def until(word):
    global said
    while word not in said and time.time() < end:
        if select.select([fd], [], [], 1)[0]:
            try:
                said += os.read(fd, 4096)
            except OSError:
                return
os.write(fd, b"sleep 1000 & kill %1; wait; echo has $((20 + 1)) control; sh -c 'kill -STOP $$'; fg; echo then $((30 + 1))\n")
until(b"then 31")
os.write(fd, b"exit\n")
until(b"exit\r\n")
os.write(fd, b"a line\n")
until(b"read a line")
os.kill(pid, 9)
sys.stdout.buffer.write(said)
"#;
    let done = Command::new("python3").args(["-S", "-c", program, &script]).output().unwrap();
    let said = out(&done);
    for word in ["has 21 control", "Stopped", "then 31", "read a line"] {
        assert!(said.contains(word), "{word}: {said}{}", err(&done));
    }
    assert!(!said.contains("no job control"), "{said}");
}

#[test]
fn orphans_are_reaped_and_nothing_is_left() {
    let Some(site) = Site::new("left") else { return };
    let word = format!("left-{}", std::process::id());
    // Each of them is an orphan's orphan. No number is left for a zombie.
    let script = "for i in 1 2 3 4 5; do (true & sh -c 'true & true' &) ; done
        for try in $(seq 6000); do z=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); [ $z = 0 ] && break; sleep 0.05; done; echo zombies $z
        setsid sh -c 'echo daemon; read x; sleep 1000' \"$0\" >&2 </dev/tty 2>/dev/null & setsid sh -c 'while :; do sleep 1; done' \"$0\" >/dev/null 2>&1 &
        sleep 0.1";
    let mut child = site.start(OWN, &["--user", "65534", "--", "sh", "-c", script, &word]);
    let init = init_of(&child);
    assert_eq!(read_line(&mut child), "zombies 0");
    assert!(child.wait().unwrap().success());
    until("the end of all that was in it", || hosts_pids(&word).is_empty());
    assert!(name(init) != "jobfence-init", "its init process lives");
}

/// `kill -9` of the init process, or of the process that has started the command, ends all of it.
#[test]
fn nothing_outlives_the_init_process_or_the_starter() {
    let Some(site) = Site::new("killed") else { return };
    let script =
        "setsid sh -c 'while :; do sleep 1; done' \"$0\" >/dev/null 2>&1 & echo ready; while :; do sleep 1; done";
    for is_init in [true, false] {
        let word = format!("killed-{}-{is_init}", std::process::id());
        let mut child = site.start(OWN, &["--user", "65534", "--", "sh", "-c", script, &word]);
        assert_eq!(read_line(&mut child), "ready");
        let init = init_of(&child);
        let victim = if is_init { init } else { child.id().cast_signed() };
        kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        until("the end of all that was in it", || hosts_pids(&word).is_empty() && name(init) != "jobfence-init");
        let done = child.wait_with_output().unwrap();
        assert_eq!(
            err(&done).contains("the init process of its PID namespace (PrivatePIDs) was killed"),
            is_init,
            "{}",
            err(&done)
        );
    }
    // What the killed starter has left is found as ever.
    let records = || {
        let names = fs::read_dir(site.run.path().join("run")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("job_run-")).count()
    };
    assert_eq!(records(), 1);
    let reaped = site.command("reap", "").output().unwrap();
    assert_eq!((records(), reaped.status.code()), (0, Some(0)), "{}", err(&reaped));
}

/// A limit of processes does not count the init process, and the job's figures are right.
#[test]
fn the_init_process_is_in_no_fence() {
    let Some(site) = Site::new("counted") else { return };
    let done = site.run(OWN, &["--processes", "2", "--user", "65534", "--", "sh", "-c", "sleep 0 & wait $!; echo $?"]);
    assert_eq!(out(&done), "0\n", "{}", err(&done));
    let mut child = site.start(OWN, &["--user", "65534", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(read_line(&mut child), "ready");
    let groups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let init = init_of(&child);
    assert_eq!(groups(init), groups(child.id().cast_signed()));
    // It may be about to close the last one.
    assert!(fs::read_dir(format!("/proc/{init}/fd")).unwrap().count() <= 1);
    let command = children(child.id()).into_iter().find(|pid| *pid != init).unwrap();
    assert!(groups(command).contains(&format!("job_run-{}", child.id())), "{}", groups(command));
    let shown = site.command("show", "").arg(format!("run-{}", child.id())).output().unwrap();
    assert!(out(&shown).contains(&format!("run-{}", child.id())), "{}{}", out(&shown), err(&shown));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

/// At each call by which the namespace is made and entered, which strace answers.
#[test]
fn a_command_that_would_see_others_does_not_run() {
    let Some(site) = Site::new("faults") else { return };
    let run = |faults: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", "mount -t tmpfs none /proc/fs; exec \"$@\"", "sh"]);
        unshare.args(["strace", "-f", "-qq", "-o", "/dev/null"]);
        unshare.args(faults.iter().map(|one| format!("-einject={one}")));
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command("run", OWN).get_args());
        unshare.args(["--", "echo", "it ran"]).output().unwrap()
    };
    let control = run(&[]);
    if err(&control).contains("unshare failed") || err(&control).contains("strace: ") {
        return common::skip("no mount namespace, or no strace");
    }
    assert_eq!(out(&control), "it ran\n", "{}", err(&control));
    for (fault, why) in [
        ("unshare:error=ENOSPC:when=1", "max_pid_namespaces"),
        ("unshare:error=EINVAL:when=1", "this kernel may have no PID namespaces"),
        ("unshare:error=EPERM:when=1", "EPERM"),
        ("setns:error=EPERM", "own PID namespace again (PrivatePIDs)"),
        ("prctl:error=EINVAL:when=1", "init process of a PID namespace did not begin (PrivatePIDs)"),
        ("setsid:error=EPERM", "init process of a PID namespace did not begin (PrivatePIDs)"),
        ("chdir:error=EACCES:when=1", "init process of a PID namespace did not begin (PrivatePIDs)"),
        ("fork,clone,clone3:error=EAGAIN:when=1", "start the init process"),
        ("fork,clone,clone3:error=EAGAIN:when=2", "fork"),
        ("mount:error=EPERM", "keep mounts from the host"),
        ("fsopen:error=ENOSYS", "Linux 5.2"),
        ("fsopen:error=EPERM", "(PrivatePIDs) on /proc"),
        ("fsconfig:error=ENOMEM:when=1", "(PrivatePIDs) on /proc"),
        ("fsconfig:error=ENOMEM:when=2", "(PrivatePIDs) on /proc"),
        ("fsmount:error=EPERM", "(PrivatePIDs) on /proc"),
        ("move_mount:error=EPERM:when=1", "(PrivatePIDs) on /proc"),
        ("open_tree:error=EMFILE", "show (PrivatePIDs)"),
        ("move_mount:error=ENOMEM:when=2", "show (PrivatePIDs)"),
    ] {
        let done = run(&[fault]);
        assert_eq!((out(&done).as_str(), done.status.success()), ("", false), "{fault}: {}", err(&done));
        assert!(err(&done).contains(why), "{fault}: {}", err(&done));
        let init = |pid: &i32| {
            name(*pid) == "jobfence-init"
                && fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(&site.base.name)
        };
        let pids =
            || fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        until("the end of the init process", || !pids().any(|pid| init(&pid)));
    }
    // It is said before.
    let check = |faults: &[&str]| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null"]).args(faults.iter().map(|one| format!("-einject={one}")));
        out(&strace.args([env!("CARGO_BIN_EXE_jobfence"), "check", "-o", OWN]).output().unwrap())
    };
    for (fault, why) in
        [("unshare:error=ENOSPC", "max_pid_namespaces"), ("fsmount:error=ENOMEM", "(PrivatePIDs) on /proc")]
    {
        let said = check(&[fault]);
        assert!(said.contains("would be REFUSED") && said.contains(why), "{fault}: {said}");
    }
    let said = check(&[]);
    assert!(
        said.contains("PID namespace of its own (PrivatePIDs)") && !said.contains("PID namespace (PrivatePIDs)"),
        "{said}"
    );
}

/// `jobfence check` for the schedulers whose daemons look so.
#[test]
fn check_says_where_jobs_are_refused() {
    let Some(site) = Site::new("check") else { return };
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    for daemon in ["pbs_mom", "sge_execd"] {
        fs::copy("/bin/sleep", path(daemon)).unwrap();
    }
    fs::create_dir(path("mom_priv")).unwrap();
    fs::write(path("slurm.conf"), "ClusterName=x\n").unwrap();
    let beside = |daemon: &str, keys: &str| {
        let script = format!(
            "cd \"$1/mom_priv\"; ../{daemon} 1000 & until [ \"$(cat /proc/$!/comm)\" = {daemon} ]; do kill -0 $! || exit; sleep 0.01; done; shift; \"$@\""
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &script, "sh"]).arg(temp.path());
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command("check", keys).get_args());
        out(&unshare.env_remove("SLURM_CONF").output().unwrap())
    };
    for (daemon, scheduler) in [("pbs_mom", "OpenPBS"), ("sge_execd", "Grid Engine")] {
        let refused = format!("PrivatePIDs does not work under {scheduler}: ");
        let is_said = |keys: &str| beside(daemon, keys).contains(&refused);
        assert_eq!([is_said(OWN), is_said("PrivatePIDs=no")], [true, false], "{daemon}");
    }
    let slurm = |keys: &str| {
        fs::write(path("jobfence.conf"), format!("{keys}\n")).unwrap();
        let mut check = site.command("check", "");
        check.arg("--config").arg(path("jobfence.conf")).env_remove("SLURM_CONF");
        out(&check.output().unwrap()).contains("PrivatePIDs does not work under Slurm: ")
    };
    assert_eq!([slurm(OWN), slurm("PrivatePIDs=no")], [true, false]);
}
