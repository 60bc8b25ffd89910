// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a step: kills the processes that are left, and removes jobfence's directories.

use std::time::Instant;

use super::fenced::{Fence, LOCK_TIMEOUT, Tree};
use super::limiting;
use super::own::{self, Own};
use super::resume::ClosingRight;
use crate::cgroup::layout::Version;
use crate::error::Result;
use crate::host::Host;
use crate::log;
use crate::sys::dir::Dir;

impl Fence {
    /// Ends the processes that the scheduler's own kill would miss. To be called after the last task's end and before that kill.
    pub fn end_leaderless(&self, host: &Host, deadline: Instant) -> Result<()> {
        self.trees.iter().try_for_each(|tree| match tree {
            Tree::Overlay(overlay) => overlay.end_leaderless(host, deadline),
            Tree::Own(_) => Ok(()),
        })
    }

    /// Sets the weights of the user's directory again, since the job's directory may have gone.
    fn weigh_user(&self, deadline: Instant) {
        let Some(plan) = &self.limits.plan else { return };
        if plan.weighs {
            self.weigh_again("cpu", limiting::weigh_user, deadline);
        }
        if plan.job.io_weight.is_some() {
            self.weigh_again("io", limiting::weigh_io_of_user, deadline);
        }
    }

    fn weigh_again(&self, controller: &str, weigh: fn(&Dir, Version) -> Result<()>, deadline: Instant) {
        let is_its = |own: &&Own| own.is_whole(&self.ours.levels) && own.hierarchy.has(controller);
        let own = self.trees.iter().filter_map(Tree::own).find(is_its);
        let Some((own, user)) = own.and_then(|own| Some((own, own.user()?))) else { return };
        // The user's directory goes with the user's last job.
        if !user.has("cgroup.procs") {
            return;
        }
        let lock = self.claim.records.lock_limits(deadline.min(Instant::now() + LOCK_TIMEOUT));
        if let Err(error) = lock.and_then(|_lock| weigh(user, own.hierarchy.version))
            && user.has("cgroup.procs")
        {
            log::warn!("{}: cannot set the {controller} weight of the user's other jobs: {error}", self.key);
        }
    }

    /// Kills what is left of the step and removes its directories and its record. May be repeated.
    pub fn close(&mut self, deadline: Instant) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        // Another process may close the fence at the same time, and another step may have the name by then.
        let _alone = match self.claim.alone(deadline)? {
            ClosingRight::Gone => {
                (self.closed, self.by_another) = (true, true);
                return Ok(());
            }
            ClosingRight::Owner => None,
            ClosingRight::Locked(lock) => Some(lock),
        };
        let own: Vec<&Own> = self.trees.iter().filter_map(Tree::own).collect();
        let mut done = own::remove(&own, &self.ours.levels, deadline);
        if done.is_ok() {
            self.weigh_user(deadline);
            if self.claim.is_recorded {
                let (records, levels) = (&self.claim.records, &self.ours.levels);
                let is_shared = self.claim.shared.is_some();
                done = if is_shared { records.forget_shared(levels) } else { records.forget(levels) };
            }
        }
        // A process that stays in jobfence's directories does not spare those in the scheduler's.
        for tree in &self.trees {
            if let Tree::Overlay(overlay) = tree {
                done = done.and(overlay.end(deadline));
            }
        }
        done?;
        self.closed = true;
        Ok(())
    }
}
