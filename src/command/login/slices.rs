// SPDX-License-Identifier: GPL-2.0-or-later
//! The slices that systemd makes for users (`user-UID.slice`, pam_systemd(8)), limited through systemd alone: nothing is written below its
//! cgroups behind its back, where it would write its own values again.
//!
//! `systemctl set-property --runtime` keeps a value until the next boot, also while the user is not logged in, and needs no daemon-reload,
//! which would write the limits of all other units again. The properties are those of systemd.resource-control(5).

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::io::{DiskLimit, Rate, limits_of};
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::usage;
use jobfence::config::LoginBudget;
use jobfence::error::Error;
use jobfence::host::Host;
use jobfence::sys::program::AskedProgram;

use super::limits::UserLimits;
use crate::systemd::systemds_own;

/// systemd's slice of all users.
const ALL: &str = "user.slice";

/// How long systemd may take for one user.
const PATIENCE: Duration = Duration::from_secs(10);

/// The properties in which `systemctl show` says what it is asked, and those that set the same.
const QUOTA: [&str; 2] = ["CPUQuotaPerSecUSec", "CPUQuota"];

/// Runs `systemctl` with these words, and returns what it prints.
pub type Systemctl<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// The program itself.
pub fn systemctl(words: &[&str]) -> Result<String, String> {
    let asked = AskedProgram::new("systemctl", words, &[]).ask(Instant::now() + PATIENCE);
    asked.map_err(|why| format!("'systemctl {}' failed: {why}", words.join(" ")))
}

pub fn name(uid: u32) -> String {
    format!("user-{uid}.slice")
}

/// The users that have a slice now.
pub fn uids(host: &Host) -> Result<Vec<u32>, Error> {
    let Some(hierarchy) = systemds_own(&host.layout) else { return Ok(Vec::new()) };
    let slices = match hierarchy.open().and_then(|root| root.child(ALL)) {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        other => other?.list(true)?,
    };
    Ok(slices.iter().filter_map(|name| name.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()).collect())
}

/// The CPU time of a user's slice, with the number of its directory. `None`: there is none, or the kernel does not count it there.
pub fn counter(host: &Host, uid: u32) -> Option<(u64, Duration)> {
    let hierarchy = host.layout.with_controller("cpuacct").or_else(|| host.layout.unified())?;
    let slice = hierarchy.open().ok()?.child(ALL).ok()?.child(&name(uid)).ok()?;
    let number = std::fs::metadata(slice.path()).ok()?.ino();
    Some((number, usage::cpu(hierarchy, &slice)?))
}

/// The limits as systemd takes them. `disks`: those of `limits.io`.
pub fn assignments(
    limits: &UserLimits,
    disks: &[DiskLimit],
    budget: Option<LoginBudget>,
    version: Version,
) -> Vec<String> {
    let mut all = Vec::new();
    if budget.is_some() && version == Version::V1 {
        // There the counter is only in a directory that systemd makes for it.
        all.push("CPUAccounting=yes".to_owned());
    }
    // An empty value is none: the budget's may have been there.
    let quota = limits.cpus.map(|cpus| percent(cpus.thousandths().saturating_mul(1000)));
    if quota.is_some() || budget.is_some() {
        all.push(format!("CPUQuota={}", quota.unwrap_or_default()));
    }
    all.extend(limits.memory.map(|memory| format!("MemoryMax={memory}")));
    all.extend(limits.processes.map(|count| format!("TasksMax={count}")));
    for rate in Rate::ALL {
        let found = disks.iter().filter_map(|limit| Some((limit.disk, limit.rates.get(rate)?)));
        let lines: Vec<String> =
            found.map(|(disk, most)| format!("{}=/dev/block/{disk} {most}", property(rate))).collect();
        if !lines.is_empty() {
            all.push(format!("{}=", property(rate)));
            all.extend(lines);
        }
    }
    all
}

/// The disks of these limits. An error: a target that is on no disk.
pub fn disks(host: &Host, limits: &UserLimits) -> Result<Vec<DiskLimit>, String> {
    if limits.io.is_empty() {
        return Ok(Vec::new());
    }
    let disks = Disks::read(&host.proc).map_err(|error| error.to_string())?;
    let (found, errors) = limits_of(&mut limits.io.clone(), &disks);
    errors.first().map_or(Ok(found), |error| Err(error.to_string()))
}

/// The version of the hierarchy that limits CPU time.
pub fn version(host: &Host) -> Version {
    host.layout.with_controller("cpu").map_or(Version::V2, |hierarchy| hierarchy.version)
}

