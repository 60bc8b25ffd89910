// SPDX-License-Identifier: GPL-2.0-or-later
//! The table of keys. A row is all that a key needs: its meaning, its field of [`Config`], its default, its kind of values, and whether
//! sections may have it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
use proptest::prelude::*;

use super::kinds::{self, ValueKind, percent};
use super::limits::{Limit, LimitNumbers, NUMBERS, Number, joined};
use super::out_of_memory::RunAgain;
use super::private_paths;
use super::signal_at::SignalAt;
use super::slot_request::{PerSlot, SlotRequest};
use super::strictness::{self, first, if_each, least, least_limit, most};
use super::units::{DAY, Percent, Period, Wrong, or_unlimited, text_or_unlimited};
use super::values::{
    CpuPolicy, Delegation, DeniedDevices, GrantedHugePages, IdleAction, LoginBudget, LoginLimits, MemoryShare, Mode,
    OnErrors, StoreUsage, StraysAction, SwapSpace, TaskCpus, UsageCard,
};
use crate::cgroup::devices::{DeviceRule, GpuDevice};
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::IoRules;
use crate::cgroup::layout::MOUNTPOINT;
use crate::job::Cpus;

/// One key of jobfence.conf(5).
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The name, as documented; any case is accepted.
    pub name: &'static str,
    /// What its value must be, with unit and range; completes "expected ...".
    pub expects: &'static str,
    /// Whether the value can differ from job to job, so that the key may stand in a section.
    is_per_job: bool,
    /// It gets the key itself, since the keys of all numbers share it. One function for all deeds takes less of the shared object than one for
    /// each.
    act: fn(&Self, Deed<'_>) -> Result<Option<String>, Wrong>,
}

/// What is done with the value of a key.
enum Deed<'a> {
    /// It becomes what this text says.
    Set(&'a mut Config, &'a str),
    /// Its text is returned.
    Get(&'a Config),
    /// The other configuration's value is taken if it is stricter. That is done with a key that may stand in a section.
    TakeStricter(&'a mut Config, &'a Config),
}

impl Key {
    /// Reads a value into the configuration, which stays as it was if the value is wrong.
    pub fn set(&self, config: &mut Config, value: &str) -> Result<(), Wrong> {
        (self.act)(self, Deed::Set(config, value)).map(drop)
    }

    /// The value in a form that `set` accepts; `None` if the key is not set.
    pub fn get(&self, config: &Config) -> Option<String> {
        (self.act)(self, Deed::Get(config)).ok().flatten()
    }

    /// The value that is used when the key is absent; `None` if it depends on the host.
    pub fn default_value(&self) -> Option<String> {
        self.get(&Config::default())
    }

    /// Sets the value that is used when the key is absent.
    pub fn reset(&self, config: &mut Config) {
        if let Some(value) = self.default_value() {
            let _ = self.set(config, &value);
        }
    }

    /// Whether the value can differ from job to job, so that the key may stand in a section.
    pub(super) fn is_per_job(&self) -> bool {
        self.is_per_job
    }
}

/// The argument that names the file; it cannot stand in the file, and only the reader of arguments knows it.
pub(super) const FILE_ARGUMENT: Key = Key {
    name: "config",
    expects: kinds::ABSOLUTE_PATH.expects,
    is_per_job: false,
    act: |_, deed| match deed {
        Deed::Set(_, text) => (kinds::ABSOLUTE_PATH.read)(text).map(|_| None),
        _ => Ok(None),
    },
};

