// SPDX-License-Identifier: GPL-2.0-or-later
//! One job that may be lent memory: what its file says, and what its directory has.
//!
//! After each write the kernel's limit is read, and that is what the file says. What cannot be read or written changes nothing of that.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::bytes::mebibytes;
use jobfence::config::Percent;
use jobfence::error::Error;
use jobfence::report;
use jobfence::sys::dir::Dir;
use jobfence::sys::lock::Lock;

use super::directory::{JobDirectory, LookFailure, Lower, SeenMemory, resized};
use super::files::JobLent;
use super::loan_note::LoanTold;
use super::lowering::Lowering;
use super::mark::{self, Marks, ProcessView};
use super::notice::{CALM, NeedNotice};
use super::policy::{JobMemory, NodeMemory};
use super::touched::Touched;
use crate::armed::{self, UseLevel};
use crate::kept;
use crate::living::user_name;
use crate::table::printable;

/// For so long a job keeps what it was lent last, also if it does not use it.
const GROWING: Duration = Duration::from_secs(10);

/// For so long its processes keep their mark after it has used what it is lent: it may do so again between two looks.
const MARKED: Duration = Duration::from_secs(5);

/// The least time between two looks at a job because the kernel tells of it, and at one that was just lent more. A program can have the
/// kernel tell as often as it likes, and can be lent more only now and then.
const LEAST: Duration = Duration::from_millis(100);
const LEAST_WHILE_GROWING: Duration = Duration::from_millis(10);
const JUST_NOW: Duration = Duration::from_secs(1);

/// The memory of a job that was ended is free when its processes are gone. For so long no other is ended.
const DRAINS: Duration = Duration::from_secs(10);

/// A job that lives on so long after that was not ended, and its user is not told so any more.
const LIVES_ON: Duration = Duration::from_secs(60);

/// After something failed.
const AGAIN: Duration = Duration::from_secs(1);

/// One job.
#[derive(Debug)]
pub struct Borrower {
    pub lent: JobLent,
    pub directory: JobDirectory,
    pub uid: u32,
    /// The most that its limit may be, as a share of the grant.
    pub most: Percent,
    /// Whether it may be lent what others have reserved and not touched, and be ended for that.
    pub is_scavenger: bool,
    /// Whether it is requeued then, if its user allows that.
    pub is_requeued: bool,
    /// What it has not touched of its own.
    pub touched: Touched,
    /// When it was ended, and when that is found not to be so.
    ended: Option<Instant>,
    lives_on: Option<Instant>,
    /// The most that the records of its steps say of its own limit.
    planned: Option<u64>,
    /// When it was lent more.
    grown: Option<Instant>,
    pub notice: Option<NeedNotice>,
    pub next: Option<Instant>,
    /// What was seen of it last.
    pub memory: Option<JobMemory>,
    /// Whether it was there at the last look, and could not be read.
    pub is_unseen: bool,
    /// When it was looked at.
    looked: Option<Instant>,
    /// Whether the kernel has told since.
    is_heard: bool,
    /// Whether an earlier `jobfence hold` has lent it something. What that was about to write is not known, so that a limit between the
    /// grant and what the file says is nobody else's.
    is_found: bool,
    /// Whether a write of ours may have been done by half.
    is_unsettled: bool,
    /// When that is tried again.
    settle: Option<Instant>,
    /// The process that lowers its limit.
    lowering: Option<Lowering>,
    /// The last error that was reported.
    said: Option<String>,
    marks: Marks,
    note: LoanTold,
    /// When it was seen last to use what it is lent.
    above: Option<Instant>,
    /// When its processes are to be looked at again, also if nothing else is to be done.
    pub mark_again: Option<Instant>,
}

impl Borrower {
    pub fn new(lent: JobLent, directory: JobDirectory, uid: u32) -> Self {
        Self {
            lent,
            directory,
            uid,
            most: Percent::HUNDRED,
            is_scavenger: false,
            is_requeued: false,
            touched: Touched::new(Instant::now()),
            ended: None,
            lives_on: None,
            planned: None,
            grown: None,
            notice: None,
            next: Some(Instant::now()),
            memory: None,
            is_unseen: false,
            looked: None,
            is_heard: false,
            is_found: false,
            is_unsettled: false,
            settle: None,
            lowering: None,
            said: None,
            marks: Marks::default(),
            note: LoanTold::default(),
            above: None,
            mark_again: None,
        }
    }

