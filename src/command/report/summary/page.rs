// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary as one self-contained HTML page, in the style of the page of a job: no script, and nothing is loaded.
//!
//! Every text is made printable and passes through maud, which escapes it: a user may have chosen it.

use maud::{Markup, html};

use super::super::page::{Cell, page as whole, table};
use super::habits::Piece;
use super::summed::SummedUp;
use super::tally::{Sums, monday, share};
use super::words::{Shown, SummaryRow, TEN, ask, gib, grouped, hours, jobs, percent, saved};

/// The most groups on the page. The data have all groups.
const GROUPS: usize = 200;

/// The most pieces of advice of each kind on the page.
const PIECES: usize = 10;

/// The page.
pub fn page(summary: &SummedUp) -> String {
    let advice = summary.habits.advice();
    let shown = Shown::new(summary, &advice);
    let by = summary.by.word();
    let [memory, cpus] = &advice;
    let pieces: Vec<&Piece> = cpus.iter().take(PIECES).chain(memory.iter().take(PIECES)).collect();
    let (from, to) = shown.days();
    let whose = if summary.is_of_all { "All jobs" } else { "Your own jobs" };
    let best = shown.best();
    let body = html! {
        header {
            h1 { "What jobs used, by " (by) }
            p.facts { (whose) " that ended from " (from) " to " (to) ": " (jobs(summary.tally.total.jobs)) " from "
                @match summary.accounting { Some(accounting) => (accounting.name()), None => (files(summary.files)) } "." }
            p.lead { (lead(&shown)) }
        }
        (heads(&shown))
        @if summary.tally.weeks.len() > 1 {
            section aria-labelledby="weeks" { h2 #weeks { "Week by week" } (weeks(summary)) }
        }
        @if shown.rows.len() > TEN {
            section.ranks aria-label="The worst and the best" {
                div { h2 { "Wasted most" } (ranks(&shown, &shown.worst().iter().collect::<Vec<_>>(), true)) }
                div { h2 { "Used most of what they reserved" } (ranks(&shown, &best, false)) }
            }
        }
        section aria-labelledby="advice" {
            h2 #advice { "What would have mattered most" }
            @if pieces.is_empty() {
                p { "No advice." }
            } @else {
                (table(
                    "If these had asked for less",
                    &["Whose jobs", "Advice", "Would have saved"],
                    pieces.iter().map(|piece| {
                        vec![Cell::text(shown.whose(piece)), Cell::text(ask(piece)), Cell::number(Some(saved(piece)))]
                    }),
                ))
            }
            @for sentence in shown.proof() { p.note { (sentence) } }
        }
        section aria-labelledby="groups" {
            h2 #groups { "By " (by) }
            (groups(&shown, by))
            @if shown.rows.len() > GROUPS {
                p.note { (grouped((shown.rows.len() - GROUPS) as f64)) " more wasted less. The options --csv and --json have them." }
            }
        }
        section aria-labelledby="counted" {
            h2 #counted { "How this was counted" }
            ul {
                li { "Reserved is what a job was granted for as long as it ran, on each of its nodes: nobody else could have it." }
                li { "Used CPU-hours are what the kernel has counted. Wasted is what was reserved and not used." }
                li { "Memory used is the peak of a job for as long as it ran, page cache included." }
                li { "A job that ran on several nodes is one job. One that ran again counts again." }
                li { "A job is of the week in which it ended. A hyphen or “unknown” is not zero: nothing is known." }
                @for (note, is_known) in costs(summary) { @if is_known { li { (note) } } }
            }
        }
        section aria-labelledby="unknown" {
            h2 #unknown { "Not known here" }
            @let unknown = shown.unknown();
            @if unknown.is_empty() { p { "Nothing is missing." } } @else { ul { @for what in &unknown { li { (what) } } } }
        }
    };
    whole(&format!("What jobs used, by {by}"), &body)
}

fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{} files", grouped(count as f64)) }
}

/// The finding in one sentence.
fn lead(shown: &Shown<'_>) -> String {
    let total = &shown.summary.tally.total;
    let (Some(used), Some(wasted)) = (total.cpu_share(), total.cpu_wasted()) else {
        return "How much CPU time the jobs used of what they reserved is not known.".to_owned();
    };
    let idle = shown.idle_cpus().map(|cpus| match cpus {
        cpus if cpus < 1.5 => ", as if 1 CPU had stood idle day and night".to_owned(),
        cpus => format!(", as if {} CPUs had stood idle day and night", grouped(cpus)),
    });
    format!(
        "Jobs used {used:.0} % of the CPU time that they reserved. {} CPU-hours were wasted{}.",
        hours(Some(wasted)),
        idle.unwrap_or_default()
    )
}

