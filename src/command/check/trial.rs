// SPDX-License-Identifier: GPL-2.0-or-later
//! A step on the same path as a job's, with the smallest possible grant: made, limited, entered by a process, removed.

use std::os::fd::OwnedFd;
use std::time::Instant;

use jobfence::cgroup::cpuset;
use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::io;
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Candidate, Config, Limit, Loaded, Mode, OnError, Resolved};
use jobfence::cpu_list::CpuList;
use jobfence::error::{Error, Result};
use jobfence::facts::Facts;
use jobfence::fence::{self, Fence, LimitError, Opening};
use jobfence::host::Host;
use jobfence::janitor;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy::{self, CoreMap, Plan};
use jobfence::record::Records;
use jobfence::requests::UserRequests;
use jobfence::scheduler;
use jobfence::schedulers::ALL;
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::schedulers::slurm::unenforceable;
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2};

use super::verdict::Cause;
use crate::schedulers::slurm::dirs::{Likeness, SlurmDirs};

/// With less the trial's process could not live.
const LEAST_MEMORY: u64 = 4 << 20;

/// The limits of the smallest job with certain sections.
pub struct Planned {
    config: Config,
    plan: Plan,
    /// The limits that cannot be set, as far as that is known before the trial.
    pub errors: Vec<LimitError>,
}

/// Equal if the same would be written into the same directories.
impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        let on = |planned: &Self| (planned.config.mode, planned.config.on_error, fence::controllers(&planned.config));
        (&self.plan, &self.errors) == (&other.plan, &other.errors) && on(self) == on(other)
    }
}

impl Planned {
    pub fn new(
        host: &Host,
        loaded: &Loaded,
        (slurm, node): (Option<&Slurm>, Option<&str>),
        candidate: &Candidate,
        places: &SlurmDirs,
    ) -> Self {
        let mut config = candidate.config.clone();
        config.on_error = config.on_error.within(config.mode);
        let memory = config.min_ram_space.max(LEAST_MEMORY);
        let mut grant = Grant::whole(Some(Cpus::whole(1)), Some(memory));
        let topology = || Topology::from_machine(loaded.file.as_deref(), node);
        if config.constrain_cores
            && let Ok(topology) = topology()
        {
            let core = a_core(host, places, &topology);
            (grant.job_cores, grant.step_cores) = (core.clone(), core);
        }
        let resolved = Resolved::plain(config.clone());
        let (mut plan, mut errors) =
            policy::of_step(&resolved, &Facts::default(), &grant, &UserRequests::default(), true, topology);
        if config.constrain_cores && slurm.is_none() {
            // No Slurm says which: jobfence chooses.
            errors.retain(|(limit, _)| *limit != Limit::Cores);
            let cpu = cpus_for_jobs(host, places).and_then(|cpus| cpus.first());
            plan.step.cores = cpu.map(|cpu| std::iter::once(cpu).collect());
            plan.job.cores.clone_from(&plan.step.cores);
        }
        let mut planned = Self { config, plan: plan.clone(), errors: Vec::new() };
        if planned.config.mode != Mode::Enforce {
            return planned;
        }
        let known = unenforceable::of_config(host, &planned.config, slurm, loaded.file.as_deref(), node);
        planned.add(known.into_iter().chain(errors));
        let disks = plan.names_disks().then(|| Disks::read(&host.proc));
        planned.add(match disks {
            None => Vec::new(),
            Some(Ok(disks)) => plan.find_disks(|rules| io::limits_of(rules, &disks)),
            Some(Err(error)) => vec![(Limit::Io, error)],
        });
        if let Some(devices) = policy::devices_of(&planned.config) {
            planned.add(devices.are_there().err().map(|error| (Limit::Devices, error)));
        }
        planned
    }

    fn add(&mut self, errors: impl IntoIterator<Item = LimitError>) {
        for error in errors {
            if !self.errors.contains(&error) {
                self.errors.push(error);
            }
        }
    }

    /// Whether there is a place to try it.
    pub fn can_be_tried(&self, places: &SlurmDirs) -> bool {
        !places.are_nowhere()
    }

