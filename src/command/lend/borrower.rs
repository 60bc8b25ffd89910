// SPDX-License-Identifier: GPL-2.0-or-later
//! One job that may be lent memory: what its file says, and what its directory has.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::bytes::mebibytes;
use jobfence::cgroup::layout::Version;
use jobfence::config::Percent;
use jobfence::error::Result;
use jobfence::sys::dir::Dir;

use super::directory::{JobDirectory, SeenMemory};
use super::files::JobLent;
use super::notice::Notice;
use super::policy::{JobMemory, JobShare};
use crate::kept;
use crate::living::user_name;
use crate::table::printable;

/// For so long a job keeps what it was lent last, also if it does not use it.
const GROWING: Duration = Duration::from_secs(10);

/// One job.
#[derive(Debug)]
pub struct Borrower {
    pub lent: JobLent,
    pub directory: JobDirectory,
    pub uid: u32,
    /// The most that its limit may be, as a share of the grant.
    pub most: Percent,
    /// What its record says of its own limit: a change of that is a change of the grant.
    pub planned: Option<u64>,
    /// When it was lent more.
    pub grown: Option<Instant>,
    /// Since when others have reserved what it uses.
    pub claimed: Option<Instant>,
    pub notice: Option<Notice>,
    pub next: Option<Instant>,
    /// Whether an earlier `jobfence hold` has lent it something, and its limit may not be what the file says.
    pub is_found: bool,
}

/// What a look has found.
pub struct LookedAt {
    pub dir: Dir,
    pub seen: SeenMemory,
    pub memory: JobMemory,
}

impl Borrower {
    /// `None`: it has no limit.
    pub fn new(lent: JobLent, directory: JobDirectory, uid: u32) -> Self {
        Self {
            lent,
            directory,
            uid,
            most: Percent::HUNDRED,
            planned: None,
            grown: None,
            claimed: None,
            notice: None,
            next: Some(Instant::now()),
            is_found: false,
        }
    }

    /// A new value in the job's record is its grant from now on.
    pub fn plan(&mut self, planned: Option<u64>) {
        if let Some(grant) = planned.filter(|_| self.planned.is_some() && self.planned != planned) {
            self.lent.grant = grant;
        }
        self.planned = planned.or(self.planned);
    }

    /// Looks at it. `None`: it has ended, or has no limit any more.
    pub fn look(&mut self, run_dir: &Path) -> Option<LookedAt> {
        let dir = self.directory.open()?;
        let mut seen = self.directory.look(&dir)?;
        let mut limit = seen.limit?;
        if std::mem::take(&mut self.is_found) {
            limit = self.as_the_file_says(run_dir, &dir, seen)?;
            seen = self.directory.look(&dir)?;
        } else if limit != self.lent.limit {
            // Somebody else has changed it, such as the scheduler: that is the job's own limit now.
            (self.lent.grant, self.lent.limit, self.lent.peak) = (limit, limit, limit);
            self.save(run_dir).ok()?;
        }
        let memory = JobMemory {
            grant: self.lent.grant,
            limit,
            used: seen.used,
            most: self.most,
            is_growing: self.grown.is_some_and(|grown| grown.elapsed() < GROWING),
            is_ahead: self.directory.version == Version::V2,
        };
        Some(LookedAt { dir, seen, memory })
    }

    /// Brings the limit to what the file says, if an earlier `jobfence hold` has ended between the two. One that is above is of somebody
    /// else, as the file is written first: then that is the job's own.
    fn as_the_file_says(&mut self, run_dir: &Path, dir: &Dir, seen: SeenMemory) -> Option<u64> {
        let limit = seen.limit?;
        let is_ours = (self.lent.grant..=self.lent.limit).contains(&limit);
        if !is_ours {
            (self.lent.grant, self.lent.limit, self.lent.peak) = (limit, limit, limit);
        } else if limit < self.lent.limit {
            let raised = self.directory.raise(dir, (self.lent.grant, self.lent.limit));
            if let Err(error) = raised {
                log::error!("{}: its limit of memory cannot be made what the record says: {error}", self.name());
                self.lent.limit = limit;
            }
        }
        self.save(run_dir).ok()?;
        Some(self.lent.limit)
    }

