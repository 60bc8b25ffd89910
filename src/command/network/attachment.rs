// SPDX-License-Identifier: GPL-2.0-or-later
//! Attaches the programs to jobfence's own directory, and finds those of an earlier `jobfence hold`, whose tables go on.

use std::os::fd::AsFd;

use jobfence::cgroup::network::{BOUNDS, BoundKey, BoundValue, EGRESS, INGRESS};
use jobfence::error::{Error, Result};
use jobfence::sys::bpf::map::BpfMap;
use jobfence::sys::bpf::{BpfProgram, Insn, ProgramKind, attached, ours};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

use super::program::{CountKey, CountedPackets, JobLevel, NetworkTables, egress, ingress};

/// The names of the other tables. At most 15 bytes.
const COUNTS: &str = "jobfence_counts";
const DEVICES: &str = "jobfence_ifs";

/// The most entries: jobs times interfaces, interfaces, and jobs. An entry takes memory only when it is there.
pub const MOST_COUNTS: u32 = 1 << 17;
const MOST_DEVICES: u32 = 1024;
const MOST_BOUNDS: u32 = 1 << 16;

/// More entries than a table has.
pub const MOST_KEYS: usize = MOST_COUNTS as usize + 1;

const OLD_KERNEL: &str = "the programs need Linux 5.12 or later, on other machines than x86 a later one: atomic operations that return a value";

const KINDS: [ProgramKind; 2] = [EGRESS, INGRESS];

/// The programs at jobfence's own directory, with their tables.
#[derive(Debug)]
pub struct NetworkAttachment {
    pub tables: NetworkTables,
    /// Tables of earlier programs, which another release made. What they have of bounds goes on.
    earlier: Vec<BpfMap>,
    /// Where they are attached.
    at: Option<Dir>,
}

impl NetworkAttachment {
    /// With the tables of programs that are there, or with new ones. Returns also whether the tables are new.
    pub fn begin(dir: &Dir) -> Result<(Self, bool)> {
        // A table that cannot be read is not taken for one that is not there: its bounds would be lost.
        let (known, earlier) = tables_of(dir)?;
        let is_new = known.is_none();
        let tables = match known {
            Some(tables) => tables,
            None => new_tables()?,
        };
        let begun = Self { tables, earlier, at: None };
        begun.take_over_bounds()?;
        Ok((begun, is_new))
    }

    /// Takes over the bounds of earlier tables, unless a launch has written there already.
    fn take_over_bounds(&self) -> Result<()> {
        let failed = |errno| Error::new("take over the bounds of jobs' network from earlier programs").errno(errno);
        for earlier in &self.earlier {
            copy_bounds(earlier, &self.tables.bounds).map_err(failed)?;
        }
        Ok(())
    }