/// The figures that matter, in large.
fn heads(shown: &Shown<'_>) -> Markup {
    let total = &shown.summary.tally.total;
    let of_jobs = |count: Option<u64>| count.and_then(|count| share(count as f64, total.jobs as f64));
    let mut all: Vec<(&str, String, String)> = vec![
        ("CPU time used", percent(total.cpu_share()), format!("of {} CPU-hours reserved", hours(total.cpu_reserved()))),
        (
            "Memory used",
            percent(total.memory_share()),
            format!("of {} GiB-hours reserved", hours(total.memory_reserved())),
        ),
        ("Out of memory", percent(of_jobs(total.out_of_memory())), in_jobs(total.out_of_memory())),
        ("Failed", percent(of_jobs(total.failed())), in_jobs(total.failed())),
    ];
    if let Some(gpus) = total.gpu_reserved() {
        all.push(match total.gpu_use() {
            Some((_, measured)) => {
                let of = match hours(Some(gpus)) {
                    held if held == hours(Some(measured)) => format!("of {held} GPU-hours held"),
                    held => format!("of {} GPU-hours measured; {held} were held", hours(Some(measured))),
                };
                ("GPUs used", percent(total.gpu_share()), of)
            }
            None => ("GPUs held", hours(Some(gpus)), "GPU-hours; what they did is not known".to_owned()),
        });
    }
    if let Some(throttled) = total.throttled_share() {
        all.push(("Held back by quotas", percent(Some(throttled)), "of the quotas' periods".to_owned()));
    }
    let prices = &shown.summary.prices;
    if let Some(cost) = prices.cost(total) {
        all.push(("Cost", prices.money(cost.all), prices.wasted(&cost)));
    }
    html! {
        dl.heads { @for (name, figure, of) in &all { div { dt { (name) } dd { (figure) } dd { (of) } } } }
    }
}

fn in_jobs(count: Option<u64>) -> String {
    count.map_or_else(|| "how jobs ended is not known".to_owned(), jobs)
}

/// A column for each week, what was wasted above what was used, and the same as a table.
fn weeks(summary: &SummedUp) -> Markup {
    let known = |sums: &Sums| sums.cpu_reserved().map(|_| (sums.cpu_reserved - sums.cpu_wasted, sums.cpu_wasted));
    let of = &summary.tally.weeks;
    let all: Vec<(String, &Sums)> = of.iter().map(|(week, sums)| (monday(*week), sums)).collect();
    let begin = of.keys().next().copied().unwrap_or(0);
    let count = of.keys().last().map_or(1, |last| last - begin + 1);
    let most = all.iter().filter_map(|(_, sums)| known(sums)).map(|(used, wasted)| used + wasted).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    // A week without a job keeps its place.
    let wide = 600.0 / count as f64;
    let high = |amount: f64| 190.0 * amount / most;
    let (first, last) = (all.first().map(|(monday, _)| monday.as_str()), all.last().map(|(monday, _)| monday.as_str()));
    let said = format!(
        "CPU-hours by week, from {} to {}; at most {} in a week",
        first.unwrap_or_default(),
        last.unwrap_or_default(),
        hours(Some(most))
    );
    html! {
        figure {
            figcaption { span.key.used { "used" } span.key.wasted { "wasted" } " CPU-hours of the jobs that ended in a week; at most "
                (hours(Some(most))) " reserved" }
            svg.weeks viewBox="0 0 600 200" preserveAspectRatio="none" role="img" aria-label=(said) {
                @for line in [10, 105, 200] { line.grid x1="0" x2="600" y1=(line) y2=(line) {} }
                @for (week, sums) in of {
                    @if let Some((used, wasted)) = known(sums) {
                        @let x = format!("{:.2}", wide * ((week - begin) as f64 + 0.1));
                        @let width = format!("{:.2}", wide * 0.8);
                        rect.used x=(x) width=(width) y=(format!("{:.2}", 200.0 - high(used))) height=(format!("{:.2}", high(used))) {}
                        rect.wasted x=(x) width=(width) y=(format!("{:.2}", 200.0 - high(used + wasted)))
                            height=(format!("{:.2}", high(wasted))) {}
                    }
                }
            }
            p.axis { span { (first.unwrap_or_default()) } span { (last.unwrap_or_default()) } }
        }
        details {
            summary { "The same as a table" }
            (table("Weeks, by their Mondays", &["Week of", "Jobs", "Reserved CPU-hours", "Used", "Out of memory", "Failed"], all.iter().map(|(monday, sums)| vec![
                Cell::text(monday.clone()),
                Cell::number(Some(grouped(sums.jobs as f64))),
                Cell::number(Some(hours(sums.cpu_reserved()))),
                Cell::number(Some(percent(sums.cpu_share()))),
                Cell::number(sums.out_of_memory().map(|count| grouped(count as f64))),
                Cell::number(sums.failed().map(|count| grouped(count as f64))),
            ])))
        }
    }
}

