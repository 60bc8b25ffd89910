// SPDX-License-Identifier: GPL-2.0-or-later
//! The one life cycle of a fence: open, limit, attach, usage, close.
//!
//! It knows no scheduler. Every operation may be repeated, and the last step out takes the job's and the user's directories
//! along; nothing is locked for that: making a directory starts again when a parent has vanished, and removing one that is
//! in use fails without harm.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use crate::cgroup::affinity::Affinity;
use crate::cgroup::dir::Dir;
use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::limits;
use crate::cgroup::place::{Membership, is_slurms_own};
use crate::cgroup::usage::{Usage, oom_kills};
use crate::config::{Config, Limit};
use crate::error::{Error, Result};
use crate::host::{self, Host};
use crate::janitor;
use crate::job::{Cpus, JobKey};
use crate::policy::{Limits, Plan};
use crate::record::{Owner, Record, Records};

/// How long removing a step may take before it is left to the janitor.
pub const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long another step may keep us from setting limits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// One step's directories in one hierarchy.
#[derive(Debug)]
struct Tree {
    hierarchy: Hierarchy,
    /// Ours, then its descendants: [node,] user, job, step.
    dirs: Vec<Dir>,
}

impl Tree {
    fn step(&self) -> Option<&Dir> {
        self.dirs.last()
    }

    fn job(&self) -> Option<&Dir> {
        self.dirs.iter().rev().nth(1)
    }
}

/// A fenced step.
#[derive(Debug)]
pub struct Fence {
    key: JobKey,
    /// In the order in which processes are attached.
    trees: Vec<Tree>,
    /// The path of the step below the root of every hierarchy, as `/proc/PID/cgroup` shows it.
    path: String,
    levels: Vec<String>,
    /// Controllers that limits were to be written to, and that are nowhere.
    missing: Vec<(&'static str, Error)>,
    records: Records,
    closed: bool,
}

/// A limit that could not be set, and why.
pub type LimitError = (Limit, Error);

impl Fence {
    /// Makes the step's directories in every hierarchy that is used, under a name that nobody else has.
    pub fn open(host: &Host, config: &Config, key: &JobKey) -> Result<Self> {
        let wanted = controllers(config);
        let hierarchies = host.hierarchies(&wanted)?;
        let owner = Owner::this(&host.proc)?;
        let mut levels = key.parents();
        let mut again = 1;
        loop {
            let records = Records::open(&config.run_dir)?;
            levels.truncate(key.parents().len());
            levels.push(key.step_dir(again));
            let record = Record {
                boot_id: host.boot_id.clone(),
                pid_namespace: host.pid_namespace.clone(),
                owner,
                base: host.base.clone(),
                levels: levels.clone(),
            };
            if !records.claim(&record)? {
                // Somebody's: a dead owner's is taken away, a living one's (a requeued job overlaps its own end) stays.
                match janitor::reap_one(host, &records, &levels, Instant::now() + janitor::PATIENCE_AT_LAUNCH) {
                    Ok(janitor::Outcome::Removed) => continue,
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
                    trees: Vec::with_capacity(hierarchies.len()),
                    path: format!("/{}/{}", host.base, levels.join("/")),
                    levels: levels.clone(),
                    missing: wanted.iter().filter_map(|c| Some((*c, host.missing(c)?))).collect(),
                    records,
                    closed: false,
                };
                match fence.make(host, &hierarchies, &wanted) {
                    Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => {
                        log::warn!("{error}");
                        again += 1;
                    }
                    made => return made,
                }
            }
            if again > 100 {
                return Err(Error::new("a hundred steps with this name are alive or cannot be removed")
                    .value(key)
                    .hint("see 'jobfence reap'"));
            }
        }
    }

