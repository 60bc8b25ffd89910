// SPDX-License-Identifier: GPL-2.0-or-later
//! What came of all the runs of a test, in a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;

use super::trace::{Call, Fault};

/// The columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The task ran, with all that an undisturbed one has.
    Fenced,
    /// It did not, and somebody was told why.
    Refused,
    /// It ran, and the log says without what.
    Hole,
    /// The daemon, or the janitor, was killed.
    Died,
    /// The janitor failed, and said why.
    Failed,
    /// The janitor did its work all the same.
    Reaped,
}

const OUTCOMES: [(Outcome, &str); 6] = [
    (Outcome::Fenced, "fenced"),
    (Outcome::Refused, "refused"),
    (Outcome::Hole, "hole said"),
    (Outcome::Died, "died"),
    (Outcome::Failed, "said so"),
    (Outcome::Reaped, "reaped"),
];

/// What one run came to.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    pub outcome: Outcome,
    /// Something was there afterwards, for the janitor.
    pub left: bool,
    /// The call was not made this time.
    pub missed: bool,
}

#[derive(Default)]
struct Row {
    points: usize,
    outcomes: BTreeMap<Outcome, usize>,
    left: usize,
    missed: usize,
}

/// By phase and by what was done.
#[derive(Default)]
pub struct Table {
    rows: BTreeMap<(u64, &'static str), Row>,
    pub failures: Vec<String>,
    /// The runs that did not meet their call.
    missed: Vec<(Call, String)>,
    /// Which calls runs did meet.
    met: BTreeSet<Call>,
}

impl Table {
    /// How many calls there are in a phase.
    pub fn points(&mut self, phase: u64, kind: &'static str, count: usize) {
        self.rows.entry((phase, kind)).or_default().points = count;
    }

    pub fn add(&mut self, fault: &Fault, kind: &'static str, verdict: Result<Verdict, String>) {
        let row = self.rows.entry((fault.at.phase, kind)).or_default();
        match verdict {
            Ok(verdict) => {
                *row.outcomes.entry(verdict.outcome).or_default() += 1;
                row.left += usize::from(verdict.left);
                if verdict.missed {
                    row.missed += 1;
                    self.missed.push((fault.at.call(), super::name(fault)));
                } else {
                    self.met.insert(fault.at.call());
                }
            }
            Err(failure) => self.failures.push(failure),
        }
    }

    /// Shows it, and fails if anything was not as it must be.
    pub fn conclude(&self) {
        // Not by a macro: the test harness keeps to itself what those print in a test that passes.
        let _ = write!(std::io::stderr(), "{self}");
        assert!(self.failures.is_empty(), "{} runs went wrong:\n{}", self.failures.len(), self.failures.join("\n"));
        // Nothing failed in a run that missed its call, and it was as it must be without: what differs by the machine's speed is how often
        // a call is made again. The call itself has to be met.
        // What 'jobfence check' of somebody else tries meanwhile comes and goes.
        let is_others = |name: &str| name.contains("/slurm_jobfence-check-");
        let of_unmet = self.missed.iter().filter(|(call, name)| !self.met.contains(call) && !is_others(name));
        // By calls: one that was made otherwise in the first run alone has several runs.
        let unmet: BTreeMap<_, &str> = of_unmet.map(|(call, name)| (call, name.as_str())).collect();
        let calls = self.missed.iter().map(|(call, _)| call).chain(&self.met).collect::<BTreeSet<_>>().len();
        // A slice has few calls, and many of those that come again.
        assert!(
            super::is_slice() || unmet.len() * 20 <= calls,
            "{} of {calls} calls were met by none of their runs: what is done differs from run to run\n{}",
            unmet.len(),
            unmet.into_values().collect::<Vec<_>>().join("\n")
        );
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10} {:28} {:>6} {:>6}", "phase", "what was done", "calls", "runs")?;
        for (_, name) in OUTCOMES {
            write!(f, " {name:>9}")?;
        }
        writeln!(f, " {:>9} {:>9} {:>7}", "left none", "janitor", "missed")?;
        for ((phase, kind), row) in &self.rows {
            let runs: usize = row.outcomes.values().sum();
            write!(f, "{:10} {kind:28} {:>6} {runs:>6}", super::phase(*phase), row.points)?;
            for (outcome, _) in OUTCOMES {
                write!(f, " {:>9}", row.outcomes.get(&outcome).copied().unwrap_or(0))?;
            }
            writeln!(f, " {:>9} {:>9} {:>7}", runs - row.left, row.left, row.missed)?;
        }
        Ok(())
    }
}
