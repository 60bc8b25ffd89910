// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job used on each of its nodes: the text that a node hands over, and the figures that a card derives from all nodes.
//!
//! The job's user can write where the text is. So it is used only for that user's own card.

use std::fmt::Write;
use std::time::Duration;

use crate::cgroup::usage::DiskIo;
use crate::fence::JobForACard;
use crate::job::Cpus;

const MAGIC: &str = "jobfence-node-2";

/// The figures in a text, in this order. Times are in microseconds.
#[derive(Debug, Clone, Copy)]
enum What {
    Cpu,
    Periods,
    ThrottledPeriods,
    Throttled,
    MemoryPeak,
    SwapPeak,
    File,
    Unwritten,
    HighEvents,
    MaxEvents,
    OomKills,
    ProcessesPeak,
    ForksRefused,
    Read,
    Written,
    MemoryWait,
    IoWait,
    /// In thousandths.
    Cpus,
    CpusLimit,
    Memory,
    MemoryLimit,
    /// 1: the job certainly could not use swap.
    WithoutSwap,
}

/// How the figures of two directories of a job on one node are combined.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Sum,
    Most,
    Least,
    /// The later one.
    Now,
}

const COUNT: usize = 22;

const RULES: [Rule; COUNT] = {
    use Rule::{Least, Most, Now, Sum};
    [Sum, Sum, Sum, Sum, Most, Most, Now, Now, Sum, Sum, Sum, Most, Sum, Sum, Sum, Sum, Sum, Now, Now, Now, Now, Least]
};

/// The figures of a job on one node. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFigures([Option<u64>; COUNT]);

/// What a node handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// The directory of the job on that node that was counted last; a new one counts from zero.
    pub directory: u64,
    /// The figures of earlier directories.
    pub before: Option<NodeFigures>,
    /// The figures of all directories.
    pub all: NodeFigures,
}

impl NodeFigures {
    /// From a job's directory and the grant there.
    pub fn new(found: &JobForACard, cpus: Option<Cpus>, memory: Option<u64>) -> Self {
        let usage = &found.usage;
        let micros = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let io = usage.io_bytes();
        Self([
            micros(usage.cpu),
            usage.periods,
            usage.throttled_periods,
            micros(usage.throttled),
            usage.memory_peak,
            usage.swap_peak,
            usage.memory.file,
            usage.memory.unwritten,
            usage.memory_high_events,
            usage.memory_max_events,
            usage.oom_kills,
            usage.processes_peak,
            usage.forks_refused,
            io.map(|io| io.read),
            io.map(|io| io.written),
            micros(usage.memory_pressure.some),
            micros(usage.io_pressure.some),
            cpus.map(Cpus::thousandths),
            found.cpus_limit.map(Cpus::thousandths),
            memory,
            found.memory_limit,
            Some(found.is_without_swap.into()),
        ])
    }

    fn get(&self, what: What) -> Option<u64> {
        self.0.get(what as usize).copied().flatten()
    }

    /// Combined with the figures of the directories that the job had on the node before. A figure that one of them lacks is unknown.
    fn after(&self, before: &Self) -> Self {
        let mut all = self.clone();
        for ((now, before), rule) in all.0.iter_mut().zip(before.0).zip(RULES) {
            *now = match (*now, before, rule) {
                (now, _, Rule::Now) => now,
                (Some(now), Some(before), Rule::Sum) => Some(now.saturating_add(before)),
                (Some(now), Some(before), Rule::Most) => Some(now.max(before)),
                (Some(now), Some(before), Rule::Least) => Some(now.min(before)),
                _ => None,
            };
        }
        all
    }

    fn line(&self) -> String {
        let mut line = String::new();
        for figure in self.0 {
            let _ = match figure {
                Some(figure) => write!(line, " {figure}"),
                None => write!(line, " -"),
            };
        }
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(' ')?.split(' ');
        let mut all = Self::default();
        for figure in &mut all.0 {
            let word = words.next()?;
            *figure = if word == "-" { None } else { Some(word.parse().ok()?) };
        }
        words.next().is_none().then_some(all)
    }

    /// The CPUs that the job could use there, in thousandths.
    fn most_cpus(&self) -> Option<u64> {
        self.get(What::Cpus).map(|cpus| cpus.min(self.get(What::CpusLimit).unwrap_or(cpus)))
    }

    /// The memory that the job could use there, in bytes.
    fn most_memory(&self) -> Option<u64> {
        self.get(What::MemoryLimit).or(self.get(What::Memory))
    }

    /// The peak in millionths of that; without a limit, by size.
    fn memory_rank(&self) -> (u128, u64) {
        let peak = self.get(What::MemoryPeak).unwrap_or(0);
        let share = self.most_memory().and_then(|most| (u128::from(peak) * 1_000_000).checked_div(most.into()));
        (share.unwrap_or(0), peak)
    }

    fn could_not_swap(&self) -> bool {
        self.get(What::SwapPeak).map_or(self.get(What::WithoutSwap) == Some(1), |peak| peak == 0)
    }
}

