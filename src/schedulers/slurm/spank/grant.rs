// SPDX-License-Identifier: GPL-2.0-or-later
//! What Slurm granted on this node, from the credential and nothing that a user can write.
//!
//! A step's environment is ignored, and its request except for the number of tasks. The units, read in all releases from 22.05 to 26.05
//! (src/slurmd/slurmd/req.c `_get_ncpus`, src/slurmd/slurmstepd/slurmstepd_job.c):
//! - `S_JOB_NCPUS`: in a batch step, the job's hardware threads on this node, as in `SLURM_JOB_CPUS_PER_NODE`; in other steps,
//!   the step's cores from its credential times the threads per core, so never 0; in the extern step 0.
//! - `S_JOB_ALLOC_CORES`, `S_STEP_ALLOC_CORES`: lists of cores, in Slurm's own numbers.
//!
//! sacct's AllocCPUS of a step (`step_set_alloc_tres` in src/slurmctld/step_mgr.c, later src/stepmgr/stepmgr.c) is less than `S_JOB_NCPUS`
//! in two cases:
//! - Slurm allocated the *job* a part of a core (CR_CPU). The job's own number says so, and limits the step, too.
//! - `--exact`, or `-c`, which implies it, asks for a part of a core. Slurm gives such a step whole cores, and their other threads to no
//!   other step (`_pick_step_core`), but counts what was asked for. A plugin cannot see the difference: a step of one task and one core
//!   looks the same if `--threads-per-core=1` makes Slurm count both threads, or if `--exact` is missing. So such a step may use its
//!   cores: never less than sacct shows, and never more than its job has.

use std::ops::RangeInclusive;

use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::host;
use crate::job::{Cpus, Grant};
use crate::log;
use crate::schedulers::slurm::conf::{self, Lines};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;

/// Kinds of step, by number (`SLURM_BATCH_SCRIPT` and others in slurm.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The batch script.
    Batch,
    /// The placeholder that PrologFlags=Contain makes on each node of a job, before any other step.
    Extern,
    /// The shell of salloc with LaunchParameters=use_interactive_step.
    Interactive,
    /// srun.
    Regular(u32),
}

impl StepKind {
    /// The kind of step that `S_JOB_STEPID` names.
    pub fn from_step_id(step_id: u32) -> Self {
        match step_id {
            0xffff_fffb => Self::Batch,
            0xffff_fffc => Self::Extern,
            0xffff_fffa => Self::Interactive,
            number => Self::Regular(number),
        }
    }

    /// The name of the step's directory, as Slurm names its own.
    pub fn name(self) -> String {
        match self {
            Self::Batch => "batch".to_owned(),
            Self::Extern => "extern".to_owned(),
            Self::Interactive => "interactive".to_owned(),
            Self::Regular(number) => number.to_string(),
        }
    }
}

/// The job numbers that `srun --no-allocate` chooses from (`MIN_NOALLOC_JOBID`, `MAX_NOALLOC_JOBID` in src/common/slurm_protocol_api.h).
/// Only the jobs of a federation's 63rd cluster have numbers near them.
const UNALLOCATED_JOBS: RangeInclusive<u32> = 0xffff_0000..=0xffff_fffd;

/// Whether nothing is allocated to the step: `srun --no-allocate`, which slurmd accepts only from root and SlurmUser.
///
/// The certain sign is that a step of srun has no CPU. For any other step slurmd writes at least one into the request, from a credential
/// that it verified (`_check_job_credential` in src/slurmd/slurmd/req.c of all releases from 22.05 to 26.05).
pub fn is_unallocated(spank: &Spank, kind: StepKind) -> Result<bool> {
    let (job, ncpus) = (spank.u32(spank_item::S_JOB_ID)?, spank.u16(spank_item::S_JOB_NCPUS)?);
    let mib = [spank_item::S_JOB_ALLOC_MEM, spank_item::S_STEP_ALLOC_MEM].map(|item| spank.u64(item));
    let [job_mib, step_mib] = mib;
    Ok(has_nothing(kind, job, ncpus.into(), [job_mib?, step_mib?]))
}

fn has_nothing(kind: StepKind, job: u32, ncpus: u32, mib: [u64; 2]) -> bool {
    matches!(kind, StepKind::Regular(_)) && UNALLOCATED_JOBS.contains(&job) && ncpus == 0 && mib == [0, 0]
}

