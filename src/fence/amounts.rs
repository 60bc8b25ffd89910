// SPDX-License-Identifier: GPL-2.0-or-later
//! Changes limits of memory that processes use now: in bounded time, all or none of the lower ones.
//!
//! All directories are looked at before the first write. If one uses more than it is to have, and it is not page cache that the kernel
//! gives back in time, nothing is changed. A write may take as long as a job makes new page cache (`mem_cgroup_resize_max`,
//! `memory_high_write` in mm/memcontrol.c), so a child writes, which is killed at the deadline: a signal ends the kernel's loop.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::seen::SeenDir;
use crate::bytes::mebibytes;
use crate::cgroup::layout::Version;
use crate::cgroup::limits::{high_file, memory_files, memory_limit, whole_pages};
use crate::error::{Error, Result};
use crate::sys::child;
use crate::sys::dir::Dir;

/// How often it is looked whether a child has done its work.
const LOOK: u8 = 20;

/// How long it may take to put back a limit: a higher one is set at once.
const PUT_BACK: Duration = Duration::from_secs(2);

/// One limit of one directory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amount {
    file: &'static str,
    /// What is counted in use for it; `None`: nothing needs to fit.
    in_use: Option<&'static str>,
    before: u64,
    want: u64,
}

impl Amount {
    fn is_lower(&self) -> bool {
        self.want < self.before
    }
}

/// The limits of memory of one directory, and what they are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    dir: SeenDir,
    version: Version,
    /// In the order in which lower ones are written; higher ones are written the other way round.
    amounts: Vec<Amount>,
}

/// The limit of memory of a directory. `None`: it has none, or is gone.
pub fn ram_of(dir: &SeenDir, version: Version) -> Result<Option<u64>> {
    let ram = dir.open().and_then(|open| memory_limit(&open, memory_files(version).0));
    dir.unless_gone(ram).map(Option::flatten)
}

impl Change {
    /// What a directory that has a limit of memory is to have with the limit `want`. Swap stays as it is, and `memory.high`, `memory.low`
    /// and `memory.min` stay the same part of the limit. `None`: it has no limit, or is gone.
    pub fn from_seen(seen: &SeenDir, version: Version, want: u64) -> Result<Option<Self>> {
        let Some(before) = ram_of(seen, version)? else { return Ok(None) };
        let want = whole_pages(want);
        let (file, swap_file) = memory_files(version);
        let (in_use, sum_in_use) = match version {
            Version::V1 => ("memory.usage_in_bytes", "memory.memsw.usage_in_bytes"),
            Version::V2 => ("memory.current", "memory.swap.current"),
        };
        let mut amounts = vec![Amount { file, in_use: Some(in_use), before, want }];
        let Some(dir) = seen.unless_gone(seen.open())? else { return Ok(None) };
        // A kernel may lack any of these files.
        let other = |file: &str| if dir.has(file) { memory_limit(&dir, file) } else { Ok(None) };
        // v1 limits the sum of RAM and swap.
        if let (Version::V1, Some(sum)) = (version, other(swap_file)?) {
            let want = want.saturating_add(sum.saturating_sub(before));
            amounts.push(Amount { file: swap_file, in_use: Some(sum_in_use), before: sum, want });
        }
        let protections: &[&str] = if version == Version::V2 { &["memory.low", "memory.min"] } else { &[] };
        for file in [high_file(version)].iter().chain(protections) {
            if let Some(part) = other(file)?.filter(|bytes| *bytes > 0) {
                let new = u128::from(part) * u128::from(want) / u128::from(before.max(1));
                let new = whole_pages(u64::try_from(new).unwrap_or(u64::MAX));
                amounts.push(Amount { file, in_use: None, before: part, want: new });
            }
        }
        Ok(Some(Self { dir: seen.clone(), version, amounts }))
    }

    fn refused(&self, amount: &Amount, in_use: u64) -> Error {
        Error::new(format!(
            "{} of memory are in use and cannot be taken back, so the limit stays above",
            mebibytes(in_use)
        ))
        .value(mebibytes(amount.want))
        .at(self.dir.path())
        .hint("give the job at least that much, or end processes of it first")
    }

