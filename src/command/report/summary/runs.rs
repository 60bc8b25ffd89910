// SPDX-License-Identifier: GPL-2.0-or-later
//! Joins the lines of a job: those of its steps, and those of its nodes. The rules are those of [`crate::report`] for one job, but the log
//! is read once and forwards, and what is kept is bounded.
//!
//! A run is whole when an hour has passed since the end of a step that lasts as long as its job, or else 15 days since its last line. If
//! [`MOST`] runs are open, those whose last line is the oldest are taken to be whole.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use jobfence::schedulers::jobs_step;

use super::line::Line;
use super::names::{NameId, Names};

/// The most runs that are kept open.
pub const MOST: usize = 1 << 15;

/// How long after the end of its batch or extern step a run may get lines of other nodes, in microseconds.
pub const SLACK: u64 = 3600 * 1_000_000;

/// How long a step may outlive another one of its run, in microseconds, if no step says that the run is over.
pub const LONGEST: u64 = 15 * 86_400 * 1_000_000;

/// The most steps of a part that are remembered, to know a repeated line.
const STEPS: usize = 512;

/// Under Slurm these steps last as long as their job.
const LAST_AS_LONG: [&str; 3] = ["batch", "extern", "interactive"];

/// What a job used on one node. Units are those of [`Line`].
#[derive(Debug, Default)]
pub struct RunOnNode {
    pub node: NameId,
    pub began: Option<u64>,
    pub ended: u64,
    is_exact: bool,
    longest: u64,
    pub cpus_granted: Option<u64>,
    pub cpus_limit: Option<u64>,
    pub memory_granted: Option<u64>,
    pub memory_limit: Option<u64>,
    pub gpus_granted: Option<u64>,
    pub cpu: Option<u64>,
    /// What system calls have read and written.
    pub moved: Option<(u64, u64)>,
    pub memory_peak: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub oom_kills: Option<u64>,
    pub was_stopped: bool,
    /// Whether the limit certainly did not keep its memory below what it needed. `None`: not known.
    pub has_all_memory: Option<bool>,
    /// Whether a line was read of a step that lasts as long as the job.
    is_over: bool,
    /// Whether the CPU time of a step is missing.
    is_cpu_unknown: bool,
    /// Whether what a step has read and written is missing.
    is_moved_unknown: bool,
    /// The names of the last steps, hashed, and when each ended.
    steps: Vec<(u64, u64)>,
}

impl RunOnNode {
    /// Makes a part from a record. `ended`: when the run ended, and `lasted`: how long it lasted, in microseconds.
    pub fn from_record(node: NameId, ended: u64, lasted: u64) -> Self {
        Self {
            node,
            ended,
            began: Some(ended.saturating_sub(lasted)),
            is_exact: true,
            is_over: true,
            ..Self::default()
        }
    }

    /// How long it lasted, in microseconds.
    pub fn wall(&self) -> Option<u64> {
        let passed = self.ended.checked_sub(self.began?)?;
        // The report of one job does the same: times to the second are less exact than how long a step lasted.
        let is_rough = !self.is_exact && self.longest.saturating_add(1_000_000) > passed;
        Some(if is_rough { self.longest } else { passed })
    }

    /// The CPUs that nobody else could have: those that were granted, or else those that it could use.
    pub fn cpus(&self) -> Option<u64> {
        self.cpus_granted.or(self.cpus_limit)
    }

    /// The memory that nobody else could have, likewise.
    pub fn memory(&self) -> Option<u64> {
        self.memory_granted.or(self.memory_limit)
    }

