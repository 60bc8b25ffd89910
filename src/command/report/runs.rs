// SPDX-License-Identifier: GPL-2.0-or-later
//! Groups the usage log's lines into runs of a job: a scheduler may start its numbers again, and a job may run again.

use std::path::Path;
use std::time::Duration;

use crate::energy::{self, StepEnergy};
use crate::gpu::JobGpus;
use crate::kept;
use crate::logged::LoggedStep;
use crate::moment::seconds_of;
use crate::series::Series;

/// Under Slurm these steps last as long as their job.
const LAST_AS_LONG: [&str; 3] = ["batch", "extern", "interactive"];

/// The steps of one run, in the order in which they began.
#[derive(Debug)]
pub struct JobRun {
    pub steps: Vec<LoggedStep>,
    /// Whether another run of the same user had the same id at the same time, as jobs of two schedds can. Then the log's figures for the
    /// whole job belong to both.
    pub is_beside_another: bool,
    /// What its GPUs did, as far as it is known.
    pub gpus: Option<JobGpus>,
    /// What it has used of the node's energy, without that of its GPUs, as far as it is known.
    pub energy: Option<StepEnergy>,
    /// The CO2 of all its energy in grams, if the site says what a kilowatt-hour costs, and all is known.
    pub carbon_grams: Option<f64>,
}

/// When a step began, if its line says so. Such times are compared as text.
fn began(step: &LoggedStep) -> &str {
    step.started.as_deref().unwrap_or_else(|| ended(step))
}

/// When a step ended.
pub fn ended(step: &LoggedStep) -> &str {
    step.ended.as_deref().unwrap_or_default()
}

impl JobRun {
    /// When the last of its steps ended.
    pub fn ended(&self) -> &str {
        self.steps.iter().map(ended).max().unwrap_or_default()
    }

    /// When the first of its steps began.
    pub fn began(&self) -> &str {
        self.steps.iter().map(began).min().unwrap_or_default()
    }

    /// The time from its beginning to its end. Earlier releases wrote both only to the second, and beside them how long the step took.
    pub fn wall(&self) -> Option<Duration> {
        let all = |of: fn(&LoggedStep) -> Option<Duration>| self.steps.iter().map(of).collect::<Option<Vec<_>>>();
        if let (Some(began), Some(ended)) = (all(|step| step.started_unix_seconds), all(|step| step.ended_unix_seconds))
        {
            return ended.into_iter().max()?.checked_sub(began.into_iter().min()?);
        }
        let longest = self.steps.iter().filter_map(|step| step.wall_seconds).max().unwrap_or_default();
        let passed = seconds_of(self.ended())?.checked_sub(seconds_of(self.began())?)?;
        let passed = Duration::from_secs(passed);
        // A step that lasted as long as the run, except for fractions of a second, is more exact.
        Some(if longest + Duration::from_secs(1) > passed { longest } else { passed })
    }

    /// Adds what the GPUs of the job did in its time: the lines of the log about them and, until `jobfence hold` has written that of a job
    /// which has just ended, what it has so far.
    pub fn add_gpus(&mut self, logged: &[JobGpus], run_dir: &Path) {
        let Some(first) = self.steps.first().filter(|_| !self.is_beside_another) else { return };
        let uid = first.uid.and_then(|uid| u32::try_from(uid).ok());
        let (Some(began), Some(ended)) = (seconds_of(self.began()), seconds_of(self.ended())) else { return };
        let kept: Option<JobGpus> = first.job.as_deref().and_then(|job| kept::living(run_dir, None, uid, job));
        let is_its = |gpus: &&JobGpus| {
            gpus.uid == uid && gpus.started < (ended + 1) as f64 && gpus.looked > began.saturating_sub(1) as f64
        };
        let mut all: Option<JobGpus> = None;
        for gpus in logged.iter().chain(&kept).filter(is_its) {
            match &mut all {
                Some(all) => all.merge(gpus),
                None => all = Some(gpus.clone()),
            }
        }
        self.gpus = all;
    }

    /// Adds up the energy of its steps, and says what it costs. That of the GPUs is known before.
    pub fn add_energy(&mut self, all: &[Series], carbon_intensity: Option<u64>) {
        let of_step = |step: &LoggedStep| Series::of_logged(all, step)?.energy;
        self.energy = self.steps.iter().filter_map(of_step).reduce(|mut sum, energy| {
            sum.add(energy);
            sum
        });
        let of_gpus = match &self.gpus {
            Some(gpus) => gpus.sum(|gpu| gpu.energy),
            None => Some(0.0),
        };
        let all = self.energy.zip(of_gpus).map(|(energy, of_gpus)| energy.joules + of_gpus);
        self.carbon_grams = all.zip(carbon_intensity).map(|(joules, of_kwh)| energy::carbon(joules, of_kwh));
    }

