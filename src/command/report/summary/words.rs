// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary's figures and names, as the table, the page and the data show them.

use std::collections::HashMap;

use jobfence::bytes::binary;
use jobfence::job::Cpus;
use jobfence::report::card::several;

use super::habits::{AskFor, HeldHours, Piece};
use super::names::NameId;
use super::runs::By;
use super::summed::{Prices, SummedUp};
use super::tally::Sums;
use crate::living::user_name;
use crate::table::printable;

/// The word for a figure that is not known.
pub const UNKNOWN: &str = "unknown";

/// A group, and the piece of advice that would have mattered most to it.
pub struct SummaryRow<'a> {
    pub name: NameId,
    pub sums: &'a Sums,
    pub advice: Option<&'a Piece>,
}

/// What the text, the page and the data have in common.
pub struct Shown<'a> {
    pub summary: &'a SummedUp,
    /// The groups, the one that wasted most first.
    pub rows: Vec<SummaryRow<'a>>,
}

/// Pieces of advice on memory, and on CPUs.
pub type WordedAdvice = [Vec<Piece>; 2];

impl<'a> Shown<'a> {
    pub fn new(summary: &'a SummedUp, advice: &'a WordedAdvice) -> Self {
        // CPU-hours are what the summary is about: memory is second.
        let mut best: HashMap<NameId, &Piece> = HashMap::new();
        for piece in advice.iter().rev().flatten() {
            best.entry(piece.key).or_insert(piece);
        }
        let row = |(name, sums): (&NameId, &'a Sums)| SummaryRow { name: *name, sums, advice: best.get(name).copied() };
        let mut rows: Vec<SummaryRow<'a>> = summary.tally.groups.iter().map(row).collect();
        rows.sort_by(|one, other| {
            let wasted = other.sums.cpu_wasted.total_cmp(&one.sums.cpu_wasted);
            wasted.then_with(|| summary.names.text(one.name).cmp(&summary.names.text(other.name)))
        });
        Self { summary, rows }
    }

    /// The name of a group, printable.
    pub fn name(&self, name: NameId) -> String {
        let Some(text) = self.summary.names.text(name) else {
            return if name == NameId::OTHERS { "(all others)" } else { "(unknown)" }.to_owned();
        };
        if self.summary.by == By::User {
            return user(text);
        }
        printable(text)
    }

    /// The groups that used most of what they reserved. A group that reserved less than a thousandth of all is not named.
    pub fn best(&self) -> Vec<&SummaryRow<'a>> {
        let least = self.summary.tally.total.cpu_reserved / 1000.0;
        let is_there = |row: &&SummaryRow<'_>| row.sums.cpu_share().is_some() && row.sums.cpu_reserved >= least;
        let mut all: Vec<&SummaryRow<'_>> = self.rows.iter().filter(is_there).collect();
        all.sort_by(|one, other| other.sums.cpu_share().unwrap_or(0.0).total_cmp(&one.sums.cpu_share().unwrap_or(0.0)));
        all.truncate(TEN);
        all
    }

    pub fn worst(&self) -> &[SummaryRow<'a>] {
        self.rows.get(..TEN).unwrap_or(&self.rows)
    }

    /// Whose jobs a piece of advice is for.
    pub fn whose(&self, piece: &Piece) -> String {
        let text = |name: NameId| self.summary.names.text(name);
        let who = text(piece.user).map_or_else(|| UNKNOWN.to_owned(), user);
        match (&piece.name, text(piece.partition)) {
            (Some(name), _) => format!("{who}, jobs named {}", printable(name)),
            (None, Some(partition)) => {
                format!("{who}, {} alike in partition {}", jobs(piece.runs), printable(partition))
            }
            (None, None) => format!("{who}, {} alike", jobs(piece.runs)),
        }
    }

    /// How many CPUs waste as much if they are idle all the time.
    pub fn idle_cpus(&self) -> Option<f64> {
        let tally = &self.summary.tally;
        let hours = (tally.last?.checked_sub(tally.first?)?) as f64 / 3.6e9;
        (hours >= 24.0).then(|| tally.total.cpu_wasted / hours).filter(|cpus| *cpus >= 1.0)
    }

