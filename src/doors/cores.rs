// SPDX-License-Identifier: GPL-2.0-or-later
//! On which CPUs a job runs, where its scheduler only says how many, and the site wants each job on CPUs of its own (`ConstrainCores`).
//!
//! What is chosen stands in the record of each fence of the job's run, as all its limits do, and is taken as long as there is one of them: see
//! `gpus.rs`, where it is the same of GPUs. Unlike GPUs, CPUs are shared if too few are free: PBS grants those of a suspended job to another one,
//! and the quota holds all the same.

use std::time::{Duration, Instant};

use crate::cgroup::cpuset;
use crate::config::{Config, Mode};
use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::{Cpus, Id};
use crate::log;
use crate::record::{Records, Shared};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;

/// How long another one may choose, which makes a fence meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// The CPUs of a job's run.
#[derive(Debug, Default)]
pub struct ChosenCores {
    /// They; `None`: it is not kept to any.
    pub cpus: Option<CpuList>,
    /// Keeps others from choosing, until these are recorded. `None`: they were the job's before.
    lock: Option<Lock>,
}

impl ChosenCores {
    /// What the job has left of them when the fence of this step has its record, if that is less: another process may have given some back
    /// since they were read, and another job may have those.
    pub fn left(&self, (host, config): (&Host, &Config), whose: (&Id, u32), step: &Id) -> Result<Option<CpuList>> {
        let Some(cpus) = self.cpus.as_ref().filter(|_| self.lock.is_none()) else { return Ok(None) };
        let recorded = Records::open(&config.run_dir)?.of_boot(&host.boot_id)?;
        let others: Vec<&Shared> =
            recorded.iter().filter(|shared| is_of(shared, whose) && shared.step != *step).collect();
        let left = lists(&others).first().map(|all| all.in_both(cpus));
        Ok(left.filter(|left| !left.is_empty() && left.len() < cpus.len()))
    }
}

/// The CPUs of a run of a job that was granted so many. One that was granted none, or all, is not kept to any.
pub fn of_run((host, config): (&Host, &Config), whose: (&Id, u32), granted: Option<Cpus>) -> Result<ChosenCores> {
    let granted = granted.filter(|cpus| *cpus != Cpus::ZERO);
    let Some(granted) = granted.filter(|_| config.constrain_cores && config.mode == Mode::Enforce) else {
        return Ok(ChosenCores::default());
    };
    let wanted = usize::try_from(granted.thousandths().div_ceil(1000)).unwrap_or(usize::MAX);
    let records = Records::open(&config.run_dir)?;
    let devices = Dir::open("/sys/devices")?;
    let here = usable(host)?;
    // A later step, and a job that gives a part back, keep to what the job has. So nobody else's choice matters to them.
    let has_of = |recorded: &[Shared]| {
        let ours: Vec<&Shared> = recorded.iter().filter(|shared| is_of(shared, whose)).collect();
        lists(&ours).iter().fold(CpuList::default(), |all, cpus| all.and(cpus)).in_both(&here)
    };
    let mut recorded = records.of_boot(&host.boot_id)?;
    let (mut has, mut lock) = (has_of(&recorded), None);
    if has.is_empty() {
        lock = Some(records.lock_cores(Instant::now() + PATIENCE)?);
        recorded = records.of_boot(&host.boot_id)?;
        has = has_of(&recorded);
    }
    let others: Vec<&Shared> = recorded.iter().filter(|shared| !is_of(shared, whose)).collect();
    let (taken, places) = (lists(&others), NearCpus::read(&devices, &here));
    let mut cpus = choose(&if has.is_empty() { with(&here, &taken, 0) } else { has.clone() }, &places, wanted);
    if has.is_empty() && cpus.len() < wanted {
        let job = whose.0;
        log::warn!(
            "job {job}: too few CPUs are free for the {wanted} that it was granted: it shares CPUs with other jobs"
        );
        for jobs in 1..=taken.len() {
            let more = with(&here, &taken, jobs).without(&cpus);
            cpus = cpus.and(&choose(&more, &places, wanted - cpus.len()));
        }
    }
    Ok(ChosenCores { cpus: Some(cpus), lock })
}

