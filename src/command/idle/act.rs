// SPDX-License-Identifier: GPL-2.0-or-later
//! What is said and done about a job that holds what it does not use.
//!
//! The scheduler's own programs tell the user and end the job, if they do that for root on any node. Otherwise the job's processes on this
//! node get signals: only its user's, so none of the scheduler's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use jobfence::config::{Config, IdleAction};
use jobfence::fence::living::LivingStep;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::record::holder::Holder;
use jobfence::report::account::utc;
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{self, pidfd_open, send};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::decision::{IdleDecision, IdleStep};
use crate::living::user_name;
use crate::local_time::LocalTime;
use crate::part::{JobHere, ReachedJob};
use crate::schedulers;
use crate::table::{clock, printable};

/// How long the programs of a scheduler may take for one job.
const PATIENCE: Duration = Duration::from_secs(10);

/// The job.
pub struct IdleJob {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
}

/// What is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleKind {
    Cpu,
    Gpu,
}

impl IdleKind {
    /// The reason, as a part of a sentence about the job.
    fn reason(self, idle: f64) -> String {
        let time = clock(Duration::try_from_secs_f64(idle).unwrap_or_default());
        match self {
            Self::Cpu => format!("it has used almost no CPU time for {time} (IdleAction in jobfence.conf)"),
            Self::Gpu => format!("its GPUs have done nothing for {time} (GPUIdleAction in jobfence.conf)"),
        }
    }

    /// The sentence to the job's user. `then`: what will be done, and when.
    fn sentence(self, job: &str, node: &str, idle: f64, then: Option<(IdleAction, String)>) -> String {
        let time = clock(Duration::try_from_secs_f64(idle).unwrap_or_default());
        let (what, condition) = match self {
            Self::Cpu => (format!("has used almost no CPU time on {node} for {time}"), "If that stays so"),
            Self::Gpu => {
                (format!("has a GPU on {node} that has done nothing for {time}"), "If all its GPUs there do nothing")
            }
        };
        let then = match then {
            None => "Others may be waiting for what it holds.".to_owned(),
            Some((IdleAction::Cancel, when)) => format!("{condition}, the job will be cancelled at about {when}."),
            Some((_, when)) => format!("{condition}, its processes will get SIGTERM at about {when}."),
        };
        format!("jobfence: job {} {what}. {then}", printable(job))
    }
}

/// Does what was decided about an idle job. `idle`: how long it has been idle, in seconds. `after`: how long its user has after the
/// sentence.
pub fn follow(
    config: &Config,
    job: &IdleJob,
    (kind, idle, after): (IdleKind, f64, Duration),
    (step, action): (IdleStep, IdleAction),
    decision: &mut IdleDecision,
    deadline: Instant,
) {
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let id = printable(&job.job);
    let user = job.uid.map_or_else(|| "an unknown user".to_owned(), user_name);
    let host = match Host::read_what_there_is(config) {
        Ok((host, _)) => host,
        Err(error) => {
            decision.put_off();
            log::error!("job {id} of {user} is idle, and nothing is done: {error}");
            return;
        }
    };
    let recorded = Recorded::read(&config.run_dir, &WantedSteps::default(), &mut Vec::new());
    let wanted = WantedSteps { uid: job.uid, job: Id::new(job.job.as_str()).ok(), other_name: None };
    let (mut steps, _) = find(&host, ALL, &recorded, &wanted);
    steps.retain(|step| step.job == job.job && step.node == job.node && step.uid == job.uid);
    let reason = kind.reason(idle);
    match step {
        IdleStep::Tell => {
            let reached = reach(job, &steps, deadline);
            let is_several = matches!(&reached, Some(Ok(reached)) if !reached.is_here_alone());
            let is_unreached = matches!(&reached, Some(Err(_)));
            let then = (action != IdleAction::Warn && !is_several && !is_unreached).then_some(action);
            say(&id, &user, (kind, idle, after), then);
            let when = SystemTime::now() + after;
            let when = LocalTime::from_moment(&utc(when)).map_or_else(|| utc(when), |when| when.clock);
            let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
            let text = kind.sentence(&job.job, &node, idle, then.map(|action| (action, when)));
            let announced = reached.map(|reached| reached.and_then(|reached| reached.tell(&text, deadline)));
            if let Some(Err(why)) = announced {
                decision.not_heard();
                log::error!("cannot tell the user of job {id} that it is idle: {why}");
            }
        }
        IdleStep::Act(how) => {
            let done = match reach(job, &steps, deadline) {
                Some(Ok(reached)) if !reached.is_here_alone() => {
                    log::warn!("job {id} of {user} goes on, although {reason}: it has other nodes, where it may work");
                    decision.spare();
                    return;
                }
                Some(reached) => reached.and_then(|reached| reached.end(how, deadline)),
                None => match signal(&steps, &host.proc, job.uid, Signal::SIGTERM) {
                    Ok(0) => Err("none of its processes here is its user's".to_owned()),
                    Ok(_) if how == IdleAction::Cancel => {
                        decision.kill_later();
                        Ok(())
                    }
                    other => other.map(drop),
                },
            };
            match (done, how) {
                (Ok(()), IdleAction::Cancel) => log::warn!("job {id} of {user} is cancelled, since {reason}"),
                (Ok(()), _) => log::warn!("job {id} of {user} gets SIGTERM, since {reason}"),
                (Err(why), _) => {
                    decision.put_off();
                    log::error!("job {id} of {user} goes on, although {reason}: {why}");
                }
            }
        }
        IdleStep::Kill => match signal(&steps, &host.proc, job.uid, Signal::SIGKILL) {
            Ok(0) => {}
            Ok(_) => log::warn!("what is left of job {id} of {user} gets SIGKILL, since it was idle and is cancelled"),
            Err(why) => log::error!("job {id} of {user} is cancelled, and some of it is left: {why}"),
        },
    }
}

