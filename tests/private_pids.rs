// SPDX-License-Identifier: GPL-2.0-or-later
//! `PrivatePIDs`: what two commands of one account can do to each other, how a command in a PID namespace of its own ends, stops and is
//! signalled, and that it does not run where it would be without.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
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

/// The caller has opened it on the host, and a directory leads to all that is there.
#[test]
fn no_standard_file_leads_to_the_host() {
    let Some(site) = Site::new("files") else { return };
    let host = std::process::id();
    let script = "cat /dev/fd/0$0/comm; echo ran";
    for (file, below) in [
        ("/", format!("/proc/{host}")),
        ("/proc", format!("/{host}")),
        (&format!("/proc/{host}/environ"), String::new()),
    ] {
        let with = |keys: &str| {
            let mut run = site.command("run", keys);
            run.args(["--user", "65534", "--", "sh", "-c", script, &below]);
            run.stdin(File::open(file).unwrap()).output().unwrap()
        };
        assert!(out(&with("PrivatePIDs=no")).ends_with("ran\n"));
        // A file of /proc leads out where the command has another /proc.
        let (of_files, of_directories) = (
            [OWN, "PrivatePIDs=yes HideProcesses=yes", "HideProcesses=yes"],
            ["PrivateTmp=/dev/shm", "PrivateIPC=yes"],
        );
        let more = &of_directories[..if below.is_empty() { 0 } else { 2 }];
        for keys in of_files.iter().chain(more) {
            let done = with(keys);
            assert_eq!((out(&done).as_str(), done.status.code()), ("", Some(1)), "{file}: {}", err(&done));
            assert!(
                err(&done).contains("descriptor (value \"0\")") && !err(&done).contains("--input"),
                "{}",
                err(&done)
            );
        }
    }
    let mut run = site.command("run", OWN);
    let done = run.args(["--", "sh", "-c", "head -n 1"]).stdin(File::open("/etc/passwd").unwrap()).output().unwrap();
    assert!(out(&done).starts_with("root:"), "{}", err(&done));
}

/// Another mount of proc has the host's numbers.
#[test]
fn no_other_mount_of_proc_is_in_sight() {
    let Some(site) = Site::new("mounts") else { return };
    let temp = tempfile::tempdir().unwrap();
    let place = temp.path().to_str().unwrap();
    let after = |mounts: &str, subcommand: &str, command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", &format!("{mounts}; shift; exec \"$@\""), "sh", place]);
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command(subcommand, OWN).get_args());
        unshare.args(command).output().unwrap()
    };
    for (mounts, is_refused) in [
        ("mount -t proc none $1", true),
        ("mount --rbind /proc $1", true),
        ("mount --bind /proc/$$ $1", true),
        ("mount --bind /proc/sys $1", false),
        ("mount -t proc none $1; mount -t tmpfs none $1", false),
    ] {
        let done = after(mounts, "run", &["--", "echo", "ran"]);
        assert_eq!(out(&done).is_empty(), is_refused, "{mounts}: {}", err(&done));
        assert_eq!(err(&done).contains(place), is_refused, "{mounts}: {}", err(&done));
        let said = out(&after(mounts, "check", &[]));
        assert_eq!(said.contains("would be REFUSED here: another mount of proc"), is_refused, "{mounts}: {said}");
    }
}

