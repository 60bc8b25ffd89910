// SPDX-License-Identifier: GPL-2.0-or-later
//! A user's requests: the limits that a job asks for when it is submitted. They can only lower what the site allows.
//!
//! The same table is used in the commands, where a mistake is reported at the prompt, and in the step daemon, where all input is the user's
//! and may be forged. No I/O, and no scheduler.

use crate::bytes;
use crate::config::{
    Limit, Percent, SignalAt, USAGE_CARD_EXPECTS, UsageCard, signal_at, usage_card, usage_card_text, yes_no,
};
use std::fmt;

use crate::cgroup::io::{IoRules, Malformed, Rate};
use crate::config::SIZE;
use crate::config::units::{Wrong, cpus, none_or, percent, processes, size, text_or_none};
use crate::error::{Error, Result};
use crate::job::Cpus;

/// The longest value in bytes: longer ones are refused before they are parsed. This also holds for the form that is passed on, which may be
/// longer than the given one. With its NUL it must fit into the buffer that a step reads it with (`Spank::getenv`).
const MAX_VALUE: usize = 1023;

/// How much of a value an error shows, in characters.
const MAX_SHOWN: usize = 60;

/// The lowest rate that can be requested, in bytes and in operations a second. A process that waits for a throttled request cannot be
/// killed (on Linux 6.18 SIGKILL did not end a direct read of 1 MiB at 1 byte a second until the limit was lifted), and Slurm drains a node
/// on which a step does not end (`UnkillableStepTimeout`): a user must not be able to cause that by a request.
const LEAST_RATE: fn(Rate) -> u64 = |rate| if rate.counts_bytes() { 1 << 20 } else { 100 };
const TOO_SLOW: &str =
    "at least 1M bytes or 100 operations in a second, since a process that waits for less cannot be killed";

const TOO_LONG: &str = "at most 1023 bytes, with a blank behind each comma and semicolon";

/// The requests. `None`: not requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests {
    /// CPU time, 0.001 to 1024 CPUs.
    pub cpu_limit: Option<Cpus>,
    /// CPU time that may be saved for later, 0 to 100 % of the quota.
    pub cpu_burst: Option<Percent>,
    /// The amount of memory above which memory is reclaimed, in bytes, at least 1 MiB.
    pub mem_high: Option<u64>,
    /// Processes and threads, 1 to 4194304.
    pub pids_max: Option<u64>,
    /// Rates of reading and writing, by target.
    pub io_max: IoRules,
    /// When the job's output ends with a card of its usage: no limit, and the user's own choice.
    pub usage_card: Option<UsageCard>,
    /// Whether the user wants to divide the step's cgroup: no limit, and the site decides whether the user may.
    pub delegate: Option<bool>,
    /// At which shares of its limits the job is told: no limit, and the user's own choice.
    pub signal_at: Option<Option<SignalAt>>,
    /// To which share of it the job's limit of memory may grow by what is lent, if the site lends any: 100 to 1000 %.
    pub elastic_ram: Option<Percent>,
}

/// Why a value was refused.
enum Refusal {
    /// The value as a whole is wrong.
    Value(Wrong),
    /// A part of it is wrong.
    Piece(Malformed),
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Self {
        Self::Value(wrong)
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Piece(malformed)
    }
}

/// One thing that can be requested.
#[derive(Debug)]
pub struct Request {
    /// The option's name, without the dashes.
    pub name: &'static str,
    /// The word that stands for its value in `--help`.
    pub argument: &'static str,
    /// What it does, for `--help`.
    pub usage: &'static str,
    /// The limit that it lowers. `None`: it is no limit.
    pub limit: Option<Limit>,
    /// Whether jobs of every scheduler can ask for it: by options, variables or attributes.
    pub is_everywhere: bool,
    /// The valid values, with unit and range; completes "expected ...".
    expects: &'static str,
    /// An example value.
    example: &'static str,
    set: fn(&mut Requests, &str) -> Result<(), Refusal>,
    get: fn(&Requests) -> Option<String>,
}