impl Handed {
    /// What a node hands over now, after having handed over `earlier`.
    pub fn next(earlier: Option<Self>, directory: u64, now: &NodeFigures) -> Self {
        let before = earlier.and_then(|earlier| match earlier.directory == directory {
            true => earlier.before,
            false => Some(earlier.all),
        });
        let all = before.as_ref().map_or_else(|| now.clone(), |before| now.after(before));
        Self { directory, before, all }
    }

    /// The text form.
    pub fn text(&self) -> String {
        let before = self.before.as_ref().map(NodeFigures::line).unwrap_or_default();
        format!("{MAGIC} {}\n{before}\n{}\n", self.directory, self.all.line())
    }

    /// `None`: not such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let (first, before, all) = (lines.next()?, lines.next()?, lines.next()?);
        let directory = first.strip_prefix(MAGIC)?.strip_prefix(' ')?.parse().ok()?;
        let before = if before.is_empty() { None } else { Some(NodeFigures::parse(before)?) };
        lines.next().is_none().then_some(Self { directory, before, all: NodeFigures::parse(all)? })
    }
}

/// The nodes of a job with several.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    /// The nodes whose figures are known, the card's own first.
    pub known: Vec<(String, NodeFigures)>,
    /// The nodes that handed over nothing.
    pub silent: Vec<String>,
    /// Whether part of the job may still run, so that figures of other nodes are incomplete.
    pub is_unfinished: bool,
}

impl Nodes {
    /// Whether these are the figures of the whole job.
    pub fn are_whole(&self) -> bool {
        self.silent.is_empty() && !self.is_unfinished
    }

    /// Whether all have the same memory: then one number is right for all.
    pub fn are_even(&self) -> bool {
        let mut all = self.known.iter().map(|(_, node)| (node.get(What::Memory), node.get(What::MemoryLimit)));
        let first = all.next();
        all.all(|node| Some(node) == first)
    }

    /// The node whose memory was nearest to its limit.
    pub fn fullest(&self) -> Option<&(String, NodeFigures)> {
        self.known.iter().max_by_key(|(_, node)| node.memory_rank())
    }

    /// The job's figures from all nodes: sums, and for memory and processes the worst node. `own` has the figures of the card's own node,
    /// some of which other nodes do not hand over.
    pub fn merged(&self, own: &JobForACard) -> (JobForACard, Option<Cpus>, Option<u64>) {
        let sum = |what| self.all(what, u64::saturating_add);
        let micros = |time: Option<u64>| time.map(Duration::from_micros);
        let share = |node: &&NodeFigures| {
            let (throttled, periods) = (node.get(What::ThrottledPeriods)?, node.get(What::Periods)?);
            (u128::from(throttled) * 1_000_000).checked_div(periods.into())
        };
        let nodes = || self.known.iter().map(|(_, node)| node);
        let throttled = |what| nodes().max_by_key(share)?.get(what);
        let fullest = |what| self.fullest()?.1.get(what);
        let could_not_swap = nodes().all(NodeFigures::could_not_swap);
        let mut found = own.clone();
        let usage = &mut found.usage;
        usage.cpu = micros(sum(What::Cpu));
        usage.periods = throttled(What::Periods);
        usage.throttled_periods = throttled(What::ThrottledPeriods);
        usage.throttled = micros(throttled(What::Throttled));
        // If one node does not know its figure, the worst is unknown.
        usage.memory_peak = self.all(What::MemoryPeak, u64::max).and(fullest(What::MemoryPeak));
        usage.swap_peak = self.some(What::SwapPeak, u64::max).filter(|swap| *swap > 0 || could_not_swap);
        usage.memory.file = fullest(What::File);
        usage.memory.unwritten = self.some(What::Unwritten, u64::saturating_add);
        usage.memory_high_events = self.some(What::HighEvents, u64::saturating_add);
        usage.memory_max_events = self.some(What::MaxEvents, u64::saturating_add);
        usage.oom_kills = self.some(What::OomKills, u64::saturating_add);
        usage.processes_peak = self.all(What::ProcessesPeak, u64::max);
        usage.forks_refused = self.some(What::ForksRefused, u64::saturating_add);
        usage.memory_pressure.some = micros(self.some(What::MemoryWait, u64::max));
        usage.io_pressure.some = micros(self.some(What::IoWait, u64::max));
        // Other nodes' disks may have the same numbers as this node's, whose limits are not theirs.
        usage.io = match (usage.io_bytes(), sum(What::Read), sum(What::Written), usage.io.take()) {
            (Some(own), Some(read), Some(written), Some(mut disks)) => {
                let (read, written) = (read.saturating_sub(own.read), written.saturating_sub(own.written));
                disks.push(DiskIo { read, written, ..DiskIo::default() });
                Some(disks)
            }
            _ => None,
        };
        // On a node without a quota, the job may use its CPUs.
        let limits = nodes().map(|node| node.get(What::CpusLimit).or(node.get(What::Cpus)));
        found.cpus_limit = limits.sum::<Option<u64>>().map(Cpus::from_thousandths);
        found.memory_limit = fullest(What::MemoryLimit);
        found.is_without_swap = could_not_swap;
        (found, sum(What::Cpus).map(Cpus::from_thousandths), fullest(What::Memory))
    }

