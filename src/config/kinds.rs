// SPDX-License-Identifier: GPL-2.0-or-later
//! The kinds of values: what a value must be, and how it is read and printed. Several keys may have values of one kind.

#[cfg(test)]
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
use proptest::prelude::*;

use super::limits::{LIMITS, ON_ERROR_EXPECTS};
use super::out_of_memory::RunAgain;
use super::signal_at::{self, SignalAt};
use super::slot_request::{self, SlotRequest};
use super::units::{
    self, DAY, NONE, Percent, Period, SIZE_OR_UNLIMITED, UNLIMITED, Wrong, cpus, keyword, keyword_of, none_or,
    or_unlimited, seconds, text_or_none, text_or_unlimited,
};
use super::values::{
    CpuPolicy, Delegation, DeniedDevices, GrantedHugePages, IdleAction, LoginBudget, LoginLimits, MemoryShare, Mode,
    OnError, OnErrors, StoreUsage, StraysAction, SwapSpace, TaskCpus, UsageCard,
};
use super::{out_of_memory, pattern, private_paths};
use crate::bytes;
use crate::cgroup::devices::{self, DeviceRule, GpuDevice};
use crate::cgroup::huge_pages::HugePages;
use crate::cgroup::io::IoRules;
use crate::job::Cpus;

/// One kind of values.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueKind<T> {
    /// What a value must be, with unit and range; completes "expected ...".
    pub expects: &'static str,
    /// Reads a value.
    pub read: fn(&str) -> Result<T, Wrong>,
    /// The reverse of `read`; `None` if no text stands for the value.
    pub text: fn(&T) -> Option<String>,
    /// Every value that `read` can return.
    #[cfg(test)]
    pub any: fn() -> BoxedStrategy<T>,
}

