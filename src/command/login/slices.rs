// SPDX-License-Identifier: GPL-2.0-or-later
//! The slices that systemd makes for users (`user-UID.slice`, pam_systemd(8)), limited through systemd alone: nothing is written below its
//! cgroups behind its back, where it would write its own values again.
//!
//! `systemctl set-property --runtime` keeps a value until the next boot, also while the user is not logged in, and needs no daemon-reload,
//! which would write the limits of all other units again. The properties are those of systemd.resource-control(5).

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::io::{DiskLimit, Rate, limits_of};
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::usage;
use jobfence::config::LoginBudget;
use jobfence::error::Error;
use jobfence::host::Host;
use jobfence::sys::program::AskedProgram;
use nix::sys::stat::makedev;

use super::limits::UserLimits;
use crate::strays::Stray;
use crate::systemd::systemds_own;

/// systemd's slice of all users.
const ALL: &str = "user.slice";

/// How long systemd may take for one user.
const PATIENCE: Duration = Duration::from_secs(10);

/// The property that `systemctl show` prints, and the one that sets the same value.
const QUOTA: [&str; 2] = ["CPUQuotaPerSecUSec", "CPUQuota"];

/// Runs `systemctl` with these words, and returns what it prints.
pub type Systemctl<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// Runs the real `systemctl`. All calls together have one deadline: if systemd does not answer, it delays a look once, and not once for
/// each user.
pub fn systemctl_until(deadline: Instant) -> impl Fn(&[&str]) -> Result<String, String> {
    move |words| {
        let asked = AskedProgram::new("systemctl", words, &[]).ask(deadline.min(Instant::now() + PATIENCE));
        asked.map_err(|why| format!("'systemctl {}' failed: {why}", words.join(" ")))
    }
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

/// How many processes are in no user's slice: their sessions began without pam_systemd, or cron or a daemon has started them.
pub fn count_outside(all: &[Stray]) -> usize {
    let is_outside = |stray: &&Stray| !stray.cgroup.split('/').any(|part| part == name(stray.uid));
    all.iter().filter(|stray| stray.action().is_some()).filter(is_outside).count()
}

/// The CPU time of a user's slice, with the number of its directory. `None`: there is none, or the kernel does not count it there.
pub fn counter(host: &Host, uid: u32) -> Option<(u64, Duration)> {
    let hierarchy = host.layout.with_controller("cpuacct").or_else(|| host.layout.unified())?;
    let slice = hierarchy.open().ok()?.child(ALL).ok()?.child(&name(uid)).ok()?;
    let number = std::fs::metadata(slice.path()).ok()?.ino();
    Some((number, usage::cpu(hierarchy, &slice)?))
}

/// The limits as systemd takes them. `disks`: the disks of `limits.io`.
pub fn assignments(
    limits: &UserLimits,
    disks: &[DiskLimit],
    budget: Option<LoginBudget>,
    version: Version,
) -> Vec<String> {
    let mut all = Vec::new();
    if budget.is_some() && version == Version::V1 {
        // On v1, CPU time is counted only in a directory that systemd makes for that.
        all.push("CPUAccounting=yes".to_owned());
    }
    // An empty value removes the quota that a budget may have set.
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

/// The disks of these limits. An error: a target is on no disk.
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
    // The unit is a hundredth of a percent, the least that systemd takes.
    let hundredths = micros.div_ceil(100);
    // Some versions of systemd take no trailing zeros.
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole}%"),
        (whole, part) if part % 10 == 0 => format!("{whole}.{}%", part / 10),
        (whole, part) => format!("{whole}.{part:02}%"),
    }
}

