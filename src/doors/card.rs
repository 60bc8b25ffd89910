// SPDX-License-Identifier: GPL-2.0-or-later
//! The card of a job whose fences another program opened: what the fences counted, and what only the caller knows about the job's end.

use std::time::Duration;

use crate::config::{Loaded, UsageCard};
use crate::doors::life;
use crate::doors::opening::Granted;
use crate::doors::recorded::{WantedFences, records};
use crate::error::Result;
use crate::facts::Facts;
use crate::fence::JobForACard;
use crate::host::Host;
use crate::launch::begin;
use crate::record::holder::Holder;
use crate::report::account::{Exit, since_boot};
use crate::report::card::{self, Figures, NEUTRAL, Words};
use crate::schedulers::words_of;

/// What the caller knows about the end of a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct JobEnd {
    /// How it ended. `None`: not known.
    pub exit: Option<Exit>,
    /// How long it ran. `None`: since its first fence was made.
    pub wall: Option<Duration>,
    /// Its time limit. `None`: not known.
    pub time_limit: Option<Duration>,
    /// The number of its nodes. `None`: not known.
    pub nodes: Option<u32>,
    /// The number of its tasks on this node. `None`: not known.
    pub tasks: Option<u32>,
    /// Whether it is one of many similar jobs.
    pub is_array_task: bool,
    /// Whether its user can read more than ASCII.
    pub is_utf8: bool,
    /// The words for requests on the card. `None`: those of the scheduler that holds its fences.
    pub words: Option<&'static Words>,
}

/// The exact run time: schedulers count whole seconds, so if the fences lived about as long, their life is the better figure.
fn to_the_fraction(said: Option<Duration>, lived: Option<Duration>) -> Option<Duration> {
    let is_same = |lived: &Duration| said.is_none_or(|said| said.abs_diff(*lived) < Duration::from_secs(2));
    lived.filter(is_same).or(said)
}

/// The lines of the card; none if this job gets no card. `None`: it has no fence.
pub fn card(loaded: &Loaded, which: &WantedFences, granted: &Granted, end: &JobEnd) -> Result<Option<Vec<String>>> {
    let records = records(&loaded.config, which)?;
    let Some(first) = records.first() else { return Ok(None) };
    let facts = life::here(Facts { uid: first.uid().into(), ..granted.facts.clone() });
    let resolved = begin::resolve(loaded, &facts)?;
    let config = &resolved.config;
    let wanted = granted.requests.usage_card().unwrap_or(config.usage_card);
    if wanted == UsageCard::Never {
        return Ok(Some(Vec::new()));
    }
    let host = Host::read(config)?;
    let fence = life::resumed(&host, config, first)?;
    // The job's directory counts all of its steps.
    let JobForACard { mut usage, cpus_limit, memory_limit, is_without_swap, has_daemons } =
        fence.job_for_a_card(&host.proc);
    let (mut kills, mut refusals) = (fence.oom_kills(), fence.forks_refused());
    for record in records.iter().skip(1) {
        let other = life::resumed(&host, config, record)?;
        kills += other.oom_kills();
        // Each fence may count the whole job's refusals.
        refusals = refusals.max(other.forks_refused());
    }
    usage.oom_kills = usage.oom_kills.or(Some(kills));
    usage.forks_refused = Some(refusals);
    let words = match (end.words, first.shared.as_ref().map(|shared| &shared.holder)) {
        (Some(words), _) => words,
        (None, Some(Holder::Scheduler { name })) => words_of(name),
        (None, _) => &NEUTRAL,
    };
    let started = records.iter().filter_map(|record| since_boot(record.shared.as_ref()?.opener.start)).min();
    let figures = Figures {
        job: which.job.as_str(),
        name: granted.facts.job_name.said().map(String::as_str),
        node: facts.node.known().map(String::as_str),
        is_array_task: end.is_array_task,
        exit: end.exit,
        wall: to_the_fraction(end.wall, started.and_then(|started| started.elapsed().ok())),
        time_limit: end.time_limit,
        cpus: granted.cpus,
        cpus_limit,
        memory: granted.memory,
        memory_limit,
        is_without_swap,
        processes: fence.processes(),
        has_daemons,
        // Only the process that limited the disks knows the limits.
        disks: &[],
        usage: &usage,
        tasks: end.tasks,
        nodes: end.nodes,
        others: None,
        // The caller has shown them.
        sentences: &[],
        noted: &fence.noted_for_a_card(config),
        is_utf8: end.is_utf8,
        words,
    };
    Ok(Some(card::lines(wanted, config.usage_card_text.as_deref(), &figures)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_counts_seconds_cuts_no_job_short() {
        let millis = |millis: Option<u64>| millis.map(Duration::from_millis);
        for (said, lived, wall) in [
            (Some(1000), Some(1900), Some(1900)),
            (Some(2000), Some(1100), Some(1100)),
            // The fence was made long before, or goes on.
            (Some(60_000), Some(62_000), Some(60_000)),
            (Some(1000), None, Some(1000)),
            (None, Some(1900), Some(1900)),
            (None, None, None),
        ] {
            assert_eq!(to_the_fraction(millis(said), millis(lived)), millis(wall), "{said:?} {lived:?}");
        }
    }
}
