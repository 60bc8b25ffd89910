// SPDX-License-Identifier: GPL-2.0-or-later
//! Computes the limits to be written from the grant and from what the site says about it. No I/O.

use std::fmt;

use crate::bytes::{binary, mebibytes};
use crate::cgroup::devices::Devices;
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::{self, DiskLimit, IoRules};
use crate::cgroup::limits::{CpuQuota, SwapLimit};
use crate::config::{
    Candidate, Config, Delegation, DeniedDevices, GrantedHugePages, Limit, LimitNumbers, Percent, Resolved, SwapSpace,
    TaskCpus,
};
use crate::cpu_list::CpuList;
use crate::error::Error;
use crate::facts::{Facts, Gpus};
use crate::job::{Cpus, Grant};
use crate::requests::{Requests, UserRequests};

mod quota;
pub mod threads;
pub mod variables;

use quota::{quota, quota_of, requested_quota};

/// The limits of one directory. `None`: not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU time.
    pub cpu: Option<CpuQuota>,
    /// CPU time that may be saved for later, in percent of the quota.
    pub burst: Option<Percent>,
    /// Share of CPU time among its siblings, as in `cpu.weight`.
    pub weight: Option<u64>,
    /// RAM, in bytes.
    pub ram: Option<u64>,
    /// Swap.
    pub swap: Option<SwapLimit>,
    /// Whether the limit of swap gives way if the scheduler limits memory.
    pub swap_yields: bool,
    /// RAM above which memory is reclaimed, in bytes.
    pub high: Option<u64>,
    /// RAM that is reclaimed only if there is no other, in bytes.
    pub low: Option<u64>,
    /// RAM that is never reclaimed, in bytes.
    pub min: Option<u64>,
    /// Whether an out-of-memory kill ends all processes.
    pub oom_group: bool,
    /// The limits that are plain numbers, such as processes and threads.
    pub numbers: LimitNumbers,
    /// How fast it may read and write, by the targets in the configuration.
    pub io: IoRules,
    /// The same by disk, once the disks are known; see [`Plan::find_disks`].
    pub disks: Vec<DiskLimit>,
    /// Share of a busy disk among its siblings, as in `io.weight`.
    pub io_weight: Option<u64>,
    /// The CPUs that may be used.
    pub cores: Option<CpuList>,
    /// Huge pages; sizes that are not named are not limited.
    pub huge_pages: HugePages,
    /// The only devices that may be used.
    pub devices: Option<Devices>,
    /// What may leave the node by the network, in bytes a second; of jobs alone.
    pub network: Option<u64>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The lower of each limit. Protection of memory is at the cost of others, so the lesser one holds.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self {
            cpu: least(self.cpu, other.cpu, CpuQuota::at_most),
            burst: both(self.burst, other.burst),
            weight: io::least_weight(self.weight, other.weight),
            ram: least(self.ram, other.ram, Ord::min),
            swap: least(self.swap, other.swap, |a, b| SwapLimit { swap: a.swap.min(b.swap), ram: a.ram.min(b.ram) }),
            // One limit that does not yield is enough.
            swap_yields: [&self, &other].iter().all(|limits| limits.swap.is_none() || limits.swap_yields)
                && (self.swap.is_some() || other.swap.is_some()),
            high: least(self.high, other.high, Ord::min),
            low: both(self.low, other.low),
            min: both(self.min, other.min),
            oom_group: self.oom_group || other.oom_group,
            numbers: self.numbers.at_most(&other.numbers),
            io: self.io.at_most(&other.io),
            disks: io::both(&self.disks, &other.disks),
            io_weight: io::least_weight(self.io_weight, other.io_weight),
            cores: least(self.cores, other.cores, |a, b| a.in_both(&b)),
            huge_pages: self.huge_pages.at_most(&other.huge_pages),
            devices: least(self.devices, other.devices, Devices::at_most),
            network: least(self.network, other.network, Ord::min),
        }
    }
}

/// The lower limit; `None` is no limit.
fn least<T>(a: Option<T>, b: Option<T>, lower: impl Fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(lower(a, b)),
        (a, b) => a.or(b),
    }
}

/// The lesser of two allowances, where `None` is no allowance.
fn both<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.zip(b).map(|(a, b)| a.min(b))
}

/// The limits of a step, of the levels around it and of its tasks; none above that of the level around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The user's directory: all the user's jobs together.
    pub user: Limits,
    /// The job's directory: all its steps together.
    pub job: Limits,
    /// The step's directory.
    pub step: Limits,
    /// Each task's directory.
    pub task: Limits,
    /// Whether it runs only on CPU time that no others want.
    pub scavenger: bool,
    /// Whether CPU time is shared by weight, so that a user's weight is the sum of the jobs'.
    pub weighs: bool,
    /// Who may divide the step's cgroup. It is never [`Delegation::Request`].
    pub delegate: Delegation,
}

/// The directories that are limited, the outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All jobs of a user on this node.
    User,
    /// All steps of a job on this node.
    Job,
    /// A step.
    Step,
    /// A task of a step.
    Task,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Job => "job",
            Self::Step => "step",
            Self::Task => "task",
        })
    }
}

impl Plan {
    /// The limits of one level.
    pub fn of(&self, level: Level) -> &Limits {
        match level {
            Level::User => &self.user,
            Level::Job => &self.job,
            Level::Step => &self.step,
            Level::Task => &self.task,
        }
    }

    /// Whether any level has rules of I/O.
    pub fn names_disks(&self) -> bool {
        [&self.user, &self.job, &self.step, &self.task].into_iter().any(|limits| !limits.io.is_empty())
    }

    /// Finds the disks to throttle. `find` removes targets that are on no disk from the rules, and says why.
    pub fn find_disks(&mut self, find: impl Fn(&mut IoRules) -> (Vec<DiskLimit>, Vec<Error>)) -> Vec<(Limit, Error)> {
        let mut all = Vec::new();
        for limits in [&mut self.user, &mut self.job, &mut self.step, &mut self.task] {
            let (found, errors) = find(&mut limits.io);
            limits.disks = found;
            // Reported once: job and step have the same targets.
            for error in errors {
                let error = (Limit::Io, error);
                if !all.contains(&error) {
                    all.push(error);
                }
            }
        }
        all
    }

