// SPDX-License-Identifier: GPL-2.0-or-later
//! The directory of one job that may be lent memory, in the hierarchy with the memory controller, and its limits.
//!
//! No write here waits for long. To lower a limit, the kernel takes back what is above it while the writer waits (cgroup-v1/memory.rst;
//! cgroup-v2.rst, memory.high). So a limit goes down in steps, and on v2 `memory.max` only below nothing that is in use: there the kernel
//! would kill.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{self, SwapLimit, memory_files, memory_in_use, memory_limit};
use jobfence::error::{Error, Result};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::policy::PAGE;
use crate::armed::cached;

/// So much the kernel takes back in one write, at most: some milliseconds.
const STEP: u64 = 64 << 20;

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

/// What a job has and uses, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenMemory {
    /// `None`: it has no limit.
    pub limit: Option<u64>,
    /// With all page cache.
    pub charged: u64,
    /// Without that of files, which the kernel takes back before it kills.
    pub used: u64,
}

impl JobDirectory {
    /// Where the job of a step has its memory. The directory may be a scheduler's.
    pub fn of_step(step: &LivingStep<'_>) -> Option<(Self, bool)> {
        let place = step.places.iter().find(|place| place.hierarchy.has("memory"))?;
        let inode = std::fs::symlink_metadata(&place.job).ok()?.ino();
        let directory = Self { version: place.hierarchy.version, path: place.job.clone(), inode };
        Some((directory, place.is_overlay))
    }

    /// `None`: the job has ended.
    pub fn open(&self) -> Option<Dir> {
        let dir = Dir::open(&self.path).ok()?;
        dir.stat().is_ok_and(|stat| stat.st_ino == self.inode).then_some(dir)
    }

    /// What is there. `None`: the job has ended meanwhile.
    pub fn look(&self, dir: &Dir) -> Option<SeenMemory> {
        let limit = memory_limit(dir, memory_files(self.version).0).ok()?;
        let charged = memory_in_use(dir, self.version)?;
        Some(SeenMemory { limit, charged, used: charged.saturating_sub(cached(dir, self.version)) })
    }

    /// Raises the limit of the job, and of those steps that have all of the job's. Its steps come first: so nothing is raised before all
    /// is.
    pub fn raise(&self, dir: &Dir, (grant, limit): (u64, u64)) -> Result<()> {
        self.follow(dir, (grant, limit))?;
        self.set(dir, limit)
    }

    /// Raises the steps that have all of the job's memory to its limit. A step with less has asked for that.
    pub fn follow(&self, dir: &Dir, (grant, limit): (u64, u64)) -> Result<()> {
        for step in self.steps(dir)? {
            let now = memory_limit(&step, memory_files(self.version).0).ok().flatten();
            if now.is_some_and(|now| now >= grant && now < limit) {
                self.set(&step, limit)?;
            }
        }
        Ok(())
    }

    /// Lowers the limit of the job as far as nothing has to wait, and returns it.
    pub fn lower(&self, dir: &Dir, seen: SeenMemory, limit: u64) -> Result<u64> {
        let now = seen.limit.unwrap_or(u64::MAX);
        // What is in use stays, and the job takes no more: the least that can be had of it at once.
        let held = seen.used.div_ceil(PAGE).saturating_mul(PAGE);
        let step = limits::whole_pages(limit.max(seen.charged.saturating_sub(STEP)).max(held)).min(now);
        if self.version == Version::V2 {
            self.set_soft(dir, Some(step))?;
            if memory_in_use(dir, self.version).is_none_or(|used| used > step) {
                return Ok(now);
            }
        }
        if step >= now {
            return Ok(now);
        }
        match self.set(dir, step) {
            Err(error) if error.kernel_errno() == Some(Errno::EBUSY) => return Ok(now),
            other => other?,
        }
        for below in self.steps(dir)? {
            let theirs = memory_limit(&below, memory_files(self.version).0).ok().flatten();
            // The job's own limit holds, and a later look does it.
            if theirs.is_some_and(|theirs| theirs > step) {
                let _ = self.set(&below, step);
            }
        }
        Ok(step)
    }

    fn steps(&self, dir: &Dir) -> Result<Vec<Dir>> {
        let names = dir.list(true)?.into_iter().filter(|name| name.starts_with(STEPS));
        // A step may end meanwhile.
        Ok(names.filter_map(|name| dir.child(&name).ok()).collect())
    }

    /// v1 limits the sum of memory and swap, too, which is never below the limit of memory: the swap stays the same.
    fn set(&self, dir: &Dir, limit: u64) -> Result<()> {
        let (ram_file, swap_file) = memory_files(self.version);
        let now = memory_limit(dir, ram_file)?;
        let sum = if self.version == Version::V1 { memory_limit(dir, swap_file).ok().flatten() } else { None };
        let swap = sum.zip(now).map(|(sum, now)| sum.saturating_sub(now));
        let set_sum = || match swap {
            Some(swap) => limits::set_swap(dir, self.version, SwapLimit { swap, ram: limit }, true).map(drop),
            None => Ok(()),
        };
        if now.is_some_and(|now| now < limit) {
            set_sum()?;
            return limits::set_ram(dir, self.version, limit);
        }
        limits::set_ram(dir, self.version, limit)?;
        set_sum()
    }