/// A short list with bars.
fn ranks(shown: &Shown<'_>, rows: &[&SummaryRow<'_>], is_waste: bool) -> Markup {
    let all = shown.summary.tally.total.cpu_wasted;
    let (caption, head) = if is_waste {
        ("Their shares of all wasted CPU-hours", "Wasted CPU-hours")
    } else {
        ("Of those with a thousandth of all reserved CPU-hours or more", "Used CPU-hours")
    };
    let cell = |row: &SummaryRow<'_>| match is_waste {
        true => {
            Cell::with_bar(hours(row.sums.cpu_wasted()), row.sums.cpu_wasted().and_then(|wasted| share(wasted, all)))
        }
        false => Cell::with_bar(hours(row.sums.cpu_used()), row.sums.cpu_share()),
    };
    table(caption, &["Name", head], rows.iter().map(|row| vec![Cell::text(shown.name(row.name)), cell(row)]))
}

fn groups(shown: &Shown<'_>, by: &str) -> Markup {
    let prices = &shown.summary.prices;
    let total = &shown.summary.tally.total;
    let has_cost = prices.cost(total).is_some();
    let has_gpus = total.gpu_reserved().is_some();
    let mut heads =
        vec!["Name", "Jobs", "Used CPU-hours", "Wasted CPU-hours", "Used GiB-hours", "Out of memory", "Failed"];
    heads.extend(has_gpus.then_some("GPU-hours"));
    heads.extend(total.gpu_use().map(|_| "Used GPU-hours"));
    heads.extend(total.files().map(|_| "GiB of all files"));
    heads.extend(has_cost.then_some("Cost"));
    let has_advice = shown.rows.iter().any(|row| row.advice.is_some());
    heads.extend(has_advice.then_some("Best advice"));
    let count = |count: Option<u64>| Cell::number(count.map(|count| grouped(count as f64)));
    let rows = shown.rows.iter().take(GROUPS).map(|row| {
        let sums = row.sums;
        let mut cells = vec![
            Cell::text(shown.name(row.name)),
            Cell::number(Some(grouped(sums.jobs as f64))),
            Cell::with_bar(hours(sums.cpu_used()), sums.cpu_share()),
            Cell::number(Some(hours(sums.cpu_wasted()))),
            match sums.memory_share() {
                Some(share) => Cell::with_bar(hours(sums.memory_used()), Some(share)),
                None => Cell::number(None),
            },
            count(sums.out_of_memory()),
            count(sums.failed()),
        ];
        cells.extend(has_gpus.then(|| Cell::number(Some(hours(sums.gpu_reserved())))));
        cells.extend(total.gpu_use().map(|_| match sums.gpu_use() {
            Some((used, _)) => Cell::with_bar(hours(Some(used)), sums.gpu_share()),
            None => Cell::number(None),
        }));
        cells.extend(
            total.files().map(|_| Cell::number(sums.files().map(|(read, written)| gib(read.saturating_add(written))))),
        );
        cells.extend(has_cost.then(|| Cell::number(prices.cost(sums).map(|cost| prices.money(cost.all)))));
        cells.extend(has_advice.then(|| {
            Cell::text(row.advice.map_or_else(String::new, |piece| format!("{}: {}", ask(piece), saved(piece))))
        }));
        cells
    });
    table(&format!("Each {by}, with the most waste first; percent are of what was reserved"), &heads, rows)
}

/// What the cost leaves out.
fn costs(summary: &SummedUp) -> [(String, bool); 2] {
    let prices = &summary.prices;
    let price = |price: Option<f64>| price.map(|price| prices.money(price)).unwrap_or_default();
    [
        (format!("A CPU-hour costs {}.", price(prices.cpu)), prices.cpu.is_some()),
        (
            format!("A GPU-hour costs {}, as far as the log has the GPUs that were held.", price(prices.gpu)),
            prices.gpu.is_some(),
        ),
    ]
}
