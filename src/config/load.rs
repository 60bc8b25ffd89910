// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the configuration comes from: the defaults, then the file (first what holds for all jobs, then the sections that a
//! job has, in their order), then the arguments in plugstack.conf.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::error::{ConfigError, MAX_ERRORS};
use super::keys::{FILE_ARGUMENT, KEYS, Key, nearest};
use super::lexer::{Position, Source, Token};
use super::parser::{self, Assignment, Item};
use super::sections::{self, Kind, Section};
use super::{Config, Mode, OnErrors};
use crate::cgroup::io::{IoRules, Malformed, Rate};
use crate::error::Result as ResultOf;
use crate::facts::{Asked, Facts};

/// Read if no argument `config=PATH` names another.
pub const DEFAULT_FILE: &str = "/etc/slurm/jobfence.conf";

/// A larger file, in bytes, is a mistake, and slurmstepd need not hold it in memory.
const MAX_FILE: usize = 1 << 20;

/// A configuration and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What holds for all jobs: defaults, the file without its sections, and arguments together.
    pub config: Config,
    /// The file that was read; `None` if nothing is called [`DEFAULT_FILE`], which leaves the defaults.
    pub file: Option<PathBuf>,
    written: Written,
    arguments: Vec<Setting>,
}

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq)]
struct Written {
    general: Vec<Setting>,
    sections: Vec<Section>,
}

/// One key with a value, and who said it.
#[derive(Debug, Clone)]
pub struct Setting {
    key: &'static Key,
    value: String,
    origin: Origin,
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        (self.key.name, &self.value, &self.origin) == (other.key.name, &other.value, &other.origin)
    }
}

impl Setting {
    fn apply(&self, config: &mut Config) {
        // A sound value has been read once before; a setter that refuses it now changes nothing.
        let _ = (self.key.set)(config, &self.value);
    }

    /// The key.
    pub fn key(&self) -> &'static Key {
        self.key
    }

    /// Its value as it is written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Where it is written.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// As it stands in a file.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() || self.value.contains([' ', '\t', '#']) {
            return write!(f, "{}=\"{}\"", self.key.name, self.value);
        }
        write!(f, "{}={}", self.key.name, self.value)
    }
}

/// Who has set a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody.
    Default,
    /// A line of the file.
    File {
        /// The file's name.
        name: String,
        /// Counted from 1.
        line: usize,
        /// The section in which it stands, as `[Partition=gpu]`.
        section: Option<String>,
    },
    /// An argument of the plugin or an option of the command, by its name for people.
    Argument(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line, section: None } => write!(f, "{name}:{line}"),
            Self::File { name, line, section: Some(section) } => write!(f, "{name}:{line} {section}"),
            Self::Argument(name) => f.write_str(name),
        }
    }
}

/// What holds for one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// By what is decided what is no limit: where facts are unknown, of each key the strictest value.
    pub config: Config,
    /// What may hold: one where everything is known that sections ask for, else each that could. Of every limit the least of
    /// them all is to be set. Never empty.
    pub candidates: Vec<Candidate>,
    /// What is unknown and would have to be known.
    pub unknown: Vec<Kind>,
    /// From which candidate the value of a key was taken in `config`, if not from the first.
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
    /// Who has said what of a key, in that order: the last counts, except for keys that can be given several times.
    pub fn said_of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |setting| setting.key.name == key.name)
    }

    /// Who has set a key.
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

    /// Who has set the value that a key has in `config`.
    pub fn origin(&self, key: &Key) -> Origin {
        let taken = self.taken.iter().find(|(name, _)| *name == key.name).map_or(0, |(_, candidate)| *candidate);
        self.candidates.get(taken).map_or(Origin::Default, |candidate| candidate.origin(key))
    }

    /// The facts that are unknown, in words; `None` where all are known that matter.
    pub fn unknown_in_words(&self) -> Option<String> {
        let words: Vec<String> = self.unknown.iter().map(Kind::to_string).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

impl Loaded {
    /// Defaults and what holds for all jobs; for callers that have no job.
    fn new(file: Option<PathBuf>, written: Written, arguments: Vec<Setting>) -> Self {
        let mut config = Config::default();
        written.general.iter().chain(&arguments).for_each(|setting| setting.apply(&mut config));
        Self { config, file, written, arguments }
    }

    /// Of what the sections speak, so that only that need be found out.
    pub fn asked(&self) -> Asked {
        sections::asked(&self.written.sections)
    }

    /// The headers of all sections, in their order, each with its assignments.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &[Setting])> {
        self.written.sections.iter().map(|section| (section.header.as_str(), section.settings.as_slice()))
    }

    /// What holds for a job that has no section, and for one that has one of them alone.
    pub fn one_by_one(&self) -> impl Iterator<Item = Candidate> {
        let each = (0..self.written.sections.len()).map(|index| self.with_sections(&[index]));
        std::iter::once(self.with_sections(&[])).chain(each)
    }

    /// The strictest of what any job can have, key by key: for what goes wrong before a job's sections are known.
    pub fn strictest(&self) -> Config {
        let mut strictest = self.config.clone();
        for index in 0..self.written.sections.len() {
            sections::take_stricter(&mut strictest, &self.with_sections(&[index]).config);
        }
        strictest
    }

    /// What holds for a job: the defaults, what the file says for all, the job's sections in the order of the file, and the
    /// arguments; each overrides those before it.
    ///
    /// Where a fact is unknown, all that could be: see [`Resolved`]. An error where that is more than can be looked at.
    pub fn for_job(&self, facts: &Facts) -> ResultOf<Resolved> {
        let (sets, unknown) = sections::candidates(&self.written.sections, facts)?;
        let candidates: Vec<Candidate> = sets.iter().map(|set| self.with_sections(set)).collect();
        let mut strictest = self.config.clone();
        let mut taken: Vec<(&'static str, usize)> = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            if index == 0 {
                strictest = candidate.config.clone();
                continue;
            }
            for name in sections::take_stricter(&mut strictest, &candidate.config) {
                taken.retain(|(before, _)| *before != name);
                taken.push((name, index));
            }
        }
        Ok(Resolved { config: strictest, candidates, unknown, taken })
    }

    fn with_sections(&self, set: &[usize]) -> Candidate {
        let sections: Vec<&Section> = set.iter().filter_map(|index| self.written.sections.get(*index)).collect();
        let in_sections = sections.iter().flat_map(|section| &section.settings);
        let settings: Vec<Setting> =
            self.written.general.iter().chain(in_sections).chain(&self.arguments).cloned().collect();
        let mut config = Config::default();
        settings.iter().for_each(|setting| setting.apply(&mut config));
        Candidate { config, sections: sections.iter().map(|section| section.header.clone()).collect(), settings }
    }
}

