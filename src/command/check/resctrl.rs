// SPDX-License-Identifier: GPL-2.0-or-later
//! Says what shares of cache and memory bandwidth would be here. A job that cannot be bounded so runs all the same: nothing is a fault.

use std::collections::BTreeSet;

use jobfence::config::Candidate;
use jobfence::sys::dir::Dir;

use super::rows::Rows;
use crate::resctrl::{NodeResctrl, WantedShares};

const ROW: &str = "resctrl";

/// Says it for each combination of sections, each sentence once.
pub fn say(rows: &mut Rows, proc: &Dir, candidates: &[Candidate], is_counted: bool) {
    let wanted: BTreeSet<WantedShares> =
        candidates.iter().map(|candidate| WantedShares::from_config(&candidate.config)).collect();
    if wanted.iter().all(|wanted| wanted.is_none()) {
        return;
    }
    say_of(rows, NodeResctrl::read(proc), &wanted, is_counted);
}

fn say_of(rows: &mut Rows, node: Result<NodeResctrl, String>, wanted: &BTreeSet<WantedShares>, is_counted: bool) {
    let node = match node {
        Ok(node) => node,
        Err(why) => {
            rows.remark(
                ROW,
                format!("CacheShare and MemoryBandwidthPercent bound nothing, and jobs run all the same: {why}"),
            );
            return;
        }
    };
    rows.fact(ROW, node.in_words());
    match node.counted() {
        _ if !is_counted => {}
        Ok(counters) => rows.fact(ROW, format!("{counters} of each job with a group are counted (SampleInterval)")),
        Err(why) => rows.fact(ROW, format!("what jobs use of caches is not counted: {why}")),
    }
    let all: BTreeSet<_> = wanted.iter().flat_map(|wanted| node.shares(*wanted)).collect();
    for (setting, share) in all {
        match share {
            Ok(share) => rows.fact(ROW, format!("{setting}: a job may use {share} (by jobfence.service)")),
            Err(why) => rows.remark(ROW, format!("{setting} bounds nothing, and jobs run all the same: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use jobfence::config::Percent;

    use super::*;
    use crate::check::rows::Form;

    #[test]
    fn what_bounds_nothing_is_a_remark() {
        let wanted = WantedShares { cache: Some(Percent::from_hundredths(2500)), bandwidth: None };
        let text = |node| {
            let mut rows = Rows::new(Form::Text);
            say_of(&mut rows, node, &[wanted].into(), true);
            (rows.text(false), rows.json().to_string())
        };
        let (said, json) = text(Err("resctrl is not mounted".to_owned()));
        assert!(said.contains("bound nothing") && said.contains("not mounted") && json.contains("remark"), "{said}");
        let (said, json) = text(Ok(NodeResctrl::default()));
        assert!(said.contains("CacheShare=25% bounds nothing") && !json.contains("fault"), "{said}");
        assert!(said.contains("is not counted: the CPU counts none of it"), "{said}");
    }
}