    fn make(mut self, host: &Host, hierarchies: &[&Hierarchy], wanted: &[&'static str]) -> Result<Self> {
        for hierarchy in hierarchies {
            let mut dirs = Vec::new();
            let made = make_dirs(host, hierarchy, wanted, &self.levels, &mut dirs);
            // EEXIST: somebody else lives there, and nothing of it is ours to remove.
            if made.as_ref().err().and_then(Error::kernel_errno) != Some(Errno::EEXIST) {
                self.trees.push(Tree { hierarchy: (*hierarchy).clone(), dirs });
            }
            if let Err(error) = made {
                // What was made goes away again, here too, where it may be a part of the way down.
                let _ = self.close(Instant::now() + CLEANUP_TIMEOUT);
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Whose step this is.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The step's path in every hierarchy, as `/proc/PID/cgroup` shows it where the hierarchy's root is mounted.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes the job's limits and then the step's, and reads them back. Returns those that could not be set.
    pub fn limit(&self, plan: &Plan) -> Vec<LimitError> {
        let mut errors = Vec::new();
        for (controller, error) in &self.missing {
            let limits = [
                (Limit::Cpu, plan.step.cpu.is_some()),
                (Limit::Ram, plan.step.ram.is_some()),
                (Limit::Swap, plan.step.swap.is_some()),
            ];
            let theirs = limits
                .into_iter()
                .filter(|(limit, wanted)| *wanted && (*limit == Limit::Cpu) == (*controller == "cpu"));
            errors.extend(theirs.map(|(limit, _)| (limit, error.clone())));
        }
        for tree in &self.trees {
            let (Some(job), Some(step)) = (tree.job(), tree.step()) else { continue };
            if tree.hierarchy.has("cpu") {
                // Only here: the kernel may take long to lower a memory limit, and nobody must wait for that.
                let lock = self.records.lock_limits(Instant::now() + LOCK_TIMEOUT);
                let limited = lock.and_then(|_lock| limit_cpu(tree, plan));
                errors.extend(limited.err().map(|error| (Limit::Cpu, error)));
            }
            if tree.hierarchy.has("memory") {
                if !stays_in_memory(job, tree.hierarchy.version, &plan.job) {
                    limit_memory(job, tree.hierarchy.version, &plan.job, &mut errors);
                }
                limit_memory(step, tree.hierarchy.version, &plan.step, &mut errors);
            }
        }
        errors
    }

    /// Moves a process into the step: one write to `cgroup.procs` in each hierarchy, and a look whether it is there.
    ///
    /// A process that the scheduler itself tracks by cgroup is left where it is, and that is an error here: taking it out
    /// would break the scheduler's signals and accounting.
    pub fn attach(&self, host: &Host, pid: i32) -> Result<()> {
        let before = Membership::read(&host.proc, pid)?;
        self.refuse_slurms_own(&before)?;
        let bound = Affinity::of(pid);
        for tree in &self.trees {
            let Some(step) = tree.step() else { continue };
            step.write("cgroup.procs", &pid.to_string()).map_err(|error| match error.kernel_errno() {
                Some(Errno::EOPNOTSUPP) => error.hint("the cgroup, or one above it, is threaded"),
                _ => error,
            })?;
        }
        if let Some(bound) = bound
            && Affinity::of(pid).is_some_and(|now| now != bound)
            && let Err(errno) = bound.set(pid)
        {
            // As where none of those CPUs is in our cgroup's cpuset. It is fenced all the same.
            let error = Error::new(format!("cannot bind process {pid} again to the CPUs that it was bound to"));
            log::warn!("{}", error.errno(errno));
        }
        let after = Membership::read(&host.proc, pid)?;
        for tree in &self.trees {
            let expected = in_mount(&tree.hierarchy, &self.path);
            if after.path_in(&tree.hierarchy) != Some(expected.as_str()) {
                return Err(Error::new(format!("process {pid} was attached, but the kernel shows it elsewhere in"))
                    .at(&tree.hierarchy.mount)
                    .value(after.path_in(&tree.hierarchy).unwrap_or("nowhere")));
            }
        }
        Ok(())
    }

    /// Says which hierarchy belongs to Slurm's own cgroup plugins for a process with this membership.
    pub fn refuse_slurms_own(&self, membership: &Membership) -> Result<()> {
        refuse_slurms_own(self.trees.iter().map(|tree| &tree.hierarchy), membership)
    }

    /// What the step has used so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for tree in &self.trees {
            if let Some(step) = tree.step() {
                usage.add(&tree.hierarchy, step);
            }
        }
        usage
    }

    /// The CPUs that the step's quota allows, as the kernel has it; `None` when unlimited.
    pub fn cpus(&self) -> Option<Cpus> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy.has("cpu"))?;
        limits::cpu_quota(tree.step()?, tree.hierarchy.version).ok().flatten().map(limits::CpuQuota::cpus)
    }

    /// How many of the step's processes were killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let count = |tree: &Tree| oom_kills(&tree.hierarchy, tree.step()?);
        self.trees.iter().filter(|tree| tree.hierarchy.has("memory")).find_map(count).unwrap_or(0)
    }

