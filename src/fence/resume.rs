// SPDX-License-Identifier: GPL-2.0-or-later
//! Lets another process resume a fence, by its record.

use std::time::{Duration, Instant};

use super::fenced::{Around, Claim, Fence, OwnPath, Tree, WantedLimits};
use super::open::controllers_named;
use super::own::open_existing;
use crate::cgroup::events::{KernelLog, Sequence};
use crate::cgroup::kill;
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::record::noted::Noted;
use crate::record::{HandedOver, Record, Records};
use crate::scheduler::Schedulers;
use crate::sorted;
use crate::sys::lock::Lock;

/// How long to wait for another process that works on the records.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether this process may close a fence now.
pub(super) enum ClosingRight {
    /// Yes: no other process knows of it.
    Owner,
    /// Yes, for as long as it keeps the lock.
    Locked(Lock),
    /// No: it has been closed.
    Gone,
}

/// What closing has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its directories and its record are gone.
    Removed,
    /// Another process has removed them meanwhile.
    Gone,
    /// Only a record was left: the machine has booted since.
    AnotherBoot,
}

impl Claim {
    /// See [`ClosingRight`].
    pub(super) fn alone(&self, deadline: Instant) -> Result<ClosingRight> {
        let Some(record) = &self.shared else { return Ok(ClosingRight::Owner) };
        let lock = self.records.lock_closing(deadline)?;
        let is_there = self.records.read(&record.levels)?.is_some_and(|recorded| recorded.is_same(record));
        Ok(if is_there { ClosingRight::Locked(lock) } else { ClosingRight::Gone })
    }
}

impl Fence {
    /// The fence of a record (see [`Records::of_job`]), in the hierarchies that have its step. Others may have directories of its user
    /// or its job, made by a step that needs other controllers.
    pub fn resume(host: &Host, schedulers: Schedulers, records: Records, record: &Record) -> Result<Self> {
        let mut fence = Self::left(host, schedulers, records, record)?;
        fence.trees.retain(|tree| tree.own().is_none_or(|own| own.is_whole(&record.levels)));
        Ok(fence)
    }

    /// All that is left of a fence, also after an interrupted opening or closing; for closing it.
    fn left(host: &Host, schedulers: Schedulers, records: Records, record: &Record) -> Result<Self> {
        let name = record.levels.join("/");
        let shared = record
            .shared
            .as_ref()
            .ok_or_else(|| Error::new("only the process that opened this fence may use it:").value(&name))?;
        if record.boot_id != host.boot_id {
            return Err(Error::new("the machine has booted since this fence was opened, and nothing is in it:")
                .value(&name)
                .hint("close it, which removes its record"));
        }
        let mut trees = open_existing(host, &record.base, &record.levels)?.trees;
        sorted::sort_by_key(&mut trees, |own| (own.hierarchy.version == Version::V1, !own.hierarchy.has("freezer")));
        let controllers = controllers_named(&shared.controllers);
        let claim = Claim {
            records,
            is_recorded: true,
            mark: record.mark(),
            allocated: None,
            owner: record.owner,
            shared: Some(Box::new(record.clone())),
        };
        Ok(Self {
            key: record.key().ok_or_else(|| Error::new("the record names no user:").value(&name))?,
            trees: trees.into_iter().map(Tree::Own).collect(),
            ours: OwnPath::new(&record.base, record.levels.clone()),
            claim,
            limits: WantedLimits {
                controllers,
                plan: shared.plan.clone().map(|left| left.plan),
                ..WantedLimits::nothing()
            },
            around: Around { schedulers, has_daemon: false },
            are_others_marked: true,
            closed: false,
            by_another: false,
        })
    }

    /// Records the fence's limits, what its user has asked for, and what is known of its job; what is not known now stays as recorded.
    /// From now on other processes can resume the fence: before, they can only close it.
    pub fn hand_over(&mut self, asked_processes: Option<u64>, noted: Noted) -> Result<()> {
        let Some(record) = &mut self.claim.shared else { return Ok(()) };
        if let Some(shared) = &mut record.shared {
            let plan = self.limits.plan.clone().unwrap_or_default();
            let noted = shared.plan.as_ref().map_or_else(|| noted.clone(), |before| noted.clone().or(&before.noted));
            shared.plan = Some(HandedOver { plan, asked_processes, noted });
        }
        self.claim.records.replace(record, Instant::now() + PATIENCE)
    }

