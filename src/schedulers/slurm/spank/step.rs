// SPDX-License-Identifier: GPL-2.0-or-later
//! In slurmstepd: one step from its beginning to its end.
//!
//! An error is remembered and fails the job in [`admit`], the only callback whose failure affects the job alone. The remembered state also
//! makes a second entry in plugstack.conf harmless: each callback finds its work done.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Instant, SystemTime};

use nix::unistd::Pid;

use crate::cgroup::events::KernelLog;
use crate::cgroup::membership::Membership;
use crate::config::{Config, Mode, OnError, Resolved, UsageCard};
use crate::error::Result;
use crate::facts::Facts;
use crate::fence::Fence;
use crate::figures::{GrantedTo, LimitedTo};
use crate::host::Host;
use crate::job::{Grant, JobKey};
use crate::launch::{self, Answer, Begin, Begun, NotFenced, Reported};
use crate::log;
use crate::policy::{self, Plan};
use crate::private::{check_standard_files, ipc};
use crate::record::job::JobRecord;
use crate::record::noted::Noted;
use crate::record::tracked::{self, Tracker};
use crate::report::account::{Exit, Task};
use crate::requests::UserRequests;
use crate::schedulers::ALL;
use crate::schedulers::slurm::cores::Topology;
use crate::schedulers::slurm::spank::ReturnCode;
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::card::CardOrder;
use crate::schedulers::slurm::spank::grant::{self, StepKind};
use crate::schedulers::slurm::spank::hand_over::HandOver;
use crate::schedulers::slurm::spank::job::{Job, key_of};
use crate::schedulers::slurm::spank::log::tell_user;
use crate::schedulers::slurm::spank::node_files::NodeFiles;
use crate::schedulers::slurm::spank::private::PrivateStep;
use crate::schedulers::slurm::spank::unfenced::UnfencedProcesses;
use crate::schedulers::slurm::spank::{environment, options, restart};
use crate::sys::as_user::AsUser;
use crate::sys::call_bytes::CallBytes;
use crate::sys::process::Owner;

mod attaching;
mod ending;

pub use attaching::{attach, attach_did_not_finish};
pub use ending::{end, task_ended};

/// The state of this process's step.
enum StepState {
    /// Nothing has run, or did not finish.
    New,
    /// What must be known about the node has been read.
    Read(Box<NodeFiles>),
    /// Nothing is to be done: Mode=off.
    Off,
    /// OnError=warn, after an error that was logged.
    Unfenced(Box<Unfenced>),
    /// No task may run.
    Refused {
        reason: String,
        /// The step daemon: a task's process is another.
        daemon: Pid,
    },
    Fenced(Box<Fenced>),
    Ended,
}

struct Fenced {
    /// The step daemon; with contain_spank some callbacks run in a child of it.
    daemon: Pid,
    unfenced_processes: UnfencedProcesses,
    fence: Fence,
    plan: Plan,
    /// What the job's user requested.
    requests: UserRequests,
    host: Host,
    config: Config,
    /// The record to remove when the job has ended on this node, which is with this step.
    note: Option<JobRecord>,
    /// `None`: it cannot be read.
    kernel_log: Option<KernelLog>,
    /// Whether something that a dead step daemon left could not be removed when this step began.
    leftovers: bool,
    /// What the user has been told.
    reported: Reported,
    /// The sentences in which the user was told.
    sentences: Vec<String>,
    /// What is known about the job.
    facts: Facts,
    granted: GrantedTo,
    /// The limits of its first task, kept because the end must cost little.
    limits: Option<LimitedTo>,
    started: SystemTime,
    /// How its tasks ended: the first that failed, or else the last.
    exit: Option<Exit>,
    /// The tasks with directories of their own.
    tasks: Vec<Task>,
    /// The tasks in the fence.
    attached: Vec<i32>,
    /// How many tasks have ended.
    exited: u32,
    /// When usage was last read for a task that had ended.
    looked: Option<Instant>,
    /// What its tasks read and write by system calls. `None`: nobody asks, or other processes than tasks are in it.
    call_bytes: Option<CallBytes>,
    /// The card at the end of a batch script's output.
    card: Option<CardOrder>,
    /// Where another step hands over this node's figures, and what the job was granted here.
    hand_over: Option<(HandOver, Grant)>,
    /// Whether one of its tasks could not be fenced, so that none may run.
    ended: bool,
    /// The job's own directories.
    private: Option<PrivateStep>,
}

/// A step without a fence. Its processes are tracked as far as possible.
struct Unfenced {
    unfenced_processes: UnfencedProcesses,
    host: Host,
    config: Config,
    key: JobKey,
}

static STEP: Mutex<StepState> = Mutex::new(StepState::New);

const UNFINISHED: &str = "jobfence did not finish its preparation. Tell your administrator: slurmd's log says why";