/// The present values of the properties that `wanted` sets, as what gives them back.
pub fn now(systemctl: Systemctl<'_>, uid: u32, wanted: &[String]) -> Result<Vec<String>, String> {
    let mut names: Vec<&str> = wanted.iter().filter_map(|one| one.split('=').next()).collect();
    names.dedup();
    // systemd's counting is left on: it does no harm.
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

/// The values to set: ours, unless the value from before is tighter. jobfence lifts no limit of the site's.
pub fn within(assignments: &[String], back: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for one in assignments {
        let Some((name, value)) = one.split_once('=') else { continue };
        let mut before = back.iter().filter_map(|old| old.split_once('=')).filter(|(old, _)| *old == name);
        if name.starts_with("IO") {
            if value.is_empty() {
                let ours: Vec<&str> =
                    assignments.iter().filter_map(|one| one.strip_prefix(name)?.strip_prefix('=')).collect();
                all.push(one.clone());
                let lines = lines_within(&ours, &before.map(|(_, value)| value).collect::<Vec<_>>());
                all.extend(lines.into_iter().map(|line| format!("{name}={line}")));
            }
            continue;
        }
        all.push(match before.next() {
            Some((_, old)) if !old.is_empty() && amount(old) < amount(value) => {
                format!("{name}={old}")
            }
            _ => one.clone(),
        });
    }
    all
}

/// The lines of a property that has one for each disk. If a line of the site's has a disk that cannot be told from ours, the property is
/// left to the site.
fn lines_within(ours: &[&str], before: &[&str]) -> Vec<String> {
    let parsed = |line: &&str| {
        let (path, most) = line.rsplit_once(' ')?;
        Some((device(path)?, amount(most)))
    };
    let words = |lines: &[&str]| lines.iter().filter(|line| !line.is_empty()).map(|line| (*line).to_owned()).collect();
    let theirs: Option<Vec<_>> = before.iter().filter(|line| !line.is_empty()).map(parsed).collect();
    let Some(theirs) = theirs else { return words(before) };
    let mut all: Vec<String> = words(ours);
    all.retain(|line| {
        let ours = parsed(&line.as_str());
        !ours.is_some_and(|(disk, most)| theirs.iter().any(|(other, least)| *other == disk && *least < most))
    });
    let kept: Vec<u64> = all.iter().filter_map(|line| Some(parsed(&line.as_str())?.0)).collect();
    let old = before.iter().filter(|line| parsed(line).is_some_and(|(disk, _)| !kept.contains(&disk)));
    let old: Vec<String> = old.map(|line| (*line).to_owned()).collect();
    all.extend(old);
    all
}

/// The number of the disk with this path. `None`: it is no block device.
fn device(path: &str) -> Option<u64> {
    let numbers = path.strip_prefix("/dev/block/").and_then(|numbers| numbers.split_once(':'));
    if let Some((major, minor)) = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))) {
        return Some(makedev(major, minor));
    }
    let found = std::fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// A value as a number or a percentage, to be compared with another one of the same property. A value that is neither is no limit.
fn amount(value: &str) -> f64 {
    value.trim_end_matches('%').parse().unwrap_or(f64::INFINITY)
}

/// The values from before, without ours. If nothing is known of the user, but systemd was told one of our values at run time, an earlier
/// `jobfence hold` has set it, whose file is lost.
pub fn without_ours(back: Vec<String>, ours: &[Vec<String>], is_told: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    for one in back {
        let name = one.split('=').next().unwrap_or_default();
        let is_ours = !one.ends_with('=') && ours.iter().any(|ours| ours.contains(&one)) && is_told(name);
        match (is_ours, name) {
            (false, _) => all.push(one),
            (true, "CPUQuota") => all.push(format!("{name}=")),
            (true, name) if name.starts_with("IO") => {}
            (true, name) => all.push(format!("{name}=infinity")),
        }
    }
    all
}

/// Whether systemd was told a value of this property at run time: `systemctl set-property --runtime` has left a file.
pub fn is_told(uid: u32, name_of_property: &str) -> bool {
    let file = format!("/run/systemd/system.control/{}.d/50-{name_of_property}.conf", name(uid));
    std::fs::symlink_metadata(file).is_ok()
}

