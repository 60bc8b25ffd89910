// SPDX-License-Identifier: GPL-2.0-or-later
//! Who owns which directories: one small root-owned file for each step below `RunDir`.
//!
//! The record is written before the directories are made and removed after them, so whatever exists has a record. Making it
//! is also what decides which of two step daemons has a name: `link` of a finished file succeeds for one of them.

pub mod holder;
pub mod job;
mod lines;
mod plan;
pub mod roll;
mod shared;
pub mod tracked;

use std::fmt;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Id, JobKey, Name, job_dir};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
pub use crate::sys::process::Owner;

pub(crate) use lines::field;
use roll::{Entry, Kind, Roll};
pub use shared::Shared;

/// First line of a record. With another number it is another release's: its first lines, see [`Header`], mean the same, and
/// what follows is not ours to understand.
const VERSION: &str = "jobfence-record 1";
/// The same of a fence whose life several processes share.
const SHARED: &str = "jobfence-record 2";
const VERSIONS: &str = "jobfence-record ";

/// What the records of every release say in their first lines, and end with: a node is upgraded, or goes back, while steps of
/// the other release live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `jobfence-record 1`.
    pub version: String,
    /// See [`Record::boot_id`].
    pub boot_id: String,
    /// See [`Record::pid_namespace`].
    pub pid_namespace: String,
    /// See [`Record::owner`].
    pub owner: Owner,
}

impl Header {
    /// Understands the beginning of a complete record of whatever release.
    pub fn parse(text: &str) -> Result<Self> {
        Self::split(text).map(|(header, _)| header)
    }

    /// Whether who made it is certainly dead.
    pub fn is_dead(&self, host: &Host) -> Result<bool> {
        if self.boot_id != host.boot_id {
            return Ok(true);
        }
        // A pid of another namespace (a slurmd in a container) says nothing here: it is its own janitor's.
        Ok(self.pid_namespace == host.pid_namespace && !self.owner.is_alive(&host.proc)?)
    }

    /// Whether several processes share the fence, and the owner is not to be asked for all of them.
    pub fn is_shared(&self) -> bool {
        self.version == SHARED
    }

    /// What its owner has, as a line in the roll.
    pub fn entry(&self, kind: Kind, name: String) -> Entry {
        Entry { owner: self.owner, pid_namespace: self.pid_namespace.clone(), kind, name }
    }

    /// The header, and the lines between it and the last.
    pub(crate) fn split(text: &str) -> Result<(Self, std::str::Lines<'_>)> {
        let bad = || Error::new("not a complete record");
        let mut lines = text.lines();
        let version = lines.next().filter(|line| line.starts_with(VERSIONS)).ok_or_else(bad)?.to_owned();
        if lines.next_back() != Some("end") {
            return Err(bad());
        }
        let boot_id = field(&mut lines, "boot_id").ok_or_else(bad)?;
        let pid_namespace = field(&mut lines, "pid_namespace").ok_or_else(bad)?;
        let pid = field(&mut lines, "owner_pid").and_then(|pid| pid.parse().ok()).filter(|&pid| pid > 0);
        let start = field(&mut lines, "owner_start").and_then(|start| start.parse().ok());
        let owner = Owner { pid: pid.ok_or_else(bad)?, start: start.ok_or_else(bad)? };
        Ok((Self { version, boot_id, pid_namespace, owner }, lines))
    }
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `/proc/sys/kernel/random/boot_id`: what another boot left has no processes and no directories.
    pub boot_id: String,
    /// The pid namespace in which the owner's pid means something, as `/proc/self/ns/pid` names it.
    pub pid_namespace: String,
    /// Who made the directories and will remove them.
    pub owner: Owner,
    /// Our directory in each hierarchy, below which the others are.
    pub base: String,
    /// The directories below it, outermost first; the last is the step's.
    pub levels: Vec<String>,
    /// What other processes need that go on with it; `None`: there are none, and the owner is the one that has opened it.
    pub shared: Option<Box<Shared>>,
}

impl Record {
    /// Its first lines.
    pub fn header(&self) -> Header {
        let (boot_id, pid_namespace) = (self.boot_id.clone(), self.pid_namespace.clone());
        Header { version: self.version().to_owned(), boot_id, pid_namespace, owner: self.owner }
    }

