// SPDX-License-Identifier: GPL-2.0-or-later
//! The fence on older kernels: those of RHEL 8 (4.18) and 9 (5.14), as far as they can be simulated here.
//!
//! A thread gives itself a seccomp filter, which its children inherit: system calls since Linux 5.1 do not exist, and another thread,
//! without the filter, decides for each file that is opened or looked at whether it exists. Mounts stay unchanged, except in a mount
//! namespace of a child.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use jobfence::cgroup::layout::{Hierarchy, Layout, Version};
use jobfence::sys::dir::Dir;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

/// `pidfd_send_signal` (5.1), the first system call with the same number on all processors. `pidfd_open`, `clone3`, `close_range` and
/// `openat2` come after it.
const FIRST_SINCE_5_1: u32 = 424;

const NO_CALL: (u32, u32) = (u32::MAX, u32::MAX);

/// What a kernel lacks.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    /// System calls that do not exist: the first and the last of them.
    missing: (u32, u32),
    files: &'static [&'static str],
}

/// RHEL 8. It had `max_usage_in_bytes`: if the host has that, it stands for memory.peak.
const LINUX_4_18: Kernel = Kernel {
    name: "4.18",
    missing: (FIRST_SINCE_5_1, u32::MAX),
    files: &["cgroup.kill", "cgroup.freeze", "memory.peak", "memory.max_usage_in_bytes"],
};

/// Just before `cgroup.kill`, as RHEL 9 was at first.
const LINUX_5_13: Kernel = Kernel { name: "5.13", missing: NO_CALL, files: &["cgroup.kill", "memory.peak"] };

/// Without the limit files that came after 4.18.
const FEWER_LIMITS: Kernel = Kernel {
    name: "4.18, files",
    missing: NO_CALL,
    files: &["cpu.max.burst", "cpu.cfs_burst_us", "cpu.idle", "memory.oom.group"],
};

/// Like a container's filter that knows `pidfd_open` but not `pidfd_send_signal`.
const FILTERED: Kernel = Kernel { name: "5.13, filtered", missing: (FIRST_SINCE_5_1, FIRST_SINCE_5_1), ..LINUX_5_13 };

impl Kernel {
    /// Does the work as on this kernel; also returns which of the files were requested in vain.
    fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> (T, BTreeSet<String>) {
        let (listener, listen) = channel();
        // Readable when the work has ended: processes that a failure leaves running must not be waited for.
        let (over, working) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            // Started before the filter exists, so it has none.
            let answers = scope.spawn(move || self.answer(&listen, &over));
            let work = scope.spawn(move || {
                listener.send(self.filter()).unwrap();
                drop(listener);
                work()
            });
            let done = work.join();
            drop(working);
            let hidden = answers.join().unwrap();
            match done {
                Ok(done) => (done, hidden),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Installs the filter on this thread. From now on, a process that opens a file waits for an answer.
    fn filter(self) -> OwnedFd {
        let code = |code: u32| u16::try_from(code).unwrap();
        let answer = |value: u32| libc::sock_filter { code: code(libc::BPF_RET), jt: 0, jf: 0, k: value };
        let jump = |test: u32, number: u32, yes: usize, no: usize| {
            let (jt, jf) = (u8::try_from(yes).unwrap(), u8::try_from(no).unwrap());
            libc::sock_filter { code: code(libc::BPF_JMP | test | libc::BPF_K), jt, jf, k: number }
        };
        let number = |number: i64| u32::try_from(number).unwrap();
        let (first, last) = self.missing;
        let mut program = [
            // The call's number is the first word of seccomp_data.
            libc::sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k: 0 },
            jump(libc::BPF_JGE, first, 0, 1),
            jump(libc::BPF_JGT, last, 0, 4),
            jump(libc::BPF_JEQ, number(libc::SYS_openat), 2, 0),
            jump(libc::BPF_JEQ, number(libc::SYS_newfstatat), 1, 0),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(libc::SECCOMP_RET_USER_NOTIF),
            answer(libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap()),
        ];
        let program = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        // SAFETY: the program lives until the call returns, and its length is right; as root no other privilege is needed.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        assert!(fd >= 0, "seccomp: {}", std::io::Error::last_os_error());
        // SAFETY: pidfd_open takes a pid and no flags; what it returns without the filter is closed when the test ends.
        let missing = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) } < 0;
        let is_missing = |call: libc::c_long| (first..=last).contains(&number(call));
        assert_eq!(missing, is_missing(libc::SYS_pidfd_open), "pidfd_open");
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }
    }

    /// Answers until the work has ended. Later calls are told that they do not exist.
    fn answer(self, listen: &Receiver<OwnedFd>, over: &std::io::PipeReader) -> BTreeSet<String> {
        let mut hidden = BTreeSet::new();
        let Ok(listener) = listen.recv() else { return hidden };
        loop {
            let mut events =
                [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(over.as_fd(), PollFlags::POLLIN)];
            poll(&mut events, PollTimeout::NONE).unwrap();
            if events[1].any().unwrap() || !events[0].revents().unwrap().contains(PollFlags::POLLIN) {
                return hidden;
            }
            // SAFETY: both are plain data, for which zeros are a value, and the kernel writes no more than their size.
            let (asked, question) = unsafe {
                let mut question: libc::seccomp_notif = std::mem::zeroed();
                let asked = libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut question);
                (asked, question)
            };
            if asked != 0 {
                continue; // the asking process was killed
            }
            let path = path_at(question.pid, question.data.args[1]);
            let name = path.rsplit('/').next().unwrap_or_default();
            let exists = !self.files.contains(&name);
            if !exists {
                hidden.insert(name.to_owned());
            }
            let goes_on = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap();
            let answer = libc::seccomp_notif_resp {
                id: question.id,
                val: 0,
                error: if exists { 0 } else { -libc::ENOENT },
                flags: if exists { goes_on } else { 0 },
            };
            // SAFETY: the kernel reads an answer of the right size; one that comes too late is refused, and no matter.
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
        }
    }
}

