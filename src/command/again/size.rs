// SPDX-License-Identifier: GPL-2.0-or-later
//! How much memory the next run of a job asks for. It asks nobody: all that it knows is given.

use std::fmt;

use jobfence::bytes::mebibytes;
use jobfence::config::RunAgain;

/// What the amount is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUnit {
    Node,
    Cpu,
    /// All of a job that has one host.
    Host,
}

/// What a job has asked for, or is to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedMemory {
    pub unit: MemoryUnit,
    /// In MiB.
    pub mib: u64,
}

/// What a job can have at most, in MiB. `None`: as much as it asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryBounds {
    /// The most memory on each node that its partition or queue allows.
    pub per_node: Option<u64>,
    /// The most memory for each CPU that its partition or queue allows.
    pub per_cpu: Option<u64>,
    /// The memory of the job's smallest node.
    pub node: Option<u64>,
    /// How many CPUs it had on the node where it had the most.
    pub cpus: u64,
    /// How many CPUs it had on the node where it had the fewest.
    pub fewest_cpus: u64,
}

/// What the next run of a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRun {
    /// What it had before.
    Same,
    /// More.
    More(AskedMemory),
}

impl fmt::Display for NextRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the same as before"),
            Self::More(asked) => asked.fmt(f),
        }
    }
}

impl fmt::Display for AskedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.unit {
            MemoryUnit::Node => "on each node",
            MemoryUnit::Cpu => "for each CPU",
            MemoryUnit::Host => "on its host",
        };
        write!(f, "{} {of}", mebibytes(self.mib.saturating_mul(1 << 20)))
    }
}

impl MemoryBounds {
    /// The most of such a unit.
    fn most(&self, unit: MemoryUnit) -> Option<u64> {
        let (cpus, fewest) = (self.cpus.max(1), self.fewest_cpus.max(1));
        let each = match unit {
            MemoryUnit::Node | MemoryUnit::Host => {
                [self.per_node, self.per_cpu.map(|mib| mib.saturating_mul(fewest)), self.node]
            }
            MemoryUnit::Cpu => [self.per_node.map(|mib| mib / cpus), self.per_cpu, self.node.map(|mib| mib / cpus)],
        };
        each.into_iter().flatten().min()
    }
}

/// What the next run asks for. `had`: the limit at which the run was killed, in MiB of the same unit; more than it asked for, if it was lent
/// memory. The error says why it asks for nothing.
pub fn next(
    again: RunAgain,
    restarts: u32,
    asked: AskedMemory,
    had: u64,
    bounds: &MemoryBounds,
) -> Result<AskedMemory, String> {
    if restarts >= again.most {
        return Err(format!("it was restarted {restarts} times already, and OnOutOfMemory={again} allows no more"));
    }
    if asked.mib == 0 {
        return Err("it has asked for all memory of its nodes".to_owned());
    }
    // A share of a very small amount can round down to that amount. So the next run asks for at least 1 MiB more.
    let more = |mib: u64| again.share.of(mib).max(mib.saturating_add(1));
    // What was lent was too little. With no more than that, the next run would be killed where this one was, unless it is lent some in time.
    // A job that may borrow many times what it asked for does not reserve all that: it asks for one step more.
    let once = more(asked.mib);
    let wanted = if once > had { once } else { more(had).min(more(once)) };
    let mib = bounds.most(asked.unit).map_or(wanted, |most| wanted.min(most));
    if mib <= asked.mib {
        let whose = match asked.unit {
            MemoryUnit::Node | MemoryUnit::Cpu => "its partition nor its nodes have",
            MemoryUnit::Host => "its queue nor its host has",
        };
        return Err(format!("neither {whose} more than the {asked} that it has asked for"));
    }
    Ok(AskedMemory { mib, ..asked })
}

#[cfg(test)]
mod tests {
    use jobfence::config::Percent;
    use proptest::prelude::*;

    use super::*;
    use MemoryUnit::{Cpu, Host, Node};

    const AGAIN: RunAgain = RunAgain { share: Percent::from_hundredths(15_000), most: 2 };
    const FREE: MemoryBounds = MemoryBounds { per_node: None, per_cpu: None, node: None, cpus: 4, fewest_cpus: 4 };

    fn of(unit: MemoryUnit, mib: u64, restarts: u32, bounds: MemoryBounds) -> Option<u64> {
        next(AGAIN, restarts, AskedMemory { unit, mib }, mib, &bounds).ok().map(|asked| {
            assert_eq!(asked.unit, unit);
            asked.mib
        })
    }

