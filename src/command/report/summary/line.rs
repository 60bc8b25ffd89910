// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the usage log for a summary: only the members that it needs, borrowed from the line.
//!
//! [`crate::logged`] reads every member into values of its own, which for millions of lines would take minutes. Here nothing is allocated,
//! except for a text with an escape in it.

use std::borrow::Cow;

use jobfence::report::account::SCHEMA;

use crate::moment::seconds_of;

/// The members of a line in the order in which jobfence writes them, so that each is usually found at once.
macro_rules! members {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The same with what is around it in a line.
        const WRITTEN: &[&str] = &[$(concat!("\"", stringify!($name), "\":")),*];

        #[allow(non_camel_case_types, dead_code, reason = "the names of the members; most are passed over")]
        #[derive(Clone, Copy)]
        enum Member { $($name),* }
    };
}

members! {
    schema ended started started_unix_seconds ended_unix_seconds wall_seconds node job job_name step run uid user partition account qos
    project global_job holder end exit_status exit_signal cpus_granted memory_granted_bytes gpus_granted cpus_limit memory_limit_bytes
    processes_limit cpu_seconds cpu_user_seconds cpu_system_seconds periods throttled_periods throttled_seconds memory_peak_bytes
    swap_peak_bytes memory_anonymous_bytes memory_file_bytes memory_unwritten_bytes memory_shared_bytes memory_kernel_bytes
    memory_huge_pages_bytes memory_swap_bytes memory_high_events memory_max_events oom_kills processes_peak forks_refused read_bytes
    written_bytes read_operations write_operations disks cpu_pressure_some_seconds cpu_pressure_full_seconds memory_pressure_some_seconds
    memory_pressure_full_seconds io_pressure_some_seconds io_pressure_full_seconds rchar_bytes wchar_bytes job_cpu_seconds
    job_memory_peak_bytes tasks sentences
}

/// A text as the line has it.
pub type Text<'a> = Option<Cow<'a, str>>;

/// What a summary needs of a line. Times are in microseconds, CPUs in thousandths, memory in bytes. `None`: not known.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Line<'a> {
    pub ended: u64,
    /// Whether `began` and `ended` are more exact than to the second.
    pub is_exact: bool,
    pub began: Option<u64>,
    pub wall: Option<u64>,
    pub node: Text<'a>,
    pub job: Cow<'a, str>,
    pub job_name: Text<'a>,
    pub step: Cow<'a, str>,
    pub run: u64,
    pub uid: Option<u64>,
    pub user: Text<'a>,
    pub partition: Text<'a>,
    pub account: Text<'a>,
    pub qos: Text<'a>,
    pub global_job: Text<'a>,
    /// Whether it ended well.
    pub is_success: Option<bool>,
    pub cpus_granted: Option<u64>,
    pub cpus_limit: Option<u64>,
    pub memory_granted: Option<u64>,
    pub memory_limit: Option<u64>,
    pub gpus_granted: Option<u64>,
    pub cpu: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    /// What system calls have read and written.
    pub moved: Option<(u64, u64)>,
    pub memory_peak: Option<u64>,
    pub job_memory_peak: Option<u64>,
    pub swap_peak: Option<u64>,
    /// How often memory was taken back since a limit was reached.
    pub kept_down: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Whether a limit stopped a process of it.
    pub was_stopped: bool,
}

/// A line may be dated so far ahead, and a step may have lasted so long, in microseconds.
const MAY_BE_AHEAD: u64 = 86_400 * 1_000_000;
const LONGEST_STEP: u64 = 366 * MAY_BE_AHEAD;

impl Line<'_> {
    /// Whether its times can be right. A node whose clock was wrong counts for nothing else.
    pub fn is_dated_right(&self, now: u64) -> bool {
        let lasted = self.wall.into_iter().chain(self.began.map(|began| self.ended.saturating_sub(began))).max();
        self.ended <= now.saturating_add(MAY_BE_AHEAD) && lasted.is_none_or(|lasted| lasted <= LONGEST_STEP)
    }
}

