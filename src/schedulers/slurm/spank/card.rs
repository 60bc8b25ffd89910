// SPDX-License-Identifier: GPL-2.0-or-later
//! In the step daemon of a batch script: the figures of the card at the end of the job's output.
//!
//! - The usage comes from the job's directory, which counts all steps of the job on this node.
//! - slurmd itself writes `SLURM_JOB_NUM_NODES` and `SLURM_TASKS_PER_NODE` into the environment of a batch script
//!   (`env_array_for_batch_job` in src/common/env.c of 22.05, 24.11 and 26.05). The other variables are the user's. All of them decide
//!   only the words of the user's own card.
//! - No item of spank_get_item(3) has the time limit. Since 23.02 the credential has the job's times, and Slurm writes them to
//!   `SLURM_JOB_START_TIME` and `SLURM_JOB_END_TIME` over whatever the user set; but only in the task's own process, before its exec
//!   (`exec_task` in src/slurmd/slurmstepd/task.c of 23.02, 24.11 and 26.05). So that process tells the step daemon. A limit that is
//!   changed while the job runs is not seen. 22.05 writes neither.

use std::ffi::{CStr, CString};
use std::time::{Duration, SystemTime};

use crate::cgroup::io::DiskLimit;
use crate::config::{Config, Limit, Mode, UsageCard};
use crate::fence::{Fence, JobForACard};
use crate::host::Host;
use crate::job::Grant;
use crate::launch::Reported;
use crate::log;
use crate::policy::Plan;
use crate::report::account::Exit;
use crate::report::card::{self, Figures};
use crate::schedulers::slurm::card::{WORDS, WORDS_PER_CPU, WORDS_PER_GPU};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::grant::StepKind;
use crate::schedulers::slurm::spank::hand_over::HandOver;
use crate::sys::shared::SharedNumber;

/// Which card a step writes, and what the card needs from the step's beginning.
pub struct CardOrder {
    when: UsageCard,
    grant: Grant,
    /// The job's other nodes, if it has any.
    others: Option<HandOver>,
    /// The time limit in seconds, set by the task.
    time_limit: Option<SharedNumber>,
}

/// The time limit that Slurm assumes for a job without one: a year.
const NO_LIMIT: u64 = 365 * 86_400;

impl CardOrder {
    /// For a batch script, if the user, or else the site, wants a card. No other step sees all of its job.
    pub fn from_spank(spank: &Spank, kind: StepKind, when: UsageCard, grant: &Grant) -> Option<Self> {
        let is_wanted = kind == StepKind::Batch && when != UsageCard::Never;
        is_wanted.then(|| {
            let time_limit = SharedNumber::new().inspect_err(|error| log::debug!("no time limit on the card: {error}"));
            let others = HandOver::from_spank(spank);
            if let Some(others) = &others {
                others.prepare();
            }
            Self { when, grant: grant.clone(), others, time_limit: time_limit.ok() }
        })
    }

    /// Called in the task's own process, as the user.
    pub fn tell_time_limit(&self, spank: &Spank) {
        let time = |name| variable(spank, name)?.parse::<u64>().ok();
        let limit = time(c"SLURM_JOB_END_TIME")
            .zip(time(c"SLURM_JOB_START_TIME"))
            .and_then(|(end, start)| end.checked_sub(start));
        if let (Some(limit), Some(shared)) = (limit.filter(|limit| *limit < NO_LIMIT), &self.time_limit) {
            shared.set(limit);
        }
    }

    /// The lines of the card; none if this job gets no card.
    pub fn lines(
        &self,
        spank: &Spank,
        host: &Host,
        fence: &Fence,
        (plan, config): (&Plan, &Config),
        end: &BatchEnd<'_>,
    ) -> Vec<String> {
        let mut found = fence.job_for_a_card(&host.proc);
        found.usage.oom_kills = found.usage.oom_kills.or(Some(end.reported.kills));
        found.usage.forks_refused = Some(end.reported.refusals);
        let nodes = self.others.as_ref().map(|others| others.take(fence, &found, &self.grant));
        let (found, cpus, memory) = match &nodes {
            Some(nodes) => nodes.merged(&found),
            None => (found, self.grant.job_cpus, self.grant.job_memory),
        };
        let JobForACard { usage, cpus_limit, memory_limit, is_without_swap, has_daemons } = found;
        let is_limited = config.mode == Mode::Enforce;
        let limits = is_limited.then_some(&plan.job);
        let (job, is_array_task) = job_in_words(spank).unwrap_or_else(|| (fence.key().job.to_string(), false));
        let node = std::env::var("SLURMD_NODENAME").ok();
        let disks: &[DiskLimit] = limits.map_or(&[], |job| &job.disks);
        let is_set = |name| variable(spank, name).is_some_and(|value| !value.is_empty());
        let figures = Figures {
            job: &job,
            name: end.name,
            node: node.as_deref(),
            is_array_task,
            exit: end.exit,
            wall: end.started.elapsed().ok(),
            time_limit: self
                .time_limit
                .as_ref()
                .map(SharedNumber::get)
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            cpus,
            cpus_limit,
            memory,
            memory_limit,
            is_without_swap,
            processes: limits.and_then(|job| job.numbers.get(Limit::Processes)),
            has_daemons,
            disks,
            usage: &usage,
            tasks: variable(spank, c"SLURM_TASKS_PER_NODE").and_then(|text| leading_number(&text)),
            nodes: variable(spank, c"SLURM_JOB_NUM_NODES").and_then(|text| text.parse().ok()),
            others: nodes.as_ref(),
            // The sentences are printed just above the card.
            sentences: &[],
            noted: &fence.noted_for_a_card(config),
            is_utf8: card::is_utf8(|name| variable(spank, &CString::new(name).ok()?)),
            words: match (is_set(c"SLURM_MEM_PER_CPU"), is_set(c"SLURM_MEM_PER_GPU")) {
                (true, _) => &WORDS_PER_CPU,
                (false, true) => &WORDS_PER_GPU,
                (false, false) => &WORDS,
            },
        };
        card::lines(self.when, config.usage_card_text.as_deref(), &figures)
    }
}

/// What the batch step knows at its end.
pub struct BatchEnd<'a> {
    /// The job's name.
    pub name: Option<&'a str>,
    pub started: SystemTime,
    pub exit: Option<Exit>,
    /// How many of its processes the kernel killed for lack of memory, and how many forks it refused.
    pub reported: Reported,
}

/// An unreadable variable counts as unset.
fn variable(spank: &Spank, name: &CStr) -> Option<String> {
    spank.getenv(name).ok().flatten()
}

/// The job's number, `5`, or `4_1` in an array, as squeue(1) shows it; and whether the job is in an array.
fn job_in_words(spank: &Spank) -> Option<(String, bool)> {
    let job = spank.u32(spank_item::S_JOB_ID).ok()?;
    let is_one = |number: &u32| ![0, u32::MAX, u32::MAX - 1].contains(number);
    let array = spank.u32(spank_item::S_JOB_ARRAY_ID).ok().filter(is_one);
    let task = spank.u32(spank_item::S_JOB_ARRAY_TASK_ID).ok().filter(|task| *task < u32::MAX - 1);
    Some(match array.zip(task) {
        Some((array, task)) => (format!("{array}_{task}"), true),
        None => (job.to_string(), false),
    })
}

/// How many tasks the first node has: 4 for `4(x2),3`.
fn leading_number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| text.get(..end).unwrap_or_default());
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_those_of_the_first_node() {
        assert_eq!([leading_number("4(x2),3"), leading_number("1"), leading_number("")], [Some(4), Some(1), None]);
    }
}
