// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence host`: how much of this node a scheduler can grant to jobs.
//!
//! A scheduler that grants all of a node's memory lets its jobs take what the system needs, and the kernel then kills at random.

mod cpus;
mod gridengine;
pub mod htcondor;
mod memory;
mod pbs;
mod qconf;
mod way;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::cgroup::devices::gpus_of_node;
use jobfence::config::{Config, parse_size};
use jobfence::host::Host;
use jobfence::sys::dir::Dir;
use nix::unistd::getppid;

use crate::check::daemon::SchedulerDaemon;
use crate::command::Failure;
use crate::configured::Configured;
use cpus::UsableCpus;
use memory::{MemoryOfNode, UNIT};
use way::WayToOurs;

#[derive(Args)]
pub struct HostOptions {
    /// Memory to keep for the system beyond what it uses now, such as 2G or 5% [default: none]
    ///
    /// A plain number is MiB. A percentage is a whole number.
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = reserve)]
    reserve: Option<Reserve>,
    /// Print commands for qmgr of OpenPBS, with the reasons as comments
    ///
    /// The commands set mem, vmem and ncpus of this node. On the server, pipe them into qmgr: ssh node1 jobfence host --pbs | qmgr.
    #[arg(long, conflicts_with = "json", group = "named")]
    pbs: bool,
    /// The host's name in PBS or Grid Engine [default: PBS_MOM_NODE_NAME of pbs.conf, or the host's short name; with --apply its name]
    #[arg(long, value_name = "NAME", value_parser = pbs::name, requires = "named")]
    node: Option<String>,
    /// Be a load sensor of Grid Engine: report for each line on stdin, until "quit"
    ///
    /// What goes wrong is in syslog, since execd reads no stderr of a load sensor.
    /// When the sensor starts, syslog also has what the site must set in its complexes, as 'jobfence check' says it.
    #[arg(long, conflicts_with_all = ["pbs", "json"])]
    gridengine: bool,
    /// Have qmaster of Grid Engine grant what jobs can have of this host, by qconf
    ///
    /// qconf sets complex_values of the host: memory for each consumable of SlotMemory, the GPUs of GPUDevice for each of SlotGPUs,
    /// hardware threads for each of SlotCPUs, and slots, of which each has CPUsPerSlot hardware threads.
    /// What is so already, and each other complex, is left alone. If qmaster does not know the host, the host becomes an execution host.
    /// The command prints a line for each thing.
    ///
    /// The host must be an administrative host, and the user a manager of Grid Engine.
    #[arg(long, requires = "gridengine", group = "named")]
    apply: bool,
    /// Print attributes for the ads of HTCondor's slots, as STARTD_CRON reads them
    #[arg(long, conflicts_with_all = ["pbs", "json", "gridengine"])]
    htcondor: bool,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

/// What the site keeps back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserve {
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

fn reserve(text: &str) -> Result<Reserve, String> {
    let percent = text.strip_suffix('%').map(|digits| digits.parse().ok().filter(|percent| *percent < 100));
    let found = match percent {
        Some(percent) => percent.map(Reserve::Percent),
        None => parse_size(text).map(Reserve::Bytes),
    };
    found
        .ok_or_else(|| format!("expected a size of at least 1M, such as 2G, or a percentage below 100, found {text:?}"))
}

impl HostOptions {
    /// Whether execd runs this.
    pub fn is_sensor(&self) -> bool {
        self.gridengine && !self.apply
    }
}

