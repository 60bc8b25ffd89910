// SPDX-License-Identifier: GPL-2.0-or-later
//! The keys that have jobs run again.

use jobfence::config::{Config, Loaded};

use super::AgainPart;

/// A key that has jobs run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgainKey {
    OnOutOfMemory,
    OnTimeLimit,
    OnPreempt,
    ScavengerEnd,
}

impl AgainKey {
    pub const ALL: [Self; 4] = [Self::OnOutOfMemory, Self::OnTimeLimit, Self::OnPreempt, Self::ScavengerEnd];

    /// The keys for an end of which the scheduler alone knows the reason.
    pub const OF_SCHEDULER: [Self; 2] = [Self::OnTimeLimit, Self::OnPreempt];

    pub fn name(self) -> &'static str {
        match self {
            Self::OnOutOfMemory => "OnOutOfMemory",
            Self::OnTimeLimit => "OnTimeLimit",
            Self::OnPreempt => "OnPreempt",
            Self::ScavengerEnd => "ScavengerEnd",
        }
    }

    /// Whether this part does what the key says. Only lines of the log tell of an end for owners, and only who knows a job behind its end can
    /// say that it has ended it.
    pub fn is_for(self, part: &dyn AgainPart) -> bool {
        self == Self::OnOutOfMemory || part.reads_log()
    }

    /// Whether it is set for any job.
    pub fn is_set(self, config: &Config, loaded: Option<&Loaded>) -> bool {
        let in_sections = || loaded.into_iter().flat_map(Loaded::sections).flat_map(|(_, settings)| settings);
        let of_all = match self {
            Self::OnOutOfMemory => config.on_out_of_memory.is_some(),
            Self::OnTimeLimit => config.on_time_limit > 0,
            Self::OnPreempt => config.on_preempt > 0,
            Self::ScavengerEnd => config.scavenger_end,
        };
        of_all || in_sections().any(|setting| setting.key().name == self.name())
    }
}
