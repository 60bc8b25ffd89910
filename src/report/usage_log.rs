// SPDX-License-Identifier: GPL-2.0-or-later
//! The usage log of this node: a line for each ended step. Only root can read it, and its size and age are bounded.
//!
//! A line is written by one write(2) under a lock. If that was cut short, by a full disk or a crash, the partial line is removed before the
//! next one is written. A file is set aside at the end of the day or when it is large, and is named after its last moment, as with
//! logrotate's `dateext`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, ftruncate, unlinkat, write};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;
use crate::report::account::utc;
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;

/// How long another step's line may delay this one.
const PATIENCE: Duration = Duration::from_millis(500);

/// A file is set aside when it reaches this part of the total size.
const FILES: u64 = 8;

/// Exists in `RunDir` after a lost line was reported: a directory, since files there are records.
const FAILED: &str = "usage-log.failed";

/// How long the report is not repeated.
const SILENCE: Duration = Duration::from_secs(3600);

/// Where lines go, from jobfence.conf(5).
#[derive(Debug, Clone, Copy)]
pub struct UsageLog<'a> {
    path: &'a Path,
    most: u64,
    age: Duration,
    run_dir: &'a Path,
}

impl<'a> UsageLog<'a> {
    /// `None`: there is to be no log.
    pub fn from_config(config: &'a Config) -> Option<Self> {
        let path = config.usage_log.as_deref()?;
        Some(Self { path, most: config.usage_log_size, age: config.usage_log_age, run_dir: &config.run_dir })
    }

    /// Another log with the same bounds, at another path.
    pub fn at<'b>(&self, path: &'b Path) -> UsageLog<'b>
    where
        'a: 'b,
    {
        UsageLog { path, ..*self }
    }

    /// The log's path.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Adds a line. A failure is logged once an hour, and does not affect the job.
    pub fn add(&self, line: &str) {
        if let Err(error) = self.append(line) {
            if self.is_to_be_said() {
                log::error!("cannot write down what steps have used: {error}");
            } else {
                log::debug!("cannot write down what the step has used: {error}");
            }
        }
    }

    fn is_to_be_said(&self) -> bool {
        let Ok(run) = Dir::open(self.run_dir) else { return true };
        let said = run.child(FAILED).and_then(|said| said.stat()).ok();
        if said.is_some_and(|said| age_of(&said) < SILENCE) {
            return false;
        }
        let _ = run.remove(FAILED);
        let _ = mkdirat(&run, FAILED, Mode::from_bits_truncate(0o700));
        true
    }

    fn append(&self, line: &str) -> Result<()> {
        let us = nix::unistd::geteuid().as_raw();
        let (dir, name) = self.directory(true, us)?;
        let _lock = lock(&dir, name)?;
        let failed = |op: &'static str| move |errno| Error::os(op, self.path, errno);
        let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = || openat(&dir, name, flags, Mode::from_bits_truncate(0o600)).map_err(failed("open"));
        let mut file = open()?;
        let mut stat = self.checked(fstat(&file).map_err(failed("look at"))?, us)?;
        let mut size = u64::try_from(stat.st_size).unwrap_or_default();
        let text = format!("{line}\n");
        let is_full = size.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX)) > self.most / FILES;
        if size > 0 && (is_full || day(mtime(&stat)) != day(SystemTime::now())) {
            self.set_aside(&dir, name, &stat)?;
            file = open()?;
            stat = self.checked(fstat(&file).map_err(failed("look at"))?, us)?;
            size = u64::try_from(stat.st_size).unwrap_or_default();
        }
        let whole = whole_lines(&file, size).map_err(failed("read"))?;
        let shorten = |to: u64| ftruncate(&file, i64::try_from(to).unwrap_or(i64::MAX));
        if whole < size {
            shorten(whole).map_err(failed("take back the rest of a line in"))?;
        }
        match write(&file, text.as_bytes()) {
            Ok(written) if written == text.len() => Ok(()),
            outcome => {
                let errno = outcome.err().unwrap_or(Errno::ENOSPC);
                let _ = shorten(whole);
                Err(failed("write")(errno))
            }
        }
    }

    /// The log's directory, and the name in it.
    fn directory(&self, is_made: bool, us: u32) -> Result<(Dir, &str)> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let (Some(parent), Some(name)) = (self.path.parent(), name) else {
            return Err(Error::new("not the path of a file:").at(self.path));
        };
        let dir = match Dir::open(parent) {
            Err(error) if is_made && error.kernel_errno() == Some(Errno::ENOENT) => {
                let (Some(above), Some(last)) = (parent.parent(), parent.file_name()) else { return Err(error) };
                let above = Dir::open(above)?;
                match mkdirat(&above, last, Mode::from_bits_truncate(0o700)) {
                    Ok(()) | Err(Errno::EEXIST) => above.child(last)?,
                    Err(errno) => return Err(Error::os("make the directory", parent, errno)),
                }
            }
            other => other?,
        };
        let stat = dir.stat()?;
        if stat.st_uid != us || stat.st_mode & 0o022 != 0 {
            return Err(Error::new("only root may be able to write to the directory of UsageLog:")
                .at(parent)
                .hint("give the log a directory of its own, such as /var/log/jobfence"));
        }
        Ok((dir, name))
    }

    fn checked(&self, stat: FileStat, us: u32) -> Result<FileStat> {
        let is_file = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG;
        if !is_file || stat.st_uid != us {
            return Err(Error::new("UsageLog must be a file of root's:").at(self.path));
        }
        Ok(stat)
    }

    /// Renames the file, and removes the oldest files if there are too many or too old ones.
    fn set_aside(&self, dir: &Dir, name: &str, stat: &FileStat) -> Result<()> {
        let moment = utc(mtime(stat)).replace(['-', ':'], "");
        let new = format!("{name}-{moment}");
        // If two fall into one second, the file goes on.
        if !dir.has(&new) {
            renameat(dir, name, dir, new.as_str())
                .map_err(|errno| Error::os("give another name to", self.path, errno))?;
        }
        let mut left = self.most;
        for old in set_aside(dir, name)?.iter().rev() {
            let Ok(stat) = fstatat(dir, old.as_str(), nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let size = u64::try_from(stat.st_size).unwrap_or_default();
            // One part is for the new file.
            if age_of(&stat) > self.age || left.checked_sub(size).is_none_or(|left| left < self.most / FILES) {
                let _ = unlinkat(dir, old.as_str(), UnlinkatFlags::NoRemoveDir);
                left = 0;
            } else {
                left -= size;
            }
        }
        Ok(())
    }

    /// The files of the log, the oldest first. Empty: there are none yet.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let (dir, name) = match self.directory(false, nix::unistd::geteuid().as_raw()) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = set_aside(&dir, name)?;
        names.extend(dir.has(name).then(|| name.to_owned()));
        Ok(names.iter().map(|name| self.path.with_file_name(name)).collect())
    }
}