/// Generates [`Config`] and its keys from rows of
/// `/// MEANING` `Name: field: Type = default, KIND, node;`, or `jobs(STRICTER)` in place of `node`.
///
/// The meaning is the first paragraph about the key in jobfence.conf(5): the tests of `manual.rs` keep the page in step with the table. A
/// key with `jobs` may stand in sections. If it is not known which section holds, `STRICTER` chooses between two values. For limits the
/// lowest of the computed numbers counts (`policy`). `STRICTER` decides everything else, and errs on the side of limiting.
macro_rules! keys {
    (before numbers: { $($before:tt)* } after numbers: { $($after:tt)* }) => {
        keys! { config: $($before)* $($after)* }
        /// The keys before those of [`NUMBERS`].
        const BEFORE_NUMBERS: &[Key] = &keys! { rows: $($before)* };
        /// The keys after those of [`NUMBERS`].
        const AFTER_NUMBERS: &[Key] = &keys! { rows: $($after)* };
    };
    (config: $(
        $(#[doc = $doc:literal])* $name:ident: $field:ident: $type:ty = $default:expr, $kind:expr, $scope:ident $(($stricter:expr))?;
    )*) => {
        /// Every setting; an empty file gives [`Config::default`], which fences.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $(
                #[doc = concat!("`", stringify!($name), "`:")]
                $(#[doc = $doc])*
                pub $field: $type,
            )*
            /// The limits that are numbers, as `MaxProcesses`: of a job on the node, and of each of its steps.
            pub numbers: LimitNumbers,
            /// These limits for all of a user's jobs together.
            pub numbers_per_user: LimitNumbers,
            /// These limits for each task.
            pub numbers_per_task: LimitNumbers,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    numbers: LimitNumbers::default(),
                    numbers_per_user: LimitNumbers::default(),
                    numbers_per_task: LimitNumbers::default(),
                }
            }
        }

        /// Any configuration that keys can set.
        #[cfg(test)]
        pub(super) fn any_config() -> BoxedStrategy<Config> {
            let (job, user, task) = (LimitNumbers::any(), LimitNumbers::any(), LimitNumbers::any());
            let config = (job, user, task).prop_map(|(numbers, numbers_per_user, numbers_per_task)| Config {
                numbers, numbers_per_user, numbers_per_task, ..Config::default()
            });
            $(
                let kind: ValueKind<$type> = $kind;
                let config = (config.boxed(), (kind.any)()).prop_map(|(config, $field)| Config { $field, ..config });
            )*
            config.boxed()
        }

        /// The name, the field and the meaning of each row.
        #[cfg(test)]
        pub(super) static MEANINGS: &[(&str, &str, &str)] =
            &[$((stringify!($name), stringify!($field), concat!($($doc, "\n"),*)),)*];
    };
    (rows: $(
        $(#[doc = $doc:literal])* $name:ident: $field:ident: $type:ty = $default:expr, $kind:expr, $scope:ident $(($stricter:expr))?;
    )*) => {
        [$({
            const KIND: ValueKind<$type> = $kind;
            Key {
                name: stringify!($name),
                expects: KIND.expects,
                is_per_job: keys!(is_per_job: $scope),
                act: |_, deed| {
                    match deed {
                        Deed::Set(config, text) => config.$field = (KIND.read)(text)?,
                        Deed::Get(config) => return Ok((KIND.text)(&config.$field)),
                        Deed::TakeStricter(_config, _other) => { $($stricter(&mut _config.$field, &_other.$field);)? }
                    }
                    Ok(None)
                },
            }
        },)*]
    };
    (is_per_job: node) => { false };
    (is_per_job: jobs) => { true };
}

