// SPDX-License-Identifier: GPL-2.0-or-later
//! What would be written where, for a step that does not exist: by the rules by which limits are set.

use std::path::PathBuf;

use super::limiting::{self, LimitError, Whose};
use super::names::{IDLE, in_mount};
use super::open::{controllers, lowers_io};
use super::rules::{self, FileWrite};
use crate::cgroup::disk::Disks;
use crate::cgroup::io;
use crate::cgroup::layout::Hierarchy;
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
    /// The directory; as far as it is known, where it is a scheduler's.
    pub dir: PathBuf,
    /// What is written into its files, or why that cannot be.
    pub writes: Result<Vec<FileWrite>>,
    /// The keys of jobfence.conf(5) that it comes from.
    pub keys: &'static [&'static str],
}

/// Every limit of a step, the outermost directory first, and what cannot be limited. `whose` says of which scheduler the
/// directories of a hierarchy are (`None`: ours), `limits_memory` whether it limits memory in them itself, `more` which controllers are needed beside
/// those of the configuration.
///
/// What an earlier step has left lower, or a scheduler itself has set, is not looked at.
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
            Whose::Overlay { headroom: config.headroom_cpus, daemons: 1, batch: None }
        } else {
            Whose::Own
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
        // Without a limit of their own tasks have no directories of ours.
        let levels = [Level::User, Level::Job, Level::Step, Level::Task];
        for level in levels.into_iter().filter(|level| *level != Level::Task || !plan.task.is_empty()) {
            let mut limits = limiting::limits_at(plan, level, place, hierarchy.version);
            limits.swap = limits.swap.filter(|_| !(overlay && limits_memory && limits.swap_yields));
            let dir = match dir_of(host, hierarchy, key, plan, scheduler, level) {
                Some(dir) => dir,
                None => {
                    let refused = scheduler.map(|theirs| limiting::none_for_the_user(plan, hierarchy, theirs));
                    lines.extend(refused.into_iter().flatten().map(|(limit, error)| LimitLine {
                        limit,
                        level,
                        dir: hierarchy.mount.clone(),
                        writes: Err(error),
                        keys: rules::keys_of(limit),
                    }));
                    continue;
                }
            };
            lines.extend(limiting::rules(hierarchy, level, place).filter_map(|rule| {
                let writes =
                    rule.writes(&limits, hierarchy.version).map(|writes| existing(hierarchy, rule.limit, writes));
                let line = |writes| LimitLine { limit: rule.limit, level, dir: dir.clone(), writes, keys: rule.keys };
                match writes {
                    Ok(writes) if writes.is_empty() => None,
                    writes => Some(line(writes)),
                }
            }));
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

/// Of the files of I/O weight, and of a quota with its slack, those that this kernel has: any directory below the root shows it. All
/// of them where none shows it.
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

/// The directory of a level; `None` where there is none of users.
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
    let inside = in_mount(hierarchy, &path);
    let inside = hierarchy.below_mount(&inside).unwrap_or(&inside);
    Some(hierarchy.mount.join(inside.trim_start_matches('/')))
}
