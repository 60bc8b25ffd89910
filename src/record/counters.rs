// SPDX-License-Identifier: GPL-2.0-or-later
//! Counts what jobfence has done on this node since its boot, in numbers that all processes share, for `MetricsFile`.
//!
//! They are in one small file below `RunDir`, which is read and written under a lock. A process that does not get the lock in time
//! counts nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::uio::{pread, pwrite};

use super::files::{checked, open_run_dir};
use crate::error::{Error, Result};
use crate::log;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;

/// The directory in `RunDir`.
pub(super) const DIRECTORY: &str = "counters";

/// The file in it; another layout gets another name.
const FILE: &str = "1";

/// How long to wait for another process that counts.
const PATIENCE: Duration = Duration::from_millis(20);

/// The bounds of [`Counters::began_within`], in milliseconds.
pub const BOUNDS_MS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A step was fenced; it took this long.
    Fenced(Duration),
    /// A step runs without a fence, as the configuration allows.
    Unfenced,
    /// A step was refused, since it could not be fenced.
    Refused,
    /// The janitor has removed what a dead holder had left.
    Reaped,
}

/// How often each has happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that were fenced.
    pub fenced: u64,
    /// Steps that went on without a fence.
    pub unfenced: u64,
    /// Steps that were refused.
    pub refused: u64,
    /// Fences that the janitor has removed.
    pub reaped: u64,
    /// How long fencing has taken in all, in microseconds.
    pub began_us: u64,
    /// The fenced steps by time: those that took no longer than each of [`BOUNDS_MS`], and longer than the one before it.
    pub began_within: [u64; BOUNDS_MS.len()],
}

/// One number for each member.
const NUMBERS: usize = 5 + BOUNDS_MS.len();

impl Counters {
    /// Counts one event. A failure is no error of the step's.
    pub fn count(run_dir: &Path, event: Event) {
        let add = |counters: &mut Self| match event {
            Event::Fenced(took) => {
                counters.fenced += 1;
                counters.began_us = counters.began_us.saturating_add(took.as_micros().try_into().unwrap_or(u64::MAX));
                let within = |bound: &&u64| took <= Duration::from_millis(**bound);
                let at = BOUNDS_MS.iter().position(|bound| within(&bound));
                if let Some(bucket) = at.and_then(|at| counters.began_within.get_mut(at)) {
                    *bucket += 1;
                }
            }
            Event::Unfenced => counters.unfenced += 1,
            Event::Refused => counters.refused += 1,
            Event::Reaped => counters.reaped += 1,
        };
        if let Err(error) = Self::change(run_dir, add) {
            log::debug!("this was not counted: {error}");
        }
    }

    /// What was counted since the boot; zeros if nothing was.
    pub fn read(run_dir: &Path) -> Result<Self> {
        let mut found = Self::default();
        Self::change(run_dir, |counters| found = *counters)?;
        Ok(found)
    }

    fn change(run_dir: &Path, change: impl FnOnce(&mut Self)) -> Result<()> {
        let run = open_run_dir(run_dir)?;
        let dir: Dir = match mkdirat(&run, DIRECTORY, Mode::from_bits_truncate(0o700)) {
            Ok(()) | Err(Errno::EEXIST) => checked(run.child(DIRECTORY)?)?,
            Err(errno) => return Err(Error::os("make the directory", run.path().join(DIRECTORY), errno)),
        };
        let _lock = Lock::on(&dir, ".", Instant::now() + PATIENCE)?;
        let failed = |errno| Error::os("count in", dir.path().join(FILE), errno);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&dir, FILE, flags, Mode::from_bits_truncate(0o600)).map_err(failed)?;
        let mut bytes = [0u8; NUMBERS * 8];
        // A new file is empty: then all numbers are zero.
        pread(&file, &mut bytes, 0).map_err(failed)?;
        let before = Self::from_bytes(&bytes);
        let mut counters = before;
        change(&mut counters);
        if counters != before {
            pwrite(&file, &counters.bytes(), 0).map_err(failed)?;
        }
        Ok(())
    }

    fn from_bytes(bytes: &[u8; NUMBERS * 8]) -> Self {
        let mut numbers = bytes.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let (fenced, unfenced, refused, reaped, began_us) = (next(), next(), next(), next(), next());
        Self { fenced, unfenced, refused, reaped, began_us, began_within: std::array::from_fn(|_| next()) }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { fenced, unfenced, refused, reaped, began_us, began_within } = *self;
        let first = [fenced, unfenced, refused, reaped, began_us];
        first.into_iter().chain(began_within).flat_map(u64::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_once() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        assert_eq!(Counters::read(&run).unwrap(), Counters::default());
        let ms = Duration::from_millis;
        for event in [Event::Fenced(ms(2)), Event::Fenced(ms(3)), Event::Fenced(ms(900)), Event::Refused, Event::Reaped]
        {
            Counters::count(&run, event);
        }
        let found = Counters::read(&run).unwrap();
        let began_within = [0, 1, 1, 0, 0, 0, 0, 0, 0];
        let expected = Counters { fenced: 3, refused: 1, reaped: 1, began_us: 905_000, began_within, unfenced: 0 };
        assert_eq!(found, expected);
        assert!(crate::record::Records::remove(&run, &[]).unwrap(), "RunDir can be removed");
    }

    #[test]
    fn those_who_count_at_once_lose_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let run = &temp.path().join("run");
        Counters::read(run).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| Counters::count(run, Event::Unfenced)));
            }
        });
        let counted = Counters::read(run).unwrap().unfenced;
        // On a busy machine a thread may not get the lock in time, and then counts nothing.
        assert!((390..=400).contains(&counted), "{counted}");
    }
}
