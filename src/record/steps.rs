// SPDX-License-Identifier: GPL-2.0-or-later
//! The directory of the records of steps, and its locks.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};

use super::files::{checked, link_new, open_run_dir, read, unlink};
use super::header::Header;
use super::roll::{self, Entry, Roll};
use super::shared::Shared;
use super::step::{Record, file_name};
use crate::error::{Error, Result};
use crate::job::{Id, job_dir};
use crate::log;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::process::Owner;

/// The directory of records.
#[derive(Debug)]
pub struct Records {
    dir: Dir,
}

/// In `RunDir`. A lock of its own, since the janitor holds that on `RunDir` for longer.
pub(super) const LIMITS: &str = "limits.lock";
/// Likewise, for changes of a running job's limits.
pub(super) const RESIZES: &str = "resizes.lock";
/// Likewise, for the memory limits of running jobs: so many locks, each of the jobs whose directories' numbers have one remainder.
pub(super) const MEMORY_LOCKS: u64 = 32;
/// Likewise, for choosing GPUs.
pub(super) const GPUS: &str = "gpus.lock";
/// Likewise, for CPUs.
pub(super) const CORES: &str = "cores.lock";
/// Likewise, for handing figures on to another node's card.
pub(super) const CARDS: &str = "cards.lock";
/// Likewise, for jobs' own directories.
pub(super) const PRIVATE: &str = "private.lock";
/// The name of such a lock.
pub(super) fn memory_lock(number: u64) -> String {
    format!("memory-{}.lock", number % MEMORY_LOCKS)
}

/// In `RunDir`, for records that have no name yet.
pub(super) const NEW: &str = "new";

