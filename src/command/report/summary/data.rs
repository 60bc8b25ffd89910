// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary for programs: one JSON object, or a line of comma-separated values for each group.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::habits::{AskFor, HeldHours, Piece};
use super::summed::{Prices, SummedUp};
use super::tally::{Sums, monday};
use super::words::{Shown, SummaryRow};

/// The name of the object's format. A program that reads it checks it first.
pub const SCHEMA: &str = "jobfence-summary-1";

/// The figures of a group: the member, and its value. Unknown is null.
fn figures(sums: &Sums, prices: &Prices) -> [(&'static str, Value); 30] {
    // A millionth of an hour is precise enough.
    let hours = |hours: Option<f64>| hours.map_or(Value::Null, |hours| json!((hours * 1e6).round() / 1e6));
    let cost = prices.cost(sums);
    [
        ("jobs", sums.jobs.into()),
        ("cpu_hours_reserved", hours(sums.cpu_reserved())),
        ("cpu_hours_used", hours(sums.cpu_used())),
        ("cpu_hours_wasted", hours(sums.cpu_wasted())),
        ("cpu_efficiency_percent", hours(sums.cpu_share())),
        ("jobs_cpu_unknown", sums.cpu_unknown.into()),
        ("memory_gib_hours_reserved", hours(sums.memory_reserved())),
        ("memory_gib_hours_used", hours(sums.memory_used())),
        ("memory_efficiency_percent", hours(sums.memory_share())),
        ("jobs_memory_unknown", sums.memory_unknown.into()),
        ("gpu_hours_reserved", hours(sums.gpu_reserved())),
        ("jobs_gpu_unknown", sums.gpu_unknown.into()),
        ("jobs_out_of_memory", json!(sums.out_of_memory())),
        ("jobs_out_of_memory_unknown", sums.out_of_memory_unknown.into()),
        ("jobs_failed", json!(sums.failed())),
        ("jobs_exit_unknown", sums.exit_unknown.into()),
        ("throttled_percent", hours(sums.throttled_share())),
        ("cost", hours(cost.map(|cost| cost.all))),
        ("cost_wasted", hours(cost.map(|cost| cost.wasted.unwrap_or(0.0)))),
        ("currency", json!(prices.currency)),
        ("cpu_hours_unmeasured", hours(Some(sums.cpu_unmeasured))),
        ("rchar_bytes", json!(sums.files().map(|(read, _)| read))),
        ("wchar_bytes", json!(sums.files().map(|(_, written)| written))),
        ("jobs_rchar_unknown", sums.files_unknown.into()),
        ("gpu_hours_measured", hours(sums.gpu_use().map(|(_, measured)| measured))),
        ("gpu_hours_used", hours(sums.gpu_use().map(|(used, _)| used))),
        ("gpu_hours_wasted", hours(sums.gpu_wasted())),
        ("gpu_efficiency_percent", hours(sums.gpu_share())),
        ("jobs_gpu_use_unknown", sums.gpu_use_unknown.into()),
        ("gpu_cost_wasted", hours(cost.and_then(|cost| cost.gpu_wasted))),
    ]
}

fn object(sums: &Sums, prices: &Prices, first: (&str, Value)) -> Map<String, Value> {
    let figures = figures(sums, prices).into_iter().map(|(name, value)| (name.to_owned(), value));
    std::iter::once((first.0.to_owned(), first.1)).chain(figures).collect()
}

/// Writes the object. Texts are as the log has them. There can be many groups, so each is written when it is made.
pub fn json(summary: &SummedUp, out: &mut impl Write) -> io::Result<()> {
    let advice = summary.habits.advice();
    let shown = Shown::new(summary, &advice);
    let text = |name| json!(summary.names.text(name));
    let piece = |piece: &Piece| {
        let (memory, cpus) = match piece.ask {
            AskFor::Memory(less, granted) => (Some((less, granted)), None),
            AskFor::Cpus(less, granted) => (None, Some((less, granted))),
        };
        json!({
            summary.by.member(): text(piece.key),
            "user": text(piece.user),
            "job_name": piece.name,
            "partition": text(piece.partition),
            "jobs": piece.runs,
            "cpus": cpus.map(|(less, _)| less),
            "cpus_granted": cpus.map(|(_, granted)| granted as f64 / 1000.0),
            "memory_bytes": memory.map(|(less, _)| less),
            "memory_granted_bytes": memory.map(|(_, granted)| granted),
            "cpu_hours_saved": cpus.map(|_| piece.saved),
            "memory_gib_hours_saved": memory.map(|_| piece.saved),
        })
    };
    let group = |row: &SummaryRow<'_>| {
        let mut group = object(row.sums, &summary.prices, ("name", text(row.name)));
        group.insert("advice".to_owned(), row.advice.map_or(Value::Null, piece));
        group
    };
    let held = |held: Option<HeldHours>| {
        held.map(|held| {
            json!({"reserve_percent": held.reserve, "jobs": held.runs, "jobs_broken": held.broken, "broken_percent": held.share()})
        })
    };
    let [memory_held, cpus_held] = summary.habits.held();
    let weeks = summary.tally.weeks.iter();
    let moment = |micros: Option<u64>| {
        let since_1970 = |micros| std::time::UNIX_EPOCH + std::time::Duration::from_micros(micros);
        micros.map(|micros| jobfence::report::account::utc(since_1970(micros)))
    };
    let head = json!({
        "schema": SCHEMA,
        "by": summary.by.member(),
        "since": summary.since,
        "first_ended": moment(summary.tally.first),
        "last_ended": moment(summary.tally.last),
        "stored": summary.accounting.is_some(),
        "files": summary.files,
        "lines": summary.lines,
        "passed_over": summary.passed_over,
        "lines_again": summary.again,
        "jobs_counted_early": summary.early,
        "lines_late": summary.late,
        "total": object(&summary.tally.total, &summary.prices, ("name", Value::Null)),
        "weeks": weeks.map(|(week, sums)| object(sums, &summary.prices, ("begins", monday(*week).into()))).collect::<Vec<_>>(),
        "advice": advice.iter().rev().flat_map(|pieces| pieces.iter().take(MOST_PIECES)).map(piece).collect::<Vec<_>>(),
        "advice_held": { "memory": held(memory_held), "cpus": held(cpus_held) },
    }).to_string();
    write!(out, "{},\"groups\":[", head.strip_suffix('}').unwrap_or(&head))?;
    for (at, row) in shown.rows.iter().enumerate() {
        write!(out, "{}{}", if at > 0 { "," } else { "" }, Value::Object(group(row)))?;
    }
    writeln!(out, "]}}")
}

