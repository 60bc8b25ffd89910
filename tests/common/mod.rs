// SPDX-License-Identifier: GPL-2.0-or-later
//! A separate base directory for each test: with systemd, in a scope that systemd delegates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

// Not every test file needs it.
#[allow(dead_code)]
mod held;
#[allow(dead_code)]
mod leases;
#[allow(dead_code)]
mod number;
#[allow(dead_code)]
mod of_user;
#[allow(dead_code)]
mod opened;
#[allow(dead_code)]
mod patience;
#[allow(dead_code)]
mod plugin;
#[allow(dead_code)]
mod skip;
#[allow(unused_imports)]
pub use held::Held;
#[allow(unused_imports)]
pub use leases::{Lease, UIDS, account, alone, beside_others, uids};
#[allow(unused_imports)]
pub use number::{Stopped, opened_until, opened_until_its_move, start_under};
#[allow(unused_imports)]
pub use of_user::{OfUser, lives, says};
#[allow(unused_imports)]
pub use opened::open;
#[allow(unused_imports)]
pub use patience::{PATIENCE, is_once_within, soon, until};
#[allow(unused_imports)]
pub use plugin::shared_object;
#[allow(unused_imports)]
pub use skip::skip;

static SWEEP: Once = Once::new();

/// Where fences may be made; removed when dropped.
pub struct Base {
    /// The value of `CgroupBase`.
    pub name: String,
    pub holder: Option<Child>,
    /// Excludes, or admits, janitors of other test programs while something is left here.
    pub lease: Option<Lease>,
}

impl Base {
    /// The base of one test of a file. `None` without root: the test is skipped.
    #[allow(dead_code)]
    pub fn if_root(file: &str, test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        Some(Self::new(&format!("jobfence-{file}-{}-{test}", std::process::id())))
    }

    /// For a test that runs janitors, as each launch does, beside others that do so.
    pub fn new(name: &str) -> Self {
        let lease = Some(beside_others());
        Self::within(name).with(lease)
    }

    /// For a test that leaves dead steps in the schedulers' directories.
    #[allow(dead_code)]
    pub fn alone(name: &str) -> Self {
        let lease = Some(alone());
        Self::within(name).with(lease)
    }

    fn with(mut self, lease: Option<Lease>) -> Self {
        self.lease = lease;
        self
    }

    /// For a test that holds such a lease itself.
    pub fn within(name: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root; 'make check' skips them without");
        if !Path::new("/run/systemd/system").is_dir() {
            let base = Self { name: name.to_owned(), holder: None, lease: None };
            SWEEP.call_once(|| base.sweep());
            return base;
        }
        let name = format!("jobfence.slice/{name}.scope");
        let mut hold = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        hold.arg("hold").arg("-o").arg(format!("CgroupBase={name}")).stdin(Stdio::null()).stdout(Stdio::null());
        // No other may have the same, such as jobfence.service.
        hold.arg("-o").arg(format!("RunDir={}", records_of_holder(&name).display()));
        let holder = hold.spawn().unwrap();
        let leaf = if has_cgroup2() { "/hold" } else { "" };
        let place = format!("/{name}{leaf}\n");
        let cgroup = format!("/proc/{}/cgroup", holder.id());
        let deadline = soon();
        while !fs::read_to_string(&cgroup).is_ok_and(|text| text.contains(&place)) {
            assert!(Instant::now() < deadline, "'jobfence hold' did not make {name}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let base = Self { name, holder: Some(holder), lease: None };
        SWEEP.call_once(|| base.sweep());
        base
    }

    /// Removes what an aborted earlier run left: every test that lists steps sees directories named like Slurm's, and the janitor knows
    /// only those with a mark.
    fn sweep(&self) {
        cgroup_mounts().iter().for_each(|mount| sweep_mount(mount));
        let run = tempfile::tempdir().unwrap();
        let output = command("reap", self, run.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// `RunDir` of the process that keeps a scope.
fn records_of_holder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{}.run", name.replace('/', "_")))
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            let _ = holder.kill();
            let _ = holder.wait();
            let _ = fs::remove_dir_all(records_of_holder(&self.name));
        }
        for mount in cgroup_mounts() {
            let _ = fs::remove_dir(mount.join(&self.name));
        }
    }
}

/// The command, with these directories of its own in case it makes any.
#[allow(dead_code)]
pub fn command(subcommand: &str, base: &Base, run: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    command.arg(subcommand).arg("-o").arg(format!("CgroupBase={}", base.name));
    command.arg("-o").arg(format!("RunDir={}", run.join("run").display())).stdin(Stdio::null());
    command
}

fn cgroup_mounts() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let cgroups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    cgroups.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap())).collect()
}

/// Removes directories of ended test processes that hold no process.
fn sweep_mount(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let plain = name.strip_prefix("slurm_").unwrap_or(&name);
        // jobfence-FILE-PID-TEST
        let Some(words) = plain.strip_prefix("jobfence-") else { continue };
        let pid = words.split('-').find(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_empty(&entry.path());
        }
    }
}

fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

pub fn has_cgroup2() -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ")
}
