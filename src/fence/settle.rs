// SPDX-License-Identifier: GPL-2.0-or-later
//! Decides for each hierarchy whether the step is in jobfence's or the scheduler's directories, by where a process of it is.

use std::time::{Duration, Instant};

use super::fenced::{Fence, Tree, not_made};
use super::limit::no_network;
use super::limiting::LimitError;
use super::overlay::{self, Overlay};
use super::own;
use crate::cgroup::layout::Version;
use crate::cgroup::membership::Membership;
use crate::config::Limit;
use crate::error::{Error, Result};
use crate::log;
use crate::scheduler::{self, Placement};

/// How long removing jobfence's directories may take where the scheduler has its own. No process has been in them.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);

impl Fence {
    /// Decides for each hierarchy by where a process of the step is. If the scheduler has directories of its own there, jobfence's are
    /// removed and the scheduler's are limited. Returns the limits that could not be set.
    ///
    /// A scheduler may make some of its directories after the step has begun: Slurm does so with those of task/cgroup, and on v1 with
    /// those of jobacct_gather/cgroup.
    pub fn settle(&mut self, member: &Membership) -> Result<Vec<LimitError>> {
        let mut errors = Vec::new();
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees.get_mut(index) else { break };
            let found = scheduler::placement(self.around.schedulers, member, tree.hierarchy());
            let Some(found) = found else { continue };
            // On v1 a user could have moved the process to another of the user's jobs, which must not get this job's limits.
            overlay::check_name(tree.hierarchy(), &self.key, &found)?;
            // On v1 a step daemon is beside its steps and shows none: their tasks do.
            if found.step.is_none() {
                continue;
            }
            if let Tree::Own(own) = tree {
                let is_v2 = own.hierarchy.version == Version::V2;
                self.give_way(index, &found)?;
                // The bound is at the directory that the step has just left.
                if is_v2 && self.limits.plan.as_ref().is_some_and(|plan| plan.job.network.is_some()) {
                    errors.push((Limit::Network, no_network()));
                }
            }
            let Some(Tree::Overlay(overlay)) = self.trees.get_mut(index) else { continue };
            if overlay.is_located() {
                continue;
            }
            overlay.locate(&self.key, &found)?;
            self.count_in_overlays();
            if let (Some(tree), Some(plan)) = (self.trees.get(index), &self.limits.plan) {
                self.limit_tree(tree, plan, &mut errors);
            }
        }
        self.limit_swap(&mut errors);
        Ok(errors)
    }

    /// Enables counting of the step's use in the scheduler's directories, too, once they are known. A failure does not fail the job.
    pub(super) fn count_in_overlays(&self) {
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            if self.limits.counted.is_empty() || !overlay.is_located() {
                continue;
            }
            let has_tasks = self.has_own_tasks();
            let counted = self.limits.counted.iter().copied();
            for controller in counted.filter(|controller| overlay.hierarchy.has(controller)) {
                if let Err(error) = overlay.step().and_then(|step| overlay.enable(&[controller], &step, has_tasks)) {
                    log::debug!("{}: nothing is counted by {controller}: {error}", self.key);
                }
            }
        }
    }

    /// Removes jobfence's directories in one hierarchy, unless a process is in them. From now on the step is in the scheduler's there.
    fn give_way(&mut self, index: usize, found: &Placement) -> Result<()> {
        let Some(tree) = self.trees.get_mut(index) else { return Ok(()) };
        let Tree::Own(own) = tree else { return Ok(()) };
        let anchor = own.dirs.first().ok_or_else(|| not_made("step", &own.hierarchy))?;
        overlay::check_owner(&own.hierarchy, anchor, self.ours.base_levels, found)?;
        if let Some(step) = own.step().filter(|step| own::is_inhabited(step, Instant::now() + YIELD_TIMEOUT)) {
            return Err(Error::new(format!(
                "{} has taken this task into a cgroup of its own, but processes of the step are in ours:",
                found.scheduler.name()
            ))
            .at(step.path())
            .value(found.step.as_deref().unwrap_or_default()));
        }
        own::remove(&[own], &self.ours.levels, Instant::now() + YIELD_TIMEOUT)?;
        if let Some(overlay) = Overlay::instead_of(own, self.ours.base_levels, found.scheduler) {
            *tree = Tree::Overlay(overlay);
        }
        Ok(())
    }

    /// Stores where a process of the step is, for a process that only reads: nothing is removed and nothing limited.
    pub fn look_from(&mut self, member: &Membership) {
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees.get_mut(index) else { break };
            let found = scheduler::placement(self.around.schedulers, member, tree.hierarchy());
            let Some(found) = found else { continue };
            match tree {
                Tree::Overlay(overlay) => overlay.look_at(&found),
                Tree::Own(own) if found.step.is_some() => {
                    let Some(mut overlay) = Overlay::instead_of(own, self.ours.base_levels, found.scheduler) else {
                        continue;
                    };
                    overlay.look_at(&found);
                    *tree = Tree::Overlay(overlay);
                }
                Tree::Own(_) => {}
            }
        }
    }
}