/// Generates kinds from rows of `NAME: Type = EXPECTS, READ, TEXT, any STRATEGY;`.
macro_rules! kinds {
    ($($name:ident: $type:ty = $expects:expr, $read:expr, $text:expr, any $any:expr;)*) => {
        $(
            pub(super) const $name: ValueKind<$type> =
                ValueKind { expects: $expects, read: $read, text: $text, #[cfg(test)] any: || $any.boxed() };
        )*
    };
}

/// Generates kinds with a word for each value from rows of `NAME: Type = EXPECTS, WORDS;`.
macro_rules! words {
    ($($name:ident: $type:ty = $expects:expr, $words:expr;)*) => {
        kinds! {
            $(
                $name: $type = $expects,
                    |text| keyword(text, $words), |value| Some(keyword_of(*value, $words).to_owned()),
                    any prop::sample::select($words.to_vec()).prop_map(|(_, value)| value);
            )*
        }
    };
}

/// A percentage in this range.
macro_rules! percent {
    ($from:literal to $to:literal) => {
        ValueKind {
            expects: concat!("a percentage from ", $from, " to ", $to, " with at most two decimals"),
            read: |text| $crate::config::units::percent(text, $from..=$to),
            text: |percent: &Percent| Some(percent.to_string()),
            #[cfg(test)]
            any: || ($from * 100..=$to * 100_u32).prop_map(Percent::from_hundredths).boxed(),
        }
    };
}
pub(super) use percent;

words! {
    YES_NO: bool = "yes or no", &[("yes", true), ("no", false)];
    MODE: Mode = "enforce, observe or off",
        &[("enforce", Mode::Enforce), ("observe", Mode::Observe), ("off", Mode::Off)];
    STORE_USAGE: StoreUsage = "none or admincomment",
        &[(NONE, StoreUsage::None), ("admincomment", StoreUsage::AdminComment)];
    DELEGATION: Delegation = "no, containers, request or yes",
        &[
            ("no", Delegation::No),
            ("containers", Delegation::Containers),
            ("request", Delegation::Request),
            ("yes", Delegation::Yes),
        ];
    IDLE_ACTION: IdleAction = "warn, signal or cancel",
        &[("warn", IdleAction::Warn), ("signal", IdleAction::Signal), ("cancel", IdleAction::Cancel)];
    SCAVENGER_END: bool = "kill or requeue", &[("kill", false), ("requeue", true)];
    STRAYS_ACTION: StraysAction = "off, report, adopt or kill",
        &[
            ("off", StraysAction::Off), ("report", StraysAction::Report), ("adopt", StraysAction::Adopt),
            ("kill", StraysAction::Kill),
        ];
    LOGIN_LIMITS: LoginLimits = "yes, no or always",
        &[("no", LoginLimits::No), ("yes", LoginLimits::Yes), ("always", LoginLimits::Always)];
    USAGE_CARD: UsageCard = USAGE_CARD_EXPECTS, USAGE_CARDS;
    CPU_POLICY: CpuPolicy = "quota, weight or both",
        &[("quota", CpuPolicy::Quota), ("weight", CpuPolicy::Weight), ("both", CpuPolicy::Both)];
    SWAP_SPACE: SwapSpace = "yes, no or auto",
        &[("yes", SwapSpace::Yes), ("no", SwapSpace::No), ("auto", SwapSpace::Auto)];
    DENIED_DEVICES: DeniedDevices = YES_NO_CLOSED,
        &[("yes", DeniedDevices::OthersGpus), ("no", DeniedDevices::None), (CLOSED, DeniedDevices::AllElse)];
    GRANTED_HUGE_PAGES: GrantedHugePages = YES_NO_CLOSED,
        &[("yes", GrantedHugePages::AtMost), ("no", GrantedHugePages::NotCounted), (CLOSED, GrantedHugePages::NoOthers)];
}

kinds! {
    ON_ERRORS: OnErrors = ON_ERROR_EXPECTS, on_errors, |on_errors| Some(on_errors_text(*on_errors)), any {
        let fails = || prop::sample::select(vec![OnError::Fail, OnError::Warn]);
        let with = |all: OnErrors, (&(_, limit), on_error): (&(_, _), _)| all.with(limit, on_error);
        (fails(), prop::collection::vec(fails(), LIMITS.len()))
            .prop_map(move |(general, of)| LIMITS.iter().zip(of).fold(OnErrors::all(general), with))
    };

    ABSOLUTE_PATH: PathBuf = "an absolute path without \"..\", double quotes or control characters",
        units::path, |path| Some(path.display().to_string()), any any_path();
    PATH_OR_NONE: Option<PathBuf> = "an absolute path without \"..\", double quotes or control characters, or none",
        |text| none_or(text, units::path), |path| Some(text_or_none(path.as_ref().map(|path| path.display()))),
        any prop::option::of(any_path());
    BASE: Option<String> = "one to four names of A-Z a-z 0-9 _ . - that begin with no dot, separated by \"/\", each of at most \
                            255 characters",
        |text| units::base(text).map(Some), Clone::clone,
        any prop::option::of(text_like("[A-Za-z0-9_-]{1,9}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,9}){0,3}"));

    CARD_TEXT: Option<String> = "none, or at most 200 characters of ASCII without double quotes, where each % is part of %j or %%",
        |text| none_or(text, units::card_text), |text| Some(text_or_none(text.as_ref())),
        any prop::option::of(text_like("[!$&-~]([ !$&-~]|%%|%j){0,30}[!$&-~]")
            .prop_filter("a word", |text| !text.eq_ignore_ascii_case(NONE)));

    TIMEOUT: Duration = "a whole number of seconds from 1 to 600",
        |text| seconds(text, 1..=600), |timeout| Some(timeout.as_secs().to_string()),
        any (1_u64..=600).prop_map(Duration::from_secs);
    MIN_UID: Option<u32> = "a uid from 1 to 61183, or auto",
        |text| if text.eq_ignore_ascii_case(AUTO) { Ok(None) } else { units::uid(text, 1..=61_183).map(Some) },
        |uid| Some(uid.map_or_else(|| AUTO.to_owned(), |uid| uid.to_string())),
        any prop::option::of(1_u32..=61_183);
    CGROUP_PATHS: Vec<String> = "absolute paths of cgroups with commas between them, where * and ? stand for parts of one name, or none",
        |text| none_or(text, pattern::paths).map(Option::unwrap_or_default),
        |paths| Some(text_or_none((!paths.is_empty()).then(|| paths.join(",")))),
        any prop::collection::vec(text_like("(/[a-z@*?.-]{1,9}){1,3}")
            .prop_filter("has dots alone", |text| pattern::paths(text).is_ok()), 0..3);
    DAYS: Duration = "a whole number of days from 1 to 3650",
        |text| units::days(text, 1..=3650), |age| Some((age.as_secs() / DAY).to_string()),
        any (1_u64..=3650).prop_map(|days| Duration::from_secs(days * DAY));
    INTERVAL: Option<Duration> = "a whole number of seconds from 1 to 86400, or never",
        |text| if text.eq_ignore_ascii_case(NEVER) { Ok(None) } else { seconds(text, 1..=86_400).map(Some) },
        |interval| Some(interval.map_or_else(|| NEVER.to_owned(), |interval| interval.as_secs().to_string())),
        any prop::option::of((1_u64..=86_400).prop_map(Duration::from_secs));
    IDLE_TIME: Option<Duration> = "a whole number of seconds, or with the unit s, m or h, from 1m to 168h, or never",
        |text| if text.eq_ignore_ascii_case(NEVER) { Ok(None) } else { units::idle_time(text).map(Some) },
        |time| Some(time.map_or_else(|| NEVER.to_owned(), units::idle_time_text)),
        any prop::option::of((60_u64..=7 * DAY).prop_map(Duration::from_secs));
    SIGNAL_AT: Option<SignalAt> = signal_at::EXPECTS,
        |text| none_or(text, signal_at::read), |value| Some(text_or_none(*value)), any prop::option::of(signal_at::any());
    ON_OUT_OF_MEMORY: Option<RunAgain> = out_of_memory::EXPECTS,
        out_of_memory::read, |value| Some(out_of_memory::text(*value)),
        any prop::option::of((10_100_u32..=100_000, 1_u32..=9).prop_map(|(share, most)| RunAgain {
            share: Percent::from_hundredths(share), most,
        }));
    RESTARTS: u32 = out_of_memory::RESTARTS_EXPECTS,
        out_of_memory::restarts, |most| Some(out_of_memory::restarts_text(*most)), any 0_u32..=99;
    LOGIN_BUDGET: Option<LoginBudget> = "CPU time from 1m to 168h, a colon and a number of CPUs from 0.01, as 4h:0.5, or none",
        |text| none_or(text, login_budget),
        |budget| Some(text_or_none(budget.map(login_budget_text))),
        any prop::option::of((60_u64..=7 * DAY, 10_u64..=1_024_000).prop_map(|(time, cpus)| LoginBudget {
            time: Duration::from_secs(time), cpus: Cpus::from_thousandths(cpus),
        }));
    LOGIN_WINDOW: Duration = "a whole number of seconds, or with the unit s, m or h, from 1m to 168h",
        units::idle_time, |time| Some(units::idle_time_text(*time)), any (60_u64..=7 * DAY).prop_map(Duration::from_secs);
    CARBON_INTENSITY: Option<u64> = "a whole number of grams from 1 to 10000, or none",
        |text| none_or(text, units::weight), |grams| Some(text_or_none(*grams)), any prop::option::of(1_u64..=10_000);
    PERIOD: Period = "a whole number of microseconds, or with the unit us, ms or s, from 1ms to 1s",
        units::period, |period| Some(period.to_string()),
        any (1_000_u32..=1_000_000).prop_map(|micros| Period::from_micros(micros).unwrap());

    SIZE: u64 = units::SIZE, units::size, |size| Some(bytes::text(*size)), any any_size();
    OPTIONAL_SIZE: Option<u64> = SIZE_OR_UNLIMITED,
        |text| or_unlimited(text, units::size), |size| Some(text_or_unlimited(size.map(bytes::text))),
        any prop::option::of(any_size());
    NETWORK_RATE: Option<u64> = "how many bytes a second (a whole number of MiB, or with the unit K, M, G or T, from 64K to 16T), or \
                                 unlimited",
        |text| or_unlimited(text, network_rate), |rate| Some(text_or_unlimited(rate.map(bytes::text))),
        any prop::option::of((64_u64..=16 << 30).prop_map(|kib| kib << 10));
    MEMORY_SHARE: Option<MemoryShare> = "a size of at least 1M, such as 64G, a percentage from 1% to 100%, or none",
        |text| none_or(text, memory_share), |share| Some(text_or_none(*share)),
        any prop::option::of(prop_oneof![
            any_size().prop_map(MemoryShare::Bytes),
            (100_u32..=10_000).prop_map(|share| MemoryShare::Percent(Percent::from_hundredths(share))),
        ]);
    OPTIONAL_PERCENT: Option<Percent> = "a percentage from 1 to 100 with at most two decimals, or unlimited",
        |text| or_unlimited(text, |text| units::percent(text, 1..=100)), |percent| Some(text_or_unlimited(*percent)),
        any prop::option::of((100_u32..=10_000).prop_map(Percent::from_hundredths));

    HEADROOM: Cpus = "a number of CPUs from 0 to 1024 with at most three decimals",
        cpus, |cpus| Some(cpus.to_string()), any (0_u64..=1_024_000).prop_map(Cpus::from_thousandths);
    CPUS: Cpus = "a number of CPUs from 0.001 to 1024 with at most three decimals",
        some_cpus, |cpus| Some(cpus.to_string()), any any_cpus();
    OPTIONAL_CPUS: Option<Cpus> = "a number of CPUs from 0.001 to 1024 with at most three decimals, or unlimited",
        |text| or_unlimited(text, some_cpus), |cpus| Some(text_or_unlimited(*cpus)), any prop::option::of(any_cpus());
    TASK_CPUS: TaskCpus = "a number of CPUs from 0.001 to 1024 with at most three decimals, granted or unlimited",
        |text| match text.eq_ignore_ascii_case(GRANTED) {
            true => Ok(TaskCpus::Granted),
            false => or_unlimited(text, some_cpus).map(|cpus| cpus.map_or(TaskCpus::Unlimited, TaskCpus::Count)),
        },
        |cpus| Some(match cpus {
            TaskCpus::Unlimited => UNLIMITED.to_owned(),
            TaskCpus::Granted => GRANTED.to_owned(),
            TaskCpus::Count(cpus) => cpus.to_string(),
        }),
        any prop_oneof![Just(TaskCpus::Unlimited), Just(TaskCpus::Granted), any_cpus().prop_map(TaskCpus::Count)];

    SLOT_REQUESTS: Vec<SlotRequest> = "names of requests with commas between them, each at most once, and with :slot, :host or :job \
                                       behind it if need be, or none",
        slot_request::read, |requests| Some(slot_request::text(requests)), any slot_request::any();

    PRIVATE_PATHS: Vec<PathBuf> = private_paths::PATHS,
        private_paths::read, |paths| Some(private_paths::text(paths)), any {
            prop::collection::btree_set(text_like("/x[a-n]{3,5}/[a-z]{1,4}"), 0..4)
                .prop_map(|paths| paths.into_iter().map(PathBuf::from).collect())
        };
    PRIVATE_SHARES: Vec<PathBuf> = private_paths::PATTERNS,
        private_paths::read_patterns, |paths| Some(private_paths::text(paths)), any {
            prop::collection::vec(text_like("/[a-z]{1,3}/[a-z*?]{1,4}").prop_map(PathBuf::from), 0..3)
        };

    IO_RULES: IoRules = IoRules::EXPECTS,
        |text| IoRules::parse(text).map_err(|_| Wrong::Form), |rules| Some(rules.to_string()), any {
            let rule = |(n, (bytes, count))| format!("/{n} rbps={bytes} wiops={count}");
            let text = move |rates: Vec<_>| rates.into_iter().enumerate().map(rule).collect::<Vec<_>>().join(";");
            let rates = prop::collection::vec((1_u64..1 << 50, 1_u32..u32::MAX), 0..3).prop_map(text);
            rates.prop_map(|text| IoRules::parse(if text.is_empty() { NONE } else { &text }).unwrap())
        };
    IO_WEIGHT: Option<u64> = "a whole number from 1 to 10000",
        |text| units::weight(text).map(Some), |weight| weight.map(|weight| weight.to_string()),
        any prop::option::of(1_u64..=10_000);

    HUGE_PAGES: HugePages = "for each size of pages (a power of two with the unit K, M, G or T) at most once how much memory may be in \
                             them (a whole number of MiB, or with the unit K, M, G or T), as 2M:4G,1G:0, at the end *:0 for all \
                             others, or unlimited",
        |text| or_unlimited(text, |text| HugePages::parse(text).ok_or(Wrong::Form)).map(Option::unwrap_or_default),
        |pages| Some(text_or_unlimited(Some(pages).filter(|pages| !pages.is_empty()))),
        any {
            let size = |(power, kib): (&u32, &u64)| format!("{}K:{kib}K", 1_u64 << (power - 10));
            let text = move |sizes: BTreeMap<_, _>| sizes.iter().map(size).collect::<Vec<_>>().join(",");
            prop::collection::btree_map(10_u32..=34, 0_u64..1 << 30, 0..4)
                .prop_map(move |sizes| HugePages::parse(&text(sizes)).unwrap_or_default())
        };

    DEVICE_RULES: Vec<DeviceRule> = "none, or rules with commas between them, each a device's path, char-NAME or block-NAME, and then \
                                     perhaps its access of the letters r, w and m, as \"/dev/fuse rw,char-pts rw\"",
        |text| none_or(text, |text| devices::parse(text).map_err(Wrong::Because)).map(Option::unwrap_or_default),
        |rules| Some(text_or_none((!rules.is_empty()).then(|| devices::text(rules)))),
        any {
            let rule = text_like("(/dev/[a-z]{1,3}|char-[a-z/]{1,5}|block-[0-9]{1,3})( r?wm?)?");
            prop::collection::vec(rule, 0..3)
                .prop_map(|rules| rules.iter().flat_map(|rule| devices::parse(rule).unwrap()).collect())
        };
    GPU_DEVICE: Option<GpuDevice> = "none, or an absolute path with one %d in its last part, as /dev/nvidia%d, or with the numbers \
                                     in Slurm's order, as /dev/nvidia[2-3]",
        |text| none_or(text, |text| GpuDevice::parse(text).ok_or(Wrong::Form)),
        |device| Some(text_or_none(device.as_ref())),
        any prop::option::of(
            text_like("/[a-z/]{0,5}(%d|\\[1[0-9],[0-9]\\])").prop_map(|text| GpuDevice::parse(&text).unwrap())
        );
}

const NEVER: &str = "never";
const AUTO: &str = "auto";
const GRANTED: &str = "granted";
/// As in `DevicePolicy=closed` of systemd.resource-control(5): only what every job may use and what is listed is allowed.
const CLOSED: &str = "closed";
const YES_NO_CLOSED: &str = "yes, no or closed";
const ON_ERROR: &[(&str, OnError)] = &[("fail", OnError::Fail), ("warn", OnError::Warn)];

/// The values of `UsageCard` and of the option of that name.
pub const USAGE_CARD_EXPECTS: &str = "never, failed, wasteful or always";
const USAGE_CARDS: &[(&str, UsageCard)] = &[
    (NEVER, UsageCard::Never),
    ("failed", UsageCard::Failed),
    ("wasteful", UsageCard::Wasteful),
    ("always", UsageCard::Always),
];
/// Reads a value of `UsageCard`.
pub fn usage_card(text: &str) -> Result<UsageCard, Wrong> {
    keyword(text, USAGE_CARDS)
}

/// The word for a value of `UsageCard`.
pub fn usage_card_text(card: UsageCard) -> &'static str {
    keyword_of(card, USAGE_CARDS)
}