keys! {
    before numbers: {
        /// Whether jobs are limited.
        Mode: mode: Mode = Mode::Enforce, kinds::MODE, jobs(strictness::mode);
        /// What happens to a step that cannot be fenced as configured.
        /// The first word holds for all errors.
        /// Each other word holds for one limit, and there takes the place of the first.
        OnError: on_error: OnErrors = OnErrors::default(), kinds::ON_ERRORS, jobs(strictness::on_errors);
        /// jobfence uses only hierarchies that are mounted at this path or below it.
        CgroupMountpoint: cgroup_mountpoint: PathBuf = PathBuf::from(MOUNTPOINT), kinds::ABSOLUTE_PATH, node;
        /// The cgroup of all fences, below the top of each hierarchy that is used.
        CgroupBase: cgroup_base: Option<String> = None, kinds::BASE, node;
        /// The directory of the records.
        /// A record says which process, such as a step daemon, owns which cgroups.
        RunDir: run_dir: PathBuf = PathBuf::from("/run/jobfence"), kinds::ABSOLUTE_PATH, node;
        /// How long the end of a step waits for processes that do not die.
        CleanupTimeout: cleanup_timeout: Duration = Duration::from_secs(10), kinds::TIMEOUT, node;
        /// How often `jobfence hold` looks for what dead step daemons have left.
        ReapInterval: reap_interval: Option<Duration> = Some(Duration::from_secs(60)), kinds::INTERVAL, node;
        /// Whether the janitor removes the scheduler's own cgroups of a dead step, once they are empty.
        ReapSchedulerLeftovers: reap_scheduler_leftovers: bool = true, kinds::YES_NO, node;
        /// Whether `jobfence hold` takes the kernel's lock for moves while the scheduler still prepares a task.
        EarlyMoves: early_moves: bool = true, kinds::YES_NO, node;
        /// Whether sections hold for the account, the QOS and the project that the user of a job has written.
        TrustAccount: trust_account: bool = false, kinds::YES_NO, node;
        /// The file to which jobfence adds a line for each step that has ended on the node, with what the step has used.
        UsageLog: usage_log: Option<PathBuf> = None, kinds::PATH_OR_NONE, node;
        /// So much all files of the usage log together take at most.
        /// If they have more, the oldest file is removed.
        UsageLogSize: usage_log_size: u64 = 64 << 20, kinds::SIZE, node;
        /// A file of the usage log whose last line is older is removed when a file is next set aside.
        /// That is each day, and when a file is full.
        UsageLogAge: usage_log_age: Duration = Duration::from_secs(90 * DAY), kinds::DAYS, node;
        /// Whether `jobfence hold` (jobfence.service) tells each user the lines of the user's own jobs in the usage log.
        /// Then `jobfence report` of such a job needs neither root nor Slurm's accounting.
        UserReports: user_reports: bool = false, kinds::YES_NO, node;
        /// Which batch jobs have a card at the end of their output.
        /// The card says what the job used of what was granted to it, what stopped it, and what to ask for next time.
        // `first`: a card is no limit, and others do not see it.
        UsageCard: usage_card: UsageCard = UsageCard::Never, kinds::USAGE_CARD, jobs(first);
        /// The last line of each card, such as the address of a page that helps.
        /// `%j` stands for the job's id as the card has it, and `%%` for a percent sign.
        UsageCardText: usage_card_text: Option<String> = None, kinds::CARD_TEXT, jobs(first);
        /// Where Slurm keeps a summary of what each job has used.
        StoreUsage: store_usage: StoreUsage = StoreUsage::None, kinds::STORE_USAGE, node;
        /// How often `jobfence hold` (jobfence.service) notes down what each step uses: CPU time, memory, processes and disks.
        SampleInterval: sample_interval: Option<Duration> = None, kinds::INTERVAL, node;
        /// Whether `jobfence hold` has NVIDIA's driver keep a record of each process that has used a GPU (accounting mode).
        GPUAccounting: gpu_accounting: bool = false, kinds::YES_NO, node;
        /// Whether the kernel counts what each job sends and receives, by interface.
        /// `jobfence hold` (jobfence.service) reads that with each sample.
        NetworkAccounting: network_accounting: bool = false, kinds::YES_NO, node;
        /// When a job's GPU has done nothing for so long, it counts as held but idle.
        // `least_limit`: this is no limit, and by itself a job is only said to be idle.
        GPUIdleAfter: gpu_idle_after: Option<Duration> = None, kinds::IDLE_TIME, jobs(least_limit);
        /// What happens to a job whose GPUs stay idle for as long again after that was said.
        // `least`: nothing is done to a job unless the site has certainly asked for it.
        GPUIdleAction: gpu_idle_action: IdleAction = IdleAction::Warn, kinds::IDLE_ACTION, jobs(least);
        /// When a job has used almost no CPU time for so long, it counts as idle.
        IdleAfter: idle_after: Option<Duration> = None, kinds::IDLE_TIME, jobs(least_limit);
        /// What happens to a job that stays so for as long again after that was said.
        IdleAction: idle_action: IdleAction = IdleAction::Warn, kinds::IDLE_ACTION, jobs(least);
        /// At which shares a job is told so, while it runs: by a sentence, and perhaps by a signal.
        /// Each condition is watched by itself.
        // `if_each`: no job gets a signal unless the site has certainly asked for it.
        SignalAt: signal_at: Option<SignalAt> = None, kinds::SIGNAL_AT, jobs(if_each);
        /// What becomes of a batch job that failed after a kill at its memory limit.
        // `if_each`: no job runs again unless the site has certainly asked for it.
        OnOutOfMemory: on_out_of_memory: Option<RunAgain> = None, kinds::ON_OUT_OF_MEMORY, jobs(if_each);
        /// What becomes of a batch job that its scheduler has ended at its time limit.
        // 0: nothing more. `least`: no job runs again unless the site has certainly asked for it.
        OnTimeLimit: on_time_limit: u32 = 0, kinds::RESTARTS, jobs(least);
        /// What becomes of a batch job that its scheduler has ended for another job (preemption).
        OnPreempt: on_preempt: u32 = 0, kinds::RESTARTS, jobs(least);
        /// What `jobfence hold` does with processes of users that are in no fence, on a node where the scheduler alone gives access.
        // `least`: nothing is done to a process unless the site has certainly asked for it.
        Strays: strays: StraysAction = StraysAction::Off, kinds::STRAYS_ACTION, jobs(least);
        /// How long, in seconds, a user has processes in no fence before something is done with them.
        StraysGrace: strays_grace: Duration = Duration::from_secs(60), kinds::TIMEOUT, node;
        /// Accounts with a lower uid are the system's, and their processes are left alone.
        StraysMinUID: strays_min_uid: Option<u32> = None, kinds::MIN_UID, node;
        /// Processes in these cgroups, or below them, are left alone.
        StraysAllow: strays_allow: Vec<String> = Vec::new(), kinds::CGROUP_PATHS, node;
        /// Whether `jobfence hold` makes each user of this node one fence.
        /// It is for nodes on which users log in, and no scheduler starts jobs.
        LoginLimits: login_limits: LoginLimits = LoginLimits::No, kinds::LOGIN_LIMITS, node;
        /// With `LoginLimits`: how much CPU time a user has in a window, and how many CPUs once that is used.
        LoginBudget: login_budget: Option<LoginBudget> = None, kinds::LOGIN_BUDGET, jobs(strictness::login_budget);
        /// How long the window of `LoginBudget` is.
        LoginWindow: login_window: Duration = Duration::from_secs(DAY), kinds::LOGIN_WINDOW, node;
        /// How many grams of CO2 a kilowatt-hour costs here, for the report of a job whose energy is known.
        CarbonIntensity: carbon_intensity: Option<u64> = None, kinds::CARBON_INTENSITY, node;
        /// A file for the textfile collector of Prometheus's node_exporter.
        /// `jobfence hold` (jobfence.service) writes it every `ReapInterval`.
        MetricsFile: metrics_file: Option<PathBuf> = None, kinds::PATH_OR_NONE, node;
        /// Whether CPU time is limited.
        /// The processes may run on any CPU, but all together use no more time than the quota.
        /// This pins no process to a CPU.
        ConstrainCPUQuota: constrain_cpu_quota: bool = true, kinds::YES_NO, jobs(most);
        /// The quota of the job and of the step, in percent of the granted CPUs.
        CPUQuotaPercent: cpu_quota_percent: Percent = Percent::HUNDRED, percent!(1 to 1000), jobs(least);
        /// The CPU time of a job to which the scheduler grants no CPU is limited as if this number had been granted.
        ZeroCPUs: zero_cpus: Cpus = Cpus::from_thousandths(200), kinds::CPUS, jobs(least);
        /// How many CPUs (hardware threads) a slot of Grid Engine has on this node.
        /// A job is granted this number times its slots on the node, unless it asks for CPUs by `SlotCPUs`.
        /// If the node has two hardware threads for each core, and a slot is a core, say `2`.
        CPUsPerSlot: cpus_per_slot: Cpus = Cpus::whole(1), kinds::CPUS, node;
        /// Which requests of a job of Grid Engine are its CPUs (hardware threads), such as `threads`.
        /// If a job has several of them, the lowest number counts.
        /// If it has none of them, it is granted `CPUsPerSlot` times its slots.
        /// A number may have a fraction.
        // `first`: each section grants something else, and the door takes the least of that.
        SlotCPUs: slot_cpus: Vec<SlotRequest> = Vec::new(), kinds::SLOT_REQUESTS, jobs(first);
        /// Which requests of a job of Grid Engine are its memory, such as `m_mem_free:slot,h_vmem`.
        /// If a job has several of them, the lowest amount counts.
        /// On a host where none of it was debited, the job has `MinRAMSpace`.
        /// A job that has none of them has `DefaultRAMSpace`.
        SlotMemory: slot_memory: Vec<SlotRequest> = vec![SlotRequest::new("h_vmem", PerSlot::AsCounted)],
            kinds::SLOT_REQUESTS, node;
        /// Which requests of a job of Grid Engine are GPUs, such as `gpu`.
        /// If a job has several of them, their sum counts.
        /// jobfence chooses the devices by `GPUDevice`.
        SlotGPUs: slot_gpus: Vec<SlotRequest> = Vec::new(), kinds::SLOT_REQUESTS, node;
        /// The period in which the quota is counted.
        /// With a short period, a job that has used up its quota pauses for a shorter time, but the kernel has more work.
        /// With a long period, the kernel keeps to the quota more exactly.
        CPUQuotaPeriod: cpu_quota_period: Period = Period::DEFAULT, kinds::PERIOD, jobs(first);
        /// How much unused quota may be saved for a later period, in percent of the quota.
        /// A short spike then meets no pause.
        /// On average the quota holds.
        CPUBurst: cpu_burst: Percent = Percent::ZERO, percent!(0 to 100), jobs(least);
        /// Whether CPU time is limited, shared by weight, or both.
        CPUPolicy: cpu_policy: CpuPolicy = CpuPolicy::Quota, kinds::CPU_POLICY, jobs(strictness::cpu_policy);
        /// Whether jobs run only in CPU time that no other job wants.
        /// They use what was granted to other jobs and lies idle, and do not slow these down.
        Scavenger: scavenger: bool = false, kinds::YES_NO, jobs(most);
        /// The CPU time of all jobs of a user on the node together.
        MaxCPUsPerUser: max_cpus_per_user: Option<Cpus> = None, kinds::OPTIONAL_CPUS, jobs(least_limit);
        /// The CPU time of each task.
        /// `granted` stands for the step's CPUs on the node, divided by its tasks there and rounded up to a whole number.
        MaxCPUsPerTask: max_cpus_per_task: TaskCpus = TaskCpus::Unlimited,
            kinds::TASK_CPUS, jobs(strictness::task_cpus);
        /// Whether a job and a step run only on the cores that were granted to them, as with ConstrainCores in `cgroup.conf`(5).
        /// A core comes with all its hardware threads.
        /// If fewer threads were granted, the quota limits them.
        /// Memory nodes are not limited.
        ConstrainCores: constrain_cores: bool = false, kinds::YES_NO, jobs(most);
        /// How many CPUs more than its grant a job gets in Slurm's own cgroups on v2.
        /// Slurm's step daemons live in the cgroup of the job there.
        HeadroomCPUs: headroom_cpus: Cpus = Cpus::whole(1), kinds::HEADROOM, jobs(least);
        /// Whether programs are told how many threads have CPU time, under Slurm and Grid Engine.
        // `least`: this is no limit, and a program is told nothing unless the site has certainly asked for it.
        ThreadHints: thread_hints: bool = false, kinds::YES_NO, jobs(least);
        /// Whether memory is limited.
        ConstrainRAMSpace: constrain_ram_space: bool = true, kinds::YES_NO, jobs(most);
        /// The memory limit of the job and of the step, in percent of the memory granted to each.
        /// It is rounded down to whole pages.
        /// A step gets at most what its job has.
        AllowedRAMSpace: allowed_ram_space: Percent = Percent::HUNDRED, percent!(1 to 10000), jobs(least);
        /// So far a job's memory limit may grow while the job needs it, in percent of the limit: see MemoryPool.
        // `least`: nothing is lent to a job unless the site has certainly asked for it.
        ElasticRAMPercent: elastic_ram: Percent = Percent::HUNDRED, percent!(100 to 1000), jobs(least);
        /// So much memory of the node `jobfence hold` lends at most to jobs that need more than their limit.
        MemoryPool: memory_pool: Option<MemoryShare> = None, kinds::MEMORY_SHARE, node;
        /// So much of the node's memory is never lent: it is for the system, beside what jobs reserved.
        MemoryPoolReserve: memory_pool_reserve: Option<MemoryShare> =
            Some(MemoryShare::Percent(Percent::from_hundredths(500))), kinds::MEMORY_SHARE, node;
        /// So much of what jobs have reserved and not touched for five minutes is lent to jobs with Scavenger, too.
        /// If the node then runs short of memory, such a job is ended: the one that uses most of what it was lent.
        MemoryPoolUnused: memory_pool_unused: Percent = Percent::ZERO, percent!(0 to 100), node;
        /// What becomes of a job with Scavenger that is ended for what it was lent.
        // `true`: it is requeued. `least`: no job runs again unless the site has certainly asked for it.
        ScavengerEnd: scavenger_end: bool = false, kinds::SCAVENGER_END, jobs(least);
        /// If the scheduler grants no memory to a job, its memory is limited as if so much had been granted.
        /// A scheduler may grant none because the job did not ask for any, or because the scheduler does not manage memory.
        DefaultRAMSpace: default_ram_space: Option<u64> = None, kinds::OPTIONAL_SIZE, jobs(least_limit);
        /// Under HTCondor: the memory of the starter and of what it runs for itself, such as the transfer of files.
        /// The job has the memory of the slot beside it.
        /// If the sandboxes of jobs are in a tmpfs, jobfence adds the size of the tmpfs.
        StarterMemory: starter_memory: u64 = 1 << 30, kinds::SIZE, jobs(least);
        /// No limit by a grant of memory is lower than this.
        MinRAMSpace: min_ram_space: u64 = 30 << 20, kinds::SIZE, jobs(least);
        /// Whether swap is limited.
        ConstrainSwapSpace: constrain_swap_space: SwapSpace = SwapSpace::Auto, kinds::SWAP_SPACE, jobs(most);
        /// The swap beside the memory, in percent of the granted memory, rounded down to whole pages.
        AllowedSwapSpace: allowed_swap_space: Percent = Percent::ZERO, percent!(0 to 10000), jobs(least);
        /// The memory of all jobs of a user on the node together.
        MaxRAMPerUser: max_ram_per_user: Option<u64> = None, kinds::OPTIONAL_SIZE, jobs(least_limit);
        /// The memory of each task.
        MaxRAMPerTask: max_ram_per_task: Option<u64> = None, kinds::OPTIONAL_SIZE, jobs(least_limit);
        /// Above this percentage of each memory limit, the kernel reclaims memory and slows the processes down.
        /// It takes page cache first, so a job that reads large files goes on without meeting its limit.
        MemoryHighPercent: memory_high: Option<Percent> = None, kinds::OPTIONAL_PERCENT, jobs(least_limit);
        /// How much of the granted memory the kernel reclaims only if there is no other memory to reclaim.
        MemoryLowPercent: memory_low: Percent = Percent::ZERO, percent!(0 to 100), jobs(least);
        /// How much of the granted memory the kernel never reclaims.
        /// It kills other processes first.
        MemoryMinPercent: memory_min: Percent = Percent::ZERO, percent!(0 to 100), jobs(least);
        /// Whether the kernel kills all processes of a step on this node when it must kill one because memory is short.
        OOMKillStep: oom_kill_step: bool = false, kinds::YES_NO, jobs(most);
    }
    after numbers: {
        /// How fast a job may read and write on the node, and each of its steps.
        /// A process that wants more waits.
        /// Nothing fails, and no process is killed.
        IOMax: io_max: IoRules = IoRules::default(), kinds::IO_RULES, jobs(strictness::io_rules);
        /// How fast all jobs of a user on the node may read and write, together.
        IOMaxPerUser: io_max_per_user: IoRules = IoRules::default(), kinds::IO_RULES, jobs(strictness::io_rules);
        /// How fast each task may read and write.
        IOMaxPerTask: io_max_per_task: IoRules = IoRules::default(), kinds::IO_RULES, jobs(strictness::io_rules);
        /// The share that a job gets of a busy disk, in proportion to other jobs.
        /// A user's share is the sum of the user's jobs.
        IOWeight: io_weight: Option<u64> = None, kinds::IO_WEIGHT, jobs(strictness::io_weight);
        /// Whether a job is limited to the huge pages that it was granted.
        /// With `yes`, a job has at most as many of a size as it was granted.
        /// With `closed`, it also has none of a size of which it was granted nothing.
        /// `MaxHugePages` holds beside that, and the lower limit counts.
        ConstrainHugePages: constrain_huge_pages: GrantedHugePages = GrantedHugePages::NotCounted,
            kinds::GRANTED_HUGE_PAGES, jobs(most);
        /// How much memory a job on the node may have in huge pages, and each of its steps.
        /// Each limit is rounded down to whole pages.
        /// Without `*:0`, sizes that are not named are not limited.
        /// A size that the host does not have is an error of the limit `hugepages`.
        MaxHugePages: max_huge_pages: HugePages = HugePages::default(), kinds::HUGE_PAGES, jobs(strictness::huge_pages);
        /// How much memory all jobs of a user on the node may have in huge pages, together.
        MaxHugePagesPerUser: max_huge_pages_per_user: HugePages = HugePages::default(),
            kinds::HUGE_PAGES, jobs(strictness::huge_pages);
        /// How much memory each task may have in huge pages.
        MaxHugePagesPerTask: max_huge_pages_per_task: HugePages = HugePages::default(),
            kinds::HUGE_PAGES, jobs(strictness::huge_pages);
        /// How fast a job may send from the node: all that leaves by its sockets, on all interfaces together, except the loopback.
        /// What the job receives is not limited.
        NetworkMax: network_max: Option<u64> = None, kinds::NETWORK_RATE, jobs(least_limit);
        /// How much of each L3 cache a job may fill on the node, in percent of its ways, rounded up to whole ways.
        CacheShare: cache_share: Option<Percent> = None, kinds::OPTIONAL_PERCENT, jobs(least_limit);
        /// How much of the memory bandwidth a job may use on the node, in percent, rounded up to a step of the CPU.
        MemoryBandwidthPercent: memory_bandwidth: Option<Percent> = None,
            kinds::OPTIONAL_PERCENT, jobs(least_limit);
        /// Which devices a step may not use.
        ConstrainDevices: constrain_devices: DeniedDevices = DeniedDevices::None, kinds::DENIED_DEVICES, jobs(most);
        /// What a step may use in addition with `ConstrainDevices=closed`, in the words of `systemd.resource-control`(5).
        // `first`: a device is allowed only if every candidate allows it, which no value of this key or the next can say.
        DeviceAllow: device_allow: Vec<DeviceRule> = Vec::new(), kinds::DEVICE_RULES, jobs(first);
        /// How the devices of this node's GPUs are called.
        GPUDevice: gpu_device: Option<GpuDevice> = None, kinds::GPU_DEVICE, jobs(first);
        /// Whether a step's user may divide the step's cgroup: make cgroups in it, and limit CPU time, memory and processes there.
        /// With `request`, the user may if the job asks for it by `--delegate`.
        /// With `containers`, only Docker may, for what the step's processes run by jobfence's link to its client.
        /// The limits of the step, the job and the user stay above, and the user cannot reach them.
        /// This needs cgroup v2.
        // `least`: nothing is given to a user unless the site has certainly said so.
        Delegate: delegate: Delegation = Delegation::No, kinds::DELEGATION, jobs(least);
        /// The directories of which each job has its own: empty at its start, and removed at its end.
        // More are stricter.
        PrivateTmp: private_tmp: Vec<PathBuf> = Vec::new(), kinds::PRIVATE_PATHS, jobs(private_paths::all);
        /// The directory below which jobs' own directories are on disk.
        /// `none`: they are in a tmpfs, within the memory limit of the job.
        PrivateTmpBase: private_tmp_base: Option<PathBuf> = None, kinds::PATH_OR_NONE, node;
        /// How much space a job has in its own directories.
        PrivateTmpSpace: private_tmp_space: Option<u64> = None, kinds::OPTIONAL_SIZE, jobs(least_limit);
        /// What of the host's stays visible in a job's own directories.
        PrivateTmpShare: private_tmp_share: Vec<PathBuf> = Vec::new(), kinds::PRIVATE_SHARES, jobs(private_paths::common);
        /// Whether each step has shared memory and semaphores of System V, and message queues, of its own.
        /// They go when the step ends.
        PrivateIPC: private_ipc: bool = false, kinds::YES_NO, jobs(most);
        /// Whether a job sees in `/proc` only those processes that it may trace: those of its user.
        /// This needs Linux 5.8.
        HideProcesses: hide_processes: bool = false, kinds::YES_NO, jobs(most);
        /// Whether a job's processes neither see, signal nor trace others of its user by number: they have a PID namespace of their own.
        /// This needs Linux 5.2, and works with `jobfence run`. Under each scheduler, jobs with it are refused.
        PrivatePIDs: private_pids: bool = false, kinds::YES_NO, jobs(most);
    }
}