    /// The lower of each limit.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self {
            user: self.user.at_most(other.user),
            job: self.job.at_most(other.job),
            step: self.step.at_most(other.step),
            task: self.task.at_most(other.task),
            scavenger: self.scavenger || other.scavenger,
            weighs: self.weighs || other.weighs,
            delegate: self.delegate.min(other.delegate),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |what| move |bytes| format!("{} {what}", mebibytes(bytes));
        let all = [
            self.cpu.map(|quota| quota.cpus().in_words()),
            self.burst.map(|percent| format!("bursts of {percent}")),
            self.weight.map(|weight| format!("CPU weight {weight}")),
            self.ram.map(memory("of memory")),
            self.swap.map(|limit| limit.swap).map(memory("of swap")),
            self.high.map(memory("of memory before reclaim")),
            self.low.map(memory("of memory protected")),
            self.min.map(memory("of memory kept")),
            self.oom_group.then(|| "killed as a whole".to_owned()),
            self.numbers.in_words(),
            (!self.io.is_empty()).then(|| format!("I/O {}", self.io)),
            self.io_weight.map(|weight| format!("I/O weight {weight}")),
            self.cores.as_ref().map(|cpus| format!("the CPUs {cpus}")),
            (!self.huge_pages.is_empty()).then(|| format!("huge pages of {}", self.huge_pages)),
            self.devices.as_ref().map(|devices| match devices.to_string().as_str() {
                "" => "the usual devices".to_owned(),
                text if !devices.are_listed() => format!("devices: {text}"),
                text => format!("the usual devices, {text}"),
            }),
            self.network.map(|rate| format!("{} a second to the network", binary(rate))),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        f.write_str(&if all.is_empty() { "nothing".to_owned() } else { all.join(", ") })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.user.is_empty() {
            write!(f, "the user to {}; ", self.user)?;
        }
        write!(f, "the job to {}; the step to {}", self.job, self.step)?;
        if !self.task.is_empty() {
            write!(f, "; each task to {}", self.task)?;
        }
        Ok(())
    }
}

/// `cpu.weight` for each CPU (hardware thread): ten CPUs have the kernel's default of 100, and a thousand the largest weight.
const WEIGHT_OF_CPU: u64 = 10;

/// The range of `cpu.weight` (cgroup-v2.rst).
pub const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;

/// The weight for this number of CPUs.
pub fn weight(cpus: Cpus) -> u64 {
    (cpus.thousandths().saturating_mul(WEIGHT_OF_CPU) / 1000).clamp(*WEIGHTS.start(), *WEIGHTS.end())
}

/// The grant, completed by the site's defaults if the scheduler has granted nothing.
fn with_defaults(config: &Config, grant: &Grant) -> Grant {
    let cpus = |cpus: Option<Cpus>| cpus.map(|cpus| if cpus == Cpus::ZERO { config.zero_cpus } else { cpus });
    let default_memory = config.default_ram_space.filter(|_| !grant.unallocated);
    let (of_job, of_step) = if grant.is_of_step { (None, default_memory) } else { (default_memory, None) };
    Grant {
        job_cpus: cpus(grant.job_cpus),
        step_cpus: cpus(grant.step_cpus),
        task_cpus: cpus(grant.task_cpus),
        job_memory: grant.job_memory.or(of_job),
        step_memory: grant.step_memory.or(of_step),
        ..grant.clone()
    }
}

/// Computes the limits. Those that cannot be computed come back as errors beside the others, so that `OnError` decides limit by limit.
pub fn plan(config: &Config, grant: &Grant) -> (Plan, Vec<(Limit, Error)>) {
    let mut plan = Plan { scavenger: config.scavenger, weighs: config.cpu_policy.weighs(), ..Plan::default() };
    let mut errors = Vec::new();
    let granted_cpus = if grant.is_of_step { grant.step_cpus } else { grant.job_cpus };
    // With a weight alone, a job that was granted no CPU could use all idle ones.
    let has_quota = config.cpu_policy.limits() || granted_cpus == Some(Cpus::ZERO);
    let grant = &with_defaults(config, grant);
    let step_cpus = least(grant.step_cpus, grant.job_cpus, Ord::min);
    if config.constrain_cpu_quota && has_quota {
        for (cpus, limits) in [(grant.job_cpus, &mut plan.job), (step_cpus, &mut plan.step)] {
            match cpus.map(|cpus| quota(config, cpus)).transpose() {
                Ok(quota) => limits.cpu = quota,
                Err(error) => errors.push((Limit::Cpu, error)),
            }
        }
    }
    // The administrator names a number here, not a percentage of a grant.
    let task_cpus = match config.max_cpus_per_task {
        TaskCpus::Unlimited => None,
        TaskCpus::Granted => grant.task_cpus.map(|cpus| quota(config, cpus)),
        TaskCpus::Count(cpus) => Some(quota_of(config, Percent::HUNDRED, cpus)),
    };
    let user_cpus = config.max_cpus_per_user.map(|cpus| quota_of(config, Percent::HUNDRED, cpus));
    for (cpus, limits) in [(user_cpus, &mut plan.user), (task_cpus, &mut plan.task)] {
        match cpus.transpose() {
            Ok(quota) => limits.cpu = quota,
            Err(error) => errors.push((Limit::Cpu, error)),
        }
    }
    if config.cpu_policy.weighs() {
        for (cpus, limits) in [(grant.job_cpus, &mut plan.job), (step_cpus, &mut plan.step)] {
            limits.weight = cpus.map(weight);
        }
    }
    let step_memory = match (grant.step_memory, grant.job_memory) {
        (Some(step), Some(job)) => Some(step.min(job)),
        (step, job) => step.or(job),
    };
    for (memory, limits) in [(grant.job_memory, &mut plan.job), (step_memory, &mut plan.step)] {
        let Some(memory) = memory else { continue };
        let ram = config.allowed_ram_space.of(memory).max(config.min_ram_space);
        limits.ram = config.constrain_ram_space.then_some(ram);
        if config.constrain_swap_space.limits() {
            let swap = grant.swap.unwrap_or_else(|| config.allowed_swap_space.of(memory));
            limits.swap = Some(SwapLimit { swap, ram });
            limits.swap_yields = config.constrain_swap_space == SwapSpace::Auto;
        }
        limits.high = config.memory_high.map(|percent| percent.of(ram));
        limits.low = (config.memory_low > Percent::ZERO).then(|| config.memory_low.of(memory).min(ram));
        limits.min = (config.memory_min > Percent::ZERO).then(|| config.memory_min.of(memory).min(ram));
    }
    for (ram, limits) in [(config.max_ram_per_user, &mut plan.user), (config.max_ram_per_task, &mut plan.task)] {
        limits.ram = ram;
        limits.high = ram.and_then(|ram| config.memory_high.map(|percent| percent.of(ram)));
    }
    plan.step.oom_group = config.oom_kill_step;
    plan.user.numbers = config.numbers_per_user;
    plan.job.numbers = config.numbers;
    plan.step.numbers = config.numbers;
    plan.task.numbers = config.numbers_per_task;
    plan.user.io = config.io_max_per_user.clone();
    plan.job.io = config.io_max.clone();
    plan.step.io = config.io_max.clone();
    plan.task.io = config.io_max_per_task.clone();
    plan.job.io_weight = config.io_weight;
    plan.user.huge_pages = config.max_huge_pages_per_user.clone();
    plan.job.huge_pages = huge_pages(config, grant);
    plan.step.huge_pages = plan.job.huge_pages.clone();
    plan.task.huge_pages = config.max_huge_pages_per_task.clone();
    plan.step.devices = devices_of(config);
    plan.job.network = config.network_max;
    plan.nest();
    plan.save_for_later(config);
    (plan, errors)
}

