// SPDX-License-Identifier: GPL-2.0-or-later
//! What the site wants of a job that runs, by the sections that hold for the job.

use jobfence::config::{Config, Loaded};
use jobfence::doors::life;
use jobfence::error::Result;
use jobfence::facts::{Fact, Facts};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::job::{Id, JobOnNode, Name};
use jobfence::record::job::JobRecords;

/// The configuration of a step's job. What sections the job has is only found out if one of them has one of these keys. `None`: none has,
/// so that what holds for every job holds.
pub fn of_step(
    keys: &[&str],
    loaded: Option<&Loaded>,
    (noted, host): (Option<&JobRecords>, &Host),
    step: &LivingStep<'_>,
) -> Option<Result<Config>> {
    let has_key = |loaded: &&Loaded| {
        loaded.sections().flat_map(|(_, settings)| settings).any(|setting| keys.contains(&setting.key().name))
    };
    let loaded = loaded.filter(has_key)?;
    let mut facts = Facts::default();
    let noted = noted.zip(job_on_node(step)).and_then(|(noted, job)| noted.read(&job, host).ok().flatten());
    if let Some(record) = noted {
        record.add_to(&mut facts);
    }
    // Not the account of the note: some schedulers take the user's word for it.
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
    // Without the name, a section of another user might hold.
    if facts.user == Fact::Unknown
        && let Some(uid) = step.uid
        && let Ok(Some(user)) = nix::unistd::User::from_uid(uid.into())
    {
        facts.user = Fact::Known(user.name);
    }
    Some(life::resolve(loaded, facts).map(|resolved| resolved.config))
}

fn job_on_node(step: &LivingStep<'_>) -> Option<JobOnNode> {
    let node = step.node.as_deref().map(Name::new).transpose().ok()?;
    Some(JobOnNode { node, job: Id::new(step.job.as_str()).ok()? })
}
