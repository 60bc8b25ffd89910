// SPDX-License-Identifier: GPL-2.0-or-later
//! Which limit is written into which of a step's directories, and which is left as it is.

use super::LimitError;
use super::own::is_inhabited;
use crate::cgroup::dir::Dir;
use crate::cgroup::layout::Version;
use crate::cgroup::limits::{self, CpuQuota, SwapLimit};
use crate::config::Limit;
use crate::error::{Error, Result};
use crate::job::Cpus;
use crate::policy::{Limits, Plan};

/// What else lives in a job's directory, where that is the scheduler's.
pub struct Beside {
    /// For its daemons, on top of the grant.
    pub headroom: Cpus,
    /// What the batch step was told that the job has.
    pub batch: Option<CpuQuota>,
}

/// Processes and threads that a step daemon of the scheduler may have in the job's directory, on top of the job's own.
const PROCESSES_OF_A_DAEMON: u64 = 64;

/// Limits the processes of the job and of the step. What is in the scheduler's directories shares the job's with a daemon for
/// each step that lives.
pub fn processes(job: &Dir, step: &Dir, plan: &Plan, beside: Option<&Beside>) -> Result<()> {
    if let Some(count) = plan.job.processes {
        let daemons = match beside {
            Some(_) => job.list(true)?.iter().filter(|name| name.starts_with("step_")).count(),
            None => 0,
        };
        let daemons = PROCESSES_OF_A_DAEMON.saturating_mul(u64::try_from(daemons).unwrap_or(u64::MAX));
        limits::set_processes(job, count.saturating_add(daemons))?;
    }
    plan.step.processes.map_or(Ok(()), |count| limits::set_processes(step, count))
}

/// The step's quota is never above the job's, which may be lower than planned when an earlier step was told less; v1 would
/// refuse it. With headroom in it the job's own quota does not tell (it may have been another headroom): the batch step's does.
pub fn cpu(job: &Dir, step: &Dir, version: Version, plan: &Plan, beside: Option<&Beside>) -> Result<()> {
    // Not limited, the controller may well be off: in cgroup2 there is no file to read then.
    if plan.job.cpu.is_none() && plan.step.cpu.is_none() {
        return Ok(());
    }
    let above = match plan.job.cpu {
        Some(quota) => {
            let headroom = beside.map_or(Cpus::whole(0), |beside| beside.headroom);
            Some(limits::lower_cpu_quota(job, version, quota.and(headroom))?)
        }
        None => limits::cpu_quota(job, version)?,
    };
    let above = match beside {
        None => above,
        Some(beside) => match (plan.job.cpu, beside.batch) {
            (Some(job), Some(batch)) => Some(job.at_most(batch)),
            (job, batch) => job.or(batch),
        },
    };
    match plan.step.cpu {
        Some(quota) => limits::set_cpu_quota(step, version, above.map_or(quota, |above| quota.at_most(above))),
        None => Ok(()),
    }
}

/// Whether a job's memory limits are left alone: they are what they should be, or an earlier step has set higher ones and
/// processes still run in them, and lowering them could kill one.
pub fn stays_in_memory(job: &Dir, version: Version, limits: &Limits) -> bool {
    let Some(ram) = limits.ram else { return false };
    let (file, swap_file) = limits::memory_files(version);
    let Ok(Some(current)) = limits::memory_limit(job, file) else { return false };
    let is_limited = |file| limits::memory_limit(job, file).is_ok_and(|limit| limit.is_some());
    // The extern step is there from the job's beginning to its end, and mostly has no process. This step has none yet.
    let lives = |name: &String| job.child(name).is_ok_and(|step| is_inhabited(&step, 0));
    let others = || job.list(true).is_ok_and(|steps| steps.iter().any(lives));
    let right = current == limits::whole_pages(ram) && (limits.swap.is_none() || is_limited(swap_file));
    right || current > ram && others()
}

/// Limits RAM and swap, and reads back.
pub fn memory(dir: &Dir, version: Version, limits: &Limits, errors: &mut Vec<LimitError>) {
    memory_and(dir, version, limits, limits.ram.is_some(), errors);
}

fn memory_and(dir: &Dir, version: Version, limits: &Limits, ram_is_limited: bool, errors: &mut Vec<LimitError>) {
    if let Some(ram) = limits.ram {
        errors.extend(limits::set_ram(dir, version, ram).err().map(|error| (Limit::Ram, error)));
    }
    if let Some(swap) = limits.swap {
        match limits::set_swap(dir, version, swap, ram_is_limited) {
            Ok(true) => {}
            Ok(false) if !has_swap() => {}
            Ok(false) => errors.push((
                Limit::Swap,
                Error::new("this host has swap, but its kernel does not count whose it is; no limit of swap in")
                    .at(dir.path())
                    .hint("boot with swapaccount=1, or set ConstrainSwapSpace=no"),
            )),
            Err(error) => errors.push((Limit::Swap, error)),
        }
    }
}

/// Limits RAM and swap where the scheduler has not done so itself.
pub fn memory_beside(dir: &Dir, version: Version, limits: &Limits, errors: &mut Vec<LimitError>) {
    let (file, swap_file) = limits::memory_files(version);
    let theirs = |file| limits::memory_limit(dir, file).ok().flatten();
    let ram = theirs(file);
    let swap = limits.swap.filter(|_| theirs(swap_file).is_none());
    let rest = Limits {
        ram: limits.ram.filter(|_| ram.is_none()),
        // v1 limits the sum, which cannot be below the limit of RAM that is there.
        swap: swap.map(|swap| SwapLimit { ram: ram.unwrap_or(swap.ram), ..swap }),
        ..Limits::default()
    };
    memory_and(dir, version, &rest, ram.is_some() || rest.ram.is_some(), errors);
}

/// That nothing of what was planned for these controllers could be set, for one reason.
pub fn none_of(plan: &Plan, controllers: impl Fn(&str) -> bool, error: &Error) -> Vec<LimitError> {
    let limits = [
        (Limit::Cpu, "cpu", plan.job.cpu.is_some() || plan.step.cpu.is_some()),
        (Limit::Ram, "memory", plan.step.ram.is_some()),
        (Limit::Swap, "memory", plan.step.swap.is_some()),
        (Limit::Processes, "pids", plan.step.processes.is_some()),
    ];
    let theirs = limits.into_iter().filter(|(_, controller, wanted)| *wanted && controllers(controller));
    theirs.map(|(limit, ..)| (limit, error.clone())).collect()
}

/// Whether any swap is in use: `/proc/swaps` has a line for each device, after its heading.
fn has_swap() -> bool {
    let swaps = Dir::open("/proc").and_then(|proc| proc.read("swaps"));
    // A file that cannot be read says nothing good: assume that there is swap to limit.
    swaps.map_or(true, |text| text.lines().count() > 1)
}