    /// Gives it its share, or takes back, as far as that can be done at once. Returns whether its limit is what it is to be.
    pub fn apply(&mut self, run_dir: &Path, looked: &mut LookedAt, share: &JobShare) -> bool {
        let before = self.lent.lent();
        let done = match looked.memory.limit {
            limit if share.limit > limit => self.raise(run_dir, &looked.dir, share.limit),
            limit if share.limit < limit => self.lower(run_dir, looked, share.limit),
            _ => self.directory.follow(&looked.dir, (self.lent.grant, self.lent.limit)),
        };
        looked.memory.limit = self.lent.limit;
        let done = done.and_then(|()| self.soften(&looked.dir, share));
        if let Err(error) = &done
            && self.directory.open().is_some()
        {
            log::error!("{}: its limit of memory cannot be changed: {error}", self.name());
        }
        self.say(before);
        self.lent.limit == share.limit
    }

    /// The file first: wherever this process ends, no limit is above what it says.
    fn raise(&mut self, run_dir: &Path, dir: &Dir, limit: u64) -> Result<()> {
        let before = self.lent.clone();
        self.lent.limit = limit;
        self.lent.peak = self.lent.peak.max(limit);
        kept::write(run_dir, &self.lent).inspect_err(|_| self.lent = before.clone())?;
        self.grown = Some(Instant::now());
        self.directory.raise(dir, (self.lent.grant, limit)).inspect_err(|_| {
            // Of its steps some may have been raised, and the job's own limit holds.
            self.lent = before;
            let _ = self.save(run_dir);
        })
    }

    /// The file last.
    fn lower(&mut self, run_dir: &Path, looked: &LookedAt, limit: u64) -> Result<()> {
        self.lent.limit = self.directory.lower(&looked.dir, looked.seen, limit)?;
        self.save(run_dir)
    }

    /// Where the kernel slows it, on v2: what it has of its own goes up with what is lent, and what is to be heard of may be less.
    fn soften(&self, dir: &Dir, share: &JobShare) -> Result<()> {
        let is_back = self.lent.limit == share.limit;
        if self.directory.version == Version::V1 || !is_back {
            return Ok(());
        }
        let (high, lent) = (self.lent.high, self.lent.lent());
        let soft = share.soft.filter(|_| lent > 0);
        self.directory.set_soft(dir, high.map(|high| high.saturating_add(lent)).into_iter().chain(soft).min())?;
        high.map_or(Ok(()), |high| self.directory.follow_softly(dir, high, lent))
    }

    /// A job that is lent nothing has no file.
    pub fn save(&self, run_dir: &Path) -> Result<()> {
        if self.lent.lent() > 0 {
            return kept::write(run_dir, &self.lent);
        }
        kept::remove(run_dir, &self.lent);
        Ok(())
    }

    /// The first piece and the last are in the log.
    fn say(&mut self, before: u64) {
        let (now, own) = (self.lent.lent(), mebibytes(self.lent.grant));
        let (name, user) = (self.name(), user_name(self.uid));
        if before == 0 && now > 0 {
            log::info!("{name} of {user} is lent {} beyond its limit of {own} (MemoryPool)", mebibytes(now));
        } else if before > 0 && now == 0 {
            let peak = mebibytes(self.lent.peak.saturating_sub(self.lent.grant));
            log::info!("{name} of {user} has given back what it was lent beyond its limit of {own}: {peak} at most");
            self.lent.peak = self.lent.grant;
        }
    }

    pub fn name(&self) -> String {
        format!("job {}", printable(&self.lent.job))
    }
}