/// All requests, in the order of jobfence(8).
pub static REQUESTS: &[Request] = &[
    Request {
        name: "cpu-limit",
        limit: Some(Limit::Cpu),
        is_everywhere: true,
        argument: "CPUS",
        usage: "limit CPU time on each node to this number of CPUs, such as 0.5, if more were allocated",
        expects: "a number of CPUs from 0.001 to 1024 with at most three decimals",
        example: "0.5",
        set: |requests, text| {
            let limit = cpus(text)?;
            if limit.thousandths() == 0 {
                return Err(Wrong::Range.into());
            }
            requests.cpu_limit = Some(limit);
            Ok(())
        },
        get: |requests| requests.cpu_limit.map(|cpus| cpus.to_string()),
    },
    Request {
        name: "cpu-burst",
        limit: Some(Limit::Burst),
        is_everywhere: true,
        argument: "PERCENT",
        usage: "save at most this share of the CPU quota for later, if the site allows more",
        expects: "a percentage from 0 to 100 with at most two decimals",
        example: "20",
        set: |requests, text| put(&mut requests.cpu_burst, percent(text, 0..=100)),
        get: |requests| requests.cpu_burst.map(|percent| percent.to_string()),
    },
    Request {
        name: "mem-high",
        limit: Some(Limit::MemoryHigh),
        is_everywhere: true,
        argument: "SIZE",
        usage: "reclaim memory above this size on each node, before the limit at which processes are killed",
        expects: SIZE,
        example: "2G",
        set: |requests, text| put(&mut requests.mem_high, size(text)),
        get: |requests| requests.mem_high.map(bytes::text),
    },
    Request {
        name: "pids-max",
        limit: Some(Limit::Processes),
        is_everywhere: true,
        argument: "COUNT",
        usage: "allow at most this number of processes and threads on each node",
        expects: "a whole number of processes from 1 to 4194304",
        example: "100",
        set: |requests, text| put(&mut requests.pids_max, processes(text)),
        get: |requests| requests.pids_max.map(|count| count.to_string()),
    },
    Request {
        name: "io-max",
        limit: Some(Limit::Io),
        is_everywhere: true,
        argument: "RULES",
        usage: "limit reading and writing on each node, by disk or by a path on it: \"/scratch rbps=200M wiops=1000\", more of \
                these after a semicolon",
        expects: IoRules::EXPECTS,
        example: "\"/scratch wbps=100M\"",
        set: |requests, text| {
            let rules = IoRules::parse(text)?;
            if let Some((rate, value)) = rules.any_below(LEAST_RATE) {
                return Err(Malformed { found: format!("{}={value}", rate.name()), expected: TOO_SLOW }.into());
            }
            let length = rules.to_string().len();
            if length > MAX_VALUE {
                return Err(Malformed { found: format!("{length} bytes"), expected: TOO_LONG }.into());
            }
            requests.io_max = rules;
            Ok(())
        },
        get: |requests| (!requests.io_max.is_empty()).then(|| requests.io_max.to_string()),
    },
    Request {
        name: "usage-card",
        limit: None,
        is_everywhere: true,
        argument: "WHEN",
        usage: "end the job's output with a card of what was used: never, failed, wasteful or always",
        expects: USAGE_CARD_EXPECTS,
        example: "always",
        set: |requests, text| put(&mut requests.usage_card, usage_card(text)),
        get: |requests| requests.usage_card.map(|card| usage_card_text(card).to_owned()),
    },
    Request {
        name: "delegate",
        limit: None,
        is_everywhere: false,
        argument: "YES",
        usage: "let the job make cgroups of its own below its limits, if the site allows it: yes or no",
        expects: "yes or no",
        example: "yes",
        set: |requests, text| put(&mut requests.delegate, yes_no(text)),
        get: |requests| requests.delegate.map(|wanted| if wanted { "yes" } else { "no" }.to_owned()),
    },
    Request {
        name: "signal-at",
        limit: None,
        is_everywhere: true,
        argument: "SHARES",
        usage: "when one of these is reached, write a sentence to stderr and perhaps send a signal: mem:90%, mem:90%:USR1, pids:90%, \
                cpu:throttled=20% or pressure:memory=10%, with commas between them, and with B:mem:90%:USR1 to the batch shell alone",
        expects: signal_at::EXPECTS,
        example: "mem:90%:USR1",
        set: |requests, text| put(&mut requests.signal_at, none_or(text, signal_at::read)),
        get: |requests| requests.signal_at.map(text_or_none),
    },
    Request {
        name: "elastic-ram",
        limit: None,
        is_everywhere: true,
        argument: "PERCENT",
        usage: "let the memory limit grow by what is lent to at most this share of it: 100% is no loan",
        expects: "a percentage from 100 to 1000 with at most two decimals",
        example: "100%",
        set: |requests, text| put(&mut requests.elastic_ram, percent(text, 100..=1000)),
        get: |requests| requests.elastic_ram.map(|percent| percent.to_string()),
    },
];

