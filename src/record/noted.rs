// SPDX-License-Identifier: GPL-2.0-or-later
//! What the process that opens a shared fence knows of its job, for the line of the usage log that another process writes.
//!
//! One line for each that is known, in this order: `noted.user`, `noted.partition`, `noted.account`, `noted.qos`, `noted.project`,
//! `noted.global_job`, `noted.job_name`, each escaped as an id is; `noted.cpus` in thousandths, `noted.memory` in bytes, and `noted.gpus`. Only
//! where there is a usage log. A later release may write more lines behind these, `noted.KEY=VALUE`. They stay as they are, so that a
//! node that goes back to this release closes the fences of the later one.
//!
//! And what `MetricsFile` says of each job beside what the kernel knows. With such a file, the step's directory has it as an extended
//! attribute. So it has if the job is to be told at shares of its limits: then `jobfence hold` reads there of which.

use std::fmt;

use crate::config::units::{none_or, text_or_none};
use crate::config::{Percent, SignalAt, signal_at};
use crate::facts::{Fact, Facts};
use crate::figures::GrantedTo;
use crate::job::{Cpus, Id};

/// What is noted of a job: see the beginning of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// The user's name, the partition, the account, the QOS, the project, the job's global name and its name, in this order.
    texts: [Option<Id>; 7],
    /// What was granted.
    pub granted: GrantedTo,
    /// The lines of a later release.
    later: String,
}

/// How each line begins.
const NOTED: &str = "noted.";
const TEXTS: [&str; 7] = [
    "noted.user=",
    "noted.partition=",
    "noted.account=",
    "noted.qos=",
    "noted.project=",
    "noted.global_job=",
    "noted.job_name=",
];
const CPUS: &str = "noted.cpus=";
const MEMORY: &str = "noted.memory=";
const GPUS: &str = "noted.gpus=";

impl Noted {
    /// Takes what goes into a record from these facts.
    pub fn new(facts: &Facts, granted: GrantedTo) -> Self {
        let Facts { user, partition, account, qos, project, global_job, job_name, .. } = facts;
        let text = |fact: &Fact<String>| fact.said().and_then(|text| Id::new(text.clone()).ok());
        let texts = [user, partition, account, qos, project, global_job, job_name].map(text);
        Self { texts, granted, later: String::new() }
    }

    /// What is noted, as facts.
    pub fn facts(&self) -> Facts {
        let [user, partition, account, qos, project, global_job, job_name] =
            self.texts.each_ref().map(|text| Fact::from(text.as_ref().map(|text| text.as_str().to_owned())));
        Facts { user, partition, account, qos, project, global_job, job_name, ..Facts::default() }
    }

    /// Adds what `other` knows and this one does not.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        let mut texts = self.texts;
        for (text, theirs) in texts.iter_mut().zip(&other.texts) {
            *text = text.take().or_else(|| theirs.clone());
        }
        let later = if self.later.is_empty() { other.later.clone() } else { self.later };
        Self { texts, granted: self.granted.or(other.granted), later }
    }

    /// Reads the lines at the beginning of a text, and returns what follows them.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let mut noted = Self::default();
        let mut rest = text;
        let mut next = |key: &str| {
            let Some((value, behind)) = rest.strip_prefix(key).and_then(|value| value.split_once('\n')) else {
                return Some(None);
            };
            rest = behind;
            Some(Some(value))
        };
        for (text, key) in noted.texts.iter_mut().zip(TEXTS) {
            *text = match next(key)? {
                Some(value) => Some(Id::unescaped(value)?),
                None => None,
            };
        }
        let mut number = |key| match next(key)? {
            Some(value) => value.parse().ok().map(Some),
            None => Some(None),
        };
        let cpus = number(CPUS)?.map(Cpus::from_thousandths);
        noted.granted = GrantedTo { cpus, memory: number(MEMORY)?, gpus: number(GPUS)? };
        while rest.starts_with(NOTED) {
            let (line, behind) = rest.split_once('\n')?;
            let (key, _) = line.split_once('=')?;
            // One that is known stands further above, and only once.
            if TEXTS.iter().chain(&[CPUS, MEMORY, GPUS]).any(|known| known.strip_suffix('=') == Some(key)) {
                return None;
            }
            noted.later.push_str(line);
            noted.later.push('\n');
            rest = behind;
        }
        Some((noted, rest))
    }
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, key) in self.texts.iter().zip(TEXTS) {
            if let Some(text) = text {
                writeln!(f, "{key}{}", text.escaped())?;
            }
        }
        let GrantedTo { cpus, memory, gpus } = self.granted;
        for (key, value) in [(CPUS, cpus.map(Cpus::thousandths)), (MEMORY, memory), (GPUS, gpus)] {
            if let Some(value) = value {
                writeln!(f, "{key}{value}")?;
            }
        }
        f.write_str(&self.later)
    }
}

/// What a job was granted, and its limits without headroom for the scheduler's daemons. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// The partition, and what was granted.
    pub noted: Noted,
    /// The limit of CPU time.
    pub cpus_limit: Option<Cpus>,
    /// The limit of processes and threads.
    pub processes_limit: Option<u64>,
    /// At which shares of its limits the step is told.
    pub signal_at: Option<SignalAt>,
    /// Whether that, or no such share, is what its user asked for, and not the site's word. So it counts in a note of an earlier release.
    pub is_asked: bool,
    /// To which share of it the user lets the job's limit of memory grow.
    pub elastic_ram: Option<Percent>,
}

