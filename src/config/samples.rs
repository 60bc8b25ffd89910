// SPDX-License-Identifier: GPL-2.0-or-later
//! Configurations to test with.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::limits::{Limit, LimitNumbers, NUMBERS, Number};
use super::load::{LoadError, load_or_default, parse};
use super::resolve::Loaded;
use super::slot_request::{PerSlot, SlotRequest};
use super::units::{Percent, Period};
use super::values::{
    Config, CpuPolicy, DeniedDevices, GrantedHugePages, Mode, OnError, OnErrors, StoreUsage, SwapSpace, TaskCpus,
    UsageCard,
};
use crate::cgroup::devices;
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::IoRules;
use crate::job::Cpus;

/// The mistakes in a file of this text, each with its line and column.
pub fn errors_of(text: &str) -> Vec<String> {
    let errors = parse("/etc/slurm/jobfence.conf", text.as_bytes()).err().unwrap_or_default();
    errors.iter().map(|e| e.to_string().replacen("/etc/slurm/jobfence.conf:", "", 1)).collect()
}

/// Loads with these arguments; the default file is in a fresh directory, with this text and mode.
pub fn load_file(args: &[&str], file: Option<(&str, u32)>) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    if let Some((text, mode)) = file {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    load_at(args, &path)
}

/// As `load_file`, with this path for the default file.
pub fn load_at(args: &[&str], path: &Path) -> Result<Loaded, String> {
    let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
    let shorten = |error: LoadError| error.to_string().replace(&path.display().to_string(), "FILE");
    let names: Vec<String> = (1..=args.len()).map(|number| format!("plugstack.conf argument {number}")).collect();
    load_or_default(&args, &names, path).map_err(shorten)
}

