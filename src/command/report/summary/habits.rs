// SPDX-License-Identifier: GPL-2.0-or-later
//! What users could ask for in the future, from what runs of one user and job name have used, and whether that would have held.
//!
//! The rule is that of the job's card, for the most that any earlier run used, with a reserve. Each run is first compared with the advice
//! that the runs before it would have given: so the log itself says how many later runs would have broken. The reserve is the smallest of
//! [`RESERVES`] with which that was at most one run in a thousand, of all and of those that the advice is for. Otherwise there is none.

use std::collections::HashMap;
use std::time::Duration;

use jobfence::report::card::advice::{
    cpus_to_ask, is_above, is_held_back, is_little, is_memory_worth_it, is_reached, is_too_short, memory_to_ask,
};

use super::names::NameId;
use super::runs::{JoinedRun, RunOnNode};

/// The most users and job names that are kept; those with the fewest reserved hours go first.
const MOST: usize = 1 << 14;

/// How many runs of a user and job name must have ended well before there is advice.
pub const ENOUGH: u64 = 5;

/// The reserves that are tried, in percent: those of memory, and those of CPUs.
const RESERVES: [[u64; 4]; 2] = [[25, 50, 100, 200], [0, 25, 50, 100]];

/// At most one in this many later runs may break.
const MAY_BREAK: u64 = 1000;

const GIB: f64 = 1_073_741_824.0;

/// The needs of a run. `None`: not known.
struct Need {
    /// The memory on the node that needed most, and the memory that each node was granted.
    memory: Option<(u64, u64)>,
    /// CPUs that were busy on average, and CPUs that were granted, in thousandths.
    cpus: Option<(u64, u64)>,
    /// Whether the run is a basis for advice on memory, and on CPUs.
    is_basis: [bool; 2],
    /// Whether the run tests the advice: a run that failed anyway cannot be broken by it.
    is_test: bool,
    wall: f64,
    node_hours: f64,
}

/// The request that grants as much as was needed: the site may limit a job to less than its request, as with CPUQuotaPercent.
fn in_request(needed: u64, granted: u64, limit: u64) -> u64 {
    if limit == 0 || limit >= granted {
        return needed;
    }
    u64::try_from((u128::from(needed) * u128::from(granted)).div_ceil(u128::from(limit))).unwrap_or(u64::MAX)
}

impl Need {
    fn new(run: &JoinedRun) -> Self {
        let parts = || run.parts.iter();
        let wall = run.wall();
        let is_success = run.is_success();
        let was_stopped = parts().any(|part| part.was_stopped || part.oom_kills.is_some_and(|kills| kills > 0));
        let is_long = wall.is_some_and(|wall| !is_too_short(Duration::from_micros(wall)));
        let could_have_less = is_success == Some(true) && !was_stopped && is_long;
        let peak = parts().map(|part| part.memory_peak).collect::<Option<Vec<_>>>();
        let granted = parts().map(RunOnNode::memory).collect::<Option<Vec<_>>>();
        let mut has_all_memory = Some(true);
        for part in parts() {
            has_all_memory = match (has_all_memory, part.has_all_memory) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (one, other) => one.and(other),
            };
        }
        let memory = peak.and_then(|peak| peak.into_iter().max()).zip(granted.and_then(|all| all.into_iter().max()));
        let memory = memory.map(|(peak, granted)| {
            let limit = parts().filter_map(|part| part.memory_limit).min().unwrap_or(granted);
            // A run whose memory was kept down may have needed more. So it counts as one that needed all of its memory.
            let is_all = has_all_memory == Some(false) || is_reached(peak, limit);
            (if is_all { peak.max(granted) } else { in_request(peak, granted, limit) }, granted)
        });
        let cpu = parts().map(|part| part.cpu).sum::<Option<u64>>();
        let cpus = parts().map(RunOnNode::cpus).sum::<Option<u64>>();
        let periods = parts().map(|part| part.periods.zip(part.throttled_periods));
        let was_held_back = periods.flatten().any(|(periods, throttled)| is_held_back(throttled, periods));
        let busy = cpu.zip(wall.filter(|wall| *wall > 0)).map(|(cpu, wall)| u128::from(cpu) * 1000 / u128::from(wall));
        let busy = busy.map(|busy| u64::try_from(busy).unwrap_or(u64::MAX));
        let cpus = busy.zip(cpus).map(|(busy, granted)| {
            let limit = parts().map(|part| part.cpus_limit.or(part.cpus())).sum::<Option<u64>>().unwrap_or(granted);
            (if was_held_back { busy.max(granted) } else { in_request(busy, granted, limit) }, granted)
        });
        let hours = |wall: u64| wall as f64 / 3.6e9;
        Self {
            memory,
            // How busy a short run was says little about the next one.
            cpus: cpus.filter(|_| is_long),
            is_basis: [could_have_less && has_all_memory.is_some(), could_have_less],
            is_test: is_success != Some(false),
            wall: wall.map_or(0.0, hours),
            node_hours: parts().filter_map(RunOnNode::wall).map(hours).sum(),
        }
    }
}