/// The huge pages that a job may have: what was granted, and what the site allows.
fn huge_pages(config: &Config, grant: &Grant) -> HugePages {
    let granted = || HugePages::from_sizes(grant.huge_pages.clone().unwrap_or_default());
    let granted = match config.constrain_huge_pages {
        GrantedHugePages::NotCounted => HugePages::default(),
        GrantedHugePages::AtMost => granted(),
        GrantedHugePages::NoOthers => granted().closed(),
    };
    config.max_huge_pages.at_most(&granted)
}

/// The devices that a step without GPUs may use, if some are denied.
pub fn devices_of(config: &Config) -> Option<Devices> {
    let (allow, gpu) = (config.device_allow.clone(), config.gpu_device.clone());
    match config.constrain_devices {
        DeniedDevices::None => None,
        DeniedDevices::OthersGpus => Some(Devices::but_gpus(allow, gpu)),
        DeniedDevices::AllElse => Some(Devices::new(allow, gpu)),
    }
}

/// Maps the scheduler's own core numbers of this node.
pub trait CoreMap {
    /// The CPUs (hardware threads) of these cores.
    fn cpus_of(&self, cores: &CpuList) -> Result<CpuList, Error>;
}

/// Plans the CPUs of the job and the step: all hardware threads of the cores that were granted, even if fewer threads were, since a
/// quota limits that.
pub fn pin(plan: &mut Plan, grant: &Grant, cores: &impl CoreMap) -> Result<(), Error> {
    if grant.job_cores.is_empty() || grant.step_cores.is_empty() {
        return Err(Error::new("the scheduler does not say which cores it granted"));
    }
    let job = cores.cpus_of(&grant.job_cores)?;
    let step = cores.cpus_of(&grant.step_cores)?;
    if !step.is_within(&job) {
        return Err(Error::new("the scheduler grants the step cores that its job does not have:")
            .value(format!("{} and {}", grant.step_cores, grant.job_cores)));
    }
    (plan.job.cores, plan.step.cores) = (Some(job), Some(step));
    Ok(())
}

/// Lowers the limits to what the user has asked for; never raises one. Requests that cannot be met come back as errors.
pub fn obey(plan: &mut Plan, config: &Config, requests: &UserRequests) -> Vec<(Limit, Error)> {
    let mut errors = Vec::new();
    // What is asked for the job binds each of its steps; what is asked for a step only that step.
    let step = requests.step.clone().at_most(&requests.job);
    for (requests, limits) in [(&requests.job, &mut plan.job), (&step, &mut plan.step)] {
        match requests.cpu_limit.map(|cpus| requested_quota(config, cpus)).transpose() {
            Ok(quota) => limits.cpu = least(limits.cpu, quota, CpuQuota::at_most),
            Err(error) => errors.push((Limit::Cpu, error)),
        }
        limits.lower(requests);
    }
    // The job and a step may have the same error.
    errors.dedup();
    plan.nest();
    errors
}

impl Limits {
    fn lower(&mut self, requests: &Requests) {
        // Zero is written to the kernel, too: an earlier step may have had more.
        self.burst = self.burst.map(|burst| requests.cpu_burst.map_or(burst, |asked| burst.min(asked)));
        let high = requests.mem_high.map(|asked| self.ram.map_or(asked, |ram| asked.min(ram)));
        self.high = least(self.high, high, Ord::min);
        self.numbers = self.numbers.at_most(&LimitNumbers::with(Limit::Processes, requests.pids_max));
        self.io = std::mem::take(&mut self.io).at_most(&requests.io_max);
    }
}

/// All limits of a step, by the site and by its user's requests. `has_tasks` is false for the step that only holds adopted processes.
/// `core_map` is called only if cores are wanted.
pub fn of_step<Map: CoreMap>(
    resolved: &Resolved,
    facts: &Facts,
    grant: &Grant,
    requests: &UserRequests,
    has_tasks: bool,
    core_map: impl FnOnce() -> Result<Map, Error>,
) -> (Plan, Vec<(Limit, Error)>) {
    let (mut plan, mut errors) = strictest(resolved, grant);
    plan.give_gpus(&facts.gpus);
    if resolved.config.constrain_cores && !grant.unallocated {
        let pinned = core_map().and_then(|cores| pin(&mut plan, grant, &cores));
        errors.extend(pinned.err().map(|error| (Limit::Cores, error)));
    }
    errors.extend(obey(&mut plan, &resolved.config, requests));
    plan.delegate = if has_tasks { delegates(&resolved.config, requests) } else { Delegation::No };
    if !has_tasks {
        // On cgroup2 this step could hold no process beside directories of tasks.
        plan.task = Limits::default();
        // A job's quota is never raised again, and steps that know more may still come. (With PrologFlags=RunInJob this step begins
        // before the prolog.)
        if resolved.unknown_in_words().is_some() {
            plan.job = Limits { cores: plan.job.cores.take(), ..Limits::default() };
        }
    }
    (plan, errors)
}

/// Who may divide the step's cgroup: its user only if the site allows it, and the user does not decline.
pub fn delegates(config: &Config, requests: &UserRequests) -> Delegation {
    let is_users = match config.delegate {
        Delegation::No | Delegation::Containers => return config.delegate,
        Delegation::Request => requests.delegate() == Some(true),
        Delegation::Yes => requests.delegate() != Some(false),
    };
    if is_users { Delegation::Yes } else { Delegation::No }
}

