// SPDX-License-Identifier: GPL-2.0-or-later
//! The table of keys: the one place where a key's name, its values and its setting meet.

use std::fmt;
use std::time::Duration;

use super::limits::{LIMITS, Limit, LimitNumbers, NUMBERS, Number, ON_ERROR_EXPECTS, joined};
use super::slot_request;
use super::units::{
    DAY, NONE, SIZE, SIZE_OR_UNLIMITED, UNLIMITED, Wrong, base, cpus, days, device_rules, device_rules_text,
    gpu_device, io_rules, keyword, keyword_of, or_unlimited, path, path_or_none, percent, period, seconds, size,
    text_or_unlimited, weight,
};
use super::values::{
    Config, CpuPolicy, DeniedDevices, GrantedHugePages, Mode, OnError, OnErrors, StoreUsage, SwapSpace, TaskCpus,
    UsageCard,
};
use crate::bytes;
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::IoRules;
use crate::job::Cpus;

/// One key of jobfence.conf(5).
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// As it is documented; any case is accepted.
    pub name: &'static str,
    /// What its value must be, with unit and range; completes "expected ...".
    pub expects: &'static str,
    /// It is passed its own row, since the keys of all numbers share one function.
    set: fn(&Self, &mut Config, &str) -> Result<(), Wrong>,
    get: fn(&Self, &Config) -> Option<String>,
}

impl Key {
    /// Reads a value into the configuration, which stays as it was if the value is wrong.
    pub fn set(&self, config: &mut Config, value: &str) -> Result<(), Wrong> {
        (self.set)(self, config, value)
    }

    /// The value in a form that `set` accepts; `None` if the key is not set.
    pub fn get(&self, config: &Config) -> Option<String> {
        (self.get)(self, config)
    }

    /// Whether it sets one of [`NUMBERS`].
    pub(super) fn is_number(&self) -> bool {
        number_of(self).is_some()
    }

    /// Lowers a number to the other's, if that is lower.
    pub(super) fn lower_number(&self, config: &mut Config, other: &Config) {
        if let Some((limit, _, level)) = number_of(self) {
            let most = LimitNumbers::of(limit, numbers(other, level).get(limit));
            let lower = numbers(config, level).at_most(&most);
            *numbers_mut(config, level) = lower;
        }
    }

    /// The value that is used when the key is absent; `None` if it depends on the host.
    pub fn default_value(&self) -> Option<String> {
        self.get(&Config::default())
    }
}

const YES_NO: &str = "yes or no";
const HUGE_PAGES: &str = "for each size of pages (a power of two with the unit K, M, G or T) at most once how much memory may be in \
                          them (a whole number of MiB, or with the unit K, M, G or T), as 2M:4G,1G:0, at the end *:0 for all others, or \
                          unlimited";
const SLOT_REQUESTS: &str = "names of requests with commas between them, each at most once, and with :slot, :host or :job behind it if need be, or none";
const PATH_OR_NONE: &str = "an absolute path without \"..\", double quotes or control characters, or none";
const ABSOLUTE_PATH: &str = "an absolute path without \"..\", double quotes or control characters";

/// The argument that names the file; it cannot stand in the file, and only the reader of arguments knows it.
pub(super) const FILE_ARGUMENT: Key =
    Key { name: "config", expects: ABSOLUTE_PATH, set: |_, _, text| path(text).map(drop), get: |_, _| None };

/// Every key there is, in the order of jobfence.conf(5).
pub static KEYS: &[Key] = {
    const ALL: usize = BEFORE_NUMBERS.len() + OF_NUMBERS.len() + AFTER_NUMBERS.len();
    &joined::<Key, ALL>([BEFORE_NUMBERS, &OF_NUMBERS, AFTER_NUMBERS])
};

/// The keys of [`NUMBERS`].
const OF_NUMBERS: [Key; 3 * NUMBERS.len()] = {
    let mut keys = [FILE_ARGUMENT; 3 * NUMBERS.len()];
    let mut at = 0;
    while at < keys.len() {
        let number = &NUMBERS[at / 3].1;
        keys[at] = Key { name: number.keys[at % 3], expects: number.expects, set: set_number, get: number_text };
        at += 1;
    }
    keys
};

