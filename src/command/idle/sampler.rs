// SPDX-License-Identifier: GPL-2.0-or-later
//! `IdleAfter`: `jobfence hold` looks with each sample of the steps whether their jobs do anything.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use jobfence::config::{Config, IdleAction, Loaded};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::record::job::JobRecords;

use super::PATIENCE;
use super::act::{IdleJob, IdleKind, follow};
use super::activity::SeenActivity;
use super::decision::IdleLook;
use super::files::JobIdle;
use super::keys::keys_of;
use super::pauses::{speed, states, time_between};
use crate::gpu::{self, GpuSampler};
use crate::kept;

/// What `jobfence hold` knows of the idle time of live jobs.
#[derive(Default)]
pub struct IdleSampler {
    /// What is known of each job, by its key.
    jobs: BTreeMap<String, JobIdle>,
    has_taken_over: bool,
    /// The last error that was logged.
    said: Option<String>,
}

impl IdleSampler {
    /// Looks at the jobs of these steps.
    pub fn look(
        &mut self,
        (config, loaded): (&Config, Option<&Loaded>),
        host: &Host,
        steps: &[LivingStep<'_>],
        gpus: &GpuSampler,
    ) {
        let Some(interval) = config.sample_interval else { return };
        self.take_over(&config.run_dir);
        let noted = JobRecords::existing(&config.run_dir).ok().flatten();
        let mut jobs: BTreeMap<String, Vec<&LivingStep<'_>>> = BTreeMap::new();
        for step in steps {
            let key = kept::key(step.node.as_deref(), step.uid, &step.job);
            jobs.entry(key).or_default().push(step);
        }
        let mut wanted = BTreeMap::new();
        for (key, steps) in &jobs {
            let keys = steps.first().map(|step| keys_of((config, loaded), (noted.as_ref(), host), step));
            wanted.extend(keys.and_then(|keys| Some((key, (keys.cpu_after?, keys.cpu_action)))));
        }
        self.end_others(&config.run_dir, |key| wanted.contains_key(&key.to_owned()));
        let deadline = Instant::now() + PATIENCE;
        for (key, (after, action)) in wanted {
            let Some((first, steps)) = jobs.get(key).and_then(|steps| Some((*steps.first()?, steps))) else { continue };
            let Some(job) = self.job(key, first).filter(|_| Instant::now() < deadline) else { continue };
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let (passed, is_next) = time_between(job.looked, at, interval);
            let passed = passed * speed();
            (job.looked, job.after) = (at, after.as_secs());
            let (seen, knows_disks) = seen(steps, host, gpus.of_job(key)).unwrap_or((SeenActivity::Nothing, true));
            // If the disks are not counted, a job that only reads may seem idle. So it is only told.
            let action = if knows_disks { action } else { IdleAction::Warn };
            job.activity.look(seen, passed, after);
            let idle = job.activity.idle();
            job.longest = job.longest.max(idle.unwrap_or(0.0));
            let look = IdleLook { idle, all_idle: idle, passed, is_next };
            if let Some(step) = job.decision.look(look, after, action) {
                let which = IdleJob { node: first.node.clone(), uid: first.uid, job: first.job.clone() };
                let what = (IdleKind::Cpu, idle.unwrap_or_default(), after);
                follow(config, &which, what, (step, action), &mut job.decision, deadline);
                job.activity.count_anew(seen);
            }
            self.said = match kept::write(&config.run_dir, job) {
                Ok(()) => None,
                Err(error) => {
                    let error = error.to_string();
                    if self.said.as_ref() != Some(&error) {
                        log::debug!("the idle time of a job is not kept: {error}");
                    }
                    Some(error)
                }
            };
        }
    }

    /// What is known of the job with this key.
    pub fn of_job(&self, key: &str) -> Option<&JobIdle> {
        self.jobs.get(key)
    }

    /// Ends all that is kept, since sampling is off.
    pub fn end(&mut self, config: &Config) {
        self.take_over(&config.run_dir);
        std::mem::take(&mut self.jobs).values().for_each(|job| kept::remove(&config.run_dir, job));
    }

    /// Continues with what an earlier process has kept.
    fn take_over(&mut self, run_dir: &Path) {
        if !std::mem::replace(&mut self.has_taken_over, true) {
            self.jobs = kept::taken_over(run_dir).unwrap_or_else(|error| {
                log::error!("cannot go on with the idle times of jobs: {error}");
                BTreeMap::new()
            });
        }
    }

    /// Forgets jobs that are gone, and jobs that no time makes idle. A job that was not found may still be alive: its directory shows that.
    fn end_others(&mut self, run_dir: &Path, is_wanted: impl Fn(&str) -> bool) {
        self.jobs.retain(|key, job| {
            let is_there = std::fs::symlink_metadata(&job.directory).is_ok_and(|found| found.ino() == job.inode);
            let stays = is_there && is_wanted(key);
            if !stays {
                kept::remove(run_dir, job);
            }
            stays
        });
    }

    /// What is known of the job of this step. `None`: it is gone.
    fn job(&mut self, key: &str, step: &LivingStep<'_>) -> Option<&mut JobIdle> {
        let directory: PathBuf = step.places.first()?.job.clone();
        let inode = std::fs::symlink_metadata(&directory).ok()?.ino();
        let new = || JobIdle {
            node: step.node.clone(),
            uid: step.uid,
            job: step.job.clone(),
            directory: directory.display().to_string(),
            inode,
            ..JobIdle::default()
        };
        Some(self.jobs.entry(key.to_owned()).or_insert_with(new))
    }
}

/// What the job does now, and whether its disks are counted. `None`: it is not known, or the job cannot work.
fn seen(steps: &[&LivingStep<'_>], host: &Host, gpus: Option<&gpu::JobGpus>) -> Option<(SeenActivity, bool)> {
    let first = steps.first()?;
    let directories: BTreeSet<_> = steps.iter().map(|step| step.places.first().map(|place| &place.job)).collect();
    if directories.len() > 1 {
        // The job's counters are in two places.
        return None;
    }
    let usage = first.of_job().usage;
    let cpu = usage.cpu?;
    let has_gpus = steps.iter().any(|step| {
        let chosen = step.record.as_ref().and_then(|record| record.shared.as_ref());
        chosen.is_some_and(|shared| !shared.gpus.is_empty()) || step.allocated().noted.granted.gpus.unwrap_or(0) > 0
    });
    let gpu_works = match gpus {
        Some(gpus) if gpus.all_idle().is_some() => false,
        Some(gpus) if gpus.gpus.iter().any(|gpu| gpu.percent_now.is_some()) => true,
        // The use of the job's GPUs is not known.
        Some(_) => return None,
        None if has_gpus => return None,
        None => false,
    };
    let Some((false, waits)) = states(steps, host) else { return None };
    let knows_disks = usage.read.is_some() && usage.written.is_some();
    let bytes = usage.read.unwrap_or(0).saturating_add(usage.written.unwrap_or(0));
    Some((SeenActivity::Counters { cpu: cpu.as_secs_f64(), bytes, is_busy: gpu_works || waits }, knows_disks))
}