    /// Whether two runs of one user overlapped.
    fn is_beside(&self, other: &Self) -> bool {
        let uid = |run: &Self| run.steps.first().and_then(|step| step.uid);
        uid(self) == uid(other) && self.began() < other.ended() && other.began() < self.ended()
    }

    /// Whether a step that begins after all of these have ended belongs to another run.
    fn is_over_before(&self, next: &LoggedStep) -> bool {
        self.is_anothers(next)
            || began(next) > self.ended()
                && self.steps.iter().filter_map(|step| step.step.as_deref()).any(|step| LAST_AS_LONG.contains(&step))
    }

    /// Whether a step cannot belong to this run: it has another user or run number, or the run has a step of its name.
    fn is_anothers(&self, next: &LoggedStep) -> bool {
        self.steps.iter().any(|step| step.uid != next.uid || step.run != next.run || step.step == next.step)
    }
}

/// The runs, the oldest first.
pub fn runs_of(mut lines: Vec<LoggedStep>) -> Vec<JobRun> {
    // If two began in the same second, the one that ended first belongs to the earlier run.
    lines.sort_by(|one, other| (began(one), ended(one)).cmp(&(began(other), ended(other))));
    let mut runs: Vec<JobRun> = Vec::new();
    for line in lines {
        // A run with another number may overlap with the last one.
        let is_of = |run: &&mut JobRun| !run.is_over_before(&line);
        let fits = runs.last_mut().filter(is_of).map(|run| run.steps.push(line.clone()));
        if fits.is_some() {
            continue;
        }
        let earlier = runs.iter_mut().rev().skip(1).find(|run| began(&line) <= run.ended() && !run.is_anothers(&line));
        match earlier {
            Some(run) => run.steps.push(line),
            None => runs.push(JobRun {
                steps: vec![line],
                is_beside_another: false,
                gpus: None,
                energy: None,
                carbon_grams: None,
            }),
        }
    }
    runs.sort_by(|one, other| (one.ended(), one.began()).cmp(&(other.ended(), other.began())));
    let is_beside =
        |at: usize, run: &JobRun| runs.iter().enumerate().any(|(other, it)| other != at && run.is_beside(it));
    let shared: Vec<bool> = runs.iter().enumerate().map(|(at, run)| is_beside(at, run)).collect();
    for (run, is_beside_another) in runs.iter_mut().zip(shared) {
        run.is_beside_another = is_beside_another;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_co2_is_that_of_all_or_unknown() {
        let line = serde_json::json!({"job": "7", "step": "0", "started": "2026-11-25T03:00:00Z", "ended": "2026-11-25T04:00:00Z"});
        let series = Series {
            job: "7".to_owned(),
            step: "0".to_owned(),
            started: "2026-11-25T03:00:00Z".to_owned(),
            energy: Some(StepEnergy { joules: 3.6e6, cpu_seconds: 1.0 }),
            ..Series::default()
        };
        let carbon = |gpus: Option<&[Option<f64>]>, all: &[Series], of_kwh| {
            let mut run = runs_of(vec![LoggedStep::new(line.clone())]).remove(0);
            run.gpus = gpus.map(|energies| {
                let mut gpus = JobGpus::default();
                for (number, energy) in energies.iter().enumerate() {
                    gpus.of(&format!("/dev/nvidia{number}")).energy = *energy;
                }
                gpus
            });
            run.add_energy(all, of_kwh);
            run.carbon_grams
        };
        let known = [series];
        assert_eq!(carbon(None, &known, Some(400)), Some(400.0));
        assert_eq!(carbon(Some(&[Some(1.8e6), Some(1.8e6)]), &known, Some(400)), Some(800.0));
        assert_eq!(carbon(Some(&[Some(1.8e6), None]), &known, Some(400)), None);
        assert_eq!([carbon(Some(&[Some(1.8e6)]), &[], Some(400)), carbon(None, &known, None)], [None; 2]);
    }

    /// Steps as `NAME BEGIN-END`, in seconds; behind a slash the run, and behind a colon the user.
    fn runs(steps: &[&str]) -> Vec<String> {
        let moment = |second: &str| format!("2026-11-25T03:31:{second:0>2}Z");
        let line = |text: &&str| {
            let (name, times) = text.split_once(' ').unwrap();
            let (times, uid) = times.split_once(':').unwrap_or((times, "1"));
            let (times, run) = times.split_once('/').unwrap_or((times, "0"));
            let (begin, end) = times.split_once('-').unwrap();
            let (uid, run): (u32, u32) = (uid.parse().unwrap(), run.parse().unwrap());
            let started = (begin != "?").then(|| moment(begin));
            LoggedStep::new(serde_json::json!({
                "step": name, "started": started, "ended": moment(end), "uid": uid, "run": run,
            }))
        };
        let all = runs_of(steps.iter().map(line).collect());
        let name = |step: &LoggedStep| step.step.clone().unwrap();
        all.iter().map(|run| run.steps.iter().map(name).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn steps_of_one_job_belong_together() {
        // One after the other, within the batch step, and beside the extern step.
        assert_eq!(runs(&["0 2-4", "1 5-6", "batch 1-8", "extern 0-9"]), ["extern batch 0 1"]);
        // No step lasts as long as the job.
        assert_eq!(runs(&["0 2-4", "1 15-16", "2 30-31"]), ["0 1 2"]);
        assert_eq!(runs(&["0 ?-4", "batch 1-8"]), ["batch 0"]);
    }

    #[test]
    fn of_two_at_the_same_time_the_whole_job_is_not_known() {
        let line = |run: u32, begin: &str, end: &str, uid: u32| {
            LoggedStep::new(serde_json::json!({"step": "0", "started": begin, "ended": end, "uid": uid, "run": run}))
        };
        let together = |second: LoggedStep| {
            let runs = runs_of(vec![line(1, "T1", "T5", 1), second]);
            runs.iter().map(|run| run.is_beside_another).collect::<Vec<_>>()
        };
        assert_eq!(together(line(2, "T4", "T8", 1)), [true, true]);
        assert_eq!(together(line(2, "T2", "T3", 1)), [true, true]);
        // One after the other; another user's job has a directory of its own.
        assert_eq!(together(line(2, "T5", "T8", 1)), [false, false]);
        assert_eq!(together(line(2, "T4", "T8", 7)), [false, false]);
    }

    #[test]
    fn gpus_are_those_of_the_runs_time_and_user() {
        let line = |second: u64| format!("2026-11-25T03:31:{second:0>2}Z");
        let step = |begin: u64, end: u64| {
            LoggedStep::new(
                serde_json::json!({"job": "7", "step": "0", "uid": 1, "started": line(begin), "ended": line(end)}),
            )
        };
        let gpus = |uid: u32, begin: u64, end: u64, energy: f64| {
            let at = |second: u64| seconds_of(&line(second)).unwrap() as f64;
            let mut gpus = JobGpus { uid: Some(uid), started: at(begin), looked: at(end), ..JobGpus::default() };
            gpus.of("/dev/nvidia0").energy = Some(energy);
            gpus
        };
        let logged = [gpus(1, 1, 9, 1.0), gpus(1, 9, 10, 2.0), gpus(1, 30, 40, 4.0), gpus(2, 1, 9, 8.0)];
        let mut runs = runs_of(vec![step(1, 10), step(30, 41), step(50, 51)]);
        let nowhere = Path::new("/nonexistent/run");
        runs.iter_mut().for_each(|run| run.add_gpus(&logged, nowhere));
        let energy = |run: &JobRun| run.gpus.as_ref().and_then(|gpus| gpus.sum(|gpu| gpu.energy));
        assert_eq!(runs.iter().map(energy).collect::<Vec<_>>(), [Some(3.0), Some(4.0), None]);
        // Two runs at the same time: nobody knows whose GPUs these are.
        runs[0].gpus = None;
        runs[0].is_beside_another = true;
        runs[0].add_gpus(&logged, nowhere);
        assert_eq!(runs[0].gpus, None);
    }

    #[test]
    fn another_run_is_another_job() {
        let again = ["0 2-4", "batch 1-8", "extern 0-9", "1 22-23", "batch 20-30", "extern 20-31"];
        assert_eq!(runs(&again), ["extern batch 0", "batch extern 1"]);
        // The job numbers have started again.
        assert_eq!(runs(&["0 2-4", "0 20-30"]), ["0", "0"]);
        assert_eq!(runs(&["0 2-4", "1 20-30:7"]), ["0", "1"]);
        assert_eq!(runs(&["0 2-4/1", "1 5-6/1", "0 7-9/2", "1 8-9/2"]), ["0 1", "0 1"]);
        // The job ran again within the second in which it ended.
        assert_eq!(runs(&["batch 1-8", "batch 8-9"]), ["batch", "batch"]);
        assert_eq!(runs(&["0 1-9/1", "0 2-10/2", "1 5-6/1"]), ["0 1", "0"]);
    }
}