/// The keys before those of [`NUMBERS`].
const BEFORE_NUMBERS: &[Key] = &[
    Key {
        name: "Mode",
        expects: "enforce, observe or off",
        set: |_, config, text| keyword(text, MODES).map(|mode| config.mode = mode),
        get: |_, config| Some(keyword_of(config.mode, MODES).to_owned()),
    },
    Key {
        name: "OnError",
        expects: ON_ERROR_EXPECTS,
        set: |_, config, text| on_errors(text).map(|on_error| config.on_error = on_error),
        get: |_, config| Some(on_errors_text(config.on_error)),
    },
    Key {
        name: "CgroupMountpoint",
        expects: ABSOLUTE_PATH,
        set: |_, config, text| path(text).map(|path| config.cgroup_mountpoint = path),
        get: |_, config| Some(config.cgroup_mountpoint.display().to_string()),
    },
    Key {
        name: "CgroupBase",
        expects: "one to four names of A-Z a-z 0-9 _ . - that begin with no dot, separated by \"/\", \
                  each of at most 255 characters",
        set: |_, config, text| base(text).map(|base| config.cgroup_base = Some(base)),
        get: |_, config| config.cgroup_base.clone(),
    },
    Key {
        name: "RunDir",
        expects: ABSOLUTE_PATH,
        set: |_, config, text| path(text).map(|path| config.run_dir = path),
        get: |_, config| Some(config.run_dir.display().to_string()),
    },
    Key {
        name: "CleanupTimeout",
        expects: "a whole number of seconds from 1 to 600",
        set: |_, config, text| seconds(text, 1..=600).map(|timeout| config.cleanup_timeout = timeout),
        get: |_, config| Some(config.cleanup_timeout.as_secs().to_string()),
    },
    Key {
        name: "ReapInterval",
        expects: INTERVAL,
        set: |_, config, text| interval(text).map(|interval| config.reap_interval = interval),
        get: |_, config| Some(interval_text(config.reap_interval)),
    },
    Key {
        name: "ReapSchedulerLeftovers",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.reap_scheduler_leftovers = yes),
        get: |_, config| Some(keyword_of(config.reap_scheduler_leftovers, BOOLEANS).to_owned()),
    },
    Key {
        name: "EarlyMoves",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.early_moves = yes),
        get: |_, config| Some(keyword_of(config.early_moves, BOOLEANS).to_owned()),
    },
    Key {
        name: "TrustAccount",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.trust_account = yes),
        get: |_, config| Some(keyword_of(config.trust_account, BOOLEANS).to_owned()),
    },
    Key {
        name: "UsageLog",
        expects: PATH_OR_NONE,
        set: |_, config, text| path_or_none(text).map(|path| config.usage_log = path),
        get: |_, config| {
            Some(config.usage_log.as_ref().map_or_else(|| NONE.to_owned(), |path| path.display().to_string()))
        },
    },
    Key {
        name: "UsageLogSize",
        expects: SIZE,
        set: |_, config, text| size(text).map(|size| config.usage_log_size = size),
        get: |_, config| Some(bytes::text(config.usage_log_size)),
    },
    Key {
        name: "UsageLogAge",
        expects: "a whole number of days from 1 to 3650",
        set: |_, config, text| days(text, 1..=3650).map(|age| config.usage_log_age = age),
        get: |_, config| Some((config.usage_log_age.as_secs() / DAY).to_string()),
    },
    Key {
        name: "UsageCard",
        expects: USAGE_CARD_EXPECTS,
        set: |_, config, text| usage_card(text).map(|card| config.usage_card = card),
        get: |_, config| Some(usage_card_text(config.usage_card).to_owned()),
    },
    Key {
        name: "StoreUsage",
        expects: "none or admincomment",
        set: |_, config, text| keyword(text, STORES).map(|store| config.store_usage = store),
        get: |_, config| Some(keyword_of(config.store_usage, STORES).to_owned()),
    },
    Key {
        name: "SampleInterval",
        expects: INTERVAL,
        set: |_, config, text| interval(text).map(|interval| config.sample_interval = interval),
        get: |_, config| Some(interval_text(config.sample_interval)),
    },
    Key {
        name: "MetricsFile",
        expects: PATH_OR_NONE,
        set: |_, config, text| path_or_none(text).map(|path| config.metrics_file = path),
        get: |_, config| {
            Some(config.metrics_file.as_ref().map_or_else(|| NONE.to_owned(), |path| path.display().to_string()))
        },
    },
    Key {
        name: "ConstrainCPUQuota",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.constrain_cpu_quota = yes),
        get: |_, config| Some(keyword_of(config.constrain_cpu_quota, BOOLEANS).to_owned()),
    },
    Key {
        name: "CPUQuotaPercent",
        expects: "a percentage from 1 to 1000 with at most two decimals",
        set: |_, config, text| percent(text, 1..=1000).map(|percent| config.cpu_quota_percent = percent),
        get: |_, config| Some(config.cpu_quota_percent.to_string()),
    },
    Key {
        name: "ZeroCPUs",
        expects: "a number of CPUs from 0.001 to 1024 with at most three decimals",
        set: |_, config, text| some_cpus(text).map(|cpus| config.zero_cpus = cpus),
        get: |_, config| Some(config.zero_cpus.to_string()),
    },
    Key {
        name: "CPUsPerSlot",
        expects: "a number of CPUs from 0.001 to 1024 with at most three decimals",
        set: |_, config, text| some_cpus(text).map(|cpus| config.cpus_per_slot = cpus),
        get: |_, config| Some(config.cpus_per_slot.to_string()),
    },
    Key {
        name: "SlotCPUs",
        expects: SLOT_REQUESTS,
        set: |_, config, text| slot_request::read(text).map(|all| config.slot_cpus = all),
        get: |_, config| Some(slot_request::text(&config.slot_cpus)),
    },
    Key {
        name: "SlotMemory",
        expects: SLOT_REQUESTS,
        set: |_, config, text| slot_request::read(text).map(|all| config.slot_memory = all),
        get: |_, config| Some(slot_request::text(&config.slot_memory)),
    },
    Key {
        name: "SlotGPUs",
        expects: SLOT_REQUESTS,
        set: |_, config, text| slot_request::read(text).map(|all| config.slot_gpus = all),
        get: |_, config| Some(slot_request::text(&config.slot_gpus)),
    },
    Key {
        name: "CPUQuotaPeriod",
        expects: "a whole number of microseconds, or with the unit us, ms or s, from 1ms to 1s",
        set: |_, config, text| period(text).map(|period| config.cpu_quota_period = period),
        get: |_, config| Some(config.cpu_quota_period.to_string()),
    },
    Key {
        name: "CPUBurst",
        expects: "a percentage from 0 to 100 with at most two decimals",
        set: |_, config, text| percent(text, 0..=100).map(|percent| config.cpu_burst = percent),
        get: |_, config| Some(config.cpu_burst.to_string()),
    },
    Key {
        name: "CPUPolicy",
        expects: "quota, weight or both",
        set: |_, config, text| keyword(text, CPU_POLICIES).map(|policy| config.cpu_policy = policy),
        get: |_, config| Some(keyword_of(config.cpu_policy, CPU_POLICIES).to_owned()),
    },
    Key {
        name: "Scavenger",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.scavenger = yes),
        get: |_, config| Some(keyword_of(config.scavenger, BOOLEANS).to_owned()),
    },
    Key {
        name: "MaxCPUsPerUser",
        expects: "a number of CPUs from 0.001 to 1024 with at most three decimals, or unlimited",
        set: |_, config, text| or_unlimited(text, some_cpus).map(|cpus| config.max_cpus_per_user = cpus),
        get: |_, config| Some(text_or_unlimited(config.max_cpus_per_user)),
    },
    Key {
        name: "MaxCPUsPerTask",
        expects: "a number of CPUs from 0.001 to 1024 with at most three decimals, granted or unlimited",
        set: |_, config, text| task_cpus(text).map(|cpus| config.max_cpus_per_task = cpus),
        get: |_, config| Some(task_cpus_text(config.max_cpus_per_task)),
    },
    Key {
        name: "ConstrainCores",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.constrain_cores = yes),
        get: |_, config| Some(keyword_of(config.constrain_cores, BOOLEANS).to_owned()),
    },
    Key {
        name: "HeadroomCPUs",
        expects: "a number of CPUs from 0 to 1024 with at most three decimals",
        set: |_, config, text| cpus(text).map(|cpus| config.headroom_cpus = cpus),
        get: |_, config| Some(config.headroom_cpus.to_string()),
    },
    Key {
        name: "ThreadHints",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.thread_hints = yes),
        get: |_, config| Some(keyword_of(config.thread_hints, BOOLEANS).to_owned()),
    },
    Key {
        name: "ConstrainRAMSpace",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.constrain_ram_space = yes),
        get: |_, config| Some(keyword_of(config.constrain_ram_space, BOOLEANS).to_owned()),
    },
    Key {
        name: "AllowedRAMSpace",
        expects: "a percentage from 1 to 10000 with at most two decimals",
        set: |_, config, text| percent(text, 1..=10_000).map(|percent| config.allowed_ram_space = percent),
        get: |_, config| Some(config.allowed_ram_space.to_string()),
    },
    Key {
        name: "DefaultRAMSpace",
        expects: SIZE_OR_UNLIMITED,
        set: |_, config, text| or_unlimited(text, size).map(|bytes| config.default_ram_space = bytes),
        get: |_, config| Some(text_or_unlimited(config.default_ram_space.map(bytes::text))),
    },
    Key {
        name: "StarterMemory",
        expects: SIZE,
        set: |_, config, text| size(text).map(|bytes| config.starter_memory = bytes),
        get: |_, config| Some(bytes::text(config.starter_memory)),
    },
    Key {
        name: "MinRAMSpace",
        expects: SIZE,
        set: |_, config, text| size(text).map(|bytes| config.min_ram_space = bytes),
        get: |_, config| Some(bytes::text(config.min_ram_space)),
    },
    Key {
        name: "ConstrainSwapSpace",
        expects: "yes, no or auto",
        set: |_, config, text| swap_space(text).map(|swap| config.constrain_swap_space = swap),
        get: |_, config| Some(swap_space_text(config.constrain_swap_space).to_owned()),
    },
    Key {
        name: "AllowedSwapSpace",
        expects: "a percentage from 0 to 10000 with at most two decimals",
        set: |_, config, text| percent(text, 0..=10_000).map(|percent| config.allowed_swap_space = percent),
        get: |_, config| Some(config.allowed_swap_space.to_string()),
    },
    Key {
        name: "MaxRAMPerUser",
        expects: SIZE_OR_UNLIMITED,
        set: |_, config, text| or_unlimited(text, size).map(|bytes| config.max_ram_per_user = bytes),
        get: |_, config| Some(text_or_unlimited(config.max_ram_per_user.map(bytes::text))),
    },
    Key {
        name: "MaxRAMPerTask",
        expects: SIZE_OR_UNLIMITED,
        set: |_, config, text| or_unlimited(text, size).map(|bytes| config.max_ram_per_task = bytes),
        get: |_, config| Some(text_or_unlimited(config.max_ram_per_task.map(bytes::text))),
    },
    Key {
        name: "MemoryHighPercent",
        expects: "a percentage from 1 to 100 with at most two decimals, or unlimited",
        set: |_, config, text| {
            or_unlimited(text, |text| percent(text, 1..=100)).map(|percent| config.memory_high = percent)
        },
        get: |_, config| Some(text_or_unlimited(config.memory_high)),
    },
    Key {
        name: "MemoryLowPercent",
        expects: "a percentage from 0 to 100 with at most two decimals",
        set: |_, config, text| percent(text, 0..=100).map(|percent| config.memory_low = percent),
        get: |_, config| Some(config.memory_low.to_string()),
    },
    Key {
        name: "MemoryMinPercent",
        expects: "a percentage from 0 to 100 with at most two decimals",
        set: |_, config, text| percent(text, 0..=100).map(|percent| config.memory_min = percent),
        get: |_, config| Some(config.memory_min.to_string()),
    },
    Key {
        name: "OOMKillStep",
        expects: YES_NO,
        set: |_, config, text| keyword(text, BOOLEANS).map(|yes| config.oom_kill_step = yes),
        get: |_, config| Some(keyword_of(config.oom_kill_step, BOOLEANS).to_owned()),
    },
];