    fn add(&mut self, line: &Line<'_>, step: u64) {
        let sum = |sum: &mut Option<u64>, more: Option<u64>| {
            *sum = sum.map_or(more, |sum| Some(sum.saturating_add(more.unwrap_or(0))));
        };
        let is_first = self.steps.is_empty();
        self.is_exact = line.is_exact && (is_first || self.is_exact);
        self.began = self.began.into_iter().chain(line.began).min();
        self.ended = self.ended.max(line.ended);
        self.longest = self.longest.max(line.wall.unwrap_or(0));
        self.cpus_granted = self.cpus_granted.max(line.cpus_granted);
        self.cpus_limit = self.cpus_limit.max(line.cpus_limit);
        self.memory_granted = self.memory_granted.max(line.memory_granted);
        self.memory_limit = self.memory_limit.max(line.memory_limit);
        self.gpus_granted = self.gpus_granted.max(line.gpus_granted);
        sum(&mut self.cpu, line.cpu);
        // The extern step only waits, so its CPU time need not be known.
        self.is_cpu_unknown |= line.cpu.is_none() && line.step != "extern";
        if self.is_cpu_unknown {
            self.cpu = None;
        }
        self.moved = match (self.moved, line.moved) {
            (Some(sum), Some(more)) => Some((sum.0.saturating_add(more.0), sum.1.saturating_add(more.1))),
            (one, other) => one.or(other),
        };
        // A scheduler may have its daemon in a step of its own. What that step has read and written need not be known either.
        let is_daemons = line.step == "extern" || jobs_step(&format!("step_{}", line.step)).is_some();
        self.is_moved_unknown |= line.moved.is_none() && !is_daemons;
        if self.is_moved_unknown {
            self.moved = None;
        }
        sum(&mut self.periods, line.periods);
        sum(&mut self.throttled_periods, line.throttled_periods);
        sum(&mut self.oom_kills, line.oom_kills);
        self.memory_peak = self.memory_peak.max(line.memory_peak).max(line.job_memory_peak);
        self.was_stopped |= line.was_stopped;
        let has_all = match (line.swap_peak, line.kept_down) {
            (Some(swap), _) if swap > 0 => Some(false),
            (_, Some(kept_down)) if kept_down > 0 => Some(false),
            (swap, kept_down) => swap.and(kept_down).map(|_| true),
        };
        // A step that was kept down decides for the part. Otherwise a step that is not known makes the part unknown.
        self.has_all_memory = match (self.has_all_memory, has_all) {
            _ if is_first => has_all,
            (Some(false), _) | (_, Some(false)) => Some(false),
            (one, other) => one.and(other),
        };
        self.is_over |= LAST_AS_LONG.contains(&&*line.step);
        if self.steps.len() == STEPS {
            self.steps.remove(0);
        }
        self.steps.push((step, line.ended));
    }

    fn has(&self, step: u64) -> bool {
        self.steps.iter().any(|(known, _)| *known == step)
    }
}

/// What GPUs did, in GPU-hours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuHours {
    /// The hours in which they were busy.
    pub used: f64,
    /// The hours in which their use is known.
    pub measured: f64,
}

/// One run of a job.
#[derive(Debug)]
pub struct JoinedRun {
    /// The name of the group that the summary counts the run for.
    pub key: NameId,
    pub user: NameId,
    /// A hash that is equal for runs that share their advice.
    pub alike: u64,
    /// The job's name, if the log has it.
    pub name: Option<Box<str>>,
    pub partition: NameId,
    /// A hash of the user and the id. Other jobs can have the same one at another time or in another cluster.
    pub job: u64,
    /// What its GPUs did. `None`: not known.
    pub gpu_hours: Option<GpuHours>,
    /// What the run used on each node.
    pub parts: Vec<RunOnNode>,
    /// Whether the script ended well, if its line says so. `None`: there was no script.
    script: Option<Option<bool>>,
    /// When the last of the other steps ended, and whether it ended well. Steps that do not say so are left out.
    last: Option<(u64, bool)>,
}

impl JoinedRun {
    /// Makes a run from a record that has all of it.
    pub fn from_record(
        key: NameId,
        user: NameId,
        alike: u64,
        name: Option<&str>,
        partition: NameId,
        parts: Vec<RunOnNode>,
        is_success: bool,
    ) -> Self {
        let (name, script) = (name.map(shown), Some(Some(is_success)));
        Self { key, user, alike, name, partition, job: 0, gpu_hours: None, parts, script, last: None }
    }

    pub fn ended(&self) -> u64 {
        self.parts.iter().map(|part| part.ended).max().unwrap_or(0)
    }

    /// When its first part began.
    pub fn began(&self) -> u64 {
        self.parts.iter().map(|part| part.began.unwrap_or(part.ended)).min().unwrap_or(0)
    }

    /// How long it lasted on all its nodes.
    pub fn wall(&self) -> Option<u64> {
        match &self.parts[..] {
            [only] => only.wall(),
            all => {
                let began = all.iter().map(|part| part.began).collect::<Option<Vec<_>>>()?.into_iter().min()?;
                self.ended().checked_sub(began)
            }
        }
    }

