// SPDX-License-Identifier: GPL-2.0-or-later
//! The steps of this node with `SignalAt`, between the other work of `jobfence hold`. Without such a step there is no wake-up.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::config::{Config, Mode, SignalAt};
use jobfence::fence::living::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::schedulers::ALL;
use nix::poll::PollFlags;

use super::crossing::UseLevel;
use super::pace::SHORTEST;
use super::sentence::in_short;
use super::speakers::Speakers;
use super::step::ArmedStep;
use crate::living::user_name;

/// When to look for new steps after one has begun: a scheduler may make its directories later.
const SEARCHES: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(8)];

/// The time between two searches: each reads all records.
const BETWEEN: Duration = Duration::from_secs(1);

/// After looks at many steps, so many times as long as they took is for other work.
const REST: u32 = 4;

/// The most conditions that are watched, and the most of one user's steps, so that no user takes the place of others.
const MOST: usize = 8000;
const MOST_OF_USER: usize = 2000;

/// Slurm's name of the step without tasks.
const EXTERN: &str = "extern";

/// All conditions of all steps with `SignalAt`.
pub struct ArmedWatch {
    /// By the path and the number of their directories, and their place in the value.
    steps: BTreeMap<ArmedKey, ArmedStep>,
    /// When to look for new ones.
    searches: Vec<Instant>,
    /// When that was done last.
    searched: Option<Instant>,
    /// The processes that speak now.
    speakers: Speakers,
    /// From when whole seconds are counted.
    begin: Instant,
    /// The most descriptors by which the kernel tells. `None`: none was needed yet.
    most_told: Option<usize>,
}

type ArmedKey = (PathBuf, u64, usize);

impl Default for ArmedWatch {
    fn default() -> Self {
        let (steps, searches, speakers) = Default::default();
        Self { steps, searches, searched: None, speakers, begin: Instant::now(), most_told: None }
    }
}

impl ArmedWatch {
    /// A step with `SignalAt` has begun.
    pub fn ring(&mut self) {
        let begin = self.next_search();
        self.searches = SEARCHES.iter().map(|wait| begin + *wait).collect();
    }

    /// Looks for such steps once, also for those of which nobody told.
    pub fn search_soon(&mut self) {
        self.searches.push(self.next_search());
    }

    fn next_search(&self) -> Instant {
        let now = Instant::now();
        self.searched.map_or(now, |searched| now.max(searched + BETWEEN))
    }

    /// The time until something is to be done. `None`: nothing is.
    pub fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let speaking = self.speakers.are_busy().then_some(SHORTEST);
        let due = self.steps.values().filter_map(|step| step.next).chain(self.searches.iter().copied());
        due.map(|due| due.saturating_duration_since(now)).chain(speaking).min()
    }

    /// What becomes ready when the kernel tells of a step that is not looked at otherwise.
    pub fn events(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.steps.values().filter(|step| step.next.is_none()).flat_map(|step| step.source.events())
    }

    /// The kernel has told, by these of `events`.
    pub fn hear(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut ready = ready.iter();
        for step in self.steps.values_mut().filter(|step| step.next.is_none()) {
            let events = step.source.events().len();
            let has_told = ready.by_ref().take(events).fold(false, |has_told, is_ready| has_told | is_ready);
            if has_told {
                step.hear(now);
            }
        }
    }

    /// Does what is due.
    pub fn look(&mut self, config: &Config) {
        self.speakers.look();
        if config.mode != Mode::Enforce {
            self.steps.clear();
            self.searches.clear();
            return;
        }
        let now = Instant::now();
        let is_due = |due: &Instant| *due <= now;
        if self.searches.iter().any(is_due) {
            self.searches.retain(|due| !is_due(due));
            self.search(config);
            self.searched = Some(Instant::now());
        }
        let due: Vec<_> = self
            .steps
            .iter()
            .filter(|(_, step)| step.next.as_ref().is_some_and(is_due))
            .map(|(key, _)| key.clone())
            .collect();
        if due.is_empty() {
            return;
        }
        let with_tasks = self.jobs_with_tasks();
        let most_told = *self.most_told.get_or_insert_with(super::descriptors::most);
        let mut descriptors: usize = self.steps.values().map(|step| step.source.events().len()).sum();
        for key in &due {
            let Some(step) = self.steps.get_mut(key) else { continue };
            let before = step.source.events().len();
            let Some(look) = step.source.look(step.condition.share, before > 0 || descriptors < most_told) else {
                self.steps.remove(key);
                descriptors -= before;
                continue;
            };
            descriptors = (descriptors + step.source.events().len()).saturating_sub(before);
            // A batch script whose steps are told reads it only if it gets the signal.
            let is_told_by_others = step.is_of_shell() && with_tasks.contains(&(step.job.clone(), step.uid));
            if let Some(level) = step.follow(&look, !is_told_by_others || step.signals().is_some(), self.begin) {
                Self::speak(&mut self.speakers, step, level);
            }
        }
        let rested = Instant::now() + now.elapsed() * REST;
        for key in &due {
            if let Some(next) = self.steps.get_mut(key).and_then(|step| step.next.as_mut()) {
                *next = rested.max(*next);
            }
        }
    }

    /// The jobs with a step beside their shell.
    fn jobs_with_tasks(&self) -> BTreeSet<(String, u32)> {
        let tasks = self.steps.values().filter(|step| !step.is_of_shell());
        tasks.map(|step| (step.job.clone(), step.uid)).collect()
    }

    fn search(&mut self, config: &Config) {
        let Ok((host, _)) = Host::read_what_there_is(config) else { return };
        let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut Vec::new());
        let (steps, unseen) = find(&host, ALL, &recorded, &WantedSteps::default());
        let mut found = BTreeSet::new();
        let mut of_users: BTreeMap<u32, usize> = BTreeMap::new();
        self.steps.values().for_each(|step| *of_users.entry(step.uid).or_default() += 1);
        for step in steps.iter().filter(|step| step.step != EXTERN) {
            let conditions = step.allocated().signal_at.iter().flat_map(SignalAt::conditions).collect::<Vec<_>>();
            for (at, condition) in conditions.into_iter().enumerate() {
                let Some(armed) = ArmedStep::of_living(step, condition) else { continue };
                let Some((path, inode)) = armed.source.directory().cloned() else { continue };
                let (key, of_user) = ((path, inode, at), of_users.entry(armed.uid).or_default());
                found.insert(key.clone());
                let known = self.steps.get_mut(&key);
                if let Some(known) = known.filter(|known| known.condition.watched == condition.watched) {
                    known.take_over(condition);
                } else if self.steps.len() < MOST && *of_user < MOST_OF_USER {
                    *of_user += 1;
                    self.steps.insert(key, armed);
                }
            }
        }
        // The kernel does not tell of the end of a step whose job goes on.
        if unseen.is_empty() {
            self.steps.retain(|key, _| found.contains(key));
        }
    }

    fn speak(speakers: &mut Speakers, step: &ArmedStep, level: UseLevel) {
        let (word, name) = (step.word(level), step.name());
        let signal = word.signal.map_or_else(String::new, |signal| format!("; it gets {signal}"));
        let what = in_short(step.condition.watched);
        log::info!("{name} of {}: {what} (SignalAt){signal}", user_name(word.uid));
        speakers.add(word, name);
    }
}
