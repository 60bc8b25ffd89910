// SPDX-License-Identifier: GPL-2.0-or-later
//! All settings, and their defaults, which fence.

use std::path::PathBuf;
use std::time::Duration;

use super::limits::{LIMITS, Limit, LimitNumbers};
use super::slot_request::{PerSlot, SlotRequest};
use super::units::{DAY, Percent, Period};
use crate::cgroup::devices;
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::IoRules;
use crate::cgroup::layout::MOUNTPOINT;
use crate::job::Cpus;

/// Every setting; an empty file gives [`Config::default`], which fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `Mode`: whether limits are set at all.
    pub mode: Mode,
    /// `OnError`: what a limit that cannot be set does to the job.
    pub on_error: OnErrors,
    /// `CgroupMountpoint`: where the hierarchies are mounted, as in cgroup.conf(5).
    pub cgroup_mountpoint: PathBuf,
    /// `CgroupBase`: jobfence's directory below the top of each hierarchy; `None` leaves the choice to what the host offers.
    pub cgroup_base: Option<String>,
    /// `RunDir`: where the records of steps and their owners are kept.
    pub run_dir: PathBuf,
    /// `CleanupTimeout`: how long the end of a step waits for its processes before it leaves them to the janitor; 1 to 600 s.
    pub cleanup_timeout: Duration,
    /// `ReapInterval`: how often `jobfence hold` looks for what dead step daemons left; 1 to 86400 s, `None` for never.
    pub reap_interval: Option<Duration>,
    /// `ReapSchedulerLeftovers`: whether the scheduler's own directories of a dead step are removed, too, when they are empty.
    pub reap_scheduler_leftovers: bool,
    /// `EarlyMoves`: whether `jobfence hold` takes the kernel's lock for moves when a launch begins.
    pub early_moves: bool,
    /// `TrustAccount`: whether a site checks the account, the QOS and the project that a job's user has written, if the scheduler does
    /// not.
    pub trust_account: bool,
    /// `UsageLog`: the file with a line for each step that has ended; `None` for none.
    pub usage_log: Option<PathBuf>,
    /// `UsageLogSize`: the most that the log's files take together, in bytes.
    pub usage_log_size: u64,
    /// `UsageLogAge`: the longest that a line is kept; whole days.
    pub usage_log_age: Duration,
    /// `UsageCard`: which jobs have a card of what they used at the end of their output.
    pub usage_card: UsageCard,
    /// `StoreUsage`: where the scheduler keeps what a job has used.
    pub store_usage: StoreUsage,
    /// `SampleInterval`: how often `jobfence hold` notes down what steps use; 1 to 86400 s, `None` for never.
    pub sample_interval: Option<Duration>,
    /// `MetricsFile`: where `jobfence hold` writes figures for Prometheus; `None` for nowhere.
    pub metrics_file: Option<PathBuf>,
    /// `ConstrainCPUQuota`: whether a job's CPU time is limited.
    pub constrain_cpu_quota: bool,
    /// `CPUQuotaPercent`: CPU time in percent of the granted CPUs, 1 to 1000.
    pub cpu_quota_percent: Percent,
    /// `ZeroCPUs`: what counts as granted if the scheduler has granted a job no CPUs.
    pub zero_cpus: Cpus,
    /// `SlotCPUs`: which requests of a job are its hardware threads, where a scheduler grants slots; the least of them counts. A job
    /// without any has [`Self::cpus_per_slot`].
    pub slot_cpus: Vec<SlotRequest>,
    /// `SlotMemory`: which requests of a job are its memory, if a scheduler grants slots; the least of them counts.
    pub slot_memory: Vec<SlotRequest>,
    /// `SlotGPUs`: which requests of a job are GPUs, if a scheduler grants slots; their sum counts.
    pub slot_gpus: Vec<SlotRequest>,
    /// `CPUsPerSlot`: hardware threads of a slot, if a scheduler grants slots.
    pub cpus_per_slot: Cpus,
    /// `CPUQuotaPeriod`: the period in which the quota is counted.
    pub cpu_quota_period: Period,
    /// `CPUPolicy`: whether CPU time is limited, shared by weight, or both.
    pub cpu_policy: CpuPolicy,
    /// `CPUBurst`: unused quota that may be saved for later, in percent of the quota, 0 to 100.
    pub cpu_burst: Percent,
    /// `Scavenger`: whether jobs run only on CPU time that no others want.
    pub scavenger: bool,
    /// `MaxCPUsPerUser`: the CPU time of all of a user's jobs together; `None` for no limit.
    pub max_cpus_per_user: Option<Cpus>,
    /// `MaxCPUsPerTask`: the CPU time of each task.
    pub max_cpus_per_task: TaskCpus,
    /// `ConstrainCores`: whether a job runs on the cores that were granted to it alone, as in cgroup.conf(5).
    pub constrain_cores: bool,
    /// `HeadroomCPUs`: CPUs that a job's directory gets beyond the grant if the scheduler's own daemons live in it.
    pub headroom_cpus: Cpus,
    /// `ThreadHints`: whether programs are told how many threads have CPU time, if their quota is below the CPUs that they see.
    pub thread_hints: bool,
    /// `ConstrainRAMSpace`: whether memory is limited, as in cgroup.conf(5).
    pub constrain_ram_space: bool,
    /// `AllowedRAMSpace`: memory in percent of what was allocated, 1 to 10000, as in cgroup.conf(5).
    pub allowed_ram_space: Percent,
    /// `DefaultRAMSpace`: what counts as granted if the scheduler has granted no memory, in bytes; `None` for no limit.
    pub default_ram_space: Option<u64>,
    /// `StarterMemory`: the memory of a starter of HTCondor's, and of what that runs for itself, beside the memory of the slot, in
    /// bytes.
    pub starter_memory: u64,
    /// `MinRAMSpace`: no memory limit is lower than this; in bytes, at least 1 MiB, whole KiB (cgroup.conf(5), in MiB there).
    pub min_ram_space: u64,
    /// `ConstrainSwapSpace`: whether swap is limited where the host has any, as in cgroup.conf(5).
    pub constrain_swap_space: SwapSpace,
    /// `AllowedSwapSpace`: swap in percent of the allocated memory, 0 to 10000, as in cgroup.conf(5).
    pub allowed_swap_space: Percent,
    /// `MaxRAMPerUser`: the memory of all of a user's jobs together, in bytes; `None` for no limit.
    pub max_ram_per_user: Option<u64>,
    /// `MaxRAMPerTask`: the memory of each task, in bytes; `None` for no limit.
    pub max_ram_per_task: Option<u64>,
    /// `MemoryHighPercent`: the part of a memory limit, 1 to 100 %, above which memory is reclaimed; `None` for no such limit.
    pub memory_high: Option<Percent>,
    /// `MemoryLowPercent`: memory that is reclaimed only if there is no other, in percent of what was allocated, 0 to 100.
    pub memory_low: Percent,
    /// `MemoryMinPercent`: memory that is never reclaimed, in percent of what was allocated, 0 to 100.
    pub memory_min: Percent,
    /// `OOMKillStep`: whether a whole step is killed when it runs out of memory, as in slurm.conf(5).
    pub oom_kill_step: bool,
    /// The limits that are numbers, as `MaxProcesses`: of a job on the node, and of each of its steps.
    pub numbers: LimitNumbers,
    /// The same for all of a user's jobs together.
    pub numbers_per_user: LimitNumbers,
    /// The same for each task.
    pub numbers_per_task: LimitNumbers,
    /// `IOMax`: how fast a job may read and write on the node, by target; each of its steps, too.
    pub io_max: IoRules,
    /// `IOMaxPerUser`: how fast all jobs of a user on the node may read and write, together.
    pub io_max_per_user: IoRules,
    /// `IOMaxPerTask`: how fast each task may read and write.
    pub io_max_per_task: IoRules,
    /// `IOWeight`: a job's share of a busy disk, 1 to 10000; `None` leaves the kernel's 100.
    pub io_weight: Option<u64>,
    /// `ConstrainHugePages`: whether the huge pages that were granted are the limit.
    pub constrain_huge_pages: GrantedHugePages,
    /// `MaxHugePages`: the huge pages of a job on the node, size by size.
    pub max_huge_pages: HugePages,
    /// `MaxHugePagesPerUser`: the same for all of a user's jobs together.
    pub max_huge_pages_per_user: HugePages,
    /// `MaxHugePagesPerTask`: the same for each task.
    pub max_huge_pages_per_task: HugePages,
    /// `ConstrainDevices`: which devices a step may not use, as in cgroup.conf(5).
    pub constrain_devices: DeniedDevices,
    /// `DeviceAllow`: the devices that a step may use, beside those that every job may use.
    pub device_allow: Vec<devices::DeviceRule>,
    /// `GPUDevice`: the pattern of GPUs' devices; those of the job are allowed, and no others that match it.
    pub gpu_device: Option<devices::GpuDevice>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Enforce,
            on_error: OnErrors::default(),
            cgroup_mountpoint: PathBuf::from(MOUNTPOINT),
            cgroup_base: None,
            run_dir: PathBuf::from("/run/jobfence"),
            cleanup_timeout: Duration::from_secs(10),
            reap_interval: Some(Duration::from_secs(60)),
            sample_interval: None,
            reap_scheduler_leftovers: true,
            early_moves: true,
            trust_account: false,
            usage_log: None,
            usage_log_size: 64 << 20,
            usage_log_age: Duration::from_secs(90 * DAY),
            usage_card: UsageCard::Never,
            store_usage: StoreUsage::None,
            metrics_file: None,
            constrain_cpu_quota: true,
            cpu_quota_percent: Percent::HUNDRED,
            zero_cpus: Cpus::from_thousandths(200),
            cpus_per_slot: Cpus::whole(1),
            slot_cpus: Vec::new(),
            slot_memory: vec![SlotRequest::of("h_vmem", PerSlot::AsCounted)],
            slot_gpus: Vec::new(),
            cpu_quota_period: Period::DEFAULT,
            cpu_policy: CpuPolicy::Quota,
            cpu_burst: Percent::ZERO,
            scavenger: false,
            max_cpus_per_user: None,
            max_cpus_per_task: TaskCpus::Unlimited,
            constrain_cores: false,
            headroom_cpus: Cpus::whole(1),
            thread_hints: false,
            constrain_ram_space: true,
            allowed_ram_space: Percent::HUNDRED,
            default_ram_space: None,
            starter_memory: 1 << 30,
            min_ram_space: 30 << 20,
            constrain_swap_space: SwapSpace::Auto,
            allowed_swap_space: Percent::ZERO,
            max_ram_per_user: None,
            max_ram_per_task: None,
            memory_high: None,
            memory_low: Percent::ZERO,
            memory_min: Percent::ZERO,
            oom_kill_step: false,
            numbers: LimitNumbers::default(),
            numbers_per_user: LimitNumbers::default(),
            numbers_per_task: LimitNumbers::default(),
            io_max: IoRules::default(),
            io_max_per_user: IoRules::default(),
            io_max_per_task: IoRules::default(),
            io_weight: None,
            constrain_huge_pages: GrantedHugePages::NotCounted,
            max_huge_pages: HugePages::default(),
            max_huge_pages_per_user: HugePages::default(),
            max_huge_pages_per_task: HugePages::default(),
            constrain_devices: DeniedDevices::None,
            device_allow: Vec::new(),
            gpu_device: None,
        }
    }
}

