// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary for a terminal.

use super::habits::Piece;
use super::summed::SummedUp;
use super::tally::{Sums, monday};
use super::words::{Shown, SummaryRow, ask, gib, grouped, hours, percent, saved};
use crate::table::{Column, NONE, cut, lines, numbers, texts};

/// The most groups that are all listed.
const ALL: usize = 24;

/// The longest name, in characters. A longer one is cut.
const NAME: usize = 32;

/// The most pieces of advice of each kind that are listed.
const PIECES: usize = 5;

/// A column of the table. If the page is narrow, the column with the highest rank goes first.
struct Shows {
    head: &'static str,
    rank: u8,
    cell: fn(&Shown<'_>, &Sums) -> String,
}

/// The columns from left to right.
const COLUMNS: [Shows; 11] = [
    Shows { head: "JOBS", rank: 3, cell: |_, sums| grouped(sums.jobs as f64) },
    Shows { head: "CPU-HOURS", rank: 2, cell: |_, sums| dash(sums.cpu_reserved().map(|all| hours(Some(all)))) },
    Shows { head: "WASTED", rank: 0, cell: |_, sums| dash(sums.cpu_wasted().map(|all| hours(Some(all)))) },
    Shows { head: "EFF%", rank: 1, cell: |_, sums| dash(sums.cpu_share().map(share)) },
    Shows { head: "MEM%", rank: 4, cell: |_, sums| dash(sums.memory_share().map(share)) },
    Shows { head: "OOM", rank: 5, cell: |_, sums| dash(sums.out_of_memory().map(|count| grouped(count as f64))) },
    Shows { head: "FAILED", rank: 6, cell: |_, sums| dash(sums.failed().map(|count| grouped(count as f64))) },
    Shows { head: "GPU-HOURS", rank: 7, cell: |_, sums| dash(sums.gpu_reserved().map(|all| hours(Some(all)))) },
    Shows { head: "GPU%", rank: 8, cell: |_, sums| dash(sums.gpu_share().map(share)) },
    Shows {
        head: "COST",
        rank: 9,
        cell: |shown, sums| dash(shown.summary.prices.cost(sums).map(|cost| grouped(cost.all))),
    },
    Shows {
        head: "FILES/GiB",
        rank: 10,
        cell: |_, sums| dash(sums.files().map(|(read, written)| gib(read.saturating_add(written)))),
    },
];

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| NONE.to_owned())
}

fn share(share: f64) -> String {
    format!("{share:.1}")
}

/// The whole text, with lines of at most `width` characters.
pub fn in_words(summary: &SummedUp, width: usize) -> String {
    let advice = summary.habits.advice();
    let shown = Shown::new(summary, &advice);
    let mut all = head(&shown, width);
    let by = summary.by.word().to_uppercase();
    let rows: Vec<(String, &Sums)> = shown.rows.iter().map(|row| (shown.name(row.name), row.sums)).collect();
    if rows.len() <= ALL {
        all.push(String::new());
        all.extend(table(&shown, &by, &rows, width));
    } else {
        let of = |rows: &[&SummaryRow<'_>]| {
            let mut listed: Vec<(String, Sums)> =
                rows.iter().map(|row| (shown.name(row.name), row.sums.clone())).collect();
            listed.push(("(all)".to_owned(), summary.tally.total.clone()));
            listed
        };
        let worst: Vec<&SummaryRow<'_>> = shown.worst().iter().collect();
        for (title, rows) in [("wasted most", worst), ("used most of what they reserved", shown.best())] {
            let listed = of(&rows);
            let listed: Vec<(String, &Sums)> = listed.iter().map(|(name, sums)| (name.clone(), sums)).collect();
            all.push(format!("\nthe {} of {} that {title}", rows.len(), grouped(shown.rows.len() as f64)));
            all.extend(table(&shown, &by, &listed, width));
        }
    }
    let weeks: Vec<(String, &Sums)> = summary.tally.weeks.iter().map(|(week, sums)| (monday(*week), sums)).collect();
    if weeks.len() > 1 {
        all.push(String::new());
        let from = weeks.len().saturating_sub(27);
        all.extend(table(&shown, "WEEK OF", weeks.get(from..).unwrap_or(&weeks), width));
    }
    let [memory, cpus] = &advice;
    if !memory.is_empty() || !cpus.is_empty() {
        all.push("\nadvice that would have mattered most".to_owned());
        for piece in cpus.iter().take(PIECES).chain(memory.iter().take(PIECES)) {
            all.extend(wrapped(&in_one(&shown, piece), width, "  ", "    "));
        }
    }
    all.push("\nhow this was counted".to_owned());
    let notes = shown.proof().into_iter().chain(shown.unknown());
    all.extend(notes.flat_map(|note| wrapped(&note, width, "  ", "    ")));
    all.push(String::new());
    all.join("\n")
}

fn in_one(shown: &Shown<'_>, piece: &Piece) -> String {
    format!("{}: {}: {}", shown.whose(piece), ask(piece), saved(piece))
}

