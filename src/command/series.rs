// SPDX-License-Identifier: GPL-2.0-or-later
//! A sparse time series of one step: its format, and where the series of live and ended steps are.
//!
//! A live step has a file beside `RunDir`, which its user can read. When the step has ended, its series becomes a line of a second log
//! beside the usage log, with the same bounds.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::error::{Error, Result};
use jobfence::fence::living::CurrentUse;
use jobfence::report::usage_log::UsageLog;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, mkdir, unlinkat};
use serde_json::{Value, json};

use crate::acl;
use crate::energy::StepEnergy;
use crate::logged::LoggedStep;
use crate::moment::seconds_of;
use crate::node_logs::{SERIES, log_with};

/// The name of the objects' format. A program that reads them checks it first.
pub const SCHEMA: &str = "jobfence-series-1";

/// The most points of a series. When it is full, every second point is dropped, and from then on only every second sample is kept.
pub const MOST_POINTS: usize = 120;

/// jobfence writes no longer series, in bytes.
const LONGEST: u64 = 1 << 20;

/// No file beside the series is longer: what is known of eight GPUs with 4000 records of processes each.
const LONGEST_FILE: u64 = 8 << 20;

/// How many seconds two texts for the start of a step may differ: the start is computed from the age of a process.
const SAME_START: u64 = 2;

/// Values over time, in seconds since the start. `None` is unknown.
pub type Amounts = Vec<(f64, Option<f64>)>;

/// A step's figures at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// Seconds since the fence was made.
    pub at: f64,
    /// CPU time used so far, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Memory in use, in bytes, page cache included.
    pub memory_bytes: Option<u64>,
    /// How much of that is page cache.
    pub file_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Read so far, in bytes.
    pub read_bytes: Option<u64>,
    /// Written so far, in bytes.
    pub written_bytes: Option<u64>,
    /// Processes that were killed for lack of memory so far.
    pub oom_kills: Option<u64>,
    /// How often the limit of memory was reached so far.
    pub memory_max_events: Option<u64>,
    /// Periods of the CPU quota so far.
    pub periods: Option<u64>,
    /// In how many of them the quota held processes back.
    pub throttled_periods: Option<u64>,
}

impl Point {
    /// A step's present figures.
    pub fn new(at: f64, current: &CurrentUse) -> Self {
        let usage = &current.usage;
        Self {
            at,
            cpu_seconds: usage.cpu.map(|cpu| cpu.as_secs_f64()),
            memory_bytes: current.memory,
            file_bytes: usage.memory_file,
            processes: current.processes,
            read_bytes: usage.read,
            written_bytes: usage.written,
            oom_kills: usage.oom_kills,
            memory_max_events: usage.memory_max_events,
            periods: usage.periods,
            throttled_periods: usage.throttled_periods,
        }
    }
}

/// The series of one step on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// The step's directories: no other live step has this name.
    pub name: String,
    pub job: String,
    pub step: String,
    /// The run of the job; 0 if it has no number.
    pub run: u64,
    pub uid: Option<u32>,
    /// When the fence was made, in the usage log's format.
    pub started: String,
    /// One of this many samples is kept.
    pub stride: u64,
    /// How many samples have passed since the last kept one.
    pub skipped: u64,
    /// In ascending order.
    pub points: Vec<Point>,
    /// What it has used of the node's energy, if that is known.
    pub energy: Option<StepEnergy>,
}

impl Series {
    /// Adds a point, thinning the series before it gets too long.
    pub fn add(&mut self, point: Point) {
        self.stride = self.stride.max(1);
        self.skipped += 1;
        if self.skipped < self.stride && !self.points.is_empty() {
            return;
        }
        self.skipped = 0;
        if self.points.len() >= MOST_POINTS {
            // Cumulative values lose nothing by that. The first and the last point stay.
            let last = self.points.len() - 1;
            let mut at = 0;
            self.points.retain(|_| {
                let stays = at % 2 == 0 || at == last;
                at += 1;
                stays
            });
            self.stride *= 2;
        }
        self.points.push(point);
    }

    /// Whether the series is this step's.
    pub fn is_of(&self, job: &str, step: &str, run: u64, started: &str) -> bool {
        self.job == job && self.step == step && self.run == run && is_same_start(&self.started, started)
    }

