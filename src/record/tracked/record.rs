// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of a step without a fence.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::renameat;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::JobKey;
use crate::record::files;
use crate::record::header::Header;
use crate::record::lines::field;
use crate::record::roll::{self, Entry, EntryKind};
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::process::Owner;

/// First line of a record; with another number it is another release's.
const VERSION: &str = "jobfence-record 1 tracked";

/// The most processes that are recorded: a job that has more is found by those that are still there.
const MOST: usize = 10_000;

/// What is recorded of such a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// See [`Header`].
    pub boot_id: String,
    /// See [`Header`].
    pub pid_namespace: String,
    /// The step daemon.
    pub owner: Owner,
    /// The names that the step's directories would have, outermost first.
    pub levels: Vec<String>,
    /// The job's user.
    pub uid: u32,
    /// Processes of the step that a process of jobfence's has seen.
    pub seen: BTreeSet<Owner>,
}

impl Tracked {
    /// A step of this process, with no process yet. `None`: it is root's.
    pub fn new(host: &Host, key: &JobKey) -> Result<Option<Self>> {
        let mut levels = key.parents();
        levels.push(key.step_dir(1));
        let owner = Owner::this(&host.proc)?;
        let (boot_id, pid_namespace) = (host.boot_id.clone(), host.pid_namespace.clone());
        Ok((key.uid != 0).then(|| Self { boot_id, pid_namespace, owner, levels, uid: key.uid, seen: BTreeSet::new() }))
    }

    /// Reads a record. An incomplete one is an error, never a guess.
    pub fn parse(text: &str) -> Result<Self> {
        let (Header { version, boot_id, pid_namespace, owner }, mut lines) = Header::split(text)?;
        let bad = || Error::new("not a complete record of a step without a fence");
        if version != VERSION {
            return Err(bad());
        }
        let path = field(&mut lines, "path").ok_or_else(bad)?;
        let levels: Vec<String> = path.split('/').map(str::to_owned).collect();
        let uid = field(&mut lines, "uid").and_then(|uid| uid.parse().ok()).filter(|uid| *uid != 0).ok_or_else(bad)?;
        let seen = field(&mut lines, "seen").ok_or_else(bad)?;
        let process = |text: &str| {
            let (pid, start) = text.split_once(':')?;
            Some(Owner { pid: pid.parse().ok().filter(|pid| *pid > 1)?, start: start.parse().ok()? })
        };
        let seen = seen.split(',').filter(|text| !text.is_empty());
        let seen = sorted::set(seen.map(process).collect::<Option<Vec<_>>>().ok_or_else(bad)?);
        if seen.len() > MOST {
            return Err(bad());
        }
        if lines.next().is_some() || !text.ends_with('\n') {
            return Err(bad());
        }
        Ok(Self { boot_id, pid_namespace, owner, levels, uid, seen })
    }

    /// Its line in the roll.
    pub fn entry(&self) -> Entry {
        let (owner, pid_namespace) = (self.owner, self.pid_namespace.clone());
        Entry { owner, pid_namespace, kind: EntryKind::Tracked, name: TrackedRecords::file_name(self) }
    }

    /// The step's name, for messages.
    pub fn name(&self) -> String {
        self.levels.join("/")
    }
}

impl fmt::Display for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{VERSION}\nboot_id={}\npid_namespace={}", self.boot_id, self.pid_namespace)?;
        writeln!(f, "owner_pid={}\nowner_start={}", self.owner.pid, self.owner.start)?;
        let seen: Vec<String> = self.seen.iter().take(MOST).map(|one| format!("{}:{}", one.pid, one.start)).collect();
        writeln!(f, "path={}\nuid={}\nseen={}\nend", self.levels.join("/"), self.uid, seen.join(","))
    }
}

/// The directory of these records.
#[derive(Debug)]
pub struct TrackedRecords {
    run_dir: Dir,
    dir: Dir,
}

/// In `RunDir`.
pub(crate) const DIRECTORY: &str = "tracked";

/// A new record, which has no name yet.
const NEW: &str = ".new";

/// How long to wait for another process that writes.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

impl TrackedRecords {
    /// Opens it in `RunDir`, making what is missing.
    pub fn open(run_dir: &Path) -> Result<Self> {
        let dir = files::make_directory(run_dir, DIRECTORY)?;
        Ok(Self { run_dir: Dir::open(run_dir)?, dir })
    }

    /// As `open`, but makes nothing. `None`: no step has been without a fence.
    pub fn existing(run_dir: &Path) -> Result<Option<Self>> {
        let Some(dir) = files::directory(run_dir, DIRECTORY)? else { return Ok(None) };
        Ok(Some(Self { run_dir: Dir::open(run_dir)?, dir }))
    }