/// What is known of one resource of a habit.
#[derive(Debug, Clone, Default)]
struct Resource {
    /// How many runs the advice is based on.
    basis: u64,
    /// The most that a run needed.
    most: u64,
    /// What the last run was granted.
    granted: u64,
    /// What the runs reserved, in GiB-hours or CPU-hours.
    reserved: f64,
    /// How long the runs lasted, in hours of each node, or of the job.
    hours: f64,
    /// The later runs that would have been given less, and those that would have broken, for each reserve.
    tried: [(u32, u32); 4],
}

impl Resource {
    /// Whether this reserve has held for these runs alone, and not only for the runs of all users together.
    fn has_held(&self, reserve: usize) -> bool {
        self.tried.get(reserve).is_some_and(|(runs, broken)| u64::from(*broken) * MAY_BREAK <= u64::from(*runs))
    }
}

/// The runs of one user and job name.
#[derive(Debug, Clone)]
struct Habit {
    key: NameId,
    user: NameId,
    partition: NameId,
    name: Option<Box<str>>,
    runs: u64,
    of: [Resource; 2],
}

/// How advice with one reserve would have held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldHours {
    pub reserve: u64,
    /// The later runs that it would have given less.
    pub runs: u64,
    pub broken: u64,
}

impl HeldHours {
    fn is_good(&self) -> bool {
        self.runs > 0 && self.broken.saturating_mul(MAY_BREAK) <= self.runs
    }

    /// The share of the runs that would have broken, in percent.
    pub fn share(&self) -> f64 {
        100.0 * self.broken as f64 / self.runs.max(1) as f64
    }
}

/// What to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskFor {
    /// Bytes on each node, and the bytes that were granted.
    Memory(u64, u64),
    /// CPUs of the whole job, and the CPUs that were granted, in thousandths.
    Cpus(u64, u64),
}

/// Advice for the runs of one user and job name.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    pub key: NameId,
    pub user: NameId,
    pub partition: NameId,
    pub name: Option<Box<str>>,
    pub ask: AskFor,
    /// The least that the advice would have saved, in GiB-hours or CPU-hours.
    pub saved: f64,
    pub runs: u64,
}

/// All habits, and how advice has held.
pub struct Habits {
    all: HashMap<u64, Habit>,
    held: [[HeldHours; 4]; 2],
    /// Whether the log has names of jobs.
    pub has_names: bool,
    /// Whether habits were forgotten because there were too many.
    pub has_dropped: bool,
}

/// What to ask for of a resource. `None`: less would save too little.
fn asked(of: usize, resource: &Resource, reserve: u64) -> Option<u64> {
    if resource.basis < ENOUGH {
        return None;
    }
    if of == 0 {
        memory_to_ask(resource.most, reserve).filter(|less| is_memory_worth_it(resource.granted, *less))
    } else {
        let busy = resource.most.saturating_mul(100 + reserve) / 100;
        let less = cpus_to_ask(busy);
        (less.saturating_mul(1000) < resource.granted && is_little(resource.most, resource.granted)).then_some(less)
    }
}

impl Habits {
    pub fn new() -> Self {
        let held = RESERVES.map(|reserves| reserves.map(|reserve| HeldHours { reserve, ..HeldHours::default() }));
        Self { all: HashMap::new(), held, has_names: false, has_dropped: false }
    }

