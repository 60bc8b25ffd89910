// SPDX-License-Identifier: GPL-2.0-or-later
//! The keys for idle jobs, from the sections of a job.

use std::time::Duration;

use jobfence::config::{Config, IdleAction, Loaded, Mode};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::record::job::JobRecords;

use crate::job_keys;

const KEYS: [&str; 5] = ["GPUIdleAfter", "GPUIdleAction", "IdleAfter", "IdleAction", "Mode"];

/// The values for a job. `None`: no time makes the job idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleKeys {
    pub cpu_after: Option<Duration>,
    pub cpu_action: IdleAction,
    pub gpu_after: Option<Duration>,
    pub gpu_action: IdleAction,
}

impl From<&Config> for IdleKeys {
    fn from(config: &Config) -> Self {
        let action = |action| if config.mode == Mode::Enforce { action } else { IdleAction::Warn };
        Self {
            cpu_after: config.idle_after,
            cpu_action: action(config.idle_action),
            gpu_after: config.gpu_idle_after,
            gpu_action: action(config.gpu_idle_action),
        }
    }
}

impl Default for IdleKeys {
    fn default() -> Self {
        Self::from(&Config::default())
    }
}

/// The keys of a step's job.
pub fn keys_of(
    (config, loaded): (&Config, Option<&Loaded>),
    known: (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> IdleKeys {
    match job_keys::of_step(&KEYS, loaded, known, step) {
        None => IdleKeys::from(config),
        Some(Ok(config)) => IdleKeys::from(&config),
        // Too much may hold: then only what the site wants of every job, and nothing is done to it.
        Some(Err(_)) => {
            IdleKeys { cpu_action: IdleAction::Warn, gpu_action: IdleAction::Warn, ..IdleKeys::from(config) }
        }
    }
}
