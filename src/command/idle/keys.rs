// SPDX-License-Identifier: GPL-2.0-or-later
//! The keys for idle jobs, from the sections of a job.

use std::time::Duration;

use jobfence::config::{Config, IdleAction, Loaded, Mode};
use jobfence::doors::life;
use jobfence::facts::{Fact, Facts};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::job::{Id, JobOnNode, Name};
use jobfence::record::job::JobRecords;

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

/// The keys of a step's job. The job's sections are only found out if a section has such a key.
pub fn keys_of(
    (config, loaded): (&Config, Option<&Loaded>),
    (noted, host): (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> IdleKeys {
    let has_key = |loaded: &&Loaded| {
        loaded.sections().flat_map(|(_, settings)| settings).any(|setting| KEYS.contains(&setting.key().name))
    };
    let Some(loaded) = loaded.filter(has_key) else { return IdleKeys::from(config) };
    let mut facts = Facts::default();
    if let Some(record) = noted.and_then(|noted| noted.read(&job_on_node(step)?, host).ok().flatten()) {
        record.add_to(&mut facts);
    }
    // The account of the note is left out: some schedulers take the user's word for it.
    let said = step.allocated().noted.facts();
    for (known, said) in [
        (&mut facts.partition, said.partition),
        (&mut facts.qos, said.qos),
        (&mut facts.project, said.project),
        (&mut facts.user, said.user),
    ] {
        if *known == Fact::Unknown {
            *known = said;
        }
    }
    facts.uid = step.uid.into();
    match life::resolve(loaded, facts) {
        Ok(resolved) => IdleKeys::from(&resolved.config),
        // The sections are not certain. So the values for every job hold, and nothing is done to this one.
        Err(_) => IdleKeys { cpu_action: IdleAction::Warn, gpu_action: IdleAction::Warn, ..IdleKeys::from(config) },
    }
}

fn job_on_node(step: &LivingStep<'_>) -> Option<JobOnNode> {
    let node = step.node.as_deref().map(Name::new).transpose().ok()?;
    Some(JobOnNode { node, job: Id::new(step.job.as_str()).ok()? })
}