/// All keys, in the order of jobfence.conf(5).
pub static KEYS: &[Key] = {
    const ALL: usize = BEFORE_NUMBERS.len() + OF_NUMBERS.len() + AFTER_NUMBERS.len();
    &joined::<Key, ALL>([BEFORE_NUMBERS, &OF_NUMBERS, AFTER_NUMBERS])
};

/// The keys of [`NUMBERS`].
const OF_NUMBERS: [Key; 3 * NUMBERS.len()] = {
    let mut keys = [FILE_ARGUMENT; 3 * NUMBERS.len()];
    let mut at = 0;
    while at < keys.len() {
        let Number { keys: names, expects, .. } = NUMBERS[at / 3].1;
        keys[at] = Key { name: names[at % 3], expects, is_per_job: true, act: with_number };
        at += 1;
    }
    keys
};

/// The limit that a key sets, its row of [`NUMBERS`], and the key's place in that row.
fn number_of(key: &Key) -> Option<(Limit, &'static Number, usize)> {
    NUMBERS
        .iter()
        .find_map(|(limit, number)| Some((*limit, number, number.keys.iter().position(|name| *name == key.name)?)))
}

fn numbers(config: &Config, level: usize) -> &LimitNumbers {
    match level {
        1 => &config.numbers_per_user,
        2 => &config.numbers_per_task,
        _ => &config.numbers,
    }
}