/// Whether limits are set at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Jobs are limited.
    Enforce,
    /// Jobs are put in cgroups and measured, but not limited.
    Observe,
    /// Nothing is touched.
    Off,
}

/// Which jobs have a card at the end of their output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageCard {
    /// None.
    Never,
    /// Those that failed, or were stopped at a limit.
    Failed,
    /// Those, and jobs that used little of what was granted to them.
    Wasteful,
    /// Every job.
    Always,
}

/// Where the scheduler keeps what a job has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreUsage {
    /// Nowhere.
    None,
    /// Slurm, in the job's AdminComment.
    AdminComment,
}

/// How a job's CPU time is limited or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuPolicy {
    /// No more than was granted, even if CPUs are idle.
    Quota,
    /// All CPU time that no others want; under contention in proportion to what was granted.
    Weight,
    /// The quota, and below it the weight.
    Both,
}

impl CpuPolicy {
    /// Whether CPU time is limited.
    pub const fn limits(self) -> bool {
        !matches!(self, Self::Weight)
    }

    /// Whether CPU time is shared by weight.
    pub const fn weighs(self) -> bool {
        !matches!(self, Self::Quota)
    }
}

/// The CPU time of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskCpus {
    /// No limit of its own.
    Unlimited,
    /// The CPUs per task that the step asked for.
    Granted,
    /// This many.
    Count(Cpus),
}

