// SPDX-License-Identifier: GPL-2.0-or-later
//! The beginning of a step: its configuration, leftovers of dead steps, the directories and their limits.

use std::time::Instant;

use crate::cgroup::membership::Membership;
use crate::config::{Config, Delegation, Loaded, Mode, Resolved};
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::fence::{self, Fence, LimitError, Opening, delegation};
use crate::host::Host;
use crate::janitor;
use crate::job::JobKey;
use crate::launch::refuse::{NotFenced, bear};
use crate::launch::tell::AskedProcesses;
use crate::launch::{early_move, end};
use crate::log;
use crate::policy::Plan;
use crate::private::{self, PrivateDirs, pids};
use crate::record::holder::Holder;
use crate::record::noted::{Allocated, Noted};
use crate::requests::UserRequests;
use crate::scheduler::Schedulers;

/// A step to be fenced.
#[derive(Debug, Clone, Copy)]
pub struct Begin<'a> {
    /// This machine.
    pub host: &'a Host,
    /// The configuration for its job.
    pub config: &'a Config,
    /// The schedulers that may have directories or daemons here.
    pub schedulers: Schedulers,
    /// The step.
    pub key: &'a JobKey,
    /// What the job's user requested.
    pub requests: &'a UserRequests,
    /// Where the scheduler's daemon of the step is. `None`: there is no such daemon.
    pub daemon: Option<&'a Membership>,
    /// The holder, if other processes go on with the fence, and the run of the step. `None`: only this process uses it.
    pub holder: Option<(&'a Holder, u32)>,
    /// The devices of the GPUs that were chosen for it.
    pub gpus: &'a [String],
    /// What those processes must know about the job, for the usage log and the metrics.
    pub noted: Option<&'a Noted>,
    /// Whether the caller starts the job's processes, so that each can be put into the job's own directories.
    pub starts_processes: bool,
    /// Whether the caller can have them in a PID namespace of their own.
    pub has_pid_namespace: bool,
}

/// A step that is fenced.
#[derive(Debug)]
pub struct Begun {
    /// Its fence.
    pub fence: Fence,
    /// Its limits; with Mode=observe, the limits that it would have.
    pub plan: Plan,
    /// Whether something that a dead step daemon left could not be removed.
    pub leftovers: bool,
    /// The job's own directories, which each of its processes must enter.
    pub private: Option<PrivateDirs>,
}

/// The configuration for a job with these facts.
pub fn resolve(loaded: &Loaded, facts: &Facts) -> Result<Resolved> {
    let mut resolved = loaded.for_job(facts)?;
    resolved.config.on_error = resolved.config.on_error.within(resolved.config.mode);
    Ok(resolved)
}

impl Begin<'_> {
    /// Opens the fence and sets the planned limits. `OnError` decides whether a limit may fail. After an error nothing is left.
    ///
    /// `plan` is called after the leftovers of dead step daemons were removed.
    pub fn open(&self, plan: impl FnOnce() -> (Plan, Vec<LimitError>)) -> Result<Begun, NotFenced> {
        let Self {
            host,
            config,
            schedulers,
            key,
            requests,
            daemon,
            holder,
            gpus,
            noted,
            starts_processes,
            has_pid_namespace,
        } = *self;
        // As early as possible. If the directories are the scheduler's, the scheduler moves the process.
        early_move::ask(&config.run_dir);
        let leftovers = daemon.is_some_and(|daemon| clean_up_behind_others(host, config, schedulers, daemon, key));
        let (plan, mut errors) = plan();
        let asked = requests.controllers();
        let mut more = asked.clone();
        let is_users = plan.delegate == Delegation::Yes;
        if is_users && config.mode == Mode::Enforce {
            more.extend(delegation::CONTROLLERS.into_iter().filter(|one| !asked.contains(one)));
        }
        refuse_delegation(host, config, requests, is_users.then_some(daemon.is_some()))?;
        refuse_pressure(host, config, requests)?;
        if !requests.options().is_empty() {
            log::info!("{key}: the user asked for {requests}; each limit above that is lowered to it");
        }
        let (holder, run) = holder.map_or((None, 0), |(holder, run)| (Some(holder), run));
        let opening =
            Opening { more: &more, daemon, holder, run, gpus, ..janitor::opening(host, config, schedulers, key) };
        let mut fence = Fence::open(&opening)
            .map_err(|error| NotFenced::from_open_error(error, requests, &asked, &fence::controllers(config)))?;
        if config.mode == Mode::Enforce {
            errors.extend(fence.limit(&plan));
        } else {
            log::info!("{key}: Mode=observe: would limit {plan}");
        }
        let asked = AskedProcesses::below_the_sites(requests, config);
        if let Some(noted) = noted {
            note_for_hold(&mut fence, config, requests, (None, noted));
        }
        let noted = noted.filter(|_| config.usage_log.is_some()).cloned().unwrap_or_default();
        let undivided = fence.undivided().map_or(Ok(()), |error| Err(NotFenced::Asked(error)));
        let done = undivided.and_then(|()| bear(key, config, requests, errors)).and_then(|()| {
            fence.hand_over(asked, noted)?;
            refuse_isolation(config, starts_processes, has_pid_namespace)?;
            Ok(own_directories(host, config, &fence)?)
        });
        match done {
            Ok(private) => Ok(Begun { fence, plan, leftovers, private }),
            Err(why) => {
                abandon(host, &mut fence, config);
                Err(why)
            }
        }
    }
}