    /// Whether the run ended well. The script decides, or without a script the last step.
    pub fn is_success(&self) -> Option<bool> {
        self.script.unwrap_or(self.last.map(|(_, is_success)| is_success))
    }

    fn is_over(&self) -> bool {
        self.parts.iter().all(|part| part.is_over)
    }

    fn add(&mut self, line: &Line<'_>, node: NameId, step: u64) {
        let part = match self.parts.iter().position(|part| part.node == node) {
            Some(at) => self.parts.get_mut(at),
            None => {
                self.parts.push(RunOnNode { node, ..RunOnNode::default() });
                self.parts.last_mut()
            }
        };
        if let Some(part) = part {
            part.add(line, step);
        }
        if line.step == SCRIPT {
            self.script = Some(line.is_success);
        } else if let Some(is_success) = line.is_success
            && self.last.is_none_or(|(ended, _)| ended <= line.ended)
        {
            self.last = Some((line.ended, is_success));
        }
    }

    /// What a line of the same job is to this run.
    fn relation(&self, line: &Line<'_>, node: NameId, step: u64) -> Relation {
        let began = line.began.unwrap_or(line.ended);
        if let Some(part) = self.parts.iter().find(|part| part.node == node) {
            if part.steps.contains(&(step, line.ended)) {
                return Relation::Again;
            }
            // If the part has a step of the same name already, or was over before this step began, the step is of another run.
            let is_anothers = part.has(step) || part.is_over && began > part.ended;
            return if is_anothers { Relation::Anothers } else { Relation::Own };
        }
        let is_apart = began > self.ended() || line.ended < self.began();
        let is_anothers = is_apart && self.parts.iter().any(|part| part.is_over || part.has(step));
        if is_anothers { Relation::Anothers } else { Relation::Own }
    }
}

enum Relation {
    Own,
    Anothers,
    /// The line was read before: the log was copied.
    Again,
}

/// The step of a job's script, where scripts are steps.
const SCRIPT: &str = "batch";

fn name_in<'a>(line: &'a Line<'_>) -> Option<&'a str> {
    line.job_name.as_deref().filter(|name| !name.is_empty())
}

fn shown(name: &str) -> Box<str> {
    name.chars().take(64).collect::<String>().into()
}

/// What tells one run from another.
#[derive(PartialEq, Eq, Hash)]
struct RunKey {
    uid: Option<u64>,
    run: u64,
    /// A hash of the id, and of the global id if there is one.
    job: u64,
}

/// The runs whose lines are being read.
pub struct JoinedRuns {
    open: HashMap<RunKey, JoinedRun>,
    hasher: RandomState,
    /// How many runs may be open before the whole ones are looked for.
    patience: usize,
    /// Lines that were read twice.
    pub again: u64,
    /// Runs that were taken to be whole because too many were open, although no step said so.
    pub early: u64,
    whole: Vec<JoinedRun>,
}

impl JoinedRuns {
    pub fn new() -> Self {
        Self { open: HashMap::new(), hasher: RandomState::new(), patience: 1024, again: 0, early: 0, whole: Vec::new() }
    }

