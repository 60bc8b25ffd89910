// SPDX-License-Identifier: GPL-2.0-or-later
//! In the step daemons of a job with several nodes: each node hands its figures over to the node that shows the card.
//!
//! The figures are files in `.jobfence-JOB` in the directory from which the job was submitted. Slurm runs `slurm_spank_task_exit` before
//! srun learns of a task's end (`_wait_for_any_task` before `stepd_send_pending_exit_msgs` in src/slurmd/slurmstepd/mgr.c of each release
//! from 22.05 to 26.05). So when srun returns, the figures are there, and the job's end need not wait for them.
//!
//! A step that has begun on another node keeps a mark there, an empty file, until it has handed its figures over: srun may die before its
//! step ends.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fence::{Fence, JobForACard};
use crate::hostlist::HostList;
use crate::job::Grant;
use crate::log;
use crate::report::nodes::{Handed, NodeFigures, Nodes};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::sys::as_user::AsUser;
use crate::sys::dir::Dir;
use crate::sys::users_dir::{UsersDir, mark};

/// A card shows no more nodes.
const MOST_NODES: usize = 1024;

/// How long the end of a job may read figures, and then remove files. It is checked between two nodes or files.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long another step on this node may delay this one.
const ALONE_PATIENCE: Duration = Duration::from_millis(200);

/// Separates the node and the step in a mark's name. No node has it in its name.
const MARK: char = '+';

/// Longer than any text of jobfence's.
const MOST_BYTES: usize = 2048;

/// A job with several nodes, seen from one of them.
#[derive(Debug)]
pub struct HandOver {
    user: AsUser,
    uid: u32,
    above: PathBuf,
    name: String,
    /// This node.
    node: String,
    /// The job's nodes in its order: the batch script runs on the first.
    nodes: Vec<String>,
}

impl HandOver {
    /// `None`: the job has one node, or its nodes are not known.
    pub fn from_spank(spank: &Spank) -> Option<Self> {
        let variable = |name: &CStr| spank.getenv(name).ok().flatten();
        let nodes = HostList::parse(&variable(c"SLURM_JOB_NODELIST")?)?.names(MOST_NODES)?;
        let node = std::env::var("SLURMD_NODENAME").ok().filter(|node| nodes.contains(node))?;
        if nodes.len() < 2 || node.starts_with('.') {
            return None;
        }
        let above = PathBuf::from(variable(c"SLURM_SUBMIT_DIR")?);
        let job = spank.u32(spank_item::S_JOB_ID).ok()?;
        let (uid, gid) = (spank.u32(spank_item::S_JOB_UID).ok()?, spank.u32(spank_item::S_JOB_GID).ok()?);
        let user = AsUser::new(uid, gid, &spank.gids().ok()?.unwrap_or_default());
        Some(Self { user, uid, above, name: format!(".jobfence-{job}"), node, nodes })
    }

    /// Whether another node makes the card. With `sbatch --batch=FEATURE` that is not certain: then the card names the first node.
    pub fn is_elsewhere(&self) -> bool {
        self.nodes.first() != Some(&self.node)
    }

    fn dir(&self) -> Result<Option<UsersDir>> {
        UsersDir::open(&self.above, &self.name, self.uid)
    }

    /// Called when the batch script begins, before any other step: makes the directory, and removes what an earlier run of a requeued job
    /// left. Other steps never make it, so a step that ends after the card leaves nothing.
    pub fn prepare(&self) {
        let deadline = Instant::now() + PATIENCE;
        let prepared = self.user.look(|| {
            let make = || UsersDir::make(&self.above, &self.name);
            if !make()? {
                if let Some(dir) = self.dir()? {
                    dir.remove(|_| Instant::now() < deadline);
                }
                make()?;
            }
            Ok(())
        });
        if let Err(error) = prepared {
            log::debug!("no figures of other nodes can be handed on: {error}");
        }
    }

    /// Called when a step begins on another node.
    pub fn begin(&self, fence: &Fence) {
        if let Err(error) = self.user.look(|| mark(&self.above, &self.name, &self.mark_of(fence))) {
            log::debug!("no card is told that the step has begun: {error}");
        }
    }

    fn mark_of(&self, fence: &Fence) -> String {
        format!("{}{MARK}{}", self.node, fence.key().step)
    }

    fn is_others_mark(&self, name: &CStr) -> bool {
        name.to_str().ok().and_then(|name| name.split_once(MARK)).is_some_and(|(node, _)| node != self.node)
    }

    /// Called when a step has ended on another node.
    pub fn give(&self, fence: &Fence, proc: &Dir, grant: &Grant) {
        // If two steps end at once, the later one must write the later figures.
        let _alone = fence.hand_on_alone(Instant::now() + ALONE_PATIENCE);
        let given = fence.job_number().and_then(|directory| {
            let now = NodeFigures::new(&fence.job_for_a_card(proc), grant.job_cpus, grant.job_memory);
            self.user.look(|| {
                let dir = self.dir()?.ok_or_else(|| Error::new("no card waits for them").at(&self.above))?;
                let earlier = dir.read(&self.node, MOST_BYTES)?.and_then(|text| Handed::parse(&text));
                dir.write(&self.node, &Handed::next(earlier, directory, now).text())?;
                dir.unmark(&self.mark_of(fence));
                Ok(())
            })
        });
        if let Err(error) = given {
            log::debug!("no figures of this node are handed on: {error}");
        }
    }

    /// Collects the figures for the card, and removes the files. `own` is this node's.
    pub fn take(&self, fence: &Fence, own: &JobForACard, grant: &Grant) -> Nodes {
        let deadline = Instant::now() + PATIENCE;
        let mut nodes = Nodes {
            known: vec![(self.node.clone(), NodeFigures::new(own, grant.job_cpus, grant.job_memory))],
            silent: Vec::new(),
            is_unfinished: fence.is_inhabited(deadline),
        };
        let taken = self.user.look(|| {
            let Some(dir) = self.dir()? else { return Ok(()) };
            for node in self.nodes.iter().filter(|node| **node != self.node) {
                if Instant::now() >= deadline {
                    break;
                }
                let text = dir.read(node, MOST_BYTES).ok().flatten();
                if let Some(handed) = text.and_then(|text| Handed::parse(&text)) {
                    nodes.known.push((node.clone(), handed.all));
                }
            }
            let deadline = Instant::now() + PATIENCE;
            let is_whole = dir.remove(|name| {
                nodes.is_unfinished |= self.is_others_mark(name);
                Instant::now() < deadline
            });
            nodes.is_unfinished |= !is_whole;
            Ok(())
        });
        if let Err(error) = taken {
            log::debug!("no figures of other nodes: {error}");
        }
        let is_silent = |node: &&String| !nodes.known.iter().any(|(known, _)| known == *node);
        nodes.silent = self.nodes.iter().filter(is_silent).cloned().collect();
        nodes
    }
}
