// SPDX-License-Identifier: GPL-2.0-or-later
//! Which CPUs of this machine make up each core in Slurm's numbering.
//!
//! Slurm numbers the cores of a node 0, 1, 2, … in an order of its own. Its map to the kernel's numbers (`block_map` of
//! src/slurmd/common/xcpuinfo.c, the same from 22.05 to 26.05, used in `xcpuinfo_abs_to_mac`) lists the cores as hwloc's tree does: package
//! after package, within each core after core, and with each core all its hardware threads. Slurm does not show that map to plugins, so it
//! is rebuilt here from what hwloc reads, /sys/devices/system.
//!
//! hwloc orders siblings by their lowest CPU (`hwloc__object_cpusets_compare_first`, hwloc/topology.c). Other objects may be levels of its
//! tree, too: dies, clusters, books, drawers, third-level caches, NUMA nodes, and NUMA nodes that are near each other
//! (`hwloc__groups_by_distances`). The order is certain if the cores of each of these follow each other anyway: then it does not matter
//! whether hwloc, in its release and with Slurm's filters, makes it a level, nor which level Slurm calls a socket (`l3cache_as_socket`,
//! `numa_node_as_socket`). If the order is not certain, nothing is mapped.

use std::path::Path;

use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::policy::CoreMap;
use crate::schedulers::slurm::conf::{self, Lines};
use crate::sorted;
use crate::sys::dir::Dir;

/// The cores of this machine, in Slurm's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<CpuList>,
}

/// The names of each file in /sys/devices/system/cpu/cpuN/topology: the present one, and the one before Linux 5.3.
const CORE: &[&str] = &["core_cpus_list", "thread_siblings_list"];
const PACKAGE: &[&str] = &["package_cpus_list", "core_siblings_list"];
/// The levels that may be above or below a package (Documentation/admin-guide/cputopology.rst).
const LEVELS: [(&str, &str); 4] = [
    ("die", "die_cpus_list"),
    ("cluster", "cluster_cpus_list"),
    ("book", "book_siblings_list"),
    ("drawer", "drawer_siblings_list"),
];

impl Topology {
    /// Reads the machine; `devices` is `/sys/devices`. An error says why Slurm's cores cannot be mapped with certainty.
    pub fn read(devices: &Dir) -> Result<Self> {
        // On Intel's hybrid processors (each kind of core has a PMU of its own) Slurm since 23.02 leaves out one kind of core
        // (`_remove_ecores`), unless SlurmdParameters says otherwise.
        if devices.has("cpu_atom") && devices.has("cpu_core") {
            return Err(Error::new("the processor has two kinds of cores, of which Slurm may leave out one"));
        }
        let cpus = devices.child("system/cpu")?;
        let online = list_in(&cpus, "online")?;
        let offline = list_in(&cpus, "present")?.without(&online);
        let highest = online.last().ok_or_else(|| Error::new("no CPU is online in").at(cpus.path()))?;
        if !offline.is_empty() {
            return Err(
                Error::new("CPUs are offline, and Slurm numbers the cores of those that are not:").value(offline)
            );
        }
        // xcpuinfo.c leaves out CPUs whose number is not below their count.
        if usize::try_from(highest).map_or(true, |highest| highest + 1 != online.len()) {
            return Err(Error::new("the numbers of the CPUs have gaps, which Slurm's map does not know:").value(online));
        }
        let cores = groups(&online, "core", |cpu| of_topology(&cpus, cpu, CORE))?.ok_or_else(|| {
            Error::new("the kernel does not say which CPUs are one core, in").at(cpus.path().join("cpu0/topology"))
        })?;
        let packages = groups(&online, "package", |cpu| of_topology(&cpus, cpu, PACKAGE))?;
        let order = in_order(&cores, packages.as_deref().unwrap_or(std::slice::from_ref(&online)))?;
        let topology = Self { cores: order };
        topology.check_threads(&cpus)?;
        for (what, file) in LEVELS {
            let found = groups(&online, what, |cpu| of_topology(&cpus, cpu, &[file]))?;
            topology.check_order(what, &found.unwrap_or_default())?;
        }
        let caches = groups(&online, "third-level cache", |cpu| third_level_cache(&cpus, cpu))?;
        // A kernel has a topology file for all CPUs or for none; a cache may exist for only some.
        if caches.is_none() {
            for cpu in online.iter() {
                if third_level_cache(&cpus, cpu)?.is_some() {
                    return Err(
                        Error::new("only some of the CPUs have a third-level cache:").value(format!("cpu{cpu}"))
                    );
                }
            }
        }
        topology.check_order("third-level cache", &caches.unwrap_or_default())?;
        topology.check_nodes(devices)?;
        Ok(topology)
    }

