// SPDX-License-Identifier: GPL-2.0-or-later
//! What a check finds, row by row: printed below the verdict for people, kept for programs, or left out of one line.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::PATIENCE;

/// How the findings are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Rows for people.
    #[default]
    Text,
    /// One object with the same rows.
    Json,
    /// One line.
    Brief,
    /// The same line, in bounded time.
    Health,
}

/// How serious a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowKind {
    Fact,
    Remark,
    Fault,
}

struct CheckRow {
    name: String,
    value: String,
    kind: RowKind,
    /// Whether it is a remark on the row before it.
    is_more: bool,
}

/// The rows of a check.
pub struct Rows {
    form: Form,
    rows: Vec<CheckRow>,
    /// The configuration as a file, where that is wanted.
    pub keys: String,
    /// How long a scheduler's command may take: it asks its server.
    pub patience: Duration,
}

impl Rows {
    /// None yet.
    pub fn new(form: Form) -> Self {
        Self { form, rows: Vec::new(), keys: String::new(), patience: PATIENCE }
    }

    /// Whether rows are wanted that the verdict does not depend on. One line has none, and what they need is not asked for.
    pub fn are_wanted(&self) -> bool {
        matches!(self.form, Form::Text | Form::Json)
    }

    /// What is so, and neither wrong nor surprising.
    pub fn fact(&mut self, name: &str, value: impl Display) {
        self.add(name, value, RowKind::Fact);
    }

    /// What the administrator should know or do. Jobs are fenced all the same.
    pub fn remark(&mut self, name: &str, value: impl Display) {
        self.add(name, value, RowKind::Remark);
    }

    /// What the verdict is bad for.
    pub fn fault(&mut self, name: &str, value: impl Display) {
        self.add(name, value, RowKind::Fault);
    }

    /// A remark on the row before it.
    pub fn more(&mut self, value: impl Display) {
        let (value, name) = (value.to_string(), self.rows.last().map(|row| row.name.clone()).unwrap_or_default());
        self.rows.push(CheckRow { name, value, kind: RowKind::Remark, is_more: true });
    }

    /// Adds what this adds, and none of it as a fault.
    pub fn as_remarks(&mut self, add: impl FnOnce(&mut Self)) {
        let before = self.rows.len();
        add(self);
        let faults = self.rows.iter_mut().skip(before).filter(|row| row.kind == RowKind::Fault);
        faults.for_each(|row| row.kind = RowKind::Remark);
    }

    fn add(&mut self, name: &str, value: impl Display, kind: RowKind) {
        self.rows.push(CheckRow { name: name.to_owned(), value: value.to_string(), kind, is_more: false });
    }

    /// The rows for people, faults first, since they are why the verdict is bad; and then the configuration.
    pub fn text(&self, has_colours: bool) -> String {
        let mut texts = [String::new(), String::new()];
        let mut is_fault = false;
        for row in &self.rows {
            // A remark on a row stays below it.
            is_fault = row.kind == RowKind::Fault || row.is_more && is_fault;
            let colour = match row.kind {
                RowKind::Fact => None,
                RowKind::Remark => Some(YELLOW),
                RowKind::Fault => Some(RED),
            };
            let name = if row.is_more { "" } else { &row.name };
            let name = coloured(&format!("{name:<14}"), colour.filter(|_| has_colours));
            let [of_faults, of_others] = &mut texts;
            let _ = writeln!(if is_fault { of_faults } else { of_others }, "{name} {}", row.value);
        }
        texts.concat() + &self.keys
    }

    /// The rows as an array.
    pub fn json(&self) -> Value {
        let kind = |kind| match kind {
            RowKind::Fact => "fact",
            RowKind::Remark => "remark",
            RowKind::Fault => "fault",
        };
        let one = |row: &CheckRow| json!({"name": row.name, "value": row.value, "kind": kind(row.kind)});
        self.rows.iter().map(one).collect()
    }
}

/// Colours of terminals, as they number them.
pub const RED: u8 = 9;
pub const GREEN: u8 = 10;
pub const YELLOW: u8 = 11;

/// The text in bold and in a colour, if there is to be one.
pub fn coloured(text: &str, colour: Option<u8>) -> String {
    colour.map_or_else(|| text.to_owned(), |colour| format!("\u{1b}[1;38;5;{colour}m{text}\u{1b}[0m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_a_setup_nothing_of_a_scheduler_is_a_fault() {
        let mut rows = Rows::new(Form::Text);
        rows.fault("pam", "a");
        rows.as_remarks(|rows| rows.fault("htcondor", "b"));
        let kinds: Vec<RowKind> = rows.rows.iter().map(|row| row.kind).collect();
        assert_eq!(kinds, [RowKind::Fault, RowKind::Remark]);
    }

    #[test]
    fn why_a_verdict_is_bad_stands_first() {
        let mut rows = Rows::new(Form::Text);
        rows.fact("layout", "unified");
        rows.more("with a remark");
        rows.fault("records", "EROFS");
        rows.more("of its own");
        rows.remark("pam", "something");
        rows.keys = "Mode=off\n".to_owned();
        assert_eq!(
            rows.text(false),
            "records        EROFS\n               of its own\nlayout         unified\n               with a remark\n\
             pam            something\nMode=off\n"
        );
        let seen = rows.text(true);
        assert!(seen.starts_with("\u{1b}[1;38;5;9mrecords       \u{1b}[0m EROFS\n"), "{seen:?}");
        assert!(seen.contains("\nlayout         unified\n") && seen.contains("38;5;11mpam "), "{seen:?}");
        // Programs get the rows as they were found.
        assert_eq!(rows.json()[0]["name"], "layout");
    }
}
