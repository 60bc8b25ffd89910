// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known about a job for its card: what it was granted, what it used, and what follows from that.

use std::time::Duration;

use super::words::several;
use crate::bytes::binary;
use crate::cgroup::io::DiskLimit;
use crate::figures::Usage;
use crate::job::Cpus;
use crate::report::account::Exit;
use crate::report::nodes::Nodes;

/// A shorter job gets one line, if nothing happened to it; its figures are no basis for advice.
pub(super) const SHORT: Duration = Duration::from_secs(60);

/// A job that lasted this long can be wasteful, and its time is worth advice.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Using less than this share of the grant is little, in percent.
pub(super) const LITTLE: u64 = 50;

/// Only a job with more memory than this can waste it, in bytes.
pub(super) const MUCH_MEMORY: u64 = 1 << 30;

/// Memory use from this share of its limit on may have reached the limit, in percent: the kernel charges in batches.
pub(super) const REACHED: u64 = 95;

/// Waiting for less than this share of the time is not significant, in percent.
pub(super) const MATTERS: u64 = 10;

/// How the job's user requests resources.
#[derive(Debug)]
pub struct Words {
    /// Requests so much memory, in bytes, for the job on each node.
    pub memory: fn(u64) -> String,
    /// Requests so many CPUs, for a job of one task.
    pub cpus: fn(u64) -> String,
    /// How the total number of CPUs is requested, if the job has several tasks.
    pub all_cpus: &'static str,
    /// Requests so much time. `None`: there is no such option.
    pub time: Option<fn(Duration) -> String>,
    /// Where signal 15 comes from. `None`: not known.
    pub signal_15: Option<&'static str>,
}

/// The words if it is not known how the user requests resources.
pub static NEUTRAL: Words = Words {
    memory: |bytes| format!("{} of memory", binary(bytes)),
    cpus: |count| several(count, "CPU", "CPUs"),
    all_cpus: "in all",
    time: None,
    signal_15: None,
};

/// What is known about a job on this node, at its end.
#[derive(Debug, Clone)]
pub struct Figures<'a> {
    /// Its id, as its user knows it.
    pub job: &'a str,
    /// What its user calls it.
    pub name: Option<&'a str>,
    /// The node's name.
    pub node: Option<&'a str>,
    /// Whether it is one of many similar jobs.
    pub is_array_task: bool,
    /// How it ended.
    pub exit: Option<Exit>,
    /// How long it ran.
    pub wall: Option<Duration>,
    /// Its time limit. `None`: not known.
    pub time_limit: Option<Duration>,
    /// The CPUs that were granted. `None`: not known, or not managed.
    pub cpus: Option<Cpus>,
    /// The CPU time that its quota allowed. `None`: not limited. The site can set it below the grant.
    pub cpus_limit: Option<Cpus>,
    /// The memory that was granted, in bytes.
    pub memory: Option<u64>,
    /// Its memory limit, in bytes. `None`: not limited.
    pub memory_limit: Option<u64>,
    /// Whether it certainly could not use swap, for kernels that keep no peak of swap.
    pub is_without_swap: bool,
    /// Its limit of processes and threads.
    pub processes: Option<u64>,
    /// Whether step daemons are counted among them; the limit has room for these.
    pub has_daemons: bool,
    /// Its limits of reading and writing.
    pub disks: &'a [DiskLimit],
    /// What it has used.
    pub usage: &'a Usage,
    /// How many tasks it has. `None`: not known.
    pub tasks: Option<u32>,
    /// How many nodes it has. `None`: not known.
    pub nodes: Option<u32>,
    /// The nodes that all these figures include. `None`: only this one.
    pub others: Option<&'a Nodes>,
    /// The limits at which it was stopped, unless its user has just read that.
    pub sentences: &'a [String],
    /// What jobfence.service has noted, see `noted`. Empty: nothing.
    pub noted: &'a str,
    /// Whether the user's locale is UTF-8.
    pub is_utf8: bool,
    /// The scheduler's words for requests.
    pub words: &'a Words,
}

impl Figures<'_> {
    /// How many of its processes the kernel killed for lack of memory, if any.
    pub(super) fn killed(&self) -> Option<u64> {
        self.usage.oom_kills.filter(|kills| *kills > 0)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.exit.is_some_and(|exit| !exit.is_success())
    }

    /// Whether a limit stopped one of its processes.
    pub(super) fn was_stopped(&self) -> bool {
        let stopped = |count: Option<u64>| count.is_some_and(|count| count > 0);
        !self.sentences.is_empty() || stopped(self.usage.oom_kills) || stopped(self.usage.forks_refused)
    }

    /// Whether it used little of its grant: the CPU time of several CPUs, or more than a GiB of memory.
    pub fn is_wasteful(&self) -> bool {
        let is_long = self.wall.is_some_and(|wall| wall >= LONG);
        let is_little = |share: Option<u64>| share.is_some_and(|share| share < LITTLE);
        // A job that its quota throttled could not use more.
        let has_several = self.most_cpus().is_some_and(|cpus| cpus > Cpus::whole(1)) && self.throttled().is_none();
        let has_much = self.most_memory().is_some_and(|most| most > MUCH_MEMORY);
        self.exit.is_some_and(Exit::is_success)
            && is_long
            && (has_several && is_little(self.cpu_share()) || has_much && is_little(self.memory_share()))
    }

    /// The CPUs that it could use: the lower one of grant and quota.
    pub(super) fn most_cpus(&self) -> Option<Cpus> {
        self.cpus.map(|cpus| cpus.min(self.cpus_limit.unwrap_or(cpus)))
    }

    /// If the quota is below the grant: both.
    pub(super) fn kept_from_it(&self) -> Option<(Cpus, Cpus)> {
        self.most_cpus().zip(self.cpus).filter(|(most, granted)| most < granted)
    }

    /// The memory that it could use.
    pub(super) fn most_memory(&self) -> Option<u64> {
        self.memory_limit.or(self.memory)
    }

    /// CPUs that were busy on average, in thousandths.
    pub(super) fn busy(&self) -> Option<u64> {
        let (cpu, wall) = (self.usage.cpu?, self.wall?);
        let busy = cpu.as_micros().saturating_mul(1000).checked_div(wall.as_micros())?;
        Some(u64::try_from(busy).unwrap_or(u64::MAX))
    }

    pub(super) fn cpu_share(&self) -> Option<u64> {
        percent(self.busy()?.into(), self.most_cpus()?.thousandths().into())
    }

    pub(super) fn memory_share(&self) -> Option<u64> {
        percent(self.usage.memory_peak?.into(), self.most_memory()?.into())
    }

    /// If the quota throttled it often: in how many of its periods, in percent.
    pub(super) fn throttled(&self) -> Option<u64> {
        let (periods, throttled) = (self.usage.periods?, self.usage.throttled_periods?);
        let is_long = self.usage.throttled.is_none_or(|time| time >= Duration::from_secs(1));
        percent(throttled.into(), periods.into()).filter(|share| *share >= MATTERS && is_long)
    }
}

/// `None`: the total is zero.
pub(super) fn percent(used: u128, of: u128) -> Option<u64> {
    let share = used.checked_mul(100)?.checked_div(of)?;
    Some(u64::try_from(share).unwrap_or(u64::MAX))
}
