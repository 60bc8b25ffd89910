// SPDX-License-Identifier: GPL-2.0-or-later
//! The one life cycle of a fence: open, limit, attach, usage, close.
//!
//! It knows no scheduler. Every operation may be repeated, and the last step out takes the job's and the user's directories
//! along; nothing is locked for that: making a directory starts again when a parent has vanished, and removing one that is
//! in use fails without harm.

use std::ops::Deref;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::cgroup::affinity::Affinity;
use crate::cgroup::base;
use crate::cgroup::cpuset;
use crate::cgroup::devices::{self, Devices};
use crate::cgroup::disk::Disks;
use crate::cgroup::handing_down;
use crate::cgroup::huge_pages::{self, HugePages};
use crate::cgroup::io::{self, DiskLimit, IoRules};
use crate::cgroup::kernel::LoadedScheduler;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits;
use crate::cgroup::mark;
use crate::cgroup::membership::{Membership, SlurmsOwn};
use crate::cgroup::usage::{Usage, forks_refused, forks_refused_here, oom_kills};
use crate::config::{Config, Limit, Percent, TaskCpus};
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::janitor;
use crate::job::{Cpus, JobKey};
use crate::policy::{Level, Limits, Plan};
use crate::record::roll::Kind;
use crate::record::{Header, Owner, Record, Records};
use crate::sys::dir::Dir;

pub mod explain;
pub mod limiting;
mod overlay;
pub mod own;
pub mod present;

use limiting::{Cores, LEAST_WEIGHT, Place};
use overlay::Overlay;
use own::Own;
pub use own::{marked_by_another, open_existing, remove_if_empty, unrecorded};

/// Below our own directory: the branch of those who run only when nobody else wants to.
const IDLE: &str = "idle";

/// How long another step may keep us from setting limits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long our own directories may take to go where the scheduler has its own: nobody has been in them.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);

/// One step in one hierarchy: the two placements.
#[derive(Debug)]
enum Tree {
    /// In directories of ours.
    Own(Own),
    /// In directories that the scheduler made for it.
    Overlay(Overlay),
}

impl Tree {
    fn hierarchy(&self) -> &Hierarchy {
        match self {
            Self::Own(own) => &own.hierarchy,
            Self::Overlay(overlay) => &overlay.hierarchy,
        }
    }

    /// The directory that holds the step's processes.
    fn step(&self) -> Result<Handle<'_>> {
        match self {
            Self::Own(own) => own.step().map(Handle::Kept).ok_or_else(|| not_made("step", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.step().map(Handle::Opened),
        }
    }

    fn job(&self) -> Result<Handle<'_>> {
        match self {
            Self::Own(own) => own.job().map(Handle::Kept).ok_or_else(|| not_made("job", &own.hierarchy)),
            Self::Overlay(overlay) => overlay.job().map(Handle::Opened),
        }
    }

    /// The directory of all the user's jobs. `None`: the scheduler has none, on cgroup2.
    fn user(&self) -> Option<Result<Handle<'_>>> {
        match self {
            Self::Own(own) => Some(own.user().map(Handle::Kept).ok_or_else(|| not_made("user", &own.hierarchy))),
            Self::Overlay(overlay) => Some(overlay.user()?.map(Handle::Opened)),
        }
    }

    fn own(&self) -> Option<&Own> {
        match self {
            Self::Own(own) => Some(own),
            Self::Overlay(_) => None,
        }
    }
}

fn not_made(what: &'static str, hierarchy: &Hierarchy) -> Error {
    Error::new(format!("the {what} has no directory in")).at(&hierarchy.mount)
}

/// A directory that is kept open, or that was opened for a moment.
enum Handle<'a> {
    Kept(&'a Dir),
    Opened(Dir),
}

impl Deref for Handle<'_> {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        match self {
            Self::Kept(dir) => dir,
            Self::Opened(dir) => dir,
        }
    }
}

/// A fenced step.
#[derive(Debug)]
pub struct Fence {
    key: JobKey,
    /// In the order in which processes are attached.
    trees: Vec<Tree>,
    /// The path of the step below the root of every hierarchy in which it is in directories of ours.
    path: String,
    levels: Vec<String>,
    /// The directory below which they are, in names.
    base_levels: usize,
    wanted: Vec<&'static str>,
    /// Controllers that limits were to be written to, and that are nowhere.
    missing: Vec<(&'static str, Error)>,
    /// Why a CPU quota would not hold, whatever the kernel shows.
    quota_ignored: Option<Error>,
    /// Whether it gets the least I/O weight, as a scavenger does where weights have an effect.
    lowest_io: bool,
    /// What was to be limited; for directories that are known only when a task is in them.
    plan: Option<Plan>,
    headroom: Cpus,
    /// Whether the CPUs that the scheduler gave were looked at.
    cores_checked: bool,
    /// Whether it was looked whose affair swap is in the scheduler's directories.
    swap_decided: bool,
    /// Whether the scheduler may have directories of its own, in which limits are set.
    overlay: bool,
    records: Records,
    /// Whether there is a record of ours.
    claimed: bool,
    /// The text of that record, with which directories are marked.
    mark: String,
    /// Whose step it is.
    owner: Owner,
    /// How long removing what could not be made may take.
    cleanup_timeout: Duration,
    /// Whether the scheduler's directories in hierarchies that are not used have been looked at.
    others_marked: bool,
    /// Whether the devices that the step may use were to be limited, and could not be.
    without_devices: bool,
    closed: bool,
}

/// A limit that could not be set, and why.
pub type LimitError = (Limit, Error);

impl Fence {
    /// Makes the step's directories in every hierarchy that is used, under a name that nobody else has.
    ///
    /// Where the scheduler itself tracks the step by cgroup, as far as can be seen from where its daemon is (`daemon`), nothing
    /// is made; a daemon in the directories of another step is an error. Without a daemon (`None`) no process is taken out of a
    /// scheduler's directory, and that is an error.
    pub fn open(host: &Host, config: &Config, key: &JobKey, daemon: Option<&Membership>) -> Result<Self> {
        Self::open_with(host, config, &[], key, daemon)
    }

