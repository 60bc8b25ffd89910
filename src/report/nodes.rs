// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job used on each of its nodes: the text that a node hands over, and the figures that a card derives from all nodes.
//!
//! The job's user can write where the text is. So it is used only for that user's own card.

use std::fmt::Write;
use std::time::Duration;

use crate::fence::JobForACard;
use crate::figures::{FIGURES, Usage};
use crate::job::Cpus;

/// How the text begins. Another release's has another number.
pub const MAGIC: &str = "jobfence-node-2";

/// The figures of a job on one node. In a text there are those of the usage that cards have, in their order, and then the others, CPUs in
/// thousandths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// What the job has used, and its limits.
    found: JobForACard,
    /// The CPUs that it was granted.
    cpus: Option<Cpus>,
    /// The memory that it was granted, in bytes.
    memory: Option<u64>,
}

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
    /// The figures of a job's directory and its grant there.
    pub fn new(found: &JobForACard, cpus: Option<Cpus>, memory: Option<u64>) -> Self {
        Self { found: JobForACard { usage: found.usage.without_disks(), ..*found }, cpus, memory }
    }

    /// Combined with the figures of the directories that the job had on the node before. A figure that one of them lacks is unknown.
    fn after(&self, before: &Self) -> Self {
        let usage = self.found.usage.after(&before.found.usage);
        let is_without_swap = self.found.is_without_swap && before.found.is_without_swap;
        Self { found: JobForACard { usage, is_without_swap, ..self.found }, ..*self }
    }

    fn line(&self) -> String {
        let found = &self.found;
        let on_cards = FIGURES.iter().zip(found.usage.numbers()).filter(|(figure, _)| figure.is_on_cards);
        let others = [
            self.cpus.map(Cpus::thousandths),
            found.cpus_limit.map(Cpus::thousandths),
            self.memory,
            found.memory_limit,
            Some(found.is_without_swap.into()),
        ];
        let mut line = String::new();
        for number in on_cards.map(|(_, number)| number).chain(others) {
            let _ = match number {
                Some(number) => write!(line, " {number}"),
                None => write!(line, " -"),
            };
        }
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(' ')?.split(' ');
        let mut next = || match words.next()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        };
        let mut numbers = Usage::default().numbers();
        for (number, _) in numbers.iter_mut().zip(&FIGURES).filter(|(_, figure)| figure.is_on_cards) {
            *number = next()?;
        }
        let [cpus, cpus_limit, memory, memory_limit, is_without_swap] = [next()?, next()?, next()?, next()?, next()?];
        let found = JobForACard {
            usage: Usage::from_numbers(numbers),
            cpus_limit: cpus_limit.map(Cpus::from_thousandths),
            memory_limit,
            is_without_swap: is_without_swap == Some(1),
            has_daemons: false,
        };
        let all = Self { found, cpus: cpus.map(Cpus::from_thousandths), memory };
        words.next().is_none().then_some(all)
    }

    /// The CPUs that the job could use there.
    fn most_cpus(&self) -> Option<Cpus> {
        self.cpus.map(|cpus| cpus.min(self.found.cpus_limit.unwrap_or(cpus)))
    }

    /// The memory that the job could use there, in bytes.
    fn most_memory(&self) -> Option<u64> {
        self.found.memory_limit.or(self.memory)
    }

    /// The peak in millionths of that; without a limit, by size.
    fn memory_rank(&self) -> (u128, u64) {
        let peak = self.found.usage.memory_peak.unwrap_or(0);
        let share = self.most_memory().and_then(|most| (u128::from(peak) * 1_000_000).checked_div(most.into()));
        (share.unwrap_or(0), peak)
    }

    fn could_not_swap(&self) -> bool {
        self.found.usage.swap_peak.map_or(self.found.is_without_swap, |peak| peak == 0)
    }

    /// A node's figures on a card: CPU time, CPUs, and the peak and limit of memory in bytes.
    pub fn in_short(&self) -> (Option<Duration>, Option<Cpus>, Option<u64>, Option<u64>) {
        let usage = &self.found.usage;
        (usage.cpu, self.most_cpus(), usage.memory_peak, self.most_memory())
    }
}

impl Handed {
    /// What a node hands over now, after having handed over `earlier`.
    pub fn next(earlier: Option<Self>, directory: u64, now: NodeFigures) -> Self {
        let before = earlier.and_then(|earlier| match earlier.directory == directory {
            true => earlier.before,
            false => Some(earlier.all),
        });
        let all = match &before {
            Some(before) => now.after(before),
            None => now,
        };
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
        let mut all = self.known.iter().map(|(_, node)| (node.memory, node.found.memory_limit));
        let first = all.next();
        all.all(|node| Some(node) == first)
    }

    /// The node whose memory was nearest to its limit.
    pub fn fullest(&self) -> Option<&(String, NodeFigures)> {
        self.known.iter().max_by_key(|(_, node)| node.memory_rank())
    }

