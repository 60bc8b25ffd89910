// SPDX-License-Identifier: GPL-2.0-or-later
//! Shows what would be written where, for a step that does not exist. It uses the rules by which limits are set.

use std::path::PathBuf;

use super::limiting::{self, LimitError, Placing};
use super::names::IDLE;
use super::open::{controllers, lowers_io};
use super::rules::{self, FileWrite};
use crate::cgroup::disk::Disks;
use crate::cgroup::io;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits::CPU_IDLE;
use crate::config::{Config, Limit};
use crate::error::Result;
use crate::host::Host;
use crate::job::JobKey;
use crate::policy::{Level, Plan};
use crate::scheduler::Scheduler;
use crate::sorted;

/// One limit of one directory.
#[derive(Debug)]
pub struct LimitLine {
    /// What is limited.
    pub limit: Limit,
    /// Whose directory it is.
    pub level: Level,
    /// The directory. A scheduler's path has a `*` for what is not known.
    pub dir: PathBuf,
    /// What is written into its files, or why it cannot be written.
    pub writes: Result<Vec<FileWrite>>,
    /// The keys of jobfence.conf(5) that it comes from.
    pub keys: &'static [&'static str],
}

/// Returns every limit of a step, outermost directory first, and the limits that cannot be set. `whose` names the scheduler whose
/// directories a hierarchy has (`None`: jobfence's). `limits_memory` tells whether that scheduler limits memory itself. `more` has the
/// controllers that are needed beside the configured ones.
///
/// Limits that an earlier step has lowered, or that a scheduler has set, are not read.
pub fn explain(
    host: &Host,
    config: &Config,
    more: &[&'static str],
    key: &JobKey,
    plan: &Plan,
    whose: impl Fn(&Hierarchy) -> Option<&'static dyn Scheduler>,
    limits_memory: bool,
) -> Result<(Vec<LimitLine>, Vec<LimitError>)> {
    let mut wanted = controllers(config);
    wanted.extend(more.iter().filter(|more| !wanted.contains(more)).copied().collect::<Vec<_>>());
    let mut plan = plan.clone();
    if lowers_io(host, config) {
        plan.job.io_weight = Some(limiting::LEAST_WEIGHT);
        wanted.extend(["io"].into_iter().filter(|io| !controllers(config).contains(io)));
    }
    let mut errors = Vec::new();
    if plan.names_disks() {
        let disks = Disks::read(&host.proc)?;
        errors = plan.find_disks(|rules| io::limits_of(rules, &disks));
    }
    let plan = &plan;
    let mut lines = Vec::new();
    for hierarchy in host.hierarchies(&wanted)? {
        let scheduler = whose(hierarchy);
        let overlay = scheduler.is_some();
        let place = if overlay {
            Placing::Overlay { headroom: config.headroom_cpus, daemons: 1, batch: None }
        } else {
            Placing::Own
        };
        if plan.scavenger && !overlay && hierarchy.has("cpu") {
            lines.push(LimitLine {
                limit: Limit::Weight,
                level: Level::User,
                dir: hierarchy.mount.join(&host.base).join(IDLE),
                writes: Ok(vec![FileWrite { file: CPU_IDLE.to_owned(), value: "1".to_owned() }]),
                keys: &["Scavenger"],
            });
        }
        // jobfence makes directories for tasks only if tasks have limits of their own.
        let levels = [Level::User, Level::Job, Level::Step, Level::Task];
        for level in levels.into_iter().filter(|level| *level != Level::Task || !plan.task.is_empty()) {
            lines.extend(lines_at((host, hierarchy), (level, place), key, plan, (scheduler, limits_memory)));
        }
    }
    for controller in wanted {
        let missing = host.missing(controller);
        errors.extend(
            missing.into_iter().flat_map(|error| limiting::none_of(plan, |theirs| theirs == controller, &error)),
        );
    }
    sorted::sort_by_key(&mut lines, |line| line.level);
    Ok((lines, errors))
}

/// The lines of one level of directories. A scheduler that does not let jobfence into a directory is a line for each limit there.
fn lines_at(
    (host, hierarchy): (&Host, &Hierarchy),
    (level, place): (Level, Placing),
    key: &JobKey,
    plan: &Plan,
    (scheduler, limits_memory): (Option<&'static dyn Scheduler>, bool),
) -> Vec<LimitLine> {
    let mut limits = limiting::limits_at(plan, level, place, hierarchy.version);
    limits.swap = limits.swap.filter(|_| !(scheduler.is_some() && limits_memory && limits.swap_yields));
    let Some(dir) = dir_of(host, hierarchy, key, plan, scheduler, level) else {
        let refused = scheduler.map(|theirs| limiting::none_for_the_user(plan, hierarchy, theirs));
        let line = |(limit, error)| LimitLine {
            limit,
            level,
            dir: hierarchy.mount.clone(),
            writes: Err(error),
            keys: rules::keys_of(limit),
        };
        return refused.into_iter().flatten().map(line).collect();
    };
    let of_files = limiting::rules(hierarchy, level, place).filter_map(|rule| {
        let writes = rule.writes(&limits, hierarchy.version).map(|writes| existing(hierarchy, rule.limit, writes));
        let line = |writes| LimitLine { limit: rule.limit, level, dir: dir.clone(), writes, keys: rule.keys };
        match writes {
            Ok(writes) if writes.is_empty() => None,
            writes => Some(line(writes)),
        }
    });
    let mut lines: Vec<LimitLine> = of_files.collect();
    if let Some(rate) = plan.job.network.filter(|_| level == Level::Job && hierarchy.version == Version::V2) {
        // Not a file: a program that is attached above all users' directories.
        let write = FileWrite { file: "BPF_CGROUP_INET_EGRESS".to_owned(), value: rate.to_string() };
        let writes = if scheduler.is_some() { Err(super::limit::no_network()) } else { Ok(vec![write]) };
        lines.push(LimitLine { limit: Limit::Network, level, dir: dir.clone(), writes, keys: &["NetworkMax"] });
    }
    lines
}

/// Keeps the files of I/O weight, and of a CPU quota with its slack, that this kernel has, as any directory below the root shows. If
/// none shows it, keeps all.
fn existing(hierarchy: &Hierarchy, limit: Limit, writes: Vec<FileWrite>) -> Vec<FileWrite> {
    if !matches!(limit, Limit::IoWeight | Limit::Cpu) {
        return writes;
    }
    let below = hierarchy.open().and_then(|root| {
        let name = root.list(true)?.into_iter().next();
        name.map(|name| root.child(&name)).transpose()
    });
    let Ok(Some(below)) = below else { return writes };
    let (present, missing): (Vec<FileWrite>, Vec<FileWrite>) =
        writes.into_iter().partition(|write| below.has(&write.file));
    if present.is_empty() { missing } else { present }
}

/// The directory of a level; `None` if the scheduler has none of this level.
fn dir_of(
    host: &Host,
    hierarchy: &Hierarchy,
    key: &JobKey,
    plan: &Plan,
    scheduler: Option<&dyn Scheduler>,
    level: Level,
) -> Option<PathBuf> {
    let path = match scheduler {
        Some(scheduler) => scheduler.would_make(hierarchy.version, key, level)?,
        None => {
            let base = if plan.scavenger { format!("{}/{IDLE}", host.base) } else { host.base.clone() };
            let mut levels = key.parents();
            levels.push(key.step_dir(1));
            // A node's level is above the user's.
            let above = levels.len().saturating_sub(3);
            let depth = above
                + match level {
                    Level::User => 1,
                    Level::Job => 2,
                    Level::Step | Level::Task => 3,
                };
            levels.truncate(depth);
            let task = if level == Level::Task { "/task_0" } else { "" };
            format!("/{base}/{}{task}", levels.join("/"))
        }
    };
    let inside = hierarchy.in_proc(&path);
    let inside = hierarchy.below_mount(&inside).unwrap_or(&inside);
    Some(hierarchy.mount.join(inside.trim_start_matches('/')))
}
