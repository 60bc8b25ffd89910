// SPDX-License-Identifier: GPL-2.0-or-later
//! What steps used over time, as drawings with the same information in words.
//!
//! The scale reaches to what was granted, so that two drawings can be compared: one of a job that died at its limit, and one of a job at
//! a third of it.

use std::fmt::Write as _;

use jobfence::bytes::binary;
use jobfence::report::card::several;
use maud::{Markup, html};

use super::parts::{seconds, step_name};
use crate::course::{Course, Kills};
use crate::local_time::LocalTime;
use crate::logged::LoggedStep;
use crate::series::{Amounts, Series};

/// The size of a drawing in its own units.
const WIDE: f64 = 600.0;
const HIGH: f64 = 100.0;

/// How much of the height lies above the end of the scale, so that a line there can be seen.
const ROOM: f64 = 0.06;

/// How many steps have a large drawing. The others have a small one in their table.
const LARGE: usize = 3;

/// A small drawing has at most this many points.
const SMALL_POINTS: usize = 48;

/// A label of the scale needs this share of its height.
const LABEL: f64 = 0.17;

/// What was sampled of a step.
pub struct StepCourses<'a> {
    step: &'a LoggedStep,
    cpus: Course,
    memory: Course,
    cache: Amounts,
    disks: Course,
    /// In seconds since the start.
    end: f64,
}

impl<'a> StepCourses<'a> {
    /// `None`: nothing was sampled of this step.
    pub fn from_step(step: &'a LoggedStep, all: &[Series]) -> Option<Self> {
        let series = Series::of_logged(all, step)?;
        let last = series.points.last()?.at;
        let wall = step.wall_seconds.map(|wall| wall.as_secs_f64());
        let memory = Course::memory(series, step.memory_granted_bytes, step.memory_limit_bytes);
        Some(Self {
            step,
            cpus: Course::cpus(series, step.cpus_granted, step.cpus_limit),
            memory: memory.until(wall, step.usage.oom_kills, series),
            cache: series.points.iter().map(|point| (point.at, point.file_bytes.map(|bytes| bytes as f64))).collect(),
            disks: Course::disks(series),
            end: wall.unwrap_or(last).max(last).max(f64::MIN_POSITIVE),
        })
    }

    fn has_kills(&self) -> bool {
        self.step.usage.oom_kills.is_some_and(|kills| kills > 0)
    }
}