    fn version(&self) -> &'static str {
        if self.shared.is_some() { SHARED } else { VERSION }
    }

    /// What the directories are marked with: less than the record, since there is room for little, and it is never changed.
    pub fn mark(&self) -> String {
        let mut mark = self.clone();
        if let Some(shared) = &mut mark.shared {
            shared.plan = None;
        }
        mark.to_string()
    }

    /// Whether the same process has made both.
    pub fn is_by_same(&self, other: &Self) -> bool {
        let opener = |record: &Self| record.shared.as_ref().map(|shared| shared.opener);
        (self.owner, opener(self)) == (other.owner, opener(other))
    }

    /// Whether it is the one that another process has read, and not another's of the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = match (&self.shared, &other.shared) {
            (Some(ours), Some(theirs)) => ours.is_same(theirs),
            (None, None) => true,
            _ => false,
        };
        same && (self.owner, &self.boot_id, &self.levels) == (other.owner, &other.boot_id, &other.levels)
    }

    /// Its line in the roll.
    pub fn entry(&self) -> Entry {
        self.header().entry(Kind::Step, file_name(&self.levels))
    }

    /// The job's user.
    pub fn uid(&self) -> Option<u32> {
        self.levels.iter().rev().nth(2)?.strip_prefix("uid_")?.parse().ok()
    }

    /// Whose step it is.
    pub fn key(&self) -> Option<JobKey> {
        let node = self.levels.len().checked_sub(4).and_then(|at| self.levels.get(at));
        let node = node.map(Name::new).transpose().ok()?;
        Some(JobKey { node, uid: self.uid()?, job: self.job()?, step: self.step()? })
    }

    /// The scheduler's name of the job.
    pub fn job(&self) -> Option<Id> {
        if let Some(shared) = &self.shared {
            return Some(shared.job.clone());
        }
        Id::of_a_name(self.levels.iter().rev().nth(1)?.strip_prefix("job_")?)
    }

    /// The scheduler's name of the step.
    pub fn step(&self) -> Option<Id> {
        if let Some(shared) = &self.shared {
            return Some(shared.step.clone());
        }
        let step = self.levels.last()?.strip_prefix("step_")?;
        Id::of_a_steps_name(step.split_once('.').map_or(step, |(step, _)| step))
    }

    /// Whether who left this as a mark is certainly dead. No other boot can have left one: what names another is a container's.
    pub fn is_left_behind(&self, host: &Host) -> Result<bool> {
        Ok(self.boot_id == host.boot_id && self.header().is_dead(host)?)
    }

    /// Understands a record. An incomplete one is an error, never a guess.
    pub fn parse(text: &str) -> Result<Self> {
        let (Header { version, boot_id, pid_namespace, owner }, mut lines) = Header::split(text)?;
        if version != VERSION && version != SHARED {
            return Err(Error::new("a record of another release").value(version).hint(format!(
                "the process that made it ({}) has ended, and only that release knows what it made: run its 'jobfence \
                 reap', or end what is in the directories of this name, and remove them and the record",
                owner.pid
            )));
        }
        let bad = || Error::new("not a complete record");
        let base = field(&mut lines, "base").filter(|base| is_relative(base)).ok_or_else(bad)?;
        let path = field(&mut lines, "path").filter(|path| is_relative(path)).ok_or_else(bad)?;
        let levels: Vec<String> = path.split('/').map(str::to_owned).collect();
        if !text.ends_with('\n') {
            return Err(bad());
        }
        let shared = match version == SHARED {
            true => Some(Box::new(Shared::parse(lines).ok_or_else(bad)?)),
            false if lines.next().is_some() => return Err(bad()),
            false => None,
        };
        if levels.len() < 3 || levels.len() > 4 || !levels.last().is_some_and(|step| step.starts_with("step_")) {
            return Err(bad());
        }
        Ok(Self { boot_id, pid_namespace, owner, base, levels, shared })
    }
}

/// One or more plain names: nothing that could lead out of the tree.
fn is_relative(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
    path.split('/').all(|name| !name.is_empty() && !name.starts_with('.') && name.chars().all(plain))
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nboot_id={}\npid_namespace={}", self.version(), self.boot_id, self.pid_namespace)?;
        writeln!(f, "owner_pid={}\nowner_start={}", self.owner.pid, self.owner.start)?;
        writeln!(f, "base={}\npath={}", self.base, self.levels.join("/"))?;
        if let Some(shared) = &self.shared {
            write!(f, "{shared}")?;
        }
        f.write_str("end\n")
    }
}

