// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds what holds for a job: the defaults, what the file says for all, the job's sections in their order, then the arguments. Also
//! finds what holds if it is not known which sections the job has.

use std::path::PathBuf;

use super::candidates::{asked, candidates};
use super::keys::{Config, Key};
use super::layer::Written;
use super::sections::{Section, SectionKind};
use super::setting::{Origin, Setting};
use crate::error::Result;
use crate::facts::{Facts, FactsNeeded};

/// A configuration and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What holds for all jobs: defaults, the file without its sections, and arguments together.
    pub config: Config,
    /// The file that was read; `None` if there is none, which leaves the defaults.
    pub file: Option<PathBuf>,
    written: Written,
    arguments: Vec<Setting>,
}

impl Loaded {
    /// Combines the defaults, the file without its sections, and the arguments.
    pub(super) fn new(file: Option<PathBuf>, written: Written, arguments: Vec<Setting>) -> Self {
        let mut config = Config::default();
        written.general.iter().chain(&arguments).for_each(|setting| setting.apply(&mut config));
        Self { config, file, written, arguments }
    }

    /// The facts that sections ask for, so that only these need be found out.
    pub fn asked(&self) -> FactsNeeded {
        asked(&self.written.sections)
    }

    /// The headers of all sections, in their order, each with its assignments.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &[Setting])> {
        self.written.sections.iter().map(|section| (section.header.as_str(), section.settings.as_slice()))
    }

    /// What each section names, in their order.
    pub fn named(&self) -> impl Iterator<Item = Named<'_>> {
        self.written.sections.iter().map(Named)
    }

    /// What holds for a job without sections, and for one with each single section.
    pub fn one_by_one(&self) -> impl Iterator<Item = Candidate> {
        let each = (0..self.written.sections.len()).map(|index| self.with_sections(&[index]));
        std::iter::once(self.with_sections(&[])).chain(each)
    }

    /// Whether some job can be limited to its own cores.
    pub fn can_constrain_cores(&self) -> bool {
        let in_sections = || self.written.sections.iter().flat_map(|section| &section.settings);
        self.config.constrain_cores || in_sections().any(|setting| setting.key.name == "ConstrainCores")
    }

    /// The strictest value of each key that any job can have: for errors before a job's sections are known.
    pub fn strictest(&self) -> Config {
        let mut strictest = self.config.clone();
        for index in 0..self.written.sections.len() {
            strictest.take_stricter(&self.with_sections(&[index]).config);
        }
        strictest
    }

    /// What holds for a job: the defaults, what the file says for all, the job's sections in the order of the file, and the arguments;
    /// each overrides those before it.
    ///
    /// If a fact is unknown, all that could hold: see [`Resolved`]. Fails if that is too much to look at.
    pub fn for_job(&self, facts: &Facts) -> Result<Resolved> {
        let (sets, unknown) = candidates(&self.written.sections, facts, self.config.trust_account)?;
        let candidates: Vec<Candidate> = sets.iter().map(|set| self.with_sections(set)).collect();
        let mut strictest = self.config.clone();
        let mut taken: Vec<(&'static str, usize)> = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            if index == 0 {
                strictest = candidate.config.clone();
                continue;
            }
            for name in strictest.take_stricter(&candidate.config) {
                taken.retain(|(before, _)| *before != name);
                taken.push((name, index));
            }
        }
        // RunDir is the node's, so it is the same in all candidates; `self.config` may have it by another path since it was loaded.
        strictest.run_dir.clone_from(&self.config.run_dir);
        Ok(Resolved { config: strictest, candidates, unknown, taken })
    }

    pub(super) fn with_sections(&self, set: &[usize]) -> Candidate {
        let sections: Vec<&Section> = set.iter().filter_map(|index| self.written.sections.get(*index)).collect();
        let in_sections = sections.iter().flat_map(|section| &section.settings);
        let settings: Vec<Setting> =
            self.written.general.iter().chain(in_sections).chain(&self.arguments).cloned().collect();
        let mut config = Config::default();
        settings.iter().for_each(|setting| setting.apply(&mut config));
        Candidate { config, sections: sections.iter().map(|section| section.header.clone()).collect(), settings }
    }
}

/// What a section names.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a>(&'a Section);

impl<'a> Named<'a> {
    /// As `[Partition=gpu]`.
    pub fn header(&self) -> &'a str {
        &self.0.header
    }

    /// The kind of its names.
    pub fn kind(&self) -> SectionKind {
        self.0.kind()
    }

    /// The names; none for a list of nodes, see [`Self::names_node`]. Accounts and QOS are in lower case.
    pub fn names(&self) -> &'a [String] {
        self.0.names()
    }

    /// Whether this is a section about nodes, and means this node.
    pub fn names_node(&self, node: &str) -> bool {
        self.0.names_node(node)
    }
}

