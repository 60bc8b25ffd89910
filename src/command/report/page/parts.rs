// SPDX-License-Identifier: GPL-2.0-or-later
//! What a page is made of: the whole around it, bars, tables, and amounts in words.

use std::time::Duration;

use jobfence::bytes::binary;
use jobfence::report::card::duration as in_words;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::logged::LoggedStep;
use crate::table::printable;

const STYLE: &str = include_str!("style.css");

/// The page must not load or run anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

pub const UNKNOWN: &str = "unknown";

/// The whole page with this in it.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) " - jobfence" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (body) }
                footer {
                    p { "jobfence " (jobfence::VERSION) ". The kernel has counted these figures in the job's cgroups. "
                        "1 KiB is 1024 bytes. A peak of memory includes page cache." }
                }
            }
        }
    };
    page.into_string()
}

/// The usage of one resource.
pub struct Bar {
    pub name: &'static str,
    /// In percent. `None`: the total is not known.
    pub share: Option<f64>,
    pub text: String,
    /// Whether the job was killed or held back at this limit.
    pub is_bad: bool,
}

/// Rows with bars. The text beside a bar says the same.
pub fn bars(rows: &[Bar]) -> Markup {
    html! {
        dl.bars {
            @for row in rows {
                div.over[row.is_bad] {
                    dt { (row.name) }
                    dd { (bar(row.share)) span.share { (percent(row.share)) } span.of { (row.text) } }
                }
            }
        }
    }
}

pub fn bar(share: Option<f64>) -> Markup {
    let Some(share) = share else { return html! {} };
    let width = format!("{:.1}", share.clamp(0.0, 100.0));
    html! {
        svg.bar viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect.track width="100" height="10" {}
            rect.fill width=(width) height="10" {}
        }
    }
}

/// A cell of a table.
pub struct Cell {
    pub text: String,
    is_number: bool,
    is_bad: bool,
    share: Option<f64>,
    /// In place of the bar.
    drawing: Option<Markup>,
}

impl Cell {
    pub fn text(text: String) -> Self {
        Self { text, is_number: false, is_bad: false, share: None, drawing: None }
    }

    pub fn number(text: Option<String>) -> Self {
        Self { is_number: true, ..Self::text(text.unwrap_or_else(|| UNKNOWN.to_owned())) }
    }

    pub fn with_bar(text: String, share: Option<f64>) -> Self {
        Self { is_number: true, share, ..Self::text(text) }
    }

    pub fn with_drawing(self, drawing: Option<Markup>) -> Self {
        Self { drawing, ..self }
    }

    /// In the colour of what went wrong.
    pub fn bad_if(self, is_bad: bool) -> Self {
        Self { is_bad, ..self }
    }
}

/// On a narrow page each cell is a line with the name of its column; the roles then still mark it as a table.
pub fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Markup {
    let is_wide = |cell: &Cell| cell.share.is_some() || cell.drawing.is_some();
    html! {
        table role="table" {
            caption { (caption) }
            thead role="rowgroup" { tr role="row" { @for head in heads { th role="columnheader" scope="col" { (head) } } } }
            tbody role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (at, (cell, head)) in row.iter().zip(heads).enumerate() {
                            @if at == 0 {
                                th role="rowheader" scope="row" { (cell.text) }
                            } @else {
                                td.number[cell.is_number].wide[is_wide(cell)].over[cell.is_bad] role="cell" data-label=(head) {
                                    span.bad[cell.is_bad] { (cell.text) @if let Some(share) = cell.share { " " span.whole { "(" (percent(Some(share))) ")" } } }
                                    @match &cell.drawing { Some(drawing) => (drawing), None => (bar(cell.share)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A part that a reader opens at need, with a title and what it has, in a few words.
pub fn folded(title: &str, in_short: &str, body: &Markup) -> Markup {
    html! {
        details.more {
            summary { h2 { (title) } " " span.note { (in_short) } }
            (body)
        }
    }
}

/// The name of a step as text.
pub fn step_name(step: &LoggedStep) -> String {
    printable(step.step.as_deref().unwrap_or(UNKNOWN))
}

pub fn of(used: String, granted: Option<String>) -> String {
    match granted {
        Some(granted) => format!("{used} of {granted}"),
        None => used,
    }
}

pub fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), binary)
}

pub fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| UNKNOWN.to_owned(), in_words)
}

pub fn seconds(seconds: f64) -> String {
    time(Duration::try_from_secs_f64(seconds).ok())
}

pub fn percent(share: Option<f64>) -> String {
    share
        .map_or_else(String::new, |share| if share > 999.0 { "over 999 %".to_owned() } else { format!("{share:.1} %") })
}