const CPUS_LIMIT: &str = "cpus_limit=";
const PROCESSES_LIMIT: &str = "processes_limit=";
/// `none`: its user asked for none.
const SIGNAL_AT: &str = "signal_at=";
/// It is the site's word. Earlier releases wrote no such line, and pass over it.
const BY_SITE: &str = "signal_at_by=site";
/// In hundredths of a percent.
const ELASTIC_RAM: &str = "elastic_ram=";

impl Allocated {
    /// Takes what the metrics need: there is little room in an attribute.
    pub fn new(noted: &Noted, (cpus_limit, processes_limit): (Option<Cpus>, Option<u64>)) -> Self {
        let [_, partition, ..] = noted.texts.clone();
        let noted = Noted {
            texts: [None, partition, None, None, None, None, None],
            granted: noted.granted,
            later: String::new(),
        };
        Self { noted, cpus_limit, processes_limit, signal_at: None, is_asked: false, elastic_ram: None }
    }

    /// Reads what `Display` writes. What cannot be read counts as not known.
    pub fn parse(text: &str) -> Self {
        let Some((noted, rest)) = Noted::parse(text) else { return Self::default() };
        let noted_word = rest.lines().find_map(|line| none_or(line.strip_prefix(SIGNAL_AT)?, signal_at::read).ok());
        let number = |key| rest.lines().find_map(|line| line.strip_prefix(key)?.parse().ok());
        Self {
            noted,
            cpus_limit: number(CPUS_LIMIT).map(Cpus::from_thousandths),
            processes_limit: number(PROCESSES_LIMIT),
            signal_at: noted_word.flatten(),
            is_asked: noted_word.is_some() && !rest.lines().any(|line| line == BY_SITE),
            elastic_ram: number(ELASTIC_RAM)
                .and_then(|number| u32::try_from(number).ok())
                .map(Percent::from_hundredths),
        }
    }

    /// Adds what `other` knows and this one does not.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            noted: self.noted.or(&other.noted),
            cpus_limit: self.cpus_limit.or(other.cpus_limit),
            processes_limit: self.processes_limit.or(other.processes_limit),
            signal_at: self.signal_at.or(other.signal_at),
            is_asked: self.is_asked || other.is_asked,
            elastic_ram: self.elastic_ram.or(other.elastic_ram),
        }
    }
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.noted)?;
        let cpus_limit = self.cpus_limit.map(Cpus::thousandths);
        let elastic_ram = self.elastic_ram.map(|percent| percent.hundredths().into());
        for (key, value) in
            [(CPUS_LIMIT, cpus_limit), (PROCESSES_LIMIT, self.processes_limit), (ELASTIC_RAM, elastic_ram)]
        {
            if let Some(value) = value {
                writeln!(f, "{key}{value}")?;
            }
        }
        if self.is_asked || self.signal_at.is_some() {
            writeln!(f, "{SIGNAL_AT}{}", text_or_none(self.signal_at))?;
        }
        if self.is_asked || self.signal_at.is_none() { Ok(()) } else { writeln!(f, "{BY_SITE}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allocated_is_known_again() {
        let known = |text: &str| Fact::Known(text.to_owned());
        let facts = Facts { user: known("u"), partition: known("a b"), ..Facts::default() };
        let granted = GrantedTo { cpus: Some(Cpus::whole(2)), memory: Some(9), gpus: Some(1) };
        let noted = Noted::new(&facts, granted);
        let all = Allocated::new(&noted, (Some(Cpus::whole(1)), Some(100)));
        assert_eq!((all.noted.facts().partition, all.noted.facts().user), (known("a b"), Fact::Unknown));
        assert_eq!(all.noted.granted, granted);
        assert_eq!(Allocated::parse(&all.to_string()), all);
        let told = Allocated { signal_at: SignalAt::parse("B:mem:90%:USR1,pids:90%"), ..all.clone() };
        assert_eq!((Allocated::parse(&told.to_string()), told.signal_at.is_some()), (told.clone(), true));
        for signal_at in [told.signal_at, None] {
            let asked = Allocated { signal_at, is_asked: true, ..all.clone() };
            assert_eq!(Allocated::parse(&asked.to_string()), asked);
        }
        // A later release may know more, and an earlier one did not note whose word it is.
        let read = |text| {
            let Allocated { signal_at, is_asked, .. } = Allocated::parse(text);
            (signal_at.is_some(), is_asked)
        };
        assert_eq!(read("signal_at=mem:90%:KILL\n"), (false, false));
        assert_eq!(read("signal_at=mem:90%\n"), (true, true));
        let lent = Allocated { elastic_ram: Some(Percent::HUNDRED), ..told.clone() };
        assert_eq!(
            (Allocated::parse(&lent.to_string()), Allocated::parse("elastic_ram=x\n").elastic_ram),
            (lent, None)
        );
        assert_eq!(Allocated::parse(""), Allocated::default());
        assert_eq!(Allocated::parse("noted.cpus=x\n"), Allocated::default());
        let less = Allocated::parse("noted.cpus=1000\n");
        let granted = GrantedTo { cpus: Some(Cpus::whole(1)), ..granted };
        assert_eq!(less.or(&all), Allocated { noted: Noted { granted, ..all.noted.clone() }, ..all });
    }
}
