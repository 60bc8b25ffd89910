// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes of OpenPBS's jobs that are in no fence: those of a task whose launch hook has crashed, if MoM has no later event for the hook.
//! The hook itself finds them at its periodic event; `jobfence hold` does if MoM has no such event.
//!
//! MoM's files give the session of each task, and the kernel says which processes are in that session or descend from it. Any other process
//! is the job's if its environment names the job. The user can have written that, so it counts only for a job of the same user.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cgroup::membership::Membership;
use crate::config::Config;
use crate::doors::life;
use crate::doors::take_back::Places;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::job::Id;
use crate::record::holder::Holder;
use crate::record::{Record, Records};
use crate::scheduler::WithoutCgroups;
use crate::schedulers::pbs::tasks::{self, SpooledJobs};
use crate::schedulers::pbs::{PBS, tasks::OF_A_JOB};
use crate::sys::process::{self, Process};

/// The step for processes of a job that belong to no task.
const STEP: &str = "extern";

/// How long one pass may read environments.
const PATIENCE: Duration = Duration::from_secs(3);

/// A process that was put into its job's fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedIn {
    /// The process.
    pub pid: i32,
    /// Its job.
    pub job: Id,
}

impl fmt::Display for FetchedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of job {}", self.pid, self.job)
    }
}

/// Puts each job's processes that are in no fence into the job's fence. `homes` are the directories of the running MoMs.
pub fn fetch_in(host: &Host, config: &Config, homes: &BTreeSet<PathBuf>) -> Result<Vec<Result<FetchedIn>>> {
    let spooled = tasks::spooled(homes);
    if spooled.jobs.is_empty() {
        return Ok(Vec::new());
    }
    let places = Places::new(host, config)?;
    let mut all = process::all(&host.proc)?;
    let by_pid: BTreeMap<i32, Process> = all.iter().map(|found| (found.id.pid, *found)).collect();
    process::in_turn(&mut all, &host.proc);
    let (mut fences, mut done) = (None, Vec::new());
    let deadline = Instant::now() + PATIENCE;
    for found in all {
        let mut one = || {
            let pid = found.id.pid;
            let Some(uid) = process::uid(&host.proc, pid).filter(|uid| *uid != 0) else { return Ok(None) };
            if places.holds(&Membership::read(&host.proc, pid)?) {
                return Ok(None);
            }
            if fences.is_none() {
                fences = Some(Fences::find(host, config, &spooled)?);
            }
            let Some(fences) = &fences else { return Ok(None) };
            let by_session = of_a_session(&by_pid, &spooled, found);
            if by_session.is_none() && !fences.has_user(uid) {
                return Ok(None);
            }
            let by_name = || process::environment(&host.proc, pid, OF_A_JOB, deadline);
            let named = match by_session {
                None => by_name()?.and_then(|name| Id::new(name).ok()).filter(|job| fences.is_of(job, uid)),
                Some(_) => None,
            };
            let Some(job) = by_session.cloned().or(named) else { return Ok(None) };
            fences.put_in(host, config, (found, uid), job).map(Some)
        };
        match one() {
            Ok(None) => {}
            Err(_) if !found.id.is_alive(&host.proc).unwrap_or(true) => {}
            Ok(Some(fetched)) => done.push(Ok(fetched)),
            Err(error) => done.push(Err(error)),
        }
    }
    Ok(done)
}

/// The job with a task whose session the process, or an ancestor of it, is in.
fn of_a_session<'a>(all: &BTreeMap<i32, Process>, spooled: &'a SpooledJobs, found: Process) -> Option<&'a Id> {
    const LONGEST: usize = 256;
    let mut this = found;
    for _ in 0..LONGEST {
        if let Some(job) = spooled.sessions.get(&this.session) {
            return Some(job);
        }
        // A parent that is younger than its child is another process with a reused number.
        this = *all.get(&this.parent).filter(|parent| parent.id.pid > 1 && parent.id.start <= this.id.start)?;
    }
    None
}

/// For each job in MoM's spool, the fence of its last run.
struct Fences(BTreeMap<Id, Record>);

impl Fences {
    fn find(host: &Host, config: &Config, spooled: &SpooledJobs) -> Result<Self> {
        let records = Records::open(&config.run_dir)?;
        let holder = Holder::scheduler(WithoutCgroups::name(&PBS))?;
        let mut fences: BTreeMap<Id, Record> = BTreeMap::new();
        let run = |record: &Record| record.shared.as_ref().map(|shared| shared.run);
        for levels in records.list()? {
            let Some(record) = records.read(&levels).ok().flatten() else { continue };
            let is_its = record.shared.as_ref().is_some_and(|shared| {
                shared.holder == holder && shared.step.as_str() == STEP && spooled.jobs.contains(&shared.job)
            });
            let Some(job) = record.job().filter(|_| is_its && record.boot_id == host.boot_id) else { continue };
            if fences.get(&job).is_none_or(|other| run(other) < run(&record)) {
                fences.insert(job, record);
            }
        }
        Ok(Self(fences))
    }

    fn has_user(&self, uid: u32) -> bool {
        self.0.values().any(|record| record.uid() == Some(uid))
    }

    fn is_of(&self, job: &Id, uid: u32) -> bool {
        self.0.get(job).is_some_and(|record| record.uid() == Some(uid))
    }

    /// Puts the process into the job's fence, if it runs as the job's user.
    fn put_in(&self, host: &Host, config: &Config, (found, uid): (Process, u32), job: Id) -> Result<FetchedIn> {
        let pid = found.id.pid;
        let Some(record) = self.0.get(&job) else {
            // The message names no process, so that it is the same for all of them.
            return Err(Error::new(format!("processes of job {job} are in no fence"))
                .hint("the job has none: it began when the hook was off, or with OnError=warn, or its fence is lost"));
        };
        if record.uid() != Some(uid) {
            let said = format!("process {pid} of job {job} is in no fence, and is not of the job's user:");
            return Err(Error::new(said).value(format!("uid {uid}")));
        }
        let mut fence = life::go_on(host, config, record)?;
        let errors = fence.attach_this(host, found.id, None)?;
        match errors.into_iter().next() {
            None => Ok(FetchedIn { pid, job }),
            Some((_, error)) => Err(error),
        }
    }
}
