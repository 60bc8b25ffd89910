// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence explain`: which limits a job gets, from which line of which file, and what is written where.
//!
//! The same code as for a step computes the limits and the files; only the last write is omitted.

mod asking;
mod options;
mod present;
mod words;

use std::path::Path;
use std::process::ExitCode;

use jobfence::cgroup::devices::Devices;
use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::config::{Limit, Loaded, Mode, Percent, Resolved};
use jobfence::cpu_list::CpuList;
use jobfence::facts::Fact;
use jobfence::fence::explain::{LimitLine, explain as lines_of};
use jobfence::host::Host;
use jobfence::job::{Id, JobKey};
use jobfence::policy;
use jobfence::requests::{Requests, UserRequests};
use jobfence::scheduler::Scheduler;
use jobfence::schedulers::slurm::SLURM;
use jobfence::schedulers::slurm::conf::{self, Checked, Lines};
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};
use jobfence::schedulers::slurm::prolog::gpus::{self, GpuSources};

use crate::again::AgainKey;
use crate::command::Failure;
use crate::resctrl::{NodeResctrl, WantedShares};
use crate::schedulers::slurm::node;
use crate::{again, armed, lend};
use asking::{Asking, ExplainedJob, as_said, know_user};
pub use options::ExplainOptions;