    /// What is in use above the new limits; 0 if they fit. An error: they do not, and page cache would not be enough.
    fn above(&self) -> Result<u64> {
        let mut most = 0;
        for amount in self.amounts.iter().filter(|amount| amount.is_lower()) {
            let Some(file) = amount.in_use else { continue };
            let looked = self.dir.open().and_then(|dir| Ok((number(&dir, file)?, page_cache(&dir, self.version)?)));
            let Some((in_use, cache)) = self.dir.unless_gone(looked)? else { return Ok(0) };
            if in_use.saturating_sub(cache) > amount.want {
                return Err(self.refused(amount, in_use));
            }
            most = most.max(in_use.saturating_sub(amount.want));
        }
        Ok(most)
    }

    /// Brings what is in use below the new limits, without a write to a limit.
    ///
    /// cgroup2 would set a lower `memory.max` at once, and kill where reclaim is not enough (`memory_max_write`). `memory.reclaim` (Linux
    /// 5.19) only reclaims. v1 refuses a limit that does not fit, so it need not be asked before.
    fn make_room(&self, writer: Writer<'_>, deadline: Instant) -> Result<()> {
        let above = self.above()?;
        if above == 0 || self.version == Version::V1 {
            return Ok(());
        }
        // What it answers does not matter: what counts is what is in use afterwards.
        let _ = in_time(writer, &self.dir, RECLAIM, above.saturating_add(SPARE), deadline);
        match self.above()? {
            0 => Ok(()),
            above => {
                let amount = self.amounts.first().copied();
                Err(amount.map_or_else(|| Error::new("no limit"), |amount| self.refused(&amount, amount.want + above)))
            }
        }
    }
}

/// cgroup2's file that takes memory back and limits nothing.
const RECLAIM: &str = "memory.reclaim";

/// Bytes that are taken back beyond what is needed: the kernel counts in batches, and a job goes on meanwhile.
const SPARE: u64 = 2 << 20;

fn number(dir: &Dir, file: &str) -> Result<u64> {
    let text = dir.read_value(file)?;
    text.trim().parse().map_err(|_| Error::new("not a number:").at(dir.path().join(file)).value(text.trim()))
}

/// Bytes of files that the kernel may drop.
fn page_cache(dir: &Dir, version: Version) -> Result<u64> {
    let text = dir.read_table("memory.stat")?;
    let prefix = if version == Version::V1 { "total_" } else { "" };
    let of_line = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        let name = name.strip_prefix(prefix)?;
        ["inactive_file", "active_file"].contains(&name).then(|| bytes.parse::<u64>().ok()).flatten()
    };
    Ok(text.lines().filter_map(of_line).fold(0, u64::saturating_add))
}

/// What a child does: it writes a number to a file of a directory.
type Writer<'w> = &'w dyn Fn(&Dir, &str, u64) -> Result<()>;

/// Sets the new limits. An error: all limits are as before, or the error says which is not. What ends meanwhile
/// needs no limit.
pub fn change(changes: &[Change], deadline: Instant) -> Result<()> {
    change_by(&|dir, file, value| dir.write(file, &value.to_string()), changes, deadline)
}

fn change_by(writer: Writer<'_>, changes: &[Change], deadline: Instant) -> Result<()> {
    // A job is refused by what certainly stays before another directory of it loses its page cache.
    changes.iter().try_for_each(|change| change.above().map(drop))?;
    changes.iter().try_for_each(|change| change.make_room(writer, deadline))?;
    // Nothing but SIGKILL ends the command between two writes.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let done = write_all(writer, changes, deadline);
    if let Some(before) = before {
        let _ = before.thread_set_mask();
    }
    done
}