    /// The cgroups at which this step's memory may be limited, innermost first: path as the kernel's log has it, whether it
    /// is the job's, its limit and the most it held, in bytes.
    pub fn memory_levels(&self) -> Vec<MemoryLevel> {
        let Some(tree) = self.trees.iter().find(|tree| tree.hierarchy.has("memory")) else { return Vec::new() };
        let (limit_file, peak_file) = match tree.hierarchy.version {
            Version::V2 => ("memory.max", "memory.peak"),
            Version::V1 => ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        };
        let step = in_mount(&tree.hierarchy, &self.path);
        let job = step.rsplit_once('/').map(|(job, _)| job.to_owned()).unwrap_or_default();
        let level = |path: String, is_job: bool, dir: Option<&Dir>| MemoryLevel {
            path,
            is_job,
            limit: dir.and_then(|dir| limits::memory_limit(dir, limit_file).ok()).flatten(),
            peak: dir.and_then(|dir| dir.read(peak_file).ok()).and_then(|text| text.trim().parse().ok()),
        };
        vec![level(step, false, tree.step()), level(job, true, tree.job())]
    }

    /// Kills what is left of the step and removes its directories and its record. May be repeated.
    pub fn close(&mut self, deadline: Instant) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        remove(&self.trees, &self.levels, deadline)?;
        self.records.forget(&self.levels)?;
        self.closed = true;
        Ok(())
    }
}

/// Where memory is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLevel {
    /// As `/proc/PID/cgroup` and the kernel's log write it.
    pub path: String,
    /// The job's directory; otherwise the step's.
    pub is_job: bool,
    /// In bytes; `None` when unlimited.
    pub limit: Option<u64>,
    /// In bytes; `None` on kernels that do not keep it.
    pub peak: Option<u64>,
}

impl MemoryLevel {
    /// Whether the most that was held is as much as was allowed.
    pub fn is_reached(&self) -> bool {
        matches!((self.peak, self.limit), (Some(peak), Some(limit)) if peak >= limit)
    }
}

/// The controllers whose files the configured limits are written to.
pub fn controllers(config: &Config) -> Vec<&'static str> {
    let mut controllers = Vec::new();
    if config.constrain_cpu_quota {
        controllers.push("cpu");
    }
    if config.constrain_ram_space || config.constrain_swap_space {
        controllers.push("memory");
    }
    controllers
}

/// See [`Fence::refuse_slurms_own`].
pub fn refuse_slurms_own<'a>(hierarchies: impl Iterator<Item = &'a Hierarchy>, membership: &Membership) -> Result<()> {
    for hierarchy in hierarchies {
        if let Some(path) = membership.path_in(hierarchy).filter(|path| is_slurms_own(path)) {
            return Err(Error::new("Slurm's own cgroup plugin tracks this job in")
                .at(&hierarchy.mount)
                .value(path)
                .hint(
                    "jobfence does not take processes out of it: set ProctrackType=proctrack/linuxproc and \
                     TaskPlugin without task/cgroup in slurm.conf, or Mode=off in jobfence.conf",
                ));
        }
    }
    Ok(())
}

/// Makes the directories of a step; the innermost must not exist, unless nobody has recorded it. `dirs` has those that were
/// opened, whether all of them could be or not.
fn make_dirs(
    host: &Host,
    hierarchy: &Hierarchy,
    wanted: &[&'static str],
    levels: &[String],
    dirs: &mut Vec<Dir>,
) -> Result<()> {
    const TRIES: usize = 20;
    let mut last = None;
    for _ in 0..TRIES {
        dirs.clear();
        match try_dirs(host, hierarchy, wanted, levels, dirs) {
            // A parent that was empty a moment ago went away with the step that ended there.
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ENODEV)) => last = Some(error),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| Error::new("make the directories of the step")))
}

