// SPDX-License-Identifier: GPL-2.0-or-later
//! What the step has used, and its limits as the kernel has them.

use std::path::PathBuf;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};

use super::fenced::{Fence, OpenDir, Tree};
use super::names::own_task;
use super::overlay::Overlay;
use super::own::is_inhabited;
use super::rules::has_swap_by;
use crate::cgroup::cpuset;
use crate::cgroup::devices::Devices;
use crate::cgroup::huge_pages::{self, HugePages};
use crate::cgroup::io::{self, DiskLimit, IoRules};
use crate::cgroup::layout::Version;
use crate::cgroup::usage::{Depth, forks_refused, forks_refused_here, memory_peak_file, oom_kills};
use crate::cgroup::{limits, mark, walk};
use crate::config::{Config, Limit, Percent};
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::figures::{LimitedTo, Usage};
use crate::job::Cpus;
use crate::policy::Level;
use crate::record::card_note;
use crate::record::loan::{self, LoanLine};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;

impl Fence {
    /// What the step has used so far.
    pub fn usage(&self) -> Usage {
        self.counted(Depth::All, Tree::step, Overlay::usage)
    }

    /// CPU time and peak memory of all the job's steps together, ended ones included, as long as the job's directory is there.
    pub fn job_usage(&self) -> Usage {
        self.counted(Depth::Job, Tree::job, Overlay::job_usage)
    }

    fn counted(&self, depth: Depth, dir: fn(&Tree) -> Result<OpenDir<'_>>, last: fn(&Overlay) -> &Usage) -> Usage {
        let mut usage = Usage::default();
        for tree in &self.trees {
            match (tree, dir(tree)) {
                (_, Ok(dir)) => usage.add(tree.hierarchy(), &dir, depth),
                (Tree::Overlay(overlay), Err(_)) => usage.or(last(overlay)),
                (Tree::Own(_), Err(_)) => {}
            }
        }
        usage
    }

    /// What a card shows of the job. Each directory is opened once: this is read while a step ends.
    pub fn job_for_a_card(&self, proc: &Dir) -> JobForACard {
        let mut found = JobForACard::default();
        for tree in &self.trees {
            let (Ok(job), hierarchy) = (tree.job(), tree.hierarchy()) else { continue };
            found.usage.add(hierarchy, &job, Depth::Card);
            if let (Tree::Overlay(overlay), Some(cpu)) = (tree, &mut found.usage.cpu) {
                *cpu = cpu.saturating_sub(overlay.daemons_cpu(&job));
            }
            found.cpus_limit = found.cpus_limit.or_else(|| self.job_cpus(tree, &job));
            found.has_daemons |= matches!(tree, Tree::Overlay(_)) && hierarchy.version == Version::V2;
            if hierarchy.has("memory") {
                let (memory, swap) = limits::memory_files(hierarchy.version);
                let limit = |file| limits::memory_limit(&job, file).ok().flatten();
                found.memory_limit = limit(memory);
                if found.usage.swap_peak.is_none() {
                    // v1 limits the sum of RAM and swap.
                    let most = if hierarchy.version == Version::V2 { Some(0) } else { found.memory_limit };
                    found.is_without_swap = most.is_some_and(|most| limit(swap).is_some_and(|limit| limit <= most));
                }
            }
        }
        if found.usage.swap_peak.is_none() && !found.is_without_swap {
            found.is_without_swap = !has_swap_by(proc);
        }
        found
    }

    /// What jobfence.service has noted for the job's card, if it samples, or lends memory.
    pub fn noted_for_a_card(&self, config: &Config) -> String {
        let noted = || {
            let interval = config.sample_interval?;
            let tree = self.trees.iter().find(|tree| mark::bears_cards(tree.hierarchy()))?;
            let note = mark::card(&*tree.job().ok()?).ok()??;
            let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
            card_note::lines(&note, since_boot.into(), interval)
        };
        let noted = noted().unwrap_or_default();
        match config.memory_pool.and_then(|_| self.lent(LoanLine::Row)) {
            Some(lent) => lent + "\n" + &noted,
            None => noted,
        }
    }

