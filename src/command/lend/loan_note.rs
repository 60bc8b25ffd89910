// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job's user reads at the end of the memory that the job was lent, and why it was ended, if it was.
//!
//! It is noted on the job's directory, as far as it is known: so it goes with the directory, only root can write it, and the daemon that
//! writes the card and the usage log asks nobody. A failure changes nothing of the loan.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobfence::bytes::binary;
use jobfence::cgroup::mark;
use jobfence::record::loan::{self, LoanLine};
use jobfence::report::account::utc;

use super::directory::JobDirectory;
use super::files::JobLent;
use crate::card_notes::minute;

/// What was noted of one job.
#[derive(Debug, Default)]
pub struct LoanTold(Option<TellableLoan>);

/// What is known of a job's loan. Bytes, and seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TellableLoan {
    /// The most that was lent, and what the job's own limit was then.
    most: u64,
    grant: u64,
    /// When the first piece was lent.
    since: u64,
    /// When all was given back, or became the job's own. 0: something is lent.
    until: u64,
    /// The job's own limit since then.
    own: u64,
    ended: Option<NotedEnd>,
}

/// That and why the job was ended, whether it is requeued, and when that was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NotedEnd {
    why: String,
    is_requeued: bool,
    at: u64,
}

impl TellableLoan {
    fn note(&self) -> String {
        let Self { most, grant, since, until, own, ended } = self;
        let at = |seconds: u64| minute(&utc(UNIX_EPOCH + Duration::from_secs(seconds)));
        let then = match *until {
            0 => String::new(),
            until if own > grant => format!("; from {} on, its limit was {}", at(until), binary(*own)),
            until => format!("; all given back at {}", at(until)),
        };
        let row = format!(
            "{}\tat most {} beyond its limit of {}, from {}{then}",
            loan::LABEL,
            binary(*most),
            binary(*grant),
            at(*since)
        );
        let end = ended.as_ref().map(|end| (end.why.as_str(), end.is_requeued));
        let ended = ended.as_ref().map_or(0, |end| end.at);
        loan::note(*most, &row, &format!("{grant} {since} {until} {own} {ended}"), end)
    }

    fn from_note(note: &str) -> Option<Self> {
        let line = |which| loan::line(note, which);
        let mut numbers = line(LoanLine::OfHold)?.split(' ').map_while(|number| number.parse().ok());
        let mut number = || numbers.next();
        let (grant, since, until, own, at) = (number()?, number()?, number()?, number()?, number()?);
        // What is no time of a clock's is no note.
        let are_times = [since, until, at].iter().all(|seconds| u32::try_from(*seconds).is_ok());
        let most = line(LoanLine::Most)?.parse().ok().filter(|_| are_times)?;
        let is_requeued = line(LoanLine::AfterEnd) == Some(loan::REQUEUED);
        let ended = line(LoanLine::WhyEnded).map(|why| NotedEnd { why: why.to_owned(), is_requeued, at });
        Some(Self { most, grant, since, until, own, ended })
    }
}

impl LoanTold {
    /// What an earlier process has noted.
    pub fn found(directory: &JobDirectory) -> Self {
        let note = directory.open().ok().and_then(|dir| mark::lent(&dir).ok()?);
        Self(note.and_then(|note| TellableLoan::from_note(&note)))
    }

    /// How long ago the job was ended. `None`: it was not, as far as the note says.
    pub fn since_end(&self) -> Option<Duration> {
        let end = self.0.as_ref()?.ended.as_ref()?;
        Some(Duration::from_secs(now().saturating_sub(end.at)))
    }

    /// Follows what the job is lent.
    pub fn follow(&mut self, directory: &JobDirectory, lent: &JobLent) {
        let is_lent = lent.lent() > 0;
        if self.0.is_none() && !is_lent {
            return;
        }
        // A job that has given all back has no record, and an earlier process may have noted that.
        let before = self.0.take().or_else(|| Self::found(directory).0);
        let mut loan = before.clone().unwrap_or_else(|| TellableLoan { since: now(), ..TellableLoan::default() });
        if lent.lent() > loan.most {
            (loan.most, loan.grant) = (lent.lent(), lent.grant);
        }
        (loan.until, loan.own) = match loan.until {
            _ if is_lent => (0, 0),
            0 => (now(), lent.grant),
            until => (until, loan.own),
        };
        self.write(directory, before, loan);
    }