/// Reads yes or no.
pub fn yes_no(text: &str) -> Result<bool, Wrong> {
    keyword(text, &[("yes", true), ("no", false)])
}

/// Bytes a second. With less, the acknowledgements of what arrives would not get through.
fn network_rate(text: &str) -> Result<u64, Wrong> {
    let rate = bytes::parse(text, Some(1 << 20))?;
    if (64 << 10..=16 << 40).contains(&rate) { Ok(rate) } else { Err(Wrong::Range) }
}

/// A number of CPUs above zero.
fn some_cpus(text: &str) -> Result<Cpus, Wrong> {
    cpus(text).and_then(|cpus| if cpus.thousandths() == 0 { Err(Wrong::Range) } else { Ok(cpus) })
}

/// CPU time and the CPUs that follow, as `4h:0.5`.
fn login_budget(text: &str) -> Result<LoginBudget, Wrong> {
    let (time, cpus) = text.split_once(':').ok_or(Wrong::Form)?;
    let (time, cpus) = (units::idle_time(time)?, units::cpus(cpus)?);
    if cpus.thousandths() < 10 { Err(Wrong::Range) } else { Ok(LoginBudget { time, cpus }) }
}

fn login_budget_text(LoginBudget { time, cpus }: LoginBudget) -> String {
    format!("{}:{cpus}", units::idle_time_text(time))
}