    /// The CPUs that the quotas of the job and its user allow, as the kernel has them; `None` when unlimited.
    fn job_cpus(&self, tree: &Tree, job: &Dir) -> Option<Cpus> {
        let hierarchy = tree.hierarchy();
        let quota = |dir: &Dir| limits::cpu_quota(dir, hierarchy.version).ok().flatten().map(limits::CpuQuota::cpus);
        match tree {
            _ if !hierarchy.has("cpu") => None,
            // The job's quota has headroom for daemons in it.
            Tree::Overlay(_) if hierarchy.version == Version::V2 => {
                let of_step = quota(&*tree.step().ok()?)?;
                let planned = self.limits.plan.as_ref().and_then(|plan| plan.job.cpu).map(limits::CpuQuota::cpus);
                Some(planned.unwrap_or(of_step))
            }
            _ => {
                let of_user = tree.user().and_then(Result::ok).and_then(|user| quota(&user));
                quota(job).into_iter().chain(of_user).min()
            }
        }
    }

    /// The inode of the job's directory: a new directory counts from zero.
    pub fn job_number(&self) -> Result<u64> {
        let tree = self.trees.first().ok_or_else(|| Error::new("the job has no directory"))?;
        Ok(tree.job()?.stat()?.st_ino)
    }

    /// Takes the lock of handing figures on to a card, which one step of the node has at a time. `None`: not free by the deadline.
    pub fn hand_on_alone(&self, deadline: Instant) -> Option<Lock> {
        self.claim.records.lock_cards(deadline).ok()
    }

    /// Whether a process of the step still lives; also `true` if that cannot be seen by the deadline.
    pub fn is_inhabited(&self, deadline: Instant) -> bool {
        let tree = self.trees.first().and_then(|tree| tree.step().ok());
        tree.is_none_or(|step| is_inhabited(&step, deadline))
    }

    /// What one of its tasks has used, by its number in the step; `None` where it has no directory of its own.
    pub fn task_usage(&self, number: u32) -> Option<Usage> {
        let mut found = None;
        for tree in &self.trees {
            let name = match tree {
                Tree::Own(_) => own_task(number),
                Tree::Overlay(overlay) => overlay.task_name(number)?,
            };
            if let Ok(dir) = tree.step().and_then(|step| step.child(&name)) {
                found.get_or_insert_with(Usage::default).add(tree.hierarchy(), &dir, Depth::All);
            }
        }
        found
    }

    /// Whether its tasks have their own directories in jobfence's tree.
    pub fn has_own_tasks(&self) -> bool {
        self.limits.plan.as_ref().is_some_and(|plan| !plan.task.is_empty())
    }

    /// Keeps the usage in the scheduler's directories, since the scheduler will soon remove them: with proctrack/cgroup on v2 after the
    /// last callback, otherwise before.
    pub fn take_usage(&mut self) {
        for tree in &mut self.trees {
            if let Tree::Overlay(overlay) = tree {
                overlay.take_usage();
            }
        }
    }

    /// The step's directories in the hierarchies that have one of these controllers; if none has, in the first.
    pub fn step_dirs(&self, controllers: &[&str]) -> Vec<PathBuf> {
        let path = |tree: &Tree| tree.step().ok().map(|step| step.path().to_owned());
        let has_one = |tree: &&Tree| controllers.iter().any(|controller| tree.hierarchy().has(controller));
        let found: Vec<PathBuf> = self.trees.iter().filter(has_one).filter_map(path).collect();
        if found.is_empty() { self.trees.first().and_then(path).into_iter().collect() } else { found }
    }

