// SPDX-License-Identifier: GPL-2.0-or-later
//! What the words mean that keys have for values.

use std::fmt;
use std::time::Duration;

use super::limits::{LIMITS, Limit};
use super::units::Percent;
use crate::bytes;
use crate::job::Cpus;

/// Whether limits are set at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Jobs are limited.
    Enforce,
    /// Jobs are put in cgroups and measured, but not limited.
    Observe,
    /// Nothing is touched.
    Off,
}

/// Which jobs have a card at the end of their output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageCard {
    /// None.
    Never,
    /// Those that failed, or were stopped at a limit.
    Failed,
    /// Those, and jobs that used little of what was granted to them.
    Wasteful,
    /// Every job.
    Always,
}

/// What becomes of a job that stays idle for as long again after it was said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleAction {
    /// Nothing more.
    Warn,
    /// Its processes get SIGTERM.
    Signal,
    /// It is cancelled.
    Cancel,
}

/// Whether a step's user may divide the step's cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delegation {
    /// The user may not.
    #[default]
    No,
    /// The user may not. But a daemon of root's may, for containers that the step's processes ask for.
    Containers,
    /// The user may if the job asks for it.
    Request,
    /// The user may, unless the job does not want it.
    Yes,
}

/// What is done with a user's process that is in no fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StraysAction {
    /// Nothing.
    Off,
    /// The log and the metrics say so.
    Report,
    /// It is put into the fence of its user's newest job on this node.
    Adopt,
    /// It gets SIGTERM, and later SIGKILL.
    Kill,
}

/// Whether each user of this node is one fence, on a node for logins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginLimits {
    /// No.
    No,
    /// Yes, unless a scheduler's daemon starts jobs on this node.
    Yes,
    /// Also beside such a daemon.
    Always,
}

/// How much CPU time a user of a login node has in a window, and how many CPUs the user has once that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginBudget {
    /// The CPU time.
    pub time: Duration,
    /// What the user has until a window has passed.
    pub cpus: Cpus,
}

/// So much of the node's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryShare {
    /// An amount in bytes.
    Bytes(u64),
    /// A share of the whole.
    Percent(Percent),
}

impl MemoryShare {
    /// How much that is of so many bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.min(whole),
            Self::Percent(percent) => percent.of(whole),
        }
    }
}

impl fmt::Display for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&bytes::text(*bytes)),
            Self::Percent(percent) => percent.fmt(f),
        }
    }
}

/// Where the scheduler keeps what a job has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreUsage {
    /// Nowhere.
    None,
    /// Slurm, in the job's AdminComment.
    AdminComment,
}

/// How a job's CPU time is limited or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuPolicy {
    /// No more than was granted, even if CPUs are idle.
    Quota,
    /// All CPU time that no others want; under contention in proportion to what was granted.
    Weight,
    /// The quota, and below it the weight.
    Both,
}

impl CpuPolicy {
    /// Whether CPU time is limited.
    pub const fn limits(self) -> bool {
        !matches!(self, Self::Weight)
    }

    /// Whether CPU time is shared by weight.
    pub const fn weighs(self) -> bool {
        !matches!(self, Self::Quota)
    }
}

/// The CPU time of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskCpus {
    /// No limit of its own.
    Unlimited,
    /// The CPUs per task that the step asked for.
    Granted,
    /// This many.
    Count(Cpus),
}

/// What `ConstrainHugePages` makes of the huge pages that were granted; the stricter is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrantedHugePages {
    /// Nothing: `no`.
    NotCounted,
    /// The limit of their size: `yes`.
    AtMost,
    /// The same, and there are no others: `closed`.
    NoOthers,
}

/// Which devices a step may not use; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeniedDevices {
    /// None is denied.
    None,
    /// `yes`: the node's GPUs that the job does not have.
    OthersGpus,
    /// `closed`: all that are not allowed.
    AllElse,
}

/// Whether swap is limited; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwapSpace {
    /// Swap is not limited.
    No,
    /// Swap is limited unless the scheduler limits memory; then swap is as the scheduler says.
    Auto,
    /// Swap is limited wherever the scheduler has no limit of its own.
    Yes,
}

impl SwapSpace {
    /// Whether it is limited at all.
    pub const fn limits(self) -> bool {
        !matches!(self, Self::No)
    }
}

/// What becomes of a job whose limit could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The job fails: it may not run without its fence.
    Fail,
    /// The log says so, and the job runs.
    Warn,
}

/// An [`OnError`] for everything, and for each [`Limit`] one that may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnErrors {
    general: OnError,
    limits: [OnError; LIMITS.len()],
}

impl OnErrors {
    /// The same for everything.
    pub const fn all(general: OnError) -> Self {
        Self { general, limits: [general; LIMITS.len()] }
    }

    /// Makes one limit differ.
    #[must_use]
    pub fn with(mut self, limit: Limit, on_error: OnError) -> Self {
        if let Some(theirs) = self.limits.get_mut(limit as usize) {
            *theirs = on_error;
        }
        self
    }

    /// What holds in this mode: a site that only observes wants no job to fail for it.
    #[must_use]
    pub const fn within(self, mode: Mode) -> Self {
        match mode {
            Mode::Observe => Self::all(OnError::Warn),
            Mode::Enforce | Mode::Off => self,
        }
    }

    /// The assignment by which an error is only logged, for the log.
    pub const fn softened_by(mode: Mode) -> &'static str {
        match mode {
            Mode::Observe => "Mode=observe",
            Mode::Enforce | Mode::Off => "OnError=warn",
        }
    }

    /// For errors that belong to no limit, such as an unreadable configuration.
    pub const fn general(self) -> OnError {
        self.general
    }

    /// For this limit.
    pub fn for_limit(self, limit: Limit) -> OnError {
        self.limits.get(limit as usize).copied().unwrap_or(self.general)
    }
}

impl Default for OnErrors {
    fn default() -> Self {
        Self::all(OnError::Fail)
    }
}