/// The lock for writing, on a directory beside the log, `.NAME.lock`: users may be able to open the log's own directory, and could hold a
/// lock on it. Other slurmd on this host may have another `RunDir`, and the same log.
fn lock(dir: &Dir, name: &str) -> Result<Lock> {
    let (place, deadline) = (format!(".{name}.lock"), Instant::now() + PATIENCE);
    match Lock::on(dir, &place, deadline) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
            match mkdirat(dir, place.as_str(), Mode::from_bits_truncate(0o700)) {
                Ok(()) | Err(Errno::EEXIST) => Lock::on(dir, &place, deadline),
                Err(errno) => Err(Error::os("make the directory", dir.path().join(&place), errno)),
            }
        }
        lock => lock,
    }
}

/// The names of the files that were set aside, the oldest first.
fn set_aside(dir: &Dir, name: &str) -> Result<Vec<String>> {
    let is_moment =
        |rest: &str| rest.len() == 16 && rest.ends_with('Z') && rest.starts_with(|c: char| c.is_ascii_digit());
    let is_ours =
        |file: &String| file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_moment);
    let mut names = dir.list(false)?;
    names.retain(is_ours);
    sorted::sort(&mut names);
    Ok(names)
}

/// How many bytes of a file are whole lines.
fn whole_lines(file: &std::os::fd::OwnedFd, size: u64) -> std::result::Result<u64, Errno> {
    let mut end = size;
    let mut piece = [0u8; 4096];
    // Usually only the last byte is read.
    let mut length = 1;
    while end > 0 {
        let from = end.saturating_sub(length);
        let wanted = usize::try_from(end - from).unwrap_or(piece.len());
        let Some(place) = piece.get_mut(..wanted) else { break };
        let read = pread(file, place, i64::try_from(from).unwrap_or(i64::MAX))?;
        let found = place.get(..read).unwrap_or_default().iter().rposition(|byte| *byte == b'\n');
        if let Some(at) = found {
            return Ok(from + u64::try_from(at).unwrap_or_default() + 1);
        }
        (end, length) = (from, 4096);
    }
    Ok(0)
}

fn mtime(stat: &FileStat) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(stat.st_mtime.try_into().unwrap_or_default())
}

fn age_of(stat: &FileStat) -> Duration {
    SystemTime::now().duration_since(mtime(stat)).unwrap_or_default()
}

