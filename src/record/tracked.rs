// SPDX-License-Identifier: GPL-2.0-or-later
//! A step that runs without a fence (`OnError=warn`): whoever looks notes down its processes, and ends those that it leaves.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::Result;
use crate::host::Host;
use crate::job::JobKey;
use crate::log;
use crate::record::files::open_run_dir;
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::process::{self, Owner};

mod members;
mod record;

pub use members::{Others, VARIABLE, has_daemon, is_fenced, is_in_a_step, is_of, mark, marked, of_living};
pub(crate) use record::DIRECTORY;
use record::LOCK_TIMEOUT;
pub use record::{Tracked, TrackedRecords};

/// A step of this process's that runs without a fence. It keeps nothing open: with contain_spank what was opened in one callback is
/// another file in the next.
#[derive(Debug)]
pub struct Tracker {
    tracked: Tracked,
    run_dir: PathBuf,
}

impl Tracker {
    /// From now on its processes are tracked, as far as that is possible; `None` for root's.
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

    /// Ends all processes that can be seen, and forgets the step unless `jobfence hold` will look better.
    pub fn end(&mut self, host: &Host, deadline: Instant) -> Result<usize> {
        // Whom others have seen.
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

/// Beside the records; `jobfence hold` has the lock on it.
pub(crate) const WATCHER: &str = "hold.lock";

/// For as long as it is kept, others leave to us what they cannot see. `None`: another process has it.
pub fn watch(run_dir: &Path) -> Result<Option<Lock>> {
    let run_dir = open_run_dir(run_dir)?;
    run_dir.ensure(WATCHER)?;
    Lock::try_on(&run_dir, WATCHER)
}

/// Whether `jobfence hold` runs, and so reads the environments of processes before a step is forgotten.
pub fn is_watched(run_dir: &Path) -> bool {
    open_run_dir(run_dir).is_ok_and(|dir| is_watched_in(&dir))
}

/// The same, where the directory is open.
pub fn is_watched_in(run_dir: &Dir) -> bool {
    Lock::is_held(run_dir, WATCHER).unwrap_or(false)
}

/// Whether the record with this file name is there. It is not read.
pub fn is_noted_in(run_dir: &Dir, name: &str) -> bool {
    run_dir.has(&format!("{DIRECTORY}/{name}"))
}

/// What became of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackedEnd {
    /// Its daemon lives; new processes have been noted down.
    Alive,
    /// So many were ended, and `jobfence hold` looks whether that is all.
    Watched(usize),
    /// Nobody is left, and it is forgotten; so many were ended.
    Ended(usize),
}

/// Looks at one: ends what a dead daemon has left, and notes down who has come to the step of a living one. `others`: see
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
    // Of another pid namespace: it is its own janitor's.
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
    // Only those who look again and again: who begins a step has no time for it.
    if others.is_some() {
        let mut now = tracked.clone();
        let living = sorted::set(now.look(host, others, &mut None, deadline)?);
        // The dead are of use while a session or a group bears their number, which shows in the next look, too.
        let all = process::all(&host.proc)?;
        let numbers = sorted::set(all.iter().flat_map(|process| [process.session, process.group]));
        sorted::retain(&mut now.seen, |one| living.contains(one) || numbers.contains(&one.pid));
        if now.seen != tracked.seen {
            records.replace(tracked, &now)?;
        }
    }
    Ok(TrackedEnd::Alive)
}