fn say(id: &str, user: &str, (kind, idle, after): (IdleKind, f64, Duration), then: Option<IdleAction>) {
    let time = clock(Duration::try_from_secs_f64(idle).unwrap_or_default());
    let then = match then {
        None | Some(IdleAction::Warn) => String::new(),
        Some(IdleAction::Signal) => format!("; it gets SIGTERM in {} if that stays so", clock(after)),
        Some(IdleAction::Cancel) => format!("; it is cancelled in {} if that stays so", clock(after)),
    };
    match kind {
        IdleKind::Cpu => {
            log::warn!("job {id} of {user} has used almost no CPU time for {time} (IdleAfter in jobfence.conf){then}");
        }
        IdleKind::Gpu => {
            log::warn!(
                "job {id} of {user} has held a GPU for {time} that did nothing (GPUIdleAfter in jobfence.conf){then}"
            );
        }
    }
}

/// The job at its scheduler. `None`: no scheduler's program does anything for a job like it.
fn reach(job: &IdleJob, steps: &[LivingStep<'_>], deadline: Instant) -> Option<Result<Box<dyn ReachedJob>, String>> {
    let shared = |step: &LivingStep<'_>| step.record.as_ref().is_some_and(|record| record.shared.is_some());
    let here = JobHere { id: &job.job, uid: job.uid?, is_opened: steps.iter().any(shared) };
    schedulers::ALL.iter().find_map(|part| part.reach(&here, deadline))
}

/// Sends the signal to all of the user's processes in these steps, and returns how many there are. A process of root's can be the
/// scheduler's, so it gets none.
fn signal(steps: &[LivingStep<'_>], proc: &Dir, uid: Option<u32>, signal: Signal) -> Result<usize, String> {
    let uid = uid.filter(|uid| *uid != 0).ok_or("its user is root, or not known")?;
    let mut count = 0;
    let holders: BTreeSet<i32> = steps.iter().flat_map(holders).collect();
    for step in steps {
        let found = step.processes().map_err(|error| error.to_string())?;
        let mut handles = Vec::new();
        for pid in found.iter().map(|process| process.pid).filter(|pid| !holders.contains(pid)) {
            // The handle is opened first, and the process is looked at after that. So the process that was looked at is the one that gets
            // the signal.
            if let Some(handle) = pidfd_open(Pid::from_raw(pid)).map_err(|error| error.to_string())? {
                handles.push((pid, handle));
            }
        }
        let still: BTreeSet<i32> = step.processes().unwrap_or_default().iter().map(|process| process.pid).collect();
        for (pid, handle) in handles {
            if still.contains(&pid) && process::uid(proc, pid) == Some(uid) {
                send(Pid::from_raw(pid), handle.as_ref(), signal).map_err(|error| error.to_string())?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// The processes that hold a step's fence: they belong to the scheduler.
fn holders(step: &LivingStep<'_>) -> Vec<i32> {
    let Some(record) = &step.record else { return Vec::new() };
    let holder = record.shared.as_ref().and_then(|shared| match &shared.holder {
        Holder::Process(owner) => Some(owner.pid),
        _ => None,
    });
    holder.into_iter().chain([record.owner.pid]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_what_will_happen_and_when() {
        let said = |kind: IdleKind, then: Option<IdleAction>| {
            kind.sentence("7", "n1", 1800.0, then.map(|action| (action, "15:04:05".to_owned())))
        };
        assert_eq!(
            said(IdleKind::Cpu, None),
            "jobfence: job 7 has used almost no CPU time on n1 for 30:00. Others may be waiting for what it holds."
        );
        assert_eq!(
            said(IdleKind::Cpu, Some(IdleAction::Cancel)),
            "jobfence: job 7 has used almost no CPU time on n1 for 30:00. If that stays so, the job will be cancelled at \
             about 15:04:05."
        );
        assert_eq!(
            said(IdleKind::Gpu, Some(IdleAction::Signal)),
            "jobfence: job 7 has a GPU on n1 that has done nothing for 30:00. If all its GPUs there do nothing, its \
             processes will get SIGTERM at about 15:04:05."
        );
    }
}
