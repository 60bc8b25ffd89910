// SPDX-License-Identifier: GPL-2.0-or-later
//! Opens a fence: gives the step a unique name, and makes directories of that name.

use std::time::Instant;

use nix::errno::Errno;

use super::fenced::{Around, Claim, Fence, OwnPath, Tree, WantedLimits};
use super::names::IDLE;
use super::overlay::{self, Overlay};
use super::own::{self, Own, Untouched, open_existing};
use super::rules;
use crate::cgroup::io;
use crate::cgroup::kernel::LoadedScheduler;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::JobKey;
use crate::log;
use crate::record::holder::Holder;
use crate::record::{Owner, Record, Records, Shared};
use crate::scheduler::{self, Schedulers};
use crate::sorted;
use crate::sys::dir::Dir;

/// What is needed to open a fence.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// The host.
    pub host: &'a Host,
    /// The site's configuration.
    pub config: &'a Config,
    /// The schedulers that may have directories on this host.
    pub schedulers: Schedulers,
    /// Whose step it is.
    pub key: &'a JobKey,
    /// Controllers that are needed beside those of the configuration.
    pub more: &'a [&'static str],
    /// Where the step's daemon is. `None`: there is none, and attaching a process that is in a scheduler's directory is an error.
    pub daemon: Option<&'a Membership>,
    /// Removes what a dead owner has left under a name.
    pub free: fn(&Self, &Records, &[String]) -> Result<Freed>,
    /// What holds the fence if other processes may resume it, see [`Fence::resume`]; `None`: this process alone.
    pub holder: Option<&'a Holder>,
    /// Which run of the job and the step it is, as the scheduler counts, if there is a `holder`.
    pub run: u32,
    /// The devices of GPUs that were chosen for the step. They are recorded before any directory is made.
    pub gpus: &'a [String],
}

/// The controllers that count what the usage log has. CPU time is counted in every cgroup2 directory, and by v1's `cpuacct`.
const COUNTED: [&str; 3] = ["memory", "pids", "io"];

/// What became of a name that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// No step has it now.
    Free,
    /// A living step has it, or another process is freeing it.
    Taken,
}

/// The hierarchies in which the step is in jobfence's directories, and those in which it is in the scheduler's.
struct Sides<'a> {
    own: Vec<&'a Hierarchy>,
    overlays: Vec<Tree>,
}

impl<'a> Opening<'a> {
    /// Every controller that is needed, and whether the least I/O weight is to be set.
    fn controllers(&self) -> (Vec<&'static str>, bool) {
        let mut wanted = controllers(self.config);
        let lowest_io = lowers_io(self.host, self.config);
        for controller in lowest_io.then_some("io").iter().chain(self.more) {
            if !wanted.contains(controller) {
                wanted.push(controller);
            }
        }
        (wanted, lowest_io)
    }