/// The keys after those of [`NUMBERS`].
const AFTER_NUMBERS: &[Key] = &[
    Key {
        name: "IOMax",
        expects: IoRules::EXPECTS,
        set: |_, config, text| io_rules(text).map(|rules| config.io_max = rules),
        get: |_, config| Some(config.io_max.to_string()),
    },
    Key {
        name: "IOMaxPerUser",
        expects: IoRules::EXPECTS,
        set: |_, config, text| io_rules(text).map(|rules| config.io_max_per_user = rules),
        get: |_, config| Some(config.io_max_per_user.to_string()),
    },
    Key {
        name: "IOMaxPerTask",
        expects: IoRules::EXPECTS,
        set: |_, config, text| io_rules(text).map(|rules| config.io_max_per_task = rules),
        get: |_, config| Some(config.io_max_per_task.to_string()),
    },
    Key {
        name: "IOWeight",
        expects: "a whole number from 1 to 10000",
        set: |_, config, text| weight(text).map(|weight| config.io_weight = Some(weight)),
        get: |_, config| config.io_weight.map(|weight| weight.to_string()),
    },
    Key {
        name: "ConstrainHugePages",
        expects: "yes, no or closed",
        set: |_, config, text| granted_huge_pages(text).map(|granted| config.constrain_huge_pages = granted),
        get: |_, config| Some(granted_huge_pages_text(config.constrain_huge_pages).to_owned()),
    },
    Key {
        name: "MaxHugePages",
        expects: HUGE_PAGES,
        set: |_, config, text| huge_pages(text).map(|pages| config.max_huge_pages = pages),
        get: |_, config| Some(huge_pages_text(&config.max_huge_pages)),
    },
    Key {
        name: "MaxHugePagesPerUser",
        expects: HUGE_PAGES,
        set: |_, config, text| huge_pages(text).map(|pages| config.max_huge_pages_per_user = pages),
        get: |_, config| Some(huge_pages_text(&config.max_huge_pages_per_user)),
    },
    Key {
        name: "MaxHugePagesPerTask",
        expects: HUGE_PAGES,
        set: |_, config, text| huge_pages(text).map(|pages| config.max_huge_pages_per_task = pages),
        get: |_, config| Some(huge_pages_text(&config.max_huge_pages_per_task)),
    },
    Key {
        name: "ConstrainDevices",
        expects: "yes, no or closed",
        set: |_, config, text| denied_devices(text).map(|denied| config.constrain_devices = denied),
        get: |_, config| Some(denied_devices_text(config.constrain_devices).to_owned()),
    },
    Key {
        name: "DeviceAllow",
        expects: "none, or rules with commas between them, each a device's path, char-NAME or block-NAME, and then perhaps its access \
                  of the letters r, w and m, as \"/dev/fuse rw,char-pts rw\"",
        set: |_, config, text| device_rules(text).map(|rules| config.device_allow = rules),
        get: |_, config| Some(device_rules_text(&config.device_allow)),
    },
    Key {
        name: "GPUDevice",
        expects: "none, or an absolute path with one %d in its last part, as /dev/nvidia%d, or with the numbers in Slurm's order, as \
                  /dev/nvidia[2-3]",
        set: |_, config, text| gpu_device(text).map(|device| config.gpu_device = device),
        get: |_, config| Some(config.gpu_device.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string)),
    },
];

