// SPDX-License-Identifier: GPL-2.0-or-later
//! The steps of this node with `SignalAt`, between the other work of `jobfence hold`. Without such a step there is no wake-up.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::config::{Config, Mode, SignalAt, ToldAt};
use jobfence::fence::living::LivingStep;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::schedulers::ALL;
use nix::poll::PollFlags;

use super::crossing::UseLevel;
use super::descriptors::{self, Told};
use super::directories::{Unseen, own_directory};
use super::pace::{SHORTEST, together};
use super::sentence::in_short;
use super::speakers::Speakers;
use super::step::{ArmedStep, EXTERN};
use crate::living::user_name;
use crate::table::printable;

/// When to look for new steps after one has begun: a scheduler may make its directories later.
const SEARCHES: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(8)];

/// The least time between two searches: a search reads all records.
const BETWEEN: Duration = Duration::from_secs(1);

/// How many times as long as a round of looks other work has the time afterwards.
const REST: u32 = 4;

/// How long one turn looks at anything but memory, and how long it closes files. Between two turns, memory is looked at.
const TURN: Duration = Duration::from_millis(40);

/// The most conditions that are watched, and the most for one user's steps, so that no user takes the place of others.
const MOST: usize = 8000;
const MOST_OF_USER: usize = 2000;

/// All conditions of all steps with `SignalAt`.
pub struct ArmedWatch {
    /// The conditions, each by the path and the number of its step's directories, and by its place in the value.
    steps: BTreeMap<ArmedKey, ArmedStep>,
    /// When to search for new steps.
    searches: Vec<Instant>,
    /// When the last search was.
    searched: Option<Instant>,
    /// The conditions that cannot be seen here. The log has said so.
    not_seen: BTreeSet<ArmedKey>,
    /// The files that told of steps that have ended. They are still to be closed.
    ended: Vec<OwnedFd>,
    /// Until when other work comes before looks: before those at memory, and before all others.
    rested_of_memory: Instant,
    rested: Instant,
    /// Until when the kernel is not listened to, except about memory.
    polled: Instant,
    /// The processes that speak to users now.
    speakers: Speakers,
    /// The moment that whole seconds are counted from.
    begin: Instant,
    /// The most descriptors that the kernel may tell by. `None`: none was needed yet.
    most_told: Option<usize>,
}

type ArmedKey = (PathBuf, u64, usize);

/// Whether the kernel is listened to about this step. `polled`: the moment from which it is, about anything but memory.
fn is_polled(step: &ArmedStep, now: Instant, polled: Instant) -> bool {
    step.next.is_none() && step.source.event().is_some() && (now >= polled || !step.source.is_coarse())
}

impl Default for ArmedWatch {
    fn default() -> Self {
        let (now, (steps, searches, not_seen, ended, speakers)) = (Instant::now(), Default::default());
        let (begin, rested, rested_of_memory, polled) = (now, now, now, now);
        let (searched, most_told) = (None, None);
        Self {
            steps,
            searches,
            searched,
            not_seen,
            ended,
            rested_of_memory,
            rested,
            polled,
            speakers,
            begin,
            most_told,
        }
    }
}

impl ArmedWatch {
    /// Begins to search: a step with `SignalAt` has begun.
    pub fn ring(&mut self) {
        let begin = self.next_search();
        self.searches = SEARCHES.iter().map(|wait| begin + *wait).collect();
    }