    /// The same with more controllers than the configuration needs.
    pub fn open_with(
        host: &Host,
        config: &Config,
        more: &[&'static str],
        key: &JobKey,
        daemon: Option<&Membership>,
    ) -> Result<Self> {
        let mut wanted = controllers(config);
        let lowest_io = lowers_io(host, config);
        if lowest_io && !wanted.contains(&"io") {
            wanted.push("io");
        }
        for controller in more {
            if !wanted.contains(controller) {
                wanted.push(controller);
            }
        }
        let class = config.scavenger.then_some(IDLE);
        let base = class.map_or_else(|| host.base.clone(), |class| format!("{}/{class}", host.base));
        let mut own = Vec::new();
        let mut overlays = Vec::new();
        for hierarchy in host.hierarchies(&wanted)? {
            match daemon.and_then(|daemon| Some((daemon, daemon.slurms_own(hierarchy)?))) {
                None => own.push(hierarchy),
                Some((daemon, found)) => {
                    let mut overlay = Overlay::new(hierarchy.clone(), hierarchy.open()?, 0);
                    overlay::check_daemon(hierarchy, key, daemon, &found)?;
                    // v1's freezer, in which nothing is limited, shows no step of the daemon.
                    if overlay.locate(key, &found)? || wanted.iter().any(|controller| hierarchy.has(controller)) {
                        overlays.push(Tree::Overlay(overlay));
                    }
                }
            }
        }
        let owner = Owner::this(&host.proc)?;
        let mut levels = key.parents();
        let mut again = 1;
        let mut removed = 0;
        let mut withheld: Option<Vec<(&'static str, Error)>> = None;
        loop {
            let records = Records::open(&config.run_dir)?;
            levels.truncate(key.parents().len());
            levels.push(key.step_dir(again));
            let record = Record {
                boot_id: host.boot_id.clone(),
                pid_namespace: host.pid_namespace.clone(),
                owner,
                base: base.clone(),
                levels: levels.clone(),
            };
            // Where nothing is ours there is nothing to record, and a name for nobody to have.
            if !own.is_empty() && !records.claim(&record)? {
                // Somebody's: a dead owner's is taken away, a living one's (a requeued job overlaps its own end) stays.
                match janitor::reap_one(host, &records, &levels, Instant::now() + janitor::PATIENCE_AT_LAUNCH) {
                    // The name should be free now; who takes it again and again must not keep us here.
                    Ok(janitor::Outcome::Removed | janitor::Outcome::Gone) => removed += 1,
                    Ok(janitor::Outcome::Alive | janitor::Outcome::Busy) => again += 1,
                    // A process of it that does not die, or a record that is not understood, is no reason to refuse this job.
                    Err(error) => {
                        log::warn!("cannot remove {}: {error}", levels.join("/"));
                        again += 1;
                    }
                }
            } else {
                let fence = Self {
                    key: key.clone(),
                    trees: Vec::with_capacity(own.len() + overlays.len()),
                    path: format!("/{base}/{}", levels.join("/")),
                    levels: levels.clone(),
                    base_levels: base.split('/').count(),
                    wanted: wanted.clone(),
                    missing: wanted
                        .iter()
                        .filter_map(|c| Some((*c, host.missing(c)?)))
                        .chain(withheld.iter().flatten().cloned())
                        .collect(),
                    lowest_io,
                    quota_ignored: host.scheduler.as_ref().and_then(LoadedScheduler::ignores_quota),
                    plan: None,
                    headroom: config.headroom_cpus,
                    cores_checked: false,
                    swap_decided: false,
                    overlay: daemon.is_some(),
                    records,
                    claimed: !own.is_empty(),
                    mark: record.to_string(),
                    owner,
                    cleanup_timeout: config.cleanup_timeout,
                    others_marked: false,
                    without_devices: false,
                    closed: false,
                };
                match fence.make(host, &own, &wanted, class) {
                    Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => {
                        log::warn!("{error}");
                        again += 1;
                    }
                    // What is limited by controllers that are handed down can be limited all the same.
                    Err(error) if withheld.is_none() => {
                        let theirs = host.not_handed_down(&wanted);
                        if theirs.is_empty() {
                            return Err(error);
                        }
                        wanted.retain(|controller| !theirs.iter().any(|(withheld, _)| withheld == controller));
                        withheld = Some(theirs);
                    }
                    made => {
                        return made.map(|mut fence| {
                            fence.trees.append(&mut overlays);
                            fence.end_earlier_run(host);
                            fence.mark_located();
                            fence
                        });
                    }
                }
            }
            if again + removed > 100 {
                return Err(Error::new("a hundred times another step had the name of this one")
                    .value(key)
                    .hint("see 'jobfence reap'"));
            }
        }
    }

    fn make(
        mut self,
        host: &Host,
        hierarchies: &[&Hierarchy],
        wanted: &[&'static str],
        class: Option<&'static str>,
    ) -> Result<Self> {
        for hierarchy in hierarchies {
            let mut dirs = Vec::new();
            let mut hierarchy = (*hierarchy).clone();
            hierarchy.controllers.retain(|has| !self.missing.iter().any(|(missing, _)| missing == has));
            let made = own::make_dirs(host, &hierarchy, wanted, class, &self.levels, &mut dirs);
            // EEXIST: somebody else lives there, and nothing of it is ours to remove.
            if made.as_ref().err().and_then(Error::kernel_errno) != Some(Errno::EEXIST) {
                self.trees.push(Tree::Own(Own { hierarchy, dirs, class }));
            }
            if let Err(error) = made {
                // What was made goes away again, here too, where it may be a part of the way down.
                let _ = self.close(Instant::now() + self.cleanup_timeout);
                return Err(error);
            }
        }
        // One of them is enough: it leads to the others.
        if let Some(step) = self.trees.iter().find_map(|tree| tree.own()?.step()) {
            put_mark(step, &self.mark);
        }
        Ok(self)
    }

    /// The fence of a step that another process owns, as far as it exists now, for putting a process in that is at `member`:
    /// without the hierarchies in which that is in directories of the scheduler's. Closing it does nothing.
    pub fn of_another(
        host: &Host,
        records: Records,
        key: JobKey,
        record: &Record,
        member: &Membership,
    ) -> Result<Self> {
        let mut trees = open_existing(host, &record.base, &record.levels)?.trees;
        trees.retain(|own| {
            let stays = member.slurms_own(&own.hierarchy).is_some();
            own.dirs.len() == record.levels.len() + 1 && !stays
        });
        // In the order in which they were made: where a process can be killed comes first.
        trees.sort_by_key(|own| (own.hierarchy.version == Version::V1, !own.hierarchy.has("freezer")));
        let path = format!("/{}/{}", record.base, record.levels.join("/"));
        if trees.is_empty() {
            return Err(Error::new("the step has no directory in any hierarchy; it has just begun or ended:").at(path));
        }
        Ok(Self {
            key,
            trees: trees.into_iter().map(Tree::Own).collect(),
            path,
            levels: record.levels.clone(),
            base_levels: record.base.split('/').count(),
            wanted: Vec::new(),
            missing: Vec::new(),
            lowest_io: false,
            quota_ignored: None,
            plan: None,
            headroom: Cpus::whole(0),
            cores_checked: false,
            swap_decided: false,
            overlay: false,
            records,
            claimed: false,
            mark: String::new(),
            owner: record.owner,
            cleanup_timeout: janitor::PATIENCE,
            others_marked: true,
            without_devices: false,
            closed: true,
        })
    }

    /// The process that owns it.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whose step this is.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The path of the directory that holds the step's processes, as `/proc/PID/cgroup` shows it where the hierarchy's root is
    /// mounted: ours, where one is; otherwise the scheduler's. `None`: it is not known before a task is in it.
    pub fn path(&self) -> Option<String> {
        if self.trees.iter().any(|tree| tree.own().is_some()) {
            return Some(self.path.clone());
        }
        self.trees.iter().find_map(|tree| match tree {
            Tree::Own(_) => None,
            Tree::Overlay(overlay) => overlay.path(),
        })
    }

    /// In words, where the step is in each hierarchy; for the log.
    pub fn placement(&self) -> String {
        let place = |tree: &Tree| {
            let hierarchy = tree.hierarchy();
            match tree {
                Tree::Own(_) => format!("own in {hierarchy}"),
                Tree::Overlay(overlay) => match overlay.path() {
                    Some(path) => format!("overlay in {hierarchy}: {path}"),
                    None => format!("overlay in {hierarchy}"),
                },
            }
        };
        self.trees.iter().map(place).collect::<Vec<_>>().join("; ")
    }

    /// Whether any hierarchy is the scheduler's.
    pub fn has_overlay(&self) -> bool {
        self.trees.iter().any(|tree| tree.own().is_none())
    }

    /// Writes the job's limits and then the step's, and reads them back. Returns those that could not be set. Directories of
    /// the scheduler's that are not known yet get theirs when they are.
    pub fn limit(&mut self, plan: &Plan) -> Vec<LimitError> {
        let mut plan = plan.clone();
        // Here, and not when a task is attached, which may be where other file systems are seen.
        let mut errors = match plan.names_disks().then(|| Dir::open("/proc").and_then(|proc| Disks::read(&proc))) {
            None => Vec::new(),
            Some(Ok(disks)) => plan.find_disks(&disks),
            Some(Err(error)) => vec![(Limit::Io, error)],
        };
        if self.lowest_io {
            plan.job.io_weight = Some(LEAST_WEIGHT);
        }
        let plan = &plan;
        for (controller, error) in &self.missing {
            errors.extend(limiting::none_of(plan, |theirs| theirs == *controller, error));
        }
        if let Some(error) = &self.quota_ignored
            && limiting::has_any(plan, Limit::Cpu)
        {
            errors.push((Limit::Cpu, error.clone()));
        }
        self.plan = Some(plan.clone());
        for tree in &self.trees {
            self.limit_tree(tree, plan, &mut errors);
        }
        self.note_devices(&errors);
        errors
    }

    fn limit_tree(&self, tree: &Tree, plan: &Plan, errors: &mut Vec<LimitError>) {
        let mut hierarchy = tree.hierarchy().clone();
        if matches!(tree, Tree::Overlay(overlay) if !overlay.is_located()) {
            return;
        }
        let dirs = tree.job().and_then(|job| Ok((job, tree.step()?)));
        let (job, step) = match dirs {
            Ok(dirs) => dirs,
            Err(error) => return errors.extend(limiting::none_of(plan, |theirs| hierarchy.has(theirs), &error)),
        };
        for (controller, error) in self.enable(tree, plan, &step) {
            errors.extend(limiting::none_of(plan, |theirs| theirs == controller && hierarchy.has(theirs), &error));
            hierarchy.controllers.remove(controller);
        }
        let hierarchy = &hierarchy;
        let user = match tree.user() {
            Some(Ok(user)) => Some(user),
            Some(Err(error)) => return errors.extend(limiting::none_of(plan, |theirs| hierarchy.has(theirs), &error)),
            None => {
                errors.extend(limiting::none_for_the_user(plan, hierarchy));
                None
            }
        };
        errors.extend(limiting::not_together(plan, hierarchy));
        let mut place = match tree {
            Tree::Own(_) => Place::Own,
            Tree::Overlay(overlay) => {
                errors.extend(limiting::no_devices(plan, hierarchy));
                // On v1 none of the scheduler's daemons is in the job's directory of the cpu hierarchy.
                let batch = if hierarchy.version == Version::V2 { overlay.batch_quota() } else { None };
                Place::Overlay { headroom: self.headroom, daemons: 0, batch }
            }
        };
        let levels = [(Level::User, user.as_deref()), (Level::Job, Some(&*job)), (Level::Step, Some(&*step))];
        let set = |level, place, which: &dyn Fn(Limit) -> bool, errors: &mut Vec<LimitError>| {
            for (_, dir) in levels.iter().filter(|(theirs, _)| *theirs == level) {
                let limits = limiting::limits_at(plan, level, place, hierarchy.version);
                let Some(dir) = dir else { continue };
                limiting::set(dir, hierarchy, level, place, &limits, which, errors);
            }
        };
        // Only these: the kernel may take long to lower a memory limit, and nobody must wait for that.
        const UNDER_LOCK: [Limit; 5] = [Limit::Cpu, Limit::Burst, Limit::Weight, Limit::Processes, Limit::IoWeight];
        let has_any = UNDER_LOCK.iter().any(|limit| limiting::is_planned(plan, *limit, hierarchy));
        let lock = has_any.then(|| self.records.lock_limits(Instant::now() + LOCK_TIMEOUT)).transpose();
        match lock {
            Err(error) => {
                let theirs = |limit: &Limit| limiting::is_planned(plan, *limit, hierarchy);
                errors.extend(UNDER_LOCK.into_iter().filter(theirs).map(|limit| (limit, error.clone())));
            }
            Ok(None) => {}
            Ok(Some(_lock)) => {
                if let (Place::Overlay { daemons, .. }, true) = (&mut place, hierarchy.has("pids")) {
                    *daemons = limiting::daemons(&job);
                }
                if hierarchy.has("cpu") {
                    let of_user = user.as_ref().zip(plan.user.cpu);
                    let limited =
                        of_user.map_or(Ok(()), |(user, quota)| limiting::cpu_of_user(user, hierarchy.version, quota));
                    // Where OnError lets a job run all the same, the user's limit alone is missing.
                    let all = [limited, limiting::cpu(&job, &step, hierarchy.version, plan, place)];
                    errors.extend(all.into_iter().filter_map(Result::err).map(|error| (Limit::Cpu, error)));
                }
                for level in [Level::User, Level::Job, Level::Step] {
                    set(level, place, &|limit| limit != Limit::Cpu && UNDER_LOCK.contains(&limit), errors);
                }
                if let (Some(user), true, true) = (&user, plan.weighs, hierarchy.has("cpu")) {
                    let weighed = limiting::weigh_user(user, hierarchy.version);
                    errors.extend(weighed.err().map(|error| (Limit::Weight, error)));
                }
                if let (Some(user), Some(_), true) = (&user, plan.job.io_weight, hierarchy.has("io")) {
                    let weighed = limiting::weigh_io_of_user(user, hierarchy.version);
                    // What the job's own directory has said already is not said again.
                    let known = errors.iter().any(|(limit, _)| *limit == Limit::IoWeight);
                    errors.extend(weighed.err().filter(|_| !known).map(|error| (Limit::IoWeight, error)));
                }
            }
        }
        if let (Tree::Own(own), true, true) = (tree, plan.scavenger, hierarchy.has("cpu")) {
            let top = own.dirs.first().ok_or_else(|| not_made("class", hierarchy));
            errors.extend(top.and_then(limiting::make_idle).err().map(|error| (Limit::Weight, error)));
        }
        if let (Tree::Own(own), true, true) = (tree, self.lowest_io, hierarchy.has("io")) {
            let top = own.dirs.first().ok_or_else(|| not_made("class", hierarchy));
            let set = top.and_then(|top| io::set_weight(top, hierarchy.version, LEAST_WEIGHT));
            errors.extend(set.err().map(|error| (Limit::IoWeight, error)));
        }
        // Lower than what is in use, they take it from who is there: not from other steps that run.
        const AMOUNTS: [Limit; 3] = [Limit::Ram, Limit::Swap, Limit::MemoryHigh];
        for (level, dir) in levels {
            let (Some(dir), true) = (dir, hierarchy.has("memory")) else { continue };
            let limits = plan.of(level);
            if level != Level::Step && limiting::stays_in_memory(dir, hierarchy.version, limits)
                || level == Level::User && limiting::is_exceeded(dir, hierarchy.version, limits)
            {
                continue;
            }
            let mut limits = limiting::limits_at(plan, level, place, hierarchy.version);
            // Nobody else limits users.
            if place != Place::Own && level != Level::User {
                limits = limiting::beside_theirs(dir, hierarchy.version, &limits);
                // Decided when the scheduler has had its turn: see `limit_swap`.
                limits.swap = limits.swap.filter(|_| !limits.swap_yields);
            }
            limiting::set(dir, hierarchy, level, place, &limits, |limit| AMOUNTS.contains(&limit), errors);
        }
        for level in [Level::User, Level::Job, Level::Step] {
            let theirs = |limit| {
                UNDER_LOCK.contains(&limit)
                    || AMOUNTS.contains(&limit)
                    || (limit == Limit::Cores && !self.are_ours(tree, plan))
            };
            set(level, place, &|limit| !theirs(limit), errors);
        }
    }

    /// Whether the step's CPUs are for us to limit: not where the scheduler does so itself.
    fn are_ours(&self, tree: &Tree, plan: &Plan) -> bool {
        let (Tree::Overlay(overlay), Some(ours)) = (tree, &plan.step.cores) else { return true };
        let version = overlay.hierarchy.version;
        let dirs = overlay.step().and_then(|step| Ok((step, overlay.above_jobs()?)));
        match dirs.and_then(|(step, all)| limiting::cores_beside(&step, &all, version, ours)) {
            Ok(Cores::Same) => false,
            Ok(Cores::Other(theirs)) => {
                log::warn!(
                    "{}: Slurm limits it to the CPUs {theirs}, which stay; by jobfence's own map of cores they would be {ours}: \
                     please report that, with the output of lscpu -e",
                    self.key
                );
                false
            }
            // Where it cannot be read, writing says why.
            Ok(Cores::Unlimited) | Err(_) => true,
        }
    }

    /// Looks again at the CPUs, once, when Slurm has written its own: on cgroup2 that is after the beginning, while on v1 it
    /// makes the directory no sooner.
    fn check_cores(&mut self) {
        if std::mem::replace(&mut self.cores_checked, true) {
            return;
        }
        let Some(plan) = &self.plan else { return };
        for tree in self.trees.iter().filter(|tree| tree.hierarchy().version == Version::V2) {
            if limiting::is_planned(plan, Limit::Cores, tree.hierarchy()) {
                self.are_ours(tree, plan);
            }
        }
    }

    /// Has the controllers enabled for the step, and for directories of tasks in it. Returns those that cannot be.
    fn enable(&self, tree: &Tree, plan: &Plan, step: &Dir) -> Vec<(&'static str, Error)> {
        as_far_as_can_be(&self.wanted, |wanted| match tree {
            Tree::Overlay(overlay) => overlay.enable(wanted, step, !plan.task.is_empty()),
            Tree::Own(own) if !plan.task.is_empty() => handing_down::enable(step, &own.hierarchy, wanted, false),
            Tree::Own(_) => Ok(()),
        })
    }

    /// Lowers `memory.high` of the step once more. On cgroup2 Slurm's step is there before its task/cgroup writes limits of memory
    /// into it, `memory.high` among them (`task_g_pre_setuid`, after `slurm_spank_init_post_opt`); nothing of a later step's is
    /// written there, but what a running job's memory is changed to (Slurm 26.05), without telling us.
    fn reclaim_again(&self, overlay: &Overlay, plan: &Plan, errors: &mut Vec<LimitError>) {
        let hierarchy = &overlay.hierarchy;
        let Some(high) = plan.step.high.filter(|_| hierarchy.has("memory")) else { return };
        let step = match overlay.step() {
            Ok(step) => step,
            Err(error) => return errors.push((Limit::MemoryHigh, error)),
        };
        let limits = Limits { high: Some(high), ..Limits::default() };
        let limits = limiting::beside_theirs(&step, hierarchy.version, &limits);
        let place = Place::Overlay { headroom: self.headroom, daemons: 0, batch: None };
        limiting::set(&step, hierarchy, Level::Step, place, &limits, |limit| limit == Limit::MemoryHigh, errors);
    }

    /// Limits swap in the scheduler's directories where the configuration leaves it to a scheduler that limits memory, and this one
    /// does not. Once, when a task is there or the extern step is complete: not before then has Slurm's task/cgroup written limits of
    /// memory (`task_g_pre_setuid`, on v1 it makes the directories no sooner), the job's and the step's alike.
    fn limit_swap(&mut self, errors: &mut Vec<LimitError>) {
        let Some(plan) = self.plan.as_ref().filter(|plan| !self.swap_decided && plan.step.swap_yields) else { return };
        let limits = Limits { swap: plan.step.swap, ..Limits::default() };
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let hierarchy = &overlay.hierarchy;
            if !hierarchy.has("memory") || !overlay.is_located() {
                continue;
            }
            self.swap_decided = true;
            let theirs = overlay.job().and_then(|job| limiting::limits_memory_itself(&job, hierarchy.version));
            let step = match theirs {
                Ok(true) => continue,
                Ok(false) => overlay.step(),
                Err(error) => Err(error),
            };
            match step {
                Ok(step) => {
                    let limits = limiting::beside_theirs(&step, hierarchy.version, &limits);
                    let place = Place::Overlay { headroom: self.headroom, daemons: 0, batch: None };
                    limiting::set(&step, hierarchy, Level::Step, place, &limits, |limit| limit == Limit::Swap, errors);
                }
                Err(error) => errors.push((Limit::Swap, error)),
            }
        }
    }

    /// Limits one task, which may have no more than its step.
    fn limit_task(&self, tree: &Tree, task: &Dir, plan: &Plan, errors: &mut Vec<LimitError>) {
        let hierarchy = tree.hierarchy();
        let place = match tree {
            Tree::Own(_) => Place::Own,
            Tree::Overlay(_) => Place::Overlay { headroom: self.headroom, daemons: 0, batch: None },
        };
        let mut limits = limiting::limits_at(plan, Level::Task, place, hierarchy.version);
        if let Some(quota) = limits.cpu.filter(|_| hierarchy.has("cpu")) {
            let of_step = tree.step().and_then(|step| limits::cpu_quota(&step, hierarchy.version)).ok().flatten();
            limits.cpu = Some(of_step.map_or(quota, |of_step| quota.at_most(of_step)));
        }
        limiting::set(task, hierarchy, Level::Task, place, &limits, |_| true, errors);
    }

    /// Moves a process into the step: one write to `cgroup.procs` in each hierarchy, and a look whether it is there.
    ///
    /// Where the scheduler itself tracks it by cgroup it is left, since taking it out would break the scheduler's signals and
    /// accounting: the step is limited there in its place. Returns the limits that could not be set then.
    /// `task` is its number within the step; `None` for one that the scheduler has not started as a task.
    pub fn attach(&mut self, host: &Host, pid: i32, task: Option<u32>) -> Result<Vec<LimitError>> {
        let before = Membership::read(&host.proc, pid)?;
        if !self.overlay {
            self.refuse_slurms_own(&before)?;
        }
        let mut errors = self.settle(&before)?;
        self.end_earlier_run(host);
        self.mark_located();
        self.mark_others(host, &before);
        // Its tasks are all in the same.
        self.others_marked = true;
        let plan = self.plan.as_ref().filter(|plan| task.is_some() && !plan.task.is_empty());
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let place = before.path_in(&overlay.hierarchy).unwrap_or("nowhere");
            if !overlay.holds(place) {
                return Err(Error::new(format!("process {pid} is not where Slurm tracks its step in"))
                    .at(&overlay.hierarchy.mount)
                    .value(place)
                    .hint(format!("expected below {}", overlay.path().as_deref().unwrap_or("a step of Slurm's"))));
            }
            errors.extend(self.lost_devices(tree).map(|error| (Limit::Devices, error)));
            if let Some(plan) = &self.plan {
                self.reclaim_again(overlay, plan, &mut errors);
            }
            let Some(plan) = plan else { continue };
            match overlay.task(place) {
                Ok(dir) => self.limit_task(tree, &dir, plan, &mut errors),
                Err(error) => errors.extend(limiting::none_of(
                    &Plan { task: plan.task.clone(), ..Plan::default() },
                    |theirs| overlay.hierarchy.has(theirs),
                    &error,
                )),
            }
        }
        self.attach_own(host, pid, plan.zip(task), &mut errors)?;
        self.check_cores();
        self.note_devices(&errors);
        Ok(errors)
    }

    /// Whether the scheduler has meanwhile attached to directories of its own what does not go together with our devices.
    fn lost_devices(&self, tree: &Tree) -> Option<Error> {
        let hierarchy = tree.hierarchy();
        let is_ours = hierarchy.version == Version::V2 && hierarchy.has(devices::CONTROLLER);
        self.plan.as_ref().filter(|plan| is_ours && plan.step.devices.is_some())?;
        tree.step().and_then(|step| devices::still_counts(&step)).err()
    }

    fn attach_own(
        &self,
        host: &Host,
        pid: i32,
        task: Option<(&Plan, u32)>,
        errors: &mut Vec<LimitError>,
    ) -> Result<()> {
        let name = task.map(|(_, number)| format!("task_{number}"));
        let mut bound = None;
        for tree in &self.trees {
            let Some(step) = tree.own().and_then(Own::step) else { continue };
            // Not kept: with contain_spank this is a process that shares our memory and not our descriptors.
            let dir = name.as_ref().map(|name| step.ensure(name)).transpose()?;
            if let (Some(dir), Some((plan, _))) = (&dir, task) {
                base::fill(step, dir, tree.hierarchy(), false)?;
                self.limit_task(tree, dir, plan, errors);
            }
            bound = bound.or_else(|| Affinity::of(pid));
            dir.as_ref().unwrap_or(step).write("cgroup.procs", &pid.to_string()).map_err(|error| {
                match error.kernel_errno() {
                    Some(Errno::EOPNOTSUPP) => error.hint("the cgroup, or one above it, is threaded"),
                    _ => error,
                }
            })?;
        }
        let Some(bound) = bound else { return Ok(()) };
        if Affinity::of(pid).is_some_and(|now| now != bound)
            && let Err(errno) = bound.set(pid)
        {
            // As where none of those CPUs is in our cgroup's cpuset. It is fenced all the same.
            let error = Error::new(format!("cannot bind process {pid} again to the CPUs that it was bound to"));
            log::warn!("{}", error.errno(errno));
        }
        let after = Membership::read(&host.proc, pid)?;
        for own in self.trees.iter().filter_map(Tree::own) {
            let mut expected = in_mount(&own.hierarchy, &self.path);
            if let Some(name) = &name {
                expected = format!("{expected}/{name}");
            }
            if after.path_in(&own.hierarchy) != Some(expected.as_str()) {
                return Err(Error::new(format!("process {pid} was attached, but the kernel shows it elsewhere in"))
                    .at(&own.hierarchy.mount)
                    .value(after.path_in(&own.hierarchy).unwrap_or("nowhere")));
            }
        }
        Ok(())
    }

    /// Decides between the placements by where a process of the step is: what was ours is removed where the scheduler has
    /// directories of its own, and those are limited. Returns the limits that could not be set.
    ///
    /// Slurm makes some of its directories after `slurm_spank_init`: those of task/cgroup, and on v1 those of
    /// jobacct_gather/cgroup.
    pub fn settle(&mut self, member: &Membership) -> Result<Vec<LimitError>> {
        let mut errors = Vec::new();
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees.get_mut(index) else { break };
            let Some(found) = member.slurms_own(tree.hierarchy()) else { continue };
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
            if let (Some(tree), Some(plan)) = (self.trees.get(index), &self.plan) {
                self.limit_tree(tree, plan, &mut errors);
            }
        }
        self.limit_swap(&mut errors);
        Ok(errors)
    }

