// SPDX-License-Identifier: GPL-2.0-or-later
//! One condition of one step: when to look at it, and what its user is told.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::config::{ToldAt, Watched};
use jobfence::doors::run;
use jobfence::fence::living::LivingStep;
use nix::sys::signal::Signal;

use super::crossing::{Crossing, StepLook, UseLevel};
use super::pace;
use super::sentence::sentence;
use super::source::WatchedUse;
use super::word::Announcement;
use crate::table::printable;

/// Slurm's names of the steps of a shell, which starts the steps with tasks: of the batch script, and of `salloc`.
const SHELLS: [&str; 2] = ["batch", "interactive"];
/// Slurm's name of the step without tasks.
pub const EXTERN: &str = "extern";

/// One condition of one step.
pub struct ArmedStep {
    pub job: String,
    pub step: String,
    pub uid: u32,
    /// Whether no batch step is beside it: its fence is one of `jobfence open` or `jobfence run`.
    has_no_shell: bool,
    pub condition: ToldAt,
    pub source: WatchedUse,
    crossing: Crossing,
    /// When to look at the step. `None`: when the kernel tells.
    pub next: Option<Instant>,
    /// When the last look was.
    pub looked: Option<Instant>,
    /// Whether its user was to be told after the last look, and not those of other steps.
    was_over: bool,
}

impl ArmedStep {
    /// A condition of a live step. `None`: its user is not told, or this kernel does not count what is watched.
    pub fn from_living(step: &LivingStep<'_>, condition: ToldAt) -> Option<Self> {
        Some(Self {
            job: step.job.clone(),
            step: step.step.clone(),
            uid: step.uid.filter(|uid| *uid != 0)?,
            has_no_shell: step.job.starts_with(run::JOB)
                || step.record.as_ref().is_some_and(|record| record.shared.is_some()),
            condition,
            source: WatchedUse::from_step(step, condition.watched)?,
            crossing: Crossing::default(),
            next: Some(Instant::now()),
            looked: None,
            was_over: false,
        })
    }

    /// Continues with a step that was found again. The site may have changed what holds for it, and its limits may have changed. Returns a
    /// file that is to be closed.
    pub fn take_over(&mut self, condition: ToldAt) -> Option<OwnedFd> {
        self.condition = condition;
        self.next = Some(self.next.map_or_else(Instant::now, |next| next.min(Instant::now())));
        self.source.take_trigger(Some(condition.share))
    }

    /// Puts the look off: this time the step could not be looked at.
    pub fn look_later(&mut self, begin: Instant) {
        self.next = Some(pace::together(begin, Instant::now(), pace::COARSE));
    }

    /// What follows from a look. `is_heard`: whether its user would be told. `begin`: the moment that whole seconds are counted from.
    pub fn follow(&mut self, look: &StepLook, is_heard: bool, begin: Instant) -> Option<UseLevel> {
        let now = Instant::now();
        self.looked = Some(now);
        let is_coarse = self.source.is_coarse();
        let next = if is_coarse { pace::together(begin, now, look.pause) } else { now + look.pause };
        self.next = (!look.is_told).then_some(next);
        is_heard.then(|| self.crossing.look(&look.levels, self.condition.share, now))?
    }

    /// Sets the next look, since the kernel has told. The kernel tells at each crossing in both directions, and a program can cross as
    /// often as it likes. `rested`: until when other work comes first.
    pub fn hear(&mut self, now: Instant, begin: Instant, rested: Instant) {
        self.source.hear();
        let next = match self.looked {
            _ if self.source.is_coarse() => pace::together(begin, now, Duration::ZERO),
            looked => looked.map_or(now, |looked| now.max(looked + pace::SHORTEST)),
        };
        self.next = Some(next.max(rested));
    }

    /// Whether its user is told about other steps instead, if the job has steps with tasks.
    pub fn is_told_by_others(&self) -> bool {
        is_left_to_others(&self.step, self.condition.watched) && self.signals().is_none()
    }

    /// Whether it is looked at again after a search, before its user would be told: what the job has may be that of a step that no search
    /// has found yet, and that one is told instead. Each crossing waits once. `search`: when the search is.
    pub fn waits_for_search(&mut self, would_be_told: bool, search: Instant) -> bool {
        let is_first = would_be_told && !self.was_over;
        self.was_over = would_be_told;
        let directory = self.source.directory().filter(|_| is_first);
        let waits = directory.is_some_and(|(directory, _)| has_tasks_beside(directory));
        if waits {
            self.next = Some(search);
        }
        waits
    }

    /// Which signal its processes get.
    pub fn signals(&self) -> Option<Signal> {
        let is_meant = is_meant(&self.step, self.has_no_shell, self.condition.to_batch_shell);
        self.condition.signal.filter(|_| is_meant).and_then(|signal| Signal::try_from(signal).ok())
    }

    pub fn is_of_shell(&self) -> bool {
        SHELLS.contains(&self.step.as_str())
    }

    pub fn name(&self) -> String {
        format!("job {} step {}", printable(&self.job), printable(&self.step))
    }

    pub fn word(&self, level: UseLevel) -> Announcement {
        let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let signal = self.signals();
        let (directory, inode) = self.source.directory().cloned().unwrap_or_default();
        Announcement {
            uid: self.uid,
            directory,
            inode,
            sentence: sentence(&self.name(), &node, level, self.condition, signal),
            signal,
            to_first_alone: self.condition.to_batch_shell,
        }
    }
}

/// Whether the steps with tasks are told instead of the shell that started them: the limits are the job's. Pressure is each step's own.
fn is_left_to_others(step: &str, watched: Watched) -> bool {
    SHELLS.contains(&step) && !watched.is_pressure()
}

/// Whether a directory of a step with tasks is beside that of the shell.
fn has_tasks_beside(shell: &Path) -> bool {
    let entries = shell.parent().and_then(|job| std::fs::read_dir(job).ok());
    let mut names = entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|name| name.strip_prefix("step_").is_some_and(|step| !SHELLS.contains(&step) && step != EXTERN))
}

/// Whether a step's processes get the signal: under Slurm either the shell or the tasks.
fn is_meant(step: &str, has_no_shell: bool, to_shell: bool) -> bool {
    has_no_shell || SHELLS.contains(&step) == to_shell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_itself_waits_for_is_said_to_it() {
        assert!(is_left_to_others("batch", Watched::Memory) && is_left_to_others("interactive", Watched::Throttled));
        assert!(!is_left_to_others("0", Watched::Memory) && !is_left_to_others("batch", Watched::IoPressure));
    }

    #[test]
    fn a_step_that_no_search_has_found_is_beside_its_shell() {
        let job = tempfile::tempdir().unwrap();
        let add = |step: &str| std::fs::create_dir(job.path().join(step)).unwrap();
        let is_beside = || has_tasks_beside(&job.path().join("step_batch"));
        ["step_batch", "step_extern", "step_interactive", "other"].iter().for_each(|step| add(step));
        assert!(!is_beside());
        add("step_0");
        assert!(is_beside());
        assert!(!has_tasks_beside(Path::new("/gone/step_batch")));
    }

    #[test]
    fn a_shell_gets_the_signal_if_that_is_asked_for_and_tasks_otherwise() {
        let meant = |to_shell| ["batch", "interactive", "0", "17"].map(|step| is_meant(step, false, to_shell));
        assert_eq!(meant(false), [false, false, true, true]);
        assert_eq!(meant(true), [true, true, false, false]);
        assert!(is_meant("0", true, true) && is_meant("0", true, false), "other schedulers have no steps");
    }
}