fn try_dirs(
    host: &Host,
    hierarchy: &Hierarchy,
    wanted: &[&'static str],
    levels: &[String],
    dirs: &mut Vec<Dir>,
) -> Result<()> {
    dirs.push(host.open_base(hierarchy, wanted)?);
    let mut made = Vec::new();
    let last = levels.len().saturating_sub(1);
    for (depth, name) in levels.iter().enumerate() {
        let Some(parent) = dirs.last() else { break };
        let child = if depth < last {
            let (child, new) = parent.ensure_new(name)?;
            made.push(new);
            child
        } else {
            match parent.make(name) {
                // Its record is ours, so the step that left this directory has lost its own. Whoever is still in it may be
                // another slurmd's, which keeps its records elsewhere (in a container): it is not for us to kill. A cgroup
                // that was ever killed is not used again (kernels before 7.3 kill what is born in it).
                Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => {
                    let stays = || error.clone().hint("processes live there, and no record says whose");
                    if parent.child(name).is_ok_and(|dir| is_inhabited(&dir, 0)) {
                        return Err(stays());
                    }
                    remove_below(parent, name, 0).map_err(|_| stays())?;
                    parent.make(name)?;
                }
                other => other?,
            }
            parent.child(name)?
        };
        dirs.push(child);
    }
    // From the top down, and after the step exists: from now on its parents cannot vanish.
    for (dir, new) in dirs.iter().skip(1).zip(made) {
        host::enable(dir, hierarchy, wanted, new)?;
    }
    Ok(())
}

/// The step's quota is never above the job's, which may be lower than planned when an earlier step was told less; v1 would
/// refuse it.
fn limit_cpu(tree: &Tree, plan: &Plan) -> Result<()> {
    let (Some(job), Some(step)) = (tree.job(), tree.step()) else { return Ok(()) };
    // Not limited, the controller may well be off: in cgroup2 there is no file to read then.
    if plan.job.cpu.is_none() && plan.step.cpu.is_none() {
        return Ok(());
    }
    let version = tree.hierarchy.version;
    let above = match plan.job.cpu {
        Some(quota) => Some(limits::lower_cpu_quota(job, version, quota)?),
        None => limits::cpu_quota(job, version)?,
    };
    match plan.step.cpu {
        Some(quota) => limits::set_cpu_quota(step, version, above.map_or(quota, |above| quota.at_most(above))),
        None => Ok(()),
    }
}

/// Whether a job's memory limits are left alone: they are what they should be, or an earlier step has set higher ones and
/// still runs in them, and lowering them could kill it.
fn stays_in_memory(job: &Dir, version: Version, limits: &Limits) -> bool {
    let Some(ram) = limits.ram else { return false };
    let (file, swap_file) = match version {
        Version::V2 => ("memory.max", "memory.swap.max"),
        Version::V1 => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    };
    let Ok(Some(current)) = limits::memory_limit(job, file) else { return false };
    let is_limited = |file| limits::memory_limit(job, file).is_ok_and(|limit| limit.is_some());
    let others = || job.list(true).is_ok_and(|steps| steps.len() > 1);
    let right = current == limits::whole_pages(ram) && (limits.swap.is_none() || is_limited(swap_file));
    right || current > ram && others()
}

fn limit_memory(dir: &Dir, version: Version, limits: &Limits, errors: &mut Vec<LimitError>) {
    if let Some(ram) = limits.ram {
        errors.extend(limits::set_ram(dir, version, ram).err().map(|error| (Limit::Ram, error)));
    }
    if let Some(swap) = limits.swap {
        match limits::set_swap(dir, version, swap, limits.ram.is_some()) {
            Ok(true) => {}
            Ok(false) if !has_swap() => {}
            Ok(false) => errors.push((
                Limit::Swap,
                Error::new("this host has swap, but its kernel does not count whose it is; no limit of swap in")
                    .at(dir.path())
                    .hint("boot with swapaccount=1, or set ConstrainSwapSpace=no"),
            )),
            Err(error) => errors.push((Limit::Swap, error)),
        }
    }
}

/// Whether any swap is in use: `/proc/swaps` has a line for each device, after its heading.
fn has_swap() -> bool {
    let swaps = Dir::open("/proc").and_then(|proc| proc.read("swaps"));
    // A file that cannot be read says nothing good: assume that there is swap to limit.
    swaps.map_or(true, |text| text.lines().count() > 1)
}

/// The path below a hierarchy's root as processes see it where another cgroup than the root is mounted (containers).
fn in_mount(hierarchy: &Hierarchy, path: &str) -> String {
    format!("{}{path}", hierarchy.root.trim_end_matches('/'))
}

/// Opens the directories of a recorded step as far as they exist; for the janitor.
pub fn open_existing(host: &Host, base: &str, levels: &[String]) -> Result<Leftovers> {
    let mut trees = Vec::new();
    for hierarchy in &host.layout.hierarchies {
        let mut dirs = vec![hierarchy.open()?];
        let path: Vec<&str> = base.split('/').chain(levels.iter().map(String::as_str)).collect();
        for name in &path {
            let Some(parent) = dirs.last() else { break };
            match parent.child(name) {
                Ok(dir) => dirs.push(dir),
                Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        // Only what lies below our own directory is of interest: [base, …levels].
        let above = base.split('/').count();
        if dirs.len() > above + 1 {
            trees.push(Tree { hierarchy: hierarchy.clone(), dirs: dirs.split_off(above) });
        }
    }
    Ok(Leftovers { trees, base: base.to_owned(), levels: levels.to_vec() })
}

/// What is left of a step.
pub struct Leftovers {
    trees: Vec<Tree>,
    base: String,
    levels: Vec<String>,
}

impl Leftovers {
    /// Kills and removes it; refuses to where this process itself is in it.
    pub fn remove(&self, host: &Host, deadline: Instant) -> Result<()> {
        let us = Membership::read(&host.proc, nix::unistd::getpid().as_raw())?;
        for tree in self.trees.iter().filter(|tree| tree.dirs.len() > self.levels.len()) {
            let step = in_mount(&tree.hierarchy, &format!("/{}/{}", self.base, self.levels.join("/")));
            if us.path_in(&tree.hierarchy).is_some_and(|path| path == step || path.starts_with(&format!("{step}/"))) {
                return Err(Error::new("this process is itself in the step that is to be removed:").value(step));
            }
        }
        remove(&self.trees, &self.levels, deadline)
    }
}

/// Kills a step's processes and removes its directories, and those of the job and the user that are empty then.
fn remove(trees: &[Tree], levels: &[String], deadline: Instant) -> Result<()> {
    let whole: Vec<&Tree> = trees.iter().filter(|tree| tree.dirs.len() == levels.len() + 1).collect();
    kill_members(&whole, deadline)?;
    for tree in trees {
        for (depth, name) in levels.iter().enumerate().rev() {
            let Some(parent) = tree.dirs.get(depth) else { continue };
            if depth + 1 == levels.len() {
                remove_step(parent, name, &tree.hierarchy, deadline)?;
            } else if parent.remove(name).is_err() {
                // Another step or job still lives there.
                break;
            }
        }
    }
    Ok(())
}

fn kill_members(trees: &[&Tree], deadline: Instant) -> Result<()> {
    let step_in = |test: fn(&Hierarchy) -> bool| trees.iter().find(|tree| test(&tree.hierarchy)).and_then(|t| t.step());
    let Some(any) = trees.first().and_then(|tree| tree.step()) else { return Ok(()) };
    let unified = step_in(|h| h.version == Version::V2);
    kill::kill_all(Members { unified, freezer: step_in(|h| h.has("freezer")), any }, deadline)?;
    // A process can be in one hierarchy's directory and not in another's, when attaching failed between the two.
    for tree in trees.iter().filter(|tree| tree.hierarchy.version == Version::V1) {
        if let Some(dir) = tree.step() {
            kill::kill_all(Members { unified: None, freezer: None, any: dir }, deadline)?;
        }
    }
    Ok(())
}

/// Removes a step's directory and whatever is below it. The kernel says EBUSY until the last member has left entirely.
fn remove_step(parent: &Dir, name: &str, hierarchy: &Hierarchy, deadline: Instant) -> Result<()> {
    let mut tries = 0u32;
    loop {
        let Err(error) = remove_below(parent, name, 0) else { return Ok(()) };
        let busy = matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::ENOTEMPTY));
        if !busy || Instant::now() >= deadline {
            return Err(error.hint("it is tried again at the next launch on this node, or by 'jobfence reap'"));
        }
        let Ok(dir) = parent.child(name) else { continue };
        let unified = (hierarchy.version == Version::V2).then_some(&dir);
        kill::kill_all(Members { unified, freezer: None, any: &dir }, deadline)?;
        // Nobody is a member any more, and still it is busy: a moment inside the kernel, for which there is no event. If it
        // is more than a moment (a member that we cannot see, of another pid namespace), do not burn a CPU until the deadline.
        tries += 1;
        if tries < 100 {
            std::thread::yield_now();
        } else {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
    }
}

/// Deeper than any step's own directories are.
const DEEPEST: u32 = 32;

/// Whether a process is in a directory or below it; also where that cannot be seen.
fn is_inhabited(dir: &Dir, depth: u32) -> bool {
    let is_below =
        |name: &String| dir.child(name).is_ok_and(|child| depth >= DEEPEST || is_inhabited(&child, depth + 1));
    !dir.read("cgroup.procs").is_ok_and(|pids| pids.is_empty())
        || !dir.list(true).is_ok_and(|names| !names.iter().any(is_below))
}

fn remove_below(parent: &Dir, name: &str, depth: u32) -> Result<()> {
    match parent.remove(name) {
        Err(error) if error.kernel_errno() == Some(Errno::EBUSY) && depth < DEEPEST => {}
        other => return other.map(|_| ()),
    }
    let dir = match parent.child(name) {
        Ok(dir) => dir,
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    for child in dir.list(true)? {
        remove_below(&dir, &child, depth + 1)?;
    }
    parent.remove(name).map(|_| ())
}