    /// Attaches programs where they are missing, in the place of earlier ones.
    pub fn attach(&mut self, dir: &Dir, level: JobLevel) -> Result<()> {
        let is_same = |at: &Dir| at.stat().is_ok_and(|at| dir.stat().is_ok_and(|dir| dir.st_ino == at.st_ino));
        if self.at.as_ref().is_some_and(is_same) && are_there(dir)? {
            return Ok(());
        }
        for (kind, insns) in KINDS.iter().zip(programs(&self.tables, level)?) {
            put(kind, dir, &insns, &self.tables)?;
        }
        // A launch may have written to an earlier table until now.
        self.take_over_bounds()?;
        self.earlier.clear();
        let here = dir.child(".")?.named(dir.path().to_path_buf());
        if let Some(before) = self.at.replace(here).filter(|before| !is_same(before)) {
            // CgroupBase is another one, or the directory was made anew.
            match detach(&before) {
                Err(error) if matches!(error.kernel_errno(), Some(Errno::ENODEV | Errno::ENOENT | Errno::EBADF)) => {}
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Detaches them.
    pub fn end(&self) -> Result<bool> {
        self.at.as_ref().map_or(Ok(false), detach)
    }
}

fn programs(tables: &NetworkTables, level: JobLevel) -> Result<[Vec<Insn>; 2]> {
    Ok([egress(tables, level)?, ingress(tables, level)?])
}

fn new_tables() -> Result<NetworkTables> {
    let failed = |errno| Error::new("make tables for network programs").errno(errno);
    Ok(NetworkTables {
        counts: BpfMap::create::<CountKey, CountedPackets>(COUNTS, MOST_COUNTS).map_err(failed)?,
        devices: BpfMap::create::<u32, u32>(DEVICES, MOST_DEVICES).map_err(failed)?,
        bounds: BpfMap::create::<BoundKey, BoundValue>(BOUNDS, MOST_BOUNDS).map_err(failed)?,
    })
}

/// Whether this kernel takes the programs. They are not attached.
pub fn try_programs() -> Result<()> {
    let tables = new_tables()?;
    for (kind, insns) in KINDS.iter().zip(programs(&tables, JobLevel(1))?) {
        load(kind, &insns)?;
    }
    Ok(())
}

fn load(kind: &ProgramKind, insns: &[Insn]) -> Result<BpfProgram> {
    BpfProgram::load(kind, insns).map_err(|error| match error.kernel_errno() {
        Some(Errno::EINVAL | Errno::EOPNOTSUPP) => error.hint(OLD_KERNEL),
        _ => error,
    })
}

/// Bounds that the new table does not have.
fn copy_bounds(from: &BpfMap, to: &BpfMap) -> Result<(), Errno> {
    for key in from.keys::<BoundKey>(MOST_KEYS)? {
        if let Some(value) = from.get::<_, BoundValue>(key)? {
            to.add(key, value)?;
        }
    }
    Ok(())
}

/// Whether a program of each kind is at the directory.
fn are_there(dir: &Dir) -> Result<bool> {
    for kind in &KINDS {
        if ours_at(kind, dir)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Attaches one program, unless it is there, in the place of an earlier one.
fn put(kind: &ProgramKind, dir: &Dir, insns: &[Insn], tables: &NetworkTables) -> Result<()> {
    let earlier = ours_at(kind, dir)?;
    let program = load(kind, insns)?;
    let maps = |program: &BpfProgram| program.maps().unwrap_or_default();
    let is_same = |known: &&BpfProgram| known.tag == program.tag && maps(known).contains(&tables.counts.id);
    let mut keep = earlier.iter().find(is_same).map(|known| known.id);
    if keep.is_none() {
        let done = match earlier.first() {
            Some(replaced) => {
                keep = Some(replaced.id);
                program.replace(replaced, kind, dir)
            }
            None => program.attach(kind, dir),
        };
        done.map_err(|errno| {
            let error = Error::os("attach a network program to", dir.path(), errno);
            match errno {
                Errno::EPERM => {
                    error.hint("a program that was attached above alone, without BPF_F_ALLOW_MULTI, forbids it")
                }
                Errno::E2BIG => error.hint("too many programs are attached to it"),
                _ => error,
            }
        })?;
    }
    for earlier in earlier.iter().filter(|earlier| Some(earlier.id) != keep) {
        detach_one(kind, earlier, dir)?;
    }
    Ok(())
}

fn detach_one(kind: &ProgramKind, program: &BpfProgram, dir: &Dir) -> Result<()> {
    match program.detach(kind, dir) {
        // It is gone.
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::os("detach our network program from", dir.path(), errno)),
    }
}

fn ours_at(kind: &ProgramKind, dir: &Dir) -> Result<Vec<BpfProgram>> {
    let failed = |errno| {
        let error = Error::os("ask for the network programs of", dir.path(), errno);
        match errno {
            Errno::EINVAL | Errno::ENOSYS => {
                error.hint("this kernel has no network programs for cgroups (CONFIG_CGROUP_BPF, CONFIG_BPF_SYSCALL)")
            }
            _ => error,
        }
    };
    let ids = attached(kind, dir.as_fd()).map_err(failed)?.ids;
    ours(kind, &ids).map_err(|(errno, id)| failed(errno).value(id))
}

/// The tables of the programs at a directory, and the tables of bounds of those whose other tables are of another release.
fn tables_of(dir: &Dir) -> Result<(Option<NetworkTables>, Vec<BpfMap>)> {
    let failed = |errno| Error::os("ask for the tables of the network programs of", dir.path(), errno);
    let (mut known, mut earlier) = (None, Vec::new());
    for program in ours_at(&EGRESS, dir)? {
        let maps = program.maps().map_err(failed)?.into_iter().map(BpfMap::by_id);
        let mut maps = maps.collect::<Result<Vec<BpfMap>, Errno>>().map_err(failed)?;
        let mut take = |is_it: &dyn Fn(&BpfMap) -> bool| {
            let at = maps.iter().position(is_it)?;
            Some(maps.swap_remove(at))
        };
        let (counts, devices) =
            (take(&|map| map.is::<CountKey, CountedPackets>(COUNTS)), take(&|map| map.is::<u32, u32>(DEVICES)));
        let Some(bounds) = take(&|map| map.is::<BoundKey, BoundValue>(BOUNDS)) else {
            log::error!(
                "jobs that run now lose their NetworkMax: the table of another release's network program {} is not readable here",
                program.id
            );
            continue;
        };
        match (counts, devices) {
            (Some(counts), Some(devices)) if known.is_none() => {
                known = Some(NetworkTables { counts, devices, bounds });
            }
            _ => earlier.push(bounds),
        }
    }
    Ok((known, earlier))
}

/// Detaches all programs of jobfence's. Returns whether there were any.
pub fn detach(dir: &Dir) -> Result<bool> {
    let mut is_any = false;
    for kind in &KINDS {
        let programs = match ours_at(kind, dir) {
            // A kernel without such programs has none here.
            Err(error) if matches!(error.kernel_errno(), Some(Errno::EINVAL | Errno::ENOSYS)) => Vec::new(),
            found => found?,
        };
        for program in programs {
            detach_one(kind, &program, dir)?;
            is_any = true;
        }
    }
    Ok(is_any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_the_programs_and_bounds_go_on_in_new_tables() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        try_programs().unwrap();
        let (old, new) = (new_tables().unwrap(), new_tables().unwrap());
        old.bounds.set::<BoundKey, BoundValue>(1, [10, 7]).unwrap();
        old.bounds.set::<BoundKey, BoundValue>(2, [20, 0]).unwrap();
        // A launch was there.
        new.bounds.set::<BoundKey, BoundValue>(2, [5, 0]).unwrap();
        let new = NetworkAttachment { tables: new, earlier: vec![old.bounds], at: None };
        new.take_over_bounds().unwrap();
        let of = |job: BoundKey| new.tables.bounds.get::<_, BoundValue>(job).unwrap();
        assert_eq!([of(1), of(2), of(3)], [Some([10, 7]), Some([5, 0]), None]);
    }
}