/// The directory of records.
#[derive(Debug)]
pub struct Records {
    dir: Dir,
}

/// In `RunDir`; a lock of its own, since the janitor holds that on `RunDir` for longer.
const LIMITS: &str = "limits.lock";
/// In `RunDir`, for records that have no name yet.
const NEW: &str = "new";

impl Records {
    /// Opens `RunDir`, making its last component when it is missing, and refuses one that others can open.
    pub fn open(path: &Path) -> Result<Self> {
        let dir = match Dir::open(path) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                let name = path.file_name().and_then(|name| name.to_str());
                let (Some(parent), Some(name)) = (path.parent(), name) else { return Err(error) };
                let parent = Dir::open(parent)?;
                match mkdirat(&parent, name, Mode::from_bits_truncate(0o700)) {
                    Ok(()) | Err(Errno::EEXIST) => parent.child(name)?,
                    Err(errno) => return Err(Error::os("make the directory", path, errno)),
                }
            }
            other => other?,
        };
        Self::checked(dir)
    }

    fn checked(dir: Dir) -> Result<Self> {
        let stat = dir.stat()?;
        // Not even readable: who can open it could take the locks on it, and hold up every job.
        if stat.st_uid != nix::unistd::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(Error::new("RunDir must belong to root and have mode 0700:")
                .at(dir.path())
                .hint("remove it, or set RunDir in jobfence.conf"));
        }
        Ok(Self { dir })
    }

    /// The directory itself.
    pub(crate) fn into_dir(self) -> Dir {
        self.dir
    }

    /// See [`roll::note`].
    pub fn note(&self, entries: &[Entry]) {
        roll::note(&self.dir, entries);
    }

    /// See [`Roll::read`].
    pub fn roll(&self, boot_id: &str) -> Result<Option<Roll>> {
        Roll::read(&self.dir, boot_id)
    }

    /// The directory, for what is done to the roll.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The owners of all steps that are recorded here, with the users of their jobs; of this pid namespace.
    pub fn owners(&self, pid_namespace: &str) -> Result<Vec<(Owner, u32)>> {
        let mut owners = Vec::new();
        for levels in self.list()? {
            let Some(header) = self.header(&levels)?.filter(|header| header.pid_namespace == pid_namespace) else {
                continue;
            };
            let uid = levels.iter().rev().nth(2).and_then(|name| name.strip_prefix("uid_")?.parse().ok());
            owners.extend(uid.map(|uid| (header.owner, uid)));
        }
        Ok(owners)
    }

    /// Records a step under the name of its directories. `Ok(false)`: somebody else has the name.
    ///
    /// The file gets its name when it is complete, and a process that dies before leaves none.
    pub fn claim(&self, record: &Record) -> Result<bool> {
        self.note(&[record.entry()]);
        link_new(&self.dir, &file_name(&record.levels), &record.to_string())
    }

    /// What the record of these directories says; `None` when there is none.
    pub fn read(&self, levels: &[String]) -> Result<Option<Record>> {
        let name = file_name(levels);
        match read(&self.dir, &name)? {
            None => Ok(None),
            Some(text) => match Record::parse(&text) {
                Ok(record) if record.levels == levels => Ok(Some(record)),
                Ok(_) => Err(Error::new("a record of another step than its name says:").at(self.dir.path().join(name))),
                Err(error) => Err(error.at(self.dir.path().join(name))),
            },
        }
    }

    /// Who made the record of these directories, of whatever release; `None` when there is none.
    pub fn header(&self, levels: &[String]) -> Result<Option<Header>> {
        let name = file_name(levels);
        let Some(text) = read(&self.dir, &name)? else { return Ok(None) };
        Header::parse(&text).map(Some).map_err(|error| error.at(self.dir.path().join(name)))
    }

    /// Writes a record in the place of what it was before, if it is still there.
    pub fn replace(&self, record: &Record, deadline: Instant) -> Result<()> {
        let name = file_name(&record.levels);
        let gone = || Error::new("somebody has closed the fence meanwhile:").at(self.dir.path().join(&name));
        let _lock = self.lock_closing(deadline)?;
        if !self.read(&record.levels)?.is_some_and(|there| there.is_same(record)) {
            return Err(gone());
        }
        let new = match mkdirat(&self.dir, NEW, Mode::from_bits_truncate(0o700)) {
            Ok(()) | Err(Errno::EEXIST) => checked(self.dir.child(NEW)?)?,
            Err(errno) => return Err(Error::os("make the directory", self.dir.path().join(NEW), errno)),
        };
        // Of one that died here.
        unlink(&new, &name)?;
        link_new(&new, &name, &record.to_string())?;
        renameat(&new, name.as_str(), &self.dir, name.as_str())
            .map_err(|errno| Error::os("write the record", self.dir.path().join(&name), errno))
    }

    /// Waits for the right to be the one that changes or removes what others may change or remove: the janitor's.
    pub fn lock_closing(&self, deadline: Instant) -> Result<Lock> {
        Lock::on(&self.dir, ".", deadline)
    }

    /// The records of a job that several processes share, those of another boot, too.
    pub fn of_job(&self, job: &Id) -> Result<Vec<Record>> {
        let dir = job_dir(job);
        let mut found = Vec::new();
        for levels in self.list()? {
            if levels.iter().rev().nth(1) == Some(&dir) {
                found.extend(self.read(&levels)?);
            }
        }
        found.retain(|record| record.shared.as_ref().is_some_and(|shared| shared.job == *job));
        Ok(found)
    }

    /// Forgets the step with these directories. No error when it was forgotten before.
    pub fn forget(&self, levels: &[String]) -> Result<()> {
        unlink(&self.dir, &file_name(levels))
    }

    /// The directories of every recorded step, unordered.
    pub fn list(&self) -> Result<Vec<Vec<String>>> {
        let names = self.dir.list(false)?;
        Ok(names.iter().map(|name| name.split(',').map(str::to_owned).collect()).collect())
    }

    /// Removes `RunDir`, with what is in it when no step is recorded. `Ok(false)`: there is more in it.
    pub fn remove(path: &Path) -> Result<bool> {
        let (parent, name) = match (path.parent().map(Dir::open), path.file_name()) {
            (Some(Ok(parent)), Some(name)) if parent.child(name).is_ok() => (parent, name),
            _ => return Ok(true),
        };
        let dir = Self::checked(parent.child(name)?)?.dir;
        for records in [job::DIRECTORY, tracked::DIRECTORY, roll::DIRECTORY, NEW] {
            if let Ok(records) = dir.child(records).and_then(checked) {
                records.list(false)?.iter().try_for_each(|record| unlink(&records, record))?;
            }
            dir.remove(records)?;
        }
        // The last one is of earlier releases.
        for name in [LIMITS, tracked::WATCHER, "whole"] {
            dir.remove(name)?;
        }
        match parent.remove(name) {
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOTEMPTY | Errno::EEXIST)) => Ok(false),
            removed => removed.map(|_| true),
        }
    }

    /// Asks for the right to be the one janitor. `None`: another one is at work, and will do the same.
    pub fn lock_janitor(&self) -> Result<Option<Lock>> {
        Lock::try_on(&self.dir, ".")
    }

    /// Waits for the right to change the limits of jobs: a quota is read and then lowered, and between the two nobody else
    /// may write. It is held for less than a millisecond, unless the kernel takes longer for one of the writes.
    pub fn lock_limits(&self, deadline: Instant) -> Result<Lock> {
        match Lock::on(&self.dir, LIMITS, deadline) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                self.dir.ensure(LIMITS)?;
                Lock::on(&self.dir, LIMITS, deadline)
            }
            lock => lock,
        }
    }
}

