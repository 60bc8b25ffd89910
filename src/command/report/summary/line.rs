// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the usage log for a summary: only the members that it needs, borrowed from the line.
//!
//! [`crate::logged`] reads every member into values of its own, which for millions of lines would take minutes.

use std::borrow::Cow;

use jobfence::report::account::SCHEMA;
use line_values::{LineValues, Member, Text};

use crate::moment::seconds_of;

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
#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a summary allocates nothing for each of millions of lines"
)]
pub enum Read<'a> {
    Line(Line<'a>),
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

/// In a line about GPUs, what is before the time of the last look at them.
const LOOKED: &[u8] = b"\"looked\":\"";

/// The length of `2026-11-25T03:31:01Z`.
const MOMENT: usize = 20;

/// When a step ended, as the log writes it. Such texts are in the order of their times.
pub type EndText = [u8; MOMENT];

fn behind<'a>(line: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    line.get(memchr::memmem::find(line, before)? + before.len()..)
}

/// When the step of a line ended, or the GPUs of a job were last looked at, if the line is one of jobfence's.
pub fn moment_of(line: &[u8]) -> Option<EndText> {
    let rest = match line.strip_prefix(BEGIN) {
        Some(rest) => rest,
        // A collector can have written the line anew.
        None => [ENDED, LOOKED].into_iter().find_map(|before| behind(line, before))?,
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
    let Some(values) = LineValues::find(line) else { return Read::Foreign };
    match values.text(Member::schema).as_deref() {
        Some(SCHEMA) => {}
        Some(schema) if schema.starts_with("jobfence-usage-") => return Read::Newer,
        _ => return Read::Foreign,
    }
    match line_of(&values) {
        Some(_) if values.text(Member::ended).as_deref().is_some_and(|ended| ended < since) => Read::Earlier,
        Some(line) => Read::Line(line),
        None => Read::Foreign,
    }
}

/// What the members say. `None`: one is missing that the log of jobfence has in every line.
fn line_of<'a>(values: &LineValues<'a>) -> Option<Line<'a>> {
    use Member as M;
    let whole = |member| values.number(member, 0);
    let micros = |member| values.number(member, 6);
    let moment = |member| seconds_of(&values.text(member)?).map(|seconds| seconds.saturating_mul(1_000_000));
    let (job, step, at) = (values.text(M::job)?, values.text(M::step)?, moment(M::ended)?);
    let exact = micros(M::started_unix_seconds).zip(micros(M::ended_unix_seconds));
    let is_signalled = whole(M::exit_signal).map(|_| false);
    let status = values.raw(M::exit_status).filter(|status| *status != b"null").map(|status| status == b"0");
    let add = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    let has_sentences = values.raw(M::sentences).is_some_and(|all| all.len() > 2);
    Some(Line {
        ended: exact.map_or(at, |(_, ended)| ended),
        is_exact: exact.is_some(),
        began: exact.map(|(began, _)| began).or_else(|| moment(M::started)),
        wall: micros(M::wall_seconds),
        node: values.text(M::node),
        job,
        job_name: values.text(M::job_name),
        step,
        run: whole(M::run).unwrap_or(0),
        uid: whole(M::uid),
        user: values.text(M::user),
        partition: values.text(M::partition),
        account: values.text(M::account),
        qos: values.text(M::qos),
        global_job: values.text(M::global_job),
        is_success: status.or(is_signalled),
        cpus_granted: values.number(M::cpus_granted, 3).filter(|cpus| *cpus > 0),
        cpus_limit: values.number(M::cpus_limit, 3).filter(|cpus| *cpus > 0),
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use jobfence::facts::{Fact, Facts};
    use jobfence::figures::{DiskIo, GrantedTo, LimitedTo, Usage};
    use jobfence::job::{Cpus, Id, JobKey};
    use jobfence::report::account::{Account, End, Ending, Exit, Task};
    use line_values::NAMES;

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
        assert_eq!(line, expected);
        // A collector may write the same object in another way.
        let anew = serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&text).unwrap()).unwrap();
        let spaced = anew.replace("\":", "\" : ").replace(",\"", " ,\t\"");
        for again in [&anew, &spaced] {
            assert_eq!(read(again.as_bytes(), ""), Read::Line(expected.clone()), "{again}");
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
