// SPDX-License-Identifier: GPL-2.0-or-later
//! What qmaster counts, as `qconf` prints it: complex(5), and the `complex_values` of hosts and queues.
//!
//! execd tells its shepherd little of that: neither whether an amount is per slot, host or job, nor what is debited for a job that asks
//! for nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::amount::number;

/// What qmaster debits a request for (the column `consumable`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Nothing: qmaster only compares the request.
    No,
    /// Each slot.
    Slot,
    /// Each host, whatever its slots. Only Open Cluster Scheduler has this.
    Host,
    /// The whole job, on the host of its script (`rc_debit_consumable` of `sge_qinstance.c`).
    Job,
}

/// The words of `qconf`.
const COUNTED: [(&str, Counted); 4] =
    [("NO", Counted::No), ("YES", Counted::Slot), ("HOST", Counted::Host), ("JOB", Counted::Job)];

impl Counted {
    fn from_word(text: &str) -> Option<Self> {
        COUNTED.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, counted)| *counted)
    }

    /// The word of `qconf`.
    pub fn name(self) -> &'static str {
        COUNTED.iter().find(|(_, counted)| *counted == self).map_or("NO", |(name, _)| name)
    }
}

/// One complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complex {
    /// Its name.
    pub name: String,
    /// Its other name, by which users can ask for it, too.
    pub shortcut: String,
    /// Whether a job must ask for it.
    pub is_forced: bool,
    /// What an amount of it is for.
    pub counted: Counted,
    /// The amount for a job that does not ask for it.
    pub default: String,
}

impl Complex {
    /// The complexes in the output of `qconf -sc`.
    pub fn all(text: &str) -> Vec<Self> {
        text.lines().filter(|line| !line.starts_with('#')).filter_map(Self::from_row).collect()
    }

    fn from_row(row: &str) -> Option<Self> {
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

    /// Whether this is its name or its shortcut.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.shortcut == name
    }
}

/// The value of a key in `qconf`'s output, with its continuation lines.
pub fn value_of(text: &str, key: &str) -> Option<String> {
    let text = text.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = text.lines().map(words).find(|words| words.first().is_some_and(|first| first == key))?;
    Some(found.get(1..)?.join(" "))
}

/// What is debited for the jobs of a queue on this host. Empty if qmaster could not be asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Debits(Vec<Debit>);

/// What is debited of one complex.
#[derive(Debug, Clone, PartialEq)]
struct Debit {
    name: String,
    shortcut: String,
    counted: Counted,
    /// For a job that does not ask for it.
    default: f64,
}

impl Debits {
    /// Reads `qconf`'s output about the complexes and each possible giver: the host, the cluster, the queue. A complex that no giver has is
    /// debited nowhere (`rc_debit_consumable`, and `reduce_queue_limit` of `sge_give_jobs.c`).
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

    /// Whether qmaster's answer is known.
    pub fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    fn find(&self, name: &str) -> Option<&Debit> {
        self.0.iter().find(|debit| [&debit.name, &debit.shortcut].iter().any(|called| *called == name))
    }

    /// What an amount of this request is for. `None`: not known.
    pub fn counted(&self, name: &str) -> Option<Counted> {
        self.find(name).map(|debit| debit.counted)
    }

    /// What is debited for a job that does not ask for this complex. `is_asked` tells the names by which the job asks. `is_noted` tells the
    /// names whose requests are noted: if the shortcut is not among them, the job may have asked by it, and the default is not taken.
    pub fn unasked(&self, name: &str, is_asked: impl Fn(&str) -> bool, is_noted: impl Fn(&str) -> bool) -> Option<f64> {
        let debit = self.find(name)?;
        let is_asked = is_asked(&debit.name) || is_asked(&debit.shortcut) || !is_noted(&debit.shortcut);
        // With the shortcut in the list, too, the default would count twice.
        (debit.name == name && debit.default > 0.0 && !is_asked).then_some(debit.default)
    }

    /// The text that [`Self::parse`] reads.
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, debit| {
            let _ = writeln!(text, "{} {} {} {}", debit.name, debit.shortcut, debit.counted.name(), debit.default);
            text
        })
    }

    /// Reads what [`Self::text`] wrote. Empty if a line has another form, as of another release.
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
