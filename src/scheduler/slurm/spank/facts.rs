// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of a step's job, and from whom. Nothing here comes from where a user can write.
//!
//! - The user and his groups: Slurm's items, from the credential; their names from the node's own database.
//! - The node: `SLURMD_NODENAME` in the daemon's own environment.
//! - Partition, QOS, account, CPUs, GPUs: the job's record, see `record::job`.
//! - Without a record, in a batch step, the partition: `SLURM_JOB_PARTITION` of the job's environment, over which slurmd itself
//!   writes before plugins are called, whatever the user has put there (`env_array_for_batch_job` in src/common/env.c of 22.05,
//!   24.11 and 26.05). slurmctld always names one.
//!
//!   Not so the account and the QOS: slurmd writes them only where the job has one, so that a job without keeps what its user
//!   wrote; up to 25.11 it returns before that where it cannot lay out tasks, which the user can have (`SLURM_ARBITRARY_NODELIST`);
//!   and 22.05 writes the QOS's description.
//! - Slurm has neither projects nor types of vnodes, so the job is known to have none.
//! - The environment of any other step is its user's. It can make GPUs unknown, and says nothing else.

use nix::unistd::User;

use crate::error::{Result, in_words};
use crate::facts::{Fact, Facts, FactsNeeded, Gpus};
use crate::log;
use crate::record::job::{JobRecord, is_name};
use crate::scheduler::slurm::spank::api::Spank;
use crate::scheduler::slurm::spank::bindings::spank_item;
use crate::scheduler::slurm::spank::grant::StepKind;
use crate::sys::group;

/// Finds out what is asked for.
pub fn gather(spank: &Spank, kind: StepKind, asked: &FactsNeeded, record: Option<&JobRecord>) -> Result<Facts> {
    let uid = spank.u32(spank_item::S_JOB_UID)?;
    let mut facts = Facts { uid: Fact::Known(uid), ..Facts::default() }.of_no_project_vnode_or_pe();
    if let Some(record) = record {
        record.add_to(&mut facts);
    } else if kind == StepKind::Batch && asked.job {
        facts.partition = spank.getenv(c"SLURM_JOB_PARTITION")?.filter(|name| !name.is_empty() && is_name(name)).into();
    }
    // What the batch step notes down in the prolog's place has no GPUs.
    let has_said = record.is_some_and(|record| record.writer.is_none());
    // slurmstepd sets one of these before plugins are called, where the step has GPUs (`_step_setup`). A user can set them, too, and hears
    // what follows, no more: nobody has GPUs by it.
    let has_gpus = || {
        [c"SLURM_JOB_GPUS", c"SLURM_STEP_GPUS"]
            .into_iter()
            .any(|name| spank.getenv(name).is_ok_and(|gpus| gpus.is_some()))
    };
    if !has_said && has_gpus() {
        facts.gpus = Gpus::Unknown("no 'jobfence prolog' has noted them down".to_owned());
    }
    if asked.node {
        facts.node = std::env::var("SLURMD_NODENAME").ok().into();
    }
    if asked.user {
        // A node that does not know a user cannot say that he is nobody who is named.
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
