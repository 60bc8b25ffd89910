// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of the job: from the options, from the record of its fence, or from Slurm.

use jobfence::config::Loaded;
use jobfence::cpu_list::CpuList;
use jobfence::doors::user::know_groups;
use jobfence::facts::{Fact, Facts, FactsNeeded, Gpus};
use jobfence::fence::search::WantedSteps;
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobOnNode};
use jobfence::record::job::{JobRecord, JobRecords};
use jobfence::record::{Record, Records, Shared};
use jobfence::schedulers::slurm::conf::Checked;
use jobfence::sys::dir::Dir;
use nix::unistd::User;

use super::options::{BATCH, ExplainOptions, step};
use super::present::PresentDirs;
use crate::check::doors;
use crate::command::Failure;
use crate::job_name;
use crate::schedulers::slurm::job::SlurmJob;
use crate::schedulers::slurm::name::SlurmName;

/// What is known about the job.
pub struct ExplainedJob<'a> {
    pub id: Id,
    /// The step to explain.
    pub step: String,
    pub grant: Grant,
    pub facts: Facts,
    pub present: PresentDirs<'a>,
    /// The source of this, in words.
    pub known_by: Option<String>,
    /// The record of the process that opened the fence, if there is one.
    pub left: Option<Shared>,
}

/// A job that does not exist, from the options.
pub fn as_said<'a>(options: &ExplainOptions, proc: &Dir) -> Result<ExplainedJob<'a>, Failure> {
    let step = options.step.as_deref().map_or_else(|| Ok(BATCH.to_owned()), step)?;
    let facts = doors::of_user(proc, options.facts.add_to(Facts::default()));
    let grant = grant(options, options.cpus, options.mem, options.cores.clone().unwrap_or_default());
    let (present, known_by, left) = (PresentDirs::default(), None, None);
    Ok(ExplainedJob { id: Id::new("0")?, step, grant, facts, present, known_by, left })
}

fn grant(options: &ExplainOptions, cpus: Option<Cpus>, memory: Option<u64>, cores: CpuList) -> Grant {
    let whole = Grant::whole(cpus, memory);
    Grant { task_cpus: options.cpus_per_task.or(cpus), job_cores: cores.clone(), step_cores: cores, ..whole }
}

/// The sources of what is known about a job.
pub struct Asking<'a> {
    pub options: &'a ExplainOptions,
    pub loaded: &'a Loaded,
    pub host: &'a Host,
    pub node: &'a str,
    /// What slurmctld checks of users' words.
    pub checked: Checked,
    /// The devices of GPUs with Slurm's numbers.
    pub gpus: &'a dyn Fn(&CpuList) -> Gpus,
}

