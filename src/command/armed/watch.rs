// SPDX-License-Identifier: GPL-2.0-or-later
//! The steps of this node with `SignalAt`, between the other work of `jobfence hold`. Without such a step there is no wake-up.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::bytes::mebibytes;
use jobfence::config::{Config, Mode, SignalAt};
use jobfence::fence::living::{LivingStep, Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::schedulers::ALL;
use nix::sys::signal::Signal;

use super::crossing::{Crossing, LONGEST, MemoryUse, SHORTEST, pause};
use super::memory::{MemoryLook, StepMemory};
use super::speakers::Speakers;
use super::word::Announcement;
use crate::living::user_name;
use crate::table::printable;

/// When to look for new steps after one has begun: a scheduler may make its directories later.
const SEARCHES: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(8)];

/// The time between two searches: each reads all records.
const BETWEEN: Duration = Duration::from_secs(1);

/// After looks at many steps, so many times as long as they took is for other work.
const REST: u32 = 4;

/// The most steps that are watched, and the most of them of which the kernel tells, each with a descriptor: systemd gives a service 1024.
const MOST: usize = 4000;
const MOST_NOTICED: usize = 700;

/// Slurm's names of the steps of a shell, which starts the steps with tasks: of the batch script, and of `salloc`.
const SHELLS: [&str; 2] = ["batch", "interactive"];

/// Its name of the step without tasks.
const EXTERN: &str = "extern";

/// All steps with `SignalAt`.
#[derive(Default)]
pub struct ArmedWatch {
    /// By the number and the path of their directories.
    steps: BTreeMap<(PathBuf, u64), ArmedStep>,
    /// When to look for new ones.
    searches: Vec<Instant>,
    /// When that was done last.
    searched: Option<Instant>,
    /// The processes that speak now.
    speakers: Speakers,
}

struct ArmedStep {
    job: String,
    step: String,
    uid: u32,
    /// Whether its fence is one of `jobfence open`: its scheduler has no batch step beside it.
    is_opened: bool,
    signal_at: SignalAt,
    memory: StepMemory,
    crossing: Crossing,
    /// When to look at it. `None`: when the kernel tells.
    next: Option<Instant>,
    /// When that was done last.
    looked: Option<Instant>,
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