/// The string at an address of a process that waits for the answer.
fn path_at(pid: u32, address: u64) -> String {
    let mut text = [0u8; 512];
    let memory = File::open(format!("/proc/{pid}/mem"));
    let length = memory.and_then(|memory| memory.read_at(&mut text, address)).unwrap_or(0);
    let end = text[..length].iter().position(|byte| *byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// The command, with directories of its own.
struct Site {
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Self {
        let base = common::Base::new(&format!("jobfence-old-{}-{test}", std::process::id()));
        Self { run: tempfile::tempdir().unwrap(), base }
    }

    fn command(&self, subcommand: &str) -> Command {
        common::command(subcommand, &self.base, self.run.path())
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command("run").args(args).output().unwrap()
    }

    /// Directories and records of steps.
    fn left(&self) -> Vec<PathBuf> {
        let records = fs::read_dir(self.run.path().join("run")).into_iter().flatten().flatten();
        let mut left: Vec<PathBuf> = records.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        for hierarchy in hierarchies() {
            let users = fs::read_dir(hierarchy.mount.join(&self.base.name)).into_iter().flatten().flatten();
            left.extend(users.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.ends_with("hold")));
        }
        left
    }
}

fn hierarchies() -> Vec<Hierarchy> {
    Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap().hierarchies
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A zombie that init has not reaped yet is dead.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// `jobfence run -v` has said the fence and its directories, at the end what was used, and nothing else.
fn is_told_without_an_error(said: &str) -> bool {
    let (fence, used) = said.trim_end().rsplit_once('\n').unwrap_or_default();
    let (title, places) = fence.split_once('\n').unwrap_or_default();
    title.starts_with("jobfence: the kernel limits job run-")
        && places.lines().all(|place| place.starts_with("  in /"))
        && used.starts_with("jobfence: job run-")
        && used.contains(" ended: cpu ")
}

/// A child in another session, and an orphaned grandchild.
const STRAGGLERS: &str = "setsid sleep 20 >/dev/null 2>&1 & echo $!; (sleep 20 >/dev/null 2>&1 & echo $!) & wait $!";

#[test]
fn whatever_a_command_leaves_is_ended() {
    for kernel in [LINUX_4_18, LINUX_5_13, FILTERED] {
        let site = Site::new("stragglers");
        let (output, hidden) =
            kernel.run(|| site.run(&["-v", "--cpus", "1", "--mem", "64", "--", "sh", "-c", STRAGGLERS]));
        let (said, pids) = (text(&output.stderr), text(&output.stdout));
        assert!(output.status.success(), "{}: {said}", kernel.name);
        assert_eq!(pids.lines().count(), 2, "{}: {pids}{said}", kernel.name);
        for pid in pids.lines() {
            assert!(!is_running(pid), "{}: process {pid} lives: {said}", kernel.name);
        }
        assert_eq!(site.left(), Vec::<PathBuf>::new(), "{}: {said}", kernel.name);
        assert!(is_told_without_an_error(&said), "{}: {said}", kernel.name);
        let has_cgroup2 = hierarchies().iter().any(|hierarchy| hierarchy.version == Version::V2);
        assert_eq!(hidden.contains("cgroup.kill"), has_cgroup2, "{}: {hidden:?}", kernel.name);
    }
}

#[test]
fn a_fork_storm_is_ended() {
    // Each process makes another and ends; limited in time, in case it is not ended.
    let storm = "import os, time\nend = time.monotonic() + 0.3\nfor _ in range(10):\n if os.fork() == 0:\n  \
                 while time.monotonic() < end + 10:\n   if os.fork(): os._exit(0)\n  os._exit(0)\n\
                 while time.monotonic() < end: pass";
    let site = Site::new("storm");
    let (output, hidden) = LINUX_4_18.run(|| site.run(&["--", "/usr/bin/python3", "-S", "-c", storm]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
    assert!(!hidden.is_empty());
}

#[test]
fn a_kill_for_want_of_memory_is_explained_without_the_peak() {
    let site = Site::new("memory");
    let eat = "b = bytearray(80 << 20)";
    let (output, hidden) =
        LINUX_4_18.run(|| site.run(&["-v", "--mem", "40M", "--", "/usr/bin/python3", "-S", "-c", eat]));
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    let said = text(&output.stderr);
    assert!(
        said.contains("memory limit of 40.0 MiB") && said.contains(". Raise --mem") && !said.contains("peak use"),
        "{said}"
    );
    assert!(said.contains("OOM kills 1") && !said.contains("peak"), "{said}");
    assert!(hidden.iter().any(|file| file.starts_with("memory.")), "{hidden:?}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_a_dead_owner_left_is_removed() {
    let site = Site::new("reap");
    let mut owner = site.command("run").args(["--", "sh", "-c", STRAGGLERS]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap()));
    let straggler = lines.next().unwrap().unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    let (reaped, _) = LINUX_4_18.run(|| site.command("reap").output().unwrap());
    assert!(text(&reaped.stdout).contains("1 removed, 0 alive, 0 could not"), "{reaped:?}");
    assert!(!is_running(&straggler), "process {straggler} lives");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn check_and_signals_are_as_ever() {
    let site = Site::new("check");
    let (check, _) = LINUX_4_18.run(|| site.command("check").output().unwrap());
    assert!(check.status.success(), "{check:?}");
    let (ended, _) = LINUX_4_18.run(|| {
        let mut child =
            site.command("run").args(["--", "sh", "-c", "echo; exec sleep 60"]).stdout(Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        child.wait().unwrap()
    });
    assert_eq!(ended.signal(), Some(libc::SIGTERM));
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// A limit that this kernel has no file for is an error of that limit alone, with a remedy.
#[test]
fn limits_without_a_file_are_explained() {
    let site = Site::new("files");
    let on_v2 = hierarchies().iter().any(|hierarchy| hierarchy.version == Version::V2 && hierarchy.has("memory"));
    // v1 never had the second, on any kernel.
    let v1 = "cgroup v1 kills single processes";
    let cases = [
        ("CPUBurst=50", "burst", "set CPUBurst=0", "has no such file"),
        ("OOMKillStep=yes", "oomgroup", "set OOMKillStep=no", if on_v2 { "has no such file" } else { v1 }),
    ];
    for (setting, limit, remedy, missing) in cases {
        let run = |on_error: &str| {
            let options = ["-o", setting, "-o", on_error, "--cpus", "1", "--mem", "64", "--", "true"];
            FEWER_LIMITS.run(|| site.run(&options))
        };
        let (refused, hidden) = run("OnError=fail");
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(missing) && said.contains(remedy), "{said}");
        assert!(!said.contains("is not available"), "{said}");
        // Every quota tries the first of them, and works without it.
        let in_vain = hidden.iter().any(|file| limit == "burst" || !file.contains("burst"));
        assert_eq!(!in_vain, missing == v1, "{hidden:?}");
        let (warned, _) = run(&format!("OnError=fail,{limit}:warn"));
        assert!(warned.status.success(), "{}", text(&warned.stderr));
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// RHEL 8's default: no cgroup2 anywhere; v1's freezer holds the processes.
#[test]
fn v1_alone() {
    const WANTED: [&str; 4] = ["cpu", "cpuacct", "memory", "freezer"];
    let v1: Vec<Hierarchy> = hierarchies().into_iter().filter(|h| h.version == Version::V1).collect();
    if !WANTED.iter().all(|controller| v1.iter().any(|h| h.has(controller))) {
        return common::skip(&format!("this host has not all of {WANTED:?} on cgroup v1"));
    }
    let site = Site::new("v1");
    let mounts = tempfile::tempdir().unwrap();
    let mut script = String::from("set -e\n");
    for (number, hierarchy) in v1.iter().filter(|h| WANTED.iter().any(|wanted| h.has(wanted))).enumerate() {
        let place = mounts.path().join(number.to_string());
        fs::create_dir(&place).unwrap();
        script += &format!("mount --bind '{}' '{}'\n", hierarchy.mount.display(), place.display());
    }
    let in_namespace = |jobfence: &mut Command, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{script}exec \"$@\""), "sh"]).arg(jobfence.get_program());
        command.args(jobfence.get_args()).arg("-o").arg(format!("CgroupMountpoint={}", mounts.path().display()));
        command.args(args).stdin(Stdio::null()).output().unwrap()
    };
    let (check, _) = LINUX_4_18.run(|| in_namespace(&mut site.command("check"), &[]));
    assert!(check.status.success() && text(&check.stdout).contains("legacy: cgroup v1 alone"), "{check:?}");
    let args = ["-v", "--cpus", "1", "--mem", "64", "--", "sh", "-c", STRAGGLERS];
    let mut last = None;
    let waits_for_nothing = common::is_once_within(Duration::from_secs(5), || {
        last = Some(LINUX_4_18.run(|| in_namespace(&mut site.command("run"), &args)).0);
    });
    let output = last.unwrap();
    let (said, pids) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{said}");
    assert_eq!(pids.lines().count(), 2, "{pids}{said}");
    assert!(!pids.lines().any(is_running), "{pids}");
    assert!(is_told_without_an_error(&said), "{said}");
    assert!(waits_for_nothing, "it waited for something");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}
