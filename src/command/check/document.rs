// SPDX-License-Identifier: GPL-2.0-or-later
//! A whole check for programs, and in one line.

use jobfence::config::ConfigError;
use jobfence::printable::printable;
use serde_json::{Value, json};

use super::rows::Rows;
use super::trial::of_any_process;
use super::verdict::Judgement;

/// The version of the object. A new member does not change it, but another meaning of a member does.
pub const SCHEMA: &str = "jobfence-check-1";

/// The check as an object.
pub fn document(rows: &Rows, judged: &Judgement) -> Value {
    let (word, _) = judged.short();
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    json!({
        "schema": SCHEMA,
        "jobfence": jobfence::VERSION,
        "node": node,
        "verdict": {"word": word.to_string(), "text": judged.whole()},
        "rows": rows.json(),
        "mistakes": judged.mistakes.iter().map(mistake).collect::<Value>(),
    })
}

/// A mistake of the configuration, with its place as far as it is in a file.
fn mistake(error: &ConfigError) -> Value {
    let text = error.to_string();
    let place = ConfigPlace::parse(error.place());
    json!({"file": place.file, "line": place.line, "column": place.column, "text": text})
}

/// Where a mistake is: `FILE:LINE:COLUMN`, or `FILE:LINE argument N, column COLUMN` of an argument in plugstack.conf, or `-o TEXT, column
/// COLUMN`, or a file as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
struct ConfigPlace<'a> {
    file: Option<&'a str>,
    line: Option<u64>,
    column: Option<u64>,
}

impl<'a> ConfigPlace<'a> {
    fn parse(place: &'a str) -> Self {
        let number = |text: &'a str, by: &str| {
            let (rest, number) = text.rsplit_once(by)?;
            Some((rest, number.parse::<u64>().ok()?))
        };
        if let Some((argument, column)) = number(place, ", column ") {
            let of_file = number(argument, " argument ").and_then(|(place, _)| number(place, ":"));
            let (file, line) = of_file.unzip();
            return Self { file, line, column: Some(column) };
        }
        let lines = number(place, ":").and_then(|(rest, column)| Some((number(rest, ":")?, column)));
        match lines {
            Some(((file, line), column)) => Self { file: Some(file), line: Some(line), column: Some(column) },
            None => Self { file: Some(place), ..Self::default() },
        }
    }
}

/// The check in one line. It is the same on equal nodes, and has no quotes: NHC gives it to a shell between such.
pub fn line(judged: &Judgement) -> String {
    let (word, why) = judged.short();
    let why = of_any_process(&why.replace('\n', "; "));
    let plain = |c: &char| !matches!(c, '\'' | '"' | '`' | '$' | '\\');
    let why: String = printable(&why, '?').chars().filter(plain).collect();
    format!("{word}: {why}")
}

#[cfg(test)]
mod tests {
    use super::super::verdict::VerdictWord;
    use super::*;

    #[test]
    fn a_place_is_one_of_a_file_where_it_is_in_one() {
        let of = |file, line, column| ConfigPlace { file, line, column };
        for (place, expected) in [
            ("/etc/a:b.conf:3:14", of(Some("/etc/a:b.conf"), Some(3), Some(14))),
            ("/etc/x.conf", of(Some("/etc/x.conf"), None, None)),
            ("/etc/plugstack.conf:7 argument 2, column 6", of(Some("/etc/plugstack.conf"), Some(7), Some(6))),
            ("-o Mode=on, column 6", of(None, None, Some(6))),
            ("--config, column 8", of(None, None, Some(8))),
        ] {
            assert_eq!(ConfigPlace::parse(place), expected, "{place}");
        }
    }

    #[test]
    fn a_line_is_one_line_without_quotes_and_without_this_process() {
        let pid = std::process::id();
        let text = format!("NO job: '/c/uid_{}/job_check-{pid}'\n\"a\" `b` $c \u{1b}", u32::MAX - 1 - pid);
        let said = line(&Judgement::new(VerdictWord::Unfenced, text));
        assert_eq!(said, "unfenced: NO job: /c/uid_UID/job_check-PID; a b c ?");
    }
}
