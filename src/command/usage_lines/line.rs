// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the usage log for a summary: only the members that it needs, borrowed from the line.

use std::borrow::Cow;

use jobfence::report::account::SCHEMA;

use crate::gpus::{self, GpuLine, ReadGpus};
use crate::moment::seconds_of;
use crate::values::{LineValues, Member, Text};

/// What a summary needs of a line. Times are in microseconds, CPUs in thousandths, memory in bytes. `None`: not known.
#[derive(Debug, Default, Clone, PartialEq)]
#[allow(missing_docs, reason = "jobfence(8) says what each member is")]
pub struct Line<'a> {
    /// When the step ended.
    pub ended: u64,
    /// Whether `began` and `ended` are more exact than to the second.
    pub is_exact: bool,
    /// When it began.
    pub began: Option<u64>,
    /// How long it lasted.
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
    /// How often the kernel took memory back because a limit was reached.
    pub kept_down: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Whether a limit stopped one of its processes.
    pub was_stopped: bool,
}

/// The most that a line may be dated ahead, and the longest that a step may have lasted, in microseconds.
const MAY_BE_AHEAD: u64 = 86_400 * 1_000_000;
const LONGEST_STEP: u64 = 366 * MAY_BE_AHEAD;

impl Line<'_> {
    /// Whether the line's times can be right. A line with a wrong clock is left out.
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
    /// A step that has ended.
    Line(Line<'a>),
    /// What a job did with GPUs.
    Gpus(GpuLine<'a>),
    /// A step that ended before the time of interest.
    Earlier,
    /// A line of jobfence's in the format of another release.
    Newer,
    /// A line that is not jobfence's, or not whole.
    Foreign,
}

/// The beginning of a line as jobfence writes it, up to the time at which the step ended.
const BEGIN: &[u8] = b"{\"schema\":\"jobfence-usage-1\",\"ended\":\"";

/// What stands before that time.
const ENDED: &[u8] = b"\"ended\":\"";

/// What stands before the time of the last look, in a line about GPUs.
const LOOKED: &[u8] = b"\"looked\":\"";

/// The length of `2026-11-25T03:31:01Z`.
const MOMENT: usize = 20;

/// When a step ended, as the log writes it. Such texts are in the order of their times.
pub type EndText = [u8; MOMENT];

fn behind<'a>(line: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    line.get(memchr::memmem::find(line, before)? + before.len()..)
}

/// When the step of a line ended, or when the GPUs of a job were last looked at. `None`: the line is not jobfence's.
pub fn moment_of(line: &[u8]) -> Option<EndText> {
    let rest = match line.strip_prefix(BEGIN) {
        Some(rest) => rest,
        // A log collector can have written the members in another order.
        None => [ENDED, LOOKED].into_iter().find_map(|before| behind(line, before))?,
    };
    rest.get(..MOMENT)?.try_into().ok().filter(|moment: &EndText| moment.is_ascii())
}

/// Reads a line. `since`: the earliest time of interest, as the log writes it; empty: all.
pub fn read<'a>(line: &'a [u8], since: &str) -> Read<'a> {
    // The beginning alone tells that most lines can be passed over.
    let moment = line.strip_prefix(BEGIN).and_then(|rest| rest.get(..MOMENT));
    if moment.is_some_and(|moment| moment < since.as_bytes()) && line.ends_with(b"}") {
        return Read::Earlier;
    }
    if moment.is_none()
        && let Some(of_gpus) = gpus::read(line, since)
    {
        return match of_gpus {
            ReadGpus::Line(line) => Read::Gpus(line),
            ReadGpus::Earlier => Read::Earlier,
            ReadGpus::Newer => Read::Newer,
        };
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

/// The line that the members describe. `None`: a member is missing that jobfence writes in every line.
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
