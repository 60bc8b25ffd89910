// SPDX-License-Identifier: GPL-2.0-or-later
//! The assignments of one source, a file or the arguments: each is checked against the table of keys and its section, and each mistake
//! has its place.

use std::borrow::Cow;

use super::error::{ConfigError, MAX_ERRORS};
use super::keys::{Config, FILE_ARGUMENT, KEYS, Key};
use super::lexer::{Position, Source, Token};
use super::parser::{Assignment, Item};
use super::sections::{self, Section};
use super::setting::{Origin, Setting};
use super::suggest::nearest;
use super::values::Mode;
use crate::cgroup::io::{IoRules, Malformed, Rate};

/// The assignments of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Written {
    /// Before the first section.
    pub general: Vec<Setting>,
    /// In the order of the file.
    pub sections: Vec<Section>,
}

/// The assignments of one source. Only the `sound` ones hold.
#[derive(Default)]
pub(super) struct Layer<'a> {
    general: Vec<FoundAssignment<'a>>,
    sections: Vec<GivenSection<'a>>,
    /// At most [`MAX_ERRORS`].
    pub errors: Vec<ConfigError>,
}

/// An assignment as it was found.
struct FoundAssignment<'a> {
    key: &'static Key,
    first: Assignment<'a>,
    /// All values of the key, in the form of one value.
    value: Cow<'a, str>,
    sound: bool,
}

struct GivenSection<'a> {
    /// `None` if the header is wrong: the lines after it are checked all the same.
    section: Option<Section>,
    given: Vec<FoundAssignment<'a>>,
}

