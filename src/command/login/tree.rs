// SPDX-License-Identifier: GPL-2.0-or-later
//! Limits a user in a fence of our own, where no systemd makes slices for users: all processes of the user that are in no fence are moved
//! into job `login-UID`. No process is ended: when the limits are given back, the processes go back to where they came from.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Hierarchy, Layout, Version};
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, Limit, LimitNumbers, Mode, StraysAction};
use jobfence::doors::life;
use jobfence::doors::recorded::WantedFences;
use jobfence::error::{Error, Result};
use jobfence::fence::living::LivingStep;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::fence::{Fence, put_back_stranger};
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::launch::Begin;
use jobfence::policy::{self, Plan};
use jobfence::record::Records;
use jobfence::record::holder::Holder;
use jobfence::record::noted::Noted;
use jobfence::requests::UserRequests;
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{self, Owner};
use nix::unistd::{SysconfVar, sysconf};

use super::limits::UserLimits;
use crate::strays::{Stray, StraysSearch};

/// The holder of the fence. Neither the janitor nor a second start of this program ends what such a holder has.
const HELD: Holder = Holder::Manual;
const RUN: u32 = 1;

/// How often new processes are looked for while those of a user are moved.
const MOST_ROUNDS: usize = 10;

fn job(uid: u32) -> Result<Id> {
    Id::new(format!("login-{uid}"))
}

/// The users that have such a fence. The file of one may be lost.
pub fn uids(host: &Host, config: &Config) -> Result<Vec<u32>> {
    let Some(records) = Records::existing(&config.run_dir)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for levels in records.list()? {
        let mut above = levels.iter().rev().skip(1);
        let uid = above.next().and_then(|job| job.strip_prefix("job_login-")?.parse().ok());
        let Some(uid) = uid.filter(|uid| above.next() == Some(&format!("uid_{uid}"))) else { continue };
        if records.read(&levels)?.is_some_and(|record| record.is_here(host)) {
            found.push(uid);
        }
    }
    Ok(found)
}

/// The user's fence, if there is one.
pub fn existing(host: &Host, config: &Config, uid: u32) -> Result<Option<Fence>> {
    let Some(records) = Records::existing(&config.run_dir)? else { return Ok(None) };
    let all = records.of_job(&job(uid)?)?;
    let found = all.into_iter().find(|record| record.uid() == Some(uid) && record.is_here(host));
    found.map(|record| life::go_on(host, config, &record)).transpose()
}

/// Makes the fence.
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
        has_pid_namespace: false,
    };
    begin.open(|| plan(&exact, limits)).map(|begun| begun.fence).map_err(|why| why.to_string())
}

/// Sets other limits in the fence.
pub fn change(fence: &mut Fence, config: &Config, limits: &UserLimits) -> std::result::Result<(), String> {
    if config.mode != Mode::Enforce {
        return Ok(());
    }
    let (plan, errors) = plan(&exact(config, limits), limits);
    let first = errors.into_iter().chain(fence.change(&plan)).next();
    first.map_or(Ok(()), |(limit, error)| Err(format!("the {limit} limit cannot be set: {error}")))?;
    fence.hand_over(None, Noted::default()).map_err(|error| error.to_string())
}

/// A configuration that sets these limits and nothing else.
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

/// The plan for a fence whose only step is the whole job: with a quota at both levels, the kernel would stop now the one and now the other.
/// The plan always has a quota, since a fence can only change limits that it was opened with.
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

/// The CPU time of all that was in the fence, with the number of the directory that counts it.
pub fn counter(fence: &Fence) -> Option<(u64, Duration)> {
    let directory = fence.step_dirs(&["cpuacct", "cpu"]).into_iter().next()?;
    Some((std::fs::metadata(directory).ok()?.ino(), fence.usage().cpu?))
}

/// Moves these processes into the fence, and those that they have started meanwhile. Returns how many, and why one stays outside.
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
    loop {
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&config.run_dir, &wanted, &mut unseen);
        let (steps, errors) = find(host, ALL, &recorded, &wanted);
        // Closing a fence kills what is in it. So every process must have been seen before.
        if let Some(error) = unseen.into_iter().chain(errors).next() {
            return Err(error.to_string());
        }
        let mut inside = Vec::new();
        for step in &steps {
            for process in step.processes().map_err(in_words)? {
                // A process whose first thread has ended may live on. A process that is ending is waited for.
                inside.extend(Owner::from_pid(&host.proc, process.pid).map_err(in_words)?);
            }
        }
        if inside.is_empty() {
            break;
        }
        let mut remains = Vec::new();
        for id in inside.iter().take_while(|_| Instant::now() < deadline) {
            remains.extend((!is_put_back(host, &steps, &places, (uid, *id))).then_some(id.pid));
        }
        if Instant::now() >= deadline {
            let pids: Vec<i32> = inside.iter().map(|id| id.pid).collect();
            return Err(format!("processes stay in the fence: {pids:?}"));
        }
        if !remains.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // Only root could have put a process into the fence since it was empty.
    let which = WantedFences { job, step: None, run: None };
    let closed = life::close(&exact(config, &UserLimits::default()), &which).map_err(in_words)?;
    closed.into_iter().try_for_each(|one| one.map(drop)).map_err(in_words)
}

/// Moves a process out of the fence, in each hierarchy that has it there, to the first of these places that takes it.
fn is_put_back(host: &Host, steps: &[LivingStep<'_>], places: &[Membership], (uid, id): (u32, Owner)) -> bool {
    let is_inside = |hierarchy: &Hierarchy, path: &str| {
        let Some(below) = hierarchy.below_mount(path) else { return false };
        let dir = hierarchy.mount.join(below.trim_start_matches('/'));
        let mut all = steps.iter().flat_map(|step| &step.places);
        all.any(|place| place.hierarchy.mount == hierarchy.mount && dir.starts_with(&place.job))
    };
    let mut is_out = true;
    for hierarchy in &host.layout.hierarchies {
        let Ok(now) = membership(&host.proc, id.pid) else { return false };
        if !now.path_in(hierarchy).is_some_and(|path| is_inside(hierarchy, path)) {
            continue;
        }
        if Owner::from_pid(&host.proc, id.pid) != Ok(Some(id)) {
            // The process has ended. If another one with its number is in the fence, the next look finds it.
            return true;
        }
        let mut targets = places.iter().filter_map(|place| place.path_in(hierarchy));
        is_out &= targets.any(|path| {
            let put = || hierarchy.dir_of(path).and_then(|dir| dir.write("cgroup.procs", &id.pid.to_string()));
            !is_inside(hierarchy, path) && put().is_ok()
        });
        if matches!(Owner::from_pid(&host.proc, id.pid), Ok(Some(other)) if other != id) {
            log::warn!("{}", put_back_stranger(host, uid, id));
            return true;
        }
    }
    is_out
}

/// The cgroups of a process. On v1, a first thread that has ended is in none, while the other threads are where they were.
fn membership(proc: &Dir, pid: i32) -> Result<Membership> {
    if !process::is_leaderless(proc, pid) {
        return Membership::read(proc, pid);
    }
    let first = pid.to_string();
    let threads = proc.child(&format!("{pid}/task"))?.list(true)?;
    let mut others = threads.iter().filter(|thread| **thread != first);
    let text = others.find_map(|thread| proc.read_table(&format!("{pid}/task/{thread}/cgroup")).ok());
    text.map_or_else(|| Membership::read(proc, pid), |text| Ok(Membership::parse(&text)))
}

/// The cgroups in which the first process of a host is, if nobody moves it.
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
