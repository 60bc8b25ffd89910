// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for shell scripts: a fence's life in root's commands, each a process of its own. A scheduler with a prolog and an epilog
//! that run as root can use them to open, attach and close, and needs no plugin.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::cgroup::limits::SwapLimit;
use crate::config::{Config, Limit, LoadError, Loaded, Mode, Resolved, UsageCard};
use crate::cpu_list::CpuList;
use crate::doors::cores::{self, ChosenCores};
use crate::doors::gpus;
use crate::doors::opening::{Granted, OpenRequest};
use crate::doors::recorded::{WantedFences, none, records, the_one, uid_of};
use crate::error::{Error, Result};
use crate::facts::{Facts, Gpus};
use crate::fence::{Fence, resume};
use crate::figures::Usage;
use crate::host::Host;
use crate::janitor::{self, JanitorCaller};
use crate::job::{Grant, Id, JobKey};
use crate::launch::{self, Answer, AskedProcesses, Begin, Begun, Joining, NotFenced, begin};
use crate::log;
use crate::policy::{self, CoreMap};
use crate::private::{self, PrivateDirs};
use crate::record::holder::Holder;
use crate::record::noted::Noted;
use crate::record::{Record, Records};
use crate::requests::UserRequests;
use crate::schedulers::ALL;
use crate::sys::call_bytes::Moved;
use crate::sys::process::{self, Owner};

mod present;

pub use present::{Seen, in_words};
use present::{line_of, see};

/// How long a fence may take to freeze or thaw.
const FREEZE_PATIENCE: Duration = Duration::from_secs(10);
/// How long other changes of a running job's limits may take.
const OTHER_CHANGES: Duration = Duration::from_secs(60);
/// The time that each fence gets to close, even if others used up the total.
const LEAST_TO_CLOSE: Duration = Duration::from_millis(500);

/// A fence that processes can be put into. Its usage is not read.
#[derive(Debug)]
pub struct Opened {
    /// Its directory, below the root of each hierarchy.
    pub path: Option<String>,
    /// The value of `CUDA_VISIBLE_DEVICES` for its processes, if it was just limited; see [`gpus::visible_in`].
    pub visible_gpus: Option<String>,
    /// When its job ends with a card.
    pub usage_card: UsageCard,
}

/// How a fence was closed.
#[derive(Debug)]
pub enum HowClosed {
    /// The fence is gone.
    Removed(Box<Seen>),
    /// The fence is gone, but its usage is not known: opening it, or another attempt to close it, stopped midway.
    Unseen(JobKey),
    /// The machine has booted since, and only the fence's record existed.
    AnotherBoot(JobKey),
}

/// A map for callers that do not say which cores were granted.
struct NoCores;

impl CoreMap for NoCores {
    fn cpus_of(&self, _: &CpuList) -> Result<CpuList> {
        Err(Error::new("which cores the job was granted is not said").hint("set ConstrainCores=no"))
    }
}

/// Decides about a job whose user and facts are not known for the reason `why`: by the strictest of all settings that could apply. If `why`
/// is [`NotFenced::Asked`], a request of the user that is not understood, no configuration lets the job run.
pub fn of_unknown(loaded: Result<Loaded, LoadError>, why: impl Into<NotFenced>) -> Answer<()> {
    let nobody: Result<(Resolved, ()), NotFenced> = Err(why.into());
    launch::answer(loaded, |_| nobody, |_, ()| Ok(()))
}

/// Room for what a scheduler runs for itself in a step's directory, beside the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// Memory in bytes beyond what the site grants the scheduler's own processes.
    pub more: u64,
    /// The directories below which the scheduler makes the job's. The granted memory limits only these.
    pub branches: Vec<String>,
}

/// A fence that the process which has opened it goes on to use.
#[derive(Debug)]
pub struct LiveFence {
    fence: Fence,
    host: Host,
    config: Config,
    /// The job's own directories.
    private: Option<PrivateDirs>,
    /// What opening the fence returned.
    pub opened: Opened,
}

impl LiveFence {
    /// Puts a child of this process into the fence, whichever user it runs as.
    pub fn attach(&mut self, child: Pid) -> Answer<()> {
        let joining = Joining { pid: child.as_raw(), id: None, task: None, is_first: true };
        let done = launch::attach(&mut self.fence, &self.host, &self.config, &UserRequests::default(), joining);
        launch::decided(self.config.clone(), done)
    }

