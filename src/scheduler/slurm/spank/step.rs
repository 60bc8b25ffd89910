// SPDX-License-Identifier: GPL-2.0-or-later
//! In slurmstepd: one step from its beginning to its end.
//!
//! What goes wrong is remembered and fails the job in [`admit`], the only callback whose failure is the job's alone. The
//! remembered state also makes a second entry in plugstack.conf harmless: each callback finds its work done.

use std::fmt;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup::devices::Devices;
use crate::cgroup::events::KernelLog;
use crate::cgroup::membership::Membership;
use crate::config::{Config, Loaded, Mode, OnError, OnErrors, Resolved};
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::fence::{self, Fence, LimitError};
use crate::host::Host;
use crate::janitor;
use crate::job::{Grant, JobKey, Name};
use crate::policy::{self, Plan};
use crate::record::job::{JobId, JobRecord, JobRecords};
use crate::record::tracked::{self, Tracker};
use crate::report;
use crate::requests::Word;
use crate::scheduler::slurm::cores::Topology;
use crate::scheduler::slurm::spank::Verdict;
use crate::scheduler::slurm::spank::api::Spank;
use crate::scheduler::slurm::spank::bindings::spank_item;
use crate::scheduler::slurm::spank::facts;
use crate::scheduler::slurm::spank::grant::{self, Kind};
use crate::scheduler::slurm::spank::log::tell_user;
use crate::scheduler::slurm::spank::outside::Outside;
use crate::scheduler::slurm::spank::{arguments, options, told};
use crate::sys::as_user::AsUser;
use crate::sys::dir::Dir;
use crate::sys::process::{Owner, is_ending};

/// What became of this process's step.
enum Step {
    /// `begin` has not run, or did not finish.
    New,
    /// Nothing is to be done: Mode=off.
    Off,
    /// OnError=warn, after an error that was logged.
    Unfenced(Box<Unfenced>),
    /// No task may run.
    Refused {
        reason: String,
        /// The step daemon's: a task's process is another.
        daemon: Pid,
    },
    Fenced(Box<Fenced>),
    Ended,
}

struct Fenced {
    /// The step daemon; with contain_spank some callbacks run in a child of it.
    daemon: Pid,
    outside: Outside,
    fence: Fence,
    plan: Plan,
    /// What the job's user asks for.
    word: Word,
    host: Host,
    config: Config,
    /// The record that is to go when the job has ended on this node, and so with this step.
    note: Option<(JobId, JobRecord)>,
    /// `None` where it cannot be read.
    kernel_log: Option<KernelLog>,
    /// What a dead step daemon left did not go when this step began.
    leftovers: bool,
    /// How many of the step's processes the kernel had killed when the user was last told.
    told_kills: u64,
    /// How many forks had failed then.
    told_refusals: u64,
    /// The tasks that are in it.
    attached: Vec<i32>,
    /// How many of them have ended.
    exited: u32,
    /// One of its tasks could not be put in, and so none may run.
    ended: bool,
}

/// A step without a fence, whose processes are tracked as well as can be.
struct Unfenced {
    outside: Outside,
    host: Host,
    config: Config,
    key: JobKey,
}

static STEP: Mutex<Step> = Mutex::new(Step::New);

const UNFINISHED: &str =
    "jobfence did not finish its preparation; only your administrator can see why, in slurmd's log";