    fn end_earlier_run(&self, host: &Host) {
        for tree in &self.trees {
            let Tree::Overlay(overlay) = tree else { continue };
            let soon = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
            if let Err(error) = overlay.end_earlier_run(host, self.owner, soon) {
                log::warn!("{}: what an earlier run has left stays: {error}", self.key);
            }
        }
    }

    /// Marks the scheduler's directories of the step that are known and have no mark yet.
    pub fn mark_located(&mut self) {
        let Self { trees, records, mark, .. } = self;
        let overlays = trees.iter_mut().filter_map(|tree| match tree {
            Tree::Overlay(overlay) => Some(overlay),
            Tree::Own(_) => None,
        });
        mark_all(records, mark, overlays.collect());
    }

    /// Marks those of hierarchies in which nothing is limited: on v1 Slurm leaves them behind all the same.
    pub fn mark_others(&mut self, host: &Host, member: &Membership) {
        if !self.overlay || self.others_marked {
            return;
        }
        let mut others = Vec::new();
        for hierarchy in &host.layout.hierarchies {
            let is_ours = self.trees.iter().any(|tree| tree.hierarchy() == hierarchy);
            let Some(found) = member.slurms_own(hierarchy).filter(|_| !is_ours) else { continue };
            let Ok(root) = hierarchy.open() else { continue };
            let mut overlay = Overlay::new(hierarchy.clone(), root, 0);
            if matches!(overlay.locate(&self.key, &found), Ok(true)) {
                let soon = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
                if let Err(error) = overlay.end_earlier_run(host, self.owner, soon) {
                    log::warn!("{}: what an earlier run has left stays: {error}", self.key);
                }
                others.push(overlay);
            }
        }
        mark_all(&self.records, &self.mark, others.iter_mut().collect());
    }

