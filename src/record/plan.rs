// SPDX-License-Identifier: GPL-2.0-or-later
//! A plan as lines of a record, for a later process that resumes the fence.
//!
//! The first line is `plan=1`, with the number of this format. Each further line is `LEVEL.KEY=VALUE`: one for each limit that there
//! is, in the order of the levels and of [`Limits`]. Only exactly what would be written is accepted. Devices are not among the lines:
//! the program that denies them stays with the directory.

use std::fmt::Write as _;

use crate::cgroup::disk::Device;
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::{DiskLimit, IoRates, IoRules};
use crate::cgroup::limits::{CpuQuota, SwapLimit};
use crate::config::{Delegation, NUMBERS, Percent};
use crate::cpu_list::CpuList;
use crate::policy::{Level, Limits, Plan};

/// How the lines begin.
const FIRST: &str = "plan=1\n";

/// The lines of a plan.
pub fn lines(plan: &Plan) -> String {
    let mut text = FIRST.to_owned();
    for level in [Level::User, Level::Job, Level::Step, Level::Task] {
        write_limits(&mut text, level, plan.of(level));
    }
    let containers = plan.delegate == Delegation::Containers;
    for (key, is_so) in [("scavenger", plan.scavenger), ("weighs", plan.weighs), ("containers", containers)] {
        if is_so {
            let _ = writeln!(text, "{key}=yes");
        }
    }
    text
}

fn write_limits(text: &mut String, level: Level, limits: &Limits) {
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let percent = |percent: Percent| percent.of(10_000).to_string();
    let yes = |is_so: bool| is_so.then(|| "yes".to_owned());
    let is_plain = |text: &String| !text.contains(char::is_control);
    let rules = (!limits.io.is_empty()).then(|| limits.io.to_string());
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{level}.{key}={value}");
        }
    };
    put("cpu", limits.cpu.map(|quota| format!("{}/{}", quota.quota_us, quota.period_us)));
    put("burst", limits.burst.map(percent));
    put("weight", number(limits.weight));
    put("ram", number(limits.ram));
    put("swap", limits.swap.map(|limit| format!("{}/{}", limit.swap, limit.ram)));
    put("swap_yields", yes(limits.swap_yields));
    put("high", number(limits.high));
    put("low", number(limits.low));
    put("min", number(limits.min));
    put("oom_group", yes(limits.oom_group));
    for (limit, _) in NUMBERS {
        put(limit.word(), number(limits.numbers.get(*limit)));
    }
    // A path that could not be read again is left out: it is for display alone, and its disk is written.
    let is_same = |rules: &String| IoRules::parse(rules).is_ok_and(|same| same.to_string() == *rules);
    put("io", rules.filter(is_plain).filter(is_same));
    put("disks", (!limits.disks.is_empty()).then(|| disks(&limits.disks)));
    put("io_weight", number(limits.io_weight));
    put("cores", limits.cores.as_ref().map(ToString::to_string));
    put("network", number(limits.network));
    put("huge_pages", (!limits.huge_pages.is_empty()).then(|| limits.huge_pages.to_string()));
}

/// `8:0/1000/-/-/50,8:16/…`: the rates in the order of `io.max`.
fn disks(all: &[DiskLimit]) -> String {
    let rate = |rate: Option<u64>| rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string());
    let one = |DiskLimit { disk, rates }: &DiskLimit| {
        [disk.to_string(), rate(rates.rbps), rate(rates.wbps), rate(rates.riops), rate(rates.wiops)].join("/")
    };
    all.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads the lines of a plan. `None`: they are not what would be written.
pub fn parse(text: &str) -> Option<Plan> {
    let mut plan = Plan::default();
    for line in text.strip_prefix(FIRST)?.lines() {
        let (name, value) = line.split_once('=')?;
        match (name, value) {
            ("scavenger", "yes") => plan.scavenger = true,
            ("weighs", "yes") => plan.weighs = true,
            ("containers", "yes") => plan.delegate = Delegation::Containers,
            _ => {
                let (level, key) = name.split_once('.')?;
                let limits = match level {
                    "user" => &mut plan.user,
                    "job" => &mut plan.job,
                    "step" => &mut plan.step,
                    "task" => &mut plan.task,
                    _ => return None,
                };
                set(limits, key, value)?;
            }
        }
    }
    (lines(&plan) == text).then_some(plan)
}