/// What a line is.
#[derive(Debug, PartialEq)]
pub enum Read<'a> {
    Line(Box<Line<'a>>),
    /// It ended before the time in question.
    Earlier,
    /// jobfence has written it, in the format of another release.
    Newer,
    /// Not by jobfence, or not whole.
    Foreign,
}

/// The beginning of a line as jobfence writes it, up to the time at which the step ended.
const BEGIN: &[u8] = b"{\"schema\":\"jobfence-usage-1\",\"ended\":\"";

/// What is before that time.
const ENDED: &[u8] = b"\"ended\":\"";

/// The length of `2026-11-25T03:31:01Z`.
const MOMENT: usize = 20;

/// When a step ended, as the log writes it. Such texts are in the order of their times.
pub type EndText = [u8; MOMENT];

/// When the step of a line ended, if the line is one of jobfence's.
pub fn moment_of(line: &[u8]) -> Option<EndText> {
    let rest = match line.strip_prefix(BEGIN) {
        Some(rest) => rest,
        // A collector can have written the line anew.
        None => line.get(line.windows(ENDED.len()).position(|some| some == ENDED)? + ENDED.len()..)?,
    };
    rest.get(..MOMENT)?.try_into().ok().filter(|moment: &EndText| moment.is_ascii())
}

/// Reads a line. `since`: the earliest time of interest, as the log writes it; empty: all.
pub fn read<'a>(line: &'a [u8], since: &str) -> Read<'a> {
    // Most lines can be passed over by this alone, and are whole.
    let moment = line.strip_prefix(BEGIN).and_then(|rest| rest.get(..MOMENT));
    if moment.is_some_and(|moment| moment < since.as_bytes()) && line.ends_with(b"}") {
        return Read::Earlier;
    }
    let mut values = LineValues([None; NAMES.len()]);
    if values.fill(line).is_none() {
        return Read::Foreign;
    }
    match values.text(Member::schema).as_deref() {
        Some(SCHEMA) => {}
        Some(schema) if schema.starts_with("jobfence-usage-") => return Read::Newer,
        _ => return Read::Foreign,
    }
    match values.line() {
        Some(line) if values.text(Member::ended).as_deref().is_some_and(|ended| ended < since) => {
            drop(line);
            Read::Earlier
        }
        Some(line) => Read::Line(Box::new(line)),
        None => Read::Foreign,
    }
}

/// The value of each member as the line has it, with the quotes of a text.
struct LineValues<'a>([Option<&'a [u8]>; NAMES.len()]);

impl<'a> LineValues<'a> {
    /// Finds the values. `None`: it is no object, or not whole.
    fn fill(&mut self, line: &'a [u8]) -> Option<()> {
        let mut at = PlaceInLine { line, at: 0 };
        at.expect(b'{')?;
        let mut next = 0;
        if at.peek()? == b'}' {
            return None;
        }
        loop {
            let found = match WRITTEN.get(next).filter(|written| at.pass(written.as_bytes())) {
                Some(_) => Some(next),
                None => {
                    let name = at.text()?;
                    let name = name.get(1..name.len() - 1)?;
                    at.expect(b':')?;
                    NAMES.iter().position(|known| known.as_bytes() == name)
                }
            };
            let value = at.value()?;
            if let Some(found) = found {
                *self.0.get_mut(found)? = Some(value);
                next = found + 1;
            }
            match at.next()? {
                b',' => {}
                b'}' => return at.is_end().then_some(()),
                _ => return None,
            }
        }
    }