/// Any configuration that keys can set.
pub fn any_config() -> impl Strategy<Value = Config> {
    let fails = || prop::sample::select(vec![OnError::Fail, OnError::Warn]);
    let percent = |from: u32, to: u32| (from * 100..=to * 100).prop_map(Percent::from_hundredths);
    let path = || "(/[^/\"\\pC.][^/\"\\pC]{0,9}){1,3}".prop_map(PathBuf::from);
    let words = (
        prop::sample::select(vec![Mode::Enforce, Mode::Observe, Mode::Off]),
        (fails(), fails(), fails(), fails(), fails()),
        (path(), prop::option::of("[A-Za-z0-9_-]{1,9}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,9}){0,3}"), path()),
        any::<[bool; 6]>(),
        prop::sample::select(vec![CpuPolicy::Quota, CpuPolicy::Weight, CpuPolicy::Both]),
        prop::sample::select(vec![SwapSpace::No, SwapSpace::Auto, SwapSpace::Yes]),
    );
    let cpus = || (1_u64..=1_024_000).prop_map(Cpus::from_thousandths);
    let task_cpus = prop_oneof![Just(TaskCpus::Unlimited), Just(TaskCpus::Granted), cpus().prop_map(TaskCpus::Count),];
    let bytes = || (1_u64 << 10..1 << 54).prop_map(|kib| kib << 10);
    let pages = || {
        let sizes = prop::collection::btree_map(10_u32..=34, 0_u64..1 << 30, 0..4);
        sizes.prop_map(|sizes| {
            let text: Vec<String> =
                sizes.iter().map(|(power, kib)| format!("{}K:{kib}K", 1_u64 << (power - 10))).collect();
            HugePages::parse(&text.join(",")).unwrap_or_default()
        })
    };
    // A value that each number accepts: as it is, or in MiB.
    let number = |(limit, number): &'static (Limit, Number)| {
        let value = |small: u64| [small, small << 20].into_iter().find(|n| (number.read)(&(number.text)(*n)) == Ok(*n));
        prop::option::of(1_u64..=4_194_304).prop_map(move |small| (*limit, small.and_then(value)))
    };
    let numbers = move || {
        NUMBERS.iter().map(number).collect::<Vec<_>>().prop_map(|all| {
            all.into_iter().fold(LimitNumbers::default(), |mut numbers, (limit, number)| {
                numbers.set(limit, number);
                numbers
            })
        })
    };
    let amounts = (
        (percent(1, 1000), percent(1, 10_000), percent(0, 10_000)),
        (1_000_u32..=1_000_000).prop_map(|micros| Period::from_micros(micros).unwrap()),
        bytes(),
        (0_u64..=1_024_000).prop_map(Cpus::from_thousandths),
        (numbers(), numbers(), numbers()),
        (percent(0, 100), percent(0, 100), percent(0, 100), prop::option::of(percent(1, 100))),
        (
            (prop::option::of(cpus()), cpus(), prop::option::of(bytes())),
            task_cpus,
            prop::option::of(bytes()),
            prop::option::of(bytes()),
        ),
        (pages(), pages(), pages()),
    );
    let rules = || {
        prop::collection::vec((1_u64..1 << 50, 1_u32..u32::MAX), 0..3).prop_map(|rates| {
            let rule = |(n, (bytes, count))| format!("/{n} rbps={bytes} wiops={count}");
            let text = rates.into_iter().enumerate().map(rule).collect::<Vec<_>>().join(";");
            if text.is_empty() { IoRules::default() } else { IoRules::parse(&text).unwrap() }
        })
    };
    let devices = (
        prop::sample::select(vec![DeniedDevices::None, DeniedDevices::OthersGpus, DeniedDevices::AllElse]),
        prop::collection::vec("(/dev/[a-z]{1,3}|char-[a-z/]{1,5}|block-[0-9]{1,3})( r?wm?)?", 0..3),
        prop::option::of("/[a-z/]{0,5}(%d|\\[1[0-9],[0-9]\\])"),
        (
            1_u64..=600,
            prop::option::of(1_u64..=86_400),
            any::<bool>(),
            (
                prop::option::of("/[a-z]{1,9}".prop_map(PathBuf::from)),
                (1_u64..1 << 30).prop_map(|mib| mib << 20),
                1_u64..=3650,
                prop::sample::select(vec![UsageCard::Never, UsageCard::Failed, UsageCard::Wasteful, UsageCard::Always]),
                prop::option::of("/[a-z]{1,9}".prop_map(PathBuf::from)),
            ),
        ),
    );
    (words, amounts, ([rules(), rules(), rules()], prop::option::of(1_u64..=10_000)), devices).prop_map(
        |(
            (mode, on, (mount, base, run), yes, policy, swap),
            (percents, period, min, headroom, numbers, shares, most, pages),
            io,
            (constrain_devices, allow, gpu, ends),
        )| Config {
            mode,
            on_error: OnErrors::all(on.0)
                .with(Limit::Cpu, on.1)
                .with(Limit::Ram, on.2)
                .with(Limit::Swap, on.3)
                .with(Limit::Processes, on.4),
            cgroup_mountpoint: mount,
            cgroup_base: base,
            run_dir: run,
            cleanup_timeout: Duration::from_secs(ends.0),
            reap_interval: ends.1.map(Duration::from_secs),
            sample_interval: ends.1.filter(|_| ends.2).map(Duration::from_secs),
            reap_scheduler_leftovers: ends.2,
            early_moves: !ends.2,
            trust_account: ends.2,
            usage_log: ends.3.0,
            usage_log_size: ends.3.1,
            usage_log_age: Duration::from_secs(86_400 * ends.3.2),
            usage_card: ends.3.3,
            metrics_file: ends.3.4,
            store_usage: if ends.2 { StoreUsage::AdminComment } else { StoreUsage::None },
            constrain_cpu_quota: yes[0],
            cpu_quota_percent: percents.0,
            cpu_quota_period: period,
            cpu_burst: shares.0,
            cpu_policy: policy,
            scavenger: yes[3],
            max_cpus_per_user: most.0.0,
            zero_cpus: most.0.1,
            slot_cpus: if ends.2 { vec![SlotRequest::of("c", PerSlot::Host)] } else { Vec::new() },
            slot_memory: if ends.2 { Vec::new() } else { vec![SlotRequest::of("a", PerSlot::Job)] },
            slot_gpus: if ends.2 { vec![SlotRequest::of("b", PerSlot::Slot)] } else { Vec::new() },
            cpus_per_slot: headroom.max(Cpus::from_thousandths(1)),
            default_ram_space: most.0.2,
            starter_memory: min,
            max_cpus_per_task: most.1,
            headroom_cpus: headroom,
            thread_hints: yes[5],
            constrain_ram_space: yes[1],
            allowed_ram_space: percents.1,
            min_ram_space: min,
            constrain_swap_space: swap,
            allowed_swap_space: percents.2,
            max_ram_per_user: most.2,
            max_ram_per_task: most.3,
            memory_high: shares.3,
            memory_low: shares.1,
            memory_min: shares.2,
            oom_kill_step: yes[4],
            numbers: numbers.0,
            numbers_per_user: numbers.1,
            numbers_per_task: numbers.2,
            io_max: io.0[0].clone(),
            io_max_per_user: io.0[1].clone(),
            io_max_per_task: io.0[2].clone(),
            io_weight: io.1,
            constrain_cores: yes[5],
            constrain_huge_pages: match constrain_devices {
                DeniedDevices::None => GrantedHugePages::NoOthers,
                DeniedDevices::OthersGpus => GrantedHugePages::AtMost,
                DeniedDevices::AllElse => GrantedHugePages::NotCounted,
            },
            max_huge_pages: pages.0,
            max_huge_pages_per_user: pages.1,
            max_huge_pages_per_task: pages.2,
            constrain_devices,
            device_allow: allow.iter().flat_map(|rule| devices::parse(rule).unwrap()).collect(),
            gpu_device: gpu.map(|text| devices::GpuDevice::parse(&text).unwrap()),
        },
    )
}
