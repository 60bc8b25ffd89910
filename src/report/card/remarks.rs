// SPDX-License-Identifier: GPL-2.0-or-later
//! The remarks of a card: what kept the job back, what it used beside its rows, and what is not known of it.

use super::figures::{Figures, MATTERS, REACHED, percent};
use super::words::{cut, decimal, printable, several, shown};
use crate::bytes::binary;
use crate::report::account::Exit;
use crate::report::nodes::NodeFigures;

impl Figures<'_> {
    pub(super) fn remarks(&self) -> Vec<String> {
        let usage = self.usage;
        let mut all: Vec<String> = self.sentences.iter().map(|sentence| printable(sentence)).collect();
        if all.is_empty() {
            // Otherwise the title says how many.
            let kills = self.killed().filter(|kills| *kills > 1 && self.was_killed());
            all.extend(kills.map(|kills| format!("The kernel killed {kills} processes for lack of memory.")));
            all.extend(usage.forks_refused.filter(|refused| *refused > 0).map(|refused| {
                let most = self.processes.map(|most| format!(" of {most} at once")).unwrap_or_default();
                let refused = several(refused, "process or thread", "processes or threads");
                format!("{refused} could not start because of the limit{most}.")
            }));
        }
        if self.exit == Some(Exit::Signal(libc::SIGTERM)) && self.ended_at_its_time_limit().is_none() {
            all.extend(self.words.signal_15.map(str::to_owned));
        }
        if let Some(share) = self.throttled() {
            let held = format!("The CPU quota held the job back in {share} % of its periods.");
            all.push(match self.kept_from_it() {
                Some((most, granted)) => format!(
                    "{held} This site lets it use {} of the {granted} that it was granted: start fewer threads.",
                    most.in_words()
                ),
                None => held + " Start fewer threads, or ask for more CPUs.",
            });
        }
        all.extend(self.noted_remarks().map(printable));
        for (what, share) in self.waits() {
            all.push(format!("Its processes waited for {what} in {share} % of the time."));
        }
        all.extend(usage.swap_peak.filter(|swap| *swap > 0).map(|swap| format!("Up to {} was in swap.", binary(swap))));
        let was_full = usage.memory_max_events.is_some_and(|count| count > 0)
            && self.memory_share().is_some_and(|share| share >= REACHED);
        if was_full && self.killed().is_none() {
            all.push("The memory limit was reached, and the kernel made room.".to_owned());
        }
        if let (Some(cache), Some(peak)) = (usage.memory_file, usage.memory_peak)
            && percent(cache.into(), peak.into()).is_some_and(|share| share >= MATTERS)
        {
            all.push(format!("At the end, {} was page cache, which the kernel takes back.", binary(cache)));
        }
        all.extend(usage.memory_unwritten.filter(|bytes| *bytes > 0).map(|bytes| {
            format!(
                "At the end, {} was yet to be written: no disk had it, and it is not counted as written.",
                binary(bytes)
            )
        }));
        all.extend(
            self.busiest().map(|(share, words)| format!("{words}; {} of that was used on average.", shown(share))),
        );
        all.extend(self.node_by_node());
        let unknown = self.unknown();
        if !unknown.is_empty() {
            all.push(format!("Not known here: {}.", unknown.join("; ")));
        }
        all
    }

    /// What is not known of this job. What no job's card of the site can say has no row, and no remark either.
    fn unknown(&self) -> Vec<String> {
        let mut all = Vec::new();
        match (self.others, self.nodes) {
            (Some(nodes), _) => {
                all.extend(silent(&nodes.silent));
                if nodes.is_unfinished {
                    all.push("the use of steps that may still run on other nodes".to_owned());
                }
            }
            (None, None | Some(0 | 1)) => {}
            (None, Some(nodes)) => {
                all.push(format!("the use of the {}", several((nodes - 1).into(), "other node", "other nodes")))
            }
        }
        all
    }

    /// Each node separately, if there are few.
    fn node_by_node(&self) -> Vec<String> {
        const MOST: usize = 16;
        let known = self.others.map_or(&[][..], |nodes| &nodes.known);
        if !(2..=MOST).contains(&known.len()) {
            return Vec::new();
        }
        let wall = self.wall.map_or(0, |wall| wall.as_micros());
        let of_node = |(name, node): &(String, NodeFigures)| {
            let (cpu, cpus, peak, most) = node.in_short();
            let busy = cpu.and_then(|cpu| (cpu.as_micros() * 1000).checked_div(wall));
            let busy = busy.and_then(|busy| u64::try_from(busy).ok()).map(decimal);
            let cpus = cpus.map_or_else(String::new, |cpus| format!(" of {}", cpus.in_words()));
            let most = most.map_or_else(String::new, |most| format!(" of {}", binary(most)));
            let parts =
                [busy.map(|busy| format!("{busy}{cpus}")), peak.map(|peak| format!("memory {}{most}", binary(peak)))];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            format!("{}: {}", cut(&printable(name), 24), parts.join(", "))
        };
        known.iter().map(of_node).collect()
    }
}

/// Names a few of the nodes that handed over nothing.
fn silent(nodes: &[String]) -> Option<String> {
    const MOST: usize = 8;
    let names: Vec<String> = nodes.iter().take(MOST).map(|node| cut(&printable(node), 24)).collect();
    let more = nodes.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("the use of {}{more}", names.join(", ")))
}
