// SPDX-License-Identifier: GPL-2.0-or-later
//! Which step a step daemon runs, what is known about its job, and what is recorded for the job's other steps.

use crate::config::{Config, Loaded, Resolved, SectionKind};
use crate::error::Result;
use crate::facts::Facts;
use crate::host::Host;
use crate::job::{Id, JobKey};
use crate::launch::{NotFenced, begin};
use crate::log;
use crate::record::job::{JobRecord, JobRecords};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::facts;
use crate::schedulers::slurm::spank::grant::{self, StepKind};
use crate::sys::process::Owner;

/// The step's kind and key.
pub fn key_of(spank: &Spank, host: &Host) -> Result<(StepKind, JobKey)> {
    let kind = StepKind::from_step_id(spank.u32(spank_item::S_JOB_STEPID)?);
    let key = JobKey {
        node: host.node_level(std::env::var("SLURMD_NODENAME").ok())?,
        uid: spank.u32(spank_item::S_JOB_UID)?,
        job: spank.u32(spank_item::S_JOB_ID)?.into(),
        step: Id::new(kind.name())?,
    };
    Ok((kind, key))
}

/// What the administrator can do if facts of these kinds are unknown.
fn remedy(unknown: &[SectionKind], facts: &Facts) -> &'static str {
    use SectionKind::{Account, Partition, Qos};
    let is_claimed = |kind: &SectionKind| match kind {
        Account => facts.account.said().is_some(),
        Qos => facts.qos.said().is_some(),
        _ => false,
    };
    if unknown.iter().any(is_claimed) {
        "slurm.conf does not have slurmctld check it (AccountingStorageEnforce), see TrustAccount in jobfence.conf(5)"
    } else if unknown.iter().any(|kind| matches!(kind, Partition | Qos | Account)) {
        "Have Prolog= of slurm.conf call 'jobfence prolog', see jobfence(8)"
    } else {
        "This node does not know a name of them, which getent(1) shows"
    }
}

/// The step's key, and what is known about its job.
pub struct Job {
    pub kind: StepKind,
    pub host: Host,
    pub key: JobKey,
    /// The record of the prolog, or of the batch step.
    record: Option<JobRecord>,
    /// Whether nothing is allocated to the job.
    pub unallocated: bool,
    /// What is known, as far as it is needed.
    pub facts: Facts,
    /// Whether sections depend on facts that only the record has.
    asked: bool,
}

impl Job {
    /// Finds the step's job, and the configuration for it.
    pub fn from_spank(spank: &Spank, loaded: &Loaded) -> Result<(Resolved, Self), NotFenced> {
        let host = Host::read(&loaded.config)?;
        let (kind, key) = key_of(spank, &host)?;
        let record = JobRecords::existing(&loaded.config.run_dir)
            .and_then(|records| records.map_or(Ok(None), |records| records.read(&key.on_node(), &host)));
        let record = record.unwrap_or_else(|error| {
            log::error!("{key}: cannot use the job's record: {error}");
            None
        });
        // A record may be an older job's: job numbers start again at some point.
        let record = record.filter(|record| record.uid == key.uid);
        let asked = loaded.asked();
        let unallocated = grant::is_unallocated(spank, kind)?;
        // The usage log and the metrics show it, too.
        let mut wanted = asked.clone();
        wanted.job |= loaded.config.usage_log.is_some() || loaded.config.metrics_file.is_some();
        wanted.node |= loaded.config.usage_log.is_some();
        let facts = facts::gather(spank, kind, &wanted, record.as_ref().filter(|_| !unallocated))?;
        let facts = if unallocated { facts.of_no_job() } else { facts };
        let resolved = begin::resolve(loaded, &facts)?;
        match resolved.unknown_in_words() {
            Some(unknown) => log::warn!(
                "{key}: which sections of jobfence.conf hold is not known ({unknown}): the strictest limits of {} \
                 possibilities hold. {}",
                resolved.candidates.len(),
                remedy(&resolved.unknown, &facts)
            ),
            None => log::debug!("{key}: sections {:?}", resolved.candidates.first().map(|only| &only.sections)),
        }
        Ok((resolved, Self { kind, host, key, record, unallocated, facts, asked: asked.job }))
    }

    /// The record that the job's other steps need, and that is removed with this step.
    pub fn note(&self, config: &Config) -> Option<JobRecord> {
        match (self.kind, &self.record) {
            (StepKind::Batch | StepKind::Extern, Some(record)) => Some(record.clone()),
            // slurmd calls the prolog of such a job, but no epilog.
            (_, Some(record)) if self.unallocated => Some(record.clone()),
            // There is no record, and later steps are told less than this one.
            (StepKind::Batch, None) if self.asked && self.facts.partition.known().is_some() => self.write_note(config),
            _ => None,
        }
    }

    fn write_note(&self, config: &Config) -> Option<JobRecord> {
        let written = Owner::this(&self.host.proc).and_then(|owner| {
            let partition = self.facts.partition.clone();
            let record = JobRecord { partition, ..JobRecord::new(&self.host, Some(owner), self.key.uid) };
            JobRecords::open(&config.run_dir)?.write(&self.key.on_node(), &record)?;
            Ok(record)
        });
        written
            .inspect_err(|error| {
                log::error!(
                    "{}: cannot record the job's partition for its later steps: \
            {error}",
                    self.key
                )
            })
            .ok()
    }
}