/// Why there is no configuration, and what the arguments alone say about such a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// From the arguments if they give it once and rightly, else fail: a broken file cannot soften anything.
    pub on_error: OnErrors,
    /// From the arguments if they give it once and rightly, else enforce.
    pub mode: Mode,
    errors: Vec<ConfigError>,
    of_arguments: bool,
}

impl LoadError {
    /// Whether any argument is wrong, and not only the file.
    pub fn are_of_arguments(&self) -> bool {
        self.of_arguments
    }

    /// At least one and at most 20 errors, those of the arguments before those of the file.
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

/// One error a line.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// Reads the arguments of the plugin, as Slurm has split them, and the file.
pub fn load(args: &[&[u8]]) -> Result<Loaded, LoadError> {
    load_named(args, &|number| format!("plugstack.conf argument {number}"))
}

/// The same, of arguments that have other names, by their numbers, counted from 1.
pub fn load_named(args: &[&[u8]], name: &dyn Fn(usize) -> String) -> Result<Loaded, LoadError> {
    let names: Vec<String> = (1..=args.len()).map(name).collect();
    load_or_default(args, &names, Path::new(DEFAULT_FILE))
}

/// The configuration that a file of this text, called `source` in errors, would give to jobs that have none of its sections.
pub fn parse(source: &str, text: &[u8]) -> Result<Config, Vec<ConfigError>> {
    Ok(Loaded::new(None, written(source, text)?, Vec::new()).config)
}

fn written(source: &str, text: &[u8]) -> Result<Written, Vec<ConfigError>> {
    if text.len() > MAX_FILE {
        return Err(too_large(source, text));
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, text));
    layer.refuse_modes();
    if layer.errors.is_empty() { Ok(layer.into_written()) } else { Err(layer.errors) }
}

/// The mistakes in what was read of a file that is too large, so that a line without an end is found in its place.
fn too_large(source: &str, text: &[u8]) -> Vec<ConfigError> {
    let cut_line = text.split_inclusive(|&byte| byte == b'\n').next_back().filter(|line| !line.ends_with(b"\n"));
    let mut text = text.to_vec();
    // What is missing of it is no mistake of its own.
    if let Some(cut) = cut_line.map(<[u8]>::len).filter(|cut| *cut <= parser::MAX_LINE) {
        text.truncate(text.len() - cut);
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, &text));
    let mut errors = layer.errors;
    errors.truncate(MAX_ERRORS - 1);
    errors.push(ConfigError::new(source, "a larger file", format!("at most {MAX_FILE} bytes")));
    errors
}