const MODES: &[(&str, Mode)] = &[("enforce", Mode::Enforce), ("observe", Mode::Observe), ("off", Mode::Off)];
const ON_ERROR: &[(&str, OnError)] = &[("fail", OnError::Fail), ("warn", OnError::Warn)];
const STORES: &[(&str, StoreUsage)] = &[("none", StoreUsage::None), ("admincomment", StoreUsage::AdminComment)];
const CPU_POLICIES: &[(&str, CpuPolicy)] =
    &[("quota", CpuPolicy::Quota), ("weight", CpuPolicy::Weight), ("both", CpuPolicy::Both)];

const USAGE_CARDS: &[(&str, UsageCard)] = &[
    ("never", UsageCard::Never),
    ("failed", UsageCard::Failed),
    ("wasteful", UsageCard::Wasteful),
    ("always", UsageCard::Always),
];

/// What `UsageCard` and the option of that name can be.
pub const USAGE_CARD_EXPECTS: &str = "never, failed, wasteful or always";

/// Reads a value of `UsageCard`.
pub fn usage_card(text: &str) -> Result<UsageCard, Wrong> {
    keyword(text, USAGE_CARDS)
}

/// The word for a value of `UsageCard`.
pub fn usage_card_text(card: UsageCard) -> &'static str {
    keyword_of(card, USAGE_CARDS)
}