    /// The one of a step in the usage log.
    pub fn of_logged<'a>(all: &'a [Self], step: &LoggedStep) -> Option<&'a Self> {
        let (job, name, started) = (step.job.as_deref()?, step.step.as_deref()?, step.started.as_deref()?);
        all.iter().find(|series| series.is_of(job, name, step.run.unwrap_or(0), started))
    }

    /// Whether its directories include all of the other one's.
    pub fn has_all_of(&self, other: &Self) -> bool {
        other.name.split(':').all(|path| self.name.split(':').any(|own| own == path))
    }

    /// Whether all of its directories are gone. A directory that cannot be read may exist.
    pub fn has_ended(&self) -> bool {
        let is_gone =
            |path: &str| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        self.name.split(':').all(is_gone)
    }

    /// The series as an object.
    pub fn json(&self) -> Value {
        let column = |of: fn(&Point) -> Value| self.points.iter().map(of).collect::<Vec<_>>();
        json!({
            "schema": SCHEMA,
            "name": self.name,
            "job": self.job,
            "step": self.step,
            "run": self.run,
            "uid": self.uid,
            "started": self.started,
            "stride": self.stride,
            "at_seconds": column(|point| rounded(point.at)),
            "cpu_seconds": column(|point| point.cpu_seconds.map_or(Value::Null, rounded)),
            "memory_bytes": column(|point| json!(point.memory_bytes)),
            "file_bytes": column(|point| json!(point.file_bytes)),
            "processes": column(|point| json!(point.processes)),
            "read_bytes": column(|point| json!(point.read_bytes)),
            "written_bytes": column(|point| json!(point.written_bytes)),
            "oom_kills": column(|point| json!(point.oom_kills)),
            "memory_max_events": column(|point| json!(point.memory_max_events)),
            "periods": column(|point| json!(point.periods)),
            "throttled_periods": column(|point| json!(point.throttled_periods)),
            "energy_joules": self.energy.map(|energy| rounded(energy.joules)),
            "energy_cpu_seconds": self.energy.map(|energy| rounded(energy.cpu_seconds)),
        })
    }

    /// Parses what `json` wrote. `None`: it is something else.
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |member: &str| value.get(member)?.as_str().map(str::to_owned);
        if text("schema")? != SCHEMA {
            return None;
        }
        let column = |member: &str| value.get(member).and_then(Value::as_array);
        let points = column("at_seconds")?.iter().enumerate().take(2 * MOST_POINTS).map(|(index, at)| {
            let number = |member: &str| column(member)?.get(index)?.as_u64();
            Some(Point {
                at: at.as_f64()?,
                cpu_seconds: column("cpu_seconds").and_then(|all| all.get(index)?.as_f64()),
                memory_bytes: number("memory_bytes"),
                file_bytes: number("file_bytes"),
                processes: number("processes"),
                read_bytes: number("read_bytes"),
                written_bytes: number("written_bytes"),
                oom_kills: number("oom_kills"),
                memory_max_events: number("memory_max_events"),
                periods: number("periods"),
                throttled_periods: number("throttled_periods"),
            })
        });
        Some(Self {
            name: text("name")?,
            job: text("job")?,
            step: text("step")?,
            run: value.get("run")?.as_u64()?,
            uid: value.get("uid").and_then(Value::as_u64).and_then(|uid| u32::try_from(uid).ok()),
            started: text("started")?,
            stride: value.get("stride")?.as_u64()?.max(1),
            skipped: 0,
            points: points.collect::<Option<_>>()?,
            energy: {
                let number = |member: &str| value.get(member).and_then(Value::as_f64).filter(|number| *number >= 0.0);
                let energy = number("energy_joules").zip(number("energy_cpu_seconds"));
                energy.map(|(joules, cpu_seconds)| StepEnergy { joules, cpu_seconds })
            },
        })
    }

    /// CPUs that were busy between two points, each with the time of the later one.
    pub fn cpus(&self) -> Amounts {
        self.rates(|point| point.cpu_seconds)
    }

    /// Bytes read and written in a second between two points, likewise.
    pub fn disk_rates(&self) -> Amounts {
        self.rates(|point| Some((point.read_bytes? as f64) + (point.written_bytes? as f64)))
    }

    fn rates(&self, of: fn(&Point) -> Option<f64>) -> Amounts {
        let between = |pair: &[Point]| {
            let [before, after] = pair else { return None };
            let passed = after.at - before.at;
            let rate =
                of(after).zip(of(before)).filter(|_| passed > 0.0).map(|(new, old)| (new - old).max(0.0) / passed);
            Some((after.at, rate))
        };
        self.points.windows(2).filter_map(between).collect()
    }
}