/// The items that determine a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Items {
    kind: StepKind,
    ncpus: u32,
    local_tasks: u32,
    job_cores: u32,
    step_cores: u32,
    job_mib: u64,
    step_mib: u64,
    on_record: Option<u32>,
}

/// Asks Slurm. `on_record` is the job's hardware threads on this node, if a trusted record has them.
pub fn of_step(spank: &Spank, kind: StepKind, on_record: Option<u32>) -> Result<Grant> {
    let cores = |item| {
        let list = spank.string(item)?.unwrap_or_default();
        CpuList::parse(&list).ok_or_else(|| Error::new("Slurm's list of cores cannot be read").value(list))
    };
    let (job_cores, step_cores) = (cores(spank_item::S_JOB_ALLOC_CORES)?, cores(spank_item::S_STEP_ALLOC_CORES)?);
    let items = Items {
        kind,
        ncpus: spank.u16(spank_item::S_JOB_NCPUS)?.into(),
        local_tasks: spank.u32(spank_item::S_JOB_LOCAL_TASK_COUNT)?,
        job_cores: count(job_cores.len()),
        step_cores: count(step_cores.len()),
        job_mib: spank.u64(spank_item::S_JOB_ALLOC_MEM)?,
        step_mib: spank.u64(spank_item::S_STEP_ALLOC_MEM)?,
        on_record,
    };
    log::debug!("granted: {items:?}");
    let grant = grant(items, threads_per_core)?;
    Ok(Grant { job_cores, step_cores, ..grant })
}