impl<'a> Asking<'a> {
    /// A job with a fence's record, which only root can read, or else one of Slurm's.
    pub fn of(&self, job: &Id) -> Result<ExplainedJob<'a>, Failure> {
        let run_dir = &self.loaded.config.run_dir;
        let is_root = nix::unistd::geteuid().is_root();
        let found = if is_root { job_name::among(job, job_name::recorded(run_dir))? } else { None };
        if let Some(found) = found
            && let Some(explained) = self.of_fence(&found)?
        {
            return Ok(explained);
        }
        match SlurmName::parse(job.as_str()) {
            Some(name) => self.of_slurm(&name),
            None if is_root => {
                Err(format!("no fence of job {job} lives here, and no job of Slurm's has such a name").into())
            }
            None => {
                Err(format!("{job} is no job of Slurm's; only root can read the records of other schedulers' jobs")
                    .into())
            }
        }
    }

    fn present(&self, uid: u32, job: Id, other_name: Option<String>, step: Option<&str>) -> (PresentDirs<'a>, String) {
        let wanted = WantedSteps { uid: None, job: Some(job), other_name };
        PresentDirs::find(self.host, &self.loaded.config, uid, &wanted, step)
    }

    /// The job in the record of the process that opened the fence. `None`: that record is only for the step's daemon, as with Slurm.
    fn of_fence(&self, job: &Id) -> Result<Option<ExplainedJob<'a>>, Failure> {
        let mut records = Records::open(&self.loaded.config.run_dir)?.of_job(job)?;
        records.retain(|record| record.boot_id == self.host.boot_id);
        let Some(uid) = records.first().and_then(Record::uid) else { return Ok(None) };
        let (present, step) = self.present(uid, job.clone(), None, self.options.step.as_deref());
        let all = records.into_iter().filter(|record| record.uid() == Some(uid)).filter_map(|record| record.shared);
        let left =
            all.map(|shared| *shared).filter(|shared| shared.step.as_str() == step).max_by_key(|shared| shared.run);
        let left = left.ok_or_else(|| format!("job {job} has a fence here, but none of step {step} (see --step)"))?;
        let noted = left.plan.as_ref().map(|left| &left.noted);
        let noted = noted
            .ok_or_else(|| format!("the fence of job {job} step {step} is being opened, or its opening failed"))?;
        let facts = Facts { uid: Fact::Known(uid), ..doors::of_user(&self.host.proc, noted.facts()) };
        let user = facts.user.clone();
        let facts = Facts { user: if user.known().is_some() { user } else { name_of(uid) }, ..facts };
        Ok(Some(ExplainedJob {
            id: job.clone(),
            step,
            grant: Grant::whole(noted.granted.cpus, noted.granted.memory),
            facts,
            present,
            known_by: Some("the fence's record, written when the fence was opened or its limits changed".to_owned()),
            left: Some(left),
        }))
    }

    /// A job as Slurm's controller and its own steps know it.
    fn of_slurm(&self, name: &SlurmName) -> Result<ExplainedJob<'a>, Failure> {
        let asked = self.options.step.as_deref().or(name.step.as_deref()).map(step).transpose()?;
        let SlurmJob { number, uid, partition, qos, account, sluid, granted } =
            crate::schedulers::slurm::job::ask(name, self.node)?;
        let id = Id::from(number);
        let (present, step) = self.present(uid, id.clone(), sluid, asked.as_deref());
        let mut facts =
            Facts { uid: Fact::Known(uid), user: name_of(uid), ..Facts::default() }.of_no_project_vnode_or_pe();
        let record = self.record(id.clone(), uid)?;
        let known_by = match &record {
            Some(record) => {
                record.add_to(&mut facts);
                "the job's record in RunDir, as the job's steps read it"
            }
            None if !present.steps.is_empty() => {
                let why = match nix::unistd::geteuid().is_root() {
                    true => "no 'jobfence prolog' has recorded the job",
                    false => "only root can read the job's record",
                };
                let has_gpus = granted.gpus.as_ref().is_none_or(|gpus| !gpus.is_empty());
                facts.gpus = if has_gpus { Gpus::Unknown(why.to_owned()) } else { Gpus::None };
                why
            }
            None => {
                facts.partition = partition;
                (facts.qos, facts.account) =
                    (qos.if_checked(self.checked.qos), account.if_checked(self.checked.account));
                facts.gpus = match &granted.gpus {
                    Some(numbers) => (self.gpus)(numbers),
                    None => Gpus::Unknown("Slurm does not say which".to_owned()),
                };
                "Slurm's controller; a step knows as much if 'jobfence prolog' has recorded the job"
            }
        };
        let count = u32::try_from(granted.threads.len()).ok().filter(|count| *count > 0);
        let cores = self.options.cores.clone().unwrap_or_else(|| cores_of(&granted.threads));
        let memory = granted.mib.map(|mib| mib.saturating_mul(1 << 20));
        let grant = grant(self.options, count.map(Cpus::whole), memory, cores);
        let known_by = Some(known_by.to_owned());
        Ok(ExplainedJob { id, step, grant, facts, present, known_by, left: None })
    }

    /// The record of a job of Slurm. `None`: there is none, or this process may not read it.
    fn record(&self, job: Id, uid: u32) -> Result<Option<JobRecord>, Failure> {
        if !nix::unistd::geteuid().is_root() || !self.loaded.config.run_dir.is_dir() {
            return Ok(None);
        }
        let id = JobOnNode { node: self.host.node_level(Some(self.node.to_owned()))?, job };
        let records = JobRecords::existing(&self.loaded.config.run_dir)?;
        let record = records.map(|records| records.read(&id, self.host)).transpose()?.flatten();
        // A record may be an older job's: job numbers start again at some point.
        Ok(record.filter(|record| record.uid == uid))
    }
}

/// The user's name. A uid that this host does not know may have any name.
fn name_of(uid: u32) -> Fact<String> {
    Fact::from(User::from_uid(uid.into()).ok().flatten().map(|user| user.name))
}

/// The cores of hardware threads by Slurm's numbers, in which the threads of a core are consecutive.
fn cores_of(threads: &CpuList) -> CpuList {
    let per_core = jobfence::host::threads_per_core().and_then(|count| u32::try_from(count).ok()).unwrap_or(1).max(1);
    let cores: Vec<String> = threads.iter().map(|thread| (thread / per_core).to_string()).collect();
    CpuList::parse(&cores.join(",")).unwrap_or_default()
}

/// Completes what is known about the user.
pub fn know_user(facts: &mut Facts, options: &ExplainOptions, asked: &FactsNeeded) {
    if facts.uid.known().is_none() {
        let asking = || {
            let uid = nix::unistd::getuid();
            (uid.as_raw(), User::from_uid(uid).ok().flatten().map(|user| user.name))
        };
        let (uid, name) = options.user.clone().unwrap_or_else(asking);
        facts.uid = Fact::Known(uid);
        facts.user = Fact::from(name);
    }
    know_groups(facts, asked);
}