fn is_of(shared: &Shared, (job, run): (&Id, u32)) -> bool {
    shared.run == run && shared.job == *job
}

/// The CPUs of each of these jobs.
fn lists(all: &[&Shared]) -> Vec<CpuList> {
    let mut found: Vec<((&Id, u32), CpuList)> = Vec::new();
    for shared in all {
        let Some(cpus) = shared.plan.as_ref().and_then(|plan| plan.plan.job.cores.clone()) else { continue };
        match found.iter_mut().find(|(whose, _)| is_of(shared, *whose)) {
            Some((_, before)) => *before = before.and(&cpus),
            None => found.push(((&shared.job, shared.run), cpus)),
        }
    }
    found.into_iter().map(|(_, cpus)| cpus).collect()
}

/// Those of these CPUs that at most so many jobs have.
fn with(here: &CpuList, taken: &[CpuList], jobs: usize) -> CpuList {
    here.iter().filter(|cpu| taken.iter().filter(|cpus| cpus.contains(*cpu)).count() <= jobs).collect()
}

/// The CPUs that jobs may use here: those of the directory of all fences, or of the nearest one around it that the kernel has a list of.
fn usable(host: &Host) -> Result<CpuList> {
    let missing = || Error::new("this host has no cpuset controller").hint("set ConstrainCores=no");
    let hierarchy = host.layout.with_controller("cpuset").ok_or_else(missing)?;
    let base = hierarchy.mount.join(host.base.trim_start_matches('/'));
    let around = base.ancestors().take_while(|path| path.starts_with(&hierarchy.mount));
    let list = |path| cpuset::effective(&Dir::open(path).ok()?, hierarchy.version).ok().filter(|cpus| !cpus.is_empty());
    around.into_iter().find_map(list).ok_or_else(missing)
}

/// Which CPUs are near each other.
struct NearCpus {
    nodes: Vec<CpuList>,
    cores: Vec<CpuList>,
}

impl NearCpus {
    /// As the kernel says it below `/sys/devices`. What it does not say lies alone.
    fn read(devices: &Dir, cpus: &CpuList) -> Self {
        let list = |file: &str| CpuList::parse(devices.read_value(file).ok()?.trim());
        let core = |cpu: u32| {
            let files =
                ["core_cpus_list", "thread_siblings_list"].map(|file| format!("system/cpu/cpu{cpu}/topology/{file}"));
            files.iter().find_map(|file| list(file)).unwrap_or_else(|| std::iter::once(cpu).collect())
        };
        let mut cores: Vec<CpuList> = Vec::new();
        for cpu in cpus.iter() {
            if !cores.iter().any(|core| core.contains(cpu)) {
                cores.push(core(cpu));
            }
        }
        let system = devices.child("system/node").and_then(|system| system.list(true)).unwrap_or_default();
        let nodes = system.iter().filter(|name| name.starts_with("node"));
        Self { nodes: nodes.filter_map(|name| list(&format!("system/node/{name}/cpulist"))).collect(), cores }
    }
}

/// Chooses `wanted` of the free CPUs, or all if there are fewer. They are in the NUMA node that has the fewest left afterwards, if one has
/// enough, and otherwise in those that have most. They are whole cores as far as possible.
fn choose(free: &CpuList, places: &NearCpus, wanted: usize) -> CpuList {
    let mut left = free.clone();
    let mut chosen: Vec<u32> = Vec::new();
    while chosen.len() < wanted && !left.is_empty() {
        let more = wanted - chosen.len();
        let nodes: Vec<CpuList> = places.nodes.iter().map(|node| node.in_both(&left)).collect();
        let fits = nodes.iter().filter(|node| node.len() >= more).min_by_key(|node| node.len());
        let node = fits.or_else(|| nodes.iter().rev().max_by_key(|node| node.len())).filter(|node| !node.is_empty());
        let node = node.unwrap_or(&left).clone();
        let those = within(&node, &places.cores, more);
        left = left.without(&those);
        chosen.extend(those.iter());
    }
    chosen.into_iter().collect()
}

