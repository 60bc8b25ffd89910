// SPDX-License-Identifier: GPL-2.0-or-later
//! What one job has sent and received.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jobfence::bytes::binary;

use super::program::CountedPackets;

/// The name of what is counted for no known interface, such as one in a network namespace of the job's own with a number of none here.
pub const OTHER: &str = "other";

/// Amounts in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkAmounts {
    /// Bytes of IP packets as the kernel hands them to an interface: one that is divided there has one header.
    pub sent: u64,
    pub received: u64,
    pub sent_packets: u64,
    pub received_packets: u64,
}

impl NetworkAmounts {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            sent_packets: self.sent_packets.saturating_add(other.sent_packets),
            received_packets: self.received_packets.saturating_add(other.received_packets),
        }
    }

    fn in_words(self) -> String {
        format!("{} sent, {} received", binary(self.sent), binary(self.received))
    }
}

impl From<CountedPackets> for NetworkAmounts {
    fn from(counted: CountedPackets) -> Self {
        let CountedPackets { sent, sent_packets, received, received_packets } = counted;
        Self { sent, received, sent_packets, received_packets }
    }
}

/// One interface of a job's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkUse {
    pub is_loopback: bool,
    /// What the present table says.
    pub counted: NetworkAmounts,
    /// What earlier tables said at last.
    pub before: NetworkAmounts,
}

impl NetworkUse {
    /// All of it.
    pub fn all(&self) -> NetworkAmounts {
        self.before.and(self.counted)
    }
}

/// What a job has sent and received on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNetwork {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// The job's directory in cgroup2.
    pub directory: String,
    /// Its number, by which is counted.
    pub inode: u64,
    /// The kernel's number of the table.
    pub table: u32,
    /// In bytes a second, what the job may send.
    pub most: Option<u64>,
    /// By the interfaces' names.
    pub interfaces: BTreeMap<String, NetworkUse>,
}

impl JobNetwork {
    /// Takes what the table now says of an interface.
    pub fn take(&mut self, interface: &str, is_loopback: bool, counted: NetworkAmounts) {
        let known = self.interfaces.entry(interface.to_owned()).or_default();
        (known.is_loopback, known.counted) = (is_loopback, counted);
    }

    /// From now on the figures are those of another table, which began to count later.
    pub fn change_table(&mut self, table: u32) {
        if self.table == table {
            return;
        }
        self.table = table;
        for interface in self.interfaces.values_mut() {
            interface.before = interface.all();
            interface.counted = NetworkAmounts::default();
        }
    }

    /// What left the node and came to it: all but the loopback.
    pub fn by_network(&self) -> NetworkAmounts {
        let network = self.interfaces.values().filter(|interface| !interface.is_loopback);
        network.map(NetworkUse::all).fold(NetworkAmounts::default(), NetworkAmounts::and)
    }

    /// For people, in a line.
    pub fn in_words(&self) -> String {
        let most = self.most.map_or_else(String::new, |most| format!(", at most {} a second sent", binary(most)));
        let each: Vec<String> = self
            .interfaces
            .iter()
            .filter(|(_, interface)| interface.all() != NetworkAmounts::default())
            .map(|(name, interface)| format!("{name}: {}", interface.all().in_words()))
            .collect();
        // One interface says all.
        let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join("; ")) };
        format!("{}{most}{each}", self.by_network().in_words())
    }

    /// For a card: all but the loopback.
    pub fn for_a_card(&self) -> Option<String> {
        let amounts = self.by_network();
        (amounts != NetworkAmounts::default()).then(|| amounts.in_words())
    }
}

/// The metrics of jobs, each with its labels.
pub fn page<'a>(jobs: impl Iterator<Item = (String, &'a JobNetwork)>) -> String {
    const NAME: &str = "jobfence_job_network_bytes_total";
    let mut lines = String::new();
    for (labels, job) in jobs {
        for (name, interface) in &job.interfaces {
            let all = interface.all();
            // The kernel lets all but white space, slashes and colons into a name.
            let name = name.replace(['\\', '"', '\n'], "?");
            for (direction, bytes) in [("sent", all.sent), ("received", all.received)] {
                let _ = writeln!(lines, "{NAME}{{{labels},interface=\"{name}\",direction=\"{direction}\"}} {bytes}");
            }
        }
    }
    if lines.is_empty() {
        return lines;
    }
    format!(
        "# HELP {NAME} Bytes of IP packets that the job has sent and received, as the kernel hands them to an interface.\n# TYPE {NAME} counter\n{lines}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(sent: u64, received: u64) -> NetworkAmounts {
        NetworkAmounts { sent, received, sent_packets: 1, received_packets: 1 }
    }

    #[test]
    fn the_loopback_is_counted_and_is_not_the_network() {
        let mut job = JobNetwork { table: 1, ..JobNetwork::default() };
        job.take("lo", true, amounts(1 << 30, 1 << 30));
        assert_eq!(job.for_a_card(), None);
        job.take("eth0", false, amounts(3 << 20, 1 << 20));
        job.take("ib0", false, amounts(1 << 20, 0));
        assert_eq!((job.by_network().sent, job.by_network().received), (4 << 20, 1 << 20));
        assert_eq!(job.for_a_card().unwrap(), "4.0 MiB sent, 1.0 MiB received");
        job.most = Some(100 << 20);
        let all = "4.0 MiB sent, 1.0 MiB received, at most 100.0 MiB a second sent (eth0: 3.0 MiB sent, 1.0 MiB received; \
                   ib0: 1.0 MiB sent, 0 B received; lo: 1.0 GiB sent, 1.0 GiB received)";
        assert_eq!(job.in_words(), all);
    }

    #[test]
    fn each_interface_and_direction_is_a_metric() {
        let mut job = JobNetwork::default();
        assert_eq!(page([("a=\"b\"".to_owned(), &job)].into_iter()), "");
        job.take("eth0", false, amounts(10, 20));
        let page = page([("a=\"b\"".to_owned(), &job)].into_iter());
        for line in [
            "# TYPE jobfence_job_network_bytes_total counter\n",
            "jobfence_job_network_bytes_total{a=\"b\",interface=\"eth0\",direction=\"sent\"} 10\n",
            "jobfence_job_network_bytes_total{a=\"b\",interface=\"eth0\",direction=\"received\"} 20\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[test]
    fn a_new_table_goes_on_where_the_last_one_ended() {
        let mut job = JobNetwork { table: 1, ..JobNetwork::default() };
        job.take("eth0", false, amounts(10, 20));
        job.take("eth0", false, amounts(15, 20));
        job.change_table(1);
        assert_eq!(job.by_network(), amounts(15, 20));
        job.change_table(2);
        job.take("eth0", false, amounts(1, 2));
        assert_eq!((job.by_network().sent, job.by_network().received), (16, 22));
        job.change_table(3);
        assert_eq!((job.by_network().sent, job.by_network().received), (16, 22));
    }
}
