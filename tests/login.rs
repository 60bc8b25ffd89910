// SPDX-License-Identifier: GPL-2.0-or-later
//! `LoginLimits` on a host without systemd: users' processes go into a fence of our own, with a budget, and come out of it alive.
//!
//! Other tests run beside these: only one of a leased account has limits, by a section of the configuration.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

use common::OfUser as Site;
use common::{lives, says, until};

/// A second of real time is so many for budgets and windows.
const SPEED: &str = "600";

/// `None`: the test is skipped.
fn site(test: &str, all: &str, of_user: &str) -> Option<Site> {
    if Path::new("/run/systemd/system").is_dir() {
        common::skip("systemd makes slices for users here");
        return None;
    }
    let site = Site::new("login", test)?;
    site.configure(&format!("LoginLimits=always {all}"), of_user);
    Some(site)
}

impl Site {
    /// `jobfence hold`, and what it says.
    fn hold(&mut self) -> (i32, PathBuf) {
        let mut hold = self.jobfence("hold");
        hold.env("JOBFENCE_TEST_IDLE_SPEED", SPEED);
        self.hold_by(hold)
    }

    /// Ends one of our processes, and waits for its end.
    fn end(&mut self, pid: i32, signal: Signal) {
        kill(Pid::from_raw(pid), signal).unwrap();
        let child = self.children.iter_mut().find(|child| child.id().cast_signed() == pid).unwrap();
        child.wait().unwrap();
    }

    fn is_inside(&self, pid: i32) -> bool {
        let job = format!("{}/uid_{}/job_login-{}/", self.base.name, self.user.uid, self.user.uid);
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&job))
    }

    /// What the user reads.
    fn asked(&self) -> serde_json::Value {
        let (uid, gid) = (self.user.uid.as_raw(), self.user.gid.as_raw());
        let done = self.jobfence("login").arg("--json").uid(uid).gid(gid).current_dir("/").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice(&done.stdout).unwrap()
    }

    /// The program that keeps the limits, as the file of the user has it.
    fn keeper(&self) -> Option<i64> {
        let files = fs::read_dir(self.path("run-series")).ok()?;
        let file =
            files.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|it| it == "login"))?;
        let value: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        value["keeper"][0].as_i64()
    }

    /// The quotas of the fence, in thousandths of a CPU.
    fn quota(&self, pid: i32) -> Option<i64> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let of = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/').to_owned());
            Some((controllers.to_owned(), path))
        };
        let of_cpu = text.lines().filter_map(of).find(|(names, _)| names.split(',').any(|name| name == "cpu"));
        let path = of_cpu.map(|(_, path)| path).unwrap_or_default();
        let dir = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"].map(|top| Path::new(top).join(&path));
        if path.is_empty() {
            // cgroup2: `MAX PERIOD`, cgroup-v2.rst.
            let (_, path) = text.lines().filter_map(of).find(|(names, _)| names.is_empty())?;
            let fence = Path::new("/sys/fs/cgroup").join(path);
            let max = fence.ancestors().find_map(|dir| {
                let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                Some(quota.parse::<i64>().ok()? * 1000 / period.parse::<i64>().ok()?)
            });
            return max;
        }
        let read = |name: &str| -> Option<i64> {
            dir.iter().find_map(|dir| fs::read_to_string(dir.join(name)).ok())?.trim().parse().ok()
        };
        Some(read("cpu.cfs_quota_us")? * 1000 / read("cpu.cfs_period_us")?)
    }
}

/// Keeps a terminal of the user's, and writes down what comes there; the terminal takes messages if the third argument says so.
const TERMINAL: &str = "
import fcntl, os, pty, sys, termios
master, slave = pty.openpty()
name = os.ttyname(slave)
uid, gid = int(sys.argv[1]), int(sys.argv[2])
os.chown(name, uid, gid)
os.chmod(name, 0o620 if sys.argv[3] == 'y' else 0o600)
if not os.fork():
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.set_inheritable(slave, True)
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
    os.execv('/bin/sleep', ['sleep', '3000'])
os.close(slave)
out = open(sys.argv[4], 'wb', buffering=0)
while True: out.write(os.read(master, 4096))
";

