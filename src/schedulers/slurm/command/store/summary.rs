// SPDX-License-Identifier: GPL-2.0-or-later
//! The summary of a job in an AdminComment, in the format of Princeton's jobstats: `JS1:`, followed by base64 of gzip of JSON.
//!
//! Its readers (jobstats, Open OnDemand's helper, seff-like tools) use the members that they know and ignore the rest. The member
//! `jobfence` marks a summary of jobfence, to which another node may add its part; any other text is not jobfence's.
//!
//! Some readers fail where a number is missing (reportseff), and jobstats does not ask Prometheus for what a summary lacks, such as GPUs.
//! So a summary that lacks what they need begins with another mark, which they all ignore. Only jobfence reads it.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use crate::report::accounting::{GpuPart, NodePart, StoredJob};

/// Precedes a summary that has all that its readers need.
const MARK: &str = "JS1:";

/// Precedes one that lacks something.
const OWN_MARK: &str = "JF1:";

/// jobfence writes no summary that unpacks to more.
const LONGEST: u64 = 4 << 20;

/// A node's CPU time in seconds, in jobstats' format.
const CPU: &str = "total_time";

/// The other members of a node there.
const MEMBERS: [(&str, NodeNumber); 3] = [
    ("cpus", |part| &mut part.cpus),
    ("total_memory", |part| &mut part.memory),
    ("used_memory", |part| &mut part.memory_peak),
];

type NodeNumber = fn(&mut NodePart) -> &mut Option<u64>;

/// What jobstats needs of a node of a job with GPUs: objects with a value for each GPU.
const GPU_MEMBERS: [&str; 3] = ["gpu_utilization", "gpu_used_memory", "gpu_total_memory"];

impl NodePart {
    /// The part as jobstats has it.
    pub fn entry(&self) -> Value {
        let mut entry = Map::new();
        // Rounded to the millisecond, so that parsing and writing again gives the same text.
        let cpu = self.cpu_seconds.map(|cpu| json!((cpu * 1000.0).round() / 1000.0));
        entry.extend(cpu.map(|cpu| (CPU.to_owned(), cpu)));
        for (name, of) in MEMBERS {
            entry.extend(of(&mut self.clone()).map(|value| (name.to_owned(), json!(value))));
        }
        if !self.gpus.is_empty() {
            let each = |of: &dyn Fn(&GpuPart) -> Value| {
                self.gpus.iter().map(|(number, gpu)| (number.to_string(), of(gpu))).collect::<Map<_, _>>()
            };
            let percent = |gpu: &GpuPart| json!((gpu.percent * 10.0).round() / 10.0);
            let all = [each(&percent), each(&|gpu| json!(gpu.memory_peak)), each(&|gpu| json!(gpu.memory))];
            entry.extend(GPU_MEMBERS.into_iter().map(str::to_owned).zip(all.into_iter().map(Value::Object)));
        }
        Value::Object(entry)
    }

    /// Reads what [`Self::entry`] makes.
    pub fn from_entry(entry: &Value) -> Self {
        let cpu_seconds = entry.get(CPU).and_then(Value::as_f64);
        let mut part = Self { cpu_seconds, ..Self::default() };
        for (name, of) in MEMBERS {
            *of(&mut part) = entry.get(name).and_then(Value::as_u64);
        }
        let [percent, memory_peak, memory] = GPU_MEMBERS.map(|name| entry.get(name));
        let gpu = |(number, percent): (&String, &Value)| {
            let bytes = |all: Option<&Value>| all?.get(number)?.as_u64();
            let gpu = GpuPart { percent: percent.as_f64()?, memory_peak: bytes(memory_peak)?, memory: bytes(memory)? };
            Some((number.parse().ok()?, gpu))
        };
        part.gpus = percent.and_then(Value::as_object).into_iter().flatten().filter_map(gpu).collect();
        part
    }

    /// Adds what another step used, or the same job earlier.
    pub fn add(&mut self, other: &Self) {
        // What a step used that is not known is not nothing.
        self.cpu_seconds = self.cpu_seconds.zip(other.cpu_seconds).map(|(one, other)| one + other);
        for (_, of) in MEMBERS {
            let more = *of(&mut other.clone());
            let most = of(self);
            *most = (*most).max(more);
        }
        for (number, more) in &other.gpus {
            let gpu = self.gpus.entry(*number).or_default();
            gpu.percent = gpu.percent.max(more.percent);
            gpu.memory_peak = gpu.memory_peak.max(more.memory_peak);
            gpu.memory = gpu.memory.max(more.memory);
        }
    }
}