    pub fn add(&mut self, run: &JoinedRun) {
        let need = Need::new(run);
        self.has_names |= run.name.is_some();
        if self.all.len() >= MOST && !self.all.contains_key(&run.alike) {
            self.forget();
        }
        let habit = self.all.entry(run.alike).or_insert_with(|| Habit {
            key: run.key,
            user: run.user,
            partition: run.partition,
            name: run.name.clone(),
            runs: 0,
            of: Default::default(),
        });
        habit.key = run.key;
        habit.partition = run.partition;
        habit.runs += 1;
        let hours = [need.node_hours, need.wall];
        for (of, needed) in [need.memory, need.cpus].into_iter().enumerate() {
            let (Some((needed, granted)), Some(resource), Some(held)) =
                (needed, habit.of.get_mut(of), self.held.get_mut(of))
            else {
                continue;
            };
            let is_more = |less: u64| if of == 0 { less < granted } else { less.saturating_mul(1000) < granted };
            let is_too_little = |less: u64| if of == 0 { needed > less } else { is_above(needed, less) };
            for (at, one) in held.iter_mut().enumerate().filter(|_| need.is_test) {
                if let Some(less) = asked(of, resource, one.reserve).filter(|less| is_more(*less)) {
                    let is_broken = is_too_little(less);
                    one.runs += 1;
                    one.broken += u64::from(is_broken);
                    if let Some((runs, broken)) = resource.tried.get_mut(at) {
                        *runs = runs.saturating_add(1);
                        *broken = broken.saturating_add(u32::from(is_broken));
                    }
                }
            }
            let (unit, hours) = (if of == 0 { GIB } else { 1000.0 }, hours.get(of).copied().unwrap_or(0.0));
            resource.basis += u64::from(need.is_basis.get(of).copied().unwrap_or(false));
            resource.most = resource.most.max(needed);
            resource.granted = granted;
            resource.reserved += granted as f64 / unit * hours;
            resource.hours += hours;
        }
    }

    /// Forgets the habits that matter least, so that a log with a new name for each job cannot fill the memory.
    fn forget(&mut self) {
        self.has_dropped = true;
        let weight = |habit: &Habit| habit.of.iter().map(|of| of.reserved).sum::<f64>();
        let mut all: Vec<f64> = self.all.values().map(weight).collect();
        let half = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable_by(half, f64::total_cmp);
        let median = *median;
        self.all.retain(|_, habit| weight(habit) > median);
    }

    /// How advice on memory, and on CPUs, has held. `None`: there was no such advice.
    pub fn held(&self) -> [Option<HeldHours>; 2] {
        self.held.each_ref().map(|held| held.iter().copied().find(HeldHours::is_good))
    }

    /// How the largest reserve has held, if even that was too small.
    pub fn refuted(&self) -> [Option<HeldHours>; 2] {
        self.held
            .each_ref()
            .map(|held| held.last().copied().filter(|last| last.runs > 0 && !held.iter().any(HeldHours::is_good)))
    }