/// Fails if a limit cannot be set as configured.
pub fn explain(options: &ExplainOptions) -> Result<ExitCode, Failure> {
    let loaded = options.configured.load()?;
    let host = Host::read(&loaded.config)?;
    let slurm_conf = conf::find(loaded.file.as_deref());
    let node = &node::name(options.node.as_deref(), slurm_conf.as_deref()).unwrap_or_else(node::host);
    let checked = slurm_conf.as_deref().map(|file| Checked::by(&Lines::read(file))).unwrap_or_default();
    let places = GpuSources { slurm_conf, proc: &host.proc, root: Path::new("/") };
    let gpus = |numbers: &CpuList| gpus::with_numbers(numbers.iter().collect(), node, &places);
    let mut job = match &options.job {
        Some(job) => Asking { options, loaded: &loaded, host: &host, node, checked, gpus: &gpus }.of(job)?,
        None => as_said(options, &host.proc)?,
    };
    let asked = loaded.asked();
    job.facts.node = Fact::Known(node.clone());
    know_user(&mut job.facts, options, &asked);
    if let Some(numbers) = &options.gpus {
        job.facts.gpus = gpus(numbers);
    }
    let resolved = loaded.for_job(&job.facts)?;
    let config = &resolved.config;
    let requests = UserRequests { job: options.asked.read()?, step: Requests::default() };
    let topology = || Topology::from_machine(loaded.file.as_deref(), Some(node));
    // Slurm's name for the only step without tasks.
    let has_tasks = job.step != "extern";
    let left = job.left.as_ref().and_then(|left| left.plan.as_ref());
    let (plan, mut errors) = match left {
        Some(left) => (left.plan.clone(), Vec::new()),
        None => policy::of_step(&resolved, &job.facts, &job.grant, &requests, has_tasks, topology),
    };
    let uid = job.facts.uid.known().copied().unwrap_or_else(|| nix::unistd::getuid().as_raw());
    let node = job.facts.node.known().cloned().filter(|_| job.left.is_none());
    let key = JobKey { node: host.node_level(node)?, uid, job: job.id.clone(), step: Id::new(job.step.clone())? };
    words::describe(&job, &loaded, &resolved);
    println!("{}", words::limits(&plan, &job.step));
    say_what_else_happens(&loaded, (&resolved, &requests), &host);
    let slurm = Slurm::read(loaded.file.as_deref());
    if config.constrain_cores && slurm.is_none() && options.cores.is_none() && left.is_none() {
        errors.retain(|(limit, _)| *limit != Limit::Cores);
        println!("cores      under OpenPBS and by 'jobfence open', CPUs are chosen when the job begins");
    }
    let present = &job.present;
    let is_overlay = &|hierarchy: &Hierarchy| match &slurm {
        // Existing directories need no guess.
        _ if present.is_overlay(hierarchy).is_some() => present.is_overlay(hierarchy) == Some(true),
        _ if job.left.is_some() => false,
        _ if options.overlay => can_be_slurms(hierarchy),
        Some(slurm) => matches!(slurm.placement(hierarchy), ByConfig::Overlay(_)),
        None => false,
    };
    let theirs = slurm.as_ref().and_then(Slurm::swap_in_words);
    let whose = |hierarchy: &Hierarchy| is_overlay(hierarchy).then_some(&SLURM as &'static dyn Scheduler);
    let mut needed = requests.controllers();
    let of_fence = job.left.iter().flat_map(|left| &left.controllers);
    needed.extend(of_fence.filter_map(|name| CONTROLLERS.into_iter().find(|known| known == name)));
    let (lines, more) = lines_of(&host, config, &needed, &key, &plan, whose, theirs.is_some())?;
    errors.extend(more);
    for note in &present.notes {
        println!("{note}");
    }
    lines.iter().for_each(|line| say_line(line, &job, &resolved, &requests));
    let in_memory = host.layout.with_controller("memory");
    if let Some(theirs) = theirs.filter(|_| plan.step.swap_yields && in_memory.is_some_and(is_overlay)) {
        println!(
            "\nswap   is as Slurm says, since it limits memory itself: {theirs}; left to it by {}",
            words::setting("ConstrainSwapSpace", &resolved)
        );
    }
    if let Some(why) = plan.step.devices.as_ref().and_then(Devices::why_no_gpus) {
        println!("\nthe job may use none of its GPUs, since jobfence is not certain which devices they are: {why}");
    }
    let mut failed = false;
    for (limit, error) in &errors {
        println!("\n{limit} cannot be limited: {error}");
        failed = true;
    }
    failed |= lines.iter().any(|line| line.writes.is_err());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says what is done beside the limits, what jobfence.service does of it, and what of that cannot be done here.
fn say_what_else_happens(loaded: &Loaded, (resolved, requests): (&Resolved, &UserRequests), host: &Host) {
    let config = &resolved.config;
    if config.mode != Mode::Enforce {
        println!("mode       {}: none of this is written", words::mode_of(config));
    }
    let asked_at = requests.signal_at();
    match asked_at {
        Some(Some(asked)) => println!("told       by --signal-at={asked} (the user): needs jobfence.service"),
        None if config.signal_at.is_some() => {
            println!("told       by {}: needs jobfence.service", words::setting("SignalAt", resolved));
        }
        _ => {}
    }
    if lend::is_on(config) && config.elastic_ram > Percent::HUNDRED {
        let [elastic, pool] = ["ElasticRAMPercent", "MemoryPool"].map(|name| words::setting(name, resolved));
        match requests.elastic_ram().filter(|asked| *asked < config.elastic_ram) {
            Some(asked) if asked <= Percent::HUNDRED => {
                println!("lent       nothing, by --elastic-ram={asked} (the user)")
            }
            asked => {
                let elastic = asked.map_or(elastic, |asked| format!("--elastic-ram={asked} (the user)"));
                println!("lent       memory by {elastic}: needs jobfence.service\n           from {pool}");
                if lend::lends_unused(config) && config.scavenger {
                    let unused = words::setting("MemoryPoolUnused", resolved);
                    println!("           and what others do not touch, by {unused}: ended if the node is short");
                    let then = words::setting("ScavengerEnd", resolved);
                    if config.scavenger_end && again::doubts_here(AgainKey::ScavengerEnd, loaded).is_some() {
                        println!(
                            "           a batch job is then requeued, if its user allows it, by {then}: needs UsageLog"
                        );
                    }
                }
            }
        }
    }
    say_shares(resolved, host);
    for (key, what) in
        [(AgainKey::OnOutOfMemory, "killed"), (AgainKey::OnTimeLimit, "timed out"), (AgainKey::OnPreempt, "preempted")]
    {
        if key.is_set(config, None) && config.mode == Mode::Enforce && again::doubts_here(key, loaded).is_some() {
            let setting = words::setting(key.name(), resolved);
            println!(
                "{what:10} by {setting}: a batch job, if its user allows a requeue; needs jobfence.service and UsageLog"
            );
        }
    }
    let signal_at = asked_at.unwrap_or(config.signal_at);
    if let Some((unseen, why)) = signal_at.as_ref().and_then(|signal_at| armed::unseen(signal_at, host)) {
        unseen.iter().for_each(|condition| println!("told       not of {condition}: {why}"));
    }
}

/// Says what the job may use of caches and memory bandwidth, if a group is free then.
fn say_shares(resolved: &Resolved, host: &Host) {
    for (key, wanted) in WantedShares::from_config(&resolved.config).one_by_one() {
        println!("resctrl    by {}: needs jobfence.service", words::setting(key, resolved));
        let shares = NodeResctrl::read(&host.proc).map(|node| node.shares(wanted));
        let of_key = shares.map(|shares| shares.into_iter().map(|(_, share)| share).next());
        match of_key {
            Ok(Some(Ok(share))) => println!("           {share}, if a group is free"),
            Ok(Some(Err(why))) | Err(why) => println!("           not bounded here: {why}"),
            Ok(None) => {}
        }
    }
}

/// Says what is written into one directory for one limit, and by which key.
fn say_line(line: &LimitLine, job: &ExplainedJob<'_>, resolved: &Resolved, requests: &UserRequests) {
    println!();
    let found = job.present.dir(line);
    for text in words::in_words(line, found.as_deref()) {
        println!("{:6} {text}", line.level.to_string());
    }
    let is_guess = job.left.is_some() && resolved.candidates.len() > 1;
    let by = if is_guess { String::new() } else { words::reasons(line, resolved, requests) };
    match (job.left.is_some(), by.is_empty()) {
        (true, true) => println!("       {} by the record of the fence", line.limit),
        (true, false) => println!("       {} by the record of the fence; {by}", line.limit),
        (false, _) => println!("       {} by {by}", line.limit),
    }
}

/// Whether Slurm's cgroup plugins make directories in such a hierarchy with some configuration.
fn can_be_slurms(hierarchy: &Hierarchy) -> bool {
    let used: &[&str] = match hierarchy.version {
        Version::V2 => &["cpu", "memory"],
        Version::V1 => &["cpu", "cpuacct", "memory", "cpuset", "devices", "freezer"],
    };
    used.iter().any(|controller| hierarchy.has(controller))
}

/// Every controller that a limit may need.
const CONTROLLERS: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "io", "devices", "hugetlb"];
