// SPDX-License-Identifier: GPL-2.0-or-later
//! What fences have used, as text: for programs as JSON, for people in sentences. Each door of a life in several processes says it so.

use std::fmt::Write as _;

use crate::door::life::{Seen, in_words};

/// The fences as one object. Its members keep their names and their units in every release; what is added has a new name.
pub fn json(all: &[Seen]) -> String {
    let one = |seen: &Seen| {
        let usage = &seen.usage;
        let members = [
            ("job", text(seen.key.job.as_str())),
            ("step", text(seen.key.step.as_str())),
            ("run", seen.run.to_string()),
            ("uid", seen.key.uid.to_string()),
            ("holder", text(&seen.holder.to_string())),
            ("path", or_null(seen.path.as_deref().map(text))),
            ("cpu_seconds", or_null(usage.cpu.map(|time| format!("{:.6}", time.as_secs_f64())))),
            ("throttled_seconds", or_null(usage.throttled.map(|time| format!("{:.6}", time.as_secs_f64())))),
            ("memory_peak_bytes", or_null(usage.memory_peak)),
            ("job_memory_peak_bytes", or_null(seen.job_memory_peak)),
            ("job_memory_swap_peak_bytes", or_null(seen.job_memory_swap_peak)),
            ("oom_kills", or_null(usage.oom_kills)),
            ("forks_refused", or_null(usage.forks_refused)),
            ("read_bytes", or_null(usage.io.map(|io| io.read))),
            ("written_bytes", or_null(usage.io.map(|io| io.written))),
            ("cpus_limit", or_null(seen.cpus)),
            ("memory_limit_bytes", or_null(seen.memory)),
            ("processes_limit", or_null(seen.processes)),
            ("gpus", list(&seen.gpus)),
            ("sentences", list(&seen.sentences)),
        ];
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    format!("{{\"schema\":1,\"fences\":[{}]}}", all.iter().map(one).collect::<Vec<_>>().join(","))
}

fn list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|one| text(one)).collect::<Vec<_>>().join(","))
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}

/// A string of RFC 8259.
fn text(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// The fences in lines: what each has used, and behind that at which limits it was stopped.
pub fn lines(all: &[Seen]) -> String {
    let one = |seen: &Seen| std::iter::once(in_words(seen)).chain(seen.sentences.iter().cloned()).collect::<Vec<_>>();
    all.iter().flat_map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_of_json() {
        assert_eq!(text("12[3].host"), "\"12[3].host\"");
        assert_eq!(text("a\"b\\c\nd\u{85}é"), "\"a\\\"b\\\\c\\u000ad\\u0085é\"");
    }
}
