// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary of a job in an AdminComment, in the format of Princeton's jobstats: `JS1:`, followed by base64 of gzip of JSON.
//!
//! Its readers (jobstats, Open OnDemand's helper, seff-like tools) use the members that they know and ignore the rest. The member
//! `jobfence` marks a summary of jobfence, to which another node may add its part; any other text is not jobfence's.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

/// Precedes the summary.
const MARK: &str = "JS1:";

/// jobfence writes no summary that unpacks to more.
const LONGEST: u64 = 4 << 20;

/// What a job used on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodePart {
    /// CPUs that it was granted.
    pub cpus: Option<u64>,
    /// Memory that it was granted, in bytes.
    pub memory: Option<u64>,
    /// The most memory in use at once, in bytes.
    pub memory_peak: Option<u64>,
    /// CPU time in seconds.
    pub cpu_seconds: f64,
}

/// A node's CPU time in seconds, in jobstats' format.
const CPU: &str = "total_time";

/// The other members of a node there.
const MEMBERS: [(&str, NodeNumber); 3] = [
    ("cpus", |part| &mut part.cpus),
    ("total_memory", |part| &mut part.memory),
    ("used_memory", |part| &mut part.memory_peak),
];

type NodeNumber = fn(&mut NodePart) -> &mut Option<u64>;

/// What a job used on all nodes that have reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    nodes: Map<String, Value>,
    seconds: u64,
}

impl Summary {
    /// Parses a comment. An empty one has no nodes. `None`: the comment is not jobfence's.
    pub fn of_comment(comment: &str) -> Option<Self> {
        if comment.is_empty() {
            return Some(Self { nodes: Map::new(), seconds: 0 });
        }
        let packed = STANDARD.decode(comment.strip_prefix(MARK)?).ok()?;
        let mut text = String::new();
        GzDecoder::new(packed.as_slice()).take(LONGEST).read_to_string(&mut text).ok()?;
        let summary: Value = serde_json::from_str(&text).ok()?;
        summary.get("jobfence")?;
        let nodes = summary.get("nodes")?.as_object()?.clone();
        Some(Self { nodes, seconds: summary.get("total_time")?.as_u64()? })
    }

    /// Adds a node's part. Returns whether that changes anything.
    pub fn put(&mut self, node: &str, part: &NodePart, seconds: u64) -> bool {
        let mut entry = Map::new();
        // Rounded to the millisecond, so that parsing and writing again gives the same text.
        entry.insert(CPU.to_owned(), json!((part.cpu_seconds * 1000.0).round() / 1000.0));
        for (name, of) in MEMBERS {
            entry.extend(of(&mut part.clone()).map(|value| (name.to_owned(), json!(value))));
        }
        let entry = Value::Object(entry);
        if self.nodes.get(node) == Some(&entry) && self.seconds >= seconds {
            return false;
        }
        self.nodes.insert(node.to_owned(), entry);
        self.seconds = self.seconds.max(seconds);
        true
    }

    /// Each node's part, by its name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, NodePart)> {
        self.nodes.iter().map(|(node, entry)| {
            let cpu_seconds = entry.get(CPU).and_then(Value::as_f64).unwrap_or_default();
            let mut part = NodePart { cpu_seconds, ..NodePart::default() };
            for (name, of) in MEMBERS {
                *of(&mut part) = entry.get(name).and_then(Value::as_u64);
            }
            (node.as_str(), part)
        })
    }

    /// The job's run time, in seconds.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// The comment's text.
    pub fn comment(&self) -> Result<String, String> {
        // jobstats needs the number of GPUs; jobfence does not measure their use.
        let summary = json!({ "gpus": 0, "jobfence": 1, "nodes": self.nodes, "total_time": self.seconds });
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        let packed = packer.write_all(summary.to_string().as_bytes()).and_then(|()| packer.finish());
        Ok(MARK.to_owned() + &STANDARD.encode(packed.map_err(|error| format!("pack a summary: {error}"))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(cpu_seconds: f64) -> NodePart {
        NodePart { cpus: Some(2), memory: Some(1 << 30), memory_peak: Some(5 << 20), cpu_seconds }
    }

    #[test]
    fn each_node_adds_its_part() {
        let mut first = Summary::of_comment("").unwrap();
        assert!(first.put("n1", &part(1.0004), 10));
        let comment = first.comment().unwrap();
        assert!(comment.starts_with("JS1:") && !comment.contains(char::is_whitespace), "{comment}");
        let mut second = Summary::of_comment(&comment).unwrap();
        assert_eq!(second, first);
        assert!(!second.put("n1", &part(1.0004), 9), "it is there");
        assert!(second.put("n2", &part(2.0), 12));
        let all = Summary::of_comment(&second.comment().unwrap()).unwrap();
        let expected = [("n1", part(1.0)), ("n2", part(2.0))];
        assert_eq!(all.nodes().collect::<Vec<_>>(), expected);
        assert_eq!(all.seconds(), 12);
    }

    #[test]
    fn what_is_somebody_elses_is_not_ours() {
        let pack = |text: &str| {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(text.as_bytes()).unwrap();
            MARK.to_owned() + &STANDARD.encode(packer.finish().unwrap())
        };
        for theirs in [
            "approved by root".to_owned(),
            "JS1:Short".to_owned(),
            "JS1:None".to_owned(),
            pack("{\"gpus\":0,\"nodes\":{},\"total_time\":3}"),
            pack("{\"jobfence\":1,\"nodes\":[],\"total_time\":3}"),
            pack("nothing"),
        ] {
            assert_eq!(Summary::of_comment(&theirs), None, "{theirs}");
        }
        assert!(Summary::of_comment(&pack("{\"jobfence\":1,\"nodes\":{},\"total_time\":3}")).is_some());
    }
}