/// Whether more steps were sampled than have large drawings.
pub fn are_many(all: &[Option<StepCourses<'_>>]) -> bool {
    all.iter().flatten().count() > LARGE
}

/// The large drawings, of the steps that matter most. `None`: nothing was sampled.
pub fn large(all: &[Option<StepCourses<'_>>]) -> Option<Markup> {
    let known: Vec<&StepCourses<'_>> = all.iter().flatten().collect();
    let mut chosen: Vec<usize> = (0..known.len()).collect();
    if are_many(all) {
        // Those with kills, if there are any, and else those with the most CPU time.
        let has_kills = |at: &usize| known.get(*at).is_some_and(|one| one.has_kills());
        if chosen.iter().any(has_kills) {
            chosen.retain(has_kills);
        }
        chosen.sort_by_key(|at| std::cmp::Reverse(known.get(*at).map(|one| one.step.usage.cpu)));
        chosen.truncate(LARGE);
        chosen.sort_unstable();
    }
    let others = known.len() - chosen.len();
    (!known.is_empty()).then(|| {
        html! {
            @for one in chosen.iter().filter_map(|at| known.get(*at)) { h3 { "Step " (step_name(one.step)) } (figures(one)) }
            @if others > 0 {
                p.note { (several(others as u64, "more step has", "more steps have")) " small curves in the table of the steps." }
            }
            p.note { "jobfence hold sampled these amounts. The peaks above are the kernel's own, and can be higher." }
        }
    })
}

fn number(cpus: f64) -> String {
    let text = format!("{cpus:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn in_bytes(bytes: f64) -> String {
    binary(bytes as u64)
}

fn figures(of: &StepCourses<'_>) -> Markup {
    let cache = of.cache.iter().filter_map(|(_, bytes)| *bytes).reduce(f64::max).filter(|most| *most > 0.0);
    let cache_in_words = cache.map(|most| format!("; at most {} of page cache, the grey part", in_bytes(most)));
    let killed = killed(&of.memory.kills, of.step.usage.oom_kills);
    let memory = in_short(&of.memory, in_bytes)
        .map(|text| text + &cache_in_words.unwrap_or_default() + &at_limit(&of.memory, "at the limit") + &killed);
    let cpus = in_short(&of.cpus, number).map(|text| text + &at_limit(&of.cpus, "held back by the quota"));
    let disks = in_short(&of.disks, |rate| format!("{} a second", in_bytes(rate)));
    let disks = disks.filter(|_| of.disks.most().is_some_and(|most| most > 0.0));
    html! {
        div.charts {
            (figure(of, "CPUs", &of.cpus, None, cpus, number))
            (figure(of, "Memory", &of.memory, cache.map(|_| &of.cache), memory, in_bytes))
            (figure(of, "Disks", &of.disks, None, disks, in_bytes))
        }
    }
}

/// The smallest and the largest value and the bounds, as text. `None`: no value is known.
fn in_short(course: &Course, in_words: impl Fn(f64) -> String) -> Option<String> {
    let (least, most) = (course.least()?, course.most()?);
    let limit = course.limit.map_or_else(String::new, |limit| format!(" of {}", in_words(limit)));
    let granted = course.granted.filter(|granted| course.limit != Some(*granted));
    let granted = granted.map_or_else(String::new, |granted| format!("; {} granted", in_words(granted)));
    Some(format!("{} to {}{limit}{granted}", in_words(least), in_words(most)))
}

fn at_limit(course: &Course, what: &str) -> String {
    match course.time_at_limit() {
        _ if !course.was_at_limit() => String::new(),
        0.0 => format!("; {what}"),
        time => format!("; {what} within {}", seconds(time)),
    }
}

/// When processes were killed. `all`: how many in the whole step.
fn killed(kills: &[Kills], all: Option<u64>) -> String {
    const MOST: usize = 3;
    let one = |kills: &Kills| {
        let when = match kills.after {
            Some(after) => format!("between {} and {}", seconds(after), seconds(kills.before)),
            None => format!("in the first {}", seconds(kills.before)),
        };
        format!("; ✕ {} killed {when}", processes(kills.count))
    };
    let more = kills.get(MOST..).unwrap_or_default().iter().map(|kills| kills.count).sum::<u64>();
    let more = if more > 0 { format!("; ✕ {} killed later", processes(more)) } else { String::new() };
    let placed = kills.iter().map(|kills| kills.count).sum::<u64>();
    let unplaced = all.and_then(|all| all.checked_sub(placed)).filter(|count| *count > 0);
    let unplaced = unplaced.map(|count| format!("; {} killed, it is not known when", processes(count)));
    kills.iter().take(MOST).map(one).collect::<String>() + &more + &unplaced.unwrap_or_default()
}

fn processes(count: u64) -> String {
    several(count, "process", "processes")
}

/// Where values are drawn.
struct Frame {
    end: f64,
    top: f64,
}

impl Frame {
    fn x(&self, at: f64) -> f64 {
        WIDE * (at / self.end).clamp(0.0, 1.0)
    }

    /// The share of the height that is above this value.
    fn above(&self, value: f64) -> f64 {
        1.0 - (1.0 - ROOM) * (value / self.top).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        HIGH * self.above(value)
    }
}

/// A drawing with its scale; empty if no value is known.
fn figure(
    of: &StepCourses<'_>,
    name: &str,
    course: &Course,
    part: Option<&Amounts>,
    text: Option<String>,
    in_words: fn(f64) -> String,
) -> Markup {
    let Some(text) = text else { return html! {} };
    let frame = Frame { end: of.end, top: course.top() };
    let labels = labels(course);
    let at = |kills: &Kills| {
        // At the edges, too, the sign is within the drawing.
        format!("left: clamp(.55em, {:.2}%, 100% - .55em)", 100.0 * (kills.before / frame.end).clamp(0.0, 1.0))
    };
    html! {
        figure {
            figcaption { strong { (name) } ": " (text) }
            div.plot {
                div.scale aria-hidden="true" {
                    @for (value, what) in &labels {
                        span style=(format!("top: {:.2}%", 100.0 * frame.above(*value))) { (what) (in_words(*value)) }
                    }
                }
                div.canvas {
                    svg.chart viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label={ (name) " over time: " (text) } {
                        @for (value, _) in &labels { path.grid d=(format!("M0 {:.1}H600", frame.y(*value))) {} }
                        (drawn(course, part, &frame))
                    }
                    @for kills in &course.kills { span.mark aria-hidden="true" style=(at(kills)) { "✕" } }
                }
                (times(of))
            }
        }
    }
}

/// The lines within a drawing, of either size.
fn drawn(course: &Course, part: Option<&Amounts>, frame: &Frame) -> Markup {
    let bounds = course.limit.or(course.granted);
    let kills = course.kills.iter().map(|kills| format!("M{:.1} 0V{HIGH}", frame.x(kills.before)));
    html! {
        @for path in paths(&course.values, frame, true) { path.under d=(path) {} }
        @if let Some(part) = part { @for path in paths(part, frame, true) { path.area d=(path) {} } }
        @if let Some(bound) = bounds { path.limit d=(format!("M0 {:.1}H600", frame.y(bound))) {} }
        @for path in paths(&course.values, frame, false) { path.line d=(path) {} }
        @for path in at_the_limit(course, frame) { path.reached d=(path) {} }
        @for path in kills { path.kill d=(path) {} }
    }
}

/// The labels of the scale, each where there is room: its value, and what it is.
fn labels(course: &Course) -> Vec<(f64, &'static str)> {
    let top = course.top();
    let wanted = [
        course.limit.map(|limit| (limit, "limit ")),
        Some((0.0, "")),
        course.granted.map(|granted| (granted, "granted ")),
        Some((top, "")),
        Some((top / 2.0, "")),
    ];
    let mut labels: Vec<(f64, &'static str)> = Vec::new();
    for (value, what) in wanted.into_iter().flatten() {
        if labels.iter().all(|(other, _)| (value - other).abs() > LABEL * top) {
            labels.push((value, what));
        }
    }
    labels
}

/// When the step began and ended, by the clock and by its own time.
fn times(of: &StepCourses<'_>) -> Markup {
    let (from, to) = (of.step.started.as_deref(), of.step.ended.as_deref());
    let local = |moment: Option<&str>| moment.and_then(LocalTime::from_moment);
    let (from, to) = (local(from), local(to));
    let is_of_one_day = from.as_ref().zip(to.as_ref()).is_some_and(|(from, to)| from.date == to.date);
    let clock = |local: &Option<LocalTime>| {
        let Some(local) = local else { return String::new() };
        let date = if is_of_one_day { String::new() } else { format!("{} ", local.date) };
        format!("{date}{}{}", local.clock, if local.is_utc { " UTC" } else { "" })
    };
    html! {
        p.axis {
            span { (clock(&from)) br; "0 s" }
            span { (seconds(of.end / 2.0)) }
            span { (clock(&to)) br; (seconds(of.end)) }
        }
    }
}

/// A path for each stretch in which the amount is known.
fn paths(amounts: &Amounts, frame: &Frame, is_area: bool) -> Vec<String> {
    let mut all = Vec::new();
    for stretch in amounts.split(|(_, value)| value.is_none()) {
        let mut path = String::new();
        for (at, value) in stretch {
            let (x, y) = (frame.x(*at), frame.y(value.unwrap_or(0.0)));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
        }
        if let ([_], false) = (stretch, is_area) {
            // One value between unknown ones is a dot.
            path.push_str("h.1");
        }
        if let (true, Some((first, _)), Some((last, _))) = (is_area, stretch.first(), stretch.last()) {
            let _ = write!(path, "L{:.1} {HIGH}L{:.1} {HIGH}Z", frame.x(*last), frame.x(*first));
        }
        all.extend((!path.is_empty()).then_some(path));
    }
    all
}

/// The stretches in which the limit was reached: at the limit itself, since a sample may miss the moment, and along the curve.
fn at_the_limit(course: &Course, frame: &Frame) -> Vec<String> {
    let mut all = Vec::new();
    let mut before: Option<(f64, Option<f64>)> = None;
    for ((at, value), is_reached) in course.values.iter().zip(&course.reached) {
        if *is_reached {
            let from = before.map_or(*at, |(from, _)| from);
            let known = |value: Option<f64>| value.or(course.limit);
            let curve = before.and_then(|(_, value)| known(value)).zip(known(*value));
            if let Some((start, end)) = curve {
                all.push(format!(
                    "M{:.1} {:.1}L{:.1} {:.1}",
                    frame.x(from),
                    frame.y(start),
                    frame.x(*at),
                    frame.y(end)
                ));
            }
            if let Some(limit) = course.limit {
                all.push(format!("M{:.1} {:.1}H{:.1}", frame.x(from), frame.y(limit), frame.x(*at) + 0.1));
            }
        }
        before = Some((*at, *value));
    }
    all
}

/// CPUs over time, for a cell of a table.
pub fn small_cpus(of: &StepCourses<'_>) -> Option<Markup> {
    small(of, "CPUs", &of.cpus, &in_short(&of.cpus, number)?)
}

/// Memory over time, for a cell of a table.
pub fn small_memory(of: &StepCourses<'_>) -> Option<Markup> {
    let text = in_short(&of.memory, in_bytes)? + &killed(&of.memory.kills, of.step.usage.oom_kills);
    small(of, "Memory", &of.memory, &text)
}

fn small(of: &StepCourses<'_>, name: &str, course: &Course, text: &str) -> Option<Markup> {
    let course = thinned(course);
    let frame = Frame { end: of.end, top: course.top() };
    Some(html! {
        svg.small viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label={ (name) " over time: " (text) } {
            (drawn(&course, None, &frame))
        }
    })
}

/// Thins out a course: the largest of neighbouring values stays.
fn thinned(course: &Course) -> Course {
    let each = course.values.len().div_ceil(SMALL_POINTS).max(1);
    let largest = |chunk: &[(f64, Option<f64>)]| {
        let order = |one: &&(f64, Option<f64>), other: &&(f64, Option<f64>)| {
            one.1.unwrap_or(-1.0).total_cmp(&other.1.unwrap_or(-1.0))
        };
        chunk.iter().max_by(order).copied()
    };
    Course {
        values: course.values.chunks(each).filter_map(largest).collect(),
        reached: course.reached.chunks(each).map(|chunk| chunk.contains(&true)).collect(),
        ..course.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::series::Point;

    fn step(name: &str, kills: u64, cpu: u64) -> LoggedStep {
        LoggedStep::new(json!({
            "job": "7", "step": name, "run": 0, "started": "2026-11-25T03:00:00Z", "ended": "2026-11-25T03:01:40Z",
            "wall_seconds": 100, "memory_granted_bytes": 2000, "memory_limit_bytes": 1000, "oom_kills": kills,
            "cpu_seconds": cpu,
        }))
    }

    fn series(name: &str) -> Series {
        let point = |at: u8, memory: u64, kills: u64| Point {
            at: f64::from(at),
            memory_bytes: Some(memory),
            oom_kills: Some(kills),
            ..Point::default()
        };
        Series {
            job: "7".to_owned(),
            step: name.to_owned(),
            started: "2026-11-25T03:00:00Z".to_owned(),
            points: vec![point(0, 100, 0), point(50, 1000, 0), point(90, 300, 1)],
            ..Series::default()
        }
    }

    fn drawings(steps: &[LoggedStep]) -> String {
        let all: Vec<Series> = steps.iter().map(|step| series(step.step.as_deref().unwrap())).collect();
        let courses: Vec<_> = steps.iter().map(|step| StepCourses::from_step(step, &all)).collect();
        large(&courses).unwrap().into_string()
    }

    #[test]
    fn what_was_granted_is_no_limit() {
        let step = LoggedStep::new(json!({
            "job": "7", "step": "0", "run": 0, "started": "2026-11-25T03:00:00Z", "wall_seconds": 100, "cpus_granted": 4,
        }));
        let mut series = series("0");
        series.points.iter_mut().for_each(|point| point.cpu_seconds = Some(2.0 * point.at));
        let drawn = large(&[StepCourses::from_step(&step, &[series])]).unwrap().into_string();
        assert!(drawn.contains("granted 4") && !drawn.contains("limit 4"), "{drawn}");
    }

    #[test]
    fn a_kill_and_the_time_at_the_limit_are_drawn_and_said() {
        let drawn = drawings(&[step("0", 2, 1)]);
        for part in [
            "Memory</strong>: 100 B to 1000 B of 1000 B; 1.9 KiB granted; at the limit within 50 s; ✕ 1 process killed between \
             50 s and 1 min 30 s; ✕ 1 process killed between 1 min 30 s and 1 min 40 s",
            // The scale reaches to the grant, twice the limit, with a little room above.
            "top: 6.00%\">granted 1.9 KiB",
            "top: 53.00%\">limit 1000 B",
            "<path class=\"limit\" d=\"M0 53.0H600\">",
            "<path class=\"reached\" d=\"M0.0 53.0H300.1\">",
            "<path class=\"kill\" d=\"M540.0 0V100\"></path><path class=\"kill\" d=\"M600.0 0V100\">",
            "style=\"left: clamp(.55em, 90.00%, 100% - .55em)\">✕",
        ] {
            assert!(drawn.contains(part), "{part} in {drawn}");
        }
        // CPU time was not sampled, and so there is no drawing of it.
        assert!(!drawn.contains("CPUs"), "{drawn}");
        let unplaced = drawings(&[step("0", 3, 1)]);
        assert!(!unplaced.contains("it is not known when"), "the last kills were after the last sample: {unplaced}");
    }

    #[test]
    fn of_many_steps_those_that_matter_have_large_drawings() {
        let heads = |steps: &[LoggedStep]| {
            let drawn = drawings(steps);
            let heads = drawn.split("<h3>Step ").skip(1).filter_map(|part| part.split('<').next());
            heads.collect::<Vec<_>>().join(" ")
        };
        let five = |kills: [u64; 5]| {
            let steps: Vec<_> = (0..).zip(kills).map(|(at, kills)| step(&at.to_string(), kills, at)).collect();
            heads(&steps)
        };
        assert_eq!([five([0; 5]), five([0, 1, 0, 1, 0])], ["2 3 4", "1 3"]);
        assert_eq!(heads(&[step("0", 0, 1), step("1", 1, 1)]), "0 1", "few have all");
        let many: Vec<_> = (0..5).map(|at| step(&at.to_string(), 0, at)).collect();
        assert!(drawings(&many).contains("2 more steps have small curves"));
    }

    #[test]
    fn labels_of_the_scale_have_room() {
        let of = |granted, limit| {
            let values = vec![(0.0, Some(1.0))];
            labels(&Course { values, granted, limit, ..Course::default() })
        };
        assert_eq!(of(Some(100.0), Some(95.0)), [(95.0, "limit "), (0.0, ""), (50.0, "")]);
        assert_eq!(of(Some(100.0), None), [(0.0, ""), (100.0, "granted "), (50.0, "")]);
        assert_eq!(of(None, None), [(0.0, ""), (1.0, ""), (0.5, "")]);
    }

    #[test]
    fn a_small_drawing_keeps_what_happened() {
        let mut values: Amounts = (0..1000).map(|at| (f64::from(at), Some(1.0))).collect();
        values[500].1 = Some(9.0);
        let reached = (0..1000).map(|at| at == 700).collect();
        let thin = thinned(&Course { values, reached, ..Course::default() });
        assert!(thin.values.len() <= SMALL_POINTS && thin.reached.len() == thin.values.len());
        assert_eq!((thin.most(), thin.was_at_limit()), (Some(9.0), true));
        let unknown = Course { values: vec![(0.0, None); 100], ..Course::default() };
        assert_eq!(thinned(&unknown).most(), None);
    }
}