    /// The hasher of [`JoinedRun::job`].
    pub fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// Adds a line, and returns the runs that are whole. `sure`: no later line ended before that time.
    pub fn add(&mut self, line: &Line<'_>, sure: u64, names: &mut Names, by: By) -> std::vec::Drain<'_, JoinedRun> {
        let key = RunKey { uid: line.uid, run: line.run, job: self.hasher.hash_one((&line.job, &line.global_job)) };
        let node = names.of(line.node.as_deref());
        let step = self.hasher.hash_one(&*line.step);
        match self.open.get_mut(&key) {
            Some(run) => match run.relation(line, node, step) {
                Relation::Own => {
                    run.add(line, node, step);
                    // A step can have a name of its own, or none. The script has the name of the job.
                    let is_jobs = |run: &JoinedRun| run.name.is_none() || line.step == SCRIPT;
                    if let Some(name) = name_in(line).filter(|_| is_jobs(run)) {
                        run.alike = self.hasher.hash_one((line.uid, name));
                        run.name = Some(shown(name));
                    }
                }
                Relation::Again => self.again += 1,
                Relation::Anothers => {
                    let mut next = self.new_run(line, names, by);
                    next.add(line, node, step);
                    self.whole.extend(self.open.insert(key, next));
                }
            },
            None => {
                let mut run = self.new_run(line, names, by);
                run.add(line, node, step);
                self.open.insert(key, run);
                if self.open.len() > self.patience {
                    self.sweep(sure);
                }
            }
        }
        self.whole.drain(..)
    }

    fn new_run(&self, line: &Line<'_>, names: &mut Names, by: By) -> JoinedRun {
        let uid = line.uid.map(|uid| uid.to_string());
        let user = names.of(line.user.as_deref().or(uid.as_deref()));
        let name = name_in(line);
        let request = (&line.partition, line.cpus_granted, line.memory_granted);
        JoinedRun {
            key: match by {
                By::User => user,
                By::Account => names.of(line.account.as_deref()),
                By::Partition => names.of(line.partition.as_deref()),
                By::Qos => names.of(line.qos.as_deref()),
                By::Node => NameId::default(),
            },
            user,
            alike: match name {
                Some(name) => self.hasher.hash_one((line.uid, name)),
                None => self.hasher.hash_one((line.uid, request)),
            },
            name: name.map(shown),
            partition: names.of(line.partition.as_deref()),
            job: self.hasher.hash_one((line.uid, &*line.job)),
            gpu_hours: None,
            parts: Vec::with_capacity(1),
            script: None,
            last: None,
        }
    }

    /// Closes the runs that are whole. If too many stay open, it closes the oldest, too.
    fn sweep(&mut self, sure: u64) {
        let is_whole = |run: &JoinedRun| {
            let patience = if run.is_over() { SLACK } else { LONGEST };
            run.ended().saturating_add(patience) < sure
        };
        let before = self.whole.len();
        self.whole.extend(self.open.extract_if(|_, run| is_whole(run)).map(|(_, run)| run));
        if self.open.len() > MOST / 4 * 3 {
            let mut ends: Vec<u64> = self.open.values().map(JoinedRun::ended).collect();
            let half = ends.len() / 2;
            let (_, median, _) = ends.select_nth_unstable(half);
            let median = *median;
            let early = &mut self.early;
            self.whole.extend(self.open.extract_if(|_, run| run.ended() <= median).map(|(_, run)| {
                // A run that ended long ago counts as whole, where no step lasts as long as its job.
                *early += u64::from(run.ended().saturating_add(SLACK) >= sure);
                run
            }));
        }
        // The runs are returned in the order in which they ended.
        if let Some(new) = self.whole.get_mut(before..) {
            new.sort_by_key(JoinedRun::ended);
        }
        self.patience = (self.open.len() * 2).clamp(1024, MOST);
    }

    /// The runs that are left at the end of the log.
    pub fn end(&mut self) -> Vec<JoinedRun> {
        let mut all: Vec<JoinedRun> = self.open.drain().map(|(_, run)| run).collect();
        all.sort_by_key(JoinedRun::ended);
        all
    }
}

/// What runs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    Account,
    User,
    Partition,
    Qos,
    Node,
}

impl By {
    pub fn word(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::User => "user",
            Self::Partition => "partition",
            Self::Qos => "QOS",
            Self::Node => "node",
        }
    }

    /// The word for it in the data.
    pub fn member(self) -> &'static str {
        if self == Self::Qos { "qos" } else { self.word() }
    }
}

#[cfg(test)]
pub mod tests {
    use std::borrow::Cow;

    use super::*;