/// The words that Slurm's own parser takes for a boolean (`s_p_handle_boolean`).
const BOOLEANS: &[(&str, bool)] = &[
    ("yes", true),
    ("no", false),
    ("up", true),
    ("down", false),
    ("true", true),
    ("false", false),
    ("1", true),
    ("0", false),
];

/// The limit that a key sets, its number, and which of its keys this is.
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

fn set_number(key: &Key, config: &mut Config, text: &str) -> Result<(), Wrong> {
    let (limit, number, level) = number_of(key).ok_or(Wrong::Form)?;
    let value = or_unlimited(text, number.read)?;
    numbers_mut(config, level).set(limit, value);
    Ok(())
}

fn number_text(key: &Key, config: &Config) -> Option<String> {
    let (limit, number, level) = number_of(key)?;
    Some(text_or_unlimited(numbers(config, level).get(limit).map(number.text)))
}

const AUTO: &str = "auto";

fn swap_space(text: &str) -> Result<SwapSpace, Wrong> {
    if text.eq_ignore_ascii_case(AUTO) {
        return Ok(SwapSpace::Auto);
    }
    keyword(text, BOOLEANS).map(|yes| if yes { SwapSpace::Yes } else { SwapSpace::No })
}

fn swap_space_text(swap: SwapSpace) -> &'static str {
    match swap {
        SwapSpace::Auto => AUTO,
        SwapSpace::Yes => keyword_of(true, BOOLEANS),
        SwapSpace::No => keyword_of(false, BOOLEANS),
    }
}

