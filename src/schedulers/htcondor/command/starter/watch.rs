// SPDX-License-Identifier: GPL-2.0-or-later
//! The watcher: the process that outlives the starter, waits for its end, and then closes the fence.
//!
//! The watcher is none of the processes that HTCondor takes for the starter's, and kills with it (`apart`). It has none of the starter's
//! sockets, so that the processes at their other ends see when the starter is gone.

use std::ffi::CString;
use std::process::ExitCode;

use jobfence::bytes::binary;
use jobfence::config::Config;
use jobfence::doors::enter;
use jobfence::doors::life::{self, HowClosed};
use jobfence::doors::recorded::WantedFences;
use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::record::Records;
use jobfence::record::closer::Closer;
use jobfence::report::INSIDE;
use jobfence::schedulers::htcondor::CONTAINERS_BRANCH;

use super::family::{self, StandIn};
use super::{apart, environment, reason};
use crate::command::ignore_sigpipe;
use crate::configured::Configured;
use crate::syslog::SyslogOfDaemon;

/// The first word of the watcher's command line.
pub const WATCH: &str = "jobfence-watch";

/// Starts the watcher of a fence that this process holds, with this environment and no other. `branch`: where HTCondor makes the job's
/// cgroup.
pub fn start(which: &WantedFences, branch: &str, environment: &[CString]) -> Result<()> {
    apart::start(&words(which, branch)?, environment, family::daemons_cgroup().as_ref())
}

/// The watcher's command line.
fn words(which: &WantedFences, branch: &str) -> Result<[CString; 5]> {
    let c_string = |text: &str| CString::new(text).map_err(|_| Error::new("a NUL in a word"));
    let step = which.step.as_ref().map(Id::as_str).unwrap_or_default();
    let run = &which.run.unwrap_or_default().to_string();
    Ok([c_string(WATCH)?, c_string(which.job.as_str())?, c_string(step)?, c_string(run)?, c_string(branch)?])
}

/// The fence and the branch of such a command line. `None`: it is not the watcher's.
fn which_and_branch(words: &[String]) -> Option<(WantedFences, &str)> {
    let [name, job, step, run, branch] = words else { return None };
    (name == WATCH).then_some(())?;
    let (job, step) = (Id::new(job.as_str()).ok()?, Some(Id::new(step.as_str()).ok()?));
    Some((WantedFences { job, step, run: run.parse().ok() }, branch))
}

/// Runs as the watcher. `None`: this process is not the watcher.
pub fn watch() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().collect();
    let (which, branch) = which_and_branch(&words)?;
    ignore_sigpipe();
    SyslogOfDaemon::begin();
    let configured = || Configured { config: None, overrides: Vec::new() }.load();
    let loaded = configured();
    // Before the starter goes on. Otherwise the janitor of another job that begins could close the fence, and not say what this process
    // says.
    let closer = loaded.as_ref().ok().zip(which.run).map(|(loaded, starter)| closer(&loaded.config, starter));
    if let Some(Err(error)) = &closer {
        log::warn!(
            "job {}: a janitor may close its fence first, and does not say why it was killed: {error}",
            which.job
        );
    }
    apart::say_that_it_runs();
    let result = loaded.map_err(|errors| errors.to_string()).and_then(|loaded| {
        let ended: Option<fn() -> bool> = match family::look() {
            StandIn::Missing => None,
            StandIn::Living => Some(|| family::look() == StandIn::Killed),
            StandIn::Killed => Some(|| true),
        };
        if !enter::wait_for_holders(&loaded.config, &which, ended).map_err(|error| error.to_string())? {
            log::warn!(
                "job {}: HTCondor has killed all that is left of its starter, which still lives in the fence",
                which.job
            );
        }
        // The configuration may have changed meanwhile. If it has mistakes now, the one of before holds.
        let config = configured().map_or(loaded.config, |loaded| loaded.config);
        close(&config, &which, branch).map_err(|error| error.to_string())
    });
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("job {}: {error}; the janitor looks again", which.job);
            ExitCode::FAILURE
        }
    })
}

/// The mark that this process closes the fence of this starter. A fence's run has the number of the starter's process.
fn closer(config: &Config, starter: u32) -> Result<Closer> {
    Closer::new(Records::open(&config.run_dir)?.dir(), starter)
}

fn close(config: &Config, which: &WantedFences, branch: &str) -> Result<()> {
    let has_none = |name| matches!(enter::has_branch(config, which, name), Ok(Some(false)));
    if has_none(branch) && has_none(CONTAINERS_BRANCH) {
        log::info!("job {}: HTCondor has made no cgroup for it; jobfence alone has limited it", which.job);
    }
    let seen = life::usage(config, which).ok().and_then(|mut all| all.pop());
    let limit = seen.and_then(|seen| environment::memory_of(&seen, branch));
    for closed in life::close(config, which)? {
        if let HowClosed::Removed(seen) = closed? {
            log::info!("{}", life::in_words(&seen));
            let sentences: Vec<String> = seen.sentences.iter().map(|sentence| with_limit(sentence, limit)).collect();
            sentences.iter().for_each(|sentence| log::info!("{sentence}"));
            if seen.usage.oom_kills.is_some_and(|kills| kills > 0) {
                reason::say(&which.job, &sentences);
            }
        }
    }
    Ok(())
}

/// The sentence, with the limit of HTCondor's part of the step: that is the job's limit.
fn with_limit(sentence: &str, limit: Option<u64>) -> String {
    limit.map_or_else(
        || sentence.to_owned(),
        |bytes| sentence.replace(INSIDE, &format!("its memory limit of {}", binary(bytes))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also if `BASE_CGROUP` gives HTCondor's directory another name.
    #[test]
    fn what_the_watcher_is_told_it_understands() {
        let [job, step] = ["12.0", "slot1_1"].map(|id| Id::new(id).unwrap());
        let which = WantedFences { job, step: Some(step), run: Some(7) };
        let words = words(&which, "site").unwrap().map(|word| word.into_string().unwrap());
        let (found, branch) = which_and_branch(&words).unwrap();
        let id = |id: &Option<Id>| id.as_ref().map(|id| id.as_str().to_owned());
        assert_eq!((found.job.as_str(), id(&found.step), found.run), ("12.0", id(&which.step), Some(7)));
        assert_eq!(branch, "site");
        assert!(which_and_branch(&words[1..]).is_none());
    }

    #[test]
    fn the_limit_of_the_slot_is_named() {
        let said = format!("x was killed: it reached {INSIDE}. Use less.");
        assert_eq!(
            with_limit(&said, Some(100 << 20)),
            "x was killed: it reached its memory limit of 100.0 MiB. Use less."
        );
        assert_eq!(with_limit(&said, None), said);
    }
}