    /// This machine's cores, if they certainly match what Slurm calls cores on this node. `ours` is jobfence.conf, beside which slurm.conf
    /// may be. Without `node`, slurm.conf says which node this is.
    pub fn from_machine(ours: Option<&Path>, node: Option<&str>) -> Result<Self> {
        let topology = Self::read(&Dir::open("/sys/devices")?)?;
        topology.check_node(conf::find(ours).as_deref(), node)?;
        Ok(topology)
    }

    /// If cores have several threads, slurm.conf must give the node the same number: with fewer, Slurm may call a thread a core (`CPUs=`
    /// alone), and jobs would share whole cores. If cores have one thread, a core is a CPU in any case.
    fn check_node(&self, conf: Option<&Path>, node: Option<&str>) -> Result<()> {
        let threads = self.threads_per_core();
        if threads == 1 {
            return Ok(());
        }
        let unknown = || {
            Error::new(format!(
                "each core has {threads} hardware threads, and slurm.conf does not tell what Slurm calls a core:"
            ))
        };
        let conf = conf.ok_or_else(|| {
            unknown().value("there is none").hint(
                "set SLURM_CONF in slurmd's environment to its \
                path",
            )
        })?;
        let lines = Lines::read(conf);
        let node = node.map(str::to_owned).or_else(|| conf::this_node(&lines, |_| Vec::new()));
        match node.as_deref().and_then(|node| conf::threads_per_core(&lines, node)) {
            Some((said, _)) if said == threads => Ok(()),
            Some((said, place)) => Err(Error::new(format!(
                "each core has {threads} hardware threads, and {said} in Slurm's eyes, so jobfence is not certain \
                 what Slurm calls a core:"
            ))
            .value(place)
            .hint(format!(
                "set ThreadsPerCore={threads} there, with Sockets and CoresPerSocket as 'slurmd -C' has \
                them"
            ))),
            None => Err(unknown().value(match node {
                Some(node) => format!("{} has no line NodeName={node}", conf.display()),
                None => format!("{} has no line with a name of this host", conf.display()),
            })),
        }
    }

    /// A topology of these cores, for tests.
    #[cfg(test)]
    pub fn from_cores<const N: usize>(cores: [&str; N]) -> Self {
        Self { cores: cores.iter().filter_map(|cpus| CpuList::parse(cpus)).collect() }
    }

    /// Hardware threads of each core, at least 1.
    pub fn threads_per_core(&self) -> usize {
        self.cores.first().map_or(1, CpuList::len)
    }