fn on_errors(text: &str) -> Result<OnErrors, Wrong> {
    let mut parts = text.split(',');
    let mut on_errors = OnErrors::all(keyword(parts.next().unwrap_or_default(), ON_ERROR)?);
    let mut seen = Vec::new();
    for part in parts {
        let (limit, on_error) = part.split_once(':').ok_or(Wrong::Form)?;
        let limit = keyword(limit, LIMITS)?;
        if seen.contains(&limit) {
            return Err(Wrong::Form);
        }
        seen.push(limit);
        on_errors = on_errors.with(limit, keyword(on_error, ON_ERROR)?);
    }
    Ok(on_errors)
}

fn on_errors_text(on_errors: OnErrors) -> String {
    let mut text = keyword_of(on_errors.general(), ON_ERROR).to_owned();
    for &(name, limit) in LIMITS {
        let on_error = on_errors.for_limit(limit);
        if on_error != on_errors.general() {
            text.push_str(&format!(",{name}:{}", keyword_of(on_error, ON_ERROR)));
        }
    }
    text
}

/// Any text that matches the expression, which is compiled only once.
#[cfg(test)]
fn text_like(regex: &str) -> impl Strategy<Value = String> + use<> {
    proptest::string::string_regex(regex).unwrap()
}

#[cfg(test)]
fn any_path() -> impl Strategy<Value = PathBuf> {
    text_like("(/[^/\"\\pC.][^/\"\\pC]{0,9}){1,3}").prop_map(PathBuf::from)
}

