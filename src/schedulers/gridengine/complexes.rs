// SPDX-License-Identifier: GPL-2.0-or-later
//! What qmaster counts, as `qconf` prints it: complex(5), and the `complex_values` of hosts and queues.
//!
//! execd tells its shepherd little of that. Neither does it say of what an amount is so much, nor what is debited of a job that asks for
//! nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::amount::number;

/// Of what qmaster debits so much (the column `consumable`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// It only compares.
    No,
    /// Each slot.
    Slot,
    /// Each host, whatever the slots are: Open Cluster Scheduler alone has these.
    Host,
    /// The job, on the host of its script (`rc_debit_consumable` of `sge_qinstance.c`).
    Job,
}

/// As `qconf` calls them.
const COUNTED: [(&str, Counted); 4] =
    [("NO", Counted::No), ("YES", Counted::Slot), ("HOST", Counted::Host), ("JOB", Counted::Job)];

impl Counted {
    fn from_word(text: &str) -> Option<Self> {
        COUNTED.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, counted)| *counted)
    }

    /// As `qconf` calls it.
    pub fn name(self) -> &'static str {
        COUNTED.iter().find(|(_, counted)| *counted == self).map_or("NO", |(name, _)| name)
    }
}

/// One complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complex {
    /// Its name.
    pub name: String,
    /// By which users can ask for it, too.
    pub shortcut: String,
    /// Whether a job must ask for it.
    pub is_forced: bool,
    /// Of what it is so much.
    pub counted: Counted,
    /// What a job has that does not ask for it.
    pub default: String,
}

impl Complex {
    /// Those of `qconf -sc`.
    pub fn all(text: &str) -> Vec<Self> {
        text.lines().filter(|line| !line.starts_with('#')).filter_map(Self::of_row).collect()
    }

    fn of_row(row: &str) -> Option<Self> {
        let words: Vec<&str> = row.split_whitespace().collect();
        let [name, shortcut, _, _, requestable, consumable, default, ..] = words.as_slice() else { return None };
        Some(Self {
            name: (*name).to_owned(),
            shortcut: (*shortcut).to_owned(),
            is_forced: requestable.eq_ignore_ascii_case("forced"),
            counted: Counted::from_word(consumable)?,
            default: (*default).to_owned(),
        })
    }

    /// Whether a user means it by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.shortcut == name
    }
}

/// The value of a key that `qconf` prints, also one that goes on in the next line.
pub fn value_of(text: &str, key: &str) -> Option<String> {
    let text = text.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = text.lines().map(words).find(|words| words.first().is_some_and(|first| first == key))?;
    Some(found.get(1..)?.join(" "))
}

/// What is debited of the jobs of a queue on this host. Nothing is in it where nobody has been able to ask.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Debits(Vec<Debit>);

/// The same of one complex.
#[derive(Debug, Clone, PartialEq)]
struct Debit {
    name: String,
    shortcut: String,
    counted: Counted,
    /// Of a job that does not ask for it.
    default: f64,
}

impl Debits {
    /// From what `qconf` prints of the complexes, and of each thing that may have some of them to give: the host, the cluster, the queue.
    /// What nobody gives, qmaster debits nowhere (`rc_debit_consumable`, and `reduce_queue_limit` of `sge_give_jobs.c`).
    pub fn from_qconf(complexes: &str, givers: &[String]) -> Self {
        let values: Vec<String> = givers.iter().filter_map(|giver| value_of(giver, "complex_values")).collect();
        let given: BTreeSet<&str> = values
            .iter()
            .flat_map(|values| values.split([',', ' ']))
            .filter_map(|value| Some(value.split_once('=')?.0))
            .collect();
        let one = |complex: Complex| {
            let is_debited = complex.counted != Counted::No && given.contains(complex.name.as_str());
            let default = number(&complex.default).flatten().filter(|_| is_debited).unwrap_or(0.0);
            Debit { name: complex.name, shortcut: complex.shortcut, counted: complex.counted, default }
        };
        Self(Complex::all(complexes).into_iter().map(one).collect())
    }