/// As [`plan`], if it may not be known which sections of the configuration a job has: the lowest of each limit among all candidates. A
/// candidate that would limit nothing is left out.
pub fn strictest(resolved: &Resolved, grant: &Grant) -> (Plan, Vec<(Limit, Error)>) {
    let mut all: Option<Plan> = None;
    let mut errors: Vec<(Limit, Error)> = Vec::new();
    for Candidate { config, .. } in &resolved.candidates {
        if config.mode != resolved.config.mode {
            continue;
        }
        let (plan, more) = plan(config, grant);
        all = Some(match all {
            Some(before) => before.at_most(plan),
            None => plan,
        });
        for error in more {
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
    }
    (all.unwrap_or_default(), errors)
}

impl Plan {
    /// Lets the step use these GPUs, which are the job's by a trusted record. Without this it may use none.
    pub fn give_gpus(&mut self, gpus: &Gpus) {
        if let Some(devices) = &mut self.step.devices {
            devices.give_gpus(gpus);
        }
    }

    /// Lowers each level to the one around it, as the kernel would anyway; v1 refuses higher quotas.
    fn nest(&mut self) {
        let mut around = self.user.clone();
        for limits in [&mut self.job, &mut self.step, &mut self.task] {
            limits.cpu = limits.cpu.map(|cpu| around.cpu.map_or(cpu, |around| cpu.at_most(around)));
            if let (Some(ram), Some(most)) = (limits.ram, around.ram) {
                limits.ram = Some(ram.min(most));
                limits.swap = limits.swap.map(|swap| SwapLimit { ram: swap.ram.min(most), ..swap });
            }
            limits.high = limits.high.map(|high| around.high.map_or(high, |around| high.min(around)));
            limits.numbers = limits.numbers.within(&around.numbers);
            limits.huge_pages = limits.huge_pages.within(&around.huge_pages);
            if !limits.io.is_empty() {
                limits.io = std::mem::take(&mut limits.io).at_most(&around.io);
            }
            around = Limits {
                cpu: limits.cpu.or(around.cpu),
                ram: limits.ram.or(around.ram),
                high: limits.high.or(around.high),
                numbers: limits.numbers.at_most(&around.numbers),
                huge_pages: limits.huge_pages.at_most(&around.huge_pages),
                io: limits.io.clone().at_most(&around.io),
                ..Limits::default()
            };
        }
    }

    /// Sets the burst where there is a quota. A user's own quota gets none: it limits all the user's jobs together.
    fn save_for_later(&mut self, config: &Config) {
        for limits in [&mut self.job, &mut self.step, &mut self.task] {
            limits.burst = limits.cpu.map(|_| config.cpu_burst).filter(|burst| *burst > Percent::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Percent;

    const MIB: u64 = 1 << 20;

    fn granted(cpus: u32, mib: u64) -> Grant {
        let (cpus, memory) = (Some(Cpus::whole(cpus)), Some(mib * MIB));
        Grant::whole(cpus, memory)
    }

    fn percent(text: &str) -> Percent {
        crate::config::parse("test", format!("AllowedRAMSpace={text}\n").as_bytes()).unwrap().allowed_ram_space
    }

    #[test]
    fn a_job_divides_itself_only_if_the_site_and_the_user_want_it() {
        let asks = |delegate| UserRequests { job: Requests { delegate, ..Requests::default() }, ..Default::default() };
        let all = [Delegation::No, Delegation::Containers, Delegation::Request, Delegation::Yes];
        let found = all.map(|delegate| {
            let config = Config { delegate, ..Config::default() };
            [None, Some(false), Some(true)].map(|asked| delegates(&config, &asks(asked)))
        });
        let (no, containers, yes) = (Delegation::No, Delegation::Containers, Delegation::Yes);
        assert_eq!(found, [[no; 3], [containers; 3], [no, no, yes], [yes, no, yes]]);
    }

    #[test]
    fn the_defaults_are_what_was_granted_without_swap() {
        let (plan, errors) = plan(&Config::default(), &granted(3, 200));
        assert!(errors.is_empty());
        let limits = Limits {
            cpu: Some(CpuQuota { quota_us: 300_000, period_us: 100_000 }),
            ram: Some(200 * MIB),
            swap: Some(SwapLimit { swap: 0, ram: 200 * MIB }),
            swap_yields: true,
            ..Limits::default()
        };
        assert_eq!(plan, Plan { job: limits.clone(), step: limits, ..Plan::default() });
    }

    #[test]
    fn each_level_has_the_number_of_its_own_key() {
        let text = "MaxProcesses=30\nMaxProcessesPerUser=40\nMaxProcessesPerTask=20\nOOMKillStep=yes\n";
        let (plan, _) = plan(&crate::config::parse("test", text.as_bytes()).unwrap(), &granted(1, 100));
        let of = |what: fn(&Limits) -> Option<u64>| [&plan.user, &plan.job, &plan.step, &plan.task].map(what);
        assert_eq!(of(|limits| limits.numbers.get(Limit::Processes)), [Some(40), Some(30), Some(30), Some(20)]);
        assert_eq!(of(|limits| limits.oom_group.then_some(1)), [None, None, Some(1), None]);
    }

    #[test]
    fn percentages_and_the_least_amount() {
        let config = Config {
            cpu_quota_percent: percent("12.5"),
            allowed_ram_space: percent("150"),
            allowed_swap_space: percent("10"),
            ..Config::default()
        };
        let limits = plan(&config, &granted(2, 200)).0.step;
        assert_eq!(limits.cpu.unwrap().quota_us, 25_000);
        assert_eq!(limits.ram, Some(300 * MIB));
        assert_eq!(limits.swap, Some(SwapLimit { swap: 20 * MIB, ram: 300 * MIB }));
        assert_eq!(plan(&config, &granted(2, 10)).0.step.ram, Some(config.min_ram_space));
    }

    #[test]
    fn swap_that_was_granted_takes_the_place_of_the_percentage() {
        let config = |text: &str| crate::config::parse("test", text.as_bytes()).unwrap();
        let memory = |text: &str, memory: Option<u64>, together: Option<u64>| {
            let grant =
                Grant::whole(None, memory.map(|mib| mib * MIB)).with_memory_and_swap(together.map(|mib| mib * MIB));
            let Plan { job, step, .. } = plan(&config(text), &grant).0;
            assert_eq!((job.ram, job.swap), (step.ram, step.swap));
            (job.ram.map(|ram| ram / MIB), job.swap.map(|limit| (limit.swap / MIB, limit.ram / MIB)))
        };
        assert_eq!(memory("", Some(200), Some(300)), (Some(200), Some((100, 200))));
        assert_eq!(memory("AllowedSwapSpace=10\n", Some(200), Some(300)), (Some(200), Some((100, 200))));
        assert_eq!(memory("AllowedSwapSpace=10\n", Some(200), None), (Some(200), Some((20, 200))));
        assert_eq!(memory("", Some(200), Some(100)), (Some(100), Some((0, 100))), "less than the memory");
        assert_eq!(memory("DefaultRAMSpace=50\n", None, Some(100)), (Some(100), Some((0, 100))), "no memory");
        assert_eq!(memory("AllowedRAMSpace=50\n", Some(200), Some(300)), (Some(100), Some((100, 100))));
        assert_eq!(memory("ConstrainSwapSpace=no\n", Some(200), Some(300)), (Some(200), None));
        assert_eq!(memory("ConstrainRAMSpace=no\n", Some(200), Some(300)), (None, Some((100, 200))));
        assert_eq!(memory("", None, None), (None, None));
    }

    #[test]
    fn swap_yields_only_where_nobody_insists_on_its_limit() {
        let step = |value: &str| {
            let text = format!("ConstrainSwapSpace={value}\n");
            plan(&crate::config::parse("test", text.as_bytes()).unwrap(), &granted(1, 100)).0.step
        };
        let yields = |limits: Limits| (limits.swap.is_some(), limits.swap_yields);
        assert_eq!(
            ["yes", "auto", "no"].map(|value| yields(step(value))),
            [(true, false), (true, true), (false, false)]
        );
        for (one, other, expected) in [
            ("auto", "auto", (true, true)),
            ("auto", "no", (true, true)),
            ("auto", "yes", (true, false)),
            ("yes", "no", (true, false)),
            ("no", "no", (false, false)),
        ] {
            assert_eq!(yields(step(one).at_most(step(other))), expected, "{one} {other}");
            assert_eq!(yields(step(other).at_most(step(one))), expected, "{other} {one}");
        }
    }

    #[test]
    fn devices_are_the_steps_and_gpus_only_those_that_were_given() {
        let text = "ConstrainDevices=closed DeviceAllow=/dev/fuse GPUDevice=/dev/nvidia%d\n";
        let config = crate::config::parse("test", text.as_bytes()).unwrap();
        let (mut with, errors) = plan(&config, &granted(1, 100));
        let devices = |plan: &Plan| plan.step.devices.as_ref().map(ToString::to_string);
        assert!(errors.is_empty() && with.user.is_empty() && with.task.is_empty() && with.job.devices.is_none());
        assert_eq!(devices(&with).as_deref(), Some("/dev/fuse"));
        let gpus = Gpus::Devices(vec![(0, "/dev/nvidia2".into()), (1, "/dev/nvidia0".into())]);
        with.give_gpus(&gpus);
        assert_eq!(devices(&with).as_deref(), Some("/dev/fuse,/dev/nvidia2 rw,/dev/nvidia0 rw"));
        let (mut without, _) = plan(&Config::default(), &granted(1, 100));
        without.give_gpus(&gpus);
        assert_eq!(devices(&without), None);
        assert_eq!(devices(&without.at_most(with.clone())), devices(&with));
    }

    #[test]
    fn what_is_not_managed_or_switched_off_is_not_limited() {
        let unmanaged = Grant { job_memory: None, step_memory: None, ..granted(1, 1) };
        let limits = plan(&Config::default(), &unmanaged).0.job;
        assert_eq!((limits.ram, limits.swap, limits.cpu.is_some()), (None, None, true));
        let off = Config {
            constrain_cpu_quota: false,
            constrain_ram_space: false,
            constrain_swap_space: SwapSpace::No,
            ..Config::default()
        };
        assert_eq!(plan(&off, &granted(1, 100)).0, Plan::default());
    }

    #[test]
    fn a_job_that_was_granted_nothing_has_what_the_site_says() {
        let cpu = |text: &str, cpus: Option<u32>| {
            let config = crate::config::parse("test", text.as_bytes()).unwrap();
            let (plan, errors) = plan(&config, &Grant::whole(cpus.map(Cpus::whole), None));
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!((plan.job.cpu, plan.job.weight), (plan.step.cpu, plan.step.weight));
            (plan.job.cpu.map(|quota| quota.quota_us), plan.job.weight)
        };
        assert_eq!(cpu("", Some(0)), (Some(20_000), None));
        assert_eq!(cpu("ZeroCPUs=0.5 CPUQuotaPercent=103\n", Some(0)), (Some(51_500), None));
        assert_eq!(cpu("CPUPolicy=weight\n", Some(0)), (Some(20_000), Some(2)));
        assert_eq!(cpu("CPUPolicy=weight\n", Some(1)), (None, Some(10)));
        assert_eq!(cpu("ConstrainCPUQuota=no\n", Some(0)), (None, None));
        assert_eq!(cpu("", None), (None, None), "what is not said is not none");

        let config = crate::config::parse("test", b"DefaultRAMSpace=256M\n").unwrap();
        let ram = |grant: &Grant| {
            let plan = plan(&config, grant).0;
            [plan.job.ram, plan.step.ram, plan.job.swap.map(|swap| swap.ram)]
        };
        assert_eq!(ram(&Grant::whole(None, None)), [Some(256 * MIB); 3]);
        assert_eq!(ram(&granted(1, 300)), [Some(300 * MIB); 3]);
        let step = Grant { step_memory: Some(100 * MIB), ..Grant::whole(None, None) };
        assert_eq!(ram(&step)[..2], [Some(256 * MIB), Some(100 * MIB)]);
        assert_eq!(ram(&Grant { unallocated: true, ..Grant::whole(None, None) }), [None; 3]);
    }

    #[test]
    fn a_grant_of_a_step_alone_is_no_jobs() {
        let of_step = |text: &str, cpus: u32, memory: Option<u64>| {
            let config = crate::config::parse("test", text.as_bytes()).unwrap();
            let whole = Grant::whole(Some(Cpus::whole(cpus)), memory);
            let (plan, errors) = plan(&config, &Grant { job_cpus: None, job_memory: None, is_of_step: true, ..whole });
            assert!(errors.is_empty() && plan.job.cpu.is_none(), "{errors:?}");
            (plan.step.cpu.map(|quota| quota.quota_us), plan.job.ram, plan.step.ram)
        };
        let more = Some(512 * MIB);
        assert_eq!(of_step("DefaultRAMSpace=256M\n", 1, more), (Some(100_000), None, more));
        let least = Some(256 * MIB);
        assert_eq!(of_step("DefaultRAMSpace=256M CPUPolicy=weight\n", 0, None), (Some(20_000), None, least));
        assert_eq!(of_step("CPUPolicy=weight\n", 1, None), (None, None, None));
    }

    #[test]
    fn a_quota_below_the_kernels_least_is_an_error_of_that_limit_alone() {
        let config = Config { cpu_quota_percent: percent("1"), ..Config::default() };
        let half = Cpus::from_thousandths(500);
        let grant = Grant { job_cpus: Some(half), step_cpus: Some(half), ..granted(1, 100) };
        let (plan, errors) = plan(&config, &grant);
        assert_eq!(errors.iter().map(|(limit, _)| *limit).collect::<Vec<_>>(), [Limit::Cpu, Limit::Cpu]);
        assert!(errors[0].1.to_string().contains("500 us in a period of 100000 us"), "{}", errors[0].1);
        assert_eq!((plan.step.cpu, plan.step.ram), (None, Some(100 * MIB)));
    }

    #[test]
    fn a_job_is_pinned_to_its_cores_and_a_step_to_those_of_it() {
        /// Four cores of two threads.
        struct FourCores;
        impl CoreMap for FourCores {
            fn cpus_of(&self, cores: &CpuList) -> Result<CpuList, Error> {
                if !cores.is_within(&CpuList::parse("0-3").unwrap()) {
                    return Err(Error::new("it has 4 cores"));
                }
                let threads: Vec<String> = cores.iter().map(|core| format!("{core},{}", core + 4)).collect();
                Ok(CpuList::parse(&threads.join(",")).unwrap())
            }
        }
        let list = |text: &str| CpuList::parse(text).unwrap();
        let pinned = |job: &str, step: &str| {
            let mut plan = Plan::default();
            let grant = Grant { job_cores: list(job), step_cores: list(step), ..granted(1, 100) };
            let pinned = pin(&mut plan, &grant, &FourCores);
            pinned.map(|()| [plan.job.cores, plan.step.cores].map(|cpus| cpus.unwrap().to_string()))
        };
        assert_eq!(pinned("1-2", "2").unwrap(), ["1-2,5-6", "2,6"]);
        for (job, step, said) in [
            ("", "", "does not say which cores"),
            ("0", "", "does not say which cores"),
            ("0", "1", "cores that its job does not have"),
            ("0-4", "0", "has 4 cores"),
        ] {
            let error = pinned(job, step).unwrap_err().to_string();
            assert!(error.contains(said), "{job} {step}: {error}");
        }
    }

    #[test]
    fn granted_huge_pages_are_the_limit_where_the_site_counts_them() {
        let pages = |text: &str| HugePages::parse(text).unwrap();
        let grant =
            |text: Option<&str>| Grant { huge_pages: text.map(|text| pages(text).into_sizes()), ..Grant::default() };
        let (none, some) = (grant(None), grant(Some("2M:4G")));
        for (constrain, max, grant, limit) in [
            (GrantedHugePages::NotCounted, None, &some, ""),
            (GrantedHugePages::AtMost, None, &some, "2M:4G"),
            (GrantedHugePages::AtMost, None, &none, ""),
            (GrantedHugePages::AtMost, Some("2M:1G,1G:0"), &some, "2M:1G,1G:0"),
            (GrantedHugePages::NoOthers, None, &some, "2M:4G,*:0"),
            (GrantedHugePages::NoOthers, None, &none, "*:0"),
            (GrantedHugePages::NoOthers, Some("2M:8G"), &none, "2M:0,*:0"),
        ] {
            let max_huge_pages = max.map(pages).unwrap_or_default();
            let config = Config { constrain_huge_pages: constrain, max_huge_pages, ..Config::default() };
            let (plan, errors) = plan(&config, grant);
            assert!(errors.is_empty());
            let limits = [&plan.user, &plan.job, &plan.step, &plan.task].map(|limits| limits.huge_pages.to_string());
            assert_eq!(limits, ["", limit, limit, ""], "{constrain:?} {max:?}");
        }
    }

    #[test]
    fn huge_pages_are_those_of_the_site_and_none_above_what_is_around() {
        let pages = |text| HugePages::parse(text).unwrap();
        let config = Config {
            max_huge_pages_per_user: pages("2M:4G"),
            max_huge_pages: pages("2M:8G,1G:0"),
            max_huge_pages_per_task: pages("2M:6G,1G:2G,64K:1M"),
            ..Config::default()
        };
        let plan = plan(&config, &granted(1, 100)).0;
        let all = [&plan.user, &plan.job, &plan.step, &plan.task].map(|limits| limits.huge_pages.to_string());
        assert_eq!(all, ["2M:4G", "2M:4G,1G:0", "2M:4G,1G:0", "2M:4G,1G:0,64K:1M"]);
    }

    fn asked(cpu: Option<u64>, burst: Option<u32>, high: Option<u64>, pids: Option<u64>) -> Requests {
        Requests {
            cpu_limit: cpu.map(Cpus::from_thousandths),
            cpu_burst: burst.map(Percent::from_hundredths),
            mem_high: high,
            pids_max: pids,
            ..Requests::default()
        }
    }

    #[test]
    fn a_users_word_lowers_the_job_and_its_steps_or_a_step_alone() {
        let config = Config {
            numbers: LimitNumbers::with(Limit::Processes, 100),
            cpu_burst: percent("50"),
            ..Config::default()
        };
        let mut lowered = plan(&config, &granted(2, 200)).0;
        let requests = UserRequests {
            job: asked(Some(1500), Some(2000), Some(100 * MIB), Some(60)),
            step: asked(Some(500), None, Some(150 * MIB), Some(70)),
        };
        assert_eq!(obey(&mut lowered, &config, &requests), []);
        let (job, step) = (&lowered.job, &lowered.step);
        assert_eq!((job.cpu.unwrap().quota_us, step.cpu.unwrap().quota_us), (150_000, 50_000));
        assert_eq!((job.burst, step.burst), (Some(percent("20")), Some(percent("20"))));
        assert_eq!((job.high, step.high), (Some(100 * MIB), Some(100 * MIB)));
        assert_eq!((job.numbers.get(Limit::Processes), step.numbers.get(Limit::Processes)), (Some(60), Some(60)));
        let rules = |text| IoRules::parse(text).unwrap();
        let io = |text| Requests { io_max: rules(text), ..Requests::default() };
        let site = Config { io_max: rules("/a rbps=5 wbps=5"), ..Config::default() };
        let mut throttled = plan(&site, &granted(2, 200)).0;
        obey(
            &mut throttled,
            &site,
            &UserRequests { job: io("/a rbps=3 wbps=9 riops=7; /b rbps=1"), step: io("/a wiops=2") },
        );
        assert_eq!(throttled.job.io, rules("/a rbps=3 wbps=5 riops=7; /b rbps=1"));
        assert_eq!(throttled.step.io, rules("/a rbps=3 wbps=5 riops=7 wiops=2; /b rbps=1"));
        let mut same = plan(&config, &granted(2, 200)).0;
        let more = asked(Some(64_000), Some(10_000), Some(1 << 40), Some(4096));
        assert_eq!(obey(&mut same, &config, &UserRequests { job: more.clone(), step: more }), []);
        // The site sets no reclaim. The user's begins at the limit, which is as good as none.
        for limits in [&mut same.job, &mut same.step] {
            assert_eq!(limits.high.take(), limits.ram);
        }
        assert_eq!(same, plan(&config, &granted(2, 200)).0);
    }

    #[test]
    fn a_word_limits_where_the_site_does_not() {
        let off = Config { constrain_cpu_quota: false, constrain_ram_space: false, ..Config::default() };
        let mut plan = plan(&off, &granted(2, 200)).0;
        let requests =
            UserRequests { step: asked(Some(500), Some(1000), Some(50 * MIB), Some(9)), ..UserRequests::default() };
        assert_eq!(obey(&mut plan, &off, &requests), []);
        assert_eq!((plan.job.cpu, plan.step.cpu.unwrap().quota_us), (None, 50_000));
        // Only the site can allow bursts.
        assert_eq!(
            (plan.step.burst, plan.step.high, plan.step.numbers.get(Limit::Processes)),
            (None, Some(50 * MIB), Some(9))
        );
    }

    #[test]
    fn less_than_the_kernels_least_is_said_once_with_what_can_be_had() {
        let config = Config::default();
        let mut same = plan(&config, &granted(2, 200)).0;
        let requests = UserRequests { job: asked(Some(9), None, None, None), ..UserRequests::default() };
        let errors = obey(&mut same, &config, &requests);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].1.to_string().ends_with("ask for at least --cpu-limit=0.01"), "{}", errors[0].1);
        assert_eq!(same, plan(&config, &granted(2, 200)).0);
    }

    fn of_unknown_partition(text: &str) -> Resolved {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("f");
        std::fs::write(&file, text).unwrap();
        let loaded = crate::config::load(&[format!("config={}", file.display()).as_bytes()]).unwrap();
        loaded.for_job(&crate::facts::Facts::default()).unwrap()
    }

    #[test]
    fn of_what_could_hold_the_least_of_each_limit_does() {
        let resolved = of_unknown_partition(
            "AllowedRAMSpace=50 MinRAMSpace=1M\n[Partition=a]\nAllowedRAMSpace=100 MaxProcesses=9 CPUQuotaPercent=50\n\
             [Partition=b]\nConstrainRAMSpace=no Mode=observe MaxProcesses=1\n",
        );
        let (plan, errors) = strictest(&resolved, &granted(2, 100));
        assert!(errors.is_empty());
        // The third candidate limits nothing, so it is left out.
        assert_eq!((plan.job.ram, plan.job.numbers.get(Limit::Processes)), (Some(50 * MIB), Some(9)));
        assert_eq!(plan.step.cpu.map(|cpu| cpu.cpus()), Some(Cpus::whole(1)));
        // A weight above the kernel's default is more than none.
        for (sections, weight) in [("IOWeight=5000", Some(100)), ("IOWeight=20", Some(20)), ("MaxProcesses=1", None)] {
            let resolved = of_unknown_partition(&format!("[Partition=a]\n{sections}\n"));
            assert_eq!(strictest(&resolved, &granted(2, 100)).0.job.io_weight, weight, "{sections}");
            assert_eq!(resolved.config.io_weight, weight, "{sections}");
        }
        let resolved = of_unknown_partition("[Partition=a]\nCPUPolicy=weight\n");
        assert_eq!(strictest(&resolved, &granted(64, 100)).0.job.weight, Some(100));
        assert_eq!(strictest(&resolved, &granted(2, 100)).0.job.weight, Some(20));
        // The lowest limit, not what the lowest value of each key would give.
        let resolved = of_unknown_partition(
            "AllowedRAMSpace=50 MinRAMSpace=1G\n[Partition=a]\nAllowedRAMSpace=100 MinRAMSpace=1M\n",
        );
        assert_eq!(strictest(&resolved, &granted(2, 100)).0.job.ram, Some(100 * MIB));
    }

    proptest! {
        /// A job of an unknown partition has no more than it would have, whichever sections are its own.
        #[test]
        fn the_strictest_exceeds_no_candidate(
            cpus in 1u32..64, mib in 1u64..10_000,
            values in prop::collection::vec((1u32..=1000, 1u32..=200, 1u64..1000, 1u64..2000, any::<bool>()), 1..4),
        ) {
            let keys = |(cpu, ram, processes, min, swap): &(u32, u32, u64, u64, bool)| {
                let swap = if *swap { "ConstrainSwapSpace=no\n" } else { "" };
                format!("CPUQuotaPercent={cpu} AllowedRAMSpace={ram} MaxProcesses={processes} MinRAMSpace={min}M\n{swap}")
            };
            let sections = values.iter().enumerate().map(|(n, values)| format!("[Partition=p{n}]\n{}", keys(values)));
            let resolved = of_unknown_partition(&sections.collect::<String>());
            let grant = granted(cpus, mib);
            let (strict, _) = strictest(&resolved, &grant);
            prop_assert_eq!(resolved.candidates.len(), values.len() + 1);
            for Candidate { config, .. } in &resolved.candidates {
                let (plan, _) = plan(config, &grant);
                for (strict, plan) in [(&strict.job, &plan.job), (&strict.step, &plan.step)] {
                    prop_assert!(plan.ram.is_none_or(|ram| strict.ram.is_some_and(|strict| strict <= ram)));
                    prop_assert!(plan.swap.is_none_or(|swap| strict.swap.is_some_and(|strict| strict.swap <= swap.swap)));
                    let processes = |limits: &Limits| limits.numbers.get(Limit::Processes);
                    prop_assert!(processes(plan).is_none_or(|count| processes(strict).is_some_and(|strict| strict <= count)));
                    prop_assert!(plan.cpu.is_none_or(|cpu| strict.cpu.is_some_and(|strict| strict.cpus() <= cpu.cpus())));
                }
            }
        }

        /// Whatever a user asks for the job and the step, no limit is higher than without it, none is lost, and no protection grows.
        #[test]
        fn no_word_raises_anything(
            cpus in proptest::array::uniform2(proptest::option::of(0u64..2_000_000)),
            bursts in proptest::array::uniform2(proptest::option::of(0u32..20_000)),
            highs in proptest::array::uniform2(proptest::option::of(any::<u64>())),
            pids in proptest::array::uniform2(proptest::option::of(any::<u64>())),
            granted_cpus in 1u32..64, mib in 1u64..1 << 20,
            max in proptest::option::of(1u64..4096), share in proptest::option::of(1u32..10_000),
            quota in any::<bool>(), ram in any::<bool>(), site_burst in 0u32..=10_000,
        ) {
            let config = Config {
                constrain_cpu_quota: quota, constrain_ram_space: ram, numbers: LimitNumbers::with(Limit::Processes, max),
                memory_high: share.map(Percent::from_hundredths),
                memory_low: percent("10"), memory_min: percent("5"),
                cpu_burst: Percent::from_hundredths(site_burst),
                numbers_per_task: LimitNumbers::with(Limit::Processes, max.map(|max| max / 2 + 1)),
                ..Config::default()
            };
            let before = plan(&config, &granted(granted_cpus, mib)).0;
            let mut after = before.clone();
            let requests = |at: usize| asked(cpus[at], bursts[at], highs[at], pids[at]);
            obey(&mut after, &config, &UserRequests { job: requests(0), step: requests(1) });
            for level in [Level::User, Level::Job, Level::Step, Level::Task] {
                let (now, was) = (after.of(level), before.of(level));
                // at_most changes nothing: no limit is above what it was.
                let least = now.clone().at_most(was.clone());
                prop_assert_eq!(now, &least);
                prop_assert!(was.cpu.is_none() || now.cpu.is_some());
                prop_assert!(was.burst.is_none() == now.burst.is_none());
                prop_assert!(was.high.is_none() || now.high.is_some());
                prop_assert!(was.numbers.get(Limit::Processes).is_none() || now.numbers.get(Limit::Processes).is_some());
                prop_assert_eq!((now.ram, now.swap, now.low, now.min), (was.ram, was.swap, was.low, was.min));
                prop_assert_eq!((now.weight, now.oom_group), (was.weight, was.oom_group));
            }
            // And a step has no more than its job.
            if let (Some(job), Some(step)) = (after.job.cpu, after.step.cpu) {
                prop_assert!(!step.is_above(job));
            }
            if let (Some(job), Some(step)) = (after.job.numbers.get(Limit::Processes), after.step.numbers.get(Limit::Processes)) {
                prop_assert!(step <= job);
            }
        }

        /// Whatever the site says of users, jobs and tasks, is granted, and is asked for: no level has more than the one around it.
        #[test]
        fn no_child_has_more_than_its_parent(
            job in 1u64..200_000, step in 1u64..200_000, task in 1u64..200_000,
            memory in proptest::array::uniform2(1u64..1 << 40),
            cpus in proptest::array::uniform2(proptest::option::of(1u64..200_000)),
            ram in proptest::array::uniform2(proptest::option::of(1u64 << 20..1 << 40)),
            counts in proptest::array::uniform3(proptest::option::of(1u64..10_000)),
            rates in proptest::array::uniform3(proptest::option::of(1u64..1 << 40)),
            pages in proptest::array::uniform3(proptest::option::of(1u64..1 << 30)),
            high in proptest::option::of(100u32..=10_000),
            requests in (proptest::option::of(1u64..200_000), proptest::option::of(1u64..1 << 40), proptest::option::of(1u64..10_000)),
        ) {
            let rules = |rate: Option<u64>| {
                let parsed = rate.map(|rate| IoRules::parse(&format!("/scratch rbps={rate}")).unwrap());
                parsed.unwrap_or_default()
            };
            let huge = |mib: Option<u64>| {
                mib.map(|mib| HugePages::parse(&format!("2M:{}M", mib * 2)).unwrap()).unwrap_or_default()
            };
            let config = Config {
                max_cpus_per_user: cpus[0].map(Cpus::from_thousandths),
                max_cpus_per_task: cpus[1].map_or(TaskCpus::Granted, |task| TaskCpus::Count(Cpus::from_thousandths(task))),
                max_ram_per_user: ram[0], max_ram_per_task: ram[1],
                numbers_per_user: LimitNumbers::with(Limit::Processes, counts[0]),
                numbers: LimitNumbers::with(Limit::Processes, counts[1]),
                numbers_per_task: LimitNumbers::with(Limit::Processes, counts[2]),
                io_max_per_user: rules(rates[0]), io_max: rules(rates[1]), io_max_per_task: rules(rates[2]),
                max_huge_pages_per_user: huge(pages[0]), max_huge_pages: huge(pages[1]), max_huge_pages_per_task: huge(pages[2]),
                memory_high: high.map(Percent::from_hundredths),
                ..Config::default()
            };
            let thousandths = |count| Some(Cpus::from_thousandths(count));
            let grant = Grant {
                job_cpus: thousandths(job), step_cpus: thousandths(step), task_cpus: thousandths(task),
                job_memory: Some(memory[0]), step_memory: Some(memory[1]),
                ..Grant::default()
            };
            let mut plan = plan(&config, &grant).0;
            let asked = asked(requests.0, None, requests.1, requests.2);
            for requests in [UserRequests::default(), UserRequests { job: asked.clone(), step: Requests::default() }, UserRequests { step: asked, ..UserRequests::default() }] {
                obey(&mut plan, &config, &requests);
                let levels = [Level::User, Level::Job, Level::Step, Level::Task].map(|level| plan.of(level));
                for (depth, below) in levels.iter().enumerate() {
                    for around in levels.iter().take(depth) {
                        prop_assert!(below.cpu.zip(around.cpu).is_none_or(|(below, around)| !below.is_above(around)));
                        prop_assert!(below.ram.zip(around.ram).is_none_or(|(below, around)| below <= around));
                        prop_assert!(below.high.zip(around.high).is_none_or(|(below, around)| below <= around));
                        let processes = |limits: &Limits| limits.numbers.get(Limit::Processes);
                        prop_assert!(processes(below).zip(processes(around)).is_none_or(|(below, around)| below <= around));
                        let both = below.io.clone().at_most(&around.io);
                        prop_assert!(below.io.is_empty() || around.io.is_empty() || both == below.io, "{} {}", below.io, around.io);
                        let both = below.huge_pages.at_most(&around.huge_pages);
                        prop_assert!(below.huge_pages.is_empty() || around.huge_pages.is_empty() || both == below.huge_pages);
                    }
                }
            }
        }

        /// Whatever is granted: never more than the site's percentage of it, and a step never more than its job.
        #[test]
        fn nothing_exceeds_the_grant(
            job in 1u64..10_000_000, step in 1u64..10_000_000,
            job_memory in 1u64..1 << 50, step_memory in 1u64..1 << 50,
            hundredths in 100u64..=100_000,
        ) {
            let share = percent(&format!("{}.{:02}", hundredths / 100, hundredths % 100));
            let config = Config {
                cpu_quota_percent: share, allowed_ram_space: share, min_ram_space: 0, ..Config::default()
            };
            let cpus = |thousandths| Some(Cpus::from_thousandths(thousandths));
            let grant = Grant {
                job_cpus: cpus(job), step_cpus: cpus(step), task_cpus: None,
                job_memory: Some(job_memory), step_memory: Some(step_memory),
                ..Grant::default()
            };
            let plan = plan(&config, &grant).0;
            if let (Some(whole), Some(part)) = (plan.job.cpu, plan.step.cpu) {
                prop_assert!(part.quota_us <= whole.quota_us);
                prop_assert!(u128::from(whole.quota_us) * 10_000_000 <= u128::from(job * hundredths) * 100_000);
            }
            let (whole, part) = (plan.job.ram.unwrap(), plan.step.ram.unwrap());
            prop_assert!(part <= whole);
            prop_assert!(u128::from(whole) * 10_000 <= u128::from(job_memory) * u128::from(hundredths));
        }
    }
}