    /// Puts this process into a directory of this name below the step's.
    pub fn enter(&mut self, leaf: &str) -> Answer<()> {
        let errors = self.fence.attach_in(&self.host, Pid::this().as_raw(), leaf).map_err(NotFenced::from);
        let bear = |errors| launch::refuse::bear(self.fence.key(), &self.config, &UserRequests::default(), errors);
        launch::decided(self.config.clone(), errors.and_then(bear))
    }

    /// Usage and limits.
    pub fn seen(&self) -> Seen {
        see(&self.fence)
    }

    /// The job's own directories, which each process that is started for the job must enter.
    pub fn private(&self) -> Option<&PrivateDirs> {
        self.private.as_ref()
    }

    /// Whether each process that is started for the job must enter an IPC namespace of its own.
    pub fn is_ipc_private(&self) -> bool {
        private::ipc::is_wanted(&self.config)
    }

    /// Removes them, when all fences of the job are closed.
    pub fn remove_private(&self) {
        if self.private.is_some() {
            launch::end::remove_private(
                &self.host,
                &self.config,
                &self.fence,
                Instant::now() + self.config.cleanup_timeout,
            );
        }
    }

    /// Freezes or thaws all processes of the fence.
    pub fn freeze(&self, is_frozen: bool) -> Result<()> {
        switch(&self.fence, is_frozen, Instant::now() + FREEZE_PATIENCE)
    }
}

fn switch(fence: &Fence, is_frozen: bool, deadline: Instant) -> Result<()> {
    if is_frozen { fence.freeze(deadline) } else { fence.thaw(deadline) }
}

/// Makes a fence, limits it, and leaves it to its holder. Returns where it is.
pub fn open(loaded: Result<Loaded, LoadError>, request: &OpenRequest) -> Answer<Opened> {
    make(loaded, request, None, |_| Ok(()), |live| live.opened)
}

/// Like [`open`], for a process that goes on to use the fence. `room`: for what the scheduler runs for itself.
pub fn open_live(loaded: Result<Loaded, LoadError>, request: &OpenRequest, room: Option<&Room>) -> Answer<LiveFence> {
    make(loaded, request, room, |_| Ok(()), |live| live)
}

/// Makes a fence, unless `check` returns an error. Returns what `keep` makes of it.
fn make<T>(
    loaded: Result<Loaded, LoadError>,
    request: &OpenRequest,
    room: Option<&Room>,
    check: impl FnOnce(&Config) -> Result<()>,
    keep: impl FnOnce(LiveFence) -> T,
) -> Answer<T> {
    let key = JobKey { node: None, uid: request.uid, job: request.job.clone(), step: request.step.clone() };
    let facts = here(request.granted.facts.clone());
    let with_host = |loaded: &Loaded| Ok((begin::resolve(loaded, &facts)?, Host::read(&loaded.config)?));
    launch::begun(loaded, with_host, |resolved, host| {
        let config = &resolved.config;
        check(config)?;
        let holder = request.holder.find(&host, ALL, request.ask_unit, (&request.job, request.run))?;
        // A scheduler that holds fences looks for leftovers by itself, and may be blocked until this returns.
        if !matches!(holder, Holder::Scheduler { .. }) {
            let soon = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
            match janitor::reap(&host, config, ALL, JanitorCaller::Daemon, soon) {
                Ok(reaped) => reaped.log(),
                Err(error) => log::warn!("cannot look for what dead holders left: {error}"),
            }
        }
        let (requests, holder) = (&request.granted.requests, Some((&holder, request.run)));
        // The lock keeps other processes from choosing until these GPUs are in the record.
        let of_scheduler = (&request.granted.facts.gpus, request.granted.gpus);
        let chosen = gpus::of_run((&host, config), (&request.job, request.run), of_scheduler)?;
        let cores = cores_of_run((&host, config), (&request.job, request.run), &request.granted)?;
        let (gpus, noted) = (&chosen.devices, Some(&noted(&facts, &request.granted)));
        let begin = Begin {
            host: &host,
            config,
            schedulers: ALL,
            key: &key,
            requests,
            daemon: None,
            holder,
            gpus,
            noted,
            starts_processes: request.starts_processes,
            has_pid_namespace: false,
        };
        let mut of_job = policy::Limits::default();
        let planned = || {
            let (mut plan, errors) = plan(&resolved, &request.granted, gpus, &cores);
            if let Some(room) = room {
                let step = &mut plan.step;
                of_job = policy::Limits {
                    ram: step.ram,
                    high: step.high.take(),
                    swap: step.swap,
                    ..policy::Limits::default()
                };
                let of_starter = config.starter_memory.saturating_add(room.more);
                step.ram = step.ram.map(|ram| ram.saturating_add(of_starter));
                // v1 limits the sum of both.
                step.swap = step.swap.map(|swap| SwapLimit { ram: swap.ram.saturating_add(of_starter), ..swap });
            }
            (plan, errors)
        };
        let Begun { mut fence, mut plan, private, .. } = begin.open(planned)?;
        let mut finish = || -> Result<(), NotFenced> {
            let mut errors = Vec::new();
            if let Some(left) = cores.left((&host, config), (&request.job, request.run), &request.step)? {
                (plan.job.cores, plan.step.cores) = (Some(left.clone()), Some(left));
                errors = fence.change(&plan);
                fence.hand_over(AskedProcesses::below_the_sites(requests, config), Noted::default())?;
            }
            if let Some(room) = room.filter(|_| config.mode == Mode::Enforce) {
                errors.extend(fence.limit_branches(&room.branches, &of_job));
            }
            launch::refuse::bear(&key, config, requests, errors)
        };
        finish().inspect_err(|_| begin::abandon(&host, &mut fence, config))?;
        let visible_gpus = gpus::visible_in(&fence, &host, config);
        let usage_card = requests.usage_card().unwrap_or(config.usage_card);
        let opened = Opened { path: fence.path(), visible_gpus, usage_card };
        Ok(keep(LiveFence { fence, host, config: resolved.config, private, opened }))
    })
}

