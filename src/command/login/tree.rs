// SPDX-License-Identifier: GPL-2.0-or-later
//! A user's fence in our own tree, where no systemd makes slices for users: job `login-UID`, into which all processes of the user are
//! moved that are in no fence. No process is ended with it: when the limits are given back, the processes go back to where they came from.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Layout, Version};
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, Limit, LimitNumbers, Mode, StraysAction};
use jobfence::doors::life;
use jobfence::doors::recorded::WantedFences;
use jobfence::error::{Error, Result};
use jobfence::fence::Fence;
use jobfence::fence::living::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::launch::Begin;
use jobfence::policy::{self, Plan};
use jobfence::record::Records;
use jobfence::record::holder::Holder;
use jobfence::record::noted::Noted;
use jobfence::requests::UserRequests;
use jobfence::schedulers::ALL;
use jobfence::sys::process;
use nix::unistd::{SysconfVar, sysconf};

use super::limits::UserLimits;
use crate::strays::{Stray, StraysSearch};

/// Neither the janitor nor a second start of this program ends what is in it.
const HELD: Holder = Holder::Manual;
const RUN: u32 = 1;

/// How often new processes are looked for while a user's are moved.
const MOST_ROUNDS: usize = 10;

fn job(uid: u32) -> Result<Id> {
    Id::new(format!("login-{uid}"))
}

/// The user's fence, if there is one.
pub fn existing(host: &Host, config: &Config, uid: u32) -> Result<Option<Fence>> {
    let records = match Records::open(&config.run_dir) {
        Err(error) if error.is_gone() => return Ok(None),
        records => records?,
    };
    let found = records.of_job(&job(uid)?)?.into_iter().find(|record| {
        record.uid() == Some(uid) && record.boot_id == host.boot_id && record.pid_namespace == host.pid_namespace
    });
    found.map(|record| life::go_on(host, config, &record)).transpose()
}

/// Makes it.
pub fn open(host: &Host, config: &Config, uid: u32, limits: &UserLimits) -> std::result::Result<Fence, String> {
    let in_words = |error: Error| error.to_string();
    let key = JobKey { node: None, uid, job: job(uid).map_err(in_words)?, step: Id::new("0").map_err(in_words)? };
    let exact = exact(config, limits);
    let begin = Begin {
        host,
        config: &exact,
        schedulers: ALL,
        key: &key,
        requests: &UserRequests::default(),
        daemon: None,
        holder: Some((&HELD, RUN)),
        gpus: &[],
        noted: None,
        starts_processes: false,
    };
    begin.open(|| plan(&exact, limits)).map(|begun| begun.fence).map_err(|why| why.to_string())
}

/// Sets other limits.
pub fn change(fence: &mut Fence, config: &Config, limits: &UserLimits) -> std::result::Result<(), String> {
    if config.mode != Mode::Enforce {
        return Ok(());
    }
    let (plan, errors) = plan(&exact(config, limits), limits);
    let first = errors.into_iter().chain(fence.change(&plan)).next();
    first.map_or(Ok(()), |(limit, error)| Err(format!("the {limit} limit cannot be set: {error}")))?;
    fence.hand_over(None, Noted::default()).map_err(|error| error.to_string())
}

/// Nothing but these limits.
fn exact(config: &Config, limits: &UserLimits) -> Config {
    let numbers = LimitNumbers::with(Limit::Processes, limits.processes);
    Config {
        cgroup_base: config.cgroup_base.clone(),
        cgroup_mountpoint: config.cgroup_mountpoint.clone(),
        run_dir: config.run_dir.clone(),
        mode: config.mode,
        cleanup_timeout: config.cleanup_timeout,
        constrain_ram_space: limits.memory.is_some(),
        min_ram_space: 0,
        numbers,
        io_max: limits.io.clone(),
        ..Config::default()
    }
}

/// The step is the whole job: with a quota at both levels, the kernel would stop now the one and now the other. A quota there is in any case,
/// since a fence has only the limits that it was opened with.
fn plan(exact: &Config, limits: &UserLimits) -> (Plan, Vec<(Limit, Error)>) {
    let cpus = limits.cpus.unwrap_or_else(all_cpus);
    let (mut plan, errors) = policy::plan(exact, &Grant::whole(Some(cpus), limits.memory));
    plan.job.cpu = None;
    (plan, errors)
}