/// The state; `None` if another thread is in a callback, which Slurm does not do.
fn step() -> Option<MutexGuard<'static, Step>> {
    match STEP.try_lock() {
        Ok(step) => Some(step),
        // A callback that panicked left it as it was; `begin` leaves `Refused` then.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Before any task exists: builds the fence, or remembers why there is none.
pub fn begin(spank: &Spank, arguments: &[&[u8]]) {
    let Some(mut step) = step() else { return };
    if !matches!(*step, Step::New) {
        log::warn!("listed more than once in plugstack.conf; the first entry counts");
        return;
    }
    // Until it is known better: what follows may panic.
    *step = Step::Refused { reason: UNFINISHED.to_owned(), daemon: Pid::this() };
    told::forget(spank);
    let (config, on_error, by, result) = match arguments::load(arguments) {
        Ok(loaded) if loaded.config.mode == Mode::Off => {
            *step = Step::Off;
            return;
        }
        Ok(loaded) => {
            let job = Job::of(spank, &loaded);
            let config = job.as_ref().map_or_else(|_| loaded.strictest(), |job| job.resolved.config.clone());
            let by = OnErrors::softened_by(config.mode);
            let on_error = config.on_error.within(config.mode).general();
            (config, on_error, by, job.and_then(|job| build(spank, job)))
        }
        Err(errors) if errors.mode == Mode::Off => {
            *step = Step::Off;
            return;
        }
        Err(errors) => {
            let by = OnErrors::softened_by(errors.mode);
            let on_error = errors.on_error.within(errors.mode).general();
            (Config::default(), on_error, by, Err(Error::new(errors.to_string()).into()))
        }
    };
    *step = match result {
        Ok(fenced) => Step::Fenced(Box::new(fenced)),
        Err(error) if error.is_bearable(on_error) => {
            log::error!("this step runs WITHOUT a fence ({by}): {error}");
            match Unfenced::new(spank, config) {
                Ok(unfenced) => Step::Unfenced(Box::new(unfenced)),
                Err(error) => {
                    log::error!("its processes are not tracked, either: {error}");
                    Step::Off
                }
            }
        }
        Err(error) => {
            log::error!("this step is refused, since it cannot be fenced: {error}");
            Step::Refused { reason: error.for_user(), daemon: Pid::this() }
        }
    };
}

impl Unfenced {
    fn new(spank: &Spank, config: Config) -> Result<Self> {
        let (host, no_cgroups) = Host::read_what_there_is(&config)?;
        let (_, key) = key_of(spank, &host)?;
        if no_cgroups.is_some() {
            // Nobody has called him yet.
            let daemon = Membership::read(&host.proc, Pid::this().as_raw())?;
            clean_up_behind_others(&host, &config, &daemon, &key);
        }
        let tracker = Tracker::begin(&host, &config.run_dir, &key);
        spank.setenv(told::STEP, &tracked::mark(&host.boot_id, Owner::this(&host.proc)?))?;
        let place = Membership::read(&host.proc, Pid::this().as_raw())?;
        Ok(Self { outside: Outside::of_all(place, tracker), host, config, key })
    }
}

/// Which step it is: what kind of it, and whose.
fn key_of(spank: &Spank, host: &Host) -> Result<(Kind, JobKey)> {
    let kind = Kind::of(spank.u32(spank_item::S_JOB_STEPID)?);
    let key = JobKey {
        node: host.node_level(std::env::var("SLURMD_NODENAME").ok())?,
        uid: spank.u32(spank_item::S_JOB_UID)?,
        job: Name::new(spank.u32(spank_item::S_JOB_ID)?.to_string())?,
        step: Name::new(kind.name())?,
    };
    Ok((kind, key))
}

/// Whose step this is, and what the administrator says of it.
struct Job {
    kind: Kind,
    host: Host,
    key: JobKey,
    id: JobId,
    /// What the prolog has noted down, or the batch step.
    record: Option<JobRecord>,
    /// Whether nothing is allocated to it.
    unallocated: bool,
    /// What is known, as far as anybody asks for it.
    facts: Facts,
    /// Whether sections ask for what only the record says.
    asked: bool,
    resolved: Resolved,
}

impl Job {
    fn of(spank: &Spank, loaded: &Loaded) -> Result<Self, Failure> {
        let host = Host::read(&loaded.config)?;
        let (kind, key) = key_of(spank, &host)?;
        let id = JobId { node: key.node.clone(), job: spank.u32(spank_item::S_JOB_ID)? };
        let record = JobRecords::existing(&loaded.config.run_dir)
            .and_then(|records| records.map_or(Ok(None), |records| records.read(&id, &host)));
        let record = record.unwrap_or_else(|error| {
            log::error!("{key}: what is noted down of the job cannot be used: {error}");
            None
        });
        // Numbers of jobs begin again some day.
        let record = record.filter(|record| record.uid == key.uid);
        let asked = loaded.asked();
        let unallocated = grant::is_unallocated(spank, kind)?;
        let facts = facts::gather(spank, kind, &asked, record.as_ref().filter(|_| !unallocated))?;
        let facts = if unallocated { facts.of_no_job() } else { facts };
        let mut resolved = loaded.for_job(&facts)?;
        resolved.config.on_error = resolved.config.on_error.within(resolved.config.mode);
        match resolved.unknown_in_words() {
            Some(unknown) => log::warn!(
                "{key}: which sections of jobfence.conf hold is not known ({unknown}), so of {} possibilities the strictest \
                 limits do; Prolog= of slurm.conf with 'jobfence prolog' would say, see jobfence(8)",
                resolved.candidates.len()
            ),
            None => log::debug!("{key}: sections {:?}", resolved.candidates.first().map(|only| &only.sections)),
        }
        Ok(Self { kind, host, key, id, record, unallocated, facts, asked: asked.job, resolved })
    }

    /// What those steps must know that begin or end later: the record that goes with this step.
    fn note(&self) -> Option<JobRecord> {
        match (self.kind, &self.record) {
            (Kind::Batch | Kind::Extern, Some(record)) => Some(record.clone()),
            // slurmd calls the prolog of such a job, but no epilog.
            (_, Some(record)) if self.unallocated => Some(record.clone()),
            // Nobody has said anything, and the steps after this one are told less.
            (Kind::Batch, None) if self.asked && self.facts.partition.known().is_some() => self.write_note(),
            _ => None,
        }
    }

    fn write_note(&self) -> Option<JobRecord> {
        let written = Owner::this(&self.host.proc).and_then(|owner| {
            let partition = self.facts.partition.clone();
            let record = JobRecord { partition, ..JobRecord::new(&self.host, Some(owner), self.key.uid) };
            JobRecords::open(&self.resolved.config.run_dir)?.write(&self.id, &record)?;
            Ok(record)
        });
        written.inspect_err(|error| log::error!("{}: later steps are not told its partition: {error}", self.key)).ok()
    }
}

fn build(spank: &Spank, job: Job) -> Result<Fenced, Failure> {
    let Job { kind, host, key, resolved, facts, .. } = &job;
    let config = &resolved.config;
    let grant = match job.unallocated {
        true => Grant { unallocated: true, ..Grant::default() },
        false => grant::of_step(spank, *kind, facts.cpus)?,
    };
    let word = match options::word(spank) {
        Ok(mut word) => {
            if word.names_paths() {
                let gid = spank.u32(spank_item::S_JOB_GID)?;
                word.asked_by(&AsUser::new(key.uid, gid, &spank.gids()?.unwrap_or_default()));
            }
            word
        }
        // Whatever is said in general: a user must not get rid of his fence by asking for nonsense.
        Err(error) if config.mode == Mode::Enforce => return Err(Failure::Asked(error)),
        Err(error) => {
            log::error!("{key}: Mode=observe: what was asked for would be refused: {error}");
            Word::default()
        }
    };
    let daemon = Membership::read(&host.proc, Pid::this().as_raw())?;

    let leftovers = clean_up_behind_others(host, config, &daemon, key);
    let (plan, mut errors) =
        policy::of_step(resolved, facts, &grant, &word, *kind != Kind::Extern, || Topology::of_node(None));
    if word != Word::default() {
        log::info!("{key}: its user asked for {word}, which lowers what is higher");
    }
    let more = word.controllers();
    let mut fence = Fence::open_with(host, config, &more, key, Some(&daemon))
        .map_err(|error| Failure::of_open(error, &word, &more, &fence::controllers(config)))?;
    if config.mode == Mode::Enforce {
        errors.extend(fence.limit(&plan));
    } else {
        log::info!("{key}: Mode=observe: would limit {plan}");
    }
    let told = || told::tell(spank, config, &plan, &fence).map_err(Failure::from);
    let told = || told().and_then(|()| Ok(spank.setenv(told::STEP, &tracked::mark(&host.boot_id, fence.owner()))?));
    if let Err(failure) = bear(key, config, &word, errors).and_then(|()| told()) {
        let _ = fence.close(Instant::now() + config.cleanup_timeout);
        return Err(failure);
    }
    let kernel_log = KernelLog::open().inspect_err(|error| log::debug!("OOM kills will not name the process: {error}"));
    let note = job.note();
    let Job { host, id, resolved: Resolved { config, .. }, .. } = job;
    Ok(Fenced {
        daemon: Pid::this(),
        outside: Outside::new(daemon),
        fence,
        plan,
        word,
        host,
        config,
        note: note.map(|note| (id, note)),
        kernel_log: kernel_log.ok(),
        leftovers,
        told_kills: 0,
        told_refusals: 0,
        attached: Vec::new(),
        exited: 0,
        ended: false,
    })
}

/// What dead step daemons left is nobody's but ours to remove, and a launch is a chance to. Whether something stays.
fn clean_up_behind_others(host: &Host, config: &Config, daemon: &Membership, key: &JobKey) -> bool {
    let who = janitor::Who::Launch(janitor::Launch { daemon, key: Some(key), all: false });
    match janitor::reap(host, config, who, Instant::now() + janitor::PATIENCE_AT_LAUNCH) {
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

/// Why a step or a task is not fenced.
enum Failure {
    /// What `OnError` says in general decides.
    General(Error),
    /// A limit without which it may not run, whatever is said in general.
    Limit(Error),
    /// The same, and it may be for what the job's user has asked for, with these options.
    LimitAsked(Error, Box<str>),
    /// What its user asked for is not understood.
    Asked(Error),
}

impl Failure {
    /// Why there are no directories. Where the user has asked for what needs controllers that the site does not (`more` beside
    /// `ours`), it may be for them: he must not get rid of his fence so, either.
    fn of_open(error: Error, word: &Word, more: &[&str], ours: &[&str]) -> Self {
        if more.iter().all(|controller| ours.contains(controller)) {
            Self::General(error)
        } else {
            Self::LimitAsked(error, word.options().into())
        }
    }

    /// Whether it goes on without a fence.
    fn is_bearable(&self, general: OnError) -> bool {
        matches!(self, Self::General(_)) && general == OnError::Warn
    }
}

impl Failure {
    /// With what the job's user can do about it, or that nobody but the administrator can.
    fn for_user(&self) -> String {
        match self {
            Self::General(_) | Self::Limit(_) => format!("{self}. {NOT_YOURS}"),
            Self::LimitAsked(_, options) => format!("{self}. Try it without {options}. {OTHERWISE}"),
            // The error ends with an example.
            Self::Asked(_) => self.to_string(),
        }
    }
}

const NOT_YOURS: &str = "Only your administrator can mend that";
const OTHERWISE: &str = "If that is refused, too, only your administrator can mend it";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::General(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(error) | Self::Limit(error) | Self::LimitAsked(error, _) | Self::Asked(error) => error.fmt(f),
        }
    }
}

/// Limits that could not be set: a failure unless `OnError` lets the step run without.
fn bear(key: &JobKey, config: &Config, word: &Word, errors: Vec<LimitError>) -> Result<(), Failure> {
    for (limit, error) in errors {
        if config.on_error.for_limit(limit) == OnError::Fail {
            return Err(if word.asks_for(limit) {
                Failure::LimitAsked(error, word.options().into())
            } else {
                Failure::Limit(error)
            });
        }
        let by = OnErrors::softened_by(config.mode);
        log::error!("{key} runs without its {limit} limit ({by}): {error}");
    }
    Ok(())
}

/// In a task's own process, before it becomes the user's.
pub fn admit(spank: &Spank) -> Verdict {
    let (reason, daemon) = match step().as_deref() {
        Some(Step::Fenced(_) | Step::Unfenced(_) | Step::Off) => return Verdict::Good,
        Some(Step::Refused { reason, daemon }) => (reason.clone(), Some(*daemon)),
        Some(Step::New | Step::Ended) | None => (UNFINISHED.to_owned(), None),
    };
    // Once, not for each of the tasks.
    if spank.int(spank_item::S_TASK_ID).unwrap_or(0) == 0 {
        tell_user(&format!("this job was not started, since it cannot be fenced: {reason}"));
    }
    if daemon.is_some_and(|daemon| daemon != Pid::this()) {
        // Listed as `optional`, Slurm would ignore our answer and run the task without a fence. This process is the task,
        // forked a moment ago, and ends as Slurm ends it when a `required` plugin refuses.
        // SAFETY: ends this process at once; nothing of it is used afterwards.
        unsafe { libc::_exit(1) };
    }
    Verdict::Bad
}

/// In a task's own process, as the user, when it is where it will stay: where that is Slurm's place, what was said before can
/// be wrong, or Slurm has limits of its own there. Its CPUs, too, are known only here.
pub fn tell_task(spank: &Spank) {
    let mut step = step();
    let Some(Step::Fenced(fenced)) = step.as_deref_mut() else { return };
    let Ok(member) = Membership::read(&fenced.host.proc, Pid::this().as_raw()) else { return };
    fenced.fence.look_from(&member);
    // Only this process's environment, and only for information.
    let Fenced { config, plan, fence, .. } = &**fenced;
    if fence.has_overlay() {
        let _ = told::tell(spank, config, plan, fence);
    }
    let tasks = spank.u32(spank_item::S_JOB_LOCAL_TASK_COUNT).unwrap_or(1);
    let _ = told::hint_threads(spank, config, plan, fence, tasks);
}

/// In the step daemon, with the task waiting before its exec, as all the step's tasks on this node do.
pub fn attach(spank: &Spank) {
    let mut step = step();
    let pid = match spank.int(spank_item::S_TASK_PID) {
        Ok(pid) if pid > 1 => pid,
        // It has no task, and calls this all the same.
        _ if spank.u32(spank_item::S_JOB_STEPID).is_ok_and(|step| Kind::of(step) == Kind::Extern) => {
            if let Some(Step::Fenced(fenced)) = step.as_deref_mut() {
                settle_extern(fenced);
            }
            return;
        }
        answer => {
            let answer = answer.map_or_else(|error| error.to_string(), |pid| format!("it says {pid}"));
            log::error!("a task runs WITHOUT a fence, since Slurm does not tell its pid ({answer})");
            // It cannot be ended, but those that are still to come can.
            if let Some(Step::Fenced(fenced)) = step.as_deref_mut() {
                fenced.ended = fenced.config.on_error.general() == OnError::Fail;
            }
            return;
        }
    };
    let failure = match step.as_deref_mut() {
        Some(Step::Off | Step::Refused { .. }) => return,
        Some(Step::Unfenced(unfenced)) => {
            let Unfenced { outside, host, config, key } = &mut **unfenced;
            return outside.add(host, config, key, pid);
        }
        Some(Step::Fenced(fenced)) if fenced.ended => return end_processes(Some(&fenced.host.proc), &[pid]),
        Some(Step::Fenced(fenced)) if fenced.attached.contains(&pid) => return,
        Some(Step::Fenced(fenced)) => match fence_task(fenced, spank, pid) {
            Ok(()) => {
                if fenced.attached.is_empty() {
                    tell_of_withheld_gpus(fenced);
                }
                fenced.attached.push(pid);
                if fenced.fence.has_overlay() {
                    fenced.outside.task_attached(&fenced.host);
                }
                return;
            }
            // Another plugin has refused it, or somebody has killed it: it needs no fence any more.
            Err(error) if is_ending(&fenced.host.proc, pid) => {
                log::debug!("task {pid} ended before it could be fenced: {error}");
                return;
            }
            Err(error) if error.is_bearable(fenced.config.on_error.general()) => {
                let by = OnErrors::softened_by(fenced.config.mode);
                log::error!("task {pid} runs WITHOUT a fence ({by}): {error}");
                let Fenced { outside, host, config, fence, .. } = &mut **fenced;
                return outside.add(host, config, fence.key(), pid);
            }
            Err(error) => {
                fenced.ended = true;
                error.for_user()
            }
        },
        Some(Step::New | Step::Ended) | None => UNFINISHED.to_owned(),
    };
    refuse_task(step.as_deref(), pid, &failure);
}

/// When [`attach`] panicked: no later callback could refuse the task.
pub fn attach_did_not_finish(spank: &Spank) {
    let Some(pid) = spank.int(spank_item::S_TASK_PID).ok().filter(|&pid| pid > 1) else { return };
    let mut step = step();
    if let Some(Step::Fenced(fenced)) = step.as_deref_mut() {
        fenced.ended = true;
    }
    refuse_task(step.as_deref(), pid, UNFINISHED);
}

/// Ends a task that waits before its exec, and those that were attached before it.
fn refuse_task(step: Option<&Step>, pid: i32, failure: &str) {
    // Before its end: see `end_processes`.
    tell_user(&format!("this task was not started, since it cannot be fenced: {failure}"));
    let proc = match step {
        Some(Step::Fenced(fenced)) => Some(&fenced.host.proc),
        _ => None,
    };
    end_processes(proc, &[pid]);
    log::error!("task {pid} was ended, since it cannot be fenced: {failure}");
    // The others would wait for it, perhaps for ever; those that are still to come meet `ended`.
    if let Some(Step::Fenced(fenced)) = step
        && !fenced.attached.is_empty()
    {
        log::error!("{}: its tasks {:?} were ended, too", fenced.fence.key(), fenced.attached);
        end_processes(proc, &fenced.attached);
    }
}

fn fence_task(fenced: &mut Fenced, spank: &Spank, pid: i32) -> Result<(), Failure> {
    let task = spank.u32(spank_item::S_TASK_GLOBAL_ID)?;
    let errors = fenced.fence.attach(&fenced.host, pid, Some(task))?;
    if fenced.attached.is_empty() && fenced.fence.has_overlay() {
        log::info!("{}: {}", fenced.fence.key(), fenced.fence.placement());
    }
    bear(fenced.fence.key(), &fenced.config, &fenced.word, errors)
}

/// Says once why the step may use none of the GPUs that Slurm has given its job.
fn tell_of_withheld_gpus(fenced: &Fenced) {
    if let Some(why) = fenced.fence.devices().and_then(Devices::gpus_withheld) {
        tell_user(&format!(
            "{}: none of the job's GPUs is allowed, since it is not certain which devices they are: {why}; an administrator finds \
             under GPUDevice in jobfence.conf(5) how they are named",
            fenced.fence.key()
        ));
    }
}

/// Limits what pam_slurm_adopt will put into the extern step, where Slurm has made directories for it. No plugin is told of a
/// process in them: the step daemon itself, or the placeholder that it has started (before 25.05), shows where they are.
fn settle_extern(fenced: &mut Fenced) {
    let daemon = fenced.daemon.as_raw();
    let threads =
        fenced.host.proc.child(&format!("{daemon}/task")).and_then(|tasks| tasks.list(true)).unwrap_or_default();
    let children = threads.iter().flat_map(|thread| {
        let children = fenced.host.proc.read(&format!("{daemon}/task/{thread}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    });
    for pid in std::iter::once(daemon).chain(children.collect::<Vec<_>>()) {
        let Ok(member) = Membership::read(&fenced.host.proc, pid) else { continue };
        fenced.fence.mark_others(&fenced.host, &member);
        let settled = fenced.fence.settle(&member).map_err(Failure::from);
        fenced.fence.mark_located();
        let settled = settled.and_then(|errors| bear(fenced.fence.key(), &fenced.config, &fenced.word, errors));
        if let Err(error) = settled {
            // No task to refuse: the job's other steps say so to their user.
            log::error!("{}: what is adopted into it is not limited as it should be: {error}", fenced.fence.key());
        }
    }
}

/// Ends tasks that wait before their exec. They are our caller's children and not waited for yet, so the pids are still their own.
///
/// When srun hears that a task died of SIGKILL or SIGTERM, it throws away what has not reached it of the step's output, and
/// with it the reason that the user should read. So they die of another signal, which nobody blocks or handles there and
/// which writes no core. If somebody does handle it: SIGKILL, some milliseconds later, since a process that was just being woken
/// for something else would die of that instead.
fn end_processes(proc: Option<&Dir>, pids: &[i32]) {
    const PATIENCE: u32 = 20;
    let send = |signal| {
        for pid in pids {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
    };
    send(Signal::SIGVTALRM);
    for _ in 0..PATIENCE {
        if proc.is_none_or(|proc| pids.iter().all(|pid| is_ending(proc, *pid))) {
            break;
        }
        let _ = poll(&mut [], PollTimeout::from(1u8));
    }
    send(Signal::SIGKILL);
}

/// In the step daemon, while the user's stderr is open: says at which limits the step's processes have been stopped.
pub fn task_ended(spank: &Spank) {
    let mut step = step();
    let fenced = match step.as_deref_mut() {
        Some(Step::Fenced(fenced)) => fenced,
        Some(Step::Unfenced(unfenced)) => {
            let Unfenced { outside, host, .. } = &mut **unfenced;
            return outside.task_ended(host);
        }
        _ => return,
    };
    fenced.outside.task_ended(&fenced.host);
    fenced.fence.take_usage();
    tell_refusals(fenced);
    tell_kills(fenced);
    fenced.exited = fenced.exited.saturating_add(1);
    let tasks = spank.u32(spank_item::S_JOB_LOCAL_TASK_COUNT);
    // While others run, what another plugin has started for the step is of use to them.
    if !tasks.as_ref().is_ok_and(|tasks| fenced.exited < *tasks) {
        let Fenced { outside, host, config, fence, .. } = &mut **fenced;
        outside.end_after_tasks(host, config, fence.key());
    }
    if tasks.is_ok_and(|tasks| fenced.exited == tasks) {
        let deadline = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
        if let Err(error) = fenced.fence.end_leaderless(&fenced.host, deadline) {
            log::debug!("{}: {error}", fenced.fence.key());
        }
    }
}

fn tell_refusals(fenced: &mut Fenced) {
    let refused = fenced.fence.forks_refused();
    let unsaid = refused.saturating_sub(fenced.told_refusals);
    fenced.told_refusals = refused;
    let (of_job, of_task) = (fenced.fence.processes(), fenced.fence.processes_of_task());
    if unsaid > 0 && (of_job.is_some() || of_task.is_some()) {
        let asked = fenced.word.processes().filter(|asked| of_job == Some(*asked));
        let asked =
            asked.filter(|asked| fenced.config.max_processes.is_none_or(|site| site > *asked)).map(|_| "--pids-max");
        tell_user(&report::too_many_processes(fenced.fence.key(), unsaid, of_job, of_task, asked));
    }
}

fn tell_kills(fenced: &mut Fenced) {
    let kills = fenced.fence.oom_kills();
    if kills <= fenced.told_kills {
        return;
    }
    let unnamed = kills - fenced.told_kills;
    fenced.told_kills = kills;
    let levels = fenced.fence.memory_levels();
    let ours = |place: &str| levels.first().is_some_and(|step| step.holds(place));
    let logged = fenced.kernel_log.iter().flat_map(KernelLog::oom_kills);
    let named: Vec<_> = logged.filter(|kill| ours(&kill.task_in)).collect();
    // Many processes may have been killed for the same reason: the last one is an example.
    let sentence = report::out_of_memory(fenced.fence.key(), named.last(), &levels);
    let others = match unnamed {
        1 => String::new(),
        more => format!(" ({} more of its processes were killed before.)", more - 1),
    };
    tell_user(&format!("{sentence}{others}"));
}

/// How long another thread of the daemon may keep root's rights from us.
const RIGHTS_RETURN: Duration = Duration::from_secs(2);

/// Makes this thread root again, and no other: the system calls themselves, since the C library's functions change every thread.
fn take_rights_back() {
    let same: libc::c_long = -1;
    for call in [libc::SYS_setresuid, libc::SYS_setresgid] {
        // SAFETY: three numbers, of which two say "as it is"; whether it may, the kernel decides by the real and the saved id.
        unsafe { libc::syscall(call, same, 0, same) };
    }
}

/// In the step daemon, when every task has ended: what was used, and then nothing is left.
pub fn end() {
    let Some(mut step) = step() else { return };
    let mut fenced = match std::mem::replace(&mut *step, Step::Ended) {
        Step::Fenced(fenced) => fenced,
        Step::Unfenced(mut unfenced) => {
            let deadline = Instant::now() + unfenced.config.cleanup_timeout;
            let Unfenced { outside, host, config, key } = &mut *unfenced;
            return outside.end(host, config, key, deadline);
        }
        Step::New | Step::Off | Step::Refused { .. } | Step::Ended => return,
    };
    log::info!("{}", report::ended(fenced.fence.key(), &fenced.fence.usage()));
    let deadline = Instant::now() + fenced.config.cleanup_timeout;
    let mut closed = fenced.fence.close(deadline);
    // Where a thread of the extern step's daemon ends X11 forwarding (also where there is none), it gives up root's rights for
    // a moment, and the C library takes them from every thread. The daemon may be gone a moment later, so we do not wait
    // before the first attempt; only an error that stays is not asked about without pause.
    let patience = deadline.min(Instant::now() + RIGHTS_RETURN);
    while closed.as_ref().is_err_and(Error::is_about_rights) && Instant::now() < patience {
        take_rights_back();
        closed = fenced.fence.close(deadline);
        if closed.as_ref().is_err_and(Error::is_about_rights) {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
    }
    if let Err(error) = closed {
        log::error!("{}: its directories remain for now: {error}", fenced.fence.key());
    }
    let Fenced { outside, host, config, fence, .. } = &mut *fenced;
    outside.end(host, config, fence.key(), deadline);
    if let Some((id, seen)) = &fenced.note {
        let forgotten = JobRecords::existing(&fenced.config.run_dir)
            .and_then(|records| records.map_or(Ok(()), |records| records.forget_this(id, seen)));
        if let Err(error) = forgotten {
            log::error!("{}: what was noted down of the job remains for now: {error}", fenced.fence.key());
        }
    }
    // A launch cannot wait for long, and the node's next may be hours away. What has failed once was said then.
    if fenced.leftovers
        && Instant::now() + janitor::PATIENCE_AT_LAUNCH + janitor::PATIENCE_WITH_MANY < deadline
        && let Some(place) = fenced.outside.place()
        && let who = janitor::Who::Launch(janitor::Launch { daemon: place, key: Some(fenced.fence.key()), all: true })
        && let Ok(reaped) =
            janitor::reap(&fenced.host, &fenced.config, who, Instant::now() + janitor::PATIENCE_AT_LAUNCH)
    {
        janitor::Reaped { failed: Vec::new(), ..reaped }.log();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limit;

    #[test]
    fn nobody_gets_rid_of_his_fence_by_asking_for_a_controller_that_is_not_there() {
        let failure = |more: &[&str]| Failure::of_open(Error::new("x"), &Word::default(), more, &["cpu", "memory"]);
        assert!(failure(&["memory"]).is_bearable(OnError::Warn) && failure(&[]).is_bearable(OnError::Warn));
        assert!(!failure(&["memory", "io"]).is_bearable(OnError::Warn));
    }

    #[test]
    fn a_user_is_sent_to_the_administrator_only_where_nobody_else_can_help() {
        let mut asked = Word::default();
        asked.step.pids_max = Some(5);
        let config = Config::default();
        let key = JobKey { node: None, uid: 1, job: Name::new("5").unwrap(), step: Name::new("0").unwrap() };
        let told = |word: &Word, limit| {
            bear(&key, &config, word, vec![(limit, Error::new("x"))]).map_err(|failure| failure.for_user()).unwrap_err()
        };
        assert_eq!(told(&asked, Limit::Cpu), "x. Only your administrator can mend that");
        assert_eq!(
            told(&asked, Limit::Processes),
            "x. Try it without --pids-max. If that is refused, too, only your administrator can mend it"
        );
        assert_eq!(Failure::Asked(Error::new("x; for example y")).for_user(), "x; for example y");
        assert_eq!(Failure::General(Error::new("x")).for_user(), told(&Word::default(), Limit::Processes));
    }

    #[test]
    fn a_thread_takes_its_rights_back_and_leaves_the_others_theirs() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root has rights to take back");
        }
        // SAFETY: asks for nothing but a number.
        let effective = || unsafe { libc::syscall(libc::SYS_geteuid) };
        let thread = std::thread::spawn(move || {
            let (same, nobody): (libc::c_long, libc::c_long) = (-1, 65_534);
            // SAFETY: as in take_rights_back; this thread alone, which ends with the test.
            unsafe { libc::syscall(libc::SYS_setresuid, same, nobody, same) };
            let before = effective();
            take_rights_back();
            (before, effective())
        });
        assert_eq!(thread.join().unwrap(), (65_534, 0));
        assert_eq!(effective(), 0);
    }
}
