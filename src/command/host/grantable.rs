// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs can be granted on this node, and the reasons.

use jobfence::bytes::mebibytes;
use jobfence::config::{Config, parse_size};
use jobfence::host::Host;
use jobfence::sys::dir::Dir;

use super::cpus::UsableCpus;
use super::memory::{MemoryOfNode, UNIT};
use super::way::WayToOurs;
use crate::command::Failure;

/// The version of the printed object.
pub const SCHEMA: u32 = 1;

/// Memory that the site keeps back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    Bytes(u64),
    Percent(u64),
}

impl Reserve {
    fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => whole / 100 * percent,
        }
    }
}

/// Parses what the site keeps back.
pub fn reserve(text: &str) -> Result<Reserve, String> {
    let percent = text.strip_suffix('%').map(|digits| digits.parse().ok().filter(|percent| *percent < 100));
    let found = match percent {
        Some(percent) => percent.map(Reserve::Percent),
        None => parse_size(text).map(Reserve::Bytes),
    };
    found
        .ok_or_else(|| format!("expected a size of at least 1M, such as 2G, or a percentage below 100, found {text:?}"))
}

/// What jobs can be granted on this node, and the reasons.
pub struct Grantable {
    pub memory: MemoryOfNode,
    reserve: u64,
    /// Memory for all jobs, in bytes, a whole number of [`UNIT`].
    pub mem: u64,
    /// Swap that jobs may use beside it, in bytes.
    swap: u64,
    pub cpus: UsableCpus,
}

impl Grantable {
    /// What this host has for jobs.
    pub fn read(host: &Host, config: &Config, reserve: Option<Reserve>) -> Result<Self, Failure> {
        let way = |controller| {
            host.layout.with_controller(controller).map(|hierarchy| WayToOurs::find(hierarchy, &host.base)).transpose()
        };
        let (of_memory, of_cpus) = (way("memory")?, way("cpuset")?);
        let memory = MemoryOfNode::read(&host.proc, of_memory.as_ref())?;
        let cpus = UsableCpus::read(&host.proc, &Dir::open("/sys/devices/system/cpu")?, of_cpus.as_ref())?;
        let reserve = reserve.map_or(0, |reserve| reserve.of(memory.whole));
        let mem = memory.whole.saturating_sub(memory.system).saturating_sub(reserve) / UNIT * UNIT;
        if mem == 0 {
            return Err(format!(
                "nothing is left for jobs: of {} the system uses {}, and {} are reserved",
                mebibytes(memory.whole),
                mebibytes(memory.system),
                mebibytes(reserve)
            )
            .into());
        }
        let swap = if config.constrain_swap_space.limits() {
            config.allowed_swap_space.of(mem).min(memory.swap)
        } else {
            memory.swap
        };
        Ok(Self { memory, reserve, mem, swap, cpus })
    }

    /// Memory and swap for all jobs, in bytes.
    pub fn vmem(&self) -> u64 {
        self.mem.saturating_add(self.swap)
    }

    /// Memory that no fence holds now, in bytes.
    pub fn free(&self) -> u64 {
        self.mem.saturating_sub(self.memory.fences.unwrap_or(0))
    }

    /// Explains the amounts, one to a line.
    pub fn reasons(&self, no_cgroups: Option<String>) -> Vec<String> {
        let memory = &self.memory;
        let mut lines = vec![format!("memory   {} {}", mebibytes(memory.whole), memory.place)];
        lines.push(format!("system   {} {}", mebibytes(memory.system), memory.why));
        lines.push(match (memory.fences, no_cgroups) {
            (_, Some(error)) => format!("fences   none can be seen: {error}"),
            (Some(held), None) => format!("fences   {} are held by jobs, and are not the system's", mebibytes(held)),
            (None, None) => "fences   none: what runs now counts as the system's".to_owned(),
        });
        if self.reserve > 0 {
            lines.push(format!("reserve  {} by --reserve", mebibytes(self.reserve)));
        }
        let unit = mebibytes(UNIT);
        lines.push(format!("mem      {}: what is left, rounded down to a multiple of {unit}", mebibytes(self.mem)));
        let swap = match self.swap {
            0 => "since jobs have no swap".to_owned(),
            swap => format!("and {} of swap for jobs", mebibytes(swap)),
        };
        lines.push(format!("vmem     {}: the same, {swap}", mebibytes(self.vmem())));
        lines.push(format!("ncpus    {}: {}", self.cpus.count(), self.cpus.why()));
        lines
    }

