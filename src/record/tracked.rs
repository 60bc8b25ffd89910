// SPDX-License-Identifier: GPL-2.0-or-later
//! A step that runs without a fence (`OnError=warn`): its processes are recorded when they are seen, and ended if it leaves them
//! behind.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::Result;
use crate::host::Host;
use crate::job::JobKey;
use crate::log;
use crate::record::files::{make_directory, open_run_dir};
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::lock::{Lock, ProcessLock};
use crate::sys::process::{self, Owner};

mod members;
mod record;

pub use members::{Others, VARIABLE, has_daemon, is_fenced, is_in_a_step, is_of, mark, marked, of_living};
pub(crate) use record::DIRECTORY;
use record::LOCK_TIMEOUT;
pub use record::{Tracked, TrackedRecords};

/// A step of this process that runs without a fence. It keeps nothing open: with contain_spank a descriptor that one callback has
/// opened is another file in the next.
#[derive(Debug)]
pub struct Tracker {
    tracked: Tracked,
    run_dir: PathBuf,
}

impl Tracker {
    /// Tracks the step's processes from now on, as far as that is possible; `None` for root's.
    pub fn begin(host: &Host, run_dir: &Path, key: &JobKey) -> Option<Self> {
        let tracked = Tracked::new(host, key)
            .inspect_err(|error| log::error!("{key}: the step's processes are not tracked either: {error}"))
            .ok()
            .flatten()?;
        let mut tracker = Self { tracked, run_dir: run_dir.to_owned() };
        tracker.note(Instant::now() + LOCK_TIMEOUT);
        Some(tracker)
    }

    /// Adds a process that the daemon has started for the step.
    pub fn add(&mut self, process: Owner) {
        self.tracked.seen.insert(process);
        self.note(Instant::now() + LOCK_TIMEOUT);
    }

    fn note(&mut self, deadline: Instant) {
        let deadline = deadline.min(Instant::now() + LOCK_TIMEOUT);
        let records = TrackedRecords::open(&self.run_dir);
        let written = records.and_then(|records| records.write(&mut self.tracked, deadline));
        if let Err(error) = written {
            log::error!(
                "{}: cannot record the step's processes, so they may outlive the step: {error}",
                self.tracked.name()
            );
        }
    }

    /// Ends all processes that can be seen, and removes the record unless `jobfence hold` runs, which sees more.
    pub fn end(&mut self, host: &Host, deadline: Instant) -> Result<usize> {
        // Adds the processes that others have seen.
        self.note(deadline);
        let ended = self.tracked.end(host, None, deadline)?;
        if !is_watched(&self.run_dir)
            && let Some(records) = TrackedRecords::existing(&self.run_dir)?
        {
            records.forget(&self.tracked)?;
        }
        Ok(ended)
    }
}

/// In `RunDir`; `jobfence hold` has the lock on it.
pub(crate) const WATCHER: &str = "hold.lock";

/// Takes the lock of `jobfence hold`: while it is held, other processes leave to this one what they cannot see. `None`: another process
/// has it.
pub fn watch(run_dir: &Path) -> Result<Option<Lock>> {
    let run_dir = open_run_dir(run_dir)?;
    run_dir.ensure(WATCHER)?;
    Lock::try_on(&run_dir, WATCHER)
}

/// In `RunDir`; one `jobfence hold` has the lock on the file in it as long as it lives. A file in `RunDir` itself would be read as a record,
/// and then the lock would be lost.
pub(crate) const ONLY: &str = "hold.only";
const LOCK: &str = "lock";

/// The lock that only one `jobfence hold` has in a `RunDir`.
#[derive(Debug)]
pub struct OnlyLock(ProcessLock);

impl OnlyLock {
    /// Takes it. `Ok(Err(…))`: the process with this number has it; 0: one that is not seen from here.
    pub fn take(run_dir: &Path) -> Result<std::result::Result<Self, i32>> {
        Ok(ProcessLock::try_on(&make_directory(run_dir, ONLY)?, LOCK)?.map(Self))
    }

    /// Whether it is the lock of this `RunDir` still, by whatever name. The directory may have been deleted, and made anew.
    pub fn is_of(&self, run_dir: &Path) -> Result<bool> {
        match open_run_dir(run_dir)?.child(ONLY) {
            Ok(dir) => self.0.is_on(&dir, LOCK),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether `jobfence hold` runs, and so reads the environments of processes before a step is forgotten.
pub fn is_watched(run_dir: &Path) -> bool {
    open_run_dir(run_dir).is_ok_and(|dir| is_watched_in(&dir))
}

/// As `is_watched`, for an open directory.
pub fn is_watched_in(run_dir: &Dir) -> bool {
    Lock::is_held(run_dir, WATCHER).unwrap_or(false)
}

/// Whether the record with this file name is there. It is not read.
pub fn is_noted_in(run_dir: &Dir, name: &str) -> bool {
    run_dir.has(&format!("{DIRECTORY}/{name}"))
}

/// What became of a tracked step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackedEnd {
    /// Its daemon lives; new processes have been recorded.
    Alive,
    /// This many processes were ended. `jobfence hold` checks whether there are more.
    Watched(usize),
    /// This many processes were ended. None is left, and the record is removed.
    Ended(usize),
}

/// Looks at a tracked step: ends what a dead daemon has left, and records new processes of a living one. `others`: see
/// [`Tracked::processes`].
pub fn look_after(
    host: &Host,
    run_dir: &Path,
    records: &TrackedRecords,
    tracked: &Tracked,
    others: Option<Others<'_>>,
    deadline: Instant,
) -> Result<TrackedEnd> {
    if tracked.boot_id != host.boot_id {
        records.forget(tracked)?;
        return Ok(TrackedEnd::Ended(0));
    }
    // A record of another pid namespace is that one's janitor's.
    if tracked.pid_namespace != host.pid_namespace {
        return Ok(TrackedEnd::Alive);
    }
    if !tracked.owner.is_alive(&host.proc)? {
        let ended = tracked.end(host, others, deadline)?;
        if others.is_none() && is_watched(run_dir) {
            return Ok(TrackedEnd::Watched(ended));
        }
        records.forget(tracked)?;
        return Ok(TrackedEnd::Ended(ended));
    }
    // Only a process that looks again and again does this: a launch has no time for it.
    if others.is_some() {
        let mut now = tracked.clone();
        let living = sorted::set(now.look(host, others, &mut None, deadline)?);
        // A dead process is kept while a session or a group has its number: in the next look it leads to their members.
        let all = process::all(&host.proc)?;
        let numbers = sorted::set(all.iter().flat_map(|process| [process.session, process.group]));
        sorted::retain(&mut now.seen, |one| living.contains(one) || numbers.contains(&one.pid));
        if now.seen != tracked.seen {
            records.replace(tracked, &now)?;
        }
    }
    Ok(TrackedEnd::Alive)
}