    /// Whether they are known.
    pub fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    fn find(&self, name: &str) -> Option<&Debit> {
        self.0.iter().find(|debit| [&debit.name, &debit.shortcut].iter().any(|called| *called == name))
    }

    /// Of what a request is so much. `None`: that is not known.
    pub fn counted(&self, name: &str) -> Option<Counted> {
        self.find(name).map(|debit| debit.counted)
    }

    /// What is debited of a job that does not ask for it. `is_asked` says by which names it does, and `is_noted` by which names a request
    /// would have been noted: a request by another name is not known here, and is no reason for the default.
    pub fn unasked(&self, name: &str, is_asked: impl Fn(&str) -> bool, is_noted: impl Fn(&str) -> bool) -> Option<f64> {
        let debit = self.find(name)?;
        let is_asked = is_asked(&debit.name) || is_asked(&debit.shortcut) || !is_noted(&debit.shortcut);
        // Both names of one complex would count twice.
        (debit.name == name && debit.default > 0.0 && !is_asked).then_some(debit.default)
    }

    /// As [`Self::parse`] reads them.
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, debit| {
            let _ = writeln!(text, "{} {} {} {}", debit.name, debit.shortcut, debit.counted.name(), debit.default);
            text
        })
    }

    /// What was written. Nothing of it is known if a line is another release's.
    pub fn parse(text: &str) -> Self {
        let one = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, shortcut, counted, default] = words.as_slice() else { return None };
            Some(Debit {
                name: (*name).to_owned(),
                shortcut: (*shortcut).to_owned(),
                counted: Counted::from_word(counted)?,
                default: default.parse().ok().filter(|amount: &f64| *amount >= 0.0)?,
            })
        };
        Self(text.lines().map(one).collect::<Option<_>>().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLEXES: &str = "#name shortcut type relop requestable consumable default urgency\n\
                             mem_free mf MEMORY <= YES YES 1G 0\nthreads t INT <= YES JOB 2 0\narch a RESTRING == YES NO NONE 0\n\
                             mem_host mem_host MEMORY <= YES HOST 0 0\nscratch s MEMORY <= FORCED YES 5G 0\n";

    #[test]
    fn a_value_of_qconf_may_have_several_lines() {
        let text =
            "#global:\nshepherd_cmd                 /usr/sbin/jobfence\nload_sensor  /a,\\\n             /b\nx\n";
        assert_eq!(value_of(text, "shepherd_cmd").as_deref(), Some("/usr/sbin/jobfence"));
        assert_eq!(value_of(text, "load_sensor").as_deref(), Some("/a, /b"));
        assert_eq!(value_of(text, "jsv_url"), None);
        assert_eq!(value_of(text, "x").as_deref(), Some(""));
    }

    #[test]
    fn what_is_debited_is_what_somebody_gives() {
        let givers = ["complex_values  mem_free=4G,\\\n    threads=8\n", "complex_values NONE\n"].map(str::to_owned);
        let debits = Debits::from_qconf(COMPLEXES, &givers);
        let nothing = |_: &str| false;
        assert_eq!(debits.counted("mf"), Some(Counted::Slot));
        assert_eq!(debits.counted("threads"), Some(Counted::Job));
        assert_eq!(debits.counted("mem_host"), Some(Counted::Host));
        assert_eq!(debits.counted("other"), None);
        let all = |_: &str| true;
        assert_eq!(debits.unasked("mem_free", nothing, all), Some(f64::from(1 << 30)));
        assert_eq!(debits.unasked("threads", nothing, all), Some(2.0));
        assert_eq!(debits.unasked("mf", nothing, all), None, "it is counted by its name");
        assert_eq!(debits.unasked("mem_free", |name| name == "mf", all), None, "asked by its shortcut");
        assert_eq!(debits.unasked("mem_free", nothing, |name| name != "mf"), None, "it may be asked by its shortcut");
        assert_eq!(debits.unasked("scratch", nothing, all), None, "nobody has any to give");
        assert_eq!(Debits::parse(&debits.text()), debits);
        for other in ["", "jobfence 2\n", "a a YES\n", "a a MAYBE 0\n", "a a YES -1\n", "a a YES much\n"] {
            assert!(!Debits::parse(other).are_known(), "{other:?}");
        }
    }
}