/// The word of systemd.resource-control(5) for a list of what is allowed besides what every job may use (`DevicePolicy=`).
const CLOSED: &str = "closed";

fn denied_devices(text: &str) -> Result<DeniedDevices, Wrong> {
    if text.eq_ignore_ascii_case(CLOSED) {
        return Ok(DeniedDevices::AllElse);
    }
    keyword(text, BOOLEANS).map(|yes| if yes { DeniedDevices::OthersGpus } else { DeniedDevices::None })
}

fn granted_huge_pages(text: &str) -> Result<GrantedHugePages, Wrong> {
    denied_devices(text).map(|denied| match denied {
        DeniedDevices::AllElse => GrantedHugePages::NoOthers,
        DeniedDevices::OthersGpus => GrantedHugePages::AtMost,
        DeniedDevices::None => GrantedHugePages::NotCounted,
    })
}

fn granted_huge_pages_text(granted: GrantedHugePages) -> &'static str {
    match granted {
        GrantedHugePages::NoOthers => CLOSED,
        GrantedHugePages::AtMost => keyword_of(true, BOOLEANS),
        GrantedHugePages::NotCounted => keyword_of(false, BOOLEANS),
    }
}

fn denied_devices_text(denied: DeniedDevices) -> &'static str {
    match denied {
        DeniedDevices::AllElse => CLOSED,
        DeniedDevices::OthersGpus => keyword_of(true, BOOLEANS),
        DeniedDevices::None => keyword_of(false, BOOLEANS),
    }
}

const NEVER: &str = "never";

const INTERVAL: &str = "a whole number of seconds from 1 to 86400, or never";

fn interval(text: &str) -> Result<Option<Duration>, Wrong> {
    if text.eq_ignore_ascii_case(NEVER) { Ok(None) } else { seconds(text, 1..=86_400).map(Some) }
}

fn interval_text(interval: Option<Duration>) -> String {
    interval.map_or_else(|| NEVER.to_owned(), |interval| interval.as_secs().to_string())
}

const GRANTED: &str = "granted";

fn task_cpus(text: &str) -> Result<TaskCpus, Wrong> {
    if text.eq_ignore_ascii_case(GRANTED) {
        return Ok(TaskCpus::Granted);
    }
    or_unlimited(text, some_cpus).map(|cpus| cpus.map_or(TaskCpus::Unlimited, TaskCpus::Count))
}

fn task_cpus_text(cpus: TaskCpus) -> String {
    match cpus {
        TaskCpus::Unlimited => UNLIMITED.to_owned(),
        TaskCpus::Granted => GRANTED.to_owned(),
        TaskCpus::Count(cpus) => cpus.to_string(),
    }
}

fn huge_pages(text: &str) -> Result<HugePages, Wrong> {
    or_unlimited(text, |text| HugePages::parse(text).ok_or(Wrong::Form)).map(Option::unwrap_or_default)
}

fn huge_pages_text(pages: &HugePages) -> String {
    text_or_unlimited(Some(pages).filter(|pages| !pages.is_empty()))
}

/// A number of CPUs above zero.
fn some_cpus(text: &str) -> Result<Cpus, Wrong> {
    cpus(text).and_then(|cpus| if cpus.thousandths() == 0 { Err(Wrong::Range) } else { Ok(cpus) })
}

fn on_errors(text: &str) -> Result<OnErrors, Wrong> {
    let mut parts = text.split(',');
    let mut on_errors = OnErrors::all(keyword(parts.next().unwrap_or_default(), ON_ERROR)?);
    let mut seen = Vec::new();
    for part in parts {
        let (limit, on_error) = part.split_once(':').ok_or(Wrong::Form)?;
        let limit = keyword(limit, LIMITS)?;
        if seen.contains(&limit) {
            return Err(Wrong::Form);
        }
        seen.push(limit);
        on_errors = on_errors.with(limit, keyword(on_error, ON_ERROR)?);
    }
    Ok(on_errors)
}

