// SPDX-License-Identifier: GPL-2.0-or-later
//! A node of its own for a test: a directory, a base, and `jobfence hold` with programs in fences. All of it ends with the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::Base;

pub struct Held {
    temp: tempfile::TempDir,
    pub base: Base,
    pub hold: Option<Child>,
    pub children: Vec<Child>,
    /// Settings of every command.
    pub settings: Vec<String>,
    /// The jobs to close at the end.
    pub jobs: Vec<String>,
}

impl Held {
    /// `None` without root: the test is skipped.
    pub fn new(file: &str, test: &str, jobs: &[&str]) -> Option<Self> {
        let base = Base::if_root(file, test)?;
        count_disks(&base.name);
        let temp = tempfile::tempdir().unwrap();
        // Users run the command, too.
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_jobfence")).arg(temp.path().join("jobfence")).status();
        assert!(copied.unwrap().success());
        let settings = vec![
            format!("CgroupBase={}", base.name),
            format!("RunDir={}", temp.path().join("run").display()),
            format!("UsageLog={}", temp.path().join("log/usage.jsonl").display()),
        ];
        let jobs = jobs.iter().map(|job| (*job).to_owned()).collect();
        Some(Self { temp, base, hold: None, children: Vec::new(), settings, jobs })
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("jobfence"));
        command.args(args).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        self.settings.iter().for_each(|setting| {
            command.arg("-o").arg(setting);
        });
        command
    }

    pub fn out(&self, args: &[&str]) -> String {
        let done = self.command(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    pub fn as_user(&self, uid: u32, args: &[&str]) -> Output {
        self.command(args).uid(uid).gid(uid).output().unwrap()
    }

    /// Starts `jobfence hold` by this command.
    pub fn start_hold(&mut self, mut command: Command) {
        let said = fs::File::options().create(true).append(true).open(self.path("said")).unwrap();
        self.hold = Some(command.stderr(said).spawn().unwrap());
    }

    /// What `jobfence hold` has said.
    pub fn said(&self) -> String {
        fs::read_to_string(self.path("said")).unwrap_or_default()
    }
}

/// Since Linux 6.10, cgroup v1 counts what goes to a disk only once a limit of any cgroup was set for it. Without that, what a job reads and
/// writes is not known, and no idle job is certain to be one.
fn count_disks(name: &str) {
    let place = PathBuf::from(format!("/sys/fs/cgroup/blkio/{name}-counted"));
    if !Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").exists() || fs::create_dir(&place).is_err() {
        return;
    }
    for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let number = fs::read_to_string(disk.path().join("dev")).unwrap_or_default();
        let _ = fs::write(place.join("blkio.throttle.read_bps_device"), format!("{} {}", number.trim(), 1_u64 << 50));
    }
    let _ = fs::remove_dir(place);
}

impl Drop for Held {
    fn drop(&mut self) {
        for child in self.children.iter_mut().chain(&mut self.hold) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for job in &self.jobs {
            let _ = self.command(&["close", "--job", job]).output();
        }
    }
}
