// SPDX-License-Identifier: GPL-2.0-or-later
//! What steps used over time, as charts with the same information in words.

use std::fmt::Write as _;
use std::time::Duration;

use jobfence::bytes::binary;
use jobfence::report::card::duration as in_words;
use maud::{Markup, html};

use super::super::runs::JobRun;
use super::super::total::cpus_of;
use crate::logged::LoggedStep;
use crate::series::{Amounts, Series};
use crate::table::printable;

/// The size of a chart in its own units.
const WIDE: f64 = 600.0;
const HIGH: f64 = 100.0;

/// The series of a run's steps. `None`: there are none.
pub fn of(run: &JobRun, all: &[Series]) -> Option<Markup> {
    let of_step =
        |step: &LoggedStep| Some((printable(step.step.as_deref()?), figures(step, Series::of_logged(all, step)?)));
    let found: Vec<_> = run.steps.iter().filter_map(of_step).collect();
    (!found.is_empty()).then(|| {
        html! {
            @for (step, figures) in &found { h3 { "Step " (step) } (figures) }
            p.note { "jobfence hold sampled these amounts. The peaks above are the kernel's own, and can be higher." }
        }
    })
}

fn figures(step: &LoggedStep, series: &Series) -> Markup {
    let granted = |text: Option<String>| text.map(|text| format!("; {text} granted")).unwrap_or_default();
    let cpus = series.cpus();
    let memory: Amounts =
        series.points.iter().map(|point| (point.at, point.memory_bytes.map(|bytes| bytes as f64))).collect();
    let cache: Amounts =
        series.points.iter().map(|point| (point.at, point.file_bytes.map(|bytes| bytes as f64))).collect();
    let disks = series.disk_rates();
    let number = |cpus: f64| format!("{cpus:.2}");
    let bytes = |bytes: f64| binary(bytes as u64);
    html! {
        (figure("CPUs", &cpus, None, &in_short(&cpus, number).map(|text| text + &granted(cpus_of(step).map(|cpus| cpus.to_string())))))
        (figure("Memory", &memory, Some(&cache), &in_short(&memory, bytes).map(|text| {
            let cache = most(&cache).map(|cache| format!("; at most {} of page cache, the grey part", binary(cache as u64)));
            text + &cache.unwrap_or_default() + &granted(step.memory_limit_bytes.map(binary))
        })))
        (figure("Disks", &disks, None, &in_short(&disks, |rate| format!("{} a second", bytes(rate)))))
    }
}

/// A chart; empty if no value is known.
fn figure(name: &str, amounts: &Amounts, part: Option<&Amounts>, text: &Option<String>) -> Markup {
    let (Some(text), Some((first, _)), Some((last, _))) = (text, amounts.first(), amounts.last()) else {
        return html! {};
    };
    let highest = most(amounts).filter(|most| *most > 0.0).unwrap_or(1.0);
    let place = |at: f64, value: f64| {
        let span = (last - first).max(f64::MIN_POSITIVE);
        (WIDE * (at - first) / span, HIGH * (1.0 - 0.96 * (value / highest).min(1.0)))
    };
    html! {
        figure {
            figcaption { strong { (name) } ": " (text) }
            svg.chart viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label={ (name) " over time: " (text) } {
                @if let Some(part) = part { @for path in paths(part, place, true) { path.area d=(path) {} } }
                @for path in paths(amounts, place, false) { path.line d=(path) {} }
            }
            p.axis { span { (moment(*first)) } span { (moment(*last)) } }
        }
    }
}

/// A path for each stretch in which the amount is known.
fn paths(amounts: &Amounts, place: impl Fn(f64, f64) -> (f64, f64), is_area: bool) -> Vec<String> {
    let mut all = Vec::new();
    for stretch in amounts.split(|(_, value)| value.is_none()) {
        let mut path = String::new();
        for (at, value) in stretch {
            let (x, y) = place(*at, value.unwrap_or(0.0));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
        }
        if let (true, Some((first, _)), Some((last, _))) = (is_area, stretch.first(), stretch.last()) {
            let _ = write!(path, "L{:.1} {HIGH}L{:.1} {HIGH}Z", place(*last, 0.0).0, place(*first, 0.0).0);
        }
        all.extend((!path.is_empty()).then_some(path));
    }
    all
}

fn most(amounts: &Amounts) -> Option<f64> {
    amounts.iter().filter_map(|(_, value)| *value).reduce(f64::max)
}

/// The smallest and the largest value, as text.
fn in_short(amounts: &Amounts, in_words: impl Fn(f64) -> String) -> Option<String> {
    let least = amounts.iter().filter_map(|(_, value)| *value).reduce(f64::min)?;
    Some(format!("{} to {}", in_words(least), in_words(most(amounts)?)))
}

fn moment(seconds: f64) -> String {
    format!("after {}", in_words(Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}
