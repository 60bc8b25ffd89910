// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs of this node, with what the site wants of each.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::cgroup::layout::Hierarchy;
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, Loaded};
use jobfence::error::{Error, Result};
use jobfence::fence::living::{LivingStep, StepPlace};
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::record::job::JobRecords;
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;

use super::plan::WantedShares;
use crate::job_keys;

/// Which sections matter.
const KEYS: [&str; 3] = ["CacheShare", "MemoryBandwidthPercent", "Mode"];

/// One job that is there now.
#[derive(Debug)]
pub struct BoundedJob {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// The number of its directory.
    pub inode: u64,
    /// The one that it is looked for in.
    pub hierarchy: Hierarchy,
    /// Where its processes are: the job's directory, or those of its steps if the scheduler made them, since its own daemons are beside
    /// these. Each with its number: another directory may get the name.
    pub places: Vec<(PathBuf, u64)>,
    /// `None`: what sections hold for it cannot be said now.
    pub wanted: Option<WantedShares>,
}

impl BoundedJob {
    /// Whether the thread is one of the job's. `None`: it has ended, or that cannot be seen.
    pub fn has(&self, proc: &Dir, thread: i32) -> Option<bool> {
        let cgroups = Membership::read(proc, thread).ok()?;
        let path = cgroups.path_in(&self.hierarchy)?;
        let place = self.hierarchy.below_mount(path).map(|below| self.hierarchy.mount.join(below));
        Some(place.is_some_and(|place| self.places.iter().any(|(top, _)| place.starts_with(top))))
    }
}

/// All jobs by their directories, and why there may be more.
pub fn jobs(config: &Config, loaded: Option<&Loaded>) -> Result<(BTreeMap<PathBuf, BoundedJob>, Option<Error>)> {
    let (host, _) = Host::read_what_there_is(config)?;
    let mut unseen = Vec::new();
    let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut unseen);
    let (steps, more) = find(&host, ALL, &recorded, &WantedSteps::default());
    let noted = JobRecords::existing(&config.run_dir).ok().flatten();
    let mut all: BTreeMap<PathBuf, BoundedJob> = BTreeMap::new();
    for step in &steps {
        let Some(place) = place_of(step) else { continue };
        let Some(inode) = inode_of(&place.job) else { continue };
        let job = all.entry(place.job.clone()).or_insert_with(|| BoundedJob {
            node: step.node.clone(),
            uid: step.uid,
            job: step.job.clone(),
            inode,
            hierarchy: place.hierarchy.clone(),
            places: if place.is_overlay { Vec::new() } else { vec![(place.job.clone(), inode)] },
            wanted: wanted((config, loaded), (noted.as_ref(), &host), step),
        });
        if place.is_overlay {
            job.places.extend(inode_of(&place.step).map(|inode| (place.step.clone(), inode)));
        }
    }
    Ok((all, unseen.into_iter().chain(more).next()))
}

/// The number of a directory, if it is there.
fn inode_of(path: &Path) -> Option<u64> {
    Some(std::fs::symlink_metadata(path).ok()?.ino())
}

/// All steps of a job have a directory in that hierarchy. Without the memory controller it is the first one.
fn place_of<'a>(step: &'a LivingStep<'_>) -> Option<&'a StepPlace<'a>> {
    step.places.iter().find(|place| place.hierarchy.has("memory")).or(step.places.first())
}

fn wanted(
    (config, loaded): (&Config, Option<&Loaded>),
    known: (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> Option<WantedShares> {
    match job_keys::of_step(&KEYS, loaded, known, step) {
        None => Some(WantedShares::from_config(config)),
        Some(resolved) => resolved.ok().map(|config| WantedShares::from_config(&config)),
    }
}

/// Opens the directories of a job's processes. One that has ended meanwhile is left out.
pub fn open(places: &[(PathBuf, u64)]) -> Result<Vec<Dir>> {
    let mut all = Vec::new();
    for (place, inode) in places {
        match Dir::open(place) {
            Ok(dir) if dir.stat()?.st_ino == *inode => all.push(dir),
            Ok(_) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
