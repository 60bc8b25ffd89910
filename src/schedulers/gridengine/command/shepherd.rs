// SPDX-License-Identifier: GPL-2.0-or-later
//! The door of Grid Engine: execd starts this program instead of its shepherd, if `shepherd_cmd` of sge_conf(5) names it.
//!
//! It makes two fences: one for the job, and one for the shepherd, which has to report how the job ended, and so must survive an OOM kill
//! of the whole job. The shepherd starts in the first fence, so that the job is born there. When the shepherd has written the job's number,
//! it is moved into the second. Both are in the job's directory, which has the limits of the job.
//!
//! To execd, this process is the shepherd: it has the shepherd's name, its number is in the file `pid`, it passes signals on, and it ends
//! as the shepherd ends. If it is killed, execd takes the job for dead, and the janitor ends the processes that are left. (A parent-death
//! signal would kill the shepherd at once, but the kernel clears it when the shepherd changes its credentials.)

mod again;
pub(crate) mod both;
mod client;
mod debits;
mod environment;
mod process;
mod sentences;
mod spool;
mod usage;

use std::ffi::{CString, OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use jobfence::bytes::mebibytes;
use jobfence::config::{Config, LoadError, Loaded, SlotRequest};
use jobfence::doors::card::{JobEnd, card};
use jobfence::doors::life::{self, LiveFence};
use jobfence::doors::opening::{Granted, HeldBy, OpenRequest};
use jobfence::doors::recorded::WantedFences;
use jobfence::doors::run::end_as;
use jobfence::doors::user;
use jobfence::error::Error;
use jobfence::host::Host;
use jobfence::job::{Cpus, Id};
use jobfence::launch::Answer;
use jobfence::private::{PrivateDirs, ipc};
use jobfence::record::job::JobRecords;
use jobfence::report::account::Exit;
use jobfence::requests::{Requests, UserRequests};
use jobfence::schedulers::gridengine::card::WORDS;
use jobfence::schedulers::gridengine::spool::SpooledJob;
use jobfence::schedulers::gridengine::{JOBS_STEP, SHEPHERD, SHEPHERDS_STEP};
use jobfence::sys::call_bytes::{CallBytes, Moved};
use jobfence::sys::dir::Dir;
use nix::unistd::Pid;

use crate::command::{fenced, ignore_sigpipe};
use crate::configured::Configured;
use crate::syslog::SyslogOfDaemon;
use again::EndedRun;
use both::BothFences;
use process::{ShepherdEvent, ShepherdProcess};
use spool::{JOB_IS_IN_ERROR, NotStarted, Spool};

/// The run of each start of a job: an earlier start's fences are gone by then.
const RUN: u32 = 1;

/// The name under which execd started this program. `None`: execd did not start it.
pub fn name() -> Option<OsString> {
    let word = std::env::args_os().next()?;
    let name = Path::new(&word).file_name().and_then(OsStr::to_str)?;
    name.strip_prefix(SHEPHERD)?.starts_with('-').then_some(word)
}

/// Fences the job, and acts as its shepherd.
pub fn shepherd(name: &OsStr) -> ExitCode {
    ignore_sigpipe();
    SyslogOfDaemon::begin();
    let spool = match Spool::open() {
        Ok(spool) => spool,
        Err(error) => {
            log::error!("this job was not started: {error}");
            return ExitCode::from(JOB_IS_IN_ERROR);
        }
    };
    let program = match process::program() {
        Ok(program) => program,
        Err(error) => {
            log::error!("{}: this job was not started: {error}", spool.dir.path().display());
            return refuse(&spool, &NotStarted { is_of_host: true, ..error.to_string().into() });
        }
    };
    let how = match FencedJob::open(&spool) {
        Ok(None) => process::become_shepherd(&program, name, spool.user)
            .map(|never| match never {})
            .map_err(|error| error.to_string().into()),
        Ok(Some(fenced)) => fenced.run(&spool, &program, name).map_err(|error| error.to_string().into()),
        Err(refusal) => Err(refusal),
    };
    match how {
        Ok(how) => ExitCode::from(u8::try_from(end_as(how)).unwrap_or(u8::MAX)),
        Err(mut refusal) => {
            log::error!("{}: this job was not started: {}", spool.dir.path().display(), refusal.why);
            // If the job waits for another host, so does its client.
            if !refusal.is_of_host {
                match client::tell(&spool, &program, name, &refusal.sentence()) {
                    Ok(is_over) => refusal.is_over = is_over,
                    Err(error) => log::warn!("{}: cannot tell its user why: {error}", spool.dir.path().display()),
                }
            }
            refuse(&spool, &refusal)
        }
    }
}

/// Tells execd that the job was not started.
fn refuse(spool: &Spool, refusal: &NotStarted) -> ExitCode {
    spool.refuse(refusal);
    ExitCode::from(refusal.status())
}

/// A job, or a slave task of one, with its fences.
struct FencedJob {
    loaded: Loaded,
    spooled: SpooledJob,
    /// The fence of the job, then that of its shepherd, each with its job and step.
    job: (WantedFences, LiveFence),
    shepherd: (WantedFences, LiveFence),
    /// Whether execd has had the job killed.
    was_told_to_end: bool,
}

impl FencedJob {
    /// Makes the fences. `None`: the job runs without.
    fn open(spool: &Spool) -> Result<Option<Self>, NotStarted> {
        let configured = |overrides| Configured { config: None, overrides }.load();
        let loaded = configured(Vec::new());
        let mut spooled = match SpooledJob::read(&spool.dir) {
            Ok(spooled) => spooled,
            Err(why) => return Ok(fenced(life::of_unknown(loaded, why)).map(|_| None)?),
        };
        if let Ok(loaded) = &loaded {
            user::know_groups(&mut spooled.facts, &loaded.asked());
            know_debits(&mut spooled, loaded);
        }
        let is_of_script = spooled.slave_task.is_none();
        let config = loaded.as_ref().ok().map(|loaded| loaded.config.clone());
        Self::from_spooled(spooled, loaded, configured).map_err(|why| {
            // For a slave task, execd only takes the failure of the task.
            let is_of_host = is_of_script && !config.is_some_and(|config| can_fence(&config));
            NotStarted { is_of_host, ..why.into() }
        })
    }

    fn from_spooled(
        spooled: SpooledJob,
        loaded: Result<Loaded, LoadError>,
        configured: impl Fn(Vec<OsString>) -> Result<Loaded, LoadError>,
    ) -> Result<Option<Self>, String> {
        if !spooled.are_slots_known {
            log::warn!("job {}: execd does not say how many slots this task has here, so it has one", spooled.job);
        }
        let step = spooled.slave_task.as_ref().map(Id::as_str);
        let id = |text: String| Id::new(text).map_err(|error| error.to_string());
        let steps = [
            id(step.unwrap_or(JOBS_STEP).to_owned())?,
            id(step.map_or_else(|| SHEPHERDS_STEP.to_owned(), |task| format!("{SHEPHERDS_STEP}-{task}")))?,
        ];
        let [job, shepherd] =
            steps.map(|step| WantedFences { job: spooled.job.clone(), step: Some(step), run: Some(RUN) });
        // Once the shepherd is killed, nothing reports how the job ended.
        let spared = configured(vec![OsString::from("OOMKillStep=no")]);
        let Some(of_shepherd) = fenced(open(spared, &spooled, &shepherd))? else { return Ok(None) };
        let opened = fenced(open(loaded.clone(), &spooled, &job));
        // There is a fence only if the configuration was read.
        let loaded = loaded.map_err(|error| error.to_string())?;
        match opened {
            Ok(Some(of_job)) => Ok(Some(Self {
                loaded,
                spooled,
                job: (job, of_job),
                shepherd: (shepherd, of_shepherd),
                was_told_to_end: false,
            })),
            other => {
                close(&loaded.config, &spooled.job, &[(&shepherd, None)]);
                other.map(|_| None)
            }
        }
    }

    fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Runs the shepherd until it ends. Returns how it ended.
    fn run(mut self, spool: &Spool, program: &CString, name: &OsStr) -> Result<Exit, Error> {
        let began = SystemTime::now();
        self.say_restart();
        if let Err(error) = self.tell(spool) {
            log::warn!("job {}: cannot tell it of its limits: {error}", self.spooled.job);
        }
        let call_bytes = Dir::open("/proc").ok().and_then(|proc| CallBytes::begin(&proc));
        let (private, is_ipc_private) = (self.job.1.private().cloned(), self.job.1.is_ipc_private());
        let enter = || {
            ipc::enter(is_ipc_private)?;
            private.as_ref().map_or_else(ipc::enter_mounts, |private| private.enter(&scratch(&self.spooled, private)))
        };
        let live = &mut self.job.1;
        let started = ShepherdProcess::start(program, name, spool.user, |pid| attach(live, pid), enter);
        let (how, child) = match started {
            Ok(mut child) => (self.watch(spool, &mut child), Some(child)),
            Err(error) => (Err(error), None),
        };
        let moved = CallBytes::since(call_bytes.as_ref());
        let card = self.card(spool);
        let fences = [(&self.job.0, Some(moved)), (&self.shepherd.0, None)];
        let mut ended = close(self.config(), &self.spooled.job, &fences);
        ended.sentences.extend(private.iter().flat_map(PrivateDirs::full));
        self.job.1.remove_private();
        if let Some(Err(error)) = ended.usage.map(|used| usage::raise(spool, &used)) {
            log::warn!("job {}: cannot say what it used: {error}", self.spooled.job);
        }
        // execd may have had the job killed since.
        self.was_told_to_end |= child.is_some_and(ShepherdProcess::was_told_to_end);
        let again = EndedRun {
            loaded: &self.loaded,
            job: &self.spooled,
            spool,
            began,
            shepherd: how.as_ref().ok().copied(),
            exit: usage::end(spool).exit,
            was_told_to_end: self.was_told_to_end,
            was_killed: ended.was_killed,
        };
        let again = again.put_back();
        let sentences = ended.sentences.iter().map(|sentence| format!("jobfence: {sentence}"));
        sentences::say(&self.spooled, sentences.chain(card).chain(again));
        how
    }

    /// Tells the user of a job that runs again, where `OnOutOfMemory` has jobs do so. execd does not say why it runs again.
    fn say_restart(&self) {
        let is_wanted = || {
            let resolved = life::resolve(&self.loaded, self.spooled.facts.clone());
            resolved.is_ok_and(|resolved| resolved.config.on_out_of_memory.is_some())
        };
        if !self.spooled.is_restarted || !is_wanted() {
            return;
        }
        if let Some(memory) = self.job.1.seen().limits.memory {
            let line = format!("jobfence: this is a restart of the job, with {} of memory", mebibytes(memory));
            sentences::say(&self.spooled, [line].into_iter());
        }
    }

    /// Writes the job's limits into its environment.
    fn tell(&self, spool: &Spool) -> Result<(), Error> {
        let job = &self.job.1;
        environment::tell(spool, &self.spooled, self.config(), &job.seen(), job.opened.visible_gpus.as_deref())
    }

    /// The card for the end of the job's output. Empty for a slave task, which has no output of its own.
    fn card(&self, spool: &Spool) -> Vec<String> {
        if self.spooled.slave_task.is_some() {
            return Vec::new();
        }
        let end = JobEnd {
            time_limit: self.spooled.time_limit,
            is_array_task: self.spooled.is_array_task,
            is_utf8: self.spooled.is_utf8,
            words: Some(&WORDS),
            ..usage::end(spool)
        };
        let all = WantedFences { step: None, ..self.job.0.clone() };
        match card(&self.loaded, &all, &granted(Some(&self.loaded), &self.spooled), &end) {
            Ok(lines) => lines.unwrap_or_default(),
            Err(error) => {
                log::warn!("job {}: there is no card of it: {error}", self.spooled.job);
                Vec::new()
            }
        }
    }

    fn watch(&mut self, spool: &Spool, child: &mut ShepherdProcess) -> Result<Exit, Error> {
        let mut is_frozen = false;
        loop {
            match child.next()? {
                ShepherdEvent::Ended(how) => return Ok(how),
                ShepherdEvent::Signal(signal) => {
                    self.was_told_to_end |= process::is_end(signal);
                    let is_to_stop = self.spooled.is_stopped_at_once && process::is_stop(&spool.dir, signal);
                    // On v1, a frozen process is not killed either.
                    if is_frozen && process::wakes(signal) {
                        self.freeze(false);
                        is_frozen = false;
                    }
                    child.pass_on(signal);
                    if is_to_stop {
                        self.freeze(true);
                        is_frozen = true;
                    }
                }
                ShepherdEvent::HasPid => {
                    // A restarted execd watches this number for the job's end, which must not come before the job's usage is written.
                    if let Err(error) = spool.write(process::PID, format!("{}\n", Pid::this()).as_bytes()) {
                        log::warn!("job {}: cannot be its shepherd: {error}", self.spooled.job);
                    }
                }
                ShepherdEvent::JobBegins => {
                    // If this fails, the job is fenced nevertheless.
                    if let Answer::Unfenced { why, .. } | Answer::Refused(why) = self.shepherd.1.attach(child.pid()) {
                        log::warn!("job {}: its shepherd stays in the step of the job: {why}", self.spooled.job);
                    }
                    if let Err(error) = child.spare() {
                        log::warn!("job {}: its shepherd can be killed for lack of memory: {error}", self.spooled.job);
                    }
                }
            }
        }
    }

    fn freeze(&self, is_frozen: bool) {
        if let Err(error) = self.job.1.freeze(is_frozen) {
            log::warn!("job {}: {error}", self.spooled.job);
        }
    }
}

/// The job's `TMPDIR`, which execd has made and removes.
fn scratch(spooled: &SpooledJob, private: &PrivateDirs) -> Vec<PathBuf> {
    let task = if spooled.is_array_task { "" } else { ".1" };
    let queue = spooled.facts.partition.known().map_or("", String::as_str);
    private.paths().map(|path| path.join(format!("{}{task}.{queue}", spooled.job))).collect()
}

fn attach(live: &mut LiveFence, child: Pid) -> Result<(), Error> {
    fenced(live.attach(child)).map(drop).map_err(Error::new)
}

/// Ends these fences, the job's with what it and its shepherd have moved. Records are read anew: another process may have changed them.
fn close(config: &Config, job: &Id, fences: &[(&WantedFences, Option<Moved>)]) -> BothFences {
    let mut ended = BothFences::default();
    for (which, moved) in fences {
        let closed = life::close_counted(config, which, moved.unwrap_or_default());
        ended.add(job, moved.is_some(), closed.unwrap_or_else(|error| vec![Err(error)]));
    }
    ended
}

/// Whether jobs can be fenced here at all. A single job's requests must not put the host into error.
fn can_fence(config: &Config) -> bool {
    Host::read(config).is_ok() && JobRecords::open(&config.run_dir).is_ok()
}

/// Learns what qmaster debits, if the job's grant depends on it. Logs the requests that are debited on another host.
fn know_debits(spooled: &mut SpooledJob, loaded: &Loaded) {
    let of_sections = configs(loaded, spooled).into_iter().flat_map(|config| config.slot_cpus).collect::<Vec<_>>();
    let wanted: Vec<&SlotRequest> =
        loaded.config.slot_memory.iter().chain(&loaded.config.slot_gpus).chain(&of_sections).collect();
    spooled.debits = debits::of(spooled, &wanted, &loaded.config);
    for name in [&loaded.config.slot_memory, &of_sections].into_iter().flat_map(|of| spooled.elsewhere(of)) {
        log::warn!(
            "job {}: {name} is debited on the host of the job's script alone, so the job has none of it here",
            spooled.job
        );
    }
}

/// The configurations that may hold for the job: one, if all facts are known by which sections are chosen.
fn configs(loaded: &Loaded, spooled: &SpooledJob) -> Vec<Config> {
    match life::resolve(loaded, spooled.facts.clone()) {
        Ok(resolved) => resolved.candidates.into_iter().map(|candidate| candidate.config).collect(),
        // The launch reports this error.
        Err(_) => vec![loaded.config.clone()],
    }
}

/// The job's hardware threads: the fewest by the configurations that may hold for it.
fn cpus(loaded: &Loaded, spooled: &SpooledJob) -> Cpus {
    let one = |config: Config| spooled.cpus(&config.slot_cpus, config.cpus_per_slot);
    configs(loaded, spooled).into_iter().map(one).min().unwrap_or(Cpus::ZERO)
}

/// What a job was granted here. The user sets a slave task's environment by `qrsh -inherit -v`, past any JSV. So a slave task gets at most
/// the least memory limit that the job already has here, if any, and only as many GPUs as the job has here.
fn granted(loaded: Option<&Loaded>, spooled: &SpooledJob) -> Granted {
    let mut granted = Granted { facts: spooled.facts.clone(), ..Granted::default() };
    let Some(loaded) = loaded else { return granted };
    let config = &loaded.config;
    granted.cpus = Some(cpus(loaded, spooled));
    granted.memory = spooled.memory(&config.slot_memory);
    let mut gpus = usize::try_from(spooled.gpus(&config.slot_gpus)).unwrap_or(usize::MAX);
    if spooled.slave_task.is_some() {
        let all = WantedFences { job: spooled.job.clone(), step: None, run: Some(RUN) };
        let of_job = life::usage(config, &all).unwrap_or_default();
        granted.memory = of_job.iter().filter_map(|seen| seen.limits.memory).chain(granted.memory).min();
        gpus = of_job.iter().map(|seen| seen.gpus.len()).max().unwrap_or(0);
    }
    granted.gpus = (!config.slot_gpus.is_empty()).then_some(gpus);
    granted.requests = UserRequests { job: spooled.asked.clone(), step: Requests::default() };
    if granted.requests.names_paths() {
        let rights = user::rights(spooled.uid);
        granted.requests.paths().for_each(|rules| rules.asked_by(&rights));
    }
    granted
}

fn open(loaded: Result<Loaded, LoadError>, spooled: &SpooledJob, which: &WantedFences) -> Answer<LiveFence> {
    let granted = granted(loaded.as_ref().ok(), spooled);
    let request = OpenRequest {
        uid: spooled.uid,
        job: which.job.clone(),
        step: which.step.clone().unwrap_or_else(|| which.job.clone()),
        run: RUN,
        granted,
        holder: HeldBy::Process(Pid::this().as_raw()),
        ask_unit: None,
        starts_processes: true,
    };
    life::open_live(loaded, &request, None)
}