    #[test]
    fn the_next_run_asks_for_the_share_and_never_for_more_than_there_is() {
        for (unit, mib, bounds, expected) in [
            (Node, 100, FREE, Some(150)),
            (Cpu, 100, FREE, Some(150)),
            (Node, 1, FREE, Some(2)),
            (Node, 100, MemoryBounds { per_node: Some(120), ..FREE }, Some(120)),
            (Node, 100, MemoryBounds { node: Some(120), ..FREE }, Some(120)),
            (Node, 100, MemoryBounds { node: Some(130), per_node: Some(120), ..FREE }, Some(120)),
            (Node, 100, MemoryBounds { per_cpu: Some(30), ..FREE }, Some(120)),
            (Cpu, 100, MemoryBounds { per_node: Some(500), ..FREE }, Some(125)),
            (Cpu, 100, MemoryBounds { node: Some(500), ..FREE }, Some(125)),
            (Cpu, 100, MemoryBounds { per_cpu: Some(110), ..FREE }, Some(110)),
            // With as much memory as before, the kernel would kill the job again.
            (Node, 100, MemoryBounds { per_node: Some(100), ..FREE }, None),
            (Node, 100, MemoryBounds { node: Some(99), ..FREE }, None),
            (Cpu, 100, MemoryBounds { node: Some(403), ..FREE }, None),
            // The job had all the memory of its nodes.
            (Node, 0, FREE, None),
            // Its nodes have unlike numbers of CPUs.
            (Node, 100, MemoryBounds { per_cpu: Some(55), fewest_cpus: 2, ..FREE }, Some(110)),
            (Cpu, 100, MemoryBounds { node: Some(500), fewest_cpus: 1, ..FREE }, Some(125)),
            // A node whose CPUs are not known counts as having one.
            (Cpu, 100, MemoryBounds { node: Some(120), cpus: 0, fewest_cpus: 0, ..FREE }, Some(120)),
            (Node, u64::MAX, FREE, None),
        ] {
            assert_eq!(of(unit, mib, 0, bounds), expected, "{unit:?} {mib} {bounds:?}");
        }
    }

    #[test]
    fn the_next_run_asks_for_more_than_this_one_was_lent_a_little() {
        let after = |had, bounds| next(AGAIN, 0, AskedMemory { unit: Node, mib: 100 }, had, &bounds).unwrap().mib;
        assert_eq!([100, 149, 150].map(|had| after(had, FREE)), [150, 150, 225]);
        assert_eq!([200, 1000].map(|had| after(had, FREE)), [225; 2], "it may borrow again");
        assert_eq!(after(150, MemoryBounds { per_node: Some(120), ..FREE }), 120, "it is then lent less");
    }

    #[test]
    fn a_job_is_restarted_no_more_often_than_the_site_allows() {
        assert_eq!([0, 1, 2, 3].map(|restarts| of(Node, 100, restarts, FREE)), [Some(150), Some(150), None, None]);
    }

    #[test]
    fn a_reason_is_one_that_a_user_understands() {
        let why =
            |restarts, mib, bounds| next(AGAIN, restarts, AskedMemory { unit: Node, mib }, mib, &bounds).unwrap_err();
        assert_eq!(
            why(2, 100, FREE),
            "it was restarted 2 times already, and OnOutOfMemory=requeue:150%,2 allows no more"
        );
        assert_eq!(
            next(AGAIN, 0, AskedMemory { unit: Host, mib: 100 }, 100, &MemoryBounds { node: Some(100), ..FREE })
                .unwrap_err(),
            "neither its queue nor its host has more than the 100.0 MiB on its host that it has asked for"
        );
        assert_eq!(
            why(0, 100, MemoryBounds { node: Some(100), ..FREE }),
            "neither its partition nor its nodes have more than the 100.0 MiB on each node that it has asked for"
        );
        assert_eq!(why(0, 0, FREE), "it has asked for all memory of its nodes");
    }

    proptest! {
        #[test]
        fn it_is_always_more_and_never_too_much(
            (share, most, restarts) in (10_100_u32..=100_000, 1_u32..=9, 0_u32..20),
            (mib, lent, cpus) in (any::<u64>(), any::<u32>(), 0_u64..1000),
            (per_node, per_cpu, node) in (any::<Option<u32>>(), any::<Option<u32>>(), any::<Option<u32>>()),
            is_per_cpu in any::<bool>(),
        ) {
            let again = RunAgain { share: Percent::from_hundredths(share), most };
            let unit = if is_per_cpu { Cpu } else { Node };
            let wide = |mib: Option<u32>| mib.map(u64::from);
            let bounds = MemoryBounds { per_node: wide(per_node), per_cpu: wide(per_cpu), node: wide(node), cpus, fewest_cpus: cpus };
            let had = mib.saturating_add(lent.into());
            if let Ok(asked) = next(again, restarts, AskedMemory { unit, mib }, had, &bounds) {
                let cpus = u128::from(cpus.max(1));
                let (on_node, for_cpu) = match unit {
                    Node | Host => (u128::from(asked.mib), u128::from(asked.mib).div_ceil(cpus)),
                    Cpu => (u128::from(asked.mib) * cpus, u128::from(asked.mib)),
                };
                prop_assert!(asked.mib > mib && restarts < most);
                prop_assert!(asked.mib <= again.share.of(had).max(had.saturating_add(1)));
                prop_assert!(wide(per_node).is_none_or(|most| on_node <= u128::from(most)));
                prop_assert!(wide(node).is_none_or(|most| on_node <= u128::from(most)));
                prop_assert!(wide(per_cpu).is_none_or(|most| for_cpu <= u128::from(most)));
            }
        }
    }
}