/// Rounded to the millisecond: more is not known.
fn rounded(number: f64) -> Value {
    json!((number * 1000.0).round() / 1000.0)
}

fn is_same_start(one: &str, other: &str) -> bool {
    match (seconds_of(one), seconds_of(other)) {
        (Some(one), Some(other)) => one.abs_diff(other) <= SAME_START,
        _ => one == other,
    }
}

/// Where series of ended steps go, if there is a usage log.
pub fn log_of(usage_log: &UsageLog<'_>) -> PathBuf {
    log_with(usage_log, SERIES)
}

/// The series of a job's ended steps, in the files of their log.
pub fn finished(files: Vec<(PathBuf, File)>, job: &str) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    each_line(files, job, &mut |value| {
        all.extend(Series::from_json(value).filter(|series| series.job == job));
    })?;
    Ok(all)
}

/// Calls this with each object of such a log that has the job's name.
pub fn each_line(files: Vec<(PathBuf, File)>, job: &str, each: &mut dyn FnMut(&Value)) -> Result<()> {
    let member = format!("\"job\":{}", json!(job));
    for (path, file) in files {
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        let mut read = |line: &mut Vec<u8>| {
            let read = Read::take(&mut file, LONGEST).read_until(b'\n', line);
            read.map_err(|error| Error::new(format!("cannot read the log: {error}")).at(&path))
        };
        while read(&mut line)? > 0 {
            let text = std::str::from_utf8(&line).unwrap_or_default();
            if text.contains(&member)
                && let Ok(value) = serde_json::from_str(text)
            {
                each(&value);
            }
            line.clear();
        }
    }
    Ok(())
}

/// Where the files of live steps are, and where users ask for their reports. Users cannot enter `RunDir` itself.
pub fn directory_of(run_dir: &Path) -> PathBuf {
    let mut name = run_dir.file_name().unwrap_or_default().to_owned();
    name.push("-series");
    run_dir.with_file_name(name)
}

/// The ending of a file's name.
const ENDING: &str = ".json";

/// The name of a step's file reveals nothing, but each user can find their own.
fn file_of(uid: Option<u32>, name: &str) -> String {
    file_with((uid, name, ENDING))
}

/// What a file beside the series is of: its user, a name of its own, and the ending of the file's name.
pub type SeriesFile<'a> = (Option<u32>, &'a str, &'static str);

fn file_with((uid, name, ending): SeriesFile<'_>) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let user = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
    format!("{user}-{:016x}{ending}", hasher.finish())
}

/// The series of a live step, if it was sampled and may be read.
pub fn living(run_dir: &Path, uid: Option<u32>, name: &str) -> Option<Series> {
    let dir = Dir::open(directory_of(run_dir)).ok()?;
    read(&dir, &file_of(uid, name)).ok()?.filter(|series| series.name == name)
}

/// `None`: there is no such file, or it has no series.
fn read(dir: &Dir, name: &str) -> Result<Option<Series>> {
    Ok(read_object(dir, name)?.as_ref().and_then(Series::from_json))
}

/// `None`: there is no such file, or none of root's with an object.
fn read_object(dir: &Dir, name: &str) -> Result<Option<Value>> {
    let file = match dir.open_file(name, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK) {
        Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ELOOP)) => return Ok(None),
        other => File::from(other?),
    };
    let mut text = String::new();
    let is_roots = file.metadata().is_ok_and(|found| found.is_file() && found.uid() == 0);
    let is_text = is_roots && file.take(LONGEST_FILE).read_to_string(&mut text).is_ok();
    Ok(serde_json::from_str(&text).ok().filter(|_| is_text))
}