    /// How many cores the machine has.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// All cores must have the same number of threads, and these must be threads: in AMD's family 15h the kernel calls two cores siblings,
    /// and hwloc does not (`threadwithcoreid`, hwloc/topology-linux.c).
    fn check_threads(&self, cpus: &Dir) -> Result<()> {
        let threads = self.threads_per_core();
        if let Some(other) = self.cores.iter().find(|core| core.len() != threads) {
            return Err(Error::new("the cores have unlike numbers of hardware threads, which Slurm does not know:")
                .value(format!("{} and {other}", self.cores.first().cloned().unwrap_or_default())));
        }
        if threads == 1 {
            return Ok(());
        }
        for core in &self.cores {
            let mut ids = core.iter().map(|cpu| cpus.read_value(&format!("cpu{cpu}/topology/core_id")));
            let first = ids.next().transpose()?;
            for id in ids {
                if Some(id?) != first {
                    return Err(
                        Error::new("the kernel calls these CPUs one core, and gives them several numbers:").value(core)
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that each group consists of whole cores that follow each other.
    fn check_order(&self, what: &str, groups: &[CpuList]) -> Result<()> {
        // A group of one CPU is how an architecture without such a level reports it; hwloc leaves it out, too.
        for group in groups.iter().filter(|group| group.len() > 1) {
            let inside: Vec<usize> =
                self.cores.iter().enumerate().filter_map(|(at, core)| core.is_within(group).then_some(at)).collect();
            let whole: usize = inside.iter().filter_map(|at| self.cores.get(*at)).map(CpuList::len).sum();
            let length = match (inside.first(), inside.last()) {
                (Some(first), Some(last)) => last - first + 1,
                _ => 0,
            };
            if whole != group.len() || length != inside.len() {
                return Err(Error::new(format!(
                    "the cores of one {what} do not follow each other, so that their order depends on whether hwloc groups by it:"
                ))
                .value(group));
            }
        }
        Ok(())
    }

    /// Checks NUMA nodes, one by one and grouped by distance.
    fn check_nodes(&self, devices: &Dir) -> Result<()> {
        let Ok(system) = devices.child("system/node") else { return Ok(()) };
        let mut nodes = Vec::new();
        let number = |name: &String| name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok());
        let mut numbers: Vec<u32> = system.list(true)?.iter().filter_map(number).collect();
        sorted::sort(&mut numbers);
        for number in numbers {
            let node = system.child(&format!("node{number}"))?;
            let distances = node.read_if_there("distance")?.unwrap_or_default();
            let distances: Vec<u32> = distances.split_whitespace().filter_map(|text| text.parse().ok()).collect();
            nodes.push((list_in(&node, "cpulist")?, distances));
        }
        let each: Vec<CpuList> = nodes.iter().map(|(cpus, _)| cpus.clone()).filter(|cpus| !cpus.is_empty()).collect();
        self.check_order("NUMA node", &each)?;
        self.check_order("group of NUMA nodes", &near(&nodes))
    }
}

impl CoreMap for Topology {
    /// The CPUs of these Slurm cores, with all hardware threads of each.
    fn cpus_of(&self, cores: &CpuList) -> Result<CpuList> {
        let mut cpus = CpuList::default();
        for core in cores.iter() {
            let found = usize::try_from(core).ok().and_then(|index| self.cores.get(index)).ok_or_else(|| {
                Error::new(format!("Slurm grants core {core}, but this machine has {} cores", self.cores.len()))
                    .value(cores)
                    .hint("the node is configured with more cores than it has, or its CPUs= are hardware threads")
            })?;
            cpus = cpus.and(found);
        }
        Ok(cpus)
    }
}

/// For each distance, the sets of nodes connected by that distance or shorter ones: hwloc may group by these.
fn near(nodes: &[(CpuList, Vec<u32>)]) -> Vec<CpuList> {
    let distance = |a: usize, b: usize| nodes.get(a).and_then(|(_, distances)| distances.get(b)).copied();
    let mut all: Vec<u32> = nodes.iter().flat_map(|(_, distances)| distances.iter().copied()).collect();
    sorted::sort(&mut all);
    all.dedup();
    let mut found = Vec::new();
    // A machine does not have more distinct distances; this bounds the work below.
    const MOST: usize = 64;
    for limit in all.into_iter().take(MOST) {
        let mut left: Vec<usize> = (0..nodes.len()).collect();
        while let Some(first) = left.pop() {
            let mut reached = vec![first];
            let mut cpus = CpuList::default();
            while let Some(node) = reached.pop() {
                cpus = nodes.get(node).map_or(cpus.clone(), |(more, _)| cpus.and(more));
                let is_near = |other: &usize| distance(node, *other).is_some_and(|distance| distance <= limit);
                let (next, rest) = left.into_iter().partition(is_near);
                left = rest;
                reached.extend::<Vec<usize>>(next);
            }
            if !cpus.is_empty() && !found.contains(&cpus) {
                found.push(cpus);
            }
        }
    }
    found
}

/// Orders the cores: package after package, and within each core after core, both by their lowest CPU.
fn in_order(cores: &[CpuList], packages: &[CpuList]) -> Result<Vec<CpuList>> {
    let mut order = Vec::with_capacity(cores.len());
    for package in packages {
        order.extend(cores.iter().filter(|core| core.is_within(package)).cloned());
    }
    if order.len() == cores.len() {
        return Ok(order);
    }
    let split = cores.iter().find(|core| !packages.iter().any(|package| core.is_within(package)));
    Err(Error::new("the kernel shows a core in several packages:").value(split.cloned().unwrap_or_default()))
}

/// Partitions the CPUs into groups, in order of their lowest CPU, by what the first CPU of each says. `None`: the kernel says nothing for
/// the very first CPU.
fn groups(all: &CpuList, what: &str, of_cpu: impl Fn(u32) -> Result<Option<CpuList>>) -> Result<Option<Vec<CpuList>>> {
    let mut left = all.clone();
    let mut found = Vec::new();
    while let Some(first) = left.first() {
        let contradiction =
            |said: &str| Error::new(format!("the kernel {said} of one {what}:")).value(format!("cpu{first}"));
        match of_cpu(first)? {
            None if found.is_empty() => return Ok(None),
            None => return Err(contradiction("does not say of every CPU with which others it is part")),
            Some(group) if group.contains(first) && group.is_within(&left) => {
                left = left.without(&group);
                found.push(group);
            }
            Some(_) => return Err(contradiction("contradicts itself about the CPUs")),
        }
    }
    Ok(Some(found))
}

/// The first of these files that exists.
fn of_topology(cpus: &Dir, cpu: u32, files: &[&str]) -> Result<Option<CpuList>> {
    for file in files {
        let path = format!("cpu{cpu}/topology/{file}");
        if let Some(text) = cpus.read_if_there(&path)? {
            return parse(cpus, &path, &text).map(Some);
        }
    }
    Ok(None)
}

/// The third-level cache among the caches `indexN` of a CPU, lowest level first (Documentation/ABI/testing/sysfs-devices-system-cpu).
fn third_level_cache(cpus: &Dir, cpu: u32) -> Result<Option<CpuList>> {
    for index in 0..16 {
        let cache = format!("cpu{cpu}/cache/index{index}");
        match cpus.read_if_there(&format!("{cache}/level"))? {
            Some(level) if level.trim() == "3" => {
                let path = format!("{cache}/shared_cpu_list");
                return Ok(Some(list_in(cpus, &path)?));
            }
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}

fn list_in(dir: &Dir, file: &str) -> Result<CpuList> {
    parse(dir, file, &dir.read_value(file)?)
}

fn parse(dir: &Dir, file: &str, text: &str) -> Result<CpuList> {
    CpuList::parse(text).ok_or_else(|| Error::new("not a list of CPUs:").at(dir.path().join(file)).value(text.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine's /sys/devices: each CPU's package and core, and for every other level the groups of CPUs.
    struct Machine(tempfile::TempDir);

    impl Machine {
        /// Each CPU's package and core.
        fn new(cpus: &[(u32, u32)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            let same = |is: &dyn Fn(&(u32, u32)) -> bool| -> CpuList {
                let numbers = cpus.iter().enumerate().filter(|(_, cpu)| is(cpu));
                numbers.map(|(number, _)| u32::try_from(number).unwrap()).collect()
            };
            for (number, (package, core)) in cpus.iter().enumerate() {
                let topology = format!("system/cpu/cpu{number}/topology");
                machine.put(&format!("{topology}/core_id"), core);
                machine.put(&format!("{topology}/core_cpus_list"), same(&|cpu| cpu == &(*package, *core)));
                machine.put(&format!("{topology}/package_cpus_list"), same(&|cpu| cpu.0 == *package));
            }
            let all = same(&|_| true);
            machine.put("system/cpu/online", &all);
            machine.put("system/cpu/present", &all);
            machine
        }

        fn put(&self, file: &str, text: impl ToString) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{}\n", text.to_string())).unwrap();
        }

        /// Makes these groups of CPUs the groups of the level that this file describes.
        fn level(self, file: &str, groups: &[&str]) -> Self {
            for group in groups {
                for cpu in CpuList::parse(group).unwrap().iter() {
                    self.put(&format!("system/cpu/cpu{cpu}/{file}"), group);
                }
            }
            self
        }

        fn caches(self, groups: &[&str]) -> Self {
            let all: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            for cpu in CpuList::parse(&all.join(",")).unwrap().iter() {
                for (index, level) in ["1", "1", "2", "3"].iter().enumerate() {
                    self.put(&format!("system/cpu/cpu{cpu}/cache/index{index}/level"), level);
                    self.put(&format!("system/cpu/cpu{cpu}/cache/index{index}/shared_cpu_list"), cpu);
                }
            }
            self.level("cache/index3/shared_cpu_list", groups)
        }

        /// NUMA nodes with their CPUs and distances.
        fn nodes(self, nodes: &[(&str, &str)]) -> Self {
            for (number, (cpus, distances)) in nodes.iter().enumerate() {
                self.put(&format!("system/node/node{number}/cpulist"), cpus);
                self.put(&format!("system/node/node{number}/distance"), distances);
            }
            self
        }

        fn read(&self) -> Result<Topology> {
            Topology::read(&Dir::open(self.0.path()).unwrap())
        }

        /// The CPUs of each Slurm core.
        fn cores(&self) -> Vec<String> {
            self.read().unwrap().cores.iter().map(ToString::to_string).collect()
        }

        fn refusal(&self) -> String {
            self.read().unwrap_err().to_string()
        }
    }

    /// Sockets x cores x threads; a core's threads lie `number of cores` apart, as Intel's and AMD's firmware has them.
    fn interleaved(sockets: u32, cores: u32, threads: u32) -> Vec<(u32, u32)> {
        let core = |index: u32| (index / cores, index % cores);
        (0..threads).flat_map(|_| (0..sockets * cores).map(core)).collect()
    }

    #[test]
    fn two_sockets_of_two_cores_with_siblings_behind_all_cores() {
        let machine = Machine::new(&interleaved(2, 2, 2)).caches(&["0-1,4-5", "2-3,6-7"]);
        let machine = machine.nodes(&[("0-1,4-5", "10 21"), ("2-3,6-7", "21 10")]);
        assert_eq!(machine.cores(), ["0,4", "1,5", "2,6", "3,7"]);
        let topology = machine.read().unwrap();
        let cpus = |cores: &str| topology.cpus_of(&CpuList::parse(cores).unwrap()).map(|cpus| cpus.to_string());
        assert_eq!(cpus("1-2").unwrap(), "1-2,5-6");
        assert_eq!(cpus("").unwrap(), "");
        assert_eq!((topology.cores(), topology.threads_per_core()), (4, 2));
        let error = cpus("3-4").unwrap_err().to_string();
        assert!(error.contains("grants core 4, but this machine has 4 cores"), "{error}");
    }

    #[test]
    fn siblings_that_lie_side_by_side() {
        // POWER, and some virtual machines.
        let machine = Machine::new(&[(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]);
        // There the kernel reports every CPU as a die.
        let machine = machine.level("topology/die_cpus_list", &["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(machine.cores(), ["0-1", "2-3", "4-5", "6-7"]);
    }

    #[test]
    fn one_socket_without_siblings() {
        let machine = Machine::new(&interleaved(1, 4, 1)).caches(&["0-3"]).nodes(&[("0-3", "10")]);
        assert_eq!(machine.cores(), ["0", "1", "2", "3"]);
        // A node without CPUs; then a kernel that reports neither packages nor nodes.
        let machine = machine.nodes(&[("0-3", "10 17"), ("", "17 10")]);
        assert_eq!(machine.cores().len(), 4);
        for cpu in 0..4 {
            fs::remove_file(machine.0.path().join(format!("system/cpu/cpu{cpu}/topology/package_cpus_list"))).unwrap();
        }
        fs::remove_dir_all(machine.0.path().join("system/node")).unwrap();
        assert_eq!(machine.cores(), ["0", "1", "2", "3"]);
    }

    #[test]
    fn several_third_level_caches_in_a_package_and_old_names_of_files() {
        // AMD EPYC: four caches of two cores, two NUMA nodes (NPS2).
        let caches = ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"];
        let machine = Machine::new(&interleaved(1, 8, 2)).caches(&caches);
        let machine = machine.nodes(&[("0-3,8-11", "10 12"), ("4-7,12-15", "12 10")]);
        let cores = machine.cores();
        assert_eq!((cores.len(), cores[5].as_str()), (8, "5,13"));
        for cpu in 0..16 {
            let path = |file: &str| machine.0.path().join(format!("system/cpu/cpu{cpu}/topology/{file}"));
            fs::rename(path("core_cpus_list"), path("thread_siblings_list")).unwrap();
            fs::rename(path("package_cpus_list"), path("core_siblings_list")).unwrap();
        }
        assert_eq!(machine.cores(), cores);
    }

    #[test]
    fn sockets_that_take_turns_are_put_one_after_the_other() {
        // Many Dell machines: even CPUs on the first socket, odd ones on the second. hwloc always has packages.
        let cpus: Vec<(u32, u32)> = (0..8).map(|cpu| (cpu % 2, (cpu % 4) / 2)).collect();
        let machine = Machine::new(&cpus).caches(&["0,2,4,6", "1,3,5,7"]);
        let machine = machine.nodes(&[("0,2,4,6", "10 20"), ("1,3,5,7", "20 10")]);
        assert_eq!(machine.cores(), ["0,4", "2,6", "1,5", "3,7"]);
    }

    #[test]
    fn an_order_that_depends_on_what_hwloc_groups_by_is_refused() {
        let machine = || Machine::new(&interleaved(1, 4, 1));
        let error = machine().caches(&["0,2", "1,3"]).refusal();
        assert!(error.contains("one third-level cache do not follow each other"), "{error}");
        let error = machine().nodes(&[("0,3", "10 20"), ("1-2", "20 10")]).refusal();
        assert!(error.contains("one NUMA node do not follow each other"), "{error}");
        let error = machine().level("topology/cluster_cpus_list", &["0,2", "1,3"]).refusal();
        assert!(error.contains("one cluster"), "{error}");
        // Four sockets; the first and the third are neighbours.
        let machine = Machine::new(&interleaved(4, 1, 1));
        let far = [("0", "10 30 20 30"), ("1", "30 10 30 20"), ("2", "20 30 10 30"), ("3", "30 20 30 10")];
        let error = machine.nodes(&far).refusal();
        assert!(error.contains("one group of NUMA nodes do not follow each other"), "{error}");
        let machine = Machine::new(&interleaved(4, 1, 1));
        let near = [("0", "10 20 30 30"), ("1", "20 10 30 30"), ("2", "30 30 10 20"), ("3", "30 30 20 10")];
        assert_eq!(machine.nodes(&near).cores(), ["0", "1", "2", "3"]);
    }

    #[test]
    fn what_slurm_numbers_otherwise_is_refused() {
        let machine = Machine::new(&interleaved(1, 4, 1));
        machine.put("system/cpu/online", "0-2");
        assert!(machine.refusal().contains("CPUs are offline") && machine.refusal().contains("(value \"3\")"));
        machine.put("system/cpu/online", "0-2,4");
        machine.put("system/cpu/present", "0-2,4");
        assert!(machine.refusal().contains("have gaps"), "{}", machine.refusal());

        // Two cores with siblings and two without; and the processors of that kind with a PMU for each kind.
        let hybrid = Machine::new(&[(0, 0), (0, 1), (0, 0), (0, 1), (0, 2), (0, 3)]);
        assert!(hybrid.refusal().contains("unlike numbers of hardware threads"), "{}", hybrid.refusal());
        let alike = Machine::new(&interleaved(1, 4, 1));
        alike.put("cpu_atom/cpus", "2-3");
        assert_eq!(alike.cores().len(), 4);
        alike.put("cpu_core/cpus", "0-1");
        assert!(alike.refusal().contains("two kinds of cores"), "{}", alike.refusal());

        let some = Machine::new(&interleaved(1, 4, 1)).caches(&["2-3"]);
        assert!(some.refusal().contains("only some of the CPUs"), "{}", some.refusal());
        let others = Machine::new(&interleaved(1, 4, 1)).caches(&["0-1"]);
        assert!(others.refusal().contains("does not say of every CPU"), "{}", others.refusal());

        // AMD's family 15h.
        let modules = Machine::new(&[(0, 0), (0, 0), (0, 1), (0, 1)]);
        modules.put("system/cpu/cpu3/topology/core_id", 7);
        assert!(modules.refusal().contains("gives them several numbers"), "{}", modules.refusal());
    }

    #[test]
    fn a_kernel_that_contradicts_itself_is_refused() {
        let machine = Machine::new(&interleaved(1, 4, 2)).level("topology/core_cpus_list", &["0-1"]);
        assert!(machine.refusal().contains("contradicts itself"), "{}", machine.refusal());
        let machine = Machine::new(&interleaved(2, 2, 2)).level("topology/package_cpus_list", &["0-3", "4-7"]);
        assert!(machine.refusal().contains("in several packages"), "{}", machine.refusal());
        let machine = Machine::new(&interleaved(1, 2, 1));
        machine.put("system/cpu/cpu1/topology/core_cpus_list", "x");
        assert!(machine.refusal().contains("not a list of CPUs"), "{}", machine.refusal());
        fs::remove_file(machine.0.path().join("system/cpu/cpu0/topology/core_cpus_list")).unwrap();
        fs::remove_file(machine.0.path().join("system/cpu/cpu1/topology/core_cpus_list")).unwrap();
        assert!(machine.refusal().contains("which CPUs are one core"), "{}", machine.refusal());
    }

    #[test]
    fn slurm_must_call_a_core_what_the_kernel_does() {
        let temp = tempfile::tempdir().unwrap();
        let conf = temp.path().join("slurm.conf");
        fs::write(&conf, "NodeName=n[1-2] ThreadsPerCore=2\nNodeName=n3 CPUs=8\n").unwrap();
        let two = Machine::new(&interleaved(2, 2, 2)).read().unwrap();
        two.check_node(Some(&conf), Some("n2")).unwrap();
        let refusal = |conf: Option<&Path>, node: &str| two.check_node(conf, Some(node)).unwrap_err().to_string();
        let error = refusal(Some(&conf), "n3");
        assert!(
            error.contains("2 hardware threads, and 1 in Slurm's eyes") && error.contains("slurm.conf:2"),
            "{error}"
        );
        assert!(refusal(Some(&conf), "n4").contains("has no line NodeName=n4"), "{}", refusal(Some(&conf), "n4"));
        assert!(refusal(None, "n1").contains("does not tell what Slurm calls a core"));
        Machine::new(&interleaved(2, 2, 1)).read().unwrap().check_node(None, Some("n4")).unwrap();
    }

    #[test]
    fn this_machine_is_mapped_or_refused() {
        if let Ok(topology) = Topology::read(&Dir::open("/sys/devices").unwrap()) {
            let all: CpuList = (0..u32::try_from(topology.cores()).unwrap()).collect();
            let cpus = topology.cpus_of(&all).unwrap();
            assert_eq!(cpus.len(), topology.cores() * topology.threads_per_core());
        }
    }
}