fn all_cpus() -> Cpus {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().and_then(|count| u32::try_from(count).ok());
    Cpus::whole(online.unwrap_or(1024).clamp(1, 1024))
}

/// The CPU time of all that was in the fence, with the number of its directory.
pub fn counter(fence: &Fence) -> Option<(u64, Duration)> {
    let directory = fence.step_dirs(&["cpuacct", "cpu"]).into_iter().next()?;
    Some((std::fs::metadata(directory).ok()?.ino(), fence.usage().cpu?))
}

/// Puts these processes in, and those that they have started meanwhile. Returns how many, and why one stays outside.
pub fn take(
    host: &Host,
    search: &StraysSearch<'_>,
    (fence, uid): (&mut Fence, u32),
    mut strays: Vec<Stray>,
    deadline: Instant,
) -> (usize, Option<String>) {
    let (mut taken, mut failed) = (0, None);
    for _ in 0..MOST_ROUNDS {
        let before = taken;
        for stray in strays.iter().take_while(|_| Instant::now() < deadline) {
            if !search.is_still(stray, StraysAction::Adopt) {
                continue;
            }
            match fence.attach_this(host, stray.id, None).map(|errors| errors.into_iter().next()) {
                Ok(None) => taken += 1,
                Ok(Some((_, error))) | Err(error) if stray.id.is_alive(&host.proc).unwrap_or(true) => {
                    failed = Some(format!("process {} stays outside: {error}", stray.id.pid));
                }
                _ => {}
            }
        }
        if taken == before || Instant::now() >= deadline {
            break;
        }
        let Ok(found) = search.find() else { break };
        strays = found.all;
        strays.retain(|stray| stray.uid == uid && stray.action() == Some(StraysAction::Adopt));
    }
    (taken, failed)
}

/// The cgroups of a process, in the form in which they are kept.
pub fn cgroups_of(host: &Host, pid: i32) -> Option<String> {
    host.proc.read_table(&format!("{pid}/cgroup")).ok()
}

/// Puts all processes back to these cgroups, or to the uppermost ones if they are gone, and removes the fence once it is empty.
pub fn give_back(
    host: &Host,
    config: &Config,
    (uid, from): (u32, &str),
    deadline: Instant,
) -> std::result::Result<(), String> {
    let in_words = |error: Error| error.to_string();
    let job = job(uid).map_err(in_words)?;
    let places = [Membership::parse(from), uppermost(&host.layout)];
    let wanted = WantedSteps { uid: Some(uid), job: Some(job.clone()), other_name: None };
    let recorded = Recorded::read(&config.run_dir, &wanted, &mut Vec::new());
    loop {
        let (steps, errors) = find(host, ALL, &recorded, &wanted);
        let mut inside = Vec::new();
        for step in &steps {
            inside.extend(step.processes().map_err(in_words)?.into_iter().map(|process| process.pid));
        }
        if let Some(error) = errors.first().filter(|_| steps.is_empty()) {
            return Err(error.to_string());
        }
        inside.retain(|pid| !process::is_dead(&host.proc, *pid));
        if inside.is_empty() {
            break;
        }
        let mut remains = Vec::new();
        for pid in &inside {
            let is_left = places.iter().all(|place| !place.restore(&host.layout, &host.proc, *pid).is_empty());
            remains.extend(is_left.then_some(*pid));
        }
        if Instant::now() >= deadline {
            return Err(format!("processes stay in the fence: {inside:?}"));
        }
        if !remains.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let which = WantedFences { job, step: None, run: None };
    let closed = life::close(&exact(config, &UserLimits::default()), &which).map_err(in_words)?;
    closed.into_iter().try_for_each(|one| one.map(drop)).map_err(in_words)
}

/// Where the first process of a host is if nobody moves it.
fn uppermost(layout: &Layout) -> Membership {
    let line = |hierarchy: &jobfence::cgroup::layout::Hierarchy| {
        let root = hierarchy.in_proc("/");
        match (hierarchy.version, &hierarchy.name) {
            (Version::V2, _) => format!("0::{root}\n"),
            (_, Some(name)) => format!("1:name={name}:{root}\n"),
            (_, None) => format!("1:{}:{root}\n", hierarchy.controllers.join(",")),
        }
    };
    Membership::parse(&layout.hierarchies.iter().map(line).collect::<String>())
}