const fn property(rate: Rate) -> &'static str {
    match rate {
        Rate::ReadBytes => "IOReadBandwidthMax",
        Rate::WriteBytes => "IOWriteBandwidthMax",
        Rate::Reads => "IOReadIOPSMax",
        Rate::Writes => "IOWriteIOPSMax",
    }
}

/// CPU time in microseconds per second as a percentage.
fn percent(micros: u64) -> String {
    // Hundredths of a percent, the least that systemd takes.
    let hundredths = micros.div_ceil(100);
    match hundredths % 100 {
        0 => format!("{}%", hundredths / 100),
        part => format!("{}.{part:02}%", hundredths / 100),
    }
}

/// What gives back the present values of the properties that `wanted` sets.
pub fn now(systemctl: Systemctl<'_>, uid: u32, wanted: &[String]) -> Result<Vec<String>, String> {
    let mut names: Vec<&str> = wanted.iter().filter_map(|one| one.split('=').next()).collect();
    names.dedup();
    // systemd counts what it is told to, and no harm is done by that.
    names.retain(|name| *name != "CPUAccounting");
    let shown = |name: &str| if name == QUOTA[1] { QUOTA[0].to_owned() } else { name.to_owned() };
    let asked = names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(",");
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let said = systemctl(&["show", "--property", &asked, "--", &name(uid)])?;
    let mut all = Vec::new();
    for name in names {
        let key = shown(name);
        let values: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split_once('=').filter(|(found, _)| *found == key))
            .map(|(_, value)| value)
            .collect();
        if name.starts_with("IO") {
            all.push(format!("{name}="));
            all.extend(values.iter().filter(|value| !value.is_empty()).map(|value| format!("{name}={value}")));
            continue;
        }
        let value = *values.first().ok_or_else(|| format!("'systemctl show' does not say {key} of a slice"))?;
        all.push(match name == QUOTA[1] && value != "infinity" {
            true => {
                let micros = micros(value).ok_or_else(|| format!("'systemctl show' says {key}={value} of a slice"))?;
                format!("{name}={}", percent(micros))
            }
            false if name == QUOTA[1] => format!("{name}="),
            false => format!("{name}={value}"),
        });
    }
    Ok(all)
}

/// Sets all of it.
pub fn set(systemctl: Systemctl<'_>, uid: u32, assignments: &[String]) -> Result<(), String> {
    if assignments.is_empty() {
        return Ok(());
    }
    let name = name(uid);
    let words: Vec<&str> =
        ["set-property", "--runtime", "--", &name].into_iter().chain(assignments.iter().map(String::as_str)).collect();
    systemctl(&words).map(drop)
}