    /// Takes over where a process of the step is, in a process that only looks: nothing is removed and nothing limited.
    pub fn look_from(&mut self, member: &Membership) {
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees.get_mut(index) else { break };
            let Some(found) = member.slurms_own(tree.hierarchy()) else { continue };
            match tree {
                Tree::Overlay(overlay) => overlay.look_at(&found),
                Tree::Own(own) if found.step.is_some() => {
                    let Some(mut overlay) = Overlay::instead_of(own, self.base_levels) else { continue };
                    overlay.look_at(&found);
                    *tree = Tree::Overlay(overlay);
                }
                Tree::Own(_) => {}
            }
        }
    }

    /// Takes our own directories away in one hierarchy, unless somebody has been put into them: from now on the step is in the
    /// scheduler's there.
    fn give_way(&mut self, index: usize, found: &SlurmsOwn) -> Result<()> {
        let Some(tree) = self.trees.get_mut(index) else { return Ok(()) };
        let Tree::Own(own) = tree else { return Ok(()) };
        let anchor = own.dirs.first().ok_or_else(|| not_made("step", &own.hierarchy))?;
        overlay::check_owner(&own.hierarchy, anchor, self.base_levels, found)?;
        if let Some(step) = own.step().filter(|step| own::is_inhabited(step, Instant::now() + YIELD_TIMEOUT)) {
            return Err(Error::new(
                "Slurm has taken this task into a cgroup of its own, but processes of the step are in ours:",
            )
            .at(step.path())
            .value(found.step.as_deref().unwrap_or_default()));
        }
        own::remove(&[own], &self.levels, Instant::now() + YIELD_TIMEOUT)?;
        if let Some(overlay) = Overlay::instead_of(own, self.base_levels) {
            *tree = Tree::Overlay(overlay);
        }
        Ok(())
    }