/// Writes the lower limits, and then the higher ones, which are not refused.
fn write_all(writer: Writer<'_>, changes: &[Change], deadline: Instant) -> Result<()> {
    let lower = changes.iter().flat_map(|change| change.amounts.iter().map(move |amount| (change, *amount)));
    // v1 lets RAM have no more than the sum of RAM and swap.
    let higher = changes.iter().flat_map(|change| change.amounts.iter().rev().map(move |amount| (change, *amount)));
    let lower = lower.filter(|(_, amount)| amount.is_lower());
    let all = lower.chain(higher.filter(|(_, amount)| amount.want > amount.before));
    let mut tried = Vec::new();
    for (change, amount) in all {
        tried.push((change, amount));
        if let Err(error) = set(writer, change, &amount, amount.want, deadline) {
            return Err(put_back(writer, &tried, error));
        }
    }
    Ok(())
}

/// The error, after all that was tried is as it was.
fn put_back(writer: Writer<'_>, tried: &[(&Change, Amount)], error: Error) -> Error {
    let deadline = Instant::now() + PUT_BACK;
    let set_again = |(change, amount): &(&Change, Amount)| set(writer, change, amount, amount.before, deadline).err();
    // Each is tried: one that fails must not cost the others.
    let stays: Vec<Error> = tried.iter().rev().filter_map(set_again).collect();
    match stays.first() {
        Some(stays) => Error::new(format!("{error}; and the limit of before could not be put back: {stays}")),
        None => error,
    }
}

/// Sets one limit of a directory, unless that is gone, and reads it back.
fn set(writer: Writer<'_>, change: &Change, amount: &Amount, value: u64, deadline: Instant) -> Result<()> {
    let done = in_time(writer, &change.dir, amount.file, value, deadline);
    let found = change.dir.open().and_then(|dir| memory_limit(&dir, amount.file));
    let is_set = matches!(found, Ok(Some(found)) if found == value);
    match done {
        _ if change.dir.is_gone() => Ok(()),
        Ok(true) if is_set => Ok(()),
        // The kernel sets these before it reclaims.
        Ok(false) if is_set && amount.in_use.is_none() => Ok(()),
        Ok(true) => Err(Error::new("the limit was written, but the kernel shows another:")
            .at(change.dir.path().join(amount.file))
            .value(format!("wanted {value}, found {found:?}"))),
        Ok(false) => Err(change.too_long(amount)),
        Err(error) if matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::EINTR)) => Err(change.too_long(amount)),
        Err(error) => Err(error),
    }
}

impl Change {
    /// Why a limit is not set, after the kernel has tried.
    fn too_long(&self, amount: &Amount) -> Error {
        let in_use = amount.in_use.and_then(|file| number(&self.dir.open().ok()?, file).ok());
        self.refused(amount, in_use.unwrap_or(amount.before))
    }
}