#[test]
fn a_directory_that_is_no_more_is_left() {
    let Some(site) = Site::new("gone") else { return };
    let temp = tempfile::tempdir().unwrap();
    let script = "cd \"$0\"; mkdir gone; cd gone; rmdir ../gone; exec \"$@\"";
    let mut sh = Command::new("sh");
    sh.args(["-ec", script])
        .arg(temp.path())
        .arg(env!("CARGO_BIN_EXE_jobfence"))
        .args(site.command("run", OWN).get_args());
    let done = sh.args(["--", "pwd"]).output().unwrap();
    assert_eq!(out(&done), "/\n", "{}", err(&done));
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

/// The command's signal to its process group reaches the starter, too, and only once the command.
#[test]
fn a_signal_to_its_group_comes_once() {
    let Some(site) = Site::new("once") else { return };
    for key in ["PrivatePIDs=no", OWN] {
        let script = "import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True))
os.kill(0, signal.SIGUSR1)
time.sleep(1)";
        let mut run = site.command("run", key);
        let done = run.args(["--", "python3", "-S", "-c", script]).process_group(0).output().unwrap();
        assert_eq!(out(&done), "told\n", "{key}: {}", err(&done));
    }
}

/// The terminal is where it was, though a shell in it has given it to a group that is no more, and cannot give it back.
/// How a program of these tests begins that types on a terminal, and waits for what is said there.
const TYPES: &str = r#"
import os, pty, select, sys, time
said, end = b"", time.time() + 300
def begin(*words):
    global pid, fd
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(words[0], words)
def until(word):
    global said
    while word not in said and time.time() < end:
        if select.select([fd], [], [], 1)[0]:
            try:
                said += os.read(fd, 4096)
            except OSError:
                return
"#;

#[test]
fn a_shell_in_it_has_job_control_and_leaves_the_terminal() {
    let Some(site) = Site::new("terminal") else { return };
    let command = site.command("run", OWN);
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let inner = format!("{} {} --quiet -- bash --norc --noprofile -i", env!("CARGO_BIN_EXE_jobfence"), words.join(" "));
    // bash takes the terminal when it begins, and starts each command in a group of its own.
    let script = format!("PS1= {inner}; read -r line; echo \"read $line\"");
    let program = r#"
begin("sh", "-c", sys.argv[1])
os.write(fd, b"sleep 1000 & kill %1; wait; echo has $((20 + 1)) control; sh -c 'kill -STOP $$'; fg; echo then $((30 + 1))\n")
until(b"then 31")
os.write(fd, b"exit\n")
until(b"exit\r\n")
os.write(fd, b"a line\n")
until(b"read a line")
os.kill(pid, 9)
sys.stdout.buffer.write(said)
"#;
    let done = Command::new("python3").args(["-S", "-c", &[TYPES, program].concat(), &script]).output().unwrap();
    let said = out(&done);
    for word in ["has 21 control", "Stopped", "then 31", "read a line"] {
        assert!(said.contains(word), "{word}: {said}{}", err(&done));
    }
    assert!(!said.contains("no job control"), "{said}");
}

/// A shell that has put the command into the background goes on reading after its end.
#[test]
fn a_command_in_the_background_leaves_the_terminal_to_the_shell() {
    let Some(site) = Site::new("background") else { return };
    let (command, temp) = (site.command("run", OWN), tempfile::tempdir().unwrap());
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let [fifo, end] = ["fifo", "end"].map(|name| temp.path().join(name).to_str().unwrap().to_owned());
    let script = format!("echo be$((1))gun; read -r line <{fifo}");
    let inner = format!("{} {} --quiet -- sh -c '{script}' 9>{end}", env!("CARGO_BIN_EXE_jobfence"), words.join(" "));
    let program = r#"
line, fifo, end_of_it = sys.argv[1:]
os.mkfifo(fifo)
os.mkfifo(end_of_it)
writers = os.open(end_of_it, os.O_RDONLY | os.O_NONBLOCK)
begin("bash", "--norc", "--noprofile", "-i")
os.write(fd, b"PS1= PS2=\n" + line.encode() + b"\n")
until(b"be1gun")
os.write(fd, b"\x1a")
until(b"Stopped")
os.write(fd, b"bg; echo is $((20 + 1)) behind\n")
until(b"is 21 behind")
open(fifo, "w").write("end\n")
os.set_blocking(writers, True)
os.read(writers, 1)
for number in range(3, 5):
    os.write(fd, b"echo I $((%d + 20)) read\n" % number)
    until(b"I %d read" % (number + 20))
os.kill(pid, 9)
sys.stdout.buffer.write(said)
"#;
    let done = Command::new("python3")
        .args(["-S", "-c", &[TYPES, program].concat(), &inner])
        .args([&fifo, &end])
        .output()
        .unwrap();
    let said = out(&done);
    for word in ["Stopped", "I 23 read", "I 24 read"] {
        assert!(said.contains(word), "{word}: {said}{}", err(&done));
    }
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
    // With a handler, its own namespace could signal it.
    let status = fs::read_to_string(format!("/proc/{init}/status")).unwrap();
    assert!(status.contains("\nSigCgt:\t0000000000000000\n"), "{status}");
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
        strace.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command("check", OWN).get_args());
        out(&strace.output().unwrap())
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

/// Its record names a namespace that is no more by then, so no janitor would remove the fence that a killed one leaves.
#[test]
fn there_is_no_second_fence_in_it() {
    let Some(site) = Site::new("nested") else { return };
    let command = site.command("run", "");
    let words: Vec<&str> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    let nested = |key: &str| {
        let words = [&["--", env!("CARGO_BIN_EXE_jobfence")], &words[..], &["--", "echo", "ran"]].concat();
        site.run(key, &words)
    };
    assert_eq!(out(&nested("PrivatePIDs=no")), "ran\n");
    let done = nested(OWN);
    assert_eq!((out(&done).as_str(), done.status.code()), ("", Some(1)), "{}", err(&done));
    assert!(err(&done).contains("in a PID namespace of another 'jobfence run' (PrivatePIDs)"), "{}", err(&done));
}

/// The kernel keeps a process that somebody traces, and so the init process. The fence needs none of them.
#[test]
fn a_fence_is_removed_before_a_namespace_that_cannot_end() {
    let Some(site) = Site::new("traced") else { return };
    let word = format!("traced-{}", std::process::id());
    let script = "setsid sh -c 'while :; do sleep 1; done' \"$0\" >/dev/null 2>&1 & echo ready; read x; true";
    let mut run = site.command("run", "PrivatePIDs=yes CleanupTimeout=600");
    run.args(["--user", "65534", "--", "sh", "-c", script, &word]).stdin(Stdio::piped());
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(read_line(&mut child), "ready");
    // The one that has "setsid" in its arguments no more.
    let mut daemon = Vec::new();
    until("the process that stays", || {
        daemon = hosts_pids("while :; do sleep 1; done");
        daemon.retain(|pid| name(*pid) == "sh" && hosts_pids(&word).contains(pid));
        daemon.len() == 1
    });
    let seize = "import ctypes, sys
ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None) == 0 and print('traced', flush=True)
sys.stdin.read()";
    let mut tracer = Command::new("python3");
    tracer.args(["-S", "-c", seize, &daemon[0].to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tracer = tracer.spawn().unwrap();
    assert_eq!(read_line(&mut tracer), "traced");
    drop(child.stdin.take());
    let records = || fs::read_dir(site.run.path().join("run")).unwrap().flatten().map(|entry| entry.file_name());
    let fences = || records().filter(|name| name.to_string_lossy().contains("job_run-")).count();
    until("the end of the fence", || fences() == 0);
    assert_eq!(child.try_wait().unwrap(), None);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), err(&done).as_str()), (Some(0), ""));
}

