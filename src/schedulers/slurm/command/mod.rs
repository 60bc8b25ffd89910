// SPDX-License-Identifier: GPL-2.0-or-later
//! What the `jobfence` command does for Slurm alone. It is compiled into the command, not into the library.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::config::{Config, Named, SectionKind};
use jobfence::facts::Facts;
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::record::Owner;
use jobfence::schedulers::slurm::conf::{self, Checked, Lines};
use jobfence::schedulers::slurm::plugins::Slurm;

use crate::again::{AgainPart, LoggedFacts};
use crate::check::claims::claimed;
use crate::check::names::{KnownNames, have};
use crate::check::private::refuse_pids;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::part::{AfterUndo, CheckedHost, Chore, JobHere, ReachedJob, SchedulersPart, StartsJobs};
use crate::report::accounting::AccountingPart;
use crate::setup::plan::{JobTried, SetupHost, SetupPlan};
use crate::table::printable;
use name::SlurmName;

pub mod adopt;
mod again;
pub mod arguments;
pub mod dirs;
pub mod disable;
pub mod enable;
mod idle;
pub mod job;
mod known;
pub mod line;
pub mod load;
pub mod name;
pub mod node;
pub mod pam;
mod private;
pub mod prolog;
mod requeues;
pub mod setup;
mod store;
mod stored;

/// Slurm's part of the command.
pub struct SlurmPart;

/// The remedy that makes the facts of a user count.
const ENFORCE: &str = "have slurmctld check it (AccountingStorageEnforce=associations,qos in slurm.conf), or set TrustAccount=yes if a \
                       job_submit plugin does";

impl SchedulersPart for SlurmPart {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn releases(&self) -> Option<String> {
        Some(load::releases())
    }

    fn changes_memory(&self) -> Option<&'static str> {
        // `_update_job_mem_running` in src/slurmctld/job_mgr.c of 26.05; before, ESLURM_JOB_NOT_PENDING.
        Some(
            "from Slurm 26.05 on, 'scontrol update JobId=JOB MinMemoryNode=MEGABYTES' lowers it, and no release raises it",
        )
    }

    fn job_variable(&self, host: &CheckedHost<'_>) -> Option<&'static str> {
        conf::find(host.named).map(|_| "SLURM_JOB_ID")
    }

    fn check(&self, host: &CheckedHost<'_>, rows: &mut Rows, verdict: &mut Verdict) {
        if let Some(file) = conf::find(host.named) {
            let Checked { account, qos } = Checked::by(&Lines::read(&file));
            let kinds = [("[Account=", account), ("[QOS=", qos)].into_iter().filter(|(_, is_checked)| !is_checked);
            let kinds: Vec<&str> = kinds.map(|(kind, _)| kind).collect();
            claimed(rows, host.loaded, "Slurm", &kinds, ENFORCE);
            private::say(rows, host.loaded, &Lines::read(&file), Slurm::from_file(&file).plugstack());
            let why = "slurmstepd starts the tasks of a step, and is in the host's PID namespace itself";
            refuse_pids(host.loaded, "Slurm", why, rows, verdict);
        }
    }

    fn add_names(&self, host: &CheckedHost<'_>, sections: &[Named<'_>], known: &mut KnownNames) {
        let Some(slurm) = conf::find(host.named).map(|file| Slurm::from_file(&file)) else { return };
        if have(sections, &[SectionKind::Partition, SectionKind::Node]) {
            known::of_conf(slurm.file(), known);
        }
        if slurm.has_database() {
            known::of_database(sections, known);
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

    fn clear_up(&self, host: &SetupHost) -> Option<AfterUndo> {
        Some(disable::clear_up(&setup::installed(host)))
    }

    fn is_as_installed(&self, host: &SetupHost, file: &Path) -> bool {
        let line = setup::installed(host);
        file == line.active && line.is_unchanged()
    }

    fn id_of(&self, name: &str, ids: &[String]) -> Option<Result<Id, Failure>> {
        match SlurmName::parse(name)? {
            SlurmName { job, step: Some(step), is_part, .. } if is_part || ids.contains(&job) => {
                Some(Err(format!("{job}.{} is a step of Slurm's: the job is {job}", printable(&step)).into()))
            }
            name if name.is_part && name.step.is_none() => Some(number(&name)),
            _ => None,
        }
    }

    fn reach(&self, job: &JobHere<'_>, deadline: Instant) -> Option<Result<Box<dyn ReachedJob>, String>> {
        idle::reach(job, deadline)
    }

    fn tells_strays(&self) -> bool {
        true
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["slurmd", "slurmstepd"]
    }

    fn newest_job(&self, host: &Host, config: &Config, uid: u32) -> jobfence::error::Result<Option<Id>> {
        jobfence::schedulers::slurm::adopt::newest(host, config, uid)
    }

    fn adopt(&self, host: &Host, config: &Config, id: Owner) -> jobfence::error::Result<Option<String>> {
        use jobfence::schedulers::slurm::adopt::{AdoptRequest, adopt};
        let request = AdoptRequest { pid: Some(id.pid), id: Some(id), ..AdoptRequest::default() };
        adopt(host, config, &request).map(|done| Some(done.to_string()))
    }

    fn again(&self) -> Option<&'static dyn AgainPart> {
        Some(&again::SlurmAgain)
    }

    fn again_here(&self, named: Option<&Path>, every: Duration) -> Option<Vec<String>> {
        conf::find(named).map(|file| requeues::doubts(&Lines::read(&file), every))
    }

    fn logged_facts(&self, named: Option<&Path>) -> LoggedFacts {
        let checked = conf::find(named).map(|file| Checked::by(&Lines::read(&file))).unwrap_or_default();
        Box::new(move |facts: Facts| {
            let facts = facts.of_no_project_vnode_or_pe();
            let (account, qos) = (facts.account.if_checked(checked.account), facts.qos.if_checked(checked.qos));
            Facts { account, qos, ..facts }
        })
    }

    fn accounting(&self) -> Option<&'static dyn AccountingPart> {
        Some(&stored::SlurmAccounting)
    }

    fn chore(&self) -> Option<Box<dyn Chore>> {
        Some(Box::new(store::Store::default()))
    }
}

/// The job's number, which only Slurm knows for this name.
fn number(name: &SlurmName) -> Result<Id, Failure> {
    let number = job::number(name).map_err(|why| {
        let job = &name.job;
        format!(
            "no job here has the id {job}. jobfence knows a job of Slurm's by the number that 'squeue -j {job} -o %A' shows. It \
             cannot find out that number: {why}"
        )
    })?;
    Ok(number.into())
}
