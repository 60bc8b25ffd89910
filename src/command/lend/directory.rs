// SPDX-License-Identifier: GPL-2.0-or-later
//! The directory of one job that may be lent memory, in the hierarchy with the memory controller, and its limits.
//!
//! Each write is for a limit that was seen: if the file has another by then, that is somebody else's, and nothing is written. `jobfence
//! resize` and `jobfence limit` have the job's lock from their first look to their last write. So has hold for each write: if another
//! process has the lock, nothing is written now.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{self, SwapLimit, memory_files, memory_in_use, memory_limit};
use jobfence::cgroup::mark;
use jobfence::error::{Error, Result};
use jobfence::fence::living::LivingStep;
use jobfence::record::Records;
use jobfence::record::resized::Resized;
use jobfence::sys::dir::Dir;
use jobfence::sys::lock::Lock;
use nix::errno::Errno;

use crate::armed::cached;

/// How the directories of steps begin.
const STEPS: &str = "step_";

/// Not opened for longer than a look: a user may have thousands of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDirectory {
    pub version: Version,
    pub path: PathBuf,
    /// Its number: another directory may get the name.
    pub inode: u64,
}

/// Why nothing was seen.
#[derive(Debug)]
pub enum LookFailure {
    /// The job has ended.
    Gone,
    /// It may have ended or not.
    Failed(Error),
}

/// What a job has and uses, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenMemory {
    /// `None`: it has no limit.
    pub limit: Option<u64>,
    /// What the limit of memory and swap together is above that, on v1. `None`: there is no such limit.
    pub swap: Option<u64>,
    /// Without page cache of files, which the kernel takes back before it kills.
    pub used: u64,
    /// What `jobfence resize` has given the job, as its note says. The note comes before the limit.
    pub resized: Option<u64>,
}

/// What is to be lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lower {
    /// What the limit was seen to be.
    pub from: u64,
    /// What it is to be.
    pub to: u64,
    /// What v1's limit of memory and swap is above that.
    pub swap: Option<u64>,
    /// What `jobfence resize` was seen to have given the job.
    pub resized: Option<u64>,
}