    /// Has the kernel slow the job above this, on v2. From Linux 6.16 on the write waits for nothing (`O_NONBLOCK`), and before that for
    /// what `lower` has made short.
    pub fn set_soft(&self, dir: &Dir, soft: Option<u64>) -> Result<()> {
        if self.version == Version::V1 {
            return Ok(());
        }
        let file = limits::high_file(self.version);
        if memory_limit(dir, file)? == soft {
            return Ok(());
        }
        let value = soft.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        let fd = dir.open_file(file, OFlag::O_WRONLY | OFlag::O_NONBLOCK)?;
        let written = nix::unistd::write(&fd, value.as_bytes());
        written.map(drop).map_err(|errno| Error::os("write", dir.path().join(file), errno).value(value))
    }

    /// Above which use the kernel slows the job, on v2.
    pub fn soft(&self, dir: &Dir) -> Option<u64> {
        if self.version == Version::V1 { None } else { memory_limit(dir, limits::high_file(self.version)).ok()? }
    }

    /// Has the kernel slow those steps so much above their grant that are slowed where the job is, or above.
    pub fn follow_softly(&self, dir: &Dir, high: u64, lent: u64) -> Result<()> {
        for step in self.steps(dir)? {
            if self.soft(&step).is_some_and(|now| now >= high) {
                self.set_soft(&step, Some(high.saturating_add(lent)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;

    /// A directory of v2 with files that only hold what is written.
    fn job(limit: u64, charged: u64, steps: &[(&str, u64)]) -> (tempfile::TempDir, JobDirectory) {
        let temp = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
        write("memory.max", &(limit * MIB).to_string());
        write("memory.high", "max");
        write("memory.current", &(charged * MIB).to_string());
        write("memory.stat", &format!("anon 1\ninactive_file {}\nactive_file {}\n", 20 * MIB, 10 * MIB));
        for (step, limit) in steps {
            fs::create_dir(temp.path().join(step)).unwrap();
            write(&format!("{step}/memory.max"), &(limit * MIB).to_string());
            write(&format!("{step}/memory.high"), "max");
        }
        let inode = fs::metadata(temp.path()).unwrap().ino();
        let directory = JobDirectory { version: Version::V2, path: temp.path().to_path_buf(), inode };
        (temp, directory)
    }

    fn mib(directory: &JobDirectory, name: &str) -> u64 {
        fs::read_to_string(directory.path.join(name)).unwrap().trim().parse::<u64>().unwrap() / MIB
    }

    #[test]
    fn a_step_that_has_asked_for_less_keeps_that() {
        let (_temp, job) = job(800, 790, &[("step_0", 800), ("step_1", 100), ("other", 800)]);
        let dir = job.open().unwrap();
        job.raise(&dir, (800 * MIB, 900 * MIB)).unwrap();
        let limits = ["memory.max", "step_0/memory.max", "step_1/memory.max", "other/memory.max"];
        assert_eq!(limits.map(|name| mib(&job, name)), [900, 900, 100, 800]);
        let seen = SeenMemory { limit: Some(900 * MIB), charged: 700 * MIB, used: 600 * MIB };
        fs::write(job.path.join("memory.current"), "1").unwrap();
        assert_eq!(job.lower(&dir, seen, 800 * MIB).unwrap(), 800 * MIB);
        assert_eq!(limits.map(|name| mib(&job, name)), [800, 800, 100, 800]);
    }

    #[test]
    fn a_limit_goes_down_in_steps_and_never_below_what_is_in_use() {
        let (_temp, job) = job(1200, 1100, &[]);
        let dir = job.open().unwrap();
        let seen = job.look(&dir).unwrap();
        assert_eq!((seen.charged / MIB, seen.used / MIB), (1100, 1070));
        // What is above would be taken back first, and nothing does that here.
        assert_eq!(job.lower(&dir, seen, 800 * MIB).unwrap(), 1200 * MIB);
        assert_eq!((mib(&job, "memory.max"), mib(&job, "memory.high")), (1200, 1070));
        fs::write(job.path.join("memory.current"), (1070 * MIB).to_string()).unwrap();
        assert_eq!(job.lower(&dir, seen, 800 * MIB).unwrap(), 1070 * MIB);
        let cached = SeenMemory { used: 10 * MIB, ..seen };
        assert_eq!(job.lower(&dir, cached, 800 * MIB).unwrap(), 1200 * MIB);
        assert_eq!(mib(&job, "memory.high"), 1036, "one step");
    }

    #[test]
    fn another_directory_of_the_name_is_not_the_jobs() {
        let (_temp, job) = job(1, 1, &[]);
        assert!(job.open().is_some());
        assert!(JobDirectory { inode: job.inode + 1, ..job }.open().is_none());
    }
}