    fn raw(&self, member: Member) -> Option<&'a [u8]> {
        *self.0.get(member as usize)?
    }

    fn text(&self, member: Member) -> Text<'a> {
        let quoted = std::str::from_utf8(self.raw(member)?).ok()?;
        let plain = quoted.strip_prefix('"')?.strip_suffix('"')?;
        if !plain.as_bytes().contains(&b'\\') {
            return Some(Cow::Borrowed(plain));
        }
        serde_json::from_str::<String>(quoted).ok().map(Cow::Owned)
    }

    /// An amount in units of so many decimals; what is below is cut off.
    fn number(&self, member: Member, decimals: u32) -> Option<u64> {
        amount(self.raw(member)?, decimals)
    }

    fn line(&self) -> Option<Line<'a>> {
        use Member as M;
        let whole = |member| self.number(member, 0);
        let micros = |member| self.number(member, 6);
        let moment = |member| seconds_of(&self.text(member)?).map(|seconds| seconds.saturating_mul(1_000_000));
        // What the log of jobfence has in every line.
        let (job, step, at) = (self.text(M::job)?, self.text(M::step)?, moment(M::ended)?);
        let exact = micros(M::started_unix_seconds).zip(micros(M::ended_unix_seconds));
        let is_signalled = whole(M::exit_signal).map(|_| false);
        let status = self.raw(M::exit_status).filter(|status| *status != b"null").map(|status| status == b"0");
        let add = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        let has_sentences = self.raw(M::sentences).is_some_and(|all| all.len() > 2);
        Some(Line {
            ended: exact.map_or(at, |(_, ended)| ended),
            is_exact: exact.is_some(),
            began: exact.map(|(began, _)| began).or_else(|| moment(M::started)),
            wall: micros(M::wall_seconds),
            node: self.text(M::node),
            job,
            job_name: self.text(M::job_name),
            step,
            run: whole(M::run).unwrap_or(0),
            uid: whole(M::uid),
            user: self.text(M::user),
            partition: self.text(M::partition),
            account: self.text(M::account),
            qos: self.text(M::qos),
            global_job: self.text(M::global_job),
            is_success: status.or(is_signalled),
            cpus_granted: self.number(M::cpus_granted, 3).filter(|cpus| *cpus > 0),
            cpus_limit: self.number(M::cpus_limit, 3).filter(|cpus| *cpus > 0),
            memory_granted: whole(M::memory_granted_bytes).filter(|bytes| *bytes > 0),
            memory_limit: whole(M::memory_limit_bytes).filter(|bytes| *bytes > 0),
            gpus_granted: whole(M::gpus_granted),
            cpu: micros(M::cpu_seconds),
            periods: whole(M::periods),
            throttled_periods: whole(M::throttled_periods),
            moved: whole(M::rchar_bytes).zip(whole(M::wchar_bytes)),
            memory_peak: whole(M::memory_peak_bytes),
            job_memory_peak: whole(M::job_memory_peak_bytes),
            swap_peak: whole(M::swap_peak_bytes),
            kept_down: add(whole(M::memory_high_events), whole(M::memory_max_events)),
            oom_kills: whole(M::oom_kills),
            was_stopped: has_sentences || whole(M::forks_refused).is_some_and(|refused| refused > 0),
        })
    }
}

