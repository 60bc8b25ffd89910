// SPDX-License-Identifier: GPL-2.0-or-later
//! Where what jobs send and receive is kept: of a job that runs in a file beside the series of its steps, which its user can read; of one
//! that has ended in a line of a log of its own beside the usage log.

use jobfence::report::account::utc;
use jobfence::report::usage_log::UsageLog;
use serde_json::{Map, Value, json};
use std::time::SystemTime;

use super::figures::{JobNetwork, NetworkAmounts, NetworkUse};
use crate::kept::{KeptId, KeptJob, number, text};
use crate::node_logs::log_with;

/// The name of the objects' format. A program that reads them checks it first.
pub const SCHEMA: &str = "jobfence-network-1";

/// What the log's name has behind that of the usage log.
const LOG: &str = ".network";

impl JobNetwork {
    /// The object without what is for `jobfence hold` alone.
    pub fn json(&self) -> Value {
        let sums = self.by_network();
        let interfaces: Map<String, Value> = self
            .interfaces
            .iter()
            .map(|(name, interface)| {
                let mut value = amounts(interface.all());
                value["is_loopback"] = interface.is_loopback.into();
                (name.clone(), value)
            })
            .collect();
        self.object(json!({
            "sent_bytes": sums.sent,
            "received_bytes": sums.received,
            "sent_bytes_per_second_limit": self.most,
            "interfaces": interfaces,
        }))
    }
}

fn amounts(of: NetworkAmounts) -> Value {
    json!({
        "sent_bytes": of.sent,
        "received_bytes": of.received,
        "sent_packets": of.sent_packets,
        "received_packets": of.received_packets,
    })
}

fn amounts_of(value: &Value) -> Option<NetworkAmounts> {
    Some(NetworkAmounts {
        sent: number(value, "sent_bytes")?,
        received: number(value, "received_bytes")?,
        sent_packets: number(value, "sent_packets")?,
        received_packets: number(value, "received_packets")?,
    })
}

impl KeptJob for JobNetwork {
    const ENDING: &'static str = ".network";
    const SCHEMA: &'static str = SCHEMA;

    fn job(&self) -> (Option<&str>, Option<u32>, &str) {
        (self.node.as_deref(), self.uid, &self.job)
    }

    fn members(&self) -> Value {
        let mut state = self.json();
        let before: Map<String, Value> =
            self.interfaces.iter().map(|(name, interface)| (name.clone(), amounts(interface.before))).collect();
        state["state"] =
            json!({ "directory": self.directory, "inode": self.inode, "table": self.table, "before": before });
        state
    }

    fn from_members(KeptId { node, uid, job }: KeptId, value: &Value) -> Option<Self> {
        let state = value.get("state")?;
        let mut job = Self {
            node,
            uid,
            job,
            directory: text(state, "directory")?,
            inode: number(state, "inode")?,
            table: u32::try_from(number(state, "table")?).ok()?,
            most: number(value, "sent_bytes_per_second_limit"),
            ..Self::default()
        };
        for (name, interface) in value.get("interfaces")?.as_object()? {
            let all = amounts_of(interface)?;
            let before = amounts_of(state.get("before")?.get(name)?)?;
            let counted = NetworkAmounts {
                sent: all.sent.saturating_sub(before.sent),
                received: all.received.saturating_sub(before.received),
                sent_packets: all.sent_packets.saturating_sub(before.sent_packets),
                received_packets: all.received_packets.saturating_sub(before.received_packets),
            };
            let is_loopback = interface.get("is_loopback")?.as_bool()?;
            job.interfaces.insert(name.clone(), NetworkUse { is_loopback, counted, before });
        }
        Some(job)
    }
}

/// Adds the line of a job that has ended, or is not counted any more.
pub fn log(usage_log: &UsageLog<'_>, job: &JobNetwork, has_ended: bool) {
    usage_log.at(&log_with(usage_log, LOG)).add(&line(job, has_ended, utc(SystemTime::now())).to_string());
}

fn line(job: &JobNetwork, has_ended: bool, at: String) -> Value {
    let mut line = job.json();
    line[if has_ended { "ended" } else { "counted_until" }] = at.into();
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let of = |sent| NetworkAmounts { sent, received: 2, sent_packets: 3, received_packets: 4 };
        let mut job = JobNetwork {
            uid: Some(7),
            job: "12".to_owned(),
            directory: "/x/job_12".to_owned(),
            inode: 99,
            table: 5,
            most: Some(1 << 20),
            ..JobNetwork::default()
        };
        job.take("eth0", false, of(100));
        job.change_table(6);
        job.take("eth0", false, of(10));
        job.take("lo", true, of(1));
        assert_eq!(JobNetwork::from_json(&job.state()), Some(job.clone()));
        // Without the state, as for others, it is no file of ours.
        assert_eq!(JobNetwork::from_json(&job.json()), None);
        assert_eq!(job.json()["sent_bytes"], 110);
        // One that goes on has not ended.
        let at = |has_ended| line(&job, has_ended, "now".to_owned());
        assert_eq!((&at(true)["ended"], &at(false)["ended"]), (&json!("now"), &Value::Null));
        assert_eq!(at(false)["counted_until"], "now");
    }
}