    /// One to which an earlier process has lent memory. What that has just told the job's user is done: a job that it was about to end is
    /// ended.
    pub fn found(lent: JobLent, directory: JobDirectory, uid: u32) -> Self {
        let note = LoanTold::found(&directory);
        let (since, now) = (note.since_end(), Instant::now());
        let ended = since.filter(|since| *since < DRAINS).map(|_| now);
        let lives_on = since.map(|since| now + LIVES_ON.saturating_sub(since));
        Self { is_found: true, is_unsettled: true, note, ended, lives_on, ..Self::new(lent, directory, uid) }
    }

    /// The most that the records of its steps say of its own limit. If that goes up, what was lent becomes its own. Down goes its own limit
    /// only with the kernel's: a record may say what the kernel has refused.
    pub fn plan(&mut self, planned: Option<u64>) {
        if let Some(planned) = planned
            && self.planned.is_some_and(|before| before < planned)
        {
            self.lent.grant = self.lent.grant.max(planned.min(self.lent.limit));
        }
        self.planned = planned.or(self.planned);
    }

    /// What the kernel tells of it is heard, unless it was since the last look.
    pub fn heard(&self) -> Option<&NeedNotice> {
        self.notice.as_ref().filter(|_| !self.is_heard)
    }

    /// The kernel has told.
    pub fn hear(&mut self, now: Instant) {
        self.notice.iter().for_each(NeedNotice::hear);
        self.is_heard = true;
        let is_growing = self.grown.is_some_and(|grown| now.saturating_duration_since(grown) < JUST_NOW);
        let least = if is_growing { LEAST_WHILE_GROWING } else { LEAST };
        let next = self.looked.map_or(now, |looked| now.max(looked + least));
        self.next = Some(self.next.map_or(next, |due| due.min(next)));
    }

    /// Whether its record must stay when no step of it is seen.
    pub fn has_loan(&self) -> bool {
        self.lent.lent() > 0 || self.lent.marked || self.is_unsettled || self.lowering.is_some()
    }

    /// Whether a process lowers its limit.
    pub fn is_lowering(&self) -> bool {
        self.lowering.is_some()
    }

    /// The process that lowers its limit, of a job that has ended.
    pub fn into_lowering(self) -> Option<Lowering> {
        self.lowering
    }

    /// Looks at it. `Ok(false)`: it is there, and nothing is known of it now.
    pub fn look(&mut self, run_dir: &Path) -> Result<bool, LookFailure> {
        (self.looked, self.is_heard, self.is_unseen) = (Some(Instant::now()), false, false);
        let seen = self.seen(run_dir).and_then(|seen| match seen {
            Some(seen) => Ok(Some((seen, seen.limit.ok_or(LookFailure::Gone)?))),
            None => Ok(None),
        });
        match seen {
            Ok(Some((seen, limit))) => self.see(run_dir, seen, limit),
            Ok(None) => {
                self.next = Some(Instant::now() + LEAST);
                return Ok(false);
            }
            Err(LookFailure::Gone) => return Err(LookFailure::Gone),
            Err(LookFailure::Failed(error)) => {
                self.is_unseen = true;
                let name = self.name();
                self.say_once(format!("{name}: its memory cannot be looked at, and what it is lent stays: {error}"));
                self.next = Some(Instant::now() + AGAIN);
            }
        }
        Ok(!self.is_unseen)
    }

    /// What the kernel has. `None`: `jobfence resize` is just about to change that.
    fn seen(&self, run_dir: &Path) -> Result<Option<SeenMemory>, LookFailure> {
        let dir = self.directory.open()?;
        let seen = self.directory.look(&dir)?;
        if !self.is_resized(&seen) {
            return Ok(Some(seen));
        }
        // The note comes before the limit, and goes again if the limit is refused.
        match self.directory.lock(run_dir).map_err(LookFailure::Failed)? {
            Some(_lock) => self.directory.look(&dir).map(Some),
            None => Ok(None),
        }
    }

    /// Whether `jobfence resize` has given it something else since.
    fn is_resized(&self, seen: &SeenMemory) -> bool {
        seen.resized.is_some() && seen.resized != self.lent.resized
    }