/// Makes a file that is complete when it gets its name. `Ok(false)`: somebody else has the name.
pub(crate) fn link_new(dir: &Dir, name: &str, text: &str) -> Result<bool> {
    let failed = |errno| Error::os("write the record", dir.path().join(name), errno);
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    let file = openat(dir, ".", flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
    match nix::unistd::write(&file, text.as_bytes()) {
        Ok(n) if n == text.len() => {}
        Ok(_) => return Err(failed(Errno::ENOSPC)),
        Err(errno) => return Err(failed(errno)),
    }
    let linked = match linkat(&file, "", dir, name, AtFlags::AT_EMPTY_PATH) {
        // Without CAP_DAC_READ_SEARCH (containers) the kernel does not give an empty path a name.
        Err(Errno::ENOENT) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, path.as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW)
        }
        linked => linked,
    };
    match linked {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

/// The text of a record; `None` when there is none, and for no other reason.
pub(crate) fn read(dir: &Dir, name: &str) -> Result<Option<String>> {
    match dir.read(name) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a record. No error when there is none.
pub(crate) fn unlink(dir: &Dir, name: &str) -> Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::os("remove the record", dir.path().join(name), errno)),
    }
}

/// Opens a directory of records in `RunDir`, making what is missing.
pub(crate) fn make_directory(run_dir: &Path, name: &str) -> Result<Dir> {
    let records = Records::open(run_dir)?;
    match mkdirat(&records.dir, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) | Err(Errno::EEXIST) => checked(records.dir.child(name)?),
        Err(errno) => Err(Error::os("make the directory", run_dir.join(name), errno)),
    }
}