    /// Combined over all nodes. `None`: one of them does not know it.
    fn all(&self, what: What, with: fn(u64, u64) -> u64) -> Option<u64> {
        let is_known = self.known.iter().all(|(_, node)| node.get(what).is_some());
        self.some(what, with).filter(|_| is_known)
    }

    /// Combined over the nodes that know it.
    fn some(&self, what: What, with: fn(u64, u64) -> u64) -> Option<u64> {
        self.known.iter().filter_map(|(_, node)| node.get(what)).reduce(with)
    }
}

impl NodeFigures {
    /// A node's figures on a card: CPU time in microseconds, CPUs in thousandths, and the peak and limit of memory in bytes.
    pub fn in_short(&self) -> (Option<u64>, Option<u64>, Option<u64>, Option<u64>) {
        (self.get(What::Cpu), self.most_cpus(), self.get(What::MemoryPeak), self.most_memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::usage::Usage;

    const GIB: u64 = 1 << 30;

    fn set(mut node: NodeFigures, what: What, figure: Option<u64>) -> NodeFigures {
        node.0[what as usize] = figure;
        node
    }

    fn node(cpu: u64, peak: u64) -> NodeFigures {
        let usage = Usage {
            cpu: Some(Duration::from_micros(cpu)),
            memory_peak: Some(peak),
            io: Some(vec![DiskIo { read: 10, written: 1, ..DiskIo::default() }]),
            ..Usage::default()
        };
        let found = JobForACard {
            usage,
            cpus_limit: None,
            memory_limit: Some(4 * GIB),
            is_without_swap: true,
            has_daemons: false,
        };
        NodeFigures::new(&found, Some(Cpus::whole(2)), Some(4 * GIB))
    }

    #[test]
    fn a_second_directory_adds_to_the_first() {
        let first = Handed::next(None, 7, &node(10, 3));
        let again = Handed::next(Some(first), 7, &node(25, 5));
        assert_eq!((again.all.get(What::Cpu), again.all.get(What::MemoryPeak)), (Some(25), Some(5)));
        let other = Handed::next(Some(again), 8, &node(100, 4));
        assert_eq!((other.all.get(What::Cpu), other.all.get(What::MemoryPeak)), (Some(125), Some(5)));
        let again = Handed::next(Handed::parse(&other.text()), 8, &node(101, 4));
        assert_eq!((again.all.get(What::Cpu), Handed::parse(&again.text())), (Some(126), Some(again.clone())));
    }

    #[test]
    fn what_is_no_such_text_is_nothing() {
        let text = Handed::next(None, 7, &node(10, 3)).text();
        assert!(Handed::parse(&text).is_some());
        let long = text.replace("10 ", "99999999999999999999999 ");
        for other in
            ["", "\n", "jobfence-node-2 7\nnone\n", &text[1..], &text[..text.len() - 3], &format!("{text}x\n"), &long]
        {
            assert_eq!(Handed::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn sums_and_the_worst_node() {
        let own = JobForACard { usage: Usage { io: Some(Vec::new()), ..Usage::default() }, ..JobForACard::default() };
        let known = vec![("n1".to_owned(), node(10, GIB)), ("n2".to_owned(), node(5, 3 * GIB))];
        let mut nodes = Nodes { known, ..Nodes::default() };
        let (found, cpus, memory) = nodes.merged(&own);
        assert_eq!(
            (found.usage.cpu, cpus, memory),
            (Some(Duration::from_micros(15)), Some(Cpus::whole(4)), Some(4 * GIB))
        );
        assert_eq!((found.usage.memory_peak, found.is_without_swap), (Some(3 * GIB), true));
        assert_eq!(found.usage.io_bytes().map(|io| (io.read, io.written)), Some((20, 2)));
        assert!(nodes.are_even() && nodes.are_whole());
        // One has a quota; for the other, the grant counts.
        let limited = set(node(1, 1), What::CpusLimit, Some(1000));
        let both = Nodes { known: vec![nodes.known[0].clone(), ("n9".to_owned(), limited)], ..Nodes::default() };
        assert_eq!(both.merged(&own).0.cpus_limit, Some(Cpus::whole(3)));
        // One node that may have used swap suffices, and one that does not know.
        nodes.known.push(("n3".to_owned(), set(set(node(1, 1), What::Cpu, None), What::WithoutSwap, Some(0))));
        let (found, ..) = nodes.merged(&own);
        assert_eq!((found.usage.cpu, found.usage.swap_peak, found.is_without_swap), (None, None, false));
        nodes.known.push(("n4".to_owned(), set(node(1, GIB), What::MemoryLimit, Some(GIB))));
        assert!(!nodes.are_even());
        assert_eq!(nodes.fullest().map(|(name, _)| name.as_str()), Some("n4"));
    }
}