/// The most pieces of advice of each kind in the object.
const MOST_PIECES: usize = 100;

/// A head, and a line for each group. Lines end as RFC 4180 says.
pub fn csv(summary: &SummedUp, out: &mut impl Write) -> io::Result<()> {
    let advice = Default::default();
    let shown = Shown::new(summary, &advice);
    let names = figures(&Sums::default(), &summary.prices).map(|(name, _)| name);
    line(out, std::iter::once(summary.by.member().to_owned()).chain(names.map(str::to_owned)))?;
    for row in &shown.rows {
        // A name that is not known is empty, as a figure is.
        let name = summary.names.text(row.name).map(crate::table::printable).unwrap_or_default();
        let cell = |value: Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        let cells = figures(row.sums, &summary.prices).map(|(_, value)| cell(value));
        line(out, std::iter::once(name).chain(cells))?;
    }
    Ok(())
}

fn line(out: &mut impl Write, cells: impl Iterator<Item = String>) -> io::Result<()> {
    let mut text = String::new();
    for (at, cell) in cells.enumerate() {
        if at > 0 {
            text.push(',');
        }
        // A spreadsheet takes a text that begins so for a formula; a user can have chosen it.
        let is_formula = cell.starts_with(['=', '+', '-', '@']);
        if is_formula || cell.contains([',', '"', '\'']) {
            text.push('"');
            text.push_str(if is_formula { "'" } else { "" });
            text.push_str(&cell.replace('"', "\"\""));
            text.push('"');
        } else {
            text.push_str(&cell);
        }
    }
    text.push_str("\r\n");
    out.write_all(text.as_bytes())
}