    /// Searches once, also for steps whose beginning nobody told.
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
        let at_once = (self.speakers.are_busy() || !self.ended.is_empty()).then_some(SHORTEST);
        let rested = |step: &ArmedStep| Some(step.next?.max(self.rested(step)));
        // These steps are not polled until that moment.
        let polled = self.steps.values().any(|step| step.next.is_none() && step.source.is_coarse());
        let polled = Some(self.polled).filter(|from| polled && *from > now);
        let due = self.steps.values().filter_map(rested).chain(self.searches.iter().copied()).chain(polled);
        due.map(|due| due.saturating_duration_since(now)).chain(at_once).min()
    }

    /// Until when other work comes before looks at this step.
    fn rested(&self, step: &ArmedStep) -> Instant {
        if step.source.is_coarse() { self.rested } else { self.rested_of_memory }
    }

    /// The descriptors that become ready when the kernel tells, for steps without a time for the next look.
    pub fn events(&self, now: Instant) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.steps.values().filter(move |step| is_polled(step, now, self.polled)).filter_map(|step| step.source.event())
    }

    /// Takes what the kernel has told. `ready`: which of the `events` of that moment are ready. However many steps wait, there is one
    /// wake-up a second.
    pub fn hear(&mut self, ready: &[bool], at: Instant) {
        let (now, begin, polled) = (Instant::now(), self.begin, self.polled);
        let all = self.steps.values_mut().filter(|step| is_polled(step, at, polled));
        for (step, _) in all.zip(ready).filter(|(_, is_ready)| **is_ready) {
            let is_coarse = step.source.is_coarse();
            step.hear(now, begin, if is_coarse { self.rested } else { self.rested_of_memory });
            if is_coarse {
                self.polled = together(begin, now, Duration::ZERO);
            }
        }
    }

    /// Does what is due.
    pub fn look(&mut self, config: &Config) {
        self.speakers.look();
        if config.mode == Mode::Enforce {
            self.look_at_steps(config);
        } else {
            let all: Vec<_> = self.steps.keys().cloned().collect();
            all.iter().for_each(|key| self.let_go(key));
            self.searches.clear();
        }
        self.close_some();
    }

    fn look_at_steps(&mut self, config: &Config) {
        let now = Instant::now();
        let is_due = |due: &Instant| *due <= now;
        if self.searches.iter().any(is_due) {
            self.searches.retain(|due| !is_due(due));
            self.search(config);
            self.searched = Some(Instant::now());
        }
        let (memory, others) = (self.due(false), self.due(true));
        if memory.is_empty() && others.is_empty() {
            return;
        }
        let (with_tasks, mut by_kernel) = (self.jobs_with_tasks(), Told::default());
        for step in self.steps.values().filter(|step| step.source.event().is_some()) {
            by_kernel.add(step.uid, step.source.is_coarse());
        }
        let begun = Instant::now();
        memory.iter().for_each(|key| self.look_at(key, &mut by_kernel, &with_tasks));
        self.rested_of_memory = Instant::now() + begun.elapsed() * REST;
        // A turn has a bound. The steps that it does not reach are due at the next turn, and memory is looked at in between.
        let begun = Instant::now();
        others
            .iter()
            .take_while(|_| begun.elapsed() < TURN)
            .for_each(|key| self.look_at(key, &mut by_kernel, &with_tasks));
        if !others.is_empty() {
            self.rested = Instant::now() + begun.elapsed() * REST;
        }
    }

    /// The steps that are due, the one that has waited longest first.
    fn due(&self, is_coarse: bool) -> Vec<ArmedKey> {
        let now = Instant::now();
        let of_kind = self.steps.iter().filter(|(_, step)| step.source.is_coarse() == is_coarse);
        let is_due = |step: &ArmedStep| step.next.filter(|next| (*next).max(self.rested(step)) <= now);
        let mut due: Vec<_> = of_kind.filter_map(|(key, step)| Some((is_due(step)?, key))).collect();
        due.sort();
        due.into_iter().map(|(_, key)| key.clone()).collect()
    }

    fn look_at(&mut self, key: &ArmedKey, by_kernel: &mut Told, with_tasks: &BTreeSet<(String, u32)>) {
        let most = *self.most_told.get_or_insert_with(descriptors::most);
        let search = self.next_search();
        let Some(step) = self.steps.get_mut(key) else { return };
        let (is_told, of_waiting) = (step.source.event().is_some(), step.source.is_coarse());
        let may_be_told = is_told || by_kernel.has_room(step.uid, of_waiting, most);
        let look = match step.source.look(step.condition.share, may_be_told) {
            Ok(look) => look,
            Err(Unseen::ThisTime) => return step.look_later(self.begin),
            Err(Unseen::Ended) => return self.let_go(key),
        };
        if !is_told && step.source.event().is_some() {
            by_kernel.add(step.uid, of_waiting);
        }
        // If its steps are told, a batch script is told only if it gets the signal.
        let is_heard = !step.is_told_by_others() || !with_tasks.contains(&(step.job.clone(), step.uid));
        let is_over = look.levels.iter().any(|level| level.left(step.condition.share) == 0);
        if step.waits_for_search(is_over && is_heard && step.is_told_by_others(), search) {
            return self.searches.push(search);
        }
        if let Some(level) = step.follow(&look, is_heard, self.begin) {
            Self::speak(&mut self.speakers, step, level);
        }
    }

    /// Removes a step. The file that tells of its waiting is closed later, since there may be hundreds.
    fn let_go(&mut self, key: &ArmedKey) {
        self.ended.extend(self.steps.remove(key).and_then(|mut step| step.source.take_trigger(None)));
    }

    /// Closes files for one turn.
    fn close_some(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < TURN
            && let Some(ended) = self.ended.pop()
        {
            drop(ended);
        }
    }

    /// The jobs that have a step beside their shell.
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
                let Some(uid) = step.uid.filter(|uid| *uid != 0) else { continue };
                let Some((path, inode)) = own_directory(step, condition.watched) else {
                    let Some(place) = step.places.first() else { continue };
                    let key = (place.step.clone(), 0, at);
                    found.insert(key.clone());
                    self.say_not_seen(step, condition, key);
                    continue;
                };
                let (key, of_user) = ((path, inode, at), of_users.entry(uid).or_default());
                found.insert(key.clone());
                let known = self.steps.get_mut(&key);
                if let Some(known) = known.filter(|known| known.condition.watched == condition.watched) {
                    self.ended.extend(known.take_over(condition));
                } else if self.steps.len() < MOST && *of_user < MOST_OF_USER {
                    self.let_go(&key);
                    if let Some(armed) = ArmedStep::from_living(step, condition) {
                        *of_user += 1;
                        self.steps.insert(key, armed);
                    } else {
                        self.say_not_seen(step, condition, key);
                    }
                }
            }
        }
        // The kernel does not tell that a step has ended while its job goes on. So the search removes it.
        if unseen.is_empty() {
            let gone: Vec<_> = self.steps.keys().filter(|key| !found.contains(*key)).cloned().collect();
            gone.iter().for_each(|key| self.let_go(key));
            self.not_seen.retain(|key| found.contains(key));
        }
    }

    /// Logs it once, and not for a step that has ended meanwhile.
    fn say_not_seen(&mut self, step: &LivingStep<'_>, condition: ToldAt, key: ArmedKey) {
        let is_there = step.places.iter().all(|place| place.step.exists());
        if is_there && self.not_seen.insert(key) {
            let name = format!("job {} step {}", printable(&step.job), printable(&step.step));
            log::warn!("{name}: its user is not told of {condition}, which this node does not measure");
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
