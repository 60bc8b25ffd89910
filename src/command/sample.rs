// SPDX-License-Identifier: GPL-2.0-or-later
//! `SampleInterval`: `jobfence hold` repeatedly samples what each live step uses.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jobfence::cgroup::usage::Depth;
use jobfence::config::{Config, Loaded, Mode};
use jobfence::fence::living::LivingStep;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::report::account::utc;
use jobfence::report::usage_log::UsageLog;
use jobfence::schedulers::ALL;

use crate::card_notes::{CardNotes, StepOfAJob};
use crate::check;
use crate::energy::{EnergyMeter, StepAtSample};
use crate::gpu::GpuSampler;
use crate::idle::IdleSampler;
use crate::kept;
use crate::living::described;
use crate::network::NetworkKeeper;
use crate::series::{self, Point, Series};

/// The most steps with a series at once: a node has fewer, unless something is wrong.
const MOST_STEPS: usize = 2000;

/// A series with fewer points shows nothing.
const LEAST_POINTS: usize = 2;

/// The series of all live steps.
#[derive(Default)]
pub struct Sampler {
    /// When the next sample is due. `None`: nothing has been sampled yet.
    next: Option<Instant>,
    /// What is known of each step, by its directories.
    series: HashMap<String, Series>,
    /// Whether series that an earlier process began have been read.
    has_taken_over: bool,
    /// The last error that was reported.
    said: Option<String>,
    /// The GPUs of their jobs.
    pub gpus: GpuSampler,
    /// For how long jobs do nothing.
    idle: IdleSampler,
    /// What their cards are to say.
    cards: CardNotes,
    /// The node's energy.
    pub energy: EnergyMeter,
    /// What their jobs send and receive.
    pub network: NetworkKeeper,
}

impl Sampler {
    /// The time until the next sample. `None`: there will be none.
    pub fn wait(&self, config: &Config) -> Option<Duration> {
        let interval = interval_of(config)?;
        let next =
            self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())).min(interval);
        Some(self.energy.wait().map_or(next, |wait| next.min(wait)))
    }

    /// Samples, if due.
    pub fn look(&mut self, config: &Config, loaded: Option<&Loaded>) {
        let interval = interval_of(config);
        let now = Instant::now();
        if let Some(interval) = interval {
            // The site may have set a shorter one.
            self.next = self.next.map(|next| next.min(now + interval));
        }
        if interval.is_some() && self.next.is_some_and(|next| now < next) {
            self.energy.look();
            return;
        }
        // After a long pause no samples are made up for.
        self.next = interval.map(|interval| self.next.map_or(now, |next| next + interval).max(now + interval / 2));
        let done = self.take_over(config).and_then(|()| match interval {
            Some(_) => self.sample(config, loaded),
            None => {
                // Sampling was switched off: what was sampled so far is kept.
                self.series.drain().for_each(|(_, series)| finish(config, &series));
                self.gpus.end(config);
                self.idle.end(config);
                self.energy = EnergyMeter::default();
                Ok(())
            }
        });
        if let Err(error) = &done
            && self.said.as_ref() != Some(error)
        {
            log::error!("cannot sample what steps use: {error}");
        }
        self.said = done.err();
    }

    /// Continues or ends the series of an earlier process.
    fn take_over(&mut self, config: &Config) -> Result<(), String> {
        if !self.has_taken_over {
            let begun = series::all_living(&config.run_dir).map_err(|error| error.to_string())?;
            self.series = begun.into_iter().map(|series| (series.name.clone(), series)).collect();
            self.has_taken_over = true;
        }
        Ok(())
    }

    /// An error leaves the remaining series unchanged.
    fn sample(&mut self, config: &Config, loaded: Option<&Loaded>) -> Result<(), String> {
        let (wanted, mut unseen) = (WantedSteps::default(), Vec::new());
        let recorded = Recorded::read(&config.run_dir, &wanted, &mut unseen);
        let (host, _) = Host::read_what_there_is(config).map_err(|error| error.to_string())?;
        let (mut steps, more) = find(&host, ALL, &recorded, &wanted);
        steps.retain(|step| !check::is_of_trial(step.uid, &step.job));
        let mut problem = (steps.len() > MOST_STEPS).then(|| format!("more than {MOST_STEPS} steps live"));
        let mut points: Vec<(String, Point)> = Vec::new();
        let mut of_jobs = Vec::new();
        for step in steps.iter().take(MOST_STEPS) {
            let Some((mut new, point)) = begun(step) else { continue };
            self.know_again(config, &mut new);
            if let Some(before) = self.series.remove(&new.name) {
                if before.is_of(&new.job, &new.step, new.run, &new.started) {
                    new = before;
                } else {
                    finish(config, &before);
                }
            }
            let key = kept::key(step.node.as_deref(), step.uid, &step.job);
            of_jobs.push(StepOfAJob { step, key, name: new.name.clone() });
            points.push((new.name.clone(), point));
            self.series.insert(new.name.clone(), new);
        }
        let at =
            points.iter().map(|(name, point)| StepAtSample { name, cpu_seconds: point.cpu_seconds, age: point.at });
        let energy = self.energy.divide(&at.collect::<Vec<_>>());
        for (name, point) in points {
            let Some(series) = self.series.get_mut(&name) else { continue };
            series.add(point);
            let energy = energy.get(&name);
            if let Some(energy) = energy {
                series.energy.get_or_insert_default().add(*energy);
            }
            // The kernel does not add that up for the next process.
            if series.skipped == 0 || energy.is_some() {
                let failed = series::write(&config.run_dir, series).err();
                problem = failed.map(|error| error.to_string()).or(problem);
            }
        }
        let living = steps.get(..MOST_STEPS).unwrap_or(&steps);
        self.gpus.look((config, loaded), &host, living);
        self.idle.look((config, loaded), &host, living, &self.gpus);
        self.network.look(config, living);
        self.cards.look(config, &of_jobs, (&energy, &self.series), (&self.gpus, &self.idle, &self.network));
        // A step that was not found may still be alive: its directories say whether it has ended.
        self.series.retain(|_, series| {
            let is_over = series.has_ended();
            if is_over {
                finish(config, series);
            }
            !is_over
        });
        unseen.extend(more);
        let unseen = unseen.first().map(|error| format!("not all steps can be seen: {error}"));
        problem.or(unseen).map_or(Ok(()), Err)
    }
}