    /// What was tried.
    pub fn in_words(&self) -> String {
        let limits = match self.config.mode {
            Mode::Enforce => format!("limits (the job to {}; the step to {})", self.plan.job, self.plan.step),
            Mode::Observe | Mode::Off => "no limits".to_owned(),
        };
        format!("a step with {limits} was made, read back, entered by a process, and removed")
    }

    /// Tries it in each place. Returns the limits that could not be set; an error if the step could not be made.
    pub fn run(
        &self,
        host: &Host,
        slurm: Option<&Slurm>,
        places: &SlurmDirs,
    ) -> Result<Vec<LimitError>, (Cause, Error)> {
        // Every step opens RunDir, and makes it if it is missing.
        if let Err(error) = Records::open(&self.config.run_dir) {
            let is_missing = error.kernel_errno() == Some(Errno::ENOENT);
            let error =
                if is_missing { error.hint("make it, or set RunDir to a directory in one that exists") } else { error };
            return Err((Cause::RunDir, error));
        }
        let mut errors = Vec::new();
        if self.can_be_tried(places) {
            refuse_within_a_job(host).map_err(|error| (Cause::Here, error))?;
            for scope in places.each() {
                errors.extend(self.run_in(host, slurm, scope).map_err(|error| (Cause::Step, error))?);
            }
        }
        Ok(errors)
    }

    fn run_in(&self, host: &Host, slurm: Option<&Slurm>, scope: Option<&Dir>) -> Result<Vec<LimitError>> {
        let _later = Signals::held();
        let key = key()?;
        let mut likeness = Likeness::default();
        let made = slurm.map_or(Ok(()), |slurm| likeness.make(host, slurm, &key, scope));
        let errors = made.and_then(|()| self.fence(host, &key, &likeness));
        let removed = likeness.remove();
        errors.and_then(|errors| removed.map(|()| errors))
    }

    fn fence(&self, host: &Host, key: &JobKey, likeness: &Likeness) -> Result<Vec<LimitError>> {
        let daemon = likeness.daemon();
        let opening = janitor::opening(host, &self.config, ALL, key);
        let mut fence = Fence::open(&Opening { daemon: Some(&daemon), ..opening })?;
        let mut errors = if self.config.mode == Mode::Enforce { fence.limit(&self.plan) } else { Vec::new() };
        // A refused job has no process.
        let is_refused = errors.iter().any(|(limit, _)| self.config.on_error.for_limit(*limit) == OnError::Fail);
        let attached = if is_refused {
            Ok(())
        } else {
            Idle::start(1).and_then(|idle| {
                let pid = idle.pids()[0];
                likeness.put(pid)?;
                errors.extend(fence.attach(host, pid, Some(0))?);
                Ok(())
            })
        };
        let closed = fence.close(Instant::now() + self.config.cleanup_timeout);
        attached.and(closed).map(|()| errors)
    }
}

/// A core that jobs could have, by Slurm's number: one whose CPUs are available where jobs are.
fn a_core(host: &Host, places: &SlurmDirs, topology: &Topology) -> CpuList {
    let cores = (0..topology.cores()).filter_map(|core| CpuList::parse(&core.to_string()));
    let given = cpus_for_jobs(host, places);
    let mut usable = cores.clone().filter(|core| {
        topology.cpus_of(core).is_ok_and(|cpus| given.as_ref().is_none_or(|given| cpus.is_within(given)))
    });
    usable.next().or_else(|| CpuList::parse("0")).unwrap_or_default()
}

/// A uid that no user has, so that no user's own limits are affected.
fn key() -> Result<JobKey> {
    let job = Id::new(format!("check-{}", std::process::id()))?;
    Ok(JobKey { node: None, uid: nobodys_uid(), job, step: Id::new("0")? })
}

fn nobodys_uid() -> u32 {
    u32::MAX - 1 - std::process::id()
}

/// Whether a job is the trial of some `jobfence check`. Who looks at all jobs may see it, and keeps nothing of it.
pub fn is_of_trial(uid: Option<u32>, job: &str) -> bool {
    let pid = job.strip_prefix("check-").and_then(|pid| pid.parse().ok());
    uid.zip(pid).is_some_and(|(uid, pid)| uid.checked_add(pid) == Some(u32::MAX - 1))
}