fn numbers_mut(config: &mut Config, level: usize) -> &mut LimitNumbers {
    match level {
        1 => &mut config.numbers_per_user,
        2 => &mut config.numbers_per_task,
        _ => &mut config.numbers,
    }
}

fn with_number(key: &Key, deed: Deed<'_>) -> Result<Option<String>, Wrong> {
    let (limit, number, level) = number_of(key).ok_or(Wrong::Form)?;
    match deed {
        Deed::Set(config, text) => numbers_mut(config, level).set(limit, or_unlimited(text, number.read)?),
        Deed::Get(config) => {
            return Ok(Some(text_or_unlimited(numbers(config, level).get(limit).map(number.text))));
        }
        Deed::TakeStricter(config, other) => {
            let most = LimitNumbers::with(limit, numbers(other, level).get(limit));
            let lower = numbers(config, level).at_most(&most);
            *numbers_mut(config, level) = lower;
        }
    }
    Ok(None)
}

impl Config {
    /// Takes the values that are stricter in `other`; returns their keys.
    pub(super) fn take_stricter(&mut self, other: &Self) -> Vec<&'static str> {
        let mut taken = Vec::new();
        for key in KEYS {
            let before = key.get(self);
            if key.is_per_job {
                let _ = (key.act)(key, Deed::TakeStricter(self, other));
            }
            if key.get(self) != before {
                taken.push(key.name);
            }
        }
        taken
    }
}