    /// Takes what the kernel has: what somebody else has written is the job's own from now on, such as the scheduler.
    fn see(&mut self, run_dir: &Path, seen: SeenMemory, limit: u64) {
        let is_uncertain = self.is_found || self.is_unsettled || self.lowering.is_some();
        let is_ours = is_uncertain && (self.lent.grant..=self.lent.limit).contains(&limit);
        let (before, was_unsettled) = (self.lent.clone(), self.is_unsettled);
        // Also if that is just what it was lent.
        let is_new = limit != self.lent.limit && !is_ours || self.is_resized(&seen);
        (self.lent.limit, self.lent.resized) = (limit, seen.resized);
        if is_new {
            (self.lent.grant, self.lent.peak, self.is_found) = (limit, limit, false);
        }
        if !is_uncertain || is_new {
            self.lent.swap = seen.swap;
        }
        if self.lowering.is_none() {
            // Without a limit of swap there is nothing that could be done by half.
            let is_right = seen.swap.is_none() || seen.swap == self.lent.swap;
            self.is_unsettled &= !is_right || self.settle.is_none();
        }
        if self.lent != before || self.is_unsettled != was_unsettled {
            self.save_or_say(run_dir);
        }
        let lent = self.lent.lent();
        self.note.follow(&self.directory, &self.lent);
        self.say(&before);
        self.memory = Some(JobMemory {
            grant: self.lent.grant,
            limit: self.lent.grant + lent,
            used: seen.used,
            most: self.most,
            is_growing: self.grown.is_some_and(|grown| grown.elapsed() < GROWING),
            is_scavenger: self.is_scavenger,
            may_end: false,
            uid: self.uid,
        });
        self.touched.see(Instant::now(), seen.used, crate::idle::speed());
        if self.memory.is_some_and(|memory| memory.uses_loan()) {
            self.above = Some(Instant::now());
        }
        self.live_on();
    }

    /// Withdraws that it was ended, if it lives. One that did not die is left alone from then on; one that was not to die after all, since it
    /// has freed what it was lent, is as any other.
    fn live_on(&mut self) {
        if self.lives_on.is_some_and(|due| due <= Instant::now()) {
            self.lives_on = None;
            self.note.withdraw(&self.directory);
            self.ended = self.ended.filter(|_| self.known().lent_in_use() > 0);
        }
    }

    /// What is known of it for all others: if it was never seen, it uses all that it has.
    pub fn known(&self) -> JobMemory {
        let limit = self.lent.limit.max(self.lent.grant);
        let (grant, most, is_scavenger) = (self.lent.grant, self.most, self.is_scavenger);
        let (uid, may_end) = (self.uid, self.may_end());
        let unseen = JobMemory { grant, limit, used: limit, most, is_growing: true, is_scavenger, may_end, uid };
        self.memory.map_or(unseen, |memory| JobMemory { most, is_scavenger, may_end, ..memory })
    }

    /// Whether the process that lowers its limit has ended. Then it is to be looked at.
    pub fn has_lowered(&mut self) -> bool {
        let name = self.name();
        match &mut self.lowering {
            Some(lowering) if lowering.has_ended() => {
                // What it has written is seen at the next look.
                (self.lowering, self.is_unsettled) = (None, true);
                (self.settle, self.next) = (Some(Instant::now() + CALM), Some(Instant::now()));
                return true;
            }
            Some(lowering) => {
                if lowering.hangs_now() {
                    log::error!(
                        "{name}: its limit of memory is not lowered, since the kernel waits: is a file system hung?"
                    );
                }
                self.next = Some(Instant::now() + lowering.pause());
            }
            None => {}
        }
        false
    }

