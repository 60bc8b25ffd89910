// SPDX-License-Identifier: GPL-2.0-or-later
//! Makes a job's own directories, and finds them again.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};
use nix::unistd::geteuid;

use super::places::{
    BEGUN, DIRECTORY, LOCK_TIMEOUT, NOTE, PrivateNote, ROOTS, TMPFS, all_in_run_dir, check_place, existing_in_run_dir,
    name_of, name_of_host, name_of_job, roots_own,
};
use super::{end, holders, processes, space};
use crate::config::{Config, Mode as ConfigMode};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::record::Records;
use crate::sys::dir::Dir;
use crate::sys::mount;

/// As on the host, where they are root's, too. A directory's owner is an exception of the kernel's `protected_symlinks`, `protected_regular`
/// and `protected_fifos`: if the user owned it, root's epilog would follow the user's links there.
const EVERYONES: Mode = Mode::from_bits_truncate(0o1777);

/// How long a step may be busy with what an earlier run of its job has left.
const PATIENCE_WITH_EARLIER: Duration = Duration::from_secs(2);

/// Whether jobs with this configuration see another tree of directories than the host.
pub fn is_wanted(config: &Config) -> bool {
    has_own(config) || processes::is_wanted(config)
}

/// Whether they have directories of their own.
pub fn has_own(config: &Config) -> bool {
    !config.private_tmp.is_empty() && config.mode == ConfigMode::Enforce
}

/// The directories of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateDirs {
    /// `RunDir`.
    pub(super) run_dir: PathBuf,
    /// The directories above the job's steps, by which the records name the job.
    pub(super) parents: Vec<String>,
    pub(super) note: PrivateNote,
    pub(super) shares: Vec<PathBuf>,
    /// Whether a job has a limit of space there.
    has_limit: bool,
}

/// `PrivateTmpBase`, if users cannot write into it.
fn checked_base(base: &Path) -> Result<Dir> {
    let hint = "make it, as a directory of root's into which no one else may write, or set PrivateTmpBase in jobfence.conf to another";
    let dir = Dir::open(base).map_err(|error| error.hint(hint))?;
    let stat = dir.stat()?;
    if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        return Err(Error::new("users may write into PrivateTmpBase:").at(base).hint(hint));
    }
    Ok(dir)
}

/// The directory of all jobs on disk.
fn all_on_disk(base: &Path, run_dir: &Path) -> Result<Dir> {
    roots_own(&checked_base(base)?, &name_of_host(run_dir)?)
}

/// Whether a path is in memory on every host, so that programs count on its speed.
fn is_memory(path: &Path) -> bool {
    path.starts_with("/dev")
}

/// The paths that are in a tmpfs, and those that are on disk.
pub fn divided(config: &Config) -> (Vec<PathBuf>, Vec<PathBuf>) {
    config.private_tmp.iter().cloned().partition(|path| config.private_tmp_base.is_none() || is_memory(path))
}

/// Why each job with this configuration would be refused on this host, as far as that is seen without a job.
pub fn faults(config: &Config) -> Vec<Error> {
    let missing = config.private_tmp.iter().filter_map(|path| Dir::open(path).and_then(|_| check_place(path)).err());
    let share = config.private_tmp_share.iter().filter(|share| {
        let is_in = |path: &&PathBuf| share.starts_with(path);
        config.private_tmp.iter().any(|path| is_in(&path))
            && !config.private_tmp.iter().any(|path| share.parent() == Some(path))
    });
    let share = share.map(|share| Error::new(NOT_DIRECTLY).at(share));
    let on_disk = || -> Result<()> {
        let base = config.private_tmp_base.as_ref().filter(|_| !divided(config).1.is_empty());
        let Some(base) = base else { return Ok(()) };
        let base = checked_base(base)?;
        if config.private_tmp_space.is_some() { space::check(&base) } else { Ok(()) }
    };
    missing.chain(share).chain(on_disk().err()).collect()
}

/// What is wrong with a share.
pub(super) const NOT_DIRECTLY: &str = "PrivateTmpShare names what is not directly in a directory of PrivateTmp:";