fn within(free: &CpuList, cores: &[CpuList], wanted: usize) -> CpuList {
    let mut chosen: Vec<u32> = Vec::new();
    let whole = || cores.iter().filter(|core| !core.is_empty() && core.is_within(free));
    for core in whole().filter(|core| core.len() <= wanted) {
        if chosen.len() + core.len() <= wanted {
            chosen.extend(core.iter());
        }
    }
    // The rest shares a core with another job, before it takes a part of a free one.
    let parts = cores.iter().filter(|core| !core.is_within(free)).chain(whole()).flat_map(CpuList::iter);
    for cpu in parts.chain(free.iter()) {
        if chosen.len() < wanted && free.contains(cpu) && !chosen.contains(&cpu) {
            chosen.push(cpu);
        }
    }
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn list(text: &str) -> CpuList {
        CpuList::parse(text).unwrap()
    }

    #[test]
    fn a_job_has_whole_cores_of_one_numa_node_as_far_as_can_be() {
        let lists = |all: &[&str]| all.iter().map(|text| list(text)).collect::<Vec<_>>();
        let places = NearCpus {
            nodes: lists(&["0-3,8-11", "4-7,12-15"]),
            cores: (0..8).map(|n| list(&format!("{n},{}", n + 8))).collect(),
        };
        for (free, wanted, expected) in [
            ("0-15", 1, "0"),
            ("0-15", 2, "0,8"),
            ("0-15", 4, "0-1,8-9"),
            ("0-15", 3, "0-1,8"),
            // The half of a core that another job has a part of.
            ("0-14", 1, "7"),
            // And no half where there is a whole one.
            ("0-14", 2, "4,12"),
            ("1-15", 3, "1,8-9"),
            // The node that it fills, or that it leaves the least of.
            ("0-3,8-11,4-5,12-13", 4, "4-5,12-13"),
            ("0-3,8-11,4-5,12-13", 6, "0-2,8-10"),
            // More than any node has.
            ("0-15", 10, "0-4,8-12"),
            ("1,4-7,12-15", 9, "1,4-7,12-15"),
            ("1,4", 3, "1,4"),
        ] {
            assert_eq!(choose(&list(free), &places, wanted).to_string(), expected, "{wanted} of {free}");
        }
        let nothing_said = NearCpus { nodes: Vec::new(), cores: Vec::new() };
        assert_eq!(choose(&list("2-5"), &nothing_said, 2).to_string(), "2-3");
    }

    #[test]
    fn what_the_fewest_jobs_have_is_shared_first() {
        let taken = [list("0-3"), list("2-3"), list("3")];
        let texts = [0, 1, 2, 3].map(|jobs| with(&list("0-4"), &taken, jobs).to_string());
        assert_eq!(texts, ["4", "0-1,4", "0-2,4", "0-4"]);
    }

    #[test]
    fn the_kernel_says_what_is_near() {
        let temp = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = temp.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (cpu, siblings) in [(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")] {
            write(&format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"), &format!("{siblings}\n"));
        }
        write("system/node/node0/cpulist", "0-3\n");
        write("system/node/has_cpu", "0\n");
        let places = NearCpus::read(&Dir::open(temp.path()).unwrap(), &list("0-4"));
        let texts = |lists: &[CpuList]| lists.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (texts(&places.nodes), texts(&places.cores)),
            (vec!["0-3".into()], vec!["0,2".into(), "1,3".into(), "4".into()])
        );
    }
}