/// With a percent sign, a share of the node's memory.
fn memory_share(text: &str) -> Result<MemoryShare, Wrong> {
    if text.ends_with('%') {
        units::percent(text, 1..=100).map(MemoryShare::Percent)
    } else {
        units::size(text).map(MemoryShare::Bytes)
    }
}

#[cfg(test)]
fn any_size() -> impl Strategy<Value = u64> {
    (1_u64 << 10..1 << 54).prop_map(|kib| kib << 10)
}

#[cfg(test)]
fn any_cpus() -> impl Strategy<Value = Cpus> {
    (1_u64..=1_024_000).prop_map(Cpus::from_thousandths)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::super::limits::Limit;
    use super::super::slot_request::PerSlot;
    use super::*;

    /// `text` has letters in any case, and if there is another spelling, it is not as `value` is printed.
    #[track_caller]
    fn reads<T: Debug + PartialEq>(kind: &ValueKind<T>, text: &str, value: &T) {
        assert_eq!((kind.read)(text).as_ref(), Ok(value), "{text}");
        let printed = (kind.text)(value).unwrap();
        assert_eq!((kind.read)(&printed).as_ref(), Ok(value), "{text} is printed as {printed}");
    }

    #[test]
    fn a_value_of_each_kind_is_read_as_what_it_means() {
        reads(&MODE, "OBSERVE", &Mode::Observe);
        reads(&ON_ERRORS, "warn,ram:fail", &OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail));
        reads(&STORE_USAGE, "AdminComment", &StoreUsage::AdminComment);
        reads(&DELEGATION, "Request", &Delegation::Request);
        reads(&IDLE_ACTION, "Cancel", &IdleAction::Cancel);
        reads(&SCAVENGER_END, "Requeue", &true);
        reads(&STRAYS_ACTION, "Kill", &StraysAction::Kill);
        reads(&LOGIN_LIMITS, "Always", &LoginLimits::Always);
        let budget = LoginBudget { time: Duration::from_secs(4 * 3600), cpus: Cpus::from_thousandths(500) };
        reads(&LOGIN_BUDGET, "4h:0.5", &Some(budget));
        reads(&LOGIN_BUDGET, "None", &None);
        for wrong in ["4h", "4h:", ":1", "4h:0", "4h:0.001", "30s:1", "4h:1:2", "-4h:1"] {
            assert!((LOGIN_BUDGET.read)(wrong).is_err(), "{wrong}");
        }
        reads(&LOGIN_WINDOW, "12H", &Duration::from_secs(12 * 3600));
        reads(&MIN_UID, "500", &Some(500));
        reads(&MIN_UID, "Auto", &None);
        assert_eq!(["0", "61184", "x"].map(|text| (MIN_UID.read)(text).is_ok()), [false; 3]);
        let paths = ["/system.slice/a@*.service", "/user.slice"].map(str::to_owned).to_vec();
        reads(&CGROUP_PATHS, "/system.slice/a@*.service,/user.slice", &paths);
        reads(&CGROUP_PATHS, "None", &Vec::new());
        for wrong in ["", "a", "/", "//a", "/a/", "/a/..", "/a,", "/a, /b"] {
            assert!((CGROUP_PATHS.read)(wrong).is_err(), "{wrong}");
        }
        reads(&USAGE_CARD, "Wasteful", &UsageCard::Wasteful);
        reads(&CARD_TEXT, "Help: https://a/%j#b", &Some("Help: https://a/%j#b".to_owned()));
        for (text, wrong) in
            [("100 %", Wrong::Form), ("%u", Wrong::Form), ("%%%", Wrong::Form), ("\u{e4}", Wrong::Form)]
        {
            assert_eq!((CARD_TEXT.read)(text), Err(wrong), "{text}");
        }
        assert_eq!((CARD_TEXT.read)("%%j %j%%"), Ok(Some("%%j %j%%".to_owned())));
        assert_eq!([200, 201].map(|count| (CARD_TEXT.read)(&"x".repeat(count)).is_ok()), [true, false]);
        reads(&CPU_POLICY, "Both", &CpuPolicy::Both);
        reads(&ABSOLUTE_PATH, "/run/x y", &"/run/x y".into());
        reads(&PATH_OR_NONE, "/m/x.prom", &Some("/m/x.prom".into()));
        reads(&PATH_OR_NONE, "None", &None);
        reads(&BASE, "a.slice/b", &Some("a.slice/b".to_owned()));
        reads(&TIMEOUT, "30", &Duration::from_secs(30));
        reads(&DAYS, "7", &Duration::from_secs(7 * 86_400));
        reads(&INTERVAL, "7", &Some(Duration::from_secs(7)));
        reads(&INTERVAL, "Never", &None);
        reads(&PERIOD, "50ms", &Period::from_micros(50_000).unwrap());
        reads(&SIZE, "1G", &(1 << 30));
        reads(&OPTIONAL_SIZE, "64M", &Some(64 << 20));
        reads(&NETWORK_RATE, "100m", &Some(100 << 20));
        reads(&NETWORK_RATE, "Unlimited", &None);
        assert_eq!(
            ["63K", "64K", "16T", "17T"].map(|text| (NETWORK_RATE.read)(text).is_ok()),
            [false, true, true, false]
        );
        reads(&percent!(1 to 10_000), "98.05", &Percent::from_hundredths(9805));
        reads(&MEMORY_SHARE, "64g", &Some(MemoryShare::Bytes(64 << 30)));
        reads(&MEMORY_SHARE, "12.5%", &Some(MemoryShare::Percent(Percent::from_hundredths(1250))));
        reads(&MEMORY_SHARE, "None", &None);
        for wrong in ["", "0", "0%", "101%", "%", "-1%", "5 %"] {
            assert!((MEMORY_SHARE.read)(wrong).is_err(), "{wrong}");
        }
        reads(&OPTIONAL_PERCENT, "90", &Some(Percent::from_hundredths(9000)));
        reads(&HEADROOM, "0", &Cpus::from_thousandths(0));
        reads(&CPUS, "0.1", &Cpus::from_thousandths(100));
        reads(&OPTIONAL_CPUS, "1.5", &Some(Cpus::from_thousandths(1500)));
        reads(&OPTIONAL_CPUS, "Unlimited", &None);
        reads(&TASK_CPUS, "Granted", &TaskCpus::Granted);
        reads(&TASK_CPUS, "2", &TaskCpus::Count(Cpus::whole(2)));
        let requests = [("mem_free", PerSlot::Job), ("h_vmem", PerSlot::AsCounted)];
        reads(&SLOT_REQUESTS, "mem_free:job,h_vmem", &requests.map(|(name, per)| SlotRequest::new(name, per)).into());
        reads(&IO_RULES, "/c,rbps=2K,wiops=6", &IoRules::parse("/c rbps=2K wiops=6").unwrap());
        reads(&IO_WEIGHT, "500", &Some(500));
        reads(&HUGE_PAGES, "2m:4g,1G:0", &HugePages::parse("2M:4G,1G:0").unwrap());
        reads(&DEVICE_RULES, "/dev/fuse rw, char-pts", &devices::parse("/dev/fuse rw,char-pts").unwrap());
        reads(&GPU_DEVICE, "/dev/nvidia%d", &GpuDevice::parse("/dev/nvidia%d"));
        assert_eq!([(CPUS.read)("0"), (CPUS.read)("0.0001")], [Err(Wrong::Range), Err(Wrong::Form)]);
    }

    #[test]
    fn booleans_are_those_of_slurm() {
        for (text, yes) in ["yes", "UP", "True", "1", "No", "down", "false", "0"].into_iter().zip((0..8).map(|n| n < 4))
        {
            assert_eq!((YES_NO.read)(text), Ok(yes), "{text}");
            assert_eq!((SWAP_SPACE.read)(text), Ok(if yes { SwapSpace::Yes } else { SwapSpace::No }), "{text}");
        }
        assert!(["y", "n", "on", "off", ""].into_iter().all(|text| (YES_NO.read)(text) == Err(Wrong::Form)));
        reads(&DENIED_DEVICES, "Up", &DeniedDevices::OthersGpus);
        reads(&DENIED_DEVICES, "Closed", &DeniedDevices::AllElse);
        reads(&GRANTED_HUGE_PAGES, "0", &GrantedHugePages::NotCounted);
        reads(&GRANTED_HUGE_PAGES, "1", &GrantedHugePages::AtMost);
        reads(&GRANTED_HUGE_PAGES, "closed", &GrantedHugePages::NoOthers);
        assert_eq!((MODE.read)("1"), Err(Wrong::Form));
    }

    #[test]
    fn on_error_has_a_word_for_each_limit_and_says_so() {
        let said = ON_ERRORS.expects.split_once("each of ").unwrap().1.split_once(", as ").unwrap().0;
        assert_eq!(said, LIMITS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
        for (at, (name, limit)) in LIMITS.iter().enumerate() {
            assert_eq!(*limit as usize, at, "{name}");
        }
    }

    #[test]
    fn on_error_can_differ_for_a_limit() {
        let swap = OnErrors::default().with(Limit::Swap, OnError::Warn);
        assert_eq!(on_errors("fail,swap:warn"), Ok(swap));
        assert_eq!(on_errors("FAIL,swap:Warn,cpu:fail"), Ok(swap));
        assert_eq!(on_errors_text(swap), "fail,swap:warn");
        for text in ["", "fail,", ",fail", "swap:warn", "fail,swap", "fail,disk:warn", "fail,swap:", "fail, swap:warn"]
        {
            assert_eq!(on_errors(text), Err(Wrong::Form), "{text:?}");
        }
        assert_eq!(on_errors("fail,swap:warn,swap:warn"), Err(Wrong::Form));
    }
}
