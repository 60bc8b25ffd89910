// SPDX-License-Identifier: GPL-2.0-or-later
//! Marks, which tell whose a directory is if no record does. Also ends what an earlier run of the step has left.

use std::time::{Duration, Instant};

use super::fenced::{Claim, Fence, Tree};
use super::overlay::Overlay;
use super::own;
use crate::cgroup::limits::CpuQuota;
use crate::cgroup::mark;
use crate::cgroup::membership::Membership;
use crate::config::{Limit, Percent, SignalAt};
use crate::host::Host;
use crate::log;
use crate::record::Header;
use crate::record::noted::{Allocated, Noted};
use crate::record::roll::EntryKind;
use crate::scheduler;

/// How long a launch may wait for the removal of what an earlier run has left.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(200);

impl Fence {
    pub(super) fn end_earlier_run(&self, host: &Host) {
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let soon = Instant::now() + PATIENCE_WITH_OTHERS;
            if let Err(error) = overlay.end_earlier_run(host, self.claim.owner, soon) {
                log::warn!("{}: cannot remove what an earlier run of the step left: {error}", self.key);
            }
        }
    }

    /// Notes on the step's directories what its job was granted and is limited to, at which shares it is told and whether its user asked for
    /// that, and how much the user wants to be lent; on a scheduler's as soon as they are known.
    pub fn note_allocated(
        &mut self,
        noted: &Noted,
        (signal_at, is_asked): (Option<SignalAt>, bool),
        elastic_ram: Option<Percent>,
    ) {
        let job = self.limits.plan.as_ref().map(|plan| &plan.job);
        let limits =
            (job.and_then(|job| job.cpu).map(CpuQuota::cpus), job.and_then(|job| job.numbers.get(Limit::Processes)));
        let text = Allocated { signal_at, is_asked, elastic_ram, ..Allocated::new(noted, limits) }.to_string();
        // One of jobfence's directories is enough, as for the mark.
        if let Some(step) = self.trees.iter().find_map(|tree| tree.own()?.step()) {
            own::put_allocated(step, &text);
        }
        for tree in &self.trees {
            if let Tree::Overlay(overlay) = tree {
                overlay.note_allocated(&text);
            }
        }
        self.claim.allocated = Some(text);
    }

    /// What is noted on jobfence's directories of the step, see [`Self::note_allocated`]. `None`: nothing is, or it has none.
    pub fn noted_allocated(&self) -> Option<Allocated> {
        let step = self.trees.iter().find_map(|tree| tree.own()?.step())?;
        mark::allocated(step).ok().flatten().map(|text| Allocated::parse(&text))
    }

    /// Marks the scheduler's directories of the step that are known and have no mark yet.
    pub fn mark_located(&mut self) {
        let Self { trees, claim, .. } = self;
        let overlays = trees.iter_mut().filter_map(|tree| match tree {
            Tree::Overlay(overlay) => Some(overlay),
            Tree::Own(_) => None,
        });
        mark_all(claim, overlays.collect());
    }

    /// Marks the scheduler's directories in hierarchies without limits: on v1 a scheduler may leave those behind, too.
    pub fn mark_others(&mut self, host: &Host, member: &Membership) {
        if !self.around.has_daemon || self.are_others_marked {
            return;
        }
        let mut others = Vec::new();
        for hierarchy in &host.layout.hierarchies {
            let is_ours = self.trees.iter().any(|tree| tree.hierarchy() == hierarchy);
            let found = scheduler::placement(self.around.schedulers, member, hierarchy).filter(|_| !is_ours);
            let Some(found) = found else { continue };
            let Ok(root) = hierarchy.open() else { continue };
            let mut overlay = Overlay::new(hierarchy.clone(), root, 0, found.scheduler);
            if matches!(overlay.locate(&self.key, &found), Ok(true)) {
                let soon = Instant::now() + PATIENCE_WITH_OTHERS;
                if let Err(error) = overlay.end_earlier_run(host, self.claim.owner, soon) {
                    log::warn!("{}: cannot remove what an earlier run of the step left: {error}", self.key);
                }
                others.push(overlay);
            }
        }
        mark_all(&self.claim, others.iter_mut().collect());
    }
}

/// Marks the directories that have no mark yet. The roll notes them first.
fn mark_all(claim: &Claim, overlays: Vec<&mut Overlay>) {
    let unmarked: Vec<String> = overlays.iter().filter_map(|overlay| overlay.unmarked()).collect();
    if !unmarked.is_empty()
        && let Ok(header) = Header::parse(&claim.mark)
    {
        let entry = |path| header.entry(EntryKind::Theirs, path);
        claim.records.note(&unmarked.into_iter().map(entry).collect::<Vec<_>>());
    }
    for overlay in overlays {
        overlay.mark(&claim.mark, claim.allocated.as_deref());
    }
}