    /// The job's figures from all nodes: sums, and for memory and processes the worst node. `own` has the figures of the card's own node.
    /// Other nodes do not hand over some of these.
    pub fn merged(&self, own: &JobForACard) -> (JobForACard, Option<Cpus>, Option<u64>) {
        let nodes = || self.known.iter().map(|(_, node)| node);
        let usages = || nodes().map(|node| &node.found.usage);
        let none = NodeFigures::default();
        let fullest = self.fullest().map_or(&none, |(_, node)| node);
        let could_not_swap = nodes().all(NodeFigures::could_not_swap);
        let share = |usage: &&Usage| {
            let (throttled, periods) = (usage.throttled_periods?, usage.periods?);
            (u128::from(throttled) * 1_000_000).checked_div(periods.into())
        };
        let throttled = usages().max_by_key(share).unwrap_or(&none.found.usage);
        // What only some nodes know counts, but for these figures.
        let mut usage = Usage::sum(&mut usages(), Usage::with);
        let all = Usage::sum(&mut usages(), Usage::after);
        (usage.cpu, usage.processes_peak) = (all.cpu, all.processes_peak);
        (usage.periods, usage.throttled_periods) = (throttled.periods, throttled.throttled_periods);
        usage.throttled = throttled.throttled;
        // If one node does not know its figure, the worst is unknown.
        usage.memory_peak = all.memory_peak.and(fullest.found.usage.memory_peak);
        usage.swap_peak = usage.swap_peak.filter(|swap| *swap > 0 || could_not_swap);
        usage.memory_file = fullest.found.usage.memory_file;
        usage.memory_unwritten = usages().filter_map(|node| node.memory_unwritten).reduce(u64::saturating_add);
        usage.memory_pressure_some = usages().filter_map(|node| node.memory_pressure_some).max();
        usage.io_pressure_some = usages().filter_map(|node| node.io_pressure_some).max();
        // Other nodes' disks may have the same numbers as this node's, whose limits are not theirs.
        usage.disks = own.usage.disks.clone().filter(|_| all.read.is_some() && all.written.is_some());
        (usage.read, usage.written) = usage.disks.as_ref().map_or((None, None), |_| (all.read, all.written));
        // On a node without a quota, the job may use its CPUs.
        let cpus = |all: &mut dyn Iterator<Item = Option<Cpus>>| {
            // Users can write what nodes have handed on.
            let add = |sum: u64, cpus: Option<u64>| Some(sum.saturating_add(cpus?));
            all.map(|cpus| cpus.map(Cpus::thousandths)).try_fold(0, add).map(Cpus::from_thousandths)
        };
        let found = JobForACard {
            usage,
            cpus_limit: cpus(&mut nodes().map(|node| node.found.cpus_limit.or(node.cpus))),
            memory_limit: fullest.found.memory_limit,
            is_without_swap: could_not_swap,
            has_daemons: own.has_daemons,
        };
        (found, cpus(&mut nodes().map(|node| node.cpus)), fullest.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::DiskIo;

    const GIB: u64 = 1 << 30;

    fn node(cpu: u64, peak: u64) -> NodeFigures {
        let usage = Usage {
            cpu: Some(Duration::from_micros(cpu)),
            memory_peak: Some(peak),
            ..Usage::from_disks(vec![DiskIo { read: 10, written: 1, ..DiskIo::default() }])
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
        let micros = Duration::from_micros;
        let cpu_and_peak = |handed: &Handed| {
            let (cpu, _, peak, _) = handed.all.in_short();
            (cpu, peak)
        };
        let first = Handed::next(None, 7, node(10, 3));
        let again = Handed::next(Some(first), 7, node(25, 5));
        assert_eq!(cpu_and_peak(&again), (Some(micros(25)), Some(5)));
        let other = Handed::next(Some(again), 8, node(100, 4));
        assert_eq!(cpu_and_peak(&other), (Some(micros(125)), Some(5)));
        let again = Handed::next(Handed::parse(&other.text()), 8, node(101, 4));
        assert_eq!(cpu_and_peak(&again), (Some(micros(126)), Some(5)));
        assert_eq!(Handed::parse(&again.text()).unwrap().text(), again.text());
    }

    #[test]
    fn a_text_is_that_of_other_releases() {
        let text = Handed::next(None, 7, node(10, 3)).text();
        assert_eq!(text, "jobfence-node-2 7\n\n 10 - - - 3 - - - - - - - - 10 1 - - 2000 - 4294967296 4294967296 1\n");
    }

    #[test]
    fn what_is_no_such_text_is_nothing() {
        let text = Handed::next(None, 7, node(10, 3)).text();
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
        let own = JobForACard { usage: Usage::from_disks(Vec::new()), ..JobForACard::default() };
        let known = vec![("n1".to_owned(), node(10, GIB)), ("n2".to_owned(), node(5, 3 * GIB))];
        let mut nodes = Nodes { known, ..Nodes::default() };
        let (found, cpus, memory) = nodes.merged(&own);
        assert_eq!(
            (found.usage.cpu, cpus, memory),
            (Some(Duration::from_micros(15)), Some(Cpus::whole(4)), Some(4 * GIB))
        );
        assert_eq!((found.usage.memory_peak, found.is_without_swap), (Some(3 * GIB), true));
        assert_eq!((found.usage.read, found.usage.written), (Some(20), Some(2)));
        assert!(nodes.are_even() && nodes.are_whole());
        // One node has a quota. On the other, which has none, the grant counts.
        let mut limited = node(1, 1);
        limited.found.cpus_limit = Some(Cpus::whole(1));
        let both = Nodes { known: vec![nodes.known[0].clone(), ("n9".to_owned(), limited)], ..Nodes::default() };
        assert_eq!(both.merged(&own).0.cpus_limit, Some(Cpus::whole(3)));
        // If one node may have used swap, or does not know, the whole job may have.
        let mut other = node(1, 1);
        (other.found.usage.cpu, other.found.is_without_swap) = (None, false);
        nodes.known.push(("n3".to_owned(), other));
        let (found, ..) = nodes.merged(&own);
        assert_eq!((found.usage.cpu, found.usage.swap_peak, found.is_without_swap), (None, None, false));
        let mut full = node(1, GIB);
        full.found.memory_limit = Some(GIB);
        nodes.known.push(("n4".to_owned(), full));
        assert!(!nodes.are_even());
        assert_eq!(nodes.fullest().map(|(name, _)| name.as_str()), Some("n4"));
    }
}