impl<'a> Layer<'a> {
    /// The argument that names the file, if it is given: `Some(None)` if it is given twice or wrongly.
    pub fn file(&self) -> Option<Option<&'a str>> {
        let given = self.general.iter().find(|given| given.key.name == FILE_ARGUMENT.name)?;
        Some(given.sound.then_some(given.first.value.text))
    }

    /// Takes all items that the parser gives.
    pub fn read(&mut self, items: impl Iterator<Item = Result<Item<'a>, ConfigError>>) {
        let mut items = items.peekable();
        while let Some(item) = items.next() {
            if self.errors.len() == MAX_ERRORS {
                return;
            }
            let taken = item.and_then(|item| match item {
                Item::Assignment(target) if is_rule(target.key.text) => {
                    // The rates that follow on the line are a part of the value.
                    let is_rate = |next: &Result<Item<'_>, _>| match next {
                        Ok(Item::Assignment(Assignment { key, .. })) => {
                            key.at.line == target.key.at.line && Rate::named(key.text).is_some()
                        }
                        _ => false,
                    };
                    let rates: Vec<Item<'a>> = std::iter::from_fn(|| items.next_if(is_rate)?.ok()).collect();
                    self.take_rule(target, &rates)
                }
                Item::Assignment(assignment) => self.take(assignment),
                Item::Header(header) => self.begin(&header),
                Item::WrongHeader => {
                    self.sections.push(GivenSection { section: None, given: Vec::new() });
                    Ok(())
                }
            });
            if let Err(error) = taken {
                self.errors.push(error);
            }
        }
    }

    /// `IOMax=TARGET` and the rates that follow on its line; the key may be given once for each target.
    fn take_rule(&mut self, target: Assignment<'a>, rates: &[Item<'a>]) -> Result<(), ConfigError> {
        let key = find(target.key)?;
        let section = self.sections.last().map(|last| last.section.as_ref());
        if let Some(expected) = section.and_then(|section| sections::refuses(section, key)) {
            return Err(ConfigError::text(target.key.at, target.key.text, expected));
        }
        let mut value = Cow::Borrowed(target.value.text);
        let mut wrong = None;
        for item in rates {
            let Item::Assignment(Assignment { key: name, value: rate }) = item else { continue };
            value.to_mut().push_str(&format!(" {}={}", name.text, rate.text));
            let checked = Rate::named(name.text).map_or(Ok(0), |kind| kind.parse(rate.text));
            let error = |bad: Malformed| {
                ConfigError::text(rate.at, &bad.found, format!("{} to be {}", name.text, bad.expected))
            };
            wrong = wrong.or_else(|| checked.err().map(error));
        }
        let given = self.sections.last_mut().map_or(&mut self.general, |section| &mut section.given);
        let earlier = given.iter_mut().find(|given| given.key.name == key.name);
        // The line is first checked alone, for its own mistakes. Then it is checked with the rules of the lines before, since it may repeat
        // one of them.
        let alone = IoRules::parse(&value);
        let all = match &earlier {
            Some(earlier) if alone.is_ok() => Cow::Owned(format!("{}; {value}", earlier.value)),
            _ => value,
        };
        let refuse = |bad: Malformed| {
            ConfigError::text(target.value.at, &bad.found, format!("{} to be {}", key.name, bad.expected))
        };
        let wrong = wrong.or_else(|| alone.and_then(|_| IoRules::parse(&all)).err().map(refuse));
        let sound = wrong.is_none();
        match earlier {
            Some(earlier) if sound => earlier.value = all,
            Some(earlier) => earlier.sound = false,
            None => given.push(FoundAssignment { key, first: target, value: all, sound }),
        }
        wrong.map_or(Ok(()), Err)
    }

    fn begin(&mut self, header: &Assignment<'a>) -> Result<(), ConfigError> {
        let (section, begun) = match Section::new(header) {
            Ok(section) => (Some(section), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.sections.push(GivenSection { section, given: Vec::new() });
        begun
    }

    fn take(&mut self, assignment: Assignment<'a>) -> Result<(), ConfigError> {
        let Assignment { key: name, value } = assignment;
        let key = find(name)?;
        let given = match self.sections.last_mut() {
            Some(section) => &mut section.given,
            None => &mut self.general,
        };
        if let Some(earlier) = given.iter_mut().find(|given| given.key.name == key.name) {
            // Which of the two was meant cannot be known.
            earlier.sound = false;
            let expected = format!("{} only once; it is given {} already", key.name, earlier.first.key.at.nearby());
            return Err(ConfigError::text(name.at, name.text, expected));
        }
        let checked = key.set(&mut Config::default(), value.text);
        given.push(FoundAssignment { key, first: assignment, value: value.text.into(), sound: checked.is_ok() });
        checked.map_err(|wrong| {
            ConfigError::text(value.at, value.text, format!("{} to be {}{}", key.name, key.expects, wrong.detail()))
        })?;
        match self.sections.last().and_then(|last| sections::refuses(last.section.as_ref(), key)) {
            Some(expected) => Err(ConfigError::text(name.at, name.text, expected)),
            None => Ok(()),
        }
    }

    /// Refuses sections that would turn off some jobs only. Off is for a whole node: the sessions of jobs that are off would find no
    /// fence and be denied.
    pub fn refuse_modes(&mut self) {
        let mode = |given: &FoundAssignment<'_>| {
            let mut config = Config::default();
            given.key.set(&mut config, given.first.value.text).ok().map(|()| config.mode)
        };
        let is_mode = |given: &&FoundAssignment<'_>| given.key.name == "Mode" && given.sound;
        let off = self.general.iter().find(is_mode).filter(|given| mode(given) == Some(Mode::Off));
        for given in self.sections.iter().filter_map(|section| section.given.iter().find(is_mode)) {
            let expected = match off {
                _ if mode(given) == Some(Mode::Off) => {
                    "Mode to be enforce or observe; off is for all jobs and stands before the first section".to_owned()
                }
                Some(off) => {
                    format!("no Mode in a section, since it is off for all {}", off.first.key.at.nearby())
                }
                None => continue,
            };
            if self.errors.len() < MAX_ERRORS {
                self.errors.push(ConfigError::text(given.first.value.at, given.first.value.text, expected));
            }
        }
    }

    /// The sound assignments of a file or of arguments, without the text in which they were found.
    pub fn into_written(self) -> Written {
        let general = own(self.general, None);
        let sections = self.sections.into_iter().filter_map(|GivenSection { section, given }| {
            let mut section = section?;
            section.settings = own(given, Some(&section.header));
            Some(section)
        });
        Written { general, sections: sections.collect() }
    }
}

/// The sound assignments, without the text in which they were found.
fn own(given: Vec<FoundAssignment<'_>>, section: Option<&str>) -> Vec<Setting> {
    let sound = given.into_iter().filter(|given| given.sound);
    sound
        .map(|FoundAssignment { key, first, value, .. }| {
            let Position { source, line, .. } = first.key.at;
            let origin = match source {
                Source::File(name) => Origin::File { name: name.to_owned(), line, section: section.map(str::to_owned) },
                Source::Argument(name) => Origin::Argument(name.to_owned()),
            };
            Setting { key, value: value.into_owned(), origin }
        })
        .collect()
}

/// Whether the assignments that follow a key on its line continue its value, as in Slurm's `NodeName=n1 CPUs=4`. In plugstack.conf they
/// cannot: there each argument stands for itself.
fn is_rule(name: &str) -> bool {
    KEYS.iter().any(|key| key.expects == IoRules::EXPECTS && key.name.eq_ignore_ascii_case(name))
}