/// What holds for one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// Decides all that is no limit: if facts are unknown, it has the strictest value of each key.
    pub config: Config,
    /// What may hold: one if all facts are known that sections ask for, else each that could hold. The lowest of each limit among them
    /// is to be set. Never empty.
    pub candidates: Vec<Candidate>,
    /// The unknown facts that would have to be known.
    pub unknown: Vec<SectionKind>,
    /// The candidate from which the value of a key was taken in `config`, if not from the first.
    taken: Vec<(&'static str, usize)>,
}

/// What holds for a job that has certain sections.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Everything together.
    pub config: Config,
    /// The headers of its sections, in their order.
    pub sections: Vec<String>,
    /// Every assignment that counts, in the order in which they override each other.
    pub settings: Vec<Setting>,
}

impl Candidate {
    /// The assignments of a key, in that order: the last one counts, except for keys that can be given several times.
    pub fn said_of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |setting| setting.key.name == key.name)
    }

    /// Where a key was set.
    pub fn origin(&self, key: &Key) -> Origin {
        self.said_of(key).last().map_or(Origin::Default, |setting| setting.origin.clone())
    }
}

impl Resolved {
    /// For a configuration that is the same for all jobs.
    pub fn plain(config: Config) -> Self {
        let candidate = Candidate { config: config.clone(), sections: Vec::new(), settings: Vec::new() };
        Self { config, candidates: vec![candidate], unknown: Vec::new(), taken: Vec::new() }
    }

    /// Where the value that a key has in `config` was set.
    pub fn origin(&self, key: &Key) -> Origin {
        let taken = self.taken.iter().find(|(name, _)| *name == key.name).map_or(0, |(_, candidate)| *candidate);
        self.candidates.get(taken).map_or(Origin::Default, |candidate| candidate.origin(key))
    }

    /// The facts that are unknown, in words; `None` if all that matter are known.
    pub fn unknown_in_words(&self) -> Option<String> {
        let words: Vec<String> = self.unknown.iter().map(SectionKind::to_string).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::super::limits::Limit;
    use super::super::load::written;
    use super::super::samples::errors_of;
    use super::super::samples::load_file;
    use super::super::units::Percent;
    use super::super::values::Mode;
    use super::*;

    /// The general lines, and then three sections. The last section is empty.
    const SECTIONS: &str = "MaxProcesses=1000 CPUQuotaPercent=100\nAllowedRAMSpace=90\n\
                            [Partition=gpu,debug]\nMaxProcesses=200 # fewer\nMode=observe\n\
                            [Account=physics]\nMaxProcesses=unlimited CPUQuotaPercent=50\n\
                            [Partition=debug]\n";

    fn facts(partition: Option<&str>, account: Option<&str>) -> Facts {
        let fact = |value: Option<&str>| value.map(str::to_owned).into();
        Facts { partition: fact(partition), account: fact(account), ..Facts::default() }
    }

    fn key(name: &str) -> &'static Key {
        KEYS.iter().find(|key| key.name == name).unwrap()
    }

    #[test]
    fn sections_override_in_their_order_and_arguments_everything() {
        let loaded = load_file(&["AllowedRAMSpace=80"], Some((SECTIONS, 0o644))).unwrap();
        let general = &loaded.config;
        assert_eq!((general.numbers.get(Limit::Processes), general.mode), (Some(1000), Mode::Enforce));
        let file = loaded.file.as_deref().unwrap().display().to_string();
        let origin = |facts: &Facts, name: &str| {
            let resolved = loaded.for_job(facts).unwrap();
            assert_eq!(resolved.candidates.len(), 1);
            assert_eq!(resolved.config, resolved.candidates[0].config);
            resolved.origin(key(name)).to_string().replace(&file, "F")
        };

        let none = facts(Some("batch"), Some(""));
        assert_eq!(loaded.for_job(&none).unwrap().config, *general);
        assert_eq!(
            ["MaxProcesses", "AllowedRAMSpace", "MinRAMSpace"].map(|name| origin(&none, name)),
            ["F:1", "plugstack.conf argument 1", "default"]
        );

        let gpu = facts(Some("gpu"), Some("chemistry"));
        let config = loaded.for_job(&gpu).unwrap().config;
        assert_eq!((config.numbers.get(Limit::Processes), config.mode), (Some(200), Mode::Observe));
        assert_eq!(config.cpu_quota_percent, Percent::HUNDRED);
        assert_eq!(origin(&gpu, "MaxProcesses"), "F:4 [Partition=gpu,debug]");
        assert_eq!(origin(&gpu, "CPUQuotaPercent"), "F:1");

        // If two sections set a key, the later one counts.
        let both = facts(Some("debug"), Some("Physics"));
        let resolved = loaded.for_job(&both).unwrap();
        assert_eq!((resolved.config.numbers.get(Limit::Processes), resolved.config.mode), (None, Mode::Observe));
        assert_eq!(resolved.config.allowed_ram_space, Percent::from_hundredths(8000));
        let headers = ["[Partition=gpu,debug]", "[Account=physics]", "[Partition=debug]"];
        assert_eq!(resolved.candidates[0].sections, headers);
        assert_eq!(origin(&both, "MaxProcesses"), "F:7 [Account=physics]");
        let said: Vec<_> = resolved.candidates[0].said_of(key("MaxProcesses")).map(Setting::value).collect();
        assert_eq!(said, ["1000", "200", "unlimited"]);
        assert!(loaded.asked().job && loaded.sections().map(|(header, _)| header).eq(headers));
    }

