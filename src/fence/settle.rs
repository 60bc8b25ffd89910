// SPDX-License-Identifier: GPL-2.0-or-later
//! Which of the two placements it is in each hierarchy, when a process of the step shows it.

use std::time::{Duration, Instant};

use super::fenced::{Fence, Tree, not_made};
use super::limiting::LimitError;
use super::overlay::{self, Overlay};
use super::own;
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::log;
use crate::scheduler::{self, Placement};

/// How long our own directories may take to go where the scheduler has its own: nobody has been in them.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);

impl Fence {
    /// Decides between the placements by where a process of the step is: what was ours is removed where the scheduler has
    /// directories of its own, and those are limited. Returns the limits that could not be set.
    ///
    /// A scheduler may make some of its directories after the step has begun: Slurm does so with those of task/cgroup, and on v1
    /// with those of jobacct_gather/cgroup.
    pub fn settle(&mut self, member: &Membership) -> Result<Vec<LimitError>> {
        let mut errors = Vec::new();
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees.get_mut(index) else { break };
            let found = scheduler::placement(self.around.schedulers, member, tree.hierarchy());
            let Some(found) = found else { continue };
            // Who owns the process could have moved it on v1, to another job of his: not there with this one's limits.
            overlay::check_name(tree.hierarchy(), &self.key, &found)?;
            // A step daemon in v1 sits beside its steps: their tasks tell more.
            if found.step.is_none() {
                continue;
            }
            if let Tree::Own(_) = tree {
                self.give_way(index, &found)?;
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

    /// Has what the step uses counted in the scheduler's directories, too, where it is known which they are. No job fails if it is not.
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

    /// Takes our own directories away in one hierarchy, unless somebody has been put into them: from now on the step is in the
    /// scheduler's there.
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

    /// Takes over where a process of the step is, in a process that only looks: nothing is removed and nothing limited.
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