/// With SIGCHLD ignored, the kernel would keep no child until it is waited for, and its number would be a stranger's.
#[test]
fn an_ignored_sigchld_changes_nothing() {
    let Some(site) = Site::new("ignored") else { return };
    let log = site.run.path().join("log");
    let ignored = |words: &[&str], subcommand: &str, command: &[&str]| {
        let mut env = Command::new("env");
        env.arg("--ignore-signal=CHLD").args(words).arg(env!("CARGO_BIN_EXE_jobfence"));
        env.args(site.command(subcommand, OWN).get_args()).args(command).output().unwrap()
    };
    let checked = |output: &Output| {
        let said = out(output);
        assert!(said.contains("(PrivatePIDs)"), "{said}{}", err(output));
        said.lines().filter(|line| line.contains("PID")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(checked(&ignored(&[], "check", &[])), checked(&site.command("check", OWN).output().unwrap()));
    let path = log.to_str().unwrap();
    let strace = ["strace", "-f", "-qq", "-o", path, "-e", "trace=kill,prctl", "-einject=prctl:error=EINVAL:when=1"];
    let done = ignored(&strace, "run", &["--", "echo", "ran"]);
    if err(&done).contains("not found") {
        return common::skip("no strace");
    }
    assert!(err(&done).contains("did not begin (PrivatePIDs)"), "{}", err(&done));
    let calls = fs::read_to_string(&log).unwrap();
    let is_killed = |line: &str| line.contains("kill(") && line.ends_with("= 0");
    assert!(calls.lines().any(is_killed) && !calls.contains("ESRCH"), "{calls}");
}

/// What the starter does after an error is not in a namespace that ends.
#[test]
fn after_an_error_the_starter_is_outside_and_waits_for_the_command() {
    let Some(site) = Site::new("after") else { return };
    let log = site.run.path().join("log");
    let run = |fault: &str| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=setns,clone,clone3,fork,rt_sigtimedwait", "-e", fault, "-o"]).arg(&log);
        strace.arg(env!("CARGO_BIN_EXE_jobfence"));
        strace.args(site.command("run", "PrivatePIDs=yes CleanupTimeout=600").get_args());
        strace.args(["--", "sleep", "10000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        strace.spawn().ok()
    };
    let ended = |mut child: Child| {
        until("the end after an error", || child.try_wait().unwrap().is_some());
        child.wait_with_output().unwrap()
    };
    let Some(child) = run("inject=fork,clone,clone3:error=EAGAIN:when=2") else { return common::skip("no strace") };
    let done = ended(child);
    let calls = fs::read_to_string(&log).unwrap();
    assert!(err(&done).contains("fork") && calls.contains("setns("), "{}{calls}", err(&done));
    let done = ended(run("inject=rt_sigtimedwait:error=EINVAL:when=1").unwrap());
    assert!(err(&done).contains("wait for a signal"), "{}", err(&done));
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