#[test]
fn a_user_is_limited_by_a_budget_and_told_and_loses_no_session() {
    let limits = "MaxCPUsPerUser=1.5\nMaxProcessesPerUser=300\nLoginBudget=10m:0.25";
    let Some(mut site) = site("budget", "LoginWindow=2h ReapInterval=1", limits) else { return };
    let metrics = site.path("jobfence.prom");
    let all = format!("LoginLimits=always LoginWindow=2h ReapInterval=1 MetricsFile={}", metrics.display());
    site.configure(&all, limits);
    let (uid, gid) = (site.user.uid.to_string(), site.user.gid.to_string());
    let (heard, unheard) = (site.path("heard"), site.path("unheard"));
    for (file, takes) in [(&heard, "y"), (&unheard, "n")] {
        site.start(Command::new("python3").args(["-S", "-c", TERMINAL, &uid, &gid, takes]).arg(file));
    }
    until("the terminals", || heard.exists() && unheard.exists());
    let session = site.run(&["sleep", "3000"]);
    let before = fs::read_to_string(format!("/proc/{session}/cgroup")).unwrap();
    let (hold, said) = site.hold();
    until("the session is in the fence", || site.is_inside(session));
    assert_eq!(site.quota(session), Some(1500));
    // What the session starts is in it, too.
    let busy = site.run(&["sh", "-c", "while :; do :; done"]);
    until("the next process is in the fence", || site.is_inside(busy));
    until("the budget is used up", || site.quota(session) == Some(250));
    until("the sentence", || {
        says(&heard, "All your processes on ") && says(&heard, " together have 0.25 CPUs until 2")
    });
    assert!(says(&heard, "jobfence: you have used 10:00 of CPU time on "), "{:?}", fs::read_to_string(&heard));
    let name = site.user.name.clone();
    until("the line in the log", || {
        says(&said, &format!("{name} has used 10:00 of CPU time within 2:00:00 (LoginBudget)"))
    });
    until("the answer", || site.asked()["users"][0]["until"].is_string());
    let asked = site.asked();
    assert_eq!((&asked["users"][0]["limited"], &asked["users"][0]["budget_seconds"]), (&true.into(), &600.into()));
    let line = format!("jobfence_login_budget_exceeded{{user=\"{name}\"}} 1\n");
    until("the metric", || says(&metrics, &line));
    // The window passes: twelve seconds here.
    until("the limit ends", || site.quota(session) == Some(1500));
    until("the other sentence", || says(&heard, "jobfence: you have 10:00 of CPU time on "));
    // mesg n.
    assert_eq!(fs::read(&unheard).unwrap(), b"");
    // A stop gives all back.
    site.end(hold, Signal::SIGTERM);
    assert!(lives(session) && lives(busy));
    assert_eq!(fs::read_to_string(format!("/proc/{session}/cgroup")).unwrap(), before);
    assert!(!site.is_inside(busy));
    assert_eq!(site.asked()["users"][0]["limited"], false);
}

#[test]
fn what_was_used_outlives_the_program_and_reap_gives_limits_back() {
    let limits = "MaxProcessesPerUser=300\nLoginBudget=10m:0.25";
    let Some(mut site) = site("kept", "LoginWindow=168h", limits) else { return };
    let session = site.run(&["sh", "-c", "while :; do :; done"]);
    let before = fs::read_to_string(format!("/proc/{session}/cgroup")).unwrap();
    let (hold, _) = site.hold();
    until("the budget is used up", || site.quota(session) == Some(250));
    site.end(hold, Signal::SIGKILL);
    assert!(site.is_inside(session));
    // Another one goes on, and the user has no new budget.
    let (hold, said) = site.hold();
    until("the second program has looked", || site.keeper() == Some(hold.into()));
    assert_eq!(site.quota(session), Some(250));
    site.end(hold, Signal::SIGKILL);
    let reaped = site.jobfence("reap").output().unwrap();
    let name = &site.user.name;
    assert!(
        String::from_utf8_lossy(&reaped.stdout).contains(&format!("gave back the login limits of {name}\n")),
        "{reaped:?}, {:?}",
        fs::read_to_string(&said)
    );
    assert!(lives(session));
    assert_eq!(fs::read_to_string(format!("/proc/{session}/cgroup")).unwrap(), before);
    // Nor after that.
    let (hold, _) = site.hold();
    until("the session is in the fence again", || site.is_inside(session));
    until("it has the same limit", || site.quota(session) == Some(250));
    site.end(hold, Signal::SIGTERM);
    assert!(lives(session) && !site.is_inside(session));
}

/// Ends its first thread once a file is there, while another one goes on.
const LEADERLESS: &str = "
import ctypes, os, platform, sys, threading, time
threading.Thread(target=time.sleep, args=(3000,)).start()
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)
";

#[test]
fn a_lost_file_or_a_lost_first_thread_ends_no_session() {
    let Some(mut site) = site("lost", "", "MaxProcessesPerUser=300") else { return };
    let go = site.path("go");
    let session = site.run(&["python3", "-S", "-c", LEADERLESS, go.to_str().unwrap()]);
    let (hold, _) = site.hold();
    until("the session is in the fence", || site.is_inside(session));
    fs::write(&go, "").unwrap();
    until("its first thread has ended", || !lives(session));
    site.end(hold, Signal::SIGKILL);
    // Nothing says any more where it came from.
    let series = fs::read_dir(site.path("run-series")).unwrap().flatten().map(|entry| entry.path());
    series.filter(|path| path.extension().is_some_and(|it| it == "login")).for_each(|it| fs::remove_file(it).unwrap());
    let others = || {
        let threads = fs::read_dir(format!("/proc/{session}/task")).unwrap().flatten().map(|entry| entry.path());
        threads.filter(|thread| !thread.ends_with(session.to_string())).collect::<Vec<_>>()
    };
    let inside = format!("job_login-{}/", site.user.uid);
    let is_inside =
        || others().iter().any(|it| fs::read_to_string(it.join("cgroup")).is_ok_and(|it| it.contains(&inside)));
    assert!(is_inside());
    let (hold, said) = site.hold();
    until("the second program has looked", || !is_inside());
    site.end(hold, Signal::SIGTERM);
    assert_eq!(others().len(), 1, "{:?}", fs::read_to_string(&said));
}

#[test]
fn beside_a_schedulers_daemon_nobody_is_limited() {
    let Some(mut site) = site("beside", "", "MaxProcessesPerUser=300") else { return };
    site.configure("LoginLimits=yes", "MaxProcessesPerUser=300");
    let daemon = site.program("/bin/sleep", "slurmd");
    site.start(Command::new(daemon).arg("3000"));
    let session = site.run(&["sleep", "3000"]);
    let (hold, said) = site.hold();
    until("the sentence", || {
        says(&said, "LoginLimits=yes does nothing here: a scheduler's daemon starts jobs on this node")
    });
    assert!(!site.is_inside(session));
    site.end(hold, Signal::SIGTERM);
    assert!(lives(session) && !site.is_inside(session));
}
