// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step daemon does at a launch, without Slurm.

use jobfence::cgroup::membership::Membership;
use jobfence::config::Config;
use jobfence::fence::{Fence, Opening};
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller, Launch};
use jobfence::job::{Id, JobKey};
use jobfence::schedulers::ALL;
use nix::unistd::Pid;

use crate::Failure;
use crate::place::{Place, soon};

/// Enough for thousands of processes.
const MEMORY: u64 = 4 << 30;

/// A step of the place's user.
pub fn key(place: &Place, job: usize, step: usize) -> Result<JobKey, Failure> {
    let (job, step) = (Id::new(job.to_string())?, Id::new(step.to_string())?);
    Ok(JobKey { node: None, uid: place.key.uid, job, step })
}

/// Looks at the host and at what dead daemons have left, makes the fence and limits it.
pub fn begin(place: &Place, key: &JobKey) -> Result<Fence, Failure> {
    begin_with(&place.config, key)
}

/// The same with other settings than the place's.
pub fn begin_with(config: &Config, key: &JobKey) -> Result<Fence, Failure> {
    let host = Host::read(config)?;
    let here = Membership::read(&host.proc, Pid::this().as_raw())?;
    let launch = Launch { daemon: &here, key: Some(key), all: false };
    janitor::reap(&host, config, ALL, JanitorCaller::Launch(launch), soon())?;
    let opening = Opening { daemon: Some(&here), ..janitor::opening(&host, config, ALL, key) };
    let mut fence = Fence::open(&opening)?;
    match fence.limit(&Place::plan_with(config, MEMORY)).into_iter().next() {
        None => Ok(fence),
        Some((limit, error)) => Err(format!("the {limit} limit: {error}").into()),
    }
}
