// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps what jobs use of GPUs. For a running job it is a file beside the series of its steps, which the job's user can read. For an ended
//! job it is a line of a third log beside the usage log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use jobfence::error::Result;
use jobfence::report::account::utc;
use jobfence::report::usage_log::UsageLog;
use serde_json::{Map, Value, json};

use super::figures::{GpuCounters, GpuUse, JobGpus, SOURCES};
use super::table::{GPU_FIGURES, decimal};
use crate::idle::IdleDecision;
use crate::kept::{KeptId, KeptJob, number, text};
use crate::node_logs::{GPUS, log_with};
use crate::series;

/// The name of the objects' format. A program that reads them checks it first.
pub const SCHEMA: &str = "jobfence-gpus-1";

/// The source of memory that the kernel has counted.
const COUNTED: &str = "dmem";

impl JobGpus {
    /// The object without what is for `jobfence hold` alone.
    pub fn json(&self) -> Value {
        let mut all = json!({
            "started": moment(self.started),
            "looked": moment(self.looked),
            "granted": self.granted,
            "idle_after_seconds": self.idle_after,
            "utilization_percent": self.percent().map(decimal),
            "utilization_now_percent": self.percent_now().map(decimal),
            "idle_seconds": self.idle().map(decimal),
            "gpus": self.gpus.iter().map(|gpu| gpu.json(self.looked)).collect::<Vec<_>>(),
        });
        for figure in GPU_FIGURES.iter().filter(|figure| figure.is_summed) {
            all[figure.member] = figure.sum(&self.gpus, self.looked);
        }
        self.object(all)
    }
}

impl KeptJob for JobGpus {
    const ENDING: &'static str = ".gpus";
    const SCHEMA: &'static str = SCHEMA;

    fn job(&self) -> (Option<&str>, Option<u32>, &str) {
        (self.node.as_deref(), self.uid, &self.job)
    }

    fn members(&self) -> Value {
        let mut state = self.json();
        state["state"] = json!({
            "directory": self.directory,
            "inode": self.inode,
            "started": self.started,
            "looked": self.looked,
            "idle_decision": self.decision.json(),
            // An older build reads the file only if it has this member.
            "is_idle_said": self.decision.is_announced(),
            "gpus": self.gpus.iter().map(|gpu| gpu.counters.json(gpu.idle_since)).collect::<Vec<_>>(),
        });
        state
    }

    /// Parses a file or a line, also one that `json` wrote.
    fn from_members(KeptId { node, uid, job }: KeptId, value: &Value) -> Option<Self> {
        let seconds = |member: &str| seconds_of(value.get(member)?.as_str()?);
        let mut all = Self {
            node,
            uid,
            job,
            started: seconds("started")?,
            looked: seconds("looked")?,
            granted: number(value, "granted"),
            idle_after: number(value, "idle_after_seconds"),
            gpus: value.get("gpus")?.as_array()?.iter().filter_map(|gpu| GpuUse::from_json(gpu, 0.0)).collect(),
            ..Self::default()
        };
        let looked = all.looked;
        let Some(state) = value.get("state") else {
            all.gpus = value["gpus"].as_array()?.iter().filter_map(|gpu| GpuUse::from_json(gpu, looked)).collect();
            return Some(all);
        };
        all.directory = text(state, "directory")?;
        all.inode = number(state, "inode")?;
        all.started = state.get("started")?.as_f64()?;
        all.looked = state.get("looked")?.as_f64()?;
        all.decision = state.get("idle_decision").map(IdleDecision::from_json).unwrap_or_default();
        for (gpu, state) in all.gpus.iter_mut().zip(state.get("gpus")?.as_array()?) {
            (gpu.counters, gpu.idle_since) = GpuCounters::from_json(state)?;
        }
        Some(all)
    }
}

impl GpuUse {
    fn json(&self, looked: f64) -> Value {
        let mut all = json!({
            "gpu": super::number_of(&self.device),
            "device": self.device,
            "uuid": self.uuid,
            "is_shared": self.is_shared,
            "utilization_source": self.percent().map(|_| self.source.word()),
            "memory_source": self.memory_peak.map(|_| if self.is_memory_counted { COUNTED } else { "driver" }),
            "slowed_by": self.slowed_by,
        });
        for figure in GPU_FIGURES {
            all[figure.member] = figure.json(self, looked);
        }
        all
    }

    fn from_json(value: &Value, looked: f64) -> Option<Self> {
        let source = text(value, "utilization_source");
        let source = SOURCES.iter().find(|(_, word)| source.as_deref() == Some(word));
        let reasons = value.get("slowed_by").and_then(Value::as_array).into_iter().flatten();
        let mut gpu = Self {
            device: text(value, "device")?,
            uuid: text(value, "uuid"),
            is_shared: value.get("is_shared")?.as_bool()?,
            source: source.map(|(source, _)| *source).unwrap_or_default(),
            is_memory_counted: text(value, "memory_source").as_deref() == Some(COUNTED),
            slowed_by: reasons.filter_map(|reason| Some(reason.as_str()?.to_owned())).collect(),
            ..Self::default()
        };
        GPU_FIGURES.iter().try_for_each(|figure| figure.put(&mut gpu, value, looked))?;
        Some(gpu)
    }
}