/// Threads per core according to the kernel or to Slurm, whichever are more: a virtual machine may hide the threads that slurm.conf gives
/// the node.
fn threads_per_core() -> Option<u32> {
    let kernels = host::threads_per_core()?;
    let slurms = || {
        let node = std::env::var("SLURMD_NODENAME").ok()?;
        conf::threads_per_core(&Lines::read(&conf::find(None)?), &node)
    };
    Some(count(slurms().map_or(kernels, |(slurms, _)| slurms.max(kernels))))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn grant(items: Items, threads_per_core: impl FnOnce() -> Option<u32>) -> Result<Grant> {
    let (job_cpus, step_cpus) = match items.kind {
        StepKind::Batch if items.ncpus > 0 => (items.ncpus, items.ncpus),
        // The first step on a node, told nothing but its cores.
        StepKind::Extern if items.on_record.is_some_and(|count| count > 0) => (0, 0),
        // An upper bound, which later steps lower.
        StepKind::Extern => {
            // If the threads cannot be counted, there is no limit: too low a bound could not be raised again.
            let threads = threads_per_core().map_or(0, |threads| items.job_cores.saturating_mul(threads));
            (threads, threads)
        }
        StepKind::Interactive | StepKind::Regular(_) if items.ncpus > 0 => {
            // Threads per core as Slurm counts them on this node: a node may be configured with fewer than it has.
            let per_core = items.ncpus.checked_div(items.step_cores).unwrap_or(1).max(1);
            let job = items.job_cores.saturating_mul(per_core).max(items.ncpus);
            // Not limited to what its tasks request: mpiexec's only task starts as many processes as the job has CPUs. The interactive step
            // has one task, too, and its user starts everything else from it.
            (job, if items.kind == StepKind::Interactive { job } else { items.ncpus })
        }
        kind => {
            let what = format!("Slurm does not say how many CPUs it granted to step {}: S_JOB_NCPUS", kind.name());
            return Err(Error::new(what).value(items.ncpus).hint(
                "this has never been seen; please report it, with Slurm's release. Until then OnError=warn lets such \
                 steps run without a fence",
            ));
        }
    };
    // The record is exact where other steps must count a core's threads. It is for the whole job, so it only lowers.
    let (job_cpus, step_cpus) = match items.on_record.filter(|count| *count > 0) {
        Some(count) if job_cpus > 0 => (job_cpus.min(count), step_cpus.min(count)),
        Some(count) => (count, count),
        None => (job_cpus, step_cpus),
    };
    let cpus = |count: u32| (count > 0).then(|| Cpus::whole(count));
    // An equal share of the step: its CPUs per task if the tasks use all that the step has, and the whole step if it has one task.
    let task_cpus = if items.kind == StepKind::Extern { 0 } else { step_cpus.div_ceil(items.local_tasks.max(1)) };
    // MiB; 0 means that memory is not a consumable resource on this cluster, and not that none was granted.
    let memory = |mib: u64| (mib > 0).then(|| mib.saturating_mul(1 << 20));
    Ok(Grant {
        job_cpus: cpus(job_cpus),
        step_cpus: cpus(step_cpus),
        task_cpus: cpus(task_cpus),
        job_memory: memory(items.job_mib),
        step_memory: memory(items.step_mib),
        ..Grant::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Items = Items {
        kind: StepKind::Batch,
        ncpus: 1,
        local_tasks: 1,
        job_cores: 1,
        step_cores: 1,
        job_mib: 200,
        step_mib: 200,
        on_record: None,
    };
    const SRUN: Items = Items { kind: StepKind::Regular(0), ..BATCH };

    fn cpus(items: Items) -> (u64, u64) {
        let grant = grant(items, || Some(2)).unwrap();
        let whole = |cpus: Option<Cpus>| cpus.map_or(0, |cpus| cpus.thousandths() / 1000);
        (whole(grant.job_cpus), whole(grant.step_cpus))
    }

    /// What 22.05 was seen to hand out on a node of 2 cores with 2 threads each (S:C:T = 1:2:2, CPUs=4): the request, the batch step's
    /// S_JOB_NCPUS, the srun step's S_JOB_NCPUS, the cores of the job and of the step.
    #[test]
    fn as_slurm_grants_with_two_threads_per_core() {
        for (request, batch, step_ncpus, cores, srun) in [
            ("CR_Core -c1", 2, 2, 1, (2, 2)),
            ("CR_Core -c3", 4, 4, 2, (4, 4)),
            // One thread less for each core: the batch step's job limit holds the other steps, too.
            ("CR_Core --threads-per-core=1 -c1", 1, 2, 1, (2, 2)),
            ("CR_Core --hint=nomultithread -c2", 2, 4, 2, (4, 4)),
            // The same with a part of a core.
            ("CR_CPU -c1", 1, 2, 1, (2, 2)),
            ("CR_CPU -c3", 3, 4, 2, (4, 4)),
        ] {
            let batch_step = Items { ncpus: batch, job_cores: cores, step_cores: cores, ..BATCH };
            assert_eq!(cpus(batch_step), (batch.into(), batch.into()), "{request}");
            // The batch step's smaller number was written before, and lower_cpu_quota keeps it.
            let items = Items { ncpus: step_ncpus, job_cores: cores, step_cores: cores, ..SRUN };
            assert_eq!(cpus(items), srun, "{request}");
            // With a record from the prolog, no step need have written it before.
            let held = (u64::from(batch).min(srun.0), u64::from(batch).min(srun.1));
            assert_eq!(cpus(Items { on_record: Some(batch), ..items }), held, "{request}");
        }
    }

    #[test]
    fn a_node_configured_with_one_cpu_per_core_is_counted_so() {
        // CPUs=2 on 2 cores of 2 threads: factor 1, whatever the machine has.
        assert_eq!(cpus(Items { ncpus: 1, job_cores: 2, step_cores: 1, ..SRUN }), (2, 1));
    }

    #[test]
    fn a_node_that_is_not_the_batch_host() {
        assert_eq!(cpus(Items { ncpus: 4, job_cores: 8, step_cores: 2, local_tasks: 3, ..SRUN }), (16, 4));
    }

    #[test]
    fn a_step_has_all_that_it_was_granted_whatever_it_asks_for() {
        // srun -n1 ./threaded in sbatch -n8: the credential grants all 8.
        assert_eq!(cpus(Items { ncpus: 8, job_cores: 8, step_cores: 8, ..SRUN }), (8, 8));
        assert_eq!(cpus(Items { ncpus: 8, job_cores: 4, step_cores: 4, ..SRUN }), (8, 8));
        assert_eq!(cpus(Items { local_tasks: u32::MAX, ..SRUN }), (1, 1));
    }

    #[test]
    fn an_interactive_step_has_what_its_job_has() {
        let salloc = Items { kind: StepKind::Interactive, ncpus: 4, job_cores: 2, step_cores: 2, ..SRUN };
        assert_eq!(cpus(salloc), (4, 4));
        assert_eq!(cpus(Items { step_cores: 1, ncpus: 2, ..salloc }), (4, 4));
        assert_eq!(cpus(Items { on_record: Some(3), ..salloc }), (3, 3));
    }

    #[test]
    fn a_task_has_an_equal_share_of_its_step() {
        let task = |items| grant(items, || Some(2)).unwrap().task_cpus.map(|cpus| cpus.thousandths() / 1000);
        let of = |ncpus, local_tasks| Items { ncpus, local_tasks, job_cores: 8, step_cores: ncpus, ..SRUN };
        // The single task of mpiexec, salloc and the batch script; -n4 -c2; more tasks than CPUs; an uneven share.
        assert_eq!(task(of(8, 1)), Some(8));
        assert_eq!(task(Items { kind: StepKind::Interactive, ..of(8, 1) }), Some(8));
        assert_eq!(task(Items { ncpus: 8, ..BATCH }), Some(8));
        assert_eq!(task(of(8, 4)), Some(2));
        assert_eq!(task(of(2, 8)), Some(1));
        assert_eq!(task(of(8, 3)), Some(3));
        assert_eq!(task(Items { on_record: Some(2), ..of(8, 1) }), Some(2));
        assert_eq!(task(Items { local_tasks: 0, ..of(8, 1) }), Some(8));
        assert_eq!(task(Items { kind: StepKind::Extern, ..of(0, 0) }), None);
    }

    #[test]
    fn nothing_is_allocated_only_where_all_says_so() {
        let (srun, nothing) = (StepKind::Regular(7), [0, 0]);
        for job in [0xffff_0000, 0xffff_8000, 0xffff_fffd] {
            assert!(has_nothing(srun, job, 0, nothing), "{job:x}");
            assert!(!has_nothing(srun, job, 1, nothing), "{job:x}");
            assert!(!has_nothing(srun, job, 0, [1, 0]) && !has_nothing(srun, job, 0, [0, 1]), "{job:x}");
            for kind in [StepKind::Batch, StepKind::Extern, StepKind::Interactive] {
                assert!(!has_nothing(kind, job, 0, nothing), "{kind:?}");
            }
        }
        for job in [0, 1, 0x03ff_ffff, 0xfffe_ffff, 0xffff_fffe, 0xffff_ffff] {
            assert!(!has_nothing(srun, job, 0, nothing), "{job:x}");
        }
    }

    #[test]
    fn the_extern_step_is_told_nothing_but_cores() {
        let first = Items { kind: StepKind::Extern, ncpus: 0, job_cores: 2, step_cores: 2, ..BATCH };
        assert_eq!(cpus(first), (4, 4));
        assert_eq!(cpus(Items { job_cores: 0, ..first }), (0, 0));
        assert_eq!(grant(first, || None).unwrap().job_cpus, None);
    }

    #[test]
    fn what_the_prolog_has_noted_down_lowers_all_but_a_guess() {
        // --threads-per-core=1 -c1: the extern step and a step of srun count both threads of the core.
        let srun = Items { ncpus: 2, on_record: Some(1), ..SRUN };
        assert_eq!(cpus(srun), (1, 1));
        let first = Items { kind: StepKind::Extern, ncpus: 0, ..srun };
        assert_eq!(cpus(first), (1, 1));
        assert_eq!(cpus(Items { on_record: Some(64), ..srun }), (2, 2));
        // The extern step's own count is only a guess.
        assert_eq!(cpus(Items { on_record: Some(4), ..first }), (4, 4));
        assert_eq!(cpus(Items { on_record: Some(0), ..srun }), (2, 2));
        // If the threads of a core cannot be counted, the record is all that is known.
        assert_eq!(grant(first, || None).unwrap().job_cpus, Some(Cpus::whole(1)));
    }

    #[test]
    fn no_cpus_is_an_error_and_no_memory_is_unmanaged() {
        let error = grant(Items { ncpus: 0, ..BATCH }, || Some(1)).unwrap_err().to_string();
        assert!(
            error.contains("to step batch: S_JOB_NCPUS (value \"0\")") && error.contains("OnError=warn"),
            "{error}"
        );
        assert!(grant(Items { ncpus: 0, ..SRUN }, || Some(1)).is_err());
        let unmanaged = grant(Items { job_mib: 0, step_mib: 0, ..BATCH }, || Some(1)).unwrap();
        assert_eq!((unmanaged.job_memory, unmanaged.step_memory), (None, None));
        assert_eq!(grant(BATCH, || Some(1)).unwrap().job_memory, Some(200 << 20));
    }

    #[test]
    fn steps_are_named_as_slurm_names_them() {
        for (id, name) in
            [(0, "0"), (7, "7"), (0xffff_fffb, "batch"), (0xffff_fffc, "extern"), (0xffff_fffa, "interactive")]
        {
            assert_eq!(StepKind::from_step_id(id).name(), name);
        }
    }
}
