// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known about a step's job, and its sources. No section depends on what a user can write.
//!
//! - The user and the user's groups: Slurm's items, from the credential; their names from the node's own database.
//! - The node: `SLURMD_NODENAME` in the daemon's own environment.
//! - Partition, QOS, account, CPUs, GPUs: the job's record, see `record::job`.
//! - The partition in a batch step without a record: `SLURM_JOB_PARTITION` of the job's environment. slurmd itself overwrites the user's
//!   value before plugins are called (`env_array_for_batch_job` in src/common/env.c of 22.05, 24.11 and 26.05), and slurmctld always names
//!   a partition.
//!
//!   Account and QOS cannot be read like this. slurmd writes them only if the job has one, so that a job without one keeps what its user
//!   wrote. Up to 25.11 it returns before that if it cannot lay out the tasks, which a user can cause (`SLURM_ARBITRARY_NODELIST`). And
//!   22.05 writes the QOS's description.
//! - The job's name: `SLURM_JOB_NAME` of the environment, which is its user's text in each release. sbatch sets it. slurmctld adds one that
//!   is missing since 24.05, and since 24.11 writes the present name over it (`_set_job_env` in src/slurmctld/job_scheduler.c). So before
//!   that, a name that scontrol(1) has changed is not seen. In a step it is the name that srun(1) gives the step, which without `-J` is the
//!   job's. slurmd sets none for the extern step.
//! - Slurm has neither projects nor types of vnodes, so the job is known to have none.
//! - The environment of any other step is its user's. It can only make GPUs unknown.

use nix::unistd::User;

use crate::error::{Result, in_words};
use crate::facts::{Fact, Facts, FactsNeeded, Gpus, job_name};
use crate::log;
use crate::record::job::{JobRecord, is_name};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::grant::StepKind;
use crate::sys::group;

/// Collects the facts that are needed.
pub fn gather(spank: &Spank, kind: StepKind, asked: &FactsNeeded, record: Option<&JobRecord>) -> Result<Facts> {
    let uid = spank.u32(spank_item::S_JOB_UID)?;
    let mut facts = Facts { uid: Fact::Known(uid), ..Facts::default() }.of_no_project_vnode_or_pe();
    if kind != StepKind::Extern {
        // One that cannot be read, such as one of more than a KiB, is no reason to refuse the step.
        facts.job_name = job_name(&spank.getenv(c"SLURM_JOB_NAME").ok().flatten().unwrap_or_default());
    }
    if let Some(record) = record {
        record.add_to(&mut facts);
    } else if kind == StepKind::Batch && asked.job {
        facts.partition = spank.getenv(c"SLURM_JOB_PARTITION")?.filter(|name| !name.is_empty() && is_name(name)).into();
    }
    // A record that the batch step wrote in the prolog's place has no GPUs.
    let has_said = record.is_some_and(|record| record.writer.is_none());
    // slurmstepd sets one of these before plugins are called, if the step has GPUs (`_step_setup`). A user can set them, too, but gains
    // nothing: the GPUs become unknown, and no GPU is allowed by it.
    let has_gpus = || {
        [c"SLURM_JOB_GPUS", c"SLURM_STEP_GPUS"]
            .into_iter()
            .any(|name| spank.getenv(name).is_ok_and(|gpus| gpus.is_some()))
    };
    if !has_said && has_gpus() {
        facts.gpus = Gpus::Unknown("no 'jobfence prolog' has recorded them".to_owned());
    }
    if asked.node {
        facts.node = std::env::var("SLURMD_NODENAME").ok().into();
    }
    if asked.user {
        // On a node that does not know the user, whether a section names the user is unknown.
        let user = User::from_uid(uid.into())
            .inspect_err(|errno| log::error!("cannot look for user {uid}: {}", in_words(*errno)));
        facts.user = user.ok().flatten().map(|user| user.name).into();
    }
    if asked.gids {
        facts.gids = spank.gids()?.into();
    }
    if let Some(gids) = facts.gids.known() {
        let is_in = |name: &String| Some((name.clone(), group::is_among(name, gids)?));
        facts.groups = asked.groups.iter().filter_map(is_in).collect();
    }
    Ok(facts)
}
