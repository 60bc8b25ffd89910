// SPDX-License-Identifier: GPL-2.0-or-later
//! The card: what a job used of its grant, and what its user can request next time.
//!
//! A figure that no job of the node has has no row; what is not known of one job is said. So no line is the same on all cards of a site.

pub mod advice;
mod figures;
mod noted;
mod remarks;
mod rows;
mod title;
mod words;

use std::time::Duration;

pub use advice::Advice;
pub use figures::{Figures, NEUTRAL, Words};
use figures::{MATTERS, SHORT, percent};
pub use words::{WIDTH, duration, several, site_text};
use words::{cut, printable, shown, site_lines, wrapped};

use crate::bytes::binary;
use crate::config::UsageCard;
use crate::record::loan::LABEL;
use crate::report::account::Exit;

/// Whether the user's locale is UTF-8, by the variables of locale(7): the first that is set and not empty counts.
pub fn is_utf8(get: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| get(name).filter(|text| !text.is_empty()));
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The lines for the user: none, one, or a card. `site_text`: what `UsageCardText` says.
pub fn lines(when: UsageCard, site_text: Option<&str>, figures: &Figures<'_>) -> Vec<String> {
    let went_wrong = figures.has_failed() || figures.was_stopped();
    // What was held and not used is waste, however the job ended.
    let is_wasteful = figures.is_wasteful() || figures.noted_remarks().next().is_some();
    let is_wanted = match when {
        UsageCard::Never => false,
        UsageCard::Failed => went_wrong,
        UsageCard::Wasteful => went_wrong || is_wasteful,
        UsageCard::Always => true,
    };
    if !is_wanted {
        return Vec::new();
    }
    let is_long = figures.wall.is_none_or(|wall| wall >= SHORT);
    let says_something = figures.was_stopped()
        || figures.noted.starts_with(LABEL)
        || !figures.waits().is_empty()
        || is_wasteful
        || is_long && (figures.has_failed() || !figures.is_array_task);
    if says_something {
        let of_site = site_text.map(|text| site_lines(text, &printable(figures.job)));
        figures.card().into_iter().chain(of_site.into_iter().flatten()).collect()
    } else {
        vec![figures.line()]
    }
}

impl Figures<'_> {
    /// The resources that the job waited for, each with the share of its time, if that is significant.
    fn waits(&self) -> Vec<(&'static str, u64)> {
        let share = |waited: Option<Duration>| percent(waited?.as_micros(), self.wall?.as_micros());
        let usage = self.usage;
        [("memory", usage.memory_pressure_some), ("its disks", usage.io_pressure_some)]
            .into_iter()
            .filter_map(|(what, waited)| Some((what, share(waited)?.min(100))))
            .filter(|(_, share)| *share >= MATTERS && self.wall.is_some_and(|wall| wall >= Duration::from_secs(10)))
            .collect()
    }

    /// A summary in one line, as far as there is room.
    fn line(&self) -> String {
        let mut line = format!("jobfence: job {}: {}", cut(&printable(self.job), 24), self.how_in_short());
        let cpus = self
            .cpu_share()
            .zip(self.most_cpus())
            .map(|(share, cpus)| format!("{} of {}", shown(share), cpus.in_words()));
        let memory = self.memory_share().zip(self.most_memory());
        let memory = memory.map(|(share, most)| format!("memory {} of {}", shown(share), binary(most)));
        let memory = memory.or_else(|| self.usage.memory_peak.map(|peak| format!("memory {}", binary(peak))));
        for part in [self.wall.map(duration), cpus, memory].into_iter().flatten() {
            if line.chars().count() + part.len() + 2 <= WIDTH {
                line.push_str(&format!(", {part}"));
            }
        }
        line
    }

    fn how_in_short(&self) -> String {
        match self.exit {
            Some(Exit::Status(0)) => "ok".to_owned(),
            Some(Exit::Status(status)) => format!("status {status}"),
            Some(Exit::Signal(signal)) => format!("signal {signal}"),
            None => "ended".to_owned(),
        }
    }

    /// The whole card.
    pub fn card(&self) -> Vec<String> {
        let mut lines = wrapped(&self.title(), "", "  ");
        lines.extend(self.row_lines());
        lines.extend(self.remarks().iter().flat_map(|remark| wrapped(remark, "  ", "  ")));
        let advice = self.advice_lines();
        if !advice.is_empty() {
            lines.push("  Next time:".to_owned());
            lines.extend(advice);
        }
        lines
    }

    fn advice_lines(&self) -> Vec<String> {
        const OPTION: usize = 28;
        let Advice { memory, cpus, time } = self.advice();
        let memory = memory.map(|(bytes, reason)| ((self.words.memory)(bytes), reason));
        let cpus = cpus.map(|(count, reason)| match self.tasks {
            Some(1) => ((self.words.cpus)(count), reason),
            _ => (several(count, "CPU", "CPUs") + " in all", format!("{}: {reason}", self.words.all_cpus)),
        });
        let time = time.zip(self.words.time).map(|((time, reason), word)| (word(time), reason));
        let all = [memory, cpus, time].into_iter().flatten();
        all.flat_map(|(option, reason)| {
            let head = format!("  {:<OPTION$} ", printable(&option));
            wrapped(&reason, &head, &" ".repeat(OPTION + 3))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
