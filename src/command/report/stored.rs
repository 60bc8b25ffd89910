// SPDX-License-Identifier: GPL-2.0-or-later
//! What the scheduler's accounting has about a job on all its nodes, written by `StoreUsage`; also on a host that is no node.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::accounting::{GpuPart, NodePart, StoredJob};
use super::text::SCHEMA;
use crate::table::{Column, NONE, lines, mib, number, numbers, printable, texts, time};

const COLUMNS: [Column; 6] =
    [texts("NODE"), numbers("CPU-TIME"), numbers("CPUS"), numbers("EFF%"), numbers("PEAK/MiB"), numbers("GRANTED/MiB")];

const GPU_COLUMNS: [Column; 5] =
    [texts("NODE"), numbers("GPU"), numbers("BUSY%"), numbers("PEAK/MiB"), numbers("TOTAL/MiB")];

/// A line for each node, and for each of its GPUs. `source`: the accounting's name.
pub fn in_words(job: &str, source: &str, stored: &StoredJob, width: usize) -> String {
    let elapsed = Duration::from_secs(stored.seconds);
    let row = |(node, part): &(String, NodePart)| {
        let efficiency = part.cpus.map(|cpus| cpus as f64 * elapsed.as_secs_f64()).filter(|granted| *granted > 0.0);
        let efficiency =
            efficiency.zip(part.cpu_seconds).map(|(granted, used)| format!("{:.1}", 100.0 * used / granted));
        vec![
            printable(node),
            time(part.cpu_seconds.and_then(|used| Duration::try_from_secs_f64(used).ok())),
            number(part.cpus),
            efficiency.unwrap_or_else(|| NONE.to_owned()),
            mib(part.memory_peak),
            mib(part.memory),
        ]
    };
    let rows: Vec<Vec<String>> = stored.nodes.iter().map(row).collect();
    let mut text = format!("job {}, from {source}\n  time      {}\n\n", printable(job), time(Some(elapsed)));
    for line in lines(&COLUMNS, &rows, Some(width)) {
        text.push_str(&line);
        text.push('\n');
    }
    let gpus = stored.nodes.iter().flat_map(|(node, part)| {
        let row = move |(number, gpu): (&u32, &GpuPart)| {
            let busy = format!("{:.1}", gpu.percent);
            vec![printable(node), number.to_string(), busy, mib(Some(gpu.memory_peak)), mib(Some(gpu.memory))]
        };
        part.gpus.iter().map(row)
    });
    let rows: Vec<Vec<String>> = gpus.collect();
    if !rows.is_empty() {
        text.push('\n');
        for line in lines(&GPU_COLUMNS, &rows, Some(width)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// An object in the report's format, without steps.
pub fn json(job: &str, stored: &StoredJob) -> Value {
    let node = |(name, part): &(String, NodePart)| {
        let mut value = json!({
            "cpu_seconds": part.cpu_seconds,
            "cpus_granted": part.cpus,
            "memory_granted_bytes": part.memory,
            "job_memory_peak_bytes": part.memory_peak,
        });
        if !part.gpus.is_empty() {
            let gpu = |(number, gpu): (&u32, &GpuPart)| {
                json!({
                    "gpu": number,
                    "utilization_percent": gpu.percent,
                    "memory_peak_bytes": gpu.memory_peak,
                    "memory_total_bytes": gpu.memory,
                })
            };
            value["gpus"] = part.gpus.iter().map(gpu).collect();
        }
        (name.clone(), value)
    };
    let nodes: Map<String, Value> = stored.nodes.iter().map(node).collect();
    json!({ "schema": SCHEMA, "job": job, "stored": { "wall_seconds": stored.seconds, "nodes": nodes } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_line() {
        let part = NodePart {
            cpus: Some(2),
            memory: Some(200 << 20),
            memory_peak: Some(50 << 20),
            cpu_seconds: Some(30.0),
            ..NodePart::default()
        };
        let other = NodePart { cpu_seconds: Some(1.0), ..NodePart::default() };
        let nodes = vec![("n1".to_owned(), part), ("n2\u{1b}[2J".to_owned(), other)];
        let mut stored = StoredJob { seconds: 60, nodes };
        let text = in_words("7", "the accounting", &stored, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["job 7, from the accounting", "  time      1:00"]);
        assert!(lines[4].starts_with("n1") && lines[4].ends_with("30.0s    2 25.0     50.0       200.0"), "{text}");
        assert!(lines[5].starts_with("n2?[2J") && lines[5].ends_with("1.0s    -    -        -           -"), "{text}");
        assert_eq!(json("7", &stored)["stored"]["nodes"]["n1"]["cpus_granted"], 2);
        assert!(json("7", &stored)["stored"]["nodes"]["n1"].get("gpus").is_none());
        let gpu = GpuPart { percent: 12.5, memory_peak: 1 << 30, memory: 4 << 30 };
        stored.nodes[0].1.gpus = [(3, gpu)].into();
        let text = in_words("7", "the accounting", &stored, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[7], "NODE GPU BUSY% PEAK/MiB TOTAL/MiB", "{text}");
        assert_eq!(lines[8], "n1     3  12.5   1024.0    4096.0", "{text}");
        assert_eq!(json("7", &stored)["stored"]["nodes"]["n1"]["gpus"][0]["utilization_percent"], 12.5);
    }
}
