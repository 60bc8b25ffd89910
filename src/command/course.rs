// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step used over time against what it could use: its limit, when that was reached, and when processes were killed.
//!
//! `jobfence show` has it in characters, and the page as drawings. A curve alone would say nothing: that of a job at a third of its limit
//! would look like that of one which died there.

use jobfence::job::Cpus;

use crate::series::{Amounts, Point, Series};

/// A quota that holds processes back in a smaller share of its periods does not matter, in percent. It is the card's share.
const HELD_BACK: u64 = 10;

/// Memory counts as at its limit from this share on, since the kernel charges in batches.
const FULL: f64 = 0.99;

/// One resource of a step over time.
#[derive(Debug, Default, Clone)]
pub struct Course {
    pub values: Amounts,
    /// What was granted, in the values' unit. `None`: not known.
    pub granted: Option<f64>,
    /// What it could use at the most, in the values' unit. `None`: not limited, or not known.
    pub limit: Option<f64>,
    /// For each value: whether the limit was reached since the value before it.
    pub reached: Vec<bool>,
    /// In the order of time.
    pub kills: Vec<Kills>,
}

/// Processes that were killed between two looks, in seconds since the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kills {
    /// The last look without them. `None`: they were there at the first look.
    pub after: Option<f64>,
    pub before: f64,
    pub count: u64,
}

impl Course {
    /// CPUs that were busy. The limit was reached where the quota held processes back.
    pub fn cpus(series: &Series, granted: Option<Cpus>, limit: Option<Cpus>) -> Self {
        let is_held_back = |pair: &[Point]| {
            let held = rise(pair, |point| point.throttled_periods)?;
            let all = rise(pair, |point| point.periods).filter(|all| *all > 0)?;
            Some(held.saturating_mul(100) / all >= HELD_BACK)
        };
        let number = |cpus: Cpus| cpus.thousandths() as f64 / 1000.0;
        Self {
            values: series.cpus(),
            granted: granted.map(number),
            limit: limit.map(number),
            reached: series.points.windows(2).map(|pair| is_held_back(pair).unwrap_or(false)).collect(),
            kills: Vec::new(),
        }
    }

    /// Memory in use. The limit was reached where the kernel has counted that, or where the memory in use was at the limit.
    pub fn memory(series: &Series, granted: Option<u64>, limit: Option<u64>) -> Self {
        let points = &series.points;
        let bytes = |bytes: u64| bytes as f64;
        let limit = limit.map(bytes).filter(|limit| *limit > 0.0);
        let is_full =
            |point: &Point| point.memory_bytes.map(bytes).zip(limit).is_some_and(|(used, limit)| used >= FULL * limit);
        let first =
            points.first().map(|point| is_full(point) || point.memory_max_events.is_some_and(|count| count > 0));
        let later = points.windows(2).map(|pair| {
            rise(pair, |point| point.memory_max_events).is_some_and(|count| count > 0)
                || pair.last().is_some_and(is_full)
        });
        Self {
            values: points.iter().map(|point| (point.at, point.memory_bytes.map(bytes))).collect(),
            granted: granted.map(bytes),
            limit,
            reached: first.into_iter().chain(later).collect(),
            kills: kills(points),
        }
    }

    /// Bytes read and written in a second.
    pub fn disks(series: &Series) -> Self {
        Self { values: series.disk_rates(), ..Self::default() }
    }

    /// The same until the end of the step, where so many processes had been killed in all.
    pub fn until(mut self, end: Option<f64>, kills: Option<u64>, series: &Series) -> Self {
        let (Some(end), Some(last), Some(all)) = (end, series.points.last(), kills) else { return self };
        let more = last.oom_kills.and_then(|before| all.checked_sub(before)).filter(|more| *more > 0);
        let kills = more.map(|count| Kills { after: Some(last.at), before: end.max(last.at), count });
        self.kills.extend(kills);
        self
    }

    fn known(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().filter_map(|(_, value)| *value)
    }

    /// The smallest value.
    pub fn least(&self) -> Option<f64> {
        self.known().reduce(f64::min)
    }

    /// The largest value.
    pub fn most(&self) -> Option<f64> {
        self.known().reduce(f64::max)
    }

    /// The upper end of the scale: what was granted, or the limit; the largest value if that is above both, or if there is neither.
    pub fn top(&self) -> f64 {
        let bounds = self.granted.into_iter().chain(self.limit);
        let top = bounds.chain(self.most()).fold(0.0, f64::max);
        if top > 0.0 { top } else { 1.0 }
    }

    /// For how long the limit was reached, as far as the samples tell, in seconds.
    pub fn time_at_limit(&self) -> f64 {
        let spans = self.values.windows(2).zip(self.reached.iter().skip(1)).filter(|(_, is_reached)| **is_reached);
        spans.filter_map(|(pair, _)| Some(pair.last()?.0 - pair.first()?.0)).sum()
    }

    /// Whether the limit was reached at any time.
    pub fn was_at_limit(&self) -> bool {
        self.reached.contains(&true)
    }