/// A text about a trial, such that each process's is the same.
pub fn of_any_process(text: &str) -> String {
    let text = text.replace(&format!("check-{}", std::process::id()), "check-PID");
    text.replace(&format!("uid_{}", nobodys_uid()), "uid_UID")
}

/// A trial must not run in Slurm's directory of another step.
fn refuse_within_a_job(host: &Host) -> Result<()> {
    let us = Membership::read(&host.proc, Pid::this().as_raw())?;
    let within = |hierarchy| scheduler::placement(ALL, &us, hierarchy).and(us.path_in(hierarchy));
    match host.layout.hierarchies.iter().find_map(within) {
        None => Ok(()),
        Some(path) => Err(Error::new("this process is in a job of Slurm's:")
            .value(path)
            .hint("run 'jobfence check' outside of one")),
    }
}

/// Processes that do nothing and end with this value.
pub struct Idle {
    pids: Vec<i32>,
    /// The pipe that they read from; nothing is ever written to it.
    write: Option<OwnedFd>,
}

impl Idle {
    pub fn start(count: usize) -> Result<Self> {
        let failed = |errno| Error::new("start a process to try it with").errno(errno);
        // A process ends when the writing end is closed, at the latest with this process.
        let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        let mut idle = Self { pids: Vec::new(), write: Some(write) };
        for _ in 0..count {
            let child = child::start(|| {
                drop(idle.write.take());
                let _ = nix::unistd::read(&read, &mut [0]);
                0
            });
            idle.pids.push(child.map_err(failed)?.as_raw());
        }
        Ok(idle)
    }

    pub fn pids(&self) -> &[i32] {
        &self.pids
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        drop(self.write.take());
        for pid in &self.pids {
            let _ = waitpid(Pid::from_raw(*pid), None);
        }
    }
}

/// Blocks signals that would end this process while its directories exist.
pub struct Signals(SigSet);

impl Signals {
    pub fn held() -> Self {
        let mut before = SigSet::empty();
        let mut ours = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE]
            .into_iter()
            .for_each(|signal| ours.add(signal));
        let _ = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&ours), Some(&mut before));
        Self(before)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.0), None);
    }
}

/// Measures moves into the same directories as a trial's.
pub fn measured<T>(
    host: &Host,
    config: &Config,
    slurm: Option<&Slurm>,
    scope: Option<&Dir>,
    measure: impl FnOnce(&mut dyn FnMut(i32) -> Result<()>) -> Result<T>,
) -> Result<T> {
    let _later = Signals::held();
    refuse_within_a_job(host)?;
    let key = key()?;
    let Some(scope) = scope else {
        let mut fence = Fence::open(&janitor::opening(host, config, ALL, &key))?;
        let result = measure(&mut |pid| fence.attach(host, pid, None).map(drop));
        let closed = fence.close(Instant::now() + janitor::PATIENCE);
        return result.and_then(|result| closed.map(|()| result));
    };
    let mut likeness = Likeness::default();
    let made = slurm.map_or(Ok(()), |slurm| likeness.make(host, slurm, &key, Some(scope)));
    let result = made.and_then(|()| measure(&mut |pid| likeness.put(pid)));
    let removed = likeness.remove();
    result.and_then(|result| removed.map(|()| result))
}

/// The CPUs of the place in which jobs are.
fn cpus_for_jobs(host: &Host, places: &SlurmDirs) -> Option<CpuList> {
    let hierarchy = host.layout.with_controller("cpuset");
    let root = hierarchy.and_then(|hierarchy| hierarchy.open().ok());
    let base = root.as_ref().and_then(|root| root.child(&host.base).ok());
    places.scopes.first().into_iter().chain(&base).chain(&root).find_map(|dir| {
        let version = hierarchy?.version;
        cpuset::effective(dir, version).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_known_by_its_names() {
        let key = key().unwrap();
        assert!(is_of_trial(Some(key.uid), key.job.as_str()));
        for (uid, job) in
            [(Some(key.uid - 1), key.job.as_str()), (Some(1001), "check-1"), (None, "check-1"), (Some(key.uid), "7")]
        {
            assert!(!is_of_trial(uid, job), "{uid:?} {job}");
        }
    }
}
