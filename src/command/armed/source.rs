// SPDX-License-Identifier: GPL-2.0-or-later
//! What one condition of a step watches: where it is read, and what the kernel tells of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use nix::poll::PollFlags;

use super::crossing::StepLook;
use super::directories::{Directories, Unseen};
use super::memory::StepMemory;
use super::pressure::{StepPressure, waited_for};
use super::processes::StepProcesses;
use super::throttling::StepThrottling;

/// What is watched of one step.
#[derive(Debug)]
pub enum WatchedUse {
    Memory(StepMemory),
    Processes(StepProcesses),
    Throttling(StepThrottling),
    Pressure(StepPressure),
}

impl WatchedUse {
    /// The source of a condition. `None`: this node cannot see it.
    pub fn from_step(step: &LivingStep<'_>, watched: Watched) -> Option<Self> {
        if let Some(of) = waited_for(watched) {
            return StepPressure::from_step(step, of).map(Self::Pressure);
        }
        match watched {
            Watched::Memory => StepMemory::from_step(step).map(Self::Memory),
            Watched::Processes => StepProcesses::from_step(step).map(Self::Processes),
            _ => StepThrottling::from_step(step).map(Self::Throttling),
        }
    }

    /// Whether all sources of this kind are looked at together, and not each at its own time.
    pub fn is_coarse(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }

    /// Looks once; with `may_be_told` the kernel is asked to tell.
    pub fn look(&mut self, share: Percent, may_be_told: bool) -> Result<StepLook, Unseen> {
        match self {
            Self::Memory(memory) => memory.look(share, may_be_told),
            Self::Processes(processes) => processes.look(share),
            Self::Throttling(throttling) => throttling.look(share, may_be_told),
            Self::Pressure(pressure) => pressure.look(share, may_be_told),
        }
    }

    /// The step's own directory, with its number.
    pub fn directory(&self) -> Option<&(PathBuf, u64)> {
        self.directories().of_step()
    }

    fn directories(&self) -> &Directories {
        match self {
            Self::Memory(memory) => &memory.directories,
            Self::Processes(processes) => &processes.directories,
            Self::Throttling(throttling) => &throttling.directories,
            Self::Pressure(pressure) => &pressure.directories,
        }
    }

    /// The descriptor that becomes ready when the kernel tells, and the event to poll it for. A pressure file can always be read, so its
    /// event is another one.
    pub fn event(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let of_waiting = |fd| (fd, PollFlags::POLLPRI);
        match self {
            Self::Memory(memory) => memory.event().map(|fd| (fd, PollFlags::POLLIN)),
            Self::Processes(_) => None,
            Self::Throttling(throttling) => throttling.trigger.as_ref().map(AsFd::as_fd).map(of_waiting),
            Self::Pressure(pressure) => pressure.trigger.as_ref().map(AsFd::as_fd).map(of_waiting),
        }
    }

    /// Takes what the kernel has told. A pressure file needs no read: the poll has taken it.
    pub fn hear(&mut self) {
        match self {
            Self::Memory(memory) => memory.hear(),
            Self::Pressure(pressure) => pressure.hear(),
            Self::Processes(_) | Self::Throttling(_) => {}
        }
    }

    /// Takes the file that tells of waiting, unless it goes on with this share. The kernel takes tens of milliseconds to close it.
    pub fn take_trigger(&mut self, goes_on: Option<Percent>) -> Option<OwnedFd> {
        match (self, goes_on) {
            (Self::Throttling(throttling), None) => throttling.trigger.take(),
            (Self::Pressure(pressure), None) => pressure.trigger.take(),
            (Self::Pressure(pressure), Some(share)) => pressure.take_other(share),
            _ => None,
        }
    }
}
