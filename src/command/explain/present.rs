// SPDX-License-Identifier: GPL-2.0-or-later
//! The directories that a job has now.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jobfence::cgroup::layout::Hierarchy;
use jobfence::config::Config;
use jobfence::fence::explain::LimitLine;
use jobfence::fence::living::{LivingStep, StepPlace};
use jobfence::fence::search::{self, Recorded, WantedSteps};
use jobfence::host::Host;
use jobfence::policy::Level;
use jobfence::schedulers::ALL;

use super::options::{BATCH, EXTERN};
use crate::resize::in_words_of;

/// The directories that the job has now.
#[derive(Default)]
pub struct PresentDirs<'a> {
    /// Those of the step in question; if it has none, those of the job's other steps, which have its job and its user.
    pub steps: Vec<LivingStep<'a>>,
    /// Whether the step itself has some.
    has_step: bool,
    /// Notes to print about the other steps.
    pub notes: Vec<String>,
}

impl<'a> PresentDirs<'a> {
    /// Finds those of a job of a user, and the step: if none is named, the batch step, or the first one that exists.
    pub fn find(host: &'a Host, config: &Config, uid: u32, wanted: &WantedSteps, step: Option<&str>) -> (Self, String) {
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&config.run_dir, wanted, &mut unseen);
        let (mut steps, more) = search::find(host, ALL, &recorded, wanted);
        unseen.extend(more);
        // If a step has neither a record nor a directory of its user, only its processes say whose it is. Some of them can be root's.
        let is_guessed = |found: &LivingStep<'_>| {
            found.record.is_none() && found.places.iter().all(|place| place.dir(Level::User).is_none())
        };
        steps.retain(|found| found.uid.is_none_or(|known| known == uid) || is_guessed(found));
        let names: BTreeSet<&str> = steps.iter().map(|step| step.step.as_str()).collect();
        let first = || names.iter().find(|name| **name != EXTERN).or_else(|| names.first()).copied();
        let default = if names.contains(BATCH) { BATCH } else { first().unwrap_or(BATCH) };
        let step = step.unwrap_or(default).to_owned();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let has_step = steps.iter().any(|found| found.step == step);
        let mut notes = Vec::new();
        if steps.is_empty() {
            notes.push("steps      none has directories on this node now: what a step would get".to_owned());
            if !nix::unistd::geteuid().is_root() {
                notes.push(
                    "           only root can read the records in RunDir and the marks on directories".to_owned(),
                );
            }
        } else if has_step {
            notes.push(format!("steps      {names}; what follows is of {step}"));
        } else {
            notes.push(format!("steps      {names}; {step} has no directories: what it would get (see --step)"));
        }
        if let Some(resized) = steps.iter().find_map(LivingStep::resized) {
            notes.push(format!("resized    {}; what follows is of the grant", in_words_of(&resized)));
        }
        notes.extend(unseen.iter().map(|error| format!("           cannot see all: {error}")));
        steps.retain(|found| found.step == step || !has_step);
        (Self { steps, has_step, notes }, step)
    }

    fn places(&self) -> impl Iterator<Item = &StepPlace<'a>> {
        self.steps.iter().flat_map(|step| &step.places)
    }

    /// Whether the step is in Slurm's directories in this hierarchy. `None`: it has none there.
    pub fn is_overlay(&self, hierarchy: &Hierarchy) -> Option<bool> {
        self.places().find(|place| place.hierarchy == hierarchy).map(|place| place.is_overlay)
    }

    /// The existing directory for a line.
    pub fn dir(&self, line: &LimitLine) -> Option<PathBuf> {
        if line.dir.ends_with("idle") || !self.has_step && matches!(line.level, Level::Step | Level::Task) {
            return None;
        }
        // One hierarchy may be mounted within another.
        let inside = self.places().filter(|place| line.dir.starts_with(&place.hierarchy.mount));
        inside.max_by_key(|place| place.hierarchy.mount.components().count())?.dir(line.level)
    }
}
