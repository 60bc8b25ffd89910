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
    /// When it was looked at.
    pub looked: Option<Instant>,
    /// Whether the kernel has told since.
    pub is_heard: bool,
    /// Whether an earlier `jobfence hold` has lent it something, and its limit may not be what the file says.
    pub is_found: bool,
}

/// The least time between two looks at a job because the kernel tells of it, and at one that was just lent more. A program can have the
/// kernel tell as often as it likes, and can be lent more only now and then.
const LEAST: Duration = Duration::from_millis(100);
const LEAST_WHILE_GROWING: Duration = Duration::from_millis(10);
const JUST_NOW: Duration = Duration::from_secs(1);

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
            looked: None,
            is_heard: false,
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

    /// What the kernel tells of it is heard, unless it was since the last look.
    pub fn heard(&self) -> Option<&Notice> {
        self.notice.as_ref().filter(|_| !self.is_heard)
    }

    /// The kernel has told.
    pub fn hear(&mut self, now: Instant) {
        self.notice.iter().for_each(Notice::hear);
        self.is_heard = true;
        let is_growing = self.grown.is_some_and(|grown| now.saturating_duration_since(grown) < JUST_NOW);
        let least = if is_growing { LEAST_WHILE_GROWING } else { LEAST };
        let next = self.looked.map_or(now, |looked| now.max(looked + least));
        self.next = Some(self.next.map_or(next, |due| due.min(next)));
    }

    /// Looks at it. `None`: it has ended, or has no limit any more.
    pub fn look(&mut self, run_dir: &Path) -> Option<LookedAt> {
        (self.looked, self.is_heard) = (Some(Instant::now()), false);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const MIB: u64 = 1 << 20;

    /// A job of 800 MiB on v2, with files that only hold what is written, and an empty `RunDir`.
    fn job(limit: u64, charged: u64) -> (tempfile::TempDir, Borrower) {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("job");
        fs::create_dir(&place).unwrap();
        let write = |name: &str, text: &str| fs::write(place.join(name), text).unwrap();
        write("memory.max", &(limit * MIB).to_string());
        write("memory.high", "max");
        write("memory.current", &(charged * MIB).to_string());
        write("memory.stat", "inactive_file 0\nactive_file 0\n");
        let inode = fs::metadata(&place).unwrap().ino();
        let lent = JobLent {
            job: "7".to_owned(),
            uid: Some(nix::unistd::getuid().as_raw()),
            directory: place.display().to_string(),
            inode,
            grant: 800 * MIB,
            limit: limit * MIB,
            peak: limit * MIB,
            ..JobLent::default()
        };
        let directory = JobDirectory { version: Version::V2, path: place, inode };
        let job = Borrower { most: Percent::from_hundredths(15_000), ..Borrower::new(lent, directory, 7) };
        (temp, job)
    }

    fn share(limit: u64) -> JobShare {
        JobShare { limit: limit * MIB, is_claimed: false, soft: None }
    }

    fn limit(job: &Borrower) -> u64 {
        fs::read_to_string(job.directory.path.join("memory.max")).unwrap().parse::<u64>().unwrap() / MIB
    }

    #[test]
    fn a_job_of_which_the_kernel_tells_again_and_again_is_looked_at_ten_times_a_second() {
        let (temp, mut job) = job(800, 790);
        let run_dir = temp.path().join("run");
        let begin = Instant::now();
        let (mut looks, mut now) = (0, begin);
        while now < begin + Duration::from_secs(10) {
            job.hear(now);
            if job.next.is_some_and(|next| next <= now) {
                (looks, job.next, job.looked, job.is_heard) = (looks + 1, None, Some(now), false);
            }
            now += Duration::from_millis(1);
        }
        assert_eq!(looks, 100);
        job.next = None;
        job.grown = Some(now);
        job.hear(now);
        assert!(job.next.unwrap() <= now + LEAST_WHILE_GROWING && job.heard().is_none());
        drop(job.look(&run_dir));
        assert!(!job.is_heard);
    }

    #[test]
    fn without_a_record_no_limit_is_raised() {
        let (temp, mut job) = job(800, 790);
        // No directory can be made there.
        let run_dir = temp.path().join("file/run");
        fs::write(temp.path().join("file"), "").unwrap();
        let mut looked = job.look(&run_dir).unwrap();
        assert!(!job.apply(&run_dir, &mut looked, &share(900)));
        assert_eq!((limit(&job), job.lent.limit / MIB), (800, 800));
    }

    #[test]
    fn the_record_says_what_is_still_lent() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root's files are read");
        }
        let (temp, mut job) = job(1200, 1100);
        let run_dir = temp.path().join("run");
        // It uses more than it is to have, and keeps that.
        let known = || kept::all_living::<JobLent>(&run_dir).unwrap().first().map(|lent| lent.limit / MIB);
        let mut looked = job.look(&run_dir).unwrap();
        assert!(!job.apply(&run_dir, &mut looked, &share(800)));
        assert_eq!((known(), limit(&job)), (Some(1100), 1100));
        fs::write(job.directory.path.join("memory.current"), (100 * MIB).to_string()).unwrap();
        let mut looked = job.look(&run_dir).unwrap();
        assert!(job.apply(&run_dir, &mut looked, &share(800)));
        assert_eq!((known(), limit(&job)), (None, 800));
    }

    #[test]
    fn a_limit_of_somebody_elses_is_the_jobs_own() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root's files are read");
        }
        let (temp, mut job) = job(900, 100);
        let run_dir = temp.path().join("run");
        let mut set = |mib: u64, is_found| {
            fs::write(job.directory.path.join("memory.max"), (mib * MIB).to_string()).unwrap();
            job.is_found = is_found;
            let looked = job.look(&run_dir).unwrap();
            (looked.memory.grant / MIB, looked.memory.limit / MIB)
        };
        assert_eq!(set(900, false), (800, 900));
        // A killed hold has written the record alone: the limit becomes what that says.
        assert_eq!(set(800, true), (800, 900));
        assert_eq!(set(850, true), (800, 900));
        assert_eq!(set(1000, true), (1000, 1000));
        assert_eq!(set(700, false), (700, 700));
        // A new plan of the same job.
        job.plan(Some(700 * MIB));
        job.plan(Some(600 * MIB));
        assert_eq!((job.lent.grant / MIB, job.lent.lent() / MIB), (600, 100));
    }
}