/// As `make_directory`, but makes nothing there.
pub(crate) fn directory(run_dir: &Path, name: &str) -> Result<Option<Dir>> {
    match Dir::open(run_dir).and_then(|dir| Records::checked(dir)?.dir.child(name)) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Ok(None),
        dir => checked(dir?).map(Some),
    }
}

/// Refuses one that others could write to.
fn checked(dir: Dir) -> Result<Dir> {
    if !is_ours(&dir.stat()?, SFlag::S_IFDIR) {
        return Err(Error::new("records must be in a directory of root's with mode 0700:")
            .at(dir.path())
            .hint("remove it"));
    }
    Ok(dir)
}

/// Whether it is of this kind, belongs to us, and nobody else can do anything with it.
fn is_ours(stat: &FileStat, kind: SFlag) -> bool {
    let mode = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    mode == kind && stat.st_uid == nix::unistd::geteuid().as_raw() && stat.st_mode & 0o077 == 0
}

/// `uid_1001,job_5,step_0`: a comma is in no name.
fn file_name(levels: &[String]) -> String {
    levels.join(",")
}

#[cfg(test)]
mod tests {
    use super::holder::Holder;
    use super::*;
    use crate::policy::Plan;

    fn record(owner: Owner) -> Record {
        let levels = ["uid_1", "job_2", "step_0"].map(str::to_owned).to_vec();
        Record { boot_id: "b".into(), pid_namespace: "p".into(), owner, base: "jobfence".into(), levels, shared: None }
    }

    #[test]
    fn what_is_written_is_understood_again() {
        let record = record(Owner { pid: 7, start: 9 });
        assert_eq!(Record::parse(&record.to_string()).unwrap(), record);
    }

    /// Held by somebody that is no process, by the longest names that there are.
    fn shared() -> Record {
        let id = |text: &str| Id::new(text.repeat(1000)).unwrap();
        let key = JobKey { node: Some(Name::new("n".repeat(64)).unwrap()), uid: u32::MAX, job: id("["), step: id(".") };
        let shared = Shared {
            holder: Holder::unit("a.service", "0123456789abcdef0123456789abcdef").unwrap(),
            opener: Owner { pid: 7, start: 9 },
            job: key.job.clone(),
            step: key.step.clone(),
            run: 3,
            controllers: vec!["cpu".into(), "memory".into()],
            log_from: Some(12),
            overlay: false,
            plan: Some(Plan { weighs: true, ..Plan::default() }),
        };
        let mut levels = key.parents();
        levels.push(key.step_dir(100));
        Record { levels, shared: Some(Box::new(shared)), ..record(Owner { pid: 1, start: 2 }) }
    }

    #[test]
    fn what_several_processes_share_is_understood_again_and_nothing_less() {
        let shared = shared();
        let text = shared.to_string();
        assert_eq!(Record::parse(&text).unwrap(), shared);
        for end in 0..text.len() - 1 {
            assert!(Record::parse(&text[..end]).is_err(), "{end}");
        }
        for (from, to) in [
            ("record 2", "record 1"),
            ("run=3", "run=03"),
            ("overlay=no", "overlay=maybe"),
            ("log_from=12", "log_from=x"),
            ("opener=process 7 9", "opener=manual"),
            ("holder=unit", "holder=somebody"),
            ("weighs=yes\n", "weighs=yes\nx=1\n"),
            ("plan=1", "plan=9"),
        ] {
            assert!(text.contains(from) && Record::parse(&text.replace(from, to)).is_err(), "{to}");
        }
        let mark = Record::parse(&shared.mark()).unwrap();
        assert!(mark.is_same(&shared) && mark.shared.unwrap().plan.is_none());
        assert!(shared.entry().name.len() + ",2147483647.18446744073709551615".len() <= 255, "the name of a file");
    }

