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
    /// When all was given back. 0: something is lent.
    until: u64,
    /// Why the job was ended, if it was, and whether it is requeued.
    ended: Option<(String, bool)>,
}

impl TellableLoan {
    fn note(&self) -> String {
        let Self { most, grant, since, until, ended } = self;
        let at = |seconds: u64| minute(&utc(UNIX_EPOCH + Duration::from_secs(seconds)));
        let given_back = if *until > 0 { format!("; all given back at {}", at(*until)) } else { String::new() };
        let row = format!(
            "{}\tat most {} beyond its limit of {}, from {}{given_back}",
            loan::LABEL,
            binary(*most),
            binary(*grant),
            at(*since)
        );
        let ended = ended.as_ref().map(|(why, is_requeued)| (why.as_str(), *is_requeued));
        loan::note(*most, &row, &format!("{grant} {since} {until}"), ended)
    }

    fn from_note(note: &str) -> Option<Self> {
        let line = |which| loan::line(note, which);
        let mut numbers = line(LoanLine::OfHold)?.split(' ').map_while(|number| number.parse().ok());
        let mut number = || numbers.next();
        let (grant, since, until) = (number()?, number()?, number()?);
        let most = line(LoanLine::Most)?.parse().ok()?;
        // An earlier release ended jobs and had none requeued.
        let is_requeued = line(LoanLine::AfterEnd) == Some(loan::REQUEUED);
        let ended = line(LoanLine::WhyEnded).map(|why| (why.to_owned(), is_requeued));
        Some(Self { most, grant, since, until, ended })
    }
}

impl LoanTold {
    /// What an earlier process has noted.
    pub fn found(directory: &JobDirectory) -> Self {
        let note = directory.open().ok().and_then(|dir| mark::lent(&dir).ok()?);
        Self(note.and_then(|note| TellableLoan::from_note(&note)))
    }

    /// Whether the job was ended.
    pub fn is_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|loan| loan.ended.is_some())
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
        loan.until = match loan.until {
            _ if is_lent => 0,
            0 => now(),
            until => until,
        };
        self.write(directory, before, loan);
    }

    /// Notes that the job is ended, why, and whether it is requeued.
    pub fn end(&mut self, directory: &JobDirectory, lent: &JobLent, (why, is_requeued): (&str, bool)) {
        self.follow(directory, lent);
        let before = self.0.take();
        let loan = before.clone().unwrap_or_default();
        self.write(directory, before, TellableLoan { ended: Some((why.to_owned(), is_requeued)), ..loan });
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
        assert_eq!((next.is_ended(), line(LoanLine::WhyEnded)), (false, None));
        next.end(&directory, &of(16), ("x", true));
        let ended = || [LoanLine::WhyEnded, LoanLine::AfterEnd].map(|which| line(which).unwrap());
        assert_eq!((most(), ended()), (Some(32), ["x", "requeue"].map(str::to_owned)));
        let found = LoanTold::found(&directory);
        assert!(found.is_ended());
        assert_eq!(found.0, next.0);
    }
}