/// What `ConstrainHugePages` makes of the huge pages that were granted; the stricter is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrantedHugePages {
    /// Nothing: `no`.
    NotCounted,
    /// The limit of their size: `yes`.
    AtMost,
    /// The same, and there are no others: `closed`.
    NoOthers,
}

/// Which devices a step may not use; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeniedDevices {
    /// None is denied.
    None,
    /// `yes`: the node's GPUs that the job does not have.
    OthersGpus,
    /// `closed`: all that are not allowed.
    AllElse,
}

/// Whether swap is limited; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwapSpace {
    /// Swap is not limited.
    No,
    /// Swap is limited unless the scheduler limits memory; then swap is as the scheduler says.
    Auto,
    /// Swap is limited wherever the scheduler has no limit of its own.
    Yes,
}

impl SwapSpace {
    /// Whether it is limited at all.
    pub const fn limits(self) -> bool {
        !matches!(self, Self::No)
    }
}

/// What becomes of a job whose limit could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The job fails: it may not run without its fence.
    Fail,
    /// The log says so, and the job runs.
    Warn,
}

/// An [`OnError`] for everything, and for each [`Limit`] one that may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnErrors {
    general: OnError,
    limits: [OnError; LIMITS.len()],
}

impl OnErrors {
    /// The same for everything.
    pub const fn all(general: OnError) -> Self {
        Self { general, limits: [general; LIMITS.len()] }
    }

    /// Makes one limit differ.
    #[must_use]
    pub fn with(mut self, limit: Limit, on_error: OnError) -> Self {
        if let Some(theirs) = self.limits.get_mut(limit as usize) {
            *theirs = on_error;
        }
        self
    }

    /// What holds in this mode: a site that only observes wants no job to fail for it.
    #[must_use]
    pub const fn within(self, mode: Mode) -> Self {
        match mode {
            Mode::Observe => Self::all(OnError::Warn),
            Mode::Enforce | Mode::Off => self,
        }
    }

    /// The assignment by which an error is only logged, for the log.
    pub const fn softened_by(mode: Mode) -> &'static str {
        match mode {
            Mode::Observe => "Mode=observe",
            Mode::Enforce | Mode::Off => "OnError=warn",
        }
    }

    /// For errors that belong to no limit, such as an unreadable configuration.
    pub const fn general(self) -> OnError {
        self.general
    }

    /// For this limit.
    pub fn for_limit(self, limit: Limit) -> OnError {
        self.limits.get(limit as usize).copied().unwrap_or(self.general)
    }
}

impl Default for OnErrors {
    fn default() -> Self {
        Self::all(OnError::Fail)
    }
}