impl PrivateDirs {
    /// Makes the directories of a job for a step that this process holds. Another step of the job may have made them: then these are as they
    /// were then. `step` are the directories by which this step's own record is named.
    pub fn make(host: &Host, config: &Config, parents: &[String], step: &[String]) -> Result<Self> {
        let records = Records::open(&config.run_dir)?;
        let lock = records.lock_private(Instant::now() + LOCK_TIMEOUT)?;
        let all = all_in_run_dir(&config.run_dir)?;
        let name = name_of_job(parents);
        // The directories of an earlier run of the job. Its step daemons have died.
        let left = match holders::has_step(host, &records, Some(&all), parents, Some(step))? {
            true => None,
            false => end::set_aside(&all, &name)?,
        };
        let jobs = roots_own(&all, &name)?;
        holders::add(host, &jobs)?;
        let note = match PrivateNote::read(&jobs)? {
            Some(note) => note,
            None => make_all(config, &jobs, &name).inspect_err(|_| {
                // No process has seen them.
                drop(jobs);
                if let Ok(Some(gone)) = end::set_aside(&all, &name) {
                    let _ = end::finish(&all, &gone, Instant::now() + LOCK_TIMEOUT);
                }
            })?,
        };
        drop(lock);
        if let Some(gone) = left {
            // The janitor removes the rest.
            let _ = end::finish(&all, &gone, Instant::now() + PATIENCE_WITH_EARLIER);
        }
        Ok(Self {
            run_dir: config.run_dir.clone(),
            parents: parents.to_vec(),
            note,
            shares: config.private_tmp_share.clone(),
            has_limit: config.private_tmp_space.is_some(),
        })
    }

    /// Finds the directories of a job. `None`: it has none.
    pub fn find(config: &Config, parents: &[String]) -> Result<Option<Self>> {
        let Some(all) = existing_in_run_dir(&config.run_dir)? else { return Ok(None) };
        let jobs = match all.child(&name_of_job(parents)) {
            Err(error) if error.is_gone() => return Ok(None),
            jobs => jobs?,
        };
        let (run_dir, shares) = (config.run_dir.clone(), config.private_tmp_share.clone());
        let has_limit = config.private_tmp_space.is_some();
        Ok(PrivateNote::read(&jobs)?.map(|note| Self { run_dir, parents: parents.to_vec(), note, shares, has_limit }))
    }

    /// The job's user.
    pub(super) fn uid(&self) -> Option<u32> {
        self.parents.iter().find_map(|level| level.strip_prefix("uid_")?.parse().ok())
    }

    /// The job's directory in `RunDir`.
    pub(super) fn in_run_dir(&self) -> PathBuf {
        self.run_dir.join(DIRECTORY).join(name_of_job(&self.parents))
    }

    /// Each path with the directory that takes its place.
    pub(super) fn pairs(&self) -> Vec<(&Path, PathBuf)> {
        let tmpfs = self.in_run_dir().join(TMPFS);
        let on_disk = self
            .note
            .disk
            .iter()
            .flat_map(|disk| self.note.on_disk.iter().map(move |path| (path.as_path(), disk.join(name_of(path)))));
        on_disk.chain(self.note.in_tmpfs.iter().map(|path| (path.as_path(), tmpfs.join(name_of(path))))).collect()
    }

    /// Sentences about those of the job's directories that are full now.
    pub fn full(&self) -> Vec<String> {
        let why = if self.has_limit {
            "PrivateTmpSpace in jobfence.conf says how much space a job has there"
        } else {
            "the whole file system is, since PrivateTmpSpace in jobfence.conf is not set; your administrator can make room"
        };
        let of = |paths: &[PathBuf]| -> Option<String> {
            let (_, from) =
                self.pairs().into_iter().find(|(path, _)| paths.first().is_some_and(|first| first == path))?;
            space::is_full(&from).then(|| {
                let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                format!(
                    "the job's own {} is full: programs that write there get \"No space left on device\" or \"Disk quota exceeded\". \
                     {why}",
                    names.join(" and ")
                )
            })
        };
        [&self.note.on_disk, &self.note.in_tmpfs].into_iter().filter_map(|paths| of(paths)).collect()
    }
}

/// Nothing of it is seen before the note is there, so an earlier attempt that stopped midway does no harm.
fn make_all(config: &Config, jobs: &Dir, name: &str) -> Result<PrivateNote> {
    let (in_tmpfs, on_disk) = divided(config);
    let mut note = PrivateNote { disk: None, on_disk, in_tmpfs, hides_others: processes::is_wanted(config) };
    let base = config.private_tmp_base.as_ref().filter(|_| !note.on_disk.is_empty());
    let on_disk = base.map(|base| all_on_disk(base, &config.run_dir)).transpose()?;
    note.disk = on_disk.as_ref().map(|all| all.path().join(name));
    jobs.replace_file(BEGUN, note.text().as_bytes())?;
    if let Some(all) = on_disk {
        // No job that `RunDir` knows has it: it is of an earlier boot, or a process died when it had renamed only one of the two.
        end::rename(&all, name, &end::new_name())?;
        let disk = roots_own(&all, name)?;
        if let Some(bytes) = config.private_tmp_space {
            space::check(&all)?;
            space::limit(&disk, bytes)?;
        }
        note.on_disk.iter().try_for_each(|path| make_place(&disk, path))?;
    }
    if !note.in_tmpfs.is_empty() {
        let below = roots_own(jobs, TMPFS)?;
        if below.stat()?.st_dev == jobs.stat()?.st_dev {
            let size = config.private_tmp_space.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
            mount::tmpfs(&below, &CString::new(format!("mode=0700{size}")).unwrap_or_default())?;
        }
        let tmpfs = jobs.child(TMPFS)?;
        note.in_tmpfs.iter().try_for_each(|path| make_place(&tmpfs, path))?;
    }
    renameat(jobs, BEGUN, jobs, NOTE).map_err(|errno| Error::os("write", jobs.path().join(NOTE), errno))?;
    Ok(note)
}