    /// Notes that the job is ended, why, and whether it is requeued.
    pub fn end(&mut self, directory: &JobDirectory, lent: &JobLent, (why, is_requeued): (&str, bool)) {
        self.follow(directory, lent);
        let before = self.0.take();
        let loan = before.clone().unwrap_or_default();
        let ended = Some(NotedEnd { why: why.to_owned(), is_requeued, at: now() });
        self.write(directory, before, TellableLoan { ended, ..loan });
    }

    /// Takes back that the job was ended: it lives on, and whatever ends it later is something else.
    pub fn withdraw(&mut self, directory: &JobDirectory) {
        if let Some(before) = self.0.take_if(|loan| loan.ended.is_some()) {
            let loan = TellableLoan { ended: None, ..before.clone() };
            self.write(directory, Some(before), loan);
        }
    }

    fn write(&mut self, directory: &JobDirectory, before: Option<TellableLoan>, loan: TellableLoan) {
        if before.as_ref() != Some(&loan)
            && let Ok(dir) = directory.open()
            && let Err(error) = mark::set_lent(&dir, &loan.note())
        {
            log::debug!("the end of a job will not say what it was lent: {error}");
        }
        self.0 = Some(loan);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobfence::cgroup::layout::Version;
    use jobfence::cgroup::mark::lent;
    use jobfence::sys::dir::Dir;
    use std::os::unix::fs::MetadataExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_user_reads_of_the_largest_loan_and_of_its_return() {
        let temp = tempfile::tempdir().unwrap();
        let inode = std::fs::metadata(temp.path()).unwrap().ino();
        let directory = JobDirectory { version: Version::V2, path: temp.path().to_owned(), inode };
        let dir = Dir::open(temp.path()).unwrap();
        if mark::set_lent(&dir, "").is_err() {
            return crate::skip::skip("only root can mark a directory, and not on each file system");
        }
        let noted = || lent(&dir).unwrap().unwrap_or_default();
        let line = |which| loan::line(&noted(), which).map(str::to_owned);
        let most = || line(LoanLine::Most).map(|most| most.parse::<u64>().unwrap() / MIB);
        let row = || line(LoanLine::Row).unwrap();
        let of = |mib: u64| JobLent { grant: 64 * MIB, limit: (64 + mib) * MIB, ..JobLent::default() };
        let mut told = LoanTold::default();
        told.follow(&directory, &of(0));
        assert_eq!(noted(), "", "nothing was lent");
        [8, 32, 16].iter().for_each(|mib| told.follow(&directory, &of(*mib)));
        assert_eq!(most(), Some(32));
        assert!(row().starts_with("lent\t\tat most 32.0 MiB beyond its limit of 64.0 MiB, from 20"), "{}", noted());
        assert!(!noted().contains("given back"));
        told.follow(&directory, &of(0));
        assert!(row().contains("; all given back at 20"), "{}", noted());
        // Another process goes on, of which the job has no record.
        let mut next = LoanTold::default();
        next.follow(&directory, &of(8));
        assert_eq!((most(), row().contains("given back")), (Some(32), false));
        assert_eq!((next.since_end(), line(LoanLine::WhyEnded)), (None, None));
        next.end(&directory, &of(16), ("x", true));
        let ended = || [LoanLine::WhyEnded, LoanLine::AfterEnd].map(|which| line(which).unwrap());
        assert_eq!((most(), ended()), (Some(32), ["x", "requeue"].map(str::to_owned)));
        let mut found = LoanTold::found(&directory);
        assert!(found.since_end().is_some_and(|since| since < Duration::from_secs(60)));
        assert_eq!(found.0, next.0);
        // It lives on.
        found.withdraw(&directory);
        assert_eq!((found.since_end(), line(LoanLine::WhyEnded)), (None, None));
        // What it was lent becomes its own.
        found.follow(&directory, &JobLent { grant: 80 * MIB, limit: 80 * MIB, ..JobLent::default() });
        assert!(row().ends_with(" on, its limit was 80.0 MiB") && !row().contains("given back"), "{}", noted());
        assert_eq!((most(), LoanTold::found(&directory).0), (Some(32), found.0));
    }

    #[test]
    fn a_note_that_is_none_of_ours_is_not_followed() {
        for of_hold in ["1 2 3 4", "1 2 3 4 x", "1 4294967296 3 4 5", "1 2 3 4 18446744073709551615"] {
            assert_eq!(TellableLoan::from_note(&loan::note(5, "lent\t\tx", of_hold, None)), None, "{of_hold}");
        }
    }
}
