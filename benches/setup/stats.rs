// SPDX-License-Identifier: GPL-2.0-or-later
//! What is made of many durations, and how it is shown.

use std::fmt::Write;
use std::time::Duration;

/// Durations in ascending order; at least one.
pub struct Sample(Vec<Duration>);

impl Sample {
    /// Sorts them.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self(durations)
    }

    /// The smallest of which at least so many percent of all are not above (the nearest rank).
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    /// Half are below.
    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Least, median, 90th percentile and most, in microseconds, as the columns of a table.
    pub fn columns(&self) -> String {
        [0, 50, 90, 100].map(|percent| format!("{:>10.1}", micros(self.percentile(percent)))).concat()
    }

    /// One line for each doubling of the time.
    pub fn histogram(&self) -> String {
        let bucket = |duration: &Duration| micros(*duration).max(1.0).log2().floor();
        let (Some(first), Some(last)) = (self.0.first().map(bucket), self.0.last().map(bucket)) else {
            return String::new();
        };
        let mut text = String::new();
        let mut exponent = first;
        while exponent <= last {
            let count = self.0.iter().filter(|duration| bucket(duration) == exponent).count();
            let bar = "#".repeat((count * 50).div_ceil(self.0.len()));
            let (from, to) = (exponent.exp2(), (exponent + 1.0).exp2());
            let _ = writeln!(text, "    {from:>7} -{to:>7} us {count:>5} {bar}");
            exponent += 1.0;
        }
        text
    }
}

/// Above the columns of [`Sample::columns`].
pub fn heading(title: &str) {
    println!("\n{title:<46}{:>10}{:>10}{:>10}{:>10}", "least us", "median", "p90", "most");
}

/// One line of such a table.
pub fn row(name: &str, sample: &Sample) {
    println!("  {name:<44}{}", sample.columns());
}

/// In microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The goals, and whether each is reached.
#[derive(Default)]
pub struct Goals {
    lines: Vec<String>,
    missed: bool,
}

impl Goals {
    /// A value, what it is wanted to be, and whether it is.
    pub fn add(&mut self, name: &str, value: &str, wanted: &str, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.lines.push(format!("  {name:<52}{value:>12}{wanted:>12}  {verdict}"));
        self.missed |= !met;
    }

    /// Prints them, and says whether all are met.
    pub fn print(&self) -> bool {
        println!("\n{:<54}{:>12}{:>12}", "goal", "value", "wanted");
        for line in &self.lines {
            println!("{line}");
        }
        !self.missed
    }
}