/// Those that jobs of every scheduler can ask for.
pub fn everywhere() -> impl Iterator<Item = &'static Request> {
    REQUESTS.iter().filter(|request| request.is_everywhere)
}

fn put<T>(request: &mut Option<T>, value: Result<T, Wrong>) -> Result<(), Refusal> {
    *request = Some(value?);
    Ok(())
}

impl Request {
    /// Reads a value from any source into `requests`, which stay unchanged if it is wrong.
    ///
    /// `given` names its source, as `--cpu-limit`.
    pub fn read(&self, given: &str, value: &[u8], requests: &mut Requests) -> Result<()> {
        self.read_with(given, &format!("for example {given}={}", self.example), value, requests)
    }

    /// The same of a variable that a command writes for its option: `example` is what users know.
    pub fn read_with(&self, given: &str, example: &str, value: &[u8], requests: &mut Requests) -> Result<()> {
        let wrong = |found: &str, detail: &str| {
            Error::new(format!("{given}: found {found}, expected {}{detail}; {example}", self.expects))
        };
        let text = match std::str::from_utf8(value) {
            _ if value.len() > MAX_VALUE => return Err(wrong(&format!("{} bytes", value.len()), "")),
            Ok(text) if text.chars().any(char::is_control) => return Err(wrong("control characters", "")),
            Ok(text) => text,
            Err(_) => return Err(wrong("bytes that are no text", "")),
        };
        (self.set)(requests, text).map_err(|refusal| match refusal {
            Refusal::Value(error) => wrong(&quoted(text), &error.detail()),
            Refusal::Piece(error) => Error::new(format!("{given}: {error}; {example}")),
        })
    }

    /// The variable that passes it on: `JOBFENCE_CPU_LIMIT`.
    pub fn variable(&self) -> String {
        format!("JOBFENCE_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// An example of its correct use.
    pub fn for_example(&self) -> String {
        format!("for example --{}={}", self.name, self.example)
    }

    /// The value in a form that [`Request::read`] accepts. `None`: it was not requested.
    pub fn value(&self, requests: &Requests) -> Option<String> {
        (self.get)(requests)
    }
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("\"{shown}{more}\"")
}

impl Requests {
    /// The lower one of each limit.
    #[must_use]
    pub fn at_most(self, other: &Self) -> Self {
        Self {
            cpu_limit: least(self.cpu_limit, other.cpu_limit),
            cpu_burst: least(self.cpu_burst, other.cpu_burst),
            mem_high: least(self.mem_high, other.mem_high),
            pids_max: least(self.pids_max, other.pids_max),
            io_max: self.io_max.at_most(&other.io_max),
            usage_card: self.usage_card.or(other.usage_card),
            delegate: self.delegate.or(other.delegate),
            signal_at: self.signal_at.or(other.signal_at),
            elastic_ram: least(self.elastic_ram, other.elastic_ram),
        }
    }
}

/// The lower one; `None` is no limit.
fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The user's requests for the step that begins, and for its job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserRequests {
    /// For the job: its directory, and each of its steps.
    pub job: Requests,
    /// For the step alone.
    pub step: Requests,
}

impl UserRequests {
    /// Whether it names paths, which must be looked up.
    pub fn names_paths(&self) -> bool {
        !(self.job.io_max.is_empty() && self.step.io_max.is_empty())
    }