    /// The course in this many characters at the most. Unknown values are blanks. The full height is the top of the scale, [`AT_LIMIT`]
    /// is where the limit was reached, and [`KILLED`] where a process was killed.
    pub fn in_characters(&self, cells: usize, is_utf8: bool) -> String {
        let signs: &[char] = if is_utf8 {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &['_', '.', '-', '=', '#']
        };
        let (Some((first, _)), Some((last, _))) = (self.values.first(), self.values.last()) else {
            return String::new();
        };
        let (span, top) = (last - first, self.top());
        let cells = cells.min(self.values.len()).max(1);
        let cell_of = |at: f64| {
            let place = if span > 0.0 { ((at - first) / span).clamp(0.0, 1.0) } else { 0.0 };
            ((place * cells as f64) as usize).min(cells - 1)
        };
        let cell = |number: usize| {
            let here = || (0..).zip(&self.values).filter(move |(_, (at, _))| cell_of(*at) == number);
            if self.kills.iter().any(|kills| cell_of(kills.before) == number) {
                return KILLED;
            }
            if here().any(|(at, _): (usize, _)| self.reached.get(at) == Some(&true)) {
                return AT_LIMIT;
            }
            let highest = here().filter_map(|(_, (_, value))| *value).reduce(f64::max);
            highest.map_or(' ', |value| {
                let at = (value / top * signs.len() as f64).ceil() as usize;
                signs.get(at.saturating_sub(1).min(signs.len() - 1)).copied().unwrap_or(' ')
            })
        };
        (0..cells).map(cell).collect()
    }
}

/// Where the limit was reached.
pub const AT_LIMIT: char = '!';

/// Where a process was killed.
pub const KILLED: char = 'x';

/// How much a counter has risen between two points.
fn rise(pair: &[Point], of: fn(&Point) -> Option<u64>) -> Option<u64> {
    let [before, after] = pair else { return None };
    of(after)?.checked_sub(of(before)?)
}

/// The kills at the points. Where a counter is not known, they belong to the time between the known ones around.
fn kills(points: &[Point]) -> Vec<Kills> {
    let known = points.iter().filter_map(|point| Some((point.at, point.oom_kills?)));
    let before = std::iter::once(None).chain(known.clone().map(Some));
    let risen = known.zip(before).filter_map(|((at, count), before)| {
        let count = count.checked_sub(before.map_or(0, |(_, count)| count)).filter(|more| *more > 0)?;
        Some(Kills { after: before.map(|(at, _)| at), before: at, count })
    });
    risen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rising() -> Course {
        Course { values: (0..8).map(|at| (f64::from(at), Some(f64::from(at)))).collect(), ..Course::default() }
    }

    fn point(at: u8, memory: u64) -> Point {
        Point { at: f64::from(at), memory_bytes: Some(memory), ..Point::default() }
    }

    fn series(points: Vec<Point>) -> Series {
        Series { points, ..Series::default() }
    }

    #[test]
    fn without_a_bound_the_highest_has_the_full_height() {
        assert_eq!(rising().in_characters(40, true), "▁▂▃▄▅▆▇█");
        assert_eq!(rising().in_characters(2, false), "-#");
        assert_eq!(Course::default().in_characters(40, true), "");
        let unknown = Course { values: vec![(0.0, Some(0.0)), (1.0, None)], ..Course::default() };
        assert_eq!(unknown.in_characters(40, true), "▁ ");
    }

    #[test]
    fn a_job_at_a_third_of_its_limit_does_not_look_like_one_that_died_there() {
        let third = Course::memory(&series(vec![point(0, 10), point(1, 30)]), Some(90), Some(90));
        assert_eq!((third.in_characters(40, true).as_str(), third.was_at_limit()), ("▁▃", false));
        // The kernel has counted that the limit was reached, though no sample has it.
        let dead = series(vec![
            Point { memory_max_events: Some(0), oom_kills: Some(0), ..point(0, 10) },
            Point { memory_max_events: Some(0), oom_kills: Some(0), ..point(10, 30) },
            Point { memory_max_events: Some(7), oom_kills: Some(0), ..point(20, 60) },
            Point { memory_max_events: Some(7), oom_kills: Some(2), ..point(30, 20) },
        ]);
        let dead = Course::memory(&dead, Some(90), Some(90)).until(Some(33.0), Some(3), &dead);
        assert_eq!(dead.in_characters(40, true), "▁▃!x");
        assert_eq!(dead.time_at_limit(), 10.0);
        let kills = |after, before, count| Kills { after: Some(after), before, count };
        assert_eq!(dead.kills, [kills(20.0, 30.0, 2), kills(30.0, 33.0, 1)]);
        // An older release has not sampled the counters, but the memory in use was at the limit.
        let full =
            Course::memory(&series(vec![point(0, 90)]), None, Some(90)).until(Some(1.0), Some(1), &series(vec![]));
        assert_eq!((full.in_characters(40, true).as_str(), full.kills.len()), ("!", 0));
    }

    #[test]
    fn a_grant_that_was_used_up_is_not_a_limit_that_held_back() {
        let at = |at: u8, throttled: Option<u64>| Point {
            at: f64::from(at),
            cpu_seconds: Some(2.0 * f64::from(at)),
            periods: Some(10 * u64::from(at)),
            throttled_periods: throttled,
            ..Point::default()
        };
        let reached = |points: [Option<u64>; 3]| {
            let series = series((0..).zip(points).map(|(number, held)| at(10 * number, held)).collect());
            Course::cpus(&series, Some(Cpus::whole(4)), Some(Cpus::whole(2))).reached
        };
        assert_eq!(reached([Some(0), Some(9), Some(19)]), [false, true]);
        assert_eq!(reached([Some(0), None, Some(19)]), [false, false]);
    }

    #[test]
    fn the_scale_reaches_to_the_grant() {
        let with = |granted, limit| Course { granted, limit, ..rising() }.top();
        assert_eq!([with(None, None), with(Some(9.0), Some(5.0)), with(None, Some(8.0))], [7.0, 9.0, 8.0]);
        assert_eq!([with(Some(3.0), None), Course::default().top()], [7.0, 1.0]);
    }
}