/// What a job used on all nodes that have reported.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    nodes: Map<String, Value>,
    seconds: u64,
    /// When the run was submitted, in seconds since 1970: a requeued job has a record for each run. 0: not known.
    run: u64,
    /// How many GPUs the job was granted on all its nodes.
    gpus: u64,
}

impl Summary {
    /// Parses a comment. An empty one has no nodes. `None`: the comment is not jobfence's.
    pub fn from_comment(comment: &str) -> Option<Self> {
        if comment.is_empty() {
            return Some(Self::default());
        }
        let packed = comment.strip_prefix(MARK).or_else(|| comment.strip_prefix(OWN_MARK))?;
        let mut text = String::new();
        GzDecoder::new(STANDARD.decode(packed).ok()?.as_slice()).take(LONGEST).read_to_string(&mut text).ok()?;
        let summary: Value = serde_json::from_str(&text).ok()?;
        let ours = summary.get("jobfence")?;
        let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64);
        Some(Self {
            nodes: summary.get("nodes")?.as_object()?.clone(),
            seconds: number(&summary, "total_time")?,
            run: number(ours, "submitted").unwrap_or_default(),
            gpus: number(&summary, "gpus").unwrap_or_default(),
        })
    }

    /// Makes it that of the run with this record: what was stored of another run goes.
    #[must_use]
    pub fn of_run(self, submitted: u64, gpus: u64) -> Self {
        match self.run {
            0 => Self { run: submitted, gpus, ..self },
            run if run == submitted => Self { gpus, ..self },
            _ => Self { run: submitted, gpus, ..Self::default() },
        }
    }

    /// Whether it is of the run with this record.
    pub fn is_of_run(&self, submitted: u64) -> bool {
        [0, submitted].contains(&self.run)
    }

    /// Adds a node's part. Returns whether that changes anything. What is stored never becomes less: a part only grows.
    pub fn put(&mut self, node: &str, part: &NodePart, seconds: u64) -> bool {
        let stored = self.nodes.get(node);
        let before = stored.map(NodePart::from_entry).unwrap_or_default();
        let is_less = before.cpu_seconds.zip(part.cpu_seconds).is_some_and(|(before, now)| before > now + 0.001);
        let mut part = part.clone();
        if part.gpus.is_empty() {
            // The line about them may be gone.
            part.gpus = before.gpus;
        }
        let entry = part.entry();
        if is_less || stored == Some(&entry) && self.seconds >= seconds {
            return false;
        }
        self.nodes.insert(node.to_owned(), entry);
        self.seconds = self.seconds.max(seconds);
        true
    }

    /// What its readers would miss. `None`: nothing.
    pub fn lack(&self) -> Option<&'static str> {
        let each = |name: &str, is_known: fn(&Value) -> bool| {
            self.nodes.values().all(|node| node.get(name).is_some_and(is_known))
        };
        let number = |name| each(name, |value| value.as_u64().is_some_and(|number| number > 0));
        let of_each_gpu = |name| each(name, |gpus| gpus.as_object().is_some_and(|gpus| !gpus.is_empty()));
        if !number("total_memory") {
            return Some("the granted memory");
        }
        if !number("cpus") {
            return Some("the granted CPUs");
        }
        if !each(CPU, Value::is_number) {
            return Some("the CPU time");
        }
        if !each("used_memory", Value::is_u64) {
            return Some("the most memory in use");
        }
        if self.gpus > 0 && !GPU_MEMBERS.into_iter().all(of_each_gpu) {
            return Some("the use of its GPUs");
        }
        // They divide by it.
        (self.seconds == 0).then_some("a run time of at least a second")
    }

    /// Each node's part, by its name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, NodePart)> {
        self.nodes.iter().map(|(node, entry)| (node.as_str(), NodePart::from_entry(entry)))
    }

    /// The job's run time, in seconds.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// The same for the report.
    pub fn stored(&self) -> StoredJob {
        let nodes = self.nodes().map(|(node, part)| (node.to_owned(), part));
        StoredJob { seconds: self.seconds, nodes: nodes.collect() }
    }

    /// The comment's text.
    pub fn comment(&self) -> Result<String, String> {
        let ours = json!({ "submitted": self.run });
        let summary = json!({ "gpus": self.gpus, "jobfence": ours, "nodes": self.nodes, "total_time": self.seconds });
        let mark = if self.lack().is_none() { MARK } else { OWN_MARK };
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        let packed = packer.write_all(summary.to_string().as_bytes()).and_then(|()| packer.finish());
        Ok(mark.to_owned() + &STANDARD.encode(packed.map_err(|error| format!("pack a summary: {error}"))?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn part(cpu: f64) -> NodePart {
        NodePart {
            cpus: Some(2),
            memory: Some(1 << 30),
            memory_peak: Some(5 << 20),
            cpu_seconds: Some(cpu),
            ..NodePart::default()
        }
    }

    #[test]
    fn each_node_adds_its_part() {
        let mut first = Summary::from_comment("").unwrap();
        assert!(first.put("n1", &part(1.0004), 10));
        let comment = first.comment().unwrap();
        assert!(comment.starts_with("JS1:") && !comment.contains(char::is_whitespace), "{comment}");
        let mut second = Summary::from_comment(&comment).unwrap();
        assert_eq!(second, first);
        assert!(!second.put("n1", &part(1.0004), 9), "it is there");
        assert!(second.put("n2", &part(2.0), 12));
        let all = Summary::from_comment(&second.comment().unwrap()).unwrap();
        let expected = [("n1", part(1.0)), ("n2", part(2.0))];
        assert_eq!(all.nodes().collect::<Vec<_>>(), expected);
        assert_eq!(all.seconds(), 12);
    }

    #[test]
    fn a_summary_that_lacks_what_readers_need_is_none_of_theirs() {
        let comment = |part: NodePart, seconds, gpus| {
            let mut summary = Summary::from_comment("").unwrap().of_run(9, gpus);
            summary.put("n1", &self::part(1.0), seconds);
            summary.put("n2", &part, seconds);
            (summary.lack(), summary.comment().unwrap(), summary)
        };
        for (part, seconds, gpus, lack) in [
            (part(2.0), 10, 0, None),
            (NodePart { memory: None, ..part(2.0) }, 10, 0, Some("the granted memory")),
            (NodePart { memory: Some(0), ..part(2.0) }, 10, 0, Some("the granted memory")),
            (NodePart { cpus: None, ..part(2.0) }, 10, 0, Some("the granted CPUs")),
            (NodePart { memory_peak: None, ..part(2.0) }, 10, 0, Some("the most memory in use")),
            (part(2.0), 10, 2, Some("the use of its GPUs")),
            (part(2.0), 0, 0, Some("a run time of at least a second")),
        ] {
            let (found, comment, summary) = comment(part, seconds, gpus);
            assert_eq!(found, lack);
            assert_eq!(comment.starts_with("JS1:"), lack.is_none(), "{lack:?}: {comment}");
            // jobfence reads both.
            assert_eq!(Summary::from_comment(&comment), Some(summary));
        }
    }

    #[test]
    fn gpus_are_read_as_they_were_written_and_stay() {
        let gpu = GpuPart { percent: 33.3, memory_peak: 5, memory: 9 };
        let with = NodePart { gpus: BTreeMap::from([(0, gpu.clone()), (3, gpu)]), ..part(1.0) };
        let entry = with.entry();
        assert_eq!(entry["gpu_utilization"], json!({"0": 33.3, "3": 33.3}));
        assert_eq!(entry["gpu_used_memory"], json!({"0": 5, "3": 5}));
        assert_eq!(entry["gpu_total_memory"], json!({"0": 9, "3": 9}));
        assert_eq!(NodePart::from_entry(&entry), with);
        let mut summary = Summary::from_comment("").unwrap().of_run(9, 2);
        assert!(summary.put("n1", &part(1.0), 10));
        assert_eq!(summary.lack(), Some("the use of its GPUs"));
        assert!(summary.put("n1", &with, 10));
        assert_eq!(summary.lack(), None);
        assert!(!summary.put("n1", &part(1.0), 10), "what is stored never becomes less");
        let mut more = with.clone();
        more.add(&NodePart {
            gpus: BTreeMap::from([(3, GpuPart { percent: 50.0, memory_peak: 4, memory: 9 })]),
            ..NodePart::default()
        });
        assert_eq!(more.gpus[&3], GpuPart { percent: 50.0, memory_peak: 5, memory: 9 });
    }

    #[test]
    fn what_was_stored_of_another_run_goes() {
        let mut first = Summary::from_comment("").unwrap().of_run(100, 0);
        first.put("n1", &part(70_000.0), 3600);
        let stored = Summary::from_comment(&first.comment().unwrap()).unwrap();
        assert!(stored.is_of_run(100) && !stored.is_of_run(200));
        assert_eq!(stored.clone().of_run(100, 0), first);
        let mut second = stored.of_run(200, 0);
        assert!(second.put("n1", &part(5.0), 10));
        assert_eq!((second.nodes().collect::<Vec<_>>(), second.seconds()), (vec![("n1", part(5.0))], 10));
        // A late line of a job that is forgotten is not the whole part.
        assert!(!second.put("n1", &part(4.0), 10));
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
            assert_eq!(Summary::from_comment(&theirs), None, "{theirs}");
        }
        assert!(Summary::from_comment(&pack("{\"jobfence\":1,\"nodes\":{},\"total_time\":3}")).is_some());
    }
}
