// SPDX-License-Identifier: GPL-2.0-or-later
//! A fence that is to be opened, as its caller describes it: whose it is, what the job was granted, and how long it is held.

use std::str::FromStr;
use std::time::Duration;

use super::recorded::WantedFences;
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::figures::GrantedTo;
use crate::host::Host;
use crate::job::{Cpus, HugePage, Id};
use crate::record::holder::Holder;
use crate::requests::UserRequests;
use crate::scheduler::{Runs, Schedulers};
use crate::sys::process::Owner;

/// No node has more GPUs.
pub const MOST_GPUS: usize = 1024;

/// The holder of a fence, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldBy {
    /// `pid:N`: while this process lives.
    Process(i32),
    /// `unit:NAME`: during this start of the unit.
    Unit(String),
    /// `scheduler:NAME`: while this scheduler says that the job runs.
    Scheduler(String),
    /// `manual`: until the fence is closed, or the machine boots.
    Manual,
}

impl FromStr for HeldBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected pid:NUMBER, unit:NAME, scheduler:NAME or manual, found {text:?}");
        match text.split_once(':') {
            None if text == "manual" => Ok(Self::Manual),
            Some(("pid", pid)) => pid.parse().ok().filter(|pid| *pid > 0).map(Self::Process).ok_or_else(expected),
            Some(("unit", name)) if !name.is_empty() => Ok(Self::Unit(name.to_owned())),
            Some(("scheduler", name)) if !name.is_empty() => Ok(Self::Scheduler(name.to_owned())),
            _ => Err(expected()),
        }
    }
}

impl HeldBy {
    /// The holder, if it can hold this run of the job.
    pub(super) fn find(
        &self,
        host: &Host,
        schedulers: Schedulers,
        ask_unit: Option<AskInvocation>,
        (job, run): (&Id, u32),
    ) -> Result<Holder> {
        match self {
            // If the scheduler does not answer now, the fence could stay for ever. If it says no, the fence would be removed at once.
            Self::Scheduler(name) => {
                let scheduler = schedulers.iter().find(|scheduler| scheduler.name() == name);
                if scheduler.is_some_and(|scheduler| scheduler.runs(job, run, &|| Duration::ZERO) == Runs::Yes) {
                    return Holder::scheduler(name);
                }
                let why = if scheduler.is_some() { "does not say that the job runs" } else { "is no scheduler here" };
                Err(Error::new(format!("{name} {why}, and cannot hold a fence of job {job}")))
            }
            Self::Manual => Ok(Holder::Manual),
            Self::Unit(name) => match ask_unit {
                Some(ask) => Holder::unit(name, &ask(name)?),
                None => Err(Error::new("no program is started here to ask systemd about this unit:")
                    .value(name)
                    .hint("let 'jobfence open' make the fence, or name a process, as pid:N")),
            },
            Self::Process(pid) => Ok(Holder::Process(
                Owner::from_pid(&host.proc, *pid)?
                    .ok_or_else(|| Error::new("there is no such process to hold the fence:").value(pid))?,
            )),
        }
    }
}

/// What a job was granted and what it requests.
#[derive(Debug, Clone, Default)]
pub struct Granted {
    /// CPUs (hardware threads) on this node. `None`: not limited.
    pub cpus: Option<Cpus>,
    /// Memory on this node in bytes. `None`: not limited.
    pub memory: Option<u64>,
    /// Memory and swap together on this node in bytes. `None`: the site decides how much swap there is beside the memory.
    pub memory_and_swap: Option<u64>,
    /// The number of GPUs on this node. `None`: not given.
    pub gpus: Option<usize>,
    /// Huge pages on this node. `None`: not given.
    pub huge_pages: Option<Vec<HugePage>>,
    /// What the job's user requests, which can only lower what the site allows.
    pub requests: UserRequests,
    /// The facts that select sections of the configuration.
    pub facts: Facts,
    /// Whether jobfence chooses the job's CPUs, if the site wants each job on CPUs of its own: the scheduler gives only their number.
    pub chooses_cores: bool,
    /// Whether the grant is that of the step. The job may have other steps, so its whole grant is not known.
    pub is_of_step: bool,
}

impl Granted {
    /// What the usage log and the metrics say of it.
    pub(super) fn for_the_log(&self) -> GrantedTo {
        let said = self.gpus.and_then(|gpus| u64::try_from(gpus).ok());
        GrantedTo { cpus: self.cpus, memory: self.memory, gpus: said.or_else(|| self.facts.gpus.count()) }
    }
}

/// The types of a job's vnodes, from a text with commas between them. An empty text has none.
pub fn vnode_types(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A fence to be opened.
#[derive(Debug, Clone)]
pub struct OpenRequest {
    /// The user.
    pub uid: u32,
    /// The job.
    pub job: Id,
    /// The step.
    pub step: Id,
    /// The run of the step.
    pub run: u32,
    /// The grant.
    pub granted: Granted,
    /// The holder.
    pub holder: HeldBy,
    /// Starts a program that asks systemd for a unit's current start. `None` in a host program, which must start none: then a unit cannot
    /// hold the fence.
    pub ask_unit: Option<AskInvocation>,
    /// Whether the caller starts the job's processes, so that each can be put into the job's own directories.
    pub starts_processes: bool,
}

/// Returns which start of this unit is active now.
pub type AskInvocation = fn(&str) -> Result<String>;

impl OpenRequest {
    /// Selects exactly the fence to be opened.
    pub(super) fn which(&self) -> WantedFences {
        WantedFences { job: self.job.clone(), step: Some(self.step.clone()), run: Some(self.run) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::scheduler::{Age, WithoutCgroups};

    #[derive(Debug)]
    struct StandIn;

    impl WithoutCgroups for StandIn {
        fn name(&self) -> &'static str {
            "StandIn"
        }
        fn runs(&self, job: &Id, run: u32, _: Age<'_>) -> Runs {
            match (job.as_str(), run) {
                ("7", 2) => Runs::Yes,
                ("7", _) => Runs::No,
                _ => Runs::Unknown,
            }
        }
    }

    #[test]
    fn a_scheduler_holds_what_it_says_runs() {
        let host = Host::read_what_there_is(&Config::default()).unwrap().0;
        let find = |name: &str, job: &str, run| {
            let held_by: HeldBy = name.parse().unwrap();
            held_by.find(&host, &[&StandIn], None, (&Id::new(job).unwrap(), run)).map_err(|error| error.to_string())
        };
        assert_eq!(find("scheduler:StandIn", "7", 2), Ok(Holder::scheduler("StandIn").unwrap()));
        for (job, run) in [("7", 1), ("8", 2)] {
            assert!(find("scheduler:StandIn", job, run).unwrap_err().contains("StandIn does not say"), "{job} {run}");
        }
        assert!(find("scheduler:Slurm", "7", 2).unwrap_err().contains("Slurm is no scheduler here"));
    }

    #[test]
    fn holders_are_said_as_documented() {
        assert_eq!("manual".parse(), Ok(HeldBy::Manual));
        assert_eq!("pid:7".parse(), Ok(HeldBy::Process(7)));
        assert_eq!("unit:a@b.service".parse(), Ok(HeldBy::Unit("a@b.service".to_owned())));
        for wrong in ["", "pid:", "pid:0", "pid:-1", "pid:x", "unit:", "scheduler:", "manual:", "7", "process:7"] {
            assert!(wrong.parse::<HeldBy>().unwrap_err().contains("expected pid:NUMBER"), "{wrong}");
        }
    }
}