fn on_errors_text(on_errors: OnErrors) -> String {
    let mut text = keyword_of(on_errors.general(), ON_ERROR).to_owned();
    for &(name, limit) in LIMITS {
        let on_error = on_errors.for_limit(limit);
        if on_error != on_errors.general() {
            text.push_str(&format!(",{name}:{}", keyword_of(on_error, ON_ERROR)));
        }
    }
    text
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
    use proptest::prelude::*;

    use super::super::load::parse;
    use super::super::samples::any_config;
    use super::super::units::{Percent, Period};
    use super::*;
    use crate::cgroup::devices;

    #[test]
    fn every_default_can_be_set_and_is_the_default() {
        for key in KEYS {
            let mut config = Config::default();
            if let Some(value) = key.default_value() {
                assert_eq!(key.set(&mut config, &value), Ok(()), "{}", key.name);
            }
            assert_eq!(config, Config::default(), "{}", key.name);
            let wrong = key.set(&mut config, "?");
            assert!(matches!(wrong, Err(Wrong::Form | Wrong::Because(_))), "{}: {wrong:?}", key.name);
        }
        let unset: Vec<_> = KEYS.iter().filter(|key| key.default_value().is_none()).map(|key| key.name).collect();
        assert_eq!(unset, ["CgroupBase", "IOWeight"]);
    }

    #[test]
    fn on_error_has_a_word_for_each_limit_and_says_so() {
        let expects = KEYS.iter().find(|key| key.name == "OnError").unwrap().expects;
        let said = expects.split_once("each of ").unwrap().1.split_once(", as ").unwrap().0;
        assert_eq!(said, LIMITS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
        for (at, (name, limit)) in LIMITS.iter().enumerate() {
            assert_eq!(*limit as usize, at, "{name}");
        }
    }

    #[test]
    fn on_error_can_differ_for_a_limit() {
        let swap = OnErrors::default().with(Limit::Swap, OnError::Warn);
        assert_eq!(on_errors("fail,swap:warn"), Ok(swap));
        assert_eq!(on_errors("FAIL,swap:Warn,cpu:fail"), Ok(swap));
        assert_eq!(on_errors_text(swap), "fail,swap:warn");
        for text in ["", "fail,", ",fail", "swap:warn", "fail,swap", "fail,disk:warn", "fail,swap:", "fail, swap:warn"]
        {
            assert_eq!(on_errors(text), Err(Wrong::Form), "{text:?}");
        }
        assert_eq!(on_errors("fail,swap:warn,swap:warn"), Err(Wrong::Form));
    }

    #[test]
    fn booleans_are_those_of_slurm() {
        let read = |text| keyword(text, BOOLEANS);
        assert!(["yes", "UP", "True", "1"].into_iter().all(|text| read(text) == Ok(true)));
        assert!(["No", "down", "false", "0"].into_iter().all(|text| read(text) == Ok(false)));
        assert!(["y", "n", "on", "off", ""].into_iter().all(|text| read(text) == Err(Wrong::Form)));
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let text = "mode=OBSERVE onerror=warn,ram:fail CgroupMountpoint=/cg CgroupBase=a.slice/b RunDir=\"/run/x y\"\n\
                    CleanupTimeout=30 ReapInterval=Never ReapSchedulerLeftovers=no EarlyMoves=no TrustAccount=yes\n\
                    UsageLog=/l/u UsageLogSize=1G UsageLogAge=7 UsageCard=Wasteful StoreUsage=AdminComment\n\
                    SampleInterval=7 MetricsFile=/m/x.prom\n\
                    ConstrainCPUQuota=no CPUQuotaPercent=150.5 CPUQuotaPeriod=50ms HeadroomCPUs=0.25 ThreadHints=yes\r\n\
                    ConstrainRAMSpace=down AllowedRAMSpace=98.05 MinRAMSpace=1G DefaultRAMSpace=256M StarterMemory=3G ZeroCPUs=0.1 CPUsPerSlot=2 SlotCPUs=threads:host SlotMemory=mem_free:job,h_vmem SlotGPUs=gpu # more\n\
                    ConstrainSwapSpace=0 AllowedSwapSpace=10% MaxProcesses=4096\n\
                    CPUBurst=12.5 CPUPolicy=Both Scavenger=yes MaxCPUsPerUser=1.5 MaxCPUsPerTask=granted\n\
                    MaxRAMPerUser=8G MaxRAMPerTask=64M MemoryHighPercent=90 MemoryLowPercent=5 MemoryMinPercent=1\n\
                    OOMKillStep=yes MaxProcessesPerUser=8192 MaxProcessesPerTask=512\n\
                    IOMax=/a wbps=1M\nIOMaxPerUser=/b riops=5 IOMaxPerTask=/c rbps=2K wiops=6 IOWeight=500\n\
                    ConstrainCores=yes ConstrainHugePages=closed MaxHugePages=2m:4g,1G:0 MaxHugePagesPerUser=2M:8G MaxHugePagesPerTask=2M:1G\n\
                    ConstrainDevices=closed DeviceAllow=\"/dev/fuse rw, char-pts\" GPUDevice=/dev/nvidia%d\n";
        let config = Config {
            mode: Mode::Observe,
            on_error: OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail),
            cgroup_mountpoint: "/cg".into(),
            cgroup_base: Some("a.slice/b".into()),
            run_dir: "/run/x y".into(),
            cleanup_timeout: Duration::from_secs(30),
            reap_interval: None,
            sample_interval: Some(Duration::from_secs(7)),
            reap_scheduler_leftovers: false,
            early_moves: false,
            trust_account: true,
            usage_log: Some("/l/u".into()),
            usage_log_size: 1 << 30,
            usage_log_age: Duration::from_secs(7 * DAY),
            usage_card: UsageCard::Wasteful,
            store_usage: StoreUsage::AdminComment,
            metrics_file: Some("/m/x.prom".into()),
            constrain_cpu_quota: false,
            cpu_quota_percent: Percent::from_hundredths(15050),
            zero_cpus: Cpus::from_thousandths(100),
            cpus_per_slot: Cpus::whole(2),
            slot_cpus: slot_request::read("threads:host").unwrap(),
            slot_memory: slot_request::read("mem_free:job,h_vmem").unwrap(),
            slot_gpus: slot_request::read("gpu").unwrap(),
            cpu_quota_period: Period::from_micros(50_000).unwrap(),
            cpu_burst: Percent::from_hundredths(1250),
            cpu_policy: CpuPolicy::Both,
            scavenger: true,
            max_cpus_per_user: Some(Cpus::from_thousandths(1500)),
            max_cpus_per_task: TaskCpus::Granted,
            headroom_cpus: Cpus::from_thousandths(250),
            thread_hints: true,
            constrain_ram_space: false,
            allowed_ram_space: Percent::from_hundredths(9805),
            default_ram_space: Some(256 << 20),
            starter_memory: 3 << 30,
            min_ram_space: 1 << 30,
            constrain_swap_space: SwapSpace::No,
            allowed_swap_space: Percent::from_hundredths(1000),
            max_ram_per_user: Some(8 << 30),
            max_ram_per_task: Some(64 << 20),
            memory_high: Some(Percent::from_hundredths(9000)),
            memory_low: Percent::from_hundredths(500),
            memory_min: Percent::from_hundredths(100),
            oom_kill_step: true,
            numbers: LimitNumbers::of(Limit::Processes, 4096),
            numbers_per_user: LimitNumbers::of(Limit::Processes, 8192),
            numbers_per_task: LimitNumbers::of(Limit::Processes, 512),
            io_max: IoRules::parse("/a wbps=1M").unwrap(),
            io_max_per_user: IoRules::parse("/b riops=5").unwrap(),
            io_max_per_task: IoRules::parse("/c rbps=2K wiops=6").unwrap(),
            io_weight: Some(500),
            constrain_cores: true,
            constrain_huge_pages: GrantedHugePages::NoOthers,
            max_huge_pages: HugePages::parse("2M:4G,1G:0").unwrap(),
            max_huge_pages_per_user: HugePages::parse("2M:8G").unwrap(),
            max_huge_pages_per_task: HugePages::parse("2M:1G").unwrap(),
            constrain_devices: DeniedDevices::AllElse,
            device_allow: devices::parse("/dev/fuse rw,char-pts").unwrap(),
            gpu_device: devices::GpuDevice::parse("/dev/nvidia%d"),
        };
        assert_eq!(parse("f", text.as_bytes()), Ok(config));
        assert_eq!(parse("f", b""), Ok(Config::default()));
    }

    proptest! {
        #[test]
        fn a_configuration_printed_is_read_as_the_same(config in any_config()) {
            prop_assert_eq!(parse("f", config.to_string().as_bytes()), Ok(config));
        }
    }
}