/// Sets all of these properties.
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
        assert_eq!(of(&cpus(2001), None, Version::V2), "CPUQuota=200.1%");
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

    /// A systemd as far as it is asked here: systemctl(1), systemd.resource-control(5).
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
            ["CPUQuota=150%", "MemoryMax=infinity", "TasksMax=10813", "IOReadBandwidthMax=/dev/block/8:0 1000"]
                .map(str::to_owned)
                .to_vec();
        set(&run, 7, &before).unwrap();
        let first = systemd.values.borrow().clone();
        let limits = UserLimits { memory: Some(1 << 30), processes: Some(9), ..cpus(500) };
        let disks = [DiskLimit { disk: Device { major: 8, minor: 0 }, rates: IoRates { rbps: Some(5), ..UNLIMITED } }];
        let wanted = assignments(&limits, &disks, None, Version::V2);
        let back = now(&run, 7, &wanted).unwrap();
        set(&run, 7, &within(&wanted, &back)).unwrap();
        assert_eq!(systemd.values.borrow()[QUOTA[0]], ["500ms"]);
        assert_eq!(systemd.values.borrow()["IOReadBandwidthMax"], ["/dev/block/8:0 5"]);
        // An unused budget lifts no limit.
        let budget = Some(LoginBudget { time: Duration::from_secs(60), cpus: Cpus::whole(1) });
        let unlimited = assignments(&UserLimits::default(), &[], budget, Version::V2);
        set(&run, 7, &within(&unlimited, &back)).unwrap();
        assert_eq!(systemd.values.borrow()[QUOTA[0]], ["1500ms"]);
        set(&run, 7, &back).unwrap();
        assert_eq!(*systemd.values.borrow(), first);
        assert!(systemd.words.borrow().iter().skip(1).all(|words| !words.contains("daemon-reload")));
        // A slice that had no quota has none afterwards.
        set(&run, 7, &["CPUQuota=".to_owned()]).unwrap();
        assert_eq!(now(&run, 7, &["CPUQuota=50%".to_owned()]).unwrap(), ["CPUQuota="]);
        assert!(now(&run, 7, &["CPUWeight=3".to_owned()]).unwrap_err().contains("CPUWeight"));
    }

    #[test]
    fn the_sites_tighter_limits_stay() {
        let of = |ours: &[&str], back: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            within(&owned(ours), &owned(back)).join(" ")
        };
        assert_eq!(of(&["CPUQuota="], &["CPUQuota=200%"]), "CPUQuota=200%");
        assert_eq!(of(&["CPUQuota=50%"], &["CPUQuota=200%"]), "CPUQuota=50%");
        assert_eq!(of(&["CPUQuota=250.5%"], &["CPUQuota=200%"]), "CPUQuota=200%");
        assert_eq!(of(&["CPUQuota=50%"], &["CPUQuota="]), "CPUQuota=50%");
        assert_eq!(of(&["CPUAccounting=yes", "CPUQuota="], &["CPUQuota="]), "CPUAccounting=yes CPUQuota=");
        assert_eq!(of(&["MemoryMax=9", "TasksMax=9"], &["MemoryMax=8", "TasksMax=infinity"]), "MemoryMax=8 TasksMax=9");
        let (a, b) = ("R=/dev/block/8:0", "R=/dev/block/8:16");
        let io = |ours: &[String], back: &[String]| {
            let named = |all: &[String]| -> Vec<String> {
                ["R=".to_owned()].iter().chain(all).map(|one| format!("IO{one}")).collect()
            };
            within(&named(ours), &named(back)).join(" ").replace("IO", "")
        };
        assert_eq!(io(&[format!("{a} 5")], &[]), format!("R= {a} 5"));
        assert_eq!(io(&[format!("{a} 5")], &[format!("{a} 4"), format!("{b} 7")]), format!("R= {a} 4 {b} 7"));
        assert_eq!(io(&[format!("{a} 5")], &[format!("{a} 6"), format!("{b} 7")]), format!("R= {a} 5 {b} 7"));
        // The path is on no disk that is known.
        assert_eq!(io(&[format!("{a} 5")], &["R=/none 6".to_owned()]), "R= R=/none 6");
    }

    #[test]
    fn what_a_lost_file_has_left_is_not_taken_for_the_sites() {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let back = owned(&["CPUQuota=50%", "MemoryMax=7", "TasksMax=9", "IOReadIOPSMax=", "IOReadIOPSMax=/dev/x 5"]);
        let ours = [owned(&["CPUQuota=400%"]), owned(&["CPUQuota=50%", "MemoryMax=7", "IOReadIOPSMax=/dev/x 5"])];
        let expected = owned(&["CPUQuota=", "MemoryMax=infinity", "TasksMax=9", "IOReadIOPSMax="]);
        assert_eq!(without_ours(back.clone(), &ours, &|_| true), expected);
        assert_eq!(without_ours(back.clone(), &ours, &|_| false), back);
    }
}