/// A place in a line.
struct PlaceInLine<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> PlaceInLine<'a> {
    fn here(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    /// The next byte that is no white space, which stays.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.here() {
            self.at += 1;
        }
        self.here()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// Goes behind these bytes, if they are here.
    fn pass(&mut self, bytes: &[u8]) -> bool {
        let is_here = self.line.get(self.at..).is_some_and(|rest| rest.starts_with(bytes));
        if is_here {
            self.at += bytes.len();
        }
        is_here
    }

    fn is_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// A text with its quotes.
    fn text(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let begin = self.at - 1;
        let mut rest = self.line.get(self.at..)?.iter();
        while let Some(byte) = rest.next() {
            match byte {
                b'"' => {
                    self.at = self.line.len() - rest.len();
                    return self.line.get(begin..self.at);
                }
                b'\\' => {
                    rest.next()?;
                }
                _ => {}
            }
        }
        None
    }

    /// Any value, as it stands there.
    fn value(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let begin = self.at;
        match first {
            b'"' => return self.text(),
            b'{' | b'[' => {
                let mut depth = 0_usize;
                loop {
                    match self.here()? {
                        b'"' => {
                            self.text()?;
                            continue;
                        }
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
            }
            _ => {
                let rest = self.line.get(begin..)?;
                self.at += rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t'))?;
            }
        }
        self.line.get(begin..self.at).filter(|value| !value.is_empty())
    }
}

/// A number of JSON in units of so many decimals. `None`: it is no such number, or it is negative.
fn amount(text: &[u8], decimals: u32) -> Option<u64> {
    let (mut number, mut left) = (0_u64, None);
    for byte in text {
        match (byte, left) {
            (b'0'..=b'9', Some(0)) => {}
            (b'0'..=b'9', _) => {
                number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                left = left.map(|left: u32| left - 1);
            }
            (b'.', None) => left = Some(decimals),
            // A collector can have written it anew.
            _ => return in_floating_point(text, decimals),
        }
    }
    if text.is_empty() {
        return None;
    }
    number.checked_mul(10_u64.checked_pow(left.unwrap_or(decimals))?)
}

#[cold]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
fn in_floating_point(text: &[u8], decimals: u32) -> Option<u64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let scaled = number * 10_f64.powi(decimals.cast_signed());
    (0.0..9e18).contains(&scaled).then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use jobfence::facts::{Fact, Facts};
    use jobfence::figures::{DiskIo, GrantedTo, LimitedTo, Usage};
    use jobfence::job::{Cpus, Id, JobKey};
    use jobfence::report::account::{Account, End, Ending, Exit, Task};

    use super::*;

    /// A line in which each figure has another value, and texts have what JSON must escape.
    fn written() -> String {
        let key = JobKey { node: None, uid: 7, job: Id::new("5\"\\").unwrap(), step: Id::new("batch").unwrap() };
        let known = |text: &str| Fact::Known(text.to_owned());
        let facts = Facts {
            node: known("n1"),
            user: known("u\u{1b}}{"),
            partition: known("p"),
            account: known("ä"),
            qos: known("q]["),
            global_job: known("g"),
            job_name: Fact::Claimed("n\n\"}\u{e4}".to_owned()),
            ..Facts::default()
        };
        let numbers = Usage::default().numbers();
        let numbers: Vec<_> = (1..).map(Some).take(numbers.len()).collect();
        let disk = DiskIo { disk: (8, 16), read: 1, written: 2, reads: 3, writes: 4 };
        let usage = Usage { disks: Some(vec![disk]), ..Usage::from_numbers(numbers.try_into().unwrap()) };
        let ending = Ending {
            holder: "manual",
            run: 3,
            facts: &facts,
            granted: GrantedTo { cpus: Some(Cpus::whole(2)), memory: Some(70), gpus: Some(6) },
            limits: LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), memory: Some(80), processes: Some(9) },
            started: Some(UNIX_EPOCH + Duration::from_millis(1250)),
            exit: Some(Exit::Signal(9)),
            tasks: &[Task { number: 4, exit: Some(Exit::Status(1)), usage: usage.clone() }],
            sentences: &["a \"}\" b".to_owned()],
            end: End::Closed,
        };
        let ended = UNIX_EPOCH + Duration::from_millis(2500);
        Account { key: &key, ended, usage: &usage, job: &usage, ending }.line()
    }

    #[test]
    fn the_members_are_those_of_a_line_in_its_order() {
        let line = written();
        let mut from = 0;
        for name in NAMES {
            let found = line[from..].find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {line}"));
            from += found;
        }
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let unknown: Vec<_> = read.as_object().unwrap().keys().filter(|key| !NAMES.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn a_line_is_read_as_the_report_of_a_job_reads_it() {
        let text = written();
        let Read::Line(line) = read(text.as_bytes(), "") else { panic!("{text}") };
        let same = crate::logged::LoggedStep::new(serde_json::from_str(&text).unwrap());
        let micros = |time: Option<Duration>| time.map(|time| time.as_micros() as u64);
        let thousandths = |cpus: Option<Cpus>| cpus.map(Cpus::thousandths);
        let usage = &same.usage;
        let expected = Line {
            ended: 2_500_000,
            is_exact: true,
            began: micros(same.started_unix_seconds),
            wall: micros(same.wall_seconds),
            node: same.node.as_deref().map(Cow::Borrowed),
            job: same.job.as_deref().unwrap().into(),
            job_name: same.job_name.as_deref().map(Cow::Borrowed),
            step: same.step.as_deref().unwrap().into(),
            run: same.run.unwrap(),
            uid: same.uid,
            user: same.user.as_deref().map(Cow::Borrowed),
            partition: same.partition.as_deref().map(Cow::Borrowed),
            account: same.account.as_deref().map(Cow::Borrowed),
            qos: same.qos.as_deref().map(Cow::Borrowed),
            global_job: same.global_job.as_deref().map(Cow::Borrowed),
            is_success: same.exit.map(Exit::is_success),
            cpus_granted: thousandths(same.cpus_granted),
            cpus_limit: thousandths(same.cpus_limit),
            memory_granted: same.memory_granted_bytes,
            memory_limit: same.memory_limit_bytes,
            gpus_granted: same.gpus_granted,
            cpu: micros(usage.cpu),
            periods: usage.periods,
            throttled_periods: usage.throttled_periods,
            moved: usage.rchar.zip(usage.wchar),
            memory_peak: usage.memory_peak,
            job_memory_peak: same.job_memory_peak_bytes,
            swap_peak: usage.swap_peak,
            kept_down: Some(usage.memory_high_events.unwrap() + usage.memory_max_events.unwrap()),
            oom_kills: usage.oom_kills,
            was_stopped: true,
        };
        assert_eq!(*line, expected);
        // A collector may write the same object in another way.
        let anew = serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&text).unwrap()).unwrap();
        let spaced = anew.replace("\":", "\" : ").replace(",\"", " ,\t\"");
        for again in [&anew, &spaced] {
            assert_eq!(read(again.as_bytes(), ""), Read::Line(Box::new(expected.clone())), "{again}");
        }
    }

    #[test]
    fn what_is_no_whole_line_is_none() {
        let whole = written();
        for length in 0..whole.len() {
            let cut = read(&whole.as_bytes()[..length], "");
            assert_eq!(cut, Read::Foreign, "{length}");
        }
        for foreign in ["", "{}", "[]", "nothing", "{\"schema\":1}", "{\"schema\":\"jobfence-series-1\",\"job\":\"7\"}"]
        {
            assert_eq!(read(foreign.as_bytes(), ""), Read::Foreign, "{foreign}");
        }
        assert_eq!(read((whole.clone() + "x").as_bytes(), ""), Read::Foreign);
        assert_eq!(read(whole.replace("usage-1", "usage-2").as_bytes(), ""), Read::Newer);
        assert_eq!(read(whole.replace("\"job\"", "\"jab\"").as_bytes(), ""), Read::Foreign);
        assert_eq!(read(whole.as_bytes(), "1970-01-01T00:00:03Z"), Read::Earlier);
        assert!(matches!(read(whole.as_bytes(), "1970-01-01T00:00:02Z"), Read::Line(_)));
        // Bytes that are no text, in a member that is needed, and in one that is not.
        let mut bytes = whole.clone().into_bytes();
        let at = whole.find("\"job\":\"").unwrap() + 7;
        bytes[at] = 0xff;
        assert_eq!(read(&bytes, ""), Read::Foreign);
    }

    #[test]
    fn numbers_are_as_exact_as_they_are_written() {
        let of = |text: &str, decimals| amount(text.as_bytes(), decimals);
        assert_eq!(of("8388609.000005", 6), Some(8_388_609_000_005));
        assert_eq!((of("1.5", 3), of("2", 3), of("0.0001", 3), of("7", 0)), (Some(1500), Some(2000), Some(0), Some(7)));
        assert_eq!((of("1.5e3", 0), of("1E2", 3)), (Some(1500), Some(100_000)));
        assert_eq!((of("null", 0), of("-1", 0), of("", 0), of("\"7\"", 0)), (None, None, None, None));
        assert_eq!((of("18446744073709551616", 0), of("1e300", 6)), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_fail(line: Vec<u8>, at: proptest::sample::Index, byte: u8) {
            let _ = read(&line, "");
            let mut changed = written().into_bytes();
            let at = at.index(changed.len());
            changed[at] = byte;
            let _ = read(&changed, "");
        }
    }
}