    /// The rules that name disks and paths: they must be looked up with the user's rights, and not with root's.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut IoRules> {
        [&mut self.job, &mut self.step].into_iter().map(|requests| &mut requests.io_max)
    }

    /// Whether it requests anything that lowers this limit.
    pub fn asks_for(&self, limit: Limit) -> bool {
        let is_asked = |request: &Request| [&self.job, &self.step].iter().any(|said| request.value(said).is_some());
        REQUESTS.iter().any(|request| request.limit == Some(limit) && is_asked(request))
    }

    /// The requested limits, by the names of their options.
    pub fn options(&self) -> String {
        let is_asked = |request: &&Request| {
            request.limit.is_some() && [&self.job, &self.step].iter().any(|said| request.value(said).is_some())
        };
        let names = REQUESTS.iter().filter(is_asked).map(|request| format!("--{}", request.name));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The lowest requested number of processes.
    pub fn processes(&self) -> Option<u64> {
        least(self.job.pids_max, self.step.pids_max)
    }

    /// When the step's user wants a card. `None`: the site decides.
    pub fn usage_card(&self) -> Option<UsageCard> {
        self.step.usage_card.or(self.job.usage_card)
    }

    /// Whether the user wants to divide the step's cgroup. `None`: the site decides.
    pub fn delegate(&self) -> Option<bool> {
        self.step.delegate.or(self.job.delegate)
    }

    /// At which shares of its limits the step is told. `None`: the site decides.
    pub fn signal_at(&self) -> Option<Option<SignalAt>> {
        self.step.signal_at.or(self.job.signal_at)
    }

    /// To which share of it the job's limit of memory may grow. `None`: the site decides.
    pub fn elastic_ram(&self) -> Option<Percent> {
        least(self.job.elastic_ram, self.step.elastic_ram)
    }

    /// The controllers that it needs.
    pub fn controllers(&self) -> Vec<&'static str> {
        let (job, step) = (&self.job, &self.step);
        // See RAM in `fence::rules::RULES`: writes from the page cache.
        let writes = job.io_max.limits_writes() || step.io_max.limits_writes();
        let used = [
            ("cpu", job.cpu_limit.or(step.cpu_limit).is_some()),
            ("memory", writes || job.mem_high.or(step.mem_high).is_some()),
            ("pids", job.pids_max.or(step.pids_max).is_some()),
            ("io", self.names_paths()),
        ];
        used.into_iter().filter(|(_, used)| *used).map(|(controller, _)| controller).collect()
    }
}

impl fmt::Display for UserRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job: {}; the step: {}", self.job, self.step)
    }
}

