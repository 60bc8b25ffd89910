// SPDX-License-Identifier: GPL-2.0-or-later
//! `SampleInterval`: `jobfence hold` notes down, again and again, what each living step uses.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jobfence::config::{Config, Mode};
use jobfence::fence::living::{LivingStep, Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::report::account::utc;
use jobfence::report::usage_log::UsageLog;
use jobfence::scheduler::all::ALL;

use crate::living::described;
use crate::series::{self, Point, Series};

/// So many steps have a series at once: a node has fewer, unless something is wrong.
const MOST_STEPS: usize = 2000;

/// A series of fewer points shows nothing.
const LEAST_POINTS: usize = 2;

/// The series of all living steps.
#[derive(Default)]
pub struct Sampler {
    /// When the next sample is due; `None`: nothing was sampled yet.
    next: Option<Instant>,
    /// By the directories of the step.
    series: HashMap<String, Series>,
    /// What was said of what went wrong.
    said: Option<String>,
}

impl Sampler {
    /// How long it takes until the next sample is due; `None`: none will be.
    pub fn wait(&self, config: &Config) -> Option<Duration> {
        let interval = interval_of(config)?;
        Some(self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())).min(interval))
    }

    /// Samples, if that is due.
    pub fn look(&mut self, config: &Config) {
        let Some(interval) = interval_of(config) else {
            // It was switched off: what was sampled so far is kept.
            if self.next.take().is_some() {
                let all: Vec<Series> = self.series.drain().map(|(_, series)| series).collect();
                all.iter().for_each(|series| finish(config, series));
            }
            return;
        };
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let is_first = self.next.is_none();
        // After a long pause nothing is made up for.
        self.next = Some(self.next.map_or(now, |next| next + interval).max(now + interval / 2));
        let done = self.sample(config, is_first);
        if let Err(error) = &done
            && self.said.as_ref() != Some(error)
        {
            log::error!("what steps use is not sampled: {error}");
        }
        self.said = done.err();
    }

    fn sample(&mut self, config: &Config, is_first: bool) -> Result<(), String> {
        let mut left = std::mem::take(&mut self.series);
        if is_first {
            // Those that another process has begun.
            left.extend(series::all_living(&config.run_dir).into_iter().map(|series| (series.name.clone(), series)));
        }
        let (wanted, mut unseen) = (WantedSteps::default(), Vec::new());
        let recorded = Recorded::read(&config.run_dir, &wanted, &mut unseen);
        // An idle node costs next to nothing.
        if recorded.is_empty() && left.is_empty() {
            return Ok(());
        }
        let (host, _) = Host::read_what_there_is(config).map_err(|error| error.to_string())?;
        let (steps, _) = find(&host, ALL, &recorded, &wanted);
        let mut problem = (steps.len() > MOST_STEPS).then(|| format!("more than {MOST_STEPS} steps live"));
        for step in steps.iter().take(MOST_STEPS) {
            let Some(new) = begun(step) else { continue };
            let before = left.remove(&new.name);
            let mut series = match before {
                Some(before) if before.is_of(&new.job, &new.step, new.run, &new.started) => before,
                Some(another) => {
                    finish(config, &another);
                    new
                }
                None => new,
            };
            series.add(point(step));
            if series.skipped == 0 {
                let failed = series::write(&config.run_dir, &series).err();
                problem = failed.map(|error| error.to_string()).or(problem);
            }
            self.series.insert(series.name.clone(), series);
        }
        left.values().for_each(|ended| finish(config, ended));
        problem.map_or(Ok(()), Err)
    }
}

fn interval_of(config: &Config) -> Option<Duration> {
    config.sample_interval.filter(|_| config.mode != Mode::Off)
}

/// The series of a step that has none yet.
fn begun(step: &LivingStep<'_>) -> Option<Series> {
    let row = described(step);
    Some(Series {
        name: row.name,
        job: row.job,
        step: row.step,
        run: row.run.unwrap_or(0).into(),
        uid: row.uid,
        started: utc(row.started?),
        ..Series::default()
    })
}

fn point(step: &LivingStep<'_>) -> Point {
    let age = described(step).uptime.unwrap_or_default();
    let current = step.current();
    Point::of(age.as_secs_f64(), current.memory, current.processes, &step.usage())
}

/// A step has ended: its series goes into the log, if there is one.
fn finish(config: &Config, series: &Series) {
    if let Some(usage_log) = UsageLog::of(config).filter(|_| series.points.len() >= LEAST_POINTS) {
        usage_log.at(&series::log_of(&usage_log)).add(&series.json().to_string());
    }
    series::remove(&config.run_dir, series);
}