/// A time as systemd prints it, such as `1s 500ms` or `1.5s`: systemd.time(7), "Displaying time spans".
fn micros(text: &str) -> Option<u64> {
    let units = [("us", 1.0), ("ms", 1e3), ("min", 60e6), ("s", 1e6), ("h", 3600e6), ("d", 86_400e6)];
    let one = |word: &str| {
        let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = word.strip_prefix(number)?;
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        Some(number.parse::<f64>().ok().filter(|number| *number >= 0.0)? * factor)
    };
    let total = text.split_whitespace().map(one).sum::<Option<f64>>()?;
    (total > 0.0).then(|| total.round() as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use jobfence::cgroup::disk::Device;
    use jobfence::cgroup::io::IoRates;
    use jobfence::job::Cpus;

    use super::*;

    const UNLIMITED: IoRates = IoRates { rbps: None, wbps: None, riops: None, wiops: None };

    fn cpus(thousandths: u64) -> UserLimits {
        UserLimits { cpus: Some(Cpus::from_thousandths(thousandths)), ..UserLimits::default() }
    }

    #[test]
    fn limits_are_systemds_properties() {
        let budget = Some(LoginBudget { time: Duration::from_secs(60), cpus: Cpus::whole(1) });
        let of = |limits: &UserLimits, budget, version| assignments(limits, &[], budget, version).join(" ");
        assert_eq!(of(&UserLimits::default(), None, Version::V2), "");
        assert_eq!(of(&cpus(500), None, Version::V2), "CPUQuota=50%");
        assert_eq!(of(&cpus(2001), None, Version::V2), "CPUQuota=200.10%");
        assert_eq!(of(&UserLimits::default(), budget, Version::V1), "CPUAccounting=yes CPUQuota=");
        let limits = UserLimits { memory: Some(7 << 20), processes: Some(9), ..cpus(1000) };
        let disk = |minor, rates| DiskLimit { disk: Device { major: 8, minor }, rates };
        let disks = [
            disk(0, IoRates { rbps: Some(5), wiops: Some(6), ..UNLIMITED }),
            disk(16, IoRates { rbps: Some(7), ..UNLIMITED }),
        ];
        let expected = [
            "CPUQuota=100%",
            "MemoryMax=7340032",
            "TasksMax=9",
            "IOReadBandwidthMax=",
            "IOReadBandwidthMax=/dev/block/8:0 5",
            "IOReadBandwidthMax=/dev/block/8:16 7",
            "IOWriteIOPSMax=",
            "IOWriteIOPSMax=/dev/block/8:0 6",
        ];
        assert_eq!(assignments(&limits, &disks, None, Version::V2), expected);
    }

    #[test]
    fn times_are_read_as_systemd_prints_them() {
        for (text, is) in [
            ("500ms", Some(500_000)),
            ("1s", Some(1_000_000)),
            ("1s 500ms", Some(1_500_000)),
            ("1.505s", Some(1_505_000)),
            ("1min 4s", Some(64_000_000)),
            ("10us", Some(10)),
            ("", None),
            ("infinity", None),
            ("1 s", None),
            ("-1s", None),
        ] {
            assert_eq!(micros(text), is, "{text}");
        }
    }

    /// What systemd does with the words that are given to it: systemctl(1), systemd.resource-control(5).
    #[derive(Default)]
    struct StandIn {
        values: RefCell<BTreeMap<String, Vec<String>>>,
        words: RefCell<Vec<String>>,
    }

    impl StandIn {
        fn run(&self, words: &[&str]) -> Result<String, String> {
            self.words.borrow_mut().push(words.join(" "));
            match words {
                ["show", "--property", asked, "--", "user-7.slice"] => {
                    let values = self.values.borrow();
                    let one = |name: &str| values.get(name).cloned().unwrap_or_default();
                    let lines = asked
                        .split(',')
                        .flat_map(|name| one(name).into_iter().map(move |value| format!("{name}={value}\n")));
                    Ok(lines.collect())
                }
                ["set-property", "--runtime", "--", "user-7.slice", assignments @ ..] => {
                    let mut values = self.values.borrow_mut();
                    for (name, value) in assignments.iter().map(|one| one.split_once('=').unwrap()) {
                        match name {
                            "CPUQuota" => {
                                let shown = match value {
                                    "" => "infinity".to_owned(),
                                    percent => {
                                        let percent: f64 = percent.strip_suffix('%').unwrap().parse().unwrap();
                                        format!("{}ms", percent * 10.0)
                                    }
                                };
                                values.insert(QUOTA[0].to_owned(), vec![shown]);
                            }
                            name if name.starts_with("IO") && value.is_empty() => drop(values.remove(name)),
                            name if name.starts_with("IO") => {
                                values.entry(name.to_owned()).or_default().push(value.to_owned());
                            }
                            name => drop(values.insert(name.to_owned(), vec![value.to_owned()])),
                        }
                    }
                    Ok(String::new())
                }
                words => Err(format!("not understood: {words:?}")),
            }
        }
    }

    #[test]
    fn what_was_there_before_comes_back() {
        let systemd = StandIn::default();
        let run = |words: &[&str]| systemd.run(words);
        let before: Vec<String> =
            ["CPUQuota=150%", "MemoryMax=infinity", "TasksMax=10813", "IOReadBandwidthMax=/dev/sda 1000"]
                .map(str::to_owned)
                .to_vec();
        set(&run, 7, &before).unwrap();
        let first = systemd.values.borrow().clone();
        let limits = UserLimits { memory: Some(1 << 30), processes: Some(9), ..cpus(500) };
        let disks = [DiskLimit { disk: Device { major: 8, minor: 0 }, rates: IoRates { rbps: Some(5), ..UNLIMITED } }];
        let wanted = assignments(&limits, &disks, None, Version::V2);
        let back = now(&run, 7, &wanted).unwrap();
        set(&run, 7, &wanted).unwrap();
        assert_eq!(systemd.values.borrow()[QUOTA[0]], ["500ms"]);
        assert_eq!(systemd.values.borrow()["IOReadBandwidthMax"], ["/dev/block/8:0 5"]);
        set(&run, 7, &back).unwrap();
        assert_eq!(*systemd.values.borrow(), first);
        assert!(systemd.words.borrow().iter().skip(1).all(|words| !words.contains("daemon-reload")));
        // A slice without a quota gets none.
        set(&run, 7, &["CPUQuota=".to_owned()]).unwrap();
        assert_eq!(now(&run, 7, &["CPUQuota=50%".to_owned()]).unwrap(), ["CPUQuota="]);
        assert!(now(&run, 7, &["CPUWeight=3".to_owned()]).unwrap_err().contains("CPUWeight"));
    }
}