    /// Says which hierarchy belongs to Slurm's own cgroup plugins for a process with this membership.
    fn refuse_slurms_own(&self, membership: &Membership) -> Result<()> {
        for hierarchy in self.trees.iter().map(Tree::hierarchy) {
            if let Some(path) = membership.path_in(hierarchy).filter(|_| membership.slurms_own(hierarchy).is_some()) {
                return Err(Error::new("Slurm's own cgroup plugin tracks this process in")
                    .at(&hierarchy.mount)
                    .value(path)
                    .hint("it is not taken out of there: run this outside of a job"));
            }
        }
        Ok(())
    }

    /// When the step's last task has ended, and the scheduler is about to kill whom they have left: ends whom it would not.
    pub fn end_leaderless(&self, host: &Host, deadline: Instant) -> Result<()> {
        self.trees.iter().try_for_each(|tree| match tree {
            Tree::Overlay(overlay) => overlay.end_leaderless(host, deadline),
            Tree::Own(_) => Ok(()),
        })
    }

    /// What the step has used so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for tree in &self.trees {
            match (tree, tree.step()) {
                (_, Ok(step)) => usage.add(tree.hierarchy(), &step),
                (Tree::Overlay(overlay), Err(_)) => usage.or(overlay.usage()),
                (Tree::Own(_), Err(_)) => {}
            }
        }
        usage
    }

    /// Keeps what was used where the scheduler will soon remove its directories: with proctrack/cgroup on v2 it does so after
    /// the last callback, otherwise before.
    pub fn take_usage(&mut self) {
        for tree in &mut self.trees {
            if let Tree::Overlay(overlay) = tree {
                overlay.take_usage();
            }
        }
    }

    /// The CPUs that the step's quota allows, as the kernel has it; `None` when unlimited.
    pub fn cpus(&self) -> Option<Cpus> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("cpu"))?;
        let quota = limits::cpu_quota(&*tree.step().ok()?, tree.hierarchy().version).ok().flatten();
        quota.map(limits::CpuQuota::cpus)
    }

    /// How much of its quota the step may save for later, as the kernel has it; `None` when nothing.
    pub fn burst(&self) -> Option<Percent> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("cpu"))?;
        let (step, version) = (tree.step().ok()?, tree.hierarchy().version);
        let quota_us = limits::cpu_quota(&step, version).ok().flatten()?.quota_us;
        let burst_us: u64 = step.read(limits::burst_file(version)).ok()?.trim().parse().ok()?;
        let hundredths = burst_us.checked_mul(10_000)?.checked_div(quota_us)?;
        u32::try_from(hundredths).ok().filter(|hundredths| *hundredths > 0).map(Percent::from_hundredths)
    }

    /// The job's share of CPU time, as `cpu.weight` has it.
    pub fn weight(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("cpu"))?;
        limits::cpu_weight(&*tree.job().ok()?, tree.hierarchy().version).ok()
    }

    /// Above so many bytes the step's memory is reclaimed, as the kernel has it; `None` when that is nowhere.
    pub fn memory_high(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        let file = limits::high_file(tree.hierarchy().version);
        limits::memory_limit(&*tree.step().ok()?, file).ok().flatten()
    }

    /// How many processes and threads the step may have, as the kernel has it; `None` when unlimited.
    pub fn processes(&self) -> Option<u64> {
        limits::processes(&*self.with_pids()?.step().ok()?).ok().flatten()
    }

    /// The same of each of its tasks, as planned.
    pub fn processes_of_task(&self) -> Option<u64> {
        self.plan.as_ref()?.task.processes
    }

    /// How fast the step may read and write, if the kernel has it so; `None` when unlimited.
    pub fn io(&self) -> Option<&IoRules> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("io"))?;
        let plan = self.plan.as_ref().filter(|plan| !plan.step.disks.is_empty())?;
        let step = tree.step().ok()?;
        let is_set = |limit: &DiskLimit| {
            let found = io::max(&step, tree.hierarchy().version, limit.disk);
            found.is_ok_and(|found| found.at_most(limit.rates) == found)
        };
        plan.step.disks.iter().all(is_set).then_some(&plan.step.io)
    }

    /// The CPUs on which the step can run, where the kernel has a cpuset of it.
    pub fn cores(&self) -> Option<CpuList> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("cpuset"))?;
        cpuset::effective(&*tree.step().ok()?, tree.hierarchy().version).ok()
    }

    fn note_devices(&mut self, errors: &[LimitError]) {
        self.without_devices |= errors.iter().any(|(limit, _)| *limit == Limit::Devices);
    }

    /// The devices that the step may use besides those of everybody, if they are limited. As planned: a user, as whom a task asks,
    /// may not ask the kernel for a program.
    pub fn devices(&self) -> Option<&Devices> {
        self.plan.as_ref()?.step.devices.as_ref().filter(|_| !self.without_devices)
    }

    /// The huge pages that the step may have, of these sizes, as the kernel has it.
    pub fn huge_pages(&self, sizes: &HugePages) -> HugePages {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("hugetlb"));
        let found =
            tree.and_then(|tree| Some(huge_pages::limits(&*tree.step().ok()?, tree.hierarchy().version, sizes)));
        found.unwrap_or_default()
    }

    /// How often a process of the step could not start another one for the limit of their number; where the kernel counts at
    /// the limit that was reached (Linux 6.11) and that is the job's, a process of the job.
    pub fn forks_refused(&self) -> u64 {
        let Some(tree) = self.with_pids() else { return 0 };
        let of_step = tree.step().ok().and_then(|step| forks_refused(tree.hierarchy(), &step));
        let of_job = || forks_refused_here(tree.hierarchy(), &*tree.job().ok()?);
        of_step.filter(|count| *count > 0).or_else(of_job).unwrap_or(0)
    }

    fn with_pids(&self) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.hierarchy().has("pids")).filter(|_| self.wanted.contains(&"pids"))
    }

    /// How many of the step's processes were killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let count = |tree: &Tree| oom_kills(tree.hierarchy(), &*tree.step().ok()?);
        self.trees.iter().filter(|tree| tree.hierarchy().has("memory")).find_map(count).unwrap_or(0)
    }

    /// The cgroups at which this step's memory may be limited, innermost first but for those of tasks: path as the kernel's log
    /// has it, whose it is, its limit and the most it held, in bytes.
    pub fn memory_levels(&self) -> Vec<MemoryLevel> {
        let Some(tree) = self.trees.iter().find(|tree| tree.hierarchy().has("memory")) else { return Vec::new() };
        let version = tree.hierarchy().version;
        let (limit_file, _) = limits::memory_files(version);
        let peak_file = if version == Version::V2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let (step, job) = match tree {
            Tree::Own(own) => {
                let step = in_mount(&own.hierarchy, &self.path);
                let job = step.rsplit_once('/').map(|(job, _)| job.to_owned());
                (Some(step), job)
            }
            Tree::Overlay(overlay) => (overlay.path(), overlay.job_path().map(str::to_owned)),
        };
        let level = |whose: Level, path: Option<String>, dir: Option<&Dir>| MemoryLevel {
            path: path.unwrap_or_default(),
            whose,
            limit: dir.and_then(|dir| limits::memory_limit(dir, limit_file).ok()).flatten(),
            peak: dir.and_then(|dir| dir.read(peak_file).ok()).and_then(|text| text.trim().parse().ok()),
        };
        let user = tree.user().and_then(Result::ok);
        let of_user = job.as_ref().and_then(|job| job.rsplit_once('/')).map(|(user, _)| user.to_owned());
        let mut levels = vec![
            level(Level::Step, step, tree.step().ok().as_deref()),
            level(Level::Job, job, tree.job().ok().as_deref()),
        ];
        // Few sites limit users.
        let user = user.filter(|user| limits::memory_limit(user, limit_file).is_ok_and(|limit| limit.is_some()));
        levels.extend(user.map(|user| level(Level::User, of_user, Some(&user))));
        levels
    }

    /// When the job's directory may have gone: what the user's other jobs weigh.
    fn weigh_user(&self, deadline: Instant) {
        let Some(plan) = &self.plan else { return };
        if plan.weighs {
            self.weigh_again("cpu", limiting::weigh_user, deadline);
        }
        if plan.job.io_weight.is_some() {
            self.weigh_again("io", limiting::weigh_io_of_user, deadline);
        }
    }

    fn weigh_again(&self, controller: &str, weigh: fn(&Dir, Version) -> Result<()>, deadline: Instant) {
        let own = self.trees.iter().filter_map(Tree::own).find(|own| own.hierarchy.has(controller));
        let Some((own, user)) = own.and_then(|own| Some((own, own.user()?))) else { return };
        // The directory goes with his last job.
        if !user.has("cgroup.procs") {
            return;
        }
        let lock = self.records.lock_limits(deadline.min(Instant::now() + LOCK_TIMEOUT));
        if let Err(error) = lock.and_then(|_lock| weigh(user, own.hierarchy.version))
            && user.has("cgroup.procs")
        {
            log::warn!("{}: the {controller} weight of its user's other jobs is not right: {error}", self.key);
        }
    }

    /// Kills what is left of the step and removes its directories and its record. May be repeated.
    pub fn close(&mut self, deadline: Instant) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let own: Vec<&Own> = self.trees.iter().filter_map(Tree::own).collect();
        let mut done = own::remove(&own, &self.levels, deadline);
        if done.is_ok() {
            self.weigh_user(deadline);
            if self.claimed {
                done = self.records.forget(&self.levels);
            }
        }
        // Whoever stays in ours does not save those in the scheduler's.
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