/// Keys of Slurm's cgroup.conf(5) from 22.05 to 26.05 that jobfence does not have: no similar key is suggested for them.
const THEIRS: &str = "AllowedDevicesFile CgroupAutomount CgroupJobIdPaths CgroupPlugin CgroupReleaseAgentDir CgroupSlice EnableControllers \
                      EnableExtraControllers IgnoreSystemd IgnoreSystemdOnFailure MaxRAMPercent MaxSwapPercent MemoryLimitEnforcement \
                      MemoryLimitThreshold MemorySwappiness SignalChildrenProcesses SystemdTimeout TaskAffinity";

/// Slurm's keys of kernel memory. cgroup2 never had a limit of its own for it, and v1 takes none since Linux 5.16
/// (Documentation/admin-guide/cgroup-v1/memory.rst).
const KERNEL_MEMORY: &str = "ConstrainKmemSpace AllowedKmemSpace MaxKmemPercent MinKmemSpace";
const KERNEL_MEMORYS: &str = "; this key was Slurm's, for a limit that the kernel no longer has: kernel memory counts as memory, which \
                              ConstrainRAMSpace limits";

/// The key of this name, among those that its source may give.
fn find(name: Token<'_>) -> Result<&'static Key, ConfigError> {
    let of_arguments = matches!(name.at.source, Source::Argument(_)).then_some(&FILE_ARGUMENT);
    let known = || KEYS.iter().chain(of_arguments);
    known().find(|key| key.name.eq_ignore_ascii_case(name.text)).ok_or_else(|| {
        if Rate::named(name.text).is_some() {
            return ConfigError::text(name.at, name.text, "IOMax=TARGET before it on the same line");
        }
        let is_kernel_memory = KERNEL_MEMORY.split(' ').any(|key| key.eq_ignore_ascii_case(name.text));
        let hint = if is_kernel_memory {
            KERNEL_MEMORYS.to_owned()
        } else if THEIRS.split(' ').any(|key| key.eq_ignore_ascii_case(name.text)) {
            "; this key is one of Slurm's cgroup.conf(5) alone".to_owned()
        } else {
            let near = nearest(name.text, known().map(|key| key.name));
            near.map_or_else(String::new, |key| format!("; did you mean {key}?"))
        };
        ConfigError::text(name.at, name.text, format!("a key of jobfence.conf(5){hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::parse;
    use super::super::samples::{errors_of, load_file};
    use super::*;

    #[test]
    fn a_key_of_cgroup_conf_is_not_one_that_is_like_it() {
        for key in THEIRS.split(' ') {
            assert_eq!(
                errors_of(&format!("{key}=1")),
                [format!(
                    "1:1: found \"{key}\", expected a key of jobfence.conf(5); this key is one of Slurm's cgroup.conf(5) alone"
                )]
            );
            assert!(KEYS.iter().all(|ours| !ours.name.eq_ignore_ascii_case(key)), "{key} is ours, too");
        }
        for key in KERNEL_MEMORY.split(' ').chain(["constrainkmemspace"]) {
            let [error] = &errors_of(&format!("{key}=no"))[..] else { panic!("{key}: one error") };
            assert!(error.contains("kernel memory counts as memory") && !error.contains("did you mean"), "{error}");
        }
    }

    #[test]
    fn all_mistakes_are_told_with_their_places() {
        let text = "Mode=off\n\n ConstrianRAMSpace=yes  Foo=1 mode=observe\nCPUQuotaPercent = 0\nconfig=/x\nMinRAMSpace=\n\
                    AllowedRAMSpace=\"99999999999999999999\" OnError=fial";
        assert_eq!(
            errors_of(text),
            [
                r#"3:2: found "ConstrianRAMSpace", expected a key of jobfence.conf(5); did you mean ConstrainRAMSpace?"#,
                r#"3:25: found "Foo", expected a key of jobfence.conf(5)"#,
                r#"3:31: found "mode", expected Mode only once; it is given on line 1 already"#,
                "4:19: found \"0\", expected CPUQuotaPercent to be a percentage from 1 to 1000 with at most two decimals; \
                 it is out of range",
                r#"5:1: found "config", expected a key of jobfence.conf(5)"#,
                r#"6:13: found the end of the line, expected a value after "=""#,
                "7:17: found \"99999999999999999999\", expected AllowedRAMSpace to be a percentage from 1 to 10000 with \
                 at most two decimals; it does not fit in 64 bits",
                "7:48: found \"fial\", expected OnError to be fail or warn, then perhaps at most once each of cpu, burst, \
                 weight, cores, ram, swap, memhigh, memlow, oomgroup, processes, io, ioweight, hugepages, devices, network, as \
                 fail,swap:warn",
            ]
        );
        assert_eq!(errors_of(&"x=1\n".repeat(100)).len(), 20);
    }

    #[test]
    fn rates_follow_their_target_on_the_same_line() {
        let text = "IOMax=/scratch rbps=200M wiops=1000 Mode=observe\niomax=/dev/sdb WBPS=1M # more\n\
                    IOMaxPerTask=\"/a rbps=1; /b rbps=2\" wbps=3\n";
        let config = parse("f", text.as_bytes()).unwrap();
        assert_eq!(config.io_max.to_string(), "/scratch rbps=200M wiops=1000; /dev/sdb wbps=1M");
        assert_eq!(config.io_max_per_task.to_string(), "/a rbps=1; /b rbps=2 wbps=3");
        assert_eq!((config.mode, config.io_max_per_user), (Mode::Observe, IoRules::default()));
        let loaded = load_file(&["IOMax=/x,rbps=1;/y,wbps=2"], Some((text, 0o644))).unwrap();
        assert_eq!(loaded.config.io_max.to_string(), "/x rbps=1; /y wbps=2");
        let expects = IoRules::EXPECTS;
        assert_eq!(
            errors_of(
                "rbps=1\nIOMax=/a\nIOMaxPerUser=/b rbps=1Q wbps=1\nIOMaxPerUser=/b\twbps=2 riops=1K\n\
                 IOMaxPerTask=/c rbps=1\nIOMaxPerTask=/c wbps=1\nIOMaxPerTask=c wbps=1 Foo=1\nIOMaxPerTask=/d Mode=off rbps=1\n"
            ),
            [
                r#"1:1: found "rbps", expected IOMax=TARGET before it on the same line"#,
                r#"2:7: found "/a", expected IOMax to be at least one of rbps=, wbps=, riops= and wiops= behind the target"#,
                &format!(r#"3:22: found "1Q", expected rbps to be {}"#, Rate::ReadBytes.expects()),
                &format!(r#"4:30: found "1K", expected riops to be {}"#, Rate::Reads.expects()),
                r#"6:14: found "/c wbps=1", expected IOMaxPerTask to be each target only once"#,
                &format!(r#"7:14: found "c wbps=1", expected IOMaxPerTask to be {expects}"#),
                r#"7:23: found "Foo", expected a key of jobfence.conf(5)"#,
                r#"8:14: found "/d", expected IOMaxPerTask to be at least one of rbps=, wbps=, riops= and wiops= behind the target"#,
                r#"8:26: found "rbps", expected IOMax=TARGET before it on the same line"#,
            ]
        );
    }

    #[test]
    fn mistakes_in_sections_are_told_with_their_places() {
        let text = "MaxProcesses=5\n[Partiton=gpu]\nMode=of\nRunDir=/x\n[QOS=a]\nMaxProcesses=1 MAXPROCESSES=2\nCgroupBase=x\n\
                    [QOS=a]\nMaxProcesses=3\n[QOS=b\nMaxProcesses=4\nMode=off\n";
        assert_eq!(
            errors_of(text),
            [
                "2:2: found \"Partiton\", expected a section about Partition (or Queue), QOS, Account, Project, \
                 VnodeType, PE, User, Group or Node (or Host); did you mean Partition?",
                "3:6: found \"of\", expected Mode to be enforce, observe or off",
                "4:1: found \"RunDir\", expected a key that can differ from job to job; RunDir stands before the first section",
                "6:16: found \"MAXPROCESSES\", expected MaxProcesses only once; it is given on line 6 already",
                "7:1: found \"CgroupBase\", expected a key that can differ from job to job; CgroupBase stands before the first \
                 section",
                "10:7: found the end of the line, expected \"]\"; a list has no blanks, unless it stands in double quotes",
                "12:6: found \"off\", expected Mode to be enforce or observe; off is for all jobs and stands before the first \
                 section",
            ]
        );
        assert_eq!(
            errors_of("[Account=a]\nMaxRAMPerUser=1G\n[User=a]\nMaxRAMPerUser=1G\n"),
            [
                "2:1: found \"MaxRAMPerUser\", expected a key of jobs; MaxRAMPerUser is for all of a user's together, so only \
                 sections by User, Group, Node or Host have it"
            ]
        );
        assert_eq!(
            errors_of("Mode=off\n[User=a]\nMode=enforce\n"),
            ["3:6: found \"enforce\", expected no Mode in a section, since it is off for all on line 1"]
        );
        assert_eq!(errors_of("Mode=off\n[User=a]\nMaxProcesses=1\n"), [""; 0]);
        assert_eq!(
            load_file(&["[User=a]"], None).unwrap_err(),
            "plugstack.conf argument 1, column 1: found \"[User\", expected a key of jobfence.conf(5)"
        );
        assert!(errors_of(&"[User=]\n".repeat(100)).len() == 20);
    }
}
