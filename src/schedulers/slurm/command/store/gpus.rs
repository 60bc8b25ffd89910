// SPDX-License-Identifier: GPL-2.0-or-later
//! What the log of GPUs beside the usage log has of jobs that wait to be stored.

use std::collections::BTreeMap;
use std::time::Duration;

use jobfence::report::usage_log::UsageLog;

use super::known::KnownJob;
use super::record::RunRecord;
use crate::gpu::{self, GpuUse, JobGpus};
use crate::node_logs;
use crate::report::accounting::GpuPart;

/// How long a line is waited for at least.
const LEAST_WAIT: Duration = Duration::from_secs(60);

/// The lines of jobs with GPUs.
#[derive(Debug, Default)]
pub struct LoggedGpus {
    pub jobs: BTreeMap<u32, Vec<JobGpus>>,
    /// How long after a job's end its line may still come. `None`: none will come.
    pub wait: Option<Duration>,
}

impl LoggedGpus {
    /// Reads those of these jobs.
    pub fn read(usage_log: &UsageLog<'_>, interval: Option<Duration>, ids: impl Iterator<Item = u32>) -> Self {
        let of_job = |id: u32| {
            let files = node_logs::open(usage_log, node_logs::GPUS);
            let lines = files.and_then(|files| gpu::ended(files, &id.to_string()));
            lines.inspect_err(|error| log::debug!("job {id}: what its GPUs did is not known: {error}")).ok()
        };
        Self {
            jobs: ids.filter_map(|id| Some((id, of_job(id)?))).collect(),
            wait: interval.map(|interval| (interval * 2).max(LEAST_WAIT)),
        }
    }

    /// What the GPUs of a run did on this node; empty if not all of it is known. `None`: the run has no line.
    pub fn of_run(&self, id: u32, node: &str, job: &KnownJob, record: &RunRecord) -> Option<BTreeMap<u32, GpuPart>> {
        let is_its = |gpus: &&JobGpus| {
            gpus.node.as_deref().is_none_or(|of| of == node)
                && job.uid.is_none_or(|uid| gpus.uid.map(u64::from) == Some(uid))
                && record.has_lasted(gpus.started as u64, gpus.looked as u64)
        };
        let mut lines = self.jobs.get(&id)?.iter().filter(is_its);
        let first = lines.next()?.clone();
        let run = lines.fold(first, |mut run, other| {
            run.merge(other);
            run
        });
        let all: Option<BTreeMap<_, _>> = run.gpus.iter().map(part).collect();
        let is_whole = |all: &BTreeMap<_, _>| all.len() as u64 >= run.granted.unwrap_or(0).max(run.gpus.len() as u64);
        Some(all.filter(is_whole).unwrap_or_default())
    }
}

fn part(gpu: &GpuUse) -> Option<(u32, GpuPart)> {
    // A reader divides by the memory.
    let memory = gpu.memory_total.filter(|total| *total > 0)?;
    Some((gpu.number()?, GpuPart { percent: gpu.percent()?, memory_peak: gpu.memory_peak?, memory }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_line_of_its_time_and_user_if_all_of_it_is_known() {
        let line = |uid, started: f64| {
            let mut job = JobGpus { uid: Some(uid), started, looked: started + 50.0, ..JobGpus::default() };
            for device in ["/dev/nvidia0", "/dev/nvidia3"] {
                let gpu = job.of(device);
                (gpu.observed, gpu.busy) = (50.0, started / 40.0);
                (gpu.memory_peak, gpu.memory_total) = (Some(5), Some(9));
            }
            job
        };
        let logged = |jobs: &[JobGpus]| LoggedGpus { jobs: BTreeMap::from([(7, jobs.to_vec())]), wait: None };
        let record = RunRecord {
            submitted: 61,
            started: Some(500),
            ended: Some(610),
            before: Some(60),
            gpus: 2,
            ..RunRecord::default()
        };
        let job = KnownJob { uid: Some(1), ..KnownJob::default() };
        let of = |lines: &[JobGpus]| logged(lines).of_run(7, "n1", &job, &record);
        let gpu = GpuPart { percent: 25.0, memory_peak: 5, memory: 9 };
        let found = of(&[line(1, 10.0), line(2, 500.0), line(1, 500.0), line(1, 900.0)]);
        assert_eq!(found, Some(BTreeMap::from([(0, gpu.clone()), (3, gpu)])));
        assert_eq!(of(&[line(1, 10.0), line(2, 500.0), line(1, 900.0)]), None);
        assert_eq!(of(&[JobGpus { node: Some("n2".into()), ..line(1, 500.0) }]), None);
        // One of three GPUs has no figures, or one of two lacks one.
        assert_eq!(of(&[JobGpus { granted: Some(3), ..line(1, 500.0) }]), Some(BTreeMap::new()));
        for lack in
            [(|gpu| gpu.observed = 0.0) as fn(&mut GpuUse), |gpu| gpu.memory_peak = None, |gpu| gpu.memory_total = None]
        {
            let mut line = line(1, 500.0);
            lack(line.of("/dev/nvidia3"));
            assert_eq!(of(&[line]), Some(BTreeMap::new()));
        }
    }
}
