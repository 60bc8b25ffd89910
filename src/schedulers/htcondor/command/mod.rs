// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for HTCondor alone. It is compiled into the command, not into the library.

use std::time::Instant;

use jobfence::sys::dir::Dir;

use crate::check::claims::Claims;
use crate::check::daemon::SchedulerDaemon;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::job_match::{JobMatch, of_parts};
use crate::part::{AfterUndo, CheckedHost, SchedulersPart, StartsJobs};
use crate::setup::plan::{JobTried, SetupHost, SetupPlan};
use check::{SCHEDD, STARTD};

pub mod check;
pub mod docker;
pub mod job;
pub mod monitor;
pub mod setup;
pub mod starter;

/// HTCondor's part of the command.
pub struct HtCondorPart;

impl SchedulersPart for HtCondorPart {
    fn name(&self) -> &'static str {
        "HTCondor"
    }

    fn claims(&self, proc: &Dir) -> Option<Claims> {
        let remedy = "set TrustAccount=yes if the schedd checks it";
        SchedulerDaemon::find(proc, STARTD).map(|_| Claims { kinds: &["[Account="], remedy })
    }

    fn check(&self, host: &CheckedHost<'_>, rows: &mut Rows, verdict: &mut Verdict) {
        if let Some(startd) = SchedulerDaemon::find(host.proc, STARTD) {
            let startd = startd.with_patience(rows.patience);
            check::look(&startd, host.loaded, rows, verdict);
            if rows.are_wanted() {
                check::of_startd(&startd, rows);
            }
        }
        if let Some(schedd) = SchedulerDaemon::find(host.proc, SCHEDD).filter(|_| rows.are_wanted()) {
            check::local_universe(&schedd, rows);
            check::of_schedd(&schedd, rows);
        }
    }

    fn plan(&self, host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        setup::plan(host)
    }

    fn try_job(&self, host: &SetupHost, _: Instant) -> JobTried {
        setup::try_job(host)
    }

    fn starts_jobs(&self, host: &SetupHost) -> StartsJobs {
        setup::starts_jobs(host)
    }

    fn after_undo(&self, host: &SetupHost) -> Option<AfterUndo> {
        setup::after_undo(host)
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["condor_startd", "condor_"]
    }

    fn keeps(&self, path: &str) -> bool {
        path.split('/').any(|name| name.starts_with("htcondor") || name.starts_with("condor_"))
    }

    fn means(&self, text: &str, id: &str) -> Option<JobMatch> {
        of_parts(text, id)
    }
}