fn day(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Site {
        temp: tempfile::TempDir,
        config: Config,
    }

    impl Site {
        fn new(size: u64) -> Self {
            let temp = tempfile::tempdir().unwrap();
            fs::create_dir(temp.path().join("run")).unwrap();
            let config = Config {
                usage_log: Some(temp.path().join("log/usage.jsonl")),
                usage_log_size: size,
                usage_log_age: Duration::from_secs(86_400 * 30),
                run_dir: temp.path().join("run"),
                ..Config::default()
            };
            Self { temp, config }
        }

        fn log(&self) -> UsageLog<'_> {
            UsageLog::from_config(&self.config).unwrap()
        }

        fn path(&self) -> PathBuf {
            self.temp.path().join("log/usage.jsonl")
        }

        fn all(&self) -> String {
            self.log().files().unwrap().iter().map(|file| fs::read_to_string(file).unwrap()).collect()
        }

        fn age(&self, file: &Path, days: u64) {
            let then = SystemTime::now() - Duration::from_secs(86_400 * days);
            fs::File::open(file).unwrap().set_times(fs::FileTimes::new().set_modified(then)).unwrap();
        }
    }

    #[test]
    fn half_a_line_goes_before_the_next_comes() {
        let site = Site::new(1 << 20);
        site.log().append("{\"a\":1}").unwrap();
        for half in ["{\"b\"".to_owned(), "x".repeat(10_000)] {
            let whole = site.all();
            fs::write(site.path(), whole.clone() + &half).unwrap();
            site.log().append("{\"c\":3}").unwrap();
            assert_eq!(site.all(), whole + "{\"c\":3}\n");
        }
        fs::write(site.path(), "nothing but half").unwrap();
        site.log().append("{}").unwrap();
        assert_eq!(site.all(), "{}\n");
    }

    #[test]
    fn nobody_who_can_open_the_directory_keeps_lines_from_being_written() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::PermissionsExt;
        let site = Site::new(1 << 20);
        let log = site.temp.path().join("log");
        fs::create_dir(&log).unwrap();
        fs::set_permissions(&log, fs::Permissions::from_mode(0o755)).unwrap();
        let users = fs::File::open(&log).unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::flock(users.as_raw_fd(), libc::LOCK_EX) }, 0);
        for _ in 0..2 {
            site.log().append("{}").unwrap();
        }
        assert_eq!(site.all(), "{}\n{}\n");
        // And users cannot open the directory that is locked.
        let place = log.join(".usage.jsonl.lock");
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o700);
        let held = lock(&Dir::open(&log).unwrap(), "usage.jsonl").unwrap();
        assert!(site.log().append("{}").unwrap_err().to_string().contains("another process"));
        drop(held);
    }

    #[test]
    fn a_day_has_its_file_and_old_ones_go() {
        let site = Site::new(1 << 20);
        for days in [40, 29, 1] {
            site.log().append(&format!("{days} days")).unwrap();
            site.age(&site.path(), days);
        }
        site.log().append("today").unwrap();
        // The oldest is older than the log may be.
        assert_eq!(site.all(), "29 days\n1 days\ntoday\n");
        assert_eq!(site.log().files().unwrap().len(), 3);
        // Other files stay.
        fs::write(site.temp.path().join("log/usage.jsonl-mine"), "").unwrap();
        assert_eq!(site.log().files().unwrap().len(), 3);
    }

    #[test]
    fn all_together_stay_below_the_size() {
        let site = Site::new(8 << 10);
        for number in 0..40 {
            // Each file is full after two lines, and ends in another second.
            site.log().append(&format!("{number:0>600}")).unwrap();
            if number % 2 == 1 {
                site.age(&site.path(), 0);
                let file = site.path();
                let then = SystemTime::now() - Duration::from_secs(1000 - number);
                fs::File::open(&file).unwrap().set_times(fs::FileTimes::new().set_modified(then)).unwrap();
            }
            let size: u64 = site.log().files().unwrap().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
            assert!(size <= 8 << 10, "{size} at {number}");
        }
        assert!(site.all().ends_with(&format!("{:0>600}\n", 39)));
        assert!(site.log().files().unwrap().len() > 4);
    }

    #[test]
    fn a_place_of_others_is_refused_and_that_is_said_once() {
        use std::os::unix::fs::PermissionsExt;
        let site = Site::new(1 << 20);
        site.log().append("{}").unwrap();
        let dir = site.temp.path().join("log");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let error = site.log().append("{}").unwrap_err().to_string();
        assert!(error.contains("only root may be able to write") && error.contains("/log"), "{error}");
        assert!(site.log().is_to_be_said());
        assert!(!site.log().is_to_be_said());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_file(site.path()).unwrap();
        std::os::unix::fs::symlink("/dev/null", site.path()).unwrap();
        site.log().append("{}").unwrap_err();
    }
}