    /// The advice on memory, and that on CPUs. What would have saved most comes first.
    pub fn advice(&self) -> [Vec<Piece>; 2] {
        let mut all: [Vec<Piece>; 2] = Default::default();
        for (of, (pieces, held)) in all.iter_mut().zip(self.held()).enumerate() {
            let Some(held) = held else { continue };
            let piece = |habit: &Habit| {
                let resource = habit.of.get(of)?;
                let reserve = RESERVES.get(of)?.iter().position(|reserve| *reserve == held.reserve)?;
                let less = asked(of, resource, held.reserve).filter(|_| resource.has_held(reserve))?;
                let unit = if of == 0 { less as f64 / GIB } else { less as f64 };
                let saved = resource.reserved - unit * resource.hours;
                let ask =
                    if of == 0 { AskFor::Memory(less, resource.granted) } else { AskFor::Cpus(less, resource.granted) };
                let Habit { key, user, partition, name, runs, .. } = habit.clone();
                (saved > 0.0).then_some(Piece { key, user, partition, name, ask, saved, runs })
            };
            pieces.extend(self.all.values().filter_map(piece));
            pieces.sort_by(|one, other| other.saved.total_cmp(&one.saved).then_with(|| one.user.cmp(&other.user)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Line;
    use super::super::names::Names;
    use super::super::runs::{By, JoinedRuns, tests::line};
    use super::*;

    /// The habits after runs of one job name, each of an hour. `runs`: peaks in MiB with 4 GiB granted, and busy CPUs with 8 granted.
    fn habits(runs: &[(u64, f64)]) -> Habits {
        let (mut names, mut habits, mut open) = (Names::default(), Habits::new(), JoinedRuns::new());
        for (at, (peak, busy)) in runs.iter().enumerate() {
            let job = at.to_string();
            let line = Line {
                job: job.as_str().into(),
                job_name: Some("solve".into()),
                is_success: Some(true),
                cpus_granted: Some(8000),
                cpu: Some((busy * 3.6e9) as u64),
                memory_granted: Some(4 << 30),
                memory_limit: Some(4 << 30),
                memory_peak: Some(peak << 20),
                swap_peak: Some(0),
                kept_down: Some(0),
                oom_kills: Some(0),
                ..line("a/batch 0-3600")
            };
            open.add(&line, line.ended, &mut names, By::User);
            open.end().iter().for_each(|run| habits.add(run));
        }
        habits
    }

    #[test]
    fn advice_is_what_the_card_would_say_of_the_run_that_needed_most() {
        let habits = habits(&[(1000, 1.5), (800, 1.9), (900, 1.2), (700, 1.0), (600, 1.0), (500, 1.0)]);
        let [memory, cpus] = habits.advice();
        // The advice is 25 % more than 1000 MiB, rounded as the card does it, and 2 of 8 CPUs.
        assert_eq!(memory.iter().map(|piece| piece.ask).collect::<Vec<_>>(), [AskFor::Memory(1280 << 20, 4 << 30)]);
        assert_eq!(cpus.iter().map(|piece| piece.ask).collect::<Vec<_>>(), [AskFor::Cpus(2, 8000)]);
        assert!(
            (memory[0].saved - 6.0 * 2.75).abs() < 1e-9 && (cpus[0].saved - 36.0).abs() < 1e-9,
            "{memory:?} {cpus:?}"
        );
        assert_eq!(
            habits.held(),
            [Some(HeldHours { reserve: 25, runs: 1, broken: 0 }), Some(HeldHours { reserve: 0, runs: 1, broken: 0 })]
        );
    }

    #[test]
    fn advice_that_would_have_broken_later_runs_is_not_given() {
        let calm = [(1000, 1.0); 6];
        // A run that needs more is within a larger reserve.
        let more = habits(&[&calm[..], &[(1400, 1.0)]].concat());
        assert_eq!(more.held()[0], Some(HeldHours { reserve: 50, runs: 2, broken: 0 }));
        // A run that needs more is beyond every reserve.
        let beyond = habits(&[&calm[..], &[(4000, 7.0)]].concat());
        assert_eq!(beyond.held(), [None, None]);
        assert_eq!(beyond.advice(), [vec![], vec![]]);
        assert_eq!(beyond.refuted()[1], Some(HeldHours { reserve: 100, runs: 2, broken: 1 }));
        // One in a thousand may break, and not more.
        let mut many = vec![(1000, 1.0); 1004];
        many.push((4000, 1.0));
        let held = habits(&many).held()[0].unwrap();
        assert_eq!((held.reserve, held.runs, held.broken), (25, 1000, 1));
        many.remove(0);
        assert_eq!(habits(&many).held()[0], None);
    }

    #[test]
    fn advice_is_for_those_of_whom_it_has_held() {
        // The jobs of one user grow. They are a part in a thousand of all runs, but all runs of that user.
        let (mut names, mut habits, mut open) = (Names::default(), Habits::new(), JoinedRuns::new());
        let mut add = |uid: u64, peak: u64| {
            let line = Line {
                uid: Some(uid),
                is_success: Some(true),
                memory_granted: Some(64 << 30),
                memory_limit: Some(64 << 30),
                memory_peak: Some(peak << 30),
                swap_peak: Some(0),
                kept_down: Some(0),
                oom_kills: Some(0),
                ..line("a/batch 0-3600")
            };
            open.add(&line, line.ended, &mut names, By::User);
            open.end().iter().for_each(|run| habits.add(run));
        };
        (0..4000).for_each(|_| add(1, 4));
        [1, 1, 1, 1, 1, 10, 10, 10, 40, 10].into_iter().for_each(|peak| add(2, peak));
        let [memory, _] = habits.advice();
        assert!(habits.held()[0].is_some_and(|held| held.broken > 0), "{:?}", habits.held());
        assert_eq!(memory.iter().map(|piece| piece.ask).collect::<Vec<_>>(), [AskFor::Memory(5 << 30, 64 << 30)]);
    }

    #[test]
    fn where_less_is_given_than_granted_more_is_asked_for() {
        assert_eq!([in_request(10, 40, 20), in_request(10, 40, 40), in_request(10, 40, 0)], [20, 10, 10]);
        assert_eq!(in_request(u64::MAX, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn too_few_runs_and_runs_that_were_kept_down_are_no_basis() {
        assert_eq!(habits(&[(1000, 1.0); 5]).advice(), [vec![], vec![]]);
        // A run that reached its limit may have needed more.
        let reached = habits(&[&[(4095, 1.0)][..], &[(1000, 1.0); 8]].concat());
        assert_eq!((reached.advice()[0].len(), reached.advice()[1].len()), (0, 1));
    }

    #[test]
    fn not_too_many_are_kept() {
        let mut habits = Habits::new();
        let mut names = Names::default();
        for number in 0..(MOST as u64 + 10) {
            let name = number.to_string();
            let line = Line { job_name: Some(name.as_str().into()), ..line("a/0 0-100") };
            let mut open = JoinedRuns::new();
            open.add(&line, line.ended, &mut names, By::User);
            let mut run = open.end().remove(0);
            run.alike = number;
            habits.add(&run);
        }
        assert!(habits.all.len() <= MOST && habits.has_dropped, "{}", habits.all.len());
    }
}