/// Says what jobs can be granted here.
pub fn host(options: &HostOptions) -> Result<ExitCode, Failure> {
    if options.apply {
        print!("{}", applied(options)?);
        return Ok(ExitCode::SUCCESS);
    }
    if options.is_sensor() {
        if let Ok(loaded) = options.configured.load() {
            let execd = SchedulerDaemon::of(&Dir::open("/proc")?, getppid().as_raw());
            crate::check::gridengine::to_do(&execd, &loaded).iter().for_each(|line| log::warn!("{line}"));
        }
        let read = || {
            let config = options.configured.load()?.config;
            Ok(Grantable::read(&Host::read_what_there_is(&config)?.0, &config, options.reserve)?.of_gridengine())
        };
        // execd says under which name it knows the host.
        let name = std::env::var("HOST").ok().filter(|name| !name.is_empty());
        let name =
            name.map_or_else(|| nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()), Ok)?;
        gridengine::sense(&name, std::io::stdin().lock(), std::io::stdout().lock(), read)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if options.htcondor {
        // First of all, and also where no more can be said: START of the site asks for it.
        print!("{}", of_htcondor(&options.configured, options.reserve));
        return Ok(ExitCode::SUCCESS);
    }
    let config = options.configured.load()?.config;
    let (host, no_cgroups) = Host::read_what_there_is(&config)?;
    let grantable = Grantable::read(&host, &config, options.reserve)?;
    if options.json {
        writeln!(text, "{}", grantable.json())?;
    } else {
        let mark = if options.pbs { "# " } else { "" };
        for line in grantable.reasons(no_cgroups.map(|error| error.to_string())) {
            writeln!(text, "{mark}{line}")?;
        }
    }
    if options.pbs {
        let node = options.node.clone().map_or_else(pbs::node, Ok)?;
        for (resource, value) in grantable.of_pbs() {
            writeln!(text, "set node {node} resources_available.{resource} = {value}")?;
        }
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// What qmaster of Grid Engine should grant of this host.
fn wanted(host: &Host, config: &Config, reserve: Option<Reserve>) -> Result<Vec<qconf::Wanted>, Failure> {
    let grantable = Grantable::read(host, config, reserve)?;
    let gpus = config.gpu_device.as_ref().filter(|_| !config.slot_gpus.is_empty());
    let gpus = gpus.map(gpus_of_node).transpose()?.map(|all| all.len());
    Ok(qconf::wanted(config, grantable.mem, grantable.cpus.count(), gpus))
}

/// How what qmaster grants of this host, as `qconf -se` prints it, is more than there is: a line for each complex.
pub fn too_much(config: &Config, known: &str) -> Result<Vec<String>, Failure> {
    let host = Host::read_what_there_is(config)?.0;
    Ok(qconf::too_much(&wanted(&host, config, None)?, known))
}

/// Has qmaster grant what jobs can have; what was done.
fn applied(options: &HostOptions) -> Result<String, Failure> {
    let config = options.configured.load()?.config;
    let host = Host::read_what_there_is(&config)?.0;
    let name = options.node.clone();
    let name = name.map_or_else(|| nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()), Ok)?;
    let wanted = wanted(&host, &config, options.reserve)?;
    // Where execd runs already, it knows which cluster this is.
    let execd = SchedulerDaemon::find(&host.proc, "sge_execd").unwrap_or_default();
    let ask = |words: &[&str]| execd.ask(&[&["qconf"], words].concat());
    qconf::apply(&ask, &name, &wanted)
}

/// What STARTD_CRON reads. What cannot be found out is on stderr, which the startd logs.
fn of_htcondor(configured: &Configured, reserve: Option<Reserve>) -> String {
    let mut lines = htcondor::health_lines(&htcondor::health(configured));
    let found = || -> Result<_, Failure> {
        let config = configured.load()?.config;
        let host = Host::read_what_there_is(&config)?.0;
        let grantable = Grantable::read(&host, &config, reserve)?;
        Ok((grantable.of_htcondor(), htcondor::slots(&host)))
    };
    let (attributes, slots) = found().unwrap_or_else(|error| {
        eprintln!("jobfence: {error}");
        (Vec::new(), Vec::new())
    });
    lines.extend(attributes.iter().map(|(name, value)| format!("{name} = {value}")));
    lines.push("- host".to_owned());
    lines.extend(slots.iter().flat_map(htcondor::lines));
    lines.join("\n") + "\n"
}

/// What jobs can be granted on this node, and why.
struct Grantable {
    memory: MemoryOfNode,
    reserve: u64,
    /// Memory for all jobs, a whole number of [`UNIT`].
    mem: u64,
    /// Swap that they may use beside it.
    swap: u64,
    cpus: UsableCpus,
}

impl Grantable {
    fn read(host: &Host, config: &Config, reserve: Option<Reserve>) -> Result<Self, Failure> {
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

    fn vmem(&self) -> u64 {
        self.mem.saturating_add(self.swap)
    }

    /// The resources of a node of PBS, each with its value.
    fn of_pbs(&self) -> [(&'static str, String); 3] {
        let kb = |bytes: u64| format!("{}kb", bytes >> 10);
        [("mem", kb(self.mem)), ("vmem", kb(self.vmem())), ("ncpus", self.cpus.count().to_string())]
    }

    /// The complexes of jobfence(8), each with its value; memory in bytes.
    fn of_gridengine(&self) -> Vec<(&'static str, String)> {
        let held = self.memory.fences.unwrap_or(0);
        let mut all = vec![
            ("jobfence_threads", self.cpus.count().to_string()),
            ("jobfence_mem", self.mem.to_string()),
            ("jobfence_vmem", self.vmem().to_string()),
            ("jobfence_free", self.mem.saturating_sub(held).to_string()),
        ];
        all.extend(gridengine::pressure().map(|percent| ("jobfence_pressure", percent)));
        all
    }

    /// The attributes of jobfence(8), each with its value; memory in MiB, as HTCondor has it.
    fn of_htcondor(&self) -> Vec<(&'static str, String)> {
        let free = self.mem.saturating_sub(self.memory.fences.unwrap_or(0));
        let mut all = vec![
            ("JobfenceCpus", self.cpus.count().to_string()),
            ("JobfenceMemory", (self.mem >> 20).to_string()),
            ("JobfenceReservedMemory", (self.memory.whole.saturating_sub(self.mem) >> 20).to_string()),
            ("JobfenceFreeMemory", (free >> 20).to_string()),
        ];
        all.extend(gridengine::pressure().map(|percent| ("JobfenceMemoryPressure", percent)));
        all
    }

    /// One thing to a line.
    fn reasons(&self, no_cgroups: Option<String>) -> Vec<String> {
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

    /// As `usage --json`: members keep their names and units.
    fn json(&self) -> String {
        let memory = &self.memory;
        let fences = memory.fences.map_or_else(|| "null".to_owned(), |held| held.to_string());
        let members = [
            ("schema", "1".to_owned()),
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
mod tests {
    use jobfence::config::{Percent, SwapSpace};
    use jobfence::cpu_list::CpuList;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn grantable(swap: u64) -> Grantable {
        let memory = MemoryOfNode {
            whole: 16 * GIB,
            place: "on this node".to_owned(),
            system: GIB,
            why: "are in use".to_owned(),
            fences: Some(2 * GIB),
            swap: 8 * GIB,
        };
        let cpus = UsableCpus::of(CpuList::parse("0-3").unwrap(), CpuList::parse("0-3").unwrap());
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
    fn the_resources_of_pbs_are_in_kb() {
        let values = |swap| grantable(swap).of_pbs().map(|(name, value)| format!("{name}={value}"));
        assert_eq!(values(0), ["mem=15728640kb", "vmem=15728640kb", "ncpus=4"]);
        assert_eq!(values(GIB), ["mem=15728640kb", "vmem=16777216kb", "ncpus=4"]);
    }

    #[test]
    fn the_complexes_of_grid_engine_are_in_bytes() {
        let mut values = grantable(GIB).of_gridengine();
        values.retain(|(name, _)| *name != "jobfence_pressure");
        let texts: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "jobfence_threads=4",
            "jobfence_mem=16106127360",
            "jobfence_vmem=17179869184",
            "jobfence_free=13958643712",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_attributes_of_htcondor_are_in_mib() {
        let mut values = grantable(GIB).of_htcondor();
        values.retain(|(name, _)| *name != "JobfenceMemoryPressure");
        let texts: Vec<String> = values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let expected = [
            "JobfenceCpus = 4",
            "JobfenceMemory = 15360",
            "JobfenceReservedMemory = 1024",
            "JobfenceFreeMemory = 13312",
        ];
        assert_eq!(texts, expected);
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

    /// On this machine, whatever it has.
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