    /// A line `NODE/STEP BEGIN-END` of job 5, in seconds.
    pub fn line(text: &str) -> Line<'_> {
        let (place, times) = text.split_once(' ').unwrap();
        let (node, step) = place.split_once('/').unwrap();
        let (began, ended) = times.split_once('-').unwrap();
        let micros = |text: &str| text.parse::<u64>().unwrap() * 1_000_000;
        Line {
            node: Some(Cow::Borrowed(node)),
            job: "5".into(),
            step: step.into(),
            uid: Some(7),
            began: Some(micros(began)),
            ended: micros(ended),
            is_exact: true,
            cpus_granted: Some(2000),
            cpu: Some(1_000_000),
            ..Line::default()
        }
    }

    /// The runs of these lines: the nodes, each with how many steps it has.
    fn joined(lines: &[&str]) -> (Vec<String>, u64) {
        let (mut names, mut runs, mut all) = (Names::default(), JoinedRuns::new(), Vec::new());
        for text in lines {
            let line = line(text);
            all.extend(runs.add(&line, line.ended, &mut names, By::User));
        }
        all.extend(runs.end());
        let part = |part: &RunOnNode| format!("{}:{}", names.text(part.node).unwrap(), part.steps.len());
        let of = |run: &JoinedRun| run.parts.iter().map(part).collect::<Vec<_>>().join(" ");
        (all.iter().map(of).collect(), runs.again)
    }

    #[test]
    fn the_name_of_a_run_is_that_of_its_script() {
        let (mut names, mut runs) = (Names::default(), JoinedRuns::new());
        let mut name_after = |text, name: Option<&'static str>| {
            let line = Line { job_name: name.map(Cow::Borrowed), ..line(text) };
            assert_eq!(runs.add(&line, line.ended, &mut names, By::User).count(), 0);
            let run = runs.open.values().next().unwrap();
            (run.name.as_deref().map(str::to_owned), run.alike)
        };
        let (none, by_request) = name_after("a/extern 0-80", None);
        let (of_step, by_step) = name_after("a/0 10-90", Some("part"));
        assert_eq!((none.as_deref(), of_step.as_deref()), (None, Some("part")));
        assert_eq!(name_after("a/1 10-91", Some("other")), (of_step, by_step));
        let (of_job, by_job) = name_after("a/batch 0-100", Some("solve"));
        assert_eq!(of_job.as_deref(), Some("solve"));
        assert!(by_job != by_step && by_step != by_request);
    }

    #[test]
    fn a_job_on_several_nodes_is_one() {
        let two = ["a/0 10-90", "b/0 10-90", "a/batch 0-100", "b/extern 0-100", "a/extern 0-101"];
        assert_eq!(joined(&two).0, ["a:3 b:2"]);
        // All lines of one node come before all lines of the other.
        assert_eq!(joined(&["a/0 10-90", "a/batch 0-100", "b/0 10-90", "b/extern 0-100"]).0, ["a:2 b:2"]);
        // The number was used again, on another node or on the same one.
        assert_eq!(joined(&["a/batch 0-100", "b/batch 200-300"]).0, ["a:1", "b:1"]);
        assert_eq!(joined(&["a/0 0-100", "b/0 200-300"]).0, ["a:1", "b:1"]);
        assert_eq!(joined(&["a/batch 0-100", "a/batch 200-300"]).0, ["a:1", "a:1"]);
        assert_eq!(joined(&["a/batch 0-100", "a/0 200-300"]).0, ["a:1", "a:1"]);
    }

    #[test]
    fn a_line_that_is_there_twice_counts_once() {
        let (all, again) = joined(&["a/0 10-90", "a/batch 0-100", "a/0 10-90", "a/batch 0-100"]);
        assert_eq!((all, again), (vec!["a:2".to_owned()], 2));
    }

    #[test]
    fn not_too_many_runs_are_open() {
        let (mut names, mut runs) = (Names::default(), JoinedRuns::new());
        let (mut most, mut whole) = (0, 0);
        for number in 0..200_000_u64 {
            let job = number.to_string();
            // A job ends in each second, and its step does not say that the job is over.
            let line = Line { job: job.as_str().into(), ended: number * 1_000_000, ..line("a/0 0-1") };
            whole += runs.add(&line, line.ended, &mut names, By::User).len();
            most = most.max(runs.open.len());
        }
        assert_eq!(whole + runs.end().len(), 200_000);
        assert!(most <= MOST, "{most}");
        assert_eq!(runs.early, 0);
    }

    #[test]
    fn it_lasts_from_its_first_step_to_its_last_one() {
        let (mut names, mut runs) = (Names::default(), JoinedRuns::new());
        for text in ["a/0 10-90", "b/0 20-110", "a/batch 5-100"] {
            let line = line(text);
            assert_eq!(runs.add(&line, line.ended, &mut names, By::User).len(), 0);
        }
        let [run] = &runs.end()[..] else { panic!("not one run") };
        assert_eq!(run.wall(), Some(105_000_000));
        assert_eq!(run.parts.iter().map(|part| part.wall().unwrap() / 1_000_000).collect::<Vec<_>>(), [95, 90]);
        assert_eq!(run.parts[0].cpu, Some(2_000_000));
        assert_eq!(run.is_success(), None);
    }
}