    pub fn days(&self) -> (String, String) {
        let day = |micros: Option<u64>| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_micros(micros.unwrap_or(0));
            let mut text = jobfence::report::account::utc(time);
            text.truncate(10);
            text
        };
        (day(self.summary.tally.first), day(self.summary.tally.last))
    }

    /// What the advice is worth, in sentences.
    pub fn proof(&self) -> Vec<String> {
        let held = self.summary.habits.held();
        let refuted = self.summary.habits.refuted();
        let of = |what: &str, held: Option<HeldHours>, refuted: Option<HeldHours>| match (held, refuted) {
            (Some(held), _) => format!(
                "{what}, with {} % in reserve: of {} later runs that such advice would have given less, {} would have needed more ({}).",
                held.reserve,
                grouped(held.runs as f64),
                grouped(held.broken as f64),
                fine_percent(held.share()),
            ),
            (None, Some(last)) => format!(
                "{what}: no advice. Even with {} % in reserve, {} of {} later runs would have needed more ({}).",
                last.reserve,
                grouped(last.broken as f64),
                grouped(last.runs as f64),
                fine_percent(last.share()),
            ),
            (None, None) => format!(
                "{what}: no advice, since too few jobs are alike, or how they ended is not known, or they used what they had."
            ),
        };
        let [memory, cpus] = held;
        let [no_memory, no_cpus] = refuted;
        let alike = if self.summary.habits.has_names {
            "Jobs are alike if they have one user and one job name."
        } else {
            "The log has no names of jobs: jobs are alike if they have one user, one partition and the same request."
        };
        vec![of("CPUs", cpus, no_cpus), of("Memory", memory, no_memory), alike.to_owned()]
    }

    /// What the figures leave out, in sentences.
    pub fn unknown(&self) -> Vec<String> {
        let total = &self.summary.tally.total;
        let lacks = |count: u64, what: &str| match count {
            0 => None,
            all if all == total.jobs => Some(format!("{what}: known of no job.")),
            some => Some(format!("{what}: unknown of {} of {}.", grouped(some as f64), jobs(total.jobs))),
        };
        let mut all: Vec<String> = [
            lacks(total.cpu_unknown, "CPU-hours").map(|sentence| match hours(Some(total.cpu_unmeasured)) {
                reserved if total.cpu_unmeasured > 0.0 => {
                    format!("{} These reserved {reserved} CPU-hours, which no sum has.", sentence)
                }
                _ => sentence,
            }),
            lacks(total.memory_unknown, "Memory"),
            lacks(total.gpu_unknown, "GPUs that were held"),
            lacks(total.out_of_memory_unknown, "Kills for lack of memory"),
            lacks(total.exit_unknown, "How a job ended"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let unmeasured = hours(Some(total.gpu_reserved - total.gpu_measured));
        if total.gpu_unknown < total.jobs && total.gpu_use().is_none() {
            all.push("What GPUs did: only how long they were held is known.".to_owned());
        } else if total.gpu_unknown < total.jobs && unmeasured != hours(Some(0.0)) {
            all.push(format!("What GPUs did in {unmeasured} GPU-hours: only how long they were held is known."));
        }
        if let Some(accounting) = self.summary.accounting {
            all.extend(accounting.notes().iter().map(|note| (*note).to_owned()));
        }
        if self.summary.late > 0 {
            all.push(format!(
                "{} lines came more than an hour late: their jobs may be counted as two.",
                grouped(self.summary.late as f64)
            ));
        }
        if self.summary.early > 0 {
            all.push(format!("{} may be counted as two: too many ran at once.", jobs(self.summary.early)));
        }
        if let Some(passed_over) = &self.summary.passed_over {
            let mut letters = passed_over.chars();
            let first = letters.next().map(|first| first.to_ascii_uppercase());
            all.push(first.into_iter().chain(letters).collect::<String>() + ".");
        }
        all
    }
}

/// How many groups a list of the best or worst has.
pub const TEN: usize = 10;

fn user(text: &str) -> String {
    // A name that no scheduler has said is in the log as a number.
    let by_number = text.parse::<u32>().ok().map(user_name);
    by_number.unwrap_or_else(|| printable(text))
}

/// What to ask for, in words.
pub fn ask(piece: &Piece) -> String {
    match piece.ask {
        AskFor::Cpus(less, granted) => {
            let granted = u32::try_from(granted).map_or(Cpus::ZERO, |granted| Cpus::from_thousandths(granted.into()));
            format!("ask for {less} of {}", granted.in_words())
        }
        AskFor::Memory(less, granted) => format!("ask for {} of {} of memory", binary(less), binary(granted)),
    }
}

/// What it would have saved, in words.
pub fn saved(piece: &Piece) -> String {
    let unit = if matches!(piece.ask, AskFor::Cpus(..)) { "CPU-hours" } else { "GiB-hours" };
    format!("{} {unit}", hours(Some(piece.saved)))
}

pub fn jobs(count: u64) -> String {
    let words = several(count, "job", "jobs");
    words.replacen(&count.to_string(), &grouped(count as f64), 1)
}

/// A whole number with commas: `1,234,567`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = digits.len() % 3;
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as GiB, with commas.
pub fn gib(bytes: u64) -> String {
    hours(Some(bytes as f64 / 1_073_741_824.0))
}

/// An amount of hours, with a decimal if it is small.
pub fn hours(hours: Option<f64>) -> String {
    match hours {
        None => UNKNOWN.to_owned(),
        Some(hours) if hours < 99.95 => format!("{hours:.1}"),
        Some(hours) => grouped(hours),
    }
}

pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{share:.1} %"))
}