/// Notes on the step's directories what `jobfence hold` is to know of it, and tells it if it has to watch the step. `before`: what was noted
/// when its limits were set before. What its user asked for stays unless the user asks for something else now. The site's word is that of
/// the configuration that holds now.
#[inline(never)]
pub fn note_for_hold(
    fence: &mut Fence,
    config: &Config,
    requests: &UserRequests,
    (before, noted): (Option<Allocated>, &Noted),
) {
    let asked_before = before.as_ref().filter(|before| before.is_asked).map(|before| before.signal_at);
    let told_before = before.as_ref().and_then(|before| before.signal_at);
    let is_enforced = config.mode == Mode::Enforce;
    let asked = requests.signal_at().or(asked_before).filter(|_| is_enforced);
    let signal_at = asked.unwrap_or(config.signal_at).filter(|_| is_enforced);
    let is_noted = before.is_some();
    let lent = requests.elastic_ram().or(before.and_then(|before| before.elastic_ram));
    // Also that the user wants no word of the site's: a later change of the limits keeps to it.
    let is_of_user = asked.is_some() || lent.is_some();
    let is_of_site = config.metrics_file.is_some() || signal_at.is_some();
    if is_of_site || is_of_user || is_noted {
        fence.note_allocated(noted, (signal_at, asked.is_some()), lent);
    }
    if signal_at.or(told_before).is_some() {
        early_move::tell_of_armed(&config.run_dir);
    }
}

/// Refuses a step whose cgroup cannot be divided, or whose user may not divide it. `wanted`: it is to be divided; whether it has a step
/// daemon.
fn refuse_delegation(
    host: &Host,
    config: &Config,
    requests: &UserRequests,
    wanted: Option<bool>,
) -> Result<(), NotFenced> {
    if config.mode != Mode::Enforce {
        return Ok(());
    }
    if requests.delegate() == Some(true) && config.delegate < Delegation::Request {
        let error = "--delegate=yes: this site lets this job make no cgroups of its own (Delegate in jobfence.conf)";
        return Err(NotFenced::Asked(Error::new(error)));
    }
    let obstacle = match wanted {
        None => None,
        // A daemon of root's would be in the directory that is the user's.
        Some(false) => Some(
            Error::new("the jobs of this scheduler cannot divide their cgroups")
                .hint("they can run here with Delegate=no in jobfence.conf"),
        ),
        Some(true) => delegation::obstacle(&host.layout),
    };
    obstacle.map_or(Ok(()), |error| Err(NotFenced::Asked(error)))
}

/// Refuses a step whose user waits for a word that this kernel never has. What the site has for all jobs refuses none: `check` says it.
pub fn refuse_pressure(host: &Host, config: &Config, requests: &UserRequests) -> Result<(), NotFenced> {
    let asked = requests.signal_at().flatten().filter(|_| config.mode == Mode::Enforce);
    let is_asked = asked.is_some_and(|asked| asked.conditions().any(|condition| condition.watched.is_pressure()));
    let obstacle = is_asked.then(|| host.layout.no_pressure(&host.proc)).flatten();
    obstacle.map_or(Ok(()), |why| Err(NotFenced::Asked(Error::new(format!("--signal-at=pressure: {why}")))))
}

/// Refuses a step whose processes should be isolated where jobfence does not start them, or not so that it can be.
fn refuse_isolation(config: &Config, starts_processes: bool, has_pid_namespace: bool) -> Result<(), NotFenced> {
    if !has_pid_namespace && pids::is_wanted(config) {
        let error = Error::new("only 'jobfence run' gives a job processes of its own (PrivatePIDs)")
            .hint("take it out of jobfence.conf on this node");
        // Whatever OnError says: the job would be without it.
        return Err(NotFenced::Limit { limit: None, error, asked: None });
    }
    match private::ISOLATION.iter().find(|(_, is_wanted)| !starts_processes && is_wanted(config)) {
        None => Ok(()),
        Some((key, _)) => {
            Err(Error::new("this does not work here, since the job's processes are not started by jobfence:")
                .value(key)
                .hint("take it out of jobfence.conf on this node")
                .into())
        }
    }
}

/// The job's own directories, if the site wants them.
fn own_directories(host: &Host, config: &Config, fence: &Fence) -> Result<Option<PrivateDirs>> {
    let is_wanted = private::is_wanted(config);
    is_wanted.then(|| PrivateDirs::make(host, config, &fence.key().parents(), fence.levels())).transpose()
}

/// Removes a fence of a refused step; no process has been in it.
pub fn abandon(host: &Host, fence: &mut Fence, config: &Config) {
    let deadline = Instant::now() + config.cleanup_timeout;
    let _ = fence.close(deadline);
    if private::is_wanted(config) {
        end::remove_private(host, config, fence, deadline);
    }
}

/// Removes what dead step daemons left: only jobfence does, and a launch is an opportunity. Returns whether something could not be removed.
pub fn clean_up_behind_others(
    host: &Host,
    config: &Config,
    schedulers: Schedulers,
    daemon: &Membership,
    key: &JobKey,
) -> bool {
    let who = janitor::JanitorCaller::Launch(janitor::Launch { daemon, key: Some(key), all: false });
    match janitor::reap(host, config, schedulers, who, Instant::now() + janitor::PATIENCE_AT_LAUNCH) {
        Ok(reaped) => {
            reaped.log();
            !reaped.failed.is_empty()
        }
        Err(error) => {
            log::error!("cannot look for what dead step daemons left: {error}");
            false
        }
    }
}
