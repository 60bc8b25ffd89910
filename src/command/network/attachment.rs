// SPDX-License-Identifier: GPL-2.0-or-later
//! Attaches the programs to the branches, and finds those of an earlier `jobfence hold`, whose tables go on.

use std::os::fd::AsFd;

use jobfence::cgroup::network::{BOUNDS, BoundKey, BoundValue, EGRESS, INGRESS};
use jobfence::error::{Error, Result};
use jobfence::sys::bpf::map::BpfMap;
use jobfence::sys::bpf::{BpfProgram, Insn, ProgramKind, attached, ours};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

use super::branches::NetworkBranch;
use super::program::{BranchLevels, CountKey, CountedPackets, NetworkTables, egress, ingress};

/// The names of the other tables. At most 15 bytes.
const COUNTS: &str = "jobfence_counts";
const DEVICES: &str = "jobfence_ifs";

/// The most entries: jobs times interfaces, interfaces, and jobs. An entry takes memory only when it is there.
pub const MOST_COUNTS: u32 = 1 << 17;
const MOST_DEVICES: u32 = 1024;
const MOST_BOUNDS: u32 = 1 << 16;

const KINDS: [ProgramKind; 2] = [EGRESS, INGRESS];

/// The programs of all branches, with their tables.
#[derive(Debug)]
pub struct NetworkAttachment {
    pub tables: NetworkTables,
    /// To which directories, by their numbers, programs for which levels are attached.
    attached: Vec<(u64, BranchLevels)>,
}

impl NetworkAttachment {
    /// With the tables of programs that are there, or with new ones. Returns also whether the tables are new.
    pub fn begin(branches: &[NetworkBranch]) -> Result<(Self, bool)> {
        let failed = |errno| Error::new("make tables for network programs").errno(errno);
        let known = branches.iter().find_map(|branch| tables_of(&branch.dir).ok().flatten());
        let is_new = known.is_none();
        let tables = match known {
            Some(tables) => tables,
            None => NetworkTables {
                counts: BpfMap::create::<CountKey, CountedPackets>(COUNTS, MOST_COUNTS).map_err(failed)?,
                devices: BpfMap::create::<u32, u32>(DEVICES, MOST_DEVICES).map_err(failed)?,
                bounds: BpfMap::create::<BoundKey, BoundValue>(BOUNDS, MOST_BOUNDS).map_err(failed)?,
            },
        };
        Ok((Self { tables, attached: Vec::new() }, is_new))
    }

    /// Attaches programs where they are missing. An error leaves the others attached.
    pub fn attach(&mut self, branches: &[NetworkBranch]) -> Result<()> {
        let mut attached = Vec::new();
        for branch in branches {
            let now = (branch.dir.stat()?.st_ino, branch.levels.clone());
            if !self.attached.contains(&now) || !are_there(&branch.dir)? {
                for (kind, insns) in KINDS.iter().zip(self.programs(&branch.levels)) {
                    put(kind, &branch.dir, &insns, &self.tables)?;
                }
            }
            attached.push(now);
        }
        self.attached = attached;
        Ok(())
    }

    fn programs(&self, levels: &BranchLevels) -> [Vec<Insn>; 2] {
        [egress(&self.tables, levels), ingress(&self.tables, levels)]
    }
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

/// Attaches one program, unless it is there, and detaches an earlier one.
fn put(kind: &ProgramKind, dir: &Dir, insns: &[Insn], tables: &NetworkTables) -> Result<()> {
    let earlier = ours_at(kind, dir)?;
    let program = BpfProgram::load(kind, insns)?;
    let maps = |program: &BpfProgram| program.maps().unwrap_or_default();
    let is_same = |known: &&BpfProgram| known.tag == program.tag && maps(known).contains(&tables.counts.id);
    let same = earlier.iter().find(is_same).map(|known| known.id);
    if same.is_none() {
        program.attach(kind, dir).map_err(|errno| {
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
    // Detached only now, so that one of them counted and bounded at every moment.
    for earlier in earlier.iter().filter(|earlier| Some(earlier.id) != same) {
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

/// The tables of the programs at a directory. `None`: there are none, or those of another release.
fn tables_of(dir: &Dir) -> Result<Option<NetworkTables>> {
    let failed = |errno| Error::os("ask for the tables of the network programs of", dir.path(), errno);
    for program in ours_at(&EGRESS, dir)? {
        let maps = program.maps().map_err(failed)?.into_iter().map(BpfMap::by_id);
        let mut maps = maps.collect::<Result<Vec<BpfMap>, Errno>>().map_err(failed)?;
        let mut take = |is_it: &dyn Fn(&BpfMap) -> bool| {
            let at = maps.iter().position(is_it)?;
            Some(maps.swap_remove(at))
        };
        let tables = (
            take(&|map| map.is::<CountKey, CountedPackets>(COUNTS)),
            take(&|map| map.is::<u32, u32>(DEVICES)),
            take(&|map| map.is::<BoundKey, BoundValue>(BOUNDS)),
        );
        if let (Some(counts), Some(devices), Some(bounds)) = tables {
            return Ok(Some(NetworkTables { counts, devices, bounds }));
        }
    }
    Ok(None)
}

/// Detaches all programs of jobfence's. Returns from how many directories.
pub fn detach(branches: &[NetworkBranch]) -> Result<usize> {
    let mut count = 0;
    for branch in branches {
        let mut is_any = false;
        for kind in &KINDS {
            for program in ours_at(kind, &branch.dir)? {
                detach_one(kind, &program, &branch.dir)?;
                is_any = true;
            }
        }
        count += usize::from(is_any);
    }
    Ok(count)
}