    /// Whether it was ended so shortly ago that its memory may soon be free. One that does not die then stands in nobody's way.
    pub fn is_ending(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() < DRAINS) && self.known().lent_in_use() > 0
    }

    /// When it is to be looked at whether it lives on.
    pub fn lives_on(&self) -> Option<Instant> {
        self.lives_on
    }

    /// Whether it may be ended: only a scavenger that was seen just now.
    fn may_end(&self) -> bool {
        let is_seen = self.memory.is_some() && !self.is_unseen && self.lowering.is_none();
        let is_new = self.looked.is_some_and(|looked| looked.elapsed() < JUST_NOW);
        self.is_scavenger && is_seen && is_new && self.ended.is_none()
    }

    /// Ends it, since the node has so little left for the jobs that have reserved it. Nobody waits for its end: what does not die at once is
    /// ended again at the next look. Its user is told first: who reads that looks as soon as a process of the job's has ended.
    pub fn end(&mut self, seen: Option<ProcessView<'_>>, node: &NodeMemory) {
        let Some((seen, dir)) = seen.zip(self.directory.open().ok()) else { return };
        if self.ended.is_none() {
            self.ended = Some(Instant::now());
            self.lives_on = Some(Instant::now() + LIVES_ON);
            let (name, user) = (self.name(), user_name(self.uid));
            let used = self.known().used.saturating_sub(self.lent.grant);
            log::warn!(
                "{name} of {user} is ended: the node has only {} free, and the job uses {} beyond its limit of {} (Scavenger, \
                 MemoryPoolUnused)",
                mebibytes(node.free),
                mebibytes(used),
                mebibytes(self.lent.grant)
            );
            let why = report::ended_for_owners(node.free, node.short(), (self.lent.grant, used), self.is_requeued);
            self.note.end(&self.directory, &self.lent, (&why, self.is_requeued));
        }
        if let Err(error) = mark::kill_all(seen, &dir) {
            let name = self.name();
            self.say_once(format!("{name}: it is not ended yet: {error}"));
        }
        self.next = Some(Instant::now() + LEAST);
    }

    /// Gives it its share, or begins to take back. A job that is not seen, or of which the limit is just lowered, is left alone.
    pub fn apply(&mut self, run_dir: &Path, limit: u64, may_lower: bool) {
        if self.is_unseen || self.lowering.is_some() {
            return;
        }
        let is_settled = !self.is_unsettled || self.settle.is_some_and(|settle| settle > Instant::now());
        if limit < self.lent.limit || !is_settled {
            if may_lower {
                self.lower(run_dir, limit.min(self.lent.limit));
            }
            return;
        }
        if limit == self.lent.limit && self.lent.lent() == 0 {
            return;
        }
        let Some(_lock) = self.lock(run_dir) else { return };
        let done = match self.directory.open() {
            Ok(dir) if limit > self.lent.limit => self.raise(run_dir, &dir, limit),
            Ok(dir) if self.lent.lent() > 0 => {
                self.directory.follow(&dir, (self.lent.grant, self.lent.limit), self.lent.swap)
            }
            Ok(_) | Err(LookFailure::Gone) => return,
            Err(LookFailure::Failed(error)) => Err(error),
        };
        match done {
            Ok(()) => self.said = None,
            Err(error) if self.directory.open().is_ok() => {
                let name = self.name();
                self.say_once(format!("{name}: its limit of memory cannot be changed: {error}"));
                self.next = Some(Instant::now() + AGAIN);
            }
            Err(_) => {}
        }
    }

    /// Gives its processes the mark while it uses what it is lent, and takes it away afterwards. The file first: wherever this process ends,
    /// the next one knows that there may be marks. `is_late`: what is not urgent waits.
    pub fn mark(&mut self, run_dir: &Path, seen: Option<ProcessView<'_>>, is_late: bool) {
        let (now, is_lent) = (Instant::now(), self.lent.lent() > 0);
        let is_wanted = is_lent && self.above.is_some_and(|above| now.saturating_duration_since(above) < MARKED);
        let is_new = is_wanted && !self.lent.marked;
        if !is_wanted && !self.lent.marked {
            // It is to be seen soon that it comes to what it is lent.
            let level = self.memory.map(|memory| UseLevel { used: memory.used, limit: memory.grant });
            self.mark_again = level.filter(|_| is_lent).map(|level| now + armed::of_memory(&[level], Percent::HUNDRED));
            return;
        }
        if !is_new && (is_late || !self.marks.is_due(now)) {
            self.mark_again = Some(now + LEAST);
            return;
        }
        let Some((seen, dir)) = seen.zip(self.directory.open().ok()) else { return };
        if is_new {
            (self.lent.marked, self.marks) = (true, Marks::default());
            if let Err(error) = kept::write(run_dir, &self.lent) {
                self.lent.marked = false;
                let name = self.name();
                self.say_once(format!("{name}: what it is lent cannot be written down: {error}"));
                return;
            }
        }
        let done = self.marks.look(seen, &dir, is_wanted);
        let is_done = matches!(done, Ok(true));
        self.marks
            .tell(done.err().map(|error| format!("{}: its processes cannot all be marked: {error}", self.name())));
        if !is_done {
            self.mark_again = self.marks.next;
        } else if !is_wanted {
            self.lent.marked = false;
            self.save_or_say(run_dir);
        }
    }

    /// The lock of who changes its memory. `None`: another process has it, or there is none, and it is tried again later.
    fn lock(&mut self, run_dir: &Path) -> Option<Lock> {
        match self.directory.lock(run_dir) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) => self.next = Some(Instant::now() + LEAST),
            Err(error) => {
                let name = self.name();
                self.say_once(format!("{name}: its limit of memory cannot be changed: {error}"));
                self.next = Some(Instant::now() + AGAIN);
            }
        }
        None
    }

    /// The file first: wherever this process ends, no limit is above what it says. Afterwards the kernel is asked what it has.
    fn raise(&mut self, run_dir: &Path, dir: &Dir, limit: u64) -> Result<(), Error> {
        let before = self.lent.clone();
        let is_uncertain = self.is_found || self.is_unsettled;
        let is_as_seen = |(now, swap)| now == Some(before.limit) && (is_uncertain || swap == before.swap);
        if !self.directory.limits(dir).is_ok_and(is_as_seen) || resized(dir) != before.resized {
            // Somebody else has just changed it, or it cannot be read: the next look says.
            self.next = Some(Instant::now() + LEAST);
            return Ok(());
        }
        self.lent.limit = limit;
        self.lent.peak = self.lent.peak.max(limit);
        kept::write(run_dir, &self.lent).inspect_err(|_| self.lent = before.clone())?;
        let raised = self.directory.raise(dir, (before.grant, before.limit, limit), before.swap);
        let read = self.directory.limits(dir);
        self.after_a_raise(run_dir, read.ok(), &before);
        raised
    }

    /// `read`: what the kernel has. `None`: that is not known, and the record stays.
    fn after_a_raise(&mut self, run_dir: &Path, read: Option<(Option<u64>, Option<u64>)>, before: &JobLent) {
        match read {
            Some((Some(limit), swap)) if (before.limit..=self.lent.limit).contains(&limit) => {
                if limit > before.limit {
                    self.grown = Some(Instant::now());
                }
                self.is_unsettled |= swap != self.lent.swap;
                if limit != self.lent.limit {
                    self.lent.limit = limit;
                    self.is_unsettled = true;
                    self.save_or_say(run_dir);
                }
                self.note.follow(&self.directory, &self.lent);
            }
            // Somebody else has changed it meanwhile, or it cannot be read.
            _ => self.is_unsettled = true,
        }
        if self.is_unsettled {
            self.settle = Some(Instant::now() + CALM);
        }
        if let Some(memory) = &mut self.memory {
            memory.limit = self.lent.limit;
        }
        self.say(before);
    }

    fn lower(&mut self, run_dir: &Path, limit: u64) {
        // The process takes the lock by itself, if it is still free then.
        if self.lock(run_dir).is_none() {
            return;
        }
        let JobLent { limit: from, swap, resized, .. } = self.lent;
        match Lowering::start(&self.directory, run_dir, Lower { from, to: limit, swap, resized }) {
            Ok(lowering) => {
                self.next = Some(Instant::now() + lowering.pause());
                self.lowering = Some(lowering);
            }
            Err(errno) => {
                let (name, why) = (self.name(), errno.desc());
                self.say_once(format!("{name}: its limit of memory is not lowered: fork: {why}"));
                self.next = Some(Instant::now() + AGAIN);
            }
        }
    }

    /// A job that is lent nothing has no file, unless something may have been done by half.
    fn save_or_say(&mut self, run_dir: &Path) {
        if self.has_loan() {
            // An earlier file says no less.
            if let Err(error) = kept::write(run_dir, &self.lent) {
                let name = self.name();
                self.say_once(format!("{name}: what it is lent cannot be written down: {error}"));
            }
        } else {
            kept::remove(run_dir, &self.lent);
        }
    }

    fn say_once(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            log::error!("{why}");
            self.said = Some(why);
        }
    }

    /// The first piece and the last are in the log.
    fn say(&mut self, before: &JobLent) {
        let (now, own) = (self.lent.lent(), mebibytes(self.lent.grant));
        let (name, user) = (self.name(), user_name(self.uid));
        if before.lent() == 0 && now > 0 {
            log::info!("{name} of {user} is lent {} beyond its limit of {own} (MemoryPool)", mebibytes(now));
        } else if before.lent() > 0 && now == 0 {
            let peak = mebibytes(before.peak.saturating_sub(before.grant));
            if self.lent.grant > before.grant {
                log::info!("{name} of {user} was lent {peak} at most, and now has a limit of its own of {own}");
            } else {
                log::info!(
                    "{name} of {user} has given back what it was lent beyond its limit of {own}: {peak} at most"
                );
            }
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
    use jobfence::cgroup::layout::Version;
    use jobfence::cgroup::mark::lent as mark;
    use jobfence::record::loan::LoanLine;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    const MIB: u64 = 1 << 20;

    /// A job of 800 MiB on v2, with files that only hold what is written, and an empty `RunDir`.
    fn job(limit: u64) -> (tempfile::TempDir, PathBuf, Borrower) {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("job");
        fs::create_dir(&place).unwrap();
        let write = |name: &str, text: &str| fs::write(place.join(name), text).unwrap();
        write("memory.max", &(limit * MIB).to_string());
        write("memory.current", &(100 * MIB).to_string());
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
        let run_dir = temp.path().join("run");
        (temp, run_dir, job)
    }

    fn limit(job: &Borrower) -> u64 {
        fs::read_to_string(job.directory.path.join("memory.max")).unwrap().parse::<u64>().unwrap() / MIB
    }

    fn write(job: &Borrower, name: &str, mib: u64) {
        fs::write(job.directory.path.join(name), (mib * MIB).to_string()).unwrap();
    }

    /// What the record says, or that there is none.
    fn known(run_dir: &Path) -> Option<(u64, u64)> {
        let all = kept::all_without_gap::<JobLent>(run_dir).unwrap();
        all.first().map(|lent| (lent.grant / MIB, lent.limit / MIB))
    }

    fn own(job: &Borrower) -> (u64, u64) {
        (job.lent.grant / MIB, job.lent.limit / MIB)
    }

    fn lowered(run_dir: &Path, job: &mut Borrower) {
        while job.is_lowering() {
            job.has_lowered();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(job.look(run_dir).unwrap());
    }

    /// Only root's files are records.
    fn is_root() -> bool {
        let is_root = nix::unistd::geteuid().is_root();
        if !is_root {
            crate::skip::skip("only root's files are read");
        }
        is_root
    }

    #[test]
    fn a_job_of_which_the_kernel_tells_again_and_again_is_looked_at_ten_times_a_second() {
        let (_temp, _, mut job) = job(800);
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
    }

    #[test]
    fn without_a_record_no_limit_is_raised() {
        let (temp, _, mut job) = job(800);
        // No directory of records can be made.
        let run_dir = temp.path().join("run");
        fs::write(temp.path().join("run-series"), "").unwrap();
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 900 * MIB, true);
        assert_eq!((limit(&job), own(&job)), (800, (800, 800)));
        // Nor one of locks.
        let (temp, _, mut job) = self::job(800);
        fs::write(temp.path().join("file"), "").unwrap();
        let run_dir = temp.path().join("file/run");
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 900 * MIB, true);
        assert_eq!((limit(&job), own(&job)), (800, (800, 800)));
    }

    /// Another process changes the job's memory, until it lets go of this.
    fn another(run_dir: &Path, job: &Borrower) -> Lock {
        job.directory.lock(run_dir).unwrap().expect("nobody has it")
    }

    #[test]
    fn while_another_changes_a_jobs_memory_hold_does_not() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        let is_soon = |job: &Borrower| job.next.is_some_and(|next| next <= Instant::now() + LEAST);
        let lock = another(&run_dir, &job);
        job.apply(&run_dir, 1000 * MIB, true);
        assert!(is_soon(&job), "it is tried again");
        assert_eq!((limit(&job), known(&run_dir)), (800, None));
        drop(lock);
        job.apply(&run_dir, 1000 * MIB, true);
        assert_eq!(limit(&job), 1000);
        let lock = another(&run_dir, &job);
        job.apply(&run_dir, 800 * MIB, true);
        assert!(!job.is_lowering() && is_soon(&job));
        // It is taken between the look and the process.
        let lower = Lower { from: 1000 * MIB, to: 800 * MIB, swap: None, resized: None };
        job.lowering = Some(Lowering::start(&job.directory, &run_dir, lower).unwrap());
        lowered(&run_dir, &mut job);
        assert_eq!(limit(&job), 1000);
        drop(lock);
        job.apply(&run_dir, 800 * MIB, true);
        lowered(&run_dir, &mut job);
        assert_eq!(limit(&job), 800);
    }

    #[test]
    fn what_a_job_is_resized_to_is_its_own_also_if_it_was_lent_just_that() {
        if !is_root() {
            return;
        }
        let note = |job: &Borrower, text: &str| {
            let dir = job.directory.open().unwrap();
            jobfence::cgroup::mark::set_resized(&dir, text).unwrap();
        };
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 1000 * MIB, true);
        // CPUs alone: what is lent stays lent.
        note(&job, "at=1\ncpus=1000/2000\n");
        assert!(job.look(&run_dir).unwrap());
        assert_eq!(own(&job), (800, 1000));
        // It is noted, and the limit is not yet set.
        let lock = another(&run_dir, &job);
        note(&job, &format!("at=1\nmemory=-/{}\n", 1000 * MIB));
        assert!(!job.look(&run_dir).unwrap() && !job.is_unseen);
        assert_eq!(own(&job), (800, 1000));
        drop(lock);
        // It comes between a look and what that leads to.
        job.apply(&run_dir, 1200 * MIB, true);
        job.apply(&run_dir, 900 * MIB, true);
        lowered(&run_dir, &mut job);
        assert_eq!((own(&job), limit(&job), known(&run_dir)), ((1000, 1000), 1000, None));
        // The next one knows that the note is not new.
        job.apply(&run_dir, 1200 * MIB, true);
        let found = kept::all_without_gap::<JobLent>(&run_dir).unwrap().remove(0);
        let mut next = Borrower::found(found, job.directory.clone(), 7);
        assert!(next.look(&run_dir).unwrap());
        assert_eq!(own(&next), (1000, 1200));
        // `jobfence limit` takes the note away, and what it sets is seen by itself.
        jobfence::cgroup::mark::remove_resized(&job.directory.open().unwrap()).unwrap();
        assert!(job.look(&run_dir).unwrap());
        assert_eq!(own(&job), (1000, 1200));
    }

    #[test]
    fn a_job_that_an_earlier_process_has_told_its_end_is_ended() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, job) = job(900);
        write(&job, "memory.current", 850);
        for is_told in [false, true] {
            if is_told {
                LoanTold::default().end(&job.directory, &job.lent, ("x", false));
            }
            let mut next = Borrower::found(job.lent.clone(), job.directory.clone(), 7);
            next.is_scavenger = true;
            assert!(next.look(&run_dir).unwrap());
            assert_eq!((next.is_ending(), next.may_end()), (is_told, !is_told));
        }
    }

    #[test]
    fn a_job_that_lives_on_is_told_of_no_end() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(900);
        job.is_scavenger = true;
        let dir = job.directory.open().unwrap();
        let why = || jobfence::record::loan::line(&mark(&dir).unwrap().unwrap(), LoanLine::WhyEnded).map(str::to_owned);
        // One that frees what it was lent before anybody ends it, and one that does not die.
        for (used, may_end) in [(100, true), (850, false)] {
            write(&job, "memory.current", used);
            job.note.end(&job.directory, &job.lent, ("x", false));
            (job.ended, job.lives_on) = (Some(Instant::now()), Some(Instant::now() + LIVES_ON));
            assert!(job.look(&run_dir).unwrap());
            assert_eq!((why().as_deref(), job.may_end()), (Some("x"), false), "{used}");
            job.lives_on = Some(Instant::now());
            assert!(job.look(&run_dir).unwrap());
            assert_eq!((why(), job.may_end(), job.lives_on), (None, may_end, None), "{used}");
        }
    }

    #[test]
    fn the_record_says_what_is_still_lent() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 1200 * MIB, true);
        assert_eq!((known(&run_dir), limit(&job)), (Some((800, 1200)), 1200));
        write(&job, "memory.current", 1100);
        job.apply(&run_dir, 800 * MIB, true);
        lowered(&run_dir, &mut job);
        assert_eq!((known(&run_dir), limit(&job)), (Some((800, 1200)), 1200), "it uses more");
        write(&job, "memory.current", 100);
        job.apply(&run_dir, 800 * MIB, true);
        lowered(&run_dir, &mut job);
        assert_eq!((known(&run_dir), limit(&job)), (None, 800));
    }

    #[test]
    fn what_cannot_be_read_ends_no_job_and_forgets_no_loan() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 900 * MIB, true);
        fs::write(job.directory.path.join("memory.max"), "?").unwrap();
        assert!(!job.look(&run_dir).unwrap() && job.is_unseen);
        job.apply(&run_dir, 800 * MIB, true);
        assert!(!job.is_lowering());
        assert_eq!((known(&run_dir), job.known().limit / MIB), (Some((800, 900)), 900));
        write(&job, "memory.max", 900);
        assert!(job.look(&run_dir).unwrap() && !job.is_unseen);
        assert_eq!(own(&job), (800, 900));
        fs::remove_dir_all(&job.directory.path).unwrap();
        assert!(matches!(job.look(&run_dir), Err(LookFailure::Gone)));
    }

    #[test]
    fn our_own_writes_never_become_the_jobs_grant() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 1000 * MIB, true);
        // Of a raise, and of a lowering, it is not known what has come of it.
        for (read, kernel) in [(None, 900), (Some((Some(900 * MIB), None)), 900), (None, 800)] {
            let before = JobLent { limit: 800 * MIB, ..job.lent.clone() };
            job.lent.limit = 1000 * MIB;
            job.after_a_raise(&run_dir, read, &before);
            write(&job, "memory.max", kernel);
            assert!(job.look(&run_dir).unwrap());
            assert_eq!(own(&job), (800, kernel));
            assert_eq!(known(&run_dir).unwrap_or((800, 800)), (800, kernel));
        }
        (job.is_unsettled, job.settle) = (true, None);
        job.apply(&run_dir, 1000 * MIB, true);
        assert!(job.is_lowering(), "first it is brought to what the record says");
        lowered(&run_dir, &mut job);
        job.apply(&run_dir, 1000 * MIB, true);
        write(&job, "memory.current", 1000);
        job.apply(&run_dir, 900 * MIB, true);
        write(&job, "memory.max", 950);
        lowered(&run_dir, &mut job);
        assert_eq!(own(&job), (800, 950));
    }

    #[test]
    fn a_limit_of_somebody_elses_is_the_jobs_own() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(900);
        let set = |job: &mut Borrower, mib| {
            write(job, "memory.max", mib);
            assert!(job.look(&run_dir).unwrap());
            own(job)
        };
        assert_eq!(set(&mut job, 900), (800, 900));
        // An earlier hold may have been killed anywhere: up to the record, all is its work.
        (job.is_found, job.is_unsettled) = (true, true);
        assert_eq!(set(&mut job, 850), (800, 850));
        assert_eq!(set(&mut job, 1000), (1000, 1000));
        job.apply(&run_dir, 1000 * MIB, true);
        lowered(&run_dir, &mut job);
        assert_eq!(set(&mut job, 700), (700, 700));
        // It changes between a look and the write.
        write(&job, "memory.max", 1024);
        job.apply(&run_dir, 750 * MIB, true);
        assert_eq!(limit(&job), 1024);
        assert_eq!((job.look(&run_dir).unwrap(), own(&job), known(&run_dir)), (true, (1024, 1024), None));
    }

    #[test]
    fn a_plan_that_goes_down_takes_nothing_and_one_that_goes_up_is_the_grant() {
        let (_temp, _, mut job) = job(900);
        let mut plan = |mib: u64| {
            job.plan(Some(mib * MIB));
            job.lent.grant / MIB
        };
        assert_eq!([plan(800), plan(600), plan(850), plan(2000)], [800, 800, 850, 900]);
    }

    #[test]
    fn no_process_is_marked_before_the_record_says_so_and_it_says_so_until_all_marks_are_gone() {
        if !is_root() {
            return;
        }
        let (temp, run_dir, mut job) = job(900);
        write(&job, "memory.current", 850);
        fs::write(job.directory.path.join("cgroup.procs"), "5\n").unwrap();
        let process = temp.path().join("proc/5");
        fs::create_dir_all(process.join("task")).unwrap();
        for (name, text) in [("oom_score_adj", "0\n"), ("status", "Uid:\t7\n"), ("cgroup", "0::/job\n")] {
            fs::write(process.join(name), text).unwrap();
        }
        let is_marked = || fs::read_to_string(process.join("oom_score_adj")).unwrap().starts_with("999");
        let recorded = |run_dir: &Path| {
            kept::all_without_gap::<JobLent>(run_dir).unwrap().first().map(|lent| (lent.lent() / MIB, lent.marked))
        };
        let hierarchy = jobfence::cgroup::layout::Hierarchy {
            version: Version::V2,
            mount: temp.path().to_owned(),
            root: "/".into(),
            controllers: vec!["memory".into()],
            name: None,
        };
        let proc = Dir::open(temp.path().join("proc")).unwrap();
        let seen = Some(ProcessView { proc: &proc, hierarchy: &hierarchy });
        // No directory of records can be made.
        fs::write(temp.path().join("nowhere-series"), "").unwrap();
        assert!(job.look(&run_dir).unwrap());
        job.mark(&temp.path().join("nowhere"), seen, false);
        assert!(!is_marked());
        job.mark(&run_dir, seen, false);
        assert_eq!((is_marked(), recorded(&run_dir)), (true, Some((100, true))));
        // It has given all back.
        write(&job, "memory.current", 100);
        write(&job, "memory.max", 800);
        let mut next = Borrower::found(kept::all_without_gap(&run_dir).unwrap().remove(0), job.directory.clone(), 7);
        assert!(next.look(&run_dir).unwrap());
        next.mark(&run_dir, seen, false);
        assert_eq!((is_marked(), recorded(&run_dir)), (false, Some((0, true))), "one may just begin with a mark");
        (next.marks, next.is_unsettled) = (Marks::default(), false);
        next.mark(&run_dir, seen, false);
        assert_eq!(recorded(&run_dir), None);
    }

    #[test]
    fn a_lowering_that_hangs_delays_nobody() {
        if !is_root() {
            return;
        }
        let (_temp, run_dir, mut job) = job(800);
        assert!(job.look(&run_dir).unwrap());
        job.apply(&run_dir, 1200 * MIB, true);
        // To open it waits for a reader, and so for ever.
        let reclaim = job.directory.path.join("memory.reclaim");
        nix::unistd::mkfifo(&reclaim, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        write(&job, "memory.current", 1100);
        job.apply(&run_dir, 800 * MIB, true);
        assert!(job.is_lowering() && !job.has_lowered());
        // The process takes the lock before it opens anything.
        while job.directory.lock(&run_dir).unwrap().is_some() {
            assert!(job.is_lowering() && !job.has_lowered(), "the process has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        job.apply(&run_dir, 1300 * MIB, true);
        assert!(job.look(&run_dir).unwrap());
        assert_eq!((known(&run_dir), limit(&job)), (Some((800, 1200)), 1200));
        job.lowering.iter().for_each(Lowering::kill);
        lowered(&run_dir, &mut job);
        assert_eq!(own(&job), (800, 1200));
        assert!(job.directory.lock(&run_dir).unwrap().is_some(), "the lock ends with it");
    }
}