/// Makes the directory that takes a path's place, in one that only root can use.
fn make_place(parent: &Dir, path: &Path) -> Result<()> {
    let name = name_of(path);
    let failed = |op| move |errno| Error::os(op, parent.path().join(name_of(path)), errno);
    match mkdirat(parent, name.as_str(), ROOTS) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(failed("make the directory")(errno)),
    }
    fchmodat(parent, name.as_str(), EVERYONES, FchmodatFlags::FollowSymlink).map_err(failed("change the mode of"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_job_runs_with_a_limit_that_nothing_holds() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root has a base");
        }
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        fs::create_dir(&base).unwrap();
        if crate::sys::quota::is_enforced(&Dir::open(&base).unwrap()).unwrap() {
            return crate::skip::skip("this file system holds limits of projects");
        }
        let config = Config {
            run_dir: temp.path().join("run"),
            private_tmp: vec!["/var/tmp".into()],
            private_tmp_base: Some(base),
            private_tmp_space: Some(1 << 20),
            ..Config::default()
        };
        let (host, _) = Host::read_what_there_is(&config).unwrap();
        let parents = ["uid_7", "job_9"].map(str::to_owned);
        let refused = PrivateDirs::make(&host, &config, &parents, &parents).unwrap_err().to_string();
        let [said] = &faults(&config)[..] else { panic!("{refused}") };
        for said in [refused, said.to_string()] {
            assert!(said.contains("PrivateTmpSpace cannot be held on disk without project quotas"), "{said}");
        }
        assert_eq!(PrivateDirs::find(&config, &parents).unwrap(), None);
        // What is for all jobs of this `RunDir` is mounted.
        let records = Records::open(&config.run_dir).unwrap();
        end::end(&host, &config.run_dir, &parents, &records, Instant::now() + Duration::from_secs(300)).unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(temp.path().to_str().unwrap()), "{mounts}");
    }

    /// The step daemons of an earlier run of the job were killed, and the job runs again on this node: nobody has removed anything.
    #[test]
    fn a_job_that_runs_again_begins_with_empty_directories() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root can mount the tmpfs of a job");
        }
        let temp = tempfile::tempdir().unwrap();
        let config = Config {
            run_dir: temp.path().join("run"),
            private_tmp: vec!["/dev/shm".into(), "/var/tmp".into()],
            private_tmp_base: Some(temp.path().join("base")),
            ..Config::default()
        };
        fs::create_dir(temp.path().join("base")).unwrap();
        let (host, _) = Host::read_what_there_is(&config).unwrap();
        let parents = ["uid_7", "job_9"].map(str::to_owned);
        let step = [&parents[..], &["step_0".to_owned()]].concat();
        let made = || PrivateDirs::make(&host, &config, &parents, &step).unwrap();
        let files = |dirs: &PrivateDirs| -> Vec<PathBuf> {
            dirs.pairs().into_iter().map(|(_, place)| place.join("file")).collect()
        };
        let there = |dirs: &PrivateDirs| files(dirs).iter().filter(|file| file.exists()).count();
        let first = made();
        files(&first).iter().for_each(|file| fs::write(file, "x").unwrap());
        // Another step of the job, while the first lives, and then one when the first has been killed.
        assert_eq!(there(&made()), 2);
        let holders = || fs::read_dir(first.in_run_dir()).unwrap().map(|entry| entry.unwrap().path());
        let holder = holders().find(|path| path.to_string_lossy().contains("holder ")).unwrap();
        let dead = holder.to_string_lossy().replace(&format!(" {} ", std::process::id()), " 4194304 ");
        fs::rename(&holder, dead).unwrap();
        assert_eq!(there(&made()), 0);
        // What is left on disk when the machine has booted, and `RunDir` with it is gone.
        let records = Records::open(&config.run_dir).unwrap();
        let soon = || Instant::now() + Duration::from_secs(300);
        let second = made();
        let disk = second.note.disk.clone().unwrap();
        end::end(&host, &config.run_dir, &parents, &records, soon()).unwrap();
        assert!(!first.in_run_dir().exists() && !disk.exists());
        fs::create_dir_all(disk.join("file")).unwrap();
        let third = made();
        assert!(!disk.join("file").exists());
        end::end(&host, &config.run_dir, &parents, &records, soon()).unwrap();
        assert!(!third.in_run_dir().exists());
    }
}
