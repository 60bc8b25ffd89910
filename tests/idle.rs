// SPDX-License-Identifier: GPL-2.0-or-later
//! `IdleAction` where no scheduler's program tells the user and ends the job: SIGTERM to the job's processes, and then SIGKILL. Time passes
//! faster here, in a program that was built for tests.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

mod common;

/// A user that has no jobs in other tests.
fn user() -> u32 {
    common::uids()
}

/// Says that it is ready and, if it may, that it has got SIGTERM.
const PROGRAM: &str = "
import signal, sys, time
def told(*_):
    print('told', flush=True)
    if sys.argv[1] == 'obeys':
        sys.exit(0)
signal.signal(signal.SIGTERM, told)
print('ready', flush=True)
while True:
    time.sleep(1000)
";

struct Site {
    temp: tempfile::TempDir,
    base: common::Base,
    hold: Option<Child>,
    children: Vec<Child>,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("idle", test)?;
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { temp, base, hold: None, children: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(args).arg("-o").arg(format!("CgroupBase={}", self.base.name));
        command.arg("-o").arg(format!("RunDir={}", self.path("run").display()));
        // Without disks, whose bytes are only counted for a log or a limit, nothing is done to a job.
        command.arg("-o").arg(format!("UsageLog={}", self.path("log/usage.jsonl").display())).stdin(Stdio::null());
        command
    }

    fn out(&self, args: &[&str]) -> String {
        let done = self.command(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn hold(&mut self, action: &str) {
        let action = format!("IdleAction={action}");
        let more = ["-o", "ReapInterval=1", "-o", "SampleInterval=1", "-o", "IdleAfter=1m", "-o", &action];
        let mut hold = self.command(&[&["hold"][..], &more].concat());
        hold.env("JOBFENCE_TEST_IDLE_SPEED", "20");
        self.hold = Some(hold.stderr(fs::File::create(self.path("said")).unwrap()).spawn().unwrap());
    }

    fn run(&mut self, job: &str, how: &str) {
        self.out(&["open", "--job", job, "--user", &user().to_string(), "--mem", "200M", "--cpus", "1"]);
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", PROGRAM, how]).uid(user()).gid(user()).current_dir("/").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        self.children.push(child);
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("said")).unwrap_or_default()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.children.iter_mut().chain(&mut self.hold) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for job in ["7", "8"] {
            let _ = self.command(&["close", "--job", job]).output();
        }
    }
}

#[test]
fn an_idle_job_is_told_and_what_does_not_end_is_killed() {
    let Some(mut site) = Site::new("cancel") else { return };
    site.run("7", "obeys not");
    site.run("8", "obeys");
    site.hold("cancel");
    for (job, child) in [("7", 0), ("8", 1)] {
        common::until("SIGTERM", || {
            site.said().contains(&format!("job {job} of")) && site.said().contains("is cancelled, since it")
        });
        let mut told = String::new();
        let mut child = site.children.remove(child.min(site.children.len() - 1));
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(told, "told\n", "once");
        let status = child.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        let ended = (status.code(), status.signal());
        assert_eq!(ended, if job == "7" { (None, Some(9)) } else { (Some(0), None) }, "job {job}: {}", site.said());
    }
    let said = site.said();
    assert!(said.contains("what is left of job 7 of") && !said.contains("what is left of job 8 of"), "{said}");
    assert!(said.contains("it is cancelled in 1:00 if that stays so"), "{said}");
    let shown = site.out(&["show", "7"]);
    assert!(shown.contains("it is cancelled for that"), "{shown}");
}

#[test]
fn with_signal_it_goes_on_if_it_does_not_end_itself() {
    let Some(mut site) = Site::new("signal") else { return };
    site.run("7", "obeys not");
    site.hold("signal");
    common::until("SIGTERM", || site.said().contains("gets SIGTERM, since it"));
    let mut told = [0; 5];
    site.children[0].stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"told\n");
    common::until("what was done", || site.out(&["show", "7"]).contains("its processes have got SIGTERM for that"));
    // Nothing follows, though it would be time for SIGKILL.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(site.children[0].try_wait().unwrap(), None);
    assert!(!site.said().contains("SIGKILL"), "{}", site.said());
}