fn set(limits: &mut Limits, key: &str, value: &str) -> Option<()> {
    let number = || value.parse::<u64>().ok();
    let two = || {
        let (one, other) = value.split_once('/')?;
        Some((one.parse::<u64>().ok()?, other.parse::<u64>().ok()?))
    };
    match key {
        "cpu" => limits.cpu = two().map(|(quota_us, period_us)| CpuQuota { quota_us, period_us }),
        "burst" => limits.burst = value.parse().ok().map(Percent::from_hundredths),
        "weight" => limits.weight = number(),
        "ram" => limits.ram = number(),
        "swap" => limits.swap = two().map(|(swap, ram)| SwapLimit { swap, ram }),
        "swap_yields" => limits.swap_yields = value == "yes",
        "high" => limits.high = number(),
        "low" => limits.low = number(),
        "min" => limits.min = number(),
        "oom_group" => limits.oom_group = value == "yes",
        "io" => limits.io = IoRules::parse(value).ok()?,
        "disks" => limits.disks = value.split(',').map(disk).collect::<Option<_>>()?,
        "io_weight" => limits.io_weight = number(),
        "network" => limits.network = number(),
        "cores" => limits.cores = CpuList::parse(value),
        "huge_pages" => limits.huge_pages = HugePages::parse(value)?,
        _ => {
            let (limit, _) = NUMBERS.iter().find(|(limit, _)| limit.word() == key)?;
            limits.numbers.set(*limit, number());
        }
    }
    Some(())
}

fn disk(text: &str) -> Option<DiskLimit> {
    let mut parts = text.split('/');
    let disk = Device::parse(parts.next()?)?;
    let mut rate = || match parts.next()? {
        "-" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let rates = IoRates { rbps: rate()?, wbps: rate()?, riops: rate()?, wiops: rate()? };
    parts.next().is_none().then_some(DiskLimit { disk, rates })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limit, LimitNumbers};

    fn limits() -> Limits {
        let rates = IoRates { rbps: Some(1000), wiops: Some(50), ..IoRates::default() };
        Limits {
            cpu: Some(CpuQuota { quota_us: 150_000, period_us: 100_000 }),
            burst: Some(Percent::from_hundredths(1250)),
            weight: Some(10),
            ram: Some(1 << 30),
            swap: Some(SwapLimit { swap: 0, ram: 1 << 30 }),
            swap_yields: true,
            high: Some(7),
            low: Some(6),
            min: Some(5),
            oom_group: true,
            numbers: LimitNumbers::with(Limit::Processes, 100),
            io: IoRules::parse("/scratch rbps=200M").unwrap(),
            disks: vec![DiskLimit { disk: Device::parse("8:16").unwrap(), rates }],
            io_weight: Some(3),
            cores: CpuList::parse("0-3,7"),
            huge_pages: HugePages::parse("2M:4G").unwrap(),
            devices: None,
            network: Some(9 << 20),
        }
    }

    fn plan() -> Plan {
        let job = Limits { oom_group: false, swap_yields: false, ..limits() };
        Plan {
            job,
            step: limits(),
            task: limits(),
            scavenger: true,
            weighs: true,
            delegate: Delegation::Containers,
            ..Plan::default()
        }
    }

    #[test]
    fn what_is_written_is_understood_and_nothing_less() {
        for plan in [Plan::default(), plan()] {
            let text = lines(&plan);
            assert_eq!(parse(&text), Some(plan));
        }
        let text = lines(&plan());
        for end in 0..text.len() {
            let cut = &text[..end];
            assert!(parse(cut).is_none_or(|plan| lines(&plan) == cut), "{end}");
        }
        for (from, to) in [
            ("plan=1", "plan=2"),
            ("job.cpu=150000/100000", "job.cpu=150000"),
            ("job.cpu", "node.cpu"),
            ("task.high=7", "task.high=07"),
            ("task.high=7\n", "task.high=7\ntask.high=7\n"),
            ("step.oom_group=yes", "step.oom_group=no"),
            ("8:16/1000/-/-/50", "8:16/1000/-/-"),
            ("weighs=yes", "weighs=maybe"),
            ("step.min=5", "step.minimum=5"),
        ] {
            assert!(text.contains(from), "{from}");
            assert_eq!(parse(&text.replace(from, to)), None, "{to}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "plan=1\n((user|job|step|task)\\.(cpu|ram|io|disks|cores|huge_pages|burst)=.*\n)*") {
            let _ = parse(&text);
        }
    }
}
