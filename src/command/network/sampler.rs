// SPDX-License-Identifier: GPL-2.0-or-later
//! `NetworkAccounting`: which counts are which job's. It is looked at with each sample of the steps.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jobfence::cgroup::layout::Version;
use jobfence::cgroup::network::BoundValue;
use jobfence::config::Config;
use jobfence::fence::living::LivingStep;
use jobfence::report::usage_log::UsageLog;
use nix::errno::Errno;

use super::attachment::MOST_COUNTS;
use super::figures::{JobNetwork, NetworkAmounts, OTHER};
use super::files;
use super::program::{CountKey, CountedPackets, NetworkTables};
use crate::kept;
use crate::table::printable;

/// What `jobfence hold` knows of live jobs.
#[derive(Debug, Default)]
pub struct NetworkSampler {
    /// By their keys.
    jobs: BTreeMap<String, JobNetwork>,
    /// The names of interfaces by their numbers, also of those that are gone, and whether each is the loopback.
    pub names: BTreeMap<u32, (String, bool)>,
    has_taken_over: bool,
}

/// Amounts by the number of a job's directory, and by an interface's name.
type CountedJobs = BTreeMap<u64, BTreeMap<String, (bool, NetworkAmounts)>>;

impl NetworkSampler {
    /// Reads what the jobs of these steps have sent and received, and ends those that are gone.
    pub fn look(&mut self, config: &Config, tables: &NetworkTables, steps: &[LivingStep<'_>]) -> Result<(), Errno> {
        self.take_over(&config.run_dir);
        for step in steps {
            let key = kept::key(step.node.as_deref(), step.uid, &step.job);
            if let Some(job) =
                new_job(step).filter(|job| self.jobs.get(&key).is_none_or(|known| known.inode != job.inode))
                && let Some(ended) = self.jobs.insert(key, JobNetwork { table: tables.counts.id, ..job })
            {
                // Another run of the job had the same name.
                finish(config, &ended, true);
            }
        }
        let counted = self.counted(tables)?;
        for job in self.jobs.values_mut() {
            job.change_table(tables.counts.id);
            for (name, (is_loopback, amounts)) in counted.get(&job.inode).into_iter().flatten() {
                job.take(name, *is_loopback, *amounts);
            }
            let bound: Option<BoundValue> = tables.bounds.get(job.inode)?;
            job.most = match bound {
                Some([0, _]) => None,
                Some([rate, _]) => Some(rate),
                // A job that has ended keeps the bound that it had.
                None => job.most.filter(|_| is_gone(job)),
            };
        }
        self.jobs.retain(|_, job| {
            let is_over = is_gone(job);
            if is_over {
                finish(config, job, true);
            } else if let Err(error) = kept::write(&config.run_dir, job) {
                log::debug!("the network figures of a job are not kept: {error}");
            }
            !is_over
        });
        Ok(())
    }

    /// All that the table has.
    fn counted(&self, tables: &NetworkTables) -> Result<CountedJobs, Errno> {
        let mut all = CountedJobs::new();
        let mut keys: Vec<CountKey> = tables.counts.keys(usize::try_from(MOST_COUNTS).unwrap_or(usize::MAX))?;
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let Some(counted) = tables.counts.get::<_, CountedPackets>(key)? else { continue };
            let (name, is_loopback) = self.names.get(&key.interface).cloned().unwrap_or_else(|| match key.interface {
                0 => (OTHER.to_owned(), false),
                number => (format!("interface {number}"), false),
            });
            let (_, sum) =
                all.entry(key.job).or_default().entry(name).or_insert((is_loopback, NetworkAmounts::default()));
            *sum = sum.and(counted.into());
        }
        Ok(all)
    }

    /// What is known of the job with this key.
    pub fn of_job(&self, key: &str) -> Option<&JobNetwork> {
        self.jobs.get(key)
    }

    /// The directories of jobs whose last figures have not been read yet, by their numbers.
    pub fn unfinished(&self) -> impl Iterator<Item = u64> {
        self.jobs.values().map(|job| job.inode)
    }

    /// Nothing is counted any more: what is known so far is kept.
    pub fn end(&mut self, config: &Config) {
        self.take_over(&config.run_dir);
        std::mem::take(&mut self.jobs).values().for_each(|job| finish(config, job, is_gone(job)));
    }

    /// Continues what an earlier process began.
    pub fn take_over(&mut self, run_dir: &Path) {
        if !std::mem::replace(&mut self.has_taken_over, true) {
            self.jobs = kept::taken_over(run_dir).unwrap_or_else(|error| {
                log::error!("cannot go on with what jobs have sent and received: {error}");
                BTreeMap::new()
            });
        }
    }
}

/// A job without figures yet. `None`: it has no directory of jobfence's in cgroup2.
fn new_job(step: &LivingStep<'_>) -> Option<JobNetwork> {
    let is_counted =
        |place: &&jobfence::fence::living::StepPlace<'_>| place.hierarchy.version == Version::V2 && !place.is_overlay;
    let directory = &step.places.iter().find(is_counted)?.job;
    Some(JobNetwork {
        node: step.node.clone(),
        uid: step.uid,
        job: step.job.clone(),
        directory: directory.display().to_string(),
        inode: std::fs::symlink_metadata(directory).ok()?.ino(),
        ..JobNetwork::default()
    })
}

/// Whether the job's directory is gone, or is another one's.
fn is_gone(job: &JobNetwork) -> bool {
    kept::is_over(&job.directory, job.inode)
}

/// Called for a job that has ended, or is not counted any more: says what it has sent and received, and writes its line to the log, if
/// there is one.
fn finish(config: &Config, job: &JobNetwork, has_ended: bool) {
    log::info!("job {}: network: {}", printable(&job.job), printable(&job.in_words()));
    if let Some(usage_log) = UsageLog::from_config(config) {
        files::log(&usage_log, job, has_ended);
    }
    kept::remove(&config.run_dir, job);
}