/// Marks those that have no mark yet, which the roll says before.
fn mark_all(records: &Records, mark: &str, overlays: Vec<&mut Overlay>) {
    let unmarked = overlays.iter().filter_map(|overlay| overlay.unmarked());
    let header = Header::parse(mark).ok();
    let entry = |path| header.as_ref().map(|header| header.entry(Kind::Theirs, path));
    records.note(&unmarked.filter_map(entry).collect::<Vec<_>>());
    for overlay in overlays {
        overlay.mark(mark);
    }
}

/// It is of use only if the record is lost, or the scheduler leaves its own directories: no reason to refuse a job.
fn put_mark(dir: &Dir, text: &str) -> bool {
    let done = mark::set(dir, text);
    if let Err(error) = &done {
        log::debug!("what a dead step daemon leaves could not be found without its record: {error}");
    }
    done.is_ok()
}

/// Where memory is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLevel {
    /// As `/proc/PID/cgroup` and the kernel's log write it.
    pub path: String,
    /// Whose directory it is.
    pub whose: Level,
    /// In bytes; `None` when unlimited.
    pub limit: Option<u64>,
    /// In bytes; `None` on kernels that do not keep it.
    pub peak: Option<u64>,
}

impl MemoryLevel {
    /// Whether a process in this cgroup is in the level, or below it.
    pub fn holds(&self, place: &str) -> bool {
        place.strip_prefix(self.path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether the most that was held is as much as was allowed.
    pub fn is_reached(&self) -> bool {
        matches!((self.peak, self.limit), (Some(peak), Some(limit)) if peak >= limit)
    }
}

/// Whether a scavenger's I/O is to have the least weight: where disks share their time by weight at all.
pub(crate) fn lowers_io(host: &Host, config: &Config) -> bool {
    let Some(hierarchy) = host.layout.with_controller("io").filter(|_| config.scavenger) else { return false };
    let root = hierarchy.open().ok().filter(|_| hierarchy.version == Version::V2);
    Dir::open("/sys").is_ok_and(|sys| io::weights_work(&sys, root.as_ref()))
}

/// Enables all controllers, or where that fails each by itself: one that is not to be had must not take the limits of others with
/// it. Returns those that are not to be had.
fn as_far_as_can_be(
    wanted: &[&'static str],
    enable: impl Fn(&[&'static str]) -> Result<()>,
) -> Vec<(&'static str, Error)> {
    if enable(wanted).is_ok() {
        return Vec::new();
    }
    wanted.iter().filter_map(|controller| Some((*controller, enable(&[*controller]).err()?))).collect()
}

/// The controllers whose files the configured limits are written to.
pub fn controllers(config: &Config) -> Vec<&'static str> {
    let unlimited = |cpus| cpus == TaskCpus::Unlimited;
    let cpu = config.constrain_cpu_quota && config.cpu_policy.limits()
        || config.cpu_policy.weighs()
        || config.scavenger
        || config.max_cpus_per_user.is_some()
        || !unlimited(config.max_cpus_per_task);
    let memory = config.constrain_ram_space
        || config.constrain_swap_space.limits()
        || config.max_ram_per_user.is_some()
        || config.max_ram_per_task.is_some()
        || config.memory_high.is_some()
        || config.memory_low > Percent::ZERO
        || config.memory_min > Percent::ZERO
        || config.oom_kill_step;
    let pids = config.max_processes.is_some()
        || config.max_processes_per_user.is_some()
        || config.max_processes_per_task.is_some();
    let rules = [&config.io_max, &config.io_max_per_user, &config.io_max_per_task];
    let io = config.io_weight.is_some() || rules.iter().any(|rules| !rules.is_empty());
    // cgroup2 throttles what the page cache writes only where memory is counted, too (cgroup-v2.rst, "Writeback").
    let memory = memory || rules.iter().any(|rules| rules.limits_writes());
    let huge_pages = [&config.max_huge_pages, &config.max_huge_pages_per_user, &config.max_huge_pages_per_task];
    let hugetlb = huge_pages.iter().any(|pages| !pages.is_empty());
    let used = [
        ("cpu", cpu),
        ("memory", memory),
        ("pids", pids),
        ("io", io),
        ("cpuset", config.constrain_cores),
        ("hugetlb", hugetlb),
        (devices::CONTROLLER, config.constrain_devices),
    ];
    used.into_iter().filter(|(_, used)| *used).map(|(controller, _)| controller).collect()
}

/// The path below a hierarchy's root as processes see it where another cgroup than the root is mounted (containers).
fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_is_not_to_be_had_takes_no_other_limits_with_it() {
        let enable = |wanted: &[&'static str]| match wanted.contains(&"io") {
            true => Err(Error::new("the cgroup does not have the io controller")),
            false => Ok(()),
        };
        let lacking = |wanted: &[&'static str]| {
            as_far_as_can_be(wanted, enable).into_iter().map(|(controller, _)| controller).collect::<Vec<_>>()
        };
        assert_eq!(lacking(&["cpu", "io", "memory"]), ["io"]);
        assert_eq!(lacking(&["cpu", "memory"]), Vec::<&str>::new());
    }
}
