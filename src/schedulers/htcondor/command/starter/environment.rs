// SPDX-License-Identifier: GPL-2.0-or-later
//! The job's variables about its fence. The starter puts them into the job's environment, by a setting of its configuration.
//!
//! Variables of the job's own ad override these. So a job that another job has submitted with `getenv` has the variables of that other job.

use jobfence::cgroup::affinity::Affinity;
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{memory_files, memory_limit};
use jobfence::config::{Config, Mode, UsageCard, usage_card_text};
use jobfence::doors::life::{LiveFence, Seen};
use jobfence::error::Result;
use jobfence::policy::threads::{HINT, THREADS, threads};
use jobfence::schedulers::htcondor::environment;

use super::own_line;
use crate::schedulers::htcondor::monitor::unified;

/// The variable that tells the program of `USER_JOB_WRAPPER` when to write a card.
pub const CARD: &str = "JOBFENCE_USAGE_CARD";

/// Has the starter give the job its variables. `site`: the site's variables for each job. `branch`: where HTCondor makes the job's cgroup.
pub fn tell(config: &Config, live: &LiveFence, site: &str, branch: &str, local_name: Option<&str>) -> Result<()> {
    let mut seen = live.seen();
    // The step's limit includes the starter's memory.
    seen.limits.memory = memory_of(&seen, branch).or(seen.limits.memory);
    let visible = Affinity::from_pid(0).map(|cpus| cpus.count()).filter(|_| config.thread_hints);
    let line = environment::with(site, &variables(&seen, config.mode, visible, live.opened.usage_card))?;
    own_line::set(environment::LINE, &line, local_name);
    Ok(())
}

/// The memory limit of HTCondor's part of the step, in bytes.
pub fn memory_of(seen: &Seen, branch: &str) -> Option<u64> {
    let hierarchy = unified()?;
    // The path of the step is relative to the mount, which in a container may show another directory than the root.
    let dir = hierarchy.dir_of(&hierarchy.in_proc(&format!("{}/{branch}", seen.path.as_deref()?))).ok()?;
    memory_limit(&dir, memory_files(Version::V2).0).ok()?
}

/// `visible`: how many CPUs the job can run on, if it is to be told how many threads to start.
fn variables(seen: &Seen, mode: Mode, visible: Option<u32>, card: UsageCard) -> Vec<(String, String)> {
    let hint = seen.limits.cpus.zip(visible).filter(|_| mode == Mode::Enforce);
    let hint = hint.and_then(|(cpus, visible)| threads(cpus, visible)).map(|threads| threads.to_string());
    let hints = THREADS.into_iter().chain([HINT]).map(|name| (name, hint.clone()));
    let limits = seen.variables(mode).into_iter().chain(hints);
    let ours = limits.filter_map(|(name, value)| Some((name.to_string_lossy().into_owned(), value?)));
    let card = (card != UsageCard::Never).then(|| (CARD.to_owned(), usage_card_text(card).to_owned()));
    ours.chain(card).collect()
}

#[cfg(test)]
mod tests {
    use jobfence::job::Cpus;

    use super::*;
    use crate::schedulers::gridengine::shepherd::both::seen;

    #[test]
    fn a_job_is_told_what_limits_it() {
        let mut seen = seen("slot1_1");
        seen.limits.cpus = Some(Cpus::from_thousandths(1500));
        let said = |mode, visible, card| {
            let all = variables(&seen, mode, visible, card).into_iter();
            all.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(said(Mode::Enforce, None, UsageCard::Never), ["JOBFENCE_CGROUP=/x", "JOBFENCE_CPUS=1.5"]);
        let all = said(Mode::Enforce, Some(8), UsageCard::Failed);
        let more = ["OMP_NUM_THREADS=2", "GOMAXPROCS=2", "JOBFENCE_THREADS=2", "JOBFENCE_USAGE_CARD=failed"];
        assert_eq!(all.get(2..).unwrap(), more);
        assert_eq!(said(Mode::Observe, Some(8), UsageCard::Never), ["JOBFENCE_CGROUP=/x"]);
    }
}