impl JobDirectory {
    /// Where the job of a step has its memory. The directory may be a scheduler's. `None`: it has none, or has ended.
    pub fn of_step(step: &LivingStep<'_>) -> std::io::Result<Option<(Self, bool)>> {
        let Some(place) = step.places.iter().find(|place| place.hierarchy.has("memory")) else { return Ok(None) };
        let inode = match std::fs::symlink_metadata(&place.job) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found?.ino(),
        };
        let directory = Self { version: place.hierarchy.version, path: place.job.clone(), inode };
        Ok(Some((directory, place.is_overlay)))
    }

    pub fn open(&self) -> Result<Dir, LookFailure> {
        let dir = Dir::open(&self.path)
            .map_err(|error| if error.is_gone() { LookFailure::Gone } else { LookFailure::Failed(error) })?;
        let stat = dir.stat().map_err(LookFailure::Failed)?;
        if stat.st_ino == self.inode { Ok(dir) } else { Err(LookFailure::Gone) }
    }

    /// A file that cannot be read says nothing of the job: only a directory that is not there any more does.
    fn unless_gone(&self, error: Error) -> LookFailure {
        match self.open() {
            Ok(_) => LookFailure::Failed(error),
            Err(unseen) => unseen,
        }
    }

    /// Its limit of memory, and what v1's limit of memory and swap is above that.
    pub fn limits(&self, dir: &Dir) -> Result<(Option<u64>, Option<u64>), LookFailure> {
        limits_of(dir, self.version).map_err(|error| self.unless_gone(error))
    }

    /// What is there.
    pub fn look(&self, dir: &Dir) -> Result<SeenMemory, LookFailure> {
        let (limit, swap) = self.limits(dir)?;
        let charged = memory_in_use(dir, self.version)
            .ok_or_else(|| self.unless_gone(Error::new("its use of memory cannot be read:").at(dir.path())))?;
        let used = charged.saturating_sub(cached(dir, self.version));
        Ok(SeenMemory { limit, swap, used, resized: resized(dir) })
    }

    /// Takes the lock of who changes the job's memory. `None`: another process has it.
    pub fn lock(&self, run_dir: &Path) -> Result<Option<Lock>> {
        Records::open(run_dir)?.try_lock_memory(self.inode)
    }

    /// Raises the limit of the job from what it was seen to be, and of those steps that have all of the job's memory. Its steps come first:
    /// so nothing is raised before all is. Nothing is ever lowered by this. The kernel has nothing to wait for.
    pub fn raise(&self, dir: &Dir, (grant, from, to): (u64, u64, u64), swap: Option<u64>) -> Result<()> {
        let followed = self.follow(dir, (grant, to), swap);
        raise_one(dir, self.version, (from, to), swap)?;
        followed
    }

    /// Raises the steps that have all of the job's memory to its limit. A step with less has asked for that. One that ends meanwhile is no
    /// error, and one that fails keeps no other from it.
    pub fn follow(&self, dir: &Dir, (grant, to): (u64, u64), swap: Option<u64>) -> Result<()> {
        let mut failed = Ok(());
        self.each_step(
            dir,
            |step| {
                let (now, above) = limits_of(step, self.version)?;
                // A step that begins has its limit of swap a moment later, which the kernel would refuse then.
                let begins = swap.is_some() && above.is_none();
                match now.filter(|now| *now >= grant && *now < to && !begins) {
                    Some(now) => raise_one(step, self.version, (now, to), least(above, swap)),
                    None => Ok(()),
                }
            },
            &mut failed,
        )?;
        failed
    }

    /// Lowers the limit of the job, of its steps, and on v1 of memory and swap together. The kernel may take its time. On v2 it would kill
    /// if the job used more: so nothing is lowered before that was taken back.
    pub fn lower(&self, lower: Lower) -> Result<()> {
        let Ok(dir) = self.open() else { return Ok(()) };
        let Lower { from, to, swap, resized: known } = lower;
        let (now, above) = limits_of(&dir, self.version)?;
        if now != Some(from) || resized(&dir) != known {
            return Ok(());
        }
        if to < from {
            if self.version == Version::V2 && !has_room(&dir, to) {
                return Ok(());
            }
            match limits::set_ram(&dir, self.version, to) {
                Err(error) if error.kernel_errno() == Some(Errno::EBUSY) => return Ok(()),
                other => other?,
            }
        }
        let swap = swap.filter(|_| above.is_some());
        // v1 refuses this while too much is in swap: that is for a later time.
        let summed = swap.map_or(Ok(()), |swap| set_sum(&dir, self.version, (to, swap)));
        let mut failed = Ok(());
        self.each_step(
            &dir,
            |step| {
                let (theirs, above) = limits_of(step, self.version)?;
                if theirs.is_some_and(|theirs| theirs > to) {
                    limits::set_ram(step, self.version, to)?;
                }
                let now = theirs.map_or(to, |theirs| theirs.min(to));
                match least(above, swap) {
                    Some(swap) => set_sum(step, self.version, (now, swap)),
                    None => Ok(()),
                }
            },
            &mut failed,
        )?;
        summed.and(failed)
    }

    /// One after the other, so that no user's steps cost many descriptors. A step that has ended is left out.
    fn each_step(&self, dir: &Dir, mut what: impl FnMut(&Dir) -> Result<()>, failed: &mut Result<()>) -> Result<()> {
        for name in dir.list(true)?.into_iter().filter(|name| name.starts_with(STEPS)) {
            let done = dir.child(&name).and_then(|step| what(&step));
            if let Err(error) = done
                && !error.is_gone()
                && failed.is_ok()
            {
                *failed = Err(error);
            }
        }
        Ok(())
    }
}

/// What `jobfence resize` has given the job of the directory.
pub fn resized(dir: &Dir) -> Option<u64> {
    let note = mark::resized(dir).ok().flatten()?;
    Some(Resized::parse(&note).memory?.now)
}

fn limits_of(dir: &Dir, version: Version) -> Result<(Option<u64>, Option<u64>)> {
    let (ram_file, sum_file) = memory_files(version);
    let limit = memory_limit(dir, ram_file)?;
    let sum = match version {
        Version::V1 if dir.has(sum_file) => memory_limit(dir, sum_file)?,
        _ => None,
    };
    Ok((limit, sum.zip(limit).map(|(sum, limit)| sum.saturating_sub(limit))))
}