/// Like [`open`], for a caller that may call twice: if this run of the step already has a fence, it is limited to the present grant.
/// Another user or another holder is refused.
pub fn open_again(loaded: Result<Loaded, LoadError>, request: &OpenRequest) -> Answer<Opened> {
    let is_nobody_elses = |config: &Config| match uid_of(config, &request.which())?.filter(|uid| *uid != request.uid) {
        None => Ok(()),
        Some(uid) => Err(Error::new("this run of the step has a fence already, of another user:")
            .value(format!("uid {uid}, not {}", request.uid))
            .hint("close it first")),
    };
    let answer = make(loaded.clone(), request, None, is_nobody_elses, |live| live.opened);
    let has_failed = matches!(answer, Answer::Refused(_) | Answer::Unfenced { .. });
    if !has_failed || !loaded.as_ref().is_ok_and(|loaded| has_opened(&loaded.config, request).unwrap_or(false)) {
        return answer;
    }
    limit(loaded, &request.which(), &request.granted)
}

/// Whether the requested fence exists, and its opening is complete.
fn has_opened(config: &Config, request: &OpenRequest) -> Result<bool> {
    let found = records(config, &request.which())?;
    let [record] = found.as_slice() else { return Ok(false) };
    let Some(shared) = record.shared.as_deref().filter(|shared| shared.plan.is_some()) else { return Ok(false) };
    let holder = request.holder.find(&Host::read(config)?, ALL, request.ask_unit, (&request.job, request.run))?;
    Ok(record.uid() == Some(request.uid) && shared.holder == holder)
}

/// The facts, completed by this host's name.
pub(super) fn here(facts: Facts) -> Facts {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let node = facts.node.known().cloned().or_else(host);
    Facts { node: node.into(), ..facts }
}

/// The settings that hold for a job of this host with these facts.
pub fn resolve(loaded: &Loaded, facts: Facts) -> Result<Resolved> {
    begin::resolve(loaded, &here(facts))
}

/// What a later process must know about the job.
fn noted(facts: &Facts, granted: &Granted) -> Noted {
    Noted::new(facts, granted.for_the_log())
}

fn cores_of_run(here: (&Host, &Config), whose: (&Id, u32), granted: &Granted) -> Result<ChosenCores> {
    if granted.chooses_cores { cores::of_run(here, whose, granted.cpus) } else { Ok(ChosenCores::default()) }
}

fn plan(
    resolved: &Resolved,
    granted: &Granted,
    gpus: &[String],
    cores: &ChosenCores,
) -> (policy::Plan, Vec<crate::fence::LimitError>) {
    let whole = Grant::whole(granted.cpus, granted.memory).with_memory_and_swap(granted.memory_and_swap);
    let whole = Grant { huge_pages: granted.huge_pages.clone(), ..whole };
    let grant =
        if granted.is_of_step { Grant { job_cpus: None, job_memory: None, is_of_step: true, ..whole } } else { whole };
    let gpus = if gpus.is_empty() { granted.facts.gpus.clone() } else { Gpus::Chosen(gpus.to_vec()) };
    let facts = Facts { gpus, ..granted.facts.clone() };
    let (mut plan, mut errors) = policy::of_step(resolved, &facts, &grant, &granted.requests, true, || Ok(NoCores));
    if granted.chooses_cores {
        errors.retain(|(limit, _)| *limit != Limit::Cores);
        (plan.job.cores, plan.step.cores) = (cores.cpus.clone(), cores.cpus.clone());
    }
    (plan, errors)
}