/// A small share in percent, which must not look like none.
fn fine_percent(share: f64) -> String {
    format!("{share:.3} %")
}

/// What hours have cost, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// What the hours of CPUs and GPUs have cost.
    pub all: f64,
    /// What the hours of CPUs have cost that were reserved and not used. `None`: CPUs have no price, or the hours are not known.
    pub wasted: Option<f64>,
    /// What the hours of GPUs have cost that were measured and not used.
    pub gpu_wasted: Option<f64>,
}

impl Prices {
    /// What hours have cost. `None`: no price is named, or no hours are known.
    pub fn cost(&self, sums: &Sums) -> Option<Cost> {
        let product = |price: Option<f64>, hours: Option<f64>| Some(price? * hours?);
        let cpu = product(self.cpu, sums.cpu_reserved());
        let gpu = product(self.gpu, sums.gpu_reserved());
        Some(Cost {
            all: cpu.into_iter().chain(gpu).reduce(|one, other| one + other)?,
            wasted: product(self.cpu, sums.cpu_wasted()),
            gpu_wasted: product(self.gpu, sums.gpu_wasted()),
        })
    }

    /// What wasted hours have cost, in words.
    pub fn wasted(&self, cost: &Cost) -> String {
        match (cost.wasted, cost.gpu_wasted) {
            (cpu, Some(gpu)) if self.cpu.is_some() => format!(
                "of that {} for wasted CPU-hours and {} for wasted GPU-hours",
                self.money(cpu.unwrap_or(0.0)),
                self.money(gpu)
            ),
            (_, Some(gpu)) => format!("of that {} for wasted GPU-hours", self.money(gpu)),
            (cpu, None) => format!("of that {} for wasted CPU-hours", self.money(cpu.unwrap_or(0.0))),
        }
    }

    pub fn money(&self, amount: f64) -> String {
        let amount = if amount < 999.995 { format!("{amount:.2}") } else { grouped(amount) };
        match &self.currency {
            Some(currency) => format!("{amount} {currency}"),
            None => amount,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_at_a_glance() {
        assert_eq!([0.0, 12.4, 999.6, 1_234_567.0].map(grouped), ["0", "12", "1,000", "1,234,567"]);
        assert_eq!([Some(0.04), Some(99.94), Some(99.96), None].map(hours), ["0.0", "99.9", "100", "unknown"]);
        let prices = Prices { currency: Some("EUR".to_owned()), ..Prices::default() };
        let money = [0.0, 1.999, 12.5, 999.999, 1234.6].map(|amount| prices.money(amount));
        assert_eq!(money, ["0.00 EUR", "2.00 EUR", "12.50 EUR", "1,000 EUR", "1,235 EUR"]);
    }
}
