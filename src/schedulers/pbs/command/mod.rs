// SPDX-License-Identifier: GPL-2.0-or-later
//! The parts of the `jobfence` command that are for OpenPBS alone. They are not in the library.

use std::time::Instant;

use jobfence::config::{Config, Loaded, Named, SectionKind};
use jobfence::host::Host;
use jobfence::schedulers::pbs::{strays, tasks};
use jobfence::sys::dir::Dir;

use crate::check::claims::Claims;
use crate::check::daemon::SchedulerDaemon;
use crate::check::names::{KnownNames, have};
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::fetched::report;
use crate::job_match::{JobMatch, is_number};
use crate::part::{CheckedHost, Chore, SchedulersPart, StartsJobs};
use crate::setup::plan::{JobTried, SetupHost, SetupPlan};
use check::MOM;

pub mod check;
pub mod config;
pub mod mom;
pub mod node;
pub mod setup;

/// OpenPBS's part of the command.
pub struct PbsPart;

impl SchedulersPart for PbsPart {
    fn name(&self) -> &'static str {
        "OpenPBS"
    }

    fn claims(&self, proc: &Dir) -> Option<Claims> {
        let remedy = "set TrustAccount=yes if a hook of the server checks it";
        SchedulerDaemon::find(proc, MOM).map(|_| Claims { kinds: &["[Account=", "[Project="], remedy })
    }

    fn job_variable(&self, host: &CheckedHost<'_>) -> Option<&'static str> {
        SchedulerDaemon::find(host.proc, MOM).map(|_| tasks::OF_A_JOB)
    }

    fn check(&self, host: &CheckedHost<'_>, rows: &mut Rows, verdict: &mut Verdict) {
        if let Some(mom) = SchedulerDaemon::find(host.proc, MOM) {
            check::look(&mom, host.loaded, rows, verdict);
        }
    }

    fn add_names(&self, host: &CheckedHost<'_>, sections: &[Named<'_>], known: &mut KnownNames) {
        let needed = have(sections, &[SectionKind::Partition, SectionKind::Pe, SectionKind::Project]);
        if let Some(mom) = needed.then(|| SchedulerDaemon::find(host.proc, MOM)).flatten() {
            known.partitions.push(mom.ask(&["qstat", "-Q", "-f"]).ok().map(|text| queues(&text)));
        }
    }

    fn plan(&self, host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        setup::plan(host)
    }

    fn try_job(&self, host: &SetupHost, deadline: Instant) -> JobTried {
        setup::try_job(host, deadline)
    }

    fn starts_jobs(&self, host: &SetupHost) -> StartsJobs {
        setup::starts_jobs(host)
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["pbs_mom", "pbs_demux"]
    }

    fn keeps(&self, path: &str) -> bool {
        path.split('/').any(|name| name.starts_with("pbs_jobs") || name.starts_with("pbspro"))
    }

    fn means(&self, text: &str, id: &str) -> Option<JobMatch> {
        means(text, id)
    }

    fn chore(&self) -> Option<Box<dyn Chore>> {
        Some(Box::new(FetchIn::default()))
    }
}

/// Puts processes of OpenPBS's jobs that are in no fence into the fences of their jobs.
#[derive(Default)]
struct FetchIn {
    said: Vec<String>,
}

impl Chore for FetchIn {
    fn once(&mut self, config: &Config, _: Option<&Loaded>) {
        let fetched = Host::read_what_there_is(config).and_then(|(host, _)| {
            let homes = tasks::homes(&host.proc);
            if homes.is_empty() { Ok(Vec::new()) } else { strays::fetch_in(&host, config, &homes) }
        });
        report(
            fetched,
            &mut self.said,
            |found| log::warn!("{found} ran outside of the job's fence, and was put in"),
            |error| log::error!("a process stays outside of its job's fence: {error}"),
        );
    }
}

/// Whether `text` names the job `12.server` or `12[3].server`: as `12` or `12[3]`, or as `12[]` for the whole array. The server's name may
/// follow, also its short form.
fn means(text: &str, id: &str) -> Option<JobMatch> {
    let (sequence, server) = id.split_once('.').filter(|(_, server)| !is_number(server))?;
    let (number, index) = sequence.split_once('[').unwrap_or((sequence, "0]"));
    let (asked, on) = text.split_once('.').map_or((text, None), |(asked, on)| (asked, Some(on)));
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_on = on.is_none_or(|on| on == server || on == short(server) || server == short(on));
    if !is_on || !is_number(number) || !index.strip_suffix(']').is_some_and(is_number) {
        return None;
    }
    let is_array = || sequence.contains('[') && asked.strip_suffix("[]") == Some(number);
    if asked == sequence { Some(JobMatch::It) } else { is_array().then_some(JobMatch::Whole) }
}

/// The queues in the output of OpenPBS's `qstat -Q -f`: a line names each queue, and lines that begin with a blank have its attributes.
fn queues(text: &str) -> Vec<String> {
    let queue = |line: &str| line.strip_prefix("Queue: ").map(|name| name.trim().to_owned());
    text.lines().filter_map(queue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_those_of_qstat() {
        let text = "Queue: workq\n    queue_type = Execution\n    total_jobs = 0\n    state_count = Transit:0 Queued:0 Held:0 \n    \
                    route_destinations = a,\n\tQueue: b\n    enabled = True\n\nQueue: a-very-long-name_of.a\n    started = True\n\n";
        assert_eq!(queues(text), ["workq", "a-very-long-name_of.a"]);
        assert!(queues("").is_empty());
    }
}