/// Changes the limits of a fence. A limit that is no longer given keeps its last value. The fence keeps the job's GPUs, or as many of them
/// as are granted now; GPUs are chosen only for a new fence.
pub fn limit(loaded: Result<Loaded, LoadError>, which: &WantedFences, granted: &Granted) -> Answer<Opened> {
    let resolve = |loaded: &Loaded| {
        let host = Host::read(&loaded.config)?;
        let record = the_one(&loaded.config, which)?;
        let facts = here(Facts { uid: record.uid().into(), ..granted.facts.clone() });
        Ok((begin::resolve(loaded, &facts)?, (host, record)))
    };
    launch::answer(loaded, resolve, |resolved, (host, record)| {
        begin::refuse_pressure(&host, &resolved.config, &granted.requests)?;
        let mut fence = go_on(&host, &resolved.config, &record)?;
        fence.keep_gpus(granted.gpus.unwrap_or(usize::MAX));
        let run = record.shared.as_ref().map_or(0, |shared| shared.run);
        let cores = cores_of_run((&host, &resolved.config), (&which.job, run), granted)?;
        let (mut plan, mut errors) = plan(&resolved, granted, fence.gpus(), &cores);
        let before = record.shared.as_ref().and_then(|shared| shared.plan.as_ref());
        if let Some(before) = before.filter(|_| granted.chooses_cores && granted.cpus.is_none()) {
            (plan.job.cores, plan.step.cores) = (before.plan.job.cores.clone(), before.plan.step.cores.clone());
        }
        let _locks = fence.lock_changes(Instant::now() + OTHER_CHANGES)?;
        if resolved.config.mode == Mode::Enforce {
            errors.extend(fence.change(&plan));
            fence.forget_resized()?;
        }
        let has_log = resolved.config.usage_log.is_some();
        let all = noted(&granted.facts, granted);
        let before = fence.noted_allocated();
        begin::note_for_hold(&mut fence, &resolved.config, &granted.requests, (before, &all));
        let noted = if has_log { all } else { Noted::default() };
        fence.hand_over(AskedProcesses::below_the_sites(&granted.requests, &resolved.config), noted)?;
        launch::refuse::bear(fence.key(), &resolved.config, &granted.requests, errors)?;
        let visible_gpus = gpus::visible_in(&fence, &host, &resolved.config);
        let usage_card = granted.requests.usage_card().unwrap_or(resolved.config.usage_card);
        Ok(Opened { path: fence.path(), visible_gpus, usage_card })
    })
}

/// Puts processes into a fence; those of other users only with `of_anybody`.
pub fn attach(
    loaded: Result<Loaded, LoadError>,
    which: &WantedFences,
    pids: &[i32],
    task: Option<u32>,
    of_anybody: bool,
) -> Answer<JobKey> {
    let resolve = |loaded: &Loaded| {
        let host = Host::read(&loaded.config)?;
        let record = the_one(&loaded.config, which)?;
        let facts = here(Facts { uid: record.uid().into(), ..Facts::default() });
        Ok((begin::resolve(loaded, &facts)?, (host, record)))
    };
    launch::answer(loaded, resolve, |resolved, (host, record)| {
        let mut fence = go_on(&host, &resolved.config, &record)?;
        // All are checked before the first is moved: either all get in, or none.
        let check = |pid: &i32| check_process(&host, fence.key(), *pid, of_anybody);
        let ids: Vec<Owner> = pids.iter().map(check).collect::<Result<_>>()?;
        for (index, (pid, id)) in pids.iter().copied().zip(ids).enumerate() {
            let joining = Joining { pid, id: Some(id), task, is_first: index == 0 };
            launch::attach(&mut fence, &host, &resolved.config, &UserRequests::default(), joining)?;
        }
        Ok(fence.key().clone())
    })
}