    #[test]
    fn where_facts_are_unknown_the_strictest_holds() {
        let loaded = load_file(&[], Some((SECTIONS, 0o644))).unwrap();
        let resolved = loaded.for_job(&facts(Some("gpu"), None)).unwrap();
        assert_eq!(resolved.candidates.len(), 2);
        assert_eq!((resolved.config.numbers.get(Limit::Processes), resolved.config.mode), (Some(200), Mode::Observe));
        assert_eq!(resolved.config.cpu_quota_percent, Percent::from_hundredths(5000));
        assert!(resolved.origin(key("CPUQuotaPercent")).to_string().ends_with(":7 [Account=physics]"));
        assert!(resolved.origin(key("MaxProcesses")).to_string().ends_with(":4 [Partition=gpu,debug]"));
        assert_eq!(resolved.unknown_in_words().as_deref(), Some("Account"));

        let resolved = loaded.for_job(&Facts::default()).unwrap();
        assert_eq!((resolved.config.numbers.get(Limit::Processes), resolved.config.mode), (Some(200), Mode::Enforce));
        assert_eq!(resolved.unknown_in_words().as_deref(), Some("Partition, Account"));
        assert_eq!(loaded.strictest().numbers.get(Limit::Processes), Some(200));
        assert_eq!(loaded.strictest().cpu_quota_percent, Percent::from_hundredths(5000));
        // A fact that no section asks for is not unknown, and an argument leaves nothing open.
        let plain = load_file(&[], Some(("MaxProcesses=5\n", 0o644))).unwrap();
        assert_eq!(plain.for_job(&Facts::default()).unwrap().unknown_in_words(), None);
        let loaded = load_file(&["MaxProcesses=7"], Some((SECTIONS, 0o644))).unwrap();
        let resolved = loaded.for_job(&Facts::default()).unwrap();
        assert!(resolved.candidates.iter().all(|candidate| candidate.config.numbers.get(Limit::Processes) == Some(7)));
    }

    #[test]
    fn a_section_has_targets_of_its_own() {
        let text = "IOMax=/a rbps=1\nIOMax=/b rbps=2\n[Partition=gpu]\nIOMax=/a rbps=9\nIOMax=/c wiops=3\n\
                    IOMaxPerUser=/a rbps=1\n[User=alice]\nIOMaxPerUser=/a rbps=1\n";
        assert_eq!(
            errors_of(text),
            [
                r#"6:1: found "IOMaxPerUser", expected a key of jobs; IOMaxPerUser is for all of a user's together, so only sections by User, Group, Node or Host have it"#
            ]
        );
        let text = text.replacen("IOMaxPerUser=/a rbps=1\n", "", 1);
        let written = written("f", text.as_bytes()).unwrap();
        let loaded = Loaded::new(None, written, Vec::new());
        assert_eq!(loaded.config.io_max.to_string(), "/a rbps=1; /b rbps=2");
        let of = |set: &[usize]| loaded.with_sections(set).config;
        assert_eq!(of(&[0]).io_max.to_string(), "/a rbps=9; /c wiops=3");
        assert_eq!(of(&[1]).io_max_per_user.to_string(), "/a rbps=1");
        let unknown = loaded.for_job(&Facts::default()).unwrap().config;
        assert_eq!(unknown.io_max.to_string(), "/a rbps=1; /b rbps=2; /c wiops=3");
    }
}
