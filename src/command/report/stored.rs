// SPDX-License-Identifier: GPL-2.0-or-later
//! What Slurm's database has about a job on all its nodes, written by `StoreUsage`; also on a host that is no node.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::text::SCHEMA;
use crate::schedulers::slurm::store::summary::{NodePart, Summary};
use crate::table::{Column, NONE, lines, mib, number, numbers, printable, texts, time};

const COLUMNS: [Column; 6] =
    [texts("NODE"), numbers("CPU-TIME"), numbers("CPUS"), numbers("EFF%"), numbers("PEAK/MiB"), numbers("GRANTED/MiB")];

/// A line for each node.
pub fn in_words(job: &str, summary: &Summary, width: usize) -> String {
    let elapsed = Duration::from_secs(summary.seconds());
    let row = |(node, part): (&str, NodePart)| {
        let efficiency = part.cpus.map(|cpus| cpus as f64 * elapsed.as_secs_f64()).filter(|granted| *granted > 0.0);
        let efficiency = efficiency.map(|granted| format!("{:.1}", 100.0 * part.cpu_seconds / granted));
        vec![
            printable(node),
            time(Duration::try_from_secs_f64(part.cpu_seconds).ok()),
            number(part.cpus),
            efficiency.unwrap_or_else(|| NONE.to_owned()),
            mib(part.memory_peak),
            mib(part.memory),
        ]
    };
    let rows: Vec<Vec<String>> = summary.nodes().map(row).collect();
    let mut text = format!("job {}, from Slurm's accounting\n  time      {}\n\n", printable(job), time(Some(elapsed)));
    for line in lines(&COLUMNS, &rows, Some(width)) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// An object in the report's format, without steps.
pub fn json(job: &str, summary: &Summary) -> Value {
    let node = |(name, part): (&str, NodePart)| {
        let value = json!({
            "cpu_seconds": part.cpu_seconds,
            "cpus_granted": part.cpus,
            "memory_granted_bytes": part.memory,
            "job_memory_peak_bytes": part.memory_peak,
        });
        (name.to_owned(), value)
    };
    let nodes: Map<String, Value> = summary.nodes().map(node).collect();
    json!({ "schema": SCHEMA, "job": job, "stored": { "wall_seconds": summary.seconds(), "nodes": nodes } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_line() {
        let mut summary = Summary::of_comment("").unwrap();
        let part = NodePart { cpus: Some(2), memory: Some(200 << 20), memory_peak: Some(50 << 20), cpu_seconds: 30.0 };
        summary.put("n1", &part, 60);
        summary.put("n2\u{1b}[2J", &NodePart { cpu_seconds: 1.0, ..NodePart::default() }, 60);
        let text = in_words("7", &summary, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["job 7, from Slurm's accounting", "  time      1:00"]);
        assert!(lines[4].starts_with("n1") && lines[4].ends_with("30.0s    2 25.0     50.0       200.0"), "{text}");
        assert!(lines[5].starts_with("n2?[2J") && lines[5].ends_with("1.0s    -    -        -           -"), "{text}");
        assert_eq!(json("7", &summary)["stored"]["nodes"]["n1"]["cpus_granted"], 2);
    }
}