    /// The devices of the GPUs that were chosen for its job.
    pub fn gpus(&self) -> &[String] {
        self.shared_record().and_then(|record| record.shared.as_deref()).map_or(&[], |shared| &shared.gpus)
    }

    /// Keeps only the first `most` of them. Other processes see this after `hand_over`.
    pub fn keep_gpus(&mut self, most: usize) {
        if let Some(shared) = self.claim.shared.as_mut().and_then(|record| record.shared.as_mut()) {
            shared.gpus.truncate(most);
        }
    }

    /// Refuses to resume a fence that is not whole: no process may be in a part of it.
    pub fn check_whole(&self, host: &Host) -> Result<()> {
        let is_there = |hierarchy: &&Hierarchy| self.trees.iter().any(|tree| tree.hierarchy() == *hierarchy);
        // If the fence is in a scheduler's own directories, it does not have one for each controller.
        let is_beside =
            self.shared_record().and_then(|record| record.shared.as_ref()).is_some_and(|shared| shared.overlay);
        let is_whole = match is_beside {
            true => !self.trees.is_empty(),
            false => host.hierarchies(&self.limits.controllers)?.iter().all(is_there),
        };
        if is_whole && self.limits.plan.is_some() {
            return Ok(());
        }
        Err(Error::new("this fence is not whole, since its opening or closing was interrupted:")
            .value(&self.key)
            .hint("close it, and open it again"))
    }

    /// Its record, if other processes may resume it.
    pub fn shared_record(&self) -> Option<&Record> {
        self.claim.shared.as_deref()
    }

    /// The position in the kernel's log at which the fence begins, as earlier releases noted it.
    pub fn log_from(&self) -> Option<Sequence> {
        self.claim.shared.as_ref()?.shared.as_ref()?.log_from
    }

    /// The kernel's log from there on, or all that the kernel has. Lines about an earlier fence of the same name are older than those
    /// about this one.
    pub fn kernel_log(&self) -> Option<KernelLog> {
        KernelLog::open_at(self.log_from().unwrap_or(0)).ok()
    }

    /// Freezes all its processes until they are thawed or ended. Fails if they have not stopped by the deadline.
    pub fn freeze(&self, deadline: Instant) -> Result<()> {
        self.switch(true, deadline)
    }

    /// Lets its processes run again.
    pub fn thaw(&self, deadline: Instant) -> Result<()> {
        self.switch(false, deadline)
    }

    fn switch(&self, is_frozen: bool, deadline: Instant) -> Result<()> {
        let can = |tree: &&Tree| tree.hierarchy().version == Version::V2 || tree.hierarchy().has("freezer");
        let tree = self.trees.iter().find(can).ok_or_else(|| {
            Error::new("the step has no directory in cgroup2 nor in v1's freezer, so it cannot be frozen:")
                .value(&self.key)
        })?;
        kill::set_frozen(&*tree.step()?, tree.hierarchy().version, is_frozen, deadline)
    }
}

/// Ends the processes in a record's fence, and removes all of it. May be repeated, also by several processes at once.
pub fn close(
    host: &Host,
    schedulers: Schedulers,
    records: Records,
    record: &Record,
    deadline: Instant,
) -> Result<Closed> {
    if record.boot_id != host.boot_id {
        let _lock = records.lock_closing(deadline)?;
        if records.read(&record.levels)?.is_some_and(|recorded| recorded.is_same(record)) {
            records.forget_shared(&record.levels)?;
        }
        return Ok(Closed::AnotherBoot);
    }
    let mut fence = Fence::left(host, schedulers, records, record)?;
    let us = Membership::read(&host.proc, nix::unistd::getpid().as_raw())?;
    for tree in &fence.trees {
        let step = tree.hierarchy().in_proc(&fence.ours.path);
        let is_in = |path: &str| path.strip_prefix(&step).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if us.path_in(tree.hierarchy()).is_some_and(is_in) {
            return Err(Error::new("this process is itself in the step that is to be removed:").value(step));
        }
    }
    fence.close(deadline).map(|()| if fence.by_another { Closed::Gone } else { Closed::Removed })
}