/// The object in a file beside the series, if it may be read.
pub fn read_file(run_dir: &Path, what: SeriesFile<'_>) -> Option<Value> {
    read_object(&Dir::open(directory_of(run_dir)).ok()?, &file_with(what)).ok()?
}

/// Writes such a file, as `write` does.
pub fn write_file(run_dir: &Path, what: SeriesFile<'_>, text: &str) -> Result<()> {
    put(&writable(run_dir)?, &file_with(what), text, what.0)
}

/// Removes it.
pub fn remove_file(run_dir: &Path, what: SeriesFile<'_>) {
    if let Ok(dir) = writable(run_dir) {
        let name = file_with(what);
        [new_of(&name), name].iter().for_each(|name| discard(&dir, name));
    }
}

/// The objects of all files with this ending.
pub fn all_files(run_dir: &Path, ending: &str) -> Result<Vec<Value>> {
    let dir = match Dir::open(directory_of(run_dir)) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    for name in dir.list(false)?.iter().filter(|name| name.ends_with(ending)) {
        all.extend(read_object(&dir, name)?);
    }
    Ok(all)
}

/// The objects of all files with this ending; an error if any of them cannot be read or is no object.
pub fn files_without_gap(run_dir: &Path, ending: &str) -> Result<Vec<Value>> {
    let dir = match Dir::open(directory_of(run_dir)) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let unreadable = |name: &str| Error::new("not a record of root's:").at(dir.path().join(name)).hint("remove it");
    let names = dir.list(false)?.into_iter().filter(|name| name.ends_with(ending));
    names.map(|name| read_object(&dir, &name)?.ok_or_else(|| unreadable(&name))).collect()
}

/// The series of all steps with a file, whether they are alive or not. A file that is not root's is removed: earlier releases gave each to
/// its user.
pub fn all_living(run_dir: &Path) -> Result<Vec<Series>> {
    let dir = match Dir::open(directory_of(run_dir)) {
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    for name in dir.list(false)? {
        let found = fstatat(&dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| found.st_uid != 0) {
            let _ = unlinkat(&dir, name.as_str(), UnlinkatFlags::NoRemoveDir);
        } else if name.ends_with(ENDING) {
            // A file without a series is not jobfence's.
            all.extend(read(&dir, &name)?);
        }
    }
    Ok(all)
}

/// The directory for files of live steps: only root can write there, and users cannot list it.
pub fn writable(run_dir: &Path) -> Result<Dir> {
    let path = directory_of(run_dir);
    match mkdir(&path, Mode::from_bits_truncate(0o711)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(Error::os("make the directory", &path, errno)),
    }
    let dir = Dir::open(&path)?;
    let stat = dir.stat()?;
    if stat.st_uid != nix::unistd::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        return Err(Error::new("only root may be able to write to the directory:").at(&path).hint("remove it"));
    }
    Ok(dir)
}

/// Writes the file of a live step anew. It is root's, so that no user can fill the file system that holds the records. The step's user can
/// read it.
pub fn write(run_dir: &Path, series: &Series) -> Result<()> {
    write_file(run_dir, (series.uid, &series.name, ENDING), &series.json().to_string())
}

/// The name of a file until it is complete.
fn new_of(name: &str) -> String {
    format!("{name}.new")
}

/// A step has two files that swap, and the hidden one is written anew. A new file each time would let a user fill the disk: a process that
/// keeps each of them open keeps all of them, though they have no name any more.
fn put(dir: &Dir, name: &str, text: &str, reader: Option<u32>) -> Result<()> {
    let new = new_of(name);
    let failed = |op: &'static str| move |errno| Error::os(op, dir.path(), errno);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(dir, new.as_str(), flags, Mode::from_bits_truncate(0o400)).map_err(failed("make a file in"))?;
    let done = fill(File::from(file), dir, text, reader).and_then(|()| {
        let exchanged = renameat2(dir, new.as_str(), dir, name, RenameFlags::RENAME_EXCHANGE);
        let named = if exchanged == Err(Errno::ENOENT) { renameat(dir, new.as_str(), dir, name) } else { exchanged };
        named.map_err(failed("replace a file in"))
    });
    if done.is_err() {
        // The step may not be sampled again, which would replace the file.
        discard(dir, &new);
    }
    done
}