/// Checks whether a process may get in.
fn check_process(host: &Host, key: &JobKey, pid: i32, of_anybody: bool) -> Result<Owner> {
    let gone = || Error::new("there is no such process:").value(pid);
    if pid <= 1 || pid == Pid::this().as_raw() {
        return Err(Error::new("this process cannot be put into a job's fence:").value(pid));
    }
    let id = Owner::from_pid(&host.proc, pid)?.ok_or_else(gone)?;
    let uid = process::uid(&host.proc, pid).ok_or_else(gone)?;
    if uid != key.uid && !of_anybody {
        return Err(Error::new(format!("process {pid} is not of the job's user:"))
            .value(format!("uid {uid}, not {}", key.uid))
            .hint("--any-user puts it in all the same"));
    }
    Ok(id)
}

/// Usage and limits of each of these fences. Empty: there is none.
pub fn usage(config: &Config, which: &WantedFences) -> Result<Vec<Seen>> {
    let found = records(config, which)?;
    // A host without cgroups has no fence, and that is no error: OnError says what becomes of its jobs.
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let host = Host::read(config)?;
    found.iter().map(|record| Ok(see(&resumed(&host, config, record)?))).collect()
}

/// Freezes or thaws all processes of these fences. An error with one fence does not affect the others.
pub fn freeze(config: &Config, which: &WantedFences, is_frozen: bool) -> Result<()> {
    let found = records(config, which)?;
    if found.is_empty() {
        return Err(none(which));
    }
    let host = Host::read(config)?;
    // One deadline for all: if one fence does not freeze in time, the others are still told to.
    let deadline = Instant::now() + FREEZE_PATIENCE;
    let fences: Vec<Result<Fence>> = found.iter().map(|record| go_on(&host, config, record)).collect();
    // All are told to freeze before the first is waited for.
    if is_frozen {
        fences.iter().flatten().for_each(|fence| drop(switch(fence, true, Instant::now())));
    }
    fences.into_iter().map(|fence| switch(&fence?, is_frozen, deadline)).fold(Ok(()), Result::and)
}

/// Ends the processes in these fences and removes them. Returns the result for each; an error with one does not affect the others. Empty:
/// there was none, which is no error.
pub fn close(config: &Config, which: &WantedFences) -> Result<Vec<Result<HowClosed>>> {
    close_counted(config, which, (None, None))
}

/// As [`close`], for one fence whose processes this process has waited for: they have moved so much.
pub fn close_counted(config: &Config, which: &WantedFences, moved: Moved) -> Result<Vec<Result<HowClosed>>> {
    let found = records(config, which)?;
    // As in `usage`.
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let host = Host::read(config)?;
    // One deadline for all, and a little time for each: a process that does not die must not keep the other fences from closing.
    let deadline = Instant::now() + config.cleanup_timeout;
    let one = |record| close_one(&host, config, record, moved, deadline.max(Instant::now() + LEAST_TO_CLOSE));
    Ok(found.iter().map(one).collect())
}

fn close_one(
    host: &Host,
    config: &Config,
    record: &Record,
    (rchar, wchar): Moved,
    deadline: Instant,
) -> Result<HowClosed> {
    let fence = resumed(host, config, record).ok();
    let seen = fence.as_ref().map(see).map(|seen| Seen { usage: Usage { rchar, wchar, ..seen.usage }, ..seen });
    let line = fence.as_ref().zip(seen.as_ref()).and_then(|(fence, seen)| line_of(fence, config, record, seen));
    let closed = resume::close(host, ALL, Records::open(&config.run_dir)?, record, deadline)?;
    // If another process has closed the fence, that process wrote the line.
    launch::write_down(config, line.as_deref().filter(|_| closed == resume::Closed::Removed));
    let key = || record.key().ok_or_else(|| Error::new("the record names no user"));
    Ok(match (closed, seen) {
        (resume::Closed::AnotherBoot, _) => HowClosed::AnotherBoot(key()?),
        (resume::Closed::Removed | resume::Closed::Gone, Some(seen)) => HowClosed::Removed(Box::new(seen)),
        (resume::Closed::Removed | resume::Closed::Gone, None) => HowClosed::Unseen(key()?),
    })
}

pub(super) fn resumed(host: &Host, config: &Config, record: &Record) -> Result<Fence> {
    Fence::resume(host, ALL, Records::open(&config.run_dir)?, record)
}

/// Resumes a fence that processes can be put into.
pub fn go_on(host: &Host, config: &Config, record: &Record) -> Result<Fence> {
    let fence = resumed(host, config, record)?;
    fence.check_whole(host)?;
    Ok(fence)
}