/// Has a child write a number. `Ok(false)`: the kernel was still at it at the deadline, and has been told to stop.
fn in_time(writer: Writer<'_>, dir: &SeenDir, file: &str, value: u64, deadline: Instant) -> Result<bool> {
    let os = |op: &'static str| move |errno| Error::os(op, dir.path().join(file), errno);
    let write = || {
        let done = dir.open().and_then(|dir| writer(&dir, file, value));
        done.map_or_else(|error| error.kernel_errno().map_or(255, |errno| errno as i32), |()| 0)
    };
    let child = child::start(write).map_err(os("start a process that writes"))?;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(true),
            Ok(WaitStatus::Exited(_, status)) => return Err(os("write")(Errno::from_raw(status)).value(value)),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) if Instant::now() < deadline => {}
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => break,
            Ok(_) => return Ok(false),
            Err(errno) => return Err(os("wait for a process that writes")(errno)),
        }
        let _ = poll(&mut [], PollTimeout::from(LOOK));
    }
    // A kill ends the kernel's loop; if the child waits for a disk, it ends later, and init takes it.
    let _ = kill(child, Signal::SIGKILL);
    let soon = Instant::now() + Duration::from_secs(1);
    while Instant::now() < soon && matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
        let _ = poll(&mut [], PollTimeout::from(LOOK));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// Directories as cgroup2 has them, with the limit, what is in use, and the page cache in that.
    fn dirs(all: &[(u64, u64, u64)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let temp = tempfile::tempdir().unwrap();
        let make = |(index, (max, current, cache)): (usize, &(u64, u64, u64))| {
            let path = temp.path().join(index.to_string());
            std::fs::create_dir(&path).unwrap();
            let write = |file: &str, text: String| std::fs::write(path.join(file), text).unwrap();
            write("cgroup.procs", String::new());
            write("memory.max", max.to_string());
            write("memory.high", "max".to_owned());
            write("memory.low", "0".to_owned());
            write("memory.current", current.to_string());
            write("memory.stat", format!("anon 1\ninactive_file {cache}\nactive_file 0\n"));
            path
        };
        let paths = all.iter().enumerate().map(make).collect();
        (temp, paths)
    }

    const MIB: u64 = 1 << 20;

    fn seen(path: &Path) -> SeenDir {
        SeenDir::find(path).unwrap().unwrap()
    }

    fn changes(paths: &[PathBuf], want: u64) -> Vec<Change> {
        paths.iter().filter_map(|path| Change::from_seen(&seen(path), Version::V2, want).unwrap()).collect()
    }

    fn limits(paths: &[PathBuf]) -> Vec<u64> {
        paths.iter().map(|path| std::fs::read_to_string(path.join("memory.max")).unwrap().parse().unwrap()).collect()
    }

    fn plainly(dir: &Dir, file: &str, value: u64) -> Result<()> {
        std::fs::write(dir.path().join(file), value.to_string()).map_err(|_| Error::new("x").errno(Errno::EIO))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(300)
    }

    #[test]
    fn all_are_looked_at_before_the_first_is_lowered() {
        let (_temp, paths) = dirs(&[(8 * MIB, MIB, 0), (8 * MIB, 6 * MIB, MIB)]);
        let error = change(&changes(&paths, 4 * MIB), later()).unwrap_err().to_string();
        assert!(error.contains("6.0 MiB of memory are in use and cannot be taken back"), "{error}");
        assert_eq!(limits(&paths), [8 * MIB; 2]);
        // More is never refused.
        change_by(&plainly, &changes(&paths, 16 * MIB), later()).unwrap();
        assert_eq!(limits(&paths), [16 * MIB; 2]);
    }

    #[test]
    fn page_cache_is_taken_back_before_the_limit_is_lower() {
        let (_temp, paths) = dirs(&[(8 * MIB, 6 * MIB, 3 * MIB)]);
        // The kernel gives nothing back.
        let writer = |dir: &Dir, file: &str, value| {
            assert_ne!(file, "memory.max");
            plainly(dir, file, value)
        };
        change_by(&writer, &changes(&paths, 4 * MIB), later()).unwrap_err();
        assert_eq!(limits(&paths), [8 * MIB]);
        let writer = |dir: &Dir, file: &str, value| match file {
            RECLAIM => plainly(dir, "memory.current", 6 * MIB - value),
            file => plainly(dir, file, value),
        };
        change_by(&writer, &changes(&paths, 4 * MIB), later()).unwrap();
        assert_eq!(limits(&paths), [4 * MIB]);
    }

    #[test]
    fn what_was_lowered_is_put_back_if_another_is_refused_or_takes_too_long() {
        for is_slow in [false, true] {
            let (_temp, paths) = dirs(&[(8 * MIB, MIB, 0), (8 * MIB, MIB, 0)]);
            let writer = |dir: &Dir, file: &str, value| match (dir.path().ends_with("1"), value < 8 * MIB) {
                (true, true) if is_slow => loop {
                    std::thread::sleep(Duration::from_secs(60));
                },
                (true, true) => Err(Error::new("write").errno(Errno::EBUSY)),
                _ => plainly(dir, file, value),
            };
            let deadline = if is_slow { Instant::now() } else { later() };
            // The first one is written in time even so: the deadline is looked at only if the child still works.
            let first = changes(&paths[..1], 4 * MIB);
            change_by(&writer, &first, later()).unwrap();
            assert_eq!(limits(&paths), [4 * MIB, 8 * MIB]);
            let second = &changes(&paths[1..], 4 * MIB);
            let tried = [(&first[0], first[0].amounts[0]), (&second[0], second[0].amounts[0])];
            let error = set(&writer, &second[0], &second[0].amounts[0], 4 * MIB, deadline).unwrap_err();
            let error = put_back(&writer, &tried, error).to_string();
            assert!(error.contains("of memory are in use") && !error.contains("put back"), "{error}");
            assert_eq!(limits(&paths), [8 * MIB; 2]);
        }
        let (_temp, paths) = dirs(&[(8 * MIB, MIB, 0), (8 * MIB, MIB, 0)]);
        let busy = |dir: &Dir, file: &str, value| match dir.path().ends_with("1") && value < 8 * MIB {
            true => Err(Error::new("write").errno(Errno::EBUSY)),
            false => plainly(dir, file, value),
        };
        change_by(&busy, &changes(&paths, 4 * MIB), later()).unwrap_err();
        assert_eq!(limits(&paths), [8 * MIB; 2]);
    }

    #[test]
    fn what_has_ended_needs_no_limit() {
        let (_temp, paths) = dirs(&[(8 * MIB, MIB, 0), (8 * MIB, MIB, 0)]);
        let both = changes(&paths, 4 * MIB);
        let first = seen(&paths[0]);
        std::fs::remove_dir_all(&paths[0]).unwrap();
        change_by(&plainly, &both, later()).unwrap();
        assert_eq!(limits(&paths[1..]), [4 * MIB]);
        assert_eq!(Change::from_seen(&first, Version::V2, MIB).unwrap(), None);
    }

    #[test]
    fn a_job_that_begins_again_under_the_same_name_keeps_its_limit() {
        let (temp, paths) = dirs(&[(8 * MIB, MIB, 0), (8 * MIB, MIB, 0)]);
        for want in [4 * MIB, 16 * MIB] {
            let both = changes(&paths, want);
            let away = temp.path().join(want.to_string());
            // It stays, so that the other does not get its number.
            std::fs::rename(&paths[0], &away).unwrap();
            let (_temp, new) = dirs(&[(8 * MIB, 7 * MIB, 0)]);
            std::fs::create_dir(&paths[0]).unwrap();
            for file in std::fs::read_dir(&new[0]).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), paths[0].join(file.file_name())).unwrap();
            }
            change_by(&plainly, &both, later()).unwrap();
            assert_eq!(limits(&paths), [8 * MIB, want]);
        }
    }

    #[test]
    fn the_soft_limit_and_swap_keep_their_part() {
        let (_temp, paths) = dirs(&[(8 * MIB, MIB, 0)]);
        std::fs::write(paths[0].join("memory.high"), (6 * MIB).to_string()).unwrap();
        let [change] = &changes(&paths, 4 * MIB)[..] else { panic!() };
        let found: Vec<_> = change.amounts.iter().map(|amount| (amount.file, amount.want)).collect();
        assert_eq!(found, [("memory.max", 4 * MIB), ("memory.high", 3 * MIB)]);
        for (file, bytes) in [
            ("memory.limit_in_bytes", 8 * MIB),
            ("memory.memsw.limit_in_bytes", 10 * MIB),
            ("memory.soft_limit_in_bytes", 0x7fff_ffff_ffff_f000),
        ] {
            std::fs::write(paths[0].join(file), bytes.to_string()).unwrap();
        }
        let change = Change::from_seen(&seen(&paths[0]), Version::V1, 4 * MIB).unwrap().unwrap();
        let found: Vec<_> = change.amounts.iter().map(|amount| (amount.file, amount.want)).collect();
        assert_eq!(found, [("memory.limit_in_bytes", 4 * MIB), ("memory.memsw.limit_in_bytes", 6 * MIB)]);
    }
}