fn load_or_default(args: &[&[u8]], names: &[String], default: &Path) -> Result<Loaded, LoadError> {
    let mut arguments = Layer::default();
    for (text, name) in args.iter().zip(names) {
        arguments.read(parser::argument(name, text));
    }
    let from_file = match arguments.general.iter().find(|given| given.key.name == FILE_ARGUMENT.name) {
        None => read_file(default, true),
        Some(named) if named.sound => read_file(Path::new(named.first.value.text), false),
        Some(_) => Ok((None, Written::default())),
    };
    let mut errors = std::mem::take(&mut arguments.errors);
    let of_arguments = !errors.is_empty();
    let Written { general: arguments, .. } = arguments.into_written();
    match from_file {
        Ok((file, written)) if errors.is_empty() => return Ok(Loaded::new(file, written, arguments)),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    errors.truncate(MAX_ERRORS);
    let Config { on_error, mode, .. } = Loaded::new(None, Written::default(), arguments).config;
    Err(LoadError { on_error, mode, errors, of_arguments })
}

/// How often a file is opened whose name appears meanwhile: an editor renames it into its place.
const ATTEMPTS: usize = 3;

/// What the file gives; nothing may be said of a file but by the handle through which it is read.
fn read_file(path: &Path, may_be_missing: bool) -> Result<(Option<PathBuf>, Written), Vec<ConfigError>> {
    let name = path.display().to_string();
    let refuse = |found: String, expected: &str| vec![ConfigError::new(&name, found, expected)];
    let failed = |error: io::Error| refuse(describe(&error), "a file that can be read");
    // A fifo must not stop slurmstepd until somebody writes, and a terminal must not become its own.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut attempts = 0;
    let file = loop {
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        attempts += 1;
        match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => match missing(path) {
                Ok(Missing::Unnamed) if may_be_missing => return Ok((None, Written::default())),
                Ok(Missing::Link(found)) => return Err(refuse(found, "a file that can be read, or no such link")),
                Ok(Missing::Nothing) if attempts < ATTEMPTS => {}
                Ok(Missing::Unnamed | Missing::Nothing) => return Err(failed(error)),
                Err(error) => return Err(failed(error)),
            },
            opened => break opened.map_err(failed)?,
        }
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(refuse(found.to_owned(), "a regular file"));
    }
    if metadata.mode() & 0o002 != 0 {
        let found = format!("the mode {:04o}", metadata.mode() & 0o7777);
        return Err(refuse(found, "a file that only trusted users can write, since root obeys it; use chmod o-w"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok((Some(path.to_owned()), written(&name, &text)?))
}

/// What is missing of a file that is not found.
enum Missing {
    /// Its name, or that of a directory on the way to it: nobody has put a file there.
    Unnamed,
    /// What a symbolic link on the way names: somebody has meant a file to be there. In words.
    Link(String),
    /// Nothing any more: it has come meanwhile.
    Nothing,
}

/// `None`: it is not there.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// What is missing of this file.
fn missing(path: &Path) -> io::Result<Missing> {
    // From the root: what follows a link that leads to nothing is not there, either.
    let on_the_way: Vec<&Path> = path.ancestors().collect();
    for part in on_the_way.into_iter().rev() {
        let Some(itself) = if_there(fs::symlink_metadata(part))? else {
            return Ok(Missing::Unnamed);
        };
        if itself.is_symlink() && if_there(fs::metadata(part))?.is_none() {
            let target = if_there(fs::read_link(part))?.unwrap_or_default();
            let link = if part == path { String::new() } else { format!(" {}", part.display()) };
            return Ok(Missing::Link(format!("the symbolic link{link} to {}, which does not exist", target.display())));
        }
    }
    Ok(Missing::Nothing)
}

/// In the words and with the name that manual pages use.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => format!("{} ({errno:?})", errno.desc()),
        None => error.to_string(),
    }
}

/// What one source says, of which that is `sound` holds.
#[derive(Default)]
struct Layer<'a> {
    general: Vec<Given<'a>>,
    sections: Vec<GivenSection<'a>>,
    errors: Vec<ConfigError>,
}

/// An assignment as it was found.
struct Given<'a> {
    key: &'static Key,
    first: Assignment<'a>,
    /// All that is said of the key, in the form of one value.
    value: Cow<'a, str>,
    sound: bool,
}

struct GivenSection<'a> {
    /// `None` where the header is wrong: what follows it is looked at all the same.
    section: Option<Section>,
    given: Vec<Given<'a>>,
}