    /// The amounts as JSON. As in `usage --json`, members keep their names and units.
    pub fn json(&self) -> String {
        let memory = &self.memory;
        let fences = memory.fences.map_or_else(|| "null".to_owned(), |held| held.to_string());
        let members = [
            ("schema", SCHEMA.to_string()),
            ("mem_bytes", self.mem.to_string()),
            ("vmem_bytes", self.vmem().to_string()),
            ("ncpus", self.cpus.count().to_string()),
            ("cpus", format!("\"{}\"", self.cpus.list())),
            ("total_bytes", memory.whole.to_string()),
            ("system_bytes", memory.system.to_string()),
            ("fences_bytes", fences),
            ("reserve_bytes", self.reserve.to_string()),
            ("swap_bytes", self.swap.to_string()),
            ("unit_bytes", UNIT.to_string()),
        ];
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    }
}

#[cfg(test)]
pub mod tests {
    use jobfence::config::{Percent, SwapSpace};
    use jobfence::cpu_list::CpuList;

    use super::*;

    pub const GIB: u64 = 1 << 30;

    /// What a node of 16 GiB can grant.
    pub fn grantable(swap: u64) -> Grantable {
        let memory = MemoryOfNode {
            whole: 16 * GIB,
            place: "on this node".to_owned(),
            system: GIB,
            why: "are in use".to_owned(),
            fences: Some(2 * GIB),
            free: 13 * GIB,
            swap: 8 * GIB,
        };
        let cpus = UsableCpus::new(CpuList::parse("0-3").unwrap(), CpuList::parse("0-3").unwrap());
        Grantable { memory, reserve: 0, mem: 15 * GIB, swap, cpus }
    }

    #[test]
    fn what_a_site_keeps_back() {
        assert_eq!(reserve("2G"), Ok(Reserve::Bytes(2 * GIB)));
        assert_eq!(reserve("512"), Ok(Reserve::Bytes(512 << 20)));
        assert_eq!(reserve("5%").map(|reserve| reserve.of(200)), Ok(10));
        assert_eq!(reserve("0%").map(|reserve| reserve.of(200)), Ok(0));
        for text in ["", "%", "100%", "-1%", "5.5%", "5 %", "2Q", "0"] {
            assert!(reserve(text).unwrap_err().contains(&format!("{text:?}")), "{text}");
        }
    }

    #[test]
    fn each_reason_is_one_line() {
        let mut one = grantable(GIB);
        one.reserve = GIB;
        let lines = one.reasons(None);
        let firsts: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(firsts, ["memory", "system", "fences", "reserve", "mem", "vmem", "ncpus"]);
        assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
        assert_eq!(lines[2], "fences   2048.0 MiB are held by jobs, and are not the system's");
        assert!(lines[5].contains("16384.0 MiB: the same, and 1024.0 MiB of swap for jobs"), "{lines:?}");
        assert!(grantable(0).reasons(Some("no mount".into()))[2].contains("none can be seen: no mount"));
    }

    #[test]
    fn json_has_numbers_of_bytes() {
        let text = grantable(0).json();
        assert!(text.starts_with("{\"schema\":1,\"mem_bytes\":16106127360,\"vmem_bytes\":16106127360,\"ncpus\":4,"));
        assert!(text.contains("\"cpus\":\"0-3\"") && text.ends_with("\"unit_bytes\":268435456}"), "{text}");
    }

    /// This machine is read, whatever it has.
    #[test]
    fn swap_is_what_the_configuration_leaves_to_jobs() {
        let (host, _) = Host::read_what_there_is(&Config::default()).unwrap();
        let read = |config: &Config| Grantable::read(&host, config, None).unwrap();
        let none = read(&Config::default());
        assert_eq!(none.swap, 0);
        let all = read(&Config { constrain_swap_space: SwapSpace::No, ..Config::default() });
        assert_eq!(all.swap, all.memory.swap);
        let half = Config { allowed_swap_space: Percent::from_hundredths(5000), ..Config::default() };
        let half = read(&half);
        assert_eq!(half.swap, (half.mem / 2).min(half.memory.swap));
        assert!(Grantable::read(&host, &Config::default(), Some(Reserve::Bytes(u64::MAX))).is_err());
    }
}