/// What a step has above its memory is never more than what its job has: also after a process was killed between two writes.
fn least(step: Option<u64>, job: Option<u64>) -> Option<u64> {
    step.map(|step| job.map_or(step, |job| step.min(job)))
}

fn set_sum(dir: &Dir, version: Version, (ram, swap): (u64, u64)) -> Result<()> {
    if limits_of(dir, version)? == (Some(ram), Some(swap)) {
        return Ok(());
    }
    limits::set_swap(dir, version, SwapLimit { swap, ram }, true).map(drop)
}

/// v1 limits the sum of memory and swap, too, which is never below the limit of memory.
fn raise_one(dir: &Dir, version: Version, (from, to): (u64, u64), swap: Option<u64>) -> Result<()> {
    if to <= from || limits_of(dir, version)?.0 != Some(from) {
        return Ok(());
    }
    if let Some(swap) = swap {
        limits::set_swap(dir, version, SwapLimit { swap, ram: to }, true)?;
    }
    limits::set_ram(dir, version, to)
}

/// Has v2's kernel take back what is above the limit that is to be, and returns whether nothing is. Before Linux 5.19, it only looks.
fn has_room(dir: &Dir, to: u64) -> bool {
    let used = || memory_in_use(dir, Version::V2);
    if let Some(above) = used().map(|used| used.saturating_sub(to)).filter(|above| *above > 0) {
        // It takes back what it can: EAGAIN says that this was less.
        let _ = dir.write("memory.reclaim", &above.to_string());
    }
    used().is_some_and(|used| used <= to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;

    /// A directory with files that only hold what is written.
    fn job(version: Version, limit: u64, steps: &[(&str, u64)]) -> (tempfile::TempDir, JobDirectory) {
        let temp = tempfile::tempdir().unwrap();
        let write = |name: &str, mib: u64| fs::write(temp.path().join(name), (mib * MIB).to_string()).unwrap();
        let (ram, sum) = memory_files(version);
        write(ram, limit);
        write(if version == Version::V1 { "memory.usage_in_bytes" } else { "memory.current" }, 100);
        fs::write(temp.path().join("memory.stat"), format!("anon 1\ninactive_file {}\nactive_file 0\n", 10 * MIB))
            .unwrap();
        for (step, limit) in steps {
            fs::create_dir(temp.path().join(step)).unwrap();
            write(&format!("{step}/{ram}"), *limit);
        }
        if version == Version::V1 {
            write(sum, limit + 50);
            steps.iter().for_each(|(step, limit)| write(&format!("{step}/{sum}"), limit + 50));
        }
        let inode = fs::metadata(temp.path()).unwrap().ino();
        let directory = JobDirectory { version, path: temp.path().to_path_buf(), inode };
        (temp, directory)
    }

    fn mib(directory: &JobDirectory, name: &str) -> u64 {
        fs::read_to_string(directory.path.join(name)).unwrap().trim().parse::<u64>().unwrap() / MIB
    }

    fn lower(from: u64, to: u64) -> Lower {
        Lower { from: from * MIB, to: to * MIB, swap: Some(50 * MIB), resized: None }
    }

    #[test]
    fn a_step_that_has_asked_for_less_keeps_that() {
        let (_temp, job) = job(Version::V2, 800, &[("step_0", 800), ("step_1", 100), ("other", 800)]);
        job.raise(&job.open().unwrap(), (800 * MIB, 800 * MIB, 900 * MIB), None).unwrap();
        let limits = ["memory.max", "step_0/memory.max", "step_1/memory.max", "other/memory.max"];
        assert_eq!(limits.map(|name| mib(&job, name)), [900, 900, 100, 800]);
        job.lower(lower(900, 800)).unwrap();
        assert_eq!(limits.map(|name| mib(&job, name)), [800, 800, 100, 800]);
    }

    #[test]
    fn a_limit_that_somebody_has_changed_meanwhile_is_neither_raised_nor_lowered() {
        let (_temp, job) = job(Version::V2, 512, &[("step_0", 512)]);
        job.raise(&job.open().unwrap(), (256 * MIB, 256 * MIB, 288 * MIB), None).unwrap();
        assert_eq!((mib(&job, "memory.max"), mib(&job, "step_0/memory.max")), (512, 512));
        job.lower(lower(288, 256)).unwrap();
        assert_eq!((mib(&job, "memory.max"), mib(&job, "step_0/memory.max")), (512, 512));
    }

    #[test]
    fn memory_max_is_never_below_what_is_in_use() {
        let (_temp, job) = job(Version::V2, 200, &[]);
        job.lower(lower(200, 90)).unwrap();
        assert_eq!(mib(&job, "memory.max"), 200, "nothing takes back what is above");
        fs::write(job.path.join("memory.reclaim"), "").unwrap();
        job.lower(lower(200, 90)).unwrap();
        assert_eq!((mib(&job, "memory.reclaim"), mib(&job, "memory.max")), (10, 200));
        job.lower(lower(200, 100)).unwrap();
        assert_eq!(mib(&job, "memory.max"), 100);
    }

    #[test]
    fn swap_stays_the_same_also_after_an_end_between_two_writes() {
        let (_temp, job) = job(Version::V1, 800, &[("step_0", 800)]);
        let files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
        let all = || [files.map(|file| mib(&job, file)), files.map(|file| mib(&job, &format!("step_0/{file}")))];
        job.raise(&job.open().unwrap(), (800 * MIB, 800 * MIB, 900 * MIB), Some(50 * MIB)).unwrap();
        assert_eq!(all(), [[900, 950], [900, 950]]);
        job.lower(lower(900, 800)).unwrap();
        assert_eq!(all(), [[800, 850], [800, 850]]);
        // A step begins.
        let begins = job.path.join("step_1");
        fs::create_dir(&begins).unwrap();
        fs::write(begins.join(files[0]), (800 * MIB).to_string()).unwrap();
        fs::write(begins.join(files[1]), "9223372036854771712").unwrap();
        job.follow(&job.open().unwrap(), (800 * MIB, 900 * MIB), Some(50 * MIB)).unwrap();
        assert_eq!(mib(&job, "step_1/memory.limit_in_bytes"), 800);
        fs::remove_dir_all(begins).unwrap();
        // The sum was raised, and no more.
        for place in ["", "step_0/"] {
            fs::write(job.path.join(format!("{place}{}", files[1])), (950 * MIB).to_string()).unwrap();
        }
        job.lower(lower(800, 800)).unwrap();
        assert_eq!(all(), [[800, 850], [800, 850]]);
        fs::write(job.path.join("step_0").join(files[1]), (950 * MIB).to_string()).unwrap();
        job.raise(&job.open().unwrap(), (800 * MIB, 800 * MIB, 900 * MIB), Some(50 * MIB)).unwrap();
        assert_eq!(all(), [[900, 950], [900, 950]]);
    }

    #[test]
    fn a_step_that_ends_or_fails_keeps_no_other_from_its_memory() {
        let (_temp, job) = job(Version::V2, 800, &[("step_0", 800), ("step_1", 800), ("step_2", 800)]);
        // The files of one are gone, and those of another say nothing.
        fs::remove_file(job.path.join("step_0/memory.max")).unwrap();
        job.raise(&job.open().unwrap(), (800 * MIB, 800 * MIB, 900 * MIB), None).unwrap();
        assert_eq!(["memory.max", "step_1/memory.max", "step_2/memory.max"].map(|name| mib(&job, name)), [900; 3]);
        fs::write(job.path.join("step_1/memory.max"), "?").unwrap();
        job.raise(&job.open().unwrap(), (800 * MIB, 900 * MIB, 1000 * MIB), None).unwrap_err();
        assert_eq!(["memory.max", "step_2/memory.max"].map(|name| mib(&job, name)), [1000; 2]);
    }

    #[test]
    fn only_a_job_without_its_directory_has_ended() {
        let (_temp, job) = job(Version::V2, 1, &[]);
        assert!(job.open().is_ok());
        let other = JobDirectory { inode: job.inode + 1, ..job.clone() };
        assert!(matches!(other.open(), Err(LookFailure::Gone)));
        let dir = job.open().unwrap();
        fs::remove_file(job.path.join("memory.max")).unwrap();
        assert!(matches!(job.look(&dir), Err(LookFailure::Failed(_))));
        fs::remove_dir_all(&job.path).unwrap();
        assert!(matches!(job.look(&dir), Err(LookFailure::Gone)));
        assert!(matches!(job.open(), Err(LookFailure::Gone)));
    }
}