    /// As the release before this one understands a record, which must not act on one that is not its own.
    #[test]
    fn an_older_release_takes_what_is_shared_for_that_of_a_living_process() {
        let header = Header::parse(&shared().to_string()).unwrap();
        assert_ne!(header.version, VERSION, "it does not understand more than this, and removes nothing then");
        assert_eq!(header.owner.pid, 1);
    }

    #[test]
    fn a_record_is_replaced_only_while_it_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let records = Records::open(&run).unwrap();
        let whole = shared();
        let mut begun = whole.clone();
        begun.shared.as_mut().unwrap().plan = None;
        let soon = || Instant::now() + std::time::Duration::from_secs(1);
        assert!(records.replace(&whole, soon()).is_err());
        assert!(records.claim(&begun).unwrap());
        records.replace(&whole, soon()).unwrap();
        let job = &whole.shared.as_ref().unwrap().job;
        assert_eq!(records.of_job(job).unwrap(), std::slice::from_ref(&whole));
        assert_eq!(records.of_job(&Id::new("[").unwrap()).unwrap(), []);
        records.forget(&whole.levels).unwrap();
        assert!(records.replace(&whole, soon()).is_err());
        assert_eq!(records.list().unwrap(), Vec::<Vec<String>>::new());
        let mut other = whole.clone();
        other.shared.as_mut().unwrap().opener.start += 1;
        assert!(records.claim(&other).unwrap());
        assert!(records.replace(&whole, soon()).is_err(), "another's");
        records.forget(&whole.levels).unwrap();
        assert!(Records::remove(&run).unwrap());
    }

    #[test]
    fn an_incomplete_or_forged_record_is_refused() {
        let text = record(Owner { pid: 7, start: 9 }).to_string();
        for end in 0..text.len() - 1 {
            assert!(Record::parse(&text[..end]).is_err(), "{end}");
        }
        for (from, to) in [
            ("uid_1", ".."),
            ("uid_1", ""),
            ("jobfence", "/"),
            ("=7", "=0"),
            ("record 1", "record 2"),
            ("record 1", "record 3"),
        ] {
            assert!(Record::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    /// Never to be changed: what a release writes here, others of the same node must understand.
    #[test]
    fn the_beginning_is_the_same_in_every_release() {
        let text = "jobfence-record 3\nboot_id=b\npid_namespace=p\nowner_pid=7\nowner_start=9\nwhat=ever\nend\n";
        let header = Header::parse(text).unwrap();
        assert_eq!((header.version.as_str(), header.owner), ("jobfence-record 3", Owner { pid: 7, start: 9 }));
        assert_eq!((header.boot_id.as_str(), header.pid_namespace.as_str()), ("b", "p"));
        let error = Record::parse(text).unwrap_err().to_string();
        assert!(error.contains("a record of another release") && error.contains("jobfence-record 3"), "{error}");
        let ours = record(header.owner).to_string();
        assert_eq!(Header::parse(&ours).unwrap(), Header { version: VERSION.into(), ..header });
        for end in 0..ours.len() - 1 {
            assert!(Header::parse(&ours[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn one_claims_the_other_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let record = record(Owner { pid: 7, start: 9 });
        assert!(records.claim(&record).unwrap());
        assert!(!records.claim(&record).unwrap());
        assert_eq!(records.list().unwrap(), std::slice::from_ref(&record.levels));
        assert_eq!(records.read(&record.levels).unwrap(), Some(record.clone()));
        records.forget(&record.levels).unwrap();
        records.forget(&record.levels).unwrap();
        assert!(records.list().unwrap().is_empty());
    }

    #[test]
    fn one_janitor_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let lock = records.lock_janitor().unwrap();
        assert!(lock.is_some());
        assert!(records.lock_janitor().unwrap().is_none());
        drop(lock);
        assert!(records.lock_janitor().unwrap().is_some());
    }

    #[test]
    fn a_directory_others_can_open_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Records::open(temp.path()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(jobfence-record 1\n)?(boot_id=.*\n)?(owner_pid=[0-9-]*\n)?(.*\n)*end") {
            let _ = Record::parse(&text);
            let _ = Header::parse(&text);
        }
    }
}