    /// `uid_1001,job_5,step_0,31337.4242`: two runs of a step can overlap.
    fn file_name(tracked: &Tracked) -> String {
        format!("{},{}.{}", tracked.levels.join(","), tracked.owner.pid, tracked.owner.start)
    }

    /// Writes a record, and adds the processes that others have seen to it and to `tracked`.
    pub fn write(&self, tracked: &mut Tracked, deadline: Instant) -> Result<()> {
        let _lock = Lock::on(&self.dir, ".", deadline)?;
        let name = Self::file_name(tracked);
        if let Some(recorded) = self.read(&name)? {
            tracked.seen.extend(recorded.seen);
            return self.put(&name, tracked);
        }
        roll::note(&self.run_dir, &[tracked.entry()]);
        // The lock keeps all others from giving a record this name meanwhile.
        files::link_new(&self.dir, &name, &tracked.to_string()).map(drop)
    }

    /// Writes a record in place of the earlier one (`before`), if that is still there.
    pub(super) fn replace(&self, before: &Tracked, tracked: &Tracked) -> Result<()> {
        let _lock = Lock::on(&self.dir, ".", Instant::now() + LOCK_TIMEOUT)?;
        let name = Self::file_name(tracked);
        // Adds the processes that the daemon has started meanwhile.
        let Some(recorded) = self.read(&name)? else { return Ok(()) };
        let new = recorded.seen.difference(&before.seen);
        let seen = sorted::set(tracked.seen.iter().chain(new).copied());
        self.put(&name, &Tracked { seen, ..tracked.clone() })
    }

    fn put(&self, name: &str, tracked: &Tracked) -> Result<()> {
        // Left by a process that died here.
        files::unlink(&self.dir, NEW)?;
        files::link_new(&self.dir, NEW, &tracked.to_string())?;
        renameat(&self.dir, NEW, &self.dir, name).map_err(|errno| {
            let _ = files::unlink(&self.dir, NEW);
            Error::os("write the record", self.dir.path().join(name), errno)
        })
    }

    /// Removes what was left by a process that died while it wrote.
    pub fn tidy(&self) -> Result<()> {
        match Lock::try_on(&self.dir, ".")? {
            Some(_lock) if self.dir.has(NEW) => files::unlink(&self.dir, NEW),
            _ => Ok(()),
        }
    }

    /// The record of this name.
    pub fn read(&self, name: &str) -> Result<Option<Tracked>> {
        match files::read(&self.dir, name)? {
            Some(text) => Tracked::parse(&text).map(Some).map_err(|error| error.at(self.dir.path().join(name))),
            None => Ok(None),
        }
    }

    /// Removes a record. No error if there is none.
    pub fn forget(&self, tracked: &Tracked) -> Result<()> {
        files::unlink(&self.dir, &Self::file_name(tracked))
    }

    /// All records that can be read; others are another release's.
    pub fn list(&self) -> Result<Vec<Tracked>> {
        let names = self.dir.list(false)?;
        Ok(names
            .iter()
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| self.read(name).ok().flatten())
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: i32) -> Owner {
        Owner { pid, start: 100 }
    }

    fn tracked() -> Tracked {
        Tracked {
            boot_id: "b".into(),
            pid_namespace: "p".into(),
            owner: owner(7),
            levels: ["uid_5", "job_2", "step_0"].map(str::to_owned).to_vec(),
            uid: 5,
            seen: [owner(9), owner(8)].into(),
        }
    }

    #[test]
    fn what_is_written_is_understood_again_and_nothing_less() {
        let text = tracked().to_string();
        assert_eq!(Tracked::parse(&text).unwrap(), tracked());
        for end in 0..text.len() - 1 {
            assert!(Tracked::parse(&text[..end]).is_err(), "{end}");
        }
        for (from, to) in [
            ("uid=5", "uid=0"),
            ("uid=5", "uid=-1"),
            ("8:100", "1:100"),
            ("8:", "8"),
            ("tracked", "x"),
            ("end", "x\nend"),
        ] {
            assert!(Tracked::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn what_two_have_seen_is_put_together() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        assert!(TrackedRecords::existing(&run).unwrap().is_none());
        let records = TrackedRecords::open(&run).unwrap();
        let mut first = tracked();
        records.write(&mut first, Instant::now()).unwrap();
        let mut second = Tracked { seen: [owner(11)].into(), ..tracked() };
        records.write(&mut second, Instant::now()).unwrap();
        assert_eq!(second.seen, [owner(8), owner(9), owner(11)].into());
        assert_eq!(records.list().unwrap(), [second.clone()]);
        records.forget(&second).unwrap();
        records.forget(&second).unwrap();
        records.replace(&second, &second).unwrap();
        assert!(records.list().unwrap().is_empty(), "forgotten meanwhile");
    }
}
