// SPDX-License-Identifier: GPL-2.0-or-later
//! What a check finds, row by row: printed at once for people, kept for programs, or left out of one line.

use std::fmt::Display;
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
}

/// The rows of a check.
pub struct Rows {
    form: Form,
    rows: Vec<CheckRow>,
    /// How long a scheduler's command may take: it asks its server.
    pub patience: Duration,
}

impl Rows {
    /// None yet.
    pub fn new(form: Form) -> Self {
        Self { form, rows: Vec::new(), patience: PATIENCE }
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
        self.print("", &value);
        self.rows.push(CheckRow { name, value, kind: RowKind::Remark });
    }

    fn add(&mut self, name: &str, value: impl Display, kind: RowKind) {
        let row = CheckRow { name: name.to_owned(), value: value.to_string(), kind };
        self.print(name, &row.value);
        self.rows.push(row);
    }

    fn print(&self, name: &str, value: &str) {
        if self.form == Form::Text {
            println!("{name:<14} {value}");
        }
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