    /// What becomes readable when the kernel tells of a step that is not looked at otherwise.
    pub fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.steps.values().filter(|step| step.next.is_none()).filter_map(|step| step.memory.event())
    }

    /// The kernel has told, of these of the steps in `events`.
    pub fn hear(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let waiting = self.steps.values_mut().filter(|step| step.next.is_none() && step.memory.event().is_some());
        for (step, _) in waiting.zip(ready).filter(|(_, is_ready)| **is_ready) {
            step.memory.hear();
            // It tells of each crossing in both directions, and a program can cross as often as it likes.
            step.next = Some(step.looked.map_or(now, |looked| now.max(looked + SHORTEST)));
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
        let mut noticed = self.events().count();
        let due: Vec<_> = self
            .steps
            .iter()
            .filter(|(_, step)| step.next.as_ref().is_some_and(is_due))
            .map(|(key, _)| key.clone())
            .collect();
        let with_tasks = if due.is_empty() { BTreeSet::new() } else { self.jobs_with_tasks() };
        for key in &due {
            let Some(step) = self.steps.get_mut(key) else { continue };
            let Some(look) = step.memory.look(step.signal_at.share, noticed < MOST_NOTICED) else {
                self.steps.remove(key);
                continue;
            };
            noticed += usize::from(look.is_told);
            // A batch script whose steps are told reads it only if it gets the signal.
            let is_told_by_others = is_shell(&step.step) && with_tasks.contains(&(step.job.clone(), step.uid));
            if let Some(level) = step.follow(&look, !is_told_by_others || step.signals().is_some()) {
                let (word, name) = (step.word(level), step.name());
                self.speak(word, name);
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
        let tasks = self.steps.values().filter(|step| !is_shell(&step.step));
        tasks.map(|step| (step.job.clone(), step.uid)).collect()
    }

    fn search(&mut self, config: &Config) {
        let Ok((host, _)) = Host::read_what_there_is(config) else { return };
        let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut Vec::new());
        let (steps, unseen) = find(&host, ALL, &recorded, &WantedSteps::default());
        let mut found = BTreeSet::new();
        for step in steps.iter().filter(|step| step.step != EXTERN) {
            let Some(armed) = ArmedStep::of_living(step) else { continue };
            let Some(key) = armed.memory.directory().cloned() else { continue };
            found.insert(key.clone());
            if let Some(known) = self.steps.get_mut(&key) {
                known.take_over(armed.signal_at);
            } else if self.steps.len() < MOST {
                self.steps.insert(key, armed);
            }
        }
        // The kernel does not tell of the end of a step whose job goes on.
        if unseen.is_empty() {
            self.steps.retain(|key, _| found.contains(key));
        }
    }

    fn speak(&mut self, word: Announcement, name: String) {
        let signal = word.signal.map_or_else(String::new, |signal| format!("; it gets {signal}"));
        log::info!("{name} of {}: its memory comes near its limit (SignalAt){signal}", user_name(word.uid));
        self.speakers.add(word, name);
    }
}

impl ArmedStep {
    /// `None`: it is not to be told.
    fn of_living(step: &LivingStep<'_>) -> Option<Self> {
        let signal_at = step.allocated().signal_at?;
        Some(Self {
            job: step.job.clone(),
            step: step.step.clone(),
            uid: step.uid.filter(|uid| *uid != 0)?,
            is_opened: step.record.as_ref().is_some_and(|record| record.shared.is_some()),
            signal_at,
            memory: StepMemory::of_step(step)?,
            crossing: Crossing::default(),
            next: Some(Instant::now()),
            looked: None,
        })
    }

    /// It was found again. The site may have changed what holds for it, and its limits may have changed, too.
    fn take_over(&mut self, signal_at: SignalAt) {
        self.signal_at = signal_at;
        self.next = Some(self.next.map_or_else(Instant::now, |next| next.min(Instant::now())));
    }

    /// What follows from a look. `is_heard`: whether its user would be told.
    fn follow(&mut self, look: &MemoryLook, is_heard: bool) -> Option<MemoryUse> {
        let (now, share) = (Instant::now(), self.signal_at.share);
        self.looked = Some(now);
        self.next = (!look.is_told).then(|| now + pause(&look.levels, share).min(LONGEST));
        is_heard.then(|| self.crossing.look(&look.levels, share, now))?
    }

    /// Which signal its processes get.
    fn signals(&self) -> Option<Signal> {
        let is_meant = is_meant(&self.step, self.is_opened, self.signal_at.to_batch_shell);
        self.signal_at.signal.filter(|_| is_meant).and_then(|signal| Signal::try_from(signal).ok())
    }

    fn name(&self) -> String {
        format!("job {} step {}", printable(&self.job), printable(&self.step))
    }

    fn word(&self, level: MemoryUse) -> Announcement {
        let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let signal = self.signals();
        let (directory, inode) = self.memory.directory().cloned().unwrap_or_default();
        Announcement {
            uid: self.uid,
            directory,
            inode,
            sentence: sentence(&self.name(), &node, level, self.signal_at, signal),
            signal,
            to_first_alone: self.signal_at.to_batch_shell,
        }
    }
}

fn is_shell(step: &str) -> bool {
    SHELLS.contains(&step)
}

/// Whether a step's processes get the signal: under Slurm either the shell or the tasks.
fn is_meant(step: &str, is_opened: bool, to_shell: bool) -> bool {
    is_opened || is_shell(step) == to_shell
}

fn sentence(name: &str, node: &str, level: MemoryUse, signal_at: SignalAt, signal: Option<Signal>) -> String {
    let (used, limit) = (mebibytes(level.used), mebibytes(level.limit));
    let then = signal.map_or_else(String::new, |signal| format!(" It gets {signal} now."));
    format!(
        "jobfence: {name} uses {used} of {limit} of memory on {}, more than {} of its limit. At the limit the kernel kills it.{then}",
        printable(node),
        signal_at.share
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_the_figures_and_says_what_follows() {
        let level = MemoryUse { used: 181 << 20, limit: 200 << 20 };
        let said = |text: &str, signal| sentence("job 7 step 0", "n1", level, SignalAt::parse(text).unwrap(), signal);
        let first = "jobfence: job 7 step 0 uses 181.0 MiB of 200.0 MiB of memory on n1, more than 90% of its limit. At the limit the \
                     kernel kills it.";
        assert_eq!(said("mem:90%", None), first);
        assert_eq!(said("mem:90%:USR1", Some(Signal::SIGUSR1)), format!("{first} It gets SIGUSR1 now."));
    }

    #[test]
    fn a_shell_gets_the_signal_if_that_is_asked_for_and_tasks_otherwise() {
        let meant = |to_shell| ["batch", "interactive", "0", "17"].map(|step| is_meant(step, false, to_shell));
        assert_eq!(meant(false), [false, false, true, true]);
        assert_eq!(meant(true), [true, true, false, false]);
        assert!(is_meant("0", true, true) && is_meant("0", true, false), "other schedulers have no steps");
    }
}
