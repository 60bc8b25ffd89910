// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the benchmark works: a directory of its own in each hierarchy, and records of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::cgroup::base;
use jobfence::cgroup::membership::Membership;
use jobfence::config::Config;
use jobfence::fence::{self, Fence};
use jobfence::host::Host;
use jobfence::janitor;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy::{self, Plan};
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::Failure;

/// How long after an early move a launch comes. For some milliseconds more the kernel makes the next move at once.
const WARM: Duration = Duration::from_millis(2);

/// Where to work, and as whose job. What was made for it is removed with it.
pub struct Place {
    pub config: Config,
    pub host: Host,
    pub key: JobKey,
    /// The directory of records, when it is ours.
    records: Option<TempDir>,
    /// Whether our directory in each hierarchy is ours to remove.
    owns_base: bool,
}

/// How long each part of one set-up took.
#[derive(Clone, Copy)]
pub struct Split {
    pub host: Duration,
    pub open: Duration,
    pub limit: Duration,
}

impl Split {
    /// All parts.
    pub fn whole(self) -> Duration {
        self.host + self.open + self.limit
    }
}

impl Place {
    /// Takes over what another process of this benchmark has made (`base` and `run_dir`), or makes it.
    pub fn make(base: Option<String>, run_dir: Option<PathBuf>) -> Result<Self, Failure> {
        let pid = std::process::id();
        // The kind of file system counts: /run is a tmpfs wherever systemd boots, and where it is not another one is taken.
        let is_tmpfs = |path: &&str| statfs(*path).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC);
        let beside = ["/run", "/dev/shm"].into_iter().find(is_tmpfs).unwrap_or("/run");
        let records = match &run_dir {
            None => {
                let private = Permissions::from_mode(0o700);
                Some(tempfile::Builder::new().prefix("jobfence-bench-").permissions(private).tempdir_in(beside)?)
            }
            Some(_) => None,
        };
        let mut config = Config::default();
        config.run_dir = run_dir.or_else(|| records.as_ref().map(|dir| dir.path().into())).unwrap_or(config.run_dir);
        // systemd's cgroup2 is systemd's: there, only the delegated scope can be used. No job of a real user is met in
        // it, by our choice of a uid.
        let systemd = Host::read(&config)?.systemd;
        let owns_base = base.is_none() && !systemd;
        config.cgroup_base = base.or_else(|| owns_base.then(|| format!("jobfence-bench-{pid}")));
        let place = Self {
            host: Host::read(&config)?,
            config,
            key: JobKey { node: None, uid: 4_000_000_000 + pid, job: Id::new("1")?, step: Id::new("0")? },
            records,
            owns_base,
        };
        let wanted = fence::controllers(&place.config);
        for hierarchy in place.host.hierarchies(&wanted)? {
            base::open(&place.host.base, place.host.systemd, hierarchy, &wanted)?;
        }
        Ok(place)
    }

    /// What a job of one CPU and 256 MiB is limited to.
    pub fn plan(&self) -> Plan {
        Self::plan_with(&self.config, 256 << 20)
    }

    /// The same with other settings, and with so many bytes.
    pub fn plan_with(config: &Config, memory: u64) -> Plan {
        let (cpus, memory) = (Some(Cpus::whole(1)), Some(memory));
        let grant = Grant::whole(cpus, memory);
        policy::plan(config, &grant).0
    }

    /// What the product does before a job's first process: look at the host, make the tree and its record, limit it.
    pub fn set_up(&self) -> Result<(Fence, Split), Failure> {
        let start = Instant::now();
        let host = Host::read(&self.config)?;
        let read = Instant::now();
        let mut fence = Fence::open(&janitor::opening(&host, &self.config, ALL, &self.key))?;
        let open = Instant::now();
        let errors = fence.limit(&self.plan());
        let split = Split { host: read - start, open: open - read, limit: open.elapsed() };
        match errors.into_iter().next() {
            None => Ok((fence, split)),
            Some((limit, error)) => Err(format!("the {limit} limit: {error}").into()),
        }
    }

    /// What `jobfence hold` does before a launch, so that nobody waits for the kernel: this process is moved to where it is.
    pub fn move_early(&self) -> Result<(), Failure> {
        let here = Membership::read(&self.host.proc, Pid::this().as_raw())?;
        for hierarchy in &self.host.layout.hierarchies {
            let Some(below) = here.path_in(hierarchy).and_then(|path| hierarchy.below_mount(path)) else { continue };
            std::fs::write(hierarchy.mount.join(below).join("cgroup.procs"), "0")?;
            std::thread::sleep(WARM);
            return Ok(());
        }
        Err("this process is in no cgroup that can be seen".into())
    }

    /// The options with which another process takes this place over.
    pub fn options(&self) -> [std::ffi::OsString; 4] {
        ["--base".into(), self.host.base.clone().into(), "--run-dir".into(), self.config.run_dir.clone().into()]
    }
}

/// A moment by which removing is over, or has failed.
pub fn soon() -> Instant {
    Instant::now() + janitor::PATIENCE
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.owns_base {
            return;
        }
        for hierarchy in &self.host.layout.hierarchies {
            let removed = Dir::open(&hierarchy.mount).and_then(|top| top.remove(&self.host.base));
            if let Err(error) = removed {
                eprintln!("{error}");
            }
        }
        drop(self.records.take());
    }
}