impl Sampler {
    /// While a step is being made, or if not all of it can be seen, it has fewer directories: its series must stay the same.
    fn know_again(&mut self, config: &Config, new: &mut Series) {
        if self.series.contains_key(&new.name) {
            return;
        }
        let known = self.series.values().find(|known| known.has_all_of(new) || new.has_all_of(known));
        let Some(mut known) = known.map(|known| known.name.clone()).and_then(|name| self.series.remove(&name)) else {
            return;
        };
        if known.has_all_of(new) {
            new.name.clone_from(&known.name);
        } else {
            series::remove(&config.run_dir, &known);
            known.name.clone_from(&new.name);
        }
        self.series.insert(known.name.clone(), known);
    }
}

fn interval_of(config: &Config) -> Option<Duration> {
    config.sample_interval.filter(|_| config.mode != Mode::Off)
}

/// The series of a new step, and its first point. `None`: its start is not known.
fn begun(step: &LivingStep<'_>) -> Option<(Series, Point)> {
    let row = described(step);
    let current = step.current(Depth::Card);
    let age = row.uptime.unwrap_or_default();
    let point = Point::new(age.as_secs_f64(), &current);
    let series = Series {
        name: row.name,
        job: row.job,
        step: row.step,
        run: row.run.unwrap_or(0).into(),
        uid: row.uid,
        started: utc(row.started?),
        ..Series::default()
    };
    Some((series, point))
}

/// Called for an ended step: writes its series to the log, if there is one.
fn finish(config: &Config, series: &Series) {
    if let Some(usage_log) =
        UsageLog::from_config(config).filter(|_| series.points.len() >= LEAST_POINTS || series.energy.is_some())
    {
        usage_log.at(&series::log_of(&usage_log)).add(&series.json().to_string());
    }
    series::remove(&config.run_dir, series);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_interval_holds_at_once() {
        let of = |seconds| Config { sample_interval: Some(Duration::from_secs(seconds)), ..Config::default() };
        let (now, long) = (Instant::now(), Duration::from_secs(600));
        let mut sampler = Sampler { next: Some(now + long), ..Sampler::default() };
        sampler.look(&of(6000), None);
        assert_eq!(sampler.next, Some(now + long));
        sampler.look(&of(300), None);
        let next = sampler.next.unwrap();
        assert!(next >= now + long / 2 && next < now + long, "{:?}", next - now);
    }
}