impl GpuCounters {
    fn json(&self, idle_since: Option<f64>) -> Value {
        json!({
            "energy": self.energy,
            "engines": self.engines,
            "engines_sum": self.engines_sum,
            "counted": self.counted,
            "ended_busy": self.ended_busy,
            "ended": self.ended,
            "sampled_busy": self.sampled_busy,
            "idle_since": idle_since,
        })
    }

    fn from_json(value: &Value) -> Option<(Self, Option<f64>)> {
        let engines = |member: &str| {
            let all = value.get(member)?.as_object()?;
            Some(numbers(all))
        };
        let counted = value.get("counted")?.as_array()?.iter();
        let counted: Option<BTreeSet<_>> =
            counted.map(|pair| Some((u32::try_from(pair.get(0)?.as_u64()?).ok()?, pair.get(1)?.as_u64()?))).collect();
        let counters = Self {
            energy: number(value, "energy"),
            engines: engines("engines")?,
            engines_sum: engines("engines_sum")?,
            counted: counted?,
            ended_busy: value.get("ended_busy")?.as_f64()?,
            ended: number(value, "ended")?,
            sampled_busy: value.get("sampled_busy")?.as_f64()?,
        };
        Some((counters, value.get("idle_since").and_then(Value::as_f64)))
    }
}

fn numbers(all: &Map<String, Value>) -> BTreeMap<String, u64> {
    all.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
}

fn moment(seconds: f64) -> String {
    utc(UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn seconds_of(moment: &str) -> Option<f64> {
    crate::moment::seconds_of(moment).map(|seconds| seconds as f64)
}

/// Adds the line of a job that has ended.
pub fn log(usage_log: &UsageLog<'_>, gpus: &JobGpus) {
    usage_log.at(&log_with(usage_log, GPUS)).add(&gpus.json().to_string());
}

/// What the job's GPUs did, from the lines about it in these files.
pub fn ended(files: Vec<(PathBuf, File)>, job: &str) -> Result<Vec<JobGpus>> {
    let mut all = Vec::new();
    series::each_line(files, job, &mut |value| {
        all.extend(JobGpus::from_json(value).filter(|gpus| gpus.job == job));
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::figures::Utilization;
    use crate::kept::{all_living, living, remove, write};

    #[test]
    fn what_is_kept_is_read_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path().join("run");
        let mut gpus = JobGpus {
            node: Some("n1".into()),
            uid: Some(nix::unistd::getuid().as_raw()),
            job: "7\"<".into(),
            directory: "/sys/fs/cgroup/j".into(),
            inode: 9,
            started: 1_800_000_000.25,
            looked: 1_800_000_100.5,
            granted: Some(2),
            idle_after: Some(50),
            decision: IdleDecision::from_json(&json!({"told": 2, "since_told": 7.5})),
            gpus: Vec::new(),
        };
        let gpu = gpus.of("/dev/nvidia1");
        (gpu.observed, gpu.busy, gpu.source) = (10.5, 5.25, Utilization::Accounted);
        (gpu.memory_peak, gpu.energy, gpu.idle_since) = (Some(5), Some(2.5), Some(1_800_000_050.5));
        gpu.longest_idle = Some(70.5);
        gpu.slowed_by.insert("temperature".into());
        gpu.counters.counted.insert((7, 8));
        gpu.counters.engines.insert("a 1 gfx".into(), 3);
        gpu.counters.sampled_busy = 1.0;
        gpus.of("/dev/nvidia0").is_shared = true;
        gpus.of("/dev/dri/renderD128").is_memory_counted = true;
        gpus.of("/dev/dri/renderD128").memory_peak = Some(3);
        let place = |job: &str| living::<JobGpus>(&run_dir, Some("n1"), gpus.uid, job);
        assert_eq!(place("7\"<"), None);
        write(&run_dir, &gpus).unwrap();
        write(&run_dir, &gpus).unwrap();
        assert_eq!(place("7\"<"), Some(gpus.clone()));
        assert_eq!(place("7"), None);
        assert_eq!(all_living::<JobGpus>(&run_dir).unwrap(), [gpus.clone()]);
        // An object of another release, or of another program, is not read.
        assert_eq!(JobGpus::from_json(&json!({"schema": "jobfence-gpus-2"})), None);
        remove(&run_dir, &gpus);
        assert_eq!(all_living::<JobGpus>(&run_dir).unwrap(), []);
        // A line has the same figures, but not the state of `jobfence hold`.
        let line = gpus.json();
        assert_eq!((&line["utilization_percent"], &line["idle_seconds"]), (&Value::Null, &json!(50.0)));
        let read = JobGpus::from_json(&line).unwrap();
        assert_eq!((read.json(), read.gpus[1].percent()), (line, Some(50.0)));
    }
}