    /// Controllers that only count, beside those that are needed. Without a usage log there are none.
    fn counted(&self, wanted: &[&'static str]) -> Vec<&'static str> {
        // Each further v1 hierarchy costs a launch 13 system calls, so `pids` is left out there: a site that wants to know of processes
        // limits them.
        let is_cheap = |controller: &str, version| controller != "pids" || version == Version::V2;
        let is_there = |controller: &&str| {
            let hierarchy = self.host.layout.with_controller(controller);
            hierarchy.is_some_and(|hierarchy| is_cheap(controller, hierarchy.version))
        };
        let counted = COUNTED.into_iter().filter(|controller| !wanted.contains(controller));
        counted.filter(|_| self.config.usage_log.is_some()).filter(is_there).collect()
    }

    /// Decides whose directories the step is to use in each hierarchy, as far as the daemon's place shows it.
    fn sides(&self, wanted: &[&'static str]) -> Result<Sides<'a>> {
        let (mut own, mut overlays) = (Vec::new(), Vec::new());
        for hierarchy in self.host.hierarchies(wanted)? {
            let found = self.daemon.and_then(|at| Some((at, scheduler::placement(self.schedulers, at, hierarchy)?)));
            let Some((daemon, found)) = found else {
                own.push(hierarchy);
                continue;
            };
            let mut overlay = Overlay::new(hierarchy.clone(), hierarchy.open()?, 0, found.scheduler);
            overlay::check_daemon(hierarchy, self.key, daemon, &found)?;
            // In v1's freezer, which limits nothing, the daemon's place shows no step.
            if overlay.locate(self.key, &found)? || wanted.iter().any(|controller| hierarchy.has(controller)) {
                overlays.push(Tree::Overlay(overlay));
            }
        }
        Ok(Sides { own, overlays })
    }

    /// The branch below jobfence's own directory, if the step is to be in one.
    fn class(&self) -> Option<&'static str> {
        self.config.scavenger.then_some(IDLE)
    }

    fn record(&self, owner: Owner, again: u32, shared: Option<Box<Shared>>) -> Record {
        let base = &self.host.base;
        let mut levels = self.key.parents();
        levels.push(self.key.step_dir(again));
        Record {
            boot_id: self.host.boot_id.clone(),
            pid_namespace: self.host.pid_namespace.clone(),
            owner,
            base: self.class().map_or_else(|| base.clone(), |class| format!("{base}/{class}")),
            levels,
            shared,
        }
    }

    /// What other processes need to resume the fence, and its recorded owner. The janitors of older releases take the fence for alive
    /// while the owner lives: process 1, unless the holder is a process.
    fn shared(&self, us: Owner, wanted: &[&str]) -> Result<Option<(Owner, Box<Shared>)>> {
        let Some(holder) = self.holder else { return Ok(None) };
        let owner = match holder {
            Holder::Process(owner) => *owner,
            _ => Owner::from_pid(&self.host.proc, 1)?
                .ok_or_else(|| Error::new("process 1 cannot be seen in").at(self.host.proc.path()))?,
        };
        let shared = Shared {
            holder: holder.clone(),
            opener: us,
            job: self.key.job.clone(),
            step: self.key.step.clone(),
            run: self.run,
            controllers: wanted.iter().map(|&controller| controller.to_owned()).collect(),
            // Only a process that reads the kernel's log to its end learns its position there, which takes as long as the rest of this.
            log_from: None,
            overlay: self.daemon.is_some(),
            gpus: self.gpus.to_vec(),
            plan: None,
        };
        Ok(Some((owner, Box::new(shared))))
    }

    /// Refuses a second fence for the same run of a step: its caller must resume the first.
    fn refuse_twice(&self, records: &Records, wanted: &Record) -> Result<()> {
        let Some(ours) = &wanted.shared else { return Ok(()) };
        let recorded = records.read(&wanted.levels).ok().flatten();
        let theirs = recorded.and_then(|recorded| recorded.shared);
        match theirs.filter(|theirs| (&theirs.job, &theirs.step, theirs.run) == (&ours.job, &ours.step, ours.run)) {
            Some(theirs) => Err(Error::new("this run of the step has a fence already:")
                .value(self.key)
                .hint(format!("close it first; its holder is: {}", theirs.holder))),
            None => Ok(()),
        }
    }

    /// Frees a name that is taken if its owner is dead. A living owner keeps it: a requeued job overlaps its own end.
    fn free(&self, records: &Records, levels: &[String], tries: &mut Tries) {
        match (self.free)(self, records, levels) {
            // The name should be free now. The count stops a loop in which another step takes it again and again.
            Ok(Freed::Free) => tries.removed += 1,
            Ok(Freed::Taken) => tries.again += 1,
            // A process that does not die, or a record that cannot be parsed, is no reason to refuse this job.
            Err(error) => {
                log::warn!("cannot remove {}: {error}", levels.join("/"));
                tries.again += 1;
            }
        }
    }
}

/// How often another step had the name.
struct Tries {
    /// The number behind the step's name.
    again: u32,
    removed: u32,
}

impl Tries {
    fn check(&self, key: &JobKey) -> Result<()> {
        if self.again + self.removed <= 100 {
            return Ok(());
        }
        Err(Error::new("another step had the name of this one a hundred times:").value(key).hint(
            "run 'jobfence \
            reap', which says why they stay",
        ))
    }
}

impl Fence {
    /// Makes the step's directories in every hierarchy that is used, under a unique name.
    ///
    /// Nothing is made in a hierarchy in which the scheduler itself tracks the step. A daemon in another step's directories is an
    /// error.
    pub fn open(opening: &Opening<'_>) -> Result<Self> {
        let Opening { host, config, .. } = *opening;
        let (mut wanted, lowest_io) = opening.controllers();
        let mut counted = opening.counted(&wanted);
        let Sides { mut own, mut overlays } = opening.sides(&[&wanted[..], &counted].concat())?;
        let us = Owner::this(&host.proc)?;
        let shared = opening.shared(us, &wanted)?;
        let owner = shared.as_ref().map_or(us, |(owner, _)| *owner);
        let mut tries = Tries { again: 1, removed: 0 };
        let mut not_handed_down: Option<Vec<(&'static str, Error)>> = None;
        loop {
            let records = Records::open(&config.run_dir)?;
            let record = opening.record(owner, tries.again, shared.as_ref().map(|(_, shared)| shared.clone()));
            // Without directories of jobfence's there is nothing to record, and no name to claim.
            let is_recorded = !own.is_empty();
            if is_recorded && !records.claim(&record)? {
                let removed = tries.removed;
                opening.free(&records, &record.levels, &mut tries);
                if removed == tries.removed {
                    opening.refuse_twice(&records, &record)?;
                }
                tries.check(opening.key)?;
                continue;
            }
            let missing = wanted.iter().filter_map(|c| Some((*c, host.missing(c)?)));
            let limits = WantedLimits {
                controllers: wanted.clone(),
                counted: counted.clone(),
                missing: missing.chain(not_handed_down.iter().flatten().cloned()).collect(),
                quota_ignored: host.scheduler.as_ref().and_then(LoadedScheduler::ignores_quota),
                lowest_io,
                headroom: config.headroom_cpus,
                ..WantedLimits::nothing()
            };
            let shared = record.shared.is_some().then(|| Box::new(record.clone()));
            let claim = Claim { mark: record.mark(), allocated: None, records, is_recorded, owner, shared };
            match Self::new(opening, record, claim, limits).make(opening, &own) {
                Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => {
                    log::warn!("{error}");
                    tries.again += 1;
                }
                // A job does not fail because its usage cannot be counted.
                Err(error) if !counted.is_empty() => {
                    let theirs = host.not_handed_down(&counted);
                    let is_theirs = |controller: &str| theirs.iter().any(|(not_given, _)| *not_given == controller);
                    let lost: Vec<_> = counted.extract_if(.., |one| theirs.is_empty() || is_theirs(one)).collect();
                    log::debug!("{}: nothing is counted by {}: {error}", opening.key, lost.join(" or "));
                    Sides { own, overlays } = opening.sides(&[&wanted[..], &counted].concat())?;
                }
                // The controllers that are handed down can still limit.
                Err(error) if not_handed_down.is_none() => {
                    let theirs = host.not_handed_down(&wanted);
                    if theirs.is_empty() {
                        return Err(error);
                    }
                    wanted
                        .retain(|controller| !theirs.iter().any(|(not_handed_down, _)| not_handed_down == controller));
                    not_handed_down = Some(theirs);
                }
                Err(error) => return Err(error),
                Ok(mut fence) => {
                    fence.trees.append(&mut overlays);
                    fence.end_earlier_run(host);
                    fence.mark_located();
                    fence.count_in_overlays();
                    return Ok(fence);
                }
            }
            tries.check(opening.key)?;
        }
    }

    /// A fence without directories.
    fn new(opening: &Opening<'_>, record: Record, claim: Claim, limits: WantedLimits) -> Self {
        Self {
            key: opening.key.clone(),
            trees: Vec::new(),
            ours: OwnPath::new(&record.base, record.levels),
            claim,
            limits,
            around: Around { schedulers: opening.schedulers, has_daemon: opening.daemon.is_some() },
            are_others_marked: false,
            closed: false,
            by_another: false,
        }
    }

    /// Makes jobfence's directories.
    fn make(mut self, opening: &Opening<'_>, hierarchies: &[&Hierarchy]) -> Result<Self> {
        let class = opening.class();
        for hierarchy in hierarchies {
            let mut dirs = Vec::new();
            let mut hierarchy = (*hierarchy).clone();
            hierarchy.controllers.retain(|has| !self.limits.missing.iter().any(|(missing, _)| missing == has));
            let wanted = [&self.limits.controllers[..], &self.limits.counted].concat();
            let levels = &self.ours.levels;
            let made = own::make_dirs(opening.host, &hierarchy, &wanted, class, levels, &mut dirs);
            // EEXIST: another step lives there, and nothing of it may be removed.
            if made.as_ref().err().and_then(Error::kernel_errno) != Some(Errno::EEXIST) {
                let untouched = made.as_ref().map_or_else(|_| Untouched::default(), |made| *made);
                self.trees.push(Tree::Own(Own { hierarchy, dirs, class, untouched }));
            }
            if let Err(error) = made {
                // Removes what was made, also in this hierarchy, where it may be a part of the way down.
                let _ = self.close(Instant::now() + opening.config.cleanup_timeout);
                return Err(error);
            }
        }
        // One mark is enough: it leads to the other directories.
        if let Some(step) = self.trees.iter().find_map(|tree| tree.own()?.step()) {
            own::put_mark(step, &self.claim.mark);
        }
        Ok(self)
    }

    /// The fence of a step that another process owns, as far as it exists now, for attaching a process that is at `member`. It leaves
    /// out the hierarchies in which a scheduler tracks that process. Closing it does nothing.
    pub fn from_record(
        host: &Host,
        schedulers: Schedulers,
        records: Records,
        key: JobKey,
        record: &Record,
        member: &Membership,
    ) -> Result<Self> {
        let mut trees = open_existing(host, &record.base, &record.levels)?.trees;
        trees.retain(|own| {
            let stays = scheduler::placement(schedulers, member, &own.hierarchy).is_some();
            own.is_whole(&record.levels) && !stays
        });
        // In the order in which they were made: hierarchies in which processes can be killed come first.
        sorted::sort_by_key(&mut trees, |own| (own.hierarchy.version == Version::V1, !own.hierarchy.has("freezer")));
        let ours = OwnPath::new(&record.base, record.levels.clone());
        if trees.is_empty() {
            return Err(
                Error::new("the step has no directory in any hierarchy; it has just begun or ended:").at(ours.path)
            );
        }
        Ok(Self {
            key,
            trees: trees.into_iter().map(Tree::Own).collect(),
            ours,
            claim: Claim {
                records,
                is_recorded: false,
                mark: String::new(),
                allocated: None,
                owner: record.owner,
                shared: None,
            },
            limits: WantedLimits::nothing(),
            around: Around { schedulers, has_daemon: false },
            are_others_marked: true,
            closed: true,
            by_another: false,
        })
    }
}

impl OwnPath {
    pub(super) fn new(base: &str, levels: Vec<String>) -> Self {
        let path = format!("/{base}/{}", levels.join("/"));
        Self { path, levels, base_levels: base.split('/').count() }
    }
}

/// Whether a scavenger gets the least I/O weight: only if disks share their time by weight.
pub(crate) fn lowers_io(host: &Host, config: &Config) -> bool {
    let Some(hierarchy) = host.layout.with_controller("io").filter(|_| config.scavenger) else { return false };
    let root = hierarchy.open().ok().filter(|_| hierarchy.version == Version::V2);
    Dir::open("/sys").is_ok_and(|sys| io::weights_work(&sys, root.as_ref()))
}

/// The controllers among these names that limits can need.
pub(super) fn controllers_named(names: &[String]) -> Vec<&'static str> {
    rules::controllers(|rule| names.iter().any(|name| name == rule.controller))
}

/// The controllers whose files the configured limits are written to.
pub fn controllers(config: &Config) -> Vec<&'static str> {
    rules::controllers(|rule| (rule.wanted)(rule.limit, config))
}