fn fill(mut file: File, dir: &Dir, text: &str, reader: Option<u32>) -> Result<()> {
    file.set_len(0)
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(|error| Error::new(format!("cannot write what was sampled: {error}")).at(dir.path()))?;
    reader.map_or(Ok(()), |uid| {
        acl::let_read(&file, uid).map_err(|errno| {
            Error::os("let the job's user read a file in", dir.path(), errno)
                .hint("RunDir has to be on a file system with POSIX ACLs, as tmpfs is")
        })
    })
}

/// Truncates the file, too, so that a process that has it open keeps only an empty one. A socket cannot be opened.
pub fn discard(dir: &Dir, name: &str) {
    if let Ok(file) = dir.open_file(name, OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK) {
        let _ = File::from(file).set_len(0);
    }
    let _ = unlinkat(dir, name, UnlinkatFlags::NoRemoveDir);
}

/// Removes the files of an ended step.
pub fn remove(run_dir: &Path, series: &Series) {
    remove_file(run_dir, (series.uid, &series.name, ENDING));
}

/// Removes all files and their directory, when no step is alive any more.
pub fn remove_all(run_dir: &Path) -> Result<()> {
    let path = directory_of(run_dir);
    if !path.exists() {
        return Ok(());
    }
    let dir = writable(run_dir)?;
    dir.list(false)?.iter().for_each(|name| discard(&dir, name));
    std::fs::remove_dir(&path).map_err(|error| Error::new(format!("remove the directory: {error}")).at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        Series {
            name: "/a:/b".to_owned(),
            job: "7\"<".to_owned(),
            step: "batch".to_owned(),
            uid: Some(7),
            started: "2026-11-25T03:31:00Z".to_owned(),
            ..Series::default()
        }
    }

    fn point(at: u64) -> Point {
        Point { at: at as f64, cpu_seconds: Some(at as f64 / 2.0), memory_bytes: Some(at), ..Point::default() }
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        std::fs::create_dir(temp.path().join("a.new")).unwrap();
        assert!(put(&dir, "a", "text", None).is_err(), "a directory was written");
        assert!(!temp.path().join("a").exists());
        for text in ["longer text", "text"] {
            put(&dir, "b", text, None).unwrap();
            assert_eq!(std::fs::read_to_string(temp.path().join("b")).unwrap(), text);
        }
    }

    #[test]
    fn a_series_stays_thin_and_keeps_its_ends() {
        let mut series = series();
        for at in 0..100_000 {
            series.add(point(at));
            assert!(series.points.len() <= MOST_POINTS);
        }
        assert!(series.points.len() > MOST_POINTS / 2);
        assert_eq!(series.points[0].at, 0.0);
        assert!(series.points.last().unwrap().at > 100_000.0 - 2.0 * series.stride as f64);
        assert!(series.points.windows(2).all(|pair| pair[0].at < pair[1].at));
        assert!(series.cpus().iter().all(|(_, cpus)| *cpus == Some(0.5)), "what grows evenly has one rate");
        assert!(series.json().to_string().len() < 20_000);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut written = series();
        written.add(Point::default());
        written.add(Point { oom_kills: Some(1), periods: Some(9), ..point(3) });
        written.skipped = 0;
        assert_eq!(Series::from_json(&written.json()), Some(written.clone()));
        assert_eq!(Series::from_json(&json!({"schema": "other"})), None);
        let mut half = written.json();
        half.as_object_mut().unwrap().remove("at_seconds");
        assert_eq!(Series::from_json(&half), None);
        assert!(written.is_of("7\"<", "batch", 0, "2026-11-25T03:31:02Z"));
        assert!(!written.is_of("7\"<", "batch", 0, "2026-11-25T03:31:09Z"));
        assert!(!written.is_of("7\"<", "batch", 1, "2026-11-25T03:31:00Z"));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let mut series = series();
        series.add(Point { cpu_seconds: None, ..point(1) });
        series.add(Point { cpu_seconds: None, ..point(2) });
        assert_eq!(series.cpus(), [(2.0, None)]);
        assert_eq!(series.json()["cpu_seconds"], json!([null, null]));
    }
}