/// How long GPUs were held, and what they did, as far as it is known.
fn held(gpus: f64, total: &Sums) -> String {
    match total.gpu_use() {
        None => format!("held for {} GPU-hours", hours(Some(gpus))),
        Some((used, measured)) if hours(Some(measured)) == hours(Some(gpus)) => {
            format!("used {} of {} GPU-hours ({})", hours(Some(used)), hours(Some(gpus)), percent(total.gpu_share()))
        }
        Some((used, measured)) => format!(
            "held for {} GPU-hours; used {} of the {} that were measured ({})",
            hours(Some(gpus)),
            hours(Some(used)),
            hours(Some(measured)),
            percent(total.gpu_share())
        ),
    }
}

/// The beginning of a second line about one thing.
const BELOW: &str = "            ";

fn head(shown: &Shown<'_>, width: usize) -> Vec<String> {
    let total = &shown.summary.tally.total;
    let (from, to) = shown.days();
    let whose = if shown.summary.is_of_all { "all jobs" } else { "your own jobs" };
    let of_jobs = |count: Option<u64>| {
        count.map_or_else(
            || super::words::UNKNOWN.to_owned(),
            |count| {
                format!("{} ({})", grouped(count as f64), percent(super::tally::share(count as f64, total.jobs as f64)))
            },
        )
    };
    let mut all = vec![
        format!("{whose} that ended from {from} to {to}, by {}", shown.summary.by.word()),
        format!(
            "  jobs      {}, failed {}, out of memory {}",
            grouped(total.jobs as f64),
            of_jobs(total.failed()),
            of_jobs(total.out_of_memory())
        ),
        format!(
            "  CPU       used {} of {} CPU-hours ({})",
            hours(total.cpu_used()),
            hours(total.cpu_reserved()),
            percent(total.cpu_share())
        ),
    ];
    let idle = shown.idle_cpus().map(|cpus| match cpus {
        cpus if cpus < 1.5 => ", as if 1 CPU had always stood idle".to_owned(),
        cpus => format!(", as if {} CPUs had always stood idle", grouped(cpus)),
    });
    all.push(format!("  wasted    {} CPU-hours{}", hours(total.cpu_wasted()), idle.unwrap_or_default()));
    all.push(format!(
        "  memory    used {} of {} GiB-hours ({})",
        hours(total.memory_used()),
        hours(total.memory_reserved()),
        percent(total.memory_share())
    ));
    if let Some(gpus) = total.gpu_reserved() {
        all.extend(wrapped(&held(gpus, total), width, "  GPUs      ", BELOW));
    }
    if let Some((read, written)) = total.files() {
        let (read, written) = (gib(read), gib(written));
        all.push(format!("  all files read {read} GiB, written {written} GiB: disks, network, cache, pipes"));
    }
    if let Some(throttled) = total.throttled_share() {
        all.push(format!("  throttled {} of the quotas' periods", percent(Some(throttled))));
    }
    let prices = &shown.summary.prices;
    if let Some(cost) = prices.cost(total) {
        let words = format!("{}, {}", prices.money(cost.all), prices.wasted(&cost));
        all.extend(wrapped(&words, width, "  cost      ", BELOW));
    }
    all
}

/// The table. A column is left out if the page has no room for it, or if nothing is known of it.
fn table(shown: &Shown<'_>, first: &str, rows: &[(String, &Sums)], width: usize) -> Vec<String> {
    let names: Vec<String> = rows.iter().map(|(name, _)| cut(name, NAME)).collect();
    let mut columns: Vec<(&Shows, Vec<String>)> = COLUMNS
        .iter()
        .map(|column| (column, rows.iter().map(|(_, sums)| (column.cell)(shown, sums)).collect::<Vec<_>>()))
        .filter(|(_, cells)| cells.iter().any(|cell| cell != NONE))
        .collect();
    let of_names = names.iter().map(|name| name.chars().count()).chain([first.len()]).max().unwrap_or(0);
    let wide = |(column, cells): &(&Shows, Vec<String>)| {
        1 + cells.iter().map(String::len).chain([column.head.len()]).max().unwrap_or(0)
    };
    while columns.len() > 1 && of_names + columns.iter().map(wide).sum::<usize>() > width {
        let last = columns.iter().map(|(column, _)| column.rank).max();
        columns.retain(|(column, _)| Some(column.rank) != last);
    }
    // The head of the first column depends on the summary.
    let head: &'static str = "";
    let heads: Vec<Column> =
        std::iter::once(texts(head)).chain(columns.iter().map(|(column, _)| numbers(column.head))).collect();
    let titled = std::iter::once(first.to_owned()).chain(names);
    let cells = |at: usize| {
        columns.iter().map(move |(column, cells)| match at {
            0 => column.head.to_owned(),
            _ => cells.get(at - 1).cloned().unwrap_or_default(),
        })
    };
    let all: Vec<Vec<String>> =
        titled.enumerate().map(|(at, name)| std::iter::once(name).chain(cells(at)).collect()).collect();
    lines(&heads, &all, None).into_iter().skip(1).collect()
}

/// Words in lines of this width.
fn wrapped(text: &str, width: usize, first: &str, rest: &str) -> Vec<String> {
    let mut all = vec![first.to_owned()];
    let mut is_begun = false;
    for word in text.split_whitespace() {
        let Some(line) = all.last_mut() else { break };
        if is_begun && line.chars().count() + 1 + word.chars().count() > width {
            all.push(format!("{rest}{word}"));
        } else {
            line.push_str(if is_begun { " " } else { "" });
            line.push_str(word);
        }
        is_begun = true;
    }
    all
}
