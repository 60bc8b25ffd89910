// SPDX-License-Identifier: GPL-2.0-or-later
//! The parts of the `jobfence` command that are for Grid Engine alone. They are not in the library.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::config::{Named, SectionKind};
use jobfence::sys::dir::Dir;

use crate::again::AgainPart;
use crate::check::claims::Claims;
use crate::check::daemon::SchedulerDaemon;
use crate::check::names::{KnownNames, have};
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::job_match::{JobMatch, of_parts};
use crate::part::{AfterUndo, CheckedHost, SchedulersPart, StartsJobs};
use crate::setup::plan::{JobTried, SetupHost, SetupPlan};
use check::EXECD;

pub mod again;
pub mod check;
pub mod host;
pub mod jsv;
pub mod qconf;
pub mod sensor;
pub mod setup;
pub mod shepherd;

/// Grid Engine's part of the command.
pub struct GridEnginePart;

impl SchedulersPart for GridEnginePart {
    fn name(&self) -> &'static str {
        "Grid Engine"
    }

    fn claims(&self, proc: &Dir) -> Option<Claims> {
        let remedy = "set TrustAccount=yes if a JSV checks it";
        SchedulerDaemon::find(proc, EXECD).map(|_| Claims { kinds: &["[Account="], remedy })
    }

    fn job_variable(&self, host: &CheckedHost<'_>) -> Option<&'static str> {
        SchedulerDaemon::find(host.proc, EXECD).map(|_| "JOB_ID")
    }

    fn check(&self, host: &CheckedHost<'_>, rows: &mut Rows, verdict: &mut Verdict) {
        if let Some(execd) = SchedulerDaemon::find(host.proc, EXECD) {
            let execd = execd.with_patience(rows.patience);
            check::look(&execd, host.loaded, host.pam, rows, host::too_much, verdict);
        }
    }

    fn add_names(&self, host: &CheckedHost<'_>, sections: &[Named<'_>], known: &mut KnownNames) {
        let needed = have(sections, &[SectionKind::Partition, SectionKind::Pe, SectionKind::Project]);
        if let Some(execd) = needed.then(|| SchedulerDaemon::find(host.proc, EXECD)).flatten() {
            let ask = |option: &str| listed(execd.ask(&["qconf", option]));
            known.projects = ask("-sprjl");
            known.environments = ask("-spl");
            known.partitions.push(ask("-sql"));
        }
    }

    fn plan(&self, host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        setup::plan(host)
    }

    fn try_job(&self, host: &SetupHost, deadline: Instant) -> JobTried {
        setup::try_job(host, deadline)
    }

    fn after_undo(&self, host: &SetupHost) -> Option<AfterUndo> {
        setup::after_undo(host)
    }

    fn starts_jobs(&self, host: &SetupHost) -> StartsJobs {
        setup::starts_jobs(host)
    }

    fn again(&self) -> Option<&'static dyn AgainPart> {
        Some(&again::GridEngineAgain)
    }

    fn again_here(&self, _named: Option<&Path>, _every: Duration) -> Option<Vec<String>> {
        let proc = Dir::open("/proc").ok()?;
        SchedulerDaemon::find(&proc, EXECD).map(|_| Vec::new())
    }

    fn tells_strays(&self) -> bool {
        true
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["sge_execd", "sge_shepherd"]
    }

    fn means(&self, text: &str, id: &str) -> Option<JobMatch> {
        of_parts(text, id)
    }
}

/// The names in the output of qconf(1). For an empty list, qconf fails with a message such as `no project list defined`
/// (`show_object_list`). `None`: not known.
fn listed(said: Result<String, String>) -> Option<Vec<String>> {
    match said {
        Ok(text) => Some(text.split_whitespace().map(str::to_owned).collect()),
        Err(why) => (why.contains(": no ") && why.trim_end().ends_with(" list defined")).then(Vec::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qconf_fails_where_there_is_none() {
        assert_eq!(listed(Ok("all.q\nlong.q\n".to_owned())), Some(vec!["all.q".to_owned(), "long.q".to_owned()]));
        assert_eq!(listed(Err("qconf -sprjl: no project list defined\n".to_owned())), Some(Vec::new()));
        for unknown in ["qconf -sprjl: error: commlib error: got select error", "qconf -sprjl: it does not answer"] {
            assert_eq!(listed(Err(unknown.to_owned())), None, "{unknown}");
        }
    }
}