    /// The step's limits, as the kernel has them.
    pub fn limited_to(&self) -> LimitedTo {
        LimitedTo { cpus: self.cpus(), memory: self.memory(), processes: self.processes() }
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

    /// The bytes above which the step's memory is reclaimed, as the kernel has it; `None` when there is no such limit.
    pub fn memory_high(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        let file = limits::high_file(tree.hierarchy().version);
        limits::memory_limit(&*tree.step().ok()?, file).ok().flatten()
    }

    /// How much memory the step may have, in bytes, as the kernel has it; `None` when unlimited.
    pub fn memory(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        let (file, _) = limits::memory_files(tree.hierarchy().version);
        limits::memory_limit(&*tree.step().ok()?, file).ok().flatten()
    }

    /// The lowest limit of memory that holds for the step, in bytes, as the kernel has it: its own, its job's or its user's.
    pub fn lowest_memory(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        let (file, _) = limits::memory_files(tree.hierarchy().version);
        let limit = |dir: OpenDir<'_>| limits::memory_limit(&dir, file).ok().flatten();
        let dirs = [tree.step().ok(), tree.job().ok(), tree.user().and_then(Result::ok)];
        dirs.into_iter().flatten().filter_map(limit).min()
    }

    /// How many processes and threads the step may have, as the kernel has it; `None` when unlimited.
    pub fn processes(&self) -> Option<u64> {
        limits::processes(&*self.with_pids()?.step().ok()?).ok().flatten()
    }

    /// The same for each of its tasks, as planned.
    pub fn processes_of_task(&self) -> Option<u64> {
        self.limits.plan.as_ref()?.task.numbers.get(Limit::Processes)
    }

    /// How fast the step may read and write, as planned; `None` when unlimited, or if the kernel allows more.
    pub fn io(&self) -> Option<&IoRules> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("io"))?;
        let plan = self.limits.plan.as_ref().filter(|plan| !plan.step.disks.is_empty())?;
        let step = tree.step().ok()?;
        let is_set = |limit: &DiskLimit| {
            let found = io::max(&step, tree.hierarchy().version, limit.disk);
            found.is_ok_and(|found| found.at_most(limit.rates) == found)
        };
        plan.step.disks.iter().all(is_set).then_some(&plan.step.io)
    }

    /// The CPUs on which the step can run, if the kernel has a cpuset for it.
    pub fn cores(&self) -> Option<CpuList> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("cpuset"))?;
        cpuset::effective(&*tree.step().ok()?, tree.hierarchy().version).ok()
    }

    /// The devices that the step may use besides those that all steps may use, if they are limited. As planned, not as in the kernel: a
    /// task asks as its user, and a user may not read the kernel's program.
    pub fn devices(&self) -> Option<&Devices> {
        self.limits.plan.as_ref()?.step.devices.as_ref().filter(|_| !self.limits.without_devices)
    }

    /// The huge pages that the step may have, of these sizes, as the kernel has it.
    pub fn huge_pages(&self, sizes: &HugePages) -> HugePages {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("hugetlb"));
        let found =
            tree.and_then(|tree| Some(huge_pages::limits(&*tree.step().ok()?, tree.hierarchy().version, sizes)));
        found.unwrap_or_default()
    }

    /// How often the limit of processes kept a process of the step from starting another. Since Linux 6.11 the kernel counts at the
    /// limit that was reached: if that is the job's, this counts all processes of the job.
    pub fn forks_refused(&self) -> u64 {
        let Some(tree) = self.with_pids() else { return 0 };
        let of_step = tree.step().ok().and_then(|step| forks_refused(tree.hierarchy(), &step));
        let of_job = || forks_refused_here(tree.hierarchy(), &*tree.job().ok()?);
        of_step.filter(|count| *count > 0).or_else(of_job).unwrap_or(0)
    }

    fn with_pids(&self) -> Option<&Tree> {
        self.trees
            .iter()
            .find(|tree| tree.hierarchy().has("pids"))
            .filter(|_| self.limits.controllers.contains(&"pids"))
    }

    /// How many of the step's processes were OOM-killed.
    pub fn oom_kills(&self) -> u64 {
        let count = |tree: &Tree| oom_kills(tree.hierarchy(), &*tree.step().ok()?);
        self.trees.iter().filter(|tree| tree.hierarchy().has("memory")).find_map(count).unwrap_or(0)
    }

    /// Whether systemd-oomd has killed processes of the step. It acts on a directory that has no other below it, or that the kernel kills
    /// as a whole (`recursively_get_cgroup_context`, src/oom/oomd-manager.c), and only on cgroup v2.
    pub fn is_killed_by_oomd(&self) -> bool {
        let Some(tree) = self.trees.iter().find(|tree| tree.hierarchy().version == Version::V2) else { return false };
        let mut found = tree.job().is_ok_and(|job| mark::is_killed_by_oomd(&job));
        if let Ok(step) = tree.step() {
            // The user may have made any number below it, and not all are looked at.
            let _ = walk::visit(&step, Instant::now(), &mut |dir| {
                found |= mark::is_killed_by_oomd(dir);
                Ok(!found)
            });
        }
        found
    }

    /// Why jobfence.service has ended the job (`report::ended_by_hold`), if it has. Only a scavenger is ended for what it was lent.
    pub fn why_ended(&self) -> Option<String> {
        self.limits.plan.as_ref().filter(|plan| plan.scavenger)?;
        self.lent(LoanLine::WhyEnded)
    }

    /// What jobfence.service has noted of the memory that the job is lent. `None`: nothing.
    pub fn lent(&self, what: LoanLine) -> Option<String> {
        loan::line(&self.loan()?, what).map(str::to_owned)
    }

    /// All of it, as [`loan::line`] reads it.
    pub fn loan(&self) -> Option<String> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        mark::lent(&*tree.job().ok()?).ok()?
    }

    /// The most memory and swap together that the job had in use at once, in bytes. v2 keeps one peak for each (swap since Linux 6.5),
    /// so there the truth may be less than this sum.
    pub fn job_memory_swap_peak(&self) -> Option<u64> {
        let tree = self.trees.iter().find(|tree| tree.hierarchy().has("memory"))?;
        let job = tree.job().ok()?;
        let read = |file| job.read(file).ok()?.trim().parse::<u64>().ok();
        match tree.hierarchy().version {
            Version::V1 => read("memory.memsw.max_usage_in_bytes"),
            Version::V2 => Some(read("memory.peak")?.saturating_add(read("memory.swap.peak")?)),
        }
    }

    /// The cgroups at which this step's memory may be limited, innermost first, without those of tasks.
    pub fn memory_levels(&self) -> Vec<MemoryLevel> {
        let Some(tree) = self.trees.iter().find(|tree| tree.hierarchy().has("memory")) else { return Vec::new() };
        let version = tree.hierarchy().version;
        let (limit_file, _) = limits::memory_files(version);
        let (step, job) = match tree {
            Tree::Own(own) => {
                let step = own.hierarchy.in_proc(&self.ours.path);
                let job = step.rsplit_once('/').map(|(job, _)| job.to_owned());
                (Some(step), job)
            }
            Tree::Overlay(overlay) => (overlay.path(), overlay.job_path().map(str::to_owned)),
        };
        let level = |whose: Level, path: Option<String>, dir: Option<&Dir>| MemoryLevel {
            path: path.unwrap_or_default(),
            whose,
            limit: dir.and_then(|dir| limits::memory_limit(dir, limit_file).ok()).flatten(),
            peak: dir
                .and_then(|dir| dir.read(memory_peak_file(version)).ok())
                .and_then(|text| text.trim().parse().ok()),
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
}

/// What a card shows of a job on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobForACard {
    /// What all its steps have used together, ended ones included.
    pub usage: Usage,
    /// What its CPU time is limited to; `None` when unlimited.
    pub cpus_limit: Option<Cpus>,
    /// What its memory is limited to in the kernel, in bytes; `None` when unlimited.
    pub memory_limit: Option<u64>,
    /// Whether it certainly could not use swap; set only if the kernel keeps no peak of swap.
    pub is_without_swap: bool,
    /// Whether its count of processes includes the scheduler's step daemons, which its limit of processes leaves out.
    pub has_daemons: bool,
}

/// One cgroup at which memory is limited.
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

    /// Whether the peak is as high as the limit.
    pub fn is_reached(&self) -> bool {
        matches!((self.peak, self.limit), (Some(peak), Some(limit)) if peak >= limit)
    }
}