/// The whole configuration as a file that `parse` reads back as the same.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in KEYS {
            match key.get(self) {
                Some(value) if value.contains([' ', '#']) => writeln!(f, "{}=\"{value}\"", key.name)?,
                Some(value) => writeln!(f, "{}={value}", key.name)?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::load::parse;
    use super::*;

    #[test]
    fn every_default_can_be_set_and_is_the_default() {
        for key in KEYS {
            let mut config = Config::default();
            if let Some(value) = key.default_value() {
                assert_eq!(key.set(&mut config, &value), Ok(()), "{}", key.name);
            }
            assert_eq!(config, Config::default(), "{}", key.name);
            let wrong = key.set(&mut config, "%");
            assert!(matches!(wrong, Err(Wrong::Form | Wrong::Because(_))), "{}: {wrong:?}", key.name);
        }
        let unset: Vec<_> = KEYS.iter().filter(|key| key.default_value().is_none()).map(|key| key.name).collect();
        assert_eq!(unset, ["CgroupBase", "IOWeight"]);
        assert_eq!(parse("f", b""), Ok(Config::default()));
    }

    /// A key is for the node only if its value need not differ from job to job. This list decides that a second time.
    #[test]
    fn the_keys_of_the_node_are_these() {
        let of_the_node: Vec<&str> = KEYS.iter().filter(|key| !key.is_per_job()).map(|key| key.name).collect();
        let expected = "CgroupMountpoint CgroupBase RunDir CleanupTimeout ReapInterval ReapSchedulerLeftovers EarlyMoves \
                        TrustAccount UsageLog UsageLogSize UsageLogAge UserReports StoreUsage SampleInterval GPUAccounting \
                        NetworkAccounting CarbonIntensity MetricsFile \
                        StraysGrace StraysMinUID StraysAllow LoginLimits LoginWindow MemoryPool MemoryPoolReserve \
                        MemoryPoolUnused CPUsPerSlot SlotMemory SlotGPUs PrivateTmpBase";
        let sorted = |names: Vec<&str>| BTreeSet::from_iter(names.into_iter().map(str::to_owned));
        assert_eq!(sorted(of_the_node), sorted(expected.split(' ').collect()));
    }

    #[test]
    fn every_key_is_there_once_and_sets_the_field_of_its_name() {
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name.to_lowercase()).collect();
        assert_eq!(names.len(), KEYS.len());
        for (name, field, _) in MEANINGS {
            let rest = name.to_lowercase().strip_prefix(&field.replace('_', "")).map(str::to_owned);
            assert!(matches!(rest.as_deref(), Some("" | "percent")), "{name} is no name for {field}");
        }
    }

    proptest! {
        #[test]
        fn a_configuration_printed_is_read_as_the_same(config in any_config()) {
            prop_assert_eq!(parse("f", config.to_string().as_bytes()), Ok(config));
        }

        #[test]
        fn a_key_sets_its_own_value_and_no_other(one in any_config(), other in any_config()) {
            for key in KEYS {
                let mut config = one.clone();
                let Some((ours, theirs)) = key.get(&one).zip(key.get(&other)) else { continue };
                prop_assert_eq!(key.set(&mut config, &theirs), Ok(()));
                prop_assert_eq!(key.get(&config), Some(theirs), "{}", key.name);
                prop_assert_eq!(key.set(&mut config, &ours), Ok(()));
                prop_assert_eq!(&config, &one, "{}", key.name);
            }
        }
    }
}