impl<'a> Layer<'a> {
    fn read(&mut self, items: impl Iterator<Item = Result<Item<'a>, ConfigError>>) {
        let mut items = items.peekable();
        while let Some(item) = items.next() {
            if self.errors.len() == MAX_ERRORS {
                return;
            }
            let taken = item.and_then(|item| match item {
                Item::Assignment(target) if is_rule(target.key.text) => {
                    // What follows on the line and is a part of the value.
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
        // Alone first, for what is wrong with it; then with those of the lines before, of which it may repeat one.
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
            None => given.push(Given { key, first: target, value: all, sound }),
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
        let checked = (key.set)(&mut Config::default(), value.text);
        given.push(Given { key, first: assignment, value: value.text.into(), sound: checked.is_ok() });
        checked.map_err(|wrong| {
            ConfigError::text(value.at, value.text, format!("{} to be {}{}", key.name, key.expects, wrong.detail()))
        })?;
        match self.sections.last().and_then(|last| sections::refuses(last.section.as_ref(), key)) {
            Some(expected) => Err(ConfigError::text(name.at, name.text, expected)),
            None => Ok(()),
        }
    }

    /// Off is for a whole node: among the jobs of one that is partly off, sessions would find no fence and be denied.
    fn refuse_modes(&mut self) {
        let mode = |given: &Given<'_>| {
            let mut config = Config::default();
            (given.key.set)(&mut config, given.first.value.text).ok().map(|()| config.mode)
        };
        let is_mode = |given: &&Given<'_>| given.key.name == "Mode" && given.sound;
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

    fn into_written(self) -> Written {
        let general = own(self.general, None);
        let sections = self.sections.into_iter().filter_map(|GivenSection { section, given }| {
            let mut section = section?;
            section.settings = own(given, Some(&section.header));
            Some(section)
        });
        Written { general, sections: sections.collect() }
    }
}

/// The sound ones, without the text that they were found in.
fn own(given: Vec<Given<'_>>, section: Option<&str>) -> Vec<Setting> {
    let sound = given.into_iter().filter(|given| given.sound);
    sound
        .map(|Given { key, first, value, .. }| {
            let Position { source, line, .. } = first.key.at;
            let origin = match source {
                Source::File(name) => Origin::File { name: name.to_owned(), line, section: section.map(str::to_owned) },
                Source::Argument(name) => Origin::Argument(name.to_owned()),
            };
            Setting { key, value: value.into_owned(), origin }
        })
        .collect()
}

/// Whether the key's value goes on in the assignments that follow on its line, as in Slurm's `NodeName=n1 CPUs=4`. In
/// plugstack.conf it cannot: there each argument stands for itself.
fn is_rule(name: &str) -> bool {
    ["IOMax", "IOMaxPerUser", "IOMaxPerTask"].iter().any(|rule| rule.eq_ignore_ascii_case(name))
}

/// The key of this name, among those that its source may give.
fn find(name: Token<'_>) -> Result<&'static Key, ConfigError> {
    let of_arguments = matches!(name.at.source, Source::Argument(_)).then_some(&FILE_ARGUMENT);
    let known = || KEYS.iter().chain(of_arguments);
    known().find(|key| key.name.eq_ignore_ascii_case(name.text)).ok_or_else(|| {
        if Rate::named(name.text).is_some() {
            return ConfigError::text(name.at, name.text, "IOMax=TARGET before it on the same line");
        }
        let hint = nearest(name.text, known().map(|key| key.name)).map(|key| format!("; did you mean {key}?"));
        ConfigError::text(name.at, name.text, format!("a key of jobfence.conf(5){}", hint.unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use nix::sys::stat::Mode as FileMode;
    use proptest::prelude::*;

    use crate::cgroup::huge_pages::HugePages;

    use super::super::{CpuPolicy, Limit, OnError, Percent, Period, SwapSpace, TaskCpus};
    use super::*;
    use crate::cgroup::devices;
    use crate::job::Cpus;

    fn errors_of(text: &str) -> Vec<String> {
        let errors = parse("/etc/slurm/jobfence.conf", text.as_bytes()).err().unwrap_or_default();
        errors.iter().map(|e| e.to_string().replacen("/etc/slurm/jobfence.conf:", "", 1)).collect()
    }

    /// Loads with these arguments where the default file is `name` in a fresh directory, with that text and mode.
    fn load_file(args: &[&str], file: Option<(&str, u32)>) -> Result<Loaded, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        if let Some((text, mode)) = file {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        load_at(args, &path)
    }

    fn load_at(args: &[&str], path: &Path) -> Result<Loaded, String> {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
        let shorten = |error: LoadError| error.to_string().replace(&path.display().to_string(), "FILE");
        let names: Vec<String> = (1..=args.len()).map(|number| format!("plugstack.conf argument {number}")).collect();
        load_or_default(&args, &names, path).map_err(shorten)
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let text = "mode=OBSERVE onerror=warn,ram:fail CgroupMountpoint=/cg CgroupBase=a.slice/b RunDir=\"/run/x y\"\n\
                    CleanupTimeout=30 ReapInterval=Never ReapSchedulerLeftovers=no\n\
                    ConstrainCPUQuota=no CPUQuotaPercent=150.5 CPUQuotaPeriod=50ms HeadroomCPUs=0.25 ThreadHints=no\r\n\
                    ConstrainRAMSpace=down AllowedRAMSpace=98.05 MinRAMSpace=1G # more\n\
                    ConstrainSwapSpace=0 AllowedSwapSpace=10% MaxProcesses=4096\n\
                    CPUBurst=12.5 CPUPolicy=Both Scavenger=yes MaxCPUsPerUser=1.5 MaxCPUsPerTask=granted\n\
                    MaxRAMPerUser=8G MaxRAMPerTask=64M MemoryHighPercent=90 MemoryLowPercent=5 MemoryMinPercent=1\n\
                    OOMKillStep=yes MaxProcessesPerUser=8192 MaxProcessesPerTask=512\n\
                    IOMax=/a wbps=1M\nIOMaxPerUser=/b riops=5 IOMaxPerTask=/c rbps=2K wiops=6 IOWeight=500\n\
                    ConstrainCores=yes MaxHugePages=2m:4g,1G:0 MaxHugePagesPerUser=2M:8G MaxHugePagesPerTask=2M:1G\n\
                    ConstrainDevices=yes DeviceAllow=\"/dev/fuse rw, char-pts\" GPUDevice=/dev/nvidia%d\n";
        let config = Config {
            mode: Mode::Observe,
            on_error: OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail),
            cgroup_mountpoint: "/cg".into(),
            cgroup_base: Some("a.slice/b".into()),
            run_dir: "/run/x y".into(),
            cleanup_timeout: Duration::from_secs(30),
            reap_interval: None,
            reap_scheduler_leftovers: false,
            constrain_cpu_quota: false,
            cpu_quota_percent: Percent::from_hundredths(15050),
            cpu_quota_period: Period::from_micros(50_000).unwrap(),
            cpu_burst: Percent::from_hundredths(1250),
            cpu_policy: CpuPolicy::Both,
            scavenger: true,
            max_cpus_per_user: Some(Cpus::from_thousandths(1500)),
            max_cpus_per_task: TaskCpus::Granted,
            headroom_cpus: Cpus::from_thousandths(250),
            thread_hints: false,
            constrain_ram_space: false,
            allowed_ram_space: Percent::from_hundredths(9805),
            min_ram_space: 1 << 30,
            constrain_swap_space: SwapSpace::No,
            allowed_swap_space: Percent::from_hundredths(1000),
            max_ram_per_user: Some(8 << 30),
            max_ram_per_task: Some(64 << 20),
            memory_high: Some(Percent::from_hundredths(9000)),
            memory_low: Percent::from_hundredths(500),
            memory_min: Percent::from_hundredths(100),
            oom_kill_step: true,
            max_processes: Some(4096),
            max_processes_per_user: Some(8192),
            max_processes_per_task: Some(512),
            io_max: IoRules::parse("/a wbps=1M").unwrap(),
            io_max_per_user: IoRules::parse("/b riops=5").unwrap(),
            io_max_per_task: IoRules::parse("/c rbps=2K wiops=6").unwrap(),
            io_weight: Some(500),
            constrain_cores: true,
            max_huge_pages: HugePages::parse("2M:4G,1G:0").unwrap(),
            max_huge_pages_per_user: HugePages::parse("2M:8G").unwrap(),
            max_huge_pages_per_task: HugePages::parse("2M:1G").unwrap(),
            constrain_devices: true,
            device_allow: devices::parse("/dev/fuse rw,char-pts").unwrap(),
            gpu_device: devices::GpuDevice::parse("/dev/nvidia%d"),
        };
        assert_eq!(parse("f", text.as_bytes()), Ok(config));
        assert_eq!(parse("f", b""), Ok(Config::default()));
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
                 weight, cores, ram, swap, memhigh, memlow, oomgroup, processes, io, ioweight, hugepages, devices, as \
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
    fn a_section_has_targets_of_its_own() {
        let text = "IOMax=/a rbps=1\nIOMax=/b rbps=2\n[Partition=gpu]\nIOMax=/a rbps=9\nIOMax=/c wiops=3\n\
                    IOMaxPerUser=/a rbps=1\n[User=alice]\nIOMaxPerUser=/a rbps=1\n";
        assert_eq!(
            errors_of(text),
            [
                r#"6:1: found "IOMaxPerUser", expected a key of jobs; IOMaxPerUser is for all of a user's together, so only sections by User, Group or Node have it"#
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

    #[test]
    fn arguments_override_the_file() {
        let loaded = load_file(&["Mode=off", "rundir=/run/a#b"], Some(("Mode=observe OnError=warn\n", 0o644))).unwrap();
        assert_eq!(loaded.config.mode, Mode::Off);
        assert_eq!(loaded.config.on_error, OnErrors::all(OnError::Warn));
        assert_eq!(loaded.config.run_dir, Path::new("/run/a#b"));
        assert!(loaded.file.is_some());
    }

    /// The general lines, then two sections, of which the second comes later.
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
        assert_eq!((general.max_processes, general.mode), (Some(1000), Mode::Enforce));
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
        assert_eq!((config.max_processes, config.mode), (Some(200), Mode::Observe));
        assert_eq!(config.cpu_quota_percent, Percent::HUNDRED);
        assert_eq!(origin(&gpu, "MaxProcesses"), "F:4 [Partition=gpu,debug]");
        assert_eq!(origin(&gpu, "CPUQuotaPercent"), "F:1");

        // Of two sections the later.
        let both = facts(Some("debug"), Some("Physics"));
        let resolved = loaded.for_job(&both).unwrap();
        assert_eq!((resolved.config.max_processes, resolved.config.mode), (None, Mode::Observe));
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
        assert_eq!((resolved.config.max_processes, resolved.config.mode), (Some(200), Mode::Observe));
        assert_eq!(resolved.config.cpu_quota_percent, Percent::from_hundredths(5000));
        assert!(resolved.origin(key("CPUQuotaPercent")).to_string().ends_with(":7 [Account=physics]"));
        assert!(resolved.origin(key("MaxProcesses")).to_string().ends_with(":4 [Partition=gpu,debug]"));
        assert_eq!(resolved.unknown_in_words().as_deref(), Some("Account"));

        let resolved = loaded.for_job(&Facts::default()).unwrap();
        assert_eq!((resolved.config.max_processes, resolved.config.mode), (Some(200), Mode::Enforce));
        assert_eq!(resolved.unknown_in_words().as_deref(), Some("Partition, Account"));
        assert_eq!(loaded.strictest().max_processes, Some(200));
        assert_eq!(loaded.strictest().cpu_quota_percent, Percent::from_hundredths(5000));
        // Nothing is unknown that no section asks for, and an argument leaves nothing open.
        let plain = load_file(&[], Some(("MaxProcesses=5\n", 0o644))).unwrap();
        assert_eq!(plain.for_job(&Facts::default()).unwrap().unknown_in_words(), None);
        let loaded = load_file(&["MaxProcesses=7"], Some((SECTIONS, 0o644))).unwrap();
        let resolved = loaded.for_job(&Facts::default()).unwrap();
        assert!(resolved.candidates.iter().all(|candidate| candidate.config.max_processes == Some(7)));
    }

    #[test]
    fn strictness_is_decided_for_every_kind_of_key() {
        let text = "Mode=observe OnError=warn,ram:fail ConstrainCPUQuota=no CPUQuotaPercent=200 HeadroomCPUs=4\n\
                    ConstrainRAMSpace=no AllowedRAMSpace=200 MinRAMSpace=1G ConstrainSwapSpace=no AllowedSwapSpace=90\n\
                    [QOS=x]\nMode=enforce OnError=warn,swap:fail ConstrainCPUQuota=yes CPUQuotaPercent=100 HeadroomCPUs=2\n\
                    ConstrainRAMSpace=yes AllowedRAMSpace=100 MinRAMSpace=64M ConstrainSwapSpace=yes AllowedSwapSpace=10\n\
                    MaxProcesses=10\n";
        // Whichever of the two is the section: the strict one wins.
        let (general, section) = text.split_once("[QOS=x]\n").unwrap();
        for text in [text.to_owned(), format!("{section}[QOS=x]\n{general}MaxProcesses=unlimited\n")] {
            let config = load_file(&[], Some((&text, 0o644))).unwrap().for_job(&Facts::default()).unwrap().config;
            let expected = Config {
                mode: Mode::Enforce,
                on_error: OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail).with(Limit::Swap, OnError::Fail),
                headroom_cpus: Cpus::whole(2),
                min_ram_space: 64 << 20,
                constrain_swap_space: SwapSpace::Yes,
                allowed_swap_space: Percent::from_hundredths(1000),
                max_processes: Some(10),
                ..Config::default()
            };
            assert_eq!(config, expected, "{text}");
        }
    }

    #[test]
    fn mistakes_in_sections_are_told_with_their_places() {
        let text = "MaxProcesses=5\n[Partiton=gpu]\nMode=of\nRunDir=/x\n[QOS=a]\nMaxProcesses=1 MAXPROCESSES=2\nCgroupBase=x\n\
                    [QOS=a]\nMaxProcesses=3\n[QOS=b\nMaxProcesses=4\nMode=off\n";
        assert_eq!(
            errors_of(text),
            [
                "2:2: found \"Partiton\", expected a section about Partition, QOS, Account, User, Group or Node; did you mean \
                 Partition?",
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
                 sections by User, Group or Node have it"
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

    #[test]
    fn without_the_default_file_the_defaults_fence() {
        assert_eq!(load_file(&[], None), Ok(Loaded::new(None, Written::default(), Vec::new())));
        assert_eq!(
            load_file(&["CONFIG=/nonexistent/f"], None).unwrap_err(),
            "/nonexistent/f: found No such file or directory (ENOENT), expected a file that can be read"
        );
    }

    #[test]
    fn a_name_that_leads_to_no_file_is_no_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = dir.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let expected = "expected a file that can be read, or no such link";
        let dangling = link("jobfence.conf", "gone/jobfence.conf");
        let nowhere = link("slurm", "/nonexistent/slurm");
        for args in [vec![], vec![format!("config={}", dangling.display())]] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(
                load_at(&args, &dangling).unwrap_err(),
                format!("FILE: found the symbolic link to gone/jobfence.conf, which does not exist, {expected}")
            );
        }
        // Through a link to one that dangles, and through one of a directory above.
        let second = link("second", "jobfence.conf");
        assert!(load_at(&[], &second).unwrap_err().contains("link to jobfence.conf, which does not exist"));
        assert_eq!(
            load_at(&[], &nowhere.join("jobfence.conf")).unwrap_err(),
            format!(
                "FILE: found the symbolic link {} to /nonexistent/slurm, which does not exist, {expected}",
                nowhere.display()
            )
        );
        // No name is no file, also where links on the way lead to directories.
        let there = link("there", ".");
        for none in [there.join("f"), dir.path().join("no/f"), there.join("no/f")] {
            assert_eq!(load_at(&[], &none).unwrap().file, None, "{}", none.display());
        }
        let told = |path: &Path| load_at(&[], path).unwrap_err().split(", expected").next().unwrap().to_owned();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(told(&dir.path().join("file/f")), "FILE: found Not a directory (ENOTDIR)");
        let circle = link("circle", "circle");
        assert!(told(&circle).ends_with("(ELOOP)") && told(&circle.join("f")).ends_with("(ELOOP)"));
        // What comes while it is looked for is read.
        fs::create_dir(dir.path().join("gone")).unwrap();
        fs::write(dir.path().join("gone/jobfence.conf"), "MaxProcesses=7\n").unwrap();
        assert_eq!(load_at(&[], &dangling).unwrap().config.max_processes, Some(7));
        assert!(matches!(missing(&dangling), Ok(Missing::Nothing)));
    }

    #[test]
    fn mistakes_in_arguments_name_the_argument() {
        assert_eq!(
            load_file(&["Mode=on", "confg=/x", "config=x", "Config=/y", "RunDir"], Some(("Mode=no\n", 0o644)))
                .unwrap_err(),
            "plugstack.conf argument 1, column 6: found \"on\", expected Mode to be enforce, observe or off\n\
             plugstack.conf argument 2, column 1: found \"confg\", expected a key of jobfence.conf(5); \
             did you mean config?\n\
             plugstack.conf argument 3, column 8: found \"x\", expected config to be an absolute path without \"..\", \
             double quotes or control characters\n\
             plugstack.conf argument 4, column 1: found \"Config\", expected config only once; it is given in plugstack.conf argument 3 \
             already\n\
             plugstack.conf argument 5, column 7: found the end of the line, expected \"=\" and a value after the key"
        );
    }

    #[test]
    fn only_sound_arguments_decide_what_a_broken_file_does() {
        let decided = |args: &[&[u8]]| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("f"), "Mode=off OnError=warn torn").unwrap();
            let names = vec![String::new(); args.len()];
            let errors = load_or_default(args, &names, &dir.path().join("f")).unwrap_err();
            (errors.mode, errors.on_error.within(errors.mode).general())
        };
        assert_eq!(decided(&[]), (Mode::Enforce, OnError::Fail));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=enforce", b"what"]), (Mode::Enforce, OnError::Warn));
        assert_eq!(decided(&[b"OnError=fail", b"Mode=observe"]), (Mode::Observe, OnError::Warn));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=of", b"OnError=warn"]), (Mode::Enforce, OnError::Fail));
    }

    #[test]
    fn only_a_small_regular_file_that_others_cannot_write_is_obeyed() {
        assert_eq!(
            load_file(&[], Some(("", 0o646))).unwrap_err(),
            "FILE: found the mode 0646, expected a file that only trusted users can write, since root obeys it; use chmod o-w"
        );
        let line = "#".repeat(63) + "\n";
        assert!(load_file(&[], Some((&line.repeat(1 << 14), 0o644))).is_ok());
        assert_eq!(
            load_file(&[], Some((&(line.repeat(1 << 14) + "\n"), 0o644))).unwrap_err(),
            "FILE: found a larger file, expected at most 1048576 bytes"
        );
        let endless = format!("# first\nMode={}", "x".repeat(10_000_000));
        assert_eq!(
            load_file(&[], Some((&endless, 0o644))).unwrap_err(),
            format!(
                "FILE:2:1: found \"Mode={}...\", expected a line of at most 4096 bytes\n\
                 FILE: found a larger file, expected at most 1048576 bytes",
                "x".repeat(55)
            )
        );
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, FileMode::S_IRWXU).unwrap();
        for (path, found) in
            [(dir.path(), "directory"), (&fifo, "special file"), (Path::new("/dev/null"), "special file")]
        {
            assert_eq!(load_at(&[], path).unwrap_err(), format!("FILE: found a {found}, expected a regular file"));
        }
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let fails = || prop::sample::select(vec![OnError::Fail, OnError::Warn]);
        let percent = |from: u32, to: u32| (from * 100..=to * 100).prop_map(Percent::from_hundredths);
        let path = || "(/[^/\"\\pC.][^/\"\\pC]{0,9}){1,3}".prop_map(PathBuf::from);
        let words = (
            prop::sample::select(vec![Mode::Enforce, Mode::Observe, Mode::Off]),
            (fails(), fails(), fails(), fails(), fails()),
            (path(), prop::option::of("[A-Za-z0-9_-]{1,9}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,9}){0,3}"), path()),
            any::<[bool; 6]>(),
            prop::sample::select(vec![CpuPolicy::Quota, CpuPolicy::Weight, CpuPolicy::Both]),
            prop::sample::select(vec![SwapSpace::No, SwapSpace::Auto, SwapSpace::Yes]),
        );
        let cpus = || (1_u64..=1_024_000).prop_map(Cpus::from_thousandths);
        let task_cpus =
            prop_oneof![Just(TaskCpus::Unlimited), Just(TaskCpus::Granted), cpus().prop_map(TaskCpus::Count),];
        let bytes = || (1_u64 << 10..1 << 54).prop_map(|kib| kib << 10);
        let pages = || {
            let sizes = prop::collection::btree_map(10_u32..=34, 0_u64..1 << 30, 0..4);
            sizes.prop_map(|sizes| {
                let text: Vec<String> =
                    sizes.iter().map(|(power, kib)| format!("{}K:{kib}K", 1_u64 << (power - 10))).collect();
                HugePages::parse(&text.join(",")).unwrap_or_default()
            })
        };
        let processes = || prop::option::of(1_u64..=4_194_304);
        let numbers = (
            (percent(1, 1000), percent(1, 10_000), percent(0, 10_000)),
            (1_000_u32..=1_000_000).prop_map(|micros| Period::from_micros(micros).unwrap()),
            bytes(),
            (0_u64..=1_024_000).prop_map(Cpus::from_thousandths),
            (processes(), processes(), processes()),
            (percent(0, 100), percent(0, 100), percent(0, 100), prop::option::of(percent(1, 100))),
            (prop::option::of(cpus()), task_cpus, prop::option::of(bytes()), prop::option::of(bytes())),
            (pages(), pages(), pages()),
        );
        let rules = || {
            prop::collection::vec((1_u64..1 << 50, 1_u32..u32::MAX), 0..3).prop_map(|rates| {
                let rule = |(n, (bytes, count))| format!("/{n} rbps={bytes} wiops={count}");
                let text = rates.into_iter().enumerate().map(rule).collect::<Vec<_>>().join(";");
                if text.is_empty() { IoRules::default() } else { IoRules::parse(&text).unwrap() }
            })
        };
        let devices = (
            any::<bool>(),
            prop::collection::vec("(/dev/[a-z]{1,3}|char-[a-z/]{1,5}|block-[0-9]{1,3})( r?wm?)?", 0..3),
            prop::option::of("/[a-z/]{0,5}(%d|\\[1[0-9],[0-9]\\])"),
            (1_u64..=600, prop::option::of(1_u64..=86_400), any::<bool>()),
        );
        (words, numbers, ([rules(), rules(), rules()], prop::option::of(1_u64..=10_000)), devices).prop_map(
            |(
                (mode, on, (mount, base, run), yes, policy, swap),
                (percents, period, min, headroom, processes, shares, most, pages),
                io,
                (constrain_devices, allow, gpu, ends),
            )| Config {
                mode,
                on_error: OnErrors::all(on.0)
                    .with(Limit::Cpu, on.1)
                    .with(Limit::Ram, on.2)
                    .with(Limit::Swap, on.3)
                    .with(Limit::Processes, on.4),
                cgroup_mountpoint: mount,
                cgroup_base: base,
                run_dir: run,
                cleanup_timeout: Duration::from_secs(ends.0),
                reap_interval: ends.1.map(Duration::from_secs),
                reap_scheduler_leftovers: ends.2,
                constrain_cpu_quota: yes[0],
                cpu_quota_percent: percents.0,
                cpu_quota_period: period,
                cpu_burst: shares.0,
                cpu_policy: policy,
                scavenger: yes[3],
                max_cpus_per_user: most.0,
                max_cpus_per_task: most.1,
                headroom_cpus: headroom,
                thread_hints: yes[5],
                constrain_ram_space: yes[1],
                allowed_ram_space: percents.1,
                min_ram_space: min,
                constrain_swap_space: swap,
                allowed_swap_space: percents.2,
                max_ram_per_user: most.2,
                max_ram_per_task: most.3,
                memory_high: shares.3,
                memory_low: shares.1,
                memory_min: shares.2,
                oom_kill_step: yes[4],
                max_processes: processes.0,
                max_processes_per_user: processes.1,
                max_processes_per_task: processes.2,
                io_max: io.0[0].clone(),
                io_max_per_user: io.0[1].clone(),
                io_max_per_task: io.0[2].clone(),
                io_weight: io.1,
                constrain_cores: yes[5],
                max_huge_pages: pages.0,
                max_huge_pages_per_user: pages.1,
                max_huge_pages_per_task: pages.2,
                constrain_devices,
                device_allow: allow.iter().flat_map(|rule| devices::parse(rule).unwrap()).collect(),
                gpu_device: gpu.map(|text| devices::GpuDevice::parse(&text).unwrap()),
            },
        )
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, args in prop::collection::vec(any::<Vec<u8>>(), 0..4)) {
            let _ = parse("f", &text);
            let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
            let _ = load_or_default(&args, &vec![String::new(); args.len()], Path::new("/nonexistent"));
        }

        #[test]
        fn nothing_that_looks_like_a_file_makes_it_panic(
            text in "((\\[[ ]?(User|Node|QOS|x)?=?[a-z\\[\\]0-9\",-]{0,9}\\]?\n)|(Mode|CPUQuotaPercent|MinRAMSpace|OnError|[ä\0])[ \t]?(=|)[ ]?([a-z,:]{0,9}|[0-9.]{0,22}[%KMGTmsib]{0,3}|\"[^\n]{0,5}\"?)[ #\r]?\n?){0,6}"
        ) {
            let refused = parse("f", text.as_bytes()).err();
            prop_assert!(refused.is_none_or(|errors| (1..=20).contains(&errors.len())));
        }

        /// Whichever of the possibilities is the truth, nothing that holds is more generous.
        #[test]
        fn the_strictest_is_no_more_generous_than_any(one in any_config(), other in any_config()) {
            let of_jobs = |config: &Config| {
                let node = ["CgroupMountpoint", "CgroupBase", "RunDir", "CleanupTimeout", "ReapInterval", "ReapSchedulerLeftovers"];
                let node = node.map(str::to_lowercase);
                // Of a user as a whole, they are not for sections by QOS.
                let is_users = |key: &str| key.ends_with("peruser");
                let lines: Vec<String> = config.to_string().lines().map(str::to_owned).collect();
                let for_jobs = lines.into_iter().filter(|line| {
                    let key = line.split('=').next().unwrap_or_default().to_lowercase();
                    !(node.contains(&key) || is_users(&key) || key == "mode" && config.mode == Mode::Off)
                });
                for_jobs.map(|line| line + "\n").collect::<String>()
            };
            let text = format!("{}[QOS=x]\n{}", of_jobs(&one), of_jobs(&other));
            let written = written("f", text.as_bytes()).unwrap();
            let resolved = Loaded::new(None, written, Vec::new()).for_job(&Facts::default()).unwrap();
            let strict = &resolved.config;
            prop_assert_eq!(resolved.candidates.len(), 2);
            for Candidate { config, .. } in &resolved.candidates {
                prop_assert!(strict.cpu_quota_percent <= config.cpu_quota_percent);
                prop_assert!(strict.min_ram_space <= config.min_ram_space);
                prop_assert!(strict.allowed_ram_space <= config.allowed_ram_space);
                prop_assert!(strict.allowed_swap_space <= config.allowed_swap_space);
                prop_assert!(strict.headroom_cpus <= config.headroom_cpus);
                prop_assert!(strict.constrain_ram_space >= config.constrain_ram_space);
                prop_assert!(strict.constrain_swap_space >= config.constrain_swap_space);
                prop_assert!(strict.constrain_cpu_quota >= config.constrain_cpu_quota);
                prop_assert!(strict.max_processes.unwrap_or(u64::MAX) <= config.max_processes.unwrap_or(u64::MAX));
                prop_assert!(strict.mode == Mode::Enforce || config.mode != Mode::Enforce);
                for limit in [Limit::Cpu, Limit::Ram, Limit::Swap, Limit::Processes] {
                    let fails = |config: &Config| config.on_error.for_limit(limit) == OnError::Fail;
                    prop_assert!(fails(strict) || !fails(config));
                }
            }
        }

        #[test]
        fn a_configuration_printed_is_read_as_the_same(config in any_config()) {
            prop_assert_eq!(parse("f", config.to_string().as_bytes()), Ok(config));
        }
    }
}