/// The state. `None`: another thread is in a callback, which Slurm does not do.
fn step() -> Option<MutexGuard<'static, StepState>> {
    match STEP.try_lock() {
        Ok(step) => Some(step),
        // A callback that panicked left the state as it was; `begin` leaves `Refused` then.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Called before another plugin can change what this process sees.
pub fn read(arguments: &[&[u8]]) {
    if let Some(mut step) = step().filter(|step| matches!(**step, StepState::New)) {
        *step = StepState::Read(Box::new(NodeFiles::read(arguments)));
    }
}

/// Called before any task exists: builds the fence, or remembers why there is none.
pub fn begin(spank: &Spank, arguments: &[&[u8]]) {
    let Some(mut step) = step() else { return };
    if !matches!(*step, StepState::New | StepState::Read(_)) {
        log::warn!("plugstack.conf lists jobfence more than once; the first line counts: remove the others");
        return;
    }
    // Until the result is known: what follows may panic.
    let unfinished = StepState::Refused { reason: UNFINISHED.to_owned(), daemon: Pid::this() };
    let read = match std::mem::replace(&mut *step, unfinished) {
        StepState::Read(read) => *read,
        _ => NodeFiles::read(arguments),
    };
    environment::forget(spank);
    let (loaded, topology) = read.now();
    let build = |resolved, job| build(spank, resolved, job, topology);
    *step = match launch::begun(loaded, |loaded| Job::from_spank(spank, loaded), build) {
        Answer::Off => StepState::Off,
        Answer::Fenced(fenced) => StepState::Fenced(Box::new(fenced)),
        Answer::Unfenced { config, by, why } => {
            log::error!("this step runs WITHOUT a fence ({by}): {why}");
            match Unfenced::new(spank, *config) {
                Ok(unfenced) => StepState::Unfenced(Box::new(unfenced)),
                Err(error) => {
                    log::error!("the step's processes are not tracked either: {error}");
                    StepState::Off
                }
            }
        }
        Answer::Refused(why) => {
            log::error!("this step is refused, since it cannot be fenced: {why}");
            StepState::Refused { reason: why.for_user(), daemon: Pid::this() }
        }
    };
}

impl Unfenced {
    fn new(spank: &Spank, config: Config) -> Result<Self> {
        let (host, no_cgroups) = Host::read_what_there_is(&config)?;
        let (_, key) = key_of(spank, &host)?;
        if no_cgroups.is_some() {
            // Without cgroups no earlier code has cleaned up.
            let daemon = Membership::read(&host.proc, Pid::this().as_raw())?;
            launch::begin::clean_up_behind_others(&host, &config, ALL, &daemon, &key);
        }
        let tracker = Tracker::begin(&host, &config.run_dir, &key);
        spank.setenv(environment::STEP, &tracked::mark(&host.boot_id, Owner::this(&host.proc)?))?;
        let place = Membership::read(&host.proc, Pid::this().as_raw())?;
        Ok(Self { unfenced_processes: UnfencedProcesses::with_tracker(place, tracker), host, config, key })
    }
}

fn build(
    spank: &Spank,
    resolved: Resolved,
    job: Job,
    topology: impl FnOnce() -> Result<Topology>,
) -> Result<Fenced, NotFenced> {
    let Job { kind, host, key, facts, .. } = &job;
    let config = &resolved.config;
    let grant = match job.unallocated {
        true => Grant { unallocated: true, ..Grant::default() },
        false => grant::of_step(spank, *kind, facts.cpus)?,
    };
    let requests = match options::requests(spank) {
        Ok(mut requests) => {
            if requests.names_paths() {
                let gid = spank.u32(spank_item::S_JOB_GID)?;
                let user = AsUser::new(key.uid, gid, &spank.gids()?.unwrap_or_default());
                requests.paths().for_each(|rules| rules.asked_by(&user));
            }
            requests
        }
        // Independent of OnError: an invalid request must not get a user out of the fence.
        Err(error) if config.mode == Mode::Enforce => return Err(NotFenced::Asked(error)),
        Err(error) => {
            log::error!("{key}: Mode=observe: the user's options would be refused: {error}");
            UserRequests::default()
        }
    };
    let daemon = Membership::read(&host.proc, Pid::this().as_raw())?;

    let gpus = facts.gpus.count();
    let begin = Begin {
        host,
        config,
        schedulers: ALL,
        key,
        requests: &requests,
        daemon: Some(&daemon),
        holder: None,
        gpus: &[],
        noted: Some(&Noted::new(facts, GrantedTo { cpus: grant.job_cpus, memory: grant.job_memory, gpus })),
        starts_processes: true,
        has_pid_namespace: false,
    };
    let has_tasks = *kind != StepKind::Extern;
    let plan = || policy::of_step(&resolved, facts, &grant, &requests, has_tasks, topology);
    let Begun { mut fence, plan, leftovers, private: dirs } = begin.open(plan)?;
    let mark = |fence: &Fence| spank.setenv(environment::STEP, &tracked::mark(&host.boot_id, fence.owner()));
    // The tasks are forked by this thread.
    let own_ipc = || match ipc::enter(has_tasks && ipc::is_wanted(config)) {
        Err(error) if config.on_error.general() == OnError::Warn => {
            log::error!("a step has no IPC namespace of its own as PrivateIPC says (OnError=warn): {error}");
            Ok(())
        }
        entered => entered,
    };
    let environment = environment::tell(spank, config, &plan, &fence).and_then(|()| mark(&fence));
    if let Err(error) = environment.and_then(|()| own_ipc()) {
        launch::begin::abandon(host, &mut fence, config);
        return Err(error.into());
    }
    let kernel_log = KernelLog::open().inspect_err(|error| log::debug!("OOM kills will not name the process: {error}"));
    let note = job.note(config);
    let Job { kind, host, facts, .. } = job;
    let when = requests.usage_card().unwrap_or(resolved.config.usage_card);
    let card = CardOrder::from_spank(spank, kind, when, &grant);
    let hand_over = (matches!(kind, StepKind::Regular(_)) && when != UsageCard::Never)
        .then(|| HandOver::from_spank(spank).filter(HandOver::is_elsewhere))
        .flatten()
        .map(|hand_over| (hand_over, grant.clone()));
    if let Some((hand_over, _)) = &hand_over {
        hand_over.begin(&fence);
    }
    let call_bytes = match resolved.config.usage_log {
        // What is adopted into the extern step is not this process's child.
        Some(_) if has_tasks => CallBytes::begin(&host.proc),
        _ => None,
    };
    Ok(Fenced {
        daemon: Pid::this(),
        unfenced_processes: UnfencedProcesses::new(daemon),
        fence,
        plan,
        requests,
        host,
        config: resolved.config,
        note,
        kernel_log: kernel_log.ok(),
        leftovers,
        reported: Reported::default(),
        sentences: Vec::new(),
        facts,
        granted: GrantedTo { cpus: grant.step_cpus, memory: grant.step_memory, gpus },
        limits: None,
        started: SystemTime::now(),
        exit: None,
        tasks: Vec::new(),
        attached: Vec::new(),
        exited: 0,
        looked: None,
        call_bytes,
        card,
        hand_over,
        ended: false,
        private: dirs.map(|dirs| PrivateStep::from_spank(spank, dirs)),
    })
}

/// Called in a task's own process, before it becomes the user's.
pub fn admit(spank: &Spank) -> ReturnCode {
    let (reason, daemon) = match step().as_deref() {
        Some(StepState::Fenced(fenced)) => {
            match fenced.private.as_ref().map_or_else(ipc::enter_mounts, |step| step.enter(fenced.daemon)) {
                Ok(()) => return ReturnCode::Good,
                Err(error) if fenced.config.on_error.general() == OnError::Warn => {
                    log::error!(
                        "a task sees what is the host's (PrivateTmp, HideProcesses, PrivateIPC; OnError=warn): {error}"
                    );
                    return ReturnCode::Good;
                }
                Err(error) => (NotFenced::from(error).for_user(), Some(fenced.daemon)),
            }
        }
        Some(StepState::Unfenced(_) | StepState::Off) => return ReturnCode::Good,
        Some(StepState::Refused { reason, daemon }) => (reason.clone(), Some(*daemon)),
        Some(StepState::New | StepState::Read(_) | StepState::Ended) | None => (UNFINISHED.to_owned(), None),
    };
    // Once, not for each of the tasks.
    if spank.int(spank_item::S_TASK_ID).unwrap_or(0) == 0 {
        tell_user(&format!("this job was not started, since it cannot be fenced: {reason}"));
    }
    if daemon.is_some_and(|daemon| daemon != Pid::this()) {
        end_this_task();
    }
    ReturnCode::Bad
}

/// If the plugin is listed as `optional`, Slurm ignores a failure and runs the task without a fence. This process is the task, forked a
/// moment ago; it ends as Slurm ends it when a `required` plugin refuses.
fn end_this_task() -> ! {
    // SAFETY: ends this process at once; nothing of it is used afterwards.
    unsafe { libc::_exit(1) }
}

/// Called in a task's own process, as the user, in its final place. If that is Slurm's directory, the variables set before may be wrong, or
/// Slurm may have limits of its own there. The task's CPUs, too, are known only here.
pub fn tell_task(spank: &Spank) {
    let mut step = step();
    let Some(StepState::Fenced(fenced)) = step.as_deref_mut() else { return };
    if let Some(card) = &fenced.card {
        card.tell_time_limit(spank);
    }
    if (fenced.private.is_some() || ipc::is_own())
        && let Err(error) = check_standard_files()
    {
        // Whatever OnError says: no request may get a user out of the fence.
        tell_user(&format!("this task was not started, since it cannot be fenced: {error}"));
        end_this_task();
    }
    if let Some(private) = &fenced.private {
        private.go_where_asked(spank);
    }
    restart::tell(spank, &fenced.config, fenced.fence.key(), fenced.granted.memory);
    let Ok(member) = Membership::read(&fenced.host.proc, Pid::this().as_raw()) else { return };
    fenced.fence.look_from(&member);
    // Only this process's environment, and only for information.
    let Fenced { config, plan, fence, .. } = &**fenced;
    if fence.has_overlay() {
        let _ = environment::tell(spank, config, plan, fence);
    }
    let _ = environment::hint_threads(spank, config, plan, fence);
}