impl Records {
    /// Opens `RunDir`, making its last component when it is missing, and refuses one that other users can open.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { dir: open_run_dir(path)? })
    }

    /// As `open`. `None`: the directory around it is missing, too, so there are no records.
    pub fn existing(path: &Path) -> Result<Option<Self>> {
        match Self::open(path) {
            Err(error) if error.is_gone() => Ok(None),
            records => records.map(Some),
        }
    }

    /// See [`roll::note`].
    pub fn note(&self, entries: &[Entry]) {
        roll::note(&self.dir, entries);
    }

    /// See [`Roll::read`].
    pub fn roll(&self, boot_id: &str) -> Result<Option<Roll>> {
        Roll::read(&self.dir, boot_id)
    }

    /// See [`Roll::read_for_turn`].
    pub fn roll_for_turn(&self, boot_id: &str) -> Result<Option<Roll>> {
        Roll::read_for_turn(&self.dir, boot_id)
    }

    /// The directory, for work on the roll.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The owners of all steps that are recorded in this pid namespace, with the users of their jobs.
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

    /// Records a step under the name of its directories. `Ok(false)`: the name is taken.
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

    /// The header of these directories' record, of any release; `None` when there is none.
    pub fn header(&self, levels: &[String]) -> Result<Option<Header>> {
        let name = file_name(levels);
        let Some(text) = read(&self.dir, &name)? else { return Ok(None) };
        Header::parse(&text).map(Some).map_err(|error| error.at(self.dir.path().join(name)))
    }

    /// How long ago the record of these directories was written; zero if the clock was set back since.
    pub fn age(&self, levels: &[String]) -> Result<Duration> {
        let name = file_name(levels);
        let file = self.dir.open_file(&name, OFlag::O_PATH)?;
        let failed = |errno| Error::os("look at the record", self.dir.path().join(&name), errno);
        let written = fstat(&file).map_err(failed)?.st_mtime;
        let written = Duration::from_secs(written.try_into().unwrap_or_default());
        Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(written))
    }

    /// Writes a record in place of the earlier one, if that is still there.
    pub fn replace(&self, record: &Record, deadline: Instant) -> Result<()> {
        let name = file_name(&record.levels);
        let gone = || Error::new("another process has closed the fence meanwhile:").at(self.dir.path().join(&name));
        let _lock = self.lock_closing(deadline)?;
        if !self.read(&record.levels)?.is_some_and(|recorded| recorded.is_same(record)) {
            return Err(gone());
        }
        let new = match mkdirat(&self.dir, NEW, Mode::from_bits_truncate(0o700)) {
            Ok(()) | Err(Errno::EEXIST) => checked(self.dir.child(NEW)?)?,
            Err(errno) => return Err(Error::os("make the directory", self.dir.path().join(NEW), errno)),
        };
        // Left by a process that died here.
        unlink(&new, &name)?;
        link_new(&new, &name, &record.to_string())?;
        renameat(&new, name.as_str(), &self.dir, name.as_str())
            .map_err(|errno| Error::os("write the record", self.dir.path().join(&name), errno))
    }

    /// Waits for the lock under which one process changes or removes what others may change or remove, too. It is the janitor's.
    pub fn lock_closing(&self, deadline: Instant) -> Result<Lock> {
        Lock::on(&self.dir, ".", deadline)
    }

    /// The shared records of a job, also those of another boot.
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

    /// Removes the record of these directories. No error if there is none.
    pub fn forget(&self, levels: &[String]) -> Result<()> {
        unlink(&self.dir, &file_name(levels))
    }

    /// As `forget`, for a shared record: a process that was about to replace it may have died.
    pub fn forget_shared(&self, levels: &[String]) -> Result<()> {
        match self.dir.child(NEW) {
            Ok(new) => unlink(&new, &file_name(levels))?,
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
        self.forget(levels)
    }

    /// The directories of every recorded step, unordered.
    pub fn list(&self) -> Result<Vec<Vec<String>>> {
        let names = self.dir.list(false)?;
        Ok(names.iter().map(|name| name.split(',').map(str::to_owned).collect()).collect())
    }

    /// Takes the janitor's lock. `None`: another janitor is at work, and will do the same.
    pub fn lock_janitor(&self) -> Result<Option<Lock>> {
        Lock::try_on(&self.dir, ".")
    }

    /// Waits for the lock of jobs' limits: a quota is read and then lowered, and no other process may write between the two. It is held
    /// for less than a millisecond, unless the kernel takes longer for one of the writes.
    pub fn lock_limits(&self, deadline: Instant) -> Result<Lock> {
        self.lock(LIMITS, deadline)
    }

    /// Waits for the lock of changes of running jobs' limits. It is held as long as the kernel looks for memory to take back, so no step
    /// that begins waits for it.
    pub fn lock_resizes(&self, deadline: Instant) -> Result<Lock> {
        self.lock(RESIZES, deadline)
    }

    /// Waits for the lock of a running job's memory limit, by the number of the job's directory. `jobfence hold` has it while it lends or
    /// takes back, and who gives the job another limit has it from the first look to the last write. It is held as long as the kernel
    /// takes memory back, so no step that begins waits for it.
    ///
    /// Several jobs have one lock: no process may wait for a second one, but by [`Self::lock_memories`].
    pub fn lock_memory(&self, inode: u64, deadline: Instant) -> Result<Lock> {
        self.lock(&memory_lock(inode), deadline)
    }

    /// As `lock_memory`, for several directories.
    pub fn lock_memories(&self, inodes: impl Iterator<Item = u64>, deadline: Instant) -> Result<Vec<Lock>> {
        let numbers: BTreeSet<u64> = inodes.map(|inode| inode % MEMORY_LOCKS).collect();
        numbers.into_iter().map(|number| self.lock_memory(number, deadline)).collect()
    }

    /// As `lock_memory`, without waiting. `None`: another process has it.
    pub fn try_lock_memory(&self, inode: u64) -> Result<Option<Lock>> {
        let name = memory_lock(inode);
        self.dir.ensure(&name)?;
        Lock::try_on(&self.dir, &name)
    }

    /// Waits for the lock of choosing GPUs: it is held from the check of which are taken until the chosen ones are recorded.
    pub fn lock_gpus(&self, deadline: Instant) -> Result<Lock> {
        self.lock(GPUS, deadline)
    }

    /// Waits for the lock of handing figures of this node on to a card. A lock on the job's own directory would not do: users can open
    /// that.
    pub fn lock_cards(&self, deadline: Instant) -> Result<Lock> {
        self.lock(CARDS, deadline)
    }

    /// Waits for the lock of jobs' own directories: it is held while they are made, and while it is found out whether a job needs them.
    pub fn lock_private(&self, deadline: Instant) -> Result<Lock> {
        self.lock(PRIVATE, deadline)
    }

    /// Whether a step of the job with these directories above its steps' is recorded, other than the one with the directories `except`.
    pub fn has_step_of(&self, parents: &[String], except: Option<&[String]>) -> Result<bool> {
        let is_of = |levels: &Vec<String>| {
            levels.split_last().is_some_and(|(_, above)| above == parents) && except != Some(levels.as_slice())
        };
        Ok(self.list()?.iter().any(is_of))
    }

    fn lock(&self, name: &str, deadline: Instant) -> Result<Lock> {
        match Lock::on(&self.dir, name, deadline) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                self.dir.ensure(name)?;
                Lock::on(&self.dir, name, deadline)
            }
            lock => lock,
        }
    }

    /// The same of choosing CPUs.
    pub fn lock_cores(&self, deadline: Instant) -> Result<Lock> {
        self.lock(CORES, deadline)
    }

    /// What the records of this boot say that have GPUs.
    pub fn with_gpus(&self, boot_id: &str) -> Result<Vec<Shared>> {
        self.of_boot(boot_id).map(|found| found.into_iter().filter(|shared| !shared.gpus.is_empty()).collect())
    }

    /// What the records of this boot say. One that is not understood is another release's, and has none that we know of.
    pub fn of_boot(&self, boot_id: &str) -> Result<Vec<Shared>> {
        let mut found = Vec::new();
        for levels in self.list()? {
            match self.read(&levels) {
                Ok(record) => {
                    found.extend(record.filter(|record| record.boot_id == boot_id).and_then(|record| record.shared))
                }
                Err(error) => log::debug!("left alone: {error}"),
            }
        }
        Ok(found.into_iter().map(|shared| *shared).collect())
    }
}
