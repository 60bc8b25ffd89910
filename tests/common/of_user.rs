// SPDX-License-Identifier: GPL-2.0-or-later
//! A leased account for a test: a configuration with a section for it, its processes, and `jobfence hold`. All of it ends with the test.
//!
//! Other tests run beside these: what the section says is said of nobody else.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};

use super::{Base, Lease, account, skip, until};

pub struct OfUser {
    pub top: tempfile::TempDir,
    pub base: Base,
    pub user: User,
    _lease: Lease,
    pub children: Vec<Child>,
    /// Cgroups beside the fences, which go with them.
    pub cgroups: Vec<PathBuf>,
}

impl OfUser {
    /// `None`: the test is skipped.
    pub fn new(file: &str, test: &str) -> Option<Self> {
        let base = Base::if_root(file, test)?;
        let Some((lease, user)) = account() else {
            skip("all accounts of the system are in use");
            return None;
        };
        let top = tempfile::tempdir().unwrap();
        fs::set_permissions(top.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(top.path().join("home")).unwrap();
        nix::unistd::chown(&top.path().join("home"), Some(user.uid), Some(user.gid)).unwrap();
        Some(Self { top, base, user, _lease: lease, children: Vec::new(), cgroups: Vec::new() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    /// A copy of a program under another name.
    pub fn program(&self, from: &str, name: &str) -> PathBuf {
        let to = self.path(name);
        // By a program: another test's child would have the file open for writing, so that nobody could run it.
        assert!(Command::new("cp").args(["-L", from]).arg(&to).status().unwrap().success());
        to
    }

    /// What the file says of all, and of the user. A program that reads it has the one or the other.
    pub fn configure(&self, all: &str, of_user: &str) -> PathBuf {
        let (base, run, name) = (&self.base.name, self.path("run"), &self.user.name);
        let text =
            format!("CgroupBase={base} RunDir={} StraysMinUID=1 {all}\n[User={name}]\n{of_user}\n", run.display());
        let file = self.path("jobfence.conf");
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), &file).unwrap();
        file
    }

    pub fn jobfence(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.arg(subcommand).arg("--config").arg(self.path("jobfence.conf")).stdin(Stdio::null());
        command
    }

    pub fn start(&mut self, command: &mut Command) -> i32 {
        // A group of its own, to end what it starts.
        let child = command.stdin(Stdio::null()).process_group(0).spawn().unwrap();
        let pid = child.id().cast_signed();
        self.children.push(child);
        pid
    }

    /// A process of the user's.
    pub fn run(&mut self, words: &[&str]) -> i32 {
        let (uid, gid) = (self.user.uid.as_raw(), self.user.gid.as_raw());
        let home = self.path("home");
        self.start(Command::new(words[0]).args(&words[1..]).uid(uid).gid(gid).current_dir(home))
    }

    /// Starts `jobfence hold`, by this command, and says where it says something.
    pub fn hold_by(&mut self, mut hold: Command) -> (i32, PathBuf) {
        let said = self.path(&format!("said-{}", self.children.len()));
        hold.stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        (self.start(&mut hold), said)
    }
}

impl Drop for OfUser {
    fn drop(&mut self) {
        // The last one is `jobfence hold`, if there is one.
        for child in self.children.iter_mut().rev() {
            let _ = kill(Pid::from_raw(-child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.kill();
            let _ = child.wait();
        }
        // What has left those groups; it may end as something else begins, and this gets all of it at once.
        let (uid, gid) = (self.user.uid.as_raw(), self.user.gid.as_raw());
        let _ = Command::new("sh").args(["-c", "kill -9 -1"]).uid(uid).gid(gid).status();
        let _ = self.jobfence("reap").output();
        for cgroup in &self.cgroups {
            until("its cgroup is empty", || fs::remove_dir(cgroup).is_ok());
        }
    }
}

pub fn says(said: &Path, words: &str) -> bool {
    fs::read_to_string(said).is_ok_and(|text| text.contains(words))
}

/// Whether a process is there, and has not ended.
pub fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X'])))
}