/// The limits, by their options.
impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |request: &Request| request.value(self).map(|value| format!("--{}={value}", request.name));
        let all: Vec<String> = REQUESTS.iter().filter(|request| request.limit.is_some()).filter_map(said).collect();
        f.write_str(&if all.is_empty() { "nothing".to_owned() } else { all.join(" ") })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> &'static Request {
        REQUESTS.iter().find(|request| request.name == name).unwrap()
    }

    fn read(name: &str, value: &str) -> Result<Requests, String> {
        let mut requests = Requests::default();
        match named(name).read(&format!("--{name}"), value.as_bytes(), &mut requests) {
            Ok(()) => Ok(requests),
            Err(error) => {
                assert_eq!(requests, Requests::default(), "changed by a value that was refused");
                Err(error.to_string())
            }
        }
    }

    #[test]
    fn values_as_people_write_them() {
        let none = Requests::default();
        for (name, value, requests) in [
            ("cpu-limit", "0.5", Requests { cpu_limit: Some(Cpus::from_thousandths(500)), ..none.clone() }),
            ("cpu-limit", "0.001", Requests { cpu_limit: Some(Cpus::from_thousandths(1)), ..none.clone() }),
            ("cpu-limit", "1024", Requests { cpu_limit: Some(Cpus::whole(1024)), ..none.clone() }),
            ("cpu-burst", "20", Requests { cpu_burst: Some(Percent::from_hundredths(2000)), ..none.clone() }),
            ("cpu-burst", "0", Requests { cpu_burst: Some(Percent::ZERO), ..none.clone() }),
            ("mem-high", "100", Requests { mem_high: Some(100 << 20), ..none.clone() }),
            ("mem-high", "2G", Requests { mem_high: Some(2 << 30), ..none.clone() }),
            ("pids-max", "60", Requests { pids_max: Some(60), ..none.clone() }),
            ("io-max", "/a rbps=1M", Requests { io_max: IoRules::parse("/a rbps=1048576").unwrap(), ..none.clone() }),
        ] {
            assert_eq!(read(name, value), Ok(requests), "--{name}={value}");
        }
    }

    #[test]
    fn a_wrong_value_is_shown_beside_what_is_expected() {
        for (name, value, error) in [
            (
                "cpu-limit",
                "half",
                "--cpu-limit: found \"half\", expected a number of CPUs from 0.001 to 1024 with at most three decimals; for \
                 example --cpu-limit=0.5",
            ),
            (
                "cpu-limit",
                "0",
                "--cpu-limit: found \"0\", expected a number of CPUs from 0.001 to 1024 with at most three decimals; it is out \
                 of range; for example --cpu-limit=0.5",
            ),
            (
                "cpu-burst",
                "101",
                "--cpu-burst: found \"101\", expected a percentage from 0 to 100 with at most two decimals; it is out of \
                 range; for example --cpu-burst=20",
            ),
            (
                "pids-max",
                "99999999999999999999",
                "--pids-max: found \"99999999999999999999\", expected a whole number of processes from 1 to 4194304; it does \
                 not fit in 64 bits; for example --pids-max=100",
            ),
        ] {
            assert_eq!(read(name, value), Err(error.to_owned()));
        }
        for (value, found) in [("rbps=1023K", "rbps=1047552"), ("wbps=1", "wbps=1"), ("riops=99", "riops=99")] {
            let error = read("io-max", &format!("/a wiops=100; /b {value}")).unwrap_err();
            assert!(error.contains(&format!("found \"{found}\"")) && error.contains("cannot be killed"), "{error}");
        }
        let error = read("io-max", "/a rbps=1M; /b rbps=x").unwrap_err();
        assert!(
            error.starts_with("--io-max: found \"") && error.ends_with("--io-max=\"/scratch wbps=100M\""),
            "{error}"
        );
        for (name, values) in [
            ("cpu-limit", &["", "-1", "+1", "1e3", "0.0005", "1025", ".5", " 1", "1 ", "unlimited"][..]),
            ("cpu-burst", &["", "-1", "100.01", "50.125", "all"]),
            ("mem-high", &["", "0", "1023K", "1.5G", "16777216T", "unlimited"]),
            ("io-max", &["", "/a", "a rbps=1M", "/a rbps=1M; /a rbps=2M", "/../a rbps=1M"]),
            ("pids-max", &["", "0", "4194305", "1k", "unlimited"]),
        ] {
            for value in values {
                assert!(read(name, value).is_err(), "--{name}={value:?}");
            }
        }
    }

    #[test]
    fn what_no_prompt_would_send_is_refused_without_being_repeated() {
        let request = named("pids-max");
        for (value, found) in [
            (&[b'1'; MAX_VALUE + 1][..], "found 1024 bytes,"),
            (b"1\n2", "found control characters,"),
            (b"\xff", "found bytes that are no text,"),
        ] {
            let error = request.read("--pids-max", value, &mut Requests::default()).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
        }
        let long = read("pids-max", &"x".repeat(1000)).unwrap_err();
        assert!(long.contains("xxx...\"") && long.len() < 300, "{long}");
    }

    #[test]
    fn what_is_too_long_for_a_step_to_be_told_is_refused_at_the_prompt() {
        // With blanks behind the semicolons it is longer than as written.
        let rules = |length: usize| (0..16).map(|n| format!("/{n:0length$} rbps=100M;")).collect::<String>();
        for (length, fits) in [(51, true), (52, false)] {
            let (text, mut requests) = (rules(length), Requests::default());
            let result = named("io-max").read("--io-max", text.trim_end_matches(';').as_bytes(), &mut requests);
            assert_eq!(result.is_ok(), fits, "{result:?}");
            let length = named("io-max").value(&requests).map(|value| value.len());
            assert_eq!(length, fits.then_some(MAX_VALUE - 1), "{length:?}");
        }
    }

    #[test]
    fn each_value_can_be_read_again() {
        let mut requests = Requests::default();
        for request in REQUESTS {
            assert_eq!(request.value(&requests), None, "{}", request.name);
            let example = request.example.trim_matches('"');
            request.read(request.name, example.as_bytes(), &mut requests).unwrap();
            let mut again = Requests::default();
            request.read(request.name, request.value(&requests).unwrap().as_bytes(), &mut again).unwrap();
            assert_eq!(request.value(&again), request.value(&requests), "{}", request.name);
        }
    }

    #[test]
    fn the_lower_of_two_words() {
        let (low, high) = (
            Requests { pids_max: Some(5), ..Requests::default() },
            Requests { pids_max: Some(9), ..Requests::default() },
        );
        assert_eq!(low.clone().at_most(&high), low);
        assert_eq!(high.clone().at_most(&low), low);
        assert_eq!(Requests::default().at_most(&low), low);
        assert_eq!(low.clone().at_most(&Requests::default()), low);
    }

    #[test]
    fn a_card_is_no_limit_and_the_steps_word_counts() {
        let card = |card| Requests { usage_card: card, ..Requests::default() };
        let (never, always) = (card(Some(UsageCard::Never)), card(Some(UsageCard::Always)));
        let word = UserRequests { job: never.clone(), step: always.clone() };
        assert_eq!(word.usage_card(), Some(UsageCard::Always));
        assert_eq!(UserRequests { job: never, step: Requests::default() }.usage_card(), Some(UsageCard::Never));
        assert_eq!((word.options().as_str(), word.to_string().as_str()), ("", "the job: nothing; the step: nothing"));
        assert!(word.controllers().is_empty());
        assert_eq!(read("usage-card", "Always"), Ok(always));
    }

    #[test]
    fn the_least_word_about_loans_counts() {
        let at_most =
            |percent| Requests { elastic_ram: Some(Percent::from_hundredths(percent)), ..Requests::default() };
        let (none, some) = (at_most(10_000), at_most(12_050));
        assert_eq!((read("elastic-ram", "100"), read("elastic-ram", "120.5%")), (Ok(none.clone()), Ok(some.clone())));
        for (job, step) in [(&none, &some), (&some, &none)] {
            let both = UserRequests { job: job.clone(), step: step.clone() };
            assert_eq!(both.elastic_ram(), Some(Percent::HUNDRED));
            assert_eq!((job.clone().at_most(step), both.options().as_str()), (none.clone(), ""));
        }
        assert!(read("elastic-ram", "99").is_err() && read("elastic-ram", "1001").is_err());
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(value in proptest::collection::vec(any::<u8>(), 0..1100), text in ".{0,80}") {
            for request in REQUESTS {
                for value in [&value, text.as_bytes()] {
                    let mut requests = Requests::default();
                    if let Err(error) = request.read("--option", value, &mut requests) {
                        prop_assert_eq!(&requests, &Requests::default());
                        let error = error.to_string();
                        prop_assert!(error.chars().count() < 600 && !error.contains(char::is_control), "{}", error);
                    }
                }
            }
        }
    }
}
